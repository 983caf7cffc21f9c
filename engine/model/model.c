/* model.c - a model's shape, out of its file's header: what every layer is, and where each tensor goes.
 *
 * What differs between architectures is in their rows (arch.h); here is what a row means. The file is hostile until
 * every shape was compared with what the row says it must be. Nothing large is read or allocated: what is wrong with a
 * file, or does not fit, is found before its gigabytes are touched.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file/file.h"
#include "engine/model/arch.h"

#define MAX_LAYERS   1024
#define MAX_EMBD     (1 << 17)
#define MAX_FF       (1 << 20)
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 256
#define MAX_CTX      (1 << 24)
#define MAX_VOCAB    (1 << 24)

struct reader {
    const struct gguf *g;
    const struct model_arch *arch;
    struct model *m;
    uint64_t type_bytes[KERNELS_TYPE_COUNT];
    bool *used; /* [tensors in the file] */
    char *err;
    size_t err_size;
};

static int fail(struct reader *r, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(struct reader *r, int rc, const char *format, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return gguf_fail(r->g, r->err, r->err_size, rc, "%s", what);
}

/* ---- numbers ---- */

struct key {
    char text[160];
};

static struct key full_key(const struct reader *r, const char *name)
{
    struct key k;
    snprintf(k.text, sizeof k.text, "%s.%s", r->arch->name, name);
    return k;
}

static int get_dim(struct reader *r, const char *name, bool required, int most, int *out)
{
    struct key key = full_key(r, name);
    uint32_t value = (uint32_t)*out;
    int rc = gguf_get_u32(r->g, key.text, required ? GGUF_REQUIRED : GGUF_OPTIONAL, &value, r->err, r->err_size);
    if (rc)
        return rc;
    if (value == 0 || value > (uint32_t)most)
        return fail(r, -EBADMSG, "%s is %u; it must be between 1 and %d", key.text, value, most);
    *out = (int)value;
    return 0;
}

/* A value that a file may give for all layers or per layer. Required unless out[] has defaults. */
static int get_each(struct reader *r, const char *name, int most, uint32_t *out)
{
    struct key key = full_key(r, name);
    int n = r->m->n_layers;
    int rc =
        gguf_get_u32_each(r->g, key.text, out[0] ? GGUF_OPTIONAL : GGUF_REQUIRED, out, (size_t)n, r->err, r->err_size);
    for (int i = 0; rc == 0 && i < n; i++)
        if (out[i] == 0 || out[i] > (uint32_t)most)
            return fail(r, -EBADMSG, "%s is %u at layer %d; it must be between 1 and %d", key.text, out[i], i, most);
    return rc;
}

/* A number that is 0 when the architecture's row does not allow it. */
static int get_allowed(struct reader *r, const char *name, const struct model_key *k, const char *what, float *out)
{
    struct key key = full_key(r, name);
    uint32_t count = 0;
    *out = k->allowed ? k->value : 0.0f;
    if (gguf_get_u32(r->g, key.text, GGUF_REQUIRED, &count, NULL, 0) == 0) {
        *out = (float)count;
    } else {
        int rc = gguf_get_f32(r->g, key.text, GGUF_OPTIONAL, out, r->err, r->err_size);
        if (rc)
            return rc;
    }
    if (*out != 0.0f && !k->allowed)
        return fail(r, -ENOTSUP, "%s is set, but convod cannot run %s in models of this architecture", key.text, what);
    if (!(*out >= 0.0f && *out <= 1e6f))
        return fail(r, -EBADMSG, "%s is %g, which is no sensible number", key.text, (double)*out);
    return 0;
}

/* ---- layers ---- */

/* Which layers see a window only: all but every so many-th, unless the file says otherwise (another period, or a value
 * per layer). A window that no context reaches is none. */
static int read_windows(struct reader *r)
{
    struct model *m = r->m;
    const struct model_arch *a = r->arch;
    int window = a->window.tokens;
    struct key key = full_key(r, "attention.sliding_window");
    uint32_t value = (uint32_t)window, period = (uint32_t)a->window.full_period;
    if (a->window.key == WINDOW_NONE)
        return 0;
    int rc = gguf_get_u32(r->g, key.text, a->window.key == WINDOW_REQUIRED ? GGUF_REQUIRED : GGUF_OPTIONAL, &value,
                          r->err, r->err_size);
    if (rc)
        return rc;
    if (value > MAX_CTX || (value == 0 && a->window.key == WINDOW_REQUIRED))
        return fail(r, -EBADMSG, "%s is %u; it must be between 1 and %d", key.text, value, MAX_CTX);
    window = (int)value;

    struct gguf_array each = {0};
    key = full_key(r, "attention.sliding_window_pattern");
    bool per_layer = gguf_get_array(r->g, key.text, GGUF_REQUIRED, GGUF_BOOL, &each, NULL, 0) == 0;
    if (!per_layer) {
        if ((rc = gguf_get_u32(r->g, key.text, GGUF_OPTIONAL, &period, r->err, r->err_size)))
            return rc;
    } else if (each.n != (uint64_t)m->n_layers) {
        return fail(r, -EBADMSG, "%s has %llu values for %d layers", key.text, (unsigned long long)each.n, m->n_layers);
    }
    for (int l = 0; l < m->n_layers; l++) {
        bool has = per_layer ? gguf_array_int(&each, (uint64_t)l) != 0 : period == 0 || ((uint32_t)l + 1) % period;
        if (!has || window == 0)
            continue;
        m->layers[l].rope = 1;
        if (window < m->ctx_model) {
            m->layers[l].group = MODEL_WINDOW;
            m->layers[l].window = m->window = window;
        }
    }
    return 0;
}

static int read_head_dim(struct reader *r, int n_heads, int *out)
{
    int key_dim = r->m->n_embd / n_heads;
    if (key_dim == 0)
        return fail(r, -EBADMSG, "%s: %d values cannot be split over %d heads",
                    full_key(r, "attention.head_count").text, r->m->n_embd, n_heads);
    int rc = get_dim(r, "attention.key_length", false, MAX_HEAD_DIM, &key_dim);
    int value_dim = key_dim;
    if (rc || (rc = get_dim(r, "attention.value_length", false, MAX_HEAD_DIM, &value_dim)))
        return rc;
    if (value_dim != key_dim || key_dim % 8 || key_dim > MAX_HEAD_DIM)
        return fail(r, -ENOTSUP,
                    "%s.attention.key_length and value_length: heads of %d and %d are not supported; they must be "
                    "equal, a multiple of 8 and at most %d",
                    r->arch->name, key_dim, value_dim, MAX_HEAD_DIM);
    *out = key_dim;
    return 0;
}

static int read_layers(struct reader *r, enum kernels_kv_type kv_type)
{
    struct model *m = r->m;
    const struct model_arch *a = r->arch;
    uint32_t heads[MAX_LAYERS] = {0}, kv_heads[MAX_LAYERS], ff[MAX_LAYERS] = {0};
    int head_dim = 0;
    const char *ff_key = m->n_experts && a->expert_ff_key ? a->expert_ff_key : "feed_forward_length";
    int rc = get_each(r, ff_key, MAX_FF, ff);
    if (rc || (rc = get_each(r, "attention.head_count", MAX_HEADS, heads)))
        return rc;
    memcpy(kv_heads, heads, sizeof heads);
    if ((rc = get_each(r, "attention.head_count_kv", MAX_HEADS, kv_heads)))
        return rc;
    for (int l = 0; l < m->n_layers; l++)
        if (heads[l] % kv_heads[l])
            return fail(r, -EBADMSG, "%s: %u heads cannot share %u key/value heads",
                        full_key(r, "attention.head_count_kv").text, heads[l], kv_heads[l]);
    if ((rc = read_head_dim(r, (int)heads[0], &head_dim)))
        return rc;
    float scale;
    if ((rc = get_allowed(r, "attention.scale", &(struct model_key){a->scales, 0}, "its own scale of scores", &scale)))
        return rc;
    double width = (double)m->n_embd;
    bool by_width = a->width_scaled_layers && m->n_layers == a->width_scaled_layers;
    for (int l = 0; l < m->n_layers; l++) {
        m->layers[l] = (struct model_layer){
            .mixer = MODEL_ATTENTION,
            .ffn = m->n_experts ? MODEL_MIXTURE : MODEL_DENSE,
            .group = MODEL_FULL,
            .n_heads = (int)heads[l],
            .n_ff = (int)ff[l],
            .rope = 0,
            .attn_scale = scale != 0.0f ? scale : (float)(1.0 / sqrt(by_width ? width / heads[l] : (double)head_dim)),
            .kv = {.type = kv_type, .kv_heads = (int)kv_heads[l], .head_dim = head_dim},
        };
    }
    if ((rc = read_windows(r)))
        return rc;
    bool rotated = true;
    struct key key = full_key(r, "rope.scaling.finetuned");
    if (a->rope_switch && (rc = gguf_get_bool(r->g, key.text, GGUF_OPTIONAL, &rotated, r->err, r->err_size)))
        return rc;
    for (int l = 0; l < m->n_layers; l++)
        if (!rotated || (a->unrotated_period && (l + 1) % a->unrotated_period == 0))
            m->layers[l].rope = -1;
    return 0;
}

static int read_mixture(struct reader *r)
{
    struct model *m = r->m;
    struct key key = full_key(r, "expert_count");
    uint32_t experts = 0, used = 0;
    int rc = gguf_get_u32(r->g, key.text, r->arch->mixture == MIXTURE_ALWAYS ? GGUF_REQUIRED : GGUF_OPTIONAL, &experts,
                          r->err, r->err_size);
    if (rc || (experts == 0 && r->arch->mixture != MIXTURE_ALWAYS))
        return rc;
    if (r->arch->mixture == MIXTURE_NEVER)
        return fail(r, -ENOTSUP, "%s is set, but convod cannot run mixtures of experts of this architecture", key.text);
    if (experts < 2 || experts > KERNELS_MAX_EXPERTS)
        return fail(r, -EBADMSG, "%s is %u; it must be between 2 and %d", key.text, experts, KERNELS_MAX_EXPERTS);
    key = full_key(r, "expert_used_count");
    if ((rc = gguf_get_u32(r->g, key.text, GGUF_REQUIRED, &used, r->err, r->err_size)))
        return rc;
    if (used < 1 || used > experts || used > KERNELS_MAX_EXPERTS_USED)
        return fail(r, -EBADMSG, "%s is %u; it must be between 1 and the %u experts that there are, and at most %d",
                    key.text, used, experts, KERNELS_MAX_EXPERTS_USED);
    m->n_experts = (int)experts;
    m->n_experts_used = (int)used;
    return 0;
}

/* What a file may say of its graph, and every model here does: what says something else would quietly answer wrong. */
static int check_graph(struct reader *r)
{
    bool causal = true, added_to_one = true;
    uint32_t gating = 1; /* softmax; 3: of those that are taken, which is the same behind the division by their sum */
    float scale = 1.0f;
    struct key key = full_key(r, "attention.causal");
    int rc = gguf_get_bool(r->g, key.text, GGUF_OPTIONAL, &causal, r->err, r->err_size);
    if (rc)
        return rc;
    if (!causal)
        return fail(r, -ENOTSUP, "%s is false; convod runs models whose tokens see what is before them alone",
                    key.text);
    if (r->m->n_experts == 0)
        return 0;
    if ((rc =
             gguf_get_u32(r->g, full_key(r, "expert_gating_func").text, GGUF_OPTIONAL, &gating, r->err, r->err_size)) ||
        (rc = gguf_get_bool(r->g, full_key(r, "expert_weights_norm").text, GGUF_OPTIONAL, &added_to_one, r->err,
                            r->err_size)) ||
        (rc = gguf_get_f32(r->g, full_key(r, "expert_weights_scale").text, GGUF_OPTIONAL, &scale, r->err, r->err_size)))
        return rc;
    const char *other = gating > 3 || gating == 2           ? "expert_gating_func"
                        : !added_to_one                     ? "expert_weights_norm"
                        : !(scale == 0.0f || scale == 1.0f) ? "expert_weights_scale"
                                                            : NULL;
    return other ? fail(r, -ENOTSUP,
                        "%s: convod weighs the experts that a token takes by the softmax of their scores, so that they "
                        "add up to 1",
                        full_key(r, other).text)
                 : 0;
}

static int read_arch(struct reader *r)
{
    struct gguf_string s;
    int rc = gguf_get_string(r->g, "general.architecture", GGUF_REQUIRED, &s, r->err, r->err_size);
    if (rc)
        return rc;
    r->arch = r->m->arch = model_arch_find(s.text, s.len);
    if (r->arch)
        return 0;
    char known[256] = "";
    size_t n = 0;
    for (size_t i = 0; model_arch_at(i) && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", model_arch_at(i)->name);
    return fail(r, -ENOTSUP, "architecture '%s' is not supported; convod runs models of: %s",
                gguf_show(s.text, s.len).text, known);
}

/* Constants of the embedding, of what each block adds, and of logits. A factor on all blocks is one of the embedding
 * alone where everything is divided by it: norms do not see that, but for their epsilon. */
static int read_scales(struct reader *r)
{
    struct model *m = r->m;
    const struct model_key key = {r->arch->scales, 0};
    float embedding, residual;
    int rc;
    if ((rc = get_allowed(r, "embedding_scale", &key, "scaled embeddings", &embedding)) ||
        (rc = get_allowed(r, "residual_scale", &key, "scaled blocks", &residual)) ||
        (rc = get_allowed(r, "logit_scale", &key, "scaled logits", &m->logit_divisor)))
        return rc;
    if (embedding != 0.0f)
        m->embed_scale = embedding;
    if (residual != 0.0f) {
        m->embed_scale /= residual;
        m->rms_eps /= residual * residual;
    }
    return 0;
}

static int read_shape(struct reader *r, enum kernels_kv_type kv_type)
{
    struct model *m = r->m;
    const struct model_arch *a;
    int rc = read_arch(r);
    if (rc)
        return rc;
    a = r->arch;
    if ((rc = get_dim(r, "block_count", true, MAX_LAYERS, &m->n_layers)) ||
        (rc = get_dim(r, "context_length", true, MAX_CTX, &m->ctx_model)) ||
        (rc = get_dim(r, "embedding_length", true, MAX_EMBD, &m->n_embd)) || (rc = read_mixture(r)) ||
        (rc = check_graph(r)))
        return rc;
    struct key key = full_key(r, "attention.layer_norm_rms_epsilon");
    if ((rc = gguf_get_f32(r->g, key.text, GGUF_REQUIRED, &m->rms_eps, r->err, r->err_size)))
        return rc;
    if (!(m->rms_eps >= 0.0f && m->rms_eps < 1.0f))
        return fail(r, -EBADMSG, "%s is not between 0 and 1", key.text);
    if ((rc =
             get_allowed(r, "attn_logit_softcapping", &a->attn_softcap, "capped attention scores", &m->attn_softcap)) ||
        (rc = get_allowed(r, "final_logit_softcapping", &a->final_softcap, "capped logits", &m->final_softcap)) ||
        (rc = get_allowed(r, "attention.temperature_scale", &(struct model_key){a->temperature, 0},
                          "queries that grow with their position", &m->temperature)))
        return rc;
    m->rope_kind = a->rope_kind;
    m->glu = a->glu;
    m->embed_scale = a->scaled_embedding ? sqrtf((float)m->n_embd) : 1.0f;
    if ((rc = read_scales(r)))
        return rc;
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    if (!m->layers)
        return fail(r, -ENOMEM, "no memory for %d layers", m->n_layers);
    return read_layers(r, kv_type);
}

/* ---- tensors ---- */

static int dim_of(const struct model *m, const struct model_layer *layer, enum model_dim d)
{
    switch (d) {
    case DIM_Q:
        return layer->n_heads * layer->kv.head_dim;
    case DIM_KV:
        return layer->kv.kv_heads * layer->kv.head_dim;
    case DIM_HEAD:
        return layer->kv.head_dim;
    case DIM_FF:
        return layer->n_ff;
    case DIM_EXPERTS:
        return m->n_experts;
    case DIM_HEADS:
        return layer->n_heads;
    default:
        return m->n_embd;
    }
}

/* The tensor counts as used: its values and bytes, once. */
static void use(struct reader *r, const struct gguf_tensor *t)
{
    bool *used = &r->used[t - gguf_tensor_at(r->g, 0)];
    if (*used)
        return;
    *used = true;
    r->type_bytes[t->type] += t->bytes;
    r->m->parameters += t->values;
}

static int add_job(struct reader *r, struct model_job job)
{
    struct model *m = r->m;
    if (m->n_jobs == m->jobs_capacity) {
        size_t capacity = m->jobs_capacity ? m->jobs_capacity * 2 : 256;
        struct model_job *jobs = realloc(m->jobs, capacity * sizeof *jobs);
        if (!jobs)
            return fail(r, -ENOMEM, "no memory for a list of its tensors");
        m->jobs = jobs;
        m->jobs_capacity = capacity;
    }
    use(r, job.t);
    m->jobs[m->n_jobs++] = job;
    return 0;
}

/* A matrix of rows from `first` on, out of `whole` rows. */
static int want_matrix(struct reader *r, const char *name, int whole, int first, int rows, int cols,
                       struct kernels_matrix *to)
{
    const struct gguf_tensor *t;
    int rc = gguf_tensor_get(r->g, name, GGUF_REQUIRED, &t, r->err, r->err_size);
    if (rc)
        return rc;
    if (t->n_dims > 2 || t->dims[0] != (uint64_t)cols || t->dims[1] != (uint64_t)whole)
        return fail(r, -EBADMSG, "tensor %s is %llu x %llu; this model needs %d x %d", name,
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], cols, whole);
    if (kernels_row_bytes(t->type, cols) == 0)
        return fail(r, -EBADMSG, "tensor %s: rows of %d values cannot have type %s", name, cols, t->type_name);
    uint64_t at = t->bytes / (uint64_t)whole * (uint64_t)first;
    return add_job(r, (struct model_job){.t = t, .at = at, .rows = rows, .cols = cols, .to = to});
}

/* A matrix per expert: the rows from `first` on, out of `whole`. */
static int want_experts(struct reader *r, const char *name, int whole, int first, int rows, int cols,
                        struct kernels_matrix *to)
{
    const struct gguf_tensor *t;
    int n = r->m->n_experts;
    int rc = gguf_tensor_get(r->g, name, GGUF_REQUIRED, &t, r->err, r->err_size);
    if (rc)
        return rc;
    if (t->n_dims != 3 || t->dims[0] != (uint64_t)cols || t->dims[1] != (uint64_t)whole || t->dims[2] != (uint64_t)n)
        return fail(r, -EBADMSG, "tensor %s is %llu x %llu x %llu; this model needs %d x %d x %d", name,
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (unsigned long long)t->dims[2],
                    cols, whole, n);
    if (kernels_row_bytes(t->type, cols) == 0)
        return fail(r, -EBADMSG, "tensor %s: rows of %d values cannot have type %s", name, cols, t->type_name);
    struct model_job job = {.t = t, .rows = rows, .cols = cols, .experts = n, .to = to};
    if (whole == rows)
        return add_job(r, job);
    uint64_t row_bytes = t->bytes / (uint64_t)n / (uint64_t)whole;
    for (int i = 0; i < n && !rc; i++) {
        job.at = row_bytes * ((uint64_t)i * (uint64_t)whole + (uint64_t)first);
        job.expert = i + 1;
        rc = add_job(r, job);
    }
    return rc;
}

static int check_vector_type(struct reader *r, const struct gguf_tensor *t)
{
    if (t->type != KERNELS_F32 && t->type != KERNELS_BF16 && t->type != KERNELS_F16)
        return fail(r, -ENOTSUP, "tensor %s has type %s; a vector must be F32, F16 or BF16", t->name, t->type_name);
    return 0;
}

/* n values of a vector from `first` on, out of `whole`. */
static int want_vector(struct reader *r, const char *name, bool required, int whole, int first, int n, float divisor,
                       const float **to)
{
    const struct gguf_tensor *t;
    int rc = gguf_tensor_get(r->g, name, required ? GGUF_REQUIRED : GGUF_OPTIONAL, &t, r->err, r->err_size);
    if (rc || !t)
        return rc;
    if (t->values != (uint64_t)whole || t->dims[0] != (uint64_t)whole)
        return fail(r, -EBADMSG, "tensor %s has %llu values; this model needs %d", name, (unsigned long long)t->values,
                    whole);
    if ((rc = check_vector_type(r, t)))
        return rc;
    uint64_t at = t->bytes / (uint64_t)whole * (uint64_t)first;
    return add_job(
        r, (struct model_job){.t = t, .at = at, .rows = 1, .cols = n, .vector = true, .divisor = divisor, .to = to});
}

/* A vector per expert. */
static int want_vectors(struct reader *r, const char *name, int n, const float **to)
{
    const struct gguf_tensor *t;
    int experts = r->m->n_experts;
    int rc = gguf_tensor_get(r->g, name, GGUF_REQUIRED, &t, r->err, r->err_size);
    if (rc)
        return rc;
    if (t->n_dims != 2 || t->dims[0] != (uint64_t)n || t->dims[1] != (uint64_t)experts)
        return fail(r, -EBADMSG, "tensor %s is %llu x %llu; this model needs %d x %d", name,
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], n, experts);
    if (experts > INT32_MAX / n)
        return fail(r, -EBADMSG, "tensor %s is too large", name);
    rc = check_vector_type(r, t);
    return rc ? rc : add_job(r, (struct model_job){.t = t, .rows = 1, .cols = n * experts, .vector = true, .to = to});
}

/* Where a slice of `size` begins, and how long the whole is. */
static int slice_of(const struct model *m, const struct model_layer *layer, enum model_slice slice, int size,
                    int *first)
{
    int q = dim_of(m, layer, DIM_Q), kv = dim_of(m, layer, DIM_KV);
    *first = slice == SLICE_K ? q : slice == SLICE_V ? q + kv : slice == SLICE_SECOND ? size : 0;
    if (slice == SLICE_Q || slice == SLICE_K || slice == SLICE_V)
        return q + 2 * kv;
    return slice == SLICE_FIRST || slice == SLICE_SECOND ? 2 * size : size;
}

static int read_tensors(struct reader *r, int l, const struct model_tensor *list, size_t most)
{
    struct model_layer *layer = &r->m->layers[l];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < most && list[i].slot != SLOT_NONE; i++) {
        const struct model_tensor *want = &list[i];
        const struct model_slot_info *slot = &MODEL_SLOT_INFO[want->slot];
        void *to = (char *)layer + slot->at;
        int cols = dim_of(r->m, layer, slot->cols), rows = dim_of(r->m, layer, slot->rows), first;
        char name[GGUF_MAX_NAME_BYTES + 1], joined[GGUF_MAX_NAME_BYTES + 1];
        snprintf(name, sizeof name, "blk.%d.%s", l, want->name ? want->name : slot->name);
        bool vector = slot->kind == SLOT_VECTOR, required = want->presence == MODEL_REQUIRED;
        enum model_slice slice = want->slice;
        const struct model_joined *other = &MODEL_JOINED[want->slot];
        if (!want->name && other->name && gguf_tensor_find(r->g, name) == NULL) {
            snprintf(joined, sizeof joined, "blk.%d.%s", l, other->name);
            if (gguf_tensor_find(r->g, joined) != NULL) {
                memcpy(name, joined, sizeof name);
                slice = other->slice;
            }
        }
        int whole = slice_of(r->m, layer, slice, vector ? cols : rows, &first);
        if (!required && gguf_tensor_find(r->g, name) == NULL)
            continue;
        if (vector)
            rc = want_vector(r, name, required, whole, first, cols, 0, to);
        else if (slot->kind == SLOT_VECTORS)
            rc = want_vectors(r, name, cols, to);
        else if (slot->kind == SLOT_EXPERTS)
            rc = want_experts(r, name, whole, first, rows, cols, to);
        else
            rc = want_matrix(r, name, whole, first, rows, cols, to);
    }
    return rc;
}

/* A tensor that is not part of the graph as convod knows it would be a model that quietly answers wrong. */
static int check_all_used(struct reader *r)
{
    for (size_t i = 0; i < gguf_tensor_count(r->g); i++) {
        const char *name = gguf_tensor_at(r->g, i)->name;
        /* Frequencies: read with the rotary settings, or, in old files, what those settings say anyway. */
        bool frequencies = !strcmp(name, "rope_freqs.weight") || strstr(name, ".attn_rot_embd") ||
                           (r->arch->long_rope && !strncmp(name, "rope_factors_", 13));
        if (!r->used[i] && !frequencies)
            return fail(r, -ENOTSUP, "tensor %s has no place in the models of this architecture that convod knows",
                        gguf_show(name, strlen(name)).text);
    }
    return 0;
}

static int read_weights(struct reader *r)
{
    struct model *m = r->m;
    const struct model_arch *a = r->arch;
    const struct gguf_tensor *embed;
    int rc = gguf_tensor_get(r->g, "token_embd.weight", GGUF_REQUIRED, &embed, r->err, r->err_size);
    if (rc)
        return rc;
    if (embed->dims[1] > MAX_VOCAB)
        return fail(r, -EBADMSG, "token_embd.weight has %llu rows", (unsigned long long)embed->dims[1]);
    m->n_vocab = (int)embed->dims[1];
    if ((rc = want_matrix(r, "token_embd.weight", m->n_vocab, 0, m->n_vocab, m->n_embd, &m->embed)))
        return rc;
    for (int l = 0; l < m->n_layers; l++) {
        bool mixture = m->layers[l].ffn == MODEL_MIXTURE;
        if ((rc = read_tensors(r, l, a->tensors, MODEL_MAX_TENSORS)) ||
            (rc = mixture ? read_tensors(r, l, a->experts, sizeof a->experts / sizeof *a->experts)
                          : read_tensors(r, l, a->dense, sizeof a->dense / sizeof *a->dense)))
            return rc;
    }
    if ((rc = want_vector(r, "output_norm.weight", true, m->n_embd, 0, m->n_embd, m->logit_divisor, &m->output_norm)))
        return rc;
    if (gguf_tensor_find(r->g, "output.weight")) {
        rc = want_matrix(r, "output.weight", m->n_vocab, 0, m->n_vocab, m->n_embd, &m->output);
    }
    if (rc || (rc = check_all_used(r)))
        return rc;
    int most = 0;
    for (int t = 1; t < KERNELS_TYPE_COUNT; t++)
        if (r->type_bytes[t] > r->type_bytes[most])
            most = t;
    m->quantization = kernels_type_info((enum kernels_type)most)->name;
    return 0;
}

int model_read(const struct gguf *g, enum kernels_kv_type kv_type, struct model *out, char *err, size_t err_size)
{
    *out = (struct model){0};
    struct reader r = {.g = g, .m = out, .err = err, .err_size = err_size};
    int rc = read_shape(&r, kv_type);
    if (!rc) {
        r.used = calloc(gguf_tensor_count(g) + 1, sizeof *r.used);
        rc = r.used ? read_weights(&r) : fail(&r, -ENOMEM, "no memory for its tensors' names");
        free(r.used);
    }
    if (rc)
        model_close(out, NULL);
    return rc;
}

/* ---- facts ---- */

int model_most_heads(const struct model *m)
{
    int most = 0;
    for (int l = 0; l < m->n_layers; l++)
        most = m->layers[l].n_heads > most ? m->layers[l].n_heads : most;
    return most;
}

int model_most_head_dim(const struct model *m)
{
    int most = 0;
    for (int l = 0; l < m->n_layers; l++)
        most = m->layers[l].kv.head_dim > most ? m->layers[l].kv.head_dim : most;
    return most;
}

static int most_dim(const struct model *m, enum model_dim d)
{
    int most = 0;
    for (int l = 0; l < m->n_layers; l++) {
        int n = dim_of(m, &m->layers[l], d);
        most = n > most ? n : most;
    }
    return most;
}

int model_most_q(const struct model *m)
{
    return most_dim(m, DIM_Q);
}

int model_most_kv(const struct model *m)
{
    return most_dim(m, DIM_KV);
}

int model_most_ff(const struct model *m)
{
    return most_dim(m, DIM_FF);
}

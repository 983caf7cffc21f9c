/* model.c - a model's shape and weights out of its file.
 *
 * Architectures: `qwen2` (biases on Q, K, V), `llama` (Llama 2 and 3, Mistral, SmolLM2: rotated pairs), `gemma3`
 * (sliding-window layers, norms on Q and K, a norm behind attention and feed-forward, scaled embeddings). Matrices are
 * packed by kernels_pack_group() one tensor at a time, and the file's pages are given back behind it, so that a model
 * is never in memory twice. The file is hostile until every shape was compared with what the architecture says it must
 * be.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file/file.h"
#include "engine/model/model.h"

#define MAX_LAYERS   1024
#define MAX_EMBD     (1 << 17)
#define MAX_FF       (1 << 20)
#define MAX_HEADS    1024
#define MAX_HEAD_DIM 256
#define MAX_CTX      (1 << 24)

#define GEMMA3_WINDOW_PERIOD 6  /* every sixth layer sees everything (Gemma 3 report, arXiv:2503.19786) */
#define GEMMA3_27B_LAYERS    62 /* the size that scales attention by n_embd / heads */

/* Weights lie one after the other in blocks of this size (a larger tensor has its own), since the backend rounds every
 * allocation up to huge pages: with one allocation per tensor a small model would be a quarter larger. */
#define BLOCK_BYTES  ((size_t)64 << 20)
#define WEIGHT_ALIGN 64

struct model_block {
    struct model_block *next;
    uint8_t *p;
    size_t bytes, used;
};

struct loader {
    const struct gguf *g;
    struct kernels *k;
    const struct kernels_ops *ops;
    struct model *m;
    void (*progress)(void *arg, double fraction, const char *what);
    void *progress_arg;
    uint64_t done_bytes, total_bytes;
    uint64_t type_bytes[KERNELS_TYPE_COUNT];
    bool *read; /* [tensors in the file] */
    char *err;
    size_t err_size;
};

static int fail(struct loader *ld, int rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(struct loader *ld, int rc, const char *format, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(ld->err, ld->err_size, "%s: %s", gguf_path(ld->g), what);
    return rc;
}

/* ---- shape ---- */

static int get_dim(struct loader *ld, const char *arch, const char *name, bool required, int most, int *out)
{
    char key[160];
    uint32_t value = (uint32_t)*out;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    int rc = gguf_get_u32(ld->g, key, required ? GGUF_REQUIRED : GGUF_OPTIONAL, &value, ld->err, ld->err_size);
    if (rc)
        return rc;
    if (value == 0 || value > (uint32_t)most)
        return fail(ld, -EBADMSG, "%s is %u; it must be between 1 and %d", key, value, most);
    *out = (int)value;
    return 0;
}

/* A value that a file may give per layer, but that convod takes the same for all. Required unless *out has a default.
 */
static int get_uniform(struct loader *ld, const char *arch, const char *name, int n_layers, int most, int *out)
{
    char key[160];
    uint32_t each[MAX_LAYERS];
    for (int i = 0; i < n_layers; i++)
        each[i] = (uint32_t)*out;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    int rc = gguf_get_u32_each(ld->g, key, *out ? GGUF_OPTIONAL : GGUF_REQUIRED, each, (size_t)n_layers, ld->err,
                               ld->err_size);
    if (rc)
        return rc;
    for (int i = 0; i < n_layers; i++)
        if (each[i] != each[0])
            return fail(ld, -ENOTSUP, "%s differs between layers, which convod cannot run", key);
    if (each[0] == 0 || each[0] > (uint32_t)most)
        return fail(ld, -EBADMSG, "%s is %u; it must be between 1 and %d", key, each[0], most);
    *out = (int)each[0];
    return 0;
}

/* A number that changes the graph in a way that convod lacks, unless it is 0. */
static int refuse(struct loader *ld, const char *arch, const char *name, const char *what)
{
    char key[160];
    uint32_t count = 0;
    float value = 0;
    snprintf(key, sizeof key, "%s.%s", arch, name);
    if (gguf_get_u32(ld->g, key, GGUF_OPTIONAL, &count, NULL, 0) != 0) {
        int rc = gguf_get_f32(ld->g, key, GGUF_OPTIONAL, &value, ld->err, ld->err_size);
        if (rc)
            return rc;
    }
    if (count == 0 && value == 0.0f)
        return 0;
    return fail(ld, -ENOTSUP, "%s is set, but convod cannot run %s", key, what);
}

/* Which layers see a window only: every sixth layer sees everything, unless the file says otherwise (another period, or
 * a value per layer). */
static int read_windows(struct loader *ld, const char *arch)
{
    struct model *m = ld->m;
    uint32_t period = GEMMA3_WINDOW_PERIOD;
    struct gguf_array each = {0};
    char key[160];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    bool per_layer = gguf_get_array(ld->g, key, GGUF_REQUIRED, GGUF_BOOL, &each, NULL, 0) == 0;
    if (!per_layer) {
        int rc = gguf_get_u32(ld->g, key, GGUF_OPTIONAL, &period, ld->err, ld->err_size);
        if (rc)
            return rc;
    } else if (each.n != (uint64_t)m->n_layers) {
        return fail(ld, -EBADMSG, "%s has %llu values for %d layers", key, (unsigned long long)each.n, m->n_layers);
    }
    for (int l = 0; l < m->n_layers; l++) {
        bool window = per_layer ? gguf_array_int(&each, (uint64_t)l) != 0 : period == 0 || ((uint32_t)l + 1) % period;
        m->layers[l].group = window ? MODEL_WINDOW : MODEL_FULL;
    }
    return 0;
}

static int read_shape(struct loader *ld, char *arch, size_t arch_size)
{
    struct model *m = ld->m;
    struct gguf_string s;
    int rc = gguf_get_string(ld->g, "general.architecture", GGUF_REQUIRED, &s, ld->err, ld->err_size);
    if (rc)
        return rc;
    snprintf(arch, arch_size, "%s", gguf_show(s.text, s.len).text);
    bool gemma3 = !strcmp(arch, "gemma3");
    if (strcmp(arch, "qwen2") && strcmp(arch, "llama") && !gemma3)
        return fail(ld, -ENOTSUP, "architecture '%s' is not supported; convod runs qwen2, llama and gemma3 models",
                    arch);

    if ((rc = get_dim(ld, arch, "block_count", true, MAX_LAYERS, &m->n_layers)) ||
        (rc = get_dim(ld, arch, "context_length", true, MAX_CTX, &m->ctx_model)) ||
        (rc = get_dim(ld, arch, "embedding_length", true, MAX_EMBD, &m->n_embd)))
        return rc;
    if ((rc = get_uniform(ld, arch, "feed_forward_length", m->n_layers, MAX_FF, &m->n_ff)) ||
        (rc = get_uniform(ld, arch, "attention.head_count", m->n_layers, MAX_HEADS, &m->n_heads)))
        return rc;
    m->n_kv_heads = m->n_heads;
    if ((rc = get_uniform(ld, arch, "attention.head_count_kv", m->n_layers, MAX_HEADS, &m->n_kv_heads)))
        return rc;
    if (m->n_heads % m->n_kv_heads)
        return fail(ld, -EBADMSG, "%s.attention.head_count_kv: %d heads cannot share %d key/value heads", arch,
                    m->n_heads, m->n_kv_heads);

    m->head_dim = m->n_embd / m->n_heads;
    if (m->head_dim == 0)
        return fail(ld, -EBADMSG, "%s.attention.head_count: %d values cannot be split over %d heads", arch, m->n_embd,
                    m->n_heads);
    if ((rc = get_dim(ld, arch, "attention.key_length", false, MAX_HEAD_DIM, &m->head_dim)))
        return rc;
    int value_dim = m->head_dim;
    if ((rc = get_dim(ld, arch, "attention.value_length", false, MAX_HEAD_DIM, &value_dim)))
        return rc;
    if (value_dim != m->head_dim || m->head_dim % 8 || m->head_dim > MAX_HEAD_DIM)
        return fail(ld, -ENOTSUP,
                    "%s.attention.key_length and value_length: heads of %d and %d are not supported; they must be "
                    "equal, a multiple of 8 and at most %d",
                    arch, m->head_dim, value_dim, MAX_HEAD_DIM);

    char key[160];
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    if ((rc = gguf_get_f32(ld->g, key, GGUF_REQUIRED, &m->rms_eps, ld->err, ld->err_size)))
        return rc;
    if (!(m->rms_eps >= 0.0f && m->rms_eps < 1.0f))
        return fail(ld, -EBADMSG, "%s is not between 0 and 1", key);
    if ((rc = refuse(ld, arch, "expert_count", "mixtures of experts")) ||
        (rc = refuse(ld, arch, "attn_logit_softcapping", "capped attention scores")) ||
        (rc = refuse(ld, arch, "final_logit_softcapping", "capped logits")))
        return rc;

    m->rope_kind = !strcmp(arch, "llama") ? KERNELS_ROPE_PAIRS : KERNELS_ROPE_HALVES;
    m->glu = gemma3 ? KERNELS_GELU_TANH : KERNELS_SILU;
    m->embed_scale = gemma3 ? sqrtf((float)m->n_embd) : 1.0f;
    m->attn_scale = (float)(1.0 / sqrt(gemma3 && m->n_layers == GEMMA3_27B_LAYERS ? (double)m->n_embd / m->n_heads
                                                                                  : (double)m->head_dim));
    m->window = 0;
    if (gemma3 && (rc = get_dim(ld, arch, "attention.sliding_window", true, MAX_CTX, &m->window)))
        return rc;
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    if (!m->layers)
        return fail(ld, -ENOMEM, "no memory for %d layers", m->n_layers);
    if (gemma3 && (rc = read_windows(ld, arch))) /* else all are MODEL_FULL */
        return rc;
    return model_rope_open(ld->g, arch, m, ld->err, ld->err_size);
}

/* ---- weights ---- */

static void *block_alloc(struct loader *ld, size_t bytes)
{
    struct model_block *b = ld->m->blocks;
    size_t padded = (bytes + WEIGHT_ALIGN - 1) & ~(size_t)(WEIGHT_ALIGN - 1);
    if (!b || padded > b->bytes - b->used) {
        b = malloc(sizeof *b);
        if (!b)
            return NULL;
        *b = (struct model_block){.next = ld->m->blocks, .bytes = padded > BLOCK_BYTES ? padded : BLOCK_BYTES};
        b->p = ld->ops->alloc(ld->k, b->bytes);
        if (!b->p) {
            free(b);
            return NULL;
        }
        ld->m->blocks = b;
    }
    void *p = b->p + b->used;
    b->used += padded;
    ld->m->weight_bytes += bytes;
    return p;
}

struct pack_job {
    const struct gguf_tensor *t;
    int rows, cols;
    void *packed;
};

static void pack_group(void *arg, int group)
{
    const struct pack_job *job = arg;
    kernels_pack_group(job->t->type, job->rows, job->cols, group, job->t->data, job->packed);
}

static void tensor_done(struct loader *ld, const struct gguf_tensor *t)
{
    ld->done_bytes += t->bytes;
    ld->type_bytes[t->type] += t->bytes;
    ld->m->parameters += t->values;
    ld->read[t - gguf_tensor_at(ld->g, 0)] = true;
    gguf_tensor_forget(ld->g, t);
    if (ld->progress && ld->total_bytes)
        ld->progress(ld->progress_arg, (double)ld->done_bytes / (double)ld->total_bytes, "loading the model");
}

static int load_matrix(struct loader *ld, const char *name, int rows, int cols, struct kernels_matrix *out)
{
    const struct gguf_tensor *t;
    int rc = gguf_tensor_get(ld->g, name, GGUF_REQUIRED, &t, ld->err, ld->err_size);
    if (rc)
        return rc;
    if (t->n_dims > 2 || t->dims[0] != (uint64_t)cols || t->dims[1] != (uint64_t)rows)
        return fail(ld, -EBADMSG, "tensor %s is %llu x %llu; this model needs %d x %d", name,
                    (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], cols, rows);
    size_t bytes = kernels_packed_bytes(t->type, rows, cols);
    if (bytes == 0)
        return fail(ld, -EBADMSG, "tensor %s: rows of %d values cannot have type %s", name, cols, t->type_name);
    struct pack_job job = {t, rows, cols, block_alloc(ld, bytes)};
    if (!job.packed)
        return fail(ld, -ENOMEM, "no memory for tensor %s (%zu bytes)", name, bytes);
    kernels_parallel(ld->k, (rows + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP, pack_group, &job);
    *out = (struct kernels_matrix){.type = t->type, .rows = rows, .cols = cols, .data = job.packed};
    tensor_done(ld, t);
    return 0;
}

static int load_vector(struct loader *ld, const char *name, bool required, int n, const float **out)
{
    const struct gguf_tensor *t;
    *out = NULL;
    int rc = gguf_tensor_get(ld->g, name, required ? GGUF_REQUIRED : GGUF_OPTIONAL, &t, ld->err, ld->err_size);
    if (rc || !t)
        return rc;
    if (t->values != (uint64_t)n || t->dims[0] != (uint64_t)n)
        return fail(ld, -EBADMSG, "tensor %s has %llu values; this model needs %d", name, (unsigned long long)t->values,
                    n);
    if (t->type != KERNELS_F32 && t->type != KERNELS_BF16)
        return fail(ld, -ENOTSUP, "tensor %s has type %s; a vector must be F32 or BF16", name, t->type_name);
    float *v = block_alloc(ld, (size_t)n * sizeof *v);
    if (!v)
        return fail(ld, -ENOMEM, "no memory for tensor %s", name);
    for (int i = 0; i < n; i++) {
        if (t->type == KERNELS_F32) {
            memcpy(&v[i], (const uint8_t *)t->data + (size_t)i * 4, 4);
        } else {
            uint16_t half;
            memcpy(&half, (const uint8_t *)t->data + (size_t)i * 2, 2);
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&v[i], &bits, 4);
        }
    }
    *out = v;
    tensor_done(ld, t);
    return 0;
}

static int load_layer(struct loader *ld, int l, bool qwen2, bool gemma3, enum kernels_kv_type kv_type)
{
    struct model *m = ld->m;
    struct model_layer *layer = &m->layers[l];
    int q_rows = m->n_heads * m->head_dim, kv_rows = m->n_kv_heads * m->head_dim;
    char name[96];
    int rc;
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%d." suffix, l), name)
    if ((rc = load_vector(ld, NAME("attn_norm.weight"), true, m->n_embd, &layer->attn_norm)) ||
        (rc = load_matrix(ld, NAME("attn_q.weight"), q_rows, m->n_embd, &layer->q)) ||
        (rc = load_matrix(ld, NAME("attn_k.weight"), kv_rows, m->n_embd, &layer->k)) ||
        (rc = load_matrix(ld, NAME("attn_v.weight"), kv_rows, m->n_embd, &layer->v)) ||
        (rc = load_vector(ld, NAME("attn_q.bias"), qwen2, q_rows, &layer->q_bias)) ||
        (rc = load_vector(ld, NAME("attn_k.bias"), qwen2, kv_rows, &layer->k_bias)) ||
        (rc = load_vector(ld, NAME("attn_v.bias"), qwen2, kv_rows, &layer->v_bias)) ||
        (rc = load_vector(ld, NAME("attn_q_norm.weight"), gemma3, m->head_dim, &layer->q_norm)) ||
        (rc = load_vector(ld, NAME("attn_k_norm.weight"), gemma3, m->head_dim, &layer->k_norm)) ||
        (rc = load_matrix(ld, NAME("attn_output.weight"), m->n_embd, q_rows, &layer->o)) ||
        (rc = load_vector(ld, NAME("post_attention_norm.weight"), gemma3, m->n_embd, &layer->post_attn_norm)) ||
        (rc = load_vector(ld, NAME("ffn_norm.weight"), true, m->n_embd, &layer->ffn_norm)) ||
        (rc = load_matrix(ld, NAME("ffn_gate.weight"), m->n_ff, m->n_embd, &layer->gate)) ||
        (rc = load_matrix(ld, NAME("ffn_up.weight"), m->n_ff, m->n_embd, &layer->up)) ||
        (rc = load_matrix(ld, NAME("ffn_down.weight"), m->n_embd, m->n_ff, &layer->down)) ||
        (rc = load_vector(ld, NAME("post_ffw_norm.weight"), gemma3, m->n_embd, &layer->post_ffn_norm)))
        return rc;
#undef NAME
    layer->kv = (struct kernels_kv){.type = kv_type, .kv_heads = m->n_kv_heads, .head_dim = m->head_dim};
    return 0;
}

/* A tensor that is not part of the graph as convod knows it would be a model that quietly answers wrong. */
static int check_all_read(struct loader *ld)
{
    for (size_t i = 0; i < gguf_tensor_count(ld->g); i++) {
        const char *name = gguf_tensor_at(ld->g, i)->name;
        /* Frequencies: read with the rotary settings, or, in old files, what those settings say anyway. */
        bool frequencies = !strcmp(name, "rope_freqs.weight") || strstr(name, ".attn_rot_embd");
        if (!ld->read[i] && !frequencies)
            return fail(ld, -ENOTSUP, "tensor %s has no place in the models of this architecture that convod knows",
                        gguf_show(name, strlen(name)).text);
    }
    return 0;
}

static int load_weights(struct loader *ld, const char *arch, enum kernels_kv_type kv_type)
{
    struct model *m = ld->m;
    for (size_t i = 0; i < gguf_tensor_count(ld->g); i++)
        ld->total_bytes += gguf_tensor_at(ld->g, i)->bytes;

    const struct gguf_tensor *embed;
    int rc = gguf_tensor_get(ld->g, "token_embd.weight", GGUF_REQUIRED, &embed, ld->err, ld->err_size);
    if (rc)
        return rc;
    if (embed->dims[1] > (1u << 24))
        return fail(ld, -EBADMSG, "token_embd.weight has %llu rows", (unsigned long long)embed->dims[1]);
    m->n_vocab = (int)embed->dims[1];
    if ((rc = load_matrix(ld, "token_embd.weight", m->n_vocab, m->n_embd, &m->embed)))
        return rc;
    for (int l = 0; l < m->n_layers; l++)
        if ((rc = load_layer(ld, l, !strcmp(arch, "qwen2"), !strcmp(arch, "gemma3"), kv_type)))
            return rc;
    if ((rc = load_vector(ld, "output_norm.weight", true, m->n_embd, &m->output_norm)))
        return rc;
    if (gguf_tensor_find(ld->g, "output.weight"))
        rc = load_matrix(ld, "output.weight", m->n_vocab, m->n_embd, &m->output);
    else
        m->output = m->embed;
    if (rc || (rc = check_all_read(ld)))
        return rc;

    int most = 0;
    for (int t = 1; t < KERNELS_TYPE_COUNT; t++)
        if (ld->type_bytes[t] > ld->type_bytes[most])
            most = t;
    m->quantization = kernels_type_info((enum kernels_type)most)->name;
    return 0;
}

int model_open(const struct gguf *g, struct kernels *k, enum kernels_kv_type kv_type,
               void (*progress)(void *arg, double fraction, const char *what), void *arg, struct model *out, char *err,
               size_t err_size)
{
    struct model m = {0};
    struct loader ld = {.g = g,
                        .k = k,
                        .ops = kernels_ops(k),
                        .m = &m,
                        .progress = progress,
                        .progress_arg = arg,
                        .err = err,
                        .err_size = err_size};
    char arch[sizeof(struct gguf_shown)];
    int rc = read_shape(&ld, arch, sizeof arch);
    if (!rc) {
        ld.read = calloc(gguf_tensor_count(g) + 1, sizeof *ld.read);
        rc = ld.read ? load_weights(&ld, arch, kv_type) : fail(&ld, -ENOMEM, "no memory for its tensors' names");
        free(ld.read);
    }
    if (rc) {
        model_close(&m, k);
        return rc;
    }
    *out = m;
    return 0;
}

void model_close(struct model *m, struct kernels *k)
{
    while (m->blocks) {
        struct model_block *b = m->blocks;
        m->blocks = b->next;
        kernels_ops(k)->release(k, b->p, b->bytes);
        free(b);
    }
    for (int g = 0; g < MODEL_GROUPS; g++)
        free(m->rope[g].inv_freq);
    free(m->layers);
    memset(m, 0, sizeof *m);
}

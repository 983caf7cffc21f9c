/* step.cu - the operations of a step as kernels.h has them, put together from those of cuda.h, and their scratch.
 *
 * Who makes rows for a product leaves them as floats first and quantizes them behind that. Everything is put into the
 * compute stream with sizes that depend on the batch's numbers alone, so that a step can be replayed as a graph. */
#include "kernels/cuda/backend.h"

static cudaStream_t compute(const struct kernels *k)
{
    return k->stream[KERNELS_COMPUTE];
}

static bool idle(const struct kernels *k)
{
    return k->error[0];
}

static struct cuda_weights weights_of(const struct kernels_matrix *w)
{
    return {w->type, w->rows, w->cols, w->data};
}

/* Rows that are there as floats, in the other form too where it is asked for. */
static void finish(struct kernels *k, const struct kernels_acts *a, int n)
{
    if (a->forms & KERNELS_QUANTS)
        backend_put(k, cuda_quantize(compute(k), a->x, n, a->cols, a->q), "rounding rows");
}

static void embed(struct kernels *k, const struct kernels_matrix *w, float scale, float *out)
{
    if (!idle(k))
        backend_put(k, cuda_embed(compute(k), weights_of(w), backend_batch_ids(k), k->rows, scale, out), "embed");
}

static void rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled, float *table)
{
    if (!idle(k))
        backend_put(k,
                    cuda_rope_table(compute(k), backend_batch_pos(k), k->rows, inv_freq, rot, magnitude,
                                    scaled ? backend_batch_query_scale(k) : NULL, table),
                    "rotary table");
}

static void norm(struct kernels *k, const float *x, int n, const float *weight, float eps,
                 const struct kernels_acts *out)
{
    if (idle(k))
        return;
    backend_put(k, cuda_rms_norm(compute(k), x, n, out->cols, weight, eps, out->x), "norm");
    finish(k, out, n);
}

static void add_norm(struct kernels *k, float *y, int n, int d, const float *weight, float eps, float *x)
{
    if (idle(k))
        return;
    backend_put(k, cuda_rms_norm(compute(k), y, n, d, weight, eps, y), "norm");
    backend_put(k, cuda_add(compute(k), x, y, (size_t)n * (size_t)d), "add");
}

static struct cuda_product product_of(const struct kernels_acts *in, int n, const struct kernels_matrix *w, float *y)
{
    struct cuda_product p = {};
    p.w = weights_of(w);
    p.quants = in->q;
    p.x = in->x;
    p.n = n;
    p.y = y;
    return p;
}

/* Rounds n rows to the type of 16-bit weights where a product with those takes such rows; `last` is the type to which
 * they have been rounded already. NULL: it does not. */
static const void *halves_for(struct kernels *k, const struct kernels_matrix *w, const float *x, int n,
                              enum kernels_type *last)
{
    if (k->exact || !cuda_takes_halves(w->type, w->cols))
        return NULL;
    if (*last != w->type)
        backend_put(k, cuda_narrow(compute(k), w->type, x, n, w->cols, k->scratch.halves), "rounding rows");
    *last = w->type;
    return k->scratch.halves;
}

static void linear(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                   int n_jobs)
{
    enum kernels_type last = KERNELS_TYPE_COUNT;
    for (int i = 0; i < n_jobs && !idle(k); i++) {
        struct cuda_product p = product_of(in, n, jobs[i].w, jobs[i].y);
        p.halves = halves_for(k, jobs[i].w, in->x, n, &last);
        p.bias = jobs[i].bias;
        p.accumulate = jobs[i].accumulate;
        p.softcap = jobs[i].softcap;
        int rc = p.halves && n > LIBRARY_ROWS && (!p.accumulate || p.w.rows <= k->sizes.cols)
                     ? library_multiply(k->library, compute(k), &p, k->scratch.products)
                     : -ENOTSUP;
        backend_put(k, rc == -ENOTSUP ? cuda_multiply(compute(k), p) : rc, "product");
    }
}

static void gated(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                  const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out)
{
    if (idle(k))
        return;
    const struct kernels_linear jobs[2] = {{gate, NULL, out->x, false, 0}, {up, NULL, k->scratch.up, false, 0}};
    linear(k, in, n, jobs, 2);
    backend_put(k, cuda_glu(compute(k), kind, out->x, k->scratch.up, (size_t)n * (size_t)out->cols, out->x),
                "activation");
    finish(k, out, n);
}

static void attn_in(struct kernels *k, const struct kernels_attn_in *a)
{
    if (idle(k))
        return;
    cudaStream_t s = compute(k);
    int n = k->rows, dim = a->kv.head_dim;
    if (a->q_norm)
        backend_put(k, cuda_rms_norm(s, a->q, n * a->heads, dim, a->q_norm, a->eps, a->q), "norm of queries");
    if (a->k_norm)
        backend_put(k, cuda_rms_norm(s, a->key, n * a->kv.kv_heads, dim, a->k_norm, a->eps, a->key), "norm of keys");
    if (a->q_rope)
        backend_put(k, cuda_rope(s, a->q, n, a->heads, dim, a->rot, a->kind, a->q_rope), "rotary");
    if (a->k_rope)
        backend_put(k, cuda_rope(s, a->key, n, a->kv.kv_heads, dim, a->rot, a->kind, a->k_rope), "rotary");
    backend_put(k, cuda_kv_write(s, a->kv, backend_batch_rows(k, a->kv.group), a->key, a->value), "writing KV");
}

/* Canonical blocks of the longest page table. */
static int most_blocks(const struct kernels_sizes *z)
{
    const int pages = KERNELS_ATTENTION_BLOCK / KERNELS_PAGE_TOKENS;
    return (z->pages + pages - 1) / pages;
}

static void attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_acts *out)
{
    if (idle(k))
        return;
    struct cuda_rows rows = backend_batch_rows(k, a->kv.group);
    float *partial = rows.rows <= SHARED_ROWS ? k->scratch.partial : NULL;
    struct cuda_attention c = {a->q,       out->x,   a->heads, a->scale, a->window,
                               a->softcap, a->sinks, a->kv,    partial,  most_blocks(&k->sizes)};
    bool exact = k->exact || !cuda_attention_fits(&a->kv, a->heads);
    backend_put(k, exact ? cuda_attention_exact(compute(k), c, rows) : cuda_attention(compute(k), c, rows),
                "attention");
    finish(k, out, k->rows);
}

static void gather(struct kernels *k, const float *x, const struct kernels_acts *out)
{
    if (idle(k))
        return;
    backend_put(k, cuda_gather(compute(k), x, out->cols, backend_batch_wanted(k), k->wanted, out->x), "gather");
    finish(k, out, k->wanted);
}

/* One product of all experts, of rows that lie in order of theirs. */
static void multiply_experts(struct kernels *k, const struct kernels_matrix *w, const float *bias, const float *x,
                             int places, float *y, enum kernels_type *last)
{
    struct cuda_product p = {};
    p.w = weights_of(w);
    p.halves = halves_for(k, w, x, places, last);
    p.quants = k->scratch.quants;
    p.x = x;
    p.n = places;
    p.bias = bias;
    p.y = y;
    p.experts = w->experts;
    p.tiles = k->scratch.tiles;
    backend_put(k, cuda_multiply(compute(k), p), "experts");
}

static void mixture(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_mixture *m, float *y)
{
    if (idle(k))
        return;
    const struct scratch *s = &k->scratch;
    cudaStream_t stream = compute(k);
    int experts = m->gate->experts, cols = in->cols, ff = m->gate->rows, used = m->used;
    int places = cuda_mixture_places(n, used, experts);
    backend_put(k, cuda_route(stream, m->logits, n, experts, used, s->ids, s->weights), "routing");
    backend_put(k, cuda_sort_experts(stream, s->ids, n, used, experts, s->places, s->sources, s->tiles), "routing");
    backend_put(k, cuda_take_rows(stream, in->x, cols, s->sources, s->tiles + experts, places, s->rows), "gather");
    if ((kernels_form(m->gate->type) | kernels_form(m->up->type)) & KERNELS_QUANTS)
        backend_put(k, cuda_quantize(stream, s->rows, places, cols, s->quants), "rounding rows");
    enum kernels_type rows_are = KERNELS_TYPE_COUNT, gate_is = KERNELS_TYPE_COUNT;
    multiply_experts(k, m->gate, m->gate_bias, s->rows, places, s->gate, &rows_are);
    multiply_experts(k, m->up, m->up_bias, s->rows, places, s->up, &rows_are);
    backend_put(k, cuda_glu(stream, m->glu, s->gate, s->up, (size_t)places * (size_t)ff, s->gate), "activation");
    if (kernels_form(m->down->type) & KERNELS_QUANTS)
        backend_put(k, cuda_quantize(stream, s->gate, places, ff, s->quants), "rounding rows");
    multiply_experts(k, m->down, m->down_bias, s->gate, places, s->said, &gate_is);
    backend_put(k, cuda_mix(stream, s->said, s->places, s->weights, n, used, cols, y), "mixture");
}

static void pick(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                 struct kernels_picked *out)
{
    const struct cuda_pick *sent = idle(k) || n == 0 ? NULL : backend_send_picks(k, picks, n);
    if (!sent)
        return;
    backend_put(k, cuda_pick(compute(k), sent, n, logits, vocab, k->scratch.changed, k->scratch.picked), "sampling");
    backend_fine(k,
                 cudaMemcpyAsync(out, k->scratch.picked, (size_t)n * sizeof *out, cudaMemcpyDeviceToHost, compute(k)),
                 "copying tokens");
}

static void kv_export(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                      const struct kernels_pages *pages, int first, int n, void *staging)
{
    if (!idle(k) && backend_ready(k))
        backend_put(k, cuda_kv_export(k->stream[KERNELS_OUT], layers, n_layers, pages, first, n, staging), "KV export");
}

static void kv_import(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                      const struct kernels_pages *pages, int first, int n, const void *staging)
{
    if (!idle(k) && backend_ready(k))
        backend_put(k, cuda_kv_import(k->stream[KERNELS_IN], layers, n_layers, pages, first, n, staging), "KV import");
}

/* ---- the split form ---------------------------------------------------------------------------------------------- */

static size_t kv_split_bytes(struct kernels *k, const struct kernels_kv *layers, int n_layers, int n)
{
    (void)k;
    return cuda_split_bytes(layers, n_layers, n);
}

static void release_split(struct kernels *k, struct split_scratch *s)
{
    backend_release(k, KERNELS_DEVICE, s->p.whole, s->whole_bytes);
    backend_release(k, KERNELS_DEVICE, s->p.split, s->split_bytes);
    *s = {};
}

void backend_release_split(struct kernels *k)
{
    release_split(k, &k->split_in);
    release_split(k, &k->split_out);
}

static int kv_split_reserve(struct kernels *k, const struct kernels_kv *layers, int n_layers, int n)
{
    size_t whole, split;
    cuda_split_scratch_bytes(layers, n_layers, n, &whole, &split);
    for (struct split_scratch *s : {&k->split_in, &k->split_out}) {
        if (s->whole_bytes >= whole && s->split_bytes >= split)
            continue;
        release_split(k, s);
        s->p.whole = (uint8_t *)backend_alloc(k, KERNELS_DEVICE, whole);
        s->p.split = (uint8_t *)backend_alloc(k, KERNELS_DEVICE, split);
        if (!s->p.whole || !s->p.split) {
            release_split(k, s);
            return -ENOMEM;
        }
        s->whole_bytes = whole;
        s->split_bytes = split;
    }
    return 0;
}

static void kv_export_split(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                            const struct kernels_pages *pages, int first, int n, void *split)
{
    if (!idle(k) && backend_ready(k))
        backend_put(k,
                    cuda_kv_export_split(k->stream[KERNELS_OUT], layers, n_layers, pages, first, n, k->split_out.p,
                                         (uint8_t *)split),
                    "KV export");
}

static void kv_import_split(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                            const struct kernels_pages *pages, int first, int n, const void *split)
{
    if (!idle(k) && backend_ready(k))
        backend_put(k,
                    cuda_kv_import_split(k->stream[KERNELS_IN], layers, n_layers, pages, first, n, k->split_in.p,
                                         (const uint8_t *)split),
                    "KV import");
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

static void *part(uint8_t *base, size_t *at, size_t count, size_t size)
{
    void *p = base ? base + *at : NULL;
    *at = (*at + count * size + 255) & ~(size_t)255;
    return p;
}

/* Lays the scratch out from `base` on; with NULL it is only counted. */
static size_t lay_out(const struct kernels_sizes *z, uint8_t *base, struct scratch *s)
{
    size_t at = 0, rows = (size_t)z->rows, ff = (size_t)z->expert_ff, cols = (size_t)z->cols, slots = 0, places = 0;
    if (z->experts > 0) {
        slots = rows * (size_t)z->experts_used;
        places = (size_t)cuda_mixture_places(z->rows, z->experts_used, z->experts);
    }
    size_t up = rows * (size_t)z->ff > places * ff ? rows * (size_t)z->ff : places * ff;
    s->up = (float *)part(base, &at, up, sizeof(float));
    s->gate = (float *)part(base, &at, places * ff, sizeof(float));
    s->rows = (float *)part(base, &at, places * cols, sizeof(float));
    s->said = (float *)part(base, &at, places * cols, sizeof(float));
    s->weights = (float *)part(base, &at, slots, sizeof(float));
    s->ids = (int32_t *)part(base, &at, slots, sizeof(int32_t));
    s->places = (int32_t *)part(base, &at, slots, sizeof(int32_t));
    s->sources = (int32_t *)part(base, &at, places, sizeof(int32_t));
    s->tiles = (int32_t *)part(base, &at, (size_t)z->experts + 1, sizeof(int32_t));
    s->quants = (uint8_t *)part(base, &at, cuda_quants_bytes((int)places, (int)(cols > ff ? cols : ff)), 1);
    size_t halves = cuda_halves_bytes((int)rows, (int)cols),
           of_places = cuda_halves_bytes((int)places, (int)(cols > ff ? cols : ff));
    s->halves = part(base, &at, halves > of_places ? halves : of_places, 1);
    s->products = (float *)part(base, &at, rows > LIBRARY_ROWS ? rows * cols : 0, sizeof(float));
    s->changed = (float *)part(base, &at, (size_t)z->picks * (size_t)z->vocab, sizeof(float));
    size_t queries = (rows < SHARED_ROWS ? rows : SHARED_ROWS) * (size_t)z->heads;
    s->partial = (float *)part(base, &at, queries * (size_t)most_blocks(z) * (size_t)(z->head_dim + 2), sizeof(float));
    s->picked = (struct kernels_picked *)part(base, &at, (size_t)z->picks, sizeof(struct kernels_picked));
    return at;
}

uint64_t backend_reserve_bytes(struct kernels *k, const struct kernels_sizes *sizes)
{
    (void)k;
    struct scratch none;
    return lay_out(sizes, NULL, &none) + backend_batch_bytes(sizes);
}

int backend_reserve(struct kernels *k, const struct kernels_sizes *sizes)
{
    if (sizes->rows <= 0 || sizes->cols <= 0 || sizes->vocab > KERNELS_MAX_LOGITS ||
        sizes->experts > KERNELS_MAX_EXPERTS || sizes->experts_used > KERNELS_MAX_EXPERTS_USED)
        return -EINVAL;
    backend_release(k, KERNELS_DEVICE, k->scratch_memory, k->scratch_bytes);
    k->scratch_memory = NULL;
    k->sizes = *sizes;
    k->scratch_bytes = lay_out(sizes, NULL, &k->scratch);
    k->scratch_memory = backend_alloc(k, KERNELS_DEVICE, k->scratch_bytes);
    if (!k->scratch_memory)
        return -ENOMEM;
    lay_out(sizes, (uint8_t *)k->scratch_memory, &k->scratch);
    return backend_batch_reserve(k);
}

static size_t acts_bytes(struct kernels *k, int rows, int cols)
{
    (void)k;
    return cuda_quants_bytes(rows, cols);
}

void backend_step_ops(struct kernels_ops *t)
{
    t->acts_bytes = acts_bytes;
    t->embed = embed;
    t->rope_table = rope_table;
    t->norm = norm;
    t->add_norm = add_norm;
    t->linear = linear;
    t->gated = gated;
    t->attn_in = attn_in;
    t->attention = attention;
    t->gather = gather;
    t->mixture = mixture;
    t->pick = pick;
    t->kv_export = kv_export;
    t->kv_import = kv_import;
    t->kv_split_bytes = kv_split_bytes;
    t->kv_split_reserve = kv_split_reserve;
    t->kv_export_split = kv_export_split;
    t->kv_import_split = kv_import_split;
}

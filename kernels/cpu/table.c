/* table.c - the CPU's table of operations: what kernels.h says, made of the plain operations of this room.
 *
 * Everything is done when it is put into a stream. Rows that products take quantized are in the tiles of
 * linear_internal.h.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *alloc(struct kernels *k, enum kernels_place place, size_t bytes)
{
    (void)k, (void)place;
    return kernels_cpu_alloc(bytes);
}

static void release(struct kernels *k, enum kernels_place place, void *p, size_t bytes)
{
    (void)k, (void)place;
    kernels_cpu_release(p, bytes);
}

static uint64_t memory_bytes(struct kernels *k, bool whole)
{
    (void)k;
    return whole ? kernels_machine_bytes() : kernels_available_bytes();
}

static uint64_t reserve_bytes(struct kernels *k, const struct kernels_sizes *sizes)
{
    (void)k;
    return kernels_linear_bytes(sizes->rows, sizes->cols) + (sizes->experts ? kernels_mixture_bytes(sizes) : 0);
}

static size_t acts_bytes(struct kernels *k, int rows, int cols)
{
    (void)k;
    return kernels_linear_bytes(rows, cols);
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static size_t matrix_bytes(struct kernels *k, enum kernels_type type, int rows, int cols)
{
    (void)k;
    return kernels_packed_bytes(type, rows, cols);
}

struct packing {
    const struct kernels_matrix *w;
    int n;
    const void *rows;
    uint8_t *to;
    void (*beside)(void *arg);
    void *arg;
};

/* Item 0 is what goes on beside it, the others are groups of rows. */
static void pack_item(void *arg, int i)
{
    const struct packing *p = arg;
    if (i > 0)
        kernels_pack_group(p->w->type, p->n, p->w->cols, i - 1, p->rows, p->to);
    else if (p->beside)
        p->beside(p->arg);
}

static void pack(struct kernels *k, const struct kernels_matrix *w, int expert, int first, int n, const void *rows,
                 void (*beside)(void *arg), void *arg)
{
    uint8_t *to = (uint8_t *)w->data + (size_t)expert * kernels_packed_bytes(w->type, w->rows, w->cols);
    if (first > 0)
        to += kernels_packed_bytes(w->type, first, w->cols);
    struct packing p = {w, n, rows, to, beside, arg};
    kernels_parallel(k, 1 + (n + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP, pack_item, &p);
}

static void upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    (void)k;
    memcpy(to, from, bytes);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void copy(struct kernels *k, enum kernels_stream stream, void *to, const void *from, size_t bytes)
{
    (void)k, (void)stream;
    memcpy(to, from, bytes);
}

static void zero(struct kernels *k, enum kernels_stream stream, void *p, size_t bytes)
{
    (void)k, (void)stream;
    memset(p, 0, bytes);
}

static kernels_event record(struct kernels *k, enum kernels_stream stream)
{
    (void)k, (void)stream;
    return 0;
}

static void after(struct kernels *k, enum kernels_stream stream, kernels_event event)
{
    (void)k, (void)stream, (void)event;
}

static int wait(struct kernels *k, kernels_event event, int timeout_ms)
{
    (void)k, (void)event, (void)timeout_ms;
    return 0;
}

static const char *error(const struct kernels *k)
{
    (void)k;
    return NULL;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static int begin(struct kernels *k, const struct kernels_batch *batch)
{
    k->batch = *batch;
    return 0;
}

static void end(struct kernels *k)
{
    k->batch = (struct kernels_batch){0};
}

static void embed(struct kernels *k, const struct kernels_matrix *w, float scale, float *out)
{
    kernels_op_embed(k, w, k->batch.ids, k->batch.rows, scale, out);
}

static void linear(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                   int n_jobs)
{
    kernels_op_linear_acts(k, in, n, jobs, n_jobs);
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i].softcap > 0.0f)
            kernels_op_softcap(k, jobs[i].y, (size_t)n * (size_t)jobs[i].w->rows, jobs[i].softcap);
}

/* The quantized form of rows that are there as floats. */
static void quantize(struct kernels *k, int n, const struct kernels_acts *out)
{
    if (out->forms & KERNELS_QUANTS)
        kernels_op_quantize(k, out->x, n, out->cols, out->q);
}

static void attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_acts *out)
{
    kernels_op_attention(k, a, out->x);
    quantize(k, k->batch.rows, out);
}

static void gather(struct kernels *k, const float *x, const struct kernels_acts *out)
{
    size_t cols = (size_t)out->cols;
    for (int i = 0; i < k->batch.n_wanted; i++)
        memcpy(out->x + (size_t)i * cols, x + (size_t)k->batch.wanted[i] * cols, cols * sizeof *x);
    quantize(k, k->batch.n_wanted, out);
}

static void mixture(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_mixture *m, float *y)
{
    kernels_op_mixture(k, in->x, n, in->cols, m, y);
}

const struct kernels_ops kernels_cpu_ops = {
    .host = true,
    .alloc = alloc,
    .release = release,
    .memory_bytes = memory_bytes,
    .reserve_bytes = reserve_bytes,
    .reserve = kernels_cpu_reserve,
    .acts_bytes = acts_bytes,
    .matrix_bytes = matrix_bytes,
    .pack = pack,
    .upload = upload,
    .copy = copy,
    .zero = zero,
    .record = record,
    .after = after,
    .wait = wait,
    .error = error,
    .begin = begin,
    .end = end,
    .embed = embed,
    .rope_table = kernels_op_rope_table,
    .norm = kernels_op_norm,
    .add_norm = kernels_op_add_norm,
    .linear = linear,
    .gated = kernels_op_gated,
    .attn_in = kernels_op_attn_in,
    .attention = attention,
    .gather = gather,
    .mixture = mixture,
    .pick = kernels_op_pick,
    .kv_export = kernels_op_kv_export,
    .kv_import = kernels_op_kv_import,
    .kv_fill = kernels_op_kv_fill,
    .close = kernels_cpu_close,
};

/* glu.c - gated activations and caps. Elements are independent; a worker takes whole chunks, so
 * that no two workers write to one cache line. */
#include "kernels/cpu/rows_internal.h"

#define CHUNK 2048

struct glu_job {
    const struct kernels_rows_set *set;
    enum kernels_glu_kind kind;
    const float *gate, *up; /* [n] */
    size_t n;
    float *out; /* [n] */
    float cap;
};

static void glu_chunks(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct glu_job *job = arg;
    size_t from = (size_t)first * CHUNK, to = (size_t)end * CHUNK < job->n ? (size_t)end * CHUNK : job->n;
    job->set->glu(job->kind, job->gate + from, job->up + from, to - from, job->out + from);
}

static void softcap_chunks(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct glu_job *job = arg;
    size_t from = (size_t)first * CHUNK, to = (size_t)end * CHUNK < job->n ? (size_t)end * CHUNK : job->n;
    job->set->softcap(job->out + from, to - from, job->cap);
}

void kernels_op_glu(struct kernels *k, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n,
                    float *out)
{
    struct glu_job job = {.set = k->set->rows, .kind = kind, .gate = gate, .up = up, .n = n, .out = out};
    kernels_rows_share(k, n * 2, (int)((n + CHUNK - 1) / CHUNK), 1, glu_chunks, &job);
}

void kernels_op_softcap(struct kernels *k, float *x, size_t n, float cap)
{
    struct glu_job job = {.set = k->set->rows, .n = n, .out = x, .cap = cap};
    kernels_rows_share(k, n * 2, (int)((n + CHUNK - 1) / CHUNK), 1, softcap_chunks, &job);
}

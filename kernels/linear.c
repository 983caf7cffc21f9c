/* linear.c - quantized products. So far the interface only: what other files of the folder link against. */
#include "kernels/kernels_internal.h"

struct kernels_linear_set {
    int unused;
};

const struct kernels_linear_set kernels_linear_portable, kernels_linear_avx2, kernels_linear_avx512;

int kernels_linear_reserve(struct kernels *k, int max_rows, int max_cols)
{
    (void)k;
    return max_rows > 0 && max_cols > 0 ? 0 : -1;
}

void kernels_linear_release(struct kernels *k)
{
    k->linear = NULL;
}

void kernels_op_linear(struct kernels *k, const float *x, int n, int cols, const struct kernels_linear *jobs,
                       int n_jobs)
{
    (void)k, (void)x, (void)n, (void)cols, (void)jobs, (void)n_jobs;
}

void kernels_op_embed(struct kernels *k, const struct kernels_matrix *w, const int32_t *ids, int n, float scale,
                      float *out)
{
    (void)k, (void)w, (void)ids, (void)n, (void)scale, (void)out;
}

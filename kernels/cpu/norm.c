/* norm.c - RMS norms over the rows of a batch, and what is added to them. A row is one item: its sum never crosses
 * workers. */
#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/rows_internal.h"

#define GRAIN_VALUES 8192

struct norm_job {
    const struct kernels_rows_set *set;
    const struct kernels_linear_set *linear;
    const float *x, *weight; /* x [rows][d], weight [d] */
    const struct kernels_acts *out;
    int rows;
    float eps;
};

struct add_norm_job {
    const struct kernels_rows_set *set;
    float *y, *x; /* [rows][d] */
    const float *weight;
    int d;
    float eps;
};

static void norm_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct norm_job *job = arg;
    for (int r = first; r < end; r++) {
        int d = job->out->cols;
        size_t at = (size_t)r * (size_t)d;
        float *y = job->out->x + at;
        job->set->rms_norm(job->x + at, d, job->weight, job->eps, y);
        if (job->out->forms & KERNELS_QUANTS)
            kernels_quantize_row(job->linear, y, d, r, job->rows, job->out->q);
    }
}

static void add_norm_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct add_norm_job *job = arg;
    for (int r = first; r < end; r++) {
        size_t at = (size_t)r * (size_t)job->d;
        job->set->rms_norm(job->y + at, job->d, job->weight, job->eps, job->y + at);
        job->set->add(job->x + at, job->y + at, (size_t)job->d);
    }
}

void kernels_op_rms_norm(struct kernels *k, const float *x, int rows, int d, const float *weight, float eps, float *y)
{
    kernels_op_norm(k, x, rows, weight, eps, &(struct kernels_acts){.x = y, .cols = d});
}

void kernels_op_norm(struct kernels *k, const float *x, int rows, const float *weight, float eps,
                     const struct kernels_acts *out)
{
    struct norm_job job = {k->set->rows, k->set->linear, x, weight, out, rows, eps};
    size_t work = (size_t)rows * (size_t)out->cols;
    kernels_rows_share(k, out->forms & KERNELS_QUANTS ? 4 * work : work, rows, 1 + GRAIN_VALUES / out->cols, norm_rows,
                       &job);
}

void kernels_op_add_norm(struct kernels *k, float *y, int rows, int d, const float *weight, float eps, float *x)
{
    struct add_norm_job job = {k->set->rows, y, x, weight, d, eps};
    kernels_rows_share(k, (size_t)rows * (size_t)d, rows, 1 + GRAIN_VALUES / d, add_norm_rows, &job);
}

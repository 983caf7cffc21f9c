/* norm.c - RMS norms over the rows of a batch, and what is added to them. A row is one item: its sum never crosses
 * workers. */
#include "kernels/cpu/rows_internal.h"

#define GRAIN_VALUES 8192

struct norm_job {
    const struct kernels_rows_set *set;
    const float *x, *weight; /* x [rows][d], weight [d] */
    float *y;                /* [rows][d] */
    int d;
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
        size_t at = (size_t)r * (size_t)job->d;
        job->set->rms_norm(job->x + at, job->d, job->weight, job->eps, job->y + at);
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
    struct norm_job job = {k->set->rows, x, weight, y, d, eps};
    kernels_rows_share(k, (size_t)rows * (size_t)d, rows, 1 + GRAIN_VALUES / d, norm_rows, &job);
}

void kernels_op_add_norm(struct kernels *k, float *y, int rows, int d, const float *weight, float eps, float *x)
{
    struct add_norm_job job = {k->set->rows, y, x, weight, d, eps};
    kernels_rows_share(k, (size_t)rows * (size_t)d, rows, 1 + GRAIN_VALUES / d, add_norm_rows, &job);
}

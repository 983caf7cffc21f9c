/* rope.c - rotary positions, in place. A token's row of heads is one item. */
#include "kernels/cpu/rows_internal.h"

#define GRAIN_VALUES 8192

struct rope_job {
    const struct kernels_rows_set *set;
    float *x; /* [n][heads][head_dim] */
    int heads, head_dim, rot;
    enum kernels_rope_kind kind;
    const float *table; /* [n][rot / 2][2] */
};

static void rope_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct rope_job *job = arg;
    size_t row = (size_t)job->heads * (size_t)job->head_dim, table_row = (size_t)(job->rot / 2) * 2;
    for (int r = first; r < end; r++)
        job->set->rope(job->x + (size_t)r * row, job->heads, job->head_dim, job->rot, job->kind,
                       job->table + (size_t)r * table_row);
}

void kernels_op_rope(struct kernels *k, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
                     const float *table)
{
    struct rope_job job = {k->set->rows, x, heads, head_dim, rot, kind, table};
    size_t row = (size_t)heads * (size_t)head_dim;
    kernels_rows_share(k, row * (size_t)n, n, 1 + (int)(GRAIN_VALUES / row), rope_rows, &job);
}

/* attn_in.c - queries, keys and values on their way from their products to attention: norms of heads, rotary positions,
 * and keys and values into their pages. A row of the batch is one item. */
#include "kernels/cpu/rows_internal.h"

#define GRAIN_VALUES 8192 /* and no more rows than share the lines of a page's keys */

struct job {
    const struct kernels_set *set;
    const struct kernels_attn_in *a;
    const struct kernels_batch *batch;
};

static void finish_heads(const struct job *job, float *x, int heads, const float *norm, const float *table)
{
    const struct kernels_attn_in *a = job->a;
    int dim = a->kv.head_dim;
    for (int h = 0; norm && h < heads; h++)
        job->set->rows->rms_norm(x + (size_t)h * (size_t)dim, dim, norm, a->eps, x + (size_t)h * (size_t)dim);
    if (table)
        job->set->rows->rope(x, heads, dim, a->rot, a->kind, table);
}

static void do_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct job *job = arg;
    const struct kernels_attn_in *a = job->a;
    const struct kernels_run *run = job->batch->runs;
    size_t q_row = (size_t)a->heads * (size_t)a->kv.head_dim, kv_row = (size_t)a->kv.kv_heads * (size_t)a->kv.head_dim;
    for (int r = first; r < end; r++) {
        while (r >= run->first_row + run->n)
            run++;
        size_t at = (size_t)r * (size_t)a->rot;
        float *key = a->key + (size_t)r * kv_row;
        finish_heads(job, a->q + (size_t)r * q_row, a->heads, a->q_norm, a->q_rope ? a->q_rope + at : NULL);
        finish_heads(job, key, a->kv.kv_heads, a->k_norm, a->k_rope ? a->k_rope + at : NULL);
        kernels_kv_write_row(job->set, &a->kv, run, r, key, a->value + (size_t)r * kv_row);
    }
}

void kernels_op_attn_in(struct kernels *k, const struct kernels_attn_in *a)
{
    struct job job = {k->set, a, &k->batch};
    size_t row = ((size_t)a->heads + 2 * (size_t)a->kv.kv_heads) * (size_t)a->kv.head_dim;
    int grain = 1 + (int)(GRAIN_VALUES / row);
    kernels_rows_share(k, row * (size_t)k->batch.rows, k->batch.rows,
                       grain < KERNELS_KEY_GROUP ? grain : KERNELS_KEY_GROUP, do_rows, &job);
}

/* mixture.c - a feed-forward part of many experts, of which each row asks a few.
 *
 * Each row's experts are chosen first. Then the rows are put in order of their experts, so that an expert's weights are
 * read once for all the rows that ask it, and its products are those of the other matrices (linear.c): a row of them
 * depends on that row alone. At last each row adds what its own experts said, in the order in which it chose them. So a
 * row's bits do not depend on which others are there.
 *
 * Threads: the caller's and the workers'.
 */
#include "kernels/cpu/rows_internal.h"

#include <string.h>

struct call {
    struct kernels *k;
    const struct kernels_mixture *m;
    const float *x;
    float *y;
    int n, cols;
};

/* Whether a logit comes before another: a NaN before all, so that it is not overlooked, and the lower id of equals. */
static bool before(const float *logits, int a, int b)
{
    bool nan_a = logits[a] != logits[a], nan_b = logits[b] != logits[b];
    if (nan_a || nan_b)
        return nan_a && (!nan_b || a < b);
    return logits[a] > logits[b] || (a < b && logits[a] == logits[b]);
}

static void choose(const struct call *c, int row)
{
    const struct kernels_mixture *m = c->m;
    const float *logits = m->logits + (size_t)row * (size_t)m->experts;
    int32_t *ids = m->ids + (size_t)row * (size_t)m->used;
    float *weights = m->weights + (size_t)row * (size_t)m->used, s[KERNELS_MAX_EXPERTS_USED] = {0}, l;
    int n = 0;
    for (int e = 0; e < m->experts; e++) {
        if (n == m->used && !before(logits, e, ids[n - 1]))
            continue;
        int at = n < m->used ? n++ : n - 1;
        for (; at > 0 && before(logits, e, ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
    for (int i = 0; i < n; i++)
        s[i] = logits[ids[i]];
    c->k->set->rows->softmax(s, 0, n, 1.0f, 0.0f, &l);
    for (int i = 0; i < n; i++)
        weights[i] = s[i] / l;
}

static void choose_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    for (int i = first; i < end; i++)
        choose(arg, i);
}

/* order[]: the (row, rank) pairs by expert; place[]: where each is. */
static void put_in_order(const struct kernels_mixture *m, int slots)
{
    int32_t at[KERNELS_MAX_EXPERTS + 1] = {0};
    for (int i = 0; i < slots; i++)
        at[m->ids[i] + 1]++;
    for (int e = 0; e < m->experts; e++)
        at[e + 1] += at[e];
    for (int i = 0; i < slots; i++) {
        m->place[i] = at[m->ids[i]]++;
        m->order[m->place[i]] = i;
    }
}

static void gather_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct call *c = arg;
    for (int i = first; i < end; i++)
        memcpy(c->m->rows + (size_t)i * (size_t)c->cols, c->x + (size_t)(c->m->order[i] / c->m->used) * (size_t)c->cols,
               (size_t)c->cols * sizeof(float));
}

static void add_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct call *c = arg;
    const struct kernels_mixture *m = c->m;
    for (int row = first; row < end; row++) {
        const float *w = m->weights + (size_t)row * (size_t)m->used;
        const int32_t *place = m->place + (size_t)row * (size_t)m->used;
        float *y = c->y + (size_t)row * (size_t)c->cols;
        for (int at = 0; at < c->cols; at += 256) { /* a piece of the sum stays in the first-level cache */
            float sum[256];
            int cols = c->cols - at < 256 ? c->cols - at : 256;
            const float *out = m->out + (size_t)place[0] * (size_t)c->cols + at;
            for (int j = 0; j < cols; j++)
                sum[j] = w[0] * out[j];
            for (int r = 1; r < m->used; r++) {
                out = m->out + (size_t)place[r] * (size_t)c->cols + at;
                for (int j = 0; j < cols; j++)
                    sum[j] += w[r] * out[j];
            }
            for (int j = 0; j < cols; j++)
                y[at + j] += sum[j];
        }
    }
}

static const float *bias_of(const float *biases, int expert, int n)
{
    return biases ? biases + (size_t)expert * (size_t)n : NULL;
}

void kernels_op_mixture(struct kernels *k, const float *x, int n, int cols, const struct kernels_mixture *m, float *y)
{
    struct call c = {k, m, x, y, n, cols};
    int slots = n * m->used, ff = m->gate[0].rows;
    kernels_rows_share(k, (size_t)n * (size_t)m->experts * 4, n, 1, choose_rows, &c);
    put_in_order(m, slots);
    kernels_rows_share(k, (size_t)slots * (size_t)cols, slots, 1, gather_rows, &c);

    for (int from = 0, to; from < slots; from = to) {
        int e = m->ids[m->order[from]];
        for (to = from + 1; to < slots && m->ids[m->order[to]] == e;)
            to++;
        const struct kernels_linear jobs[] = {
            {.w = &m->gate[e], .bias = bias_of(m->gate_bias, e, ff), .y = m->gate_out + (size_t)from * (size_t)ff},
            {.w = &m->up[e], .bias = bias_of(m->up_bias, e, ff), .y = m->up_out + (size_t)from * (size_t)ff}};
        kernels_op_linear(k, m->rows + (size_t)from * (size_t)cols, to - from, cols, jobs, 2);
    }
    kernels_op_glu(k, m->glu, m->gate_out, m->up_out, (size_t)slots * (size_t)ff, m->gate_out);
    for (int from = 0, to; from < slots; from = to) {
        int e = m->ids[m->order[from]];
        for (to = from + 1; to < slots && m->ids[m->order[to]] == e;)
            to++;
        const struct kernels_linear job = {
            .w = &m->down[e], .bias = bias_of(m->down_bias, e, cols), .y = m->out + (size_t)from * (size_t)cols};
        kernels_op_linear(k, m->gate_out + (size_t)from * (size_t)ff, to - from, ff, &job, 1);
    }
    kernels_rows_share(k, (size_t)slots * (size_t)cols, n, 1, add_rows, &c);
}

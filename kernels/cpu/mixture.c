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

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct call {
    struct kernels *k;
    const struct kernels_mixture *m;
    const struct kernels_mixture_scratch *s;
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
    int experts = m->gate->experts, n = 0;
    const float *logits = m->logits + (size_t)row * (size_t)experts;
    int32_t *ids = c->s->ids + (size_t)row * (size_t)m->used;
    float *weights = c->s->weights + (size_t)row * (size_t)m->used, s[KERNELS_MAX_EXPERTS_USED] = {0}, top, l;
    for (int e = 0; e < experts; e++) {
        if (n == m->used && !before(logits, e, ids[n - 1]))
            continue;
        int at = n < m->used ? n++ : n - 1;
        for (; at > 0 && before(logits, e, ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
    for (int i = 0; i < n; i++)
        s[i] = logits[ids[i]];
    c->k->set->rows->softmax(s, 1, 0, n, 1.0f, 0.0f, &top, &l);
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
static void put_in_order(const struct kernels_mixture_scratch *s, int experts, int slots)
{
    int32_t at[KERNELS_MAX_EXPERTS + 1] = {0};
    for (int i = 0; i < slots; i++)
        at[s->ids[i] + 1]++;
    for (int e = 0; e < experts; e++)
        at[e + 1] += at[e];
    for (int i = 0; i < slots; i++) {
        s->place[i] = at[s->ids[i]]++;
        s->order[s->place[i]] = i;
    }
}

static void gather_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct call *c = arg;
    for (int i = first; i < end; i++)
        memcpy(c->s->rows + (size_t)i * (size_t)c->cols, c->x + (size_t)(c->s->order[i] / c->m->used) * (size_t)c->cols,
               (size_t)c->cols * sizeof(float));
}

static void add_rows(void *arg, int worker, int first, int end)
{
    (void)worker;
    const struct call *c = arg;
    const struct kernels_mixture *m = c->m;
    for (int row = first; row < end; row++) {
        const float *w = c->s->weights + (size_t)row * (size_t)m->used;
        const int32_t *place = c->s->place + (size_t)row * (size_t)m->used;
        float *y = c->y + (size_t)row * (size_t)c->cols;
        for (int at = 0; at < c->cols; at += 256) { /* a piece of the sum stays in the first-level cache */
            float sum[256];
            int cols = c->cols - at < 256 ? c->cols - at : 256;
            const float *out = c->s->out + (size_t)place[0] * (size_t)c->cols + at;
            for (int j = 0; j < cols; j++)
                sum[j] = w[0] * out[j];
            for (int r = 1; r < m->used; r++) {
                out = c->s->out + (size_t)place[r] * (size_t)c->cols + at;
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

static struct kernels_matrix expert_of(const struct kernels_matrix *w, int expert)
{
    size_t bytes = kernels_packed_bytes(w->type, w->rows, w->cols);
    return (struct kernels_matrix){
        .type = w->type, .rows = w->rows, .cols = w->cols, .data = (uint8_t *)w->data + (size_t)expert * bytes};
}

/* The end of the places that ask the same expert as place `from`. */
static int same_expert(const struct kernels_mixture_scratch *s, int from, int slots)
{
    int to = from + 1;
    while (to < slots && s->ids[s->order[to]] == s->ids[s->order[from]])
        to++;
    return to;
}

void kernels_op_mixture(struct kernels *k, const float *x, int n, int cols, const struct kernels_mixture *m, float *y)
{
    const struct kernels_mixture_scratch *s = k->mixture;
    struct call c = {k, m, s, x, y, n, cols};
    int slots = n * m->used, ff = m->gate->rows, experts = m->gate->experts;
    kernels_rows_share(k, (size_t)n * (size_t)experts * 4, n, 1, choose_rows, &c);
    put_in_order(s, experts, slots);
    kernels_rows_share(k, (size_t)slots * (size_t)cols, slots, 1, gather_rows, &c);

    for (int from = 0, to; from < slots; from = to) {
        int e = s->ids[s->order[from]];
        to = same_expert(s, from, slots);
        const struct kernels_matrix gate = expert_of(m->gate, e), up = expert_of(m->up, e);
        const struct kernels_linear jobs[] = {
            {.w = &gate, .bias = bias_of(m->gate_bias, e, ff), .y = s->gate + (size_t)from * (size_t)ff},
            {.w = &up, .bias = bias_of(m->up_bias, e, ff), .y = s->up + (size_t)from * (size_t)ff}};
        kernels_op_linear(k, s->rows + (size_t)from * (size_t)cols, to - from, cols, jobs, 2);
    }
    kernels_op_glu(k, m->glu, s->gate, s->up, (size_t)slots * (size_t)ff, s->gate);
    for (int from = 0, to; from < slots; from = to) {
        int e = s->ids[s->order[from]];
        to = same_expert(s, from, slots);
        const struct kernels_matrix down = expert_of(m->down, e);
        const struct kernels_linear job = {
            .w = &down, .bias = bias_of(m->down_bias, e, cols), .y = s->out + (size_t)from * (size_t)cols};
        kernels_op_linear(k, s->gate + (size_t)from * (size_t)ff, to - from, ff, &job, 1);
    }
    kernels_rows_share(k, (size_t)slots * (size_t)cols, n, 1, add_rows, &c);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

void kernels_mixture_release(struct kernels *k)
{
    if (!k->mixture)
        return;
    kernels_cpu_release(k->mixture->rows, k->mixture->bytes);
    free(k->mixture);
    k->mixture = NULL;
}

uint64_t kernels_mixture_bytes(const struct kernels_sizes *n)
{
    uint64_t slots = (uint64_t)n->rows * (uint64_t)n->experts_used;
    return slots * (2 * (uint64_t)n->cols + 2 * (uint64_t)n->expert_ff + 4) * 4;
}

int kernels_mixture_reserve(struct kernels *k, const struct kernels_sizes *n)
{
    kernels_mixture_release(k);
    if (n->experts_used < 1 || n->experts_used > KERNELS_MAX_EXPERTS_USED || n->experts_used > n->experts ||
        n->experts > KERNELS_MAX_EXPERTS || n->expert_ff < 1)
        return -EINVAL;
    struct kernels_mixture_scratch *s = k->mixture = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    size_t slots = (size_t)n->rows * (size_t)n->experts_used;
    s->bytes = kernels_mixture_bytes(n);
    s->rows = kernels_cpu_alloc(s->bytes);
    if (!s->rows) {
        kernels_mixture_release(k);
        return -ENOMEM;
    }
    s->out = s->rows + slots * (size_t)n->cols;
    s->gate = s->out + slots * (size_t)n->cols;
    s->up = s->gate + slots * (size_t)n->expert_ff;
    s->weights = s->up + slots * (size_t)n->expert_ff;
    s->ids = (int32_t *)(void *)(s->weights + slots);
    s->order = s->ids + slots;
    s->place = s->order + slots;
    return 0;
}

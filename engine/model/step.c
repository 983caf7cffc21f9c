/* step.c - one forward pass over the new tokens of any number of sequences.
 *
 * The rows of all items lie one after the other in one batch; every operation takes the whole batch, and attention gets
 * the runs of rows with their page tables. Which items share a step changes no bit of any row (kernels.h), so this file
 * is free to batch as it likes.
 *
 * In the last layer only the rows whose logits are wanted go past attention: what is behind it writes no keys or
 * values.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

struct buffer {
    float *p;
    size_t bytes;
};

struct step_scratch {
    struct buffer x, h, q, k, v, attn, gate, up, logits;
    struct buffer rope[MODEL_GROUPS];
    struct kernels_run *runs[MODEL_GROUPS]; /* [capacity_runs] */
    int capacity_runs;
    int *positions;     /* [step_tokens] */
    int32_t *ids;       /* [step_tokens] */
    int32_t *want_rows; /* [step_tokens] */
};

static int buffer_open(struct engine *e, struct buffer *b, size_t rows, size_t cols)
{
    size_t bytes = rows * cols * sizeof(float);
    float *p = e->ops->alloc(e->kernels, bytes);
    if (!p)
        return -ENOMEM; /* it stays empty */
    *b = (struct buffer){p, bytes};
    return 0;
}

static void buffer_close(struct engine *e, struct buffer *b)
{
    if (b->p)
        e->ops->release(e->kernels, b->p, b->bytes);
    *b = (struct buffer){0};
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

int step_scratch_open(struct engine *e)
{
    const struct model *m = &e->model;
    size_t n = (size_t)e->info.step_tokens;
    size_t q_cols = (size_t)m->n_heads * (size_t)m->head_dim, kv_cols = (size_t)m->n_kv_heads * (size_t)m->head_dim;
    struct step_scratch *s = e->step = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->positions = malloc(n * sizeof *s->positions);
    s->ids = malloc(n * sizeof *s->ids);
    s->want_rows = malloc(n * sizeof *s->want_rows);
    if (!s->positions || !s->ids || !s->want_rows)
        return -ENOMEM;
    if (buffer_open(e, &s->x, n, (size_t)m->n_embd) || buffer_open(e, &s->h, n, (size_t)m->n_embd) ||
        buffer_open(e, &s->q, n, q_cols) || buffer_open(e, &s->k, n, kv_cols) || buffer_open(e, &s->v, n, kv_cols) ||
        buffer_open(e, &s->attn, n, q_cols) || buffer_open(e, &s->gate, n, (size_t)m->n_ff) ||
        buffer_open(e, &s->up, n, (size_t)m->n_ff))
        return -ENOMEM;
    for (int g = 0; g < MODEL_GROUPS; g++)
        if (buffer_open(e, &s->rope[g], n, (size_t)m->rope[g].rot))
            return -ENOMEM;
    return e->ops->reserve(e->kernels, (int)n, max_int(max_int(m->n_embd, m->n_ff), (int)q_cols), m->n_heads,
                           m->head_dim);
}

void step_scratch_close(struct engine *e)
{
    struct step_scratch *s = e->step;
    if (!s)
        return;
    struct buffer *all[] = {&s->x, &s->h, &s->q, &s->k, &s->v, &s->attn, &s->gate, &s->up, &s->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buffer_close(e, all[i]);
    for (int g = 0; g < MODEL_GROUPS; g++) {
        buffer_close(e, &s->rope[g]);
        free(s->runs[g]);
    }
    free(s->positions);
    free(s->ids);
    free(s->want_rows);
    free(s);
    e->step = NULL;
}

static int grow_runs(struct step_scratch *s, int n)
{
    if (n <= s->capacity_runs)
        return 0;
    for (int g = 0; g < MODEL_GROUPS; g++) {
        struct kernels_run *runs = realloc(s->runs[g], (size_t)n * sizeof *runs);
        if (!runs)
            return -ENOMEM;
        s->runs[g] = runs;
    }
    s->capacity_runs = n;
    return 0;
}

static int grow_logits(struct engine *e, int n_want)
{
    size_t bytes = (size_t)n_want * (size_t)e->info.n_vocab * sizeof(float);
    if (bytes <= e->step->logits.bytes)
        return 0;
    buffer_close(e, &e->step->logits);
    return buffer_open(e, &e->step->logits, (size_t)n_want, (size_t)e->info.n_vocab);
}

/* y += product, or, where the model has a norm behind the block, y += norm(product). */
static void residual(struct engine *e, const float *in, int n, int cols, const struct kernels_matrix *w,
                     const float *post_norm, float *x)
{
    struct step_scratch *s = e->step;
    const struct model *m = &e->model;
    if (!post_norm) {
        e->ops->linear(e->kernels, in, n, cols, &(struct kernels_linear){.w = w, .y = x, .accumulate = true}, 1);
        return;
    }
    e->ops->linear(e->kernels, in, n, cols, &(struct kernels_linear){.w = w, .y = s->h.p}, 1);
    e->ops->rms_norm(e->kernels, s->h.p, n, m->n_embd, post_norm, m->rms_eps, s->h.p);
    e->ops->add(e->kernels, x, s->h.p, (size_t)n * (size_t)m->n_embd);
}

static void forward(struct engine *e, int n, int n_runs, int n_want)
{
    const struct model *m = &e->model;
    const struct kernels_ops *ops = e->ops;
    struct kernels *k = e->kernels;
    struct step_scratch *s = e->step;
    int q_cols = m->n_heads * m->head_dim;
    float *x = s->x.p;

    for (int g = 0; g < MODEL_GROUPS; g++)
        if (e->pools[g].page_bytes)
            model_rope_table(&m->rope[g], s->positions, n, s->rope[g].p);
    ops->embed(k, &m->embed, s->ids, n, m->embed_scale, x);

    for (int l = 0; l < m->n_layers; l++) {
        const struct model_layer *layer = &m->layers[l];
        const struct model_rope *rope = &m->rope[layer->group];
        const struct kernels_run *runs = s->runs[layer->group];

        ops->rms_norm(k, x, n, m->n_embd, layer->attn_norm, m->rms_eps, s->h.p);
        const struct kernels_linear qkv[] = {{.w = &layer->q, .bias = layer->q_bias, .y = s->q.p},
                                             {.w = &layer->k, .bias = layer->k_bias, .y = s->k.p},
                                             {.w = &layer->v, .bias = layer->v_bias, .y = s->v.p}};
        ops->linear(k, s->h.p, n, m->n_embd, qkv, 3);
        if (layer->q_norm)
            ops->rms_norm(k, s->q.p, n * m->n_heads, m->head_dim, layer->q_norm, m->rms_eps, s->q.p);
        if (layer->k_norm)
            ops->rms_norm(k, s->k.p, n * m->n_kv_heads, m->head_dim, layer->k_norm, m->rms_eps, s->k.p);
        ops->rope(k, s->q.p, n, m->n_heads, m->head_dim, rope->rot, m->rope_kind, s->rope[layer->group].p);
        ops->rope(k, s->k.p, n, m->n_kv_heads, m->head_dim, rope->rot, m->rope_kind, s->rope[layer->group].p);
        ops->kv_write(k, &layer->kv, s->k.p, s->v.p, runs, n_runs);

        int rows = n;
        float *attn = s->attn.p;
        if (l == m->n_layers - 1 && n_want == 0)
            return;
        ops->attention(k, &(struct kernels_attention){.q = s->q.p,
                                                      .out = attn,
                                                      .rows = n,
                                                      .heads = m->n_heads,
                                                      .scale = m->attn_scale,
                                                      .window = layer->group == MODEL_WINDOW ? m->window : 0,
                                                      .kv = layer->kv,
                                                      .runs = runs,
                                                      .n_runs = n_runs});
        if (l == m->n_layers - 1) {
            /* q and h are free here: the wanted rows go on in them. */
            ops->gather(k, attn, q_cols, s->want_rows, n_want, s->q.p);
            ops->gather(k, x, m->n_embd, s->want_rows, n_want, s->h.p);
            ops->copy(k, x, s->h.p, (size_t)n_want * (size_t)m->n_embd * sizeof(float));
            attn = s->q.p;
            rows = n_want;
        }
        residual(e, attn, rows, q_cols, &layer->o, layer->post_attn_norm, x);

        ops->rms_norm(k, x, rows, m->n_embd, layer->ffn_norm, m->rms_eps, s->h.p);
        const struct kernels_linear gate_up[] = {{.w = &layer->gate, .y = s->gate.p}, {.w = &layer->up, .y = s->up.p}};
        ops->linear(k, s->h.p, rows, m->n_embd, gate_up, 2);
        ops->glu(k, m->glu, s->gate.p, s->up.p, (size_t)rows * (size_t)m->n_ff, s->gate.p);
        residual(e, s->gate.p, rows, m->n_ff, &layer->down, layer->post_ffn_norm, x);
    }
    ops->rms_norm(k, x, n_want, m->n_embd, m->output_norm, m->rms_eps, s->h.p);
    ops->linear(k, s->h.p, n_want, m->n_embd, &(struct kernels_linear){.w = &m->output, .y = s->logits.p}, 1);
}

static bool well_formed(const struct engine *e, const struct engine_step_item *items, int n_items)
{
    int64_t total = 0;
    for (int i = 0; i < n_items; i++) {
        const struct engine_step_item *it = &items[i];
        if (!it->seq || it->seq->engine != e || it->n <= 0 || !it->tokens || it->n_want < 0 || it->n_want > it->n ||
            (it->n_want && !it->want))
            return false;
        for (int t = 0; t < it->n; t++)
            if (it->tokens[t] < 0 || it->tokens[t] >= e->info.n_vocab)
                return false;
        for (int w = 0; w < it->n_want; w++)
            if (it->want[w] < 0 || it->want[w] >= it->n || (w && it->want[w] <= it->want[w - 1]))
                return false;
        for (int j = 0; j < i; j++)
            if (items[j].seq == it->seq)
                return false;
        total += it->n;
    }
    return total <= e->info.step_tokens;
}

int engine_step(struct engine *e, struct engine_step_item *items, int n_items, const float **logits)
{
    struct step_scratch *s = e->step;
    if (n_items < 0 || !well_formed(e, items, n_items))
        return -EINVAL;
    int all_want = 0;
    for (int i = 0; i < n_items; i++)
        all_want += items[i].n_want;
    if (grow_runs(s, n_items) || grow_logits(e, all_want))
        return -ENOMEM;

    int n = 0, n_runs = 0, n_want = 0;
    for (int i = 0; i < n_items; i++) {
        struct engine_step_item *it = &items[i];
        int pos = engine_seq_length(it->seq);
        it->result = kv_seq_extend(it->seq, it->tokens, it->n);
        if (it->result)
            continue;
        for (int g = 0; g < MODEL_GROUPS; g++)
            s->runs[g][n_runs] = (struct kernels_run){
                .first_row = n, .n = it->n, .pos = pos, .pages = {it->seq->table[g].pages, it->seq->table[g].count}};
        for (int w = 0; w < it->n_want; w++)
            s->want_rows[n_want++] = n + it->want[w];
        for (int t = 0; t < it->n; t++) {
            s->ids[n] = it->tokens[t];
            s->positions[n++] = pos + t;
        }
        n_runs++;
    }
    if (n > 0)
        forward(e, n, n_runs, n_want);
    *logits = s->logits.p;
    return 0;
}

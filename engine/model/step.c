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
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

struct buffer {
    float *p;
    size_t bytes;
};

struct step_scratch {
    struct buffer x, h, q, k, v, attn, gate, up, logits;
    struct buffer rope[MODEL_ROPES];
    struct buffer rope_q; /* of queries that grow with their position */
    /* Of mixtures: the router's logits, and the scratch of kernels_mixture. */
    struct buffer router, rows, expert_out, expert_weights, expert_ints;
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

/* The buffers of a step and the values that each has per row; 0: this model needs none. */
#define MAX_BUFFERS 24
struct sized {
    struct buffer *b;
    size_t cols;
};

static size_t list_buffers(const struct engine *e, struct step_scratch *s, struct sized out[MAX_BUFFERS])
{
    const struct model *m = &e->model;
    size_t embd = (size_t)m->n_embd, q = (size_t)model_most_q(m), kv = (size_t)model_most_kv(m);
    size_t ff = (size_t)model_most_ff(m), rot = (size_t)model_most_head_dim(m);
    size_t used = (size_t)m->n_experts_used, mixed = used ? used : 1; /* rows of gate and up beside each other */
    const struct sized all[] = {
        {&s->x, embd},
        {&s->h, embd},
        {&s->q, q},
        {&s->k, kv},
        {&s->v, kv},
        {&s->attn, q},
        {&s->gate, ff * mixed},
        {&s->up, ff * mixed},
        {&s->rope[0], rot},
        {&s->rope[1], rot},
        {&s->rope_q, m->temperature != 0.0f ? rot : 0},
        {&s->router, (size_t)m->n_experts},
        {&s->rows, embd * used},
        {&s->expert_out, embd * used},
        {&s->expert_weights, used},
        {&s->expert_ints, 3 * used},
    };
    _Static_assert(sizeof all / sizeof *all <= MAX_BUFFERS, "more buffers than there is room for");
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

uint64_t step_scratch_bytes(const struct engine *e)
{
    struct step_scratch none;
    struct sized all[MAX_BUFFERS];
    uint64_t bytes = 0;
    for (size_t i = 0, n = list_buffers(e, &none, all); i < n; i++)
        bytes += (uint64_t)all[i].cols * (uint64_t)e->info.step_tokens * sizeof(float);
    return bytes;
}

int step_scratch_open(struct engine *e)
{
    const struct model *m = &e->model;
    size_t n = (size_t)e->info.step_tokens;
    struct step_scratch *s = e->step = calloc(1, sizeof *s);
    struct sized all[MAX_BUFFERS];
    if (!s)
        return -ENOMEM;
    s->positions = malloc(n * sizeof *s->positions);
    s->ids = malloc(n * sizeof *s->ids);
    s->want_rows = malloc(n * sizeof *s->want_rows);
    if (!s->positions || !s->ids || !s->want_rows)
        return -ENOMEM;
    for (size_t i = 0, buffers = list_buffers(e, s, all); i < buffers; i++)
        if (all[i].cols && buffer_open(e, all[i].b, n, all[i].cols))
            return -ENOMEM;
    return e->ops->reserve(e->kernels, (int)n, max_int(max_int(m->n_embd, model_most_ff(m)), model_most_q(m)),
                           model_most_heads(m), model_most_head_dim(m));
}

void step_scratch_close(struct engine *e)
{
    struct step_scratch *s = e->step;
    struct sized all[MAX_BUFFERS];
    if (!s)
        return;
    for (size_t i = 0, n = list_buffers(e, s, all); i < n; i++)
        buffer_close(e, all[i].b);
    buffer_close(e, &s->logits);
    for (int g = 0; g < MODEL_GROUPS; g++)
        free(s->runs[g]);
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
                     const float *bias, const float *post_norm, float *x)
{
    struct step_scratch *s = e->step;
    const struct model *m = &e->model;
    if (!post_norm) {
        const struct kernels_linear job = {.w = w, .bias = bias, .y = x, .accumulate = true};
        e->ops->linear(e->kernels, in, n, cols, &job, 1);
        return;
    }
    e->ops->linear(e->kernels, in, n, cols, &(struct kernels_linear){.w = w, .bias = bias, .y = s->h.p}, 1);
    e->ops->rms_norm(e->kernels, s->h.p, n, m->n_embd, post_norm, m->rms_eps, s->h.p);
    e->ops->add(e->kernels, x, s->h.p, (size_t)n * (size_t)m->n_embd);
}

/* Rotation tables of n rows. Queries that grow with their position are scaled by what they are rotated with: by 1 +
 * temperature * log(1 + floor(position / context)). */
static void rope_tables(struct engine *e, int n)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    bool used[MODEL_ROPES] = {false};
    for (int l = 0; l < m->n_layers; l++)
        if (m->layers[l].rope >= 0)
            used[m->layers[l].rope] = true;
    for (int i = 0; i < MODEL_ROPES; i++)
        if (used[i])
            model_rope_table(&m->rope[i], s->positions, n, s->rope[i].p);
    if (m->temperature == 0.0f)
        return;
    size_t rot = (size_t)m->rope[0].rot;
    for (int i = 0; i < n; i++) {
        double turns = s->positions[i] / m->temperature_ctx; /* whole contexts before it */
        float scale = (float)(1.0 + (double)m->temperature * log(1.0 + turns));
        for (size_t j = (size_t)i * rot; j < ((size_t)i + 1) * rot; j++)
            s->rope_q.p[j] = s->rope[0].p[j] * scale;
    }
}

/* Queries, and keys and values into their pages, of rows whose norm is in h. */
static void write_qkv(struct engine *e, const struct model_layer *y, int n, const struct kernels_run *runs, int n_runs)
{
    const struct model *m = &e->model;
    const struct kernels_ops *ops = e->ops;
    struct kernels *k = e->kernels;
    struct step_scratch *s = e->step;
    int kv_heads = y->kv.kv_heads, head_dim = y->kv.head_dim;
    const struct kernels_linear qkv[] = {{.w = &y->q, .bias = y->q_bias, .y = s->q.p},
                                         {.w = &y->k, .bias = y->k_bias, .y = s->k.p},
                                         {.w = &y->v, .bias = y->v_bias, .y = s->v.p}};
    ops->linear(k, s->h.p, n, m->n_embd, qkv, 3);
    if (y->q_norm)
        ops->rms_norm(k, s->q.p, n * y->n_heads, head_dim, y->q_norm, m->rms_eps, s->q.p);
    if (y->k_norm)
        ops->rms_norm(k, s->k.p, n * kv_heads, head_dim, y->k_norm, m->rms_eps, s->k.p);
    if (y->rope >= 0) {
        const float *table = s->rope[y->rope].p;
        int rot = m->rope[y->rope].rot;
        ops->rope(k, s->q.p, n, y->n_heads, head_dim, rot, m->rope_kind, m->temperature != 0.0f ? s->rope_q.p : table);
        ops->rope(k, s->k.p, n, kv_heads, head_dim, rot, m->rope_kind, table);
    }
    ops->kv_write(k, &y->kv, s->k.p, s->v.p, runs, n_runs);
}

/* x += feed-forward(norm(x)). */
static void dense(struct engine *e, const struct model_layer *y, int n, float *x)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    const struct kernels_linear gate_up[] = {{.w = &y->gate, .y = s->gate.p}, {.w = &y->up, .y = s->up.p}};
    e->ops->linear(e->kernels, s->h.p, n, m->n_embd, gate_up, 2);
    e->ops->glu(e->kernels, m->glu, s->gate.p, s->up.p, (size_t)n * (size_t)y->n_ff, s->gate.p);
    residual(e, s->gate.p, n, y->n_ff, &y->down, NULL, y->post_ffn_norm, x);
}

static void mixture(struct engine *e, const struct model_layer *y, int n, float *x)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    size_t slots = (size_t)n * (size_t)m->n_experts_used;
    int32_t *ints = (int32_t *)(void *)s->expert_ints.p;
    e->ops->linear(e->kernels, s->h.p, n, m->n_embd,
                   &(struct kernels_linear){.w = &y->router, .bias = y->router_bias, .y = s->router.p}, 1);
    const struct kernels_mixture mix = {
        .experts = m->n_experts,
        .used = m->n_experts_used,
        .logits = s->router.p,
        .gate = y->gate_experts,
        .up = y->up_experts,
        .down = y->down_experts,
        .gate_bias = y->gate_experts_bias,
        .up_bias = y->up_experts_bias,
        .down_bias = y->down_experts_bias,
        .glu = m->glu,
        .rows = s->rows.p,
        .gate_out = s->gate.p,
        .up_out = s->up.p,
        .out = s->expert_out.p,
        .weights = s->expert_weights.p,
        .ids = ints,
        .order = ints + slots,
        .place = ints + 2 * slots,
    };
    e->ops->mixture(e->kernels, s->h.p, n, m->n_embd, &mix, x);
}

static void forward(struct engine *e, int n, int n_runs, int n_want)
{
    const struct model *m = &e->model;
    const struct kernels_ops *ops = e->ops;
    struct kernels *k = e->kernels;
    struct step_scratch *s = e->step;
    float *x = s->x.p;

    rope_tables(e, n);
    ops->embed(k, &m->embed, s->ids, n, m->embed_scale, x);

    for (int l = 0; l < m->n_layers; l++) {
        const struct model_layer *y = &m->layers[l];
        const struct kernels_run *runs = s->runs[y->group];
        int rows = n, q_cols = y->n_heads * y->kv.head_dim;
        float *attn = s->attn.p;

        ops->rms_norm(k, x, n, m->n_embd, y->attn_norm, m->rms_eps, s->h.p);
        write_qkv(e, y, n, runs, n_runs);
        if (l == m->n_layers - 1 && n_want == 0)
            return;
        ops->attention(k, &(struct kernels_attention){.q = s->q.p,
                                                      .out = attn,
                                                      .rows = n,
                                                      .heads = y->n_heads,
                                                      .scale = y->attn_scale,
                                                      .window = y->window,
                                                      .softcap = m->attn_softcap,
                                                      .sinks = y->sinks,
                                                      .kv = y->kv,
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
        residual(e, attn, rows, q_cols, &y->o, y->o_bias, y->post_attn_norm, x);
        ops->rms_norm(k, x, rows, m->n_embd, y->ffn_norm, m->rms_eps, s->h.p);
        if (y->ffn == MODEL_MIXTURE)
            mixture(e, y, rows, x);
        else
            dense(e, y, rows, x);
    }
    ops->rms_norm(k, x, n_want, m->n_embd, m->output_norm, m->rms_eps, s->h.p);
    ops->linear(k, s->h.p, n_want, m->n_embd, &(struct kernels_linear){.w = &m->output, .y = s->logits.p}, 1);
    if (m->final_softcap > 0.0f)
        ops->softcap(k, s->logits.p, (size_t)n_want * (size_t)m->n_vocab, m->final_softcap);
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

/* step.c - one forward pass over the new tokens of any number of sequences.
 *
 * The rows of all items lie one after the other in one batch; every operation takes the whole batch, and attention gets
 * the runs of rows with their page tables. Which items share a step changes no bit of any row (kernels.h), so this file
 * is free to batch as it likes.
 *
 * In the last layer only the rows whose logits are wanted go past attention: what is behind it writes no keys or
 * values. Wanted are first the rows whose logits are handed out, in item order, and then those that tokens are picked
 * from.
 *
 * Between start and wait the device works: everything is put into its stream, nothing here looks at what it computes,
 * waits or allocates. What operations are put there depends on how many rows are wanted and on nothing else of a batch,
 * so that a backend may keep them (kernels_ops.begin).
 */
#include <errno.h>
#include <fenv.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/elementary.h"
#include "engine/model/model.h"

struct buffer {
    void *p;
    size_t bytes;
};

/* What is noted of an item when its step starts. */
struct before {
    bool ran;
    int length; /* of its sequence, for taking it back */
    int last;   /* which of the wanted rows is its last token's; -1: none yet */
};

struct step_scratch {
    /* Of the device: */
    struct buffer x, x_wanted, h, q, k, v, attn, ffn, router, logits;
    struct buffer h_quants, attn_quants, ffn_quants;
    struct buffer rope[MODEL_ROPES], rope_q; /* rope_q: of queries that grow with their position */
    struct buffer inv_freq[MODEL_ROPES];
    /* Pinned: */
    struct buffer picked, logits_out;
    /* Of the host: */
    struct kernels_run *runs; /* [step_tokens] */
    int32_t *ids, *wanted;    /* [step_tokens] */
    float *query_scale;       /* [step_tokens] */
    struct before *before;    /* [step_tokens], by item */
    /* The step under way. */
    struct engine_step_item *items;
    int n_items, n_logits;
    bool under_way;
};

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

struct sized {
    struct buffer *b;
    size_t bytes; /* 0: this model needs none */
    enum kernels_place place;
};

#define MAX_BUFFERS 24

static bool rope_used(const struct model *m, int rope)
{
    for (int l = 0; l < m->n_layers; l++)
        if (m->layers[l].rope == rope)
            return true;
    return false;
}

/* Rows that can go past attention in the last layer. */
static int wanted_rows(const struct engine_info *info)
{
    int most = info->step_picks + info->step_logits;
    return most < info->step_tokens ? most : info->step_tokens;
}

static size_t list_buffers(const struct engine *e, struct step_scratch *s, struct sized out[MAX_BUFFERS])
{
    const struct model *m = &e->model;
    const struct engine_info *info = &e->info;
    size_t rows = (size_t)info->step_tokens, wanted = (size_t)wanted_rows(info);
    size_t row = rows * sizeof(float), q = (size_t)model_most_q(m), kv = (size_t)model_most_kv(m);
    size_t embd = (size_t)m->n_embd, ff = m->n_experts ? 0 : (size_t)model_most_ff(m);
    size_t vocab = (size_t)m->n_vocab * sizeof(float);
    const struct sized all[] = {
        {&s->x, row * embd, KERNELS_DEVICE},
        {&s->x_wanted, wanted * embd * sizeof(float), KERNELS_DEVICE},
        {&s->h, row * embd, KERNELS_DEVICE},
        {&s->q, row * q, KERNELS_DEVICE},
        {&s->k, row * kv, KERNELS_DEVICE},
        {&s->v, row * kv, KERNELS_DEVICE},
        {&s->attn, row * q, KERNELS_DEVICE},
        {&s->ffn, row * ff, KERNELS_DEVICE},
        {&s->router, row * (size_t)m->n_experts, KERNELS_DEVICE},
        {&s->logits, wanted * vocab, KERNELS_DEVICE},
        {&s->h_quants, e->ops->acts_bytes(e->kernels, (int)rows, m->n_embd), KERNELS_DEVICE},
        {&s->attn_quants, e->ops->acts_bytes(e->kernels, (int)rows, (int)q), KERNELS_DEVICE},
        {&s->ffn_quants, ff ? e->ops->acts_bytes(e->kernels, (int)rows, (int)ff) : 0, KERNELS_DEVICE},
        {&s->rope[0], rope_used(m, 0) ? row * (size_t)m->rope[0].rot : 0, KERNELS_DEVICE},
        {&s->rope[1], rope_used(m, 1) ? row * (size_t)m->rope[1].rot : 0, KERNELS_DEVICE},
        {&s->rope_q, m->temperature != 0.0f ? row * (size_t)m->rope[0].rot : 0, KERNELS_DEVICE},
        {&s->inv_freq[0], (size_t)m->rope[0].rot / 2 * sizeof(double), KERNELS_DEVICE},
        {&s->inv_freq[1], (size_t)m->rope[1].rot / 2 * sizeof(double), KERNELS_DEVICE},
        {&s->picked, (size_t)info->step_picks * sizeof(struct kernels_picked), KERNELS_PINNED},
        {&s->logits_out, (size_t)info->step_logits * vocab, KERNELS_PINNED},
    };
    _Static_assert(sizeof all / sizeof *all <= MAX_BUFFERS, "more buffers than there is room for");
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

static struct kernels_sizes sizes_of(const struct engine *e)
{
    const struct model *m = &e->model;
    const struct engine_info *info = &e->info;
    int ff = model_most_ff(m);
    return (struct kernels_sizes){
        .rows = info->step_tokens,
        .runs = info->step_tokens,
        .pages = (info->ctx_tokens + KERNELS_PAGE_TOKENS - 1) / KERNELS_PAGE_TOKENS,
        .wanted = wanted_rows(info),
        .picks = info->step_picks,
        .vocab = m->n_vocab,
        .cols = max_int(max_int(m->n_embd, ff), model_most_q(m)),
        .heads = model_most_heads(m),
        .head_dim = model_most_head_dim(m),
        .ff = m->n_experts ? 0 : ff,
        .experts = m->n_experts,
        .experts_used = m->n_experts_used,
        .expert_ff = m->n_experts ? ff : 0,
    };
}

uint64_t step_scratch_bytes(const struct engine *e)
{
    struct step_scratch none;
    struct sized all[MAX_BUFFERS];
    struct kernels_sizes sizes = sizes_of(e);
    uint64_t bytes = e->ops->reserve_bytes(e->kernels, &sizes);
    for (size_t i = 0, n = list_buffers(e, &none, all); i < n; i++)
        bytes += all[i].bytes;
    return bytes;
}

int step_scratch_open(struct engine *e)
{
    size_t rows = (size_t)e->info.step_tokens;
    struct step_scratch *s = e->step = calloc(1, sizeof *s);
    struct sized all[MAX_BUFFERS];
    if (!s)
        return -ENOMEM;
    s->runs = malloc(rows * sizeof *s->runs);
    s->ids = malloc(rows * sizeof *s->ids);
    s->wanted = malloc(rows * sizeof *s->wanted);
    s->query_scale = malloc(rows * sizeof *s->query_scale);
    s->before = malloc(rows * sizeof *s->before);
    if (!s->runs || !s->ids || !s->wanted || !s->query_scale || !s->before)
        return -ENOMEM;
    for (size_t i = 0, n = list_buffers(e, s, all); i < n; i++) {
        if (all[i].bytes == 0)
            continue;
        void *p = e->ops->alloc(e->kernels, all[i].place, all[i].bytes);
        if (!p)
            return -ENOMEM;
        *all[i].b = (struct buffer){p, all[i].bytes};
    }
    for (int i = 0; i < MODEL_ROPES; i++)
        e->ops->upload(e->kernels, s->inv_freq[i].p, e->model.rope[i].inv_freq, s->inv_freq[i].bytes);
    struct kernels_sizes sizes = sizes_of(e);
    return e->ops->reserve(e->kernels, &sizes);
}

void step_scratch_close(struct engine *e)
{
    struct step_scratch *s = e->step;
    struct sized all[MAX_BUFFERS];
    if (!s)
        return;
    for (size_t i = 0, n = list_buffers(e, s, all); i < n; i++)
        if (all[i].b->p)
            e->ops->release(e->kernels, all[i].place, all[i].b->p, all[i].b->bytes);
    free(s->runs);
    free(s->ids);
    free(s->wanted);
    free(s->query_scale);
    free(s->before);
    free(s);
    e->step = NULL;
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

static struct kernels_acts acts(const struct buffer *x, const struct buffer *q, int cols, unsigned forms)
{
    return (struct kernels_acts){.x = x->p, .q = q ? q->p : NULL, .cols = cols, .forms = forms};
}

/* x += product, or, where the model has a norm behind the block, x += norm(product). */
static void residual(struct engine *e, const struct kernels_acts *in, int n, const struct kernels_matrix *w,
                     const float *bias, const float *post_norm, float *x)
{
    const struct model *m = &e->model;
    float *y = post_norm ? e->step->h.p : x;
    const struct kernels_linear job = {.w = w, .bias = bias, .y = y, .accumulate = !post_norm};
    e->ops->linear(e->kernels, in, n, &job, 1);
    if (post_norm)
        e->ops->add_norm(e->kernels, y, n, m->n_embd, post_norm, m->rms_eps, x);
}

static void rope_tables(struct engine *e)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    for (int i = 0; i < MODEL_ROPES; i++) {
        const struct model_rope *r = &m->rope[i];
        if (s->rope[i].p)
            e->ops->rope_table(e->kernels, s->inv_freq[i].p, r->rot, r->magnitude, false, s->rope[i].p);
    }
    if (s->rope_q.p)
        e->ops->rope_table(e->kernels, s->inv_freq[0].p, m->rope[0].rot, m->rope[0].magnitude, true, s->rope_q.p);
}

/* Queries into q, and keys and values into their pages. */
static void attention_in(struct engine *e, const struct model_layer *y, int n, const float *x)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    unsigned forms = kernels_form(y->q.type) | kernels_form(y->k.type) | kernels_form(y->v.type);
    const struct kernels_acts h = acts(&s->h, &s->h_quants, m->n_embd, forms);
    const struct kernels_linear qkv[] = {{.w = &y->q, .bias = y->q_bias, .y = s->q.p},
                                         {.w = &y->k, .bias = y->k_bias, .y = s->k.p},
                                         {.w = &y->v, .bias = y->v_bias, .y = s->v.p}};
    const float *table = y->rope >= 0 ? s->rope[y->rope].p : NULL;
    e->ops->norm(e->kernels, x, n, y->attn_norm, m->rms_eps, &h);
    e->ops->linear(e->kernels, &h, n, qkv, 3);
    e->ops->attn_in(e->kernels, &(struct kernels_attn_in){.q = s->q.p,
                                                          .key = s->k.p,
                                                          .value = s->v.p,
                                                          .heads = y->n_heads,
                                                          .q_norm = y->q_norm,
                                                          .k_norm = y->k_norm,
                                                          .eps = m->rms_eps,
                                                          .q_rope = table && s->rope_q.p ? s->rope_q.p : table,
                                                          .k_rope = table,
                                                          .rot = table ? m->rope[y->rope].rot : 0,
                                                          .kind = m->rope_kind,
                                                          .kv = y->kv});
}

/* x += feed-forward(norm(x)). */
static void dense(struct engine *e, const struct model_layer *y, int n, float *x)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    const struct kernels_acts h =
        acts(&s->h, &s->h_quants, m->n_embd, kernels_form(y->gate.type) | kernels_form(y->up.type));
    const struct kernels_acts ffn = acts(&s->ffn, &s->ffn_quants, y->n_ff, kernels_form(y->down.type));
    e->ops->norm(e->kernels, x, n, y->ffn_norm, m->rms_eps, &h);
    e->ops->gated(e->kernels, &h, n, &y->gate, &y->up, m->glu, &ffn);
    residual(e, &ffn, n, &y->down, NULL, y->post_ffn_norm, x);
}

static void mixture(struct engine *e, const struct model_layer *y, int n, float *x)
{
    const struct model *m = &e->model;
    struct step_scratch *s = e->step;
    const struct kernels_acts h = acts(&s->h, &s->h_quants, m->n_embd, KERNELS_FLOATS | kernels_form(y->router.type));
    const struct kernels_linear router = {.w = &y->router, .bias = y->router_bias, .y = s->router.p};
    e->ops->norm(e->kernels, x, n, y->ffn_norm, m->rms_eps, &h);
    e->ops->linear(e->kernels, &h, n, &router, 1);
    e->ops->mixture(e->kernels, &h, n,
                    &(struct kernels_mixture){.used = m->n_experts_used,
                                              .logits = s->router.p,
                                              .gate = &y->gate_experts,
                                              .up = &y->up_experts,
                                              .down = &y->down_experts,
                                              .gate_bias = y->gate_experts_bias,
                                              .up_bias = y->up_experts_bias,
                                              .down_bias = y->down_experts_bias,
                                              .glu = m->glu},
                    x);
}

static void forward(struct engine *e, int n, int n_wanted)
{
    const struct model *m = &e->model;
    const struct kernels_ops *ops = e->ops;
    struct kernels *k = e->kernels;
    struct step_scratch *s = e->step;
    float *x = s->x.p;

    model_bring(m, ops, k, m->n_layers - m->host_layers);
    rope_tables(e);
    ops->embed(k, &m->embed, m->embed_scale, x);
    for (int l = 0; l < m->n_layers; l++) {
        const struct model_layer *y = &m->layers[l];
        bool last = l == m->n_layers - 1;
        int q_cols = y->n_heads * y->kv.head_dim;
        struct kernels_acts attn =
            acts(&s->attn, &s->attn_quants, q_cols, last ? KERNELS_FLOATS : kernels_form(y->o.type));

        model_brought(m, ops, k, l);
        if (y->host)
            model_bring(m, ops, k, l + 1);
        attention_in(e, y, n, x);
        if (last && n_wanted == 0)
            return;
        ops->attention(k,
                       &(struct kernels_attention){.q = s->q.p,
                                                   .heads = y->n_heads,
                                                   .scale = y->attn_scale,
                                                   .window = y->window,
                                                   .softcap = m->attn_softcap,
                                                   .sinks = y->sinks,
                                                   .kv = y->kv},
                       &attn);
        if (last) {
            const struct kernels_acts wanted = acts(&s->x_wanted, NULL, m->n_embd, KERNELS_FLOATS);
            const struct kernels_acts all = attn;
            attn = acts(&s->q, &s->attn_quants, q_cols, kernels_form(y->o.type)); /* q is free here */
            ops->gather(k, all.x, &attn);
            ops->gather(k, x, &wanted);
            x = wanted.x;
            n = n_wanted;
        }
        residual(e, &attn, n, &y->o, y->o_bias, y->post_attn_norm, x);
        if (y->ffn == MODEL_MIXTURE)
            mixture(e, y, n, x);
        else
            dense(e, y, n, x);
    }
    const struct kernels_acts h = acts(&s->h, &s->h_quants, m->n_embd, kernels_form(m->output.type));
    ops->norm(k, x, n_wanted, m->output_norm, m->rms_eps, &h);
    ops->linear(k, &h, n_wanted,
                &(struct kernels_linear){.w = &m->output, .y = s->logits.p, .softcap = m->final_softcap}, 1);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static bool pick_well_formed(const struct engine_pick *p)
{
    return p->settings && p->n_top >= 0 && p->n_top <= ENGINE_TOP_MAX;
}

static bool well_formed(const struct engine *e, const struct engine_step_item *items, int n_items)
{
    int64_t total = 0, picks = 0, logits = 0;
    for (int i = 0; i < n_items; i++) {
        const struct engine_step_item *it = &items[i];
        if (!it->seq || it->seq->engine != e || it->n <= 0 || !it->tokens || it->n_want < 0 || it->n_want > it->n ||
            (it->n_want && !it->want) || (it->pick && !pick_well_formed(it->pick)))
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
        picks += it->pick != NULL;
        logits += it->n_want;
    }
    return total <= e->info.step_tokens && picks <= e->info.step_picks && logits <= e->info.step_logits;
}

/* Adds the new tokens of an item that runs to the batch. Logits that are handed out come first among the wanted rows.
 */
static void add_item(struct engine *e, const struct engine_step_item *it, struct before *before,
                     struct kernels_batch *b)
{
    struct step_scratch *s = e->step;
    const struct model *m = &e->model;
    int pos = before->length;
    struct kernels_run *run = &s->runs[b->n_runs++];
    *run = (struct kernels_run){.first_row = b->rows, .n = it->n, .pos = pos};
    for (int g = 0; g < MODEL_GROUPS; g++)
        run->pages[g] = (struct kernels_pages){it->seq->table[g].pages, it->seq->table[g].count};
    before->last = it->n_want && it->want[it->n_want - 1] == it->n - 1 ? b->n_wanted + it->n_want - 1 : -1;
    for (int w = 0; w < it->n_want; w++)
        s->wanted[b->n_wanted++] = b->rows + it->want[w];
    for (int t = 0; t < it->n; t++) {
        s->ids[b->rows + t] = it->tokens[t];
        /* Queries that grow with their position: by 1 + temperature * log(1 + whole contexts before it). */
        if (m->temperature != 0.0f)
            s->query_scale[b->rows + t] =
                (float)(1.0 + (double)m->temperature * elementary_log(1.0 + (double)((pos + t) / m->temperature_ctx)));
    }
    b->rows += it->n;
}

/* Room for what the picks of all items change. */
static int begin_picks(struct engine *e, const struct engine_step_item *items, int n_items)
{
    size_t changes = 0;
    int n = 0;
    for (int i = 0; i < n_items; i++)
        if (items[i].pick) {
            changes += sampler_changes(items[i].pick, engine_seq_length(items[i].seq) + items[i].n);
            n++;
        }
    return sampler_begin(e, n, changes);
}

static int start(struct engine *e, struct engine_step_item *items, int n_items)
{
    struct step_scratch *s = e->step;
    if (s->under_way || n_items < 0 || !well_formed(e, items, n_items))
        return -EINVAL;
    if (e->ops->error(e->kernels))
        return -EIO;
    int rc = begin_picks(e, items, n_items);
    if (rc)
        return rc;
    struct kernels_batch b = {.ids = s->ids,
                              .runs = s->runs,
                              .query_scale = e->model.temperature != 0.0f ? s->query_scale : NULL,
                              .wanted = s->wanted};
    for (int i = 0; i < n_items; i++) {
        struct engine_step_item *it = &items[i];
        s->before[i].length = engine_seq_length(it->seq);
        kv_seq_order(it->seq);
        it->result = kv_seq_extend(it->seq, it->tokens, it->n);
        s->before[i].ran = it->result == 0;
        if (it->result == 0)
            add_item(e, it, &s->before[i], &b);
    }
    s->n_logits = b.n_wanted;
    for (int i = 0, row = -1; i < n_items; i++) {
        if (!s->before[i].ran)
            continue;
        row += items[i].n;
        if (!items[i].pick)
            continue;
        int wanted = s->before[i].last;
        if (wanted < 0) {
            wanted = b.n_wanted++;
            s->wanted[wanted] = row;
        }
        sampler_add(e, items[i].pick, engine_seq_tokens(items[i].seq), engine_seq_length(items[i].seq), wanted);
    }
    s->items = items;
    s->n_items = n_items;
    s->under_way = true;
    if (b.rows > 0) {
        if (e->ops->begin(e->kernels, &b) == 0)
            forward(e, b.rows, b.n_wanted);
        e->ops->end(e->kernels);
        if (s->n_logits > 0)
            e->ops->copy(e->kernels, KERNELS_COMPUTE, s->logits_out.p, s->logits.p,
                         (size_t)s->n_logits * (size_t)e->info.n_vocab * sizeof(float));
    }
    return 0;
}

int engine_step_start(struct engine *e, struct engine_step_item *items, int n_items)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV); /* rounding to nearest, subnormals kept (docs/numerics.md) */
    int rc = start(e, items, n_items);
    fesetenv(&callers);
    return rc;
}

/* The tokens are picked behind the pass, with the masks that there are now. */
static void put_picks(struct engine *e)
{
    struct step_scratch *s = e->step;
    int n, at = 0;
    struct kernels_pick *picks = sampler_picks(e, &n);
    for (int i = 0; i < s->n_items; i++)
        if (s->before[i].ran && s->items[i].pick)
            picks[at++].mask = s->items[i].pick->mask;
    if (n > 0)
        e->ops->pick(e->kernels, s->logits.p, e->model.n_vocab, picks, n, s->picked.p);
}

static int wait_for(struct engine *e, const float **logits)
{
    struct step_scratch *s = e->step;
    if (!s->under_way)
        return -EINVAL;
    s->under_way = false;
    put_picks(e);
    int rc = e->ops->wait(e->kernels, e->ops->record(e->kernels, KERNELS_COMPUTE), -1);
    const struct kernels_picked *picked = s->picked.p;
    for (int i = 0; i < s->n_items; i++) {
        struct engine_step_item *it = &s->items[i];
        if (!s->before[i].ran)
            continue;
        if (rc)
            kv_seq_take_back(it->seq, s->before[i].length);
        else if (it->pick)
            sampler_take(picked++, it->pick);
    }
    if (rc == 0 && logits)
        *logits = s->logits_out.p;
    return rc;
}

int engine_step_wait(struct engine *e, const float **logits)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV); /* for log-probabilities */
    int rc = wait_for(e, logits);
    fesetenv(&callers);
    return rc;
}

/* profile.c - where a step's time goes: the backend's table behind one that measures.
 *
 * Every operation is waited for before the next one is put in, so what is measured is each of them alone; the whole
 * step is measured beside it, without this table. What an operation must move and compute is counted on paper from its
 * arguments.
 *
 * The tables' functions get nothing but the backend, so what they write to is here: one profile at a time, on the
 * engine thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/model/model.h"

#define ROUNDS 5

enum row {
    ROW_EMBED,
    ROW_ROPE_TABLE,
    ROW_NORM,
    ROW_QKV,
    ROW_ATTN_IN,
    ROW_ATTENTION,
    ROW_GATHER,
    ROW_ATTN_OUT,
    ROW_ROUTER,
    ROW_MIXTURE,
    ROW_GATED,
    ROW_DOWN,
    ROW_ADD_NORM,
    ROW_LOGITS,
    ROW_BROUGHT,
    ROW_PICK,
    ROW_REPLAY,
    ROWS
};
_Static_assert(ROWS <= ENGINE_PROFILE_ROWS, "more rows than a profile holds");

static const char *const NAMES[ROWS] = {
    [ROW_EMBED] = "embed",
    [ROW_ROPE_TABLE] = "rotary table",
    [ROW_NORM] = "norm",
    [ROW_QKV] = "q, k, v",
    [ROW_ATTN_IN] = "q, k, v in",
    [ROW_ATTENTION] = "attention",
    [ROW_GATHER] = "last rows",
    [ROW_ATTN_OUT] = "attention out",
    [ROW_ROUTER] = "router",
    [ROW_MIXTURE] = "experts",
    [ROW_GATED] = "gate, up",
    [ROW_DOWN] = "down",
    [ROW_ADD_NORM] = "norm, add",
    [ROW_LOGITS] = "logits",
    [ROW_BROUGHT] = "weights brought",
    [ROW_PICK] = "pick",
    [ROW_REPLAY] = "all, as kept by the backend",
};

static struct {
    const struct engine *e;
    const struct kernels_ops *ops; /* the backend's own */
    const struct kernels_batch *batch;
    bool replayed;
    double started;
    struct engine_profile_row rows[ROWS];
} watch;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void start(void)
{
    watch.started = now_ms();
}

static void finish(struct kernels *k, enum row row, double bytes, double operations)
{
    (void)watch.ops->wait(k, watch.ops->record(k, KERNELS_COMPUTE),
                          -1); /* what failed is told when the step is waited for */
    struct engine_profile_row *r = &watch.rows[row];
    r->ms += now_ms() - watch.started;
    r->calls++;
    r->bytes += bytes;
    r->operations += operations;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static int begin(struct kernels *k, const struct kernels_batch *batch)
{
    watch.batch = batch;
    start();
    int rc = watch.ops->begin(k, batch);
    watch.replayed = rc == 1;
    return rc;
}

static void end(struct kernels *k)
{
    watch.ops->end(k);
    if (watch.replayed)
        finish(k, ROW_REPLAY, 0, 0);
}

/* Of weights in the host's memory: alone, though a step has it beside its operations. */
static void bring(struct kernels *k, int place, void *to, const void *from, size_t bytes)
{
    start();
    watch.ops->bring(k, place, to, from, bytes);
    watch.ops->brought(k, place);
    finish(k, ROW_BROUGHT, (double)bytes * 2, 0);
}

static void embed(struct kernels *k, const struct kernels_matrix *w, float scale, float *out)
{
    double n = watch.batch->rows;
    start();
    watch.ops->embed(k, w, scale, out);
    finish(k, ROW_EMBED, n * ((double)kernels_row_bytes(w->type, w->cols) + 4.0 * w->cols), n * w->cols);
}

static void rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled, float *table)
{
    double n = watch.batch->rows;
    start();
    watch.ops->rope_table(k, inv_freq, rot, magnitude, scaled, table);
    finish(k, ROW_ROPE_TABLE, n * rot * 4, n * rot);
}

static void norm(struct kernels *k, const float *x, int n, const float *weight, float eps,
                 const struct kernels_acts *out)
{
    double values = (double)n * out->cols;
    start();
    watch.ops->norm(k, x, n, weight, eps, out);
    finish(k, ROW_NORM, values * 8, values * 4);
}

static void add_norm(struct kernels *k, float *y, int n, int d, const float *weight, float eps, float *x)
{
    double values = (double)n * d;
    start();
    watch.ops->add_norm(k, y, n, d, weight, eps, x);
    finish(k, ROW_ADD_NORM, values * 12, values * 5);
}

static double matrix_bytes(struct kernels *k, const struct kernels_matrix *w)
{
    return (double)watch.ops->matrix_bytes(k, w->type, w->rows, w->cols);
}

static enum row row_of(const struct kernels_matrix *w)
{
    const struct model *m = &watch.e->model;
    for (int l = 0; l < m->n_layers; l++) {
        const struct model_layer *y = &m->layers[l];
        if (w == &y->q)
            return ROW_QKV;
        if (w == &y->o)
            return ROW_ATTN_OUT;
        if (w == &y->router)
            return ROW_ROUTER;
        if (w == &y->down)
            return ROW_DOWN;
    }
    return ROW_LOGITS;
}

static void linear(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                   int n_jobs)
{
    double bytes = 4.0 * n * in->cols, operations = 0;
    for (int i = 0; i < n_jobs; i++) {
        double out = (double)n * jobs[i].w->rows;
        bytes += matrix_bytes(k, jobs[i].w) + out * (jobs[i].accumulate ? 8 : 4);
        operations += 2 * out * in->cols;
    }
    start();
    watch.ops->linear(k, in, n, jobs, n_jobs);
    finish(k, row_of(jobs[0].w), bytes, operations);
}

static void gated(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                  const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out)
{
    double bytes = matrix_bytes(k, gate) + matrix_bytes(k, up) + 4.0 * n * (in->cols + out->cols);
    start();
    watch.ops->gated(k, in, n, gate, up, kind, out);
    finish(k, ROW_GATED, bytes, 4.0 * n * in->cols * out->cols);
}

static void attn_in(struct kernels *k, const struct kernels_attn_in *a)
{
    double n = watch.batch->rows, q = (double)a->heads * a->kv.head_dim, kv = (double)a->kv.kv_heads * a->kv.head_dim;
    start();
    watch.ops->attn_in(k, a);
    finish(k, ROW_ATTN_IN, n * (8 * q + 2 * kv * (4 + (double)kernels_kv_width(a->kv.type))), n * 3 * (q + kv));
}

static void attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_acts *out)
{
    double pairs = 0, positions = 0, width = (double)kernels_kv_width(a->kv.type);
    for (int i = 0; i < watch.batch->n_runs; i++) {
        const struct kernels_run *run = &watch.batch->runs[i];
        for (int r = 0; r < run->n; r++) {
            int sees = run->pos + r + 1;
            pairs += a->window > 0 && a->window < sees ? a->window : sees;
        }
        int end = run->pos + run->n, most = a->window > 0 ? a->window + run->n - 1 : end;
        positions += most < end ? most : end;
    }
    start();
    watch.ops->attention(k, a, out);
    finish(k, ROW_ATTENTION,
           positions * 2 * a->kv.kv_heads * a->kv.head_dim * width + 8.0 * watch.batch->rows * out->cols,
           4 * pairs * out->cols);
}

static void gather(struct kernels *k, const float *x, const struct kernels_acts *out)
{
    start();
    watch.ops->gather(k, x, out);
    finish(k, ROW_GATHER, 8.0 * watch.batch->n_wanted * out->cols, 0);
}

/* On paper each of n rows asks other experts, as long as there are such. */
static void mixture(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_mixture *m, float *y)
{
    double asked = (double)n * m->used, experts = asked < m->gate->experts ? asked : m->gate->experts;
    double each = matrix_bytes(k, m->gate) + matrix_bytes(k, m->up) + matrix_bytes(k, m->down);
    start();
    watch.ops->mixture(k, in, n, m, y);
    finish(k, ROW_MIXTURE, experts * each + 12.0 * n * in->cols, 6 * asked * m->gate->rows * in->cols);
}

static void pick(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                 struct kernels_picked *out)
{
    double values = (double)n * vocab;
    start();
    watch.ops->pick(k, logits, vocab, picks, n, out);
    finish(k, ROW_PICK, values * 4, values);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

struct work {
    struct engine *e;
    struct engine_seq **seqs; /* [n] */
    struct engine_step_item *items;
    struct engine_pick *picks;
    int n, tokens, history;
};

/* One step, and back to where it began. */
static int step(struct work *w, double *ms)
{
    double started = now_ms();
    int rc = engine_step_start(w->e, w->items, w->n);
    if (rc == 0)
        rc = engine_step_wait(w->e, NULL);
    *ms = now_ms() - started;
    for (int i = 0; i < w->n && rc == 0; i++)
        rc = w->items[i].result;
    for (int i = 0; i < w->n; i++)
        kv_seq_take_back(w->seqs[i], w->history);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, compare);
    return x[ROUNDS / 2];
}

static int measure(struct work *w, struct engine_profile *out)
{
    struct engine *e = w->e;
    struct kernels_ops watched = *e->ops;
    double whole[ROUNDS], by_row[ROWS][ROUNDS], unused;
    watch.e = e;
    watch.ops = e->ops;
    watched.begin = begin;
    watched.end = end;
    watched.embed = embed;
    watched.bring = bring;
    watched.rope_table = rope_table;
    watched.norm = norm;
    watched.add_norm = add_norm;
    watched.linear = linear;
    watched.gated = gated;
    watched.attn_in = attn_in;
    watched.attention = attention;
    watched.gather = gather;
    watched.mixture = mixture;
    watched.pick = pick;
    int rc = step(w, &unused);
    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        if ((rc = step(w, &whole[round])))
            break;
        memset(watch.rows, 0, sizeof watch.rows);
        e->ops = &watched;
        rc = step(w, &unused);
        e->ops = watch.ops;
        for (int r = 0; r < ROWS; r++)
            by_row[r][round] = watch.rows[r].ms;
    }
    if (rc)
        return rc;
    *out = (struct engine_profile){.whole_ms = median(whole)};
    for (int r = 0; r < ROWS; r++) {
        struct engine_profile_row *row = &out->rows[out->n_rows];
        *row = watch.rows[r];
        if (row->calls == 0)
            continue;
        row->name = NAMES[r];
        row->ms = median(by_row[r]);
        out->ms += row->ms;
        out->n_rows++;
    }
    return 0;
}

/* A sequence with `history` tokens in its pages that hold zeros. */
static int begin_sequence(struct work *w, struct engine_seq *s, const engine_token *tokens)
{
    int part = KERNELS_ATTENTION_BLOCK, rc = 0;
    void *zeros = calloc((size_t)part, w->e->info.kv_token_bytes);
    if (!zeros)
        return -ENOMEM;
    for (int at = 0; rc == 0 && at < w->history; at += part) {
        rc = engine_kv_import(s, tokens + at, w->history - at < part ? w->history - at : part, zeros);
        engine_seq_settle(s);
    }
    free(zeros);
    return rc;
}

int engine_profile(struct engine *e, int sequences, int tokens, int history, struct engine_profile *out)
{
    static const struct engine_sampling settings = ENGINE_SAMPLING_DEFAULT;
    const struct engine_info *info = &e->info;
    if (sequences < 1 || tokens < 1 || history < 0 || sequences > info->step_picks ||
        tokens > info->step_tokens / sequences || tokens > info->ctx_tokens || history > info->ctx_tokens - tokens)
        return -EINVAL;
    struct work w = {.e = e, .n = sequences, .tokens = tokens, .history = history};
    engine_token *ids = malloc((size_t)(history + tokens) * sizeof *ids);
    w.seqs = calloc((size_t)sequences, sizeof *w.seqs);
    w.items = calloc((size_t)sequences, sizeof *w.items);
    w.picks = calloc((size_t)sequences, sizeof *w.picks);
    int rc = -ENOMEM;
    if (!ids || !w.seqs || !w.items || !w.picks)
        goto cleanup;
    rc = 0;
    for (int i = 0; i < history + tokens; i++)
        ids[i] = (engine_token)((i * 7919LL + 13) % info->n_vocab);
    for (int i = 0; rc == 0 && i < sequences; i++) {
        if (!(w.seqs[i] = engine_seq_new(e))) {
            rc = -ENOMEM;
            break;
        }
        rc = begin_sequence(&w, w.seqs[i], ids);
        w.picks[i] = (struct engine_pick){.settings = &settings};
        w.items[i] =
            (struct engine_step_item){.seq = w.seqs[i], .tokens = ids + history, .n = tokens, .pick = &w.picks[i]};
    }
    if (rc == 0)
        rc = measure(&w, out);
cleanup:
    for (int i = 0; w.seqs && i < sequences; i++)
        engine_seq_free(w.seqs[i]);
    free(w.seqs);
    free(w.items);
    free(w.picks);
    free(ids);
    return rc;
}

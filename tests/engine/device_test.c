/* device_test.c - what the engine promises a backend whose device is not the host: operations get memory of the device,
 * or pinned memory where they say so; nothing is allocated and nobody waits while a step is put together; and imports,
 * exports and steps are in order. The backend is the CPU's, behind a table that looks at every call. */
#include "engine/model/model.h"
#include "kernels/backend.h"
#include "tests/engine/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_AREAS 64

static const struct kernels_ops *real;

static struct {
    struct area {
        const uint8_t *p;
        size_t bytes;
        enum kernels_place place;
    } areas[MAX_AREAS];
    int n_areas;
    bool in_step;                           /* between begin() and end() */
    bool quiet;                             /* nothing may be allocated or waited for */
    int steps, operations, moves, n_wanted; /* rows that the last batch wants */
    uint64_t awaitable;                     /* 0, or the last import that the host and steps may wait for */
    uint64_t events[3], waited[3][3];       /* by stream: recorded; and the latest of each that it waits for */
    const struct kernels_kv *layers;
} seen;

static void must_be(enum kernels_place place, const void *p, size_t bytes, const char *what)
{
    const uint8_t *at = p;
    for (int i = 0; i < seen.n_areas; i++) {
        const struct area *a = &seen.areas[i];
        if (a->place == place && at >= a->p && at + bytes <= a->p + a->bytes)
            return;
    }
    fail_msg("%s: %zu bytes at %p are not the %s memory that an operation takes", what, bytes, p,
             place == KERNELS_PINNED ? "pinned" : "device's");
}

static void must_be_floats(const void *p, int rows, int cols, const char *what)
{
    must_be(KERNELS_DEVICE, p, (size_t)rows * (size_t)cols * sizeof(float), what);
}

static void operation(void)
{
    assert_true(seen.in_step);
    seen.operations++;
}

/* ---- memory and streams ---- */

static void *check_alloc(struct kernels *k, enum kernels_place place, size_t bytes)
{
    assert_false(seen.quiet);
    void *p = real->alloc(k, place, bytes);
    assert_true(seen.n_areas < MAX_AREAS);
    if (p)
        seen.areas[seen.n_areas++] = (struct area){p, bytes, place};
    return p;
}

static void check_release(struct kernels *k, enum kernels_place place, void *p, size_t bytes)
{
    assert_false(seen.quiet);
    for (int i = 0; p && i < seen.n_areas; i++)
        if (seen.areas[i].p == p) {
            assert_int_equal(seen.areas[i].place, place);
            assert_int_equal(seen.areas[i].bytes, bytes);
            seen.areas[i] = seen.areas[--seen.n_areas];
            real->release(k, place, p, bytes);
            return;
        }
    assert_null(p);
}

static void check_upload(struct kernels *k, void *to, const void *from, size_t bytes)
{
    assert_false(seen.quiet);
    must_be(KERNELS_DEVICE, to, bytes, "upload");
    real->upload(k, to, from, bytes);
}

static void check_copy(struct kernels *k, enum kernels_stream stream, void *to, const void *from, size_t bytes)
{
    must_be(KERNELS_DEVICE, from, bytes, "copy from");
    bool inside = false;
    for (int i = 0; i < seen.n_areas; i++)
        inside |= (uint8_t *)to >= seen.areas[i].p && (uint8_t *)to + bytes <= seen.areas[i].p + seen.areas[i].bytes;
    assert_true(inside);
    real->copy(k, stream, to, from, bytes);
}

static void check_zero(struct kernels *k, enum kernels_stream stream, void *p, size_t bytes)
{
    must_be(KERNELS_DEVICE, p, bytes, "zero");
    real->zero(k, stream, p, bytes);
}

/* Event n of stream s is 4 n + s; they rise within a stream, as the engine may count on. */
static kernels_event check_record(struct kernels *k, enum kernels_stream stream)
{
    (void)k;
    return ++seen.events[stream] * 4 + stream;
}

static void check_after(struct kernels *k, enum kernels_stream stream, kernels_event event)
{
    (void)k;
    if (event / 4 > seen.waited[stream][event % 4])
        seen.waited[stream][event % 4] = event / 4;
}

static int check_wait(struct kernels *k, kernels_event event, int timeout_ms)
{
    (void)k, (void)timeout_ms;
    assert_false(seen.quiet);
    assert_true(event / 4 <= seen.events[event % 4]);
    assert_true(!seen.awaitable || event % 4 != KERNELS_IN || event / 4 <= seen.awaitable);
    return 0;
}

/* ---- operations ---- */

static int check_begin(struct kernels *k, const struct kernels_batch *b)
{
    assert_false(seen.in_step);
    assert_true(b->rows > 0 && b->n_runs > 0);
    for (int i = 0; i < b->n_wanted; i++)
        assert_in_range(b->wanted[i], 0, b->rows - 1);
    /* All imports and exports so far: this engine has one sequence at a time. */
    if (seen.awaitable) /* but for the imports that are another sequence's */
        assert_true(seen.waited[KERNELS_COMPUTE][KERNELS_IN] <= seen.awaitable);
    else
        assert_true(seen.waited[KERNELS_COMPUTE][KERNELS_IN] == seen.events[KERNELS_IN]);
    assert_true(seen.waited[KERNELS_COMPUTE][KERNELS_OUT] == seen.events[KERNELS_OUT]);
    seen.in_step = true;
    seen.n_wanted = b->n_wanted;
    seen.steps++;
    return real->begin(k, b);
}

static void check_end(struct kernels *k)
{
    assert_true(seen.in_step);
    seen.in_step = false;
    real->end(k);
}

static void check_embed(struct kernels *k, const struct kernels_matrix *w, float scale, float *out)
{
    operation();
    must_be_floats(out, 1, w->cols, "embed");
    real->embed(k, w, scale, out);
}

static void check_rope_table(struct kernels *k, const double *inv_freq, int rot, double magnitude, bool scaled,
                             float *table)
{
    operation();
    must_be(KERNELS_DEVICE, inv_freq, (size_t)rot / 2 * sizeof *inv_freq, "inv_freq");
    must_be_floats(table, 1, rot, "rope_table");
    real->rope_table(k, inv_freq, rot, magnitude, scaled, table);
}

static void must_be_acts(const struct kernels_acts *a, int n, const char *what)
{
    must_be_floats(a->x, n, a->cols, what);
    assert_true(a->forms != 0 && a->forms <= (KERNELS_FLOATS | KERNELS_QUANTS));
}

/* The forms that were asked for are those that the products take. */
static void check_norm(struct kernels *k, const float *x, int n, const float *weight, float eps,
                       const struct kernels_acts *out)
{
    operation();
    must_be_floats(x, n, out->cols, "norm of");
    must_be_acts(out, n, "norm");
    real->norm(k, x, n, weight, eps, out);
}

static void check_add_norm(struct kernels *k, float *y, int n, int d, const float *weight, float eps, float *x)
{
    operation();
    must_be_floats(y, n, d, "add_norm of");
    must_be_floats(x, n, d, "add_norm to");
    real->add_norm(k, y, n, d, weight, eps, x);
}

static void check_linear(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_linear *jobs,
                         int n_jobs)
{
    operation();
    must_be_acts(in, n, "product of");
    for (int i = 0; i < n_jobs; i++) {
        assert_true(kernels_form(jobs[i].w->type) & in->forms);
        must_be_floats(jobs[i].y, n, jobs[i].w->rows, "product");
    }
    real->linear(k, in, n, jobs, n_jobs);
}

static void check_gated(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_matrix *gate,
                        const struct kernels_matrix *up, enum kernels_glu_kind kind, const struct kernels_acts *out)
{
    operation();
    must_be_acts(in, n, "gated of");
    must_be_acts(out, n, "gated");
    assert_true((kernels_form(gate->type) & in->forms) && (kernels_form(up->type) & in->forms));
    real->gated(k, in, n, gate, up, kind, out);
}

static void check_attn_in(struct kernels *k, const struct kernels_attn_in *a)
{
    operation();
    must_be_floats(a->q, 1, a->heads * a->kv.head_dim, "queries");
    must_be_floats(a->key, 1, a->kv.kv_heads * a->kv.head_dim, "keys");
    must_be_floats(a->value, 1, a->kv.kv_heads * a->kv.head_dim, "values");
    if (a->q_rope) {
        must_be_floats(a->q_rope, 1, a->rot, "rotation of queries");
        must_be_floats(a->k_rope, 1, a->rot, "rotation of keys");
    }
    must_be(KERNELS_DEVICE, a->kv.pool, a->kv.page_bytes, "pool");
    real->attn_in(k, a);
}

static void check_attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_acts *out)
{
    operation();
    assert_int_equal(out->cols, a->heads * a->kv.head_dim);
    must_be_floats(a->q, 1, out->cols, "queries");
    must_be_acts(out, 1, "attention");
    real->attention(k, a, out);
}

static void check_gather(struct kernels *k, const float *x, const struct kernels_acts *out)
{
    operation();
    must_be_floats(x, 1, out->cols, "gather of");
    must_be_acts(out, 1, "gather");
    real->gather(k, x, out);
}

static void check_mixture(struct kernels *k, const struct kernels_acts *in, int n, const struct kernels_mixture *m,
                          float *y)
{
    operation();
    must_be_acts(in, n, "mixture of");
    must_be_floats(m->logits, n, m->gate->experts, "router");
    must_be_floats(y, n, in->cols, "mixture");
    real->mixture(k, in, n, m, y);
}

/* Behind the pass, from the rows that it wanted. */
static void check_pick(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                       struct kernels_picked *out)
{
    assert_false(seen.in_step);
    assert_true(n > 0);
    for (int i = 0; i < n; i++)
        assert_in_range(picks[i].row, 0, seen.n_wanted - 1);
    must_be_floats(logits, seen.n_wanted, vocab, "logits");
    must_be(KERNELS_PINNED, out, (size_t)n * sizeof *out, "picks");
    real->pick(k, logits, vocab, picks, n, out);
}

static size_t staged(const struct kernels_kv *layers, int n_layers, int n)
{
    size_t bytes = 0;
    for (int l = 0; l < n_layers; l++)
        bytes += 2 * (size_t)(layers[l].kv_heads * layers[l].head_dim * n) * kernels_kv_width(layers[l].type);
    return bytes;
}

static void check_export(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, void *staging)
{
    assert_false(seen.in_step);
    must_be(KERNELS_PINNED, staging, staged(layers, n_layers, n), "export");
    assert_true(seen.waited[KERNELS_OUT][KERNELS_IN] == seen.events[KERNELS_IN]);
    seen.moves++;
    real->kv_export(k, layers, n_layers, pages, first, n, staging);
}

static void check_import(struct kernels *k, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, const void *staging)
{
    assert_false(seen.in_step);
    must_be(KERNELS_PINNED, staging, staged(layers, n_layers, n), "import");
    assert_true(seen.waited[KERNELS_IN][KERNELS_OUT] == seen.events[KERNELS_OUT]);
    seen.moves++;
    real->kv_import(k, layers, n_layers, pages, first, n, staging);
}

/* ---- the test ---- */

static struct kernels_ops checked_ops(void)
{
    struct kernels_ops ops = *real;
    ops.host = false;
    ops.alloc = check_alloc;
    ops.release = check_release;
    ops.upload = check_upload;
    ops.copy = check_copy;
    ops.zero = check_zero;
    ops.record = check_record;
    ops.after = check_after;
    ops.wait = check_wait;
    ops.begin = check_begin;
    ops.end = check_end;
    ops.embed = check_embed;
    ops.rope_table = check_rope_table;
    ops.norm = check_norm;
    ops.add_norm = check_add_norm;
    ops.linear = check_linear;
    ops.gated = check_gated;
    ops.attn_in = check_attn_in;
    ops.attention = check_attention;
    ops.gather = check_gather;
    ops.mixture = check_mixture;
    ops.pick = check_pick;
    ops.kv_export = check_export;
    ops.kv_import = check_import;
    ops.kv_fill = NULL; /* a host's */
    return ops;
}

/* Makes the engine's buffers and pages anew, under the eyes of the checking table. */
static void put_under_watch(struct engine *e, const struct kernels_ops *ops)
{
    char err[256];
    step_scratch_close(e);
    kv_pools_close(e);
    memset(&seen, 0, sizeof seen);
    e->ops = ops;
    kv_pools_size(e);
    assert_int_equal(kv_pools_open(e, FIXTURE_KV_BYTES, err, sizeof err), 0);
    assert_int_equal(step_scratch_open(e), 0);
}

static void step(struct engine *e, struct engine_seq *s, const engine_token *tokens, int n, struct engine_pick *pick,
                 const float **logits)
{
    int want = n - 1;
    struct engine_step_item item = {
        .seq = s, .tokens = tokens, .n = n, .pick = pick, .want = &want, .n_want = logits != NULL};
    seen.quiet = true;
    assert_int_equal(engine_step_start(e, &item, 1), 0);
    seen.quiet = false;
    assert_int_equal(engine_step_wait(e, logits), 0);
    assert_int_equal(item.result, 0);
}

static void test_what_operations_are_given(void **state)
{
    (void)state;
    enum { N = 150 };
    const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    for (int arch = 0; arch < TINY_ARCHS; arch++) {
        struct fixture f = fixture_open(tiny_model_of((enum tiny_arch)arch), (struct fixture_opts){0});
        engine_token tokens[N];
        const float *logits;
        struct engine_pick pick = {.settings = &greedy};
        tiny_model_tokens(&f.m, 5, N, tokens);
        struct fixture_truth truth = fixture_truth_of(f.e, tokens, N);
        real = f.e->ops;
        const struct kernels_ops ops = checked_ops();
        put_under_watch(f.e, &ops);

        struct engine_seq *s = fixture_seq(f.e);
        step(f.e, s, tokens, 100, NULL, NULL);
        size_t bytes;
        void *one = fixture_export(s, 99, 1, &bytes);
        assert_int_equal(engine_kv_import(s, tokens + 100, 1, one), 0);
        free(one);
        assert_int_equal(engine_seq_truncate(s, 100), 0);
        step(f.e, s, tokens + 100, 49, &pick, &logits);
        fixture_same_logits(&truth, logits, 148, 1, "under watch");
        step(f.e, s, tokens + 149, 1, &pick, NULL);
        fixture_same_kv(&truth, s, 0, N, "under watch");
        struct engine_seq *restored = fixture_seq(f.e);
        /* Pieces follow each other without waiting for any of them. */
        enum { PIECE = N / KV_STAGINGS };
        void *pieces[KV_STAGINGS];
        for (int i = 0; i < KV_STAGINGS; i++)
            pieces[i] = fixture_export(s, i * PIECE, PIECE, &bytes);
        seen.awaitable = seen.events[KERNELS_IN];
        for (int i = 0; i < KV_STAGINGS; i++) {
            assert_int_equal(engine_kv_import(restored, tokens + i * PIECE, PIECE, pieces[i]), 0);
            free(pieces[i]);
        }
        step(f.e, s, tokens, 1, &pick, NULL); /* nor does another one's step */
        seen.awaitable = 0;
        fixture_same_kv(&truth, restored, 0, N, "imported under watch");
        assert_int_equal(seen.steps, 4);
        assert_true(seen.operations > 3 * 6 * f.e->model.n_layers && seen.moves == 4 + 2 * KV_STAGINGS);
        engine_seq_free(s);
        engine_seq_free(restored);

        step_scratch_close(f.e);
        kv_pools_close(f.e);
        assert_int_equal(seen.n_areas, 0);
        f.e->ops = real;
        fixture_truth_free(&truth);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_operations_are_given)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

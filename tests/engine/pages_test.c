/* pages_test.c - KV pages and sequences: what is cut, shared, dropped, copied out and put back gives the bits that a
 * sequence gives which never was, and no page is lost or shows what another left in it. */
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS 600

static void *need(void *p)
{
    assert_non_null(p);
    return p;
}

/* An engine, tokens, and what they give. `other` has the same first tokens up to FORK_AT. */
struct scene {
    struct fixture f;
    engine_token tokens[TOKENS];
    struct fixture_truth truth;
    float *logits; /* scratch [TOKENS][n_vocab] */
};

static struct scene scene_open(struct tiny_model m, struct fixture_opts o)
{
    struct scene c = {.f = fixture_open(m, o)};
    tiny_model_tokens(&m, 1, TOKENS, c.tokens);
    c.truth = fixture_truth_of(c.f.e, c.tokens, TOKENS);
    c.logits = need(malloc((size_t)TOKENS * (size_t)m.n_vocab * sizeof *c.logits));
    return c;
}

static void scene_close(struct scene *c)
{
    free(c->logits);
    fixture_truth_free(&c->truth);
    fixture_close(&c->f);
}

static const struct fixture_opts FAST = {.backend = "auto", .threads = 2};

/* Runs the rest of the scene's tokens and compares everything. */
static void finish(struct scene *c, struct engine_seq *s, int chunk, const char *what)
{
    int at = engine_seq_length(s);
    assert_memory_equal(engine_seq_tokens(s), c->tokens, (size_t)at * sizeof *c->tokens);
    fixture_run(c->f.e, s, c->tokens + at, TOKENS - at, chunk, c->logits);
    fixture_same_logits(&c->truth, c->logits, at, TOKENS - at, what);
    assert_int_equal(engine_seq_length(s), TOKENS);
    assert_memory_equal(engine_seq_tokens(s), c->tokens, sizeof c->tokens);
}

static size_t used(const struct engine *e)
{
    return engine_kv_use(e).used_bytes;
}

static const int BORDERS[] = {0, 1, 63, 64, 100, 255, 256, 257, 511, 512, 599, 600};
#define N_BORDERS ((int)(sizeof BORDERS / sizeof *BORDERS))

/* ---- truncate and fork ---- */

static void test_truncate(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct scene c = scene_open(tiny_model_of(a), FAST);
        struct engine_seq *s = fixture_seq(c.f.e), *fresh;
        engine_token others[TOKENS];
        tiny_model_tokens(&c.f.m, 77, TOKENS, others);
        for (int i = 0; i < N_BORDERS; i++) {
            int n = BORDERS[i];
            char what[64];
            snprintf(what, sizeof what, "truncated to %d", n);
            fixture_run(c.f.e, s, c.tokens + engine_seq_length(s), n - engine_seq_length(s), 256, NULL);
            fixture_run(c.f.e, s, others, TOKENS - n, 256, NULL); /* an answer that is thrown away */
            assert_int_equal(engine_seq_truncate(s, n), 0);
            assert_int_equal(engine_seq_length(s), n);
            size_t left = used(c.f.e);
            fresh = fixture_seq(c.f.e);
            fixture_run(c.f.e, fresh, c.tokens, n, 256, NULL);
            assert_int_equal(used(c.f.e), 2 * left); /* as many pages as one that never was longer */
            engine_seq_free(fresh);
            finish(&c, s, 97, what);
            fixture_same_kv(&c.truth, s, 0, TOKENS, what);
            assert_int_equal(engine_seq_truncate(s, n), 0);
        }
        assert_int_equal(engine_seq_truncate(s, -1), -EINVAL);
        assert_int_equal(engine_seq_truncate(s, TOKENS + 1), -EINVAL);
        assert_int_equal(engine_seq_length(s), TOKENS);
        engine_seq_free(s);
        scene_close(&c);
    }
}

/* Infinite and NaN keys and values that a failed answer left in a page reach nobody. */
static void test_what_was_cut_off_is_never_read(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct scene c = scene_open(tiny_model_of(a), FAST);
        size_t bytes = 150 * engine_info(c.f.e)->kv_token_bytes;
        uint8_t *poison = need(malloc(bytes));
        memset(poison, 0xff, bytes);
        struct engine_seq *s = fixture_seq(c.f.e);
        for (int n = 1; n < TOKENS - 150; n += 83) {
            fixture_run(c.f.e, s, c.tokens + engine_seq_length(s), n - engine_seq_length(s), 64, NULL);
            assert_int_equal(engine_kv_import(s, c.tokens, 150, poison), 0);
            assert_int_equal(engine_seq_truncate(s, n), 0);
        }
        finish(&c, s, 1, "after poison");
        fixture_same_kv(&c.truth, s, 0, TOKENS, "after poison");
        engine_seq_free(s);
        free(poison);
        scene_close(&c);
    }
}

static void test_fork(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct scene c = scene_open(tiny_model_of(a), FAST);
        for (int i = 0; i < N_BORDERS; i++) {
            int n = BORDERS[i];
            char what[64];
            snprintf(what, sizeof what, "forked at %d", n);
            engine_token others[TOKENS];
            tiny_model_tokens(&c.f.m, 99, TOKENS, others);
            memcpy(others, c.tokens, (size_t)n * sizeof *others);
            struct fixture_truth truth = fixture_truth_of(c.f.e, others, TOKENS);

            struct engine_seq *parent = fixture_seq(c.f.e);
            fixture_run(c.f.e, parent, c.tokens, (n + TOKENS) / 2, 256, NULL);
            size_t before = used(c.f.e);
            struct engine_seq *child = engine_seq_fork(parent, n);
            assert_non_null(child);
            assert_int_equal(used(c.f.e), before); /* shared pages are counted once */
            assert_int_equal(engine_seq_length(child), n);
            int at = n;
            while (at < TOKENS) { /* both go on, in turn */
                int part = TOKENS - at < 50 ? TOKENS - at : 50;
                fixture_run(c.f.e, child, others + at, part, part, c.logits);
                fixture_same_logits(&truth, c.logits, at, part, what);
                at += part;
                int length = engine_seq_length(parent);
                part = TOKENS - length < 31 ? TOKENS - length : 31;
                fixture_run(c.f.e, parent, c.tokens + length, part, 31, c.logits);
                fixture_same_logits(&c.truth, c.logits, length, part, what);
            }
            fixture_same_kv(&c.truth, parent, 0, engine_seq_length(parent), what);
            engine_seq_free(parent); /* the child keeps what they share */
            fixture_same_kv(&truth, child, 0, TOKENS, what);

            /* The parent writes first into the page that both end in. */
            parent = engine_seq_fork(child, n);
            assert_non_null(parent);
            finish(&c, parent, 64, what);
            fixture_same_kv(&truth, child, 0, TOKENS, what);
            engine_seq_free(child);
            fixture_same_kv(&c.truth, parent, 0, TOKENS, what);
            engine_seq_free(parent);
            fixture_truth_free(&truth);
            assert_int_equal(used(c.f.e), 0);
        }
        struct engine_seq *s = fixture_seq(c.f.e);
        fixture_run(c.f.e, s, c.tokens, 10, 10, NULL);
        assert_null(engine_seq_fork(s, -1));
        assert_null(engine_seq_fork(s, 11));
        engine_seq_free(s);
        scene_close(&c);
    }
}

static void test_a_page_has_so_many_users_at_most(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_GEMMA3), FAST);
    struct engine_seq **forks = need(calloc(UINT16_MAX + 1, sizeof *forks));
    engine_token tokens[65] = {1, 2, 3};
    forks[0] = fixture_seq(f.e);
    fixture_run(f.e, forks[0], tokens, 65, 65, NULL);
    for (int i = 1; i < UINT16_MAX; i++)
        forks[i] = need(engine_seq_fork(forks[0], 65));
    size_t before = used(f.e);
    assert_null(engine_seq_fork(forks[0], 65));
    assert_int_equal(used(f.e), before);
    engine_seq_free(forks[9]);
    forks[9] = need(engine_seq_fork(forks[0], 65));
    for (int i = 0; i < UINT16_MAX; i++)
        engine_seq_free(forks[i]);
    free(forks);
    fixture_close(&f);
}

/* ---- export and import ---- */

static void put_back(struct scene *c, struct engine_seq *s, int first, int n)
{
    struct engine_seq *whole = fixture_seq(c->f.e);
    assert_int_equal(engine_kv_import(whole, c->tokens, TOKENS, c->truth.kv), 0);
    size_t bytes;
    void *part = fixture_export(whole, first, n, &bytes);
    assert_int_equal(engine_kv_import(s, c->tokens + first, n, part), 0);
    free(part);
    engine_seq_free(whole);
}

static void test_export_and_import(void **state)
{
    (void)state;
    static const int PIECES[] = {1, 16, 77, 256, 512};
    const char *const kv_types[] = {"bf16", "f16"};
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct fixture_opts o = FAST;
        o.kv_type = kv_types[a != TINY_QWEN2];
        struct scene c = scene_open(tiny_model_of(a), o);
        for (size_t p = 0; p < sizeof PIECES / sizeof *PIECES; p++) {
            char what[64];
            snprintf(what, sizeof what, "imported in pieces of %d", PIECES[p]);
            struct engine_seq *s = fixture_seq(c.f.e);
            int upto = PIECES[p] == 1 ? 70 : 512;
            for (int at = 0, n; at < upto; at += n) {
                n = upto - at < PIECES[p] ? upto - at : PIECES[p];
                put_back(&c, s, at, n);
            }
            fixture_same_kv(&c.truth, s, 0, upto, what);
            fixture_same_kv(&c.truth, s, 33, upto - 40, what);
            finish(&c, s, 60, what);
            fixture_same_kv(&c.truth, s, 0, TOKENS, what);
            engine_seq_free(s);
        }
        /* A fork at token 300: the segment [256, 512) is put back whole, and cut. */
        struct engine_seq *s = fixture_seq(c.f.e);
        put_back(&c, s, 0, 256);
        put_back(&c, s, 256, 256);
        assert_int_equal(engine_seq_truncate(s, 300), 0);
        finish(&c, s, 1, "a segment cut at 300");
        fixture_same_kv(&c.truth, s, 0, TOKENS, "a segment cut at 300");
        engine_seq_free(s);
        scene_close(&c);
    }
}

static void test_an_import_into_a_fork_leaves_the_parent(void **state)
{
    (void)state;
    struct scene c = scene_open(tiny_model_of(TINY_GEMMA3), FAST);
    engine_token others[TOKENS];
    tiny_model_tokens(&c.f.m, 55, TOKENS, others);
    memcpy(others, c.tokens, 100 * sizeof *others);
    struct engine_seq *parent = fixture_seq(c.f.e);
    fixture_run(c.f.e, parent, others, TOKENS, 256, NULL);
    size_t bytes;
    void *before = fixture_export(parent, 0, TOKENS, &bytes);
    struct engine_seq *child = need(engine_seq_fork(parent, 100));
    put_back(&c, child, 100, 300);
    finish(&c, child, 80, "imported into a fork");
    void *after = fixture_export(parent, 0, TOKENS, &bytes);
    fixture_same(after, before, bytes, "the parent");
    free(before);
    free(after);
    engine_seq_free(child);
    engine_seq_free(parent);
    scene_close(&c);
}

static void test_ranges_of_export_and_import(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_QWEN2), (struct fixture_opts){.ctx_tokens = 100});
    struct engine_seq *s = fixture_seq(f.e);
    size_t token_bytes = engine_info(f.e)->kv_token_bytes;
    engine_token tokens[101] = {0};
    uint8_t *buf = need(calloc(101, token_bytes));
    fixture_run(f.e, s, tokens, 70, 70, NULL);
    assert_int_equal(engine_kv_export(s, 0, 70, buf), 0);
    assert_int_equal(engine_kv_export(s, 0, 71, buf), -ERANGE);
    assert_int_equal(engine_kv_export(s, 69, 2, buf), -ERANGE);
    assert_int_equal(engine_kv_export(s, 70, 1, buf), -ERANGE);
    assert_int_equal(engine_kv_export(s, -1, 2, buf), -ERANGE);
    assert_int_equal(engine_kv_export(s, INT_MAX, INT_MAX, buf), -ERANGE);
    assert_int_equal(engine_kv_import(s, tokens, 0, buf), -EINVAL);
    assert_int_equal(engine_kv_import(s, tokens, 31, buf), -EOVERFLOW);
    assert_int_equal(engine_kv_import(s, tokens, INT_MAX, buf), -EOVERFLOW);
    assert_int_equal(engine_seq_length(s), 70);
    assert_int_equal(engine_kv_import(s, tokens, 30, buf), 0);
    assert_int_equal(engine_seq_length(s), 100);
    struct engine_step_item one = {.seq = s, .tokens = tokens, .n = 1};
    const float *logits;
    assert_int_equal(fixture_step(f.e, &one, 1, &logits), 0);
    assert_int_equal(one.result, -EOVERFLOW);
    assert_int_equal(engine_seq_length(s), 100);
    engine_seq_free(s);
    free(buf);
    fixture_close(&f);
}

/* ---- sliding windows ---- */

static void test_settling_changes_no_bit(void **state)
{
    (void)state;
    static const int CHUNKS[] = {1, 33, 64, 200};
    static const int WINDOWS[] = {1, 45, 64, 300};
    for (size_t w = 0; w < sizeof WINDOWS / sizeof *WINDOWS; w++) {
        struct tiny_model m = tiny_model_of(TINY_GEMMA3);
        m.window = WINDOWS[w];
        struct scene c = scene_open(m, FAST);
        for (size_t i = 0; i < sizeof CHUNKS / sizeof *CHUNKS; i++) {
            char what[64];
            snprintf(what, sizeof what, "window of %d, settled every %d", m.window, CHUNKS[i]);
            struct engine_seq *s = fixture_seq(c.f.e), *kept = fixture_seq(c.f.e);
            fixture_run(c.f.e, kept, c.tokens, TOKENS, 256, NULL);
            size_t whole = used(c.f.e);
            for (int at = 0, n; at < TOKENS; at += n) {
                n = TOKENS - at < CHUNKS[i] ? TOKENS - at : CHUNKS[i];
                fixture_run(c.f.e, s, c.tokens + at, n, n, c.logits);
                fixture_same_logits(&c.truth, c.logits, at, n, what);
                engine_seq_settle(s);
            }
            fixture_same_kv(&c.truth, s, 512, TOKENS - 512, what); /* the unfinished run can still be stored */
            uint8_t *buf = need(malloc((size_t)TOKENS * engine_info(c.f.e)->kv_token_bytes));
            assert_int_equal(engine_kv_export(s, 0, 256, buf), -ERANGE);
            assert_int_equal(engine_kv_export(s, 0, TOKENS, buf), -ERANGE);
            assert_true(used(c.f.e) < 2 * whole);
            free(buf);
            engine_seq_free(s);
            engine_seq_free(kept);
        }
        scene_close(&c);
    }
}

static void test_truncate_and_fork_behind_a_settled_window(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3); /* window of 45 */
    struct scene c = scene_open(m, FAST);
    for (int length = 130; length <= TOKENS; length += 47) {
        struct engine_seq *s = fixture_seq(c.f.e);
        fixture_run(c.f.e, s, c.tokens, length, 256, NULL);
        engine_seq_settle(s);
        /* Gone are whole pages before the window of position `length`, but none of the unfinished run. */
        int run = length / 256 * 256, seen = length - m.window + 1;
        int gone = (run < seen ? run : seen) / 64 * 64;
        int behind = gone ? gone + m.window - 1 : 0; /* the first position that sees none of it */
        if (gone) {
            assert_int_equal(engine_seq_truncate(s, behind - 1), -ERANGE);
            assert_int_equal(engine_seq_truncate(s, 1), -ERANGE);
            assert_null(engine_seq_fork(s, behind - 1));
        }
        assert_int_equal(engine_seq_length(s), length);
        fixture_same_kv(&c.truth, s, gone, length - gone, "a refused truncate");
        struct engine_seq *fork = behind <= length ? engine_seq_fork(s, behind) : NULL;
        if (behind <= length) {
            assert_non_null(fork);
            assert_int_equal(engine_seq_truncate(s, behind), 0);
            finish(&c, s, 90, "truncated to the window");
            finish(&c, fork, 128, "forked at the window");
        }
        engine_seq_free(fork);
        /* From nothing again: everything that was cut is free to be anything else. */
        assert_int_equal(engine_seq_truncate(s, 0), gone && engine_seq_length(s) ? 0 : 0);
        assert_int_equal(engine_seq_length(s), 0);
        finish(&c, s, 256, "truncated to nothing");
        engine_seq_free(s);
    }
    scene_close(&c);
}

/* A restore puts back segment by segment and drops what the window has left behind, in fewer pages than the whole. */
static void test_import_and_settle(void **state)
{
    (void)state;
    struct scene c = scene_open(tiny_model_of(TINY_GEMMA3), FAST);
    struct engine_seq *s = fixture_seq(c.f.e);
    put_back(&c, s, 0, 256);
    engine_seq_settle(s);
    put_back(&c, s, 256, 256);
    engine_seq_settle(s);
    assert_int_equal(c.f.e->pools[MODEL_WINDOW].n_pages - c.f.e->pools[MODEL_WINDOW].n_free, 1);
    put_back(&c, s, 512, 40);
    finish(&c, s, 13, "restored with settling");
    engine_seq_free(s);
    scene_close(&c);
}

/* ---- budget ---- */

static void test_no_space(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    struct fixture f = fixture_open(m, (struct fixture_opts){.kv_bytes = 1 << 20, .ctx_tokens = 500});
    size_t budget = engine_kv_use(f.e).budget_bytes;
    assert_true(budget <= 1 << 20 && budget > 1 << 19);
    assert_int_equal(engine_info(f.e)->kv_bytes, budget);
    engine_token tokens[500];
    tiny_model_tokens(&m, 8, 500, tokens);
    struct fixture_truth truth = fixture_truth_of(f.e, tokens, 500);
    struct engine_seq *s = fixture_seq(f.e), *others[64] = {NULL};
    fixture_run(f.e, s, tokens, 100, 100, NULL);
    int n = 0;
    for (;; n++) {
        assert_true(n < 64);
        others[n] = fixture_seq(f.e);
        bool fits = engine_kv_fits(f.e, others[n], 130);
        assert_int_equal(fits, engine_kv_fits(f.e, NULL, 130));
        struct engine_step_item item = {.seq = others[n], .tokens = tokens, .n = 130};
        const float *logits;
        assert_int_equal(fixture_step(f.e, &item, 1, &logits), 0);
        assert_int_equal(item.result, fits ? 0 : -ENOSPC);
        if (!fits)
            break;
    }
    assert_true(n > 1);
    assert_int_equal(engine_seq_length(others[n]), 0);
    size_t full = used(f.e);
    assert_true(full <= budget);
    uint8_t *buf = need(malloc(400 * engine_info(f.e)->kv_token_bytes));
    assert_false(engine_kv_fits(f.e, s, 400));
    assert_int_equal(engine_kv_import(s, tokens + 100, 400, buf), -ENOSPC);
    assert_int_equal(used(f.e), full);
    assert_int_equal(engine_seq_length(s), 100);
    fixture_same_kv(&truth, s, 0, 100, "after -ENOSPC");
    assert_true(engine_kv_fits(f.e, s, 28)); /* in the page that it has */
    fixture_run(f.e, s, tokens + 100, 28, 28, NULL);
    assert_int_equal(used(f.e), full);

    for (int i = 0; i <= n; i++)
        engine_seq_free(others[i]);
    fixture_run(f.e, s, tokens + 128, 500 - 128, 64, NULL);
    fixture_same_kv(&truth, s, 0, 500, "in pages that came back");
    free(buf);
    engine_seq_free(s);
    fixture_truth_free(&truth);
    fixture_close(&f);
}

/* A copy of a shared page needs a page: writing into it fails when there is none, and harms neither. */
static void test_no_space_for_a_copy(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    struct fixture f = fixture_open(m, (struct fixture_opts){.kv_bytes = 256 << 10, .ctx_tokens = 200});
    engine_token tokens[200];
    tiny_model_tokens(&m, 8, 200, tokens);
    struct fixture_truth truth = fixture_truth_of(f.e, tokens, 200);
    struct engine_seq *s = fixture_seq(f.e), *waste = fixture_seq(f.e);
    fixture_run(f.e, s, tokens, 100, 100, NULL);
    struct engine_seq *fork = need(engine_seq_fork(s, 90));
    uint8_t *zeros = need(calloc(64, engine_info(f.e)->kv_token_bytes));
    while (engine_kv_fits(f.e, waste, 64) && engine_seq_length(waste) < 128)
        assert_int_equal(engine_kv_import(waste, tokens, 64, zeros), 0);
    struct engine_seq *more[64];
    int n = 0;
    for (; engine_kv_fits(f.e, NULL, 1); n++) {
        assert_true(n < 64);
        more[n] = fixture_seq(f.e);
        assert_int_equal(engine_kv_import(more[n], tokens, 1, zeros), 0);
    }
    assert_false(engine_kv_fits(f.e, fork, 1));
    struct engine_step_item item = {.seq = fork, .tokens = tokens + 90, .n = 1};
    const float *logits;
    assert_int_equal(fixture_step(f.e, &item, 1, &logits), 0);
    assert_int_equal(item.result, -ENOSPC);
    fixture_same_kv(&truth, fork, 0, 90, "the fork");
    fixture_same_kv(&truth, s, 0, 100, "its parent");
    engine_seq_free(s); /* now the page is the fork's alone */
    assert_true(engine_kv_fits(f.e, fork, 1));
    fixture_run(f.e, fork, tokens + 90, 38, 38, NULL);
    fixture_same_kv(&truth, fork, 0, 128, "the fork");
    for (int i = 0; i < n; i++)
        engine_seq_free(more[i]);
    engine_seq_free(waste);
    engine_seq_free(fork);
    free(zeros);
    fixture_truth_free(&truth);
    fixture_close(&f);
}

static void test_fits_of_any_size(void **state)
{
    (void)state;
    struct fixture f = fixture_open(tiny_model_of(TINY_GEMMA3), (struct fixture_opts){.kv_bytes = 1 << 20});
    struct engine_seq *s = fixture_seq(f.e);
    engine_token tokens[70] = {0};
    fixture_run(f.e, s, tokens, 70, 70, NULL);
    int pages = f.e->pools[MODEL_FULL].n_free;
    assert_int_equal(f.e->pools[MODEL_WINDOW].n_free, pages);
    assert_true(engine_kv_fits(f.e, NULL, 0));
    assert_true(engine_kv_fits(f.e, NULL, pages * 64));
    assert_false(engine_kv_fits(f.e, NULL, pages * 64 + 1));
    assert_true(engine_kv_fits(f.e, s, pages * 64 + 58));
    assert_false(engine_kv_fits(f.e, s, pages * 64 + 59));
    assert_false(engine_kv_fits(f.e, s, INT_MAX));
    assert_false(engine_kv_fits(f.e, NULL, INT_MAX));
    /* What all others but some would leave. */
    struct engine_seq *fork = need(engine_seq_fork(s, 64)), *other = fixture_seq(f.e);
    struct engine_seq *const kept[] = {fork, s};
    fixture_run(f.e, other, tokens, 70, 70, NULL);
    assert_true(engine_kv_might_fit(f.e, kept, 2, pages * 64));
    assert_false(engine_kv_might_fit(f.e, kept, 2, pages * 64 + 1));
    assert_true(engine_kv_might_fit(f.e, kept, 1, (pages + 1) * 64));
    assert_false(engine_kv_might_fit(f.e, kept, 1, (pages + 1) * 64 + 1));
    assert_true(engine_kv_might_fit(f.e, NULL, 0, (pages + 2) * 64));
    assert_false(engine_kv_might_fit(f.e, NULL, 0, INT_MAX));
    engine_seq_free(fork);
    engine_seq_free(other);
    engine_seq_free(s);
    fixture_close(&f);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

static void test_pages_come_zeroed(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    struct fixture f = fixture_open(m, (struct fixture_opts){.kv_bytes = 1 << 20});
    struct engine_seq *s = fixture_seq(f.e);
    int n = f.e->pools[MODEL_FULL].n_pages * 64;
    uint8_t *secret = need(malloc((size_t)n * engine_info(f.e)->kv_token_bytes));
    engine_token *tokens = need(calloc((size_t)n, sizeof *tokens));
    memset(secret, 0x5a, (size_t)n * engine_info(f.e)->kv_token_bytes);
    n = n < engine_info(f.e)->ctx_tokens ? n : engine_info(f.e)->ctx_tokens;
    assert_int_equal(engine_kv_import(s, tokens, n, secret), 0);
    engine_seq_free(s);
    s = fixture_seq(f.e);
    /* One page that the import fills whole, and one of which it fills a slot. */
    memset(secret, 0, 65 * engine_info(f.e)->kv_token_bytes);
    assert_int_equal(engine_kv_import(s, tokens, 65, secret), 0);
    for (int g = 0; g < MODEL_GROUPS; g++) {
        const struct kv_pool *pool = &f.e->pools[g];
        for (int i = 0; i < 2; i++)
            assert_true(all_zero(pool->memory + (size_t)s->table[g].pages[i] * pool->page_bytes, pool->page_bytes));
    }
    engine_seq_free(s);
    free(secret);
    free(tokens);
    fixture_close(&f);
}

/* ---- restore ---- */

enum { RESTORED = 556, LAST = 512 }; /* tokens that come back, and where the last part begins */

/* Parts of a scene's KV, and what was asked of them. */
struct kept {
    const struct engine *e;
    int first, n, bad; /* bad: the array that cannot be had; -1: none */
    uint8_t *kv;
    int asked[64]; /* by array */
};

static const void *kept_rows(void *arg, int array, void *buf)
{
    struct kept *k = arg;
    int arrays;
    const struct engine_kv_array *layout = engine_kv_layout(k->e, &arrays);
    size_t at = 0, bytes = (size_t)layout[array].channels * (size_t)k->n * 2;
    for (int i = 0; i < array; i++)
        at += (size_t)layout[i].channels * (size_t)k->n * 2;
    k->asked[array]++;
    return array == k->bad ? NULL : memcpy(buf, k->kv + at, bytes);
}

static void keep(struct scene *c, struct kept kept[3], struct engine_kv_part parts[3])
{
    static const int firsts[] = {0, 256, LAST, RESTORED};
    struct engine_seq *whole = fixture_seq(c->f.e);
    assert_int_equal(engine_kv_import(whole, c->tokens, TOKENS, c->truth.kv), 0);
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        kept[i] = (struct kept){.e = c->f.e, .first = firsts[i], .n = firsts[i + 1] - firsts[i], .bad = -1};
        kept[i].kv = fixture_export(whole, kept[i].first, kept[i].n, &bytes);
        parts[i] = (struct engine_kv_part){c->tokens + firsts[i], kept[i].n, kept_rows, &kept[i]};
    }
    engine_seq_free(whole);
}

static void kept_free(struct kept kept[3])
{
    for (int i = 0; i < 3; i++)
        free(kept[i].kv);
}

/* At once or one by one, from nothing or behind what was computed: the bits are those of a sequence that never left,
 * and of window layers nothing was asked for that no query sees. */
static void check_restore(struct scene *c, const struct tiny_model *m, int computed, bool at_once)
{
    struct kept kept[3];
    struct engine_kv_part parts[3];
    int n = 0, first = computed ? 1 : 0, arrays;
    (void)engine_kv_layout(c->f.e, &arrays);
    keep(c, kept, parts);
    struct engine_seq *s = fixture_seq(c->f.e);
    if (computed)
        fixture_run(c->f.e, s, c->tokens, computed, computed, NULL);
    for (int i = first; i < 3; i += n) {
        assert_int_equal(engine_kv_restore(s, parts + i, at_once ? 3 - i : 1, RESTORED, &n), 0);
        assert_int_equal(n, at_once ? 3 - i : 1);
        if (i + n < 3 && m->window) {
            assert_int_equal(engine_seq_usable(s), computed);
            assert_null(engine_seq_fork(s, 300));
            assert_int_equal(engine_seq_truncate(s, LAST - 1), i + n == 1 ? -EINVAL : -ERANGE);
        }
    }
    assert_int_equal(engine_seq_length(s), RESTORED);
    assert_int_equal(engine_seq_usable(s), RESTORED);
    for (int i = first; i < 3; i++)
        for (int a = 0; a < arrays; a++)
            assert_int_equal(kept[i].asked[a], i == 2 || !tiny_model_windowed(m, a / 2));
    engine_seq_settle(s);
    finish(c, s, 7, "restored");
    engine_seq_free(s);
    kept_free(kept);
}

static void test_restore(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct tiny_model m = tiny_model_of(a);
        struct scene c = scene_open(m, FAST);
        size_t before = used(c.f.e);
        check_restore(&c, &m, 0, true);
        check_restore(&c, &m, 0, false);
        check_restore(&c, &m, 256, true);
        check_restore(&c, &m, 256, false);
        assert_int_equal(used(c.f.e), before);
        scene_close(&c);
    }
}

/* Of parts some of which cannot be had, those before the first such come in, and the sequence is as it was then. */
static void test_restore_of_damaged(void **state)
{
    (void)state;
    for (enum tiny_arch a = TINY_QWEN2; a <= TINY_GEMMA3; a += TINY_GEMMA3 - TINY_QWEN2) {
        struct scene c = scene_open(tiny_model_of(a), FAST);
        size_t before = used(c.f.e);
        for (int bad = 0; bad < 3; bad++) {
            struct kept kept[3];
            struct engine_kv_part parts[3];
            int n;
            keep(&c, kept, parts);
            kept[bad].bad = 3;
            struct engine_seq *s = fixture_seq(c.f.e);
            assert_int_equal(engine_kv_restore(s, parts, 3, 0, &n), -EBADMSG);
            assert_int_equal(n, bad);
            assert_int_equal(engine_seq_length(s), kept[bad].first);
            finish(&c, s, 100, "behind what was damaged");
            engine_seq_free(s);
            assert_int_equal(used(c.f.e), before);
            kept_free(kept);
        }
        scene_close(&c);
    }
}

/* As many parts as there are pages for. */
static void test_restore_without_pages(void **state)
{
    (void)state;
    struct scene c = scene_open(tiny_model_of(TINY_QWEN2), FAST);
    struct kept kept[3];
    struct engine_kv_part parts[3];
    int n, few = 7;
    keep(&c, kept, parts);
    struct kv_pool *pool = &c.f.e->pools[MODEL_FULL];
    int32_t hidden = pool->n_free - few;
    pool->n_free = few; /* of a stack: what lies below is as if it were in use */
    memmove(pool->free, pool->free + hidden, (size_t)few * sizeof *pool->free);
    struct engine_seq *s = fixture_seq(c.f.e);
    assert_int_equal(engine_kv_restore(s, parts, 3, RESTORED, &n), -ENOSPC);
    assert_int_equal(n, 1);
    assert_int_equal(engine_seq_length(s), 256);
    assert_int_equal(pool->n_free, few - 4);
    assert_int_equal(engine_kv_restore(s, parts + 1, 0, RESTORED, &n), 0);
    assert_int_equal(n, 0);
    parts[1].n = 0;
    assert_int_equal(engine_kv_restore(s, parts + 1, 1, RESTORED, &n), -EINVAL);
    engine_seq_free(s);
    assert_int_equal(pool->n_free, few);
    pool->n_free += hidden;
    kept_free(kept);
    scene_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_what_was_cut_off_is_never_read),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_a_page_has_so_many_users_at_most),
        cmocka_unit_test(test_export_and_import),
        cmocka_unit_test(test_an_import_into_a_fork_leaves_the_parent),
        cmocka_unit_test(test_ranges_of_export_and_import),
        cmocka_unit_test(test_settling_changes_no_bit),
        cmocka_unit_test(test_truncate_and_fork_behind_a_settled_window),
        cmocka_unit_test(test_import_and_settle),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_no_space_for_a_copy),
        cmocka_unit_test(test_fits_of_any_size),
        cmocka_unit_test(test_restore),
        cmocka_unit_test(test_restore_of_damaged),
        cmocka_unit_test(test_restore_without_pages),
        cmocka_unit_test(test_pages_come_zeroed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* engine_fixture.c - see engine_fixture.h. */
#include "tests/engine/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct engine *fixture_engine(const char *path, struct fixture_opts o)
{
    struct engine *e = NULL;
    char err[512] = "";
    const struct engine_opts opts = {
        .model_path = path,
        .backend = o.backend ? o.backend : "cpu-portable",
        .numerics = o.numerics,
        .host_layers = o.host_layers,
        .threads = o.threads ? o.threads : 1,
        .ctx_tokens = o.ctx_tokens,
        .kv_bytes = o.kv_bytes ? o.kv_bytes : FIXTURE_KV_BYTES,
        .kv_type = o.kv_type,
        .step_tokens = o.step_tokens,
        .step_logits = o.step_tokens ? o.step_tokens : 512,
    };
    if (engine_open(&opts, &e, err, sizeof err) != 0)
        fail_msg("%s", err);
    return e;
}

struct fixture fixture_open(struct tiny_model m, struct fixture_opts o)
{
    struct fixture f = {.m = m};
    f.path = tiny_model_save(&m);
    f.e = fixture_engine(f.path, o);
    return f;
}

void fixture_close(struct fixture *f)
{
    assert_int_equal(engine_kv_use(f->e).used_bytes, 0); /* every page came back */
    engine_close(f->e);
    tiny_model_remove(f->path);
}

struct engine_seq *fixture_seq(struct engine *e)
{
    struct engine_seq *s = engine_seq_new(e);
    assert_non_null(s);
    return s;
}

int fixture_step(struct engine *e, struct engine_step_item *items, int n_items, const float **logits)
{
    int rc = engine_step_start(e, items, n_items);
    return rc ? rc : engine_step_wait(e, logits);
}

void fixture_run(struct engine *e, struct engine_seq *s, const engine_token *tokens, int n, int chunk, float *out)
{
    int want[1024];
    size_t n_vocab = (size_t)engine_info(e)->n_vocab;
    for (int i = 0; i < 1024; i++)
        want[i] = i;
    for (int at = 0, part; at < n; at += part) {
        part = n - at < chunk ? n - at : chunk;
        struct engine_step_item item = {
            .seq = s, .tokens = tokens + at, .n = part, .want = want, .n_want = out ? part : 0, .result = -1};
        const float *logits = NULL;
        assert_int_equal(fixture_step(e, &item, 1, &logits), 0);
        assert_int_equal(item.result, 0);
        if (out)
            memcpy(out + (size_t)at * n_vocab, logits, (size_t)part * n_vocab * sizeof *out);
    }
}

void fixture_same(const void *got, const void *wanted, size_t bytes, const char *what)
{
    const uint8_t *g = got, *w = wanted;
    if (memcmp(g, w, bytes) == 0)
        return;
    size_t at = 0;
    while (g[at] == w[at])
        at++;
    fail_msg("%s: byte %zu of %zu differs", what, at, bytes);
}

struct fixture_truth fixture_truth_of(struct engine *e, const engine_token *tokens, int n)
{
    struct fixture_truth t = {.n = n, .n_vocab = engine_info(e)->n_vocab};
    struct engine_seq *s = fixture_seq(e);
    t.logits = malloc((size_t)n * (size_t)t.n_vocab * sizeof *t.logits);
    assert_non_null(t.logits);
    fixture_run(e, s, tokens, n, 256, t.logits);
    t.kv = fixture_export(s, 0, n, &t.kv_bytes);
    engine_seq_free(s);
    return t;
}

void fixture_truth_free(struct fixture_truth *t)
{
    free(t->logits);
    free(t->kv);
}

void fixture_same_logits(const struct fixture_truth *t, const float *logits, int first, int n, const char *what)
{
    assert_true(first + n <= t->n);
    for (int i = 0; i < n; i++) {
        char where[160];
        snprintf(where, sizeof where, "%s, logits at %d", what, first + i);
        fixture_same(logits + (size_t)i * (size_t)t->n_vocab, t->logits + (size_t)(first + i) * (size_t)t->n_vocab,
                     (size_t)t->n_vocab * sizeof *logits, where);
    }
}

/* Positions [first, first + n) out of an export of `all` positions, as an export of their own. */
static void *cut(const struct engine *e, const uint8_t *kv, int all, int first, int n)
{
    int n_arrays;
    const struct engine_kv_array *layout = engine_kv_layout(e, &n_arrays);
    uint8_t *out = malloc((size_t)n * engine_info(e)->kv_token_bytes), *to = out;
    assert_non_null(out);
    for (int a = 0; a < n_arrays; a++) {
        size_t channels = (size_t)layout[a].channels;
        for (size_t c = 0; layout[a].channel_major && c < channels; c++, to += 2 * (size_t)n)
            memcpy(to, kv + (c * (size_t)all + (size_t)first) * 2, (size_t)n * 2);
        if (!layout[a].channel_major) {
            memcpy(to, kv + (size_t)first * channels * 2, (size_t)n * channels * 2);
            to += (size_t)n * channels * 2;
        }
        kv += (size_t)all * channels * 2;
    }
    return out;
}

void fixture_same_kv(const struct fixture_truth *t, struct engine_seq *s, int first, int n, const char *what)
{
    size_t bytes;
    void *got = fixture_export(s, first, n, &bytes), *wanted = cut(s->engine, t->kv, t->n, first, n);
    char where[160];
    snprintf(where, sizeof where, "%s, KV of %d tokens from %d", what, n, first);
    fixture_same(got, wanted, bytes, where);
    free(got);
    free(wanted);
}

void *fixture_export(struct engine_seq *s, int first, int n, size_t *bytes)
{
    *bytes = (size_t)n * engine_info(s->engine)->kv_token_bytes;
    void *buf = malloc(*bytes);
    assert_non_null(buf);
    assert_int_equal(engine_kv_export(s, first, n, buf), 0);
    return buf;
}

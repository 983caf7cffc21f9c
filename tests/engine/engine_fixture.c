/* engine_fixture.c - see engine_fixture.h. */
#include "tests/engine/engine_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
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
        .threads = o.threads ? o.threads : 1,
        .ctx_tokens = o.ctx_tokens,
        .kv_bytes = o.kv_bytes ? o.kv_bytes : FIXTURE_KV_BYTES,
        .kv_type = o.kv_type,
        .step_tokens = o.step_tokens,
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
        assert_int_equal(engine_step(e, &item, 1, &logits), 0);
        assert_int_equal(item.result, 0);
        if (out)
            memcpy(out + (size_t)at * n_vocab, logits, (size_t)part * n_vocab * sizeof *out);
    }
}

void *fixture_export(struct engine_seq *s, int first, int n, size_t *bytes)
{
    *bytes = (size_t)n * engine_info(s->engine)->kv_token_bytes;
    void *buf = malloc(*bytes);
    assert_non_null(buf);
    assert_int_equal(engine_kv_export(s, first, n, buf), 0);
    return buf;
}

/* text_fixture.c - see text_fixture.h. */
#include "tests/engine/text_fixture.h"

#include "tests/engine/golden.h"
#include "tests/engine/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct text_fixture open_file(struct gguf_writer *w)
{
    struct text_fixture f = {0};
    char err[512] = "";
    size_t size;
    f.file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    if (gguf_open_memory(f.file, size, "test.gguf", &f.g, err, sizeof err) != 0)
        fail_msg("%s", err);
    return f;
}

struct text_fixture text_fixture_written(struct gguf_writer *w)
{
    struct text_fixture f = open_file(w);
    char err[512] = "";
    if (vocab_open(f.g, &f.v, err, sizeof err) != 0)
        fail_msg("%s", err);
    return f;
}

void text_fixture_refused(struct gguf_writer *w, int code, const char *part)
{
    struct text_fixture f = open_file(w);
    char err[512] = "";
    int rc = vocab_open(f.g, &f.v, err, sizeof err);
    if (rc != code || strstr(err, part) == NULL || strncmp(err, "test.gguf: ", 11) != 0)
        fail_msg("got %d \"%s\"; wanted %d \"%s\"", rc, err, code, part);
    assert_null(f.v);
    text_fixture_close(&f);
}

struct text_fixture text_fixture_model(const char *name)
{
    struct text_fixture f = {0};
    char err[512] = "";
    char *path = models_need(name);
    if (gguf_open(path, &f.g, err, sizeof err) != 0 || vocab_open(f.g, &f.v, err, sizeof err) != 0)
        fail_msg("%s", err);
    free(path);
    return f;
}

void text_fixture_close(struct text_fixture *f)
{
    vocab_close(f->v);
    gguf_close(f->g);
    free(f->file);
}

void text_fixture_expect(const struct text_fixture *f, const char *text, size_t len, unsigned flags,
                         const engine_token *wanted, size_t n)
{
    struct engine_tokens out = {0};
    assert_int_equal(vocab_tokenize(f->v, text, len, flags, &out), 0);
    golden_compare(f->v, text, len, out.ids, out.n, wanted, n);
    engine_tokens_free(&out);
}

void text_fixture_round_trip(const struct text_fixture *f, const char *text, size_t len, unsigned flags)
{
    struct engine_tokens out = {0};
    assert_int_equal(vocab_tokenize(f->v, text, len, flags, &out), 0);
    size_t at = 0;
    for (size_t i = 0; i < out.n; i++) {
        size_t n;
        const char *bytes = vocab_token_bytes(f->v, out.ids[i], &n);
        if (n > len - at || memcmp(bytes, text + at, n) != 0)
            fail_msg("token %zu, %d, is not the text at byte %zu", i, out.ids[i], at);
        at += n;
    }
    assert_int_equal(at, len);
    engine_tokens_free(&out);
}

/* text_fixture.h - opens a vocabulary from a writer or a real model, and compares tokens. */
#ifndef CONVOD_TESTS_TEXT_FIXTURE_H
#define CONVOD_TESTS_TEXT_FIXTURE_H

#include "engine/text/text.h"
#include "tests/engine/gguf_writer.h"

struct text_fixture {
    void *file; /* NULL: a mapped model */
    struct gguf *g;
    struct vocab *v;
};

/* Opens what the writer holds, and frees it. The calling test fails when that fails. */
struct text_fixture text_fixture_written(struct gguf_writer *w);
/* The same for something that vocab_open() must refuse with `code` and a message that holds `part`. */
void text_fixture_refused(struct gguf_writer *w, int code, const char *part);
/* Opens NAME.gguf; a missing file skips the test. */
struct text_fixture text_fixture_model(const char *name);
void text_fixture_close(struct text_fixture *f);

/* Fails the calling test unless text becomes exactly these tokens. */
void text_fixture_expect(const struct text_fixture *f, const char *text, size_t len, unsigned flags,
                         const engine_token *wanted, size_t n);
/* Fails the calling test unless the tokens of text, put together, are text again. */
void text_fixture_round_trip(const struct text_fixture *f, const char *text, size_t len, unsigned flags);

#define EXPECT_TOKENS(f, text, flags, ...)                                                                             \
    text_fixture_expect((f), (text), sizeof(text) - 1, (flags), (const engine_token[]){__VA_ARGS__},                   \
                        sizeof((const engine_token[]){__VA_ARGS__}) / sizeof(engine_token))

#endif

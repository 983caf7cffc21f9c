/* engine_fixture.h - opens engines on tiny models and runs tokens through them. */
#ifndef CONVOD_TESTS_ENGINE_FIXTURE_H
#define CONVOD_TESTS_ENGINE_FIXTURE_H

#include "engine/engine_internal.h"
#include "tests/engine/tiny_model.h"

#define FIXTURE_KV_BYTES ((size_t)24 << 20)

struct fixture {
    struct tiny_model m;
    char *path;
    struct engine *e;
};

struct fixture_opts {
    const char *backend; /* NULL: portable */
    const char *kv_type;
    int threads;     /* 0: 1 */
    int ctx_tokens;  /* 0: the model's */
    int step_tokens; /* 0: 512 */
    size_t kv_bytes; /* 0: FIXTURE_KV_BYTES */
};

/* Each fails the calling test when something goes wrong. */
struct fixture fixture_open(struct tiny_model m, struct fixture_opts o);
void fixture_close(struct fixture *f);
/* A second engine on the same file. */
struct engine *fixture_engine(const char *path, struct fixture_opts o);

struct engine_seq *fixture_seq(struct engine *e);
/* Runs n tokens in chunks of `chunk`; logits of all of them go to out[n][n_vocab] (NULL: none wanted). */
void fixture_run(struct engine *e, struct engine_seq *s, const engine_token *tokens, int n, int chunk, float *out);
/* All keys and values of a sequence, to free(). */
void *fixture_export(struct engine_seq *s, int first, int n, size_t *bytes);

#endif

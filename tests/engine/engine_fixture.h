/* engine_fixture.h - opens engines on tiny models and runs tokens through them. */
#ifndef CONVOD_TESTS_ENGINE_FIXTURE_H
#define CONVOD_TESTS_ENGINE_FIXTURE_H

#include "engine/model/model.h"
#include "tests/engine/tiny_model.h"

#define FIXTURE_KV_BYTES ((size_t)24 << 20)

struct fixture {
    struct tiny_model m;
    char *path;
    struct engine *e;
};

struct fixture_opts {
    const char *backend; /* NULL: portable */
    const char *numerics;
    const char *kv_type;
    int host_layers;
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
/* A whole step: start and wait. */
int fixture_step(struct engine *e, struct engine_step_item *items, int n_items, const float **logits);
/* Runs n tokens in chunks of `chunk`; logits of all of them go to out[n][n_vocab] (NULL: none wanted). */
void fixture_run(struct engine *e, struct engine_seq *s, const engine_token *tokens, int n, int chunk, float *out);
/* Fails the calling test unless both hold the same bytes; `what` is for the message. */
void fixture_same(const void *got, const void *wanted, size_t bytes, const char *what);
/* What a fresh sequence computes for these tokens in steps of 256: logits [n][n_vocab], and its KV. */
struct fixture_truth {
    float *logits;
    uint8_t *kv;
    size_t kv_bytes;
    int n, n_vocab;
};
struct fixture_truth fixture_truth_of(struct engine *e, const engine_token *tokens, int n);
void fixture_truth_free(struct fixture_truth *t);
/* Fails the calling test unless logits [n] of positions from `first` on are the truth's, bit for bit. */
void fixture_same_logits(const struct fixture_truth *t, const float *logits, int first, int n, const char *what);
/* Fails the calling test unless the KV of positions [first, first + n) of s is the truth's, bit for bit. */
void fixture_same_kv(const struct fixture_truth *t, struct engine_seq *s, int first, int n, const char *what);

/* All keys and values of a sequence, to free(). */
void *fixture_export(struct engine_seq *s, int first, int n, size_t *bytes);

#endif

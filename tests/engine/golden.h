/* golden.h - reads tests/data/tokens-*.jsonl: one {"text": ..., "ids": [...]} a line, made by an independent engine. */
#ifndef CONVOD_TESTS_GOLDEN_H
#define CONVOD_TESTS_GOLDEN_H

#include "engine/engine.h"
#include "engine/text/text.h"

#include <stdio.h>

struct golden {
    char *text; /* may hold zero bytes */
    size_t len;
    engine_token *ids;
    size_t n;
};

/* Opens tests/data/NAME; the calling test fails when it is not there. */
FILE *golden_open(const char *name);
/* Reads a line. False at the end. free with golden_free(). */
bool golden_next(FILE *f, struct golden *out);
void golden_free(struct golden *g);

/* Decodes a JSON string that begins after its quote, in place; returns where it ends. *len gets its bytes. */
char *golden_string(char *json, size_t *len);

/* Fails the calling test, saying what differs, unless both lists are equal. `text` is for the message. */
void golden_compare(const struct vocab *v, const char *text, size_t len, const engine_token *got, size_t n_got,
                    const engine_token *wanted, size_t n_wanted);

/* Tokenizes every line of tests/data/NAME and compares; returns their number. */
int golden_check_file(const struct vocab *v, const char *name);

#endif

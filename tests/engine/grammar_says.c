/* grammar_says.c - see grammar_says.h. */
#include "tests/engine/grammar_says.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct grammar_vocab *vocab;

struct grammar *compiled(const char *schema)
{
    char err[256] = "";
    struct grammar *g = NULL;
    if (grammar_from_schema(schema, strlen(schema), vocab, 0, &g, err, sizeof err) != 0)
        fail_msg("%s: %s", schema, err);
    return g;
}

void refused(const char *schema, int code, const char *part)
{
    char err[256] = "";
    struct grammar *g = NULL;
    int rc = grammar_from_schema(schema, strlen(schema), NULL, 0, &g, err, sizeof err);
    if (rc != code || !strstr(err, part))
        fail_msg("%.200s: %d \"%s\", not %d \"%s\"", schema, rc, err, code, part);
    assert_null(g);
}

struct grammar_match *begin(struct grammar *g)
{
    struct grammar_match *m = grammar_match_new(g);
    assert_non_null(m);
    return m;
}

bool accepts(struct grammar *g, const char *text)
{
    struct grammar_match *m = begin(g);
    bool ok = grammar_match_push(m, text, strlen(text)) == 0 && grammar_match_complete(m);
    grammar_match_free(m);
    return ok;
}

void expect(const char *schema, const char *const *good, const char *const *bad)
{
    struct grammar *g = compiled(schema);
    for (; *good; good++)
        if (!accepts(g, *good))
            fail_msg("%s does not allow %s", schema, *good);
    for (; *bad; bad++)
        if (accepts(g, *bad))
            fail_msg("%s allows %s", schema, *bad);
    grammar_free(g);
}

char *repeated(const char *before, const char *piece, size_t n, const char *after)
{
    char *text = malloc(strlen(before) + strlen(piece) * n + strlen(after) + 1), *at = text;
    assert_non_null(text);
    at = stpcpy(at, before);
    for (size_t i = 0; i < n; i++)
        at = stpcpy(at, piece);
    strcpy(at, after);
    return text;
}

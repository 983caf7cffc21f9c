/* tokens.c - the growing array of tokens that every text function appends to. */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void engine_tokens_free(struct engine_tokens *t)
{
    free(t->ids);
    *t = (struct engine_tokens){0};
}

int engine_tokens_append(struct engine_tokens *t, const engine_token *ids, size_t n)
{
    size_t need;
    if (n == 0)
        return 0;
    if (__builtin_add_overflow(t->n, n, &need))
        return -ENOMEM;
    if (need > t->capacity) {
        size_t capacity = t->capacity > SIZE_MAX / 2 ? need : t->capacity * 2;
        if (capacity < need)
            capacity = need < 64 ? 64 : need;
        size_t bytes;
        if (__builtin_mul_overflow(capacity, sizeof *t->ids, &bytes))
            return -ENOMEM;
        engine_token *grown = realloc(t->ids, bytes);
        if (grown == NULL)
            return -ENOMEM;
        t->ids = grown;
        t->capacity = capacity;
    }
    memcpy(t->ids + t->n, ids, n * sizeof *ids);
    t->n = need;
    return 0;
}

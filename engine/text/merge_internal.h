/* merge_internal.h - joins neighbouring symbols, best pair first: what both kinds of tokenizer do with a text.
 *
 * Time is n log n and memory 32 bytes a symbol, whatever the text: ten million times the same letter is one run.
 */
#ifndef CONVOD_MERGE_INTERNAL_H
#define CONVOD_MERGE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#define MERGE_NONE UINT32_MAX

struct merge_symbol {
    uint32_t value;      /* the caller's: a token id, or where the symbol's text begins */
    uint32_t prev, next; /* MERGE_NONE at the ends */
    uint32_t rank;       /* of joining it with the next one; MERGE_NONE: they cannot be joined, or it is gone */
};

/* Scratch, reused from text to text. Zero-initialise; free with merge_free(). */
struct merge {
    struct merge_symbol *symbols;
    uint64_t *heap; /* rank << 32 | index of the left symbol */
    size_t capacity, n_heap;
};

/* Lower ranks are joined first, and further left first among equals. MERGE_NONE: not at all. */
typedef uint32_t merge_rank(const void *arg, const struct merge_symbol *symbols, uint32_t left, uint32_t right);

/* Makes room for n symbols, n < 2^31. 0 or -ENOMEM. */
int merge_reserve(struct merge *m, size_t n);

/* Joins what can be joined among symbols[0..n), whose values the caller has set. results[rank] becomes the value of a
 * joined symbol; NULL: it keeps the left one's. Afterwards symbol 0 begins the list of those that are left. */
void merge_run(struct merge *m, size_t n, merge_rank *rank, const void *arg, const uint32_t *results);

void merge_free(struct merge *m);

#endif

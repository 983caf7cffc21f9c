/* merge.c - see merge_internal.h.
 *
 * Symbols are a doubly linked list in an array. Every pair that can be joined has an entry in a binary min-heap. An
 * entry is not removed when its pair changes: it is stale when the rank it was made with is no longer its left
 * symbol's.
 */
#include "engine/text/merge_internal.h"

#include <errno.h>
#include <stdlib.h>

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t v = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= v)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = v;
}

static void push(struct merge *m, uint32_t rank, uint32_t left)
{
    uint64_t v = (uint64_t)rank << 32 | left;
    size_t at = m->n_heap++;
    while (at > 0 && m->heap[(at - 1) / 2] > v) {
        m->heap[at] = m->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    m->heap[at] = v;
}

static uint64_t pop(struct merge *m)
{
    uint64_t least = m->heap[0];
    m->heap[0] = m->heap[--m->n_heap];
    if (m->n_heap > 0)
        sift_down(m->heap, m->n_heap, 0);
    return least;
}

int merge_reserve(struct merge *m, size_t n)
{
    if (n <= m->capacity)
        return 0;
    size_t capacity = n < 256 ? 256 : n;
    merge_free(m);
    /* A join takes one entry and adds at most two, and there are fewer joins than symbols: 2 n entries are enough. */
    m->symbols = calloc(capacity, sizeof *m->symbols);
    m->heap = calloc(capacity, 2 * sizeof *m->heap);
    if (m->symbols == NULL || m->heap == NULL) {
        merge_free(m);
        return -ENOMEM;
    }
    m->capacity = capacity;
    return 0;
}

void merge_run(struct merge *m, size_t n, merge_rank *rank, const void *arg, const uint32_t *results)
{
    struct merge_symbol *s = m->symbols;
    m->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = i > 0 ? (uint32_t)i - 1 : MERGE_NONE;
        s[i].next = i + 1 < n ? (uint32_t)i + 1 : MERGE_NONE;
    }
    for (size_t i = 0; i < n; i++) {
        s[i].rank = i + 1 < n ? rank(arg, s, (uint32_t)i, (uint32_t)i + 1) : MERGE_NONE;
        if (s[i].rank != MERGE_NONE)
            m->heap[m->n_heap++] = (uint64_t)s[i].rank << 32 | i;
    }
    for (size_t i = m->n_heap / 2; i-- > 0;)
        sift_down(m->heap, m->n_heap, i);

    while (m->n_heap > 0) {
        uint64_t entry = pop(m);
        uint32_t left = (uint32_t)entry, at_rank = (uint32_t)(entry >> 32);
        if (s[left].rank != at_rank)
            continue;
        uint32_t gone = s[left].next, right = s[gone].next, before = s[left].prev;
        if (results != NULL)
            s[left].value = results[at_rank];
        s[left].next = right;
        s[gone].rank = MERGE_NONE;
        s[left].rank = MERGE_NONE;
        if (right != MERGE_NONE) {
            s[right].prev = left;
            s[left].rank = rank(arg, s, left, right);
            if (s[left].rank != MERGE_NONE)
                push(m, s[left].rank, left);
        }
        if (before != MERGE_NONE) {
            s[before].rank = rank(arg, s, before, left);
            if (s[before].rank != MERGE_NONE)
                push(m, s[before].rank, before);
        }
    }
}

void merge_free(struct merge *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (struct merge){0};
}

/* idle.c - contexts in pages that nobody uses: in the order of their tokens, to find the one that shares the most with
 * a context, and each owner's in the order of their last use and summed up, to find the one to drop. Engine thread.
 *
 * In the order of their tokens (owner first), whoever shares the longest head with some tokens stands next to where
 * these would stand, however many there are. An idle context's tokens do not change; one that a turn uses is not in
 * here, and there are few of those.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

int hot_common(const struct hot *h, const engine_token *ids, int most)
{
    const engine_token *have = engine_seq_tokens(h->seq);
    int n = engine_seq_length(h->seq), i = 0;
    if (n > most)
        n = most;
    while (i < n && have[i] == ids[i])
        i++;
    return i;
}

/* Whether a context stands before (negative), at, or behind an owner's tokens. */
static int order(const struct hot *h, int64_t owner, const engine_token *ids, int n)
{
    if (h->owner != owner)
        return h->owner < owner ? -1 : 1;
    int common = hot_common(h, ids, n), length = engine_seq_length(h->seq);
    if (common < length && common < n)
        return engine_seq_tokens(h->seq)[common] < ids[common] ? -1 : 1;
    return (length > n) - (length < n);
}

size_t idle_place(const struct session *s, int64_t owner, const engine_token *ids, int n)
{
    size_t low = 0, high = s->n_idle;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (order(s->idle[mid], owner, ids, n) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static size_t place_of(const struct session *s, const struct hot *h)
{
    return idle_place(s, h->owner, engine_seq_tokens(h->seq), engine_seq_length(h->seq));
}

int idle_link(struct session *s, struct hot *h)
{
    if (s->n_hots == s->idle_capacity) {
        size_t capacity = s->idle_capacity ? 2 * s->idle_capacity : 64;
        struct hot **grown = realloc(s->idle, capacity * sizeof(struct hot *));
        if (!grown)
            return -ENOMEM;
        s->idle = grown;
        struct idle_owner *owners = realloc(s->owners, capacity * sizeof *owners);
        if (!owners)
            return -ENOMEM;
        s->owners = owners;
        s->idle_capacity = capacity;
    }
    s->n_hots++;
    h->next = s->hots;
    h->previous = NULL;
    *(s->hots ? &s->hots->previous : &s->oldest_hot) = h;
    s->hots = h;
    return 0;
}

static void unlink_use(struct session *s, struct hot *h)
{
    *(h->previous ? &h->previous->next : &s->hots) = h->next;
    *(h->next ? &h->next->previous : &s->oldest_hot) = h->previous;
}

void idle_unlink(struct session *s, struct hot *h)
{
    idle_take(s, h);
    unlink_use(s, h);
    s->n_hots--;
}

static int shared(const struct hot *h, const struct hot *before)
{
    return before && before->owner == h->owner
               ? hot_common(h, engine_seq_tokens(before->seq), engine_seq_length(before->seq))
               : 0;
}

/* Where an owner stands, or would stand. */
static struct idle_owner *owner_place(const struct session *s, int64_t id)
{
    size_t low = 0, high = s->n_owners;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->owners[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return s->owners + low;
}

static bool stands_at(const struct session *s, const struct idle_owner *o, int64_t id)
{
    return o < s->owners + s->n_owners && o->id == id;
}

const struct idle_owner *idle_of(const struct session *s, int64_t owner)
{
    const struct idle_owner *o = owner_place(s, owner);
    return stands_at(s, o, owner) ? o : NULL;
}

/* There is room for as many owners as contexts (idle_link()). */
static struct idle_owner *owner_get(struct session *s, int64_t id)
{
    struct idle_owner *o = owner_place(s, id);
    if (!stands_at(s, o, id)) {
        memmove(o + 1, o, (size_t)(s->owners + s->n_owners - o) * sizeof *o);
        *o = (struct idle_owner){.id = id};
        s->n_owners++;
    }
    return o;
}

/* distinct: tokens of the owner's that nothing else has any more. */
static void owner_take(struct session *s, struct hot *h, int64_t distinct)
{
    struct idle_owner *o = owner_place(s, h->owner);
    o->tokens -= engine_seq_length(h->seq);
    o->distinct -= distinct;
    *(h->older ? &h->older->newer : &o->oldest) = h->newer;
    *(h->newer ? &h->newer->older : &o->newest) = h->older;
    s->idle_tokens -= engine_seq_length(h->seq);
    if (!o->oldest) {
        s->n_owners--;
        memmove(o, o + 1, (size_t)(s->owners + s->n_owners - o) * sizeof *o);
    }
}

static void owner_put(struct session *s, struct hot *h, int64_t distinct)
{
    struct idle_owner *o = owner_get(s, h->owner);
    o->tokens += engine_seq_length(h->seq);
    o->distinct += distinct;
    h->idle_since = ++s->idle_count;
    h->newer = NULL;
    h->older = o->newest;
    *(o->newest ? &o->newest->newer : &o->oldest) = h;
    o->newest = h;
    s->idle_tokens += engine_seq_length(h->seq);
}

void idle_put(struct session *s, struct hot *h)
{
    size_t at = place_of(s, h);
    memmove(s->idle + at + 1, s->idle + at, (s->n_idle - at) * sizeof(struct hot *));
    s->idle[at] = h;
    s->n_idle++;
    h->idle = true;
    h->shared = shared(h, at ? s->idle[at - 1] : NULL);
    int64_t distinct = engine_seq_length(h->seq) - h->shared;
    if (at + 1 < s->n_idle) {
        struct hot *next = s->idle[at + 1];
        distinct += next->shared;
        next->shared = shared(next, h);
        distinct -= next->shared;
    }
    owner_put(s, h, distinct);
    unlink_use(s, h);
    h->previous = NULL;
    h->next = s->hots;
    *(s->hots ? &s->hots->previous : &s->oldest_hot) = h;
    s->hots = h;
}

void idle_take(struct session *s, struct hot *h)
{
    if (!h->idle)
        return;
    size_t at = place_of(s, h);
    while (s->idle[at] != h) /* among those with the same tokens */
        at++;
    struct hot *next = at + 1 < s->n_idle ? s->idle[at + 1] : NULL;
    int64_t distinct = engine_seq_length(h->seq) - h->shared;
    if (next && next->shared > h->shared) { /* what is common to three in their order, the outer ones have in common */
        distinct -= next->shared - h->shared;
        next->shared = h->shared;
    }
    owner_take(s, h, distinct);
    s->n_idle--;
    memmove(s->idle + at, s->idle + at + 1, (s->n_idle - at) * sizeof(struct hot *));
    h->idle = false;
}

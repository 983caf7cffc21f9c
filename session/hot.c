/* hot.c - contexts whose KV is in pages: which one a turn may continue, what of it is stored, and which goes first.
 *
 * Eviction never costs work: whatever was computed for a stored turn is put into segments behind the running step
 * (hot_save()), so dropping a context only gives its pages back. A context that a turn uses is pinned by `user`.
 */
#include <errno.h>
#include <limits.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

/* A shorter common head than this is prefilled faster than it is looked after. */
#define SHARE_MIN_TOKENS 16
/* Room for the beginning of an answer, and for what pages are rounded up to. */
#define ADMIT_TOKENS 128

int segment_key(const uint8_t owner_key[32], const uint8_t identity[32], const uint8_t parent[STORAGE_KEY_BYTES],
                const engine_token *ids, int n, uint8_t out[STORAGE_KEY_BYTES])
{
    uint8_t message[64 + SESSION_SEGMENT_TOKENS * sizeof *ids];
    unsigned out_len = 0;
    if (n < 0 || n > SESSION_SEGMENT_TOKENS)
        return -EINVAL;
    memcpy(message, identity, 32);
    memcpy(message + 32, parent, 32);
    memcpy(message + 64, ids, (size_t)n * sizeof *ids);
    if (!HMAC(EVP_sha256(), owner_key, 32, message, 64 + (size_t)n * sizeof *ids, out, &out_len) || out_len != 32)
        return -ENOMEM;
    return 0;
}

struct hot *hot_new(struct session *s, int64_t owner, const uint8_t owner_key[32])
{
    struct hot *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->seq = engine_seq_new(s->engine);
    if (!h->seq) {
        free(h);
        return NULL;
    }
    h->owner = owner;
    memcpy(h->owner_key, owner_key, sizeof h->owner_key);
    if (idle_link(s, h)) {
        engine_seq_free(h->seq);
        free(h);
        return NULL;
    }
    return h;
}

void hot_free(struct session *s, struct hot *h)
{
    if (!h)
        return;
    unsaved_forget(s, h);
    hot_belongs(s, h, 0, 0);
    idle_unlink(s, h);
    engine_seq_free(h->seq);
    free(h->full);
    free(h->ephemeral);
    free(h);
}

static void forget_beyond(struct hot *h, int n)
{
    if (h->n_full * SESSION_SEGMENT_TOKENS + h->tail_count > n)
        h->tail_count = 0;
    if (h->n_full > n / SESSION_SEGMENT_TOKENS) {
        if (h->in_ledger)
            memcpy(h->cut, h->full[h->n_full - 1].key, sizeof h->cut);
        h->n_full = n / SESSION_SEGMENT_TOKENS;
        h->tail_count = 0;
    }
}

int hot_truncate(struct hot *h, int n)
{
    int rc = engine_seq_truncate(h->seq, n);
    if (rc == 0)
        forget_beyond(h, n);
    return rc;
}

void hot_mend(struct hot *h)
{
    (void)hot_truncate(h, engine_seq_usable(h->seq));
}

static struct segment_ref *full_at(struct hot *h, int k)
{
    if (k >= h->full_capacity) {
        int capacity = h->full_capacity ? h->full_capacity * 2 : 16;
        while (capacity <= k)
            capacity *= 2;
        struct segment_ref *full = realloc(h->full, (size_t)capacity * sizeof *full);
        if (!full)
            return NULL;
        h->full = full;
        h->full_capacity = capacity;
    }
    return &h->full[k];
}

static struct hot *fork_hot(struct session *s, struct hot *from, int n)
{
    struct hot *h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->seq = engine_seq_fork(from->seq, n);
    h->owner = from->owner;
    memcpy(h->owner_key, from->owner_key, sizeof h->owner_key);
    if (!h->seq || (from->n_full && !full_at(h, from->n_full - 1))) {
        engine_seq_free(h->seq);
        free(h);
        return NULL;
    }
    if (from->n_full)
        memcpy(h->full, from->full, (size_t)from->n_full * sizeof *h->full);
    h->n_full = from->n_full;
    memcpy(h->tail_key, from->tail_key, sizeof h->tail_key);
    h->tail_count = from->tail_count;
    h->mixed = from->mixed;
    forget_beyond(h, n);
    if (idle_link(s, h)) {
        engine_seq_free(h->seq);
        free(h->full);
        free(h);
        return NULL;
    }
    return h;
}

/* Whether it is the context at whose end the turn begins. */
static bool continues(const struct turn *t, const struct hot *h)
{
    int64_t base = context_base(t)->id;
    return (base && h->turn == base) || (t->previous && h->ephemeral && !strcmp(h->ephemeral, t->previous));
}

/* Of an owner's contexts the one with the longest head in common with ids[0..most), and how long that is. Of idle ones
 * with the same it is the one that `t` continues, if any; t may be NULL. */
static struct hot *nearest(const struct session *s, int64_t owner, const engine_token *ids, int most,
                           const struct turn *t, int *common)
{
    struct hot *best = NULL;
    size_t at = idle_place(s, owner, ids, most);
    *common = 0;
    for (size_t i = at ? at - 1 : at; i <= at && i < s->n_idle; i++) {
        int n = s->idle[i]->owner == owner ? hot_common(s->idle[i], ids, most) : 0;
        if (n > *common) {
            *common = n;
            best = s->idle[i];
        }
    }
    int idle_common = *common;
    for (const struct turn *user = s->turns; user; user = user->next) {
        int n = user->hot && user->hot->owner == owner ? hot_common(user->hot, ids, most) : 0;
        if (n > *common) {
            *common = n;
            best = user->hot;
        }
    }
    /* All idle ones with that head stand beside each other. */
    if (t && (t->found.parent.id || t->previous) && idle_common && idle_common == *common) {
        for (size_t i = at; i-- > 0 && s->idle[i]->owner == owner && hot_common(s->idle[i], ids, most) == *common;)
            if (continues(t, s->idle[i]))
                return s->idle[i];
        for (size_t i = at; i < s->n_idle && s->idle[i]->owner == owner && hot_common(s->idle[i], ids, most) == *common;
             i++)
            if (continues(t, s->idle[i]))
                return s->idle[i];
    }
    return best;
}

struct hot *hot_acquire(struct session *s, struct turn *t, int most)
{
    int64_t owner = t->found.owner.id;
    int common, whole_prompt;
    struct hot *best = nearest(s, owner, t->context.ids, most, t, &common), *h = NULL;
    (void)nearest(s, owner, t->context.ids, t->n_prompt, NULL, &whole_prompt);
    if (t->ask.generate && !t->aside.n && whole_prompt == t->n_prompt)
        t->plan.rerun_last = true;
    /* The conversation's own context is taken over, unless another branch shares more. */
    if (best && !best->user && continues(t, best)) {
        /* What is stored nowhere is not cut: it may be followed again. */
        bool whole = common == engine_seq_length(best->seq);
        if (whole || !best->ephemeral) {
            idle_take(s, best);
            if (whole || hot_truncate(best, common) == 0)
                h = best;
            else
                idle_put(s, best);
        }
        if (h && !whole)
            unsaved_forget(s, h);
    }
    if (!h && best && common >= SHARE_MIN_TOKENS)
        h = fork_hot(s, best, common);
    if (!h)
        h = hot_new(s, owner, t->found.owner.key);
    if (h) {
        h->user = t;
        /* A touch of a response that is not stored leaves nothing on disk either, whatever its own `store` says. */
        h->in_ledger = t->ask.store && (!turn_touches(t) || t->found.parent.id);
        free(h->ephemeral);
        h->ephemeral = NULL;
    }
    return h;
}

/* Whether a turn that waits would go on with this one. */
static bool about_to_be_used(const struct session *s, const struct hot *h)
{
    for (const struct turn *t = s->turns; t; t = t->next)
        if (t->state == TURN_WAITING && continues(t, h))
            return true;
    return false;
}

/* What turns that wait would go on with, so that few contexts have to be held against all of them. */
struct waited {
    uint64_t bits[16]; /* by a part of the row's id */
    bool ephemeral;    /* something that is not stored */
};

static uint64_t *bit_of(struct waited *w, int64_t turn, uint64_t *bit)
{
    uint64_t hash = (uint64_t)turn * 0x9e3779b97f4a7c15u >> 54;
    *bit = (uint64_t)1 << (hash & 63);
    return &w->bits[hash >> 6];
}

static struct waited waited(const struct session *s)
{
    struct waited w = {.ephemeral = false};
    uint64_t bit;
    for (const struct turn *t = s->turns; t; t = t->next)
        if (t->state == TURN_WAITING) {
            *bit_of(&w, context_base(t)->id, &bit) |= bit;
            w.ephemeral |= t->previous != NULL;
        }
    return w;
}

static bool may_be_used(struct waited *w, const struct hot *h)
{
    uint64_t bit;
    return (h->turn && (*bit_of(w, h->turn, &bit) & bit)) || (h->ephemeral && w->ephemeral);
}

/* Whether an owner has as many tokens in idle contexts as an equal share, or more. */
static bool is_over(const struct session *s, const struct idle_owner *o)
{
    return o->tokens * (int64_t)s->n_owners >= s->idle_tokens;
}

/* Of the owners that are over their share, or not, the idle context that was used longest ago and is about to be used,
 * or not. */
static struct hot *oldest_of(const struct session *s, struct waited *w, const struct hot *but, bool over, bool about)
{
    struct hot *best = NULL;
    for (size_t i = 0; i < s->n_owners; i++) {
        if (is_over(s, &s->owners[i]) != over)
            continue;
        for (struct hot *h = s->owners[i].oldest; h && !(best && best->idle_since < h->idle_since); h = h->newer)
            if (h != but && (may_be_used(w, h) && about_to_be_used(s, h)) == about)
                best = h;
    }
    return best;
}

/* Of those who have more than their share the idle one goes that was used longest ago: who has little in pages does not
 * lose it because somebody else has much. Those that are about to be used go only where there are no others. */
static bool evict_one_but(struct session *s, const struct hot *but)
{
    struct hot *out = NULL;
    struct waited w = waited(s);
    for (int k = 0; k < 4 && !out; k++)
        out = oldest_of(s, &w, but, k % 2 == 0, k >= 2);
    hot_free(s, out);
    return out != NULL;
}

bool hot_evict_one(struct session *s)
{
    return evict_one_but(s, NULL);
}

int hot_shared(const struct session *s, const struct turn *t, const struct hot **best)
{
    int shared;
    *best = nearest(s, t->found.owner.id, t->context.ids, (int)t->context.n, t, &shared);
    return shared;
}

/* Whether so many tokens might find pages when all idle contexts but that one had gone. */
static bool might_fit(const struct session *s, const struct hot *but, int tokens)
{
    struct engine_seq *kept[SCHEDULE_TURNS];
    int n = 0;
    if (but && !but->user)
        kept[n++] = but->seq;
    for (const struct turn *t = s->turns; t && n < SCHEDULE_TURNS; t = t->next)
        if (t->hot)
            kept[n++] = t->hot->seq;
    return engine_kv_might_fit(s->engine, kept, n, tokens);
}

bool hot_make_room(struct session *s, const struct turn *t, int64_t tokens)
{
    const struct hot *best;
    int shared = hot_shared(s, t, &best);
    tokens += (int)t->context.n - shared + ADMIT_TOKENS;
    int n = tokens < INT_MAX ? (int)tokens : INT_MAX;
    while (!engine_kv_fits(s->engine, NULL, n))
        if (!might_fit(s, best, n) || !evict_one_but(s, best))
            return false;
    return true;
}

/* ---- what an owner may have in pages ---- */

/* Whether a saving still needs its pages: it is under way, or has failed and is tried again. */
static bool unsaved(const struct session *s, const struct hot *h)
{
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->hot == h)
            return true;
    for (const struct saving *saving = s->unsaved; saving; saving = saving->next)
        if (saving->hot == h)
            return true;
    return false;
}

/* Which of an owner's contexts are counted: all, or those that stay where it has more than it may have. */
struct counted {
    int64_t owner;
    bool staying;
    const struct hot *but; /* stays as well */
    bool waited_for;       /* of those in use only the ones that do not give way to a turn that somebody waits for */
};

static bool stays(const struct session *s, const struct hot *h, const struct hot *but)
{
    return h == but || about_to_be_used(s, h) || unsaved(s, h);
}

static bool counts(const struct turn *t, const struct counted *c)
{
    return t->hot && t->hot->owner == c->owner && !(c->waited_for && turn_gives_way(t));
}

/* The first of those that count from session.idle[i] on, upwards or downwards. NULL: there is none. */
static const struct hot *beside(const struct session *s, const struct counted *c, size_t i, bool up)
{
    for (; i < s->n_idle && s->idle[i]->owner == c->owner; i += up ? 1 : SIZE_MAX)
        if (!c->staying || stays(s, s->idle[i], c->but))
            return s->idle[i];
    return NULL;
}

/* What several begin with counts once. */
static int64_t tokens_of(const struct session *s, const struct counted *c)
{
    const struct idle_owner *all = idle_of(s, c->owner);
    int64_t n = all && !c->staying ? all->distinct : 0;
    int along = 0; /* tokens that it has in common with the last one that counts */
    for (size_t i = c->staying ? idle_place(s, c->owner, NULL, 0) : s->n_idle;
         i < s->n_idle && s->idle[i]->owner == c->owner; i++) {
        const struct hot *h = s->idle[i];
        along = h->shared < along ? h->shared : along;
        if (!stays(s, h, c->but))
            continue;
        n += engine_seq_length(h->seq) - along;
        along = INT_MAX;
    }
    for (const struct turn *t = s->turns; t; t = t->next) {
        if (!counts(t, c))
            continue;
        const engine_token *ids = engine_seq_tokens(t->hot->seq);
        int length = engine_seq_length(t->hot->seq), shared = 0;
        size_t at = idle_place(s, c->owner, ids, length);
        for (int up = 0; up < 2; up++) {
            const struct hot *h = beside(s, c, up ? at : at - 1, up);
            int common = h ? hot_common(h, ids, length) : 0;
            shared = common > shared ? common : shared;
        }
        for (const struct turn *o = s->turns; o != t; o = o->next) {
            int common = counts(o, c) ? hot_common(o->hot, ids, length) : 0;
            shared = common > shared ? common : shared;
        }
        n += length - shared;
    }
    return n;
}

int64_t hot_tokens_of(const struct session *s, int64_t owner)
{
    return tokens_of(s, &(struct counted){.owner = owner});
}

static uint64_t most_of(const struct session *s, const char *name)
{
    return s->storage ? storage_limits_of(s->storage, name).kv_bytes : 0;
}

/* Lets idle contexts of an owner go, those used longest ago first, until with `more` tokens it has as many as it may.
 * False: it has more all the same. One that is not saved yet stays until it is: its pages are all there is of it. */
static bool keep_within(struct session *s, const char *name, int64_t owner, const struct hot *but, int64_t more)
{
    uint64_t most = most_of(s, name);
    while (most && (uint64_t)(hot_tokens_of(s, owner) + more) * s->info->kv_token_bytes > most) {
        const struct idle_owner *o = idle_of(s, owner);
        struct hot *h = o ? o->oldest : NULL;
        while (h && stays(s, h, but))
            h = h->newer;
        if (!h)
            return false;
        hot_free(s, h);
        s->status.quota_evictions++;
    }
    return true;
}

void hot_keep_within(struct session *s, const char *name, int64_t owner)
{
    (void)keep_within(s, name, owner, NULL, 0);
}

/* What a turn and those of its owner that run have yet to bring into pages. */
static int64_t tokens_to_come(const struct session *s, const struct turn *t, const struct counted *c, int shared)
{
    int64_t n = (int)t->context.n - shared;
    for (const struct turn *o = s->turns; o; o = o->next)
        if (counts(o, c) && (int)o->context.n > engine_seq_length(o->hot->seq))
            n += (int)o->context.n - engine_seq_length(o->hot->seq);
    return n;
}

bool hot_may_be_within(const struct session *s, const struct turn *t, bool waited_for)
{
    struct counted c = {.owner = t->found.owner.id, .staying = true, .waited_for = waited_for};
    uint64_t most = most_of(s, t->owner);
    bool alone = true;
    for (const struct turn *o = s->turns; o && alone; o = o->next)
        alone = !counts(o, &c) || o->state == TURN_COMMITTING;
    if (!most || alone)
        return true;
    int shared = hot_shared(s, t, &c.but);
    return (uint64_t)(tokens_of(s, &c) + tokens_to_come(s, t, &c, shared)) * s->info->kv_token_bytes <= most;
}

bool hot_within(struct session *s, const struct turn *t)
{
    struct counted c = {.owner = t->found.owner.id};
    const struct hot *best;
    if (!most_of(s, t->owner) || !turns_running(s, c.owner))
        return true;
    if (!hot_may_be_within(s, t, false))
        return false;
    int shared = hot_shared(s, t, &best);
    return keep_within(s, t->owner, c.owner, best, tokens_to_come(s, t, &c, shared));
}

void hot_evict_idle(struct session *s, int64_t before_ms)
{
    for (struct hot *h = s->oldest_hot, *newer; h && (h->user || h->last_used_ms < before_ms); h = newer) {
        newer = h->previous;
        if (!h->user)
            hot_free(s, h);
    }
}

static bool saving_under_way(const struct session *s, int64_t turn)
{
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->turn == turn)
            return true;
    return false;
}

/* Tokens of a context that the hold of a committed turn keeps in storage: none until that turn's saving has ended. */
static int64_t held_tokens(const struct session *s, const struct hot *h)
{
    const struct turn *t = h->user;
    if (!t)
        return h->ephemeral || saving_under_way(s, h->turn) ? 0 : INT64_MAX;
    const struct storage_turn *base = context_base(t);
    if (!t->ask.store || t->past.rebased || !base->id)
        return 0;
    return saving_under_way(s, base->id) ? 0 : base->n_tokens;
}

/* What a context has taken for stored from segment `from` on is put again when it is saved next. */
static void put_again(struct hot *h, int64_t from)
{
    for (int64_t k = from; k < h->n_full; k++)
        h->full[k].stored = false;
    if (h->n_full >= from)
        h->tail_count = 0;
}

void hot_distrust(struct session *s, int64_t owner)
{
    for (struct hot *h = s->hots; h; h = h->next)
        if (h->owner == owner)
            put_again(h, held_tokens(s, h) / SESSION_SEGMENT_TOKENS);
}

void hot_distrust_like(struct session *s, int64_t owner, const engine_token *ids, int n)
{
    for (struct hot *h = s->hots; h && n >= SESSION_SEGMENT_TOKENS; h = h->next)
        if (h->owner == owner && hot_common(h, ids, SESSION_SEGMENT_TOKENS) == SESSION_SEGMENT_TOKENS)
            put_again(h, held_tokens(s, h) / SESSION_SEGMENT_TOKENS);
}

void hot_unsaved(struct session *s, int64_t conversation, int64_t from)
{
    for (struct hot *h = s->hots; h; h = h->next)
        if (h->conversation == conversation)
            put_again(h, from / SESSION_SEGMENT_TOKENS);
}

/* Full segments that two contexts share. */
static int common_full(const struct hot *a, const struct hot *b)
{
    int n = 0;
    while (n < a->n_full && n < b->n_full && !memcmp(a->full[n].key, b->full[n].key, STORAGE_KEY_BYTES))
        n++;
    return n;
}

struct discard {
    struct discard *next;
    struct session *session;
    int64_t owner;
};

static void discarded(struct session *s, void *arg)
{
    struct discard **p = &s->discards;
    s->jobs--;
    while (*p != arg)
        p = &(*p)->next;
    *p = (*p)->next;
    free(arg);
}

static void discard_done(void *arg, int rc)
{
    struct discard *d = arg;
    (void)rc; /* what is left is searched for */
    while (session_post(d->session, discarded, d))
        ;
}

/* Of the chain that ends with `last` goes what nobody holds. */
static int discard(struct session *s, int64_t owner, const uint8_t last[STORAGE_KEY_BYTES])
{
    struct discard *d = malloc(sizeof *d);
    if (!d)
        return -ENOMEM;
    *d = (struct discard){s->discards, s, owner};
    int rc = storage_kv_flush(s->storage, last, discard_done, d);
    if (rc) {
        free(d);
        return rc;
    }
    s->discards = d;
    s->jobs++;
    return 0;
}

bool hot_discards(const struct session *s, int64_t owner)
{
    const struct discard *d = s->discards;
    while (d && d->owner != owner)
        d = d->next;
    return d != NULL;
}

/* Whether a context has this segment. */
static bool has(const struct hot *h, const uint8_t key[STORAGE_KEY_BYTES])
{
    bool it = h->tail_count && !memcmp(h->tail_key, key, STORAGE_KEY_BYTES);
    for (int k = h->n_full; k-- > 0 && !it;)
        it = !memcmp(h->full[k].key, key, STORAGE_KEY_BYTES);
    return it;
}

bool hot_take_end(const struct session *s, int64_t owner, const struct hot *but, uint8_t last[STORAGE_KEY_BYTES],
                  uint8_t out[STORAGE_KEY_BYTES])
{
    static const uint8_t none[STORAGE_KEY_BYTES];
    bool wanted = !memcmp(last, none, sizeof none);
    for (const struct hot *other = s->hots; other && !wanted; other = other->next)
        wanted = other != but && other->owner == owner && has(other, last);
    memcpy(out, wanted ? none : last, STORAGE_KEY_BYTES);
    memset(last, 0, STORAGE_KEY_BYTES);
    return !wanted;
}

bool hot_drop_end(struct session *s, int64_t owner, const struct hot *but, uint8_t last[STORAGE_KEY_BYTES])
{
    uint8_t end[STORAGE_KEY_BYTES];
    return hot_take_end(s, owner, but, last, end) && discard(s, owner, end) == 0;
}

void hot_drop_cut(struct session *s, struct hot *h)
{
    (void)hot_drop_end(s, h->owner, NULL, h->aside); /* it may be behind the other */
    (void)hot_drop_end(s, h->owner, NULL, h->cut);
}

void hot_discard(struct session *s, struct hot *h)
{
    int shared = 0;
    for (const struct hot *other = s->hots; other; other = other->next)
        if (other != h && other->owner == h->owner && common_full(other, h) > shared)
            shared = common_full(other, h);
    if (!h->in_ledger)
        return;
    /* What is behind the rest first. */
    bool other = hot_drop_end(s, h->owner, h, h->aside);
    other |= hot_drop_end(s, h->owner, h, h->cut);
    if (h->n_full > shared && discard(s, h->owner, h->full[h->n_full - 1].key)) {
        session_log(s, LOG_WARNING, "no memory to drop the segments of a failed turn; the next start drops them");
        return;
    }
    /* Those before them that nothing holds yet go as well: who has put them does so again. What was cut may have begun
     * otherwise. */
    if (other)
        hot_distrust(s, h->owner);
    else if (h->n_full > shared)
        hot_distrust_like(s, h->owner, engine_seq_tokens(h->seq), engine_seq_length(h->seq));
}

void hot_sweep(struct session *s)
{
    if (!s->storage || s->prunes)
        return;
    uint64_t clock = storage_clock(s->storage);
    for (const struct turn *t = s->turns; t; t = t->next)
        if (t->state != TURN_OVER && t->clock < clock)
            clock = t->clock;
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->clock < clock)
            clock = saving->clock;
    storage_sweep(s->storage, clock);
}

int hot_note_stored(struct hot *h, int first, int count, const uint8_t key[STORAGE_KEY_BYTES])
{
    int k = first / SESSION_SEGMENT_TOKENS;
    if (first % SESSION_SEGMENT_TOKENS || k != h->n_full)
        return 0; /* behind a gap that will be filled and put anew */
    if (count < SESSION_SEGMENT_TOKENS) {
        memcpy(h->tail_key, key, sizeof h->tail_key);
        h->tail_count = count;
        return 0;
    }
    struct segment_ref *ref = full_at(h, k);
    if (!ref)
        return -ENOMEM;
    memcpy(ref->key, key, sizeof ref->key);
    ref->stored = true;
    h->n_full = k + 1;
    h->tail_count = 0;
    return 0;
}

/* True when every value is finite: rows with a NaN or infinity are not worth keeping. In blocks of one length, of which
 * the compiler makes vectors. */
static bool all_finite(const uint16_t *v, size_t n, uint16_t exponent_mask)
{
    enum { BLOCK = 64 };
    uint16_t bad = 0;
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        for (size_t k = 0; k < BLOCK; k++)
            bad |= (uint16_t)((v[i + k] & exponent_mask) == exponent_mask);
    for (; i < n; i++)
        bad |= (uint16_t)((v[i] & exponent_mask) == exponent_mask);
    return !bad;
}

static int put(struct session *s, struct hot *h, int first, int count, const uint8_t *parent,
               const uint8_t key[STORAGE_KEY_BYTES])
{
    const engine_token *ids = engine_seq_tokens(h->seq) + first;
    size_t bytes = (size_t)count * s->info->kv_token_bytes;
    void *split = engine_kv_buffer(s->engine, count), *payload = split ? split : malloc(bytes);
    if (!payload)
        return -ENOMEM;
    int rc =
        split ? engine_kv_export_split(h->seq, first, count, split) : engine_kv_export(h->seq, first, count, payload);
    if (rc == 0 && !(split ? storage_split_finite(&s->layout, (uint32_t)count, split)
                           : all_finite(payload, bytes / 2, s->layout.element == STORAGE_F16 ? 0x7c00 : 0x7f80)))
        rc = -EDOM;
    if (rc) {
        (split ? engine_kv_buffer_release : free)(payload);
        return rc;
    }
    struct storage_segment segment = {.owner = h->owner,
                                      .first = (uint32_t)first,
                                      .count = (uint32_t)count,
                                      .label = ids,
                                      .label_bytes = (uint32_t)count * sizeof *ids};
    memcpy(segment.key, key, sizeof segment.key);
    memcpy(segment.parent, parent, sizeof segment.parent);
    memcpy(segment.fingerprint, s->info->kv_identity, sizeof segment.fingerprint);
    _Static_assert(sizeof segment.producer > ENGINE_NUMERICS_TEXT, "numerics and a + fit");
    (void)snprintf(segment.producer, sizeof segment.producer, "%s%s", s->info->numerics, h->mixed ? "+" : "");
    segment.keep = h->mixed;
    segment.split = split != NULL;
    segment.release = split ? engine_kv_buffer_release : NULL;
    return storage_segment_put(s->storage, &segment, &s->layout, payload);
}

int hot_save(struct session *s, struct hot *h, bool tail, uint8_t last[STORAGE_KEY_BYTES])
{
    static const uint8_t root[STORAGE_KEY_BYTES];
    const engine_token *ids = engine_seq_tokens(h->seq);
    int length = engine_seq_length(h->seq), rc = 0;
    memset(last, 0, STORAGE_KEY_BYTES);
    if (!h->in_ledger)
        return 0;

    const uint8_t *parent = root;
    for (int k = 0; k < length / SESSION_SEGMENT_TOKENS; k++) {
        if (k < h->n_full && h->full[k].stored) {
            parent = h->full[k].key;
            continue;
        }
        struct segment_ref *ref = full_at(h, k);
        if (!ref)
            return -ENOMEM;
        parent = k ? h->full[k - 1].key : root; /* full_at() may have moved the array */
        if (k >= h->n_full) {
            if ((rc = segment_key(h->owner_key, s->info->kv_identity, parent, ids + k * SESSION_SEGMENT_TOKENS,
                                  SESSION_SEGMENT_TOKENS, ref->key)))
                return rc;
            ref->stored = false;
        }
        rc = put(s, h, k * SESSION_SEGMENT_TOKENS, SESSION_SEGMENT_TOKENS, parent, ref->key);
        if (rc == -ERANGE && k < h->n_full)
            rc = 0; /* put once, and its window has gone: if it is not there any more, it stays so */
        if (rc)
            return rc;
        ref->stored = true;
        if (k >= h->n_full) {
            h->n_full = k + 1;
            h->tail_count = 0;
        }
        parent = ref->key;
    }
    int count = length % SESSION_SEGMENT_TOKENS;
    if (tail && count > 0) {
        if (h->tail_count != count) {
            uint8_t key[STORAGE_KEY_BYTES];
            if ((rc = segment_key(h->owner_key, s->info->kv_identity, parent, ids + length - count, count, key)) ||
                (rc = put(s, h, length - count, count, parent, key)))
                return rc;
            memcpy(h->tail_key, key, sizeof key);
            h->tail_count = count;
        }
        memcpy(last, h->tail_key, STORAGE_KEY_BYTES);
    } else {
        memcpy(last, parent, STORAGE_KEY_BYTES);
    }
    return 0;
}

/* holds.c - what KV turns hold: whether it is there, and how it is found again by their tokens where the index lost it.
 * Ledger thread only, inside a job.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define HOLD_AGAIN_MS 5 /* that others' transactions wait for turns that hold again what they can */

/* Whether the segment that a turn holds reaches so far. */
static bool held_to(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], int64_t end)
{
    struct segment_row row;
    return segment_get(l, key, &row) == 1 && row.end >= end;
}

/* Where its KV ends, as KV_END says. */
static int64_t kv_end(const struct storage_turn *t)
{
    return t->evaluated >= 0 ? t->evaluated : t->n_tokens - 1;
}

int storage_turn_is_held(struct storage_ledger *l, const struct storage_turn *t)
{
    uint8_t key[STORAGE_KEY_BYTES];
    int rc = segment_held_by(l, t->id, key);
    return rc == 1 ? held_to(l, key, kv_end(t)) : rc;
}

struct extent { /* of a turn's context */
    int64_t n_tokens, kv_end;
};

/* The segments behind a context, from its beginning on, as far as they are in the index: *key gets the last one's, or
 * zeros. Labels are the bytes of the tokens. 1: they reach to the end; 0: they do not. */
static int find_segments(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], const uint8_t *tokens,
                         size_t bytes, struct extent of, uint8_t key[STORAGE_KEY_BYTES])
{
    int64_t end = 0;
    memset(key, 0, STORAGE_KEY_BYTES);
    while (end < of.kv_end) {
        struct storage_found rows[2];
        size_t n = 0, unit = bytes / (size_t)of.n_tokens, from = (size_t)end * unit, left = bytes - from;
        int best = -1;
        int rc = storage_segment_nearest(l, owner, fingerprint, key, tokens + from,
                                         left > STORAGE_LABEL_MAX ? STORAGE_LABEL_MAX : (uint32_t)left, rows, &n);
        if (rc)
            return rc;
        for (size_t i = 0; i < n; i++) {
            size_t common = rows[i].label_bytes < left ? rows[i].label_bytes : left;
            if (common && rows[i].first == end && rows[i].label_bytes == rows[i].count * unit &&
                !memcmp(rows[i].label, tokens + from, common) && (best < 0 || rows[i].count > rows[best].count))
                best = (int)i;
        }
        if (best >= 0) {
            memcpy(key, rows[best].key, STORAGE_KEY_BYTES);
            end += rows[best].count;
        }
        for (size_t i = 0; i < n; i++)
            free(rows[i].label);
        if (best < 0)
            return 0;
    }
    return 1;
}

/* The segment with `key`, or the nearest one before it that ends within so many tokens. 1, 0: there is none. */
static int held_within(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], int64_t most,
                       struct segment_row *row)
{
    uint8_t at[STORAGE_KEY_BYTES];
    memcpy(at, key, sizeof at);
    int rc = segment_get(l, at, row);
    while (rc == 1 && row->end > most && !pack_is_zero(row->parent, sizeof row->parent)) {
        memcpy(at, row->parent, sizeof at);
        rc = segment_get(l, at, row);
    }
    return rc == 1 && row->end > most ? 0 : rc;
}

int storage_turns_hold_as(struct storage_ledger *l, const struct storage_turn *from, const int64_t *to, size_t n)
{
    struct segment_row at = {0}, before;
    bool there = false;
    int rc = 0;
    for (size_t i = n; i-- > 0 && rc >= 0;) {
        const struct storage_turn *t = &from[i];
        if (i + 1 == n || from[i + 1].rebased || from[i + 1].base) { /* its context is no head of the next one's */
            uint8_t key[STORAGE_KEY_BYTES];
            rc = segment_held_by(l, t->id, key);
            rc = rc == 1 ? held_within(l, key, t->n_tokens, &at) : rc;
            there = rc == 1;
        }
        while (there && rc >= 0 && (rc = segment_get(l, at.parent, &before)) == 1 && before.end >= kv_end(t))
            at = before;
        if (rc >= 0 && there)
            rc = segment_hold(l, to[i], at.key);
        if (rc >= 0 && t->saved == STORAGE_SAVED_PENDING)
            rc = storage_turn_set_saved(l, to[i],
                                        there && at.end >= kv_end(t) ? STORAGE_SAVED_YES : STORAGE_SAVED_FAILED);
    }
    return rc < 0 ? rc : 0;
}

static bool from_hex(const char *text, uint8_t *out, size_t n)
{
    size_t i = 0;
    unsigned byte;
    while (text && i < n && sscanf(text + 2 * i, "%2x", &byte) == 1)
        out[i++] = (uint8_t)byte;
    return i == n;
}

/* The same of a turn's context. */
static int find_again(struct storage_ledger *l, int64_t id, int64_t owner, const char *kv, struct extent of,
                      uint8_t key[STORAGE_KEY_BYTES])
{
    uint8_t fingerprint[32];
    struct space space;
    void *tokens = NULL;
    size_t bytes = 0;
    memset(key, 0, STORAGE_KEY_BYTES);
    int rc = of.n_tokens > 1 && of.kv_end <= of.n_tokens && from_hex(kv, fingerprint, sizeof fingerprint) ? 1 : 0;
    if (rc == 1)
        rc = space_get(l, owner, fingerprint, &space); /* without one there is nothing of it */
    if (rc == 1 && (rc = storage_turn_context(l, owner, id, &tokens, &bytes)) == 0)
        rc = bytes % (size_t)of.n_tokens ? 0 : find_segments(l, owner, fingerprint, tokens, bytes, of, key);
    else if (rc == -ENOENT || rc == -EBADMSG)
        rc = 0; /* nothing is found by tokens that cannot be read */
    free(tokens);
    return rc;
}

/* Makes the turn hold what there is of its KV, when it holds nothing that is there: the transaction that made it hold
 * that was not synced, and may have been lost, or the ledger is an older one. 1: that is all of it; 0: it is not. */
static int hold_again(struct storage_ledger *l, int64_t id, int64_t owner, const char *kv, struct extent of)
{
    uint8_t key[STORAGE_KEY_BYTES];
    int rc = find_again(l, id, owner, kv, of, key);
    if (rc < 0 || pack_is_zero(key, sizeof key))
        return rc;
    int hold_rc = segment_hold(l, id, key);
    return hold_rc ? hold_rc : rc;
}

/* Another turn's tail may begin as a segment does that is missing before one that begins at `behind`: then *before,
 * which was found, gets the one before the tail. What others are behind is all as long as the first of its chain. *row
 * is the row of *before, or none. */
static int before_tail(struct storage_ledger *l, int64_t behind, uint8_t before[STORAGE_KEY_BYTES],
                       struct segment_row *row)
{
    struct segment_row first = *row;
    int rc = 1;
    while (rc == 1 && !pack_is_zero(first.parent, sizeof first.parent)) {
        uint8_t at[STORAGE_KEY_BYTES];
        memcpy(at, first.parent, sizeof at);
        rc = segment_get(l, at, &first);
    }
    if (rc != 1 || first.end < 1 || (row->end % first.end == 0 && behind % first.end == 0))
        return rc;
    memcpy(before, row->parent, STORAGE_KEY_BYTES);
    *row = (struct segment_row){0};
    return pack_is_zero(before, STORAGE_KEY_BYTES) ? 0 : segment_get(l, before, row);
}

int turn_before_gaps(struct storage_ledger *l, const struct storage_turn *t, uint8_t key[STORAGE_KEY_BYTES])
{
    return find_again(l, t->id, t->owner, t->kv, (struct extent){t->n_tokens, kv_end(t)}, key);
}

int turns_before_gaps(struct storage_ledger *l, int64_t owner, int64_t conversation, struct key_list *keys)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_ENDS, conversation);
    while ((rc = stmt_step(l, s)) == 1) {
        uint8_t key[STORAGE_KEY_BYTES] = {0};
        char *kv = NULL;
        rc = column_text(s, 1, &kv);
        if (!rc) /* what cannot be found is no reason to keep the rest */
            (void)find_again(l, sqlite3_column_int64(s, 0), owner, kv,
                             (struct extent){sqlite3_column_int64(s, 2), sqlite3_column_int64(s, 3)}, key);
        free(kv);
        if (rc || (!pack_is_zero(key, sizeof key) && (rc = keys_add(keys, key))))
            break;
    }
    stmt_reset(s);
    return rc;
}

enum held { HELD_NOT_THERE, HELD_BEHIND_GAP, HELD_WHOLE };

/* What becomes of a chain's end: whether it is there, and where chains may have gaps all before it; or negative. *row
 * gets the one right behind a gap. */
static int held_how(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], struct segment_row *row)
{
    struct segment_row before;
    int rc = segment_get(l, key, row);
    if (rc <= 0)
        return rc < 0 ? rc : HELD_NOT_THERE;
    while (l->gaps && !pack_is_zero(row->parent, sizeof row->parent)) {
        rc = segment_get(l, row->parent, &before);
        if (rc <= 0)
            return rc < 0 ? rc : HELD_BEHIND_GAP;
        *row = before;
    }
    return HELD_WHOLE;
}

/* What a turn holds is behind a gap, and so is `behind`, right behind it: the gap gets a row, so that what is before it
 * is held as well. */
static int gap_close(struct storage_ledger *l, int64_t id, int64_t owner, const char *kv, struct extent of,
                     const struct segment_row *behind)
{
    struct segment_row row = {0};
    uint8_t before[STORAGE_KEY_BYTES];
    int rc = find_again(l, id, owner, kv, of, before);
    bool none = pack_is_zero(before, sizeof before);
    if (rc >= 0 && !none)
        rc = segment_get(l, before, &row);
    if (rc < 0)
        return rc;
    if (row.end >= behind->first) /* it is no gap in this context */
        return none ? 0 : segment_hold(l, id, before);
    rc = none ? 0 : before_tail(l, behind->first, before, &row);
    return rc < 0 ? rc : segment_link(l, behind, before, row.end);
}

int turns_hold_again(struct storage_ledger *l, int64_t *after, int n)
{
    int rc = 1;
    for (int64_t until_ms = monotonic_ms() + HOLD_AGAIN_MS; n-- > 0 && rc == 1 && monotonic_ms() < until_ms;) {
        uint8_t key[STORAGE_KEY_BYTES];
        char *kv = NULL;
        sqlite3_stmt *s = STMT_WITH(l, S_HOLD_NEXT, *after);
        rc = stmt_step(l, s);
        if (rc != 1)
            break;
        int64_t owner = sqlite3_column_int64(s, 2);
        struct extent of = {sqlite3_column_int64(s, 4), sqlite3_column_int64(s, 5)};
        *after = sqlite3_column_int64(s, 0);
        bool read = !column_bytes(s, 1, key, sizeof key); /* a damaged row holds nothing */
        rc = column_text(s, 3, &kv);
        stmt_reset(s);
        struct segment_row behind;
        int how = !rc && read && !pack_is_zero(key, sizeof key) ? held_how(l, key, &behind) : HELD_WHOLE;
        if (!rc && how != HELD_WHOLE)
            rc = how < 0                 ? how
                 : how == HELD_NOT_THERE ? hold_again(l, *after, owner, kv, of)
                                         : gap_close(l, *after, owner, kv, of, &behind);
        free(kv);
        rc = rc < 0 ? rc : 1;
    }
    if (rc == 0)
        *after = INT64_MAX;
    return rc < 0 ? rc : 0;
}

int turns_pending_over(struct storage_ledger *l, int64_t last)
{
    for (;;) { /* each leaves the set that is asked for */
        uint8_t key[STORAGE_KEY_BYTES];
        sqlite3_stmt *s = STMT_WITH(l, S_TURNS_PENDING, last);
        int rc = stmt_step(l, s);
        if (rc != 1)
            return rc;
        char *kv = NULL;
        int64_t id = sqlite3_column_int64(s, 0), owner = sqlite3_column_int64(s, 3);
        struct extent of = {sqlite3_column_int64(s, 1), sqlite3_column_int64(s, 5)};
        rc = column_bytes(s, 2, key, sizeof key);
        if (!rc)
            rc = column_text(s, 4, &kv);
        stmt_reset(s);
        bool saved = !rc && (held_to(l, key, of.kv_end) || hold_again(l, id, owner, kv, of) == 1);
        free(kv);
        if (!rc)
            rc = storage_turn_set_saved(l, id, saved ? STORAGE_SAVED_YES : STORAGE_SAVED_FAILED);
        if (rc)
            return rc;
    }
}

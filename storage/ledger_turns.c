/* ledger_turns.c - rows of turns: a tree per conversation. Ledger thread only, inside a job.
 *
 * A turn's parent is a turn of the same conversation and owner, so that deleting a conversation never leaves a turn
 * without its past. What can be a parent has ended well: turns that wait, run or failed are leaves, and on no path.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define HOLD_AGAIN_MS 5 /* that others' transactions wait for turns that hold again what they can */

void storage_turn_free(struct storage_turn *t)
{
    if (!t)
        return;
    char *texts[] = {t->public_id, t->reason, t->instructions, t->kv, t->params, t->receipt, t->request};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    free(t->tokens);
    storage_items_free(t->items, t->n_items);
    *t = (struct storage_turn){0};
}

void storage_turns_free(struct storage_turn *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        storage_turn_free(&rows[i]);
    free(rows);
}

/* In the column `rebased`. */
enum { CONTEXT_ADDED, CONTEXT_ANEW, CONTEXT_UNSTORED };

static int context_column(const struct storage_turn *t)
{
    return t->unstored ? CONTEXT_UNSTORED : t->rebased ? CONTEXT_ANEW : CONTEXT_ADDED;
}

/* The order is that of TURN_COLUMNS. */
static int turn_read(struct storage_ledger *l, sqlite3_stmt *s, struct storage_turn *out)
{
    struct storage_turn t = {.id = sqlite3_column_int64(s, 0),
                             .owner = sqlite3_column_int64(s, 1),
                             .conversation = sqlite3_column_int64(s, 2),
                             .parent = sqlite3_column_int64(s, 3),
                             .status = (enum storage_turn_status)sqlite3_column_int(s, 11),
                             .saved = (enum storage_saved)sqlite3_column_int(s, 12),
                             .prompt_bytes = (size_t)sqlite3_column_int64(s, 13),
                             .rebased = sqlite3_column_int(s, 14) != CONTEXT_ADDED,
                             .unstored = sqlite3_column_int(s, 14) == CONTEXT_UNSTORED,
                             .n_tokens = sqlite3_column_int64(s, 15),
                             .created_ms = sqlite3_column_int64(s, 16),
                             .completed_ms = sqlite3_column_int64(s, 17),
                             .depth = sqlite3_column_int(s, 18),
                             .answered = sqlite3_column_int(s, 19) != 0,
                             .delivered = sqlite3_column_int(s, 20) != 0,
                             .age_ms = ledger_clock_ms(l) - sqlite3_column_int64(s, 21),
                             .input_tokens = sqlite3_column_int(s, 22),
                             .cached_tokens = sqlite3_column_int(s, 23),
                             .output_tokens = sqlite3_column_int(s, 24),
                             .evaluated = sqlite3_column_int64(s, 25),
                             .base = sqlite3_column_int64(s, 26),
                             .strips = sqlite3_column_int64(s, 27)};
    char **const texts[] = {&t.public_id, &t.reason, &t.instructions, &t.kv, &t.params, &t.receipt, &t.request};
    int rc = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !rc; i++)
        rc = column_text(s, 4 + (int)i, texts[i]);
    if (!rc)
        rc = column_bytes(s, 28, t.fingerprint, sizeof t.fingerprint);
    if (!rc)
        rc = column_bytes(s, 29, t.chat_hash, sizeof t.chat_hash);
    if (!rc && ((int)t.status < STORAGE_TURN_COMPLETED || (int)t.status > STORAGE_TURN_QUEUED || t.n_tokens < 0 ||
                t.n_tokens > INT32_MAX || (int)t.saved < 0 || (int)t.saved > STORAGE_SAVED_FAILED))
        rc = -EBADMSG;
    if (rc)
        storage_turn_free(&t);
    else
        *out = t;
    return rc;
}

/* Reads what is wanted beside the row. Frees t where that fails. */
static int turn_parts(struct storage_ledger *l, unsigned parts, struct storage_turn *t)
{
    int rc = 0;
    if (parts & STORAGE_TURN_TOKENS) {
        sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_GET, t->id);
        rc = stmt_step(l, s);
        if (rc == 1) {
            rc = column_copy(s, 0, &t->tokens, &t->tokens_bytes);
            stmt_reset(s);
        }
        if (!rc && t->prompt_bytes > t->tokens_bytes)
            rc = -EBADMSG;
    }
    if (!rc && parts & STORAGE_TURN_ITEMS)
        rc = items_of(l, t->id, &t->items, &t->n_items);
    if (rc)
        storage_turn_free(t);
    return rc;
}

/* The one row of a query. */
static int turn_one(struct storage_ledger *l, sqlite3_stmt *s, unsigned parts, struct storage_turn *out)
{
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = turn_read(l, s, out);
    stmt_reset(s);
    return rc ? rc : turn_parts(l, parts, out);
}

int storage_turn_get(struct storage_ledger *l, int64_t owner, const char *public_id, unsigned parts,
                     struct storage_turn *out)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_GET);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return turn_one(l, s, parts, out);
}

int storage_turn_by_id(struct storage_ledger *l, int64_t owner, int64_t id, unsigned parts, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_BY_ID, id, owner);
    return turn_one(l, s, parts, out);
}

int storage_turn_by_digest(struct storage_ledger *l, int64_t owner, const uint8_t digest[STORAGE_DIGEST_BYTES],
                           int64_t before, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_BY_DIGEST, owner, 0, before);
    bind_blob(s, 2, digest, STORAGE_DIGEST_BYTES);
    return turn_one(l, s, 0, out);
}

int storage_turn_stripped(struct storage_ledger *l, int64_t owner, int64_t turn, struct storage_turn *out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_STRIPPED_GET, turn, owner);
    return turn_one(l, s, 0, out);
}

int storage_turn_public_id(struct storage_ledger *l, int64_t id, char **out)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_PUBLIC_ID, id);
    return stmt_text(l, s, out);
}

int64_t storage_turn_base(const struct storage_turn *t)
{
    return t->base ? t->base : t->parent;
}

int storage_turn_parent(struct storage_ledger *l, int64_t owner, int64_t id, int64_t *parent, bool *rebased)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_PARENT, id, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *parent = sqlite3_column_int64(s, 0);
    *rebased = sqlite3_column_int(s, 1) != 0;
    stmt_reset(s);
    return 0;
}

/* ---- a turn's life ---- */

int storage_turn_insert(struct storage_ledger *l, struct storage_turn *t)
{
    int rc, depth = 1;
    sqlite3_stmt *s;
    if (t->status != STORAGE_TURN_RUNNING && t->status != STORAGE_TURN_QUEUED)
        return -EINVAL;
    if (t->parent) {
        s = STMT_WITH(l, S_TURN_PLACE, t->parent, t->owner, t->conversation);
        rc = stmt_row(l, s);
        if (rc)
            return rc;
        depth = sqlite3_column_int(s, 0) + 1;
        stmt_reset(s);
    }
    s = STMT_WITH(l, S_CONV_OWNED, t->conversation, t->owner);
    rc = stmt_row(l, s);
    if (rc)
        return rc;
    stmt_reset(s);
    s = STMT_WITH(l, S_TURN_INSERT, t->owner, t->conversation);
    if (t->parent)
        (void)sqlite3_bind_int64(s, 3, t->parent);
    bind_text(s, 4, t->public_id);
    (void)sqlite3_bind_int(s, 5, (int)t->status);
    bind_text(s, 6, t->instructions);
    bind_blob(s, 7, t->fingerprint, sizeof t->fingerprint);
    (void)sqlite3_bind_int64(s, 8, t->created_ms);
    (void)sqlite3_bind_int(s, 9, depth);
    (void)sqlite3_bind_int64(s, 10, ledger_clock_ms(l));
    if (!pack_is_zero(t->digest, sizeof t->digest))
        bind_blob(s, 11, t->digest, sizeof t->digest);
    bind_text(s, 12, t->params);
    bind_text(s, 13, t->request);
    (void)sqlite3_bind_int(s, 14, context_column(t));
    rc = stmt_run(l, s, NULL);
    int64_t id = sqlite3_last_insert_rowid(l->db);
    if (!rc)
        rc = items_insert(l, id, t->items, t->n_items);
    if (!rc)
        t->id = id;
    return rc;
}

/* Runs a statement that changes one row. -ENOENT: it changed none. */
static int change_one(struct storage_ledger *l, sqlite3_stmt *s)
{
    int changes = 0, rc = stmt_run(l, s, &changes);
    return rc ? rc : changes ? 0 : -ENOENT;
}

int storage_turn_run(struct storage_ledger *l, int64_t id)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_RUN, id);
    return change_one(l, s);
}

static int tokens_set(struct storage_ledger *l, const struct storage_turn *t)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_SET, t->id);
    bind_blob(s, 2, t->tokens, t->tokens_bytes);
    return stmt_run(l, s, NULL);
}

int storage_turn_strip(struct storage_ledger *l, struct storage_turn *t)
{
    sqlite3_stmt *s = STMT_WITH(l, S_STRIPPED_INSERT, t->strips, t->owner);
    bind_text(s, 3, t->public_id);
    (void)sqlite3_bind_int(s, 4, t->rebased);
    (void)sqlite3_bind_int64(s, 5, t->n_tokens);
    bind_blob(s, 6, t->fingerprint, sizeof t->fingerprint);
    (void)sqlite3_bind_int64(s, 7, t->completed_ms);
    (void)sqlite3_bind_int64(s, 8, ledger_clock_ms(l));
    (void)sqlite3_bind_int(s, 9, (int)t->saved);
    (void)sqlite3_bind_int64(s, 10, t->evaluated);
    bind_text(s, 11, t->kv);
    (void)sqlite3_bind_int64(s, 12, t->base);
    int rc = change_one(l, s);
    if (rc)
        return rc;
    t->id = sqlite3_last_insert_rowid(l->db);
    return tokens_set(l, t);
}

int storage_turn_commit(struct storage_ledger *l, struct storage_turn *t)
{
    int rc;
    if (t->prompt_bytes > t->tokens_bytes ||
        (t->status != STORAGE_TURN_COMPLETED && t->status != STORAGE_TURN_INCOMPLETE))
        return -EINVAL;
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_COMMIT, t->id, (int64_t)t->status);
    bind_text(s, 3, t->reason);
    (void)sqlite3_bind_int64(s, 4, (sqlite3_int64)t->prompt_bytes);
    (void)sqlite3_bind_int(s, 5, context_column(t));
    (void)sqlite3_bind_int64(s, 6, t->n_tokens);
    bind_blob(s, 7, t->fingerprint, sizeof t->fingerprint);
    if (!pack_is_zero(t->chat_hash, sizeof t->chat_hash))
        bind_blob(s, 8, t->chat_hash, sizeof t->chat_hash);
    (void)sqlite3_bind_int64(s, 9, t->completed_ms);
    (void)sqlite3_bind_int(s, 10, t->answered);
    (void)sqlite3_bind_int(s, 11, (int)t->saved);
    (void)sqlite3_bind_int(s, 12, t->input_tokens);
    (void)sqlite3_bind_int(s, 13, t->cached_tokens);
    (void)sqlite3_bind_int(s, 14, t->output_tokens);
    (void)sqlite3_bind_int64(s, 15, t->evaluated);
    bind_text(s, 16, t->kv);
    bind_text(s, 17, t->receipt);
    (void)sqlite3_bind_int64(s, 18, t->base);
    rc = stmt_row(l, s);
    if (rc)
        return rc;
    t->conversation = sqlite3_column_int64(s, 0);
    stmt_reset(s);
    if ((rc = tokens_set(l, t)) || (rc = items_insert(l, t->id, t->items, t->n_items)))
        return rc;
    s = STMT_WITH(l, S_CONV_ADVANCE, t->conversation, t->id, t->completed_ms);
    return change_one(l, s);
}

int storage_turn_fail(struct storage_ledger *l, int64_t id, const char *reason, int64_t completed_ms)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_FAIL, id, 0, completed_ms);
    bind_text(s, 2, reason);
    return change_one(l, s);
}

int storage_turn_set_saved(struct storage_ledger *l, int64_t id, enum storage_saved saved)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_SET_SAVED, id, (int64_t)saved);
    return change_one(l, s);
}

int storage_turn_set_delivered(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_DELIVERED);
    bind_text(s, 1, public_id);
    (void)sqlite3_bind_int64(s, 2, owner);
    return change_one(l, s);
}

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
    return segment_link(l, behind, before, row.end);
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

int turns_interrupted(struct storage_ledger *l, int64_t now_ms)
{
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_TURNS_INTERRUPTED, now_ms);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = stmt_get(l, S_TURN_LATEST);
    rc = stmt_step(l, s);
    l->pending_last = rc == 1 ? sqlite3_column_int64(s, 0) : 0;
    stmt_reset(s);
    return rc < 0 ? rc : l->unread ? 0 : turns_pending_over(l, l->pending_last);
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

int storage_turn_queued(struct storage_ledger *l, int64_t after, int64_t *id, char **owner, char **public_id,
                        char **request)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_QUEUED, after);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *id = sqlite3_column_int64(s, 0);
    char **const texts[] = {owner, public_id, request};
    rc = 0;
    for (int i = 0; i < 3; i++) {
        int one = column_text(s, 1 + i, texts[i]);
        rc = rc ? rc : one;
    }
    stmt_reset(s);
    if (!rc && (!*owner || !*public_id || !*request))
        rc = -EBADMSG;
    for (int i = 0; i < 3 && rc; i++) {
        free(*texts[i]);
        *texts[i] = NULL;
    }
    return rc;
}

/* ---- chains of turns ---- */

int storage_turn_path(struct storage_ledger *l, int64_t owner, int64_t turn, unsigned parts, struct storage_turn **rows,
                      size_t *n)
{
    struct storage_turn *path = NULL;
    size_t found = 0, cap = 0;
    int rc = turn > 0 ? 0 : -ENOENT;
    while (!rc && turn) {
        if (found == cap) {
            size_t more = cap ? cap * 2 : 16;
            struct storage_turn *grown = realloc(path, more * sizeof *grown);
            if (!grown) {
                rc = -ENOMEM;
                break;
            }
            path = grown;
            cap = more;
        }
        rc = storage_turn_by_id(l, owner, turn, parts, &path[found]);
        if (rc == -ENOENT && found)
            rc = -EBADMSG;
        if (rc)
            break;
        int64_t parent = path[found++].parent;
        /* A parent is older than its child: a path that does not descend would never end. */
        if (parent >= turn || parent < 0)
            rc = -EBADMSG;
        turn = parent;
    }
    if (rc) {
        storage_turns_free(path, found);
        return rc;
    }
    for (size_t i = 0; i < found / 2; i++) {
        struct storage_turn t = path[i];
        path[i] = path[found - 1 - i];
        path[found - 1 - i] = t;
    }
    *rows = path;
    *n = found;
    return 0;
}

int storage_turn_context(struct storage_ledger *l, int64_t owner, int64_t turn, void **tokens, size_t *bytes)
{
    sqlite3_stmt *s = STMT_WITH(l, S_TOKENS_UP, turn, owner);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = sqlite3_column_int64(s, 0) ? column_copy(s, 1, tokens, bytes) : -ENOENT;
    stmt_reset(s);
    return rc;
}

int storage_turn_match(struct storage_ledger *l, int64_t owner, const uint8_t chat_hash[32],
                       const uint8_t fingerprint[32], int64_t *turn, int64_t *conversation)
{
    sqlite3_stmt *s = stmt_get(l, S_TURN_MATCH);
    (void)sqlite3_bind_int64(s, 1, owner);
    bind_blob(s, 2, chat_hash, 32);
    bind_blob(s, 3, fingerprint, 32);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    *turn = sqlite3_column_int64(s, 0);
    *conversation = sqlite3_column_int64(s, 1);
    stmt_reset(s);
    return 0;
}

int storage_turns_page(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t after, size_t max,
                       struct storage_turn **rows, size_t *n)
{
    struct storage_turn *turns = calloc(max + 1, sizeof *turns);
    int64_t *ids = calloc(max + 1, sizeof *ids);
    size_t n_ids = 0, found = 0;
    int rc = turns && ids ? 0 : -ENOMEM;
    sqlite3_stmt *s = STMT_WITH(l, S_TURNS_PAGE, conversation, after, (int64_t)max);
    while (turns && ids && n_ids < max && (rc = stmt_step(l, s)) == 1)
        ids[n_ids++] = sqlite3_column_int64(s, 0);
    stmt_reset(s);
    rc = rc > 0 ? 0 : rc;
    for (; !rc && found < n_ids; found += !rc)
        rc = storage_turn_by_id(l, owner, ids[found], STORAGE_TURN_ITEMS, &turns[found]);
    free(ids);
    if (rc) {
        storage_turns_free(turns, found);
        return rc;
    }
    *rows = turns;
    *n = found;
    return 0;
}

int storage_turn_is_leaf(struct storage_ledger *l, int64_t id)
{
    int rc = stmt_any(l, STMT_WITH(l, S_TURN_HAS_CHILD, id));
    return rc < 0 ? rc : rc == 0;
}

/* A turn and those before it hold nothing that reaches beyond its end: of their context that is, back to the one that
 * was rendered anew. */
static int holds_within(struct storage_ledger *l, int64_t turn)
{
    int64_t end = -1;
    bool rebased = false;
    int rc = 0;
    while (!rc && turn && !rebased) {
        sqlite3_stmt *s = STMT_WITH(l, S_TURN_UP, turn);
        rc = stmt_step(l, s);
        if (rc != 1)
            return rc;
        int64_t up = sqlite3_column_int64(s, 0), n_tokens = sqlite3_column_int64(s, 1);
        rebased = sqlite3_column_int64(s, 2) != 0;
        stmt_reset(s);
        end = end < 0 ? n_tokens : end;
        rc = segment_hold_within(l, turn, end);
        turn = up;
    }
    return rc;
}

static int turn_remove(struct storage_ledger *l, const struct storage_turn *t);

/* With the turn goes its context without thinking. */
static int stripped_remove(struct storage_ledger *l, const struct storage_turn *t)
{
    struct storage_turn stripped;
    int rc = t->strips ? -ENOENT : storage_turn_stripped(l, t->owner, t->id, &stripped);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    rc = turn_remove(l, &stripped);
    storage_turn_free(&stripped);
    return rc;
}

/* Takes a leaf out of the tree. */
static int turn_remove(struct storage_ledger *l, const struct storage_turn *t)
{
    uint8_t held[STORAGE_KEY_BYTES] = {0}, before[STORAGE_KEY_BYTES] = {0};
    int rc = storage_turn_is_leaf(l, t->id);
    if (rc <= 0)
        return rc ? rc : -EBUSY;
    if ((rc = stripped_remove(l, t)))
        return rc;
    if ((rc = segment_held_by(l, t->id, held)) < 0)
        return rc;
    if (l->unread)
        (void)find_again(l, t->id, t->owner, t->kv, (struct extent){t->n_tokens, kv_end(t)}, before);
    /* What was asked behind it in vain stays, behind the one before. */
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_ADOPT, t->id, t->parent, t->unstored ? CONTEXT_UNSTORED : CONTEXT_ADDED);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = STMT_WITH(l, S_TURN_DELETE, t->id); /* its hold, items and tokens go with it */
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    s = STMT_WITH(l, S_HEAD_MOVE, t->conversation, t->parent, t->id);
    if ((rc = stmt_run(l, s, NULL)))
        return rc;
    if (t->status <= STORAGE_TURN_INCOMPLETE && !t->strips)
        rc = stmt_run(l, STMT_WITH(l, S_TURN_UNCOUNT, t->conversation), NULL);
    if (!rc)
        rc = ledger_dead_turn(l, t->id);
    if (!rc && !t->rebased)
        rc = holds_within(l, storage_turn_base(t));
    if (!rc)
        rc = segment_release(l, held);
    return rc ? rc : segment_release(l, before);
}

int storage_turn_delete(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct storage_turn t;
    int rc = storage_turn_get(l, owner, public_id, 0, &t);
    if (rc)
        return rc;
    rc = turn_remove(l, &t);
    if (!rc)
        rc = stmt_run(l, STMT_WITH(l, S_CONV_DROP_EMPTY, t.conversation), NULL);
    storage_turn_free(&t);
    if (!rc)
        rc = segment_let_go(l);
    return rc ? rc : erase_mark(l, owner, public_id);
}

int storage_turn_replace(struct storage_ledger *l, int64_t owner, int64_t id)
{
    struct storage_turn t;
    int rc = storage_turn_by_id(l, owner, id, 0, &t);
    if (rc)
        return rc;
    rc = turn_remove(l, &t);
    storage_turn_free(&t);
    return rc;
}

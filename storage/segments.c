/* segments.c - the index of segments: who is whose child, what holds it, where it lies. Ledger thread only.
 *
 * A segment lives while a child's row names it as parent or a turn's hold names it; nothing is counted. Holds are rows
 * of ledger.db, so that they outlive an index that is made anew. What leaves the index becomes an intent in ledger.db
 * in the same batch; the ledger commits first, then kv.db, then the holes are cut, then the intents go. A crash in
 * between leaves an intent that segments_recover() carries out, or a record without a row that it takes in again.
 *
 * Eviction takes the least recently used leaves. Uses are noted when a lookup finds a segment and when a commit holds
 * the end of a chain; what is before it is no leaf. The clock of uses counts them: `used` never goes back.
 *
 * A segment that a longer one takes the place of is not dropped with the transaction that stores the longer one: what
 * is cut out of a pack must have gone from the ledger durably, and that one is not synced. It is dropped with the next
 * deletion, when there are many, or when nothing else is to be done.
 *
 * What nothing holds is searched for in the background, from the oldest row to the newest, at start and whenever turns
 * have ended. A row whose use is later than the clock that the search was given is passed over: a running turn has put
 * it, and will hold it, or has planned to read it. The next search begins with the first one that was passed over.
 *
 * A segment that was found damaged but has children keeps its row without a place (pack IS NULL), so that the chain
 * stays whole until the segment is stored anew. One that is missing in an index that was made anew gets such a row.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define SPACES_MOST 64 /* of one owner that are looked at: models that made KV for it */

static int bind_key(sqlite3_stmt *s, int at, const uint8_t key[STORAGE_KEY_BYTES])
{
    return sqlite3_bind_blob(s, at, key, STORAGE_KEY_BYTES, SQLITE_STATIC);
}

/* Whether a query of one key, or with NULL of none, gives a row: 1, 0 or negative. */
static int any(struct storage_ledger *l, enum stmt_id id, const uint8_t key[STORAGE_KEY_BYTES])
{
    sqlite3_stmt *s = stmt_get(l, id);
    if (key)
        (void)bind_key(s, 1, key);
    return stmt_any(l, s);
}

static int key_run(struct storage_ledger *l, enum stmt_id id, const uint8_t key[STORAGE_KEY_BYTES])
{
    sqlite3_stmt *s = stmt_get(l, id);
    (void)bind_key(s, 1, key);
    return stmt_run(l, s, NULL);
}

int segment_get(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], struct segment_row *row)
{
    sqlite3_stmt *s = stmt_get(l, S_SEG_GET);
    (void)bind_key(s, 1, key);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    memcpy(row->key, key, STORAGE_KEY_BYTES);
    rc = column_bytes(s, 0, row->parent, STORAGE_KEY_BYTES);
    row->pack = sqlite3_column_type(s, 1) == SQLITE_NULL ? STORAGE_PACK_NONE : (uint32_t)sqlite3_column_int64(s, 1);
    row->offset = (uint64_t)sqlite3_column_int64(s, 2);
    row->bytes = (uint64_t)sqlite3_column_int64(s, 3);
    row->end = sqlite3_column_int64(s, 4);
    row->used = (uint64_t)sqlite3_column_int64(s, 5);
    row->owner = sqlite3_column_int64(s, 6);
    row->children = sqlite3_column_int64(s, 7);
    row->head_bytes = sqlite3_column_int(s, 8);
    row->id = sqlite3_column_int64(s, 9);
    row->space = sqlite3_column_int64(s, 10);
    row->first = sqlite3_column_int64(s, 11);
    stmt_reset(s);
    return rc ? rc : 1;
}

static int id_run(struct storage_ledger *l, enum stmt_id id, int64_t row)
{
    sqlite3_stmt *s = STMT_WITH(l, id, row);
    return stmt_run(l, s, NULL);
}

/* Adjusts what the index knows about a pack: its end (if later), its live bytes and records; and about a space, which
 * has as many bytes more or less (0: it was only moved). */
static int account(struct storage_ledger *l, int64_t space, uint32_t pack, uint64_t end, int64_t bytes, int64_t count)
{
    int rc = stmt_run(l, STMT_WITH(l, S_PACK_ADD, pack, (int64_t)end, bytes, count), NULL);
    return rc || !space ? rc : stmt_run(l, STMT_WITH(l, S_SPACE_COUNT, space, bytes), NULL);
}

/* A row's record is no longer there. */
static int account_gone(struct storage_ledger *l, const struct segment_row *row)
{
    return account(l, row->space, row->pack, 0, -(int64_t)row->bytes, -1);
}

/* One more child of a segment, or fewer. The root of chains has no row. */
static int children_add(struct storage_ledger *l, const uint8_t parent[STORAGE_KEY_BYTES], int change)
{
    if (pack_is_zero(parent, STORAGE_KEY_BYTES))
        return 0;
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_CHILDREN, 0, change);
    (void)bind_key(s, 1, parent);
    return stmt_run(l, s, NULL);
}

int segment_link(struct storage_ledger *l, const struct segment_row *row, const uint8_t before[STORAGE_KEY_BYTES],
                 int64_t end)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_LOST, row->id, 0, end);
    (void)bind_key(s, 2, before);
    int rc = stmt_run(l, s, NULL);
    return rc ? rc : children_add(l, before, 1);
}

int segment_exists(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    struct segment_row row;
    int rc = segment_get(l, key, &row);
    return rc == 1 ? row.pack != STORAGE_PACK_NONE : rc;
}

int storage_segment_lost(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    struct segment_row row;
    if (!key)
        return segment_any_forgotten(l);
    int rc = segment_get(l, key, &row);
    return rc == 1 ? row.pack == STORAGE_PACK_NONE && row.children : rc;
}

/* The space and the code of what is stored. */
static int coded_of(struct storage_ledger *l, const struct pack_record *r, const uint8_t *label, struct space *space,
                    struct coded *code)
{
    bool ids = r->label_bytes == 4 * (uint64_t)r->count;
    int rc = space_add(l, r->owner, r->fingerprint, ids ? LABEL_IDS : LABEL_RAW, space);
    if (!rc && space->unit == LABEL_IDS && !ids)
        rc = -EINVAL;
    return rc ? rc : label_code(space, label, r->label_bytes, code);
}

static int row_new(struct storage_ledger *l, const struct pack_record *r, const struct place_of *at, int64_t producer,
                   const struct space *space, const struct coded *code)
{
    sqlite3_stmt *s = stmt_get(l, S_SEG_INSERT);
    (void)bind_key(s, 1, r->key);
    (void)bind_key(s, 2, r->parent);
    (void)sqlite3_bind_int64(s, 3, space->id);
    (void)sqlite3_bind_int64(s, 4, r->first);
    (void)sqlite3_bind_int64(s, 5, r->count);
    (void)sqlite3_bind_int64(s, 6, r->label_bytes);
    (void)sqlite3_bind_int64(s, 7, coded_sum(code, code->units));
    (void)sqlite3_bind_int64(s, 8, producer);
    (void)sqlite3_bind_int64(s, 9, at->pack);
    (void)sqlite3_bind_int64(s, 10, (sqlite3_int64)at->offset);
    (void)sqlite3_bind_int64(s, 11, (sqlite3_int64)at->bytes);
    (void)sqlite3_bind_int64(s, 12, (sqlite3_int64)++l->used);
    int rc = stmt_run(l, s, NULL);
    if (!rc)
        rc = head_set(l, sqlite3_last_insert_rowid(l->kv), space, r->parent, code);
    return rc ? rc : children_add(l, r->parent, 1);
}

/* Without memory for it, it goes at once. */
static int supersede(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (l->n_superseded == l->cap_superseded) {
        size_t cap = l->cap_superseded ? l->cap_superseded * 2 : 64;
        uint8_t(*grown)[STORAGE_KEY_BYTES] = realloc(l->superseded, cap * sizeof *grown);
        if (!grown)
            return segment_release(l, key);
        l->superseded = grown;
        l->cap_superseded = cap;
    }
    memcpy(l->superseded[l->n_superseded++], key, STORAGE_KEY_BYTES);
    return 0;
}

/* One that was forgotten is there again. Its row may have stood for others before it, too, that are missing. */
static int row_revive(struct storage_ledger *l, const struct segment_row *row, const struct pack_record *r,
                      const struct place_of *at, int64_t producer, const struct space *space, const struct coded *code)
{
    sqlite3_stmt *s =
        STMT_WITH(l, S_SEG_REVIVE, row->id, at->pack, (int64_t)at->offset, (int64_t)at->bytes, (int64_t)++l->used,
                  producer, r->first, r->count, r->label_bytes, coded_sum(code, code->units));
    (void)bind_key(s, 11, r->parent);
    int rc = stmt_run(l, s, NULL);
    if (!rc && memcmp(row->parent, r->parent, STORAGE_KEY_BYTES) != 0) {
        rc = children_add(l, row->parent, -1);
        if (!rc)
            rc = children_add(l, r->parent, 1);
        if (!rc && !pack_is_zero(row->parent, sizeof row->parent)) /* nothing may be behind it any more */
            rc = supersede(l, row->parent);
    }
    return rc ? rc : head_set(l, row->id, space, r->parent, code);
}

/* A head goes from a row, or with it. One with more than a few units that no sibling has says more than a deletion may
 * leave in the log: see erase.c. What it has in common with one goes with the last of them. */
static void head_goes(struct storage_ledger *l, const struct segment_row *row)
{
    size_t own;
    if (!l->heads_logged && row->head_bytes > LABEL_HEAD_SHORT)
        l->heads_logged = head_own(l, row->id, &own) || own > LABEL_HEAD_SHORT;
}

/* The record goes and the row stays: another one comes in its place. */
static int row_clear(struct storage_ledger *l, const struct segment_row *row)
{
    head_goes(l, row);
    int rc = segment_drop_record(l, row->owner, row->key, row->pack, row->offset, row->bytes);
    if (!rc)
        rc = account_gone(l, row);
    return rc ? rc : id_run(l, S_SEG_FORGET, row->id);
}

int segment_insert(struct storage_ledger *l, const struct pack_record *r, const uint8_t *label, uint32_t pack,
                   uint64_t offset, uint64_t bytes)
{
    struct segment_row row;
    int64_t producer;
    int there = segment_get(l, r->key, &row);
    if (there < 0)
        return there;
    int rc = 0;
    if (there && row.pack != STORAGE_PACK_NONE) {
        rc = segment_made_by(l, r->key, r->producer);
        if (rc || (rc = row_clear(l, &row)))
            return rc;
    }
    struct place_of at = {.pack = pack, .offset = offset, .bytes = bytes};
    struct space space;
    struct coded code;
    rc = name_id(l, r->producer, &producer);
    if (!rc)
        rc = coded_of(l, r, label, &space, &code);
    if (rc)
        return rc;
    rc = there ? row_revive(l, &row, r, &at, producer, &space, &code) : row_new(l, r, &at, producer, &space, &code);
    coded_free(&code);
    return rc ? rc : account(l, space.id, pack, offset + bytes, (int64_t)bytes, 1);
}

/* Written down ahead, so that not every use costs a page. */
#define USED_AHEAD ((uint64_t)1 << 20)

int segments_clock(struct storage_ledger *l)
{
    int64_t value = 0;
    size_t n;
    if (!l->used_noted) {
        int rc = meta_get(l, S_KV_META_GET, "used", &value, sizeof value, &n);
        if (rc < 0)
            return rc;
        if (rc == 1 && (n != sizeof value || value < 0))
            return -EBADMSG;
        if ((uint64_t)value > l->used)
            l->used = (uint64_t)value;
    } else if (l->used < l->used_noted) {
        return 0;
    }
    value = (int64_t)(l->used + USED_AHEAD);
    int rc = meta_set(l, S_KV_META_SET, "used", &value, sizeof value);
    if (!rc)
        l->used_noted = (uint64_t)value;
    return rc;
}

int segment_insert_forgotten(struct storage_ledger *l, const struct pack_record *r, const uint8_t *label, uint32_t pack,
                             uint64_t offset, uint64_t bytes)
{
    int rc = segment_exists(l, r->key);
    if (rc)
        return rc == 1 ? 0 : rc;
    struct segment_row row;
    rc = segment_insert(l, r, label, pack, offset, bytes);
    if (!rc)
        rc = segment_get(l, r->key, &row);
    if (rc != 1)
        return rc ? rc : -ENOENT;
    rc = account_gone(l, &row);
    return rc ? rc : id_run(l, S_SEG_FORGET, row.id);
}

int segment_drop_record(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack,
                        uint64_t offset, uint64_t bytes)
{
    /* Its row came back with a transaction of the index that failed: the intent is there. */
    for (size_t i = 0; i < l->n_waiting; i++)
        if (l->waiting[i].wait == WAIT_INDEX && l->waiting[i].pack == pack && l->waiting[i].offset == offset)
            return 0;
    if (l->n_drops == l->cap_drops) {
        size_t cap = l->cap_drops ? l->cap_drops * 2 : 64;
        struct drop *grown = realloc(l->drops, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        l->drops = grown;
        l->cap_drops = cap;
    }
    sqlite3_stmt *s = stmt_get(l, S_INTENT_INSERT);
    (void)bind_key(s, 1, key);
    (void)sqlite3_bind_int64(s, 2, pack);
    (void)sqlite3_bind_int64(s, 3, (sqlite3_int64)offset);
    (void)sqlite3_bind_int64(s, 4, (sqlite3_int64)bytes);
    int rc = stmt_run(l, s, NULL);
    if (rc)
        return rc;
    struct drop *d = &l->drops[l->n_drops++];
    *d = (struct drop){
        .intent = sqlite3_last_insert_rowid(l->db), .owner = owner, .pack = pack, .offset = offset, .bytes = bytes};
    memcpy(d->key, key, STORAGE_KEY_BYTES);
    return 0;
}

int segment_move(struct storage_ledger *l, const struct segment_row *row, uint32_t pack, uint64_t offset)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_MOVE, row->id, pack, (int64_t)offset);
    int rc = stmt_run(l, s, NULL);
    if (!rc)
        rc = account(l, 0, pack, offset + row->bytes, (int64_t)row->bytes, 1);
    if (!rc)
        rc = account(l, 0, row->pack, 0, -(int64_t)row->bytes, -1);
    size_t n = l->n_drops;
    if (!rc)
        rc = segment_drop_record(l, row->owner, row->key, row->pack, row->offset, row->bytes);
    if (!rc && l->n_drops > n)
        l->drops[n].moved = true;
    return rc;
}

/* Takes a row out of the index. */
static int row_drop(struct storage_ledger *l, const struct segment_row *row)
{
    head_goes(l, row);
    int rc = 0;
    if (row->pack != STORAGE_PACK_NONE) {
        rc = segment_drop_record(l, row->owner, row->key, row->pack, row->offset, row->bytes);
        if (!rc)
            rc = account_gone(l, row);
    }
    if (!rc)
        rc = id_run(l, S_SEG_DELETE, row->id);
    return rc ? rc : children_add(l, row->parent, -1);
}

/* Holds on a segment that goes become holds on its parent, so that the rest of the chain stays. */
static int holds_move(struct storage_ledger *l, const uint8_t from[STORAGE_KEY_BYTES],
                      const uint8_t to[STORAGE_KEY_BYTES])
{
    if (pack_is_zero(to, STORAGE_KEY_BYTES))
        return key_run(l, S_HOLD_DELETE, from);
    sqlite3_stmt *s = stmt_get(l, S_HOLD_MOVE);
    (void)bind_key(s, 1, from);
    (void)bind_key(s, 2, to);
    return stmt_run(l, s, NULL);
}

/* Not what was used later than `clock`. */
static int release_unused(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint64_t clock)
{
    uint8_t at[STORAGE_KEY_BYTES];
    memcpy(at, key, sizeof at);
    while (!pack_is_zero(at, sizeof at)) {
        struct segment_row row;
        int rc = segment_get(l, at, &row);
        if (rc <= 0 || row.used > clock)
            return rc < 0 ? rc : 0;
        bool lost = row.pack == STORAGE_PACK_NONE; /* it is there for those behind it alone */
        rc = row.children ? 1 : lost ? 0 : any(l, S_HELD, at);
        if (rc)
            return rc < 0 ? rc : 0;
        rc = lost ? holds_move(l, at, row.parent) : 0;
        if (!rc)
            rc = row_drop(l, &row);
        if (rc)
            return rc;
        memcpy(at, row.parent, sizeof at);
    }
    return 0;
}

int segment_release(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (l->unread) /* neither its children nor those before it need be known */
        return reindex_release_later(l, key);
    return release_unused(l, key, UINT64_MAX);
}

int segment_held_by(struct storage_ledger *l, int64_t turn, uint8_t key[STORAGE_KEY_BYTES])
{
    sqlite3_stmt *s = STMT_WITH(l, S_HOLD_GET, turn);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    rc = column_bytes(s, 0, key, STORAGE_KEY_BYTES);
    stmt_reset(s);
    return rc ? rc : 1;
}

int segment_let_go(struct storage_ledger *l)
{
    int rc = 0;
    for (size_t i = 0; i < l->n_superseded && !rc; i++)
        rc = segment_release(l, l->superseded[i]);
    if (!rc)
        l->n_let_go = l->n_superseded;
    return rc;
}

void segment_let_go_over(struct storage_ledger *l, int rc)
{
    if (!rc && l->n_let_go) {
        l->n_superseded -= l->n_let_go;
        memmove(l->superseded, l->superseded + l->n_let_go, l->n_superseded * sizeof *l->superseded);
    }
    l->n_let_go = 0;
}

int segment_hold(struct storage_ledger *l, int64_t turn, const uint8_t key[STORAGE_KEY_BYTES])
{
    sqlite3_stmt *s = STMT_WITH(l, S_TURN_EXISTS, turn);
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    stmt_reset(s);
    uint8_t old[STORAGE_KEY_BYTES];
    rc = segment_held_by(l, turn, old);
    if (rc < 0)
        return rc;
    bool had = rc == 1 && memcmp(old, key, sizeof old);
    s = STMT_WITH(l, S_HOLD_SET, turn);
    (void)bind_key(s, 2, key);
    rc = stmt_run(l, s, NULL);
    return rc || !had ? rc : supersede(l, old);
}

int storage_turns_hold(struct storage_ledger *l, int64_t turn, int64_t tokens, const uint8_t key[STORAGE_KEY_BYTES])
{
    struct key_list old = {0};
    int rc;
    sqlite3_stmt *s = STMT_WITH(l, S_HOLDS_NEAR, turn, tokens);
    (void)bind_key(s, 3, key);
    while ((rc = stmt_step(l, s)) == 1) {
        uint8_t one[STORAGE_KEY_BYTES];
        rc = column_bytes(s, 0, one, sizeof one);
        if (rc || (rc = keys_add(&old, one)))
            break;
    }
    stmt_reset(s);
    if (!rc) {
        s = STMT_WITH(l, S_HOLDS_NEAR_SET, turn, tokens);
        (void)bind_key(s, 3, key);
        rc = stmt_run(l, s, NULL);
    }
    for (size_t i = 0; i < old.n && !rc; i++)
        rc = supersede(l, old.keys[i]);
    free(old.keys);
    return rc;
}

int storage_segment_drop(struct storage_ledger *l, const uint8_t last[STORAGE_KEY_BYTES])
{
    return segment_release(l, last);
}

int segment_hold_within(struct storage_ledger *l, int64_t turn, int64_t end)
{
    uint8_t key[STORAGE_KEY_BYTES];
    int rc = segment_held_by(l, turn, key);
    bool beyond = false;
    for (struct segment_row row; rc > 0 && !pack_is_zero(key, sizeof key); beyond = true) {
        rc = segment_get(l, key, &row);
        if (rc <= 0 || row.end <= end)
            break;
        memcpy(key, row.parent, sizeof key);
    }
    if (!rc && l->unread && !pack_is_zero(key, sizeof key))
        rc = reindex_within_later(l, turn, end);
    if (rc < 0 || !beyond)
        return rc < 0 ? rc : 0;
    return segment_hold(l, turn, key);
}

/* A leaf goes, and those that were lost and were there for it alone. */
static int leaf_drop(struct storage_ledger *l, const struct segment_row *leaf)
{
    struct segment_row row = *leaf;
    int rc = 1;
    while (rc == 1) {
        uint8_t before[STORAGE_KEY_BYTES];
        memcpy(before, row.parent, sizeof before);
        rc = holds_move(l, row.key, before);
        if (!rc)
            rc = row_drop(l, &row);
        if (!rc)
            rc = segment_get(l, before, &row);
        if (rc == 1 && (row.children || row.pack != STORAGE_PACK_NONE))
            return 0;
    }
    return rc;
}

int segment_forget(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack, uint64_t offset)
{
    struct segment_row row;
    int rc = segment_get(l, key, &row);
    if (rc <= 0)
        return rc;
    if (row.pack != pack || row.offset != offset)
        return 0;
    if (row.children || l->unread) /* there may be some that are not known yet */
        return row_clear(l, &row);
    return leaf_drop(l, &row);
}

static bool among(const uint8_t (*keys)[STORAGE_KEY_BYTES], size_t n, const void *key, int bytes)
{
    if (bytes != STORAGE_KEY_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!memcmp(keys[i], key, STORAGE_KEY_BYTES))
            return true;
    return false;
}

/* Drops leaves of a space, or with space 0 of all of them, until `bytes` in all are freed or there are no more. */
static int leaves_evict(struct storage_ledger *l, int64_t space, uint64_t bytes,
                        const uint8_t (*keep)[STORAGE_KEY_BYTES], size_t n_keep, uint64_t *freed)
{
    /* One at a time: dropping a leaf may make its parent the next to go. */
    while (*freed < bytes) {
        struct segment_row row;
        int rc;
        sqlite3_stmt *s = space ? STMT_WITH(l, S_SEG_LEAVES_OF, space) : stmt_get(l, S_SEG_LEAVES);
        while ((rc = stmt_step(l, s)) == 1) {
            row.pack = (uint32_t)sqlite3_column_int64(s, 2);
            row.offset = (uint64_t)sqlite3_column_int64(s, 3);
            row.bytes = (uint64_t)sqlite3_column_int64(s, 4);
            row.owner = sqlite3_column_int64(s, 5);
            row.head_bytes = sqlite3_column_int(s, 6);
            row.id = sqlite3_column_int64(s, 7);
            row.space = sqlite3_column_int64(s, 8);
            if (!among(keep, n_keep, sqlite3_column_blob(s, 0), sqlite3_column_bytes(s, 0)) &&
                !pin_held(l->st, row.pack, row.offset))
                break;
        }
        if (rc != 1)
            return rc;
        rc = column_bytes(s, 0, row.key, STORAGE_KEY_BYTES);
        if (!rc)
            rc = column_bytes(s, 1, row.parent, STORAGE_KEY_BYTES);
        stmt_reset(s);
        if (!rc)
            rc = leaf_drop(l, &row);
        if (rc)
            return rc;
        *freed += row.bytes;
    }
    return 0;
}

int segment_evict(struct storage_ledger *l, uint64_t bytes, const uint8_t (*keep)[STORAGE_KEY_BYTES], size_t n_keep,
                  uint64_t *freed)
{
    *freed = 0;
    return leaves_evict(l, 0, bytes, keep, n_keep, freed);
}

int segment_evict_of(struct storage_ledger *l, int64_t owner, uint64_t bytes, const uint8_t (*keep)[STORAGE_KEY_BYTES],
                     size_t n_keep)
{
    int64_t spaces[SPACES_MOST];
    uint64_t freed = 0;
    size_t n = 0;
    int rc;
    if (l->unread)
        return 0;
    sqlite3_stmt *s = STMT_WITH(l, S_SPACES_OF, owner);
    while (n < SPACES_MOST && (rc = stmt_step(l, s)) == 1)
        spaces[n++] = sqlite3_column_int64(s, 0);
    stmt_reset(s);
    for (size_t i = 0; i < n && rc >= 0; i++) /* what other models made before goes first */
        rc = leaves_evict(l, spaces[i], bytes, keep, n_keep, &freed);
    return rc < 0 ? rc : 0;
}

/* If a use cannot be noted the segment only goes earlier. */
static void use_write(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint64_t used)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_TOUCH, 0, (int64_t)used);
    (void)bind_key(s, 1, key);
    (void)stmt_run(l, s, NULL);
}

void segment_use(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    uint64_t used = ++l->used;
    if (!l->reads || l->n_uses == USES_MOST) {
        use_write(l, key, used);
        return;
    }
    memcpy(l->uses[l->n_uses].key, key, STORAGE_KEY_BYTES);
    l->uses[l->n_uses++].used = used;
}

void segment_uses_write(struct storage_ledger *l)
{
    for (size_t i = 0; i < l->n_uses; i++)
        use_write(l, l->uses[i].key, l->uses[i].used);
    l->n_uses = 0;
}

int segment_any_forgotten(struct storage_ledger *l)
{
    return any(l, S_SEG_FORGOTTEN, NULL);
}

int segment_cut(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack, uint64_t offset)
{
    struct segment_row row;
    int rc = segment_get(l, key, &row);
    if (rc != 1 || row.pack != pack || row.offset != offset)
        return rc < 0 ? rc : 0;
    head_goes(l, &row);
    rc = account_gone(l, &row);
    if (!rc)
        rc = id_run(l, S_SEG_DELETE, row.id);
    return rc ? rc : children_add(l, row.parent, -1);
}

int segment_any(struct storage_ledger *l)
{
    return any(l, S_SEG_ANY, NULL);
}

int segment_sweep_all(struct storage_ledger *l)
{
    sqlite3_stmt *s = stmt_get(l, S_SEG_LATEST);
    int rc = stmt_step(l, s);
    if (rc == 1) {
        l->sweep_end = sqlite3_column_int64(s, 0);
        l->sweep_at = 0;
        l->sweep_from = INT64_MAX;
    }
    stmt_reset(s);
    return rc < 0 ? rc : 0;
}

void segment_sweep_begin(struct storage_ledger *l, uint64_t clock)
{
    sqlite3_stmt *s = stmt_get(l, S_SEG_LATEST);
    if (stmt_step(l, s) == 1) {
        l->sweep_end = sqlite3_column_int64(s, 0);
        l->sweep_at = l->sweep_from;
        l->sweep_from = INT64_MAX;
        l->sweep_clock = clock;
    }
    stmt_reset(s);
}

int segment_sweep(struct storage_ledger *l, int rows)
{
    uint8_t keys[64][STORAGE_KEY_BYTES];
    int n = 0, seen = 0, most = rows < 64 ? rows : 64, rc = 1;
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_SWEEP, l->sweep_at, most, l->sweep_end);
    while (seen < most && (rc = stmt_step(l, s)) == 1) {
        l->sweep_at = sqlite3_column_int64(s, 0);
        seen++;
        if ((uint64_t)sqlite3_column_int64(s, 2) > l->sweep_clock)
            l->sweep_from = l->sweep_at - 1 < l->sweep_from ? l->sweep_at - 1 : l->sweep_from;
        else if (!column_bytes(s, 1, keys[n], STORAGE_KEY_BYTES))
            n++;
    }
    stmt_reset(s);
    if (rc < 0)
        return rc;
    if (seen < most) { /* that was the end */
        l->sweep_at = INT64_MAX;
        if (l->sweep_from > l->sweep_end)
            l->sweep_from = l->sweep_end;
    }
    rc = 0;
    for (int i = 0; i < n && !rc; i++)
        rc = release_unused(l, keys[i], l->sweep_clock);
    return rc;
}

/* verify.c - checks every row and every record of a storage, as one job of the ledger thread.
 *
 * Beside what SQLite knows of its own files: what this program takes for granted of the rows. The KV is a cache: turns
 * whose KV is not there are counted and nothing is wrong with them.
 *
 * A repair first makes the index anew, if that is wrong, and only then gives damaged records up: so their rows stay for
 * what is behind them, while a row that is not found in any pack would leave a gap. Killed in between it is begun
 * again: by a start, which makes the index anew, and by the next repair, which finds the records.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define LINES_MAX 100 /* of one kind */

struct damaged {
    uint8_t key[STORAGE_KEY_BYTES];
    uint32_t pack;
    uint64_t offset;
};

struct verify {
    bool repair;
    void (*report)(void *arg, const char *text);
    void *arg;
    struct storage_checked *n;
    bool index_wrong;
    struct damaged *damaged; /* records that a repair gives up */
    size_t n_damaged, cap_damaged;
};

__attribute__((format(printf, 2, 3))) static void wrong(struct verify *v, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    v->n->wrong++;
    v->report(v->arg, text);
}

/* Every row of a query is a line: something that is wrong. */
static int lines(struct verify *v, sqlite3 *db, const char *file, const char *sql, const char *good)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL), n = 0;
    while (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW && n < LINES_MAX) {
        const char *text = (const char *)sqlite3_column_text(s, 0);
        if (!good || !text || strcmp(text, good) != 0) {
            wrong(v, "%s: %s", file, text ? text : "NULL");
            v->index_wrong |= !strcmp(file, "kv.db");
            n++;
        }
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(s);
    rc = schema_errno(rc);
    if (rc == -EBADMSG) {
        wrong(v, "%s: cannot be read to its end: it is damaged", file);
        v->index_wrong |= !strcmp(file, "kv.db");
        rc = 0;
    }
    return rc;
}

static const char *const of_ledger[] = {
    "SELECT 'conversation ' || public_id || ': its head is none of its turns' FROM conversations c WHERE head <> 0 AND "
    "NOT EXISTS(SELECT 1 FROM turns t WHERE t.id = c.head AND t.conversation = c.id AND t.status < 2)",
    "SELECT 'conversation ' || public_id || ': it has ' || (SELECT count(*) FROM turns t WHERE t.conversation = c.id "
    "AND t.status < 2 AND t.strips IS NULL) || ' turns, and not ' || n_turns FROM conversations c WHERE n_turns > "
    "(SELECT count(*) FROM turns t WHERE t.conversation = c.id AND t.status < 2 AND t.strips IS NULL) OR n_turns < "
    "ifnull((SELECT depth FROM turns t WHERE t.id = "
    "c.head), 0)",
    "SELECT 'response ' || t.public_id || ': it follows one that cannot be followed' FROM turns t JOIN turns p ON "
    "p.id = t.parent WHERE p.conversation <> t.conversation OR p.owner <> t.owner OR p.id >= t.id OR p.status >= 2 OR "
    "t.depth <> p.depth + 1 AND t.status < 2",
    "SELECT 'response ' || t.public_id || ': its tokens stand behind what they cannot' FROM turns t JOIN turns b ON "
    "b.id = t.base LEFT JOIN turns p ON p.id = ifnull(t.strips, t.parent) WHERE b.conversation <> t.conversation OR "
    "b.id >= t.id OR b.strips IS NULL OR p.id IS NULL OR p.conversation <> t.conversation OR "
    "t.strips IS NULL AND b.strips <> p.id",
    "SELECT 'response ' || t.public_id || ': its conversation is another owner''s' FROM turns t JOIN conversations c "
    "ON "
    "c.id = t.conversation WHERE c.owner <> t.owner",
    "SELECT 'response ' || t.public_id || ': its tokens are missing' FROM turns t LEFT JOIN tokens k ON k.turn = t.id "
    "WHERE t.status < 2 AND (k.turn IS NULL OR t.prompt_bytes > length(k.ids))",
    "SELECT 'response ' || t.public_id || ': it is answered, and has no answer' FROM turns t WHERE t.status < 2 AND "
    "t.answered AND NOT EXISTS(SELECT 1 FROM items i WHERE i.turn = t.id AND i.output)",
    "SELECT 'response ' || t.public_id || ': its bytes are counted wrong' FROM turns t LEFT JOIN (SELECT turn, "
    "sum(bytes) AS n FROM items GROUP BY turn) i ON i.turn = t.id LEFT JOIN tokens k ON k.turn = t.id "
    "WHERE t.bytes <> t.request_bytes + ifnull(i.n, 0) + ifnull(length(k.ids), 0)",
    "SELECT 'owner ' || name || ': what it has is counted wrong' FROM owners o LEFT JOIN (SELECT owner, count(*) AS n, "
    "sum(bytes) AS bytes FROM conversations GROUP BY owner) c ON c.owner = o.id LEFT JOIN (SELECT owner, sum(bytes) AS "
    "n FROM turns GROUP BY owner) t ON t.owner = o.id WHERE o.conversations <> ifnull(c.n, 0) OR "
    "o.bytes <> ifnull(t.n, 0) + ifnull(c.bytes, 0)",
};

static const char *const of_index[] = {
    "SELECT 'segment ' || hex(substr(key, 1, 8)) || ': there is none before it' FROM segments s WHERE parent <> "
    "zeroblob(32) AND NOT EXISTS(SELECT 1 FROM segments p WHERE substr(p.key, 1, 8) = substr(s.parent, 1, 8) AND "
    "p.key = s.parent AND p.first + p.count = s.first)",
    "SELECT 'segment ' || hex(substr(key, 1, 8)) || ': it has ' || (SELECT count(*) FROM segments c WHERE "
    "substr(c.parent, 1, 8) = substr(s.key, 1, 8) AND c.parent = s.key) || ' children, and not ' || children FROM "
    "segments s "
    "WHERE children <> (SELECT count(*) FROM segments c WHERE substr(c.parent, 1, 8) = substr(s.key, 1, 8) AND "
    "c.parent = s.key)",
    "SELECT 'segment ' || hex(substr(key, 1, 8)) || ': it has no space' FROM segments WHERE space NOT IN (SELECT id "
    "FROM "
    "spaces)",
    "SELECT 'segment ' || hex(substr(a.key, 1, 8)) || ': there is another one in its place' FROM segments a JOIN "
    "segments b "
    "ON b.pack = a.pack AND b.offset > a.offset AND b.offset < a.offset + a.bytes",
    "SELECT 'pack ' || p.n || ': there are ' || ifnull(s.n, 0) || ' records of ' || ifnull(s.bytes, 0) || ' bytes, and "
    "not ' "
    "|| p.live_count || ' of ' || p.live_bytes FROM packs p LEFT JOIN (SELECT pack, count(*) AS n, sum(bytes) AS bytes "
    "FROM "
    "segments WHERE pack IS NOT NULL GROUP BY pack) s ON s.pack = p.n WHERE p.live_bytes <> ifnull(s.bytes, 0) OR "
    "p.live_count <> ifnull(s.n, 0)",
    ("SELECT 'space ' || p.id || ': its bytes are counted wrong' FROM spaces p "
     "LEFT JOIN (SELECT space, sum(bytes) AS n FROM segments GROUP BY space) s ON s.space = p.id WHERE p.bytes <> "
     "ifnull(s.n, 0)"),
};

static int64_t one_number(struct storage_ledger *l, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t n = 0;
    if (sqlite3_prepare_v2(l->db, sql, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        n = sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return n;
}

/* What a record's row says of it. */
struct wanted {
    struct segment_row row;
    uint8_t fingerprint[32];
    uint32_t first, count, label_bytes;
    struct space space;
    int64_t sum;
    void *head;
    size_t head_bytes;
};

/* Whether a search for its own label finds it, or one that it is the head of. */
static bool is_found(struct storage_ledger *l, const struct wanted *w, const uint8_t *label, uint32_t bytes)
{
    struct storage_found rows[2];
    size_t n = 0;
    bool found = false;
    if (storage_segment_nearest(l, w->row.owner, w->fingerprint, w->row.parent, label, bytes, rows, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        found |= rows[i].label_bytes >= bytes && !memcmp(rows[i].label, label, bytes);
        free(rows[i].label);
    }
    return found;
}

/* Whether the row knows its label. */
static bool is_coded(const struct wanted *w, const uint8_t *label, uint32_t bytes)
{
    struct coded c;
    if (label_code(&w->space, label, bytes, &c))
        return true; /* without memory that cannot be said */
    bool is = w->sum == coded_sum(&c, c.units) && w->head_bytes && w->head_bytes <= c.bytes &&
              !memcmp(w->head, c.string, w->head_bytes);
    coded_free(&c);
    return is;
}

/* NULL: it is as its row says; else what is wrong with it. *found: the index finds it. */
static const char *record_fault(struct storage_ledger *l, const struct wanted *w, bool *found)
{
    const struct segment_row *row = &w->row;
    struct pack_record r;
    const char *fault = NULL;
    uint8_t *record = row->bytes <= PACK_RECORD_MAX ? malloc(row->bytes ? row->bytes : 1) : NULL;
    if (!record)
        return "it is too large to be read";
    const uint8_t *label = record + PACK_HEADER_BYTES;
    int rc = packs_read(&l->st->packs, row->pack, row->offset, record, row->bytes);
    if (rc)
        fault = rc == -ENOENT ? "its pack is missing" : "it cannot be read";
    else if (pack_record_parse(record, row->bytes, true, &r))
        fault = "its record is damaged";
    else if (memcmp(r.key, row->key, sizeof r.key) || memcmp(r.parent, row->parent, sizeof r.parent) ||
             memcmp(r.fingerprint, w->fingerprint, sizeof r.fingerprint) || r.owner != row->owner ||
             r.first != w->first || r.count != w->count || r.label_bytes != w->label_bytes)
        fault = "another record is in its place";
    else if (codec_verify(record + pack_payload_offset(r.label_bytes), (size_t)r.payload_bytes))
        fault = "its KV is damaged";
    else
        *found = is_coded(w, label, r.label_bytes) && is_found(l, w, label, r.label_bytes);
    free(record);
    return fault;
}

static int damaged_add(struct verify *v, const struct segment_row *row)
{
    if (v->n_damaged == v->cap_damaged) {
        size_t cap = v->cap_damaged ? v->cap_damaged * 2 : 64;
        struct damaged *grown = realloc(v->damaged, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        v->damaged = grown;
        v->cap_damaged = cap;
    }
    struct damaged *d = &v->damaged[v->n_damaged++];
    *d = (struct damaged){.pack = row->pack, .offset = row->offset};
    memcpy(d->key, row->key, sizeof d->key);
    return 0;
}

static int segment_check(struct storage_ledger *l, struct verify *v, const struct wanted *w)
{
    const uint8_t *k = w->row.key;
    bool found = true;
    const char *fault = record_fault(l, w, &found);
    v->n->segments++;
    if (!found) {
        wrong(v, "kv.db: segment %02X%02X%02X%02X%02X%02X%02X%02X: a search does not find it", k[0], k[1], k[2], k[3],
              k[4], k[5], k[6], k[7]);
        v->index_wrong = true;
    }
    if (!fault)
        return 0;
    wrong(v, "pack-%08u, offset %llu: segment %02X%02X%02X%02X%02X%02X%02X%02X: %s", w->row.pack,
          (unsigned long long)w->row.offset, k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7], fault);
    return v->repair ? damaged_add(v, &w->row) : 0;
}

static int segments_check(struct storage_ledger *l, struct verify *v)
{
    int64_t id = 0;
    int rc;
    for (;;) {
        struct wanted w = {0};
        sqlite3_stmt *s = STMT_WITH(l, S_SEG_NEXT, id);
        rc = stmt_step(l, s);
        if (rc != 1)
            return rc;
        id = sqlite3_column_int64(s, 0);
        w.row.pack = (uint32_t)sqlite3_column_int64(s, 3);
        w.row.offset = (uint64_t)sqlite3_column_int64(s, 4);
        w.row.bytes = (uint64_t)sqlite3_column_int64(s, 5);
        w.row.owner = sqlite3_column_int64(s, 8);
        w.first = (uint32_t)sqlite3_column_int64(s, 6);
        w.count = (uint32_t)sqlite3_column_int64(s, 7);
        w.space.unit = sqlite3_column_int(s, 10);
        w.space.id = sqlite3_column_int64(s, 12);
        w.sum = sqlite3_column_int64(s, 14);
        w.label_bytes = (uint32_t)sqlite3_column_int64(s, 15);
        rc = column_bytes(s, 1, w.row.key, STORAGE_KEY_BYTES);
        if (!rc)
            rc = column_bytes(s, 2, w.row.parent, STORAGE_KEY_BYTES);
        if (!rc)
            rc = column_bytes(s, 9, w.fingerprint, sizeof w.fingerprint);
        if (!rc)
            rc = column_bytes(s, 11, w.space.key, sizeof w.space.key);
        if (!rc)
            rc = column_copy(s, 13, &w.head, &w.head_bytes);
        stmt_reset(s);
        if (!rc)
            rc = segment_check(l, v, &w);
        free(w.head);
        if (rc)
            return rc;
    }
}

/* Turns that hold something which is not there. */
static int holds_check(struct storage_ledger *l, struct verify *v)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_HOLDS);
    while ((rc = stmt_step(l, s)) == 1) {
        uint8_t key[STORAGE_KEY_BYTES];
        if (column_bytes(s, 0, key, sizeof key) || segment_exists(l, key) != 1)
            v->n->not_stored++;
    }
    stmt_reset(s);
    return rc;
}

static int verify_run(struct storage_ledger *l, void *arg)
{
    struct verify *v = arg;
    int rc = 0;
    for (int kv = 0; kv < 2 && !rc; kv++) {
        sqlite3 *db = kv ? l->kv : l->db;
        const char *file = kv ? "kv.db" : "ledger.db";
        const char *const *checks = kv ? of_index : of_ledger;
        size_t n = kv ? sizeof of_index / sizeof *of_index : sizeof of_ledger / sizeof *of_ledger;
        rc = lines(v, db, file, "PRAGMA integrity_check(100)", "ok");
        if (!rc)
            rc = lines(v, db, file,
                       "SELECT 'a row of ' || \"table\" || ' belongs to none' FROM pragma_foreign_key_check", NULL);
        for (size_t i = 0; i < n && !rc; i++)
            rc = lines(v, db, file, checks[i], NULL);
    }
    v->n->conversations = (uint64_t)one_number(l, "SELECT count(*) FROM conversations");
    v->n->turns = (uint64_t)one_number(l, "SELECT count(*) FROM turns WHERE strips IS NULL");
    if (!rc)
        rc = segments_check(l, v);
    if (!rc)
        rc = holds_check(l, v);
    if (rc == -EBADMSG) { /* it was said what is damaged */
        v->index_wrong = true;
        rc = 0;
    }
    if (!rc && v->repair && v->index_wrong)
        atomic_store(&l->st->kv_damaged, true); /* that is noted with the end of this batch */
    return rc;
}

static int give_up_run(struct storage_ledger *l, void *arg)
{
    const struct verify *v = arg;
    int rc = 0;
    for (size_t i = 0; i < v->n_damaged && !rc; i++)
        rc = segment_forget(l, v->damaged[i].key, v->damaged[i].pack, v->damaged[i].offset);
    return rc;
}

static int gaps_run(struct storage_ledger *l, void *arg)
{
    *(bool *)arg = l->gaps && !l->sweep_failed;
    return 0;
}

/* With an index that is whole, and without what is behind a gap, which goes: between two jobs some of it does. */
static int open_whole(const struct storage_opts *opts, struct storage **st, char *err, size_t err_size)
{
    bool gaps = true;
    int rc = storage_open(opts, st, err, err_size);
    if (rc) {
        *st = NULL;
        return rc;
    }
    rc = index_wait(*st, 0);
    while (!rc && gaps)
        rc = jobs_call(*st, gaps_run, &gaps);
    return rc;
}

int storage_verify(const struct storage_opts *opts, bool repair, void (*report)(void *arg, const char *text), void *arg,
                   struct storage_checked *out, char *err, size_t err_size)
{
    struct storage *st;
    *out = (struct storage_checked){0};
    struct verify v = {.repair = repair, .report = report, .arg = arg, .n = out};
    struct storage_opts existing = *opts;
    existing.existing = true;
    int rc = open_whole(&existing, &st, err, err_size);
    if (!rc)
        rc = jobs_call(st, verify_run, &v);
    if (!rc && repair && v.index_wrong) {
        storage_close(st);
        rc = open_whole(&existing, &st, err, err_size);
    }
    if (!rc && v.n_damaged)
        rc = jobs_wait(st, (struct storage_job){.run = give_up_run, .arg = &v, .index = true});
    if (rc && st && err_size)
        (void)snprintf(err, err_size, "%s: %s", opts->dir, strerror(-rc));
    storage_close(st);
    free(v.damaged);
    return rc;
}

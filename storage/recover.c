/* recover.c - bringing index, packs and intents together at open. Runs before the threads start.
 *
 *   - A ledger that is not the one the rest belongs to is refused before anything is changed.
 *   - Packs that were renamed by hand get their names back.
 *   - Intents that a crash left are carried out: rows gone, holes cut, then the intents themselves.
 *   - A record that was synced but whose row was lost (the index does not sync its commits) lies behind the end that
 * the index knows for its pack: it is taken in again, also behind holes that were cut since, when all of it is there.
 * Without such a loss there is nothing behind that end.
 *   - Without an index, or with one that is not whole yet, the packs that it does not know are left to reindex.c.
 *   - What lies there and is no record is overwritten.
 *   - A pack that cannot be read is not used further; what can be read of it still is. It keeps nobody from starting.
 *   - A pack of ours in which nothing is any more goes.
 *
 * Whatever nothing holds is found later, in the background.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

struct recovery {
    struct storage_ledger *l;
    bool rebuild;    /* the index is new, and knows nothing */
    bool put_off;    /* records that have no row yet are not looked for now */
    uint32_t newest; /* highest pack number */
    uint32_t last;   /* highest that was looked at */
    uint64_t last_end;
    struct drop *intents;
    size_t n, cap;
    struct place_of garbage; /* that was found last */
    int rc;                  /* the index's while records are taken in; that of a pack does not matter */
};

static int intents_add(struct recovery *r, const struct drop *d)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 64;
        struct drop *grown = realloc(r->intents, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        r->intents = grown;
        r->cap = cap;
    }
    r->intents[r->n++] = *d;
    return 0;
}

static int intents_read(struct recovery *r)
{
    struct storage_ledger *l = r->l;
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_INTENTS);
    while ((rc = stmt_step(l, s)) == 1) {
        struct drop d = {.intent = sqlite3_column_int64(s, 0),
                         .pack = (uint32_t)sqlite3_column_int64(s, 2),
                         .offset = (uint64_t)sqlite3_column_int64(s, 3),
                         .bytes = (uint64_t)sqlite3_column_int64(s, 4)};
        rc = column_bytes(s, 1, d.key, sizeof d.key);
        if (!rc)
            rc = intents_add(r, &d);
        if (rc)
            break;
    }
    stmt_reset(s);
    return rc;
}

/* Whether another segment lies there: packs that were put back from a backup have used the place again. If not, whose
 * it is, as far as it can be read. */
static bool place_is_anothers(const struct storage_ledger *l, struct drop *d)
{
    uint8_t head[PACK_HEADER_BYTES];
    struct pack_record r;
    if (packs_misnamed(&l->st->packs, d->pack) || packs_read(&l->st->packs, d->pack, d->offset, head, sizeof head) ||
        pack_record_parse(head, sizeof head, false, &r))
        return false;
    d->owner = r.owner;
    return memcmp(r.key, d->key, sizeof r.key) != 0;
}

/* A transaction that failed, of either database. */
static void undo(struct storage_ledger *l)
{
    sqlite3 *const dbs[] = {l->db, l->kv};
    for (size_t i = 0; i < 2; i++)
        if (!sqlite3_get_autocommit(dbs[i]))
            (void)sqlite3_exec(dbs[i], "ROLLBACK", NULL, NULL, NULL);
}

/* A full disk keeps nobody from starting: what could not be written waits until there is room. */
static bool put_off(struct storage_ledger *l, int rc, const char *what)
{
    if (!room_is_full(rc))
        return false;
    undo(l);
    storage_log(l->st, LOG_WARNING, "%s: the disk is full: %s. Free some space on it", l->st->dir, what);
    return true;
}

/* What cannot be cut out now stays in the list. */
static int intents_carry_out(struct recovery *r)
{
    struct storage_ledger *l = r->l;
    size_t left = 0;
    int rc = intents_read(r);
    if (!rc)
        rc = stmt_do(l, S_KV_BEGIN);
    for (size_t i = 0; i < r->n && !rc; i++)
        rc = segment_cut(l, r->intents[i].key, r->intents[i].pack, r->intents[i].offset);
    if (!rc)
        rc = stmt_do(l, S_KV_COMMIT);
    if (put_off(l, rc, "what was deleted is overwritten later"))
        return 0;
    if (rc)
        return rc;
    (void)erase_logs(l);
    rc = stmt_do(l, S_BEGIN);
    for (size_t i = 0; i < r->n && !rc; i++) {
        struct drop *d = &r->intents[i];
        bool given_back;
        int cut = place_is_anothers(l, d)
                      ? 0
                      : packs_cut(&l->st->packs, d->pack, &(struct place){d->offset, d->bytes}, 1, &given_back);
        if (cut) {
            storage_log(l->st, LOG_ERR, "pack %u: a record cannot be overwritten: %s", d->pack, pack_strerror(cut));
            r->intents[left++] = *d;
            continue;
        }
        rc = stmt_run(l, STMT_WITH(l, S_INTENT_DELETE, d->intent), NULL);
    }
    if (!rc)
        rc = stmt_do(l, S_COMMIT);
    if (put_off(l, rc, "what was deleted is told so later")) {
        r->n = 0; /* the rows are gone already, and read again at the next start */
        return 0;
    }
    r->n = left;
    return rc;
}

int pack_record_whole(const struct storage *st, uint32_t pack, uint64_t offset, uint64_t bytes,
                      const struct pack_record *rec)
{
    uint8_t *record = malloc(bytes);
    int rc = record ? packs_read(&st->packs, pack, offset, record, bytes) : -ENOMEM;
    if (!rc)
        rc = codec_verify(record + pack_payload_offset(rec->label_bytes), (size_t)rec->payload_bytes);
    free(record);
    return rc;
}

void garbage_cut(struct storage *st, struct place_of *g)
{
    bool given_back;
    int rc = g->bytes ? packs_cut(&st->packs, g->pack, &(struct place){g->offset, g->bytes}, 1, &given_back) : 0;
    if (rc)
        storage_log(st, LOG_ERR, "pack %u: a damaged record cannot be overwritten: %s", g->pack, strerror(-rc));
    g->bytes = 0;
}

void garbage_add(struct storage *st, struct place_of *g, uint32_t pack, uint64_t offset, uint64_t bytes)
{
    if (g->pack != pack || g->offset + g->bytes != offset) {
        garbage_cut(st, g);
        *g = (struct place_of){pack, offset, 0};
    }
    g->bytes += bytes;
}

static int take_in(void *arg, uint32_t pack, uint64_t offset, uint64_t bytes, const struct pack_record *rec,
                   const uint8_t *label)
{
    struct recovery *r = arg;
    if (!rec) {
        garbage_add(r->l->st, &r->garbage, pack, offset, bytes);
        return 0;
    }
    int rc = pack_record_whole(r->l->st, pack, offset, bytes, rec);
    if (rc == -ENOMEM)
        return r->rc = rc;
    if (rc && rc != -EBADMSG)
        return 0; /* it cannot be read */
    bool torn = rc != 0;
    rc = torn ? segment_insert_forgotten(r->l, rec, label, pack, offset, bytes)
              : segment_insert(r->l, rec, label, pack, offset, bytes);
    if (torn ? rc : rc != 1)
        return r->rc = rc;
    /* Torn, or stored twice: then the later copy goes. */
    bool given_back;
    rc = packs_cut(&r->l->st->packs, pack, &(struct place){offset, bytes}, 1, &given_back);
    if (!rc)
        return 0;
    storage_log(r->l->st, LOG_ERR, "pack %u: a record cannot be overwritten; this is tried again: %s", pack,
                strerror(-rc));
    struct drop d = {.owner = rec->owner, .pack = pack, .offset = offset, .bytes = bytes};
    memcpy(d.key, rec->key, sizeof d.key);
    return r->rc = intents_add(r, &d);
}

int pack_not_looked_after(struct storage_ledger *l, uint32_t pack)
{
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_IN_PACK, pack);
    int rc = stmt_step(l, s);
    stmt_reset(s);
    return rc ? rc < 0 ? rc : 0 : stmt_run(l, STMT_WITH(l, S_PACK_DELETE, pack), NULL);
}

static int pack_look(void *arg, uint32_t pack)
{
    struct recovery *r = arg;
    struct storage_ledger *l = r->l;
    uint64_t known = 0, end = 0;
    int rc;
    if (reindex_has(l, pack)) {
        if (pack >= r->last) {
            r->last = pack;
            r->last_end = 0;
        }
        return r->rc = stmt_run(l, STMT_WITH(l, S_PACK_ADD, pack, 0, 0, 0), NULL);
    }
    sqlite3_stmt *s = STMT_WITH(l, S_PACK_END, pack);
    rc = stmt_step(l, s);
    if (rc == 1)
        known = (uint64_t)sqlite3_column_int64(s, 0);
    stmt_reset(s);
    if (rc < 0)
        return rc;
    rc = packs_scan(&l->st->packs, pack, known, take_in, r, &end);
    garbage_cut(l->st, &r->garbage);
    if (rc && !r->rc && rc != -ENOMEM) {
        storage_log(l->st, LOG_WARNING, "pack %u is damaged or not ours and is not used further: %s", pack,
                    pack_strerror(rc));
        rc = r->rc = pack_not_looked_after(l, pack);
        end = 0;
    } else if (!rc) { /* its space is looked after, though nothing may be in it */
        rc = r->rc = stmt_run(l, STMT_WITH(l, S_PACK_ADD, pack, (int64_t)end, 0, 0), NULL);
    }
    if (pack >= r->last) {
        r->last = pack;
        r->last_end = end;
    }
    return rc;
}

/* Files that were renamed by hand. Those that cannot be named back are not written to. */
static int name_back(void *arg, uint32_t pack)
{
    struct recovery *r = arg;
    struct storage *st = r->l->st;
    uint32_t own;
    int rc;
    while ((rc = packs_name_back(&st->packs, pack, &own)) == 1) {
        storage_log(st, LOG_NOTICE, "pack %u was under the name of pack %u, and has its own back", own, pack);
        r->newest = own > r->newest ? own : r->newest;
    }
    if (rc)
        storage_log(st, LOG_WARNING, "pack %u is under the name of pack %u, and cannot be renamed: %s", own, pack,
                    strerror(-rc));
    return 0;
}

static int newest(void *arg, uint32_t pack)
{
    struct recovery *r = arg;
    r->newest = pack > r->newest ? pack : r->newest;
    return 0;
}

static int totals(struct recovery *r)
{
    struct storage_ledger *l = r->l;
    sqlite3_stmt *s = stmt_get(l, S_PACK_TOTALS);
    int rc = stmt_step(l, s);
    if (rc == 1) {
        atomic_fetch_add(&l->st->disk_used, (uint64_t)sqlite3_column_int64(s, 0));
        atomic_store(&l->st->segments, (uint64_t)sqlite3_column_int64(s, 1));
        if ((uint64_t)sqlite3_column_int64(s, 2) > r->last) {
            r->last = (uint32_t)sqlite3_column_int64(s, 2);
            r->last_end = 0;
        }
        rc = 0;
    }
    stmt_reset(s);
    if (rc)
        return rc;
    s = stmt_get(l, S_SEG_LATEST);
    rc = stmt_step(l, s);
    if (rc == 1) {
        l->sweep_end = sqlite3_column_int64(s, 0);
        rc = 0;
    }
    stmt_reset(s);
    l->sweep_from = INT64_MAX;
    l->sweep_clock = l->used;
    atomic_store(&l->st->clock, l->used);
    return rc;
}

/* A crash, or the end of the process, came before it could go. Those that could not be read stay. */
static int collect(void *arg, uint32_t pack)
{
    struct storage_ledger *l = arg;
    sqlite3_stmt *s = STMT_WITH(l, S_PACK_END, pack);
    int rc = stmt_step(l, s);
    stmt_reset(s);
    if (rc == 1) /* one that is not read yet has no rows, and stays */
        erase_pack(l, pack);
    return rc < 0 ? rc : 0;
}

static void dead_of(struct storage_ledger *l, uint32_t pack, uint64_t live)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->n_waiting; i++)
        live += l->waiting[i].pack == pack ? l->waiting[i].bytes : 0;
    /* Of one that is not read yet all counts. */
    uint64_t slack = reindex_has(l, pack) ? 0 : DEAD_SLACK;
    if (!packs_allocated(&l->st->packs, pack, &bytes) && bytes > live + slack) {
        atomic_fetch_add(&l->st->disk_used, bytes - live);
        erase_dead(l, pack, bytes - live);
    }
}

/* One that is not read yet, and that could not be written down. */
static int not_noted(void *arg, uint32_t pack)
{
    struct storage_ledger *l = arg;
    if (!reindex_has(l, pack))
        return 0;
    sqlite3_stmt *s = STMT_WITH(l, S_PACK_END, pack);
    int rc = stmt_step(l, s);
    stmt_reset(s);
    if (!rc)
        dead_of(l, pack, 0);
    return rc < 0 ? rc : 0;
}

/* What packs take on the disk beyond their records, where it is more than the file system's rounding: it could not be
 * given back, or a crash came before. */
static int deads(struct recovery *r)
{
    struct storage_ledger *l = r->l;
    int rc = packs_list(&l->st->packs, r->put_off ? not_noted : collect, l);
    if (rc)
        return rc;
    sqlite3_stmt *s = stmt_get(l, S_PACKS);
    while ((rc = stmt_step(l, s)) == 1)
        dead_of(l, (uint32_t)sqlite3_column_int64(s, 0), (uint64_t)sqlite3_column_int64(s, 1));
    stmt_reset(s);
    return rc;
}

static int recover(struct recovery *r)
{
    struct storage_ledger *l = r->l;
    struct storage *st = l->st;
    l->n_drops = 0;
    l->heads_logged = true; /* for all that is known */
    int rc = packs_list(&st->packs, newest, r);
    if (!rc)
        rc = reindex_begin(l, r->rebuild, r->newest);
    if (!rc)
        rc = pair_settle(l);
    if (!rc)
        rc = packs_list(&st->packs, name_back, r);
    if (!rc)
        rc = stmt_do(l, S_KV_BEGIN);
    if (!rc && r->rebuild && l->unread)
        rc = reindex_note(l);
    if (!rc)
        rc = segments_clock(l);
    if (!rc)
        rc = stmt_do(l, S_KV_COMMIT);
    if (put_off(l, rc, "the index is as it was")) {
        l->used_noted = 0;
        rc = 0;
    }
    if (!rc)
        rc = intents_carry_out(r);
    if (!rc)
        rc = stmt_do(l, S_KV_BEGIN);
    if (!rc)
        rc = packs_list(&st->packs, pack_look, r);
    if (!rc)
        rc = stmt_do(l, S_KV_COMMIT);
    if (put_off(l, rc, "segments that were saved last are found later")) {
        r->last = r->newest; /* the packs stay as they are, so that the next start looks again */
        r->last_end = 0;
        l->n_drops = 0; /* their rows are there again */
        r->put_off = true;
        rc = 0;
    }
    /* Records whose places others have taken, and those that could not be cut out before. */
    for (size_t i = 0; i < l->n_drops && !rc; i++)
        rc = intents_add(r, &l->drops[i]);
    l->n_drops = 0;
    if (!rc)
        rc = erase_left(l, r->intents, r->n);
    if (!rc)
        rc = totals(r);
    if (rc)
        return rc;
    st->packs.n = r->last;
    atomic_store(&st->oldest_open_pack, r->last);
    if (l->unread) /* the search begins when all is known */
        l->sweep_at = INT64_MAX;
    /* What is still to be overwritten behind the last record must not be where others are put. */
    for (size_t i = 0; i < l->n_waiting; i++)
        if (l->waiting[i].pack == r->last && l->waiting[i].offset >= r->last_end)
            r->last_end = 0;
    if (r->last_end && r->last_end < st->packs.pack_bytes) {
        rc = packs_activate(&st->packs, r->last, r->last_end);
        if (rc)
            storage_log(st, LOG_WARNING, "pack %u cannot be continued: %s", r->last, strerror(-rc));
    }
    return deads(r);
}

int segments_recover(struct storage_ledger *l, bool rebuild)
{
    struct recovery r = {.l = l, .rebuild = rebuild};
    int rc = recover(&r);
    free(r.intents);
    return rc;
}

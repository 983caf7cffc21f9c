/* reindex.c - the index made anew from the packs, beside everything else.
 *
 * An index that is missing, damaged or of an older version begins empty, with a note (kv.db's meta, "unread") that says
 * which packs are not read yet: all that are there. A thread of its own reads them, the oldest first, and hands what it
 * finds to the ledger thread, some rows in a transaction. How far it is stands in the index: the note, and of the pack
 * at hand the end that the index knows of it. So a start goes on where the process before it ended, however that was.
 *
 * Until then a segment that has no row is not known to be gone. What is put meanwhile goes to packs of its own; of two
 * records of one segment the later stays. Nothing is evicted or moved to keep the budget, and nothing is searched that
 * no turn holds. What a deletion, or anything else, lets go is noted in the ledger ("release/KEY", and where holds are
 * to move back to what is before an end "within/TURN") and let go at the end, so that deletions are told as not
 * finished until then (erase.c).
 *
 * At the end turns hold what there is of their context where what they hold was not found. Where a damaged record has
 * cut the chain in two they hold what they held, and what is missing gets a row without a place (segments.c), behind
 * what is found of their context from its beginning on: so what is behind the gap is found, and needs not be computed
 * again. Of two gaps in a chain the row stands for all from the first to the second. Then follows what was noted; then
 * the search for what nothing holds. Where there were gaps deletions wait for that search, too, also after another
 * start (kv.db's meta, "gaps"): nobody else finds what lay behind one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define ROWS        64 /* of one transaction */
#define LABELS_MOST ((size_t)1 << 20)
#define GAP_ROWS    2048 /* that one transaction looks at for gaps */
#define NOTES       32   /* that one carries out */
#define TELL_MS     5000
#define RETRY_MS    1000
#define RETRY_MOST  60000
#define RELEASE     "release/"
#define WITHIN      "within/"
#define BEHIND      "0" /* the character behind the slash */
#define UNREAD      "unread"
#define GAPS        "gaps"

/* ---- what is not read yet ---------------------------------------------------------------------------------------- */

int reindex_note(struct storage_ledger *l)
{
    return meta_set(l, S_KV_META_SET, UNREAD, l->unread_packs, sizeof l->unread_packs);
}

int reindex_begin(struct storage_ledger *l, bool anew, uint32_t newest)
{
    size_t n;
    char gaps;
    if (!anew) {
        int rc = meta_get(l, S_KV_META_GET, UNREAD, l->unread_packs, sizeof l->unread_packs, &n);
        if (rc == 1 && n != sizeof l->unread_packs)
            return -EBADMSG;
        l->unread = rc == 1;
        if (rc >= 0)
            rc = meta_get(l, S_KV_META_GET, GAPS, &gaps, sizeof gaps, &n);
        l->gaps = rc == 1;
        return rc < 0 ? rc : 0;
    }
    l->gaps = false;
    l->unread = newest != 0;
    l->unread_packs[0] = 0;
    l->unread_packs[1] = newest;
    if (l->unread && l->used < INDEX_CLOCK)
        l->used = INDEX_CLOCK;
    l->used_noted = 0; /* not in this one */
    return 0;
}

int reindex_gaps_over(struct storage_ledger *l)
{
    sqlite3_stmt *s = stmt_get(l, S_KV_META_DELETE);
    bind_text(s, 1, GAPS);
    return stmt_run(l, s, NULL);
}

int reindex_noted(struct storage_ledger *l)
{
    uint32_t packs[2];
    size_t n;
    return meta_get(l, S_KV_META_GET, UNREAD, packs, sizeof packs, &n);
}

bool reindex_has(const struct storage_ledger *l, uint32_t pack)
{
    return l->unread && pack >= l->unread_packs[0] && pack <= l->unread_packs[1];
}

bool storage_indexing(const struct storage_ledger *l)
{
    return l->unread;
}

/* ---- what is let go meanwhile ------------------------------------------------------------------------------------ */

int reindex_release_later(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES])
{
    char name[sizeof RELEASE + 2 * STORAGE_KEY_BYTES] = RELEASE;
    if (pack_is_zero(key, STORAGE_KEY_BYTES))
        return 0;
    for (size_t i = 0; i < STORAGE_KEY_BYTES; i++)
        (void)snprintf(name + sizeof RELEASE - 1 + 2 * i, 3, "%02x", key[i]);
    return meta_set(l, S_META_SET, name, key, STORAGE_KEY_BYTES);
}

int reindex_within_later(struct storage_ledger *l, int64_t turn, int64_t end)
{
    const int64_t value[2] = {turn, end};
    char name[sizeof WITHIN + 24];
    (void)snprintf(name, sizeof name, WITHIN "%lld", (long long)turn);
    return meta_set(l, S_META_SET, name, value, sizeof value);
}

/* Takes the first note of a kind: 1, 0 or negative. */
static int note_take(struct storage_ledger *l, const char *from, const char *to, void *value, size_t size)
{
    char *name = NULL;
    sqlite3_stmt *s = stmt_get(l, S_META_FIRST);
    bind_text(s, 1, from);
    bind_text(s, 2, to);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    rc = column_text(s, 0, &name);
    if (!rc)
        rc = column_bytes(s, 1, value, size);
    stmt_reset(s);
    if (!rc) {
        s = stmt_get(l, S_META_DELETE);
        bind_text(s, 1, name);
        rc = stmt_run(l, s, NULL);
    }
    free(name);
    return rc ? rc : 1;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct record {
    struct pack_record rec;
    uint8_t *label;
    uint64_t offset, bytes;
    bool torn;
};

struct piece { /* of a pack */
    struct storage *st;
    uint32_t pack, newest;
    struct record rows[ROWS];
    size_t n, label_bytes;
    struct place_of garbage; /* that was found last */
    uint64_t settled;        /* bytes that were looked after as the pack's, and are now as those of records */
    uint64_t passed_over;    /* records that are looked after already */
    uint64_t bytes;
    uint64_t taken;
    int64_t told_ms;
    int rc; /* of handing rows over: not the pack's fault */
};

static bool is_waiting(const struct storage_ledger *l, uint32_t pack, uint64_t offset)
{
    for (size_t i = 0; i < l->n_waiting; i++)
        if (l->waiting[i].pack == pack && l->waiting[i].offset == offset)
            return true;
    return false;
}

/* A record is older than whatever this process has put or looked up: in the order in which records lie. */
static uint64_t used_at(uint32_t pack, uint64_t offset)
{
    uint64_t at = offset / PACK_ALIGN;
    return ((uint64_t)(pack < 1u << 25 ? pack : 1u << 25) << 20) + (at < 1u << 20 ? at : (1u << 20) - 1);
}

static int record_found(struct storage_ledger *l, struct piece *p, const struct record *f)
{
    struct segment_row row;
    int rc = segment_get(l, f->rec.key, &row);
    bool there = rc == 1 && row.pack != STORAGE_PACK_NONE;
    if (rc < 0)
        return rc;
    if (is_waiting(l, p->pack, f->offset) || (there && row.pack == p->pack && row.offset == f->offset)) {
        p->passed_over++;
        return 0;
    }
    p->bytes += f->bytes;
    uint64_t used = l->used;
    l->used = used_at(p->pack, f->offset);
    if (f->torn)
        rc = segment_insert_forgotten(l, &f->rec, f->label, p->pack, f->offset, f->bytes);
    else if (!there || row.pack <= p->pack)
        rc = segment_insert(l, &f->rec, f->label, p->pack, f->offset, f->bytes);
    else
        rc = 1; /* it was stored anew */
    l->used = used;
    if (rc == 1 || (!rc && f->torn))
        rc = segment_drop_record(l, f->rec.owner, f->rec.key, p->pack, f->offset, f->bytes);
    return rc;
}

static int piece_run(struct storage_ledger *l, void *arg)
{
    struct piece *p = arg;
    int rc = 0;
    erase_dead_less(l, p->pack, p->settled);
    p->settled = p->bytes = p->passed_over = 0;
    for (size_t i = 0; i < p->n && !rc; i++)
        rc = record_found(l, p, &p->rows[i]);
    if (!rc && p->n)
        rc = stmt_run(
            l, STMT_WITH(l, S_PACK_ADD, p->pack, (int64_t)(p->rows[p->n - 1].offset + p->rows[p->n - 1].bytes), 0, 0),
            NULL);
    return rc;
}

static void rows_free(struct piece *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->rows[i].label);
    p->n = p->label_bytes = 0;
}

/* Waits, or less long when the process stops, and the next time longer. */
static void pause_for(struct storage *st, int *ms)
{
    int64_t until = monotonic_ms() + *ms;
    *ms = *ms * 2 < RETRY_MOST ? *ms * 2 : RETRY_MOST;
    struct timespec t = {.tv_sec = until / 1000, .tv_nsec = until % 1000 * 1000000};
    pthread_mutex_lock(&st->jobs_lock);
    while (!st->index_stop && pthread_cond_timedwait(&st->jobs_cond, &st->jobs_lock, &t) != ETIMEDOUT)
        ;
    pthread_mutex_unlock(&st->jobs_lock);
}

static bool stops(struct storage *st)
{
    pthread_mutex_lock(&st->jobs_lock);
    bool stop = st->index_stop;
    pthread_mutex_unlock(&st->jobs_lock);
    return stop;
}

static void state_tell(struct storage *st, int rc, bool over)
{
    pthread_mutex_lock(&st->jobs_lock);
    st->index_rc = rc;
    st->index_over |= over;
    pthread_cond_broadcast(&st->jobs_cond);
    pthread_mutex_unlock(&st->jobs_lock);
}

struct task {
    int (*run)(struct storage_ledger *l, void *arg);
    void *arg;
    int result;
};

static int task_run(struct storage_ledger *l, void *arg)
{
    struct task *t = arg;
    t->result = t->run(l, t->arg);
    return t->result < 0 ? t->result : 0;
}

/* Runs a job until it succeeds: a full disk, say, is no end of it. What it says, 0 or 1; -ECANCELED: the process stops.
 */
static int insist(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), void *arg)
{
    struct task task = {.run = run, .arg = arg};
    for (int pause = RETRY_MS;;) {
        if (stops(st))
            return -ECANCELED;
        int rc = jobs_wait(st, (struct storage_job){.run = task_run, .arg = &task, .index = true});
        if (!rc) {
            state_tell(st, 0, false);
            return task.result;
        }
        storage_log(st, LOG_WARNING, "kv.db cannot be made anew now; this is tried again: %s", strerror(-rc));
        state_tell(st, rc, false);
        pause_for(st, &pause);
    }
}

static int pack_note(void *arg, uint32_t pack)
{
    struct storage_ledger *l = arg;
    return reindex_has(l, pack) ? stmt_run(l, STMT_WITH(l, S_PACK_ADD, pack, 0, 0, 0), NULL) : 0;
}

/* What is to be read, as a full disk may have kept the start from writing it down. */
static int begin_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int rc = reindex_note(l);
    return rc ? rc : packs_list(&l->st->packs, pack_note, l);
}

static int rows_hand_over(struct piece *p)
{
    struct storage *st = p->st;
    size_t n = p->n;
    if (!n)
        return 0;
    /* One that is dropped again counts until it is. */
    atomic_fetch_add(&st->segments, n);
    int rc = insist(st, piece_run, p);
    atomic_fetch_sub(&st->segments, rc ? n : p->passed_over);
    p->settled = rc ? 0 : p->bytes;
    p->taken += n;
    rows_free(p);
    if (!rc && monotonic_ms() - p->told_ms >= TELL_MS) {
        storage_log(st, LOG_NOTICE, "kv.db is made anew: %llu segments so far, now of pack %u of %u",
                    (unsigned long long)p->taken, p->pack, p->newest);
        p->told_ms = monotonic_ms();
    }
    return rc;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Without an index there are too many to read all: those that are damaged are found when they are wanted. Of the pack
 * that was written last a loss of power may have left some headers without payloads. */
static int found(void *arg, uint32_t pack, uint64_t offset, uint64_t bytes, const struct pack_record *rec,
                 const uint8_t *label)
{
    struct piece *p = arg;
    if (stops(p->st))
        return p->rc = -ECANCELED;
    if (!rec) {
        garbage_add(p->st, &p->garbage, pack, offset, bytes);
        return 0;
    }
    int rc = pack < p->newest ? 0 : pack_record_whole(p->st, pack, offset, bytes, rec);
    if (rc == -ENOMEM)
        return p->rc = rc;
    if (rc && rc != -EBADMSG)
        return 0; /* it cannot be read */
    struct record *f = &p->rows[p->n];
    *f = (struct record){.rec = *rec, .offset = offset, .bytes = bytes, .torn = rc != 0};
    f->label = malloc(rec->label_bytes ? rec->label_bytes : 1);
    if (!f->label)
        return p->rc = -ENOMEM;
    memcpy(f->label, label, rec->label_bytes);
    p->n++;
    p->label_bytes += rec->label_bytes;
    return p->n < ROWS && p->label_bytes < LABELS_MOST ? 0 : (p->rc = rows_hand_over(p));
}

struct next {
    uint64_t end;
    uint32_t pack;
};

/* 1: there is one; 0: all are read. */
static int next_run(struct storage_ledger *l, void *arg)
{
    struct next *next = arg;
    sqlite3_stmt *s = STMT_WITH(l, S_PACK_NEXT, l->unread_packs[0], l->unread_packs[1]);
    int rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    next->pack = (uint32_t)sqlite3_column_int64(s, 0);
    next->end = (uint64_t)sqlite3_column_int64(s, 1);
    stmt_reset(s);
    return 1;
}

struct pack_over {
    struct piece *piece;
    int rc; /* of reading it */
};

/* The pack is read as far as it can be. */
static int pack_over_run(struct storage_ledger *l, void *arg)
{
    struct pack_over *o = arg;
    uint32_t pack = o->piece->pack;
    erase_dead_less(l, pack, o->piece->settled);
    o->piece->settled = 0;
    l->unread_packs[0] = pack + 1;
    int rc = o->rc ? pack_not_looked_after(l, pack) : 0;
    if (!rc)
        rc = reindex_note(l);
    if (rc)
        l->unread_packs[0] = pack;
    return rc;
}

static int pack_settle_run(struct storage_ledger *l, void *arg)
{
    const struct pack_over *o = arg;
    erase_dead_settle(l, o->piece->pack, o->rc != 0);
    if (!o->rc) /* others are not ours to remove */
        erase_pack(l, o->piece->pack);
    return 0;
}

static int pack_read(struct piece *p, struct next *next)
{
    struct storage *st = p->st;
    uint64_t end;
    p->pack = next->pack;
    for (int pause = RETRY_MS;;) {
        p->rc = 0;
        int rc = packs_scan(&st->packs, p->pack, next->end, found, p, &end);
        garbage_cut(st, &p->garbage);
        if (!p->rc && rc != -ENOMEM)
            p->rc = rows_hand_over(p);
        rows_free(p);
        if (p->rc == -ECANCELED)
            return p->rc;
        if (p->rc == -ENOMEM || rc == -ENOMEM) {
            state_tell(st, -ENOMEM, false);
            pause_for(st, &pause);
            /* From where the index is: what was dropped already must not be met again. */
            if ((rc = insist(st, next_run, next)) != 1)
                return rc;
            continue;
        }
        struct pack_over o = {p, rc};
        if (rc)
            storage_log(st, LOG_WARNING, "pack %u is damaged or not ours and is not used further: %s", p->pack,
                        pack_strerror(rc));
        rc = insist(st, pack_over_run, &o);
        return rc ? rc : insist(st, pack_settle_run, &o);
    }
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Looks for rows whose parent has none. 1: there may be more. */
static int gaps_run(struct storage_ledger *l, void *arg)
{
    int64_t *at = arg;
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_GAP, *at, *at + GAP_ROWS);
    int rc = stmt_step(l, s);
    if (rc == 1)
        l->gaps = true;
    stmt_reset(s);
    if (rc)
        return rc < 0 ? rc : 0;
    *at += GAP_ROWS;
    s = stmt_get(l, S_SEG_LATEST);
    rc = stmt_step(l, s);
    bool more = rc == 1 && sqlite3_column_int64(s, 0) > *at;
    stmt_reset(s);
    return rc < 0 ? rc : more;
}

struct holds { /* of the turns behind `from`, up to `to` */
    int64_t from, to;
};

static int holds_run(struct storage_ledger *l, void *arg)
{
    struct holds *h = arg;
    h->to = h->from;
    int rc = turns_hold_again(l, &h->to, ROWS);
    return rc ? rc : h->to != INT64_MAX;
}

static int pending_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return turns_pending_over(l, l->pending_last);
}

/* Some of what was noted. 1: there may be more; 0: there was nothing. */
static int notes_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    bool unread = l->unread;
    l->unread = false;
    int rc = 1, n = 0;
    for (; n < NOTES && rc == 1; n += rc == 1) {
        int64_t turn_end[2];
        uint8_t key[STORAGE_KEY_BYTES];
        rc = note_take(l, WITHIN, "within" BEHIND, turn_end, sizeof turn_end);
        if (rc == 1) {
            int within_rc = segment_hold_within(l, turn_end[0], turn_end[1]);
            rc = within_rc && within_rc != -ENOENT ? within_rc : 1;
            continue;
        }
        if (!rc)
            rc = note_take(l, RELEASE, "release" BEHIND, key, sizeof key);
        if (rc == 1) {
            int release_rc = segment_release(l, key);
            rc = release_rc ? release_rc : 1;
        }
    }
    if (!rc && n)
        rc = segment_let_go(l);
    l->unread = unread;
    return rc < 0 ? rc : n > 0;
}

/* The index is whole, unless something was noted meanwhile (1). */
static int over_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int rc = notes_run(l, NULL);
    if (rc)
        return rc;
    sqlite3_stmt *s = stmt_get(l, S_KV_META_DELETE);
    bind_text(s, 1, UNREAD);
    rc = stmt_run(l, s, NULL);
    if (!rc && l->gaps)
        rc = meta_set(l, S_KV_META_SET, GAPS, "1", 1);
    if (!rc)
        rc = segment_sweep_all(l);
    if (rc)
        return rc;
    l->holds_at = INT64_MAX;
    l->unread = false;
    l->searching = true;
    erase_wait_for_cuts(l);
    return 0;
}

static int repeat(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), void *arg)
{
    int rc;
    while ((rc = insist(st, run, arg)) == 1)
        ;
    return rc;
}

void *index_thread(void *arg)
{
    struct storage *st = arg;
    struct next next;
    struct holds holds = {0};
    int64_t at = 0;
    struct piece p = {.st = st, .newest = st->ledger.unread_packs[1], .told_ms = monotonic_ms()};
    int rc = insist(st, begin_run, NULL);
    while (!rc && (rc = insist(st, next_run, &next)) == 1)
        rc = pack_read(&p, &next);
    if (!rc)
        rc = repeat(st, gaps_run, &at);
    if (!rc)
        while ((rc = insist(st, holds_run, &holds)) == 1) /* what was not committed is looked at again */
            holds.from = holds.to;
    if (!rc)
        rc = insist(st, pending_run, NULL);
    if (!rc)
        rc = repeat(st, notes_run, NULL);
    if (!rc)
        rc = repeat(st, over_run, NULL);
    if (!rc)
        storage_log(st, LOG_NOTICE, "kv.db is whole again: %llu segments were found in the packs",
                    (unsigned long long)p.taken);
    state_tell(st, rc == -ECANCELED ? 0 : rc, !rc);
    return NULL;
}

int index_wait(struct storage *st, int64_t until_ms)
{
    struct timespec t = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    bool late = false;
    pthread_mutex_lock(&st->jobs_lock);
    while (!st->index_over && !st->index_rc && !late)
        late = (until_ms ? pthread_cond_timedwait(&st->jobs_cond, &st->jobs_lock, &t)
                         : pthread_cond_wait(&st->jobs_cond, &st->jobs_lock)) == ETIMEDOUT;
    int rc = st->index_over ? 0 : st->index_rc ? st->index_rc : -ETIMEDOUT;
    pthread_mutex_unlock(&st->jobs_lock);
    return rc;
}

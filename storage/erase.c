/* erase.c - what follows a commit that took something away: records are cut out of their packs, and a deletion is
 * reported when nothing of it can be read any more. Ledger thread, except for the cutter's own part.
 *
 * A record that left the index has an intent in ledger.db from the same transaction on. The cutter thread overwrites
 * it, syncs, and punches a hole; what came of it goes back to the ledger thread, which takes the intent away with its
 * next transaction. A record that a reader has pinned waits for it; one that could not be cut out, or whose row could
 * not be taken out of kv.db, is tried again, less and less often.
 *
 * Something that was deleted for its owner has a mark in ledger.db from its deletion on ("deleting/ID"). When its last
 * record is gone, the ledger's log is emptied (vfs.c overwrites it), and only then the deletion is reported; the mark
 * goes with the next transaction that is synced. The index has codes of tokens (labels.c), which whoever has its keys
 * can find the tokens of: its log is emptied as well where it may have more than the first few of a row that went. It
 * also waits for what is left of records of its owner that went before, and after a start for the first search for what
 * nothing holds: a crash may have left something. Where something fails on the way, -EINPROGRESS
 * is reported: it is deleted for everybody, but the mark stays, and the rest is tried again, also after a restart.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define RETRY_MS_FIRST 1000
#define RETRY_MS_MOST  60000
#define CUT_PLACES     256  /* of one pack with one sync */
#define SEARCH_MS      5000 /* that a deletion waits for the search after a start before that is told */
#define MARK           "deleting/"

/* ---- marks ------------------------------------------------------------------------------------------------------- */

struct mark {
    struct mark *next;
    int64_t owner;
    char key[]; /* of ledger.db's meta */
};

static struct mark *mark_new(const char *public_id)
{
    size_t n = strlen(public_id);
    struct mark *m = malloc(sizeof *m + sizeof MARK + n);
    if (m) {
        m->next = NULL;
        m->owner = 0;
        memcpy(m->key, MARK, sizeof MARK - 1);
        memcpy(m->key + sizeof MARK - 1, public_id, n + 1);
    }
    return m;
}

static void marks_free(struct mark *m)
{
    for (struct mark *next; m; m = next) {
        next = m->next;
        free(m);
    }
}

int erase_mark(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct mark *m = mark_new(public_id);
    if (!m)
        return -ENOMEM;
    int rc = meta_set(l, S_META_SET, m->key, &owner, sizeof owner);
    for (struct mark **p = &l->gone; *p;) {
        struct mark *old = *p;
        if (strcmp(old->key, m->key) != 0) {
            p = &old->next;
            continue;
        }
        *p = old->next;
        free(old);
    }
    m->owner = owner;
    m->next = l->marks;
    l->marks = m;
    return rc;
}

int storage_deleting(struct storage_ledger *l, int64_t owner, const char *public_id)
{
    struct mark *m = mark_new(public_id);
    int64_t whose = 0;
    size_t n;
    int rc = m ? meta_get(l, S_META_GET, m->key, &whose, sizeof whose, &n) : -ENOMEM;
    for (const struct mark *g = l->gone; m && g && rc == 1; g = g->next)
        rc = strcmp(g->key, m->key) != 0;
    free(m);
    return rc == 1 ? whose == owner : rc;
}

/* ---- jobs that wait ---------------------------------------------------------------------------------------------- */

static void tell(struct job *j, int rc)
{
    if (j->job.done)
        j->job.done(j->job.arg, rc);
    j->job.done = NULL;
}

void erase_job_free(struct job *j)
{
    marks_free(j->marks);
    free(j);
}

static void pending_remove(struct storage_ledger *l, struct job *j)
{
    for (struct job **p = &l->pending; *p; p = &(*p)->next)
        if (*p == j) {
            *p = j->next;
            return;
        }
}

/* One of the job's records is gone, or (rc) is not. */
static void job_drop_over(struct storage_ledger *l, struct job *j, int rc)
{
    if (!j)
        return;
    if (rc && j->marks) {
        tell(j, -EINPROGRESS);
        return;
    }
    if (rc && !j->rc)
        j->rc = rc;
    if (--j->n_drops || j->marks)
        return;
    pending_remove(l, j);
    tell(j, j->rc);
    erase_job_free(j);
}

static void retry_later(struct retry *r)
{
    if (r->at_ms)
        return;
    r->pause_ms = !r->pause_ms ? RETRY_MS_FIRST : r->pause_ms * 2 < RETRY_MS_MOST ? r->pause_ms * 2 : RETRY_MS_MOST;
    r->at_ms = monotonic_ms() + r->pause_ms;
}

/* True: its time has come, or it was never put off. */
static bool retry_now(struct retry *r)
{
    if (r->at_ms && monotonic_ms() < r->at_ms)
        return false;
    r->at_ms = 0;
    return true;
}

/* ---- drops ------------------------------------------------------------------------------------------------------- */

static int intent_done(struct storage_ledger *l, int64_t intent)
{
    if (l->n_cleared == l->cap_cleared) {
        size_t cap = l->cap_cleared ? l->cap_cleared * 2 : 64;
        int64_t *grown = realloc(l->cleared, cap * sizeof *grown);
        if (!grown)
            return -ENOMEM; /* it stays in the ledger and is carried out again at the next open */
        l->cleared = grown;
        l->cap_cleared = cap;
    }
    l->cleared[l->n_cleared++] = intent;
    return 0;
}

static void wait_add(struct storage_ledger *l, struct drop d, enum drop_wait why)
{
    d.wait = why;
    if (l->n_waiting == l->cap_waiting) {
        size_t cap = l->cap_waiting ? l->cap_waiting * 2 : 16;
        struct drop *grown = realloc(l->waiting, cap * sizeof *grown);
        if (!grown) {
            /* Its intent stays, the next open carries it out. */
            if (d.job)
                tell(d.job, d.job->marks ? -EINPROGRESS : -ENOMEM);
            return;
        }
        l->waiting = grown;
        l->cap_waiting = cap;
    }
    l->waiting[l->n_waiting++] = d;
    if (why != WAIT_READER)
        retry_later(&l->retry_cuts);
}

/* What the cutter has now, deletions wait for: one that was just committed does, or with `all` every one. */
static void wait_for_cuts(struct storage_ledger *l, bool all)
{
    for (struct job *j = l->pending; j; j = j->next)
        if (j->marks && (all || !j->waits)) {
            j->waits = true;
            j->cuts_back = l->cuts_given;
        }
}

void erase_wait_for_cuts(struct storage_ledger *l)
{
    wait_for_cuts(l, true);
}

/* A deletion also waits for what is left of its owner's records from before, and of those whose owner is not known.
 * Those of another deletion are that one's. *failed: some of it could not be cut out, and is tried again. */
static bool earlier_left(const struct storage_ledger *l, const struct job *j, bool *failed)
{
    bool left = false;
    for (size_t i = 0; i < l->n_waiting; i++) {
        const struct drop *d = &l->waiting[i];
        if (d->job || (d->owner && j->marks->owner && d->owner != j->marks->owner))
            continue;
        left = true;
        *failed |= d->wait != WAIT_READER;
    }
    return left;
}

/* It is tried again later; who waits hears of it. A job that deleted nothing for its owner does not wait longer. */
static void drop_failed(struct storage_ledger *l, struct drop d, enum drop_wait why, int rc)
{
    struct job *j = d.job;
    if (j && !j->marks)
        d.job = NULL;
    wait_add(l, d, why);
    job_drop_over(l, j, rc);
}

void erase_dead(struct storage_ledger *l, uint32_t pack, uint64_t bytes)
{
    atomic_fetch_add(&l->st->disk_dead, bytes);
    for (size_t i = 0; i < l->n_dead; i++)
        if (l->dead[i].pack == pack) {
            l->dead[i].bytes += bytes;
            return;
        }
    if (l->n_dead == l->cap_dead) {
        size_t cap = l->cap_dead ? l->cap_dead * 2 : 16;
        struct dead *grown = realloc(l->dead, cap * sizeof *grown);
        if (!grown) {
            /* Not accounted for any more, until the next open. */
            atomic_fetch_sub(&l->st->disk_used, bytes);
            atomic_fetch_sub(&l->st->disk_dead, bytes);
            return;
        }
        l->dead = grown;
        l->cap_dead = cap;
    }
    l->dead[l->n_dead++] = (struct dead){pack, bytes};
}

/* The pack is gone, and its space with it. */
static void dead_given_back(struct storage_ledger *l, uint32_t pack)
{
    for (size_t i = 0; i < l->n_dead; i++)
        if (l->dead[i].pack == pack) {
            atomic_fetch_sub(&l->st->disk_used, l->dead[i].bytes);
            atomic_fetch_sub(&l->st->disk_dead, l->dead[i].bytes);
            l->dead[i] = l->dead[--l->n_dead];
            return;
        }
}

void erase_dead_less(struct storage_ledger *l, uint32_t pack, uint64_t bytes)
{
    for (size_t i = 0; i < l->n_dead; i++)
        if (l->dead[i].pack == pack) {
            bytes = bytes < l->dead[i].bytes ? bytes : l->dead[i].bytes;
            l->dead[i].bytes -= bytes;
            atomic_fetch_sub(&l->st->disk_dead, bytes);
            return;
        }
}

void erase_dead_settle(struct storage_ledger *l, uint32_t pack, bool all)
{
    for (size_t i = 0; i < l->n_dead; i++)
        if (l->dead[i].pack == pack && (all || l->dead[i].bytes <= DEAD_SLACK)) {
            dead_given_back(l, pack);
            return;
        }
}

static int by_pack(const void *a, const void *b)
{
    const struct drop *x = a, *y = b;
    return (x->pack > y->pack) - (x->pack < y->pack);
}

void erase_pack(struct storage_ledger *l, uint32_t pack)
{
    struct storage *st = l->st;
    if (pack >= atomic_load(&st->oldest_open_pack) || reindex_has(l, pack))
        return;
    for (size_t i = 0; i < l->n_waiting; i++) /* what is unlinked cannot be overwritten */
        if (l->waiting[i].pack == pack)
            return;
    sqlite3_stmt *s = STMT_WITH(l, S_SEG_IN_PACK, pack);
    int rc = stmt_step(l, s);
    stmt_reset(s);
    for (const struct cut *c = l->cuts; c && !rc; c = c->given_before)
        rc = bsearch(&(struct drop){.pack = pack}, c->drops, c->n, sizeof *c->drops, by_pack) != NULL;
    if (rc != 0 || packs_misnamed(&st->packs, pack) || packs_unlink(&st->packs, pack))
        return;
    dead_given_back(l, pack);
    (void)stmt_run(l, STMT_WITH(l, S_PACK_DELETE, pack), NULL);
}

/* Hands drops that nobody reads to the cutter, and keeps the others. */
static void drops_hand_over(struct storage_ledger *l, struct drop *drops, size_t n)
{
    struct storage *st = l->st;
    struct cut *c = malloc(sizeof *c + n * sizeof *c->drops);
    size_t taken = 0;
    for (size_t i = 0; i < n; i++) {
        struct drop *d = &drops[i];
        /* A copy in RAM goes too, unless the segment was stored anew meanwhile. */
        if (segment_exists(l, d->key) != 1)
            ram_drop_durable(&st->ram, &d->key, 1);
        if (!c || !pin_doom(st, d->pack, d->offset)) {
            wait_add(l, *d, c ? WAIT_READER : WAIT_FAILED);
        } else {
            c->drops[taken++] = *d;
        }
    }
    if (!taken) {
        free(c);
        return;
    }
    c->n = taken;
    c->next = NULL;
    qsort(c->drops, c->n, sizeof *c->drops, by_pack);
    c->given_before = l->cuts;
    l->cuts = c;
    l->n_cuts++;
    l->cuts_given++;
    pthread_mutex_lock(&st->cutter_lock);
    *st->cuts_tail = c;
    st->cuts_tail = &c->next;
    pthread_cond_signal(&st->cutter_cond);
    pthread_mutex_unlock(&st->cutter_lock);
}

void erase_drops(struct storage_ledger *l, int kv_rc)
{
    struct storage *st = l->st;
    size_t n = l->n_drops, gone = 0;
    l->n_drops = 0;
    wait_for_cuts(l, false);
    for (size_t i = 0; i < n; i++)
        gone += !l->drops[i].moved;
    if (!kv_rc)
        atomic_fetch_sub(&st->segments, gone);
    if (!kv_rc && n)
        drops_hand_over(l, l->drops, n);
    for (size_t i = 0; kv_rc && i < n; i++)
        drop_failed(l, l->drops[i], WAIT_INDEX, kv_rc);
    for (size_t i = 0; i < l->n_dead_turns; i++)
        ram_drop_turn(&st->ram, l->dead_turns[i]);
    l->n_dead_turns = 0;
}

/* The cutter has it no longer. */
static void cut_back(struct storage_ledger *l, const struct cut *c)
{
    struct cut **p = &l->cuts;
    while (*p != c)
        p = &(*p)->given_before;
    *p = c->given_before;
    l->n_cuts--;
}

void erase_results(struct storage_ledger *l, struct cut *c)
{
    struct storage *st = l->st;
    for (struct cut *next; c; c = next) {
        next = c->next;
        for (size_t i = 0; i < c->n; i++) {
            struct drop *d = &c->drops[i];
            if (d->rc) {
                if (d->rc != l->cut_said)
                    storage_log(st, LOG_ERR, "pack %u: a record cannot be overwritten; this is tried again: %s",
                                d->pack, pack_strerror(d->rc));
                l->cut_said = d->rc;
                drop_failed(l, *d, WAIT_FAILED, d->rc);
                continue;
            }
            l->cut_said = 0;
            l->retry_cuts.pause_ms = 0;
            if (d->given_back)
                atomic_fetch_sub(&st->disk_used, d->bytes);
            else
                erase_dead(l, d->pack, d->bytes);
            if (d->intent)
                (void)intent_done(l, d->intent);
        }
        cut_back(l, c);
        for (size_t i = 0; i < c->n; i++) {
            const struct drop *d = &c->drops[i];
            if (d->rc)
                continue;
            if (i + 1 == c->n || c->drops[i + 1].pack != d->pack)
                erase_pack(l, d->pack);
            job_drop_over(l, d->job, 0);
        }
        free(c);
    }
}

/* Takes out of the list those of a kind and hands them over. */
static void waiting_hand_over(struct storage_ledger *l, bool readers)
{
    struct drop *ready = malloc((l->n_waiting ? l->n_waiting : 1) * sizeof *ready);
    if (!ready) {
        retry_later(&l->retry_cuts);
        return;
    }
    size_t n = 0, kept = 0;
    for (size_t i = 0; i < l->n_waiting; i++) {
        if (readers ? l->waiting[i].wait == WAIT_READER : l->waiting[i].wait == WAIT_FAILED)
            ready[n++] = l->waiting[i];
        else
            l->waiting[kept++] = l->waiting[i];
    }
    l->n_waiting = kept;
    drops_hand_over(l, ready, n);
    wait_for_cuts(l, true);
    free(ready);
}

void erase_unpinned(struct storage_ledger *l)
{
    waiting_hand_over(l, true);
}

static int index_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int rc = 0;
    for (size_t i = 0; i < l->n_waiting && !rc; i++) {
        const struct drop *d = &l->waiting[i];
        if (d->wait == WAIT_INDEX)
            rc = segment_cut(l, d->key, d->pack, d->offset);
    }
    return rc;
}

/* ---- the end of a deletion --------------------------------------------------------------------------------------- */

int erase_marks_clear(struct storage_ledger *l)
{
    int rc = 0;
    for (const struct mark *m = l->gone; m && !rc; m = m->next) {
        sqlite3_stmt *s = stmt_get(l, S_META_DELETE);
        bind_text(s, 1, m->key);
        rc = stmt_run(l, s, NULL);
    }
    for (size_t i = 0; i < l->n_cleared && !rc; i++) {
        sqlite3_stmt *s = STMT_WITH(l, S_INTENT_DELETE, l->cleared[i]);
        rc = stmt_run(l, s, NULL);
    }
    return rc;
}

void erase_marks_cleared(struct storage_ledger *l, int rc)
{
    if (rc)
        return;
    l->n_cleared = 0;
    marks_free(l->gone);
    l->gone = NULL;
}

/* That of one database. The pages in SQLite's cache still have what vfs.c left out, and would bring it into the next
 * log. */
static int log_empty(sqlite3 *db)
{
    int rc = schema_errno(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL));
    return rc ? rc : schema_errno(sqlite3_db_release_memory(db));
}

static int kv_log_empty(struct storage_ledger *l)
{
    int rc = log_empty(l->kv);
    l->heads_logged &= rc != 0;
    return rc;
}

int erase_logs(struct storage_ledger *l)
{
    int kv_rc = kv_log_empty(l), rc = log_empty(l->db);
    return rc ? rc : kv_rc;
}

/* Whether all that a deletion took away is overwritten, but for the logs. Who waits for what failed hears of it. */
static bool cut_out_all(const struct storage_ledger *l, struct job *j)
{
    bool failed = l->unread || l->gaps; /* something of it may be found yet */
    if (j->marks && (failed || (l->searching && monotonic_ms() - j->since_ms >= SEARCH_MS)))
        tell(j, -EINPROGRESS);
    if (!j->marks || failed || l->searching || j->n_drops || l->cuts_given - l->n_cuts < j->cuts_back ||
        atomic_load(&l->st->moving))
        return false;
    bool left = earlier_left(l, j, &failed);
    if (failed)
        tell(j, -EINPROGRESS);
    return !left;
}

void erase_finish(struct storage_ledger *l)
{
    bool any = false;
    for (struct job *j = l->pending; j; j = j->next)
        any |= cut_out_all(l, j);
    if (!any)
        return;
    bool now = retry_now(&l->retry_logs);
    int rc = now ? log_empty(l->db) : -EAGAIN;
    bool ledger = rc != 0;
    if (!rc && l->heads_logged)
        rc = kv_log_empty(l);
    if (rc && now)
        storage_log(l->st, LOG_WARNING, "the log of %s keeps deleted rows for now: %s", ledger ? "ledger.db" : "kv.db",
                    strerror(-rc));
    if (rc)
        retry_later(&l->retry_logs);
    else
        l->retry_logs.pause_ms = 0;
    for (struct job **p = &l->pending; *p;) {
        struct job *j = *p;
        if (!cut_out_all(l, j)) {
            p = &j->next;
        } else if (rc) {
            tell(j, -EINPROGRESS);
            p = &j->next;
        } else {
            /* Its marks need no transaction of their own: a start that still finds them does nothing wrong. */
            *p = j->next;
            tell(j, 0);
            struct mark **end = &j->marks;
            while (*end)
                end = &(*end)->next;
            *end = l->gone;
            l->gone = j->marks;
            j->marks = NULL;
            erase_job_free(j);
        }
    }
}

void erase_retry(struct storage_ledger *l)
{
    if (!l->retry_cuts.at_ms || !retry_now(&l->retry_cuts))
        return;
    size_t n = 0;
    for (size_t i = 0; i < l->n_waiting; i++)
        n += l->waiting[i].wait == WAIT_INDEX;
    int rc = n ? jobs_run_alone(l, index_run) : 0;
    if (!rc)
        rc = vfs_sync_log(l->db); /* where that was what failed */
    if (rc) {
        retry_later(&l->retry_cuts);
        return;
    }
    for (size_t i = 0; n && i < l->n_waiting; i++)
        if (l->waiting[i].wait == WAIT_INDEX)
            l->waiting[i].wait = WAIT_FAILED;
    atomic_fetch_sub(&l->st->segments, n);
    waiting_hand_over(l, false);
}

int64_t erase_due_ms(const struct storage_ledger *l)
{
    int64_t cuts = l->retry_cuts.at_ms, logs = l->retry_logs.at_ms;
    return !cuts || (logs && logs < cuts) ? logs : cuts;
}

void erase_give_up(struct storage_ledger *l)
{
    l->n_waiting = 0;
    marks_free(l->gone);
    l->gone = NULL;
    while (l->pending) {
        struct job *j = l->pending;
        l->pending = j->next;
        tell(j, j->marks ? -EINPROGRESS : -ESHUTDOWN);
        erase_job_free(j);
    }
}

/* ---- records without a row --------------------------------------------------------------------------------------- */

struct stray {
    struct storage *st;
    struct drop drop;
};

static int stray_run(struct storage_ledger *l, void *arg)
{
    const struct drop *d = &((const struct stray *)arg)->drop;
    return segment_drop_record(l, d->owner, d->key, d->pack, d->offset, d->bytes);
}

/* Without an intent it is tried again as long as this process lives. */
static void stray_done(void *arg, int rc)
{
    struct stray *s = arg;
    if (rc) {
        atomic_fetch_sub(&s->st->segments, 1);
        wait_add(&s->st->ledger, s->drop, WAIT_FAILED);
    }
    free(s);
}

void erase_record(struct storage *st, int64_t owner, const uint8_t key[STORAGE_KEY_BYTES], const struct place_of *at)
{
    bool given_back;
    int rc = packs_cut(&st->packs, at->pack, &(struct place){at->offset, at->bytes}, 1, &given_back);
    if (!rc) {
        if (given_back) /* otherwise the next open finds out */
            atomic_fetch_sub(&st->disk_used, at->bytes);
        atomic_fetch_sub(&st->segments, 1);
        return;
    }
    struct stray *s = malloc(sizeof *s);
    storage_log(st, LOG_ERR, "pack %u: a record cannot be overwritten; this is %stried again: %s", at->pack,
                s ? "" : "not ", strerror(-rc));
    if (!s)
        return;
    *s = (struct stray){st, {.owner = owner, .pack = at->pack, .offset = at->offset, .bytes = at->bytes}};
    memcpy(s->drop.key, key, STORAGE_KEY_BYTES);
    if (storage_submit(st, (struct storage_job){.run = stray_run, .done = stray_done, .arg = s}))
        free(s);
}

/* ---- at open ----------------------------------------------------------------------------------------------------- */

int erase_left(struct storage_ledger *l, const struct drop *drops, size_t n)
{
    struct job *j = calloc(1, sizeof *j);
    int rc = j ? 0 : -ENOMEM;
    sqlite3_stmt *s = stmt_get(l, S_META_MARKS);
    while (j && (rc = stmt_step(l, s)) == 1) {
        const char *key = (const char *)sqlite3_column_text(s, 0);
        struct mark *m = key ? mark_new(key + sizeof MARK - 1) : NULL;
        if (!m) {
            rc = -ENOMEM;
            break;
        }
        m->next = j->marks;
        j->marks = m;
    }
    stmt_reset(s);
    bool marked = !rc && j->marks;
    for (size_t i = 0; i < n; i++) {
        struct drop d = drops[i];
        d.job = NULL;
        atomic_fetch_add(&l->st->disk_used, d.bytes); /* until it is cut out */
        wait_add(l, d, WAIT_FAILED);
    }
    if (marked) {
        l->pending = j; /* its owner is not known: it waits for all of them */
    } else if (j) {
        erase_job_free(j);
    }
    return rc;
}

/* ---- the cutter -------------------------------------------------------------------------------------------------- */

static void cut_out(struct storage *st, struct cut *c)
{
    struct place places[CUT_PLACES];
    for (size_t i = 0; i < c->n;) {
        size_t n = 0;
        for (; i + n < c->n && c->drops[i + n].pack == c->drops[i].pack && n < CUT_PLACES; n++)
            places[n] = (struct place){c->drops[i + n].offset, c->drops[i + n].bytes};
        bool given_back;
        int rc = packs_cut(&st->packs, c->drops[i].pack, places, n, &given_back);
        for (; n; n--, i++) {
            c->drops[i].rc = rc;
            c->drops[i].given_back = given_back;
        }
    }
}

void *cutter_thread(void *arg)
{
    struct storage *st = arg;
    for (;;) {
        pthread_mutex_lock(&st->cutter_lock);
        while (!st->cuts && !st->cutter_stop)
            pthread_cond_wait(&st->cutter_cond, &st->cutter_lock);
        struct cut *c = st->cuts;
        if (c) {
            st->cuts = c->next;
            if (!st->cuts)
                st->cuts_tail = &st->cuts;
        }
        pthread_mutex_unlock(&st->cutter_lock);
        if (!c)
            return NULL;
        cut_out(st, c);
        pthread_mutex_lock(&st->jobs_lock);
        c->next = st->cut_results;
        st->cut_results = c;
        pthread_cond_broadcast(&st->jobs_cond);
        pthread_mutex_unlock(&st->jobs_lock);
    }
}

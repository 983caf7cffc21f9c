/* jobs.c - the ledger thread: jobs in order, group commit, and what follows a commit.
 *
 * The thread takes all jobs that wait (up to JOBS_BATCH), runs each in a savepoint of one transaction per database,
 * commits ledger.db (which syncs) and then kv.db (which does not), and only then reports. A job that fails takes its
 * own writes and its own list entries back; others are not touched. When the ledger's commit fails every job of the
 * batch is told. The index of segments is only a cache: when it cannot begin, commit or go on, the ledger commits all
 * the same, and only jobs that wrote the index (or ask it for something from then on) fail.
 *
 * After the commit the records that left the index are cut out of their packs, as far as nobody reads them; the intents
 * that name them go with the next transaction. Jobs that deleted something for its owner are reported after that, and
 * after both write-ahead logs were emptied, so that "deleted" means gone from the disk.
 *
 * When nothing waits the thread looks through the index for segments that nothing holds, a few rows at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "storage/storage_internal.h"

#define JOBS_BATCH     256
#define SWEEP_ROWS     64
#define SWEEP_PAUSE_MS 10

static int job_queue(struct storage *st, struct storage_job job)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return -ENOMEM;
    j->job = job;
    pthread_mutex_lock(&st->jobs_lock);
    *st->jobs_tail = j;
    st->jobs_tail = &j->next;
    pthread_cond_broadcast(&st->jobs_cond);
    pthread_mutex_unlock(&st->jobs_lock);
    return 0;
}

int storage_submit(struct storage *st, struct storage_job job)
{
    return job_queue(st, job);
}

struct call {
    int (*run)(struct storage_ledger *l, void *arg);
    void *arg;
    pthread_mutex_t lock; /* guards finished and rc */
    pthread_cond_t cond;
    bool finished;
    int rc;
};

static int call_run(struct storage_ledger *l, void *arg)
{
    struct call *c = arg;
    return c->run(l, c->arg);
}

static void call_done(void *arg, int rc)
{
    struct call *c = arg;
    pthread_mutex_lock(&c->lock);
    c->rc = rc;
    c->finished = true;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

int jobs_call(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), void *arg)
{
    struct call c = {.run = run, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    int rc = job_queue(st, (struct storage_job){.run = call_run, .done = call_done, .arg = &c});
    if (rc)
        return rc;
    pthread_mutex_lock(&c.lock);
    while (!c.finished)
        pthread_cond_wait(&c.cond, &c.lock);
    pthread_mutex_unlock(&c.lock);
    (void)pthread_cond_destroy(&c.cond);
    (void)pthread_mutex_destroy(&c.lock);
    return c.rc;
}

/* ---- transactions ------------------------------------------------------------------------------------------------ */

static int control(struct storage_ledger *l, enum stmt_id id)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, id, &rc);
    return s ? stmt_run(l, s, NULL) : rc;
}

/* Ends whatever transaction a database is in. */
static void roll_back(sqlite3 *db)
{
    if (!sqlite3_get_autocommit(db))
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
}

/* From now on the batch goes on without kv.db. */
static void kv_lose(struct storage_ledger *l, int rc)
{
    if (!l->kv_rc)
        l->kv_rc = rc;
    roll_back(l->kv);
}

/* As control(), for the index's part of a transaction. */
static void kv_control(struct storage_ledger *l, enum stmt_id id)
{
    int rc = l->kv_rc ? 0 : control(l, id);
    if (rc)
        kv_lose(l, rc);
}

/* Negative: the ledger's transaction is lost. */
static int job_run(struct storage_ledger *l, struct job *j)
{
    size_t n_drops = l->n_drops, n_dead = l->n_dead_turns;
    l->deferred = l->deleted = l->wrote_kv = false;
    int rc = control(l, S_SAVEPOINT);
    if (rc)
        return rc;
    kv_control(l, S_KV_SAVEPOINT);
    j->rc = j->job.run(l, j->job.arg);
    /* A failing statement may have made SQLite roll the whole transaction back. */
    if (sqlite3_get_autocommit(l->db))
        return j->rc < 0 ? j->rc : -EIO;
    if (!l->kv_rc && sqlite3_get_autocommit(l->kv))
        kv_lose(l, j->rc < 0 ? j->rc : -EIO);
    j->deferred = l->deferred || l->deleted;
    j->deleted = l->deleted;
    j->kv = l->wrote_kv;
    if (j->rc < 0) {
        l->n_drops = n_drops;
        l->n_dead_turns = n_dead;
        j->deferred = j->deleted = false;
        rc = control(l, S_ROLLBACK_TO);
        if (rc)
            return rc;
        kv_control(l, S_KV_ROLLBACK_TO);
    }
    kv_control(l, S_KV_RELEASE);
    return control(l, S_RELEASE);
}

static int intents_clear(struct storage_ledger *l)
{
    int rc = 0;
    for (size_t i = 0; i < l->n_cleared && !rc; i++) {
        sqlite3_stmt *s = stmt_get(l, S_INTENT_DELETE, &rc);
        if (s) {
            (void)sqlite3_bind_int64(s, 1, l->cleared[i]);
            rc = stmt_run(l, s, NULL);
        }
    }
    return rc;
}

/* What cannot be noted was not used, as far as eviction knows. */
static void touched_flush(struct storage_ledger *l)
{
    struct storage *st = l->st;
    uint8_t keys[TOUCHED_MAX][STORAGE_KEY_BYTES];
    pthread_mutex_lock(&st->pin_lock);
    size_t n = st->n_touched;
    memcpy(keys, st->touched, n * sizeof *keys);
    st->n_touched = 0;
    pthread_mutex_unlock(&st->pin_lock);
    l->used++;
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = segment_touch(l, keys[i]);
    if (rc && !l->kv_rc && sqlite3_get_autocommit(l->kv))
        kv_lose(l, rc);
}

/* Runs a batch and commits it. Returns why the ledger did not commit; *kv_rc why kv.db did not. */
static int batch_commit(struct storage_ledger *l, struct job *batch, int *kv_rc)
{
    l->n_drops = l->n_dead_turns = 0;
    int rc = control(l, S_BEGIN);
    kv_control(l, S_KV_BEGIN);
    if (!rc)
        rc = intents_clear(l);
    for (struct job *j = batch; j && !rc; j = j->next)
        rc = job_run(l, j);
    if (!rc) {
        touched_flush(l);
        rc = control(l, S_COMMIT);
    }
    if (rc) {
        roll_back(l->db);
        roll_back(l->kv);
        l->n_drops = l->n_dead_turns = 0;
    } else {
        l->n_cleared = 0;
        kv_control(l, S_KV_COMMIT);
    }
    *kv_rc = rc ? 0 : l->kv_rc;
    l->kv_rc = 0;
    return rc;
}

/* ---- after a commit ---------------------------------------------------------------------------------------------- */

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

/* A pack without live records that will get no more goes as a whole. */
static void pack_collect(struct storage_ledger *l, uint32_t pack)
{
    struct storage *st = l->st;
    if (pack >= atomic_load(&st->oldest_open_pack))
        return;
    int rc;
    sqlite3_stmt *s = stmt_get(l, S_SEG_IN_PACK, &rc);
    if (!s)
        return;
    (void)sqlite3_bind_int64(s, 1, pack);
    rc = stmt_step(l, s);
    stmt_reset(s);
    if (rc != 0 || packs_unlink(&st->packs, pack))
        return;
    s = stmt_get(l, S_PACK_DELETE, &rc);
    if (s) {
        (void)sqlite3_bind_int64(s, 1, pack);
        (void)stmt_run(l, s, NULL);
    }
}

static void drop_carry_out(struct storage_ledger *l, const struct drop *d)
{
    struct storage *st = l->st;
    /* A copy in RAM goes too, unless the segment was stored anew meanwhile. */
    if (segment_exists(l, d->key) != 1)
        ram_drop_durable(&st->ram, &d->key, 1);
    int rc = packs_punch(&st->packs, d->pack, d->offset, d->bytes);
    if (rc) {
        storage_log(st, LOG_ERR, "pack %u: cannot give space back: %s", d->pack, strerror(-rc));
        return;
    }
    pack_collect(l, d->pack);
    if (d->intent)
        (void)intent_done(l, d->intent);
}

/* Carries out the drops that waited for a reader, as far as it is gone. */
static void drops_retry(struct storage_ledger *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n_waiting; i++) {
        if (pin_doom(l->st, l->waiting[i].pack, l->waiting[i].offset))
            drop_carry_out(l, &l->waiting[i]);
        else
            l->waiting[kept++] = l->waiting[i];
    }
    l->n_waiting = kept;
}

static void drops_carry_out(struct storage_ledger *l)
{
    struct storage *st = l->st;
    for (size_t i = 0; i < l->n_drops; i++) {
        const struct drop *d = &l->drops[i];
        atomic_fetch_sub(&st->disk_used, d->bytes);
        atomic_fetch_sub(&st->segments, 1);
        if (pin_doom(st, d->pack, d->offset)) {
            drop_carry_out(l, d);
            continue;
        }
        if (l->n_waiting == l->cap_waiting) {
            size_t cap = l->cap_waiting ? l->cap_waiting * 2 : 16;
            struct drop *grown = realloc(l->waiting, cap * sizeof *grown);
            if (!grown)
                continue; /* its intent stays, the next open carries it out */
            l->waiting = grown;
            l->cap_waiting = cap;
        }
        l->waiting[l->n_waiting++] = *d;
    }
    l->n_drops = 0;
    for (size_t i = 0; i < l->n_dead_turns; i++)
        ram_drop_turn(&st->ram, l->dead_turns[i]);
    l->n_dead_turns = 0;
}

/* Empties both logs, so that deleted rows are not left in them. */
static int logs_truncate(struct storage_ledger *l)
{
    int rc = sqlite3_wal_checkpoint_v2(l->kv, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    int ledger_rc = sqlite3_wal_checkpoint_v2(l->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    return schema_errno(ledger_rc != SQLITE_OK ? ledger_rc : rc);
}

static void report(struct job *batch, bool deferred, int rc, int kv_rc)
{
    for (struct job *j = batch; j; j = j->next) {
        if (j->deferred != deferred || !j->job.done)
            continue;
        int result = rc ? rc : j->rc < 0 ? j->rc : j->kv ? kv_rc : 0;
        j->job.done(j->job.arg, result);
    }
}

static void batch_run(struct storage_ledger *l, struct job *batch)
{
    struct storage *st = l->st;
    int kv_rc = 0;
    int rc = batch_commit(l, batch, &kv_rc);
    if (rc)
        storage_log(st, LOG_ERR, "ledger: a commit of jobs failed: %s", strerror(-rc));
    if (kv_rc) {
        if (kv_rc != l->kv_said)
            storage_log(st, LOG_ERR, "index of segments: a commit failed: %s", strerror(-kv_rc));
        /* Its rows are still there: the intents are carried out at the next open. */
        l->n_drops = 0;
    }
    if (!rc)
        l->kv_said = kv_rc;
    bool deleted = false;
    for (struct job *j = batch; j; j = j->next) {
        if (rc)
            j->deferred = j->deleted = false;
        deleted |= j->deleted;
    }
    report(batch, false, rc, kv_rc);
    drops_carry_out(l);
    if (deleted) {
        int log_rc = logs_truncate(l);
        if (log_rc)
            storage_log(st, LOG_WARNING, "ledger: the log keeps deleted rows for now: %s", strerror(-log_rc));
    }
    report(batch, true, rc, kv_rc);
    if (atomic_load(&st->kv_damaged) && !l->kv_marked) {
        l->kv_marked = true;
        storage_mark_kv_damaged(st);
    }
    for (struct job *next; batch; batch = next) {
        next = batch->next;
        free(batch);
    }
}

static int sweep_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return segment_sweep(l, SWEEP_ROWS);
}

/* A piece of the search for segments that nothing holds. */
static void sweep(struct storage_ledger *l)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return;
    j->job.run = sweep_run;
    int64_t before = l->sweep_at;
    batch_run(l, j);
    if (l->sweep_at == before)
        l->sweep_at = INT64_MAX; /* it cannot go on: leave it to the next start */
    if (l->sweep_at == INT64_MAX) {
        pthread_mutex_lock(&l->st->jobs_lock);
        l->st->sweep_done = true;
        pthread_cond_broadcast(&l->st->jobs_cond);
        pthread_mutex_unlock(&l->st->jobs_lock);
    }
}

void jobs_sweep_wait(struct storage *st)
{
    pthread_mutex_lock(&st->jobs_lock);
    while (!st->sweep_done)
        pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
    pthread_mutex_unlock(&st->jobs_lock);
}

static struct timespec in_ms(int ms)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

void *jobs_thread(void *arg)
{
    struct storage *st = arg;
    struct storage_ledger *l = &st->ledger;
    for (;;) {
        pthread_mutex_lock(&st->jobs_lock);
        struct timespec until = in_ms(SWEEP_PAUSE_MS);
        bool timeout = false;
        while (!st->jobs && !st->jobs_stop && !st->unpinned && !timeout) {
            if (l->sweep_at == INT64_MAX)
                pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
            else
                timeout = pthread_cond_timedwait(&st->jobs_cond, &st->jobs_lock, &until) == ETIMEDOUT;
        }
        struct job *batch = st->jobs, **end = &batch;
        for (int n = 0; *end && n < JOBS_BATCH; n++)
            end = &(*end)->next;
        st->jobs = *end;
        if (!st->jobs)
            st->jobs_tail = &st->jobs;
        *end = NULL;
        bool stop = st->jobs_stop, unpinned = st->unpinned;
        st->unpinned = false;
        pthread_mutex_unlock(&st->jobs_lock);

        if (unpinned)
            drops_retry(l);
        if (batch)
            batch_run(l, batch);
        else if (stop)
            break;
        else if (timeout)
            sweep(l);
    }
    /* What reads touched and which intents are done. */
    drops_retry(l);
    batch_run(l, NULL);
    return NULL;
}

/* jobs.c - the ledger thread: jobs in order, group commit, and what follows a commit.
 *
 * The thread takes all jobs that wait (up to JOBS_BATCH), runs each in a savepoint (one alone, without uses, needs
 * none) of one transaction per database, commits ledger.db (which syncs) and then kv.db (which does not), and only then
 * reports. A job that fails takes its own writes and its own list entries back; others are not touched. When the
 * ledger's commit fails every job of the batch is told. The index of segments is only a cache: when it cannot begin,
 * commit or go on, the ledger commits all the same, and only jobs fail that say that they write the index, or ask it
 * for something from then on.
 *
 * What a job took away is cut out of the packs after the commit; see erase.c. Jobs that wait for that, because they
 * made room or deleted something for its owner, are reported later.
 *
 * When nothing waits, or now and then where something always does, the thread looks through the index for segments that
 * nothing holds, a few rows at a time: once after open, and again for what is newer when storage_sweep() says that
 * turns have ended. Deletions wait for the first: of a crash before the start there may be something that was theirs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

#define JOBS_BATCH      256
#define SWEEP_ROWS      64
#define SWEEP_PAUSE_MS  10
#define SWEEP_FAILED    12  /* so often the pause doubles */
#define SWEEP_BUSY_MS   100 /* that a piece of the search waits for a moment in which nothing else is to be done */
#define IDLE_MS         5000
#define SUPERSEDED_MOST 64

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

int jobs_wait(struct storage *st, struct storage_job job)
{
    struct call c = {
        .run = job.run, .arg = job.arg, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    job.run = call_run;
    job.done = call_done;
    job.arg = &c;
    int rc = job_queue(st, job);
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

int jobs_call(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), void *arg)
{
    return jobs_wait(st, (struct storage_job){.run = run, .arg = arg});
}

/* ---- transactions ------------------------------------------------------------------------------------------------ */

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

/* As stmt_do(), for the index's part of a transaction. */
static void kv_control(struct storage_ledger *l, enum stmt_id id)
{
    int rc = l->kv_rc ? 0 : stmt_do(l, id);
    if (rc)
        kv_lose(l, rc);
}

/* What a job can be taken back to; one that is alone in its transaction can be with all of that. */
static int job_begin(struct storage_ledger *l, bool alone)
{
    int rc = alone ? 0 : stmt_do(l, S_SAVEPOINT);
    if (!rc && !alone)
        kv_control(l, S_KV_SAVEPOINT);
    return rc;
}

static int job_undo(struct storage_ledger *l, bool alone)
{
    if (alone)
        roll_back(l->db);
    int rc = stmt_do(l, alone ? S_BEGIN : S_ROLLBACK_TO);
    if (rc)
        return rc;
    if (alone)
        roll_back(l->kv);
    kv_control(l, alone ? S_KV_BEGIN : S_KV_ROLLBACK_TO);
    return 0;
}

static int job_end(struct storage_ledger *l, bool alone)
{
    if (!alone)
        kv_control(l, S_KV_RELEASE);
    return alone ? 0 : stmt_do(l, S_RELEASE);
}

/* Negative: the ledger's transaction is lost. */
static int job_run(struct storage_ledger *l, struct job *j, bool alone)
{
    size_t n_drops = l->n_drops, n_dead = l->n_dead_turns, n_let_go = l->n_let_go;
    l->titles_changed = false;
    int rc = job_begin(l, alone);
    if (rc)
        return rc;
    j->rc = j->job.run(l, j->job.arg);
    j->marks = l->marks;
    l->marks = NULL;
    /* A failing statement may have made SQLite roll the whole transaction back. */
    if (sqlite3_get_autocommit(l->db))
        return j->rc < 0 ? j->rc : -EIO;
    if (!l->kv_rc && sqlite3_get_autocommit(l->kv))
        kv_lose(l, j->rc < 0 ? j->rc : -EIO);
    bool waits = j->rc >= 0 && (j->job.erases || j->marks);
    if (room_is_full(j->rc))
        atomic_store(&l->st->room_hit, true); /* SQLite may have taken back the statement alone */
    if (j->rc < 0) {
        l->n_drops = n_drops;
        l->n_dead_turns = n_dead;
        l->n_let_go = n_let_go;
        if (l->titles_changed)
            titles_give_up(l);
        rc = job_undo(l, alone);
        if (rc)
            return rc;
    }
    for (size_t i = n_drops; waits && i < l->n_drops; i++)
        l->drops[i].job = j;
    j->n_drops = waits ? l->n_drops - n_drops : 0;
    return job_end(l, alone);
}

/* Runs a batch and commits it. Returns why the ledger did not commit; *kv_rc why kv.db did not. */
static int batch_commit(struct storage_ledger *l, struct job *batch, int *kv_rc)
{
    bool unsynced = batch != NULL;
    l->reads = batch != NULL;
    for (struct job *j = batch; j; j = j->next) {
        unsynced &= j->job.unsynced;
        l->reads &= j->job.reads;
    }
    l->n_drops = l->n_dead_turns = l->n_let_go = 0;
    /* Not a statement that is kept: the pragma works when it is compiled. */
    int rc = unsynced ? schema_errno(sqlite3_exec(l->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL)) : 0;
    if (!rc)
        rc = stmt_do(l, S_BEGIN);
    kv_control(l, S_KV_BEGIN);
    bool alone = batch && !batch->next && (l->reads || !l->n_uses); /* it may be undone with the transaction */
    if (!l->reads)
        segment_uses_write(l);
    int changes = sqlite3_total_changes(l->db);
    for (struct job *j = batch; j && !rc; j = j->next)
        rc = job_run(l, j, alone);
    /* What is done with goes along with a transaction that is to be synced anyway. */
    bool clear = !rc && !unsynced && (!batch || sqlite3_total_changes(l->db) != changes);
    if (clear)
        rc = erase_marks_clear(l);
    if (!rc && !l->kv_rc) {
        int clock_rc = segments_clock(l);
        if (clock_rc)
            kv_lose(l, clock_rc);
    }
    if (!rc)
        rc = stmt_do(l, S_COMMIT);
    if (rc) {
        roll_back(l->db);
        roll_back(l->kv);
        titles_give_up(l);
        l->n_drops = l->n_dead_turns = 0;
    } else {
        kv_control(l, S_KV_COMMIT);
        /* What goes out of a pack must have gone from the ledger for good. */
        int sync_rc = unsynced && l->n_drops ? vfs_sync_log(l->db) : 0;
        if (sync_rc && !l->kv_rc)
            l->kv_rc = sync_rc;
    }
    if (unsynced && sqlite3_exec(l->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK)
        storage_log(l->st, LOG_ERR, "ledger: transactions may not be synced from now on: %s", sqlite3_errmsg(l->db));
    if (clear)
        erase_marks_cleared(l, rc);
    segment_let_go_over(l, rc ? rc : l->kv_rc);
    if (l->kv_rc)
        l->used_noted = 0; /* perhaps it was not written down */
    atomic_store(&l->st->clock, l->used);
    *kv_rc = rc ? 0 : l->kv_rc;
    l->kv_rc = 0;
    return rc;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Reports the batch, or notes what is reported later. */
static void batch_report(struct storage_ledger *l, struct job *batch, int rc, int kv_rc)
{
    for (struct job *j = batch, *next; j; j = next) {
        next = j->next;
        bool done = !rc && j->rc >= 0;
        j->rc = rc ? rc : j->rc < 0 ? j->rc : j->job.index ? kv_rc : 0;
        if (done && (j->marks || j->n_drops)) {
            j->since_ms = monotonic_ms();
            j->next = l->pending;
            l->pending = j;
            continue;
        }
        if (j->job.done)
            j->job.done(j->job.arg, j->rc);
        erase_job_free(j);
    }
}

static int batch_run(struct storage_ledger *l, struct job *batch)
{
    struct storage *st = l->st;
    int kv_rc = 0;
    int rc = batch_commit(l, batch, &kv_rc);
    if (rc)
        storage_log(st, LOG_ERR, "ledger: a commit of jobs failed: %s", strerror(-rc));
    if (room_is_full(rc) || room_is_full(kv_rc))
        atomic_store(&st->room_hit, true);
    if (kv_rc && kv_rc != l->kv_said)
        storage_log(st, LOG_ERR, "index of segments: a commit failed: %s", strerror(-kv_rc));
    if (!rc)
        l->kv_said = kv_rc;
    batch_report(l, batch, rc, kv_rc);
    erase_drops(l, kv_rc);
    if (atomic_load(&st->kv_damaged) && !l->kv_marked) {
        l->kv_marked = true;
        storage_mark_kv_damaged(st);
    }
    return rc;
}

struct alone {
    int (*run)(struct storage_ledger *l, void *arg);
    int rc;
};

static int alone_run(struct storage_ledger *l, void *arg)
{
    struct alone *a = arg;
    return a->run(l, NULL);
}

static void alone_done(void *arg, int rc)
{
    struct alone *a = arg;
    a->rc = rc;
}

int jobs_run_alone(struct storage_ledger *l, int (*run)(struct storage_ledger *l, void *arg))
{
    struct alone a = {.run = run};
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return -ENOMEM;
    j->job = (struct storage_job){.run = alone_run, .done = alone_done, .arg = &a, .index = true};
    (void)batch_run(l, j);
    return a.rc;
}

void jobs_cuts_wait(struct storage_ledger *l)
{
    struct storage *st = l->st;
    while (l->n_cuts) {
        pthread_mutex_lock(&st->jobs_lock);
        while (!st->cut_results)
            pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
        struct cut *results = st->cut_results;
        st->cut_results = NULL;
        pthread_mutex_unlock(&st->jobs_lock);
        erase_results(l, results);
    }
}

static int sweep_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int rc = segment_sweep(l, SWEEP_ROWS);
    return !rc && l->gaps && l->sweep_at == INT64_MAX ? reindex_gaps_over(l) : rc;
}

static int holds_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return turns_hold_again(l, &l->holds_at, SWEEP_ROWS);
}

/* Deletions do not wait for the search any more, but for what it has given to the cutter. */
static void waited_for_no_more(struct storage_ledger *l)
{
    l->searching = false;
    erase_wait_for_cuts(l);
    pthread_mutex_lock(&l->st->jobs_lock);
    l->st->unpinned = true;
    pthread_mutex_unlock(&l->st->jobs_lock);
}

/* A piece of the search for segments that nothing holds. Before the first one, turns hold what they can: what they held
 * may have been replaced by something that an older ledger does not know. */
static void sweep(struct storage_ledger *l)
{
    bool holds = l->holds_at != INT64_MAX;
    int64_t *at = holds ? &l->holds_at : &l->sweep_at, before = *at;
    int rc = jobs_run_alone(l, holds ? holds_run : sweep_run);
    if (l->searching && rc == -EBADMSG) /* the search may never get behind what is damaged */
        waited_for_no_more(l);
    if (rc && (holds || l->gaps || l->searching)) {
        if (!l->sweep_failed)
            storage_log(l->st, LOG_WARNING, "what nothing holds cannot be searched for now; this is tried again: %s",
                        strerror(-rc));
        *at = before;
        l->sweep_failed += l->sweep_failed < SWEEP_FAILED;
        return;
    }
    l->sweep_failed = 0;
    if (holds)
        return;
    if (rc) { /* the next search begins here, and this one ends where it cannot go on */
        l->sweep_from = before < l->sweep_from ? before : l->sweep_from;
        l->sweep_at = l->sweep_at == before ? INT64_MAX : l->sweep_at;
    }
    if (l->sweep_at == INT64_MAX) {
        if (l->gaps || l->searching) {
            l->gaps = false;
            waited_for_no_more(l);
        }
        pthread_mutex_lock(&l->st->jobs_lock);
        l->st->sweep_done = !l->st->sweep_wanted;
        pthread_cond_broadcast(&l->st->jobs_cond);
        pthread_mutex_unlock(&l->st->jobs_lock);
    }
}

uint64_t storage_clock(struct storage *st)
{
    return atomic_load(&st->clock);
}

void storage_sweep(struct storage *st, uint64_t clock)
{
    pthread_mutex_lock(&st->jobs_lock);
    if (clock > st->sweep_clock) {
        st->sweep_clock = clock;
        st->sweep_wanted = true;
        st->sweep_done = false;
        pthread_cond_broadcast(&st->jobs_cond);
    }
    pthread_mutex_unlock(&st->jobs_lock);
}

void jobs_sweep_wait(struct storage *st)
{
    pthread_mutex_lock(&st->jobs_lock);
    while (!st->sweep_done)
        pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
    pthread_mutex_unlock(&st->jobs_lock);
}

/* Waits until `due_ms` at most (0: for ever). True: the time has come. */
static bool wait_until(struct storage *st, int64_t due_ms)
{
    if (!due_ms) {
        pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
        return false;
    }
    struct timespec t = {.tv_sec = due_ms / 1000, .tv_nsec = due_ms % 1000 * 1000000};
    return pthread_cond_timedwait(&st->jobs_cond, &st->jobs_lock, &t) == ETIMEDOUT;
}

/* 0 is never. */
static int64_t soonest(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

/* What is only in the logs is copied to the databases when nothing was written for a while: one damaged byte of a log
 * loses all that comes behind it. */
static int64_t idle_due_ms(const struct storage_ledger *l)
{
    return l->logged ? l->logged_ms + IDLE_MS : 0;
}

static void changes_note(struct storage_ledger *l)
{
    int changes = sqlite3_total_changes(l->db) + sqlite3_total_changes(l->kv);
    if (changes != l->changes) {
        l->changes = changes;
        l->logged = true;
        l->logged_ms = monotonic_ms();
    }
}

static int let_go_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return segment_let_go(l);
}

static void idle(struct storage_ledger *l)
{
    if (!l->logged || monotonic_ms() < idle_due_ms(l))
        return;
    titles_idle(l);
    if (l->n_superseded)
        (void)jobs_run_alone(l, let_go_run);
    int rc = l->n_cleared || l->gone ? batch_run(l, NULL) : 0;
    if (!rc)
        rc = erase_logs(l);
    l->changes = sqlite3_total_changes(l->db) + sqlite3_total_changes(l->kv);
    l->logged = rc != 0;
    l->logged_ms = monotonic_ms();
    if (rc && rc != l->idle_said)
        storage_log(l->st, LOG_WARNING, "the logs cannot be copied to the databases: %s", strerror(-rc));
    l->idle_said = rc;
}

/* Whether a deletion waits for the search, or what is behind a gap still counts. */
static bool sweep_hurries(const struct storage_ledger *l)
{
    return ((l->searching && l->pending) || l->gaps) && !l->sweep_failed;
}

void *jobs_thread(void *arg)
{
    struct storage *st = arg;
    struct storage_ledger *l = &st->ledger;
    bool started = false, stop = false, let_go = false; /* at the end, what was superseded */
    int64_t swept_ms = monotonic_ms();
    for (;;) {
        changes_note(l);
        int64_t sweep_pause = sweep_hurries(l) ? 0 : SWEEP_PAUSE_MS << l->sweep_failed;
        int64_t sweep_due = l->sweep_at == INT64_MAX || stop ? 0 : swept_ms + sweep_pause;
        int64_t due = soonest(sweep_due, soonest(erase_due_ms(l), idle_due_ms(l)));
        bool timeout = false;
        bool may_sweep = !sweep_due && !l->unread;
        pthread_mutex_lock(&st->jobs_lock);
        while (!st->jobs && !(st->jobs_stop && !l->n_cuts) && !st->unpinned && !st->cut_results && !timeout &&
               !(st->sweep_wanted && may_sweep) && !st->backup && started)
            timeout = wait_until(st, due);
        bool sweep_begins = st->sweep_wanted && may_sweep;
        uint64_t sweep_clock = st->sweep_clock;
        st->sweep_wanted &= !sweep_begins;
        struct job *batch = st->jobs, **end = &batch;
        for (int n = 0; *end && n < JOBS_BATCH; n++)
            end = &(*end)->next;
        st->jobs = *end;
        if (!st->jobs)
            st->jobs_tail = &st->jobs;
        *end = NULL;
        bool unpinned = st->unpinned;
        stop = st->jobs_stop;
        struct cut *results = st->cut_results;
        struct backup *backup = st->backup;
        st->unpinned = false;
        st->cut_results = NULL;
        pthread_mutex_unlock(&st->jobs_lock);

        erase_results(l, results);
        if (unpinned)
            erase_unpinned(l);
        if (batch || !started)
            room_make(l);
        started = true;
        if (batch)
            (void)batch_run(l, batch);
        else if (stop && !l->n_cuts && !results && let_go && !backup)
            break;
        if (l->n_superseded >= SUPERSEDED_MOST || (stop && !batch && !let_go)) {
            let_go |= stop;
            if (l->n_superseded)
                (void)jobs_run_alone(l, let_go_run);
        }
        if (backup)
            backup_step(l, backup, stop);
        erase_retry(l);
        erase_finish(l);
        if (timeout)
            idle(l);
        if (sweep_begins) {
            segment_sweep_begin(l, sweep_clock);
            swept_ms = monotonic_ms();
        } else if (sweep_due && !stop &&
                   sweep_due + (timeout || sweep_hurries(l) ? 0 : SWEEP_BUSY_MS) <= monotonic_ms()) {
            sweep(l);
            swept_ms = monotonic_ms();
        }
    }
    /* Which intents are done. */
    (void)batch_run(l, NULL);
    erase_give_up(l);
    return NULL;
}

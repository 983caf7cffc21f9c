/* storage.c - opening and closing a data directory, and its statistics.
 *
 * One process holds a directory: DIR/lock is locked with flock() for the process's life and holds its pid. The order
 * of closing is the order in which work flows: the writer ends first (it needs the ledger thread), then the readers,
 * then the ledger thread, which commits what all of them left and waits for the cutter.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define RAM_BYTES_DEFAULT ((size_t)256 << 20)
#define PACK_BYTES_MAX    ((uint64_t)1 << 30)
#define PACK_BYTES_MIN    ((uint64_t)1 << 20)
#define READERS_DEFAULT   2
#define ENCODER_CPUS      8                     /* there is an encoder for so many */
#define QUEUE_BYTES_MIN   ((uint64_t)128 << 20) /* of segments to be saved; more with a large RAM tier */
#define READERS_MAX       64
#define INDEX_AWAIT_MS    500          /* that a start waits for an index that is made anew */
#define KV_DAMAGED        "kv.damaged" /* its presence: kv.db is to be made anew */

void storage_log(struct storage *st, int priority, const char *fmt, ...)
{
    if (!st->log)
        return;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    st->log(st->log_arg, priority, text);
}

int64_t monotonic_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void kv_mark(struct storage *st)
{
    int fd = openat(st->dirfd, KV_DAMAGED, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || fsync(fd) || fsync(st->dirfd))
        storage_log(st, LOG_ERR, "cannot note that kv.db is to be made anew: %s", strerror(errno));
    if (fd >= 0)
        (void)close(fd);
}

void storage_mark_kv_damaged(struct storage *st)
{
    storage_log(st, LOG_ERR, "kv.db is damaged; it is made anew at the next start");
    kv_mark(st);
}

static int fail(char *err, size_t err_size, int rc, const char *dir, const char *what)
{
    if (err_size)
        (void)snprintf(err, err_size, "%s: %s: %s%s", dir, what, strerror(-rc),
                       room_is_full(rc) ? "; free some space there" : "");
    return rc;
}

static int lock_take(struct storage *st, char *err, size_t err_size)
{
    st->lockfd = openat(st->dirfd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (st->lockfd < 0)
        return fail(err, err_size, -errno, st->dir, "lock");
    char text[32];
    if (flock(st->lockfd, LOCK_EX | LOCK_NB)) {
        int rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
        ssize_t n = pread(st->lockfd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, " \n")] = '\0';
        if (err_size && rc == -EBUSY)
            (void)snprintf(err, err_size, "%s is in use by process %s", st->dir, *text ? text : "unknown");
        else
            (void)fail(err, err_size, rc, st->dir, "lock");
        return rc;
    }
    /* As long as it was before: a full disk has no room for a new block. */
    (void)snprintf(text, sizeof text, "%-*ld", (int)sizeof text - 2, (long)getpid());
    text[sizeof text - 2] = '\n';
    if (pwrite(st->lockfd, text, sizeof text - 1, 0) < 0 && !room_is_full(-errno))
        return fail(err, err_size, -errno, st->dir, "lock");
    return 0;
}

int directory_sync_name(int dirfd)
{
    int fd = openat(dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES ? 0 : -errno;
    int rc = fsync(fd) ? -errno : 0;
    (void)close(fd);
    return rc;
}

static int directory_open(struct storage *st, const char *dir, char *err, size_t err_size)
{
    if (mkdir(dir, 0700) && errno != EEXIST)
        return fail(err, err_size, -errno, dir, "cannot be created");
    st->dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (st->dirfd < 0)
        return fail(err, err_size, -errno, dir, "cannot be opened");
    /* Whoever made it, perhaps just now: what is in it is not lost with its name. */
    int rc = directory_sync_name(st->dirfd);
    if (rc)
        storage_log(st, LOG_WARNING, "%s: its name may not outlive a loss of power: %s", dir, strerror(-rc));
    /* SQLite refuses paths with links in them. */
    st->dir = realpath(dir, NULL);
    return st->dir ? 0 : fail(err, err_size, -errno, dir, "cannot be resolved");
}

/* Whether there is a ledger, or what says that there was one. */
static int must_exist(const char *dir, char *err, size_t err_size)
{
    static const char *const files[] = {"ledger.db", "kv.db"};
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = dirfd < 0 ? -errno : -ENOENT;
    for (size_t i = 0; i < sizeof files / sizeof *files && dirfd >= 0; i++)
        rc = faccessat(dirfd, files[i], F_OK, AT_SYMLINK_NOFOLLOW) ? rc : 0;
    if (rc)
        (void)fail(err, err_size, rc, dir, dirfd < 0 ? "cannot be opened" : "there is no ledger.db in it");
    if (dirfd >= 0)
        (void)close(dirfd);
    return rc;
}

static int kv_remove(struct storage *st)
{
    static const char *const files[] = {"kv.db", "kv.db-wal", "kv.db-shm", KV_DAMAGED};
    int rc = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files && !rc; i++)
        rc = vfs_erase(st->dirfd, files[i]);
    return rc;
}

/* Whether only the index is hurt: it is damaged, or cannot be read. */
static bool kv_hurt(const struct storage_ledger *l, int rc)
{
    return rc == -EBADMSG || (rc == -EIO && (!l->kv || (sqlite3_errcode(l->kv) & 0xff) == SQLITE_IOERR));
}

/* What versions before this one left of deleted rows. Where that fails it is tried again at the next start. */
static void databases_scrub(struct storage *st)
{
    static const char *const names[] = {[STMT_LEDGER] = "ledger.db", [STMT_KV] = "kv.db"};
    for (int which = STMT_LEDGER; which <= STMT_KV; which++) {
        int rc = schema_scrub(&st->ledger, (enum stmt_db)which);
        if (rc)
            storage_log(st, LOG_WARNING, "%s: what was deleted by an older version may still be in it: %s",
                        names[which], strerror(-rc));
    }
}

#define VERSION_AT 60 /* of a database's header: its user_version, high byte first (SQLite's file format, 1.3) */

/* 0: there is none. */
static int version_of(const struct storage *st, const struct schema *s, off_t *size)
{
    uint8_t v[4] = {0};
    int fd = openat(st->dirfd, s->file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    *size = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    int version = fd >= 0 && pread(fd, v, sizeof v, VERSION_AT) == (ssize_t)sizeof v
                      ? (int)((uint32_t)v[0] << 24 | (uint32_t)v[1] << 16 | (uint32_t)v[2] << 8 | v[3])
                      : 0;
    if (fd >= 0)
        (void)close(fd);
    return version;
}

/* An older database is brought up to date, which may take long when it is large: that is said. */
static int database_open(struct storage *st, const struct schema *s, sqlite3 **db, char *err, size_t err_size)
{
    off_t size;
    int version = version_of(st, s, &size);
    bool older = version > 0 && version < s->n_steps && version >= s->anew_before;
    int64_t began_ms = monotonic_ms();
    if (older)
        storage_log(st, LOG_NOTICE, "%s/%s (%lld MiB) is of version %d and is brought up to date, to version %d",
                    st->dir, s->file, (long long)size >> 20, version, s->n_steps);
    int rc = schema_open(s, st->dirfd, st->dir, db, err, err_size);
    if (older && !rc)
        storage_log(st, LOG_NOTICE, "%s/%s is up to date, after %lld s", st->dir, s->file,
                    (long long)(monotonic_ms() - began_ms) / 1000);
    return rc;
}

/* A new index says of itself that it is not whole (reindex.c); where that is not on the disk, a start begins again. */
static int kv_rebuild(struct storage *st)
{
    kv_mark(st);
    int rc = segments_recover(&st->ledger, true);
    if (!rc && st->ledger.unread && (reindex_noted(&st->ledger) != 1 || erase_logs(&st->ledger)))
        return 0;
    if (!rc && unlinkat(st->dirfd, KV_DAMAGED, 0) && errno != ENOENT)
        storage_log(st, LOG_WARNING, "%s: kv.db is made anew once more at the next start: %s", KV_DAMAGED,
                    strerror(errno));
    return rc;
}

static int databases_open(struct storage *st, char *err, size_t err_size)
{
    struct storage_ledger *l = &st->ledger;
    int rc = pair_before_open(st, err, err_size);
    if (!rc)
        rc = database_open(st, &schema_ledger, &l->db, err, err_size);
    if (rc)
        return rc;
    if ((rc = ledger_clock_start(l)))
        return fail(err, err_size, rc, st->dir, "ledger.db");
    bool rebuild = faccessat(st->dirfd, "kv.db", F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    if (faccessat(st->dirfd, KV_DAMAGED, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        rc = -EBADMSG;
    if (!rc)
        rc = database_open(st, &schema_kv, &l->kv, err, err_size);
    bool old = rc == -ESTALE;
    if (old)
        rc = -EBADMSG;
    if (!rc) {
        rc = rebuild ? kv_rebuild(st) : segments_recover(l, false);
        if (rc == -ESTALE)
            return pair_refuse(st, "is another directory's", err, err_size);
        if (rc && !kv_hurt(l, rc))
            return fail(err, err_size, rc, st->dir, "recovery of the segments");
    }
    if (!kv_hurt(l, rc))
        return rc;
    if (old)
        storage_log(st, LOG_NOTICE, "kv.db is of an older version, and is made anew from the packs meanwhile");
    else
        storage_log(st, LOG_WARNING, "kv.db is damaged or cannot be read, and is made anew from the packs");
    erase_give_up(l);
    atomic_store(&st->disk_used, 0);
    atomic_store(&st->disk_dead, 0);
    l->n_dead = 0;
    stmt_finalize_all(l);
    (void)sqlite3_close(l->kv);
    l->kv = NULL;
    packs_release(&st->packs);
    atomic_store(&st->kv_damaged, false);
    rc = kv_remove(st);
    if (rc)
        return fail(err, err_size, rc, st->dir, "kv.db");
    rc = schema_open(&schema_kv, st->dirfd, st->dir, &l->kv, err, err_size);
    if (rc)
        return rc;
    rc = kv_rebuild(st);
    if (rc == -ESTALE)
        return pair_refuse(st, "is another directory's", err, err_size);
    return rc ? fail(err, err_size, rc, st->dir, "recovery of the segments") : 0;
}

static int budgets_set(struct storage *st, const struct storage_opts *opts, char *err, size_t err_size)
{
    st->disk_budget = opts->disk_bytes;
    if (!st->disk_budget) {
        if (st->io.free_bytes(st->io.ctx, st->dirfd, &st->disk_budget))
            return fail(err, err_size, -errno, st->dir, "free space");
        st->disk_budget /= 2;
    }
    st->queue_most = st->ram.budget / 2 > QUEUE_BYTES_MIN ? st->ram.budget / 2 : QUEUE_BYTES_MIN;
    st->packs.pack_bytes = st->disk_budget / 8;
    if (st->packs.pack_bytes > PACK_BYTES_MAX)
        st->packs.pack_bytes = PACK_BYTES_MAX;
    if (st->packs.pack_bytes < PACK_BYTES_MIN)
        st->packs.pack_bytes = PACK_BYTES_MIN;
    return 0;
}

/* What an earlier process left unfinished. */
static int interrupted_run(struct storage_ledger *l, void *arg)
{
    struct timespec now;
    const int64_t *sweep_at = arg;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    l->sweep_at = *sweep_at;
    l->searching = l->sweep_at != INT64_MAX;
    return turns_interrupted(l, (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    (void)pthread_setname_np(pthread_self(), w->name);
    (void)w->run(w->st);
    pthread_mutex_lock(&w->st->workers_lock);
    w->over = true;
    pthread_cond_broadcast(&w->st->workers_cond);
    pthread_mutex_unlock(&w->st->workers_lock);
    return NULL;
}

static int worker_start(struct storage *st, struct worker *w, const char *name, void *(*run)(void *st))
{
    *w = (struct worker){.st = st, .name = name, .run = run};
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    w->started = rc == 0;
    return -rc;
}

/* Until `deadline_ms`, 0: for ever. False: it has not ended in time. */
static bool worker_join(struct worker *w, int64_t deadline_ms)
{
    if (!w->started)
        return true;
    struct timespec t = {.tv_sec = deadline_ms / 1000, .tv_nsec = deadline_ms % 1000 * 1000000};
    int rc = 0;
    pthread_mutex_lock(&w->st->workers_lock);
    while (!w->over && !rc && deadline_ms)
        rc = pthread_cond_timedwait(&w->st->workers_cond, &w->st->workers_lock, &t);
    bool over = w->over || !deadline_ms;
    pthread_mutex_unlock(&w->st->workers_lock);
    if (over)
        (void)pthread_join(w->thread, NULL);
    w->started = !over;
    return over;
}

static int threads_start(struct storage *st, int readers)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN) / ENCODER_CPUS;
    int encoders = cpus < 1 ? 1 : cpus > ENCODERS_MAX ? ENCODERS_MAX : (int)cpus;
    int rc = worker_start(st, &st->ledger_worker, "convod-ledger", jobs_thread);
    if (!rc)
        rc = worker_start(st, &st->cutter_worker, "convod-cutter", cutter_thread);
    if (!rc)
        rc = worker_start(st, &st->writer_worker, "convod-writer", writer_thread);
    for (int i = 0; i < encoders && !rc; i++)
        rc = worker_start(st, &st->encoders[i], "convod-encoder", encoder_thread);
    st->readers = rc ? NULL : calloc((size_t)readers, sizeof *st->readers);
    if (!rc && !st->readers)
        return -ENOMEM;
    for (; st->n_readers < readers && !rc; st->n_readers += !rc)
        rc = worker_start(st, &st->readers[st->n_readers], "convod-reader", reader_thread);
    return rc;
}

static int locks_init(struct storage *st)
{
    pthread_condattr_t monotonic;
    int rc = pthread_condattr_init(&monotonic);
    if (rc)
        return -rc;
    if (pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) || pthread_mutex_init(&st->jobs_lock, NULL) ||
        pthread_cond_init(&st->jobs_cond, &monotonic) || pthread_mutex_init(&st->writer_lock, NULL) ||
        pthread_cond_init(&st->writer_cond, NULL) || pthread_mutex_init(&st->reader_lock, NULL) ||
        pthread_cond_init(&st->reader_cond, NULL) || pthread_mutex_init(&st->cutter_lock, NULL) ||
        pthread_cond_init(&st->cutter_cond, NULL) || pthread_mutex_init(&st->workers_lock, NULL) ||
        pthread_cond_init(&st->workers_cond, &monotonic) || pthread_mutex_init(&st->pin_lock, NULL) ||
        pthread_mutex_init(&st->limits_lock, NULL))
        rc = ENOMEM;
    (void)pthread_condattr_destroy(&monotonic);
    return -rc;
}

int storage_open_with(const struct storage_opts *opts, const struct storage_io *io, struct storage **out, char *err,
                      size_t err_size)
{
    if (err_size)
        *err = '\0';
    int readers = opts->readers ? opts->readers : READERS_DEFAULT;
    if (!opts->dir || !*opts->dir || readers < 0 || readers > READERS_MAX) {
        if (err_size)
            (void)snprintf(err, err_size, "storage: the directory or the number of readers is not valid");
        return -EINVAL;
    }
    struct storage *st = calloc(1, sizeof *st);
    if (!st)
        return fail(err, err_size, -ENOMEM, opts->dir, "storage");
    st->io = *io;
    st->dirfd = st->lockfd = st->packs.fd = -1;
    st->log = opts->log;
    st->log_arg = opts->log_arg;
    st->jobs_tail = &st->jobs;
    st->writes_tail = &st->writes;
    st->reads_tail = &st->reads;
    st->cuts_tail = &st->cuts;
    st->ledger.st = st;
    int rc = locks_init(st);
    if (rc) {
        free(st);
        return fail(err, err_size, rc, opts->dir, "storage");
    }
    rc = ram_init(&st->ram, opts->ram_bytes ? opts->ram_bytes : RAM_BYTES_DEFAULT);
    if (rc)
        (void)fail(err, err_size, rc, opts->dir, "storage");
    if (!rc && opts->existing)
        rc = must_exist(opts->dir, err, err_size);
    if (!rc)
        rc = directory_open(st, opts->dir, err, err_size);
    if (!rc)
        rc = lock_take(st, err, err_size);
    if (!rc)
        rc = budgets_set(st, opts, err, err_size);
    if (!rc)
        room_open(st);
    st->packs.io = &st->io;
    st->packs.dirfd = st->dirfd;
    if (!rc)
        rc = databases_open(st, err, err_size);
    if (!rc)
        databases_scrub(st);
    /* The names of new files. */
    if (!rc && st->io.fsync_dir(st->io.ctx, st->dirfd))
        rc = fail(err, err_size, -errno, st->dir, "sync");
    if (!rc && !opts->disk_bytes)
        st->disk_budget += atomic_load(&st->disk_used);
    /* What nothing holds is searched for when turns hold again what they should. */
    int64_t sweep_at = st->ledger.sweep_at;
    st->ledger.sweep_at = INT64_MAX;
    bool unread = st->ledger.unread;
    if (!rc) {
        rc = threads_start(st, readers);
        if (rc)
            (void)fail(err, err_size, rc, st->dir, "threads");
    }
    if (!rc && (rc = jobs_call(st, interrupted_run, &sweep_at)))
        (void)fail(err, err_size, rc, st->dir, "turns of the ledger");
    if (!rc && !unread)
        st->index_over = true;
    else if (!rc && (rc = worker_start(st, &st->index_worker, "convod-index", index_thread)))
        (void)fail(err, err_size, rc, st->dir, "threads");
    /* Where it takes a moment no turn is to meet half an index. */
    if (!rc)
        (void)index_wait(st, monotonic_ms() + INDEX_AWAIT_MS);
    if (rc)
        storage_close(st);
    else
        *out = st;
    return rc;
}

int storage_open(const struct storage_opts *opts, struct storage **out, char *err, size_t err_size)
{
    return storage_open_with(opts, &storage_io_system, out, err, err_size);
}

static void stop(pthread_mutex_t *lock, pthread_cond_t *cond, bool *flag)
{
    pthread_mutex_lock(lock);
    *flag = true;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(lock);
}

/* The threads end in the order in which work flows. */
static bool threads_stop(struct storage *st, int64_t deadline_ms)
{
    stop(&st->jobs_lock, &st->jobs_cond, &st->index_stop);
    if (!worker_join(&st->index_worker, deadline_ms))
        return false;
    stop(&st->writer_lock, &st->writer_cond, &st->writer_stop);
    if (!worker_join(&st->writer_worker, deadline_ms))
        return false;
    for (int i = 0; i < ENCODERS_MAX; i++)
        if (!worker_join(&st->encoders[i], deadline_ms))
            return false;
    stop(&st->reader_lock, &st->reader_cond, &st->reader_stop);
    for (int i = 0; i < st->n_readers; i++)
        if (!worker_join(&st->readers[i], deadline_ms))
            return false;
    stop(&st->jobs_lock, &st->jobs_cond, &st->jobs_stop);
    if (!worker_join(&st->ledger_worker, deadline_ms))
        return false;
    stop(&st->cutter_lock, &st->cutter_cond, &st->cutter_stop);
    return worker_join(&st->cutter_worker, deadline_ms);
}

void storage_close(struct storage *st)
{
    (void)storage_close_within(st, -1);
}

bool storage_close_within(struct storage *st, int ms)
{
    if (!st)
        return true;
    if (!threads_stop(st, ms < 0 ? 0 : monotonic_ms() + ms)) {
        storage_log(st, LOG_WARNING, "%s: not everything could be saved in time", st->dir);
        return false;
    }
    struct storage_ledger *l = &st->ledger;
    stmt_finalize_all(l);
    titles_give_up(l);
    (void)sqlite3_close(l->db);
    (void)sqlite3_close(l->kv);
    packs_release(&st->packs);
    ram_free(&st->ram);
    free(l->drops);
    free(l->waiting);
    free(l->dead_turns);
    free(l->cleared);
    free(l->superseded);
    free(l->dead);
    free(st->pins);
    limits_free(st);
    free(st->readers);
    free(st->dir);
    /* Closing the file gives the lock up. */
    if (st->lockfd >= 0)
        (void)close(st->lockfd);
    if (st->dirfd >= 0)
        (void)close(st->dirfd);
    (void)pthread_cond_destroy(&st->jobs_cond);
    (void)pthread_cond_destroy(&st->writer_cond);
    (void)pthread_cond_destroy(&st->reader_cond);
    (void)pthread_cond_destroy(&st->cutter_cond);
    (void)pthread_cond_destroy(&st->workers_cond);
    (void)pthread_mutex_destroy(&st->jobs_lock);
    (void)pthread_mutex_destroy(&st->writer_lock);
    (void)pthread_mutex_destroy(&st->reader_lock);
    (void)pthread_mutex_destroy(&st->cutter_lock);
    (void)pthread_mutex_destroy(&st->workers_lock);
    (void)pthread_mutex_destroy(&st->pin_lock);
    (void)pthread_mutex_destroy(&st->limits_lock);
    free(st);
    return true;
}

void storage_ram_drop(struct storage *st, const uint8_t (*keys)[STORAGE_KEY_BYTES], size_t n)
{
    ram_drop_durable(&st->ram, keys, n);
}

void storage_stats(struct storage *st, struct storage_stats *out)
{
    pthread_mutex_lock(&st->ram.lock);
    *out = (struct storage_stats){.ram_used = st->ram.used, .ram_budget = st->ram.budget};
    pthread_mutex_unlock(&st->ram.lock);
    out->disk_used = atomic_load(&st->disk_used);
    out->disk_budget = st->disk_budget;
    out->segments = atomic_load(&st->segments);
    out->pending_puts = atomic_load(&st->pending_puts);
    out->raw_bytes = atomic_load(&st->raw_bytes);
    out->encoded_bytes = atomic_load(&st->encoded_bytes);
    out->damaged = atomic_load(&st->damaged);
    out->save_failures = atomic_load(&st->save_failures);
    out->save_us = atomic_load(&st->save_us);
}

/* backup.c - a copy of a storage while it is in use.
 *
 * The ledger is copied by SQLite's backup, some pages at a time: the ledger thread takes a piece between two batches,
 * so that nobody's transaction waits for more than that, and what is written meanwhile through its connection goes into
 * the copy as well. The copy is the ledger of the moment at which it was finished. Its pages come from SQLite's cache,
 * and go through the layer that writes zeros where nothing is allocated (vfs.c): what was deleted until then is not in
 * it either. It carries the pair id: put back beside newer or older packs, or beside none, it is still their ledger,
 * and what is missing of the KV is computed again.
 *
 * Packs are copied only when that is asked for, after the ledger. Records never change, so that one is whole in the
 * copy or is found not to be when it is read. The index is not copied: it is made from the packs.
 *
 * The copy gets its name last: a folder without ledger.db is no backup.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define PART       "ledger.db.part"
#define JOURNAL    PART "-journal" /* SQLite's, of that */
#define STEP_PAGES 256
#define COPY_BYTES ((size_t)8 << 20)

struct backup {
    sqlite3 *to;
    sqlite3_backup *handle;
    int rc;
    bool over;
};

/* ---- the ledger thread's part ---- */

static void over(struct storage *st, struct backup *b, int rc)
{
    if (b->handle) {
        int end = schema_errno(sqlite3_backup_finish(b->handle));
        rc = rc ? rc : end;
    }
    b->handle = NULL;
    pthread_mutex_lock(&st->jobs_lock);
    b->rc = rc;
    b->over = true;
    st->backup = NULL;
    pthread_cond_broadcast(&st->jobs_cond);
    pthread_mutex_unlock(&st->jobs_lock);
}

void backup_step(struct storage_ledger *l, struct backup *b, bool stop)
{
    struct storage *st = l->st;
    if (stop || atomic_load(&st->backup_stop)) {
        over(st, b, -ESHUTDOWN);
        return;
    }
    if (!b->handle && !(b->handle = sqlite3_backup_init(b->to, "main", l->db, "main"))) {
        over(st, b, schema_errno(sqlite3_extended_errcode(b->to)));
        return;
    }
    int rc = sqlite3_backup_step(b->handle, STEP_PAGES);
    if (rc != SQLITE_OK)
        over(st, b, rc == SQLITE_DONE ? 0 : schema_errno(rc));
}

/* ---- who asks ---- */

static int fail(char *err, size_t err_size, int rc, const char *dir, const char *what)
{
    if (err_size)
        (void)snprintf(err, err_size, "%s/%s: %s", dir, what, strerror(-rc));
    return rc;
}

static int pack_is_there(void *arg, uint32_t pack)
{
    (void)arg;
    (void)pack;
    return -EEXIST;
}

static int pack_uncopy(void *arg, uint32_t pack)
{
    return packs_unlink(arg, pack);
}

static int pack_give_up(void *arg, uint32_t pack)
{
    (void)packs_unlink(arg, pack);
    return 0;
}

/* Of the packs of a folder, also those that are in the directory no longer. */
static int packs_of(int tofd, int (*fn)(void *arg, uint32_t pack))
{
    struct packs p = {.dirfd = tofd};
    return packs_list(&p, fn, &p);
}

/* Makes the folder, or takes an empty one. */
static int folder_open(const char *to, int *fd, char *err, size_t err_size)
{
    if (mkdir(to, 0700) && errno != EEXIST)
        return fail(err, err_size, -errno, to, "");
    *fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return fail(err, err_size, -errno, to, "");
    if (!faccessat(*fd, "ledger.db", F_OK, AT_SYMLINK_NOFOLLOW) || !faccessat(*fd, "lock", F_OK, AT_SYMLINK_NOFOLLOW))
        return fail(err, err_size, -EEXIST, to, "ledger.db");
    /* What an earlier try left; packs without that are somebody's. */
    bool begun = !faccessat(*fd, PART, F_OK, AT_SYMLINK_NOFOLLOW);
    int rc = packs_of(*fd, begun ? pack_uncopy : pack_is_there);
    if (rc)
        return fail(err, err_size, rc, to, "packs");
    static const char *const left[] = {JOURNAL, PART};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (unlinkat(*fd, left[i], 0) && errno != ENOENT)
            return fail(err, err_size, -errno, to, left[i]);
    return 0;
}

static int ledger_copy(struct storage *st, const char *to, int tofd)
{
    struct backup *b = calloc(1, sizeof *b);
    const char *vfs = vfs_name();
    char *path = realpath(to, NULL), *file = path && vfs ? sqlite3_mprintf("%s/%s", path, PART) : NULL;
    int fd = b && file ? openat(tofd, PART, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    int rc = !b || !file ? -ENOMEM : fd < 0 ? -errno : 0;
    if (!rc)
        rc = schema_errno(sqlite3_open_v2(file, &b->to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, vfs));
    if (!rc) /* vfs.c has no shared memory */
        rc = schema_errno(sqlite3_exec(b->to, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL, NULL));
    if (!rc) {
        pthread_mutex_lock(&st->jobs_lock);
        if (st->backup)
            rc = -EBUSY;
        else
            st->backup = b;
        pthread_cond_broadcast(&st->jobs_cond);
        while (!rc && !b->over)
            pthread_cond_wait(&st->jobs_cond, &st->jobs_lock);
        pthread_mutex_unlock(&st->jobs_lock);
        rc = rc ? rc : b->rc;
    }
    if (!rc)
        rc = schema_check(b->to);
    if (b)
        (void)sqlite3_close(b->to);
    if (!rc && fsync(fd))
        rc = -errno;
    if (fd >= 0)
        (void)close(fd);
    sqlite3_free(file);
    free(path);
    free(b);
    return rc;
}

/* How much it was, or negative. Where the two files are on different file systems they do not share their blocks. */
static ssize_t piece_copy(int from, int to, off_t at, size_t most)
{
    off_t in = at, out = at;
    ssize_t n = copy_file_range(from, &in, to, &out, most, 0);
    if (n < 0 && lseek(to, at, SEEK_SET) == at)
        n = sendfile(to, from, &in, most);
    return n < 0 ? -errno : n;
}

/* Holes stay holes. */
static int data_copy(struct storage *st, int from, int to, off_t size)
{
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA), hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
        if (data < 0 && errno == ENXIO)
            break;
        if (data < 0 || hole < 0)
            return -errno;
        for (at = data; at < hole && at < size;) {
            size_t most = hole - at < (off_t)COPY_BYTES ? (size_t)(hole - at) : COPY_BYTES;
            ssize_t n = piece_copy(from, to, at, most);
            if (n < 0)
                return (int)n;
            if (n == 0)
                return 0; /* it became shorter */
            at += n;
            if (atomic_load(&st->backup_stop))
                return -ESHUTDOWN;
        }
    }
    return ftruncate(to, size) ? -errno : 0;
}

struct copying {
    struct storage *st;
    int tofd;
};

static int pack_copy(void *arg, uint32_t pack)
{
    struct copying *c = arg;
    char name[PACK_NAME_BYTES];
    struct stat sb;
    pack_name(name, pack);
    int from = openat(c->st->dirfd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0)
        return errno == ENOENT ? 0 : -errno; /* it went meanwhile */
    int to = openat(c->tofd, name, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int rc = to < 0 || fstat(from, &sb) ? -errno : data_copy(c->st, from, to, sb.st_size);
    if (!rc && fsync(to))
        rc = -errno;
    (void)close(from);
    if (to >= 0)
        (void)close(to);
    return rc;
}

void storage_backup_stop(struct storage *st)
{
    atomic_store(&st->backup_stop, true);
}

int storage_backup(struct storage *st, const char *to, bool with_kv, char *err, size_t err_size)
{
    int tofd = -1;
    int rc = folder_open(to, &tofd, err, err_size);
    if (!rc && (rc = ledger_copy(st, to, tofd)))
        (void)fail(err, err_size, rc, to, "ledger.db");
    struct copying c = {st, tofd};
    if (!rc && unlinkat(tofd, JOURNAL, 0) && errno != ENOENT) /* SQLite leaves it where nobody else may write */
        rc = fail(err, err_size, -errno, to, JOURNAL);
    if (!rc && with_kv && (rc = packs_list(&st->packs, pack_copy, &c)))
        (void)fail(err, err_size, rc, to, "packs");
    if (!rc && (rc = directory_sync_name(tofd)))
        (void)fail(err, err_size, rc, to, "..");
    if (!rc && (renameat(tofd, PART, tofd, "ledger.db") || fsync(tofd)))
        rc = fail(err, err_size, -errno, to, "ledger.db");
    if (rc && rc != -EEXIST && tofd >= 0) { /* what is no backup keeps nothing of anyone's */
        (void)packs_of(tofd, pack_give_up);
        (void)unlinkat(tofd, JOURNAL, 0);
        (void)unlinkat(tofd, PART, 0);
    }
    if (tofd >= 0)
        (void)close(tofd);
    return rc;
}

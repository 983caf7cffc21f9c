/* vfs.c - what SQLite leaves behind, overwritten: a file system layer between SQLite and the system's.
 *
 * A row that is deleted stays readable in three places, whatever secure_delete says: in the unallocated space of b-tree
 * pages (cells are moved when a tree is rebalanced, and their old bytes stay), in the write-ahead log, and behind the
 * end of a file that became shorter. So
 *   - every b-tree page that is written to a database file is written with zeros where nothing is allocated;
 *   - a file is overwritten, and synced, before it is made shorter or deleted.
 *
 * A log is overwritten when all of it is in the database and synced there, and with a pattern that has the log's own
 * salts, in each 16 bytes. Half a log that is still taken for one would bring back pages of different ages, and a loss
 * of power may leave any half: where one is opened that has its pattern somewhere, all of it goes. So one sync is
 * enough.
 *
 * The first byte of a page says whether it is one of a b-tree, unless it is the highest byte of a page number (overflow
 * and free pages). VFS_PAGES_MAX keeps those at 0 or 1, which no b-tree page begins with.
 *
 * The layer also keeps the system's error of a call that failed, which SQLite's codes do not tell. Whoever uses a
 * database runs it; a file is used by one thread at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define VFS_NAME       "convod"
#define PAGE_BYTES_MIN 512
#define PAGE_BYTES_MAX 65536
#define LOG_HEADER     32
#define LOG_MAGIC      0x377f0682u /* or one more, by the order of bytes in its sums */
#define LOG_SALTS      16          /* where they are in the header: 8 bytes, others for each log of a database */
#define PATTERN_BYTES  16
#define ZEROS_BYTES    65536 /* SQLite writes no more at once */

static const uint8_t zeros[ZEROS_BYTES];

struct file {
    sqlite3_file base;
    int kind;   /* SQLITE_OPEN_MAIN_DB, SQLITE_OPEN_WAL or another, as it was opened */
    bool dirty; /* something may have been written that was not synced */
    /* The system's file follows. */
};

static _Thread_local int last_error;

static sqlite3_file *real(sqlite3_file *f)
{
    return (sqlite3_file *)(void *)((struct file *)(void *)f + 1);
}
#define REAL(f) real(f)->pMethods

static struct file *ours(sqlite3_file *f)
{
    return (struct file *)(void *)f;
}

/* Notes the system's error of a failed call, and gives a full disk its name: SQLite knows ENOSPC only. */
static int noted(sqlite3_file *f, int rc)
{
    if (rc == SQLITE_OK)
        return rc;
    int error = 0;
    if (REAL(f)->xFileControl(real(f), SQLITE_FCNTL_LAST_ERRNO, &error) != SQLITE_OK || !error)
        error = rc == SQLITE_FULL ? ENOSPC : EIO;
    last_error = error;
    return error == ENOSPC || error == EDQUOT ? SQLITE_FULL : rc;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static size_t get16(const uint8_t *p)
{
    return (size_t)p[0] << 8 | p[1];
}

bool vfs_scrub_page(uint8_t *page, size_t n, bool first)
{
    size_t at = first ? 100 : 0; /* behind the database's header */
    size_t header = 8;
    switch (page[at]) {
    case 2: /* inner pages: of an index, of a table */
    case 5:
        header = 12;
        break;
    case 10: /* leaves */
    case 13:
        break;
    default:
        return false;
    }
    size_t cells = get16(page + at + 3), content = get16(page + at + 5);
    size_t end = at + header + 2 * cells;
    if (!content)
        content = PAGE_BYTES_MAX;
    if (end > content || content > n)
        return false;
    bool changed = !pack_is_zero(page + end, content - end);
    memset(page + end, 0, content - end);
    for (size_t block = get16(page + at + 1), last = end; block;) {
        if (block < last || block + 4 > n)
            break; /* damaged: SQLite will say so */
        size_t size = get16(page + block + 2);
        if (size < 4 || block + size > n)
            break;
        changed |= !pack_is_zero(page + block + 4, size - 4);
        memset(page + block + 4, 0, size - 4);
        last = block + size;
        block = get16(page + block);
    }
    return changed;
}

static bool is_page(sqlite3_int64 at, int n)
{
    return n >= PAGE_BYTES_MIN && n <= PAGE_BYTES_MAX && !(n & (n - 1)) && at % n == 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Writes `with`, ZEROS_BYTES of it, again and again. */
static int overwrite(sqlite3_file *f, const uint8_t *with, sqlite3_int64 from, sqlite3_int64 to)
{
    int rc = SQLITE_OK;
    while (rc == SQLITE_OK && from < to) {
        int n = to - from < ZEROS_BYTES ? (int)(to - from) : ZEROS_BYTES;
        rc = noted(f, REAL(f)->xWrite(real(f), with, n, from));
        from += n;
    }
    return rc == SQLITE_OK ? noted(f, REAL(f)->xSync(real(f), SQLITE_SYNC_NORMAL)) : rc;
}

/* The pattern of a log. False: it is none, nothing would be read from it. */
static bool log_pattern(sqlite3_file *f, uint8_t pattern[PATTERN_BYTES])
{
    uint8_t head[LOG_HEADER];
    if (REAL(f)->xRead(real(f), head, LOG_HEADER, 0) != SQLITE_OK ||
        (((uint32_t)get16(head) << 16 | (uint32_t)get16(head + 2)) & ~1u) != LOG_MAGIC)
        return false;
    memcpy(pattern, "overwritten", 8);
    memcpy(pattern + 8, head + LOG_SALTS, 8);
    return true;
}

/* Overwrites all of a log of `size` bytes, whose pages are in the database. */
static int log_wipe(sqlite3_file *f, sqlite3_int64 size)
{
    uint8_t pattern[PATTERN_BYTES];
    if (!log_pattern(f, pattern))
        return overwrite(f, zeros, 0, size);
    uint8_t *with = malloc(ZEROS_BYTES);
    if (!with)
        return SQLITE_NOMEM;
    for (size_t i = 0; i < ZEROS_BYTES; i += PATTERN_BYTES)
        memcpy(with + i, pattern, PATTERN_BYTES);
    int rc = overwrite(f, with, 0, size);
    free(with);
    return rc;
}

/* Overwrites what lies behind `from`. */
static int wipe(sqlite3_file *f, sqlite3_int64 from, bool is_log)
{
    sqlite3_int64 size = 0;
    int rc = noted(f, REAL(f)->xFileSize(real(f), &size));
    if (rc != SQLITE_OK || from >= size)
        return rc;
    return is_log && from == 0 ? log_wipe(f, size) : overwrite(f, zeros, from, size);
}

/* A log that was being overwritten when the power went: all that it had is in the database, and the rest of it goes. */
static int log_finish(sqlite3_file *f)
{
    uint8_t pattern[PATTERN_BYTES], piece[PAGE_BYTES_MAX];
    sqlite3_int64 size = 0;
    int rc = noted(f, REAL(f)->xFileSize(real(f), &size));
    if (rc != SQLITE_OK || !log_pattern(f, pattern))
        return rc;
    for (sqlite3_int64 at = 0; rc == SQLITE_OK && at < size; at += (sqlite3_int64)sizeof piece) {
        int n = size - at < (sqlite3_int64)sizeof piece ? (int)(size - at) : (int)sizeof piece;
        rc = noted(f, REAL(f)->xRead(real(f), piece, n, at));
        for (int i = 0; rc == SQLITE_OK && i + PATTERN_BYTES <= n; i += PATTERN_BYTES)
            if (!memcmp(piece + i, pattern, PATTERN_BYTES)) {
                rc = log_wipe(f, size);
                return rc == SQLITE_OK ? noted(f, REAL(f)->xTruncate(real(f), 0)) : rc;
            }
    }
    return rc;
}

static int v_close(sqlite3_file *f)
{
    return REAL(f)->xClose(real(f));
}
static int v_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    int rc = REAL(f)->xRead(real(f), p, n, at);
    return rc == SQLITE_IOERR_SHORT_READ ? rc : noted(f, rc);
}
static int v_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    uint8_t page[PAGE_BYTES_MAX];
    if (ours(f)->kind == SQLITE_OPEN_MAIN_DB && is_page(at, n)) {
        memcpy(page, p, (size_t)n);
        (void)vfs_scrub_page(page, (size_t)n, at == 0);
        p = page;
    }
    ours(f)->dirty = true;
    return noted(f, REAL(f)->xWrite(real(f), p, n, at));
}
static int v_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    int rc = wipe(f, size, ours(f)->kind == SQLITE_OPEN_WAL);
    ours(f)->dirty = true;
    return rc == SQLITE_OK ? noted(f, REAL(f)->xTruncate(real(f), size)) : rc;
}
/* A checkpoint syncs the log although the transaction before it has. */
static int v_sync(sqlite3_file *f, int flags)
{
    if (!ours(f)->dirty)
        return SQLITE_OK;
    int rc = noted(f, REAL(f)->xSync(real(f), flags));
    ours(f)->dirty = rc != SQLITE_OK;
    return rc;
}
static int v_size(sqlite3_file *f, sqlite3_int64 *size)
{
    return noted(f, REAL(f)->xFileSize(real(f), size));
}
static int v_lock(sqlite3_file *f, int level)
{
    return REAL(f)->xLock(real(f), level);
}
static int v_unlock(sqlite3_file *f, int level)
{
    return REAL(f)->xUnlock(real(f), level);
}
static int v_check(sqlite3_file *f, int *out)
{
    return REAL(f)->xCheckReservedLock(real(f), out);
}
static int v_control(sqlite3_file *f, int op, void *arg)
{
    return REAL(f)->xFileControl(real(f), op, arg);
}
static int v_sector(sqlite3_file *f)
{
    return REAL(f)->xSectorSize(real(f));
}
static int v_device(sqlite3_file *f)
{
    return REAL(f)->xDeviceCharacteristics(real(f));
}

/* Version 1: no shared memory, which an exclusive lock does not need, and no mapping, which would pass this by. */
static const sqlite3_io_methods methods = {.iVersion = 1,
                                           .xClose = v_close,
                                           .xRead = v_read,
                                           .xWrite = v_write,
                                           .xTruncate = v_truncate,
                                           .xSync = v_sync,
                                           .xFileSize = v_size,
                                           .xLock = v_lock,
                                           .xUnlock = v_unlock,
                                           .xCheckReservedLock = v_check,
                                           .xFileControl = v_control,
                                           .xSectorSize = v_sector,
                                           .xDeviceCharacteristics = v_device};

static sqlite3_vfs *below(sqlite3_vfs *vfs)
{
    return vfs->pAppData;
}

static int v_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    ours(f)->kind = flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL);
    ours(f)->dirty = true;
    f->pMethods = NULL;
    errno = 0;
    int rc = below(vfs)->xOpen(below(vfs), name, real(f), flags, out);
    if (rc != SQLITE_OK) {
        last_error = errno ? errno : EIO;
        return rc;
    }
    if (ours(f)->kind == SQLITE_OPEN_WAL && (rc = log_finish(f)) != SQLITE_OK)
        (void)REAL(f)->xClose(real(f));
    else
        f->pMethods = &methods;
    return rc;
}

static int v_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    struct file *f = calloc(1, (size_t)vfs->szOsFile);
    if (!f)
        return SQLITE_NOMEM;
    size_t n = strlen(name);
    bool is_log = n > 4 && !strcmp(name + n - 4, "-wal");
    int rc = SQLITE_OK;
    if (v_open(vfs, name, &f->base, SQLITE_OPEN_WAL | SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        rc = wipe(&f->base, 0, is_log);
        (void)v_close(&f->base);
    }
    free(f);
    if (rc == SQLITE_OK) {
        rc = below(vfs)->xDelete(below(vfs), name, sync);
        last_error = rc ? errno : 0;
    }
    return rc;
}

static int v_error(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    (void)n;
    (void)out;
    return last_error;
}

int vfs_error_take(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

const char *vfs_name(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards vfs */
    static sqlite3_vfs vfs;
    const char *name = NULL;
    pthread_mutex_lock(&lock);
    sqlite3_vfs *base = sqlite3_vfs_find(NULL);
    if (base != vfs.pAppData) { /* the first time, or another has been put below */
        (void)sqlite3_vfs_unregister(&vfs);
        base = sqlite3_vfs_find(NULL);
        vfs.pAppData = NULL;
    }
    if (base && !vfs.pAppData) {
        vfs = *base;
        vfs.zName = VFS_NAME;
        vfs.pAppData = base;
        vfs.szOsFile = (int)sizeof(struct file) + base->szOsFile;
        vfs.xOpen = v_open;
        vfs.xDelete = v_delete;
        vfs.xGetLastError = v_error;
        if (sqlite3_vfs_register(&vfs, 0) != SQLITE_OK)
            vfs.pAppData = NULL;
    }
    if (vfs.pAppData)
        name = VFS_NAME;
    pthread_mutex_unlock(&lock);
    return name;
}

int vfs_sync_log(sqlite3 *db)
{
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &f);
    if (rc != SQLITE_OK)
        return schema_errno(rc);
    return f && f->pMethods ? schema_errno(v_sync(f, SQLITE_SYNC_NORMAL)) : 0;
}

int vfs_scrub(sqlite3 *db, int page_bytes)
{
    sqlite3_file *f = NULL;
    sqlite3_int64 size = 0;
    int rc = sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &f);
    if (rc != SQLITE_OK || !f || !f->pMethods || page_bytes < PAGE_BYTES_MIN || page_bytes > PAGE_BYTES_MAX)
        return -EINVAL;
    rc = v_size(f, &size);
    uint8_t page[PAGE_BYTES_MAX];
    for (sqlite3_int64 at = 0; rc == SQLITE_OK && at + page_bytes <= size; at += page_bytes)
        /* What cannot be read cannot be found here either. */
        if (REAL(f)->xRead(real(f), page, page_bytes, at) == SQLITE_OK &&
            vfs_scrub_page(page, (size_t)page_bytes, at == 0))
            rc = noted(f, REAL(f)->xWrite(real(f), page, page_bytes, at));
    ours(f)->dirty = true;
    if (rc == SQLITE_OK)
        rc = v_sync(f, SQLITE_SYNC_NORMAL);
    return schema_errno(rc);
}

int vfs_erase(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    struct stat sb;
    int rc = fstat(fd, &sb) ? -errno : 0;
    for (off_t at = 0; !rc && S_ISREG(sb.st_mode) && at < sb.st_size;) {
        size_t n = sb.st_size - at < ZEROS_BYTES ? (size_t)(sb.st_size - at) : ZEROS_BYTES;
        ssize_t w = pwrite(fd, zeros, n, at);
        if (w < 0 && errno != EINTR)
            rc = -errno;
        else if (w > 0)
            at += w;
    }
    if (!rc && fdatasync(fd))
        rc = -errno;
    (void)close(fd);
    if (!rc && unlinkat(dirfd, name, 0))
        rc = -errno;
    return rc;
}

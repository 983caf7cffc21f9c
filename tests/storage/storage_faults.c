/* storage_faults.c - see storage_faults.h. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <unistd.h>

/* ---- operations that fail ---------------------------------------------------------------------------------------- */

static int f_open(void *ctx, int dirfd, const char *name, int flags, mode_t mode)
{
    (void)ctx;
    return openat(dirfd, name, flags, mode);
}

/* Whether the call is to fail; errno is set. */
static bool fails(struct faults *f, int *error)
{
    if (!*error)
        return false;
    errno = *error;
    if (f->fail_once)
        *error = 0;
    return true;
}

static ssize_t f_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    struct faults *f = ctx;
    while (atomic_load(&f->reads_stalled) && at < f->read_to && at + (off_t)n > f->read_from)
        (void)usleep(1000);
    pthread_mutex_lock(&f->lock);
    bool fail = at < f->read_to && at + (off_t)n > f->read_from && fails(f, &f->read_errno);
    int error = errno;
    pthread_mutex_unlock(&f->lock);
    errno = error;
    return fail ? -1 : pread(fd, buf, n, at);
}

static ssize_t f_pwrite(void *ctx, int fd, const void *buf, size_t n, off_t at)
{
    struct faults *f = ctx;
    pthread_mutex_lock(&f->lock);
    f->n_writes++;
    bool now = f->writes_left < 0 || f->writes_left-- == 0;
    if (now && f->writes_left == -1 && f->write_errno)
        f->writes_left = 0;
    bool fail = now && fails(f, &f->write_errno);
    if (f->short_writes && n > 1000)
        n = 1000;
    int error = errno;
    pthread_mutex_unlock(&f->lock);
    errno = error;
    return fail ? -1 : pwrite(fd, buf, n, at);
}

static int f_fdatasync(void *ctx, int fd)
{
    struct faults *f = ctx;
    while (atomic_load(&f->stalled))
        (void)usleep(1000);
    pthread_mutex_lock(&f->lock);
    f->n_syncs++;
    bool fail = fails(f, &f->sync_errno);
    int error = errno;
    pthread_mutex_unlock(&f->lock);
    errno = error;
    return fail ? -1 : fdatasync(fd);
}

static int f_fsync_dir(void *ctx, int dirfd)
{
    (void)ctx;
    return fsync(dirfd);
}

static int f_fallocate(void *ctx, int fd, int mode, off_t at, off_t n)
{
    struct faults *f = ctx;
    pthread_mutex_lock(&f->lock);
    bool fail = mode ? fails(f, &f->punch_errno) : f->writes_left < 0 && fails(f, &f->write_errno);
    int error = errno;
    pthread_mutex_unlock(&f->lock);
    errno = error;
    return fail ? -1 : fallocate(fd, mode, at, n);
}

static int f_free_bytes(void *ctx, int dirfd, uint64_t *bytes)
{
    struct faults *f = ctx;
    if (!f)
        return storage_io_system.free_bytes(NULL, dirfd, bytes);
    pthread_mutex_lock(&f->lock);
    *bytes = f->free_bytes;
    pthread_mutex_unlock(&f->lock);
    return *bytes ? 0 : storage_io_system.free_bytes(NULL, dirfd, bytes);
}

void faults_init(struct faults *f, struct storage_io *io)
{
    *f = (struct faults){.lock = PTHREAD_MUTEX_INITIALIZER, .writes_left = -1};
    atomic_init(&f->stalled, false);
    atomic_init(&f->reads_stalled, false);
    *io = (struct storage_io){.open = f_open,
                              .pread = f_pread,
                              .pwrite = f_pwrite,
                              .fdatasync = f_fdatasync,
                              .fsync_dir = f_fsync_dir,
                              .fallocate = f_fallocate,
                              .free_bytes = f_free_bytes,
                              .ctx = f};
}

void faults_after(struct faults *f, int writes)
{
    pthread_mutex_lock(&f->lock);
    f->writes_left = writes;
    pthread_mutex_unlock(&f->lock);
}

void faults_set(struct faults *f, int write_errno, int sync_errno, bool once)
{
    pthread_mutex_lock(&f->lock);
    f->write_errno = write_errno;
    f->sync_errno = sync_errno;
    f->fail_once = once;
    f->writes_left = -1;
    pthread_mutex_unlock(&f->lock);
}

/* ---- databases that cannot be read ------------------------------------------------------------------------------- */

static struct {
    sqlite3_vfs vfs, *real;
    sqlite3_io_methods methods;
    const sqlite3_io_methods *real_methods;
    const char *file;
    sqlite3_int64 from;
    int opens;
    atomic_int *sync_error, *writes_left;
} unreadable;

static int u_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    return at + n > unreadable.from ? SQLITE_IOERR_READ : unreadable.real_methods->xRead(f, p, n, at);
}

static int u_sync(sqlite3_file *f, int flags)
{
    return atomic_load(unreadable.sync_error) ? SQLITE_IOERR_FSYNC : unreadable.real_methods->xSync(f, flags);
}

static int u_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    int left = atomic_load(unreadable.writes_left);
    if (!left)
        return SQLITE_FULL;
    if (left > 0)
        atomic_store(unreadable.writes_left, left - 1);
    return unreadable.real_methods->xWrite(f, p, n, at);
}

static int u_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    int rc = unreadable.real->xOpen(unreadable.real, name, f, flags, out);
    const char *end = name ? strrchr(name, '/') : NULL;
    if (rc == SQLITE_OK && end && !strcmp(end + 1, unreadable.file) && unreadable.opens-- > 0) {
        unreadable.real_methods = f->pMethods;
        unreadable.methods = *f->pMethods;
        unreadable.methods.iVersion = 2; /* no mapping into memory */
        if (unreadable.sync_error)
            unreadable.methods.xSync = u_sync;
        else if (unreadable.writes_left)
            unreadable.methods.xWrite = u_write;
        else
            unreadable.methods.xRead = u_read;
        f->pMethods = &unreadable.methods;
    }
    return rc;
}

void faults_sqlite_unsyncable(const char *file, atomic_int *error)
{
    faults_sqlite_unreadable(file, 0, INT32_MAX);
    unreadable.sync_error = error;
}

void faults_sqlite_full(const char *file, atomic_int *writes_left)
{
    faults_sqlite_unreadable(file, 0, INT32_MAX);
    unreadable.writes_left = writes_left;
}

void faults_sqlite_unreadable(const char *file, sqlite3_int64 from, int opens)
{
    unreadable.sync_error = unreadable.writes_left = NULL;
    if (unreadable.file)
        assert_int_equal(sqlite3_vfs_unregister(&unreadable.vfs), SQLITE_OK);
    unreadable.file = file;
    if (!file)
        return;
    unreadable.from = from;
    unreadable.opens = opens;
    unreadable.real = sqlite3_vfs_find("unix");
    unreadable.vfs = *unreadable.real;
    unreadable.vfs.zName = "unreadable";
    unreadable.vfs.xOpen = u_open;
    assert_int_equal(sqlite3_vfs_register(&unreadable.vfs, 1), SQLITE_OK);
}

/* ---- a process that dies ----------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock; /* guards all below */
    int left, passed;
    struct {
        int fd;
        off_t at;
        size_t n;
    } unsynced[FAULTS_UNSYNCED_MAX];
    size_t n_unsynced;
} life = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One write point. */
static void point(void)
{
    pthread_mutex_lock(&life.lock);
    life.passed++;
    if (--life.left == 0) {
        static const uint8_t junk[4096] = {0x5a};
        for (size_t i = 0; i < life.n_unsynced; i++)
            for (size_t k = 0; k < life.unsynced[i].n; k += sizeof junk)
                if (pwrite(life.unsynced[i].fd, junk, sizeof junk, life.unsynced[i].at + (off_t)k) < 0)
                    _exit(99);
        _exit(0);
    }
    pthread_mutex_unlock(&life.lock);
}

static ssize_t d_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    (void)ctx;
    return pread(fd, buf, n, at);
}

static ssize_t d_pwrite(void *ctx, int fd, const void *buf, size_t n, off_t at)
{
    (void)ctx;
    point();
    pthread_mutex_lock(&life.lock);
    if (life.n_unsynced == FAULTS_UNSYNCED_MAX)
        _exit(98);
    life.unsynced[life.n_unsynced].fd = fd;
    life.unsynced[life.n_unsynced].at = at;
    life.unsynced[life.n_unsynced++].n = n;
    ssize_t w = pwrite(fd, buf, n, at);
    pthread_mutex_unlock(&life.lock);
    return w;
}

static int d_fdatasync(void *ctx, int fd)
{
    (void)ctx;
    point();
    int rc = fdatasync(fd);
    pthread_mutex_lock(&life.lock);
    size_t kept = 0;
    for (size_t i = 0; i < life.n_unsynced; i++)
        if (life.unsynced[i].fd != fd)
            life.unsynced[kept++] = life.unsynced[i];
    life.n_unsynced = kept;
    pthread_mutex_unlock(&life.lock);
    return rc;
}

static int d_fsync_dir(void *ctx, int dirfd)
{
    (void)ctx;
    point();
    return fsync(dirfd);
}

static int d_fallocate(void *ctx, int fd, int mode, off_t at, off_t n)
{
    (void)ctx;
    point();
    return fallocate(fd, mode, at, n);
}

/* SQLite's own file operations, with a write point before each that changes something. */
struct file {
    sqlite3_file base;
    const sqlite3_io_methods *real;
    /* The real file follows. */
};

static sqlite3_vfs *real_vfs;
static sqlite3_io_methods methods;

static sqlite3_file *real_of(sqlite3_file *f)
{
    return (sqlite3_file *)(void *)((struct file *)(void *)f + 1);
}

#define REAL(f) real_of(f)->pMethods

static int v_close(sqlite3_file *f)
{
    return REAL(f)->xClose(real_of(f));
}
static int v_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    return REAL(f)->xRead(real_of(f), p, n, at);
}
static int v_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    point();
    return REAL(f)->xWrite(real_of(f), p, n, at);
}
static int v_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    point();
    return REAL(f)->xTruncate(real_of(f), n);
}
static int v_sync(sqlite3_file *f, int flags)
{
    point();
    return REAL(f)->xSync(real_of(f), flags);
}
static int v_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return REAL(f)->xFileSize(real_of(f), n);
}
static int v_lock(sqlite3_file *f, int level)
{
    return REAL(f)->xLock(real_of(f), level);
}
static int v_unlock(sqlite3_file *f, int level)
{
    return REAL(f)->xUnlock(real_of(f), level);
}
static int v_check(sqlite3_file *f, int *out)
{
    return REAL(f)->xCheckReservedLock(real_of(f), out);
}
static int v_control(sqlite3_file *f, int op, void *arg)
{
    return REAL(f)->xFileControl(real_of(f), op, arg);
}
static int v_sector(sqlite3_file *f)
{
    return REAL(f)->xSectorSize(real_of(f));
}
static int v_device(sqlite3_file *f)
{
    return REAL(f)->xDeviceCharacteristics(real_of(f));
}
static int v_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    f->pMethods = NULL;
    int rc = real_vfs->xOpen(real_vfs, name, real_of(f), flags, out);
    if (rc == SQLITE_OK)
        f->pMethods = &methods;
    return rc;
}
static int v_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs;
    point();
    return real_vfs->xDelete(real_vfs, name, sync);
}

void faults_die_at(int n, struct storage_io *io)
{
    static sqlite3_vfs vfs;
    life.left = n;
    *io = (struct storage_io){.open = f_open,
                              .pread = d_pread,
                              .pwrite = d_pwrite,
                              .fdatasync = d_fdatasync,
                              .fsync_dir = d_fsync_dir,
                              .fallocate = d_fallocate,
                              .free_bytes = f_free_bytes};
    real_vfs = sqlite3_vfs_find("unix");
    vfs = *real_vfs;
    vfs.zName = "dying";
    vfs.szOsFile = real_vfs->szOsFile + (int)sizeof(struct file);
    vfs.xOpen = v_open;
    vfs.xDelete = v_delete;
    /* Version 1: no shared memory, which an exclusive lock does not need. */
    methods = (sqlite3_io_methods){.iVersion = 1,
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
    if (sqlite3_vfs_register(&vfs, 1) != SQLITE_OK)
        _exit(97);
}

int faults_passed(void)
{
    return life.passed;
}

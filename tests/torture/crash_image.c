/* crash_image.c - see crash_image.h. */
#include "tests/torture/crash_image.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/storage/storage_testing.h"

#define FILES_MAX 256
#define FDS_MAX   1024
#define SECTOR    512

enum call { MAKE, UNLINK, WRITE, CUT, GROW, HOLE, SYNC, SYNC_NAMES };

struct op {
    enum call call;
    int file; /* -1: the directory */
    uint64_t at, n;
    uint8_t *data;
};

/* A file is what has a name from MAKE to UNLINK. */
struct name {
    char text[64];
    bool gone;
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct op *ops;
    size_t n, cap;
    struct name files[FILES_MAX];
    int n_files;
    int of_fd[FDS_MAX];
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add(enum call call, int file, uint64_t at, uint64_t n, const void *data)
{
    pthread_mutex_lock(&list.lock);
    if (list.n == list.cap) {
        list.cap = list.cap ? list.cap * 2 : 1024;
        list.ops = realloc(list.ops, list.cap * sizeof *list.ops);
        if (!list.ops)
            abort();
    }
    struct op *o = &list.ops[list.n++];
    *o = (struct op){call, file, at, n, NULL};
    if (data) {
        o->data = malloc(n ? n : 1);
        if (!o->data)
            abort();
        memcpy(o->data, data, n);
    }
    pthread_mutex_unlock(&list.lock);
}

static int file_of(const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    pthread_mutex_lock(&list.lock);
    int i = list.n_files;
    while (i-- > 0 && (list.files[i].gone || strcmp(list.files[i].text, name)))
        ;
    bool fresh = i < 0;
    if (fresh) {
        i = list.n_files++;
        if (i == FILES_MAX)
            abort();
        (void)snprintf(list.files[i].text, sizeof list.files[i].text, "%s", name);
    }
    pthread_mutex_unlock(&list.lock);
    if (fresh)
        add(MAKE, i, 0, 0, NULL);
    return i;
}

size_t crash_place(void)
{
    pthread_mutex_lock(&list.lock);
    size_t n = list.n;
    pthread_mutex_unlock(&list.lock);
    return n;
}

/* ---- packs ------------------------------------------------------------------------------------------------------- */

static int r_open(void *ctx, int dirfd, const char *name, int flags, mode_t mode)
{
    (void)ctx;
    int fd = openat(dirfd, name, flags, mode);
    if (fd >= FDS_MAX)
        abort();
    if (fd >= 0) {
        int file = file_of(name);
        pthread_mutex_lock(&list.lock);
        list.of_fd[fd] = file;
        pthread_mutex_unlock(&list.lock);
    }
    return fd;
}

static int of_fd(int fd)
{
    pthread_mutex_lock(&list.lock);
    int file = list.of_fd[fd];
    pthread_mutex_unlock(&list.lock);
    return file;
}

static ssize_t r_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    (void)ctx;
    return pread(fd, buf, n, at);
}
static ssize_t r_pwrite(void *ctx, int fd, const void *buf, size_t n, off_t at)
{
    (void)ctx;
    add(WRITE, of_fd(fd), (uint64_t)at, n, buf);
    return pwrite(fd, buf, n, at);
}
static int r_fdatasync(void *ctx, int fd)
{
    (void)ctx;
    int rc = fdatasync(fd);
    add(SYNC, of_fd(fd), 0, 0, NULL);
    return rc;
}
static int r_fsync_dir(void *ctx, int dirfd)
{
    (void)ctx;
    int rc = fsync(dirfd);
    add(SYNC_NAMES, -1, 0, 0, NULL);
    return rc;
}
static int r_fallocate(void *ctx, int fd, int mode, off_t at, off_t n)
{
    (void)ctx;
    add(mode ? HOLE : GROW, of_fd(fd), (uint64_t)at, (uint64_t)n, NULL);
    return fallocate(fd, mode, at, n);
}
static int r_free_bytes(void *ctx, int dirfd, uint64_t *bytes)
{
    (void)ctx;
    return storage_io_system.free_bytes(NULL, dirfd, bytes);
}

/* ---- SQLite ------------------------------------------------------------------------------------------------------ */

struct file {
    sqlite3_file base;
    int file;
    bool new_name; /* its first sync syncs the directory, as SQLite's does */
    /* The real one follows. */
};

static sqlite3_vfs *real_vfs;

static sqlite3_file *real(sqlite3_file *f)
{
    return (sqlite3_file *)(void *)((struct file *)(void *)f + 1);
}
static struct file *mine(sqlite3_file *f)
{
    return (struct file *)(void *)f;
}
#define REAL(f) real(f)->pMethods

static int v_close(sqlite3_file *f)
{
    return REAL(f)->xClose(real(f));
}
static int v_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    return REAL(f)->xRead(real(f), p, n, at);
}
static int v_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    add(WRITE, mine(f)->file, (uint64_t)at, (uint64_t)n, p);
    return REAL(f)->xWrite(real(f), p, n, at);
}
static int v_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    add(CUT, mine(f)->file, (uint64_t)n, 0, NULL);
    return REAL(f)->xTruncate(real(f), n);
}
static int v_sync(sqlite3_file *f, int flags)
{
    int rc = REAL(f)->xSync(real(f), flags);
    add(SYNC, mine(f)->file, 0, 0, NULL);
    if (mine(f)->new_name)
        add(SYNC_NAMES, -1, 0, 0, NULL);
    mine(f)->new_name = false;
    return rc;
}
static int v_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return REAL(f)->xFileSize(real(f), n);
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

static int v_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    f->pMethods = NULL;
    int rc = real_vfs->xOpen(real_vfs, name, real(f), flags, out);
    if (rc == SQLITE_OK && name) {
        mine(f)->file = file_of(name);
        mine(f)->new_name = flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL) && flags & SQLITE_OPEN_CREATE;
        f->pMethods = &methods;
    }
    return rc;
}

static int v_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs;
    int file = file_of(name);
    add(UNLINK, file, 0, 0, NULL);
    pthread_mutex_lock(&list.lock);
    list.files[file].gone = true;
    pthread_mutex_unlock(&list.lock);
    int rc = real_vfs->xDelete(real_vfs, name, sync);
    if (sync)
        add(SYNC_NAMES, -1, 0, 0, NULL);
    return rc;
}

static sqlite3_vfs recording;

void crash_record(struct storage_io *io)
{
    *io = (struct storage_io){.open = r_open,
                              .pread = r_pread,
                              .pwrite = r_pwrite,
                              .fdatasync = r_fdatasync,
                              .fsync_dir = r_fsync_dir,
                              .fallocate = r_fallocate,
                              .free_bytes = r_free_bytes};
    real_vfs = sqlite3_vfs_find("unix");
    recording = *real_vfs;
    recording.zName = "recording";
    recording.szOsFile = real_vfs->szOsFile + (int)sizeof(struct file);
    recording.xOpen = v_open;
    recording.xDelete = v_delete;
    if (sqlite3_vfs_register(&recording, 1) != SQLITE_OK)
        abort();
}

void crash_stop(void)
{
    (void)sqlite3_vfs_unregister(&recording);
}

void crash_forget(void)
{
    for (size_t i = 0; i < list.n; i++)
        free(list.ops[i].data);
    free(list.ops);
    list.ops = NULL;
    list.n = list.cap = 0;
    list.n_files = 0;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

static bool chance(uint64_t *seed, unsigned percent)
{
    return testing_random(seed) % 100 < percent;
}

static void apply(const struct op *o, int fd, enum crash_kind kind, bool synced, uint64_t *seed)
{
    static const uint8_t zeros[65536];
    bool torn = !synced && kind == CRASH_SOME && chance(seed, 30);
    switch (o->call) {
    case WRITE:
        for (uint64_t at = 0; at < o->n; at += SECTOR) {
            uint64_t n = o->n - at < SECTOR ? o->n - at : SECTOR;
            if (!torn || chance(seed, 50))
                assert_int_equal(pwrite(fd, o->data + at, n, (off_t)(o->at + at)), n);
        }
        break;
    case CUT:
        assert_int_equal(ftruncate(fd, (off_t)o->at), 0);
        break;
    case GROW: {
        off_t size = lseek(fd, 0, SEEK_END);
        if (size < (off_t)(o->at + o->n))
            assert_int_equal(ftruncate(fd, (off_t)(o->at + o->n)), 0);
        break;
    }
    case HOLE: {
        off_t size = lseek(fd, 0, SEEK_END);
        for (uint64_t at = o->at; at < o->at + o->n && (off_t)at < size; at += sizeof zeros) {
            uint64_t n = o->at + o->n - at < sizeof zeros ? o->at + o->n - at : sizeof zeros;
            assert_int_equal(pwrite(fd, zeros, n, (off_t)at), n);
        }
        break;
    }
    default:
        break;
    }
}

/* The file that a name stands for, or -1. */
static int file_named(const char *text, size_t place, enum crash_kind kind, uint64_t *seed)
{
    size_t names_synced = 0;
    for (size_t i = 0; i < place; i++)
        if (list.ops[i].call == SYNC_NAMES)
            names_synced = i;
    int file = -1;
    for (size_t i = 0; i < place; i++) {
        const struct op *o = &list.ops[i];
        if ((o->call != MAKE && o->call != UNLINK) || strcmp(list.files[o->file].text, text))
            continue;
        bool done = kind == CRASH_KILL || i < names_synced || (kind == CRASH_SOME && chance(seed, 50));
        if (done)
            file = o->call == MAKE ? o->file : file == o->file ? -1 : file;
    }
    return file;
}

void crash_image(size_t place, enum crash_kind kind, uint64_t seed, const char *dir)
{
    for (int f = 0; f < list.n_files; f++) {
        bool first = true;
        for (int k = 0; k < f; k++)
            first &= strcmp(list.files[k].text, list.files[f].text) != 0;
        int file = first ? file_named(list.files[f].text, place, kind, &seed) : -1;
        if (file < 0)
            continue;
        size_t synced = 0;
        for (size_t i = 0; i < place; i++)
            if (list.ops[i].file == file && list.ops[i].call == SYNC)
                synced = i;
        char *path = testing_path(dir, list.files[f].text);
        int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        free(path);
        assert_true(fd >= 0);
        for (size_t i = 0; i < place; i++)
            if (list.ops[i].file == file &&
                (i < synced || kind == CRASH_KILL || (kind == CRASH_SOME && chance(&seed, 60))))
                apply(&list.ops[i], fd, kind, i < synced, &seed);
        assert_int_equal(close(fd), 0);
    }
}

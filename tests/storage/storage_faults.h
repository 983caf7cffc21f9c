/* storage_faults.h - file operations that fail when they are told to, and a process that dies at its n-th write. */
#ifndef CONVOD_STORAGE_FAULTS_H
#define CONVOD_STORAGE_FAULTS_H

#include "tests/storage/storage_testing.h"

#define FAULTS_UNSYNCED_MAX 256

struct faults {
    pthread_mutex_t lock; /* guards all below */
    int write_errno;      /* every pwrite and fallocate fails with it */
    int writes_left;      /* after so many pwrites write_errno counts; -1: no such limit */
    int sync_errno;       /* every fdatasync fails */
    int punch_errno;      /* every hole */
    int read_errno;       /* every pread of what lies in [read_from, read_to) */
    off_t read_from, read_to;
    uint64_t free_bytes;       /* what the file system says is free; 0: the truth */
    bool short_writes;         /* at most 1000 bytes at a time */
    bool fail_once;            /* an error is given once */
    atomic_bool reads_stalled; /* reads of what lies in [read_from, read_to) wait as long as it is set */
    atomic_bool stalled;       /* syncs wait as long as it is set */
    int n_writes, n_syncs;     /* calls that were made */
};

void faults_init(struct faults *f, struct storage_io *io);
void faults_set(struct faults *f, int write_errno, int sync_errno, bool once);
/* The writes' error counts after so many more. */
void faults_after(struct faults *f, int writes);

/* SQLite cannot read what lies at `from` or behind it in files of this name that are opened, the next so many times.
 * NULL: it can again. */
void faults_sqlite_unreadable(const char *file, sqlite3_int64 from, int opens);

/* SQLite cannot sync files of this name that are opened from now on, as long as `error` says so. NULL: it can again. */
void faults_sqlite_unsyncable(const char *file, atomic_int *error);

/* The disk is full for files of this name that SQLite opens from now on, after so many more writes; below 0 it is not.
 * NULL: it is not any more for those that are opened. */
void faults_sqlite_full(const char *file, atomic_int *writes_left);

/* In a child process: from now on every write, sync, allocation or deletion of SQLite and of packs counts, and the
 * process ends at number `n`. What was written to a pack and not synced is lost then. */
void faults_die_at(int n, struct storage_io *io);
/* Number of write points passed. */
int faults_passed(void);

#endif

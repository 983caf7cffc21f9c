/* room.c - room on the disk: the ledger's comes first, KV gives way.
 *
 * A file DIR/reserve holds some megabytes, so that a disk that somebody else has filled to the last block still takes
 * the transactions that give KV back. The ledger thread looks at what is free before each batch: when it is little, the
 * reserve is given up, the segments used longest ago go, and when there is room again the reserve is made anew. The KV
 * writer leaves as much free as the ledger is to have.
 *
 * A quota does not show in what is free, only when it is hit: then the next batch makes room first.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define RESERVE       "reserve"
#define RESERVE_BYTES ((off_t)4 << 20)
#define LOW_BYTES     ((uint64_t)2 << 20) /* the reserve is given up */
#define ROUNDS_MAX    64                  /* of making room, at a batch */

uint64_t room_free(const struct storage *st)
{
    uint64_t bytes;
    return st->io.free_bytes(st->io.ctx, st->dirfd, &bytes) ? UINT64_MAX : bytes;
}

bool room_for_kv(const struct storage *st, uint64_t bytes)
{
    uint64_t free = room_free(st);
    return free > ROOM_LEDGER_BYTES && free - ROOM_LEDGER_BYTES >= bytes;
}

bool room_is_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

static void reserve_give_up(struct storage *st)
{
    int fd = openat(st->dirfd, RESERVE, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (ftruncate(fd, 0))
        storage_log(st, LOG_WARNING, "the disk is full, and the reserve cannot be given up: %s", strerror(errno));
    (void)close(fd);
    st->reserved = false;
}

/* Without a reserve the next start or the next batch tries again. */
static void reserve_make(struct storage *st)
{
    struct stat sb;
    int fd = openat(st->dirfd, RESERVE, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    st->reserved = !fstat(fd, &sb) && sb.st_size >= RESERVE_BYTES;
    if (!st->reserved) {
        st->reserved = !posix_fallocate(fd, 0, RESERVE_BYTES);
        if (!st->reserved)
            (void)!ftruncate(fd, 0);
    }
    (void)close(fd);
}

void room_open(struct storage *st)
{
    uint64_t free = room_free(st);
    if (free < LOW_BYTES) {
        storage_log(st, LOG_WARNING, "%s: the disk is full; KV gives way. Free some space on it", st->dir);
        reserve_give_up(st);
    } else if (free > ROOM_LEDGER_BYTES + (uint64_t)RESERVE_BYTES) {
        reserve_make(st);
    }
}

static int evict_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return segment_evict(l, ROOM_LEDGER_BYTES / 2, NULL, 0, &l->room_freed);
}

void room_make(struct storage_ledger *l)
{
    struct storage *st = l->st;
    bool hit = atomic_exchange(&st->room_hit, false);
    uint64_t free = room_free(st);
    if (!hit && free >= LOW_BYTES) {
        if (!st->reserved && free > ROOM_LEDGER_BYTES + (uint64_t)RESERVE_BYTES)
            reserve_make(st);
        return;
    }
    reserve_give_up(st);
    uint64_t before = atomic_load(&st->disk_used);
    /* Enough for a new reserve as well: the next one who fills the disk may come soon. */
    uint64_t wanted = ROOM_LEDGER_BYTES + (uint64_t)RESERVE_BYTES;
    for (int i = 0; i < ROUNDS_MAX && (hit || room_free(st) < wanted); i++) {
        hit = false;
        l->room_freed = 0;
        if (jobs_run_alone(l, evict_run) || !l->room_freed)
            break;
        jobs_cuts_wait(l);
    }
    if (room_free(st) >= wanted)
        reserve_make(st);
    uint64_t after = atomic_load(&st->disk_used);
    if (after < before)
        storage_log(st, LOG_WARNING, "%s: the disk is full; %llu MiB of KV gave way. Free some space on it", st->dir,
                    (unsigned long long)(before - after) >> 20);
}

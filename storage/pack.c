/* pack.c - records in pack files.
 *
 * A pack begins with one block of 4096 bytes (magic, version, number, pair id) and then holds records, each aligned to
 * 4096:
 *
 *   offset  bytes  of a record
 *        0      8  magic "convodS1"
 *        8      4  version
 *       12      4  label_bytes
 *       16      8  owner
 *       24     32  key
 *       56     32  parent
 *       88     32  fingerprint
 *      120      8  first, count
 *      128      8  payload_bytes
 *      136      8  layout sum     (XXH3-64)
 *      144      8  label sum      (XXH3-64)
 *      152     24  producer
 *      176     72  zero
 *      248      8  header sum     (XXH3-64 of the bytes before)
 *      256         label, zeros up to a multiple of 64, payload (which carries its own checksums), zeros up to 4096
 *
 * All numbers are little-endian. A record says everything about itself, so that the index can be made anew from the
 * packs. Records are never overwritten: space comes back by cutting holes, and a place is used only once in a pack's
 * life, pack numbers only once in a directory's. The active pack belongs to the writer thread; reading and cutting open
 * the file by themselves and may run on any thread.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "storage/storage_internal.h"

#define PACK_PAIR_AT   16 /* in the first block */
#define UNREADABLE_MAX 16 /* places of a pack that a scan passes over; a disk may take seconds for each */

static const char record_magic[8] = "convodS1";
static const char pack_magic[8] = "convodP1";

/* ---- system calls ------------------------------------------------------------------------------------------------ */

static int sys_open(void *ctx, int dirfd, const char *name, int flags, mode_t mode)
{
    (void)ctx;
    return openat(dirfd, name, flags, mode);
}
static ssize_t sys_pread(void *ctx, int fd, void *buf, size_t n, off_t at)
{
    (void)ctx;
    return pread(fd, buf, n, at);
}
static ssize_t sys_pwrite(void *ctx, int fd, const void *buf, size_t n, off_t at)
{
    (void)ctx;
    return pwrite(fd, buf, n, at);
}
static int sys_fdatasync(void *ctx, int fd)
{
    (void)ctx;
    return fdatasync(fd);
}
static int sys_fsync_dir(void *ctx, int dirfd)
{
    (void)ctx;
    return fsync(dirfd);
}
static int sys_fallocate(void *ctx, int fd, int mode, off_t at, off_t n)
{
    (void)ctx;
    return fallocate(fd, mode, at, n);
}
static int sys_free_bytes(void *ctx, int dirfd, uint64_t *bytes)
{
    struct statvfs v;
    (void)ctx;
    if (fstatvfs(dirfd, &v))
        return -1;
    *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    return 0;
}
const struct storage_io storage_io_system = {.open = sys_open,
                                             .pread = sys_pread,
                                             .pwrite = sys_pwrite,
                                             .fdatasync = sys_fdatasync,
                                             .fsync_dir = sys_fsync_dir,
                                             .fallocate = sys_fallocate,
                                             .free_bytes = sys_free_bytes};

/* ---- records ----------------------------------------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}
static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}
static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

bool pack_is_zero(const void *p, size_t n)
{
    const uint8_t *b = p;
    return n == 0 || (b[0] == 0 && !memcmp(b, b + 1, n - 1));
}

uint64_t pack_layout_sum(const struct storage_layout *layout, uint32_t count)
{
    XXH64_hash_t h = XXH3_64bits_withSeed(&count, sizeof count, (XXH64_hash_t)layout->element);
    for (uint32_t i = 0; i < layout->n_arrays; i++) {
        uint8_t b[5];
        put32(b, layout->arrays[i].channels);
        b[4] = layout->arrays[i].channel_major;
        h = XXH3_64bits_withSeed(b, sizeof b, h);
    }
    return h;
}

uint64_t pack_label_sum(const void *label, size_t n)
{
    return XXH3_64bits(label, n);
}

size_t pack_payload_offset(uint32_t label_bytes)
{
    return (PACK_HEADER_BYTES + (size_t)label_bytes + 63) & ~(size_t)63;
}

uint64_t pack_record_bytes(uint32_t label_bytes, uint64_t payload_bytes)
{
    if (label_bytes > STORAGE_LABEL_MAX || payload_bytes > PACK_RECORD_MAX)
        return 0;
    uint64_t n = pack_payload_offset(label_bytes) + payload_bytes;
    return (n + PACK_ALIGN - 1) & ~(uint64_t)(PACK_ALIGN - 1);
}

void pack_record_seal(uint8_t *record, const struct pack_record *r, const void *label)
{
    size_t at = pack_payload_offset(r->label_bytes);
    uint64_t all = pack_record_bytes(r->label_bytes, r->payload_bytes);
    memset(record, 0, PACK_HEADER_BYTES);
    memcpy(record, record_magic, 8);
    put32(record + 8, PACK_VERSION);
    put32(record + 12, r->label_bytes);
    put64(record + 16, (uint64_t)r->owner);
    memcpy(record + 24, r->key, 32);
    memcpy(record + 56, r->parent, 32);
    memcpy(record + 88, r->fingerprint, 32);
    put32(record + 120, r->first);
    put32(record + 124, r->count);
    put64(record + 128, r->payload_bytes);
    put64(record + 136, r->layout_sum);
    put64(record + 144, pack_label_sum(label, r->label_bytes));
    memcpy(record + 152, r->producer, sizeof r->producer);
    put64(record + 248, XXH3_64bits(record, 248));
    if (r->label_bytes)
        memcpy(record + PACK_HEADER_BYTES, label, r->label_bytes);
    memset(record + PACK_HEADER_BYTES + r->label_bytes, 0, at - PACK_HEADER_BYTES - r->label_bytes);
    memset(record + at + r->payload_bytes, 0, (size_t)(all - at - r->payload_bytes));
}

int pack_record_parse(const uint8_t *record, size_t n, bool label_known, struct pack_record *out)
{
    if (n < PACK_HEADER_BYTES || memcmp(record, record_magic, 8) || get32(record + 8) != PACK_VERSION ||
        get64(record + 248) != XXH3_64bits(record, 248))
        return -EBADMSG;
    struct pack_record r = {.owner = (int64_t)get64(record + 16),
                            .first = get32(record + 120),
                            .count = get32(record + 124),
                            .label_bytes = get32(record + 12),
                            .layout_sum = get64(record + 136),
                            .payload_bytes = get64(record + 128)};
    memcpy(r.key, record + 24, 32);
    memcpy(r.parent, record + 56, 32);
    memcpy(r.fingerprint, record + 88, 32);
    memcpy(r.producer, record + 152, sizeof r.producer);
    if (r.producer[sizeof r.producer - 1] || !r.count || r.count > STORAGE_COUNT_MAX ||
        r.first > UINT32_MAX - r.count || !pack_record_bytes(r.label_bytes, r.payload_bytes))
        return -EBADMSG;
    if (label_known && (pack_record_bytes(r.label_bytes, r.payload_bytes) > n ||
                        get64(record + 144) != pack_label_sum(record + PACK_HEADER_BYTES, r.label_bytes)))
        return -EBADMSG;
    *out = r;
    return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

const char *pack_strerror(int rc)
{
    return rc == -ESTALE ? "a file has another pack's name, or belongs to another ledger; give it its own name back"
                         : strerror(-rc);
}

void pack_name(char name[PACK_NAME_BYTES], uint32_t n)
{
    (void)snprintf(name, PACK_NAME_BYTES, "pack-%08u", n);
}

static int open_pack(const struct packs *p, uint32_t n, int flags)
{
    char name[PACK_NAME_BYTES];
    pack_name(name, n);
    int fd = p->io->open(p->io->ctx, p->dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static int write_all(const struct packs *p, int fd, const void *buf, size_t n, uint64_t at)
{
    const uint8_t *b = buf;
    while (n) {
        ssize_t w = p->io->pwrite(p->io->ctx, fd, b, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -EIO;
        b += w;
        n -= (size_t)w;
        at += (uint64_t)w;
    }
    return 0;
}

static int read_all(const struct packs *p, int fd, void *buf, size_t n, uint64_t at)
{
    uint8_t *b = buf;
    while (n) {
        ssize_t r = p->io->pread(p->io->ctx, fd, b, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            return -EBADMSG;
        b += r;
        n -= (size_t)r;
        at += (uint64_t)r;
    }
    return 0;
}

/* Reads and checks what a pack begins with: which one it is, and its pair id. */
static int read_first(const struct packs *p, int fd, uint32_t *number, uint8_t pair[PAIR_BYTES])
{
    uint8_t head[PACK_PAIR_AT + PAIR_BYTES];
    struct stat sb;
    if (fstat(fd, &sb))
        return -errno;
    if (!S_ISREG(sb.st_mode) || read_all(p, fd, head, sizeof head, 0) || memcmp(head, pack_magic, 8) ||
        get32(head + 8) != PACK_VERSION)
        return -EBADMSG;
    *number = get32(head + 12);
    memcpy(pair, head + PACK_PAIR_AT, PAIR_BYTES);
    return 0;
}

/* The same of the file under a pack's name. */
static int read_named(const struct packs *p, uint32_t name, uint32_t *number, uint8_t pair[PAIR_BYTES])
{
    int fd = open_pack(p, name, O_RDONLY);
    if (fd < 0)
        return fd;
    int rc = read_first(p, fd, number, pair);
    (void)close(fd);
    return rc;
}

struct wanted {
    const struct packs *packs;
    uint32_t pack;
};

static int is_wanted(void *arg, uint32_t name)
{
    const struct wanted *w = arg;
    uint32_t number;
    uint8_t pair[PAIR_BYTES];
    return !read_named(w->packs, name, &number, pair) && number == w->pack &&
           (pack_is_zero(pair, sizeof pair) || !memcmp(pair, w->packs->pair, sizeof pair));
}

/* Of one that is not there under its name: 0, or -ESTALE: it is under another. */
static int elsewhere(const struct packs *p, uint32_t pack)
{
    int rc = packs_list(p, is_wanted, &(struct wanted){p, pack});
    return rc == 1 ? -ESTALE : rc;
}

int packs_activate(struct packs *p, uint32_t n, uint64_t end)
{
    int fd = open_pack(p, n, end ? O_RDWR : O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0)
        return fd;
    /* What a crash left allocated ahead goes back, and what it left there of a record with it. */
    off_t size = end ? lseek(fd, 0, SEEK_END) : 0;
    bool given_back;
    int rc = size > (off_t)end ? packs_cut(p, n, &(struct place){end, (uint64_t)size - end}, 1, &given_back) : 0;
    if (!rc && end && ftruncate(fd, (off_t)end))
        rc = -errno;
    if (!rc && !end) {
        uint8_t block[PACK_ALIGN] = {0};
        memcpy(block, pack_magic, 8);
        put32(block + 8, PACK_VERSION);
        put32(block + 12, n);
        memcpy(block + PACK_PAIR_AT, p->pair, sizeof p->pair);
        rc = write_all(p, fd, block, sizeof block, 0);
        /* The new name must be durable before a row may point at it. */
        if (!rc && p->io->fsync_dir(p->io->ctx, p->dirfd))
            rc = -errno;
        if (rc)
            (void)packs_unlink(p, n);
        end = PACK_ALIGN;
    }
    if (rc) {
        (void)close(fd);
        return rc;
    }
    packs_release(p);
    p->fd = fd;
    p->n = n;
    p->end = p->allocated = end;
    return 0;
}

bool packs_full(const struct packs *p, uint64_t bytes)
{
    return p->fd < 0 || p->failed || (p->end > PACK_ALIGN && p->end + bytes > p->pack_bytes);
}

/* A number that a file has which is none of ours is passed over. */
static int next_pack(struct packs *p)
{
    uint32_t n = p->n;
    int rc;
    do
        rc = packs_activate(p, ++n, 0);
    while (rc == -EEXIST && n < STORAGE_PACK_NONE - 1);
    return rc;
}

int packs_append(struct packs *p, const void *record, uint64_t bytes, uint32_t *pack, uint64_t *offset)
{
    *pack = STORAGE_PACK_NONE;
    if (packs_full(p, bytes)) {
        int rc = next_pack(p);
        if (rc)
            return rc;
    }
    if (p->end + bytes > p->allocated) {
        uint64_t want = bytes > p->ahead_bytes ? bytes : p->ahead_bytes;
        if (p->end + want > p->pack_bytes)
            want = p->pack_bytes > p->end + bytes ? p->pack_bytes - p->end : bytes;
        int rc = p->io->fallocate(p->io->ctx, p->fd, 0, (off_t)p->end, (off_t)want);
        if (rc && errno == ENOSPC && want > bytes) {
            want = bytes;
            rc = p->io->fallocate(p->io->ctx, p->fd, 0, (off_t)p->end, (off_t)want);
        }
        if (rc && errno != EOPNOTSUPP && errno != EINTR)
            return -errno;
        if (!rc)
            p->allocated = p->end + want;
    }
    int rc = write_all(p, p->fd, record, bytes, p->end);
    bool given_back;
    /* The first bytes of it say what it is. */
    if (rc && !packs_cut(p, p->n, &(struct place){p->end, bytes}, 1, &given_back))
        return rc;
    *pack = p->n;
    *offset = p->end;
    p->end += bytes;
    if (p->allocated < p->end)
        p->allocated = p->end;
    return rc;
}

/* The system tells an error once, and may have dropped what it could not write. */
int packs_sync(struct packs *p)
{
    if (p->fd >= 0 && !p->failed && p->io->fdatasync(p->io->ctx, p->fd))
        p->failed = -errno;
    return p->failed;
}

void packs_release(struct packs *p)
{
    p->failed = 0;
    if (p->fd < 0)
        return;
    /* What was allocated ahead goes back; if that fails it is only space. */
    if (p->allocated > p->end && ftruncate(p->fd, (off_t)p->end))
        p->allocated = p->end;
    (void)close(p->fd);
    p->fd = -1;
}

/* Overwrites what is there of a place: holes stay holes. */
static int overwrite(const struct packs *p, int fd, uint64_t at, uint64_t end)
{
    static const uint8_t zeros[1 << 20];
    int rc = 0;
    while (!rc && at < end) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA), hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
        if (data < 0 && errno == ENXIO)
            return 0; /* behind the end of the file too */
        if (data < 0 || hole < 0)
            return -errno;
        if ((uint64_t)data >= end)
            return 0;
        uint64_t stop = (uint64_t)hole < end ? (uint64_t)hole : end;
        for (at = (uint64_t)data; !rc && at < stop;) {
            size_t n = stop - at < sizeof zeros ? (size_t)(stop - at) : sizeof zeros;
            rc = write_all(p, fd, zeros, n, at);
            at += n;
        }
    }
    return rc;
}

int packs_cut(const struct packs *p, uint32_t pack, const struct place *places, size_t n, bool *given_back)
{
    uint8_t pair[PAIR_BYTES];
    uint32_t number;
    *given_back = true;
    int fd = open_pack(p, pack, O_RDWR);
    if (fd < 0)
        return fd == -ENOENT ? elsewhere(p, pack) : fd;
    int rc = !read_first(p, fd, &number, pair) && number != pack ? -ESTALE : 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = overwrite(p, fd, places[i].offset, places[i].offset + places[i].bytes);
    /* Without this the zeros would never leave the page cache. */
    if (!rc && p->io->fdatasync(p->io->ctx, fd))
        rc = -errno;
    for (size_t i = 0; i < n && !rc; i++)
        if (p->io->fallocate(p->io->ctx, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)places[i].offset,
                             (off_t)places[i].bytes))
            *given_back = false;
    (void)close(fd);
    return rc;
}

int packs_allocated(const struct packs *p, uint32_t pack, uint64_t *bytes)
{
    int fd = open_pack(p, pack, O_RDONLY);
    if (fd < 0)
        return fd;
    struct stat sb;
    int rc = fstat(fd, &sb) ? -errno : 0;
    uint64_t all = rc ? 0 : (uint64_t)sb.st_blocks * 512;
    *bytes = all > PACK_ALIGN ? all - PACK_ALIGN : 0;
    (void)close(fd);
    return rc;
}

int packs_read(const struct packs *p, uint32_t pack, uint64_t offset, void *buf, size_t n)
{
    int fd = open_pack(p, pack, O_RDONLY);
    if (fd < 0)
        return fd;
    int rc = read_all(p, fd, buf, n, offset);
    (void)close(fd);
    return rc;
}

int packs_read_label(const struct packs *p, const struct place_of *at, struct pack_record *r, uint8_t **label)
{
    uint8_t head[PACK_HEADER_BYTES];
    int fd = open_pack(p, at->pack, O_RDONLY);
    if (fd < 0)
        return fd;
    int rc = read_all(p, fd, head, sizeof head, at->offset);
    if (!rc)
        rc = pack_record_parse(head, sizeof head, false, r);
    if (!rc && pack_record_bytes(r->label_bytes, r->payload_bytes) > at->bytes)
        rc = -EBADMSG;
    uint8_t *text = rc ? NULL : malloc(r->label_bytes ? r->label_bytes : 1);
    if (!rc)
        rc = text ? read_all(p, fd, text, r->label_bytes, at->offset + PACK_HEADER_BYTES) : -ENOMEM;
    (void)close(fd);
    if (!rc && get64(head + 144) != pack_label_sum(text, r->label_bytes))
        rc = -EBADMSG;
    if (rc)
        free(text);
    else
        *label = text;
    return rc;
}

int packs_unlink(const struct packs *p, uint32_t pack)
{
    char name[PACK_NAME_BYTES];
    pack_name(name, pack);
    return unlinkat(p->dirfd, name, 0) && errno != ENOENT ? -errno : 0;
}

int packs_pair(const struct packs *p, uint32_t pack, uint8_t pair[PAIR_BYTES])
{
    uint32_t number;
    int rc = read_named(p, pack, &number, pair);
    return !rc && number != pack ? -ESTALE : rc;
}

bool packs_misnamed(const struct packs *p, uint32_t pack)
{
    uint8_t pair[PAIR_BYTES];
    int rc = packs_pair(p, pack, pair);
    return (rc == -ENOENT ? elsewhere(p, pack) : rc) == -ESTALE;
}

int packs_name_back(const struct packs *p, uint32_t pack, uint32_t *own)
{
    char now[PACK_NAME_BYTES], back[PACK_NAME_BYTES];
    uint8_t pair[PAIR_BYTES];
    if (read_named(p, pack, own, pair) || *own == pack || memcmp(pair, p->pair, sizeof pair))
        return 0;
    int there = packs_pair(p, *own, pair);
    if (there != -ENOENT && there != -ESTALE)
        return 0;
    pack_name(now, pack);
    pack_name(back, *own);
    if (renameat2(p->dirfd, now, p->dirfd, back, there == -ENOENT ? RENAME_NOREPLACE : RENAME_EXCHANGE) ||
        p->io->fsync_dir(p->io->ctx, p->dirfd))
        return -errno;
    return 1;
}

/* Reads for a scan. 1: it cannot be read and is to be passed over. */
static int scan_read(const struct packs *p, int fd, void *buf, size_t n, uint64_t at, int *unreadable)
{
    int rc = read_all(p, fd, buf, n, at);
    return rc == -EIO && (*unreadable)++ < UNREADABLE_MAX ? 1 : rc;
}

int packs_scan(const struct packs *p, uint32_t pack, uint64_t from,
               int (*fn)(void *arg, uint32_t pack, uint64_t offset, uint64_t bytes, const struct pack_record *r,
                         const uint8_t *label),
               void *arg, uint64_t *end)
{
    uint8_t head[PACK_HEADER_BYTES], block[PACK_ALIGN];
    uint8_t *label = NULL;
    *end = from ? from : PACK_ALIGN;
    int fd = open_pack(p, pack, O_RDONLY);
    if (fd < 0)
        return fd;
    struct stat sb;
    uint8_t pair[PAIR_BYTES];
    uint32_t number;
    int rc = fstat(fd, &sb) ? -errno : read_first(p, fd, &number, pair);
    if (!rc && (number != pack || (!pack_is_zero(pair, sizeof pair) && memcmp(pair, p->pair, sizeof pair))))
        rc = -ESTALE;
    uint64_t at = *end, size = rc ? 0 : (uint64_t)sb.st_size;
    int unreadable = 0;
    while (!rc && at < size && size - at >= PACK_HEADER_BYTES) {
        struct pack_record r;
        uint64_t bytes = 0;
        int skip = scan_read(p, fd, head, sizeof head, at, &unreadable);
        if (!skip && !pack_record_parse(head, sizeof head, false, &r)) {
            bytes = pack_record_bytes(r.label_bytes, r.payload_bytes);
            uint8_t *grown = bytes > size - at ? NULL : realloc(label, PACK_HEADER_BYTES + (size_t)r.label_bytes);
            if (!grown && bytes <= size - at) {
                rc = -ENOMEM;
                break;
            }
            if (grown) {
                label = grown;
                skip = scan_read(p, fd, label, PACK_HEADER_BYTES + (size_t)r.label_bytes, at, &unreadable);
            }
            if (!grown || skip || get64(head + 144) != pack_label_sum(label + PACK_HEADER_BYTES, r.label_bytes))
                bytes = 0;
        }
        uint64_t rest = size - at < sizeof block ? size - at : sizeof block;
        if (!skip && !bytes)
            skip = scan_read(p, fd, block, rest, at, &unreadable);
        if (skip < 0) {
            rc = skip;
            break;
        }
        if (bytes) {
            rc = fn(arg, pack, at, bytes, &r, label + PACK_HEADER_BYTES);
            at += bytes;
            *end = at;
            continue;
        }
        if (!skip && !pack_is_zero(block, rest))
            rc = fn(arg, pack, at, PACK_ALIGN, NULL, NULL);
        at += PACK_ALIGN;
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        if (data > 0)
            at = (uint64_t)data & ~(uint64_t)(PACK_ALIGN - 1);
    }
    free(label);
    (void)close(fd);
    return rc ? rc : unreadable ? -EIO : 0;
}

int packs_list(const struct packs *p, int (*fn)(void *arg, uint32_t pack), void *arg)
{
    int fd = openat(p->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *d = fdopendir(fd);
    if (!d) {
        int rc = -errno;
        (void)close(fd);
        return rc;
    }
    int rc = 0;
    struct dirent *e;
    while (!rc && (e = readdir(d))) {
        char name[PACK_NAME_BYTES];
        unsigned n;
        if (sscanf(e->d_name, "pack-%8u", &n) != 1)
            continue;
        pack_name(name, n);
        if (!strcmp(name, e->d_name))
            rc = fn(arg, n);
    }
    (void)closedir(d);
    return rc;
}

/* pack_internal.h - pack files, and the calls that change or read them (pack.c says what lies where in one).
 */
#ifndef CONVOD_PACK_INTERNAL_H
#define CONVOD_PACK_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "storage/storage.h"

/* ---- file operations ----------------------------------------------------------------------------------------------
 * The calls that change or read packs. Tests put failing ones in their place. All return -1 and set errno, as the
 * system's do. */
struct storage_io {
    int (*open)(void *ctx, int dirfd, const char *name, int flags, mode_t mode);
    ssize_t (*pread)(void *ctx, int fd, void *buf, size_t n, off_t at);
    ssize_t (*pwrite)(void *ctx, int fd, const void *buf, size_t n, off_t at);
    int (*fdatasync)(void *ctx, int fd);
    int (*fsync_dir)(void *ctx, int dirfd);
    int (*fallocate)(void *ctx, int fd, int mode, off_t at, off_t n);
    int (*free_bytes)(void *ctx, int dirfd, uint64_t *bytes); /* of the file system, for us */
    void *ctx;
};
extern const struct storage_io storage_io_system;

/* ---- pack records (pack.c) ---------------------------------------------------------------------------------------
 */
#define PACK_ALIGN        4096u
#define PACK_HEADER_BYTES 256u /* of a record; its label follows, then (64-byte aligned) the payload */
#define PACK_VERSION      1u
#define PACK_RECORD_MAX   ((uint64_t)2 << 30)
#define PACK_NAME_BYTES   24u
#define PAIR_BYTES        16u /* the pair id, see pair.c */

/* One record's header in memory. */
struct pack_record {
    uint8_t key[STORAGE_KEY_BYTES], parent[STORAGE_KEY_BYTES], fingerprint[32];
    int64_t owner;
    uint32_t first, count;
    uint32_t label_bytes;
    uint64_t layout_sum, payload_bytes;
    char producer[24];
};

/* XXH3-64 over a layout and count; two layouts with one sum are taken as equal. */
uint64_t pack_layout_sum(const struct storage_layout *layout, uint32_t count);
uint64_t pack_label_sum(const void *label, size_t n);
/* Where the payload lies in a record, and the record's whole (aligned) size. 0 on overflow. */
size_t pack_payload_offset(uint32_t label_bytes);
uint64_t pack_record_bytes(uint32_t label_bytes, uint64_t payload_bytes);
/* Fills header, label and padding of a record whose payload is in place already. */
void pack_record_seal(uint8_t *record, const struct pack_record *r, const void *label);
/* Parses and checks the header and label of a record of n bytes. -EBADMSG. With label_known false only the header is
 * there (n may end with it) and the label is not checked. */
int pack_record_parse(const uint8_t *record, size_t n, bool label_known, struct pack_record *out);
bool pack_is_zero(const void *p, size_t n);

struct packs {
    const struct storage_io *io;
    int dirfd;
    uint64_t pack_bytes;      /* size at which a new pack is begun */
    uint64_t ahead_bytes;     /* that are allocated at once, as far as the pack goes */
    uint8_t pair[PAIR_BYTES]; /* of the ledger that the packs belong to; all zero: not known yet */
    /* The active pack; the writer thread's. */
    int fd; /* -1: none */
    uint32_t n;
    uint64_t end, allocated;
    int failed; /* why it could not be synced: nothing that was written to it since counts, and it gets no more */
};
/* Continues pack n at `end`, or with end == 0 begins it (fails if it is there). */
int packs_activate(struct packs *p, uint32_t n, uint64_t end);
/* Appends a record; *pack and *offset get its place. Not durable before packs_sync(). After an error *pack is
 * STORAGE_PACK_NONE, or the place that has some of it, which could not be overwritten. */
int packs_append(struct packs *p, const void *record, uint64_t bytes, uint32_t *pack, uint64_t *offset);
bool packs_full(const struct packs *p, uint64_t bytes); /* whether a record of this size goes to a new pack */
int packs_sync(struct packs *p);                        /* an error stays until the pack is released */
/* Closes the active pack, giving back what was allocated beyond its end. */
void packs_release(struct packs *p);
struct place {
    uint64_t offset, bytes;
};
/* Overwrites records of one pack with zeros and syncs, then punches holes. *given_back: that could be done too, so that
 * their space is free. A pack that is not there has none; -ESTALE: packs_misnamed(). */
int packs_cut(const struct packs *p, uint32_t pack, const struct place *places, size_t n, bool *given_back);
/* Bytes that a pack takes on the disk behind its first block. */
int packs_allocated(const struct packs *p, uint32_t pack, uint64_t *bytes);
/* Reads n bytes; -ENOENT: no such pack; -EBADMSG: it ends before. */
int packs_read(const struct packs *p, uint32_t pack, uint64_t offset, void *buf, size_t n);
struct place_of { /* a record */
    uint32_t pack;
    uint64_t offset, bytes;
};
/* Reads and checks a record's header and label, which is malloc'd. As packs_read(); -EBADMSG: damaged; -ENOMEM. */
int packs_read_label(const struct packs *p, const struct place_of *at, struct pack_record *r, uint8_t **label);
int packs_unlink(const struct packs *p, uint32_t pack); /* 0 where it has gone already */
void pack_name(char name[PACK_NAME_BYTES], uint32_t pack);
const char *pack_strerror(int rc); /* as strerror(-rc), of a pack */
/* The pair id of a pack; all zero: it is from before there was one. -ESTALE: it is another one under this name. */
int packs_pair(const struct packs *p, uint32_t pack, uint8_t pair[PAIR_BYTES]);
/* Whether there is another pack under this one's name, or none while another name has this one. */
bool packs_misnamed(const struct packs *p, uint32_t pack);
/* At open, when the pair id is known: gives the pack that is under this name, if it is one of ours, the name that it
 * says, where that is free, or has another such pack, which gets this name. 1: done, *own is its number; 0. */
int packs_name_back(const struct packs *p, uint32_t pack, uint32_t *own);
/* Calls fn for every record from offset `from` on (0: the pack's first), also behind holes and damage, and with r NULL
 * for each block of what is none. *end gets the end of the last record. -EIO: some of the pack cannot be read; fn was
 * called for the rest. -ESTALE: it belongs to another ledger. */
int packs_scan(const struct packs *p, uint32_t pack, uint64_t from,
               int (*fn)(void *arg, uint32_t pack, uint64_t offset, uint64_t bytes, const struct pack_record *r,
                         const uint8_t *label),
               void *arg, uint64_t *end);
/* Calls fn for every pack file in the directory, in no order. */
int packs_list(const struct packs *p, int (*fn)(void *arg, uint32_t pack), void *arg);

#endif

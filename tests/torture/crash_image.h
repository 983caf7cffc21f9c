/* crash_image.h - records what a storage does to its files, and makes from that what a disk may hold after a crash.
 *
 * Recorded are SQLite's calls (through a VFS that becomes the default) and those of packs (struct storage_io), in one
 * list. An image is made of a head of that list: what was synced is there; of what was not, anything may be missing,
 * and of a write any sectors. A name is there when its directory was synced after it was made, else by chance; the same
 * for one that was taken away.
 */
#ifndef CONVOD_CRASH_IMAGE_H
#define CONVOD_CRASH_IMAGE_H

#include "storage/storage_internal.h"

enum crash_kind {
    CRASH_KILL,    /* the process dies: everything it wrote is there */
    CRASH_NOTHING, /* the power goes: nothing that was not synced is there */
    CRASH_SOME,    /* the power goes: some of it is */
    CRASH_KINDS
};

/* Begins to record; io gets operations that do. */
void crash_record(struct storage_io *io);
/* Calls recorded so far: a place in the list. */
size_t crash_place(void);
/* Writes to the empty directory `dir` what may be there when it ends at `place`. */
void crash_image(size_t place, enum crash_kind kind, uint64_t seed, const char *dir);
/* SQLite's calls are recorded no more; what was recorded stays until it is forgotten. */
void crash_stop(void);
void crash_forget(void);

#endif

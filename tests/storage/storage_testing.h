/* storage_testing.h - what the tests of storage/ share: a directory that goes away, jobs that wait, segments to put. */
#ifndef CONVOD_STORAGE_TESTING_H
#define CONVOD_STORAGE_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/storage_internal.h"

/* cmocka's asserts work on the test's own thread only; within a job this fails the job. */
#define JOB_CHECK(x)                                                                                                   \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                              \
            return -ECANCELED;                                                                                         \
        }                                                                                                              \
    } while (0)

/* A number from a seed, which moves on. */
uint64_t testing_random(uint64_t *seed);
/* Elements that look like keys and values: exponents close together, noise in the mantissas. */
void testing_fill_kv(uint16_t *out, size_t n, enum storage_element e, uint64_t seed);

/* A new directory below build's temporary directory; freed and removed by testing_dir_remove(). */
char *testing_dir(void);
/* Likewise, in memory where there is such a file system: for tests that open and sync often. */
char *testing_dir_in_memory(void);
void testing_dir_remove(char *dir);
char *testing_path(const char *dir, const char *file);
off_t testing_size(const char *dir, const char *file);
/* Whether a file is there and has this text. */
bool testing_contains(const char *dir, const char *file, const char *text);
/* Writes this over what is in a file, which must be there. */
void testing_overwrite(const char *dir, const char *file, off_t at, const char *text);
/* Does this to a database that nobody has open. */
void testing_sql(const char *dir, const char *file, const char *text);
/* How much storage_verify() finds wrong in a directory that nobody has open, and says. */
uint64_t testing_verify(const char *dir, bool repair);
/* The file's name that a pack has. */
void testing_pack_name(char name[32], uint32_t pack);
/* Bytes the file takes on disk. */
uint64_t testing_blocks(const char *dir, const char *file);

struct storage *testing_open(const char *dir);
struct storage *testing_open_with(const char *dir, const struct storage_io *io, uint64_t disk_bytes);

/* A conversation and turns in it. */
int64_t testing_owner(struct storage *st, const char *name);
int64_t testing_conversation(struct storage *st, int64_t owner, const char *public_id);
int64_t testing_turn(struct storage *st, int64_t owner, int64_t conversation, int64_t parent, const char *public_id);
struct testing_context { /* what such a turn adds, and how long its context is with that; all but the last token has KV
                          */
    const void *tokens;
    size_t bytes;
    int64_t n_tokens;
    const char *kv; /* NULL: it does not say what made that */
};
int64_t testing_turn_with(struct storage *st, int64_t owner, int64_t conversation, int64_t parent,
                          const char *public_id, struct testing_context context);
int testing_conversation_delete(struct storage *st, int64_t owner, const char *public_id);
int testing_turn_delete(struct storage *st, int64_t owner, const char *public_id);
/* From now on the index, or the ledger, refuses this. What the job that says so has come to: in the ledger its own
 * commit is refused already. */
enum testing_refused { TESTING_NOTHING, TESTING_COMMITS, TESTING_INTENTS };
int testing_refuse(struct storage *st, bool index, enum testing_refused what);
/* Drops what longer segments have taken the place of, as it is done when nothing else is to be. */
void testing_settle(struct storage *st);
/* Returns when nothing is on its way to be cut out. */
void testing_cuts_wait(struct storage *st);
int testing_deleting(struct storage *st, int64_t owner, const char *public_id);

/* Segments: key and payload are made from `id`, label is the bytes of the name. Payloads whose id 3 divides are put in
 * their split form, and those with an even one are read in it. */
#define TESTING_COUNT 64u
extern const struct storage_layout testing_layout;
extern const uint8_t testing_fingerprint[32];
extern const uint8_t testing_root[STORAGE_KEY_BYTES];
void testing_key(uint8_t key[STORAGE_KEY_BYTES], unsigned id);
/* id 0 as parent: the first of its chain. */
int testing_put(struct storage *st, int64_t owner, unsigned id, unsigned parent);
/* The same, of tokens from `first` on. */
int testing_put_at(struct storage *st, int64_t owner, unsigned id, unsigned parent, uint32_t first);
/* And of another producer than "test-1", which begins like it. */
int testing_put_as(struct storage *st, int64_t owner, unsigned id, unsigned parent, uint32_t first,
                   const char *producer, bool keep);
int testing_commit(struct storage *st, int64_t turn, unsigned last);
/* Whether nothing but zeros is left in the pack where this segment lay; it must be readable. */
bool testing_cut_out(struct storage *st, const struct storage_found *f);
/* The child with this id. 0, or -ENOENT. The label is freed. */
int testing_find(struct storage *st, int64_t owner, unsigned parent, unsigned id, struct storage_found *out);
/* storage_segment_nearest(); the labels are the caller's to free. */
size_t testing_nearest(struct storage *st, int64_t owner, unsigned parent, const char *label,
                       struct storage_found rows[2]);
/* Reads and compares with what was put. */
struct storage_read_result testing_read(struct storage *st, const struct storage_found *f, unsigned id);
/* The same as it is stored, and one of its arrays, which must be what was put when it is not damaged. */
struct storage_read_result testing_read_stored(struct storage *st, const struct storage_found *f, unsigned id);
int testing_decode(const struct storage_stored *g, unsigned id, uint32_t array);
/* Of what is in RAM alone. */
struct storage_read_result testing_take(struct storage *st, const struct storage_found *f, unsigned id);

#endif

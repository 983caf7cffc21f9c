/* storage_internal.h - what the files of storage/ share.
 *
 * Layers, each above the next:
 *   storage.c   open and close, the lock file, statistics
 *   backup.c, verify.c   copying and checking all of it
 *   encode.c, writer.c, compact.c, reader.c   the threads that encode, that append, and that read and decode
 *   jobs.c      the ledger thread: group commit
 *   reindex.c   the index made anew from the packs
 *   erase.c     what follows a commit: records are cut out, deletions end
 *   ledger.c, ledger_turns.c, ledger_items.c, ledger_keys.c   rows of ledger.db
 *   holds.c     what of the one the other holds
 *   segments.c, nearest.c, labels.c   rows of kv.db
 *   titles.c    titles in memory, to be searched
 *   room.c      a full disk: the ledger's room comes first
 *   limits.c    what owners may have, and what they have
 *   pair.c      whether the ledger is the one that the rest belongs to
 *   schema.c    opening the databases, versions, prepared statements
 *   vfs.c       between SQLite and the files: what is deleted is overwritten
 *   pack.c, ram.c, codec.c   records in packs, records in RAM, payload bytes
 *
 * Locks. `jobs_lock`, `writer_lock`, `reader_lock`, `cutter_lock` guard the queues, `workers_lock` which threads have
 * ended, `ram_lock` the RAM tier, `pin_lock` pins and the list of touched keys, `limits_lock` what owners may have.
 * None is held while another is taken, and none while the disk is used.
 */
#ifndef CONVOD_STORAGE_INTERNAL_H
#define CONVOD_STORAGE_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <syslog.h>

#include "storage/pack_internal.h"
#include "storage/storage.h"

/* Limits on what a caller or a file may ask for. */
#define STORAGE_COUNT_MAX    (1u << 16) /* units of one segment */
#define STORAGE_CHANNELS_MAX (1u << 20) /* channels of one array */
#define STORAGE_ARRAYS_MAX   4096u
#define STORAGE_LABEL_MAX    (1u << 20)
#define STORAGE_PAYLOAD_MAX  ((size_t)1 << 30)

/* ---- RAM tier (ram.c) --------------------------------------------------------------------------------------------
 */
struct blob { /* one encoded record */
    atomic_uint refs;
    uint8_t *record;
    uint64_t bytes;
};
struct blob *blob_new(uint8_t *record, uint64_t bytes); /* takes record over; NULL: out of memory, record freed */
void blob_unref(struct blob *b);

enum ram_state {
    RAM_PENDING, /* taken, not yet durable: stays whatever the budget */
    RAM_DURABLE, /* a copy of what is on disk */
    RAM_ONLY     /* could not be saved: found by children lookups until it is evicted */
};
struct ram_entry;
struct ram {
    pthread_mutex_t lock; /* guards all below */
    struct ram_entry **buckets;
    size_t n_buckets, n_entries;
    struct ram_owner *owners; /* that have entries */
    size_t n_owners;
    uint64_t uses;
    size_t used, budget;
    size_t n_only; /* entries in state RAM_ONLY */
};
int ram_init(struct ram *r, size_t budget);
void ram_free(struct ram *r);
/* Adds or replaces; the tier takes its own reference. -ENOMEM: not kept. */
int ram_put(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES], struct blob *b, enum ram_state state);
/* A reference, or NULL. Marks it as used. */
struct blob *ram_get(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES]);
void ram_set_state(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES], enum ram_state state, int64_t turn);
/* State of an entry, or -ENOENT. */
int ram_state(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES]);
void ram_remove(struct ram *r, const uint8_t key[STORAGE_KEY_BYTES]);
void ram_drop_durable(struct ram *r, const uint8_t (*keys)[STORAGE_KEY_BYTES], size_t n);
/* Bytes of an owner's entries. */
size_t ram_used_by(struct ram *r, int64_t owner);
/* Drops an owner's copies of what is on disk, those used longest ago first, until it has `most` bytes. */
void ram_keep(struct ram *r, int64_t owner, size_t most);
/* Drops RAM_ONLY entries that belong to a turn. */
void ram_drop_turn(struct ram *r, int64_t turn);
/* The RAM_ONLY children of a parent whose labels are next to `label`: at or below it, and above. What there is none of
 * stays as it is. */
int ram_nearest(struct ram *r, int64_t owner, const uint8_t fingerprint[32], const uint8_t parent[STORAGE_KEY_BYTES],
                const void *label, uint32_t label_bytes, struct storage_found *below, struct storage_found *above);

/* ---- files that SQLite writes (vfs.c) ----------------------------------------------------------------------------
 */
#define VFS_PAGES_MAX 33554431 /* 0x01ffffff; pages of a database: what vfs.c tells pages apart by ends there */
/* The name of the layer that overwrites what is deleted, for sqlite3_open_v2(); NULL: out of memory. */
const char *vfs_name(void);
/* The system's error of this thread's last call to a file that failed, once; 0: none. */
int vfs_error_take(void);
/* Zeros in what is not allocated of a b-tree page of n bytes. True: it was changed. Others stay as they are. */
bool vfs_scrub_page(uint8_t *page, size_t n, bool first);
/* The same for every page of a database that was opened with vfs_name(), in place. Its log must be empty. */
int vfs_scrub(sqlite3 *db, int page_bytes);
/* Syncs the log of a database that was opened with vfs_name(), after transactions that did not. */
int vfs_sync_log(sqlite3 *db);
/* Overwrites a file with zeros, syncs and unlinks it. One that is not there is gone. */
int vfs_erase(int dirfd, const char *name);

/* ---- databases (schema.c) ----------------------------------------------------------------------------------------
 */
struct schema {
    const char *file;         /* "ledger.db" */
    const char *const *steps; /* SQL that leads from version i to i + 1 */
    int n_steps;
    bool full_sync;
    int anew_before; /* older versions are not brought up to date but made anew */
};
extern const struct schema schema_ledger, schema_kv;
/* Opens or creates; brings an older version up to date, with a copy FILE.vN beside it until that is verified. `dir` is
 * the path of dirfd. -ESTALE: it is of a version that is made anew. */
int schema_open(const struct schema *s, int dirfd, const char *dir, sqlite3 **out, char *err, size_t err_size);
/* Whether a database is whole: 0, -EBADMSG, or why that cannot be told. */
int schema_check(sqlite3 *db);
/* An SQLite result that this thread has just got, as an errno value: the system's, where it said why. */
int schema_errno(int sqlite_rc);

enum stmt_db { STMT_LEDGER, STMT_KV };
enum stmt_id {
#define STMT(id, db, sql) id,
#include "storage/statements.def"
#undef STMT
    STMT_COUNT
};

/* Once in a database's life: what versions before left in the unallocated space of its pages is overwritten. */
int schema_scrub(struct storage_ledger *l, enum stmt_db which);

enum drop_wait {
    WAIT_READER, /* somebody reads it */
    WAIT_INDEX,  /* kv.db still has its row */
    WAIT_FAILED  /* it could not be cut out */
};
struct job;
struct drop { /* a record that is gone from the index and is to be cut out of its pack */
    int64_t intent;
    int64_t owner; /* 0: not known, it is from before the start */
    uint32_t pack;
    uint64_t offset, bytes;
    uint8_t key[STORAGE_KEY_BYTES];
    struct job *job; /* is reported after it; NULL: none */
    enum drop_wait wait;
    bool moved;      /* its segment lies elsewhere now */
    int rc;          /* of overwriting it */
    bool given_back; /* and its space is free */
};
struct cut { /* drops on their way to the cutter and back */
    struct cut *next;
    struct cut *given_before; /* that is not back either; the ledger thread's, and as `pack` of each not the cutter's */
    size_t n;
    struct drop drops[]; /* by pack */
};
struct retry {
    int64_t at_ms; /* of the monotonic clock; 0: nothing to do */
    int pause_ms;
};
struct mark; /* of something that is being deleted, see erase.c */

#define USES_MOST 256 /* uses of segments that wait to be written */

struct storage_ledger {
    struct storage *st;
    sqlite3 *db, *kv;
    sqlite3_stmt *stmts[STMT_COUNT];
    int stmt_rc;        /* why the one that was asked for last cannot be had */
    struct drop *drops; /* of the batch; a job that fails takes its own back */
    size_t n_drops, cap_drops;
    struct drop *waiting; /* not cut out yet */
    size_t n_waiting, cap_waiting;
    struct job *pending; /* committed, and reported when their drops are over */
    struct cut *cuts;    /* the cutter has, or its results are not looked at yet */
    size_t n_cuts;       /* of them */
    uint64_t cuts_given; /* to the cutter, which gives them back in order */
    struct mark *gone;   /* of deletions that are over: they go with the next transaction that is synced */
    bool heads_logged;   /* the index's log may have long heads of rows that are gone (segments.c) */
    bool unread;         /* the index is not whole: packs, from the first of these to the second, are not read yet */
    uint32_t unread_packs[2];
    int64_t pending_last; /* turns up to this one are from before the start */
    bool gaps;            /* a damaged record had cut a chain in two, and what is behind it is still searched for */
    uint8_t (*superseded)[STORAGE_KEY_BYTES]; /* segments that longer ones have taken the place of */
    size_t n_superseded, cap_superseded;
    size_t n_let_go; /* of them, released by this batch */
    struct retry retry_cuts, retry_logs;
    int cut_said; /* what the log said last about cutting */
    uint64_t room_freed;
    int64_t expired_owner; /* the last one that storage_conversation_expired() looked at; 0: from the first on */
    int changes;           /* of both databases, when they were last looked at */
    bool logged;           /* the logs have what the databases do not */
    int64_t logged_ms;
    int idle_said;
    struct dead { /* space that could not be given back, by pack */
        uint32_t pack;
        uint64_t bytes;
    } * dead;
    size_t n_dead, cap_dead;
    int64_t *dead_turns; /* of the batch: turns whose RAM_ONLY segments go */
    size_t n_dead_turns, cap_dead_turns;
    int64_t *cleared; /* intents that are carried out: their rows go with the next batch */
    size_t n_cleared, cap_cleared;
    struct titles *titles; /* of owners that search, the latest first */
    bool titles_changed;   /* by the running job */
    struct mark *marks;    /* of what it deleted for its owner: it is reported after the logs are emptied too */
    int kv_rc;             /* of the batch: why kv.db is out of it; its statements give this then */
    int kv_said;           /* what the log said last about that */
    bool kv_marked;        /* that kv.db is damaged is noted on disk */
    int64_t holds_at;      /* background check of what turns hold, before the first search; INT64_MAX: finished */
    int64_t sweep_at;      /* background search for orphans: last row looked at; INT64_MAX: finished */
    int64_t sweep_end;     /* the last row when it began */
    int64_t sweep_from;    /* the next one begins behind this row; INT64_MAX: none was passed over yet */
    uint64_t sweep_clock;  /* what was used later is passed over */
    int sweep_failed;      /* how often a piece of it did that is tried again */
    bool searching;        /* the search since the start is not over: a crash may have left what nothing holds */
    uint64_t used;         /* clock of uses */
    bool reads;            /* the batch changes nothing: uses wait for one that does */
    struct {
        uint8_t key[STORAGE_KEY_BYTES];
        uint64_t used;
    } uses[USES_MOST]; /* that wait */
    size_t n_uses;
    uint64_t used_noted;                   /* that is written down: the next start goes on from there */
    int64_t clock_base_ms, clock_start_ms; /* running time before this start; monotonic time of it */
};

/* The statement, reset. NULL: it cannot be had: binding to that does nothing, and the next step says why. So a query is
 * got, bound and stepped, and its result looked at once. */
sqlite3_stmt *stmt_get(struct storage_ledger *l, enum stmt_id id);
/* 1: a row; 0: done (the statement is reset); negative errno (reset), also of the last stmt_get() where s is NULL. */
int stmt_step(struct storage_ledger *l, sqlite3_stmt *s);
/* The first row of a query, or the only one. 0; -ENOENT: there is none; or as stmt_step(). */
int stmt_row(struct storage_ledger *l, sqlite3_stmt *s);
/* Whether a query has a row: 1, 0 or negative. */
int stmt_any(struct storage_ledger *l, sqlite3_stmt *s);
/* Ends a query whose rows are not all wanted. */
void stmt_reset(sqlite3_stmt *s);
/* Steps a statement that gives no rows. *changes (may be NULL) gets the number of changed rows. */
int stmt_run(struct storage_ledger *l, sqlite3_stmt *s, int *changes);
void stmt_finalize_all(struct storage_ledger *l);

/* The statement with whole numbers bound to its first parameters. */
sqlite3_stmt *stmt_with(struct storage_ledger *l, enum stmt_id id, size_t n, const int64_t *values);
#define STMT_WITH(l, id, ...)                                                                                          \
    stmt_with((l), (id), sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (const int64_t[]){__VA_ARGS__})
/* The text in the first column of a query's one row, malloc'd. 0; -ENOENT: there is no row. */
int stmt_text(struct storage_ledger *l, sqlite3_stmt *s, char **out);
/* Runs a statement without parameters that gives no rows. */
int stmt_do(struct storage_ledger *l, enum stmt_id id);

/* Binding and reading columns. Strings and blobs are not copied when bound; they are when read. */
void bind_text(sqlite3_stmt *s, int at, const char *text); /* NULL is NULL */
void bind_blob(sqlite3_stmt *s, int at, const void *p, size_t n);
int column_text(sqlite3_stmt *s, int at, char **out);              /* NULL is NULL; -ENOMEM */
int column_bytes(sqlite3_stmt *s, int at, uint8_t *out, size_t n); /* exactly n, or NULL as zeros; -EBADMSG */
int column_copy(sqlite3_stmt *s, int at, void **out, size_t *n);   /* malloc'd; -ENOMEM */

/* schema.c: values that belong to a database as a whole, by name; the statements say which database. A blob of up to
 * `size` bytes. 1: found, *n gets its size; 0: none; -EBADMSG: it is longer. */
int meta_get(struct storage_ledger *l, enum stmt_id get, const char *key, void *value, size_t size, size_t *n);
int meta_set(struct storage_ledger *l, enum stmt_id set, const char *key, const void *value, size_t n);

/* ledger_keys.c: milliseconds that this ledger has been open for, in all its life as far as it was noted. */
int64_t ledger_clock_ms(const struct storage_ledger *l);
/* At open. */
int ledger_clock_start(struct storage_ledger *l);

/* ledger_turns.c, and holds.c: at open, what was RUNNING has FAILED with reason "interrupted"; what was being saved was
 * saved or was not, which with an index that is not whole is told at its end, up to the last of those turns. */
int turns_interrupted(struct storage_ledger *l, int64_t now_ms);
int turns_pending_over(struct storage_ledger *l, int64_t last);
/* holds.c, in the background, after a start: of the next n turns behind *after (INT64_MAX: there are no more), or of
 * fewer where they take long, those that hold something which is not in the index, or is behind a gap, hold what there
 * is of their context. */
int turns_hold_again(struct storage_ledger *l, int64_t *after, int n);

/* ledger_items.c */
int items_insert(struct storage_ledger *l, int64_t turn, const struct storage_item *items, size_t n);
int items_of(struct storage_ledger *l, int64_t turn, struct storage_item **rows, size_t *n);

/* ledger.c: notes a deleted turn, whose segments in RAM go after the commit. */
int ledger_dead_turn(struct storage_ledger *l, int64_t turn);
struct key_list {
    uint8_t (*keys)[STORAGE_KEY_BYTES];
    size_t n, cap;
};
int keys_add(struct key_list *keys, const uint8_t key[STORAGE_KEY_BYTES]); /* 0 or -ENOMEM */
/* holds.c: where chains may have gaps, that what is before one is found by its tokens: adds the last segments
 * from the beginning of each context of a conversation on. */
int turns_before_gaps(struct storage_ledger *l, int64_t owner, int64_t conversation, struct key_list *keys);
/* The same of one turn's: the last one's key, or zeros. 1: it reaches to the context's end; 0: it does not; negative.
 */
int turn_before_gaps(struct storage_ledger *l, const struct storage_turn *t, uint8_t key[STORAGE_KEY_BYTES]);

/* ---- labels (labels.c); ledger thread only but for coding ---------------------------------------------------------
 */
#define UNIT_CODE        2                        /* bytes of a code for each unit */
#define LABEL_HEAD_SHORT (4 * UNIT_CODE)          /* bytes of a head that tells little */
enum label_unit { LABEL_RAW = 0, LABEL_IDS = 1 }; /* bytes; or 4 bytes each, token ids */
struct space {                                    /* an owner's segments of one fingerprint */
    int64_t id;
    int unit;        /* of their labels */
    uint8_t key[32]; /* that labels are coded with */
};
/* 1 found, 0 none, negative. */
int space_get(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], struct space *out);
/* The same; it is made, for labels of this unit, when there is none. 0 or negative. */
int space_add(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32], int unit, struct space *out);
/* The row of names with this text; it is made when there is none. */
int name_id(struct storage_ledger *l, const char *text, int64_t *id);
struct coded { /* a label as the index knows it */
    size_t units;
    uint8_t *blocks; /* 16 bytes for each unit */
    uint8_t *string; /* what heads are made from */
    size_t bytes;    /* of the string */
};
/* coded_free() frees what it gets. -ENOMEM. [any thread] */
int label_code(const struct space *space, const void *label, size_t bytes, struct coded *out);
void coded_free(struct coded *c);
/* By what a label that is the first `units` of this one is known; 0 where it has not as many. */
int64_t coded_sum(const struct coded *c, size_t units);
/* Units in which a row's head does not differ. */
size_t coded_common(const struct coded *c, const uint8_t *head, size_t n);
/* Gives row `id`, a child of `parent`, the head that it is found by, and others what they need beside it. */
int head_set(struct storage_ledger *l, int64_t id, const struct space *space, const uint8_t parent[STORAGE_KEY_BYTES],
             const struct coded *me);
/* Bytes of a row's head that no sibling's begins with. 0 or negative. */
int head_own(struct storage_ledger *l, int64_t id, size_t *bytes);

/* ---- index of segments (segments.c); ledger thread only ----------------------------------------------------------
 */
struct segment_row {
    int64_t id, space;
    uint32_t pack;
    uint64_t offset, bytes, used;
    int64_t owner, children;
    int64_t first, end; /* positions: its first one, and the one behind it */
    int head_bytes;
    uint8_t key[STORAGE_KEY_BYTES], parent[STORAGE_KEY_BYTES];
};
/* 1 found, 0 no row, negative. A forgotten one has pack STORAGE_PACK_NONE. */
int segment_get(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], struct segment_row *row);
/* 1 found, 0 not, negative. A forgotten one counts as not found. */
int segment_exists(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES]);
/* What is missing before `row` gets a row like that of one that was forgotten, behind `before` (or at the root) from
 * `end` on, which is before what `row` begins with. */
int segment_link(struct storage_ledger *l, const struct segment_row *row, const uint8_t before[STORAGE_KEY_BYTES],
                 int64_t end);
/* encode.c: whether this producer made the record of a row, or the one that was forgotten. 1, 0, or negative. */
int segment_made_by(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], const char *producer);
/* Inserts a row for a record that is durable in its pack. 0: done; 1: the key was there, the record is superfluous. */
int segment_insert(struct storage_ledger *l, const struct pack_record *r, const uint8_t *label, uint32_t pack,
                   uint64_t offset, uint64_t bytes);
/* The same for a record that is damaged: its row has no place, and keeps the chain together until it is stored anew. A
 * row that has one stays as it is. */
int segment_insert_forgotten(struct storage_ledger *l, const struct pack_record *r, const uint8_t *label, uint32_t pack,
                             uint64_t offset, uint64_t bytes);
/* Notes that its record lies elsewhere now; the old one is dropped. */
int segment_move(struct storage_ledger *l, const struct segment_row *row, uint32_t pack, uint64_t offset);
/* Holds key for the turn. What it held before is superseded: it goes when nobody else holds it, but not with this
 * transaction, which therefore need not be synced. 0; -ENOENT: no such turn. */
int segment_hold(struct storage_ledger *l, int64_t turn, const uint8_t key[STORAGE_KEY_BYTES]);
/* If what the turn holds reaches beyond `end`, it holds the nearest ancestor that does not, or nothing. */
int segment_hold_within(struct storage_ledger *l, int64_t turn, int64_t end);
/* What the turn holds. 1 found, 0 nothing, negative. */
int segment_held_by(struct storage_ledger *l, int64_t turn, uint8_t key[STORAGE_KEY_BYTES]);
/* Drops the segment and then its ancestors as far as nothing holds them; when the index is whole. */
int segment_release(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES]);
/* Forgets a damaged or missing one, if it is still at that place. */
int segment_forget(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack, uint64_t offset);
/* Drops least recently used leaves until `bytes` are free, but not those in `keep`, and so nothing before them. *freed
 * gets how many were. */
int segment_evict(struct storage_ledger *l, uint64_t bytes, const uint8_t (*keep)[STORAGE_KEY_BYTES], size_t n_keep,
                  uint64_t *freed);
/* The same of what one owner has. */
int segment_evict_of(struct storage_ledger *l, int64_t owner, uint64_t bytes, const uint8_t (*keep)[STORAGE_KEY_BYTES],
                     size_t n_keep);
/* Notes that it was used now. */
void segment_use(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES]);
/* Writes down the uses that wait. */
void segment_uses_write(struct storage_ledger *l);
/* Whether a row has no place: 1, 0 or negative. */
int segment_any_forgotten(struct storage_ledger *l);
/* Notes a record that is to be cut out, as an intent in the ledger. */
int segment_drop_record(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack,
                        uint64_t offset, uint64_t bytes);
/* Drops what was superseded, as far as nothing holds it. In a job that is synced. */
int segment_let_go(struct storage_ledger *l);
/* After the batch (rc). */
void segment_let_go_over(struct storage_ledger *l, int rc);
/* Takes this segment's row out of the index, if it lies at this place, without an intent. */
int segment_cut(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES], uint32_t pack, uint64_t offset);
/* Whether there is any row: 1, 0 or negative. */
int segment_any(struct storage_ledger *l);
/* Byte order; a head comes before what it is the head of. */
int segment_label_compare(const void *a, uint32_t a_bytes, const void *b, uint32_t b_bytes);
/* The clock of uses as the index knows it: it never goes back, and is written down now and then. */
int segments_clock(struct storage_ledger *l);
/* The background search: begins one, and does a piece of it. */
void segment_sweep_begin(struct storage_ledger *l, uint64_t clock);
int segment_sweep(struct storage_ledger *l, int rows);
/* A search of the whole index begins, up to the clock from before. */
int segment_sweep_all(struct storage_ledger *l);
/* recover.c. At open: carries out intents, takes in records behind each pack's known end, or with `rebuild`
 * leaves all of them to index_thread(). Sets the statistics and the active pack. -ESTALE: the ledger is another's;
 * nothing was changed. */
int segments_recover(struct storage_ledger *l, bool rebuild);
/* A power loss or a kill may have left the header of a record without all of its payload: 0, -EBADMSG, or why that
 * cannot be told. [any thread] */
int pack_record_whole(const struct storage *st, uint32_t pack, uint64_t offset, uint64_t bytes,
                      const struct pack_record *rec);
/* What is no record any more is found by no deletion, though it may have the tokens of one: it is overwritten, with
 * what lies next to it. The first begins with bytes 0; the second ends it. [any thread] */
void garbage_add(struct storage *st, struct place_of *g, uint32_t pack, uint64_t offset, uint64_t bytes);
void garbage_cut(struct storage *st, struct place_of *g);
/* A pack that cannot be read and has no records is nobody's: without a row it is not taken for one of ours that is
 * empty, from a start when it could be read. */
int pack_not_looked_after(struct storage_ledger *l, uint32_t pack);

/* ---- the index made anew (reindex.c) ------------------------------------------------------------------------------
 */
#define INDEX_CLOCK ((uint64_t)1 << 46) /* of uses, from here on: what is found in packs was used before */
/* At open: whether the index is whole; with `anew`: it knows none of the packs up to the newest. */
int reindex_begin(struct storage_ledger *l, bool anew, uint32_t newest);
/* The search behind gaps has seen everything. */
int reindex_gaps_over(struct storage_ledger *l);
/* Writes down what is not read yet. */
int reindex_note(struct storage_ledger *l);
/* Whether the index says what is not read yet: 1, 0 or negative. */
int reindex_noted(struct storage_ledger *l);
/* Whether this pack is not read to its end yet. */
bool reindex_has(const struct storage_ledger *l, uint32_t pack);
/* For the time when the index is whole: segment_release() and segment_hold_within(). */
int reindex_release_later(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES]);
int reindex_within_later(struct storage_ledger *l, int64_t turn, int64_t end);
void *index_thread(void *st);
/* Returns when the index is whole (0), or why it cannot be made so now. -ETIMEDOUT: it is not yet at `until_ms` of the
 * monotonic clock; 0 is never. */
int index_wait(struct storage *st, int64_t until_ms);

/* ---- room on the disk (room.c) -----------------------------------------------------------------------------------
 */
#define ROOM_LEDGER_BYTES ((uint64_t)8 << 20) /* that KV leaves free */
/* Before the databases are opened: makes the reserve, or gives it up. */
void room_open(struct storage *st);
/* Bytes that are free on the disk; without an answer plenty. [any thread] */
uint64_t room_free(const struct storage *st);
/* Whether KV of this size leaves the ledger its room. [any thread] */
bool room_for_kv(const struct storage *st, uint64_t bytes);
/* Whether an error says that the disk or a quota is full. */
bool room_is_full(int rc);
/* Between batches: lets KV go when little is free. */
void room_make(struct storage_ledger *l);

/* ---- titles in memory (titles.c); ledger thread only ---------------------------------------------------------------
 */
/* A listed conversation has this title (NULL: none) from now on, in a job. */
void titles_note(struct storage_ledger *l, int64_t owner, int64_t id, const char *title);
/* A conversation goes, in a job. */
void titles_forget(struct storage_ledger *l, int64_t owner, int64_t id);
/* Those that nobody asks for any more are given up; all of them are. */
void titles_idle(struct storage_ledger *l);
void titles_give_up(struct storage_ledger *l);

/* ---- limits (limits.c) ---------------------------------------------------------------------------------------------
 */
/* Lets KV of an owner go from the disk that has more of it than it may, but not `keep`. *ram gets what it may have in
 * RAM, 0: no limit. */
int limits_keep(struct storage_ledger *l, int64_t owner, const uint8_t (*keep)[STORAGE_KEY_BYTES], size_t n_keep,
                uint64_t *ram);
void limits_free(struct storage *st);

/* ---- which ledger (pair.c) ---------------------------------------------------------------------------------------
 */
/* Before ledger.db is opened, which would create it: 0; -ESTALE (err says how to go on): it is missing or empty beside
 * what belongs to one. */
int pair_before_open(struct storage *st, char *err, size_t err_size);
/* When both databases are open: -ESTALE: they, or with a new index the packs, do not belong together. */
int pair_settle(struct storage_ledger *l);
/* Writes the refusal ("ledger.db <what>, but ...") and returns -ESTALE. */
int pair_refuse(struct storage *st, const char *what, char *err, size_t err_size);

/* ---- queues -------------------------------------------------------------------------------------------------------
 */
struct job {
    struct job *next;
    struct storage_job job;
    int rc;
    /* When it is reported after what it took away is gone. */
    size_t n_drops;
    struct mark *marks; /* NULL: it deleted nothing for its owner */
    bool waits;         /* for these, too: */
    uint64_t cuts_back; /* what the cutter had when it was committed */
    int64_t since_ms;   /* that it waits, of the monotonic clock */
};

struct pin {
    uint32_t pack;
    uint64_t offset;
    unsigned count; /* reads that wait or run */
    bool doomed;    /* gone from the index: no new reads, cut out when count is 0 */
};

#define ENCODERS_MAX 4

struct write_op { /* a put or a commit, see encode.c */
    struct write_op *next;
    bool commit;
    enum { OP_RAW, OP_ENCODING, OP_READY } state; /* writer_lock guards it */
    uint64_t queued;                              /* bytes that it counts for in the queue */
    struct pack_record rec;
    void *label;
    struct storage_array *arrays;
    struct storage_layout layout;
    void *payload;
    size_t payload_bytes;
    void (*release)(void *payload); /* of it */
    bool split, keep;               /* as the segment says */
    /* When it is ready. */
    bool stored; /* it is there already */
    struct blob *blob;
    int rc; /* why there is none */
    /* Of a commit. */
    int64_t turn;                    /* 0: it is a flush, */
    uint8_t last[STORAGE_KEY_BYTES]; /* and what goes */
    int (*with)(struct storage_ledger *l, void *arg, int rc);
    void (*done)(void *arg, int rc);
    void *arg;
};
struct read_op;

struct worker { /* a thread of storage's own */
    struct storage *st;
    const char *name; /* told by top, at most 15 bytes */
    void *(*run)(void *st);
    pthread_t thread;
    bool started, over;
};

struct storage {
    struct storage_io io;
    int dirfd, lockfd;
    char *dir;
    void (*log)(void *arg, int priority, const char *text);
    void *log_arg;
    uint64_t disk_budget;
    bool reserved;        /* DIR/reserve holds room for the ledger; its thread's */
    atomic_bool room_hit; /* a write met a full disk or quota */

    struct storage_ledger ledger; /* the ledger thread's */
    struct packs packs;           /* the active pack is the writer's; io and dirfd are constant */
    bool evict_in_vain;           /* giving segments back did not make room on a full disk; the writer's */
    struct ram ram;

    struct worker ledger_worker, writer_worker, cutter_worker, index_worker, encoders[ENCODERS_MAX], *readers;
    int n_readers;
    pthread_mutex_t workers_lock; /* guards their `over` */
    pthread_cond_t workers_cond;

    pthread_mutex_t jobs_lock; /* guards the thirteen below */
    pthread_cond_t jobs_cond;
    struct job *jobs, **jobs_tail;
    bool jobs_stop;
    bool unpinned; /* a doomed record lost its last pin */
    bool sweep_done, sweep_wanted;
    uint64_t sweep_clock;        /* of the one that is wanted, or was last */
    bool index_stop, index_over; /* the index is whole */
    int index_rc;                /* why it cannot be made so now */
    struct cut *cut_results;
    struct backup *backup; /* under way */
    atomic_bool backup_stop;

    pthread_mutex_t cutter_lock; /* guards the queue */
    pthread_cond_t cutter_cond;
    struct cut *cuts, **cuts_tail;
    bool cutter_stop;

    pthread_mutex_t writer_lock; /* guards the queue and what its ops are in */
    pthread_cond_t writer_cond;
    struct write_op *writes, **writes_tail;
    uint64_t queue_bytes, queue_most;
    bool writer_stop;

    pthread_mutex_t reader_lock; /* guards the queue */
    pthread_cond_t reader_cond;
    struct read_op *reads, **reads_tail;
    bool reader_stop;

    pthread_mutex_t pin_lock; /* guards pins */
    struct pin *pins;
    size_t n_pins, cap_pins;

    pthread_mutex_t limits_lock; /* guards the three below */
    struct storage_limits limits;
    struct storage_owner_limits *owner_limits; /* names are ours */
    size_t n_owner_limits;

    atomic_uint_fast32_t oldest_open_pack; /* packs from here on may hold records that have no row yet */
    atomic_uint_fast64_t clock;            /* of uses, as the last batch left it */
    atomic_uint_fast64_t disk_dead;        /* of disk_used: space of packs in which nothing lies */
    atomic_uint_fast64_t disk_used, segments, pending_puts, raw_bytes, encoded_bytes, damaged, save_failures, save_us;
    atomic_bool kv_damaged; /* kv.db is to be rebuilt at the next open */
    atomic_bool moving;     /* records are being copied to another pack */
};

__attribute__((format(printf, 3, 4))) void storage_log(struct storage *st, int priority, const char *fmt, ...);
int64_t monotonic_ms(void);
void storage_mark_kv_damaged(struct storage *st); /* leaves a note that kv.db is to be made anew */
int directory_sync_name(int dirfd);               /* in the directory above, unless that cannot be read */
/* storage_open() with other file operations for packs. */
int storage_open_with(const struct storage_opts *opts, const struct storage_io *io, struct storage **out, char *err,
                      size_t err_size);

/* erase.c */
/* In a job that deletes something for its owner: it is told as being deleted until nothing of it is left, and the job
 * is reported then. */
int erase_mark(struct storage_ledger *l, int64_t owner, const char *public_id);
void erase_job_free(struct job *j);
/* After a commit: the batch's drops go to the cutter, or wait until the index can be written (kv_rc). */
void erase_drops(struct storage_ledger *l, int kv_rc);
/* What the cutter sent back; frees it. */
void erase_results(struct storage_ledger *l, struct cut *c);
/* Some reader has ended. */
void erase_unpinned(struct storage_ledger *l);
/* What failed is tried again when its time has come; when that is, 0: nothing waits. */
void erase_retry(struct storage_ledger *l);
int64_t erase_due_ms(const struct storage_ledger *l);
/* Empties the ledger's log when deletions have come to their end, and reports them. */
void erase_finish(struct storage_ledger *l);
/* Empties both logs. */
int erase_logs(struct storage_ledger *l);
/* Within a transaction: takes away intents that were carried out and marks of what is gone; after it (rc): forgets
 * them. */
int erase_marks_clear(struct storage_ledger *l);
void erase_marks_cleared(struct storage_ledger *l, int rc);
/* At open: marks and intents that are left from before. */
int erase_left(struct storage_ledger *l, const struct drop *drops, size_t n);
/* Reports all that is left as not finished. */
void erase_give_up(struct storage_ledger *l);
/* Overwrites a record that has no row; where that fails it is tried again, and its owner's deletions wait for it. It
 * counts in disk_used and among the segments until then. [any thread] */
void erase_record(struct storage *st, int64_t owner, const uint8_t key[STORAGE_KEY_BYTES], const struct place_of *at);
/* A pack without records that will get no more goes as a whole. */
void erase_pack(struct storage_ledger *l, uint32_t pack);
/* Space of a pack in which nothing lies stays in use until the pack goes as a whole. Counted in disk_used. */
void erase_dead(struct storage_ledger *l, uint32_t pack, uint64_t bytes);
#define DEAD_SLACK ((uint64_t)64 << 10) /* the file system's rounding, which does not count */
/* So many of these bytes are in use after all. */
void erase_dead_less(struct storage_ledger *l, uint32_t pack, uint64_t bytes);
/* The rest does not count, where it is no more than the slack, or with `all`. */
void erase_dead_settle(struct storage_ledger *l, uint32_t pack, bool all);
/* Deletions that are pending wait for all that the cutter has now. */
void erase_wait_for_cuts(struct storage_ledger *l);
void *cutter_thread(void *st);

/* jobs.c */
void *jobs_thread(void *st);
/* Waits until the cutter has nothing. Ledger thread, between batches. */
void jobs_cuts_wait(struct storage_ledger *l);
/* Runs fn, which writes the index, as a batch of its own. Ledger thread, between batches. */
int jobs_run_alone(struct storage_ledger *l, int (*run)(struct storage_ledger *l, void *arg));
/* Runs a job and waits for its report, which it gives; job.done is not called. Not from the ledger thread. */
int jobs_wait(struct storage *st, struct storage_job job);
/* The same of one that writes no index. */
int jobs_call(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), void *arg);
/* Returns when the background search has finished. */
void jobs_sweep_wait(struct storage *st);

/* encode.c */
void *encoder_thread(void *st);
void write_op_free(struct write_op *op);
/* So many bytes that were put are no longer in hand. */
void encode_over(struct storage *st, uint64_t bytes);

/* backup.c: takes a piece. Ledger thread, between batches. `stop`: it is given up. */
void backup_step(struct storage_ledger *l, struct backup *b, bool stop);

/* compact.c: empties the pack that keeps the most space in which nothing lies, so that it goes; `idle`: if that is more
 * than it uses. -ENOENT: none. KV writer. */
int compact(struct storage *st, bool idle);

/* writer.c, reader.c */
void *writer_thread(void *st);
void *reader_thread(void *st);
/* Pins a record for a read. -ENOENT: it is being cut out. */
int pin_take(struct storage *st, uint32_t pack, uint64_t offset);
void pin_release(struct storage *st, uint32_t pack, uint64_t offset);
bool pin_held(struct storage *st, uint32_t pack, uint64_t offset);
/* Marks a record that left the index. True: nobody reads it, it can be cut out now. */
bool pin_doom(struct storage *st, uint32_t pack, uint64_t offset);

/* codec.c */
/* Whether an encoded payload is as it was written, by its checksums: 0 or -EBADMSG. */
int codec_verify(const void *encoded, size_t n);
/* Of an encoded payload of this layout, in two steps: its head, by its checksum, and then one array after the other, in
 * any order and by any thread, by theirs: 0, -EBADMSG, -EINVAL (the layout), -ENOMEM. `rows` holds the array's count *
 * channels elements. */
int codec_check(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n);
int codec_decode_one(const struct storage_layout *layout, uint32_t count, const void *encoded, uint32_t array,
                     void *rows);
/* Bytes of a payload; 0: the layout or count is out of range. */
size_t codec_payload_bytes(const struct storage_layout *layout, uint32_t count);

#endif

/* storage.h - what convod keeps: the ledger (owners, conversations, turns) and encoded KV segments.
 *
 * The ledger is the truth and lives in ledger.db (SQLite, WAL, synchronous=FULL). KV segments are a cache: encoded
 * blobs in append-only pack files, a RAM tier in front of them, and kv.db (WAL, NORMAL) as their index. Storage handles
 * keys and bytes; what a tensor or a token is it does not know.
 *
 * Threads. Storage owns these kinds:
 *   - the ledger thread, the only one that owns SQLite write connections. It runs jobs (storage_submit) in order, as
 * many as are waiting in one transaction, and reports them after the commit (group commit);
 *   - KV encoders and the KV writer: encode segments, append them to packs and sync, in order of submission;
 *   - KV readers: read segments, and verify and decode them where that is asked for.
 * Functions marked [any thread] only take a lock for moments and never touch the disk. Functions that take a
 * `struct storage_ledger *` may be called from inside a job only. `done` callbacks run on a storage thread and must be
 * brief: hand the result to the thread that waits for it.
 *
 * Errors: 0 or a negative errno value. -EBADMSG: damaged; -ENOENT: no such row; -ENOSPC, -EIO as the system says.
 */
#ifndef CONVOD_STORAGE_H
#define CONVOD_STORAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct storage;
struct storage_ledger;

struct storage_opts {
    const char *dir;                                        /* created with mode 0700 when missing */
    size_t ram_bytes;                                       /* budget of the RAM tier (encoded bytes); 0 = 256 MiB */
    uint64_t disk_bytes;                                    /* budget of the packs; 0 = half of what is free at start */
    int readers;                                            /* KV reader threads; 0 = 2 */
    bool existing;                                          /* -ENOENT: there is no ledger; nothing is made */
    void (*log)(void *arg, int priority, const char *text); /* syslog priorities; may be NULL; any storage thread */
    void *log_arg;
};

/* Opens a data directory and starts the threads. -EBUSY: another process holds it (err says its pid); -EPROTO: it was
 * written by a newer version; -EBADMSG: the ledger is damaged; -ESTALE: it is missing or not the one that the index and
 * the packs belong to (err says how to go on). A missing, damaged or unreadable kv.db is rebuilt from
 * the packs, as far as they can be read, while it is in use. */
int storage_open(const struct storage_opts *opts, struct storage **out, char *err, size_t err_size);

/* Finishes what was submitted, syncs, stops the threads and frees. NULL is fine. */
void storage_close(struct storage *st);
/* The same, but for so long at most. False: something still runs, as a sync that the disk does not answer. Then nothing
 * is freed, callbacks may still come, and the process is to end; what was not finished is as after a crash. */
bool storage_close_within(struct storage *st, int ms);

/* Copies the ledger to the folder `to`, which is made or has none yet, while others go on; with_kv: the packs too. Not
 * from a callback. -EEXIST: there is one, or packs of none; -EBUSY: another backup runs; -ESHUTDOWN:
 * storage_backup_stop(). */
int storage_backup(struct storage *st, const char *to, bool with_kv, char *err, size_t err_size);
/* [any thread] One that runs, and all that come, end soon with -ESHUTDOWN. */
void storage_backup_stop(struct storage *st);

/* Checks every row and every record, as they are found when the directory is opened: report() gets a line for each
 * thing that is wrong. With `repair`, an index that is wrong is made anew, and then damaged records are forgotten, so
 * that they are stored anew. 0: *wrong gets the number of lines. As storage_open() of what exists where it cannot be
 * opened. */
struct storage_checked {
    uint64_t conversations, turns, segments; /* that were looked at */
    uint64_t not_stored;                     /* turns whose KV is not there: it will be computed again */
    uint64_t wrong;
};
int storage_verify(const struct storage_opts *opts, bool repair, void (*report)(void *arg, const char *text), void *arg,
                   struct storage_checked *out, char *err, size_t err_size);

/* ---- jobs on the ledger thread --------------------------------------------------------------------------------- */

struct storage_job {
    int (*run)(struct storage_ledger *l, void *arg); /* negative: this job's writes are rolled back, others' stay */
    void (*done)(void *arg,
                 int rc); /* after the commit: 0, run's negative result, or why the commit failed. May be NULL */
    void *arg;
    bool unsynced; /* what it writes outlives the process, and may be lost with the power: no sync for it alone */
    bool reads;    /* it changes nothing; that it found segments is written down with what is written next */
    bool
        index; /* it writes the index of segments and fails where that cannot be; what others write there may be lost */
    bool erases; /* it is reported when what it took out of the index is overwritten on the disk, too */
};

/* [any thread] Queues a job. -ENOMEM: not queued, done is not called. */
int storage_submit(struct storage *st, struct storage_job job);

/* ---- limits of owners -------------------------------------------------------------------------------------------- */

/* 0: there is none. */
struct storage_limits {
    uint64_t conversations, ledger_bytes; /* whoever has as much can add no more: see storage_usage() */
    uint64_t disk_bytes; /* of compressed KV on disk: what was used longest ago gives way, but for what a turn has just
                            stored */
    uint64_t ram_bytes;  /* of copies of it in RAM; looked at when a turn is saved */
    uint64_t kv_bytes;   /* of KV that somebody else keeps uncompressed: only noted here */
    int64_t retain_ms;   /* how long a conversation that nobody uses is kept */
};
struct storage_owner_limits {
    const char *owner; /* "NAME"; those of its users, "NAME/USER", too, each for itself */
    struct storage_limits limits;
};
/* [any thread] From now on these hold: for the owners in the rows (the first that fits), and for everyone else. Copied.
 * -ENOMEM: those from before do. */
int storage_limits_set(struct storage *st, const struct storage_limits *everyone,
                       const struct storage_owner_limits *rows, size_t n);
/* [any thread] */
struct storage_limits storage_limits_of(struct storage *st, const char *owner);
/* [any thread] Whether anyone's conversations end by their age. */
bool storage_limits_retain(struct storage *st);

/* What an owner has: conversations of all kinds; bytes of the items and tokens of its turns, of their instructions,
 * params and requests, and of the conversations' titles, metadata and instructions; of compressed KV on disk, and in
 * RAM. */
struct storage_usage {
    uint64_t conversations, ledger_bytes, disk_bytes, ram_bytes;
};
int storage_usage(struct storage_ledger *l, int64_t owner, struct storage_usage *out);

/* ---- ledger rows ------------------------------------------------------------------------------------------------ */
/* Strings are terminated UTF-8. Rows that are read own their memory: free with the matching _free function. Times are
 * milliseconds since the epoch. Row ids are positive; 0 = none. `public_id` is what clients see ("conv_…", "resp_…").
 */

struct storage_owner {
    int64_t id;
    uint8_t key[32]; /* random; keys of this owner's segments are made with it */
};
/* Finds the owner by name or creates one. */
int storage_owner_get(struct storage_ledger *l, const char *name, struct storage_owner *out);
/* Gives all that an owner has, KV and keys included, to a name that has nothing yet: once for each `why` (up to 31
 * letters), whatever comes of it. 0 or 1: it was done, or `why` was used before; *outcome, of what is done: 0, -ENOENT
 * (there is no such owner) or -EEXIST (the new name has conversations, responses or keys of its own). */
int storage_owner_rename(struct storage_ledger *l, const char *from, const char *to, const char *why, int *outcome);

enum storage_conversation_kind {
    STORAGE_CONVERSATION_LISTED = 0,   /* made by /v1/conversations */
    STORAGE_CONVERSATION_CHAIN = 1,    /* grew from responses without a conversation */
    STORAGE_CONVERSATION_STATELESS = 2 /* grew from chat completions */
};

struct storage_conversation {
    int64_t id;
    int64_t owner;
    char *public_id;
    enum storage_conversation_kind kind;
    char *title;        /* may be NULL */
    char *metadata;     /* JSON object text, may be NULL */
    char *instructions; /* may be NULL */
    int64_t head;       /* turn that the next one follows; 0 = none */
    int64_t created_ms, updated_ms;
    int64_t n_turns;  /* out: turns of the conversation, all branches; those up to its head where that was moved, and
                         what came since; at least those up to its head where others were deleted then */
    int64_t n_tokens; /* out: tokens up to and with the head */
};
void storage_conversation_free(struct storage_conversation *c);

/* Inserts; c->id is set. -EEXIST: public_id is taken. */
int storage_conversation_insert(struct storage_ledger *l, struct storage_conversation *c);
/* By public id. Another owner's conversation is -ENOENT. */
int storage_conversation_get(struct storage_ledger *l, int64_t owner, const char *public_id,
                             struct storage_conversation *out);
/* By row id. */
int storage_conversation_by_id(struct storage_ledger *l, int64_t owner, int64_t id, struct storage_conversation *out);
/* Writes title, metadata, instructions, updated_ms and head of row c->id; with another head n_turns becomes its depth.
 */
int storage_conversation_update(struct storage_ledger *l, const struct storage_conversation *c);
/* Whether a turn of it is queued or running: 1, 0, or negative. */
int storage_conversation_runs(struct storage_ledger *l, int64_t id);
/* Of its turns that have ended and not failed the one with most before it: *turn, and which one it is, from 1. -ENOENT.
 */
int storage_conversation_deepest(struct storage_ledger *l, int64_t id, int64_t *turn, int64_t *depth);
/* Deletes the conversation, its turns and their holds on segments; segments that nothing holds any more are deleted
 * from disk and RAM (an intent is committed first, so that a crash cannot leave half of it). -ENOENT. The job is
 * reported when nothing of it can be read on the disk; with -EINPROGRESS when that failed and is tried again. */
int storage_conversation_delete(struct storage_ledger *l, int64_t owner, const char *public_id);

/* Whether a conversation or turn is gone for its owner, but something of it may still be readable on the disk: 1, 0 or
 * negative. */
int storage_deleting(struct storage_ledger *l, int64_t owner, const char *public_id);

#define STORAGE_EXPIRED_OWNERS 1000 /* that one look goes through */
/* A conversation that was used last longer ago than its owner's limit says (storage_limits), at wall clock `now_ms`:
 * its owner's name and its id, malloc'd. A look begins where the one before found something or ended: -EAGAIN: there is
 * none of the owners it went through, and there are more; -ENOENT: nor of those up to the last one. The next begins
 * with the first. */
int storage_conversation_expired(struct storage_ledger *l, int64_t now_ms, char **owner, char **public_id);
/* Conversations that were used last between these by a wall clock that was so much behind were used so much later. */
int storage_conversations_younger(struct storage_ledger *l, int64_t from_ms, int64_t to_ms, int64_t by_ms);

/* Where a list of conversations goes on: behind this row. */
struct storage_cursor {
    int64_t updated_ms, id;
};
/* Behind the conversation with this public id; NULL: at the beginning. -ENOENT. */
int storage_conversation_cursor(struct storage_ledger *l, int64_t owner, const char *after, struct storage_cursor *out);
/* Title, metadata and instructions of one, which may be long. */
size_t storage_conversation_bytes(const struct storage_conversation *c);
/* A list ends with the row by which it has so many of them, however many it may have. */
#define STORAGE_LIST_BYTES ((size_t)4 << 20)
/* Listed conversations of an owner, latest update first, behind the cursor. Writes up to max rows, *n gets their
 * number. */
int storage_conversation_list(struct storage_ledger *l, int64_t owner, struct storage_cursor at,
                              struct storage_conversation *rows, size_t max, size_t *n);
/* The same of those whose titles contain `query`, ignoring the case of ASCII letters. One call reads some
 * thousand titles, at the owner's first search, or looks at some thousand rows, so that nobody's transaction waits long
 * for it, and moves the cursor: it is called again, in another job, until *over. */
int storage_conversation_search(struct storage_ledger *l, int64_t owner, struct storage_cursor *at, const char *query,
                                struct storage_conversation *rows, size_t max, size_t *n, bool *over);

/* A turn has a row from the moment it is accepted. QUEUED and RUNNING ones become COMPLETED or INCOMPLETE with
 * storage_turn_commit(), or FAILED. Only the first two are on a path, can be followed, matched and counted, and hold
 * segments. */
enum storage_turn_status {
    STORAGE_TURN_COMPLETED = 0,
    STORAGE_TURN_INCOMPLETE = 1,
    STORAGE_TURN_FAILED = 2,
    STORAGE_TURN_RUNNING = 3,
    STORAGE_TURN_QUEUED = 4,
};
/* What became of a turn's KV. */
enum storage_saved {
    STORAGE_SAVED_OFF = 0,
    STORAGE_SAVED_PENDING = 1,
    STORAGE_SAVED_YES = 2,
    STORAGE_SAVED_FAILED = 3
};

/* What a turn was asked with, or answered: one item of the API's lists. */
struct storage_item {
    int64_t turn;
    int place; /* among its turn's items, from 0 */
    bool output;
    char *public_id; /* "msg_…" */
    char *kind;      /* "message", "function_call", ...; "tools": definitions, which are in none of the lists below */
    char *role;      /* "user", "assistant", "system"; may be NULL */
    bool incomplete; /* it was cut */
    int64_t created_ms;
    char *text;                           /* may be NULL */
    char *body;                           /* JSON object: what the API shows beside that; may be NULL */
    char *turn_id;                        /* out, of a page: its turn's public id */
    enum storage_turn_status turn_status; /* out, of a page */
};
/* Frees n rows and the array. NULL is fine. */
void storage_items_free(struct storage_item *items, size_t n);

#define STORAGE_DIGEST_BYTES 32

struct storage_turn {
    int64_t id;
    int64_t owner, conversation;
    int64_t parent; /* 0: the conversation's first */
    char *public_id;
    enum storage_turn_status status;
    int depth;    /* out: 1 = the first on its branch */
    char *reason; /* why it is incomplete or failed ("max_output_tokens"), or the stop string that ended it; or NULL */
    char *instructions;                   /* in force for this turn, may be NULL */
    char *params;                         /* JSON object: request parameters to echo; may be NULL */
    char *request;                        /* of a QUEUED one: what it takes to run it; opaque text */
    uint8_t digest[STORAGE_DIGEST_BYTES]; /* insert: of the request, for retries without a key; zero = none */
    struct storage_item *items;           /* insert: the input; commit: the output, added; out: all, where asked for */
    size_t n_items;
    /* From here on: of a committed one. */
    bool answered; /* false: it took messages in and gave no answer */
    void *tokens;  /* those that this turn added to its parent's context (opaque bytes); out: where asked for */
    size_t tokens_bytes;
    size_t prompt_bytes; /* of those, the ones before the answer */
    bool rebased;        /* tokens hold the whole context, not what was added to the parent's (instructions changed) */
    bool unstored;       /* insert, commit: what it follows is in no row, and of its context, which is in its tokens, no
                            items tell all; it has no parent */
    int64_t base;        /* row whose context they were added to, where that is not the parent: one of
                            storage_turn_strip(); 0: it is */
    int64_t strips;      /* of such a row: the turn whose context it is without thinking; 0: it is a turn */
    int64_t n_tokens;    /* tokens of the whole context at the end of this turn */
    int64_t evaluated;   /* of those, tokens that have been through the model */
    uint8_t fingerprint[32]; /* model that the tokens belong to */
    uint8_t chat_hash[32];   /* hash over the messages up to this answer, for matching; all zero = none */
    char *kv;                /* of the KV that was computed, as text: begins with its fingerprint */
    char *receipt;           /* JSON object without "saved" */
    enum storage_saved saved;
    int input_tokens, cached_tokens, output_tokens;
    bool delivered; /* out: the peer has acknowledged every byte of the answer */
    int64_t age_ms; /* out: running time since it was accepted */
    int64_t created_ms, completed_ms;
};
void storage_turn_free(struct storage_turn *t);
/* Frees n rows and the array. */
void storage_turns_free(struct storage_turn *rows, size_t n);

/* Inserts a RUNNING or QUEUED turn with its input; t->id is set. -ENOENT: the conversation or the parent is gone;
 * -EEXIST: public_id is taken. */
int storage_turn_insert(struct storage_ledger *l, struct storage_turn *t);
/* A QUEUED turn runs from now on. -ENOENT: there is none. */
int storage_turn_run(struct storage_ledger *l, int64_t id);
/* Ends row t->id as t->status, COMPLETED or INCOMPLETE, with its tokens and output, and makes it the head of its
 * conversation, whose row id t->conversation gets. -ENOENT: the row is gone. */
int storage_turn_commit(struct storage_ledger *l, struct storage_turn *t);
/* Ends it as FAILED; its input stays. -ENOENT: the row is gone. */
int storage_turn_fail(struct storage_ledger *l, int64_t id, const char *reason, int64_t completed_ms);
/* The first QUEUED turn behind row `after`: *id, and malloc'd copies of its owner's name, public id and request.
 * -ENOENT: none. */
int storage_turn_queued(struct storage_ledger *l, int64_t after, int64_t *id, char **owner, char **public_id,
                        char **request);

enum storage_turn_parts { STORAGE_TURN_TOKENS = 1, STORAGE_TURN_ITEMS = 2 };
/* parts: what is read beside the row. */
int storage_turn_get(struct storage_ledger *l, int64_t owner, const char *public_id, unsigned parts,
                     struct storage_turn *out);
/* By row id. */
int storage_turn_by_id(struct storage_ledger *l, int64_t owner, int64_t id, unsigned parts, struct storage_turn *out);
/* The owner's latest turn with this digest that is older than row `before` (INT64_MAX: the latest). -ENOENT. */
int storage_turn_by_digest(struct storage_ledger *l, int64_t owner, const uint8_t digest[STORAGE_DIGEST_BYTES],
                           int64_t before, struct storage_turn *out);
/* The public id of turn `id` (malloc'd). -ENOENT. */
int storage_turn_public_id(struct storage_ledger *l, int64_t id, char **out);
/* -ENOENT: there is no such turn (any more). */
int storage_turn_set_saved(struct storage_ledger *l, int64_t id, enum storage_saved saved);
int storage_turn_set_delivered(struct storage_ledger *l, int64_t owner, const char *public_id);
/* The context at the end of turn t->strips, without the thinking of its answer and those before it, is a row that is
 * followed by `base` alone, and goes with that turn. Of t the owner, public id, base or `rebased`, tokens, n_tokens,
 * evaluated, fingerprint, kv, saved and completed_ms are written; t->id and t->conversation are set. -ENOENT: the turn
 * is gone; -EEXIST: there is one. */
int storage_turn_strip(struct storage_ledger *l, struct storage_turn *t);
/* The row that a turn's tokens are added to: its parent's, or that of the parent's context without thinking. 0: none.
 */
int64_t storage_turn_base(const struct storage_turn *t);
/* What a turn follows (0: nothing), and whether its context was rendered anew. -ENOENT. */
int storage_turn_parent(struct storage_ledger *l, int64_t owner, int64_t id, int64_t *parent, bool *rebased);
/* That row. -ENOENT: there is none. */
int storage_turn_stripped(struct storage_ledger *l, int64_t owner, int64_t turn, struct storage_turn *out);
/* 1: the KV of a turn's whole context is stored, as far as that has been through the model; 0: it is not; or negative.
 */
int storage_turn_is_held(struct storage_ledger *l, const struct storage_turn *t);
/* The turns from the first to `turn`, in order, by following parents. *rows of *n: storage_turns_free(). */
int storage_turn_path(struct storage_ledger *l, int64_t owner, int64_t turn, unsigned parts, struct storage_turn **rows,
                      size_t *n);
/* The tokens of the context at the end of `turn`, whatever its length in one query: *tokens (malloc'd) of *bytes. */
int storage_turn_context(struct storage_ledger *l, int64_t owner, int64_t turn, void **tokens, size_t *bytes);
/* The text of the item of kind "tools" in the context at the end of `turn`: *text (malloc'd), NULL: there is none. Such
 * items are in turns without a parent, and in those that were rendered anew. */
int storage_turn_tools(struct storage_ledger *l, int64_t owner, int64_t turn, char **text);
/* The latest turn of the owner with this chat_hash and fingerprint. *turn, *conversation get row ids. -ENOENT. */
int storage_turn_match(struct storage_ledger *l, int64_t owner, const uint8_t chat_hash[32],
                       const uint8_t fingerprint[32], int64_t *turn, int64_t *conversation);
/* 1: no turn follows this one (those that failed do not count); 0: one does, or negative. */
int storage_turn_is_leaf(struct storage_ledger *l, int64_t id);
/* Deletes one turn that has no children (else -EBUSY); the conversation's head moves to its parent. Segments that reach
 * beyond the parent are held by none of the turns before it afterwards. A conversation that grew from turns goes with
 * its last one. */
int storage_turn_delete(struct storage_ledger *l, int64_t owner, const char *public_id);
/* The same by row id for a turn whose place is taken by another one: not a deletion that its owner asked for. */
int storage_turn_replace(struct storage_ledger *l, int64_t owner, int64_t id);

/* A page of a conversation's turns of all branches, oldest first, after row `after` (0: from the first), with their
 * items. At most `max` in *rows (malloc'd): storage_turns_free(). */
int storage_turns_page(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t after, size_t max,
                       struct storage_turn **rows, size_t *n);
/* An item of that path, as storage_items_page() gives it. -ENOENT. */
int storage_item_get(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t head, const char *public_id,
                     struct storage_item **row);
/* An item of the owner's, wherever it is: *row (malloc'd), storage_items_free(). -ENOENT. */
int storage_item_find(struct storage_ledger *l, int64_t owner, const char *public_id, struct storage_item **row);
/* A page of the items on the path to turn `head` (0: none) of a conversation, and of turns that wait, run or have
 * failed behind it, in order or, with `descending`, from the last one back; after the item with public id `after`
 * (NULL: from the end that is first). At most `max` rows in *rows (malloc'd): storage_items_free(). -ENOENT: no such
 * item. */
int storage_items_page(struct storage_ledger *l, int64_t owner, int64_t conversation, int64_t head, bool descending,
                       const char *after, size_t max, struct storage_item **rows, size_t *n);

/* ---- keys of requests ---- */

#define STORAGE_KEY_KEPT_MS    (15 * 60 * 1000) /* of running time */
#define STORAGE_KEYS_PER_OWNER 4096

/* What a request key made: *target (malloc'd) is the public id. -ENOENT: not used in the last STORAGE_KEY_KEPT_MS of
 * running time; -EINVAL: used with another digest. The key is told apart by its bytes. */
int storage_key_get(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_DIGEST_BYTES],
                    const uint8_t digest[STORAGE_DIGEST_BYTES], char **target);
/* Notes it, in place of an older one. -EKEYREJECTED: it was used with another digest; -EUSERS: the owner has
 * STORAGE_KEYS_PER_OWNER. */
int storage_key_set(struct storage_ledger *l, int64_t owner, const uint8_t key[STORAGE_DIGEST_BYTES],
                    const uint8_t digest[STORAGE_DIGEST_BYTES], const char *target);
/* Forgets the keys that made `target`. 0 or negative. */
int storage_key_drop(struct storage_ledger *l, int64_t owner, const char *target);

/* ---- segments ---------------------------------------------------------------------------------------------------- */

#define STORAGE_KEY_BYTES 32

struct storage_segment {
    uint8_t key[STORAGE_KEY_BYTES];
    uint8_t parent[STORAGE_KEY_BYTES]; /* all zero: the first of its chain */
    uint8_t fingerprint[32];
    int64_t owner;
    uint32_t first, count; /* units (tokens) it covers: [first, first + count) */
    const void *label;     /* what identifies its content among its siblings (the token ids), label_bytes */
    uint32_t label_bytes;
    char producer[24];              /* numerics that it was computed with, terminated; they are not in the key */
    bool keep;                      /* what another producer made stays, rather than being replaced */
    bool split;                     /* the payload is in its split form (storage_split_bytes()) */
    void (*release)(void *payload); /* NULL: free() */
};

/* One array of a segment's payload: count x channels elements of 16 bits. */
struct storage_array {
    uint32_t channels;
    bool channel_major; /* [channels][count]; else [count][channels] */
};
enum storage_element { STORAGE_BF16, STORAGE_F16 };
struct storage_layout {
    enum storage_element element;
    const struct storage_array *arrays; /* payload = these one after the other, without padding */
    uint32_t n_arrays;
};

/* Takes a segment for saving: copies the description, takes over `payload` (released, by any thread, when encoded or on
 * failure), encodes it, keeps it in the RAM tier and appends it to a pack. It can be found after the
 * storage_kv_commit() that follows it. A put of a key that is stored already is a no-op, unless another producer made
 * that: it is replaced. [any
 * thread] -ENOMEM; -ENOBUFS: too much waits to be saved, put it again later: nothing was taken (payload released). */
int storage_segment_put(struct storage *st, const struct storage_segment *s, const struct storage_layout *layout,
                        void *payload);

/* Makes everything put so far durable (one fdatasync per touched pack), then writes the rows, and holds `last` (the end
 * of a chain; its ancestors live as long as it does; all zero: nothing any more) for the turn. The chain counts as used
 * now, and making room for what was put evicts nothing of it. done gets 0 or why some of the chain could not be
 * saved; then those segments stay in RAM only.
 * -ESTALE: the chain has a gap, because a segment of it was not saved by an earlier commit, or is stored no longer.
 * What was put behind a gap is not saved, and the turn holds the nearest ancestor before it (or, where it is not known
 * what was before it, what there is). Put the chain's segments again, parents first, those that are stored cost
 * nothing; the next commit then holds its end.
 * `with` (may be NULL) runs in the same transaction behind that, with what done will get unless the transaction fails;
 * its own failure undoes all of it. Where the turn has gone nothing is held, what was put for it goes, and `with` runs.
 * [any thread] */
int storage_kv_commit(struct storage *st, int64_t turn, const uint8_t last[STORAGE_KEY_BYTES],
                      int (*with)(struct storage_ledger *l, void *arg, int rc), void (*done)(void *arg, int rc),
                      void *arg);
/* Makes everything put so far durable and writes the rows; no turn holds it yet, and storage_sweep() passes it over as
 * long as a turn runs that may. Of the chain that ends with `drop` (all zero: nothing) goes what no turn holds. done
 * (may be NULL) gets 0 or why that could not be written. [any thread] */
int storage_kv_flush(struct storage *st, const uint8_t drop[STORAGE_KEY_BYTES], void (*done)(void *arg, int rc),
                     void *arg);
/* Makes the turns that `turn` follows hold a segment instead of what they held: those whose contexts are longer than
 * `tokens`, back to the last one that was rendered anew. What they held goes when nobody else holds it. */
int storage_turns_hold(struct storage_ledger *l, int64_t turn, int64_t tokens, const uint8_t key[STORAGE_KEY_BYTES]);
/* Turns to[0..n) have the same contexts as from[0..n), the rows of a path: they hold what the last one of these has of
 * them, and so nothing that was said beside or behind it. Where the KV of one is still being saved its copy's `saved`
 * says whether that is all. */
int storage_turns_hold_as(struct storage_ledger *l, const struct storage_turn *from, const int64_t *to, size_t n);
/* Of the chain that ends with `last` goes what no turn holds. */
int storage_segment_drop(struct storage_ledger *l, const uint8_t last[STORAGE_KEY_BYTES]);

/* A segment found in the index. */
#define STORAGE_PACK_NONE UINT32_MAX /* of what is on no disk: it is in RAM, or was lost */
struct storage_found {
    uint8_t key[STORAGE_KEY_BYTES];
    uint32_t first, count;
    void *label; /* malloc'd, the caller frees */
    uint32_t label_bytes;
    uint64_t encoded_bytes;
    uint32_t pack; /* where it lies; for storage_segment_read */
    uint64_t offset;
    char producer[24];
};
/* Of the children of `parent` (all zero: first segments) of this owner and fingerprint up to two that begin as `label`
 * does: one that has the longest head in common with it is among them, and counts as used now. (Once in some ten
 * thousands that one may be missing, where another one has a little less.) A label that cannot be read is told as what
 * it should be; the segment cannot be read then either. *n gets 0..2. */
int storage_segment_nearest(struct storage_ledger *l, int64_t owner, const uint8_t fingerprint[32],
                            const uint8_t parent[STORAGE_KEY_BYTES], const void *label, uint32_t label_bytes,
                            struct storage_found rows[2], size_t *n);
/* Whether the segment with this key is lost while others behind it are there: 1, 0 or negative. Those are its children,
 * as if it were there, and it is stored anew like any other. Before it others may be missing of which this knows
 * nothing. NULL: whether any is lost. */
int storage_segment_lost(struct storage_ledger *l, const uint8_t key[STORAGE_KEY_BYTES]);

enum storage_tier { STORAGE_TIER_RAM, STORAGE_TIER_DISK };
/* A segment as it is stored: its record, in memory. */
struct storage_stored;
struct storage_read_result {
    int rc;                        /* 0; -ENOENT: gone; -EBADMSG: damaged (header, checksum or content); -EIO */
    enum storage_tier tier;        /* where it came from */
    uint64_t bytes_read;           /* from disk */
    struct storage_stored *stored; /* where no payload was given: the caller's; NULL after an error */
};
/* Reads a segment, verifies it against the description (key, fingerprint, layout, range), and decodes it into payload
 * (count * sum of channels * 2 bytes; contents undefined after an error). One that is damaged, or that the disk cannot
 * read, is forgotten (row and RAM), so that a later put can store it anew. With payload NULL it is handed over as it
 * is, and its arrays are verified when they are decoded: one that turns out to be damaged is read again, with a
 * payload, so that it is forgotten, or comes from another tier. done is called exactly once. The segment cannot be
 * dropped meanwhile. [any thread] -EINVAL: the layout; -ENOMEM: done is not called. */
int storage_segment_read(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                         const struct storage_layout *layout, void *payload,
                         void (*done)(void *arg, struct storage_read_result result), void *arg);
/* The same of what is in RAM, as it is, at once. -ENOENT: it is not there; -EBADMSG: that copy is damaged (then, too,
 * it is to be read); -EINVAL; -ENOMEM. [any thread] */
int storage_segment_take(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                         const struct storage_layout *layout, struct storage_read_result *out);
/* Verifies and decodes one array of the layout into rows (count * channels elements; undefined after an error). 0,
 * -EBADMSG, -EINVAL (no such array), -ENOMEM. [any thread, several at once] */
int storage_stored_decode(const struct storage_stored *g, uint32_t array, void *rows);
/* NULL is fine. [any thread, also when the storage has been closed] */
void storage_stored_free(struct storage_stored *g);

/* As storage_segment_read() with a payload, into memory of storage_split_bytes(). */
int storage_segment_read_split(struct storage *st, const struct storage_found *s, const uint8_t fingerprint[32],
                               const struct storage_layout *layout, void *split,
                               void (*done)(void *arg, struct storage_read_result result), void *arg);

/* Whether the index is being made anew: a segment that is not found may be there all the same. */
bool storage_indexing(const struct storage_ledger *l);

/* A clock that counts uses of segments. What is found or put from now on is used later. [any thread] */
uint64_t storage_clock(struct storage *st);
/* Segments that no turn holds are dropped in the background, as far as they were used last at this clock or before: it
 * is the one from before the oldest turn that still runs or is being saved. [any thread] */
void storage_sweep(struct storage *st, uint64_t clock);

/* Drops RAM copies of segments that are on disk. keys == NULL: all. [any thread] */
void storage_ram_drop(struct storage *st, const uint8_t (*keys)[STORAGE_KEY_BYTES], size_t n);

struct storage_stats {
    size_t ram_used, ram_budget;
    uint64_t disk_used, disk_budget; /* packs, holes not counted */
    uint64_t segments;
    uint64_t pending_puts;             /* taken, not yet durable */
    uint64_t raw_bytes, encoded_bytes; /* of all segments encoded since start */
    uint64_t damaged, save_failures;   /* since start */
    uint64_t save_us;                  /* that the writer spent on encoding and writing since start */
};
/* [any thread] */
void storage_stats(struct storage *st, struct storage_stats *out);

/* ---- codec (used by the threads above; public for its tests, fuzzers and benchmark) ---------------------------------
 */

/* Largest encoded size for a payload of `count` units. 0 on overflow. */
size_t storage_codec_bound(const struct storage_layout *layout, uint32_t count);
/* Encodes; returns the size (at most the bound) or a negative errno value. Lossless for any bit patterns. [any thread]
 */
int64_t storage_codec_encode(const struct storage_layout *layout, uint32_t count, const void *payload, void *out,
                             size_t out_size);
/* Decodes exactly n bytes. -EBADMSG when they are not a well-formed encoding of this layout and count; never reads or
 * writes outside the buffers whatever the bytes are. [any thread] */
int storage_codec_decode(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n,
                         void *payload);

/* The split form of a payload: what encoding makes of it before LZ4, which a device may do in its place (kernels.h,
 * kv_export_split), and decoding undoes behind it. Encoded from either the bytes are the same. Arrays one after the
 * other; each has these parts, that begin at multiples of 16 bytes (blocks: of 64 elements, the last one filled up):
 *
 *   bytes               of an array
 *   64                  1: planes; 0: the array as it is stands where level 0 does, and nothing else counts
 *                       from 4 on d of each rank (12), then elements at levels 1, 2, 3, and escapes (4 bytes each)
 *   channels + 64       largest exponents; room
 *   16 blocks           level 0
 *   24 blocks           f16: the rest's further planes
 *   8 blocks + 16, x 6  levels 1, 2, 3: low and high bit strings, zero behind their ends
 *   64 blocks           escapes
 *   64 blocks           the rest
 */
size_t storage_split_bytes(const struct storage_layout *layout, uint32_t count); /* 0: out of range */
/* Whether all elements are finite, of a form that was made from a payload. */
bool storage_split_finite(const struct storage_layout *layout, uint32_t count, const void *split);
/* As storage_codec_encode(); what is in `split` is changed. -EBADMSG: it is not of this layout; -ENOMEM. [any thread]
 */
int64_t storage_split_encode(const struct storage_layout *layout, uint32_t count, void *split, void *out,
                             size_t out_size);
/* As storage_codec_decode(): it takes the same bytes, and gives what makes the same payload. [any thread] */
int storage_split_decode(const struct storage_layout *layout, uint32_t count, const void *encoded, size_t n,
                         void *split);

#endif

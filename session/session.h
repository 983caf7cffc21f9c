/* session.h - conversations: turns, the token ledger, and where each conversation's KV is.
 *
 * A session runs turns on the engine: it finds what of a conversation's context is already in pages (hot), in encoded
 * segments in RAM or on disk, restores that, prefills only what is new, samples the answer, and commits the turn. It
 * writes segments behind the running turn and evicts what is idle or over budget.
 *
 * Threads: session_open() starts the engine thread, which owns every engine call. All functions below may be called
 * from any thread: they post a command and return. Callbacks run on the engine thread or a storage thread and must be
 * brief and must not call back into the session except session_cancel(); what they are given is valid during the call
 * only.
 *
 * Errors: 0 or a negative errno value. -ENOENT: no such thing for this owner (another owner's looks the same).
 */
#ifndef CONVOD_SESSION_H
#define CONVOD_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct session;

/* What an owner may have; 0: there is no limit. */
struct session_limits {
    uint64_t conversations; /* with as many, or as many bytes, a turn or a creation that would add some is refused */
    uint64_t ledger_bytes;  /* of all that was said with requests and answered, and of its tokens */
    uint64_t disk_bytes; /* of encoded segments on disk: those used longest ago give way, but not the newest turn's */
    uint64_t ram_bytes;  /* of copies of them in RAM; looked at when a turn is saved */
    uint64_t kv_bytes;   /* of contexts in pages, what several begin with counted once: those used longest ago leave the
                            pages, and a turn waits while others of its owner run that it has no room beside */
    int64_t retain_ms;   /* a conversation is deleted after this time without a turn or a change */
};
struct session_owner_limits {
    const char *owner; /* "NAME": its own, and for each of its users "NAME/USER" */
    struct session_limits limits;
};

struct session_opts {
    struct engine_opts engine; /* the model; its progress callback is called on the thread that calls session_open() */
    const char *data_dir;      /* ledger and packs; created with mode 0700 when missing */
    size_t ram_bytes;          /* encoded segments kept in RAM; 0 = 256 MiB */
    uint64_t disk_bytes;       /* encoded segments on disk; 0 = half of what is free */
    int max_waiting;           /* turns that may wait; 0 = 256 */
    int max_running;           /* turns that run at once; 0 = 8 */
    int max_step_ms;    /* a step with prompts in it takes about this long at most, or this and its fixed cost where no
                           turn decodes; 0 = 100, or four times what decoding alone takes, whichever is longer */
    int readers;        /* threads that read and decode stored KV; 0 = one per available core */
    int idle_ms;        /* a conversation's pages are dropped after this time without a turn; 0 = 10 minutes */
    bool accept_kv_any; /* stored KV of the same model is restored also where it was computed with other numerics */
    struct session_limits limits; /* of every owner that session_limits_set() does not name */
    int retain_wait_ms; /* before the first conversation is deleted for its age, and after the clock was set; 0 = an
                           hour */
    void (*log)(void *arg, int priority,
                const char *text); /* syslog priorities; any thread; never prompts; may be NULL */
    void *log_arg;
    void (*events)(void *arg, bool more); /* [engine thread] true: events of several turns may follow; false: they have
                                             been given. May be NULL */
    void *events_arg;
};

/* Opens the data directory (-EBUSY: another process holds it), then the model (see engine_open()), and starts. */
int session_open(const struct session_opts *opts, struct session **out, char *err, size_t err_size);

/* What session_open() would refuse of these settings and this model, without opening the data directory or loading
 * anything; see engine_check(). 0, or as session_open(). */
int session_check(const struct session_opts *opts, char *err, size_t err_size);

/* One kind of step of a profile: so many sequences with `tokens` new tokens each, behind `history` others. */
struct session_profile_step {
    int sequences, tokens, history;
    struct engine_profile at;
};

/* Opens the model alone, without the data directory, and tells where the time of some kinds of steps goes: those that
 * fit its context. `name` is "MODEL, QUANTIZATION, BACKEND". 0, or as session_open(). */
int session_profile(const struct session_opts *opts,
                    void (*told)(void *arg, const char *name, const struct session_profile_step *step), void *arg,
                    char *err, size_t err_size);

/* Stops accepting turns; running ones end at the next token as `incomplete` (reason "shutdown") and are committed; what
 * `drain_ms` allows is saved. Then frees. Callbacks of running turns are called. NULL is fine. A disk that does not
 * answer is waited for half a second at most beyond that. False: it has not by then; nothing is freed, what the ledger
 * has been asked is not answered, and the process is to end, or this is called again. */
bool session_close(struct session *s, int drain_ms);

/* Facts about the model, constant for the session's life. */
const struct engine_info *session_model(const struct session *s);

/* engine_tokenize() of the model. */
int session_tokenize(const struct session *s, const char *text, size_t len, bool add_special,
                     struct engine_tokens *out);
/* [any thread] engine_token_bytes() of the model. */
const char *session_token_bytes(const struct session *s, engine_token id, size_t *len);

/* ---- turns ----------------------------------------------------------------------------------------------------------
 */

/* Why a turn was refused or failed, as API error codes name it. */
enum session_failure {
    SESSION_OK,
    SESSION_PREVIOUS_NOT_FOUND,     /* previous_response_not_found */
    SESSION_CONVERSATION_NOT_FOUND, /* conversation_not_found */
    SESSION_CONVERSATION_LOCKED,    /* conversation_locked: a turn runs on it */
    SESSION_CONTEXT_LENGTH,         /* context_length_exceeded */
    SESSION_INVALID,                /* invalid_request_error */
    SESSION_BUSY,                   /* rate_limit_exceeded: too many turns wait */
    SESSION_NO_MEMORY,              /* insufficient KV memory for this turn beside the running ones */
    SESSION_LEDGER,                 /* the turn could not be written; nothing of it was kept */
    SESSION_MODEL,                  /* the model's numbers are not finite */
    SESSION_SHUTDOWN,
    SESSION_INTERNAL,
    SESSION_GONE,       /* response_not_found: what this key made was deleted */
    SESSION_KEY_REUSED, /* idempotency_key_reused: this key came with another request */
    SESSION_KEY_LIMIT,  /* rate_limit_exceeded: the owner has too many keys */
    SESSION_DISK_FULL,  /* disk_full: the turn could not be written for want of room */
    SESSION_QUOTA,      /* quota_exceeded: the owner has all that it may have */
};

struct session_receipt {
    const char *conversation; /* "conv_…"; "" when not stored */
    int turn;                 /* 1 = the first on its branch */
    int history; /* context tokens that had been through the model before = hot + ram + disk + sum of reprefilled, but
                    for "put_aside" */
    int hot, ram, disk;            /* where they were found */
    const char *reasoning_context; /* "current_turn": the context has no thinking of turns before the question, as
                                      was asked; "all_turns": it has, all the same; NULL: nobody asked */
    int truncated_turns, truncated_tokens; /* that the context is without, from its beginning; tokens 0: none was
                                              dropped by this turn */
    int fresh;                             /* tokens that were never through the model before ("new") */
    int prefilled;                         /* fresh + sum of reprefilled */
    int output;                            /* tokens of the answer */
    struct {
        int tokens;
        const char *
            reason; /* "blob_damaged", "blob_missing", "blob_unreadable", "blob_foreign": another
                       model's; "numerics_changed": this one's, with other rounding; "not_saved"; "not_indexed": the
                       index is being made anew, and may find it yet;
                       "instructions_changed", "tools_changed", "truncated", "effort_changed"; "put_aside": it gave way,
                       and what it had could not be kept; "logits": the last one of a prompt that was answered before */
    } reprefilled[8];
    int n_reprefilled;
    /* Of ram and disk, what was made with other numerics than the running ones, and with which: "3 cuda device 1
     * sm_90"; with a + behind it where that was computed behind what yet others had made. */
    struct {
        int tokens;
        char numerics[24];
    } accepted[4];
    int n_accepted;
    uint64_t bytes_read;
    double queue_ms, restore_ms, prefill_ms, ttft_ms, itl_p50_ms, itl_max_ms;
    const float *gaps_ms; /* between the tokens of the answer, in no order; during a callback only */
    int n_gaps;
    const char *saved;    /* "yes", "pending", "failed", "off" (store: false) */
    const char *backend;  /* engine_info.backend: "cpu-avx2" */
    const char *numerics; /* engine_info.numerics, whose bits those are: "3 cpu" */
    const char *model;
};

/* The receipt as the JSON object that clients see under "convod". malloc'd, NULL: out of memory. */
char *session_receipt_json(const struct session_receipt *r);

/* What a turn is asked with, or answers: one item of the API's lists. */
struct session_item {
    const char *id;        /* "msg_…"; NULL in a new turn: the session makes one */
    const char *kind;      /* "message", "function_call", "function_call_output", "reasoning"; in a new turn also
                              "item_reference": the text is the id of a stored one, which stands here */
    enum engine_role role; /* of a message */
    const char *text;      /* of a message; a call's arguments; its output */
    size_t len;
    const char *body; /* JSON object: what there is beside role and text ("call_id", a call's "name"; of thinking that
                         has ended, its "tokens"); may be NULL */
    /* Of stored ones: */
    bool output, incomplete;
    const char *response; /* in a page of items: the response that it belongs to, and whether that one still runs, or
                             failed */
    bool running, failed;
    int64_t created_ms;
};

/* A turn as it is stored. */
struct session_response {
    const char *id, *conversation, *previous; /* previous may be NULL */
    bool listed;                              /* its conversation was made by /v1/conversations */
    const char *status;                       /* "completed", "incomplete", "failed", "in_progress", "queued" */
    const char *reason, *instructions;        /* may be NULL */
    const char *stop;                         /* the stop string that ended it; NULL: none */
    const struct session_item *items;         /* input, then output */
    size_t n_items;
    bool answered;       /* there is an output, be it empty */
    const char *params;  /* as given to the turn; may be NULL */
    const char *receipt; /* JSON object, `saved` up to date; NULL until it has ended */
    int input_tokens, cached_tokens, output_tokens;
    int64_t created_ms, completed_ms;
};

#define SESSION_TOP_MAX 20 /* alternatives of a token that are told */

/* A token of the answer, and how likely it was. */
struct session_logprob {
    engine_token token;
    float logprob; /* as in engine_pick */
    size_t at;     /* bytes of the answer before it */
    int n_top;
    struct engine_logprob top[SESSION_TOP_MAX]; /* likeliest first */
};

enum session_event_kind {
    SESSION_EVENT_STARTED,  /* accepted, found and, if it is to be stored, in the ledger; `conversation` is set. First
                             * event of every turn that is neither refused nor a repetition */
    SESSION_EVENT_STORED,   /* terminal: a repetition of what was answered already: `stored` is that */
    SESSION_EVENT_PROGRESS, /* stage "queue" | "restore" | "prefill", done of total; "truncated": so many of its tokens
                             * were dropped */
    SESSION_EVENT_ITEM,     /* an item of the answer begins: `item`, without its text */
    SESSION_EVENT_DELTA,    /* text[0..len) of it: whole UTF-8 characters */
    SESSION_EVENT_ITEM_END, /* it is over: `item`, whole */
    SESSION_EVENT_DONE,     /* terminal: committed (or not to be stored) */
    SESSION_EVENT_FAILED,   /* terminal. Before STARTED: refused, there is nothing of it; after it: its input is kept */
};

struct session_event {
    enum session_event_kind kind;
    const char *conversation; /* STARTED, DONE: public id, "" when not stored */
    const char *stage;        /* PROGRESS */
    int64_t done, total;      /* PROGRESS: tokens (queue: turns ahead, 0) */
    const char *text;         /* DELTA: the piece */
    size_t len;
    const struct session_item *item;        /* ITEM, ITEM_END */
    const struct session_logprob *logprobs; /* DELTA and ITEM_END of a message, if asked for: the tokens that begin in
                                             * the text up to here and were not told yet */
    size_t n_logprobs;
    bool erasing;       /* DONE: of what the turn replaced something could not be erased from the disk yet */
    bool incomplete;    /* DONE */
    const char *reason; /* DONE and incomplete: "max_output_tokens", "context_length", "cancelled", "abandoned",
                           "shutdown", "malformed_call", "stop" (a stop string, before the form was whole) */
    const char *stop;   /* DONE: the stop string that ended it; NULL: none */
    int input_tokens, cached_tokens, output_tokens; /* DONE */
    const struct session_receipt *receipt;          /* DONE */
    enum session_failure failure;                   /* FAILED */
    const char *message;                            /* FAILED: for a person */
    const struct session_response *stored;          /* STORED */
};

#define SESSION_DIGEST_BYTES 32

enum session_tools {
    SESSION_TOOLS_AUTO,     /* the model calls one, or does not */
    SESSION_TOOLS_NONE,     /* it is told of them; what it writes is text */
    SESSION_TOOLS_REQUIRED, /* its answer begins with a call: of `tool`, or, NULL, of any */
};

struct session_turn {
    const char *owner;       /* who the token belongs to */
    const char *response_id; /* "resp_…", new and unique, chosen by the caller */
    /* What the turn follows: at most one of these; none = a new chain. */
    const char *conversation; /* named conversation: its head, or `parent` */
    const char *previous;     /* response id */
    bool match;         /* the items are the whole history: the longest head of it that there is already is found */
    const char *parent; /* with conversation: follow this response instead of the head; "" = begin a new branch at
                           the start. One that failed stands for what it followed */
    const char
        *replaces; /* with conversation and parent: the response at its head (or one that failed behind it), which
                      is deleted in the transaction that commits this one, as session_response_delete() does.
                      Where others follow it, it stays. NULL: none. No limit of the owner keeps it from that */
    const struct session_item *items; /* the new ones (with match: all); the last one is answered */
    size_t n_items;
    struct session_texts *texts; /* of these items, made before: taken, whatever comes of it; NULL: none */
    const char *instructions;    /* NULL: the conversation's own (if it has any); "": none */
    /* A response whose answer was cut: this turn has its place, its items, instructions and tools, and its answer with
     * what comes behind that. Where nothing follows it, it goes as with `replaces`. Without items and what a turn
     * follows; stored. NULL: none. */
    const char *continues;
    const char *opening; /* text that the answer begins with, and that is not told as a part of it; NULL: none. Not with
                            a form, a call that is required, or raw */
    const char
        *tools; /* definitions, as in a message of ENGINE_TOOLS; NULL: none. Other ones than before change the past */
    enum session_tools tool_choice;
    const char *tool;
    const char *callable; /* those of `tools` that may be called, in the same form; NULL: all */
    const char
        *labels;   /* JSON object: what the body of a call has besides its own, by its tool's name; NULL: nothing */
    bool one_call; /* the answer is over with its first call */
    const char *
        params; /* JSON object: request parameters to echo when the response is fetched, stored as it is; may be NULL */
    struct engine_sampling sampling;
    const struct engine_bias *bias; /* [n_bias], as in engine_pick */
    int n_bias;
    struct engine_form *form;      /* what the answer's text must be; shared, not taken; NULL: any text */
    struct engine_form *call_form; /* what calls must be, of engine_form_calls(); the same; NULL: anything. With a form
                                      and tools that may be called it must be there */
    const char *const *stops;
    size_t n_stops;
    int max_output_tokens; /* 0 = as far as the context goes */
    int thinking_tokens;   /* thinking is ended behind so many; 0: it ends by itself; -1: at once */
    unsigned effort;       /* ENGINE_CHAT_NO_THINKING, and at most one of ENGINE_CHAT_EFFORTS, which changes the past of
                              a context that has another; none of these: its own */
    bool logprobs;         /* told with the text */
    int n_top;             /* alternatives of each token, up to SESSION_TOP_MAX */
    bool keeps;            /* instructions and tools that it does not name are those of what it follows */
    bool current_turn;     /* it follows its past without the thinking of the turns before its question, where that has
                              been made ready; behind its end that is done for the next one */
    bool truncate;         /* a context that is too long loses its oldest turns, down to half of what fits */
    bool store;            /* false: nothing on disk; can be followed by `previous` until session_forget() */
    bool generate;         /* false: warm up: restore and prefill, no answer */
    bool raw; /* the text of the one item is the whole context, without a chat format, and so is the answer;
                 not stored, and following nothing */
    const engine_token *tokens; /* raw: or the context is these */
    size_t n_tokens;
    bool count;      /* only its context's tokens are counted: DONE without STARTED, and nothing is kept */
    bool background; /* it gets the places and the time that others leave; so does what generates nothing */
    /* Repetitions, of turns that are stored. A key names the request exactly, for its owner; without one a repetition
     * is known by its digest, and only where the first one's answer was not delivered. */
    const char *key;             /* NULL: none; that of one that is not stored must only name nothing else */
    const unsigned char *digest; /* SESSION_DIGEST_BYTES, of route and body; NULL: none, and then no key either */
    bool retry;                  /* the client says that it has sent this before */
    /* It may wait in the ledger as `queued`, and would run after a restart: `request` is given back then. */
    const char *request; /* NULL: it may not */
    bool requeued;       /* it is one that was given back: its row is there */
    bool begins;         /* it is what its conversation begins with: where that holds something, it was asked before,
                            and what the conversation holds last is told as its answer */
    const char *copy_of; /* with begins: its items are those of this response, or the first of them, and come behind
                            copies of the turns that this one follows, each with a response of its own; NULL: none */
    void (*event)(void *arg, const struct session_event *ev);
    void *arg;
};

/* [any thread] What the session keeps of a turn's items, copied: who may not copy what is long has it made elsewhere.
 * NULL: out of memory. */
struct session_texts *session_texts_new(const struct session_item *items, size_t n);
void session_texts_free(struct session_texts *texts);

/* Queues a turn; everything but its texts is copied. 0: events will come and end with exactly one terminal event.
 * Negative: none will. */
int session_turn_start(struct session *s, const struct session_turn *t);

/* Stops a turn (waiting, restoring, prefilling or decoding) at the next token border. What there is of the answer is
 * committed as `incomplete` with reason "cancelled"; or "abandoned": nobody reads it, and if the request comes again
 * the new turn takes its place. Unknown ids are ignored (it may just have ended). */
enum session_stop { SESSION_STOP_CANCELLED, SESSION_STOP_ABANDONED };
void session_cancel(struct session *s, const char *owner, const char *response_id, enum session_stop why);

/* The peer has acknowledged all of a stored answer: a later request with the same digest is another one. */
void session_delivered(struct session *s, const char *owner, const char *response_id);

/* Gives all that `from` has to `to`, unless that one has something already; once for each `why`, a token's id. How it
 * went is logged. 0 or -ENOMEM. */
int session_hand_over(struct session *s, const char *from, const char *to, const char *why);

/* Background turns that an earlier process left in the queue, oldest first: each() is called on a storage thread, and
 * at the end once with NULL for all; start them again with `requeued`. 0 or -ENOMEM: it is not called. */
int session_requeue(struct session *s,
                    void (*each)(void *arg, const char *owner, const char *response_id, const char *request),
                    void *arg);

/* A background turn of the queue cannot be run any more: it is `failed` with this reason. */
void session_queued_fail(struct session *s, const char *owner, const char *response_id, const char *reason);

/* Whether an error says that a disk or a quota is full. */
bool session_disk_full(int rc);

/* Drops a store:false response and its context. Raw ones are not remembered. */
void session_forget(struct session *s, const char *owner, const char *response_id);

/* ---- conversations and responses
 * -------------------------------------------------------------------------------------- */

struct session_conversation {
    const char *id, *title, *metadata, *instructions; /* may be NULL except id */
    const char *head;                                 /* response id, NULL = none yet */
    const char *tier;                                 /* "hot" (in pages), "stored", "none" (no turn yet) */
    bool running;                                     /* a turn runs on it */
    const char *running_response;
    int64_t created_ms, updated_ms;
    int64_t n_turns, n_tokens;
};

struct session_usage {
    uint64_t conversations, ledger_bytes, disk_bytes, ram_bytes, kv_bytes; /* as in session_limits */
    bool kv_known; /* what is in pages; not while the engine is stuck */
    struct session_limits limits;
};

struct session_result {
    int rc; /* 0, -ENOENT, -EEXIST, -EBUSY (a turn runs on it), -EINPROGRESS (deleted, not all erased yet), -EIO, ...;
             * of a creation with a key: -EKEYREJECTED: the key came with another request, -EUSERS: the owner has too
             * many; -EMFILE: the owner has as many conversations as it may, or -EFBIG: bytes; of a page: -ERANGE: there
             * is no such item */
    const struct session_conversation *conversations;
    size_t n_conversations;
    bool more; /* list or page: there are rows after the last one */
    const struct session_response *responses;
    size_t n_responses;
    const struct session_item *items; /* of a page */
    size_t n_items;
    const struct session_usage *usage; /* of session_usage(); NULL: it could not be read */
};
typedef void session_done(void *arg, const struct session_result *r);

/* Each posts a command (0, or negative and done is not called) and reports one result. Strings are copied. */
/* key and digest as in session_turn: of a repetition the result is the conversation that there is. */
int session_conversation_create(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *key,
                                const unsigned char *digest, session_done *done, void *arg);
/* The conversation that was made with a key; none of them: nothing was. -ENOENT: it has been deleted. */
int session_conversation_made(struct session *s, const char *owner, const char *key, const unsigned char *digest,
                              session_done *done, void *arg);
/* What was to be put into a conversation that was just made could not be: unless something else is in it by now it
 * goes, and what is said of its key with it. */
void session_conversation_unmake(struct session *s, const char *owner, const char *id);
int session_conversation_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg);
/* NULL fields stay as they are, "" empties one. head: the response that the next turn follows; those behind it stay,
 * and are followed when they are named. -EBUSY: a turn is queued or runs; -ESRCH: the conversation has no such response
 * with an answer; -EFBIG: it would take more bytes than before, and its owner has as many as it may have. */
int session_conversation_update(struct session *s, const char *owner, const char *id, const char *title,
                                const char *metadata, const char *instructions, const char *head, session_done *done,
                                void *arg);
/* A turn that runs on it is stopped first. */
int session_conversation_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg);
/* Latest first. after: id of the last row seen, or NULL. limit 1..100. query: part of a title, or NULL. */
int session_conversation_list(struct session *s, const char *owner, const char *after, int limit, const char *query,
                              session_done *done, void *arg);
/* A page of the items on the path to the head, and of the turns behind it that wait, run or have failed: in order, or
 * with `descending` from the last one back, after item `after` (NULL: from that end on). limit 1..100. */
int session_conversation_items(struct session *s, const char *owner, const char *id, bool descending, const char *after,
                               int limit, session_done *done, void *arg);
/* One item of that list. -ERANGE: there is none. */
int session_conversation_item(struct session *s, const char *owner, const char *id, const char *item,
                              session_done *done, void *arg);
/* A page of its responses, of all branches, oldest first, after response `after` (NULL: from the first). limit 1..100.
 * -ERANGE: the conversation has no such response. */
int session_conversation_turns(struct session *s, const char *owner, const char *id, const char *after, int limit,
                               session_done *done, void *arg);
/* Drops its pages (to_disk false: encoded segments stay in RAM; true: not those either) after saving what is not saved.
 * Answers when it is done. */
int session_conversation_evict(struct session *s, const char *owner, const char *id, bool to_disk, session_done *done,
                               void *arg);
int session_response_get(struct session *s, const char *owner, const char *id, session_done *done, void *arg);
/* If it runs it is stopped first. -EBUSY: another turn runs or waits in its conversation; -ECHILD: others follow it. */
int session_response_delete(struct session *s, const char *owner, const char *id, session_done *done, void *arg);

/* ---- limits --------------------------------------------------------------------------------------------------------
 */

/* What an owner has and may have. The result is 0 also where it cannot be read. */
int session_usage(struct session *s, const char *owner, session_done *done, void *arg);
/* From now on owners may have this: those in the rows (the first that fits), and everyone else. Copied. 0 or -ENOMEM.
 */
int session_limits_set(struct session *s, const struct session_limits *everyone,
                       const struct session_owner_limits *rows, size_t n);

/* ---- upkeep ---------------------------------------------------------------------------------------------------------
 */

/* Copies the ledger, and with_kv the packs, to the folder `to`, which is made or has no ledger yet, while turns go on.
 * Returns when it is complete; -EEXIST, -EBUSY (another one runs), -ESHUTDOWN (it was stopped). Not from a callback. */
int session_backup(struct session *s, const char *to, bool with_kv, char *err, size_t err_size);
/* One that runs, and all that come, end soon. To be called, and waited for, before session_close(). */
void session_backup_stop(struct session *s);
/* The same of a data directory that nobody uses. -EBUSY: somebody does. */
int session_backup_of(const char *data_dir, const char *to, bool with_kv,
                      void (*log)(void *arg, int priority, const char *text), void *log_arg, char *err,
                      size_t err_size);

/* Checks every row and every record of a data directory that nobody uses; see storage_verify(). */
struct session_checked {
    uint64_t conversations, turns, segments; /* that were looked at */
    uint64_t not_stored;                     /* turns whose KV is not there */
    uint64_t wrong;                          /* lines that were reported */
};
int session_verify(const char *data_dir, bool repair, void (*report)(void *arg, const char *text), void *arg,
                   void (*log)(void *arg, int priority, const char *text), void *log_arg, struct session_checked *out,
                   char *err, size_t err_size);

/* ---- state
 * ---------------------------------------------------------------------------------------------------------------- */

struct session_status {
    int running, waiting; /* turns that somebody asked for */
    int ahead;            /* contexts that are being made ahead, or are to be: they are in neither */
    size_t hot_used, hot_budget, ram_used, ram_budget; /* bytes */
    uint64_t disk_used, disk_budget;
    uint64_t pending_saves, save_failures, segments;
    uint64_t saved_bytes, save_us; /* encoded since start, and what encoding and writing took */
    uint64_t turns_completed, turns_incomplete, turns_failed;
    double turn_ms;                 /* from a turn's admission to its end, the mean of the last few; 0: none yet */
    uint64_t turns_put_aside;       /* how often one gave its pages to others */
    uint64_t conversations_expired; /* deleted because of their age */
    uint64_t quota_refusals;        /* turns and creations */
    uint64_t quota_evictions;       /* contexts that left the pages because their owner has enough in them */
    uint64_t tokens_prefilled, tokens_generated, tokens_restored, tokens_reprefilled;
    uint64_t step_cpu_us;  /* that the engine thread has spent in steps; the model's other threads' is not in it */
    uint64_t engine_steps; /* grows while the engine makes progress (watchdog) */
    bool stuck;            /* work is waiting and no step has ended for 30 s */
    bool failed;           /* the device has, and no turn can run any more: only another start helps */
    bool device_known;     /* whether `device` says anything */
    struct engine_device device;
};
void session_status(struct session *s, struct session_status *out);
/* In how many seconds who was refused for want of a place should try again: 1 to 60, the time in which those that wait
 * now are answered, by what the last turns took. */
int session_retry_s(struct session *s);

#endif

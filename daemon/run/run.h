/* run.h - turns that the session runs for us: requests ready to become one, the log of the events that it produces, and
 * who reads that log. Knows no socket and no interface.
 *
 * Two objects matter:
 *   run         one turn, with the log of its events
 *   subscriber  one reader of a run; it walks the run's log at its own pace, and is woken through a function
 * A run outlives its readers when its policy says so, and a reader reads many runs, one after the other. They are
 * linked by subscribers, and unlinked when either goes.
 *
 * All state here belongs to the network thread, save the event queue. How an interface shows a run is handed down with
 * the request (struct run_format).
 */
#ifndef CONVOD_DAEMON_RUN_H
#define CONVOD_DAEMON_RUN_H

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/daemon.h"
#include "session/session.h"

/* Bytes of a text, 0 of none (NULL). */
static inline size_t text_length(const char *text)
{
    return text ? strlen(text) : 0;
}

/* ---- limits that a peer can meet ----------------------------------------------------------------------------------
 */

#define BUFFER_BYTES_MIN    4096              /* of a body or message that arrives; it doubles */
#define LAG_BYTES_MAX       (8 * 1024 * 1024) /* of events that a subscriber is behind by */
#define EPHEMERAL_MAX       256               /* store:false responses that a home keeps; the oldest is dropped */
#define EPHEMERAL_ALL_MAX   8192              /* that all homes keep */
#define EPHEMERAL_SECONDS   3600              /* after which one is dropped */
#define RECENT_RUNS_MAX     256
#define RECENT_BYTES_MAX    (64 * 1024 * 1024)
#define RECENT_FAILED_MAX   32 /* of one owner, */
#define RECENT_FAILED_BYTES (4 * 1024 * 1024)
#define RECENT_SECONDS      (15 * 60)
#define CHOICES_MAX         16 /* answers to one request */
#define ID_SIZE             48 /* "resp_" + 32 hex digits, and room */
#define RETRY_DIGEST_BYTES  32

/* ---- errors (error.c) ---------------------------------------------------------------------------------------------
 */

/* An error as the API sends it. status 0 = none. type and code are static strings. */
struct api_error {
    int status;
    const char *type, *code; /* code may be NULL */
    char param[96];          /* "" = null */
    char message[256];
};
void api_error_set(struct api_error *e, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* What the session says, as an error. message may be NULL. */
void api_error_session(enum session_failure failure, const char *message, struct api_error *e);
struct turn_request;
/* The same of a turn, with the field of its request that it is about. */
void api_error_turn(enum session_failure failure, const char *message, const struct turn_request *q,
                    struct api_error *e);
/* `id` is deleted, but not all of it is erased yet. */
void api_error_deleting(const char *id, struct api_error *e);

/* ---- identifiers (ids.c) ------------------------------------------------------------------------------------------
 */

/* prefix + 32 random hex digits. 0 or -EIO: no random numbers. */
int id_new(const char *prefix, char out[ID_SIZE]);
/* The id of another object that belongs to the same response: "resp_X" -> "msg_X". */
void id_derive(const char *prefix, const char *id, char out[ID_SIZE]);
/* prefix, then 1..40 characters [A-Za-z0-9_-]. */
bool id_valid(const char *prefix, const char *id);

/* ---- memory that requests hold (budget.c) -------------------------------------------------------------------------
 */

#define BUDGET_OTHERS 4 /* one in so many bytes is for others than one owner */

struct budget {
    uint64_t most; /* 0 = no limit */
    size_t used;   /* by requests that arrive, wait or run */
    struct budget_owner *owners;
};
/* Counts bytes that an owner's request takes ("": nobody's yet). False (and nothing counted): there are no more (*e is
 * 503), the owner has its share (429), or no memory. */
bool budget_take(struct budget *b, const char *owner, size_t bytes, struct api_error *e);
/* Gives back what was taken for that owner. */
void budget_give(struct budget *b, const char *owner, size_t bytes);
/* Makes room for `need` bytes in a buffer whose size is counted. 0; -EDQUOT: more than there may be, *e says so; or
 * -ENOMEM. */
int budget_grow(struct budget *b, const char *owner, char **buffer, size_t *size, size_t need, struct api_error *e);

/* ---- the way into the network thread (events.c) -------------------------------------------------------------------
 */

/* Stands first in what is posted. `take` is called on the network thread and frees it; with `closing` nobody is served
 * any more and it frees only. */
struct event {
    struct event *next;
    void (*take)(struct event *e, bool closing);
};

struct events {
    pthread_mutex_t lock; /* guards the list and held */
    struct event *head, **tail;
    bool held;
    pthread_mutex_t waking;  /* guards wake; never taken with the other */
    void (*wake)(void *arg); /* called under `waking`, on any thread; NULL: nobody to wake */
    void *arg;
};

int events_init(struct events *q);
void events_destroy(struct events *q); /* the list must have been taken */
void events_wake_by(struct events *q, void (*wake)(void *arg), void *arg);
/* [any thread] Appends and wakes the network thread. Takes e. */
void events_post(struct events *q, struct event *e);
/* [one thread] Several events are about to be posted: the network thread is woken when hold ends, once. */
void events_hold(struct events *q, bool hold);
/* All that is there, in order; each is to be taken. */
struct event *events_list(struct events *q);
/* Takes all that is there, with nobody to be served any more. */
void events_drop(struct events *q);

/* ---- work away from the network thread (work.c) --------------------------------------------------------------------
 */

#define WORK_BYTES_MIN (16 * 1024) /* what is shorter is parsed at once, unless it has work in it */

struct workers;

/* Stands first in what a piece of work needs. */
struct work {
    struct event event; /* first: its way back */
    struct work *next;
    char owner[OWNER_SIZE];
    void (*run)(struct work *w);                /* on a thread of its own */
    void (*done)(struct work *w, bool closing); /* network thread: takes the result and frees it */
};
int workers_start(struct events *events, struct workers **out);
/* What has not been begun is given back undone. NULL is fine. */
void workers_stop(struct workers *ws);
/* owner: whose it is; copied. */
void work_submit(struct workers *ws, struct work *w, const char *owner);
/* Frees what a request held, which may be very many values. */
void work_free_json(struct workers *ws, cJSON *json, const char *owner);

/* ---- requests (request.c) -----------------------------------------------------------------------------------------
 */

struct run;

/* How an interface shows a run: each writes into the run's log what its readers get. An item of the output, number i,
 * begins, grows and ends, one after the other; of its logprobs, those that came with a piece or the end stand behind
 * the first n_logprobs_told. `done` is called once at the end (run->failed says how it ended) and makes run->answer as
 * well, unless it failed; of several answers it is called for each, and makes the answer of run_first() when that has
 * ended, which is with the last. `running`: a background turn waits no longer. All but `done` may be NULL, where
 * nothing is to be shown. */
struct run_format {
    void (*started)(struct run *run);
    void (*running)(struct run *run);
    void (*progress)(struct run *run, const struct session_event *ev);
    void (*item)(struct run *run, size_t i);
    void (*delta)(struct run *run, size_t i, const char *text);
    void (*item_end)(struct run *run, size_t i);
    void (*done)(struct run *run);
};

/* Texts of a request, in blocks that do not move. */
struct text_block {
    struct text_block *next;
    size_t used, size;
    char data[];
};

/* A parsed request, ready to become a turn. Everything in it is owned by it. */
struct turn_request {
    const struct run_format *format;
    struct text_block *texts; /* which items point into */
    cJSON *params_json;       /* what `params` says */
    char *conversation, *previous, *parent, *instructions, *params, *stream_id, *model;
    char *key;         /* an idempotency key among the fields; NULL: none */
    char *body;        /* of one that runs in the background: what it takes to parse it again, as a JSON string */
    const char *input; /* the request's field that the items stand in; static. NULL: "input" */
    struct session_item *items;
    size_t n_items;
    struct session_texts **copies; /* [n_copies] of the items, each for a turn, which takes it */
    size_t n_copies;
    struct budget *budget; /* who counts its bytes; NULL: nobody yet */
    size_t bytes;
    char owner[OWNER_SIZE]; /* for whom */
    struct engine_sampling sampling;
    struct engine_bias *bias; /* [n_bias] */
    int n_bias;
    struct engine_form *form;      /* what the answer must be; NULL: any text */
    struct engine_form *call_form; /* what calls must be; NULL: there are none */
    char *stops[16];
    size_t n_stops;
    char *answer;    /* of one whose answer is known before it has run: what it is; NULL: none */
    cJSON *settings; /* of the conversation that is made before it, a create body without items; NULL: none is */
    bool made;       /* that was made for this turn, and goes when it fails */
    bool begins;     /* as in a session_turn: its conversation is made with it */
    char *tools, *tool, *opening, *continues, *callable, *labels; /* as in a session_turn */
    enum session_tools tool_choice;
    bool one_call;
    int max_output_tokens, n_top, thinking_tokens; /* as in a session_turn */
    unsigned effort;                               /* the same */
    bool logprobs;                                 /* and n_top: as in a session_turn */
    char replaces[ID_SIZE], copy_of[ID_SIZE];      /* as in a session_turn; "": none */
    bool match; /* the items are a whole history, of which the longest head that there is is found */
    bool raw;   /* the text of the one item, or `tokens` where there are any, is the whole context */
    engine_token *tokens;
    size_t n_tokens;
    bool count;   /* only its tokens are counted */
    bool keeps;   /* as in a session_turn */
    bool patient; /* it gets the places and the time that others leave */
    int n;        /* answers, each of a turn of its own; 0 is one, too */
    bool has_parent, store, generate, stream, progress, include_usage, background, truncate;
    bool current_turn;         /* as in a session_turn */
    bool thread;               /* of Messages: its answer is to be followed by its name */
    bool finish_on_disconnect; /* goes on when its last reader goes away */
};
void turn_request_free(struct turn_request *r);
/* [any thread] Copies the items, whose length is the client's, for each of its turns. Without memory there are fewer,
 * and the turns see to it themselves. */
void turn_request_copy(struct turn_request *r);
/* Counts what a request parsed from a body of so many bytes holds, until it is freed. False: too much, *e says so. */
bool turn_request_count(struct turn_request *r, struct budget *b, const char *owner, size_t body_bytes,
                        struct api_error *e);

/* ---- store:false responses: they live where they were made (ephemeral.c) -------------------------------------------
 */

struct ephemeral;

/* A place that store:false responses are followed from, and that they go away with: a connection. */
struct run_home {
    struct run_home *next, *prev; /* of those that hold any */
    const char *owner;
    struct ephemeral *list; /* newest first */
    size_t n;
};

/* ---- runs (turn.c) ------------------------------------------------------------------------------------------------
 */

struct log_entry {
    const char *name; /* event type; static */
    char *data;
    size_t len;
};

/* All runs of a server. */
struct runs {
    struct session *session; /* NULL: loading or closing */
    const struct daemon_log *log;
    struct metrics *metrics;
    struct events *events;
    struct workers *workers;
    const char *model;            /* its name, once it is loaded */
    struct run *running, *recent; /* recent: ended, and kept for those who come back */
    size_t n_running, n_recent;
    struct run_home *homes;
    struct owner_home *owner_homes; /* of those who ask over HTTP */
    size_t n_ephemerals;
};

/* One reader. Stands first in what its owner keeps for it. `next` may lie behind the newest entry: it waits until the
 * log is that long. */
struct subscriber {
    struct subscriber *next_in_run;
    struct run *run;
    size_t next;              /* index into the run's log */
    uint64_t delivered_bytes; /* of the log */
    uint64_t joined_bytes;    /* length of the log when this reader came: it may be behind by that much */
    bool whole;               /* waits for the end alone, and reads run->answer */
    /* There is something to read, or the run has ended. lags: it is more than LAG_BYTES_MAX behind; it should go. Must
     * not unsubscribe anyone before it returns. */
    void (*wake)(struct subscriber *sub, bool lags);
};

/* An item of a run's output. */
struct run_item {
    char *id, *kind, *body; /* as in a session_item */
    char *text;             /* so far, terminated */
    size_t len, size;
    struct session_logprob *logprobs; /* of its tokens so far, if asked for */
    size_t n_logprobs, n_logprobs_told;
    size_t input_told; /* of a custom tool's call: how far call_input() is */
    char *piece;       /* of an event of a piece of its text, as its interface has it: piece.c. NULL: not made yet */
    bool custom;       /* its body says that it is one: "custom": true */
    bool open, incomplete;
};

struct run {
    struct run *next, *prev;
    struct runs *runs;
    struct turn_request *request;
    /* Where several answers are asked for each has a run, one after the other in number. The first has the readers, the
     * log, and the end of all; the others are its own, stored nowhere, and share its request. */
    struct run *first;   /* of the others; NULL: it is the first */
    struct run **others; /* [n_others], of the first, until it has ended */
    int choice, n_others;
    int n_open; /* of the first: answers that are not over */
    char id[ID_SIZE];
    char owner[OWNER_SIZE];
    char *idempotency_key;
    bool has_digest; /* came as a POST, or with a key */
    unsigned char digest[RETRY_DIGEST_BYTES];
    char conversation[ID_SIZE];
    struct run_home *home; /* store:false: where it may be followed from; NULL = nowhere */
    int64_t created_ms, completed_ms, created_clock_ms, ended_clock_ms;
    int64_t sequence;
    bool started, ended, failed;
    bool erasing;        /* as in a session_event */
    atomic_bool gap;     /* a piece of the answer was lost for lack of memory; any thread */
    bool abandoned;      /* cancelled because nobody read it any more */
    bool hidden;         /* only those who read it already may; it goes with the last of them */
    bool delivered;      /* a reader has acknowledged all of its answer */
    const char *status;  /* "queued", "in_progress", "completed", "incomplete", "failed" */
    char *reason, *stop; /* stop: the stop string that ended it; NULL: none */
    struct run_item *items;
    size_t n_items;
    struct log_entry *log;
    size_t n_log, log_capacity;
    uint64_t log_bytes;
    size_t kept_bytes; /* of an ended run: all that it holds */
    /* For those who wait for one whole answer. */
    int answer_status;
    char *answer;
    struct api_error error;
    struct subscriber *subscribers;
    int input_tokens, cached_tokens, output_tokens;
    char *receipt;
};

/* What tells a repeated request from a new one. */
struct run_retry {
    char *idempotency_key; /* NULL = none */
    int count;             /* of attempts before this one, as the client says */
    unsigned char digest[RETRY_DIGEST_BYTES];
};
#define IDEMPOTENCY_KEY_MAX 255

/* Starts a turn; nobody reads it yet. retry: NULL unless it came as a POST or with a key; its key is taken. home: where
 * a store:false response may be followed from; NULL = nowhere. 0, *out, and q belongs to it; -1 and *e, and q is the
 * caller's. */
int run_start(struct runs *rs, const char *owner, struct turn_request *q, struct run_retry *retry,
              struct run_home *home, struct run **out, struct api_error *e);
/* Starts a background turn that an earlier process left in the queue, under its id. As run_start(). */
int run_requeue(struct runs *rs, const char *owner, const char *id, struct turn_request *q, struct run_retry *retry,
                struct api_error *e);
struct run *run_find(struct runs *rs, const char *owner, const char *id);
/* Of several answers' runs the first; of one the run itself. */
struct run *run_first(struct run *run);
/* Number i of run_first()'s 1 + n_others. */
const struct run *run_choice(const struct run *first, int i);
/* The response, or all of the conversation, was deleted: nobody finds it any more. */
void run_hide(struct runs *rs, const char *owner, const char *id);
/* Stops it at the next token. */
void run_cancel(struct run *run);
/* A reader has acknowledged the answer to its last byte. */
void run_delivered(struct runs *rs, const char *owner, const char *id);
/* Reads from entry `from` on. sub's wake and whole are set; it is woken at once when there is something to read. */
void run_subscribe(struct run *run, struct subscriber *sub, size_t from);
/* The run may be gone then: with its last reader a run is cancelled, or forgotten, as its policy says. */
void run_unsubscribe(struct subscriber *sub);
void run_log(struct run *run, const char *name, char *data); /* takes data */
/* Begins an item of the output (its text is not taken), and goes on with it. False: out of memory. */
bool run_item_add(struct run *run, const struct session_item *item);
bool run_append(struct run *run, const char *text, size_t len);
bool run_append_logprobs(struct run *run, const struct session_logprob *logprobs, size_t n);
void run_expire(struct runs *rs);
void run_free_all(struct runs *rs);
void run_free(struct run *run);
void run_remember(struct run *run); /* an ended run that is in no list yet */

/* ---- turns as they are stored (stored.c) --------------------------------------------------------------------------
 */

/* Copies of what the session lends during a callback. -ENOMEM; NULL: out of memory. */
int response_copy(const struct session_response *from, struct session_response *to);
void response_free(struct session_response *r);
struct session_item *items_copy(const struct session_item *from, size_t n);
void items_free(struct session_item *items, size_t n);
/* Of the texts in them that may be long. */
size_t items_bytes(const struct session_item *items, size_t n);
size_t response_bytes(const struct session_response *r);
/* The run becomes what is stored. False: out of memory. */
bool run_take_stored(struct run *run, const struct session_response *r);
/* A run as it would be remembered, that is in no list. NULL: out of memory. */
struct run *run_from_stored(struct runs *rs, const char *owner, const struct run_format *format,
                            const struct session_response *r);

/* ---- POSTs that come again (retry.c) ------------------------------------------------------------------------------
 */

/* Of a request: where it goes, with what id in the path (NULL or "": none), and what it says. */
void retry_digest(const char *route, const char *id, const char *body, size_t len,
                  unsigned char digest[RETRY_DIGEST_BYTES]);
/* The key of a request may stand in its head, or among its fields (NULL: not there): one of them is taken into retry.
 * False and *e: there are two, or it is too long. */
bool retry_key(struct run_retry *retry, const char *field, struct api_error *e);
/* The run of the first attempt, NULL when this is the first as far as is known here (the session knows more), or NULL
 * and e->status when it is refused. */
struct run *retry_find(struct runs *rs, const char *owner, const struct run_retry *retry, struct api_error *e);

/* ---- background turns in the queue (queued.c)
 * ------------------------------------------------------------------------
 */

/* What is kept with a background turn that waits, so that a later process can run it. */
struct queued {
    char *body;
    bool has_seed, has_retry;
    uint64_t seed;
    struct run_retry retry;
};
/* malloc'd; NULL: out of memory. */
char *queued_text(const struct turn_request *q, const struct run_retry *retry);
/* 0, or -1: out of memory. What cannot be read is a body that will not parse. */
int queued_read(const char *text, struct queued *out);
void queued_free(struct queued *q);

/* ---- homes (ephemeral.c) ------------------------------------------------------------------------------------------
 */

bool home_has(const struct run_home *home, const char *id);
/* Is `id` a store:false response of another home? */
bool home_foreign(const struct runs *rs, const struct run_home *home, const char *id);
/* Newest first; the oldest goes when there are too many. */
void home_add(struct runs *rs, struct run_home *home, const char *id);
void home_drop(struct runs *rs, struct run_home *home, const char *id);
/* The home of what an owner asks for over HTTP: found there by who resends it, and by no id. NULL: out of memory. */
struct run_home *home_of_owner(struct runs *rs, const char *owner);
void homes_free(struct runs *rs);
/* [now and then] Drops those that nobody follows any more. */
void home_expire(struct runs *rs);
/* Forgets all, and that runs have come from here. */
void home_free(struct runs *rs, struct run_home *home);

#endif

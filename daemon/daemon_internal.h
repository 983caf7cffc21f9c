/* daemon_internal.h - what the files of the daemon share.
 *
 * All state here belongs to the network thread, save the event queue. Three objects matter:
 *   conn        one socket: an HTTP connection or a WebSocket
 *   run         one turn that the session runs for us, with the log of the events it has produced
 *   subscriber  one reader of a run on one conn; it walks the run's log at the pace of its socket
 * A run outlives the conns that read it when its policy says so, and a conn outlives many runs. Neither holds a bare
 * pointer to the other: subscribers link them and are unlinked when either goes.
 */
#ifndef CONVOD_DAEMON_INTERNAL_H
#define CONVOD_DAEMON_INTERNAL_H

#include <cjson/cJSON.h>
#include <libwebsockets.h>
#include <pthread.h>
#include <stdarg.h>

#include "daemon/api/json.h"
#include "daemon/api/route.h"
#include "daemon/daemon.h"
#include "session/session.h"

/* ---- limits that a peer can meet ----------------------------------------------------------------------------------
 */

#define HEADER_BYTES_MAX     (16 * 1024)        /* request line and headers; more is 431 */
#define HEADER_BYTES_PARSED  65535              /* what the parser takes before it gives up on a connection */
#define BODY_BYTES_MAX       (16 * 1024 * 1024) /* an HTTP body; more is 413 */
#define MESSAGE_BYTES_MAX    (16 * 1024 * 1024) /* a WebSocket message; more is close 1009 */
#define BUFFER_BYTES_MIN     4096               /* of a body or message that arrives; it doubles */
#define DISCARD_BYTES_MAX    (64 * 1024 * 1024) /* a refused body that is still read so that the answer arrives */
#define QUEUE_BYTES_MAX      (4 * 1024 * 1024)  /* of control replies that a WebSocket does not read */
#define LAG_BYTES_MAX        (8 * 1024 * 1024)  /* of events that a subscriber is behind by */
#define LANES_MAX            32                 /* named lanes of a WebSocket */
#define LANES_ACTIVE_MAX     16                 /* lanes with a running turn */
#define LANE_WAITING_MAX     64                 /* requests waiting on a WebSocket, all lanes */
#define WATCHED_MAX          32                 /* responses that a WebSocket has attached to */
#define STREAM_ID_MAX        256
#define EPHEMERAL_MAX        256 /* store:false responses that a connection keeps; the oldest is dropped */
#define RECENT_RUNS_MAX      256
#define RECENT_BYTES_MAX     (64 * 1024 * 1024)
#define RECENT_FAILED_MAX    32 /* of one owner, */
#define RECENT_FAILED_BYTES  (4 * 1024 * 1024)
#define RECENT_SECONDS       (15 * 60)
#define TOKENIZE_BYTES_MAX   (1024 * 1024)
#define TOKENIZE_RUNNING_MAX 4
#define WRITE_BYTES          (16 * 1024) /* one lws_write */
#define ID_SIZE              48          /* "resp_" + 32 hex digits, and room */
#define OWNER_SIZE           64
#define RETRY_DIGEST_BYTES   32
#define TOKEN_DIGEST_BYTES   32

struct server;
struct conn;
struct run;

/* ---- ids.c --------------------------------------------------------------------------------------------------------
 */

/* prefix + 32 random hex digits. 0 or -EIO: no random numbers. */
int id_new(const char *prefix, char out[ID_SIZE]);
/* The id of another object that belongs to the same response: "resp_X" -> "msg_X". */
void id_derive(const char *prefix, const char *id, char out[ID_SIZE]);
/* prefix, then 1..40 characters [A-Za-z0-9_-]. */
bool id_valid(const char *prefix, const char *id);

/* ---- auth.c -------------------------------------------------------------------------------------------------------
 */

struct auth;
/* path NULL: everyone is owner "local". */
int auth_open(const char *path, struct auth **out, char *err, size_t err_size);
void auth_free(struct auth *a);
bool auth_required(const struct auth *a);
/* authorization: the header's value or NULL. True, the owner's name and the token's digest when it is accepted. */
bool auth_owner(const struct auth *a, const char *authorization, char owner[OWNER_SIZE],
                unsigned char digest[TOKEN_DIGEST_BYTES]);
/* Would what auth_owner() has accepted be accepted still, as the same owner? */
bool auth_known(const struct auth *a, const char *owner, const unsigned char digest[TOKEN_DIGEST_BYTES]);
/* Is this Host header one that belongs to us? Guards a loopback listener against DNS rebinding. */
bool auth_host_allowed(const struct daemon_config *c, const char *host);
/* Same host as the request, or configured. */
bool auth_origin_allowed(const struct daemon_config *c, const char *origin, const char *host);
/* "127.0.0.1:8080", "[::1]:0" -> address and port. */
int auth_listen_parse(const char *listen, char *address, size_t address_size, int *port);
bool auth_address_loopback(const char *address);

/* ---- notify.c -----------------------------------------------------------------------------------------------------
 */

/* One datagram to systemd; a NULL path does nothing. */
int notify_send(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- events.c -----------------------------------------------------------------------------------------------------
 */

enum event_kind {
    EVENT_LOADING, /* number: promille; text: what */
    EVENT_LOADED,  /* session */
    EVENT_LOAD_FAILED,
    EVENT_TURN,   /* run, turn */
    EVENT_RESULT, /* op, result */
    EVENT_WORK,   /* op: a worker has finished */
    EVENT_CLOSED, /* the session is closed */
    EVENT_STOP,
    EVENT_RELOAD,
};

struct op;

struct event {
    struct event *next;
    enum event_kind kind;
    int number;
    char *text;
    struct session *session;
    struct run *run;
    struct op *op;
    struct session_event turn; /* strings lie in `text` and `receipt_json` */
    char *receipt_json;
    struct session_receipt receipt; /* its numbers; the strings are NULL */
    struct session_result result;   /* deep copy */
};

struct events {
    pthread_mutex_t lock; /* guards head, tail, context */
    struct event *head, **tail;
    struct lws_context *context; /* NULL: nobody to wake */
};

int events_init(struct events *q);
void events_destroy(struct events *q);
/* [any thread] Appends and wakes the network thread. Takes e. */
void events_post(struct events *q, struct event *e);
struct event *events_take(struct events *q); /* the whole list */
void event_free(struct event *e);
struct event *event_new(enum event_kind kind);
/* [any thread] Copies of what the session gives during a callback. NULL: out of memory. */
struct event *event_from_turn(struct run *run, const struct session_event *ev);
int session_result_copy(const struct session_result *from, struct session_result *to);
void session_result_free(struct session_result *r);

/* ---- conn.c: sockets
 * ------------------------------------------------------------------------------------------------- */

struct chunk {
    struct chunk *next;
    size_t len, sent;
    unsigned char data[]; /* LWS_PRE bytes, then len */
};

struct subscriber {
    struct subscriber *next_in_run, *next_in_conn;
    struct run *run;
    struct conn *conn;
    enum { SUBSCRIBE_BODY, SUBSCRIBE_SSE, SUBSCRIBE_WS, SUBSCRIBE_WATCH } kind; /* WATCH: a WebSocket, no lane waits */
    size_t next;                                                                /* index into the run's log */
    uint64_t delivered_bytes;                                                   /* of the log */
    uint64_t joined_bytes; /* length of the log when this reader came: it may be behind by that much */
    char *stream_id;       /* WS: echoed in every event; NULL = none */
};

struct lane;
struct ephemeral;

enum conn_phase {
    CONN_IDLE,      /* no request */
    CONN_BODY,      /* reading a body */
    CONN_WORKING,   /* a handler has it; no answer yet */
    CONN_ANSWERING, /* the answer is being written */
    CONN_WEBSOCKET,
};

struct http_request {
    enum route_method method;
    char *path;
    const struct route *route;
    char param[ROUTE_PARAM_MAX]; /* the id in the path */
    struct route_query query;
    char *origin;          /* to be echoed for CORS; NULL */
    char *cors_headers;    /* that a preflight asks for; NULL */
    char *idempotency_key; /* NULL = none */
    int retry_count;       /* x-stainless-retry-count */
    char *body;
    size_t body_len, body_size;
    int64_t length; /* of the body; -1 = not given */
    bool http10;
};

struct conn {
    struct conn *next, *prev;
    struct server *server;
    struct lws *wsi;
    uint64_t id;
    enum conn_phase phase;
    char owner[OWNER_SIZE]; /* empty: nobody was asked for, or accepted */
    unsigned char token[TOKEN_DIGEST_BYTES];
    struct chunk *out_head, *out_tail;
    size_t out_bytes;
    int64_t stalled_since_ms; /* output waits, and the last of it was taken then; 0 = none waits */
    struct subscriber *subscribers;
    /* HTTP */
    struct http_request request;
    bool streaming;       /* SSE headers are queued */
    bool answer_complete; /* the last byte of the answer is queued */
    bool close_after;     /* no further request on this connection */
    bool flow_stopped;    /* nothing is read while the answer is being worked on */
    bool discard;         /* the body is read and dropped; `refused` is the answer */
    struct api_error refused;
    char address[64];
    /* WebSocket */
    char *message;
    size_t message_len, message_size;
    struct lane *lanes;
    int n_lanes, n_active, n_waiting, n_watched;
    bool lanes_busy, message_binary;
    struct ephemeral *ephemerals;
    int close_code; /* not 0: close as soon as what is queued is written */
    const char *close_reason;
    bool writing; /* in conn_write() */
    bool dropped; /* marked for a hard close; ignore everything */
};

struct conn *conn_new(struct server *s, struct lws *wsi, const char *address);
void conn_free(struct conn *c); /* detaches subscribers and applies their policy */
struct conn *conn_find(struct server *s, uint64_t id);
/* One whole answer. Takes `body` (malloc'd; NULL: out of memory, answers 500). */
void conn_answer(struct conn *c, int status, const char *content_type, char *body);
void conn_answer_json(struct conn *c, int status, cJSON *json); /* takes json */
void conn_answer_error(struct conn *c, const struct api_error *e);
void conn_sse_begin(struct conn *c);
void conn_sse_event(struct conn *c, const char *name, const char *data); /* name may be NULL */
void conn_sse_comment(struct conn *c);                                   /* keeps a quiet stream alive */
void conn_sse_end(struct conn *c);
void conn_ws_send(struct conn *c, const char *json, const char *stream_id);
void conn_ws_error(struct conn *c, const struct api_error *e, const char *stream_id);
/* Ends a socket at once (a slow or broken peer). */
void conn_drop(struct conn *c);
void conn_ws_close(struct conn *c, int code, const char *reason);
void conn_wake(struct conn *c); /* there is something to write */
/* WRITEABLE: writes at most one chunk. -1: close the connection. */
int conn_write(struct conn *c);
void conn_request_clear(struct conn *c);

/* ---- server.c -----------------------------------------------------------------------------------------------------
 */

#define CONN_BUCKETS 1024

struct counters {
    uint64_t requests, errors, connections, dropped_slow, refused;
};

struct histogram {
    uint64_t count[16]; /* per bucket, the last is +Inf */
    double sum;
    uint64_t total;
};

struct server {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct server_opts opts;
    struct lws_context *context;
    struct lws_vhost *vhost;
    char address[64];
    int port;
    bool loopback;
    struct auth *auth;
    struct events events;
    struct session *session; /* NULL: loading or closing */
    struct session *closing_session;
    pthread_t loader, closer;
    bool loader_started, closer_started;
    bool stopping, closed, loaded, line_open;
    int load_promille;
    char load_what[64];
    int result;
    int64_t stopping_since_ms, closed_since_ms, last_watchdog_ms;
    struct conn *buckets[CONN_BUCKETS];
    size_t n_conns;
    uint64_t next_conn_id;
    size_t request_bytes;      /* held by requests that arrive, wait or run */
    struct run *runs, *recent; /* running; ended and kept for those who come back */
    size_t n_runs, n_recent;
    lws_sorted_usec_list_t tick;
    int n_workers;             /* tokenizing */
    uint64_t loops, callbacks; /* since the last tick */
    int spinning_ticks;
    int64_t started_ms, last_ping_ms, last_notify_ms, last_sparse_ms;
    struct counters counters;
    struct histogram ttft, itl, queue, prefill, restore;
    struct lws_protocols protocols[3];
    lws_retry_bo_t retry;
    char model_name[256], model_file[256]; /* the file's base name without .gguf is a name too */
};

extern const struct route server_routes[];
extern const size_t server_n_routes;
int64_t now_ms(void);   /* wall clock */
int64_t clock_us(void); /* monotonic */
int64_t clock_ms(void);
void server_dispatch(struct conn *c); /* routes a complete request */
/* Counts bytes that a request takes. False (and nothing counted): that would be more than request-bytes, *e says so. */
bool server_take_bytes(struct server *s, size_t bytes, struct api_error *e);
void server_give_bytes(struct server *s, size_t bytes);
/* Makes room for `need` bytes in a buffer whose size is counted. 0; -EDQUOT: more than request-bytes, *e says so; or
 * -ENOMEM. */
int server_grow_buffer(struct server *s, char **buffer, size_t *size, size_t need, struct api_error *e);
bool server_model_known(const struct server *s, const char *name);
void server_take_events(struct server *s);
void server_begin_close(struct server *s);
int server_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len);
/* http.c: the HTTP half of the callback */
int http_begin(struct conn *c);
int http_body(struct conn *c, const void *data, size_t len);
int http_body_complete(struct conn *c);
/* Before an upgrade: 0 = go on; otherwise the answer was written and the connection has to be closed. */
int http_check_upgrade(struct server *s, struct lws *wsi, char owner[OWNER_SIZE]);
/* `token` is what auth_known() takes; origin may be NULL. */
int http_check_access(struct server *s, struct lws *wsi, bool open_route, char owner[OWNER_SIZE],
                      unsigned char token[TOKEN_DIGEST_BYTES], char **origin, struct api_error *e);
int http_write_plain(struct lws *wsi, const struct api_error *e);

/* ---- ws.c ---------------------------------------------------------------------------------------------------------
 */

int ws_receive(struct conn *c, const char *data, size_t len);
void ws_message(struct conn *c, const char *text, size_t len);
/* A run of this lane has ended: start the next. */
void ws_lane_ended(struct conn *c, const char *stream_id);
void ws_free(struct conn *c);
void ephemerals_free(struct conn *c); /* turn.c */

/* ---- turn.c: runs
 * ---------------------------------------------------------------------------------------------------- */

struct log_entry {
    const char *name; /* event type; static */
    char *data;
    size_t len;
};

enum run_api { RUN_RESPONSES, RUN_CHAT };

/* A parsed request, ready to become a turn. Everything in it is owned by it. */
struct turn_request {
    enum run_api api;
    cJSON *texts;       /* strings that messages point into */
    cJSON *params_json; /* what `params` says */
    char *conversation, *previous, *parent, *instructions, *input, *params, *stream_id, *model;
    struct engine_message *messages;
    size_t n_messages;
    struct server *server; /* who counts its bytes; NULL: nobody yet */
    size_t bytes;
    struct engine_sampling sampling;
    char *stops[16];
    size_t n_stops;
    int max_output_tokens;
    bool has_parent, store, generate, stream, progress, include_usage, finish_on_disconnect, has_disconnect;
};
void turn_request_free(struct turn_request *r);
/* Counts what a request parsed from a body of so many bytes holds, until it is freed. False: too much, *e says so. */
bool turn_request_count(struct turn_request *r, struct server *s, size_t body_bytes, struct api_error *e);

struct run {
    struct run *next, *prev;
    struct server *server;
    struct turn_request *request;
    char id[ID_SIZE], message_id[ID_SIZE];
    char owner[OWNER_SIZE];
    char *idempotency_key;
    bool has_digest; /* came as a POST */
    unsigned char digest[RETRY_DIGEST_BYTES];
    char conversation[ID_SIZE];
    uint64_t ephemeral_conn; /* store:false over a WebSocket: which connection may follow it; 0 = none */
    int64_t created_ms, completed_ms, ended_clock_ms, last_delta_us;
    int64_t sequence;
    bool started, ended, failed, item_open;
    bool abandoned;     /* cancelled because nobody read it any more */
    bool hidden;        /* only those who read it already may; it goes with the last of them */
    const char *status; /* "in_progress", "completed", "incomplete", "failed" */
    char *reason;
    char *text; /* the answer so far */
    size_t text_len, text_size;
    struct log_entry *log;
    size_t n_log, log_capacity;
    uint64_t log_bytes;
    size_t kept_bytes; /* of an ended run: all that it holds */
    /* For those who wait for one whole answer. */
    int answer_status;
    char *answer;
    struct api_error error;
    struct subscriber *subscribers;
    bool finish_on_disconnect;
    int input_tokens, cached_tokens, output_tokens;
    char *receipt;
};

/* Starts a turn and subscribes c to it. Takes request. On refusal the error was answered on c. */
void run_start(struct conn *c, struct turn_request *request, int kind);
struct run *run_find(struct server *s, const char *owner, const char *id);
/* The response, or all of the conversation, was deleted: nobody finds it any more. */
void run_hide(struct server *s, const char *owner, const char *id);
void run_subscribe(struct run *run, struct conn *c, int kind, size_t from, const char *stream_id);
void subscriber_unlink(struct subscriber *sub);
/* Puts what fits of the runs' logs into c's queue. */
void conn_pump(struct conn *c);
void run_event(struct run *run, struct event *e);            /* EVENT_TURN */
void run_log(struct run *run, const char *name, char *data); /* takes data */
void run_expire(struct server *s);
void run_free_all(struct server *s);
void run_free(struct run *run);
void run_remember(struct run *run); /* an ended run that is in no list yet */
bool run_append(struct run *run, const char *text, size_t len);
void run_session_error(enum session_failure failure, const char *message, struct api_error *e);

/* ---- retry.c ---- */

void retry_digest(const struct conn *c, unsigned char digest[RETRY_DIGEST_BYTES]);
/* True: this POST is a repetition; it reads the first one's run, or was refused. */
bool retry_attach(struct conn *c, enum run_api api, bool stream);

/* ---- responses.c, response_object.c
 * ----------------------------------------------------------------------------------- */

/* Parses a create body. Takes body in every case. NULL and *e on refusal. websocket: `stream` is ignored. */
struct turn_request *responses_parse(cJSON *body, bool websocket, struct api_error *e);
/* Events of a run. */
void responses_started(struct run *run);
void responses_progress(struct run *run, const struct session_event *ev);
void responses_delta(struct run *run, const char *text);
void responses_done(struct run *run);
void responses_failed(struct run *run);
cJSON *response_object(const struct run *run);
/* A run as it would be remembered, from what is stored. NULL: out of memory. */
struct run *run_from_stored(struct server *s, const char *owner, const struct session_response *r);
/* Fills its log with the whole sequence, or with what follows `starting_after`; the deltas are one. Returns the index
 * of the first entry that follows. */
size_t responses_replay(struct run *run, int64_t starting_after);
/* The stored input and output as items; appended to `items`. 0 or -ENOMEM. */
int response_items(const struct session_response *r, bool with_output, cJSON *items);
/* [data, first_id, last_id, has_more] of a list. Takes items. */
cJSON *list_object(cJSON *items, bool more);

/* One page of items, newest first unless order=asc. Takes items. */
void conn_answer_page(struct conn *c, cJSON *items);

/* Shared with Chat Completions. Text of a message's content (a string or text parts), malloc'd; where names the field.
 */
char *message_text(const cJSON *content, const char *where, struct api_error *e);
int message_role(const char *name, enum engine_role *role);
bool model_check(const struct server *s, const char *model, struct api_error *e);
bool stream_id_valid(const char *id);

void responses_create(struct conn *c);
void responses_get(struct conn *c);
void responses_delete(struct conn *c);
void responses_cancel(struct conn *c);
void responses_input_items(struct conn *c);

/* ---- sampling.c
 * ---------------------------------------------------------------------------------------------------- */

/* Reads temperature and top_p from body, our own fields and the seed from extra, whose fields are called prefix + name
 * in messages. Either may be NULL; what is missing has the engine's default, and the seed (-1, too) a random one. */
int sampling_parse(const cJSON *body, const cJSON *extra, const char *prefix, struct engine_sampling *out,
                   struct api_error *e);
/* A field of engine_sampling as the decimal number that it was set from, to six places. */
double sampling_shown(float value);
/* Adds the fields that sampling_parse reads from extra. */
void sampling_echo(const struct engine_sampling *s, cJSON *o);

/* ---- chat_completions.c
 * ------------------------------------------------------------------------------------------------ */

struct turn_request *chat_parse(cJSON *body, struct api_error *e);
void chat_started(struct run *run);
void chat_delta(struct run *run, const char *text);
void chat_done(struct run *run);
void chat_create(struct conn *c);

/* ---- conversations.c
 * --------------------------------------------------------------------------------------------------- */

void conversations_create(struct conn *c);
void conversations_list(struct conn *c);
void conversations_get(struct conn *c);
void conversations_update(struct conn *c);
void conversations_delete(struct conn *c);
void conversations_items(struct conn *c);
void conversations_evict(struct conn *c);

/* ---- ops.c: commands of the session that answer a request
 * -------------------------------------------------------------- */

struct op {
    struct server *server;
    uint64_t conn_id;
    char id[ID_SIZE], owner[OWNER_SIZE];
    int64_t number;
    bool flag, deletes;
    void (*answer)(struct conn *c, struct op *op, const struct session_result *r);
    char *text; /* tokenize */
    size_t len;
    int rc;
    struct engine_tokens tokens;
    const struct session *session;
    struct event *event; /* ready to be posted, so that a worker cannot run out of memory */
};
struct op *op_new(struct conn *c, const char *id,
                  void (*answer)(struct conn *c, struct op *op, const struct session_result *r));
void op_done(void *op, const struct session_result *r); /* session_done */
/* After a session call: answers on c when it failed to post (and frees op). */
void op_posted(struct conn *c, struct op *op, int rc);
void op_result(struct op *op, const struct session_result *r); /* network thread; frees op */
void op_free(struct op *op);

/* ---- service.c, metrics.c
 * ------------------------------------------------------------------------------------------------ */

void service_health(struct conn *c);
void service_ready(struct conn *c);
void service_models(struct conn *c);
void service_model(struct conn *c);
void service_tokenize(struct conn *c);
void service_status(struct conn *c);
void metrics_get(struct conn *c);
void metrics_observe(struct histogram *h, double seconds);

#endif

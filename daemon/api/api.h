/* api.h - the interfaces: a table of routes, a file per interface, the objects that they show.
 *
 * A request arrives as a struct client with a request on it, complete and checked: api_dispatch() calls its route's
 * handler. A message of a WebSocket arrives through ws_message(). Answers go back through the functions of struct
 * client_ops, which net/ hands down: nothing here knows a socket. Everything runs on the network thread.
 */
#ifndef CONVOD_DAEMON_API_H
#define CONVOD_DAEMON_API_H

#include "daemon/api/json.h"
#include "daemon/api/route.h"
#include "daemon/daemon.h"
#include "daemon/run/run.h"

/* ---- limits that a peer can meet ----------------------------------------------------------------------------------
 */

#define BODY_BYTES_MAX       (16 * 1024 * 1024) /* an HTTP body; more is 413 */
#define MESSAGE_BYTES_MAX    (16 * 1024 * 1024) /* a WebSocket message; more is close 1009 */
#define QUEUE_BYTES_MAX      (4 * 1024 * 1024)  /* of control replies that a WebSocket does not read */
#define PUMP_BYTES           (64 * 1024)        /* of events queued ahead of the socket */
#define LANES_MAX            32                 /* named lanes of a WebSocket */
#define LANES_ACTIVE_MAX     16                 /* lanes with a running turn */
#define LANE_WAITING_MAX     64                 /* requests waiting on a WebSocket, all lanes */
#define WATCHED_MAX          32                 /* responses that a WebSocket has attached to */
#define STREAM_ID_MAX        256
#define TOKENIZE_BYTES_MAX   (1024 * 1024)
#define TOKENIZE_RUNNING_MAX 4

/* ---- what all interfaces share -------------------------------------------------------------------------------------
 */

struct op;

struct api {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct runs runs; /* with the session, once it is there */
    struct budget budget;
    struct metrics metrics;
    struct events *events;
    bool stopping;
    int load_promille;
    char load_what[64];
    int64_t started_ms; /* wall clock */
    size_t n_clients;
    int n_workers;                         /* threads that use the session (tokenizing) */
    void (*worker_ended)(struct api *api); /* one of them has; may be NULL */
    char model_name[256], model_file[256]; /* the file's base name without .gguf is a name too */
    /* Of those that are still here. */
    struct client *(*find)(struct api *api, uint64_t id);
    void *find_arg;
};

/* ---- clients (client.c) -------------------------------------------------------------------------------------------
 */

struct client;

/* What net/ does for a client. None of these calls back. */
struct client_ops {
    /* One whole answer. Takes `body` (malloc'd; NULL: out of memory, answers 500). */
    void (*answer)(struct client *c, int status, const char *content_type, char *body);
    /* An event stream: its head, an event (name may be NULL), its end. */
    void (*stream_begin)(struct client *c);
    void (*stream_event)(struct client *c, const char *name, const char *data);
    void (*stream_end)(struct client *c);
    /* One message of a WebSocket, in two parts. */
    void (*message)(struct client *c, const char *head, size_t head_len, const char *tail, size_t tail_len);
    void (*close)(struct client *c, int code, const char *reason);
    /* Ends it at once. */
    void (*drop)(struct client *c);
    /* There is something to write: client_pump() is called when the socket takes more. */
    void (*wake)(struct client *c);
};

struct client_request {
    enum route_method method;
    const struct route *route;
    char param[ROUTE_PARAM_MAX]; /* the id in the path */
    struct route_query query;
    struct run_retry retry;
    char *body; /* terminated; NULL: none */
    size_t body_len;
};

/* One reader of a run on a client. */
struct reader {
    struct subscriber sub; /* first */
    struct reader *next;
    struct client *client;
    enum { READ_BODY, READ_SSE, READ_WS, READ_WATCH } kind; /* WATCH: a WebSocket, no lane waits */
    char *stream_id;                                        /* WS: echoed in every event; NULL = none */
};

struct lane;

/* A connection as the interfaces see it. Stands first in net's own. */
struct client {
    const struct client_ops *ops;
    struct api *api;
    uint64_t id;
    char owner[OWNER_SIZE]; /* empty: nobody was asked for, or accepted */
    bool websocket;
    bool dropped;        /* ignore everything */
    bool streaming;      /* an event stream was begun */
    bool answered;       /* the last byte of the answer is queued */
    size_t queued_bytes; /* that the socket has not taken */
    struct client_request request;
    int tokens_in, tokens_cached, tokens_out; /* of the answer, where a turn made it */
    struct reader *readers;
    struct run_home home;
    struct lane *lanes;
    int n_lanes, n_active, n_waiting, n_watched;
    bool lanes_busy;
};

/* Readers are unlinked, and their policy is applied; lanes and requests that wait are freed. */
void client_free(struct client *c);
void client_request_clear(struct client *c);
void client_answer(struct client *c, int status, const char *content_type, char *body); /* takes body */
void client_answer_json(struct client *c, int status, cJSON *json);                     /* takes json */
void client_answer_error(struct client *c, const struct api_error *e);
void client_ws_error(struct client *c, const struct api_error *e, const char *stream_id);
/* Reads a run's log on this client from entry `from` on. */
void client_read(struct client *c, struct run *run, int kind, size_t from, const char *stream_id);
/* Queues what fits of the runs' logs. */
void client_pump(struct client *c);
/* Does it wait for an event stream? */
bool client_streams(const struct client *c);
/* The answer has left: one line in the log. */
void client_answered(const struct client *c, int status, int64_t ms);
/* {"error": ...}, malloc'd; NULL: out of memory. */
char *api_error_text(const struct api_error *e);
/* The handler of a request whose body is complete. */
void api_dispatch(struct client *c);

/* ---- routes (routes.c) --------------------------------------------------------------------------------------------
 */

extern const struct route api_routes[];
extern const size_t api_n_routes;

/* ---- WebSocket messages (ws.c) ------------------------------------------------------------------------------------
 */

void ws_message(struct client *c, const char *text, size_t len);
/* A run of this lane has ended: start the next. */
void ws_lane_ended(struct client *c, const char *stream_id);
void ws_free(struct client *c);

/* ---- Responses (responses.c, response_object.c) -------------------------------------------------------------------
 */

extern const struct run_format responses_format;
/* Parses a create body. Takes body in every case. NULL and *e on refusal. websocket: `stream` is ignored, and turns of
 * a conversation go on without their readers. */
struct turn_request *responses_parse(cJSON *body, bool websocket, struct api_error *e);
cJSON *response_object(const struct run *run);
/* A run as it would be remembered, from what is stored. NULL: out of memory. */
struct run *run_from_stored(struct runs *rs, const char *owner, const struct session_response *r);
/* Fills its log with the whole sequence, or with what follows `starting_after`; the deltas are one. Returns the index
 * of the first entry that follows. */
size_t responses_replay(struct run *run, int64_t starting_after);
/* The stored input and output as items; appended to `items`. 0 or -ENOMEM. */
int response_items(const struct session_response *r, bool with_output, cJSON *items);
/* [data, first_id, last_id, has_more] of a list. Takes items. */
cJSON *list_object(cJSON *items, bool more);
/* One page of items, newest first unless order=asc. Takes items. */
void client_answer_page(struct client *c, cJSON *items);

/* Shared with Chat Completions. Text of a message's content (a string or text parts), malloc'd; where names the field.
 */
char *message_text(const cJSON *content, const char *where, struct api_error *e);
int message_role(const char *name, enum engine_role *role);
bool model_check(const struct api *api, const char *model, struct api_error *e);
bool stream_id_valid(const char *id);
/* Starts a turn for a POST, or joins the one that it repeats. Takes q. */
void client_start(struct client *c, struct turn_request *q);

void responses_create(struct client *c);
void responses_get(struct client *c);
void responses_delete(struct client *c);
void responses_cancel(struct client *c);
void responses_input_items(struct client *c);

/* ---- sampling (sampling.c) ----------------------------------------------------------------------------------------
 */

/* Reads temperature and top_p from body, our own fields and the seed from extra, whose fields are called prefix + name
 * in messages. Either may be NULL; what is missing has the engine's default, and the seed (-1, too) a random one. */
int sampling_parse(const cJSON *body, const cJSON *extra, const char *prefix, struct engine_sampling *out,
                   struct api_error *e);
/* A field of engine_sampling as the decimal number that it was set from, to six places. */
double sampling_shown(float value);
/* Adds the fields that sampling_parse reads from extra. */
void sampling_echo(const struct engine_sampling *s, cJSON *o);

/* ---- Chat Completions (chat_completions.c) ------------------------------------------------------------------------
 */

extern const struct run_format completions_format;
struct turn_request *chat_parse(cJSON *body, struct api_error *e);
void chat_create(struct client *c);

/* ---- conversations (conversations.c) ------------------------------------------------------------------------------
 */

void conversations_create(struct client *c);
void conversations_list(struct client *c);
void conversations_get(struct client *c);
void conversations_update(struct client *c);
void conversations_delete(struct client *c);
void conversations_items(struct client *c);
void conversations_evict(struct client *c);

/* ---- commands of the session that answer a request (ops.c) --------------------------------------------------------
 */

struct op {
    struct event event; /* first: its result, on its way */
    struct api *api;
    uint64_t client_id;
    char id[ID_SIZE], owner[OWNER_SIZE];
    int64_t number;
    bool flag, deletes;
    void (*answer)(struct client *c, struct op *op, const struct session_result *r);
    struct session_result result; /* deep copy */
};
struct op *op_new(struct client *c, const char *id,
                  void (*answer)(struct client *c, struct op *op, const struct session_result *r));
void op_done(void *op, const struct session_result *r); /* session_done */
/* After a session call: answers on c when it failed to post (and frees op). */
void op_posted(struct client *c, struct op *op, int rc);
void op_free(struct op *op);

/* ---- the daemon itself (service.c) --------------------------------------------------------------------------------
 */

void service_health(struct client *c);
void service_ready(struct client *c);
void service_models(struct client *c);
void service_model(struct client *c);
void service_tokenize(struct client *c);
void service_status(struct client *c);
void service_metrics(struct client *c);

#endif

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

#define BODY_BYTES_MAX     (16 * 1024 * 1024) /* an HTTP body; more is 413 */
#define MESSAGE_BYTES_MAX  (16 * 1024 * 1024) /* a WebSocket message; more is close 1009 */
#define QUEUE_BYTES_MAX    (4 * 1024 * 1024)  /* of control replies that a WebSocket does not read */
#define PUMP_BYTES         (64 * 1024)        /* of events queued ahead of the socket */
#define LANES_MAX          32                 /* named lanes of a WebSocket */
#define LANES_ACTIVE_MAX   16                 /* lanes with a running turn */
#define LANE_WAITING_MAX   64                 /* requests waiting on a WebSocket, all lanes */
#define WATCHED_MAX        32                 /* responses that a WebSocket has attached to */
#define STREAM_ID_MAX      256
#define TOKENIZE_BYTES_MAX (1024 * 1024)
#define DETOKENIZE_IDS_MAX 131072
#define LOGPROBS_AGAIN_MAX 16384        /* tokens and their alternatives in an event that repeats those of the deltas */
#define DESCRIPTION_MAX    (256 * 1024) /* of a tool, and of a form */

/* ---- tickets (tickets.c) -------------------------------------------------------------------------------------------
 */

#define TICKETS_MAX 1024

struct ticket {
    unsigned char digest[TOKEN_DIGEST_BYTES];
    struct auth_who who;
    int64_t until_ms; /* monotonic; what is past is free */
};
struct tickets {
    struct ticket list[TICKETS_MAX];
};
/* Takes the ticket that it is out of the list. False: there is none, it was used, or its time is over. */
bool ticket_take(struct tickets *all, const char *text, size_t len, struct auth_who *out);

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
    struct tickets tickets;
    atomic_bool stopping; /* set on the network thread */
    int requeueing; /* turns that waited in the queue over a restart and have no run yet, and the search for them */
    struct event requeue_ended;
    int load_promille;
    char load_what[64];
    int64_t started_ms; /* wall clock */
    size_t n_clients;
    int n_workers;                         /* pieces of work that use the session, or will (tokenizing) */
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
    /* Ends it at once. */
    void (*drop)(struct client *c);
    /* There is something to write: client_pump() is called at the end of the loop's turn, or when the socket takes
     * more. */
    void (*wake)(struct client *c);
};

struct client_request {
    enum route_method method;
    const struct route *route;
    char param[ROUTE_PARAM_MAX]; /* the id in the path; of two, with a slash between */
    struct route_query query;
    struct run_retry retry;
    char *body; /* terminated; NULL: none, or it was parsed */
    size_t body_len;
    size_t body_size; /* of the body's buffer: counted by the budget */
    /* Of a large body, parsed before the handler was called: */
    cJSON *json;
    struct turn_request *turn;
    struct api_error refused;
    bool parsed;
};

/* One reader of a run on a client. */
struct reader {
    struct subscriber sub; /* first */
    struct reader *next;
    struct client *client;
    /* ACCEPTED: the answer says that it was; WATCH: a WebSocket, no lane waits. */
    enum { READ_BODY, READ_ACCEPTED, READ_SSE, READ_WS, READ_WATCH } kind;
    char *stream_id; /* WS: echoed in every event; NULL = none */
};

struct lane;
struct message;

/* A connection as the interfaces see it. Stands first in net's own. */
struct client {
    const struct client_ops *ops;
    struct api *api;
    uint64_t id;
    char owner[OWNER_SIZE]; /* empty: nobody was asked for, or accepted */
    struct auth_who who;    /* by which token it is the owner */
    bool closing;           /* it takes nothing more: what waits is not done */
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
    struct message *inbox; /* messages that are being parsed, or wait for those before them */
    int n_inbox;
    uint64_t lanes_used;
    char unacknowledged[ID_SIZE]; /* the stored response whose answer was queued to its end; "" = none */
};

/* The peer has acknowledged all that was sent. */
void client_acknowledged(struct client *c);
/* Readers are unlinked, and their policy is applied; lanes and messages that wait are freed. The request is not: what
 * it holds is counted (conn.c). */
void client_free(struct client *c);
void client_request_clear(struct client *c);
/* The request's body; the caller's. An empty one is {} where that is allowed. NULL and *e: it is refused. */
cJSON *client_json(struct client *c, bool may_be_empty, struct api_error *e);
/* Frees it: a long one, of very many values, where nobody waits for that. */
void client_json_free(struct client *c, cJSON *json);
/* The turn that it asks for, as its route parses it; the caller's. Its digest is in retry. */
struct turn_request *client_turn(struct client *c, struct api_error *e);
void client_answer(struct client *c, int status, const char *content_type, char *body); /* takes body */
void client_answer_json(struct client *c, int status, cJSON *json);                     /* takes json */
void client_answer_error(struct client *c, const struct api_error *e);
/* What `Retry-After` says, in seconds. */
int api_retry_s(const struct api *api);
/* A message of a WebSocket; takes o. stream_id: of whom it is; NULL: nobody in particular. */
void client_ws_answer(struct client *c, cJSON *o, const char *stream_id);
void client_ws_error(struct client *c, const struct api_error *e, const char *stream_id);
/* Reads a run's log on this client from entry `from` on. */
void client_read(struct client *c, struct run *run, int kind, size_t from, const char *stream_id);
/* Queues what fits of the runs' logs. */
void client_pump(struct client *c);
/* Does it wait for an event stream? */
bool client_streams(const struct client *c);
/* The answer has left, or was cut off (whole: false; status 0: before it had one): one line in the log. */
void client_answered(const struct client *c, int status, int64_t ms, bool whole);
/* The handler of a request whose body is complete. */
void api_dispatch(struct client *c);

/* ---- routes (routes.c) --------------------------------------------------------------------------------------------
 */

extern const struct route api_routes[];
extern const size_t api_n_routes;
/* What the APIs have at a path that no route has, in words; NULL: nothing that is known. */
const char *api_absent(const char *path);

/* ---- WebSocket messages (ws.c) ------------------------------------------------------------------------------------
 */

/* counted: bytes of the budget that text holds. True: text was taken, and they are given back. */
bool ws_message(struct client *c, char *text, size_t len, size_t counted);
/* A run of this lane has ended: start the next. */
void ws_lane_ended(struct client *c, const char *stream_id);
void ws_free(struct client *c);

/* ---- POSTs that make a turn, of any interface (create.c) -----------------------------------------------------------
 */

/* The end of each parser: q with the model that the body names. rc: not 0, it is refused, and *e says so; q NULL: out
 * of memory. Takes both. NULL: refused. */
struct turn_request *request_parsed(struct turn_request *q, cJSON *body, int rc, struct api_error *e);
/* Of a request (*q NULL: it was refused) that was parsed of `text` what takes as long as its client likes, and the
 * network thread is to find done: what its turns keep of the items, and the body of one that runs in the background.
 * Out of memory: it is refused, and *q is NULL. */
void request_complete(struct turn_request **q, const char *text, size_t len, struct api_error *e);
bool model_check(const struct api *api, const char *model, struct api_error *e);
/* Whether what a request names is here: the model, and the tokens that it gives a bias. */
bool request_check(const struct api *api, const struct turn_request *q, struct api_error *e);
/* Starts a turn for a POST, or joins the one that it repeats. Takes q. False: it could not be started, which was
 * answered. */
bool client_start(struct client *c, struct turn_request *q);
/* The turn that was parsed of a POST, of any interface. */
void client_create(struct client *c);
/* The request as one whose tokens are counted alone, for any interface. */
struct turn_request *count_only(struct turn_request *q);

/* ---- Responses (responses.c, response_object.c) -------------------------------------------------------------------
 */

extern const struct run_format responses_format;
/* Parses a create body. Takes body in every case. NULL and *e on refusal. websocket: `stream` is ignored, and turns of
 * a conversation go on without their readers. */
struct turn_request *responses_parse(cJSON *body, bool websocket, struct api_error *e);
/* Has the turn follow a response of its conversation, "": nothing. NULL: it is not said. 0, or -1 and *e. */
int responses_parse_parent(struct turn_request *q, const char *parent, struct api_error *e);
struct turn_request *responses_parse_post(cJSON *body, struct api_error *e);
cJSON *response_object(const struct run *run);
cJSON *response_usage(const struct run *run);
/* Tokens of the answer that were thinking. */
double answer_thinking(const struct run *run);
/* Whether the answer was cut where it, or the context, had as many tokens as it may have. */
bool answer_is_too_long(const struct run *run);
/* The run's receipt as `convod` of o, if it has one, with why the answer was cut, where it was. */
void receipt_add(cJSON *o, const struct run *run);
/* Fills its log with the whole sequence, or with what follows `starting_after`; the deltas are one. Returns the index
 * of the first entry that follows; SIZE_MAX: there never was such an event. */
size_t responses_replay(struct run *run, int64_t starting_after);
/* Reads the events of a response behind `starting_after` from its run, where that is remembered; false: it is not. */
bool responses_follow(struct client *c, int kind, const char *id, int64_t starting_after, const char *stream_id);
/* The same from what is stored: `build` of an op whose result is the response and whose number is `starting_after`, and
 * what its `answer` calls. */
char *responses_build_stream(struct op *op, struct api_error *e);
void responses_attach(struct client *c, int kind, struct op *op, const char *stream_id);
/* A cursor that no event of a response ever had. */
void responses_cursor_error(struct api_error *e);
/* An item of the API's lists. */
cJSON *item_object(const struct session_item *item);
/* [data, first_id, last_id, has_more] of a list. Takes items. */
cJSON *list_object(cJSON *items, bool more);
/* Items in a list. */
cJSON *item_list(const struct session_item *items, size_t n, bool more);

bool stream_id_valid(const char *id);
#define PAGE_DEFAULT 20 /* rows of a list, unless the query says */

/* Turns that an earlier process left in the queue run again. */
void responses_requeue(struct api *api);

struct turn_request *responses_parse_count(cJSON *body, struct api_error *e);
struct turn_request *responses_parse_compact(cJSON *body, struct api_error *e); /* compact.c */
void responses_get(struct client *c);
void responses_delete(struct client *c);
void responses_cancel(struct client *c);
void responses_input_items(struct client *c);

/* ---- lists of messages (messages.c) -------------------------------------------------------------------------------
 */

#define MESSAGES_MAX 8192 /* of one request: with the shortest of texts more than a context of 64k tokens */

/* Reads a list into q's items. items: those of Responses, which have types and get ids. 0, or -1 and *e, whose param
 * begins with `name`. */
int messages_parse(struct turn_request *q, const cJSON *list, const char *name, bool items, struct api_error *e);
/* One message of the user. */
int messages_single(struct turn_request *q, const char *text, struct api_error *e);
int message_role(const char *name, enum engine_role *role);

/* ---- grammars (lark.c) --------------------------------------------------------------------------------------------
 */

#define LARK_BYTES_MAX   (64 * 1024)
#define LARK_RULES_MAX   256
#define LARK_DEPTH_MAX   64
#define LARK_PATTERN_MAX 4080  /* what a pattern may have, with what is put around it */
#define LARK_STEPS_MAX   65536 /* marks, strings and names that are looked at on the way to it */

/* A grammar in Lark's language as a regular expression of the texts that it has from `start` on. *out is malloc'd. -1
 * and err: it is none, or has no such expression. */
int lark_pattern(const char *text, char **out, char *err, size_t err_size);
/* Whether a pattern's groups and classes end within it, so that it can be put into another one. */
bool pattern_is_whole(const char *pattern, size_t len);

/* ---- thinking (effort.c) -------------------------------------------------------------------------------------------
 */

/* No thinking: what the model begins of it is ended. */
void effort_none(struct turn_request *q);
/* word: `none`, `minimal`, ... `max`; NULL: nothing is asked for. param: its name. 0, or -1 and *e: it is another. */
int effort_parse(const char *word, const char *param, struct turn_request *q, struct api_error *e);
/* How many tokens may be thought, where o says it as `thinking_tokens`. 0, or -1 and *e. */
int effort_parse_budget(const cJSON *o, const char *prefix, struct turn_request *q, struct api_error *e);
/* `reasoning_effort`, `thinking_tokens` and `chat_template_kwargs` of Chat Completions. 0, or -1 and *e. */
int effort_parse_chat(const cJSON *body, struct turn_request *q, struct api_error *e);

/* ---- calls (calls.c) ----------------------------------------------------------------------------------------------
 */

/* Makes the fields of a body those that a client knows: a name without its namespace. */
void call_show(cJSON *item);
/* A custom tool's input, as far as it can be told of its arguments so far: behind *from (0: all), which moves on.
 * malloc'd; NULL: out of memory. */
char *call_input(const char *arguments, size_t *from);
/* The arguments that stand for an input, the other way round. */
char *call_arguments(const char *input);

/* ---- tools (tools.c) ----------------------------------------------------------------------------------------------
 */

#define TOOL_NAME_MAX 128

bool tool_name_valid(const char *name);
/* How the process's model writes calls: what strict ones are compiled for. Before anything is parsed. */
void tools_model(enum engine_call_syntax calls);
/* Reads `tools`, `tool_choice` and `parallel_tool_calls` into q. schema: where a definition's schema stands, for
 * errors; "function....": definitions and choices have their function under "function", as in Chat Completions. What a
 * response shows of them goes into echo (may be NULL). 0, or -1 and *e. */
int tools_parse(struct turn_request *q, const cJSON *body, const char *schema, cJSON *echo, struct api_error *e);

/* ---- what cannot be done (unsupported.c) --------------------------------------------------------------------------
 */

enum unsupported_api { UNSUPPORTED_RESPONSES, UNSUPPORTED_COMPLETIONS, UNSUPPORTED_TEXT, UNSUPPORTED_ANTHROPIC };
/* 0, or -1 and *e: a field of the body asks for something that changes the answer and is not done here. */
int unsupported_check(const cJSON *body, enum unsupported_api api, struct api_error *e);

/* ---- sampling (sampling.c) ----------------------------------------------------------------------------------------
 */

/* Reads temperature and top_p from body, our own fields from extra, whose fields are called prefix + name in messages,
 * and the seed from extra or, where that has none, body. Either may be NULL; what is missing has the engine's default,
 * and the seed (-1, too) a random one. */
int sampling_parse(const cJSON *body, const cJSON *extra, const char *prefix, struct engine_sampling *out,
                   struct api_error *e);
/* Reads logit_bias, {"TOKEN": number from -100 to 100}, into q: up to ENGINE_BIAS_MAX tokens, in their order. 0, or -1
 * and *e. */
int bias_parse(const cJSON *body, struct turn_request *q, struct api_error *e);
/* A field of engine_sampling as the decimal number that it was set from, to six places. */
double sampling_shown(float value);
/* Adds the fields that sampling_parse reads from extra. */
void sampling_echo(const struct engine_sampling *s, cJSON *o);

/* Reads `priority`, how the turn stands to others: "interactive" or "background". 0, or -1 and *e. */
int priority_parse(const cJSON *body, const char *prefix, bool *patient, struct api_error *e);

/* ---- how likely tokens were (logprobs.c) --------------------------------------------------------------------------
 */

/* Reads top_logprobs into q->n_top. */
int logprobs_parse(const cJSON *body, struct turn_request *q, struct api_error *e);
/* Of item i's tokens from number `from` on: a list of {"token", "logprob", "bytes", "top_logprobs"}. */
cJSON *logprobs_list(const struct run *run, size_t i, size_t from);

/* ---- pieces of answers (piece.c) ----------------------------------------------------------------------------------
 */

#define PIECE_MARK "\x01"

/* Logs the event, of this name (static; NULL: none), of a piece of item i's text; of a custom tool's call, of what that
 * adds to its input, and none where that is nothing. make: such an event whose text is PIECE_MARK, asked for once in an
 * item's life. number: becomes the event's last member, `sequence_number`, and is counted on; NULL: it has none. */
void piece_log(struct run *run, size_t i, const char *name, const char *text, int64_t *number,
               cJSON *(*make)(const struct run *run, size_t i));

/* ---- forms of answers (form.c) ------------------------------------------------------------------------------------
 */

/* Whether a body may hold a schema, which is compiled where it is parsed: not on the network thread. */
bool form_may_be_in(const char *body, size_t len);
/* Reads text.format or response_format (NULL: none) into q->form. prefix: "text.format."; nested: name, schema and
 * strict are within "json_schema", as in Chat Completions. echo (may be NULL) gets the format as it is. */
int form_parse(const cJSON *format, const char *prefix, bool nested, struct turn_request *q, cJSON *echo,
               struct api_error *e);
/* Reads `verbosity` of o, a word that no template has: it is checked and shown again. 0, or -1 and *e. */
int verbosity_parse(const cJSON *o, const char *prefix, const char **out, struct api_error *e);

/* ---- several answers, in Chat Completions and Completions (choices.c) -----------------------------------------------
 */

struct choices {
    const char *id_prefix, *object, *chunk;  /* what the id begins with; `object` of the answer and of its pieces */
    cJSON *(*choice)(const struct run *run); /* one answer, whole */
    cJSON *(*last)(const struct run *run);   /* its last piece, which says why it ended */
};
/* Reads `n`, how many answers there are to be, into q. 0, or -1 and *e. */
int choices_parse(const cJSON *body, struct turn_request *q, struct api_error *e);
/* `usage` of a run. */
cJSON *chat_usage(const struct run *run);
/* Why an answer of text ended: "length" or "stop". */
const char *choices_reason(const struct run *run);
/* A piece of an answer: an object with this choice, which is taken. */
cJSON *choices_chunk(const struct run *run, const struct choices *form, cJSON *choice);
/* It goes into the run's log. Takes choice. last: with its receipt. */
void choices_log(struct run *run, const struct choices *form, cJSON *choice, bool last);
/* A run_format's `done`. */
void choices_done(struct run *run, const struct choices *form);

/* ---- Chat Completions (chat_completions.c) ------------------------------------------------------------------------
 */

extern const struct run_format completions_format;
struct turn_request *chat_parse(cJSON *body, struct api_error *e);

/* ---- Completions (completions.c) ----------------------------------------------------------------------------------
 */

extern const struct run_format text_format;
struct turn_request *completions_parse(cJSON *body, struct api_error *e);

/* ---- Messages (anthropic.c) ---------------------------------------------------------------------------------------
 */

extern const struct run_format anthropic_format;
struct turn_request *anthropic_parse(cJSON *body, struct api_error *e);
struct turn_request *anthropic_parse_count(cJSON *body, struct api_error *e);
/* Whether the client's request is of this interface, which has errors of its own form: */
bool anthropic_speaks(const struct client *c);
cJSON *anthropic_error(const struct api_error *e);

/* ---- conversations (conversations.c) ------------------------------------------------------------------------------
 */

struct turn_request *conversations_parse_create(cJSON *body, struct api_error *e);
void conversations_create(struct client *c);
void conversations_list(struct client *c);
void conversations_get(struct client *c);
void conversations_update(struct client *c);
void conversations_delete(struct client *c);
void conversations_items(struct client *c);
struct turn_request *conversations_parse_items(cJSON *body, struct api_error *e);
void conversations_add_items(struct client *c);
void conversations_evict(struct client *c);

/* Whether the id in the path can be a conversation's; if not, that was answered. */
bool conversation_named(struct client *c);
cJSON *conversation_object(const struct session_conversation *c);
/* A turn without an answer, which reads items in. format NULL: whose answer is q->answer. NULL: out of memory. */
struct turn_request *conversation_turn(const struct run_format *format);
/* Counts what its items hold against the budget of requests. False: too much, *e says so. */
bool conversation_count(struct client *c, struct turn_request *q, struct api_error *e);
/* The conversation is there; what it begins with, the op's turn, is read in before the answer. */
void conversation_begin(struct client *c, struct op *op, const struct session_result *r);
/* Who asked for that has gone: it is not made. */
void conversation_not_begun(struct op *op, const struct session_result *r);

/* ---- branches (branches.c) ----------------------------------------------------------------------------------------
 */

void conversations_item(struct client *c);
void conversations_delete_item(struct client *c);
void conversations_fork(struct client *c);
void conversations_responses(struct client *c);

/* ---- commands of the session that answer a request (ops.c) --------------------------------------------------------
 */

struct op {
    struct event event; /* first: its result, on its way */
    struct work work;   /* making the answer of a large one */
    struct api *api;
    uint64_t client_id;
    char id[ID_SIZE], owner[OWNER_SIZE];
    int64_t number;
    struct route_query query;     /* of a page that `build` makes */
    bool flag, deletes, may_stay; /* may_stay: that others follow what was to go (-ECHILD) is no error */
    char *text;
    void (*missing)(struct client *c, const char *text); /* -ERANGE; NULL: it is a page's `after` */
    struct turn_request *turn;                           /* that follows when it is done; NULL: none */
    void (*answer)(struct client *c, struct op *op, const struct session_result *r);
    void (*unread)(struct op *op, const struct session_result *r); /* who asked has gone; NULL: nothing is to be done */
    /* The answer's body, of the result and the op alone: made by a worker where that is large. NULL and *e: it is
     * refused; NULL: out of memory. NULL: `answer` does it all. */
    char *(*build)(struct op *op, struct api_error *e);
    char *body;      /* made by that; */
    struct run *run; /* or this, of what is stored, with its log */
    struct api_error refused;
    bool built;
    struct session_result result; /* deep copy */
    size_t result_bytes;
};
struct op *op_new(struct client *c, const char *id,
                  void (*answer)(struct client *c, struct op *op, const struct session_result *r));
void op_done(void *op, const struct session_result *r); /* session_done */
/* An `answer` that is what `build` makes. */
void op_built(struct client *c, struct op *op, const struct session_result *r);
/* In an `answer`: what `build` makes is there, or op->refused says why not. */
void op_build(struct op *op);
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
void service_detokenize(struct client *c);
void service_status(struct client *c);
void service_ticket(struct client *c);
void service_metrics(struct client *c);

#endif

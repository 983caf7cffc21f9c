/* turn.c - runs: turns of the session, and who reads their events.
 *
 * A run's events are rendered once, into its log; every subscriber walks the log at the pace of its own socket. So a
 * slow reader costs the others nothing, a second device can join in the middle, and a stream can be resumed from any
 * sequence number as long as the run is remembered (RECENT_SECONDS after its end).
 *
 * The session holds a pointer to the run until its terminal event; only then may a run be freed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "daemon/daemon_internal.h"

/* Of a body in its request: the texts, the stored items, and what the session makes of them. */
#define REQUEST_COPIES    3
#define KEPT_PARAMS_BYTES 4096 /* what a tree of parameters takes beside its text */

struct ephemeral {
    struct ephemeral *next;
    char id[ID_SIZE];
};

void turn_request_free(struct turn_request *r)
{
    if (!r) {
        return;
    }
    cJSON_Delete(r->texts);
    cJSON_Delete(r->params_json);
    free(r->conversation);
    free(r->previous);
    free(r->parent);
    free(r->instructions);
    free(r->input);
    free(r->params);
    free(r->stream_id);
    free(r->model);
    free(r->messages);
    for (size_t i = 0; i < r->n_stops; i++) {
        free(r->stops[i]);
    }
    if (r->server) {
        server_give_bytes(r->server, r->bytes);
    }
    free(r);
}

bool turn_request_count(struct turn_request *r, struct server *s, size_t body_bytes, struct api_error *e)
{
    r->bytes = sizeof(*r) + body_bytes * REQUEST_COPIES;
    if (!server_take_bytes(s, r->bytes, e)) {
        return false;
    }
    r->server = s;
    return true;
}

void run_free(struct run *run)
{
    for (size_t i = 0; i < run->n_log; i++) {
        free(run->log[i].data);
    }
    free(run->log);
    free(run->text);
    free(run->reason);
    free(run->answer);
    free(run->receipt);
    free(run->idempotency_key);
    turn_request_free(run->request);
    free(run);
}

static void list_add(struct run **head, struct run *run)
{
    run->prev = NULL;
    run->next = *head;
    if (run->next) {
        run->next->prev = run;
    }
    *head = run;
}

static void list_remove(struct run **head, struct run *run)
{
    if (run->prev) {
        run->prev->next = run->next;
    } else {
        *head = run->next;
    }
    if (run->next) {
        run->next->prev = run->prev;
    }
}

/* Of those that have ended. */
static void forget(struct run *run)
{
    struct server *s = run->server;
    list_remove(&s->recent, run);
    s->n_recent--;
    run_free(run);
}

static struct run *find_in(struct run *list, const char *owner, const char *id)
{
    for (struct run *r = list; r; r = r->next) {
        if (!r->hidden && strcmp(r->id, id) == 0 && strcmp(r->owner, owner) == 0) {
            return r;
        }
    }
    return NULL;
}

struct run *run_find(struct server *s, const char *owner, const char *id)
{
    struct run *run = find_in(s->runs, owner, id);
    return run ? run : find_in(s->recent, owner, id);
}

void run_log(struct run *run, const char *name, char *data)
{
    if (!data) {
        /* Out of memory: the stream would have a gap, so it ends. */
        if (run->server->session) {
            session_cancel(run->server->session, run->owner, run->id);
        }
        return;
    }
    if (run->n_log == run->log_capacity) {
        size_t capacity = run->log_capacity ? run->log_capacity * 2 : 64;
        struct log_entry *grown = realloc(run->log, capacity * sizeof(*grown));
        if (!grown) {
            free(data);
            return;
        }
        run->log = grown;
        run->log_capacity = capacity;
    }
    size_t len = strlen(data);
    run->log[run->n_log++] = (struct log_entry){.name = name, .data = data, .len = len};
    run->log_bytes += len;
}

/* Tells all readers that the log has grown or that the run has ended. */
static void wake_readers(struct run *run)
{
    for (struct subscriber *sub = run->subscribers; sub; sub = sub->next_in_run) {
        uint64_t seen = sub->delivered_bytes > sub->joined_bytes ? sub->delivered_bytes : sub->joined_bytes;
        if (sub->conn->dropped) {
            continue;
        }
        if (sub->kind != SUBSCRIBE_BODY && run->log_bytes - seen > LAG_BYTES_MAX) {
            daemon_log(run->server->log, LOG_INFO, "connection %llu dropped: it does not read its events",
                       (unsigned long long)sub->conn->id);
            run->server->counters.dropped_slow++;
            conn_drop(sub->conn);
        } else if (sub->kind != SUBSCRIBE_BODY || run->ended) {
            conn_wake(sub->conn);
        }
    }
}

void run_subscribe(struct run *run, struct conn *c, int kind, size_t from, const char *stream_id)
{
    struct subscriber *sub = calloc(1, sizeof(*sub));
    char *id = stream_id ? strdup(stream_id) : NULL;
    if (!sub || (stream_id && !id)) {
        free(sub);
        free(id);
        conn_drop(c);
        return;
    }
    sub->run = run;
    sub->conn = c;
    sub->kind = kind;
    sub->next = from;
    sub->joined_bytes = run->log_bytes;
    sub->stream_id = id;
    c->n_watched += kind == SUBSCRIBE_WATCH;
    sub->next_in_run = run->subscribers;
    run->subscribers = sub;
    /* At the end: events of one lane keep the order of its turns. */
    struct subscriber **at = &c->subscribers;
    while (*at) {
        at = &(*at)->next_in_conn;
    }
    *at = sub;
    if (run->n_log > from || run->ended) {
        conn_wake(c);
    }
}

void subscriber_unlink(struct subscriber *sub)
{
    struct run *run = sub->run;
    for (struct subscriber **at = &run->subscribers; *at; at = &(*at)->next_in_run) {
        if (*at == sub) {
            *at = sub->next_in_run;
            break;
        }
    }
    sub->conn->n_watched -= sub->kind == SUBSCRIBE_WATCH;
    for (struct subscriber **at = &sub->conn->subscribers; *at; at = &(*at)->next_in_conn) {
        if (*at == sub) {
            *at = sub->next_in_conn;
            break;
        }
    }
    free(sub->stream_id);
    free(sub);
    struct server *s = run->server;
    if (run->hidden && run->ended && !run->subscribers) {
        forget(run);
        return;
    }
    if (!run->subscribers && !run->ended && !run->finish_on_disconnect && s->session) {
        run->abandoned = true;
        session_cancel(s->session, run->owner, run->id);
    }
}

/* ---- store:false responses: they live with their connection
 * ---------------------------------------------------------- */

static bool ephemeral_owned(const struct conn *c, const char *id)
{
    for (const struct ephemeral *e = c->ephemerals; e; e = e->next) {
        if (strcmp(e->id, id) == 0) {
            return true;
        }
    }
    return false;
}

/* Is `id` a store:false response of another connection? */
static bool ephemeral_foreign(const struct server *s, const struct conn *c, const char *id)
{
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (const struct conn *other = s->buckets[i]; other; other = other->next) {
            if (other != c && ephemeral_owned(other, id)) {
                return true;
            }
        }
    }
    return false;
}

static void ephemeral_drop(struct conn *c, const char *id)
{
    for (struct ephemeral **at = &c->ephemerals; *at; at = &(*at)->next) {
        struct ephemeral *e = *at;
        if (strcmp(e->id, id) == 0) {
            *at = e->next;
            if (c->server->session) {
                session_forget(c->server->session, c->owner, e->id);
            }
            free(e);
            return;
        }
    }
}

/* Newest first; the oldest goes when there are too many. */
static void ephemeral_add(struct conn *c, const char *id)
{
    struct ephemeral *e = calloc(1, sizeof(*e));
    if (!e) {
        if (c->server->session) {
            session_forget(c->server->session, c->owner, id);
        }
        return;
    }
    snprintf(e->id, sizeof(e->id), "%s", id);
    e->next = c->ephemerals;
    c->ephemerals = e;
    size_t n = 0;
    for (struct ephemeral *at = e; at; at = at->next) {
        if (++n > EPHEMERAL_MAX) {
            ephemeral_drop(c, at->id);
            break;
        }
    }
}

void ephemerals_free(struct conn *c)
{
    while (c->ephemerals) {
        ephemeral_drop(c, c->ephemerals->id);
    }
}

/* ---- starting
 * ----------------------------------------------------------------------------------------------------------- */

/* [engine or storage thread] */
static void on_event(void *arg, const struct session_event *ev)
{
    struct run *run = arg;
    struct event *e = event_from_turn(run, ev);
    if (!e) {
        /* Without memory for a piece of the answer the answer is not what was generated: give it up. The terminal
         * event must arrive, so it is tried again with nothing in it. */
        struct session_event bare = {.kind = ev->kind, .failure = SESSION_INTERNAL, .message = "Out of memory."};
        if (ev->kind == SESSION_EVENT_DONE || ev->kind == SESSION_EVENT_FAILED) {
            bare.kind = SESSION_EVENT_FAILED;
            e = event_from_turn(run, &bare);
        }
        if (!e) {
            return;
        }
    }
    events_post(&run->server->events, e);
}

void run_session_error(enum session_failure failure, const char *message, struct api_error *e)
{
    static const struct {
        enum session_failure failure;
        int status;
        const char *code, *param, *fallback;
    } table[] = {
        {SESSION_PREVIOUS_NOT_FOUND, 400, "previous_response_not_found", "previous_response_id",
         "The previous response was not found."},
        {SESSION_CONVERSATION_NOT_FOUND, 404, "conversation_not_found", "conversation",
         "The conversation was not found."},
        {SESSION_CONVERSATION_LOCKED, 400, "conversation_locked", "conversation",
         "A turn is running on this conversation."},
        {SESSION_CONTEXT_LENGTH, 400, "context_length_exceeded", "input",
         "The conversation is longer than the model's context."},
        {SESSION_INVALID, 400, "invalid_request_error", "input", "The request cannot be run."},
        {SESSION_BUSY, 503, "server_overloaded", NULL, "Too many turns are waiting."},
        {SESSION_NO_MEMORY, 503, "insufficient_memory", NULL, "There is not enough KV memory for this turn."},
        {SESSION_LEDGER, 500, "server_error", NULL, "The turn could not be written; nothing of it was kept."},
        {SESSION_MODEL, 500, "server_error", NULL, "The model's numbers are not finite."},
        {SESSION_SHUTDOWN, 503, "server_shutdown", NULL, "The server is stopping."},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        if (table[i].failure == failure) {
            api_error_set(e, table[i].status, table[i].code, table[i].param, "%s",
                          message && *message ? message : table[i].fallback);
            return;
        }
    }
    api_error_set(e, 500, "server_error", NULL, "%s", message && *message ? message : "The turn failed.");
}

void run_start(struct conn *c, struct turn_request *q, int kind)
{
    struct server *s = c->server;
    struct api_error e = {0};
    struct run *run = calloc(1, sizeof(*run));
    if (!run) {
        api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
        goto refuse;
    }
    run->server = s;
    snprintf(run->owner, sizeof(run->owner), "%s", c->owner);
    if (id_new("resp_", run->id)) {
        api_error_set(&e, 500, "server_error", NULL, "No random numbers.");
        goto refuse;
    }
    id_derive("msg_", run->id, run->message_id);
    run->created_ms = now_ms();
    run->status = "in_progress";
    run->finish_on_disconnect = q->has_disconnect ? q->finish_on_disconnect : kind == SUBSCRIBE_WS && q->conversation;
    if (!s->session) {
        run_session_error(SESSION_SHUTDOWN, NULL, &e);
        goto refuse;
    }
    if (q->previous && ephemeral_foreign(s, c, q->previous)) {
        run_session_error(SESSION_PREVIOUS_NOT_FOUND, NULL, &e);
        goto refuse;
    }
    if (!q->store) {
        run->ephemeral_conn = kind == SUBSCRIBE_WS ? c->id : 0;
    }
    struct session_turn t = {
        .owner = run->owner,
        .response_id = run->id,
        .conversation = q->conversation,
        .previous = q->previous,
        .match = q->api == RUN_CHAT,
        .parent = q->has_parent ? (q->parent ? q->parent : "") : NULL,
        .messages = q->messages,
        .n_messages = q->n_messages,
        .input = q->input,
        .instructions = q->instructions,
        .params = q->params,
        .sampling = q->sampling,
        .stops = (const char *const *)q->stops,
        .n_stops = q->n_stops,
        .max_output_tokens = q->max_output_tokens,
        .store = q->store,
        .generate = q->generate,
        .event = on_event,
        .arg = run,
    };
    run->request = q;
    if (kind != SUBSCRIBE_WS) {
        retry_digest(c, run->digest);
        run->has_digest = true;
        run->idempotency_key = c->request.idempotency_key;
        c->request.idempotency_key = NULL;
    }
    /* Linked before the session knows of it: its events are taken later, on this thread. */
    list_add(&s->runs, run);
    s->n_runs++;
    int rc = session_turn_start(s->session, &t);
    if (rc) {
        list_remove(&s->runs, run);
        s->n_runs--;
        run_session_error(rc == -EINVAL                   ? SESSION_INVALID
                          : rc == -EBUSY || rc == -EAGAIN ? SESSION_BUSY
                          : rc == -ESHUTDOWN              ? SESSION_SHUTDOWN
                                                          : SESSION_INTERNAL,
                          NULL, &e);
        run->request = NULL;
        goto refuse;
    }
    run_subscribe(run, c, kind, 0, q->stream_id);
    return;
refuse:
    if (run) {
        run_free(run);
    }
    if (kind == SUBSCRIBE_WS) {
        conn_ws_error(c, &e, q->stream_id);
        ws_lane_ended(c, q->stream_id);
    } else {
        conn_answer_error(c, &e);
    }
    turn_request_free(q);
}

/* ---- events
 * ------------------------------------------------------------------------------------------------------------- */

bool run_append(struct run *run, const char *text, size_t len)
{
    if (run->text_len + len + 1 > run->text_size) {
        size_t size = run->text_size ? run->text_size : 1024;
        while (size < run->text_len + len + 1) {
            size *= 2;
        }
        char *grown = realloc(run->text, size);
        if (!grown) {
            return false;
        }
        run->text = grown;
        run->text_size = size;
    }
    memcpy(run->text + run->text_len, text, len);
    run->text_len += len;
    run->text[run->text_len] = '\0';
    return true;
}

/* Keeps an ended run for those who come back, or frees it. */
static void run_retire(struct run *run)
{
    struct server *s = run->server;
    list_remove(&s->runs, run);
    s->n_runs--;
    run_remember(run);
}

static size_t length(const char *s)
{
    return s ? strlen(s) : 0;
}

/* Frees what nobody will ask an ended run for, and counts what is kept. A whole answer and a log say everything; only
 * what failed is still described from its request. */
static void shrink(struct run *run)
{
    struct turn_request *q = run->request;
    struct turn_request *left = calloc(1, sizeof(*left));
    if (left) {
        *left = (struct turn_request){.api = q->api,
                                      .sampling = q->sampling,
                                      .has_parent = q->has_parent,
                                      .store = q->store,
                                      .generate = q->generate};
        if (run->failed) {
            left->params_json = q->params_json;
            left->conversation = q->conversation;
            left->previous = q->previous;
            left->parent = q->parent;
            left->instructions = q->instructions;
            run->kept_bytes = length(q->params) + KEPT_PARAMS_BYTES;
            q->params_json = NULL;
            q->conversation = q->previous = q->parent = q->instructions = NULL;
        }
        turn_request_free(q);
        run->request = q = left;
    } else {
        run->kept_bytes = length(q->input) * 2 + length(q->params) + KEPT_PARAMS_BYTES;
    }
    free(run->text);
    run->text = NULL;
    run->text_len = run->text_size = 0;
    run->kept_bytes += sizeof(*run) + sizeof(*q) + run->log_bytes + run->log_capacity * sizeof(*run->log) +
                       length(run->answer) + length(run->receipt) + length(run->reason) + length(run->idempotency_key) +
                       length(q->instructions);
}

void run_remember(struct run *run)
{
    struct server *s = run->server;
    run->ended_clock_ms = clock_ms();
    shrink(run);
    list_add(&s->recent, run);
    s->n_recent++;
    run_expire(s);
}

/* Oldest are at the end of the list. Runs that are still being read stay. Each owner has a few that failed, so that
 * what costs its sender nothing does not push out what others come back for. */
void run_expire(struct server *s)
{
    size_t n = 0, bytes = 0;
    int64_t now = clock_ms();
    struct run *next;
    for (struct run *run = s->recent; run; run = next) {
        next = run->next;
        size_t failed = 0, failed_bytes = run->kept_bytes;
        for (struct run *newer = run->prev; run->failed && newer; newer = newer->prev) {
            if (newer->failed && strcmp(newer->owner, run->owner) == 0) {
                failed++;
                failed_bytes += newer->kept_bytes;
            }
        }
        bool old = n + 1 > RECENT_RUNS_MAX || bytes + run->kept_bytes > RECENT_BYTES_MAX ||
                   failed >= RECENT_FAILED_MAX || (run->failed && failed_bytes > RECENT_FAILED_BYTES) ||
                   now - run->ended_clock_ms > (int64_t)RECENT_SECONDS * 1000 || !run->request->store || run->hidden;
        if (old && !run->subscribers) {
            forget(run);
        } else {
            n++;
            bytes += run->kept_bytes;
        }
    }
}

void run_hide(struct server *s, const char *owner, const char *id)
{
    for (int i = 0; i < 2; i++) {
        for (struct run *run = i ? s->recent : s->runs; run; run = run->next) {
            bool same = strcmp(run->id, id) == 0 || strcmp(run->conversation, id) == 0;
            run->hidden |= same && strcmp(run->owner, owner) == 0;
        }
    }
    run_expire(s);
}

void run_free_all(struct server *s)
{
    for (int i = 0; i < 2; i++) {
        struct run **list = i ? &s->recent : &s->runs;
        while (*list) {
            struct run *run = *list;
            list_remove(list, run);
            run_free(run);
        }
    }
    s->n_runs = s->n_recent = 0;
}

/* What a store:false response leaves: on a WebSocket it can be followed there, otherwise nothing. */
static void settle_ephemeral(struct run *run)
{
    struct server *s = run->server;
    struct turn_request *q = run->request;
    struct conn *c = run->ephemeral_conn ? conn_find(s, run->ephemeral_conn) : NULL;
    if (!q->store && !run->failed) {
        if (c) {
            ephemeral_add(c, run->id);
        } else if (s->session) {
            session_forget(s->session, run->owner, run->id);
        }
    }
    if (run->failed && c && q->previous && ephemeral_owned(c, q->previous)) {
        ephemeral_drop(c, q->previous);
    }
}

static void ended(struct run *run, const struct session_event *ev, const struct event *e)
{
    struct server *s = run->server;
    run->ended = true;
    run->completed_ms = now_ms();
    if (ev->kind == SESSION_EVENT_DONE) {
        run->status = ev->incomplete ? "incomplete" : "completed";
        if (ev->reason) {
            run->reason = strdup(ev->reason);
        }
        run->input_tokens = ev->input_tokens;
        run->cached_tokens = ev->cached_tokens;
        run->output_tokens = ev->output_tokens;
        run->receipt = e->receipt_json ? strdup(e->receipt_json) : NULL;
        /* The whole answer is what counts; the deltas must have given the same. */
        run->text_len = 0;
        if (!run_append(run, ev->text ? ev->text : "", ev->text ? ev->len : 0)) {
            run->failed = true;
        }
        if (e->receipt_json) {
            metrics_observe(&s->ttft, e->receipt.ttft_ms / 1000);
            metrics_observe(&s->queue, e->receipt.queue_ms / 1000);
            metrics_observe(&s->prefill, e->receipt.prefill_ms / 1000);
            metrics_observe(&s->restore, e->receipt.restore_ms / 1000);
        }
    } else {
        run->failed = true;
        run->status = "failed";
        run_session_error(ev->failure, ev->message, &run->error);
    }
    if (run->failed && !run->error.status) {
        api_error_set(&run->error, 500, "server_error", NULL, "Out of memory.");
    }
    if (run->request->api == RUN_CHAT) {
        chat_done(run);
    } else if (run->failed) {
        responses_failed(run);
    } else {
        responses_done(run);
    }
    settle_ephemeral(run);
}

void run_event(struct run *run, struct event *e)
{
    const struct session_event *ev = &e->turn;
    bool chat = run->request->api == RUN_CHAT;
    switch (ev->kind) {
    case SESSION_EVENT_STARTED:
        run->started = true;
        snprintf(run->conversation, sizeof(run->conversation), "%s", ev->conversation ? ev->conversation : "");
        if (chat) {
            chat_started(run);
        } else {
            responses_started(run);
        }
        break;
    case SESSION_EVENT_PROGRESS:
        if (!chat && run->request->progress) {
            responses_progress(run, ev);
        }
        break;
    case SESSION_EVENT_DELTA:
        if (!run_append(run, ev->text, ev->len)) {
            break;
        }
        if (run->last_delta_us) {
            metrics_observe(&run->server->itl, (double)(clock_us() - run->last_delta_us) / 1e6);
        }
        run->last_delta_us = clock_us();
        if (chat) {
            chat_delta(run, ev->text);
        } else {
            responses_delta(run, ev->text);
        }
        break;
    case SESSION_EVENT_DONE:
    case SESSION_EVENT_FAILED:
        ended(run, ev, e);
        wake_readers(run);
        run_retire(run);
        return;
    }
    wake_readers(run);
}

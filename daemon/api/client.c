/* client.c - answering a client: whole answers, errors in the form that fits, and runs that it reads.
 *
 * A reader walks a run's log at the pace of its socket: client_pump() queues what fits whenever the socket has taken
 * some, and the next reader's turn comes after one entry, so that lanes of one connection share it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "daemon/api/api.h"

void client_request_clear(struct client *c)
{
    free(c->request.retry.idempotency_key);
    free(c->request.body);
    cJSON_Delete(c->request.json);
    turn_request_free(c->request.turn);
    memset(&c->request, 0, sizeof(c->request));
    c->streaming = c->answered = false;
}

/* A run has been read to its end. */
static void count_tokens(struct client *c, const struct run *run)
{
    c->tokens_in = run->input_tokens;
    c->tokens_cached = run->cached_tokens;
    c->tokens_out = run->output_tokens;
}

static void reader_free(struct reader *r)
{
    struct client *c = r->client;
    c->n_watched -= r->kind == READ_WATCH;
    for (struct reader **at = &c->readers; *at; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    run_unsubscribe(&r->sub);
    free(r->stream_id);
    free(r);
}

static void log_answer(const struct client *c, int level, const char *method, const char *what, int status, int64_t ms,
                       bool whole)
{
    char tokens[80] = "";
    if (c->tokens_in || c->tokens_out) {
        snprintf(tokens, sizeof(tokens), ", tokens %d in (%d cached) %d out", c->tokens_in, c->tokens_cached,
                 c->tokens_out);
    }
    daemon_log(c->api->log, level, "%s %s %s %d%s, %lld ms%s", c->owner[0] ? c->owner : "-", method, what, status,
               tokens, (long long)ms, whole ? "" : ", cut off");
}

void client_free(struct client *c)
{
    c->dropped = true;
    while (c->readers) {
        if (c->readers->kind == READ_WS) { /* a lane's turn, whose answer this client does not get */
            count_tokens(c, c->readers->sub.run);
            log_answer(c, LOG_INFO, "WS", "response.create", 0, now_ms() - c->readers->sub.run->created_ms, false);
        }
        reader_free(c->readers);
    }
    ws_free(c);
    home_free(&c->api->runs, &c->home);
}

/* ---- answers ------------------------------------------------------------------------------------------------------
 */

/* {"error": ...}, or as its interface says it. */
static cJSON *error_object(const struct client *c, const struct api_error *e)
{
    if (anthropic_speaks(c)) {
        return anthropic_error(e);
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "error", api_error_json(e));
    return o;
}

void client_answer(struct client *c, int status, const char *content_type, char *body)
{
    if (c->dropped || c->answered) {
        free(body);
        return;
    }
    c->ops->answer(c, status, content_type, body);
}

void client_answer_json(struct client *c, int status, cJSON *json)
{
    char *text = json_text(json);
    client_answer(c, status, "application/json", text);
}

void client_answer_error(struct client *c, const struct api_error *e)
{
    if (c->websocket) {
        client_ws_error(c, e, NULL);
        return;
    }
    if (c->streaming) { /* as its interface's own streams tell it */
        const struct route *route = c->request.route;
        bool chat = route && (route->turn == chat_parse || route->turn == completions_parse);
        cJSON *o = chat || anthropic_speaks(c) ? error_object(c, e) : api_error_json(e);
        if (!chat && !anthropic_speaks(c)) {
            cJSON_ReplaceItemInObject(o, "type", cJSON_CreateString("error"));
            cJSON_AddNumberToObject(o, "sequence_number", 0);
        }
        char *text = json_text(o);
        c->ops->stream_event(c, chat ? NULL : "error", text ? text : "{}");
        free(text);
        c->ops->stream_end(c);
        return;
    }
    client_answer_json(c, e->status, error_object(c, e));
}

static void ws_send(struct client *c, const char *json, const char *stream_id)
{
    if (!stream_id) {
        c->ops->message(c, json, strlen(json), NULL, 0);
        return;
    }
    /* stream_id is of a safe alphabet, and json begins with '{' and is not empty. */
    char head[STREAM_ID_MAX + 32];
    int n = snprintf(head, sizeof(head), "{\"stream_id\":\"%s\",", stream_id);
    c->ops->message(c, head, (size_t)n, json + 1, strlen(json) - 1);
}

int api_retry_s(const struct api *api)
{
    return api->runs.session ? session_retry_s(api->runs.session) : 1;
}

void client_ws_error(struct client *c, const struct api_error *e, const char *stream_id)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", "error");
    cJSON_AddNumberToObject(o, "status", e->status);
    cJSON_AddItemToObject(o, "error", api_error_json(e));
    if (e->status == 503 || e->status == 429) {
        char seconds[12];
        snprintf(seconds, sizeof(seconds), "%d", api_retry_s(c->api));
        cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "headers"), "Retry-After", seconds);
    }
    c->api->metrics.errors++;
    client_ws_answer(c, o, stream_id);
}

void client_ws_answer(struct client *c, cJSON *o, const char *stream_id)
{
    char *text = json_text(o);
    if (!text) {
        c->ops->drop(c);
        return;
    }
    ws_send(c, text, stream_id);
    free(text);
    if (c->queued_bytes > QUEUE_BYTES_MAX) {
        c->api->metrics.dropped_slow++;
        c->ops->drop(c);
    }
}

/* ---- runs ---------------------------------------------------------------------------------------------------------
 */

static void wake(struct subscriber *sub, bool lags)
{
    struct client *c = ((struct reader *)sub)->client;
    if (c->dropped) {
        return;
    }
    if (lags) {
        daemon_log(c->api->log, LOG_INFO, "connection %llu dropped: it does not read its events",
                   (unsigned long long)c->id);
        c->api->metrics.dropped_slow++;
        c->ops->drop(c);
    } else {
        c->ops->wake(c);
    }
}

void client_read(struct client *c, struct run *run, int kind, size_t from, const char *stream_id)
{
    struct reader *r = calloc(1, sizeof(*r));
    char *id = stream_id ? strdup(stream_id) : NULL;
    if (!r || (stream_id && !id)) {
        free(r);
        free(id);
        c->ops->drop(c);
        return;
    }
    r->client = c;
    r->kind = kind;
    r->stream_id = id;
    r->sub.whole = kind == READ_BODY;
    r->sub.wake = wake;
    c->n_watched += kind == READ_WATCH;
    /* At the end: events of one lane keep the order of its turns. */
    struct reader **at = &c->readers;
    while (*at) {
        at = &(*at)->next;
    }
    *at = r;
    run_subscribe(run, &r->sub, from);
}

/* The answer of a run is queued to its end for who asked for it: when the peer has all of it, that is worth knowing. */
static void note_answered(struct client *c, const struct run *run)
{
    if (!run->failed && run->request->store && c->request.route && c->request.route->turn) {
        snprintf(c->unacknowledged, sizeof(c->unacknowledged), "%s", run->id);
    }
}

void client_acknowledged(struct client *c)
{
    if (c->unacknowledged[0]) {
        run_delivered(&c->api->runs, c->owner, c->unacknowledged);
        c->unacknowledged[0] = '\0';
    }
}

/* One entry of the run's log to this reader, or its end. False: it has nothing to take now. */
static bool deliver(struct reader *r)
{
    struct client *c = r->client;
    struct run *run = r->sub.run;
    if (r->kind == READ_ACCEPTED) {
        if (!run->started && !run->ended) {
            return false;
        }
        if (run->started) {
            client_answer_json(c, 200, response_object(run));
        } else {
            client_answer_error(c, &run->error);
        }
        reader_free(r);
        return true;
    }
    if (r->kind == READ_BODY) {
        if (!run->ended) {
            return false;
        }
        count_tokens(c, run);
        if (run->answer) {
            client_answer(c, run->answer_status, "application/json", strdup(run->answer));
            note_answered(c, run);
        } else {
            client_answer_error(c, &run->error);
        }
        reader_free(r);
        return true;
    }
    if (r->sub.next < run->n_log) {
        const struct log_entry *entry = &run->log[r->sub.next++];
        r->sub.delivered_bytes += entry->len;
        if (r->kind == READ_WS || r->kind == READ_WATCH) {
            ws_send(c, entry->data, r->stream_id);
        } else {
            if (!c->streaming) {
                c->ops->stream_begin(c);
            }
            c->ops->stream_event(c, entry->name, entry->data);
        }
        return true;
    }
    if (!run->ended) {
        return false;
    }
    struct api_error never = {0};
    if (r->sub.next > run->n_log && run->n_log > 0) {
        responses_cursor_error(&never);
    }
    count_tokens(c, run);
    if (r->kind == READ_SSE) {
        if (run->n_log == 0 || never.status) {
            client_answer_error(c, never.status ? &never : &run->error);
        } else {
            if (!c->streaming) {
                c->ops->stream_begin(c); /* resumed after the last event */
            }
            c->ops->stream_end(c);
            note_answered(c, run);
        }
        reader_free(r);
    } else {
        if (run->n_log == 0 || never.status) {
            client_ws_error(c, never.status ? &never : &run->error, r->stream_id);
        }
        int status = run->failed ? run->error.status : 200;
        int64_t ms = now_ms() - run->created_ms;
        char *stream_id = r->stream_id;
        bool lane = r->kind == READ_WS;
        r->stream_id = NULL;
        reader_free(r);
        if (lane) {
            log_answer(c, LOG_INFO, "WS", "response.create", status, ms, true);
            ws_lane_ended(c, stream_id);
        }
        free(stream_id);
    }
    return true;
}

bool client_streams(const struct client *c)
{
    return c->readers && c->readers->kind == READ_SSE;
}

void client_pump(struct client *c)
{
    bool progress = true;
    while (progress && !c->dropped && c->queued_bytes < PUMP_BYTES) {
        progress = false;
        struct reader *next;
        for (struct reader *r = c->readers; r && c->queued_bytes < PUMP_BYTES; r = next) {
            next = r->next;
            progress |= deliver(r);
        }
    }
}

/* ---- requests -----------------------------------------------------------------------------------------------------
 */

void client_answered(const struct client *c, int status, int64_t ms, bool whole)
{
    static const char *const methods[] = {
        [METHOD_GET] = "GET",         [METHOD_POST] = "POST", [METHOD_DELETE] = "DELETE",
        [METHOD_OPTIONS] = "OPTIONS", [METHOD_HEAD] = "HEAD", [METHOD_OTHER] = "-"};
    const struct route *route = c->request.route;
    /* Those who look every few seconds would fill the log. */
    bool probe = route && (route->open || (route->handler == service_metrics && status == 200));
    log_answer(c, probe ? LOG_DEBUG : LOG_INFO, methods[c->request.method], route ? route->pattern : "-", status, ms,
               whole);
}

/* A large body on its way to being parsed. */
struct parsing {
    struct work work; /* first */
    struct api *api;
    uint64_t client_id;
    char owner[OWNER_SIZE];        /* for whom its body is counted */
    struct client_request request; /* what is parsed of it, and its body */
};

static void parse(struct client_request *r)
{
    r->parsed = true;
    r->json = json_parse_request(r->body ? r->body : "", r->body_len, &r->refused);
    retry_digest(r->route->pattern, r->param, r->body, r->body_len, r->retry.digest);
    if (r->route->turn) {
        r->turn = r->json ? r->route->turn(r->json, &r->refused) : NULL; /* takes it */
        r->json = NULL;
    }
    request_complete(&r->turn, r->body, r->body_len, &r->refused);
}

/* [worker] */
static void parse_away(struct work *w)
{
    parse(&((struct parsing *)w)->request);
}

static void handle(struct client *c)
{
    /* The model was there when the headers came; the server may have begun to stop since. */
    if (c->request.route->needs_model && !c->api->runs.session) {
        struct api_error e;
        api_error_session(SESSION_SHUTDOWN, NULL, &e);
        client_answer_error(c, &e);
        return;
    }
    c->request.route->handler(c);
}

static void parsed(struct work *w, bool closing)
{
    struct parsing *p = (struct parsing *)w;
    struct client *c = closing ? NULL : p->api->find(p->api, p->client_id);
    struct client_request *r = &p->request;
    if (c) {
        c->request.parsed = true;
        c->request.json = r->json;
        c->request.turn = r->turn;
        c->request.refused = r->refused;
        memcpy(c->request.retry.digest, r->retry.digest, sizeof(r->retry.digest));
        r->json = NULL;
        r->turn = NULL;
        handle(c);
    }
    if (!closing) { /* nobody has taken it */
        work_free_json(p->api->runs.workers, r->json, p->owner);
        r->json = NULL;
        if (r->turn) {
            work_free_json(p->api->runs.workers, r->turn->settings, p->owner);
            r->turn->settings = NULL;
        }
    }
    cJSON_Delete(r->json);
    turn_request_free(r->turn);
    free(r->body);
    budget_give(&p->api->budget, p->owner, r->body_size);
    free(p);
}

cJSON *client_json(struct client *c, bool may_be_empty, struct api_error *e)
{
    struct client_request *r = &c->request;
    if (may_be_empty && r->body_len == 0) {
        retry_digest(r->route->pattern, r->param, NULL, 0, r->retry.digest);
        return json_parse_request("{}", 2, e);
    }
    if (!r->parsed) {
        parse(r);
    }
    cJSON *json = r->json;
    r->json = NULL;
    *e = r->refused;
    return json;
}

void client_json_free(struct client *c, cJSON *json)
{
    if (c->request.body_len > WORK_BYTES_MIN) {
        work_free_json(c->api->runs.workers, json, c->owner);
    } else {
        cJSON_Delete(json);
    }
}

struct turn_request *client_turn(struct client *c, struct api_error *e)
{
    struct client_request *r = &c->request;
    if (!r->parsed) {
        parse(r);
    }
    struct turn_request *q = r->turn;
    r->turn = NULL;
    *e = r->refused;
    return q;
}

void api_dispatch(struct client *c)
{
    if (c->request.method == METHOD_OPTIONS) {
        client_answer(c, 204, NULL, NULL);
        return;
    }
    bool large = c->request.method == METHOD_POST &&
                 (c->request.body_len > WORK_BYTES_MIN || form_may_be_in(c->request.body, c->request.body_len));
    struct parsing *p = large ? calloc(1, sizeof(*p)) : NULL;
    if (p) {
        p->work.run = parse_away;
        p->work.done = parsed;
        p->api = c->api;
        p->client_id = c->id;
        memcpy(p->owner, c->owner, sizeof(p->owner));
        p->request.route = c->request.route;
        memcpy(p->request.param, c->request.param, sizeof(p->request.param));
        p->request.body = c->request.body;
        p->request.body_len = c->request.body_len;
        p->request.body_size = c->request.body_size;
        c->request.body = NULL;
        c->request.body_size = 0;
        work_submit(c->api->runs.workers, &p->work, c->owner);
        return;
    }
    handle(c);
}

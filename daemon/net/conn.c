/* conn.c - one socket: what is queued for it, and whole answers, event streams and messages on top of that.
 *
 * Everything that is sent goes through a list of chunks; the library is given at most WRITE_BYTES per WRITEABLE
 * callback, so that it never buffers without bound. A peer that takes nothing for timeout-seconds is dropped.
 *
 * Reading stops (flow_stopped) while a request without a body is being worked on, because the library would spin on
 * bytes that it cannot take in that state; it must be on again to write, so conn_wake() switches it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

#define PUMP_BYTES (64 * 1024) /* of events queued ahead of the socket */

static struct conn **bucket(struct server *s, uint64_t id)
{
    return &s->buckets[id % CONN_BUCKETS];
}

struct conn *conn_new(struct server *s, struct lws *wsi, const char *address)
{
    struct conn *c = calloc(1, sizeof(*c));
    if (!c) {
        return NULL;
    }
    c->server = s;
    c->wsi = wsi;
    c->id = ++s->next_conn_id;
    snprintf(c->address, sizeof(c->address), "%s", address);
    struct conn **head = bucket(s, c->id);
    c->next = *head;
    if (c->next) {
        c->next->prev = c;
    }
    *head = c;
    s->n_conns++;
    s->counters.connections++;
    return c;
}

struct conn *conn_find(struct server *s, uint64_t id)
{
    for (struct conn *c = *bucket(s, id); c; c = c->next) {
        if (c->id == id) {
            return c->dropped ? NULL : c;
        }
    }
    return NULL;
}

void conn_request_clear(struct conn *c)
{
    free(c->request.path);
    free(c->request.origin);
    free(c->request.cors_headers);
    free(c->request.idempotency_key);
    free(c->request.body);
    server_give_bytes(c->server, c->request.body_size);
    memset(&c->request, 0, sizeof(c->request));
    c->streaming = c->answer_complete = c->discard = false;
}

void conn_free(struct conn *c)
{
    struct server *s = c->server;
    c->dropped = true;
    while (c->subscribers) {
        subscriber_unlink(c->subscribers);
    }
    ws_free(c);
    while (c->out_head) {
        struct chunk *next = c->out_head->next;
        free(c->out_head);
        c->out_head = next;
    }
    conn_request_clear(c);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        *bucket(s, c->id) = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    s->n_conns--;
    free(c);
}

void conn_wake(struct conn *c)
{
    /* conn_write() looks at everything once more before it returns. Asking for another WRITEABLE there and then
     * stopping to read would leave the request standing, and the library spins on a socket that may write but is
     * stopped. */
    if (c->dropped || c->writing) {
        return;
    }
    if (c->flow_stopped && c->phase != CONN_WEBSOCKET && lws_rx_flow_control(c->wsi, 1) < 0) {
        conn_drop(c);
        return;
    }
    lws_callback_on_writable(c->wsi);
}

void conn_drop(struct conn *c)
{
    if (c->dropped) {
        return;
    }
    c->dropped = true;
    lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
}

/* Queues the parts as one chunk. */
static void queue(struct conn *c, const char *a, size_t a_len, const char *b, size_t b_len, const char *d, size_t d_len)
{
    if (c->dropped) {
        return;
    }
    size_t len = a_len + b_len + d_len;
    struct chunk *chunk = malloc(sizeof(*chunk) + LWS_PRE + len);
    if (!chunk) {
        conn_drop(c);
        return;
    }
    chunk->next = NULL;
    chunk->len = len;
    chunk->sent = 0;
    unsigned char *to = chunk->data + LWS_PRE;
    if (a_len) {
        memcpy(to, a, a_len);
    }
    if (b_len) {
        memcpy(to + a_len, b, b_len);
    }
    if (d_len) {
        memcpy(to + a_len + b_len, d, d_len);
    }
    if (c->out_tail) {
        c->out_tail->next = chunk;
    } else {
        c->out_head = chunk;
        c->stalled_since_ms = clock_ms();
    }
    c->out_tail = chunk;
    c->out_bytes += len;
    conn_wake(c);
}

static const char *status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } known[] = {{200, "OK"},
                 {204, "No Content"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {411, "Length Required"},
                 {413, "Content Too Large"},
                 {414, "URI Too Long"},
                 {417, "Expectation Failed"},
                 {426, "Upgrade Required"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {503, "Service Unavailable"}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (known[i].status == status) {
            return known[i].text;
        }
    }
    return "Status";
}

/* Status line and headers, up to the empty line. length < 0: a stream of unknown length. */
static int headers(const struct conn *c, int status, const char *content_type, int64_t length, char *out, size_t size)
{
    const struct http_request *r = &c->request;
    char framing[64] = "";
    if (length >= 0) {
        snprintf(framing, sizeof(framing), "Content-Length: %lld\r\n", (long long)length);
    } else if (!r->http10) {
        snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n");
    }
    char cors[1200] = "";
    if (r->origin && r->method == METHOD_OPTIONS) {
        snprintf(
            cors, sizeof(cors),
            "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Allow-Methods: GET, POST, DELETE\r\n"
            "Access-Control-Allow-Headers: %s\r\nAccess-Control-Max-Age: 600\r\n",
            r->origin, r->cors_headers ? r->cors_headers : "Authorization, Content-Type");
    } else if (r->origin) {
        snprintf(cors, sizeof(cors),
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: Retry-After\r\n",
                 r->origin);
    }
    int n = snprintf(
        out, size,
        "HTTP/1.1 %d %s\r\n%s%s%s%sCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        "%s%s%s%s\r\n",
        status, status_text(status), content_type ? "Content-Type: " : "", content_type ? content_type : "",
        content_type ? "\r\n" : "", framing, cors, status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
        status == 503 || status == 429 ? "Retry-After: 1\r\n" : "", c->close_after ? "Connection: close\r\n" : "");
    return n < 0 || (size_t)n >= size ? -1 : n;
}

void conn_answer(struct conn *c, int status, const char *content_type, char *body)
{
    if (c->dropped || c->answer_complete) {
        free(body);
        return;
    }
    static const char no_memory[] = "{\"error\":{\"message\":\"Out of memory.\",\"type\":\"server_error\","
                                    "\"param\":null,\"code\":\"server_error\"}}";
    const char *text = body ? body : status == 204 ? "" : no_memory;
    if (!body && status != 204) {
        status = 500;
        content_type = "application/json";
    }
    size_t len = strlen(text);
    char head[2048];
    int n = headers(c, status, content_type, status == 204 ? 0 : (int64_t)len, head, sizeof(head));
    if (n < 0) {
        conn_drop(c);
        free(body);
        return;
    }
    if (status >= 400) {
        c->server->counters.errors++;
    }
    c->phase = CONN_ANSWERING;
    c->answer_complete = true;
    queue(c, head, (size_t)n, text, c->request.method == METHOD_HEAD ? 0 : len, NULL, 0);
    free(body);
}

void conn_answer_json(struct conn *c, int status, cJSON *json)
{
    char *text = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    conn_answer(c, status, "application/json", text);
}

void conn_answer_error(struct conn *c, const struct api_error *e)
{
    if (c->phase == CONN_WEBSOCKET) {
        conn_ws_error(c, e, NULL);
        return;
    }
    if (c->streaming) {
        cJSON *flat = api_error_json(e);
        cJSON_AddStringToObject(flat, "type", "error");
        char *text = cJSON_PrintUnformatted(flat);
        cJSON_Delete(flat);
        conn_sse_event(c, "error", text ? text : "{}");
        free(text);
        conn_sse_end(c);
        return;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "error", api_error_json(e));
    conn_answer_json(c, e->status, o);
}

void conn_sse_begin(struct conn *c)
{
    char head[2048];
    int n = headers(c, 200, "text/event-stream; charset=utf-8", -1, head, sizeof(head));
    if (n < 0) {
        conn_drop(c);
        return;
    }
    c->phase = CONN_ANSWERING;
    c->streaming = true;
    queue(c, head, (size_t)n, NULL, 0, NULL, 0);
}

static void sse_send(struct conn *c, const char *text, size_t len)
{
    if (c->request.http10) {
        queue(c, text, len, NULL, 0, NULL, 0);
        return;
    }
    char size[24];
    int n = snprintf(size, sizeof(size), "%zx\r\n", len);
    queue(c, size, (size_t)n, text, len, "\r\n", 2);
}

void conn_sse_event(struct conn *c, const char *name, const char *data)
{
    char *text = NULL;
    int n = name ? asprintf(&text, "event: %s\ndata: %s\n\n", name, data) : asprintf(&text, "data: %s\n\n", data);
    if (n < 0) {
        conn_drop(c);
        return;
    }
    sse_send(c, text, (size_t)n);
    free(text);
}

void conn_sse_comment(struct conn *c)
{
    sse_send(c, ":\n\n", 3);
}

void conn_sse_end(struct conn *c)
{
    if (!c->streaming || c->answer_complete) {
        return;
    }
    c->answer_complete = true;
    if (c->request.http10) {
        conn_wake(c);
    } else {
        queue(c, "0\r\n\r\n", 5, NULL, 0, NULL, 0);
    }
}

void conn_ws_send(struct conn *c, const char *json, const char *stream_id)
{
    if (!stream_id) {
        queue(c, json, strlen(json), NULL, 0, NULL, 0);
        return;
    }
    /* stream_id is of a safe alphabet, and json begins with '{' and is not empty. */
    char head[STREAM_ID_MAX + 32];
    int n = snprintf(head, sizeof(head), "{\"stream_id\":\"%s\",", stream_id);
    queue(c, head, (size_t)n, json + 1, strlen(json) - 1, NULL, 0);
}

void conn_ws_error(struct conn *c, const struct api_error *e, const char *stream_id)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", "error");
    cJSON_AddNumberToObject(o, "status", e->status);
    cJSON_AddItemToObject(o, "error", api_error_json(e));
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    c->server->counters.errors++;
    if (!text) {
        conn_drop(c);
        return;
    }
    conn_ws_send(c, text, stream_id);
    free(text);
    if (c->out_bytes > QUEUE_BYTES_MAX) {
        c->server->counters.dropped_slow++;
        conn_drop(c);
    }
}

void conn_ws_close(struct conn *c, int code, const char *reason)
{
    if (!c->close_code) {
        c->close_code = code;
        c->close_reason = reason;
        conn_wake(c);
    }
}

/* One entry of the run's log to this subscriber, or its end. False: it has nothing to take now (or is gone). */
static bool deliver(struct subscriber *sub)
{
    struct conn *c = sub->conn;
    struct run *run = sub->run;
    if (sub->kind == SUBSCRIBE_BODY) {
        if (!run->ended) {
            return false;
        }
        if (run->answer) {
            conn_answer(c, run->answer_status, "application/json", strdup(run->answer));
        } else {
            conn_answer_error(c, &run->error);
        }
        subscriber_unlink(sub);
        return true;
    }
    if (sub->next < run->n_log) {
        const struct log_entry *entry = &run->log[sub->next++];
        sub->delivered_bytes += entry->len;
        if (sub->kind == SUBSCRIBE_WS || sub->kind == SUBSCRIBE_WATCH) {
            conn_ws_send(c, entry->data, sub->stream_id);
        } else {
            if (!c->streaming) {
                conn_sse_begin(c);
            }
            conn_sse_event(c, entry->name, entry->data);
        }
        return true;
    }
    if (!run->ended) {
        return false;
    }
    if (sub->kind == SUBSCRIBE_SSE) {
        if (run->n_log == 0) {
            conn_answer_error(c, &run->error);
        } else if (!c->streaming) {
            conn_sse_begin(c); /* resumed after the last event */
            conn_sse_end(c);
        } else {
            conn_sse_end(c);
        }
        subscriber_unlink(sub);
    } else {
        if (run->n_log == 0) {
            conn_ws_error(c, &run->error, sub->stream_id);
        }
        char *stream_id = sub->stream_id;
        bool lane = sub->kind == SUBSCRIBE_WS;
        sub->stream_id = NULL;
        subscriber_unlink(sub);
        if (lane) {
            ws_lane_ended(c, stream_id);
        }
        free(stream_id);
    }
    return true;
}

void conn_pump(struct conn *c)
{
    bool progress = true;
    while (progress && !c->dropped && c->out_bytes < PUMP_BYTES) {
        progress = false;
        struct subscriber *next;
        for (struct subscriber *sub = c->subscribers; sub && c->out_bytes < PUMP_BYTES; sub = next) {
            next = sub->next_in_conn;
            progress |= deliver(sub);
        }
    }
}

/* The answer has been handed over: ready for the next request, or close. */
static int finish(struct conn *c)
{
    bool close_after = c->close_after || c->request.http10;
    conn_request_clear(c);
    c->phase = CONN_IDLE;
    if (close_after) {
        return -1;
    }
    if (c->flow_stopped) {
        c->flow_stopped = false;
        if (lws_rx_flow_control(c->wsi, 1) < 0) {
            return -1;
        }
    }
    return lws_http_transaction_completed(c->wsi) ? -1 : 0;
}

static int write_some(struct conn *c)
{
    conn_pump(c);
    struct chunk *chunk = c->out_head;
    if (chunk) {
        size_t left = chunk->len - chunk->sent;
        size_t n = left < WRITE_BYTES ? left : WRITE_BYTES;
        int protocol = LWS_WRITE_HTTP;
        if (c->phase == CONN_WEBSOCKET) {
            protocol = lws_write_ws_flags(LWS_WRITE_TEXT, chunk->sent == 0, n == left);
        }
        if (n > 0 && lws_write(c->wsi, chunk->data + LWS_PRE + chunk->sent, n, (enum lws_write_protocol)protocol) < 0) {
            return -1;
        }
        chunk->sent += n;
        c->out_bytes -= n;
        c->stalled_since_ms = clock_ms();
        if (chunk->sent == chunk->len) {
            c->out_head = chunk->next;
            if (!c->out_head) {
                c->out_tail = NULL;
            }
            free(chunk);
        }
    }
    conn_pump(c);
    if (c->out_head) {
        lws_callback_on_writable(c->wsi);
        return 0;
    }
    c->stalled_since_ms = 0;
    if (c->close_code) {
        lws_close_reason(c->wsi, (enum lws_close_status)c->close_code, (unsigned char *)c->close_reason,
                         strlen(c->close_reason));
        return -1;
    }
    if (c->answer_complete) {
        return finish(c);
    }
    if (c->flow_stopped && c->phase != CONN_WEBSOCKET && lws_rx_flow_control(c->wsi, 0) < 0) {
        return -1;
    }
    return 0;
}

int conn_write(struct conn *c)
{
    if (c->dropped) {
        return -1;
    }
    c->writing = true;
    int rc = write_some(c);
    c->writing = false;
    return rc;
}

/* conn.c - one socket: what is queued for it, and whole answers, event streams and messages on top of that.
 *
 * Everything that is sent goes through a list of chunks; the library is given at most WRITE_BYTES per WRITEABLE
 * callback, so that it never buffers without bound. A peer that takes nothing for timeout-seconds is dropped.
 *
 * Reading stops (flow_stopped) while a request without a body is being worked on, because the library would spin on
 * bytes that it cannot take in that state; it must be on again to write, so conn_wake() switches it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/net_internal.h"

static struct conn **bucket(struct net *n, uint64_t id)
{
    return &n->buckets[id % CONN_BUCKETS];
}

struct conn *conn_new(struct net *n, struct lws *wsi, const char *address)
{
    struct conn *c = calloc(1, sizeof(*c));
    if (!c) {
        return NULL;
    }
    c->client.ops = &conn_ops;
    c->client.api = n->api;
    c->client.id = ++n->next_conn_id;
    c->client.home.owner = c->client.owner;
    c->net = n;
    c->wsi = wsi;
    snprintf(c->address, sizeof(c->address), "%s", address);
    struct conn **head = bucket(n, c->client.id);
    c->next = *head;
    if (c->next) {
        c->next->prev = c;
    }
    *head = c;
    n->api->n_clients = ++n->n_conns;
    n->api->metrics.connections++;
    return c;
}

struct client *conn_find(struct api *api, uint64_t id)
{
    struct net *n = api->find_arg;
    for (struct conn *c = *bucket(n, id); c; c = c->next) {
        if (c->client.id == id) {
            return c->client.dropped ? NULL : &c->client;
        }
    }
    return NULL;
}

void conn_request_clear(struct conn *c)
{
    free(c->http.path);
    free(c->http.origin);
    free(c->http.cors_headers);
    budget_give(&c->net->api->budget, c->http.body_size);
    memset(&c->http, 0, sizeof(c->http));
    client_request_clear(&c->client);
    c->discard = false;
}

void conn_free(struct conn *c)
{
    struct net *n = c->net;
    client_free(&c->client);
    while (c->out_head) {
        struct chunk *next = c->out_head->next;
        free(c->out_head);
        c->out_head = next;
    }
    conn_request_clear(c);
    budget_give(&n->api->budget, c->message_size);
    free(c->message);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        *bucket(n, c->client.id) = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    n->api->n_clients = --n->n_conns;
    free(c);
}

static void wake(struct client *client)
{
    struct conn *c = (struct conn *)client;
    /* conn_write() looks at everything once more before it returns. Asking for another WRITEABLE there and then
     * stopping to read would leave the request standing, and the library spins on a socket that may write but is
     * stopped. */
    if (c->client.dropped || c->writing) {
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
    if (c->client.dropped) {
        return;
    }
    c->client.dropped = true;
    lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
}

/* Queues the parts as one chunk. */
static void queue(struct conn *c, const char *a, size_t a_len, const char *b, size_t b_len, const char *d, size_t d_len)
{
    if (c->client.dropped) {
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
    c->client.queued_bytes += len;
    wake(&c->client);
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
    const struct http_request *r = &c->http;
    bool preflight = c->client.request.method == METHOD_OPTIONS;
    char framing[64] = "";
    if (length >= 0) {
        snprintf(framing, sizeof(framing), "Content-Length: %lld\r\n", (long long)length);
    } else if (!r->http10) {
        snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n");
    }
    char cors[1200] = "";
    if (r->origin && preflight) {
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

static void answer(struct client *client, int status, const char *content_type, char *body)
{
    struct conn *c = (struct conn *)client;
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
        c->net->api->metrics.errors++;
    }
    c->phase = CONN_ANSWERING;
    c->client.answered = true;
    queue(c, head, (size_t)n, text, c->client.request.method == METHOD_HEAD ? 0 : len, NULL, 0);
    free(body);
}

static void stream_begin(struct client *client)
{
    struct conn *c = (struct conn *)client;
    char head[2048];
    int n = headers(c, 200, "text/event-stream; charset=utf-8", -1, head, sizeof(head));
    if (n < 0) {
        conn_drop(c);
        return;
    }
    c->phase = CONN_ANSWERING;
    c->client.streaming = true;
    queue(c, head, (size_t)n, NULL, 0, NULL, 0);
}

static void sse_send(struct conn *c, const char *text, size_t len)
{
    if (c->http.http10) {
        queue(c, text, len, NULL, 0, NULL, 0);
        return;
    }
    char size[24];
    int n = snprintf(size, sizeof(size), "%zx\r\n", len);
    queue(c, size, (size_t)n, text, len, "\r\n", 2);
}

static void stream_event(struct client *client, const char *name, const char *data)
{
    struct conn *c = (struct conn *)client;
    char *text = NULL;
    int n = name ? asprintf(&text, "event: %s\ndata: %s\n\n", name, data) : asprintf(&text, "data: %s\n\n", data);
    if (n < 0) {
        conn_drop(c);
        return;
    }
    sse_send(c, text, (size_t)n);
    free(text);
}

void conn_comment(struct conn *c)
{
    sse_send(c, ":\n\n", 3);
}

static void stream_end(struct client *client)
{
    struct conn *c = (struct conn *)client;
    if (!c->client.streaming || c->client.answered) {
        return;
    }
    c->client.answered = true;
    if (c->http.http10) {
        wake(&c->client);
    } else {
        queue(c, "0\r\n\r\n", 5, NULL, 0, NULL, 0);
    }
}

void conn_close(struct conn *c, int code, const char *reason)
{
    if (!c->close_code) {
        c->close_code = code;
        c->close_reason = reason;
        wake(&c->client);
    }
}

/* The answer has been handed over: ready for the next request, or close. */
static int finish(struct conn *c)
{
    bool close_after = c->close_after || c->http.http10;
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
    client_pump(&c->client);
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
        c->client.queued_bytes -= n;
        c->stalled_since_ms = clock_ms();
        if (chunk->sent == chunk->len) {
            c->out_head = chunk->next;
            if (!c->out_head) {
                c->out_tail = NULL;
            }
            free(chunk);
        }
    }
    client_pump(&c->client);
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
    if (c->client.answered) {
        return finish(c);
    }
    if (c->flow_stopped && c->phase != CONN_WEBSOCKET && lws_rx_flow_control(c->wsi, 0) < 0) {
        return -1;
    }
    return 0;
}

int conn_write(struct conn *c)
{
    if (c->client.dropped) {
        return -1;
    }
    c->writing = true;
    int rc = write_some(c);
    c->writing = false;
    return rc;
}

void conn_refuse(struct conn *c, const struct api_error *e)
{
    client_answer_error(&c->client, e);
}

static void message(struct client *client, const char *head, size_t head_len, const char *tail, size_t tail_len)
{
    queue((struct conn *)client, head, head_len, tail, tail_len, NULL, 0);
}

static void close_client(struct client *client, int code, const char *reason)
{
    conn_close((struct conn *)client, code, reason);
}

static void drop(struct client *client)
{
    conn_drop((struct conn *)client);
}

const struct client_ops conn_ops = {
    .answer = answer,
    .stream_begin = stream_begin,
    .stream_event = stream_event,
    .stream_end = stream_end,
    .message = message,
    .close = close_client,
    .drop = drop,
    .wake = wake,
};

/* http.c - HTTP/1.1: one request per connection, from its head to the last byte of its answer.
 *
 * The head is looked at in the socket until it is whole, and checked (head.c); then it is taken out, and the body is
 * read, up to the length that was announced; both have a deadline. Whatever comes behind the body belongs
 * to no request. An upgrade is lent to the library with a head that has the four lines that it needs, and frames that
 * came with it are still in the socket. A refusal is an answer as any other and needs no more of the body: how the
 * connection ends sees to it that it arrives.
 *
 * All response heads are made here, by one function.
 *
 * A client that shuts its sending side cannot be told from one that is gone: both send an end. So when the answer takes
 * more than EARLY_MS from then on, it is begun, with a space before the JSON; a client that is gone resets the
 * connection, and one that still reads waits for the rest.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "daemon/net/net_internal.h"

#define CORS_HEADERS_MAX  512
#define CORS_HEADER_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, "
#define HEADER_VALUE_MAX  4096
#define ORIGIN_MAX        300
#define RESPONSE_HEAD_MAX 2048
#define DATE_SIZE         40
#define BODY_PARTS_MAX    6 /* of an event */

/* ---- answers ------------------------------------------------------------------------------------------------------
 */

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
                 {408, "Request Timeout"},
                 {409, "Conflict"},
                 {411, "Length Required"},
                 {413, "Content Too Large"},
                 {414, "URI Too Long"},
                 {415, "Unsupported Media Type"},
                 {417, "Expectation Failed"},
                 {426, "Upgrade Required"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {503, "Service Unavailable"},
                 {505, "HTTP Version Not Supported"},
                 {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (known[i].status == status) {
            return known[i].text;
        }
    }
    return "Status";
}

/* Now, as RFC 9110, 5.6.7, has it. */
static void date_now(char out[DATE_SIZE])
{
    time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(out, DATE_SIZE, "%a, %d %b %Y %H:%M:%S GMT", &utc) == 0) {
        out[0] = '\0';
    }
}

static void queue_one(struct conn *c, const char *text, size_t len)
{
    const struct part one = part(text, len);
    conn_queue(c, &one, 1);
}

/* Queues status line and headers, up to the empty line. length: of the body, -1 = a stream of unknown length, -2 =
 * there is none and nothing says so. more: further lines. */
static void send_head(struct conn *c, int status, const char *content_type, int64_t length, const char *more)
{
    char framing[64] = "", cors[1200] = "", retry[40] = "", date[DATE_SIZE], head[RESPONSE_HEAD_MAX];
    date_now(date);
    if (length >= 0 && status != 204) { /* RFC 9110, 8.6 */
        snprintf(framing, sizeof(framing), "Content-Length: %lld\r\n", (long long)length);
    } else if (length == -1 && !c->http10) {
        snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n");
    }
    if (c->origin && c->client.request.method == METHOD_OPTIONS) {
        snprintf(cors, sizeof(cors),
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
                 "Access-Control-Allow-Methods: GET, POST, DELETE\r\nAccess-Control-Allow-Headers: %s\r\n"
                 "Access-Control-Max-Age: 600\r\n",
                 c->origin, c->cors_headers ? c->cors_headers : "Authorization, Content-Type");
    } else if (c->origin) {
        snprintf(cors, sizeof(cors),
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\nAccess-Control-Expose-Headers: Retry-After\r\n",
                 c->origin);
    }
    if (status == 503 || status == 429) {
        snprintf(retry, sizeof(retry), "Retry-After: %d\r\n", api_retry_s(c->net->api));
    }
    int n = snprintf(head, sizeof(head),
                     "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%s%s%s%s%s%s%s"
                     "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n%s\r\n",
                     status, status_text(status), date, content_type ? "Content-Type: " : "",
                     content_type ? content_type : "", content_type ? "\r\n" : "", framing, cors,
                     status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                     status == 426 ? "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" : "", retry,
                     more ? more : "", status == 426 ? "Connection: close, upgrade\r\n" : "Connection: close\r\n");
    if (n < 0 || (size_t)n >= sizeof(head)) {
        conn_drop(c);
        return;
    }
    c->status = status;
    queue_one(c, head, (size_t)n);
}

/* The parts as one chunk of a body whose length is not told before. */
static void send_parts(struct conn *c, const struct part *parts, size_t n)
{
    char size[24];
    struct part all[BODY_PARTS_MAX + 2];
    size_t len = 0, n_all = 0;
    all[n_all++] = part(NULL, 0);
    for (size_t i = 0; i < n; i++) {
        len += parts[i].len;
        all[n_all++] = parts[i];
    }
    if (len == 0 || c->client.request.method == METHOD_HEAD) {
        return;
    }
    if (!c->http10) {
        all[0] = part(size, (size_t)snprintf(size, sizeof(size), "%zx\r\n", len));
        all[n_all++] = part("\r\n", 2);
    }
    conn_queue(c, all, n_all);
}

static void send_body(struct conn *c, const char *text, size_t len)
{
    const struct part one = part(text, len);
    send_parts(c, &one, 1);
}

static void end_body(struct conn *c)
{
    c->client.answered = true;
    if (!c->http10 && c->client.request.method != METHOD_HEAD) {
        queue_one(c, "0\r\n\r\n", 5);
    }
    conn_wake(c);
}

void http_answer(struct client *client, int status, const char *content_type, char *body)
{
    struct conn *c = (struct conn *)client;
    static const char no_memory[] = "{\"error\":{\"message\":\"Out of memory.\",\"type\":\"server_error\","
                                    "\"param\":null,\"code\":\"server_error\"}}";
    const char *text = body ? body : status == 204 ? "" : no_memory;
    if (!body && status != 204) {
        status = 500;
        content_type = "application/json";
    }
    if (status >= 400) {
        c->net->api->metrics.errors++;
    }
    size_t len = strlen(text);
    if (c->early && status != 200) {
        conn_drop(c); /* it was begun as another: cutting it off says that it failed */
    } else if (c->early) {
        send_body(c, text, len);
        end_body(c);
    } else {
        char allow[sizeof(c->allow) + 16] = "";
        if (status == 405 && c->allow[0]) {
            snprintf(allow, sizeof(allow), "Allow: %s\r\n", c->allow);
        }
        c->phase = CONN_ANSWERING;
        send_head(c, status, content_type, (int64_t)len, allow);
        client->answered = true;
        if (client->request.method != METHOD_HEAD && body) {
            conn_give(c, body, len); /* it may be long */
            return;
        }
        if (client->request.method != METHOD_HEAD) {
            queue_one(c, text, len);
        }
    }
    free(body);
}

void http_stream_begin(struct client *client)
{
    struct conn *c = (struct conn *)client;
    if (c->early) { /* another kind of answer was begun */
        conn_drop(c);
        return;
    }
    c->phase = CONN_ANSWERING;
    client->streaming = true;
    send_head(c, 200, "text/event-stream; charset=utf-8", -1, NULL);
}

void http_stream_event(struct client *client, const char *name, const char *data)
{
    static const char event[] = "event: ", text[] = "data: ";
    const struct part parts[BODY_PARTS_MAX] = {part(event, name ? sizeof(event) - 1 : 0),
                                               part(name, name ? strlen(name) : 0),
                                               part("\n", name ? 1 : 0),
                                               part(text, sizeof(text) - 1),
                                               part(data, strlen(data)),
                                               part("\n\n", 2)};
    send_parts((struct conn *)client, parts, BODY_PARTS_MAX);
}

void http_stream_end(struct client *client)
{
    if (client->streaming && !client->answered) {
        end_body((struct conn *)client);
    }
}

void http_probe(struct conn *c)
{
    struct client *client = &c->client;
    if (client->dropped || client->answered || c->out_head) {
        return;
    }
    if (!client->streaming && !c->early && client_streams(client)) {
        http_stream_begin(client);
    }
    if (client->streaming) {
        send_body(c, ":\n\n", 3);
    } else if (c->half_closed && client->readers) { /* what kind of answer it will be is known */
        if (!c->early) {
            c->early = true;
            c->phase = CONN_ANSWERING;
            send_head(c, 200, "application/json", -1, NULL);
        }
        send_body(c, " ", 1);
    }
}

/* ---- who asks ------------------------------------------------------------------------------------------------------
 */

/* A terminated copy of a field that may stand once. 1, 0 = absent or empty, -1 = more than once or too long. */
static int copy_field(const struct head *h, const char *name, char *out, size_t size)
{
    struct head_text value;
    int n = head_get(h, name, &value);
    out[0] = '\0';
    if (n < 0 || value.len >= size) {
        return -1;
    }
    memcpy(out, value.at, value.len);
    out[value.len] = '\0';
    return value.len > 0;
}

/* The ticket in a WebSocket's address, which stands for a token. */
static bool take_ticket(struct conn *c, const struct head *h)
{
    static const char name[] = "ticket=";
    struct head_text rest = h->query;
    char pair[ROUTE_QUERY_MAX];
    for (int n; (n = head_query_next(&rest, pair, sizeof(pair))) >= 0;) {
        if ((size_t)n > sizeof(name) - 1 && strncmp(pair, name, sizeof(name) - 1) == 0) {
            return ticket_take(&c->net->api->tickets, pair + sizeof(name) - 1, (size_t)n - (sizeof(name) - 1),
                               &c->client.who) &&
                   auth_known(c->net->auth, &c->client.who);
        }
    }
    return false;
}

/* Clients of Messages name their token in a field of its own: as Authorization would. Returns as head_get() does. */
static int copy_key(const struct head *h, char *out, size_t size)
{
    static const char bearer[] = "Bearer ";
    memcpy(out, bearer, sizeof(bearer));
    return copy_field(h, "X-Api-Key", out + sizeof(bearer) - 1, size - (sizeof(bearer) - 1));
}

/* By which token, and as whom. */
static int check_token(struct conn *c, const struct head *h, struct api_error *e)
{
    struct net *n = c->net;
    char authorization[HEADER_VALUE_MAX], user[OWNER_SIZE];
    int found = copy_field(h, "Authorization", authorization, sizeof(authorization));
    if (found == 0) {
        found = copy_key(h, authorization, sizeof(authorization));
    }
    int named = n->config->gateway_user_header ? copy_field(h, n->config->gateway_user_header, user, sizeof(user)) : 0;
    int rc = -EACCES;
    if (found == 0 && h->websocket && take_ticket(c, h)) {
        rc = 0;
    } else if (found >= 0) {
        /* A name that is too long is one that cannot be. */
        rc = auth_owner(n->auth, found > 0 ? authorization : NULL,
                        named < 0   ? "/"
                        : named > 0 ? user
                                    : NULL,
                        &c->client.who);
    }
    OPENSSL_cleanse(authorization, sizeof(authorization));
    if (rc == 0) {
        return 0;
    }
    n->api->metrics.refused++;
    if (rc == -EINVAL) {
        api_error_set(e, 400, "invalid_header", NULL,
                      "'%s' must be a user's name: without blanks and /, and with the gateway's name at most %d bytes.",
                      n->config->gateway_user_header, OWNER_SIZE - 2);
    } else {
        api_error_set(e, 401, "invalid_api_key", NULL,
                      found == 0 ? "No token was given." : "The token is not known, or has ended.");
    }
    return -1;
}

static int check_access(struct conn *c, const struct head *h, const struct route *route, bool open_route,
                        struct api_error *e)
{
    struct net *n = c->net;
    char origin[ORIGIN_MAX];
    if (n->loopback && !auth_required(n->auth) && !auth_host_allowed(n->config, h->host)) {
        api_error_set(e, 403, "host_not_allowed", NULL, "This Host is not served here; see allow-host.");
        return -1;
    }
    int found = copy_field(h, "Origin", origin, sizeof(origin));
    if (found < 0 || (found > 0 && !auth_origin_allowed(n->config, origin, h->host))) {
        api_error_set(e, 403, "origin_not_allowed", NULL, "This Origin may not connect; see allow-origin.");
        return -1;
    }
    if (found > 0) {
        c->origin = strdup(origin);
    }
    if (open_route) {
        return 0;
    }
    if (check_token(c, h, e)) {
        return -1;
    }
    if (c->client.who.scope == AUTH_METRICS && (!route || route->handler != service_metrics)) {
        api_error_set(e, 403, "insufficient_scope", NULL, "This token is for GET /metrics only.");
        return -1;
    }
    memcpy(c->client.owner, c->client.who.owner, sizeof(c->client.owner));
    return 0;
}

/* An address as text, from what a proxy wrote: a port and brackets may be around it. */
static bool read_address(struct head_text t, char out[ADDRESS_SIZE])
{
    char text[ADDRESS_SIZE];
    unsigned char binary[16];
    const char *colon = memchr(t.at, ':', t.len);
    if (t.len > 0 && *t.at == '[') {
        const char *end = memchr(t.at, ']', t.len);
        t.len = end ? (size_t)(end - t.at) - 1 : 0;
        t.at++;
    } else if (colon && !memchr(colon + 1, ':', t.len - (size_t)(colon + 1 - t.at))) {
        t.len = (size_t)(colon - t.at);
    }
    if (t.len == 0 || t.len >= sizeof(text)) {
        return false;
    }
    memcpy(text, t.at, t.len);
    text[t.len] = '\0';
    if (inet_pton(AF_INET, text, binary) != 1 && inet_pton(AF_INET6, text, binary) != 1) {
        return false;
    }
    memcpy(out, text, t.len + 1);
    return true;
}

/* Whom a trusted proxy forwards: the last address in X-Forwarded-For that is no trusted proxy itself. */
static void forwarded_for(const struct conn *c, const struct head *h, char out[ADDRESS_SIZE])
{
    const struct daemon_config *config = c->net->config;
    snprintf(out, ADDRESS_SIZE, "%s", c->peer);
    for (size_t i = h->n_fields; i > 0 && auth_proxy_trusted(config, out); i--) {
        const struct head_field *f = &h->fields[i - 1];
        static const char name[] = "X-Forwarded-For";
        if (f->name.len != sizeof(name) - 1 || strncasecmp(f->name.at, name, f->name.len) != 0) {
            continue;
        }
        for (struct head_text rest = f->value; rest.len > 0 && auth_proxy_trusted(config, out);) {
            size_t from = rest.len;
            while (from > 0 && rest.at[from - 1] != ',') {
                from--;
            }
            struct head_text last = {rest.at + from, rest.len - from};
            while (last.len > 0 && (*last.at == ' ' || *last.at == '\t')) {
                last.at++;
                last.len--;
            }
            while (last.len > 0 && (last.at[last.len - 1] == ' ' || last.at[last.len - 1] == '\t')) {
                last.len--;
            }
            if (!read_address(last, out)) {
                return;
            }
            rest.len = from > 0 ? from - 1 : 0;
        }
    }
}

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

static int read_query(struct conn *c, const struct head *h, struct api_error *e)
{
    struct head_text rest = h->query;
    char pair[ROUTE_QUERY_MAX];
    for (;;) {
        int n = head_query_next(&rest, pair, sizeof(pair));
        if (n == -1) {
            return 0;
        }
        if (n < 0) {
            api_error_set(e, 414, "invalid_request", NULL, "The query is too long.");
            return -1;
        }
        if (!utf8_valid(pair, (size_t)n) || memchr(pair, '\0', (size_t)n)) {
            size_t name = strcspn(pair, "="); /* which may itself be what is wrong */
            pair[name] = '\0';
            api_error_set(e, 400, "invalid_value", utf8_valid(pair, name) ? pair : NULL,
                          "The query is not valid UTF-8.");
            return -1;
        }
        if (!route_query_add(&c->client.request.query, pair, (size_t)n)) {
            pair[strcspn(pair, "=")] = '\0';
            api_error_set(e, 400, "invalid_value", pair, "Invalid value for '%s': it must be %s.", pair,
                          route_query_range(pair));
            return -1;
        }
    }
}

/* What tells a repeated POST from a new one. */
static int read_retry(struct conn *c, const struct head *h, struct api_error *e)
{
    char value[IDEMPOTENCY_KEY_MAX + 1];
    struct run_retry *retry = &c->client.request.retry;
    struct head_text any;
    int found = copy_field(h, "Idempotency-Key", value, sizeof(value));
    if (found < 0 || (found == 0 && head_get(h, "Idempotency-Key", &any))) {
        api_error_set(e, 400, "invalid_header", NULL, "The Idempotency-Key stands twice or has not 1 to %d bytes.",
                      IDEMPOTENCY_KEY_MAX);
        return -1;
    }
    if (found > 0) {
        retry->idempotency_key = strdup(value);
        if (!retry->idempotency_key) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            return -1;
        }
    }
    if (copy_field(h, "X-Stainless-Retry-Count", value, sizeof(value)) > 0) {
        retry->count = (int)text_digits(value, strnlen(value, 6));
    }
    return 0;
}

static int check_model(const struct conn *c, struct api_error *e)
{
    const struct api *api = c->net->api;
    if (!api->stopping && api->runs.session) {
        return 0;
    }
    api_error_set(e, 503, api->stopping ? "server_shutdown" : "model_loading", NULL, "%s",
                  api->stopping ? "The server is stopping." : "The model is still loading.");
    return -1;
}

/* What the request asks for. -1 and *e: it is refused. */
static int read_request(struct conn *c, const struct head *h, struct api_error *e)
{
    struct client_request *r = &c->client.request;
    char value[CORS_HEADERS_MAX + 1], address[ADDRESS_SIZE];
    c->http10 = h->http10;
    c->length = h->length;
    r->method = h->method;
    route_query_init(&r->query);
    forwarded_for(c, h, address);
    if (!net_admit_as(c->net, c, address)) {
        api_error_set(e, 429, "too_many_connections", NULL, "There are too many connections from this address.");
        return -1;
    }
    bool options = h->method == METHOD_OPTIONS;
    int rc = options ? 0 : route_find(api_routes, api_n_routes, h->method, h->path, &r->route, r->param);
    if (check_access(c, h, r->route, options || (r->route && r->route->open), e)) {
        return -1;
    }
    if (options && copy_field(h, "Access-Control-Request-Headers", value, sizeof(value)) > 0 &&
        value[strspn(value, CORS_HEADER_CHARS)] == '\0') {
        c->cors_headers = strdup(value);
    }
    if (rc == 404) {
        const char *absent = api_absent(h->path);
        api_error_set(e, 404, "not_found", NULL, "%s%s",
                      absent ? absent : "There is nothing at this path; the API is below /v1.",
                      absent ? " not supported." : "");
        return -1;
    }
    if (rc == 405) {
        route_allowed(api_routes, api_n_routes, h->path, c->allow);
        api_error_set(e, 405, "method_not_allowed", NULL, "Here are allowed: %s.", c->allow);
        return -1;
    }
    if (read_query(c, h, e)) {
        return -1;
    }
    if (c->length > BODY_BYTES_MAX) {
        api_error_set(e, 413, "body_too_large", NULL, "The body is larger than %d bytes.", BODY_BYTES_MAX);
        return -1;
    }
    return (r->route && r->route->needs_model && check_model(c, e)) || read_retry(c, h, e) ? -1 : 0;
}

/* Who offers sub-protocols (RFC 6455, 4.2.2) offers ours. */
static int check_subprotocol(const struct head *h, bool *offered, struct api_error *e)
{
    struct head_text value;
    *offered = head_get(h, "Sec-WebSocket-Protocol", &value) != 0;
    if (*offered && !head_lists(h, "Sec-WebSocket-Protocol", "convod")) {
        api_error_set(e, 400, "invalid_header", NULL,
                      "The only WebSocket sub-protocol here is convod; none is needed.");
        return -1;
    }
    return 0;
}

/* The request is whole, or needs no more: nothing is read until it is answered. */
static void work(struct conn *c)
{
    c->deadline_ms = 0;
    c->phase = CONN_WORKING;
}

static void count_request(struct conn *c)
{
    c->net->api->metrics.requests += !c->counted;
    c->counted = true;
}

void http_refuse(struct conn *c, const struct api_error *e)
{
    count_request(c);
    work(c);
    client_answer_error(&c->client, e);
}

static void refuse(struct conn *c, int status, const char *code, const char *what)
{
    struct api_error e;
    api_error_set(&e, status, code, NULL, "%s", what);
    http_refuse(c, &e);
}

static void upgrade(struct conn *c, const struct head *h)
{
    struct api_error e = {0};
    bool offered = false;
    char address[ADDRESS_SIZE], head[HEAD_WEBSOCKET_MAX];
    forwarded_for(c, h, address);
    if (!net_admit_as(c->net, c, address)) {
        api_error_set(&e, 429, "too_many_connections", NULL, "There are too many connections from this address.");
    } else if (strcmp(h->path, "/v1/responses") != 0) {
        api_error_set(&e, 404, "not_found", NULL, "There is no WebSocket here; it is at /v1/responses.");
    } else if (check_access(c, h, NULL, false, &e) == 0 && check_subprotocol(h, &offered, &e) == 0 &&
               c->net->api->stopping) {
        api_error_set(&e, 503, "server_shutdown", NULL, "The server is stopping.");
    }
    if (e.status) {
        http_refuse(c, &e);
        return;
    }
    size_t len = head_websocket(h, offered, head);
    c->phase = CONN_WEBSOCKET;
    c->client.websocket = true;
    c->deadline_ms = 0;
    frames_begin(c);
    conn_lend(c, head, len);
}

static void complete(struct conn *c)
{
    work(c);
    api_dispatch(&c->client);
}

/* Makes room for what comes next of the body, and says how much of it there is. 0: it was refused. */
static size_t body_room(struct conn *c, size_t want)
{
    struct client_request *r = &c->client.request;
    struct api_error e;
    size_t left = (size_t)c->length - r->body_len;
    want = want < left ? want : left;
    int rc = net_grow(c, &r->body, &r->body_size, r->body_len + want + 1, &e);
    if (rc == -EDQUOT) {
        http_refuse(c, &e);
        return 0;
    }
    if (rc) {
        conn_drop(c);
        return 0;
    }
    return want;
}

static void body_came(struct conn *c, size_t n)
{
    struct client_request *r = &c->client.request;
    r->body_len += n;
    r->body[r->body_len] = '\0';
    if (r->body_len == (size_t)c->length) {
        complete(c);
    }
}

/* The head is whole: it is taken out of the socket. */
static void begin(struct conn *c, char *text, size_t len, bool more)
{
    struct head h;
    struct api_error e = {0};
    count_request(c);
    if (recv(c->fd, text, len, MSG_DONTWAIT) != (ssize_t)len) {
        conn_drop(c); /* it was there a moment ago */
        return;
    }
    if (head_parse(text, len, &h, &e)) {
        c->http10 = h.http10;
        c->client.request.method = h.method; /* as far as it was read: HEAD has no body */
        http_refuse(c, &e);
        return;
    }
    if (h.websocket) {
        upgrade(c, &h);
        return;
    }
    if (read_request(c, &h, &e)) {
        http_refuse(c, &e);
        return;
    }
    if (c->length <= 0) {
        complete(c);
        return;
    }
    c->phase = CONN_BODY;
    c->deadline_ms = clock_ms() + (int64_t)c->net->config->timeout_seconds * 1000;
    if (h.expects_continue && !more) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        queue_one(c, go_on, sizeof(go_on) - 1);
    }
}

static ssize_t receive(struct conn *c, void *to, size_t size)
{
    ssize_t n = recv(c->fd, to, size, MSG_DONTWAIT);
    if (n == 0) {
        http_end(c);
    } else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        conn_drop(c);
    }
    return n;
}

static void read_head(struct conn *c)
{
    char *text = c->net->scratch;
    ssize_t n = recv(c->fd, text, READ_BYTES, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        conn_drop(c); /* nothing was asked */
    }
    if (n <= 0) {
        return;
    }
    struct api_error e = {0};
    int end = head_end(text, (size_t)n, c->seen, &e);
    c->seen = (size_t)n;
    if (end < 0) {
        http_refuse(c, &e);
    } else if ((size_t)end > HEAD_BYTES_MAX || (end == 0 && n >= HEAD_BYTES_MAX)) {
        api_error_set(&e, 431, "headers_too_large", NULL, "The head is larger than %d bytes.", HEAD_BYTES_MAX);
        http_refuse(c, &e);
    } else if (end > 0) {
        begin(c, text, (size_t)end, n > end);
    }
}

void http_read(struct conn *c)
{
    if (c->phase == CONN_HEAD) {
        read_head(c);
    } else {
        size_t room = body_room(c, READ_BYTES);
        ssize_t n = room ? receive(c, c->client.request.body + c->client.request.body_len, room) : 0;
        if (n > 0) {
            body_came(c, (size_t)n);
        }
    }
}

void http_end(struct conn *c)
{
    c->half_closed = true;
    c->half_closed_ms = clock_ms();
    if (c->phase == CONN_HEAD && c->seen == 0) {
        conn_drop(c);
    } else if (c->phase == CONN_HEAD || c->phase == CONN_BODY) {
        refuse(c, 400, "invalid_request", "The request ended before it was whole.");
    }
}

void http_late(struct conn *c)
{
    if (c->phase == CONN_HEAD && c->seen == 0) {
        conn_drop(c);
    } else {
        refuse(c, 408, "request_timeout", "The request took too long to arrive; see timeout-seconds.");
    }
}

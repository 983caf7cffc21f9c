/* http.c - from a parsed header block and the bytes after it to exactly one request.
 *
 * The library's parser is lenient: it takes any Content-Length that atoll() takes, ignores Transfer-Encoding, calls the
 * completion callback again for bytes that follow a body, and frees the headers before the upgrade callback when the
 * Upgrade value is unknown to it. Here the framing is checked strictly and refused when it is odd; a refused request
 * closes its connection unless its body is known to be short.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/net/net_internal.h"

#define CORS_HEADERS_MAX    512
#define CORS_HEADER_CHARS   "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, "
#define HEADER_VALUE_MAX    4096
#define IDEMPOTENCY_KEY_MAX 255
#define REFUSED_BODY_BYTES  (1024 * 1024) /* of a refused request that are read so that the answer arrives */

/* Copies a header. Its length, 0 = absent or empty, -1 = too long or given more than once. */
static int header(struct lws *wsi, enum lws_token_indexes token, char *out, size_t size)
{
    out[0] = '\0';
    int n = lws_hdr_total_length(wsi, token);
    if (n <= 0) {
        return 0;
    }
    if ((size_t)n >= size || lws_hdr_fragment_length(wsi, token, 1) > 0 ||
        lws_hdr_copy(wsi, out, (int)size, token) < 0) {
        out[0] = '\0';
        return -1;
    }
    while (n > 0 && (out[n - 1] == ' ' || out[n - 1] == '\t')) {
        out[--n] = '\0';
    }
    return n;
}

static bool present(struct lws *wsi, enum lws_token_indexes token)
{
    return lws_hdr_total_length(wsi, token) > 0;
}

static const struct {
    enum lws_token_indexes token;
    enum route_method method;
} methods[] = {{WSI_TOKEN_GET_URI, METHOD_GET},       {WSI_TOKEN_POST_URI, METHOD_POST},
               {WSI_TOKEN_DELETE_URI, METHOD_DELETE}, {WSI_TOKEN_OPTIONS_URI, METHOD_OPTIONS},
               {WSI_TOKEN_HEAD_URI, METHOD_HEAD},     {WSI_TOKEN_PUT_URI, METHOD_OTHER},
               {WSI_TOKEN_PATCH_URI, METHOD_OTHER}};

/* Bytes of the headers that the library knows by name. Others it does not let us count; the whole block is bounded by
 * HEADER_BYTES_PARSED, past which the library closes the connection without an answer. */
static size_t header_bytes(struct lws *wsi)
{
    size_t sum = 0;
    for (int t = 0; t < WSI_TOKEN_COUNT; t++) {
        int n = lws_hdr_total_length(wsi, (enum lws_token_indexes)t);
        sum += n > 0 ? (size_t)n : 0;
    }
    return sum;
}

int http_check_access(struct net *n, struct lws *wsi, bool open_route, char owner[OWNER_SIZE],
                      unsigned char token[TOKEN_DIGEST_BYTES], char **origin_out, struct api_error *e)
{
    char host[300], origin[300], authorization[HEADER_VALUE_MAX];
    int host_len = header(wsi, WSI_TOKEN_HOST, host, sizeof(host));
    if (host_len < 0) {
        api_error_set(e, 400, "invalid_header", NULL, "The Host header is malformed.");
        return -1;
    }
    if (n->loopback && !auth_required(n->auth) && !(host_len > 0 && auth_host_allowed(n->config, host))) {
        api_error_set(e, 403, "host_not_allowed", NULL, "This Host is not served here; see allow-host.");
        return -1;
    }
    int origin_len = header(wsi, WSI_TOKEN_ORIGIN, origin, sizeof(origin));
    if (origin_len < 0 || (origin_len > 0 && !auth_origin_allowed(n->config, origin, host))) {
        api_error_set(e, 403, "origin_not_allowed", NULL, "This Origin may not connect; see allow-origin.");
        return -1;
    }
    if (origin_len > 0 && origin_out) {
        *origin_out = strdup(origin);
    }
    snprintf(owner, OWNER_SIZE, "%s", "");
    if (open_route) {
        return 0;
    }
    int len = header(wsi, WSI_TOKEN_HTTP_AUTHORIZATION, authorization, sizeof(authorization));
    bool ok = len >= 0 && auth_owner(n->auth, len > 0 ? authorization : NULL, owner, token);
    lws_explicit_bzero(authorization, sizeof(authorization));
    if (!ok) {
        n->api->metrics.refused++;
        api_error_set(e, 401, "invalid_api_key", NULL, len == 0 ? "No token was given." : "The token is not known.");
        return -1;
    }
    return 0;
}

static int write_plain(struct lws *wsi, const struct api_error *e)
{
    unsigned char buffer[LWS_PRE + 1024];
    char *body = api_error_text(e);
    if (!body) {
        return -1;
    }
    int n = snprintf((char *)buffer + LWS_PRE, sizeof(buffer) - LWS_PRE,
                     "HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s"
                     "Connection: close\r\n\r\n%s",
                     e->status, strlen(body),
                     e->status == 426   ? "Sec-WebSocket-Version: 13\r\n"
                     : e->status == 401 ? "WWW-Authenticate: Bearer\r\n"
                                        : "",
                     body);
    free(body);
    if (n < 0 || (size_t)n >= sizeof(buffer) - LWS_PRE) {
        return -1;
    }
    return lws_write(wsi, buffer + LWS_PRE, (size_t)n, LWS_WRITE_HTTP_HEADERS) < 0 ? -1 : 1;
}

/* Whether a client that offers sub-protocols (RFC 6455, 4.2.2) offers ours. The library would close the connection
 * without a word otherwise. */
static bool subprotocol_fits(struct lws *wsi)
{
    char offered[256], *rest;
    int n = header(wsi, WSI_TOKEN_PROTOCOL, offered, sizeof(offered));
    if (n == 0) {
        return true;
    }
    for (char *name = n > 0 ? strtok_r(offered, ", \t", &rest) : NULL; name; name = strtok_r(NULL, ", \t", &rest)) {
        if (strcmp(name, "convod") == 0) {
            return true;
        }
    }
    return false;
}

int http_check_upgrade(struct net *n, struct lws *wsi, char owner[OWNER_SIZE])
{
    struct api_error e = {0};
    unsigned char token[TOKEN_DIGEST_BYTES];
    char upgrade[32], path[64], version[8], length[32];
    /* The library may have freed the headers already; then all of these read as absent. */
    if (header(wsi, WSI_TOKEN_UPGRADE, upgrade, sizeof(upgrade)) <= 0 || strcasecmp(upgrade, "websocket") != 0) {
        return -1;
    }
    if (header_bytes(wsi) > HEADER_BYTES_MAX) {
        api_error_set(&e, 431, "headers_too_large", NULL, "The headers are larger than %d bytes.", HEADER_BYTES_MAX);
    } else if (header(wsi, WSI_TOKEN_GET_URI, path, sizeof(path)) <= 0 || strcmp(path, "/v1/responses") != 0) {
        api_error_set(&e, 404, "not_found", NULL, "There is no WebSocket here; it is at /v1/responses.");
    } else if (present(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING) ||
               header(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, length, sizeof(length)) < 0 ||
               (length[0] && strcmp(length, "0") != 0)) {
        api_error_set(&e, 400, "invalid_header", NULL, "An upgrade has no body.");
    } else if (header(wsi, WSI_TOKEN_VERSION, version, sizeof(version)) <= 0 || strcmp(version, "13") != 0) {
        api_error_set(&e, 426, "invalid_header", NULL, "Only WebSocket version 13 is spoken here.");
    } else if (!present(wsi, WSI_TOKEN_KEY)) {
        api_error_set(&e, 400, "invalid_header", NULL, "Sec-WebSocket-Key is missing.");
    } else if (!subprotocol_fits(wsi)) {
        api_error_set(&e, 400, "invalid_header", NULL,
                      "The only WebSocket sub-protocol here is convod; none is needed.");
    } else if (http_check_access(n, wsi, false, owner, token, NULL, &e)) {
        /* e is set */
    } else if (n->api->stopping) {
        api_error_set(&e, 503, "server_shutdown", NULL, "The server is stopping.");
    }
    return e.status ? write_plain(wsi, &e) : 0;
}

/* Reads the request line and the headers that matter. -1 and *e: refused; *framing_ok says whether the body's length is
 * known. */
static int read_headers(struct conn *c, bool *framing_ok, struct api_error *e)
{
    struct lws *wsi = c->wsi;
    struct http_request *h = &c->http;
    struct client_request *r = &c->client.request;
    char value[300], path[ROUTE_PATH_MAX];
    *framing_ok = false;
    h->length = -1;
    r->method = METHOD_OTHER;
    route_query_init(&r->query);
    enum lws_token_indexes uri = WSI_TOKEN_COUNT;
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++) {
        if (present(wsi, methods[i].token)) {
            uri = methods[i].token;
            r->method = methods[i].method;
        }
    }
    h->http10 = header(wsi, WSI_TOKEN_HTTP, value, sizeof(value)) <= 0 || strcmp(value, "HTTP/1.1") != 0;
    if (header_bytes(wsi) > HEADER_BYTES_MAX) {
        api_error_set(e, 431, "headers_too_large", NULL, "The headers are larger than %d bytes.", HEADER_BYTES_MAX);
        return -1;
    }
    if (present(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING)) {
        api_error_set(e, 411, "length_required", NULL, "Send a Content-Length; Transfer-Encoding is not accepted.");
        return -1;
    }
    int n = header(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, value, sizeof(value));
    if (n != 0) {
        h->length = n > 0 ? text_digits(value, (size_t)n) : -1;
        if (h->length < 0) {
            api_error_set(e, 400, "invalid_header", NULL, "The Content-Length is malformed.");
            return -1;
        }
    }
    *framing_ok = true;
    if (uri == WSI_TOKEN_COUNT || header(wsi, uri, path, sizeof(path)) <= 0) {
        api_error_set(e, uri == WSI_TOKEN_COUNT ? 400 : 414, "invalid_request", NULL, "The path is too long.");
        return -1;
    }
    h->path = strdup(path);
    if (!h->path) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    int rc = 0;
    if (r->method != METHOD_OPTIONS) {
        rc = route_find(api_routes, api_n_routes, r->method, path, &r->route, r->param);
    }
    bool open_route = r->method == METHOD_OPTIONS || (r->route && r->route->open);
    if (http_check_access(c->net, wsi, open_route, c->client.owner, c->token, &h->origin, e)) {
        return -1;
    }
    if (r->method == METHOD_OPTIONS && header(wsi, WSI_TOKEN_HTTP_AC_REQUEST_HEADERS, value, sizeof(value)) > 0 &&
        strlen(value) <= CORS_HEADERS_MAX && value[strspn(value, CORS_HEADER_CHARS)] == '\0') {
        h->cors_headers = strdup(value);
    }
    if (rc == 404) {
        api_error_set(e, 404, "not_found", NULL, "There is nothing at this path.");
        return -1;
    }
    if (rc == 405) {
        api_error_set(e, 405, "method_not_allowed", NULL, "This method is not allowed here.");
        return -1;
    }
    char pair[ROUTE_QUERY_MAX];
    for (int i = 0; lws_hdr_fragment_length(wsi, WSI_TOKEN_HTTP_URI_ARGS, i) > 0; i++) {
        n = lws_hdr_copy_fragment(wsi, pair, sizeof(pair), WSI_TOKEN_HTTP_URI_ARGS, i);
        if (n < 0) {
            api_error_set(e, 414, "invalid_request", NULL, "The query is too long.");
            return -1;
        }
        if (!utf8_valid(pair, (size_t)n)) {
            api_error_set(e, 400, "invalid_value", NULL, "The query is not valid UTF-8.");
            return -1;
        }
        if (!route_query_add(&r->query, pair, (size_t)n)) {
            pair[strcspn(pair, "=")] = '\0';
            api_error_set(e, 400, "invalid_value", pair, "Invalid value for '%s': it must be %s.", pair,
                          route_query_range(pair));
            return -1;
        }
    }
    if (h->length > BODY_BYTES_MAX) {
        api_error_set(e, 413, "body_too_large", NULL, "The body is larger than %d bytes.", BODY_BYTES_MAX);
        return -1;
    }
    if (header(wsi, WSI_TOKEN_HTTP_EXPECT, value, sizeof(value)) != 0 && strcasecmp(value, "100-continue") != 0) {
        api_error_set(e, 417, "invalid_header", NULL, "Only Expect: 100-continue is understood.");
        return -1;
    }
    return 0;
}

/* A header that the library does not know by name. Its length, 0 = absent or empty, -1 = too long. */
static int custom_header(struct lws *wsi, const char *name, char *out, size_t size)
{
    int len = (int)strlen(name), n = lws_hdr_custom_length(wsi, name, len);
    if (n <= 0) {
        return 0;
    }
    return (size_t)n < size && lws_hdr_custom_copy(wsi, out, (int)size, name, len) > 0 ? n : -1;
}

/* What tells a repeated POST from a new one. -1 and *e: a key that cannot be kept. */
static int read_retry(struct conn *c, struct api_error *e)
{
    char value[IDEMPOTENCY_KEY_MAX + 1];
    int n = custom_header(c->wsi, "idempotency-key:", value, sizeof(value));
    if (n < 0) {
        api_error_set(e, 400, "invalid_header", NULL, "The Idempotency-Key is longer than %d bytes.",
                      IDEMPOTENCY_KEY_MAX);
        return -1;
    }
    if (n > 0) {
        c->client.request.retry.idempotency_key = strdup(value);
        if (!c->client.request.retry.idempotency_key) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            return -1;
        }
    }
    if (custom_header(c->wsi, "x-stainless-retry-count:", value, sizeof(value)) > 0) {
        c->client.request.retry.count = (int)text_digits(value, strnlen(value, 6));
    }
    return 0;
}

int http_begin(struct conn *c)
{
    struct api *api = c->net->api;
    struct http_request *h = &c->http;
    struct client_request *r = &c->client.request;
    if (c->phase != CONN_IDLE) {
        return -1; /* a second request before the first was answered */
    }
    conn_request_clear(c);
    api->metrics.requests++;
    lws_set_timeout(c->wsi, NO_PENDING_TIMEOUT, 0);
    bool framing_ok;
    struct api_error e = {0};
    int rc = read_headers(c, &framing_ok, &e);
    if (!framing_ok) {
        /* Where this request ends is not known: say so at once, before the library looks at what follows. */
        write_plain(c->wsi, &e);
        api->metrics.errors++;
        return -1;
    }
    char expect[32];
    bool expects = header(c->wsi, WSI_TOKEN_HTTP_EXPECT, expect, sizeof(expect)) > 0;
    bool post = r->method == METHOD_POST || r->method == METHOD_OTHER;
    if (!rc && r->route && r->route->needs_model && !api->runs.session) {
        api_error_set(&e, 503, api->stopping ? "server_shutdown" : "model_loading", NULL, "%s",
                      api->stopping ? "The server is stopping." : "The model is still loading.");
        rc = -1;
    }
    if (h->http10 || (post && h->length < 0)) {
        c->close_after = true;
    }
    if (!rc) {
        rc = read_retry(c, &e);
    }
    if (h->length > 0) {
        int64_t readable = e.status == 413 ? DISCARD_BYTES_MAX : REFUSED_BODY_BYTES;
        if (!rc || (!expects && h->length <= readable)) {
            c->phase = CONN_BODY;
            c->discard = rc != 0;
            c->refused = e;
            lws_set_timeout(c->wsi, PENDING_TIMEOUT_HTTP_CONTENT, c->net->config->timeout_seconds);
            if (!rc && expects) {
                unsigned char go_on[LWS_PRE + 32];
                int n = snprintf((char *)go_on + LWS_PRE, 32, "HTTP/1.1 100 Continue\r\n\r\n");
                if (lws_write(c->wsi, go_on + LWS_PRE, (size_t)n, LWS_WRITE_HTTP_HEADERS) < 0) {
                    return -1;
                }
            }
            return 0;
        }
        c->close_after = true;
    }
    /* No body to wait for. A POST without a length is left in the library's body state, which reads on. */
    c->phase = CONN_WORKING;
    if (!(post && h->length < 0)) {
        c->flow_stopped = true;
        if (lws_rx_flow_control(c->wsi, 0) < 0) {
            return -1;
        }
    }
    if (rc) {
        client_answer_error(&c->client, &e);
    } else {
        api_dispatch(&c->client);
    }
    return 0;
}

int http_body(struct conn *c, const void *data, size_t len)
{
    struct client_request *r = &c->client.request;
    if (c->phase != CONN_BODY || c->discard || len == 0) {
        return 0;
    }
    if (len > (size_t)c->http.length - r->body_len) {
        return -1;
    }
    int rc = budget_grow(&c->net->api->budget, &r->body, &c->http.body_size, r->body_len + len + 1, &c->refused);
    if (rc == -EDQUOT) {
        c->discard = true; /* the rest is read, so that the answer arrives */
        return 0;
    }
    if (rc) {
        return -1;
    }
    memcpy(r->body + r->body_len, data, len);
    r->body_len += len;
    r->body[r->body_len] = '\0';
    return 0;
}

int http_body_complete(struct conn *c)
{
    if (c->phase == CONN_WORKING || c->phase == CONN_ANSWERING) {
        /* Called again: more bytes follow the body before the answer was given. The library would call again and again
         * for them; whoever does that loses the connection, and the turn ends as its policy says. */
        return c->http.length > 0 ? -1 : 0;
    }
    if (c->phase != CONN_BODY) {
        return 0;
    }
    if (!c->discard && c->client.request.body_len != (size_t)c->http.length) {
        return -1;
    }
    lws_set_timeout(c->wsi, NO_PENDING_TIMEOUT, 0);
    c->phase = CONN_WORKING;
    if (c->discard) {
        client_answer_error(&c->client, &c->refused);
    } else {
        api_dispatch(&c->client);
    }
    return 0;
}

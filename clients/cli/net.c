/* net.c - HTTP requests and the WebSocket, on libwebsockets' client.
 *
 * One thread: every wait serves the library's loop. There is at most one HTTP request and one WebSocket at a time, each
 * in its slot of `struct net`; a callback for a connection that is in neither slot (a late one of a request that was
 * given up) is ignored. Sizes that the daemon controls: a message or an answer of more than NET_MAX_BYTES ends its
 * connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <libwebsockets.h>
#include <netdb.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include "clients/cli/cli_internal.h"

#define NET_MAX_BYTES  (64u << 20)
#define NET_TICK_MS    100 /* how soon Ctrl-C is seen when it came just before a wait */
#define NET_TIMEOUT_S  120 /* for an answer to begin, unless the model works on it */
#define HTTP_READ_SIZE 4096

struct message {
    struct message *next;
    char *text;
};

/* A connection's life: NONE -> CONNECTING -> OPEN -> NONE. */
enum slot_state { SLOT_NONE, SLOT_CONNECTING, SLOT_OPEN };

struct http_slot {
    struct lws *wsi;
    enum slot_state state;
    const char *body;
    size_t body_len, body_sent;
    struct net_reply *reply;
    bool (*on_data)(void *arg, const char *data, size_t len);
    void *arg;
    bool complete, stopped, too_big;
};

struct ws_slot {
    struct lws *wsi;
    enum slot_state state;
    struct message *out, **out_end;
    struct message *in, **in_end;
    struct buf partial;
    int close_code;         /* why the daemon closed it, or 0 */
    char close_reason[124]; /* in its words: a close frame has room for 123 */
    int warm_ups;           /* sent on this socket, their ends not read yet */
};

struct net {
    struct lws_context *context;
    lws_sorted_usec_list_t tick;
    char *url, *host, *prefix, *host_header, *authorization;
    int port;
    bool tls;
    struct http_slot http;
    struct ws_slot ws;
    char why[160];     /* the library's reason for the last failed connection */
    long refused_cert; /* what is wrong with the certificate that was shown then (X509_V_ERR_...), or 0 */
    bool answered;     /* a daemon was there before */
    bool patient;      /* answers take as long as they take */
};

/* ---- message queues ------------------------------------------------------------------------------------------------
 */

static void queue_add(struct message ***end, char *text)
{
    struct message *m = calloc(1, sizeof(*m));
    if (!m)
        out_of_memory();
    m->text = text;
    **end = m;
    *end = &m->next;
}

static char *queue_take(struct message **first, struct message ***end)
{
    struct message *m = *first;
    if (!m)
        return NULL;
    char *text = m->text;
    *first = m->next;
    if (!*first)
        *end = first;
    free(m);
    return text;
}

static void queue_drop(struct message **first, struct message ***end)
{
    for (char *text; (text = queue_take(first, end));)
        free(text);
}

/* ---- callbacks -----------------------------------------------------------------------------------------------------
 */

static int add_header(struct lws *wsi, enum lws_token_indexes token, const char *value, unsigned char **at,
                      unsigned char *end)
{
    return lws_add_http_header_by_token(wsi, token, (const unsigned char *)value, (int)strlen(value), at, end);
}

static int add_headers(struct net *n, struct lws *wsi, unsigned char **at, unsigned char *end, bool has_body)
{
    if (n->authorization && add_header(wsi, WSI_TOKEN_HTTP_AUTHORIZATION, n->authorization, at, end))
        return -1;
    if (has_body) {
        char length[32];
        snprintf(length, sizeof(length), "%zu", n->http.body_len);
        if (add_header(wsi, WSI_TOKEN_HTTP_CONTENT_TYPE, "application/json", at, end) ||
            add_header(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, length, at, end))
            return -1;
        lws_client_http_body_pending(wsi, 1);
        lws_callback_on_writable(wsi);
    }
    return 0;
}

static int http_write_body(struct net *n, struct lws *wsi)
{
    struct http_slot *h = &n->http;
    size_t left = h->body_len - h->body_sent, piece = left < 65536 ? left : 65536;
    if (left == 0)
        return 0;
    unsigned char *framed = malloc(LWS_PRE + piece);
    if (!framed)
        return -1;
    memcpy(framed + LWS_PRE, h->body + h->body_sent, piece);
    int written = lws_write(wsi, framed + LWS_PRE, piece, piece == left ? LWS_WRITE_HTTP_FINAL : LWS_WRITE_HTTP);
    free(framed);
    if (written < 0)
        return -1;
    h->body_sent += piece;
    if (h->body_sent == h->body_len)
        lws_client_http_body_pending(wsi, 0);
    else
        lws_callback_on_writable(wsi);
    return 0;
}

static int http_received(struct net *n, const char *data, size_t len)
{
    struct http_slot *h = &n->http;
    if (h->on_data && h->reply->status == 200) {
        if (!h->on_data(h->arg, data, len)) {
            h->stopped = true;
            return -1;
        }
        return 0;
    }
    if (h->reply->body.len + len > NET_MAX_BYTES) {
        h->too_big = true;
        return -1;
    }
    buf_add(&h->reply->body, data, len);
    return 0;
}

static int http_event(struct net *n, struct lws *wsi, enum lws_callback_reasons reason, void *in, size_t len)
{
    struct http_slot *h = &n->http;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        snprintf(n->why, sizeof(n->why), "%.*s", in ? (int)len : 0, in ? (const char *)in : "");
        h->state = SLOT_NONE;
        h->wsi = NULL;
        break;
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER: {
        unsigned char **at = in;
        return add_headers(n, wsi, at, *at + len, h->body != NULL);
    }
    case LWS_CALLBACK_CLIENT_HTTP_WRITEABLE:
        return http_write_body(n, wsi);
    case LWS_CALLBACK_ESTABLISHED_CLIENT_HTTP:
        h->state = SLOT_OPEN;
        n->answered = true;
        h->reply->status = (int)lws_http_client_http_response(wsi);
        break;
    case LWS_CALLBACK_RECEIVE_CLIENT_HTTP: {
        char space[LWS_PRE + HTTP_READ_SIZE], *at = space + LWS_PRE;
        int room = HTTP_READ_SIZE;
        return lws_http_client_read(wsi, &at, &room) < 0 ? -1 : 0;
    }
    case LWS_CALLBACK_RECEIVE_CLIENT_HTTP_READ:
        return http_received(n, in, len);
    case LWS_CALLBACK_COMPLETED_CLIENT_HTTP:
        h->complete = true;
        return -1;
    case LWS_CALLBACK_CLOSED_CLIENT_HTTP:
        h->state = SLOT_NONE;
        h->wsi = NULL;
        break;
    default:
        break;
    }
    return 0;
}

static int ws_write(struct net *n, struct lws *wsi)
{
    char *text = queue_take(&n->ws.out, &n->ws.out_end);
    if (!text)
        return 0;
    size_t len = strlen(text);
    unsigned char *framed = malloc(LWS_PRE + len);
    int written = -1;
    if (framed) {
        memcpy(framed + LWS_PRE, text, len);
        written = lws_write(wsi, framed + LWS_PRE, len, LWS_WRITE_TEXT);
    }
    free(framed);
    free(text);
    if (n->ws.out)
        lws_callback_on_writable(wsi);
    return written < 0 ? -1 : 0;
}

static int ws_event(struct net *n, struct lws *wsi, enum lws_callback_reasons reason, void *in, size_t len)
{
    struct ws_slot *w = &n->ws;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        snprintf(n->why, sizeof(n->why), "%.*s", in ? (int)len : 0, in ? (const char *)in : "");
        w->state = SLOT_NONE;
        w->wsi = NULL;
        break;
    case LWS_CALLBACK_CLIENT_APPEND_HANDSHAKE_HEADER: {
        unsigned char **at = in;
        return add_headers(n, wsi, at, *at + len, false);
    }
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        n->answered = true;
        w->state = SLOT_OPEN;
        break;
    case LWS_CALLBACK_CLIENT_RECEIVE:
        if (w->partial.len + len > NET_MAX_BYTES)
            return -1;
        buf_add(&w->partial, in, len);
        if (!lws_remaining_packet_payload(wsi) && lws_is_final_fragment(wsi)) {
            queue_add(&w->in_end, text_copy(w->partial.data));
            buf_clear(&w->partial);
        }
        break;
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return ws_write(n, wsi);
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE: {
        const unsigned char *code = in;
        w->close_code = len >= 2 ? code[0] << 8 | code[1] : 0;
        snprintf(w->close_reason, sizeof(w->close_reason), "%.*s", len > 2 ? (int)len - 2 : 0, (const char *)in + 2);
        break;
    }
    case LWS_CALLBACK_CLIENT_CLOSED:
        w->state = SLOT_NONE;
        w->wsi = NULL;
        break;
    default:
        break;
    }
    return 0;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct net *n = lws_context_user(lws_get_context(wsi));
    if (reason == LWS_CALLBACK_OPENSSL_PERFORM_SERVER_CERT_VERIFICATION) {
        /* `len`: whether it is accepted so far. It only says what the library, which decides, does not tell. */
        if (n && len == 0)
            n->refused_cert = X509_STORE_CTX_get_error(user);
        return 0;
    }
    if (n && wsi && wsi == n->http.wsi)
        return http_event(n, wsi, reason, in, len);
    if (n && wsi && wsi == n->ws.wsi)
        return ws_event(n, wsi, reason, in, len);
    return 0;
}

static const struct lws_protocols protocols[] = {
    {.name = "convo", .callback = callback, .rx_buffer_size = 65536},
    {.name = NULL},
};

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

/* Takes the URL apart. Nothing is resolved. */
static int parse_url(struct net *n, const char *url)
{
    const char *rest;
    if (strncmp(url, "http://", 7) == 0)
        rest = url + 7;
    else if (strncmp(url, "https://", 8) == 0)
        rest = url + 8, n->tls = true;
    else
        return -EINVAL;
    size_t authority = strcspn(rest, "/?#");
    if (rest[authority] == '?' || rest[authority] == '#' || memchr(rest, '@', authority))
        return -EINVAL;
    const char *host = rest, *host_end, *port = NULL;
    if (*host == '[') {
        host++;
        host_end = memchr(host, ']', authority - 1);
        if (!host_end)
            return -EINVAL;
        if (host_end + 1 < rest + authority && host_end[1] == ':')
            port = host_end + 2;
        else if (host_end + 1 != rest + authority)
            return -EINVAL;
    } else {
        const char *colon = memchr(host, ':', authority);
        host_end = colon ? colon : rest + authority;
        port = colon ? colon + 1 : NULL;
    }
    if (host_end == host)
        return -EINVAL;
    n->port = n->tls ? 443 : 80;
    if (port) {
        char *end;
        long value = strtol(port, &end, 10);
        if (end == port || end != rest + authority || value < 1 || value > 65535)
            return -EINVAL;
        n->port = (int)value;
    }
    struct buf b = {0};
    buf_add(&b, host, (size_t)(host_end - host));
    n->host = b.data;
    b = (struct buf){0};
    buf_add(&b, rest, (size_t)(port ? port - rest - 1 : (long)authority));
    buf_printf(&b, ":%d", n->port);
    n->host_header = b.data;
    b = (struct buf){0};
    buf_str(&b, rest + authority);
    while (b.len > 0 && b.data[b.len - 1] == '/')
        b.data[--b.len] = '\0';
    n->prefix = b.data;
    return 0;
}

/* Whether a host ends with one of the names in no_proxy. */
static bool in_no_proxy(const char *host)
{
    const char *list = getenv("no_proxy") ? getenv("no_proxy") : getenv("NO_PROXY");
    size_t host_len = strlen(host), len;
    for (; list && *list; list += len) {
        list += strspn(list, ", .");
        len = strcspn(list, ", ");
        const char *end = host_len >= len ? host + host_len - len : NULL;
        if ((len == 1 && *list == '*') ||
            (len > 0 && end && strncasecmp(end, list, len) == 0 && (end == host || end[-1] == '.')))
            return true;
    }
    return false;
}

/* This machine is reached without a proxy, whatever the environment says of others. */
static bool is_here(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    return strcasecmp(host, "localhost") == 0 ||
           (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

/* The library takes http_proxy from the environment, for all hosts: so it is not there while it looks. */
static struct lws_context *create_context(const struct net *n, const struct lws_context_creation_info *info)
{
    const char *set = is_here(n->host) || in_no_proxy(n->host) ? getenv("http_proxy") : NULL;
    char *proxy = set ? text_copy(set) : NULL;
    if (proxy)
        unsetenv("http_proxy");
    struct lws_context *context = lws_create_context(info);
    if (proxy)
        setenv("http_proxy", proxy, 1);
    free(proxy);
    return context;
}

int net_open(const char *url, const char *token, struct net **out, char *err, size_t err_size)
{
    struct net *n = calloc(1, sizeof(*n));
    if (!n) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    n->ws.out_end = &n->ws.out;
    n->ws.in_end = &n->ws.in;
    n->url = text_copy(url);
    int rc = parse_url(n, url);
    if (rc) {
        snprintf(err, err_size, "%s is no address of a daemon; one looks like %s", url, CLI_DEFAULT_URL);
        net_close(n);
        return rc;
    }
    if (token) {
        struct buf b = {0};
        buf_printf(&b, "Bearer %s", token);
        n->authorization = b.data;
    }
    lws_set_log_level(0, NULL);
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN,
        .protocols = protocols,
        .gid = (gid_t)-1,
        .uid = (uid_t)-1,
        .user = n,
        .fd_limit_per_thread = 16,
        .timeout_secs = NET_TIMEOUT_S,
        .options = n->tls ? LWS_SERVER_OPTION_DO_SSL_GLOBAL_INIT : 0,
    };
    n->context = create_context(n, &info);
    if (!n->context) {
        snprintf(err, err_size, "the network could not be set up");
        net_close(n);
        return -EIO;
    }
    *out = n;
    return 0;
}

void net_close(struct net *n)
{
    if (!n)
        return;
    if (n->context) {
        net_ws_close(n);
        lws_context_destroy(n->context);
    }
    queue_drop(&n->ws.out, &n->ws.out_end);
    queue_drop(&n->ws.in, &n->ws.in_end);
    buf_free(&n->ws.partial);
    free(n->url);
    free(n->host);
    free(n->prefix);
    free(n->host_header);
    free(n->authorization);
    free(n);
}

const char *net_url(const struct net *n)
{
    return n->url;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------
 */

static void on_tick(lws_sorted_usec_list_t *tick)
{
    (void)tick; /* it only ends the wait */
}

void net_pause(struct net *n, int wait_ms)
{
    lws_sul_schedule(n->context, 0, &n->tick, on_tick, (lws_usec_t)wait_ms * 1000);
    lws_service(n->context, 0);
    lws_sul_schedule(n->context, 0, &n->tick, on_tick, LWS_SET_TIMER_USEC_CANCEL);
}

static void connect_slot(struct net *n, struct lws **slot, const char *method, const char *path)
{
    struct lws_client_connect_info info = {
        .context = n->context,
        .address = n->host,
        .port = n->port,
        .path = path,
        .host = n->host_header,
        .method = method,
        .local_protocol_name = protocols[0].name,
        .alpn = "http/1.1",
        .pwsi = slot,
        .ssl_connection = LCCSCF_HTTP_NO_FOLLOW_REDIRECT | (n->tls ? LCCSCF_USE_SSL : 0),
    };
    n->why[0] = '\0';
    n->refused_cert = 0;
    lws_client_connect_via_info(&info);
}

/* Why no connection came about, and what to do about it. */
static int no_daemon(const struct net *n, char *err, size_t err_size)
{
    if (n->refused_cert) {
        snprintf(err, err_size, "the certificate of %s is not accepted: %s%s", n->url,
                 X509_verify_cert_error_string(n->refused_cert),
                 n->refused_cert == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
                     ? "; the environment's SSL_CERT_FILE may name a file with it"
                     : "");
        return -EPROTO;
    }
    if (n->tls && strstr(n->why, "SSL")) {
        snprintf(err, err_size, "%s does not speak TLS; the address of a daemon without begins with http://", n->url);
        return -EPROTO;
    }
    struct addrinfo *found = NULL, wanted = {.ai_socktype = SOCK_STREAM};
    int unknown = getaddrinfo(n->host, NULL, &wanted, &found);
    if (found)
        freeaddrinfo(found);
    if (unknown)
        snprintf(err, err_size, "no convod at %s: %s: %s", n->url, n->host, gai_strerror(unknown));
    else if (n->answered)
        snprintf(err, err_size, "convod at %s does not answer any more: it was stopped, or it died; its log says why",
                 n->url);
    else
        snprintf(err, err_size, "no convod at %s: start one with `make chat` or `convod --model FILE`%s%s%s", n->url,
                 n->why[0] ? " (" : "", n->why, n->why[0] ? ")" : "");
    return -ECONNREFUSED;
}

void net_patience(struct net *n, bool patient)
{
    n->patient = patient;
}

int net_http(struct net *n, const char *method, const char *path, const char *body, struct net_reply *reply,
             bool (*on_data)(void *arg, const char *data, size_t len), void *arg, char *err, size_t err_size)
{
    struct http_slot *h = &n->http;
    /* A POST without a length would be read as one without an end. */
    if (!body && strcmp(method, "POST") == 0)
        body = "{}";
    *h = (struct http_slot){.state = SLOT_CONNECTING,
                            .body = body,
                            .body_len = body ? strlen(body) : 0,
                            .reply = reply,
                            .on_data = on_data,
                            .arg = arg};
    *reply = (struct net_reply){0};
    struct buf full = {0};
    buf_printf(&full, "%s%s", n->prefix ? n->prefix : "", path);
    connect_slot(n, &h->wsi, method, full.data);
    buf_free(&full);
    int rc = 0;
    while (h->wsi && h->state != SLOT_NONE) {
        if (n->patient && rc == 0 && h->state == SLOT_CONNECTING && h->body_sent == h->body_len)
            lws_set_timeout(h->wsi, PENDING_TIMEOUT_AWAITING_SERVER_RESPONSE, NET_TIMEOUT_S);
        if (interrupts_pending() && rc == 0) {
            rc = -EINTR;
            lws_set_timeout(h->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
        }
        net_pause(n, NET_TICK_MS);
    }
    h->wsi = NULL;
    if (rc == -EINTR) {
        snprintf(err, err_size, "interrupted");
    } else if (reply->status == 0) {
        rc = no_daemon(n, err, err_size);
    } else if (h->too_big) {
        rc = -EMSGSIZE;
        snprintf(err, err_size, "the daemon's answer is longer than %u MiB", NET_MAX_BYTES >> 20);
    } else if (!h->complete && !h->stopped) {
        rc = -EPIPE;
        snprintf(err, err_size, "the connection to %s broke", n->url);
    }
    if (rc)
        buf_free(&reply->body);
    return rc;
}

int net_ws_open(struct net *n, char *err, size_t err_size)
{
    struct ws_slot *w = &n->ws;
    if (w->state == SLOT_OPEN)
        return 0;
    queue_drop(&w->out, &w->out_end);
    queue_drop(&w->in, &w->in_end);
    buf_clear(&w->partial);
    w->state = SLOT_CONNECTING;
    w->close_code = w->warm_ups = 0;
    w->close_reason[0] = '\0';
    struct buf full = {0};
    buf_printf(&full, "%s/v1/responses", n->prefix ? n->prefix : "");
    connect_slot(n, &w->wsi, NULL, full.data);
    buf_free(&full);
    while (w->wsi && w->state == SLOT_CONNECTING) {
        if (interrupts_pending()) {
            net_ws_close(n);
            snprintf(err, err_size, "interrupted");
            return -EINTR;
        }
        net_pause(n, NET_TICK_MS);
    }
    if (w->state == SLOT_OPEN)
        return 0;
    w->state = SLOT_NONE;
    w->wsi = NULL;
    /* The library begins its reason so when an answer came that was not the upgrade; it does not tell which. */
    if (strncmp(n->why, "HS:", 3) == 0) {
        snprintf(err, err_size, "%s refuses the WebSocket", n->url);
        return -EACCES;
    }
    return no_daemon(n, err, err_size);
}

bool net_ws_is_open(const struct net *n)
{
    return n->ws.state == SLOT_OPEN;
}

int net_ws_close_code(const struct net *n, const char **reason)
{
    *reason = n->ws.close_reason;
    return n->ws.close_code;
}

void net_ws_close(struct net *n)
{
    if (!n->ws.wsi)
        return;
    lws_set_timeout(n->ws.wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    for (int i = 0; i < 20 && n->ws.wsi; i++)
        net_pause(n, 10);
    n->ws.wsi = NULL;
    n->ws.state = SLOT_NONE;
}

int net_ws_send(struct net *n, const char *text)
{
    if (n->ws.state != SLOT_OPEN)
        return -EPIPE;
    queue_add(&n->ws.out_end, text_copy(text));
    lws_callback_on_writable(n->ws.wsi);
    return 0;
}

char *net_ws_next(struct net *n, int wait_ms)
{
    if (!n->ws.in && n->ws.state == SLOT_OPEN)
        net_pause(n, wait_ms);
    return queue_take(&n->ws.in, &n->ws.in_end);
}

bool net_ws_has_next(const struct net *n)
{
    return n->ws.in != NULL;
}

int *net_ws_warm_ups(struct net *n)
{
    return &n->ws.warm_ups;
}

int net_wait_fd(struct net *n, int fd)
{
    sigset_t all, before;
    sigfillset(&all);
    for (;;) {
        bool open = n->ws.state == SLOT_OPEN;
        struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
                                {.fd = open ? lws_get_socket_fd(n->ws.wsi) : -1, .events = POLLIN}};
        /* Once a second the library sees to its pings. */
        const struct timespec second = {.tv_sec = 1};
        int ready = 0, error = 0;
        /* Signals are let through in ppoll() alone, or one that comes just before it would not end the wait. */
        pthread_sigmask(SIG_BLOCK, &all, &before);
        if (!signals_pending()) {
            ready = ppoll(fds, 2, open ? &second : NULL, &before);
            error = errno;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (signals_pending())
            return -EINTR;
        if (ready < 0 && error != EINTR)
            return -error;
        if (ready > 0 && fds[0].revents)
            return 0;
        if (open && (ready == 0 || fds[1].revents))
            net_pause(n, 1);
    }
}

/* net.c - the network thread's loop: the library's context, its callback, and looking after connections.
 *
 * One port, HTTP/1.1 and WebSocket. Nothing in a callback waits.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>

#include "daemon/net/net_internal.h"

#define TICK_US        (250 * LWS_US_PER_MS)
#define SSE_COMMENT_MS 15000
/* The library wakes up without end for bytes that it has read behind the request of a GET that is being streamed, and
 * tells nobody. Loops that call nothing give it away; the newest such stream is dropped (and can be resumed), one a
 * tick until it stops, so that one peer does not end the streams that were there before. */
#define SPIN_LOOPS 1000 /* in a tick, */
#define SPIN_TICKS 2    /* and again in the next: a short one ends by itself */

/* ---- the library's callback ----------------------------------------------------------------------------------------
 */

static void peer_address(int fd, char *out, size_t size)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    snprintf(out, size, "unknown");
    if (getpeername(fd, (struct sockaddr *)&address, &len) == 0) {
        if (address.ss_family == AF_INET) {
            inet_ntop(AF_INET, &((struct sockaddr_in *)&address)->sin_addr, out, (socklen_t)size);
        } else if (address.ss_family == AF_INET6) {
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&address)->sin6_addr, out, (socklen_t)size);
        }
    }
}

/* May this address have another connection? */
static bool admit(struct net *n, int fd)
{
    if (n->api->stopping || n->n_conns >= (size_t)n->config->max_connections) {
        n->api->metrics.refused++;
        return false;
    }
    char address[64];
    peer_address(fd, address, sizeof(address));
    int same = 0;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (const struct conn *c = n->buckets[i]; c; c = c->next) {
            same += strcmp(c->address, address) == 0;
        }
    }
    if (same >= n->config->max_connections_per_address) {
        n->api->metrics.refused++;
        return false;
    }
    return true;
}

static int established(struct net *n, struct conn *c, struct lws *wsi)
{
    struct api_error e = {0};
    if (!c || http_check_access(n, wsi, false, c->client.owner, c->token, NULL, &e)) {
        return -1;
    }
    conn_request_clear(c);
    c->phase = CONN_WEBSOCKET;
    c->client.websocket = true;
    return 0;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)user;
    struct net *n = wsi ? lws_context_user(lws_get_context(wsi)) : NULL;
    struct conn *c = NULL;
    if (!n) {
        return 0;
    }
    n->callbacks++;
    switch (reason) {
    case LWS_CALLBACK_FILTER_NETWORK_CONNECTION:
        return admit(n, (int)(intptr_t)in) ? 0 : 1;
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        events_take(n->api->events, false);
        return 0; /* anything else would close the wake-up pipe */
    case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED: {
        char address[64];
        peer_address(lws_get_socket_fd(wsi), address, sizeof(address));
        c = conn_new(n, wsi, address);
        lws_set_opaque_user_data(wsi, c);
        return c ? 0 : -1;
    }
    case LWS_CALLBACK_RAW_ADOPT:
    case LWS_CALLBACK_RAW_CONNECTED:
    case LWS_CALLBACK_RAW_RX:
        return -1; /* CONNECT would turn a connection into a raw one */
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE: {
        char owner[OWNER_SIZE];
        return http_check_upgrade(n, wsi, owner) == 0 ? 0 : -1;
    }
    default:
        break;
    }
    c = lws_get_opaque_user_data(wsi);
    if (!c) {
        return 0;
    }
    switch (reason) {
    case LWS_CALLBACK_HTTP:
        return http_begin(c);
    case LWS_CALLBACK_HTTP_BODY:
        return http_body(c, in, len);
    case LWS_CALLBACK_HTTP_BODY_COMPLETION:
        return http_body_complete(c);
    case LWS_CALLBACK_HTTP_WRITEABLE:
    case LWS_CALLBACK_SERVER_WRITEABLE:
        return conn_write(c);
    case LWS_CALLBACK_ESTABLISHED:
        return established(n, c, wsi);
    case LWS_CALLBACK_RECEIVE:
        return frames_receive(c, in, len);
    case LWS_CALLBACK_CLOSED:
    case LWS_CALLBACK_CLOSED_HTTP:
    case LWS_CALLBACK_WSI_DESTROY:
        lws_set_opaque_user_data(wsi, NULL);
        conn_free(c);
        return 0;
    default:
        return 0;
    }
}

/* ---- looking after connections -------------------------------------------------------------------------------------
 */

/* With reading stopped the library does not see that a peer has gone. */
static bool peer_gone(const struct conn *c)
{
    char byte;
    ssize_t n = recv(lws_get_socket_fd(c->wsi), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static void check_conn(struct net *n, struct conn *c, int64_t now, bool comment)
{
    if (c->client.dropped) {
        return;
    }
    if (c->stalled_since_ms && now - c->stalled_since_ms > (int64_t)n->config->timeout_seconds * 1000) {
        n->api->metrics.dropped_slow++;
        daemon_log(n->log, LOG_INFO, "connection %llu dropped: it takes nothing", (unsigned long long)c->client.id);
        conn_drop(c);
        return;
    }
    bool waits = c->phase == CONN_WORKING || (c->phase == CONN_ANSWERING && !c->client.answered);
    if (waits && c->flow_stopped && peer_gone(c)) {
        conn_drop(c);
        return;
    }
    if (comment && c->client.streaming && !c->client.answered && !c->out_head) {
        conn_comment(c);
    }
}

/* The newest stream that the library may be spinning for. */
static struct conn *spinning(struct net *n)
{
    n->spinning_ticks = n->loops > n->callbacks + SPIN_LOOPS ? n->spinning_ticks + 1 : 0;
    n->loops = n->callbacks = 0;
    struct conn *newest = NULL;
    for (size_t i = 0; i < CONN_BUCKETS && n->spinning_ticks >= SPIN_TICKS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            bool suspect = c->flow_stopped && c->client.streaming && !c->client.answered && !c->client.dropped;
            if (suspect && (!newest || c->client.id > newest->client.id)) {
                newest = c;
            }
        }
    }
    return newest;
}

void net_check(struct net *n)
{
    int64_t now = clock_ms();
    bool comment = now - n->last_comment_ms >= SSE_COMMENT_MS;
    if (comment) {
        n->last_comment_ms = now;
    }
    struct conn *newest = spinning(n);
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            check_conn(n, c, now, comment);
        }
    }
    if (newest) {
        conn_drop(newest);
        n->spinning_ticks = 0; /* whether that was it shows in the ticks that come */
    }
}

void net_auth(struct net *n, struct auth *auth)
{
    n->auth = auth;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            if (!c->client.owner[0] || auth_known(n->auth, c->client.owner, c->token)) {
                continue;
            }
            if (c->phase == CONN_WEBSOCKET) {
                conn_close(c, LWS_CLOSE_STATUS_POLICY_VIOLATION, "token revoked");
            } else if (c->phase != CONN_IDLE) {
                conn_drop(c);
            }
        }
    }
}

void net_close(struct net *n)
{
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            c->close_after = true;
            if (c->phase == CONN_WEBSOCKET) {
                conn_close(c, LWS_CLOSE_STATUS_GOINGAWAY, "server shutdown");
            } else if (c->phase == CONN_IDLE || c->phase == CONN_BODY) {
                conn_drop(c);
            }
        }
    }
}

/* ---- life ----------------------------------------------------------------------------------------------------------
 */

/* The library's own lines may quote what a peer sent, so only its errors' existence is told. */
static void on_library_log(int level, const char *line)
{
    (void)level;
    (void)line;
}

static void wake(void *arg)
{
    lws_cancel_service(arg); /* the only function of the library that other threads may call */
}

static void on_tick(lws_sorted_usec_list_t *sul)
{
    struct net *n = lws_container_of(sul, struct net, sul);
    n->tick(n->tick_arg);
    lws_sul_schedule(n->context, 0, &n->sul, on_tick, TICK_US);
}

int net_start(const struct net_opts *opts, struct net **out, char *err, size_t err_size)
{
    const struct daemon_config *config = opts->config;
    struct net *n = calloc(1, sizeof(*n));
    if (!n) {
        return -ENOMEM;
    }
    n->config = config;
    n->log = opts->log;
    n->api = opts->api;
    n->auth = opts->auth;
    n->api->find = conn_find;
    n->api->find_arg = n;
    int rc = 0;
    if (auth_listen_parse(config->listen, n->address, sizeof(n->address), &n->port)) {
        snprintf(err, err_size, "listen is not ADDRESS:PORT");
        rc = -EINVAL;
        goto fail;
    }
    n->loopback = auth_address_loopback(n->address);
    lws_set_log_level(LLL_ERR, on_library_log);
    n->protocols[0] = (struct lws_protocols){.name = "convod", .callback = callback, .rx_buffer_size = 4096};
    n->retry = (lws_retry_bo_t){.secs_since_valid_ping = (uint16_t)config->ping_seconds,
                                .secs_since_valid_hangup = (uint16_t)(config->ping_seconds + config->timeout_seconds)};
    bool v6 = strchr(n->address, ':') != NULL;
    struct lws_context_creation_info info = {0};
    info.port = n->port;
    info.iface = n->address;
    info.protocols = n->protocols;
    info.options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME |
                   LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND | (v6 ? 0 : LWS_SERVER_OPTION_DISABLE_IPV6);
    info.user = n;
    info.max_http_header_data2 = HEADER_BYTES_PARSED;
    info.max_http_header_pool2 = (unsigned)config->max_connections + 1;
    info.timeout_secs = (unsigned)config->timeout_seconds;
    info.keepalive_timeout = 60;
    /* A request may wait for its answer as long as it takes; and the library would log its headers. */
    info.timeout_secs_ah_idle = 10U * 365 * 24 * 3600;
    info.retry_and_idle_policy = &n->retry;
    info.fd_limit_per_thread = (unsigned)config->max_connections + 32;
    info.pt_serv_buf_size = WRITE_BYTES;
    n->context = lws_create_context(&info);
    if (!n->context) {
        snprintf(err, err_size, "the network context cannot be created");
        rc = -ENOMEM;
        goto fail;
    }
    n->vhost = lws_create_vhost(n->context, &info);
    if (!n->vhost) {
        snprintf(err, err_size, "cannot listen on %s", config->listen);
        rc = -EADDRINUSE;
        goto fail;
    }
    n->port = lws_get_vhost_listen_port(n->vhost);
    events_wake_by(n->api->events, wake, n->context);
    n->last_comment_ms = clock_ms();
    *out = n;
    return 0;
fail:
    if (n->context) {
        lws_context_destroy(n->context);
    }
    free(n);
    return rc;
}

int net_port(const struct net *n)
{
    return n->port;
}

const char *net_address(const struct net *n)
{
    return n->address;
}

bool net_service(struct net *n)
{
    n->loops++;
    return lws_service(n->context, 0) >= 0;
}

void net_tick(struct net *n, void (*tick)(void *arg), void *arg)
{
    n->tick = tick;
    n->tick_arg = arg;
    lws_sul_schedule(n->context, 0, &n->sul, on_tick, TICK_US);
}

void net_free(struct net *n)
{
    if (!n) {
        return;
    }
    events_wake_by(n->api->events, NULL, NULL);
    lws_sul_cancel(&n->sul);
    lws_context_destroy(n->context);
    free(n);
}

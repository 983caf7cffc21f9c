/* net.c - the network thread's loop: who may come in, what happened on which socket, and looking after connections.
 *
 * The loop is the library's. Our door is one descriptor in it, an epoll instance with the listener, all connections and
 * our timer in it (the library's own spins for what is left of a millisecond, four times a second); it is looked at
 * before they are, since it was there first. So what comes to a connection that the library has
 * is seen here before the library reads it. Connections are freed at the end of a turn only. Nothing in a turn waits,
 * and nothing works in proportion to more than READ_BYTES or WRITE_BYTES.
 *
 * Limits: so many sockets as the setting says and the system grants, and so many of one address. When there are too
 * many, the connection that has kept its request unfinished for the longest time goes, of the same address where that
 * is what has too many; where there is none, the one that comes is told so.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/net/net_internal.h"

#define TICK_MS              250 /* while anything has a time; a quiet server is not woken */
#define COMMENT_MS           15000
#define EARLY_MS             1000 /* after a peer's end, an answer that is still worked on shows whether it reads */
#define EVENTS_MAX           64
#define ACCEPTS_MAX          64
#define BACKLOG              512
#define DESCRIPTORS_RESERVED (48 + REFUSING_MAX) /* for the model, the ledger and packs; for refusals */
#define CONNS_MIN            4

/* ---- who may come in ------------------------------------------------------------------------------------------------
 */

/* The address as text. */
static void address_text(const struct sockaddr_storage *address, char out[ADDRESS_SIZE])
{
    snprintf(out, ADDRESS_SIZE, "unknown");
    if (address->ss_family == AF_INET) {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, out, ADDRESS_SIZE);
    } else if (address->ss_family == AF_INET6) {
        struct in6_addr v6 = ((const struct sockaddr_in6 *)address)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&v6)) {
            inet_ntop(AF_INET, v6.s6_addr + 12, out, ADDRESS_SIZE);
        } else {
            inet_ntop(AF_INET6, &v6, out, ADDRESS_SIZE);
        }
    }
}

/* Whose limits count: of IPv6 the network of 64 bits, since one customer has all of it. */
static void share_of(const char *address, char out[ADDRESS_SIZE])
{
    struct in6_addr v6;
    snprintf(out, ADDRESS_SIZE, "%s", address);
    if (inet_pton(AF_INET6, address, &v6) != 1) {
        return;
    }
    if (IN6_IS_ADDR_V4MAPPED(&v6)) {
        inet_ntop(AF_INET, v6.s6_addr + 12, out, ADDRESS_SIZE);
    } else {
        memset(v6.s6_addr + 8, 0, 8);
        inet_ntop(AF_INET6, &v6, out, ADDRESS_SIZE);
    }
}

static bool unfinished(const struct conn *c)
{
    return (c->phase == CONN_HEAD || c->phase == CONN_BODY) && !c->client.dropped;
}

/* The oldest unfinished request; of an address, unless that is NULL: then an answered connection will do as well. Only
 * who was counted is of any use. */
static struct conn *guilty(struct net *n, const char *address, const struct conn *but)
{
    struct conn *oldest = NULL;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            bool answered = !address && c->phase == CONN_LINGER && !c->client.dropped;
            if (c != but && !c->over_limit && (unfinished(c) || answered) &&
                (!address || strcmp(c->address, address) == 0) && (!oldest || c->client.id < oldest->client.id)) {
                oldest = c;
            }
        }
    }
    return oldest;
}

static size_t count_address(const struct net *n, const char *address)
{
    size_t same = 0;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (const struct conn *c = n->buckets[i]; c; c = c->next) {
            same += !c->client.dropped && !c->over_limit && c->phase != CONN_LINGER && strcmp(c->address, address) == 0;
        }
    }
    return same;
}

/* Makes room within an address's share. */
static bool fits_address(struct net *n, const char *address, const struct conn *but)
{
    if (count_address(n, address) < (size_t)n->config->max_connections_per_address) {
        return true;
    }
    struct conn *out = guilty(n, address, but);
    if (out) {
        conn_drop(out);
        n->api->metrics.refused++;
    }
    return out != NULL;
}

bool net_admit_as(struct net *n, struct conn *c, const char *address)
{
    char share[ADDRESS_SIZE];
    share_of(address, share);
    if (strcmp(c->address, share) == 0) {
        return true;
    }
    bool fits = fits_address(n, share, c);
    memcpy(c->address, share, sizeof(share));
    return fits;
}

/* Of an unfinished request or message. */
static size_t held(const struct conn *c)
{
    return c->client.dropped || c->close_code ? 0
           : c->phase == CONN_BODY            ? c->client.request.body_size
           : c->message_since_ms              ? c->message_size
                                              : 0;
}

int net_grow(struct conn *c, char **buffer, size_t *size, size_t need, struct api_error *e)
{
    struct net *n = c->net;
    for (;;) {
        int rc = budget_grow(&n->api->budget, c->client.owner, buffer, size, need, e);
        struct conn *most = NULL;
        for (size_t i = 0; i < CONN_BUCKETS && rc == -EDQUOT; i++) {
            for (struct conn *other = n->buckets[i]; other; other = other->next) {
                bool more = held(other) > (most ? held(most) : need) &&
                            (e->status == 503 || strcmp(other->client.owner, c->client.owner) == 0);
                most = other != c && more ? other : most;
            }
        }
        if (!most) {
            return rc;
        }
        n->api->metrics.refused++;
        if (most->client.websocket) {
            frames_close(most, WS_TRY_AGAIN_LATER, "requests take all the memory that they may");
        } else {
            http_refuse(most, e);
            conn_forget_body(most);
        }
    }
}

static void tell_over_limit(struct net *n, int fd, const char *peer, int status, const char *what)
{
    n->api->metrics.refused++;
    struct conn *c = n->n_refusing < REFUSING_MAX ? conn_new(n, fd, peer) : NULL;
    if (!c) {
        if (n->n_refusing >= REFUSING_MAX) {
            close(fd);
        }
        return;
    }
    c->over_limit = true;
    n->n_refusing++;
    struct api_error e;
    api_error_set(&e, status, status == 429 ? "too_many_connections" : "server_overloaded", NULL, "%s", what);
    http_refuse(c, &e);
}

static void admit(struct net *n, int fd, const struct sockaddr_storage *address)
{
    char peer[ADDRESS_SIZE], share[ADDRESS_SIZE];
    int on = 1;
    address_text(address, peer);
    share_of(peer, share);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (!auth_proxy_trusted(n->config, peer) && !fits_address(n, share, NULL)) {
        tell_over_limit(n, fd, peer, 429, "There are too many connections from this address.");
        return;
    }
    if (n->n_conns - n->n_refusing >= n->max_conns) {
        struct conn *out = guilty(n, NULL, NULL);
        n->api->metrics.refused += out != NULL;
        if (!out) {
            tell_over_limit(n, fd, peer, 503, "There are too many connections.");
            return;
        }
        conn_drop(out);
    }
    struct conn *c = conn_new(n, fd, peer);
    if (c) {
        memcpy(c->address, share, sizeof(share));
    }
}

static void listen_to(struct net *n, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &n->listener};
    if (n->accepting != on && epoll_ctl(n->epoll, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, n->listener, &event) == 0) {
        n->accepting = on;
    }
}

static void accept_some(struct net *n)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_storage address;
        socklen_t len = sizeof(address);
        int fd = accept4(n->listener, (struct sockaddr *)&address, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            admit(n, fd, &address);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            listen_to(n, false); /* until the next tick: there is nothing to be had now */
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

/* ---- what happened on a socket --------------------------------------------------------------------------------------
 */

static void discard(struct conn *c)
{
    ssize_t n = recv(c->fd, c->net->scratch, READ_BYTES, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        c->reset = n < 0;
        conn_drop(c);
    } else if (n > 0) {
        c->discarded += (size_t)n;
        int64_t quiet = clock_ms() + LINGER_MS;
        c->deadline_ms = quiet < c->linger_end_ms ? quiet : c->linger_end_ms;
        if (c->discarded > DISCARD_BYTES_MAX) {
            conn_drop(c);
        }
    }
}

static void happened(struct conn *c, uint32_t events)
{
    bool busy = c->phase == CONN_WORKING || c->phase == CONN_ANSWERING;
    if ((events & EPOLLERR) || (busy && (events & EPOLLHUP))) {
        c->reset = events & EPOLLERR;
        conn_drop(c);
        return;
    }
    if (c->wsi) {
        frames_look(c);
        return;
    }
    if (events & EPOLLOUT) {
        conn_write(c);
    }
    if (c->client.dropped) {
        return;
    }
    if (busy && (events & EPOLLRDHUP)) {
        http_end(c);
    } else if (events & (EPOLLIN | EPOLLHUP)) {
        switch (c->phase) {
        case CONN_HEAD:
            http_read(c);
            if (c->phase == CONN_HEAD && !c->client.dropped && (events & EPOLLRDHUP)) {
                http_end(c); /* what is there is all that comes */
            }
            break;
        case CONN_BODY:
            http_read(c);
            break;
        case CONN_LINGER:
            discard(c);
            break;
        default:
            break;
        }
    }
    if (!c->client.dropped) {
        conn_listen(c);
    }
}

/* ---- looking after connections --------------------------------------------------------------------------------------
 */

static void check_conn(struct net *n, struct conn *c, int64_t now, bool comment)
{
    if (c->client.dropped) {
        return;
    }
    bool theirs = c->blocked || c->close_code; /* what waits for this thread alone is not the peer's to take */
    if (theirs && c->stalled_since_ms && now - c->stalled_since_ms > (int64_t)n->config->timeout_seconds * 1000) {
        n->api->metrics.dropped_slow++;
        daemon_log(n->log, LOG_INFO, "connection %llu dropped: it takes nothing", (unsigned long long)c->client.id);
        conn_drop(c);
    } else if (c->deadline_ms && now > c->deadline_ms) {
        if (c->phase == CONN_LINGER || c->phase == CONN_WEBSOCKET) {
            conn_drop(c);
        } else {
            http_late(c);
        }
    } else if (c->phase == CONN_WEBSOCKET) {
        frames_check(c, now);
    } else if (c->half_closed_ms && now - c->half_closed_ms > EARLY_MS) {
        c->half_closed_ms = 0;
        http_probe(c);
    } else if (comment && (c->phase == CONN_WORKING || c->phase == CONN_ANSWERING)) {
        http_probe(c);
    }
    if (!c->client.dropped) {
        conn_listen(c);
    }
}

/* Whether time alone changes nothing for it: an open WebSocket, at rest. (The library sends its pings.) */
static bool at_rest(const struct conn *c)
{
    return c->phase == CONN_WEBSOCKET && !c->client.dropped && !c->deadline_ms && !c->stalled_since_ms &&
           !c->message_since_ms && !c->half_closed_ms;
}

bool net_check(struct net *n)
{
    int64_t now = clock_ms();
    bool comment = now - n->last_comment_ms >= COMMENT_MS, busy = !n->accepting;
    if (comment) {
        n->last_comment_ms = now;
    }
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            check_conn(n, c, now, comment);
            busy |= !at_rest(c);
        }
    }
    listen_to(n, !n->closing);
    return busy;
}

void net_auth(struct net *n, struct auth *auth)
{
    n->auth = auth;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            if (!c->client.owner[0] || auth_known(n->auth, &c->client.who)) {
                continue;
            }
            if (c->phase == CONN_WEBSOCKET) {
                frames_close(c, LWS_CLOSE_STATUS_POLICY_VIOLATION, "token revoked");
            } else if (c->phase != CONN_LINGER) {
                conn_drop(c);
            }
        }
    }
}

void net_close(struct net *n)
{
    n->closing = true;
    listen_to(n, false);
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            if (c->phase == CONN_WEBSOCKET) {
                frames_close(c, LWS_CLOSE_STATUS_GOINGAWAY, "server shutdown");
            } else if (unfinished(c)) {
                conn_drop(c);
            }
        }
    }
}

/* How long everybody else waited for one piece of work. Returns the time. */
static int64_t stall(struct net *n, int64_t began_us)
{
    int64_t now_us = clock_us();
    metrics_observe(&n->api->metrics.stall, (double)(now_us - began_us) / 1e6);
    return now_us;
}

/* ---- the loop -------------------------------------------------------------------------------------------------------
 */

static void write_ready(struct net *n)
{
    struct conn *c = n->ready;
    int64_t began = c ? clock_us() : 0;
    n->ready = NULL;
    while (c) {
        struct conn *next = c->next_ready;
        c->ready = false;
        if (!c->client.dropped) {
            conn_write(c);
            began = stall(n, began);
        }
        c = next;
    }
}

static void bury(struct net *n)
{
    while (n->dead) {
        struct conn *c = n->dead;
        n->dead = c->next_dead;
        /* It may have been woken after it was dropped. */
        for (struct conn **at = &n->ready; c->ready && *at; at = &(*at)->next_ready) {
            if (*at == c) {
                *at = c->next_ready;
                break;
            }
        }
        conn_free(c);
    }
}

/* It can fail for no reason but a wrong argument. */
static void tick_in(const struct net *n, int ms)
{
    const struct itimerspec at = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}};
    (void)timerfd_settime(n->timer, 0, &at, NULL);
}

static void on_tick(struct net *n)
{
    int wait_ms = n->tick(n->tick_arg);
    n->quiet = wait_ms > TICK_MS;
    tick_in(n, wait_ms ? wait_ms : TICK_MS);
}

/* Something happens: what comes of it may have a time. */
static void wake_up(struct net *n)
{
    if (n->quiet) {
        n->quiet = false;
        tick_in(n, TICK_MS);
    }
}

static void take_events(struct net *n)
{
    wake_up(n);
    struct event *e = events_list(n->api->events);
    int64_t began = e ? clock_us() : 0;
    while (e) {
        struct event *next = e->next;
        e->take(e, false);
        began = stall(n, began);
        e = next;
    }
}

/* [the library's callback] The door: its epoll instance has something. */
static void open_door(struct net *n)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(n->epoll, events, EVENTS_MAX, 0);
    for (int i = 0; i < count; i++) {
        int64_t began = clock_us();
        if (events[i].data.ptr == &n->timer) {
            on_tick(n);
            stall(n, began);
            continue;
        }
        wake_up(n); /* not before the timer was looked at: to set it takes its expiration back */
        if (events[i].data.ptr == &n->listener) {
            accept_some(n);
        } else {
            struct conn *c = events[i].data.ptr;
            if (!c->dead) {
                happened(c, events[i].events);
            }
        }
        stall(n, began);
    }
}

static int lent(struct net *n, struct conn *c, enum lws_callback_reasons reason, const void *in, size_t len)
{
    wake_up(n);
    int64_t began = clock_us();
    int rc = 0;
    switch (reason) {
    case LWS_CALLBACK_SERVER_WRITEABLE:
        rc = conn_write_lent(c);
        break;
    case LWS_CALLBACK_RECEIVE:
        rc = frames_receive(c, in, len);
        break;
    case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
        rc = frames_peer_closes(c, in, len);
        break;
    case LWS_CALLBACK_WSI_DESTROY:
        conn_gone(c);
        break;
    default:
        break;
    }
    stall(n, began);
    return rc;
}

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)user;
    struct net *n = wsi ? lws_context_user(lws_get_context(wsi)) : NULL;
    if (!n) {
        return 0;
    }
    switch (reason) {
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        take_events(n);
        return 0; /* anything else would close the wake-up pipe */
    case LWS_CALLBACK_RAW_RX_FILE:
        open_door(n);
        return 0;
    case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED:
        lws_set_opaque_user_data(wsi, n->lending);
        if (n->lending) {
            n->lending->wsi = wsi;
        }
        return n->lending ? 0 : -1;
    default:
        break;
    }
    struct conn *c = lws_get_opaque_user_data(wsi);
    return c ? lent(n, c, reason, in, len) : 0;
}

bool net_service(struct net *n)
{
    if (lws_service(n->context, 0) < 0) {
        return false;
    }
    write_ready(n);
    bury(n);
    if (n->ready) {
        lws_cancel_service(n->context); /* there is more to do at once */
    }
    return true;
}

/* ---- life -----------------------------------------------------------------------------------------------------------
 */

/* [any thread] */
static void wake(void *arg)
{
    lws_cancel_service(arg); /* the only function of the library that other threads may call */
}

/* The library's own lines may quote what a peer sent. */
static void on_library_log(int level, const char *line)
{
    (void)level;
    (void)line;
}

/* Sockets that the system grants beside what is open now and what will be. */
static size_t descriptors(void)
{
    struct rlimit limit;
    size_t open_now = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir)) {
        open_now++;
    }
    if (dir) {
        closedir(dir);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return SIZE_MAX;
    }
    size_t taken = open_now + DESCRIPTORS_RESERVED;
    return limit.rlim_cur > taken + CONNS_MIN ? (size_t)limit.rlim_cur - taken : CONNS_MIN;
}

static int listen_on(struct net *n, char *err, size_t err_size)
{
    struct sockaddr_storage address = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    socklen_t len = sizeof(*v4);
    int on = 1, rc;
    if (inet_pton(AF_INET, n->address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)n->port);
    } else if (inet_pton(AF_INET6, n->address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)n->port);
        len = sizeof(*v6);
    }
    n->listener = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (n->listener < 0 || setsockopt(n->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(n->listener, (struct sockaddr *)&address, len) != 0 || listen(n->listener, BACKLOG) != 0 ||
        getsockname(n->listener, (struct sockaddr *)&address, &len) != 0) {
        rc = -errno;
        snprintf(err, err_size, "cannot listen on %s: %s", n->config->listen, strerror(-rc));
        return rc;
    }
    n->port = ntohs(address.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
    return 0;
}

static int create_context(struct net *n)
{
    const struct daemon_config *config = n->config;
    lws_set_log_level(LLL_ERR, on_library_log);
    n->protocols[0] = (struct lws_protocols){.name = "convod", .callback = callback, .rx_buffer_size = WRITE_BYTES};
    n->retry = (lws_retry_bo_t){.secs_since_valid_ping = (uint16_t)config->ping_seconds,
                                .secs_since_valid_hangup = (uint16_t)(config->ping_seconds + config->timeout_seconds)};
    struct lws_context_creation_info info = {0};
    info.port = CONTEXT_PORT_NO_LISTEN_SERVER;
    info.protocols = n->protocols;
    info.options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME;
    info.user = n;
    info.max_http_header_data2 = 1024; /* of our own making */
    info.max_http_header_pool2 = (unsigned)n->max_conns + 1;
    info.timeout_secs = (unsigned)config->timeout_seconds;
    info.retry_and_idle_policy = &n->retry;
    info.fd_limit_per_thread = (unsigned)n->max_conns + 64;
    info.pt_serv_buf_size = WRITE_BYTES;
    n->context = lws_create_context(&info);
    n->vhost = n->context ? lws_create_vhost(n->context, &info) : NULL;
    lws_sock_file_fd_type door = {.filefd = n->epoll};
    return n->vhost && lws_adopt_descriptor_vhost(n->vhost, LWS_ADOPT_RAW_FILE_DESC, door, "convod", NULL) ? 0
                                                                                                           : -ENOMEM;
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
    n->listener = n->epoll = n->timer = -1;
    int rc = 0;
    if (auth_listen_parse(config->listen, n->address, sizeof(n->address), &n->port)) {
        snprintf(err, err_size, "listen is not ADDRESS:PORT");
        rc = -EINVAL;
        goto fail;
    }
    n->loopback = auth_address_loopback(n->address);
    n->epoll = epoll_create1(EPOLL_CLOEXEC);
    n->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &n->timer};
    if (n->epoll < 0 || n->timer < 0 || epoll_ctl(n->epoll, EPOLL_CTL_ADD, n->timer, &event) != 0) {
        rc = -errno;
        snprintf(err, err_size, "the network loop cannot be set up: %s", strerror(-rc));
        goto fail;
    }
    rc = listen_on(n, err, err_size);
    if (rc) {
        goto fail;
    }
    listen_to(n, true);
    n->max_conns = descriptors();
    if (n->max_conns < (size_t)config->max_connections) {
        daemon_log(n->log, LOG_WARNING, "%zu connections at once, not max-connections %d: the system grants no more",
                   n->max_conns, config->max_connections);
    } else {
        n->max_conns = (size_t)config->max_connections;
    }
    rc = create_context(n);
    if (rc) {
        snprintf(err, err_size, "the network context cannot be created");
        goto fail;
    }
    events_wake_by(n->api->events, wake, n->context);
    n->last_comment_ms = clock_ms();
    *out = n;
    return 0;
fail:
    net_free(n);
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

void net_tick(struct net *n, int (*tick)(void *arg), void *arg)
{
    n->tick = tick;
    n->tick_arg = arg;
    tick_in(n, TICK_MS);
}

void net_free(struct net *n)
{
    if (!n) {
        return;
    }
    events_wake_by(n->api->events, NULL, NULL);
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = n->buckets[i]; c; c = c->next) {
            c->client.dropped = true;
            if (!c->wsi) {
                conn_drop(c);
            }
        }
    }
    if (n->context) {
        lws_context_destroy(n->context); /* with it the door */
    } else if (n->epoll >= 0) {
        close(n->epoll);
    }
    bury(n);
    const int fds[] = {n->listener, n->timer};
    for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    free(n);
}

/* server.c - the network thread: the library's context, its callback, the event queue's other end, and the clock.
 *
 * One port, HTTP/1.1 and WebSocket. Loading the model and closing the session take seconds, so each has a thread that
 * reports through the event queue. Nothing in a callback waits.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "daemon/daemon_internal.h"

#define TICK_US        (250 * LWS_US_PER_MS)
#define SSE_COMMENT_MS 15000
#define NOTIFY_MS      5000
/* The library wakes up without end for bytes that it has read behind the request of a GET that is being streamed, and
 * tells nobody. Loops that call nothing give it away; the newest such stream is dropped (and can be resumed), one a
 * tick until it stops, so that one peer does not end the streams that were there before. */
#define SPIN_LOOPS       1000 /* in a tick, */
#define SPIN_TICKS       2    /* and again in the next: a short one ends by itself */
#define STOP_PATIENCE_MS 500  /* for close frames to leave */

const struct route server_routes[] = {
    {METHOD_GET, "/health", service_health, true, false},
    {METHOD_GET, "/ready", service_ready, true, false},
    {METHOD_GET, "/metrics", metrics_get, false, false},
    {METHOD_GET, "/v1/models", service_models, false, true},
    {METHOD_GET, "/v1/models/{id}", service_model, false, true},
    {METHOD_GET, "/v1/convod/status", service_status, false, true},
    {METHOD_POST, "/tokenize", service_tokenize, false, true},
    {METHOD_POST, "/v1/responses", responses_create, false, true},
    {METHOD_GET, "/v1/responses/{id}", responses_get, false, true},
    {METHOD_DELETE, "/v1/responses/{id}", responses_delete, false, true},
    {METHOD_POST, "/v1/responses/{id}/cancel", responses_cancel, false, true},
    {METHOD_GET, "/v1/responses/{id}/input_items", responses_input_items, false, true},
    {METHOD_POST, "/v1/chat/completions", chat_create, false, true},
    {METHOD_POST, "/v1/conversations", conversations_create, false, true},
    {METHOD_GET, "/v1/conversations", conversations_list, false, true},
    {METHOD_GET, "/v1/conversations/{id}", conversations_get, false, true},
    {METHOD_POST, "/v1/conversations/{id}", conversations_update, false, true},
    {METHOD_DELETE, "/v1/conversations/{id}", conversations_delete, false, true},
    {METHOD_GET, "/v1/conversations/{id}/items", conversations_items, false, true},
    {METHOD_POST, "/v1/conversations/{id}/evict", conversations_evict, false, true},
};
const size_t server_n_routes = sizeof(server_routes) / sizeof(*server_routes);

int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_ms(void)
{
    return clock_us() / 1000;
}

bool server_take_bytes(struct server *s, size_t bytes, struct api_error *e)
{
    uint64_t most = s->config->request_bytes;
    if (most && (bytes > most || s->request_bytes > most - bytes)) {
        api_error_set(e, 503, "server_overloaded", NULL,
                      "Requests take all the memory that they may; try again later.");
        return false;
    }
    s->request_bytes += bytes;
    return true;
}

void server_give_bytes(struct server *s, size_t bytes)
{
    s->request_bytes -= bytes;
}

int server_grow_buffer(struct server *s, char **buffer, size_t *size, size_t need, struct api_error *e)
{
    size_t more = *size ? *size : BUFFER_BYTES_MIN;
    while (more < need) {
        more *= 2;
    }
    if (more == *size) {
        return 0;
    }
    if (!server_take_bytes(s, more - *size, e)) {
        return -EDQUOT;
    }
    char *grown = realloc(*buffer, more);
    if (!grown) {
        server_give_bytes(s, more - *size);
        return -ENOMEM;
    }
    *buffer = grown;
    *size = more;
    return 0;
}

bool server_model_known(const struct server *s, const char *name)
{
    return strcmp(name, s->model_name) == 0 || strcmp(name, s->model_file) == 0 || strcmp(name, "convod") == 0 ||
           strcmp(name, "default") == 0;
}

void server_dispatch(struct conn *c)
{
    if (c->request.method == METHOD_OPTIONS) {
        conn_answer(c, 204, NULL, NULL);
        return;
    }
    /* The model was there when the headers came; the server may have begun to stop since. */
    if (c->request.route->needs_model && !c->server->session) {
        struct api_error e;
        run_session_error(SESSION_SHUTDOWN, NULL, &e);
        conn_answer_error(c, &e);
        return;
    }
    c->request.route->handler(c);
}

/* ---- the library's callback
 * ------------------------------------------------------------------------------------------ */

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
static bool admit(struct server *s, int fd)
{
    if (s->stopping || s->n_conns >= (size_t)s->config->max_connections) {
        s->counters.refused++;
        return false;
    }
    char address[64];
    peer_address(fd, address, sizeof(address));
    int same = 0;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (const struct conn *c = s->buckets[i]; c; c = c->next) {
            same += strcmp(c->address, address) == 0;
        }
    }
    if (same >= s->config->max_connections_per_address) {
        s->counters.refused++;
        return false;
    }
    return true;
}

static int established(struct server *s, struct conn *c, struct lws *wsi)
{
    struct api_error e = {0};
    if (!c || http_check_access(s, wsi, false, c->owner, c->token, NULL, &e)) {
        return -1;
    }
    conn_request_clear(c);
    c->phase = CONN_WEBSOCKET;
    return 0;
}

int server_callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)user;
    struct server *s = wsi ? lws_context_user(lws_get_context(wsi)) : NULL;
    struct conn *c = NULL;
    if (!s) {
        return 0;
    }
    s->callbacks++;
    switch (reason) {
    case LWS_CALLBACK_FILTER_NETWORK_CONNECTION:
        return admit(s, (int)(intptr_t)in) ? 0 : 1;
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        server_take_events(s);
        return 0; /* anything else would close the wake-up pipe */
    case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED: {
        char address[64];
        peer_address(lws_get_socket_fd(wsi), address, sizeof(address));
        c = conn_new(s, wsi, address);
        lws_set_opaque_user_data(wsi, c);
        return c ? 0 : -1;
    }
    case LWS_CALLBACK_RAW_ADOPT:
    case LWS_CALLBACK_RAW_CONNECTED:
    case LWS_CALLBACK_RAW_RX:
        return -1; /* CONNECT would turn a connection into a raw one */
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE: {
        char owner[OWNER_SIZE];
        return http_check_upgrade(s, wsi, owner) == 0 ? 0 : -1;
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
        return established(s, c, wsi);
    case LWS_CALLBACK_RECEIVE:
        return ws_receive(c, in, len);
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

/* ---- loading and closing the session
 * ------------------------------------------------------------------------------------ */

struct load_progress {
    struct server *server;
    int last_promille;
};

/* [loader thread] */
static void on_progress(void *arg, double fraction, const char *what)
{
    struct load_progress *p = arg;
    int promille = fraction <= 0 ? 0 : fraction >= 1 ? 1000 : (int)(fraction * 1000);
    if (promille == p->last_promille) {
        return;
    }
    p->last_promille = promille;
    struct event *e = event_new(EVENT_LOADING);
    if (e) {
        e->number = promille;
        e->text = strdup(what ? what : "");
        events_post(&p->server->events, e);
    }
}

/* [any thread] */
static void on_session_log(void *arg, int priority, const char *text)
{
    struct server *s = arg;
    daemon_log(s->log, priority, "%s", text);
}

static void *load(void *arg)
{
    struct server *s = arg;
    const struct daemon_config *c = s->config;
    struct load_progress progress = {s, -1};
    struct session_opts opts = {
        .engine =
            {
                .model_path = c->model,
                .backend = c->backend,
                .threads = c->threads,
                .ctx_tokens = c->ctx,
                .kv_bytes = c->kv_bytes,
                .kv_type = c->kv_type,
                .chat_format = strcmp(c->chat_format, "auto") == 0 ? NULL : c->chat_format,
                .cache_dir = c->cache,
                .progress = on_progress,
                .progress_arg = &progress,
            },
        .data_dir = c->data,
        .ram_bytes = c->ram_bytes,
        .disk_bytes = c->disk_bytes,
        .max_waiting = c->max_waiting,
        .max_running = c->max_running,
        .idle_ms = c->idle_seconds * 1000,
        .log = on_session_log,
        .log_arg = s,
    };
    char err[512] = "";
    struct session *session = NULL;
    int rc = session_open(&opts, &session, err, sizeof(err));
    struct event *e = event_new(rc ? EVENT_LOAD_FAILED : EVENT_LOADED);
    if (!e) {
        daemon_log(s->log, LOG_ERR, "out of memory while loading");
        abort();
    }
    e->number = rc;
    e->session = session;
    e->text = strdup(err[0] ? err : rc ? strerror(-rc) : "");
    events_post(&s->events, e);
    return NULL;
}

static void *close_session(void *arg)
{
    struct server *s = arg;
    session_close(s->closing_session, s->config->drain_ms);
    struct event *e = event_new(EVENT_CLOSED);
    if (!e) {
        abort();
    }
    events_post(&s->events, e);
    return NULL;
}

/* Ends a line that is being updated, so that the next one stands by itself. */
static void close_line(struct server *s)
{
    if (s->line_open && write(s->log->fd, "\n", 1) < 0) {
        s->opts.progress_line = false;
    }
    s->line_open = false;
}

static void show_progress(struct server *s, const struct event *e)
{
    s->load_promille = e->number;
    snprintf(s->load_what, sizeof(s->load_what), "%s", e->text ? e->text : "");
    int64_t now = clock_ms();
    if (s->opts.progress_line) {
        char line[128];
        int n = snprintf(line, sizeof(line), "\rconvod: loading %3d %% %-40.40s%s", e->number / 10, s->load_what,
                         e->number == 1000 ? "\n" : "");
        s->line_open = e->number < 1000;
        if (n > 0 && write(s->log->fd, line, (size_t)n) < 0) {
            s->opts.progress_line = false;
        }
    } else if (now - s->last_sparse_ms >= NOTIFY_MS) {
        s->last_sparse_ms = now;
        daemon_log(s->log, LOG_INFO, "loading %d %% %s", e->number / 10, s->load_what);
    }
    if (now - s->last_notify_ms >= 1000) {
        s->last_notify_ms = now;
        notify_send(s->opts.notify_socket, "EXTEND_TIMEOUT_USEC=120000000\nSTATUS=Loading the model: %d %%",
                    e->number / 10);
    }
}

static const char *server_url(const struct server *s, char out[128])
{
    bool v6 = strchr(s->address, ':') != NULL;
    snprintf(out, 128, "http://%s%s%s:%d", v6 ? "[" : "", s->address, v6 ? "]" : "", s->port);
    return out;
}

static void loaded(struct server *s, struct event *e)
{
    pthread_join(s->loader, NULL);
    s->loader_started = false;
    s->session = e->session;
    s->loaded = true;
    s->load_promille = 1000;
    close_line(s);
    const struct engine_info *m = session_model(s->session);
    snprintf(s->model_name, sizeof(s->model_name), "%s", m->name);
    const char *slash = strrchr(m->file, '/'), *base = slash ? slash + 1 : m->file;
    size_t base_len = strlen(base) - (strlen(base) > 5 && strcmp(base + strlen(base) - 5, ".gguf") == 0 ? 5 : 0);
    snprintf(s->model_file, sizeof(s->model_file), "%.*s", (int)base_len, base);
    daemon_log(s->log, LOG_INFO, "model %s (%s, %s) on %s, context %d tokens", m->name, m->arch, m->quantization,
               m->backend, m->ctx_tokens);
    if (s->stopping) {
        server_begin_close(s);
        return;
    }
    char line[160], url[128];
    int n = snprintf(line, sizeof(line), "%sconvod: ready on %s\n", s->log->journal ? "<6>" : "", server_url(s, url));
    if (n > 0 && write(s->log->fd, line, (size_t)n) < 0) {
        daemon_log(s->log, LOG_WARNING, "standard error is closed");
    }
    notify_send(s->opts.notify_socket, "READY=1\nSTATUS=Serving on port %d", s->port);
    if (s->opts.ready) {
        s->opts.ready(s->opts.arg, s->port);
    }
}

/* ---- stopping
 * ------------------------------------------------------------------------------------------------------------ */

void server_begin_close(struct server *s)
{
    if (s->session) {
        s->closing_session = s->session;
        s->session = NULL;
    }
    /* The workers use the session: the last of them comes here again. */
    if (!s->closing_session || s->closer_started || s->closed || s->n_workers > 0) {
        return;
    }
    if (pthread_create(&s->closer, NULL, close_session, s) == 0) {
        s->closer_started = true;
    } else {
        session_close(s->closing_session, s->config->drain_ms);
        s->closing_session = NULL;
        s->closed = true;
        s->closed_since_ms = clock_ms();
    }
}

static void begin_stop(struct server *s)
{
    if (s->stopping) {
        return;
    }
    s->stopping = true;
    s->stopping_since_ms = clock_ms();
    daemon_log(s->log, LOG_INFO, "stopping: %zu turns run", s->n_runs);
    notify_send(s->opts.notify_socket, "STOPPING=1\nSTATUS=Saving");
    if (s->session) {
        server_begin_close(s);
    } else if (!s->loader_started || !s->loaded) {
        s->closed = true;
        s->closed_since_ms = clock_ms();
    }
}

/* The session is closed: say goodbye to everyone. */
static void close_sockets(struct server *s)
{
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = s->buckets[i]; c; c = c->next) {
            c->close_after = true;
            if (c->phase == CONN_WEBSOCKET) {
                conn_ws_close(c, LWS_CLOSE_STATUS_GOINGAWAY, "server shutdown");
            } else if (c->phase == CONN_IDLE || c->phase == CONN_BODY) {
                conn_drop(c);
            }
        }
    }
}

static void reload(struct server *s)
{
    char err[256] = "";
    struct auth *fresh;
    int rc = auth_open(s->config->token_file, &fresh, err, sizeof(err));
    if (rc) {
        daemon_log(s->log, LOG_ERR, "the token file was not read again, the old one stays: %s", err);
        return;
    }
    auth_free(s->auth);
    s->auth = fresh;
    daemon_log(s->log, LOG_INFO, "token file read again");
    /* Who is no longer in it does not go on either. */
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = s->buckets[i]; c; c = c->next) {
            if (!c->owner[0] || auth_known(s->auth, c->owner, c->token)) {
                continue;
            }
            if (c->phase == CONN_WEBSOCKET) {
                conn_ws_close(c, LWS_CLOSE_STATUS_POLICY_VIOLATION, "token revoked");
            } else if (c->phase != CONN_IDLE) {
                conn_drop(c);
            }
        }
    }
}

void server_take_events(struct server *s)
{
    struct event *e = events_take(&s->events);
    while (e) {
        struct event *next = e->next;
        switch (e->kind) {
        case EVENT_LOADING:
            show_progress(s, e);
            break;
        case EVENT_LOADED:
            loaded(s, e);
            break;
        case EVENT_LOAD_FAILED:
            close_line(s);
            daemon_log(s->log, LOG_ERR, "%s", e->text ? e->text : "loading failed");
            notify_send(s->opts.notify_socket, "STATUS=Loading failed\nERRNO=%d", -e->number);
            s->result = e->number;
            pthread_join(s->loader, NULL);
            s->loader_started = false;
            s->stopping = s->closed = true;
            s->closed_since_ms = clock_ms();
            break;
        case EVENT_TURN:
            run_event(e->run, e);
            break;
        case EVENT_RESULT:
            op_result(e->op, &e->result);
            break;
        case EVENT_WORK:
            s->n_workers--;
            op_result(e->op, &(struct session_result){.rc = e->number});
            if (s->closing_session) {
                server_begin_close(s);
            }
            break;
        case EVENT_CLOSED:
            pthread_join(s->closer, NULL);
            s->closer_started = false;
            s->closing_session = NULL;
            s->closed = true;
            s->closed_since_ms = clock_ms();
            close_sockets(s);
            break;
        case EVENT_STOP:
            begin_stop(s);
            break;
        case EVENT_RELOAD:
            reload(s);
            break;
        }
        event_free(e);
        e = next;
    }
}

/* ---- the clock
 * ------------------------------------------------------------------------------------------------------------ */

/* With reading stopped the library does not see that a peer has gone. */
static bool peer_gone(const struct conn *c)
{
    char byte;
    ssize_t n = recv(lws_get_socket_fd(c->wsi), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

static void check_conn(struct server *s, struct conn *c, int64_t now, bool comment)
{
    if (c->dropped) {
        return;
    }
    if (c->stalled_since_ms && now - c->stalled_since_ms > (int64_t)s->config->timeout_seconds * 1000) {
        s->counters.dropped_slow++;
        daemon_log(s->log, LOG_INFO, "connection %llu dropped: it takes nothing", (unsigned long long)c->id);
        conn_drop(c);
        return;
    }
    bool waits = c->phase == CONN_WORKING || (c->phase == CONN_ANSWERING && !c->answer_complete);
    if (waits && c->flow_stopped && peer_gone(c)) {
        conn_drop(c);
        return;
    }
    if (comment && c->streaming && !c->answer_complete && !c->out_head) {
        conn_sse_comment(c);
    }
}

static void tick(lws_sorted_usec_list_t *sul)
{
    struct server *s = lws_container_of(sul, struct server, tick);
    int64_t now = clock_ms();
    bool comment = now - s->last_ping_ms >= SSE_COMMENT_MS;
    if (comment) {
        s->last_ping_ms = now;
        run_expire(s);
    }
    s->spinning_ticks = s->loops > s->callbacks + SPIN_LOOPS ? s->spinning_ticks + 1 : 0;
    bool spins = s->spinning_ticks >= SPIN_TICKS;
    s->loops = s->callbacks = 0;
    struct conn *newest = NULL;
    for (size_t i = 0; i < CONN_BUCKETS; i++) {
        for (struct conn *c = s->buckets[i]; c; c = c->next) {
            bool suspect = c->flow_stopped && c->streaming && !c->answer_complete && !c->dropped;
            if (spins && suspect && (!newest || c->id > newest->id)) {
                newest = c;
            }
            check_conn(s, c, now, comment);
        }
    }
    if (newest) {
        conn_drop(newest);
        s->spinning_ticks = 0; /* whether that was it shows in the ticks that come */
    }
    if (s->opts.watchdog_us && !s->stopping && now - s->last_watchdog_ms >= (int64_t)(s->opts.watchdog_us / 4000)) {
        s->last_watchdog_ms = now;
        struct session_status status = {0};
        if (s->session) {
            session_status(s->session, &status);
        }
        if (!status.stuck) {
            notify_send(s->opts.notify_socket, "WATCHDOG=1");
        }
    }
    lws_sul_schedule(s->context, 0, &s->tick, tick, TICK_US);
}

/* ---- life
 * --------------------------------------------------------------------------------------------------------------------
 */

/* The library's own lines may quote what a peer sent, so only its errors' existence is told. */
static void on_library_log(int level, const char *line)
{
    (void)level;
    (void)line;
}

int server_start(const struct server_opts *opts, struct server **out, char *err, size_t err_size)
{
    struct server *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    s->config = opts->config;
    s->log = opts->log;
    s->opts = *opts;
    s->started_ms = now_ms();
    int rc = events_init(&s->events);
    if (rc) {
        free(s);
        return rc;
    }
    if (auth_listen_parse(s->config->listen, s->address, sizeof(s->address), &s->port)) {
        snprintf(err, err_size, "listen is not ADDRESS:PORT");
        rc = -EINVAL;
        goto fail;
    }
    s->loopback = auth_address_loopback(s->address);
    rc = auth_open(s->config->token_file, &s->auth, err, err_size);
    if (rc) {
        goto fail;
    }
    lws_set_log_level(LLL_ERR, on_library_log);
    s->protocols[0] = (struct lws_protocols){.name = "convod", .callback = server_callback, .rx_buffer_size = 4096};
    s->retry =
        (lws_retry_bo_t){.secs_since_valid_ping = (uint16_t)s->config->ping_seconds,
                         .secs_since_valid_hangup = (uint16_t)(s->config->ping_seconds + s->config->timeout_seconds)};
    bool v6 = strchr(s->address, ':') != NULL;
    struct lws_context_creation_info info = {0};
    info.port = s->port;
    info.iface = s->address;
    info.protocols = s->protocols;
    info.options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME |
                   LWS_SERVER_OPTION_FAIL_UPON_UNABLE_TO_BIND | (v6 ? 0 : LWS_SERVER_OPTION_DISABLE_IPV6);
    info.user = s;
    info.max_http_header_data2 = HEADER_BYTES_PARSED;
    info.max_http_header_pool2 = (unsigned)s->config->max_connections + 1;
    info.timeout_secs = (unsigned)s->config->timeout_seconds;
    info.keepalive_timeout = 60;
    /* A request may wait for its answer as long as it takes; and the library would log its headers. */
    info.timeout_secs_ah_idle = 10U * 365 * 24 * 3600;
    info.retry_and_idle_policy = &s->retry;
    info.fd_limit_per_thread = (unsigned)s->config->max_connections + 32;
    info.pt_serv_buf_size = WRITE_BYTES;
    s->context = lws_create_context(&info);
    if (!s->context) {
        snprintf(err, err_size, "the network context cannot be created");
        rc = -ENOMEM;
        goto fail;
    }
    s->vhost = lws_create_vhost(s->context, &info);
    if (!s->vhost) {
        snprintf(err, err_size, "cannot listen on %s", s->config->listen);
        rc = -EADDRINUSE;
        goto fail;
    }
    s->port = lws_get_vhost_listen_port(s->vhost);
    s->events.context = s->context;
    lws_sul_schedule(s->context, 0, &s->tick, tick, TICK_US);
    s->last_ping_ms = s->last_sparse_ms = clock_ms();
    rc = -pthread_create(&s->loader, NULL, load, s);
    if (rc) {
        snprintf(err, err_size, "cannot start a thread");
        goto fail;
    }
    s->loader_started = true;
    char url[128];
    daemon_log(s->log, LOG_INFO, "loading, %s answers /health and /ready meanwhile", server_url(s, url));
    *out = s;
    return 0;
fail:
    if (s->context) {
        lws_context_destroy(s->context);
    }
    auth_free(s->auth);
    events_destroy(&s->events);
    free(s);
    return rc;
}

int server_port(const struct server *s)
{
    return s->port;
}

bool server_loading(const struct server *s)
{
    return s->loader_started;
}

int server_run(struct server *s)
{
    for (;;) {
        if (s->closed) {
            bool waits = s->n_conns > 0 && clock_ms() - s->closed_since_ms < STOP_PATIENCE_MS;
            if (!waits) {
                break;
            }
        }
        s->loops++;
        if (lws_service(s->context, 0) < 0) {
            break;
        }
    }
    return s->result;
}

static void post(struct server *s, enum event_kind kind)
{
    struct event *e = event_new(kind);
    if (e) {
        events_post(&s->events, e);
    }
}

void server_stop(struct server *s)
{
    post(s, EVENT_STOP);
}

void server_reload(struct server *s)
{
    post(s, EVENT_RELOAD);
}

/* Frees what is in the queue and nobody will take. */
static void drop_events(struct server *s)
{
    struct event *e = events_take(&s->events);
    while (e) {
        struct event *next = e->next;
        if (e->kind == EVENT_LOADED) {
            session_close(e->session, 0);
        }
        s->n_workers -= e->kind == EVENT_WORK;
        op_free(e->op);
        event_free(e);
        e = next;
    }
}

void server_free(struct server *s)
{
    if (!s) {
        return;
    }
    if (s->loader_started) {
        /* Stopped while the model was loading: it cannot be interrupted. */
        pthread_join(s->loader, NULL);
        drop_events(s);
    }
    while (s->n_workers > 0) {
        /* The loop broke while a text was being tokenized; nobody is served any more. */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        drop_events(s);
    }
    if (s->session) {
        session_close(s->session, 0);
    }
    pthread_mutex_lock(&s->events.lock);
    s->events.context = NULL;
    pthread_mutex_unlock(&s->events.lock);
    lws_sul_cancel(&s->tick);
    lws_context_destroy(s->context);
    drop_events(s);
    events_destroy(&s->events);
    run_free_all(s);
    auth_free(s->auth);
    free(s);
}

/* server.c - the server: puts the rooms together, loads the model, stops, and keeps the clock.
 *
 * Loading the model and closing the session take seconds, so each has a thread that reports through the event queue.
 * Everything else runs on the network thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "daemon/daemon.h"
#include "daemon/net/net.h"
#include "daemon/run/run.h"
#include "session/session.h"

#define EXPIRE_MS        15000
#define QUIET_MS         10000 /* between looks at a server to which nothing happens */
#define NOTIFY_MS        5000
#define EXTEND_MS        10000
#define STOP_PATIENCE_MS 500 /* for close frames to leave */

struct server {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct server_opts opts;
    struct auth *auth;
    struct events events;
    struct api api; /* with the session, while it is there */
    struct net *net;
    struct session *closing_session;
    struct control *control;
    pthread_t loader, closer;
    bool loader_started, closer_started;
    bool closed, loaded, line_open;
    int result;
    int64_t closed_since_ms, last_watchdog_ms, last_notify_ms, last_sparse_ms, last_expire_ms;
    int64_t next_end_s; /* when the next token ends; 0: none does */
};

/* What the server's own threads, and other threads, report. */
struct server_event {
    struct event event; /* first */
    struct server *server;
    void (*take)(struct server_event *e);
    int number;
    char *text;
    struct session *session;
    struct auth *auth;
};

static void take_event(struct event *event, bool closing)
{
    struct server_event *e = (struct server_event *)event;
    if (!closing) {
        e->take(e);
    } else if (e->session) {
        session_close(e->session, 0);
    }
    auth_free(e->auth);
    free(e->text);
    free(e);
}

static struct server_event *event_new(struct server *s, void (*take)(struct server_event *e))
{
    struct server_event *e = calloc(1, sizeof(*e));
    if (e) {
        e->event.take = take_event;
        e->server = s;
        e->take = take;
    }
    return e;
}

/* [any thread] */
static void post(struct server *s, void (*take)(struct server_event *e))
{
    struct server_event *e = event_new(s, take);
    if (e) {
        events_post(&s->events, &e->event);
    }
}

/* ---- loading -------------------------------------------------------------------------------------------------------
 */

/* Ends a line that is being updated, so that the next one stands by itself. */
static void close_line(struct server *s)
{
    if (s->line_open && write(s->log->fd, "\n", 1) < 0) {
        s->opts.progress_line = false;
    }
    s->line_open = false;
}

static void show_progress(struct server_event *e)
{
    struct server *s = e->server;
    s->api.load_promille = e->number;
    snprintf(s->api.load_what, sizeof(s->api.load_what), "%s", e->text ? e->text : "");
    int64_t now = clock_ms();
    if (s->opts.progress_line) {
        char line[128];
        int n = snprintf(line, sizeof(line), "\rconvod: loading %3d %% %-40.40s%s", e->number / 10, s->api.load_what,
                         e->number == 1000 ? "\n" : "");
        s->line_open = e->number < 1000;
        if (n > 0 && write(s->log->fd, line, (size_t)n) < 0) {
            s->opts.progress_line = false;
        }
    } else if (now - s->last_sparse_ms >= NOTIFY_MS) {
        s->last_sparse_ms = now;
        daemon_log(s->log, LOG_INFO, "loading %d %% %s", e->number / 10, s->api.load_what);
    }
    if (now - s->last_notify_ms >= 1000) {
        s->last_notify_ms = now;
        notify_send(s->opts.notify_socket, "EXTEND_TIMEOUT_USEC=120000000\nSTATUS=Loading the model: %d %%",
                    e->number / 10);
    }
}

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
    struct server_event *e = event_new(p->server, show_progress);
    if (e) {
        e->number = promille;
        e->text = strdup(what ? what : "");
        events_post(&p->server->events, &e->event);
    }
}

static void begin_close(struct server *s);
static void hand_over(struct server *s);
static void limit_owners(struct server *s);

static const char *server_url(const struct server *s, char out[128])
{
    const char *address = net_address(s->net);
    bool v6 = strchr(address, ':') != NULL;
    snprintf(out, 128, "http://%s%s%s:%d", v6 ? "[" : "", address, v6 ? "]" : "", net_port(s->net));
    return out;
}

static void loaded(struct server_event *e)
{
    struct server *s = e->server;
    pthread_join(s->loader, NULL);
    s->loader_started = false;
    s->api.runs.session = e->session;
    e->session = NULL;
    s->loaded = true;
    tools_model(session_model(s->api.runs.session)->calls);
    hand_over(s);
    limit_owners(s);
    responses_requeue(&s->api);
    s->api.load_promille = 1000;
    close_line(s);
    const struct engine_info *m = session_model(s->api.runs.session);
    snprintf(s->api.model_name, sizeof(s->api.model_name), "%s", m->name);
    const char *slash = strrchr(m->file, '/'), *base = slash ? slash + 1 : m->file;
    size_t base_len = strlen(base) - (strlen(base) > 5 && strcmp(base + strlen(base) - 5, ".gguf") == 0 ? 5 : 0);
    snprintf(s->api.model_file, sizeof(s->api.model_file), "%.*s", (int)base_len, base);
    if (e->text && e->text[0]) /* it was opened, but not as it might have been */
        daemon_log(s->log, LOG_NOTICE, "%s", e->text);
    daemon_log(s->log, LOG_INFO, "model %s (%s, %s) on %s, context %d tokens", m->name, m->arch, m->quantization,
               m->backend, m->ctx_tokens);
    if (s->api.stopping) {
        begin_close(s);
        return;
    }
    int rc = control_start(s->config->data, s->api.runs.session, s->log, &s->control);
    if (rc) {
        daemon_log(s->log, LOG_WARNING, "%s: no backup can be asked for: %s", s->config->data, strerror(-rc));
    }
    char line[160], url[128];
    int n = snprintf(line, sizeof(line), "%sconvod: ready on %s\n", s->log->journal ? "<6>" : "", server_url(s, url));
    if (n > 0 && write(s->log->fd, line, (size_t)n) < 0) {
        daemon_log(s->log, LOG_WARNING, "standard error is closed");
    }
    notify_send(s->opts.notify_socket, "READY=1\nSTATUS=Serving on port %d", net_port(s->net));
    if (s->opts.ready) {
        s->opts.ready(s->opts.arg, net_port(s->net));
    }
}

static void load_failed(struct server_event *e)
{
    struct server *s = e->server;
    close_line(s);
    daemon_log(s->log, LOG_ERR, "%s", e->text ? e->text : "loading failed");
    notify_send(s->opts.notify_socket, "STATUS=Loading failed\nERRNO=%d", -e->number);
    s->result = e->number;
    pthread_join(s->loader, NULL);
    s->loader_started = false;
    s->api.stopping = s->closed = true;
    s->closed_since_ms = clock_ms();
}

/* [any thread] */
static void on_session_log(void *arg, int priority, const char *text)
{
    struct server *s = arg;
    daemon_log(s->log, priority, "%s", text);
}

/* [engine thread] */
static void on_session_events(void *arg, bool more)
{
    struct server *s = arg;
    events_hold(&s->events, more);
}

#define DAY_MS ((int64_t)24 * 3600 * 1000)

/* What an owner may have whose tokens say nothing else. */
static struct session_limits everyone(const struct daemon_config *c)
{
    return (struct session_limits){.conversations = (uint64_t)c->owner_conversations,
                                   .ledger_bytes = c->owner_ledger_bytes,
                                   .disk_bytes = c->owner_disk_bytes,
                                   .ram_bytes = c->owner_ram_bytes,
                                   .kv_bytes = c->owner_kv_bytes,
                                   .retain_ms = c->retain_days * DAY_MS};
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
                .device = c->device,
                .numerics = c->numerics,
                .threads = c->threads,
                .ctx_tokens = c->ctx,
                .kv_bytes = c->kv_bytes,
                .device_fraction = c->gpu_memory_fraction,
                .host_layers = c->gpu_host_layers,
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
        .max_step_ms = c->max_step_ms,
        .accept_kv_any = strcmp(c->accept_kv, "any") == 0,
        .readers = c->readers,
        .idle_ms = c->idle_seconds * 1000,
        .limits = everyone(c),
        .log = on_session_log,
        .log_arg = s,
        .events = on_session_events,
        .events_arg = s,
    };
    char err[512] = "";
    struct session *session = NULL;
    int rc = session_open(&opts, &session, err, sizeof(err));
    struct server_event *e = event_new(s, rc ? load_failed : loaded);
    if (!e) {
        daemon_log(s->log, LOG_ERR, "out of memory while loading");
        abort();
    }
    e->number = rc;
    e->session = session;
    e->text = strdup(err[0] ? err : rc ? strerror(-rc) : "");
    events_post(&s->events, &e->event);
    return NULL;
}

/* ---- stopping ------------------------------------------------------------------------------------------------------
 */

/* The session is closed: say goodbye to everyone. */
static void session_closed(struct server_event *e)
{
    struct server *s = e->server;
    pthread_join(s->closer, NULL);
    s->closer_started = false;
    s->closing_session = NULL;
    s->closed = true;
    s->closed_since_ms = clock_ms();
    net_close(s->net);
}

static void end_control(struct server *s)
{
    control_stop(s->control);
    s->control = NULL;
}

static void *close_session(void *arg)
{
    struct server *s = arg;
    end_control(s);
    session_close(s->closing_session, s->config->drain_ms);
    struct server_event *e = event_new(s, session_closed);
    if (!e) {
        abort();
    }
    events_post(&s->events, &e->event);
    return NULL;
}

static void begin_close(struct server *s)
{
    if (s->api.runs.session) {
        s->closing_session = s->api.runs.session;
        s->api.runs.session = NULL;
    }
    /* The workers use the session: the last of them comes here again. */
    if (!s->closing_session || s->closer_started || s->closed || s->api.n_workers > 0) {
        return;
    }
    if (pthread_create(&s->closer, NULL, close_session, s) == 0) {
        s->closer_started = true;
    } else {
        end_control(s);
        session_close(s->closing_session, s->config->drain_ms);
        s->closing_session = NULL;
        s->closed = true;
        s->closed_since_ms = clock_ms();
    }
}

static void worker_ended(struct api *api)
{
    struct server *s = (struct server *)((char *)api - offsetof(struct server, api));
    if (s->closing_session) {
        begin_close(s);
    }
}

static void begin_stop(struct server_event *e)
{
    struct server *s = e->server;
    if (s->api.stopping) {
        return;
    }
    s->api.stopping = true;
    daemon_log(s->log, LOG_INFO, "stopping; turns that run: %zu", s->api.runs.n_running);
    notify_send(s->opts.notify_socket, "STOPPING=1\nSTATUS=Saving");
    if (s->api.runs.session) {
        begin_close(s);
    } else if (!s->loader_started || !s->loaded) {
        s->closed = true;
        s->closed_since_ms = clock_ms();
    }
}

/* What was made without tokens goes to the owners that the operator gave it to. */
static void hand_over(struct server *s)
{
    const char *from, *to, *why;
    for (size_t at = 0; s->api.runs.session && auth_inherits(s->auth, &at, &from, &to, &why);) {
        if (session_hand_over(s->api.runs.session, from, to, why)) {
            daemon_log(s->log, LOG_ERR, "out of memory: what `%s` has stays", from);
        }
    }
}

/* What owners may have. A token says it for its owner, the newest that says anything. */
static void limit_owners(struct server *s)
{
    struct session *session = s->api.runs.session;
    struct auth_limits said;
    size_t n = 0, at = 0;
    while (auth_limits(s->auth, &at, &said)) {
        n++;
    }
    at = 0;
    struct session_limits all = everyone(s->config);
    struct session_owner_limits *rows = calloc(n + 1, sizeof(*rows));
    for (size_t i = 0; rows && i < n && auth_limits(s->auth, &at, &said); i++) {
        const uint64_t *v = said.values;
        rows[i] = (struct session_owner_limits){said.owner, all};
        struct session_limits *l = &rows[i].limits;
        l->conversations = said.given & 1U << LIMIT_CONVERSATIONS ? v[LIMIT_CONVERSATIONS] : l->conversations;
        l->ledger_bytes = said.given & 1U << LIMIT_LEDGER_BYTES ? v[LIMIT_LEDGER_BYTES] : l->ledger_bytes;
        l->disk_bytes = said.given & 1U << LIMIT_DISK_BYTES ? v[LIMIT_DISK_BYTES] : l->disk_bytes;
        l->ram_bytes = said.given & 1U << LIMIT_RAM_BYTES ? v[LIMIT_RAM_BYTES] : l->ram_bytes;
        l->kv_bytes = said.given & 1U << LIMIT_KV_BYTES ? v[LIMIT_KV_BYTES] : l->kv_bytes;
        l->retain_ms = said.given & 1U << LIMIT_RETAIN_DAYS ? (int64_t)v[LIMIT_RETAIN_DAYS] * DAY_MS : l->retain_ms;
    }
    if (session && (!rows || session_limits_set(session, &all, rows, n))) {
        daemon_log(s->log, LOG_ERR, "out of memory: owners may have what they could have before");
    }
    free(rows);
}

/* Who is no longer in the token file does not go on either. */
static void reload(struct server_event *e)
{
    struct server *s = e->server;
    struct auth *fresh = e->auth;
    if (auth_required(s->auth) && !auth_required(fresh)) {
        /* A file that went, by mistake most likely, opens nothing. */
        daemon_log(s->log, LOG_ERR, "the tokens are gone; the old ones stay until the service is started again");
        return;
    }
    e->auth = NULL;
    net_auth(s->net, fresh);
    auth_free(s->auth);
    s->auth = fresh;
    s->next_end_s = auth_next_end(fresh);
    hand_over(s);
    limit_owners(s);
    daemon_log(s->log, LOG_INFO, "tokens read again");
}

/* ---- the clock -----------------------------------------------------------------------------------------------------
 */

static void expire(struct server *s, int64_t now)
{
    if (now - s->last_expire_ms >= EXPIRE_MS) {
        s->last_expire_ms = now;
        run_expire(&s->api.runs);
        home_expire(&s->api.runs);
    }
}

static void feed_watchdog(struct server *s, const struct session_status *status, int64_t now)
{
    if (!s->opts.watchdog_us || s->api.stopping || now - s->last_watchdog_ms < (int64_t)(s->opts.watchdog_us / 4000)) {
        return;
    }
    s->last_watchdog_ms = now;
    if (!status->stuck) {
        notify_send(s->opts.notify_socket, "WATCHDOG=1");
    }
}

/* Opening what is kept may take long without a word, when a ledger is migrated or what was deleted is overwritten. */
static void ask_for_time(struct server *s, int64_t now)
{
    if (s->loader_started && now - s->last_notify_ms >= EXTEND_MS) {
        s->last_notify_ms = now;
        notify_send(s->opts.notify_socket, "EXTEND_TIMEOUT_USEC=120000000");
    }
}

/* A token that has ended goes like one that was taken away. */
static void end_tokens(struct server *s)
{
    if (s->next_end_s && now_ms() / 1000 >= s->next_end_s) {
        net_auth(s->net, s->auth);
        s->next_end_s = auth_next_end(s->auth);
    }
}

/* A device that has failed does not come back in this process: its turns have ended, and another process may do better.
 */
static void check_device(struct server *s, const struct session_status *status)
{
    if (status->failed && !s->api.stopping) {
        daemon_log(s->log, LOG_CRIT, "the device has failed; the service ends, to be started again");
        s->result = -EIO;
        server_stop(s);
    }
}

/* How long nothing is to be done, if nothing happens; 0: not long. */
static int quiet_ms(const struct server *s, int64_t now)
{
    int64_t ms = QUIET_MS;
    if (s->loader_started || s->api.stopping || s->closed || s->api.runs.running) {
        return 0;
    }
    if (s->opts.watchdog_us) {
        int64_t left = s->last_watchdog_ms + (int64_t)(s->opts.watchdog_us / 4000) - now;
        ms = left < ms ? left : ms;
    }
    if (s->next_end_s) {
        int64_t left = s->next_end_s * 1000 - now_ms();
        ms = left < ms ? left : ms;
    }
    return ms > 0 ? (int)ms : 0;
}

static int tick(void *arg)
{
    struct server *s = arg;
    int64_t now = clock_ms();
    ask_for_time(s, now);
    bool busy = net_check(s->net);
    expire(s, now);
    end_tokens(s);
    struct session_status status = {0};
    if (s->api.runs.session) {
        session_status(s->api.runs.session, &status);
    }
    check_device(s, &status);
    feed_watchdog(s, &status, now);
    return busy ? 0 : quiet_ms(s, now);
}

/* ---- life ----------------------------------------------------------------------------------------------------------
 */

int server_start(const struct server_opts *opts, struct server **out, char *err, size_t err_size)
{
    struct server *s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    s->config = opts->config;
    s->log = opts->log;
    s->opts = *opts;
    int rc = events_init(&s->events);
    if (rc) {
        free(s);
        return rc;
    }
    json_start();
    s->api = (struct api){.config = s->config,
                          .log = s->log,
                          .budget = {.most = s->config->request_bytes},
                          .events = &s->events,
                          .started_ms = now_ms(),
                          .metrics = {.started_ms = now_ms()},
                          .worker_ended = worker_ended};
    s->api.runs =
        (struct runs){.log = s->log, .metrics = &s->api.metrics, .events = &s->events, .model = s->api.model_name};
    s->last_sparse_ms = s->last_expire_ms = clock_ms(); /* last_notify_ms: 0, systemd is told at once */
    rc = auth_open(s->config->token_file, s->config->data, &s->auth, err, err_size);
    if (rc) {
        goto fail;
    }
    s->next_end_s = auth_next_end(s->auth);
    rc = workers_start(&s->events, &s->api.runs.workers);
    if (rc) {
        snprintf(err, err_size, "cannot start a thread");
        goto fail;
    }
    struct net_opts net = {.config = s->config, .log = s->log, .api = &s->api, .auth = s->auth};
    rc = net_start(&net, &s->net, err, err_size);
    if (rc) {
        goto fail;
    }
    net_tick(s->net, tick, s);
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
    net_free(s->net);
    workers_stop(s->api.runs.workers);
    events_drop(&s->events);
    auth_free(s->auth);
    events_destroy(&s->events);
    free(s);
    return rc;
}

int server_port(const struct server *s)
{
    return net_port(s->net);
}

bool server_loading(const struct server *s)
{
    return s->loader_started;
}

int server_run(struct server *s)
{
    for (;;) {
        if (s->closed) {
            bool waits = s->api.n_clients > 0 && clock_ms() - s->closed_since_ms < STOP_PATIENCE_MS;
            if (!waits) {
                break;
            }
        }
        if (!net_service(s->net)) {
            break;
        }
    }
    return s->result;
}

void server_stop(struct server *s)
{
    post(s, begin_stop);
}

void server_reload(struct server *s)
{
    char err[256] = "";
    struct auth *fresh;
    if (auth_open(s->config->token_file, s->config->data, &fresh, err, sizeof(err))) {
        daemon_log(s->log, LOG_ERR, "the tokens were not read again, the old ones stay: %s", err);
        return;
    }
    struct server_event *e = event_new(s, reload);
    if (!e) {
        auth_free(fresh);
        return;
    }
    e->auth = fresh;
    events_post(&s->events, &e->event);
}

void server_free(struct server *s)
{
    if (!s) {
        return;
    }
    s->api.worker_ended = NULL;
    if (s->loader_started) {
        /* Stopped while the model was loading: it cannot be interrupted. */
        pthread_join(s->loader, NULL);
        events_drop(&s->events);
    }
    /* Nobody is served any more; what is being tokenized still uses the session. */
    workers_stop(s->api.runs.workers);
    events_drop(&s->events);
    /* Connections that are still there end first: they cancel their turns in the session. */
    net_free(s->net);
    if (s->closer_started) {
        pthread_join(s->closer, NULL);
    } else {
        end_control(s);
        session_close(s->closing_session ? s->closing_session : s->api.runs.session, 0);
        s->api.runs.session = NULL;
    }
    events_drop(&s->events);
    events_destroy(&s->events);
    run_free_all(&s->api.runs);
    auth_free(s->auth);
    free(s);
}

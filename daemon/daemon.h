/* daemon.h - convod as a program: its configuration, its server, and what all rooms of the daemon use.
 *
 * main() reads a configuration and runs one server. The server owns the network thread, which is the thread that calls
 * server_run(); everything that happens elsewhere (model loading, turns, storage) reaches it as an event.
 *
 * The rooms are net/ (sockets, HTTP and WebSocket framing), api/ (the interfaces) and run/ (turns that the session runs
 * for us). net calls api, api calls run, run calls the session; what goes the other way goes through a function that
 * was handed down. server.c puts them together.
 *
 * Errors: 0 or a negative errno value; err gets what a person will read.
 */
#ifndef CONVOD_DAEMON_H
#define CONVOD_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- configuration ---------------------------------------------------------------------------------------------- */

#define DAEMON_ORIGINS_MAX  32
#define DAEMON_SETTINGS_MAX 48
#define DAEMON_FAULTS_MAX   64

struct daemon_config {
    char *model, *data, *cache, *listen, *backend, *numerics, *kv_type, *accept_kv, *chat_format, *token_file,
        *log_level;
    char *gateway_user_header; /* NULL: gateways name nobody */
    int ctx, device, gpu_host_layers, threads, max_running, max_waiting, idle_seconds, max_connections;
    int max_connections_per_address;
    int timeout_seconds, ping_seconds, drain_ms, max_step_ms, readers, retain_days, owner_conversations;
    double gpu_memory_fraction;
    uint64_t kv_bytes, ram_bytes, disk_bytes, request_bytes, owner_ledger_bytes, owner_disk_bytes, owner_ram_bytes,
        owner_kv_bytes;
    char *origins[DAEMON_ORIGINS_MAX]; /* allow-origin */
    size_t n_origins;
    char *hosts[DAEMON_ORIGINS_MAX]; /* allow-host */
    size_t n_hosts;
    char *proxies[DAEMON_ORIGINS_MAX]; /* trusted-proxy */
    size_t n_proxies;
    char *file;                     /* the configuration file that was read; NULL: none */
    int given[DAEMON_SETTINGS_MAX]; /* by setting: its line in the file, or where else it is from */
};

/* What is wrong with a configuration, one line each: "FILE:3: ctx must be a number from 0 to 16777216, not `much`". */
struct daemon_faults {
    char *lines[DAEMON_FAULTS_MAX];
    size_t n, left_out;
};
void daemon_fault(struct daemon_faults *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
void daemon_faults_free(struct daemon_faults *f);

enum daemon_config_action { DAEMON_RUN, DAEMON_CHECK, DAEMON_PROFILE, DAEMON_HELP, DAEMON_VERSION };

/* Defaults, then the configuration file (--config; else the user's own when it exists), then the flags. `home`,
 * `xdg_config`, `xdg_data` and `xdg_cache` are the values of HOME and the XDG variables, NULL when not set. 0, or
 * -EINVAL and every fault that was found; what is at fault keeps its default. */
int daemon_config_load(struct daemon_config *c, int argc, char **argv, const char *home, const char *xdg_config,
                       const char *xdg_data, const char *xdg_cache, enum daemon_config_action *action,
                       struct daemon_faults *faults);
/* Reads the text of one configuration file into c. `name` is for messages. 0 or -EINVAL, and faults. */
int daemon_config_parse(struct daemon_config *c, const char *text, size_t len, const char *name,
                        struct daemon_faults *faults);
/* Looks at what the settings name: that the model and the tokens can be read. `whole`, for --check-config, tries all
 * that a start would try, without changing or loading anything: the model's header, format and size, the backend, the
 * folders, the address, the budgets against this machine. */
void daemon_config_verify(const struct daemon_config *c, bool whole, struct daemon_faults *faults);
/* Makes what the default folders are in, as XDG has it: a fresh account has no ~/.local/share. One that is named is
 * made alone, or a slip would make others. */
void daemon_config_folders(const struct daemon_config *c);
void daemon_config_free(struct daemon_config *c);
/* Opens the model and prints to standard output where the time of its steps goes (profile.c). 0, or as
 * session_profile(). */
int daemon_profile(const struct daemon_config *c, char *err, size_t err_size);
/* The text of --help. malloc'd; NULL: out of memory. */
char *daemon_config_help(void);
/* "512M", "2GiB", "1000" -> bytes. -EINVAL. */
int daemon_bytes_parse(const char *text, uint64_t *out);

/* ---- log --------------------------------------------------------------------------------------------------------- */

/* Writes one line; with `journal` a <N> priority is put before it. Never prompts, never tokens. Any
 * thread. */
struct daemon_log {
    int fd;    /* standard error */
    int level; /* most verbose syslog priority that is written */
    bool journal;
    bool times; /* lines begin with the local time: what they go to does not add one */
};
void daemon_log(const struct daemon_log *log, int priority, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- clocks, text (clock.c, text.c) --------------------------------------------------------------------------------
 */

int64_t now_ms(void);   /* wall clock */
int64_t clock_us(void); /* monotonic */
int64_t clock_ms(void);
bool utf8_valid(const char *s, size_t len);
/* How much of it is whole characters, when more may follow: all but up to three bytes. -1: it is not UTF-8. */
ptrdiff_t utf8_prefix(const char *s, size_t len);
/* Two digits of lower case for each of n bytes, and the end: 2 * n + 1 letters. */
void text_hex(const unsigned char *bytes, size_t n, char *out);
/* "123" and nothing else; at most 18 digits. -1: malformed. */
int64_t text_digits(const char *value, size_t len);

/* ---- who may speak (auth.c) -----------------------------------------------------------------------------------------
 */

#define OWNER_SIZE         64
#define TOKEN_DIGEST_BYTES 32

/* What a token is good for. */
enum auth_scope {
    AUTH_ALL,     /* everything, as its owner */
    AUTH_METRICS, /* GET /metrics alone */
    AUTH_GATEWAY, /* everything, as its owner or as one of that owner's users, whom a header names */
};
const char *auth_scope_name(enum auth_scope scope);
/* -EINVAL: there is none of that name. */
int auth_scope_find(const char *name, enum auth_scope *out);

struct auth;
/* The tokens of a token-file, and those that `convod token` keeps in the data folder (tokens.h); either may be NULL.
 * With neither file everyone is owner "local". */
int auth_open(const char *token_file, const char *data, struct auth **out, char *err, size_t err_size);
void auth_free(struct auth *a);
bool auth_required(const struct auth *a);

struct auth_who {
    char owner[OWNER_SIZE];
    unsigned char digest[TOKEN_DIGEST_BYTES]; /* of the token */
    enum auth_scope scope;
    bool patient; /* its turns get the places and the time that others leave */
};
/* Who asks. authorization, and user, which a gateway's token needs to speak for somebody: the headers' values or NULL.
 * 0; -EACCES: no such token, or it has ended; -EINVAL: the user's name cannot be one. */
int auth_owner(const struct auth *a, const char *authorization, const char *user, struct auth_who *out);
/* Would what auth_owner() has accepted be accepted still, as the same owner? */
bool auth_known(const struct auth *a, const struct auth_who *who);
/* When the first of the tokens ends that have not ended yet; 0: none will. Seconds of the wall clock. */
int64_t auth_next_end(const struct auth *a);
/* The next pair of owners of which one inherits what the other has, by which token. *at is 0 before the first. False:
 * there are no more. */
bool auth_inherits(const struct auth *a, size_t *at, const char **from, const char **to, const char **why);
/* What a token says that its owner may have: of `given`, a bit each, the values are set. */
enum auth_limit {
    LIMIT_CONVERSATIONS,
    LIMIT_LEDGER_BYTES,
    LIMIT_DISK_BYTES,
    LIMIT_RAM_BYTES,
    LIMIT_KV_BYTES,
    LIMIT_RETAIN_DAYS,
    AUTH_LIMITS
};
struct auth_limits {
    const char *owner;
    unsigned given;
    uint64_t values[AUTH_LIMITS]; /* 0: no limit */
};
/* The next token that says something, the newest first. *at is 0 before it. False: there are no more. */
bool auth_limits(const struct auth *a, size_t *at, struct auth_limits *out);
/* Is this Host header one that belongs to us? Guards a loopback listener against DNS rebinding. */
bool auth_host_allowed(const struct daemon_config *c, const char *host);
/* Same host as the request, or configured. */
bool auth_origin_allowed(const struct daemon_config *c, const char *origin, const char *host);
/* "127.0.0.1:8080", "[::1]:0" -> address and port. */
int auth_listen_parse(const char *listen, char *address, size_t address_size, int *port);
bool auth_address_loopback(const char *address);
/* Is this address one of the trusted proxies, or in one of their networks ("10.0.0.0/8")? */
bool auth_proxy_trusted(const struct daemon_config *c, const char *address);
/* ADDRESS or ADDRESS/BITS. */
bool auth_network_valid(const char *network);

/* ---- systemd (notify.c) ---------------------------------------------------------------------------------------------
 */

/* One datagram to systemd; a NULL path does nothing. */
int notify_send(const char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- upkeep (control.c, commands.c) ---------------------------------------------------------------------------------
 */

/* Serves the data directory's socket until control_stop(), which comes before the session is closed. */
struct control;
struct session;
int control_start(const char *data, struct session *session, const struct daemon_log *log, struct control **out);
void control_stop(struct control *c); /* NULL is fine */
/* Asks the daemon that serves `data` for a backup to the absolute path `to`. -ENOENT, -ECONNREFUSED: none does. */
int control_backup(const char *data, const char *to, bool with_kv, char *err, size_t err_size);
/* The data folder that flags or the configuration name. malloc'd; NULL: out of memory, or with a log, which is told of
 * them, other settings are wrong. */
char *command_data(int argc, char **argv, const struct daemon_log *log);
/* Runs `convod backup DIR`, `--verify DIR` or `--repair DIR`; *status is the exit status. False: it is none of them. */
bool command_run(int argc, char **argv, const struct daemon_log *log, int *status);

/* ---- metrics (metrics.c) --------------------------------------------------------------------------------------------
 */

struct histogram {
    uint64_t count[16]; /* per bucket, the last is +Inf */
    double sum;
    uint64_t total;
};

/* What the rooms count; network thread. What the session counts is in its status. */
#define METRICS_REASONS_MAX 16
struct metrics {
    uint64_t requests, errors, connections, dropped_slow, refused;
    int64_t started_ms; /* wall clock */
    uint64_t prompt_tokens, cached_tokens, restore_bytes;
    struct {
        const char *name; /* static */
        uint64_t tokens;
    } reasons[METRICS_REASONS_MAX]; /* of tokens that were computed again */
    size_t n_reasons;
    struct histogram ttft, itl, queue, prefill, restore;
    struct histogram stall; /* of the network thread: one piece of work, during which nobody else is served */
};
struct session_status;
struct session_receipt;
/* An answered turn; itl: the times between its tokens. */
void metrics_turn(struct metrics *m, int input_tokens, int cached_tokens, const struct session_receipt *r,
                  const struct histogram *itl);
void metrics_observe(struct histogram *h, double seconds);
/* The text of /metrics. malloc'd; NULL: out of memory. */
char *metrics_text(const struct metrics *m, const struct session_status *st, bool ready, size_t n_conns);

/* ---- server ------------------------------------------------------------------------------------------------------ */

struct server;

struct server_opts {
    const struct daemon_config *config;
    const struct daemon_log *log;
    const char *notify_socket; /* value of NOTIFY_SOCKET, NULL when systemd did not start us */
    uint64_t watchdog_us;      /* value of WATCHDOG_USEC, 0 = none */
    bool progress_line;        /* standard error is a terminal: show a line that updates */
    /* Called on the network thread when the model is ready; may be NULL. */
    void (*ready)(void *arg, int port);
    void *arg;
};

/* Binds the listener and starts to load the model in the background. The port is known from now on. */
int server_start(const struct server_opts *opts, struct server **out, char *err, size_t err_size);
int server_port(const struct server *s);
/* True while the model is being loaded; server_free() would wait for that. */
bool server_loading(const struct server *s);
/* Serves until server_stop(). 0, or a negative errno when the model could not be loaded (it has been logged). */
int server_run(struct server *s);
/* [any thread] Begins the shutdown: running turns end as incomplete, sockets are closed with 1001. */
void server_stop(struct server *s);
/* [any thread but the network's, since it reads from a disk] Reads the tokens again. */
void server_reload(struct server *s);
/* After server_run(). NULL is fine. */
void server_free(struct server *s);

#endif

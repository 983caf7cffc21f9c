/* daemon.h - convod as a program: its configuration and its server.
 *
 * main() reads a configuration and runs one server. The server owns the network thread, which is the thread that calls
 * server_run(); everything that happens elsewhere (model loading, turns, storage) reaches it as an event.
 *
 * Errors: 0 or a negative errno value; err gets what a person will read.
 */
#ifndef CONVOD_DAEMON_H
#define CONVOD_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- configuration ---------------------------------------------------------------------------------------------- */

#define DAEMON_ORIGINS_MAX 32

struct daemon_config {
    char *model, *data, *cache, *listen, *backend, *kv_type, *chat_format, *token_file, *log_level;
    int ctx, threads, max_running, max_waiting, idle_seconds, max_connections, max_connections_per_address;
    int timeout_seconds, ping_seconds, drain_ms;
    uint64_t kv_bytes, ram_bytes, disk_bytes, request_bytes;
    char *origins[DAEMON_ORIGINS_MAX]; /* allow-origin */
    size_t n_origins;
    char *hosts[DAEMON_ORIGINS_MAX]; /* allow-host */
    size_t n_hosts;
};

enum daemon_config_action { DAEMON_RUN, DAEMON_CHECK, DAEMON_HELP, DAEMON_VERSION };

/* Defaults, then the configuration file (--config; else the user's own when it exists), then the flags. `home`,
 * `xdg_config`, `xdg_data` and `xdg_cache` are the values of HOME and the XDG variables, NULL when not set. */
int daemon_config_load(struct daemon_config *c, int argc, char **argv, const char *home, const char *xdg_config,
                       const char *xdg_data, const char *xdg_cache, enum daemon_config_action *action, char *err,
                       size_t err_size);
/* Reads the text of one configuration file into c. `name` is for messages. */
int daemon_config_parse(struct daemon_config *c, const char *text, size_t len, const char *name, char *err,
                        size_t err_size);
/* Checks what is only known at the end: ranges, a token file for an address that is not loopback. */
int daemon_config_check(const struct daemon_config *c, char *err, size_t err_size);
/* What --check-config looks at besides: the model and the token file can be read. */
int daemon_config_verify(const struct daemon_config *c, char *err, size_t err_size);
void daemon_config_free(struct daemon_config *c);
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
};
void daemon_log(const struct daemon_log *log, int priority, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

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
/* [any thread] Reads the token file again. */
void server_reload(struct server *s);
/* After server_run(). NULL is fine. */
void server_free(struct server *s);

#endif

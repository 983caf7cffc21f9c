/* harness.h - a server with the session's double behind it, and plain sockets in front of it.
 *
 * The server runs on a thread of the test's process and listens on a port that it picked. Clients are blocking sockets
 * with a long receive timeout, so that a test that waits for something that never comes fails instead of hanging.
 */
#ifndef CONVOD_TESTS_HARNESS_H
#define CONVOD_TESTS_HARNESS_H

#include <cjson/cJSON.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/daemon.h"
#include "tests/daemon/fake_session.h"

struct harness {
    struct daemon_config config;
    struct daemon_log log;
    struct server *server;
    pthread_t thread;
    int port, result;
    int log_fd; /* what the server logs */
    char log_path[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ready, ended;
};

/* flags: further arguments, NULL-terminated; may be NULL. */
struct harness *harness_start(const char *const *flags);
struct harness *harness_start_loading(const char *const *flags); /* does not wait for the model */
void harness_wait_ready(struct harness *h);
/* Stops the server and waits for it; returns what server_run() returned. Everything is freed. */
int harness_stop(struct harness *h);
/* What was logged so far, malloc'd. */
char *harness_log(struct harness *h);
/* Lines of it that have `what` in them and end with `end`. */
int harness_logged(struct harness *h, const char *what, const char *end);

/* ---- sockets ---- */

int dial(const struct harness *h);
void send_text(int fd, const char *text);
void send_bytes(int fd, const void *data, size_t len);
/* Everything until the peer closes; malloc'd and terminated. */
char *read_all(int fd);
/* No more will be sent. */
void shutdown_send(int fd);
int read_byte(int fd); /* fails the test at the end */
/* Nothing and no end arrives for this long. */
bool quiet(int fd, int ms);
/* The peer closes (or resets) without sending anything more. */
bool closed(int fd);

struct reply {
    int status;
    char *head, *body;
    size_t body_len;
    cJSON *json; /* NULL: not JSON */
};
/* One response, by its Content-Length or its chunks. status 0: the connection ended before one came. */
struct reply read_reply(int fd);
void reply_free(struct reply *r);
/* One request on a connection of its own. body NULL: none. headers: further lines, each with CRLF; may be NULL. */
struct reply call(const struct harness *h, const char *method, const char *path, const char *headers, const char *body);
/* The same on a connection that stays. */
void send_request(int fd, const char *method, const char *path, const char *headers, const char *body);

/* ---- WebSocket ---- */

int ws_dial(const struct harness *h); /* upgraded */
int ws_dial_as(const struct harness *h, const char *headers);
/* The status of an upgrade request with these further headers; the socket is closed. */
int ws_refused(const struct harness *h, const char *path, const char *headers, cJSON **error);
void ws_send_frame(int fd, int opcode, bool fin, const void *data, size_t len);
void ws_send(int fd, const char *text);
/* The next message. Pings are answered. NULL and *close_code on a close frame (0: the connection just ended). */
char *ws_read(int fd, int *close_code);
cJSON *ws_read_json(int fd); /* fails the test when none comes */
/* Reads until an event of this type (all others are dropped) and returns it. */
cJSON *ws_until(int fd, const char *type);
void ws_create(int fd, const char *text, const char *more); /* more: further JSON fields, with a leading comma */

/* ---- JSON ---- */
const char *str(const cJSON *o, const char *path); /* "error.code"; "" when absent */
double num(const cJSON *o, const char *path);      /* -1 when absent */
const cJSON *at(const cJSON *o, const char *path);

#endif

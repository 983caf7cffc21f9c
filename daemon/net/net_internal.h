/* net_internal.h - what the files of net/ share: the connections, and what is queued for each. */
#ifndef CONVOD_DAEMON_NET_INTERNAL_H
#define CONVOD_DAEMON_NET_INTERNAL_H

#include <libwebsockets.h>

#include "daemon/net/net.h"

#define HEADER_BYTES_MAX    (16 * 1024)        /* request line and headers; more is 431 */
#define HEADER_BYTES_PARSED 65535              /* what the parser takes before it gives up on a connection */
#define DISCARD_BYTES_MAX   (64 * 1024 * 1024) /* a refused body that is still read so that the answer arrives */
#define WRITE_BYTES         (16 * 1024)        /* one lws_write */
#define CONN_BUCKETS        1024

struct chunk {
    struct chunk *next;
    size_t len, sent;
    unsigned char data[]; /* LWS_PRE bytes, then len */
};

enum conn_phase {
    CONN_IDLE,      /* no request */
    CONN_BODY,      /* reading a body */
    CONN_WORKING,   /* a handler has it; no answer yet */
    CONN_ANSWERING, /* the answer is being written */
    CONN_WEBSOCKET,
};

/* Of a request, what the interfaces do not see. */
struct http_request {
    char *path;
    char *origin;       /* to be echoed for CORS; NULL */
    char *cors_headers; /* that a preflight asks for; NULL */
    size_t body_size;
    int64_t length; /* of the body; -1 = not given */
    bool http10;
};

struct conn {
    struct client client; /* first */
    struct conn *next, *prev;
    struct net *net;
    struct lws *wsi;
    enum conn_phase phase;
    unsigned char token[TOKEN_DIGEST_BYTES];
    struct chunk *out_head, *out_tail;
    int64_t stalled_since_ms; /* output waits, and the last of it was taken then; 0 = none waits */
    char address[64];
    /* HTTP */
    struct http_request http;
    bool close_after;  /* no further request on this connection */
    bool flow_stopped; /* nothing is read while the answer is being worked on */
    bool discard;      /* the body is read and dropped; `refused` is the answer */
    struct api_error refused;
    /* WebSocket */
    char *message;
    size_t message_len, message_size;
    bool message_binary;
    int close_code; /* not 0: close as soon as what is queued is written */
    const char *close_reason;
    bool writing; /* in conn_write() */
};

struct net {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct api *api;
    struct auth *auth;
    struct lws_context *context;
    struct lws_vhost *vhost;
    char address[64];
    int port;
    bool loopback;
    struct conn *buckets[CONN_BUCKETS];
    size_t n_conns;
    uint64_t next_conn_id;
    lws_sorted_usec_list_t sul;
    void (*tick)(void *arg);
    void *tick_arg;
    int64_t last_comment_ms;
    uint64_t loops, callbacks; /* since the last tick */
    int spinning_ticks;
    struct lws_protocols protocols[3];
    lws_retry_bo_t retry;
};

/* ---- connections (conn.c) ---------------------------------------------------------------------------------------- */

extern const struct client_ops conn_ops;

struct conn *conn_new(struct net *n, struct lws *wsi, const char *address);
void conn_free(struct conn *c);
struct client *conn_find(struct api *api, uint64_t id); /* api->find */
/* Ends a socket at once (a slow or broken peer). */
void conn_drop(struct conn *c);
void conn_close(struct conn *c, int code, const char *reason); /* a WebSocket */
void conn_comment(struct conn *c);                             /* keeps a quiet stream alive */
void conn_refuse(struct conn *c, const struct api_error *e);   /* the answer to a request */
/* WRITEABLE: writes at most one chunk. -1: close the connection. */
int conn_write(struct conn *c);
void conn_request_clear(struct conn *c);

/* ---- HTTP (http.c): the HTTP half of the callback ------------------------------------------------------------------
 */

int http_begin(struct conn *c);
int http_body(struct conn *c, const void *data, size_t len);
int http_body_complete(struct conn *c);
/* Before an upgrade: 0 = go on; otherwise the answer was written and the connection has to be closed. */
int http_check_upgrade(struct net *n, struct lws *wsi, char owner[OWNER_SIZE]);
/* `token` is what auth_known() takes; origin may be NULL. */
int http_check_access(struct net *n, struct lws *wsi, bool open_route, char owner[OWNER_SIZE],
                      unsigned char token[TOKEN_DIGEST_BYTES], char **origin, struct api_error *e);

/* ---- WebSocket (frames.c) ------------------------------------------------------------------------------------------
 */

int frames_receive(struct conn *c, const char *data, size_t len);

#endif

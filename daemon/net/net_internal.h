/* net_internal.h - what the files of net/ share: the connections, and what is queued for each.
 *
 * A connection begins at our own door (an epoll instance that lives in the library's loop as one descriptor), and stays
 * there to its end, unless it becomes a WebSocket: the library reads and closes those. While it has one, `wsi` is set.
 */
#ifndef CONVOD_DAEMON_NET_INTERNAL_H
#define CONVOD_DAEMON_NET_INTERNAL_H

#include <libwebsockets.h>

#include "daemon/net/head.h"
#include "daemon/net/net.h"

#define READ_BYTES             (64 * 1024)        /* one read of a socket, */
#define WRITE_BYTES            (256 * 1024)       /* and what one turn of the loop writes to it */
#define DISCARD_BYTES_MAX      (64 * 1024 * 1024) /* that are read behind an answer, so that it arrives */
#define LINGER_MS              2000               /* without a byte, until an answered connection is closed */
#define REFUSING_MAX           64                 /* connections above the limit, which are told so */
#define CLOSE_GOING_AWAY       1001
#define CLOSE_POLICY_VIOLATION 1008
#define FRAME_HEAD_MAX         14
#define CONTROL_BYTES_MAX      125
#define WS_TRY_AGAIN_LATER     1013 /* IANA's registry of close codes */
#define CONN_BUCKETS           1024
#define ADDRESS_SIZE           64

struct chunk {
    struct chunk *next;
    size_t len, sent;
    char *at;    /* what is sent: `own`, or behind LWS_PRE bytes of `data`, as a message needs it */
    char *own;   /* freed with it; NULL: it is in `data` */
    char data[]; /* LWS_PRE bytes, then len */
};

enum conn_phase {
    CONN_HEAD,      /* reading a request's head */
    CONN_BODY,      /* reading its body */
    CONN_WORKING,   /* a handler has it; no answer yet */
    CONN_ANSWERING, /* the answer is being written */
    CONN_WEBSOCKET,
    CONN_LINGER, /* all is written and our side is shut; what still comes is thrown away */
};

/* Where in a WebSocket's bytes its frames begin, as far as they could be looked at before the library read them. */
struct masks {
    bool lost;     /* bytes went by unseen */
    uint64_t seen; /* of the stream */
    uint64_t left; /* of the frame that is going by */
    unsigned char head[14];
    size_t head_len;
};

struct conn {
    struct client client; /* first */
    struct conn *next, *prev;
    struct conn *next_ready, *next_dead;
    struct net *net;
    struct lws *wsi; /* while the library has it */
    int fd;
    uint32_t interest; /* what epoll was told */
    enum conn_phase phase;
    bool ready, dead;           /* in the loop's lists */
    bool blocked;               /* the socket takes no more now; who tells when it does was asked */
    bool writing;               /* in conn_write() */
    char peer[ADDRESS_SIZE];    /* the socket's other end */
    char address[ADDRESS_SIZE]; /* whose limits count: the peer, or whom a trusted proxy names */
    int64_t accepted_ms, began_us;
    int64_t deadline_ms;      /* of the phase; 0 = none */
    int64_t stalled_since_ms; /* output waits, and the last of it was taken then; 0 = none waits */
    struct chunk *out_head, *out_tail;
    /* HTTP */
    size_t seen;        /* bytes of the head that were looked at */
    char *origin;       /* to be echoed for CORS; NULL */
    char *cors_headers; /* that a preflight asks for; NULL */
    int64_t length;     /* of the body; -1 = not given */
    size_t discarded;   /* bytes that were read and thrown away */
    int status;         /* of the answer */
    bool http10;
    bool counted;     /* as a request, */
    bool told;        /* and how it ended is in the log */
    bool over_limit;  /* it is only told so */
    bool half_closed; /* the peer sends no more */
    bool reset;       /* it ended by throwing away what it had not read */
    int64_t half_closed_ms;
    bool early;                     /* the answer was begun before it was known */
    char allow[ROUTE_ALLOWED_SIZE]; /* of a 405 */
    /* WebSocket */
    char *message;
    size_t message_len, message_size;
    size_t message_checked;   /* of it are whole characters */
    int64_t message_since_ms; /* when it began; 0 = none is arriving */
    bool message_binary;
    struct masks masks;
    int close_code; /* not 0: close as soon as what is queued is written */
    const char *close_reason;
    int64_t linger_end_ms;
};

struct net {
    const struct daemon_config *config;
    const struct daemon_log *log;
    struct api *api;
    struct auth *auth;
    char address[ADDRESS_SIZE];
    int port;
    bool loopback;
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws_protocols protocols[2];
    lws_retry_bo_t retry;
    struct conn *lending; /* that the library is being given */
    int listener, epoll, timer;
    bool accepting; /* the listener is in epoll */
    bool closing;   /* nobody comes in any more */
    size_t max_conns;
    struct conn *buckets[CONN_BUCKETS];
    size_t n_conns, n_refusing;
    uint64_t next_conn_id;
    struct conn *ready, *dead;
    int (*tick)(void *arg);
    void *tick_arg;
    bool quiet; /* the next tick is far */
    int64_t last_comment_ms;
    char scratch[READ_BYTES];
};

/* ---- connections (conn.c) ---------------------------------------------------------------------------------------- */

extern const struct client_ops conn_ops;

/* Takes fd. NULL: out of memory, and fd is closed. */
struct conn *conn_new(struct net *n, int fd, const char *peer);
void conn_free(struct conn *c);
struct client *conn_find(struct api *api, uint64_t id); /* api->find */
/* Ends a socket at once (a slow or broken peer); it is freed at the end of the loop's turn. */
void conn_drop(struct conn *c);
/* The library has closed the socket. */
void conn_gone(struct conn *c);
/* Frees a body that will not be used. */
void conn_forget_body(struct conn *c);
/* Something can be written. */
void conn_wake(struct conn *c);
struct part {
    const void *at;
    size_t len;
};
static inline struct part part(const void *at, size_t len)
{
    return (struct part){at, len};
}
/* Queues copies of the parts as one chunk. */
void conn_queue(struct conn *c, const struct part *parts, size_t n);
/* Queues text as it is, of any length: takes it. Not for a WebSocket. */
void conn_give(struct conn *c, char *text, size_t len);
/* Writes what the socket takes. */
void conn_write(struct conn *c);
/* [WRITEABLE] The same in the library's call. -1: close the connection. */
int conn_write_lent(struct conn *c);
/* Gives the library the socket of a WebSocket, with a head of our own making before what is still in it. */
void conn_lend(struct conn *c, const char *head, size_t len);
/* Tells epoll what this connection waits for now. */
void conn_listen(struct conn *c);
/* All is written: no more of us, and what still comes is thrown away until the peer ends or is quiet. */
void conn_linger(struct conn *c);

/* ---- HTTP (http.c) -------------------------------------------------------------------------------------------------
 */

/* Reads what has come, in phases HEAD and BODY. */
void http_read(struct conn *c);
/* The peer sends no more. */
void http_end(struct conn *c);
/* Answers with an error, and closes. */
void http_refuse(struct conn *c, const struct api_error *e);
/* Sends a byte or two that mean nothing, so that a quiet stream stays alive, and so that it shows whether a peer that
 * sends no more still reads. */
void http_probe(struct conn *c);
/* The phase's deadline has passed. */
void http_late(struct conn *c);
/* Of client_ops. */
void http_answer(struct client *client, int status, const char *content_type, char *body);
void http_stream_begin(struct client *client);
void http_stream_event(struct client *client, const char *name, const char *data);
void http_stream_end(struct client *client);

/* ---- WebSocket (frames.c) ------------------------------------------------------------------------------------------
 */

void frames_begin(struct conn *c); /* before it is lent */
/* Looks at what has come, before the library reads it: a frame without a mask ends the connection. */
void frames_look(struct conn *c);
int frames_receive(struct conn *c, const char *data, size_t len);
void frames_close(struct conn *c, int code, const char *reason);
/* The payload of the peer's close frame. 0: the library answers it with the same; -1: it was answered as an error. */
int frames_peer_closes(struct conn *c, const char *data, size_t len);
void frames_check(struct conn *c, int64_t now); /* [tick] */
void frames_free(struct conn *c);

/* ---- who may come in (net.c) ---------------------------------------------------------------------------------------
 */

/* The head named another address (a trusted proxy's client): does it still fit? */
bool net_admit_as(struct net *n, struct conn *c, const char *address);
/* budget_grow() for what arrives on c. When there is no room, those give way that hold more of an unfinished request or
 * message than c would, the largest first; where it is the owner that has its share, those of that owner. */
int net_grow(struct conn *c, char **buffer, size_t *size, size_t need, struct api_error *e);

#endif

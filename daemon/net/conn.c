/* conn.c - one socket: what is queued for it, writing, lending it to the library, and how it ends.
 *
 * Everything that is sent goes through a list of chunks. A peer that takes nothing for timeout-seconds is dropped. At
 * the end of the loop's turn that queued it, it is written: whether the socket takes it is only asked for where it did
 * not, since that asking is another turn of the loop, for every token.
 *
 * The library gets the sockets that become a WebSocket, with a head of our own making: it sees nothing of what the peer
 * wrote there, so it cannot understand it otherwise than we did. Of HTTP it sees nothing: it would close a connection
 * whose peer shuts its sending side, would read what comes behind a request as another, and takes a poll of each socket
 * in every turn of its loop.
 *
 * There is one way to end an answered connection, whatever was answered: our side is shut when the last byte is
 * written, and what the peer still sends is thrown away until it ends, is quiet, or goes on for too long. Closing
 * earlier would make the kernel reset the connection, and the answer would be lost with it.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/net_internal.h"

#define IOV_MAX_CHUNKS 16

static struct conn **bucket(struct net *n, uint64_t id)
{
    return &n->buckets[id % CONN_BUCKETS];
}

struct conn *conn_new(struct net *n, int fd, const char *peer)
{
    struct conn *c = calloc(1, sizeof(*c));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c || epoll_ctl(n->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        close(fd);
        return NULL;
    }
    c->client.ops = &conn_ops;
    c->client.api = n->api;
    c->client.id = ++n->next_conn_id;
    c->client.home.owner = c->client.owner;
    c->net = n;
    c->fd = fd;
    c->interest = EPOLLIN;
    c->length = -1;
    snprintf(c->peer, sizeof(c->peer), "%s", peer);
    snprintf(c->address, sizeof(c->address), "%s", peer);
    c->accepted_ms = clock_ms();
    c->began_us = clock_us();
    c->deadline_ms = c->accepted_ms + (int64_t)n->config->timeout_seconds * 1000;
    struct conn **head = bucket(n, c->client.id);
    c->next = *head;
    if (c->next) {
        c->next->prev = c;
    }
    *head = c;
    n->api->n_clients = ++n->n_conns;
    n->api->metrics.connections++;
    return c;
}

struct client *conn_find(struct api *api, uint64_t id)
{
    struct net *n = api->find_arg;
    for (struct conn *c = *bucket(n, id); c; c = c->next) {
        if (c->client.id == id) {
            return c->client.dropped ? NULL : &c->client;
        }
    }
    return NULL;
}

void conn_forget_body(struct conn *c)
{
    free(c->client.request.body);
    c->client.request.body = NULL;
    c->client.request.body_len = 0;
    budget_give(&c->net->api->budget, c->client.owner, c->client.request.body_size);
    c->client.request.body_size = 0;
}

/* The request has been answered, or never will be. */
static void request_free(struct conn *c)
{
    free(c->origin);
    free(c->cors_headers);
    c->origin = c->cors_headers = NULL;
    conn_forget_body(c);
    client_request_clear(&c->client);
}

/* It has ended, and not by a reset: with that a peer says that it threw away what its system had acknowledged. */
static void look_acknowledged(struct conn *c)
{
    int left = 1; /* bytes, and our end behind them, that the peer's system has not acknowledged */
    if (c->client.unacknowledged[0] && c->phase == CONN_LINGER && !c->reset && !c->out_head &&
        ioctl(c->fd, SIOCOUTQ, &left) == 0 && left == 0) {
        client_acknowledged(&c->client);
    }
}

/* A request leaves one line in the log. whole: its answer has left. */
static void tell(struct conn *c, bool whole)
{
    if (c->counted && !c->told) {
        c->told = true;
        client_answered(&c->client, c->status, (clock_us() - c->began_us) / 1000, whole);
    }
}

/* The first that is queued. */
static void chunk_free(struct conn *c)
{
    struct chunk *chunk = c->out_head;
    c->out_head = chunk->next;
    free(chunk->own);
    free(chunk);
}

void conn_free(struct conn *c)
{
    struct net *n = c->net;
    look_acknowledged(c);
    if (!c->client.websocket) {
        tell(c, false);
    }
    client_free(&c->client);
    while (c->out_head) {
        chunk_free(c);
    }
    request_free(c);
    frames_free(c);
    if (c->fd >= 0) {
        close(c->fd);
    }
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        *bucket(n, c->client.id) = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    n->n_refusing -= c->over_limit;
    n->api->n_clients = --n->n_conns;
    free(c);
}

void conn_wake(struct conn *c)
{
    if (!c->client.dropped && !c->writing && !c->blocked && !c->ready) {
        c->ready = true;
        c->next_ready = c->net->ready;
        c->net->ready = c;
    }
}

void conn_drop(struct conn *c)
{
    c->client.dropped = true;
    if (c->wsi) {
        lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC); /* conn_gone() follows */
    } else if (!c->dead) {
        c->dead = true;
        c->next_dead = c->net->dead;
        c->net->dead = c;
    }
}

void conn_gone(struct conn *c)
{
    c->wsi = NULL;
    c->fd = -1;
    conn_drop(c);
}

void conn_listen(struct conn *c)
{
    bool busy = c->phase == CONN_WORKING || c->phase == CONN_ANSWERING;
    uint32_t interest = c->blocked ? EPOLLOUT : 0;
    if (c->wsi) {
        interest = EPOLLIN | EPOLLRDHUP | EPOLLET; /* each time anything comes */
    } else if (c->phase == CONN_HEAD) {
        interest |= EPOLLIN | EPOLLRDHUP | EPOLLET; /* it is looked at and stays in the socket */
    } else if (busy) {
        interest |= c->half_closed ? 0 : EPOLLRDHUP;
    } else {
        interest |= EPOLLIN;
    }
    struct epoll_event event = {.events = interest, .data.ptr = c};
    if (interest != c->interest && c->fd >= 0) {
        c->interest = interest;
        if (epoll_ctl(c->net->epoll, EPOLL_CTL_MOD, c->fd, &event) != 0) {
            conn_drop(c);
        }
    }
}

void conn_lend(struct conn *c, const char *head, size_t len)
{
    struct net *n = c->net;
    n->lending = c;
    struct lws *wsi = lws_adopt_socket_vhost_readbuf(n->vhost, c->fd, head, len);
    n->lending = NULL;
    if (!wsi) {
        if (!c->dead) {
            conn_gone(c); /* the library has closed the socket */
        }
        return;
    }
    c->interest = 0; /* what lies in the socket already is told once more, before the library comes to read it */
    conn_listen(c);
}

static void queue(struct conn *c, struct chunk *chunk)
{
    if (c->out_tail) {
        c->out_tail->next = chunk;
    } else {
        c->out_head = chunk;
        c->stalled_since_ms = clock_ms();
    }
    c->out_tail = chunk;
    c->client.queued_bytes += chunk->len;
    conn_wake(c);
}

void conn_give(struct conn *c, char *text, size_t len)
{
    struct chunk *chunk = c->client.dropped ? NULL : malloc(sizeof(*chunk));
    if (!chunk) {
        free(text);
        conn_drop(c);
        return;
    }
    *chunk = (struct chunk){.len = len, .at = text, .own = text};
    queue(c, chunk);
}

void conn_queue(struct conn *c, const struct part *parts, size_t n)
{
    if (c->client.dropped) {
        return;
    }
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        len += parts[i].len;
    }
    struct chunk *chunk = malloc(sizeof(*chunk) + LWS_PRE + len);
    if (!chunk) {
        conn_drop(c);
        return;
    }
    *chunk = (struct chunk){.len = len, .at = chunk->data + LWS_PRE};
    char *to = chunk->at;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].len) {
            memcpy(to, parts[i].at, parts[i].len);
            to += parts[i].len;
        }
    }
    queue(c, chunk);
}

void conn_linger(struct conn *c)
{
    int64_t now = clock_ms();
    request_free(c);
    c->phase = CONN_LINGER;
    c->deadline_ms = now + LINGER_MS;
    c->linger_end_ms = now + (int64_t)c->net->config->timeout_seconds * 1000;
    if (shutdown(c->fd, SHUT_WR) != 0) {
        c->reset = true;
        conn_drop(c);
    }
}

/* ---- writing ------------------------------------------------------------------------------------------------------
 */

/* Bytes that left, 0 = the socket takes no more now, or -1: it is broken. */
static ssize_t send_some(struct conn *c)
{
    struct iovec iov[IOV_MAX_CHUNKS];
    size_t n = 0;
    for (struct chunk *k = c->out_head; k && n < IOV_MAX_CHUNKS; k = k->next) {
        iov[n++] = (struct iovec){k->at + k->sent, k->len - k->sent};
    }
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
    }
    return sent;
}

/* One message, or as much of it as is one write. What the socket does not take of that the library keeps. */
static ssize_t send_message(struct conn *c)
{
    struct chunk *chunk = c->out_head;
    size_t left = chunk->len - chunk->sent, n = left < WRITE_BYTES ? left : WRITE_BYTES;
    int flags = lws_write_ws_flags(LWS_WRITE_TEXT, chunk->sent == 0, n == left);
    unsigned char *data = (unsigned char *)chunk->at + chunk->sent;
    return lws_write(c->wsi, data, n, (enum lws_write_protocol)flags) < 0 ? -1 : (ssize_t)n;
}

static void take_off(struct conn *c, size_t sent)
{
    c->client.queued_bytes -= sent;
    while (c->out_head && sent >= c->out_head->len - c->out_head->sent) {
        sent -= c->out_head->len - c->out_head->sent;
        chunk_free(c);
    }
    if (c->out_head) {
        c->out_head->sent += sent;
    } else {
        c->out_tail = NULL;
    }
}

/* All that is queued has left. */
static void written(struct conn *c)
{
    c->stalled_since_ms = 0;
    if (c->client.answered && c->phase != CONN_LINGER) {
        tell(c, true);
        conn_linger(c);
    }
}

/* Fills the queue and writes it, until the socket takes no more or others have their turn. False: nothing is left that
 * could be queued. */
static bool write_some(struct conn *c)
{
    bool going = c->close_code && c->close_code != LWS_CLOSE_STATUS_GOINGAWAY;
    for (size_t total = 0; !c->client.dropped && !c->blocked && total < WRITE_BYTES;) {
        if (!going) {
            client_pump(&c->client);
        }
        if (!c->out_head || c->client.dropped) {
            return false;
        }
        ssize_t sent = c->client.websocket ? send_message(c) : send_some(c);
        if (sent < 0) {
            conn_drop(c);
            return false;
        }
        c->blocked = sent == 0 || (c->client.websocket && lws_partial_buffered(c->wsi));
        if (sent > 0) {
            c->stalled_since_ms = clock_ms();
            total += (size_t)sent;
            take_off(c, (size_t)sent);
        }
    }
    return true;
}

/* False: all has left. */
static bool write_queued(struct conn *c)
{
    c->blocked = c->client.websocket && lws_partial_buffered(c->wsi);
    c->writing = true;
    bool more = write_some(c);
    c->writing = false;
    if (c->client.dropped) {
        return false;
    }
    if (c->wsi && (c->blocked || c->close_code)) {
        lws_callback_on_writable(c->wsi); /* the library calls back when the socket takes more */
    } else if (more && !c->blocked) {
        conn_wake(c); /* others first */
    } else if (!more) {
        written(c);
    }
    if (!c->client.dropped) {
        conn_listen(c);
    }
    return more;
}

void conn_write(struct conn *c)
{
    if (c->close_code) {
        lws_callback_on_writable(c->wsi); /* it is closed in the library's call alone */
    } else {
        (void)write_queued(c);
    }
}

int conn_write_lent(struct conn *c)
{
    if (c->client.dropped) {
        return -1;
    }
    bool more = write_queued(c);
    if (c->client.dropped) {
        return -1;
    }
    if (more) {
        return 0;
    }
    if (c->close_code) {
        unsigned char reason[CONTROL_BYTES_MAX - 2];
        size_t n = strnlen(c->close_reason, sizeof(reason));
        memcpy(reason, c->close_reason, n);
        lws_close_reason(c->wsi, (enum lws_close_status)c->close_code, reason, n);
        return -1;
    }
    return 0;
}

/* ---- what the interfaces call ---------------------------------------------------------------------------------------
 */

static void message(struct client *client, const char *head, size_t head_len, const char *tail, size_t tail_len)
{
    const struct part parts[] = {part(head, head_len), part(tail, tail_len)};
    conn_queue((struct conn *)client, parts, 2);
}

static void drop(struct client *client)
{
    conn_drop((struct conn *)client);
}

static void wake(struct client *client)
{
    conn_wake((struct conn *)client);
}

const struct client_ops conn_ops = {
    .answer = http_answer,
    .stream_begin = http_stream_begin,
    .stream_event = http_stream_event,
    .stream_end = http_stream_end,
    .message = message,
    .drop = drop,
    .wake = wake,
};

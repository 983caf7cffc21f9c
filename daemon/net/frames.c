/* frames.c - messages out of a WebSocket's frames: whole ones, of text, within the limit and in time.
 *
 * The library reads the frames (RFC 6455). Two things are seen to here besides. A message is stored as it arrives,
 * never as it is announced; it has one deadline for the whole, and its UTF-8 is checked piece by piece. And frames of a
 * client have a mask, which the library does not ask for before its version 5: so the bytes that arrive are looked at
 * before it reads them, from frame to frame. Where more came between the look and its read, that is given up for this
 * connection; a client that does not mask at all is found by its first frame. Of a close frame it takes some codes that
 * nobody may send, and any bytes as its reason: those are answered as the errors that they are.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "daemon/net/net_internal.h"

#define CLOSE_CODE_MAX 4999 /* RFC 6455, 7.4.2 */
#define READ_TRIES     16
#define CLOSE_MS       5000 /* for the peer to answer a close, beyond what it has for anything */

void frames_free(struct conn *c)
{
    budget_give(&c->net->api->budget, c->client.owner, c->message_size);
    free(c->message);
    c->message = NULL;
    c->message_len = c->message_size = c->message_checked = 0;
    c->message_since_ms = 0;
}

void frames_close(struct conn *c, int code, const char *reason)
{
    if (!c->close_code) {
        c->close_code = code;
        c->close_reason = reason;
        c->client.closing = true;
        c->deadline_ms = clock_ms() + CLOSE_MS + (int64_t)c->net->config->timeout_seconds * 1000;
        frames_free(c);
        conn_wake(c);
    }
}

void frames_check(struct conn *c, int64_t now)
{
    if (c->message_since_ms && now - c->message_since_ms > (int64_t)c->net->config->timeout_seconds * 1000) {
        frames_close(c, LWS_CLOSE_STATUS_POLICY_VIOLATION, "a message took too long to arrive");
    }
}

/* ---- masks ---------------------------------------------------------------------------------------------------------
 */

/* Bytes of the stream that have arrived. */
static bool bytes_received(const struct conn *c, uint64_t *out)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t)) {
        return false;
    }
    *out = info.tcpi_bytes_received;
    return true;
}

/* Bytes of the stream that the library has read: what has arrived but for what waits, if none came between asking for
 * the one and for the other. */
static bool bytes_read(const struct conn *c, uint64_t *out)
{
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t before, after;
        int waiting = 0;
        if (!bytes_received(c, &before) || ioctl(c->fd, SIOCINQ, &waiting) != 0 || !bytes_received(c, &after) ||
            after < (uint64_t)waiting) {
            return false;
        }
        if (before == after) {
            *out = after - (uint64_t)waiting;
            return true;
        }
    }
    return false;
}

void frames_begin(struct conn *c)
{
    c->masks.lost = !bytes_read(c, &c->masks.seen);
}

/* One byte of a frame's head. False: the frame has no mask. */
static bool take_head(struct masks *m, unsigned char byte)
{
    m->head[m->head_len++] = byte;
    if (m->head_len < 2) {
        return true;
    }
    int len = m->head[1] & 0x7f;
    size_t more = len == 126 ? 2 : len == 127 ? 8 : 0;
    if (m->head_len == 2 + more + 4) {
        m->left = more ? 0 : (uint64_t)len;
        for (size_t i = 2; i < 2 + more; i++) {
            m->left = m->left << 8 | m->head[i];
        }
        m->head_len = 0;
    }
    return (m->head[1] & 0x80) != 0;
}

void frames_look(struct conn *c)
{
    struct masks *m = &c->masks;
    uint64_t read_already;
    if (m->lost || c->close_code || !bytes_read(c, &read_already) || read_already > m->seen) {
        m->lost = true;
        return;
    }
    uint64_t skip = m->seen - read_already;
    ssize_t n = recv(c->fd, c->net->scratch, READ_BYTES, MSG_PEEK | MSG_DONTWAIT);
    for (size_t at = (size_t)skip; n > 0 && at < (size_t)n;) {
        if (m->left > 0) {
            size_t step = m->left < (size_t)n - at ? (size_t)m->left : (size_t)n - at;
            m->left -= step;
            m->seen += step;
            at += step;
            continue;
        }
        m->seen++;
        if (!take_head(m, (unsigned char)c->net->scratch[at++])) {
            frames_close(c, LWS_CLOSE_STATUS_PROTOCOL_ERR, "frames of a client are masked");
            return;
        }
    }
}

/* ---- messages ------------------------------------------------------------------------------------------------------
 */

/* Adds a piece of the message. False: it was refused. */
static bool take_piece(struct conn *c, const char *data, size_t len)
{
    struct api_error e;
    size_t total;
    /* The rest of the frame is announced: a message that will be too large is refused before it is stored. */
    if (__builtin_add_overflow(c->message_len, len, &total) ||
        __builtin_add_overflow(total, lws_remaining_packet_payload(c->wsi), &total) || total > MESSAGE_BYTES_MAX) {
        frames_close(c, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, "message too large");
        return false;
    }
    int rc = net_grow(c, &c->message, &c->message_size, c->message_len + len + 1, &e);
    if (rc == -EDQUOT) {
        frames_close(c, WS_TRY_AGAIN_LATER, "requests take all the memory that they may");
        return false;
    }
    if (rc) {
        conn_drop(c);
        return false;
    }
    if (len) {
        memcpy(c->message + c->message_len, data, len);
    }
    c->message_len += len;
    if (c->message_binary) {
        return true;
    }
    ptrdiff_t checked = utf8_prefix(c->message + c->message_checked, c->message_len - c->message_checked);
    if (checked < 0) {
        frames_close(c, LWS_CLOSE_STATUS_INVALID_PAYLOAD, "invalid UTF-8");
        return false;
    }
    c->message_checked += (size_t)checked;
    return true;
}

int frames_receive(struct conn *c, const char *data, size_t len)
{
    if (c->client.dropped || c->close_code) {
        return 0;
    }
    bool last = lws_is_final_fragment(c->wsi) && lws_remaining_packet_payload(c->wsi) == 0;
    if (!c->message_since_ms) {
        c->message_since_ms = clock_ms();
        c->message_binary = lws_frame_is_binary(c->wsi) != 0;
    }
    if (!take_piece(c, data, len) || !last) {
        return 0;
    }
    if (c->message_binary) {
        frames_close(c, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "text messages only");
        return 0;
    }
    if (c->message_checked != c->message_len) {
        frames_close(c, LWS_CLOSE_STATUS_INVALID_PAYLOAD, "invalid UTF-8");
        return 0;
    }
    size_t message_len = c->message_len;
    c->message[message_len] = '\0';
    c->message_len = c->message_checked = 0;
    c->message_since_ms = 0;
    if (ws_message(&c->client, c->message, message_len, c->message_size)) {
        c->message = NULL;
        c->message_size = 0;
        return 0;
    }
    /* An idle connection holds no large buffer. */
    if (c->message_size > BUFFER_BYTES_MIN) {
        frames_free(c);
    }
    return 0;
}

int frames_peer_closes(struct conn *c, const char *data, size_t len)
{
    int code = len >= 2 ? (unsigned char)data[0] << 8 | (unsigned char)data[1] : 0;
    int error = len == 1 || code > CLOSE_CODE_MAX           ? LWS_CLOSE_STATUS_PROTOCOL_ERR
                : len > 2 && !utf8_valid(data + 2, len - 2) ? LWS_CLOSE_STATUS_INVALID_PAYLOAD
                                                            : 0;
    if (!error) {
        return 0;
    }
    lws_close_reason(c->wsi, (enum lws_close_status)error, NULL, 0);
    return -1;
}

/* frames.c - messages out of a WebSocket's frames: whole ones, of text, within the limit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/net_internal.h"

#define WS_TRY_AGAIN_LATER 1013 /* IANA's registry of close codes */

int frames_receive(struct conn *c, const char *data, size_t len)
{
    if (c->client.dropped || c->close_code) {
        return 0;
    }
    bool last = lws_is_final_fragment(c->wsi) && lws_remaining_packet_payload(c->wsi) == 0;
    if (c->message_len == 0 && lws_is_first_fragment(c->wsi)) {
        c->message_binary = lws_frame_is_binary(c->wsi) != 0;
    }
    size_t total;
    /* The rest of the frame is announced: a message that will be too large is refused before it is stored. */
    if (__builtin_add_overflow(c->message_len, len, &total) ||
        __builtin_add_overflow(total, lws_remaining_packet_payload(c->wsi), &total) || total > MESSAGE_BYTES_MAX) {
        c->message_len = 0;
        conn_close(c, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, "message too large");
        return 0;
    }
    struct api_error e;
    int rc = budget_grow(&c->net->api->budget, &c->message, &c->message_size, c->message_len + len + 1, &e);
    if (rc == -EDQUOT) {
        c->message_len = 0;
        conn_close(c, WS_TRY_AGAIN_LATER, "requests take all the memory that they may");
        return 0;
    }
    if (rc) {
        conn_drop(c);
        return 0;
    }
    if (len) {
        memcpy(c->message + c->message_len, data, len);
    }
    c->message_len += len;
    if (!last) {
        return 0;
    }
    c->message[c->message_len] = '\0';
    size_t message_len = c->message_len;
    c->message_len = 0;
    if (c->message_binary) {
        conn_close(c, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "text messages only");
    } else if (!utf8_valid(c->message, message_len)) {
        conn_close(c, LWS_CLOSE_STATUS_INVALID_PAYLOAD, "invalid UTF-8");
    } else {
        ws_message(&c->client, c->message, message_len);
    }
    /* An idle connection holds no large buffer. */
    if (c->message_size > BUFFER_BYTES_MIN) {
        budget_give(&c->net->api->budget, c->message_size);
        free(c->message);
        c->message = NULL;
        c->message_size = 0;
    }
    return 0;
}

/* head_fuzz.c - raw bytes as the head of a request: what the check takes has one meaning, however it comes in pieces,
 * and the head that the library is lent for an upgrade means the same to it.
 *
 * What is taken is written down again from what was understood, and must be understood the same. So is what the library
 * makes of its head: it is given one end of a pair of sockets, and must come to an upgrade and to nothing else.
 */
#include <libwebsockets.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    struct lws_context *context;
    struct lws_vhost *vhost;
    int established, others;
} lws;

static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    (void)wsi, (void)user, (void)in, (void)len;
    lws.established += reason == LWS_CALLBACK_ESTABLISHED;
    lws.others += reason == LWS_CALLBACK_HTTP || reason == LWS_CALLBACK_RECEIVE || reason == LWS_CALLBACK_HTTP_BODY;
    return 0;
}

static void start(void)
{
    static const struct lws_protocols protocols[] = {{.name = "convod", .callback = callback}, {0}};
    struct lws_context_creation_info info = {.port = CONTEXT_PORT_NO_LISTEN_SERVER,
                                             .protocols = protocols,
                                             .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS,
                                             .max_http_header_data2 = 1024};
    lws_set_log_level(0, NULL);
    lws.context = lws_create_context(&info);
    lws.vhost = lws.context ? lws_create_vhost(lws.context, &info) : NULL;
    if (!lws.vhost) {
        abort();
    }
}

static void lend(const struct head *h)
{
    char own[HEAD_WEBSOCKET_MAX];
    size_t n = head_websocket(h, head_lists(h, "Sec-WebSocket-Protocol", "convod"), own);
    int pair[2];
    if (n >= sizeof(own) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) {
        abort();
    }
    lws.established = lws.others = 0;
    struct lws *wsi = lws_adopt_socket_vhost_readbuf(lws.vhost, pair[0], own, n);
    if (!wsi || lws.established != 1 || lws.others) {
        abort(); /* understood otherwise */
    }
    close(pair[1]);
    lws_set_timeout(wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_SYNC);
}

static bool same(struct head_text a, struct head_text b)
{
    return a.len == b.len && memcmp(a.at, b.at, a.len) == 0;
}

/* What was understood, written plainly: the same is understood again. */
static void write_again(const struct head *h, const char *text, size_t len)
{
    char *again = malloc(2 * len + 64), *at = again;
    const char *line = memchr(text, ' ', len);
    const char *target = line + 1, *end = memchr(target, ' ', len - (size_t)(target - text));
    if (!again) {
        return;
    }
    const char *begin = text + (text[0] == '\r' ? 2 : 0);
    at += sprintf(at, "%.*s HTTP/1.%d\r\n", (int)(end - begin), begin, h->http10 ? 0 : 1);
    for (size_t i = 0; i < h->n_fields; i++) {
        const struct head_field *f = &h->fields[i];
        if (memchr(f->value.at, '\n', f->value.len) || memchr(f->value.at, '\r', f->value.len)) {
            abort();
        }
        at += sprintf(at, "%.*s:%.*s\r\n", (int)f->name.len, f->name.at, (int)f->value.len, f->value.at);
    }
    at += sprintf(at, "\r\n");
    struct head other;
    struct api_error e = {0};
    size_t n = (size_t)(at - again);
    if (head_end(again, n, 0, &e) != (int)n || head_parse(again, n, &other, &e) || other.method != h->method ||
        strcmp(other.path, h->path) != 0 || strcmp(other.host, h->host) != 0 || other.length != h->length ||
        other.websocket != h->websocket || other.n_fields != h->n_fields || !same(other.query, h->query)) {
        abort();
    }
    for (size_t i = 0; i < h->n_fields; i++) {
        if (!same(other.fields[i].name, h->fields[i].name) || !same(other.fields[i].value, h->fields[i].value)) {
            abort();
        }
    }
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!lws.context) {
        start();
    }
    char *text = malloc(size + 1);
    if (!text || size > 2 * HEAD_BYTES_MAX) {
        free(text);
        return 0;
    }
    memcpy(text, data, size);
    struct api_error e = {0};
    int end = head_end(text, size, 0, &e), found = 0;
    if (end < 0 && !e.status) {
        abort();
    }
    for (size_t n = 1, from = 0; n <= size && !found; from = n, n += 1 + data[n - 1] % 7) {
        found = head_end(text, n, from, &e);
    }
    if (found && (found < 0) != (end < 0) && found != end) {
        abort();
    }
    static struct head h;
    if (end > 0) {
        e = (struct api_error){0};
        if (head_parse(text, (size_t)end, &h, &e)) {
            if (!e.status || !e.message[0]) {
                abort();
            }
        } else {
            if ((!h.http10 && !h.host[0]) || h.path[0] == '\0' || strstr(h.path, "/../") || h.length < -1 ||
                (h.host[0] && !head_authority_valid(h.host, strlen(h.host)))) {
                abort();
            }
            struct head_text query = h.query;
            char pair[64];
            while (head_query_next(&query, pair, sizeof(pair)) != -1) {
            }
            write_again(&h, text, (size_t)end);
            if (h.websocket) {
                lend(&h);
            }
        }
    }
    free(text);
    return 0;
}

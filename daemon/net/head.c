/* head.c - the request head, to RFC 9112 (message syntax), RFC 9110 (fields) and RFC 3986 (targets and hosts).
 *
 * No leniency: lines end with CR LF, a name stands directly before its colon, no line is folded, nothing that frames
 * the message may stand twice. So whoever stands in front of us and we cannot disagree on where a request ends or what
 * it asks for. Two things that RFC 9112 wants of a server are kept: an empty line before the request line is passed
 * over, and a target may be a whole URL.
 */
#include "daemon/net/head.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "daemon/daemon.h"

#define WEBSOCKET_KEY_BYTES 16
#define WEBSOCKET_KEY_LEN   24 /* in base64 */

static int refuse(struct api_error *e, int status, const char *what)
{
    api_error_set(e, status,
                  status == 431   ? "headers_too_large"
                  : status == 426 ? "websocket_version"
                  : status == 411 ? "length_required"
                                  : "invalid_request",
                  NULL, "%s", what);
    return -1;
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* tchar of RFC 9110, 5.6.2. */
static bool is_token(char c)
{
    return is_alnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* pchar of RFC 3986 without the percent sign. */
static bool is_path(char c)
{
    return is_alnum(c) || (c && strchr("-._~!$&'()*+,;=:@/", c));
}

static bool is(struct head_text t, const char *word)
{
    return t.len == strlen(word) && strncasecmp(t.at, word, t.len) == 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int head_end(const char *text, size_t len, size_t from, struct api_error *e)
{
    size_t begin = len >= 2 && memcmp(text, "\r\n", 2) == 0 ? 2 : 0; /* one empty line before the request line */
    for (size_t i = from > begin ? from : begin; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n' && (i == begin || text[i - 1] != '\r')) {
            return refuse(e, 400, "A line of the head ends with LF alone; lines end with CR LF.");
        }
        if (c != '\n' && i > begin && text[i - 1] == '\r') {
            return refuse(e, 400, "There is a CR within a line of the head.");
        }
        if ((c < ' ' && c != '\r' && c != '\n' && c != '\t') || c == 0x7f) {
            return refuse(e, 400, "There is a control character in the head.");
        }
        if (c == '\n' && i == begin + 1) {
            return refuse(e, 400, "There is no request line.");
        }
        if (c == '\n' && i >= begin + 3 && memcmp(text + i - 3, "\r\n\r\n", 4) == 0) {
            return (int)i + 1;
        }
    }
    return 0;
}

/* The text up to the next `end` (which is passed over), or all that is left. */
static struct head_text until(struct head_text *rest, char end)
{
    const char *at = memchr(rest->at, end, rest->len);
    struct head_text t = {rest->at, at ? (size_t)(at - rest->at) : rest->len};
    size_t passed = t.len + (at ? 1 : 0);
    rest->at += passed;
    rest->len -= passed;
    return t;
}

static struct head_text trim(struct head_text t)
{
    while (t.len > 0 && (*t.at == ' ' || *t.at == '\t')) {
        t.at++;
        t.len--;
    }
    while (t.len > 0 && (t.at[t.len - 1] == ' ' || t.at[t.len - 1] == '\t')) {
        t.len--;
    }
    return t;
}

/* ---- hosts --------------------------------------------------------------------------------------------------------
 */

bool head_authority_valid(const char *text, size_t len)
{
    size_t n = 0;
    if (len > 0 && *text == '[') {
        const char *end = memchr(text, ']', len);
        char v6[INET6_ADDRSTRLEN];
        unsigned char binary[16];
        if (!end || (size_t)(end - text) - 1 >= sizeof(v6)) {
            return false;
        }
        n = (size_t)(end - text) + 1;
        memcpy(v6, text + 1, n - 2);
        v6[n - 2] = '\0';
        if (inet_pton(AF_INET6, v6, binary) != 1) {
            return false;
        }
    } else {
        while (n < len && (is_alnum(text[n]) || text[n] == '-' || text[n] == '.' || text[n] == '_')) {
            n++;
        }
    }
    if (n == 0 || len >= HEAD_HOST_MAX) {
        return false;
    }
    if (n == len) {
        return true;
    }
    size_t digits = len - n - 1;
    int64_t port = digits > 0 && digits <= 5 ? text_digits(text + n + 1, digits) : 0;
    return text[n] == ':' && (digits == 0 || (port > 0 && port <= 65535));
}

/* ---- the request line ---------------------------------------------------------------------------------------------
 */

static enum route_method method_of(struct head_text t)
{
    static const char *const names[] = {[METHOD_GET] = "GET",
                                        [METHOD_POST] = "POST",
                                        [METHOD_DELETE] = "DELETE",
                                        [METHOD_OPTIONS] = "OPTIONS",
                                        [METHOD_HEAD] = "HEAD"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (t.len == strlen(names[i]) && memcmp(t.at, names[i], t.len) == 0) {
            return (enum route_method)i;
        }
    }
    return METHOD_OTHER;
}

/* Decodes the path. What would be another path to some reader is refused: a slash that is encoded, and segments of
 * dots. */
static int read_path(struct head_text t, char path[ROUTE_PATH_MAX], struct api_error *e)
{
    size_t n = 0;
    for (size_t i = 0; i < t.len; i++) {
        char c = t.at[i];
        if (c == '%') {
            int high = i + 2 < t.len ? hex(t.at[i + 1]) : -1, low = i + 2 < t.len ? hex(t.at[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return refuse(e, 400, "The path has a percent sign without two hexadecimal digits.");
            }
            c = (char)(high << 4 | low);
            if (c == '/' || c == '\\' || (unsigned char)c < ' ' || c == 0x7f) {
                return refuse(e, 400, "The path has an encoded slash or control character.");
            }
            i += 2;
        } else if (!is_path(c)) {
            return refuse(e, 400, "The path has a character that must be percent-encoded.");
        }
        if (n == ROUTE_PATH_MAX - 1) {
            return refuse(e, 414, "The path is too long.");
        }
        path[n++] = c;
    }
    path[n] = '\0';
    for (const char *s = path; s; s = strchr(s, '/')) {
        s += *s == '/';
        size_t len = strcspn(s, "/");
        if ((len == 1 && s[0] == '.') || (len == 2 && s[0] == '.' && s[1] == '.')) {
            return refuse(e, 400, "The path has a segment of dots.");
        }
    }
    return utf8_valid(path, n) ? 0 : refuse(e, 400, "The path is not valid UTF-8.");
}

/* origin-form, absolute-form (whose authority goes to *authority) or "*". */
static int read_target(struct head_text t, struct head *h, struct head_text *authority, struct api_error *e)
{
    if (t.len > HEAD_TARGET_BYTES_MAX) {
        return refuse(e, 414, "The target is too long.");
    }
    static const char scheme[] = "http://";
    if (t.len >= sizeof(scheme) - 1 && strncasecmp(t.at, scheme, sizeof(scheme) - 1) == 0) {
        t.at += sizeof(scheme) - 1;
        t.len -= sizeof(scheme) - 1;
        size_t n = 0;
        while (n < t.len && t.at[n] != '/' && t.at[n] != '?') {
            n++;
        }
        *authority = (struct head_text){t.at, n};
        t.at += n;
        t.len -= n;
        if (!head_authority_valid(authority->at, authority->len)) {
            return refuse(e, 400, "The target is malformed.");
        }
        if (t.len == 0 || *t.at == '?') {
            snprintf(h->path, sizeof(h->path), "/");
        }
    } else if (t.len == 1 && *t.at == '*' && h->method == METHOD_OPTIONS) {
        snprintf(h->path, sizeof(h->path), "*");
        return 0;
    } else if (t.len == 0 || *t.at != '/') {
        return refuse(e, 400, "The target must begin with a slash.");
    }
    struct head_text path = until(&t, '?');
    h->query = t;
    for (size_t i = 0; i < t.len; i++) {
        bool escape = t.at[i] == '%' && i + 2 < t.len && hex(t.at[i + 1]) >= 0 && hex(t.at[i + 2]) >= 0;
        if (!escape && t.at[i] != '?' && !is_path(t.at[i])) {
            return refuse(e, 400, "The query has a character that must be percent-encoded.");
        }
        i += escape ? 2 : 0;
    }
    return path.len ? read_path(path, h->path, e) : 0;
}

static int read_request_line(struct head_text line, struct head *h, struct head_text *authority, struct api_error *e)
{
    struct head_text method = until(&line, ' '), target = until(&line, ' ');
    if (method.len == 0) {
        return refuse(e, 400, "The request line has no method.");
    }
    for (size_t i = 0; i < method.len; i++) {
        if (!is_token(method.at[i])) {
            return refuse(e, 400, "The request line's method is not a token.");
        }
    }
    h->method = method_of(method);
    h->http10 = line.len == 8 && memcmp(line.at, "HTTP/1.0", 8) == 0;
    if (!h->http10 && !(line.len == 8 && memcmp(line.at, "HTTP/1.1", 8) == 0)) {
        bool other = line.len == 8 && memcmp(line.at, "HTTP/", 5) == 0 && line.at[5] >= '0' && line.at[5] <= '9' &&
                     line.at[6] == '.' && line.at[7] >= '0' && line.at[7] <= '9';
        return refuse(e, other ? 505 : 400,
                      other ? "Only HTTP/1.1 and HTTP/1.0 are spoken here."
                            : "The request line is not METHOD TARGET HTTP/1.1.");
    }
    return read_target(target, h, authority, e);
}

/* ---- fields -------------------------------------------------------------------------------------------------------
 */

int head_get(const struct head *h, const char *name, struct head_text *value)
{
    int found = 0;
    *value = (struct head_text){"", 0};
    for (size_t i = 0; i < h->n_fields; i++) {
        if (is(h->fields[i].name, name)) {
            if (found) {
                return -1;
            }
            found = 1;
            *value = h->fields[i].value;
        }
    }
    return found;
}

bool head_lists(const struct head *h, const char *name, const char *token)
{
    for (size_t i = 0; i < h->n_fields; i++) {
        struct head_text rest = h->fields[i].value;
        while (is(h->fields[i].name, name) && rest.len > 0) {
            if (is(trim(until(&rest, ',')), token)) {
                return true;
            }
        }
    }
    return false;
}

static int read_fields(struct head_text rest, struct head *h, struct api_error *e)
{
    while (rest.len > 0) {
        struct head_text line = until(&rest, '\n');
        line.len -= line.len > 0; /* the CR */
        if (h->n_fields == HEAD_FIELDS_MAX) {
            return refuse(e, 431, "There are too many header fields.");
        }
        if (line.len > 0 && (*line.at == ' ' || *line.at == '\t')) {
            return refuse(e, 400, "A header field is folded over two lines.");
        }
        if (!memchr(line.at, ':', line.len)) {
            return refuse(e, 400, "A header field has no colon.");
        }
        struct head_text name = until(&line, ':');
        bool token = name.len > 0;
        for (size_t i = 0; i < name.len; i++) {
            token &= is_token(name.at[i]);
        }
        if (!token) {
            return refuse(e, 400, "A header field's name is not a token.");
        }
        h->fields[h->n_fields++] = (struct head_field){name, trim(line)};
    }
    return 0;
}

static int read_host(struct head *h, struct head_text authority, struct api_error *e)
{
    struct head_text host;
    int n = head_get(h, "Host", &host);
    if (n < 0) {
        return refuse(e, 400, "There is more than one Host.");
    }
    if (n == 0 && !h->http10) {
        return refuse(e, 400, "There is no Host.");
    }
    if (n > 0 && !head_authority_valid(host.at, host.len)) {
        return refuse(e, 400, "The Host is malformed.");
    }
    host = authority.len ? authority : host;
    memcpy(h->host, host.at, host.len);
    h->host[host.len] = '\0';
    return 0;
}

static int read_length(struct head *h, struct api_error *e)
{
    struct head_text value;
    for (size_t i = 0; i < h->n_fields; i++) {
        if (is(h->fields[i].name, "Transfer-Encoding")) {
            return refuse(e, h->http10 ? 400 : 411, "Send a Content-Length; Transfer-Encoding is not accepted.");
        }
    }
    int n = head_get(h, "Content-Length", &value);
    h->length = n == 1 ? text_digits(value.at, value.len) : -1;
    return n < 0 || (n == 1 && h->length < 0) ? refuse(e, 400, "The Content-Length is malformed.") : 0;
}

/* A body is read as it was sent (RFC 9110, 8.4). */
static int read_coding(const struct head *h, struct api_error *e)
{
    struct head_text value;
    int n = head_get(h, "Content-Encoding", &value);
    return n == 0 || (n == 1 && is(value, "identity")) ? 0
                                                       : refuse(e, 415, "Send the body without a Content-Encoding.");
}

static int read_expect(struct head *h, struct api_error *e)
{
    struct head_text value;
    int n = head_get(h, "Expect", &value);
    if (n != 0 && !(n == 1 && is(value, "100-continue"))) {
        return refuse(e, 417, "Only Expect: 100-continue is understood.");
    }
    h->expects_continue = n == 1 && !h->http10;
    return 0;
}

/* 16 bytes in base64, in their one spelling. */
static bool key_valid(struct head_text key)
{
    unsigned char bytes[WEBSOCKET_KEY_BYTES + 4], again[WEBSOCKET_KEY_LEN + 1];
    return key.len == WEBSOCKET_KEY_LEN && memcmp(key.at + WEBSOCKET_KEY_LEN - 2, "==", 2) == 0 &&
           EVP_DecodeBlock(bytes, (const unsigned char *)key.at, WEBSOCKET_KEY_LEN) == WEBSOCKET_KEY_BYTES + 2 &&
           EVP_EncodeBlock(again, bytes, WEBSOCKET_KEY_BYTES) == WEBSOCKET_KEY_LEN &&
           memcmp(again, key.at, WEBSOCKET_KEY_LEN) == 0;
}

static int read_upgrade(struct head *h, struct api_error *e)
{
    struct head_text key, version;
    if (!head_lists(h, "Upgrade", "websocket")) {
        return 0; /* another protocol may be offered: it is not taken */
    }
    if (h->method != METHOD_GET || h->http10) {
        return refuse(e, 400, "A WebSocket begins with GET and HTTP/1.1.");
    }
    if (!head_lists(h, "Connection", "upgrade")) {
        return refuse(e, 400, "An upgrade needs Connection: Upgrade.");
    }
    if (h->length > 0) {
        return refuse(e, 400, "An upgrade has no body.");
    }
    if (head_get(h, "Sec-WebSocket-Version", &version) != 1 || !is(version, "13")) {
        return refuse(e, 426, "Only WebSocket version 13 is spoken here.");
    }
    if (head_get(h, "Sec-WebSocket-Key", &key) != 1 || !key_valid(key)) {
        return refuse(e, 400, "Sec-WebSocket-Key is not 16 bytes in base64.");
    }
    h->websocket = true;
    return 0;
}

size_t head_websocket(const struct head *h, bool protocol, char out[HEAD_WEBSOCKET_MAX])
{
    struct head_text key;
    head_get(h, "Sec-WebSocket-Key", &key);
    int n = snprintf(out, HEAD_WEBSOCKET_MAX,
                     "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %.*s\r\n%s\r\n",
                     (int)key.len, key.at, protocol ? "Sec-WebSocket-Protocol: convod\r\n" : "");
    return (size_t)n;
}

int head_parse(const char *text, size_t len, struct head *out, struct api_error *e)
{
    struct head_text rest = {text, len}, authority = {"", 0};
    memset(out, 0, sizeof(*out));
    out->length = -1;
    out->query = (struct head_text){"", 0};
    if (rest.len >= 2 && memcmp(rest.at, "\r\n", 2) == 0) {
        rest.at += 2;
        rest.len -= 2;
    }
    if (rest.len < 4 || memcmp(rest.at + rest.len - 4, "\r\n\r\n", 4) != 0) {
        return refuse(e, 400, "The head is not whole.");
    }
    rest.len -= 2; /* the empty line at the end */
    struct head_text line = until(&rest, '\n');
    line.len -= line.len > 0;
    return read_request_line(line, out, &authority, e) || read_fields(rest, out, e) || read_length(out, e) ||
                   read_coding(out, e) || read_host(out, authority, e) || read_expect(out, e) || read_upgrade(out, e)
               ? -1
               : 0;
}

int head_query_next(struct head_text *query, char *out, size_t size)
{
    struct head_text pair = {"", 0};
    while (pair.len == 0) {
        if (query->len == 0) {
            return -1;
        }
        pair = until(query, '&');
    }
    size_t n = 0;
    for (size_t i = 0; i < pair.len; i++, n++) {
        if (n + 1 >= size) {
            return -2;
        }
        out[n] = pair.at[i] == '+' ? ' ' : pair.at[i];
        if (pair.at[i] == '%') {
            out[n] = (char)(hex(pair.at[i + 1]) << 4 | hex(pair.at[i + 2]));
            i += 2;
        }
    }
    out[n] = '\0';
    return (int)n;
}

/* head_test.c - request heads: what has one meaning, and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/harness.h"

#include "daemon/net/head.h"

#define LINE "GET /v1/models HTTP/1.1\r\n"
#define HOST "Host: localhost\r\n"
#define WS                                                                                                             \
    "GET /v1/responses HTTP/1.1\r\n" HOST "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"                  \
    "Sec-WebSocket-Version: 13\r\n"
#define KEY "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

/* The status with which a head is refused, 0 = it is not. */
static int check(const char *text, struct head *h)
{
    struct api_error e = {0};
    size_t len = strlen(text);
    int end = head_end(text, len, 0, &e);
    if (end < 0 || (end > 0 && head_parse(text, (size_t)end, h, &e))) {
        assert_true(e.status >= 400 && e.message[0]);
        return e.status;
    }
    if (end != (int)len) {
        fail_msg("%s ends at %d", text, end);
    }
    return 0;
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {LINE HOST "\r\n", 0},
        {"\r\n" LINE HOST "\r\n", 0},
        {"GET /v1/models HTTP/1.0\r\n\r\n", 0},
        {LINE HOST "X:\r\nY: \t a b \xff\t\r\n\r\n", 0},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 0},
        {"GET /v1/models?limit=1&q=a%20b HTTP/1.1\r\n" HOST "\r\n", 0},
        /* lines */
        {"\r\n\r\n" LINE HOST "\r\n", 400},
        {"GET /v1/models HTTP/1.1\n" HOST "\n", 400},
        {LINE "Host: localhost\n\r\n", 400},
        {LINE HOST "X: a\rb\r\n\r\n", 400},
        {LINE HOST "X: a\x01\r\n\r\n", 400},
        {LINE HOST "X: a\x7f\r\n\r\n", 400},
        {LINE HOST " folded: yes\r\n\r\n", 400},
        {LINE " " HOST "\r\n", 400},
        {LINE HOST "\tX: a\r\n\r\n", 400},
        {LINE HOST "X : a\r\n\r\n", 400},
        {LINE HOST "X\t: a\r\n\r\n", 400},
        {LINE HOST ": a\r\n\r\n", 400},
        {LINE HOST "X(y): a\r\n\r\n", 400},
        {LINE HOST "X\xc3\xa9: a\r\n\r\n", 400},
        {LINE HOST "nothing\r\n\r\n", 400},
        /* the request line */
        {"GET  /v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models  HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models HTTP/1.1 \r\n" HOST "\r\n", 400},
        {" GET /v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET\t/v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"G(T /v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models\r\n" HOST "\r\n", 400},
        {"GET /v1/models http/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models HTTP/1.10\r\n" HOST "\r\n", 400},
        {"GET /v1/models HTTP/1.\r\n" HOST "\r\n", 400},
        {"GET /v1/models HTTP/1.2\r\n" HOST "\r\n", 505},
        {"GET /v1/models HTTP/2.0\r\n" HOST "\r\n", 505},
        {"GET /v1/models HTTP/0.9\r\n" HOST "\r\n", 505},
        {"GET /v1/models ICAP/1.0\r\n" HOST "\r\n", 400},
        /* targets */
        {"GET v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET * HTTP/1.1\r\n" HOST "\r\n", 400},
        {"CONNECT localhost:80 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http:///v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://a@localhost/v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET ftp://localhost/v1/models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%2fmodels HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%2Fmodels HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%5cmodels HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%00 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%0a HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%ff HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%zz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1% HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1%4 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/../ready HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/%2e%2E/ready HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /. HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models#x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1\\models HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /a\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=<b> HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=%4 HTTP/1.1\r\n" HOST "\r\n", 400},
        /* what RFC 3986 has percent-encoded, and browsers leave as it is */
        {"GET /v1/models?a=[b] HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a={b} HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=b|c HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=b^c HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=`b` HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=b\\c HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /v1/models?a=%5Bb%5D%7C HTTP/1.1\r\n" HOST "\r\n", 0},
        /* bodies in another form */
        {LINE HOST "Content-Encoding: identity\r\n\r\n", 0},
        {LINE HOST "Content-Encoding: gzip\r\n\r\n", 415},
        {LINE HOST "Content-Encoding: identity, gzip\r\n\r\n", 415},
        {LINE HOST "Content-Encoding: identity\r\nContent-Encoding: br\r\n\r\n", 415},
        /* hosts */
        {LINE "\r\n", 400},
        {LINE HOST HOST "\r\n", 400},
        {LINE "Host:\r\n\r\n", 400},
        {LINE "Host: localhost:\r\n\r\n", 0},
        {LINE "Host: localhost:65535\r\n\r\n", 0},
        {LINE "Host: [::1]:80\r\n\r\n", 0},
        {LINE "Host: localhost:65536\r\n\r\n", 400},
        {LINE "Host: localhost:0\r\n\r\n", 400},
        {LINE "Host: localhost:123456\r\n\r\n", 400},
        {LINE "Host: localhost:-1\r\n\r\n", 400},
        {LINE "Host: localhost:8x\r\n\r\n", 400},
        {LINE "Host: localhost:80:80\r\n\r\n", 400},
        {LINE "Host: localhost/\r\n\r\n", 400},
        {LINE "Host: localhost:80@evil.net\r\n\r\n", 400},
        {LINE "Host: a@localhost\r\n\r\n", 400},
        {LINE "Host: localhost evil.net\r\n\r\n", 400},
        {LINE "Host: localhost,evil.net\r\n\r\n", 400},
        {LINE "Host: [::1\r\n\r\n", 400},
        {LINE "Host: [::1]x\r\n\r\n", 400},
        {LINE "Host: [localhost]\r\n\r\n", 400},
        {LINE "Host: ::1\r\n\r\n", 400},
        /* lengths */
        {LINE HOST "Content-Length: 5\r\n\r\n", 0},
        {LINE HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
        {LINE HOST "Content-Length: 5, 5\r\n\r\n", 400},
        {LINE HOST "Content-Length:\r\n\r\n", 400},
        {LINE HOST "Content-Length: +5\r\n\r\n", 400},
        {LINE HOST "Transfer-Encoding: chunked\r\n\r\n", 411},
        {"GET / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", 400},
        {LINE HOST "Expect: 100-continue\r\n\r\n", 0},
        {LINE HOST "Expect: tea\r\n\r\n", 417},
        /* WebSockets */
        {WS KEY "\r\n", 0},
        {WS "\r\n", 400},
        {WS KEY KEY "\r\n", 400},
        {WS "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=\r\n\r\n", 400},
        {WS "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZR==\r\n\r\n", 400},
        {WS "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQAA\r\n\r\n", 400},
        {WS "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==A\r\n\r\n", 400},
        {WS "Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!==\r\n\r\n", 400},
        {WS KEY "Content-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Upgrade: websocket\r\nConnection: Upgrade\r\n" KEY "\r\n", 400},
        {"GET / HTTP/1.0\r\n" HOST "Upgrade: websocket\r\nConnection: Upgrade\r\n" KEY "\r\n", 400},
        {LINE HOST "Upgrade: websocket\r\n" KEY "Sec-WebSocket-Version: 13\r\n\r\n", 400},
        {LINE HOST "Upgrade: websocket\r\nConnection: Upgrade\r\n" KEY "Sec-WebSocket-Version: 8\r\n\r\n", 426},
        {LINE HOST "Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct head h;
        int status = check(cases[i].text, &h);
        if (status != cases[i].status) {
            fail_msg("case %zu: %d instead of %d: %s", i, status, cases[i].status, cases[i].text);
        }
    }
}

static void what_is_understood(void **state)
{
    (void)state;
    struct head h;
    struct head_text value;
    assert_int_equal(check("GET /v1/%6dodels?a=b%2Fc&d=+%C3%A9&&e HTTP/1.1\r\nhOST: Box.lan:8\r\nAccept: x\r\n"
                           "X-Auth: t\r\nContent-Length:\t5 \r\naccept:y\r\n\r\n",
                           &h),
                     0);
    assert_int_equal(h.method, METHOD_GET);
    assert_string_equal(h.path, "/v1/models");
    assert_string_equal(h.host, "Box.lan:8");
    assert_int_equal(h.length, 5);
    assert_false(h.http10 || h.websocket || h.expects_continue);
    char pair[16];
    assert_int_equal(head_query_next(&h.query, pair, sizeof(pair)), 5);
    assert_string_equal(pair, "a=b/c");
    assert_int_equal(head_query_next(&h.query, pair, sizeof(pair)), 5);
    assert_string_equal(pair, "d= \xc3\xa9");
    assert_int_equal(head_query_next(&h.query, pair, sizeof(pair)), 1);
    assert_int_equal(head_query_next(&h.query, pair, sizeof(pair)), -1);
    assert_int_equal(head_get(&h, "X-AUTH", &value), 1);
    assert_int_equal(value.len, 1);
    assert_int_equal(head_get(&h, "X-Aut", &value), 0);
    assert_int_equal(head_get(&h, "Accept", &value), -1);
    assert_true(head_lists(&h, "Accept", "X") && head_lists(&h, "Accept", "y") && !head_lists(&h, "Accept", "z"));
    assert_int_equal(check("GET http://box.lan/?x HTTP/1.1\r\n" HOST "\r\n", &h), 0);
    assert_string_equal(h.path, "/");
    assert_string_equal(h.host, "box.lan");
    assert_int_equal(check("DELETE HTTP://[::1]:1/a HTTP/1.1\r\n" HOST "\r\n", &h), 0);
    assert_string_equal(h.path, "/a");
    assert_int_equal(h.method, METHOD_DELETE);
    assert_int_equal(check(WS KEY "\r\n", &h), 0);
    assert_true(h.websocket);
    char own[HEAD_WEBSOCKET_MAX];
    size_t n = head_websocket(&h, true, own);
    struct api_error e;
    assert_int_equal(head_end(own, n, 0, &e), n);
    assert_int_equal(head_parse(own, n, &h, &e), 0);
    assert_true(h.websocket && head_lists(&h, "Sec-WebSocket-Protocol", "convod"));
    assert_string_equal(h.path, "/v1/responses");
    assert_int_equal(check("BREW / HTTP/1.1\r\n" HOST "\r\n", &h), 0);
    assert_int_equal(h.method, METHOD_OTHER);
}

/* However the bytes come, the end is the same. */
static void pieces(void **state)
{
    (void)state;
    static const char *const texts[] = {LINE HOST "\r\nbody", "\r\n" LINE HOST "X: y\r\n\r\n\r\n",
                                        LINE "Host\n: x\r\n\r\n", "\r\n\r\n", "\rX"};
    for (size_t t = 0; t < sizeof(texts) / sizeof(*texts); t++) {
        struct api_error e = {0};
        int whole = head_end(texts[t], strlen(texts[t]), 0, &e), found = 0;
        for (size_t n = 1; n <= strlen(texts[t]) && found == 0; n++) {
            found = head_end(texts[t], n, n - 1, &e);
        }
        assert_int_equal(whole, found);
    }
}

static void limits_one_past(void **state)
{
    (void)state;
    struct head h;
    char text[HEAD_BYTES_MAX], *at;
    for (int n = HEAD_FIELDS_MAX; n <= HEAD_FIELDS_MAX + 1; n++) {
        at = text + sprintf(text, LINE HOST);
        for (int i = 1; i < n; i++) {
            at += sprintf(at, "X: y\r\n");
        }
        strcpy(at, "\r\n");
        assert_int_equal(check(text, &h), n == HEAD_FIELDS_MAX ? 0 : 431);
    }
    for (int n = ROUTE_PATH_MAX - 1; n <= ROUTE_PATH_MAX; n++) {
        at = text + sprintf(text, "GET /");
        memset(at, 'a', (size_t)n - 1);
        strcpy(at + n - 1, " HTTP/1.1\r\n" HOST "\r\n");
        assert_int_equal(check(text, &h), n < ROUTE_PATH_MAX ? 0 : 414);
    }
    for (int n = HEAD_TARGET_BYTES_MAX; n <= HEAD_TARGET_BYTES_MAX + 1; n++) {
        at = text + sprintf(text, "GET /?");
        memset(at, 'a', (size_t)n - 2);
        strcpy(at + n - 2, " HTTP/1.1\r\n" HOST "\r\n");
        assert_int_equal(check(text, &h), n == HEAD_TARGET_BYTES_MAX ? 0 : 414);
    }
    for (int n = HEAD_HOST_MAX - 1; n <= HEAD_HOST_MAX; n++) {
        at = text + sprintf(text, LINE "Host: ");
        memset(at, 'a', (size_t)n);
        strcpy(at + n, "\r\n\r\n");
        assert_int_equal(check(text, &h), n < HEAD_HOST_MAX ? 0 : 400);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(what_is_understood),
        cmocka_unit_test(pieces),
        cmocka_unit_test(limits_one_past),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

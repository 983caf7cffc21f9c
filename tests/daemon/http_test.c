/* http_test.c - framing and access over plain sockets: what a lenient parser lets through must not reach a handler, and
 * no request may run twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libwebsockets.h>

#include "tests/daemon/harness.h"

/* The status of raw bytes, and whether the connection is closed after it. */
static int raw(const struct harness *h, const char *text, bool *closes)
{
    int fd = dial(h);
    send_text(fd, text);
    struct reply r = read_reply(fd);
    int status = r.status;
    if (closes) {
        *closes = closed(fd);
    }
    reply_free(&r);
    close(fd);
    return status;
}

#define POST "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"

static void odd_framing_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello", 411},
        {POST "Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nhello", 411},
        {POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
        {POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400},
        {POST "Content-Length: -1\r\n\r\n", 400},
        {POST "Content-Length: +5\r\n\r\nhello", 400},
        {POST "Content-Length: 5, 5\r\n\r\nhello", 400},
        {POST "Content-Length: 0x5\r\n\r\nhello", 400},
        {POST "Content-Length: 5 6\r\n\r\nhello", 400},
        {POST "Content-Length: 99999999999999999999\r\n\r\nhello", 400},
        {POST "Content-Length: 1e1\r\n\r\nhello", 400},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        bool closes = false;
        int status = raw(h, cases[i].text, &closes);
        if (status != cases[i].status || !closes) {
            fail_msg("case %zu: status %d, closes %d", i, status, closes);
        }
    }
    assert_int_equal(fake_turns_started(), 0);
    harness_stop(h);
}

/* libwebsockets from 4.3 on closes a connection on which a request comes before the last one was answered. */
static void skip_where_pipelining_closes(void)
{
    if (LWS_LIBRARY_VERSION_NUMBER >= 4003000) {
        print_message("skip: this libwebsockets ends a connection with pipelined requests\n");
        skip();
    }
}

/* Nothing arrives, and the server does not spin meanwhile. */
static void assert_idle(int fd)
{
    clock_t before = clock();
    assert_true(quiet(fd, 400));
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.2);
}

/* Bytes behind a body. How the library passes them on differs from version to version: the connection ends, before or
 * after the turn began, or they are swallowed and the turn is answered. It neither spins nor runs another turn. */
static void bytes_behind_a_body(int fd)
{
    clock_t before = clock();
    bool swallowed = quiet(fd, 400);
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.2);
    if (swallowed) {
        fake_release(1);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    } else {
        assert_true(closed(fd));
        fake_wait_cancelled(fake_turns_started());
    }
    close(fd);
    assert_true(fake_turns_started() <= 1);
    fake_reset();
}

static void one_request_one_turn(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    /* Bytes after the body arrive in the same packet: one turn, which ends as it does when a client goes away. */
    static const char body[] = "{\"input\":\"wait\"}";
    char text[1024];
    snprintf(text, sizeof(text), POST "Content-Length: %zu\r\n\r\n%s" POST "Content-Length: %zu\r\n\r\n%s",
             sizeof(body) - 1, body, sizeof(body) - 1, body);
    int fd = dial(h);
    send_text(fd, text);
    bytes_behind_a_body(fd);
    /* Bytes that come later, while the answer is worked on. */
    fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL, body);
    fake_wait_started(1);
    assert_idle(fd);
    send_text(fd, "x");
    bytes_behind_a_body(fd);
    harness_stop(h);
}

/* Fails the test when the connection ends first. */
static void read_past(int fd, const char *word)
{
    char window[64] = "";
    size_t n = strlen(word);
    while (memcmp(window, word, n) != 0) {
        memmove(window, window + 1, n - 1);
        window[n - 1] = (char)read_byte(fd);
    }
}

/* Bytes behind a GET that is streamed make the library spin; such a stream is dropped, and not one that was there. */
static void bytes_behind_a_stream(void **state)
{
    (void)state;
    skip_where_pipelining_closes();
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h), before = dial(h), get = dial(h), idle = dial(h);
    ws_create(fd, "hold a b", NULL);
    cJSON *e = ws_read_json(fd);
    char text[512];
    snprintf(text, sizeof(text), "/v1/responses/%s?stream=true", str(e, "response.id"));
    send_request(before, "GET", text, NULL, NULL);
    read_past(before, "event: response.created");
    snprintf(text, sizeof(text),
             "GET /v1/responses/%s?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: "
             "localhost\r\n\r\n",
             str(e, "response.id"));
    cJSON_Delete(e);
    send_text(get, text);
    char *all = read_all(get);
    assert_non_null(strstr(all, "response.created"));
    free(all);
    close(get);
    assert_idle(idle);
    close(idle);
    fake_release(1);
    read_past(before, "event: response.completed");
    close(before);
    e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    close(fd);
    harness_stop(h);
}

static void pipelined_gets_are_answered_in_order(void **state)
{
    (void)state;
    skip_where_pipelining_closes();
    struct harness *h = harness_start(NULL);
    int fd = dial(h);
    send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/conversations/conv_x HTTP/1.1\r\nHost: "
                  "localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
    static const int expected[] = {200, 404, 200};
    for (int i = 0; i < 3; i++) {
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, expected[i]);
        reply_free(&r);
    }
    close(fd);
    harness_stop(h);
}

/* A streamed GET leaves the connection in a state in which the library reads nothing. */
static void idle_streams_cost_nothing(void **state)
{
    (void)state;
    skip_where_pipelining_closes();
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h), get = dial(h);
    ws_create(fd, "hold a b", NULL);
    cJSON *e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    e = NULL;
    struct reply r = call(h, "GET", "/v1/convod/status", NULL, NULL);
    assert_int_equal(num(r.json, "queue.running"), 1);
    reply_free(&r);
    ws_send(fd, "{\"type\":\"response.cancel\",\"response_id\":\"resp_nothing\"}");
    e = ws_read_json(fd);
    assert_string_equal(str(e, "error.code"), "response_not_found");
    cJSON_Delete(e);
    close(fd);
    fake_wait_cancelled(1);
    /* The same through GET, with bytes behind the request and a peer that goes away. */
    fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL,
                 "{\"input\":\"hold a b\",\"stream\":true,\"convod\":{\"on_disconnect\":\"cancel\"}}");
    char some[4096] = "";
    for (size_t len = 0; !strstr(some, "output_text.delta") && len < sizeof(some) - 1; len++) {
        some[len] = (char)read_byte(fd);
    }
    char id[64] = "", path[128];
    sscanf(strstr(some, "\"id\":\"resp_"), "\"id\":\"%37[^\"]", id);
    snprintf(path, sizeof(path), "/v1/responses/%s?stream=true", id);
    send_request(get, "GET", path, NULL, NULL);
    memset(some, 0, sizeof(some));
    for (size_t len = 0; !strstr(some, "output_text.delta") && len < sizeof(some) - 1; len++) {
        some[len] = (char)read_byte(get);
    }
    send_text(get, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    close(fd); /* the other reader keeps the turn alive */
    while (!quiet(get, 100)) {
        read_byte(get);
    }
    assert_idle(get);
    close(get);
    fake_wait_cancelled(2);
    harness_stop(h);
}

static void connection_is_kept(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = dial(h);
    for (int i = 0; i < 5; i++) {
        send_request(fd, "POST", "/v1/responses", NULL, "{\"input\":\"echo a\"}");
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        send_request(fd, "POST", "/v1/responses", NULL, "{\"input\":\"echo a b\",\"stream\":true}");
        r = read_reply(fd);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, "response.completed"));
        reply_free(&r);
        send_request(fd, "GET", "/health", NULL, NULL);
        r = read_reply(fd);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        /* Refused with a body: it is read, and the connection goes on. */
        send_request(fd, "POST", "/nothing", NULL, "{\"input\":\"echo a b\",\"stream\":true}");
        r = read_reply(fd);
        assert_int_equal(r.status, 404);
        reply_free(&r);
    }
    close(fd);
    harness_stop(h);
}

static void body_in_pieces(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char text[] = POST "Content-Length: 18\r\n\r\n{\"input\":\"echo a\"}";
    int fd = dial(h);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        send_bytes(fd, text + i, 1);
    }
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    harness_stop(h);
}

static void expect_continue(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = dial(h);
    send_text(fd, POST "Content-Length: 18\r\nExpect: 100-continue\r\n\r\n");
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 100);
    reply_free(&r);
    send_text(fd, "{\"input\":\"echo a\"}");
    r = read_reply(fd);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    assert_int_equal(raw(h, POST "Content-Length: 18\r\nExpect: the-unexpected\r\n\r\n", NULL), 417);
    /* Refused before the body is sent. */
    assert_int_equal(raw(h, POST "Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n", NULL), 413);
    harness_stop(h);
}

static char *big_request(size_t len)
{
    char *text = malloc(len + 256);
    assert_non_null(text);
    int n = sprintf(text, POST "Content-Length: %zu\r\n\r\n", len);
    memset(text + n, ' ', len);
    text[(size_t)n + len] = '\0';
    return text;
}

static void body_limit(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    const size_t limit = 16 * 1024 * 1024;
    char *text = big_request(limit + 1);
    assert_int_equal(raw(h, text, NULL), 413);
    free(text);
    text = big_request(limit);
    memcpy(strstr(text, "\r\n\r\n") + 4, "{\"input\":\"echo a\"}", 18);
    assert_int_equal(raw(h, text, NULL), 200);
    free(text);
    assert_int_equal(fake_turns_started(), 1);
    harness_stop(h);
}

static void header_limit(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const int sizes[] = {8 * 1024, 15 * 1024, 17 * 1024, 60 * 1024};
    static const int expected[] = {200, 200, 431, 431};
    for (size_t i = 0; i < 4; i++) {
        char *text = malloc((size_t)sizes[i] + 256);
        assert_non_null(text);
        int n = sprintf(text, "GET /health HTTP/1.1\r\nHost: localhost\r\nCookie: ");
        memset(text + n, 'a', (size_t)sizes[i]);
        strcpy(text + n + sizes[i], "\r\n\r\n");
        assert_int_equal(raw(h, text, NULL), expected[i]);
        free(text);
    }
    /* Past what is parsed at all: the connection ends, the server does not. */
    char *text = malloc(300 * 1024);
    assert_non_null(text);
    int n = sprintf(text, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    memset(text + n, 'a', 250 * 1024);
    strcpy(text + n + 250 * 1024, "\r\n\r\n");
    assert_int_equal(raw(h, text, NULL), 0);
    free(text);
    assert_int_equal(raw(h, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", NULL), 200);
    char path[1200];
    memset(path, 'p', sizeof(path));
    memcpy(path, "GET /", 5);
    strcpy(path + 1000, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(raw(h, path, NULL), 414);
    harness_stop(h);
}

static void other_protocols_are_unreachable(void **state)
{
    (void)state;
    static const char *const requests[] = {
        "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: nonsense\r\n\r\n",
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: nonsense\r\n\r\n"
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: nonsense\r\n\r\n",
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: "
        "websocket\r\n\r\n",
        "BREW /pot HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /health\r\n\r\n",
        "\r\n\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /a\x01\x02 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++) {
        int fd = dial(h);
        send_text(fd, requests[i]);
        shutdown_send(fd);
        char *all = read_all(fd);
        if (strstr(all, " 101 ") || strstr(all, " 200 ")) {
            fail_msg("case %zu: %s", i, all);
        }
        free(all);
        close(fd);
    }
    struct reply r = call(h, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    harness_stop(h);
}

static void host_and_origin(void **state)
{
    (void)state;
    static const char *const flags[] = {"--allow-origin", "https://chat.example.org", "--allow-host", "box.lan", NULL};
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"Host: localhost\r\n", 200},
        {"Host: LOCALHOST:9999\r\n", 200},
        {"Host: 127.0.0.1\r\n", 200},
        {"Host: [::1]:80\r\n", 200},
        {"Host: box.lan\r\n", 200},
        {"Host: evil.example.org\r\n", 403},
        {"Host: localhost.evil.example.org\r\n", 403},
        {"Host: 127.0.0.1.evil.example.org\r\n", 403},
        {"Host: \r\n", 403},
        {"Host: localhost\r\nHost: evil.example.org\r\n", 400},
        {"Host: localhost\r\nOrigin: http://localhost\r\n", 200},
        {"Host: localhost:81\r\nOrigin: http://localhost:81\r\n", 200},
        {"Host: localhost:81\r\nOrigin: http://localhost:82\r\n", 403},
        {"Host: localhost\r\nOrigin: https://chat.example.org\r\n", 200},
        {"Host: localhost\r\nOrigin: https://chat.example.org.evil.net\r\n", 403},
        {"Host: localhost\r\nOrigin: null\r\n", 403},
        {"Host: localhost\r\nOrigin: https://evil.example.org\r\n", 403},
    };
    struct harness *h = harness_start(flags);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct reply r = call(h, "GET", "/v1/models", cases[i].headers, NULL);
        int ws = ws_refused(h, "/v1/responses", cases[i].headers, NULL);
        int ws_expected = cases[i].status == 200 ? 101 : cases[i].status;
        if (r.status != cases[i].status || ws != ws_expected) {
            fail_msg("case %zu: HTTP %d, WebSocket %d", i, r.status, ws);
        }
        bool cors = strstr(r.head, "Access-Control-Allow-Origin: https://chat.example.org\r\n") != NULL;
        assert_int_equal(cors, strstr(cases[i].headers, "https://chat.example.org\r\n") != NULL);
        assert_null(strstr(r.head, "evil"));
        reply_free(&r);
    }
    struct reply r = call(h, "OPTIONS", "/v1/responses", "Origin: https://chat.example.org\r\n", NULL);
    assert_int_equal(r.status, 204);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"));
    assert_non_null(strstr(r.head, "Access-Control-Max-Age: "));
    reply_free(&r);
    /* What a page asks for, if it is a list of names. */
    r = call(h, "OPTIONS", "/v1/responses",
             "Origin: https://chat.example.org\r\nAccess-Control-Request-Headers: authorization,x-stainless-lang\r\n",
             NULL);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Headers: authorization,x-stainless-lang\r\n"));
    reply_free(&r);
    r = call(h, "OPTIONS", "/v1/responses",
             "Origin: https://chat.example.org\r\nAccess-Control-Request-Headers: a:b\r\n", NULL);
    assert_int_equal(r.status, 204);
    assert_non_null(strstr(r.head, "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"));
    reply_free(&r);
    harness_stop(h);
}

static void disconnect_cancels(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    /* Plain and streamed, waiting and in the middle. */
    static const char *const bodies[] = {"{\"input\":\"wait\"}", "{\"input\":\"hold a b\"}",
                                         "{\"input\":\"wait\",\"stream\":true}",
                                         "{\"input\":\"hold a b\",\"stream\":true}"};
    for (int i = 0; i < 4; i++) {
        int fd = dial(h);
        send_request(fd, "POST", "/v1/responses", NULL, bodies[i]);
        fake_wait_started(i + 1);
        close(fd);
        fake_wait_cancelled(i + 1);
    }
    /* finish: the answer is there for who comes back. */
    fake_reset();
    int fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL,
                 "{\"input\":\"hold a b\",\"stream\":true,\"convod\":{\"on_disconnect\":\"finish\"}}");
    char some[4096] = "";
    size_t len = 0;
    while (!strstr(some, "output_text.delta") && len < sizeof(some) - 1) {
        some[len++] = (char)read_byte(fd);
    }
    char id[64] = "";
    sscanf(strstr(some, "\"id\":\"resp_"), "\"id\":\"%37[^\"]", id);
    close(fd);
    char path[128];
    snprintf(path, sizeof(path), "/v1/responses/%s", id);
    struct reply r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "status"), "in_progress");
    reply_free(&r);
    fake_release(1);
    strcat(path, "?stream=true&starting_after=4");
    r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.body, "response.created"));
    assert_non_null(strstr(r.body, "\"sequence_number\":5"));
    assert_non_null(strstr(r.body, "event: response.completed"));
    reply_free(&r);
    harness_stop(h);
}

static void waiting_outlives_every_timeout(void **state)
{
    (void)state;
    static const char *const flags[] = {"--timeout-seconds", "1", NULL};
    struct harness *h = harness_start(flags);
    int plain = dial(h), stream = dial(h);
    send_request(plain, "POST", "/v1/responses", NULL, "{\"input\":\"wait\"}");
    send_request(stream, "POST", "/v1/responses", NULL, "{\"input\":\"hold a b\",\"stream\":true}");
    fake_wait_started(2);
    assert_true(quiet(plain, 3000));
    fake_release(2);
    struct reply r = read_reply(plain);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = read_reply(stream);
    assert_non_null(strstr(r.body, "response.completed"));
    reply_free(&r);
    close(plain);
    close(stream);
    /* A body that does not come is given up. */
    int fd = dial(h);
    send_text(fd, POST "Content-Length: 100\r\n\r\n{");
    assert_true(closed(fd));
    close(fd);
    harness_stop(h);
}

static void connection_caps(void **state)
{
    (void)state;
    static const char *const flags[] = {"--max-connections-per-address", "4", NULL};
    struct harness *h = harness_start(flags);
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = ws_dial(h);
    }
    int extra = dial(h);
    assert_true(closed(extra));
    close(extra);
    close(fds[0]);
    struct reply r;
    do { /* until the server has seen the close */
        r = call(h, "GET", "/health", NULL, NULL);
        int status = r.status;
        reply_free(&r);
        if (status == 200) {
            break;
        }
    } while (true);
    for (int i = 1; i < 4; i++) {
        close(fds[i]);
    }
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_framing_is_refused),
        cmocka_unit_test(one_request_one_turn),
        cmocka_unit_test(pipelined_gets_are_answered_in_order),
        cmocka_unit_test(bytes_behind_a_stream),
        cmocka_unit_test(idle_streams_cost_nothing),
        cmocka_unit_test(connection_is_kept),
        cmocka_unit_test(body_in_pieces),
        cmocka_unit_test(expect_continue),
        cmocka_unit_test(body_limit),
        cmocka_unit_test(header_limit),
        cmocka_unit_test(other_protocols_are_unreachable),
        cmocka_unit_test(host_and_origin),
        cmocka_unit_test(disconnect_cancels),
        cmocka_unit_test(waiting_outlives_every_timeout),
        cmocka_unit_test(connection_caps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

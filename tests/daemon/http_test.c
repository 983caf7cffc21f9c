/* http_test.c - framing and access over plain sockets: what a lenient parser lets through must not reach a handler, and
 * no request may run twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* Nothing arrives, and the server does not spin meanwhile. */
static void assert_idle(int fd)
{
    clock_t before = clock();
    assert_true(quiet(fd, 400));
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.2);
}

/* What comes behind a request belongs to no request: it neither runs nor disturbs the answer. */
static void one_request_one_turn(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char body[] = "{\"input\":\"wait\"}";
    char text[1024];
    snprintf(text, sizeof(text), POST "Content-Length: %zu\r\n\r\n%s" POST "Content-Length: %zu\r\n\r\n%s",
             sizeof(body) - 1, body, sizeof(body) - 1, body);
    /* In the same packet, and later, while the answer is worked on. */
    for (int later = 0; later < 2; later++) {
        int fd = dial(h);
        if (later) {
            send_request(fd, "POST", "/v1/responses", NULL, body);
        } else {
            send_text(fd, text);
        }
        fake_wait_started(later + 1);
        assert_idle(fd);
        if (later) {
            send_text(fd, text);
            assert_idle(fd);
        }
        fake_release(1);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.head, "Connection: close\r\n"));
        reply_free(&r);
        assert_true(closed(fd));
        close(fd);
        assert_int_equal(fake_turns_started(), later + 1);
    }
    harness_stop(h);
}

/* Also where the head came in pieces, so that the last of them has told of all. */
static void bytes_behind_a_head_in_pieces(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (int i = 0; i < 3; i++) {
        int fd = dial(h);
        send_text(fd, "GET /health HTTP/1.1\r\nHo");
        assert_true(quiet(fd, 100));
        send_text(fd, "st: localhost\r\n\r\nGET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n");
        char *all = read_all(fd);
        assert_non_null(strstr(all, "200 OK"));
        assert_null(strstr(all + 1, "HTTP/1.1"));
        free(all);
        close(fd);
    }
    harness_stop(h);
}

/* A stream whose reader sends more costs nothing. */
static void bytes_behind_a_stream(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL, "{\"input\":\"hold a b\",\"stream\":true}");
    char some[4096] = "";
    for (size_t len = 0; !strstr(some, "output_text.delta") && len < sizeof(some) - 1; len++) {
        some[len] = (char)read_byte(fd);
    }
    send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while (!quiet(fd, 100)) {
        read_byte(fd);
    }
    assert_idle(fd);
    fake_release(1);
    char *rest = read_all(fd);
    assert_non_null(strstr(rest, "response.completed"));
    assert_null(strstr(rest, "HTTP/1.1"));
    free(rest);
    close(fd);
    harness_stop(h);
}

/* Whatever is refused before its body has come: the status arrives. */
static void refusals_arrive(void **state)
{
    (void)state;
    static const char *const flags[] = {"--allow-host", "box.lan", NULL};
    static const struct {
        const char *line, *headers;
        int status;
    } cases[] = {
        {"POST /nothing", "", 404},
        {"PUT /v1/models", "", 405},
        {"POST /v1/responses", "Origin: https://evil.example.org\r\n", 403},
        {"POST /v1/responses", "X: 1\r\nX : 2\r\n", 400},
        {"POST /v1/conversations?limit=0", "", 400},
    };
    struct harness *h = harness_start(flags);
    const size_t size = 6 * 1024 * 1024;
    char *body = malloc(size);
    assert_non_null(body);
    memset(body, ' ', size);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int fd = dial(h);
        char head[512];
        snprintf(head, sizeof(head), "%s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n", cases[i].line,
                 cases[i].headers, size);
        send_text(fd, head);
        send_bytes(fd, body, size);
        struct reply r = read_reply(fd);
        if (r.status != cases[i].status || !*str(r.json, "error.message")) {
            fail_msg("case %zu: %d", i, r.status);
        }
        reply_free(&r);
        close(fd);
    }
    free(body);
    harness_stop(h);
}

/* Who shuts the sending side gets the answer; who is gone ends the turn, streamed or not. */
static void half_closed(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char *const requests[][3] = {
        {"GET", "/v1/models", NULL},
        {"POST", "/tokenize", "{\"content\":\"ab\"}"},
        {"POST", "/v1/conversations", "{}"},
        {"POST", "/v1/responses", "{\"input\":\"echo a\"}"},
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++) {
        int fd = dial(h);
        send_request(fd, requests[i][0], requests[i][1], NULL, requests[i][2]);
        shutdown_send(fd);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.head, "Content-Length"));
        reply_free(&r);
        assert_true(closed(fd));
        close(fd);
    }
    /* What will never be whole is answered at once. */
    static const char *const halves[] = {
        "GET /heal", "GET /health HTTP/1.1\r\nHost: localhost\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{\"con"};
    for (size_t i = 0; i < sizeof(halves) / sizeof(*halves); i++) {
        int half = dial(h);
        send_text(half, halves[i]);
        shutdown_send(half);
        struct reply r = read_reply(half);
        assert_int_equal(r.status, 400);
        assert_string_equal(str(r.json, "error.message"), "The request ended before it was whole.");
        reply_free(&r);
        close(half);
    }
    /* The answer takes longer than it takes to ask whether anyone reads. */
    for (int stream = 0; stream < 2; stream++) {
        fake_reset();
        int fd = dial(h);
        send_request(fd, "POST", "/v1/responses", NULL,
                     stream ? "{\"input\":\"wait\",\"stream\":true}" : "{\"input\":\"wait\"}");
        shutdown_send(fd);
        fake_wait_started(1);
        assert_false(quiet(fd, 60000));
        fake_release(1);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        if (stream) {
            assert_non_null(strstr(r.body, "response.completed"));
        } else {
            assert_string_equal(str(r.json, "status"), "completed");
        }
        reply_free(&r);
        close(fd);
    }
    /* A stream that was begun ends with an error in its interface's own form. */
    static const char late[] =
        "{\"input\":\"refuse 7 late\",\"messages\":[{\"role\":\"user\",\"content\":\"refuse 7 late\"}],"
        "\"stream\":true}";
    static const char *const streams[][3] = {
        {"/v1/responses", "\"type\":\"error\"", "event: error\ndata: {\"message\":"},
        {"/v1/chat/completions", "\"code\":\"insufficient_memory\"", "\n\ndata: {\"error\":{"},
        {"/v1/messages", "\"type\":\"overloaded_error\"", "event: error\ndata: {\"type\":\"error\",\"error\":{"}};
    for (size_t i = 0; i < sizeof(streams) / sizeof(*streams); i++) {
        fake_reset();
        int fd = dial(h);
        send_request(fd, "POST", streams[i][0], NULL, late);
        shutdown_send(fd);
        fake_wait_started(1);
        assert_false(quiet(fd, 60000));
        fake_release(1);
        struct reply r = read_reply(fd);
        if (!strstr(r.body, streams[i][1]) || !strstr(r.body, streams[i][2])) {
            fail_msg("%s: %s", streams[i][0], r.body);
        }
        assert_int_equal(strstr(r.body, "\"sequence_number\":0") != NULL, i == 0);
        assert_true(i > 0 || !strstr(r.body, "\"type\":\"server_error\"")); /* one type */
        reply_free(&r);
        close(fd);
    }
    /* What failed after that is cut off, not told as a success. */
    fake_reset();
    int fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL, "{\"input\":\"fail late\"}");
    shutdown_send(fd);
    fake_wait_started(1);
    assert_false(quiet(fd, 60000));
    fake_release(1);
    char *all = read_all(fd);
    assert_non_null(strstr(all, "200 OK"));
    assert_null(strstr(all, "\r\n0\r\n"));
    free(all);
    close(fd);
    harness_stop(h);
}

/* One deadline for the head, one for the body, however their bytes come. */
static void unfinished_requests_end(void **state)
{
    (void)state;
    static const char *const flags[] = {"--timeout-seconds", "1", NULL};
    struct harness *h = harness_start(flags);
    static const char *const heads[] = {
        "", "GET /hea", "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", POST "Content-Length: 1000\r\n\r\n{"};
    for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
        int fd = dial(h);
        send_text(fd, heads[i]);
        int64_t began = clock_ms();
        while (quiet(fd, 100) && clock_ms() - began < 10000) {
            if (i > 0) {
                send_text(fd, "a");
            }
        }
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, i == 0 ? 0 : 408);
        reply_free(&r);
        close(fd);
    }
    harness_stop(h);
}

/* Names that begin like others, and everything else that another reader could take for another request. */
static void heads_have_one_meaning(void **state)
{
    (void)state;
    static const char inner[] = "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char *const names[] = {"X-Auth", "X-A", "Con", "Ho", "Or", "Conten", "X", "Sec-WebSocket-"};
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char text[512];
        int fd = dial(h);
        snprintf(text, sizeof(text),
                 "GET /v1/conversations HTTP/1.1\r\nHost: localhost\r\n%s: t\r\nContent-Length: %zu\r\n\r\n%s",
                 names[i], sizeof(inner) - 1, inner);
        send_text(fd, text);
        shutdown_send(fd);
        char *all = read_all(fd), *first = strstr(all, "HTTP/1.1 200");
        assert_non_null(first);
        assert_null(strstr(first + 1, "HTTP/1.1"));
        free(all);
        close(fd);
        snprintf(text, sizeof(text),
                 "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n%s: t\r\nOrigin: https://evil.net\r\n\r\n", names[i]);
        assert_int_equal(raw(h, text, NULL), 403);
        snprintf(text, sizeof(text), "GET /v1/models HTTP/1.1\r\n%s: t\r\nHost: evil.net\r\n\r\n", names[i]);
        assert_int_equal(raw(h, text, NULL), 403);
    }
    harness_stop(h);
}

/* Answers to what is malformed are the API's; 405 says what is allowed. */
/* What RFC 9110 wants of every answer: a reason, and when it was made. */
static void assert_letter(const struct reply *r)
{
    const char *date = strstr(r->head, "\r\nDate: ");
    struct tm utc = {0};
    const char *end = date ? strptime(date + 8, "%a, %d %b %Y %H:%M:%S GMT", &utc) : NULL;
    if (strstr(r->head, " Status\r\n") || !end || strncmp(end, "\r\n", 2) != 0) {
        fail_msg("%s", r->head);
    }
    assert_true(llabs((long long)timegm(&utc) - (long long)time(NULL)) < 3600);
}

static void errors_are_objects(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
        {"PATCH /v1/conversations HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
        {"GET v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /v1/mod%zzels HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /v1/models HTTP/1.1\nHost: localhost\n\n", 400},
        {"GET /v1/models\r\n\r\n", 400},
        {"GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n", 505},
        {"GET /v1%2fmodels HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET /v1/conversations/../models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
        {"GET http://localhost/v1/models HTTP/1.1\r\nHost: other\r\n\r\n", 200},
        {"GET http://evil.net/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 403},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        int fd = dial(h);
        send_text(fd, cases[i].text);
        struct reply r = read_reply(fd);
        bool object = r.status == 200 || *str(r.json, "error.message");
        assert_letter(&r);
        if (r.status != cases[i].status || !object || (r.status == 405) != (strstr(r.head, "\r\nAllow: ") != NULL)) {
            fail_msg("case %zu: %s%s", i, r.head, r.body);
        }
        reply_free(&r);
        close(fd);
    }
    /* To HEAD there is none, only how long it would be. */
    int fd = dial(h);
    send_text(fd, "HEAD /v1/models HTTP/1.1\r\n\r\n");
    char *text = read_all(fd);
    assert_true(strncmp(text, "HTTP/1.1 400 ", 13) == 0 && strstr(text, "\r\nContent-Length: "));
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    free(text);
    close(fd);
    struct reply r = call(h, "DELETE", "/v1/conversations", NULL, NULL);
    assert_non_null(strstr(r.head, "\r\nAllow: GET, HEAD, POST, OPTIONS\r\n"));
    reply_free(&r);
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
    char *text = malloc(300 * 1024);
    assert_non_null(text);
    int n = sprintf(text, "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
    memset(text + n, 'a', 250 * 1024);
    strcpy(text + n + 250 * 1024, "\r\n\r\n");
    assert_int_equal(raw(h, text, NULL), 431);
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
        {"Host: \r\n", 400},
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
    assert_int_equal(harness_logged(h, " POST /v1/responses ", ", cut off"), 4);
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
    r = read_reply(fd);
    assert_int_equal(r.status, 408);
    reply_free(&r);
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
    struct reply r = call(h, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 429);
    assert_string_equal(str(r.json, "error.code"), "too_many_connections");
    reply_free(&r);
    close(fds[0]);
    do { /* until the server has seen the close */
        r = call(h, "GET", "/health", NULL, NULL);
        int status = r.status;
        reply_free(&r);
        if (status == 200) {
            break;
        }
    } while (true);
    /* Who keeps a request unfinished goes first. */
    int idle = dial(h);
    send_text(idle, "GET /health HT");
    assert_true(quiet(idle, 50));
    r = call(h, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(closed(idle));
    close(idle);
    for (int i = 1; i < 4; i++) {
        close(fds[i]);
    }
    harness_stop(h);
}

/* Who was refused, or has its answer, and stays connected makes no room for others. */
static void caps_are_not_traded(void **state)
{
    (void)state;
    static const char *const flags[] = {"--max-connections-per-address", "4", NULL};
    struct harness *h = harness_start(flags);
    int answered = dial(h), fds[4];
    send_request(answered, "GET", "/health", NULL, NULL);
    struct reply r = read_reply(answered);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    for (int i = 0; i < 4; i++) {
        fds[i] = ws_dial(h);
    }
    int refused[3];
    for (int i = 0; i < 3; i++) {
        refused[i] = dial(h);
        send_request(refused[i], "GET", "/health", NULL, NULL);
        r = read_reply(refused[i]);
        assert_int_equal(r.status, 429);
        reply_free(&r);
    }
    for (int i = 0; i < 3; i++) {
        close(refused[i]);
    }
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
    close(answered);
    harness_stop(h);
}

/* Behind a proxy that is trusted each client has a share of its own, and the claims of others count nothing. */
static void forwarded_addresses(void **state)
{
    (void)state;
    static const char *const flags[] = {
        "--max-connections-per-address", "2", "--trusted-proxy", "127.0.0.0/8", "--trusted-proxy", "192.0.2.1", NULL};
    struct harness *h = harness_start(flags);
    static const char one[] = "X-Forwarded-For: 203.0.113.9, 198.51.100.1, 192.0.2.1\r\n";
    static const char other[] = "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-For: 198.51.100.2\r\n";
    int fds[] = {ws_dial_as(h, one), ws_dial_as(h, one), ws_dial_as(h, other), ws_dial_as(h, other)};
    assert_int_equal(ws_refused(h, "/v1/responses", "X-Forwarded-For: 203.0.113.1, 198.51.100.1\r\n", NULL), 429);
    assert_int_equal(ws_refused(h, "/v1/responses", "X-Forwarded-For: 203.0.113.1\r\n", NULL), 101);
    assert_int_equal(ws_refused(h, "/v1/responses", "X-Forwarded-For: 2001:db8::1\r\n", NULL), 101);
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
    harness_stop(h);
    static const char *const untrusted[] = {"--max-connections-per-address", "2", NULL};
    h = harness_start(untrusted);
    fds[0] = ws_dial_as(h, one);
    fds[1] = ws_dial_as(h, other);
    assert_int_equal(ws_refused(h, "/v1/responses", "X-Forwarded-For: 203.0.113.1\r\n", NULL), 429);
    close(fds[0]);
    close(fds[1]);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_framing_is_refused),
        cmocka_unit_test(one_request_one_turn),
        cmocka_unit_test(bytes_behind_a_head_in_pieces),
        cmocka_unit_test(bytes_behind_a_stream),
        cmocka_unit_test(refusals_arrive),
        cmocka_unit_test(half_closed),
        cmocka_unit_test(unfinished_requests_end),
        cmocka_unit_test(heads_have_one_meaning),
        cmocka_unit_test(errors_are_objects),
        cmocka_unit_test(body_in_pieces),
        cmocka_unit_test(expect_continue),
        cmocka_unit_test(body_limit),
        cmocka_unit_test(header_limit),
        cmocka_unit_test(other_protocols_are_unreachable),
        cmocka_unit_test(host_and_origin),
        cmocka_unit_test(disconnect_cancels),
        cmocka_unit_test(waiting_outlives_every_timeout),
        cmocka_unit_test(connection_caps),
        cmocka_unit_test(caps_are_not_traded),
        cmocka_unit_test(forwarded_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

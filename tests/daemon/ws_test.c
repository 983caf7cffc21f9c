/* ws_test.c - frames, limits, lanes and disconnects of the WebSocket. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

#define MESSAGE_LIMIT (16 * 1024 * 1024)

static void assert_error(int fd, const char *code, const char *stream_id)
{
    cJSON *e = ws_read_json(fd);
    assert_string_equal(str(e, "type"), "error");
    assert_string_equal(str(e, "error.code"), code);
    assert_true(num(e, "status") >= 400);
    assert_string_equal(str(e, "stream_id"), stream_id ? stream_id : "");
    cJSON_Delete(e);
}

static void fragments_are_joined(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    static const char text[] = "{\"type\":\"response.create\",\"input\":\"echo h\xc3\xa9llo\"}";
    /* One byte per frame, also within a character, with a ping in between. */
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        ws_send_frame(fd, i == 0 ? 1 : 0, i == sizeof(text) - 2, text + i, 1);
        if (i == 10) {
            ws_send_frame(fd, 9, true, "p", 1);
        }
    }
    unsigned char pong[3];
    assert_int_equal(recv(fd, pong, 3, MSG_WAITALL), 3);
    assert_int_equal(pong[0], 0x8a);
    cJSON *e = ws_until(fd, "response.completed");
    assert_string_equal(str(e, "response.output.0.content.0.text"), "h\xc3\xa9llo");
    cJSON_Delete(e);
    close(fd);
    harness_stop(h);
}

static int close_code_after(struct harness *h, int opcode, const void *data, size_t len)
{
    int fd = ws_dial(h), code;
    ws_send_frame(fd, opcode, true, data, len);
    char *text = ws_read(fd, &code);
    assert_null(text);
    close(fd);
    return code;
}

static void bad_messages_close(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    assert_int_equal(close_code_after(h, 1, "\xff\xfe", 2), 1007);
    assert_int_equal(close_code_after(h, 1, "{\"a\":\"\xed\xa0\x80\"}", 11), 1007);
    assert_int_equal(close_code_after(h, 2, "{}", 2), 1003);
    /* A close is answered with its code, unless nobody may send that. */
    assert_int_equal(close_code_after(h, 8, "\x03\xe8 bye", 6), 1000);
    assert_int_equal(close_code_after(h, 8, "\x13\x87", 2), 4999);
    assert_int_equal(close_code_after(h, 8, "\x13\x88", 2), 1002);
    assert_int_equal(close_code_after(h, 8, "\x03\xed", 2), 1002);
    assert_int_equal(close_code_after(h, 8, "\x03", 1), 1002);
    assert_int_equal(close_code_after(h, 8, "\x03\xe8\xff\xfe", 4), 1007);
    char *big = malloc(MESSAGE_LIMIT + 1);
    assert_non_null(big);
    memset(big, ' ', MESSAGE_LIMIT + 1);
    memcpy(big, "{\"type\":\"response.create\",\"input\":\"echo a\"}", 43);
    assert_int_equal(close_code_after(h, 1, big, MESSAGE_LIMIT + 1), 1009);
    int fd = ws_dial(h);
    ws_send_frame(fd, 1, true, big, MESSAGE_LIMIT);
    cJSON *e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    /* In fragments the limit is the same. */
    int code;
    for (int i = 0; i < 17; i++) {
        ws_send_frame(fd, i == 0 ? 1 : 0, false, big, 1024 * 1024);
    }
    assert_null(ws_read(fd, &code));
    assert_int_equal(code, 1009);
    close(fd);
    free(big);
    assert_int_equal(fake_turns_started(), 1);
    harness_stop(h);
}

/* Without a mask, as the first frame and behind others; and frames of any size in the packet of the upgrade. */
static void masks_and_early_frames(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char unmasked[] = "\x81\x02{}";
    for (int before = 0; before < 3; before++) {
        int fd = ws_dial(h), code;
        for (int i = 0; i < before; i++) {
            ws_send(fd, "{\"type\":\"none\"}");
            assert_error(fd, "invalid_value", NULL);
        }
        send_bytes(fd, unmasked, 4);
        assert_null(ws_read(fd, &code));
        assert_int_equal(code, 1002);
        close(fd);
    }
    static const size_t sizes[] = {20, 3000, 100000, 4000000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        char *text = malloc(sizes[i] + 512);
        assert_non_null(text);
        int n = sprintf(text,
                        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n");
        unsigned char head[14] = {0x81, 0xff};
        for (int b = 0; b < 8; b++) {
            head[2 + b] = (unsigned char)((uint64_t)sizes[i] >> (8 * (7 - b)));
        }
        if (sizes[i] < 126) {
            head[1] = (unsigned char)(0x80 | sizes[i]);
            memset(head + 2, 0, 4);
        } else if (sizes[i] < 65536) {
            head[1] = 0xfe;
            memmove(head + 2, head + 8, 2);
            memset(head + 4, 0, 4);
        }
        size_t head_len = sizes[i] < 126 ? 6 : sizes[i] < 65536 ? 8 : 14;
        memcpy(text + n, head, head_len);
        memset(text + n + head_len, ' ', sizes[i]);
        memcpy(text + n + head_len, "{\"type\":\"none\"}", 15);
        int fd = dial(h);
        send_bytes(fd, text, (size_t)n + head_len + sizes[i]);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 101);
        reply_free(&r);
        assert_error(fd, "invalid_value", NULL);
        close(fd);
        free(text);
    }
    harness_stop(h);
}

/* Large messages are read elsewhere: all keep their order, and a connection may go meanwhile. */
static void large_messages_keep_their_order(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    enum { LARGE = 3 * WORK_BYTES_MIN, MESSAGES = 20 };
    char *text = malloc(LARGE + 128), lane[32];
    assert_non_null(text);
    for (int round = 0; round < 2; round++) {
        int fd = ws_dial(h);
        for (int i = 0; i < MESSAGES; i++) {
            size_t pad = i % 3 ? 0 : LARGE;
            size_t n = (size_t)sprintf(text, "{\"type\":\"none\",\"stream_id\":\"lane%d\"", i);
            memset(text + n, ' ', pad);
            strcpy(text + n + pad, "}");
            ws_send(fd, text);
        }
        for (int i = 0; i < MESSAGES && round == 0; i++) {
            snprintf(lane, sizeof(lane), "lane%d", i);
            assert_error(fd, "invalid_value", lane);
        }
        close(fd);
    }
    free(text);
    harness_stop(h);
}

static void hostile_json_keeps_the_socket(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    static const char *const messages[] = {
        "",
        "null",
        "[]",
        "{",
        "{}x",
        "{\"type\":\"response.create\",\"input\":\"a\\u0000b\"}",
        "{\"type\":\"response.create\",\"input\":\"\\ud800\"}",
        "{\"type\":\"response.create\",\"input\":\"a\",\"temperature\":1e999}",
    };
    for (size_t i = 0; i < sizeof(messages) / sizeof(*messages); i++) {
        ws_send(fd, messages[i]);
        assert_error(fd, "invalid_json", NULL);
    }
    ws_send(fd, "{\"type\":5}");
    assert_error(fd, "invalid_type", NULL);
    ws_send(fd, "{\"type\":\"session.update\",\"stream_id\":\"s1\"}");
    assert_error(fd, "invalid_value", "s1");
    ws_send(fd, "{\"stream_id\":\"bad id\"}");
    assert_error(fd, "missing_required_parameter", NULL);
    size_t size = 10 * 1024 * 1024;
    char *brackets = malloc(size);
    assert_non_null(brackets);
    memset(brackets, '[', size);
    ws_send_frame(fd, 1, true, brackets, size);
    assert_error(fd, "invalid_json", NULL);
    for (size_t i = 0; i < size; i++) {
        brackets[i] = i % 2 ? ',' : '1';
    }
    ws_send_frame(fd, 1, true, brackets, size);
    assert_error(fd, "invalid_json", NULL);
    free(brackets);
    ws_create(fd, "echo still here", NULL);
    cJSON *e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    assert_int_equal(fake_turns_started(), 1);
    close(fd);
    harness_stop(h);
}

static void lanes(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    /* FIFO in a lane: the second starts when the first has ended, on another lane at once. */
    ws_create(fd, "hold a1", ",\"stream_id\":\"a\"");
    ws_create(fd, "echo a2", ",\"stream_id\":\"a\"");
    fake_wait_started(1);
    ws_create(fd, "echo b1", ",\"stream_id\":\"b\"");
    cJSON *e;
    do {
        e = ws_read_json(fd);
        bool done = strcmp(str(e, "type"), "response.completed") == 0;
        if (done) {
            assert_string_equal(str(e, "stream_id"), "b");
        }
        cJSON_Delete(e);
        if (done) {
            break;
        }
    } while (true);
    assert_int_equal(fake_turns_started(), 2);
    fake_release(1);
    bool a1 = false;
    for (int completed = 0; completed < 2;) {
        e = ws_read_json(fd);
        assert_string_equal(str(e, "stream_id"), "a");
        if (strcmp(str(e, "type"), "response.completed") == 0) {
            completed++;
            assert_string_equal(str(e, "response.output.0.content.0.text"), a1 ? "a2" : "a1");
            a1 = true;
        } else if (strcmp(str(e, "type"), "response.created") == 0) {
            assert_int_equal(num(e, "sequence_number"), 0);
        }
        cJSON_Delete(e);
    }
    /* A refused turn frees its lane, and its error carries the lane. */
    ws_create(fd, "refuse 3", ",\"stream_id\":\"a\"");
    ws_create(fd, "start -16", ",\"stream_id\":\"a\"");
    ws_create(fd, "echo after", ",\"stream_id\":\"a\"");
    e = ws_until(fd, "error");
    assert_string_equal(str(e, "error.code"), "conversation_locked");
    assert_string_equal(str(e, "stream_id"), "a");
    assert_null(cJSON_GetObjectItemCaseSensitive(e, "headers"));
    cJSON_Delete(e);
    e = ws_until(fd, "error");
    assert_string_equal(str(e, "error.code"), "rate_limit_exceeded");
    assert_string_equal(str(e, "stream_id"), "a");
    assert_string_equal(str(e, "headers.Retry-After"), "7");
    cJSON_Delete(e);
    e = ws_until(fd, "response.completed");
    assert_string_equal(str(e, "stream_id"), "a");
    cJSON_Delete(e);
    close(fd);
    harness_stop(h);
}

static void lane_limits(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    char field[400];
    /* 16 run, 16 more wait, the 33rd name is refused. */
    for (int i = 0; i < 32; i++) {
        snprintf(field, sizeof(field), ",\"stream_id\":\"lane%d\"", i);
        ws_create(fd, "wait", field);
    }
    fake_wait_started(16);
    ws_create(fd, "wait", ",\"stream_id\":\"one-more\"");
    cJSON *e;
    do {
        e = ws_read_json(fd);
        bool error = strcmp(str(e, "type"), "error") == 0;
        if (error) {
            assert_string_equal(str(e, "error.code"), "websocket_stream_limit_reached");
            assert_string_equal(str(e, "stream_id"), "one-more");
        }
        cJSON_Delete(e);
        if (error) {
            break;
        }
    } while (true);
    assert_int_equal(fake_turns_started(), 16);
    fake_release(1);
    fake_wait_started(17);
    fake_release(100);
    fake_wait_started(32);
    for (int completed = 0; completed < 32;) {
        e = ws_read_json(fd);
        completed += strcmp(str(e, "type"), "response.completed") == 0;
        cJSON_Delete(e);
    }
    close(fd);
    /* The longest name, and one past it. */
    fd = ws_dial(h);
    char name[300];
    memset(name, 'n', sizeof(name));
    name[256] = '\0';
    snprintf(field, sizeof(field), ",\"stream_id\":\"%s\"", name);
    ws_create(fd, "echo a", field);
    e = ws_until(fd, "response.completed");
    assert_string_equal(str(e, "stream_id"), name);
    cJSON_Delete(e);
    name[256] = 'n';
    name[257] = '\0';
    snprintf(field, sizeof(field), ",\"stream_id\":\"%s\"", name);
    ws_create(fd, "echo a", field);
    assert_error(fd, "invalid_stream_id", NULL);
    ws_create(fd, "echo a", ",\"stream_id\":\"sp ace\"");
    assert_error(fd, "invalid_stream_id", NULL);
    ws_create(fd, "echo a", ",\"stream_id\":\"\"");
    assert_error(fd, "invalid_stream_id", NULL);
    /* Lanes that are no longer used make room. */
    for (int i = 0; i < 3 * LANES_MAX; i++) {
        snprintf(field, sizeof(field), ",\"stream_id\":\"later%d\"", i);
        ws_create(fd, "echo a", field);
        e = ws_until(fd, "response.completed");
        cJSON_Delete(e);
    }
    /* Requests that wait: 64, and one past it. */
    fake_reset();
    for (int i = 0; i < 65; i++) {
        ws_create(fd, "wait", NULL);
    }
    fake_wait_started(1);
    ws_create(fd, "wait", NULL);
    do {
        e = ws_read_json(fd);
        bool error = strcmp(str(e, "type"), "error") == 0;
        if (error) {
            assert_string_equal(str(e, "error.code"), "rate_limit_exceeded");
        }
        cJSON_Delete(e);
        if (error) {
            break;
        }
    } while (true);
    close(fd);
    harness_stop(h);
}

static void cancel_ends_as_incomplete(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    ws_create(fd, "hold one two", NULL);
    cJSON *e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    ws_send(fd, "{\"type\":\"response.cancel\"}");
    e = ws_until(fd, "response.incomplete");
    assert_string_equal(str(e, "response.convod.incomplete_reason"), "cancelled");
    assert_string_equal(str(e, "response.output.0.status"), "incomplete");
    assert_string_equal(str(e, "response.output.0.content.0.text"), "one ");
    cJSON_Delete(e);
    ws_send(fd, "{\"type\":\"response.cancel\"}");
    assert_error(fd, "no_active_response", NULL);
    close(fd);
    harness_stop(h);
}

/* An answer takes nothing more: that is told in the event that a client waits for, and the answer goes on. */
static void steering_fails(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    ws_create(fd, "hold one two", ",\"stream_id\":\"s\"");
    cJSON *e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    ws_send(
        fd,
        "{\"type\":\"response.steer\",\"stream_id\":\"s\",\"previous_response_id\":\"resp_1\",\"input\":\"louder\"}");
    e = ws_until(fd, "response.steer.failed");
    assert_string_equal(str(e, "stream_id"), "s");
    assert_string_equal(str(e, "error.code"), "steering_not_supported");
    assert_string_equal(str(e, "steer.previous_response_id"), "resp_1");
    assert_string_equal(str(e, "steer.input"), "louder");
    cJSON_Delete(e);
    /* One that is long is not sent back. */
    char *text = NULL;
    assert_true(asprintf(&text, "{\"type\":\"response.steer\",\"stream_id\":\"s\",\"input\":\"%0*d\"}", 5 << 20, 0) >
                0);
    ws_send(fd, text);
    free(text);
    e = ws_until(fd, "response.steer.failed");
    assert_string_equal(str(e, "steer.input"), "");
    cJSON_Delete(e);
    fake_release(1);
    e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    close(fd);
    harness_stop(h);
}

/* Over a conversation the default is to finish, otherwise to cancel; both can be asked for. */
static void disconnect_policy(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/conversations", NULL, "{}");
    assert_int_equal(r.status, 200);
    char conversation[64], field[256];
    snprintf(conversation, sizeof(conversation), "%s", str(r.json, "id"));
    reply_free(&r);
    int fd = ws_dial(h);
    ws_create(fd, "wait", NULL);
    fake_wait_started(1);
    close(fd);
    fake_wait_cancelled(1);
    fd = ws_dial(h);
    snprintf(field, sizeof(field), ",\"conversation\":\"%s\",\"convod\":{\"on_disconnect\":\"cancel\"}", conversation);
    ws_create(fd, "wait", field);
    fake_wait_started(2);
    close(fd);
    fake_wait_cancelled(2);
    assert_int_equal(harness_logged(h, " WS response.create 0, ", ", cut off"), 2);
    char path[128];
    snprintf(path, sizeof(path), "/v1/conversations/%s", conversation);
    for (bool running = true; running;) { /* it was told to end; now it does */
        r = call(h, "GET", path, NULL, NULL);
        running = str(r.json, "convod.running_response")[0] != 0;
        reply_free(&r);
    }
    /* finish: another connection joins the running answer, and gets all of it. */
    fake_reset();
    fd = ws_dial(h);
    snprintf(field, sizeof(field), ",\"conversation\":{\"id\":\"%s\"}", conversation);
    ws_create(fd, "hold one two", field);
    cJSON *e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    close(fd);
    r = call(h, "GET", path, NULL, NULL);
    char id[64];
    snprintf(id, sizeof(id), "%s", str(r.json, "convod.running_response"));
    assert_string_not_equal(id, "");
    reply_free(&r);
    /* Locked meanwhile. */
    fd = ws_dial(h);
    ws_create(fd, "echo x", field);
    assert_error(fd, "conversation_locked", NULL);
    snprintf(field, sizeof(field), "{\"type\":\"convod.response.attach\",\"response_id\":\"%s\",\"stream_id\":\"w\"}",
             id);
    ws_send(fd, field);
    e = ws_read_json(fd);
    assert_string_equal(str(e, "type"), "response.created");
    assert_string_equal(str(e, "stream_id"), "w");
    cJSON_Delete(e);
    fake_release(1);
    e = ws_until(fd, "response.completed");
    assert_string_equal(str(e, "response.output.0.content.0.text"), "one two");
    cJSON_Delete(e);
    close(fd);
    harness_stop(h);
}

/* store:false lives with its connection. */
static void ephemeral_responses(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h), other = ws_dial(h);
    char first[64], second[64], field[256];
    ws_create(fd, "echo a", ",\"store\":false");
    cJSON *e = ws_until(fd, "response.completed");
    snprintf(first, sizeof(first), "%s", str(e, "response.id"));
    assert_true(cJSON_IsFalse(at(e, "response.store")));
    cJSON_Delete(e);
    snprintf(field, sizeof(field), ",\"store\":false,\"previous_response_id\":\"%s\"", first);
    ws_create(other, "echo stolen", field);
    assert_error(other, "previous_response_not_found", NULL);
    ws_create(fd, "echo b", field);
    e = ws_until(fd, "response.completed");
    snprintf(second, sizeof(second), "%s", str(e, "response.id"));
    cJSON_Delete(e);
    char path[128];
    snprintf(path, sizeof(path), "/v1/responses/%s", first);
    struct reply r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 404);
    reply_free(&r);
    assert_int_equal(fake_forgotten(), 0);
    /* A continuation that fails drops what it continued. */
    snprintf(field, sizeof(field), ",\"store\":false,\"previous_response_id\":\"%s\"", second);
    ws_create(fd, "refuse 10", field);
    assert_error(fd, "server_shutdown", NULL);
    assert_int_equal(fake_forgotten(), 1);
    close(fd);
    close(other);
    /* Over HTTP nothing stays. */
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo a\",\"store\":false}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    harness_stop(h);
}

static void upgrade_is_checked(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    cJSON *error;
    assert_int_equal(ws_refused(h, "/v1/other", NULL, &error), 404);
    assert_string_equal(str(error, "error.code"), "not_found");
    cJSON_Delete(error);
    assert_int_equal(ws_refused(h, "/v1/responses", "Sec-WebSocket-Protocol: something, convo\r\n", &error), 400);
    assert_non_null(strstr(str(error, "error.message"), "sub-protocol"));
    cJSON_Delete(error);
    assert_int_equal(ws_refused(h, "/v1/responses", "Sec-WebSocket-Protocol: other, convod\r\n", NULL), 101);
    assert_int_equal(ws_refused(h, "/v1/responses", "Sec-WebSocket-Protocol: convod\r\n", NULL), 101);
    assert_int_equal(ws_refused(h, "/v1/responses", "Content-Length: 5\r\n", NULL), 400);
    assert_int_equal(ws_refused(h, "/v1/responses", "Transfer-Encoding: chunked\r\n", NULL), 411);
    /* permessage-deflate is offered and not taken. */
    int fd = dial(h);
    send_text(fd, "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: "
                  "WebSocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                  "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n");
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 101);
    assert_null(strstr(r.head, "deflate"));
    reply_free(&r);
    close(fd);
    fd = dial(h);
    send_text(fd, "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n\r\n");
    r = read_reply(fd);
    assert_int_equal(r.status, 426);
    assert_non_null(strstr(r.head, "\r\nUpgrade: websocket\r\n"));
    assert_non_null(strstr(r.head, "\r\nConnection: close, upgrade\r\n"));
    reply_free(&r);
    close(fd);
    harness_stop(h);
}

static void slow_reader_is_dropped(void **state)
{
    (void)state;
    static const char *const flags[] = {"--timeout-seconds", "1", NULL};
    struct harness *h = harness_start(flags);
    int fd = ws_dial(h);
    int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    /* About 50 MB of events that nobody reads: the server holds its limit, drops the reader, and goes on. */
    ws_create(fd, "many 200000", ",\"convod\":{\"on_disconnect\":\"finish\"}");
    fake_wait_started(1);
    struct reply r;
    bool dropped = false;
    while (!dropped) {
        r = call(h, "GET", "/metrics", NULL, NULL);
        dropped = strstr(r.body, "convod_connections_dropped_slow_total 1\n") != NULL;
        reply_free(&r);
    }
    close(fd);
    harness_stop(h);
}

/* Nothing more happens to an answer that is over: whoever reads it gets all of its long events, two of which are as
 * much as is written at once. */
static void long_events_come_to_their_end(void **state)
{
    (void)state;
    enum { WORDS = 9, LONG = 150000 };
    static const char *const flags[] = {"--ping-seconds", "3600", NULL};
    struct harness *h = harness_start(flags);
    int fd = ws_dial(h);
    char *text = malloc(WORDS * LONG + 1), attach[128];
    assert_non_null(text);
    memset(text, 'w', WORDS * LONG);
    for (int i = 1; i < WORDS; i++) {
        text[i * LONG] = ' ';
    }
    text[WORDS * LONG] = '\0';
    ws_create(fd, text, NULL);
    free(text);
    cJSON *e = ws_until(fd, "response.created");
    snprintf(attach, sizeof(attach), "{\"type\":\"convod.response.attach\",\"response_id\":\"%s\"}",
             str(e, "response.id"));
    cJSON_Delete(e);
    fake_wait_ended(1);
    for (int again = 0; again < 2; again++) {
        if (again) {
            ws_send(fd, attach);
        }
        e = ws_until(fd, "response.completed");
        assert_int_equal(strlen(str(e, "response.output.0.content.0.text")), WORDS * LONG);
        cJSON_Delete(e);
    }
    close(fd);
    harness_stop(h);
}

static void pings(void **state)
{
    (void)state;
    static const char *const flags[] = {"--ping-seconds", "1", "--timeout-seconds", "1", NULL};
    struct harness *h = harness_start(flags);
    int fd = ws_dial(h), silent = ws_dial(h);
    unsigned char head[2];
    assert_int_equal(recv(fd, head, 2, MSG_WAITALL), 2);
    assert_int_equal(head[0], 0x89);
    /* Who does not answer them is closed. */
    char *rest = read_all(silent);
    free(rest);
    close(fd);
    close(silent);
    harness_stop(h);
}

static void watchers_one_past(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h), watcher = ws_dial(h);
    ws_create(fd, "hold one two", NULL);
    cJSON *e = ws_read_json(fd);
    char attach[256];
    snprintf(attach, sizeof(attach),
             "{\"type\":\"convod.response.attach\",\"response_id\":\"%s\",\"starting_after\":4}",
             str(e, "response.id"));
    cJSON_Delete(e);
    e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    for (int i = 0; i < WATCHED_MAX + 1; i++) {
        ws_send(watcher, attach);
    }
    e = ws_read_json(watcher);
    assert_int_equal(num(e, "status"), 429);
    assert_string_equal(str(e, "error.code"), "rate_limit_exceeded");
    cJSON_Delete(e);
    fake_release(1);
    for (int i = 0; i < WATCHED_MAX; i++) {
        e = ws_until(watcher, "response.completed");
        cJSON_Delete(e);
    }
    /* Those have ended: there is room again. */
    ws_send(watcher, attach);
    e = ws_until(watcher, "response.completed");
    cJSON_Delete(e);
    ws_send(watcher, "{\"type\":\"none\"}");
    e = ws_read_json(watcher);
    assert_int_equal(num(e, "status"), 400);
    cJSON_Delete(e);
    close(fd);
    close(watcher);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_are_joined),
        cmocka_unit_test(bad_messages_close),
        cmocka_unit_test(masks_and_early_frames),
        cmocka_unit_test(large_messages_keep_their_order),
        cmocka_unit_test(hostile_json_keeps_the_socket),
        cmocka_unit_test(lanes),
        cmocka_unit_test(lane_limits),
        cmocka_unit_test(cancel_ends_as_incomplete),
        cmocka_unit_test(steering_fails),
        cmocka_unit_test(disconnect_policy),
        cmocka_unit_test(ephemeral_responses),
        cmocka_unit_test(upgrade_is_checked),
        cmocka_unit_test(slow_reader_is_dropped),
        cmocka_unit_test(long_events_come_to_their_end),
        cmocka_unit_test(pings),
        cmocka_unit_test(watchers_one_past),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* server_test.c - start, readiness, the simple routes, a streamed turn, and the way down. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

static void simple_routes(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = call(h, "GET", "/ready", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = call(h, "GET", "/v1/models", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "data.0.id"), "fake-model");
    assert_int_equal(num(r.json, "data.0.context_length"), 2048);
    assert_int_equal(num(r.json, "data.0.max_model_len"), 2048);
    assert_int_equal(num(r.json, "data.0.meta.n_ctx"), 2048);
    reply_free(&r);
    r = call(h, "GET", "/v1/convod/status", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(num(r.json, "pending_saves"), 0);
    assert_int_equal(num(r.json, "tiers.hot.budget_bytes"), 1000);
    assert_string_equal(str(r.json, "model.numerics"), "3 cpu");
    assert_string_equal(str(r.json, "usage.owner"), "local");
    assert_int_equal(num(r.json, "usage.conversations.used"), 3);
    assert_int_equal(num(r.json, "usage.conversations.limit"), 10);
    assert_int_equal(num(r.json, "usage.ledger_bytes.used"), 4000);
    assert_true(cJSON_IsNull(at(r.json, "usage.ledger_bytes.limit")));
    assert_int_equal(num(r.json, "usage.kv_bytes.used"), 500);
    assert_int_equal(num(r.json, "usage.kv_bytes.limit"), 600);
    reply_free(&r);
    r = call(h, "POST", "/tokenize", NULL, "{\"content\":\"ab\",\"add_special\":true}");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"tokens\":[1,97,98]}");
    reply_free(&r);
    r = call(h, "POST", "/detokenize", NULL, "{\"tokens\":[97,195,169,255,98]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"content\":\"a\xc3\xa9\xef\xbf\xbd"
                                "b\"}");
    reply_free(&r);
    static const char *const bad[][2] = {{"{}", "tokens"},
                                         {"{\"tokens\":\"ab\"}", "tokens"},
                                         {"{\"tokens\":[97,-1]}", "tokens[1]"},
                                         {"{\"tokens\":[256]}", "tokens[0]"},
                                         {"{\"tokens\":[0.5]}", "tokens[0]"},
                                         {"{\"tokens\":[1e300]}", "tokens[0]"},
                                         {"{\"tokens\":[[]]}", "tokens[0]"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        r = call(h, "POST", "/detokenize", NULL, bad[i][0]);
        assert_int_equal(r.status, 400);
        assert_string_equal(str(r.json, "error.param"), bad[i][1]);
        reply_free(&r);
    }
    enum { MOST = 131072 };
    char *many = malloc(3 * (MOST + 1) + 32);
    assert_non_null(many);
    for (int i = 0; i < 2; i++) {
        char *at = stpcpy(many, "{\"tokens\":[97");
        for (int n = 1; n < MOST + i; n++) {
            at = stpcpy(at, ",97");
        }
        stpcpy(at, "]}");
        r = call(h, "POST", "/detokenize", NULL, many);
        assert_int_equal(r.status, i ? 400 : 200);
        assert_true(!i || strcmp(str(r.json, "error.param"), "tokens") == 0);
        reply_free(&r);
    }
    free(many);
    r = call(h, "GET", "/metrics", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "convod_time_to_first_token_seconds_bucket"));
    reply_free(&r);
    r = call(h, "GET", "/nothing", NULL, NULL);
    assert_int_equal(r.status, 404);
    reply_free(&r);
    r = call(h, "POST", "/health", NULL, "{}");
    assert_int_equal(r.status, 405);
    reply_free(&r);
    assert_int_equal(harness_stop(h), 0);
}

/* A long text is made where others do not wait for it; a short one at once, whoever is being worked for. */
static void long_texts_are_made_away(void **state)
{
    (void)state;
    enum { MANY = 1000, BELL = 64 };
    struct harness *h = harness_start(NULL);
    char many[2 * MANY + 32], *at = many;
    for (int i = 0; i < MANY; i++) {
        at += sprintf(at, i ? ",7" : "{\"tokens\":[7");
    }
    strcpy(at, "]}");
    struct reply r = call(h, "POST", "/detokenize", NULL, many);
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(str(r.json, "content")), MANY * BELL);
    reply_free(&r);
    /* One owner has no more threads than these: what comes then waits for its turn. */
    int waiting[4];
    for (int i = 0; i < 4; i++) {
        waiting[i] = dial(h);
        send_request(waiting[i], "POST", i < 3 ? "/tokenize" : "/detokenize", NULL,
                     i < 3 ? "{\"content\":\"wait\"}" : many);
        if (i < 2) {
            fake_wait_started(i + 1);
        }
    }
    r = call(h, "POST", "/detokenize", NULL, "{\"tokens\":[65,66]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"content\":\"AB\"}");
    reply_free(&r);
    assert_true(quiet(waiting[2], 0) && quiet(waiting[3], 0));
    fake_release(3);
    for (int i = 0; i < 4; i++) {
        r = read_reply(waiting[i]);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        close(waiting[i]);
    }
    assert_int_equal(harness_stop(h), 0);
}

static void streams_over_websocket(void **state)
{
    (void)state;
    static const char *const order[] = {"response.created",           "response.in_progress",
                                        "response.output_item.added", "response.content_part.added",
                                        "response.output_text.delta", "response.output_text.delta",
                                        "response.output_text.done",  "response.content_part.done",
                                        "response.output_item.done",  "response.completed"};
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    ws_create(fd, "echo hello world", NULL);
    char id[64] = "";
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
        cJSON *e = ws_read_json(fd);
        assert_string_equal(str(e, "type"), order[i]);
        assert_int_equal(num(e, "sequence_number"), i);
        if (i == 0) {
            snprintf(id, sizeof(id), "%s", str(e, "response.id"));
            assert_string_equal(str(e, "response.status"), "in_progress");
        }
        if (i == 4) {
            assert_string_equal(str(e, "delta"), "hello ");
        }
        if (i == 6) {
            assert_string_equal(str(e, "text"), "hello world");
        }
        if (i == 9) {
            assert_string_equal(str(e, "response.id"), id);
            assert_string_equal(str(e, "response.output.0.content.0.text"), "hello world");
            assert_int_equal(num(e, "response.usage.input_tokens"), 7);
            assert_int_equal(num(e, "response.usage.input_tokens_details.cached_tokens"), 3);
            assert_int_equal(num(e, "response.usage.total_tokens"), 12);
            assert_int_equal(num(e, "response.convod.tokens.prefilled"), 4);
        }
        cJSON_Delete(e);
    }
    close(fd);
    assert_int_equal(harness_stop(h), 0);
}

static void serves_while_loading(void **state)
{
    (void)state;
    fake_reset();
    fake_hold_loading(true);
    struct harness *h = harness_start_loading(NULL);
    struct reply r = call(h, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = call(h, "GET", "/ready", NULL, NULL);
    assert_int_equal(r.status, 503);
    assert_string_equal(str(r.json, "status"), "loading");
    assert_true(num(r.json, "progress") >= 0);
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"hi\"}");
    assert_int_equal(r.status, 503);
    assert_string_equal(str(r.json, "error.code"), "model_loading");
    assert_non_null(strstr(r.head, "Retry-After:"));
    reply_free(&r);
    int fd = ws_dial(h);
    ws_create(fd, "hi", NULL);
    cJSON *e = ws_read_json(fd);
    assert_string_equal(str(e, "error.code"), "model_loading");
    assert_string_equal(str(e, "headers.Retry-After"), "1"); /* nobody knows yet */
    assert_int_equal(num(e, "status"), 503);
    cJSON_Delete(e);
    fake_release_loading();
    harness_wait_ready(h);
    ws_create(fd, "hi", NULL);
    e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    close(fd);
    char *log = harness_log(h);
    char line[64];
    snprintf(line, sizeof(line), "convod: ready on http://127.0.0.1:%d\n", h->port);
    assert_non_null(strstr(log, line));
    free(log);
    assert_int_equal(harness_stop(h), 0);
}

static void loading_fails(void **state)
{
    (void)state;
    fake_reset();
    fake_fail_loading(true);
    struct harness *h = harness_start_loading(NULL);
    harness_wait_ready(h);
    char *log = harness_log(h);
    assert_non_null(strstr(log, "the double was told to fail"));
    assert_null(strstr(log, "ready on"));
    free(log);
    assert_true(harness_stop(h) < 0);
}

/* The process ends with an error, so that whoever watches it starts another. */
static void device_fails(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    fake_fail_device(true);
    pthread_mutex_lock(&h->lock);
    while (!h->ended) {
        pthread_cond_wait(&h->changed, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    fake_fail_device(false);
    char *log = harness_log(h);
    assert_non_null(strstr(log, "the device has failed"));
    free(log);
    assert_int_equal(harness_stop(h), -EIO);
}

static void stop_ends_turns_and_says_goodbye(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h), sse = dial(h), idle = ws_dial(h);
    ws_create(fd, "hold one two", NULL);
    send_request(sse, "POST", "/v1/responses", NULL, "{\"input\":\"hold one two\",\"stream\":true}");
    fake_wait_started(2);
    cJSON *e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    server_stop(h->server);
    e = ws_until(fd, "response.incomplete");
    assert_string_equal(str(e, "response.status"), "incomplete");
    assert_string_equal(str(e, "response.convod.incomplete_reason"), "shutdown");
    assert_string_equal(str(e, "response.output.0.content.0.text"), "one ");
    cJSON_Delete(e);
    int code;
    assert_null(ws_read(fd, &code));
    assert_int_equal(code, 1001);
    assert_null(ws_read(idle, &code));
    assert_int_equal(code, 1001);
    struct reply r = read_reply(sse);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "event: response.incomplete"));
    reply_free(&r);
    close(fd);
    close(sse);
    close(idle);
    assert_int_equal(harness_stop(h), 0);
}

/* The session is not closed under a text that is being tokenized; those that wait are not begun. */
static void stop_waits_for_workers(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(h);
        send_request(fd[i], "POST", "/tokenize", NULL, "{\"content\":\"wait\"}");
        if (i < 2) {
            fake_wait_started(i + 1);
        }
    }
    struct reply r = call(h, "GET", "/health", NULL, NULL); /* the third has come before */
    reply_free(&r);
    server_stop(h->server);
    do {
        reply_free(&r);
        r = call(h, "GET", "/ready", NULL, NULL);
    } while (strcmp(str(r.json, "status"), "stopping") != 0);
    reply_free(&r);
    fake_release(2);
    for (int i = 0; i < 3; i++) {
        r = read_reply(fd[i]);
        assert_int_equal(r.status, i < 2 ? 200 : 503);
        assert_string_equal(i < 2 ? r.body : str(r.json, "error.code"),
                            i < 2 ? "{\"tokens\":[119,97,105,116]}" : "server_shutdown");
        reply_free(&r);
        close(fd[i]);
    }
    assert_int_equal(harness_stop(h), 0);
}

/* What requests hold is bounded: a large one is refused while it arrives, any one when those before it hold too much.
 */
static void requests_share_a_budget(void **state)
{
    (void)state;
    const char *const flags[] = {"--request-bytes", "120K", NULL};
    struct harness *h = harness_start(flags);
    enum { LARGE = 200000, SMALL = 6500 };
    char *large = malloc(LARGE + 64), small[SMALL + 64];
    assert_non_null(large);
    int n = sprintf(large, "{\"input\":\"");
    memset(large + n, 'x', LARGE);
    strcpy(large + n + LARGE, "\"}");
    n = sprintf(small, ",\"instructions\":\"");
    memset(small + n, 'y', SMALL);
    strcpy(small + n + SMALL, "\"");

    int fd = dial(h), code;
    send_request(fd, "POST", "/v1/responses", NULL, large);
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 429);
    assert_string_equal(str(r.json, "error.code"), "rate_limit_exceeded");
    reply_free(&r);
    close(fd);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo still here\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    fd = ws_dial(h);
    ws_send_frame(fd, 1, true, large, strlen(large));
    assert_null(ws_read(fd, &code));
    assert_int_equal(code, 1013);
    close(fd);

    /* Who holds most of what is unfinished gives way: others are served, and the next largest stay. */
    int halves[3];
    for (int i = 0; i < 3; i++) {
        halves[i] = i ? ws_dial(h) : dial(h);
        if (i) {
            ws_send_frame(halves[i], 1, false, large, 30000);
        } else {
            send_text(halves[i], "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n");
            send_bytes(halves[i], large, 40000);
        }
    }
    r = read_reply(halves[0]);
    assert_int_equal(r.status, 429);
    reply_free(&r);
    for (int i = 0; i < 3; i++) {
        close(halves[i]);
    }

    fd = ws_dial(h);
    int before = fake_turns_started();
    for (int i = 0; i < 4; i++) {
        char more[SMALL + 128];
        snprintf(more, sizeof(more), ",\"stream_id\":\"lane%d\"%s", i, small);
        ws_create(fd, "wait", more);
    }
    fake_wait_started(before + 4);
    char body[SMALL + 128];
    snprintf(body, sizeof(body), "{\"input\":\"echo a\"%s}", small);
    r = call(h, "POST", "/v1/responses", NULL, body);
    assert_int_equal(r.status, 429);
    assert_string_equal(str(r.json, "error.code"), "rate_limit_exceeded");
    reply_free(&r);
    fake_release(4);
    for (int i = 0; i < 4; i++) {
        cJSON_Delete(ws_until(fd, "response.completed"));
    }
    r = call(h, "POST", "/v1/responses", NULL, body);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    close(fd);
    free(large);
    harness_stop(h);
}

static double pieces_of_work(struct harness *h)
{
    struct reply r = call(h, "GET", "/metrics", NULL, NULL);
    const char *line = strstr(r.body, "\nconvod_network_stall_seconds_count ");
    assert_non_null(line);
    double n = strtod(strchr(line + 1, ' '), NULL);
    reply_free(&r);
    return n;
}

/* A server to which nothing happens is not woken, with a WebSocket at rest or without. */
static void nothing_happens(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    double before = pieces_of_work(h), request = pieces_of_work(h) - before;
    before = pieces_of_work(h);
    poll(NULL, 0, 3000);
    /* One look at it 250 ms after the request before, and one at the most in 10 s: it was four in a second. */
    assert_true(pieces_of_work(h) - before <= request + 4);
    /* And it does what is asked. */
    ws_create(fd, "echo a", "");
    cJSON_Delete(ws_until(fd, "response.completed"));
    close(fd);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_routes),          cmocka_unit_test(streams_over_websocket),
        cmocka_unit_test(serves_while_loading),   cmocka_unit_test(loading_fails),
        cmocka_unit_test(device_fails),           cmocka_unit_test(stop_ends_turns_and_says_goodbye),
        cmocka_unit_test(stop_waits_for_workers), cmocka_unit_test(requests_share_a_budget),
        cmocka_unit_test(nothing_happens),        cmocka_unit_test(long_texts_are_made_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

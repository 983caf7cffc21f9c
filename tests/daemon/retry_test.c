/* retry_test.c - a repeated POST finds the turn of the first attempt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static void repeated_posts(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char body[] = "{\"input\":\"hold a b\",\"convod\":{\"on_disconnect\":\"finish\"}}";
    static const char first[] = "x-stainless-retry-count: 0\r\n", again[] = "x-stainless-retry-count: 1\r\n";
    int fd = dial(h);
    send_request(fd, "POST", "/v1/responses", first, body);
    fake_wait_started(1);
    close(fd);
    /* While it runs. */
    fd = dial(h);
    send_request(fd, "POST", "/v1/responses", again, body);
    fake_release(1);
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "output.0.content.0.text"), "a b");
    char id[64];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    reply_free(&r);
    close(fd);
    /* After it has ended, when nobody has got the answer; once somebody has all of it, the same words are new ones. */
    static const char other[] = "{\"input\":\"hold c d\",\"convod\":{\"on_disconnect\":\"finish\"}}";
    fd = dial(h);
    send_request(fd, "POST", "/v1/responses", first, other);
    fake_wait_started(2);
    close(fd);
    fake_release(1);
    fake_wait_ended(2);
    r = call(h, "POST", "/v1/responses", again, other);
    assert_string_equal(str(r.json, "output.0.content.0.text"), "c d");
    assert_string_not_equal(str(r.json, "id"), id);
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 2);
    fake_wait_delivered(2);
    fake_release(1);
    r = call(h, "POST", "/v1/responses", again, other);
    assert_string_not_equal(str(r.json, "id"), id);
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 3);
    /* Another body, or no retry, is a new turn; so is the retry of what failed. */
    r = call(h, "POST", "/v1/responses", again, "{\"input\":\"echo a\"}");
    assert_string_not_equal(str(r.json, "id"), id);
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo a\"}");
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 5);
    r = call(h, "POST", "/v1/responses", first, "{\"input\":\"refuse 6\"}");
    assert_int_equal(r.status, 429);
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", again, "{\"input\":\"refuse 6\"}");
    assert_int_equal(r.status, 429);
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 7);
    harness_stop(h);
}

/* What the peer's system has acknowledged has not come to whoever asked when it is thrown away there, as a proxy does
 * whose client has gone. */
static void thrown_away_posts(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char body[] = "{\"input\":\"echo a b\"}";
    int fd = dial(h);
    send_request(fd, "POST", "/v1/responses", NULL, body);
    char piece[4096];
    ssize_t there = 0;
    for (ssize_t before = -1; there == 0 || there != before;) {
        before = there;
        usleep(100000);
        there = recv(fd, piece, sizeof(piece), MSG_PEEK);
        assert_true(there > 0);
    }
    assert_int_equal(recv(fd, piece, (size_t)there - 1, 0), there - 1);
    usleep(100000);
    close(fd);
    struct reply r = call(h, "POST", "/v1/responses", "x-stainless-retry-count: 1\r\n", body);
    assert_string_equal(str(r.json, "output.0.content.0.text"), "a b");
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 1);
    harness_stop(h);
}

/* A turn that ended because its reader went away is not what a retry gets: it runs anew. */
static void abandoned_posts(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char body[] = "{\"input\":\"hold a b\"}";
    static const char *const again[] = {"x-stainless-retry-count: 1\r\n", "Idempotency-Key: k\r\n"};
    for (int i = 0; i < 2; i++) {
        int fd = dial(h);
        send_request(fd, "POST", "/v1/responses", again[i], body);
        fake_wait_started(2 * i + 1);
        close(fd);
        fake_wait_cancelled(i + 1);
        fd = dial(h);
        send_request(fd, "POST", "/v1/responses", again[i], body);
        fake_wait_started(2 * i + 2);
        fake_release(1);
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 200);
        assert_string_equal(str(r.json, "status"), "completed");
        assert_string_equal(str(r.json, "output.0.content.0.text"), "a b");
        reply_free(&r);
        close(fd);
    }
    harness_stop(h);
}

static void idempotency_keys(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char key[] = "Idempotency-Key: k1\r\n";
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"echo a\"}]}";
    struct reply r = call(h, "POST", "/v1/chat/completions", key, body);
    char id[64];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", key, body);
    assert_string_equal(str(r.json, "id"), id);
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", key, "{\"messages\":[{\"role\":\"user\",\"content\":\"echo b\"}]}");
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.code"), "idempotency_key_reused");
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 1);
    r = call(h, "POST", "/v1/chat/completions", "Idempotency-Key: k2\r\n", body);
    assert_string_not_equal(str(r.json, "id"), id);
    reply_free(&r);
    assert_int_equal(fake_turns_started(), 2);
    for (int n = 255; n <= 256; n++) {
        char header[300];
        snprintf(header, sizeof(header), "Idempotency-Key: %0*d\r\n", n, 1);
        r = call(h, "POST", "/v1/chat/completions", header, body);
        assert_int_equal(r.status, n == 255 ? 200 : 400);
        assert_string_equal(str(r.json, "error.code"), n == 255 ? "" : "invalid_header");
        reply_free(&r);
    }
    /* What is not stored has one while it runs. */
    static const char passing[] = "{\"input\":\"hold a b\",\"store\":false,\"stream\":true}",
                      own[] = "Idempotency-Key: k3\r\n";
    const int before = fake_turns_started();
    struct reply streams[2];
    int fds[2];
    for (int i = 0; i < 2; i++) {
        char first;
        fds[i] = dial(h);
        send_request(fds[i], "POST", "/v1/responses", own, passing);
        assert_int_equal(recv(fds[i], &first, 1, MSG_PEEK), 1); /* it has come to the run */
    }
    r = call(h, "POST", "/v1/responses", own, "{\"input\":\"echo c\",\"store\":false}");
    assert_string_equal(str(r.json, "error.code"), "idempotency_key_reused");
    reply_free(&r);
    fake_release(1);
    for (int i = 0; i < 2; i++) {
        streams[i] = read_reply(fds[i]);
        close(fds[i]);
    }
    assert_non_null(strstr(streams[0].body, "response.completed"));
    assert_string_equal(streams[0].body, streams[1].body);
    reply_free(&streams[0]);
    reply_free(&streams[1]);
    assert_int_equal(fake_turns_started(), before + 1);
    static const char *const empty[] = {"Idempotency-Key: \r\n", "Idempotency-Key:   \r\n"};
    for (int i = 0; i < 2; i++) {
        r = call(h, "POST", "/v1/chat/completions", empty[i], body);
        assert_int_equal(r.status, 400);
        assert_string_equal(str(r.json, "error.code"), "invalid_header");
        reply_free(&r);
    }
    assert_int_equal(fake_turns_started(), before + 1);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeated_posts),
        cmocka_unit_test(thrown_away_posts),
        cmocka_unit_test(abandoned_posts),
        cmocka_unit_test(idempotency_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

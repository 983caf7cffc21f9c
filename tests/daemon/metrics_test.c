/* metrics_test.c - /metrics: its form, and what is counted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "session/session.h"
#include "tests/daemon/harness.h"

/* The number behind a name (with its labels), -1: there is no such row. */
static double value(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ' ') {
            return strtod(line + n, NULL);
        }
    }
    return -1;
}

static void counts(void **state)
{
    (void)state;
    struct metrics m = {.requests = 3};
    struct session_status st = {
        .hot_used = 1, .hot_budget = 4, .saved_bytes = 77, .save_us = 2500000, .running = 3, .ahead = 2};
    struct session_receipt r = {.bytes_read = 10, .ttft_ms = 3, .n_reprefilled = 2};
    r.reprefilled[0].reason = "blob_damaged";
    r.reprefilled[0].tokens = 5;
    r.reprefilled[1].reason = "logits";
    r.reprefilled[1].tokens = 1;
    struct histogram itl = {0};
    metrics_observe(&itl, 0.004);
    metrics_observe(&itl, 0.3);
    metrics_turn(&m, 100, 90, &r, &itl);
    metrics_turn(&m, 100, 90, &r, &itl);
    char *text = metrics_text(&m, &st, true, 9);
    assert_non_null(text);
    assert_true(value(text, "convod_prompt_tokens_total") == 200);
    assert_true(value(text, "convod_cached_tokens_total") == 180);
    assert_true(value(text, "convod_reprefilled_tokens_total{reason=\"blob_damaged\"}") == 10);
    assert_true(value(text, "convod_reprefilled_tokens_total{reason=\"logits\"}") == 2);
    assert_true(value(text, "convod_restore_read_bytes_total") == 20);
    assert_true(value(text, "convod_save_bytes_total") == 77);
    assert_true(value(text, "convod_num_requests_running") == 3);
    assert_true(value(text, "convod_contexts_ahead") == 2);
    assert_true(value(text, "convod_save_seconds_total") == 2.5);
    assert_true(value(text, "convod_inter_token_latency_seconds_count") == 4);
    assert_true(value(text, "convod_inter_token_latency_seconds_bucket{le=\"0.005\"}") == 2);
    assert_true(value(text, "convod_inter_token_latency_seconds_bucket{le=\"+Inf\"}") == 4);
    assert_true(value(text, "convod_kv_cache_usage_perc{tier=\"hot\"}") == 0.25);
    assert_true(value(text, "convod_connections") == 9);
    assert_true(value(text, "convod_build_info{version=\"" CONVOD_VERSION "\"}") == 1);
    free(text);
}

/* What is refused before it is understood is a request as well: errors are some of them. */
static void refusals_are_requests(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (int i = 0; i < 3; i++) {
        int fd = dial(h);
        send_text(fd, "GET /health HTTP/1.1\nHost: localhost\n\n");
        struct reply r = read_reply(fd);
        assert_int_equal(r.status, 400);
        reply_free(&r);
        close(fd);
    }
    struct reply r = call(h, "GET", "/metrics", NULL, NULL);
    assert_true(value(r.body, "convod_http_requests_total") == 4);
    assert_true(value(r.body, "convod_http_errors_total") == 3);
    reply_free(&r);
    harness_stop(h);
}

/* Those who ask every few seconds whether all is well do not fill the log. */
static void probes_are_quiet(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/models", "/health", "/ready", "/metrics", "/health"};
    struct harness *h = harness_start(NULL);
    h->log.level = LOG_INFO;
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        struct reply r = call(h, "GET", paths[i], NULL, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    assert_int_equal(harness_logged(h, "local GET /v1/models 200, ", " ms"), 1);
    assert_int_equal(harness_logged(h, " GET ", " ms"), 1);
    harness_stop(h);
}

/* Every row belongs to the metric whose HELP and TYPE stand before it; counters end in _total. */
static void form(void **state)
{
    (void)state;
    struct metrics m = {0};
    struct session_status st = {0};
    char *text = metrics_text(&m, &st, false, 0), *rest, name[80] = "";
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char next[80], type[16], help[8];
        if (sscanf(line, "# HELP %79s %7s", next, help) == 2) {
            snprintf(name, sizeof(name), "%s", next);
        } else if (sscanf(line, "# TYPE %79s %15s", next, type) == 2) {
            assert_string_equal(next, name);
            bool total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
            assert_int_equal(total, strcmp(type, "counter") == 0);
        } else if (strncmp(line, name, strlen(name)) != 0) {
            fail_msg("%s stands under %s", line, name);
        }
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(form),
        cmocka_unit_test(refusals_are_requests),
        cmocka_unit_test(probes_are_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* responses_test.c - what a create body may say, and the routes under /v1/responses. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

struct refusal {
    const char *body, *code, *param;
    int status;
};

static void bodies_are_checked(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"", "invalid_json", "", 400},
        {"{\"input\":\"\"}", "invalid_value", "input", 400},
        {"{}", "missing_required_parameter", "input", 400},
        {"{\"input\":[]}", "invalid_value", "input", 400},
        {"{\"input\":5}", "invalid_type", "input", 400},
        {"{\"input\":{\"a\":1}}", "invalid_type", "input", 400},
        {"{\"input\":[-1]}", "invalid_type", "input[0]", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"king\",\"content\":\"x\"}]}", "invalid_value",
         "input[1].role", 400},
        {"{\"input\":[{\"content\":\"x\"}]}", "missing_required_parameter", "input[0].role", 400},
        {"{\"input\":[{\"role\":\"user\"}]}", "invalid_type", "input[0].content", 400},
        {"{\"input\":[{\"role\":5,\"content\":\"x\"}]}", "invalid_type", "input[0].role", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]}",
         "invalid_value", "input[0].content[0]", 400},
        {"{\"input\":[{\"role\":\"user\",\"content\":[5]}]}", "invalid_value", "input[0].content[0]", 400},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}", "missing_required_parameter", "input[0].call_id",
         400},
        {"{\"input\":\"x\",\"max_output_tokens\":0}", "invalid_value", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"max_output_tokens\":-5}", "invalid_value", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"max_output_tokens\":1.5}", "invalid_type", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"max_output_tokens\":1e300}", "invalid_value", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"max_output_tokens\":\"5\"}", "invalid_type", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"temperature\":\"hot\"}", "invalid_type", "temperature", 400},
        {"{\"input\":\"x\",\"temperature\":10.01}", "invalid_value", "temperature", 400},
        {"{\"input\":\"x\",\"temperature\":-0.1}", "invalid_value", "temperature", 400},
        {"{\"input\":\"x\",\"top_p\":1.1}", "invalid_value", "top_p", 400},
        {"{\"input\":\"x\",\"store\":1}", "invalid_type", "store", 400},
        {"{\"input\":\"x\",\"stream\":\"yes\"}", "invalid_type", "stream", 400},
        {"{\"input\":\"x\",\"generate\":0}", "invalid_type", "generate", 400},
        {"{\"input\":\"x\",\"instructions\":[]}", "invalid_type", "instructions", 400},
        {"{\"input\":\"x\",\"convod\":{\"priority\":\"high\"}}", "invalid_value", "convod.priority", 400},
        {"{\"input\":\"x\",\"convod\":{\"priority\":1}}", "invalid_type", "convod.priority", 400},
        {"{\"input\":\"x\",\"background\":true,\"store\":false}", "invalid_value", "background", 400},
        {"{\"input\":\"x\",\"top_logprobs\":21}", "invalid_value", "top_logprobs", 400},
        {"{\"input\":\"x\",\"include\":5}", "invalid_type", "include", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"yaml\"}}}", "invalid_value", "text.format.type", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\"}}}",
         "missing_required_parameter", "text.format.schema", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"a\",\"strict\":true,\"schema\":{"
         "\"not\":{}}}}}",
         "invalid_json_schema", "text.format.schema", 400},
        {"{\"input\":\"x\",\"metadata\":[]}", "invalid_type", "metadata", 400},
        {"{\"input\":\"x\",\"metadata\":{\"a\":1}}", "invalid_type", "metadata.a", 400},
        {"{\"input\":\"x\",\"model\":7}", "invalid_type", "model", 400},
        {"{\"input\":\"x\",\"model\":\"other\"}", "model_not_found", "model", 404},
        {"{\"input\":\"x\",\"previous_response_id\":\"resp_none\"}", "previous_response_not_found",
         "previous_response_id", 400},
        {"{\"input\":\"x\",\"previous_response_id\":\"nonsense\"}", "previous_response_not_found",
         "previous_response_id", 400},
        {"{\"input\":\"x\",\"conversation\":\"conv_none\"}", "conversation_not_found", "conversation", 404},
        {"{\"input\":\"x\",\"conversation\":\"../../etc\"}", "conversation_not_found", "conversation", 404},
        {"{\"input\":\"x\",\"conversation\":{}}", "missing_required_parameter", "conversation.id", 400},
        {"{\"input\":\"x\",\"conversation\":{\"id\":5}}", "invalid_type", "conversation.id", 400},
        {"{\"input\":\"x\",\"conversation\":5}", "invalid_type", "conversation", 400},
        {"{\"input\":\"x\",\"conversation\":\"conv_a\",\"previous_response_id\":\"resp_a\"}",
         "mutually_exclusive_parameters", "previous_response_id", 400},
        {"{\"input\":\"x\",\"convod\":5}", "invalid_type", "convod", 400},
        {"{\"input\":\"x\",\"convod\":{\"top_k\":-2}}", "invalid_value", "convod.top_k", 400},
        {"{\"input\":\"x\",\"convod\":{\"min_p\":2}}", "invalid_value", "convod.min_p", 400},
        {"{\"input\":\"x\",\"convod\":{\"presence_penalty\":1e300}}", "invalid_value", "convod.presence_penalty", 400},
        {"{\"input\":\"x\",\"convod\":{\"repetition_penalty\":0}}", "invalid_value", "convod.repetition_penalty", 400},
        {"{\"input\":\"x\",\"convod\":{\"seed\":-1e19}}", "invalid_value", "convod.seed", 400},
        {"{\"input\":\"x\",\"convod\":{\"seed\":1e19}}", "invalid_value", "convod.seed", 400},
        {"{\"input\":\"x\",\"convod\":{\"stop\":[1]}}", "invalid_type", "convod.stop", 400},
        {"{\"input\":\"x\",\"stop\":[1]}", "invalid_type", "stop", 400},
        {"{\"input\":\"x\",\"convod\":{\"stop\":\"\"}}", "invalid_value", "convod.stop", 400},
        {"{\"input\":\"x\",\"convod\":{\"parent\":\"resp_a\"}}", "invalid_value", "convod.parent", 400},
        {"{\"input\":\"x\",\"conversation\":\"conv_a\",\"convod\":{\"parent\":\"x\"}}", "invalid_value",
         "convod.parent", 400},
        {"{\"input\":\"x\",\"convod\":{\"on_disconnect\":\"explode\"}}", "invalid_value", "convod.on_disconnect", 400},
        {"{\"input\":\"x\",\"convod\":{\"progress\":\"yes\"}}", "invalid_type", "convod.progress", 400},
        {"{\"input\":\"a\xff\"}", "invalid_json", "", 400},
        {"{\"input\":\"refuse 4\"}", "context_length_exceeded", "input", 400},
        {"{\"input\":\"refuse 5\"}", "invalid_request_error", "input", 400},
        {"{\"input\":\"refuse 6\"}", "rate_limit_exceeded", "", 429},
        {"{\"input\":\"refuse 7\"}", "insufficient_memory", "", 503},
        {"{\"input\":\"refuse 8\"}", "server_error", "", 500},
        {"{\"input\":\"refuse 11\"}", "server_error", "", 500},
        {"{\"input\":\"refuse 15\"}", "disk_full", "", 507},
        {"{\"input\":\"refuse 16\"}", "quota_exceeded", "", 403},
        {"{\"input\":\"start -12\"}", "server_error", "", 500},
        {"{\"input\":\"fail\"}", "server_error", "", 500},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct refusal *c = &cases[i];
        struct reply r = call(h, "POST", "/v1/responses", NULL, c->body);
        if (r.status != c->status || strcmp(str(r.json, "error.code"), c->code) != 0 ||
            strcmp(str(r.json, "error.param"), c->param) != 0 || !*str(r.json, "error.message")) {
            fail_msg("%s: %d %s", c->body, r.status, r.body);
        }
        bool later = c->status == 429 || c->status == 503;
        assert_int_equal(strstr(r.head, "Retry-After: 7\r\n") != NULL, later); /* what the session says */
        assert_int_equal(strstr(r.head, "Retry-After:") != NULL, later);
        /* The same over SSE, as long as nothing was sent. */
        reply_free(&r);
    }
    harness_stop(h);
}

static void limits_one_past(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    char *body = NULL;
    struct reply r;
    /* 16 stop strings of 256 bytes, and one more of each. */
    for (int n = 16; n <= 17; n++) {
        char list[256] = "";
        for (int i = 0; i < n; i++) {
            strcat(list, i ? ",\"s\"" : "\"s\"");
        }
        assert_true(asprintf(&body, "{\"input\":\"echo x\",\"convod\":{\"stop\":[%s]}}", list) > 0);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, n == 16 ? 200 : 400);
        reply_free(&r);
        free(body);
    }
    for (int n = 256; n <= 257; n++) {
        assert_true(asprintf(&body, "{\"input\":\"echo x\",\"convod\":{\"stop\":\"%0*d\"}}", n, 0) > 0);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, n == 256 ? 200 : 400);
        reply_free(&r);
        free(body);
    }
    for (int n = 512; n <= 513; n++) {
        assert_true(asprintf(&body, "{\"input\":\"echo x\",\"metadata\":{\"k\":\"%0*d\"}}", n, 0) > 0);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, n == 512 ? 200 : 400);
        reply_free(&r);
        free(body);
    }
    for (int n = 64; n <= 65; n++) {
        assert_true(asprintf(&body, "{\"input\":\"echo x\",\"metadata\":{\"%0*d\":\"v\"}}", n, 0) > 0);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, n == 64 ? 200 : 400);
        reply_free(&r);
        free(body);
    }
    for (int n = 16; n <= 17; n++) {
        char pairs[512] = "";
        for (int i = 0; i < n; i++) {
            snprintf(pairs + strlen(pairs), 32, "%s\"k%d\":\"v\"", i ? "," : "", i);
        }
        assert_true(asprintf(&body, "{\"input\":\"echo x\",\"metadata\":{%s}}", pairs) > 0);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, n == 16 ? 200 : 400);
        reply_free(&r);
        free(body);
    }
    harness_stop(h);
}

static void parameters_are_echoed(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r =
        call(h, "POST", "/v1/responses", NULL,
             "{\"input\":[{\"type\":\"reasoning\",\"summary\":[]},{\"role\":\"developer\",\"content\":\"be brief\"},"
             "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"echo \"},"
             "{\"type\":\"input_text\",\"text\":\"two parts\"}]}],\"model\":\"fake\",\"instructions\":\"be kind\","
             "\"temperature\":0,\"top_p\":0.5,\"max_output_tokens\":9,\"metadata\":{\"k\":\"v\"},\"unknown\":1,"
             "\"tools\":[{\"type\":\"web_search\"}],\"convod\":{\"seed\":9007199254740991}}");
    assert_int_equal(r.status, 200);
    char id[64], path[128];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    assert_string_equal(str(r.json, "output.0.content.0.text"), "two parts");
    snprintf(path, sizeof(path), "/v1/responses/%s", id);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(str(r.json, "object"), "response");
        assert_string_equal(str(r.json, "status"), "completed");
        assert_string_equal(str(r.json, "instructions"), "be kind");
        assert_true(num(r.json, "temperature") == 0);
        assert_true(num(r.json, "top_p") == 0.5);
        assert_int_equal(num(r.json, "max_output_tokens"), 9);
        assert_string_equal(str(r.json, "metadata.k"), "v");
        assert_non_null(strstr(r.body, "\"seed\":9007199254740991")); /* all digits */
        assert_true(cJSON_IsTrue(at(r.json, "store")));
        assert_string_equal(str(r.json, "convod.saved"), i ? "yes" : "pending");
        assert_int_equal(num(r.json, "usage.output_tokens_details.reasoning_tokens"), 0);
        assert_int_equal(num(r.json, "usage.input_tokens_details.cache_write_tokens"), 0);
        reply_free(&r);
        r = call(h, "GET", path, NULL, NULL);
        assert_int_equal(r.status, 200);
    }
    reply_free(&r);
    strcat(path, "/input_items?order=asc&limit=1");
    r = call(h, "GET", path, NULL, NULL);
    assert_string_equal(str(r.json, "data.0.role"), "system");
    assert_true(cJSON_IsTrue(at(r.json, "has_more")));
    reply_free(&r);
    harness_stop(h);
}

static void life_of_a_response(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo one two\"}");
    char path[128], stream[160];
    snprintf(path, sizeof(path), "/v1/responses/%s", str(r.json, "id"));
    reply_free(&r);
    /* Streamed again from the memory of the run: the original events. */
    snprintf(stream, sizeof(stream), "%s?stream=true", path);
    r = call(h, "GET", stream, NULL, NULL);
    assert_non_null(strstr(r.body, "event: response.created"));
    assert_non_null(strstr(r.body, "\"delta\":\"one \""));
    reply_free(&r);
    /* HEAD gets headers alone. */
    int fd = dial(h);
    char head[256];
    snprintf(head, sizeof(head), "HEAD %s HTTP/1.0\r\nHost: localhost\r\n\r\n", stream);
    send_text(fd, head);
    char *all = read_all(fd);
    const char *end = strstr(all, "\r\n\r\n");
    if (!strstr(all, "200 OK") || !strstr(all, "application/json") || !end || end[4]) {
        fail_msg("%s", all);
    }
    free(all);
    close(fd);
    snprintf(stream, sizeof(stream), "%s?stream=true&starting_after=100", path);
    r = call(h, "GET", stream, NULL, NULL);
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.param"), "starting_after");
    reply_free(&r);
    /* Two at the start, two of the item, two deltas, four at the end: after the last there is nothing. */
    snprintf(stream, sizeof(stream), "%s?stream=true&starting_after=9", path);
    r = call(h, "GET", stream, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.body, "event:"));
    reply_free(&r);
    snprintf(stream, sizeof(stream), "%s?stream=true&starting_after=10", path);
    r = call(h, "GET", stream, NULL, NULL);
    assert_int_equal(r.status, 400);
    reply_free(&r);
    r = call(h, "GET", "/v1/responses/resp_x?stream=maybe", NULL, NULL);
    assert_int_equal(r.status, 400);
    reply_free(&r);
    r = call(h, "DELETE", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_true(cJSON_IsTrue(at(r.json, "deleted")));
    reply_free(&r);
    r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 404);
    assert_string_equal(str(r.json, "error.code"), "response_not_found");
    reply_free(&r);
    r = call(h, "GET", "/v1/responses/nonsense", NULL, NULL);
    assert_int_equal(r.status, 404);
    reply_free(&r);
    r = call(h, "POST", "/v1/responses/resp_none/cancel", NULL, "");
    assert_int_equal(r.status, 404);
    reply_free(&r);
    harness_stop(h);
}

/* What is long is made by the workers: not while all that an owner may have of them have something to do, whatever else
 * the network thread does meanwhile. */
static void made_by_workers(struct harness *h, const char *path, const char *end)
{
    int busy[2], fd = dial(h), before = fake_turns_started();
    for (int i = 0; i < 2; i++) {
        busy[i] = dial(h);
        send_request(busy[i], "POST", "/tokenize", NULL, "{\"content\":\"wait\"}");
    }
    fake_wait_started(before + 2);
    send_request(fd, "GET", path, NULL, NULL);
    for (int i = 0; i < 20; i++) { /* the session answers them in order */
        struct reply r = call(h, "GET", "/v1/responses/resp_none", NULL, NULL);
        assert_int_equal(r.status, 404);
        reply_free(&r);
    }
    assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 0);
    fake_release(2);
    struct reply r = read_reply(fd);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, end));
    reply_free(&r);
    close(fd);
    for (int i = 0; i < 2; i++) {
        r = read_reply(busy[i]);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        close(busy[i]);
    }
}

/* A body that asks for `len` letters to be said again; the caller's. */
static char *long_echo(int len)
{
    char *body = malloc((size_t)len + 64);
    assert_non_null(body);
    int n = sprintf(body, "{\"input\":\"echo ");
    memset(body + n, 'x', (size_t)len);
    strcpy(body + n + len, "\"}");
    return body;
}

/* A stream of what is stored, when its run is no longer remembered, is the same each time. */
static void replayed_twice(void **state)
{
    (void)state;
    enum { LONG = 40000 };
    struct harness *h = harness_start(NULL);
    char *body = long_echo(LONG), stored[128];
    struct reply r = call(h, "POST", "/v1/responses", NULL, body);
    assert_int_equal(r.status, 200);
    snprintf(stored, sizeof(stored), "/v1/responses/%s?stream=true", str(r.json, "id"));
    reply_free(&r);
    free(body);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo one two\"}");
    char id[64], path[128], progress[2][64];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    reply_free(&r);
    static const char *const bodies[] = {
        "{\"input\":\"echo one two\",\"convod\":{\"progress\":true}}",
        "{\"input\":[],\"generate\":false,\"convod\":{\"progress\":true}}",
    };
    for (int i = 0; i < 2; i++) {
        r = call(h, "POST", "/v1/responses", NULL, bodies[i]);
        assert_int_equal(r.status, 200);
        snprintf(progress[i], sizeof(progress[i]), "%s", str(r.json, "id"));
        reply_free(&r);
    }
    for (int i = 0; i < RECENT_RUNS_MAX; i++) {
        r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"echo x\"}");
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    made_by_workers(h, stored, "event: response.completed");
    static const int after[] = {5, 3, 0};
    for (size_t i = 0; i < sizeof(after) / sizeof(*after); i++) {
        snprintf(path, sizeof(path), "/v1/responses/%s?stream=true&starting_after=%d", id, after[i]);
        char *first = NULL;
        for (int j = 0; j < 2; j++) {
            r = call(h, "GET", path, NULL, NULL);
            assert_int_equal(r.status, 200);
            assert_non_null(strstr(r.body, "one two"));
            assert_non_null(strstr(r.body, "event: response.completed"));
            if (j) {
                assert_string_equal(r.body, first);
            } else {
                first = strdup(r.body);
            }
            reply_free(&r);
        }
        free(first);
    }
    /* With progress events the numbers of the others are not known after the second: nobody may miss one of these. */
    static const char *const needed[] = {"response.output_item.added", "response.content_part.added",
                                         "response.output_text.done", "response.output_item.done",
                                         "response.completed"};
    for (int i = 1; i < 12; i++) {
        snprintf(path, sizeof(path), "/v1/responses/%s?stream=true&starting_after=%d", progress[0], i);
        r = call(h, "GET", path, NULL, NULL);
        const char *at_text = r.body;
        for (size_t j = 0; j < sizeof(needed) / sizeof(*needed); j++) {
            at_text = strstr(at_text, needed[j]);
            assert_non_null(at_text);
        }
        char number[64];
        snprintf(number, sizeof(number), "\"sequence_number\":%d}", i + 1);
        assert_non_null(strstr(r.body, number));
        reply_free(&r);
        snprintf(path, sizeof(path), "/v1/responses/%s?stream=true&starting_after=%d", progress[1], i);
        r = call(h, "GET", path, NULL, NULL);
        assert_non_null(strstr(r.body, "event: response.completed"));
        assert_null(strstr(r.body, "output_item"));
        reply_free(&r);
    }
    harness_stop(h);
}

/* What is stored is shown with the digits that were sent. */
static void stored_numbers_keep_digits(void **state)
{
    (void)state;
    static const char body[] = "{\"input\":\"echo a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":"
                               "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"default\":"
                               "1234567890123456789,\"maximum\":0.30000000000000004}}}}]}";
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL, body);
    char path[128];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r.status, 200);
        if (!strstr(r.body, "1234567890123456789") || !strstr(r.body, "0.30000000000000004")) {
            fail_msg("%d: %s", i, r.body);
        }
        if (!i) {
            snprintf(path, sizeof(path), "/v1/responses/%s", str(r.json, "id"));
        }
        reply_free(&r);
        r = call(h, "GET", path, NULL, NULL);
        strcat(path, i ? "" : "?stream=true");
    }
    reply_free(&r);
    harness_stop(h);
}

/* What was deleted is given to nobody from the memory of its run either. */
static void deleted_is_gone(void **state)
{
    (void)state;
    static const char again[] = "x-stainless-retry-count: 1\r\n";
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/conversations", NULL, "{}");
    char conversation[64], body[256], path[128], message[256];
    snprintf(conversation, sizeof(conversation), "%s", str(r.json, "id"));
    reply_free(&r);
    int fd = ws_dial(h);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof(body), i ? "{\"input\":\"echo a\",\"conversation\":\"%s\"}" : "{\"input\":\"echo a\"}",
                 conversation);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, 200);
        char id[64];
        snprintf(id, sizeof(id), "%s", str(r.json, "id"));
        reply_free(&r);
        snprintf(message, sizeof(message), "{\"type\":\"convod.response.attach\",\"response_id\":\"%s\"}", id);
        ws_send(fd, message);
        cJSON *e = ws_until(fd, "response.completed");
        cJSON_Delete(e);
        snprintf(path, sizeof(path), "/v1/%s/%s", i ? "conversations" : "responses", i ? conversation : id);
        r = call(h, "DELETE", path, NULL, NULL);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        ws_send(fd, message);
        e = ws_read_json(fd);
        assert_string_equal(str(e, "error.code"), "response_not_found");
        cJSON_Delete(e);
        if (!i) {
            strcat(path, "?stream=true");
            r = call(h, "GET", path, NULL, NULL);
            assert_int_equal(r.status, 404);
            reply_free(&r);
        }
        r = call(h, "POST", "/v1/responses", again, body);
        assert_int_equal(r.status, i ? 404 : 200);
        assert_string_not_equal(str(r.json, "id"), id);
        reply_free(&r);
    }
    close(fd);
    harness_stop(h);
}

static void cancel_over_http(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = ws_dial(h);
    ws_create(fd, "hold one two", ",\"convod\":{\"progress\":true}");
    cJSON *e = ws_read_json(fd);
    char path[128];
    snprintf(path, sizeof(path), "/v1/responses/%s/cancel", str(e, "response.id"));
    cJSON_Delete(e);
    e = ws_until(fd, "response.convod.progress");
    assert_string_equal(str(e, "stage"), "prefill");
    assert_int_equal(num(e, "total"), 4);
    cJSON_Delete(e);
    e = ws_until(fd, "response.output_text.delta");
    cJSON_Delete(e);
    /* Without a body and without a length, as some clients send it. */
    struct reply r = call(h, "POST", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "status"), "incomplete");
    assert_string_equal(str(r.json, "convod.incomplete_reason"), "cancelled");
    reply_free(&r);
    r = call(h, "POST", path, NULL, "");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "status"), "incomplete");
    reply_free(&r);
    close(fd);
    harness_stop(h);
}

static void stream_errors(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"refuse 1\",\"stream\":true}");
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.code"), "previous_response_not_found");
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"fail\",\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "event: response.failed"));
    assert_non_null(strstr(r.body, "\"code\":\"server_error\""));
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"long\",\"stream\":true}");
    assert_non_null(strstr(r.body, "event: response.incomplete"));
    assert_non_null(strstr(r.body, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"));
    assert_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    /* HTTP/1.0 gets neither chunks nor a second request. */
    int fd = dial(h);
    send_text(fd, "POST /v1/responses HTTP/1.0\r\nHost: localhost\r\nContent-Length: 34\r\n\r\n"
                  "{\"input\":\"echo one\",\"stream\":true}");
    char *all = read_all(fd);
    if (strstr(all, "chunked") || !strstr(all, "event: response.completed")) {
        fail_msg("%s", all);
    }
    free(all);
    close(fd);
    harness_stop(h);
}

static void logs_tell_no_secrets(void **state)
{
    (void)state;
    static const char *const headers = "Authorization: Bearer secret-token-value-123\r\n";
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", headers, "{\"input\":\"echo private-prompt-456\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", headers, "{\"input\":\"fail private-prompt-456\"");
    reply_free(&r);
    ws_refused(h, "/v1/responses", "Sec-WebSocket-Protocol: secret-token-value-123\r\n", NULL);
    ws_refused(h, "/private-prompt-456", headers, NULL);
    int fd = ws_dial(h);
    ws_create(fd, "echo private-prompt-456", NULL);
    cJSON *e = ws_until(fd, "response.completed");
    cJSON_Delete(e);
    ws_send(fd, "{\"type\":\"private-prompt-456\"}");
    e = ws_read_json(fd);
    cJSON_Delete(e);
    close(fd);
    char *log = harness_log(h);
    assert_non_null(strstr(log, "ready on"));
    assert_null(strstr(log, "secret-token"));
    assert_null(strstr(log, "private-prompt"));
    free(log);
    harness_stop(h);
}

/* What is long is shown as what is short, though it is made elsewhere. */
static void long_texts(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    enum { LONG = 100000 };
    char *body = long_echo(LONG), path[128];
    struct reply r = call(h, "POST", "/v1/responses", NULL, body);
    assert_int_equal(r.status, 200);
    char id[64];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    reply_free(&r);
    snprintf(path, sizeof(path), "/v1/responses/%s", id);
    r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "id"), id);
    assert_int_equal(strlen(str(r.json, "output.0.content.0.text")), LONG);
    reply_free(&r);
    snprintf(path, sizeof(path), "/v1/responses/%s/input_items", id);
    r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(str(r.json, "data.0.content.0.text")), LONG + strlen("echo "));
    reply_free(&r);
    snprintf(path, sizeof(path), "/v1/responses/%s/input_items?after=msg_none", id);
    r = call(h, "GET", path, NULL, NULL);
    assert_int_equal(r.status, 400);
    reply_free(&r);
    free(body);
    harness_stop(h);
}

/* How a turn stands to others is what the request says, and background where its token says so. */
static void priorities(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const struct {
        const char *path, *body, *said;
    } rows[] = {
        {"/v1/responses", "{\"input\":\"how\"}", "interactive"},
        {"/v1/responses", "{\"input\":\"how\",\"convod\":{\"priority\":\"interactive\"}}", "interactive"},
        {"/v1/responses", "{\"input\":\"how\",\"convod\":{\"priority\":\"background\"}}", "background"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"how\"}]}", "interactive"},
        {"/v1/chat/completions", "{\"priority\":\"background\",\"messages\":[{\"role\":\"user\",\"content\":\"how\"}]}",
         "background"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        bool chat = strstr(rows[i].path, "chat") != NULL;
        struct reply r = call(h, "POST", rows[i].path, NULL, rows[i].body);
        assert_int_equal(r.status, 200);
        assert_string_equal(str(r.json, chat ? "choices.0.message.content" : "output.0.content.0.text"), rows[i].said);
        reply_free(&r);
    }
    harness_stop(h);
}

/* A long answer with many alternatives is read to its end: its deltas have all of them, its last events do not repeat
 * them, and where it is not streamed they are in the answer. */
static void long_logprobs(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const struct {
        int n;
        bool again;
    } cases[] = {{700, true}, {5000, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"input\":\"many %d\",\"top_logprobs\":20,\"stream\":true}", cases[i].n);
        struct reply r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, 200);
        size_t n = 0;
        for (const char *at = r.body; (at = strstr(at, "\"top_logprobs\":[")); at++) {
            n++;
        }
        assert_int_equal(n, cases[i].n * (cases[i].again ? 5 : 1));
        assert_non_null(strstr(r.body, "event: response.completed"));
        reply_free(&r);
        snprintf(body, sizeof(body), "{\"input\":\"many %d\",\"top_logprobs\":20}", cases[i].n);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(cJSON_GetArraySize(at(r.json, "output.0.content.0.logprobs")), cases[i].n);
        reply_free(&r);
    }
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_are_checked),
        cmocka_unit_test(limits_one_past),
        cmocka_unit_test(parameters_are_echoed),
        cmocka_unit_test(life_of_a_response),
        cmocka_unit_test(replayed_twice),
        cmocka_unit_test(stored_numbers_keep_digits),
        cmocka_unit_test(deleted_is_gone),
        cmocka_unit_test(cancel_over_http),
        cmocka_unit_test(stream_errors),
        cmocka_unit_test(logs_tell_no_secrets),
        cmocka_unit_test(priorities),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(long_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* chat_completions_test.c - chunks, whole answers and refusals of Chat Completions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

#define MESSAGES(text)                                                                                                 \
    "\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"" text "\"}]"

#define CALL(id)   "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"x\"}"

static void whole_answer(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL,
                          "{\"model\":\"fake-model\"," MESSAGES(
                              "echo hi there") ",\"user\":\"u\",\"unknown\":{\"a\":[]},"
                                               "\"stop\":[\"x\"],\"seed\":3,\"top_k\":-1,\"max_tokens\":-1}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "chat.completion");
    assert_string_equal(str(r.json, "choices.0.message.content"), "hi there");
    assert_string_equal(str(r.json, "choices.0.message.role"), "assistant");
    assert_string_equal(str(r.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(num(r.json, "usage.prompt_tokens"), 7);
    assert_int_equal(num(r.json, "usage.prompt_tokens_details.cached_tokens"), 3);
    assert_true(strncmp(str(r.json, "id"), "chatcmpl-", 9) == 0);
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null},"
             "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"echo "
             "\"},{\"type\":\"text\",\"text\":\"p\"}]}]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "choices.0.message.content"), "p");
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("long") "}");
    assert_string_equal(str(r.json, "choices.0.finish_reason"), "length");
    reply_free(&r);
    harness_stop(h);
}

static void chunks(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL,
                          "{" MESSAGES("echo a b") ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(r.status, 200);
    assert_null(strstr(r.body, "event:"));
    const char *expected[] = {"\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
                              "\"delta\":{\"content\":\"a \"}",
                              "\"delta\":{\"content\":\"b\"}",
                              "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"",
                              "\"choices\":[],\"usage\":{",
                              "data: [DONE]\n\n"};
    const char *at_text = r.body;
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        at_text = strstr(at_text, expected[i]);
        if (!at_text) {
            fail_msg("no %s in order in %s", expected[i], r.body);
        }
    }
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("echo a") ",\"stream\":true}");
    assert_null(strstr(r.body, "\"usage\""));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("fail") ",\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "data: {\"error\":{"));
    assert_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("refuse 4") ",\"stream\":true}");
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.code"), "context_length_exceeded");
    reply_free(&r);
    harness_stop(h);
}

static void logprobs(void **state)
{
    (void)state;
    static const char first[] =
        "{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.5,"
        "\"bytes\":[97]},{\"token\":\"b\",\"logprob\":-9999,\"bytes\":[98]}]}";
    static const char ask[] = "{" MESSAGES("echo a b") ",\"logprobs\":true,\"top_logprobs\":2";
    struct harness *h = harness_start(NULL);
    char body[512], expected[512];
    snprintf(body, sizeof(body), "%s}", ask);
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL, body);
    snprintf(expected, sizeof(expected), "\"logprobs\":{\"content\":[%s,{\"token\":\"b\",", first);
    assert_non_null(strstr(r.body, expected));
    reply_free(&r);
    snprintf(body, sizeof(body), "%s,\"stream\":true}", ask);
    r = call(h, "POST", "/v1/chat/completions", NULL, body);
    snprintf(expected, sizeof(expected),
             "\"delta\":{\"content\":\"a \"},\"logprobs\":{\"content\":[%s],\"refusal\":null}", first);
    assert_non_null(strstr(r.body, expected));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("echo a b") ",\"logprobs\":false}");
    assert_non_null(strstr(r.body, "\"logprobs\":null"));
    reply_free(&r);
    harness_stop(h);
}

/* How often a text stands in another. */
static int times(const char *in, const char *text)
{
    int n = 0;
    for (const char *p = in; (p = strstr(p, text)); p += strlen(text)) {
        n++;
    }
    return n;
}

/* What each of a long request's turns keeps of its texts is copied by who parses it. */
static void long_texts_are_copied_away(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int before = fake_texts_away();
    char *body = malloc(2 * WORK_BYTES_MIN);
    assert_non_null(body);
    int n = sprintf(body, "{\"n\":3,\"messages\":[{\"role\":\"user\",\"content\":\"echo ");
    memset(body + n, 'a', WORK_BYTES_MIN);
    strcpy(body + n + WORK_BYTES_MIN, "\"}]}");
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL, body);
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(str(r.json, "choices.2.message.content")), WORK_BYTES_MIN);
    assert_int_equal(fake_texts_away() - before, 3);
    reply_free(&r);
    free(body);
    harness_stop(h);
}

/* Several answers to one request: one answer or stream of them all. */
static void several(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply one = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("echo a b") ",\"n\":1}");
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("echo a b") ",\"n\":3,\"seed\":5}");
    assert_int_equal(r.status, 200);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "choices")), 3);
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof(path), "choices.%d.index", i);
        assert_int_equal(num(r.json, path), i);
        snprintf(path, sizeof(path), "choices.%d.message.content", i);
        assert_string_equal(str(r.json, path), "a b");
        snprintf(path, sizeof(path), "choices.%d.finish_reason", i);
        assert_string_equal(str(r.json, path), "stop");
    }
    assert_non_null(at(r.json, "choices.2.convod"));
    assert_int_equal(num(r.json, "usage.prompt_tokens"), num(one.json, "usage.prompt_tokens"));
    assert_int_equal(num(r.json, "usage.completion_tokens"), 3 * num(one.json, "usage.completion_tokens"));
    reply_free(&one);
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{" MESSAGES("echo a b") ",\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    for (int i = 0; i < 2; i++) {
        char begins[96], ends[96];
        snprintf(begins, sizeof(begins), "\"index\":%d,\"delta\":{\"role\":\"assistant\"", i);
        snprintf(ends, sizeof(ends), "\"index\":%d,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"", i);
        assert_int_equal(times(r.body, begins), 1);
        assert_int_equal(times(r.body, ends), 1);
    }
    assert_int_equal(times(r.body, "\"delta\":{\"content\":\"a \"}"), 2);
    assert_int_equal(times(r.body, "\"choices\":[],\"usage\""), 1);
    const char *end = strstr(r.body, "data: [DONE]\n\n");
    assert_non_null(end);
    assert_string_equal(end, "data: [DONE]\n\n");
    /* All are of one answer. */
    char id[64];
    const char *p = strstr(r.body, "\"id\":\"chatcmpl-");
    assert_non_null(p);
    snprintf(id, sizeof(id), "%.40s", p);
    assert_int_equal(times(r.body, id), times(r.body, "\"id\":\"chatcmpl-"));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("fail") ",\"n\":3,\"stream\":true}");
    assert_int_equal(times(r.body, "data: {\"error\":{"), 1);
    assert_null(strstr(r.body, "[DONE]"));
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("refuse 4") ",\"n\":3}");
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.code"), "context_length_exceeded");
    reply_free(&r);
    harness_stop(h);
}

/* Who goes away takes all of them along. */
static void several_abandoned(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    int fd = dial(h);
    send_request(fd, "POST", "/v1/chat/completions", NULL, "{" MESSAGES("hold a b") ",\"n\":3,\"stream\":true}");
    fake_wait_started(3);
    close(fd);
    fake_wait_cancelled(3);
    fake_wait_ended(3);
    assert_int_equal(fake_turns_started(), 3);
    harness_stop(h);
}

/* A last message of the assistant is what the answer begins with, unless it is said that it is not. */
static void goes_on(void **state)
{
    (void)state;
#define HALF "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"Once \"}]"
    static const struct {
        const char *body, *opening;
        size_t n_items;
    } cases[] = {
        {HALF "}", "Once ", 1},
        {HALF ",\"continue_final_message\":true,\"add_generation_prompt\":false}", "Once ", 1},
        {HALF ",\"add_generation_prompt\":false}", "Once ", 1},
        {HALF ",\"add_generation_prompt\":true}", NULL, 2},
        {HALF ",\"continue_final_message\":false}", NULL, 2},
        {"{" MESSAGES("x") ",\"add_generation_prompt\":true}", NULL, 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e = {0};
        struct turn_request *q = chat_parse(cJSON_Parse(cases[i].body), &e);
        if (!q || q->n_items != cases[i].n_items || (cases[i].opening ? !q->opening : q->opening != NULL) ||
            (q->opening && strcmp(q->opening, cases[i].opening) != 0)) {
            fail_msg("%s: %s", cases[i].body, e.message);
        }
        turn_request_free(q);
    }
    static const struct {
        const char *body, *param;
    } bad[] = {
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"Once\"}]}", "messages"},
        {"{" MESSAGES("x") ",\"continue_final_message\":true}", "continue_final_message"},
        {HALF ",\"continue_final_message\":true,\"add_generation_prompt\":true}", "continue_final_message"},
        {HALF ",\"continue_final_message\":5}", "continue_final_message"},
        {HALF ",\"add_generation_prompt\":\"no\"}", "add_generation_prompt"},
        {HALF ",\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
        {HALF ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\"}",
         "tool_choice"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct api_error e = {0};
        struct turn_request *q = chat_parse(cJSON_Parse(bad[i].body), &e);
        if (q || e.status != 400 || strcmp(e.param, bad[i].param) != 0) {
            fail_msg("%s: %d '%s'", bad[i].body, e.status, e.param);
        }
    }
}

/* What it may be, as each interface has it. */
static void unknown_role(void **state)
{
    (void)state;
    struct api_error e = {0};
    assert_null(chat_parse(cJSON_Parse("{\"messages\":[{\"role\":\"function\",\"content\":\"x\"}]}"), &e));
    assert_string_equal(e.param, "messages[0].role");
    assert_string_equal(e.message, "'messages[0].role' must be user, assistant, system, developer or tool.");
}

/* What the model would not say is what it said. */
static void refusal_is_text(void **state)
{
    (void)state;
    struct api_error e = {0};
    struct turn_request *q = chat_parse(
        cJSON_Parse(
            "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,"
            "\"refusal\":\"No.\",\"function_call\":null,\"audio\":null},{\"role\":\"user\",\"content\":\"why\"}]}"),
        &e);
    assert_non_null(q);
    assert_string_equal(q->items[1].text, "No.");
    turn_request_free(q);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":\"hi\"}", "messages"},
        {"{\"messages\":[5]}", "messages[0]"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"judge\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[" CALL(
             "a") "," CALL("b") "]}," RESULT("a") "," RESULT("b") ",{\"role\":\"user\",\"content\":\"\"}]}",
         "messages[4].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content[0]"},
        {"{" MESSAGES("x") ",\"n\":17}", "n"},
        {"{" MESSAGES("x") ",\"n\":0}", "n"},
        {"{" MESSAGES("x") ",\"max_tokens\":0}", "max_tokens"},
        {"{" MESSAGES("x") ",\"max_tokens\":-2}", "max_tokens"},
        {"{" MESSAGES("x") ",\"max_completion_tokens\":0}", "max_completion_tokens"},
        {"{" MESSAGES("x") ",\"temperature\":[]}", "temperature"},
        {"{" MESSAGES("x") ",\"logprobs\":5}", "logprobs"},
        {"{" MESSAGES("x") ",\"top_logprobs\":2}", "top_logprobs"},
        {"{" MESSAGES("x") ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
        {"{" MESSAGES("x") ",\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs"},
        {"{" MESSAGES("x") ",\"response_format\":{\"type\":\"yaml\"}}", "response_format.type"},
        {"{" MESSAGES("x") ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format.json_schema"},
        {"{" MESSAGES("x") ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}}",
         "response_format.json_schema.name"},
        {"{" MESSAGES("x") ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{"
                           "\"enum\":[]}}}}",
         "response_format.json_schema.schema"},
        {"{" MESSAGES("x") ",\"stop\":5}", "stop"},
        {"{" MESSAGES("x") ",\"stream_options\":5}", "stream_options"},
        {"{" MESSAGES("x") ",\"stream_options\":{\"include_usage\":5}}", "stream_options.include_usage"},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct reply r = call(h, "POST", "/v1/chat/completions", NULL, cases[i].body);
        if (r.status != 400 || strcmp(str(r.json, "error.param"), cases[i].param) != 0) {
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
        }
        reply_free(&r);
    }
    assert_int_equal(fake_turns_started(), 0);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answer),
        cmocka_unit_test(chunks),
        cmocka_unit_test(logprobs),
        cmocka_unit_test(several),
        cmocka_unit_test(long_texts_are_copied_away),
        cmocka_unit_test(several_abandoned),
        cmocka_unit_test(goes_on),
        cmocka_unit_test(refusals),
        cmocka_unit_test(unknown_role),
        cmocka_unit_test(refusal_is_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

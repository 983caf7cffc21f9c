/* tools_test.c - calls of tools as both interfaces show them, and what may be said of tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

#define FUNCTION "\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}"
#define TOOLS    "\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\"," FUNCTION ",\"strict\":true}]"
#define NESTED   "\"tools\":[{\"type\":\"function\",\"function\":{" FUNCTION "}}]"
#define CALL     "call f {\\\"a\\\": 1}"

#define A63       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define A64       A63 "a"
#define LONG_NAME A64 A64 "a"

static void in_order(const char *text, const char *const *expected, size_t n)
{
    const char *p = text;
    for (size_t i = 0; i < n; i++) {
        p = strstr(p, expected[i]);
        if (!p) {
            fail_msg("no %s in order in %s", expected[i], text);
        }
        p += strlen(expected[i]);
    }
}

static void check_output(const cJSON *o)
{
    assert_int_equal(cJSON_GetArraySize(at(o, "output")), 2);
    assert_string_equal(str(o, "output.0.type"), "message");
    assert_string_equal(str(o, "output.0.content.0.text"), "I call.");
    assert_string_equal(str(o, "output.1.type"), "function_call");
    assert_string_equal(str(o, "output.1.status"), "completed");
    assert_string_equal(str(o, "output.1.name"), "f");
    assert_string_equal(str(o, "output.1.arguments"), "{\"a\": 1}");
    assert_true(strncmp(str(o, "output.1.id"), "fc_", 3) == 0);
    assert_true(strncmp(str(o, "output.1.call_id"), "call_", 5) == 0);
}

/* The tool that was chosen is shown; what else the choice says is kept nowhere. */
static void choice(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL,
                          "{\"input\":\"" CALL "\"," TOOLS
                          ",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\",\"more\":[1,2,3]}}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "tool_choice.type"), "function");
    assert_string_equal(str(r.json, "tool_choice.name"), "f");
    assert_int_equal(cJSON_GetArraySize(at(r.json, "tool_choice")), 2);
    reply_free(&r);
    r = call(
        h, "POST", "/v1/responses", NULL,
        "{\"input\":\"echo a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\","
        "\"name\":\"f\"}]}],\"tool_choice\":{\"type\":\"function\",\"name\":\"f\",\"namespace\":\"n\"}}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "tool_choice.name"), "f");
    assert_string_equal(str(r.json, "tool_choice.namespace"), "n");
    reply_free(&r);
    /* As long as it may be, with its namespace. */
    r = call(h, "POST", "/v1/responses", NULL,
             "{\"input\":\"echo a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"" A64 "\",\"tools\":[{\"type\":"
             "\"function\",\"name\":\"" A63 "\"}]}],\"tool_choice\":{\"type\":\"function\",\"name\":\"" A63
             "\",\"namespace\":\"" A64 "\"}}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    harness_stop(h);
}

/* Of tools, a choice and a form what was read is shown, and what else they say is kept nowhere. */
static void shown(void **state)
{
    (void)state;
#define MORE ",\"more\":[1,2,3]"
#define INNER                                                                                                          \
    "{\"type\":\"function\",\"name\":\"g\"" MORE "},{\"type\":\"custom\",\"name\":\"c\"" MORE                          \
    ",\"format\":{\"type\":\"grammar\",\"syntax\":\"regex\",\"definition\":\"a\"" MORE                                 \
    "}},{\"type\":\"web_search\"" MORE "}"
    static const char *const bodies[] = {
        "{\"input\":\"echo a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"description\":\"d\"" MORE
        ",\"tools\":[" INNER "]}],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"" MORE
        ",\"tools\":[{\"type\":\"function\",\"name\":\"g\",\"namespace\":\"n\"" MORE "},{\"type\":\"mcp\"" MORE "}]}}",
        "{\"input\":\"echo a\",\"text\":{\"format\":{\"type\":\"json_object\"" MORE "}}}",
        "{\"input\":\"echo "
        "a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"s\",\"description\":\"d\",\"strict\":true,"
        "\"schema\":{\"type\":\"integer\",\"maximum\":0.1}" MORE "}}}"};
#undef MORE
#undef INNER
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++) {
        struct reply r = call(h, "POST", "/v1/responses", NULL, bodies[i]);
        assert_int_equal(r.status, 200);
        assert_null(strstr(r.body, "more"));
        char path[128];
        snprintf(path, sizeof(path), "/v1/responses/%s", str(r.json, "id"));
        for (int again = 0; again < 2; again++) {
            if (i == 0) {
                assert_string_equal(str(r.json, "tools.0.name"), "n");
                assert_string_equal(str(r.json, "tools.0.description"), "d");
                assert_int_equal(cJSON_GetArraySize(at(r.json, "tools.0.tools")), 2);
                assert_string_equal(str(r.json, "tools.0.tools.0.name"), "g");
                assert_string_equal(str(r.json, "tools.0.tools.1.format.definition"), "a");
                assert_string_equal(str(r.json, "tool_choice.mode"), "auto");
                assert_string_equal(str(r.json, "tool_choice.tools.0.namespace"), "n");
                assert_string_equal(str(r.json, "tool_choice.tools.1.type"), "mcp");
            } else if (i == 1) {
                assert_string_equal(str(r.json, "text.format.type"), "json_object");
            } else {
                assert_string_equal(str(r.json, "text.format.description"), "d");
                assert_true(cJSON_IsTrue(at(r.json, "text.format.strict")));
                assert_true(num(r.json, "text.format.schema.maximum") == 0.1);
            }
            reply_free(&r);
            r = call(h, "GET", path, NULL, NULL);
        }
        reply_free(&r);
    }
    harness_stop(h);
}

static void responses(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL,
                          "{\"input\":\"" CALL "\"," TOOLS ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":false}");
    assert_int_equal(r.status, 200);
    char path[128], items[160];
    snprintf(path, sizeof(path), "/v1/responses/%s", str(r.json, "id"));
    snprintf(items, sizeof(items), "%s/input_items", path);
    for (int i = 0; i < 2; i++) {
        check_output(r.json);
        assert_string_equal(str(r.json, "status"), "completed");
        assert_int_equal(cJSON_GetArraySize(at(r.json, "tools")), 1);
        assert_string_equal(str(r.json, "tools.0.name"), "f");
        assert_true(cJSON_IsTrue(at(r.json, "tools.0.strict")));
        assert_string_equal(str(r.json, "tools.0.parameters.type"), "object");
        assert_string_equal(str(r.json, "tool_choice"), "auto");
        assert_true(cJSON_IsFalse(at(r.json, "parallel_tool_calls")));
        assert_string_equal(str(r.json, "convod.skipped_tools.0"), "web_search");
        reply_free(&r);
        r = call(h, "GET", path, NULL, NULL);
    }
    reply_free(&r);
    /* Its stream, from memory: every item begins, grows and ends before the next. */
    static const char *const events[] = {"event: response.output_item.added",
                                         "\"output_index\":0",
                                         "event: response.content_part.added",
                                         "event: response.output_text.delta",
                                         "event: response.output_text.done",
                                         "event: response.content_part.done",
                                         "event: response.output_item.done",
                                         "event: response.output_item.added",
                                         "\"output_index\":1,\"item\":{\"id\":\"fc_",
                                         "\"status\":\"in_progress\"",
                                         "\"arguments\":\"\"",
                                         "event: response.function_call_arguments.delta",
                                         "\"delta\":\"{\"",
                                         "event: response.function_call_arguments.delta",
                                         "\"delta\":\"\\\"a\\\": 1}\"",
                                         "event: response.function_call_arguments.done",
                                         "\"output_index\":1",
                                         "\"name\":\"f\"",
                                         "\"arguments\":\"{\\\"a\\\": 1}\"",
                                         "event: response.output_item.done",
                                         "\"status\":\"completed\"",
                                         "event: response.completed"};
    strcat(path, "?stream=true");
    r = call(h, "GET", path, NULL, NULL);
    in_order(r.body, events, sizeof(events) / sizeof(*events));
    reply_free(&r);
    /* A history with calls, whatever its ids. */
    r = call(
        h, "POST", "/v1/responses", NULL,
        "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":"
        "\"f\",\"arguments\":\"{}\",\"id\":null},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":"
        "[{\"type\":\"input_text\",\"text\":\"echo \"},{\"type\":\"input_text\",\"text\":\"5\"}]}]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "output.0.content.0.text"), "5");
    snprintf(items, sizeof(items), "/v1/responses/%s/input_items?order=asc", str(r.json, "id"));
    reply_free(&r);
    r = call(h, "GET", items, NULL, NULL);
    assert_string_equal(str(r.json, "data.1.type"), "function_call");
    assert_string_equal(str(r.json, "data.1.call_id"), "c1");
    assert_string_equal(str(r.json, "data.1.arguments"), "{}");
    assert_string_equal(str(r.json, "data.2.type"), "function_call_output");
    assert_string_equal(str(r.json, "data.2.call_id"), "c1");
    assert_string_equal(str(r.json, "data.2.output"), "echo 5");
    reply_free(&r);
    /* A call without arguments, as some write it. */
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":"
             "\"c1\",\"function\":{\"name\":\"f\",\"arguments\":null}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\","
             "\"content\":\"echo 5\"}]}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    harness_stop(h);
}

static void broken_calls(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses", NULL, "{\"input\":\"call f {\\\"a\\\":\"," TOOLS "}");
    assert_string_equal(str(r.json, "status"), "incomplete");
    assert_string_equal(str(r.json, "output.1.status"), "incomplete");
    assert_string_equal(str(r.json, "output.1.arguments"), "{\"a\":");
    assert_string_equal(str(r.json, "convod.incomplete_reason"), "malformed_call");
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"call f {\\\"a\\\":\"}]," NESTED "}");
    assert_string_equal(str(r.json, "choices.0.finish_reason"), "stop");
    assert_string_equal(str(r.json, "convod.incomplete_reason"), "malformed_call");
    reply_free(&r);
    harness_stop(h);
}

static void completions(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL,
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"" CALL "\"}]," NESTED "}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "choices.0.finish_reason"), "tool_calls");
    assert_string_equal(str(r.json, "choices.0.message.content"), "I call.");
    assert_string_equal(str(r.json, "choices.0.message.tool_calls.0.type"), "function");
    assert_true(strncmp(str(r.json, "choices.0.message.tool_calls.0.id"), "call_", 5) == 0);
    assert_string_equal(str(r.json, "choices.0.message.tool_calls.0.function.name"), "f");
    assert_string_equal(str(r.json, "choices.0.message.tool_calls.0.function.arguments"), "{\"a\": 1}");
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"" CALL "\"}]," NESTED "}");
    static const char *const chunks[] = {
        "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
        "\"delta\":{\"content\":\"I call.\"}",
        "\"delta\":{\"tool_calls\":[{\"id\":\"call_",
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"},\"index\":0}]}",
        "\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"},\"index\":0}]}",
        "\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"\\\"a\\\": 1}\"},\"index\":0}]}",
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"",
        "data: [DONE]"};
    in_order(r.body, chunks, sizeof(chunks) / sizeof(*chunks));
    reply_free(&r);
    r = call(
        h, "POST", "/v1/chat/completions", NULL,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"echo 5\"}]," NESTED "}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "choices.0.message.content"), "5");
    reply_free(&r);
    harness_stop(h);
}

static void thinking(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char *const reasoning[] = {"null", "{\"effort\":\"low\",\"summary\":\"auto\"}"};
    static const char *const plain[] = {"event: response.output_item.added",
                                        "\"type\":\"reasoning\"",
                                        "\"summary\":[]",
                                        "event: response.reasoning_text.delta",
                                        "\"content_index\":0,\"delta\":\"I think.\"",
                                        "event: response.reasoning_text.done",
                                        "\"text\":\"I think.\"",
                                        "event: response.output_item.done",
                                        "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"I think.\"}]",
                                        "event: response.output_item.added",
                                        "\"output_index\":1",
                                        "event: response.completed"};
    static const char *const summary[] = {"event: response.output_item.added",
                                          "event: response.reasoning_summary_part.added",
                                          "event: response.reasoning_summary_text.delta",
                                          "\"summary_index\":0,\"delta\":\"I think.\"",
                                          "event: response.reasoning_summary_text.done",
                                          "event: response.reasoning_summary_part.done",
                                          "event: response.output_item.done",
                                          "\"summary\":[{\"type\":\"summary_text\",\"text\":\"I think.\"}]",
                                          "event: response.completed"};
    for (int i = 0; i < 2; i++) {
        char body[256], path[128];
        snprintf(body, sizeof(body), "{\"input\":\"think hard\",\"reasoning\":%s}", reasoning[i]);
        struct reply r = call(h, "POST", "/v1/responses", NULL, body);
        snprintf(path, sizeof(path), "/v1/responses/%s", str(r.json, "id"));
        for (int again = 0; again < 2; again++) {
            assert_string_equal(str(r.json, "output.0.type"), "reasoning");
            assert_string_equal(str(r.json, "output.0.content.0.text"), "I think.");
            assert_string_equal(str(r.json, "output.0.summary.0.text"), i ? "I think." : "");
            assert_null(at(r.json, "output.0.tokens"));
            assert_string_equal(str(r.json, "output.1.content.0.text"), "hard");
            assert_int_equal(num(r.json, "usage.output_tokens_details.reasoning_tokens"), 3);
            assert_string_equal(str(r.json, "reasoning.effort"), i ? "low" : "");
            reply_free(&r);
            r = call(h, "GET", path, NULL, NULL);
        }
        reply_free(&r);
        strcat(path, "?stream=true");
        r = call(h, "GET", path, NULL, NULL);
        if (i) {
            in_order(r.body, summary, sizeof(summary) / sizeof(*summary));
        } else {
            in_order(r.body, plain, sizeof(plain) / sizeof(*plain));
        }
        reply_free(&r);
    }
    struct reply r = call(h, "POST", "/v1/chat/completions", NULL,
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"think hard\"}]}");
    assert_string_equal(str(r.json, "choices.0.message.reasoning_content"), "I think.");
    assert_string_equal(str(r.json, "choices.0.message.content"), "hard");
    reply_free(&r);
    r = call(h, "POST", "/v1/chat/completions", NULL,
             "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"think hard\"},"
             "{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":\"y\"},"
             "{\"role\":\"user\",\"content\":\"think hard\"}]}");
    static const char *const chunks[] = {"\"delta\":{\"reasoning_content\":\"I think.\"}",
                                         "\"delta\":{\"content\":\"hard\"}", "\"finish_reason\":\"stop\""};
    in_order(r.body, chunks, sizeof(chunks) / sizeof(*chunks));
    reply_free(&r);
    harness_stop(h);
}

struct refusal {
    const char *more, *code, *param;
};

static void refused(struct harness *h, const char *path, const char *input, const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char body[1024];
        snprintf(body, sizeof(body), "{%s,%s}", input, cases[i].more);
        struct reply r = call(h, "POST", path, NULL, body);
        if (r.status != 400 || strcmp(str(r.json, "error.code"), cases[i].code) != 0 ||
            strcmp(str(r.json, "error.param"), cases[i].param) != 0) {
            fail_msg("%s: %d %s", cases[i].more, r.status, r.body);
        }
        reply_free(&r);
    }
    assert_int_equal(fake_turns_started(), 0);
}

/* What thinking took is told in Chat Completions too, of all answers together. */
static void thinking_in_usage(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (int stream = 0; stream < 2; stream++) {
        char body[256];
        snprintf(
            body, sizeof(body),
            "{\"messages\":[{\"role\":\"user\",\"content\":\"think hard\"}],\"n\":2,\"stream\":%s,\"stream_options\":"
            "{\"include_usage\":true}}",
            stream ? "true" : "false");
        struct reply r = call(h, "POST", "/v1/chat/completions", NULL, body);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, "\"completion_tokens_details\":{\"reasoning_tokens\":6}"));
        reply_free(&r);
    }
    harness_stop(h);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal flat[] = {
        {"\"tools\":5", "invalid_type", "tools"},
        {"\"tools\":[5]", "invalid_type", "tools[0]"},
        {"\"tools\":[{}]", "missing_required_parameter", "tools[0].type"},
        {"\"tools\":[{\"type\":5}]", "invalid_type", "tools[0].type"},
        {"\"tools\":[{\"type\":\"function\"}]", "missing_required_parameter", "tools[0].name"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"\"}]", "invalid_value", "tools[0].name"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"<|im_end|>\"}]", "invalid_value", "tools[0].name"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"" LONG_NAME "\"}]", "invalid_value", "tools[0].name"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":5}]", "invalid_type",
         "tools[0].description"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":[]}]", "invalid_type", "tools[0].parameters"},
        {"\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\",\"name\":\"f\"}]", "invalid_value",
         "tools[1].name"},
        {TOOLS ",\"tool_choice\":\"sometimes\"", "unsupported_parameter", "tool_choice"},
        {TOOLS ",\"tool_choice\":5", "invalid_type", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"web_search\"}", "unsupported_parameter", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "missing_required_parameter", "tool_choice.name"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}", "invalid_value", "tool_choice.name"},
        {TOOLS ",\"tool_choice\":{\"type\":\"custom\",\"name\":\"f\"}", "invalid_value", "tool_choice.name"},
        {"\"tools\":[{\"type\":\"custom\",\"name\":\"c\"}],\"tool_choice\":{\"type\":\"function\",\"name\":\"c\"}",
         "invalid_value", "tool_choice.name"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[{\"type\":\"custom\",\"name\":\"f\"}]}",
         "invalid_value", "tool_choice.tools[0].name"},
        {TOOLS ",\"parallel_tool_calls\":5", "invalid_type", "parallel_tool_calls"},
        {"\"tool_choice\":\"required\"", "invalid_value", "tool_choice"},
        {"\"reasoning\":5", "invalid_type", "reasoning"},
        {"\"reasoning\":{\"effort\":\"enormous\"}", "invalid_value", "reasoning.effort"},
        {"\"reasoning\":{\"summary\":\"poem\"}", "invalid_value", "reasoning.summary"},
        {"\"tools\":[{\"type\":\"mcp\"}],\"tool_choice\":\"required\"", "invalid_value", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[{\"type\":\"function\",\"name\":\"g\"}]}",
         "invalid_value", "tool_choice.tools[0].name"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[{\"type\":\"web_search\"}]}",
         "unsupported_parameter", "tool_choice"},
        {"\"tools\":[{\"type\":\"custom\"}]", "missing_required_parameter", "tools[0].name"},
        {"\"tools\":[{\"type\":\"custom\",\"name\":\"c\",\"format\":{\"type\":\"poem\"}}]", "invalid_value",
         "tools[0].format.type"},
        {"\"tools\":[{\"type\":\"custom\",\"name\":\"c\",\"format\":{\"type\":\"grammar\",\"syntax\":\"x\"}}]",
         "invalid_value", "tools[0].format.syntax"},
        {"\"tools\":[{\"type\":\"namespace\",\"tools\":[]}]", "missing_required_parameter", "tools[0].name"},
        {"\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{"
         "\"type\":"
         "\"function\",\"name\":\"f\"}]}]",
         "invalid_value", "tools[0].tools[1].name"},
        {"\"tools\":[{\"type\":\"namespace\",\"name\":\"" LONG_NAME "\",\"tools\":[]}]", "invalid_value",
         "tools[0].name"},
    };
    static const struct refusal nested[] = {
        {"\"tools\":[{\"type\":\"function\"}]", "missing_required_parameter", "tools[0].function"},
        {"\"tools\":[{\"type\":\"function\",\"function\":5}]", "invalid_type", "tools[0].function"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "missing_required_parameter", "tools[0].function.name"},
        {NESTED ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}", "invalid_value",
         "tool_choice.function.name"},
        {NESTED ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "missing_required_parameter",
         "tool_choice.allowed_tools.tools"},
        {NESTED ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"none\",\"tools\":[]}}",
         "invalid_value", "tool_choice.allowed_tools.mode"},
        {"\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
         "\"syntax\":\"regex\",\"definition\":\"(\"}}}}]",
         "invalid_grammar", "tools[0].custom.format.grammar.definition"},
        {"\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
         "\"syntax\":\"regex\",\"definition\":\"a)|(?:b\"}}}}]",
         "invalid_grammar", "tools[0].custom.format.grammar.definition"},
        {"\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
         "\"syntax\":\"lark\",\"definition\":\"start: start\"}}}}]",
         "invalid_grammar", "tools[0].custom.format.grammar.definition"},
        {"\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"c\",\"format\":{\"type\":\"grammar\",\"grammar\":{"
         "\"syntax\":\"lark\"}}}}]",
         "missing_required_parameter", "tools[0].custom.format.grammar.definition"},
        {"\"functions\":[{\"name\":\"f\"}]", "unsupported_parameter", "functions"},
    };
    static const struct refusal lists[] = {
        {"\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\"}]", "missing_required_parameter", "input[0].name"},
        {"\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\"}]", "missing_required_parameter",
         "input[0].arguments"},
        {"\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"a b\",\"arguments\":\"{}\"}]",
         "invalid_value", "input[0].name"},
        {"\"input\":[{\"type\":\"function_call_output\",\"output\":\"x\"}]", "missing_required_parameter",
         "input[0].call_id"},
        {"\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\"}]", "invalid_type", "input[0].output"},
        {"\"input\":[{\"type\":\"computer_call\"}]", "invalid_value", "input[0].type"},
    };
    static const struct refusal messages[] = {
        {"\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]", "missing_required_parameter",
         "messages[0].tool_call_id"},
        {"\"messages\":[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}}]",
         "unsupported_parameter", "messages[0].function_call"},
        {"\"messages\":[{\"role\":\"assistant\",\"audio\":{\"id\":\"a\"}}]", "unsupported_parameter",
         "messages[0].audio"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":5}]", "invalid_type", "messages[0].tool_calls"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[5]}]", "invalid_type", "messages[0].tool_calls[0]"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "missing_required_parameter",
         "messages[0].tool_calls[0].id"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\"}]}]", "missing_required_parameter",
         "messages[0].tool_calls[0].function"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\"}}]}]",
         "missing_required_parameter", "messages[0].tool_calls[0].function.arguments"},
    };
    struct harness *h = harness_start(NULL);
    refused(h, "/v1/responses", "\"input\":\"x\"", flat, sizeof(flat) / sizeof(*flat));
    refused(h, "/v1/responses", "\"a\":1", lists, sizeof(lists) / sizeof(*lists));
    refused(h, "/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]", nested,
            sizeof(nested) / sizeof(*nested));
    refused(h, "/v1/chat/completions", "\"a\":1", messages, sizeof(messages) / sizeof(*messages));
    harness_stop(h);
}

/* A custom tool's input, told as its arguments come: whatever piece of it there is, no half of a character. */
static void inputs(void **state)
{
    (void)state;
    static const char ARGUMENTS[] = " {\"input\" : \"a\\n\\\"b\\\" \\u00e9\\ud83d\\ude00\xc3\xa9\\\\\"}";
    static const char WANTED[] = "a\n\"b\" \xc3\xa9\xf0\x9f\x98\x80\xc3\xa9\\";
    char so_far[sizeof(ARGUMENTS)], told[64] = "";
    size_t from = 0;
    for (size_t n = 1; n < sizeof(ARGUMENTS); n++) {
        if (((unsigned char)ARGUMENTS[n] & 0xc0) == 0x80) {
            continue; /* pieces are whole characters */
        }
        memcpy(so_far, ARGUMENTS, n);
        so_far[n] = '\0';
        char *piece = call_input(so_far, &from);
        assert_non_null(piece);
        assert_true(strlen(told) + strlen(piece) < sizeof(told));
        strcat(told, piece);
        free(piece);
    }
    assert_string_equal(told, WANTED);
    char *arguments = call_arguments(WANTED), *input = arguments ? call_input(arguments, &(size_t){0}) : NULL;
    assert_non_null(input);
    assert_string_equal(input, WANTED);
    free(arguments);
    free(input);
    /* What is none is nothing. */
    input = call_input("{\"other\":\"x\"}", &(size_t){0});
    assert_string_equal(input, "");
    free(input);
}

/* Parentheses that are characters end nothing. */
static void parentheses(void **state)
{
    (void)state;
    static const char *const fine[] = {"a\\\\)b", "[)]", "[\\\\])]", "(a)(b(c))", "\\\\\\\\(a)"};
    for (size_t i = 0; i < sizeof(fine) / sizeof(*fine); i++) {
        char body[256];
        struct api_error e = {0};
        snprintf(body, sizeof(body),
                 "{\"input\":\"x\",\"tools\":[{\"type\":\"custom\",\"name\":\"c\",\"format\":{\"type\":\"grammar\","
                 "\"syntax\":\"regex\",\"definition\":\"%s\"}}]}",
                 fine[i]);
        struct turn_request *q = responses_parse(cJSON_Parse(body), false, &e);
        if (!q)
            fail_msg("%s: %s", fine[i], e.message);
        turn_request_free(q);
    }
}

/* So many tools as there may be can be allowed, each named as often as the list has room; not one more. */
static void allowed(void **state)
{
    (void)state;
    for (int n = 1024; n <= 1025; n++) {
        struct api_error e = {0};
        cJSON *body = cJSON_Parse("{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},"
                                  "{\"type\":\"function\",\"name\":\"g\",\"parameters\":{\"type\":\"object\"}}],"
                                  "\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[]}}");
        cJSON *tools = cJSON_GetObjectItem(cJSON_GetObjectItem(body, "tool_choice"), "tools");
        for (int i = 0; i < n; i++)
            cJSON_AddItemToArray(tools, cJSON_Parse("{\"type\":\"function\",\"name\":\"g\"}"));
        struct turn_request *q = responses_parse(body, false, &e);
        assert_int_equal(q != NULL, n == 1024);
        if (q) {
            assert_non_null(strstr(q->callable, "\"g\""));
            assert_null(strstr(q->callable, "\"f\""));
            turn_request_free(q);
        } else {
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, "tool_choice.tools");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses),
        cmocka_unit_test(choice),
        cmocka_unit_test(broken_calls),
        cmocka_unit_test(completions),
        cmocka_unit_test(thinking),
        cmocka_unit_test(refusals),
        cmocka_unit_test(inputs),
        cmocka_unit_test(parentheses),
        cmocka_unit_test(allowed),
        cmocka_unit_test(shown),
        cmocka_unit_test(thinking_in_usage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

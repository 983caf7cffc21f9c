/* anthropic_test.c - Messages: whole answers, events, tools, counts, refusals in that interface's own form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

#define USER(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define ADD                                                                                                            \
    "\"tools\":[{\"name\":\"add\",\"description\":\"Adds.\",\"input_schema\":{\"type\":\"object\"}},"                  \
    "{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]"

static void in_order(const char *text, const char *const *expected, size_t n)
{
    const char *at_text = text;
    for (size_t i = 0; i < n; i++) {
        at_text = strstr(at_text, expected[i]);
        if (!at_text) {
            fail_msg("no %s in order in %s", expected[i], text);
        }
        at_text += strlen(expected[i]);
    }
}

static void whole_answer(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r =
        call(h, "POST", "/v1/messages?beta=true", "anthropic-version: 2023-06-01\r\n",
             "{\"model\":\"fake-model\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"s\","
             "\"cache_control\":{\"type\":\"ephemeral\"}}],\"metadata\":{\"user_id\":\"u\"},"
             "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024},"
             "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\"}]}," USER("echo hi there") "}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "type"), "message");
    assert_string_equal(str(r.json, "role"), "assistant");
    assert_true(strncmp(str(r.json, "id"), "msg_", 4) == 0);
    assert_string_equal(str(r.json, "content.0.type"), "text");
    assert_string_equal(str(r.json, "content.0.text"), "hi there");
    assert_string_equal(str(r.json, "stop_reason"), "end_turn");
    assert_int_equal(num(r.json, "usage.input_tokens"), 4);
    assert_int_equal(num(r.json, "usage.cache_read_input_tokens"), 3);
    assert_int_equal(num(r.json, "convod.tokens.new"), num(r.json, "convod.tokens.prefilled"));
    reply_free(&r);
    r = call(h, "POST", "/v1/messages", NULL, "{" USER("long") ",\"max_tokens\":9}");
    assert_string_equal(str(r.json, "stop_reason"), "max_tokens");
    reply_free(&r);
    r = call(h, "POST", "/v1/messages/count_tokens", NULL, "{" USER("echo x") "," ADD "}");
    assert_int_equal(r.status, 200);
    assert_true(num(r.json, "input_tokens") > 0);
    reply_free(&r);
    harness_stop(h);
}

static void events(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/messages", NULL, "{" USER("echo a b") ",\"stream\":true}");
    static const char *const text[] = {"event: message_start\n",
                                       "\"usage\":{\"input_tokens\":0,\"output_tokens\":0}",
                                       "event: content_block_start\n",
                                       "\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"",
                                       "event: content_block_delta\n",
                                       "\"delta\":{\"type\":\"text_delta\",\"text\":\"a \"}",
                                       "event: content_block_delta\n",
                                       "\"delta\":{\"type\":\"text_delta\",\"text\":\"b\"}",
                                       "event: content_block_stop\n",
                                       "event: message_delta\n",
                                       "\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null}",
                                       "\"output_tokens\":",
                                       "event: message_stop\ndata: {\"type\":\"message_stop\"}\n"};
    assert_int_equal(r.status, 200);
    in_order(r.body, text, sizeof(text) / sizeof(*text));
    reply_free(&r);
    r = call(h, "POST", "/v1/messages", NULL, "{" USER("fail") ",\"stream\":true}");
    static const char *const failed[] = {"event: message_start\n", "event: error\n",
                                         "{\"type\":\"error\",\"error\":{\"message\":", "\"type\":\"api_error\""};
    in_order(r.body, failed, sizeof(failed) / sizeof(*failed));
    assert_null(strstr(r.body, "message_stop"));
    reply_free(&r);
    r = call(h, "POST", "/v1/messages", NULL, "{" USER("refuse 4") ",\"stream\":true}");
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "type"), "error");
    assert_string_equal(str(r.json, "error.type"), "invalid_request_error");
    assert_true(strncmp(str(r.json, "error.message"), "prompt is too long: ", 20) == 0);
    reply_free(&r);
    harness_stop(h);
}

/* A call is a block of its own; one that is no JSON object is none, and the answer says that it was not whole. */
static void calls(void **state)
{
    (void)state;
    static const char good[] = "{" USER("call add {\\\"x\\\": 1}") "," ADD;
    struct harness *h = harness_start(NULL);
    char body[512];
    snprintf(body, sizeof(body), "%s}", good);
    struct reply r = call(h, "POST", "/v1/messages", NULL, body);
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "content.1.type"), "tool_use");
    assert_string_equal(str(r.json, "content.1.name"), "add");
    assert_int_equal(num(r.json, "content.1.input.x"), 1);
    assert_string_equal(str(r.json, "stop_reason"), "tool_use");
    assert_true(*str(r.json, "content.1.id"));
    reply_free(&r);
    snprintf(body, sizeof(body), "%s,\"stream\":true}", good);
    r = call(h, "POST", "/v1/messages", NULL, body);
    static const char *const order[] = {"\"text_delta\"",
                                        "content_block_stop",
                                        "\"index\":1,\"content_block\":{\"type\":\"tool_use\"",
                                        "\"name\":\"add\",\"input\":{}}",
                                        "\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"",
                                        "content_block_stop",
                                        "\"stop_reason\":\"tool_use\""};
    in_order(r.body, order, sizeof(order) / sizeof(*order));
    reply_free(&r);
    r = call(h, "POST", "/v1/messages", NULL, "{" USER("call add [1]") "," ADD "}");
    assert_int_equal(cJSON_GetArraySize(at(r.json, "content")), 1);
    reply_free(&r);
    r = call(h, "POST", "/v1/messages", NULL,
             "{" USER("call add {\\\"id\\\":1183649871234567890,\\\"s\\\":\\\"\\\"}") "," ADD "}");
    assert_non_null(strstr(r.body, "\"input\":{\"id\":1183649871234567890,"));
    reply_free(&r);
    harness_stop(h);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":[5]}", "messages[0]"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"},"
         "{\"role\":\"user\",\"content\":[]}]}",
         "messages[2].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
         "\"text\":\"b\"},{\"type\":\"image\"}]}]}",
         "messages[0].content[2]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"x\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":\"b\"}]}]}",
         "messages[0].content[0].id"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b "
         "c\"}]}]}",
         "messages[0].content[0].name"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\","
         "\"input\":[]}]}]}",
         "messages[0].content[0].input"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
         "messages[0].content[0].tool_use_id"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":"
         "[{\"type\":\"image\"}]}]}]}",
         "messages[0].content[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]," ADD
         ",\"tool_choice\":{\"type\":\"any\"}}",
         "tool_choice"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"y\"}]}", "messages"},
        {"{" USER("x") ",\"system\":5}", "system"},
        {"{" USER("x") ",\"system\":[{\"type\":\"image\"}]}", "system[0]"},
        {"{" USER("x") ",\"max_tokens\":0}", "max_tokens"},
        {"{" USER("x") ",\"stop_sequences\":5}", "stop_sequences"},
        {"{" USER("x") ",\"temperature\":\"hot\"}", "temperature"},
        {"{" USER("x") ",\"thinking\":{\"type\":\"much\"}}", "thinking.type"},
        {"{" USER("x") ",\"tools\":5}", "tools"},
        {"{" USER("x") ",\"tools\":[5]}", "tools[0]"},
        {"{" USER("x") ",\"tools\":[{}]}", "tools[0].name"},
        {"{" USER("x") ",\"tools\":[{\"name\":\"a\",\"input_schema\":5}]}", "tools[0].input_schema"},
        {"{" USER("x") ",\"tools\":[{\"name\":\"a\",\"strict\":5}]}", "tools[0].strict"},
        {"{" USER(
             "x") ",\"tools\":[{\"type\":\"web_search_1\",\"name\":\"s\"},{\"name\":\"a\",\"strict\":true,"
                  "\"input_schema\":{\"type\":\"object\",\"properties\":{\"x\":{\"enum\":[]}},\"required\":[\"x\"]}}]}",
         "tools[1].input_schema"},
        {"{" USER("x") "," ADD ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"sub\"}}", "tool_choice.name"},
        {"{" USER("x") "," ADD ",\"tool_choice\":{\"type\":\"some\"}}", "tool_choice.type"},
        {"{" USER("x") ",\"tool_choice\":{\"type\":\"any\"}}", "tool_choice"},
        {"{" USER("x") ",\"container\":\"c\"}", "container"},
        {"{" USER("x") ",\"mcp_servers\":[{}]}", "mcp_servers"},
        {"{" USER("x") ",\"context_management\":{\"edits\":[{\"type\":\"clear_tool_uses_20250919\"}]}}",
         "context_management"},
        {"{" USER("x") ",\"output_config\":{\"format\":{\"type\":\"yaml\"}}}", "output_config.format.type"},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct reply r = call(h, "POST", "/v1/messages", NULL, cases[i].body);
        if (r.status != 400 || strcmp(str(r.json, "error.param"), cases[i].param) != 0 ||
            strcmp(str(r.json, "type"), "error") != 0 ||
            strcmp(str(r.json, "error.type"), "invalid_request_error") != 0) {
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
        }
        reply_free(&r);
    }
    assert_int_equal(fake_turns_started(), 0);
    struct reply r = call(h, "POST", "/v1/messages", NULL, "{" USER("x") ",\"model\":\"claude\"}");
    assert_int_equal(r.status, 404);
    assert_string_equal(str(r.json, "error.type"), "not_found_error");
    reply_free(&r);
    harness_stop(h);
}

static void the_same_items(void **state)
{
    (void)state;
    /* What the interfaces make of one history. */
    static const char chat[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"a\\nb\"},{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"so\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"add\",\"arguments\":\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":"
        "\"2\"},"
        "{\"role\":\"user\",\"content\":\"one\\ntwo\"}]}";
    static const char messages[] =
        "{\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=1; cch=5;\"},"
        "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"messages\":["
        "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
        "\"thinking\":"
        "\"hm\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"so\"},{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":"
        "\"add\",\"input\":{\"x\":1}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
        "\"c1\","
        "\"content\":[{\"type\":\"text\",\"text\":\"2\"}]},{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\","
        "\"text\":\"two\"}]}]}";
    struct api_error e = {0};
    struct turn_request *a = chat_parse(cJSON_Parse(chat), &e), *b = anthropic_parse(cJSON_Parse(messages), &e);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->n_items, 6);
    assert_int_equal(b->n_items, 6);
    for (size_t i = 0; i < 6; i++) {
        const struct session_item *x = &a->items[i], *y = &b->items[i];
        assert_string_equal(x->kind, y->kind);
        assert_string_equal(x->text, y->text);
        assert_int_equal(x->role, y->role);
        assert_true(x->body ? strcmp(x->body, y->body) == 0 : !y->body);
    }
    turn_request_free(a);
    turn_request_free(b);
}

/* An id of 64 bits in what a tool was called with reaches the model with all its digits, and what it gave as lines. */
static void calls_in_a_history(void **state)
{
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_"
        "use\","
        "\"id\":\"c1\",\"name\":\"add\",\"input\":{\"id\":1183649871234567890}}]},{\"role\":\"user\",\"content\":[{"
        "\"type\":"
        "\"tool_result\",\"tool_use_id\":\"c1\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\","
        "\"text\":\"two\"}]}]}]}";
    struct api_error e = {0};
    struct turn_request *q = anthropic_parse(json_parse_request(body, strlen(body), &e), &e);
    assert_non_null(q);
    assert_string_equal(q->items[1].text, "{\"id\":1183649871234567890}");
    assert_string_equal(q->items[2].text, "one\ntwo");
    turn_request_free(q);
}

static void tools(void **state)
{
    (void)state;
    struct api_error e = {0};
    struct turn_request *a = anthropic_parse(
        cJSON_Parse("{" USER("x") "," ADD ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}}"),
        &e);
    assert_non_null(a);
    assert_string_equal(a->tools, "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds.\","
                                  "\"parameters\":{\"type\":\"object\"}}}]");
    assert_int_equal(a->tool_choice, SESSION_TOOLS_REQUIRED);
    assert_true(a->one_call && !a->tool);
    turn_request_free(a);
    a = anthropic_parse(cJSON_Parse("{" USER("x") "," ADD ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"add\"}}"),
                        &e);
    assert_non_null(a);
    assert_string_equal(a->tool, "add");
    turn_request_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answer),       cmocka_unit_test(events),         cmocka_unit_test(calls),
        cmocka_unit_test(refusals),           cmocka_unit_test(the_same_items), cmocka_unit_test(tools),
        cmocka_unit_test(calls_in_a_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

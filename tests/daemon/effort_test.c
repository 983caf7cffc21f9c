/* effort_test.c - how much is to be thought, as each interface names it, and what becomes of thinking that is sent
 * back.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

static struct turn_request *parse_responses(cJSON *body, struct api_error *e)
{
    return responses_parse(body, false, e);
}

#define INPUT    "\"input\":\"x\""
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"

static const struct interface {
    struct turn_request *(*parse)(cJSON *body, struct api_error *e);
    const char *input;
} interfaces[] = {{parse_responses, INPUT}, {chat_parse, MESSAGES}, {anthropic_parse, MESSAGES}};
enum { RESPONSES, CHAT, ANTHROPIC };

static struct turn_request *parse(int interface, const char *more, struct api_error *e)
{
    char body[512];
    snprintf(body, sizeof(body), "{%s%s%s}", interfaces[interface].input, *more ? "," : "", more);
    cJSON *o = cJSON_Parse(body);
    assert_non_null(o);
    memset(e, 0, sizeof(*e));
    return interfaces[interface].parse(o, e);
}

static void is_asked_for(void **state)
{
    (void)state;
    const unsigned none = ENGINE_CHAT_NO_THINKING;
    const struct {
        int interface;
        const char *more;
        unsigned effort;
        int thinking_tokens;
    } cases[] = {
        {RESPONSES, "", 0, 0},
        {RESPONSES, "\"reasoning\":null", 0, 0},
        {RESPONSES, "\"reasoning\":{}", 0, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":null,\"context\":\"auto\"}", 0, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":\"none\"}", none, -1},
        {RESPONSES, "\"reasoning\":{\"effort\":\"minimal\"}", none | ENGINE_CHAT_LOW, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":\"low\"}", ENGINE_CHAT_LOW, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":\"medium\",\"context\":\"all_turns\"}", ENGINE_CHAT_MEDIUM, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":\"high\"},\"convod\":{\"thinking_tokens\":9}", ENGINE_CHAT_HIGH, 9},
        {RESPONSES, "\"reasoning\":{\"effort\":\"high\"},\"convod\":{\"thinking_tokens\":0}", ENGINE_CHAT_HIGH, -1},
        {RESPONSES, "\"reasoning\":{\"effort\":\"none\"},\"convod\":{\"thinking_tokens\":9}", none, -1},
        {RESPONSES, "\"reasoning\":{\"effort\":\"xhigh\"}", ENGINE_CHAT_HIGH, 0},
        {RESPONSES, "\"reasoning\":{\"effort\":\"max\"}", ENGINE_CHAT_HIGH, 0},
        {CHAT, "", 0, 0},
        {CHAT, "\"reasoning_effort\":\"none\"", none, -1},
        {CHAT, "\"reasoning_effort\":\"low\"", ENGINE_CHAT_LOW, 0},
        {CHAT, "\"reasoning_effort\":\"low\",\"thinking_tokens\":7", ENGINE_CHAT_LOW, 7},
        {CHAT, "\"reasoning_effort\":\"low\",\"thinking_tokens\":0", ENGINE_CHAT_LOW, -1},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false},\"thinking_tokens\":7", none, -1},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false},\"reasoning_effort\":\"low\"", ENGINE_CHAT_LOW, 0},
        {CHAT, "\"chat_template_kwargs\":{}", 0, 0},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":true,\"other\":null}", 0, 0},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false}", none, -1},
        {CHAT, "\"chat_template_kwargs\":{\"reasoning_effort\":\"high\"}", ENGINE_CHAT_HIGH, 0},
        {ANTHROPIC, "", 0, 0},
        {ANTHROPIC, "\"thinking\":{\"type\":\"disabled\"}", none, -1},
        {ANTHROPIC, "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":7}", 0, 7},
        {ANTHROPIC, "\"output_config\":{\"effort\":\"low\"}", ENGINE_CHAT_LOW, 0},
        {ANTHROPIC, "\"output_config\":{\"effort\":\"max\"},\"thinking\":{\"type\":\"adaptive\"}", ENGINE_CHAT_HIGH, 0},
        {ANTHROPIC, "\"output_config\":{\"effort\":\"low\"},\"thinking\":{\"type\":\"disabled\"}", none, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e;
        struct turn_request *q = parse(cases[i].interface, cases[i].more, &e);
        if (!q || q->effort != cases[i].effort || q->thinking_tokens != cases[i].thinking_tokens)
            fail_msg("%zu %s: %s %x %d", i, cases[i].more, e.message, q ? q->effort : 0, q ? q->thinking_tokens : 0);
        turn_request_free(q);
    }
}

/* Whether the thinking of earlier turns is to be taken out, and that is shown again. */
static void context_is_asked_for(void **state)
{
    (void)state;
    static const char *const contexts[] = {"auto", "all_turns", "current_turn"};
    for (size_t i = 0; i < 3; i++) {
        struct api_error e;
        char more[64];
        (void)snprintf(more, sizeof more, "\"reasoning\":{\"context\":\"%s\"}", contexts[i]);
        struct turn_request *q = parse(RESPONSES, more, &e);
        assert_non_null(q);
        assert_int_equal(q->current_turn, i == 2);
        assert_non_null(strstr(q->params, i == 2 ? "current_turn" : "all_turns"));
        turn_request_free(q);
    }
}

static void is_refused(void **state)
{
    (void)state;
    static const struct {
        int interface;
        const char *more, *param, *code;
    } cases[] = {
        {RESPONSES, "\"reasoning\":{\"effort\":\"enormous\"}", "reasoning.effort", "invalid_value"},
        {RESPONSES, "\"reasoning\":{\"effort\":5}", "reasoning.effort", "invalid_type"},
        {RESPONSES, "\"reasoning\":{\"context\":\"none\"}", "reasoning.context", "invalid_value"},
        {RESPONSES, "\"reasoning\":{\"context\":[]}", "reasoning.context", "invalid_type"},
        {RESPONSES, "\"reasoning\":{\"generate_summary\":\"poem\"}", "reasoning.summary", "invalid_value"},
        {CHAT, "\"reasoning_effort\":\"enormous\"", "reasoning_effort", "invalid_value"},
        {CHAT, "\"reasoning_effort\":5", "reasoning_effort", "invalid_type"},
        {CHAT, "\"chat_template_kwargs\":5", "chat_template_kwargs", "invalid_type"},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":0}", "chat_template_kwargs.enable_thinking",
         "invalid_type"},
        {CHAT, "\"chat_template_kwargs\":{\"reasoning_effort\":\"x\"}", "chat_template_kwargs.reasoning_effort",
         "invalid_value"},
        {CHAT, "\"chat_template_kwargs\":{\"date_string\":\"1 May\"}", "chat_template_kwargs.date_string",
         "unsupported_parameter"},
        {ANTHROPIC, "\"output_config\":{\"effort\":\"enormous\"}", "output_config.effort", "invalid_value"},
        {ANTHROPIC, "\"output_config\":{\"effort\":{}}", "output_config.effort", "invalid_type"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e;
        struct turn_request *q = parse(cases[i].interface, cases[i].more, &e);
        if (q || e.status != 400 || strcmp(e.param, cases[i].param) != 0 || strcmp(e.code, cases[i].code) != 0)
            fail_msg("%s: %d '%s' %s", cases[i].more, e.status, e.param, e.message);
    }
}

/* An answer of which there is thinking alone is one without a text; before an answer, or at the end, it is nothing. */
static void thinking_is_sent_back(void **state)
{
    (void)state;
#define THOUGHT "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[]}"
#define USER    "{\"role\":\"user\",\"content\":\"x\"}"
    static const struct {
        int interface;
        const char *body;
        const char *roles; /* of its items; e: an answer without text */
    } cases[] = {
        {RESPONSES, "\"input\":[" USER "," THOUGHT "," USER "]", "ueu"},
        {RESPONSES, "\"input\":[" USER "," THOUGHT "," THOUGHT "," USER "]", "ueu"},
        {RESPONSES, "\"input\":[" THOUGHT "," USER "," THOUGHT "]", "u"},
        {RESPONSES, "\"input\":[" USER "," THOUGHT ",{\"role\":\"assistant\",\"content\":\"y\"}," USER "]", "uau"},
        {RESPONSES, "\"input\":[" USER ",{\"role\":\"assistant\",\"content\":\"y\"}," THOUGHT "," USER "]", "uau"},
        {RESPONSES,
         "\"input\":[" USER "," THOUGHT
         ",{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
         "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"1\"}]",
         "uau"},
        {ANTHROPIC,
         "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\","
         "\"signature\":\"\"}]}," USER "]",
         "ueu"},
        {ANTHROPIC,
         "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\","
         "\"signature\":\"\"},{\"type\":\"text\",\"text\":\"y\"}]}," USER "]",
         "uau"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e = {0};
        char body[1024], roles[16] = "";
        snprintf(body, sizeof(body), "{%s}", cases[i].body);
        cJSON *o = cJSON_Parse(body);
        assert_non_null(o);
        struct turn_request *q = interfaces[cases[i].interface].parse(o, &e);
        for (size_t k = 0; q && k < q->n_items && k < 15; k++)
            roles[k] = q->items[k].role != ENGINE_ASSISTANT ? 'u' : q->items[k].len ? 'a' : 'e';
        if (strcmp(roles, cases[i].roles) != 0)
            fail_msg("%zu: %s, not %s (%s)", i, roles, cases[i].roles, e.message);
        turn_request_free(q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_asked_for), cmocka_unit_test(context_is_asked_for),
                                       cmocka_unit_test(is_refused), cmocka_unit_test(thinking_is_sent_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* parameters_test.c - each parameter of each interface, with values of other types and far outside its range: refused
 * by its name, before any work.
 */
#include <stdio.h>
#include <string.h>

#include "tests/daemon/harness.h"

enum kind { NUMBER, INTEGER, BOOLEAN, STRING, OBJECT, LIST, TEXT_OR_LIST, KINDS };

/* What is none of the kind, or outside every range. */
static const char *const wrong[KINDS][8] = {
    [NUMBER] = {"true", "\"1\"", "[]", "{}", "1e308", "-1e308"},
    [INTEGER] = {"true", "\"1\"", "[]", "{}", "1e308", "-1e308", "0.5"},
    [BOOLEAN] = {"1", "0", "\"true\"", "[]", "{}"},
    [STRING] = {"5", "true", "[]", "{}"},
    [OBJECT] = {"5", "true", "\"x\"", "[5]"},
    [LIST] = {"5", "true", "\"x\"", "{}"},
    [TEXT_OR_LIST] = {"5", "true", "{}", "[5]"},
};

struct interface {
    const char *path, *body; /* an object without its end, which a turn can be made of */
    struct {
        const char *name; /* with a point: within an object */
        enum kind kind;
    } parameters[48];
};

static const struct interface interfaces[] = {
    {"/v1/responses",
     "{\"input\":\"echo a\"",
     {{"temperature", NUMBER},
      {"top_p", NUMBER},
      {"max_output_tokens", INTEGER},
      {"top_logprobs", INTEGER},
      {"store", BOOLEAN},
      {"stream", BOOLEAN},
      {"background", BOOLEAN},
      {"generate", BOOLEAN},
      {"parallel_tool_calls", BOOLEAN},
      {"model", STRING},
      {"previous_response_id", STRING},
      {"truncation", STRING},
      {"instructions", STRING},
      {"metadata", OBJECT},
      {"text", OBJECT},
      {"text.format", OBJECT},
      {"text.verbosity", STRING},
      {"reasoning", OBJECT},
      {"reasoning.effort", STRING},
      {"reasoning.summary", STRING},
      {"reasoning.context", STRING},
      {"logit_bias", OBJECT},
      {"logit_bias.7", NUMBER},
      {"include", LIST},
      {"tools", LIST},
      {"stop", TEXT_OR_LIST},
      {"convod", OBJECT},
      {"convod.seed", INTEGER},
      {"convod.top_k", INTEGER},
      {"convod.min_p", NUMBER},
      {"convod.repetition_penalty", NUMBER},
      {"convod.presence_penalty", NUMBER},
      {"convod.frequency_penalty", NUMBER},
      {"convod.stop", TEXT_OR_LIST},
      {"convod.progress", BOOLEAN},
      {"convod.priority", STRING},
      {"convod.parent", STRING},
      {"convod.continue", STRING},
      {"convod.on_disconnect", STRING},
      {"convod.thinking_tokens", INTEGER},
      {"convod.idempotency_key", STRING}}},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"echo a\"}]",
     {{"temperature", NUMBER},
      {"top_p", NUMBER},
      {"top_k", INTEGER},
      {"min_p", NUMBER},
      {"repetition_penalty", NUMBER},
      {"presence_penalty", NUMBER},
      {"frequency_penalty", NUMBER},
      {"max_tokens", INTEGER},
      {"max_completion_tokens", INTEGER},
      {"n", INTEGER},
      {"seed", INTEGER},
      {"logprobs", BOOLEAN},
      {"stream", BOOLEAN},
      {"stream_options", OBJECT},
      {"stream_options.include_usage", BOOLEAN},
      {"store", BOOLEAN},
      {"parallel_tool_calls", BOOLEAN},
      {"model", STRING},
      {"priority", STRING},
      {"response_format", OBJECT},
      {"response_format.type", STRING},
      {"logit_bias", OBJECT},
      {"logit_bias.7", NUMBER},
      {"stop", TEXT_OR_LIST},
      {"reasoning_effort", STRING},
      {"thinking_tokens", INTEGER},
      {"verbosity", STRING},
      {"chat_template_kwargs", OBJECT},
      {"chat_template_kwargs.enable_thinking", BOOLEAN},
      {"chat_template_kwargs.reasoning_effort", STRING},
      {"top_logprobs", INTEGER},
      {"add_generation_prompt", BOOLEAN},
      {"continue_final_message", BOOLEAN},
      {"tools", LIST}}},
    {"/v1/completions",
     "{\"prompt\":\"echo a\"",
     {{"temperature", NUMBER},
      {"top_p", NUMBER},
      {"top_k", INTEGER},
      {"min_p", NUMBER},
      {"repetition_penalty", NUMBER},
      {"presence_penalty", NUMBER},
      {"frequency_penalty", NUMBER},
      {"max_tokens", INTEGER},
      {"n", INTEGER},
      {"best_of", INTEGER},
      {"logprobs", INTEGER},
      {"seed", INTEGER},
      {"stream", BOOLEAN},
      {"stream_options", OBJECT},
      {"stream_options.include_usage", BOOLEAN},
      {"model", STRING},
      {"logit_bias", OBJECT},
      {"logit_bias.7", NUMBER},
      {"stop", TEXT_OR_LIST}}},
    {"/v1/messages",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"echo a\"}],\"max_tokens\":9",
     {{"temperature", NUMBER},
      {"top_p", NUMBER},
      {"top_k", INTEGER},
      {"stream", BOOLEAN},
      {"model", STRING},
      {"system", TEXT_OR_LIST},
      {"stop_sequences", TEXT_OR_LIST},
      {"tools", LIST},
      {"tool_choice", OBJECT},
      {"tool_choice.type", STRING},
      {"thinking", OBJECT},
      {"thinking.type", STRING},
      {"output_config", OBJECT},
      {"output_config.format", OBJECT},
      {"output_config.effort", STRING},
      {"thinking.budget_tokens", INTEGER},
      {"tool_choice.name", STRING},
      {"tool_choice.disable_parallel_tool_use", BOOLEAN},
      {"context_management", OBJECT}}},
};

static void check(struct harness *h, const struct interface *i, const char *name, const char *value)
{
    char body[512];
    const char *point = strchr(name, '.');
    if (point)
        snprintf(body, sizeof(body), "%s,\"%.*s\":{\"%s\":%s}}", i->body, (int)(point - name), name, point + 1, value);
    else
        snprintf(body, sizeof(body), "%s,\"%s\":%s}", i->body, name, value);
    struct reply r = call(h, "POST", i->path, NULL, body);
    /* A list's member has a number behind its name. */
    const char *param = r.json ? str(r.json, "error.param") : "";
    bool named = strcmp(param, name) == 0 || (strncmp(param, name, strlen(name)) == 0 && param[strlen(name)] == '[');
    if (r.status != 400 || !named || strcmp(str(r.json, "error.type"), "invalid_request_error") != 0)
        fail_msg("%s %s: %d %s", i->path, body, r.status, r.body);
    if (strcmp(i->path, "/v1/messages") == 0)
        assert_string_equal(str(r.json, "type"), "error");
    reply_free(&r);
}

static void each_parameter(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(interfaces) / sizeof(*interfaces); i++)
        for (size_t p = 0; interfaces[i].parameters[p].name; p++)
            for (size_t v = 0; wrong[interfaces[i].parameters[p].kind][v]; v++)
                check(h, &interfaces[i], interfaces[i].parameters[p].name, wrong[interfaces[i].parameters[p].kind][v]);
    assert_int_equal(fake_turns_started(), 0);
    harness_stop(h);
}

/* JSON has no such numbers, and null is as good as nothing. */
static void no_numbers(void **state)
{
    (void)state;
    static const char *const values[] = {"NaN", "Infinity", "-Infinity", "1e999", "0x10", "+1", "nan"};
    struct harness *h = harness_start(NULL);
    char body[512];
    for (size_t i = 0; i < sizeof(interfaces) / sizeof(*interfaces); i++) {
        for (size_t v = 0; v < sizeof(values) / sizeof(*values); v++) {
            snprintf(body, sizeof(body), "%s,\"temperature\":%s}", interfaces[i].body, values[v]);
            struct reply r = call(h, "POST", interfaces[i].path, NULL, body);
            if (r.status != 400 || strcmp(str(r.json, "error.code"), "invalid_json") != 0 ||
                strcmp(str(r.json, "error.param"), "temperature") != 0)
                fail_msg("%s %s: %d %s", interfaces[i].path, body, r.status, r.body);
            reply_free(&r);
        }
        assert_int_equal(fake_turns_started(), (int)i);
        snprintf(body, sizeof(body), "%s,\"temperature\":null,\"logit_bias\":null,\"stop\":null,\"tools\":null}",
                 interfaces[i].body);
        struct reply r = call(h, "POST", interfaces[i].path, NULL, body);
        if (r.status != 200)
            fail_msg("%s %s: %d %s", interfaces[i].path, body, r.status, r.body);
        reply_free(&r);
    }
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_parameter), cmocka_unit_test(no_numbers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

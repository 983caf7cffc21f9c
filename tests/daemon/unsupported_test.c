/* unsupported_test.c - what changes an answer and is not done here is refused; what asks for nothing is not. */
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

static void each_field(void **state)
{
    (void)state;
    static const struct {
        enum unsupported_api api;
        const char *body, *param; /* "" = taken */
    } cases[] = {
        {UNSUPPORTED_RESPONSES, "{\"tool_choice\":\"auto\",\"prompt\":null}", ""},
        {UNSUPPORTED_RESPONSES, "{\"tool_choice\":\"none\",\"top_logprobs\":0,\"stop\":[]}", ""},
        {UNSUPPORTED_RESPONSES, "{\"tools\":[{}],\"reasoning\":{\"effort\":\"low\"},\"include\":[\"x\"]}", ""},
        {UNSUPPORTED_RESPONSES, "{\"prompt\":{\"id\":\"p\"}}", "prompt"},
        {UNSUPPORTED_RESPONSES, "{\"context_management\":[{}]}", "context_management"},
        {UNSUPPORTED_RESPONSES, "{\"moderation\":{\"model\":\"m\"}}", "moderation"},
        {UNSUPPORTED_RESPONSES, "{\"modalities\":[\"text\"],\"n\":1,\"top_k\":-1,\"repetition_penalty\":1}", ""},
        {UNSUPPORTED_RESPONSES, "{\"modalities\":[\"text\",\"audio\"]}", "modalities"},
        {UNSUPPORTED_RESPONSES, "{\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
        {UNSUPPORTED_RESPONSES, "{\"max_tokens\":5}", "max_tokens"},
        {UNSUPPORTED_RESPONSES, "{\"n\":2}", "n"},
        {UNSUPPORTED_RESPONSES, "{\"top_k\":5}", "top_k"},
        {UNSUPPORTED_RESPONSES, "{\"presence_penalty\":-1}", "presence_penalty"},
        {UNSUPPORTED_RESPONSES, "{\"min_tokens\":5}", "min_tokens"},
        {UNSUPPORTED_COMPLETIONS, "{\"modalities\":[\"text\"],\"typical_p\":1,\"length_penalty\":1.0,\"best_of\":1}",
         ""},
        {UNSUPPORTED_COMPLETIONS, "{\"modalities\":[\"audio\"]}", "modalities"},
        {UNSUPPORTED_COMPLETIONS, "{\"typical_p\":0.5}", "typical_p"},
        {UNSUPPORTED_COMPLETIONS, "{\"mirostat\":2}", "mirostat"},
        {UNSUPPORTED_COMPLETIONS, "{\"best_of\":2}", "best_of"},
        {UNSUPPORTED_COMPLETIONS, "{\"moderation\":{\"model\":\"m\"}}", "moderation"},
        {UNSUPPORTED_COMPLETIONS, "{\"tool_choice\":\"auto\",\"logprobs\":false,\"stop\":\"x\",\"audio\":null}", ""},
        {UNSUPPORTED_COMPLETIONS, "{\"functions\":[{}]}", "functions"},
        {UNSUPPORTED_COMPLETIONS, "{\"function_call\":{\"name\":\"f\"}}", "function_call"},
        {UNSUPPORTED_COMPLETIONS, "{\"audio\":{\"voice\":\"a\"}}", "audio"},
        {UNSUPPORTED_COMPLETIONS, "{\"web_search_options\":{\"a\":1}}", "web_search_options"},
        {UNSUPPORTED_COMPLETIONS, "{\"grammar\":\"root ::= x\"}", "grammar"},
        {UNSUPPORTED_COMPLETIONS, "{\"guided_choice\":[\"a\"]}", "guided_choice"},
        {UNSUPPORTED_COMPLETIONS, "{\"ignore_eos\":false,\"min_tokens\":0,\"bad_words\":[],\"stop_token_ids\":null}",
         ""},
        {UNSUPPORTED_COMPLETIONS, "{\"ignore_eos\":true}", "ignore_eos"},
        {UNSUPPORTED_COMPLETIONS, "{\"min_tokens\":5}", "min_tokens"},
        {UNSUPPORTED_COMPLETIONS, "{\"bad_words\":[\"x\"]}", "bad_words"},
        {UNSUPPORTED_COMPLETIONS, "{\"structured_outputs\":{\"regex\":\"x\"}}", "structured_outputs"},
        {UNSUPPORTED_RESPONSES, "{\"guided_json\":{\"type\":\"object\"}}", "guided_json"},
        {UNSUPPORTED_TEXT, "{\"response_format\":{\"type\":\"text\"}}", ""},
        {UNSUPPORTED_TEXT, "{\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
        {UNSUPPORTED_TEXT, "{\"grammar\":\"root ::= x\"}", "grammar"},
        {UNSUPPORTED_ANTHROPIC, "{\"output_format\":{\"type\":\"json_schema\"}}", "output_format"},
        {UNSUPPORTED_TEXT, "{\"use_beam_search\":false,\"echo\":false}", ""},
        {UNSUPPORTED_TEXT, "{\"stop_token_ids\":[5]}", "stop_token_ids"},
        {UNSUPPORTED_TEXT, "{\"length_penalty\":2}", "length_penalty"},
        {UNSUPPORTED_ANTHROPIC, "{\"container\":null,\"mcp_servers\":[],\"service_tier\":\"auto\"}", ""},
        {UNSUPPORTED_ANTHROPIC, "{\"mcp_servers\":[{\"type\":\"url\"}]}", "mcp_servers"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e = {0};
        cJSON *body = cJSON_Parse(cases[i].body);
        assert_non_null(body);
        int rc = unsupported_check(body, cases[i].api, &e);
        if (rc != (*cases[i].param ? -1 : 0) || strcmp(e.param, cases[i].param) != 0) {
            fail_msg("%s: %d '%s'", cases[i].body, rc, e.param);
        }
        assert_true(rc == 0 || (e.status == 400 && strcmp(e.code, "unsupported_parameter") == 0));
        cJSON_Delete(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_field)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

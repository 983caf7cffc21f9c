/* completions_test.c - the older Completions: texts, tokens, chunks, refusals. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/run/run.h"
#include "tests/daemon/harness.h"

static void answers(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/completions", NULL,
                          "{\"prompt\":[\"echo a b\"],\"logprobs\":2,\"max_tokens\":5,\"stop\":\"x\",\"seed\":3}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "text_completion");
    assert_string_equal(str(r.json, "choices.0.text"), "a b");
    assert_string_equal(str(r.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(num(r.json, "usage.prompt_tokens"), 7);
    assert_int_equal(num(r.json, "usage.prompt_tokens_details.cached_tokens"), 3);
    assert_true(strncmp(str(r.json, "id"), "cmpl-", 5) == 0);
    assert_string_equal(str(r.json, "choices.0.logprobs.tokens.1"), "b");
    assert_true(num(r.json, "choices.0.logprobs.token_logprobs.0") == -0.5);
    assert_true(num(r.json, "choices.0.logprobs.top_logprobs.0.a") == -0.5);
    reply_free(&r);
    r = call(h, "POST", "/v1/completions", NULL, "{\"prompt\":[1,2,3],\"max_tokens\":-1}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "\"logprobs\":null"));
    reply_free(&r);
    r = call(h, "POST", "/v1/completions", NULL,
             "{\"prompt\":\"echo a b\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
    static const char *const order[] = {"\"text\":\"a \"", "\"text\":\"b\"", "\"finish_reason\":\"stop\"",
                                        "\"choices\":[],\"usage\":{", "data: [DONE]\n\n"};
    const char *p = r.body;
    for (size_t i = 0; i < sizeof(order) / sizeof(*order); i++) {
        p = strstr(p, order[i]);
        if (!p) {
            fail_msg("no %s in order in %s", order[i], r.body);
        }
        p += strlen(order[i]);
    }
    reply_free(&r);
    r = call(h, "POST", "/v1/completions", NULL, "{\"prompt\":\"echo a b\",\"n\":2,\"best_of\":2,\"logprobs\":1}");
    assert_int_equal(cJSON_GetArraySize(at(r.json, "choices")), 2);
    assert_int_equal(num(r.json, "choices.1.index"), 1);
    assert_string_equal(str(r.json, "choices.1.text"), "a b");
    assert_string_equal(str(r.json, "choices.1.logprobs.tokens.1"), "b");
    assert_int_equal(num(r.json, "usage.prompt_tokens"), 7);
    reply_free(&r);
    r = call(h, "POST", "/v1/completions", NULL, "{\"prompt\":\"echo a b\",\"n\":2,\"stream\":true}");
    assert_non_null(strstr(r.body, "\"index\":1,\"text\":\"a \""));
    const char *done = strstr(r.body, "data: [DONE]\n\n");
    assert_non_null(done);
    assert_string_equal(done, "data: [DONE]\n\n");
    reply_free(&r);
    /* Nothing of it is kept. */
    r = call(h, "GET", "/v1/conversations", NULL, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 0);
    reply_free(&r);
    harness_stop(h);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{}", "prompt"},
        {"{\"prompt\":5}", "prompt"},
        {"{\"prompt\":\"\"}", "prompt"},
        {"{\"prompt\":[]}", "prompt"},
        {"{\"prompt\":[[]]}", "prompt"},
        {"{\"prompt\":[\"a\",\"b\"]}", "prompt"},
        {"{\"prompt\":[[1],[2]]}", "prompt"},
        {"{\"prompt\":[1,-1]}", "prompt[1]"},
        {"{\"prompt\":[0.5]}", "prompt[0]"},
        {"{\"prompt\":[1,\"a\"]}", "prompt[1]"},
        {"{\"prompt\":[1e300]}", "prompt[0]"},
        {"{\"prompt\":\"x\",\"n\":17}", "n"},
        {"{\"prompt\":\"x\",\"n\":2,\"best_of\":3}", "best_of"},
        {"{\"prompt\":\"x\",\"best_of\":2}", "best_of"},
        {"{\"prompt\":\"x\",\"logprobs\":6}", "logprobs"},
        {"{\"prompt\":\"x\",\"logprobs\":true}", "logprobs"},
        {"{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens"},
        {"{\"prompt\":\"x\",\"echo\":true}", "echo"},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix"},
        {"{\"prompt\":\"x\",\"logit_bias\":{\"1\":500}}", "logit_bias.1"},
        {"{\"prompt\":\"x\",\"logit_bias\":{\"2147483647\":1}}", "logit_bias.2147483647"},
        {"{\"prompt\":\"x\",\"temperature\":[]}", "temperature"},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct reply r = call(h, "POST", "/v1/completions", NULL, cases[i].body);
        if (r.status != 400 || strcmp(str(r.json, "error.param"), cases[i].param) != 0) {
            fail_msg("%s: %d %s", cases[i].body, r.status, r.body);
        }
        reply_free(&r);
    }
    assert_int_equal(fake_turns_started(), 0);
    harness_stop(h);
}

/* However many come, they take the place of no response that can be followed. */
static void push_nothing_out(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (int i = 0; i < EPHEMERAL_MAX + 1; i++) {
        struct reply r = call(h, "POST", "/v1/completions", NULL, "{\"prompt\":\"echo a\"}");
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    assert_int_equal(fake_forgotten(), 0);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(refusals),
                                       cmocka_unit_test(push_nothing_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

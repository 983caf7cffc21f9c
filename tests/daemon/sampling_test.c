/* sampling_test.c - the sampling fields of both APIs: where they stand, their ranges, and what is shown of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/api/api.h"

static int parse(const char *body, const char *extra, struct engine_sampling *s, struct api_error *e)
{
    cJSON *b = cJSON_Parse(body), *x = extra ? cJSON_Parse(extra) : NULL;
    assert_non_null(b);
    memset(e, 0, sizeof(*e));
    int rc = sampling_parse(b, extra && !*extra ? b : x, extra && *extra ? "convod." : "", s, e);
    cJSON_Delete(b);
    cJSON_Delete(x);
    return rc;
}

static void every_field(void **state)
{
    (void)state;
    struct engine_sampling s;
    struct api_error e;
    const char *own = "{\"temperature\":1.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,\"repetition_penalty\":1.25,"
                      "\"presence_penalty\":-1,\"frequency_penalty\":2,\"seed\":9007199254740991}";
    assert_int_equal(parse(own, "", &s, &e), 0); /* all at the top */
    assert_true(s.temperature == 1.5f && s.top_p == 0.25f && s.top_k == 7 && s.min_p == 0.125f);
    assert_true(s.repetition_penalty == 1.25f && s.presence_penalty == -1 && s.frequency_penalty == 2);
    assert_true(s.seed == (1ULL << 53) - 1);
    assert_int_equal(parse("{\"temperature\":0.5,\"top_k\":3}", own, &s, &e), 0); /* two at the top, ours below */
    assert_true(s.temperature == 0.5f && s.top_k == 7 && s.min_p == 0.125f);
    assert_int_equal(parse("{\"seed\":4}", "{\"top_k\":1}", &s, &e), 0); /* a seed in either */
    assert_true(s.seed == 4);
    assert_int_equal(parse("{\"seed\":4}", "{\"seed\":5}", &s, &e), 0);
    assert_true(s.seed == 5);
    assert_int_equal(parse("{\"temperature\":0.5,\"top_k\":3}", own, &s, &e), 0);
    const struct engine_sampling standard = ENGINE_SAMPLING_DEFAULT;
    assert_true(s.top_p == standard.top_p);
    cJSON *o = cJSON_CreateObject();
    s.repetition_penalty = 1.1f;
    sampling_echo(&s, o);
    char *text = cJSON_PrintUnformatted(o);
    assert_string_equal(text, "{\"seed\":9007199254740991,\"top_k\":7,\"min_p\":0.125,\"repetition_penalty\":1.1,"
                              "\"presence_penalty\":-1,\"frequency_penalty\":2}");
    cJSON_free(text);
    cJSON_Delete(o);
}

static void the_edges(void **state)
{
    (void)state;
    struct engine_sampling s;
    struct api_error e;
    assert_int_equal(parse("{\"temperature\":0,\"top_p\":0,\"top_k\":0}", "", &s, &e), 0);
    assert_int_equal(parse("{\"temperature\":10,\"top_p\":1,\"top_k\":2147483647}", "", &s, &e), 0);
    static const struct {
        const char *body, *extra, *param, *code;
    } bad[] = {
        {"{\"temperature\":10.1}", NULL, "temperature", "invalid_value"},
        {"{\"temperature\":-1e-9}", NULL, "temperature", "invalid_value"},
        {"{\"temperature\":1e308}", NULL, "temperature", "invalid_value"},
        {"{\"temperature\":true}", NULL, "temperature", "invalid_type"},
        {"{\"top_p\":-0.1}", "{}", "top_p", "invalid_value"},
        {"{\"min_p\":1.1}", "", "min_p", "invalid_value"},
        {"{}", "{\"min_p\":1.1}", "convod.min_p", "invalid_value"},
        {"{}", "{\"repetition_penalty\":0}", "convod.repetition_penalty", "invalid_value"},
        {"{}", "{\"frequency_penalty\":-2.1}", "convod.frequency_penalty", "invalid_value"},
        {"{}", "{\"top_k\":2147483648}", "convod.top_k", "invalid_value"},
        {"{}", "{\"seed\":9223372036854780000}", "convod.seed", "invalid_value"},
        {"{\"seed\":1e19}", "{}", "seed", "invalid_value"},
        {"{\"seed\":\"5\"}", NULL, "seed", "invalid_type"},
        {"{}", "{\"seed\":-9223372036854780000}", "convod.seed", "invalid_value"},
        {"{}", "{\"seed\":0.5}", "convod.seed", "invalid_type"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(parse(bad[i].body, bad[i].extra, &s, &e), -1);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, bad[i].param);
        assert_string_equal(e.code, bad[i].code);
        assert_non_null(strstr(e.message, bad[i].param));
    }
}

static void seeds_of_their_own(void **state)
{
    (void)state;
    struct engine_sampling a, b;
    struct api_error e;
    assert_int_equal(parse("{}", "", &a, &e), 0);
    assert_int_equal(parse("{\"seed\":-1}", "", &b, &e), 0);
    assert_true(a.seed != b.seed && a.seed < 1ULL << 53 && b.seed < 1ULL << 53);
}

static void seeds_of_64_bits(void **state)
{
    (void)state;
    struct engine_sampling s;
    struct api_error e;
    static const struct {
        const char *body, *shown;
        uint64_t seed;
    } cases[] = {
        {"{\"seed\":9007199254740992}", "{\"seed\":9007199254740992,", 1ULL << 53},
        {"{\"seed\":9223372036854774784}", "{\"seed\":9223372036854774784,", (1ULL << 63) - 1024},
        {"{\"seed\":9223372036854775807}", "{\"seed\":9223372036854775807,", INT64_MAX},
        {"{\"seed\":-2}", "{\"seed\":-2,", UINT64_MAX - 1},
        {"{\"seed\":-9223372036854775808}", "{\"seed\":-9223372036854775808,", 1ULL << 63},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (parse(cases[i].body, "", &s, &e) || s.seed != cases[i].seed) {
            fail_msg("%s: %llu, %s", cases[i].body, (unsigned long long)s.seed, e.message);
        }
        cJSON *o = cJSON_CreateObject();
        sampling_echo(&s, o);
        char *text = cJSON_PrintUnformatted(o);
        assert_int_equal(strncmp(text, cases[i].shown, strlen(cases[i].shown)), 0);
        cJSON_free(text);
        cJSON_Delete(o);
    }
}

static int parse_bias(const char *body, struct turn_request **q, struct api_error *e)
{
    cJSON *b = cJSON_Parse(body);
    *q = calloc(1, sizeof(**q));
    assert_non_null(b);
    assert_non_null(*q);
    memset(e, 0, sizeof(*e));
    int rc = bias_parse(b, *q, e);
    cJSON_Delete(b);
    return rc;
}

static void biases(void **state)
{
    (void)state;
    struct turn_request *q;
    struct api_error e;
    assert_int_equal(parse_bias("{\"logit_bias\":{\"300\":-100,\"7\":0.5,\"0\":100}}", &q, &e), 0);
    assert_int_equal(q->n_bias, 3); /* in the order of tokens */
    assert_true(q->bias[0].token == 0 && q->bias[0].bias == 100 && q->bias[1].token == 7 && q->bias[1].bias == 0.5f &&
                q->bias[2].token == 300 && q->bias[2].bias == -100);
    turn_request_free(q);
    static const char *const none[] = {"{}", "{\"logit_bias\":null}", "{\"logit_bias\":{}}"};
    for (size_t i = 0; i < sizeof(none) / sizeof(*none); i++) {
        assert_int_equal(parse_bias(none[i], &q, &e), 0);
        assert_int_equal(q->n_bias, 0);
        turn_request_free(q);
    }
    static const struct {
        const char *body, *param, *code;
    } bad[] = {
        {"{\"logit_bias\":[]}", "logit_bias", "invalid_type"},
        {"{\"logit_bias\":5}", "logit_bias", "invalid_type"},
        {"{\"logit_bias\":{\"1\":100.5}}", "logit_bias.1", "invalid_value"},
        {"{\"logit_bias\":{\"1\":-1e300}}", "logit_bias.1", "invalid_value"},
        {"{\"logit_bias\":{\"1\":\"5\"}}", "logit_bias.1", "invalid_type"},
        {"{\"logit_bias\":{\"1\":null}}", "logit_bias.1", "invalid_type"},
        {"{\"logit_bias\":{\"1\":{}}}", "logit_bias.1", "invalid_type"},
        {"{\"logit_bias\":{\"\":1}}", "logit_bias.", "invalid_value"},
        {"{\"logit_bias\":{\"-1\":1}}", "logit_bias.-1", "invalid_value"},
        {"{\"logit_bias\":{\"01\":1}}", "logit_bias.01", "invalid_value"},
        {"{\"logit_bias\":{\"1.0\":1}}", "logit_bias.1.0", "invalid_value"},
        {"{\"logit_bias\":{\"yes\":1}}", "logit_bias.yes", "invalid_value"},
        {"{\"logit_bias\":{\"2147483648\":1}}", "logit_bias.2147483648", "invalid_value"},
        {"{\"logit_bias\":{\"99999999999999999999\":1}}", "logit_bias.99999999999999999999", "invalid_value"},
        {"{\"logit_bias\":{\"5\":1,\"6\":1,\"5\":2}}", "logit_bias", "invalid_value"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int rc = parse_bias(bad[i].body, &q, &e);
        if (rc != -1 || e.status != 400 || strcmp(e.param, bad[i].param) != 0 || strcmp(e.code, bad[i].code) != 0) {
            fail_msg("%s: %d, '%s', %s", bad[i].body, rc, e.param, e.message);
        }
        turn_request_free(q);
    }
    static char body[ENGINE_BIAS_MAX * 12 + 64];
    for (int more = 0; more < 2; more++) {
        int n = snprintf(body, sizeof(body), "{\"logit_bias\":{");
        for (int i = 0; i < ENGINE_BIAS_MAX + more; i++) {
            n += snprintf(body + n, sizeof(body) - (size_t)n, "%s\"%d\":1", i ? "," : "", i);
        }
        snprintf(body + n, sizeof(body) - (size_t)n, "}}");
        assert_int_equal(parse_bias(body, &q, &e), -more);
        turn_request_free(q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field),      cmocka_unit_test(the_edges), cmocka_unit_test(seeds_of_their_own),
        cmocka_unit_test(seeds_of_64_bits), cmocka_unit_test(biases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

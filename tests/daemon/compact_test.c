/* compact_test.c - compaction items: what one stands for, what is none, and what asks for one. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

/* A create body with such an item before a question. */
static struct turn_request *parse(const void *content, size_t len, bool encoded, struct api_error *e)
{
    char text[512], body[1024];
    memset(e, 0, sizeof(*e));
    if (encoded)
        EVP_EncodeBlock((unsigned char *)text, content, (int)len);
    else
        snprintf(text, sizeof(text), "%.*s", (int)len, (const char *)content);
    snprintf(body, sizeof(body),
             "{\"input\":[{\"type\":\"compaction\",\"id\":\"cmp_1\",\"encrypted_content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"q\"}]}",
             text);
    return responses_parse(cJSON_Parse(body), false, e);
}

static void stands_for_what_was_before(void **state)
{
    (void)state;
    static const char *const texts[] = {"convod compaction 1\nHello", "convod compaction 1\nHello.",
                                        "convod compaction 1\nHello..", "convod compaction 1\n",
                                        "convod compaction 1\nn\xc3\xa4ive"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct api_error e;
        struct turn_request *q = parse(texts[i], strlen(texts[i]), true, &e);
        if (!q)
            fail_msg("%s: %s", texts[i], e.message);
        assert_int_equal(q->n_items, 2);
        assert_int_equal(q->items[0].role, ENGINE_SYSTEM);
        assert_string_equal(strchr(q->items[0].text, '\n'), strchr(texts[i], '\n'));
        assert_int_equal(q->items[0].len, strlen(q->items[0].text));
        assert_string_equal(q->items[1].text, "q");
        turn_request_free(q);
    }
}

static void is_none(void **state)
{
    (void)state;
    static const struct {
        const char *content;
        size_t len;
        bool encoded;
    } cases[] = {
        {"", 0, false},
        {"x", 1, false},
        {"====", 4, false},
        {"AAA=", 4, false},
        {"!!!!", 4, false},
        {"Hello", 5, true},
        {"convod compaction 2\nHello", 25, true},
        {"convod compaction 1\nHe\0llo", 26, true},
        {"convod compaction 1\nHe\xff", 23, true},
        {"\0", 1, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e;
        struct turn_request *q = parse(cases[i].content, cases[i].len, cases[i].encoded, &e);
        if (q || e.status != 400 || strcmp(e.param, "input[0].encrypted_content") != 0)
            fail_msg("%zu: %d '%s' %s", i, e.status, e.param, e.message);
    }
}

static void asks(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses/compact", NULL, "{\"input\":\"echo a\",\"stream\":true}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "response.compaction");
    assert_string_equal(str(r.json, "output.0.type"), "compaction");
    assert_int_equal(cJSON_GetArraySize(at(r.json, "output")), 1);
    char body[2048];
    snprintf(body, sizeof(body),
             "{\"input\":[{\"type\":\"compaction\",\"encrypted_content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"echo b\"}]}",
             str(r.json, "output.0.encrypted_content"));
    reply_free(&r);
    r = call(h, "POST", "/v1/responses", NULL, body);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    static const struct {
        const char *body, *param;
    } bad[] = {{"{}", "input"},
               {"{\"input\":5}", "input"},
               {"{\"input\":[]}", "input"},
               {"{\"input\":\"x\",\"background\":true}", "background"},
               {"{\"previous_response_id\":5}", "previous_response_id"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        r = call(h, "POST", "/v1/responses/compact", NULL, bad[i].body);
        if (r.status != 400 || strcmp(str(r.json, "error.param"), bad[i].param) != 0)
            fail_msg("%s: %d %s", bad[i].body, r.status, r.body);
        reply_free(&r);
    }
    harness_stop(h);
}

/* The summary is any text, and nothing is thought before it, whatever the body asks for. */
static void is_text_alone(void **state)
{
    (void)state;
    struct api_error e = {0};
    struct turn_request *q = responses_parse_compact(
        cJSON_Parse(
            "{\"input\":\"x\",\"reasoning\":{\"effort\":\"high\"},\"text\":{\"format\":{\"type\":\"json_schema\","
            "\"name\":\"n\",\"schema\":{\"type\":\"object\"}}}}"),
        &e);
    if (!q)
        fail_msg("%s", e.message);
    assert_null(q->form);
    assert_int_equal(q->thinking_tokens, -1);
    turn_request_free(q);
}

/* No summary is none, and one that was cut says so. */
static void says_what_is_missing(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    static const char *const empty[] = {"echo ", "echo  \\n "};
    for (size_t i = 0; i < 2; i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"input\":\"%s\"}", empty[i]);
        struct reply r = call(h, "POST", "/v1/responses/compact", NULL, body);
        assert_int_equal(r.status, 500);
        assert_string_equal(str(r.json, "error.message"), "The model wrote no summary.");
        reply_free(&r);
    }
    struct reply r = call(h, "POST", "/v1/responses/compact", NULL, "{\"input\":\"long\"}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "convod.incomplete_reason"), "max_output_tokens");
    reply_free(&r);
    r = call(h, "POST", "/v1/responses/compact", NULL, "{\"input\":\"echo a\"}");
    assert_int_equal(r.status, 200);
    assert_null(at(r.json, "convod.incomplete_reason"));
    reply_free(&r);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stands_for_what_was_before), cmocka_unit_test(is_none),
                                       cmocka_unit_test(asks), cmocka_unit_test(is_text_alone),
                                       cmocka_unit_test(says_what_is_missing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

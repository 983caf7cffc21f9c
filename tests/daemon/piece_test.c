/* piece_test.c - events of pieces of an answer: whatever the text, its pieces read back as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

#define LONG_BYTES 900

/* With all that JSON writes otherwise, the text that pieces are cut by, and a word longer than most. */
static char *hard_text(void)
{
    static const char text[] = "\"a\\ \x01 b\"\x01\"\n\t\x1f c\xc3\xa9 \xef\xbf\xbd\x7f \\u0001 \"\\u0001\" ";
    char *all = malloc(sizeof(text) + LONG_BYTES);
    assert_non_null(all);
    memcpy(all, text, sizeof(text) - 1);
    for (size_t i = 0; i < LONG_BYTES; i++) {
        all[sizeof(text) - 1 + i] = "\"\\x\x02"[i % 4];
    }
    all[sizeof(text) - 1 + LONG_BYTES] = '\0';
    return all;
}

/* The pieces of a stream's events at `path`, joined; malloc'd. n: how many there were. */
static char *joined(const char *stream, const char *path, int *n)
{
    static const char data[] = "data: {";
    char *all = calloc(1, strlen(stream) + 1);
    int next = 0;
    assert_non_null(all);
    *n = 0;
    for (const char *p = stream; (p = strstr(p, data)); p++) {
        cJSON *event = cJSON_ParseWithOpts(p + sizeof(data) - 2, &p, false);
        assert_non_null(event);
        const cJSON *piece = at(event, path), *number = at(event, "sequence_number");
        if (cJSON_IsString(piece)) {
            strcat(all, piece->valuestring);
            ++*n;
        }
        if (number) {
            assert_int_equal(number->valueint, next++);
        }
        cJSON_Delete(event);
    }
    return all;
}

static char *asked(const char *form, const char *text)
{
    char *quoted = json_quoted(text), *body = NULL;
    assert_non_null(quoted);
    assert_true(asprintf(&body, form, quoted) > 0);
    free(quoted);
    return body;
}

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *route, *body, *path;
    } rows[] = {
        {"/v1/responses", "{\"input\":%s,\"stream\":true}", "delta"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"stream\":true}",
         "choices.0.delta.content"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"max_tokens\":500,\"stream\":true}",
         "delta.text"},
        {"/v1/completions", "{\"prompt\":%s,\"stream\":true}", "choices.0.text"},
    };
    struct harness *h = harness_start(NULL);
    char *text = hard_text(), *echo = NULL;
    assert_true(asprintf(&echo, "echo %s", text) > 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *body = asked(rows[i].body, echo);
        struct reply r = call(h, "POST", rows[i].route, NULL, body);
        int n;
        assert_int_equal(r.status, 200);
        char *got = joined(r.body, rows[i].path, &n);
        assert_string_equal(got, text);
        assert_true(n > 5);
        free(got);
        free(body);
        reply_free(&r);
    }
    free(echo);
    free(text);
    harness_stop(h);
}

#define TOOL "\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}"

/* Thinking and calls have pieces of their own form. */
static void other_items(void **state)
{
    (void)state;
    static const struct {
        const char *route, *body, *text, *path, *pieces;
    } rows[] = {
        {"/v1/responses", "{\"input\":%s,\"stream\":true}", "think \"so\"", "delta", NULL},
        {"/v1/responses", "{\"input\":%s,\"reasoning\":{\"summary\":\"auto\"},\"stream\":true}", "think \"so\"",
         "delta", NULL},
        {"/v1/responses", "{\"input\":%s,\"stream\":true,\"tools\":[{\"type\":" TOOL "}]}", "call f {\"a\": \"\\n\"}",
         "delta", "{\"a\": \"\\n\"}"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"stream\":true}", "think \"so\"",
         "choices.0.delta.reasoning_content", NULL},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"stream\":true,\"tools\":[{\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]}",
         "call f {\"a\": \"\\n\"}", "choices.0.delta.tool_calls.0.function.arguments", "{\"a\": \"\\n\"}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"max_tokens\":500,\"stream\":true}",
         "think \"so\"", "delta.thinking", NULL},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":%s}],\"max_tokens\":500,\"stream\":true,\"tools\":[{"
         "\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}]}",
         "call f {\"a\": \"\\n\"}", "delta.partial_json", "{\"a\": \"\\n\"}"},
    };
    struct harness *h = harness_start(NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *body = asked(rows[i].body, rows[i].text);
        struct reply r = call(h, "POST", rows[i].route, NULL, body);
        int n;
        assert_int_equal(r.status, 200);
        char *got = joined(r.body, rows[i].path, &n);
        assert_true(n > 0);
        if (rows[i].pieces) {
            assert_non_null(strstr(got, rows[i].pieces));
        }
        free(got);
        free(body);
        reply_free(&r);
    }
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(other_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

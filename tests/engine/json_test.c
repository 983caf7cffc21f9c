/* json_test.c - JSON written anew: as templates write it, and in the one form of a value. */
#include "engine/text/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *text, bool sorted, const char *wanted)
{
    char *out = NULL;
    size_t len = 0;
    int rc = text_json(text, strlen(text), sorted, &out, &len);
    if (rc != (wanted != NULL ? 0 : -EINVAL))
        fail_msg("%s: %d", text, rc);
    if (wanted != NULL) {
        assert_string_equal(out, wanted);
        assert_int_equal(len, strlen(wanted));
        free(out);
    }
}

static void test_written(void **state)
{
    (void)state;
    check("{\"b\":1,\"a\":[true,false,null]}", false, "{\"b\": 1, \"a\": [true, false, null]}");
    check(" \n{ } ", false, "{}");
    check("[]", false, "[]");
    check("[ [] , {} ]", false, "[[], {}]");
    check("\"a, b:c\"", false, "\"a, b:c\"");
    check("-1.50", false, "-1.50");
    check("\"\\u00e9\\u20ac\\ud83d\\ude00\\/\\u0001\\t\\u0022\"", false,
          "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80/\\u0001\\t\\\"\"");
    check("\"\\ud83dx\"", false, "\"\xef\xbf\xbdx\"");
    check("\"\\ude00\"", false, "\"\xef\xbf\xbd\"");
}

static void test_equal_values(void **state)
{
    (void)state;
    check("{\"b\":1.0,\"a\":{\"d\":[{\"z\":1,\"y\":2}],\"c\":\"\\u0061\"}}", true,
          "{\"a\": {\"c\": \"a\", \"d\": [{\"y\": 2, \"z\": 1}]}, \"b\": 1}");
    check("{\"ab\":1,\"a\":2,\"b\":3}", true, "{\"a\": 2, \"ab\": 1, \"b\": 3}");
    check("[1e2,100,1.5e0,0.0,-0,12345678901234567890]", true, "[100, 100, 1.5, 0, 0, 12345678901234567890]");
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const WRONG[] = {
        "",          "{",      "[1,]", "{\"a\"}",    "{\"a\":}", "{a:1}",    "[1 2]",
        "01",        "1.",     "1e",   "-",          "tru",      "\"a",      "\"\\x\"",
        "\"\\u12\"", "\"\n\"", "[1]]", "{\"a\":1,}", "nul",      "\"\xff\"", "{\"a\":1 \"b\":2}",
        "+1",        "NaN",
    };
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        check(WRONG[i], false, NULL);
        check(WRONG[i], true, NULL);
    }
    for (int depth = 64; depth <= 65; depth++) {
        char text[160];
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        check(text, true, depth == 64 ? text : NULL);
    }
}

/* Trees: whole numbers that no double has are what was written, others read back as they are. */
static void test_trees(void **state)
{
    (void)state;
    static const char *const TEXTS[] = {
        "{\"1234567890123456789\":-1183649871234567890,\"a\\\\\":[\"9,\\\"8\",1234567890123456,[],7]}",
        "[0.1,0.30000000000000004,9007199254740991,1e-300,-1.5,0,7]",
        "1234567890123456789",
        "[]",
    };
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        /* Nothing is read behind its end, which is no terminator. */
        size_t len = strlen(TEXTS[i]);
        char *bytes = malloc(len);
        assert_non_null(bytes);
        memcpy(bytes, TEXTS[i], len);
        const char *end = NULL;
        cJSON *o = engine_json_parse(bytes, len, &end);
        assert_non_null(o);
        assert_ptr_equal(end, bytes + len);
        char *text = engine_json_print(o);
        assert_string_equal(text, TEXTS[i]);
        cJSON_free(text);
        cJSON_Delete(o);
        free(bytes);
    }
    assert_null(engine_json_parse("[1", 2, NULL));
    assert_null(engine_json_print(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_equal_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* json_test.c - what is refused before it is parsed, and typed access. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/daemon/harness.h"

#include "daemon/api/json.h"

static bool parses(const char *text, size_t len)
{
    struct api_error e = {0};
    cJSON *o = json_parse_request(text, len, &e);
    assert_int_equal(o == NULL, e.status != 0);
    bool ok = o != NULL;
    cJSON_Delete(o);
    return ok;
}

static void shapes(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        " {\"a\":1} \r\n\t",
        "{\"a\":\"\\\\u0000\"}",
        "{\"a\":\"\\ud83d\\ude00\"}",
        "{\"a\":\"\xf0\x9f\x98\x80\"}",
        "{\"a\":[[[[]]]],\"b\":\"[[[[\"}",
        "{\"a\":1e308}",
        "{\"a\":1,\"A\":1}",
        "{\"a\":{\"a\":1},\"b\":[{\"a\":1},{\"a\":1}]}",
    };
    static const char *const bad[] = {
        "",
        "1",
        "[]",
        "\"x\"",
        "{",
        "{} {}",
        "{\"a\":\"\\u0000\"}",
        "{\"a\":\"\\\\\\u0000\"}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udc00\"}",
        "{\"a\":\"\\ud800\\u0041\"}",
        "{\"a\":1e309}",
        "{\"a\":[1,{\"b\":-1e999}]}",
        "{\"a\":NaN}",
        "{\"a\":\"\xc0\xaf\"}",
        "{\"a\":\"\xed\xa0\x80\"}",
        "{\"a\":\"\xf4\x90\x80\x80\"}",
        "{\"a\":\"\xe2\x82\"}",
        "{\"a\":\"\x80\"}",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"b\":2,\"\\u0061\":null}",
        "{\"a\":[{},{\"b\":{\"c\":1,\"d\":2,\"c\":3}}]}",
        "{\"\":1,\"\":1}",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        if (!parses(good[i], strlen(good[i]))) {
            fail_msg("refused: %s", good[i]);
        }
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (parses(bad[i], strlen(bad[i]))) {
            fail_msg("accepted: %s", bad[i]);
        }
    }
    assert_false(parses("{\"a\":\"x\0y\"}", 11));
    assert_false(parses("{}\0", 3));
}

/* What is no number is told with its field. */
static void places(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\":NaN}", "a"},
        {"{\"x\":[1,{\"y\":\"a\\\"b,\"}],\"convod\": {\"s\":1, \"top_k\" : -Infinity}}", "convod.top_k"},
        {"{\"a\":[{},{\"b\":[1,\"c\",1e999]}]}", "a[1].b[2]"},
        {"{\"t\":\"1e999\",\"a\":{\"b\":1e5},\"c\":-1e999}", "c"},
        {"{\"a\":1,\"b\":+1}", "b"},
        {"{\"a\":nan,\"b\":1}", "a"},
        {"{\"a\":0x10}", "a"},
        {"[NaN]", "[0]"},
        {"{\"a\":1,}", ""},
        {"{\"a\":1,foo:2}", ""},
        {"{\"a\":\"bc", ""},
        {"{\"a\":{'b':1}}", ""},
        {"{\"a\"", ""},
        {"NaN", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct api_error e = {0};
        assert_null(json_parse_request(cases[i][0], strlen(cases[i][0]), &e));
        assert_string_equal(e.code, "invalid_json");
        assert_string_equal(e.param, cases[i][1]);
        assert_true(!strstr(e.message, "is no value") || cases[i][1][0] || cases[i][0][0] != '{');
    }
}

/* The name that stands twice is told, and among very many it is found. */
static void names(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    struct api_error e = {0};
    char *text = malloc(MANY * 16);
    assert_non_null(text);
    char *at = text + sprintf(text, "{\"n7\":1");
    for (int i = 0; i < MANY; i++) {
        at += sprintf(at, ",\"%c%d\":1", i == 7 ? 'n' : 'm', i);
    }
    strcpy(at, "}");
    assert_null(json_parse_request(text, strlen(text), &e));
    assert_string_equal(e.param, "n7");
    assert_string_equal(e.code, "invalid_json");
    text[2] = 'o';
    assert_true(parses(text, strlen(text)));
    free(text);
}

static void depth_and_count(void **state)
{
    (void)state;
    char *text = malloc(4 * JSON_VALUES_MAX);
    assert_non_null(text);
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        size_t n = (size_t)sprintf(text, "{\"a\":");
        for (int i = 1; i < depth; i++) {
            text[n++] = '[';
        }
        for (int i = 1; i < depth; i++) {
            text[n++] = ']';
        }
        text[n++] = '}';
        assert_int_equal(parses(text, n), depth == JSON_DEPTH_MAX);
    }
    /* Two containers and the commas. */
    for (int extra = 0; extra <= 1; extra++) {
        size_t n = (size_t)sprintf(text, "{\"a\":[1");
        for (int i = 0; i < JSON_VALUES_MAX - 2 + extra; i++) {
            text[n++] = ',';
            text[n++] = '1';
        }
        n += (size_t)sprintf(text + n, "]}");
        assert_int_equal(parses(text, n), extra == 0);
    }
    free(text);
}

static void typed_access(void **state)
{
    (void)state;
    static const char text[] = "{\"s\":\"abc\",\"i\":5,\"f\":1.5,\"b\":true,\"n\":null,\"o\":{},\"big\":1e18}";
    struct api_error e = {0};
    cJSON *o = json_parse_request(text, strlen(text), &e);
    assert_non_null(o);
    const char *s = "kept";
    int64_t i = 7;
    double f = 7;
    bool b = false;
    const cJSON *child = NULL;
    assert_int_equal(json_string(o, "", "n", 10, &s, &e), 0);
    assert_int_equal(json_string(o, "", "missing", 10, &s, &e), 0);
    assert_string_equal(s, "kept");
    assert_int_equal(json_string(o, "", "s", 3, &s, &e), 0);
    assert_string_equal(s, "abc");
    assert_int_equal(json_string(o, "", "s", 2, &s, &e), -1);
    assert_string_equal(e.code, "invalid_value");
    assert_int_equal(json_string(o, "p.", "i", 2, &s, &e), -1);
    assert_string_equal(e.param, "p.i");
    assert_string_equal(e.code, "invalid_type");
    assert_int_equal(json_int(o, "", "i", 0, 5, &i, &e), 0);
    assert_int_equal(i, 5);
    assert_int_equal(json_int(o, "", "i", 0, 4, &i, &e), -1);
    assert_int_equal(json_int(o, "", "f", 0, 4, &i, &e), -1);
    assert_int_equal(json_int(o, "", "big", 0, 1 << 30, &i, &e), -1);
    assert_int_equal(json_int(o, "", "b", 0, 4, &i, &e), -1);
    assert_int_equal(json_number(o, "", "f", 0, 1.5, &f, &e), 0);
    assert_int_equal(json_number(o, "", "f", 0, 1.4, &f, &e), -1);
    assert_int_equal(json_bool(o, "", "b", &b, &e), 0);
    assert_true(b);
    assert_int_equal(json_bool(o, "", "i", &b, &e), -1);
    assert_int_equal(json_object(o, "", "o", &child, &e), 0);
    assert_non_null(child);
    assert_int_equal(json_object(o, "", "s", &child, &e), -1);
    cJSON_Delete(o);
    /* What a message quotes from a peer is printable. */
    api_error_set(&e, 400, "c", "p\xff\n", "%s", "a\xff\x01z");
    assert_string_equal(e.message, "a??z");
    assert_string_equal(e.param, "p??");
}

static void numbers_read_back(void **state)
{
    (void)state;
    static const char numbers[] = "{\"a\":[9007199254740991,-9007199254740991,0.10000000000000001,5000000000000001],"
                                  "\"b\":{\"c\":0.30000000000000004},\"d\":1.0000000000000002,\"e\":7,\"f\":0.5}";
    cJSON *o = cJSON_Parse(numbers);
    char *text = json_print(o);
    assert_string_equal(text, "{\"a\":[9007199254740991,-9007199254740991,0.1,5000000000000001],"
                              "\"b\":{\"c\":0.30000000000000004},\"d\":1.0000000000000002,\"e\":7,\"f\":0.5}");
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(o, "d"))); /* what was printed is as it was */
    free(text);
    cJSON_Delete(o);
}

/* Whole numbers that no double has are sent on as they came, and are numbers for who reads them. */
static void long_numbers_keep_digits(void **state)
{
    (void)state;
    static const char numbers[] =
        "{\"1234567890123456789\":-1183649871234567890,\"a\\\\\":[\"9,\\\"8\",1234567890123456,[],18446744073709551615]"
        ","
        "\"b\":{\"c\":123456789012345678901234567890,\"d\":1.5},\"e\":0.1234567890123456789,\"f\":7,\"g\":"
        "00000000000000000001}";
    struct api_error e = {0};
    cJSON *o = json_parse_request(numbers, strlen(numbers), &e);
    assert_non_null(o);
    int64_t n = 0;
    assert_int_equal(json_int(o, "", "1234567890123456789", INT64_MIN, 0, &n, &e), 0);
    assert_int_equal(n, (int64_t)-1183649871234567890.0);
    cJSON *copy = cJSON_Duplicate(o, true);
    char *text = json_print(copy);
    assert_string_equal(text,
                        "{\"1234567890123456789\":-1183649871234567890,\"a\\\\\":[\"9,\\\"8\",1234567890123456,[],"
                        "18446744073709551615],\"b\":{\"c\":123456789012345678901234567890,\"d\":1.5},"
                        "\"e\":0.12345678901234568,\"f\":7,\"g\":1}");
    free(text);
    cJSON_Delete(copy);
    cJSON_Delete(o);
}

/* What lost a member for lack of memory is not printed; what is built after that is. */
static void nothing_partial_is_printed(void **state)
{
    (void)state;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "a", "b");
    json_lost();
    assert_null(json_text(o));
    o = cJSON_CreateObject();
    char *text = json_print(o);
    assert_string_equal(text, "{}");
    free(text);
    cJSON_Delete(o);
    assert_null(json_text(NULL));
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return; /* the sanitizers' own memory is bounded with ours, and they end */
#endif
    /* The hook is what notices. */
    json_start();
    o = cJSON_CreateObject();
    char *huge = malloc(1 << 20);
    assert_non_null(huge);
    memset(huge, 'x', (1 << 20) - 1);
    huge[(1 << 20) - 1] = '\0';
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low = before;
    low.rlim_cur = 1;
    mallopt(M_MMAP_THRESHOLD, 64 * 1024);
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    const cJSON *added = cJSON_AddStringToObject(o, "huge", huge);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    if (!added) { /* sanitizers have memory of their own */
        assert_null(json_text(o));
    } else {
        cJSON_Delete(o);
    }
    free(huge);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(names),
        cmocka_unit_test(places),
        cmocka_unit_test(depth_and_count),
        cmocka_unit_test(typed_access),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(long_numbers_keep_digits),
        cmocka_unit_test(nothing_partial_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

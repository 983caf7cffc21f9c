/* schema_test.c - what schemas mean at their limits: values that are the same, large numbers and counts, alternatives
 * that are told apart, what is passed over, and schemas that are cheap to write and dear to compile. */
#include "engine/grammar/grammar.h"
#include "tests/engine/grammar_says.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_same_values(void **state)
{
    (void)state;
    /* The same constant is the same to the last bit, and in any order of keys. */
    refused("{\"allOf\":[{\"const\":0.3},{\"const\":0.30000000000000004}]}", -EINVAL, "contradict");
    expect("{\"allOf\":[{\"enum\":[0.3,1]},{\"enum\":[0.30000000000000004,1]}]}", LIST("1"), LIST("0.3"));
    expect("{\"oneOf\":[{\"const\":0.3},{\"const\":0.30000000000000004}]}", LIST("0.3", "0.30000000000000004"),
           LIST("0.4"));
    expect("{\"allOf\":[{\"const\":{\"a\":[1],\"b\":2}},{\"enum\":[{\"b\":2,\"a\":[1]}]}]}",
           LIST("{\"a\":[1],\"b\":2}"), LIST("{}"));
    refused("{\"allOf\":[{\"const\":[1,2]},{\"enum\":[[1],[1,2,3],[2,1],{\"a\":1},\"1\"]}]}", -EINVAL, "contradict");
}

/* Bounds that a double does not hold to the last digit are narrower, not wider; each such list is of texts beyond. */
static void test_large_bounds(void **state)
{
    (void)state;
    expect("{\"type\":\"integer\",\"maximum\":9223372036854775807}",
           LIST("9223372036854774784", "-99999999999999999999999"),
           LIST("9223372036854775808", "10000000000000000000"));
    expect("{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"exclusiveMaximum\":9007199254740993}",
           LIST("-9223372036854774784", "9007199254740990"), LIST("-9223372036854775809", "9007199254740993"));
    expect("{\"type\":\"integer\",\"maximum\":9007199254740991,\"minimum\":-9007199254740991}",
           LIST("9007199254740991", "-9007199254740991"), LIST("9007199254740992", "-9007199254740992"));
    expect("{\"type\":\"number\",\"maximum\":9223372036854775807}", LIST("9223372036854774000", "9.2e18"),
           LIST("9223372036854775808", "9223372036854775807.5", "9.2233720368547758075e18"));
    expect("{\"type\":\"number\",\"minimum\":9007199254740993}", LIST("9007199254740996"),
           LIST("9007199254740992", "9.007199254740992e15"));
    expect("{\"type\":\"number\",\"exclusiveMinimum\":-9223372036854775807}", LIST("-9.2e18"),
           LIST("-9223372036854775807", "-9223372036854775808"));
}

/* What pushing a text in pieces ends with. */
static int pushed(struct grammar_match *m, char *text)
{
    int rc = 0;
    size_t len = strlen(text), piece;
    for (size_t at = 0; at < len && rc == 0; at += piece) {
        piece = len - at < 1000 ? len - at : 1000;
        rc = grammar_match_push(m, text + at, piece);
    }
    free(text);
    return rc;
}

/* A greatest count above the greatest there is, is that one. */
static void test_large_counts(void **state)
{
    (void)state;
    static const char *const SCHEMAS[] = {"{\"type\":\"string\",\"maxLength\":70000}", "\"",    "a",  "\"",
                                          "{\"type\":\"array\",\"maxItems\":70000}",   "[true", ",1", "]"};
    for (size_t i = 0; i < sizeof SCHEMAS / sizeof *SCHEMAS; i += 4) {
        struct grammar *g = compiled(SCHEMAS[i]);
        struct grammar_match *m = begin(g), *more = begin(g);
        size_t n = GRAMMAR_MAX_COUNT - (i > 0); /* one stands in the opening */
        assert_int_equal(pushed(m, repeated(SCHEMAS[i + 1], SCHEMAS[i + 2], n, SCHEMAS[i + 3])), 0);
        assert_true(grammar_match_complete(m));
        assert_int_equal(pushed(more, repeated(SCHEMAS[i + 1], SCHEMAS[i + 2], n + 1, SCHEMAS[i + 3])), -EILSEQ);
        grammar_match_free(m);
        grammar_match_free(more);
        grammar_free(g);
    }
    refused("{\"type\":\"object\",\"maxProperties\":70000}", -E2BIG, "maxProperties is too large here");
}

/* oneOf tells schemas apart that are alternatives themselves, as tools write unions of unions. */
static void test_one_of_alternatives(void **state)
{
    (void)state;
#define KIND(name)                                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"" name "\"}},\"required\":[\"kind\"],"                 \
    "\"additionalProperties\":false}"
    static const char DEFS[] = "\"$defs\":{\"Cat\":" KIND("cat") ",\"Dog\":" KIND("dog") ",\"Bird\":" KIND("bird") "}";
    static const char *const LISTS[] = {
        "{\"oneOf\":[{\"oneOf\":[{\"$ref\":\"#/$defs/Cat\"},{\"$ref\":\"#/$defs/Dog\"}],\"discriminator\":"
        "{\"propertyName\":\"kind\"}},{\"$ref\":\"#/$defs/Bird\"}],",
        "{\"oneOf\":[{\"$ref\":\"#/$defs/Bird\"},{\"anyOf\":[{\"oneOf\":[{\"$ref\":\"#/$defs/Dog\"}]},{\"$ref\":"
        "\"#/$defs/Cat\"}]}],"};
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        char schema[1024];
        snprintf(schema, sizeof schema, "%s%s}", LISTS[i], DEFS);
        expect(schema, LIST("{\"kind\":\"cat\"}", "{\"kind\":\"dog\"}", "{\"kind\":\"bird\"}"),
               LIST("{\"kind\":\"cow\"}", "{}", "1"));
    }
    expect("{\"oneOf\":[{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},{\"type\":\"string\"}]}",
           LIST("1", "null", "\"a\""), LIST("true", "1.5", "[]"));
    expect("{\"oneOf\":[{\"type\":\"string\"},{\"anyOf\":[{\"type\":\"integer\"},{\"oneOf\":[{\"type\":\"null\"},"
           "{\"const\":true}]}]},{\"const\":false}]}",
           LIST("1", "null", "\"a\"", "true", "false"), LIST("1.5", "[]"));
    /* One that is not apart is enough; what refers to itself is not looked at without end. */
    refused("{\"oneOf\":[{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},{\"type\":\"string\"}]}", -ENOTSUP,
            "cannot be told apart");
    refused("{\"oneOf\":[{\"type\":\"string\"},{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}]}", -ENOTSUP,
            "cannot be told apart");
}

/* As many required names as there may be, and one more; each set of schemas that say something of a name counts. */
static void test_many_required(void **state)
{
    (void)state;
    for (int n = 4096; n <= 4097; n++) {
        char *schema = malloc((size_t)n * 60 + 200), *at = stpcpy(schema, "{\"properties\":{\"p0\":{\"const\":0}");
        assert_non_null(schema);
        for (int i = 1; i < n; i++)
            at += sprintf(at, ",\"p%d\":{\"type\":\"integer\"}", i);
        at = stpcpy(at, "},\"required\":[\"p0\"");
        for (int i = 1; i < n; i++)
            at += sprintf(at, ",\"p%d\"", i);
        strcpy(at, "],\"additionalProperties\":false}");
        if (n > 4096)
            refused(schema, -E2BIG, "more than 4096 properties");
        else
            grammar_free(compiled(schema));
        free(schema);
    }
    expect(
        "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"minimum\":2}}},{\"required\":[\"b\",\"c\"],"
        "\"properties\":{\"c\":{\"const\":1}}},{\"properties\":{\"b\":{\"maximum\":3},\"a\":{\"minimum\":5}},"
        "\"additionalProperties\":{\"type\":\"integer\"}}],\"properties\":{\"b\":{\"type\":\"integer\"}}}",
        LIST("{\"b\":2,\"a\":5,\"c\":1}", "{\"b\":3,\"c\":1,\"d\":7}"),
        LIST("{\"b\":4,\"c\":1}", "{\"b\":1,\"c\":1}", "{\"b\":2,\"a\":4,\"c\":1}", "{\"b\":2,\"c\":1,\"d\":\"x\"}",
             "{\"b\":2.5,\"c\":1}", "{\"b\":2}"));
}

/* What is passed over where an answer need not fulfil the schema: the rest of it holds. */
static void test_passes_over(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *good, *bad;
    } CASES[] = {
        {"{\"type\":\"array\",\"items\":[{\"type\":\"string\"}],\"minItems\":1}", "[1]", "[]"},
        {"{\"$ref\":\"https://example.com/a\",\"type\":\"object\"}", "{\"a\":1}", "1"},
        {"{\"$ref\":\"#name\",\"type\":\"object\"}", "{\"a\":1}", "1"},
        {"{\"enum\":[1e22,\"a\"]}", "10000000000000000000000", "\"b\""},
        {"{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":true}", "4", "2"},
        {"{\"type\":\"string\",\"minLength\":70000,\"maxLength\":2}", "\"a\"", "\"abc\""},
        {"{\"type\":\"integer\",\"multipleOf\":49999}", "49999", "0.5"},
        {"{\"type\":\"object\",\"maxProperties\":65536,\"required\":[\"a\"]}", "{\"a\":1}", "{}"},
        {"{\"patternProperties\":{\"^a\":{\"type\":\"null\"},\"^b\":true,\"^c\":true,\"^d\":true,\"^e\":true,\"^f\":"
         "true,"
         "\"^g\":{\"type\":\"null\"}},\"type\":\"object\"}",
         "{\"a\":null,\"g\":1}", "{\"a\":1}"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char err[256] = "";
        struct grammar *g = NULL;
        if (grammar_from_schema(CASES[i].schema, strlen(CASES[i].schema), NULL, GRAMMAR_LENIENT, &g, err, sizeof err))
            fail_msg("%s: %s", CASES[i].schema, err);
        if (!accepts(g, CASES[i].good) || accepts(g, CASES[i].bad))
            fail_msg("%s: %s or not %s", CASES[i].schema, CASES[i].bad, CASES[i].good);
        grammar_free(g);
    }
    refused("{\"items\":[{\"type\":\"string\"}]}", -ENOTSUP, "of older drafts: prefixItems");
    refused("{\"$ref\":\"#name\"}", -ENOTSUP, "$anchor");
}

/* An anchor where another holds already says nothing. */
static void test_anchors_within_anchors(void **state)
{
    (void)state;
    expect("{\"type\":\"string\",\"pattern\":\"^(^a$|^b$)$\"}", LIST("\"a\"", "\"b\""),
           LIST("\"\"", "\"ab\"", "\"c\""));
    expect("{\"type\":\"string\",\"pattern\":\"^([a-z]+|$)$\"}", LIST("\"\"", "\"ab\""), LIST("\"A\"", "\"a1\""));
    expect("{\"type\":\"string\",\"pattern\":\"^(?:(x$|[)(|]y$)|[$]$)?$\"}", LIST("\"\"", "\"x\"", "\"|y\"", "\"$\""),
           LIST("\"y\"", "\"xx\"", "\"x$\""));
    expect("{\"type\":\"string\",\"pattern\":\"^(^a|b)?c\"}", LIST("\"ac\"", "\"bcd\"", "\"c\""),
           LIST("\"xc\"", "\"aac\""));
    expect("{\"type\":\"string\",\"pattern\":\"(^a|b$)\"}", LIST("\"ac\"", "\"cb\""), LIST("\"ca\"", "\"bc\""));
    refused("{\"type\":\"string\",\"pattern\":\"^(^a)*$\"}", -ENOTSUP, "a repeated anchor");
    refused("{\"type\":\"string\",\"pattern\":\"^(a$)+$\"}", -ENOTSUP, "a repeated anchor");
}

/* An object of n keys, in this order or the other way round, and a last one of its own. */
static char *object_of(int n, bool reversed, int last)
{
    char *text = malloc((size_t)n * 12 + 40), *at = text;
    assert_non_null(text);
    *at++ = '{';
    for (int i = 0; i < n; i++)
        at += sprintf(at, "\"%x\":0,", reversed ? n - 1 - i : i);
    sprintf(at, "\"last\":%d}", last);
    return text;
}

/* Comparing values and looking through keys is work that counts, too: what is cheap to write is refused before it is
 * dear. */
static void test_hostile_comparisons(void **state)
{
    (void)state;
    enum { KEYS = 40000 };
    char *forth = object_of(KEYS, false, 0), *back = object_of(KEYS, true, 0);
    char *schema = malloc(2 * (strlen(forth) + strlen(back)) + 40000);
    assert_non_null(schema);
    sprintf(schema, "{\"allOf\":[{\"const\":%s},{\"const\":%s}]}", forth, back);
    refused(schema, -E2BIG, "more work");
    /* A definition of many keys, referred to again and again; each as part of another set. */
    char *at = stpcpy(schema, "{\"anyOf\":[true");
    for (int i = 0; i < 400; i++)
        at += sprintf(at, ",{\"$ref\":\"#/$defs/x\",\"minItems\":%d}", i);
    sprintf(at, "],\"$defs\":{\"x\":%s}}", forth);
    refused(schema, -E2BIG, "more work");
    /* The same with alternatives that are nothing, with names of types, and a long list that references count off. */
    static const char *const LISTS[] = {"{\"anyOf\":[false",   ",false",   "{\"allOf\":[true", ",true",
                                        "{\"type\":[\"null\"", ",\"null\""};
    for (size_t k = 0; k < sizeof LISTS / sizeof *LISTS; k += 2) {
        char *list = repeated(LISTS[k], LISTS[k + 1], 20000, "]}");
        at = stpcpy(schema, "{\"anyOf\":[true");
        for (int i = 0; i < 400; i++)
            at += sprintf(at, ",{\"$ref\":\"#/$defs/x\",\"minItems\":%d}", i);
        sprintf(at, "],\"$defs\":{\"x\":%s}}", list);
        refused(schema, -E2BIG, "more work");
        free(list);
    }
    char *list = repeated("[true", ",true", 20000, "]");
    at = stpcpy(schema, "{\"anyOf\":[true");
    for (int i = 0; i < 400; i++)
        at += sprintf(at, ",{\"$ref\":\"#/x/%d\"}", 20000 - i);
    sprintf(at, "],\"x\":%s}", list);
    refused(schema, -E2BIG, "more work");
    free(list);
    /* A reference whose end was not looked for to the last leads somewhere all the same. */
    at = stpcpy(schema, "{\"anyOf\":[true");
    for (int i = 0; i < 400; i++)
        at += sprintf(at, ",{\"$ref\":\"#/x/last\",\"minItems\":%d}", i);
    at += sprintf(at, "],\"x\":%s", forth);
    strcpy(at - 2, "true}}");
    refused(schema, -E2BIG, "more work");
    free(forth);
    free(back);
    /* Lists of objects that differ in their last member only. */
    at = stpcpy(schema, "{\"allOf\":[{\"enum\":[0");
    for (int i = 0; i < 100; i++) {
        if (i == 50)
            at = stpcpy(at, "]},{\"enum\":[1");
        char *object = object_of(400, false, i);
        at += sprintf(at, ",%s", object);
        free(object);
    }
    strcpy(at, "]}]}");
    refused(schema, -E2BIG, "more work");
    free(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_values),
        cmocka_unit_test(test_large_bounds),
        cmocka_unit_test(test_large_counts),
        cmocka_unit_test(test_one_of_alternatives),
        cmocka_unit_test(test_many_required),
        cmocka_unit_test(test_passes_over),
        cmocka_unit_test(test_anchors_within_anchors),
        cmocka_unit_test(test_hostile_comparisons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

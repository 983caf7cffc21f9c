/* grammar_test.c - structured output: what schemas and patterns allow, that masks say the same as pushing each token,
 * and hostile schemas. The JSON Schema test files and generated documents are in tests/grammar. */
#include "engine/grammar/grammar.h"
#include "tests/engine/grammar_says.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a vocabulary ------------------------------------------------------------------------------------------------ */

enum { TOKENS = 4096, END = 0, OTHER_END = 1 };

static char *texts[TOKENS];
static size_t lengths[TOKENS];

static const char *bytes_of(const void *arg, int id, size_t *len)
{
    (void)arg;
    *len = lengths[id];
    return texts[id];
}

static bool ends(const void *arg, int id)
{
    (void)arg;
    return id == END || id == OTHER_END;
}

/* Every byte, and pieces put together as tokens are: text, marks that cross from one value into the next, parts of
 * characters. Some stand there twice. */
static int make_vocab(void **state)
{
    (void)state;
    static const char *const PIECES[] = {
        "a",        "b",    "ab",   "foo",    "\"",       "\":",  "\",",  "}",
        "]",        "}]}",  ": ",   ",",      " ",        "  ",   "\n",   "\\",
        "\\u",      "00",   "\\n",  "{\"",    "[",        "[]",   "1",    "2",
        "12",       "0.5",  "-",    "e",      "\xc3\xa9", "\xc3", "\xa9", "\xf0\x9f\x98\x80",
        "\xf0\x9f", "true", "null", "\", \"", "9",        "dog",  "t",    "T"};
    uint32_t seed = 7;
    int n_pieces = sizeof PIECES / sizeof PIECES[0];
    for (int i = 2; i < TOKENS; i++) {
        char text[300] = "";
        if (i < 258) {
            texts[i] = malloc(1);
            assert_non_null(texts[i]);
            texts[i][0] = (char)(i - 2);
            lengths[i] = 1;
            continue;
        }
        for (int parts = 1 + i % 4; parts > 0; parts--) {
            seed = seed * 1664525 + 1013904223;
            strcat(text, PIECES[(seed >> 16) % (uint32_t)n_pieces]);
        }
        if (i == 300)
            memset(text, 'a', 299);
        texts[i] = strdup(text);
        lengths[i] = i == 301 ? 0 : strlen(text);
    }
    char err[256] = "";
    assert_int_equal(
        grammar_vocab_new(&(struct grammar_vocab_opts){TOKENS, bytes_of, ends, NULL}, &vocab, err, sizeof err), 0);
    assert_int_equal(grammar_vocab_words(vocab), TOKENS / 32);
    return 0;
}

static int free_vocab(void **state)
{
    (void)state;
    grammar_vocab_free(vocab);
    for (int i = 0; i < TOKENS; i++)
        free(texts[i]);
    return 0;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

static void test_values(void **state)
{
    (void)state;
    expect(
        "{}", LIST("null", "1", "-0.5e+10", "\"x\"", "[1, {\"a\" : [ ]}]", "{}", "[[[[]]]]"),
        LIST("", " 1", "1 ", "01", "+1", ".5", "1.", "nul", "\"\n\"", "\"\\x\"", "[1,]", "{a:1}", "{\"a\":1,}", "\"a"));
    expect("{\"type\":\"string\"}", LIST("\"\"", "\"\\u00e9 \xc3\xa9 \\ud83d\\ude00 \\\" \\\\ \\/ \\n\""),
           LIST("\"\\ud83d\"", "\"\\ude00\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\\u0061\"", "\"\x01\""));
    expect("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           LIST("\"ab\"", "\"\xf0\x9f\x98\x80\\n\"", "\"\\ud83d\\ude00ab\""), LIST("\"a\"", "\"abcd\""));
    expect("{\"enum\":[\"a\\\"b\",1,null,[1,{\"k\":true}]]}",
           LIST("\"a\\\"b\"", "1", "null", "[1,{\"k\":true}]", "[ 1 , {\"k\": true} ]"), LIST("\"a\"", "2", "[1]"));
    expect("{\"enum\":[\"abc\",\"x\",5],\"type\":\"string\",\"minLength\":2}", LIST("\"abc\""), LIST("\"x\"", "5"));
}

static void test_white_space(void **state)
{
    (void)state;
    expect("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
           LIST("[1,2]", "[ 1 , 2 ]", "[\n       ]", "[1\n,\r\t 2]", "[        1]"),
           LIST("[         1]", " []", "[] ", "[1 2]"));
}

static void test_numbers(void **state)
{
    (void)state;
    expect("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}",
           LIST("0", "-12", "-9", "-1", "9", "99", "299", "305"),
           LIST("-13", "306", "-20", "999", "007", "1.0", "1e2", "-0"));
    expect("{\"type\":\"integer\",\"exclusiveMinimum\":5,\"exclusiveMaximum\":10}", LIST("6", "9"),
           LIST("5", "10", "60"));
    expect("{\"type\":\"integer\",\"multipleOf\":12,\"minimum\":1}", LIST("12", "144", "1000000000000000000008"),
           LIST("0", "13", "-12"));
    expect("{\"type\":\"number\",\"minimum\":0.25,\"maximum\":3}",
           LIST("0.25", "0.250", "0.2500001", "1", "2.999", "3", "3.0", "2.5e-01", "1e0", "3e+00", "2.9999e0"),
           LIST("0.2", "0.2499", "3.01", "4", "2.4e-1", "3.1e0", "1e1", "0", "-1", "2.5e1"));
    expect("{\"type\":\"number\",\"exclusiveMinimum\":0}", LIST("1e-07", "0.001", "5", "1e+22"),
           LIST("0", "0.0", "-1"));
    expect("{\"type\":\"number\",\"maximum\":-1.5}", LIST("-1.5", "-2", "-1e5", "-1.50", "-10"),
           LIST("-1.4", "-1", "0", "1.5", "-1e0"));
    expect("{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":-0.5}", LIST("-1", "-0.5", "-1.5", "-7.5e-1"),
           LIST("-0.4", "-1.51", "1"));
    /* Exact at the edge of what a double holds, and no bound that is beyond it. */
    expect("{\"minimum\":0,\"type\":\"integer\",\"maximum\":1e300}", LIST("123456789012345678901234567890"),
           LIST("-1"));
}

static void test_objects(void **state)
{
    (void)state;
    expect("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"null\"},\"c\":{}},"
           "\"required\":[\"b\"],"
           "\"additionalProperties\":false}",
           LIST("{\"b\":null}", "{\"a\":1,\"b\":null}", "{\"b\": null, \"c\": [1]}"),
           LIST("{}", "{\"a\":1}", "{\"b\":null,\"a\":1}", "{\"b\":null,\"b\":null}", "{\"b\":null,\"d\":1}",
                "{\"b\":null,}"));
    expect("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":"
           "\"boolean\"}}",
           LIST("{}", "{\"ab\":1}", "{\"a\":true}", "{\"ab\":1,\"abc\":true,\"\":false}"),
           LIST("{\"ab\":true}", "{\"a\":1}"));
    expect("{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"y$\":{\"minimum\":5}},"
           "\"additionalProperties\":"
           "false}",
           LIST("{\"x\":1,\"y\":\"s\",\"xy\":7}"), LIST("{\"xy\":4}", "{\"z\":1}", "{\"x\":true}"));
    expect("{\"type\":\"object\",\"minProperties\":2,\"maxProperties\":2,\"properties\":{\"a\":true,\"b\":true,\"c\":"
           "true},"
           "\"additionalProperties\":false}",
           LIST("{\"a\":1,\"b\":1}", "{\"a\":1,\"c\":1}"), LIST("{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}"));
    expect("{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":"
           "\"integer\"}}}],"
           "\"type\":\"object\"}",
           LIST("{\"a\":3}", "{\"a\":4,\"z\":1}"), LIST("{\"a\":2}", "{\"a\":3.5}", "{}"));
    /* What can never end is not begun. */
    expect(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
        "x\"},\"b\":{\"type\":\"null\"}},\"additionalProperties\":false,"
        "\"$defs\":{\"x\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#/$defs/x\"}},\"required\":[\"x\"]}}}",
        LIST("{}", "{\"b\":null}"), LIST("{\"a\":{}}"));
    struct grammar *g =
        compiled("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a\",\"maxLength\":1,"
                 "\"minLength\":2},\"b\":true},\"additionalProperties\":false}");
    struct grammar_match *m = begin(g);
    assert_int_equal(grammar_match_push(m, "{\"a", 3), -EILSEQ);
    assert_int_equal(grammar_match_push(m, "{\"b", 3), 0);
    grammar_match_free(m);
    grammar_free(g);
}

static void test_lists(void **state)
{
    (void)state;
    expect("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"integer\"}],\"items\":{\"type\":"
           "\"boolean\"}}",
           LIST("[]", "[null]", "[null, 1, true, false]"), LIST("[1]", "[null,1,1]"));
    expect("{\"type\":\"array\",\"prefixItems\":[{},{},{}],\"minItems\":2,\"maxItems\":2}", LIST("[1,2]"),
           LIST("[1]", "[1,2,3]"));
    expect("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":4}",
           LIST("[1,2]", "[1,2,3,4]"), LIST("[]", "[1]", "[1,2,3,4,5]"));
    expect("{\"type\":\"array\",\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true,\"minItems\":1}",
           LIST("[1]", "[3, 1,2]"), LIST("[]", "[1,1]", "[1,2,3,1]"));
    expect("{\"type\":\"array\",\"items\":false}", LIST("[]"), LIST("[1]"));
}

static void test_patterns_and_formats(void **state)
{
    (void)state;
    expect("{\"type\":\"string\",\"pattern\":\"b+\\\\d\"}", LIST("\"xxbb1yy\"", "\"b0\""), LIST("\"bb\"", "\"x\""));
    expect("{\"type\":\"string\",\"pattern\":\"^(a|\\u00e9)$|z\"}",
           LIST("\"a\"", "\"\xc3\xa9\"", "\"\\u00E9\"", "\"aza\""), LIST("\"aa\"", "\"\""));
    expect("{\"type\":\"string\",\"pattern\":\"^[^\\\"\\\\n]{2}$\"}", LIST("\"ab\"", "\"\\\\\\\\\""),
           LIST("\"a\\n\"", "\"\\\"a\""));
    expect("{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":3,\"maxLength\":3}", LIST("\"bba\"", "\"aaa\""),
           LIST("\"bbb\"", "\"a\""));
    /* An anchor in the middle is the quote of its own side only. */
    refused("{\"type\":\"string\",\"pattern\":\"b^\"}", -EINVAL, "nothing can fulfil");
    refused("{\"type\":\"string\",\"pattern\":\"$b\"}", -EINVAL, "nothing can fulfil");
    expect("{\"type\":\"string\",\"pattern\":\"(^|x)a(y|$)\"}", LIST("\"a\"", "\"xa\"", "\"ayz\"", "\"bxay\""),
           LIST("\"ba\"", "\"ab\"", "\"axa\\\"\""));
    expect("{\"type\":\"string\",\"pattern\":\"b*^a|c$$\"}", LIST("\"a\"", "\"ab\"", "\"bc\""),
           LIST("\"ba\"", "\"cb\""));
    expect("{\"type\":\"string\",\"format\":\"date\"}", LIST("\"2024-02-29\"", "\"1999-12-31\""),
           LIST("\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"0000-01-01\""));
    expect("{\"type\":\"string\",\"format\":\"ipv6\"}", LIST("\"::\"", "\"1::8\"", "\"::ffff:1.2.3.4\""),
           LIST("\"1::2::3\"", "\"1:2:3:4:5:6:7\"", "\"12345::\""));
    expect("{\"type\":\"string\",\"format\":\"uri\"}",
           LIST("\"file:///etc/motd\"", "\"http://a_b:c@localhost:8080/?q#f\"", "\"mailto:a@b.c\"", "\"urn:x:y\"",
                "\"http://%c3%a9.example\""),
           LIST("\"no\"", "\"http://a b/\"", "\"http://a:b:c/\"", "\"http://a/%zz\"", "\"http://a/#b#c\"", "\"\""));
    expect("{\"type\":\"string\",\"format\":\"binary\"}", LIST("\"any \\u0000 text\"", "\"\""), LIST("1"));
    char err[256] = "";
    struct grammar *g = NULL;
    assert_int_equal(grammar_from_pattern("^(yes|no)!?$", 12, vocab, &g, err, sizeof err), 0);
    assert_true(accepts(g, "yes") && accepts(g, "no!") && !accepts(g, "yes!!") && !accepts(g, ""));
    grammar_free(g);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Whether each token is in the mask exactly when it can be pushed. */
static void compare_mask(struct grammar *g, const char *text, size_t len)
{
    struct grammar_match *m = begin(g);
    uint32_t mask[TOKENS / 32], again[TOKENS / 32];
    assert_int_equal(grammar_match_push(m, text, len), 0);
    assert_int_equal(grammar_match_mask(m, mask), 0);
    for (uint32_t i = 0; i < TOKENS; i++) {
        bool in = mask[i / 32] >> i % 32 & 1, can = false;
        if (ends(NULL, (int)i)) {
            can = grammar_match_complete(m);
        } else if (lengths[i] > 0 && lengths[i] <= 255) {
            struct grammar_match *with = begin(g);
            can = grammar_match_push(with, text, len) == 0 && grammar_match_push(with, texts[i], lengths[i]) == 0;
            grammar_match_free(with);
        }
        if (in != can)
            fail_msg("behind %.*s token \"%.*s\" is %sin the mask, and can%s be pushed", (int)len, text,
                     (int)lengths[i], texts[i], in ? "" : "not ", can ? "" : "not");
    }
    /* Once more: what was kept says the same. */
    assert_int_equal(grammar_match_mask(m, again), 0);
    assert_memory_equal(mask, again, sizeof mask);
    grammar_match_free(m);
}

static void test_masks(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text;
    } CASES[] = {
        {"{}", "{\"a\": [1, \"\xc3\xa9\", {\"foo\": \"\\u00e9\"}], \"b\": -12.5e1}"},
        {"{\"type\":\"string\",\"maxLength\":5}", "\"ab\\nab\""},
        {"{\"type\":\"string\",\"minLength\":300,\"maxLength\":400}", "\"abab"},
        {"{\"type\":\"string\",\"maxLength\":30}", "\"abab"},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]{1,3}( \\\\S+)*$\"}", "\"ab foo ab\""},
        {"{\"type\":\"string\",\"pattern\":\"foo\",\"maxLength\":8}", "\"abfoo1\""},
        {"{\"type\":\"string\",\"pattern\":\"^[^\\\\s]+$\"}", "\"a\xc3\xa9\xf0\x9f\x98\x80\""},
        {"{\"type\":\"string\",\"pattern\":\"^.*[^e]$\"}", "\"a\\u0001\""},
        {"{\"type\":\"string\",\"pattern\":\"^(a|b|ab)*[^e]{3,90}$\"}", "\"aabb1\""},
        {"{\"type\":\"string\",\"pattern\":\"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?.)+[a-z]{2,50}$\"}", "\"ab-1t.foo\""},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z0-9]{2,26}\\\\u00e9?-$\"}", "\"ab1\xc3\xa9-\""},
        {"{\"type\":\"string\",\"format\":\"hostname\"}", "\"foo-1.ab\""},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"foo://ab@foo:12/ab\""},
        {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^a+$\"},{\"enum\":["
         "\"abfoo\"]}]}",
         "\"aaa"},
        {"{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":2},{\"type\":\"integer\","
         "\"multipleOf\":3}]}}",
         "[\"ab\", 12, \"a\"]"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"enum\":[\"dog\",\"foo\"]},\"ab\":{\"type\":"
         "\"number\",\"maximum\":1.5}},"
         "\"additionalProperties\":{\"type\":\"boolean\"}}",
         "{\"a\":\"dog\",\"ab\": 0.5, \"foo\": true}"},
        {"{\"type\":\"object\",\"additionalProperties\":{\"$ref\":\"#\"}}",
         "{\"a\":{\"\xc3\xa9\":{},\"b\" : {\"a\":{}}}}"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct grammar *g = compiled(CASES[i].schema);
        for (size_t n = 0; n <= strlen(CASES[i].text); n++)
            compare_mask(g, CASES[i].text, n);
        grammar_free(g);
    }
}

static void test_ends(void **state)
{
    (void)state;
    struct grammar *g = compiled("{\"type\":\"integer\"}");
    struct grammar_match *m = begin(g);
    uint32_t mask[TOKENS / 32];
    assert_false(grammar_match_complete(m));
    assert_int_equal(grammar_match_push(m, "1", 1), 0);
    assert_true(grammar_match_complete(m) && !grammar_match_ended(m)); /* 12 */
    assert_int_equal(grammar_match_push(m, "x", 1), -EILSEQ);
    assert_int_equal(grammar_match_push(m, "2", 1), 0); /* as if x had not been there */
    grammar_match_free(m);
    grammar_free(g);
    g = compiled("{\"const\":true}");
    m = begin(g);
    assert_int_equal(grammar_match_push(m, "true", 4), 0);
    assert_true(grammar_match_ended(m));
    assert_int_equal(grammar_match_mask(m, mask), 0);
    assert_int_equal(mask[0], 1u << END | 1u << OTHER_END);
    grammar_match_free(m);
    grammar_free(g);
}

/* A vocabulary without what must come, and one without an end. */
static bool never_ends(const void *arg, int id)
{
    (void)arg;
    (void)id;
    return false;
}

static void test_poor_vocabularies(void **state)
{
    (void)state;
    char err[256] = "";
    struct grammar_vocab *v = NULL;
    struct grammar *g = NULL;
    uint32_t mask[TOKENS / 32];
    assert_int_equal(
        grammar_vocab_new(&(struct grammar_vocab_opts){300, bytes_of, never_ends, NULL}, &v, err, sizeof err), -EINVAL);
    assert_non_null(strstr(err, "ends an answer"));
    assert_int_equal(grammar_vocab_new(&(struct grammar_vocab_opts){30, bytes_of, ends, NULL}, &v, err, sizeof err), 0);
    assert_int_equal(grammar_from_schema("{}", 2, v, 0, &g, err, sizeof err), 0);
    struct grammar_match *m = begin(g);
    assert_int_equal(grammar_match_mask(m, mask), -ENOENT);
    grammar_match_free(m);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* Every byte, an end, and a few words of which the last may be missing. */
static const char *word_bytes(const void *words, int id, size_t *len)
{
    static char bytes[256];
    const char *const *w = words;
    if (id >= 257) {
        *len = strlen(w[id - 257]);
        return w[id - 257];
    }
    *len = id > 0;
    bytes[id > 0 ? id - 1 : 0] = (char)(id - 1);
    return &bytes[id > 0 ? id - 1 : 0];
}

static bool word_ends(const void *words, int id)
{
    (void)words;
    return id == 0;
}

static void forced(const char *const *words, int n, const char *schema, const char *text, const char *expected)
{
    char err[256] = "", out[64];
    struct grammar_vocab *v = NULL;
    struct grammar *g = NULL;
    assert_int_equal(
        grammar_vocab_new(&(struct grammar_vocab_opts){257 + n, word_bytes, word_ends, words}, &v, err, sizeof err), 0);
    assert_int_equal(grammar_from_schema(schema, strlen(schema), v, 0, &g, err, sizeof err), 0);
    struct grammar_match *m = begin(g);
    assert_int_equal(grammar_match_push(m, text, strlen(text)), 0);
    size_t len = grammar_match_forced(m, out, sizeof out);
    if (len != strlen(expected) || memcmp(out, expected, len) != 0)
        fail_msg("behind %s: \"%.*s\", not \"%s\"", text, (int)len, out, expected);
    grammar_match_free(m);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* What must come is known up to where no token lies across. */
static void test_forced(void **state)
{
    (void)state;
    static const char *const WORDS[] = {"name", "na", "\":", "new", "york", "e\""};
    static const char SCHEMA[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"new york\",\"new town\"]}},"
        "\"required\":[\"name\"],\"additionalProperties\":false}";
    forced(WORDS, 5, SCHEMA, "", "{");
    forced(WORDS, 5, SCHEMA, "{\"", "name"); /* ": may come */
    forced(WORDS, 6, SCHEMA, "{\"", "");     /* e" lies across that place, and name across the one before */
    forced(WORDS, 5, SCHEMA, "{\"na", "me");
    forced(WORDS, 5, SCHEMA, "{\"name\"", "");            /* a space may come */
    forced(WORDS, 5, SCHEMA, "{\"name\":\"", "new ");     /* then one of two */
    forced(WORDS, 5, SCHEMA, "{\"name\":\"new y", "ork"); /* a token goes on behind the quote */
    forced(WORDS, 5, SCHEMA, "{\"name\":\"new york\"}", "");
}

/* ---- hostile ----------------------------------------------------------------------------------------------------- */

static void test_refuses(void **state)
{
    (void)state;
    refused("", -EINVAL, "not JSON");
    refused("{", -EINVAL, "not JSON");
    refused("{} x", -EINVAL, "not JSON, or too deep, at byte 3");
    refused("[]", -EINVAL, "a schema is an object");
    refused("{\"type\":\"text\"}", -EINVAL, "#/type: type is none of");
    refused("{\"properties\":{\"a\":{\"enum\":[]}}}", -EINVAL, "#/properties/a/enum: enum is empty");
    refused("{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", -EINVAL, "contradict");
    refused("{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", -EINVAL, "contradict");
    refused("{\"type\":\"integer\",\"minimum\":1,\"maximum\":9,\"multipleOf\":10}", -EINVAL, "contradict");
    refused("{\"type\":\"string\",\"pattern\":\"^a\",\"enum\":[\"b\"]}", -EINVAL, "contradict");
    refused("{\"$ref\":\"#\"}", -EINVAL, "refers to itself");
    refused("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", -EINVAL, "leads back to itself");
    refused("{\"anyOf\":[{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]},{\"type\":\"null\"}]}", -EINVAL,
            "leads back to itself");
    refused("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}",
            -EINVAL, "refers to itself");
    refused("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", -EINVAL, "never end");
    refused("{\"$ref\":\"https://example.com/schema\"}", -ENOTSUP, "schemas elsewhere are not fetched");
    refused("{\"$ref\":\"#/$defs/none\"}", -EINVAL, "leads nowhere");
    refused("{\"not\":{}}", -ENOTSUP, "#/not: not is not supported");
    refused("{\"items\":{\"if\":{}}}", -ENOTSUP, "#/items/if");
    refused("{\"oneOf\":[{\"minimum\":1},{\"maximum\":5}]}", -ENOTSUP, "oneOf whose schemas cannot be told apart");
    refused("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"uniqueItems\":true}", -ENOTSUP, "uniqueItems");
    refused("{\"type\":\"number\",\"multipleOf\":0.01}", -ENOTSUP, "multipleOf");
    refused("{\"multipleOf\":39999,\"minimum\":0,\"maximum\":1000000000}", -ENOTSUP, "beside bounds");
    refused("{\"type\":\"object\",\"type\":\"object\"}", -EINVAL, "\"type\" stands there twice");
    refused("{\"const\":\"a\\u0000b\"}", -ENOTSUP, "U+0000");
    refused("{\"const\":9007199254740993}", -ENOTSUP, "2^53");
    refused("{\"pattern\":\"(?=a)\"}", -ENOTSUP, "look-around is not supported");
    refused("{\"pattern\":\"(a\"}", -EINVAL, "without its )");
    refused("{\"pattern\":\"\\\\bx\"}", -ENOTSUP, "word boundaries");
    refused("{\"pattern\":\"(a)\\\\1\"}", -ENOTSUP, "reference to a group");
    refused("{\"pattern\":\"a{2,1}\"}", -EINVAL, "end is before its beginning");
    refused("{\"maxLength\":-1}", -EINVAL, "maxLength is not a whole number");
    refused("{\"minLength\":1e9}", -E2BIG, "minLength is more than 65536");
    char *digits = repeated("{\"type\":\"integer\",\"maximum\":1", "0", 400, "}");
    refused(digits, -EINVAL, "not one that a double holds");
    free(digits);
}

/* Each is either refused or bounded; none takes long or much. */
static void test_hostile(void **state)
{
    (void)state;
    char *deep = repeated("", "{\"items\":", 200, "true");
    char *closed = repeated(deep, "}", 200, "");
    refused(closed, -E2BIG, "too deep");
    free(closed);
    free(deep);
    deep = repeated("", "[", 100000, "");
    refused(deep, -EINVAL, "not JSON");
    free(deep);
    char *wide = repeated("{\"enum\":[0", ",1", 300000, "]}");
    refused(wide, -E2BIG, "");
    free(wide);
    /* Patterns whose states are many: a position that is remembered for 40 characters, with other conditions beside it.
     */
    refused("{\"allOf\":[{\"pattern\":\"^(a|b)*a(a|b){40}$\"},{\"pattern\":\"^(a|b)*b(a|b){41}$\"},"
            "{\"pattern\":\"^((a|b){7})*$\"},{\"pattern\":\"^((a|b){11})*c$\"}]}",
            -E2BIG, "more work");
    /* 2^16 sets of alternatives. */
    char *any = repeated("{\"allOf\":[{\"anyOf\":[{\"minimum\":1},{\"minimum\":2}]}",
                         ",{\"anyOf\":[{\"minimum\":1},{\"minimum\":2}]}", 15, "]}");
    refused(any, -E2BIG, "");
    free(any);
    char err[256] = "";
    struct grammar *g = NULL;
    char *long_pattern = repeated("", "a", GRAMMAR_MAX_PATTERN_BYTES + 1, "");
    assert_int_equal(grammar_from_pattern(long_pattern, strlen(long_pattern), NULL, &g, err, sizeof err), -E2BIG);
    free(long_pattern);
    /* A step that would be too much work is refused when it comes, and says so. */
    assert_int_equal(grammar_from_pattern("((a?){300}){300}b", 17, vocab, &g, err, sizeof err), 0);
    struct grammar_match *m = begin(g);
    uint32_t mask[TOKENS / 32];
    int rc = 0;
    for (int i = 0; i < 400 && rc == 0; i++)
        rc = (rc = grammar_match_mask(m, mask)) ? rc : grammar_match_push(m, "a", 1);
    assert_true(rc == 0 || rc == -E2BIG);
    grammar_match_free(m);
    grammar_free(g);
}

/* A match that is far goes on with as little work as before when others made its grammar forget: also a step that needs
 * work of its own. */
static void test_goes_on_after_forgetting(void **state)
{
    (void)state;
    enum { DEPTH = 60000, PIECE = 5000 };
    struct grammar *g = compiled("{}");
    struct grammar_match *m = begin(g);
    uint32_t seed = 1;
    char piece[PIECE * 5 + 1];
    for (int k = 0; k < DEPTH; k += PIECE) {
        char *at = piece;
        for (int i = 0; i < PIECE; i++) {
            seed = seed * 1664525 + 1013904223;
            at = stpcpy(at, seed >> 31 ? "[" : "{\"\":");
        }
        assert_int_equal(grammar_match_push(m, piece, strlen(piece)), 0);
    }
    uint32_t forgotten = grammar_use(g).emptyings;
    for (int tries = 0; tries < 60 && grammar_use(g).emptyings == forgotten; tries++) {
        struct grammar_match *other = begin(g);
        for (int k = 0; k < DEPTH / 2; k += PIECE) {
            char *at = piece;
            for (int i = 0; i < PIECE; i++) {
                seed = seed * 1664525 + 1013904223;
                at = stpcpy(at, seed >> 31 ? "[" : "{\"\":");
            }
            assert_int_equal(grammar_match_push(other, piece, strlen(piece)), 0);
        }
        grammar_match_free(other);
    }
    assert_true(grammar_use(g).emptyings > forgotten);
    for (int i = 0; i < 100; i++)
        assert_int_equal(grammar_match_push(m, "[{\"a\":[", 7), 0);
    grammar_match_free(m);
    grammar_free(g);
}

/* More states than there is room for: they are forgotten, and matches find theirs again. */
static void test_forgets(void **state)
{
    (void)state;
    enum { MATCHES = 24, DEPTH = 12000 };
    struct grammar *g = compiled("{}");
    struct grammar_match *m[MATCHES];
    uint32_t seed = 1;
    char *text[MATCHES];
    for (int i = 0; i < MATCHES; i++) {
        m[i] = begin(g);
        text[i] = malloc(DEPTH * 5);
        assert_non_null(text[i]);
        char *at = text[i];
        for (int k = 0; k < DEPTH; k++) {
            seed = seed * 1664525 + 1013904223;
            at = stpcpy(at, seed >> 31 ? "[" : "{\"\":");
        }
        assert_int_equal(grammar_match_push(m[i], text[i], strlen(text[i])), 0);
        assert_true(grammar_use(g).bytes <= GRAMMAR_MAX_BYTES);
    }
    assert_true(grammar_use(g).emptyings > 0);
    for (int i = 0; i < MATCHES; i++) {
        uint32_t mask[TOKENS / 32];
        char last = text[i][strlen(text[i]) - 1];
        assert_int_equal(grammar_match_mask(m[i], mask), 0);
        assert_int_equal(mask[(']' + 2) / 32] >> (']' + 2) % 32 & 1, last == '[');
        assert_int_equal(grammar_match_push(m[i], "]", 1), last == '[' ? 0 : -EILSEQ);
        grammar_match_free(m[i]);
        free(text[i]);
    }
    grammar_free(g);
}

static void test_lenient(void **state)
{
    (void)state;
    char err[256] = "";
    struct grammar *g = NULL;
    static const char SCHEMA[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{},\"type\":\"string\",\"pattern\":\"(?=x)\"}},"
        "\"required\":[\"a\"],\"dependentRequired\":{}}";
    assert_int_equal(grammar_from_schema(SCHEMA, sizeof SCHEMA - 1, NULL, GRAMMAR_LENIENT, &g, err, sizeof err), 0);
    assert_true(accepts(g, "{\"a\":\"y\"}") && !accepts(g, "{\"a\":1}") && !accepts(g, "{}"));
    grammar_free(g);
    assert_int_equal(grammar_from_json_object(NULL, &g, err, sizeof err), 0);
    assert_true(accepts(g, "{\"a\":[1]}") && !accepts(g, "[]"));
    grammar_free(g);
}

static const struct grammar_call_form HERMES = {GRAMMAR_CALL_OBJECT, "arguments", NULL, false};

static void test_calls(void **state)
{
    (void)state;
    static const char TOOLS[] =
        "[{\"name\":\"now\"},{\"name\":\"add.to-1\",\"parameters\":{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":"
        "{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false}}}}]";
    char err[256] = "";
    struct grammar *g = NULL;
    size_t at;
    assert_int_equal(grammar_from_calls(&HERMES, TOOLS, sizeof TOOLS - 1, vocab, &g, &at, err, sizeof err), 0);
    assert_true(accepts(g, "{\"name\":\"now\",\"arguments\":{}}"));
    assert_true(accepts(g, "\n{\"name\": \"now\", \"arguments\": {\"x\": [1]}}\n"));
    assert_true(accepts(g, "{\"name\": \"add.to-1\", \"arguments\": {\"a\": 1}}"));
    assert_false(accepts(g, "{\"name\": \"add.to-1\", \"arguments\": {\"a\": \"1\"}}"));
    assert_false(accepts(g, "{\"name\": \"add.to-1\", \"arguments\": 1}")); /* which its schema would allow */
    assert_false(accepts(g, "{\"name\": \"now\", \"arguments\": [1]}"));
    assert_false(accepts(g, "{\"name\": \"never\", \"arguments\": {}}"));
    assert_false(accepts(g, "{\"arguments\": {}, \"name\": \"now\"}"));
    grammar_free(g);
    static const struct {
        const char *tools, *part;
        int rc;
        size_t at;
    } BAD[] = {
        {"[{\"name\":\"a\"},{\"name\":\"b\",\"parameters\":{\"not\":{}}}]", "#/not: not is not", -ENOTSUP, 1},
        {"[{\"name\":\"a\",\"parameters\":{\"type\":\"string\"}},{\"name\":\"b\"}]", "contradict", -EINVAL, 0},
        {"[{\"name\":\"b\"},{\"name\":\"a\",\"parameters\":{\"required\":[\"x\"],\"properties\":{\"x\":false}}}]",
         "contradict", -EINVAL, 1},
        {"[{\"name\":\"a\\\"b\"}]", "other characters", -EINVAL, 0},
        {"[{}]", "name is missing", -EINVAL, 0},
        {"{}", "not a list", -EINVAL, 0},
        {"[]", "nothing can fulfil", -EINVAL, 0}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        g = NULL;
        int rc = grammar_from_calls(&HERMES, BAD[i].tools, strlen(BAD[i].tools), NULL, &g, &at, err, sizeof err);
        if (rc != BAD[i].rc || !strstr(err, BAD[i].part) || at != BAD[i].at || g)
            fail_msg("%s: %d \"%s\" at %zu", BAD[i].tools, rc, err, at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_patterns_and_formats),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_poor_vocabularies),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_forgets),
        cmocka_unit_test(test_goes_on_after_forgetting),
        cmocka_unit_test(test_lenient),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_forced),
    };
    return cmocka_run_group_tests(tests, make_vocab, free_vocab);
}

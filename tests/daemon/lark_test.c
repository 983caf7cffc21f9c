/* lark_test.c - grammars in Lark's language: what regular expression one becomes, that the engine takes it, and what
 * has none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

/* How an agent describes patches. */
static const char PATCH[] = "start: begin_patch hunk+ end_patch\n"
                            "begin_patch: \"*** Begin Patch\" LF\n"
                            "end_patch: \"*** End Patch\" LF?\n"
                            "\n"
                            "hunk: add_hunk | delete_hunk | update_hunk\n"
                            "add_hunk: \"*** Add File: \" filename LF add_line+\n"
                            "delete_hunk: \"*** Delete File: \" filename LF\n"
                            "update_hunk: \"*** Update File: \" filename LF change_move? change?\n"
                            "filename: /(.+)/\n"
                            "add_line: \"+\" /(.*)/ LF -> line\n"
                            "\n"
                            "change_move: \"*** Move to: \" filename LF\n"
                            "change: (change_context | change_line)+ eof_line?\n"
                            "change_context: (\"@@\" | \"@@ \" /(.+)/) LF\n"
                            "change_line: (\"+\" | \"-\" | \" \") /(.*)/ LF\n"
                            "eof_line: \"*** End of File\" LF\n"
                            "\n"
                            "%import common.LF\n";

static void is_an_expression(void **state)
{
    (void)state;
    static const struct {
        const char *grammar, *pattern; /* NULL: whatever it is */
    } cases[] = {
        {"start: \"a\"", "(?:(?:a))"},
        {"start: A B\nA: \"x\"\nB.2: /[0-9]+/ // digits\n", "(?:(?:(?:x))(?:(?:[0-9]+)))"},
        {"?start: \"a\" | \"b\" -> other\n     | \"c\"", "(?:(?:a)|(?:b)|(?:c))"},
        {"!start: (\"a\" | \"b\")* [\"c\"]", "(?:(?:(?:a)|(?:b))*(?:(?:(?:c))?))"},
        {"start: \"a\"~3 \"b\"~1..2 \"0\"..\"9\"+", "(?:(?:a){3}(?:b){1,2}[0-9]+)"},
        {"start: \"a.b*\\n\\\"\\\\\"", "(?:(?:a\\.b\\*\\n\"\\\\))"},
        {"start: \"Ab1\"i", "(?:(?:[aA][bB]1))"},
        {"# nothing\nstart: (\n  \"a\"\n  \"b\"\n)\n", "(?:(?:(?:a)(?:b)))"},
        {"start: INT\n%import common.INT", "(?:(?:[0-9]+))"},
        {"start: n n\nn: \"x\" |", "(?:(?:(?:x)|)(?:(?:x)|))"},
        {"%import common (LF, WS)\nstart: \"a\" LF", "(?:(?:a)(?:\\n))"},
        {"start: \"a\"\n\n  # or\n  | \"b\"\n\n\n  | \"c\"\n\n", "(?:(?:a)|(?:b)|(?:c))"},
        {"start: \"\\x41\\u00e9\\t\" \"é\"", "(?:(?:\\x41\\u00e9\\t)(?:é))"},
        {"start: \"a\"? ESCAPED_STRING\n%import common.ESCAPED_STRING", "(?:(?:a)?(?:\"(?:[^\"\\\\\\n]|\\\\.)*\"))"},
        {"start: /[^\\]a]{2,3}[{,]\\{,/", "(?:(?:[^\\]a]{2,3}[{,]\\{,))"},
        {PATCH, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *pattern = NULL, err[200] = "";
        struct engine_form *form = NULL;
        if (lark_pattern(cases[i].grammar, &pattern, err, sizeof(err)))
            fail_msg("%s: %s", cases[i].grammar, err);
        if (cases[i].pattern)
            assert_string_equal(pattern, cases[i].pattern);
        if (engine_form_new(ENGINE_FORM_PATTERN, pattern, strlen(pattern), false, &form, err, sizeof(err)))
            fail_msg("%s: %s", pattern, err);
        engine_form_free(form);
        free(pattern);
    }
}

static void is_none(void **state)
{
    (void)state;
    static const struct {
        const char *grammar, *why; /* part of what is said */
    } cases[] = {
        {"", "there is no rule 'start'"},
        {"a: \"x\"", "there is no rule 'start'"},
        {"start: a", "there is no rule 'a'"},
        {"start: \"(\" start \")\" | \"x\"", "names itself"},
        {"start: a\na: b\nb: \"x\" a?", "the rule 'a' names itself"},
        {"start: \"x\"\nstart: \"y\"", "two rules"},
        {"start: \"x", "does not end"},
        {"start: /x", "does not end"},
        {"start: \"x\nstart2: \"", "does not end"},
        {"start: /x/s", "flags 's'"},
        {"start: \"x\"x", "flags 'x'"},
        {"start: \"x\"\n%ignore WS", "'%ignore' is not supported"},
        {"start: \"x\"\n%import python.NAME", "import"},
        {"start: A\n%import common.INT -> A", "import"},
        {"start: sep{\"x\"}", "not understood"},
        {"start: (\"x\"", "not understood"},
        {"start: \"x\")", "not understood"},
        {"start: \"x\" ~ 3..", "followed by a number"},
        {"start: \"ab\"..\"z\"", "plain characters"},
        {"start: /a)|(b/", "does not close"},
        {"start: /[a/ /b]/", "does not close"},
        {"start: \"\\d+\"", "escape '\\d'"},
        {"start: \"\\x4\"", "escape '\\x'"},
        {"start: \"é\"i", "ASCII"},
        {"start: \"\\x61\"i", "with the flag 'i'"},
        {"start: /a{,2}b/", "{,n} in"},
        {"start: /[^]a]/", "[^] in"},
        {"start: /x[]a]/", "[] in"},
        {"start: (\"a\"\n\nb: \"x\"", "no rule 'b'"},
        {"start \"x\"", "a rule is"},
        {"start: \"x\" * *", "not understood"},
        {"\xf0\x9f\x98\x80: \"x\"", "not understood"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char *pattern = NULL, err[200] = "";
        if (lark_pattern(cases[i].grammar, &pattern, err, sizeof(err)) == 0 || !strstr(err, cases[i].why) || pattern)
            fail_msg("%s: %s %s", cases[i].grammar, err, pattern ? pattern : "");
    }
}

/* Much of little: rules that double, braces within one another, a long text, many rules. */
static void is_bounded(void **state)
{
    (void)state;
    char *text = malloc(LARK_BYTES_MAX + 2), *pattern = NULL, err[200] = "";
    size_t n = (size_t)sprintf(text, "start: a0\n");
    for (int i = 0; i < 60; i++)
        n += (size_t)sprintf(text + n, "a%d: a%d a%d\n", i, i + 1, i + 1);
    sprintf(text + n, "a60: \n");
    assert_int_equal(lark_pattern(text, &pattern, err, sizeof(err)), -1);
    assert_non_null(strstr(err, "longer than"));
    n = (size_t)sprintf(text, "start: ");
    memset(text + n, '(', 200);
    text[n + 200] = '\0';
    assert_int_equal(lark_pattern(text, &pattern, err, sizeof(err)), -1);
    assert_non_null(strstr(err, "nested deeper"));
    memset(text, ' ', LARK_BYTES_MAX + 1);
    text[LARK_BYTES_MAX + 1] = '\0';
    assert_int_equal(lark_pattern(text, &pattern, err, sizeof(err)), -1);
    assert_non_null(strstr(err, "longer than"));
    /* Rules of many lines or names that say nothing, each looked at many times. */
    for (int names = 0; names < 2; names++) {
        n = (size_t)sprintf(text, "start:");
        for (int i = 0; i < 400; i++)
            n += (size_t)sprintf(text + n, " a");
        n += (size_t)sprintf(text + n, "\na: (");
        while (n < LARK_BYTES_MAX - 16)
            n += (size_t)sprintf(text + n, names ? "-> x " : "\n\n");
        sprintf(text + n, ")\n");
        int rc = lark_pattern(text, &pattern, err, sizeof(err));
        assert_int_equal(rc, names ? -1 : 0);
        assert_true(!names || strstr(err, "steps of work"));
        free(pattern);
        pattern = NULL;
    }
    n = 0;
    for (int i = 0; i <= LARK_RULES_MAX; i++)
        n += (size_t)sprintf(text + n, "r%d: \"x\"\n", i);
    assert_int_equal(lark_pattern(text, &pattern, err, sizeof(err)), -1);
    assert_non_null(strstr(err, "more than"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_an_expression), cmocka_unit_test(is_none),
                                       cmocka_unit_test(is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

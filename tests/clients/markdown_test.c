/* markdown_test.c - Markdown as lines of a terminal, also Markdown that nobody would write. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clients/cli/cli_internal.h"

static const struct layout narrow = {.columns = 30}, styled = {.columns = 30, .colour = true, .italic = true};

static void check(const char *text, const struct layout *how, const char *lines)
{
    struct buf out = {0};
    markdown_lines(text, strlen(text), how, &out);
    if (lines)
        assert_string_equal(out.data, lines);
    else
        assert_int_equal(out.len, 0);
    buf_free(&out);
}

static void blocks(void **state)
{
    (void)state;
    check("# Title\n", &narrow, "Title\n");
    check("one two three four five six seven\n", &narrow, "one two three four five six\nseven\n");
    check("one\ntwo  \nthree\n", &narrow, "one\ntwo\nthree\n");
    check("- a\n- b\n  - c\n\n    d\n- and e, which is longer than it\n", &narrow,
          "\u2022 a\n\u2022 b\n  \u2022 c\n\n    d\n\u2022 and e, which is longer than\n  it\n");
    check("9. a\n10. b\n", &narrow, "9. a\n10. b\n");
    check("3) a\n", &narrow, "3) a\n");
    check("-\n- b\n", &narrow, "\u2022\n\u2022 b\n");
    check("> a\n> > b\n>\n> c\n", &narrow, "\u2502 a\n\u2502 \u2502 b\n\u2502\n\u2502 c\n");
    check("***\n", &(struct layout){.columns = 5}, "\u2500\u2500\u2500\u2500\u2500\n");
    check("- x\n  ```c\n  int a;\n\n  \tb\n  ```\n", &(struct layout){.columns = 12},
          "\u2022 x\n  \u2500\u2500 c \u2500\u2500\u2500\u2500\u2500\n  int a;\n\n    b\n"
          "  \u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\n");
    check("<b>x</b>\n", &narrow, "<b>x</b>\n");
    check("[a]: http://x\n", &narrow, "[a]: http://x\n");
    check("", &narrow, NULL);
}

static void spans(void **state)
{
    (void)state;
    check("a **b** *c* `d`\n", &narrow, "a b c `d`\n");
    check("a **b** *c* `d`\n", &styled, "a \033[0;1mb\033[0m \033[0;3mc\033[0m \033[0;35md\033[0m\n");
    check("*a*\n", &(struct layout){.columns = 9, .colour = true}, "\033[0;4ma\033[0m\n");
    check("# a *b*\n", &styled, "\033[0;1;4ma \033[0;1;3;4mb\033[0m\n");
    check("### a\n", &styled, "\033[0;1ma\033[0m\n");
    /* No style goes on from one line to the next. */
    check("**one two three four five six seven**\n", &styled,
          "\033[0;1mone two three four five six\033[0m\n\033[0;1mseven\033[0m\n");
    check("[a](http://b) <http://c> [http://d](http://d)\n", &narrow, "a (http://b) http://c http://d\n");
    check("![alt](i.png) [](u) <m@x.y>\n", &narrow, "alt (i.png) (u) m@x.y\n");
    check("AT&amp;T &lt; &copy; &#27;[1m\n", &narrow, "AT&T < &copy; &#27;[1m\n");
    check("2 * 3 * 4, snake_case_name, \\*\n", &narrow, "2 * 3 * 4, snake_case_name, *\n");
    check("**not closed\n", &narrow, "**not closed\n");
}

static void tables(void **state)
{
    (void)state;
    check("| a | b |\n|--:|:-:|\n| 1 | two<br>three |\n| 22 |\n", &narrow,
          " a \u2502   b\n"
          "\u2500\u2500\u2500\u253c\u2500\u2500\u2500\u2500\u2500\u2500\n"
          " 1 \u2502  two\n"
          "   \u2502 three\n"
          "22 \u2502\n");
    /* The widest column gives way. */
    const char *wide = "| k | v |\n|---|---|\n| key | one two three four |\n| k | v |\n";
    check(wide, &(struct layout){.columns = 16},
          "k   \u2502 v\n"
          "\u2500\u2500\u2500\u2500\u253c\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\n"
          "key \u2502 one two\n"
          "    \u2502 three four\n"
          "k   \u2502 v\n");
    /* Where there is no room for columns, they stand one below the other. */
    check(wide, &(struct layout){.columns = 12}, "k: key\nv: one two\nthree four\n\nk: k\nv: v\n");
    /* A row that comes later does not move those that were measured. */
    check("| a | b |\n|---|---|\n| 1 | 2 |\n| c d | d |\n", &(struct layout){.columns = 30, .table_rows = 1},
          "a \u2502 b\n"
          "\u2500\u2500\u253c\u2500\u2500\n"
          "1 \u2502 2\n"
          "c \u2502 d\n"
          "d \u2502\n");
}

static void lines_of_any_text_fit(void **state)
{
    static const char *const parts[] = {"- ",
                                        "1. ",
                                        "> ",
                                        "# ",
                                        "\n",
                                        "\n\n",
                                        "    ",
                                        "  ",
                                        "```\n",
                                        "~~~~\n",
                                        "| a ",
                                        "|",
                                        "|--|\n",
                                        "**",
                                        "*",
                                        "_",
                                        "`",
                                        "[a](http://b ",
                                        ")",
                                        "![",
                                        "]",
                                        "\\",
                                        "&amp;",
                                        "&#27;",
                                        "<b>",
                                        "<http://x>",
                                        "word ",
                                        "longerthanalllineshereareallowedtobe",
                                        "\u65e5\u672c\u8a9e",
                                        "\u2764\ufe0f",
                                        "\t",
                                        "---\n",
                                        "===\n",
                                        "[x]: y\n",
                                        "<br>",
                                        "\u0301",
                                        "99999999999. "};
    (void)state;
    uint32_t random = 12345;
    for (int round = 0; round < 20000; round++) {
        struct buf text = {0}, out = {0};
        struct layout how = {
            .columns = 1 + round % 33, .colour = round & 1, .italic = round & 2, .table_rows = round % 4};
        int n = 1 + round % 40;
        for (int i = 0; i < n; i++) {
            random = random * 1664525 + 1013904223;
            buf_str(&text, parts[(random >> 8) % (sizeof(parts) / sizeof(*parts))]);
        }
        markdown_lines(text.data, text.len, &how, &out);
        const char *end;
        for (const char *line = out.data; line && *line; line = end + 1) {
            struct buf plain = {0};
            end = strchr(line, '\n');
            assert_non_null(end);
            for (const char *at = line; at < end; at++) {
                if (*at != '\033') {
                    buf_add(&plain, at, 1);
                    continue;
                }
                assert_true(how.colour && at[1] == '[');
                at += 2 + strspn(at + 2, "0123456789;");
                assert_int_equal(*at, 'm');
            }
            int columns = text_columns(plain.data ? plain.data : "", plain.len);
            if (!(columns <= how.columns || (how.columns == 1 && columns == 2)))
                fail_msg("%d columns of %d: `%s` of `%s`", columns, how.columns, plain.data, text.data);
            buf_free(&plain);
        }
        buf_free(&text);
        buf_free(&out);
    }
}

static void code_is_cut_where_the_line_is_full(void **state)
{
    struct buf out = {0};
    (void)state;
    const char *code = "\tif (x) \u65e5\u672c\n";
    markdown_code(code, strlen(code), &(struct layout){.columns = 15}, &out);
    markdown_code("", 0, &narrow, &out);
    markdown_rule("a-language-of-a-very-long-name", 30, &(struct layout){.columns = 12}, &out);
    markdown_rule("", 0, &(struct layout){.columns = 3}, &out);
    assert_string_equal(out.data,
                        "        if (x) \n\u65e5\u672c\n\n\u2500\u2500 a-lan\u2026 \u2500\u2500\n\u2500\u2500\u2500\n");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks),
        cmocka_unit_test(spans),
        cmocka_unit_test(tables),
        cmocka_unit_test(lines_of_any_text_fit),
        cmocka_unit_test(code_is_cut_where_the_line_is_full),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

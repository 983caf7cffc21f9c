/* text_test.c - titles, receipts, progress lines, and what is let through to a terminal. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "clients/cli/cli_internal.h"

static void printable_drops_what_steers(void **state)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain\ttext\n", "plain\ttext\n"},
        {"\033[31mred\033[0m", "[31mred[0m"},
        {"a\rb\bc\007d\177e", "abcde"},
        {"C1: \xc2\x9b"
         "31m",
         "C1: 31m"},
        {"gr\xc3\xbc\xc3\x9f \xe2\x98\x83 \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe2\x98\x83 \xf0\x9f\x98\x80"},
        {"\xe2\x80\xaeturned\xe2\x81\xa6", "turned"},
        {"half \xe2\x98", "half \xef\xbf\xbd\xef\xbf\xbd"},
        {"overlong \xc0\xaf", "overlong \xef\xbf\xbd\xef\xbf\xbd"},
        {"surrogate \xed\xa0\x80", "surrogate \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"beyond \xf4\x90\x80\x80", "beyond \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xff", "\xef\xbf\xbd"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf out = {0};
        text_printable(cases[i].in, strlen(cases[i].in), &out);
        assert_string_equal(out.data, cases[i].out);
        buf_free(&out);
    }
}

static void titles_are_one_short_line(void **state)
{
    static const struct {
        const char *message;
        size_t max;
        const char *title;
    } cases[] = {
        {"Hello", 60, "Hello"},
        {"\n\n  Hello there  \nmore", 60, "Hello there"},
        {"abcde", 5, "abcde"},
        {"abcdef", 5, "abcd\xe2\x80\xa6"},
        {"\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 3, "\xc3\xa4\xc3\xa4\xe2\x80\xa6"},
        {"a\033[1mb", 60, "a[1mb"},
        {"one\ttwo", 60, "one two"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf out = {0};
        text_title(cases[i].message, cases[i].max, &out);
        assert_string_equal(out.data, cases[i].title);
        buf_free(&out);
    }
}

static void check_receipt(const char *json, const char *line)
{
    cJSON *receipt = cJSON_Parse(json);
    assert_non_null(receipt);
    struct buf out = {0};
    text_receipt(receipt, &out);
    assert_string_equal(out.data, line);
    buf_free(&out);
    cJSON_Delete(receipt);
}

static void receipts_say_where_history_was(void **state)
{
    (void)state;
    check_receipt(
        "{\"tokens\":{\"hot\":812,\"ram\":0,\"disk\":0,\"prefilled\":23},\"ms\":{\"ttft\":210,\"itl_p50\":40}}",
        "812 tokens kept (hot), 23 prefilled \u00b7 0.21 s to first token \u00b7 25 tok/s");
    check_receipt(
        "{\"tokens\":{\"hot\":0,\"ram\":256,\"disk\":556,\"prefilled\":23},\"ms\":{\"ttft\":210,\"itl_p50\":400}}",
        "812 tokens kept (256 from RAM, 556 from disk), 23 prefilled \u00b7 0.21 s to first token "
        "\u00b7 2.5 tok/s");
    check_receipt("{\"tokens\":{\"hot\":0,\"ram\":0,\"disk\":0,\"prefilled\":30},\"ms\":{\"ttft\":50,\"itl_p50\":0}}",
                  "30 tokens prefilled \u00b7 0.05 s to first token");
    check_receipt(
        "{\"tokens\":{\"disk\":256,\"prefilled\":35},\"reprefilled\":[{\"tokens\":12,\"reason\":\"blob_damaged\"}],"
        "\"saved\":\"failed\"}",
        "256 tokens kept (from disk), 35 prefilled, 12 of them again (what was stored is damaged) \u00b7 "
        "not saved to "
        "disk");
    check_receipt("{}", "0 tokens prefilled");
    check_receipt("{\"tokens\":7,\"reprefilled\":[3],\"ms\":\"x\",\"saved\":1}",
                  "0 tokens prefilled, 0 of them again (unknown reason)");
}

static void warm_ups_say_what_they_brought(void **state)
{
    static const struct {
        const char *receipt, *text;
    } cases[] = {
        {"{\"tokens\":{\"ram\":256,\"disk\":556,\"prefilled\":9}}",
         "before you wrote: 256 from RAM, 556 from disk, 9 prefilled"},
        {"{\"tokens\":{\"hot\":812,\"disk\":0}}", ""},
        {"{}", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf out = {0};
        cJSON *receipt = cJSON_Parse(cases[i].receipt);
        buf_str(&out, "");
        text_warm_up(receipt, &out);
        assert_string_equal(out.data, cases[i].text);
        cJSON_Delete(receipt);
        buf_free(&out);
    }
}

static void progress_is_told_in_words(void **state)
{
    static const struct {
        const char *stage;
        double done, total;
        const char *text;
    } cases[] = {
        {"queue", 1, 0, "waiting for 1 other turn"},
        {"queue", 3, 0, "waiting for 3 other turns"},
        {"queue", 0, 0, "waiting"},
        {"restore", 256, 812, "restoring 256 of 812 tokens"},
        {"prefill", 10, 23, "reading 10 of 23 tokens"},
        {"load", 0.5, 1, "loading the model: 50 %"},
        {"load", -1, 0, "loading the model"},
        {"\033[2J", 0, 0, "[2J"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf out = {0};
        text_progress(cases[i].stage, cases[i].done, cases[i].total, &out);
        assert_string_equal(out.data, cases[i].text);
        buf_free(&out);
    }
}

static void items_of_either_form(void **state)
{
    (void)state;
    cJSON *response =
        cJSON_Parse("{\"output\":[{\"type\":\"reasoning\",\"content\":\"no\"},{\"type\":\"message\",\"content\":"
                    "[{\"type\":\"output_text\",\"text\":\"a\"},{\"type\":\"refusal\"},{\"text\":\"b\"}]},"
                    "{\"type\":\"message\",\"content\":\"c\"}, 5]}");
    struct buf out = {0};
    text_of_output(response, &out);
    assert_string_equal(out.data, "abc");
    buf_free(&out);
    cJSON_Delete(response);
}

static void fields_may_stand_in_our_part(void **state)
{
    (void)state;
    cJSON *object = cJSON_Parse("{\"title\":\"t\",\"convod\":{\"tier\":\"ram\",\"title\":\"other\"}}");
    assert_string_equal(json_field(object, "title")->valuestring, "t");
    assert_string_equal(json_field(object, "tier")->valuestring, "ram");
    assert_null(json_field(object, "none"));
    assert_null(json_field(NULL, "none"));
    cJSON_Delete(object);
}

static void buffers_grow(void **state)
{
    (void)state;
    struct buf b = {0};
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%03d", i);
    assert_int_equal(b.len, 3000);
    assert_memory_equal(b.data + 2997, "999", 4);
    buf_clear(&b);
    assert_string_equal(b.data, "");
    buf_free(&b);
    assert_null(b.data);
}

static void addresses(void **state)
{
    static const char *good[] = {"http://127.0.0.1:8642", "http://localhost", "http://[::1]:80/",
                                 "https://host.example:1/a/b/"};
    static const char *bad[] = {"",
                                "127.0.0.1:8642",
                                "ftp://x",
                                "http://",
                                "http://:80",
                                "http://host:",
                                "http://host:0",
                                "http://host:65536",
                                "http://host:80x",
                                "http://user@host",
                                "http://[::1",
                                "http://[::1]x",
                                "http://host?q"};
    (void)state;
    char err[CLI_ERR_SIZE];
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct net *n = NULL;
        assert_int_equal(net_open(good[i], NULL, &n, err, sizeof(err)), 0);
        assert_string_equal(net_url(n), good[i]);
        net_close(n);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct net *n = NULL;
        assert_true(net_open(bad[i], NULL, &n, err, sizeof(err)) < 0);
        assert_null(n);
    }
}

static void text_is_sound_up_to_what_is_not(void **state)
{
    (void)state;
    assert_int_equal(text_sound("", 0), 0);
    assert_int_equal(text_sound("gr\xc3\xbc\xc3\x9f", 6), 6);
    assert_int_equal(text_sound("gr\xfc", 3), 2);
    assert_int_equal(text_sound("a\0b", 3), 1);
    assert_int_equal(text_sound("ab\xe2\x98", 4), 2);       /* cut in a character */
    assert_int_equal(text_sound("\xed\xa0\x80", 3), 0);     /* a surrogate */
    assert_int_equal(text_sound("\xf4\x90\x80\x80", 4), 0); /* past the last code point */
    assert_int_equal(text_sound("\xf4\x8f\xbf\xbf", 4), 4);
}

static void lines_are_broken_between_words(void **state)
{
    static const struct {
        const char *text;
        int columns;
        const char *lines;
    } cases[] = {
        {"one two three", 7, "one two\nthree\n"},
        {"one two  ", 7, "one two\n"},
        {"one  two", 5, "one\ntwo\n"},
        {"a\n\nb\n", 9, "a\n\nb\n"},
        {"    code that is long", 12, "    code\nthat is long\n"},
        {"sesquipedalian x", 5, "sesqu\nipeda\nlian\nx\n"},
        {"\ta", 20, "        a\n"},
        {"1234567\tb", 20, "1234567 b\n"},
        {"\u65e5\u672c\u8a9e", 5, "\u65e5\u672c\n\u8a9e\n"},
        {"ab\u65e5\u672c", 3, "ab\n\u65e5\n\u672c\n"},
        {"\u65e5", 1, "\u65e5\n"},
        {"e\u0301e\u0301 e", 2, "e\u0301e\u0301\ne\n"},
        {"", 10, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buf out = {0};
        text_lines(cases[i].text, strlen(cases[i].text), cases[i].columns, &out);
        if (cases[i].lines)
            assert_string_equal(out.data, cases[i].lines);
        else
            assert_int_equal(out.len, 0);
        buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printable_drops_what_steers),
        cmocka_unit_test(text_is_sound_up_to_what_is_not),
        cmocka_unit_test(titles_are_one_short_line),
        cmocka_unit_test(receipts_say_where_history_was),
        cmocka_unit_test(warm_ups_say_what_they_brought),
        cmocka_unit_test(progress_is_told_in_words),
        cmocka_unit_test(items_of_either_form),
        cmocka_unit_test(fields_may_stand_in_our_part),
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(addresses),
        cmocka_unit_test(lines_are_broken_between_words),
    };
    setlocale(LC_CTYPE, "C.UTF-8");
    return cmocka_run_group_tests(tests, NULL, NULL);
}

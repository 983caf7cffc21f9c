/* utf8_test.c - every code point, and everything that only looks like one. */
#include "engine/text/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static size_t encode(unsigned c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

static void test_code_points(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 0x200000; c++) {
        char bytes[5] = {0};
        size_t n = encode(c, bytes);
        size_t wanted = c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
        int missing;
        if (utf8_char(bytes, n, &missing) != wanted || missing)
            fail_msg("U+%X", c);
        for (size_t cut = 1; wanted > 0 && cut < n; cut++) {
            if (utf8_char(bytes, cut, &missing) != 0 || !missing)
                fail_msg("U+%X, %zu bytes", c, cut);
        }
    }
}

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int missing;
    } CASES[] = {
        {"\x80", 1, 0},
        {"\xc0\x80", 2, 0},
        {"\xc1\xbf", 2, 0},
        {"\xe0\x80\x80", 3, 0},
        {"\xe0\x9f", 2, 0},
        {"\xf0\x80\x80\x80", 4, 0},
        {"\xf0\x8f", 2, 0},
        {"\xed\xa0", 2, 0},
        {"\xf4\x90", 2, 0},
        {"\xf5", 1, 0},
        {"\xff", 1, 0},
        {"\xc3"
         "a",
         2, 0},
        {"\xe2\x82"
         "a",
         3, 0},
        {"\xf0\x9f\x98", 3, 1},
        {"", 0, 0},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int missing = -1;
        assert_int_equal(utf8_char(CASES[i].bytes, CASES[i].n, &missing), 0);
        assert_int_equal(missing, CASES[i].missing);
        assert_int_equal(utf8_char(CASES[i].bytes, CASES[i].n, NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_code_points), cmocka_unit_test(test_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* budget_test.c - what requests may hold, in all and of one owner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>

#include "daemon/run/run.h"

static void owners_share(void **state)
{
    (void)state;
    struct budget b = {.most = 100};
    struct api_error e = {0};
    /* A quarter is for others. */
    assert_true(budget_take(&b, "ann", 70, &e));
    assert_false(budget_take(&b, "ann", 6, &e));
    assert_int_equal(e.status, 429);
    assert_string_equal(e.code, "rate_limit_exceeded");
    assert_true(budget_take(&b, "ann", 5, &e));
    assert_true(budget_take(&b, "bob", 20, &e));
    assert_false(budget_take(&b, "", 6, &e));
    assert_int_equal(e.status, 503);
    assert_string_equal(e.code, "server_overloaded");
    assert_true(budget_take(&b, "", 5, &e));
    assert_int_equal(b.used, 100);
    budget_give(&b, "ann", 75);
    assert_true(budget_take(&b, "bob", 55, &e));
    assert_false(budget_take(&b, "bob", 1, &e));
    assert_int_equal(e.status, 429);
    budget_give(&b, "bob", 75);
    budget_give(&b, "", 5);
    assert_int_equal(b.used, 0);
    assert_null(b.owners);
    /* What was never taken changes nothing. */
    budget_give(&b, "carl", 0);
    assert_null(b.owners);
}

static void buffers_grow(void **state)
{
    (void)state;
    struct budget b = {.most = 4 * (uint64_t)BUFFER_BYTES_MIN}, open = {0};
    struct api_error e = {0};
    char *buffer = NULL, *other = NULL;
    size_t size = 0, other_size = 0;
    assert_int_equal(budget_grow(&b, "ann", &buffer, &size, 10, &e), 0);
    assert_int_equal(size, BUFFER_BYTES_MIN);
    assert_int_equal(budget_grow(&b, "ann", &buffer, &size, BUFFER_BYTES_MIN + 1, &e), 0);
    assert_int_equal(b.used, 2 * BUFFER_BYTES_MIN);
    assert_int_equal(budget_grow(&b, "ann", &buffer, &size, 2 * BUFFER_BYTES_MIN + 1, &e), -EDQUOT);
    assert_int_equal(e.status, 429);
    assert_int_equal(size, 2 * BUFFER_BYTES_MIN);
    assert_int_equal(budget_grow(&b, "bob", &other, &other_size, 2 * BUFFER_BYTES_MIN, &e), 0);
    char *third = NULL;
    size_t third_size = 0;
    assert_int_equal(budget_grow(&b, "carl", &third, &third_size, 1, &e), -EDQUOT);
    assert_int_equal(e.status, 503);
    assert_null(third);
    budget_give(&b, "bob", other_size);
    budget_give(&b, "ann", size);
    assert_int_equal(budget_grow(&open, "ann", &buffer, &size, 1 << 20, &e), 0);
    budget_give(&open, "ann", open.used);
    free(buffer);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(owners_share), cmocka_unit_test(buffers_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tokens_test.c - the array that token functions append to. */
#include "engine/engine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_grows(void **state)
{
    (void)state;
    struct engine_tokens t = {0};
    assert_int_equal(engine_tokens_append(&t, NULL, 0), 0);
    assert_null(t.ids);
    for (engine_token i = 0; i < 1000; i += 2)
        assert_int_equal(engine_tokens_append(&t, (engine_token[]){i, i + 1}, 2), 0);
    assert_int_equal(t.n, 1000);
    for (engine_token i = 0; i < 1000; i++)
        assert_int_equal(t.ids[i], i);
    engine_tokens_free(&t);
    assert_null(t.ids);
    assert_int_equal(t.n, 0);
    assert_int_equal(t.capacity, 0);
    engine_tokens_free(&t);
}

static void test_refuses_what_cannot_be(void **state)
{
    (void)state;
    struct engine_tokens t = {0};
    engine_token id = 5;
    assert_int_equal(engine_tokens_append(&t, &id, 1), 0);
    assert_int_equal(engine_tokens_append(&t, &id, SIZE_MAX), -ENOMEM);
    assert_int_equal(engine_tokens_append(&t, &id, SIZE_MAX / sizeof id), -ENOMEM);
    assert_int_equal(t.n, 1);
    assert_int_equal(t.ids[0], 5);
    engine_tokens_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grows), cmocka_unit_test(test_refuses_what_cannot_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

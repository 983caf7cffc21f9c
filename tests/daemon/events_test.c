/* events_test.c - the network thread is woken once for what is taken at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/run/run.h"

static int n_woken, n_taken;

static void wake(void *arg)
{
    assert_ptr_equal(arg, &n_woken);
    n_woken++;
}

static void take(struct event *e, bool closing)
{
    (void)e;
    (void)closing;
    n_taken++;
}

static void test_wake_ups(void **state)
{
    (void)state;
    struct events q;
    struct event e[6] = {{.take = take}, {.take = take}, {.take = take},
                         {.take = take}, {.take = take}, {.take = take}};
    assert_int_equal(events_init(&q), 0);
    events_post(&q, &e[0]); /* nobody is there to be woken */
    events_wake_by(&q, wake, &n_woken);
    events_post(&q, &e[1]);
    assert_int_equal(n_woken, 0); /* who comes to a list that is not empty wakes nobody */
    events_drop(&q);
    assert_int_equal(n_taken, 2);
    events_post(&q, &e[2]);
    assert_int_equal(n_woken, 1);
    events_hold(&q, true);
    events_hold(&q, false);
    assert_int_equal(n_woken, 2); /* what was there before is still there */
    events_drop(&q);
    events_hold(&q, true);
    for (int i = 3; i < 6; i++) {
        events_post(&q, &e[i]);
    }
    assert_int_equal(n_woken, 2);
    events_hold(&q, false);
    assert_int_equal(n_woken, 3);
    events_drop(&q);
    assert_int_equal(n_taken, 6);
    events_hold(&q, true);
    events_hold(&q, false);
    assert_int_equal(n_woken, 3); /* there was nothing */
    events_destroy(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wake_ups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

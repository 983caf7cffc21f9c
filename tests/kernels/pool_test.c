/* pool_test.c - every item of a run is done exactly once, whatever the number of workers, and a run that returned is
 * over. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MAX_ITEMS 1000

struct job {
    unsigned char done[MAX_ITEMS]; /* not atomic: two workers on one item are a race that the thread sanitizer sees */
    int threads, grain, n;
    atomic_int bad;
};

static void do_items(void *arg, int worker, int first, int end)
{
    struct job *j = arg;
    if (worker < 0 || worker >= j->threads || first >= end || first < 0 || end > j->n)
        atomic_fetch_add(&j->bad, 1);
    for (int i = first; i < end; i++)
        j->done[i]++;
}

static void test_every_item_once(void **state)
{
    (void)state;
    static const int sizes[] = {0, 1, 2, 3, 7, 16, 17, 100, 999, 1000};
    for (int threads = 1; threads <= 5; threads++) {
        struct kernels_pool *p;
        assert_int_equal(kernels_pool_open(threads, &p), 0);
        for (int round = 0; round < 300; round++) {
            struct job j = {.threads = threads};
            j.n = sizes[round % 10];
            j.grain = 1 + round % 7;
            kernels_pool_run(p, j.n, j.grain, do_items, &j);
            assert_int_equal(atomic_load(&j.bad), 0);
            for (int i = 0; i < MAX_ITEMS; i++)
                assert_int_equal(j.done[i], i < j.n);
        }
        kernels_pool_close(p);
    }
}

static void test_wakes_sleepers(void **state)
{
    (void)state;
    struct kernels_pool *p;
    assert_int_equal(kernels_pool_open(3, &p), 0);
    for (int round = 0; round < 20; round++) {
        /* Longer than workers spin: this is what an idle process looks like. */
        struct timespec idle = {.tv_nsec = 2000000};
        nanosleep(&idle, NULL);
        struct job j = {.threads = 3, .n = 500};
        kernels_pool_run(p, j.n, 1, do_items, &j);
        for (int i = 0; i < j.n; i++)
            assert_int_equal(j.done[i], 1);
    }
    kernels_pool_close(p);
}

struct meeting {
    atomic_int arrived;
};

/* Two items that wait for each other: only two workers can do them. */
static void meet(void *arg, int worker, int first, int end)
{
    (void)worker;
    struct meeting *m = arg;
    atomic_fetch_add(&m->arrived, end - first);
    while (atomic_load(&m->arrived) < 2)
        ;
}

static void test_workers_share(void **state)
{
    (void)state;
    struct kernels_pool *p;
    assert_int_equal(kernels_pool_open(2, &p), 0);
    for (int round = 0; round < 20; round++) {
        struct meeting m = {0};
        kernels_pool_run(p, 2, 1, meet, &m);
        assert_int_equal(atomic_load(&m.arrived), 2);
    }
    kernels_pool_close(p);
}

static void test_open_refuses(void **state)
{
    (void)state;
    struct kernels_pool *p = NULL;
    assert_int_equal(kernels_pool_open(0, &p), -EINVAL);
    assert_int_equal(kernels_pool_open(-1, &p), -EINVAL);
    assert_int_equal(kernels_pool_open(1025, &p), -EINVAL);
    assert_null(p);
    kernels_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_wakes_sleepers),
        cmocka_unit_test(test_workers_share),
        cmocka_unit_test(test_open_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

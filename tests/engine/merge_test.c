/* merge_test.c - the heap of merges against the obvious way: join the best pair, over and over. */
#include "engine/text/merge_internal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VALUES = 12, LONGEST = 64 };

/* A table of random merges: joining a and b gives results[rank], where rank is table[a][b]. */
struct table {
    uint32_t rank[VALUES][VALUES];
    uint32_t results[VALUES * VALUES];
};

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static void make_table(struct table *t, uint64_t *seed)
{
    uint32_t n = 0;
    for (int a = 0; a < VALUES; a++)
        for (int b = 0; b < VALUES; b++)
            t->rank[a][b] = MERGE_NONE;
    for (int i = 0; i < 40; i++) {
        uint32_t a = next_random(seed) % VALUES, b = next_random(seed) % VALUES;
        if (t->rank[a][b] != MERGE_NONE)
            continue;
        t->results[n] = next_random(seed) % VALUES;
        t->rank[a][b] = n++;
    }
}

static uint32_t table_rank(const void *arg, const struct merge_symbol *symbols, uint32_t left, uint32_t right)
{
    const struct table *t = arg;
    return t->rank[symbols[left].value][symbols[right].value];
}

static size_t join_plainly(const struct table *t, uint32_t *values, size_t n)
{
    for (;;) {
        uint32_t best = MERGE_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (t->rank[values[i]][values[i + 1]] < best) {
                best = t->rank[values[i]][values[i + 1]];
                at = i;
            }
        if (best == MERGE_NONE)
            return n;
        values[at] = t->results[best];
        memmove(values + at + 1, values + at + 2, (n - at - 2) * sizeof *values);
        n--;
    }
}

static void test_random(void **state)
{
    (void)state;
    struct merge m = {0};
    uint64_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        struct table t;
        uint32_t values[LONGEST];
        size_t n = 1 + next_random(&seed) % LONGEST;
        make_table(&t, &seed);
        assert_int_equal(merge_reserve(&m, n), 0);
        for (size_t i = 0; i < n; i++)
            m.symbols[i].value = values[i] = next_random(&seed) % (round % 2 ? 2 : VALUES);
        merge_run(&m, n, table_rank, &t, t.results);
        size_t wanted = join_plainly(&t, values, n), got = 0;
        for (uint32_t i = 0; i != MERGE_NONE; i = m.symbols[i].next, got++) {
            assert_in_range(got, 0, wanted - 1);
            assert_int_equal(m.symbols[i].value, values[got]);
        }
        assert_int_equal(got, wanted);
    }
    merge_free(&m);
}

static void test_keeps_left_value(void **state)
{
    (void)state;
    struct merge m = {0};
    struct table t;
    memset(&t, 0, sizeof t); /* everything joins */
    assert_int_equal(merge_reserve(&m, 1000), 0);
    for (uint32_t i = 0; i < 1000; i++)
        m.symbols[i].value = i % VALUES;
    merge_run(&m, 1000, table_rank, &t, NULL);
    assert_int_equal(m.symbols[0].value, 0);
    assert_int_equal(m.symbols[0].next, MERGE_NONE);
    merge_run(&m, 1, table_rank, &t, NULL);
    assert_int_equal(m.symbols[0].next, MERGE_NONE);
    merge_free(&m);
    merge_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_keeps_left_value)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

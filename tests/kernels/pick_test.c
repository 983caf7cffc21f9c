/* pick_test.c - the token that is picked, in every instruction set, against the definition read literally: all logits
 * put in order, weights added one after the other. */
#include "tests/kernels/rows_support.h"

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

enum rows { ROW_NORMAL, ROW_STEPS, ROW_FLAT, ROW_EQUAL, ROW_FEW_FINITE, ROW_RISING, ROW_FAR, ROW_PEAK, ROW_STYLES };

static void fill(enum rows style, uint64_t *state, float *x, int n)
{
    rows_fill(state, x, (size_t)n, 3.0f);
    for (int i = 0; i < n; i++) {
        switch (style) {
        case ROW_STEPS: /* many are equal, zeros of both signs too */
            x[i] = roundf(x[i] * 2) / 2;
            break;
        case ROW_FLAT:
            x[i] *= 1e-3f;
            break;
        case ROW_EQUAL:
            x[i] = -1.25f;
            break;
        case ROW_FEW_FINITE:
            x[i] = rows_random(state) % 50 ? -INFINITY : x[i];
            break;
        case ROW_RISING:
            x[i] = (float)i * 0.01f;
            break;
        case ROW_FAR:
            x[i] *= 1e38f / 3;
            break;
        case ROW_PEAK:
            x[i] = i == n / 2 ? 90.0f : x[i];
            break;
        default:
            break;
        }
    }
    x[(uint32_t)n * 2 / 3] = 1.0f; /* something is finite */
}

/* ---- the definition ---- */

static const float *sort_by;

static int in_order(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    float x = sort_by[i], y = sort_by[j];
    return x > y ? -1 : x < y ? 1 : (i > j) - (i < j);
}

static int32_t reference(const struct kernels_rows_set *set, const struct kernels_pick *p)
{
    int n = p->n, *order = rows_calloc((size_t)n, sizeof *order);
    float *x = rows_calloc((size_t)n, sizeof *x), max = -INFINITY;
    uint64_t *weight = rows_calloc((size_t)n, sizeof *weight), total = 0, kept = 0, sum = 0;
    memcpy(x, p->logits, (size_t)n * sizeof *x);
    for (int i = 0; i < p->n_changed; i++)
        x[p->changed[i].id] = p->changed[i].value;
    bool nan = false;
    for (int i = 0; i < n; i++) {
        nan |= x[i] != x[i];
        max = x[i] > max ? x[i] : max;
        order[i] = i;
    }
    int32_t id = -1;
    if (nan || !isfinite(max))
        goto done;
    int limit = p->temperature == 0 ? 1 : p->top_k > 0 && p->top_k < n ? p->top_k : n, left = 0;
    if (limit < n || p->top_p < 1 || p->min_p > 0) {
        sort_by = x;
        qsort(order, (size_t)n, sizeof *order, in_order);
    }
    float scale = p->temperature > 0 && 1 / p->temperature <= FLT_MAX ? 1 / p->temperature : FLT_MAX;
    for (int i = 0; i < limit; i++)
        total += weight[i] = set->mass(&x[order[i]], 1, max, scale);
    for (; left < limit; left++) {
        float below = (x[order[left]] - max) * scale;
        if (left > 0 && ((p->top_p < 1 && (double)kept >= (double)total * (double)p->top_p) ||
                         (p->min_p > 0 && below < (float)log((double)p->min_p))))
            break;
        kept += weight[left];
    }
    uint64_t target = (uint64_t)(p->random * (double)kept);
    for (int i = 0; i < left && sum <= target; i++) {
        sum += weight[i];
        id = order[i];
    }
done:
    free(order);
    free(x);
    free(weight);
    return id;
}

/* ---- tests ---- */

static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};

static float one_of(uint64_t *state, const float *values, uint32_t n)
{
    return values[rows_random(state) % n];
}

static void random_settings(uint64_t *state, struct kernels_pick *p)
{
    static const float temperatures[] = {0, 1e-45f, FLT_MIN, 0.1f, 0.7f, 1, 2, 10};
    static const float top_ps[] = {1, 1, 1, 0, 1e-9f, 0.3f, 0.9f, 0.95f, 0.999999f, 0.99999994f};
    static const float min_ps[] = {0, 0, 0, 1e-45f, 1e-9f, 0.01f, 0.2f, 0.99f, 1};
    static const int top_ks[] = {0, 0, 0, 1, 2, 20, 40, 300, 5000, INT32_MAX};
    p->temperature = one_of(state, temperatures, 8);
    p->top_p = one_of(state, top_ps, 10);
    p->min_p = one_of(state, min_ps, 9);
    p->top_k = top_ks[rows_random(state) % 10];
    p->random = rows_random(state) % 8 == 0   ? 0
                : rows_random(state) % 8 == 0 ? 0x1.fffffffffffffp-1
                                              : (double)rows_random(state) * 0x1p-32;
}

static void check(const char *what, struct kernels *const *k, int n_k, const struct kernels_rows_set *portable,
                  struct kernels_pick *picks, int n)
{
    int32_t *wanted = rows_calloc((size_t)n, sizeof *wanted);
    for (int i = 0; i < n; i++)
        wanted[i] = reference(portable, &picks[i]);
    for (int b = 0; b < n_k; b++) {
        if (!k[b])
            continue;
        for (int i = 0; i < n; i++)
            picks[i].id = -7;
        kernels_ops(k[b])->pick(k[b], picks, n);
        for (int i = 0; i < n; i++)
            if (picks[i].id != wanted[i])
                fail_msg("%s, %s, n %d: temperature %g, top-k %d, top-p %g, min-p %g, random %a: token %d, not %d",
                         what, kernels_backend(k[b]), picks[i].n, (double)picks[i].temperature, picks[i].top_k,
                         (double)picks[i].top_p, (double)picks[i].min_p, picks[i].random, picks[i].id, wanted[i]);
    }
    free(wanted);
}

static void test_against_the_definition(void **state)
{
    (void)state;
    enum { PICKS = 40, MOST = 30011 };
    static const int sizes[] = {1, 2, 15, 16, 17, 127, 128, 129, 300, 1000, 4097, 30011};
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    rows_sets(sets, names);
    struct kernels *k[4] = {rows_open(backends[0], 1), rows_open(backends[1], 1), rows_open(backends[2], 1),
                            rows_open(backends[2], 3)};
    for (int b = 0; b < 4; b++)
        if (k[b])
            assert_int_equal(kernels_ops(k[b])->reserve_pick(k[b], MOST), 0);
    uint64_t random = 77;
    float *x = rows_calloc(MOST, sizeof *x);
    for (int style = 0; style < ROW_STYLES; style++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct kernels_pick picks[PICKS];
            struct kernels_logit changed[2];
            fill((enum rows)style, &random, x, sizes[s]);
            for (int i = 0; i < 2; i++)
                changed[i] = (struct kernels_logit){i * (sizes[s] - 1), i ? -4.0f : 2.0f};
            for (int i = 0; i < PICKS; i++) {
                picks[i] = (struct kernels_pick){.logits = x, .n = sizes[s], .changed = changed};
                picks[i].n_changed = sizes[s] > 1 && i % 3 == 0 ? 2 : 0;
                random_settings(&random, &picks[i]);
            }
            char what[32];
            snprintf(what, sizeof what, "style %d", style);
            check(what, k, 4, sets[0], picks, PICKS);
        }
    free(x);
    for (int b = 0; b < 4; b++)
        kernels_close(k[b]);
}

static void test_what_is_not_finite(void **state)
{
    (void)state;
    enum { N = 700 };
    static float x[N];
    for (size_t b = 0; b < 3; b++) {
        struct kernels *k = rows_open(backends[b], 1);
        if (!k)
            continue;
        assert_int_equal(kernels_ops(k)->reserve_pick(k, N), 0);
        for (int at = 0; at < N; at++)
            for (int kind = 0; kind < 2; kind++) {
                uint64_t random = 5;
                rows_fill(&random, x, N, 1.0f);
                x[at] = kind ? INFINITY : NAN;
                struct kernels_pick p = {.logits = x, .n = N, .temperature = 1, .top_k = at % 3 * 20, .top_p = 0.9f};
                kernels_ops(k)->pick(k, &p, 1);
                assert_int_equal(p.id, -1);
            }
        for (int i = 0; i < N; i++)
            x[i] = -INFINITY;
        struct kernels_pick p = {.logits = x, .n = N, .temperature = 0, .top_p = 1};
        kernels_ops(k)->pick(k, &p, 1);
        assert_int_equal(p.id, -1);
        kernels_close(k);
    }
}

/* Sums of weights are the same in every set and however a row is cut. */
static void test_mass(void **state)
{
    (void)state;
    enum { N = 1003 };
    static float x[N];
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int n_sets = rows_sets(sets, names);
    uint64_t random = 9;
    rows_fill(&random, x, N, 20.0f);
    float max = -INFINITY;
    for (int i = 0; i < N; i++)
        max = x[i] > max ? x[i] : max;
    static const float scales[] = {0.1f, 1, 1.0f / 0.7f, 1e30f, FLT_MAX};
    for (int s = 0; s < 5; s++)
        for (int cut = 0; cut < N; cut += 61)
            for (int i = 0; i < n_sets; i++) {
                uint64_t whole = sets[0]->mass(x, N, max, scales[s]);
                uint64_t parts = sets[i]->mass(x, (size_t)cut, max, scales[s]) +
                                 sets[i]->mass(x + cut, (size_t)(N - cut), max, scales[s]);
                assert_true(whole >= KERNELS_WEIGHT_ONE && parts == whole);
                assert_true(sets[i]->mass(&max, 1, max, scales[s]) == KERNELS_WEIGHT_ONE);
            }
    double exact = 0;
    for (int i = 0; i < N; i++)
        exact += exp((double)x[i] - (double)max);
    double got = (double)sets[0]->mass(x, N, max, 1) / (double)KERNELS_WEIGHT_ONE;
    rows_assert_error("sum of weights", fabs(got - exact) / exact, 3e-6);
}

static void test_reserve(void **state)
{
    (void)state;
    struct kernels *k = rows_open("cpu-portable", 2);
    const struct kernels_ops *ops = kernels_ops(k);
    assert_int_equal(ops->reserve_pick(k, 0), -EINVAL);
    assert_int_equal(ops->reserve_pick(k, KERNELS_MAX_LOGITS + 1), -EINVAL);
    assert_int_equal(ops->reserve_pick(k, 10), 0);
    assert_int_equal(ops->reserve_pick(k, 1000), 0);
    assert_int_equal(ops->reserve_pick(k, 7), 0);
    ops->pick(k, NULL, 0);
    kernels_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_definition),
        cmocka_unit_test(test_what_is_not_finite),
        cmocka_unit_test(test_mass),
        cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

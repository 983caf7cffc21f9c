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

/* The row as biases, penalties and the mask leave it. */
static float *changed_row(const struct kernels_pick *p, const float *logits, int n)
{
    float *x = rows_calloc((size_t)n, sizeof *x);
    memcpy(x, logits, (size_t)n * sizeof *x);
    for (int i = 0; i < p->n_seen; i++) {
        float *v = &x[p->seen[i].id];
        *v += p->seen[i].bias;
        if (p->seen[i].count == 0)
            continue;
        *v = *v > 0 ? *v / p->repetition : *v * p->repetition;
        *v -= p->presence + p->frequency * (float)p->seen[i].count;
    }
    for (int i = 0; p->mask && i < n; i++)
        if (!(p->mask[i / 32] >> i % 32 & 1))
            x[i] = -INFINITY;
    return x;
}

static int *ordered(const float *x, int n)
{
    int *order = rows_calloc((size_t)n, sizeof *order);
    for (int i = 0; i < n; i++)
        order[i] = i;
    sort_by = x;
    qsort(order, (size_t)n, sizeof *order, in_order);
    return order;
}

static int32_t reference(const struct kernels_rows_set *set, const struct kernels_pick *p, const float *logits, int n)
{
    float *x = changed_row(p, logits, n), max = -INFINITY;
    int *order = NULL;
    uint64_t *weight = rows_calloc((size_t)n, sizeof *weight), total = 0, kept = 0, sum = 0;
    bool nan = false;
    for (int i = 0; i < n; i++) {
        nan |= logits[i] != logits[i] || logits[i] == INFINITY;
        max = x[i] > max ? x[i] : max;
    }
    int32_t id = nan || !p->mask ? KERNELS_PICK_NAN : KERNELS_PICK_NONE;
    if (nan || !isfinite(max))
        goto done;
    int limit = p->temperature == 0 ? 1 : p->top_k > 0 && p->top_k < n ? p->top_k : n, left = 0;
    order = ordered(x, n);
    if (limit == n && !(p->top_p < 1) && !(p->min_p > 0)) /* without a cut, in the order of ids */
        for (int i = 0; i < n; i++)
            order[i] = i;
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

/* The odds of the row's own logits, from the definition. */
static void check_odds(const struct kernels_rows_set *set, const struct kernels_pick *p, const float *x, int n,
                       const struct kernels_picked *got)
{
    int *order = ordered(x, n);
    uint64_t mass = 0;
    for (int i = 0; i < n; i++)
        mass += set->mass(&x[i], 1, x[order[0]], 1.0f);
    assert_true(got->max == x[order[0]] && got->logit == x[got->id] && got->mass == mass);
    for (int i = 0; i < p->n_top; i++) {
        assert_int_equal(got->top[i], i < n ? order[i] : -1);
        assert_true(i >= n || got->top_logits[i] == x[order[i]]);
    }
    free(order);
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

/* Rows of n logits at x + row * n. */
static void check(const char *what, struct kernels *const *k, int n_k, const struct kernels_rows_set *portable,
                  const struct kernels_pick *picks, int n_picks, const float *x, int n)
{
    int32_t *wanted = rows_calloc((size_t)n_picks, sizeof *wanted);
    struct kernels_picked *got = rows_calloc((size_t)n_picks, sizeof *got);
    for (int i = 0; i < n_picks; i++)
        wanted[i] = reference(portable, &picks[i], x + picks[i].row * n, n);
    for (int b = 0; b < n_k; b++) {
        if (!k[b])
            continue;
        const struct kernels_batch batch = {.picks = picks, .n_picks = n_picks};
        memset(got, 0x55, (size_t)n_picks * sizeof *got);
        kernels_ops(k[b])->begin(k[b], &batch);
        kernels_ops(k[b])->pick(k[b], x, n, got);
        kernels_ops(k[b])->end(k[b]);
        for (int i = 0; i < n_picks; i++) {
            if (got[i].id != wanted[i])
                fail_msg("%s, %s, n %d: temperature %g, top-k %d, top-p %g, min-p %g, random %a: token %d, not %d",
                         what, kernels_backend(k[b]), n, (double)picks[i].temperature, picks[i].top_k,
                         (double)picks[i].top_p, (double)picks[i].min_p, picks[i].random, got[i].id, wanted[i]);
            if (picks[i].odds && got[i].id >= 0)
                check_odds(portable, &picks[i], x + picks[i].row * n, n, &got[i]);
        }
    }
    free(wanted);
    free(got);
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
            assert_int_equal(kernels_pick_reserve(k[b], MOST), 0);
    uint64_t random = 77;
    float *x = rows_calloc(2 * MOST, sizeof *x);
    uint32_t *masks = rows_calloc(3 * (MOST / 32 + 1), sizeof *masks);
    for (int style = 0; style < ROW_STYLES; style++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct kernels_pick picks[PICKS];
            int n = sizes[s], words = n / 32 + 1;
            const struct kernels_seen seen[] = {{0, 1, 0.75f}, {n - 1, 3, 0}, {n / 2, 0, 2.5f}};
            fill((enum rows)style, &random, x, n);
            fill((enum rows)style, &random, x + n, n);
            for (int i = 0; i < words; i++) { /* a half, a few, none */
                masks[i] = rows_random(&random);
                masks[words + i] = i % 7 ? 0 : 1u << i % 32;
                masks[2 * words + i] = 0;
            }
            for (int i = 0; i < PICKS; i++) {
                picks[i] = (struct kernels_pick){.row = i % 2, .odds = i % 5 == 0, .n_top = i % 5 ? 0 : i};
                if (n > 2 && i % 3 == 0) {
                    picks[i].seen = seen;
                    picks[i].n_seen = 3;
                    picks[i].repetition = i % 2 ? 1.5f : 0.8f;
                    picks[i].presence = i % 4 ? 0.5f : -0.5f;
                    picks[i].frequency = 0.25f;
                }
                if (i % 4 == 3)
                    picks[i].mask = masks + i / 4 % 3 * words;
                picks[i].n_top = picks[i].n_top < KERNELS_MAX_TOP ? picks[i].n_top : KERNELS_MAX_TOP;
                random_settings(&random, &picks[i]);
            }
            char what[32];
            snprintf(what, sizeof what, "style %d", style);
            check(what, k, 4, sets[0], picks, PICKS, x, n);
        }
    free(masks);
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
        assert_int_equal(kernels_pick_reserve(k, N), 0);
        static const uint32_t none[N / 32 + 1];
        struct kernels_picked got;
        for (int at = 0; at < N; at++)
            for (int kind = 0; kind < 3; kind++) {
                uint64_t random = 5;
                rows_fill(&random, x, N, 1.0f);
                x[at] = kind ? INFINITY : NAN;
                /* A mask does not hide it. */
                const struct kernels_pick p = {
                    .mask = kind == 2 ? none : NULL, .temperature = 1, .top_k = at % 3 * 20, .top_p = 0.9f};
                kernels_op_pick(k, x, N, &p, 1, &got);
                assert_int_equal(got.id, KERNELS_PICK_NAN);
            }
        for (int i = 0; i < N; i++)
            x[i] = -INFINITY;
        struct kernels_pick p = {.temperature = 0, .top_p = 1};
        kernels_op_pick(k, x, N, &p, 1, &got);
        assert_int_equal(got.id, KERNELS_PICK_NAN);
        p.mask = none;
        kernels_op_pick(k, x, N, &p, 1, &got);
        assert_int_equal(got.id, KERNELS_PICK_NONE);
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
    assert_int_equal(kernels_pick_reserve(k, 0), -EINVAL);
    assert_int_equal(kernels_pick_reserve(k, KERNELS_MAX_LOGITS + 1), -EINVAL);
    assert_int_equal(kernels_pick_reserve(k, 10), 0);
    assert_int_equal(kernels_pick_reserve(k, 1000), 0);
    assert_int_equal(kernels_pick_reserve(k, 7), 0);
    kernels_op_pick(k, NULL, 10, NULL, 0, NULL);
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

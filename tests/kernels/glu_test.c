/* glu_test.c - activations against float64 over the whole range of f32, bit for bit between sets; addition. */
#include "tests/kernels/rows_support.h"

/* Relative to 1 + |y|. Measured: SiLU 1.2e-7, GELU 1e-7. */
#define TOLERANCE 1e-6

static double reference(enum kernels_glu_kind kind, double x, double up)
{
    if (kind == KERNELS_SILU)
        return x / (1 + exp(-x)) * up;
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x))) * up;
}

static void check_values(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n)
{
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int count = rows_sets(sets, names);
    float *first = rows_calloc(n + 1, sizeof(float)), *y = rows_calloc(n + 1, sizeof(float));
    double *want = rows_calloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++)
        want[i] = reference(kind, (double)gate[i], (double)up[i]);
    sets[0]->glu(kind, gate, up, n, first);
    double error = rows_error(first, want, n);
    print_message("%s: greatest error %.2g\n", kind == KERNELS_SILU ? "silu" : "gelu", error);
    rows_assert_error("glu", error, TOLERANCE);
    for (int s = 0; s < count; s++) {
        memset(y, 0, n * sizeof(float));
        y[n] = 7.0f;
        sets[s]->glu(kind, gate, up, n, y);
        rows_assert_bits(names[s], y, first, n);
        assert_true(y[n] == 7.0f);
        memcpy(y, gate, n * sizeof(float));
        sets[s]->glu(kind, y, up, n, y);
        rows_assert_bits("in place", y, first, n);
    }
    free(first);
    free(y);
    free(want);
}

static void test_values(void **state)
{
    (void)state;
    enum { N = 40001 };
    float *gate = rows_calloc(N, sizeof(float)), *up = rows_calloc(N, sizeof(float));
    uint64_t seed = 4;
    for (int i = 0; i < N; i++) {
        gate[i] = -100.0f + (float)i * (200.0f / N);
        up[i] = rows_uniform(&seed);
    }
    for (int n = N; n > N - 17; n--) {
        if (n < N - 1 && n > N - 15)
            continue;
        check_values(KERNELS_SILU, gate, up, (size_t)n);
        check_values(KERNELS_GELU_TANH, gate, up, (size_t)n);
    }
    free(gate);
    free(up);
}

/* Any bits at all: the sets agree, and what is not a number stays so. */
static void test_any_bits(void **state)
{
    (void)state;
    enum { N = 100000 };
    float *gate = rows_calloc(N, sizeof(float)), *up = rows_calloc(N, sizeof(float));
    float *first = rows_calloc(N, sizeof(float)), *y = rows_calloc(N, sizeof(float));
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) {
        gate[i] = kernels_bits_float(rows_random(&seed));
        up[i] = 1.0f;
    }
    const float special[] = {0.0f,       -0.0f,    INFINITY,  NAN,   -NAN, 88.72283f,
                             -88.72283f, 88.7229f, -88.7229f, 87.3f, 87.4f};
    memcpy(gate, special, sizeof(special));
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int count = rows_sets(sets, names);
    for (int kind = KERNELS_SILU; kind <= KERNELS_GELU_TANH; kind++) {
        for (int s = 0; s < count; s++) {
            sets[s]->glu((enum kernels_glu_kind)kind, gate, up, N, s ? y : first);
            rows_assert_bits(names[s], s ? y : first, first, N);
        }
        for (int i = 0; i < N; i++)
            assert_true(!isnan(gate[i]) || isnan(first[i]));
        assert_true(first[0] == 0.0f && first[2] == INFINITY);
    }
    free(gate);
    free(up);
    free(first);
    free(y);
}

static void test_ops(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 15, 16, 33, 2047, 4864, 70001};
    static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
    enum { N = 70001 };
    float *gate = rows_calloc(N, sizeof(float)), *up = rows_calloc(N, sizeof(float));
    float *first = rows_calloc(N, sizeof(float)), *y = rows_calloc(N + 1, sizeof(float));
    uint64_t seed = 6;
    rows_fill(&seed, gate, N, 3.0f);
    rows_fill(&seed, up, N, 1.0f);
    kernels_rows_portable.glu(KERNELS_SILU, gate, up, N, first);
    for (int b = 0; b < 3; b++) {
        for (int threads = 1; threads <= 3; threads++) {
            struct kernels *k = rows_open(backends[b], threads);
            if (!k)
                continue;
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                size_t n = sizes[s];
                y[n] = 7.0f;
                kernels_ops(k)->glu(k, KERNELS_SILU, gate, up, n, y);
                rows_assert_bits(backends[b], y, first, n);
                memcpy(y, gate, n * sizeof(float));
                kernels_ops(k)->add(k, y, up, n);
                for (size_t i = 0; i < n; i++)
                    assert_true(y[i] == gate[i] + up[i]);
                assert_true(y[n] == 7.0f);
            }
            kernels_close(k);
        }
    }
    free(gate);
    free(up);
    free(first);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_any_bits),
                                       cmocka_unit_test(test_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

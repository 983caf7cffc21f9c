/* glu_test.c - activations against float64 over the whole range of f32, bit for bit between sets; addition. */
#include "tests/kernels/rows_support.h"

/* Relative to 1 + |y|. Measured: SiLU 1.2e-7, GELU 1e-7. */
#define TOLERANCE 1e-6

static double reference(enum kernels_glu_kind kind, double x, double up)
{
    if (kind == KERNELS_SILU)
        return x / (1 + exp(-x)) * up;
    if (kind == KERNELS_SWIGLU_CLAMPED) {
        x = fmin(x, 7);
        return x / (1 + exp(-1.702 * x)) * (fmax(fmin(up, 7), -7) + 1);
    }
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
    static const char *const kinds[] = {"silu", "gelu", "swiglu, clamped"};
    print_message("%s: greatest error %.2g\n", kinds[kind], error);
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
        up[i] = rows_uniform(&seed) * (i % 5 ? 1.0f : 20.0f);
    }
    for (int n = N; n > N - 17; n--) {
        if (n < N - 1 && n > N - 15)
            continue;
        check_values(KERNELS_SILU, gate, up, (size_t)n);
        check_values(KERNELS_GELU_TANH, gate, up, (size_t)n);
        check_values(KERNELS_SWIGLU_CLAMPED, gate, up, (size_t)n);
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
    for (int kind = KERNELS_SILU; kind <= KERNELS_SWIGLU_CLAMPED; kind++) {
        for (int s = 0; s < count; s++) {
            sets[s]->glu((enum kernels_glu_kind)kind, gate, up, N, s ? y : first);
            rows_assert_bits(names[s], s ? y : first, first, N);
        }
        for (int i = 0; i < N; i++)
            assert_true(!isnan(gate[i]) || isnan(first[i]));
        assert_true(first[0] == 0.0f && (first[2] == INFINITY || kind == KERNELS_SWIGLU_CLAMPED));
    }
    free(gate);
    free(up);
    free(first);
    free(y);
}

/* Caps, over small and large values, at every length of an odd end. */
static void test_softcap(void **state)
{
    (void)state;
    enum { N = 20001 };
    static const float caps[] = {30.0f, 50.0f, 0.3f};
    float *x = rows_calloc(N, sizeof(float)), *first = rows_calloc(N, sizeof(float));
    float *y = rows_calloc(N + 1, sizeof(float));
    double *want = rows_calloc(N, sizeof(double));
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int count = rows_sets(sets, names);
    for (size_t c = 0; c < sizeof caps / sizeof caps[0]; c++) {
        for (int i = 0; i < N; i++) {
            x[i] = (-100.0f + (float)i * (200.0f / N)) * (i % 3 ? 1.0f : 0.001f);
            want[i] = (double)caps[c] * tanh((double)x[i] / (double)caps[c]);
        }
        memcpy(first, x, N * sizeof(float));
        sets[0]->softcap(first, N, caps[c]);
        double error = rows_error(first, want, N);
        print_message("softcap %g: greatest error %.2g\n", (double)caps[c], error);
        rows_assert_error("softcap", error, TOLERANCE);
        for (int s = 0; s < count; s++)
            for (size_t n = N - 17; n <= N; n++) {
                memcpy(y, x, n * sizeof(float));
                y[n] = 7.0f;
                sets[s]->softcap(y, n, caps[c]);
                rows_assert_bits(names[s], y, first, n);
                assert_true(y[n] == 7.0f);
            }
    }
    struct kernels *k = rows_open("cpu-portable", 2);
    memcpy(y, x, N * sizeof(float));
    kernels_op_softcap(k, y, N, caps[2]);
    rows_assert_bits("the operation", y, first, N);
    kernels_close(k);
    float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
    for (int s = 0; s < count; s++) {
        float z[5];
        memcpy(z, odd, sizeof odd);
        sets[s]->softcap(z, 5, 30.0f);
        assert_true(z[0] == 30.0f && z[1] == -30.0f && isnan(z[2]) && z[3] == 0.0f && z[4] == 0.0f);
    }
    free(x);
    free(first);
    free(y);
    free(want);
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
                kernels_op_glu(k, KERNELS_SILU, gate, up, n, y);
                rows_assert_bits(backends[b], y, first, n);
                memcpy(y, gate, n * sizeof(float));
                k->set->rows->add(y, up, n);
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
                                       cmocka_unit_test(test_softcap), cmocka_unit_test(test_ops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

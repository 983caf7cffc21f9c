/* norm_test.c - RMS norms against float64, and bit for bit between sets, batches and workers. */
#include "tests/kernels/rows_support.h"

/* Relative to 1 + |y|. Measured: 1e-7. */
#define TOLERANCE 1e-6

static const int sizes[] = {1, 5, 15, 16, 17, 31, 48, 64, 80, 256, 896, 1000, 1536, 2049};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])
#define MAX_D      2049

static void reference(const float *x, int d, const float *weight, float eps, double *y)
{
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < d; i++)
        y[i] = (double)x[i] / sqrt(sum / d + (double)eps) * (double)weight[i];
}

static void test_reference(void **state)
{
    (void)state;
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int n = rows_sets(sets, names);
    float x[MAX_D], w[MAX_D], y[MAX_SETS][MAX_D + 1];
    double want[MAX_D], worst = 0;
    uint64_t seed = 1;
    for (size_t s = 0; s < SIZE_COUNT; s++) {
        int d = sizes[s];
        rows_fill(&seed, x, (size_t)d, s % 2 ? 30.0f : 0.01f);
        rows_fill(&seed, w, (size_t)d, 1.0f);
        reference(x, d, w, 1e-6f, want);
        for (int i = 0; i < n; i++) {
            y[i][d] = 7.0f;
            sets[i]->rms_norm(x, d, w, 1e-6f, y[i]);
            double error = rows_error(y[i], want, (size_t)d);
            rows_assert_error(names[i], error, TOLERANCE);
            worst = error > worst ? error : worst;
            rows_assert_bits(names[i], y[i], y[0], (size_t)d);
            assert_true(y[i][d] == 7.0f);
            memcpy(y[i], x, (size_t)d * sizeof(float));
            sets[i]->rms_norm(y[i], d, w, 1e-6f, y[i]);
            rows_assert_bits("in place", y[i], y[0], (size_t)d);
        }
    }
    print_message("rms_norm: greatest error %.2g\n", worst);
}

/* A row is its own: NaN in one stays there, and batch and workers change nothing. */
static void test_batches(void **state)
{
    (void)state;
    enum { ROWS = 67, D = 900 };
    float *x = rows_calloc(ROWS * D, sizeof(float)), *y = rows_calloc(ROWS * D, sizeof(float));
    float *want = rows_calloc(ROWS * D, sizeof(float)), w[D];
    uint64_t seed = 2;
    rows_fill(&seed, x, ROWS * D, 1.0f);
    rows_fill(&seed, w, D, 1.0f);
    x[5 * D + 3] = NAN;
    for (int r = 0; r < ROWS; r++)
        kernels_rows_portable.rms_norm(x + r * D, D, w, 1e-5f, want + r * D);
    assert_true(isnan(want[5 * D]) && !isnan(want[4 * D]) && !isnan(want[6 * D]));
    static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
    for (int b = 0; b < 3; b++) {
        for (int threads = 1; threads <= 3; threads++) {
            struct kernels *k = rows_open(backends[b], threads);
            if (!k)
                continue;
            kernels_op_rms_norm(k, x, ROWS, D, w, 1e-5f, y);
            rows_assert_bits(backends[b], y, want, ROWS * D);
            kernels_op_rms_norm(k, x + D, 1, D, w, 1e-5f, y);
            rows_assert_bits("one row", y, want + D, D);
            kernels_close(k);
        }
    }
    free(x);
    free(y);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

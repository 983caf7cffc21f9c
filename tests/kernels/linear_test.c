/* linear_test.c - products of every type: against float64, and bit for bit between instruction sets, numbers of tokens
 * and numbers of workers.
 *
 * The reference multiplies the dequantized weights with the dequantized activations in float64. What may differ is the
 * rounding of the chain of fused multiply-adds: three roundings a block of 32 values, each at most 2^-24 of the sum of
 * the magnitudes of all terms.
 */
#include "tests/kernels/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const sets[] = {"cpu-portable", "cpu-avx2", "cpu-avxvnni", "cpu-avx512"};

enum { SETS = 4, MAX_THREADS = 3 };
static struct kernels *opened[SETS][MAX_THREADS + 1]; /* NULL where the processor lacks the set */

#define MAX_N    300
#define MAX_COLS 1536

static int open_sets(void **state)
{
    (void)state;
    for (int s = 0; s < SETS; s++)
        for (int threads = 1; threads <= MAX_THREADS; threads++) {
            char err[128];
            struct kernels_opts opts = {.backend = sets[s], .threads = threads};
            if (kernels_open(&opts, &opened[s][threads], err, sizeof err) < 0) {
                print_message("skip: %s\n", err);
                continue;
            }
            if (kernels_linear_reserve(opened[s][threads], MAX_N, MAX_COLS) < 0)
                return -1;
        }
    return opened[0][1] ? 0 : -1;
}

static int close_sets(void **state)
{
    (void)state;
    for (int s = 0; s < SETS; s++)
        for (int threads = 1; threads <= MAX_THREADS; threads++)
            kernels_close(opened[s][threads]);
    return 0;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

enum inputs { INPUT_NORMAL, INPUT_EXTREME, INPUT_TINY, INPUT_LARGE, INPUT_MIXED, INPUT_STYLES };

static void fill_input(enum inputs style, int n, int cols, float *x)
{
    uint64_t state = 99 + (uint64_t)style;
    for (int i = 0; i < n * cols; i++) {
        float v = ((float)quant_random(&state) - 2147483648.0f) / 2147483648.0f;
        uint32_t pick = quant_random(&state);
        float kinds[] = {v, 0, v * 1e-44f, v * 1e-38f, v * 1e30f, 1, -1, v * 0x1p-100f};
        switch (style) {
        case INPUT_NORMAL:
            x[i] = v;
            break;
        case INPUT_EXTREME: /* all quants are 127 or -127; the first rows do not change sign */
            x[i] = (i / cols) % 3 == 0 ? 2.5f : (i / cols) % 3 == 1 ? -2.5f : v < 0 ? -2.5f : 2.5f;
            break;
        case INPUT_TINY:
            x[i] = v * 1e-36f;
            break;
        case INPUT_LARGE:
            x[i] = v * 1e20f;
            break;
        default: /* a block's kind: zero, subnormal, huge, ... */
            x[i] = kinds[((uint32_t)(i / 32) * 2654435761u >> 13) % 6];
            if (pick % 16 == 0)
                x[i] = kinds[pick / 16 % 8];
            break;
        }
    }
}

/* The values that the products see: docs/numerics.md, "Activations". */
static void round_input(enum kernels_type type, const float *x, int cols, float *d, int *q)
{
    for (int b = 0; b < cols && kernels_type_info(type)->block_values > 1; b += 32) {
        float most = 0;
        for (int i = 0; i < 32; i++)
            most = fmaxf(most, fabsf(x[b + i]));
        for (int i = 0; i < 32; i++) {
            d[b + i] = most < 0x1p-100f ? 0 : most / 127.0f;
            q[b + i] = most < 0x1p-100f ? 0 : (int)nearbyintf(x[b + i] * (127.0f / most));
            assert_in_range(q[b + i] + 127, 0, 254);
        }
    }
}

/* ---- against float64 --------------------------------------------------------------------------------------------- */

static void check_reference(enum kernels_type type, int rows, int cols, int n, const uint8_t *file, const float *x,
                            const float *y)
{
    static float weight[MAX_COLS], d[MAX_COLS];
    static double magnitude[MAX_COLS];
    static int q[MAX_COLS];
    bool quantized = kernels_type_info(type)->block_values > 1;
    for (int r = 0; r < rows; r++) {
        quant_dequantize(type, file + (size_t)r * quant_file_bytes(type, 1, cols), cols, weight, magnitude);
        for (int t = 0; t < n; t++) {
            const float *row = x + (size_t)t * (size_t)cols;
            round_input(type, row, cols, d, q);
            double sum = 0, total = 0;
            for (int k = 0; k < cols; k++) {
                double a = quantized ? (double)d[k] * q[k] : (double)row[k];
                sum += (double)weight[k] * a;
                total += magnitude[k] * fabs(a);
            }
            double each = type == KERNELS_Q2_K ? 6 : 3; /* its minima are a block of their own */
            double roundings = quantized ? each * cols / 32 + 3 : cols;
            double tolerance = total * roundings * 0x1p-24 + (cols + 8) * 0x1p-126;
            double diff = fabs((double)y[t * rows + r] - sum);
            if (total < 1e38 && !(diff <= tolerance))
                fail_msg("%s %dx%d row %d token %d: %g, expected %g +- %g", kernels_type_info(type)->name, rows, cols,
                         r, t, (double)y[t * rows + r], sum, tolerance);
        }
    }
}

/* ---- bit for bit ------------------------------------------------------------------------------------------------- */

static void linear(struct kernels *k, const struct kernels_matrix *w, const float *x, int n, const float *bias,
                   bool accumulate, float *y)
{
    struct kernels_linear job = {.w = w, .bias = bias, .y = y, .accumulate = accumulate};
    kernels_op_linear(k, x, n, w->cols, &job, 1);
}

/* NaNs are one value here: their sign and payload are not defined. */
static void assert_same_bits(const float *a, const float *b, int n, const char *set, int threads, int tokens,
                             const struct kernels_matrix *w)
{
    for (int i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s %dx%d, %s with %d workers and %d tokens: token %d row %d is %a, not %a",
                     kernels_type_info(w->type)->name, w->rows, w->cols, set, threads, tokens, i / w->rows, i % w->rows,
                     (double)a[i], (double)b[i]);
    }
}

static void check(enum kernels_type type, int rows, int cols, int n, enum quant_style weights, enum inputs inputs)
{
    static const int tokens[] = {1, 2, 3, 4, 5, 7, 8, 9, 64, 65, 300};
    uint8_t *file = malloc(quant_file_bytes(type, rows, cols));
    float *x = malloc((size_t)n * (size_t)cols * 4), *base = malloc((size_t)n * (size_t)rows * 4);
    float *y = malloc((size_t)n * (size_t)rows * 4);
    assert_true(file && x && base && y);
    quant_fill(type, rows, cols, weights, 5, file);
    fill_input(inputs, n, cols, x);
    struct kernels_matrix w = quant_pack(type, rows, cols, file);
    linear(opened[0][1], &w, x, n, NULL, false, base);
    check_reference(type, rows, cols, n < 9 ? n : 9, file, x, base);
    /* How work is shared out does not depend on values: odd ones with one number of workers. */
    bool odd = weights != QUANT_RANDOM || inputs != INPUT_NORMAL;
    for (int s = 0; s < SETS; s++)
        for (int threads = odd ? MAX_THREADS : 1; threads <= MAX_THREADS; threads++)
            for (int i = 0; i < 11 && opened[s][threads]; i++) {
                if (tokens[i] > n || (s == 0 && tokens[i] > 9))
                    continue;
                memset(y, 0xff, (size_t)n * (size_t)rows * 4);
                linear(opened[s][threads], &w, x, tokens[i], NULL, false, y);
                assert_same_bits(y, base, tokens[i] * rows, sets[s], threads, tokens[i], &w);
                if (tokens[i] < n)
                    assert_true(isnan(y[tokens[i] * rows])); /* nothing past the end is written */
            }
    free((void *)w.data);
    free(file);
    free(x);
    free(base);
    free(y);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int rows[] = {1, 15, 16, 17, 33}, small[] = {1, 2, 3, 33, 36}, large[] = {1, 2, 3, 5, 6};
    static const int floats[] = {1, 2, 7, 100, 513};
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
        int values = kernels_type_info((enum kernels_type)type)->block_values;
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) {
                int cols = values == 1 ? floats[j] : values * (values == 32 ? small[j] : large[j]);
                check((enum kernels_type)type, rows[i], cols, i == j ? 65 : 9, QUANT_RANDOM, INPUT_NORMAL);
            }
        check((enum kernels_type)type, 17, 256, 300, QUANT_RANDOM, INPUT_NORMAL);
        check((enum kernels_type)type, 417, 768, 65, QUANT_RANDOM, INPUT_NORMAL); /* groups enough to go by twos */
    }
    check(KERNELS_Q4_K, 417, 768, 300, QUANT_RANDOM, INPUT_NORMAL);
}

/* Float weights are added in the order that docs/numerics.md says; that of quantized ones is compared where a plain
 * loop has it already (tests/cuda_host/products_test.cc). */
static void test_order_of_floats(void **state)
{
    (void)state;
    enum { COLS = 513, TOKENS = 9 };
    static float w[COLS], x[TOKENS * COLS], y[TOKENS];
    quant_fill(KERNELS_F32, 1, COLS, QUANT_RANDOM, 3, (uint8_t *)w);
    fill_input(INPUT_NORMAL, TOKENS, COLS, x);
    struct kernels_matrix packed = quant_pack(KERNELS_F32, 1, COLS, (const uint8_t *)w);
    for (int s = 0; s < SETS; s++) {
        if (!opened[s][1])
            continue;
        linear(opened[s][1], &packed, x, TOKENS, NULL, false, y);
        for (int t = 0; t < TOKENS; t++) {
            float sum = 0, piece = 0;
            for (int k = 0; k < COLS; k++) {
                piece = fmaf(w[k], x[t * COLS + k], piece);
                if (k % 128 == 127 || k == COLS - 1) {
                    sum += piece;
                    piece = 0;
                }
            }
            assert_memory_equal(&y[t], &sum, sizeof sum);
        }
    }
    free((void *)packed.data);
}

static void test_extreme_values(void **state)
{
    (void)state;
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++)
        for (int style = 0; style < QUANT_STYLES; style++)
            for (int input = 0; input < INPUT_STYLES; input++)
                check((enum kernels_type)type, 17, 512, 9, (enum quant_style)style, (enum inputs)input);
}

/* A row with a NaN or an infinity is NaN throughout, and no other row is. */
static void test_not_finite(void **state)
{
    (void)state;
    enum { ROWS = 17, COLS = 256, N = 13 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static float x[N * COLS], clean[N * ROWS], y[N * ROWS];
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
        uint8_t *file = malloc(quant_file_bytes((enum kernels_type)type, ROWS, COLS));
        assert_non_null(file);
        quant_fill((enum kernels_type)type, ROWS, COLS, QUANT_RANDOM, 5, file);
        struct kernels_matrix w = quant_pack((enum kernels_type)type, ROWS, COLS, file);
        for (int s = 0; s < SETS; s++)
            for (int n = 1; n <= N && opened[s][1]; n += 6) {
                fill_input(INPUT_NORMAL, n, COLS, x);
                linear(opened[s][1], &w, x, n, NULL, false, clean);
                for (int t = 0; t < n; t += 3)
                    x[t * COLS + (37 * t + 11) % COLS] = bad[t / 3 % 3];
                linear(opened[s][1], &w, x, n, NULL, false, y);
                for (int i = 0; i < n * ROWS; i++) {
                    if (i / ROWS % 3 == 0)
                        assert_false(isfinite(y[i]));
                    else
                        assert_memory_equal(&y[i], &clean[i], 4);
                }
            }
        free((void *)w.data);
        free(file);
    }
}

static void test_bias_and_accumulate(void **state)
{
    (void)state;
    enum { ROWS = 33, COLS = 256, N = 11 };
    static float x[N * COLS], plain[N * ROWS], y[N * ROWS], old[N * ROWS], bias[ROWS];
    static uint8_t file[ROWS * COLS * 4];
    fill_input(INPUT_NORMAL, N, COLS, x);
    fill_input(INPUT_NORMAL, N, ROWS, old);
    fill_input(INPUT_NORMAL, 1, ROWS, bias);
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
        quant_fill((enum kernels_type)type, ROWS, COLS, QUANT_RANDOM, 3, file);
        struct kernels_matrix w = quant_pack((enum kernels_type)type, ROWS, COLS, file);
        for (int s = 0; s < SETS && opened[s][2]; s++)
            for (int n = 1; n <= N; n += 10) {
                linear(opened[s][2], &w, x, n, NULL, false, plain);
                linear(opened[s][2], &w, x, n, bias, false, y);
                for (int i = 0; i < n * ROWS; i++)
                    assert_true(y[i] == plain[i] + bias[i % ROWS]);
                memcpy(y, old, sizeof y);
                linear(opened[s][2], &w, x, n, bias, true, y);
                for (int i = 0; i < n * ROWS; i++) {
                    volatile float biased = plain[i] + bias[i % ROWS];
                    assert_true(y[i] == old[i] + biased);
                }
            }
        free((void *)w.data);
    }
}

/* One call with several matrices gives what one call each gives. */
static void test_several_matrices(void **state)
{
    (void)state;
    enum { COLS = 512, N = 70, JOBS = KERNELS_TYPE_COUNT };
    static float x[N * COLS];
    struct kernels_matrix w[JOBS];
    float *y[JOBS], *alone = malloc(N * (4 * JOBS + 1) * sizeof(float));
    assert_non_null(alone);
    fill_input(INPUT_NORMAL, N, COLS, x);
    for (int i = 0; i < JOBS; i++) {
        int rows = 4 * i + 1;
        uint8_t *file = malloc(quant_file_bytes((enum kernels_type)i, rows, COLS));
        y[i] = malloc((size_t)N * (size_t)rows * 4);
        assert_true(file && y[i]);
        quant_fill((enum kernels_type)i, rows, COLS, QUANT_RANDOM, 21, file);
        w[i] = quant_pack((enum kernels_type)i, rows, COLS, file);
        free(file);
    }
    for (int s = 0; s < SETS; s++)
        for (int threads = 1; threads <= MAX_THREADS; threads++)
            for (int n = 1; n <= N && opened[s][threads]; n += 23) {
                struct kernels_linear jobs[JOBS];
                for (int i = 0; i < JOBS; i++)
                    jobs[i] = (struct kernels_linear){.w = &w[i], .y = y[i]};
                kernels_op_linear(opened[s][threads], x, n, COLS, jobs, JOBS);
                for (int i = 0; i < JOBS; i++) {
                    linear(opened[s][threads], &w[i], x, n, NULL, false, alone);
                    assert_same_bits(y[i], alone, n * w[i].rows, sets[s], threads, n, &w[i]);
                }
            }
    for (int i = 0; i < JOBS; i++) {
        free(y[i]);
        free((void *)w[i].data);
    }
    free(alone);
}

/* A gated product is that of two matrices, activated, whatever their types and of every number of tokens; what it and
 * norm quantize on the way is what the floats give, and what a product takes. */
static void test_gated(void **state)
{
    (void)state;
    enum { MOST = 417, COLS = 768, N = 65 };
    static const enum kernels_type types[][2] = {{KERNELS_Q4_K, KERNELS_Q4_K}, {KERNELS_Q8_0, KERNELS_Q5_0},
                                                 {KERNELS_Q2_K, KERNELS_Q2_K}, {KERNELS_BF16, KERNELS_BF16},
                                                 {KERNELS_F32, KERNELS_Q6_K},  {KERNELS_IQ4_XS, KERNELS_IQ4_XS}};
    static const int tokens[] = {1, 2, 8, 9, 64, 65};
    static float x[N * COLS], ones[COLS], normed[N * COLS], gate[N * MOST], up[N * MOST], y[(N + 1) * MOST];
    static uint8_t file[MOST * COLS * 4], in_quants[N * COLS * 2], quants[N * MOST * 2], want[N * MOST * 2];
    fill_input(INPUT_NORMAL, N, COLS, x);
    for (int i = 0; i < COLS; i++)
        ones[i] = 1;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        int rows = i % 2 ? MOST : MOST - 1; /* 416 is blocks of 32 */
        struct kernels_matrix w[2];
        for (int j = 0; j < 2; j++) {
            quant_fill(types[i][j], rows, COLS, QUANT_RANDOM, 21 + (unsigned)j, file);
            w[j] = quant_pack(types[i][j], rows, COLS, file);
        }
        kernels_op_rms_norm(opened[0][1], x, N, COLS, ones, 1e-6f, normed);
        linear(opened[0][1], &w[0], normed, N, NULL, false, gate);
        linear(opened[0][1], &w[1], normed, N, NULL, false, up);
        enum kernels_glu_kind kind = i % 4 < 2 ? KERNELS_GELU_TANH : KERNELS_SILU;
        kernels_op_glu(opened[0][1], kind, gate, up, (size_t)N * (size_t)rows, gate);
        for (int s = 0; s < SETS; s++)
            for (int threads = 1; threads <= MAX_THREADS; threads++)
                for (int t = 0; t < 6 && opened[s][threads]; t++) {
                    struct kernels *k = opened[s][threads];
                    int n = tokens[t];
                    struct kernels_acts in = {normed, in_quants, COLS, KERNELS_FLOATS | KERNELS_QUANTS};
                    struct kernels_acts out = {y, NULL, rows, KERNELS_FLOATS | KERNELS_QUANTS};
                    memset(y, 0xff, sizeof y);
                    kernels_op_norm(k, x, n, ones, 1e-6f, &in);
                    kernels_op_gated(k, &in, n, &w[0], &w[1], kind, &out);
                    assert_same_bits(y, gate, n * rows, sets[s], threads, n, &w[0]);
                    assert_true(isnan(y[n * rows]));
                    if (rows % 32)
                        continue;
                    out.q = quants;
                    memset(y, 0xff, sizeof y);
                    kernels_op_gated(k, &in, n, &w[0], &w[1], kind, &out);
                    assert_same_bits(y, gate, n * rows, sets[s], threads, n, &w[0]);
                    kernels_op_quantize(k, gate, n, rows, want);
                    assert_memory_equal(quants, want, kernels_linear_bytes(n, rows));
                    out.forms = KERNELS_QUANTS;
                    memset(quants, 0, sizeof quants);
                    memset(y, 0xff, sizeof y);
                    kernels_op_gated(k, &in, n, &w[0], &w[1], kind, &out);
                    assert_memory_equal(quants, want, kernels_linear_bytes(n, rows));
                    assert_true(isnan(y[0]));
                }
        free((void *)w[0].data);
        free((void *)w[1].data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_order_of_floats),
        cmocka_unit_test(test_extreme_values),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bias_and_accumulate),
        cmocka_unit_test(test_several_matrices),
        cmocka_unit_test(test_gated),
    };
    return cmocka_run_group_tests(tests, open_sets, close_sets);
}

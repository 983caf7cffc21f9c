/* rope_test.c - rotary positions of both kinds against float64, and bit for bit between sets and workers. */
#include "tests/kernels/rows_support.h"

/* Relative to 1 + |y|. Measured: 1.4e-7. */
#define TOLERANCE 5e-7

enum { MAX_VALUES = 64 * 1024 };

static const struct {
    int n, heads, head_dim, rot;
} shapes[] = {{1, 1, 2, 2},     {3, 2, 64, 64},   {2, 3, 80, 80}, {2, 2, 96, 48},
              {1, 2, 128, 128}, {5, 1, 256, 256}, {2, 3, 90, 74}, {130, 4, 64, 20}};

static void reference(const float *x, int heads, int head_dim, int rot, enum kernels_rope_kind kind, const float *table,
                      double *y)
{
    for (int h = 0; h < heads; h++) {
        for (int i = 0; i < head_dim; i++)
            y[h * head_dim + i] = (double)x[h * head_dim + i];
        for (int i = 0; i < rot / 2; i++) {
            int a = h * head_dim + (kind == KERNELS_ROPE_HALVES ? i : 2 * i);
            int b = kind == KERNELS_ROPE_HALVES ? a + rot / 2 : a + 1;
            double c = (double)table[2 * i], s = (double)table[2 * i + 1];
            y[a] = (double)x[a] * c - (double)x[b] * s;
            y[b] = (double)x[a] * s + (double)x[b] * c;
        }
    }
}

/* Queries alone: their keys have no page. */
static void rotate(struct kernels *k, float *x, int n, int heads, int dim, int rot, enum kernels_rope_kind kind,
                   const float *table)
{
    const struct kernels_run run = rows_run(0, n, 0, (struct kernels_pages){NULL, 0});
    const struct kernels_batch batch = {.rows = n, .runs = &run, .n_runs = 1};
    float *key = rows_calloc((size_t)(n * dim), sizeof(float));
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->attn_in(k, &(struct kernels_attn_in){.q = x,
                                                         .key = key,
                                                         .value = key,
                                                         .heads = heads,
                                                         .q_rope = table,
                                                         .rot = rot,
                                                         .kind = kind,
                                                         .kv = {.kv_heads = 1, .head_dim = dim}});
    kernels_ops(k)->end(k);
    free(key);
}

static void check_shape(size_t shape, enum kernels_rope_kind kind, uint64_t *seed, double *worst)
{
    int n = shapes[shape].n, heads = shapes[shape].heads, dim = shapes[shape].head_dim, rot = shapes[shape].rot;
    size_t row = (size_t)(heads * dim), total = row * (size_t)n, table_row = (size_t)(rot / 2) * 2;
    float *x = rows_calloc(total, sizeof(float)), *y = rows_calloc(total, sizeof(float));
    float *first = rows_calloc(total, sizeof(float)), *table = rows_calloc(table_row * (size_t)n, sizeof(float));
    double *want = rows_calloc(total, sizeof(double));
    rows_fill(seed, x, total, 3.0f);
    for (size_t i = 0; i < table_row * (size_t)n / 2; i++) {
        float angle = 100.0f * rows_uniform(seed);
        table[2 * i] = cosf(angle);
        table[2 * i + 1] = sinf(angle);
    }
    for (int r = 0; r < n; r++)
        reference(x + (size_t)r * row, heads, dim, rot, kind, table + (size_t)r * table_row, want + (size_t)r * row);
    static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
    for (int b = 0; b < 3; b++) {
        for (int threads = 1; threads <= 2; threads++) {
            struct kernels *k = rows_open(backends[b], threads);
            if (!k)
                continue;
            memcpy(y, x, total * sizeof(float));
            rotate(k, y, n, heads, dim, rot, kind, table);
            kernels_close(k);
            double error = rows_error(y, want, total);
            rows_assert_error(backends[b], error, TOLERANCE);
            *worst = error > *worst ? error : *worst;
            if (b == 0 && threads == 1)
                memcpy(first, y, total * sizeof(float));
            rows_assert_bits(backends[b], y, first, total);
            for (size_t i = 0; i < total; i++)
                if ((int)(i % (size_t)dim) >= rot)
                    assert_true(y[i] == x[i]);
        }
    }
    free(x);
    free(y);
    free(first);
    free(table);
    free(want);
}

static void test_shapes(void **state)
{
    (void)state;
    uint64_t seed = 3;
    double worst = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_shape(i, KERNELS_ROPE_HALVES, &seed, &worst);
        check_shape(i, KERNELS_ROPE_PAIRS, &seed, &worst);
    }
    print_message("rope: greatest error %.2g\n", worst);
}

/* Rows of several runs at their own positions, as numerics.md says; grown where that is asked for. */
static void test_table(void **state)
{
    (void)state;
    const double inv_freq[] = {1.0, 1e-3};
    const float scale[] = {1, 2.5f, 0.5f, 3};
    const int positions[] = {0, 1, 7, 1000003};
    const struct kernels_pages none = {NULL, 0};
    const struct kernels_run runs[] = {rows_run(0, 2, 0, none), rows_run(2, 1, 7, none), rows_run(3, 1, 1000003, none)};
    const struct kernels_batch batch = {.rows = 4, .runs = runs, .n_runs = 3, .query_scale = scale};
    float table[4][2][2], scaled[4][2][2];
    struct kernels *k = rows_open("cpu-portable", 1);
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->rope_table(k, inv_freq, 4, 1.25, false, &table[0][0][0]);
    kernels_ops(k)->rope_table(k, inv_freq, 4, 1.25, true, &scaled[0][0][0]);
    kernels_ops(k)->end(k);
    kernels_close(k);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 2; i++) {
            assert_true(table[p][i][0] == (float)(cos(positions[p] * inv_freq[i]) * 1.25));
            assert_true(table[p][i][1] == (float)(sin(positions[p] * inv_freq[i]) * 1.25));
            assert_true(scaled[p][i][0] == table[p][i][0] * scale[p] && scaled[p][i][1] == table[p][i][1] * scale[p]);
        }
    assert_true(table[0][0][0] == 1.25f && table[0][0][1] == 0.0f);
}

/* The table's error against sines in extended precision: half a unit in the last place of the float, and what the
 * angle's own reduction leaves. */
static void test_table_is_near_to_sines(void **state)
{
    (void)state;
    struct kernels *k = rows_open("cpu-portable", 1);
    uint64_t seed = 5;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        /* all quarters, small angles, whole numbers of quarters, and the largest there are */
        int pos = i % 4 == 0 ? i / 4 : (int)(rows_uniform(&seed) * 8e6f + 8e6f);
        double freq = i % 4 == 1 ? M_PI_2 : i % 4 == 2 ? 8.0 : fabs((double)rows_uniform(&seed));
        const struct kernels_run run = rows_run(0, 1, pos, (struct kernels_pages){NULL, 0});
        const struct kernels_batch batch = {.rows = 1, .runs = &run, .n_runs = 1};
        float table[2];
        kernels_ops(k)->begin(k, &batch);
        kernels_ops(k)->rope_table(k, &freq, 2, 1.0, false, table);
        kernels_ops(k)->end(k);
        long double x = (long double)(pos * freq);
        double c = fabs((double)((long double)table[0] - cosl(x))), s = fabs((double)((long double)table[1] - sinl(x)));
        worst = !(c <= worst) ? c : worst;
        worst = !(s <= worst) ? s : worst;
    }
    kernels_close(k);
    if (!(worst <= 0x1p-25 + 0x1p-45))
        fail_msg("off by %a", worst);
}

/* The bits of a table are written down: no math library decides them. */
static void test_table_s_bits(void **state)
{
    (void)state;
    enum { ROWS = 4096, PAIRS = 64 };
    static float table[ROWS][PAIRS][2];
    double freq[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        freq[i] = 1.0 / (1 + i * i * 16);
    const struct kernels_run run = rows_run(0, ROWS, 131072 - ROWS, (struct kernels_pages){NULL, 0});
    const struct kernels_batch batch = {.rows = ROWS, .runs = &run, .n_runs = 1};
    struct kernels *k = rows_open("cpu-portable", 1);
    kernels_ops(k)->begin(k, &batch);
    kernels_ops(k)->rope_table(k, freq, 2 * PAIRS, 1.0, false, &table[0][0][0]);
    kernels_ops(k)->end(k);
    kernels_close(k);
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < sizeof table; i++)
        hash = (hash ^ ((const uint8_t *)table)[i]) * UINT64_C(1099511628211);
    if (hash != UINT64_C(0x4dcefd971889e1cb))
        fail_msg("0x%llx", (unsigned long long)hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_table_is_near_to_sines),
                                       cmocka_unit_test(test_table_s_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

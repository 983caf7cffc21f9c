/* mixture_test.c - mixtures of experts: against a plain sum in double precision, choices with ties and without numbers,
 * and a row's bits alone and among others. */
#include "tests/kernels/rows_support.h"

enum { EXPERTS = 7, COLS = 40, FF = 24, ROWS = 37, USED = 3 };

struct parts {
    struct kernels_matrix gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    float *values[3 * EXPERTS]; /* as they are multiplied: [rows][cols] */
    float *x, *logits, *biases;
};

static struct kernels_matrix pack(int rows, int cols, const float *values)
{
    size_t bytes = kernels_packed_bytes(KERNELS_F32, rows, cols);
    void *packed = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    assert_non_null(packed);
    for (int g = 0; g < (rows + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP; g++)
        kernels_pack_group(KERNELS_F32, rows, cols, g, values, packed);
    return (struct kernels_matrix){KERNELS_F32, rows, cols, packed};
}

static struct parts parts_new(void)
{
    struct parts p;
    uint64_t seed = 11;
    for (int e = 0; e < EXPERTS; e++) {
        struct kernels_matrix *to[] = {&p.gate[e], &p.up[e], &p.down[e]};
        for (int i = 0; i < 3; i++) {
            int rows = i == 2 ? COLS : FF, cols = i == 2 ? FF : COLS;
            p.values[3 * e + i] = rows_calloc((size_t)rows * (size_t)cols, sizeof(float));
            rows_fill(&seed, p.values[3 * e + i], (size_t)rows * (size_t)cols, 0.4f);
            *to[i] = pack(rows, cols, p.values[3 * e + i]);
        }
    }
    p.x = rows_calloc(ROWS * COLS, sizeof(float));
    p.logits = rows_calloc(ROWS * EXPERTS, sizeof(float));
    p.biases = rows_calloc(EXPERTS * COLS, sizeof(float));
    rows_fill(&seed, p.x, ROWS * COLS, 1.0f);
    rows_fill(&seed, p.logits, ROWS * EXPERTS, 3.0f);
    rows_fill(&seed, p.biases, EXPERTS * COLS, 1.0f);
    return p;
}

static void parts_free(struct parts *p)
{
    for (int e = 0; e < EXPERTS; e++) {
        free((void *)(uintptr_t)p->gate[e].data);
        free((void *)(uintptr_t)p->up[e].data);
        free((void *)(uintptr_t)p->down[e].data);
    }
    for (int i = 0; i < 3 * EXPERTS; i++)
        free(p->values[i]);
    free(p->x);
    free(p->logits);
    free(p->biases);
}

/* y[n][COLS] += the mixture of rows of x; ids (may be NULL) gets what was chosen. */
static void run(struct kernels *k, const struct parts *p, const float *x, const float *logits, int n, int used,
                bool biased, float *y, int32_t *ids)
{
    size_t slots = (size_t)n * (size_t)used;
    struct kernels_mixture m = {
        .experts = EXPERTS,
        .used = used,
        .logits = logits,
        .gate = p->gate,
        .up = p->up,
        .down = p->down,
        .gate_bias = biased ? p->biases : NULL,
        .up_bias = biased ? p->biases + 1 : NULL,
        .down_bias = biased ? p->biases : NULL,
        .glu = KERNELS_SILU,
        .rows = rows_calloc(slots * COLS, sizeof(float)),
        .gate_out = rows_calloc(slots * FF, sizeof(float)),
        .up_out = rows_calloc(slots * FF, sizeof(float)),
        .out = rows_calloc(slots * COLS, sizeof(float)),
        .weights = rows_calloc(slots, sizeof(float)),
        .ids = rows_calloc(slots, sizeof(int32_t)),
        .order = rows_calloc(slots, sizeof(int32_t)),
        .place = rows_calloc(slots, sizeof(int32_t)),
    };
    kernels_ops(k)->mixture(k, x, n, COLS, &m, y);
    if (ids)
        memcpy(ids, m.ids, slots * sizeof *ids);
    free(m.rows);
    free(m.gate_out);
    free(m.up_out);
    free(m.out);
    free(m.weights);
    free(m.ids);
    free(m.order);
    free(m.place);
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

/* One row in double precision, from the definition. */
static void reference(const struct parts *p, const float *x, const float *logits, int used, bool biased, double *y)
{
    double in[COLS], weights = 0, hidden[FF];
    bool taken[EXPERTS] = {false};
    for (int i = 0; i < COLS; i++)
        in[i] = (double)x[i];
    for (int u = 0; u < used; u++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++)
            if (!taken[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        taken[best] = true;
        weights += exp((double)logits[best]);
    }
    for (int e = 0; e < EXPERTS; e++) {
        if (!taken[e])
            continue;
        for (int i = 0; i < FF; i++) {
            double bias = biased ? (double)p->biases[e * FF + i] : 0,
                   up_bias = biased ? (double)p->biases[1 + e * FF + i] : 0;
            double gate = dot(p->values[3 * e] + i * COLS, in, COLS) + bias;
            double up = dot(p->values[3 * e + 1] + i * COLS, in, COLS) + up_bias;
            hidden[i] = gate / (1 + exp(-gate)) * up;
        }
        for (int i = 0; i < COLS; i++)
            y[i] += exp((double)logits[e]) / weights *
                    (dot(p->values[3 * e + 2] + i * FF, hidden, FF) + (biased ? (double)p->biases[e * COLS + i] : 0));
    }
}

static void test_against_the_definition(void **state)
{
    (void)state;
    static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
    struct parts p = parts_new();
    float *first = rows_calloc(ROWS * COLS, sizeof(float)), *y = rows_calloc(ROWS * COLS, sizeof(float));
    double *want = rows_calloc(ROWS * COLS, sizeof(double));
    for (int used = 1; used <= EXPERTS; used += 2)
        for (int biased = 0; biased < 2; biased++) {
            for (int i = 0; i < ROWS * COLS; i++)
                want[i] = (double)p.x[i];
            for (int r = 0; r < ROWS; r++)
                reference(&p, p.x + r * COLS, p.logits + r * EXPERTS, used, biased, want + r * COLS);
            bool have_first = false;
            for (size_t b = 0; b < 3; b++)
                for (int threads = 1; threads <= 3; threads += 2) {
                    struct kernels *k = rows_open(backends[b], threads);
                    if (!k)
                        continue;
                    assert_int_equal(kernels_ops(k)->reserve(k, ROWS, COLS, 1, 16), 0);
                    memcpy(y, p.x, ROWS * COLS * sizeof(float));
                    run(k, &p, p.x, p.logits, ROWS, used, biased, y, NULL);
                    if (!have_first)
                        memcpy(first, y, ROWS * COLS * sizeof(float));
                    have_first = true;
                    rows_assert_bits(backends[b], y, first, ROWS * COLS);
                    /* A row alone has the same bits. */
                    for (int r = 0; r < ROWS; r += 5) {
                        memcpy(y, p.x + r * COLS, COLS * sizeof(float));
                        run(k, &p, p.x + r * COLS, p.logits + r * EXPERTS, 1, used, biased, y, NULL);
                        rows_assert_bits("alone", y, first + r * COLS, COLS);
                    }
                    kernels_close(k);
                }
            rows_assert_error("mixture", rows_error(first, want, ROWS * COLS), 1e-5);
        }
    free(first);
    free(y);
    free(want);
    parts_free(&p);
}

static void test_choices(void **state)
{
    (void)state;
    struct parts p = parts_new();
    struct kernels *k = rows_open("cpu-portable", 1);
    assert_int_equal(kernels_ops(k)->reserve(k, 8, COLS, 1, 16), 0);
    const float rows[][EXPERTS] = {{1, 1, 1, 1, 1, 1, 1},  {0, 2, 1, 2, 0, 2, 0}, {-1, -2, -3, -4, 5, -0.0f, 0.0f},
                                   {7, 6, 5, 4, 3, 2, 1},  {1, 2, 3, 4, 5, 6, 7}, {0, INFINITY, 0, 3, 0, 0, 0},
                                   {0, 0, NAN, 9, 0, 0, 1}};
    const int32_t wanted[][USED] = {{0, 1, 2}, {1, 3, 5}, {4, 5, 6}, {0, 1, 2}, {6, 5, 4}, {1, 3, 0}, {2, 3, 6}};
    enum { N = sizeof rows / sizeof rows[0] };
    int32_t ids[N][USED];
    float y[N][COLS], alone[COLS];
    memset(y, 0, sizeof y);
    run(k, &p, p.x, rows[0], N, USED, false, y[0], ids[0]);
    assert_memory_equal(ids, wanted, sizeof wanted);
    /* What is no number poisons its own row, and no other. */
    for (int r = 0; r < N; r++) {
        memset(alone, 0, sizeof alone);
        run(k, &p, p.x + r * COLS, rows[r], 1, USED, false, alone, NULL);
        rows_assert_bits("alone", y[r], alone, COLS);
        for (int i = 0; i < COLS; i++)
            assert_int_equal(isnan(y[r][i]) != 0, r >= 5);
    }
    kernels_close(k);
    parts_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_the_definition), cmocka_unit_test(test_choices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

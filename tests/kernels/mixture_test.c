/* mixture_test.c - mixtures of experts: against a plain sum in double precision, choices with ties and without numbers,
 * and a row's bits alone and among others. */
#include "tests/kernels/rows_support.h"

enum { EXPERTS = 7, COLS = 40, FF = 24, ROWS = 37, USED = 3 };

struct parts {
    struct kernels_matrix gate, up, down; /* of all experts */
    float *values[3 * EXPERTS];           /* as they are multiplied: [rows][cols] */
    float *x, *logits, *biases;
};

static struct kernels_matrix matrix_new(int rows, int cols)
{
    void *data = aligned_alloc(64, EXPERTS * kernels_packed_bytes(KERNELS_F32, rows, cols) / 64 * 64 + 64);
    assert_non_null(data);
    return (struct kernels_matrix){.type = KERNELS_F32, .rows = rows, .cols = cols, .experts = EXPERTS, .data = data};
}

static struct parts parts_new(void)
{
    struct parts p = {.gate = matrix_new(FF, COLS), .up = matrix_new(FF, COLS), .down = matrix_new(COLS, FF)};
    struct kernels *k = rows_open("cpu-portable", 2);
    uint64_t seed = 11;
    for (int e = 0; e < EXPERTS; e++) {
        const struct kernels_matrix *to[] = {&p.gate, &p.up, &p.down};
        for (int i = 0; i < 3; i++) {
            int rows = i == 2 ? COLS : FF, cols = i == 2 ? FF : COLS;
            p.values[3 * e + i] = rows_calloc((size_t)rows * (size_t)cols, sizeof(float));
            rows_fill(&seed, p.values[3 * e + i], (size_t)rows * (size_t)cols, 0.4f);
            /* In two pieces, the second of rows that end within a group. */
            kernels_ops(k)->pack(k, to[i], e, 0, 16, p.values[3 * e + i], NULL, NULL);
            kernels_ops(k)->pack(k, to[i], e, 16, rows - 16, p.values[3 * e + i] + (size_t)(16 * cols), NULL, NULL);
        }
    }
    kernels_close(k);
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
    free((void *)(uintptr_t)p->gate.data);
    free((void *)(uintptr_t)p->up.data);
    free((void *)(uintptr_t)p->down.data);
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
    const struct kernels_mixture m = {
        .used = used,
        .logits = logits,
        .gate = &p->gate,
        .up = &p->up,
        .down = &p->down,
        .gate_bias = biased ? p->biases : NULL,
        .up_bias = biased ? p->biases + 1 : NULL,
        .down_bias = biased ? p->biases : NULL,
        .glu = KERNELS_SILU,
    };
    const struct kernels_acts in = {.x = (float *)(uintptr_t)x, .cols = COLS, .forms = KERNELS_FLOATS | KERNELS_QUANTS};
    kernels_ops(k)->mixture(k, &in, n, &m, y);
    if (ids)
        memcpy(ids, k->mixture->ids, (size_t)n * (size_t)used * sizeof *ids);
}

static void reserve(struct kernels *k)
{
    const struct kernels_sizes sizes = {.rows = ROWS,
                                        .cols = COLS,
                                        .heads = 1,
                                        .head_dim = 16,
                                        .experts = EXPERTS,
                                        .experts_used = EXPERTS,
                                        .expert_ff = FF};
    assert_int_equal(kernels_ops(k)->reserve(k, &sizes), 0);
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
                    reserve(k);
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
    reserve(k);
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

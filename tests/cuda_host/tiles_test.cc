/* tiles_test.cc - products of many rows: the bits of the few-row kernel, for every type that tensor cores multiply and
 * any number of rows, with everything that is done to results, and for experts. */
#include "tests/cuda_host/twins.h"

#include <math.h>

extern "C" {
#include "tests/kernels/quant.h"
}

#define FEW 8 /* rows that the few-row kernel takes at once */

static size_t count(int n, int cols)
{
    return (size_t)n * (size_t)cols;
}

struct problem {
    enum kernels_type type;
    int rows, cols, n, experts; /* experts 0: one matrix */
    float softcap = 0;
    bool accumulate = false;
    size_t matrix_bytes;
    on_device<uint8_t> weights;
    on_device<float> x, bias;
    std::vector<float> before;

    problem(enum kernels_type type, int rows, int cols, int n, int experts)
        : type(type), rows(rows), cols(cols), n(n), experts(experts),
          matrix_bytes(cuda_weights_bytes(type, rows, cols)), weights(matrix_bytes * (size_t)matrices()),
          x(twins_numbers(count(n, cols), (uint64_t)n, false)), bias(twins_numbers(count(matrices(), rows), 5, false)),
          before(twins_numbers(count(n, rows), 6, false))
    {
        for (int e = 0; e < matrices(); e++) {
            std::vector<uint8_t> file(quant_file_bytes(type, rows, cols));
            quant_fill(type, rows, cols, QUANT_RANDOM, (uint64_t)(e + 3), file.data());
            on_device<uint8_t> df(file);
            assert_int_equal(cuda_pack(nullptr, matrix(e), 0, rows, df.p), 0);
            CHECK(cudaStreamSynchronize(nullptr));
        }
    }
    int matrices() const
    {
        return experts ? experts : 1;
    }
    struct cuda_weights matrix(int e) const
    {
        return {type, rows, cols, weights.p + (size_t)e * matrix_bytes};
    }
};

/* Rows [first, first + n) of x with matrix e, or with tiles where there are some with all of them. */
static void multiply(const struct problem *p, int e, int first, int n, const int32_t *tiles, float *y)
{
    bool halves = kernels_form(p->type) != KERNELS_QUANTS;
    on_device<uint8_t> acts(halves ? cuda_halves_bytes(n, p->cols) : cuda_quants_bytes(n, p->cols));
    const float *x = p->x.p + count(first, p->cols);
    assert_int_equal(halves ? cuda_narrow(nullptr, p->type, x, n, p->cols, acts.p)
                            : cuda_quantize(nullptr, x, n, p->cols, acts.p),
                     0);
    struct cuda_product c = {};
    c.w = p->matrix(e);
    c.quants = halves ? nullptr : acts.p;
    c.halves = halves ? acts.p : nullptr;
    c.n = n;
    c.bias = p->bias.p + count(e, p->rows);
    c.y = y + count(first, p->rows);
    c.accumulate = p->accumulate;
    c.softcap = p->softcap;
    c.experts = tiles ? p->experts : 0;
    c.tiles = tiles;
    assert_int_equal(cuda_multiply(nullptr, c), 0);
    CHECK(cudaStreamSynchronize(nullptr));
}

/* A few at a time; those of row r are expert_of[r]'s. */
static std::vector<float> by_few(const struct problem *p, const std::vector<int> &expert_of)
{
    on_device<float> y(p->before);
    for (int r = 0; r < p->n; r += FEW)
        multiply(p, expert_of.empty() ? 0 : expert_of[(size_t)r], r, p->n - r < FEW ? p->n - r : FEW, nullptr, y.p);
    return y.fetch();
}

static void check(const struct problem *p)
{
    on_device<float> y(p->before);
    multiply(p, 0, 0, p->n, nullptr, y.p);
    std::vector<float> want = by_few(p, {}), got = y.fetch();
    support_assert_bits(kernels_type_info(p->type)->name, got.data(), want.data(), want.size());
}

static void test_all_types(void **)
{
    static const int shapes[][3] = {{70, 1280, 77}, {33, 256, 64}}; /* rows, cols, rows of x */
    for (auto &shape : shapes)
        for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
            enum kernels_type t = (enum kernels_type)type;
            if (t == KERNELS_F32)
                continue;
            cuda_host_seed((unsigned)type % SEEDS);
            struct problem p(t, shape[0], shape[1], shape[2], 0);
            check(&p);
        }
}

static void test_numbers_of_rows(void **)
{
    unsigned seed = 0;
    for (int n : {1, 7, 25, 64, 65, 129, 2048})
        for (enum kernels_type t : {KERNELS_Q4_K, KERNELS_Q6_K, KERNELS_BF16}) {
            cuda_host_seed(seed++ % SEEDS);
            struct problem p(t, 16, 256, n, 0);
            check(&p);
        }
}

/* Columns that end within a record, a step and a piece; what is done to a result. */
static void test_odd_columns_and_results(void **)
{
    unsigned seed = 0;
    for (int cols : {32, 160, 896, 1056, 2304})
        for (bool accumulate : {false, true}) {
            cuda_host_seed(seed++ % SEEDS);
            struct problem p(accumulate ? KERNELS_Q8_0 : KERNELS_Q4_0, 40, cols, 90, 0);
            p.accumulate = accumulate;
            p.softcap = accumulate ? 0 : 30.0f;
            check(&p);
        }
}

static void test_odd_columns_of_halves(void **)
{
    unsigned seed = 0;
    for (int cols : {8, 40, 136, 1032})
        for (enum kernels_type t : {KERNELS_F16, KERNELS_BF16}) {
            cuda_host_seed(seed++ % SEEDS);
            struct problem p(t, 70, cols, 90, 0);
            p.accumulate = t == KERNELS_F16;
            p.softcap = p.accumulate ? 0 : 30.0f;
            check(&p);
        }
}

/* A row that is no number touches itself alone. */
static void check_not_a_number(enum kernels_type type)
{
    struct problem p(type, 33, 512, 70, 0);
    const float odd = NAN;
    CHECK(cudaMemcpy(p.x.p + 41 * 512 + 300, &odd, sizeof odd, cudaMemcpyHostToDevice));
    check(&p);
    on_device<float> y(p.before);
    multiply(&p, 0, 0, p.n, nullptr, y.p);
    std::vector<float> got = y.fetch();
    for (int r = 0; r < p.n; r++)
        for (int i = 0; i < p.rows; i++)
            assert_int_equal(isnan(got[count(r, p.rows) + (size_t)i]), r == 41);
}

static void test_not_a_number(void **)
{
    for (enum kernels_type t : {KERNELS_Q4_K, KERNELS_F16, KERNELS_BF16})
        check_not_a_number(t);
}

/* 16-bit weights: the sums of rounded rows, in double precision; and rows far outside of what F16 holds. */
static void check_sums(enum kernels_type type, float size)
{
    const int rows = 40, cols = 264, n = 70;
    struct problem p(type, rows, cols, n, 0);
    std::vector<float> x = p.x.fetch(), bias = p.bias.fetch();
    for (size_t i = 0; i < x.size(); i++)
        x[i] *= size;
    for (float &b : bias)
        b *= size;
    CHECK(cudaMemcpy(p.bias.p, bias.data(), bias.size() * sizeof bias[0], cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.x.p, x.data(), x.size() * sizeof x[0], cudaMemcpyHostToDevice));
    std::vector<uint8_t> file(quant_file_bytes(type, rows, cols));
    quant_fill(type, rows, cols, QUANT_RANDOM, 3, file.data());
    on_device<float> y(p.before);
    multiply(&p, 0, 0, n, nullptr, y.p);
    std::vector<float> got = y.fetch();
    const uint16_t *w = (const uint16_t *)file.data();
    float share =
        type == KERNELS_F16 ? 0x1p-10f : 0x1p-7f; /* of what is added up: rounding x costs half of it at most */
    for (int r = 0; r < n; r++)
        for (int i = 0; i < rows; i++) {
            double sum = 0, all = 0;
            for (int k = 0; k < cols; k++) {
                uint16_t bits = w[count(i, cols) + (size_t)k];
                double v = (double)(type == KERNELS_F16 ? widen_f16(bits) : widen_bf16(bits)) *
                           (double)x[count(r, cols) + (size_t)k];
                sum += v;
                all += fabs(v);
            }
            float value = got[count(r, rows) + (size_t)i];
            if (!(fabs((double)value - sum - (double)bias[(size_t)i]) <= (double)share * all + 1e-6 * (double)size))
                fail_msg("row %d, %d: %g is not %g", r, i, (double)value, sum + (double)bias[(size_t)i]);
        }
}

static void test_sums_of_halves(void **)
{
    for (enum kernels_type t : {KERNELS_F16, KERNELS_BF16})
        for (float size : {1.0f, 1e9f, 1e-3f, 1e-8f})
            check_sums(t, size);
    assert_false(cuda_takes_halves(KERNELS_BF16, 12));
    assert_false(cuda_takes_halves(KERNELS_F32, 16));
}

/* Experts with no tiles, one, and more than a warp takes at a time. */
static void test_experts(void **)
{
    const std::vector<int32_t> tiles = {0, 9, 9, 10, 28};
    std::vector<int> expert_of;
    for (int e = 0; e < 4; e++)
        for (int r = tiles[(size_t)e] * 8; r < tiles[(size_t)e + 1] * 8; r++)
            expert_of.push_back(e);
    unsigned seed = 0;
    for (enum kernels_type t : {KERNELS_Q4_K, KERNELS_MXFP4, KERNELS_Q5_1, KERNELS_BF16}) {
        cuda_host_seed(seed++ % SEEDS);
        struct problem p(t, 48, 288 - 288 % kernels_type_info(t)->block_values, 28 * 8, 4);
        on_device<int32_t> dt(tiles);
        on_device<float> y(p.before);
        multiply(&p, 0, 0, p.n, dt.p, y.p);
        std::vector<float> want = by_few(&p, expert_of), got = y.fetch();
        support_assert_bits(kernels_type_info(t)->name, got.data(), want.data(), want.size());
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_all_types),
    cmocka_unit_test(test_numbers_of_rows),
    cmocka_unit_test(test_odd_columns_and_results),
    cmocka_unit_test(test_odd_columns_of_halves),
    cmocka_unit_test(test_not_a_number),
    cmocka_unit_test(test_sums_of_halves),
    cmocka_unit_test(test_experts),
};

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

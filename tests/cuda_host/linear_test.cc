/* linear_test.cc - products with weights of every type: the CPU's bits, for one row and for many, whole and in experts.
 */
#include "tests/cuda_host/twins.h"

#include <math.h>

extern "C" {
#include "tests/kernels/quant.h"
}

/* Weights on both sides, x with a row that has a NaN, and what else a product takes. */
struct problem {
    enum kernels_type type;
    int rows, cols;
    std::vector<uint8_t> file;
    std::vector<float> bias;
    struct kernels_matrix cpu;
    on_device<uint8_t> *packed;
    struct cuda_weights device;
};

static struct problem *problem_new(enum kernels_type type, int rows, int cols, enum quant_style style)
{
    auto *p = new problem{type, rows, cols, {}, twins_numbers((size_t)rows, 9, false), {}, nullptr, {}};
    p->file.resize(quant_file_bytes(type, rows, cols));
    quant_fill(type, rows, cols, style, (uint64_t)(rows * 31 + cols), p->file.data());
    p->cpu = quant_pack(type, rows, cols, p->file.data());
    on_device<uint8_t> file(p->file);
    p->packed = new on_device<uint8_t>(cuda_weights_bytes(type, rows, cols));
    p->device = {type, rows, cols, p->packed->p};
    int first = rows > 16 ? 16 : rows;
    assert_int_equal(cuda_pack(nullptr, p->device, 0, first, file.p), 0);
    if (rows > first)
        assert_int_equal(
            cuda_pack(nullptr, p->device, first, rows - first, file.p + (size_t)first * kernels_row_bytes(type, cols)),
            0);
    CHECK(cudaDeviceSynchronize());
    return p;
}

static void problem_free(struct problem *p)
{
    free((void *)p->cpu.data);
    delete p->packed;
    delete p;
}

static std::vector<float> rows_of_x(const struct problem *p, int n)
{
    std::vector<float> x = twins_numbers((size_t)(n * p->cols), (uint64_t)n, false);
    if (n > 2)
        x[(size_t)(p->cols + 5)] = NAN;
    if (n > 3) /* a step of zeros, and one that is too small to be told from it */
        for (int i = 0; i < 64; i++)
            x[(size_t)(2 * p->cols + i)] = i < 32 ? 0.0f : 1e-33f;
    return x;
}

static std::vector<float> on_cpu(const struct problem *p, const std::vector<float> &x, int n, bool bias,
                                 bool accumulate, const std::vector<float> &before)
{
    struct kernels *k = twins_cpu();
    std::vector<float> y = before;
    struct kernels_linear job = {};
    job.w = &p->cpu;
    job.bias = bias ? p->bias.data() : nullptr;
    job.y = y.data();
    job.accumulate = accumulate;
    kernels_op_linear(k, x.data(), n, p->cols, &job, 1);
    return y;
}

/* n rows as a product takes them, and quantized where it takes that. */
struct rows {
    on_device<float> x;
    on_device<uint8_t> quants;
    struct cuda_product product = {};
    rows(const struct problem *p, const std::vector<float> &from, int n)
        : x(std::vector<float>(from.begin(), from.begin() + (ptrdiff_t)n * p->cols)),
          quants(cuda_quants_bytes(n, p->cols))
    {
        assert_int_equal(cuda_quantize(nullptr, x.p, n, p->cols, quants.p), 0);
        product.w = p->device;
        product.quants = quants.p;
        product.x = x.p;
        product.n = n;
    }
};

static void check(const struct problem *p, int n)
{
    std::vector<float> x = rows_of_x(p, n), before = twins_numbers((size_t)(n * p->rows), 3, false);
    on_device<float> bias(p->bias);
    struct rows in(p, x, n);
    struct cuda_product c = in.product;
    for (int what = 0; what < 3; what++) {
        on_device<float> y(before);
        c.bias = what > 0 ? bias.p : nullptr;
        c.accumulate = what > 1;
        c.y = y.p;
        assert_int_equal(cuda_multiply(nullptr, c), 0);
        std::vector<float> got = y.fetch(), want = on_cpu(p, x, n, what > 0, what > 1, before);
        support_assert_bits(kernels_type_info(p->type)->name, got.data(), want.data(), want.size());
    }
}

static const int shapes[][3] = {{40, 256, 1}, {40, 512, 7}, {17, 1536, 9}, {33, 96, 3}, {24, 4096, 20}, {16, 896, 64}};

static void test_products(void **)
{
    unsigned round = 0;
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++)
        for (int style = 0; style < QUANT_STYLES; style++)
            for (auto &s : shapes) {
                if (s[1] % kernels_type_info((enum kernels_type)type)->block_values || (style > 0 && s[2] > 10))
                    continue;
                cuda_host_seed(round++ % SEEDS);
                struct problem *p = problem_new((enum kernels_type)type, s[0], s[1], (enum quant_style)style);
                check(p, s[2]);
                problem_free(p);
            }
}

static void test_numbers_of_rows(void **)
{
    unsigned round = 0;
    for (enum kernels_type type : {KERNELS_Q4_K, KERNELS_Q6_K, KERNELS_Q8_0, KERNELS_BF16, KERNELS_F32}) {
        struct problem *p = problem_new(type, 16, 768, QUANT_RANDOM);
        for (int n : {1, 7, 64, 2048}) {
            cuda_host_seed(round++ % SEEDS);
            check(p, n);
        }
        problem_free(p);
    }
}

/* A row's bits are the same whatever else is in the batch. */
static void test_rows_do_not_meet(void **)
{
    for (enum kernels_type type : {KERNELS_Q4_K, KERNELS_Q8_0, KERNELS_BF16}) {
        struct problem *p = problem_new(type, 40, 1280, QUANT_RANDOM);
        std::vector<float> x = twins_numbers((size_t)(40 * p->cols), 1, false), all;
        for (int n : {40, 17, 8, 1}) {
            on_device<float> y((size_t)(n * p->rows));
            struct rows in(p, x, n);
            struct cuda_product c = in.product;
            c.y = y.p;
            assert_int_equal(cuda_multiply(nullptr, c), 0);
            std::vector<float> got = y.fetch();
            all = all.empty() ? got : all;
            support_assert_bits("fewer rows", got.data(), all.data(), got.size());
        }
        problem_free(p);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_products),
    cmocka_unit_test(test_numbers_of_rows),
    cmocka_unit_test(test_rows_do_not_meet),
};

static int close_cpu(void **)
{
    kernels_close(twins_cpu());
    return 0;
}

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, close_cpu);
}

/* products_test.cc - the bare products of tests/gpu/products.h: every kernel gives the bits of a plain loop in its
 * order, for one token and for many, and with a scale per 32 activations those of the CPU backend. */
#include "tests/cuda_host/support.h"
#include "tests/gpu/plain.h"

#include <vector>

extern "C" {
#include "tests/kernels/quant.h"
}

struct problem {
    int rows, cols, tokens;
    std::vector<uint8_t> file;
    std::vector<float> x;
};

static struct problem problem_new(int rows, int cols, int tokens, enum quant_style style)
{
    struct problem p = {rows, cols, tokens, {}, {}};
    p.file.resize(quant_file_bytes(KERNELS_Q4_K, rows, cols));
    quant_fill(KERNELS_Q4_K, rows, cols, style, (uint64_t)(rows * 31 + cols), p.file.data());
    p.x.resize((size_t)tokens * (size_t)cols);
    uint64_t state = (uint64_t)tokens;
    for (size_t i = 0; i < p.x.size(); i++)
        p.x[i] = support_uniform(&state) * (float)(1 << support_random(&state) % 6);
    return p;
}

static std::vector<float> plain(enum order order, const struct problem *p)
{
    std::vector<float> y((size_t)p->tokens * (size_t)p->rows);
    for (int t = 0; t < p->tokens; t++)
        for (int r = 0; r < p->rows; r++)
            y[(size_t)(t * p->rows + r)] = plain_product(order, p->file.data() + (size_t)(r * (p->cols / 256)) * 144,
                                                         p->x.data() + (size_t)t * (size_t)p->cols, p->cols);
    return y;
}

/* ---- on the device ----------------------------------------------------------------------------------------------- */

enum kernel { GEMV, TILED };

/* The first `tokens` of the problem's. */
static std::vector<float> on_device(enum order order, enum kernel kernel, const struct problem *p, int tokens)
{
    size_t halves = (size_t)token_tiles(tokens) * (size_t)(p->cols / HALF), results = (size_t)(tokens * p->rows);
    std::vector<uint8_t> packed(packed_weight_bytes(p->rows, p->cols));
    pack_weights(p->file.data(), p->rows, p->cols, packed.data());
    struct weights w = {p->rows, p->cols, support_upload(packed.data(), packed.size())};
    float *x = support_upload(p->x.data(), (size_t)tokens * (size_t)p->cols);
    struct activations a = {tokens, p->cols, (uint32_t *)support_device(nullptr, halves * 1024),
                            (float *)support_device(nullptr, halves * (order == ORDER_32 ? 256 : 32)),
                            order == ORDER_128 ? (uint32_t *)support_device(nullptr, halves * 128) : nullptr};
    float *y = (float *)support_device(nullptr, results * 4);
    CHECK(launch_quantize(order, x, a, nullptr));
    CHECK(kernel == GEMV ? launch_gemv(order, w, a, y, nullptr) : launch_tiled(order, w, a, y, nullptr));
    float *h = (float *)support_fetch(y, results * 4);
    std::vector<float> got(h, h + results);
    free(h);
    CHECK(cudaFree((void *)w.packed));
    CHECK(cudaFree(x));
    CHECK(cudaFree(a.q));
    CHECK(cudaFree(a.facts));
    CHECK(cudaFree(a.halves));
    CHECK(cudaFree(y));
    return got;
}

static const enum order orders[] = {ORDER_32, ORDER_128};

static void test_few_tokens(void **)
{
    static const int tokens[] = {1, 7, 8, 9, 16, 17, 32};
    static const int shapes[][2] = {{40, 1280}, {16, 256}, {5, 2304}, {100, 512}};
    unsigned seed = 0;
    for (auto &shape : shapes) {
        struct problem p = problem_new(shape[0], shape[1], 32, QUANT_RANDOM);
        for (enum order order : orders) {
            std::vector<float> want = plain(order, &p);
            for (int n : tokens) {
                cuda_host_seed(seed++ % SEEDS);
                std::vector<float> got = on_device(order, GEMV, &p, n);
                support_assert_bits("few tokens", got.data(), want.data(), got.size());
            }
        }
    }
}

static void test_many_tokens(void **)
{
    static const int shapes[][3] = {{130, 512, 131}, {48, 1280, 40}, {16, 256, 1}};
    unsigned seed = 0;
    for (auto &shape : shapes) {
        struct problem p = problem_new(shape[0], shape[1], shape[2], QUANT_RANDOM);
        for (enum order order : orders) {
            cuda_host_seed(seed++ % SEEDS);
            std::vector<float> want = plain(order, &p), got = on_device(order, TILED, &p, p.tokens);
            support_assert_bits("many tokens", got.data(), want.data(), got.size());
        }
    }
}

/* Largest and smallest weights and scales; an infinity in one token touches that token alone. */
static void test_extremes(void **)
{
    for (int style = 0; style < QUANT_STYLES; style++) {
        struct problem p = problem_new(16, 512, 8, (enum quant_style)style);
        for (int i = 0; i < 512; i++)
            p.x[512 + (size_t)i] *= 0x1p-120f;
        p.x[2 * 512 + 300] = INFINITY;
        p.x[3 * 512 + 7] = NAN;
        for (int i = 0; i < 512; i++)
            p.x[4 * 512 + (size_t)i] = i % 2 ? 3.0f : -3.0f;
        for (enum order order : orders) {
            std::vector<float> want = plain(order, &p);
            for (enum kernel kernel : {GEMV, TILED}) {
                std::vector<float> got = on_device(order, kernel, &p, 8);
                support_assert_bits("extremes", got.data(), want.data(), got.size());
            }
            for (int r = 0; r < 16; r++)
                assert_true(isnan(want[2 * 16 + (size_t)r]) && isnan(want[3 * 16 + (size_t)r]) &&
                            !isnan(want[1 * 16 + (size_t)r]) && !isnan(want[4 * 16 + (size_t)r]));
        }
    }
}

static void test_order_32_is_the_cpus(void **)
{
    struct problem p = problem_new(40, 1280, 9, QUANT_RANDOM);
    struct kernels_matrix w = quant_pack(KERNELS_Q4_K, p.rows, p.cols, p.file.data());
    struct kernels_opts opts = {};
    opts.backend = "cpu";
    opts.threads = 1;
    struct kernels *k;
    char err[200];
    assert_int_equal(kernels_open(&opts, &k, err, sizeof(err)), 0);
    assert_int_equal(kernels_linear_reserve(k, 9, p.cols), 0);
    std::vector<float> want((size_t)(9 * p.rows));
    struct kernels_linear job = {};
    job.w = &w;
    job.y = want.data();
    kernels_op_linear(k, p.x.data(), 9, p.cols, &job, 1);
    std::vector<float> got = on_device(ORDER_32, GEMV, &p, 9);
    support_assert_bits("the CPU's", got.data(), want.data(), want.size());
    kernels_close(k);
    free((void *)w.data);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_few_tokens),
    cmocka_unit_test(test_many_tokens),
    cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_order_32_is_the_cpus),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

/* peaks_test.cc - the kernels with which tests/gpu/limits measures memory and arithmetic do what they are taken to do:
 * they read and write every word, and every multiplication is in the result. */
#include "tests/cuda_host/support.h"
#include "tests/gpu/peaks.h"

#include <math.h>
#include <vector>

static std::vector<uint32_t> words(size_t n)
{
    std::vector<uint32_t> x(n);
    uint64_t state = 3;
    for (auto &w : x)
        w = support_random(&state);
    return x;
}

template <typename T> static std::vector<T> fetched(const T *device, size_t n)
{
    T *h = (T *)support_fetch(device, n * sizeof(T));
    std::vector<T> x(h, h + n);
    free(h);
    return x;
}

static void test_read_and_copy(void **)
{
    const size_t chunk = READ_UNROLL * PEAK_THREADS, n = 5 * chunk; /* of 16 bytes */
    const int blocks = 2;
    std::vector<uint32_t> x = words(n * 4);
    uint32_t *from = support_upload(x.data(), x.size());
    uint32_t *sums = (uint32_t *)support_device(nullptr, blocks * 4);
    uint4 *to = (uint4 *)support_device(nullptr, n * 16);
    EACH_SEED
    {
        CHECK(launch(read_all, blocks, PEAK_THREADS, 0, nullptr, (const uint4 *)from, n, sums));
        std::vector<uint32_t> got = fetched(sums, blocks);
        uint32_t want[blocks] = {};
        for (size_t i = 0; i < x.size(); i++)
            want[i / 4 / chunk % blocks] ^= x[i];
        assert_memory_equal(got.data(), want, sizeof(want));
        CHECK(cudaMemset(to, 0, n * 16));
        CHECK(launch(copy_all, blocks, PEAK_THREADS, 0, nullptr, to, (const uint4 *)from, n));
        assert_memory_equal(fetched((uint32_t *)to, n * 4).data(), x.data(), n * 16);
    }
    CHECK(cudaFree(from));
    CHECK(cudaFree(sums));
    CHECK(cudaFree(to));
}

static void test_fills(void **)
{
    const size_t n = 3000, supers = 3;
    uint16_t *bf16 = (uint16_t *)support_device(nullptr, n * 2);
    CHECK(launch(fill_bf16, 2, PEAK_THREADS, 0, nullptr, bf16, n, 1u, 12));
    float least = 1e9f, most = 0;
    for (uint16_t bits : fetched(bf16, n)) {
        least = fminf(least, fabsf(widen_bf16(bits)));
        most = fmaxf(most, fabsf(widen_bf16(bits)));
    }
    assert_true(least >= 0x1p-11f && least < 0x1p-10f && most < 2.0f && most >= 1.0f);
    float *floats = (float *)support_device(nullptr, n * 4);
    CHECK(launch(fill_floats, 2, PEAK_THREADS, 0, nullptr, floats, n, 1u));
    double sum = 0;
    for (float x : fetched(floats, n)) {
        assert_true(fabsf(x) <= 1.0f);
        sum += (double)x / (double)n;
    }
    assert_true(fabs(sum) < 0.1);
    uint32_t *filled = (uint32_t *)support_device(nullptr, n * 4);
    CHECK(launch(fill_words, 2, PEAK_THREADS, 0, nullptr, filled, n, 8u));
    std::vector<uint32_t> numbers = fetched(filled, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(numbers[i], mixed((uint32_t)i ^ 8u));
    CHECK(cudaFree(filled));
    /* Scales become sane halves, all else stays. */
    std::vector<uint32_t> x = words(supers * 576), want = x;
    uint32_t *packed = support_upload(x.data(), x.size());
    CHECK(launch(fill_scales, 1, PEAK_THREADS, 0, nullptr, (uint8_t *)packed, supers, 1u));
    std::vector<uint32_t> got = fetched(packed, x.size());
    for (size_t i = 0; i < got.size(); i++) {
        if (i % 576 >= 512 && i % 4 == 0) {
            float d = widen_f16((uint16_t)got[i]), dmin = widen_f16((uint16_t)(got[i] >> 16));
            assert_true(d >= 0x1p-9f && d < 0x1p-8f && dmin >= 0x1p-9f && dmin < 0x1p-8f);
        } else {
            assert_int_equal(got[i], want[i]);
        }
    }
    CHECK(cudaFree(bf16));
    CHECK(cudaFree(floats));
    CHECK(cudaFree(packed));
}

static void test_count_different(void **)
{
    std::vector<uint32_t> a = words(1000), b = a;
    for (size_t i : {(size_t)0, (size_t)500, (size_t)999})
        b[i]++;
    uint32_t *da = support_upload(a.data(), a.size()), *db = support_upload(b.data(), b.size());
    unsigned zero = 0, *count = support_upload(&zero, 1);
    CHECK(launch(count_different, 2, PEAK_THREADS, 0, nullptr, (const uint32_t *)da, (const uint32_t *)db, a.size(),
                 count));
    assert_int_equal(fetched(count, 1)[0], 3);
    CHECK(cudaFree(da));
    CHECK(cudaFree(db));
    CHECK(cudaFree(count));
}

/* All products are 1, so that a result counts them: two operations each are what peak_operations() says. */
static void test_peaks_multiply_what_they_say(void **)
{
    const int iterations = 3;
    int *ints = (int *)support_device(nullptr, PEAK_THREADS * 4);
    float *floats = (float *)support_device(nullptr, PEAK_THREADS * 4);
    double sum = 0;
    CHECK(launch(peak_mma<int>, 1, PEAK_THREADS, 0, nullptr, 0x01010101u, 0x01010101u, iterations, ints));
    for (int x : fetched(ints, PEAK_THREADS))
        sum += x;
    assert_true(2 * sum == peak_operations(PEAK_S8) * iterations * (PEAK_THREADS / WARP));
    sum = 0;
    CHECK(launch(peak_mma<float>, 1, PEAK_THREADS, 0, nullptr, 0x3f803f80u, 0x3f803f80u, iterations, floats));
    for (float x : fetched(floats, PEAK_THREADS))
        sum += (double)x;
    assert_true(2 * sum == peak_operations(PEAK_BF16) * iterations * (PEAK_THREADS / WARP));
    CHECK(launch(peak_fma, 1, PEAK_THREADS, 0, nullptr, 1.0f, 1.0f, iterations, floats));
    sum = 0;
    for (float x : fetched(floats, PEAK_THREADS))
        sum += (double)x;
    assert_true(2 * sum == peak_operations(PEAK_FMA) * iterations * (PEAK_THREADS / WARP));
    CHECK(cudaFree(ints));
    CHECK(cudaFree(floats));
}

/* Against a loop with the emulation's rounding: once per 16 values. */
static void test_plain_bf16(void **)
{
    const int rows = 21, cols = 96, tokens = 11;
    std::vector<uint16_t> w(rows * cols), x(tokens * cols);
    uint64_t state = 9;
    for (auto *v : {&w, &x})
        for (auto &bits : *v)
            bits = narrow_bf16(support_uniform(&state) * (float)(1 << support_random(&state) % 8));
    uint16_t *dw = support_upload(w.data(), w.size()), *dx = support_upload(x.data(), x.size());
    float *y = (float *)support_device(nullptr, rows * tokens * 4);
    std::vector<float> want(rows * tokens);
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < rows; r++) {
            float acc = 0;
            for (int k = 0; k < cols; k += 16) {
                double sum = (double)acc;
                for (int i = k; i < k + 16; i++)
                    sum +=
                        (double)widen_bf16(w[(size_t)(r * cols + i)]) * (double)widen_bf16(x[(size_t)(t * cols + i)]);
                acc = (float)sum;
            }
            want[(size_t)(t * rows + r)] = acc;
        }
    EACH_SEED
    {
        CHECK(launch(plain_bf16, dim3((rows + 15) / 16, (tokens + 7) / 8), WARP, 0, nullptr, dw, dx, rows, cols, tokens,
                     y));
        support_assert_bits("plain bf16", fetched(y, want.size()).data(), want.data(), want.size());
    }
    CHECK(cudaFree(dw));
    CHECK(cudaFree(dx));
    CHECK(cudaFree(y));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_read_and_copy),   cmocka_unit_test(test_fills),
    cmocka_unit_test(test_count_different), cmocka_unit_test(test_peaks_multiply_what_they_say),
    cmocka_unit_test(test_plain_bf16),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

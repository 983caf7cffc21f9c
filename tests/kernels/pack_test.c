/* pack_test.c - packed weights hold what the file held, value for value. */
#include "tests/kernels/quant.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t fnv(const void *p, size_t n)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(1099511628211);
    return h;
}

/* FNV-1a of 1024 values (float32, zeros positive) that the gguf Python package (gguf.quants.dequantize) gives for
 * quant_fill(type, 1, 1024, QUANT_RANDOM, 7), whose bytes were written to a file for it. */
static const uint64_t golden[KERNELS_TYPE_COUNT] = {
    [KERNELS_F32] = UINT64_C(0x60279501de93114f),    [KERNELS_F16] = UINT64_C(0x2db0623ad0b8c40e),
    [KERNELS_BF16] = UINT64_C(0x6f2d7bb6d4bda7ec),   [KERNELS_Q8_0] = UINT64_C(0x42ed91474973243d),
    [KERNELS_Q4_0] = UINT64_C(0xd738da2097ec08ce),   [KERNELS_Q4_1] = UINT64_C(0xc644e9777704c162),
    [KERNELS_Q5_0] = UINT64_C(0x871a33ef306bbbe0),   [KERNELS_Q5_1] = UINT64_C(0xf9d2530b8441ba83),
    [KERNELS_Q4_K] = UINT64_C(0xcbf82ff6015971ae),   [KERNELS_Q5_K] = UINT64_C(0x7682d045ae6d4729),
    [KERNELS_Q6_K] = UINT64_C(0x4ef608aeb7aec70d),   [KERNELS_Q2_K] = UINT64_C(0x241e53fde430af2c),
    [KERNELS_Q3_K] = UINT64_C(0xdf8af1515c0d7248),   [KERNELS_IQ4_NL] = UINT64_C(0x4f43913bd6d6064f),
    [KERNELS_IQ4_XS] = UINT64_C(0x535fbcd69d035db9), [KERNELS_MXFP4] = UINT64_C(0x5903b98bc5813711),
};

static void test_dequantizer_agrees_with_gguf(void **state)
{
    (void)state;
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
        uint8_t file[4096];
        float values[1024];
        quant_fill((enum kernels_type)type, 1, 1024, QUANT_RANDOM, 7, file);
        quant_dequantize((enum kernels_type)type, file, 1024, values, NULL);
        for (int i = 0; i < 1024; i++)
            values[i] += 0.0f;
        assert_true(fnv(values, sizeof values) == golden[type]);
    }
}

static void check_embed(struct kernels *k, enum kernels_type type, int rows, int cols, enum quant_style style)
{
    uint8_t *file = malloc(quant_file_bytes(type, rows, cols));
    float *expected = malloc((size_t)cols * 4), *out = malloc((size_t)rows * (size_t)cols * 4);
    int32_t *ids = malloc((size_t)rows * 4);
    assert_true(file && expected && out && ids);
    quant_fill(type, rows, cols, style, 11, file);
    struct kernels_matrix w = quant_pack(type, rows, cols, file);
    for (int r = 0; r < rows; r++)
        ids[r] = rows - 1 - r;
    kernels_op_embed(k, &w, ids, rows, 2.0f, out);
    for (int r = 0; r < rows; r++) {
        quant_dequantize(type, file + (size_t)ids[r] * quant_file_bytes(type, 1, cols), cols, expected, NULL);
        for (int i = 0; i < cols; i++)
            if (!(out[(size_t)r * (size_t)cols + (size_t)i] == expected[i] * 2.0f))
                fail_msg("%s %dx%d style %d: row %d value %d is %g, not %g", kernels_type_info(type)->name, rows, cols,
                         style, ids[r], i, (double)out[(size_t)r * (size_t)cols + (size_t)i],
                         (double)(expected[i] * 2.0f));
    }
    free((void *)w.data);
    free(file);
    free(expected);
    free(out);
    free(ids);
}

static void test_embed_gives_the_file_s_values(void **state)
{
    (void)state;
    static const int rows[] = {1, 15, 16, 17, 33}, blocks[] = {1, 2, 3, 4, 7};
    struct kernels *k;
    assert_int_equal(kernels_open(&(struct kernels_opts){.threads = 2}, &k, NULL, 0), 0);
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++)
        for (int style = 0; style < QUANT_STYLES; style++)
            for (int i = 0; i < 5; i++)
                for (int j = 0; j < 5; j++)
                    check_embed(k, (enum kernels_type)type, rows[i],
                                blocks[j] * kernels_type_info((enum kernels_type)type)->block_values,
                                (enum quant_style)style);
    kernels_close(k);
}

static void test_padding_is_zero(void **state)
{
    (void)state;
    uint8_t file[34 * 3], packed[34 * 16];
    memset(file, 0xff, sizeof file);
    memset(packed, 0xee, sizeof packed);
    kernels_pack_group(KERNELS_Q8_0, 3, 32, 0, file, packed);
    size_t set = 0;
    for (size_t i = 0; i < sizeof packed; i++) {
        assert_true(packed[i] == 0 || packed[i] == 0xff);
        set += packed[i] == 0xff;
    }
    assert_int_equal(set, sizeof file);
}

static void test_packed_bytes(void **state)
{
    (void)state;
    assert_int_equal(kernels_packed_bytes(KERNELS_Q8_0, 1, 32), 16 * 34);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q8_0, 16, 64), 16 * 68);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q8_0, 17, 64), 32 * 68);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q4_K, 151936, 1536), (size_t)151936 * 6 * 144);
    assert_int_equal(kernels_packed_bytes(KERNELS_F32, 3, 5), 16 * 20);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q8_0, 1, 33), 0);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q6_K, 1, 128), 0);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q6_K, 0, 256), 0);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q6_K, -1, 256), 0);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q6_K, 1, 0), 0);
    assert_int_equal(kernels_packed_bytes(KERNELS_Q6_K, 1, -256), 0);
    /* 2^31 rows of 4 (2^31 - 1) bytes are 2^64 - 2^33: the largest there is, and it fits. */
    assert_true(kernels_packed_bytes(KERNELS_F32, INT_MAX, INT_MAX) == ((size_t)1 << 31) * 4 * (size_t)INT_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dequantizer_agrees_with_gguf),
        cmocka_unit_test(test_embed_gives_the_file_s_values),
        cmocka_unit_test(test_padding_is_zero),
        cmocka_unit_test(test_packed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

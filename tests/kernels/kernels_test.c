/* kernels_test.c - opening backends, their memory, and running things on their workers. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int open_backend(const char *name, int threads, struct kernels **k, char err[128])
{
    struct kernels_opts opts = {name, threads};
    return kernels_open(&opts, k, err, 128);
}

static void test_chooses_a_set(void **state)
{
    (void)state;
    static const char *const best[] = {NULL, "auto", "cpu"};
    char err[128];
    struct kernels *k;
    const char *first = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(open_backend(best[i], 0, &k, err), 0);
        assert_string_equal(err, "");
        assert_true(kernels_threads(k) >= 1);
        if (first)
            assert_string_equal(kernels_backend(k), first);
        first = kernels_backend(k);
        kernels_close(k);
    }
    static const char *const sets[] = {"cpu-portable", "cpu-avx2", "cpu-avxvnni", "cpu-avx512"};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int rc = open_backend(sets[i], 2, &k, err);
        if (rc < 0) {
            assert_int_equal(rc, -ENOTSUP);
            assert_non_null(strstr(err, sets[i]));
            assert_true(i > 0 && strcmp(first, sets[i]) != 0);
            continue;
        }
        assert_string_equal(kernels_backend(k), sets[i]);
        assert_int_equal(kernels_threads(k), 2);
        kernels_close(k);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    char err[128];
    struct kernels *k = NULL;
    assert_int_equal(open_backend("cuda", 1, &k, err), -ENOTSUP);
    assert_non_null(strstr(err, "CUDA"));
    assert_int_equal(open_backend("cpu-mmx", 1, &k, err), -ENOTSUP);
    assert_non_null(strstr(err, "cpu-portable"));
    assert_int_equal(open_backend("", 1, &k, err), -ENOTSUP);
    assert_int_equal(open_backend("cpu", -1, &k, err), -EINVAL);
    assert_non_null(strstr(err, "-1"));
    assert_int_equal(open_backend("cpu", 1025, &k, err), -EINVAL);
    assert_non_null(strstr(err, "1025"));
    assert_null(k);
    /* No room for a message is fine, and so is little. */
    assert_int_equal(kernels_open(&(struct kernels_opts){"cuda", 1}, &k, NULL, 0), -ENOTSUP);
    assert_int_equal(kernels_open(&(struct kernels_opts){"cuda", 1}, &k, err, 4), -ENOTSUP);
    assert_int_equal(strlen(err), 3);
    kernels_close(NULL);
}

static void test_memory(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 64, 4096, 4097, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 9000001};
    char err[128];
    struct kernels *k;
    assert_int_equal(open_backend("cpu", 1, &k, err), 0);
    const struct kernels_ops *ops = kernels_ops(k);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = ops->alloc(k, KERNELS_DEVICE, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 256, 0);
        size_t sum = 0;
        for (size_t b = 0; b < sizes[i]; b++)
            sum += p[b];
        assert_int_equal(sum, 0);
        memset(p, 0xff, sizes[i]);
        ops->release(k, KERNELS_DEVICE, p, sizes[i]);
    }
    assert_null(ops->alloc(k, KERNELS_DEVICE, 0));
    assert_null(ops->alloc(k, KERNELS_DEVICE, SIZE_MAX));
    assert_null(ops->alloc(k, KERNELS_DEVICE, SIZE_MAX / 2));
    ops->release(k, KERNELS_DEVICE, NULL, 100);
    kernels_close(k);
}

static void test_reserve(void **state)
{
    (void)state;
    char err[128];
    struct kernels *k;
    assert_int_equal(open_backend("cpu", 1, &k, err), 0);
    const struct kernels_ops *ops = kernels_ops(k);
    struct kernels_sizes n = {.rows = 4, .cols = 32, .heads = 1, .head_dim = 64}, huge = n, none = n;
    huge.rows = huge.cols = INT_MAX;
    none.rows = 0;
    assert_int_equal(ops->reserve(k, &huge), -ENOMEM);
    assert_true(ops->reserve_bytes(k, &huge) > UINT64_C(1) << 60);
    assert_int_equal(ops->reserve(k, &none), -EINVAL);
    assert_int_equal(ops->reserve(k, &n), 0);
    n.picks = 1;
    n.vocab = KERNELS_MAX_LOGITS + 1;
    assert_int_equal(ops->reserve(k, &n), -EINVAL);
    n.vocab = 100;
    n.ff = 64;
    n.experts = n.experts_used = n.expert_ff = 8;
    assert_int_equal(ops->reserve(k, &n), 0);
    n.experts_used = 9;
    assert_int_equal(ops->reserve(k, &n), -EINVAL);
    kernels_close(k);
}

static void count(void *arg, int i)
{
    ((unsigned char *)arg)[i]++;
}

static void test_parallel(void **state)
{
    (void)state;
    char err[128];
    for (int threads = 1; threads <= 3; threads++) {
        struct kernels *k;
        unsigned char done[100] = {0};
        assert_int_equal(open_backend("cpu", threads, &k, err), 0);
        kernels_parallel(k, 0, count, done);
        kernels_parallel(k, 99, count, done);
        for (int i = 0; i < 100; i++)
            assert_int_equal(done[i], i < 99);
        kernels_close(k);
    }
}

static void test_type_info(void **state)
{
    (void)state;
    for (int type = 0; type < KERNELS_TYPE_COUNT; type++) {
        const struct kernels_type_info *info = kernels_type_info((enum kernels_type)type);
        assert_non_null(info->name);
        assert_true(info->block_values == 1 || info->block_values == 32 || info->block_values == 256);
        assert_true(info->block_bytes > 0);
    }
    assert_string_equal(kernels_type_info(KERNELS_Q6_K)->name, "Q6_K");
    assert_int_equal(kernels_type_info(KERNELS_Q6_K)->block_bytes, 210);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chooses_a_set), cmocka_unit_test(test_refuses),  cmocka_unit_test(test_memory),
        cmocka_unit_test(test_reserve),       cmocka_unit_test(test_parallel), cmocka_unit_test(test_type_info),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

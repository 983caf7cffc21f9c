/* codec_test.c - every bit pattern comes back, every loop gives the same bytes, nothing damaged is taken. */
#include "tests/storage/storage_testing.h"

#include "storage/codec_internal.h"

static const struct storage_array shapes[][2] = {
    {{128, true}, {128, false}}, {{1, true}, {1, false}},     {{3, true}, {5, false}},
    {{64, false}, {64, true}},   {{100, true}, {100, false}}, {{256, true}, {65, false}},
};
static const uint32_t counts[] = {1, 2, 7, 63, 64, 65, 200, 256};

enum fill { FILL_KV, FILL_RANDOM, FILL_ZERO, FILL_SPIKES, FILL_COUNT };

static void *filled(const struct storage_layout *l, uint32_t count, enum fill fill, uint64_t seed)
{
    size_t n = codec_payload_bytes(l, count) / 2;
    uint16_t *p = malloc(n * 2);
    assert_non_null(p);
    if (fill == FILL_KV || fill == FILL_SPIKES)
        testing_fill_kv(p, n, l->element, seed);
    for (size_t i = 0; i < n; i++) {
        if (fill == FILL_RANDOM || (fill == FILL_SPIKES && testing_random(&seed) % 16 == 0))
            p[i] = (uint16_t)testing_random(&seed);
        else if (fill == FILL_ZERO)
            p[i] = 0;
    }
    return p;
}

/* The best loops are compared anyway; where these are AVX-512 the AVX2 ones are too. */
static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}

static void check_round_trip(const struct storage_layout *l, uint32_t count, enum fill fill, uint64_t seed)
{
    size_t bytes = codec_payload_bytes(l, count), bound = storage_codec_bound(l, count);
    void *in = filled(l, count, fill, seed), *out = malloc(bytes);
    uint8_t *a = malloc(bound), *b = malloc(bound);
    assert_true(out && a && b);
    int64_t n = codec_encode_with(&codec_loops_portable, l, count, in, a, bound);
    assert_true(n > 0 && (size_t)n <= bound);
    assert_int_equal(storage_codec_encode(l, count, in, b, bound), n);
    assert_memory_equal(a, b, (size_t)n);
    if (have_avx2()) {
        assert_int_equal(codec_encode_with(&codec_loops_avx2, l, count, in, b, bound), n);
        assert_memory_equal(a, b, (size_t)n);
        memset(out, 0xa5, bytes);
        assert_int_equal(codec_decode_with(&codec_loops_avx2, l, count, a, (size_t)n, out), 0);
        assert_memory_equal(in, out, bytes);
    }
    memset(out, 0xa5, bytes);
    assert_int_equal(codec_decode_with(&codec_loops_portable, l, count, a, (size_t)n, out), 0);
    assert_memory_equal(in, out, bytes);
    memset(out, 0xa5, bytes);
    assert_int_equal(storage_codec_decode(l, count, a, (size_t)n, out), 0);
    assert_memory_equal(in, out, bytes);
    assert_int_equal(storage_codec_decode(l, count, a, (size_t)n - 1, out), -EBADMSG);
    free(in);
    free(out);
    free(a);
    free(b);
}

/* By way of the split form, each half of the way by itself. */
static void check_split(const struct storage_layout *l, uint32_t count, enum fill fill, uint64_t seed)
{
    size_t bytes = codec_payload_bytes(l, count), bound = storage_codec_bound(l, count);
    size_t split_bytes = storage_split_bytes(l, count);
    uint8_t *in = filled(l, count, fill, seed), *out = malloc(bytes), *split = malloc(split_bytes);
    uint8_t *a = malloc(bound), *b = malloc(bound);
    assert_true(out && split && a && b);
    int64_t n = storage_codec_encode(l, count, in, a, bound);
    size_t at = 0, split_at = 0;
    for (uint32_t i = 0; i < l->n_arrays; i++) {
        struct storage_layout one = {.element = l->element, .arrays = &l->arrays[i], .n_arrays = 1};
        codec_array_split(i % 2 ? &codec_loops_portable : codec_loops_best(), &l->arrays[i], l->element, count,
                          (const uint16_t *)(void *)(in + at), split + split_at);
        at += codec_payload_bytes(&one, count);
        split_at += storage_split_bytes(&one, count);
    }
    assert_int_equal(split_at, split_bytes);
    bool finite = true;
    for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t x, mask = l->element == STORAGE_F16 ? 0x7c00 : 0x7f80;
        memcpy(&x, in + 2 * i, 2);
        finite = finite && (x & mask) != mask;
    }
    assert_int_equal(storage_split_finite(l, count, split), finite);
    assert_int_equal(storage_split_encode(l, count, split, b, bound), n);
    assert_memory_equal(a, b, (size_t)n);
    memset(split, 0xa5, split_bytes);
    assert_int_equal(storage_split_decode(l, count, a, (size_t)n, split), 0);
    at = split_at = 0;
    for (uint32_t i = 0; i < l->n_arrays; i++) {
        struct storage_layout one = {.element = l->element, .arrays = &l->arrays[i], .n_arrays = 1};
        assert_int_equal(codec_array_join(i % 2 ? &codec_loops_portable : codec_loops_best(), &l->arrays[i], l->element,
                                          count, split + split_at, (uint16_t *)(void *)(out + at)),
                         0);
        at += codec_payload_bytes(&one, count);
        split_at += storage_split_bytes(&one, count);
    }
    assert_memory_equal(in, out, bytes);
    assert_int_equal(storage_split_decode(l, count, a, (size_t)n - 1, split), -EBADMSG);
    a[n - 1] ^= 1;
    assert_int_equal(storage_split_decode(l, count, a, (size_t)n, split), -EBADMSG);
    free(in);
    free(out);
    free(split);
    free(a);
    free(b);
}

static void test_split_form(void **state)
{
    (void)state;
    for (int e = STORAGE_BF16; e <= STORAGE_F16; e++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int f = 0; f < FILL_COUNT; f++)
                    check_split(&(struct storage_layout){.element = (enum storage_element)e,
                                                         .arrays = shapes[s],
                                                         .n_arrays = 2},
                                counts[c], (enum fill)f, s * 100 + c + 1);
    struct storage_layout l = {.element = STORAGE_BF16, .arrays = shapes[0], .n_arrays = 2};
    uint8_t *split = calloc(1, storage_split_bytes(&l, 7)), out[8192];
    assert_non_null(split);
    assert_true(storage_codec_bound(&l, 7) <= sizeof out);
    assert_int_equal(storage_split_encode(&l, 7, split, out, sizeof out), -EBADMSG);
    assert_int_equal(storage_split_encode(&l, 7, split, out, 1), -ENOBUFS);
    assert_int_equal(storage_split_encode(&l, 0, split, out, sizeof out), -EINVAL);
    assert_int_equal(storage_split_decode(&l, 0, out, sizeof out, split), -EINVAL);
    assert_int_equal(storage_split_bytes(&l, 0), 0);
    split[0] = 1;
    split[16] = split[17] = split[18] = 0xff; /* more elements at level 1 than there are */
    assert_int_equal(storage_split_encode(&l, 7, split, out, sizeof out), -EBADMSG);
    free(split);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (int e = STORAGE_BF16; e <= STORAGE_F16; e++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int f = 0; f < FILL_COUNT; f++)
                    check_round_trip(&(struct storage_layout){.element = (enum storage_element)e,
                                                              .arrays = shapes[s],
                                                              .n_arrays = 2},
                                     counts[c], (enum fill)f, s * 100 + c + 1);
}

static void test_ratio(void **state)
{
    (void)state;
    struct storage_layout l = {.element = STORAGE_BF16, .arrays = shapes[0], .n_arrays = 2};
    size_t bytes = codec_payload_bytes(&l, 256), bound = storage_codec_bound(&l, 256);
    uint8_t *out = malloc(bound);
    void *in = filled(&l, 256, FILL_KV, 1);
    assert_non_null(out);
    int64_t n = storage_codec_encode(&l, 256, in, out, bound);
    assert_true((double)bytes / (double)n > 1.43);
    free(in);
    in = filled(&l, 256, FILL_ZERO, 1);
    n = storage_codec_encode(&l, 256, in, out, bound);
    assert_true((double)bytes / (double)n > 1.9);
    free(in);
    in = filled(&l, 256, FILL_RANDOM, 1);
    n = storage_codec_encode(&l, 256, in, out, bound);
    assert_true(n > (int64_t)bytes && (size_t)n <= bound);
    free(in);
    free(out);
}

static void test_limits(void **state)
{
    (void)state;
    struct storage_array a = {STORAGE_CHANNELS_MAX, true};
    struct storage_layout l = {.element = STORAGE_BF16, .arrays = &a, .n_arrays = 1};
    assert_true(storage_codec_bound(&l, 1) > 0);
    assert_true(storage_codec_bound(&l, 512) > 0);
    assert_int_equal(storage_codec_bound(&l, 513), 0);
    assert_int_equal(storage_codec_bound(&l, 0), 0);
    a.channels++;
    assert_int_equal(storage_codec_bound(&l, 1), 0);
    a.channels = 1;
    assert_true(storage_codec_bound(&l, STORAGE_COUNT_MAX) > 0);
    assert_int_equal(storage_codec_bound(&l, STORAGE_COUNT_MAX + 1), 0);
    l.n_arrays = 0;
    assert_int_equal(storage_codec_bound(&l, 1), 0);
    l.n_arrays = 1;
    l.element = (enum storage_element)7;
    assert_int_equal(storage_codec_bound(&l, 1), 0);
    l.element = STORAGE_BF16;
    uint16_t x = 1;
    uint8_t out[128];
    assert_int_equal(storage_codec_encode(&l, 1, &x, out, storage_codec_bound(&l, 1) - 1), -ENOBUFS);
    struct storage_array *many = calloc(STORAGE_ARRAYS_MAX + 1, sizeof *many);
    assert_non_null(many);
    for (size_t i = 0; i <= STORAGE_ARRAYS_MAX; i++)
        many[i].channels = 1;
    l.arrays = many;
    l.n_arrays = STORAGE_ARRAYS_MAX;
    assert_true(storage_codec_bound(&l, 1) > 0);
    l.n_arrays++;
    assert_int_equal(storage_codec_bound(&l, 1), 0);
    free(many);
}

/* A flipped bit anywhere is seen. */
static void test_flips(void **state)
{
    (void)state;
    struct storage_layout l = {.element = STORAGE_F16, .arrays = shapes[2], .n_arrays = 2};
    uint32_t count = 20;
    size_t bytes = codec_payload_bytes(&l, count), bound = storage_codec_bound(&l, count);
    void *in = filled(&l, count, FILL_KV, 3), *out = malloc(bytes);
    uint8_t *a = malloc(bound);
    assert_true(a && out);
    int64_t n = storage_codec_encode(&l, count, in, a, bound);
    for (int64_t i = 0; i < n * 8; i++) {
        a[i / 8] ^= (uint8_t)(1 << (i % 8));
        assert_int_equal(storage_codec_decode(&l, count, a, (size_t)n, out), -EBADMSG);
        a[i / 8] ^= (uint8_t)(1 << (i % 8));
    }
    for (int64_t i = 0; i < n; i++) {
        uint8_t *cut = malloc(i ? (size_t)i : 1);
        assert_non_null(cut);
        memcpy(cut, a, (size_t)i);
        assert_int_equal(storage_codec_decode(&l, count, cut, (size_t)i, out), -EBADMSG);
        free(cut);
    }
    assert_int_equal(storage_codec_decode(&l, count + 1, a, (size_t)n, out), -EBADMSG);
    free(in);
    free(out);
    free(a);
}

/* Without the checksums in the way: bytes of a section are changed at random, and both loops must agree on what comes
 * out and stay inside their buffers. */
static void test_hostile_sections(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int e = STORAGE_BF16; e <= STORAGE_F16; e++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct storage_layout l = {.element = (enum storage_element)e, .arrays = shapes[4], .n_arrays = 1};
            uint32_t count = counts[c];
            size_t bytes = codec_payload_bytes(&l, count), bound = storage_codec_bound(&l, count);
            void *in = filled(&l, count, FILL_SPIKES, seed), *out = malloc(bytes), *other = malloc(bytes);
            uint8_t *a = malloc(bound), *split = malloc(storage_split_bytes(&l, count));
            assert_true(a && out && other && split);
            int64_t n = storage_codec_encode(&l, count, in, a, bound);
            size_t section = (size_t)n - 32;
            uint8_t *s = malloc(section);
            assert_non_null(s);
            for (int i = 0; i < 400; i++) {
                memcpy(s, a + 32, section);
                for (uint64_t k = testing_random(&seed) % 4 + 1; k--;)
                    s[testing_random(&seed) % (testing_random(&seed) % 2 ? section
                                               : section < 64            ? section
                                                                         : 64)] ^= (uint8_t)testing_random(&seed);
                size_t len = testing_random(&seed) % 8 ? section : (size_t)testing_random(&seed) % section;
                int x = codec_array_decode(&codec_loops_portable, l.arrays, l.element, count, s, len, false, out);
                int y = codec_array_decode(codec_loops_best(), l.arrays, l.element, count, s, len, true, other);
                assert_int_equal(x, y);
                assert_true(x == 0 || x == -EBADMSG);
                if (!x)
                    assert_memory_equal(out, other, bytes);
                /* What is consistent is found before planes are undone. */
                assert_int_equal(codec_array_unpack(l.arrays, l.element, count, s, len, split), x);
                if (!x) {
                    memset(other, 0xa5, bytes);
                    assert_int_equal(codec_array_join(codec_loops_best(), l.arrays, l.element, count, split, other), 0);
                    assert_memory_equal(out, other, bytes);
                }
                if (!have_avx2())
                    continue;
                y = codec_array_decode(&codec_loops_avx2, l.arrays, l.element, count, s, len, true, other);
                assert_int_equal(x, y);
                if (!x)
                    assert_memory_equal(out, other, bytes);
            }
            free(s);
            free(in);
            free(out);
            free(other);
            free(split);
            free(a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_form), cmocka_unit_test(test_round_trip), cmocka_unit_test(test_ratio),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_flips),      cmocka_unit_test(test_hostile_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

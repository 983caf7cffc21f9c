/* kv_test.c - rounding to the KV types, writing rows into pages, and the canonical layout. Everything here is exact. */
#include "tests/kernels/rows_support.h"

enum { PAGE = KERNELS_PAGE_TOKENS, GROUP = KERNELS_KEY_GROUP, UNTOUCHED = 0xa5a5 };

/* ---- rounding ---------------------------------------------------------------------------------------------------- */

/* Nearest value with `bits` fraction bits and exponents from `least` on, ties to even, in float64. */
static double nearest(double x, int bits, int least, double greatest)
{
    int e;
    frexp(x, &e);
    e = e - 1 < least ? least : e - 1;
    double step = ldexp(1, e - bits), y = rint(x / step) * step;
    return fabs(y) > greatest ? copysign(INFINITY, x) : y;
}

static double nearest_kv(enum kernels_kv_type type, float x)
{
    if (isinf(x) || x == 0)
        return (double)x;
    return type == KERNELS_KV_BF16 ? nearest((double)x, 7, -126, 0x1.fep+127) : nearest((double)x, 10, -14, 65504);
}

static void check_rounding(enum kernels_kv_type type)
{
    enum { N = 4096, ROUNDS = 90 };
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int count = rows_sets(sets, names);
    float x[N], wide[N];
    uint16_t first[N], other[N];
    uint64_t seed = 7;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < N; i++) {
            uint32_t u = rows_random(&seed);
            if (r % 3 == 1) /* where f16 has values, and halfway between two of them */
                u = (u & 0x8fffffff) | (0x30000000 + (u & 0x0f000000));
            if (r % 3 == 2)
                u &= type == KERNELS_KV_BF16 ? 0xffff8000 : 0xfffff000;
            x[i] = kernels_bits_float(u);
        }
        for (int s = 0; s < count; s++) {
            size_t n = (size_t)(N - r % 17);
            memset(other, 0, sizeof(other));
            sets[s]->narrow(type, x, n, s ? other : first);
            if (s)
                assert_memory_equal(other, first, n * sizeof(*other));
            sets[s]->widen(type, first, n, wide);
            for (size_t i = 0; i < n; i++) {
                if (isnan(x[i])) {
                    assert_true(isnan(wide[i]));
                    continue;
                }
                if (!((double)wide[i] == nearest_kv(type, x[i]) && !signbit(wide[i]) == !signbit(x[i])))
                    fail_msg("%s: %a became %a, not %a", names[s], (double)x[i], (double)wide[i],
                             nearest_kv(type, x[i]));
            }
        }
    }
}

static void test_rounding(void **state)
{
    (void)state;
    check_rounding(KERNELS_KV_BF16);
    check_rounding(KERNELS_KV_F16);
}

/* Every 16-bit value comes back from f32 as it was; a NaN may become quiet. */
static void test_all_values(void **state)
{
    (void)state;
    const struct kernels_rows_set *sets[MAX_SETS];
    const char *names[MAX_SETS];
    int count = rows_sets(sets, names);
    uint16_t *all = rows_calloc(65536, 2), *back = rows_calloc(65536, 2);
    float *wide = rows_calloc(65536, sizeof(float)), *first = rows_calloc(65536, sizeof(float));
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int type = KERNELS_KV_BF16; type <= KERNELS_KV_F16; type++) {
        for (int s = 0; s < count; s++) {
            sets[s]->widen((enum kernels_kv_type)type, all, 65536, s ? wide : first);
            rows_assert_bits(names[s], s ? wide : first, first, 65536);
            sets[s]->narrow((enum kernels_kv_type)type, first, 65536, back);
            for (int i = 0; i < 65536; i++)
                assert_true(back[i] == all[i] ||
                            (isnan(first[i]) && isnan(kernels_widen_one((enum kernels_kv_type)type, back[i]))));
        }
    }
    free(all);
    free(back);
    free(wide);
    free(first);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

struct pool {
    struct kernels_kv kv;
    int32_t ids[8];
    struct kernels_pages pages;
    size_t bytes;
};

/* Eight pages in no order, all slots UNTOUCHED. */
static void pool_open(struct pool *p, int kv_heads, int head_dim)
{
    static const int32_t order[8] = {3, 7, 0, 5, 1, 6, 2, 4};
    size_t half = (size_t)(kv_heads * head_dim * PAGE) * 2;
    size_t v_offset = 64 + (half + 63) / 64 * 64;
    p->kv = (struct kernels_kv){KERNELS_KV_BF16, 0, kv_heads, head_dim, NULL, (v_offset + half + 191) / 64 * 64, 64,
                                v_offset};
    p->bytes = 8 * p->kv.page_bytes;
    p->kv.pool = aligned_alloc(64, p->bytes);
    assert_non_null(p->kv.pool);
    memset(p->kv.pool, 0xa5, p->bytes);
    memcpy(p->ids, order, sizeof(order));
    p->pages = (struct kernels_pages){p->ids, 8};
}

static uint16_t *slot(const struct pool *p, int pos, int head, int d, bool is_value)
{
    uint8_t *page = p->kv.pool + (size_t)p->ids[pos / PAGE] * p->kv.page_bytes;
    int t = pos % PAGE, dim = p->kv.head_dim;
    size_t key =
        (((size_t)head * (PAGE / GROUP) + (size_t)(t / GROUP)) * (size_t)dim + (size_t)d) * GROUP + (size_t)(t % GROUP);
    size_t value = ((size_t)head * PAGE + (size_t)t) * (size_t)dim + (size_t)d;
    return (uint16_t *)(void *)(page + (is_value ? p->kv.v_offset : p->kv.k_offset)) + (is_value ? value : key);
}

static const struct {
    int kv_heads, head_dim;
} shapes[] = {{1, 16}, {2, 64}, {3, 80}, {1, 256}, {2, 40}, {1, 272}};

static const char *const backends[] = {"cpu-portable", "cpu-avx2", "cpu-avx512"};

/* Two runs of one batch, one of them across pages; every other slot stays as it was. */
static void test_write(void **state)
{
    (void)state;
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        int heads = shapes[shape].kv_heads, dim = shapes[shape].head_dim;
        size_t row = (size_t)(heads * dim);
        for (int b = 0; b < 3; b++) {
            struct kernels *k = rows_open(backends[b], 1 + b % 2);
            if (!k)
                continue;
            struct pool p;
            pool_open(&p, heads, dim);
            struct kernels_run runs[2] = {rows_run(0, 150, 37, p.pages), rows_run(150, 3, 300, p.pages)};
            float *key = rows_calloc(153 * row, sizeof(float)), *value = rows_calloc(153 * row, sizeof(float));
            uint64_t seed = 8;
            rows_fill(&seed, key, 153 * row, 1.0f);
            rows_fill(&seed, value, 153 * row, 1.0f);
            rows_kv_write(k, &p.kv, key, value, runs, 2);
            for (int pos = 0; pos < 8 * PAGE; pos++) {
                int r = pos >= 37 && pos < 187 ? pos - 37 : pos >= 300 && pos < 303 ? pos - 150 : -1;
                for (int h = 0; h < heads; h++) {
                    for (int d = 0; d < dim; d++) {
                        size_t at = (size_t)r * row + (size_t)(h * dim + d);
                        uint16_t want_key = UNTOUCHED, want_value = UNTOUCHED;
                        if (r >= 0) {
                            want_key = kernels_narrow_one(KERNELS_KV_BF16, key[at]);
                            want_value = kernels_narrow_one(KERNELS_KV_BF16, value[at]);
                        }
                        assert_int_equal(*slot(&p, pos, h, d, false), want_key);
                        assert_int_equal(*slot(&p, pos, h, d, true), want_value);
                    }
                }
            }
            kernels_close(k);
            free(key);
            free(value);
            free(p.kv.pool);
        }
    }
}

/* Export gives each slot its canonical place; import of it into other pages gives the same export, and touches no
 * other slot. */
static void check_span(struct kernels *k, size_t shape, int first, int n)
{
    int heads = shapes[shape].kv_heads, dim = shapes[shape].head_dim;
    size_t channels = (size_t)(heads * dim), total = channels * (size_t)n;
    struct pool a, b;
    pool_open(&a, heads, dim);
    pool_open(&b, heads, dim);
    uint64_t seed = 9;
    for (size_t i = 0; i < a.bytes / 4; i++)
        ((uint32_t *)(void *)a.kv.pool)[i] = rows_random(&seed);
    uint16_t *keys = rows_calloc(2 * total + 1, 2), *values = keys + total;
    keys[2 * total] = UNTOUCHED;
    kernels_ops(k)->kv_export(k, &a.kv, 1, &a.pages, first, n, keys);
    assert_int_equal(keys[2 * total], UNTOUCHED);
    kernels_ops(k)->kv_import(k, &b.kv, 1, &b.pages, first, n, keys);
    for (int pos = 0; pos < 8 * PAGE; pos++) {
        for (size_t c = 0; c < channels; c++) {
            int h = (int)c / dim, d = (int)c % dim;
            uint16_t want_key = UNTOUCHED, want_value = UNTOUCHED;
            if (pos >= first && pos < first + n) {
                want_key = *slot(&a, pos, h, d, false);
                want_value = *slot(&a, pos, h, d, true);
                assert_int_equal(keys[c * (size_t)n + (size_t)(pos - first)], want_key);
                assert_int_equal(values[(size_t)(pos - first) * channels + c], want_value);
            }
            assert_int_equal(*slot(&b, pos, h, d, false), want_key);
            assert_int_equal(*slot(&b, pos, h, d, true), want_value);
        }
    }
    free(keys);
    free(a.kv.pool);
    free(b.kv.pool);
}

static void test_export_import(void **state)
{
    (void)state;
    static const struct {
        int first, n;
    } spans[] = {{0, 1},  {0, 64},  {0, 256}, {256, 256}, {17, 1}, {5, 200},
                 {63, 2}, {16, 48}, {1, 15},  {100, 412}, {0, 512}};
    for (int threads = 1; threads <= 3; threads++) {
        struct kernels *k = rows_open("cpu-portable", threads);
        for (size_t shape = (size_t)threads - 1; shape < sizeof shapes / sizeof shapes[0]; shape += 2)
            for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++)
                check_span(k, shape, spans[i].first, spans[i].n);
        kernels_close(k);
    }
}

/* A dropped page exports as zeros; what is imported there is not kept. */
static void test_dropped(void **state)
{
    (void)state;
    struct kernels *k = rows_open("cpu-portable", 1);
    struct pool p;
    pool_open(&p, 2, 16);
    p.ids[1] = -1;
    uint16_t keys[32 * 192], values[192 * 32];
    memset(keys, 1, sizeof(keys));
    memset(values, 1, sizeof(values));
    kernels_kv_export_layer(&p.kv, p.pages, 0, 192, keys, values);
    for (int c = 0; c < 32; c++) {
        for (int t = 0; t < 192; t++) {
            uint16_t want = t >= 64 && t < 128 ? 0 : UNTOUCHED;
            assert_int_equal(keys[c * 192 + t], want);
            assert_int_equal(values[t * 32 + c], want);
        }
    }
    memset(keys, 1, sizeof(keys));
    kernels_kv_import_layer(&p.kv, p.pages, 64, 64, keys, values);
    for (size_t i = 0; i < p.bytes; i++)
        assert_int_equal(p.kv.pool[i], 0xa5);
    kernels_close(k);
    free(p.kv.pool);
}

/* ---- straight into pages ---- */

/* A part's rows in canonical layout, of which every array is asked for once at most, by any worker. */
struct kept {
    const uint16_t *rows;
    int layers, n, bad; /* bad: the array that cannot be had; -1: none */
    size_t half;
    bool in_place;
    int wrong, asked[2 * 3];
};

static const void *kept_rows(void *arg, int array, void *buf)
{
    struct kept *p = arg;
    if (array < 0 || array >= 2 * p->layers || (uintptr_t)buf % 64) {
        __atomic_fetch_add(&p->wrong, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    __atomic_fetch_add(&p->asked[array], 1, __ATOMIC_RELAXED);
    if (array == p->bad)
        return NULL;
    const uint16_t *at = p->rows + (size_t)array * p->half;
    return p->in_place ? at : memcpy(buf, at, p->half * sizeof *at);
}

enum { LAYERS = 3, PARTS = 3 };

static void check_fill(const char *backend, int threads, size_t shape, bool in_place, int bad)
{
    static const int firsts[PARTS] = {37, 192, 320}, counts[PARTS] = {155, 128, 51};
    struct kernels *k = rows_open(backend, threads);
    if (!k)
        return;
    struct pool a, b;
    int heads = shapes[shape].kv_heads, dim = shapes[shape].head_dim;
    pool_open(&a, heads, dim);
    pool_open(&b, heads, dim);
    /* Layers 0 and 2 lie in pages of their own group, of which the first three were dropped. */
    size_t layer_bytes = a.kv.page_bytes;
    struct kernels_kv la[LAYERS], lb[LAYERS];
    int32_t window[8] = {-1, -1, -1, 5, 1, 6, 2, 4};
    const struct kernels_pages pages[2] = {{a.ids, 8}, {window, 8}};
    uint8_t *pa = rows_calloc(LAYERS * 8 * layer_bytes, 1), *pb = rows_calloc(LAYERS * 8 * layer_bytes, 1);
    memset(pa, 0xa5, LAYERS * 8 * layer_bytes);
    memset(pb, 0xa5, LAYERS * 8 * layer_bytes);
    for (int l = 0; l < LAYERS; l++) {
        la[l] = lb[l] = a.kv;
        la[l].group = lb[l].group = l != 1;
        la[l].pool = pa + (size_t)l * 8 * layer_bytes;
        lb[l].pool = pb + (size_t)l * 8 * layer_bytes;
    }
    struct kept kept[PARTS];
    struct kernels_kv_part parts[PARTS];
    uint16_t *rows[PARTS];
    uint64_t seed = 11;
    for (int i = 0; i < PARTS; i++) {
        size_t half = (size_t)(heads * dim * counts[i]);
        rows[i] = rows_calloc(2 * LAYERS * half, 2);
        for (size_t j = 0; j < 2 * LAYERS * half; j++)
            rows[i][j] = (uint16_t)rows_random(&seed);
        kept[i] = (struct kept){rows[i], LAYERS, counts[i], i == 1 ? bad : -1, half, in_place, 0, {0}};
        parts[i] = (struct kernels_kv_part){firsts[i], counts[i], kept_rows, &kept[i], false};
        if (i != 1 || bad < 0)
            kernels_ops(k)->kv_import(k, la, LAYERS, pages, firsts[i], counts[i], rows[i]);
    }
    assert_int_equal(kernels_ops(k)->kv_fill(k, lb, LAYERS, pages, parts, PARTS), 0);
    for (int i = 0; i < PARTS; i++) {
        assert_int_equal(kept[i].wrong, 0);
        assert_int_equal(parts[i].failed, i == 1 && bad >= 0);
        for (int array = 0; array < 2 * LAYERS; array++)
            if (i == 0 && array / 2 != 1)
                assert_int_equal(kept[i].asked[array], 0); /* all its pages were dropped */
            else if (!parts[i].failed)
                assert_int_equal(kept[i].asked[array], 1);
            else
                assert_in_range(kept[i].asked[array], 0, 1);
        free(rows[i]);
    }
    /* Pages of the part that failed hold anything; all others are as after an import, to the last byte. */
    for (int l = 0; l < LAYERS; l++)
        for (int page = 0; page < 8; page++) {
            bool mine = bad >= 0 && (page == pages[la[l].group].pages[3] || page == pages[la[l].group].pages[4]);
            size_t at = ((size_t)l * 8 + (size_t)page) * layer_bytes;
            if (!mine)
                assert_memory_equal(pa + at, pb + at, layer_bytes);
        }
    free(pa);
    free(pb);
    free(a.kv.pool);
    free(b.kv.pool);
    kernels_close(k);
}

static void test_fill(void **state)
{
    (void)state;
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++)
        for (int b = 0; b < 3; b++) {
            check_fill(backends[b], 1 + b, shape, false, -1);
            check_fill(backends[b], 3, shape, true, -1);
        }
    check_fill("cpu-portable", 1, 1, false, 0);
    check_fill("cpu-portable", 3, 1, false, 2);
    check_fill("cpu-portable", 3, 1, true, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rounding), cmocka_unit_test(test_all_values),
                                       cmocka_unit_test(test_write),    cmocka_unit_test(test_export_import),
                                       cmocka_unit_test(test_fill),     cmocka_unit_test(test_dropped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

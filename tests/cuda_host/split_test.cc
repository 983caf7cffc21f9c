/* split_test.cc - KV in the split form, made and undone on the device: encoded from it a segment has the bytes that the
 * processor's codec gives, and what is decoded to it comes back as it was. */
#include "kernels/cuda/cuda.h"
#include "tests/cuda_host/support.h"

extern "C" {
#include "storage/storage.h"
}

#include <cerrno>
#include <cstring>
#include <vector>

enum fill { FILL_KV, FILL_RANDOM, FILL_ZERO, FILL_SPIKES, FILL_TINY, FILLS };

static uint16_t element(enum kernels_kv_type type, enum fill fill, uint64_t *seed)
{
    uint32_t bits = support_random(seed);
    float x = support_uniform(seed) * support_uniform(seed) * (float)(1 << bits % 6);
    uint16_t like_kv = type == KERNELS_KV_BF16 ? narrow_bf16(x) : narrow_f16(x);
    switch (fill) {
    case FILL_RANDOM:
        return (uint16_t)bits;
    case FILL_ZERO:
        return 0;
    case FILL_SPIKES: /* escapes, and distances beyond all ranks */
        return bits % 7 == 0 ? (uint16_t)(bits >> 16) : like_kv;
    case FILL_TINY: /* most at the last level */
        return bits % 64 == 0 ? (uint16_t)0x3f80 : type == KERNELS_KV_BF16 ? (uint16_t)0x3a12 : (uint16_t)0x2a12;
    default:
        return like_kv;
    }
}

template <typename T> struct pinned {
    T *p = nullptr;
    size_t n;
    explicit pinned(size_t count) : n(count)
    {
        CHECK(cudaMallocHost(&p, count * sizeof(T)));
    }
    pinned(const pinned &) = delete;
    ~pinned()
    {
        cudaFreeHost(p);
    }
};

/* Layers of a page table that goes backwards, on the device. */
struct layers {
    std::vector<struct kernels_kv> kv;
    std::vector<struct storage_array> arrays;
    std::vector<int32_t> table;
    struct kernels_pages pages = {};
    struct storage_layout layout = {};
    uint8_t *pool = nullptr;
    size_t token_bytes = 0, pool_bytes = 0;
    struct cuda_split_scratch scratch = {};

    layers(enum kernels_kv_type type, std::vector<int> kv_heads, int head_dim, int tokens)
    {
        size_t page = 0;
        int n_pages = (tokens + KERNELS_PAGE_TOKENS - 1) / KERNELS_PAGE_TOKENS;
        for (int heads : kv_heads) {
            struct kernels_kv one = {type, 0, heads, head_dim, nullptr, 0, page, 0};
            size_t half = (size_t)heads * head_dim * KERNELS_PAGE_TOKENS * 2;
            one.v_offset = page + half;
            page += 2 * half;
            kv.push_back(one);
            for (bool keys : {true, false})
                arrays.push_back({(uint32_t)(heads * head_dim), keys});
            token_bytes += (size_t)heads * head_dim * 4;
        }
        pool_bytes = page * (size_t)n_pages;
        pool = (uint8_t *)support_device(nullptr, pool_bytes);
        for (auto &one : kv) {
            one.pool = pool;
            one.page_bytes = page;
        }
        for (int i = n_pages; i-- > 0;)
            table.push_back(i);
        pages = {table.data(), n_pages};
        layout = {type == KERNELS_KV_BF16 ? STORAGE_BF16 : STORAGE_F16, arrays.data(), (uint32_t)arrays.size()};
        size_t whole, split;
        cuda_split_scratch_bytes(kv.data(), count(), tokens, &whole, &split);
        scratch = {(uint8_t *)support_device(nullptr, whole), (uint8_t *)support_device(nullptr, split)};
    }
    layers(const layers &) = delete;
    ~layers()
    {
        cudaFree(pool);
        cudaFree(scratch.whole);
        cudaFree(scratch.split);
    }
    int count() const
    {
        return (int)kv.size();
    }
};

static void import_whole(struct layers *l, int first, int n, const uint16_t *whole)
{
    CHECK(cudaMemset(l->pool, 0, l->pool_bytes));
    assert_int_equal(cuda_kv_import(nullptr, l->kv.data(), l->count(), &l->pages, first, n, whole), 0);
    CHECK(cudaDeviceSynchronize());
}

static void check(struct layers *l, int first, int n, enum fill fill, uint64_t seed)
{
    size_t elements = l->token_bytes / 2 * (size_t)n, bytes = cuda_split_bytes(l->kv.data(), l->count(), n);
    pinned<uint16_t> whole(elements), back(elements);
    pinned<uint8_t> split(bytes);
    for (size_t i = 0; i < elements; i++)
        whole.p[i] = element(l->kv[0].type, fill, &seed);
    import_whole(l, first, n, whole.p);

    assert_int_equal(bytes, storage_split_bytes(&l->layout, (uint32_t)n));
    assert_int_equal(cuda_kv_export_split(nullptr, l->kv.data(), l->count(), &l->pages, first, n, l->scratch, split.p),
                     0);
    CHECK(cudaDeviceSynchronize());
    std::vector<uint8_t> want(storage_codec_bound(&l->layout, (uint32_t)n)), got(want.size());
    int64_t size = storage_codec_encode(&l->layout, (uint32_t)n, whole.p, want.data(), want.size());
    assert_true(size > 0);
    assert_int_equal(storage_split_encode(&l->layout, (uint32_t)n, split.p, got.data(), got.size()), size);
    assert_memory_equal(got.data(), want.data(), (size_t)size);

    memset(split.p, 0xa5, bytes);
    assert_int_equal(storage_split_decode(&l->layout, (uint32_t)n, want.data(), (size_t)size, split.p), 0);
    CHECK(cudaMemset(l->pool, 0, l->pool_bytes));
    assert_int_equal(cuda_kv_import_split(nullptr, l->kv.data(), l->count(), &l->pages, first, n, l->scratch, split.p),
                     0);
    assert_int_equal(cuda_kv_export(nullptr, l->kv.data(), l->count(), &l->pages, first, n, back.p), 0);
    CHECK(cudaDeviceSynchronize());
    assert_memory_equal(back.p, whole.p, elements * 2);
}

static void test_bits_are_the_codecs(void **)
{
    unsigned round = 0;
    for (enum kernels_kv_type type : {KERNELS_KV_BF16, KERNELS_KV_F16})
        for (int fill = 0; fill < FILLS; fill++) {
            struct layers small(type, {1, 3}, 5, 130), usual(type, {2, 2}, 32, 256);
            for (int n : {1, 7, 64, 130}) {
                cuda_host_seed(round++ % SEEDS);
                check(&small, 0, n, (enum fill)fill, round);
            }
            check(&small, 60, 65, (enum fill)fill, round);
            check(&usual, 0, 256, (enum fill)fill, round);
        }
}

/* More layers than a launch takes, and a segment that its bytes divide. */
static void test_many_layers(void **)
{
    struct layers l(KERNELS_KV_BF16, std::vector<int>(35, 1), 16, 70);
    check(&l, 3, 67, FILL_KV, 4);
}

/* More channels than a block has room for. */
static void test_what_it_is_not_for(void **)
{
    struct kernels_kv wide = {KERNELS_KV_BF16, 0, 200, 128, nullptr, 0, 0, 0};
    assert_int_equal(cuda_split_bytes(&wide, 1, 64), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bits_are_the_codecs),
    cmocka_unit_test(test_many_layers),
    cmocka_unit_test(test_what_it_is_not_for),
};

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

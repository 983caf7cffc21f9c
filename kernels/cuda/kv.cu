/* kv.cu - keys and values into pages, and between pages and the canonical layout of blobs. kernels.h has both layouts.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS 128
#define GROUP   KERNELS_KEY_GROUP
#define PAGE    KERNELS_PAGE_TOKENS

/* One kv head's keys or values of a page. */
static __device__ uint16_t *page_rows(const struct kernels_kv *kv, int page, int head, size_t offset)
{
    return (uint16_t *)(void *)(kv->pool + (size_t)page * kv->page_bytes + offset) + (size_t)head * PAGE * kv->head_dim;
}

/* Where dimension d of the key in a slot is. */
static __device__ size_t key_at(int slot, int d, int head_dim)
{
    return ((size_t)(slot / GROUP) * head_dim + d) * GROUP + slot % GROUP;
}

static __device__ uint16_t narrow(enum kernels_kv_type type, float x)
{
    return type == KERNELS_KV_BF16 ? narrow_bf16(x) : narrow_f16(x);
}

/* A block per row and head. */
static __global__ void __launch_bounds__(THREADS)
    write_rows(struct kernels_kv kv, struct cuda_rows rows, const float *key, const float *value)
{
    int row = blockIdx.x, head = blockIdx.y, pos = rows.pos[row], slot = pos % PAGE;
    int page = pos / PAGE < rows.count[row] ? rows.pages[rows.table[row] + pos / PAGE] : -1;
    if (page < 0)
        return;
    uint16_t *keys = page_rows(&kv, page, head, kv.k_offset), *values = page_rows(&kv, page, head, kv.v_offset);
    size_t from = ((size_t)row * kv.kv_heads + head) * kv.head_dim;
    for (int d = threadIdx.x; d < kv.head_dim; d += THREADS) {
        keys[key_at(slot, d, kv.head_dim)] = narrow(kv.type, key[from + d]);
        values[(size_t)slot * kv.head_dim + d] = narrow(kv.type, value[from + d]);
    }
}

/* A block per page and head. Threads go along what is contiguous in the canonical layout: tokens of a key's dimension,
 * dimensions of a token's value. */
template <bool import>
static __global__ void __launch_bounds__(THREADS)
    copy_page(struct kernels_kv kv, const int32_t *pages, int count, int first, int n, uint16_t *keys, uint16_t *values)
{
    int index = first / PAGE + blockIdx.x, head = blockIdx.y, dim = kv.head_dim;
    int from = max(index * PAGE, first), to = min((index + 1) * PAGE, first + n), tokens = to - from;
    int page = index < count ? pages[index] : -1;
    if (page < 0 && import)
        return;
    uint16_t *page_keys = page_rows(&kv, page < 0 ? 0 : page, head, kv.k_offset);
    uint16_t *page_values = page_rows(&kv, page < 0 ? 0 : page, head, kv.v_offset);
    for (int i = threadIdx.x; i < dim * tokens; i += THREADS) {
        int d = i / tokens, token = i % tokens;
        uint16_t *out = keys + ((size_t)head * dim + d) * n + (from - first) + token;
        uint16_t *in = page_keys + key_at(from % PAGE + token, d, dim);
        if (import)
            *in = *out;
        else
            *out = page < 0 ? 0 : *in;
    }
    for (int i = threadIdx.x; i < dim * tokens; i += THREADS) {
        int d = i % dim, token = i / dim;
        uint16_t *out = values + ((size_t)(from - first + token) * kv.kv_heads + head) * dim + d;
        uint16_t *in = page_values + (size_t)(from % PAGE + token) * dim + d;
        if (import)
            *in = *out;
        else
            *out = page < 0 ? 0 : *in;
    }
}

int cuda_kv_write(cudaStream_t s, struct kernels_kv kv, struct cuda_rows rows, const float *key, const float *value)
{
    return rows.rows <= 0
               ? 0
               : launched(launch(write_rows, dim3(rows.rows, kv.kv_heads), THREADS, 0, s, kv, rows, key, value));
}

static dim3 page_grid(const struct kernels_kv *kv, int first, int n)
{
    return dim3((first + n - 1) / PAGE - first / PAGE + 1, kv->kv_heads);
}

int cuda_kv_export(cudaStream_t s, struct kernels_kv kv, const int32_t *pages, int count, int first, int n,
                   uint16_t *keys, uint16_t *values)
{
    return n <= 0 ? 0
                  : launched(launch(copy_page<false>, page_grid(&kv, first, n), THREADS, 0, s, kv, pages, count, first,
                                    n, keys, values));
}

int cuda_kv_import(cudaStream_t s, struct kernels_kv kv, const int32_t *pages, int count, int first, int n,
                   const uint16_t *keys, const uint16_t *values)
{
    return n <= 0 ? 0
                  : launched(launch(copy_page<true>, page_grid(&kv, first, n), THREADS, 0, s, kv, pages, count, first,
                                    n, (uint16_t *)keys, (uint16_t *)values));
}

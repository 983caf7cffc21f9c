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
    wait_for_earlier();
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

#define MOST_LAYERS 32 /* of a launch: what its parameters have room for */
#define MOST_PAGES  8

/* Some layers and some pages of a sequence: tokens [from, to), of n that the canonical layout has, which begin at
 * `first`. */
struct moved {
    struct {
        uint8_t *pool;
        size_t page_bytes, k_offset, v_offset, staging; /* where the layer begins there */
        int group, kv_heads, head_dim;
    } layer[MOST_LAYERS];
    int32_t pages[KERNELS_PAGE_GROUPS][MOST_PAGES]; /* -1: none */
    int first, n, from, to;
    uint8_t *staging;
};

/* A block per page, head and layer. Threads go along what is contiguous in the canonical layout: tokens of a key's
 * dimension, dimensions of a token's value. */
template <bool import> static __global__ void __launch_bounds__(THREADS) move_page(struct moved m)
{
    wait_for_earlier();
    const auto *layer = &m.layer[blockIdx.z];
    int index = m.from / PAGE + blockIdx.x, head = blockIdx.y, dim = layer->head_dim;
    if (head >= layer->kv_heads)
        return;
    int from = max(index * PAGE, m.from), to = min((index + 1) * PAGE, m.to), tokens = to - from;
    int page = m.pages[layer->group][blockIdx.x];
    if (page < 0 && import)
        return;
    const uint8_t *in_pool = layer->pool + (size_t)max(page, 0) * layer->page_bytes;
    size_t heads = (size_t)head * PAGE * dim, channels = (size_t)layer->kv_heads * dim;
    uint16_t *page_keys = (uint16_t *)(in_pool + layer->k_offset) + heads;
    uint16_t *page_values = (uint16_t *)(in_pool + layer->v_offset) + heads;
    uint16_t *keys = (uint16_t *)(m.staging + layer->staging), *values = keys + channels * m.n;
    for (int i = threadIdx.x; i < dim * tokens; i += THREADS) {
        int d = i / tokens, token = i % tokens;
        uint16_t *out = keys + ((size_t)head * dim + d) * m.n + (from - m.first) + token;
        uint16_t *in = page_keys + key_at(from % PAGE + token, d, dim);
        if (import)
            *in = *out;
        else
            *out = page < 0 ? 0 : *in;
    }
    for (int i = threadIdx.x; i < dim * tokens; i += THREADS) {
        int d = i % dim, token = i / dim;
        uint16_t *out = values + (size_t)(from - m.first + token) * channels + (size_t)head * dim + d;
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

/* As many launches as layers and pages need. */
static int move(cudaStream_t s, bool import, const struct kernels_kv *layers, int n_layers,
                const struct kernels_pages *pages, int first, int n, uint8_t *staging)
{
    for (int from = first, to; from < first + n; from = to) {
        to = min((from / PAGE + MOST_PAGES) * PAGE, first + n);
        struct moved m = {};
        m.first = first;
        m.n = n;
        m.from = from;
        m.to = to;
        m.staging = staging;
        size_t at = 0;
        int count = (to - 1) / PAGE - from / PAGE + 1;
        for (int l = 0; l < n_layers; l += MOST_LAYERS) {
            int in_launch = min(n_layers - l, MOST_LAYERS), heads = 0;
            for (int i = 0; i < in_launch; i++) {
                const struct kernels_kv *kv = &layers[l + i];
                m.layer[i] = {kv->pool, kv->page_bytes, kv->k_offset, kv->v_offset,
                              at,       kv->group,      kv->kv_heads, kv->head_dim};
                at += 2 * (size_t)kv->kv_heads * (size_t)kv->head_dim * (size_t)n * sizeof(uint16_t);
                heads = max(heads, kv->kv_heads);
                const struct kernels_pages *table = &pages[kv->group];
                for (int p = 0; p < count; p++) {
                    int index = from / PAGE + p;
                    m.pages[kv->group][p] = index < table->count ? table->pages[index] : -1;
                }
            }
            dim3 grid(count, heads, in_launch);
            int error = launched(import ? launch(move_page<true>, grid, THREADS, 0, s, m)
                                        : launch(move_page<false>, grid, THREADS, 0, s, m));
            if (error)
                return error;
        }
    }
    return 0;
}

int cuda_kv_export(cudaStream_t s, const struct kernels_kv *layers, int n_layers, const struct kernels_pages *pages,
                   int first, int n, void *staging)
{
    return move(s, false, layers, n_layers, pages, first, n, (uint8_t *)staging);
}

int cuda_kv_import(cudaStream_t s, const struct kernels_kv *layers, int n_layers, const struct kernels_pages *pages,
                   int first, int n, const void *staging)
{
    return move(s, true, layers, n_layers, pages, first, n, (uint8_t *)staging);
}

/* attention.cu - attention over pages in the CPU's order of additions, so that CUDA and CPU give equal bits.
 *
 * A block of threads has one query: a row and a head. Canonical blocks of 256 positions are taken in ascending order,
 * each from an empty state. Threads are keys while scores are computed, virtual lanes for the sum of the weights, and
 * dimensions for the values; every one of these sums is one thread's, in the order that docs/numerics.md gives. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define THREADS     64
#define BLOCK       KERNELS_ATTENTION_BLOCK
#define PAGE        KERNELS_PAGE_TOKENS
#define GROUP       KERNELS_KEY_GROUP
#define BLOCK_PAGES (BLOCK / PAGE)

/* The columns of a canonical block that the query sees: not before a dropped page, within its window, up to itself. */
static __device__ void visible_columns(const int32_t *pages, int count, int pos, int window, int block, int *lo,
                                       int *hi)
{
    int first = block * BLOCK_PAGES, n = min(count - first, BLOCK_PAGES), last = pos - block * BLOCK;
    *lo = 0;
    *hi = n > 0 ? n * PAGE : 0;
    for (int i = 0; i < n; i++)
        if (pages[first + i] < 0)
            *lo = (i + 1) * PAGE;
    *hi = min(*hi, last + 1);
    if (window > 0)
        *lo = max(*lo, last - window + 1);
}

static __device__ float widen(enum kernels_kv_type type, uint16_t x)
{
    return type == KERNELS_KV_BF16 ? widen_bf16(x) : widen_f16(x);
}

/* One kv head's keys or values of the page that holds a column. */
static __device__ const uint16_t *page_rows(const struct kernels_kv *kv, const int32_t *pages, int block, int column,
                                            int kv_head, size_t offset)
{
    const uint8_t *page = kv->pool + (size_t)pages[block * BLOCK_PAGES + column / PAGE] * kv->page_bytes;
    return (const uint16_t *)(const void *)(page + offset) + (size_t)kv_head * PAGE * kv->head_dim;
}

static __device__ float score(const struct cuda_attention *a, const float *q, const int32_t *pages, int block,
                              int column, int kv_head)
{
    int slot = column % PAGE, dim = a->kv.head_dim;
    const uint16_t *key = page_rows(&a->kv, pages, block, column, kv_head, a->kv.k_offset) +
                          (size_t)(slot / GROUP) * dim * GROUP + slot % GROUP;
    float dot = 0;
    for (int d = 0; d < dim; d++)
        dot = fmaf(widen(a->kv.type, key[(size_t)d * GROUP]), q[d], dot);
    return dot;
}

/* The greatest of all threads' values, for all of them. */
static __device__ float greatest(float x, float *scratch)
{
    for (int flip = 1; flip < WARP; flip *= 2) {
        float other = __shfl_xor_sync(ALL_LANES, x, flip);
        x = other > x ? other : x;
    }
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / WARP; i++)
        x = scratch[i] > x ? scratch[i] : x;
    return x;
}

/* Shared memory: q[dim], the state's acc[dim], weights[BLOCK]. */
static __global__ void __launch_bounds__(THREADS, 16) attend(struct cuda_attention a, struct cuda_rows rows)
{
    wait_for_earlier();
    SHARED_DYNAMIC(memory);
    SHARED(float, scratch, [THREADS / WARP]);
    SHARED(float, sum, [1]);
    SHARED(int, broken, [1]); /* a seen score is not finite */
    int row = blockIdx.x, head = blockIdx.y, dim = a.kv.head_dim, pos = rows.pos[row], count = rows.count[row];
    int kv_head = head / (a.heads / a.kv.kv_heads), me = threadIdx.x;
    const int32_t *pages = rows.pages + rows.table[row];
    float *q = (float *)memory, *acc = q + dim, *weights = acc + dim;
    size_t at = ((size_t)row * a.heads + head) * dim;
    float m = 0, l = 0;
    bool any = false;
    for (int d = me; d < dim; d += THREADS)
        q[d] = a.q[at + d];
    int oldest = a.window > 0 ? max(pos - a.window + 1, 0) : 0;
    for (int block = oldest / BLOCK; block <= pos / BLOCK; block++) {
        int lo, hi;
        visible_columns(pages, count, pos, a.window, block, &lo, &hi);
        if (lo >= hi)
            continue;
        if (me == 0)
            broken[0] = 0;
        __syncthreads(); /* q is there, and nobody is at the block before any more */
        float top = -infinity();
        for (int t = me; t < BLOCK; t += THREADS) {
            float dot = 0;
            if (t >= lo && t < hi) {
                dot = score(&a, q, pages, block, t, kv_head);
                float x = dot * a.scale;
                if (!(fabsf(x) < infinity()))
                    atomicAdd(&broken[0], 1);
                if (a.softcap > 0)
                    dot = x = a.softcap * tanh_one(x / a.softcap);
                top = x > top ? x : top;
            }
            weights[t] = dot;
        }
        float mb = greatest(top, scratch), scale = a.softcap > 0 ? 1.0f : a.scale;
        for (int t = me; t < BLOCK; t += THREADS) /* its own */
            weights[t] = t >= lo && t < hi ? exp_one(fmaf(weights[t], scale, -mb)) : 0.0f;
        __syncthreads();
        if (me < WARP) {
            float lane = 0;
            if (me < VIRTUAL_LANES)
                for (int t = lo / GROUP * GROUP + me; t < hi; t += GROUP)
                    lane += weights[t];
            lane = lane_tree(lane);
            if (me == 0)
                sum[0] = broken[0] ? not_a_number() : lane;
        }
        __syncthreads();
        float lb = sum[0], new_m = any && !(mb > m) ? m : mb, keep = exp_one(m - new_m), take = exp_one(mb - new_m);
        for (int d = me; d < dim; d += THREADS) {
            float part = 0;
            for (int t = lo; t < hi; t++) {
                const uint16_t *values = page_rows(&a.kv, pages, block, t, kv_head, a.kv.v_offset);
                part = fmaf(weights[t], widen(a.kv.type, values[(size_t)(t % PAGE) * dim + d]), part);
            }
            acc[d] = any ? fmaf(acc[d], keep, part * take) : part;
        }
        l = any ? fmaf(l, keep, lb * take) : lb;
        m = new_m;
        any = true;
    }
    /* A sink is one block more behind the others, with a value of zeros. */
    if (any && a.sinks) {
        float mb = a.sinks[head], new_m = mb > m ? mb : m, keep = exp_one(m - new_m), take = exp_one(mb - new_m);
        l = fmaf(l, keep, 1.0f * take);
        for (int d = me; d < dim; d += THREADS)
            acc[d] = fmaf(acc[d], keep, 0.0f * take);
    }
    for (int d = me; d < dim; d += THREADS)
        a.out[at + d] = any ? acc[d] / l : not_a_number();
}

int cuda_attention_exact(cudaStream_t s, struct cuda_attention a, struct cuda_rows rows)
{
    size_t bytes = (size_t)(2 * a.kv.head_dim + BLOCK) * sizeof(float);
    return rows.rows <= 0 ? 0 : launched(launch(attend, dim3(rows.rows, a.heads), THREADS, bytes, s, a, rows));
}

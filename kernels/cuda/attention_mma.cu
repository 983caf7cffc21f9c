/* attention_mma.cu - attention over pages on tensor cores: the device's own bits, which depend on a query's own keys
 * alone.
 *
 * A tile is up to 16 queries that share keys: the heads of one kv head, of a few tokens of one sequence. Canonical
 * blocks of 256 positions are computed by one warp each (of heads above 128 by two, which share the keys of scores and
 * the dimensions of sums out), from an empty state, 32 keys at a time in ascending order:
 * scores of queries rounded to the KV type by mma, weights rounded to it too, their sum of the rounded ones. Blocks are
 * then merged in ascending order as docs/numerics.md has it, in the block's shared memory, or, where a batch is too
 * small to keep the device busy, by a kernel of its own from what all blocks left in `partial`. Either way a query goes
 * through one sequence of operations, whatever else is in its tile.
 *
 * Slots that no query of a tile sees are read as zeros. A value that is not finite makes all queries of its tile NaN,
 * of the same sequence that is, whose turn fails in any case. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define BLOCK       KERNELS_ATTENTION_BLOCK
#define PAGE        KERNELS_PAGE_TOKENS
#define GROUP       KERNELS_KEY_GROUP
#define BLOCK_PAGES (BLOCK / PAGE)
#define QUERIES     16
#define CHUNK       32 /* keys */
#define KEY_BYTES   32 /* of a dimension of a group of keys */

/* Shared memory of a head size, in bytes: rows of 16-bit floats are 16 bytes longer than they need to be, so that
 * ldmatrix meets all banks. */
static __host__ __device__ constexpr int row_bytes(int dim)
{
    return 2 * dim + 16;
}

/* Of a canonical block that `share` warps compute. */
static __host__ __device__ constexpr int stage_bytes(int dim, int share)
{
    return CHUNK * 2 * dim + CHUNK * row_bytes(dim) + (share > 1 ? QUERIES * CHUNK * 4 : 0);
}

static __host__ __device__ constexpr int shared_bytes(int dim, int warps, int share)
{
    return QUERIES * row_bytes(dim) + QUERIES * dim * 4 + warps / share * stage_bytes(dim, share);
}

/* A tile: rows [first, end) of the batch and all heads of a kv head. */
struct tile {
    const struct cuda_attention *a;
    const struct cuda_rows *rows;
    const int32_t *pages;
    int count, first, end, kv_head, group;
};

/* The columns of a canonical block that a position sees: not before a dropped page, within its window, up to itself. */
static __device__ bool visible(const struct tile *t, int pos, int block, int *lo, int *hi)
{
    int first = block * BLOCK_PAGES, n = min(t->count - first, BLOCK_PAGES), last = pos - block * BLOCK;
    *lo = 0;
    *hi = n > 0 ? n * PAGE : 0;
    for (int i = 0; i < n; i++)
        if (t->pages[first + i] < 0)
            *lo = (i + 1) * PAGE;
    *hi = min(*hi, last + 1);
    if (t->a->window > 0)
        *lo = max(*lo, last - t->a->window + 1);
    return *lo < *hi;
}

/* The first canonical block that a position may see. */
static __device__ int first_block(const struct cuda_attention *a, int pos)
{
    return a->window > 0 ? max(pos - a->window + 1, 0) / BLOCK : 0;
}

static __device__ uint16_t narrow(enum kernels_kv_type type, float x)
{
    return type == KERNELS_KV_BF16 ? narrow_bf16(x) : narrow_f16(x);
}

static __device__ float widen(enum kernels_kv_type type, uint16_t x)
{
    return type == KERNELS_KV_BF16 ? widen_bf16(x) : widen_f16(x);
}

template <enum kernels_kv_type type>
static __device__ __forceinline__ void multiply(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    if (type == KERNELS_KV_BF16)
        mma_bf16(d, a, b, d);
    else
        mma_f16(d, a, b, d);
}

/* A barrier of the warps that compute a canonical block together; two are a thread block. */
template <int share> static __device__ __forceinline__ void together(void)
{
    if (share == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* Starts copying the keys and values of 32 columns from `column` on, those in [lo, hi); zeros for others. By the
 * `share` warps of the block. */
template <int share>
static __device__ void copy_chunk(const struct tile *t, int block, int column, int lo, int hi, uint8_t *keys,
                                  uint8_t *values)
{
    const struct kernels_kv *kv = &t->a->kv;
    int dim = kv->head_dim, thread = threadIdx.x % (share * WARP), page = t->pages[block * BLOCK_PAGES + column / PAGE];
    const uint8_t *base = kv->pool + (size_t)max(page, 0) * kv->page_bytes;
    const uint8_t *from = base + kv->k_offset + (size_t)t->kv_head * PAGE * dim * 2;
    for (int i = thread; i < CHUNK / GROUP * dim * 2; i += share * WARP) {
        int group = i / (2 * dim), d = i / 2 % dim, half = i % 2, first = column + group * GROUP + half * 8;
        size_t at = ((size_t)((column % PAGE) / GROUP + group) * dim + d) * KEY_BYTES + half * 16;
        copy_async_16_or_zero(keys + (group * dim + d) * KEY_BYTES + (half ^ (d / 4 & 1)) * 16, from + at,
                              page >= 0 && first < hi && first + 8 > lo);
    }
    from = base + kv->v_offset + (size_t)t->kv_head * PAGE * dim * 2;
    for (int i = thread; i < CHUNK * dim / 8; i += share * WARP) {
        int token = i / (dim / 8), part = i % (dim / 8), at = column + token;
        copy_async_16_or_zero(values + token * row_bytes(dim) + part * 16,
                              from + ((size_t)(at % PAGE) * dim + part * 8) * 2, page >= 0 && at >= lo && at < hi);
    }
    copy_async_commit();
}

/* What a lane has of a block's result: rows g and g + 8, and of the dimensions its warp's part, `most` / share of them.
 */
template <int most, int share> struct state {
    float m[2], l[2];
    float acc[most / share / 8][4];
};

/* The first dimension of the warp's part. */
template <int most, int share> static __device__ __forceinline__ int first_dim(void)
{
    return threadIdx.x / WARP % share * (most / share);
}

/* One canonical block of all queries of a tile, by `share` warps. pos[2]: of the lane's two rows, -1 where there is
 * none. */
template <enum kernels_kv_type type, int most, int share>
static __device__ void attend_block(const struct tile *t, int block, const uint8_t *queries, uint8_t *stage,
                                    const int pos[2], struct state<most, share> *s)
{
    const struct cuda_attention *a = t->a;
    int dim = a->kv.head_dim, lane = threadIdx.x % WARP, quad = lane % 4, lo[2], hi[2], least = BLOCK, end = 0;
    constexpr int groups = CHUNK / GROUP / share, part = most / share;
    int warp = threadIdx.x / WARP % share, base = first_dim<most, share>();
    uint8_t *keys = stage, *values = stage + CHUNK * 2 * dim;
    float4 *scores = (float4 *)(values + CHUNK * row_bytes(dim));
    for (int row = t->first; row < t->end; row++) {
        int from, to;
        if (visible(t, t->rows->pos[row], block, &from, &to)) {
            least = min(least, from);
            end = max(end, to);
        }
    }
    for (int r = 0; r < 2; r++) {
        s->m[r] = -infinity();
        s->l[r] = 0;
        if (pos[r] < 0 || !visible(t, pos[r], block, &lo[r], &hi[r]))
            lo[r] = hi[r] = 0;
    }
#pragma unroll
    for (int n = 0; n < part / 8; n++)
        for (int e = 0; e < 4; e++)
            s->acc[n][e] = 0;
    for (int column = least / CHUNK * CHUNK; column < end; column += CHUNK) {
        copy_chunk<share>(t, block, column, least, end, keys, values);
        copy_async_wait<0>();
        together<share>();
        float x[CHUNK / 8][4] = {};
#pragma unroll
        for (int k = 0; k < most / 16; k++) {
            if (k * 16 >= dim)
                break;
            uint32_t q[4], b[4];
            load_matrices(q, queries + (lane / 8 % 2 * 8 + lane % 8) * row_bytes(dim) + (k * 16 + lane / 16 * 8) * 2);
#pragma unroll
            for (int group = 0; group < groups; group++) {
                int d = k * 16 + lane / 8 % 2 * 8 + lane % 8;
                load_matrices_transposed(b, keys + ((warp * groups + group) * dim + d) * KEY_BYTES +
                                                (lane / 16 ^ (d / 4 & 1)) * 16);
                multiply<type>(x[2 * group], q, b);
                multiply<type>(x[2 * group + 1], q, b + 2);
            }
        }
        if (share > 1) {
#pragma unroll
            for (int i = 0; i < 2 * groups; i++)
                scores[(warp * 2 * groups + i) * WARP + lane] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
            together<share>();
#pragma unroll
            for (int i = 0; i < CHUNK / 8; i++) {
                float4 four = scores[i * WARP + lane];
                x[i][0] = four.x;
                x[i][1] = four.y;
                x[i][2] = four.z;
                x[i][3] = four.w;
            }
        }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = s->m[r], sum = 0;
            bool broken = false;
#pragma unroll
            for (int i = 0; i < CHUNK / 4; i++) {
                int at = column + i / 2 * 8 + 2 * quad + i % 2;
                float *one = &x[i / 2][2 * r + i % 2];
                if (at >= lo[r] && at < hi[r]) {
                    *one *= a->scale;
                    broken = broken || !(fabsf(*one) < infinity());
                    if (a->softcap > 0)
                        *one = a->softcap * tanh_one(*one / a->softcap);
                    top = *one > top ? *one : top;
                } else {
                    *one = -infinity();
                }
            }
            for (int flip = 1; flip < 4; flip *= 2) {
                float other = __shfl_xor_sync(ALL_LANES, top, flip);
                top = other > top ? other : top;
            }
            bool none = !(top > -infinity());
            keep[r] = none ? 1.0f : exp_one(s->m[r] - top);
#pragma unroll
            for (int i = 0; i < CHUNK / 4; i++) {
                float *one = &x[i / 2][2 * r + i % 2];
                uint16_t weight = none ? 0 : narrow(type, exp_one(*one - top));
                *one = __uint_as_float(weight);
                sum += widen(type, weight);
            }
            s->m[r] = top;
            s->l[r] = fmaf(s->l[r], keep[r], broken ? not_a_number() : sum);
        }
#pragma unroll
        for (int n = 0; n < part / 8; n++)
            for (int e = 0; e < 4; e++)
                s->acc[n][e] *= keep[e / 2];
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            uint32_t p[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *two = &x[2 * k + i / 2][2 * (i % 2)];
                p[i] = __float_as_uint(two[0]) | __float_as_uint(two[1]) << 16;
            }
#pragma unroll
            for (int n = 0; n < part / 16; n++) {
                if (base + n * 16 >= dim)
                    break;
                load_matrices_transposed(b, values + (k * 16 + lane / 8 % 2 * 8 + lane % 8) * row_bytes(dim) +
                                                (base + n * 16 + lane / 16 * 8) * 2);
                multiply<type>(s->acc[2 * n], p, b);
                multiply<type>(s->acc[2 * n + 1], p, b + 2);
            }
        }
        together<share>(); /* all have read what is copied over next */
    }
    for (int r = 0; r < 2; r++)
        for (int flip = 1; flip < 4; flip *= 2)
            s->l[r] += __shfl_xor_sync(ALL_LANES, s->l[r], flip);
}

/* ---- merging ----------------------------------------------------------------------------------------------------- */

/* How a block joins what is there: m and l, and what acc and the block's are multiplied with. */
struct join {
    float keep, take;
};

static __device__ struct join join_block(bool any, float *m, float *l, float mb, float lb)
{
    if (!any) {
        *m = mb;
        *l = lb;
        return {0, 1};
    }
    float top = mb > *m ? mb : *m;
    struct join j = {exp_one(*m - top), exp_one(mb - top)};
    *l = fmaf(*l, j.keep, lb * j.take);
    *m = top;
    return j;
}

static __device__ float joined(bool any, struct join j, float acc, float block)
{
    return any ? fmaf(acc, j.keep, block * j.take) : block;
}

/* A query's result from its sum over all blocks; a sink is one block more, with a value of zeros. */
static __device__ float result(const struct cuda_attention *a, int head, bool any, float m, float l, float acc)
{
    if (any && a->sinks) {
        struct join j = join_block(true, &m, &l, a->sinks[head], 1.0f);
        acc = fmaf(acc, j.keep, 0.0f * j.take);
    }
    return any ? acc / l : not_a_number();
}

/* Where (query, block) is in `partial`: m, l, then acc. */
static __device__ float *partial_at(const struct cuda_attention *a, int row, int head, int block)
{
    return a->partial + (((size_t)row * a->heads + head) * a->most_blocks + block) * (a->kv.head_dim + 2);
}

/* A block per row and head. */
static __global__ void __launch_bounds__(64) merge(struct cuda_attention a, struct cuda_rows rows)
{
    wait_for_earlier();
    int row = blockIdx.x, head = blockIdx.y, dim = a.kv.head_dim, pos = rows.pos[row];
    struct tile t = {&a, &rows, rows.pages + rows.table[row], rows.count[row], row, row + 1, head, 1};
    int first = first_block(&a, pos);
    for (int d = threadIdx.x; d < dim; d += 64) {
        float m = 0, l = 0, acc = 0;
        bool any = false;
        for (int b = first; b <= pos / BLOCK; b++) {
            int lo, hi;
            if (!visible(&t, pos, b, &lo, &hi))
                continue;
            const float *p = partial_at(&a, row, head, b - first);
            struct join j = join_block(any, &m, &l, p[0], p[1]);
            acc = joined(any, j, acc, p[2 + d]);
            any = true;
        }
        a.out[((size_t)row * a.heads + head) * dim + d] = result(&a, head, any, m, l, acc);
    }
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* The lane's results of a block into shared memory, [QUERIES][dim], with m and l in front. */
template <int most, int share> static __device__ void put_state(const struct state<most, share> *s, int dim, float *out)
{
    int lane = threadIdx.x % WARP, base = first_dim<most, share>();
    for (int r = 0; r < 2; r++) {
        int query = lane / 4 + 8 * r;
        if (lane % 4 == 0 && base == 0) {
            out[query] = s->m[r];
            out[QUERIES + query] = s->l[r];
        }
#pragma unroll
        for (int n = 0; n < most / share / 8; n++)
            if (base + n * 8 < dim)
                for (int e = 0; e < 2; e++)
                    out[2 * QUERIES + query * dim + base + n * 8 + lane % 4 * 2 + e] = s->acc[n][2 * r + e];
    }
}

template <int most, int share>
static __device__ void put_partial(const struct tile *t, const struct state<most, share> *s, const int pos[2],
                                   int block)
{
    int lane = threadIdx.x % WARP, base = first_dim<most, share>(), dim = t->a->kv.head_dim, lo, hi;
    for (int r = 0; r < 2; r++) {
        int query = lane / 4 + 8 * r;
        if (pos[r] < 0 || !visible(t, pos[r], block, &lo, &hi))
            continue;
        float *out = partial_at(t->a, t->first + query / t->group, t->kv_head * t->group + query % t->group,
                                block - first_block(t->a, pos[r]));
        if (lane % 4 == 0 && base == 0) {
            out[0] = s->m[r];
            out[1] = s->l[r];
        }
#pragma unroll
        for (int n = 0; n < most / share / 8; n++)
            if (base + n * 8 < dim)
                for (int e = 0; e < 2; e++)
                    out[2 + base + n * 8 + lane % 4 * 2 + e] = s->acc[n][2 * r + e];
    }
}

/* A query's sum so far, and how each warp's block joins it. */
struct sums {
    float m[QUERIES], l[QUERIES];
    bool any[QUERIES];
    struct join join[4][QUERIES];
    enum { SKIPPED, FIRST, JOINED } how[4][QUERIES];
};

/* One thread per query takes a round's blocks in ascending order. */
static __device__ void join_round(const struct tile *t, struct sums *s, int query, int first, int end,
                                  const uint8_t *stage, int stage_size)
{
    int pos = t->rows->pos[t->first + query / t->group], lo, hi;
    for (int b = first; b < end; b++) {
        int w = b - first;
        s->how[w][query] = sums::SKIPPED;
        if (!visible(t, pos, b, &lo, &hi))
            continue;
        const float *block = (const float *)(stage + w * stage_size);
        s->how[w][query] = s->any[query] ? sums::JOINED : sums::FIRST;
        s->join[w][query] = join_block(s->any[query], &s->m[query], &s->l[query], block[query], block[QUERIES + query]);
        s->any[query] = true;
    }
}

/* Grid: rows, of which those that begin a tile have work; kv heads; with `partial` so many that all blocks of a table
 * have their warps. Shared memory: shared_bytes(). */
template <enum kernels_kv_type type, int most, int warps, int share>
static __global__ void __launch_bounds__(warps *WARP) attend_tile(struct cuda_attention a, struct cuda_rows rows)
{
    wait_for_earlier();
    static_assert(share == 1 || share == warps, "together() is a barrier of one warp or of all");
    constexpr int blocks = warps / share; /* at a time */
    SHARED_DYNAMIC(memory);
    SHARED(struct sums, sums, [1]);
    int row = blockIdx.x, dim = a.kv.head_dim, group = a.heads / a.kv.kv_heads, tokens = QUERIES / group;
    int own = threadIdx.x / WARP / share, lane = threadIdx.x % WARP, stage_size = stage_bytes(dim, share);
    if ((row - rows.first[row]) % tokens)
        return;
    struct tile t = {&a,
                     &rows,
                     rows.pages + rows.table[row],
                     rows.count[row],
                     row,
                     min(row + tokens, rows.end[row]),
                     (int)blockIdx.y,
                     group};
    uint8_t *queries = memory, *stage = queries + QUERIES * (row_bytes(dim) + dim * 4);
    float *total = (float *)(queries + QUERIES * row_bytes(dim));
    int n = (t.end - t.first) * group, pos[2];
    int begin = first_block(&a, rows.pos[row]), end = rows.pos[t.end - 1] / BLOCK + 1;
    if (a.partial && begin + (int)blockIdx.z * blocks >= end)
        return; /* the grid is for the longest context, so that a graph holds for all */
    const float *q = a.q + ((size_t)row * a.heads + t.kv_head * group) * dim; /* of a token its heads lie together */
    size_t token_q = (size_t)a.heads * dim;
    for (int i = threadIdx.x; i < QUERIES * dim; i += warps * WARP) {
        int query = i / dim, d = i % dim;
        ((uint16_t *)(queries + query * row_bytes(dim)))[d] =
            query < n ? narrow(type, q[query / group * token_q + query % group * dim + d]) : 0;
    }
    if (threadIdx.x < QUERIES)
        sums->any[threadIdx.x] = false;
    __syncthreads();
    for (int r = 0; r < 2; r++)
        pos[r] = lane / 4 + 8 * r < n ? rows.pos[row + (lane / 4 + 8 * r) / group] : -1;
    uint8_t *own_stage = stage + own * stage_size;
    struct state<most, share> s;
    if (a.partial) {
        int block = begin + blockIdx.z * blocks + own;
        if (block < end) {
            attend_block<type, most, share>(&t, block, queries, own_stage, pos, &s);
            put_partial<most, share>(&t, &s, pos, block);
        }
        return;
    }
    for (int first = begin; first < end; first += blocks) {
        int here = min(blocks, end - first);
        if (own < here) {
            attend_block<type, most, share>(&t, first + own, queries, own_stage, pos, &s);
            put_state<most, share>(&s, dim, (float *)own_stage);
        }
        __syncthreads();
        if ((int)threadIdx.x < n)
            join_round(&t, sums, threadIdx.x, first, first + here, stage, stage_size);
        __syncthreads();
        for (int i = threadIdx.x; i < n * dim; i += warps * WARP) {
            float acc = total[i];
            for (int w = 0; w < here; w++) {
                float block = ((const float *)(stage + w * stage_size))[2 * QUERIES + i];
                int how = sums->how[w][i / dim];
                if (how != sums::SKIPPED)
                    acc = joined(how == sums::JOINED, sums->join[w][i / dim], acc, block);
            }
            total[i] = acc;
        }
        __syncthreads();
    }
    float *out = a.out + (q - a.q);
    for (int i = threadIdx.x; i < n * dim; i += warps * WARP) {
        int query = i / dim, head = t.kv_head * group + query % group;
        out[query / group * token_q + query % group * dim + i % dim] =
            result(&a, head, sums->any[query], sums->m[query], sums->l[query], total[i]);
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

template <enum kernels_kv_type type, int most, int warps, int share>
static cudaError_t attend(cudaStream_t s, const struct cuda_attention *a, const struct cuda_rows *rows)
{
    size_t bytes = (size_t)shared_bytes(a->kv.head_dim, warps, share);
    constexpr int blocks = warps / share;
    int parts = a->partial ? (a->most_blocks + blocks - 1) / blocks : 1;
    cudaError_t e = cudaFuncSetAttribute(attend_tile<type, most, warps, share>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes(most, warps, share));
    if (e == cudaSuccess)
        e = launch(attend_tile<type, most, warps, share>, dim3(rows->rows, a->kv.kv_heads, parts), warps * WARP, bytes,
                   s, *a, *rows);
    if (e == cudaSuccess && a->partial)
        e = launch(merge, dim3(rows->rows, a->heads), 64, 0, s, *a, *rows);
    return e;
}

template <enum kernels_kv_type type>
static cudaError_t attend_type(cudaStream_t s, const struct cuda_attention *a, const struct cuda_rows *rows)
{
    if (a->kv.head_dim <= 64)
        return attend<type, 64, 4, 1>(s, a, rows);
    if (a->kv.head_dim <= 128)
        return attend<type, 128, 4, 1>(s, a, rows);
    return attend<type, 256, 2, 2>(s, a, rows);
}

bool cuda_attention_fits(const struct kernels_kv *kv, int heads)
{
    return kv->head_dim % 16 == 0 && kv->head_dim <= 256 && heads / kv->kv_heads <= QUERIES;
}

int cuda_attention(cudaStream_t s, struct cuda_attention a, struct cuda_rows rows)
{
    if (rows.rows <= 0)
        return 0;
    if (a.kv.type == KERNELS_KV_BF16)
        return launched(attend_type<KERNELS_KV_BF16>(s, &a, &rows));
    return launched(attend_type<KERNELS_KV_F16>(s, &a, &rows));
}

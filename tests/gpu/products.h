/* products.h - products with Q4_K weights on integer tensor cores, as bare kernels, in two orders of additions, so that
 * a GPU can say what activations of 32 values cost beside such of 128.
 *
 *   ORDER_32   the numerics (docs/numerics.md): activations have a scale per 32 values; per block of 32
 *              acc = fma(s * d, I, acc), then acc = fma(m, dsum, acc).
 *   ORDER_128  activations have a scale dx per 128 values. Over their 4 blocks t = fma(sc, I, t), an exact integer, and
 *              U = sum of min * (sum of q), another; then acc = fma(dx, fma(d, t, -(dmin * U)), acc).
 *
 * In both, pieces of 512 values each have an acc that starts at 0; their results are added in ascending order. One
 * output's additions depend on nothing but its own row of weights and its own token, so both kernels here give the same
 * bits for it: gemv for 1 to 32 tokens, tiled for many.
 *
 * Packed weights: for 16 rows and 256 values, [4 pairs of blocks][32 lanes][16 bytes] of nibbles, a lane's bytes being
 * its A fragments of mma.m16n8k32 for both blocks of the pair (low and high nibbles), then [16 rows][16 bytes]: d, dmin
 * and the 12 bytes of packed scales. As many bytes as in a file. Packed activations: for 8 tokens and 128 values, [2
 * pairs] [32 lanes][16 bytes], a lane's B fragments of both blocks.
 */
#ifndef CONVOD_TESTS_GPU_PRODUCTS_H
#define CONVOD_TESTS_GPU_PRODUCTS_H

#include "kernels/cuda/device.h"

#include <string.h>

enum order { ORDER_32, ORDER_128 };

#define GROUP_ROWS   16
#define TOKEN_TILE   8
#define SUPER        256  /* values of a Q4_K block */
#define HALF         128  /* values that a step takes */
#define PIECE_HALVES 4    /* halves of a piece of 512 values */
#define GROUP_BYTES  2304 /* of 16 rows of a super-block, packed */
#define FILE_BYTES   144  /* of one row's super-block in a file */
#define GEMV_WARPS   4
#define ROW_LIMIT    0x1p-100f /* a block whose largest magnitude is below this is zero */

struct weights {
    int rows, cols;
    const uint8_t *packed; /* [rows rounded up / 16][cols / 256][GROUP_BYTES] */
};

struct activations {
    int tokens, cols;
    uint32_t *q;  /* [tiles][cols / 128][2 pairs][32 lanes][4 words] */
    float *facts; /* ORDER_32: [tiles][cols / 32][8 tokens][2]: d, dsum; ORDER_128: [tiles][cols / 128][8 tokens]: dx */
    uint32_t *halves; /* ORDER_128: [tiles][cols / 128][32 lanes]: the B fragment (f16) of the sums of 16 values */
};

static inline size_t packed_weight_bytes(int rows, int cols)
{
    return (size_t)((rows + GROUP_ROWS - 1) / GROUP_ROWS) * (size_t)(cols / SUPER) * GROUP_BYTES;
}

static inline __host__ __device__ int token_tiles(int tokens)
{
    return (tokens + TOKEN_TILE - 1) / TOKEN_TILE;
}

/* From rows as they lie in a file. Bytes only move. Rows past the end are zero. */
static inline void pack_weights(const uint8_t *file, int rows, int cols, uint8_t *packed)
{
    size_t supers = (size_t)(cols / SUPER);
    memset(packed, 0, packed_weight_bytes(rows, cols));
    for (int row = 0; row < rows; row++)
        for (size_t s = 0; s < supers; s++) {
            const uint8_t *from = file + ((size_t)row * supers + s) * FILE_BYTES;
            uint8_t *to = packed + ((size_t)(row / GROUP_ROWS) * supers + s) * GROUP_BYTES;
            int g = row % 8, upper = row % GROUP_ROWS / 8;
            for (int pair = 0; pair < 4; pair++)
                for (int k = 0; k < 32; k++) {
                    int lane = 4 * g + k % 16 / 4, reg = k / 16 * 2 + upper;
                    to[pair * 512 + lane * 16 + reg * 4 + k % 4] = from[16 + pair * 32 + k];
                }
            memcpy(to + 2048 + row % GROUP_ROWS * 16, from, 16);
        }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* One warp per token and 128 values; a lane has 4. Grid (cols / 128, token tiles), 8 warps: one per token of a tile. */
template <enum order order>
__global__ void __launch_bounds__(TOKEN_TILE *WARP) quantize(const float *x, struct activations a)
{
    int lane = threadIdx.x % WARP, of_tile = threadIdx.x / WARP, half = blockIdx.x, tile = blockIdx.y;
    int token = tile * TOKEN_TILE + of_tile, halves = a.cols / HALF;
    float4 v = make_float4(0, 0, 0, 0);
    if (token < a.tokens)
        v = *(const float4 *)(x + (size_t)token * a.cols + half * HALF + lane * 4);
    float values[4] = {v.x, v.y, v.z, v.w};
    uint32_t top = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t magnitude = __float_as_uint(values[i]) & 0x7fffffff;
        top = magnitude > top ? magnitude : top;
    }
    for (int flip = 1; flip < (order == ORDER_32 ? 8 : 32); flip *= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, flip);
        top = other > top ? other : top;
    }
    float largest = __uint_as_float(top), d = 0, inverse = 0;
    bool broken = top >= 0x7f800000;
    if (broken) {
        d = __uint_as_float(0x7fc00000);
    } else if (largest >= ROW_LIMIT) {
        d = largest / 127.0f;
        inverse = 127.0f / largest;
    }
    uint32_t word = 0;
    int sum = 0;
    for (int i = 0; i < 4; i++) {
        int q = broken ? 0 : __float2int_rn(values[i] * inverse);
        word |= (uint32_t)(q & 0xff) << 8 * i;
        sum += q;
    }
    int block = lane / 8, reg = lane % 8 / 4, t = lane % 4;
    size_t at = (size_t)tile * halves + half;
    a.q[at * 256 + (size_t)(block / 2 * 128 + (of_tile * 4 + t) * 4 + block % 2 * 2 + reg)] = word;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2); /* of 16 values */
    int upper = __shfl_down_sync(ALL_LANES, sum, 4);
    if (lane % 8)
        return;
    if (order == ORDER_32) {
        float *facts = a.facts + (at * 4 + block) * 16 + of_tile * 2;
        facts[0] = d;
        facts[1] = d * (float)(sum + upper);
    } else {
        if (lane == 0)
            a.facts[at * 8 + of_tile] = d;
        a.halves[at * 32 + of_tile * 4 + block] = narrow_f16((float)sum) | (uint32_t)narrow_f16((float)upper) << 16;
    }
}

/* ---- a step: 16 rows, 8 tokens, 128 values ----------------------------------------------------------------------- */

/* What a lane holds of 128 values of 16 rows: its A fragments, and the scales of its rows g and g + 8. */
struct unpacked {
    uint32_t a[4][4];
    float scale[4][2]; /* ORDER_32: d * scale; ORDER_128: scale */
    float low[4][2];   /* ORDER_32: -(dmin * min) */
    float d[2], dmin[2];
    uint32_t mins[2]; /* ORDER_128: an A fragment (f16) of the minima, each twice */
};

template <enum order order>
__device__ __forceinline__ void unpack(struct unpacked *u, int half, const uint4 nibbles[2], const uint4 head[2])
{
    int t = threadIdx.x % 4;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        uint32_t words[4] = {nibbles[pair].x, nibbles[pair].y, nibbles[pair].z, nibbles[pair].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u->a[2 * pair][i] = words[i] & 0x0f0f0f0f;
            u->a[2 * pair + 1][i] = words[i] >> 4 & 0x0f0f0f0f;
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t scales = head[r].y & 0x3f3f3f3f, mins = head[r].z & 0x3f3f3f3f;
        if (half) {
            scales = (head[r].w & 0x0f0f0f0f) | (head[r].y >> 2 & 0x30303030);
            mins = (head[r].w >> 4 & 0x0f0f0f0f) | (head[r].z >> 2 & 0x30303030);
        }
        u->d[r] = widen_f16((uint16_t)head[r].x);
        u->dmin[r] = widen_f16((uint16_t)(head[r].x >> 16));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u->scale[j][r] = byte_float(scales, j);
            if (order == ORDER_32) {
                u->scale[j][r] *= u->d[r];
                u->low[j][r] = -(u->dmin[r] * byte_float(mins, j));
            }
        }
        if (order == ORDER_128) {
            uint32_t f16 = narrow_f16((float)(mins >> 8 * t & 0xff));
            u->mins[r] = f16 | f16 << 16;
        }
    }
}

/* acc[e] is row g (+ 8 for e > 1), token 2 t (+ 1 for odd e). `facts` and `halves` are those of this tile and step. */
template <enum order order>
__device__ __forceinline__ void step(const struct unpacked *u, const uint4 q[2], const float *facts,
                                     const uint32_t *halves, float acc[4])
{
    const int bias[4] = {MMA_BIAS, MMA_BIAS, MMA_BIAS, MMA_BIAS};
    const float zero[4] = {0, 0, 0, 0};
    int lane = threadIdx.x % WARP, t = lane % 4, sums[4];
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint4 *pair = &q[j / 2];
        uint32_t b[2] = {j % 2 ? pair->z : pair->x, j % 2 ? pair->w : pair->y};
        mma_s8(sums, u->a[j], b, bias);
        if (order == ORDER_32) {
            float4 f = *(const float4 *)(facts + j * 16 + t * 4);
            float d[2] = {f.x, f.z}, dsum[2] = {f.y, f.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[e] = fmaf(u->scale[j][e / 2] * d[e % 2], biased_float(sums[e]), acc[e]);
                acc[e] = fmaf(u->low[j][e / 2], dsum[e % 2], acc[e]);
            }
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[e] = fmaf(u->scale[j][e / 2], biased_float(sums[e]), part[e]);
        }
    }
    if (order == ORDER_128) {
        float low[4];
        float2 f = *(const float2 *)(facts + t * 2);
        float dx[2] = {f.x, f.y};
        mma_f16_k8(low, u->mins, halves + lane, zero);
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[e] = fmaf(dx[e % 2], fmaf(u->d[e / 2], part[e], -(u->dmin[e / 2] * low[e])), acc[e]);
    }
}

/* Floats of facts per tile and step. */
template <enum order order> __device__ constexpr int step_facts(void)
{
    return order == ORDER_32 ? 64 : 8;
}

/* ---- few tokens -------------------------------------------------------------------------------------------------- */

/* A super-block of 16 rows as a lane reads it. */
struct super_block {
    uint4 nibbles[4], head[2];
};

__device__ __forceinline__ void read_super(struct super_block *b, const uint8_t *group, int super)
{
    int lane = threadIdx.x % WARP;
    const uint4 *from = (const uint4 *)(group + (size_t)super * GROUP_BYTES);
#pragma unroll
    for (int i = 0; i < 4; i++)
        b->nibbles[i] = __ldg(from + i * WARP + lane);
    b->head[0] = __ldg(from + 128 + lane / 4);
    b->head[1] = __ldg(from + 136 + lane / 4);
}

template <enum order order, int tiles>
__device__ __forceinline__ void take_super(const struct super_block *b, const struct activations *a, int super,
                                           float acc[tiles][4])
{
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct unpacked u;
        unpack<order>(&u, half, &b->nibbles[2 * half], b->head);
#pragma unroll
        for (int n = 0; n < tiles; n++) {
            size_t at = (size_t)n * (a->cols / HALF) + super * 2 + half;
            const uint4 *from = (const uint4 *)(a->q + at * 256);
            uint4 q[2] = {from[lane], from[WARP + lane]};
            step<order>(&u, q, a->facts + at * step_facts<order>(), a->halves + at * 32, acc[n]);
        }
    }
}

/* y [tokens][rows]; one result of a step. */
__device__ __forceinline__ void write_result(float *y, int tokens, int rows, int group, int tile, int e, float value)
{
    int lane = threadIdx.x % WARP;
    int row = group * GROUP_ROWS + lane / 4 + e / 2 * 8, token = tile * TOKEN_TILE + lane % 4 * 2 + e % 2;
    if (row < rows && token < tokens)
        y[(size_t)token * rows + row] = value;
}

/* Blocks that a multiprocessor should hold at least: what keeps the compiler from trading them for registers. */
static constexpr int gemv_blocks(int tiles)
{
    return tiles == 1 ? 4 : 2;
}

/* A block of 4 warps per 16 rows, a warp per piece. Grid: groups; shared memory: pieces * tiles * 512 bytes. */
template <enum order order, int tiles>
__global__ void __launch_bounds__(GEMV_WARPS *WARP, gemv_blocks(tiles))
    gemv(struct weights w, struct activations a, float *y)
{
    const int piece_supers = PIECE_HALVES / 2;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = blockIdx.x, supers = w.cols / SUPER;
    int pieces = (supers + piece_supers - 1) / piece_supers;
    const uint8_t *rows = w.packed + (size_t)group * supers * GROUP_BYTES;
    SHARED_DYNAMIC(memory);
    float4 *sums = (float4 *)memory; /* [pieces][tiles][32 lanes] */
    struct super_block now, next;
    if (warp < pieces)
        read_super(&now, rows, warp * piece_supers);
    for (int piece = warp; piece < pieces; piece += GEMV_WARPS) {
        float acc[tiles][4] = {};
        int end = min((piece + 1) * piece_supers, supers);
        for (int s = piece * piece_supers; s < end; s++) {
            int after = s + 1 < end ? s + 1 : (piece + GEMV_WARPS) * piece_supers;
            if (after < supers)
                read_super(&next, rows, after);
            take_super<order, tiles>(&now, &a, s, acc);
            now = next;
        }
#pragma unroll
        for (int n = 0; n < tiles; n++)
            sums[(piece * tiles + n) * WARP + lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    __syncthreads();
    for (int n = warp; n < tiles; n += GEMV_WARPS) {
        float total[4] = {0, 0, 0, 0};
        for (int piece = 0; piece < pieces; piece++) {
            float4 part = sums[(piece * tiles + n) * WARP + lane];
            total[0] += part.x;
            total[1] += part.y;
            total[2] += part.z;
            total[3] += part.w;
        }
        for (int e = 0; e < 4; e++)
            write_result(y, a.tokens, w.rows, group, n, e, total[e]);
    }
}

/* ---- many tokens ------------------------------------------------------------------------------------------------- */

#define TILED_THREADS   256
#define TILED_GROUPS    8  /* of 16 rows: 4 warps with 2 each */
#define TILED_TILES     16 /* of 8 tokens: 2 warps with 8 each */
#define TILED_STAGES    3
#define STAGE_NIBBLES   0
#define STAGE_HEADS     (TILED_GROUPS * 1024)
#define STAGE_Q         (STAGE_HEADS + TILED_GROUPS * 256)
#define STAGE_FACTS     (STAGE_Q + TILED_TILES * 1024)
#define STAGE_HALVES    (STAGE_FACTS + TILED_TILES * 32) /* ORDER_128 */
#define STAGE_BYTES_32  (STAGE_FACTS + TILED_TILES * 256)
#define STAGE_BYTES_128 (STAGE_HALVES + TILED_TILES * 128)

template <enum order order> __device__ constexpr int stage_bytes(void)
{
    return order == ORDER_32 ? STAGE_BYTES_32 : STAGE_BYTES_128;
}

/* Copies runs of `chunks` times 16 bytes, one run per group or tile from `first` on, those past `count` from the last.
 */
__device__ __forceinline__ void stage_runs(uint8_t *to, const uint8_t *from, size_t stride, int runs, int chunks,
                                           int first, int count)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < runs * chunks; i += TILED_THREADS) {
        int run = min(first + i / chunks, count - 1);
        copy_async_16(to + i * 16, from + (size_t)run * stride + (size_t)(i % chunks) * 16);
    }
}

template <enum order order>
__device__ __forceinline__ void stage_in(uint8_t *stage, const struct weights *w, const struct activations *a, int half)
{
    int groups = (w->rows + GROUP_ROWS - 1) / GROUP_ROWS, tiles = token_tiles(a->tokens), halves = w->cols / HALF;
    int group = blockIdx.x * TILED_GROUPS, tile = blockIdx.y * TILED_TILES;
    const uint8_t *super = w->packed + (size_t)(half / 2) * GROUP_BYTES;
    size_t stride = (size_t)(w->cols / SUPER) * GROUP_BYTES;
    stage_runs(stage + STAGE_NIBBLES, super + half % 2 * 1024, stride, TILED_GROUPS, 64, group, groups);
    stage_runs(stage + STAGE_HEADS, super + 2048, stride, TILED_GROUPS, 16, group, groups);
    stage_runs(stage + STAGE_Q, (const uint8_t *)a->q + (size_t)half * 1024, (size_t)halves * 1024, TILED_TILES, 64,
               tile, tiles);
    const size_t facts = step_facts<order>() * 4;
    stage_runs(stage + STAGE_FACTS, (const uint8_t *)a->facts + half * facts, halves * facts, TILED_TILES,
               (int)(facts / 16), tile, tiles);
    if (order == ORDER_128)
        stage_runs(stage + STAGE_HALVES, (const uint8_t *)a->halves + (size_t)half * 128, (size_t)halves * 128,
                   TILED_TILES, 8, tile, tiles);
}

/* 128 rows by 128 tokens per block: grid (rows / 128, tokens / 128), rounded up; shared memory TILED_STAGES stages. */
template <enum order order>
__global__ void __launch_bounds__(TILED_THREADS, 1) tiled(struct weights w, struct activations a, float *y)
{
    SHARED_DYNAMIC(memory);
    const int own_groups = 2, own_tiles = 8;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, halves = w.cols / HALF;
    int group = warp % 4 * own_groups, tile = warp / 4 * own_tiles; /* within the block */
    float acc[own_groups][own_tiles][4] = {}, total[own_groups][own_tiles][4] = {};
#pragma unroll 1
    for (int s = 0; s < TILED_STAGES - 1; s++) {
        if (s < halves)
            stage_in<order>(memory + s * stage_bytes<order>(), &w, &a, s);
        copy_async_commit();
    }
    for (int half = 0; half < halves; half++) {
        copy_async_wait<TILED_STAGES - 2>();
        __syncthreads();
        if (half + TILED_STAGES - 1 < halves)
            stage_in<order>(memory + (half + TILED_STAGES - 1) % TILED_STAGES * stage_bytes<order>(), &w, &a,
                            half + TILED_STAGES - 1);
        copy_async_commit();
        const uint8_t *stage = memory + half % TILED_STAGES * stage_bytes<order>();
        struct unpacked u[own_groups];
#pragma unroll
        for (int m = 0; m < own_groups; m++) {
            const uint4 *from = (const uint4 *)(stage + STAGE_NIBBLES + (group + m) * 1024);
            const uint4 *heads = (const uint4 *)(stage + STAGE_HEADS + (group + m) * 256);
            uint4 nibbles[2] = {from[lane], from[WARP + lane]}, head[2] = {heads[lane / 4], heads[8 + lane / 4]};
            unpack<order>(&u[m], half % 2, nibbles, head);
        }
#pragma unroll
        for (int n = 0; n < own_tiles; n++) {
            const uint4 *from = (const uint4 *)(stage + STAGE_Q + (tile + n) * 1024);
            uint4 q[2] = {from[lane], from[WARP + lane]};
            const float *facts = (const float *)(stage + STAGE_FACTS) + (tile + n) * step_facts<order>();
            const uint32_t *sums = (const uint32_t *)(stage + STAGE_HALVES) + (tile + n) * 32;
#pragma unroll
            for (int m = 0; m < own_groups; m++)
                step<order>(&u[m], q, facts, sums, acc[m][n]);
        }
        if (half % PIECE_HALVES == PIECE_HALVES - 1 || half == halves - 1) {
#pragma unroll
            for (int i = 0; i < own_groups * own_tiles * 4; i++) {
                (&total[0][0][0])[i] += (&acc[0][0][0])[i];
                (&acc[0][0][0])[i] = 0;
            }
        }
    }
    copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < own_groups; m++)
#pragma unroll
        for (int n = 0; n < own_tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                write_result(y, a.tokens, w.rows, blockIdx.x * TILED_GROUPS + group + m,
                             blockIdx.y * TILED_TILES + tile + n, e, total[m][n][e]);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static inline cudaError_t launch_quantize(enum order order, const float *x, struct activations a, cudaStream_t s)
{
    dim3 grid(a.cols / HALF, token_tiles(a.tokens));
    return order == ORDER_32 ? launch(quantize<ORDER_32>, grid, TOKEN_TILE * WARP, 0, s, x, a)
                             : launch(quantize<ORDER_128>, grid, TOKEN_TILE * WARP, 0, s, x, a);
}

template <int tiles>
static inline cudaError_t launch_gemv_tiles(enum order order, struct weights w, struct activations a, float *y,
                                            cudaStream_t s)
{
    int groups = (w.rows + GROUP_ROWS - 1) / GROUP_ROWS,
        pieces = (w.cols + PIECE_HALVES * HALF - 1) / (PIECE_HALVES * HALF);
    void (*kernel)(struct weights, struct activations, float *) =
        order == ORDER_32 ? gemv<ORDER_32, tiles> : gemv<ORDER_128, tiles>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, pieces * tiles * 512);
    return e ? e : launch(kernel, groups, GEMV_WARPS * WARP, (size_t)(pieces * tiles * 512), s, w, a, y);
}

/* 1 to 32 tokens. */
static inline cudaError_t launch_gemv(enum order order, struct weights w, struct activations a, float *y,
                                      cudaStream_t s)
{
    switch (token_tiles(a.tokens)) {
    case 1:
        return launch_gemv_tiles<1>(order, w, a, y, s);
    case 2:
        return launch_gemv_tiles<2>(order, w, a, y, s);
    case 3:
        return launch_gemv_tiles<3>(order, w, a, y, s);
    case 4:
        return launch_gemv_tiles<4>(order, w, a, y, s);
    default:
        return cudaErrorInvalidValue;
    }
}

static inline cudaError_t launch_tiled(enum order order, struct weights w, struct activations a, float *y,
                                       cudaStream_t s)
{
    dim3 grid((w.rows + 127) / 128, (a.tokens + 127) / 128);
    size_t bytes = TILED_STAGES * (order == ORDER_32 ? STAGE_BYTES_32 : STAGE_BYTES_128);
    void (*kernel)(struct weights, struct activations, float *) =
        order == ORDER_32 ? tiled<ORDER_32> : tiled<ORDER_128>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e ? e : launch(kernel, grid, TILED_THREADS, bytes, s, w, a, y);
}

#endif

/* peaks.h - what a chip gives at most: kernels that only read, only copy, only multiply; and a plain bf16 product, the
 * measure for the library's bits. Every one leaves a result that depends on all it did, so that nothing is left out and
 * a test can check it. */
#ifndef CONVOD_TESTS_GPU_PEAKS_H
#define CONVOD_TESTS_GPU_PEAKS_H

#include "kernels/cuda/device.h"

#define PEAK_THREADS 256

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* out[block] = exclusive or of all words that the block read. `n` is a multiple of READ_UNROLL * PEAK_THREADS. */
#define READ_UNROLL 8
__global__ static void __launch_bounds__(PEAK_THREADS) read_all(const uint4 *from, size_t n, uint32_t *out)
{
    SHARED(uint32_t, parts, [PEAK_THREADS / WARP]);
    uint32_t mine = 0;
    const size_t chunk = READ_UNROLL * PEAK_THREADS;
    for (size_t first = blockIdx.x * chunk; first < n; first += gridDim.x * chunk) {
        uint4 v[READ_UNROLL];
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            v[i] = __ldg(from + first + i * PEAK_THREADS + threadIdx.x);
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            mine ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (int flip = 1; flip < WARP; flip *= 2)
        mine ^= __shfl_xor_sync(ALL_LANES, mine, flip);
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = mine;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int i = 1; i < PEAK_THREADS / WARP; i++)
        mine ^= parts[i];
    out[blockIdx.x] = mine;
}

__global__ static void __launch_bounds__(PEAK_THREADS) copy_all(uint4 *to, const uint4 *from, size_t n)
{
    const size_t chunk = READ_UNROLL * PEAK_THREADS;
    for (size_t first = blockIdx.x * chunk; first < n; first += gridDim.x * chunk) {
        uint4 v[READ_UNROLL];
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            v[i] = __ldg(from + first + i * PEAK_THREADS + threadIdx.x);
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            to[first + i * PEAK_THREADS + threadIdx.x] = v[i];
    }
}

/* x[i] = numbers that look random: a counter's bits, mixed. */
__device__ __forceinline__ uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

__global__ static void __launch_bounds__(PEAK_THREADS) fill_words(uint32_t *x, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * PEAK_THREADS)
        x[i] = mixed((uint32_t)i ^ seed);
}

/* bf16 of both signs; exponents spread over 2^-spread .. 1, so that sums do round. */
__global__ static void __launch_bounds__(PEAK_THREADS) fill_bf16(uint16_t *x, size_t n, uint32_t seed, int spread)
{
    for (size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * PEAK_THREADS) {
        uint32_t r = mixed((uint32_t)i ^ seed);
        x[i] = (uint16_t)((r & 0x8000) | (127u - (r >> 16) % (uint32_t)spread) << 7 | (r & 0x7f));
    }
}

__global__ static void __launch_bounds__(PEAK_THREADS) fill_floats(float *x, size_t n, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * PEAK_THREADS)
        x[i] = (float)((int)mixed((uint32_t)i ^ seed) >> 8) * 0x1p-23f;
}

/* Packed Q4_K weights (products.h) of random bytes have any scale, NaN too: this makes d and dmin sane. */
__global__ static void __launch_bounds__(PEAK_THREADS) fill_scales(uint8_t *packed, size_t supers, uint32_t seed)
{
    for (size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x; i < supers * 16;
         i += (size_t)gridDim.x * PEAK_THREADS) {
        uint32_t r = mixed((uint32_t)i ^ seed);
        uint32_t *head = (uint32_t *)(packed + i / 16 * 2304 + 2048 + i % 16 * 16);
        *head = (0x1800 | (r & 0x3ff)) | (0x1800 | (r >> 10 & 0x3ff)) << 16; /* about 2^-9 */
    }
}

/* Words of a and b that differ, added to *count. */
__global__ static void __launch_bounds__(PEAK_THREADS)
    count_different(const uint32_t *a, const uint32_t *b, size_t n, unsigned *count)
{
    unsigned mine = 0;
    for (size_t i = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * PEAK_THREADS)
        mine += a[i] != b[i];
    if (mine)
        atomicAdd(count, mine);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

#define PEAK_CHAINS 8 /* independent results per warp, or per lane */

enum peak { PEAK_S8, PEAK_BF16, PEAK_FMA };

/* Operations (a multiplication and an addition are two) per warp and iteration. */
static inline double peak_operations(enum peak peak)
{
    return PEAK_CHAINS * 2.0 * (peak == PEAK_S8 ? 16 * 8 * 32 : peak == PEAK_BF16 ? 16 * 8 * 16 : WARP);
}

__device__ __forceinline__ void peak_step(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_s8(c, a, b, c);
}
__device__ __forceinline__ void peak_step(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    mma_bf16(c, a, b, c);
}

/* Every product is `a`'s value times `b`'s; out[thread] = the sum of the lane's results. */
template <typename T>
__global__ static void __launch_bounds__(PEAK_THREADS) peak_mma(uint32_t a, uint32_t b, int iterations, T *out)
{
    uint32_t as[4] = {a, a, a, a}, bs[2] = {b, b};
    T c[PEAK_CHAINS][4] = {}, sum = 0;
    for (int i = 0; i < iterations; i++)
#pragma unroll
        for (int chain = 0; chain < PEAK_CHAINS; chain++)
            peak_step(c[chain], as, bs);
    for (int i = 0; i < PEAK_CHAINS * 4; i++)
        sum += (&c[0][0])[i];
    out[blockIdx.x * PEAK_THREADS + threadIdx.x] = sum;
}

__global__ static void __launch_bounds__(PEAK_THREADS) peak_fma(float a, float b, int iterations, float *out)
{
    float c[PEAK_CHAINS] = {}, sum = 0;
    for (int i = 0; i < iterations; i++)
#pragma unroll
        for (int chain = 0; chain < PEAK_CHAINS; chain++)
            c[chain] = fmaf(a, c[chain], b);
    for (int chain = 0; chain < PEAK_CHAINS; chain++)
        sum += c[chain];
    out[blockIdx.x * PEAK_THREADS + threadIdx.x] = sum;
}

/* ---- a plain bf16 product ---------------------------------------------------------------------------------------- */

/* y[tokens][rows] = x[tokens][cols] * w[rows][cols]^T: one mma per 16 values, k ascending, one accumulator. A warp has
 * 16 rows and 8 tokens: grid (rows / 16, tokens / 8) rounded up, 32 threads. cols is a multiple of 16. */
__global__ static void __launch_bounds__(WARP)
    plain_bf16(const uint16_t *w, const uint16_t *x, int rows, int cols, int tokens, float *y)
{
    int g = threadIdx.x / 4, t = threadIdx.x % 4, row = blockIdx.x * 16 + g, token = blockIdx.y * 8 + g;
    const uint32_t *low = (const uint32_t *)(w + (size_t)min(row, rows - 1) * cols) + t;
    const uint32_t *high = (const uint32_t *)(w + (size_t)min(row + 8, rows - 1) * cols) + t;
    const uint32_t *in = (const uint32_t *)(x + (size_t)min(token, tokens - 1) * cols) + t;
    float c[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int k = 0; k < cols / 2; k += 8) {
        uint32_t a[4] = {__ldg(low + k), __ldg(high + k), __ldg(low + k + 4), __ldg(high + k + 4)};
        uint32_t b[2] = {__ldg(in + k), __ldg(in + k + 4)};
        mma_bf16(c, a, b, c);
    }
    for (int e = 0; e < 4; e++) {
        int r = row + e / 2 * 8, n = blockIdx.y * 8 + 2 * t + e % 2;
        if (r < rows && n < tokens)
            y[(size_t)n * rows + r] = c[e];
    }
}

#endif

/* halves.cu - products with F16 and BF16 weights on tensor cores: the device's own bits.
 *
 * Rows of x are rounded to the weights' type first. Every result is one chain of mma.m16n8k16 over ascending columns,
 * zeros behind the last one, in its plainest order; so that it depends on its row of x and its row of weights alone,
 * and a library's kernel that adds in that order too has the same bits.
 *
 * Weights and rows of x come through shared memory, `stages` pieces of `depth` columns deep (cp.async); rows there are
 * 16 bytes longer than they need to be, so that ldmatrix meets all banks. For few rows of x blocks are small and deep,
 * since what counts is how many bytes are on their way; for many they are 128 by 128.
 *
 * Halves: [whole tiles of 8 rows][cols], behind them a float per row, the power of two it was divided by.
 */
#include "kernels/cuda/product.h"

#define FEW_ROWS    64 /* of x, up to which blocks are small */
#define NARROWERS   128
#define DEPTH_MMA   16
#define PART_VALUES 8 /* of a copy of 16 bytes */

bool cuda_takes_halves(enum kernels_type type, int cols)
{
    return (type == KERNELS_F16 || type == KERNELS_BF16) && cols % PART_VALUES == 0;
}

size_t cuda_halves_bytes(int rows, int cols)
{
    return (scales_at(rows, cols) + (size_t)rows * sizeof(float) + 15) & ~(size_t)15;
}

/* ---- rows of x --------------------------------------------------------------------------------------------------- */

/* A block per row. */
static __global__ void __launch_bounds__(NARROWERS)
    narrow_row(enum kernels_type type, const float *x, int cols, uint16_t *halves, float *scales)
{
    wait_for_earlier();
    SHARED(uint32_t, tops, [NARROWERS / WARP]);
    x += (size_t)blockIdx.x * cols;
    halves += (size_t)blockIdx.x * cols;
    uint32_t top = 0;
    for (int i = threadIdx.x; i < cols; i += NARROWERS)
        top = max(top, __float_as_uint(x[i]) & 0x7fffffff);
    for (int flip = 1; flip < WARP; flip *= 2)
        top = max(top, __shfl_xor_sync(ALL_LANES, top, flip));
    if (threadIdx.x % WARP == 0)
        tops[threadIdx.x / WARP] = top;
    __syncthreads();
    for (int w = 0; w < NARROWERS / WARP; w++)
        top = max(top, tops[w]);
    /* 2^14 is exponent 141; both powers are normal numbers. */
    bool broken = top >= 0x7f800000;
    int down = type == KERNELS_F16 && top ? max(max((int)(top >> 23), 1) - 141, -126) : 0;
    float factor = __uint_as_float((uint32_t)(127 - down) << 23);
    for (int i = threadIdx.x; i < cols; i += NARROWERS) {
        float v = broken ? not_a_number() : x[i] * factor;
        halves[i] = type == KERNELS_F16 ? narrow_f16(v) : narrow_bf16(v);
    }
    if (threadIdx.x == 0)
        scales[blockIdx.x] = __uint_as_float((uint32_t)(127 + down) << 23);
}

int cuda_narrow(cudaStream_t s, enum kernels_type type, const float *x, int n, int cols, void *halves)
{
    return n <= 0 ? 0
                  : launched(launch(narrow_row, n, NARROWERS, 0, s, type, x, cols, (uint16_t *)halves,
                                    (float *)((uint8_t *)halves + scales_at(n, cols))));
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Warps of a block along weights and along x, 16 rows of weights and tiles of 8 rows of x that each has. */
template <int along_w, int along_x, int groups, int tiles, int depth, int stages> struct shape {
    static constexpr int threads = along_w * along_x * WARP, w_rows = along_w * groups * 16, x_tiles = along_x * tiles,
                         x_rows = x_tiles * TILE, row_bytes = depth * 2 + 16,
                         stage_bytes = (w_rows + x_rows) * row_bytes, shared_bytes = stages * stage_bytes;
};

/* Starts copying columns [col, col + depth) of `count` rows of which `real` are there; zeros for what is not. */
template <int depth, int threads>
static __device__ __forceinline__ void copy_rows(uint8_t *to, const uint16_t *from, int count, int real, int col,
                                                 int cols)
{
    constexpr int parts = depth / PART_VALUES;
    for (int i = threadIdx.x; i < count * parts; i += threads) {
        int row = i / parts, part = i % parts, at = col + part * PART_VALUES;
        bool there = row < real && at < cols;
        copy_async_16_or_zero(to + row * (depth * 2 + 16) + part * 16, there ? from + (size_t)row * cols + at : from,
                              there);
    }
}

/* Grid: whatever shares the tiles out, rows of weights, experts. */
template <enum kernels_type type, int along_w, int along_x, int groups, int tiles, int depth, int stages>
static __global__ void __launch_bounds__(along_w *along_x *WARP)
    multiply_halves(struct cuda_product p, size_t matrix_bytes)
{
    using shape = struct shape<along_w, along_x, groups, tiles, depth, stages>;
    static_assert(tiles % 2 == 0 && depth % DEPTH_MMA == 0, "ldmatrix takes two tiles at a time");
    SHARED_DYNAMIC(memory);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, w_warp = warp % along_w, x_warp = warp / along_w;
    int cols = p.w.cols, first_row = blockIdx.y * shape::w_rows, w_real = min(shape::w_rows, p.w.rows - first_row);
    int steps = (cols + depth - 1) / depth;
    size_t expert = p.tiles ? blockIdx.z : 0;
    const uint16_t *w =
        (const uint16_t *)((const uint8_t *)p.w.data + expert * matrix_bytes) + (size_t)first_row * cols;
    auto copy_w = [&](int step) {
        if (step < steps)
            copy_rows<depth, shape::threads>(memory + step % stages * shape::stage_bytes, w, shape::w_rows, w_real,
                                             step * depth, cols);
    };
    auto begin = [&] {
        for (int s = 0; s < stages - 1; s++)
            copy_w(s);
    };
    bool begun = !p.tiles; /* an expert may have no rows */
    if (begun)
        begin();
    wait_for_earlier();
    struct part part = part_of(&p, matrix_bytes);
    const float *scales = (const float *)((const uint8_t *)p.halves + scales_at(p.n, cols));
    for (int tile = part.first + blockIdx.x * shape::x_tiles; tile < part.end; tile += gridDim.x * shape::x_tiles) {
        int first_x = tile * TILE, x_real = min(min(shape::x_rows, (part.end - tile) * TILE), p.n - first_x);
        const uint16_t *x = (const uint16_t *)p.halves + (size_t)first_x * cols;
        float acc[groups][tiles][4] = {};
        auto copy_x = [&](int step) { /* and closes the group of a step */
                                      if (step < steps)
                                          copy_rows<depth, shape::threads>(memory + step % stages * shape::stage_bytes +
                                                                               shape::w_rows * shape::row_bytes,
                                                                           x, shape::x_rows, x_real, step * depth,
                                                                           cols);
                                      copy_async_commit();
        };
        if (!begun) {
            __syncthreads(); /* nobody reads the tiles before any more */
            begin();
        }
        begun = false;
        for (int s = 0; s < stages - 1; s++)
            copy_x(s);
        for (int s = 0; s < steps; s++) {
            copy_async_wait<stages - 2>();
            __syncthreads(); /* step s is there, and the stage of s - 1 is free */
            copy_w(s + stages - 1);
            copy_x(s + stages - 1);
            const uint8_t *stage = memory + s % stages * shape::stage_bytes;
            const uint8_t *a_rows =
                stage + (w_warp * groups * 16 + lane % 16) * shape::row_bytes + lane / 16 * (PART_VALUES * 2);
            const uint8_t *b_rows =
                stage + (shape::w_rows + x_warp * tiles * TILE + lane / 16 * TILE + lane % TILE) * shape::row_bytes +
                lane / 8 % 2 * (PART_VALUES * 2);
#pragma unroll
            for (int k = 0; k < depth; k += DEPTH_MMA) {
                uint32_t a[groups][4], b[tiles / 2][4];
#pragma unroll
                for (int g = 0; g < groups; g++)
                    load_matrices(a[g], a_rows + g * 16 * shape::row_bytes + k * 2);
#pragma unroll
                for (int n = 0; n < tiles / 2; n++)
                    load_matrices(b[n], b_rows + n * 2 * TILE * shape::row_bytes + k * 2);
#pragma unroll
                for (int g = 0; g < groups; g++)
#pragma unroll
                    for (int n = 0; n < tiles; n++) {
                        if (type == KERNELS_BF16)
                            mma_bf16(acc[g][n], a[g], &b[n / 2][n % 2 * 2], acc[g][n]);
                        else
                            mma_f16(acc[g][n], a[g], &b[n / 2][n % 2 * 2], acc[g][n]);
                    }
            }
        }
#pragma unroll
        for (int g = 0; g < groups; g++)
#pragma unroll
            for (int n = 0; n < tiles; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int row = (w_warp * groups + g) * 16 + lane / 4 + e / 2 * 8,
                        x_row = (x_warp * tiles + n) * TILE + lane % 4 * 2 + e % 2;
                    if (row < w_real && x_row < x_real)
                        write_result(&p, part.bias, first_x + x_row, first_row + row,
                                     acc[g][n][e] * scales[first_x + x_row]);
                }
    }
}

template <enum kernels_type type, int along_w, int along_x, int groups, int tiles, int depth, int stages>
static cudaError_t multiply_as(cudaStream_t s, const struct cuda_product *p)
{
    using shape = struct shape<along_w, along_x, groups, tiles, depth, stages>;
    auto kernel = multiply_halves<type, along_w, along_x, groups, tiles, depth, stages>;
    int matrices = p->tiles ? p->experts : 1;
    int chunks = (tiles_of(p->n) / matrices + shape::x_tiles - 1) / shape::x_tiles;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape::shared_bytes);
    return error != cudaSuccess
               ? error
               : launch(kernel,
                        dim3(chunks > 0 ? chunks : 1, (p->w.rows + shape::w_rows - 1) / shape::w_rows, matrices),
                        shape::threads, shape::shared_bytes, s, *p, cuda_weights_bytes(type, p->w.rows, p->w.cols));
}

/* Along weights where there are many rows of x; the emulation takes fewer threads. */
#define MANY_ALONG (MANY_THREADS / 256 > 1 ? 2 : 1)

template <enum kernels_type type> static cudaError_t multiply_type(cudaStream_t s, const struct cuda_product *p)
{
    int rows = p->tiles ? p->n / p->experts : p->n;
    if (rows <= 2 * TILE)
        return multiply_as<type, 2, 1, 1, 2, 128, 4>(s, p);
    if (rows <= FEW_ROWS)
        return multiply_as<type, 2, 1, 1, 8, 128, 3>(s, p);
    return multiply_as<type, MANY_ALONG, 2 * MANY_ALONG, 4, 4, 32, 4>(s, p);
}

int cuda_multiply_halves(cudaStream_t s, struct cuda_product p)
{
    return launched(p.w.type == KERNELS_BF16 ? multiply_type<KERNELS_BF16>(s, &p) : multiply_type<KERNELS_F16>(s, &p));
}

/* tiles.h - products of many rows with quantized weights: what linear.cu's few-row kernel computes, in its order and
 * with its bits, shared out otherwise. linear.cu includes this behind what a step is.
 *
 * A warp has 16 rows of weights, from the first piece of 512 values to the last, and tiled_tiles() tiles of x; the
 * warps of a block have neighbouring rows and the same tiles, whose quants come through shared memory, two steps ahead
 * of use (cp.async). Quants lie in fragments already, so that a lane's are 16 bytes side by side and ldmatrix has
 * nothing to do. Weights go from global memory to registers, a step ahead: no other warp of the block wants them. Sums
 * of pieces that are done lie in shared memory too, where only their own thread comes.
 *
 * Blocks of the same rows are neighbours in the grid, so that weights are read from memory once.
 */
#ifndef CONVOD_KERNELS_CUDA_TILES_H
#define CONVOD_KERNELS_CUDA_TILES_H

#define TILED_WARPS   (MANY_THREADS / 64 > 2 ? MANY_THREADS / 64 : 2)
#define TILED_THREADS (TILED_WARPS * WARP)
#define TILED_STAGES  3

/* The bytes of a step of x that a type takes. */
__host__ __device__ static constexpr int tiled_step_bytes(enum kernels_type type)
{
    const struct weight_layout l = weight_layout_of(type);
    return !l.minimum ? QUANTS_DSUM : l.scale != SCALE_16 ? QUANTS_SUMS : QUANTS_STEP;
}

/* Tiles that 128 registers, which a multiprocessor has for 16 warps, leave room for. Types with minima per 32 values
 * want more registers than that in any case, but for Q4_K, and get them. */
__host__ __device__ static constexpr bool tiled_wants_all(enum kernels_type type)
{
    const struct weight_layout l = weight_layout_of(type);
    return l.scale != SCALE_16 && l.minimum && type != KERNELS_Q4_K;
}

__host__ __device__ static constexpr int tiled_tiles(enum kernels_type type)
{
    const struct weight_layout l = weight_layout_of(type);
    return l.scale == SCALE_16 ? 5 : !tiled_wants_all(type) && (l.minimum || l.ones) ? 6 : 8;
}

__host__ __device__ static constexpr int tiled_shared_bytes(enum kernels_type type)
{
    return tiled_tiles(type) * (TILED_STAGES * tiled_step_bytes(type) + TILED_THREADS * (int)sizeof(float4));
}

/* Starts copying a step of `here` tiles of x, by the whole block; a group of copies even where there is none. */
template <int bytes>
static __device__ __forceinline__ void copy_step(uint8_t *stage, const uint8_t *quants, int here, int step, int steps)
{
    constexpr int chunks = bytes / 16;
    if (step < steps)
        for (int i = threadIdx.x; i < here * chunks; i += TILED_THREADS) {
            int n = i / chunks, at = i % chunks * 16;
            copy_async_16(stage + n * bytes + at, quants + ((size_t)n * steps + step) * QUANTS_STEP + at);
        }
    copy_async_commit();
}

/* Grid: whatever shares the tiles out, TILED_WARPS groups of rows, experts. */
template <enum kernels_type type>
static __global__ void __launch_bounds__(TILED_THREADS, tiled_wants_all(type) ? 1 : BLOCKS_BESIDE)
    multiply_tiled(struct cuda_product p, size_t matrix_bytes)
{
    wait_for_earlier();
    constexpr size_t record = weight_record_bytes(weight_layout_of(type));
    constexpr int tiles = tiled_tiles(type), step_bytes = tiled_step_bytes(type), stage_bytes = tiles * step_bytes;
    SHARED_DYNAMIC(memory);
    float4 *totals = (float4 *)(memory + TILED_STAGES * stage_bytes) + threadIdx.x;
    int lane = threadIdx.x % WARP, group = blockIdx.y * TILED_WARPS + threadIdx.x / WARP;
    int supers = weight_supers(p.w.cols), steps = steps_of(p.w.cols), subs = p.w.cols / SUB_BLOCK;
    struct part part = part_of(&p, matrix_bytes);
    /* A warp past the last rows computes these once more, and has nothing to write. */
    int there = min(group, (p.w.rows - 1) / GROUP_ROWS);
    const uint8_t *rows = part.data + (size_t)there * supers * record;
    for (int tile = part.first + blockIdx.x * tiles; tile < part.end; tile += gridDim.x * tiles) {
        int here = min(tiles, part.end - tile);
        const uint8_t *quants = (const uint8_t *)p.quants + (size_t)tile * steps * QUANTS_STEP;
        struct weight_raw<type> raw;
        float acc[tiles][4] = {};
        __syncthreads(); /* nobody reads the tiles before any more */
        for (int s = 0; s < TILED_STAGES - 1; s++)
            copy_step<step_bytes>(memory + s * stage_bytes, quants, here, s, steps);
        for (int n = 0; n < tiles; n++)
            totals[n * TILED_THREADS] = make_float4(0, 0, 0, 0);
        weight_read<type>(&raw, rows, 0);
        for (int s = 0; s < steps; s++) {
            copy_async_wait<TILED_STAGES - 2>();
            __syncthreads(); /* step s is there, and the stage of s - 1 is free */
            copy_step<step_bytes>(memory + (s + TILED_STAGES - 1) % TILED_STAGES * stage_bytes, quants, here,
                                  s + TILED_STAGES - 1, steps);
            struct weight_step<type> u;
            weight_unpack<type>(&u, &raw, s % 2);
            if (s + 1 < steps)
                weight_read<type>(&raw, rows + (size_t)((s + 1) / 2) * record, (s + 1) % 2);
            const uint8_t *stage = memory + s % TILED_STAGES * stage_bytes;
#pragma unroll
            for (int n = 0; n < tiles; n++) {
                if (n >= here)
                    break;
                add_step<type>(&u, stage + n * step_bytes, subs - s * STEP_SUBS, TILE, acc[n]);
            }
            if (s % PIECE_STEPS != PIECE_STEPS - 1 && s != steps - 1)
                continue;
#pragma unroll
            for (int n = 0; n < tiles; n++) {
                float4 *total = &totals[n * TILED_THREADS];
                *total =
                    make_float4(total->x + acc[n][0], total->y + acc[n][1], total->z + acc[n][2], total->w + acc[n][3]);
                acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
            }
        }
        for (int n = 0; n < here; n++) {
            float4 total = totals[n * TILED_THREADS];
            for (int e = 0; e < 4; e++) {
                int row = group * GROUP_ROWS + lane / 4 + e / 2 * 8, x_row = (tile + n) * TILE + lane % 4 * 2 + e % 2;
                if (row < p.w.rows && x_row < p.n)
                    write_result(&p, part.bias, x_row, row, value_of(total, e));
            }
        }
    }
}

/* How the grid of such a product would be. */
static dim3 tiled_grid(const struct cuda_product *p, int tiles)
{
    int matrices = p->tiles ? p->experts : 1, chunks = (tiles_of(p->n) / matrices + tiles - 1) / tiles;
    return dim3(chunks > 0 ? chunks : 1, (p->w.rows + TILED_WARPS * GROUP_ROWS - 1) / (TILED_WARPS * GROUP_ROWS),
                matrices);
}

/* Whether it is worth while: enough tiles for a warp, and enough blocks for the device. */
static bool tiled_fits(const struct cuda_product *p)
{
    int tiles = tiled_tiles(p->w.type);
    dim3 grid = tiled_grid(p, tiles);
    return tiles_of(p->n) / (int)grid.z >= tiles / 2 && (size_t)grid.x * grid.y * grid.z >= MANY_BLOCKS;
}

template <enum kernels_type type> static cudaError_t multiply_tiles(cudaStream_t s, const struct cuda_product *p)
{
    constexpr int tiles = tiled_tiles(type), bytes = tiled_shared_bytes(type);
    cudaError_t error = cudaFuncSetAttribute(multiply_tiled<type>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error != cudaSuccess ? error
                                : launch(multiply_tiled<type>, tiled_grid(p, tiles), TILED_THREADS, bytes, s, *p,
                                         cuda_weights_bytes(type, p->w.rows, p->w.cols));
}

#endif

/* linear.cu - products with weights of every type, in the order of docs/numerics.md, so that they are the CPU's to the
 * bit, for one row and for thousands.
 *
 * Quantized weights meet quantized rows on integer tensor cores: a warp multiplies 16 rows of weights with tiles of 8
 * rows of x, a step of 128 values at a time. Pieces of 512 values are shared out over the warps of a block and then
 * added in ascending order. Float weights: a lane has a piece of 128 values of a row.
 *
 * Quantized rows: for a tile of 8 rows and a step, QUANTS_STEP bytes: a lane's B fragments of mma.m16n8k32 of all four
 * sub-blocks ([2 pairs][32 lanes][16 bytes]), then for [4 sub-blocks][8 rows] d, d times the sum of q, and the sums of
 * q over the halves of the sub-block (two f16, exact). A type takes a beginning of these bytes.
 */
#include "kernels/cuda/product.h"
#include "kernels/cuda/weights.h"

#define WARPS       8
#define MANY_TILES  4     /* of x that a block takes at a time at most */
#define RING_BYTES  10240 /* of a warp at most */
#define FACT_BYTES  (TILE * STEP_SUBS * 4)
#define QUANTS_D    1024
#define QUANTS_DSUM (QUANTS_D + FACT_BYTES)
#define QUANTS_SUMS (QUANTS_DSUM + FACT_BYTES)
#define QUANTS_STEP (QUANTS_SUMS + FACT_BYTES)
#define ROW_LIMIT   0x1p-100f /* a block whose largest magnitude is below this is zero */

__host__ __device__ static constexpr int steps_of(int cols)
{
    return (cols + STEP - 1) / STEP;
}

size_t cuda_quants_bytes(int rows, int cols)
{
    return (size_t)tiles_of(rows) * (size_t)steps_of(cols) * QUANTS_STEP;
}

/* ---- rows of x --------------------------------------------------------------------------------------------------- */

/* A warp per row and step; a lane has 4 values. Grid (steps, tiles), a warp for each row of a tile; those past the end
 * are zero. */
static __global__ void __launch_bounds__(TILE *WARP) quantize(const float *x, int n, int cols, uint8_t *quants)
{
    wait_for_earlier();
    int lane = threadIdx.x % WARP, of_tile = threadIdx.x / WARP, step = blockIdx.x, tile = blockIdx.y;
    int row = tile * TILE + of_tile, col = step * STEP + lane * 4;
    float4 v = make_float4(0, 0, 0, 0);
    if (row < n && col < cols)
        v = *(const float4 *)(x + (size_t)row * cols + col);
    float values[4] = {v.x, v.y, v.z, v.w};
    uint32_t top = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t magnitude = __float_as_uint(values[i]) & 0x7fffffff;
        top = magnitude > top ? magnitude : top;
    }
    for (int flip = 1; flip < WARP / STEP_SUBS; flip *= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, flip);
        top = other > top ? other : top;
    }
    float largest = __uint_as_float(top), d = 0, inverse = 0;
    bool broken = top >= 0x7f800000;
    if (broken) {
        d = not_a_number();
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
    uint8_t *out = quants + ((size_t)tile * gridDim.x + step) * QUANTS_STEP;
    int sub = lane / 8, reg = lane % 8 / 4, t = lane % 4;
    ((uint32_t *)out)[sub / 2 * 128 + (of_tile * 4 + t) * 4 + sub % 2 * 2 + reg] = word;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2); /* of 16 values */
    int upper = __shfl_down_sync(ALL_LANES, sum, 4), at = sub * TILE + of_tile;
    if (lane % 8)
        return;
    ((float *)(out + QUANTS_D))[at] = d;
    ((float *)(out + QUANTS_DSUM))[at] = d * (float)(sum + upper);
    ((uint32_t *)(out + QUANTS_SUMS))[at] = narrow_f16((float)sum) | (uint32_t)narrow_f16((float)upper) << 16;
}

/* Tiles lie along the grid's y, which ends at 65535: more come in further launches. */
#define MOST_TILES 65535

int cuda_quantize(cudaStream_t s, const float *x, int n, int cols, void *quants)
{
    int error = 0, steps = steps_of(cols);
    for (int tile = 0; tile < tiles_of(n) && !error; tile += MOST_TILES) {
        int first = tile * TILE, tiles = min(tiles_of(n - first), MOST_TILES);
        error = launched(launch(quantize, dim3(steps, tiles), TILE * WARP, 0, s, x + (size_t)first * cols, n - first,
                                cols, (uint8_t *)quants + (size_t)tile * steps * QUANTS_STEP));
    }
    return error;
}

/* ---- a step: 16 rows of weights, 8 of x -------------------------------------------------------------------------- */

static __device__ __forceinline__ float value_of(float4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* With a tile's step x. acc[e] is row g (+ 8 for e > 1) of the weights, row 2 t (+ 1 for odd e) of x. `subs`:
 * sub-blocks of this step; `real`: rows of the tile, of which the others' values are not read. What is known of a
 * sub-block's rows is read where it is used: registers are scarce. */
template <enum kernels_type type>
static __device__ __forceinline__ void add_step(const struct weight_step<type> *u, const uint8_t *x, int subs, int real,
                                                float acc[4])
{
    constexpr struct weight_layout l = weight_layout_of(type);
    constexpr int scales = weight_step<type>::scales, minima = weight_step<type>::minima;
    const int bias[4] = {MMA_BIAS, MMA_BIAS, MMA_BIAS, MMA_BIAS}, lane = threadIdx.x % WARP, t = lane % 4;
    uint4 q = {};
#pragma unroll
    for (int j = 0; j < STEP_SUBS; j++) {
        if (j % 2 == 0 && lane / 4 < real)
            q = ((const uint4 *)x)[j / 2 * WARP + lane];
        const uint32_t b[2] = {j % 2 ? q.z : q.x, j % 2 ? q.w : q.y};
        const float2 scales_of = ((const float2 *)(x + QUANTS_D))[j * 4 + t];
        const float d[2] = {scales_of.x, scales_of.y};
        if (l.scale == SCALE_16) {
            int low[4], high[4];
            mma_s8_k16(low, &u->a[j][0], &b[0], bias);
            mma_s8_k16(high, &u->a[j][2], &b[1], bias);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float first = u->s[2 * j % scales][e / 2] * biased_float(low[e]);
                acc[e] = fmaf(d[e % 2], fmaf(u->s[(2 * j + 1) % scales][e / 2], biased_float(high[e]), first), acc[e]);
                if (l.minimum) {
                    uint32_t sums = ((const uint32_t *)(x + QUANTS_SUMS))[j * TILE + 2 * t + e % 2];
                    first = u->m[2 * j % minima][e / 2] * widen_f16((uint16_t)sums);
                    first = fmaf(u->m[(2 * j + 1) % minima][e / 2], widen_f16((uint16_t)(sums >> 16)), first);
                    acc[e] = fmaf(d[e % 2], first, acc[e]);
                }
            }
            continue;
        }
        if (l.scale == SCALE_FLOAT && j >= subs) /* other types have whole steps */
            continue;
        int sums[4];
        mma_s8(sums, u->a[j], b, bias);
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[e] = fmaf(u->s[j][e / 2] * d[e % 2], biased_float(sums[e]), acc[e]);
        if (l.minimum) {
            const float2 sums_of = ((const float2 *)(x + QUANTS_DSUM))[j * 4 + t];
            const float dsum[2] = {sums_of.x, sums_of.y};
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[e] = fmaf(u->m[j % minima][e / 2], dsum[e % 2], acc[e]);
        }
    }
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* Pieces that a warp has in a round: 16 KB of sums. */
__host__ __device__ static constexpr int round_pieces(int tiles)
{
    return 4 / tiles;
}

/* Records of a warp that are in shared memory or on their way there: with two blocks on a multiprocessor some 70 to 110
 * kB are on their way at any time, where 29 kB would do (docs/cuda.md). */
__host__ __device__ static constexpr int ring_stages(size_t record)
{
    return record * 4 <= RING_BYTES ? 4 : (int)(RING_BYTES / record);
}

__host__ __device__ static constexpr size_t few_shared_bytes(size_t record)
{
    return WARPS * (ring_stages(record) * record + round_pieces(1) * WARP * sizeof(float4));
}

/* A block has 16 rows of weights and takes `tiles` tiles of x at a time; the warps take turns at the pieces, of which
 * each is two records. A warp's records come through a ring of its own, so that it waits for nobody but at the end of a
 * round, across which copies go on. The first ones are asked for before what the earlier kernels write is there. Grid:
 * groups of rows, whatever shares the tiles out, experts. */
template <enum kernels_type type, int tiles>
static __global__ void __launch_bounds__(WARPS *WARP, tiles == 1 ? 2 : 1)
    multiply(struct cuda_product p, size_t matrix_bytes)
{
    constexpr size_t record = weight_record_bytes(weight_layout_of(type));
    constexpr int most = WARPS * round_pieces(tiles), stages = ring_stages(record);
    static_assert(record % 16 == 0 && stages > 1, "records are copied by 16 bytes, one ahead at least");
    SHARED_DYNAMIC(memory);
    float4(*sums)[tiles][WARP] = (float4(*)[tiles][WARP])memory; /* [most] */
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = blockIdx.x;
    uint8_t *ring = memory + most * sizeof *sums + warp * stages * record;
    int supers = weight_supers(p.w.cols), steps = steps_of(p.w.cols), subs = p.w.cols / SUB_BLOCK;
    int pieces = (steps + PIECE_STEPS - 1) / PIECE_STEPS;
    size_t expert = p.tiles ? blockIdx.z : 0;
    const uint8_t *rows = (const uint8_t *)p.w.data + expert * matrix_bytes + (size_t)group * supers * record;
    /* Starts copying the warp's record i. */
    auto copy = [&](int i) {
        int at = (warp + i / PIECE_RECORDS * WARPS) * PIECE_RECORDS + i % PIECE_RECORDS;
        const uint8_t *from = rows + at * record + lane * 16;
        uint8_t *to = ring + i % stages * record + lane * 16;
#pragma unroll
        for (int b = 0; b < (int)record; b += WARP * 16)
            if (at < supers && b + lane * 16 < (int)record)
                copy_async_16(to + b, from + b);
        copy_async_commit();
    };
    auto begin = [&] {
        for (int i = 0; i < stages - 1; i++)
            copy(i);
    };
    bool begun = !p.tiles; /* an expert may have no rows */
    if (begun)
        begin();
    wait_for_earlier();
    struct part part = part_of(&p, matrix_bytes);
    for (int tile = part.first + blockIdx.y * tiles; tile < part.end; tile += gridDim.y * tiles) {
        int here = min(tiles, part.end - tile), i = 0;
        const uint8_t *quants = (const uint8_t *)p.quants + (size_t)tile * steps * QUANTS_STEP;
        float total[4] = {}; /* of tile `warp` */
        if (!begun)
            begin();
        begun = false;
        for (int round = 0; round < pieces; round += most) {
            int last = min(most, pieces - round);
            for (int piece = warp; piece < last; piece += WARPS) {
                float acc[tiles][4] = {};
                int first = (round + piece) * PIECE_STEPS, end = min(first + PIECE_STEPS, steps);
                for (int s = first; s < end; s++) {
                    if (s % RECORD_STEPS == 0) {
                        copy_async_wait<stages - 2>();
                        __syncwarp(); /* record i is there, and the place of i - 1 is free */
                        copy(i + stages - 1);
                    }
                    struct weight_raw<type> raw;
                    struct weight_step<type> u;
                    weight_read<type, true>(&raw, ring + i % stages * record, s % RECORD_STEPS);
                    weight_unpack<type>(&u, &raw, s % RECORD_STEPS);
#pragma unroll
                    for (int n = 0; n < tiles; n++) {
                        if (n >= here)
                            break;
                        add_step<type>(&u, quants + ((size_t)n * steps + s) * QUANTS_STEP, subs - s * STEP_SUBS,
                                       p.n - (tile + n) * TILE, acc[n]);
                    }
                    i += s % RECORD_STEPS == RECORD_STEPS - 1;
                }
#pragma unroll
                for (int n = 0; n < tiles; n++)
                    sums[piece][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
            }
            __syncthreads();
            for (int piece = 0; piece < last && warp < here; piece++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    total[e] += value_of(sums[piece][warp % tiles][lane], e);
            __syncthreads(); /* nobody reads the round any more */
        }
        for (int e = 0; e < 4 && warp < here; e++) {
            int row = group * GROUP_ROWS + lane / 4 + e / 2 * 8, x_row = (tile + warp) * TILE + lane % 4 * 2 + e % 2;
            if (row < p.w.rows && x_row < p.n)
                write_result(&p, part.bias, x_row, row, total[e]);
        }
    }
}

#include "kernels/cuda/tiles.h"

/* Blocks that share the tiles out; experts have few each, and go on by themselves. */
static dim3 grid_for(const struct cuda_product *p, int units, int tiles)
{
    int chunks = p->tiles ? 1 : (tiles_of(p->n) + tiles - 1) / tiles;
    return dim3(units, chunks < MOST_TILES ? chunks : MOST_TILES, p->tiles ? p->experts : 1);
}

template <enum kernels_type type, int tiles>
static cudaError_t multiply_few(cudaStream_t s, const struct cuda_product *p)
{
    constexpr int bytes = (int)few_shared_bytes(weight_record_bytes(weight_layout_of(type)));
    cudaError_t error = cudaFuncSetAttribute(multiply<type, tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return error != cudaSuccess
               ? error
               : launch(multiply<type, tiles>, grid_for(p, (p->w.rows + GROUP_ROWS - 1) / GROUP_ROWS, tiles),
                        WARPS * WARP, bytes, s, *p, cuda_weights_bytes(type, p->w.rows, p->w.cols));
}

template <enum kernels_type type> static cudaError_t multiply_type(cudaStream_t s, const struct cuda_product *p)
{
    int n = p->tiles ? MANY_TILES : tiles_of(p->n);
    if (tiled_fits(p))
        return multiply_tiles<type>(s, p);
    if (n == 1)
        return multiply_few<type, 1>(s, p);
    return n == 2 ? multiply_few<type, 2>(s, p) : multiply_few<type, MANY_TILES>(s, p);
}

/* ---- float weights ----------------------------------------------------------------------------------------------- */

#define FLOAT_PIECE 128 /* values that are summed up by themselves */
#define FLOAT_ROWS  8   /* of weights, that a block has */

/* Four values of rows of such a type, from one that 4 divides. */
static __device__ __forceinline__ float4 weight_floats(enum kernels_type type, const void *data, size_t i)
{
    if (type == KERNELS_F32)
        return *(const float4 *)((const float *)data + i);
    uint2 v = *(const uint2 *)((const uint16_t *)data + i);
    uint16_t bits[4] = {(uint16_t)v.x, (uint16_t)(v.x >> 16), (uint16_t)v.y, (uint16_t)(v.y >> 16)};
    if (type == KERNELS_F16)
        return make_float4(widen_f16(bits[0]), widen_f16(bits[1]), widen_f16(bits[2]), widen_f16(bits[3]));
    return make_float4(widen_bf16(bits[0]), widen_bf16(bits[1]), widen_bf16(bits[2]), widen_bf16(bits[3]));
}

/* A lane has a piece of a row of weights: a warp's are 8 rows, 4 pieces. Takes a tile of x at a time. Grid: rows /
 * FLOAT_ROWS, and as above. */
static __global__ void __launch_bounds__(WARPS *WARP) multiply_floats(struct cuda_product p, size_t matrix_bytes)
{
    wait_for_earlier();
    constexpr int most = WARPS * WARP / FLOAT_ROWS; /* pieces of a round */
    SHARED(float, sums, [most][FLOAT_ROWS * TILE + 1]);
    int cols = p.w.cols, thread = threadIdx.x, of_row = thread % FLOAT_ROWS, piece = thread / FLOAT_ROWS;
    int row = blockIdx.x * FLOAT_ROWS + of_row, pieces = (cols + FLOAT_PIECE - 1) / FLOAT_PIECE;
    struct part part = part_of(&p, matrix_bytes);
    for (int tile = part.first + blockIdx.y; tile < part.end; tile += gridDim.y) {
        int here = min(TILE, p.n - tile * TILE);
        const float *x = p.x + (size_t)tile * TILE * cols;
        float total = 0; /* of result `thread` */
        for (int round = 0; round < pieces; round += most) {
            int first = (round + piece) * FLOAT_PIECE, end = row < p.w.rows ? min(first + FLOAT_PIECE, cols) : 0;
            float sum[TILE] = {};
            int k = first;
            for (; cols % 4 == 0 && k < end; k += 4) {
                float4 w = weight_floats(p.w.type, part.data, (size_t)row * cols + k);
#pragma unroll
                for (int i = 0; i < TILE; i++) {
                    if (i >= here)
                        break;
                    float4 v = *(const float4 *)(x + (size_t)i * cols + k);
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        sum[i] = fmaf(value_of(w, c), value_of(v, c), sum[i]);
                }
            }
            for (; k < end; k++) {
                float w = weight_float(p.w.type, part.data, (size_t)row * cols + k);
#pragma unroll
                for (int i = 0; i < TILE; i++)
                    if (i < here)
                        sum[i] = fmaf(w, x[(size_t)i * cols + k], sum[i]);
            }
#pragma unroll
            for (int i = 0; i < TILE; i++)
                sums[piece][i * FLOAT_ROWS + of_row] = sum[i];
            __syncthreads();
            for (int i = 0; i < min(most, pieces - round) && thread < FLOAT_ROWS * TILE; i++)
                total += sums[i][thread];
            __syncthreads(); /* nobody reads the round any more */
        }
        if (thread < FLOAT_ROWS * here && row < p.w.rows)
            write_result(&p, part.bias, tile * TILE + thread / FLOAT_ROWS, row, total);
    }
}

int cuda_multiply(cudaStream_t s, struct cuda_product p)
{
    if (p.n <= 0)
        return 0;
    if (p.halves)
        return cuda_multiply_halves(s, p);
    switch (p.w.type) {
    case KERNELS_Q8_0:
        return launched(multiply_type<KERNELS_Q8_0>(s, &p));
    case KERNELS_Q4_0:
        return launched(multiply_type<KERNELS_Q4_0>(s, &p));
    case KERNELS_Q4_1:
        return launched(multiply_type<KERNELS_Q4_1>(s, &p));
    case KERNELS_Q5_0:
        return launched(multiply_type<KERNELS_Q5_0>(s, &p));
    case KERNELS_Q5_1:
        return launched(multiply_type<KERNELS_Q5_1>(s, &p));
    case KERNELS_Q4_K:
        return launched(multiply_type<KERNELS_Q4_K>(s, &p));
    case KERNELS_Q5_K:
        return launched(multiply_type<KERNELS_Q5_K>(s, &p));
    case KERNELS_Q6_K:
        return launched(multiply_type<KERNELS_Q6_K>(s, &p));
    case KERNELS_Q2_K:
        return launched(multiply_type<KERNELS_Q2_K>(s, &p));
    case KERNELS_Q3_K:
        return launched(multiply_type<KERNELS_Q3_K>(s, &p));
    case KERNELS_IQ4_NL:
        return launched(multiply_type<KERNELS_IQ4_NL>(s, &p));
    case KERNELS_IQ4_XS:
        return launched(multiply_type<KERNELS_IQ4_XS>(s, &p));
    case KERNELS_MXFP4:
        return launched(multiply_type<KERNELS_MXFP4>(s, &p));
    default:
        return launched(launch(multiply_floats, grid_for(&p, (p.w.rows + FLOAT_ROWS - 1) / FLOAT_ROWS, 1), WARPS * WARP,
                               0, s, p, cuda_weights_bytes(p.w.type, p.w.rows, p.w.cols)));
    }
}

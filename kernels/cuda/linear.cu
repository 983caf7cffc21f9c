/* linear.cu - products with weights of every type, in the order of docs/numerics.md, so that they are the CPU's to the
 * bit, for one row and for thousands.
 *
 * Quantized weights meet quantized rows on integer tensor cores: a warp multiplies 16 rows of weights with tiles of 8
 * rows of x, a step of 128 values at a time. Pieces of 1,024 values are shared out over the warps of a block and then
 * added in ascending order. Float weights: a warp per row of weights, its lanes being the 32 virtual ones.
 *
 * Quantized rows: for a tile of 8 rows and a step, QUANTS_BYTES: a lane's B fragments of mma.m16n8k32 of all four
 * sub-blocks ([2 pairs][32 lanes][16 bytes]), dx[8], and for each lane the B fragment (f16) of the sums of 16 values.
 */
#include "kernels/cuda/product.h"
#include "kernels/cuda/weights.h"

#define WARPS       4
#define MANY_TILES  4 /* of x that a block takes at a time at most */
#define QUANTS_DX   1024
#define QUANTS_SUMS (QUANTS_DX + TILE * 4)
#define QUANTS_STEP (QUANTS_SUMS + WARP * 4)
#define ROW_LIMIT   0x1p-100f /* a step whose largest magnitude is below this is zero */

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
    for (int flip = 1; flip < WARP; flip *= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, flip);
        top = other > top ? other : top;
    }
    float largest = __uint_as_float(top), dx = 0, inverse = 0;
    bool broken = top >= 0x7f800000;
    if (broken) {
        dx = not_a_number();
    } else if (largest >= ROW_LIMIT) {
        dx = largest / 127.0f;
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
    int upper = __shfl_down_sync(ALL_LANES, sum, 4);
    if (lane == 0)
        ((float *)(out + QUANTS_DX))[of_tile] = dx;
    if (lane % 8 == 0)
        ((uint32_t *)(out + QUANTS_SUMS))[of_tile * 4 + sub] =
            narrow_f16((float)sum) | (uint32_t)narrow_f16((float)upper) << 16;
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

/* What a lane has of a tile's step. */
struct quants {
    uint4 q[2];
    float2 dx;         /* of rows 2 t and 2 t + 1 */
    uint32_t sums;     /* a B fragment */
    uint4 row_sums[2]; /* types with float minima: of the same two rows, by sub-block */
};

template <enum kernels_type type> static __device__ __forceinline__ struct quants read_quants(const uint8_t *step)
{
    int lane = threadIdx.x % WARP, t = lane % 4;
    struct quants x;
    x.q[0] = ((const uint4 *)step)[lane];
    x.q[1] = ((const uint4 *)step)[WARP + lane];
    x.dx = ((const float2 *)(step + QUANTS_DX))[t];
    x.sums = ((const uint32_t *)(step + QUANTS_SUMS))[lane];
    if (weight_layout_of(type).scale == SCALE_FLOAT && weight_layout_of(type).minimum)
        for (int i = 0; i < 2; i++)
            x.row_sums[i] = ((const uint4 *)(step + QUANTS_SUMS))[2 * t + i];
    return x;
}

/* The sum of a row's quants over a sub-block. */
static __device__ __forceinline__ float sum_of(uint32_t halves)
{
    return widen_f16((uint16_t)halves) + widen_f16((uint16_t)(halves >> 16));
}

/* acc[e] is row g (+ 8 for e > 1) of the weights, row 2 t (+ 1 for odd e) of x. `subs`: sub-blocks of this step. */
template <enum kernels_type type>
static __device__ __forceinline__ void add_step(const struct weight_step<type> *u, const struct quants *x, int subs,
                                                float acc[4])
{
    constexpr struct weight_layout l = weight_layout_of(type);
    constexpr bool fits = weight_sums_fit(type);
    const int bias[4] = {MMA_BIAS, MMA_BIAS, MMA_BIAS, MMA_BIAS}, nothing[4] = {0, 0, 0, 0};
    const float zero[4] = {0, 0, 0, 0};
    float part[4] = {0, 0, 0, 0};
    int whole[4] = {0, 0, 0, 0}, sums[4];
#pragma unroll
    for (int j = 0; j < STEP_SUBS; j++) {
        const uint4 *pair = &x->q[j / 2];
        uint32_t b[2] = {j % 2 ? pair->z : pair->x, j % 2 ? pair->w : pair->y};
        if (l.scale == SCALE_16) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                mma_s8_k16(sums, &u->a[j][2 * half], &b[half], fits ? bias : nothing);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (fits)
                        part[e] = fmaf(u->s[(2 * j + half) % u->scales][e / 2], biased_float(sums[e]), part[e]);
                    else
                        whole[e] += u->whole[(2 * j + half) % u->scales][e / 2] * sums[e];
            }
            continue;
        }
        if (l.scale == SCALE_FLOAT && j >= subs)
            continue;
        mma_s8(sums, u->a[j], b, l.scale == SCALE_FLOAT || fits ? bias : nothing);
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (l.scale == SCALE_FLOAT || fits)
                part[e] = fmaf(u->s[j][e / 2], biased_float(sums[e]), part[e]);
            else
                whole[e] += u->whole[j][e / 2] * sums[e];
        if (l.scale == SCALE_FLOAT && l.minimum)
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[e] = fmaf(u->m[j % (l.minimum ? 4 : 1)][e / 2], sum_of(word_of(x->row_sums[e % 2], j)), part[e]);
    }
    const float dx[2] = {x->dx.x, x->dx.y};
    if (l.scale == SCALE_FLOAT) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[e] = fmaf(dx[e % 2], part[e], acc[e]);
        return;
    }
    float low[4] = {0, 0, 0, 0};
    if (l.minimum)
        mma_f16_k8(low, u->mins, &x->sums, zero);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float t = fits ? part[e] : (float)whole[e], d = u->d[e / 2];
        acc[e] = fmaf(dx[e % 2], l.minimum ? fmaf(d, t, -(u->dmin[e / 2] * low[e])) : d * t, acc[e]);
    }
}

/* ---- quantized weights ------------------------------------------------------------------------------------------- */

/* A block has 16 rows of weights and takes `tiles` tiles of x at a time; in a round each warp has a piece. Grid: groups
 * of rows, whatever shares the tiles out, experts. */
template <enum kernels_type type, int tiles>
static __global__ void __launch_bounds__(WARPS *WARP, tiles == 1 ? 4 : 2)
    multiply(struct cuda_product p, size_t matrix_bytes)
{
    constexpr size_t record = weight_record_bytes(weight_layout_of(type));
    constexpr int piece_supers = PIECE_STEPS * STEP / SUPER;
    SHARED(float4, sums, [WARPS][tiles][WARP]);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, group = blockIdx.x;
    int supers = weight_supers(p.w.cols), steps = steps_of(p.w.cols), subs = p.w.cols / SUB_BLOCK;
    int pieces = (supers + piece_supers - 1) / piece_supers;
    struct part part = part_of(&p, matrix_bytes);
    const uint8_t *rows = part.data + (size_t)group * supers * record;
    for (int tile = part.first + blockIdx.y * tiles; tile < part.end; tile += gridDim.y * tiles) {
        int here = min(tiles, part.end - tile);
        const uint8_t *quants = (const uint8_t *)p.quants + (size_t)tile * steps * QUANTS_STEP;
        float total[tiles][4] = {};
        for (int round = 0; round < pieces; round += WARPS) {
            float acc[tiles][4] = {};
            int first = (round + warp) * PIECE_STEPS, end = min(first + PIECE_STEPS, steps);
            struct weight_raw<type> now, next;
            if (first < end)
                weight_read<type>(&now, rows + (size_t)(first / 2) * record, 0);
            for (int s = first; s < end; s++) {
                if (s + 1 < end)
                    weight_read<type>(&next, rows + (size_t)((s + 1) / 2) * record, (s + 1) % 2);
                struct weight_step<type> u;
                weight_unpack<type>(&u, &now, s % 2);
#pragma unroll
                for (int n = 0; n < tiles; n++) {
                    if (n >= here)
                        break;
                    struct quants x = read_quants<type>(quants + ((size_t)n * steps + s) * QUANTS_STEP);
                    add_step<type>(&u, &x, subs - s * STEP_SUBS, acc[n]);
                }
                now = next;
            }
            __syncthreads(); /* nobody reads the round before any more */
#pragma unroll
            for (int n = 0; n < tiles; n++)
                sums[warp][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
            __syncthreads();
            int last = min(WARPS, pieces - round);
#pragma unroll
            for (int n = 0; n < tiles; n++)
                if (n % WARPS == warp)
                    for (int w = 0; w < last; w++) {
                        float4 piece = sums[w][n][lane];
                        total[n][0] += piece.x;
                        total[n][1] += piece.y;
                        total[n][2] += piece.z;
                        total[n][3] += piece.w;
                    }
        }
#pragma unroll
        for (int n = 0; n < tiles; n++)
            if (n % WARPS == warp)
                for (int e = 0; e < 4; e++) {
                    int row = group * GROUP_ROWS + lane / 4 + e / 2 * 8,
                        x_row = (tile + n) * TILE + lane % 4 * 2 + e % 2;
                    if (n < here && row < p.w.rows && x_row < p.n)
                        write_result(&p, part.bias, x_row, row, total[n][e]);
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

template <enum kernels_type type> static cudaError_t multiply_type(cudaStream_t s, const struct cuda_product *p)
{
    int groups = (p->w.rows + GROUP_ROWS - 1) / GROUP_ROWS, n = p->tiles ? MANY_TILES : tiles_of(p->n);
    size_t bytes = cuda_weights_bytes(type, p->w.rows, p->w.cols);
    if (tiled_fits(p))
        return multiply_tiles<type>(s, p);
    if (n == 1)
        return launch(multiply<type, 1>, grid_for(p, groups, 1), WARPS * WARP, 0, s, *p, bytes);
    if (n == 2)
        return launch(multiply<type, 2>, grid_for(p, groups, 2), WARPS * WARP, 0, s, *p, bytes);
    return launch(multiply<type, MANY_TILES>, grid_for(p, groups, MANY_TILES), WARPS * WARP, 0, s, *p, bytes);
}

/* ---- float weights ----------------------------------------------------------------------------------------------- */

/* A warp has a row of weights and takes a tile of x at a time. Grid: rows / WARPS, and as above. */
static __global__ void __launch_bounds__(WARPS *WARP) multiply_floats(struct cuda_product p, size_t matrix_bytes)
{
    const int piece = PIECE_STEPS * STEP;
    int lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + threadIdx.x / WARP, cols = p.w.cols;
    struct part part = part_of(&p, matrix_bytes);
    if (row >= p.w.rows)
        return;
    for (int tile = part.first + blockIdx.y; tile < part.end; tile += gridDim.y) {
        int here = min(TILE, p.n - tile * TILE);
        const float *x = p.x + (size_t)tile * TILE * cols;
        float total[TILE] = {};
        for (int first = 0; first < cols; first += piece) {
            float sum[TILE] = {};
            for (int k = first + lane; k - lane < min(first + piece, cols); k += WARP) {
                float w = k < cols ? weight_float(p.w.type, part.data, (size_t)row * cols + k) : 0.0f;
#pragma unroll
                for (int i = 0; i < TILE; i++)
                    if (i < here)
                        sum[i] = fmaf(w, k < cols ? x[(size_t)i * cols + k] : 0.0f, sum[i]);
            }
#pragma unroll
            for (int i = 0; i < TILE; i++) {
                for (int apart = WARP / 2; apart > 0; apart /= 2)
                    sum[i] += __shfl_down_sync(ALL_LANES, sum[i], (unsigned)apart);
                total[i] += sum[i];
            }
        }
#pragma unroll
        for (int i = 0; i < TILE; i++)
            if (lane == 0 && i < here)
                write_result(&p, part.bias, tile * TILE + i, row, total[i]);
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
        return launched(launch(multiply_floats, grid_for(&p, (p.w.rows + WARPS - 1) / WARPS, 1), WARPS * WARP, 0, s, p,
                               cuda_weights_bytes(p.w.type, p.w.rows, p.w.cols)));
    }
}

/* product.h - what all products share: tiles of rows, which of them a block has, and what is done to a result. */
#ifndef CONVOD_KERNELS_CUDA_PRODUCT_H
#define CONVOD_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#define TILE 8 /* rows of x */

__host__ __device__ static constexpr int tiles_of(int n)
{
    return (n + TILE - 1) / TILE;
}

/* Where the scales of rows of 16-bit floats begin (halves.cu), in bytes and on the device. */
static __host__ __device__ __forceinline__ size_t scales_at(int rows, int cols)
{
    return (size_t)tiles_of(rows) * TILE * (size_t)cols * 2;
}

static __host__ __device__ __forceinline__ float *halves_scales(const void *halves, int rows, int cols)
{
    return (float *)((uint8_t *)halves + scales_at(rows, cols));
}

static __device__ __forceinline__ void write_result(const struct cuda_product *p, const float *bias, int x_row, int row,
                                                    float value)
{
    float *y = p->y + (size_t)x_row * p->w.rows + row;
    if (bias)
        value += bias[row];
    if (p->accumulate)
        value = *y + value;
    if (p->softcap > 0)
        value = p->softcap * tanh_one(value / p->softcap);
    *y = value;
}

/* The tiles of x that a block of the grid's z has, [first, end), and its matrix and bias. */
struct part {
    int first, end;
    const uint8_t *data;
    const float *bias;
};

static __device__ __forceinline__ struct part part_of(const struct cuda_product *p, size_t matrix_bytes)
{
    int e = blockIdx.z;
    if (!p->tiles)
        return {0, tiles_of(p->n), (const uint8_t *)p->w.data, p->bias};
    return {p->tiles[e], p->tiles[e + 1], (const uint8_t *)p->w.data + e * matrix_bytes,
            p->bias ? p->bias + (size_t)e * p->w.rows : NULL};
}

#endif

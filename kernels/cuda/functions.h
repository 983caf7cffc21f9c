/* functions.h - exp, tanh and sums over virtual lanes on the device, as docs/numerics.md defines them. */
#ifndef CONVOD_KERNELS_CUDA_FUNCTIONS_H
#define CONVOD_KERNELS_CUDA_FUNCTIONS_H

#include "kernels/constants.h"
#include "kernels/cuda/device.h"

#include <errno.h>

#define VIRTUAL_LANES 16

__device__ __forceinline__ float infinity(void)
{
    return __uint_as_float(0x7f800000);
}

__device__ __forceinline__ float not_a_number(void)
{
    return __uint_as_float(0x7fc00000);
}

__device__ __forceinline__ float exp_one(float x)
{
    if (x < KERNELS_EXP_MIN)
        return 0.0f;
    if (x > KERNELS_EXP_MAX)
        return infinity();
    if (x != x)
        return x;
    float t = fmaf(x, KERNELS_EXP_LOG2E, KERNELS_EXP_SHIFT);
    float n = t - KERNELS_EXP_SHIFT;
    float r = fmaf(n, -KERNELS_EXP_LN2_HI, x);
    r = fmaf(n, -KERNELS_EXP_LN2_LO, r);
    float p = KERNELS_EXP_C6;
    p = fmaf(p, r, KERNELS_EXP_C5);
    p = fmaf(p, r, KERNELS_EXP_C4);
    p = fmaf(p, r, KERNELS_EXP_C3);
    p = fmaf(p, r, KERNELS_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

__device__ __forceinline__ float tanh_one(float x)
{
    float a = fabsf(x);
    if (a < KERNELS_TANH_SMALL) {
        float z = x * x;
        float p = KERNELS_TANH_C4;
        p = fmaf(p, z, KERNELS_TANH_C3);
        p = fmaf(p, z, KERNELS_TANH_C2);
        p = fmaf(p, z, KERNELS_TANH_C1);
        p = fmaf(p, z, KERNELS_TANH_C0);
        return fmaf(x * z, p, x);
    }
    return copysignf(1.0f - 2.0f / (exp_one(2.0f * a) + 1.0f), x);
}

/* The sum of the values of lanes 0 to 15 of a warp, as a tree; for lane 0. All lanes of the warp take part. */
__device__ __forceinline__ float lane_tree(float x)
{
    for (int half = VIRTUAL_LANES / 2; half > 0; half /= 2)
        x += __shfl_down_sync(ALL_LANES, x, (unsigned)half);
    return x;
}

/* What an operation returns for a launch. */
static inline int launched(cudaError_t e)
{
    return e == cudaSuccess ? 0 : -EIO;
}

#endif

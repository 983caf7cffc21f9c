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

/* sin(x) and cos(x), 0 <= x < KERNELS_ANGLE_MOST. */
__device__ __forceinline__ void turn(double x, double *sine, double *cosine)
{
    double t = x * KERNELS_TURN_2_PI + KERNELS_TURN_SHIFT, k = t - KERNELS_TURN_SHIFT;
    double r = (((x - k * KERNELS_TURN_A) - k * KERNELS_TURN_B) - k * KERNELS_TURN_C) - k * KERNELS_TURN_D;
    double z = r * r, s = KERNELS_SIN_S6, c = KERNELS_COS_C6;
    s = KERNELS_SIN_S5 + z * s;
    s = KERNELS_SIN_S4 + z * s;
    s = KERNELS_SIN_S3 + z * s;
    s = KERNELS_SIN_S2 + z * s;
    s = KERNELS_SIN_S1 + z * s;
    s = r + (r * z) * s;
    c = KERNELS_COS_C5 + z * c;
    c = KERNELS_COS_C4 + z * c;
    c = KERNELS_COS_C3 + z * c;
    c = KERNELS_COS_C2 + z * c;
    c = KERNELS_COS_C1 + z * c;
    c = 1.0 - (0.5 * z - (z * z) * c);
    unsigned quarter = (unsigned)(__double_as_longlong(t) & 3);
    *sine = quarter & 1 ? c : s;
    *cosine = quarter & 1 ? s : c;
    if (quarter & 2)
        *sine = -*sine;
    if (quarter == 1 || quarter == 2)
        *cosine = -*cosine;
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

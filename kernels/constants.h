/* constants.h - constants of the functions that docs/numerics.md defines, so that no backend and no instruction set can
 * differ in one. */
#ifndef CONVOD_KERNELS_CONSTANTS_H
#define CONVOD_KERNELS_CONSTANTS_H

/* exp(x) = 2^n * p(r): t = fma(x, log2 e, SHIFT) holds n in its low bits, n = t - SHIFT, r = fma(n, -LN2_HI, x), then
 * r = fma(n, -LN2_LO, r); p by Horner's rule with fma; n is added to p's exponent. Below MIN the result is 0, above MAX
 * infinity. */
#define KERNELS_EXP_LOG2E  0x1.715476p+0f
#define KERNELS_EXP_SHIFT  0x1.8p+23f
#define KERNELS_EXP_LN2_HI 0x1.62e430p-1f
#define KERNELS_EXP_LN2_LO (-0x1.05c610p-29f)
#define KERNELS_EXP_MIN    (-87.3f)
#define KERNELS_EXP_MAX    0x1.62e42ep+6f
#define KERNELS_EXP_C2     0x1.fffffcp-2f
#define KERNELS_EXP_C3     0x1.555490p-3f
#define KERNELS_EXP_C4     0x1.5558f4p-5f
#define KERNELS_EXP_C5     0x1.123a6cp-7f
#define KERNELS_EXP_C6     0x1.6a234ep-10f

/* tanh(x): below SMALL, z = x * x and fma(x * z, P(z), x); else 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
#define KERNELS_TANH_SMALL 0.625f
#define KERNELS_TANH_C0    (-0x1.555532p-2f)
#define KERNELS_TANH_C1    0x1.110726p-3f
#define KERNELS_TANH_C2    (-0x1.b83c5ap-5f)
#define KERNELS_TANH_C3    0x1.5226a0p-6f
#define KERNELS_TANH_C4    (-0x1.75e1dcp-8f)

/* GELU, tanh form: 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) * (x + CUBE * x^3). */
#define KERNELS_GELU_CUBE 0.044715f
#define KERNELS_GELU_2U   0x1.988454p+0f /* 2 sqrt(2 / pi) */

/* SwiGLU, clamped: gate / (1 + exp(-ALPHA gate)) * (up + 1), gate <= LIMIT, |up| <= LIMIT. */
#define KERNELS_SWIGLU_ALPHA 1.702f
#define KERNELS_SWIGLU_LIMIT 7.0f

#endif

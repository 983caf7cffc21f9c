/* constants.h - constants of the functions that docs/numerics.md defines and of weight types, so that no backend and no
 * instruction set can differ in one. */
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

/* sin(x) and cos(x) in binary64, 0 <= x < KERNELS_ANGLE_MOST: t = x * 2 / pi + SHIFT holds k in its low bits, k = t -
 * SHIFT, r = (((x - k * A) - k * B) - k * C) - k * D, where A + B + C + D is pi / 2; with z = r * r, sin r = r + (r *
 * z) * S(z), cos r = 1 - (0.5 * z - (z * z) * C(z)), polynomials by Horner's rule, no fma anywhere. k mod 4 says which
 * of the two is meant, and its sign. Coefficients: FreeBSD, lib/msun, k_sin.c and k_cos.c. */
#define KERNELS_TURN_2_PI  0x1.45f306dc9c883p-1
#define KERNELS_TURN_SHIFT 0x1.8p+52
#define KERNELS_TURN_A     0x1.921fb5p+0 /* short, so that products with k are exact */
#define KERNELS_TURN_B     0x1.110b46p-26
#define KERNELS_TURN_C     0x1.1a6263p-54
#define KERNELS_TURN_D     0x1.8a2e03707344ap-81
#define KERNELS_SIN_S1     (-0x1.5555555555549p-3)
#define KERNELS_SIN_S2     0x1.111111110f8a6p-7
#define KERNELS_SIN_S3     (-0x1.a01a019c161d5p-13)
#define KERNELS_SIN_S4     0x1.71de357b1fe7dp-19
#define KERNELS_SIN_S5     (-0x1.ae5e68a2b9cebp-26)
#define KERNELS_SIN_S6     0x1.5d93a5acfd57cp-33
#define KERNELS_COS_C1     0x1.555555555554cp-5
#define KERNELS_COS_C2     (-0x1.6c16c16c15177p-10)
#define KERNELS_COS_C3     0x1.a01a019cb1590p-16
#define KERNELS_COS_C4     (-0x1.27e4f809c52adp-22)
#define KERNELS_COS_C5     0x1.1ee9ebdb4b1c4p-29
#define KERNELS_COS_C6     (-0x1.8fae9be8838d4p-37)

/* What nibbles stand for in IQ4_NL and IQ4_XS, and twice the values of four-bit floats (E2M1), for MXFP4. */
#define KERNELS_IQ4_TABLE -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define KERNELS_FP4_TABLE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

#endif

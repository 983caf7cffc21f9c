/* weights.h - how weights lie on the device, and how a warp takes them as fragments of integer matrix products.
 *
 * F32, F16 and BF16: rows as in the file. All other types: a record holds 16 rows of 256 values (a last one may be
 * shorter in truth; what it lacks is never used), and records of a group of 16 rows lie one behind the other:
 *
 *   planes   of the values' bits, each [32 lanes][16 bytes], a lane's bytes being the words of its A fragments of
 *            mma.m16n8k32: byte i of word r is row lane / 4 (+ 8 for odd r), value 4 (lane % 4) + i (+ 16 for r > 1) of
 *            a sub-block of 32 values. In the order in which they lie:
 *              eights  a plane per sub-block
 *              fours   a plane per two sub-blocks: low and high nibbles
 *              twos    a plane per four: pairs of bits, the first sub-block's lowest
 *              ones    a plane for all eight: bits
 *   heads    [16 rows][head bytes]: the scales
 *
 * A value is made of its fours (or eights, or twos) and above them its twos or ones; then its offset is taken off, or
 * it is looked up. Heads, by type (f16 scales of 8 blocks; K types' scales by sub-block of 32 or 16 values):
 *
 *   Q8_0 Q4_0 Q5_0 IQ4_NL   d[8]
 *   Q4_1 Q5_1               d[8], m[8]
 *   MXFP4                   a byte each: exponent[8]
 *   Q4_K Q5_K               d, dmin, the 12 bytes of scales and minima as in the file
 *   Q6_K Q3_K               int8 scale[16], d, 2 bytes of nothing
 *   Q2_K                    scale and minimum[16] (nibbles), d, dmin
 *   IQ4_XS                  int8 scale[8], d, 2 bytes of nothing
 *
 * docs/numerics.md says what is computed with them.
 */
#ifndef CONVOD_KERNELS_CUDA_WEIGHTS_H
#define CONVOD_KERNELS_CUDA_WEIGHTS_H

#include "kernels/cuda/functions.h"
#include "kernels/kernels.h"

#define GROUP_ROWS    16
#define SUPER         256 /* values of a record */
#define STEP          128 /* values that a warp takes at a time */
#define SUB_BLOCK     32  /* values of an mma, which share an activation scale */
#define STEP_SUBS     (STEP / SUB_BLOCK)
#define PIECE_STEPS   4 /* steps that are summed up by themselves */
#define RECORD_STEPS  (SUPER / STEP)
#define PIECE_RECORDS (PIECE_STEPS / RECORD_STEPS)
#define PLANE_BYTES   512

enum scale_kind {
    SCALE_FLOAT, /* f16 (or a power of two) per 32 values */
    SCALE_32,    /* d times an integer per 32 */
    SCALE_16,    /* d times an integer per 16 */
};

struct weight_layout {
    int eights, fours, twos, ones; /* planes */
    int head;                      /* bytes of a row's head */
    int offset;
    enum scale_kind scale;
    bool minimum, table;
};

/* Of a quantized type. */
__host__ __device__ constexpr struct weight_layout weight_layout_of(enum kernels_type type)
{
    switch (type) {
    case KERNELS_Q8_0:
        return {8, 0, 0, 0, 16, 0, SCALE_FLOAT, false, false};
    case KERNELS_Q4_0:
        return {0, 4, 0, 0, 16, 8, SCALE_FLOAT, false, false};
    case KERNELS_Q4_1:
        return {0, 4, 0, 0, 32, 0, SCALE_FLOAT, true, false};
    case KERNELS_Q5_0:
        return {0, 4, 0, 1, 16, 16, SCALE_FLOAT, false, false};
    case KERNELS_Q5_1:
        return {0, 4, 0, 1, 32, 0, SCALE_FLOAT, true, false};
    case KERNELS_Q4_K:
        return {0, 4, 0, 0, 16, 0, SCALE_32, true, false};
    case KERNELS_Q5_K:
        return {0, 4, 0, 1, 16, 0, SCALE_32, true, false};
    case KERNELS_Q6_K:
        return {0, 4, 2, 0, 20, 32, SCALE_16, false, false};
    case KERNELS_Q2_K:
        return {0, 0, 2, 0, 20, 0, SCALE_16, true, false};
    case KERNELS_Q3_K:
        return {0, 0, 2, 1, 20, 4, SCALE_16, false, false};
    case KERNELS_IQ4_NL:
        return {0, 4, 0, 0, 16, 0, SCALE_FLOAT, false, true};
    case KERNELS_IQ4_XS:
        return {0, 4, 0, 0, 12, 0, SCALE_32, false, true};
    default: /* MXFP4 */
        return {0, 4, 0, 0, 8, 0, SCALE_FLOAT, false, true};
    }
}

__host__ __device__ constexpr int weight_planes(struct weight_layout l)
{
    return l.eights + l.fours + l.twos + l.ones;
}

__host__ __device__ constexpr size_t weight_record_bytes(struct weight_layout l)
{
    return (size_t)(weight_planes(l) * PLANE_BYTES + GROUP_ROWS * l.head);
}

__host__ __device__ constexpr int weight_supers(int cols)
{
    return (cols + SUPER - 1) / SUPER;
}

__host__ __device__ constexpr bool weight_is_float(enum kernels_type type)
{
    return type == KERNELS_F32 || type == KERNELS_F16 || type == KERNELS_BF16;
}

/* Value i of rows of such a type. */
__device__ __forceinline__ float weight_float(enum kernels_type type, const void *data, size_t i)
{
    if (type == KERNELS_F32)
        return ((const float *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return type == KERNELS_F16 ? widen_f16(bits) : widen_bf16(bits);
}

/* 2^(exponent - 128), subnormals too. */
__device__ __forceinline__ float power_of(uint32_t exponent)
{
    return __uint_as_float(exponent > 1 ? (exponent - 1) << 23 : 0x200000u << exponent);
}

/* Word i of four. */
__device__ __forceinline__ uint32_t word_of(uint4 v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- a step as a warp takes it: 16 rows, 128 values -------------------------------------------------------------- */

/* What a lane reads of it. */
template <enum kernels_type type> struct weight_raw {
    static constexpr struct weight_layout l = weight_layout_of(type);
    static constexpr int planes = l.eights / 2 + l.fours / 2 + l.twos / 2 + l.ones;
    static constexpr int head = l.scale == SCALE_32     ? (l.minimum ? 4 : 2)
                                : l.scale == SCALE_16   ? 3
                                : type == KERNELS_MXFP4 ? 1
                                : l.minimum             ? 4
                                                        : 2;
    uint4 plane[planes];
    uint32_t words[2][head]; /* of rows g and g + 8 */
};

/* From shared memory, or from that of the device. */
template <bool shared, typename T> __device__ __forceinline__ T weight_load(const T *p)
{
    if constexpr (shared)
        return *p;
    else
        return __ldg(p);
}

/* Step `half` (0 or 1) of a record. */
template <enum kernels_type type, bool shared = false>
__device__ __forceinline__ void weight_read(struct weight_raw<type> *raw, const uint8_t *record, int half)
{
    constexpr struct weight_layout l = weight_layout_of(type);
    int lane = threadIdx.x % WARP, at = 0;
    const uint4 *planes = (const uint4 *)record + lane;
#pragma unroll
    for (int i = 0; i < l.eights / 2; i++)
        raw->plane[at++] = weight_load<shared>(planes + (half * (l.eights / 2) + i) * WARP);
#pragma unroll
    for (int i = 0; i < l.fours / 2; i++)
        raw->plane[at++] = weight_load<shared>(planes + (l.eights + half * (l.fours / 2) + i) * WARP);
    if (l.twos)
        raw->plane[at++] = weight_load<shared>(planes + (l.eights + l.fours + half) * WARP);
    if (l.ones)
        raw->plane[at++] = weight_load<shared>(planes + (l.eights + l.fours + l.twos) * WARP);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t *head =
            (const uint32_t *)(record + weight_planes(l) * PLANE_BYTES + (size_t)(lane / 4 + 8 * r) * l.head);
        if (l.scale == SCALE_32 && l.minimum) {
            uint4 all = weight_load<shared>((const uint4 *)head);
            raw->words[r][0] = all.x, raw->words[r][1] = all.y, raw->words[r][2] = all.z, raw->words[r][3] = all.w;
        } else if (l.scale == SCALE_32) {
            raw->words[r][0] = weight_load<shared>(head + half), raw->words[r][1] = weight_load<shared>(head + 2);
        } else if (l.scale == SCALE_16) {
            raw->words[r][0] = weight_load<shared>(head + 2 * half),
            raw->words[r][1] = weight_load<shared>(head + 2 * half + 1);
            raw->words[r][2] = weight_load<shared>(head + 4);
        } else if (type == KERNELS_MXFP4) {
            raw->words[r][0] = weight_load<shared>(head + half);
        } else {
#pragma unroll
            for (int i = 0; i < (l.minimum ? 2 : 1); i++) {
                raw->words[r][2 * i] = weight_load<shared>(head + 4 * i + 2 * half);
                raw->words[r][2 * i + 1] = weight_load<shared>(head + 4 * i + 2 * half + 1);
            }
        }
    }
}

/* The same, ready to be multiplied: scales and minima per 32 or 16 values, of rows g and g + 8. */
template <enum kernels_type type> struct weight_step {
    static constexpr struct weight_layout l = weight_layout_of(type);
    static constexpr int scales = l.scale == SCALE_16 ? 8 : 4, minima = l.minimum ? scales : 1;
    uint32_t a[STEP_SUBS][4]; /* A fragments */
    float s[scales][2];
    float m[minima][2];
};

/* Four bytes below 16, each as the byte of the table that it is the number of. */
__device__ __forceinline__ uint32_t weight_look_up(enum kernels_type type, uint32_t w)
{
    constexpr int8_t uneven[16] = {KERNELS_IQ4_TABLE}, fp4[16] = {KERNELS_FP4_TABLE};
    uint32_t t[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t[i] = 0;
#pragma unroll
        for (int b = 0; b < 4; b++)
            t[i] |= (uint32_t)(uint8_t)(type == KERNELS_MXFP4 ? fp4[4 * i + b] : uneven[4 * i + b]) << 8 * b;
    }
    uint32_t pairs = (w | w >> 4) & 0x00ff00ffu, select = (pairs | pairs >> 8) & 0x7777u;
    uint32_t low = __byte_perm(t[0], t[1], select), high = __byte_perm(t[2], t[3], select);
    uint32_t upper = (w >> 3 & 0x01010101u) * 0xffu;
    return (low & ~upper) | (high & upper);
}

template <enum kernels_type type>
__device__ __forceinline__ void weight_values(struct weight_step<type> *u, const struct weight_raw<type> *raw, int half)
{
    constexpr struct weight_layout l = weight_layout_of(type);
    constexpr int fours = l.eights / 2, twos = fours + l.fours / 2, ones = twos + l.twos / 2;
    (void)twos, (void)ones; /* not all types have all */
#pragma unroll
    for (int j = 0; j < STEP_SUBS; j++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t w = 0;
            if (l.eights)
                w = word_of(raw->plane[j % raw->planes], r);
            if (l.fours)
                w = word_of(raw->plane[(fours + j / 2) % raw->planes], r) >> (j % 2 * 4) & 0x0f0f0f0fu;
            if (l.twos)
                w |= (word_of(raw->plane[twos % raw->planes], r) >> 2 * j & 0x03030303u) << (l.fours ? 4 : 0);
            if (l.ones)
                w |= (word_of(raw->plane[ones % raw->planes], r) >> (4 * half + j) & 0x01010101u) << (l.fours ? 4 : 2);
            if (l.table)
                w = weight_look_up(type, w);
            else if (l.offset) /* no byte borrows from another */
                w = ((w | 0x80808080u) - (uint32_t)l.offset * 0x01010101u) ^ 0x80808080u;
            u->a[j][r] = w;
        }
}

/* The whole scales of one row, [STEP_SUBS] bytes or two words of them, and minima likewise. */
template <enum kernels_type type>
__device__ __forceinline__ void weight_bytes(const uint32_t *words, int half, uint32_t scales[2], uint32_t mins[2])
{
    scales[0] = words[0];
    scales[1] = mins[0] = mins[1] = 0;
    if (type == KERNELS_Q4_K || type == KERNELS_Q5_K) {
        scales[0] = half ? (words[3] & 0x0f0f0f0fu) | (words[1] >> 2 & 0x30303030u) : words[1] & 0x3f3f3f3fu;
        mins[0] = half ? (words[3] >> 4 & 0x0f0f0f0fu) | (words[2] >> 2 & 0x30303030u) : words[2] & 0x3f3f3f3fu;
    } else if (weight_layout_of(type).scale == SCALE_16) {
        scales[1] = words[1 % weight_raw<type>::head];
        if (type == KERNELS_Q2_K)
            for (int i = 0; i < 2; i++) {
                mins[i] = scales[i] >> 4 & 0x0f0f0f0fu;
                scales[i] &= 0x0f0f0f0fu;
            }
    }
}

template <enum kernels_type type>
__device__ __forceinline__ void weight_unpack(struct weight_step<type> *u, const struct weight_raw<type> *raw, int half)
{
    constexpr struct weight_layout l = weight_layout_of(type);
    constexpr int head = weight_raw<type>::head;
    weight_values<type>(u, raw, half);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t *words = raw->words[r];
        if (l.scale == SCALE_FLOAT) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u->s[j][r] = type == KERNELS_MXFP4 ? power_of(words[0] >> 8 * j & 0xff)
                                                   : widen_f16((uint16_t)(words[j / 2 % head] >> j % 2 * 16));
                if (l.minimum)
                    u->m[j % u->minima][r] = widen_f16((uint16_t)(words[(2 + j / 2) % head] >> j % 2 * 16));
            }
            continue;
        }
        uint32_t scales[2], mins[2];
        weight_bytes<type>(words, half, scales, mins);
        uint32_t floats = l.scale == SCALE_16 ? words[2 % head] : l.minimum ? words[0] : words[1 % head];
        float d = widen_f16((uint16_t)floats), dmin = widen_f16((uint16_t)(floats >> 16));
#pragma unroll
        for (int i = 0; i < u->scales; i++) {
            u->s[i][r] = d * (l.minimum ? byte_float(scales[i / 4], i % 4) : signed_byte_float(scales[i / 4], i % 4));
            if (l.minimum)
                u->m[i % u->minima][r] = -(dmin * byte_float(mins[i / 4], i % 4));
        }
    }
}

#endif

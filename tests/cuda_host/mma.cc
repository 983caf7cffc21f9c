/* mma.cc - twins of the warp's matrix instructions and of the 16-bit float conversions. Built with optimisation and
 * without sanitizers, whatever the rest is built with: a thousand multiplications a call would take minutes otherwise.
 * All that is read and written here are the lanes' fragments, whose sizes are fixed.
 *
 * Fragments (PTX ISA, "Matrix Fragments for mma"), with g = lane / 4 and t = lane % 4: element e of a lane's register r
 * is row g (+ 8 for odd r of A and for the upper half of C), and of the columns those that follow from t. */
#include "tests/cuda_host/internal.h"

struct fragments {
    unsigned a[4], b[2];
    union {
        int i[4];
        float f[4];
    } c;
};

static const struct fragments *lane_of(const struct cuda_host_lanes *lanes, int lane)
{
    return (const struct fragments *)(const void *)lanes->value[lane];
}

static const struct cuda_host_lanes *gather(const unsigned *a, int na, const unsigned *b, int nb)
{
    struct fragments mine = {};
    memcpy(mine.a, a, (size_t)na * 4);
    memcpy(mine.b, b, (size_t)nb * 4);
    return cuda_host_gather(0xffffffffu, CUDA_HOST_MMA, &mine, sizeof(mine));
}

/* A's element (row, k) of int8 lies in register row / 8 + 2 * (k / 16) of lane 4 * (row % 8) + k % 16 / 4; B's (k,
 * column) in register k / 16 of lane 4 * column + k % 16 / 4. */
static void mma_8(int d[4], const struct cuda_host_lanes *lanes, const int c[4], int halves)
{
    int lane = cuda_host_lane(), g = lane / 4, t = lane % 4;
    int sums[4] = {c[0], c[1], c[2], c[3]};
    for (int part = 0; part < 4; part++) {
        const struct fragments *rows = lane_of(lanes, 4 * g + part);
        for (int column = 0; column < 2; column++) {
            const struct fragments *columns = lane_of(lanes, 4 * (2 * t + column) + part);
            for (int high = 0; high < 2; high++)
                for (int half = 0; half < halves; half++)
                    for (int i = 0; i < 4; i++)
                        sums[2 * high + column] +=
                            (int8_t)(rows->a[2 * half + high] >> 8 * i) * (int8_t)(columns->b[half] >> 8 * i);
        }
    }
    memcpy(d, sums, sizeof(sums));
}

void cuda_host_mma_s8(int d[4], const unsigned a[4], const unsigned b[2], const int c[4])
{
    mma_8(d, gather(a, 4, b, 2), c, 2);
}

void cuda_host_mma_s8_k16(int d[4], const unsigned a[2], const unsigned b[1], const int c[4])
{
    mma_8(d, gather(a, 2, b, 1), c, 1);
}

/* Of 16 bits: A's element (row, k) lies in register row / 8 + 2 * (k / 8) of lane 4 * (row % 8) + k % 8 / 2. */
static void mma_16(float d[4], const struct cuda_host_lanes *lanes, const float c[4], int halves,
                   float (*widen)(uint16_t))
{
    int lane = cuda_host_lane(), g = lane / 4, t = lane % 4;
    for (int e = 0; e < 4; e++) {
        int high = e / 2, column = 2 * t + e % 2;
        double sum = (double)c[e];
        for (int half = 0; half < halves; half++)
            for (int k = 0; k < 8; k++) {
                unsigned x = lane_of(lanes, 4 * g + k / 2)->a[2 * half + high] >> k % 2 * 16 & 0xffff;
                unsigned y = lane_of(lanes, 4 * column + k / 2)->b[half] >> k % 2 * 16 & 0xffff;
                sum += (double)widen((uint16_t)x) * (double)widen((uint16_t)y);
            }
        d[e] = (float)sum;
    }
}

static float widen_bf16(uint16_t bits)
{
    return __uint_as_float((unsigned)bits << 16);
}

float cuda_host_widen_f16(uint16_t bits)
{
    unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0));
    if (exponent == 0) {
        float f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t cuda_host_narrow_f16(float x)
{
    unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7fff); /* what cvt gives for any NaN */
    if (a >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* a multiple of 2^-24: adding 0.5 rounds to one */
        return (uint16_t)(sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}

void cuda_host_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4])
{
    mma_16(d, gather(a, 4, b, 2), c, 2, widen_bf16);
}

void cuda_host_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4])
{
    mma_16(d, gather(a, 4, b, 2), c, 2, cuda_host_widen_f16);
}

void cuda_host_mma_f16_k8(float d[4], const unsigned a[2], const unsigned b[1], const float c[4])
{
    mma_16(d, gather(a, 2, b, 1), c, 1, cuda_host_widen_f16);
}

/* Lane i names row i % 8 of matrix i / 8; lane (g, t) gets elements 2 t and 2 t + 1 of row g, or with transposition of
 * column g. */
void cuda_host_ldmatrix(unsigned *d, int count, bool transposed, const void *row)
{
    if ((uintptr_t)row % 16)
        cuda_host_fault("ldmatrix from an address that 16 does not divide");
    if (cuda_host_lane() < 8 * count)
        cuda_host_touch(row, 16, false);
    const struct cuda_host_lanes *lanes = cuda_host_gather(0xffffffffu, CUDA_HOST_LDMATRIX, &row, sizeof(row));
    int lane = cuda_host_lane(), g = lane / 4, t = lane % 4;
    for (int m = 0; m < count; m++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
            const char *from;
            memcpy(&from, lanes->value[8 * m + (transposed ? 2 * t + i : g)], sizeof(from));
            memcpy(&pair[i], from + 2 * (transposed ? g : 2 * t + i), 2);
        }
        d[m] = pair[0] | (unsigned)pair[1] << 16;
    }
}

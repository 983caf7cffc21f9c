/* plain.h - the products of products.h in plain loops on the host, straight from a file's bytes: what their kernels'
 * bits are compared with. */
#ifndef CONVOD_TESTS_GPU_PLAIN_H
#define CONVOD_TESTS_GPU_PLAIN_H

#include "tests/gpu/products.h"

#include <math.h>

static inline float plain_half(const uint8_t *p)
{
    int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    float x = exponent == 31 ? (fraction ? NAN : INFINITY)
                             : ldexpf((float)(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -x : x;
}

/* One block of activations: what docs/numerics.md says of 32 values, and the same of 128. Returns the scale. */
static inline float plain_quantize(const float *x, int n, int *q)
{
    float largest = 0;
    bool broken = false;
    for (int i = 0; i < n; i++) {
        q[i] = 0;
        broken = broken || !isfinite(x[i]);
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    if (broken || largest < 0x1p-100f)
        return broken ? NAN : 0.0f;
    for (int i = 0; i < n; i++)
        q[i] = (int)nearbyintf(x[i] * (127.0f / largest));
    return largest / 127.0f;
}

static inline void plain_scale(const uint8_t *packed, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = packed[j] & 63;
        *min = packed[j + 4] & 63;
    } else {
        *scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
        *min = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
}

static inline float plain_product(enum order order, const uint8_t *row, const float *x, int cols)
{
    int width = order == ORDER_32 ? 32 : 128;
    float acc = 0, total = 0;
    for (int first = 0; first < cols; first += width) {
        const uint8_t *super = row + first / 256 * 144;
        float d = plain_half(super), dmin = plain_half(super + 2);
        int q[128], low = 0;
        float dx = plain_quantize(x + first, width, q), t = 0;
        for (int b = 0; b < width / 32; b++) {
            int j = first % 256 / 32 + b, scale, min, dot = 0, sum = 0;
            plain_scale(super + 4, j, &scale, &min);
            for (int i = 0; i < 32; i++) {
                dot += (super[16 + j / 2 * 32 + i] >> j % 2 * 4 & 15) * q[b * 32 + i];
                sum += q[b * 32 + i];
            }
            if (order == ORDER_32) {
                acc = fmaf(d * (float)scale * dx, (float)dot, acc);
                acc = fmaf(-(dmin * (float)min), dx * (float)sum, acc);
            }
            t = fmaf((float)scale, (float)dot, t);
            low += min * sum;
        }
        if (order == ORDER_128)
            acc = fmaf(dx, fmaf(d, t, -(dmin * (float)low)), acc);
        if ((first + width) % 512 == 0 || first + width == cols) {
            total += acc;
            acc = 0;
        }
    }
    return total;
}

#endif

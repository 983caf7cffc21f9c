/* quant.c - see quant.h. */
#include "tests/kernels/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t quant_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return (uint32_t)(x * UINT64_C(2685821657736338717) >> 32);
}

size_t quant_file_bytes(enum kernels_type type, int rows, int cols)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    return (size_t)rows * (size_t)(cols / info->block_values) * (size_t)info->block_bytes;
}

/* Where a type's block has halves. */
static const struct {
    int count, at[2];
} half_fields[KERNELS_TYPE_COUNT] = {
    [KERNELS_Q8_0] = {1, {0}},    [KERNELS_Q4_0] = {1, {0}},    [KERNELS_Q4_1] = {2, {0, 2}},
    [KERNELS_Q5_0] = {1, {0}},    [KERNELS_Q5_1] = {2, {0, 2}}, [KERNELS_Q4_K] = {2, {0, 2}},
    [KERNELS_Q5_K] = {2, {0, 2}}, [KERNELS_Q6_K] = {1, {208}},  [KERNELS_Q2_K] = {2, {80, 82}},
    [KERNELS_Q3_K] = {1, {108}},  [KERNELS_IQ4_NL] = {1, {0}},  [KERNELS_IQ4_XS] = {1, {0}},
};

static uint16_t random_half(enum quant_style style, uint64_t *state)
{
    uint32_t r = quant_random(state), sign = r >> 31 << 15, mantissa = r & 0x3ff;
    if (style == QUANT_TINY)
        return (uint16_t)(sign | mantissa);
    if (style == QUANT_LARGE)
        return (uint16_t)(sign | 30 << 10 | mantissa);
    return (uint16_t)(sign | (7 + (r >> 16) % 4) << 10 | mantissa);
}

static void fill_floats(enum kernels_type type, size_t n, enum quant_style style, uint64_t *state, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        float x = ((float)quant_random(state) - 2147483648.0f) / 2147483648.0f;
        if (style == QUANT_TINY)
            x *= 0x1p-120f;
        if (style == QUANT_LARGE)
            x *= 0x1p100f;
        uint32_t word;
        memcpy(&word, &x, 4);
        uint16_t half = type == KERNELS_F16 ? random_half(style, state) : (uint16_t)(word >> 16);
        if (type == KERNELS_F32)
            memcpy(out + i * 4, &word, 4);
        else
            memcpy(out + i * 2, &half, 2);
    }
}

void quant_fill(enum kernels_type type, int rows, int cols, enum quant_style style, uint64_t seed, uint8_t *out)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    uint64_t state = seed * 2 + 1;
    size_t bytes = quant_file_bytes(type, rows, cols), block = (size_t)info->block_bytes;
    if (info->block_values == 1) {
        fill_floats(type, bytes / block, style, &state, out);
        return;
    }
    for (size_t b = 0; b < bytes; b += block) {
        for (size_t i = 0; i < block; i++)
            out[b + i] = style == QUANT_HIGHEST ? 0xff : style == QUANT_LOWEST ? 0 : (uint8_t)quant_random(&state);
        if (style == QUANT_LOWEST && type == KERNELS_Q8_0)
            memset(out + b + 2, 0x80, 32);
        if (style == QUANT_LOWEST && type == KERNELS_Q6_K)
            memset(out + b + 192, 0x80, 16);
        if (type == KERNELS_MXFP4) /* an exponent */
            out[b] = (uint8_t)(style == QUANT_TINY    ? quant_random(&state) % 4
                               : style == QUANT_LARGE ? 200 + quant_random(&state) % 4
                                                      : 118 + quant_random(&state) % 4);
        for (int i = 0; i < half_fields[type].count; i++) {
            uint16_t half = random_half(style, &state);
            memcpy(out + b + half_fields[type].at[i], &half, 2);
        }
    }
}

/* An IEEE half as the standard defines it. */
static float half_value(const uint8_t *p)
{
    int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(1024 + mantissa), exponent - 25)
                             : ldexpf((float)mantissa, -24);
    return bits & 0x8000 ? -x : x;
}

/* What a nibble of the IQ4 types stands for. */
static const int uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* One block: quants, the scale and the minimum (to be added) of every value. */
static void read_block(enum kernels_type type, const uint8_t *b, int q[256], float s[256], float m[256])
{
    for (int v = 0; v < kernels_type_info(type)->block_values; v++) {
        int nibble = 0, high = 0, sc, mn, j = v / 32;
        m[v] = 0;
        switch (type) {
        case KERNELS_Q8_0:
            q[v] = (int8_t)b[2 + v];
            s[v] = half_value(b);
            break;
        case KERNELS_Q4_0:
        case KERNELS_Q4_1:
        case KERNELS_Q5_0:
        case KERNELS_Q5_1: {
            bool min = type == KERNELS_Q4_1 || type == KERNELS_Q5_1,
                 five = type == KERNELS_Q5_0 || type == KERNELS_Q5_1;
            const uint8_t *p = b + (min ? 4 : 2);
            if (five) {
                uint32_t word = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
                high = (int)(word >> v & 1) << 4;
                p += 4;
            }
            nibble = v < 16 ? p[v] & 15 : p[v - 16] >> 4;
            q[v] = (nibble | high) - (min ? 0 : five ? 16 : 8);
            s[v] = half_value(b);
            m[v] = min ? half_value(b + 2) : 0;
            break;
        }
        case KERNELS_Q4_K:
        case KERNELS_Q5_K: {
            const uint8_t *k = b + 4, *nibbles = b + 16;
            if (j < 4) {
                sc = k[j] & 63;
                mn = k[j + 4] & 63;
            } else {
                sc = (k[j + 4] & 15) + 16 * (k[j - 4] >> 6);
                mn = (k[j + 4] >> 4) + 16 * (k[j] >> 6);
            }
            if (type == KERNELS_Q5_K) {
                high = (b[16 + v % 32] >> j & 1) << 4;
                nibbles += 32;
            }
            nibble = nibbles[v / 64 * 32 + v % 32];
            q[v] = (v % 64 < 32 ? nibble & 15 : nibble >> 4) | high;
            s[v] = half_value(b) * (float)sc;
            m[v] = -(half_value(b + 2) * (float)mn);
            break;
        }
        case KERNELS_Q2_K:
            q[v] = b[16 + v / 128 * 32 + v % 32] >> 2 * (v % 128 / 32) & 3;
            s[v] = half_value(b + 80) * (float)(b[v / 16] % 16);
            m[v] = -(half_value(b + 82) * (float)(b[v / 16] / 16));
            break;
        case KERNELS_Q3_K: {
            /* Sixteen six-bit scales: four bits each in eight bytes, two bits each in the four behind them. */
            const uint8_t *k = b + 96;
            int i = v / 16, nibble3 = i < 8 ? k[i] % 16 : k[i - 8] / 16, two = k[8 + i % 4] >> 2 * (i / 4) & 3;
            high = b[v % 32] >> v / 32 & 1;
            q[v] = (b[32 + v / 128 * 32 + v % 32] >> 2 * (v % 128 / 32) & 3) - (high ? 0 : 4);
            s[v] = half_value(b + 108) * (float)(nibble3 + 16 * two - 32);
            break;
        }
        case KERNELS_IQ4_NL:
            q[v] = uneven[v < 16 ? b[2 + v] % 16 : b[2 + v - 16] / 16];
            s[v] = half_value(b);
            break;
        case KERNELS_IQ4_XS: {
            const uint8_t *p = b + 8 + j * 16;
            int l = v % 32, low = j % 2 ? b[4 + j / 2] / 16 : b[4 + j / 2] % 16;
            high = (b[2] | b[3] << 8) >> 2 * j & 3;
            q[v] = uneven[l < 16 ? p[l] % 16 : p[l - 16] / 16];
            s[v] = half_value(b) * (float)(low + 16 * high - 32);
            break;
        }
        case KERNELS_MXFP4: {
            /* Sign, two bits of exponent, one of mantissa; doubled, so that they are whole. */
            int code = v < 16 ? b[1 + v] % 16 : b[1 + v - 16] / 16, e = code >> 1 & 3;
            int doubled = e ? (2 + code % 2) << (e - 1) : code % 2;
            q[v] = code & 8 ? -doubled : doubled;
            s[v] = ldexpf(1, b[0] - 128);
            break;
        }
        default: { /* Q6_K: 128 values take 64 bytes of low nibbles and 32 bytes of high pairs */
            int part = v / 128, l = v % 32, quarter = v % 128 / 32;
            const uint8_t *low = b + part * 64, *pairs = b + 128 + part * 32;
            static const int from[4] = {0, 32, 0, 32};
            nibble = low[l + from[quarter]];
            nibble = quarter < 2 ? nibble & 15 : nibble >> 4;
            q[v] = (nibble | (pairs[l] >> 2 * quarter & 3) << 4) - 32;
            s[v] = half_value(b + 208) * (float)(int8_t)b[192 + v / 16];
            break;
        }
        }
    }
}

void quant_dequantize(enum kernels_type type, const uint8_t *row, int cols, float *out, double *magnitude)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    int offset = type == KERNELS_Q4_0 ? 8 : type == KERNELS_Q5_0 ? 16 : type == KERNELS_Q6_K ? 32 : 0;
    for (int i = 0; i < cols; i += info->block_values, row += info->block_bytes) {
        if (info->block_values == 1) {
            uint32_t word = 0;
            memcpy(type == KERNELS_BF16 ? (uint8_t *)&word + 2 : (uint8_t *)&word, row, (size_t)info->block_bytes);
            memcpy(&out[i], &word, 4);
            if (type == KERNELS_F16)
                out[i] = half_value(row);
            if (magnitude)
                magnitude[i] = fabs((double)out[i]);
            continue;
        }
        int q[256];
        float s[256], m[256];
        read_block(type, row, q, s, m);
        for (int v = 0; v < info->block_values; v++) {
            out[i + v] = s[v] * (float)q[v] + m[v];
            if (magnitude)
                magnitude[i + v] = fabs((double)s[v]) * (abs(q[v]) + offset) + fabs((double)m[v]);
        }
    }
}

struct kernels_matrix quant_pack(enum kernels_type type, int rows, int cols, const uint8_t *file)
{
    size_t bytes = kernels_packed_bytes(type, rows, cols);
    void *packed = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!packed || bytes == 0)
        abort();
    for (int g = 0; g * KERNELS_ROW_GROUP < rows; g++)
        kernels_pack_group(type, rows, cols, g, file, packed);
    return (struct kernels_matrix){.type = type, .rows = rows, .cols = cols, .data = packed};
}

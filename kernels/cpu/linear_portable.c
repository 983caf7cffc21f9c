/* linear_portable.c - products without special instructions: the specification of what the sets of linear_lanes.h
 * compute.
 *
 * Every sum over the values of a block is an exact integer. Everything else is written out as the roundings that
 * happen, in the order in which they happen: one chain of fused multiply-adds per piece of an output, blocks ascending.
 */
#include "kernels/cpu/linear_internal.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float load_float(const uint8_t *p)
{
    float x;
    memcpy(&x, p, 4);
    return x;
}

static int32_t load_int(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, 4);
    return x;
}

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    for (int b = 0; b < cols / KERNELS_BLOCK; b++, x += KERNELS_BLOCK) {
        uint8_t *block = tile + ((size_t)b * (size_t)tokens + (size_t)token) * KERNELS_TOKEN_BLOCK_BYTES;
        int8_t *q = (int8_t *)block;
        uint32_t max = 0;
        for (int i = 0; i < KERNELS_BLOCK; i++) {
            uint32_t magnitude = bits_of(x[i]) & 0x7fffffff;
            max = magnitude > max ? magnitude : max;
        }
        float largest, d = 0, inverse = 0;
        memcpy(&largest, &max, 4);
        int32_t low = 0, high = 0;
        if (max >= 0x7f800000) {
            /* An infinity or a NaN: all that it touches becomes NaN. */
            d = NAN;
            memset(q, 0, KERNELS_BLOCK);
        } else {
            if (largest >= KERNELS_TINY) {
                d = largest / 127.0f;
                inverse = 127.0f / largest;
            }
            for (int i = 0; i < KERNELS_BLOCK; i++) {
                q[i] = (int8_t)lrintf(x[i] * inverse);
                *(i < KERNELS_BLOCK / 2 ? &low : &high) += q[i];
            }
        }
        kernels_token_facts(block, d, low, high);
    }
}

/* ---- unpacking --------------------------------------------------------------------------------------------------- */

/* One line is [16 rows][4 bytes]: takes `bits` at `shift` of every byte, adds them at `to_shift`. */
static void take_bits(const uint8_t *line, int shift, int bits, int to_shift, uint8_t *out)
{
    for (int i = 0; i < 64; i++)
        out[i] |= (uint8_t)((line[i] >> shift & ((1 << bits) - 1)) << to_shift);
}

static void store_floats(uint8_t *out, const float *values)
{
    memcpy(out, values, KERNELS_ROW_GROUP * 4);
}

static void load_halves(const uint8_t *p, float *out)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r++)
        out[r] = kernels_half((uint16_t)(p[2 * r] | p[2 * r + 1] << 8));
}

static void unpack_small(enum kernels_type type, struct kernels_packed_block at, uint8_t *out)
{
    float d[KERNELS_ROW_GROUP], m[KERNELS_ROW_GROUP] = {0};
    const uint8_t *rest = at.rest;
    load_halves(at.header, d);
    if (type == KERNELS_Q4_1 || type == KERNELS_Q5_1) {
        load_halves(at.header + 32, m);
        rest += 64;
    }
    store_floats(out + 512, d);
    store_floats(out + 576, m);
    if (type == KERNELS_Q8_0) {
        memcpy(out, rest, 512);
        return;
    }
    memset(out, 0, 512);
    if (type == KERNELS_Q5_0 || type == KERNELS_Q5_1) {
        for (int c = 0; c < 8; c++)
            take_bits(rest, c, 1, 4, out + c * 64);
        rest += 64;
    }
    for (int c = 0; c < 8; c++)
        take_bits(rest + c % 4 * 64, c / 4 * 4, 4, 0, out + c * 64);
}

static void unpack_k(enum kernels_type type, struct kernels_packed_block at, uint8_t *out)
{
    float d[KERNELS_ROW_GROUP], dmin[KERNELS_ROW_GROUP];
    load_halves(at.rest, d);
    load_halves(at.rest + 32, dmin);
    const uint8_t *scales = at.rest + 64, *high = scales + 192;
    const uint8_t *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    for (int j = 0; j < 8; j++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
        float s[KERNELS_ROW_GROUP], m[KERNELS_ROW_GROUP];
        for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
            const uint8_t *a = scales + r, *b = a + 64, *c = a + 128; /* four rows of scale bytes each */
            int i = j % 4 * KERNELS_ROW_GROUP;
            int scale = j < 4 ? a[i] & 63 : (c[i] & 15) | (a[i] >> 6) << 4;
            int min = j < 4 ? b[i] & 63 : c[i] >> 4 | (b[i] >> 6) << 4;
            s[r] = d[r] * (float)scale;
            m[r] = -(dmin[r] * (float)min);
        }
        store_floats(out + 512, s);
        store_floats(out + 576, m);
        memset(out, 0, 512);
        for (int chunk = 0; chunk < 8; chunk++) {
            take_bits(nibbles + (j / 2 * 8 + chunk) * 64, j % 2 * 4, 4, 0, out + chunk * 64);
            if (type == KERNELS_Q5_K)
                take_bits(high + chunk * 64, j, 1, 4, out + chunk * 64);
        }
    }
}

static void unpack_six(struct kernels_packed_block at, uint8_t *out)
{
    float d[KERNELS_ROW_GROUP];
    load_halves(at.header, d);
    const int8_t *scales = (const int8_t *)at.rest;
    const uint8_t *high = at.rest + 256, *nibbles = high + 1024;
    for (int j = 0; j < 8; j++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
        float s[2][KERNELS_ROW_GROUP];
        for (int i = 0; i < 2; i++)
            for (int r = 0; r < KERNELS_ROW_GROUP; r++)
                s[i][r] = d[r] * (float)scales[(2 * j + i) * KERNELS_ROW_GROUP + r];
        store_floats(out + 512, s[0]);
        store_floats(out + 576, s[1]);
        memset(out, 0, 512);
        int half = j / 4, quarter = j % 4;
        for (int chunk = 0; chunk < 8; chunk++) {
            take_bits(nibbles + (half * 16 + quarter % 2 * 8 + chunk) * 64, quarter / 2 * 4, 4, 0, out + chunk * 64);
            take_bits(high + (half * 8 + chunk) * 64, quarter * 2, 2, 4, out + chunk * 64);
        }
    }
}

static void unpack(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out)
{
    int ratio = kernels_type_info(type)->block_values / KERNELS_BLOCK;
    for (int b = first / ratio; b < (first + count) / ratio; b++) {
        struct kernels_packed_block at = kernels_packed_block(type, group, cols, b);
        if (ratio == 1)
            unpack_small(type, at, out);
        else if (type == KERNELS_Q6_K)
            unpack_six(at, out);
        else
            unpack_k(type, at, out);
        out += ratio * KERNELS_UNPACKED_BLOCK_BYTES;
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Sum over chunks [first, end) of one row: weights as bytes, of which Q8_0's are signed here. */
static int32_t dot(enum kernels_type type, const uint8_t *w, const int8_t *q, int first, int end)
{
    int32_t sum = 0;
    for (int c = first; c < end; c++)
        for (int i = 0; i < 4; i++) {
            int weight = w[c * 64 + i];
            sum += (type == KERNELS_Q8_0 ? (int8_t)weight : weight) * q[c * 4 + i];
        }
    return sum;
}

static int offset_of(enum kernels_type type)
{
    return type == KERNELS_Q4_0 ? 8 : type == KERNELS_Q5_0 ? 16 : type == KERNELS_Q6_K ? 32 : 0;
}

static float add_block(enum kernels_type type, const uint8_t *block, int row, const uint8_t *token, float acc)
{
    const uint8_t *w = block + row * 4;
    const int8_t *q = (const int8_t *)token;
    float s = load_float(block + 512 + row * 4), second = load_float(block + 576 + row * 4);
    float d = load_float(token + KERNELS_TOKEN_D), dsum = load_float(token + KERNELS_TOKEN_DSUM);
    int offset = offset_of(type);
    switch (type) {
    case KERNELS_Q4_1:
    case KERNELS_Q5_1:
    case KERNELS_Q4_K:
    case KERNELS_Q5_K:
        acc = fmaf(s * d, (float)dot(type, w, q, 0, 8), acc);
        return fmaf(second, dsum, acc);
    case KERNELS_Q6_K: {
        float low = (float)(dot(type, w, q, 0, 4) + offset * load_int(token + KERNELS_TOKEN_NEG_LOW));
        float high = (float)(dot(type, w, q, 4, 8) + offset * load_int(token + KERNELS_TOKEN_NEG_HIGH));
        return fmaf(d, fmaf(second, high, s * low), acc);
    }
    default:
        return fmaf(s * d, (float)(dot(type, w, q, 0, 8) + offset * load_int(token + KERNELS_TOKEN_NEG)), acc);
    }
}

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    enum kernels_type as = type == KERNELS_Q2_K ? KERNELS_Q6_K : type;
    int each = type == KERNELS_Q2_K ? 2 : 1;
    float sums[KERNELS_TILE * KERNELS_ROW_GROUP] = {0};
    for (int b = 0; b < count * each; b++) {
        const uint8_t *q = tile + b / each * tokens * KERNELS_TOKEN_BLOCK_BYTES;
        for (int t = 0; t < tokens; t++)
            for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
                float *sum = &sums[t * KERNELS_ROW_GROUP + r];
                *sum = add_block(as, unpacked, r, q + t * KERNELS_TOKEN_BLOCK_BYTES, *sum);
            }
        unpacked += KERNELS_UNPACKED_BLOCK_BYTES;
    }
    for (int i = 0; i < tokens * KERNELS_ROW_GROUP; i++)
        acc[i] += sums[i];
}

static float float_weight(enum kernels_type type, const uint8_t *group, size_t i)
{
    uint16_t bits;
    if (type == KERNELS_F32)
        return load_float(group + i * 4);
    memcpy(&bits, group + i * 2, 2);
    if (type == KERNELS_F16)
        return kernels_half(bits);
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static void floats(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc)
{
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
            float sum = 0;
            for (int first = 0; first < cols; first += KERNELS_FLOAT_PIECE) {
                int end = cols - first < KERNELS_FLOAT_PIECE ? cols : first + KERNELS_FLOAT_PIECE;
                float piece = 0;
                for (int k = first; k < end; k++)
                    piece = fmaf(float_weight(type, group, (size_t)k * KERNELS_ROW_GROUP + (size_t)r),
                                 x[(size_t)t * (size_t)cols + (size_t)k], piece);
                sum += piece;
            }
            acc[t * KERNELS_ROW_GROUP + r] = sum;
        }
}

/* Bytes are unpacked before they are multiplied in any case: there is no `one`. */
const struct kernels_linear_set kernels_linear_portable = {
    .quantize = quantize,
    .unpack = unpack,
    .tile = tile_product,
    .floats = floats,
};

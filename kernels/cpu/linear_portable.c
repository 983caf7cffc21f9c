/* linear_portable.c - products without special instructions: the specification of what linear_lanes.h computes
 * (docs/numerics.md, "Products with quantized weights").
 *
 * Sums over the values of a block, and of those with whole scales over a step, are exact integers. Everything else is
 * written out as the roundings that happen, in the order in which they happen.
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

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    for (int first = 0, step = 0; first < cols; first += KERNELS_STEP, step++) {
        int n = cols - first < KERNELS_STEP ? cols - first : KERNELS_STEP;
        uint8_t *block = tile + ((size_t)step * (size_t)tokens + (size_t)token) * KERNELS_TOKEN_BLOCK_BYTES;
        int8_t *q = (int8_t *)block;
        uint32_t max = 0;
        for (int i = 0; i < n; i++) {
            uint32_t magnitude = bits_of(x[first + i]) & 0x7fffffff;
            max = magnitude > max ? magnitude : max;
        }
        float largest, dx = 0, inverse = 0;
        memcpy(&largest, &max, 4);
        int16_t halves[2 * KERNELS_STEP_SUBS] = {0};
        memset(q, 0, KERNELS_STEP);
        if (max >= 0x7f800000) {
            dx = NAN; /* an infinity or a NaN: all that it touches becomes NaN */
        } else {
            if (largest >= KERNELS_TINY) {
                dx = largest / 127.0f;
                inverse = 127.0f / largest;
            }
            for (int i = 0; i < n; i++) {
                q[i] = (int8_t)lrintf(x[first + i] * inverse);
                halves[i / 16] = (int16_t)(halves[i / 16] + q[i]);
            }
        }
        kernels_token_facts(block, dx, halves);
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

/* One row's scale byte is written twice, for all 16 rows. */
static void store_twice(uint8_t *out, const int8_t *scales)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r++)
        out[2 * r] = out[2 * r + 1] = (uint8_t)scales[r];
}

/* Rows' bytes a and b side by side. */
static void store_pairs(uint8_t *out, const int8_t *a, const int8_t *b)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
        out[2 * r] = (uint8_t)a[r];
        out[2 * r + 1] = (uint8_t)b[r];
    }
}

/* Sub-block j of a step. */
static void unpack_small(enum kernels_type type, struct kernels_packed_block at, int j, uint8_t *step)
{
    float d[KERNELS_ROW_GROUP], m[KERNELS_ROW_GROUP] = {0};
    const uint8_t *rest = at.rest;
    uint8_t *out = step + j * 512;
    load_halves(at.header, d);
    if (type == KERNELS_Q4_1 || type == KERNELS_Q5_1) {
        load_halves(at.header + 32, m);
        rest += 64;
    }
    store_floats(step + KERNELS_UNPACKED_SCALE + j * 64, d);
    store_floats(step + KERNELS_UNPACKED_MIN + j * 64, m);
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

/* Two steps. */
static void unpack_k(enum kernels_type type, struct kernels_packed_block at, uint8_t *out)
{
    float d[KERNELS_ROW_GROUP], dmin[KERNELS_ROW_GROUP];
    int8_t s[8][KERNELS_ROW_GROUP], m[8][KERNELS_ROW_GROUP];
    load_halves(at.rest, d);
    load_halves(at.rest + 32, dmin);
    const uint8_t *scales = at.rest + 64, *high = scales + 192;
    const uint8_t *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    for (int j = 0; j < 8; j++)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
            const uint8_t *a = scales + r, *b = a + 64, *c = a + 128; /* four rows of scale bytes each */
            int i = j % 4 * KERNELS_ROW_GROUP;
            s[j][r] = (int8_t)(j < 4 ? a[i] & 63 : (c[i] & 15) | (a[i] >> 6) << 4);
            m[j][r] = (int8_t)(j < 4 ? b[i] & 63 : c[i] >> 4 | (b[i] >> 6) << 4);
        }
    for (int j = 0; j < 8; j++) {
        uint8_t *step = out + j / 4 * KERNELS_UNPACKED_STEP_BYTES, *to = step + j % 4 * 512;
        store_twice(step + KERNELS_UNPACKED_SCALE + j % 4 * 32, s[j]);
        if (j % 2 == 0)
            store_pairs(step + KERNELS_UNPACKED_LOW + j % 4 * 16, m[j], m[j + 1]);
        store_floats(step + KERNELS_UNPACKED_D, d);
        store_floats(step + KERNELS_UNPACKED_DMIN, dmin);
        memset(to, 0, 512);
        for (int chunk = 0; chunk < 8; chunk++) {
            take_bits(nibbles + (j / 2 * 8 + chunk) * 64, j % 2 * 4, 4, 0, to + chunk * 64);
            if (type == KERNELS_Q5_K)
                take_bits(high + chunk * 64, j, 1, 4, to + chunk * 64);
        }
    }
}

static void unpack_six(struct kernels_packed_block at, uint8_t *out)
{
    float d[KERNELS_ROW_GROUP];
    load_halves(at.header, d);
    const int8_t *scales = (const int8_t *)at.rest;
    const uint8_t *high = at.rest + 256, *nibbles = high + 1024;
    for (int j = 0; j < 8; j++, scales += 32) {
        uint8_t *step = out + j / 4 * KERNELS_UNPACKED_STEP_BYTES, *to = step + j % 4 * 512;
        store_twice(step + KERNELS_UNPACKED_SCALE + j % 4 * 64, scales);
        store_twice(step + KERNELS_UNPACKED_SCALE + j % 4 * 64 + 32, scales + 16);
        store_pairs(step + KERNELS_UNPACKED_LOW + j % 4 * 32, scales, scales + 16);
        store_floats(step + KERNELS_UNPACKED_D, d);
        memset(to, 0, 512);
        int half = j / 4, quarter = j % 4;
        for (int chunk = 0; chunk < 8; chunk++) {
            take_bits(nibbles + (half * 16 + quarter % 2 * 8 + chunk) * 64, quarter / 2 * 4, 4, 0, to + chunk * 64);
            take_bits(high + (half * 8 + chunk) * 64, quarter * 2, 2, 4, to + chunk * 64);
        }
    }
}

static void unpack(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out)
{
    if (type >= KERNELS_FIRST_UNPACKED) {
        kernels_unpack_portable(type, group, cols, first, count, 0, out);
        return;
    }
    int ratio = kernels_type_info(type)->block_values / KERNELS_SUB_BLOCK;
    for (int i = 0; i < count; i += ratio) {
        struct kernels_packed_block at = kernels_packed_block(type, group, cols, (first + i) / ratio);
        uint8_t *step = out + i / KERNELS_STEP_SUBS * KERNELS_UNPACKED_STEP_BYTES;
        if (ratio == 1)
            unpack_small(type, at, i % KERNELS_STEP_SUBS, step);
        else if (type == KERNELS_Q6_K)
            unpack_six(at, step);
        else
            unpack_k(type, at, step);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* What is subtracted from a value's byte. */
static int offset_of(enum kernels_type type)
{
    return type == KERNELS_Q4_0   ? 8
           : type == KERNELS_Q5_0 ? 16
           : type == KERNELS_Q6_K ? 32
           : type == KERNELS_Q3_K ? 4
                                  : 0;
}

static bool is_signed(enum kernels_type type)
{
    return type == KERNELS_Q8_0 || type == KERNELS_IQ4_NL || type == KERNELS_IQ4_XS || type == KERNELS_MXFP4;
}

/* Sum over chunks [first, end) of one row of a sub-block of value times quant. */
static int32_t dot(enum kernels_type type, const uint8_t *w, const int8_t *q, int first, int end)
{
    int32_t sum = 0;
    for (int c = first; c < end; c++)
        for (int i = 0; i < 4; i++) {
            int byte = w[c * 64 + i];
            sum += ((is_signed(type) ? (int8_t)byte : byte) - offset_of(type)) * q[c * 4 + i];
        }
    return sum;
}

/* A step of a type with a float scale per sub-block, of which there are n. */
static float add_scaled(enum kernels_type type, const uint8_t *step, int n, int row, const uint8_t *token, float acc)
{
    float t = 0;
    for (int j = 0; j < n; j++) {
        int32_t sum = dot(type, step + j * 512 + row * 4, (const int8_t *)token + j * KERNELS_SUB_BLOCK, 0, 8);
        t = fmaf(load_float(step + KERNELS_UNPACKED_SCALE + j * 64 + row * 4), (float)sum, t);
        if (type == KERNELS_Q4_1 || type == KERNELS_Q5_1)
            t = fmaf(load_float(step + KERNELS_UNPACKED_MIN + j * 64 + row * 4),
                     load_float(token + KERNELS_TOKEN_SUM + j * 4), t);
    }
    return fmaf(load_float(token + KERNELS_TOKEN_DX), t, acc);
}

/* A step of a type with whole scales per 32 or 16 values, and floats per 256. */
static float add_whole(enum kernels_type type, const uint8_t *step, int row, const uint8_t *token, float acc)
{
    bool sixteen = type == KERNELS_Q6_K || type == KERNELS_Q3_K || type == KERNELS_Q2_K;
    int parts = sixteen ? 8 : 4, chunks = 32 / parts;
    const int8_t *scale = (const int8_t *)step + KERNELS_UNPACKED_SCALE + row * 2;
    const int8_t *low = (const int8_t *)step + KERNELS_UNPACKED_LOW + row * 2;
    int32_t t = 0, u = 0;
    for (int i = 0; i < parts; i++) {
        int first = i * chunks % 8;
        int32_t sum = dot(type, step + i * chunks / 8 * 512 + row * 4,
                          (const int8_t *)token + i * chunks / 8 * KERNELS_SUB_BLOCK, first, first + chunks);
        int16_t quants;
        memcpy(&quants, token + (sixteen ? KERNELS_TOKEN_HALVES : KERNELS_TOKEN_SUMS) + 2 * i, sizeof quants);
        t += scale[i * 32] * sum;
        u += low[i / 2 * 32 + i % 2] * quants;
    }
    float dx = load_float(token + KERNELS_TOKEN_DX), d = load_float(step + KERNELS_UNPACKED_D + row * 4);
    if (type == KERNELS_Q4_K || type == KERNELS_Q5_K || type == KERNELS_Q2_K) {
        float dmin = load_float(step + KERNELS_UNPACKED_DMIN + row * 4);
        return fmaf(dx, fmaf(d, (float)t, -(dmin * (float)u)), acc);
    }
    return fmaf(dx, d * (float)t, acc);
}

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    bool whole = kernels_type_info(type)->block_values > KERNELS_SUB_BLOCK;
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
            float sum = 0;
            for (int b = 0, i = 0; b < count; b += KERNELS_STEP_SUBS, i++) {
                const uint8_t *step = unpacked + i * KERNELS_UNPACKED_STEP_BYTES;
                const uint8_t *token = tile + (i * tokens + t) * KERNELS_TOKEN_BLOCK_BYTES;
                int n = count - b < KERNELS_STEP_SUBS ? count - b : KERNELS_STEP_SUBS;
                sum = whole ? add_whole(type, step, r, token, sum) : add_scaled(type, step, n, r, token, sum);
            }
            acc[t * KERNELS_ROW_GROUP + r] += sum;
        }
}

static float float_weight(enum kernels_type type, const uint8_t *row, size_t i)
{
    uint16_t bits;
    if (type == KERNELS_F32)
        return load_float(row + i * 4);
    memcpy(&bits, row + i * 2, 2);
    if (type == KERNELS_F16)
        return kernels_half(bits);
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* Lane k mod 32 adds the products of k; the lanes of a piece are added as a tree. */
static float float_piece(enum kernels_type type, const uint8_t *row, const float *x, int n)
{
    float lane[32] = {0};
    for (int k = 0; k < (n + 31) / 32 * 32; k++) {
        float w = k < n ? float_weight(type, row, (size_t)k) : 0, value = k < n ? x[k] : 0;
        lane[k % 32] = fmaf(w, value, lane[k % 32]);
    }
    for (int apart = 16; apart > 0; apart /= 2)
        for (int j = 0; j < apart; j++)
            lane[j] += lane[j + apart];
    return lane[0];
}

static void floats(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc)
{
    size_t bytes = (size_t)kernels_type_info(type)->block_bytes;
    for (int t = 0; t < tokens; t++, x += cols)
        for (int r = 0; r < KERNELS_ROW_GROUP; r++) {
            const uint8_t *row = group + (size_t)r * (size_t)cols * bytes;
            float sum = 0;
            for (int k = 0; k < cols; k += KERNELS_PIECE)
                sum += float_piece(type, row + (size_t)k * bytes, x + k,
                                   cols - k < KERNELS_PIECE ? cols - k : KERNELS_PIECE);
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

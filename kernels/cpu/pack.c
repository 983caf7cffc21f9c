/* pack.c - weights from their order in a file to the interleaved order that the products read, and back for embed.
 *
 * Packing moves bytes (and transposes the high bits of two types); it never rounds. What goes where is one table,
 * read by the packer and by the reader of single rows. linear_internal.h describes the result.
 *
 * Everything here is a pure function of its arguments; any thread.
 */
#include "kernels/cpu/linear_internal.h"

#include <string.h>

/* A field of a file's block, in packed order. */
struct field {
    uint8_t offset, bytes, unit;
    bool transpose; /* the 32 high bits of Q5_0 and Q5_1 */
};

struct layout {
    bool header; /* the first field is a header of half a line, shared by two blocks */
    int fields;
    struct field field[5];
};

static const struct layout layouts[KERNELS_TYPE_COUNT] = {
    [KERNELS_F32] = {false, 1, {{0, 4, 4, false}}},
    [KERNELS_F16] = {false, 1, {{0, 2, 2, false}}},
    [KERNELS_BF16] = {false, 1, {{0, 2, 2, false}}},
    [KERNELS_Q8_0] = {true, 2, {{0, 2, 2, false}, {2, 32, 4, false}}},
    [KERNELS_Q4_0] = {true, 2, {{0, 2, 2, false}, {2, 16, 4, false}}},
    [KERNELS_Q4_1] = {false, 3, {{0, 2, 2, false}, {2, 2, 2, false}, {4, 16, 4, false}}},
    [KERNELS_Q5_0] = {true, 3, {{0, 2, 2, false}, {2, 4, 4, true}, {6, 16, 4, false}}},
    [KERNELS_Q5_1] = {false, 4, {{0, 2, 2, false}, {2, 2, 2, false}, {4, 4, 4, true}, {8, 16, 4, false}}},
    [KERNELS_Q4_K] = {false, 4, {{0, 2, 2, false}, {2, 2, 2, false}, {4, 12, 1, false}, {16, 128, 4, false}}},
    [KERNELS_Q5_K] = {false,
                      5,
                      {{0, 2, 2, false}, {2, 2, 2, false}, {4, 12, 1, false}, {16, 32, 4, false}, {48, 128, 4, false}}},
    [KERNELS_Q6_K] = {true, 4, {{208, 2, 2, false}, {192, 16, 1, false}, {128, 64, 4, false}, {0, 128, 4, false}}},
    [KERNELS_Q2_K] = {false, 4, {{80, 2, 2, false}, {82, 2, 2, false}, {0, 16, 1, false}, {16, 64, 4, false}}},
    [KERNELS_Q3_K] = {false, 4, {{108, 2, 2, false}, {96, 12, 1, false}, {0, 32, 4, false}, {32, 64, 4, false}}},
    [KERNELS_IQ4_NL] = {true, 2, {{0, 2, 2, false}, {2, 16, 4, false}}},
    [KERNELS_IQ4_XS] = {false, 4, {{0, 2, 2, false}, {2, 2, 2, false}, {4, 4, 1, false}, {8, 128, 4, false}}},
    [KERNELS_MXFP4] = {false, 2, {{0, 1, 1, false}, {1, 16, 4, false}}},
};

#define HEADER_BYTES    (KERNELS_ROW_GROUP * 2)
#define MAX_BLOCK_BYTES 210

size_t kernels_packed_bytes(enum kernels_type type, int rows, int cols)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    if (rows <= 0 || cols <= 0 || cols % info->block_values != 0)
        return 0;
    size_t groups = ((size_t)rows + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP;
    size_t row_bytes, bytes;
    if (__builtin_mul_overflow((size_t)(cols / info->block_values), (size_t)info->block_bytes, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, groups * KERNELS_ROW_GROUP, &bytes))
        return 0;
    return bytes;
}

static size_t group_bytes(enum kernels_type type, int cols)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    return (size_t)(cols / info->block_values) * (size_t)info->block_bytes * KERNELS_ROW_GROUP;
}

struct kernels_packed_block kernels_packed_block(enum kernels_type type, const uint8_t *group, int cols, int block)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    size_t bytes = (size_t)info->block_bytes * KERNELS_ROW_GROUP, odd = block & 1;
    if (info->block_values == 1)
        block = kernels_float_place(cols, block);
    if (!layouts[type].header)
        return (struct kernels_packed_block){group + (size_t)block * bytes, group + (size_t)block * bytes};
    bool alone = !odd && block == cols / info->block_values - 1;
    const uint8_t *pair = group + ((size_t)block - odd) * bytes;
    return (struct kernels_packed_block){
        pair + odd * HEADER_BYTES,
        pair + (alone ? HEADER_BYTES : 2 * HEADER_BYTES) + odd * (bytes - HEADER_BYTES),
    };
}

/* Bit 4 c + i of a word becomes bit c of byte i. */
static void transpose_high(const uint8_t in[4], uint8_t out[4])
{
    uint8_t bits[4] = {0};
    for (int v = 0; v < 32; v++)
        bits[v % 4] |= (uint8_t)((in[v / 8] >> (v % 8) & 1) << (v / 4));
    memcpy(out, bits, 4);
}

/* The reverse. */
static void restore_high(const uint8_t in[4], uint8_t out[4])
{
    uint8_t bits[4] = {0};
    for (int v = 0; v < 32; v++)
        bits[v / 8] |= (uint8_t)((in[v % 4] >> (v / 4) & 1) << (v % 8));
    memcpy(out, bits, 4);
}

static inline __attribute__((always_inline)) void copy_units(uint8_t *to, size_t to_step, const uint8_t *from,
                                                             size_t from_step, int units, size_t unit)
{
    for (int i = 0; i < units; i++)
        memcpy(to + (size_t)i * to_step, from + (size_t)i * from_step, unit);
}

static void pack_field(const struct field *f, const uint8_t *block, int row, uint8_t *to)
{
    const uint8_t *from = block + f->offset;
    if (f->transpose)
        transpose_high(from, to + row * 4);
    else if (f->unit == 4)
        copy_units(to + row * 4, KERNELS_ROW_GROUP * 4, from, 4, f->bytes / 4, 4);
    else if (f->unit == 2)
        copy_units(to + row * 2, KERNELS_ROW_GROUP * 2, from, 2, f->bytes / 2, 2);
    else
        copy_units(to + row, KERNELS_ROW_GROUP, from, 1, f->bytes, 1);
}

static void unpack_field(const struct field *f, const uint8_t *from, int row, uint8_t *block)
{
    uint8_t *to = block + f->offset;
    if (f->transpose)
        restore_high(from + row * 4, to);
    else if (f->unit == 4)
        copy_units(to, 4, from + row * 4, KERNELS_ROW_GROUP * 4, f->bytes / 4, 4);
    else if (f->unit == 2)
        copy_units(to, 2, from + row * 2, KERNELS_ROW_GROUP * 2, f->bytes / 2, 2);
    else
        copy_units(to, 1, from + row, KERNELS_ROW_GROUP, f->bytes, 1);
}

void kernels_pack_group(enum kernels_type type, int rows, int cols, int group, const void *rows_in_file, void *packed)
{
    const struct kernels_type_info *info = kernels_type_info(type);
    const struct layout *layout = &layouts[type];
    int blocks = cols / info->block_values, first = group * KERNELS_ROW_GROUP;
    int n = rows - first < KERNELS_ROW_GROUP ? rows - first : KERNELS_ROW_GROUP;
    size_t row_bytes = (size_t)blocks * (size_t)info->block_bytes;
    uint8_t *out = (uint8_t *)packed + (size_t)group * group_bytes(type, cols);
    const uint8_t *in = (const uint8_t *)rows_in_file + (size_t)first * row_bytes;
    if (n < KERNELS_ROW_GROUP)
        memset(out, 0, group_bytes(type, cols));
    for (int b = 0; b < blocks; b++) {
        struct kernels_packed_block at = kernels_packed_block(type, out, cols, b);
        uint8_t *header = out + (at.header - out), *rest = out + (at.rest - out);
        for (int r = 0; r < n; r++) {
            const uint8_t *block = in + (size_t)r * row_bytes + (size_t)b * (size_t)info->block_bytes;
            uint8_t *to = rest;
            for (int i = 0; i < layout->fields; i++) {
                const struct field *f = &layout->field[i];
                bool in_header = layout->header && i == 0;
                pack_field(f, block, r, in_header ? header : to);
                if (!in_header)
                    to += f->bytes * KERNELS_ROW_GROUP;
            }
        }
    }
}

/* ---- single rows ------------------------------------------------------------------------------------------------- */

float kernels_half(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    /* A NaN comes out quiet, as the processor's conversion gives it. */
    uint32_t quiet = exponent == 31 && mantissa ? 0x400000 : 0;
    uint32_t word = sign | (exponent == 31 ? 0xff : exponent + 112) << 23 | mantissa << 13 | quiet;
    memcpy(&value, &word, 4);
    return value;
}

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float half_at(const uint8_t *p)
{
    return kernels_half(load16(p));
}

static void floats_row(const struct kernels_matrix *w, const uint8_t *group, int row, float *out)
{
    for (int k = 0; k < w->cols; k++) {
        size_t i = (size_t)kernels_float_place(w->cols, k) * KERNELS_ROW_GROUP + (size_t)row;
        if (w->type == KERNELS_F32) {
            memcpy(&out[k], group + i * 4, 4);
        } else if (w->type == KERNELS_F16) {
            out[k] = half_at(group + i * 2);
        } else {
            uint32_t word = (uint32_t)load16(group + i * 2) << 16;
            memcpy(&out[k], &word, 4);
        }
    }
}

/* Blocks of 32 with nibbles: value = q * d + m. */
static void nibble_block(const uint8_t *nibbles, const uint8_t *high, int offset, float d, float m, float out[32])
{
    for (int v = 0; v < 32; v++) {
        int q = v < 16 ? nibbles[v] & 15 : nibbles[v - 16] >> 4;
        if (high)
            q |= (high[v / 8] >> (v % 8) & 1) << 4;
        out[v] = (float)(q - offset) * d + m;
    }
}

/* Q4_K and Q5_K: value = q * (d * scale) - dmin * min. */
static void k_block(const uint8_t *scales, const uint8_t *high, const uint8_t *nibbles, float d, float dmin,
                    float out[256])
{
    for (int j = 0; j < 8; j++) {
        int scale, min;
        if (j < 4) {
            scale = scales[j] & 63;
            min = scales[j + 4] & 63;
        } else {
            scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
            min = scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
        }
        float s = d * (float)scale, m = dmin * (float)min;
        for (int v = 0; v < 32; v++) {
            int q = nibbles[j / 2 * 32 + v] >> (j % 2 * 4) & 15;
            if (high)
                q |= (high[v] >> j & 1) << 4;
            out[j * 32 + v] = s * (float)q - m;
        }
    }
}

/* Q6_K: value = (q - 32) * (d * scale). */
static void six_block(const uint8_t *block, float d, float out[256])
{
    for (int v = 0; v < 256; v++) {
        int half = v / 128, quarter = v % 128 / 32, l = v % 32;
        int low = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
        int high = block[128 + half * 32 + l] >> (quarter * 2) & 3;
        int scale = (int8_t)block[192 + v / 16];
        out[v] = d * (float)scale * (float)((low | high << 4) - 32);
    }
}

/* Q2_K: value = q * (d * scale) - dmin * min, scale and min of 16 values in a byte. */
static void two_block(const uint8_t *b, float out[256])
{
    for (int v = 0; v < 256; v++) {
        int q = b[16 + v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3, byte = b[v / 16];
        out[v] = half_at(b + 80) * (float)(byte & 15) * (float)q - half_at(b + 82) * (float)(byte >> 4);
    }
}

/* Q3_K: value = (q - 4) * (d * (scale - 32)). */
static void three_block(const uint8_t *b, float out[256])
{
    const uint8_t *scales = b + 96;
    for (int v = 0; v < 256; v++) {
        int low = b[32 + v / 128 * 32 + v % 32] >> (v % 128 / 32 * 2) & 3, high = b[v % 32] >> (v / 32) & 1, k = v / 16;
        int scale = (k < 8 ? scales[k] & 15 : scales[k - 8] >> 4) | (scales[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
        out[v] = half_at(b + 108) * (float)(scale - 32) * (float)((low | high << 2) - 4);
    }
}

/* 32 values of a table. */
static void table_block(const uint8_t *nibbles, const int8_t *table, float s, float out[32])
{
    for (int v = 0; v < 32; v++)
        out[v] = s * (float)table[v < 16 ? nibbles[v] & 15 : nibbles[v - 16] >> 4];
}

static void iq4_xs_block(const uint8_t *b, float out[256])
{
    for (int j = 0; j < 8; j++) {
        int scale = (b[4 + j / 2] >> (j % 2 * 4) & 15) | (load16(b + 2) >> (2 * j) & 3) << 4;
        table_block(b + 8 + j * 16, KERNELS_IQ4_VALUES, half_at(b) * (float)(scale - 32), out + j * 32);
    }
}

static void dequantize(enum kernels_type type, const uint8_t *b, float *out)
{
    switch (type) {
    case KERNELS_Q8_0:
        for (int v = 0; v < 32; v++)
            out[v] = (float)(int8_t)b[2 + v] * half_at(b);
        break;
    case KERNELS_Q4_0:
        nibble_block(b + 2, NULL, 8, half_at(b), 0, out);
        break;
    case KERNELS_Q4_1:
        nibble_block(b + 4, NULL, 0, half_at(b), half_at(b + 2), out);
        break;
    case KERNELS_Q5_0:
        nibble_block(b + 6, b + 2, 16, half_at(b), 0, out);
        break;
    case KERNELS_Q5_1:
        nibble_block(b + 8, b + 4, 0, half_at(b), half_at(b + 2), out);
        break;
    case KERNELS_Q4_K:
        k_block(b + 4, NULL, b + 16, half_at(b), half_at(b + 2), out);
        break;
    case KERNELS_Q5_K:
        k_block(b + 4, b + 16, b + 48, half_at(b), half_at(b + 2), out);
        break;
    case KERNELS_Q2_K:
        two_block(b, out);
        break;
    case KERNELS_Q3_K:
        three_block(b, out);
        break;
    case KERNELS_IQ4_NL:
        table_block(b + 2, KERNELS_IQ4_VALUES, half_at(b), out);
        break;
    case KERNELS_IQ4_XS:
        iq4_xs_block(b, out);
        break;
    case KERNELS_MXFP4:
        table_block(b + 1, KERNELS_FP4_VALUES, kernels_power(b[0]), out);
        break;
    default: /* Q6_K; types without blocks do not come here */
        six_block(b, half_at(b + 208), out);
        break;
    }
}

void kernels_packed_row(const struct kernels_matrix *w, int row, float *out)
{
    const struct kernels_type_info *info = kernels_type_info(w->type);
    const struct layout *layout = &layouts[w->type];
    const uint8_t *group = (const uint8_t *)w->data + (size_t)(row / KERNELS_ROW_GROUP) * group_bytes(w->type, w->cols);
    row %= KERNELS_ROW_GROUP;
    if (info->block_values == 1) {
        floats_row(w, group, row, out);
        return;
    }
    for (int b = 0; b < w->cols / info->block_values; b++) {
        struct kernels_packed_block at = kernels_packed_block(w->type, group, w->cols, b);
        uint8_t block[MAX_BLOCK_BYTES];
        const uint8_t *from = at.rest;
        for (int i = 0; i < layout->fields; i++) {
            const struct field *f = &layout->field[i];
            bool in_header = layout->header && i == 0;
            unpack_field(f, in_header ? at.header : from, row, block);
            if (!in_header)
                from += f->bytes * KERNELS_ROW_GROUP;
        }
        dequantize(w->type, block, out + (size_t)b * (size_t)info->block_values);
    }
}

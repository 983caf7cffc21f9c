/* unpack_types.h - weight types that are multiplied as another type: their values are unpacked to what that type's
 * product takes (linear_internal.h, "Unpacked weights"), 16 rows side by side. Included by unpack_portable.c and
 * unpack_avx2.c, behind what they do with a line (look_up, take, load_halves, scale_rows, power_rows); UNPACK names the
 * function that is defined here.
 *
 *   IQ4_NL, IQ4_XS, MXFP4   as Q8_0: the value that a nibble stands for, and a scale
 *   Q3_K                    as Q6_K: a scale per 16 values, of which 28 more than Q3_K's are written
 *   Q2_K                    as Q6_K, twice: its values (32 more are written), then ones with the minima as scales
 *
 * All scales are products that binary32 holds exactly.
 */
#include "kernels/cpu/linear_internal.h"

#include <string.h>

#define ROWS KERNELS_ROW_GROUP

static inline void store_floats(uint8_t *out, const float *values)
{
    memcpy(out, values, ROWS * sizeof *values);
}

static const float NOTHING[ROWS];

/* Four lines of nibbles, as what they stand for; mask is what the set's Q8_0 bytes differ by. */
static inline void unpack_nibbles(const uint8_t *p, const int8_t *table, uint8_t mask, uint8_t *out)
{
    for (int c = 0; c < 4; c++, p += 64) {
        look_up(table, p, mask, out + c * 64, out + (c + 4) * 64);
    }
}

static inline void unpack_iq4_xs(const uint8_t *p, uint8_t mask, uint8_t *out)
{
    const uint8_t *words = p + 2 * ROWS, *nibbles = p + 8 * ROWS;
    uint8_t high[64], low[64], six[64];
    float d[ROWS], s[ROWS];
    load_halves(p, d);
    memcpy(low, p + 4 * ROWS, sizeof low);
    for (int half = 0; half < 2; half++) {
        /* Scales 4 half to 4 half + 3: nibbles of two rows of `low`, pairs of bits of a byte of the words. */
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < 4; j++)
                high[j * ROWS + r] = (uint8_t)(words[2 * r + half] >> (2 * j) & 3);
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < ROWS; r++)
                six[j * ROWS + r] = (uint8_t)((low[(2 * half + j / 2) * ROWS + r] >> (j % 2 * 4) & 15) - 32);
        take(high, 0, 3, 4, 0, six, true);
        for (int j = 0; j < 4; j++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
            scale_rows(d, six + j * ROWS, s);
            unpack_nibbles(nibbles + (4 * half + j) * 256, KERNELS_IQ4_VALUES, mask, out);
            store_floats(out + 512, s);
            store_floats(out + 576, NOTHING);
        }
    }
}

static inline void unpack_mxfp4(const uint8_t *p, uint8_t mask, uint8_t *out)
{
    float s[ROWS];
    power_rows(p, s);
    unpack_nibbles(p + ROWS, KERNELS_FP4_VALUES, mask, out);
    store_floats(out + 512, s);
    store_floats(out + 576, NOTHING);
}

/* Bits 2 j and 2 j + 1 of 8 lines, and `plus`. */
static inline void unpack_pairs(const uint8_t *p, int j, int plus, uint8_t *out)
{
    for (int c = 0; c < 8; c++)
        take(p + c * 64, 2 * j, 3, 0, plus, out + c * 64, false);
}

static inline void unpack_q3_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *scales = p + 2 * ROWS, *high = p + 14 * ROWS, *pairs = high + 32 * ROWS;
    float d[ROWS], s[2][ROWS];
    uint8_t six[16 * ROWS];
    load_halves(p, d);
    for (int i = 0; i < 4; i++) { /* four scales of all rows are a line */
        take(scales + i % 2 * 64, i / 2 * 4, 15, 0, -32, six + i * 64, false);
        take(scales + 128, 2 * i, 3, 4, 0, six + i * 64, true);
    }
    for (int b = 0; b < 8; b++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
        for (int i = 0; i < 2; i++)
            scale_rows(d, six + (2 * b + i) * ROWS, s[i]);
        unpack_pairs(pairs + b / 4 * 512, b % 4, 28, out);
        for (int c = 0; c < 8; c++)
            take(high + c * 64, b, 1, 2, 0, out + c * 64, true);
        store_floats(out + 512, s[0]);
        store_floats(out + 576, s[1]);
    }
}

static inline void unpack_q2_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *bytes = p + 4 * ROWS, *pairs = p + 20 * ROWS;
    float d[ROWS], minus[ROWS], s[2][ROWS], m[2][ROWS];
    uint8_t scales[16 * ROWS], minima[16 * ROWS];
    load_halves(p, d);
    load_halves(p + 2 * ROWS, minus);
    for (int r = 0; r < ROWS; r++)
        minus[r] = -minus[r];
    for (int i = 0; i < 4; i++) {
        take(bytes + i * 64, 0, 15, 0, 0, scales + i * 64, false);
        take(bytes + i * 64, 4, 15, 0, 0, minima + i * 64, false);
    }
    for (int b = 0; b < 8; b++, out += 2 * KERNELS_UNPACKED_BLOCK_BYTES) {
        uint8_t *ones = out + KERNELS_UNPACKED_BLOCK_BYTES;
        for (int i = 0; i < 2; i++) {
            scale_rows(d, scales + (2 * b + i) * ROWS, s[i]);
            scale_rows(minus, minima + (2 * b + i) * ROWS, m[i]);
        }
        unpack_pairs(pairs + b / 4 * 512, b % 4, 32, out);
        store_floats(out + 512, s[0]);
        store_floats(out + 576, s[1]);
        memset(ones, 33, 512);
        store_floats(ones + 512, m[0]);
        store_floats(ones + 576, m[1]);
    }
}

void UNPACK(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask, uint8_t *out)
{
    int ratio = kernels_type_info(type)->block_values / KERNELS_BLOCK;
    for (int b = first / ratio; b < (first + count) / ratio; b++) {
        struct kernels_packed_block at = kernels_packed_block(type, group, cols, b);
        size_t bytes = KERNELS_UNPACKED_BLOCK_BYTES * (size_t)ratio;
        float d[ROWS];
        switch (type) {
        case KERNELS_Q2_K:
            unpack_q2_k(at.rest, out);
            bytes *= 2;
            break;
        case KERNELS_Q3_K:
            unpack_q3_k(at.rest, out);
            break;
        case KERNELS_IQ4_XS:
            unpack_iq4_xs(at.rest, mask, out);
            break;
        case KERNELS_MXFP4:
            unpack_mxfp4(at.rest, mask, out);
            break;
        default: /* IQ4_NL */
            load_halves(at.header, d);
            unpack_nibbles(at.rest, KERNELS_IQ4_VALUES, mask, out);
            store_floats(out + 512, d);
            store_floats(out + 576, NOTHING);
            break;
        }
        out += bytes;
    }
}

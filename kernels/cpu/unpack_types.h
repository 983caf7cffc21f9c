/* unpack_types.h - weight types that are always unpacked before they are multiplied (linear_internal.h, "Unpacked
 * weights"), 16 rows side by side. Included by unpack_portable.c and
 * unpack_avx2.c, behind what they do with a line (look_up, take, load_halves, power_rows); UNPACK names the function
 * that is defined here.
 *
 *
 *   IQ4_NL, MXFP4   as Q8_0: the values that nibbles stand for, signed, and a float scale
 *   IQ4_XS          the same values, a whole scale per 32
 *   Q3_K, Q2_K      values of three and two bits, a whole scale per 16; Q2_K's minima too
 */
#include "kernels/cpu/linear_internal.h"

#include <string.h>

#define ROWS KERNELS_ROW_GROUP

static inline void store_floats(uint8_t *out, const float *values)
{
    memcpy(out, values, ROWS * sizeof *values);
}

/* Rows' bytes a and b side by side. */
static inline void store_pairs(uint8_t *out, const uint8_t *a, const uint8_t *b)
{
    for (int r = 0; r < ROWS; r++) {
        out[2 * r] = a[r];
        out[2 * r + 1] = b[r];
    }
}

/* The scales and floats of two steps; `each`: scales of a sub-block, 1 or 2. */
static inline void store_scales(uint8_t *out, int each, const uint8_t *scales, const uint8_t *low, const float *d,
                                const float *dmin)
{
    for (int step = 0; step < 2; step++, out += KERNELS_UNPACKED_STEP_BYTES) {
        for (int i = 0; i < 4 * each; i++, scales += ROWS)
            store_pairs(out + KERNELS_UNPACKED_SCALE + i * 2 * ROWS, scales, scales);
        for (int i = 0; i < 2 * each; i++, low += 2 * ROWS)
            store_pairs(out + KERNELS_UNPACKED_LOW + i * 2 * ROWS, low, low + ROWS);
        store_floats(out + KERNELS_UNPACKED_D, d);
        store_floats(out + KERNELS_UNPACKED_DMIN, dmin);
    }
}

static inline uint8_t *sub_block(uint8_t *out, int j)
{
    return out + j / KERNELS_STEP_SUBS * KERNELS_UNPACKED_STEP_BYTES + j % KERNELS_STEP_SUBS * 512;
}

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
    uint8_t high[64], low[64], six[8 * ROWS];
    float d[ROWS];
    load_halves(p, d);
    memcpy(low, p + 4 * ROWS, sizeof low);
    for (int half = 0; half < 2; half++) {
        /* Scales 4 half to 4 half + 3: nibbles of two rows of `low`, pairs of bits of a byte of the words. */
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < 4; j++)
                high[j * ROWS + r] = (uint8_t)(words[2 * r + half] >> (2 * j) & 3);
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < ROWS; r++)
                six[(4 * half + j) * ROWS + r] =
                    (uint8_t)((low[(2 * half + j / 2) * ROWS + r] >> (j % 2 * 4) & 15) - 32);
        take(high, 0, 3, 4, 0, six + half * 64, true);
    }
    store_scales(out, 1, six, six, d, d);
    for (int j = 0; j < 8; j++)
        unpack_nibbles(nibbles + j * 256, KERNELS_IQ4_VALUES, mask, sub_block(out, j));
}

/* Bits 2 j and 2 j + 1 of 8 lines. */
static inline void unpack_pairs(const uint8_t *p, int j, uint8_t *out)
{
    for (int c = 0; c < 8; c++)
        take(p + c * 64, 2 * j, 3, 0, 0, out + c * 64, false);
}

static inline void unpack_q3_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *scales = p + 2 * ROWS, *high = p + 14 * ROWS, *pairs = high + 32 * ROWS;
    float d[ROWS];
    uint8_t six[16 * ROWS];
    load_halves(p, d);
    for (int i = 0; i < 4; i++) { /* four scales of all rows are a line */
        take(scales + i % 2 * 64, i / 2 * 4, 15, 0, -32, six + i * 64, false);
        take(scales + 128, 2 * i, 3, 4, 0, six + i * 64, true);
    }
    store_scales(out, 2, six, six, d, d);
    for (int j = 0; j < 8; j++) {
        unpack_pairs(pairs + j / 4 * 512, j % 4, sub_block(out, j));
        for (int c = 0; c < 8; c++)
            take(high + c * 64, j, 1, 2, 0, sub_block(out, j) + c * 64, true);
    }
}

static inline void unpack_q2_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *bytes = p + 4 * ROWS, *pairs = p + 20 * ROWS;
    float d[ROWS], dmin[ROWS];
    uint8_t scales[16 * ROWS], minima[16 * ROWS];
    load_halves(p, d);
    load_halves(p + 2 * ROWS, dmin);
    for (int i = 0; i < 4; i++) {
        take(bytes + i * 64, 0, 15, 0, 0, scales + i * 64, false);
        take(bytes + i * 64, 4, 15, 0, 0, minima + i * 64, false);
    }
    store_scales(out, 2, scales, minima, d, dmin);
    for (int j = 0; j < 8; j++)
        unpack_pairs(pairs + j / 4 * 512, j % 4, sub_block(out, j));
}

void UNPACK(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask, uint8_t *out)
{
    int ratio = kernels_type_info(type)->block_values / KERNELS_SUB_BLOCK;
    for (int i = 0; i < count; i += ratio) {
        struct kernels_packed_block at = kernels_packed_block(type, group, cols, (first + i) / ratio);
        uint8_t *step = out + i / KERNELS_STEP_SUBS * KERNELS_UNPACKED_STEP_BYTES;
        float s[ROWS];
        switch (type) {
        case KERNELS_Q2_K:
            unpack_q2_k(at.rest, step);
            break;
        case KERNELS_Q3_K:
            unpack_q3_k(at.rest, step);
            break;
        case KERNELS_IQ4_XS:
            unpack_iq4_xs(at.rest, mask, step);
            break;
        default: { /* IQ4_NL, MXFP4 */
            bool four = type == KERNELS_MXFP4;
            if (four)
                power_rows(at.rest, s);
            else
                load_halves(at.header, s);
            unpack_nibbles(at.rest + (four ? ROWS : 0), four ? KERNELS_FP4_VALUES : KERNELS_IQ4_VALUES, mask,
                           sub_block(step, i % KERNELS_STEP_SUBS));
            store_floats(step + KERNELS_UNPACKED_SCALE + i % KERNELS_STEP_SUBS * 64, s);
            break;
        }
        }
    }
}

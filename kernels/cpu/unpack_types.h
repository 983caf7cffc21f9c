/* unpack_types.h - weight types that are multiplied as another type: their values are unpacked to what that type's
 * product takes (linear_internal.h, "Unpacked weights"), 16 rows side by side. Included by unpack_portable.c and
 * unpack_avx2.c, which differ in how sixteen bytes are looked up; UNPACK names the function that is defined here.
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

/* ((byte >> shift) & mask) * times + plus, of a line; what to add to is the old value where `more` is set. Copies, so
 * that the compiler sees that nothing overlaps. */
static inline __attribute__((always_inline)) void take(const uint8_t *from, int shift, int mask, int times, int plus,
                                                       uint8_t *to, bool more)
{
    uint8_t in[64], out[64];
    memcpy(in, from, 64);
    if (more)
        memcpy(out, to, 64);
    for (int i = 0; i < 64; i++)
        out[i] = (uint8_t)((more ? out[i] : 0) + ((in[i] >> shift) & mask) * times + plus);
    memcpy(to, out, 64);
}

static inline void store_floats(uint8_t *out, const float *values)
{
    memcpy(out, values, ROWS * sizeof *values);
}

static inline void load_halves(const uint8_t *p, float *out)
{
    for (int r = 0; r < ROWS; r++)
        out[r] = kernels_half((uint16_t)(p[2 * r] | p[2 * r + 1] << 8));
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
    const uint8_t *high = p + 2 * ROWS, *low = p + 4 * ROWS, *nibbles = p + 8 * ROWS;
    float d[ROWS], s[ROWS];
    load_halves(p, d);
    for (int j = 0; j < 8; j++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
        for (int r = 0; r < ROWS; r++) {
            int word = high[2 * r] | high[2 * r + 1] << 8;
            int scale = (low[j / 2 * ROWS + r] >> (j % 2 * 4) & 15) | (word >> (2 * j) & 3) << 4;
            s[r] = d[r] * (float)(scale - 32);
        }
        unpack_nibbles(nibbles + j * 256, KERNELS_IQ4_VALUES, mask, out);
        store_floats(out + 512, s);
        store_floats(out + 576, NOTHING);
    }
}

static inline void unpack_mxfp4(const uint8_t *p, uint8_t mask, uint8_t *out)
{
    float s[ROWS];
    for (int r = 0; r < ROWS; r++)
        s[r] = kernels_power(p[r]);
    unpack_nibbles(p + ROWS, KERNELS_FP4_VALUES, mask, out);
    store_floats(out + 512, s);
    store_floats(out + 576, NOTHING);
}

/* Bits 2 j and 2 j + 1 of 8 lines, and `plus`. */
static inline void unpack_pairs(const uint8_t *p, int j, int plus, uint8_t *out)
{
    for (int c = 0; c < 8; c++)
        take(p + c * 64, 2 * j, 3, 1, plus, out + c * 64, false);
}

static inline void unpack_q3_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *scales = p + 2 * ROWS, *high = p + 14 * ROWS, *pairs = high + 32 * ROWS;
    float d[ROWS], s[2][ROWS];
    load_halves(p, d);
    for (int b = 0; b < 8; b++, out += KERNELS_UNPACKED_BLOCK_BYTES) {
        for (int i = 0; i < 2; i++)
            for (int r = 0; r < ROWS; r++) {
                int k = 2 * b + i;
                int nibble = k < 8 ? scales[k * ROWS + r] & 15 : scales[(k - 8) * ROWS + r] >> 4;
                int top = scales[(8 + k % 4) * ROWS + r] >> (2 * (k / 4)) & 3;
                s[i][r] = d[r] * (float)((nibble | top << 4) - 32);
            }
        unpack_pairs(pairs + b / 4 * 512, b % 4, 28, out);
        for (int c = 0; c < 8; c++)
            take(high + c * 64, b, 1, 4, 0, out + c * 64, true);
        store_floats(out + 512, s[0]);
        store_floats(out + 576, s[1]);
    }
}

static inline void unpack_q2_k(const uint8_t *p, uint8_t *out)
{
    const uint8_t *scales = p + 4 * ROWS, *pairs = p + 20 * ROWS;
    float d[ROWS], dmin[ROWS], s[2][ROWS], m[2][ROWS];
    load_halves(p, d);
    load_halves(p + 2 * ROWS, dmin);
    for (int b = 0; b < 8; b++, out += 2 * KERNELS_UNPACKED_BLOCK_BYTES) {
        uint8_t *minima = out + KERNELS_UNPACKED_BLOCK_BYTES;
        for (int i = 0; i < 2; i++)
            for (int r = 0; r < ROWS; r++) {
                int byte = scales[(2 * b + i) * ROWS + r];
                s[i][r] = d[r] * (float)(byte & 15);
                m[i][r] = -(dmin[r] * (float)(byte >> 4));
            }
        unpack_pairs(pairs + b / 4 * 512, b % 4, 32, out);
        store_floats(out + 512, s[0]);
        store_floats(out + 576, s[1]);
        memset(minima, 33, 512);
        store_floats(minima + 512, m[0]);
        store_floats(minima + 576, m[1]);
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

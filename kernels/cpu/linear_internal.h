/* linear_internal.h - what linear.c, pack.c and the instruction sets' products share: the layouts of packed weights,
 * quantized activations and unpacked weights, and the inner functions of an instruction set.
 *
 * Packed weights. A group is 16 rows. For each block of the file (32 or 256 values) the 16 rows' fields lie side by
 * side, a field cut into units: 2 bytes for an f16, 1 byte for the packed scales of the K types, 4 bytes for
 * everything else (4 bytes of nibbles, high bits or int8, so that a 64-byte line is 16 rows x 4 bytes). Order of
 * fields within a block ([units][16 rows][unit bytes] each):
 *
 *   Q8_0       d | q[32]
 *   Q4_0       d | nibbles[16]
 *   Q4_1       d, m, nibbles[16]
 *   Q5_0       d | high[4] nibbles[16]
 *   Q5_1       d, m, high[4] nibbles[16]
 *   Q4_K       d, dmin, scales[12], nibbles[128]
 *   Q5_K       d, dmin, scales[12], high[32], nibbles[128]
 *   Q6_K       d | scales[16], high[64], nibbles[128]
 *   Q2_K       d, dmin, scales[16], pairs[64]
 *   Q3_K       d, scales[12], high[32], pairs[64]
 *   IQ4_NL     d | nibbles[16]
 *   IQ4_XS     d, high[2], low[4], nibbles[128]
 *   MXFP4      exponent, nibbles[16]
 *
 * Left of the bar is a header of half a cache line. Two blocks share a line for it: header, header, rest, rest; a last
 * odd block is header, rest. The four high bytes of a Q5_0 or Q5_1 block are transposed: bit c of byte i belongs to
 * value 4 c + i (in the file, bit 4 c + i of the word), so that one shift brings a chunk's bits in place. Rows of F32,
 * F16 and BF16 lie as in the file.
 *
 * Quantized activations. Rows are cut into tiles of 8 tokens; the rest is a tile. A tile of T tokens is, for each step
 * of 128 values (the last may be shorter, what it lacks is 0), T times a token's block: its quants and facts, where S
 * is a sum of quants over 32 values, H over 16:
 *
 *   int8 q[128], float dx, int32 -S[4], float S[4], int16 S[4], int16 H[8]
 *
 * So the tile that begins at token i begins at i * steps * KERNELS_TOKEN_BLOCK_BYTES.
 *
 * Unpacked weights. A step of 128 values of 16 rows: bytes [4 sub-blocks][8 chunks][16 rows][4 values], then, at
 * KERNELS_UNPACKED_SCALE,
 *
 *   types with a float scale per 32 values: float s[4][16], float m[4][16] (0 where the type has no minimum);
 *   types with a whole one per 32 (16):     int8 scale[4 (8)][16][2], each twice; at KERNELS_UNPACKED_LOW
 *                                           int8 low[2 (4)][16][2], neighbours side by side, what is multiplied with
 *                                           sums of quants: the minima, or the scales where the values have an offset;
 *                                           at KERNELS_UNPACKED_D float d[16], float dmin[16].
 *
 * Value bytes are unsigned, the type's offset not yet subtracted, or signed (Q8_0, IQ4_NL, IQ4_XS, MXFP4); how a signed
 * one is written is the instruction set's own affair.
 */
#ifndef CONVOD_KERNELS_LINEAR_INTERNAL_H
#define CONVOD_KERNELS_LINEAR_INTERNAL_H

#include "kernels/cpu/cpu.h"

#include <string.h>

#define KERNELS_SUB_BLOCK 32   /* values */
#define KERNELS_STEP      128  /* values that share an activation scale */
#define KERNELS_PIECE     1024 /* values that are summed up by themselves */
#define KERNELS_STEP_SUBS (KERNELS_STEP / KERNELS_SUB_BLOCK)
#define KERNELS_TILE      8 /* tokens of a full tile */

#define KERNELS_TOKEN_DX          KERNELS_STEP /* where a token's facts lie in its block */
#define KERNELS_TOKEN_NEG         (KERNELS_TOKEN_DX + 4)
#define KERNELS_TOKEN_SUM         (KERNELS_TOKEN_NEG + 4 * KERNELS_STEP_SUBS)
#define KERNELS_TOKEN_SUMS        (KERNELS_TOKEN_SUM + 4 * KERNELS_STEP_SUBS)
#define KERNELS_TOKEN_HALVES      (KERNELS_TOKEN_SUMS + 2 * KERNELS_STEP_SUBS)
#define KERNELS_TOKEN_BLOCK_BYTES (KERNELS_TOKEN_HALVES + 4 * KERNELS_STEP_SUBS)

#define KERNELS_UNPACKED_SCALE      (KERNELS_STEP * KERNELS_ROW_GROUP)
#define KERNELS_UNPACKED_MIN        (KERNELS_UNPACKED_SCALE + 4 * KERNELS_STEP_SUBS * KERNELS_ROW_GROUP)
#define KERNELS_UNPACKED_LOW        KERNELS_UNPACKED_MIN
#define KERNELS_UNPACKED_D          (KERNELS_UNPACKED_LOW + 2 * KERNELS_STEP_SUBS * KERNELS_ROW_GROUP)
#define KERNELS_UNPACKED_DMIN       (KERNELS_UNPACKED_D + 4 * KERNELS_ROW_GROUP)
#define KERNELS_UNPACKED_STEP_BYTES (KERNELS_UNPACKED_DMIN + 4 * KERNELS_ROW_GROUP)

/* Steps of a row. */
static inline int kernels_steps(int cols)
{
    return (cols + KERNELS_STEP - 1) / KERNELS_STEP;
}

/* Writes the facts of a token's block, of which halves are the sums of q over 16 values each. */
static inline void kernels_token_facts(uint8_t *block, float dx, const int16_t halves[2 * KERNELS_STEP_SUBS])
{
    int32_t neg[KERNELS_STEP_SUBS];
    float sum[KERNELS_STEP_SUBS];
    int16_t sums[KERNELS_STEP_SUBS];
    for (int j = 0; j < KERNELS_STEP_SUBS; j++) {
        sums[j] = (int16_t)(halves[2 * j] + halves[2 * j + 1]);
        neg[j] = -sums[j];
        sum[j] = sums[j];
    }
    memcpy(block + KERNELS_TOKEN_DX, &dx, 4);
    memcpy(block + KERNELS_TOKEN_NEG, neg, sizeof neg);
    memcpy(block + KERNELS_TOKEN_SUM, sum, sizeof sum);
    memcpy(block + KERNELS_TOKEN_SUMS, sums, sizeof sums);
    memcpy(block + KERNELS_TOKEN_HALVES, halves, 4 * KERNELS_STEP_SUBS);
}

/* A step of activations whose largest magnitude is below this is zero. */
#define KERNELS_TINY 0x1p-100f

struct kernels_linear_set {
    /* Quantizes row x[cols] as token `token` of a tile of `tokens`. */
    void (*quantize)(const float *x, int cols, int tokens, int token, uint8_t *tile);

    /* acc[16] = products of one token (a tile of its own) with a packed group, of a type below KERNELS_FIRST_UNPACKED.
     * NULL: unpack and tile do it. */
    void (*one)(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc);

    /* acc[tokens][16] = products of a tile of 1 to 8 tokens with a packed group of such a type, whose weights are
     * unpacked in registers only. NULL: unpack and tile do it. */
    void (*few)(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, int tokens, float *acc);

    /* Unpacks a piece of a packed group: its sub-blocks [first, first + count), first being a multiple of 32. */
    void (*unpack)(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out);

    /* acc[tokens][16] += products of an unpacked piece of `count` sub-blocks with the tile's, `tile` at the first. */
    void (*tile)(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                 float *acc);

    /* acc[tokens][16] = products of x[tokens][cols] with a packed group of F32, F16 or BF16. */
    void (*floats)(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc);
};

/* Where a block of a packed group lies (pack.c). `rest` is what follows the header, or all of a type without one. */
struct kernels_packed_block {
    const uint8_t *header, *rest;
};
struct kernels_packed_block kernels_packed_block(enum kernels_type type, const uint8_t *group, int cols, int block);

/* Writes row `row` of a packed matrix, dequantized (pack.c). */
void kernels_packed_row(const struct kernels_matrix *w, int row, float *out);

/* The value of an IEEE half, exactly. */
float kernels_half(uint16_t bits);

/* Types from here on are always unpacked first (unpack_types.h). */
#define KERNELS_FIRST_UNPACKED KERNELS_Q2_K

/* struct kernels_linear_set's unpack for these types; mask: what the set's own unpacked signed bytes are combined with
 * by exclusive or. */
void kernels_unpack_portable(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask,
                             uint8_t *out);
void kernels_unpack_avx2(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask,
                         uint8_t *out);

/* What nibbles stand for in IQ4_NL and IQ4_XS, and, times two, in MXFP4. */
extern const int8_t KERNELS_IQ4_VALUES[16], KERNELS_FP4_VALUES[16];
/* 2^(exponent - 128): half of what an exponent of MXFP4 says. */
float kernels_power(uint8_t exponent);

#endif

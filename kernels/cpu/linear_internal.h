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
 *   F32 ...    the value
 *
 * Left of the bar is a header of half a cache line. Two blocks share a line for it: header, header, rest, rest; a last
 * odd block is header, rest. The four high bytes of a Q5_0 or Q5_1 block are transposed: bit c of byte i belongs to
 * value 4 c + i (in the file, bit 4 c + i of the word), so that one shift brings a chunk's bits in place.
 *
 * Quantized activations. Rows are cut into tiles of 8 tokens; the rest is a tile. A tile of T tokens is, for each block
 * of 32 values, T times: int8 q[32], float d, float dsum, int32 neg, int32 neg_low, int32 neg_high; where dsum = d *
 * (sum of q), neg = -(sum of q), neg_low and neg_high the same over values 0..15 and 16..31. A set that adds products
 * of 6-bit weights in 16 bits has two int16 instead of each of the latter: -32 times the sums over values 0, 1, 4, 5
 * ... and 2, 3, 6, 7 ... of the half. So the tile that begins at token i begins at i * blocks *
 * KERNELS_TOKEN_BLOCK_BYTES.
 *
 * Unpacked weights. A block of 32 values of 16 rows: bytes [8 chunks][16 rows][4 values], float scale[16],
 * float second[16]; where second is what is added per unit of the activations' sum (types with a minimum), or the scale
 * of values 16..31 (Q6_K). Bytes are unsigned, the type's offset not yet subtracted; what a Q8_0 byte is, is the
 * instruction set's own affair.
 */
#ifndef CONVOD_KERNELS_LINEAR_INTERNAL_H
#define CONVOD_KERNELS_LINEAR_INTERNAL_H

#include "kernels/cpu/cpu.h"

#include <string.h>

#define KERNELS_BLOCK        32  /* values per block of activations */
#define KERNELS_PIECE_BLOCKS 16  /* blocks whose products are summed up by themselves */
#define KERNELS_FLOAT_PIECE  128 /* values likewise, of weights that are not quantized */
#define KERNELS_TILE         8   /* tokens of a full tile */

#define KERNELS_TOKEN_BLOCK_BYTES    52
#define KERNELS_TOKEN_D              32 /* where a token's facts lie in its block */
#define KERNELS_TOKEN_DSUM           36
#define KERNELS_TOKEN_NEG            40
#define KERNELS_TOKEN_NEG_LOW        44
#define KERNELS_TOKEN_NEG_HIGH       48
#define KERNELS_UNPACKED_BLOCK_BYTES 640
#define KERNELS_UNPACKED_PIECE_BYTES (KERNELS_PIECE_BLOCKS * KERNELS_UNPACKED_BLOCK_BYTES)
#define KERNELS_BATCH                256 /* tokens that are taken together, at most */

/* Writes the facts of a token's block, of which low and high are the sums of q over its halves. */
static inline void kernels_token_facts(uint8_t *block, float d, int32_t low, int32_t high)
{
    float dsum = d * (float)(low + high);
    int32_t neg = -(low + high), neg_low = -low, neg_high = -high;
    memcpy(block + KERNELS_TOKEN_D, &d, 4);
    memcpy(block + KERNELS_TOKEN_DSUM, &dsum, 4);
    memcpy(block + KERNELS_TOKEN_NEG, &neg, 4); /* one by one: an array would go over the stack, and wait there */
    memcpy(block + KERNELS_TOKEN_NEG_LOW, &neg_low, 4);
    memcpy(block + KERNELS_TOKEN_NEG_HIGH, &neg_high, 4);
}

/* A block of activations whose largest magnitude is below this is zero. */
#define KERNELS_TINY 0x1p-100f

struct kernels_linear_set {
    /* Quantizes row x[cols] as token `token` of a tile of `tokens`. */
    void (*quantize)(const float *x, int cols, int tokens, int token, uint8_t *tile);

    /* acc[16] = products of one token (a tile of its own) with a packed group. NULL: unpack and tile do it. */
    void (*one)(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc);

    /* acc[tokens][16] = products of a tile of 1 to 8 tokens with a packed group, whose weights are unpacked in
     * registers only; sums[tokens][16] is scratch. NULL: unpack and tile do it. */
    void (*few)(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, int tokens, float *sums,
                float *acc);

    /* Unpacks blocks of 32 [first, first + count) of a packed group; both are whole blocks of the file. */
    void (*unpack)(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out);

    /* acc[tokens][16] += the sum of the products of a piece's `count` unpacked blocks with the tile's, `tile` at the
     * first of them. Of Q2_K, these are two each, as Q6_K's. */
    void (*tile)(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                 float *acc);

    /* The same of two groups: the second's blocks lie KERNELS_UNPACKED_PIECE_BYTES behind the first's, its sums
     * [KERNELS_BATCH][16] behind. Not of Q2_K. NULL: not faster than tile twice. */
    void (*pair)(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                 float *acc);

    /* acc[tokens][16] = products of x[tokens][cols] with a packed group of F32, F16 or BF16. */
    void (*floats)(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc);
};

/* Quantizes row x[cols], which is `row` of n, to its place in tiles (linear.c). */
void kernels_quantize_row(const struct kernels_linear_set *set, const float *x, int cols, int row, int n,
                          uint8_t *tiles);

/* Where a block of a packed group lies (pack.c). `rest` is what follows the header, or all of a type without one. */
struct kernels_packed_block {
    const uint8_t *header, *rest;
};
struct kernels_packed_block kernels_packed_block(enum kernels_type type, const uint8_t *group, int cols, int block);

/* Writes row `row` of a packed matrix, dequantized (pack.c). */
void kernels_packed_row(const struct kernels_matrix *w, int row, float *out);

/* Types from here on are unpacked to what another type's product takes (unpack_types.h). */
#define KERNELS_FIRST_UNPACKED KERNELS_Q2_K

/* Unpacks blocks of 32 [first, first + count) of a packed group of such a type; Q2_K's to two blocks each. mask: what
 * the set's own unpacked Q8_0 bytes differ by from the signed ones. */
void kernels_unpack_portable(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask,
                             uint8_t *out);
void kernels_unpack_avx2(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t mask,
                         uint8_t *out);

/* What nibbles stand for in IQ4_NL and IQ4_XS, and, times two, in MXFP4. */
extern const int8_t KERNELS_IQ4_VALUES[16], KERNELS_FP4_VALUES[16];
/* 2^(exponent - 128): half of what an exponent of MXFP4 says. */
float kernels_power(uint8_t exponent);

#endif

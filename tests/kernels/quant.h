/* quant.h - weights for the tests of kernels/: pseudo-random blocks of every type, and a plain dequantizer written from
 * the GGUF specification, independent of kernels/cpu/pack.c. */
#ifndef CONVOD_TESTS_QUANT_H
#define CONVOD_TESTS_QUANT_H

#include "kernels/cpu/cpu.h"

/* xorshift64*: the same numbers everywhere. `state` must not be 0. */
uint32_t quant_random(uint64_t *state);

enum quant_style {
    QUANT_RANDOM,  /* scales around 2^-6 */
    QUANT_HIGHEST, /* all bits of the values and packed scales set: the largest values, -1 for Q8_0 */
    QUANT_LOWEST,  /* values of 0, which is the lowest with an offset; -128 for Q8_0 and for Q6_K's scales */
    QUANT_TINY,    /* random values, subnormal scales */
    QUANT_LARGE,   /* random values, scales up to 65504 */
    QUANT_STYLES
};

/* Bytes of a matrix as it lies in a file. */
size_t quant_file_bytes(enum kernels_type type, int rows, int cols);

/* Fills rows as they lie in a file. All values are finite. */
void quant_fill(enum kernels_type type, int rows, int cols, enum quant_style style, uint64_t seed, uint8_t *out);

/* One row of a file: out[cols], and magnitude[cols] (may be NULL) = sum of the magnitudes of the terms of the value. */
void quant_dequantize(enum kernels_type type, const uint8_t *row, int cols, float *out, double *magnitude);

/* Packs a matrix that lies at `file` with the library's packer. Free with free(). */
struct kernels_matrix quant_pack(enum kernels_type type, int rows, int cols, const uint8_t *file);

#endif

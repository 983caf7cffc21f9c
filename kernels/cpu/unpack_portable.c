/* unpack_portable.c - unpack_types.h without special instructions, and the tables that it takes. */
#include "kernels/cpu/linear_internal.h"

const int8_t KERNELS_IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
/* Twice the values of four-bit floats (E2M1). */
const int8_t KERNELS_FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float kernels_power(uint8_t exponent)
{
    union {
        uint32_t bits;
        float value;
    } u = {exponent > 1 ? (uint32_t)(exponent - 1) << 23 : (uint32_t)0x200000 << exponent};
    return u.value;
}

/* A line of nibbles: what the low and the high ones stand for. */
static inline void look_up(const int8_t *table, const uint8_t *nibbles, uint8_t mask, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < 64; i++) {
        low[i] = (uint8_t)table[nibbles[i] & 15] ^ mask;
        high[i] = (uint8_t)table[nibbles[i] >> 4] ^ mask;
    }
}

#define UNPACK kernels_unpack_portable
#include "kernels/cpu/unpack_types.h"

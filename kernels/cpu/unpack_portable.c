/* unpack_portable.c - unpack_types.h without special instructions, and the tables that it takes. */
#include "kernels/constants.h"
#include "kernels/cpu/linear_internal.h"

#include <string.h>

const int8_t KERNELS_IQ4_VALUES[16] = {KERNELS_IQ4_TABLE};
const int8_t KERNELS_FP4_VALUES[16] = {KERNELS_FP4_TABLE};

float kernels_power(uint8_t exponent)
{
    uint32_t bits = exponent > 1 ? (uint32_t)(exponent - 1) << 23 : (uint32_t)0x200000 << exponent;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A line of nibbles: what the low and the high ones stand for. */
static inline void look_up(const int8_t *table, const uint8_t *nibbles, uint8_t mask, uint8_t *low, uint8_t *high)
{
    for (int i = 0; i < 64; i++) {
        low[i] = (uint8_t)table[nibbles[i] & 15] ^ mask;
        high[i] = (uint8_t)table[nibbles[i] >> 4] ^ mask;
    }
}

/* Of a line's bytes, the bits of `mask` from `shift` on, moved up by `left`, and `plus`; added to what is there, or
 * not. */
static inline void take(const uint8_t *from, int shift, int mask, int left, int plus, uint8_t *to, bool more)
{
    for (int i = 0; i < 64; i++)
        to[i] = (uint8_t)((more ? to[i] : 0) + ((from[i] >> shift & mask) << left) + plus);
}

static inline void load_halves(const uint8_t *p, float *out)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r++)
        out[r] = kernels_half((uint16_t)(p[2 * r] | p[2 * r + 1] << 8));
}

static inline void power_rows(const uint8_t *exponents, float *out)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r++)
        out[r] = kernels_power(exponents[r]);
}

#define UNPACK kernels_unpack_portable
#include "kernels/cpu/unpack_types.h"

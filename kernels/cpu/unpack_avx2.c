/* unpack_avx2.c - unpack_types.h with a shuffle that looks up 32 bytes at once; AVX-512's products take it too. */
#include "kernels/cpu/linear_internal.h"

#include <immintrin.h>

/* A line of nibbles: what the low and the high ones stand for. */
static inline void look_up(const int8_t *table, const uint8_t *nibbles, uint8_t mask, uint8_t *low, uint8_t *high)
{
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    values = _mm256_xor_si256(values, _mm256_set1_epi8((char)mask));
    for (int i = 0; i < 64; i += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(nibbles + i));
        __m256i a = _mm256_and_si256(v, _mm256_set1_epi8(15));
        __m256i b = _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
        _mm256_storeu_si256((__m256i *)(void *)(low + i), _mm256_shuffle_epi8(values, a));
        _mm256_storeu_si256((__m256i *)(void *)(high + i), _mm256_shuffle_epi8(values, b));
    }
}

/* Of a line's bytes, the bits of `mask` from `shift` on, moved up by `left`, and `plus`; added to what is there, or
 * not. */
static inline void take(const uint8_t *from, int shift, int mask, int left, int plus, uint8_t *to, bool more)
{
    for (int i = 0; i < 64; i += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(from + i)), sum = _mm256_set1_epi8((char)plus);
        v = _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(shift)), _mm256_set1_epi8((char)mask));
        v = _mm256_sll_epi16(v, _mm_cvtsi32_si128(left));
        if (more)
            sum = _mm256_add_epi8(sum, _mm256_loadu_si256((const __m256i *)(const void *)(to + i)));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), _mm256_add_epi8(v, sum));
    }
}

static inline void load_halves(const uint8_t *p, float *out)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r += 8)
        _mm256_storeu_ps(out + r, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * r))));
}

/* As kernels_power(): exponents of 0 and 1 are subnormal. */
static inline void power_rows(const uint8_t *exponents, float *out)
{
    for (int r = 0; r < KERNELS_ROW_GROUP; r += 8) {
        __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(exponents + r)));
        __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        __m256i bits = _mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1)));
        _mm256_storeu_ps(out + r, _mm256_castsi256_ps(bits));
    }
}

#define UNPACK kernels_unpack_avx2
#include "kernels/cpu/unpack_types.h"

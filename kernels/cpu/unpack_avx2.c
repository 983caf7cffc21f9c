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

#define UNPACK kernels_unpack_avx2
#include "kernels/cpu/unpack_types.h"

/* lanes_avx512.h - the 16 virtual lanes of rows_internal.h as one AVX-512 register, for rows_lanes.h. Every function is
 * one instruction, or says what it computes. */
#ifndef CONVOD_KERNELS_LANES_AVX512_H
#define CONVOD_KERNELS_LANES_AVX512_H

#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/rows_internal.h"

#include <immintrin.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* Register tiles: queries per tile, and 16-lane vectors beside each other for a tile of n queries. 32 registers hold
 * up to 24 sums, the key vectors and one query value. Keys and values that are widened as they are used are so for all
 * queries of a tile; in f32, fewer queries and more vectors take fewer loads. */
#define LANES_MAX_QUERIES   8
#define LANES_FLOAT_QUERIES 6
#define LANES_VECTORS(n)    ((n) <= 6 ? 4 : 2)
#define LANES_JOIN_QUERIES  12 /* of values_join(), two vectors beside each other */

typedef __m512 v16;
typedef __mmask16 m16;

LANES_INLINE v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}

LANES_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

LANES_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}

/* Lanes [lo, hi). */
LANES_INLINE m16 m16_range(int lo, int hi)
{
    uint32_t below_hi = hi >= 16 ? 0xffff : (1u << (hi > 0 ? hi : 0)) - 1;
    uint32_t below_lo = lo >= 16 ? 0xffff : (1u << (lo > 0 ? lo : 0)) - 1;
    return (m16)(below_hi & ~below_lo);
}

/* The first n lanes; the others load as 0 and are not stored. Memory beyond them is not touched. */
LANES_INLINE v16 v16_load_first(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(m16_range(0, n), p);
}

LANES_INLINE void v16_store_first(float *p, v16 a, int n)
{
    _mm512_mask_storeu_ps(p, m16_range(0, n), a);
}

#define LANES_BINARY(name, op)                                                                                         \
    LANES_INLINE v16 name(v16 a, v16 b)                                                                                \
    {                                                                                                                  \
        return op(a, b);                                                                                               \
    }
LANES_BINARY(v16_add, _mm512_add_ps)
LANES_BINARY(v16_sub, _mm512_sub_ps)
LANES_BINARY(v16_mul, _mm512_mul_ps)
LANES_BINARY(v16_div, _mm512_div_ps)
LANES_BINARY(v16_max, _mm512_max_ps) /* a > b ? a : b: b where one is NaN */
LANES_BINARY(v16_xor, _mm512_xor_ps)
LANES_BINARY(v16_and, _mm512_and_ps)
LANES_BINARY(v16_or, _mm512_or_ps)
#undef LANES_BINARY

/* a * b + c, rounded once. */
LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a * b - c in even lanes, a * b + c in odd ones, rounded once. */
LANES_INLINE v16 v16_fma_alternate(v16 a, v16 b, v16 c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}

LANES_INLINE m16 v16_less(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

LANES_INLINE m16 v16_less_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

LANES_INLINE m16 v16_is_nan(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}

LANES_INLINE m16 v16_unordered(v16 a, v16 b) /* one of them is NaN */
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

LANES_INLINE m16 m16_or(m16 a, m16 b)
{
    return (m16)(a | b);
}

LANES_INLINE uint32_t m16_bits(m16 m)
{
    return m;
}

/* m ? a : b */
LANES_INLINE v16 v16_select(m16 m, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

/* m ? a : 0 */
LANES_INLINE v16 v16_zero_unless(m16 m, v16 a)
{
    return _mm512_maskz_mov_ps(m, a);
}

/* bits(p) + (bits(t) << 23): adds the whole number in the low bits of t to p's exponent. */
LANES_INLINE v16 v16_add_exponent(v16 p, v16 t)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* The same where m, else 0. */
LANES_INLINE v16 v16_add_exponent_where(m16 m, v16 p, v16 t)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(m, _mm512_castps_si512(p), n));
}

LANES_INLINE float v16_first(v16 a)
{
    return _mm512_cvtss_f32(a);
}

/* Lanes j and j + 8, then j + 4, j + 2, j + 1. */
LANES_INLINE float v16_tree_add(v16 a)
{
    __m256 e = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

LANES_INLINE float v16_tree_max(v16 a)
{
    __m256 e = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Neighbours swapped; even lanes doubled; odd lanes doubled. */
LANES_INLINE v16 v16_swap_pairs(v16 a)
{
    return _mm512_permute_ps(a, 0xb1);
}

LANES_INLINE v16 v16_double_even(v16 a)
{
    return _mm512_moveldup_ps(a);
}

LANES_INLINE v16 v16_double_odd(v16 a)
{
    return _mm512_movehdup_ps(a);
}

/* Even and odd elements of 32 consecutive ones, a then b. */
LANES_INLINE void v16_split_pairs(v16 a, v16 b, v16 *even, v16 *odd)
{
    __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(a, e, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}

LANES_INLINE v16 v16_widen_bf16(const uint16_t *p)
{
    __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}

LANES_INLINE v16 v16_widen_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

LANES_INLINE void v16_narrow_bf16(uint16_t *p, v16 a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i even = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    even = _mm512_mask_or_epi32(even, v16_is_nan(a), u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(even, 16)));
}

LANES_INLINE void v16_narrow_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Sums of numbers in [0, 1] in whole units of 1 / KERNELS_WEIGHT_ONE. */
typedef struct {
    __m512i lo, hi;
} v16_fixed;

LANES_INLINE v16_fixed v16_fixed_zero(void)
{
    v16_fixed r = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    return r;
}

LANES_INLINE v16_fixed v16_fixed_add(v16_fixed sum, v16 a)
{
    v16 units = _mm512_mul_ps(a, _mm512_set1_ps((float)KERNELS_WEIGHT_ONE));
    v16_fixed r = {_mm512_add_epi64(sum.lo, _mm512_cvtps_epi64(_mm512_castps512_ps256(units))),
                   _mm512_add_epi64(sum.hi, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(units, 1)))};
    return r;
}

LANES_INLINE uint64_t v16_fixed_total(v16_fixed sum)
{
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(sum.lo, sum.hi));
}

/* ---- parts: a line of 16 rows x 4 bytes, and 16 floats, one per row, for linear_lanes.h ---------------------------
 */

#define LANES_PARTS       1 /* registers per line */
#define LANES_TILE_TOKENS 8 /* tokens whose sums stay in registers */

/* Dot products take unsigned weights only: a Q8_0 byte is unpacked as w ^ 0x80, with offset 128. */
#define LANES_OFFSET_Q8 1

typedef __m512i pbytes;
typedef __m512 pfloats;

LANES_INLINE pbytes pbytes_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

LANES_INLINE void pbytes_store(uint8_t *p, pbytes a)
{
    _mm512_store_si512(p, a);
}

LANES_INLINE pbytes pbytes_and(pbytes a, int mask)
{
    return _mm512_and_si512(a, _mm512_set1_epi8((char)mask));
}

LANES_INLINE pbytes pbytes_xor(pbytes a, int bits)
{
    return _mm512_xor_si512(a, _mm512_set1_epi8((char)bits));
}

/* a | (bits & mask) */
LANES_INLINE pbytes pbytes_add_bits(pbytes a, pbytes bits, int mask)
{
    return _mm512_ternarylogic_epi32(a, bits, _mm512_set1_epi8((char)mask), 0xf8);
}

/* Moves bit `from` of every byte to bit `to`; what comes in from neighbours is for the caller to mask. */
LANES_INLINE pbytes pbytes_move(pbytes a, int from, int to)
{
    return from < to ? _mm512_slli_epi16(a, (unsigned)(to - from)) : _mm512_srli_epi16(a, (unsigned)(from - to));
}

/* a | 16 where bit `bit` of a byte of `high` is set. */
LANES_INLINE pbytes pbytes_add_fifth(pbytes a, pbytes high, int bit)
{
    return pbytes_add_bits(a, _mm512_rolv_epi32(high, _mm512_set1_epi32((4 - bit) & 31)), 16);
}

LANES_INLINE pfloats pfloats_zero(void)
{
    return _mm512_setzero_ps();
}

LANES_INLINE pfloats pfloats_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

LANES_INLINE void pfloats_store(float *p, pfloats a)
{
    _mm512_store_ps(p, a);
}

LANES_INLINE pfloats pfloats_set1(float x)
{
    return _mm512_set1_ps(x);
}

LANES_INLINE pfloats pfloats_add(pfloats a, pfloats b)
{
    return _mm512_add_ps(a, b);
}

LANES_INLINE pfloats pfloats_mul(pfloats a, pfloats b)
{
    return _mm512_mul_ps(a, b);
}

LANES_INLINE pfloats pfloats_fma(pfloats a, pfloats b, pfloats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

LANES_INLINE pfloats pfloats_negate(pfloats a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

LANES_INLINE pfloats pfloats_from_int(pbytes a)
{
    return _mm512_cvtepi32_ps(a);
}

/* One value per row, of 16 rows that lie side by side: the part's own. */
LANES_INLINE pfloats pfloats_halves(const uint8_t *p, int part)
{
    (void)part;
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

LANES_INLINE pfloats pfloats_bf16(const uint8_t *p, int part)
{
    (void)part;
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

LANES_INLINE pfloats pfloats_unsigned(const uint8_t *p, int part)
{
    (void)part;
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

LANES_INLINE pfloats pfloats_signed(const uint8_t *p, int part)
{
    (void)part;
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* The int32 at p, shifted left, in every row. */
LANES_INLINE pbytes pbytes_ints(const uint8_t *p, int shift)
{
    int32_t x;
    memcpy(&x, p, 4);
    return shift ? _mm512_slli_epi32(_mm512_set1_epi32(x), (unsigned)shift) : _mm512_set1_epi32(x);
}

/* Products are added in 32 bits: lanes_avx2.h tells what these are. */
#define LANES_WIDE           1
#define LANES_TOGETHER(bits) 8
#define LANES_PAIRS(bits)    0

LANES_INLINE pbytes pbytes_multiply(int bits, pbytes w, pbytes q, bool more, pbytes products)
{
    (void)bits;
    return _mm512_dpbusd_epi32(more ? products : _mm512_setzero_si512(), w, q);
}

LANES_INLINE pbytes pbytes_add_up(pbytes products, bool more, pbytes sum)
{
    (void)more, (void)sum;
    return products;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* 32 floats: the bits of the largest magnitude. */
LANES_INLINE int32_t block_largest(const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i low = _mm512_castps_si512(_mm512_loadu_ps(x)), high = _mm512_castps_si512(_mm512_loadu_ps(x + 16));
    return _mm512_reduce_max_epi32(
        _mm512_max_epi32(_mm512_and_si512(low, magnitude), _mm512_and_si512(high, magnitude)));
}

/* q = round(x * inverse), nearest even; sums of its two halves. */
LANES_INLINE void block_round(const float *x, float inverse, uint8_t *q, int32_t sums[4])
{
    __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
    __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), _mm512_set1_ps(inverse)));
    __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(low));
    __m256i sum = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    sums[0] = _mm256_cvtsi256_si32(sum);
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
}

#endif

/* lanes_avx2.h - the 16 virtual lanes of rows_internal.h as two AVX2 registers, for rows_lanes.h. Lane j of `lo` is
 * virtual lane j, of `hi` virtual lane j + 8. Every function is one instruction per half, or says what it computes. */
#ifndef CONVOD_KERNELS_LANES_AVX2_H
#define CONVOD_KERNELS_LANES_AVX2_H

#include "kernels/cpu/linear_internal.h"
#include "kernels/cpu/rows_internal.h"

#include <immintrin.h>

#define LANES_INLINE static inline __attribute__((always_inline))

/* Register tiles: queries per tile, and 16-lane vectors beside each other for a tile of n queries. 16 registers hold
 * 12 sums, two halves of a key vector and one query value. */
#define LANES_MAX_QUERIES   6
#define LANES_FLOAT_QUERIES 6
#define LANES_VECTORS(n)    ((n) == 1 ? 4 : (n) == 2 ? 2 : 1)
#define LANES_JOIN_QUERIES  6 /* of values_join(), one vector */

typedef struct {
    __m256 lo, hi;
} v16;
typedef v16 m16; /* all bits of a lane set, or none */

LANES_INLINE v16 v16_set1(float x)
{
    v16 r = {_mm256_set1_ps(x), _mm256_set1_ps(x)};
    return r;
}

LANES_INLINE v16 v16_load(const float *p)
{
    v16 r = {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
    return r;
}

LANES_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

/* Lanes [lo, hi). */
LANES_INLINE m16 m16_range(int lo, int hi)
{
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    __m256i l = _mm256_set1_epi32(lo - 1), h = _mm256_set1_epi32(hi);
    m16 r = {_mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(i, l), _mm256_cmpgt_epi32(h, i))),
             _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(j, l), _mm256_cmpgt_epi32(h, j)))};
    return r;
}

/* The first n lanes; the others load as 0 and are not stored. Memory beyond them is not touched. */
LANES_INLINE v16 v16_load_first(const float *p, int n)
{
    m16 m = m16_range(0, n);
    v16 r = {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
             n > 8 ? _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi)) : _mm256_setzero_ps()};
    return r;
}

LANES_INLINE void v16_store_first(float *p, v16 a, int n)
{
    m16 m = m16_range(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}

#define LANES_BINARY(name, op)                                                                                         \
    LANES_INLINE v16 name(v16 a, v16 b)                                                                                \
    {                                                                                                                  \
        v16 r = {op(a.lo, b.lo), op(a.hi, b.hi)};                                                                      \
        return r;                                                                                                      \
    }
LANES_BINARY(v16_add, _mm256_add_ps)
LANES_BINARY(v16_sub, _mm256_sub_ps)
LANES_BINARY(v16_mul, _mm256_mul_ps)
LANES_BINARY(v16_div, _mm256_div_ps)
LANES_BINARY(v16_max, _mm256_max_ps) /* a > b ? a : b: b where one is NaN */
LANES_BINARY(v16_xor, _mm256_xor_ps)
LANES_BINARY(v16_and, _mm256_and_ps)
LANES_BINARY(v16_or, _mm256_or_ps)
#undef LANES_BINARY

/* a * b + c, rounded once. */
LANES_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    v16 r = {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
    return r;
}

/* a * b - c in even lanes, a * b + c in odd ones, rounded once. */
LANES_INLINE v16 v16_fma_alternate(v16 a, v16 b, v16 c)
{
    v16 r = {_mm256_fmaddsub_ps(a.lo, b.lo, c.lo), _mm256_fmaddsub_ps(a.hi, b.hi, c.hi)};
    return r;
}

LANES_INLINE m16 v16_less(v16 a, v16 b)
{
    m16 r = {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
    return r;
}

LANES_INLINE m16 v16_less_equal(v16 a, v16 b)
{
    m16 r = {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
    return r;
}

LANES_INLINE m16 v16_is_nan(v16 a)
{
    m16 r = {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
    return r;
}

LANES_INLINE m16 v16_unordered(v16 a, v16 b) /* one of them is NaN */
{
    m16 r = {_mm256_cmp_ps(a.lo, b.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, b.hi, _CMP_UNORD_Q)};
    return r;
}

LANES_INLINE m16 m16_or(m16 a, m16 b)
{
    return v16_or(a, b);
}

LANES_INLINE uint32_t m16_bits(m16 m)
{
    return (uint32_t)_mm256_movemask_ps(m.lo) | (uint32_t)_mm256_movemask_ps(m.hi) << 8;
}

/* m ? a : b */
LANES_INLINE v16 v16_select(m16 m, v16 a, v16 b)
{
    v16 r = {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
    return r;
}

/* m ? a : 0 */
LANES_INLINE v16 v16_zero_unless(m16 m, v16 a)
{
    v16 r = {_mm256_and_ps(m.lo, a.lo), _mm256_and_ps(m.hi, a.hi)};
    return r;
}

/* bits(p) + (bits(t) << 23): adds the whole number in the low bits of t to p's exponent. */
LANES_INLINE v16 v16_add_exponent(v16 p, v16 t)
{
    v16 r = {_mm256_castsi256_ps(
                 _mm256_add_epi32(_mm256_castps_si256(p.lo), _mm256_slli_epi32(_mm256_castps_si256(t.lo), 23))),
             _mm256_castsi256_ps(
                 _mm256_add_epi32(_mm256_castps_si256(p.hi), _mm256_slli_epi32(_mm256_castps_si256(t.hi), 23)))};
    return r;
}

/* The same where m, else 0. */
LANES_INLINE v16 v16_add_exponent_where(m16 m, v16 p, v16 t)
{
    return v16_zero_unless(m, v16_add_exponent(p, t));
}

LANES_INLINE float v16_first(v16 a)
{
    return _mm256_cvtss_f32(a.lo);
}

/* Lanes j and j + 8, then j + 4, j + 2, j + 1. */
LANES_INLINE float v16_tree_add(v16 a)
{
    __m256 e = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

LANES_INLINE float v16_tree_max(v16 a)
{
    __m256 e = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Neighbours swapped; even lanes doubled; odd lanes doubled. */
LANES_INLINE v16 v16_swap_pairs(v16 a)
{
    v16 r = {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
    return r;
}

LANES_INLINE v16 v16_double_even(v16 a)
{
    v16 r = {_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)};
    return r;
}

LANES_INLINE v16 v16_double_odd(v16 a)
{
    v16 r = {_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)};
    return r;
}

/* Even and odd elements of 32 consecutive ones, a then b. */
LANES_INLINE void v16_split_pairs(v16 a, v16 b, v16 *even, v16 *odd)
{
#define LANES_SPLIT(x, y, imm)                                                                                         \
    _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(x, y, imm)), 0xd8))
    even->lo = LANES_SPLIT(a.lo, a.hi, 0x88);
    even->hi = LANES_SPLIT(b.lo, b.hi, 0x88);
    odd->lo = LANES_SPLIT(a.lo, a.hi, 0xdd);
    odd->hi = LANES_SPLIT(b.lo, b.hi, 0xdd);
#undef LANES_SPLIT
}

LANES_INLINE v16 v16_widen_bf16(const uint16_t *p)
{
    __m256i a = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i b = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)));
    v16 r = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    return r;
}

LANES_INLINE v16 v16_widen_f16(const uint16_t *p)
{
    v16 r = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
             _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8)))};
    return r;
}

LANES_INLINE __m256i lanes_round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i even = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_srli_epi32(_mm256_blendv_epi8(even, nan, _mm256_castps_si256(is_nan)), 16);
}

LANES_INLINE void v16_narrow_bf16(uint16_t *p, v16 a)
{
    __m256i packed = _mm256_packus_epi32(lanes_round_bf16(a.lo), lanes_round_bf16(a.hi));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

LANES_INLINE void v16_narrow_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Sums of numbers in [0, 1] in whole units of 1 / KERNELS_WEIGHT_ONE. */
typedef struct {
    __m256i part[2];
} v16_fixed;

LANES_INLINE v16_fixed v16_fixed_zero(void)
{
    v16_fixed r = {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
    return r;
}

LANES_INLINE __m256i v16_fixed_units(__m128 a)
{
    __m256d shift = _mm256_set1_pd(KERNELS_WEIGHT_SHIFT);
    __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(a), shift);
    return _mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(shift));
}

LANES_INLINE v16_fixed v16_fixed_add(v16_fixed sum, v16 a)
{
    __m256i lo = _mm256_add_epi64(v16_fixed_units(_mm256_castps256_ps128(a.lo)),
                                  v16_fixed_units(_mm256_extractf128_ps(a.lo, 1)));
    __m256i hi = _mm256_add_epi64(v16_fixed_units(_mm256_castps256_ps128(a.hi)),
                                  v16_fixed_units(_mm256_extractf128_ps(a.hi, 1)));
    v16_fixed r = {{_mm256_add_epi64(sum.part[0], lo), _mm256_add_epi64(sum.part[1], hi)}};
    return r;
}

LANES_INLINE uint64_t v16_fixed_total(v16_fixed sum)
{
    __m256i all = _mm256_add_epi64(sum.part[0], sum.part[1]);
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    return (uint64_t)_mm_cvtsi128_si64(_mm_add_epi64(half, _mm_unpackhi_epi64(half, half)));
}

/* ---- parts: a line of 16 rows x 4 bytes, and 16 floats, one per row, for linear_lanes.h ---------------------------
 */

#define LANES_PARTS       2 /* registers per line */
#define LANES_TILE_TOKENS 4 /* tokens whose sums stay in registers */

#ifdef __AVXVNNI__
/* Dot products take unsigned weights only: a Q8_0 byte is unpacked as w ^ 0x80, with offset 128. */
#define LANES_OFFSET_Q8 1
#else
#define LANES_OFFSET_Q8 0
#endif

typedef __m256i pbytes;
typedef __m256 pfloats;

LANES_INLINE pbytes pbytes_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

LANES_INLINE void pbytes_store(uint8_t *p, pbytes a)
{
    _mm256_store_si256((__m256i *)(void *)p, a);
}

LANES_INLINE pbytes pbytes_and(pbytes a, int mask)
{
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}

LANES_INLINE pbytes pbytes_xor(pbytes a, int bits)
{
    return _mm256_xor_si256(a, _mm256_set1_epi8((char)bits));
}

/* a | (bits & mask) */
LANES_INLINE pbytes pbytes_add_bits(pbytes a, pbytes bits, int mask)
{
    return _mm256_or_si256(a, pbytes_and(bits, mask));
}

/* Moves bit `from` of every byte to bit `to`; what comes in from neighbours is for the caller to mask. */
LANES_INLINE pbytes pbytes_move(pbytes a, int from, int to)
{
    return from < to ? _mm256_slli_epi16(a, to - from) : _mm256_srli_epi16(a, from - to);
}

/* a | 16 where bit `bit` of a byte of `high` is set. */
LANES_INLINE pbytes pbytes_add_fifth(pbytes a, pbytes high, int bit)
{
    __m256i one = _mm256_set1_epi8((char)(1 << bit));
    return pbytes_add_bits(a, _mm256_cmpeq_epi8(_mm256_and_si256(high, one), one), 16);
}

LANES_INLINE pfloats pfloats_zero(void)
{
    return _mm256_setzero_ps();
}

LANES_INLINE pfloats pfloats_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

LANES_INLINE void pfloats_store(float *p, pfloats a)
{
    _mm256_store_ps(p, a);
}

LANES_INLINE pfloats pfloats_set1(float x)
{
    return _mm256_set1_ps(x);
}

LANES_INLINE pfloats pfloats_add(pfloats a, pfloats b)
{
    return _mm256_add_ps(a, b);
}

LANES_INLINE pfloats pfloats_mul(pfloats a, pfloats b)
{
    return _mm256_mul_ps(a, b);
}

LANES_INLINE pfloats pfloats_fma(pfloats a, pfloats b, pfloats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

LANES_INLINE pfloats pfloats_negate(pfloats a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}

LANES_INLINE pfloats pfloats_from_int(pbytes a)
{
    return _mm256_cvtepi32_ps(a);
}

/* One value per row, of 16 rows that lie side by side: the part's own. */
LANES_INLINE pfloats pfloats_halves(const uint8_t *p, int part)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + part * 16)));
}

LANES_INLINE pfloats pfloats_bf16(const uint8_t *p, int part)
{
    __m128i bits = _mm_loadu_si128((const __m128i *)(const void *)(p + part * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

LANES_INLINE pfloats pfloats_unsigned(const uint8_t *p, int part)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + part * 8))));
}

LANES_INLINE pfloats pfloats_signed(const uint8_t *p, int part)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + part * 8))));
}

/* The int32 at p, shifted left, in every row. */
LANES_INLINE pbytes pbytes_ints(const uint8_t *p, int shift)
{
    int32_t x;
    memcpy(&x, p, 4);
    return shift ? _mm256_slli_epi32(_mm256_set1_epi32(x), shift) : _mm256_set1_epi32(x);
}

/* pbytes_multiply() adds the products of a chunk of weights, which have `bits` bits, to those of the chunks before it,
 * if there are more; pbytes_add_up() what LANES_TOGETHER chunks gave to a sum of int32, if there is one. Where
 * LANES_WIDE, products are added in 32 bits, and to the sum at once. Where LANES_PAIRS, the type's offset comes before
 * the products, in 16 bits too. */
#ifdef __AVXVNNI__

#define LANES_WIDE           1
#define LANES_TOGETHER(bits) 8
#define LANES_PAIRS(bits)    0

LANES_INLINE pbytes pbytes_multiply(int bits, pbytes w, pbytes q, bool more, pbytes products)
{
    (void)bits;
    return _mm256_dpbusd_avx_epi32(more ? products : _mm256_setzero_si256(), w, q);
}

LANES_INLINE pbytes pbytes_add_up(pbytes products, bool more, pbytes sum)
{
    (void)more, (void)sum;
    return products;
}

#else

/* VPMADDUBSW adds two products in 16 bits. Its results are added in 16 bits as long as they cannot leave them, with
 * activations up to 127: 8 of them for 4-bit weights (8 * 2 * 15 * 127 = 30480), 4 for 5-bit (31496), 1 for 8-bit
 * weights (2 * 128 * 127 = 32512), which are signed, and whose sign is moved to the activations. 4 for 6-bit weights
 * together with their offset: of (w - 32) * q they are at most 4 * 2 * 32 * 127 = 32512, and what leaves 16 bits on the
 * way comes back. */
#define LANES_WIDE           0
#define LANES_TOGETHER(bits) ((bits) == 4 ? 8 : (bits) == 8 ? 1 : 4)
#define LANES_PAIRS(bits)    ((bits) == 6)

/* Keeps the compiler from making a tree of a chain of additions: its leaves would not find registers. */
LANES_INLINE pbytes lanes_in_order(pbytes sum)
{
    __asm__("" : "+x"(sum));
    return sum;
}

LANES_INLINE pbytes pbytes_multiply(int bits, pbytes w, pbytes q, bool more, pbytes products)
{
    pbytes two =
        bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)) : _mm256_maddubs_epi16(w, q);
    return lanes_in_order(more ? _mm256_add_epi16(products, two) : two);
}

LANES_INLINE pbytes pbytes_add_up(pbytes products, bool more, pbytes sum)
{
    pbytes four = _mm256_madd_epi16(products, _mm256_set1_epi16(1));
    return lanes_in_order(more ? _mm256_add_epi32(sum, four) : four);
}

#endif

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* 32 floats: the bits of the largest magnitude. */
LANES_INLINE int32_t block_largest(const float *x)
{
    __m256i max = _mm256_setzero_si256();
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++)
        max = _mm256_max_epi32(
            max, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i * 8)), _mm256_set1_epi32(0x7fffffff)));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* q = round(x * inverse), nearest even; sums of its two halves, and where LANES_PAIRS, what these have in place of
 * neg_low and neg_high. */
LANES_INLINE void block_round(const float *x, float inverse, uint8_t *q, int32_t sums[4])
{
    __m256i v[4];
    KERNELS_UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * 8), _mm256_set1_ps(inverse)));
    /* Packing works within 128-bit lanes and leaves the words of 4 values in the order 0 2 4 6 1 3 5 7. */
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, bytes);
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    __m256i both = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m256i offsets = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(pairs, 5));
    sums[0] = _mm256_cvtsi256_si32(both);
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1));
    sums[2] = _mm256_cvtsi256_si32(offsets);
    sums[3] = _mm_cvtsi128_si32(_mm256_extracti128_si256(offsets, 1));
}

#endif

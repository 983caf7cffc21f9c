/* codec_avx512.c - the codec's loops over elements with AVX-512 (BW, VL, DQ) and BMI2; same bytes as codec_planes.c.
 *
 * As codec_avx2.c, with a block of 64 elements in one register and its planes in mask registers.
 */
#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL /* so that it uses this file's instruction set */
#include <xxhash.h>

#include "storage/codec_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,bmi,bmi2,popcnt")))
#define INLINE                                                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,bmi,bmi2,popcnt"), always_inline)) static inline

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

/* As codec_tops_next(). */
INLINE __m512i tops_next(struct codec_tops *t)
{
    uint8_t o;
    return codec_tops_one(t, &o) ? _mm512_set1_epi8((char)o) : _mm512_loadu_si512(codec_tops_next(t));
}

INLINE __m512i narrow(__m512i a, __m512i b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)), _mm512_cvtepi16_epi8(b), 1);
}

INLINE void encode_loop(struct codec_planes *p, const uint16_t *in, bool bf16)
{
    uint8_t codes[16];
    codec_rank_codes(&p->shape, codes);
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)codes));
    size_t at_level[CODEC_LEVELS] = {0}, escapes = 0;
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        uint64_t valid = n < CODEC_BLOCK ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
        __m512i o = tops_next(&tops_at);
        __m512i x = _mm512_maskz_loadu_epi16((__mmask32)valid, in + at);
        __m512i y = _mm512_maskz_loadu_epi16((__mmask32)(valid >> 32), in + at + 32);
        __m512i e, rest, low = narrow(x, y), high = narrow(_mm512_srli_epi16(x, 8), _mm512_srli_epi16(y, 8));
        if (bf16) {
            e = narrow(_mm512_srli_epi16(x, 7), _mm512_srli_epi16(y, 7));
            /* The sign from the high byte, the mantissa from the low one. */
            rest = _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)0x80), high, low, 0xca);
        } else {
            e = _mm512_and_si512(_mm512_srli_epi16(high, 2), _mm512_set1_epi8(31));
            rest = low;
        }
        __m512i d = _mm512_sub_epi8(o, e);
        __m512i v = _mm512_shuffle_epi8(table, _mm512_min_epu8(d, _mm512_set1_epi8(15)));
        uint64_t code_high = _mm512_mask_test_epi8_mask(valid, v, _mm512_set1_epi8((char)0x80));
        uint64_t code_low = _mm512_mask_test_epi8_mask(valid, v, _mm512_set1_epi8(0x40));
        codec_store64(p->level0 + 16 * b, code_low);
        codec_store64(p->level0 + 16 * b + 8, code_high);
        uint64_t more = code_low & code_high;
        for (int k = 1; k < CODEC_LEVELS; k++) {
            unsigned ones = (unsigned)_mm_popcnt_u64(more);
            code_high = _mm512_test_epi8_mask(v, _mm512_set1_epi8((char)(0x80 >> (2 * k))));
            code_low = _mm512_test_epi8_mask(v, _mm512_set1_epi8((char)(0x40 >> (2 * k))));
            codec_bits_append(p->level[k][0], at_level[k], _pext_u64(code_low, more), ones);
            codec_bits_append(p->level[k][1], at_level[k], _pext_u64(code_high, more), ones);
            at_level[k] += ones;
            more &= code_low & code_high;
        }
        if (more) {
            uint8_t each[CODEC_BLOCK];
            _mm512_storeu_si512(each, e);
            for (; more; more &= more - 1)
                p->escapes[escapes++] = each[_tzcnt_u64(more)];
        }
        _mm512_storeu_si512(p->rest + at, rest);
        if (!bf16) {
            codec_store64(p->more + 24 * b, _mm512_test_epi8_mask(high, _mm512_set1_epi8(1)));
            codec_store64(p->more + 24 * b + 8, _mm512_test_epi8_mask(high, _mm512_set1_epi8(2)));
            codec_store64(p->more + 24 * b + 16, _mm512_movepi8_mask(high));
        }
    }
    p->shape.n_level[0] = p->shape.n;
    for (int k = 1; k < CODEC_LEVELS; k++)
        p->shape.n_level[k] = at_level[k];
    p->shape.n_escapes = escapes;
}

TARGET static void encode(struct codec_planes *p, const uint16_t *in)
{
    if (p->shape.element == STORAGE_BF16)
        encode_loop(p, in, true);
    else
        encode_loop(p, in, false);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* A constant that stays in a register, where the compiler would make it anew each time. */
INLINE __m512i kept(int value)
{
    __m512i v = _mm512_set1_epi8((char)value);
    __asm__("" : "+v"(v));
    return v;
}

INLINE int decode_loop(const struct codec_source *source, uint16_t *out, bool bf16, bool stream)
{
    const struct codec_source copy = *source, *const p = &copy; /* that no store can change */
    uint8_t ds[16] = {0};
    memcpy(ds, p->shape.ranks, CODEC_RANKS);
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)ds));
    const __m512i one = kept(1), two = kept(2), four = kept(4), eight = kept(8), top = kept(0x80);
    /* What unpacking by lanes leaves, in order. */
    const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    size_t used[CODEC_LEVELS] = {0}, escapes = 0;
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        __m512i o = tops_next(&tops_at);
        /* r = r3 r2 r1 r0, the sum of the codes. */
        uint64_t r0 = codec_load64(p->level0 + 16 * b), r1 = codec_load64(p->level0 + 16 * b + 8), r2 = 0, r3 = 0;
        uint64_t valid = n < CODEC_BLOCK ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
        if ((r0 | r1) & ~valid)
            return -EBADMSG;
        if (b * CODEC_AHEAD < p->ahead_bytes) {
            _mm_prefetch((const void *)(p->ahead + b * CODEC_AHEAD), _MM_HINT_T1);
            _mm_prefetch((const void *)(p->ahead + b * CODEC_AHEAD + 64), _MM_HINT_T1);
        }
        uint64_t more = r0 & r1;
#pragma GCC unroll 3
        for (int k = 1; k < CODEC_LEVELS; k++) {
            unsigned ones = (unsigned)_mm_popcnt_u64(more);
            if (ones > p->shape.n_level[k] - used[k])
                return -EBADMSG;
            uint64_t c0 = _pdep_u64(codec_few_bits_at(p->level[k][0], used[k], ones), more);
            uint64_t c1 = _pdep_u64(codec_few_bits_at(p->level[k][1], used[k], ones), more);
            used[k] += ones;
            more = c0 & c1;
            uint64_t carry = r0 & c0;
            r0 ^= c0;
            uint64_t sum = r1 ^ c1 ^ carry;
            carry = (r1 & c1) | (carry & (r1 ^ c1));
            r1 = sum;
            r3 ^= r2 & carry;
            r2 ^= carry;
        }
        __m512i r = _mm512_maskz_mov_epi8(r0, one);
        r = _mm512_mask_add_epi8(r, r1, r, two);
        r = _mm512_mask_add_epi8(r, r2, r, four);
        r = _mm512_mask_add_epi8(r, r3, r, eight);
        __m512i e = _mm512_sub_epi8(o, _mm512_shuffle_epi8(table, r));
        if (more) {
            uint8_t each[CODEC_BLOCK];
            _mm512_storeu_si512(each, e);
            if ((unsigned)_mm_popcnt_u64(more) > p->shape.n_escapes - escapes)
                return -EBADMSG;
            for (; more; more &= more - 1)
                each[_tzcnt_u64(more)] = p->escapes[escapes++];
            e = _mm512_loadu_si512(each);
        }
        __m512i rest = _mm512_maskz_loadu_epi8(valid, p->rest + at), low, high;
        if (bf16) {
            /* s eeeeeee | e mmmmmmm */
            high = _mm512_ternarylogic_epi32(top, rest, _mm512_srli_epi16(e, 1), 0xca);
            low = _mm512_ternarylogic_epi32(top, _mm512_slli_epi16(e, 7), rest, 0xca);
        } else {
            low = rest;
            high = _mm512_slli_epi16(_mm512_and_si512(e, _mm512_set1_epi8(31)), 2);
            const uint8_t *m = p->more + 24 * b;
            high = _mm512_or_si512(high, _mm512_maskz_mov_epi8(codec_load64(m), one));
            high = _mm512_ternarylogic_epi32(high, _mm512_maskz_mov_epi8(codec_load64(m + 8), two),
                                             _mm512_maskz_mov_epi8(codec_load64(m + 16), top), 0xfe);
        }
        __m512i x = _mm512_unpacklo_epi8(low, high), y = _mm512_unpackhi_epi8(low, high);
        __m512i first = _mm512_permutex2var_epi64(x, first_half, y);
        __m512i second = _mm512_permutex2var_epi64(x, second_half, y);
        if (n < CODEC_BLOCK) {
            _mm512_mask_storeu_epi16(out + at, (__mmask32)valid, first);
            _mm512_mask_storeu_epi16(out + at + 32, (__mmask32)(valid >> 32), second);
        } else if (stream) {
            _mm512_stream_si512((void *)(out + at), first);
            _mm512_stream_si512((void *)(out + at + 32), second);
        } else {
            _mm512_storeu_si512(out + at, first);
            _mm512_storeu_si512(out + at + 32, second);
        }
    }
    for (int k = 1; k < CODEC_LEVELS; k++)
        if (used[k] != p->shape.n_level[k])
            return -EBADMSG;
    return escapes == p->shape.n_escapes ? 0 : -EBADMSG;
}

TARGET static int decode_bf16(const struct codec_source *p, uint16_t *out, bool stream)
{
    return stream ? decode_loop(p, out, true, true) : decode_loop(p, out, true, false);
}

TARGET static int decode_f16(const struct codec_source *p, uint16_t *out, bool stream)
{
    return stream ? decode_loop(p, out, false, true) : decode_loop(p, out, false, false);
}

static int decode(const struct codec_source *p, uint16_t *out)
{
    bool stream = p->stream && (uintptr_t)out % 64 == 0;
    int rc = p->shape.element == STORAGE_BF16 ? decode_bf16(p, out, stream) : decode_f16(p, out, stream);
    if (stream)
        _mm_sfence();
    return rc;
}

static uint64_t sum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

const struct codec_loops codec_loops_avx512 = {
    .tops = codec_tops_avx2, .histogram = codec_histogram_avx2, .encode = encode, .decode = decode, .sum = sum};
#endif

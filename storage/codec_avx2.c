/* codec_avx2.c - the codec's loops over elements with AVX2 and BMI2; same bytes as codec_planes.c.
 *
 * A block of 64 elements is two registers of bytes. Planes come from bytes with movemask, bytes from planes by
 * spreading 32 bits over 32 bytes; the sparse planes are packed with pext and spread with pdep under the mask of the
 * elements that go on to that level. Ranks come back bit by bit: the codes of a block are added as bit-sliced numbers
 * in general registers, so that only the four bits of the sum have to become bytes.
 *
 * The last block of an array that does not fill 64 elements goes through buffers of a full block.
 */
#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL /* so that it uses this file's instruction set */
#include <xxhash.h>

#include "storage/codec_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,bmi,bmi2,popcnt")))
#define INLINE __attribute__((target("avx2,bmi,bmi2,popcnt"), always_inline)) static inline

/* The bytes that lie in the given bits of 32 elements: 16-bit lanes of two registers become bytes in order. */
INLINE __m256i pack16(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), _MM_SHUFFLE(3, 1, 2, 0));
}

INLINE __m256i exponents16(__m256i x, bool bf16)
{
    return bf16 ? _mm256_and_si256(_mm256_srli_epi16(x, 7), _mm256_set1_epi16(0xff))
                : _mm256_and_si256(_mm256_srli_epi16(x, 10), _mm256_set1_epi16(31));
}

/* ---- largest exponents and histogram ----------------------------------------------------------------------------- */

TARGET static void tops_channel_major(const struct codec_planes *p, const uint16_t *in)
{
    bool bf16 = p->shape.element == STORAGE_BF16;
    const __m256i mask = _mm256_set1_epi16(bf16 ? 0x7f80 : 0x7c00);
    int shift = bf16 ? 7 : 10;
    for (uint32_t c = 0; c < p->shape.channels; c++) {
        const uint16_t *row = in + (size_t)c * p->shape.count;
        __m256i m = _mm256_setzero_si256(), m4[4] = {m, m, m, m};
        uint32_t i = 0;
        for (; i + 64 <= p->shape.count; i += 64)
            for (int k = 0; k < 4; k++)
                m4[k] = _mm256_max_epu16(m4[k],
                                         _mm256_and_si256(_mm256_loadu_si256((const void *)(row + i + 16 * k)), mask));
        for (; i + 16 <= p->shape.count; i += 16)
            m = _mm256_max_epu16(m, _mm256_and_si256(_mm256_loadu_si256((const void *)(row + i)), mask));
        m = _mm256_max_epu16(_mm256_max_epu16(m, m4[0]), _mm256_max_epu16(_mm256_max_epu16(m4[1], m4[2]), m4[3]));
        uint16_t lanes[16];
        _mm256_storeu_si256((void *)lanes, m);
        unsigned top = 0;
        for (int k = 0; k < 16; k++)
            top = lanes[k] > top ? lanes[k] : top;
        for (; i < p->shape.count; i++) {
            unsigned e = row[i] & (bf16 ? 0x7f80u : 0x7c00u);
            top = e > top ? e : top;
        }
        p->top[c] = (uint8_t)(top >> shift);
    }
}

TARGET static void tops_token_major(const struct codec_planes *p, const uint16_t *in)
{
    bool bf16 = p->shape.element == STORAGE_BF16;
    const __m256i mask = _mm256_set1_epi16(bf16 ? 0x7f80 : 0x7c00);
    uint32_t c = 0;
    for (; c + 128 <= p->shape.channels; c += 128) {
        __m256i m[8];
        for (int k = 0; k < 8; k++)
            m[k] = _mm256_setzero_si256();
        for (uint32_t t = 0; t < p->shape.count; t++) {
            const uint16_t *row = in + (size_t)t * p->shape.channels + c;
            for (int k = 0; k < 8; k++)
                m[k] = _mm256_max_epu16(m[k], _mm256_and_si256(_mm256_loadu_si256((const void *)(row + 16 * k)), mask));
        }
        for (int k = 0; k < 8; k += 2)
            _mm256_storeu_si256((void *)(p->top + c + 16 * k),
                                pack16(exponents16(m[k], bf16), exponents16(m[k + 1], bf16)));
    }
    for (; c + 32 <= p->shape.channels; c += 32) {
        __m256i a = _mm256_setzero_si256(), b = a;
        for (uint32_t t = 0; t < p->shape.count; t++) {
            const uint16_t *row = in + (size_t)t * p->shape.channels + c;
            a = _mm256_max_epu16(a, _mm256_and_si256(_mm256_loadu_si256((const void *)row), mask));
            b = _mm256_max_epu16(b, _mm256_and_si256(_mm256_loadu_si256((const void *)(row + 16)), mask));
        }
        _mm256_storeu_si256((void *)(p->top + c), pack16(exponents16(a, bf16), exponents16(b, bf16)));
    }
    for (; c < p->shape.channels; c++) {
        unsigned top = 0;
        for (uint32_t t = 0; t < p->shape.count; t++) {
            unsigned x = in[(size_t)t * p->shape.channels + c], e = bf16 ? x >> 7 & 255 : x >> 10 & 31;
            top = e > top ? e : top;
        }
        p->top[c] = (uint8_t)top;
    }
}

void codec_tops_avx2(const struct codec_planes *p, const uint16_t *in)
{
    if (p->shape.channel_major)
        tops_channel_major(p, in);
    else
        tops_token_major(p, in);
}

struct block {
    __m256i d[2];    /* o - e */
    __m256i e[2];    /* e */
    __m256i rest[2]; /* the byte that is stored as it is */
    __m256i high[2]; /* f16: sign and the mantissa's bits 8 and 9, where they lie in the high byte */
};

INLINE void block_load(struct block *b, const uint16_t *in, const uint8_t *o, bool bf16)
{
    for (int h = 0; h < 2; h++) {
        __m256i x = _mm256_loadu_si256((const void *)(in + 32 * h));
        __m256i y = _mm256_loadu_si256((const void *)(in + 32 * h + 16));
        b->e[h] = pack16(exponents16(x, bf16), exponents16(y, bf16));
        b->d[h] = _mm256_sub_epi8(_mm256_loadu_si256((const void *)(o + 32 * h)), b->e[h]);
        __m256i low =
            pack16(_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_and_si256(y, _mm256_set1_epi16(0xff)));
        __m256i high = pack16(_mm256_srli_epi16(x, 8), _mm256_srli_epi16(y, 8));
        if (bf16) {
            b->rest[h] = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(0x7f)),
                                         _mm256_and_si256(high, _mm256_set1_epi8((char)0x80)));
        } else {
            b->rest[h] = low;
            b->high[h] = high;
        }
    }
}

TARGET void codec_histogram_avx2(const struct codec_planes *p, const uint16_t *in, uint32_t counts[CODEC_RANKED])
{
    uint8_t d[CODEC_BLOCK];
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    uint32_t c[2][256];
    bool bf16 = p->shape.element == STORAGE_BF16;
    memset(c, 0, sizeof c);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        const uint8_t *o = codec_tops_next(&tops_at);
        if (b % CODEC_SAMPLE)
            continue;
        uint16_t last[CODEC_BLOCK] = {0};
        const uint16_t *from = in + at;
        if (n < CODEC_BLOCK) {
            memcpy(last, from, n * sizeof *last);
            from = last;
        }
        struct block x;
        block_load(&x, from, o, bf16);
        _mm256_storeu_si256((void *)d, x.d[0]);
        _mm256_storeu_si256((void *)(d + 32), x.d[1]);
        for (size_t i = 0; i + 1 < n; i += 2) {
            c[0][d[i]]++;
            c[1][d[i + 1]]++;
        }
        if (n & 1)
            c[0][d[n - 1]]++;
    }
    for (int i = 0; i < CODEC_RANKED; i++)
        counts[i] = c[0][i] + c[1][i];
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

INLINE uint64_t mask64(const __m256i v[2])
{
    return (uint32_t)_mm256_movemask_epi8(v[0]) | (uint64_t)(uint32_t)_mm256_movemask_epi8(v[1]) << 32;
}

INLINE void shift_left(__m256i v[2])
{
    v[0] = _mm256_add_epi8(v[0], v[0]);
    v[1] = _mm256_add_epi8(v[1], v[1]);
}

INLINE void encode_loop(struct codec_planes *p, const uint16_t *in, bool bf16)
{
    uint8_t codes[16];
    codec_rank_codes(&p->shape, codes);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)codes));
    size_t at_level[CODEC_LEVELS] = {0}, escapes = 0;
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        uint64_t valid = n < CODEC_BLOCK ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
        uint16_t last[CODEC_BLOCK] = {0};
        const uint16_t *from = in + at;
        if (n < CODEC_BLOCK) {
            memcpy(last, from, n * sizeof *last);
            from = last;
        }
        struct block x;
        block_load(&x, from, codec_tops_next(&tops_at), bf16);
        __m256i v[2];
        for (int h = 0; h < 2; h++)
            v[h] = _mm256_shuffle_epi8(table, _mm256_min_epu8(x.d[h], _mm256_set1_epi8(15)));
        uint64_t high = mask64(v) & valid;
        shift_left(v);
        uint64_t low = mask64(v) & valid;
        codec_store64(p->level0 + 16 * b, low);
        codec_store64(p->level0 + 16 * b + 8, high);
        uint64_t more = low & high;
        for (int k = 1; k < CODEC_LEVELS; k++) {
            unsigned ones = (unsigned)_mm_popcnt_u64(more);
            shift_left(v);
            high = mask64(v);
            shift_left(v);
            low = mask64(v);
            codec_bits_append(p->level[k][0], at_level[k], _pext_u64(low, more), ones);
            codec_bits_append(p->level[k][1], at_level[k], _pext_u64(high, more), ones);
            at_level[k] += ones;
            more &= low & high;
        }
        if (more) {
            uint8_t e[CODEC_BLOCK];
            _mm256_storeu_si256((void *)e, x.e[0]);
            _mm256_storeu_si256((void *)(e + 32), x.e[1]);
            for (; more; more &= more - 1)
                p->escapes[escapes++] = e[_tzcnt_u64(more)];
        }
        _mm256_storeu_si256((void *)(p->rest + at), x.rest[0]);
        _mm256_storeu_si256((void *)(p->rest + at + 32), x.rest[1]);
        if (!bf16) {
            /* The high byte is s eeeee mm. */
            codec_store64(p->more + 24 * b + 16, mask64(x.high));
            for (int h = 0; h < 2; h++)
                x.high[h] = _mm256_slli_epi16(x.high[h], 6);
            codec_store64(p->more + 24 * b + 8, mask64(x.high));
            shift_left(x.high);
            codec_store64(p->more + 24 * b, mask64(x.high));
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

/* As codec_tops_next(). */
INLINE void tops_next(struct codec_tops *t, __m256i o[2])
{
    uint8_t one;
    if (codec_tops_one(t, &one)) {
        o[0] = o[1] = _mm256_set1_epi8((char)one);
        return;
    }
    const uint8_t *each = codec_tops_next(t);
    o[0] = _mm256_loadu_si256((const void *)each);
    o[1] = _mm256_loadu_si256((const void *)(each + 32));
}

/* Bytes of all ones where the bit is set. */
INLINE __m256i spread(uint32_t bits)
{
    const __m256i which = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                           3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), which);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

INLINE __m256i spread_as(uint64_t bits, int half, int value)
{
    return _mm256_and_si256(spread((uint32_t)(bits >> (32 * half))), _mm256_set1_epi8((char)value));
}

INLINE void block_store(uint16_t *out, const __m256i e[2], const uint8_t *rest, const uint8_t *more, bool bf16,
                        bool stream)
{
    for (int h = 0; h < 2; h++) {
        __m256i r = _mm256_loadu_si256((const void *)(rest + 32 * h)), low, high;
        if (bf16) {
            /* s eeeeeee | e mmmmmmm */
            const __m256i top = _mm256_set1_epi8((char)0x80);
            high = _mm256_or_si256(_mm256_and_si256(r, top),
                                   _mm256_and_si256(_mm256_srli_epi16(e[h], 1), _mm256_set1_epi8(0x7f)));
            low = _mm256_or_si256(_mm256_andnot_si256(top, r), _mm256_and_si256(_mm256_slli_epi16(e[h], 7), top));
        } else {
            low = r;
            high = _mm256_slli_epi16(_mm256_and_si256(e[h], _mm256_set1_epi8(31)), 2);
            high = _mm256_or_si256(high, spread_as(codec_load64(more), h, 1));
            high = _mm256_or_si256(high, spread_as(codec_load64(more + 8), h, 2));
            high = _mm256_or_si256(high, spread_as(codec_load64(more + 16), h, 0x80));
        }
        __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
        __m256i first = _mm256_permute2x128_si256(a, b, 0x20), second = _mm256_permute2x128_si256(a, b, 0x31);
        if (stream) {
            _mm256_stream_si256((void *)(out + 32 * h), first);
            _mm256_stream_si256((void *)(out + 32 * h + 16), second);
        } else {
            _mm256_storeu_si256((void *)(out + 32 * h), first);
            _mm256_storeu_si256((void *)(out + 32 * h + 16), second);
        }
    }
}

INLINE int decode_loop(const struct codec_source *source, uint16_t *out, bool bf16, bool stream)
{
    const struct codec_source copy = *source, *const p = &copy; /* that no store can change */
    uint8_t ds[16] = {0};
    memcpy(ds, p->shape.ranks, CODEC_RANKS);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)ds));
    size_t used[CODEC_LEVELS] = {0}, escapes = 0;
    struct codec_tops tops_at = codec_tops_begin(&p->shape, p->top);
    for (size_t b = 0; b < p->shape.blocks; b++) {
        size_t at = b * CODEC_BLOCK, n = p->shape.n - at < CODEC_BLOCK ? p->shape.n - at : CODEC_BLOCK;
        __m256i o[2];
        tops_next(&tops_at, o);
        /* r = r3 r2 r1 r0, the sum of the codes. */
        uint64_t r0 = codec_load64(p->level0 + 16 * b), r1 = codec_load64(p->level0 + 16 * b + 8), r2 = 0, r3 = 0;
        if (n < CODEC_BLOCK && (r0 | r1) >> n)
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
        __m256i e[2];
        for (int h = 0; h < 2; h++) {
            __m256i r = _mm256_or_si256(_mm256_or_si256(spread_as(r0, h, 1), spread_as(r1, h, 2)),
                                        _mm256_or_si256(spread_as(r2, h, 4), spread_as(r3, h, 8)));
            e[h] = _mm256_sub_epi8(o[h], _mm256_shuffle_epi8(table, r));
        }
        if (more) {
            uint8_t each[CODEC_BLOCK];
            _mm256_storeu_si256((void *)each, e[0]);
            _mm256_storeu_si256((void *)(each + 32), e[1]);
            if ((unsigned)_mm_popcnt_u64(more) > p->shape.n_escapes - escapes)
                return -EBADMSG;
            for (; more; more &= more - 1)
                each[_tzcnt_u64(more)] = p->escapes[escapes++];
            e[0] = _mm256_loadu_si256((const void *)each);
            e[1] = _mm256_loadu_si256((const void *)(each + 32));
        }
        if (n == CODEC_BLOCK) {
            block_store(out + at, e, p->rest + at, p->more + 24 * b, bf16, stream);
        } else {
            uint8_t rest[CODEC_BLOCK] = {0};
            uint16_t last[CODEC_BLOCK];
            memcpy(rest, p->rest + at, n);
            block_store(last, e, rest, p->more + 24 * b, bf16, false);
            memcpy(out + at, last, n * sizeof *last);
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
    bool stream = p->stream && (uintptr_t)out % 32 == 0;
    int rc = p->shape.element == STORAGE_BF16 ? decode_bf16(p, out, stream) : decode_f16(p, out, stream);
    if (stream)
        _mm_sfence();
    return rc;
}

static uint64_t sum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

const struct codec_loops codec_loops_avx2 = {
    .tops = codec_tops_avx2, .histogram = codec_histogram_avx2, .encode = encode, .decode = decode, .sum = sum};
#endif

/* linear_avx2.c - products with AVX2, FMA and F16C: one register is 8 rows x 4 values, so a group is two halves.
 *
 * Built like linear_avx512.c: visit() unpacks a block's weights in registers, use() multiplies them with one token's
 * activations or stores them. The order of additions and every rounding are those of linear_portable.c.
 *
 * VPMADDUBSW adds two products in 16 bits. Its results are added in 16 bits as long as they cannot leave them, with
 * activations up to 127: 8 of them for 4-bit weights (8 * 2 * 15 * 127 = 30480), 4 for 5-bit (31496), 2 for 6-bit
 * (32004), 1 for 8-bit weights, whose sign is moved to the activations (2 * 128 * 127 = 32512). A Q8_0 byte is unpacked
 * as it is, signed.
 */
#include "kernels/cpu/linear_internal.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

#define PREFETCH_BYTES 4096 /* how far ahead of the packed weights in use */

/* What a step's weights go to: memory, or a product with one token. */
struct sink {
    const uint8_t *tile;
    uint8_t *out;
    __m256 acc[2];
};

ALWAYS __m256i set1_int(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}

ALWAYS __m256 set1_float(const uint8_t *p)
{
    float x;
    memcpy(&x, p, 4);
    return _mm256_set1_ps(x);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

ALWAYS bool has_minimum(enum kernels_type type)
{
    return type == KERNELS_Q4_1 || type == KERNELS_Q5_1 || type == KERNELS_Q4_K || type == KERNELS_Q5_K;
}

ALWAYS bool has_five_bits(enum kernels_type type)
{
    return type == KERNELS_Q5_0 || type == KERNELS_Q5_1 || type == KERNELS_Q5_K;
}

/* Sum over chunks [first, first + n), in 16 bits until the end. */
ALWAYS __m256i dot(const __m256i w[8], const uint8_t *q, int first, int n)
{
    __m256i sum = _mm256_maddubs_epi16(w[first], set1_int(q + first * 4));
#pragma GCC unroll 8
    for (int c = first + 1; c < first + n; c++)
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[c], set1_int(q + c * 4)));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

/* Sum over all chunks of signed weights. */
ALWAYS __m256i dot_signed(const __m256i w[8], const uint8_t *q)
{
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
        __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[c]), _mm256_sign_epi8(set1_int(q + c * 4), w[c]));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
}

/* One block of 32 values of 8 rows with one token; f are its facts in a tile of `tokens`. */
ALWAYS __m256 multiply(enum kernels_type type, int tokens, const uint8_t *q, const uint8_t *f, const __m256i w[8],
                       __m256 s, __m256 second, __m256 acc)
{
    __m256i sum;
    if (type == KERNELS_Q6_K) {
        __m256i low = _mm256_add_epi32(dot(w, q, 0, 2), dot(w, q, 2, 2));
        __m256i high = _mm256_add_epi32(dot(w, q, 4, 2), dot(w, q, 6, 2));
        low = _mm256_add_epi32(low, _mm256_slli_epi32(set1_int(f + tokens * 12), 5));
        high = _mm256_add_epi32(high, _mm256_slli_epi32(set1_int(f + tokens * 16), 5));
        __m256 both = _mm256_mul_ps(s, _mm256_cvtepi32_ps(low));
        both = _mm256_fmadd_ps(second, _mm256_cvtepi32_ps(high), both);
        return _mm256_fmadd_ps(set1_float(f), both, acc);
    }
    if (type == KERNELS_Q8_0)
        sum = dot_signed(w, q);
    else if (has_five_bits(type))
        sum = _mm256_add_epi32(dot(w, q, 0, 4), dot(w, q, 4, 4));
    else
        sum = dot(w, q, 0, 8);
    if (type == KERNELS_Q4_0 || type == KERNELS_Q5_0)
        sum = _mm256_add_epi32(sum, _mm256_slli_epi32(set1_int(f + tokens * 8), type == KERNELS_Q4_0 ? 3 : 4));
    acc = _mm256_fmadd_ps(_mm256_mul_ps(s, set1_float(f)), _mm256_cvtepi32_ps(sum), acc);
    if (has_minimum(type))
        acc = _mm256_fmadd_ps(second, set1_float(f + tokens * 4), acc);
    return acc;
}

ALWAYS void use(enum kernels_type type, bool store, struct sink *k, int half, const __m256i w[8], __m256 s,
                __m256 second)
{
    if (store) {
        uint8_t *out = k->out + half * 32;
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            _mm256_store_si256((__m256i *)(out + c * 64), w[c]);
        _mm256_store_ps((float *)(out + 512), s);
        _mm256_store_ps((float *)(out + 576), second);
        return;
    }
    k->acc[half] = multiply(type, 1, k->tile, k->tile + KERNELS_BLOCK, w, s, second, k->acc[half]);
}

/* To the next block of 32 values. */
ALWAYS void advance(bool store, struct sink *k)
{
    if (store)
        k->out += KERNELS_UNPACKED_BLOCK_BYTES;
    else
        k->tile += KERNELS_TOKEN_BLOCK_BYTES;
}

/* ---- unpacking in registers -------------------------------------------------------------------------------------- */

/* Half a line: 8 rows x 4 bytes. */
ALWAYS __m256i line(const uint8_t *p, int half)
{
    return _mm256_loadu_si256((const __m256i *)(p + half * 32));
}

ALWAYS __m256 halves(const uint8_t *p, int half)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + half * 16)));
}

ALWAYS __m256i low_nibbles(__m256i v)
{
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

ALWAYS __m256i high_nibbles(__m256i v)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15));
}

/* base | (bits & mask) */
ALWAYS __m256i add_bits(__m256i base, __m256i bits, int mask)
{
    return _mm256_or_si256(base, _mm256_and_si256(bits, _mm256_set1_epi8((char)mask)));
}

/* Moves bit `from` of every byte to bit `to`; what comes in from neighbours is for the caller to mask. */
ALWAYS __m256i move_bit(__m256i v, int from, int to)
{
    return from < to ? _mm256_slli_epi16(v, to - from) : _mm256_srli_epi16(v, from - to);
}

/* Bytes of a block of a group. */
ALWAYS size_t step_bytes(enum kernels_type type)
{
    return type == KERNELS_Q8_0   ? 34 * 16
           : type == KERNELS_Q4_0 ? 18 * 16
           : type == KERNELS_Q4_1 ? 20 * 16
           : type == KERNELS_Q5_0 ? 22 * 16
           : type == KERNELS_Q5_1 ? 24 * 16
           : type == KERNELS_Q4_K ? 144 * 16
           : type == KERNELS_Q5_K ? 176 * 16
                                  : 210 * 16;
}

/* Asks for part `i` of `parts` of what lies PREFETCH_BYTES past a step. In parts, since a burst of requests for a whole
 * step would wait for itself. */
ALWAYS void prefetch(enum kernels_type type, struct kernels_packed_block at, int i, int parts)
{
    int lines = ((int)step_bytes(type) / 64 + parts) / parts;
#pragma GCC unroll 16
    for (int l = 0; l < lines; l++)
        _mm_prefetch((const char *)at.rest + PREFETCH_BYTES + (i * lines + l) * 64, _MM_HINT_T1);
}

ALWAYS void visit_small(enum kernels_type type, bool store, struct sink *k, struct kernels_packed_block at)
{
    bool five = has_five_bits(type);
    const uint8_t *rest = has_minimum(type) ? at.rest + 64 : at.rest;
    prefetch(type, at, 0, 1);
#pragma GCC unroll 8
    for (int half = 0; half < 2; half++) {
        __m256i w[8];
        if (type == KERNELS_Q8_0) {
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++)
                w[c] = line(rest + c * 64, half);
        } else {
            const uint8_t *nibbles = five ? rest + 64 : rest;
#pragma GCC unroll 8
            for (int c = 0; c < 4; c++) {
                __m256i v = line(nibbles + c * 64, half);
                w[c] = low_nibbles(v);
                w[c + 4] = high_nibbles(v);
            }
            if (five) {
                __m256i high = line(rest, half);
#pragma GCC unroll 8
                for (int c = 0; c < 8; c++)
                    w[c] = add_bits(w[c], move_bit(high, c, 4), 16);
            }
        }
        __m256 second = has_minimum(type) ? halves(at.header + 32, half) : _mm256_setzero_ps();
        use(type, store, k, half, w, halves(at.header, half), second);
    }
    advance(store, k);
}

/* 16 bytes to floats times d. */
ALWAYS void scale_bytes(__m128i bytes, const __m256 d[2], __m256 out[2])
{
    out[0] = _mm256_mul_ps(d[0], _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)));
    out[1] = _mm256_mul_ps(d[1], _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}

ALWAYS __m128i and_byte(__m128i v, int mask)
{
    return _mm_and_si128(v, _mm_set1_epi8((char)mask));
}

ALWAYS void visit_k(enum kernels_type type, bool store, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *p = at.rest;
    const __m256 minus = _mm256_set1_ps(-0.0f);
    __m256 d[2] = {halves(p, 0), halves(p, 1)}, s[8][2], m[8][2];
    __m256 neg[2] = {_mm256_xor_ps(halves(p + 32, 0), minus), _mm256_xor_ps(halves(p + 32, 1), minus)};
    for (int i = 0; i < 4; i++) {
        const __m128i *bytes = (const __m128i *)(p + 64) + i;
        __m128i a = _mm_loadu_si128(bytes), b = _mm_loadu_si128(bytes + 4), c = _mm_loadu_si128(bytes + 8);
        scale_bytes(and_byte(a, 63), d, s[i]);
        scale_bytes(and_byte(b, 63), neg, m[i]);
        scale_bytes(_mm_or_si128(and_byte(c, 15), and_byte(_mm_srli_epi16(a, 2), 0x30)), d, s[i + 4]);
        c = _mm_srli_epi16(c, 4);
        scale_bytes(_mm_or_si128(and_byte(c, 15), and_byte(_mm_srli_epi16(b, 2), 0x30)), neg, m[i + 4]);
    }
    const uint8_t *high = p + 256, *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    for (int i = 0; i < 4; i++) {
        prefetch(type, at, i, 4);
#pragma GCC unroll 8
        for (int j = 0; j < 2; j++) {
            __m256i bit = _mm256_set1_epi8((char)(1 << (2 * i + j)));
#pragma GCC unroll 8
            for (int half = 0; half < 2; half++) {
                __m256i w[8];
#pragma GCC unroll 8
                for (int n = 0; n < 8; n++) {
                    __m256i v = line(nibbles + n * 64, half);
                    w[n] = j == 0 ? low_nibbles(v) : high_nibbles(v);
                    if (type == KERNELS_Q5_K) {
                        __m256i set = _mm256_and_si256(line(high + n * 64, half), bit);
                        w[n] = add_bits(w[n], _mm256_cmpeq_epi8(set, bit), 16);
                    }
                }
                use(type, store, k, half, w, s[2 * i + j][half], m[2 * i + j][half]);
            }
            advance(store, k);
        }
        nibbles += 512;
    }
}

ALWAYS __m256 six_scale(const uint8_t *scales, __m256 d)
{
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)scales))));
}

ALWAYS void visit_six(bool store, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *scales = at.rest, *high = scales + 256, *nibbles = high + 1024;
    for (int i = 0; i < 2; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            prefetch(KERNELS_Q6_K, at, i * 4 + j, 8);
#pragma GCC unroll 8
            for (int half = 0; half < 2; half++) {
                __m256i w[8];
#pragma GCC unroll 8
                for (int c = 0; c < 8; c++) {
                    __m256i v = line(nibbles + (j % 2 * 8 + c) * 64, half);
                    __m256i bits = move_bit(line(high + c * 64, half), 2 * j, 4);
                    w[c] = add_bits(j < 2 ? low_nibbles(v) : high_nibbles(v), bits, 0x30);
                }
                __m256 d = halves(at.header, half);
                use(KERNELS_Q6_K, store, k, half, w, six_scale(scales + half * 8, d),
                    six_scale(scales + 16 + half * 8, d));
            }
            advance(store, k);
            scales += 32;
        }
        high += 512;
        nibbles += 1024;
    }
}

/* kernels_packed_block() without a call in the loop. */
ALWAYS struct kernels_packed_block step_at(enum kernels_type type, const uint8_t *group, int blocks, int b)
{
    size_t bytes = step_bytes(type), odd = b & 1;
    const uint8_t *p = group + ((size_t)b - odd) * bytes;
    if (has_minimum(type))
        return (struct kernels_packed_block){p + odd * bytes, p + odd * bytes};
    size_t headers = b == blocks - 1 && !odd ? 32 : 64;
    return (struct kernels_packed_block){p + odd * 32, p + headers + odd * (bytes - 32)};
}

/* Blocks [first, end) of the file, of `blocks` in a row. */
ALWAYS void visit(enum kernels_type type, bool store, struct sink *k, const uint8_t *group, int blocks, int first,
                  int end)
{
    for (int b = first; b < end; b++) {
        struct kernels_packed_block at = step_at(type, group, blocks, b);
        if (type == KERNELS_Q6_K)
            visit_six(store, k, at);
        else if (type == KERNELS_Q4_K || type == KERNELS_Q5_K)
            visit_k(type, store, k, at);
        else
            visit_small(type, store, k, at);
    }
}

static void unpack(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out)
{
    int values = kernels_type_info(type)->block_values, ratio = values / KERNELS_BLOCK;
    int blocks = cols / values, a = first / ratio, b = (first + count) / ratio;
    struct sink k = {.out = out};
    switch (type) {
    case KERNELS_Q8_0:
        visit(KERNELS_Q8_0, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q4_0:
        visit(KERNELS_Q4_0, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q4_1:
        visit(KERNELS_Q4_1, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q5_0:
        visit(KERNELS_Q5_0, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q5_1:
        visit(KERNELS_Q5_1, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q4_K:
        visit(KERNELS_Q4_K, true, &k, group, blocks, a, b);
        break;
    case KERNELS_Q5_K:
        visit(KERNELS_Q5_K, true, &k, group, blocks, a, b);
        break;
    default:
        visit(KERNELS_Q6_K, true, &k, group, blocks, a, b);
        break;
    }
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

ALWAYS void one_of_type(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc)
{
    struct sink k = {.tile = tile};
    k.acc[0] = k.acc[1] = _mm256_setzero_ps();
    int blocks = cols / kernels_type_info(type)->block_values;
    visit(type, false, &k, group, blocks, 0, blocks);
    _mm256_store_ps(acc, k.acc[0]);
    _mm256_store_ps(acc + 8, k.acc[1]);
}

static void one(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc)
{
    switch (type) {
    case KERNELS_Q8_0:
        one_of_type(KERNELS_Q8_0, group, cols, tile, acc);
        break;
    case KERNELS_Q4_0:
        one_of_type(KERNELS_Q4_0, group, cols, tile, acc);
        break;
    case KERNELS_Q4_1:
        one_of_type(KERNELS_Q4_1, group, cols, tile, acc);
        break;
    case KERNELS_Q5_0:
        one_of_type(KERNELS_Q5_0, group, cols, tile, acc);
        break;
    case KERNELS_Q5_1:
        one_of_type(KERNELS_Q5_1, group, cols, tile, acc);
        break;
    case KERNELS_Q4_K:
        one_of_type(KERNELS_Q4_K, group, cols, tile, acc);
        break;
    case KERNELS_Q5_K:
        one_of_type(KERNELS_Q5_K, group, cols, tile, acc);
        break;
    default:
        one_of_type(KERNELS_Q6_K, group, cols, tile, acc);
        break;
    }
}

/* ---- many tokens ------------------------------------------------------------------------------------------------- */

/* Tokens [first, first + n) of a tile of `tokens` with one half of the rows: the sums and a block's weights stay in
 * registers. */
ALWAYS void half_tile(enum kernels_type type, int tokens, int first, int n, int half, const uint8_t *unpacked,
                      int count, const uint8_t *tile, float *acc)
{
    __m256 sum[4];
    acc += first * KERNELS_ROW_GROUP + half * 8;
    unpacked += half * 32;
#pragma GCC unroll 8
    for (int t = 0; t < n; t++)
        sum[t] = _mm256_load_ps(acc + t * KERNELS_ROW_GROUP);
    for (int b = 0; b < count; b++) {
        const uint8_t *q = tile + first * KERNELS_BLOCK, *f = tile + tokens * KERNELS_BLOCK + first * 4;
        __m256 s = _mm256_load_ps((const float *)(unpacked + 512));
        __m256 second = _mm256_load_ps((const float *)(unpacked + 576));
        __m256i w[8];
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            w[c] = _mm256_load_si256((const __m256i *)(unpacked + c * 64));
#pragma GCC unroll 8
        for (int t = 0; t < n; t++)
            sum[t] = multiply(type, tokens, q + t * KERNELS_BLOCK, f + t * 4, w, s, second, sum[t]);
        unpacked += KERNELS_UNPACKED_BLOCK_BYTES;
        tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; t++)
        _mm256_store_ps(acc + t * KERNELS_ROW_GROUP, sum[t]);
}

ALWAYS void tile_tokens(enum kernels_type type, int tokens, const uint8_t *unpacked, int count, const uint8_t *tile,
                        float *acc)
{
    int n = tokens < 4 ? tokens : 4;
    for (int first = 0; first < tokens; first += n) {
        half_tile(type, tokens, first, n, 0, unpacked, count, tile, acc);
        half_tile(type, tokens, first, n, 1, unpacked, count, tile, acc);
    }
}

ALWAYS void tile_of_type(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    if (tokens == 8)
        tile_tokens(type, 8, unpacked, count, tile, acc);
    else if (tokens == 4)
        tile_tokens(type, 4, unpacked, count, tile, acc);
    else if (tokens == 2)
        tile_tokens(type, 2, unpacked, count, tile, acc);
    else
        tile_tokens(type, 1, unpacked, count, tile, acc);
}

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    switch (type) {
    case KERNELS_Q8_0:
        tile_of_type(KERNELS_Q8_0, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q4_0:
        tile_of_type(KERNELS_Q4_0, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_0:
        tile_of_type(KERNELS_Q5_0, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q6_K:
        tile_of_type(KERNELS_Q6_K, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_1:
    case KERNELS_Q5_K: /* types that look alike once they are unpacked */
        tile_of_type(KERNELS_Q5_1, unpacked, count, tile, tokens, acc);
        break;
    default:
        tile_of_type(KERNELS_Q4_1, unpacked, count, tile, tokens, acc);
        break;
    }
}

/* ---- weights that are not quantized ------------------------------------------------------------------------------ */

ALWAYS __m256 float_weights(enum kernels_type type, const uint8_t *group, size_t k, int half)
{
    if (type == KERNELS_F32)
        return _mm256_loadu_ps((const float *)(group + k * 64 + half * 32));
    if (type == KERNELS_F16)
        return halves(group + k * 32, half);
    __m128i bits = _mm_loadu_si128((const __m128i *)(group + k * 32 + half * 16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

ALWAYS void float_tokens(enum kernels_type type, int tokens, const uint8_t *group, const float *x, size_t cols,
                         float *acc)
{
    __m256 low[4], high[4];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        low[t] = high[t] = _mm256_setzero_ps();
    for (size_t k = 0; k < cols; k++) {
        __m256 a = float_weights(type, group, k, 0), b = float_weights(type, group, k, 1);
        _mm_prefetch((const char *)group + k * (type == KERNELS_F32 ? 64 : 32) + PREFETCH_BYTES, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            __m256 value = _mm256_set1_ps(x[(size_t)t * cols + k]);
            low[t] = _mm256_fmadd_ps(a, value, low[t]);
            high[t] = _mm256_fmadd_ps(b, value, high[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++) {
        _mm256_store_ps(acc + t * KERNELS_ROW_GROUP, low[t]);
        _mm256_store_ps(acc + t * KERNELS_ROW_GROUP + 8, high[t]);
    }
}

ALWAYS void floats_of_type(enum kernels_type type, const uint8_t *group, const float *x, size_t cols, int tokens,
                           float *acc)
{
    for (; tokens >= 4; tokens -= 4, x += 4 * cols, acc += 4 * KERNELS_ROW_GROUP)
        float_tokens(type, 4, group, x, cols, acc);
    if (tokens == 2)
        float_tokens(type, 2, group, x, cols, acc);
    else if (tokens == 1)
        float_tokens(type, 1, group, x, cols, acc);
}

static void floats(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc)
{
    if (type == KERNELS_F32)
        floats_of_type(KERNELS_F32, group, x, (size_t)cols, tokens, acc);
    else if (type == KERNELS_F16)
        floats_of_type(KERNELS_F16, group, x, (size_t)cols, tokens, acc);
    else
        floats_of_type(KERNELS_BF16, group, x, (size_t)cols, tokens, acc);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

ALWAYS int32_t lane_sum(__m256i v)
{
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

ALWAYS int32_t lane_max(__m256i v)
{
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    for (int b = 0; b < cols / KERNELS_BLOCK; b++, x += KERNELS_BLOCK) {
        uint8_t *block = tile + (size_t)b * (size_t)tokens * KERNELS_TOKEN_BLOCK_BYTES;
        __m256i max = _mm256_setzero_si256(), q[4];
#pragma GCC unroll 8
        for (int i = 0; i < 4; i++) {
            q[i] = _mm256_setzero_si256();
            max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i * 8)), magnitude));
        }
        int32_t bits = lane_max(max);
        float largest, d = 0, inverse = 0;
        memcpy(&largest, &bits, 4);
        if (bits >= 0x7f800000) {
            d = NAN;
        } else {
            if (largest >= KERNELS_TINY) {
                d = largest / 127.0f;
                inverse = 127.0f / largest;
            }
#pragma GCC unroll 8
            for (int i = 0; i < 4; i++)
                q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i * 8), _mm256_set1_ps(inverse)));
        }
        /* Packing works within 128-bit lanes and leaves the words of 4 values in the order 0 2 4 6 1 3 5 7. */
        __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(block + token * KERNELS_BLOCK), bytes);
        int32_t low = lane_sum(_mm256_add_epi32(q[0], q[1])), high = lane_sum(_mm256_add_epi32(q[2], q[3]));
        float dsum = d * (float)(low + high);
        int32_t neg[3] = {-(low + high), -low, -high};
        uint8_t *facts = block + tokens * KERNELS_BLOCK + token * 4;
        memcpy(facts, &d, 4);
        memcpy(facts + tokens * 4, &dsum, 4);
        for (int i = 0; i < 3; i++)
            memcpy(facts + tokens * (8 + i * 4), &neg[i], 4);
    }
}

const struct kernels_linear_set kernels_linear_avx2 = {
    .quantize = quantize,
    .one = one,
    .unpack = unpack,
    .tile = tile_product,
    .floats = floats,
};

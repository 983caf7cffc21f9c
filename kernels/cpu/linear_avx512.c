/* linear_avx512.c - products with AVX-512 and VNNI: one register is 16 rows x 4 values.
 *
 * A step is a block of the file. visit() unpacks its weights in registers, 32 values at a time, and hands them to
 * use(), which either multiplies them with a tile of activations or stores them for later (unpack). Types and tile
 * sizes are constants of inlined functions, so that each pair becomes a loop of its own.
 *
 * The order of additions and every rounding are those of linear_portable.c. A Q8_0 byte is unpacked as w ^ 0x80, an
 * unsigned byte with offset 128, since VPDPBUSD wants one unsigned factor.
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
    __m512 acc;
};

ALWAYS __m512i set1_int(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

ALWAYS __m512 set1_float(const uint8_t *p)
{
    float x;
    memcpy(&x, p, 4);
    return _mm512_set1_ps(x);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

ALWAYS bool has_minimum(enum kernels_type type)
{
    return type == KERNELS_Q4_1 || type == KERNELS_Q5_1 || type == KERNELS_Q4_K || type == KERNELS_Q5_K;
}

ALWAYS int offset_bits(enum kernels_type type)
{
    return type == KERNELS_Q4_0 ? 3 : type == KERNELS_Q5_0 ? 4 : type == KERNELS_Q6_K ? 5 : 7;
}

/* sum[t] += chunks [first, end) of every token. Tokens are innermost: neighbouring instructions then do not wait for
 * each other. */
ALWAYS void dots(int tokens, const uint8_t *q, const __m512i w[8], int first, int end, __m512i sum[KERNELS_TILE])
{
#pragma GCC unroll 8
    for (int c = first; c < end; c++)
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++)
            sum[t] = _mm512_dpbusd_epi32(sum[t], w[c], set1_int(q + t * KERNELS_BLOCK + c * 4));
}

/* sum[t] = the type's offset times a fact of token t. */
ALWAYS void start(enum kernels_type type, int tokens, const uint8_t *fact, __m512i sum[KERNELS_TILE])
{
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        sum[t] = has_minimum(type) ? _mm512_setzero_si512()
                                   : _mm512_slli_epi32(set1_int(fact + t * 4), (unsigned)offset_bits(type));
}

/* One block of 32 values of 16 rows with every token of a tile. */
ALWAYS void multiply(enum kernels_type type, int tokens, const uint8_t *q, const __m512i w[8], __m512 s, __m512 second,
                     __m512 *acc)
{
    const uint8_t *d = q + tokens * KERNELS_BLOCK, *dsum = d + tokens * 4, *neg = dsum + tokens * 4;
    __m512i sum[KERNELS_TILE];
    if (type == KERNELS_Q6_K) {
        __m512 low[KERNELS_TILE];
        start(type, tokens, neg + tokens * 4, sum);
        dots(tokens, q, w, 0, 4, sum);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++)
            low[t] = _mm512_mul_ps(s, _mm512_cvtepi32_ps(sum[t]));
        start(type, tokens, neg + tokens * 8, sum);
        dots(tokens, q, w, 4, 8, sum);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            __m512 both = _mm512_fmadd_ps(second, _mm512_cvtepi32_ps(sum[t]), low[t]);
            acc[t] = _mm512_fmadd_ps(set1_float(d + t * 4), both, acc[t]);
        }
        return;
    }
    start(type, tokens, neg, sum);
    dots(tokens, q, w, 0, 8, sum);
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++) {
        __m512 scale = _mm512_mul_ps(s, set1_float(d + t * 4));
        acc[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), acc[t]);
        if (has_minimum(type))
            acc[t] = _mm512_fmadd_ps(second, set1_float(dsum + t * 4), acc[t]);
    }
}

ALWAYS void use(enum kernels_type type, bool store, struct sink *k, const __m512i w[8], __m512 s, __m512 second)
{
    if (store) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            _mm512_store_si512(k->out + c * 64, w[c]);
        _mm512_store_ps(k->out + 512, s);
        _mm512_store_ps(k->out + 576, second);
        k->out += KERNELS_UNPACKED_BLOCK_BYTES;
    } else {
        multiply(type, 1, k->tile, w, s, second, &k->acc);
        k->tile += KERNELS_TOKEN_BLOCK_BYTES;
    }
}

/* ---- unpacking in registers -------------------------------------------------------------------------------------- */

ALWAYS __m512i line(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

ALWAYS __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

ALWAYS __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

ALWAYS __m512i high_nibbles(__m512i v)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
}

/* base | (bits & mask) */
ALWAYS __m512i add_bits(__m512i base, __m512i bits, int mask)
{
    return _mm512_ternarylogic_epi32(base, bits, _mm512_set1_epi8((char)mask), 0xf8);
}

/* Moves bit `from` of every byte to bit `to`; what comes in from neighbours is for the caller to mask. */
ALWAYS __m512i move_bit(__m512i v, int from, int to)
{
    return from < to ? _mm512_slli_epi16(v, (unsigned)(to - from)) : _mm512_srli_epi16(v, (unsigned)(from - to));
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
    bool five = type == KERNELS_Q5_0 || type == KERNELS_Q5_1;
    const uint8_t *rest = at.rest;
    prefetch(type, at, 0, 1);
    __m512 second = _mm512_setzero_ps();
    if (has_minimum(type)) {
        second = halves(at.header + 32);
        rest += 64;
    }
    __m512i w[8];
    if (type == KERNELS_Q8_0) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            w[c] = _mm512_xor_si512(line(rest + c * 64), _mm512_set1_epi8((char)0x80));
    } else {
        const uint8_t *nibbles = five ? rest + 64 : rest;
#pragma GCC unroll 8
        for (int c = 0; c < 4; c++) {
            __m512i v = line(nibbles + c * 64);
            w[c] = low_nibbles(v);
            w[c + 4] = high_nibbles(v);
        }
        if (five) {
            __m512i high = line(rest);
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++)
                w[c] = add_bits(w[c], move_bit(high, c, 4), 16);
        }
    }
    use(type, store, k, w, halves(at.header), second);
}

/* Bytes [4 blocks][16 rows] to floats times d. */
ALWAYS void scale_bytes(__m512i bytes, __m512 d, __m512 out[4])
{
    out[0] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 0))));
    out[1] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 1))));
    out[2] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 2))));
    out[3] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(bytes, 3))));
}

ALWAYS void visit_k(enum kernels_type type, bool store, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *p = at.rest;
    __m512i a = line(p + 64), b = line(p + 128), c = line(p + 192);
    __m512i six = _mm512_set1_epi8(63);
    __m512 s[8], m[8], d = halves(p), neg = _mm512_xor_ps(halves(p + 32), _mm512_set1_ps(-0.0f));
    scale_bytes(_mm512_and_si512(a, six), d, s);
    scale_bytes(_mm512_and_si512(b, six), neg, m);
    scale_bytes(add_bits(low_nibbles(c), _mm512_srli_epi16(a, 2), 0x30), d, s + 4);
    scale_bytes(add_bits(high_nibbles(c), _mm512_srli_epi16(b, 2), 0x30), neg, m + 4);
    const uint8_t *high = p + 256, *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    for (int i = 0; i < 4; i++) {
        prefetch(type, at, i, 4);
#pragma GCC unroll 8
        for (int j = 0; j < 2; j++) {
            __m512i w[8], rotate = _mm512_set1_epi32((4 - 2 * i - j) & 31);
#pragma GCC unroll 8
            for (int n = 0; n < 8; n++) {
                __m512i v = line(nibbles + n * 64);
                w[n] = j == 0 ? low_nibbles(v) : high_nibbles(v);
                if (type == KERNELS_Q5_K)
                    w[n] = add_bits(w[n], _mm512_rolv_epi32(line(high + n * 64), rotate), 16);
            }
            use(type, store, k, w, s[2 * i + j], m[2 * i + j]);
        }
        nibbles += 512;
    }
}

ALWAYS __m512 six_scale(const uint8_t *scales, __m512 d)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)scales);
    return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

ALWAYS void visit_six(bool store, struct sink *k, struct kernels_packed_block at)
{
    __m512 d = halves(at.header);
    const uint8_t *scales = at.rest, *high = scales + 256, *nibbles = high + 1024;
    for (int half = 0; half < 2; half++) {
#pragma GCC unroll 8
        for (int j = 0; j < 4; j++) {
            prefetch(KERNELS_Q6_K, at, half * 4 + j, 8);
            __m512i w[8];
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++) {
                __m512i v = line(nibbles + (j % 2 * 8 + c) * 64), bits = move_bit(line(high + c * 64), 2 * j, 4);
                w[c] = add_bits(j < 2 ? low_nibbles(v) : high_nibbles(v), bits, 0x30);
            }
            use(KERNELS_Q6_K, store, k, w, six_scale(scales, d), six_scale(scales + 16, d));
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
    k.acc = _mm512_setzero_ps();
    int blocks = cols / kernels_type_info(type)->block_values;
    visit(type, false, &k, group, blocks, 0, blocks);
    _mm512_store_ps(acc, k.acc);
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

ALWAYS void tile_tokens(enum kernels_type type, int tokens, const uint8_t *unpacked, int count, const uint8_t *tile,
                        float *acc)
{
    __m512 sum[KERNELS_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        sum[t] = _mm512_load_ps(acc + t * KERNELS_ROW_GROUP);
    for (int b = 0; b < count; b++) {
        __m512i w[8];
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            w[c] = _mm512_load_si512(unpacked + c * 64);
        multiply(type, tokens, tile, w, _mm512_load_ps(unpacked + 512), _mm512_load_ps(unpacked + 576), sum);
        unpacked += KERNELS_UNPACKED_BLOCK_BYTES;
        tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        _mm512_store_ps(acc + t * KERNELS_ROW_GROUP, sum[t]);
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
    default: /* the types with a minimum look alike once they are unpacked */
        tile_of_type(KERNELS_Q4_1, unpacked, count, tile, tokens, acc);
        break;
    }
}

/* ---- weights that are not quantized ------------------------------------------------------------------------------ */

ALWAYS __m512 float_weights(enum kernels_type type, const uint8_t *group, size_t k)
{
    if (type == KERNELS_F32)
        return _mm512_loadu_ps(group + k * 64);
    if (type == KERNELS_F16)
        return halves(group + k * 32);
    __m256i bits = _mm256_loadu_si256((const __m256i *)(group + k * 32));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

ALWAYS void float_tokens(enum kernels_type type, int tokens, const uint8_t *group, const float *x, size_t cols,
                         float *acc)
{
    __m512 sum[KERNELS_TILE];
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        sum[t] = _mm512_setzero_ps();
    for (size_t k = 0; k < cols; k++) {
        __m512 w = float_weights(type, group, k);
        _mm_prefetch((const char *)group + k * (type == KERNELS_F32 ? 64 : 32) + PREFETCH_BYTES, _MM_HINT_T1);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++)
            sum[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)t * cols + k]), sum[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        _mm512_store_ps(acc + t * KERNELS_ROW_GROUP, sum[t]);
}

ALWAYS void floats_of_type(enum kernels_type type, const uint8_t *group, const float *x, size_t cols, int tokens,
                           float *acc)
{
    if (tokens == 8)
        float_tokens(type, 8, group, x, cols, acc);
    else if (tokens == 4)
        float_tokens(type, 4, group, x, cols, acc);
    else if (tokens == 2)
        float_tokens(type, 2, group, x, cols, acc);
    else
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

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    for (int b = 0; b < cols / KERNELS_BLOCK; b++, x += KERNELS_BLOCK) {
        uint8_t *block = tile + (size_t)b * (size_t)tokens * KERNELS_TOKEN_BLOCK_BYTES;
        uint8_t *q = block + token * KERNELS_BLOCK;
        __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
        int32_t max = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                                               _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
        float largest, d = 0, inverse = 0;
        memcpy(&largest, &max, 4);
        __m512i low_q = _mm512_setzero_si512(), high_q = low_q;
        if (max >= 0x7f800000) {
            d = NAN;
        } else {
            if (largest >= KERNELS_TINY) {
                d = largest / 127.0f;
                inverse = 127.0f / largest;
            }
            low_q = _mm512_cvtps_epi32(_mm512_mul_ps(low, _mm512_set1_ps(inverse)));
            high_q = _mm512_cvtps_epi32(_mm512_mul_ps(high, _mm512_set1_ps(inverse)));
        }
        _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(low_q));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(high_q));
        int32_t low_sum = _mm512_reduce_add_epi32(low_q), high_sum = _mm512_reduce_add_epi32(high_q);
        float dsum = d * (float)(low_sum + high_sum);
        int32_t neg[3] = {-(low_sum + high_sum), -low_sum, -high_sum};
        uint8_t *facts = block + tokens * KERNELS_BLOCK + token * 4;
        memcpy(facts, &d, 4);
        memcpy(facts + tokens * 4, &dsum, 4);
        for (int i = 0; i < 3; i++)
            memcpy(facts + tokens * (8 + i * 4), &neg[i], 4);
    }
}

const struct kernels_linear_set kernels_linear_avx512 = {
    .quantize = quantize,
    .one = one,
    .unpack = unpack,
    .tile = tile_product,
    .floats = floats,
};

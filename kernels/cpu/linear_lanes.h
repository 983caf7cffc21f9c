/* linear_lanes.h - products of packed weights, written once over parts of a line: a part is a register of rows x 4
 * values, a line of 16 rows one or two of them (LANES_PARTS). Included by the files of the instruction sets, each after
 * the lanes_*.h that says what a part is; LANES_SET names the table that is defined here.
 *
 * A step is a block of the file. visit() unpacks its weights in registers, 32 values at a time, and hands them to
 * use(), which multiplies them with one token or with a few, or stores them for later (unpack). Types and what is done
 * with weights are constants of inlined functions, so that each pair becomes a loop of its own.
 *
 * The order of additions and every rounding are those of linear_portable.c.
 */
#include <immintrin.h>
#include <math.h>

#define PREFETCH_BYTES 4096 /* how far ahead of the packed weights in use */
#define PART_BYTES     (64 / LANES_PARTS)
#define PART_ROWS      (16 / LANES_PARTS)

enum use { USE_STORE, USE_ONE, USE_FEW };

/* What a step's weights go to. */
struct sink {
    const uint8_t *ahead; /* lines to ask for during this block of 32 */
    int lines;
    uint8_t *out;             /* USE_STORE: the next block */
    const uint8_t *tile;      /* else: the next block of the tile */
    int tokens;               /* USE_FEW: of the tile */
    pfloats one[LANES_PARTS]; /* USE_ONE: the sums of a piece */
    float *sums;              /* USE_FEW: the same, [tokens][16] */
    float *acc;               /* of the pieces before, [tokens][16] */
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* Every quantized type, for a switch over constants. */
#define EACH_TYPE(DO)                                                                                                  \
    DO(KERNELS_Q8_0)                                                                                                   \
    DO(KERNELS_Q4_0)                                                                                                   \
    DO(KERNELS_Q4_1) DO(KERNELS_Q5_0) DO(KERNELS_Q5_1) DO(KERNELS_Q4_K) DO(KERNELS_Q5_K) DO(KERNELS_Q6_K)

LANES_INLINE bool has_minimum(enum kernels_type type)
{
    return type == KERNELS_Q4_1 || type == KERNELS_Q5_1 || type == KERNELS_Q4_K || type == KERNELS_Q5_K;
}

LANES_INLINE int weight_bits(enum kernels_type type)
{
    return type == KERNELS_Q8_0                                                   ? 8
           : type == KERNELS_Q6_K                                                 ? 6
           : type == KERNELS_Q5_0 || type == KERNELS_Q5_1 || type == KERNELS_Q5_K ? 5
                                                                                  : 4;
}

/* The type's offset is 1 << this, or it has none: -1. */
LANES_INLINE int offset_shift(enum kernels_type type)
{
    return has_minimum(type) ? -1 : type != KERNELS_Q8_0 ? weight_bits(type) - 1 : LANES_OFFSET_Q8 ? 7 : -1;
}

/* Blocks of 32 in a block of the file. */
LANES_INLINE int step_blocks(enum kernels_type type)
{
    return type == KERNELS_Q4_K || type == KERNELS_Q5_K || type == KERNELS_Q6_K ? 8 : 1;
}

/* Bytes of a block of a group. */
LANES_INLINE size_t step_bytes(enum kernels_type type)
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

/* ---- products ---------------------------------------------------------------------------------------------------- */

LANES_INLINE pfloats fact(const uint8_t *q, int t, int at)
{
    float x;
    memcpy(&x, q + t * KERNELS_TOKEN_BLOCK_BYTES + at, 4);
    return pfloats_set1(x);
}

LANES_INLINE void add_sum(float *acc, pfloats sum)
{
    pfloats_store(acc, pfloats_add(pfloats_load(acc), sum));
}

/* One block of 32 values of a part's rows with n tokens, whose blocks begin at q. */
LANES_INLINE void multiply(enum kernels_type type, int n, const uint8_t *q, const pbytes w[8], pfloats s,
                           pfloats second, pfloats *acc)
{
    int bits = weight_bits(type), shift = offset_shift(type);
    pbytes sum[KERNELS_TILE];
    if (type == KERNELS_Q6_K) {
        pfloats low[KERNELS_TILE];
        pbytes_dots(bits, n, q, w, 0, 4, KERNELS_TOKEN_NEG_LOW, shift, sum);
        KERNELS_UNROLL
        for (int t = 0; t < n; t++)
            low[t] = pfloats_mul(s, pfloats_from_int(sum[t]));
        pbytes_dots(bits, n, q, w, 4, 8, KERNELS_TOKEN_NEG_HIGH, shift, sum);
        KERNELS_UNROLL
        for (int t = 0; t < n; t++) {
            pfloats both = pfloats_fma(second, pfloats_from_int(sum[t]), low[t]);
            acc[t] = pfloats_fma(fact(q, t, KERNELS_TOKEN_D), both, acc[t]);
        }
        return;
    }
    pbytes_dots(bits, n, q, w, 0, 8, shift < 0 ? 0 : KERNELS_TOKEN_NEG, shift < 0 ? 0 : shift, sum);
    KERNELS_UNROLL
    for (int t = 0; t < n; t++) {
        acc[t] = pfloats_fma(pfloats_mul(s, fact(q, t, KERNELS_TOKEN_D)), pfloats_from_int(sum[t]), acc[t]);
        if (has_minimum(type))
            acc[t] = pfloats_fma(second, fact(q, t, KERNELS_TOKEN_DSUM), acc[t]);
    }
}

/* Of `lines` lines that lie PREFETCH_BYTES past `from`, the share of block i of n is asked for while that one is worked
 * on. Evenly: a burst of requests would take the buffers that the block's own loads wait for. */
LANES_INLINE void look_ahead(struct sink *k, const uint8_t *from, int i, int n, int lines)
{
    int first = i * lines / n;
    k->ahead = from + PREFETCH_BYTES + first * 64;
    k->lines = (i + 1) * lines / n - first;
}

LANES_INLINE void ask(const uint8_t *line, int n)
{
    KERNELS_UNROLL
    for (int i = 0; i < n; i++)
        _mm_prefetch((const char *)line + i * 64, _MM_HINT_T1);
}

LANES_INLINE void use(enum kernels_type type, enum use how, struct sink *k, int part, const pbytes w[8], pfloats s,
                      pfloats second)
{
    int lines = k->lines * (part + 1) / LANES_PARTS - k->lines * part / LANES_PARTS;
    const uint8_t *ahead = k->ahead + k->lines * part / LANES_PARTS * 64;
    if (how != USE_FEW)
        ask(ahead, lines);
    if (how == USE_STORE) {
        uint8_t *out = k->out + part * PART_BYTES;
        KERNELS_UNROLL
        for (int c = 0; c < 8; c++)
            pbytes_store(out + c * 64, w[c]);
        pfloats_store((float *)(void *)(out + 512), s);
        pfloats_store((float *)(void *)(out + 576), second);
    } else if (how == USE_ONE) {
        multiply(type, 1, k->tile, w, s, second, &k->one[part]);
    } else {
        for (int t = k->tokens; t < lines; t++)
            ask(ahead + t * 64, 1);
        for (int t = 0; t < k->tokens; t++) {
            if (t < lines)
                ask(ahead + t * 64, 1);
            float *to = k->sums + t * KERNELS_ROW_GROUP + part * PART_ROWS;
            pfloats acc = pfloats_load(to);
            multiply(type, 1, k->tile + t * KERNELS_TOKEN_BLOCK_BYTES, w, s, second, &acc);
            pfloats_store(to, acc);
        }
    }
}

/* To the next block of 32 values. */
LANES_INLINE void advance(enum use how, struct sink *k)
{
    if (how == USE_STORE)
        k->out += KERNELS_UNPACKED_BLOCK_BYTES;
    else
        k->tile += (how == USE_ONE ? 1 : k->tokens) * KERNELS_TOKEN_BLOCK_BYTES;
}

/* To the next piece. */
LANES_INLINE void add_piece(enum use how, struct sink *k)
{
    if (how == USE_ONE) {
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++) {
            add_sum(k->acc + part * PART_ROWS, k->one[part]);
            k->one[part] = pfloats_zero();
        }
    } else {
        for (int i = 0; i < k->tokens * KERNELS_ROW_GROUP; i += PART_ROWS) {
            add_sum(k->acc + i, pfloats_load(k->sums + i));
            pfloats_store(k->sums + i, pfloats_zero());
        }
    }
}

/* ---- unpacking in registers -------------------------------------------------------------------------------------- */

LANES_INLINE pbytes line(const uint8_t *p, int part)
{
    return pbytes_load(p + part * PART_BYTES);
}

LANES_INLINE pbytes nibbles_of(pbytes v, bool high)
{
    return pbytes_and(high ? pbytes_move(v, 4, 0) : v, 15);
}

LANES_INLINE void visit_small(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at)
{
    bool five = weight_bits(type) == 5;
    const uint8_t *rest = has_minimum(type) ? at.rest + 64 : at.rest;
    look_ahead(k, at.rest, 0, 1, (int)step_bytes(type) / 64 + 1);
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++) {
        pbytes w[8];
        if (type == KERNELS_Q8_0) {
            KERNELS_UNROLL
            for (int c = 0; c < 8; c++)
                w[c] = LANES_OFFSET_Q8 ? pbytes_xor(line(rest + c * 64, part), 0x80) : line(rest + c * 64, part);
        } else {
            const uint8_t *nibbles = five ? rest + 64 : rest;
            KERNELS_UNROLL
            for (int c = 0; c < 4; c++) {
                pbytes v = line(nibbles + c * 64, part);
                w[c] = nibbles_of(v, false);
                w[c + 4] = nibbles_of(v, true);
            }
            if (five) {
                pbytes high = line(rest, part);
                KERNELS_UNROLL
                for (int c = 0; c < 8; c++)
                    w[c] = pbytes_add_bits(w[c], pbytes_move(high, c, 4), 16);
            }
        }
        pfloats second = has_minimum(type) ? pfloats_halves(at.header + 32, part) : pfloats_zero();
        use(type, how, k, part, w, pfloats_halves(at.header, part), second);
    }
    advance(how, k);
}

LANES_INLINE __m128i bytes_of(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

LANES_INLINE __m128i bytes_and(__m128i v, int mask)
{
    return _mm_and_si128(v, _mm_set1_epi8((char)mask));
}

/* Scales (at p, with nibbles' `shift` 0) or minima (at p + 64, with 4) of the K types: six bits for each of 16 rows,
 * of sub-block j. */
LANES_INLINE __m128i six_bits(const uint8_t *p, const uint8_t *low, int shift, int j)
{
    __m128i a = bytes_of(p + j % 4 * 16);
    if (j < 4)
        return bytes_and(a, 63);
    __m128i nibble = bytes_and(_mm_srli_epi16(bytes_of(low + j % 4 * 16), shift), 15);
    return _mm_or_si128(nibble, bytes_and(_mm_srli_epi16(a, 2), 0x30));
}

LANES_INLINE void visit_k(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *p = at.rest, *scales = p + 64, *minima = p + 128, *low = p + 192;
    pfloats s[8][LANES_PARTS], m[8][LANES_PARTS];
    KERNELS_UNROLL
    for (int j = 0; j < 8; j++) {
        __m128i scale = six_bits(scales, low, 0, j), min = six_bits(minima, low, 4, j);
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++) {
            s[j][part] = pfloats_mul(pfloats_halves(p, part), pfloats_unsigned(scale, part));
            m[j][part] = pfloats_mul(pfloats_negate(pfloats_halves(p + 32, part)), pfloats_unsigned(min, part));
        }
    }
    const uint8_t *high = p + 256, *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    const int lines = (int)step_bytes(type) / 256; /* of two blocks of 32 */
    for (int i = 0; i < 4; i++) {
        KERNELS_UNROLL
        for (int j = 0; j < 2; j++) {
            look_ahead(k, at.rest + i * (lines * 64), j, 2, lines);
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                pbytes w[8];
                KERNELS_UNROLL
                for (int c = 0; c < 8; c++) {
                    w[c] = nibbles_of(line(nibbles + c * 64, part), j == 1);
                    if (type == KERNELS_Q5_K)
                        w[c] = pbytes_add_fifth(w[c], line(high + c * 64, part), 2 * i + j);
                }
                use(type, how, k, part, w, s[2 * i + j][part], m[2 * i + j][part]);
            }
            advance(how, k);
        }
        nibbles += 512;
    }
}

LANES_INLINE void visit_six(enum use how, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *scales = at.rest, *high = scales + 256, *nibbles = high + 1024;
    const int lines = (int)step_bytes(KERNELS_Q6_K) / 128 + 1; /* of four blocks of 32 */
    for (int half = 0; half < 2; half++) {
        KERNELS_UNROLL
        for (int j = 0; j < 4; j++) {
            look_ahead(k, at.rest + half * (lines * 64), j, 4, lines);
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                pbytes w[8];
                KERNELS_UNROLL
                for (int c = 0; c < 8; c++) {
                    pbytes v = line(nibbles + (j % 2 * 8 + c) * 64, part);
                    pbytes bits = pbytes_move(line(high + c * 64, part), 2 * j, 4);
                    w[c] = pbytes_add_bits(nibbles_of(v, j >= 2), bits, 0x30);
                }
                pfloats d = pfloats_halves(at.header, part);
                use(KERNELS_Q6_K, how, k, part, w, pfloats_mul(d, pfloats_signed(bytes_of(scales), part)),
                    pfloats_mul(d, pfloats_signed(bytes_of(scales + 16), part)));
            }
            advance(how, k);
            scales += 32;
        }
        high += 512;
        nibbles += 1024;
    }
}

/* kernels_packed_block() without a call in the loop. */
LANES_INLINE struct kernels_packed_block step_at(enum kernels_type type, const uint8_t *group, int blocks, int b)
{
    size_t bytes = step_bytes(type), odd = b & 1;
    const uint8_t *p = group + ((size_t)b - odd) * bytes;
    if (has_minimum(type))
        return (struct kernels_packed_block){p + odd * bytes, p + odd * bytes};
    size_t headers = b == blocks - 1 && !odd ? 32 : 64;
    return (struct kernels_packed_block){p + odd * 32, p + headers + odd * (bytes - 32)};
}

/* Blocks of 32 [first, first + count) of a group. */
LANES_INLINE void visit(enum kernels_type type, enum use how, struct sink *k, const uint8_t *group, int cols, int first,
                        int count)
{
    const int ratio = step_blocks(type), blocks = cols / KERNELS_BLOCK / ratio;
    for (int b = first / ratio; b < (first + count) / ratio; b++) {
        struct kernels_packed_block at = step_at(type, group, blocks, b);
        if (type == KERNELS_Q6_K)
            visit_six(how, k, at);
        else if (type == KERNELS_Q4_K || type == KERNELS_Q5_K)
            visit_k(type, how, k, at);
        else
            visit_small(type, how, k, at);
        if (how != USE_STORE && (b + 1) * ratio % KERNELS_PIECE_BLOCKS == 0)
            add_piece(how, k);
    }
}

static void unpack(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out)
{
    struct sink k = {.out = out};
    switch (type) {
#define UNPACK(T)                                                                                                      \
    case T:                                                                                                            \
        visit(T, USE_STORE, &k, group, cols, first, count);                                                            \
        break;
        EACH_TYPE(UNPACK)
#undef UNPACK
    default:
        break;
    }
}

/* ---- one token, and a few ---------------------------------------------------------------------------------------- */

static void one(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc)
{
    struct sink k = {.tile = tile, .acc = acc};
    memset(acc, 0, KERNELS_ROW_GROUP * sizeof *acc);
    for (int part = 0; part < LANES_PARTS; part++)
        k.one[part] = pfloats_zero();
    switch (type) {
#define ONE(T)                                                                                                         \
    case T:                                                                                                            \
        visit(T, USE_ONE, &k, group, cols, 0, cols / KERNELS_BLOCK);                                                   \
        break;
        EACH_TYPE(ONE)
#undef ONE
    default:
        break;
    }
    add_piece(USE_ONE, &k); /* the last one, or nothing */
}

static void few(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, int tokens, float *sums,
                float *acc)
{
    struct sink k = {.tile = tile, .tokens = tokens, .sums = sums, .acc = acc};
    size_t bytes = (size_t)tokens * KERNELS_ROW_GROUP * sizeof *acc;
    memset(sums, 0, bytes);
    memset(acc, 0, bytes);
    switch (type) {
#define FEW(T)                                                                                                         \
    case T:                                                                                                            \
        visit(T, USE_FEW, &k, group, cols, 0, cols / KERNELS_BLOCK);                                                   \
        break;
        EACH_TYPE(FEW)
#undef FEW
    default:
        break;
    }
    add_piece(USE_FEW, &k);
}

/* ---- many tokens ------------------------------------------------------------------------------------------------- */

/* Tokens [first, first + n) of a tile of `tokens` with one part of the rows: the sums and a block's weights stay in
 * registers. A block of activations meets `each` blocks of weights. */
LANES_INLINE void tile_part(enum kernels_type type, int each, int tokens, int first, int n, int part,
                            const uint8_t *unpacked, int count, const uint8_t *tile, float *acc)
{
    pfloats sum[LANES_TILE_TOKENS];
    acc += first * KERNELS_ROW_GROUP + part * PART_ROWS;
    unpacked += part * PART_BYTES;
    KERNELS_UNROLL
    for (int t = 0; t < n; t++)
        sum[t] = pfloats_zero();
    for (int b = 0; b < count * each; b++) {
        pfloats s = pfloats_load((const float *)(const void *)(unpacked + 512));
        pfloats second = pfloats_load((const float *)(const void *)(unpacked + 576));
        pbytes w[8];
        KERNELS_UNROLL
        for (int c = 0; c < 8; c++)
            w[c] = pbytes_load(unpacked + c * 64);
        KERNELS_UNROLL
        for (int t = 0; t < n; t += LANES_TOGETHER)
            multiply(type, n - t < LANES_TOGETHER ? n - t : LANES_TOGETHER,
                     tile + (first + t) * KERNELS_TOKEN_BLOCK_BYTES, w, s, second, sum + t);
        unpacked += KERNELS_UNPACKED_BLOCK_BYTES;
        if (each == 1 || b % 2)
            tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
    KERNELS_UNROLL
    for (int t = 0; t < n; t++)
        add_sum(acc + t * KERNELS_ROW_GROUP, sum[t]);
}

LANES_INLINE void tile_of_type(enum kernels_type type, int each, const uint8_t *unpacked, int count,
                               const uint8_t *tile, int tokens, float *acc)
{
    for (int part = 0; part < LANES_PARTS; part++) {
        if (tokens == KERNELS_TILE)
            for (int t = 0; t < KERNELS_TILE; t += LANES_TILE_TOKENS)
                tile_part(type, each, KERNELS_TILE, t, LANES_TILE_TOKENS, part, unpacked, count, tile, acc);
        else
            for (int t = 0; t < tokens; t++)
                tile_part(type, each, tokens, t, 1, part, unpacked, count, tile, acc);
    }
}

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    switch (type) {
    case KERNELS_Q8_0:
        tile_of_type(KERNELS_Q8_0, 1, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q4_0:
        tile_of_type(KERNELS_Q4_0, 1, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_0:
        tile_of_type(KERNELS_Q5_0, 1, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q6_K:
        tile_of_type(KERNELS_Q6_K, 1, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q2_K:
        tile_of_type(KERNELS_Q6_K, 2, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_1:
    case KERNELS_Q5_K: /* types that look alike once they are unpacked */
        tile_of_type(KERNELS_Q5_1, 1, unpacked, count, tile, tokens, acc);
        break;
    default:
        tile_of_type(KERNELS_Q4_1, 1, unpacked, count, tile, tokens, acc);
        break;
    }
}

/* ---- weights that are not quantized ------------------------------------------------------------------------------ */

LANES_INLINE pfloats float_weights(enum kernels_type type, const uint8_t *group, size_t k, int part)
{
    if (type == KERNELS_F32)
        return pfloats_load((const float *)(const void *)(group + k * 64 + (size_t)part * PART_BYTES));
    return type == KERNELS_F16 ? pfloats_halves(group + k * 32, part) : pfloats_bf16(group + k * 32, part);
}

LANES_INLINE void float_tokens(enum kernels_type type, int tokens, const uint8_t *group, const float *x, size_t cols,
                               float *acc)
{
    for (size_t first = 0; first < cols; first += KERNELS_FLOAT_PIECE) {
        size_t end = cols - first < KERNELS_FLOAT_PIECE ? cols : first + KERNELS_FLOAT_PIECE;
        pfloats sum[LANES_PARTS][LANES_TILE_TOKENS];
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            KERNELS_UNROLL
        for (int t = 0; t < tokens; t++)
            sum[part][t] = pfloats_zero();
        for (size_t k = first; k < end; k++) {
            pfloats w[LANES_PARTS];
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++)
                w[part] = float_weights(type, group, k, part);
            _mm_prefetch((const char *)group + k * (type == KERNELS_F32 ? 64 : 32) + PREFETCH_BYTES, _MM_HINT_T1);
            KERNELS_UNROLL
            for (int t = 0; t < tokens; t++) {
                pfloats value = pfloats_set1(x[(size_t)t * cols + k]);
                KERNELS_UNROLL
                for (int part = 0; part < LANES_PARTS; part++)
                    sum[part][t] = pfloats_fma(w[part], value, sum[part][t]);
            }
        }
        KERNELS_UNROLL
        for (int t = 0; t < tokens; t++)
            KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            add_sum(acc + t * KERNELS_ROW_GROUP + part * PART_ROWS, sum[part][t]);
    }
}

LANES_INLINE void floats_of_type(enum kernels_type type, const uint8_t *group, const float *x, size_t cols, int tokens,
                                 float *acc)
{
    memset(acc, 0, (size_t)tokens * KERNELS_ROW_GROUP * sizeof *acc);
    for (int n; tokens > 0; tokens -= n, x += (size_t)n * cols, acc += n * KERNELS_ROW_GROUP) {
        if (tokens >= LANES_TILE_TOKENS)
            float_tokens(type, n = LANES_TILE_TOKENS, group, x, cols, acc);
        else if (tokens >= 4)
            float_tokens(type, n = 4, group, x, cols, acc);
        else if (tokens >= 2)
            float_tokens(type, n = 2, group, x, cols, acc);
        else
            float_tokens(type, n = 1, group, x, cols, acc);
    }
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
    for (int b = 0; b < cols / KERNELS_BLOCK; b++, x += KERNELS_BLOCK) {
        uint8_t *q = tile + ((size_t)b * (size_t)tokens + (size_t)token) * KERNELS_TOKEN_BLOCK_BYTES;
        int32_t bits = block_largest(x), sums[2] = {0, 0};
        float largest = kernels_bits_float((uint32_t)bits), d = 0, inverse = 0;
        if (bits >= 0x7f800000) {
            d = NAN;
            memset(q, 0, KERNELS_BLOCK);
        } else {
            if (largest >= KERNELS_TINY) {
                d = largest / 127.0f;
                inverse = 127.0f / largest;
            }
            block_round(x, inverse, q, sums);
        }
        kernels_token_facts(q, d, sums[0], sums[1]);
    }
}

const struct kernels_linear_set LANES_SET = {
    .quantize = quantize,
    .one = one,
    .few = few,
    .unpack = unpack,
    .tile = tile_product,
    .floats = floats,
};

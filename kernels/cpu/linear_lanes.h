/* linear_lanes.h - products of packed weights, written once over parts of a line: a part is a register of rows x 4
 * values, a line of 16 rows one or two of them (LANES_PARTS). Included by the files of the instruction sets, each after
 * the lanes_*.h that says what a part is; LANES_SET names the table that is defined here.
 *
 * Everything goes by steps of 128 values. visit() unpacks a step's weights in registers, a sub-block of 32 values at a
 * time, and hands them to use(), which multiplies them with one token or stores them, for a few tokens to follow at
 * once or for many later. Types and what is done with weights are constants of inlined functions, so that each pair
 * becomes a loop of its own.
 *
 * The order of additions and every rounding are those of linear_portable.c.
 */
#include <immintrin.h>
#include <math.h>

#define PREFETCH_BYTES 4096 /* how far ahead of the packed weights in use */
#define PART_BYTES     (64 / LANES_PARTS)
#define PART_ROWS      (16 / LANES_PARTS)
#define PIECE_STEPS    (KERNELS_PIECE / KERNELS_STEP)

enum use { USE_STORE, USE_ONE };

/* What a step's weights go to. */
struct sink {
    const uint8_t *ahead; /* lines to ask for during this sub-block */
    int lines;
    uint8_t *out;                /* USE_STORE: the step */
    const uint8_t *token;        /* USE_ONE: the token's block of this step */
    pbytes whole[LANES_PARTS];   /* USE_ONE: the step's sums, of types with whole scales */
    pfloats scaled[LANES_PARTS]; /* likewise, of types with float scales */
    pfloats acc[LANES_PARTS];    /* USE_ONE: the piece's */
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

/* Every quantized type, for a switch over constants. */
#define EACH_TYPE(DO)                                                                                                  \
    DO(KERNELS_Q8_0)                                                                                                   \
    DO(KERNELS_Q4_0)                                                                                                   \
    DO(KERNELS_Q4_1) DO(KERNELS_Q5_0) DO(KERNELS_Q5_1) DO(KERNELS_Q4_K) DO(KERNELS_Q5_K) DO(KERNELS_Q6_K)

LANES_INLINE bool has_minimum(enum kernels_type type)
{
    return type == KERNELS_Q4_1 || type == KERNELS_Q5_1 || type == KERNELS_Q4_K || type == KERNELS_Q5_K ||
           type == KERNELS_Q2_K;
}

/* Whether values are signed bytes. (IQ4_NL and MXFP4 are multiplied as Q8_0.) */
LANES_INLINE bool is_signed(enum kernels_type type)
{
    return type == KERNELS_Q8_0 || type == KERNELS_IQ4_XS;
}

/* Whether scales are per 16 values. */
LANES_INLINE bool has_halves(enum kernels_type type)
{
    return type == KERNELS_Q6_K || type == KERNELS_Q3_K || type == KERNELS_Q2_K;
}

/* Whether scales are whole numbers. */
LANES_INLINE bool is_whole(enum kernels_type type)
{
    return type == KERNELS_Q4_K || type == KERNELS_Q5_K || type == KERNELS_IQ4_XS || has_halves(type);
}

LANES_INLINE int weight_bits(enum kernels_type type)
{
    return is_signed(type)                                                        ? 8
           : type == KERNELS_Q6_K                                                 ? 6
           : type == KERNELS_Q3_K                                                 ? 3
           : type == KERNELS_Q2_K                                                 ? 2
           : type == KERNELS_Q5_0 || type == KERNELS_Q5_1 || type == KERNELS_Q5_K ? 5
                                                                                  : 4;
}

/* The type's offset is 1 << this, or it has none: -1. */
LANES_INLINE int offset_shift(enum kernels_type type)
{
    return has_minimum(type) ? -1 : !is_signed(type) ? weight_bits(type) - 1 : LANES_OFFSET_SIGNED ? 7 : -1;
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

LANES_INLINE pfloats fact(const uint8_t *token, int at)
{
    float x;
    memcpy(&x, token + at, 4);
    return pfloats_set1(x);
}

/* Sub-block j of a step with n tokens, whose blocks begin at `token`: types with float scales. sums [n] */
LANES_INLINE void add_scaled(enum kernels_type type, int n, int j, const uint8_t *token, const pbytes w[8], pfloats s,
                             pfloats m, pfloats *sums)
{
    pbytes dots[KERNELS_TILE];
    pbytes_dots(weight_bits(type), offset_shift(type), n, token + j * KERNELS_SUB_BLOCK,
                token + KERNELS_TOKEN_NEG + j * 4, w, dots);
    KERNELS_UNROLL
    for (int t = 0; t < n; t++) {
        sums[t] = pfloats_fma(s, pfloats_from_int(dots[t]), sums[t]);
        if (has_minimum(type))
            sums[t] = pfloats_fma(m, fact(token + t * KERNELS_TOKEN_BLOCK_BYTES, KERNELS_TOKEN_SUM + j * 4), sums[t]);
    }
}

/* The same of types with whole scales; scales: of the step, as they are unpacked (KERNELS_UNPACKED_SCALE and on). */
LANES_INLINE void add_whole(enum kernels_type type, int n, int j, int part, const uint8_t *token, const pbytes w[8],
                            const uint8_t *scales, pbytes *sums)
{
    pbytes scale[2];
    bool halves = has_halves(type);
    scale[0] = pscale_load(scales + (halves ? 2 * j : j) * 32, part);
    scale[1] = halves ? pscale_load(scales + (2 * j + 1) * 32, part) : scale[0];
    pbytes_scaled_dots(weight_bits(type), halves, n, token + j * KERNELS_SUB_BLOCK, w, scale, sums);
}

/* acc + a step's sum, with one token. */
LANES_INLINE pfloats finish_scaled(const uint8_t *token, pfloats sum, pfloats acc)
{
    return pfloats_fma(fact(token, KERNELS_TOKEN_DX), sum, acc);
}

LANES_INLINE pfloats scale_floats(const uint8_t *scales, int at, int part)
{
    return pfloats_load((const float *)(const void *)(scales + at - KERNELS_UNPACKED_SCALE) + part * PART_ROWS);
}

LANES_INLINE pfloats finish_whole(enum kernels_type type, int part, const uint8_t *token, const uint8_t *scales,
                                  pbytes sum, pfloats acc)
{
    const uint8_t *low = scales + (KERNELS_UNPACKED_LOW - KERNELS_UNPACKED_SCALE);
    pfloats d = scale_floats(scales, KERNELS_UNPACKED_D, part);
    int shift = offset_shift(type), pairs = !has_minimum(type) && shift < 0 ? 0 : has_halves(type) ? 4 : 2;
    pbytes lows = pbytes_zero();
    KERNELS_UNROLL
    for (int i = 0; i < pairs; i++)
        lows = pints_add_pairs(lows, low + i * 32, part,
                               token + (has_halves(type) ? KERNELS_TOKEN_HALVES : KERNELS_TOKEN_SUMS) + i * 4);
    if (shift >= 0)
        sum = pints_sub_shifted(sum, lows, shift);
    pfloats value;
    if (has_minimum(type)) {
        pfloats minus = pfloats_negate(scale_floats(scales, KERNELS_UNPACKED_DMIN, part));
        value = pfloats_fma(d, pfloats_from_int(sum), pfloats_mul(minus, pfloats_from_int(lows)));
    } else {
        value = pfloats_mul(d, pfloats_from_int(sum));
    }
    return pfloats_fma(fact(token, KERNELS_TOKEN_DX), value, acc);
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

/* Sub-block j of the step. s and m: of types with float scales; scales: of types with whole ones. */
LANES_INLINE void use(enum kernels_type type, enum use how, struct sink *k, int part, int j, const pbytes w[8],
                      pfloats s, pfloats m, const uint8_t *scales)
{
    ask(k->ahead + k->lines * part / LANES_PARTS * 64,
        k->lines * (part + 1) / LANES_PARTS - k->lines * part / LANES_PARTS);
    if (how == USE_STORE) {
        uint8_t *out = k->out + j * 512 + part * PART_BYTES;
        KERNELS_UNROLL
        for (int c = 0; c < 8; c++)
            pbytes_store(out + c * 64, w[c]);
        if (!is_whole(type)) {
            float *floats = (float *)(void *)(k->out + KERNELS_UNPACKED_SCALE + j * 64) + part * PART_ROWS;
            pfloats_store(floats, s);
            if (has_minimum(type))
                pfloats_store(floats + (KERNELS_UNPACKED_MIN - KERNELS_UNPACKED_SCALE) / 4, m);
        }
    } else if (is_whole(type)) {
        add_whole(type, 1, j, part, k->token, w, scales, &k->whole[part]);
    } else {
        add_scaled(type, 1, j, k->token, w, s, m, &k->scaled[part]);
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

/* Sub-block j of the step. */
LANES_INLINE void visit_small(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at,
                              int j)
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
                w[c] = LANES_OFFSET_SIGNED ? pbytes_xor(line(rest + c * 64, part), 0x80) : line(rest + c * 64, part);
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
        pfloats m = has_minimum(type) ? pfloats_halves(at.header + 32, part) : pfloats_zero();
        use(type, how, k, part, j, w, pfloats_halves(at.header, part), m, NULL);
    }
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

/* Two bytes per row side by side, for all 16 rows. */
LANES_INLINE void store_pairs(uint8_t *out, __m128i a, __m128i b)
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
}

LANES_INLINE void store_halves(uint8_t *scales, int at, const uint8_t *halves)
{
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        pfloats_store((float *)(void *)(scales + at - KERNELS_UNPACKED_SCALE) + part * PART_ROWS,
                      pfloats_halves(halves, part));
}

/* Half of a block of 256 values: a step. Its scales are written to `to`, as they are unpacked. */
LANES_INLINE void visit_k(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at,
                          int half, uint8_t *to)
{
    const uint8_t *p = at.rest, *scales = p + 64, *minima = p + 128, *low = p + 192;
    store_halves(to, KERNELS_UNPACKED_D, p);
    store_halves(to, KERNELS_UNPACKED_DMIN, p + 32);
    KERNELS_UNROLL
    for (int j = 0; j < 4; j++) {
        __m128i scale = six_bits(scales, low, 0, half * 4 + j);
        store_pairs(to + j * 32, scale, scale);
    }
    KERNELS_UNROLL
    for (int j = 0; j < 4; j += 2)
        store_pairs(to + (KERNELS_UNPACKED_LOW - KERNELS_UNPACKED_SCALE) + j * 16,
                    six_bits(minima, low, 4, half * 4 + j), six_bits(minima, low, 4, half * 4 + j + 1));
    const uint8_t *high = p + 256, *nibbles = (type == KERNELS_Q5_K ? high + 512 : high) + half * 1024;
    const int lines = (int)step_bytes(type) / 256; /* of two sub-blocks */
    KERNELS_UNROLL
    for (int j = 0; j < 4; j++) {
        look_ahead(k, at.rest + (half * 2 + j / 2) * (lines * 64), j % 2, 2, lines);
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++) {
            pbytes w[8];
            KERNELS_UNROLL
            for (int c = 0; c < 8; c++) {
                w[c] = nibbles_of(line(nibbles + j / 2 * 512 + c * 64, part), j % 2 == 1);
                if (type == KERNELS_Q5_K)
                    w[c] = pbytes_add_fifth(w[c], line(high + c * 64, part), half * 4 + j);
            }
            use(type, how, k, part, j, w, pfloats_zero(), pfloats_zero(), to);
        }
    }
}

LANES_INLINE void visit_six(enum use how, struct sink *k, struct kernels_packed_block at, int half, uint8_t *to)
{
    const uint8_t *scales = at.rest + half * 128, *high = at.rest + 256 + half * 512;
    const uint8_t *nibbles = at.rest + 256 + 1024 + half * 1024;
    const int lines = (int)step_bytes(KERNELS_Q6_K) / 128 + 1; /* of a step */
    store_halves(to, KERNELS_UNPACKED_D, at.header);
    KERNELS_UNROLL
    for (int j = 0; j < 4; j++, scales += 32) {
        __m128i a = bytes_of(scales), b = bytes_of(scales + 16);
        store_pairs(to + j * 64, a, a);
        store_pairs(to + j * 64 + 32, b, b);
        store_pairs(to + (KERNELS_UNPACKED_LOW - KERNELS_UNPACKED_SCALE) + j * 32, a, b);
    }
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
            use(KERNELS_Q6_K, how, k, part, j, w, pfloats_zero(), pfloats_zero(), to);
        }
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

/* One step of a group: `subs` sub-blocks from sub-block `first` on. scales: where those of types with whole ones go. */
LANES_INLINE void visit(enum kernels_type type, enum use how, struct sink *k, const uint8_t *group, int cols, int first,
                        int subs, uint8_t *scales)
{
    if (is_whole(type)) {
        struct kernels_packed_block at = step_at(type, group, cols / 256, first / 8);
        int half = first / 4 % 2;
        if (type == KERNELS_Q6_K)
            visit_six(how, k, at, half, scales);
        else if (half)
            visit_k(type, how, k, at, 1, scales);
        else
            visit_k(type, how, k, at, 0, scales);
        return;
    }
    for (int j = 0; j < subs; j++)
        visit_small(type, how, k, step_at(type, group, cols / KERNELS_SUB_BLOCK, first + j), j);
}

LANES_INLINE int step_subs(int first, int end)
{
    return end - first < KERNELS_STEP_SUBS ? end - first : KERNELS_STEP_SUBS;
}

LANES_INLINE void unpack_type(enum kernels_type type, const uint8_t *group, int cols, int first, int count,
                              uint8_t *out)
{
    struct sink k = {.out = out};
    for (int b = first; b < first + count; b += KERNELS_STEP_SUBS) {
        visit(type, USE_STORE, &k, group, cols, b, step_subs(b, first + count), k.out + KERNELS_UNPACKED_SCALE);
        k.out += KERNELS_UNPACKED_STEP_BYTES;
    }
}

static void unpack(enum kernels_type type, const uint8_t *group, int cols, int first, int count, uint8_t *out)
{
    switch (type) {
#define UNPACK(T)                                                                                                      \
    case T:                                                                                                            \
        unpack_type(T, group, cols, first, count, out);                                                                \
        break;
        EACH_TYPE(UNPACK)
#undef UNPACK
    default:
        kernels_unpack_avx2(type, group, cols, first, count, LANES_OFFSET_SIGNED ? 0x80 : 0, out);
        break;
    }
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

LANES_INLINE void one_type(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *y)
{
    _Alignas(64) uint8_t scales[KERNELS_UNPACKED_STEP_BYTES - KERNELS_UNPACKED_SCALE];
    struct sink k = {.token = tile};
    pfloats total[LANES_PARTS];
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        total[part] = pfloats_zero();
    for (int piece = 0; piece < cols; piece += KERNELS_PIECE) {
        int end = (cols - piece < KERNELS_PIECE ? cols : piece + KERNELS_PIECE) / KERNELS_SUB_BLOCK;
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            k.acc[part] = pfloats_zero();
        for (int b = piece / KERNELS_SUB_BLOCK; b < end; b += KERNELS_STEP_SUBS) {
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                k.whole[part] = pbytes_zero();
                k.scaled[part] = pfloats_zero();
            }
            visit(type, USE_ONE, &k, group, cols, b, step_subs(b, end), scales);
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                if (is_whole(type))
                    k.acc[part] = finish_whole(type, part, k.token, scales, k.whole[part], k.acc[part]);
                else
                    k.acc[part] = finish_scaled(k.token, k.scaled[part], k.acc[part]);
            }
            k.token += KERNELS_TOKEN_BLOCK_BYTES;
        }
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            total[part] = pfloats_add(total[part], k.acc[part]);
    }
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        pfloats_store(y + part * PART_ROWS, total[part]);
}

static void one(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, float *acc)
{
    switch (type) {
#define ONE(T)                                                                                                         \
    case T:                                                                                                            \
        one_type(T, group, cols, tile, acc);                                                                           \
        break;
        EACH_TYPE(ONE)
#undef ONE
    default:
        break;
    }
}

/* ---- steps in memory --------------------------------------------------------------------------------------------- */

/* Unpacked steps of `subs` sub-blocks in all with tokens [first, first + n) of a tile of `tokens`, added to
 * acc[tokens][16]. The sums of a step and a sub-block's weights stay in registers. */
LANES_INLINE void steps_part(enum kernels_type type, int tokens, int first, int n, int part, const uint8_t *step,
                             int subs, const uint8_t *tile, float *acc)
{
    int together = LANES_TOGETHER(n, is_signed(type));
    acc += first * KERNELS_ROW_GROUP + part * PART_ROWS;
    for (; subs > 0; subs -= KERNELS_STEP_SUBS) {
        const uint8_t *token = tile + first * KERNELS_TOKEN_BLOCK_BYTES, *scales = step + KERNELS_UNPACKED_SCALE;
        pbytes whole[LANES_TILE_TOKENS];
        pfloats scaled[LANES_TILE_TOKENS];
        KERNELS_UNROLL
        for (int t = 0; t < n; t++) {
            whole[t] = pbytes_zero();
            scaled[t] = pfloats_zero();
        }
        for (int j = 0; j < (is_whole(type) ? KERNELS_STEP_SUBS : step_subs(0, subs)); j++) {
            pbytes w[8];
            KERNELS_UNROLL
            for (int c = 0; c < 8; c++)
                w[c] = pbytes_load(step + j * 512 + c * 64 + part * PART_BYTES);
            KERNELS_UNROLL
            for (int t = 0; t < n; t += together) {
                const uint8_t *from = token + t * KERNELS_TOKEN_BLOCK_BYTES;
                if (is_whole(type))
                    add_whole(type, together, j, part, from, w, scales, whole + t);
                else
                    add_scaled(type, together, j, from, w, scale_floats(scales, KERNELS_UNPACKED_SCALE + j * 64, part),
                               scale_floats(scales, KERNELS_UNPACKED_MIN + j * 64, part), scaled + t);
            }
        }
        KERNELS_UNROLL
        for (int t = 0; t < n; t++) {
            const uint8_t *from = token + t * KERNELS_TOKEN_BLOCK_BYTES;
            pfloats total = pfloats_load(acc + t * KERNELS_ROW_GROUP);
            total = is_whole(type) ? finish_whole(type, part, from, scales, whole[t], total)
                                   : finish_scaled(from, scaled[t], total);
            pfloats_store(acc + t * KERNELS_ROW_GROUP, total);
        }
        step += KERNELS_UNPACKED_STEP_BYTES;
        tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
}

/* All tokens of a tile. */
LANES_INLINE void steps_tile(enum kernels_type type, int tokens, const uint8_t *step, int subs, const uint8_t *tile,
                             float *acc)
{
    for (int part = 0; part < LANES_PARTS; part++)
        for (int t = 0, n; t < tokens; t += n) {
            if (tokens - t >= LANES_TILE_TOKENS)
                steps_part(type, tokens, t, n = LANES_TILE_TOKENS, part, step, subs, tile, acc);
            else if (tokens - t >= 4)
                steps_part(type, tokens, t, n = 4, part, step, subs, tile, acc);
            else if (tokens - t >= 2)
                steps_part(type, tokens, t, n = 2, part, step, subs, tile, acc);
            else
                steps_part(type, tokens, t, n = 1, part, step, subs, tile, acc);
        }
}

LANES_INLINE void add_piece(int tokens, const float *piece, float *acc)
{
    for (int i = 0; i < tokens * KERNELS_ROW_GROUP; i++)
        acc[i] += piece[i];
}

/* ---- a few tokens: each step as soon as it is unpacked ------------------------------------------------------------
 */

LANES_INLINE void few_type(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, int tokens,
                           float *acc)
{
    _Alignas(64) uint8_t step[KERNELS_UNPACKED_STEP_BYTES];
    _Alignas(64) float sums[KERNELS_TILE * KERNELS_ROW_GROUP];
    struct sink k = {.out = step};
    memset(acc, 0, (size_t)tokens * KERNELS_ROW_GROUP * sizeof *acc);
    for (int piece = 0; piece < cols; piece += KERNELS_PIECE) {
        int end = (cols - piece < KERNELS_PIECE ? cols : piece + KERNELS_PIECE) / KERNELS_SUB_BLOCK;
        memset(sums, 0, sizeof sums);
        for (int b = piece / KERNELS_SUB_BLOCK; b < end; b += KERNELS_STEP_SUBS) {
            visit(type, USE_STORE, &k, group, cols, b, step_subs(b, end), step + KERNELS_UNPACKED_SCALE);
            steps_tile(type, tokens, step, step_subs(b, end), tile, sums);
            tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
        }
        add_piece(tokens, sums, acc);
    }
}

static void few(enum kernels_type type, const uint8_t *group, int cols, const uint8_t *tile, int tokens, float *acc)
{
    switch (type) {
#define FEW(T)                                                                                                         \
    case T:                                                                                                            \
        few_type(T, group, cols, tile, tokens, acc);                                                                   \
        break;
        EACH_TYPE(FEW)
#undef FEW
    default:
        break;
    }
}

/* ---- many tokens: a piece at a time -------------------------------------------------------------------------------
 */

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    _Alignas(64) float sums[KERNELS_TILE * KERNELS_ROW_GROUP] = {0};
    switch (type) {
#define TILE(T)                                                                                                        \
    case T:                                                                                                            \
        steps_tile(T, tokens, unpacked, count, tile, sums);                                                            \
        break;
        EACH_TYPE(TILE)
        TILE(KERNELS_Q2_K)
        TILE(KERNELS_Q3_K)
        TILE(KERNELS_IQ4_XS)
#undef TILE
    default: /* IQ4_NL and MXFP4 look like Q8_0 once they are unpacked */
        steps_tile(KERNELS_Q8_0, tokens, unpacked, count, tile, sums);
        break;
    }
    add_piece(tokens, sums, acc);
}

/* ---- weights that are not quantized ------------------------------------------------------------------------------ */

/* Rows lie as in the file. The 32 virtual lanes of a row and a token are LANE_PARTS registers of PART_ROWS lanes, of
 * which `parts` from `part` on are taken at a time, of so many rows and tokens that all sums stay in registers. */
#define LANE_PARTS (32 / PART_ROWS)
#define FLOAT_ROWS (4 / LANES_PARTS) /* rows at a time; divides a group */

LANES_INLINE size_t float_bytes(enum kernels_type type)
{
    return type == KERNELS_F32 ? 4 : 2;
}

LANES_INLINE pfloats float_weights(enum kernels_type type, const uint8_t *p)
{
    if (type == KERNELS_F32)
        return pfloats_load((const float *)(const void *)p);
    return type == KERNELS_F16 ? pfloats_halves(p, 0) : pfloats_bf16(p, 0);
}

/* sums[row][token][part] += `count` times 32 values. Rows and tokens lie row_bytes and x_step values apart. */
LANES_INLINE void float_lanes(enum kernels_type type, int tokens, int part, int parts, const uint8_t *w,
                              size_t row_bytes, const float *x, size_t x_step, int count, bool ahead, pfloats *sums)
{
    for (int i = 0; i < count; i++) {
        KERNELS_UNROLL
        for (int p = 0; p < parts; p++) {
            size_t at = (size_t)i * 32 + (size_t)((part + p) * PART_ROWS);
            pfloats values[4];
            KERNELS_UNROLL
            for (int t = 0; t < tokens; t++)
                values[t] = pfloats_keep(pfloats_load(x + (size_t)t * x_step + at));
            KERNELS_UNROLL
            for (int r = 0; r < FLOAT_ROWS; r++) {
                pfloats weights = float_weights(type, w + (size_t)r * row_bytes + at * float_bytes(type));
                KERNELS_UNROLL
                for (int t = 0; t < tokens; t++)
                    sums[(r * tokens + t) * parts + p] =
                        pfloats_fma(weights, values[t], sums[(r * tokens + t) * parts + p]);
            }
        }
        if (ahead) {
            KERNELS_UNROLL
            for (int r = 0; r < FLOAT_ROWS; r++)
                ask(w + (size_t)r * row_bytes + (size_t)i * 32 * float_bytes(type) + PREFETCH_BYTES,
                    type == KERNELS_F32 ? 2 : 1);
        }
    }
}

/* acc[tokens][16] += a piece of n values of FLOAT_ROWS rows. */
LANES_INLINE void float_piece(enum kernels_type type, int tokens, int parts, const uint8_t *w, size_t row_bytes,
                              const float *x, size_t x_step, int n, float *acc)
{
    _Alignas(64) float lanes[FLOAT_ROWS * 4][32];
    _Alignas(64) float x_rest[4][32];
    _Alignas(64) uint8_t w_rest[FLOAT_ROWS][128];
    int whole = n / 32, rest = n % 32;
    size_t done = (size_t)whole * 32;
    if (rest) {
        memset(x_rest, 0, sizeof x_rest);
        memset(w_rest, 0, sizeof w_rest);
        for (int t = 0; t < tokens; t++)
            memcpy(x_rest[t], x + (size_t)t * x_step + done, (size_t)rest * sizeof *x);
        for (int r = 0; r < FLOAT_ROWS; r++)
            memcpy(w_rest[r], w + (size_t)r * row_bytes + done * float_bytes(type), (size_t)rest * float_bytes(type));
    }
    KERNELS_UNROLL
    for (int part = 0; part < LANE_PARTS; part += parts) {
        pfloats sums[FLOAT_ROWS * 4];
        KERNELS_UNROLL
        for (int i = 0; i < FLOAT_ROWS * tokens * parts; i++)
            sums[i] = pfloats_zero();
        float_lanes(type, tokens, part, parts, w, row_bytes, x, x_step, whole, part == 0, sums);
        if (rest)
            float_lanes(type, tokens, part, parts, w_rest[0], sizeof w_rest[0], x_rest[0], 32, 1, false, sums);
        KERNELS_UNROLL
        for (int i = 0; i < FLOAT_ROWS * tokens; i++)
            KERNELS_UNROLL
        for (int p = 0; p < parts; p++)
            pfloats_store(lanes[i] + (part + p) * PART_ROWS, sums[i * parts + p]);
    }
    for (int r = 0; r < FLOAT_ROWS; r++)
        for (int t = 0; t < tokens; t++) {
            const float *from = lanes[r * tokens + t];
            acc[t * KERNELS_ROW_GROUP + r] += v16_tree_add(v16_add(v16_load(from), v16_load(from + 16)));
        }
}

LANES_INLINE void floats_of_type(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens,
                                 float *acc)
{
    size_t row_bytes = (size_t)cols * float_bytes(type), x_step = (size_t)cols;
    memset(acc, 0, (size_t)tokens * KERNELS_ROW_GROUP * sizeof *acc);
    for (int r = 0; r < KERNELS_ROW_GROUP; r += FLOAT_ROWS)
        for (int k = 0; k < cols; k += KERNELS_PIECE) {
            const uint8_t *w = group + (size_t)r * row_bytes + (size_t)k * float_bytes(type);
            int n = cols - k < KERNELS_PIECE ? cols - k : KERNELS_PIECE;
            for (int t = 0; t < tokens;) {
                const float *from = x + (size_t)t * x_step + k;
                float *to = acc + t * KERNELS_ROW_GROUP + r;
                if (tokens - t >= 4) {
                    float_piece(type, 4, 1, w, row_bytes, from, x_step, n, to);
                    t += 4;
                } else if (tokens - t >= 2) {
                    float_piece(type, 2, 2, w, row_bytes, from, x_step, n, to);
                    t += 2;
                } else {
                    float_piece(type, 1, LANE_PARTS, w, row_bytes, from, x_step, n, to);
                    t++;
                }
            }
        }
}

static void floats(enum kernels_type type, const uint8_t *group, const float *x, int cols, int tokens, float *acc)
{
    if (type == KERNELS_F32)
        floats_of_type(KERNELS_F32, group, x, cols, tokens, acc);
    else if (type == KERNELS_F16)
        floats_of_type(KERNELS_F16, group, x, cols, tokens, acc);
    else
        floats_of_type(KERNELS_BF16, group, x, cols, tokens, acc);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    uint8_t *q = tile + token * KERNELS_TOKEN_BLOCK_BYTES;
    for (int first = 0; first < cols; first += KERNELS_STEP, x += KERNELS_STEP) {
        int n = cols - first < KERNELS_STEP ? cols - first : KERNELS_STEP;
        int32_t bits = step_largest(x, n);
        int16_t halves[2 * KERNELS_STEP_SUBS] = {0};
        float largest = kernels_bits_float((uint32_t)bits), dx = 0, inverse = 0;
        if (n < KERNELS_STEP || bits >= 0x7f800000)
            memset(q, 0, KERNELS_STEP);
        if (bits >= 0x7f800000) {
            dx = NAN;
        } else {
            if (largest >= KERNELS_TINY) {
                dx = largest / 127.0f;
                inverse = 127.0f / largest;
            }
            for (int i = 0; i < n; i += KERNELS_SUB_BLOCK)
                block_round(x + i, inverse, q + i, halves + i / 16);
        }
        kernels_token_facts(q, dx, halves);
        q += tokens * KERNELS_TOKEN_BLOCK_BYTES;
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

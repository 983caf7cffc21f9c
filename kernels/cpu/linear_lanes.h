/* linear_lanes.h - products of packed weights, written once over parts of a line: a part is a register of rows x 4
 * values, a line of 16 rows one or two of them (LANES_PARTS). Included by the files of the instruction sets, each after
 * the lanes_*.h that says what a part is; LANES_SET names the table that is defined here.
 *
 * A step is a block of the file. visit() goes over them, 32 values at a time, and use() multiplies these weights with
 * one token or with a few, or stores them for later (unpack). Weights are unpacked in registers, a chunk of 4 values
 * when its turn has come: what a product costs here is its loads, so that all parts and tokens that registers hold sums
 * for meet a chunk at once; or half a block, which tokens meet one by one (by_halves()). Types and what is done with
 * weights are constants of inlined functions, so that each pair becomes a loop of its own.
 *
 * The order of additions and every rounding are those of linear_portable.c.
 */
#include <immintrin.h>
#include <math.h>

#define PREFETCH_BYTES 7168 /* how far ahead of the packed weights in use */
#define PART_BYTES     (64 / LANES_PARTS)
#define PART_ROWS      (16 / LANES_PARTS)
#define PRODUCTS       (LANES_TILE_TOKENS * LANES_PARTS) /* sums that stay in registers: [tokens][parts] */
#define MOST_PARTS     2                                 /* that meet tokens at once: of a line, or of two groups */
#define HELD_CHUNKS    (8 / LANES_PARTS)                 /* of all parts, that registers hold unpacked */

enum use { USE_STORE, USE_ONE, USE_FEW, USE_HALVES };

/* What a step's weights go to. */
struct sink {
    const uint8_t *ahead; /* lines to ask for during this block of 32 */
    int lines;
    uint8_t *out;             /* USE_STORE: the next block */
    const uint8_t *tile;      /* else: the next block of the tile */
    int tokens;               /* USE_FEW, USE_HALVES: of the tile */
    pfloats one[LANES_PARTS]; /* USE_ONE: the sums of a piece */
    float *sums;              /* USE_FEW, USE_HALVES: the same, [tokens][16] */
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

/* Whether half of a block's weights is kept in registers while a few tokens meet it one by one. Else each chunk is
 * unpacked when its turn has come, so that there are registers for the sums of several tokens: again for the next of
 * these, which pays where it is soon done, or they are not many. */
LANES_INLINE bool by_halves(enum kernels_type type, int tokens)
{
    const int bits = weight_bits(type);
    return !LANES_WIDE && bits != 8 && (bits != 4 || tokens > LANES_TILE_TOKENS);
}

/* Tokens that meet unpacked weights at once. Q6_K has more sums under way. */
LANES_INLINE int tile_tokens(enum kernels_type type)
{
    return LANES_PARTS > 1 && type == KERNELS_Q6_K ? 2 : LANES_TILE_TOKENS;
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

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* 32 values of 16 rows: packed, as unpack() leaves them, or some of their chunks in registers. */
struct weights {
    enum { PACKED, UNPACKED, HELD } form;
    int block;           /* of the two or four whose nibbles lie in the same lines */
    const uint8_t *low;  /* nibbles, whole bytes, or the unpacked block */
    int apart;           /* UNPACKED: bytes between parts */
    const uint8_t *high; /* types of more than four bits */
    int high_bit;        /* Q5_K: which of a byte's */
    pfloats s[MOST_PARTS];
    pfloats second[MOST_PARTS];
    pbytes held[8]; /* HELD: [parts][HELD_CHUNKS] */
};

LANES_INLINE pbytes line(const uint8_t *p, int part)
{
    return pbytes_load(p + part * PART_BYTES);
}

LANES_INLINE pbytes nibbles_of(pbytes v, bool high)
{
    return pbytes_and(high ? pbytes_move(v, 4, 0) : v, 15);
}

/* A part of values 4 c to 4 c + 3. */
LANES_INLINE pbytes chunk(enum kernels_type type, const struct weights *w, int part, int c)
{
    if (w->form == HELD)
        return w->held[part * HELD_CHUNKS + c % HELD_CHUNKS];
    if (w->form == UNPACKED)
        return pbytes_load(w->low + part * w->apart + c * 64);
    switch (type) {
    case KERNELS_Q8_0:
        return LANES_OFFSET_Q8 ? pbytes_xor(line(w->low + c * 64, part), 0x80) : line(w->low + c * 64, part);
    case KERNELS_Q4_K:
        return nibbles_of(line(w->low + c * 64, part), w->block);
    case KERNELS_Q5_K:
        return pbytes_add_fifth(nibbles_of(line(w->low + c * 64, part), w->block), line(w->high + c * 64, part),
                                w->high_bit);
    case KERNELS_Q6_K:
        return pbytes_add_bits(nibbles_of(line(w->low + (w->block % 2 * 8 + c) * 64, part), w->block >= 2),
                               pbytes_move(line(w->high + c * 64, part), 2 * w->block, 4), 0x30);
    default: {
        pbytes four = nibbles_of(line(w->low + c % 4 * 64, part), c >= 4);
        return weight_bits(type) == 4 ? four : pbytes_add_bits(four, pbytes_move(line(w->high, part), c, 4), 16);
    }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* A fact of token t, whose block begins at q. */
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

/* What n tokens, whose blocks begin at q, meet of a block: its first `parts` parts. Sums are [n][parts]. */
struct meeting {
    int n, parts;
    const uint8_t *q;
    const struct weights *w;
};

/* The int32 at `at` of the block of the token that sum i is of, shifted left, in every row. */
LANES_INLINE pbytes token_ints(struct meeting m, int i, int at, int shift)
{
    return pbytes_ints(m.q + i / m.parts * KERNELS_TOKEN_BLOCK_BYTES + at, shift);
}

/* p = the products of chunks [first, end), added to what p holds if that was begun. */
LANES_INLINE void products(enum kernels_type type, struct meeting m, int first, int end, bool begun, pbytes *p)
{
    KERNELS_UNROLL
    for (int c = first; c < end; c++) {
        pbytes w[MOST_PARTS];
        KERNELS_UNROLL
        for (int part = 0; part < m.parts; part++)
            w[part] = chunk(type, m.w, part, c);
        KERNELS_UNROLL
        for (int i = 0; i < m.n * m.parts; i++)
            p[i] = pbytes_multiply(weight_bits(type), w[i % m.parts], token_ints(m, i, c * 4, 0), begun || c > first,
                                   p[i]);
    }
}

_Static_assert(!LANES_PAIRS(6) || LANES_TOGETHER(6) == 4, "a half's products and its offset are one sum of 16 bits");

/* sum = sum, if it was begun, + the token's fact at `offset`, times the type's offset, if that is not 0, + sum over
 * chunks [first, end) of w * q. */
LANES_INLINE void dots(enum kernels_type type, struct meeting m, int first, int end, int offset, bool begun,
                       pbytes *sum)
{
    const bool pairs = offset && LANES_PAIRS(weight_bits(type));
    const int most = LANES_TOGETHER(weight_bits(type)), together = most < end - first ? most : end - first;
    KERNELS_UNROLL
    for (int c = first; c < end; c += together) {
        const bool more = (offset && !pairs) || begun || c > first, begins = pairs || (LANES_WIDE && more);
        pbytes p[PRODUCTS];
        KERNELS_UNROLL
        for (int i = 0; i < m.n * m.parts; i++)
            if (begins)
                p[i] = offset && c == first ? token_ints(m, i, offset, pairs ? 0 : offset_shift(type)) : sum[i];
        products(type, m, c, c + together, begins, p);
        KERNELS_UNROLL
        for (int i = 0; i < m.n * m.parts; i++) {
            if (offset && !begins && c == first)
                sum[i] = token_ints(m, i, offset, offset_shift(type));
            sum[i] = pbytes_add_up(p[i], more, sum[i]);
        }
    }
}

/* Where a token's fact lies that a type's offset is multiplied with; 0: it has none. */
LANES_INLINE int offset_fact(enum kernels_type type)
{
    return offset_shift(type) < 0 ? 0 : KERNELS_TOKEN_NEG;
}

/* sum = the products in it, added up, and the token's fact times the type's offset. */
LANES_INLINE void add_products(enum kernels_type type, struct meeting m, pbytes *sum)
{
    const int offset = offset_fact(type);
    KERNELS_UNROLL
    for (int i = 0; i < m.n * m.parts; i++)
        sum[i] = pbytes_add_up(sum[i], offset, offset ? token_ints(m, i, offset, offset_shift(type)) : sum[i]);
}

/* A block's sum of products and what belongs to it, added to acc. */
LANES_INLINE void add_block(enum kernels_type type, struct meeting m, const pbytes *sum, pfloats *acc)
{
    KERNELS_UNROLL
    for (int i = 0; i < m.n * m.parts; i++) {
        int t = i / m.parts, part = i % m.parts;
        acc[i] =
            pfloats_fma(pfloats_mul(m.w->s[part], fact(m.q, t, KERNELS_TOKEN_D)), pfloats_from_int(sum[i]), acc[i]);
        if (has_minimum(type))
            acc[i] = pfloats_fma(m.w->second[part], fact(m.q, t, KERNELS_TOKEN_DSUM), acc[i]);
    }
}

/* Q6_K: the first half, and the second with it. */
LANES_INLINE void first_half(struct meeting m, pfloats *low)
{
    pbytes sum[PRODUCTS];
    dots(KERNELS_Q6_K, m, 0, 4, KERNELS_TOKEN_NEG_LOW, false, sum);
    KERNELS_UNROLL
    for (int i = 0; i < m.n * m.parts; i++)
        low[i] = pfloats_mul(m.w->s[i % m.parts], pfloats_from_int(sum[i]));
}

LANES_INLINE void second_half(struct meeting m, const pfloats *low, pfloats *acc)
{
    pbytes sum[PRODUCTS];
    dots(KERNELS_Q6_K, m, 4, 8, KERNELS_TOKEN_NEG_HIGH, false, sum);
    KERNELS_UNROLL
    for (int i = 0; i < m.n * m.parts; i++) {
        pfloats both = pfloats_fma(m.w->second[i % m.parts], pfloats_from_int(sum[i]), low[i]);
        acc[i] = pfloats_fma(fact(m.q, i / m.parts, KERNELS_TOKEN_D), both, acc[i]);
    }
}

LANES_INLINE void multiply(enum kernels_type type, struct meeting m, pfloats *acc)
{
    if (type == KERNELS_Q6_K) {
        pfloats low[PRODUCTS];
        first_half(m, low);
        second_half(m, low, acc);
    } else {
        pbytes sum[PRODUCTS];
        dots(type, m, 0, 8, offset_fact(type), false, sum);
        add_block(type, m, sum, acc);
    }
}

/* ---- what is done with a block ----------------------------------------------------------------------------------- */

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

/* USE_FEW: tokens [first, first + n) of the tile. */
LANES_INLINE void use_few(enum kernels_type type, struct sink *k, const struct weights *w, int first, int n)
{
    pfloats acc[PRODUCTS];
    float *sums = k->sums + first * KERNELS_ROW_GROUP;
    KERNELS_UNROLL
    for (int i = 0; i < n * LANES_PARTS; i++)
        acc[i] = pfloats_load(sums + i * PART_ROWS);
    multiply(type, (struct meeting){n, LANES_PARTS, k->tile + first * KERNELS_TOKEN_BLOCK_BYTES, w}, acc);
    KERNELS_UNROLL
    for (int i = 0; i < n * LANES_PARTS; i++)
        pfloats_store(sums + i * PART_ROWS, acc[i]);
}

/* Weights as unpack() leaves them, whose parts lie `apart` bytes from each other. */
LANES_INLINE struct weights unpacked_weights(const uint8_t *p, int parts, int apart)
{
    struct weights w = {.form = UNPACKED, .low = p, .apart = apart};
    KERNELS_UNROLL
    for (int part = 0; part < parts; part++) {
        w.s[part] = pfloats_load((const float *)(const void *)(p + 512 + part * apart));
        w.second[part] = pfloats_load((const float *)(const void *)(p + 576 + part * apart));
    }
    return w;
}

/* HELD_CHUNKS chunks of all parts, from chunk `first` on, unpacked. */
LANES_INLINE struct weights held(enum kernels_type type, const struct weights *w, int first)
{
    struct weights h = *w;
    h.form = HELD;
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        KERNELS_UNROLL
    for (int c = 0; c < HELD_CHUNKS; c++)
        h.held[part * HELD_CHUNKS + c] = chunk(type, w, part, first + c);
    return h;
}

/* What a token's first half of a block leaves for the second one: products or their sum, or, of Q6_K, floats. */
union half {
    pbytes sum[LANES_PARTS];
    pfloats low[LANES_PARTS];
};

/* Whether the first half is added up to 32 bits, or its products go on in the second. */
LANES_INLINE bool halves_added(enum kernels_type type)
{
    (void)type; /* where all types are added alike */
    return LANES_TOGETHER(weight_bits(type)) < 8;
}

LANES_INLINE void begin_block(enum kernels_type type, struct meeting m, union half *half)
{
    if (type == KERNELS_Q6_K)
        first_half(m, half->low);
    else if (halves_added(type))
        dots(type, m, 0, 4, offset_fact(type), false, half->sum);
    else
        products(type, m, 0, 4, false, half->sum);
}

LANES_INLINE void end_block(enum kernels_type type, struct meeting m, const union half *half, float *sums)
{
    pfloats acc[LANES_PARTS];
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        acc[part] = pfloats_load(sums + part * PART_ROWS);
    if (type == KERNELS_Q6_K) {
        second_half(m, half->low, acc);
    } else {
        pbytes sum[LANES_PARTS];
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++)
            sum[part] = half->sum[part];
        if (halves_added(type)) {
            dots(type, m, 4, 8, 0, true, sum);
        } else {
            products(type, m, 4, 8, true, sum);
            add_products(type, m, sum);
        }
        add_block(type, m, sum, acc);
    }
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++)
        pfloats_store(sums + part * PART_ROWS, acc[part]);
}

/* A half of the block after the other, each with a token after the other. */
LANES_INLINE void use_halves(enum kernels_type type, struct sink *k, const struct weights *w)
{
    union half half[KERNELS_TILE];
    KERNELS_UNROLL
    for (int i = 0; i < 2; i++) {
        int line = k->lines * i / 2;
        __asm__ volatile("" ::: "memory"); /* what is loaded before its turn would find no register */
        const struct weights h = held(type, w, i * 4);
        ask(k->ahead + line * 64, k->lines * (i + 1) / 2 - line);
        for (int t = 0; t < k->tokens; t++) {
            const struct meeting m = {1, LANES_PARTS, k->tile + t * KERNELS_TOKEN_BLOCK_BYTES, &h};
            if (i == 0)
                begin_block(type, m, &half[t]);
            else
                end_block(type, m, &half[t], k->sums + t * KERNELS_ROW_GROUP);
        }
    }
}

LANES_INLINE void use(enum kernels_type type, enum use how, struct sink *k, const struct weights *packed)
{
    if (how == USE_HALVES) {
        use_halves(type, k, packed);
        k->tile += k->tokens * KERNELS_TOKEN_BLOCK_BYTES;
        return;
    }
    /* Where registers are many, all of the block's loads go before the requests. */
    const struct weights w = LANES_PARTS == 1 ? held(type, packed, 0) : *packed;
    ask(k->ahead, k->lines);
    if (how == USE_STORE) {
        KERNELS_UNROLL
        for (int part = 0; part < LANES_PARTS; part++) {
            uint8_t *out = k->out + part * PART_BYTES;
            KERNELS_UNROLL
            for (int c = 0; c < 8; c++)
                pbytes_store(out + c * 64, chunk(type, &w, part, c));
            pfloats_store((float *)(void *)(out + 512), w.s[part]);
            pfloats_store((float *)(void *)(out + 576), w.second[part]);
        }
        k->out += KERNELS_UNPACKED_BLOCK_BYTES;
    } else if (how == USE_ONE) {
        multiply(type, (struct meeting){1, LANES_PARTS, k->tile, &w}, k->one);
        k->tile += KERNELS_TOKEN_BLOCK_BYTES;
    } else {
        int t = 0;
        for (; t + 4 <= k->tokens; t += 4)
            use_few(type, k, &w, t, 4);
        if (k->tokens & 2) {
            use_few(type, k, &w, t, 2);
            t += 2;
        }
        if (k->tokens & 1)
            use_few(type, k, &w, t, 1);
        k->tile += k->tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
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

LANES_INLINE void visit_small(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *rest = has_minimum(type) ? at.rest + 64 : at.rest;
    struct weights w = {.low = weight_bits(type) == 5 ? rest + 64 : rest, .high = rest};
    look_ahead(k, at.rest, 0, 1, (int)step_bytes(type) / 64 + 1);
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++) {
        w.s[part] = pfloats_halves(at.header, part);
        w.second[part] = has_minimum(type) ? pfloats_halves(at.header + 32, part) : pfloats_zero();
    }
    use(type, how, k, &w);
}

/* Scales and minima of the K types: of six bits, for each of 16 rows. */
struct fields {
    _Alignas(64) uint8_t scales[8][16];
    _Alignas(64) uint8_t minima[8][16];
};

/* p: lines of scales, minima, and the low halves of both of sub-blocks 4 to 7, whose high ones lie in the first two. */
LANES_INLINE void unpack_fields(const uint8_t *p, struct fields *f)
{
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++) {
        pbytes scales = line(p, part), minima = line(p + 64, part), low = line(p + 128, part);
        uint8_t *s = f->scales[0] + part * PART_BYTES, *m = f->minima[0] + part * PART_BYTES;
        pbytes_store(s, pbytes_and(scales, 63));
        pbytes_store(m, pbytes_and(minima, 63));
        pbytes_store(s + 64, pbytes_add_bits(nibbles_of(low, false), pbytes_move(scales, 6, 4), 0x30));
        pbytes_store(m + 64, pbytes_add_bits(nibbles_of(low, true), pbytes_move(minima, 6, 4), 0x30));
    }
}

LANES_INLINE void visit_k(enum kernels_type type, enum use how, struct sink *k, struct kernels_packed_block at)
{
    const uint8_t *p = at.rest, *high = p + 256, *nibbles = type == KERNELS_Q5_K ? high + 512 : high;
    pfloats d[LANES_PARTS], negative[LANES_PARTS]; /* of scales and minima */
    struct fields fields;
    unpack_fields(p + 64, &fields);
    KERNELS_UNROLL
    for (int part = 0; part < LANES_PARTS; part++) {
        d[part] = pfloats_halves(p, part);
        negative[part] = pfloats_negate(pfloats_halves(p + 32, part));
    }
    const int lines = (int)step_bytes(type) / 256; /* of two blocks of 32 */
    for (int i = 0; i < 4; i++) {
        KERNELS_UNROLL
        for (int j = 0; j < 2; j++) {
            struct weights w = {.block = j, .low = nibbles, .high = high, .high_bit = 2 * i + j};
            look_ahead(k, at.rest + i * (lines * 64), j, 2, lines);
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                w.s[part] = pfloats_mul(d[part], pfloats_unsigned(fields.scales[2 * i + j], part));
                w.second[part] = pfloats_mul(negative[part], pfloats_unsigned(fields.minima[2 * i + j], part));
            }
            use(type, how, k, &w);
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
            struct weights w = {.block = j, .low = nibbles, .high = high};
            look_ahead(k, at.rest + half * (lines * 64), j, 4, lines);
            KERNELS_UNROLL
            for (int part = 0; part < LANES_PARTS; part++) {
                pfloats d = pfloats_halves(at.header, part);
                w.s[part] = pfloats_mul(d, pfloats_signed(scales, part));
                w.second[part] = pfloats_mul(d, pfloats_signed(scales + 16, part));
            }
            use(KERNELS_Q6_K, how, k, &w);
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
    KERNELS_UNROLL
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
        if (by_halves(T, tokens))                                                                                      \
            visit(T, USE_HALVES, &k, group, cols, 0, cols / KERNELS_BLOCK);                                            \
        else                                                                                                           \
            visit(T, USE_FEW, &k, group, cols, 0, cols / KERNELS_BLOCK);                                               \
        break;
        EACH_TYPE(FEW)
#undef FEW
    default:
        break;
    }
    add_piece(USE_FEW, &k);
}

/* ---- many tokens ------------------------------------------------------------------------------------------------- */

/* What meets the tokens of a tile: a group, or two. */
struct side {
    int parts, apart, acc_apart; /* bytes between the parts' weights, floats between their sums */
};

/* Tokens [first, first + n) of a tile of `tokens`: the sums stay in registers, as far as there are any. A block of
 * activations meets `each` blocks of weights. */
LANES_INLINE void tile_part(enum kernels_type type, int each, struct side side, int tokens, int first, int n,
                            const uint8_t *unpacked, int count, const uint8_t *tile, float *acc)
{
    const int parts = side.parts;
    pfloats sum[PRODUCTS];
    acc += first * KERNELS_ROW_GROUP;
    tile += first * KERNELS_TOKEN_BLOCK_BYTES;
    KERNELS_UNROLL
    for (int i = 0; i < n * parts; i++)
        sum[i] = pfloats_zero();
    for (int b = 0; b < count * each; b++) {
        struct weights w = unpacked_weights(unpacked, parts, side.apart);
        multiply(type, (struct meeting){n, parts, tile, &w}, sum);
        unpacked += KERNELS_UNPACKED_BLOCK_BYTES;
        if (each == 1 || b % 2)
            tile += tokens * KERNELS_TOKEN_BLOCK_BYTES;
    }
    KERNELS_UNROLL
    for (int i = 0; i < n * parts; i++)
        add_sum(acc + i / parts * KERNELS_ROW_GROUP + i % parts * side.acc_apart, sum[i]);
}

LANES_INLINE void tile_of_type(enum kernels_type type, int each, bool two, const uint8_t *unpacked, int count,
                               const uint8_t *tile, int tokens, float *acc)
{
    const struct side side = two ? (struct side){2, KERNELS_UNPACKED_PIECE_BYTES, KERNELS_BATCH * KERNELS_ROW_GROUP}
                                 : (struct side){LANES_PARTS, PART_BYTES, PART_ROWS};
    const int most = two ? LANES_TILE_TOKENS / 2 : tile_tokens(type);
    if (tokens == KERNELS_TILE)
        for (int t = 0; t < KERNELS_TILE; t += most)
            tile_part(type, each, side, KERNELS_TILE, t, most, unpacked, count, tile, acc);
    else
        for (int t = 0; t < tokens; t++)
            tile_part(type, each, side, tokens, t, 1, unpacked, count, tile, acc);
}

/* Types that look alike once they are unpacked are one. */
LANES_INLINE void tile_products(bool two, enum kernels_type type, const uint8_t *unpacked, int count,
                                const uint8_t *tile, int tokens, float *acc)
{
    switch (type) {
    case KERNELS_Q8_0:
        tile_of_type(KERNELS_Q8_0, 1, two, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q4_0:
        tile_of_type(KERNELS_Q4_0, 1, two, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_0:
        tile_of_type(KERNELS_Q5_0, 1, two, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q6_K:
        tile_of_type(KERNELS_Q6_K, 1, two, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q2_K:
        if (!two)
            tile_of_type(KERNELS_Q6_K, 2, two, unpacked, count, tile, tokens, acc);
        break;
    case KERNELS_Q5_1:
    case KERNELS_Q5_K:
        tile_of_type(KERNELS_Q5_1, 1, two, unpacked, count, tile, tokens, acc);
        break;
    default:
        tile_of_type(KERNELS_Q4_1, 1, two, unpacked, count, tile, tokens, acc);
        break;
    }
}

static void tile_product(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                         float *acc)
{
    tile_products(false, type, unpacked, count, tile, tokens, acc);
}

#if LANES_PARTS == 1
/* A token's values are loaded once for both groups: loads are what tile_product() waits for. */
static void pair(enum kernels_type type, const uint8_t *unpacked, int count, const uint8_t *tile, int tokens,
                 float *acc)
{
    tile_products(true, type, unpacked, count, tile, tokens, acc);
}
#endif

#include "kernels/cpu/linear_floats.h"

/* ---- activations ------------------------------------------------------------------------------------------------- */

static void quantize(const float *x, int cols, int tokens, int token, uint8_t *tile)
{
    for (int b = 0; b < cols / KERNELS_BLOCK; b++, x += KERNELS_BLOCK) {
        uint8_t *q = tile + ((size_t)b * (size_t)tokens + (size_t)token) * KERNELS_TOKEN_BLOCK_BYTES;
        int32_t bits = block_largest(x), sums[4] = {0};
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
        if (LANES_PAIRS(6))
            memcpy(q + KERNELS_TOKEN_NEG_LOW, sums + 2, 8);
    }
}

const struct kernels_linear_set LANES_SET = {
    .quantize = quantize,
    .one = one,
    .few = few,
    .unpack = unpack,
    .tile = tile_product,
#if LANES_PARTS == 1
    .pair = pair,
#endif
    .floats = floats,
};

/* rows_lanes.h - the inner functions of rows_internal.h, written once over 16-lane vectors. Included by exactly two
 * files, rows_avx2.c and rows_avx512.c, each after the lanes_*.h that says what a vector is; LANES_SET names the table
 * that is defined here. Each function takes the same steps as its twin in rows_portable.c, lane by lane, so the bits
 * are equal.
 *
 * The products of attention hold a tile of queries times vectors in registers (LANES_MAX_QUERIES, LANES_VECTORS): a
 * vector of keys or values is loaded once for all queries of the tile, a query's value once for all its vectors.
 */
#include "kernels/cpu/rows_internal.h"

#include <math.h>

#define LANES 16

/* ---- functions --------------------------------------------------------------------------------------------------- */

/* exp(x) = 2^n * p, n in the low bits of t; right where x is a number from KERNELS_EXP_MIN to KERNELS_EXP_MAX. */
LANES_INLINE v16 exp_parts(v16 x, v16 *t_out)
{
    v16 t = v16_fma(x, v16_set1(KERNELS_EXP_LOG2E), v16_set1(KERNELS_EXP_SHIFT));
    v16 n = v16_sub(t, v16_set1(KERNELS_EXP_SHIFT));
    v16 r = v16_fma(n, v16_set1(-KERNELS_EXP_LN2_HI), x);
    r = v16_fma(n, v16_set1(-KERNELS_EXP_LN2_LO), r);
    v16 p = v16_set1(KERNELS_EXP_C6);
    p = v16_fma(p, r, v16_set1(KERNELS_EXP_C5));
    p = v16_fma(p, r, v16_set1(KERNELS_EXP_C4));
    p = v16_fma(p, r, v16_set1(KERNELS_EXP_C3));
    p = v16_fma(p, r, v16_set1(KERNELS_EXP_C2));
    p = v16_fma(p, r, v16_set1(1.0f));
    *t_out = t;
    return v16_fma(p, r, v16_set1(1.0f));
}

LANES_INLINE v16 exp_lanes(v16 x)
{
    v16 t, p = exp_parts(x, &t);
    v16 y = v16_select(v16_less(v16_set1(KERNELS_EXP_MAX), x), v16_set1(INFINITY), v16_add_exponent(p, t));
    y = v16_select(v16_less(x, v16_set1(KERNELS_EXP_MIN)), v16_set1(0.0f), y);
    return v16_select(v16_is_nan(x), x, y);
}

LANES_INLINE v16 tanh_lanes(v16 x)
{
    v16 sign = v16_and(x, v16_set1(-0.0f)), a = v16_xor(x, sign);
    v16 z = v16_mul(x, x);
    v16 p = v16_set1(KERNELS_TANH_C4);
    p = v16_fma(p, z, v16_set1(KERNELS_TANH_C3));
    p = v16_fma(p, z, v16_set1(KERNELS_TANH_C2));
    p = v16_fma(p, z, v16_set1(KERNELS_TANH_C1));
    p = v16_fma(p, z, v16_set1(KERNELS_TANH_C0));
    v16 small = v16_fma(v16_mul(x, z), p, x);
    v16 e = exp_lanes(v16_mul(v16_set1(2.0f), a));
    v16 big = v16_sub(v16_set1(1.0f), v16_div(v16_set1(2.0f), v16_add(e, v16_set1(1.0f))));
    return v16_select(v16_less(a, v16_set1(KERNELS_TANH_SMALL)), small, v16_or(big, sign));
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void rms_norm(const float *x, int d, const float *weight, float eps, float *y)
{
    v16 sum = v16_set1(0.0f);
    int i = 0, rest = d % LANES;
    for (; i < d - rest; i += LANES) {
        v16 a = v16_load(x + i);
        sum = v16_fma(a, a, sum);
    }
    if (rest) {
        v16 a = v16_load_first(x + i, rest);
        sum = v16_fma(a, a, sum);
    }
    float r = 1.0f / sqrtf(v16_tree_add(sum) / (float)d + eps);
    for (i = 0; i < d - rest; i += LANES)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), v16_set1(r)), v16_load(weight + i)));
    if (rest)
        v16_store_first(
            y + i, v16_mul(v16_mul(v16_load_first(x + i, rest), v16_set1(r)), v16_load_first(weight + i, rest)), rest);
}

static void rope_halves(float *x, int half, const float *table)
{
    for (int i = 0; i < half; i += LANES) {
        int n = half - i < LANES ? half - i : LANES, pairs = 2 * n;
        v16 c, s, t0, t1, a, b;
        if (n == LANES) {
            t0 = v16_load(table + 2 * i), t1 = v16_load(table + 2 * i + LANES);
            a = v16_load(x + i), b = v16_load(x + half + i);
        } else {
            t0 = v16_load_first(table + 2 * i, pairs < LANES ? pairs : LANES);
            t1 = pairs > LANES ? v16_load_first(table + 2 * i + LANES, pairs - LANES) : v16_set1(0.0f);
            a = v16_load_first(x + i, n), b = v16_load_first(x + half + i, n);
        }
        v16_split_pairs(t0, t1, &c, &s);
        v16 minus = v16_xor(v16_mul(b, s), v16_set1(-0.0f));
        v16 first = v16_fma(a, c, minus), second = v16_fma(b, c, v16_mul(a, s));
        if (n == LANES) {
            v16_store(x + i, first);
            v16_store(x + half + i, second);
        } else {
            v16_store_first(x + i, first, n);
            v16_store_first(x + half + i, second, n);
        }
    }
}

static void rope_pairs(float *x, int rot, const float *table)
{
    for (int i = 0; i < rot; i += LANES) {
        int n = rot - i < LANES ? rot - i : LANES;
        v16 t = n == LANES ? v16_load(table + i) : v16_load_first(table + i, n);
        v16 a = n == LANES ? v16_load(x + i) : v16_load_first(x + i, n);
        v16 other = v16_mul(v16_swap_pairs(a), v16_double_odd(t));
        v16 y = v16_fma_alternate(a, v16_double_even(t), other);
        if (n == LANES)
            v16_store(x + i, y);
        else
            v16_store_first(x + i, y, n);
    }
}

static void rope(float *x, int heads, int head_dim, int rot, enum kernels_rope_kind kind, const float *table)
{
    for (int h = 0; h < heads; h++, x += head_dim) {
        if (kind == KERNELS_ROPE_HALVES)
            rope_halves(x, rot / 2, table);
        else
            rope_pairs(x, rot / 2 * 2, table);
    }
}

LANES_INLINE v16 glu_lanes(enum kernels_glu_kind kind, v16 x, v16 up)
{
    v16 e;
    if (kind == KERNELS_SILU) {
        e = exp_lanes(v16_xor(x, v16_set1(-0.0f)));
    } else if (kind == KERNELS_GELU_TANH) {
        v16 cube = v16_mul(v16_set1(KERNELS_GELU_CUBE), v16_mul(x, x));
        e = exp_lanes(v16_mul(v16_set1(-KERNELS_GELU_2U), v16_fma(cube, x, x)));
    } else {
        v16 limit = v16_set1(KERNELS_SWIGLU_LIMIT), below = v16_set1(-KERNELS_SWIGLU_LIMIT);
        x = v16_select(v16_less(limit, x), limit, x); /* a NaN stays */
        up = v16_select(v16_less(limit, up), limit, v16_select(v16_less(up, below), below, up));
        up = v16_add(up, v16_set1(1.0f));
        e = exp_lanes(v16_mul(v16_set1(-KERNELS_SWIGLU_ALPHA), x));
    }
    return v16_mul(v16_div(x, v16_add(v16_set1(1.0f), e)), up);
}

LANES_INLINE void glu_kind(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v16_store(out + i, glu_lanes(kind, v16_load(gate + i), v16_load(up + i)));
    int rest = (int)(n - i);
    if (rest)
        v16_store_first(out + i, glu_lanes(kind, v16_load_first(gate + i, rest), v16_load_first(up + i, rest)), rest);
}

static void glu(enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out)
{
    if (kind == KERNELS_SILU)
        glu_kind(KERNELS_SILU, gate, up, n, out);
    else if (kind == KERNELS_GELU_TANH)
        glu_kind(KERNELS_GELU_TANH, gate, up, n, out);
    else
        glu_kind(KERNELS_SWIGLU_CLAMPED, gate, up, n, out);
}

static void add(float *x, const float *y, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v16_store(x + i, v16_add(v16_load(x + i), v16_load(y + i)));
    for (; i < n; i++)
        x[i] += y[i];
}

static void softcap(float *x, size_t n, float cap)
{
    v16 c = v16_set1(cap);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        v16_store(x + i, v16_mul(c, tanh_lanes(v16_div(v16_load(x + i), c))));
    if (i < n)
        v16_store_first(x + i, v16_mul(c, tanh_lanes(v16_div(v16_load_first(x + i, n - i), c))), n - i);
}

/* ---- KV types ---------------------------------------------------------------------------------------------------- */

static void narrow(enum kernels_kv_type type, const float *x, size_t n, uint16_t *out)
{
    size_t i = 0;
    if (type == KERNELS_KV_BF16)
        for (; i + LANES <= n; i += LANES)
            v16_narrow_bf16(out + i, v16_load(x + i));
    else
        for (; i + LANES <= n; i += LANES)
            v16_narrow_f16(out + i, v16_load(x + i));
    for (; i < n; i++)
        out[i] = kernels_narrow_one(type, x[i]);
}

static void widen(enum kernels_kv_type type, const uint16_t *x, size_t n, float *out)
{
    size_t i = 0;
    if (type == KERNELS_KV_BF16)
        for (; i + LANES <= n; i += LANES)
            v16_store(out + i, v16_widen_bf16(x + i));
    else
        for (; i + LANES <= n; i += LANES)
            v16_store(out + i, v16_widen_f16(x + i));
    for (; i < n; i++)
        out[i] = kernels_widen_one(type, x[i]);
}

static void widen_rows(enum kernels_kv_type type, const uint16_t *x, int rows, int stride, int cols, float *out)
{
    for (int r = 0; r < rows; r++, x += stride, out += cols)
        for (int i = 0; i < cols; i += LANES)
            v16_store(out + i, type == KERNELS_KV_BF16 ? v16_widen_bf16(x + i) : v16_widen_f16(x + i));
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* 16 keys or values at p + at, of a KV type or f32: constant where this is inlined. */
enum source { SOURCE_BF16 = KERNELS_KV_BF16, SOURCE_F16 = KERNELS_KV_F16, SOURCE_F32 };

LANES_INLINE v16 load_source(const void *p, size_t at, const enum source source)
{
    if (source == SOURCE_F32)
        return v16_load((const float *)p + at);
    return source == SOURCE_BF16 ? v16_widen_bf16((const uint16_t *)p + at) : v16_widen_f16((const uint16_t *)p + at);
}

/* Asks for what nv vectors of 16-bit values take from p[at] on, line by line. p may be NULL where the source is F32. */
LANES_INLINE void prefetch_lines(const uint16_t *p, size_t at, const enum source source, const int nv)
{
    if (source == SOURCE_F32)
        return;
    KERNELS_UNROLL
    for (int i = 0; i < nv; i += 2)
        _mm_prefetch((const char *)(p + at + i * LANES), _MM_HINT_T0);
}

/* nq queries, nv groups from group g on; nq, nv and source are constant where this is inlined. */
LANES_INLINE void score_tile(const float *q, int head_dim, const void *k, const uint16_t *next, int g, float *s,
                             const enum source source, const int nq, const int nv)
{
    v16 sum[8][4];
    KERNELS_UNROLL
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL
    for (int v = 0; v < nv; v++)
        sum[i][v] = v16_set1(0.0f);
    for (int d = 0; d < head_dim; d++) {
        v16 key[4];
        prefetch_lines(next, ((size_t)g * (size_t)head_dim + (size_t)d * nv) * LANES, source, nv);
        KERNELS_UNROLL
        for (int v = 0; v < nv; v++)
            key[v] = load_source(k, ((size_t)(g + v) * (size_t)head_dim + (size_t)d) * LANES, source);
        KERNELS_UNROLL
        for (int i = 0; i < nq; i++) {
            v16 x = v16_set1(q[(size_t)i * (size_t)head_dim + (size_t)d]);
            KERNELS_UNROLL
            for (int v = 0; v < nv; v++)
                sum[i][v] = v16_fma(key[v], x, sum[i][v]);
        }
    }
    KERNELS_UNROLL
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL
    for (int v = 0; v < nv; v++)
        v16_store(s + (size_t)i * KERNELS_SCORE_STRIDE + (g + v) * LANES, sum[i][v]);
}

LANES_INLINE void score_groups(const float *q, int head_dim, const void *k, const uint16_t *next, int groups, float *s,
                               const enum source source, const int nq)
{
    int g = 0;
    for (; g + LANES_VECTORS(nq) <= groups; g += LANES_VECTORS(nq))
        score_tile(q, head_dim, k, next, g, s, source, nq, LANES_VECTORS(nq));
    for (; g < groups; g++)
        score_tile(q, head_dim, k, next, g, s, source, nq, 1);
}

/* acc[nq][dims] from dimension d on: nv vectors beside each other. */
LANES_INLINE void value_tile(const float *p, const void *v, const uint16_t *next, int tokens, int dims, int d,
                             float *acc, const enum source source, const int nq, const int nv)
{
    v16 sum[8][4];
    KERNELS_UNROLL
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL
    for (int j = 0; j < nv; j++)
        sum[i][j] = v16_load(acc + (size_t)i * (size_t)dims + d + j * LANES);
    for (int t = 0; t < tokens; t++) {
        v16 value[4];
        prefetch_lines(next, (size_t)t * (size_t)dims + (size_t)d, source, nv);
        KERNELS_UNROLL
        for (int j = 0; j < nv; j++)
            value[j] = load_source(v, (size_t)t * (size_t)dims + (size_t)(d + j * LANES), source);
        KERNELS_UNROLL
        for (int i = 0; i < nq; i++) {
            v16 x = v16_set1(p[(size_t)i * KERNELS_SCORE_STRIDE + (size_t)t]);
            KERNELS_UNROLL
            for (int j = 0; j < nv; j++)
                sum[i][j] = v16_fma(x, value[j], sum[i][j]);
        }
    }
    KERNELS_UNROLL
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL
    for (int j = 0; j < nv; j++)
        v16_store(acc + (size_t)i * (size_t)dims + d + j * LANES, sum[i][j]);
}

LANES_INLINE void value_dims(const float *p, const void *v, const uint16_t *next, int tokens, int dims, float *acc,
                             const enum source source, const int nq)
{
    int d = 0;
    for (; d + LANES_VECTORS(nq) * LANES <= dims; d += LANES_VECTORS(nq) * LANES)
        value_tile(p, v, next, tokens, dims, d, acc, source, nq, LANES_VECTORS(nq));
    for (; d < dims; d += LANES)
        value_tile(p, v, next, tokens, dims, d, acc, source, nq, 1);
}

/* Calls body(n) for tiles of n queries, at most `most`, as even as they come, with n a constant; i is a tile's first
 * query. */
#define LANES_CASE(n, body)                                                                                            \
    case n:                                                                                                            \
        body(n);                                                                                                       \
        break;
#if LANES_MAX_QUERIES == 8
#define LANES_LARGE_CASES(body) LANES_CASE(7, body) LANES_CASE(8, body)
#else
#define LANES_LARGE_CASES(body)
#endif
#define LANES_TILES(nq, most, body)                                                                                    \
    for (int i = 0, tiles = ((nq) + (most)-1) / (most), n; i < (nq); i += n, tiles--) {                                \
        n = ((nq)-i + tiles - 1) / tiles;                                                                              \
        switch (n) {                                                                                                   \
            LANES_CASE(1, body)                                                                                        \
            LANES_CASE(2, body)                                                                                        \
            LANES_CASE(3, body)                                                                                        \
            LANES_CASE(4, body)                                                                                        \
            LANES_CASE(5, body)                                                                                        \
            LANES_CASE(6, body)                                                                                        \
            LANES_LARGE_CASES(body)                                                                                    \
        }                                                                                                              \
    }

LANES_INLINE void score_source(const float *q, int nq, int head_dim, const void *k, const uint16_t *next, int groups,
                               float *s, const enum source source)
{
#define LANES_BODY(n)                                                                                                  \
    score_groups(q + (size_t)i * (size_t)head_dim, head_dim, k, next, groups, s + (size_t)i * KERNELS_SCORE_STRIDE,    \
                 source, n)
    const int most = source == SOURCE_F32 ? LANES_FLOAT_QUERIES : LANES_MAX_QUERIES;
    LANES_TILES(nq, most, LANES_BODY)
#undef LANES_BODY
}

static void scores(const float *q, int nq, int head_dim, const float *k, int groups, float *s)
{
    score_source(q, nq, head_dim, k, NULL, groups, s, SOURCE_F32);
}

static void scores_kv(enum kernels_kv_type type, const float *q, int nq, int head_dim, const uint16_t *k,
                      const uint16_t *next, int groups, float *s)
{
    if (type == KERNELS_KV_BF16)
        score_source(q, nq, head_dim, k, next, groups, s, SOURCE_BF16);
    else
        score_source(q, nq, head_dim, k, next, groups, s, SOURCE_F16);
}

LANES_INLINE void value_source(const float *p, int nq, const void *v, const uint16_t *next, int tokens, int dims,
                               float *acc, const enum source source)
{
#define LANES_BODY(n)                                                                                                  \
    value_dims(p + (size_t)i * KERNELS_SCORE_STRIDE, v, next, tokens, dims, acc + (size_t)i * (size_t)dims, source, n)
    const int most = source == SOURCE_F32 ? LANES_FLOAT_QUERIES : LANES_MAX_QUERIES;
    LANES_TILES(nq, most, LANES_BODY)
#undef LANES_BODY
}

static void values(const float *p, int nq, const float *v, int tokens, int dims, float *acc)
{
    value_source(p, nq, v, NULL, tokens, dims, acc, SOURCE_F32);
}

static void values_kv(enum kernels_kv_type type, const float *p, int nq, const uint16_t *v, const uint16_t *next,
                      int tokens, int dims, float *acc)
{
    if (type == KERNELS_KV_BF16)
        value_source(p, nq, v, next, tokens, dims, acc, SOURCE_BF16);
    else
        value_source(p, nq, v, next, tokens, dims, acc, SOURCE_F16);
}

/* The columns [lo, hi) of a row: whole groups of 16 from `whole` to `end`, and what of a group stands before and behind
 * them. */
struct columns {
    int first, whole, end, hi;
    m16 head, tail; /* of the groups at first and at end */
};

LANES_INLINE struct columns columns_of(int lo, int hi)
{
    int first = lo / LANES * LANES, whole = (lo + LANES - 1) / LANES * LANES, end = hi / LANES * LANES;
    return (struct columns){first, whole, end, hi, m16_range(lo - first, hi - first), m16_range(0, hi - end)};
}

/* One group of 16 columns in softmax's first pass: x = s * scale, or with a softcap x itself is stored. Lanes outside
 * `seen` (used with `partial` only) count for nothing. */
LANES_INLINE void softmax_top(float *s, float scale, float softcap, const bool capped, const bool partial, m16 seen,
                              v16 *top, v16 *bad)
{
    v16 x = v16_mul(v16_load(s), v16_set1(scale)), checked = x;
    if (capped) {
        x = v16_mul(v16_set1(softcap), tanh_lanes(v16_div(x, v16_set1(softcap))));
        v16_store(s, x);
    }
    if (partial) {
        x = v16_select(seen, x, v16_set1(-INFINITY));
        checked = v16_select(seen, checked, v16_set1(0.0f));
    }
    *top = v16_max(x, *top);
    *bad = v16_fma(checked, v16_set1(0.0f), *bad);
}

/* A row's greatest x; *poison is 0, or NaN where an x is not finite. */
LANES_INLINE float softmax_row_top(float *s, const struct columns *c, float scale, float softcap, const bool capped,
                                   float *poison)
{
    const m16 all = m16_range(0, LANES);
    v16 top[2] = {v16_set1(-INFINITY), v16_set1(-INFINITY)}, bad[2] = {v16_set1(0.0f), v16_set1(0.0f)};
    if (c->first < c->whole)
        softmax_top(s + c->first, scale, softcap, capped, true, c->head, &top[0], &bad[0]);
    int t = c->whole;
    for (; t + 2 * LANES <= c->end; t += 2 * LANES) {
        softmax_top(s + t, scale, softcap, capped, false, all, &top[0], &bad[0]);
        softmax_top(s + t + LANES, scale, softcap, capped, false, all, &top[1], &bad[1]);
    }
    for (; t < c->end; t += LANES)
        softmax_top(s + t, scale, softcap, capped, false, all, &top[0], &bad[0]);
    if (t < c->hi)
        softmax_top(s + t, scale, softcap, capped, true, c->tail, &top[0], &bad[0]);
    *poison = v16_tree_add(v16_add(bad[0], bad[1]));
    return v16_tree_max(v16_max(top[0], top[1]));
}

/* And in the second: s = exp(s * scale - m), which is added to *sum. */
LANES_INLINE void softmax_exp(float *s, float scale, float m, const bool partial, m16 seen, v16 *sum)
{
    v16 t, x = v16_fma(v16_load(s), v16_set1(scale), v16_set1(-m)), p = exp_parts(x, &t);
    p = v16_add_exponent_where(v16_less_equal(v16_set1(KERNELS_EXP_MIN), x), p, t);
    if (partial)
        p = v16_zero_unless(seen, p);
    v16_store(s, p);
    *sum = v16_add(*sum, p);
}

LANES_INLINE float softmax_row_exp(float *s, const struct columns *c, float scale, float m)
{
    const m16 all = m16_range(0, LANES);
    v16 sum = v16_set1(0.0f);
    if (c->first < c->whole)
        softmax_exp(s + c->first, scale, m, true, c->head, &sum);
    int t = c->whole;
    for (; t < c->end; t += LANES)
        softmax_exp(s + t, scale, m, false, all, &sum);
    if (t < c->hi)
        softmax_exp(s + t, scale, m, true, c->tail, &sum);
    return v16_tree_add(sum);
}

#define SOFTMAX_ROWS 8 /* whose scores stay in the first-level cache between the passes, and whose chains overlap */

LANES_INLINE void softmax_rows(float *s, int n, int lo, int hi, float scale, float softcap, const bool capped, float *m,
                               float *l)
{
    const struct columns c = columns_of(lo, hi);
    for (int first = 0; first < n; first += SOFTMAX_ROWS) {
        int end = n - first < SOFTMAX_ROWS ? n : first + SOFTMAX_ROWS;
        for (int i = first; i < end; i++)
            m[i] = softmax_row_top(s + (size_t)i * KERNELS_SCORE_STRIDE, &c, scale, softcap, capped, &l[i]);
        for (int i = first; i < end; i++)
            l[i] += softmax_row_exp(s + (size_t)i * KERNELS_SCORE_STRIDE, &c, capped ? 1.0f : scale, m[i]);
    }
}

static void softmax(float *s, int n, int lo, int hi, float scale, float softcap, float *m, float *l)
{
    if (softcap > 0)
        softmax_rows(s, n, lo, hi, scale, softcap, true, m, l);
    else
        softmax_rows(s, n, lo, hi, scale, softcap, false, m, l);
}

static void merge(float *m, float *l, float *acc, float mb, float lb, const float *accb, int dims)
{
    bool rises = mb > *m; /* of the two factors one is exp(0) = 1 */
    v16 e = exp_lanes(v16_set1(rises ? *m - mb : mb - *m)), one = v16_set1(1.0f);
    v16 a = rises ? e : one, b = rises ? one : e;
    *m = rises ? mb : *m;
    *l = fmaf(*l, v16_first(a), lb * v16_first(b));
    for (int d = 0; d < dims; d += LANES)
        v16_store(acc + d, v16_fma(v16_load(acc + d), a, v16_mul(v16_load(accb + d), b)));
}

static void join(int n, float *m, float *l, const float *mb, const float *lb, float *a, float *b)
{
    for (int i = 0; i < n; i += LANES) {
        v16 mine = v16_load(m + i), other = v16_load(mb + i), top = v16_max(other, mine);
        v16 x = exp_lanes(v16_sub(mine, top)), y = exp_lanes(v16_sub(other, top));
        v16_store(a + i, x);
        v16_store(b + i, y);
        v16_store(m + i, top);
        v16_store(l + i, v16_fma(v16_load(l + i), x, v16_mul(v16_load(lb + i), y)));
    }
}

/* nq queries, nv vectors from column d on; a may be NULL. */
LANES_INLINE void join_tile(const float *p, const float *v, int tokens, int cols, int d, const float *a, const float *b,
                            float *acc, int stride, const int nq, const int nv)
{
    v16 sum[12][2];
    KERNELS_UNROLL_16
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL_16
    for (int j = 0; j < nv; j++)
        sum[i][j] = v16_set1(0.0f);
    for (int t = 0; t < tokens; t++) {
        v16 value[2];
        KERNELS_UNROLL_16
        for (int j = 0; j < nv; j++)
            value[j] = v16_load(v + (size_t)t * (size_t)cols + d + j * LANES);
        KERNELS_UNROLL_16
        for (int i = 0; i < nq; i++) {
            v16 x = v16_set1(p[(size_t)i * KERNELS_SCORE_STRIDE + (size_t)t]);
            KERNELS_UNROLL_16
            for (int j = 0; j < nv; j++)
                sum[i][j] = v16_fma(x, value[j], sum[i][j]);
        }
    }
    KERNELS_UNROLL_16
    for (int i = 0; i < nq; i++)
        KERNELS_UNROLL_16
    for (int j = 0; j < nv; j++) {
        float *at = acc + (size_t)i * (size_t)stride + d + j * LANES;
        if (a)
            sum[i][j] = v16_fma(v16_load(at), v16_set1(a[i]), v16_mul(sum[i][j], v16_set1(b[i])));
        v16_store(at, sum[i][j]);
    }
}

LANES_INLINE void join_cols(const float *p, const float *v, int tokens, int cols, const float *a, const float *b,
                            float *acc, int stride, const int nq)
{
    const int nv = LANES_JOIN_QUERIES > 6 ? 2 : 1;
    int d = 0;
    for (; d + nv * LANES <= cols; d += nv * LANES)
        join_tile(p, v, tokens, cols, d, a, b, acc, stride, nq, nv);
    for (; nv > 1 && d < cols; d += LANES)
        join_tile(p, v, tokens, cols, d, a, b, acc, stride, nq, 1);
}

/* Tiles are as even as they come: of more than KERNELS_FEW_QUERIES none has fewer than half of LANES_JOIN_QUERIES. */
static void values_join(const float *p, int nq, const float *v, int tokens, int cols, const float *a, const float *b,
                        float *acc, int stride)
{
#define LANES_BODY(n)                                                                                                  \
    join_cols(p + (size_t)i * KERNELS_SCORE_STRIDE, v, tokens, cols, a ? a + i : NULL, b + i,                          \
              acc + (size_t)i * (size_t)stride, stride, n)
    for (int i = 0, tiles = (nq + LANES_JOIN_QUERIES - 1) / LANES_JOIN_QUERIES, n; i < nq; i += n, tiles--) {
        n = (nq - i + tiles - 1) / tiles;
        switch (n) {
#if LANES_JOIN_QUERIES == 12
            LANES_CASE(12, LANES_BODY)
            LANES_CASE(11, LANES_BODY)
            LANES_CASE(10, LANES_BODY)
            LANES_CASE(9, LANES_BODY)
            LANES_CASE(8, LANES_BODY)
            LANES_CASE(7, LANES_BODY)
#else
            LANES_CASE(5, LANES_BODY)
            LANES_CASE(4, LANES_BODY)
            LANES_CASE(3, LANES_BODY)
#endif
            LANES_CASE(6, LANES_BODY)
        }
    }
#undef LANES_BODY
}

static void finish(const float *acc, float l, int n, float *out)
{
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        v16_store(out + i, v16_div(v16_load(acc + i), v16_set1(l)));
    for (; i < n; i++)
        out[i] = acc[i] / l;
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* The lanes behind the row's end stand below every logit. */
LANES_INLINE v16 logits_first(const float *x, size_t n, float behind)
{
    return v16_select(m16_range(0, (int)n), v16_load_first(x, (int)n), v16_set1(behind));
}

static float top(const float *x, size_t n, float *tops)
{
    v16 most = v16_set1(-INFINITY);
    m16 bad = m16_range(0, 0);
    for (size_t i = 0; i < n; tops++) {
        v16 a, b = v16_set1(-INFINITY), block = b;
        if (n - i >= KERNELS_TOP_BLOCK) {
            for (size_t end = i + KERNELS_TOP_BLOCK; i < end; i += 2 * LANES) {
                a = v16_load(x + i);
                b = v16_load(x + i + LANES);
                bad = m16_or(bad, v16_unordered(a, b));
                block = v16_max(block, v16_max(a, b));
            }
        } else {
            for (; i < n; i += LANES) {
                a = n - i >= LANES ? v16_load(x + i) : logits_first(x + i, n - i, -INFINITY);
                bad = m16_or(bad, v16_is_nan(a));
                block = v16_max(block, a);
            }
        }
        most = v16_max(most, block);
        *tops = v16_tree_max(block);
    }
    return m16_bits(bad) ? NAN : v16_tree_max(most);
}

static size_t collect(const float *x, size_t n, const float *tops, float from, int32_t *ids)
{
    size_t count = 0;
    const v16 least = v16_set1(from);
    for (size_t first = 0; first < n; first += KERNELS_TOP_BLOCK) {
        if (!(tops[first / KERNELS_TOP_BLOCK] >= from))
            continue;
        size_t end = n - first < KERNELS_TOP_BLOCK ? n : first + KERNELS_TOP_BLOCK;
        for (size_t i = first; i < end; i += LANES) {
            v16 a = end - i >= LANES ? v16_load(x + i) : v16_load_first(x + i, (int)(end - i));
            uint32_t bits = m16_bits(v16_less_equal(least, a));
            if (end - i < LANES)
                bits &= (1u << (end - i)) - 1;
            for (; bits; bits &= bits - 1)
                ids[count++] = (int32_t)(i + (size_t)__builtin_ctz(bits));
        }
    }
    return count;
}

LANES_INLINE v16 weight_lanes(v16 x, v16 max, v16 scale)
{
    v16 at = v16_mul(v16_sub(x, max), scale);
    v16 t, p = exp_parts(at, &t);
    return v16_add_exponent_where(v16_less_equal(v16_set1(KERNELS_EXP_MIN), at), p, t);
}

static uint64_t mass(const float *x, size_t n, float max, float scale)
{
    const v16 m = v16_set1(max), s = v16_set1(scale);
    v16_fixed sum = v16_fixed_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = v16_fixed_add(sum, weight_lanes(v16_load(x + i), m, s));
    if (i < n)
        sum = v16_fixed_add(sum, weight_lanes(logits_first(x + i, n - i, -INFINITY), m, s));
    return v16_fixed_total(sum);
}

const struct kernels_rows_set LANES_SET = {
    .rms_norm = rms_norm,
    .rope = rope,
    .glu = glu,
    .add = add,
    .softcap = softcap,
    .narrow = narrow,
    .widen = widen,
    .widen_rows = widen_rows,
    .scores = scores,
    .scores_kv = scores_kv,
    .softmax = softmax,
    .values = values,
    .values_kv = values_kv,
    .merge = merge,
    .join = join,
    .values_join = values_join,
    .finish = finish,
    .top = top,
    .collect = collect,
    .mass = mass,
};

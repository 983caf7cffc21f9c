/* number.c - JSON numbers within bounds, compared as text.
 *
 * A bound is its shortest decimal digits that read back as the same double. A number is written as json.dumps() and
 * JSON.stringify() do: digits with or without a fraction, or one digit other than 0, a fraction and an exponent of at
 * most three digits. Without bounds every JSON number is allowed.
 */
#include "engine/grammar/expr.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS   400
#define MAX_EXPONENT "307" /* none that overflows or becomes 0 */

/* 0.DIGITS * 10^point, without zeros at the ends; zero has no digits. */
struct decimal {
    char digits[32];
    int n, point;
};

static struct decimal decimal_of(double x)
{
    struct decimal d = {.n = 0};
    char text[40];
    if (x == 0)
        return d;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    char *e = strchr(text, 'e');
    d.point = atoi(e + 1) + 1;
    for (const char *c = text; c < e; c++)
        if (*c != '.')
            d.digits[d.n++] = *c;
    while (d.n > 0 && d.digits[d.n - 1] == '0')
        d.n--;
    return d;
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

static expr digit(struct grammar *g, unsigned first, unsigned last)
{
    return expr_bytes(g, '0' + first, '0' + last);
}

static expr digits(struct grammar *g, uint32_t min, uint32_t max)
{
    return expr_repeat(g, digit(g, 0, 9), min, max);
}

static expr write_digit(struct grammar *g, void *arg, int at, uint32_t first, uint32_t last)
{
    (void)arg;
    (void)at;
    return digit(g, first, last);
}

/* Numbers of n digits, the first not 0 (but "0"), from lo on and up to hi; NULL: no bound. */
static expr same_length(struct grammar *g, const char *lo, const char *hi, int n)
{
    uint32_t low[MAX_DIGITS], high[MAX_DIGITS], min[MAX_DIGITS], max[MAX_DIGITS];
    if (n > MAX_DIGITS)
        return expr_fail(g, -E2BIG);
    for (int i = 0; i < n; i++) {
        low[i] = lo ? (uint32_t)(lo[i] - '0') : i == 0;
        high[i] = hi ? (uint32_t)(hi[i] - '0') : 9;
        min[i] = 0;
        max[i] = 9;
    }
    return expr_digit_range(g, &(struct expr_digits){low, high, min, max, write_digit, NULL}, n);
}

/* Whole numbers without a sign, from lo to hi (both without zeros in front); hi NULL: without end. */
static expr whole_range(struct grammar *g, const char *lo, const char *hi)
{
    int n = (int)strlen(lo), end = hi ? (int)strlen(hi) : 0;
    if (hi && n == end)
        return strcmp(lo, hi) > 0 ? EXPR_NOTHING : same_length(g, lo, hi, n);
    if (hi && n > end)
        return EXPR_NOTHING;
    expr parts[3] = {same_length(g, lo, NULL, n), EXPR_NOTHING, EXPR_NOTHING};
    if (!hi || end > n + 1)
        parts[1] = expr_cat(g, digit(g, 1, 9), digits(g, (uint32_t)n, hi ? (uint32_t)end - 2 : EXPR_INFINITE));
    if (hi)
        parts[2] = same_length(g, NULL, hi, end);
    return expr_alts(g, parts, 3);
}

static expr multiples(struct grammar *g, expr whole, uint32_t of)
{
    return of > 1 ? expr_and(g, whole, expr_multiple(g, of, 0)) : whole;
}

static expr integer_within(struct grammar *g, const struct number_bounds *b)
{
    char lo[MAX_DIGITS], hi[MAX_DIGITS];
    double min = isnan(b->min) ? -INFINITY : ceil(b->min), max = isnan(b->max) ? INFINITY : floor(b->max);
    if (b->above && min == b->min)
        min = fabs(min) < 0x1p53 ? min + 1 : nextafter(min, INFINITY);
    if (b->below && max == b->max)
        max = fabs(max) < 0x1p53 ? max - 1 : nextafter(max, -INFINITY);
    if (min > max)
        return EXPR_NOTHING;
    expr above = EXPR_NOTHING, below = EXPR_NOTHING;
    if (max >= 0) {
        snprintf(lo, sizeof lo, "%.0f", min > 0 ? min : 0.0);
        snprintf(hi, sizeof hi, "%.0f", isinf(max) ? 0.0 : max);
        above = multiples(g, whole_range(g, lo, isinf(max) ? NULL : hi), b->multiple);
    }
    if (min < 0) {
        snprintf(lo, sizeof lo, "%.0f", max < 0 ? -max : 1.0);
        snprintf(hi, sizeof hi, "%.0f", isinf(min) ? 0.0 : -min);
        below = multiples(g, whole_range(g, lo, isinf(min) ? NULL : hi), b->multiple);
        below = expr_cat(g, expr_bytes(g, '-', '-'), below);
    }
    return expr_alt(g, above, below);
}

/* ---- decimals ---------------------------------------------------------------------------------------------------- */

/* Which numbers, beside a bound. */
struct side {
    bool least;  /* those above it, not below */
    bool strict; /* not itself */
};

/* Digits of a fraction that begins like f[0..i), compared with f[0..n). */
static expr fraction_from(struct grammar *g, const char *f, int n, struct side side)
{
    expr zeros = expr_repeat(g, digit(g, 0, 0), 0, EXPR_INFINITE), any = digits(g, 0, EXPR_INFINITE);
    expr e = side.strict ? EXPR_NOTHING : zeros;
    if (side.least)
        e = side.strict ? expr_cat(g, zeros, expr_cat(g, digit(g, 1, 9), any)) : any;
    for (int i = n; i-- > 0;) {
        unsigned d = (unsigned)(f[i] - '0');
        expr parts[3] = {expr_cat(g, digit(g, d, d), e), EXPR_NOTHING, EXPR_NOTHING};
        if (side.least && d < 9)
            parts[1] = expr_cat(g, digit(g, d + 1, 9), any);
        if (!side.least && d > 0)
            parts[1] = expr_cat(g, digit(g, 0, d - 1), any);
        if (!side.least && i > 0)
            parts[2] = EXPR_EMPTY; /* shorter is less */
        e = expr_alts(g, parts, 3);
    }
    return e;
}

/* What may stand behind whole digits that are equal to the bound's: nothing, or a point and a fraction. */
static expr fraction(struct grammar *g, const char *f, int n, struct side side)
{
    expr some = expr_and(g, fraction_from(g, f, n, side), digits(g, 1, EXPR_INFINITE));
    expr e = expr_cat(g, expr_bytes(g, '.', '.'), some);
    bool alone = n == 0 ? !side.strict : !side.least;
    return alone ? expr_optional(g, e) : e;
}

static expr any_fraction(struct grammar *g)
{
    return expr_optional(g, expr_cat(g, expr_bytes(g, '.', '.'), digits(g, 1, EXPR_INFINITE)));
}

/* An exponent within [min, max]; bounds beyond three digits are none. */
static expr exponent_range(struct grammar *g, int min, int max)
{
    char lo[16], hi[16];
    expr zero = expr_optional(g, digit(g, 0, 0)), parts[2] = {EXPR_NOTHING, EXPR_NOTHING};
    int limit = atoi(MAX_EXPONENT);
    min = min < -limit ? -limit : min;
    max = max > limit ? limit : max;
    if (min > max)
        return EXPR_NOTHING;
    if (max >= 0) {
        snprintf(lo, sizeof lo, "%d", min > 0 ? min : 0);
        snprintf(hi, sizeof hi, "%d", max);
        expr plus = expr_optional(g, expr_bytes(g, '+', '+'));
        parts[0] = expr_cat(g, plus, expr_cat(g, zero, whole_range(g, lo, hi)));
    }
    if (min < 0) {
        snprintf(lo, sizeof lo, "%d", max < 0 ? -max : 1);
        snprintf(hi, sizeof hi, "%d", -min);
        parts[1] = expr_cat(g, expr_bytes(g, '-', '-'), expr_cat(g, zero, whole_range(g, lo, hi)));
    }
    return expr_alts(g, parts, 2);
}

static expr with_exponent(struct grammar *g, expr mantissa, int min, int max)
{
    struct byte_set e = {{0}};
    byte_set_add(&e, 'e', 'e');
    byte_set_add(&e, 'E', 'E');
    return expr_cat(g, mantissa, expr_cat(g, expr_set(g, &e), exponent_range(g, min, max)));
}

/* Whole digits on this side of the whole part, with any fraction, or equal ones with a fraction on this side. lo, hi:
 * the least and greatest whole numbers. */
static expr compared(struct grammar *g, const char *lo, const char *hi, const char *whole, const char *f, int n,
                     struct side side)
{
    /* The whole numbers apart from the bound's own: all of one side without that one. */
    expr own = expr_text(g, whole), others;
    if (side.least)
        others = whole_range(g, whole, hi);
    else
        others = whole_range(g, lo, whole);
    others = expr_and(g, others, expr_not(g, own));
    return expr_alt(g, expr_cat(g, others, any_fraction(g)), expr_cat(g, own, fraction(g, f, n, side)));
}

/* Numbers without a sign on one side of a bound that is not negative. */
static expr unsigned_side(struct grammar *g, const struct decimal *d, struct side side)
{
    char whole[MAX_DIGITS] = "0", first[2] = "";
    int n_whole = d->point > 0 ? d->point : 0;
    expr parts[3] = {EXPR_NOTHING, EXPR_NOTHING, EXPR_NOTHING};
    if (n_whole >= MAX_DIGITS)
        return expr_fail(g, -E2BIG);
    if (n_whole > 0) {
        memset(whole, '0', (size_t)n_whole);
        whole[n_whole] = 0;
        memcpy(whole, d->digits, (size_t)(d->n < n_whole ? d->n : n_whole));
    }
    char f[MAX_DIGITS];
    int n = 0;
    for (int i = d->point; i < 0 && n < MAX_DIGITS - 32; i++)
        f[n++] = '0';
    for (int i = n_whole; i < d->n; i++)
        f[n++] = d->digits[i];
    parts[0] = compared(g, "0", NULL, whole, f, d->n > 0 ? n : 0, side);
    if (d->n == 0) { /* zero */
        if (side.least)
            parts[1] = with_exponent(g, expr_cat(g, digit(g, 1, 9), any_fraction(g)), -1000, 1000);
        return expr_alts(g, parts, 3);
    }
    first[0] = d->digits[0];
    expr mantissa = compared(g, "1", "9", first, d->digits + 1, d->n - 1, side);
    expr any = expr_cat(g, digit(g, 1, 9), any_fraction(g));
    int e = d->point - 1;
    parts[1] = with_exponent(g, mantissa, e, e);
    parts[2] = side.least ? with_exponent(g, any, e + 1, 1000) : with_exponent(g, any, -1000, e - 1);
    return expr_alts(g, parts, 3);
}

/* Numbers without a sign between two bounds; NAN: none. */
static expr unsigned_within(struct grammar *g, double min, bool above, double max, bool below)
{
    expr parts[2] = {EXPR_ANYTHING, EXPR_ANYTHING};
    struct decimal d = decimal_of(isnan(min) || min < 0 ? 0 : min);
    parts[0] = unsigned_side(g, &d, (struct side){.least = true, .strict = above && min >= 0});
    if (!isnan(max)) {
        d = decimal_of(max);
        parts[1] = unsigned_side(g, &d, (struct side){.strict = below});
    }
    return expr_ands(g, parts, 2);
}

expr number_within(struct grammar *g, const struct number_bounds *b)
{
    expr minus = expr_bytes(g, '-', '-');
    if (b->integer)
        return integer_within(g, b);
    if (isnan(b->min) && isnan(b->max)) {
        struct byte_set e = {{0}}, sign = {{0}};
        byte_set_add(&e, 'e', 'e');
        byte_set_add(&e, 'E', 'E');
        byte_set_add(&sign, '+', '+');
        byte_set_add(&sign, '-', '-');
        expr exponent = expr_cat(g, expr_optional(g, expr_set(g, &sign)), digits(g, 1, EXPR_INFINITE));
        exponent = expr_optional(g, expr_cat(g, expr_set(g, &e), exponent));
        expr whole = whole_range(g, "0", NULL);
        return expr_cat(g, expr_optional(g, minus), expr_cat(g, whole, expr_cat(g, any_fraction(g), exponent)));
    }
    expr parts[2] = {EXPR_NOTHING, EXPR_NOTHING};
    if (isnan(b->max) || b->max >= 0)
        parts[0] = unsigned_within(g, b->min, b->above, b->max, b->below);
    if (isnan(b->min) || b->min <= 0) {
        bool zero = isnan(b->max) || b->max > 0 || (b->max == 0 && !b->below);
        parts[1] = unsigned_within(g, zero ? NAN : -b->max, b->below, -b->min, b->above);
        parts[1] = expr_cat(g, minus, parts[1]);
    }
    return expr_alts(g, parts, 2);
}

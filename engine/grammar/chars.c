/* chars.c - characters as bytes: UTF-8, and the ways in which a JSON string may write them.
 *
 * Within JSON a character stands for itself; quotes, backslashes and control characters are escaped the short way where
 * there is one (\n), control characters and what is not ASCII also as \uXXXX (two of them beyond U+FFFF), in digits of
 * either case. Printable ASCII is never written as \u, and surrogates never stand alone.
 */
#include "engine/grammar/expr.h"
#include "engine/text/text.h"

#include <string.h>

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

static expr write_utf8(struct grammar *g, void *arg, int at, uint32_t first, uint32_t last)
{
    static const uint8_t LEAD[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint32_t base = at == 0 ? LEAD[*(const int *)arg] : 0x80;
    return expr_bytes(g, base + first, base + last);
}

/* Characters of `len` bytes, 2 to 4. */
static expr utf8_range(struct grammar *g, uint32_t first, uint32_t last, int len)
{
    uint32_t lo[4], hi[4], min[4] = {0}, max[4];
    for (int i = 0; i < len; i++) {
        unsigned shift = 6u * (unsigned)(len - 1 - i);
        lo[i] = first >> shift & (i ? 63 : 31);
        hi[i] = last >> shift & (i ? 63 : 31);
        max[i] = 63;
    }
    return expr_digit_range(g, &(struct expr_digits){lo, hi, min, max, write_utf8, &len}, len);
}

/* ---- \uXXXX ------------------------------------------------------------------------------------------------------ */

static expr write_hex(struct grammar *g, void *arg, int at, uint32_t first, uint32_t last)
{
    (void)arg;
    (void)at;
    struct byte_set s = {{0}};
    for (uint32_t d = first; d <= last; d++)
        if (d < 10) {
            byte_set_add(&s, '0' + d, '0' + d);
        } else {
            byte_set_add(&s, 'a' + d - 10, 'a' + d - 10);
            byte_set_add(&s, 'A' + d - 10, 'A' + d - 10);
        }
    return expr_set(g, &s);
}

/* uXXXX */
static expr hex_range(struct grammar *g, uint32_t first, uint32_t last)
{
    static const uint32_t MIN[4], MAX[4] = {15, 15, 15, 15};
    uint32_t lo[4], hi[4];
    for (int i = 0; i < 4; i++) {
        lo[i] = first >> (12 - 4 * i) & 15;
        hi[i] = last >> (12 - 4 * i) & 15;
    }
    expr digits = expr_digit_range(g, &(struct expr_digits){lo, hi, MIN, MAX, write_hex, NULL}, 4);
    return expr_cat(g, expr_bytes(g, 'u', 'u'), digits);
}

static expr write_surrogate(struct grammar *g, void *arg, int at, uint32_t first, uint32_t last)
{
    (void)arg;
    uint32_t base = at == 0 ? 0xd800 : 0xdc00;
    expr e = hex_range(g, base + first, base + last);
    return at == 0 ? e : expr_cat(g, expr_bytes(g, '\\', '\\'), e);
}

/* uXXXX\uXXXX */
static expr pair_range(struct grammar *g, uint32_t first, uint32_t last)
{
    static const uint32_t MIN[2], MAX[2] = {1023, 1023};
    uint32_t lo[2] = {(first - 0x10000) >> 10, (first - 0x10000) & 1023};
    uint32_t hi[2] = {(last - 0x10000) >> 10, (last - 0x10000) & 1023};
    return expr_digit_range(g, &(struct expr_digits){lo, hi, MIN, MAX, write_surrogate, NULL}, 2);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

struct class
{
    struct grammar *g;
    bool json;
    struct byte_set ascii, letters; /* as they are; behind a backslash */
    expr wide, hex;                 /* of several bytes; uXXXX */
};

static char short_escape(uint32_t c)
{
    switch (c) {
    case '"':
    case '\\':
    case '/':
        return (char)c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static void add_ascii(struct class *c, uint32_t first, uint32_t last)
{
    for (uint32_t b = first; b <= last; b++) {
        char letter = c->json ? short_escape(b) : 0;
        if (letter)
            byte_set_add(&c->letters, (unsigned char)letter, (unsigned char)letter);
        if (!c->json || (b >= 0x20 && b != '"' && b != '\\'))
            byte_set_add(&c->ascii, b, b);
    }
}

/* The part of [first, last] that lies within [low, high]. */
static bool within(uint32_t *first, uint32_t *last, uint32_t low, uint32_t high)
{
    *first = *first < low ? low : *first;
    *last = *last > high ? high : *last;
    return *first <= *last;
}

static void add_range(struct class *c, uint32_t first, uint32_t last)
{
    static const struct {
        uint32_t low, high;
        int len;
        bool hex;
    } PARTS[] = {{0, 0x1f, 1, true},          {0x20, 0x7e, 1, false},   {0x7f, 0x7f, 1, true},
                 {0x80, 0x7ff, 2, true},      {0x800, 0xd7ff, 3, true}, {0xe000, 0xffff, 3, true},
                 {0x10000, 0x10ffff, 4, true}};
    for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
        uint32_t f = first, l = last;
        if (!within(&f, &l, PARTS[i].low, PARTS[i].high))
            continue;
        if (PARTS[i].len == 1)
            add_ascii(c, f, l);
        else
            c->wide = expr_alt(c->g, c->wide, utf8_range(c->g, f, l, PARTS[i].len));
        if (c->json && PARTS[i].hex)
            c->hex = expr_alt(c->g, c->hex, PARTS[i].len == 4 ? pair_range(c->g, f, l) : hex_range(c->g, f, l));
    }
}

expr char_class(struct grammar *g, enum char_writing writing, const struct char_range *ranges, size_t n)
{
    struct class c = {.g = g, .json = writing == CHAR_IN_JSON};
    for (size_t i = 0; i < n; i++)
        add_range(&c, ranges[i].first, ranges[i].last);
    expr plain = expr_alt(g, expr_set(g, &c.ascii), c.wide);
    expr escaped = expr_alt(g, expr_set(g, &c.letters), c.hex);
    return expr_alt(g, plain, expr_cat(g, expr_bytes(g, '\\', '\\'), escaped));
}

uint32_t char_decode(const char *text, size_t n)
{
    static const uint8_t LEAD_BITS[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = (unsigned char)text[0] & LEAD_BITS[n];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)text[i] & 0x3f);
    return c;
}

expr char_text(struct grammar *g, enum char_writing writing, const char *text, size_t len)
{
    expr e = EXPR_EMPTY;
    while (len > 0) {
        size_t n = 1, back = 1;
        while (back < 4 && back < len && ((unsigned char)text[len - back] & 0xc0) == 0x80)
            back++;
        n = utf8_char(text + len - back, back, NULL);
        if (n != back)
            return EXPR_NOTHING; /* no text has bytes that are not UTF-8 */
        uint32_t c = char_decode(text + len - n, n);
        e = expr_cat(g, char_class(g, writing, &(struct char_range){c, c}, 1), e);
        len -= n;
    }
    return e;
}

void char_prepare(struct grammar *g)
{
    g->character = char_class(g, CHAR_IN_JSON, &(struct char_range){0, 0x10ffff}, 1);
    static const struct char_range PLAIN[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}};
    g->plain = expr_repeat(g, char_class(g, CHAR_UTF8, PLAIN, 3), 0, EXPR_INFINITE);
}

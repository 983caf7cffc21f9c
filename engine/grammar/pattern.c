/* pattern.c - regular expressions as JSON Schema writes them (ECMA-262), without what is not regular.
 *
 * Within JSON, ^ and $ are read as the quotes around the string: "^a" searched in a string is a quote and an a, and
 * what a string cannot be (a quote in its middle) is left out by what all strings have in common. For that the first
 * quote has a byte before it that no text has, so that neither anchor is taken for the other; it is taken off at the
 * end.
 */
#include "engine/grammar/expr.h"
#include "engine/text/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 64   /* in one another */
#define BEFORE     0xfe /* stands before the first quote */

struct pattern {
    struct grammar *g;
    enum char_writing writing;
    const char *text;
    size_t len, at;
    int depth;
    int anchors; /* so far */
    int dropped; /* of them, that say nothing where they stand */
    bool begun;  /* ^ holds here: one stands before, with no character in between */
    int rc;
    char *err;
    size_t err_size;
};

static expr refuse(struct pattern *p, int rc, const char *what)
{
    if (p->rc == 0) {
        p->rc = rc;
        snprintf(p->err, p->err_size, "pattern: %s at byte %zu", what, p->at);
    }
    p->at = p->len;
    return EXPR_NOTHING;
}

static bool next_is(const struct pattern *p, const char *word)
{
    size_t n = strlen(word);
    return p->len - p->at >= n && memcmp(p->text + p->at, word, n) == 0;
}

static bool take(struct pattern *p, const char *word)
{
    if (!next_is(p, word))
        return false;
    p->at += strlen(word);
    return true;
}

/* ---- sets of characters ------------------------------------------------------------------------------------------ */

#define MAX_RANGES 512

struct ranges {
    struct char_range of[MAX_RANGES];
    size_t n;
};

static void add(struct pattern *p, struct ranges *r, uint32_t first, uint32_t last)
{
    if (r->n == MAX_RANGES)
        refuse(p, -E2BIG, "a class of too many ranges");
    else
        r->of[r->n++] = (struct char_range){first, last};
}

static int by_first(const void *a, const void *b)
{
    uint32_t x = ((const struct char_range *)a)->first, y = ((const struct char_range *)b)->first;
    return (x > y) - (x < y);
}

/* Ascending and apart. */
static void tidy(struct ranges *r)
{
    size_t kept = 0;
    qsort(r->of, r->n, sizeof r->of[0], by_first);
    for (size_t i = 0; i < r->n; i++) {
        if (kept > 0 && r->of[i].first <= r->of[kept - 1].last + 1) {
            if (r->of[i].last > r->of[kept - 1].last)
                r->of[kept - 1].last = r->of[i].last;
        } else {
            r->of[kept++] = r->of[i];
        }
    }
    r->n = kept;
}

static void complement(struct pattern *p, struct ranges *r)
{
    struct ranges out = {.n = 0};
    uint32_t from = 0;
    tidy(r);
    for (size_t i = 0; i < r->n; i++) {
        if (r->of[i].first > from)
            add(p, &out, from, r->of[i].first - 1);
        from = r->of[i].last + 1;
    }
    if (from <= 0x10ffff)
        add(p, &out, from, 0x10ffff);
    *r = out;
}

static void add_named(struct pattern *p, struct ranges *r, char name)
{
    struct ranges s = {.n = 0};
    switch (name | 0x20) {
    case 'd':
        add(p, &s, '0', '9');
        break;
    case 'w':
        add(p, &s, '0', '9');
        add(p, &s, 'A', 'Z');
        add(p, &s, '_', '_');
        add(p, &s, 'a', 'z');
        break;
    default: /* WhiteSpace and LineTerminator of ECMA-262 */
        add(p, &s, '\t', '\r');
        add(p, &s, ' ', ' ');
        add(p, &s, 0xa0, 0xa0);
        add(p, &s, 0x1680, 0x1680);
        add(p, &s, 0x2000, 0x200a);
        add(p, &s, 0x2028, 0x2029);
        add(p, &s, 0x202f, 0x202f);
        add(p, &s, 0x205f, 0x205f);
        add(p, &s, 0x3000, 0x3000);
        add(p, &s, 0xfeff, 0xfeff);
    }
    if (name < 'a')
        complement(p, &s);
    for (size_t i = 0; i < s.n; i++)
        add(p, r, s.of[i].first, s.of[i].last);
}

static uint32_t take_char(struct pattern *p)
{
    size_t n = utf8_char(p->text + p->at, p->len - p->at, NULL);
    if (n == 0) {
        refuse(p, -EINVAL, "bytes that are not UTF-8");
        return 0;
    }
    uint32_t c = char_decode(p->text + p->at, n);
    p->at += n;
    return c;
}

static bool take_hex(struct pattern *p, int digits, uint32_t *out)
{
    uint32_t v = 0;
    if (p->len - p->at < (size_t)digits)
        return false;
    for (int i = 0; i < digits; i++) {
        char c = p->text[p->at + (size_t)i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            return false;
        v = v << 4 | (uint32_t)d;
    }
    p->at += (size_t)digits;
    *out = v;
    return true;
}

static uint32_t take_unicode(struct pattern *p)
{
    uint32_t c = 0, low;
    if (take(p, "{")) {
        for (int digits = 0; !take(p, "}"); digits++) {
            uint32_t d;
            if (digits == 6 || !take_hex(p, 1, &d)) {
                refuse(p, -EINVAL, "\\u{...} without hexadecimal digits");
                return 0;
            }
            c = c << 4 | d;
        }
    } else if (!take_hex(p, 4, &c)) {
        refuse(p, -EINVAL, "\\u without four hexadecimal digits");
    } else if (c >= 0xd800 && c < 0xdc00 && next_is(p, "\\u")) {
        size_t at = p->at;
        p->at += 2;
        if (take_hex(p, 4, &low) && low >= 0xdc00 && low < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        else
            p->at = at;
    }
    if (c > 0x10ffff)
        refuse(p, -EINVAL, "a character beyond U+10FFFF");
    return c;
}

/* Behind a backslash: a named set (true), or one character. */
static bool take_escape(struct pattern *p, struct ranges *r, uint32_t *c)
{
    if (p->at == p->len) {
        refuse(p, -EINVAL, "a backslash with nothing behind it");
        return false;
    }
    char name = p->text[p->at];
    if (strchr("dDwWsS", name)) {
        p->at++;
        add_named(p, r, name);
        return true;
    }
    static const char LETTERS[] = "nrtfv0", MEANT[] = "\n\r\t\f\v";
    const char *letter = strchr(LETTERS, name);
    if (letter && name) {
        p->at++;
        *c = (unsigned char)MEANT[letter - LETTERS];
        return false;
    }
    if (name == 'x' || name == 'u') {
        p->at++;
        if (name == 'u')
            *c = take_unicode(p);
        else if (!take_hex(p, 2, c))
            refuse(p, -EINVAL, "\\x without two hexadecimal digits");
        return false;
    }
    if (name == 'c' && p->len - p->at >= 2 && (p->text[p->at + 1] | 0x20) >= 'a' &&
        (p->text[p->at + 1] | 0x20) <= 'z') {
        *c = p->text[p->at + 1] & 31;
        p->at += 2;
        return false;
    }
    if (name == 'p' || name == 'P')
        refuse(p, -ENOTSUP, "\\p (Unicode properties) is not supported,");
    else if (name == 'b' || name == 'B')
        refuse(p, -ENOTSUP, "\\b (word boundaries) is not supported,");
    else if (name == 'k' || (name >= '1' && name <= '9'))
        refuse(p, -ENOTSUP, "a reference to a group is not supported,");
    else if ((name >= 'a' && name <= 'z') || (name >= 'A' && name <= 'Z'))
        refuse(p, -EINVAL, "an unknown escape");
    else
        *c = take_char(p);
    return false;
}

static expr take_class(struct pattern *p)
{
    struct ranges r = {.n = 0};
    bool negated = take(p, "^");
    while (p->at < p->len && p->text[p->at] != ']') {
        uint32_t first = 0, last;
        if (take(p, "\\")) {
            if (next_is(p, "b")) {
                p->at++;
                first = '\b';
            } else if (take_escape(p, &r, &first)) {
                continue;
            }
        } else {
            first = take_char(p);
        }
        last = first;
        if (p->len - p->at >= 2 && p->text[p->at] == '-' && p->text[p->at + 1] != ']') {
            size_t at = p->at++;
            struct ranges named = {.n = 0};
            if (!take(p, "\\"))
                last = take_char(p);
            else if (next_is(p, "b"))
                p->at++, last = '\b';
            else if (take_escape(p, &named, &last))
                p->at = at + 1, add(p, &r, '-', '-'); /* [a-\d]: both as they are */
        }
        if (last < first)
            return refuse(p, -EINVAL, "a range that ends before it begins");
        add(p, &r, first, last);
    }
    if (!take(p, "]"))
        return refuse(p, -EINVAL, "a class without its ]");
    tidy(&r);
    if (negated)
        complement(p, &r);
    return char_class(p->g, p->writing, r.of, r.n);
}

/* ---- structure --------------------------------------------------------------------------------------------------- */

static expr take_alternatives(struct pattern *p);

static expr take_group(struct pattern *p)
{
    if (take(p, "?=") || take(p, "?!") || take(p, "?<=") || take(p, "?<!"))
        return refuse(p, -ENOTSUP, "look-around is not supported,");
    if (take(p, "?P<") || take(p, "?<")) {
        while (p->at < p->len && p->text[p->at] != '>')
            p->at++;
        if (!take(p, ">"))
            return refuse(p, -EINVAL, "a group's name without its >");
    } else if (!take(p, "?:") && next_is(p, "?")) {
        return refuse(p, -ENOTSUP, "(? with what stands there is not supported,");
    }
    if (++p->depth > MAX_GROUPS)
        return refuse(p, -E2BIG, "groups too deep in one another");
    expr e = take_alternatives(p);
    p->depth--;
    if (p->rc == 0 && !p->g->failed && !take(p, ")"))
        return refuse(p, -EINVAL, "a group without its )");
    return e;
}

static bool is_anchor(const struct pattern *p, char *which)
{
    *which = 0;
    if (next_is(p, "^") || next_is(p, "\\A"))
        *which = '^';
    else if (next_is(p, "$") || next_is(p, "\\Z") || next_is(p, "\\z"))
        *which = '$';
    return *which != 0;
}

static expr take_atom(struct pattern *p)
{
    static const struct char_range DOT[] = {
        {0, '\n' - 1}, {'\n' + 1, '\r' - 1}, {'\r' + 1, 0x2027}, {0x202a, 0x10ffff}};
    if (take(p, "("))
        return take_group(p);
    if (take(p, "["))
        return take_class(p);
    if (take(p, "."))
        return char_class(p->g, p->writing, DOT, 4);
    if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
        return refuse(p, -EINVAL, "a repetition of nothing");
    struct ranges r = {.n = 0};
    uint32_t c = 0;
    if (take(p, "\\")) {
        if (take_escape(p, &r, &c)) {
            tidy(&r);
            return char_class(p->g, p->writing, r.of, r.n);
        }
    } else {
        c = take_char(p);
    }
    return char_class(p->g, p->writing, &(struct char_range){c, c}, 1);
}

/* {n}, {n,}, {n,m}; false: it is text. */
static bool take_counts(struct pattern *p, uint32_t *min, uint32_t *max)
{
    size_t at = p->at + 1, digits = 0;
    uint64_t n[2] = {0, EXPR_INFINITE};
    int which = 0;
    for (; at < p->len && p->text[at] != '}'; at++) {
        char c = p->text[at];
        if (c == ',' && which == 0 && digits > 0) {
            which = 1;
            digits = 0;
        } else if (c >= '0' && c <= '9') {
            if (digits++ == 0)
                n[which] = 0;
            n[which] = n[which] * 10 + (uint64_t)(c - '0');
            if (n[which] > GRAMMAR_MAX_COUNT)
                n[which] = GRAMMAR_MAX_COUNT + 1;
        } else {
            return false;
        }
    }
    if (at >= p->len || (which == 0 && digits == 0))
        return false;
    if (which == 0)
        n[1] = n[0];
    if (n[0] > GRAMMAR_MAX_COUNT || (n[1] > GRAMMAR_MAX_COUNT && n[1] != EXPR_INFINITE))
        refuse(p, -E2BIG, "a repetition of more than 65536");
    else if (n[1] < n[0])
        refuse(p, -EINVAL, "a repetition whose end is before its beginning");
    else
        p->at = at + 1;
    *min = (uint32_t)n[0];
    *max = (uint32_t)n[1];
    return true;
}

/* Whether, where an alternative ends here, its groups end, too, and $ comes behind them. */
static bool ends_before_anchor(const struct pattern *p)
{
    for (size_t at = p->at; at < p->len; at++) {
        int depth = 0;
        bool class = false;
        if (p->text[at] == '|') /* to the end of the group */
            for (; at < p->len && (class || depth > 0 || p->text[at] != ')'); at++) {
                char c = p->text[at];
                if (c == '\\')
                    at++;
                else if (class || c == '[')
                    class = c != ']';
                else if (c == '(' || c == ')')
                    depth += c == '(' ? 1 : -1;
            }
        if (at + 1 >= p->len || p->text[at] != ')')
            return false;
        while (at + 1 < p->len && strchr("?*+", p->text[at + 1]))
            at++;
        if (at + 1 < p->len && p->text[at + 1] == '$')
            return true;
    }
    return false;
}

static expr take_repeated(struct pattern *p)
{
    char which;
    int dropped = p->dropped;
    if (is_anchor(p, &which)) {
        p->at += p->text[p->at] == '\\' ? 2 : 1;
        for (char again; is_anchor(p, &again) && again == which;)
            p->at += p->text[p->at] == '\\' ? 2 : 1;
        p->anchors++;
        if (p->at < p->len && strchr("*+?{", p->text[p->at]))
            return refuse(p, -ENOTSUP, "a repeated anchor is not supported,");
        if (p->writing != CHAR_IN_JSON)
            return p->depth == 0 ? EXPR_EMPTY : refuse(p, -ENOTSUP, "an anchor in a group is not supported,");
        /* Where the same holds already it says nothing. */
        bool known = which == '^' ? p->begun : ends_before_anchor(p);
        p->begun |= which == '^';
        p->dropped += known;
        if (known)
            return EXPR_EMPTY;
        expr quote = expr_bytes(p->g, '"', '"');
        return which == '^' ? expr_cat(p->g, expr_bytes(p->g, BEFORE, BEFORE), quote) : quote;
    }
    expr e = take_atom(p);
    p->begun = false;
    while (p->at < p->len && p->rc == 0) {
        uint32_t min, max;
        if (take(p, "*"))
            min = 0, max = EXPR_INFINITE;
        else if (take(p, "+"))
            min = 1, max = EXPR_INFINITE;
        else if (take(p, "?"))
            min = 0, max = 1;
        else if (!next_is(p, "{") || !take_counts(p, &min, &max))
            break;
        take(p, "?"); /* lazy: the same texts */
        if (p->dropped > dropped && max > 1)
            return refuse(p, -ENOTSUP, "a repeated anchor is not supported,");
        if (p->rc == 0)
            e = expr_repeat(p->g, e, min, max);
        if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
            return refuse(p, -EINVAL, "a repetition of a repetition");
    }
    return e;
}

static expr take_sequence(struct pattern *p)
{
    size_t n = 0, room = 0;
    expr *parts = NULL, e = EXPR_EMPTY;
    while (p->at < p->len && !next_is(p, "|") && !next_is(p, ")") && !p->g->failed) {
        if (n == room) {
            expr *more = realloc(parts, (room * 2 + 16) * sizeof *more);
            if (!more) {
                expr_fail(p->g, -ENOMEM);
                break;
            }
            parts = more;
            room = room * 2 + 16;
        }
        parts[n++] = take_repeated(p);
    }
    while (n > 0)
        e = expr_cat(p->g, parts[--n], e);
    free(parts);
    return e;
}

static expr take_alternatives(struct pattern *p)
{
    bool begun = p->begun;
    expr e = take_sequence(p);
    while (p->rc == 0 && !p->g->failed && take(p, "|")) {
        p->begun = begun;
        e = expr_alt(p->g, e, take_sequence(p));
    }
    return e;
}

/* Whether the closing anchor is the pattern's own, not an escaped dollar. */
static bool ends_in_anchor(const struct pattern *p)
{
    size_t backslashes = 0;
    if (p->len == 0 || p->text[p->len - 1] != '$')
        return false;
    while (backslashes + 1 < p->len && p->text[p->len - 2 - backslashes] == '\\')
        backslashes++;
    return backslashes % 2 == 0;
}

/* Whether | stands outside of every group, so that an anchor at the end belongs to one alternative only. */
static bool has_alternatives(const struct pattern *p)
{
    int depth = 0;
    bool class = false;
    for (size_t i = 0; i < p->len; i++) {
        char c = p->text[i];
        if (c == '\\')
            i++;
        else if (class)
            class = c != ']';
        else if (c == '[')
            class = true;
        else if (c == '(' || c == ')')
            depth += c == '(' ? 1 : -1;
        else if (c == '|' && depth == 0)
            return true;
    }
    return false;
}

int pattern_compile(struct grammar *g, enum char_writing writing, const char *pattern, size_t len, bool searched,
                    expr *out, char *err, size_t err_size)
{
    struct pattern p = {.g = g, .writing = writing, .text = pattern, .len = len, .err = err, .err_size = err_size};
    if (len > GRAMMAR_MAX_PATTERN_BYTES) {
        snprintf(err, err_size, "pattern: longer than %d bytes", GRAMMAR_MAX_PATTERN_BYTES);
        return -E2BIG;
    }
    expr e = take_alternatives(&p);
    if (g->failed)
        return g->failed;
    if (p.rc == 0 && p.at < p.len)
        refuse(&p, -EINVAL, "a ) without its group");
    if (p.rc)
        return p.rc;
    bool start = len > 0 && pattern[0] == '^', end = ends_in_anchor(&p);
    if (searched) {
        expr quote = expr_bytes(g, '"', '"'), any = expr_repeat(g, g->character, 0, EXPR_INFINITE);
        expr open = expr_cat(g, expr_bytes(g, BEFORE, BEFORE), quote);
        if (p.anchors - p.dropped == start + end && !(p.anchors > 0 && has_alternatives(&p))) {
            e = start ? e : expr_cat(g, open, expr_cat(g, any, e));
            e = end ? e : expr_cat(g, e, expr_cat(g, any, quote));
        } else {
            e = expr_cat(g, expr_optional(g, expr_cat(g, open, any)), e);
            e = expr_cat(g, e, expr_optional(g, expr_cat(g, any, quote)));
            e = expr_and(g, e, expr_cat(g, open, expr_cat(g, any, quote)));
        }
        e = expr_derive(g, e, BEFORE);
    } else if (p.anchors > start + end || (p.anchors > 0 && has_alternatives(&p))) {
        snprintf(err, err_size, "pattern: an anchor in the middle is not supported");
        return -ENOTSUP;
    }
    *out = e;
    return g->failed;
}

/* json.c - JSON text written anew in one form, without a tree: what a chat template gives out for a value, and the form
 * in which two texts of the same value are the same bytes.
 */
#include "engine/text/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

struct reader {
    const char *p, *end;
    char *out; /* what is written goes behind what is there */
    size_t n, capacity;
    bool sorted;
    int depth, rc;
};

/* A member of an object, as it lies in the output. */
struct member {
    size_t at, len, name_len;
};

static void put(struct reader *r, const char *bytes, size_t n)
{
    if (r->rc)
        return;
    if (r->capacity - r->n < n) {
        size_t capacity = r->capacity ? r->capacity : 256;
        while (capacity - r->n < n)
            capacity *= 2;
        char *grown = realloc(r->out, capacity);
        if (grown == NULL) {
            r->rc = -ENOMEM;
            return;
        }
        r->out = grown;
        r->capacity = capacity;
    }
    memcpy(r->out + r->n, bytes, n);
    r->n += n;
}

static void skip_space(struct reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->p < r->end && *r->p == c) {
        r->p++;
        return true;
    }
    return false;
}

static void fail(struct reader *r)
{
    if (!r->rc)
        r->rc = -EINVAL;
}

/* Four hex digits. -1: they are none. */
static int hex4(struct reader *r)
{
    int value = 0;
    if (r->end - r->p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = *r->p++;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void put_code_point(struct reader *r, unsigned c)
{
    char b[6];
    switch (c) {
    case '"':
        put(r, "\\\"", 2);
        return;
    case '\\':
        put(r, "\\\\", 2);
        return;
    case '\b':
        put(r, "\\b", 2);
        return;
    case '\f':
        put(r, "\\f", 2);
        return;
    case '\n':
        put(r, "\\n", 2);
        return;
    case '\r':
        put(r, "\\r", 2);
        return;
    case '\t':
        put(r, "\\t", 2);
        return;
    }
    if (c < 0x20) {
        char escape[8];
        (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        put(r, escape, 6);
    } else if (c < 0x80) {
        b[0] = (char)c;
        put(r, b, 1);
    } else if (c < 0x800) {
        b[0] = (char)(0xc0 | c >> 6);
        b[1] = (char)(0x80 | (c & 0x3f));
        put(r, b, 2);
    } else if (c < 0x10000) {
        b[0] = (char)(0xe0 | c >> 12);
        b[1] = (char)(0x80 | (c >> 6 & 0x3f));
        b[2] = (char)(0x80 | (c & 0x3f));
        put(r, b, 3);
    } else {
        b[0] = (char)(0xf0 | c >> 18);
        b[1] = (char)(0x80 | (c >> 12 & 0x3f));
        b[2] = (char)(0x80 | (c >> 6 & 0x3f));
        b[3] = (char)(0x80 | (c & 0x3f));
        put(r, b, 4);
    }
}

/* \uXXXX, of which the u was taken. A half of a pair without the other one is U+FFFD. */
static void escaped_code_point(struct reader *r)
{
    int c = hex4(r);
    if (c < 0) {
        fail(r);
        return;
    }
    if (c >= 0xd800 && c < 0xdc00 && r->end - r->p >= 2 && r->p[0] == '\\' && r->p[1] == 'u') {
        const char *before = r->p;
        r->p += 2;
        int low = hex4(r);
        if (low >= 0xdc00 && low < 0xe000) {
            put_code_point(r, 0x10000u + (((unsigned)c - 0xd800) << 10) + ((unsigned)low - 0xdc00));
            return;
        }
        r->p = before;
    }
    put_code_point(r, c >= 0xd800 && c < 0xe000 ? 0xfffd : (unsigned)c);
}

/* Behind the opening quote. */
static void string(struct reader *r)
{
    static const char ESCAPES[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
    put(r, "\"", 1);
    while (!r->rc) {
        if (r->p >= r->end || (unsigned char)*r->p < 0x20) {
            fail(r);
            return;
        }
        char c = *r->p;
        if (c == '"') {
            r->p++;
            put(r, "\"", 1);
            return;
        }
        if (c != '\\') {
            size_t n = utf8_char(r->p, (size_t)(r->end - r->p), NULL);
            if (n == 0)
                fail(r);
            else
                put(r, r->p, n);
            r->p += n;
            continue;
        }
        r->p++;
        const char *which = r->p < r->end && *r->p != '\0' ? strchr(ESCAPES, *r->p) : NULL;
        if (which != NULL) {
            r->p++;
            put_code_point(r, (unsigned char)MEANT[which - ESCAPES]);
        } else if (r->p < r->end && *r->p == 'u') {
            r->p++;
            escaped_code_point(r);
        } else {
            fail(r);
        }
    }
}

static size_t digits(struct reader *r)
{
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9')
        r->p++;
    return (size_t)(r->p - start);
}

/* In the sorted form numbers are written by their value; whole ones of any length by their digits. */
static void number(struct reader *r)
{
    const char *start = r->p;
    bool whole = true;
    if (*r->p == '-')
        r->p++;
    const char *first = r->p;
    size_t n = digits(r);
    if (n == 0 || (n > 1 && *first == '0')) {
        fail(r);
        return;
    }
    if (r->p < r->end && *r->p == '.') {
        whole = false;
        r->p++;
        if (digits(r) == 0)
            fail(r);
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        whole = false;
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-'))
            r->p++;
        if (digits(r) == 0)
            fail(r);
    }
    size_t len = (size_t)(r->p - start);
    char text[64], value[64];
    if (!r->sorted || r->rc || (whole && !(n == 1 && *first == '0')) || len >= sizeof text) {
        put(r, start, len);
        return;
    }
    memcpy(text, start, len);
    text[len] = '\0';
    double v = strtod(text, NULL);
    (void)snprintf(value, sizeof value, fabs(v) < 9007199254740992.0 && v == floor(v) ? "%.0f" : "%.17g", v);
    put(r, v == 0 ? "0" : value, v == 0 ? 1 : strlen(value));
}

static void value(struct reader *r);

static void array(struct reader *r)
{
    put(r, "[", 1);
    for (bool first = true; !r->rc; first = false) {
        if (first && take(r, ']'))
            break;
        if (!first)
            put(r, ", ", 2);
        value(r);
        if (take(r, ']'))
            break;
        if (!take(r, ','))
            fail(r);
    }
    put(r, "]", 1);
}

/* A member's name and the colon behind it. */
static void name(struct reader *r)
{
    if (!take(r, '"'))
        fail(r);
    else
        string(r);
    if (!r->rc && !take(r, ':'))
        fail(r);
}

/* Puts the members that lie behind `start` in the output into the order of their names. */
static int by_name(const void *a, const void *b, void *out)
{
    const struct member *x = a, *y = b;
    size_t least = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp((const char *)out + x->at, (const char *)out + y->at, least);
    return order ? order : x->name_len != y->name_len ? (x->name_len < y->name_len ? -1 : 1) : x->at < y->at ? -1 : 1;
}

static void sort(struct reader *r, size_t start, struct member *members, size_t n)
{
    char *sorted = malloc(r->n - start + 2 * n + 1);
    size_t len = 0;
    if (sorted == NULL) {
        r->rc = -ENOMEM;
        return;
    }
    qsort_r(members, n, sizeof *members, by_name, r->out);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            memcpy(sorted + len, ", ", 2);
            len += 2;
        }
        memcpy(sorted + len, r->out + members[i].at, members[i].len);
        len += members[i].len;
    }
    r->n = start;
    put(r, sorted, len);
    free(sorted);
}

static void object(struct reader *r)
{
    struct member *members = NULL;
    size_t n = 0, capacity = 0;
    put(r, "{", 1);
    size_t start = r->n;
    for (bool first = true; !r->rc; first = false) {
        if (first && take(r, '}'))
            break;
        if (!first && !r->sorted)
            put(r, ", ", 2);
        struct member m = {.at = r->n};
        name(r);
        m.name_len = r->n - m.at;
        put(r, ": ", 2);
        value(r);
        m.len = r->n - m.at;
        if (r->sorted && !r->rc) {
            if (n == capacity) {
                capacity = capacity ? 2 * capacity : 8;
                struct member *grown = realloc(members, capacity * sizeof *members);
                if (grown == NULL) {
                    r->rc = -ENOMEM;
                    break;
                }
                members = grown;
            }
            members[n++] = m;
        }
        if (take(r, '}'))
            break;
        if (!take(r, ','))
            fail(r);
    }
    if (n > 1 && !r->rc)
        sort(r, start, members, n);
    free(members);
    put(r, "}", 1);
}

static void value(struct reader *r)
{
    skip_space(r);
    if (r->p >= r->end || ++r->depth > DEPTH_MAX) {
        fail(r);
        return;
    }
    char c = *r->p;
    static const char *const WORDS[] = {"true", "false", "null"};
    if (c == '{' || c == '[' || c == '"')
        r->p++;
    if (c == '{')
        object(r);
    else if (c == '[')
        array(r);
    else if (c == '"')
        string(r);
    else if (c == '-' || (c >= '0' && c <= '9'))
        number(r);
    else {
        size_t i = 0;
        while (i < 3 && ((size_t)(r->end - r->p) < strlen(WORDS[i]) || memcmp(r->p, WORDS[i], strlen(WORDS[i])) != 0))
            i++;
        if (i == 3) {
            fail(r);
        } else {
            put(r, WORDS[i], strlen(WORDS[i]));
            r->p += strlen(WORDS[i]);
        }
    }
    r->depth--;
}

int text_json(const char *text, size_t len, bool sorted, char **out, size_t *out_len)
{
    struct reader r = {.p = text, .end = text + len, .sorted = sorted};
    value(&r);
    skip_space(&r);
    if (r.p < r.end)
        fail(&r);
    put(&r, "", 1);
    if (r.rc) {
        free(r.out);
        return r.rc;
    }
    *out = r.out;
    *out_len = r.n - 1;
    return 0;
}

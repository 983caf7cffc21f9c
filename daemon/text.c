/* text.c - checks of text that a peer sent, and bytes as text. Pure functions. */
#include <stdio.h>

#include "daemon/daemon.h"

void text_hex(const unsigned char *bytes, size_t n, char *out)
{
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    }
}

ptrdiff_t utf8_prefix(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + len;
    while (p < end) {
        unsigned c = *p;
        if (c < 0x80) {
            p++;
            continue;
        }
        int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        if (c < 0xc2 || c > 0xf4) {
            return -1;
        }
        unsigned lowest = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned highest = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        for (int i = 1; i <= more; i++) {
            if (p + i == end) {
                return (const char *)p - s;
            }
            if (p[i] < lowest || p[i] > highest) {
                return -1;
            }
            lowest = 0x80;
            highest = 0xbf;
        }
        p += more + 1;
    }
    return (ptrdiff_t)len;
}

bool utf8_valid(const char *s, size_t len)
{
    return utf8_prefix(s, len) == (ptrdiff_t)len;
}

int64_t text_digits(const char *value, size_t len)
{
    if (len == 0 || len > 18) {
        return -1;
    }
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (value[i] < '0' || value[i] > '9') {
            return -1;
        }
        n = n * 10 + (value[i] - '0');
    }
    return n;
}

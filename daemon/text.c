/* text.c - checks of text that a peer sent. Pure functions. */
#include "daemon/daemon.h"

bool utf8_valid(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + len;
    while (p < end) {
        unsigned c = *p++;
        if (c < 0x80) {
            continue;
        }
        int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        if (c < 0xc2 || c > 0xf4 || end - p < more) {
            return false;
        }
        unsigned lowest = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned highest = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (p[0] < lowest || p[0] > highest) {
            return false;
        }
        for (int i = 1; i < more; i++) {
            if (p[i] < 0x80 || p[i] > 0xbf) {
                return false;
            }
        }
        p += more;
    }
    return true;
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

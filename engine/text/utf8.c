/* utf8.c - strict decoding, one character at a time. */
#include "engine/text/text.h"

size_t utf8_char(const char *text, size_t len, int *missing)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t need;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */
    if (missing != NULL)
        *missing = 0;
    if (len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        need = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        need = 3;
        low = p[0] == 0xe0 ? 0xa0 : 0x80;
        high = p[0] == 0xed ? 0x9f : 0xbf;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        need = 4;
        low = p[0] == 0xf0 ? 0x90 : 0x80;
        high = p[0] == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    for (size_t i = 1; i < need; i++) {
        if (i == len) {
            if (missing != NULL)
                *missing = 1;
            return 0;
        }
        if (p[i] < low || p[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return need;
}

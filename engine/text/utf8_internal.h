/* utf8_internal.h - where characters begin and end in bytes that may not be UTF-8. */
#ifndef CONVOD_UTF8_INTERNAL_H
#define CONVOD_UTF8_INTERNAL_H

#include <stddef.h>

/* Bytes of the UTF-8 character (no surrogates, no overlong forms, at most U+10FFFF) that text[0..len) begins with;
 * 0 when it begins with none. *missing (may be NULL) says whether more bytes could make it one. */
size_t utf8_char(const char *text, size_t len, int *missing);

#endif

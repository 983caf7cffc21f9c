/* ids.c - identifiers of responses, conversations and messages.
 *
 * 128 random bits each: an id cannot be guessed and never repeats. A message's id is its response's with another
 * prefix, so that it is the same every time the response is fetched.
 */
#include <errno.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#include "daemon/run/run.h"

#define ID_RANDOM_BYTES 16
#define ID_TAIL_MAX     40

int id_new(const char *prefix, char out[ID_SIZE])
{
    unsigned char random[ID_RANDOM_BYTES];
    if (RAND_bytes(random, sizeof(random)) != 1) {
        return -EIO;
    }
    size_t n = (size_t)snprintf(out, ID_SIZE, "%s", prefix);
    size_t room = n < ID_SIZE ? (ID_SIZE - 1 - n) / 2 : 0;
    if (room > 0) {
        text_hex(random, room < sizeof(random) ? room : sizeof(random), out + n);
    }
    return 0;
}

void id_derive(const char *prefix, const char *id, char out[ID_SIZE])
{
    const char *tail = strchr(id, '_');
    snprintf(out, ID_SIZE, "%s%.*s", prefix, ID_TAIL_MAX, tail ? tail + 1 : id);
}

bool id_valid(const char *prefix, const char *id)
{
    size_t n = strlen(prefix);
    if (strncmp(id, prefix, n) != 0) {
        return false;
    }
    size_t len = strlen(id + n);
    if (len == 0 || len > ID_TAIL_MAX) {
        return false;
    }
    for (const char *p = id + n; *p; p++) {
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '_' ||
              *p == '-')) {
            return false;
        }
    }
    return true;
}

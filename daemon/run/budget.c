/* budget.c - how much memory requests may hold, from their first byte to the end of their turns. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/run/run.h"

bool budget_take(struct budget *b, size_t bytes, struct api_error *e)
{
    if (b->most && (bytes > b->most || b->used > b->most - bytes)) {
        api_error_set(e, 503, "server_overloaded", NULL,
                      "Requests take all the memory that they may; try again later.");
        return false;
    }
    b->used += bytes;
    return true;
}

void budget_give(struct budget *b, size_t bytes)
{
    b->used -= bytes;
}

int budget_grow(struct budget *b, char **buffer, size_t *size, size_t need, struct api_error *e)
{
    size_t more = *size ? *size : BUFFER_BYTES_MIN;
    while (more < need) {
        more *= 2;
    }
    if (more == *size) {
        return 0;
    }
    if (!budget_take(b, more - *size, e)) {
        return -EDQUOT;
    }
    char *grown = realloc(*buffer, more);
    if (!grown) {
        budget_give(b, more - *size);
        return -ENOMEM;
    }
    *buffer = grown;
    *size = more;
    return 0;
}

/* budget.c - how much memory requests may hold, from their first byte to the end of their turns, and each owner's of
 * it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

/* Of who holds anything. */
struct budget_owner {
    struct budget_owner *next;
    size_t used;
    char owner[OWNER_SIZE];
};

static struct budget_owner **find(struct budget *b, const char *owner)
{
    struct budget_owner **at = &b->owners;
    while (*at && strcmp((*at)->owner, owner) != 0) {
        at = &(*at)->next;
    }
    return at;
}

bool budget_take(struct budget *b, const char *owner, size_t bytes, struct api_error *e)
{
    struct budget_owner **at = find(b, owner), *o = *at;
    uint64_t share = b->most - b->most / BUDGET_OTHERS;
    if (b->most && (bytes > share || (o && o->used > share - bytes))) {
        api_error_set(e, 429, "rate_limit_exceeded", NULL,
                      "Your requests take all the memory that they may; try again later.");
        return false;
    }
    if (b->most && b->used > b->most - bytes) {
        api_error_set(e, 503, "server_overloaded", NULL,
                      "Requests take all the memory that they may; try again later.");
        return false;
    }
    if (!o) {
        o = calloc(1, sizeof(*o));
        if (!o) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            return false;
        }
        (void)strncat(o->owner, owner, sizeof(o->owner) - 1);
        *at = o;
    }
    o->used += bytes;
    b->used += bytes;
    return true;
}

void budget_give(struct budget *b, const char *owner, size_t bytes)
{
    struct budget_owner **at = find(b, owner), *o = *at;
    if (!o) { /* nothing was taken */
        return;
    }
    b->used -= bytes;
    o->used -= bytes;
    if (o->used == 0) {
        *at = o->next;
        free(o);
    }
}

int budget_grow(struct budget *b, const char *owner, char **buffer, size_t *size, size_t need, struct api_error *e)
{
    size_t more = *size ? *size : BUFFER_BYTES_MIN;
    while (more < need) {
        more *= 2;
    }
    if (more == *size) {
        return 0;
    }
    if (!budget_take(b, owner, more - *size, e)) {
        return e->status == 500 ? -ENOMEM : -EDQUOT;
    }
    char *grown = realloc(*buffer, more);
    if (!grown) {
        budget_give(b, owner, more - *size);
        return -ENOMEM;
    }
    *buffer = grown;
    *size = more;
    return 0;
}

/* tickets.c - a ticket opens one WebSocket: a page in a browser cannot send a header with an upgrade, so it fetches a
 * ticket with its token and puts that into the address.
 *
 * A ticket is 256 random bits, of which the digest is kept, counts once and for TICKET_MS. It speaks for the token that
 * fetched it: what that token may not, it may not, and when the token goes, so does what the ticket opened.
 */
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <string.h>

#include "daemon/api/api.h"

#define TICKET_MS         60000
#define TICKET_BYTES      32
#define TICKETS_PER_OWNER 32

/* Where the next one goes: an owner's oldest makes room for its newest, so that nobody takes all places. NULL: none is
 * free. */
static struct ticket *find_place(struct tickets *all, const char *owner)
{
    struct ticket *oldest = NULL, *own = NULL;
    int n_own = 0;
    int64_t now = clock_ms();
    for (size_t i = 0; i < TICKETS_MAX; i++) {
        struct ticket *t = &all->list[i];
        if (!oldest || t->until_ms < oldest->until_ms) {
            oldest = t;
        }
        if (t->until_ms > now && strcmp(t->who.owner, owner) == 0) {
            n_own++;
            own = !own || t->until_ms < own->until_ms ? t : own;
        }
    }
    return n_own >= TICKETS_PER_OWNER ? own : oldest->until_ms <= now ? oldest : NULL;
}

void service_ticket(struct client *c)
{
    struct ticket *place = find_place(&c->api->tickets, c->owner);
    unsigned char random[TICKET_BYTES];
    char text[2 * TICKET_BYTES + 1];
    struct api_error e;
    if (!place) {
        api_error_set(&e, 429, "rate_limit_exceeded", NULL, "%d tickets wait to be used.", TICKETS_MAX);
        client_answer_error(c, &e);
        return;
    }
    if (RAND_bytes(random, sizeof(random)) != 1) {
        api_error_set(&e, 500, "server_error", NULL, "There are no random numbers.");
        client_answer_error(c, &e);
        return;
    }
    text_hex(random, sizeof(random), text);
    SHA256((const unsigned char *)text, sizeof(text) - 1, place->digest);
    place->who = c->who;
    place->until_ms = clock_ms() + TICKET_MS;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "convod.ticket");
    cJSON_AddStringToObject(o, "ticket", text);
    cJSON_AddNumberToObject(o, "expires_in", TICKET_MS / 1000.0);
    client_answer_json(c, 200, o);
}

bool ticket_take(struct tickets *all, const char *text, size_t len, struct auth_who *out)
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)text, len, digest);
    int64_t now = clock_ms();
    struct ticket *found = NULL;
    for (size_t i = 0; i < TICKETS_MAX; i++) {
        struct ticket *t = &all->list[i];
        if (CRYPTO_memcmp(digest, t->digest, sizeof(digest)) == 0 && t->until_ms > now) {
            found = t;
        }
    }
    if (!found) {
        return false;
    }
    *out = found->who;
    memset(found, 0, sizeof(*found));
    return true;
}

/* tickets.c - a ticket opens one WebSocket: a page in a browser cannot send a header with an upgrade, so it fetches a
 * ticket with its token and puts that into the address.
 *
 * A ticket is 256 random bits, of which the digest is kept, counts once and for TICKET_MS. It speaks for the token that
 * fetched it: what that token may not, it may not, and when the token goes, so does what the ticket opened.
 */
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"

#define TICKET_MS    60000
#define TICKET_BYTES 32

void service_ticket(struct client *c)
{
    struct tickets *all = &c->api->tickets;
    struct ticket *oldest = &all->list[0];
    for (size_t i = 1; i < TICKETS_MAX; i++) {
        if (all->list[i].until_ms < oldest->until_ms) {
            oldest = &all->list[i];
        }
    }
    unsigned char random[TICKET_BYTES];
    char text[2 * TICKET_BYTES + 1];
    struct api_error e;
    if (oldest->until_ms > clock_ms()) {
        api_error_set(&e, 429, "too_many_tickets", NULL, "%d tickets wait to be used.", TICKETS_MAX);
        client_answer_error(c, &e);
        return;
    }
    if (RAND_bytes(random, sizeof(random)) != 1) {
        api_error_set(&e, 500, "server_error", NULL, "There are no random numbers.");
        client_answer_error(c, &e);
        return;
    }
    for (size_t i = 0; i < sizeof(random); i++) {
        snprintf(text + 2 * i, 3, "%02x", random[i]);
    }
    SHA256((const unsigned char *)text, sizeof(text) - 1, oldest->digest);
    oldest->who = c->who;
    oldest->until_ms = clock_ms() + TICKET_MS;
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

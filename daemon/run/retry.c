/* retry.c - a POST that is sent again must not become a second turn.
 *
 * SDKs repeat a POST when a connection breaks, with x-stainless-retry-count and without a key; others send an
 * Idempotency-Key. Both find the run of the first attempt: by the key, or by the same body of the same owner. What
 * failed is not found, because nothing of it was kept: that may be tried again. Neither is what was cancelled because
 * its reader went away.
 */
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon_internal.h"

void retry_digest(const struct conn *c, unsigned char digest[RETRY_DIGEST_BYTES])
{
    _Static_assert(RETRY_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "the digest is SHA-256");
    SHA256((const unsigned char *)(c->request.body ? c->request.body : ""), c->request.body_len, digest);
}

/* Was it ended by its reader's going away? Half an answer is not what a retry wants. */
static bool given_up(const struct run *run)
{
    return run->abandoned && (!run->ended || (run->reason && strcmp(run->reason, "cancelled") == 0));
}

static struct run *find(struct run *list, const struct conn *c, enum run_api api,
                        const unsigned char digest[RETRY_DIGEST_BYTES])
{
    const char *key = c->request.idempotency_key;
    for (struct run *run = list; run; run = run->next) {
        if (!run->has_digest || run->hidden || run->failed || given_up(run) || run->request->api != api ||
            strcmp(run->owner, c->owner) != 0 || now_ms() - run->created_ms > (int64_t)RECENT_SECONDS * 1000) {
            continue;
        }
        if (key ? run->idempotency_key && strcmp(run->idempotency_key, key) == 0
                : memcmp(run->digest, digest, RETRY_DIGEST_BYTES) == 0) {
            return run;
        }
    }
    return NULL;
}

bool retry_attach(struct conn *c, enum run_api api, bool stream)
{
    struct server *s = c->server;
    if (!c->request.idempotency_key && c->request.retry_count <= 0) {
        return false;
    }
    unsigned char digest[RETRY_DIGEST_BYTES];
    retry_digest(c, digest);
    struct run *run = find(s->runs, c, api, digest);
    run = run ? run : find(s->recent, c, api, digest);
    if (!run) {
        return false;
    }
    if (memcmp(run->digest, digest, RETRY_DIGEST_BYTES) != 0) {
        struct api_error e;
        api_error_set(&e, 400, "idempotency_key_reused", NULL, "This Idempotency-Key was used with another body.");
        conn_answer_error(c, &e);
        return true;
    }
    run_subscribe(run, c, stream ? SUBSCRIBE_SSE : SUBSCRIBE_BODY, 0, NULL);
    return true;
}

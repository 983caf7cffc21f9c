/* retry.c - a request that is sent again must not become a second turn.
 *
 * SDKs repeat a POST when a connection breaks, with x-stainless-retry-count and without a key; others send an
 * Idempotency-Key, or over a WebSocket a field. Either finds the run of the first attempt while it goes on: by the key,
 * or by the same body of the same owner. What has ended is the session's to find, which knows where it stands in its
 * conversation; save for what is not stored. What failed is not found, nor what was given up because its reader went
 * away: that may be tried again.
 */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

void retry_digest(const char *route, const char *id, const char *body, size_t len,
                  unsigned char digest[RETRY_DIGEST_BYTES])
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    /* Without memory for a digest nothing is a repetition of anything: all of them are zero, and that is none. */
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) && EVP_DigestUpdate(md, route, strlen(route) + 1) &&
              (!id || !*id || EVP_DigestUpdate(md, id, strlen(id) + 1)) &&
              EVP_DigestUpdate(md, body ? body : "", len) && EVP_DigestFinal_ex(md, digest, NULL);
    if (!ok) {
        memset(digest, 0, RETRY_DIGEST_BYTES);
    }
    EVP_MD_CTX_free(md);
}

bool retry_key(struct run_retry *retry, const char *field, struct api_error *e)
{
    if (!field) {
        return true;
    }
    if (retry->idempotency_key) {
        api_error_set(e, 400, "invalid_value", "convod.idempotency_key",
                      "The key stands in the head already; send one of them.");
        return false;
    }
    size_t n = strlen(field);
    if (n == 0 || n > IDEMPOTENCY_KEY_MAX) {
        api_error_set(e, 400, "invalid_value", "convod.idempotency_key", "An idempotency key has 1 to %d characters.",
                      IDEMPOTENCY_KEY_MAX);
        return false;
    }
    retry->idempotency_key = strdup(field);
    if (!retry->idempotency_key) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    }
    return retry->idempotency_key != NULL;
}

/* Was it ended by its reader's going away? Half an answer is not what a retry wants. */
static bool given_up(const struct run *run)
{
    return run->abandoned && (!run->ended || (run->reason && strcmp(run->reason, "abandoned") == 0));
}

static struct run *find(struct run *list, const char *owner, const struct run_retry *retry)
{
    const char *key = retry->idempotency_key;
    for (struct run *run = list; run; run = run->next) {
        bool same = key ? run->idempotency_key && strcmp(run->idempotency_key, key) == 0
                        : !run->idempotency_key && !run->delivered &&
                              memcmp(run->digest, retry->digest, RETRY_DIGEST_BYTES) == 0;
        if (same && run->has_digest && !run->hidden && !run->failed && !given_up(run) &&
            !(run->ended && run->request->store) && strcmp(run->owner, owner) == 0 &&
            clock_ms() - run->created_clock_ms <= (int64_t)RECENT_SECONDS * 1000) {
            return run;
        }
    }
    return NULL;
}

struct run *retry_find(struct runs *rs, const char *owner, const struct run_retry *retry, struct api_error *e)
{
    if (!retry->idempotency_key && retry->count <= 0) {
        return NULL;
    }
    struct run *run = find(rs->running, owner, retry);
    run = run ? run : find(rs->recent, owner, retry);
    if (run && memcmp(run->digest, retry->digest, RETRY_DIGEST_BYTES) != 0) {
        api_error_session(SESSION_KEY_REUSED, NULL, e);
        return NULL;
    }
    return run;
}

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

#include "daemon/run/run.h"

void retry_digest(const char *body, size_t len, unsigned char digest[RETRY_DIGEST_BYTES])
{
    _Static_assert(RETRY_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "the digest is SHA-256");
    SHA256((const unsigned char *)(body ? body : ""), len, digest);
}

/* Was it ended by its reader's going away? Half an answer is not what a retry wants. */
static bool given_up(const struct run *run)
{
    return run->abandoned && (!run->ended || (run->reason && strcmp(run->reason, "cancelled") == 0));
}

static struct run *find(struct run *list, const char *owner, const struct run_format *format,
                        const struct run_retry *retry)
{
    const char *key = retry->idempotency_key;
    for (struct run *run = list; run; run = run->next) {
        if (!run->has_digest || run->hidden || run->failed || given_up(run) || run->request->format != format ||
            strcmp(run->owner, owner) != 0 || now_ms() - run->created_ms > (int64_t)RECENT_SECONDS * 1000) {
            continue;
        }
        if (key ? run->idempotency_key && strcmp(run->idempotency_key, key) == 0
                : memcmp(run->digest, retry->digest, RETRY_DIGEST_BYTES) == 0) {
            return run;
        }
    }
    return NULL;
}

struct run *retry_find(struct runs *rs, const char *owner, const struct run_format *format,
                       const struct run_retry *retry, struct api_error *e)
{
    if (!retry->idempotency_key && retry->count <= 0) {
        return NULL;
    }
    struct run *run = find(rs->running, owner, format, retry);
    run = run ? run : find(rs->recent, owner, format, retry);
    if (run && memcmp(run->digest, retry->digest, RETRY_DIGEST_BYTES) != 0) {
        api_error_set(e, 400, "idempotency_key_reused", NULL, "This Idempotency-Key was used with another body.");
        return NULL;
    }
    return run;
}

/* queued.c - what it takes to run a background turn again after a restart, as it is kept with its row.
 *
 * A JSON object: `body`, the request as it came; `seed`, which was drawn when it was accepted and is shown with the
 * response; `digest` and `key`, by which a repetition of the request finds it. Text of a version before is the body
 * alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/run/run.h"

#define SEED_DIGITS 20

static void hex(const unsigned char *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

/* False: it is not so many bytes. */
static bool unhex(const char *text, unsigned char *out, size_t n)
{
    if (strlen(text) != 2 * n || strspn(text, "0123456789abcdef") != 2 * n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
        out[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}

char *queued_text(const struct turn_request *q, const struct run_retry *retry)
{
    char seed[SEED_DIGITS + 1], digest[2 * RETRY_DIGEST_BYTES + 1];
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)q->sampling.seed);
    cJSON *o = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(o, "seed", seed);
    if (ok && retry) {
        hex(retry->digest, sizeof(retry->digest), digest);
        ok = cJSON_AddStringToObject(o, "digest", digest) &&
             (!retry->idempotency_key || cJSON_AddStringToObject(o, "key", retry->idempotency_key));
    }
    char *rest = ok ? cJSON_PrintUnformatted(o) : NULL, *text = NULL;
    cJSON_Delete(o);
    if (rest && asprintf(&text, "{\"body\":%s,%s", q->body, rest + 1) < 0) {
        text = NULL;
    }
    free(rest);
    return text;
}

static const char *string(const cJSON *o, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

int queued_read(const char *text, struct queued *out)
{
    cJSON *o = cJSON_Parse(text);
    const char *body = string(o, "body"), *seed = string(o, "seed"), *digest = string(o, "digest"),
               *key = string(o, "key");
    struct queued q = {.body = strdup(body && seed ? body : text)};
    bool ok = q.body != NULL;
    if (ok && body && seed) {
        q.has_seed = true;
        q.seed = strtoull(seed, NULL, 10);
        q.has_retry = digest && unhex(digest, q.retry.digest, sizeof(q.retry.digest));
        q.retry.idempotency_key = q.has_retry && key ? strdup(key) : NULL;
        ok = !q.has_retry || !key || q.retry.idempotency_key;
    }
    cJSON_Delete(o);
    if (!ok) {
        queued_free(&q);
        return -1;
    }
    *out = q;
    return 0;
}

void queued_free(struct queued *q)
{
    free(q->body);
    free(q->retry.idempotency_key);
    *q = (struct queued){0};
}

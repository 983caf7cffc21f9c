/* sampling.c - the sampling fields of a request, which both APIs have: names, where they stand, and how they are shown.
 */
#include <limits.h>
#include <math.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

/* A seed has 64 bits with a sign. JSON's readers keep 53 of them (RFC 8259, 6), this one too, and what was kept is
 * shown; one that is chosen here has no more, so that a turn can be repeated from it everywhere. */
#define SEED_CHOSEN_MAX ((1LL << 53) - 1)
#define BIAS_MOST       100

static int random_seed(uint64_t *seed, struct api_error *e)
{
    if (RAND_bytes((unsigned char *)seed, sizeof(*seed)) != 1) {
        api_error_set(e, 500, "server_error", NULL, "No random numbers.");
        return -1;
    }
    *seed &= (uint64_t)SEED_CHOSEN_MAX;
    return 0;
}

int sampling_parse(const cJSON *body, const cJSON *extra, const char *prefix, struct engine_sampling *out,
                   struct api_error *e)
{
    *out = (struct engine_sampling)ENGINE_SAMPLING_DEFAULT;
    const struct {
        const cJSON *o;
        const char *prefix, *key;
        float *value;
    } numbers[] = {
        {body, "", "temperature", &out->temperature},
        {body, "", "top_p", &out->top_p},
        {extra, prefix, "min_p", &out->min_p},
        {extra, prefix, "repetition_penalty", &out->repetition_penalty},
        {extra, prefix, "presence_penalty", &out->presence_penalty},
        {extra, prefix, "frequency_penalty", &out->frequency_penalty},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        double value = (double)*numbers[i].value;
        if (json_number(numbers[i].o, numbers[i].prefix, numbers[i].key, -HUGE_VAL, HUGE_VAL, &value, e)) {
            return -1;
        }
        *numbers[i].value = (float)value;
    }
    int64_t top_k = out->top_k, seed = -1;
    bool apart = json_get(extra, "seed"); /* otherwise at the top, where other interfaces have it */
    if (json_int(extra, prefix, "top_k", -1, INT_MAX, &top_k, e) ||
        json_int(apart ? extra : body, apart ? prefix : "", "seed", INT64_MIN, INT64_MAX, &seed, e)) {
        return -1;
    }
    out->top_k = top_k < 0 ? 0 : (int)top_k; /* either is off */
    out->seed = (uint64_t)seed;
    const char *field, *range;
    if (engine_sampling_check(out, &field, &range)) {
        const char *where = prefix;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
            where = strcmp(numbers[i].key, field) == 0 ? numbers[i].prefix : where;
        }
        char param[64];
        snprintf(param, sizeof(param), "%s%s", where, field);
        api_error_set(e, 400, "invalid_value", param, "Invalid value for '%s': it must be %s.", param, range);
        return -1;
    }
    return seed == -1 ? random_seed(&out->seed, e) : 0;
}

static int by_token(const void *a, const void *b)
{
    engine_token x = ((const struct engine_bias *)a)->token, y = ((const struct engine_bias *)b)->token;
    return (x > y) - (x < y);
}

/* A token's id as JSON writes a key; -1: it is none. */
static engine_token token_of(const char *key)
{
    size_t n = strspn(key, "0123456789");
    bool plain = n > 0 && n <= 10 && !key[n] && (key[0] != '0' || n == 1);
    long long id = plain ? strtoll(key, NULL, 10) : -1;
    return id <= INT32_MAX ? (engine_token)id : -1;
}

int bias_parse(const cJSON *body, struct turn_request *q, struct api_error *e)
{
    const cJSON *list = NULL, *v;
    if (json_object(body, "", "logit_bias", &list, e)) {
        return -1;
    }
    int n = cJSON_GetArraySize(list);
    if (n == 0) {
        return 0;
    }
    if (n > ENGINE_BIAS_MAX) {
        api_error_set(e, 400, "invalid_value", "logit_bias", "'logit_bias' has more than %d tokens.", ENGINE_BIAS_MAX);
        return -1;
    }
    q->bias = malloc((size_t)n * sizeof(*q->bias));
    if (!q->bias) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    cJSON_ArrayForEach(v, list)
    {
        engine_token token = token_of(v->string);
        char param[64];
        snprintf(param, sizeof(param), "logit_bias.%.40s", v->string);
        bool number = cJSON_IsNumber(v);
        if (token < 0 || !number || !(fabs(v->valuedouble) <= BIAS_MOST)) {
            api_error_set(e, 400, token < 0 || number ? "invalid_value" : "invalid_type", param,
                          "'%s' must be the id of a token, and its bias a number from %d to %d.", param, -BIAS_MOST,
                          BIAS_MOST);
            return -1;
        }
        q->bias[q->n_bias++] = (struct engine_bias){token, (float)v->valuedouble};
    }
    qsort(q->bias, (size_t)n, sizeof(*q->bias), by_token);
    for (int i = 1; i < n; i++) {
        if (q->bias[i].token == q->bias[i - 1].token) {
            api_error_set(e, 400, "invalid_value", "logit_bias", "'logit_bias' names token %d twice.",
                          q->bias[i].token);
            return -1;
        }
    }
    return 0;
}

double sampling_shown(float value)
{
    return round((double)value * 1e6) / 1e6;
}

void sampling_echo(const struct engine_sampling *s, cJSON *o)
{
    json_add_integer(o, "seed", (int64_t)s->seed);
    cJSON_AddNumberToObject(o, "top_k", s->top_k);
    cJSON_AddNumberToObject(o, "min_p", sampling_shown(s->min_p));
    cJSON_AddNumberToObject(o, "repetition_penalty", sampling_shown(s->repetition_penalty));
    cJSON_AddNumberToObject(o, "presence_penalty", sampling_shown(s->presence_penalty));
    cJSON_AddNumberToObject(o, "frequency_penalty", sampling_shown(s->frequency_penalty));
}

int priority_parse(const cJSON *body, const char *prefix, bool *patient, struct api_error *e)
{
    const char *priority = NULL;
    if (json_string(body, prefix, "priority", 16, &priority, e)) {
        return -1;
    }
    if (priority && strcmp(priority, "interactive") != 0 && strcmp(priority, "background") != 0) {
        char param[32];
        snprintf(param, sizeof(param), "%spriority", prefix);
        api_error_set(e, 400, "invalid_value", param, "'%s' must be interactive or background.", param);
        return -1;
    }
    *patient = priority ? strcmp(priority, "background") == 0 : *patient;
    return 0;
}

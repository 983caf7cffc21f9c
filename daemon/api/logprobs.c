/* logprobs.c - how likely the tokens of an answer were, as both interfaces tell it. */
#include <math.h>
#include <stdlib.h>

#include "daemon/api/api.h"

#define LOGPROB_MIN (-9999.0) /* of what has no chance, which JSON has no number for */

static double shown(float logprob)
{
    return logprob >= LOGPROB_MIN ? (double)logprob : LOGPROB_MIN;
}

/* {"token", "logprob", "bytes"}. A token may be a part of a character: as text that is U+FFFD, its bytes tell. */
static cJSON *token_object(const struct run *run, engine_token id, float logprob)
{
    cJSON *o = cJSON_CreateObject();
    size_t len = 0;
    const char *bytes = run->runs->session ? session_token_bytes(run->runs->session, id, &len) : "";
    char *text = json_text_of_bytes(bytes, len);
    cJSON_AddStringToObject(o, "token", text ? text : "");
    free(text);
    cJSON_AddNumberToObject(o, "logprob", shown(logprob));
    cJSON *list = cJSON_AddArrayToObject(o, "bytes");
    for (size_t i = 0; i < len; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((unsigned char)bytes[i]));
    }
    return o;
}

cJSON *logprobs_list(const struct run *run, size_t i, size_t from)
{
    const struct run_item *item = &run->items[i];
    cJSON *list = cJSON_CreateArray();
    for (size_t k = from; k < item->n_logprobs; k++) {
        const struct session_logprob *p = &item->logprobs[k];
        cJSON *o = token_object(run, p->token, p->logprob);
        cJSON *top = cJSON_AddArrayToObject(o, "top_logprobs");
        for (int t = 0; t < p->n_top && p->top[t].token >= 0; t++) {
            cJSON_AddItemToArray(top, token_object(run, p->top[t].token, p->top[t].logprob));
        }
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

int logprobs_parse(const cJSON *body, struct turn_request *q, struct api_error *e)
{
    int64_t n = 0;
    if (json_int(body, "", "top_logprobs", 0, SESSION_TOP_MAX, &n, e)) {
        return -1;
    }
    q->n_top = (int)n;
    return 0;
}

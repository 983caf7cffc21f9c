/* receipt.c - what a turn cost and where its past came from, as the JSON that clients and the ledger get. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

static double ms_between(int64_t from_ns, int64_t to_ns)
{
    return from_ns && to_ns > from_ns ? (double)((to_ns - from_ns) / 1000) / 1000.0 : 0.0;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void receipt_finish(struct turn *t)
{
    struct session_receipt *r = &t->receipt;
    r->conversation = t->ask.store && t->found.conversation.public_id ? t->found.conversation.public_id : "";
    r->turn = t->found.parent.depth + 1;
    r->output = t->n_output;
    /* A turn that was stopped may not have come to all that was to be prefilled again. */
    int repeated = 0, own = 0, n = 0;
    for (int i = 0; i < r->n_reprefilled; i++) {
        int most = r->prefilled - repeated;
        r->reprefilled[n] = r->reprefilled[i];
        if (r->reprefilled[n].tokens > most)
            r->reprefilled[n].tokens = most;
        repeated += r->reprefilled[n].tokens;
        if (!strcmp(r->reprefilled[n].reason, RECEIPT_PUT_ASIDE))
            own = r->reprefilled[n].tokens;
        n += r->reprefilled[n].tokens > 0;
    }
    r->n_reprefilled = n;
    r->history = r->hot + r->ram + r->disk + repeated - own;
    r->fresh = r->prefilled - repeated;
    r->queue_ms = ms_between(t->received_ns, t->admitted_ns);
    r->restore_ms = r->ram + r->disk > 0 ? ms_between(t->admitted_ns, t->restored_ns) : 0.0;
    r->prefill_ms = ms_between(t->prefill_ns, t->first_ns ? t->first_ns : t->last_ns);
    r->ttft_ms = ms_between(t->received_ns, t->first_ns);
    if (t->n_gaps > 0) {
        qsort(t->gaps_ms, (size_t)t->n_gaps, sizeof *t->gaps_ms, by_value);
        r->itl_p50_ms = t->gaps_ms[t->n_gaps / 2];
        r->itl_max_ms = t->gaps_ms[t->n_gaps - 1];
    }
    r->gaps_ms = t->gaps_ms;
    r->n_gaps = t->n_gaps;
    r->backend = t->session->info->backend;
    r->numerics = t->session->info->numerics;
    r->model = t->session->info->name;
}

static cJSON *receipt_object(const struct session_receipt *r)
{
    cJSON *o = cJSON_CreateObject();
    if (r->conversation[0])
        cJSON_AddStringToObject(o, "conversation", r->conversation);
    else
        cJSON_AddNullToObject(o, "conversation");
    cJSON_AddNumberToObject(o, "turn", r->turn);
    cJSON *tokens = cJSON_AddObjectToObject(o, "tokens");
    cJSON_AddNumberToObject(tokens, "history", r->history);
    cJSON_AddNumberToObject(tokens, "hot", r->hot);
    cJSON_AddNumberToObject(tokens, "ram", r->ram);
    cJSON_AddNumberToObject(tokens, "disk", r->disk);
    cJSON_AddNumberToObject(tokens, "new", r->fresh);
    cJSON_AddNumberToObject(tokens, "prefilled", r->prefilled);
    cJSON_AddNumberToObject(tokens, "output", r->output);
    cJSON *list = cJSON_AddArrayToObject(o, "reprefilled");
    for (int i = 0; i < r->n_reprefilled; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "tokens", r->reprefilled[i].tokens);
        cJSON_AddStringToObject(entry, "reason", r->reprefilled[i].reason);
        cJSON_AddItemToArray(list, entry);
    }
    list = cJSON_AddArrayToObject(o, "accepted");
    for (int i = 0; i < r->n_accepted; i++) {
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddNumberToObject(entry, "tokens", r->accepted[i].tokens);
        cJSON_AddStringToObject(entry, "numerics", r->accepted[i].numerics);
        cJSON_AddItemToArray(list, entry);
    }
    if (r->reasoning_context)
        cJSON_AddStringToObject(o, "reasoning_context", r->reasoning_context);
    if (r->truncated_tokens) {
        cJSON *truncated = cJSON_AddObjectToObject(o, "truncated");
        cJSON_AddNumberToObject(truncated, "turns", r->truncated_turns);
        cJSON_AddNumberToObject(truncated, "tokens", r->truncated_tokens);
    }
    cJSON *bytes = cJSON_AddObjectToObject(o, "bytes");
    cJSON_AddNumberToObject(bytes, "read", (double)r->bytes_read);
    cJSON *ms = cJSON_AddObjectToObject(o, "ms");
    cJSON_AddNumberToObject(ms, "queue", r->queue_ms);
    cJSON_AddNumberToObject(ms, "restore", r->restore_ms);
    cJSON_AddNumberToObject(ms, "prefill", r->prefill_ms);
    cJSON_AddNumberToObject(ms, "ttft", r->ttft_ms);
    cJSON_AddNumberToObject(ms, "itl_p50", r->itl_p50_ms);
    cJSON_AddNumberToObject(ms, "itl_max", r->itl_max_ms);
    cJSON_AddStringToObject(o, "saved", r->saved);
    cJSON_AddStringToObject(o, "backend", r->backend);
    cJSON_AddStringToObject(o, "numerics", r->numerics);
    cJSON_AddStringToObject(o, "model", r->model);
    return o;
}

char *session_receipt_json(const struct session_receipt *r)
{
    cJSON *o = receipt_object(r);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

int receipt_evaluated(const struct turn *t)
{
    int length = t->hot ? engine_seq_length(t->hot->seq) : t->n_counted;
    int before = t->n_expected < t->n_prompt ? t->n_expected : t->n_prompt;
    /* A context that was rendered anew was not there before, whatever its tokens are. */
    return t->past.changed || length > before ? length : before;
}

char *receipt_stored(const struct session_receipt *r)
{
    cJSON *o = receipt_object(r);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "saved");
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

char *receipt_with_saved(const char *stored, enum storage_saved saved)
{
    static const char *const names[] = {"off", "pending", "yes", "failed"};
    size_t n = strlen(stored);
    char *text = malloc(n + 32);
    if (!text)
        return NULL;
    bool object = n > 2 && stored[n - 1] == '}';
    (void)snprintf(text, n + 32, "%.*s%s\"saved\":\"%s\"}", object ? (int)n - 1 : 1, object ? stored : "{",
                   object ? "," : "", names[saved]);
    return text;
}

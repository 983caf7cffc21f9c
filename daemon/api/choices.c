/* choices.c - what Chat Completions and Completions have in common: several answers to one request, the objects that
 * hold them, and how their streams end.
 */
#include <string.h>

#include "daemon/api/api.h"

int choices_parse(const cJSON *body, struct turn_request *q, struct api_error *e)
{
    int64_t n = 1;
    if (json_int(body, "", "n", 1, CHOICES_MAX, &n, e)) {
        return -1;
    }
    q->n = (int)n;
    return 0;
}

cJSON *chat_usage(const struct run *run)
{
    cJSON *u = cJSON_CreateObject();
    double thinking = 0;
    for (int i = 0; i <= run->n_others; i++) {
        thinking += answer_thinking(run_choice(run, i));
    }
    cJSON_AddNumberToObject(u, "prompt_tokens", run->input_tokens);
    cJSON_AddNumberToObject(u, "completion_tokens", run->output_tokens);
    cJSON_AddNumberToObject(u, "total_tokens", run->input_tokens + run->output_tokens);
    cJSON *details = cJSON_AddObjectToObject(u, "prompt_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", run->cached_tokens);
    details = cJSON_AddObjectToObject(u, "completion_tokens_details");
    cJSON_AddNumberToObject(details, "reasoning_tokens", thinking);
    return u;
}

/* Of all answers to one request. */
static cJSON *head(const struct run *first, const struct choices *form, const char *object)
{
    char id[ID_SIZE];
    id_derive(form->id_prefix, first->id, id);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "object", object);
    cJSON_AddNumberToObject(o, "created", (double)(first->created_ms / 1000));
    cJSON_AddStringToObject(o, "model", first->runs->model);
    return o;
}

const char *choices_reason(const struct run *run)
{
    return answer_is_too_long(run) ? "length" : "stop";
}

cJSON *choices_chunk(const struct run *run, const struct choices *form, cJSON *choice)
{
    cJSON *o = head(run->first ? run->first : run, form, form->chunk);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "choices"), choice);
    return o;
}

void choices_log(struct run *run, const struct choices *form, cJSON *choice, bool last)
{
    cJSON *o = choices_chunk(run, form, choice);
    if (last) {
        receipt_add(o, run);
    }
    run_log(run, NULL, json_text(o));
}

static char *whole(const struct run *first, const struct choices *form)
{
    cJSON *o = head(first, form, form->object), *choices = cJSON_AddArrayToObject(o, "choices");
    for (int i = 0; i <= first->n_others; i++) {
        const struct run *run = run_choice(first, i);
        cJSON *choice = form->choice(run);
        if (i) {
            receipt_add(choice, run);
        }
        cJSON_AddItemToArray(choices, choice);
    }
    cJSON_AddItemToObject(o, "usage", chat_usage(first));
    receipt_add(o, first);
    return json_text(o);
}

void choices_done(struct run *run, const struct choices *form)
{
    struct run *first = run_first(run);
    if (first->failed) {
        if (first->ended && first->started) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddItemToObject(o, "error", api_error_json(&first->error));
            run_log(run, NULL, json_text(o));
        }
        return;
    }
    choices_log(run, form, form->last(run), true);
    if (!first->ended) {
        return;
    }
    if (first->request->include_usage) {
        cJSON *o = head(first, form, form->chunk);
        cJSON_AddArrayToObject(o, "choices");
        cJSON_AddItemToObject(o, "usage", chat_usage(first));
        run_log(run, NULL, json_text(o));
    }
    run_log(run, NULL, strdup("[DONE]"));
    first->answer = whole(first, form);
    first->answer_status = 200;
}

/* chat_completions.c - Chat Completions: the whole history in every request, none of it prefilled twice.
 *
 * The messages are handed to the session as they are; it finds the longest stored prefix of the same owner. Fields that
 * we do not know are ignored, because the pages that speak this send many; fields that would change the answer and that
 * we cannot honour are refused.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

static int parse_messages(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *list = json_get(body, "messages");
    if (!cJSON_IsArray(list) || !list->child) {
        api_error_set(e, 400, list ? "invalid_value" : "missing_required_parameter", "messages",
                      "'messages' must be a list with at least one message.");
        return -1;
    }
    if (messages_parse(q, list, "messages", false, e)) {
        return -1;
    }
    const struct session_item *last = &q->items[q->n_items - 1];
    if (last->role == ENGINE_USER && last->len == 0) {
        char param[96];
        snprintf(param, sizeof(param), "messages[%zu].content", q->n_items - 1);
        api_error_set(e, 400, "invalid_value", param, "The last message is empty.");
        return -1;
    }
    return 0;
}

static int refuse_unsupported(const cJSON *body, struct api_error *e)
{
    int64_t n = 1;
    bool logprobs = false;
    if (json_int(body, "", "n", 1, 128, &n, e) || json_bool(body, "", "logprobs", &logprobs, e)) {
        return -1;
    }
    const char *param = n > 1 ? "n" : logprobs ? "logprobs" : NULL;
    if (param) {
        api_error_set(e, 400, "unsupported_parameter", param, "'%s' is not supported with this value.", param);
        return -1;
    }
    return 0;
}

struct turn_request *chat_parse(cJSON *body, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    if (!q) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        cJSON_Delete(body);
        return NULL;
    }
    q->format = &completions_format;
    q->store = q->generate = true;
    int64_t max_tokens = 0;
    const char *model = NULL;
    const cJSON *options = NULL, *format = NULL;
    if (json_string(body, "", "model", 256, &model, e) || unsupported_check(body, UNSUPPORTED_COMPLETIONS, e) ||
        refuse_unsupported(body, e) || json_object(body, "", "response_format", &format, e) ||
        form_parse(format, "response_format.", true, q, NULL, e) || json_bool(body, "", "stream", &q->stream, e) ||
        json_object(body, "", "stream_options", &options, e) ||
        (options && json_bool(options, "stream_options.", "include_usage", &q->include_usage, e)) ||
        json_bool(body, "", "store", &q->store, e) || json_int(body, "", "max_tokens", 1, 1 << 30, &max_tokens, e) ||
        json_int(body, "", "max_completion_tokens", 1, 1 << 30, &max_tokens, e) ||
        sampling_parse(body, body, "", &q->sampling, e) ||
        json_stops(body, "", "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e) ||
        parse_messages(q, body, e)) {
        goto fail;
    }
    q->max_output_tokens = (int)max_tokens;
    q->model = model ? strdup(model) : NULL;
    if (model && !q->model) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        goto fail;
    }
    cJSON_Delete(body);
    return q;
fail:
    cJSON_Delete(body);
    turn_request_free(q);
    return NULL;
}

void chat_create(struct client *c)
{
    struct api_error e = {0};
    struct turn_request *q = client_turn(c, &e);
    if (!q || !model_check(c->api, q->model, &e) || !turn_request_count(q, &c->api->budget, c->request.body_len, &e)) {
        turn_request_free(q);
        client_answer_error(c, &e);
        return;
    }
    client_start(c, q);
}

/* ---- events --------------------------------------------------------------------------------------------------------
 */

static cJSON *head(const struct run *run, const char *object)
{
    char id[ID_SIZE];
    id_derive("chatcmpl-", run->id, id);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "object", object);
    cJSON_AddNumberToObject(o, "created", (double)(run->created_ms / 1000));
    cJSON_AddStringToObject(o, "model", run->runs->model);
    return o;
}

static cJSON *usage(const struct run *run)
{
    cJSON *u = cJSON_CreateObject();
    cJSON_AddNumberToObject(u, "prompt_tokens", run->input_tokens);
    cJSON_AddNumberToObject(u, "completion_tokens", run->output_tokens);
    cJSON_AddNumberToObject(u, "total_tokens", run->input_tokens + run->output_tokens);
    cJSON *details = cJSON_AddObjectToObject(u, "prompt_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", run->cached_tokens);
    return u;
}

static const char *finish_reason(const struct run *run)
{
    const char *r = run->reason;
    return strcmp(run->status, "incomplete") == 0 && r &&
                   (strcmp(r, "max_output_tokens") == 0 || strcmp(r, "context_length") == 0)
               ? "length"
               : "stop";
}

static void add_receipt(cJSON *o, const struct run *run)
{
    cJSON *receipt = run->receipt ? cJSON_Parse(run->receipt) : NULL;
    if (receipt) {
        cJSON_AddItemToObject(o, "convod", receipt);
    }
}

/* One chunk. Takes delta; NULL: no choices. */
static void emit(struct run *run, cJSON *delta, const char *reason, bool with_usage)
{
    cJSON *o = head(run, "chat.completion.chunk");
    cJSON *choices = cJSON_AddArrayToObject(o, "choices");
    if (delta) {
        cJSON *choice = cJSON_CreateObject();
        cJSON_AddNumberToObject(choice, "index", 0);
        cJSON_AddItemToObject(choice, "delta", delta);
        cJSON_AddNullToObject(choice, "logprobs");
        if (reason) {
            cJSON_AddStringToObject(choice, "finish_reason", reason);
            add_receipt(o, run);
        } else {
            cJSON_AddNullToObject(choice, "finish_reason");
        }
        cJSON_AddItemToArray(choices, choice);
    }
    if (with_usage) {
        cJSON_AddItemToObject(o, "usage", usage(run));
    }
    char *text = json_text(o);
    run_log(run, NULL, text);
}

static void chat_started(struct run *run)
{
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddStringToObject(delta, "role", "assistant");
    cJSON_AddStringToObject(delta, "content", "");
    emit(run, delta, NULL, false);
}

static void chat_delta(struct run *run, const char *text)
{
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddStringToObject(delta, "content", text);
    emit(run, delta, NULL, false);
}

static char *whole(const struct run *run)
{
    cJSON *o = head(run, "chat.completion");
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", 0);
    cJSON *message = cJSON_AddObjectToObject(choice, "message");
    cJSON_AddStringToObject(message, "role", "assistant");
    cJSON_AddStringToObject(message, "content", run->text ? run->text : "");
    cJSON_AddNullToObject(message, "refusal");
    cJSON_AddNullToObject(choice, "logprobs");
    cJSON_AddStringToObject(choice, "finish_reason", finish_reason(run));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "choices"), choice);
    cJSON_AddItemToObject(o, "usage", usage(run));
    add_receipt(o, run);
    char *text = json_text(o);
    return text;
}

static void chat_done(struct run *run)
{
    if (run->failed) {
        if (run->started) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddItemToObject(o, "error", api_error_json(&run->error));
            char *text = json_text(o);
            run_log(run, NULL, text);
        }
        return;
    }
    emit(run, cJSON_CreateObject(), finish_reason(run), false);
    if (run->request->include_usage) {
        emit(run, NULL, NULL, true);
    }
    run_log(run, NULL, strdup("[DONE]"));
    run->answer = whole(run);
    run->answer_status = 200;
}

const struct run_format completions_format = {
    .started = chat_started, .delta = chat_delta, .done = chat_done, .match = true};

/* completions.c - the older Completions: a text, or its tokens, and what the model writes behind it. No chat format is
 * put around it, and nothing of it is stored; what an owner's texts begin with alike is not prefilled twice, for as
 * long as it is in memory.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/messages.h"

#define MAX_TOKENS_DEFAULT 16
#define LOGPROBS_MAX       5

static int parse_tokens(struct turn_request *q, const cJSON *list, struct api_error *e)
{
    const cJSON *id;
    int n = cJSON_GetArraySize(list);
    q->tokens = malloc((size_t)n * sizeof(*q->tokens));
    if (!q->tokens) {
        return message_no_memory(e);
    }
    cJSON_ArrayForEach(id, list)
    {
        double v = cJSON_IsNumber(id) ? id->valuedouble : -1;
        if (!(v >= 0 && v <= INT32_MAX && v == (double)(int32_t)v)) {
            char param[32];
            snprintf(param, sizeof(param), "prompt[%zu]", q->n_tokens);
            api_error_set(e, 400, "invalid_value", param, "'%s' must be a token id.", param);
            return -1;
        }
        q->tokens[q->n_tokens++] = (engine_token)v;
    }
    return 0;
}

/* A text, a list of one text, a list of token ids, or a list of one of these. */
static int parse_prompt(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    struct message_list l = {.q = q, .name = "prompt", .e = e};
    const cJSON *prompt = json_get(body, "prompt");
    const char *text = "";
    if (cJSON_IsArray(prompt) && (cJSON_IsString(prompt->child) || cJSON_IsArray(prompt->child))) {
        if (prompt->child->next) {
            api_error_set(e, 400, "unsupported_parameter", "prompt", "Only one prompt is answered at a time.");
            return -1;
        }
        prompt = prompt->child;
    }
    if (cJSON_IsString(prompt) && prompt->valuestring[0]) {
        text = prompt->valuestring;
    } else if (cJSON_IsArray(prompt) && prompt->child) {
        if (parse_tokens(q, prompt, e)) {
            return -1;
        }
    } else {
        bool empty = cJSON_IsString(prompt) || cJSON_IsArray(prompt);
        api_error_set(e, 400,
                      !prompt ? "missing_required_parameter"
                      : empty ? "invalid_value"
                              : "invalid_type",
                      "prompt", "'prompt' must be a text that is not empty, or a list of token ids.");
        return -1;
    }
    char *kept = message_keep(q, text);
    return kept ? message_add(&l, "message", "msg_", ENGINE_USER, kept, NULL) : message_no_memory(e);
}

static int parse_counts(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    int64_t best = 0, max_tokens = MAX_TOKENS_DEFAULT, top = -1;
    if (choices_parse(body, q, e) || json_int(body, "", "best_of", 1, 128, &best, e) ||
        json_int(body, "", "logprobs", 0, LOGPROBS_MAX, &top, e) ||
        json_int(body, "", "max_tokens", -1, 1 << 30, &max_tokens, e)) {
        return -1;
    }
    if (best && best != q->n) {
        api_error_set(e, 400, "unsupported_parameter", "best_of", "'best_of' other than 'n' is not supported.");
        return -1;
    }
    if (max_tokens == 0) {
        api_error_set(e, 400, "invalid_value", "max_tokens", "'max_tokens' must be at least 1, or -1 for no limit.");
        return -1;
    }
    q->max_output_tokens = max_tokens < 0 ? 0 : (int)max_tokens;
    q->logprobs = top >= 0;
    q->n_top = top > 0 ? (int)top : 0;
    return 0;
}

static int parse(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *options = NULL;
    q->format = &text_format;
    q->input = "prompt";
    q->raw = q->generate = true;
    return unsupported_check(body, UNSUPPORTED_TEXT, e) || parse_counts(q, body, e) ||
                   json_bool(body, "", "stream", &q->stream, e) ||
                   json_object(body, "", "stream_options", &options, e) ||
                   (options && json_bool(options, "stream_options.", "include_usage", &q->include_usage, e)) ||
                   sampling_parse(body, body, "", &q->sampling, e) || bias_parse(body, q, e) ||
                   json_stops(body, "", "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e) ||
                   parse_prompt(q, body, e)
               ? -1
               : 0;
}

struct turn_request *completions_parse(cJSON *body, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    return request_parsed(q, body, q ? parse(q, body, e) : -1, e);
}

/* ---- answers -------------------------------------------------------------------------------------------------------
 */

/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of the tokens from `from` on, or null. */
static cJSON *odds(const struct run *run, size_t from)
{
    const struct run_item *item = run->n_items ? &run->items[0] : NULL;
    if (!run->request->logprobs || !item) {
        return cJSON_CreateNull();
    }
    cJSON *o = cJSON_CreateObject(), *tokens = cJSON_AddArrayToObject(o, "tokens"),
          *values = cJSON_AddArrayToObject(o, "token_logprobs"), *tops = cJSON_AddArrayToObject(o, "top_logprobs"),
          *offsets = cJSON_AddArrayToObject(o, "text_offset"), *list = logprobs_list(run, 0, from);
    const cJSON *entry, *top;
    size_t i = from;
    cJSON_ArrayForEach(entry, list)
    {
        cJSON *all = cJSON_CreateObject();
        cJSON_AddItemToArray(tokens, cJSON_Duplicate(json_get(entry, "token"), true));
        cJSON_AddItemToArray(values, cJSON_Duplicate(json_get(entry, "logprob"), true));
        cJSON_ArrayForEach(top, json_get(entry, "top_logprobs"))
        {
            cJSON_AddItemToObject(all, json_get(top, "token")->valuestring,
                                  cJSON_Duplicate(json_get(top, "logprob"), true));
        }
        cJSON_AddItemToArray(tops, all);
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)item->logprobs[i++].at));
    }
    cJSON_Delete(list);
    return o;
}

static cJSON *choice_of(const struct run *run, const char *text, cJSON *logprobs, const char *reason)
{
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", run->choice);
    cJSON_AddStringToObject(choice, "text", text);
    cJSON_AddItemToObject(choice, "logprobs", logprobs);
    cJSON_AddItemToObject(choice, "finish_reason", reason ? cJSON_CreateString(reason) : cJSON_CreateNull());
    return choice;
}

static cJSON *whole_of(const struct run *run)
{
    return choice_of(run, run->n_items ? run->items[0].text : "", odds(run, 0), choices_reason(run));
}

static cJSON *last_of(const struct run *run)
{
    return choice_of(run, "", cJSON_CreateNull(), choices_reason(run));
}

static const struct choices text_choices = {
    .id_prefix = "cmpl-", .object = "text_completion", .chunk = "text_completion", .choice = whole_of, .last = last_of};

static void emit(struct run *run, const char *text, cJSON *logprobs)
{
    choices_log(run, &text_choices, choice_of(run, text, logprobs, NULL), false);
}

static cJSON *piece_event(const struct run *run, size_t i)
{
    (void)i;
    return choices_chunk(run, &text_choices, choice_of(run, PIECE_MARK, cJSON_CreateNull(), NULL));
}

static void text_delta(struct run *run, size_t i, const char *text)
{
    if (run->request->logprobs) {
        emit(run, text, odds(run, run->items[i].n_logprobs_told));
    } else {
        piece_log(run, i, NULL, text, NULL, piece_event);
    }
}

static void text_item_end(struct run *run, size_t i)
{
    if (run->items[i].n_logprobs_told < run->items[i].n_logprobs) {
        emit(run, "", odds(run, run->items[i].n_logprobs_told));
    }
}

static void text_done(struct run *run)
{
    choices_done(run, &text_choices);
}

const struct run_format text_format = {.delta = text_delta, .item_end = text_item_end, .done = text_done};

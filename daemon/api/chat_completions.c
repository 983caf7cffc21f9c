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

#include "daemon/api/messages.h"

/* Whether a last message of the assistant is gone on with, or closed, and another one begun. */
static int parse_continue(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    bool begin = false, go_on = false;
    if (json_bool(body, "", "add_generation_prompt", &begin, e) ||
        json_bool(body, "", "continue_final_message", &go_on, e)) {
        return -1;
    }
    bool said = json_get(body, "continue_final_message");
    if (go_on && begin) {
        api_error_set(e, 400, "mutually_exclusive_parameters", "continue_final_message",
                      "'continue_final_message' and 'add_generation_prompt' exclude each other.");
        return -1;
    }
    if ((!begin && (go_on || !said)) && message_continue(q, "messages", e)) {
        return -1;
    }
    if (go_on && !q->opening) {
        api_error_set(e, 400, "invalid_value", "continue_final_message",
                      "'continue_final_message' needs a last message of the assistant with text.");
        return -1;
    }
    return 0;
}

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
    if (last->role == ENGINE_USER && last->len == 0 && !(last->kind && strcmp(last->kind, "message") != 0)) {
        char param[96];
        snprintf(param, sizeof(param), "messages[%d].content", cJSON_GetArraySize(list) - 1);
        api_error_set(e, 400, "invalid_value", param, "The last message is empty.");
        return -1;
    }
    return parse_continue(q, body, e);
}

static int parse_logprobs(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    if (json_bool(body, "", "logprobs", &q->logprobs, e) || logprobs_parse(body, q, e)) {
        return -1;
    }
    if (q->n_top && !q->logprobs) {
        api_error_set(e, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs'.");
        return -1;
    }
    return 0;
}

/* A number of tokens; -1, as some clients say it, is no limit. */
static int parse_limit(const cJSON *body, const char *key, int64_t *limit, struct api_error *e)
{
    if (json_int(body, "", key, -1, 1 << 30, limit, e)) {
        return -1;
    }
    const cJSON *v = json_get(body, key);
    if (v && *limit == 0) {
        api_error_set(e, 400, "invalid_value", key, "'%s' must be at least 1, or -1 for no limit.", key);
        return -1;
    }
    *limit = *limit < 0 ? 0 : *limit;
    return 0;
}

static int parse(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    q->format = &completions_format;
    q->input = "messages";
    q->store = q->generate = q->match = true;
    int64_t max_tokens = 0;
    const cJSON *options = NULL, *format = NULL;
    const char *verbosity = NULL;
    if (unsupported_check(body, UNSUPPORTED_COMPLETIONS, e) || choices_parse(body, q, e) ||
        parse_logprobs(q, body, e) || json_object(body, "", "response_format", &format, e) ||
        form_parse(format, "response_format.", true, q, NULL, e) || verbosity_parse(body, "", &verbosity, e) ||
        json_bool(body, "", "stream", &q->stream, e) || json_object(body, "", "stream_options", &options, e) ||
        (options && json_bool(options, "stream_options.", "include_usage", &q->include_usage, e)) ||
        json_bool(body, "", "store", &q->store, e) || parse_limit(body, "max_tokens", &max_tokens, e) ||
        parse_limit(body, "max_completion_tokens", &max_tokens, e) || sampling_parse(body, body, "", &q->sampling, e) ||
        bias_parse(body, q, e) || priority_parse(body, "", &q->patient, e) || effort_parse_chat(body, q, e) ||
        json_stops(body, "", "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e) ||
        parse_messages(q, body, e) || tools_parse(q, body, "function.parameters", NULL, e) ||
        message_opening_check(q, "response_format", e)) {
        return -1;
    }
    q->max_output_tokens = (int)max_tokens;
    return 0;
}

struct turn_request *chat_parse(cJSON *body, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    return request_parsed(q, body, q ? parse(q, body, e) : -1, e);
}

/* ---- events --------------------------------------------------------------------------------------------------------
 */

static bool is_call(const struct run *run, size_t i)
{
    return strcmp(run->items[i].kind, "function_call") == 0;
}

static bool is_thinking(const struct run *run, size_t i)
{
    return strcmp(run->items[i].kind, "reasoning") == 0;
}

static const char *finish_reason(const struct run *run)
{
    const char *reason = choices_reason(run);
    for (size_t i = 0; strcmp(reason, "stop") == 0 && i < run->n_items; i++) {
        if (is_call(run, i) && !run->items[i].incomplete) {
            return "tool_calls";
        }
    }
    return reason;
}

/* Which of the message's calls item i is. */
static size_t call_index(const struct run *run, size_t i)
{
    size_t n = 0;
    for (size_t k = 0; k < i; k++) {
        n += is_call(run, k);
    }
    return n;
}

/* {"id", "type", "function": {"name", "arguments"}} */
static cJSON *call_object(const struct run *run, size_t i, const char *arguments)
{
    cJSON *body = run->items[i].body ? cJSON_Parse(run->items[i].body) : NULL;
    const cJSON *id = body ? json_get(body, "call_id") : NULL, *name = body ? json_get(body, "name") : NULL;
    cJSON *call = cJSON_CreateObject();
    cJSON_AddStringToObject(call, "id", cJSON_IsString(id) ? id->valuestring : "");
    const char *kind = run->items[i].custom ? "custom" : "function";
    size_t from = 0;
    char *input = run->items[i].custom ? call_input(arguments, &from) : NULL;
    cJSON_AddStringToObject(call, "type", kind);
    cJSON *function = cJSON_AddObjectToObject(call, kind);
    cJSON_AddStringToObject(function, "name", cJSON_IsString(name) ? name->valuestring : "");
    if (run->items[i].custom) {
        cJSON_AddStringToObject(function, "input", input ? input : "");
    } else {
        cJSON_AddStringToObject(function, "arguments", arguments);
    }
    free(input);
    cJSON_Delete(body);
    return call;
}

/* {"content": [...], "refusal"} of the message's tokens, or null. of: its number, SIZE_MAX: all messages. */
static cJSON *logprobs(const struct run *run, size_t of)
{
    cJSON *list = NULL;
    for (size_t i = 0; i < run->n_items; i++) {
        size_t from = of == SIZE_MAX ? 0 : run->items[i].n_logprobs_told;
        if ((of != SIZE_MAX && of != i) || from >= run->items[i].n_logprobs) {
            continue;
        }
        list = list ? list : cJSON_CreateArray();
        cJSON *own = logprobs_list(run, i, from);
        while (own && own->child) {
            cJSON_AddItemToArray(list, cJSON_DetachItemViaPointer(own, own->child));
        }
        cJSON_Delete(own);
    }
    if (!list) {
        return cJSON_CreateNull();
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "content", list);
    cJSON_AddNullToObject(o, "refusal");
    return o;
}

/* Part of an answer. Takes delta, and odds: of its tokens; NULL: none. reason NULL: it goes on. */
static cJSON *part_of(const struct run *run, cJSON *delta, cJSON *odds, const char *reason)
{
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", run->choice);
    cJSON_AddItemToObject(choice, "delta", delta);
    cJSON_AddItemToObject(choice, "logprobs", odds ? odds : cJSON_CreateNull());
    cJSON_AddItemToObject(choice, "finish_reason", reason ? cJSON_CreateString(reason) : cJSON_CreateNull());
    return choice;
}

static cJSON *last_of(const struct run *run)
{
    return part_of(run, cJSON_CreateObject(), NULL, finish_reason(run));
}

static cJSON *choice_of(const struct run *run);

static const struct choices chat_choices = {.id_prefix = "chatcmpl-",
                                            .object = "chat.completion",
                                            .chunk = "chat.completion.chunk",
                                            .choice = choice_of,
                                            .last = last_of};

/* One chunk. Takes delta and odds, which may be NULL. */
static void emit(struct run *run, cJSON *delta, cJSON *odds)
{
    choices_log(run, &chat_choices, part_of(run, delta, odds, NULL), false);
}

static void chat_started(struct run *run)
{
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddStringToObject(delta, "role", "assistant");
    cJSON_AddStringToObject(delta, "content", "");
    emit(run, delta, NULL);
}

/* The part of one call. Takes call. */
static cJSON *call_delta(const struct run *run, size_t i, cJSON *call)
{
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddNumberToObject(call, "index", (double)call_index(run, i));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(delta, "tool_calls"), call);
    return delta;
}

static void chat_item(struct run *run, size_t i)
{
    if (is_call(run, i)) {
        emit(run, call_delta(run, i, call_object(run, i, "")), NULL);
    }
}

static cJSON *text_delta(const struct run *run, size_t i, const char *text)
{
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddStringToObject(delta, is_thinking(run, i) ? "reasoning_content" : "content", text);
    return delta;
}

static cJSON *piece_event(const struct run *run, size_t i)
{
    cJSON *delta;
    if (is_call(run, i)) {
        const bool custom = run->items[i].custom;
        cJSON *call = cJSON_CreateObject(), *of = cJSON_AddObjectToObject(call, custom ? "custom" : "function");
        cJSON_AddStringToObject(of, custom ? "input" : "arguments", PIECE_MARK);
        delta = call_delta(run, i, call);
    } else {
        delta = text_delta(run, i, PIECE_MARK);
    }
    return choices_chunk(run, &chat_choices, part_of(run, delta, NULL, NULL));
}

static void chat_delta(struct run *run, size_t i, const char *text)
{
    if (run->items[i].n_logprobs_told < run->items[i].n_logprobs) {
        emit(run, text_delta(run, i, text), logprobs(run, i));
    } else {
        piece_log(run, i, NULL, text, NULL, piece_event);
    }
}

static void chat_item_end(struct run *run, size_t i)
{
    if (run->items[i].n_logprobs_told < run->items[i].n_logprobs) {
        cJSON *delta = cJSON_CreateObject();
        cJSON_AddStringToObject(delta, "content", "");
        emit(run, delta, logprobs(run, i));
    }
}

/* The text of all items of a kind, malloc'd. */
static char *text_of(const struct run *run, const char *kind)
{
    size_t len = 0;
    for (size_t i = 0; i < run->n_items; i++) {
        len += strcmp(run->items[i].kind, kind) == 0 ? run->items[i].len : 0;
    }
    char *text = malloc(len + 1), *to = text;
    for (size_t i = 0; text && i < run->n_items; i++) {
        if (strcmp(run->items[i].kind, kind) == 0) {
            memcpy(to, run->items[i].text, run->items[i].len);
            to += run->items[i].len;
        }
    }
    if (text) {
        *to = '\0';
    }
    return text;
}

/* One answer. */
static cJSON *choice_of(const struct run *run)
{
    cJSON *choice = cJSON_CreateObject();
    cJSON_AddNumberToObject(choice, "index", run->choice);
    cJSON *message = cJSON_AddObjectToObject(choice, "message");
    cJSON_AddStringToObject(message, "role", "assistant");
    char *said = text_of(run, "message"), *thought = text_of(run, "reasoning");
    size_t calls = call_index(run, run->n_items);
    if (said && (said[0] || !calls)) {
        cJSON_AddStringToObject(message, "content", said);
    } else {
        cJSON_AddNullToObject(message, "content");
    }
    if (thought && thought[0]) {
        cJSON_AddStringToObject(message, "reasoning_content", thought);
    }
    free(said);
    free(thought);
    cJSON_AddNullToObject(message, "refusal");
    cJSON *list = calls ? cJSON_AddArrayToObject(message, "tool_calls") : NULL;
    for (size_t i = 0; list && i < run->n_items; i++) {
        if (is_call(run, i)) {
            cJSON_AddItemToArray(list, call_object(run, i, run->items[i].text));
        }
    }
    cJSON_AddItemToObject(choice, "logprobs", logprobs(run, SIZE_MAX));
    cJSON_AddStringToObject(choice, "finish_reason", finish_reason(run));
    return choice;
}

static void chat_done(struct run *run)
{
    choices_done(run, &chat_choices);
}

const struct run_format completions_format = {
    .started = chat_started, .item = chat_item, .delta = chat_delta, .item_end = chat_item_end, .done = chat_done};

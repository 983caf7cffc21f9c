/* response_object.c - responses as the API shows them: the object, and the events in their order.
 *
 * The order of events is fixed (created, in_progress, item and part added, deltas, text and part and item done, one
 * terminal event) and sequence_number is the index of the event in the run's log, so that a stream can be resumed from
 * a number alone.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

static void add_or_null(cJSON *o, const char *key, const char *value)
{
    if (value) {
        cJSON_AddStringToObject(o, key, value);
    } else {
        cJSON_AddNullToObject(o, key);
    }
}

/* A copy of a request parameter, or `fallback` (taken). */
static void add_param(cJSON *o, const cJSON *params, const char *key, cJSON *fallback)
{
    const cJSON *v = params ? json_get(params, key) : NULL;
    if (v) {
        cJSON_Delete(fallback);
        cJSON_AddItemToObject(o, key, cJSON_Duplicate(v, true));
    } else {
        cJSON_AddItemToObject(o, key, fallback);
    }
}

/* logprobs: of its tokens, taken; NULL: none. */
static cJSON *text_part(const char *text, cJSON *logprobs)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "output_text");
    cJSON_AddStringToObject(part, "text", text);
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddItemToObject(part, "logprobs", logprobs ? logprobs : cJSON_CreateArray());
    return part;
}

/* An item's own head: id, type, status. */
static cJSON *item_head(const struct session_item *i, const char *status)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", i->id);
    cJSON_AddStringToObject(item, "type", i->kind);
    cJSON_AddStringToObject(item, "status", status);
    return item;
}

/* An item as the API shows it. with_text: false: it has none yet. logprobs: as in text_part(), of an answer. */
static cJSON *show_item(const struct session_item *i, const char *status, bool with_text, cJSON *logprobs)
{
    cJSON *item = item_head(i, status);
    if (strcmp(i->kind, "message") == 0) {
        bool answer = i->output || i->role == ENGINE_ASSISTANT;
        cJSON_AddStringToObject(item, "role", answer ? "assistant" : i->role == ENGINE_SYSTEM ? "system" : "user");
        cJSON *content = cJSON_AddArrayToObject(item, "content");
        if (with_text && answer) {
            cJSON_AddItemToArray(content, text_part(i->text, logprobs));
        } else if (with_text) {
            cJSON *part = cJSON_CreateObject();
            cJSON_AddStringToObject(part, "type", "input_text");
            cJSON_AddStringToObject(part, "text", i->text);
            cJSON_AddItemToArray(content, part);
        }
        return item;
    }
    if (strcmp(i->kind, "reasoning") == 0) {
        cJSON_AddArrayToObject(item, "summary");
        cJSON *part = with_text ? cJSON_CreateObject() : NULL;
        if (part) {
            cJSON_AddStringToObject(part, "type", "reasoning_text");
            cJSON_AddStringToObject(part, "text", i->text);
            cJSON_AddItemToArray(cJSON_AddArrayToObject(item, "content"), part);
        }
        return item;
    }
    cJSON *body = i->body ? cJSON_Parse(i->body) : NULL;
    while (body && body->child) {
        cJSON *field = cJSON_DetachItemViaPointer(body, body->child);
        char *key = strdup(field->string);
        if (key) {
            cJSON_AddItemToObject(item, key, field);
        } else {
            cJSON_Delete(field);
        }
        free(key);
    }
    cJSON_Delete(body);
    bool call = strcmp(i->kind, "function_call") == 0, custom = cJSON_IsTrue(json_get(item, "custom"));
    call_show(item);
    if (!call) { /* the context's alone */
        cJSON_DeleteItemFromObjectCaseSensitive(item, "name");
    }
    if (custom) {
        cJSON_ReplaceItemInObjectCaseSensitive(
            item, "type", cJSON_CreateString(call ? "custom_tool_call" : "custom_tool_call_output"));
    }
    if (custom && call) {
        size_t from = 0;
        char *input = with_text ? call_input(i->text, &from) : NULL;
        cJSON_AddStringToObject(item, "input", input ? input : "");
        free(input);
        return item;
    }
    cJSON_AddStringToObject(item, call ? "arguments" : "output", with_text ? i->text : "");
    return item;
}

static bool is(const struct run *run, size_t i, const char *kind)
{
    return strcmp(run->items[i].kind, kind) == 0;
}

static bool is_message(const struct run *run, size_t i)
{
    return is(run, i, "message");
}

/* Whether the request wants thinking as a summary, too: it is its own. */
static bool wants_summary(const struct run *run)
{
    const cJSON *params = run->request->params_json, *reasoning = params ? json_get(params, "reasoning") : NULL;
    return reasoning && json_get(reasoning, "summary");
}

static cJSON *summary_part(const char *text)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "summary_text");
    cJSON_AddStringToObject(part, "text", text);
    return part;
}

static const char *item_status(const struct run *run, size_t i)
{
    const struct run_item *item = &run->items[i];
    return item->open ? "in_progress" : item->incomplete ? "incomplete" : "completed";
}

/* The tokens of an answer are told with its deltas. What says the same again, in one event, does so up to
 * LOGPROBS_AGAIN_MAX entries, or it would be as long as all of the deltas. */
static cJSON *logprobs_again(const struct run *run, size_t i)
{
    size_t n = 0;
    for (size_t k = 0; k < run->n_items; k++) {
        n += run->items[k].n_logprobs * (size_t)(run->request->n_top + 1);
    }
    return n <= LOGPROBS_AGAIN_MAX ? logprobs_list(run, i, 0) : cJSON_CreateArray();
}

/* An item of the output, as far as it is there. event: as an event has it. */
static cJSON *output_object(const struct run *run, size_t i, bool event)
{
    const struct run_item *item = &run->items[i];
    const struct session_item shown = {.id = item->id,
                                       .kind = item->kind,
                                       .role = ENGINE_ASSISTANT,
                                       .text = item->text,
                                       .len = item->len,
                                       .body = item->body,
                                       .output = true};
    cJSON *odds = !is_message(run, i) || item->open ? NULL : event ? logprobs_again(run, i) : logprobs_list(run, i, 0);
    cJSON *o = show_item(&shown, item_status(run, i), !item->open, odds);
    if (!item->open && is(run, i, "reasoning") && wants_summary(run)) {
        cJSON_AddItemToArray(cJSON_GetObjectItem(o, "summary"), summary_part(item->text));
    }
    return o;
}

double answer_thinking(const struct run *run)
{
    double n = 0;
    for (size_t i = 0; i < run->n_items; i++) {
        cJSON *body = is(run, i, "reasoning") && run->items[i].body ? cJSON_Parse(run->items[i].body) : NULL;
        const cJSON *tokens = body ? json_get(body, "tokens") : NULL;
        n += cJSON_IsNumber(tokens) ? tokens->valuedouble : 0;
        cJSON_Delete(body);
    }
    return n;
}

cJSON *response_usage(const struct run *run)
{
    cJSON *u = cJSON_CreateObject();
    cJSON_AddNumberToObject(u, "input_tokens", run->input_tokens);
    cJSON *in = cJSON_AddObjectToObject(u, "input_tokens_details");
    cJSON_AddNumberToObject(in, "cached_tokens", run->cached_tokens);
    cJSON_AddNumberToObject(in, "cache_write_tokens", 0);
    cJSON_AddNumberToObject(u, "output_tokens", run->output_tokens);
    cJSON *out = cJSON_AddObjectToObject(u, "output_tokens_details");
    cJSON_AddNumberToObject(out, "reasoning_tokens", answer_thinking(run));
    cJSON_AddNumberToObject(u, "total_tokens", run->input_tokens + run->output_tokens);
    return u;
}

bool answer_is_too_long(const struct run *run)
{
    return strcmp(run->status, "incomplete") == 0 && run->reason &&
           (strcmp(run->reason, "max_output_tokens") == 0 || strcmp(run->reason, "context_length") == 0);
}

void receipt_add(cJSON *o, const struct run *run)
{
    cJSON *receipt = run->receipt ? cJSON_Parse(run->receipt) : NULL;
    if (receipt && run->reason) {
        cJSON_AddStringToObject(receipt, "incomplete_reason", run->reason);
    }
    if (receipt) {
        cJSON_AddItemToObject(o, "convod", receipt);
    }
}

static void add_convod(cJSON *o, const struct run *run)
{
    cJSON *convod = run->receipt ? cJSON_Parse(run->receipt) : NULL;
    if (!convod) {
        convod = cJSON_CreateObject();
    }
    const cJSON *sent = run->request->params_json ? json_get(run->request->params_json, "convod") : NULL;
    const cJSON *seed = sent ? json_get(sent, "seed") : NULL;
    const cJSON *skipped = sent ? json_get(sent, "skipped_tools") : NULL;
    if (skipped) {
        cJSON_AddItemToObject(convod, "skipped_tools", cJSON_Duplicate(skipped, true));
    }
    if (seed) {
        json_add_integer(convod, "seed", (int64_t)run->request->sampling.seed);
    }
    if (strcmp(run->status, "incomplete") == 0) {
        add_or_null(convod, "incomplete_reason", run->reason);
    }
    if (run->request->has_parent) {
        add_or_null(convod, "parent", run->request->parent);
    }
    if (!run->receipt && run->conversation[0]) {
        cJSON_AddStringToObject(convod, "conversation", run->conversation);
    }
    cJSON_AddItemToObject(o, "convod", convod);
}

/* Which thinking the context had, once that is known, in place of what was asked for. */
static void tell_context(cJSON *o, const cJSON *params)
{
    const cJSON *had = json_get(json_get(o, "convod"), "reasoning_context");
    cJSON *reasoning = had && params ? cJSON_Duplicate(json_get(params, "reasoning"), true) : NULL;
    if (reasoning) {
        cJSON_ReplaceItemInObjectCaseSensitive(reasoning, "context", cJSON_CreateString(had->valuestring));
        cJSON_ReplaceItemInObjectCaseSensitive(o, "reasoning", reasoning);
    }
}

static cJSON *whole_object(const struct run *run, bool event)
{
    const struct turn_request *q = run->request;
    const cJSON *params = q->params_json;
    bool done = run->ended && !run->failed;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", run->id);
    cJSON_AddStringToObject(o, "object", "response");
    cJSON_AddNumberToObject(o, "created_at", (double)(run->created_ms / 1000));
    if (run->ended && run->completed_ms) {
        cJSON_AddNumberToObject(o, "completed_at", (double)(run->completed_ms / 1000));
    } else {
        cJSON_AddNullToObject(o, "completed_at");
    }
    cJSON_AddStringToObject(o, "status", run->status);
    cJSON_AddBoolToObject(o, "background", q->background);
    if (run->failed) {
        cJSON *error = cJSON_AddObjectToObject(o, "error");
        cJSON_AddStringToObject(error, "code", "server_error");
        cJSON_AddStringToObject(error, "message", run->error.message);
    } else {
        cJSON_AddNullToObject(o, "error");
    }
    if (strcmp(run->status, "incomplete") == 0) {
        cJSON *details = cJSON_AddObjectToObject(o, "incomplete_details");
        /* The one that the API has; ours are told under convod. */
        add_or_null(details, "reason", answer_is_too_long(run) ? "max_output_tokens" : NULL);
    } else {
        cJSON_AddNullToObject(o, "incomplete_details");
    }
    add_or_null(o, "instructions", q->instructions);
    add_param(o, params, "max_output_tokens", cJSON_CreateNull());
    cJSON_AddNullToObject(o, "max_tool_calls");
    cJSON_AddStringToObject(o, "model", run->runs->model);
    cJSON *output = cJSON_AddArrayToObject(o, "output");
    for (size_t i = 0; run->ended && !run->failed && i < run->n_items; i++) {
        cJSON_AddItemToArray(output, output_object(run, i, event));
    }
    add_param(o, params, "parallel_tool_calls", cJSON_CreateTrue());
    add_or_null(o, "previous_response_id", q->previous);
    if (q->conversation) {
        cJSON *conversation = cJSON_AddObjectToObject(o, "conversation");
        cJSON_AddStringToObject(conversation, "id", q->conversation);
    } else {
        cJSON_AddNullToObject(o, "conversation");
    }
    cJSON_AddBoolToObject(o, "store", q->store);
    cJSON_AddNumberToObject(o, "temperature", sampling_shown(q->sampling.temperature));
    cJSON_AddNumberToObject(o, "top_p", sampling_shown(q->sampling.top_p));
    cJSON *text = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(text, "format"), "type", "text");
    add_param(o, params, "text", text);
    add_param(o, params, "tool_choice", cJSON_CreateString("auto"));
    add_param(o, params, "tools", cJSON_CreateArray());
    add_param(o, params, "reasoning", cJSON_CreateNull());
    add_param(o, params, "top_logprobs", cJSON_CreateNumber(0));
    add_param(o, params, "truncation", cJSON_CreateString("disabled"));
    cJSON_AddStringToObject(o, "service_tier", "default");
    if (done) {
        cJSON_AddItemToObject(o, "usage", response_usage(run));
    } else {
        cJSON_AddNullToObject(o, "usage");
    }
    add_param(o, params, "metadata", cJSON_CreateObject());
    add_convod(o, run);
    tell_context(o, params);
    return o;
}

cJSON *response_object(const struct run *run)
{
    return whole_object(run, false);
}

/* ---- events -------------------------------------------------------------------------------------------------------
 */

/* Appends an event. Takes e. */
static void emit(struct run *run, const char *type, cJSON *e)
{
    cJSON_AddStringToObject(e, "type", type);
    cJSON_AddNumberToObject(e, "sequence_number", (double)run->sequence++);
    char *text = json_text(e);
    run_log(run, type, text);
}

/* An event of the whole response, which is there as text (NULL: out of memory): several say the same of it. */
static void log_response(struct run *run, const char *type, const char *object)
{
    char *event = NULL;
    if (object && asprintf(&event, "{\"response\":%s,\"type\":\"%s\",\"sequence_number\":%lld}", object, type,
                           (long long)run->sequence++) < 0) {
        event = NULL;
    }
    run_log(run, type, event);
}

static void emit_response(struct run *run, const char *type)
{
    char *object = json_text(whole_object(run, true));
    log_response(run, type, object);
    free(object);
}

/* An event about item i. */
static cJSON *item_event(const struct run *run, size_t i)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddStringToObject(e, "item_id", run->items[i].id);
    cJSON_AddNumberToObject(e, "output_index", (double)i);
    return e;
}

/* About its only part, if it is a message. */
static cJSON *part_event(const struct run *run, size_t i)
{
    cJSON *e = item_event(run, i);
    cJSON_AddNumberToObject(e, "content_index", 0);
    return e;
}

/* Thinking, or the summary that it is shown as. part NULL: an event about its text. */
static void emit_thinking(struct run *run, size_t i, const char *type, const char *text, cJSON *part)
{
    cJSON *e = item_event(run, i);
    cJSON_AddNumberToObject(e, wants_summary(run) ? "summary_index" : "content_index", 0);
    if (part) {
        cJSON_AddItemToObject(e, "part", part);
    } else {
        cJSON_AddStringToObject(e, "text", text);
    }
    emit(run, type, e);
}

static void emit_item(struct run *run, size_t i, const char *type)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddNumberToObject(e, "output_index", (double)i);
    cJSON_AddItemToObject(e, "item", output_object(run, i, true));
    emit(run, type, e);
}

static void responses_item(struct run *run, size_t i)
{
    bool open = run->items[i].open;
    run->items[i].open = true; /* as it was, also where the end is known already */
    emit_item(run, i, "response.output_item.added");
    run->items[i].open = open;
    if (is_message(run, i)) {
        cJSON *e = part_event(run, i);
        cJSON_AddItemToObject(e, "part", text_part("", NULL));
        emit(run, "response.content_part.added", e);
    } else if (is(run, i, "reasoning") && wants_summary(run)) {
        emit_thinking(run, i, "response.reasoning_summary_part.added", NULL, summary_part(""));
    }
}

static void responses_item_end(struct run *run, size_t i)
{
    const char *text = run->items[i].text;
    cJSON *e;
    if (is_message(run, i)) {
        e = part_event(run, i);
        cJSON_AddStringToObject(e, "text", text);
        cJSON_AddItemToObject(e, "logprobs", logprobs_again(run, i));
        emit(run, "response.output_text.done", e);
        e = part_event(run, i);
        cJSON_AddItemToObject(e, "part", text_part(text, logprobs_again(run, i)));
        emit(run, "response.content_part.done", e);
    } else if (is(run, i, "reasoning") && wants_summary(run)) {
        emit_thinking(run, i, "response.reasoning_summary_text.done", text, NULL);
        emit_thinking(run, i, "response.reasoning_summary_part.done", NULL, summary_part(text));
    } else if (is(run, i, "reasoning")) {
        emit_thinking(run, i, "response.reasoning_text.done", text, NULL);
    } else if (run->items[i].custom) {
        size_t from = 0;
        char *input = call_input(text, &from);
        e = item_event(run, i);
        cJSON_AddStringToObject(e, "input", input ? input : "");
        emit(run, "response.custom_tool_call_input.done", e);
        free(input);
    } else {
        cJSON *body = run->items[i].body ? cJSON_Parse(run->items[i].body) : NULL;
        const cJSON *name = body ? json_get(body, "name") : NULL;
        e = item_event(run, i);
        cJSON_AddStringToObject(e, "name", cJSON_IsString(name) ? name->valuestring : "");
        cJSON_AddStringToObject(e, "arguments", text);
        emit(run, "response.function_call_arguments.done", e);
        cJSON_Delete(body);
    }
    emit_item(run, i, "response.output_item.done");
}

static void responses_started(struct run *run)
{
    char *object = json_text(whole_object(run, true));
    log_response(run, "response.created", object);
    log_response(run, strcmp(run->status, "queued") == 0 ? "response.queued" : "response.in_progress", object);
    free(object);
}

static void responses_running(struct run *run)
{
    emit_response(run, "response.in_progress");
}

static void responses_progress(struct run *run, const struct session_event *ev)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddStringToObject(e, "response_id", run->id);
    cJSON_AddStringToObject(e, "stage", ev->stage ? ev->stage : "");
    cJSON_AddNumberToObject(e, "done", (double)ev->done);
    cJSON_AddNumberToObject(e, "total", (double)ev->total);
    emit(run, "response.convod.progress", e);
}

/* What an event of a piece of item i's text is called. */
static const char *piece_type(const struct run *run, size_t i)
{
    if (is(run, i, "reasoning")) {
        return wants_summary(run) ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta";
    }
    return is_message(run, i)     ? "response.output_text.delta"
           : run->items[i].custom ? "response.custom_tool_call_input.delta"
                                  : "response.function_call_arguments.delta";
}

/* But for its number. Takes logprobs. */
static cJSON *delta_event(const struct run *run, size_t i, const char *text, cJSON *logprobs)
{
    cJSON *e = item_event(run, i);
    if (is_message(run, i) || is(run, i, "reasoning")) {
        bool summary = !is_message(run, i) && wants_summary(run);
        cJSON_AddNumberToObject(e, summary ? "summary_index" : "content_index", 0);
    }
    cJSON_AddStringToObject(e, "delta", text);
    if (is_message(run, i)) {
        cJSON_AddItemToObject(e, "logprobs", logprobs);
    }
    return e;
}

static cJSON *piece_event(const struct run *run, size_t i)
{
    cJSON *e = delta_event(run, i, PIECE_MARK, is_message(run, i) ? cJSON_CreateArray() : NULL);
    cJSON_AddStringToObject(e, "type", piece_type(run, i));
    return e;
}

static void responses_delta(struct run *run, size_t i, const char *text)
{
    const struct run_item *item = &run->items[i];
    if (item->n_logprobs_told < item->n_logprobs) {
        emit(run, piece_type(run, i), delta_event(run, i, text, logprobs_list(run, i, item->n_logprobs_told)));
    } else {
        piece_log(run, i, piece_type(run, i), text, &run->sequence, piece_event);
    }
}

static void responses_completed(struct run *run)
{
    char *object = json_text(whole_object(run, true));
    log_response(run, strcmp(run->status, "completed") == 0 ? "response.completed" : "response.incomplete", object);
    if (run->request->logprobs) { /* the event may be without them */
        free(object);
        object = json_text(response_object(run));
    }
    run->answer = object;
    run->answer_status = 200;
}

static void responses_failed(struct run *run)
{
    if (run->started) {
        emit_response(run, "response.failed");
    }
}

static void responses_done(struct run *run)
{
    if (run->failed) {
        responses_failed(run);
    } else {
        responses_completed(run);
    }
}

const struct run_format responses_format = {.started = responses_started,
                                            .running = responses_running,
                                            .progress = responses_progress,
                                            .item = responses_item,
                                            .delta = responses_delta,
                                            .item_end = responses_item_end,
                                            .done = responses_done};

/* ---- stored responses
 * ------------------------------------------------------------------------------------------------ */

size_t responses_replay(struct run *run, int64_t starting_after)
{
    const char *final = run->status;
    bool failed = run->failed, progress = run->request->progress || run->request->background;
    /* Two events at the start and one at the end; two at the beginning of an item and three at its end, and in all of
     * them a delta for each token and one more. */
    if (!progress && starting_after >= 3 + 6 * (int64_t)run->n_items + (int64_t)run->output_tokens) {
        return SIZE_MAX;
    }
    /* Until the first delta, or the first progress, the numbers are those of the original. After that they are not
     * known: who has them is sent the events that hold the whole of each item, numbered from where it stopped. With
     * progress it may have stopped before there was an item, so its beginning comes as well. */
    const int64_t known = progress || !run->n_items                                               ? 2
                          : is_message(run, 0) || (is(run, 0, "reasoning") && wants_summary(run)) ? 4
                                                                                                  : 3;
    bool all = starting_after < known;
    if (all) {
        run->status = "in_progress";
        run->ended = run->failed = false;
        responses_started(run);
    } else {
        run->sequence = starting_after + 1;
    }
    for (size_t i = 0; i < run->n_items && !failed; i++) {
        if (all || i > 0 || progress) {
            responses_item(run, i);
        }
        if (all) {
            responses_delta(run, i, run->items[i].text);
        }
        responses_item_end(run, i);
    }
    run->ended = true;
    run->status = final;
    run->failed = failed;
    responses_done(run);
    size_t from = all ? (size_t)(starting_after + 1) : 0;
    return from < run->n_log ? from : run->n_log;
}

cJSON *item_object(const struct session_item *i)
{
    cJSON *item = show_item(i, i->incomplete ? "incomplete" : "completed", true, NULL);
    if (i->response) {
        cJSON_AddStringToObject(item, "response_id", i->response);
    }
    return item;
}

cJSON *item_list(const struct session_item *items, size_t n, bool more)
{
    cJSON *data = cJSON_CreateArray();
    for (size_t i = 0; i < n; i++) {
        cJSON_AddItemToArray(data, item_object(&items[i]));
    }
    return list_object(data, more);
}

cJSON *list_object(cJSON *items, bool more)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "list");
    int n = cJSON_GetArraySize(items);
    const cJSON *first = n ? json_get(cJSON_GetArrayItem(items, 0), "id") : NULL;
    const cJSON *last = n ? json_get(cJSON_GetArrayItem(items, n - 1), "id") : NULL;
    cJSON_AddItemToObject(o, "data", items);
    add_or_null(o, "first_id", cJSON_IsString(first) ? first->valuestring : NULL);
    add_or_null(o, "last_id", cJSON_IsString(last) ? last->valuestring : NULL);
    cJSON_AddBoolToObject(o, "has_more", more);
    return o;
}

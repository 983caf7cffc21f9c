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

static cJSON *text_part(const char *text)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "output_text");
    cJSON_AddStringToObject(part, "text", text);
    cJSON_AddArrayToObject(part, "annotations");
    cJSON_AddArrayToObject(part, "logprobs");
    return part;
}

/* The answer's item. text NULL: it has no content yet. */
static cJSON *message_item(const char *id, const char *status, const char *text)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "type", "message");
    cJSON_AddStringToObject(item, "status", status);
    cJSON_AddStringToObject(item, "role", "assistant");
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    if (text) {
        cJSON_AddItemToArray(content, text_part(text));
    }
    return item;
}

static cJSON *usage(const struct run *run)
{
    cJSON *u = cJSON_CreateObject();
    cJSON_AddNumberToObject(u, "input_tokens", run->input_tokens);
    cJSON *in = cJSON_AddObjectToObject(u, "input_tokens_details");
    cJSON_AddNumberToObject(in, "cached_tokens", run->cached_tokens);
    cJSON_AddNumberToObject(in, "cache_write_tokens", 0);
    cJSON_AddNumberToObject(u, "output_tokens", run->output_tokens);
    cJSON *out = cJSON_AddObjectToObject(u, "output_tokens_details");
    cJSON_AddNumberToObject(out, "reasoning_tokens", 0);
    cJSON_AddNumberToObject(u, "total_tokens", run->input_tokens + run->output_tokens);
    return u;
}

/* The reasons that the API has; ours are told under convod. */
static const char *api_reason(const char *reason)
{
    return reason && (strcmp(reason, "max_output_tokens") == 0 || strcmp(reason, "context_length") == 0)
               ? "max_output_tokens"
               : NULL;
}

static void add_convod(cJSON *o, const struct run *run)
{
    cJSON *convod = run->receipt ? cJSON_Parse(run->receipt) : NULL;
    if (!convod) {
        convod = cJSON_CreateObject();
    }
    const cJSON *sent = run->request->params_json ? json_get(run->request->params_json, "convod") : NULL;
    const cJSON *seed = sent ? json_get(sent, "seed") : NULL;
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

cJSON *response_object(const struct run *run)
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
        add_or_null(details, "reason", api_reason(run->reason));
    } else {
        cJSON_AddNullToObject(o, "incomplete_details");
    }
    add_or_null(o, "instructions", q->instructions);
    add_param(o, params, "max_output_tokens", cJSON_CreateNull());
    cJSON_AddNullToObject(o, "max_tool_calls");
    cJSON_AddStringToObject(o, "model", run->runs->model);
    cJSON *output = cJSON_AddArrayToObject(o, "output");
    if (run->ended && !run->failed && q->generate) {
        cJSON_AddItemToArray(output, message_item(run->message_id, run->status, run->text ? run->text : ""));
    }
    cJSON_AddBoolToObject(o, "parallel_tool_calls", true);
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
    cJSON_AddStringToObject(o, "tool_choice", "auto");
    cJSON_AddArrayToObject(o, "tools");
    cJSON_AddStringToObject(o, "truncation", "disabled");
    cJSON_AddStringToObject(o, "service_tier", "default");
    if (done) {
        cJSON_AddItemToObject(o, "usage", usage(run));
    } else {
        cJSON_AddNullToObject(o, "usage");
    }
    add_param(o, params, "metadata", cJSON_CreateObject());
    add_convod(o, run);
    return o;
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

static void emit_response(struct run *run, const char *type)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddItemToObject(e, "response", response_object(run));
    emit(run, type, e);
}

/* An event about the answer's only part. */
static cJSON *part_event(const struct run *run)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddStringToObject(e, "item_id", run->message_id);
    cJSON_AddNumberToObject(e, "output_index", 0);
    cJSON_AddNumberToObject(e, "content_index", 0);
    return e;
}

static void item_begin(struct run *run)
{
    if (run->item_open) {
        return;
    }
    run->item_open = true;
    cJSON *e = cJSON_CreateObject();
    cJSON_AddNumberToObject(e, "output_index", 0);
    cJSON_AddItemToObject(e, "item", message_item(run->message_id, "in_progress", NULL));
    emit(run, "response.output_item.added", e);
    e = part_event(run);
    cJSON_AddItemToObject(e, "part", text_part(""));
    emit(run, "response.content_part.added", e);
}

static void item_end(struct run *run)
{
    const char *text = run->text ? run->text : "";
    cJSON *e = part_event(run);
    cJSON_AddStringToObject(e, "text", text);
    cJSON_AddArrayToObject(e, "logprobs");
    emit(run, "response.output_text.done", e);
    e = part_event(run);
    cJSON_AddItemToObject(e, "part", text_part(text));
    emit(run, "response.content_part.done", e);
    e = cJSON_CreateObject();
    cJSON_AddNumberToObject(e, "output_index", 0);
    cJSON_AddItemToObject(e, "item", message_item(run->message_id, run->status, text));
    emit(run, "response.output_item.done", e);
}

static void responses_started(struct run *run)
{
    emit_response(run, "response.created");
    emit_response(run, strcmp(run->status, "queued") == 0 ? "response.queued" : "response.in_progress");
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

static void responses_delta(struct run *run, const char *text)
{
    item_begin(run);
    cJSON *e = part_event(run);
    cJSON_AddStringToObject(e, "delta", text);
    cJSON_AddArrayToObject(e, "logprobs");
    emit(run, "response.output_text.delta", e);
}

static void responses_completed(struct run *run)
{
    if (run->request->generate) {
        item_begin(run);
        item_end(run);
    }
    emit_response(run, strcmp(run->status, "completed") == 0 ? "response.completed" : "response.incomplete");
    cJSON *o = response_object(run);
    run->answer = json_text(o);
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
                                            .delta = responses_delta,
                                            .done = responses_done};

/* ---- stored responses
 * ------------------------------------------------------------------------------------------------ */

size_t responses_replay(struct run *run, int64_t starting_after)
{
    const char *final = run->status;
    bool failed = run->failed, progress = run->request->progress || run->request->background;
    /* Two events at the start, two of the item, a delta for each token and one more, three and one at the end. */
    if (!progress && starting_after >= (run->request->generate ? 9 + (int64_t)run->output_tokens : 3)) {
        return SIZE_MAX;
    }
    /* Until the first delta, or the first progress, the numbers are those of the original. After that they are not
     * known: who has them is sent the events that hold the whole text, numbered from where it stopped. With progress it
     * may have stopped before there was an item, so those two come as well. */
    const int64_t known = progress ? 2 : 4;
    if (starting_after < known) {
        run->status = "in_progress";
        run->ended = run->failed = false;
        responses_started(run);
        if (run->request->generate && !failed) {
            responses_delta(run, run->text ? run->text : "");
        }
        run->ended = true;
        run->status = final;
        run->failed = failed;
    } else {
        run->sequence = starting_after + 1;
        run->item_open = !progress;
    }
    responses_done(run);
    size_t from = starting_after < known ? (size_t)(starting_after + 1) : 0;
    return from < run->n_log ? from : run->n_log;
}

cJSON *item_object(const struct session_item *i)
{
    static const char *const roles[] = {[ENGINE_SYSTEM] = "system", [ENGINE_USER] = "user"};
    cJSON *item;
    if (i->output) {
        item = message_item(i->id, i->incomplete ? "incomplete" : "completed", i->text);
    } else {
        bool answer = i->role == ENGINE_ASSISTANT;
        item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "id", i->id);
        cJSON_AddStringToObject(item, "type", i->kind);
        cJSON_AddStringToObject(item, "status", "completed");
        cJSON_AddStringToObject(item, "role", answer ? "assistant" : roles[i->role]);
        cJSON *part = cJSON_CreateObject();
        cJSON_AddStringToObject(part, "type", answer ? "output_text" : "input_text");
        cJSON_AddStringToObject(part, "text", i->text);
        if (answer) {
            cJSON_AddArrayToObject(part, "annotations");
        }
        cJSON_AddItemToArray(cJSON_AddArrayToObject(item, "content"), part);
    }
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

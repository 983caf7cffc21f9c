/* anthropic.c - Messages, as Anthropic's clients and coding agents speak it: the whole history in every request, none
 * of it prefilled twice.
 *
 * A body is read into the same items as those of the other interfaces, so that a history is found whatever it was made
 * through. What clients send back of thinking is passed over, as everywhere. An answer's items are its content blocks,
 * one for one.
 *
 * Some agents put a line into the system prompt that names their billing and changes with every request; it says
 * nothing to a model, and is left out, or no request would find the history of the one before.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/messages.h"

#define SYSTEM_LINE  "x-anthropic-billing-header:"
#define BLOCK_PREFIX 64

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

static const char *block_type(const cJSON *block)
{
    const cJSON *type = json_get(block, "type");
    return cJSON_IsObject(block) && cJSON_IsString(type) ? type->valuestring : "";
}

/* A text block's text; NULL: it is none. */
static const char *block_text(const cJSON *block)
{
    const cJSON *text = json_get(block, "text");
    return strcmp(block_type(block), "text") == 0 && cJSON_IsString(text) ? text->valuestring : NULL;
}

/* The texts of the blocks from `block` on, up to `end`, kept as one, with `between` between them. */
static char *join(struct turn_request *q, const cJSON *block, const cJSON *end, const char *between)
{
    size_t len = 0, gap = strlen(between);
    for (const cJSON *b = block; b != end; b = b->next) {
        len += strlen(block_text(b)) + (b == block ? 0 : gap);
    }
    char *text = message_room(q, len), *to = text;
    for (const cJSON *b = block; text && b != end; b = b->next) {
        size_t n = strlen(block_text(b));
        if (b != block) {
            memcpy(to, between, gap);
            to += gap;
        }
        memcpy(to, block_text(b), n);
        to += n;
    }
    return text;
}

static int refuse_block(const cJSON *block, const char *where, struct api_error *e)
{
    api_error_set(e, 400, "invalid_value", where, "'%s': blocks of type '%.40s' are not supported here.", where,
                  block_type(block));
    return -1;
}

static int add_tool_use(struct message_list *l, const cJSON *block, const char *prefix)
{
    const char *id, *name;
    const cJSON *input = NULL;
    if (message_need_string(l, block, prefix, "id", CALL_ID_MAX, &id) ||
        message_need_string(l, block, prefix, "name", 128, &name) ||
        json_object(block, prefix, "input", &input, l->e)) {
        return -1;
    }
    char *arguments = input ? json_print(input) : strdup("{}");
    int rc = arguments ? message_add_call(l, id, name, arguments, prefix) : message_no_memory(l->e);
    free(arguments);
    return rc;
}

static int add_tool_result(struct message_list *l, const cJSON *block, const char *prefix)
{
    char where[96];
    const char *id;
    snprintf(where, sizeof(where), "%scontent", prefix);
    if (message_need_string(l, block, prefix, "tool_use_id", CALL_ID_MAX, &id)) {
        return -1;
    }
    const cJSON *content = json_get(block, "content"), *part;
    bool texts = cJSON_IsArray(content);
    cJSON_ArrayForEach(part, content)
    {
        texts = texts && block_text(part);
    }
    char *text = texts ? join(l->q, content->child, NULL, "\n") : NULL;
    if (texts && !text) {
        return message_no_memory(l->e);
    }
    cJSON *own = texts ? cJSON_CreateStringReference(text) : content ? NULL : cJSON_CreateString("");
    int rc = message_add_result(l, id, own ? own : content, where);
    cJSON_Delete(own);
    return rc;
}

/* Blocks of text that follow each other are one message; of the user a line each, of the model as it wrote them. */
static int add_blocks(struct message_list *l, const cJSON *content, enum engine_role role)
{
    const bool answer = role == ENGINE_ASSISTANT;
    int i = 0;
    for (const cJSON *block = content->child, *next; block; block = next, i++) {
        char prefix[BLOCK_PREFIX + 1], where[BLOCK_PREFIX];
        const char *type = block_type(block);
        next = block->next;
        snprintf(where, sizeof(where), "%s[%zu].content[%d]", l->name, l->index, i);
        snprintf(prefix, sizeof(prefix), "%s.", where);
        if (block_text(block)) {
            while (next && block_text(next)) {
                next = next->next;
                i++;
            }
            char *text = join(l->q, block, next, answer ? "" : "\n");
            /* A model that only calls tools may be said to have written nothing. */
            bool nothing = text && answer && !text[strspn(text, " \t\r\n")];
            if (!text || (!nothing && message_add(l, "message", "msg_", role, text, NULL))) {
                return text ? -1 : message_no_memory(l->e);
            }
        } else if (answer && strcmp(type, "tool_use") == 0) {
            if (add_tool_use(l, block, prefix)) {
                return -1;
            }
        } else if (!answer && strcmp(type, "tool_result") == 0) {
            if (add_tool_result(l, block, prefix)) {
                return -1;
            }
        } else if (!answer || (strcmp(type, "thinking") != 0 && strcmp(type, "redacted_thinking") != 0)) {
            return refuse_block(block, where, l->e);
        }
    }
    return 0;
}

static int add_message(struct message_list *l, const cJSON *message)
{
    char where[BLOCK_PREFIX];
    const char *name = NULL;
    enum engine_role role;
    snprintf(where, sizeof(where), "%s[%zu]", l->name, l->index);
    if (!cJSON_IsObject(message)) {
        api_error_set(l->e, 400, "invalid_type", where, "Invalid type for '%s': expected an object.", where);
        return -1;
    }
    strcat(where, ".");
    if (json_string(message, where, "role", 64, &name, l->e)) {
        return -1;
    }
    if (!name || message_role(name, &role) || strcmp(name, "developer") == 0) {
        strcat(where, "role");
        api_error_set(l->e, 400, "invalid_value", where, "'%s' must be user, assistant or system.", where);
        return -1;
    }
    const cJSON *content = json_get(message, "content");
    if (cJSON_IsArray(content)) {
        const size_t before = l->q->n_items;
        if (add_blocks(l, content, role)) {
            return -1;
        }
        /* An answer of thinking alone is one, so that it can be found. */
        bool nothing = role == ENGINE_ASSISTANT && message->next && l->q->n_items == before;
        return nothing ? message_add(l, "message", "msg_", role, "", NULL) : 0;
    }
    strcat(where, "content");
    if (!cJSON_IsString(content)) {
        api_error_set(l->e, 400, content ? "invalid_type" : "missing_required_parameter", where,
                      "'%s' must be a string or a list of blocks.", where);
        return -1;
    }
    char *text = message_keep(l->q, content->valuestring);
    return text ? message_add(l, "message", "msg_", role, text, NULL) : message_no_memory(l->e);
}

/* Without the line that changes with every request, where it is the first. */
static char *without_line(char *text)
{
    if (strncmp(text, SYSTEM_LINE, sizeof(SYSTEM_LINE) - 1) == 0) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return text;
}

static int add_system(struct message_list *l, const cJSON *system)
{
    char *text;
    if (!system) {
        return 0;
    }
    if (cJSON_IsString(system)) {
        text = message_keep(l->q, system->valuestring);
    } else {
        int i = 0;
        const cJSON *block;
        if (!cJSON_IsArray(system)) {
            api_error_set(l->e, 400, "invalid_type", "system", "'system' must be a string or a list of text blocks.");
            return -1;
        }
        cJSON_ArrayForEach(block, system)
        {
            char where[32];
            snprintf(where, sizeof(where), "system[%d]", i++);
            if (!block_text(block)) {
                return refuse_block(block, where, l->e);
            }
        }
        text = join(l->q, system->child, NULL, "\n");
    }
    if (!text) {
        return message_no_memory(l->e);
    }
    text = without_line(text);
    return *text ? message_add(l, "message", "msg_", ENGINE_SYSTEM, text, NULL) : 0;
}

static int parse_messages(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    struct message_list l = {.q = q, .name = "messages", .e = e};
    const cJSON *list = json_get(body, "messages"), *message;
    if (!cJSON_IsArray(list) || !list->child) {
        api_error_set(e, 400, list ? "invalid_value" : "missing_required_parameter", "messages",
                      "'messages' must be a list with at least one message.");
        return -1;
    }
    if (add_system(&l, json_get(body, "system"))) {
        return -1;
    }
    bool nothing = false; /* the last message has no blocks; one of the model may have none that count */
    cJSON_ArrayForEach(message, list)
    {
        size_t before = q->n_items;
        if (add_message(&l, message)) {
            return -1;
        }
        nothing = q->n_items == before && strcmp(json_get(message, "role")->valuestring, "assistant") != 0;
        l.index++;
    }
    const struct session_item *last = q->n_items ? &q->items[q->n_items - 1] : NULL;
    if (!last || nothing || (strcmp(last->kind, "message") == 0 && last->len == 0)) {
        char param[32];
        snprintf(param, sizeof(param), "messages[%zu].content", l.index - 1);
        api_error_set(e, 400, "invalid_value", param, "The last message is empty.");
        return -1;
    }
    return message_continue(q, "messages", e);
}

/* A definition, as those of the Responses API are. NULL and *e: it is none. */
static cJSON *tool_of(const cJSON *tool, int i, struct api_error *e)
{
    char prefix[32];
    const char *type = "custom";
    const cJSON *schema = NULL, *name = json_get(tool, "name"), *description = json_get(tool, "description"),
                *strict = json_get(tool, "strict");
    snprintf(prefix, sizeof(prefix), "tools[%d].", i);
    if (!cJSON_IsObject(tool)) {
        prefix[strlen(prefix) - 1] = '\0';
        api_error_set(e, 400, "invalid_type", prefix, "Invalid type for '%s': expected an object.", prefix);
        return NULL;
    }
    if (json_string(tool, prefix, "type", 64, &type, e) || json_object(tool, prefix, "input_schema", &schema, e)) {
        return NULL;
    }
    bool own = strcmp(type, "custom") == 0; /* others run at the API's own server, and are skipped */
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", own ? "function" : type);
    if (name) {
        cJSON_AddItemToObject(o, "name", cJSON_Duplicate(name, true));
    }
    if (description) {
        cJSON_AddItemToObject(o, "description", cJSON_Duplicate(description, true));
    }
    if (schema) {
        cJSON_AddItemToObject(o, "parameters", cJSON_Duplicate(schema, true));
    }
    if (strict) {
        cJSON_AddItemToObject(o, "strict", cJSON_Duplicate(strict, true));
    }
    return o;
}

/* The choice, as that of the Responses API. */
static int choice_of(const cJSON *body, cJSON *out, struct api_error *e)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const cJSON *choice = NULL;
    const char *type = NULL, *name = NULL;
    bool alone = false;
    if (json_object(body, "", "tool_choice", &choice, e)) {
        return -1;
    }
    if (!choice) {
        return 0;
    }
    if (json_string(choice, "tool_choice.", "type", 64, &type, e) ||
        json_string(choice, "tool_choice.", "name", 256, &name, e) ||
        json_bool(choice, "tool_choice.", "disable_parallel_tool_use", &alone, e)) {
        return -1;
    }
    cJSON_AddBoolToObject(out, "parallel_tool_calls", !alone);
    for (size_t i = 0; type && i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(type, words[i][0]) == 0) {
            cJSON_AddStringToObject(out, "tool_choice", words[i][1]);
            return 0;
        }
    }
    if (!type || strcmp(type, "tool") != 0) {
        api_error_set(e, 400, type ? "invalid_value" : "missing_required_parameter", "tool_choice.type",
                      "'tool_choice.type' must be auto, any, tool or none.");
        return -1;
    }
    cJSON *named = cJSON_AddObjectToObject(out, "tool_choice");
    cJSON_AddStringToObject(named, "type", "function");
    if (name) {
        cJSON_AddStringToObject(named, "name", name);
    }
    return 0;
}

static int parse_tools(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *tools = json_get(body, "tools"), *tool;
    cJSON *flat = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(flat, "tools");
    int rc = -1, i = 0;
    if (tools && !cJSON_IsArray(tools)) {
        api_error_set(e, 400, "invalid_type", "tools", "Invalid type for 'tools': expected a list.");
        goto cleanup;
    }
    cJSON_ArrayForEach(tool, tools)
    {
        cJSON *o = tool_of(tool, i++, e);
        if (!o) {
            goto cleanup;
        }
        cJSON_AddItemToArray(list, o);
    }
    rc = choice_of(body, flat, e) || tools_parse(q, flat, "input_schema", NULL, e) ? -1 : 0;
cleanup:
    cJSON_Delete(flat);
    return rc;
}

/* How much may be thought: nothing, up to a budget, or as much as the model likes, with the effort that is named. */
static int parse_thinking(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *thinking = NULL, *config = NULL;
    const char *type = NULL, *effort = NULL;
    int64_t budget = 0;
    if (json_object(body, "", "thinking", &thinking, e) || json_object(body, "", "output_config", &config, e) ||
        (config && json_string(config, "output_config.", "effort", 16, &effort, e)) ||
        effort_parse(effort, "output_config.effort", q, e) ||
        (thinking && (json_string(thinking, "thinking.", "type", 32, &type, e) ||
                      json_int(thinking, "thinking.", "budget_tokens", 1, 1 << 30, &budget, e)))) {
        return -1;
    }
    if (thinking &&
        (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 && strcmp(type, "adaptive") != 0))) {
        api_error_set(e, 400, "invalid_value", "thinking.type",
                      "'thinking.type' must be enabled, adaptive or disabled.");
        return -1;
    }
    q->thinking_tokens = budget ? (int)budget : q->thinking_tokens;
    if (thinking && strcmp(type, "disabled") == 0) {
        effort_none(q);
    }
    return 0;
}

/* What is to be done to the context. Thinking that is sent back is no part of it: to clear that is nothing. */
static int check_edits(const cJSON *body, struct api_error *e)
{
    const cJSON *management = NULL, *edit;
    if (json_object(body, "", "context_management", &management, e)) {
        return -1;
    }
    const cJSON *edits = management ? json_get(management, "edits") : NULL;
    cJSON_ArrayForEach(edit, edits)
    {
        if (strncmp(block_type(edit), "clear_thinking", 14) != 0) {
            api_error_set(e, 400, "unsupported_parameter", "context_management",
                          "'context_management' is not supported with this value.");
            return -1;
        }
    }
    return 0;
}

/* A form of the answer; it has no name here. */
static int parse_format(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *config = NULL, *format = NULL;
    if (json_object(body, "", "output_config", &config, e) ||
        (config && json_object(config, "output_config.", "format", &format, e)) || !format) {
        return e->status ? -1 : 0;
    }
    cJSON *named = cJSON_Duplicate(format, true);
    cJSON_AddStringToObject(named, "name", "answer");
    cJSON_AddTrueToObject(named, "strict");
    int rc = form_parse(named, "output_config.format.", false, q, NULL, e);
    cJSON_Delete(named);
    return rc;
}

/* Whose state is kept here: what it begins with is sent once, then what is new, behind the answer that is named. Every
 * answer is kept; what calls must be is not, so that a thread with tools is sent whole (message_head()). */
static int parse_thread(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    static const char *const first[] = {"system", "tools"};
    const cJSON *thread = NULL;
    const char *type = NULL, *message = NULL;
    char id[ID_SIZE];
    if (json_object(body, "", "thread", &thread, e) || !thread ||
        json_string(thread, "thread.", "type", 16, &type, e) ||
        json_string(thread, "thread.", "previous_message_id", ID_SIZE - 1, &message, e)) {
        return e->status ? -1 : 0;
    }
    q->thread = true;
    if (type && strcmp(type, "create") == 0) {
        return 0;
    }
    if (!type || strcmp(type, "continue") != 0) {
        api_error_set(e, 400, "invalid_value", "thread.type", "'thread.type' must be create or continue.");
        return -1;
    }
    for (size_t i = 0; i < 2; i++) {
        const cJSON *again = json_get(body, first[i]);
        if (again && !cJSON_IsNull(again)) {
            api_error_set(e, 400, "invalid_value", first[i], "'%s' is the thread's, and is not sent again.", first[i]);
            return -1;
        }
    }
    if (!message) {
        api_error_set(e, 400, "missing_required_parameter", "thread.previous_message_id",
                      "'thread.previous_message_id' is missing.");
        return -1;
    }
    id_derive("resp_", message, id);
    q->match = false;
    q->keeps = true;
    q->previous = strdup(id);
    return q->previous ? 0 : message_no_memory(e);
}

static int parse(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    q->format = &anthropic_format;
    q->input = "messages";
    q->store = q->generate = q->match = true;
    int64_t max_tokens = 0;
    if (unsupported_check(body, UNSUPPORTED_ANTHROPIC, e) || parse_thinking(q, body, e) || check_edits(body, e) ||
        parse_format(q, body, e) || json_bool(body, "", "stream", &q->stream, e) ||
        json_int(body, "", "max_tokens", 1, 1 << 30, &max_tokens, e) ||
        sampling_parse(body, body, "", &q->sampling, e) ||
        json_stops(body, "", "stop_sequences", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e) ||
        parse_thread(q, body, e) || parse_messages(q, body, e) || parse_tools(q, body, e) ||
        message_opening_check(q, "output_config.format", e)) {
        return -1;
    }
    q->max_output_tokens = (int)max_tokens;
    return 0;
}

struct turn_request *anthropic_parse(cJSON *body, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    return request_parsed(q, body, q ? parse(q, body, e) : -1, e);
}

struct turn_request *anthropic_parse_count(cJSON *body, struct api_error *e)
{
    struct turn_request *q = anthropic_parse(body, e);
    return q ? count_only(q) : NULL;
}

/* ---- errors --------------------------------------------------------------------------------------------------------
 */

bool anthropic_speaks(const struct client *c)
{
    return c->request.route && c->request.route->turn &&
           (c->request.route->turn == anthropic_parse || c->request.route->turn == anthropic_parse_count);
}

cJSON *anthropic_error(const struct api_error *e)
{
    const char *type = e->status == 404   ? "not_found_error"
                       : e->status == 413 ? "request_too_large"
                       : e->status == 503 ? "overloaded_error"
                       : e->status >= 500 ? "api_error"
                                          : e->type;
    cJSON *o = cJSON_CreateObject(), *error = api_error_json(e);
    const bool lost = e->code && strcmp(e->code, "previous_response_not_found") == 0;
    cJSON_AddStringToObject(o, "type", "error");
    cJSON_ReplaceItemInObject(error, "type", cJSON_CreateString(type));
    if (lost || (e->code && strcmp(e->code, "conversation_locked") == 0)) { /* the client sends the whole again */
        const char *code = lost ? "thread_not_found" : "thread_continue_in_flight";
        cJSON_AddStringToObject(cJSON_AddObjectToObject(error, "details"), "error_code", code);
        cJSON_ReplaceItemInObject(error, "param", cJSON_CreateString("thread.previous_message_id"));
    }
    if (lost) {
        cJSON_ReplaceItemInObject(error, "code", cJSON_CreateString("thread_not_found"));
        cJSON_ReplaceItemInObject(
            error, "message", cJSON_CreateString("There is no such message, or its thread has tools: send it whole."));
    }
    if (e->code && strcmp(e->code, "context_length_exceeded") == 0) { /* agents know it by these words */
        char message[sizeof(e->message) + 32];
        snprintf(message, sizeof(message), "prompt is too long: %s", e->message);
        cJSON_ReplaceItemInObject(error, "message", cJSON_CreateString(message));
    }
    cJSON_AddItemToObject(o, "error", error);
    return o;
}

/* ---- answers -------------------------------------------------------------------------------------------------------
 */

static bool is(const struct run *run, size_t i, const char *kind)
{
    return strcmp(run->items[i].kind, kind) == 0;
}

/* Tokens that were there already are not counted as input. */
static cJSON *usage(const struct run *run)
{
    cJSON *u = cJSON_CreateObject();
    cJSON_AddNumberToObject(u, "input_tokens", run->input_tokens - run->cached_tokens);
    cJSON_AddNumberToObject(u, "cache_creation_input_tokens", 0);
    cJSON_AddNumberToObject(u, "cache_read_input_tokens", run->cached_tokens);
    cJSON_AddNumberToObject(u, "output_tokens", run->output_tokens);
    return u;
}

static const char *stop_reason(const struct run *run)
{
    const char *r = run->reason;
    if (strcmp(run->status, "incomplete") == 0 && r && strcmp(r, "max_output_tokens") == 0) {
        return "max_tokens";
    }
    if (strcmp(run->status, "incomplete") == 0 && r && strcmp(r, "context_length") == 0) {
        return "model_context_window_exceeded";
    }
    for (size_t i = 0; i < run->n_items; i++) {
        if (is(run, i, "function_call") && !run->items[i].incomplete) {
            return "tool_use";
        }
    }
    return run->stop ? "stop_sequence" : "end_turn";
}

static void add_stop(cJSON *o, const struct run *run)
{
    cJSON_AddStringToObject(o, "stop_reason", stop_reason(run));
    cJSON_AddItemToObject(o, "stop_sequence", run->stop ? cJSON_CreateString(run->stop) : cJSON_CreateNull());
}

/* The message, without an answer yet. */
static cJSON *message_head(const struct run *run)
{
    char id[ID_SIZE];
    id_derive(run->request->thread && run->request->tools ? "msg_tools_" : "msg_", run->id, id);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", id);
    cJSON_AddStringToObject(o, "type", "message");
    cJSON_AddStringToObject(o, "role", "assistant");
    cJSON_AddStringToObject(o, "model", run->runs->model);
    return o;
}

/* An item as a block. whole: false: it begins. NULL: a call that is none, because it was cut off or is no JSON. */
static cJSON *block_of(const struct run *run, size_t i, bool whole)
{
    const struct run_item *item = &run->items[i];
    cJSON *o = cJSON_CreateObject();
    if (is(run, i, "function_call")) {
        cJSON *body = item->body ? cJSON_Parse(item->body) : NULL, *input = NULL;
        const cJSON *id = body ? json_get(body, "call_id") : NULL, *name = body ? json_get(body, "name") : NULL;
        cJSON_AddStringToObject(o, "type", "tool_use");
        cJSON_AddStringToObject(o, "id", cJSON_IsString(id) ? id->valuestring : "");
        cJSON_AddStringToObject(o, "name", cJSON_IsString(name) ? name->valuestring : "");
        input = whole ? cJSON_ParseWithOpts(item->text, NULL, true) : cJSON_CreateObject();
        bool fine = cJSON_IsObject(input) && !(whole && item->incomplete);
        cJSON_Delete(body);
        cJSON_Delete(input);
        if (!fine) {
            cJSON_Delete(o);
            return NULL;
        }
        cJSON_AddRawToObject(o, "input", whole ? item->text : "{}"); /* its numbers have all their digits */
        return o;
    }
    bool thinking = is(run, i, "reasoning");
    cJSON_AddStringToObject(o, "type", thinking ? "thinking" : "text");
    cJSON_AddStringToObject(o, thinking ? "thinking" : "text", whole ? item->text : "");
    if (thinking) {
        cJSON_AddStringToObject(o, "signature", "");
    } else {
        cJSON_AddNullToObject(o, "citations");
    }
    return o;
}

/* ---- events --------------------------------------------------------------------------------------------------------
 */

/* Takes e. */
static void emit(struct run *run, const char *type, cJSON *e)
{
    cJSON_AddStringToObject(e, "type", type);
    char *text = json_text(e);
    run_log(run, type, text);
}

/* About block i. */
static cJSON *block_event(size_t i, const char *key, cJSON *what)
{
    cJSON *e = cJSON_CreateObject();
    cJSON_AddNumberToObject(e, "index", (double)i);
    if (what) {
        cJSON_AddItemToObject(e, key, what);
    }
    return e;
}

/* How many tokens came in is told at the end. */
static void message_started(struct run *run)
{
    cJSON *e = cJSON_CreateObject(), *o = message_head(run);
    cJSON_AddArrayToObject(o, "content");
    cJSON_AddNullToObject(o, "stop_reason");
    cJSON_AddNullToObject(o, "stop_sequence");
    cJSON *u = cJSON_AddObjectToObject(o, "usage");
    cJSON_AddNumberToObject(u, "input_tokens", 0);
    cJSON_AddNumberToObject(u, "output_tokens", 0);
    cJSON_AddItemToObject(e, "message", o);
    emit(run, "message_start", e);
}

static void message_item(struct run *run, size_t i)
{
    emit(run, "content_block_start", block_event(i, "content_block", block_of(run, i, false)));
}

static const char delta_type[] = "content_block_delta";

static cJSON *piece_event(const struct run *run, size_t i)
{
    const bool call = is(run, i, "function_call"), thinking = is(run, i, "reasoning");
    cJSON *delta = cJSON_CreateObject();
    cJSON_AddStringToObject(delta, "type", call ? "input_json_delta" : thinking ? "thinking_delta" : "text_delta");
    cJSON_AddStringToObject(delta, call ? "partial_json" : thinking ? "thinking" : "text", PIECE_MARK);
    cJSON *e = block_event(i, "delta", delta);
    cJSON_AddStringToObject(e, "type", delta_type);
    return e;
}

static void message_delta(struct run *run, size_t i, const char *text)
{
    piece_log(run, i, delta_type, text, NULL, piece_event);
}

static void message_item_end(struct run *run, size_t i)
{
    emit(run, "content_block_stop", block_event(i, NULL, NULL));
}

static char *whole(const struct run *run)
{
    cJSON *o = message_head(run), *content = cJSON_AddArrayToObject(o, "content");
    for (size_t i = 0; i < run->n_items; i++) {
        cJSON *block = block_of(run, i, true);
        if (block) {
            cJSON_AddItemToArray(content, block);
        }
    }
    add_stop(o, run);
    cJSON_AddItemToObject(o, "usage", usage(run));
    receipt_add(o, run);
    return json_text(o);
}

static void message_done(struct run *run)
{
    if (run->failed) {
        if (run->started) {
            run_log(run, "error", json_text(anthropic_error(&run->error)));
        }
        return;
    }
    cJSON *e = cJSON_CreateObject();
    add_stop(cJSON_AddObjectToObject(e, "delta"), run);
    cJSON_AddItemToObject(e, "usage", usage(run));
    receipt_add(e, run);
    emit(run, "message_delta", e);
    emit(run, "message_stop", cJSON_CreateObject());
    run->answer = whole(run);
    run->answer_status = 200;
}

const struct run_format anthropic_format = {.started = message_started,
                                            .item = message_item,
                                            .delta = message_delta,
                                            .item_end = message_item_end,
                                            .done = message_done};

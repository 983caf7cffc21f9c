/* responses.c - the Responses API: create bodies, and the routes under /v1/responses. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define MODEL_NAME_MAX   256
#define INSTRUCTIONS_MAX (4 * 1024 * 1024)

/* Adds one message to the turn and its item to `items`. */
static int add_message(struct turn_request *q, cJSON *items, enum engine_role role, const char *text,
                       struct api_error *e)
{
    static const char *const names[] = {"system", "user", "assistant"};
    struct engine_message *grown = realloc(q->messages, (q->n_messages + 1) * sizeof(*grown));
    char id[ID_SIZE];
    cJSON *stored = cJSON_CreateString(text);
    if (!grown || !stored || id_new("msg_", id)) {
        q->messages = grown ? grown : q->messages;
        cJSON_Delete(stored);
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    q->messages = grown;
    cJSON_AddItemToArray(q->texts, stored);
    q->messages[q->n_messages++] =
        (struct engine_message){.role = role, .text = stored->valuestring, .len = strlen(stored->valuestring)};
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", id);
    cJSON_AddStringToObject(item, "type", "message");
    cJSON_AddStringToObject(item, "status", "completed");
    cJSON_AddStringToObject(item, "role", names[role]);
    cJSON *content = cJSON_AddArrayToObject(item, "content");
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", role == ENGINE_ASSISTANT ? "output_text" : "input_text");
    cJSON_AddStringToObject(part, "text", text);
    if (role == ENGINE_ASSISTANT) {
        cJSON_AddArrayToObject(part, "annotations");
    }
    cJSON_AddItemToArray(content, part);
    cJSON_AddItemToArray(items, item);
    return 0;
}

int message_role(const char *name, enum engine_role *role)
{
    static const struct {
        const char *name;
        enum engine_role role;
    } roles[] = {{"user", ENGINE_USER},
                 {"assistant", ENGINE_ASSISTANT},
                 {"system", ENGINE_SYSTEM},
                 {"developer", ENGINE_SYSTEM}};
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
        if (strcmp(roles[i].name, name) == 0) {
            *role = roles[i].role;
            return 0;
        }
    }
    return -1;
}

char *message_text(const cJSON *content, const char *where, struct api_error *e)
{
    if (cJSON_IsString(content)) {
        char *text = strdup(content->valuestring);
        if (!text) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        }
        return text;
    }
    if (!cJSON_IsArray(content)) {
        api_error_set(e, 400, "invalid_type", where, "Invalid type for '%s': expected a string or a list of parts.",
                      where);
        return NULL;
    }
    size_t len = 0;
    int i = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, content)
    {
        const cJSON *type = json_get(part, "type");
        const cJSON *text = json_get(part, "text");
        bool known = cJSON_IsString(type) &&
                     (strcmp(type->valuestring, "input_text") == 0 || strcmp(type->valuestring, "output_text") == 0 ||
                      strcmp(type->valuestring, "text") == 0);
        if (!cJSON_IsObject(part) || !known || !cJSON_IsString(text)) {
            char param[96];
            snprintf(param, sizeof(param), "%s[%d]", where, i);
            api_error_set(e, 400, "invalid_value", param, "Invalid value for '%s': only text parts are supported.",
                          param);
            return NULL;
        }
        len += strlen(text->valuestring);
        i++;
    }
    char *joined = malloc(len + 1);
    if (!joined) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return NULL;
    }
    char *at = joined;
    cJSON_ArrayForEach(part, content)
    {
        const char *text = json_get(part, "text")->valuestring;
        size_t n = strlen(text);
        memcpy(at, text, n);
        at += n;
    }
    *at = '\0';
    return joined;
}

static int parse_item(struct turn_request *q, cJSON *items, const cJSON *item, int index, struct api_error *e)
{
    char where[64], param[96];
    snprintf(where, sizeof(where), "input[%d]", index);
    if (!cJSON_IsObject(item)) {
        api_error_set(e, 400, "invalid_type", where, "Invalid type for '%s': expected an object.", where);
        return -1;
    }
    const char *type = "message", *role_name = NULL;
    snprintf(param, sizeof(param), "%s.", where);
    if (json_string(item, param, "type", 64, &type, e) || json_string(item, param, "role", 64, &role_name, e)) {
        return -1;
    }
    if (strcmp(type, "reasoning") == 0) {
        return 0; /* earlier thinking is not part of the context */
    }
    if (strcmp(type, "message") != 0) {
        snprintf(param, sizeof(param), "%s.type", where);
        api_error_set(e, 400, "invalid_value", param, "Items of type '%.40s' are not supported.", type);
        return -1;
    }
    enum engine_role role;
    if (!role_name || message_role(role_name, &role)) {
        snprintf(param, sizeof(param), "%s.role", where);
        api_error_set(e, 400, role_name ? "invalid_value" : "missing_required_parameter", param,
                      "'%s' must be user, assistant, system or developer.", param);
        return -1;
    }
    snprintf(param, sizeof(param), "%s.content", where);
    char *text = message_text(json_get(item, "content"), param, e);
    if (!text) {
        return -1;
    }
    int rc = add_message(q, items, role, text, e);
    free(text);
    return rc;
}

static int parse_input(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *input = json_get(body, "input");
    cJSON *items = cJSON_CreateArray();
    q->texts = cJSON_CreateArray();
    int rc = 0;
    if (cJSON_IsString(input)) {
        if (input->valuestring[0]) {
            rc = add_message(q, items, ENGINE_USER, input->valuestring, e);
        }
    } else if (cJSON_IsArray(input)) {
        int index = 0;
        const cJSON *item;
        cJSON_ArrayForEach(item, input)
        {
            rc = parse_item(q, items, item, index++, e);
            if (rc) {
                break;
            }
        }
    } else if (input) {
        api_error_set(e, 400, "invalid_type", "input",
                      "Invalid type for 'input': expected a string or a list of items.");
        rc = -1;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < q->n_messages; i++) {
        bytes += q->messages[i].len;
    }
    if (!rc && q->generate && bytes == 0) {
        api_error_set(e, 400, input ? "invalid_value" : "missing_required_parameter", "input",
                      "'input' must hold at least one message with text.");
        rc = -1;
    }
    if (!rc) {
        q->input = cJSON_PrintUnformatted(items);
        if (!q->input) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            rc = -1;
        }
    }
    cJSON_Delete(items);
    return rc;
}

/* Our additions, under one key. */
static int parse_convod(struct turn_request *q, const cJSON *body, bool websocket, cJSON *echo, struct api_error *e)
{
    const cJSON *o = NULL;
    const char *p = "convod.", *parent = NULL, *disconnect = NULL;
    if (json_object(body, "", "convod", &o, e) || sampling_parse(body, o, p, &q->sampling, e) ||
        json_string(o, p, "parent", ID_SIZE - 1, &parent, e) || json_bool(o, p, "progress", &q->progress, e) ||
        json_string(o, p, "on_disconnect", 16, &disconnect, e) ||
        json_stops(o, p, "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e)) {
        return -1;
    }
    q->finish_on_disconnect = websocket && q->conversation;
    if (disconnect) {
        q->finish_on_disconnect = strcmp(disconnect, "finish") == 0;
        if (!q->finish_on_disconnect && strcmp(disconnect, "cancel") != 0) {
            api_error_set(e, 400, "invalid_value", "convod.on_disconnect",
                          "'convod.on_disconnect' must be cancel or finish.");
            return -1;
        }
    }
    if (parent) {
        if (!q->conversation || (*parent && !id_valid("resp_", parent))) {
            api_error_set(e, 400, "invalid_value", "convod.parent",
                          q->conversation ? "'convod.parent' must be a response id, or empty for the beginning."
                                          : "'convod.parent' needs 'conversation'.");
            return -1;
        }
        q->has_parent = true;
        q->parent = strdup(parent);
    }
    cJSON_AddNumberToObject(echo, "temperature", sampling_shown(q->sampling.temperature));
    cJSON_AddNumberToObject(echo, "top_p", sampling_shown(q->sampling.top_p));
    cJSON *own = cJSON_AddObjectToObject(echo, "convod");
    sampling_echo(&q->sampling, own);
    if (q->progress) {
        cJSON_AddBoolToObject(own, "progress", true);
    }
    return 0;
}

static int parse_chain(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const char *previous = NULL, *conversation = NULL;
    if (json_string(body, "", "previous_response_id", 4096, &previous, e)) {
        return -1;
    }
    const cJSON *v = json_get(body, "conversation");
    if (cJSON_IsObject(v)) {
        if (json_string(v, "conversation.", "id", 4096, &conversation, e)) {
            return -1;
        }
        if (!conversation) {
            api_error_set(e, 400, "missing_required_parameter", "conversation.id", "'conversation.id' is missing.");
            return -1;
        }
    } else if (v && json_string(body, "", "conversation", 4096, &conversation, e)) {
        return -1;
    }
    if (previous && conversation) {
        api_error_set(e, 400, "mutually_exclusive_parameters", "previous_response_id",
                      "'previous_response_id' and 'conversation' exclude each other.");
        return -1;
    }
    if (previous && !id_valid("resp_", previous)) {
        api_error_session(SESSION_PREVIOUS_NOT_FOUND, NULL, e);
        return -1;
    }
    if (conversation && !id_valid("conv_", conversation)) {
        api_error_session(SESSION_CONVERSATION_NOT_FOUND, NULL, e);
        return -1;
    }
    q->previous = previous ? strdup(previous) : NULL;
    q->conversation = conversation ? strdup(conversation) : NULL;
    if ((previous && !q->previous) || (conversation && !q->conversation)) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    return 0;
}

static int parse_stream_id(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const char *id = NULL;
    if (json_string(body, "", "stream_id", SIZE_MAX, &id, e)) {
        return -1;
    }
    if (!id) {
        return 0;
    }
    if (!stream_id_valid(id)) {
        api_error_set(e, 400, "invalid_stream_id", "stream_id",
                      "'stream_id' has 1 to %d characters of A-Z a-z 0-9 _ . -", STREAM_ID_MAX);
        return -1;
    }
    q->stream_id = strdup(id);
    return 0;
}

bool stream_id_valid(const char *id)
{
    size_t n = strlen(id);
    return n >= 1 && n <= STREAM_ID_MAX &&
           strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

/* Things that change the answer and that we cannot do are refused, not ignored. */
static int refuse_unsupported(const cJSON *body, struct api_error *e)
{
    bool background = false;
    const cJSON *text = NULL, *format = NULL;
    const char *type = "text";
    int64_t top_logprobs = 0;
    if (json_bool(body, "", "background", &background, e) || json_object(body, "", "text", &text, e) ||
        (text && json_object(text, "text.", "format", &format, e)) ||
        (format && json_string(format, "text.format.", "type", 64, &type, e)) ||
        json_int(body, "", "top_logprobs", 0, 20, &top_logprobs, e)) {
        return -1;
    }
    const char *param = background                  ? "background"
                        : strcmp(type, "text") != 0 ? "text.format"
                        : top_logprobs > 0          ? "top_logprobs"
                                                    : NULL;
    if (param) {
        api_error_set(e, 400, "unsupported_parameter", param, "'%s' is not supported with this value.", param);
        return -1;
    }
    return 0;
}

struct turn_request *responses_parse(cJSON *body, bool websocket, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    cJSON *echo = cJSON_CreateObject();
    if (!q || !echo) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        goto fail;
    }
    q->format = &responses_format;
    q->store = q->generate = true;
    int64_t max_output = 0;
    const char *model = NULL, *instructions = NULL;
    const cJSON *metadata = NULL;
    if ((websocket && parse_stream_id(q, body, e)) || json_string(body, "", "model", MODEL_NAME_MAX, &model, e) ||
        unsupported_check(body, UNSUPPORTED_RESPONSES, e) || refuse_unsupported(body, e) ||
        json_bool(body, "", "store", &q->store, e) || json_bool(body, "", "generate", &q->generate, e) ||
        (!websocket && json_bool(body, "", "stream", &q->stream, e)) || parse_chain(q, body, e) ||
        json_string(body, "", "instructions", INSTRUCTIONS_MAX, &instructions, e) ||
        json_int(body, "", "max_output_tokens", 1, 1 << 30, &max_output, e) ||
        json_metadata(body, "metadata", &metadata, e) || parse_input(q, body, e) ||
        parse_convod(q, body, websocket, echo, e)) {
        goto fail;
    }
    q->model = model ? strdup(model) : NULL;
    q->instructions = instructions ? strdup(instructions) : NULL;
    q->max_output_tokens = (int)max_output;
    if (max_output) {
        cJSON_AddNumberToObject(echo, "max_output_tokens", (double)max_output);
    }
    if (!q->generate) {
        cJSON_AddBoolToObject(echo, "generate", false);
    }
    if (metadata) {
        cJSON_AddItemToObject(echo, "metadata", cJSON_Duplicate(metadata, true));
    }
    q->params = cJSON_PrintUnformatted(echo);
    q->params_json = echo;
    echo = NULL;
    if (!q->params || (model && !q->model) || (instructions && !q->instructions)) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        goto fail;
    }
    cJSON_Delete(body);
    return q;
fail:
    cJSON_Delete(body);
    cJSON_Delete(echo);
    turn_request_free(q);
    return NULL;
}

struct turn_request *responses_parse_post(cJSON *body, struct api_error *e)
{
    return responses_parse(body, false, e);
}

bool model_check(const struct api *api, const char *model, struct api_error *e)
{
    if (!model || strcmp(model, api->model_name) == 0 || strcmp(model, api->model_file) == 0 ||
        strcmp(model, "convod") == 0 || strcmp(model, "default") == 0) {
        return true;
    }
    api_error_set(e, 404, "model_not_found", "model", "The model '%.100s' does not exist here; this is '%.100s'.",
                  model, api->model_name);
    return false;
}

/* ---- routes --------------------------------------------------------------------------------------------------------
 */

void client_start(struct client *c, struct turn_request *q)
{
    struct api_error e = {0};
    struct runs *rs = &c->api->runs;
    struct run_retry *retry = &c->request.retry;
    bool stream = q->stream;
    struct run *run = retry_find(rs, c->owner, q->format, retry, &e);
    if (run) {
        turn_request_free(q);
    } else if (e.status || run_start(rs, c->owner, q, retry, NULL, &run, &e)) {
        turn_request_free(q);
        client_answer_error(c, &e);
        return;
    }
    client_read(c, run, stream ? READ_SSE : READ_BODY, 0, NULL);
}

void responses_create(struct client *c)
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

static bool id_or_404(struct client *c)
{
    if (id_valid("resp_", c->request.param)) {
        return true;
    }
    struct api_error e;
    api_error_set(&e, 404, "response_not_found", "id", "There is no response with id '%.100s'.", c->request.param);
    client_answer_error(c, &e);
    return false;
}

static void got(struct client *c, struct op *op, const struct session_result *r)
{
    struct run *run = r->n_responses ? run_from_stored(&c->api->runs, c->owner, &r->responses[0]) : NULL;
    if (!run) {
        client_answer(c, 500, NULL, NULL);
        return;
    }
    if (op->flag) {
        /* For this reader alone: another one may ask for another part. */
        run->hidden = true;
        client_read(c, run, READ_SSE, responses_replay(run, op->number), NULL);
        run_remember(run);
        return;
    }
    client_answer_json(c, 200, response_object(run));
    run_free(run);
}

void responses_get(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    const struct route_query *query = &c->request.query;
    bool stream = query->stream && c->request.method == METHOD_GET; /* HEAD has no body */
    struct run *run = run_find(&c->api->runs, c->owner, c->request.param);
    if (run && stream && run->request->format == &responses_format && run->started) {
        client_read(c, run, READ_SSE, (size_t)(query->starting_after + 1), NULL);
        return;
    }
    if (run && (!run->ended || run->failed) && run->request->store) {
        client_answer_json(c, 200, response_object(run));
        return;
    }
    struct op *op = op_new(c, c->request.param, got);
    if (op) {
        op->flag = stream;
        op->number = query->starting_after;
        op_posted(c, op, session_response_get(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

static void deleted(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", op->id);
    cJSON_AddStringToObject(o, "object", "response");
    cJSON_AddBoolToObject(o, "deleted", true);
    client_answer_json(c, 200, o);
}

void responses_delete(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    struct op *op = op_new(c, c->request.param, deleted);
    if (op) {
        op->deletes = true;
        op_posted(c, op, session_response_delete(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

void responses_cancel(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    struct run *run = run_find(&c->api->runs, c->owner, c->request.param);
    if (run && !run->ended) {
        run_cancel(run);
        client_read(c, run, READ_BODY, 0, NULL);
        return;
    }
    c->request.query.stream = false;
    responses_get(c);
}

static void got_input(struct client *c, struct op *op, const struct session_result *r)
{
    (void)op;
    cJSON *items = cJSON_CreateArray();
    if (r->n_responses) {
        response_items(&r->responses[0], false, items);
    }
    client_answer_page(c, items);
}

void responses_input_items(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    struct op *op = op_new(c, c->request.param, got_input);
    if (op) {
        op_posted(c, op, session_response_get(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

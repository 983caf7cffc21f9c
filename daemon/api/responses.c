/* responses.c - the Responses API: create bodies, and the routes under /v1/responses. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "daemon/api/messages.h"

#define INSTRUCTIONS_MAX (4 * 1024 * 1024)

static int parse_input(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    const cJSON *input = json_get(body, "input");
    int rc = 0;
    if (cJSON_IsString(input)) {
        rc = input->valuestring[0] ? messages_single(q, input->valuestring, e) : 0;
    } else if (cJSON_IsArray(input)) {
        rc = messages_parse(q, input, "input", true, e);
    } else if (input) {
        api_error_set(e, 400, "invalid_type", "input",
                      "Invalid type for 'input': expected a string or a list of items.");
        rc = -1;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < q->n_items; i++) {
        bool message = strcmp(q->items[i].kind, "message") == 0;
        bytes += message ? q->items[i].len : 1; /* what a call gave may be nothing */
        /* What holds answers and follows nothing is a whole history. */
        q->match |= !q->previous && !q->conversation && (!message || q->items[i].role == ENGINE_ASSISTANT);
    }
    if (!rc && q->generate && bytes == 0 && !q->continues) {
        api_error_set(e, 400, input ? "invalid_value" : "missing_required_parameter", "input",
                      "'input' must hold at least one message with text.");
        rc = -1;
    }
    return rc;
}

/* An answer that was cut is gone on with: what it answers is known. */
static int parse_continue(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    static const char *const others[] = {"input", "previous_response_id", "conversation"};
    const cJSON *own = NULL;
    const char *id = NULL;
    if (json_object(body, "", "convod", &own, e) || json_string(own, "convod.", "continue", ID_SIZE - 1, &id, e)) {
        return -1;
    }
    if (!id) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        if (json_get(body, others[i])) {
            api_error_set(e, 400, "mutually_exclusive_parameters", others[i],
                          "'convod.continue' and '%s' exclude each other.", others[i]);
            return -1;
        }
    }
    if (!id_valid("resp_", id)) {
        api_error_set(e, 400, "previous_response_not_found", "convod.continue",
                      "'convod.continue' must be a response's id.");
        return -1;
    }
    const char *wrong = !q->store ? "store" : !q->generate ? "generate" : q->background ? "background" : NULL;
    if (wrong) {
        api_error_set(e, 400, "invalid_value", wrong, "'%s' cannot have this value beside 'convod.continue'.", wrong);
        return -1;
    }
    q->continues = strdup(id);
    if (!q->continues) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    return 0;
}

int responses_parse_parent(struct turn_request *q, const char *parent, struct api_error *e)
{
    if (!parent) {
        return 0;
    }
    if (*parent && !id_valid("resp_", parent)) {
        api_error_set(e, 400, "invalid_value", "convod.parent",
                      "'convod.parent' must be a response id, or empty for the beginning.");
        return -1;
    }
    q->has_parent = true;
    q->parent = strdup(parent);
    if (!q->parent) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    }
    return q->parent ? 0 : -1;
}

/* Our additions, under one key. */
static int parse_convod(struct turn_request *q, const cJSON *body, bool websocket, cJSON *echo, struct api_error *e)
{
    const cJSON *o = NULL;
    const char *p = "convod.", *parent = NULL, *disconnect = NULL, *key = NULL;
    if (json_object(body, "", "convod", &o, e) || sampling_parse(body, o, p, &q->sampling, e) ||
        bias_parse(body, q, e) || priority_parse(o, p, &q->patient, e) || effort_parse_budget(o, p, q, e) ||
        json_string(o, p, "parent", ID_SIZE - 1, &parent, e) || json_bool(o, p, "progress", &q->progress, e) ||
        json_string(o, p, "on_disconnect", 16, &disconnect, e) ||
        json_string(o, p, "idempotency_key", IDEMPOTENCY_KEY_MAX, &key, e) ||
        json_stops(o, p, "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e) ||
        (!q->n_stops && json_stops(body, "", "stop", q->stops, sizeof(q->stops) / sizeof(*q->stops), &q->n_stops, e))) {
        return -1;
    }
    q->finish_on_disconnect = websocket && (q->conversation || q->continues);
    if (disconnect) {
        q->finish_on_disconnect = strcmp(disconnect, "finish") == 0;
        if (!q->finish_on_disconnect && strcmp(disconnect, "cancel") != 0) {
            api_error_set(e, 400, "invalid_value", "convod.on_disconnect",
                          "'convod.on_disconnect' must be cancel or finish.");
            return -1;
        }
    }
    if (parent && !q->conversation) {
        api_error_set(e, 400, "invalid_value", "convod.parent", "'convod.parent' needs 'conversation'.");
        return -1;
    }
    if (responses_parse_parent(q, parent, e)) {
        return -1;
    }
    if (key && !(q->key = strdup(key))) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    cJSON_AddNumberToObject(echo, "temperature", sampling_shown(q->sampling.temperature));
    cJSON_AddNumberToObject(echo, "top_p", sampling_shown(q->sampling.top_p));
    cJSON *own = cJSON_AddObjectToObject(echo, "convod");
    sampling_echo(&q->sampling, own);
    if (q->thinking_tokens) {
        cJSON_AddNumberToObject(own, "thinking_tokens", q->thinking_tokens > 0 ? q->thinking_tokens : 0);
    }
    if (q->progress) {
        cJSON_AddBoolToObject(own, "progress", true);
    }
    if (q->match) {
        cJSON_AddBoolToObject(own, "replay", true);
    }
    if (q->previous) {
        cJSON_AddBoolToObject(own, "chained", true);
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

/* How likely the answer's tokens were is told when it is included, or alternatives are asked for. */
static int parse_logprobs(struct turn_request *q, const cJSON *body, cJSON *echo, struct api_error *e)
{
    const cJSON *include = json_get(body, "include"), *what;
    if (include && !cJSON_IsArray(include)) {
        api_error_set(e, 400, "invalid_type", "include", "Invalid type for 'include': expected a list.");
        return -1;
    }
    cJSON_ArrayForEach(what, include)
    {
        q->logprobs |= cJSON_IsString(what) && strcmp(what->valuestring, "message.output_text.logprobs") == 0;
    }
    if (logprobs_parse(body, q, e)) {
        return -1;
    }
    q->logprobs |= q->n_top > 0;
    if (q->logprobs) {
        cJSON_AddNumberToObject(echo, "top_logprobs", q->n_top);
    }
    return 0;
}

/* Things that change the answer and that we cannot do are refused, not ignored. */
static int parse_text(struct turn_request *q, const cJSON *body, cJSON *echo, struct api_error *e)
{
    const cJSON *text = NULL, *format = NULL;
    const char *verbosity = NULL;
    if (json_object(body, "", "text", &text, e) || json_object(text, "text.", "format", &format, e) ||
        verbosity_parse(text, "text.", &verbosity, e) || form_parse(format, "text.format.", false, q, echo, e)) {
        return -1;
    }
    if (verbosity) {
        cJSON *shown = cJSON_GetObjectItemCaseSensitive(echo, "text");
        if (!shown) {
            shown = cJSON_AddObjectToObject(echo, "text");
            cJSON_AddStringToObject(cJSON_AddObjectToObject(shown, "format"), "type", "text");
        }
        cJSON_AddStringToObject(shown, "verbosity", verbosity);
    }
    return 0;
}

/* Whether a word is one of a list that ends with NULL; NULL is. */
static bool is_one_of(const char *word, const char *const *words)
{
    while (word && *words && strcmp(word, *words) != 0) {
        words++;
    }
    return !word || *words;
}

/* What is asked of thinking is shown again, `auto` as what it is here. */
static int parse_reasoning(struct turn_request *q, const cJSON *body, cJSON *echo, struct api_error *e)
{
    static const char p[] = "reasoning.";
    static const char *const summaries[] = {"auto", "concise", "detailed", NULL}, *const contexts[] = {
                                                                                      "auto", "all_turns",
                                                                                      "current_turn", NULL};
    const cJSON *reasoning = NULL;
    const char *effort = NULL, *summary = NULL, *context = NULL;
    if (json_object(body, "", "reasoning", &reasoning, e) || !reasoning) {
        return e->status ? -1 : 0;
    }
    if (json_string(reasoning, p, "effort", 16, &effort, e) || effort_parse(effort, "reasoning.effort", q, e) ||
        json_string(reasoning, p, "generate_summary", 16, &summary, e) ||
        json_string(reasoning, p, "summary", 16, &summary, e) ||
        json_string(reasoning, p, "context", 16, &context, e)) {
        return -1;
    }
    if (!is_one_of(summary, summaries)) {
        api_error_set(e, 400, "invalid_value", "reasoning.summary",
                      "'reasoning.summary' is auto, concise or detailed.");
        return -1;
    }
    if (!is_one_of(context, contexts)) {
        api_error_set(e, 400, "invalid_value", "reasoning.context",
                      "'reasoning.context' is auto, all_turns or current_turn.");
        return -1;
    }
    q->current_turn = context && strcmp(context, "current_turn") == 0;
    cJSON *shown = cJSON_AddObjectToObject(echo, "reasoning");
    cJSON_AddItemToObject(shown, "effort", effort ? cJSON_CreateString(effort) : cJSON_CreateNull());
    cJSON_AddItemToObject(shown, "summary", summary ? cJSON_CreateString(summary) : cJSON_CreateNull());
    if (context) {
        cJSON_AddStringToObject(shown, "context", q->current_turn ? context : "all_turns");
    }
    return 0;
}

/* A context that is too long is refused, or it loses its oldest turns. */
static int parse_truncation(struct turn_request *q, const cJSON *body, cJSON *echo, struct api_error *e)
{
    const char *truncation = NULL;
    if (json_string(body, "", "truncation", 16, &truncation, e)) {
        return -1;
    }
    q->truncate = truncation && strcmp(truncation, "auto") == 0;
    if (truncation && !q->truncate && strcmp(truncation, "disabled") != 0) {
        api_error_set(e, 400, "invalid_value", "truncation", "'truncation' must be auto or disabled.");
        return -1;
    }
    if (q->truncate) {
        cJSON_AddStringToObject(echo, "truncation", "auto");
    }
    return 0;
}

/* Who waits for nobody leaves something that can be asked for. */
static int parse_background(struct turn_request *q, const cJSON *body, struct api_error *e)
{
    if (json_bool(body, "", "background", &q->background, e)) {
        return -1;
    }
    if (q->background && !(q->store && q->generate)) {
        api_error_set(e, 400, "invalid_value", "background", "'background' needs 'store' and 'generate'.");
        return -1;
    }
    q->patient = q->background;
    return 0;
}

/* The whole body into q, and what the response shows of it into echo. */
static int parse(struct turn_request *q, const cJSON *body, bool websocket, cJSON *echo, struct api_error *e)
{
    q->format = &responses_format;
    q->store = q->generate = true;
    int64_t max_output = 0;
    const char *instructions = NULL;
    const cJSON *metadata = NULL;
    if ((websocket && parse_stream_id(q, body, e)) || unsupported_check(body, UNSUPPORTED_RESPONSES, e) ||
        parse_text(q, body, echo, e) || parse_logprobs(q, body, echo, e) ||
        json_bool(body, "", "store", &q->store, e) || json_bool(body, "", "generate", &q->generate, e) ||
        parse_background(q, body, e) || (!websocket && json_bool(body, "", "stream", &q->stream, e)) ||
        parse_chain(q, body, e) || json_string(body, "", "instructions", INSTRUCTIONS_MAX, &instructions, e) ||
        json_int(body, "", "max_output_tokens", 1, 1 << 30, &max_output, e) ||
        json_metadata(body, "metadata", &metadata, e) || parse_continue(q, body, e) || parse_input(q, body, e) ||
        parse_convod(q, body, websocket, echo, e) || tools_parse(q, body, "parameters", echo, e) ||
        parse_reasoning(q, body, echo, e) || parse_truncation(q, body, echo, e)) {
        return -1;
    }
    /* Where nothing was said yet there is nothing to be stored: it is followed on the connection that read it in. */
    q->store &= !(websocket && !q->generate && !q->n_items && !q->conversation && !q->previous);
    q->instructions = instructions ? strdup(instructions) : NULL;
    q->max_output_tokens = (int)max_output;
    if (max_output) {
        cJSON_AddNumberToObject(echo, "max_output_tokens", (double)max_output);
    }
    if (!q->generate) {
        cJSON_AddBoolToObject(echo, "generate", false);
    }
    if (q->background) {
        cJSON_AddBoolToObject(echo, "background", true);
        q->finish_on_disconnect = true;
    }
    if (metadata) {
        cJSON_AddItemToObject(echo, "metadata", cJSON_Duplicate(metadata, true));
    }
    q->params = json_print(echo);
    if (!q->params || (instructions && !q->instructions)) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    return 0;
}

struct turn_request *responses_parse(cJSON *body, bool websocket, struct api_error *e)
{
    struct turn_request *q = calloc(1, sizeof(*q));
    if (q && !(q->params_json = cJSON_CreateObject())) {
        turn_request_free(q);
        q = NULL;
    }
    return request_parsed(q, body, q ? parse(q, body, websocket, q->params_json, e) : -1, e);
}

struct turn_request *responses_parse_post(cJSON *body, struct api_error *e)
{
    return responses_parse(body, false, e);
}

struct turn_request *responses_parse_count(cJSON *body, struct api_error *e)
{
    struct turn_request *q = responses_parse(body, false, e);
    return q ? count_only(q) : NULL;
}

/* ---- routes --------------------------------------------------------------------------------------------------------
 */

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

void responses_cursor_error(struct api_error *e)
{
    api_error_set(e, 400, "invalid_value", "starting_after", "This response never had an event of that number.");
}

bool responses_follow(struct client *c, int kind, const char *id, int64_t starting_after, const char *stream_id)
{
    struct run *run = run_find(&c->api->runs, c->owner, id);
    if (!run || run->request->format != &responses_format || !run->started) {
        return false;
    }
    client_read(c, run, kind, (size_t)(starting_after + 1), stream_id);
    return true;
}

char *responses_build_stream(struct op *op, struct api_error *e)
{
    struct run *run = run_from_stored(&op->api->runs, op->owner, &responses_format, &op->result.responses[0]);
    op->run = run;
    if (!run) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    } else if (!run->ended) {
        api_error_set(e, 503, "server_overloaded", NULL, "The response waits to be run again; try again later.");
    } else {
        size_t from = responses_replay(run, op->number);
        op->number = (int64_t)from;
        if (from == SIZE_MAX) {
            responses_cursor_error(e);
        }
    }
    return NULL;
}

void responses_attach(struct client *c, int kind, struct op *op, const char *stream_id)
{
    op_build(op);
    if (op->refused.status) {
        if (c->websocket) {
            client_ws_error(c, &op->refused, stream_id);
        } else {
            client_answer_error(c, &op->refused);
        }
        return;
    }
    struct run *run = op->run;
    op->run = NULL;
    /* For this reader alone: another one may ask for another part. */
    run->hidden = true;
    client_read(c, run, kind, (size_t)op->number, stream_id);
    run_remember(run);
}

/* A stream of what is stored. */
static void got_stream(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    responses_attach(c, READ_SSE, op, NULL);
}

static char *build_response(struct op *op, struct api_error *e)
{
    (void)e;
    struct run *run = run_from_stored(&op->api->runs, op->owner, &responses_format, &op->result.responses[0]);
    char *text = run ? json_text(response_object(run)) : NULL;
    if (run) {
        run_free(run);
    }
    return text;
}

void responses_get(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    const struct route_query *query = &c->request.query;
    bool stream = query->stream && c->request.method == METHOD_GET; /* HEAD has no body */
    struct run *run = run_find(&c->api->runs, c->owner, c->request.param);
    if (stream && responses_follow(c, READ_SSE, c->request.param, query->starting_after, NULL)) {
        return;
    }
    if (run && run->started && !run->ended && run->request->store) {
        client_answer_json(c, 200, response_object(run));
        return;
    }
    struct op *op = op_new(c, c->request.param, stream ? got_stream : op_built);
    if (op) {
        op->build = stream ? responses_build_stream : build_response;
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

/* A page of a response's input: newest first unless the query says otherwise. */
static char *build_input(struct op *op, struct api_error *e)
{
    const struct route_query *query = &op->query;
    const struct session_item *items = op->result.responses[0].items;
    bool ascending = query->has_order && query->order_asc;
    size_t n = 0, at = 0, limit = query->limit > 0 ? (size_t)query->limit : PAGE_DEFAULT;
    while (n < op->result.responses[0].n_items && !items[n].output) {
        n++;
    }
    while (query->after[0] && at < n && strcmp(items[ascending ? at : n - 1 - at].id, query->after) != 0) {
        at++;
    }
    if (query->after[0] && at++ == n) {
        api_error_set(e, 400, "invalid_value", "after", "There is no item '%.100s' in this list.", query->after);
        return NULL;
    }
    cJSON *page = cJSON_CreateArray();
    for (size_t i = at; i < n && i < at + limit; i++) {
        cJSON_AddItemToArray(page, item_object(&items[ascending ? i : n - 1 - i]));
    }
    return json_text(list_object(page, at + limit < n));
}

void responses_input_items(struct client *c)
{
    if (!id_or_404(c)) {
        return;
    }
    struct op *op = op_new(c, c->request.param, op_built);
    if (op) {
        op->build = build_input;
        op->query = c->request.query;
        op_posted(c, op, session_response_get(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

/* ---- background turns of an earlier process: from a storage thread to the network's, to a worker's, and back
 * ----------
 */

struct requeued {
    struct event event; /* first: its way to the network thread */
    struct work work;   /* parsing */
    struct api *api;
    char *owner, *id, *request;
    struct queued queued; /* what that says, */
    struct turn_request *turn;
    struct api_error refused; /* or why not */
};

static void requeued_free(struct requeued *r)
{
    if (r) {
        queued_free(&r->queued);
        turn_request_free(r->turn);
        free(r->owner);
        free(r->id);
        free(r->request);
        free(r);
    }
}

static struct requeued *requeued_of(struct work *w)
{
    return (struct requeued *)((char *)w - offsetof(struct requeued, work));
}

/* [worker] */
static void parse_queued(struct work *w)
{
    struct requeued *r = requeued_of(w);
    struct queued *queued = &r->queued;
    if (queued_read(r->request, queued)) {
        api_error_set(&r->refused, 500, "server_error", NULL, "Out of memory.");
        return;
    }
    cJSON *body = json_parse_request(queued->body, strlen(queued->body), &r->refused);
    r->turn = body ? responses_parse(body, true, &r->refused) : NULL; /* `stream` is nobody's now */
    request_complete(&r->turn, queued->body, strlen(queued->body), &r->refused);
    if (r->turn) {
        r->turn->sampling.seed = queued->has_seed ? queued->seed : r->turn->sampling.seed;
    }
}

/* What a version before took and this one does not has failed; what there is no room for now waits for the next start.
 */
static void run_queued(struct work *w, bool closing)
{
    struct requeued *r = requeued_of(w);
    struct queued *queued = &r->queued;
    r->api->requeueing--;
    if (closing || !r->api->runs.session) {
        requeued_free(r);
        return;
    }
    if (r->turn && run_requeue(&r->api->runs, r->owner, r->id, r->turn, queued->has_retry ? &queued->retry : NULL,
                               &r->refused) == 0) {
        r->turn = NULL;
    } else {
        if (!r->turn && r->refused.status < 500) {
            session_queued_fail(r->api->runs.session, r->owner, r->id, r->refused.message);
        }
        daemon_log(r->api->log, LOG_WARNING, "a response that waited in the queue cannot be run: %s",
                   r->refused.message);
    }
    requeued_free(r);
}

static void take_requeued(struct event *event, bool closing)
{
    struct requeued *r = (struct requeued *)event;
    if (closing) {
        requeued_free(r);
        return;
    }
    r->api->requeueing++;
    r->work.run = parse_queued;
    r->work.done = run_queued;
    work_submit(r->api->runs.workers, &r->work, r->owner);
}

static void requeue_ended(struct event *event, bool closing)
{
    (void)closing;
    struct api *api = (struct api *)((char *)event - offsetof(struct api, requeue_ended));
    api->requeueing--;
}

/* [storage thread] */
static void requeue(void *arg, const char *owner, const char *id, const char *request)
{
    struct api *api = arg;
    if (!id) {
        api->requeue_ended.take = requeue_ended;
        events_post(api->events, &api->requeue_ended);
        return;
    }
    struct requeued *r = calloc(1, sizeof(*r));
    if (!r) {
        return; /* it stays in the queue until the next start */
    }
    r->event.take = take_requeued;
    r->api = api;
    r->owner = strdup(owner);
    r->id = strdup(id);
    r->request = strdup(request);
    if (r->owner && r->id && r->request) {
        events_post(api->events, &r->event);
    } else {
        requeued_free(r);
    }
}

void responses_requeue(struct api *api)
{
    api->requeueing = session_requeue(api->runs.session, requeue, api) ? 0 : 1;
}

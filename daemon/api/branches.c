/* branches.c - what a conversation holds beside the way to its head: single items, all of its responses, and another
 * conversation that begins with what this one holds up to an item.
 *
 * A command of the session answers each step; what is collected between them waits in the op's turn. That turn has no
 * answer and only reads items in, of which what is there already is not prefilled again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/messages.h"

#define PREVIEW_MAX  200 /* bytes of a text in a list */
#define TITLE_MAX    512
#define ITEM_ID_SIZE 96

/* The ids in the path /v1/conversations/{id}/items/{id}. False: they are none, which was answered. */
static bool split_ids(struct client *c, char item[ITEM_ID_SIZE])
{
    char *slash = strchr(c->request.param, '/');
    if (slash) {
        *slash = '\0';
        snprintf(item, ITEM_ID_SIZE, "%s", slash + 1);
    }
    return slash && conversation_named(c);
}

static void refuse_item(struct client *c, const char *param, const char *item)
{
    struct api_error e;
    api_error_set(&e, 404, "item_not_found", param, "There is no item '%.90s' in this conversation.", item);
    client_answer_error(c, &e);
}

static void no_item(struct client *c, const char *item)
{
    refuse_item(c, "item_id", item);
}

static void refuse(struct client *c, int status, const char *code, const char *param, const char *message)
{
    struct api_error e;
    api_error_set(&e, status, code, param, "%s", message);
    client_answer_error(c, &e);
}

/* The next step: takes the turn and the text of `from`. NULL: out of memory, which was answered. */
static struct op *next(struct client *c, struct op *from, const char *id,
                       void (*answer)(struct client *c, struct op *op, const struct session_result *r))
{
    struct op *op = op_new(c, id, answer);
    if (op) {
        op->turn = from->turn;
        op->text = from->text;
        from->turn = NULL;
        from->text = NULL;
    }
    return op;
}

static const char *id_prefix(const char *kind)
{
    return strcmp(kind, "function_call") == 0 ? "fc_" : strcmp(kind, "function_call_output") == 0 ? "fco_" : "msg_";
}

/* Adds a copy of an item, with an id of its own. Thinking is no part of what is read in. -1: out of memory, or *e. */
static int add_copy(struct turn_request *q, struct message_list *l, const struct session_item *item)
{
    static const char *const kinds[] = {"message", "function_call", "function_call_output"};
    const char *kind = NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        kind = strcmp(kinds[i], item->kind) == 0 ? kinds[i] : kind;
    }
    if (!kind) {
        return 0;
    }
    char *text = message_keep(q, item->text), *body = item->body ? message_keep(q, item->body) : NULL;
    if (!text || (item->body && !body)) {
        return message_no_memory(l->e);
    }
    return message_add(l, kind, id_prefix(kind), item->role, text, body);
}

/* ---- one item ------------------------------------------------------------------------------------------------------
 */

static char *build_item(struct op *op, struct api_error *e)
{
    (void)e;
    return json_text(item_object(&op->result.items[0]));
}

void conversations_item(struct client *c)
{
    char item[ITEM_ID_SIZE];
    struct op *op = split_ids(c, item) ? op_new(c, c->request.param, op_built) : NULL;
    if (op) {
        op->build = build_item;
        op->missing = no_item;
        op->text = strdup(item);
        op_posted(c, op, session_conversation_item(c->api->runs.session, c->owner, op->id, item, op_done, op));
    }
}

/* ---- the last item goes --------------------------------------------------------------------------------------------
 */

/* The run's answer is the conversation, as it is without the item. */
static void truncated(struct run *run)
{
    struct turn_request *q = run->request;
    if (run->failed) {
        return;
    }
    run_hide(run->runs, run->owner, q->replaces);
    if (run->erasing) {
        run->failed = true;
        api_error_deleting(q->replaces, &run->error);
        return;
    }
    run->answer = q->answer;
    q->answer = NULL;
    run->answer_status = 200;
}

static const struct run_format truncated_format = {.done = truncated};

static void gone(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    client_answer(c, 200, "application/json", op->turn->answer);
    op->turn->answer = NULL;
}

/* Nothing is left of the response. It goes; where others follow it, it stays for them, and the conversation ends before
 * it. */
static void dropped(struct client *c, struct op *op, const struct session_result *r)
{
    if (r->rc == 0) {
        gone(c, op, r);
        return;
    }
    struct op *move = next(c, op, c->request.param, gone);
    if (move) {
        op_posted(c, move,
                  session_conversation_update(c->api->runs.session, c->owner, move->id, NULL, NULL, NULL,
                                              move->turn->parent, op_done, move));
    }
}

/* The response that the item was the last of. */
static void truncate_response(struct client *c, struct op *op, const struct session_result *r)
{
    const struct session_response *response = &r->responses[0];
    struct turn_request *q = op->turn;
    struct api_error e = {0};
    struct message_list l = {.q = q, .name = "items", .ids = true, .e = &e};
    for (size_t i = 0; i + 1 < response->n_items; i++) {
        if (add_copy(q, &l, &response->items[i])) {
            client_answer_error(c, &e);
            return;
        }
    }
    q->has_parent = true;
    q->parent = strdup(response->previous ? response->previous : "");
    q->conversation = strdup(c->request.param);
    q->instructions = response->instructions ? strdup(response->instructions) : NULL;
    snprintf(q->replaces, sizeof(q->replaces), "%s", response->id);
    if (!q->parent || !q->conversation || (response->instructions && !q->instructions)) {
        (void)message_no_memory(&e);
    } else if (!q->n_items) {
        struct op *last = next(c, op, response->id, dropped);
        if (last) {
            last->deletes = last->may_stay = true;
            op_posted(c, last, session_response_delete(c->api->runs.session, c->owner, last->id, op_done, last));
        }
        return;
    } else if (conversation_count(c, q, &e)) {
        op->turn = NULL;
        /* The request's key and digest are none of a turn's. */
        free(c->request.retry.idempotency_key);
        c->request.retry = (struct run_retry){0};
        (void)client_start(c, q);
        return;
    }
    client_answer_error(c, &e);
}

static void last_found(struct client *c, struct op *op, const struct session_result *r)
{
    const struct session_item *last = r->n_items ? &r->items[0] : NULL;
    if (!last || strcmp(last->id, op->text) != 0) {
        refuse(c, 400, "invalid_value", "item_id", "Only the last item of a conversation can be deleted.");
        return;
    }
    if (last->running) {
        refuse(c, 400, "conversation_locked", NULL, "The item's response has not ended yet.");
        return;
    }
    cJSON *o = conversation_object(&r->conversations[0]);
    cJSON_DeleteItemFromObjectCaseSensitive(o, "convod"); /* it is not known yet */
    op->turn->answer = json_text(o);
    if (!op->turn->answer) {
        client_answer(c, 500, NULL, NULL);
        return;
    }
    struct op *get = next(c, op, last->response, truncate_response);
    if (get) {
        op_posted(c, get, session_response_get(c->api->runs.session, c->owner, get->id, op_done, get));
    }
}

static void item_found(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    struct op *page = next(c, op, op->id, last_found);
    if (page) {
        op_posted(c, page,
                  session_conversation_items(c->api->runs.session, c->owner, page->id, true, NULL, 1, op_done, page));
    }
}

void conversations_delete_item(struct client *c)
{
    char item[ITEM_ID_SIZE];
    struct op *op = split_ids(c, item) ? op_new(c, c->request.param, item_found) : NULL;
    if (!op) {
        return;
    }
    op->missing = no_item;
    op->text = strdup(item);
    op->turn = conversation_turn(&truncated_format);
    op_posted(c, op,
              op->text && op->turn
                  ? session_conversation_item(c->api->runs.session, c->owner, op->id, item, op_done, op)
                  : -ENOMEM);
}

/* ---- another conversation ------------------------------------------------------------------------------------------
 */

/* Its last items are there. */
static void make_fork(struct client *c, struct op *op)
{
    const cJSON *settings = op->turn->settings, *title = json_get(settings, "title"),
                *metadata = json_get(settings, "metadata"), *instructions = json_get(settings, "instructions");
    const struct run_retry *retry = &c->request.retry;
    char id[ID_SIZE];
    if (!op->turn->n_items) {
        refuse(c, 400, "invalid_value", "item", "The conversation holds nothing yet.");
        return;
    }
    struct op *create = id_new("conv_", id) ? NULL : next(c, op, id, conversation_begin);
    if (create) {
        create->unread = conversation_not_begun;
        op_posted(c, create,
                  session_conversation_create(c->api->runs.session, c->owner, id, title ? title->valuestring : NULL,
                                              metadata ? metadata->valuestring : NULL,
                                              instructions ? instructions->valuestring : NULL, retry->idempotency_key,
                                              retry->digest, op_done, create));
    }
}

static void fork_response(struct client *c, struct op *op, const struct session_result *r);

static void fork_response_get(struct client *c, struct op *from, const char *response)
{
    struct op *op = response ? next(c, from, response, fork_response) : NULL;
    if (op) {
        op_posted(c, op, session_response_get(c->api->runs.session, c->owner, op->id, op_done, op));
    } else if (!response) {
        refuse(c, 400, "invalid_value", "item", "The conversation holds nothing yet.");
    }
}

/* The response that the fork ends with, or that its last item belongs to; those before it the session copies. What runs
 * or has failed is no part of the conversation (yet). */
static void fork_response(struct client *c, struct op *op, const struct session_result *r)
{
    const struct session_response *response = &r->responses[0];
    struct turn_request *q = op->turn;
    struct api_error e = {0};
    struct message_list l = {.q = q, .name = "items", .ids = true, .e = &e};
    if (strcmp(response->status, "completed") != 0 && strcmp(response->status, "incomplete") != 0) {
        free(op->text);
        op->text = NULL;
        fork_response_get(c, op, response->previous);
        return;
    }
    bool found = false, bad = false;
    for (size_t i = 0; i < response->n_items && !found && !bad; i++) {
        bad = add_copy(q, &l, &response->items[i]) != 0;
        found = op->text && strcmp(response->items[i].id, op->text) == 0;
    }
    snprintf(q->copy_of, sizeof(q->copy_of), "%s", response->id);
    q->instructions = strdup(response->instructions ? response->instructions : "");
    if (!bad && !q->instructions) {
        bad = message_no_memory(&e) != 0;
    }
    if (bad) {
        client_answer_error(c, &e);
    } else {
        make_fork(c, op);
    }
}

static void fork_item(struct client *c, struct op *op, const struct session_result *r)
{
    fork_response_get(c, op, r->items[0].response);
}

static void no_fork_item(struct client *c, const char *item)
{
    refuse_item(c, "item", item);
}

/* What the new one takes over, save where the request says otherwise. */
static void fork_source(struct client *c, struct op *op, const struct session_result *r)
{
    const struct session_conversation *from = &r->conversations[0];
    cJSON *settings = op->turn->settings;
    if (from->title && !json_get(settings, "title")) {
        cJSON_AddStringToObject(settings, "title", from->title);
    }
    if (from->metadata) {
        cJSON_AddStringToObject(settings, "metadata", from->metadata);
    }
    if (from->instructions) {
        cJSON_AddStringToObject(settings, "instructions", from->instructions);
    }
    if (!op->text) {
        fork_response_get(c, op, from->head);
        return;
    }
    struct op *item = next(c, op, c->request.param, fork_item);
    if (item) {
        item->missing = no_fork_item;
        op_posted(c, item,
                  session_conversation_item(c->api->runs.session, c->owner, item->id, item->text, op_done, item));
    }
}

/* The fork that was made with the request's key; one that nothing came into yet is gone on with, from its source. */
static void fork_before(struct client *c, struct op *op, const struct session_result *r)
{
    if (r->n_conversations && r->conversations[0].head) {
        client_answer_json(c, 200, conversation_object(&r->conversations[0]));
        return;
    }
    struct op *get = next(c, op, c->request.param, fork_source);
    if (get) {
        op_posted(c, get, session_conversation_get(c->api->runs.session, c->owner, get->id, op_done, get));
    }
}

void conversations_fork(struct client *c)
{
    struct api_error e = {0};
    const char *item = NULL, *title = NULL;
    if (!conversation_named(c)) {
        return;
    }
    cJSON *body = client_json(c, true, &e), *settings = cJSON_CreateObject();
    struct op *op = NULL;
    if (!body || json_string(body, "", "item", ITEM_ID_SIZE - 1, &item, &e) ||
        json_string(body, "", "title", TITLE_MAX, &title, &e)) {
        client_answer_error(c, &e);
        goto cleanup;
    }
    if (title) {
        cJSON_AddStringToObject(settings, "title", title);
    }
    const struct run_retry *retry = &c->request.retry;
    op = op_new(c, c->request.param, retry->idempotency_key ? fork_before : fork_source);
    if (!op) {
        goto cleanup;
    }
    op->text = item ? strdup(item) : NULL;
    op->turn = conversation_turn(NULL);
    bool made = settings && op->turn && (!item || op->text);
    if (made) {
        op->turn->match = true;
        op->turn->settings = settings;
        settings = NULL;
    }
    struct session *session = c->api->runs.session;
    op_posted(c, op,
              !made ? -ENOMEM
              : retry->idempotency_key
                  ? session_conversation_made(session, c->owner, retry->idempotency_key, retry->digest, op_done, op)
                  : session_conversation_get(session, c->owner, op->id, op_done, op));
cleanup:
    client_json_free(c, body);
    cJSON_Delete(settings);
}

/* ---- all responses -------------------------------------------------------------------------------------------------
 */

/* The first bytes of a text, whole characters. */
static void add_preview(cJSON *o, const char *key, const struct session_item *item)
{
    char text[PREVIEW_MAX + 1] = "";
    if (!item) {
        cJSON_AddNullToObject(o, key);
        return;
    }
    size_t n = strlen(item->text) < PREVIEW_MAX ? strlen(item->text) : PREVIEW_MAX;
    while (n > 0 && ((unsigned char)item->text[n] & 0xc0) == 0x80) {
        n--;
    }
    memcpy(text, item->text, n);
    cJSON_AddStringToObject(o, key, text);
}

static cJSON *response_line(const struct session_response *r)
{
    const struct session_item *asked = NULL, *said = NULL;
    for (size_t i = 0; i < r->n_items; i++) {
        if (strcmp(r->items[i].kind, "message") == 0) {
            bool answer = r->items[i].output || r->items[i].role == ENGINE_ASSISTANT;
            *(answer ? &said : &asked) = &r->items[i];
        }
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", r->id);
    cJSON_AddStringToObject(o, "object", "convod.response");
    cJSON_AddNumberToObject(o, "created_at", (double)(r->created_ms / 1000));
    cJSON_AddStringToObject(o, "status", r->status);
    cJSON_AddStringToObject(o, "parent", r->previous ? r->previous : "");
    add_preview(o, "input", asked);
    add_preview(o, "output", said);
    return o;
}

static char *build_responses(struct op *op, struct api_error *e)
{
    const struct session_result *r = &op->result;
    (void)e;
    cJSON *data = cJSON_CreateArray();
    for (size_t i = 0; i < r->n_responses; i++) {
        cJSON_AddItemToArray(data, response_line(&r->responses[i]));
    }
    cJSON *o = list_object(data, r->more);
    cJSON_AddStringToObject(o, "head", r->n_conversations && r->conversations[0].head ? r->conversations[0].head : "");
    return json_text(o);
}

void conversations_responses(struct client *c)
{
    const struct route_query *q = &c->request.query;
    struct op *op = conversation_named(c) ? op_new(c, c->request.param, op_built) : NULL;
    if (op) {
        op->build = build_responses;
        op_posted(c, op,
                  session_conversation_turns(c->api->runs.session, c->owner, op->id, q->after[0] ? q->after : NULL,
                                             q->limit > 0 ? (int)q->limit : PAGE_DEFAULT, op_done, op));
    }
}

/* conversations.c - the routes under /v1/conversations.
 *
 * `title` and `instructions` may be given at the top or under `convod`; they are shown under both, because a title is
 * what every client wants and the API has no place for it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define TITLE_MAX        512
#define ITEMS_MAX        20 /* that are added at once */
#define INSTRUCTIONS_MAX (4 * 1024 * 1024)

static void text_or_null(cJSON *o, const char *key, const char *value)
{
    if (value) {
        cJSON_AddStringToObject(o, key, value);
    } else {
        cJSON_AddNullToObject(o, key);
    }
}

cJSON *conversation_object(const struct session_conversation *c)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", c->id);
    cJSON_AddStringToObject(o, "object", "conversation");
    cJSON_AddNumberToObject(o, "created_at", (double)(c->created_ms / 1000));
    cJSON *metadata = c->metadata ? cJSON_Parse(c->metadata) : NULL;
    cJSON_AddItemToObject(o, "metadata", metadata ? metadata : cJSON_CreateObject());
    text_or_null(o, "title", c->title);
    cJSON *own = cJSON_AddObjectToObject(o, "convod");
    text_or_null(own, "title", c->title);
    text_or_null(own, "instructions", c->instructions);
    text_or_null(own, "head", c->head);
    text_or_null(own, "tier", c->tier);
    cJSON_AddNumberToObject(own, "turns", (double)c->n_turns);
    cJSON_AddNumberToObject(own, "tokens", (double)c->n_tokens);
    cJSON_AddNumberToObject(own, "updated_at", (double)(c->updated_ms / 1000));
    cJSON_AddBoolToObject(own, "running", c->running);
    text_or_null(own, "running_response", c->running_response);
    return o;
}

bool conversation_named(struct client *c)
{
    if (id_valid("conv_", c->request.param)) {
        return true;
    }
    struct api_error e;
    api_error_set(&e, 404, "conversation_not_found", "id", "There is no conversation with id '%.100s'.",
                  c->request.param);
    client_answer_error(c, &e);
    return false;
}

static char *build_one(struct op *op, struct api_error *e)
{
    (void)e;
    return op->result.n_conversations ? json_text(conversation_object(&op->result.conversations[0])) : NULL;
}

static void got_one(struct client *c, struct op *op, const struct session_result *r)
{
    if (r->n_conversations) {
        op_built(c, op, r);
        return;
    }
    /* A command that reports no row: ask for it. */
    struct op *again = op_new(c, op->id, got_one);
    if (!again) {
        return;
    }
    if (op->flag || !c->api->runs.session) {
        op_free(again);
        client_answer(c, 500, NULL, NULL);
        return;
    }
    again->flag = true;
    again->build = build_one;
    op_posted(c, again, session_conversation_get(c->api->runs.session, c->owner, again->id, op_done, again));
}

/* What create and update have in common. */
struct fields {
    cJSON *body;
    const char *title, *instructions, *head;
    char *metadata;
};

/* Takes body. */
static int read_fields(struct client *c, cJSON *body, struct fields *f)
{
    struct api_error e = {0};
    const cJSON *own = NULL, *metadata = NULL;
    memset(f, 0, sizeof(*f));
    f->body = body;
    if (json_metadata(f->body, "metadata", &metadata, &e) || json_object(f->body, "", "convod", &own, &e) ||
        json_string(f->body, "", "title", TITLE_MAX, &f->title, &e) ||
        json_string(f->body, "", "instructions", INSTRUCTIONS_MAX, &f->instructions, &e) ||
        (own && json_string(own, "convod.", "title", TITLE_MAX, &f->title, &e)) ||
        (own && json_string(own, "convod.", "instructions", INSTRUCTIONS_MAX, &f->instructions, &e)) ||
        (own && json_string(own, "convod.", "head", ID_SIZE, &f->head, &e))) {
        goto refuse;
    }
    if (metadata) {
        f->metadata = json_print(metadata);
        if (!f->metadata) {
            api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
            goto refuse;
        }
    }
    return 0;
refuse:
    client_json_free(c, f->body);
    client_answer_error(c, &e);
    return -1;
}

/* ---- items that are added: a turn without an answer, which reads them in --------------------------------------------
 */

static void items_added(struct run *run)
{
    if (run->failed && run->request->made && run->runs->session) {
        session_conversation_unmake(run->runs->session, run->owner, run->request->conversation);
    } else if (!run->failed) {
        run->answer = run->request->answer;
        run->request->answer = NULL;
        run->answer_status = 200;
    }
}

static const struct run_format items_format = {.done = items_added};

struct turn_request *conversation_turn(const struct run_format *format)
{
    struct api_error e = {0};
    struct turn_request *q = calloc(1, sizeof(*q));
    if (!q) {
        return NULL;
    }
    q->format = format ? format : &items_format;
    q->input = "items";
    q->store = q->finish_on_disconnect = true;
    q->params = strdup("{\"generate\":false}");
    if (!q->params || sampling_parse(NULL, NULL, "", &q->sampling, &e)) {
        turn_request_free(q);
        return NULL;
    }
    return q;
}

/* Tools are a request's: a conversation would not keep them. */
static int refuse_tools(const cJSON *items, struct api_error *e)
{
    const cJSON *item;
    int i = 0;
    cJSON_ArrayForEach(item, items)
    {
        const cJSON *type = cJSON_IsObject(item) ? json_get(item, "type") : NULL;
        char param[32];
        snprintf(param, sizeof(param), "items[%d].type", i++);
        if (cJSON_IsString(type) && strcmp(type->valuestring, "additional_tools") == 0) {
            api_error_set(e, 400, "invalid_value", param,
                          "Tools cannot be added to a conversation; send them with each request.");
            return -1;
        }
    }
    return 0;
}

/* A turn that adds `items`, 1 to ITEMS_MAX of them. */
static struct turn_request *items_turn(const cJSON *items, struct api_error *e)
{
    int n = cJSON_IsArray(items) ? cJSON_GetArraySize(items) : 0;
    struct turn_request *q = conversation_turn(NULL);
    if (n < 1 || n > ITEMS_MAX) {
        api_error_set(e, 400, items ? "invalid_value" : "missing_required_parameter", "items",
                      "'items' must be a list of 1 to %d items.", ITEMS_MAX);
        goto refuse;
    }
    if (!q) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return NULL;
    }
    if (refuse_tools(items, e) || messages_parse(q, items, "items", true, e)) {
        goto refuse;
    }
    if (!q->n_items) {
        api_error_set(e, 400, "invalid_value", "items", "'items' has nothing that a conversation keeps.");
        goto refuse;
    }
    cJSON *page = cJSON_CreateArray();
    for (size_t i = 0; i < q->n_items; i++) {
        if (strcmp(q->items[i].kind, "item_reference") == 0) {
            api_error_set(e, 400, "invalid_value", "items", "References cannot be added to a conversation.");
            cJSON_Delete(page);
            goto refuse;
        }
        q->match |= q->items[i].role == ENGINE_ASSISTANT;
        cJSON_AddItemToArray(page, item_object(&q->items[i]));
    }
    q->answer = json_text(list_object(page, false));
    if (!q->answer) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        goto refuse;
    }
    return q;
refuse:
    turn_request_free(q);
    return NULL;
}

struct turn_request *conversations_parse_items(cJSON *body, struct api_error *e)
{
    const cJSON *own = NULL;
    const char *parent = NULL;
    struct turn_request *q = items_turn(json_get(body, "items"), e);
    if (q && (json_object(body, "", "convod", &own, e) ||
              json_string(own, "convod.", "parent", ID_SIZE - 1, &parent, e) || responses_parse_parent(q, parent, e))) {
        turn_request_free(q);
        q = NULL;
    }
    cJSON_Delete(body);
    return q;
}

bool conversation_count(struct client *c, struct turn_request *q, struct api_error *e)
{
    size_t bytes = 0;
    for (const struct text_block *b = q->texts; b; b = b->next) {
        bytes += b->used;
    }
    return turn_request_count(q, &c->api->budget, c->owner, bytes > c->request.body_len ? bytes : c->request.body_len,
                              e);
}

/* Takes q; its items go into conversation `id`. False: they could not be, which was answered. */
static bool start_items(struct client *c, struct turn_request *q, const char *id)
{
    struct api_error e = {0};
    q->conversation = strdup(id);
    if (!q->conversation) {
        api_error_set(&e, 500, "server_error", NULL, "Out of memory.");
    }
    if (!q->conversation || !conversation_count(c, q, &e)) {
        turn_request_free(q);
        client_answer_error(c, &e);
        return false;
    }
    return client_start(c, q);
}

void conversations_add_items(struct client *c)
{
    struct api_error e = {0};
    if (!conversation_named(c)) {
        return;
    }
    struct turn_request *q = client_turn(c, &e);
    if (!q) {
        client_answer_error(c, &e);
        return;
    }
    (void)start_items(c, q, c->request.param);
}

/* ---- the routes ----------------------------------------------------------------------------------------------------
 */

void conversation_not_begun(struct op *op, const struct session_result *r)
{
    bool made = r->n_conversations && strcmp(r->conversations[0].id, op->id) == 0;
    if (made && !r->conversations[0].head && op->api->runs.session) {
        session_conversation_unmake(op->api->runs.session, op->owner, op->id);
    }
}

void conversation_begin(struct client *c, struct op *op, const struct session_result *r)
{
    struct run_retry *retry = &c->request.retry;
    struct turn_request *q = op->turn;
    op->turn = NULL;
    if (!r->n_conversations) {
        turn_request_free(q);
        client_answer(c, 500, NULL, NULL);
        return;
    }
    free(q->answer);
    q->answer = json_text(conversation_object(&r->conversations[0]));
    /* The request's key names the conversation. */
    free(retry->idempotency_key);
    *retry = (struct run_retry){0};
    if (r->conversations[0].head) { /* it was made before, with them */
        client_answer(c, 200, NULL, strdup(q->answer ? q->answer : ""));
        turn_request_free(q);
        return;
    }
    q->begins = true;
    bool made = q->made = strcmp(r->conversations[0].id, op->id) == 0;
    if (!start_items(c, q, r->conversations[0].id) && made) {
        session_conversation_unmake(c->api->runs.session, c->owner, op->id);
    }
}

struct turn_request *conversations_parse_create(cJSON *body, struct api_error *e)
{
    const cJSON *items = json_get(body, "items");
    bool none = !items || (cJSON_IsArray(items) && !items->child);
    struct turn_request *q = none ? calloc(1, sizeof(*q)) : items_turn(items, e);
    if (!q) {
        if (!e->status) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        }
        cJSON_Delete(body);
        return NULL;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(body, "items");
    q->settings = body;
    return q;
}

/* The turn that an empty body asks for, too. */
static struct turn_request *create_turn(struct client *c, struct api_error *e)
{
    if (c->request.body_len > 0) {
        return client_turn(c, e);
    }
    cJSON *body = client_json(c, true, e);
    return body ? conversations_parse_create(body, e) : NULL;
}

void conversations_create(struct client *c)
{
    struct fields f;
    char id[ID_SIZE];
    struct api_error e = {0};
    struct turn_request *q = create_turn(c, &e);
    if (!q) {
        client_answer_error(c, &e);
        return;
    }
    cJSON *settings = q->settings;
    q->settings = NULL;
    if (read_fields(c, settings, &f)) {
        turn_request_free(q);
        return;
    }
    if (f.head && *f.head) {
        api_error_set(&e, 400, "invalid_value", "convod.head", "A new conversation has no response yet.");
        turn_request_free(q);
        client_answer_error(c, &e);
        free(f.metadata);
        client_json_free(c, f.body);
        return;
    }
    struct run_retry *retry = &c->request.retry;
    struct op *op = id_new("conv_", id) ? NULL : op_new(c, id, q->n_items ? conversation_begin : got_one);
    if (op) {
        op->turn = q;
        op->build = q->n_items ? NULL : build_one;
        op->unread = q->n_items ? conversation_not_begun : NULL;
        op_posted(c, op,
                  session_conversation_create(c->api->runs.session, c->owner, id, f.title, f.metadata, f.instructions,
                                              retry->idempotency_key, retry->digest, op_done, op));
    } else {
        turn_request_free(q);
        client_answer(c, 500, NULL, NULL);
    }
    free(f.metadata);
    client_json_free(c, f.body);
}

void conversations_get(struct client *c)
{
    struct op *op = conversation_named(c) ? op_new(c, c->request.param, got_one) : NULL;
    if (op) {
        op->build = build_one;
        op_posted(c, op, session_conversation_get(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

void conversations_update(struct client *c)
{
    struct fields f;
    struct api_error e = {0};
    if (!conversation_named(c)) {
        return;
    }
    cJSON *body = client_json(c, true, &e);
    if (!body) {
        client_answer_error(c, &e);
        return;
    }
    if (read_fields(c, body, &f)) {
        return;
    }
    struct op *op = op_new(c, c->request.param, got_one);
    if (op) {
        op->build = build_one;
        op_posted(c, op,
                  session_conversation_update(c->api->runs.session, c->owner, op->id, f.title, f.metadata,
                                              f.instructions, f.head, op_done, op));
    }
    free(f.metadata);
    client_json_free(c, f.body);
}

static void deleted(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", op->id);
    cJSON_AddStringToObject(o, "object", "conversation.deleted");
    cJSON_AddBoolToObject(o, "deleted", true);
    client_answer_json(c, 200, o);
}

void conversations_delete(struct client *c)
{
    struct op *op = conversation_named(c) ? op_new(c, c->request.param, deleted) : NULL;
    if (op) {
        op->deletes = true;
        op_posted(c, op, session_conversation_delete(c->api->runs.session, c->owner, op->id, op_done, op));
    }
}

static char *build_list(struct op *op, struct api_error *e)
{
    (void)e;
    cJSON *data = cJSON_CreateArray();
    for (size_t i = 0; i < op->result.n_conversations; i++) {
        cJSON_AddItemToArray(data, conversation_object(&op->result.conversations[i]));
    }
    return json_text(list_object(data, op->result.more));
}

void conversations_list(struct client *c)
{
    const struct route_query *q = &c->request.query;
    if (q->after[0] && !id_valid("conv_", q->after)) {
        struct api_error e;
        api_error_set(&e, 400, "invalid_value", "after", "'after' must be the id of a conversation.");
        client_answer_error(c, &e);
        return;
    }
    struct op *op = op_new(c, q->after[0] ? q->after : "conv_", op_built);
    if (op) {
        op->build = build_list;
        op_posted(c, op,
                  session_conversation_list(c->api->runs.session, c->owner, q->after[0] ? q->after : NULL,
                                            q->limit > 0 ? (int)q->limit : PAGE_DEFAULT, q->q[0] ? q->q : NULL, op_done,
                                            op));
    }
}

static char *build_items(struct op *op, struct api_error *e)
{
    (void)e;
    return json_text(item_list(op->result.items, op->result.n_items, op->result.more));
}

void conversations_items(struct client *c)
{
    const struct route_query *q = &c->request.query;
    struct op *op = conversation_named(c) ? op_new(c, c->request.param, op_built) : NULL;
    if (op) {
        op->build = build_items;
        op_posted(c, op,
                  session_conversation_items(c->api->runs.session, c->owner, op->id, !(q->has_order && q->order_asc),
                                             q->after[0] ? q->after : NULL, q->limit > 0 ? (int)q->limit : PAGE_DEFAULT,
                                             op_done, op));
    }
}

static void evicted(struct client *c, struct op *op, const struct session_result *r)
{
    (void)r;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", op->id);
    cJSON_AddStringToObject(o, "object", "conversation.evicted");
    cJSON_AddStringToObject(o, "to", op->flag ? "disk" : "ram");
    client_answer_json(c, 200, o);
}

void conversations_evict(struct client *c)
{
    struct api_error e = {0};
    const char *to = NULL;
    if (!conversation_named(c)) {
        return;
    }
    cJSON *body = client_json(c, true, &e);
    if (!body || json_string(body, "", "to", 16, &to, &e)) {
        goto refuse;
    }
    if (to && strcmp(to, "ram") != 0 && strcmp(to, "disk") != 0) {
        api_error_set(&e, 400, "invalid_value", "to", "'to' must be ram or disk.");
        goto refuse;
    }
    struct op *op = op_new(c, c->request.param, evicted);
    if (op) {
        op->flag = !to || strcmp(to, "disk") == 0;
        op_posted(c, op, session_conversation_evict(c->api->runs.session, c->owner, op->id, op->flag, op_done, op));
    }
    client_json_free(c, body);
    return;
refuse:
    client_json_free(c, body);
    client_answer_error(c, &e);
}

/* messages.c - the list of items of a request, for all interfaces: messages, calls of tools, what these gave.
 *
 * All texts of a request lie in a few large blocks, so that a request with very many of them costs no more to free than
 * another. How many items there may be is bounded, since they are copied on the network thread. Thinking that a client
 * sends back is passed over: it is not part of the context.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/messages.h"

#define BLOCK_BYTES (64 * 1024)
#define WHERE_SIZE  64
#define ITEM_ID_MAX 96

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

int message_no_memory(struct api_error *e)
{
    api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    return -1;
}

/* ---- texts ---------------------------------------------------------------------------------------------------------
 */

char *message_room(struct turn_request *q, size_t len)
{
    struct text_block *b = q->texts;
    if (!b || b->size - b->used <= len) {
        size_t size = len < BLOCK_BYTES ? BLOCK_BYTES : len + 1;
        b = malloc(sizeof(*b) + size);
        if (!b) {
            return NULL;
        }
        *b = (struct text_block){.next = q->texts, .size = size};
        q->texts = b;
    }
    char *at = b->data + b->used;
    b->used += len + 1;
    at[len] = '\0';
    return at;
}

char *message_keep(struct turn_request *q, const char *text)
{
    size_t len = strlen(text);
    char *at = message_room(q, len);
    return at ? memcpy(at, text, len) : NULL;
}

static const char *part_text(const cJSON *part)
{
    const cJSON *type = json_get(part, "type"), *text = json_get(part, "text"), *refusal = json_get(part, "refusal");
    if (!cJSON_IsObject(part) || !cJSON_IsString(type)) {
        return NULL;
    }
    if (strcmp(type->valuestring, "refusal") == 0) {
        return cJSON_IsString(refusal) ? refusal->valuestring : NULL;
    }
    bool known = strcmp(type->valuestring, "input_text") == 0 || strcmp(type->valuestring, "output_text") == 0 ||
                 strcmp(type->valuestring, "text") == 0;
    return known && cJSON_IsString(text) ? text->valuestring : NULL;
}

int message_text(struct turn_request *q, const cJSON *content, const char *where, char **text, struct api_error *e)
{
    size_t len = 0;
    int i = 0;
    const cJSON *part;
    if (cJSON_IsString(content)) {
        *text = message_keep(q, content->valuestring);
        return *text ? 0 : message_no_memory(e);
    }
    if (!cJSON_IsArray(content)) {
        api_error_set(e, 400, "invalid_type", where, "Invalid type for '%s': expected a string or a list of parts.",
                      where);
        return -1;
    }
    cJSON_ArrayForEach(part, content)
    {
        const char *t = part_text(part);
        if (!t) {
            char param[128];
            const cJSON *type = json_get(part, "type");
            snprintf(param, sizeof(param), "%s[%d]", where, i);
            api_error_set(e, 400, "invalid_value", param,
                          "Invalid value for '%s': only text parts are supported, not '%.40s'.", param,
                          cJSON_IsString(type) ? type->valuestring : "");
            return -1;
        }
        len += strlen(t);
        i++;
    }
    char *to = *text = message_room(q, len);
    if (!to) {
        return message_no_memory(e);
    }
    cJSON_ArrayForEach(part, content)
    {
        const char *t = part_text(part);
        size_t n = strlen(t);
        memcpy(to, t, n);
        to += n;
    }
    return 0;
}

/* ---- items ---------------------------------------------------------------------------------------------------------
 */

int message_add(struct message_list *l, const char *kind, const char *prefix, enum engine_role role, const char *text,
                const char *body)
{
    struct turn_request *q = l->q;
    if (q->n_items == MESSAGES_MAX) {
        api_error_set(l->e, 400, "invalid_value", l->name, "There are more than %d messages.", MESSAGES_MAX);
        return -1;
    }
    if (q->n_items == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 8;
        struct session_item *grown = realloc(q->items, capacity * sizeof(*grown));
        if (!grown) {
            return message_no_memory(l->e);
        }
        q->items = grown;
        l->capacity = capacity;
    }
    char *id = l->ids ? message_room(q, ID_SIZE) : NULL;
    if (l->ids && (!id || id_new(prefix, id))) {
        return message_no_memory(l->e);
    }
    q->items[q->n_items++] =
        (struct session_item){.id = id, .kind = kind, .role = role, .text = text, .len = strlen(text), .body = body};
    return 0;
}

static void where(const struct message_list *l, const char *field, char out[96])
{
    snprintf(out, 96, "%.40s[%zu]%s%.40s", l->name, l->index, field ? "." : "", field ? field : "");
}

/* {"call_id", "name", ...}, kept. NULL: out of memory. */
static char *call_body(struct turn_request *q, const char *call_id, const char *name, const char *space, bool custom)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "call_id", call_id);
    if (name) {
        cJSON_AddStringToObject(o, "name", name);
    }
    if (space) {
        cJSON_AddStringToObject(o, "namespace", space);
    }
    if (custom) {
        cJSON_AddTrueToObject(o, "custom");
    }
    char *text = json_text(o), *body = text ? message_keep(q, text) : NULL;
    free(text);
    return body;
}

int message_need_string(const struct message_list *l, const cJSON *o, const char *prefix, const char *key, size_t max,
                        const char **out)
{
    char param[96];
    *out = NULL;
    if (json_string(o, prefix, key, max, out, l->e)) {
        return -1;
    }
    if (!*out) {
        snprintf(param, sizeof(param), "%.60s%.30s", prefix, key);
        api_error_set(l->e, 400, "missing_required_parameter", param, "'%s' is missing.", param);
        return -1;
    }
    return 0;
}

/* space: a namespace that the name is in; NULL: none. */
static int add_named_call(struct message_list *l, const char *id, const char *name, const char *space, bool custom,
                          const char *arguments, const char *prefix)
{
    char whole[2 * TOOL_NAME_MAX + 2];
    if (space && tool_name_valid(space) && tool_name_valid(name)) {
        snprintf(whole, sizeof(whole), "%.*s.%.*s", TOOL_NAME_MAX, space, TOOL_NAME_MAX, name);
        name = whole;
    }
    if (!tool_name_valid(name)) {
        char param[96];
        snprintf(param, sizeof(param), "%.80sname", prefix);
        api_error_set(l->e, 400, "invalid_value", param, "'%s' has 1 to %d characters of A-Z a-z 0-9 _ . -", param,
                      TOOL_NAME_MAX);
        return -1;
    }
    char *text = message_keep(l->q, arguments), *body = text ? call_body(l->q, id, name, space, custom) : NULL;
    return body ? message_add(l, "function_call", "fc_", ENGINE_ASSISTANT, text, body) : message_no_memory(l->e);
}

int message_add_call(struct message_list *l, const char *id, const char *name, const char *arguments,
                     const char *prefix)
{
    return add_named_call(l, id, name, NULL, false, arguments, prefix);
}

/* id: the call's. o: where its name and arguments are, null if it has none. */
static int add_call(struct message_list *l, const char *id, const cJSON *o, const char *prefix)
{
    const char *name, *arguments = "{}", *space = NULL;
    bool none = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(o, "arguments"));
    return message_need_string(l, o, prefix, "name", 128, &name) ||
                   json_string(o, prefix, "namespace", 128, &space, l->e) ||
                   (!none && message_need_string(l, o, prefix, "arguments", BODY_BYTES_MAX, &arguments))
               ? -1
               : add_named_call(l, id, name, space, false, arguments, prefix);
}

/* The same of a custom tool: `input` is a text. */
static int add_custom_call(struct message_list *l, const char *id, const cJSON *o, const char *prefix)
{
    const char *name, *input, *space = NULL;
    if (message_need_string(l, o, prefix, "name", 128, &name) ||
        json_string(o, prefix, "namespace", 128, &space, l->e) ||
        message_need_string(l, o, prefix, "input", BODY_BYTES_MAX, &input)) {
        return -1;
    }
    char *arguments = call_arguments(input);
    int rc = arguments ? add_named_call(l, id, name, space, true, arguments, prefix) : message_no_memory(l->e);
    free(arguments);
    return rc;
}

static int add_result(struct message_list *l, const char *id, const cJSON *content, bool custom, const char *param)
{
    char *text;
    if (message_text(l->q, content, param, &text, l->e)) {
        return -1;
    }
    char *body = call_body(l->q, id, NULL, NULL, custom);
    return body ? message_add(l, "function_call_output", "fco_", ENGINE_USER, text, body) : message_no_memory(l->e);
}

int message_add_result(struct message_list *l, const char *id, const cJSON *content, const char *param)
{
    return add_result(l, id, content, false, param);
}

/* The calls of a message of Chat Completions. */
static int add_tool_calls(struct message_list *l, const cJSON *calls)
{
    const cJSON *call;
    int k = 0;
    cJSON_ArrayForEach(call, calls)
    {
        char base[48], prefix[96];
        const char *id, *type = "function";
        const cJSON *function = NULL;
        where(l, NULL, prefix);
        snprintf(base, sizeof(base), "%.30s", prefix);
        snprintf(prefix, sizeof(prefix), "%s.tool_calls[%d].", base, k++);
        if (!cJSON_IsObject(call)) {
            prefix[strlen(prefix) - 1] = '\0';
            api_error_set(l->e, 400, "invalid_type", prefix, "Invalid type for '%s': expected an object.", prefix);
            return -1;
        }
        if (message_need_string(l, call, prefix, "id", CALL_ID_MAX, &id) ||
            json_string(call, prefix, "type", 64, &type, l->e) ||
            json_object(call, prefix, "function", &function, l->e)) {
            return -1;
        }
        if (strcmp(type, "custom") == 0) {
            const cJSON *custom = NULL;
            if (json_object(call, prefix, "custom", &custom, l->e) || !custom) {
                return l->e->status ? -1 : message_need_string(l, call, prefix, "custom", 1, &id);
            }
            strncat(prefix, "custom.", sizeof(prefix) - strlen(prefix) - 1);
            if (add_custom_call(l, id, custom, prefix)) {
                return -1;
            }
            continue;
        }
        if (strcmp(type, "function") != 0 || !function) {
            strncat(prefix, function ? "type" : "function", sizeof(prefix) - strlen(prefix) - 1);
            api_error_set(l->e, 400, function ? "invalid_value" : "missing_required_parameter", prefix,
                          "'%s': only calls of functions and custom tools are supported.", prefix);
            return -1;
        }
        strncat(prefix, "function.", sizeof(prefix) - strlen(prefix) - 1);
        if (add_call(l, id, function, prefix)) {
            return -1;
        }
    }
    return 0;
}

/* A message with a role. */
static int add_message(struct message_list *l, const cJSON *message, const char *prefix)
{
    enum engine_role role;
    const char *name = NULL, *id;
    char param[96], *text;
    if (json_string(message, prefix, "role", 64, &name, l->e)) {
        return -1;
    }
    if (!l->ids && name && strcmp(name, "tool") == 0) {
        where(l, "content", param);
        return message_need_string(l, message, prefix, "tool_call_id", CALL_ID_MAX, &id)
                   ? -1
                   : message_add_result(l, id, json_get(message, "content"), param);
    }
    if (!name || message_role(name, &role)) {
        where(l, "role", param);
        api_error_set(l->e, 400, name || !l->ids ? "invalid_value" : "missing_required_parameter", param,
                      "'%s' must be user, assistant, %s.", param,
                      l->ids ? "system or developer" : "system, developer or tool");
        return -1;
    }
    const cJSON *content = json_get(message, "content");
    const bool answer = !l->ids && role == ENGINE_ASSISTANT; /* of Chat Completions */
    static const char *const others[] = {"function_call", "audio"};
    for (size_t i = 0; answer && i < sizeof(others) / sizeof(*others); i++) {
        if (json_get(message, others[i])) {
            where(l, others[i], param);
            api_error_set(l->e, 400, "unsupported_parameter", param, "'%s' is not supported.", param);
            return -1;
        }
    }
    content = !content && answer ? json_get(message, "refusal") : content;
    const cJSON *calls = answer ? json_get(message, "tool_calls") : NULL;
    if (calls && !cJSON_IsArray(calls)) {
        where(l, "tool_calls", param);
        api_error_set(l->e, 400, "invalid_type", param, "Invalid type for '%s': expected a list.", param);
        return -1;
    }
    where(l, "content", param);
    /* An assistant's message that only called tools has none. */
    if (!content && answer) {
        text = message_keep(l->q, "");
        if (!text) {
            return message_no_memory(l->e);
        }
    } else if (message_text(l->q, content, param, &text, l->e)) {
        return -1;
    }
    bool only_calls = calls && calls->child && !text[strspn(text, " \t\r\n")];
    return (!only_calls && message_add(l, "message", "msg_", role, text, NULL)) || (calls && add_tool_calls(l, calls))
               ? -1
               : 0;
}

/* What it stands for is found where the ledger is. Its own id begins as that one's. */
static int add_reference(struct message_list *l, const cJSON *item, const char *prefix)
{
    char param[96], begins[16];
    const char *id;
    if (message_need_string(l, item, prefix, "id", ITEM_ID_MAX, &id)) {
        return -1;
    }
    size_t n = strcspn(id, "_");
    if (!id[n] || n == 0 || n + 2 > sizeof(begins)) {
        where(l, "id", param);
        api_error_set(l->e, 400, "invalid_value", param, "'%s' must be the id of an item.", param);
        return -1;
    }
    snprintf(begins, sizeof(begins), "%.*s", (int)n + 1, id);
    char *text = message_keep(l->q, id);
    return text ? message_add(l, "item_reference", begins, ENGINE_ASSISTANT, text, NULL) : message_no_memory(l->e);
}

/* Whether an item of Responses is part of an answer. */
static bool is_answer(const cJSON *item)
{
    const cJSON *type = json_get(item, "type"), *role = json_get(item, "role");
    const char *t = cJSON_IsString(type) ? type->valuestring : "message";
    return strcmp(t, "reasoning") == 0 || strcmp(t, "function_call") == 0 || strcmp(t, "custom_tool_call") == 0 ||
           strcmp(t, "item_reference") == 0 ||
           (strcmp(t, "message") == 0 && cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0);
}

/* Thinking is not taken from what is sent. Where it is all that there was of an answer, that answer is a text without
 * anything, so that it can be found. */
static int add_thinking(struct message_list *l, const cJSON *item)
{
    const struct session_item *last = l->q->n_items ? &l->q->items[l->q->n_items - 1] : NULL;
    if (!l->ids || !last || last->role == ENGINE_ASSISTANT || !item->next || is_answer(item->next)) {
        return 0;
    }
    return message_add(l, "message", "msg_", ENGINE_ASSISTANT, "", NULL);
}

/* An item of Responses, or a message of Chat Completions. */
static int add_item(struct message_list *l, const cJSON *item)
{
    const char *type = "message", *id;
    char param[96], prefix[WHERE_SIZE];
    where(l, NULL, param);
    if (!cJSON_IsObject(item)) {
        api_error_set(l->e, 400, "invalid_type", param, "Invalid type for '%s': expected an object.", param);
        return -1;
    }
    snprintf(prefix, sizeof(prefix), "%.60s.", param);
    if (l->ids && json_string(item, prefix, "type", 64, &type, l->e)) {
        return -1;
    }
    if (l->ids && (strcmp(type, "item_reference") == 0 ||
                   (!json_get(item, "type") && !json_get(item, "role") && json_get(item, "id")))) {
        return add_reference(l, item, prefix);
    }
    if (strcmp(type, "message") == 0) {
        return add_message(l, item, prefix);
    }
    if (strcmp(type, "reasoning") == 0) {
        return add_thinking(l, item);
    }
    if (l->ids && strcmp(type, "compaction") == 0) {
        return compaction_add(l, item, prefix);
    }
    if (strcmp(type, "function_call") == 0) {
        return message_need_string(l, item, prefix, "call_id", CALL_ID_MAX, &id) ? -1 : add_call(l, id, item, prefix);
    }
    if (strcmp(type, "custom_tool_call") == 0) {
        return message_need_string(l, item, prefix, "call_id", CALL_ID_MAX, &id) ? -1
                                                                                 : add_custom_call(l, id, item, prefix);
    }
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0) {
        where(l, "output", param);
        return message_need_string(l, item, prefix, "call_id", CALL_ID_MAX, &id)
                   ? -1
                   : add_result(l, id, json_get(item, "output"), type[0] == 'c', param);
    }
    if (strcmp(type, "additional_tools") == 0) {
        return 0; /* tools.c reads them */
    }
    where(l, "type", param);
    api_error_set(l->e, 400, "invalid_value", param, "Items of type '%.40s' are not supported.", type);
    return -1;
}

int message_continue(struct turn_request *q, const char *name, struct api_error *e)
{
    const struct session_item *last = q->n_items ? &q->items[q->n_items - 1] : NULL;
    if (!last || strcmp(last->kind, "message") != 0 || last->role != ENGINE_ASSISTANT) {
        return 0;
    }
    if (q->n_items == 1) {
        api_error_set(e, 400, "invalid_value", name, "'%s' must have a message before an answer that is to go on.",
                      name);
        return -1;
    }
    q->n_items--;
    q->opening = last->len ? strdup(last->text) : NULL; /* to begin with nothing is to begin */
    return q->opening || !last->len ? 0 : message_no_memory(e);
}

int message_opening_check(const struct turn_request *q, const char *form, struct api_error *e)
{
    const char *param = q->form ? form : q->tool_choice == SESSION_TOOLS_REQUIRED ? "tool_choice" : NULL;
    if (!(q->opening || q->continues) || !param) {
        return 0;
    }
    api_error_set(e, 400, "invalid_value", param, "'%s' cannot be asked of an answer that goes on.", param);
    return -1;
}

int messages_parse(struct turn_request *q, const cJSON *list, const char *name, bool items, struct api_error *e)
{
    struct message_list l = {.q = q, .name = name, .ids = items, .e = e};
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (add_item(&l, item)) {
            return -1;
        }
        l.index++;
    }
    return 0;
}

int messages_single(struct turn_request *q, const char *text, struct api_error *e)
{
    struct message_list l = {.q = q, .name = "input", .ids = true, .e = e};
    char *kept = message_keep(q, text);
    return kept ? message_add(&l, "message", "msg_", ENGINE_USER, kept, NULL) : message_no_memory(e);
}

/* messages.c - the list of messages of a request, for all interfaces: roles, text, and where they are kept.
 *
 * All texts of a request lie in one block, so that a request with very many of them costs no more to free than another.
 * How many there may be is bounded, since they are copied on the network thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

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

static bool text_part(const cJSON *part)
{
    const cJSON *type = json_get(part, "type");
    return cJSON_IsObject(part) && cJSON_IsString(type) && cJSON_IsString(json_get(part, "text")) &&
           (strcmp(type->valuestring, "input_text") == 0 || strcmp(type->valuestring, "output_text") == 0 ||
            strcmp(type->valuestring, "text") == 0);
}

/* Bytes of a content's text: a string or text parts. -1 and *e: it is neither. */
static int64_t text_length(const cJSON *content, const char where[96], struct api_error *e)
{
    if (cJSON_IsString(content)) {
        return (int64_t)strlen(content->valuestring);
    }
    if (!cJSON_IsArray(content)) {
        api_error_set(e, 400, "invalid_type", where, "Invalid type for '%s': expected a string or a list of parts.",
                      where);
        return -1;
    }
    int64_t len = 0;
    int i = 0;
    const cJSON *part;
    cJSON_ArrayForEach(part, content)
    {
        if (!text_part(part)) {
            char param[128];
            snprintf(param, sizeof(param), "%s[%d]", where, i);
            api_error_set(e, 400, "invalid_value", param, "Invalid value for '%s': only text parts are supported.",
                          param);
            return -1;
        }
        len += (int64_t)strlen(json_get(part, "text")->valuestring);
        i++;
    }
    return len;
}

static char *append(char *to, const char *text)
{
    size_t len = strlen(text);
    memcpy(to, text, len);
    return to + len;
}

/* Looks at one message. 0: *role and *len, of its text; 1: it is passed over; -1 and *e. */
static int check(const cJSON *message, const char *name, size_t index, bool items, enum engine_role *role, int64_t *len,
                 struct api_error *e)
{
    char where[64], param[96];
    const char *type = "message", *role_name = NULL;
    snprintf(where, sizeof(where), "%s[%zu]", name, index);
    if (!cJSON_IsObject(message)) {
        api_error_set(e, 400, "invalid_type", where, "Invalid type for '%s': expected an object.", where);
        return -1;
    }
    snprintf(param, sizeof(param), "%s.", where);
    if ((items && json_string(message, param, "type", 64, &type, e)) ||
        json_string(message, param, "role", 64, &role_name, e)) {
        return -1;
    }
    if (strcmp(type, "reasoning") == 0) {
        return 1; /* earlier thinking is not part of the context */
    }
    if (strcmp(type, "message") != 0) {
        snprintf(param, sizeof(param), "%s.type", where);
        api_error_set(e, 400, "invalid_value", param, "Items of type '%.40s' are not supported.", type);
        return -1;
    }
    if (!role_name || message_role(role_name, role)) {
        snprintf(param, sizeof(param), "%s.role", where);
        api_error_set(e, 400, role_name || !items ? "invalid_value" : "missing_required_parameter", param,
                      "'%s' must be user, assistant, system or developer.", param);
        return -1;
    }
    snprintf(param, sizeof(param), "%s.content", where);
    const cJSON *content = json_get(message, "content");
    /* An assistant's message that only called tools has none. */
    *len = !content && !items && *role == ENGINE_ASSISTANT ? 0 : text_length(content, param, e);
    return *len < 0 ? -1 : 0;
}

/* The text of a message that check() has found good. */
static char *copy_text(char *to, const cJSON *content)
{
    if (cJSON_IsString(content)) {
        return append(to, content->valuestring);
    }
    const cJSON *part;
    cJSON_ArrayForEach(part, content)
    {
        to = append(to, json_get(part, "text")->valuestring);
    }
    return to;
}

static int no_memory(struct api_error *e)
{
    api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    return -1;
}

/* Room for so many messages with so much text in all, ids included. */
static int reserve(struct turn_request *q, size_t n, size_t bytes, struct api_error *e)
{
    q->items = calloc(n ? n : 1, sizeof(*q->items));
    q->texts = malloc(bytes + n * (1 + ID_SIZE) + 1);
    return q->items && q->texts ? 0 : no_memory(e);
}

/* Behind the text at `text`, which ends before `end`: its end, and an id. Where the next one goes, NULL: no random
 * numbers. */
static char *add(struct turn_request *q, enum engine_role role, char *text, char *end, bool with_id)
{
    char *id = with_id ? end + 1 : NULL;
    *end = '\0';
    if (id && id_new("msg_", id)) {
        return NULL;
    }
    q->items[q->n_items++] =
        (struct session_item){.id = id, .kind = "message", .role = role, .text = text, .len = (size_t)(end - text)};
    return end + 1 + (with_id ? ID_SIZE : 0);
}

int messages_parse(struct turn_request *q, const cJSON *list, const char *name, bool items, struct api_error *e)
{
    size_t index = 0, bytes = 0, n = 0;
    enum engine_role role;
    int64_t len;
    const cJSON *message;
    cJSON_ArrayForEach(message, list)
    {
        int rc = check(message, name, index++, items, &role, &len, e);
        if (rc < 0) {
            return -1;
        }
        bytes += rc ? 0 : (size_t)len;
        n += rc == 0;
        if (n > MESSAGES_MAX) {
            api_error_set(e, 400, "invalid_value", name, "There are more than %d messages.", MESSAGES_MAX);
            return -1;
        }
    }
    if (reserve(q, n, bytes, e)) {
        return -1;
    }
    char *at = q->texts;
    index = 0;
    cJSON_ArrayForEach(message, list)
    {
        if (check(message, name, index++, items, &role, &len, e) == 0) {
            at = add(q, role, at, copy_text(at, json_get(message, "content")), items);
            if (!at) {
                return no_memory(e);
            }
        }
    }
    return 0;
}

int messages_single(struct turn_request *q, const char *text, struct api_error *e)
{
    if (reserve(q, 1, strlen(text), e)) {
        return -1;
    }
    return add(q, ENGINE_USER, q->texts, append(q->texts, text), true) ? 0 : no_memory(e);
}

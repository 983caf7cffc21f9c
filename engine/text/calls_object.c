/* calls_object.c - a call that is a JSON object, {"name": ..., "arguments": ...} in any order and with whatever other
 * members, or a bare name with an object behind it: read byte by byte as it comes.
 */
#include "engine/text/calls_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void calls_start(struct engine_calls *c, enum place place)
{
    c->state = CALL;
    c->place = place;
    c->quoted = c->escaped = c->begun = c->has_name = c->has_arguments = c->streams = c->bare_value = false;
    c->depth = c->n_parameters = c->looked = 0;
    c->name.n = c->id.n = c->arguments.n = c->piece.n = c->given = 0;
}

/* A string as it was written, quotes included, decoded: malloc'd, NULL: it is none. */
static char *decoded(const struct buffer *b)
{
    cJSON *v = b->n > 0 ? cJSON_ParseWithLength(b->data, b->n) : NULL;
    char *text = cJSON_IsString(v) ? strdup(v->valuestring) : NULL;
    cJSON_Delete(v);
    return text;
}

/* The id that the model gave the call, malloc'd; NULL: none. */
static char *written_id(const struct engine_calls *c)
{
    if (c->id.n > 0 && c->id.data[0] == '"')
        return decoded(&c->id);
    return c->id.n > 0 ? strndup(c->id.data, c->id.n) : NULL;
}

int calls_begin(struct engine_calls *c, const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    /* A client must be able to send it back. */
    if (name == NULL || name[0] == '\0' || strlen(name) > CALL_NAME_MAX || name[strspn(name, letters)] != '\0') {
        c->place = BROKEN;
        return 0;
    }
    char *id = written_id(c);
    struct engine_part p = {.kind = ENGINE_PART_CALL, .text = name, .len = strlen(name), .id = id};
    int rc = c->part(c->arg, &p);
    free(id);
    c->begun = true;
    return rc;
}

static int begin(struct engine_calls *c)
{
    char *name = decoded(&c->name);
    int rc = calls_begin(c, name);
    free(name);
    return rc;
}

int calls_named(struct engine_calls *c)
{
    size_t start = 0, end = c->name.n;
    while (start < end && calls_is_space(c->name.data[start]))
        start++;
    while (end > start && calls_is_space(c->name.data[end - 1]))
        end--;
    char *name = strndup(c->name.n > 0 ? c->name.data + start : "", end - start);
    int rc = name != NULL ? calls_begin(c, name) : -ENOMEM;
    free(name);
    if (c->place == BROKEN)
        return rc;
    c->has_name = c->bare_value = true;
    c->member = ARGUMENTS;
    c->place = AT_VALUE;
    return rc;
}

int calls_give_new(struct engine_calls *c)
{
    size_t from = c->given, n = c->arguments.n - from;
    if (c->state != CALL || !c->streams || n == 0)
        return 0;
    c->given = c->arguments.n;
    return calls_give(c, ENGINE_PART_ARGUMENTS, c->arguments.data + from, n, false);
}

/* Whether the model's own id, which a client is told with the name, stands behind the arguments. */
static bool waits(const struct engine_calls *c)
{
    return c->chat->syntax == ENGINE_CALLS_MISTRAL_LIST_ID;
}

/* The arguments, where they were not given out as they came. */
static int give_arguments(struct engine_calls *c, bool *broken)
{
    int rc = 0;
    if (c->streams || !c->has_arguments)
        return c->has_arguments ? 0 : calls_give(c, ENGINE_PART_ARGUMENTS, "{}", 2, false);
    if (c->arguments.data[0] == '"') { /* an object in a string */
        char *text = decoded(&c->arguments);
        *broken |= text == NULL;
        c->arguments.n = 0;
        if (text != NULL && (rc = buffer_append(&c->arguments, text, strlen(text))) == 0)
            rc = calls_give(c, ENGINE_PART_ARGUMENTS, text, strlen(text), false);
        free(text);
        return rc;
    }
    if (c->arguments.n == 4 && memcmp(c->arguments.data, "null", 4) == 0) {
        c->has_arguments = false;
        return calls_give(c, ENGINE_PART_ARGUMENTS, "{}", 2, false);
    }
    return calls_give(c, ENGINE_PART_ARGUMENTS, c->arguments.data, c->arguments.n, false);
}

int calls_end(struct engine_calls *c, bool *text)
{
    bool broken = c->place != BEHIND_OBJECT && c->place != BEHIND_LIST;
    int rc = calls_give_new(c);
    *text = false;
    if (rc)
        return rc;
    c->state = TEXT;
    if (!c->begun && c->has_name && (!broken || c->marked)) {
        enum place place = c->place;
        rc = begin(c);
        broken |= c->place == BROKEN && place != BROKEN;
        /* Of one that was cut off, what there is. */
        if (rc == 0 && c->begun && broken && c->arguments.n > 0)
            rc = calls_give(c, ENGINE_PART_ARGUMENTS, c->arguments.data, c->arguments.n, false);
    }
    if (!c->begun) {
        *text = true;
        return rc;
    }
    if (rc == 0 && !broken)
        rc = give_arguments(c, &broken);
    if (rc == 0 && c->has_arguments && !broken) {
        char *checked = NULL;
        size_t len;
        int wrong = text_json(c->arguments.data, c->arguments.n, false, &checked, &len);
        broken = wrong == -EINVAL;
        rc = broken ? 0 : wrong;
        free(checked);
    }
    c->held.n = c->lead = 0;
    c->line = true;
    c->behind_call = c->chat->syntax == ENGINE_CALLS_LLAMA;
    return rc ? rc : calls_give(c, ENGINE_PART_CALL_END, NULL, 0, broken);
}

/* ---- an object, byte by byte ---- */

static int end_value(struct engine_calls *c)
{
    c->place = c->bare_value ? BEHIND_OBJECT : AT_COMMA;
    c->has_name |= c->member == NAME;
    c->has_arguments |= c->member == ARGUMENTS;
    return 0;
}

static int value_byte(struct engine_calls *c, char byte)
{
    struct buffer *to = c->member == NAME ? &c->name : c->member == ARGUMENTS ? &c->arguments : &c->id;
    return c->member != OTHER ? buffer_append(to, &byte, 1) : 0;
}

static bool is_key(const struct engine_calls *c, const char *word)
{
    return c->key_len == strlen(word) && memcmp(c->key, word, c->key_len) == 0;
}

static int begin_value(struct engine_calls *c, char byte)
{
    int rc = 0;
    if (!c->bare_value)
        c->member = is_key(c, "name")                                            ? NAME
                    : is_key(c, "arguments") || is_key(c, "parameters")          ? ARGUMENTS
                    : waits(c) && is_key(c, "id") && byte == '"' && c->id.n == 0 ? ID
                                                                                 : OTHER;
    if ((c->member == NAME && (c->has_name || byte != '"')) || (c->member == ARGUMENTS && c->has_arguments)) {
        c->place = BROKEN;
        return 0;
    }
    if (c->member == ARGUMENTS && c->has_name && !waits(c)) {
        rc = c->begun ? 0 : begin(c);
        c->streams = byte == '{';
        if (rc || c->place == BROKEN)
            return rc;
    }
    c->quoted = byte == '"';
    c->depth = byte == '{' || byte == '[';
    c->place = c->quoted || c->depth ? IN_VALUE : IN_WORD;
    return value_byte(c, byte);
}

static int in_value(struct engine_calls *c, char byte)
{
    int rc = value_byte(c, byte);
    if (c->escaped)
        c->escaped = false;
    else if (c->quoted && byte == '\\')
        c->escaped = true;
    else if (byte == '"')
        c->quoted = !c->quoted;
    else if (!c->quoted && (byte == '{' || byte == '['))
        c->depth++;
    else if (!c->quoted && (byte == '}' || byte == ']'))
        c->depth--;
    return rc || c->quoted || c->depth ? rc : end_value(c);
}

/* A bare name, up to the mark behind it; some models leave that out. */
static int name_byte(struct engine_calls *c, char byte)
{
    if (c->place == IN_ID)
        return buffer_append(&c->id, &byte, c->id.n < CALL_NAME_MAX);
    if (byte != '{')
        return buffer_append(&c->name, &byte, c->name.n <= 2 * CALL_NAME_MAX);
    int rc = calls_named(c);
    return rc || c->place == BROKEN ? rc : begin_value(c, byte);
}

int calls_object_byte(struct engine_calls *c, char byte)
{
    switch (c->place) {
    case IN_VALUE:
        return in_value(c, byte);
    case IN_KEY:
        if (byte == '"')
            c->place = AT_COLON;
        else if (c->key_len <= KEY_MAX)
            c->key[c->key_len++] = byte; /* one with escapes means nothing, but ends at its quote all the same */
        if (byte == '\\')
            c->place = BROKEN;
        return 0;
    case IN_WORD:
        if (byte != ',' && byte != '}' && !calls_is_space(byte))
            return value_byte(c, byte);
        (void)end_value(c);
        return calls_object_byte(c, byte);
    case AT_NAME:
    case IN_ID:
        return name_byte(c, byte);
    default:
        break;
    }
    if (calls_is_space(byte))
        return 0;
    switch (c->place) {
    case AT_LIST:
        c->place = byte == '[' ? AT_OBJECT : byte == '{' ? AT_KEY : BROKEN;
        break;
    case AT_OBJECT:
        c->place = byte == '{' ? AT_KEY : BROKEN;
        break;
    case AT_KEY:
        c->key_len = 0;
        c->place = byte == '"' ? IN_KEY : byte == '}' ? BEHIND_OBJECT : BROKEN;
        break;
    case AT_COLON:
        c->place = byte == ':' ? AT_VALUE : BROKEN;
        break;
    case AT_VALUE:
        return begin_value(c, byte);
    case AT_COMMA:
        c->place = byte == ',' ? AT_KEY : byte == '}' ? BEHIND_OBJECT : BROKEN;
        break;
    default:
        c->place = BROKEN;
        break;
    }
    return 0;
}

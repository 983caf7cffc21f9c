/* chat_json.c - JSON values as chat templates write them: on one line or indented, as plain text, as TypeScript. */
#include "engine/text/chat_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void line_of(struct builder *b, size_t indent, size_t depth)
{
    chat_add(b, "\n");
    for (size_t i = 0; i < indent * depth; i++)
        chat_add(b, " ");
}

void chat_add_lines(struct builder *b, const char *text, size_t len, size_t indent)
{
    size_t depth = 0, start = 0;
    bool quoted = false;
    for (size_t i = 0; indent > 0 && i < len; i++) {
        char ch = text[i];
        if (quoted) {
            i += ch == '\\';
            quoted = ch != '"';
            continue;
        }
        bool opens = ch == '{' || ch == '[', closes = ch == '}' || ch == ']';
        quoted = ch == '"';
        if (opens && i + 1 < len && (text[i + 1] == '}' || text[i + 1] == ']')) {
            i++; /* an empty one stays together */
        } else if (opens) {
            chat_add_bytes(b, text + start, i + 1 - start);
            start = i + 1;
            line_of(b, indent, ++depth);
        } else if (closes) {
            chat_add_bytes(b, text + start, i - start);
            start = i;
            line_of(b, indent, --depth);
        } else if (ch == ',') {
            chat_add_bytes(b, text + start, i + 1 - start);
            start = i + 2; /* and its space */
            line_of(b, indent, depth);
        }
    }
    chat_add_bytes(b, text + start, len - start);
}

void chat_add_value(struct builder *b, const cJSON *value)
{
    char *printed = engine_json_print(value), *text = NULL;
    size_t len = 0;
    int rc = printed != NULL ? text_json(printed, strlen(printed), false, &text, &len) : -ENOMEM;
    if (rc)
        b->rc = b->rc ? b->rc : rc;
    else
        chat_add_bytes(b, text, len);
    free(text);
    cJSON_free(printed);
}

void chat_add_plain(struct builder *b, const cJSON *value)
{
    if (cJSON_IsString(value))
        chat_add(b, value->valuestring);
    else if (cJSON_IsBool(value))
        chat_add(b, cJSON_IsTrue(value) ? "True" : "False");
    else if (cJSON_IsNull(value))
        chat_add(b, "None");
    else
        chat_add_value(b, value);
}

static void add_printed_text(struct builder *b, const char *text)
{
    bool twice = strchr(text, '\'') != NULL && strchr(text, '"') == NULL;
    const char *quote = twice ? "\"" : "'";
    chat_add(b, quote);
    for (const char *p = text; *p != '\0'; p++) {
        const char *known = strchr("\nn\rr\tt", *p);
        if (*p == '\\' || *p == *quote) {
            chat_add(b, "\\");
            chat_add_bytes(b, p, 1);
        } else if ((unsigned char)*p < 0x20 && known != NULL) {
            chat_add(b, "\\");
            chat_add_bytes(b, known + 1, 1);
        } else {
            chat_add_bytes(b, p, 1);
        }
    }
    chat_add(b, quote);
}

void chat_add_printed(struct builder *b, const cJSON *value)
{
    bool object = cJSON_IsObject(value);
    if (cJSON_IsString(value)) {
        add_printed_text(b, value->valuestring);
    } else if (!object && !cJSON_IsArray(value)) {
        chat_add_plain(b, value);
    } else {
        chat_add(b, object ? "{" : "[");
        for (const cJSON *one = value->child; one != NULL; one = one->next) {
            if (object) {
                add_printed_text(b, one->string);
                chat_add(b, ": ");
            }
            chat_add_printed(b, one);
            chat_add(b, one->next != NULL ? ", " : "");
        }
        chat_add(b, object ? "}" : "]");
    }
}

/* ---- TypeScript ---- */

#define DEPTH_MAX 32

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

/* A member's text; "": it has none. */
static const char *text_of(const cJSON *o, const char *key)
{
    const char *text = cJSON_GetStringValue(get(o, key));
    return text != NULL ? text : "";
}

static bool is_type(const cJSON *o, const char *type)
{
    return strcmp(text_of(o, "type"), type) == 0;
}

static bool has_members(const cJSON *value)
{
    return value != NULL && value->child != NULL;
}

/* Of an optional member. */
static void add_question(struct builder *b, const cJSON *owner, const char *name)
{
    const cJSON *required;
    cJSON_ArrayForEach(required, get(owner, "required"))
    {
        if (cJSON_IsString(required) && strcmp(required->valuestring, name) == 0)
            return;
    }
    chat_add(b, "?");
}

static void add_type(struct builder *b, const cJSON *spec, int depth);

/* The type of a list's elements: what is long is `any`. */
static void add_element_type(struct builder *b, const cJSON *items, int depth)
{
    size_t before = b->len;
    if (is_type(items, "string") || is_type(items, "boolean")) {
        chat_add(b, text_of(items, "type"));
    } else if (is_type(items, "number") || is_type(items, "integer")) {
        chat_add(b, "number");
    } else {
        add_type(b, items, depth);
        if (b->rc == 0 && b->len - before > 50) {
            b->len = before;
            chat_add(b, "any");
        }
    }
}

static void add_alternatives(struct builder *b, const cJSON *list, int depth)
{
    const cJSON *variant;
    bool objects = false;
    cJSON_ArrayForEach(variant, list)
    {
        objects |= is_type(variant, "object");
    }
    if (objects && list->child->next != NULL) {
        chat_add(b, "any");
        return;
    }
    cJSON_ArrayForEach(variant, list)
    {
        add_type(b, variant, depth);
        if (*text_of(variant, "description") != '\0') {
            chat_add(b, "// ");
            chat_add(b, text_of(variant, "description"));
        }
        if (get(variant, "default") != NULL) {
            chat_add(b, "                    // default: ");
            chat_add_value(b, get(variant, "default"));
        }
        if (variant->next != NULL)
            chat_add(b, " | \n");
    }
}

static void add_members(struct builder *b, const cJSON *spec, int depth)
{
    const cJSON *p;
    chat_add(b, "{\n");
    cJSON_ArrayForEach(p, get(spec, "properties"))
    {
        chat_add(b, p->string);
        add_question(b, spec, p->string);
        chat_add(b, ": \n                "); /* the template's own line end */
        add_type(b, p, depth);
        if (p->next != NULL)
            chat_add(b, ", ");
    }
    chat_add(b, "}");
}

static void add_words(struct builder *b, const cJSON *list, const char *between)
{
    const cJSON *word;
    cJSON_ArrayForEach(word, list)
    {
        chat_add_plain(b, word);
        if (word->next != NULL)
            chat_add(b, between);
    }
}

static void add_type(struct builder *b, const cJSON *spec, int depth)
{
    const cJSON *type = get(spec, "type"), *items = get(spec, "items"), *values = get(spec, "enum");
    const char *null = cJSON_IsTrue(get(spec, "nullable")) ? " | null" : "";
    if (depth == 0) {
        chat_add(b, "any");
    } else if (is_type(spec, "array")) {
        if (has_members(items))
            add_element_type(b, items, depth - 1);
        else
            chat_add(b, "any");
        chat_add(b, "[]");
        chat_add(b, null);
    } else if (cJSON_IsArray(type) && has_members(type)) {
        add_words(b, type, " | ");
    } else if (has_members(get(spec, "oneOf"))) {
        add_alternatives(b, get(spec, "oneOf"), depth - 1);
    } else if (is_type(spec, "string") && has_members(values)) {
        chat_add(b, "\"");
        add_words(b, values, "\" | \"");
        chat_add(b, "\"");
    } else if (is_type(spec, "string")) {
        chat_add(b, "string");
        chat_add(b, null);
    } else if (is_type(spec, "number") || is_type(spec, "integer")) {
        chat_add(b, "number");
    } else if (is_type(spec, "boolean")) {
        chat_add(b, "boolean");
    } else if (is_type(spec, "object") && has_members(get(spec, "properties"))) {
        add_members(b, spec, depth - 1);
    } else {
        chat_add(b, is_type(spec, "object") ? "object" : "any");
    }
}

static void add_parameter(struct builder *b, const cJSON *parameters, const cJSON *p)
{
    const cJSON *otherwise = get(p, "default");
    if (*text_of(p, "description") != '\0') {
        chat_add(b, "// ");
        chat_add(b, text_of(p, "description"));
        chat_add(b, "\n");
    }
    chat_add(b, p->string);
    add_question(b, parameters, p->string);
    chat_add(b, ": ");
    add_type(b, p, DEPTH_MAX);
    if (otherwise != NULL) {
        chat_add(b, has_members(get(p, "oneOf")) ? "// default: " : ", // default: ");
        if (has_members(get(p, "enum")) || has_members(get(p, "oneOf")))
            chat_add_plain(b, otherwise);
        else
            chat_add_value(b, otherwise);
    }
    chat_add(b, ",\n");
}

void chat_add_typescript(struct builder *b, const cJSON *list)
{
    const cJSON *tool, *p;
    chat_add(b, "## functions\n\nnamespace functions {\n\n");
    cJSON_ArrayForEach(tool, list)
    {
        const cJSON *f = get(tool, "function"), *parameters = get(f, "parameters");
        chat_add(b, "// ");
        chat_add(b, text_of(f, "description"));
        chat_add(b, "\ntype ");
        chat_add(b, text_of(f, "name"));
        chat_add(b, " = ");
        if (!has_members(get(parameters, "properties"))) {
            chat_add(b, "() => any;\n\n");
            continue;
        }
        chat_add(b, "(_: {\n");
        cJSON_ArrayForEach(p, get(parameters, "properties"))
        {
            add_parameter(b, parameters, p);
        }
        chat_add(b, "}) => any;\n\n");
    }
    chat_add(b, "} // namespace functions");
}

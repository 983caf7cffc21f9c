/* calls_xml.c - a call as Qwen3-Coder writes it:
 *
 *     <function=NAME>
 *     <parameter=KEY>
 *     VALUE
 *     </parameter>
 *     </function>
 *
 * Values have no types: each is told as what its tool's schema wants, and as a string otherwise. A string may hold
 * whatever looks like a tag: it ends where </parameter> is followed by another parameter, or by the end. Strings are
 * given out as they come, other values when they are whole.
 */
#include "engine/text/calls_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TAG_MAX 512 /* bytes of a tag, white space before it included */

static const char FUNCTION[] = "<function=", FUNCTION_END[] = "</function>",
                  PARAMETER[] = "<parameter=", PARAMETER_END[] = "</parameter>";

enum { STRING = 1, NUMBER = 2, BOOLEAN = 4, NULL_VALUE = 8, OBJECT = 16, ARRAY = 32, ANY = 63 };

/* ---- types ---- */

static unsigned named_type(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", STRING},   {"number", NUMBER}, {"integer", NUMBER}, {"boolean", BOOLEAN},
                 {"null", NULL_VALUE}, {"object", OBJECT}, {"array", ARRAY}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    return ANY;
}

static unsigned type_of(const cJSON *value)
{
    return cJSON_IsString(value)   ? STRING
           : cJSON_IsNumber(value) ? NUMBER
           : cJSON_IsBool(value)   ? BOOLEAN
           : cJSON_IsNull(value)   ? NULL_VALUE
           : cJSON_IsObject(value) ? OBJECT
                                   : ARRAY;
}

/* What a schema allows, as far as it says so itself: types, values, alternatives. */
static unsigned types_of(const cJSON *schema, int depth)
{
    static const char *const ALTERNATIVES[] = {"anyOf", "oneOf"};
    unsigned types = 0;
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(schema, "type"), *one;
    const cJSON *constant = cJSON_GetObjectItemCaseSensitive(schema, "const");
    if (cJSON_IsString(type))
        return named_type(type->valuestring);
    cJSON_ArrayForEach(one, type)
    {
        types |= cJSON_IsString(one) ? named_type(one->valuestring) : ANY;
    }
    const cJSON *values = types ? NULL : cJSON_GetObjectItemCaseSensitive(schema, "enum");
    cJSON_ArrayForEach(one, values)
    {
        types |= type_of(one);
    }
    if (!types && constant != NULL)
        types = type_of(constant);
    for (size_t i = 0; i < 2 && !types && depth > 0; i++)
        cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(schema, ALTERNATIVES[i]))
        {
            types |= types_of(one, depth - 1);
        }
    return types ? types : ANY;
}

static unsigned parameter_types(const struct engine_calls *c, const char *key)
{
    const cJSON *tool;
    cJSON_ArrayForEach(tool, c->tools)
    {
        const cJSON *f = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(f, "name"));
        if (name == NULL || strlen(name) != c->name.n || memcmp(name, c->name.data, c->name.n) != 0)
            continue;
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(f, "parameters");
        const cJSON *schema =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(parameters, "properties"), key);
        return schema != NULL ? types_of(schema, 4) : ANY;
    }
    return ANY;
}

/* ---- values ---- */

static int put(struct engine_calls *c, const char *text)
{
    return buffer_append(&c->arguments, text, strlen(text));
}

/* Text within a JSON string. */
static int put_escaped(struct engine_calls *c, const char *text, size_t len)
{
    int rc = 0;
    for (size_t i = 0; i < len && rc == 0; i++) {
        static const char FROM[] = "\"\\\n\r\t\b\f", TO[] = "\"\\nrtbf", HEX[] = "0123456789abcdef";
        unsigned char byte = (unsigned char)text[i];
        const char *known = byte != 0 ? strchr(FROM, byte) : NULL;
        char escape[] = {'\\', 'u', '0', '0', HEX[byte >> 4], HEX[byte & 15]};
        if (known != NULL)
            escape[1] = TO[known - FROM];
        rc = known != NULL ? buffer_append(&c->arguments, escape, 2)
             : byte < 0x20 ? buffer_append(&c->arguments, escape, 6)
                           : buffer_append(&c->arguments, text + i, 1);
    }
    return rc;
}

/* A value that is not a string, where it is one of the types. *fits: it is. */
static int put_typed(struct engine_calls *c, const char *text, size_t len, bool *fits)
{
    char *json = NULL;
    size_t json_len = 0;
    *fits = true;
    if ((c->types & BOOLEAN) && len == 4 && memcmp(text, "True", 4) == 0)
        return put(c, "true");
    if ((c->types & BOOLEAN) && len == 5 && memcmp(text, "False", 5) == 0)
        return put(c, "false");
    if ((c->types & NULL_VALUE) && len == 4 && memcmp(text, "None", 4) == 0)
        return put(c, "null");
    cJSON *value = cJSON_ParseWithLength(text, len);
    *fits = value != NULL && !cJSON_IsString(value) && (c->types & type_of(value)) != 0;
    cJSON_Delete(value);
    if (!*fits)
        return 0;
    int rc = text_json(text, len, false, &json, &json_len);
    *fits = rc == 0;
    if (rc == 0)
        rc = buffer_append(&c->arguments, json, json_len);
    free(json);
    return rc == -EINVAL ? 0 : rc;
}

static int end_string(struct engine_calls *c, const char *text, size_t len)
{
    int rc = put_escaped(c, text, len);
    return rc ? rc : put(c, "\"");
}

/* The value text[0..len) is whole. Of a string some may have been written. */
static int end_value(struct engine_calls *c, const char *text, size_t len)
{
    bool fits = false;
    if (c->types == STRING)
        return end_string(c, text, len);
    int rc = put_typed(c, text, len, &fits);
    if (rc || fits)
        return rc;
    rc = put(c, "\"");
    return rc ? rc : end_string(c, text, len);
}

static void drop(struct engine_calls *c, size_t n)
{
    memmove(c->piece.data, c->piece.data + n, c->piece.n - n);
    c->piece.n -= n;
}

/* How text[0..len) begins with a tag: 1: it does; 0: it may become that; -1: it does not. */
static int begins(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag);
    return memcmp(text, tag, len < n ? len : n) != 0 ? -1 : len >= n;
}

/* Looks for a value's end; what is before it may be given out. */
static int in_parameter(struct engine_calls *c)
{
    const char *text = c->piece.data, *end;
    size_t n = c->piece.n;
    while ((end = memmem(text + c->looked, n - c->looked, PARAMETER_END, strlen(PARAMETER_END))) != NULL) {
        size_t at = (size_t)(end - text), behind = at + strlen(PARAMETER_END);
        while (behind < n && calls_is_space(text[behind]))
            behind++;
        int next = begins(text + behind, n - behind, PARAMETER), last = begins(text + behind, n - behind, FUNCTION_END);
        if ((next == 0 || last == 0) && behind - at <= TAG_MAX) {
            c->looked = at;
            return 0; /* it may be the end */
        }
        if (next <= 0 && last <= 0) {
            c->looked = at + 1;
            continue;
        }
        size_t len = at > 0 && text[at - 1] == '\n' ? at - 1 : at;
        int rc = end_value(c, text, len);
        drop(c, at + strlen(PARAMETER_END));
        c->looked = 0;
        c->place = AT_PARAMETER;
        return rc;
    }
    if (n >= strlen(PARAMETER_END)) /* the next byte may end a tag that has begun */
        c->looked = n - (strlen(PARAMETER_END) - 1);
    return 0;
}

/* ---- tags ---- */

/* A tag with a name in it, which is copied out, terminated: 1; 0: it may come; -1: it does not. */
static int take_tag(struct engine_calls *c, const char *tag, char *name, size_t size)
{
    size_t n = strlen(tag);
    int is = begins(c->piece.data, c->piece.n, tag);
    if (is <= 0)
        return is;
    const char *end = memchr(c->piece.data + n, '>', c->piece.n - n);
    if (end == NULL)
        return c->piece.n > TAG_MAX ? -1 : 0;
    size_t len = (size_t)(end - c->piece.data) - n;
    if (len == 0 || len >= size)
        return -1;
    memcpy(name, c->piece.data + n, len);
    name[len] = '\0';
    drop(c, n + len + 1);
    return 1;
}

static int at_function(struct engine_calls *c)
{
    char name[CALL_NAME_MAX + 1];
    int is = take_tag(c, FUNCTION, name, sizeof name);
    if (is == 0)
        return 0;
    if (is < 0) {
        c->place = BROKEN;
        return 0;
    }
    int rc = buffer_append(&c->name, name, strlen(name));
    rc = rc ? rc : calls_begin(c, name);
    if (rc || c->place == BROKEN)
        return rc;
    c->place = AT_PARAMETER;
    c->streams = c->has_arguments = true;
    return put(c, "{");
}

static int at_parameter(struct engine_calls *c)
{
    char key[TAG_MAX];
    int is = take_tag(c, PARAMETER, key, sizeof key);
    if (is > 0) {
        c->types = parameter_types(c, key);
        c->place = IN_PARAMETER;
        int rc = put(c, c->n_parameters++ > 0 ? ", \"" : "\"");
        rc = rc ? rc : put_escaped(c, key, strlen(key));
        rc = rc ? rc : put(c, "\": ");
        return rc || c->types != STRING ? rc : put(c, "\"");
    }
    int last = begins(c->piece.data, c->piece.n, FUNCTION_END);
    if (last > 0) {
        drop(c, strlen(FUNCTION_END));
        c->place = BEHIND_OBJECT;
        return put(c, "}");
    }
    if (is < 0 && last < 0)
        c->place = BROKEN;
    return 0;
}

int calls_xml_byte(struct engine_calls *c, char byte)
{
    if (c->place == BROKEN || (calls_is_space(byte) && c->piece.n == 0 && c->place != IN_PARAMETER))
        return 0;
    if (c->place == BEHIND_OBJECT) {
        c->place = BROKEN;
        return 0;
    }
    bool first = c->place == IN_PARAMETER && c->piece.n == 0 && c->looked == 0 && byte == '\n';
    if (first && !c->quoted) { /* the line end behind the tag */
        c->quoted = true;
        return 0;
    }
    int rc = buffer_append(&c->piece, &byte, 1);
    enum place before;
    do {
        before = c->place;
        while (before != IN_PARAMETER && c->piece.n > 0 && calls_is_space(c->piece.data[0]))
            drop(c, 1);
        if (rc || c->piece.n == 0)
            return rc;
        if (before != IN_PARAMETER)
            c->quoted = false;
        rc = before == AT_FUNCTION    ? at_function(c)
             : before == AT_PARAMETER ? at_parameter(c)
             : before == IN_PARAMETER ? in_parameter(c)
                                      : 0;
    } while (rc == 0 && c->place != before);
    return rc;
}

int calls_xml_flush(struct engine_calls *c)
{
    if (c->place != IN_PARAMETER || c->types != STRING)
        return 0;
    /* What may be the line end and tag behind the value stays. */
    const char *end = c->piece.n > c->looked ? memmem(c->piece.data + c->looked, c->piece.n - c->looked, PARAMETER_END,
                                                      strlen(PARAMETER_END))
                                             : NULL;
    if (c->piece.n == 0)
        return 0;
    size_t keep = end != NULL ? c->piece.n - (size_t)(end - c->piece.data) : 0;
    for (size_t n = strlen(PARAMETER_END) - 1; end == NULL && keep == 0 && n > 0; n--)
        if (n <= c->piece.n && memcmp(c->piece.data + c->piece.n - n, PARAMETER_END, n) == 0)
            keep = n;
    size_t out = c->piece.n - keep;
    if (out > 0 && c->piece.data[out - 1] == '\n')
        out--;
    int rc = put_escaped(c, c->piece.data, out);
    drop(c, out);
    c->looked = c->looked > out ? c->looked - out : 0;
    c->quoted = true;
    return rc;
}

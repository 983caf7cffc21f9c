/* form.c - the form that an answer must have: text.format of Responses and response_format of Chat Completions, which
 * differ in where a schema's or a grammar's fields are. A grammar is written as the API writes that of a custom tool.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define SCHEMA_NAME_MAX 64

bool form_may_be_in(const char *body, size_t len)
{
    /* Letters can be written as \\u00XX, too. */
    return len && (memmem(body, len, "json_schema", 11) || memmem(body, len, "strict", 6) ||
                   memmem(body, len, "grammar", 7) || memmem(body, len, "\\u00", 4));
}

int verbosity_parse(const cJSON *o, const char *prefix, const char **out, struct api_error *e)
{
    static const char *const words[] = {"low", "medium", "high"};
    char param[32];
    if (json_string(o, prefix, "verbosity", 16, out, e) || !*out) {
        return e->status ? -1 : 0;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(*out, words[i]) == 0) {
            return 0;
        }
    }
    snprintf(param, sizeof(param), "%sverbosity", prefix);
    api_error_set(e, 400, "invalid_value", param, "'%s' is low, medium or high.", param);
    return -1;
}

static int compile(enum engine_form_kind kind, const char *text, bool strict, const char *param, struct turn_request *q,
                   struct api_error *e)
{
    const char *code = kind == ENGINE_FORM_PATTERN ? "invalid_grammar" : "invalid_json_schema";
    char err[400] = "";
    int rc = engine_form_new(kind, text, strlen(text), !strict, &q->form, err, sizeof(err));
    if (rc == -ENOMEM) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    } else if (rc) {
        api_error_set(e, 400, code, param, "'%s': %s", param, err);
    }
    return rc ? -1 : 0;
}

static int missing(const char *prefix, const char *key, struct api_error *e)
{
    char param[96];
    snprintf(param, sizeof(param), "%s%s", prefix, key);
    api_error_set(e, 400, "missing_required_parameter", param, "'%s' is missing.", param);
    return -1;
}

static int parse_schema(const cJSON *o, const char *prefix, struct turn_request *q, struct api_error *e)
{
    char param[96];
    const char *name = NULL, *description = NULL;
    const cJSON *schema = NULL;
    bool strict = false;
    if (json_string(o, prefix, "name", SCHEMA_NAME_MAX, &name, e) ||
        json_string(o, prefix, "description", DESCRIPTION_MAX, &description, e) ||
        json_object(o, prefix, "schema", &schema, e) || json_bool(o, prefix, "strict", &strict, e)) {
        return -1;
    }
    if (!name || !schema) {
        return missing(prefix, name ? "schema" : "name", e);
    }
    snprintf(param, sizeof(param), "%sschema", prefix);
    char *text = json_print(schema);
    if (!text) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    int rc = compile(ENGINE_FORM_SCHEMA, text, strict, param, q, e);
    free(text);
    return rc;
}

static int parse_grammar(const cJSON *o, const char *prefix, struct turn_request *q, struct api_error *e)
{
    char param[96];
    const char *syntax = NULL, *definition = NULL;
    if (json_string(o, prefix, "syntax", 64, &syntax, e) ||
        json_string(o, prefix, "definition", BODY_BYTES_MAX, &definition, e)) {
        return -1;
    }
    if (!syntax || !definition) {
        return missing(prefix, syntax ? "definition" : "syntax", e);
    }
    bool lark = strcmp(syntax, "lark") == 0;
    if (!lark && strcmp(syntax, "regex") != 0) {
        snprintf(param, sizeof(param), "%ssyntax", prefix);
        api_error_set(e, 400, "invalid_value", param, "'%s' is 'regex' or 'lark'.", param);
        return -1;
    }
    snprintf(param, sizeof(param), "%sdefinition", prefix);
    char *pattern = NULL, err[200];
    if (lark && lark_pattern(definition, &pattern, err, sizeof(err))) {
        api_error_set(e, 400, "invalid_grammar", param, "'%s': %s", param, err);
        return -1;
    }
    int rc = compile(ENGINE_FORM_PATTERN, lark ? pattern : definition, true, param, q, e);
    free(pattern);
    return rc;
}

/* As the response shows it: what was read of it, for the rest could be of any length. */
static void echo_form(const cJSON *format, const char *type, cJSON *echo)
{
    static const char *const object[] = {"type", NULL}, *const schema[] = {"type",   "name",   "description",
                                                                           "schema", "strict", NULL},
                             *const grammar[] = {"type", "syntax", "definition", NULL};
    cJSON *shown = json_pick(format, strcmp(type, "json_schema") == 0 ? schema
                                     : strcmp(type, "grammar") == 0   ? grammar
                                                                      : object);
    json_add_text(cJSON_AddObjectToObject(echo, "text"), "format", shown);
    cJSON_Delete(shown);
}

int form_parse(const cJSON *format, const char *prefix, bool nested, struct turn_request *q, cJSON *echo,
               struct api_error *e)
{
    const char *type = NULL;
    char within[64];
    if (!format) {
        return 0;
    }
    if (json_string(format, prefix, "type", 64, &type, e)) {
        return -1;
    }
    if (!type || strcmp(type, "text") == 0) {
        return 0;
    }
    int rc = -1;
    bool schema = strcmp(type, "json_schema") == 0;
    if (strcmp(type, "json_object") == 0) {
        rc = compile(ENGINE_FORM_OBJECT, "", true, "type", q, e);
    } else if (schema || strcmp(type, "grammar") == 0) {
        const cJSON *o = nested ? NULL : format;
        if (nested && json_object(format, prefix, type, &o, e)) {
            return -1;
        }
        if (!o) {
            return missing(prefix, type, e);
        }
        snprintf(within, sizeof(within), "%s%s%s", prefix, nested ? type : "", nested ? "." : "");
        rc = schema ? parse_schema(o, within, q, e) : parse_grammar(o, within, q, e);
    } else {
        snprintf(within, sizeof(within), "%stype", prefix);
        api_error_set(e, 400, "invalid_value", within, "'%s' is 'text', 'json_object', 'json_schema' or 'grammar'.",
                      within);
    }
    if (rc == 0 && echo) {
        echo_form(format, type, echo);
    }
    return rc;
}

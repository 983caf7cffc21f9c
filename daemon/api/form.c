/* form.c - the form that an answer must have: text.format of Responses and response_format of Chat Completions, which
 * differ in where a schema's fields are.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/api/api.h"

#define SCHEMA_NAME_MAX 64

bool form_may_be_in(const char *body, size_t len)
{
    /* Letters can be written as \\u00XX, too. */
    return len &&
           (memmem(body, len, "json_schema", 11) || memmem(body, len, "strict", 6) || memmem(body, len, "\\u00", 4));
}

int form_check(const struct turn_request *q, struct api_error *e)
{
    if (q->form && q->n_stops) {
        api_error_set(e, 400, "unsupported_parameter", "stop",
                      "'stop' is not supported with a format: it could end the answer before it is whole.");
        return -1;
    }
    return 0;
}

static int compile(enum engine_form_kind kind, const char *text, bool strict, const char *param, struct turn_request *q,
                   struct api_error *e)
{
    char err[400] = "";
    int rc = engine_form_new(kind, text, strlen(text), !strict, &q->form, err, sizeof(err));
    if (rc == -ENOMEM) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    } else if (rc) {
        api_error_set(e, 400, "invalid_json_schema", param, "'%s': %s", param, err);
    }
    return rc ? -1 : 0;
}

static int parse_schema(const cJSON *o, const char *prefix, struct turn_request *q, struct api_error *e)
{
    char param[96];
    const char *name = NULL;
    const cJSON *schema = NULL;
    bool strict = false;
    if (json_string(o, prefix, "name", SCHEMA_NAME_MAX, &name, e) || json_object(o, prefix, "schema", &schema, e) ||
        json_bool(o, prefix, "strict", &strict, e)) {
        return -1;
    }
    snprintf(param, sizeof(param), "%s%s", prefix, name ? "schema" : "name");
    if (!name || !schema) {
        api_error_set(e, 400, "missing_required_parameter", param, "'%s' is missing.", param);
        return -1;
    }
    char *text = cJSON_PrintUnformatted(schema);
    if (!text) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    int rc = compile(ENGINE_FORM_SCHEMA, text, strict, param, q, e);
    cJSON_free(text);
    return rc;
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
    snprintf(within, sizeof(within), "%s%s", prefix, nested ? "json_schema." : "");
    if (!type || strcmp(type, "text") == 0) {
        return 0;
    }
    int rc = -1;
    if (strcmp(type, "json_object") == 0) {
        rc = compile(ENGINE_FORM_OBJECT, "", true, "type", q, e);
    } else if (strcmp(type, "json_schema") == 0) {
        const cJSON *o = nested ? NULL : format;
        if (nested && json_object(format, prefix, "json_schema", &o, e)) {
            return -1;
        }
        rc = o ? parse_schema(o, within, q, e) : -1;
        if (!o) {
            api_error_set(e, 400, "missing_required_parameter", "response_format.json_schema",
                          "'response_format.json_schema' is missing.");
        }
    } else {
        within[strlen(prefix)] = 0;
        strcat(within, "type");
        api_error_set(e, 400, "invalid_value", within, "'%s' is 'text', 'json_object' or 'json_schema'.", within);
    }
    if (rc == 0 && echo) {
        cJSON *text = cJSON_AddObjectToObject(echo, "text");
        cJSON_AddItemToObject(text, "format", cJSON_Duplicate(format, true));
    }
    return rc;
}

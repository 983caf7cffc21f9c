/* tools.c - the tools of a request: which there are, and whether the model must call one.
 *
 * Both interfaces' definitions become one form, {"type": "function", "function": {"name", "description",
 * "parameters"}}: what a model's template writes. Other members change nothing that the model sees, and are left out.
 * Calls are kept to the tools' names, and with `strict` to the schema of their arguments.
 * Kinds of tools that the server of the API itself would run are skipped, and listed in the answer; they are refused
 * only where one is asked for by name.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

#define TOOLS_MAX 1024

bool tool_name_valid(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n <= TOOL_NAME_MAX &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

static const cJSON *function_of(const cJSON *definition)
{
    return json_get(definition, "function");
}

static bool has(const cJSON *definitions, const char *name)
{
    const cJSON *d;
    cJSON_ArrayForEach(d, definitions)
    {
        if (strcmp(json_get(function_of(d), "name")->valuestring, name) == 0) {
            return true;
        }
    }
    return false;
}

/* What is made of a request's tools. */
struct tool_reader {
    cJSON *list;    /* definitions for the model */
    cJSON *calls;   /* [{"name", "parameters"}]: what calls must be, in the same order */
    cJSON *params;  /* where each came from, for errors */
    cJSON *labels;  /* what calls of them have besides, by name */
    cJSON *echo;    /* as the response shows them; NULL: it does not */
    cJSON *skipped; /* kinds */
    bool nested;    /* as in Chat Completions */
    struct api_error *e;
};

static int refuse(struct tool_reader *r, const char *code, const char *param, const char *text)
{
    api_error_set(r->e, 400, code, param, "'%s' %s", param, text);
    return -1;
}

static int refuse_name(struct tool_reader *r, const char *name, const char *param, const char *more)
{
    api_error_set(r->e, 400, name ? "invalid_value" : "missing_required_parameter", param,
                  "'%s' has 1 to %d characters of A-Z a-z 0-9 _ . -%s", param, TOOL_NAME_MAX, more);
    return -1;
}

#define NAME_SIZE (TOOL_NAME_MAX + 2) /* with room for one that is too long */

/* A name in its namespace; NULL: it is in none. */
static void join(char whole[NAME_SIZE], const char *space, const char *name)
{
    const char *parts[] = {space ? space : "", space ? "." : "", name};
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        for (const char *p = parts[i]; *p && n + 1 < NAME_SIZE; p++) {
            whole[n++] = *p;
        }
    }
    whole[n] = '\0';
}

/* A definition, by its whole name. label: what its calls have besides; taken. */
static int add_definition(struct tool_reader *r, const char *space, const char *name, const char *description,
                          const cJSON *parameters, const cJSON *strict, cJSON *label, const char *prefix)
{
    char param[96], whole[NAME_SIZE];
    snprintf(param, sizeof(param), "%.80sname", prefix);
    join(whole, space, name ? name : "");
    if (!name || !tool_name_valid(name) || !tool_name_valid(whole)) {
        cJSON_Delete(label);
        return refuse_name(r, name, param, space ? ", with its namespace" : "");
    }
    if (has(r->list, whole)) {
        cJSON_Delete(label);
        api_error_set(r->e, 400, "invalid_value", param, "There are two tools with the name '%s'.", whole);
        return -1;
    }
    cJSON *definition = cJSON_CreateObject();
    cJSON_AddStringToObject(definition, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(definition, "function");
    cJSON_AddStringToObject(function, "name", whole);
    if (description) {
        cJSON_AddStringToObject(function, "description", description);
    }
    if (parameters) {
        cJSON_AddItemToObject(function, "parameters", cJSON_Duplicate(parameters, true));
    }
    cJSON_AddItemToArray(r->list, definition);
    cJSON *call = cJSON_CreateObject();
    cJSON_AddStringToObject(call, "name", whole);
    if (strict) {
        cJSON_AddItemToObject(call, "parameters", cJSON_Duplicate(strict, true));
    }
    cJSON_AddItemToArray(r->calls, call);
    cJSON_AddItemToArray(r->params, cJSON_CreateString(prefix));
    if (space && !label) {
        label = cJSON_CreateObject();
    }
    if (space) {
        cJSON_AddStringToObject(label, "namespace", space);
    }
    if (label) {
        cJSON_AddItemToObject(r->labels, whole, label);
    }
    return 0;
}

/* A function, whose fields are called prefix + name. */
static int add_function(struct tool_reader *r, const cJSON *o, const char *space, const char *prefix)
{
    const char *name = NULL, *description = NULL;
    const cJSON *parameters = NULL;
    bool strict = false;
    if (json_string(o, prefix, "name", 256, &name, r->e) ||
        json_string(o, prefix, "description", DESCRIPTION_MAX, &description, r->e) ||
        json_object(o, prefix, "parameters", &parameters, r->e) || json_bool(o, prefix, "strict", &strict, r->e)) {
        return -1;
    }
    return add_definition(r, space, name, description, parameters, strict ? parameters : NULL, NULL, prefix);
}

/* The pattern that a custom tool's input must match as a whole, malloc'd. NULL: any text. */
static int read_format(struct tool_reader *r, const cJSON *o, const char *prefix, char **pattern)
{
    const cJSON *format = NULL;
    const char *type = NULL, *syntax = NULL, *definition = NULL;
    char param[96], err[200];
    *pattern = NULL;
    if (json_object(o, prefix, "format", &format, r->e) || !format) {
        return r->e->status ? -1 : 0;
    }
    snprintf(param, sizeof(param), "%.70sformat.", prefix);
    if (json_string(format, param, "type", 16, &type, r->e)) {
        return -1;
    }
    if (!type || strcmp(type, "text") == 0) {
        return 0;
    }
    if (strcmp(type, "grammar") != 0) {
        strcat(param, "type");
        return refuse(r, "invalid_value", param, "is 'text' or 'grammar'.");
    }
    if (r->nested) {
        if (json_object(format, param, "grammar", &format, r->e) || !format) {
            return r->e->status ? -1 : refuse(r, "missing_required_parameter", param, "has no grammar.");
        }
        strcat(param, "grammar.");
    }
    if (json_string(format, param, "syntax", 64, &syntax, r->e) ||
        json_string(format, param, "definition", BODY_BYTES_MAX, &definition, r->e)) {
        return -1;
    }
    bool lark = syntax && strcmp(syntax, "lark") == 0;
    if (!lark && (!syntax || strcmp(syntax, "regex") != 0)) {
        strcat(param, "syntax");
        return refuse(r, "invalid_value", param, "is 'regex' or 'lark'.");
    }
    strcat(param, "definition");
    if (!definition) {
        return refuse(r, "missing_required_parameter", param, "is missing.");
    }
    if (lark && lark_pattern(definition, pattern, err, sizeof(err))) {
        api_error_set(r->e, 400, "invalid_grammar", param, "'%s': %s", param, err);
        return -1;
    }
    if (!lark && !pattern_is_whole(definition, strlen(definition))) {
        return refuse(r, "invalid_grammar", param, "has a group or class that does not close, or was not begun.");
    }
    if (!lark && !(*pattern = strdup(definition))) {
        api_error_set(r->e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    return 0;
}

/* A custom tool: a function with a text as its only argument. */
static int add_custom(struct tool_reader *r, const cJSON *o, const char *space, const char *prefix)
{
    const char *name = NULL, *description = NULL;
    char *pattern = NULL, *whole = NULL;
    if (json_string(o, prefix, "name", 256, &name, r->e) ||
        json_string(o, prefix, "description", DESCRIPTION_MAX, &description, r->e) ||
        read_format(r, o, prefix, &pattern)) {
        return -1;
    }
    int made = pattern ? asprintf(&whole, "^(?:%s)$", pattern) : 0;
    free(pattern);
    if (made < 0) {
        api_error_set(r->e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    cJSON *parameters = cJSON_CreateObject(), *label = cJSON_CreateObject(), *bound;
    cJSON_AddStringToObject(parameters, "type", "object");
    cJSON *input = cJSON_AddObjectToObject(cJSON_AddObjectToObject(parameters, "properties"), "input");
    cJSON_AddStringToObject(input, "type", "string");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(parameters, "required"), cJSON_CreateString("input"));
    cJSON_AddFalseToObject(parameters, "additionalProperties");
    cJSON_AddTrueToObject(label, "custom");
    bound = cJSON_Duplicate(parameters, true);
    if (whole) {
        cJSON_AddStringToObject(cJSON_GetObjectItem(cJSON_GetObjectItem(bound, "properties"), "input"), "pattern",
                                whole);
    }
    int rc = add_definition(r, space, name, description, parameters, bound, label, prefix);
    free(whole);
    cJSON_Delete(parameters);
    cJSON_Delete(bound);
    return rc;
}

/* Of the process's model: one way of writing calls for all that is parsed. */
static atomic_int syntax = ENGINE_CALLS_HERMES;

void tools_model(enum engine_call_syntax calls)
{
    atomic_store(&syntax, (int)calls);
}

static bool is_custom(const struct tool_reader *r, const char *name)
{
    return cJSON_IsTrue(json_get(json_get(r->labels, name), "custom"));
}

static int compile_calls(struct turn_request *q, const struct tool_reader *r, const char *schema)
{
    char err[400] = "", param[128];
    size_t at = 0;
    char *text = json_print(r->calls);
    enum engine_call_syntax calls_syntax = (enum engine_call_syntax)atomic_load(&syntax);
    int rc = text ? engine_form_calls(calls_syntax, text, strlen(text), &q->call_form, &at, err, sizeof(err)) : -ENOMEM;
    cJSON_free(text);
    if (rc == -ENOMEM) {
        api_error_set(r->e, 500, "server_error", NULL, "Out of memory.");
    } else if (rc) {
        const cJSON *from = cJSON_GetArrayItem(r->params, (int)at);
        const char *name = json_get(cJSON_GetArrayItem(r->calls, (int)at), "name")->valuestring;
        snprintf(param, sizeof(param), "%s%s", from ? from->valuestring : "", is_custom(r, name) ? "format" : schema);
        api_error_set(r->e, 400, "invalid_function_parameters", param, "'%s': %s", param, err);
    }
    return rc ? -1 : 0;
}

/* One of the kinds that the model knows. */
static bool is_tool(const char *type)
{
    return type && (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0);
}

static const char *type_of(const cJSON *o)
{
    return cJSON_GetStringValue(json_get(o, "type"));
}

static cJSON *shown_tool(const cJSON *o);

/* The tools of a namespace. */
static cJSON *shown_tools(const cJSON *tools)
{
    cJSON *shown = cJSON_CreateArray();
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools)
    {
        if (is_tool(type_of(tool))) {
            cJSON_AddItemToArray(shown, shown_tool(tool));
        }
    }
    return shown;
}

/* As the response shows it: what was read of it, for the rest could be of any length. */
static cJSON *shown_tool(const cJSON *o)
{
    static const char *const function[] = {"name", "description", "parameters", "strict", NULL},
                             *const other[] = {"type", "name", "description", NULL}, *const text[] = {"type", NULL},
                             *const grammar[] = {"type", "syntax", "definition", NULL};
    const cJSON *format = json_get(o, "format");
    const char *type = type_of(o), *kind = type_of(format);
    if (strcmp(type, "function") != 0) {
        cJSON *shown = json_pick(o, other);
        if (strcmp(type, "namespace") == 0) {
            cJSON_AddItemToObject(shown, "tools", shown_tools(json_get(o, "tools")));
        } else if (format) {
            bool is_text = !kind || strcmp(kind, "text") == 0;
            cJSON_AddItemToObject(shown, "format", json_pick(format, is_text ? text : grammar));
        }
        return shown;
    }
    cJSON *shown = cJSON_CreateObject();
    cJSON_AddStringToObject(shown, "type", type);
    for (const char *const *keys = function; *keys; keys++) {
        const cJSON *v = json_get(o, *keys);
        cJSON_AddItemToObject(shown, *keys, v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
    }
    return shown;
}

static int read_tools(struct tool_reader *r, const cJSON *tools, const char *where, const char *space);

/* One tool; *shown: it is one that the model knows. */
static int read_tool(struct tool_reader *r, const cJSON *tool, const char *space, const char *where, bool *shown)
{
    char prefix[96];
    const char *type = NULL, *name = NULL;
    const cJSON *o = tool;
    snprintf(prefix, sizeof(prefix), "%.60s.", where);
    if (json_string(tool, prefix, "type", 64, &type, r->e)) {
        return -1;
    }
    if (!type) {
        strcat(prefix, "type");
        return refuse(r, "missing_required_parameter", prefix, "is missing.");
    }
    *shown = is_tool(type);
    if (!space && !r->nested && strcmp(type, "namespace") == 0) {
        char inner[80];
        const char *description = NULL;
        *shown = true;
        if (json_string(tool, prefix, "name", 256, &name, r->e) ||
            json_string(tool, prefix, "description", DESCRIPTION_MAX, &description, r->e)) {
            return -1;
        }
        if (!name || !tool_name_valid(name)) {
            strcat(prefix, "name");
            return refuse_name(r, name, prefix, "");
        }
        snprintf(inner, sizeof(inner), "%.60s.tools", where);
        return read_tools(r, json_get(tool, "tools"), inner, name);
    }
    if (!*shown) {
        cJSON_AddItemToArray(r->skipped, cJSON_CreateString(type));
        return 0;
    }
    if (r->nested) {
        o = NULL;
        if (json_object(tool, prefix, type, &o, r->e)) {
            return -1;
        }
        strcat(prefix, type);
        if (!o) {
            return refuse(r, "missing_required_parameter", prefix, "is missing.");
        }
        strcat(prefix, ".");
    }
    return strcmp(type, "function") == 0 ? add_function(r, o, space, prefix) : add_custom(r, o, space, prefix);
}

static int read_tools(struct tool_reader *r, const cJSON *tools, const char *where, const char *space)
{
    const cJSON *tool;
    int i = 0;
    if (tools && !cJSON_IsArray(tools)) {
        api_error_set(r->e, 400, "invalid_type", where, "Invalid type for '%s': expected a list.", where);
        return -1;
    }
    cJSON_ArrayForEach(tool, tools)
    {
        char param[96];
        bool shown = false;
        snprintf(param, sizeof(param), "%.60s[%d]", where, i++);
        if (!cJSON_IsObject(tool)) {
            api_error_set(r->e, 400, "invalid_type", param, "Invalid type for '%s': expected an object.", param);
            return -1;
        }
        if (cJSON_GetArraySize(r->list) + cJSON_GetArraySize(r->skipped) >= TOOLS_MAX) {
            api_error_set(r->e, 400, "invalid_value", where, "There are more than %d tools.", TOOLS_MAX);
            return -1;
        }
        if (read_tool(r, tool, space, param, &shown)) {
            return -1;
        }
        if (shown && r->echo && !space) {
            cJSON_AddItemToArray(r->echo, shown_tool(tool));
        }
    }
    return 0;
}

/* Tools that stand among the items: those of the request as well. */
static int read_additional(struct tool_reader *r, const cJSON *body)
{
    const cJSON *input = r->nested ? NULL : json_get(body, "input"), *list = cJSON_IsArray(input) ? input : NULL, *item;
    char where[64];
    int i = 0;
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *type = cJSON_IsObject(item) ? json_get(item, "type") : NULL;
        snprintf(where, sizeof(where), "input[%d].tools", i++);
        if (cJSON_IsString(type) && strcmp(type->valuestring, "additional_tools") == 0 &&
            read_tools(r, json_get(item, "tools"), where, NULL)) {
            return -1;
        }
    }
    return 0;
}

static int refuse_choice(const char *param, struct api_error *e)
{
    api_error_set(e, 400, "unsupported_parameter", param, "'%s' is not supported with this value.", param);
    return -1;
}

static bool set_mode(struct turn_request *q, const char *word)
{
    static const char *const words[] = {
        [SESSION_TOOLS_AUTO] = "auto", [SESSION_TOOLS_NONE] = "none", [SESSION_TOOLS_REQUIRED] = "required"};
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(words[i], word) == 0) {
            q->tool_choice = (enum session_tools)i;
            return true;
        }
    }
    return false;
}

/* The whole name of the tool that o names; NULL: none, and *e says so, or it is of a kind that was skipped. */
static int read_name(struct tool_reader *r, const cJSON *o, const char *prefix, char name[NAME_SIZE])
{
    const char *type = NULL, *own = NULL, *space = NULL;
    char param[96];
    const cJSON *of = o;
    name[0] = '\0';
    snprintf(param, sizeof(param), "%.60s", prefix);
    if (!cJSON_IsObject(o)) {
        param[strlen(param) - 1] = '\0';
        api_error_set(r->e, 400, "invalid_type", param, "Invalid type for '%s': expected an object.", param);
        return -1;
    }
    if (json_string(o, param, "type", 64, &type, r->e)) {
        return -1;
    }
    if (!type || (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0)) {
        return 0;
    }
    if (r->nested) {
        of = NULL;
        if (json_object(o, param, type, &of, r->e)) {
            return -1;
        }
        strcat(param, type);
        strcat(param, ".");
    }
    if (json_string(of, param, "name", 256, &own, r->e) ||
        json_string(of, param, "namespace", TOOL_NAME_MAX, &space, r->e)) {
        return -1;
    }
    join(name, space, own ? own : "");
    if (!own || !has(r->list, name) || is_custom(r, name) != (strcmp(type, "custom") == 0)) {
        strcat(param, "name");
        return refuse(r, own ? "invalid_value" : "missing_required_parameter", param,
                      "must name one of the tools, by its type.");
    }
    return 0;
}

/* Keeps calls to the allowed tools: the model is told of all. */
static int allow(struct turn_request *q, struct tool_reader *r, const cJSON *choice)
{
    const char *mode = NULL, *prefix = "tool_choice.";
    const cJSON *allowed = choice, *tools, *tool;
    char name[NAME_SIZE], param[96];
    int i = 0;
    if (r->nested) {
        prefix = "tool_choice.allowed_tools.";
        allowed = NULL;
        if (json_object(choice, "tool_choice.", "allowed_tools", &allowed, r->e)) {
            return -1;
        }
    }
    if (json_string(allowed, prefix, "mode", 16, &mode, r->e)) {
        return -1;
    }
    snprintf(param, sizeof(param), "%smode", prefix);
    if (mode && (strcmp(mode, "none") == 0 || !set_mode(q, mode))) {
        return refuse(r, "invalid_value", param, "is 'auto' or 'required'.");
    }
    tools = json_get(allowed, "tools");
    snprintf(param, sizeof(param), "%stools", prefix);
    if (!cJSON_IsArray(tools) || !tools->child) {
        return refuse(r, tools ? "invalid_value" : "missing_required_parameter", param, "must be a list of tools.");
    }
    if (cJSON_GetArraySize(tools) > TOOLS_MAX) {
        api_error_set(r->e, 400, "invalid_value", param, "There are more than %d tools in '%s'.", TOOLS_MAX, param);
        return -1;
    }
    cJSON *list = cJSON_CreateArray(), *calls = cJSON_CreateArray(), *params = cJSON_CreateArray();
    cJSON_ArrayForEach(tool, tools)
    {
        snprintf(param, sizeof(param), "%stools[%d].", prefix, i++);
        if (read_name(r, tool, param, name)) {
            break;
        }
        if (!name[0] || has(list, name)) {
            continue;
        }
        const cJSON *d = r->list->child, *call = r->calls->child, *from = r->params->child;
        while (strcmp(json_get(function_of(d), "name")->valuestring, name) != 0) { /* it is there: read_name() */
            d = d->next, call = call->next, from = from->next;
        }
        cJSON_AddItemToArray(list, cJSON_Duplicate(d, true));
        cJSON_AddItemToArray(calls, cJSON_Duplicate(call, true));
        cJSON_AddItemToArray(params, cJSON_Duplicate(from, true));
    }
    if (!r->e->status && !list->child) {
        (void)refuse_choice("tool_choice", r->e);
    }
    q->callable = r->e->status ? NULL : json_print(list);
    cJSON_Delete(list);
    if (r->e->status || !q->callable) {
        cJSON_Delete(calls);
        cJSON_Delete(params);
        if (!r->e->status) {
            api_error_set(r->e, 500, "server_error", NULL, "Out of memory.");
        }
        return -1;
    }
    cJSON_Delete(r->calls);
    cJSON_Delete(r->params);
    r->calls = calls;
    r->params = params;
    return 0;
}

static int parse_choice(struct turn_request *q, const cJSON *body, struct tool_reader *r)
{
    const cJSON *choice = json_get(body, "tool_choice");
    const char *type = NULL;
    char name[NAME_SIZE];
    if (!choice) {
        return 0;
    }
    if (cJSON_IsString(choice)) {
        if (!set_mode(q, choice->valuestring)) {
            return refuse_choice("tool_choice", r->e);
        }
    } else if (!cJSON_IsObject(choice)) {
        api_error_set(r->e, 400, "invalid_type", "tool_choice",
                      "Invalid type for 'tool_choice': expected a string or an object.");
        return -1;
    } else if (json_string(choice, "tool_choice.", "type", 64, &type, r->e)) {
        return -1;
    } else if (type && strcmp(type, "allowed_tools") == 0) {
        if (allow(q, r, choice)) {
            return -1;
        }
    } else {
        if (read_name(r, choice, "tool_choice.", name)) {
            return -1;
        }
        if (!name[0]) {
            return refuse_choice("tool_choice", r->e);
        }
        q->tool_choice = SESSION_TOOLS_REQUIRED;
        q->one_call = true;
        q->tool = strdup(name);
        if (!q->tool) {
            api_error_set(r->e, 500, "server_error", NULL, "Out of memory.");
            return -1;
        }
    }
    if (q->tool_choice == SESSION_TOOLS_REQUIRED && !r->list->child) {
        api_error_set(r->e, 400, "invalid_value", "tool_choice",
                      "'tool_choice' requires a call, but there are no tools.");
        return -1;
    }
    return 0;
}

/* Of an object, what parse_choice() read. */
static void echo_choice(cJSON *echo, const cJSON *choice, bool names_tool)
{
    static const char *const named[] = {"type", "name", "namespace", NULL}, *const allowed[] = {"type", "mode", NULL},
                             *const other[] = {"type", NULL};
    const cJSON *list = names_tool ? NULL : json_get(choice, "tools"), *one;
    if (cJSON_IsString(choice)) {
        cJSON_AddStringToObject(echo, "tool_choice", choice->valuestring);
        return;
    }
    cJSON *shown = json_pick(choice, names_tool ? named : allowed);
    cJSON *tools = names_tool ? NULL : cJSON_AddArrayToObject(shown, "tools");
    cJSON_ArrayForEach(one, list)
    {
        cJSON_AddItemToArray(tools, json_pick(one, is_tool(type_of(one)) ? named : other));
    }
    json_add_text(echo, "tool_choice", shown);
    cJSON_Delete(shown);
}

int tools_parse(struct turn_request *q, const cJSON *body, const char *schema, cJSON *echo, struct api_error *e)
{
    const char *within = "function.";
    struct tool_reader r = {.list = cJSON_CreateArray(),
                            .calls = cJSON_CreateArray(),
                            .params = cJSON_CreateArray(),
                            .labels = cJSON_CreateObject(),
                            .echo = echo ? cJSON_CreateArray() : NULL,
                            .skipped = cJSON_CreateArray(),
                            .nested = strncmp(schema, within, strlen(within)) == 0,
                            .e = e};
    bool parallel = true;
    int rc = -1;
    if (read_tools(&r, json_get(body, "tools"), "tools", NULL) || read_additional(&r, body) ||
        parse_choice(q, body, &r) || json_bool(body, "", "parallel_tool_calls", &parallel, e)) {
        goto cleanup;
    }
    q->one_call |= !parallel;
    if (r.list->child) {
        q->tools = json_print(r.list);
        q->labels = r.labels->child ? json_print(r.labels) : NULL;
        if (!q->tools || (r.labels->child && !q->labels)) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            goto cleanup;
        }
        if (q->tool_choice != SESSION_TOOLS_NONE && compile_calls(q, &r, r.nested ? schema + strlen(within) : schema)) {
            goto cleanup;
        }
    }
    if (echo) {
        const cJSON *choice = json_get(body, "tool_choice");
        if (r.echo->child) {
            json_add_text(echo, "tools", r.echo);
        }
        if (choice) {
            echo_choice(echo, choice, q->tool != NULL);
        }
        if (!parallel) {
            cJSON_AddBoolToObject(echo, "parallel_tool_calls", false);
        }
        if (r.skipped->child) {
            cJSON_AddItemToObject(json_get(echo, "convod") ? cJSON_GetObjectItem(echo, "convod") : echo,
                                  "skipped_tools", r.skipped);
            r.skipped = NULL;
        }
    }
    rc = 0;
cleanup:
    cJSON_Delete(r.list);
    cJSON_Delete(r.calls);
    cJSON_Delete(r.params);
    cJSON_Delete(r.labels);
    cJSON_Delete(r.echo);
    cJSON_Delete(r.skipped);
    return rc;
}

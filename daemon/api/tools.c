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

#define TOOLS_MAX       1024
#define DESCRIPTION_MAX (256 * 1024)

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

/* A function's definition from o, whose fields are called prefix + name, into list, and what calls of it must be into
 * calls. */
static int add_function(cJSON *list, cJSON *calls, const cJSON *o, const char *prefix, struct api_error *e)
{
    const char *name = NULL, *description = NULL;
    const cJSON *parameters = NULL;
    bool strict = false;
    char param[96];
    if (json_string(o, prefix, "name", 256, &name, e) ||
        json_string(o, prefix, "description", DESCRIPTION_MAX, &description, e) ||
        json_object(o, prefix, "parameters", &parameters, e) || json_bool(o, prefix, "strict", &strict, e)) {
        return -1;
    }
    snprintf(param, sizeof(param), "%.80sname", prefix);
    if (!name || !tool_name_valid(name)) {
        api_error_set(e, 400, name ? "invalid_value" : "missing_required_parameter", param,
                      "'%s' has 1 to %d characters of A-Z a-z 0-9 _ . -", param, TOOL_NAME_MAX);
        return -1;
    }
    if (has(list, name)) {
        api_error_set(e, 400, "invalid_value", param, "There are two tools with the name '%s'.", name);
        return -1;
    }
    cJSON *definition = cJSON_CreateObject();
    cJSON_AddStringToObject(definition, "type", "function");
    cJSON *function = cJSON_AddObjectToObject(definition, "function");
    cJSON_AddStringToObject(function, "name", name);
    if (description) {
        cJSON_AddStringToObject(function, "description", description);
    }
    if (parameters) {
        cJSON_AddItemToObject(function, "parameters", cJSON_Duplicate(parameters, true));
    }
    cJSON_AddItemToArray(list, definition);
    cJSON *call = cJSON_CreateObject();
    cJSON_AddStringToObject(call, "name", name);
    if (strict && parameters) {
        cJSON_AddItemToObject(call, "parameters", cJSON_Duplicate(parameters, true));
    }
    cJSON_AddItemToArray(calls, call);
    return 0;
}

/* The place among the tools of the body of the n-th function. */
static int place_of(const cJSON *body, size_t n)
{
    int at = 0;
    const cJSON *tool;
    cJSON_ArrayForEach(tool, json_get(body, "tools"))
    {
        if (strcmp(json_get(tool, "type")->valuestring, "function") == 0 && n-- == 0) {
            break;
        }
        at++;
    }
    return at;
}

/* Of the process's model: one way of writing calls for all that is parsed. */
static atomic_int syntax = ENGINE_CALLS_HERMES;

void tools_model(enum engine_call_syntax calls)
{
    atomic_store(&syntax, (int)calls);
}

static int compile_calls(struct turn_request *q, const cJSON *body, const char *schema, const cJSON *calls,
                         struct api_error *e)
{
    char err[400] = "", param[64];
    size_t at = 0;
    char *text = json_print(calls);
    enum engine_call_syntax calls_syntax = (enum engine_call_syntax)atomic_load(&syntax);
    int rc = text ? engine_form_calls(calls_syntax, text, strlen(text), &q->call_form, &at, err, sizeof(err)) : -ENOMEM;
    cJSON_free(text);
    if (rc == -ENOMEM) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
    } else if (rc) {
        snprintf(param, sizeof(param), "tools[%d].%s", place_of(body, at), schema);
        api_error_set(e, 400, "invalid_function_parameters", param, "'%s': %s", param, err);
    }
    return rc ? -1 : 0;
}

/* As the response shows it: a function as it was asked for. */
static void echo_function(cJSON *echo, const cJSON *o)
{
    static const char *const keys[] = {"name", "description", "parameters", "strict"};
    cJSON *shown = cJSON_CreateObject();
    cJSON_AddStringToObject(shown, "type", "function");
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        const cJSON *v = json_get(o, keys[i]);
        cJSON_AddItemToObject(shown, keys[i], v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
    }
    cJSON_AddItemToArray(echo, shown);
}

static int parse_list(const cJSON *body, bool nested, cJSON *list, cJSON *calls, cJSON *echo, cJSON *skipped,
                      struct api_error *e)
{
    const cJSON *tools = json_get(body, "tools"), *tool;
    int i = 0;
    if (tools && !cJSON_IsArray(tools)) {
        api_error_set(e, 400, "invalid_type", "tools", "Invalid type for 'tools': expected a list.");
        return -1;
    }
    cJSON_ArrayForEach(tool, tools)
    {
        char prefix[64];
        const char *type = NULL;
        const cJSON *function = tool;
        snprintf(prefix, sizeof(prefix), "tools[%d]", i);
        if (!cJSON_IsObject(tool)) {
            api_error_set(e, 400, "invalid_type", prefix, "Invalid type for '%s': expected an object.", prefix);
            return -1;
        }
        if (i == TOOLS_MAX) {
            api_error_set(e, 400, "invalid_value", "tools", "There are more than %d tools.", TOOLS_MAX);
            return -1;
        }
        snprintf(prefix, sizeof(prefix), "tools[%d].", i++);
        if (json_string(tool, prefix, "type", 64, &type, e)) {
            return -1;
        }
        if (!type) {
            strcat(prefix, "type");
            api_error_set(e, 400, "missing_required_parameter", prefix, "'%s' is missing.", prefix);
            return -1;
        }
        if (strcmp(type, "function") != 0) {
            cJSON_AddItemToArray(skipped, cJSON_CreateString(type));
            continue;
        }
        if (nested) {
            if (json_object(tool, prefix, "function", &function, e)) {
                return -1;
            }
            strcat(prefix, "function");
            if (function == tool) {
                api_error_set(e, 400, "missing_required_parameter", prefix, "'%s' is missing.", prefix);
                return -1;
            }
            strcat(prefix, ".");
        }
        if (add_function(list, calls, function, prefix, e)) {
            return -1;
        }
        if (echo) {
            echo_function(echo, function);
        }
    }
    return 0;
}

static int refuse_choice(const char *param, struct api_error *e)
{
    api_error_set(e, 400, "unsupported_parameter", param, "'%s' is not supported with this value.", param);
    return -1;
}

static int parse_choice(struct turn_request *q, const cJSON *body, bool nested, const cJSON *list, struct api_error *e)
{
    const cJSON *choice = json_get(body, "tool_choice");
    const char *type = NULL, *name = NULL, *param = nested ? "tool_choice.function.name" : "tool_choice.name";
    if (!choice) {
        return 0;
    }
    if (cJSON_IsString(choice)) {
        static const char *const words[] = {
            [SESSION_TOOLS_AUTO] = "auto", [SESSION_TOOLS_NONE] = "none", [SESSION_TOOLS_REQUIRED] = "required"};
        size_t i = 0;
        while (i < 3 && strcmp(words[i], choice->valuestring) != 0) {
            i++;
        }
        if (i == 3) {
            return refuse_choice("tool_choice", e);
        }
        q->tool_choice = (enum session_tools)i;
    } else {
        const cJSON *function = choice;
        if (!cJSON_IsObject(choice)) {
            api_error_set(e, 400, "invalid_type", "tool_choice",
                          "Invalid type for 'tool_choice': expected a string or an object.");
            return -1;
        }
        if (json_string(choice, "tool_choice.", "type", 64, &type, e)) {
            return -1;
        }
        if (!type || strcmp(type, "function") != 0) {
            return refuse_choice("tool_choice", e);
        }
        if ((nested && json_object(choice, "tool_choice.", "function", &function, e)) ||
            json_string(function, nested ? "tool_choice.function." : "tool_choice.", "name", 256, &name, e)) {
            return -1;
        }
        if (!name || !has(list, name)) {
            api_error_set(e, 400, name ? "invalid_value" : "missing_required_parameter", param,
                          "'%s' must name one of the tools.", param);
            return -1;
        }
        q->tool_choice = SESSION_TOOLS_REQUIRED;
        q->one_call = true;
        q->tool = strdup(name);
        if (!q->tool) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            return -1;
        }
    }
    if (q->tool_choice == SESSION_TOOLS_REQUIRED && !list->child) {
        api_error_set(e, 400, "invalid_value", "tool_choice", "'tool_choice' requires a call, but there are no tools.");
        return -1;
    }
    return 0;
}

/* Of an object, what parse_choice() read: the rest of it could be of any length. */
static void echo_choice(cJSON *echo, const cJSON *choice, const char *tool)
{
    if (!tool) {
        cJSON_AddItemToObject(echo, "tool_choice", cJSON_Duplicate(choice, true));
        return;
    }
    cJSON *shown = cJSON_AddObjectToObject(echo, "tool_choice");
    cJSON_AddStringToObject(shown, "type", "function");
    cJSON_AddStringToObject(shown, "name", tool);
}

int tools_parse(struct turn_request *q, const cJSON *body, const char *schema, cJSON *echo, struct api_error *e)
{
    const bool nested = strncmp(schema, "function.", strlen("function.")) == 0;
    cJSON *list = cJSON_CreateArray(), *calls = cJSON_CreateArray(), *shown = echo ? cJSON_CreateArray() : NULL,
          *skipped = cJSON_CreateArray();
    bool parallel = true;
    int rc = -1;
    if (parse_list(body, nested, list, calls, shown, skipped, e) || parse_choice(q, body, nested, list, e) ||
        json_bool(body, "", "parallel_tool_calls", &parallel, e)) {
        goto cleanup;
    }
    q->one_call |= !parallel;
    if (list->child) {
        q->tools = json_print(list);
        if (!q->tools) {
            api_error_set(e, 500, "server_error", NULL, "Out of memory.");
            goto cleanup;
        }
        if (q->tool_choice != SESSION_TOOLS_NONE && compile_calls(q, body, schema, calls, e)) {
            goto cleanup;
        }
    }
    if (echo) {
        const cJSON *choice = json_get(body, "tool_choice");
        if (shown->child) {
            cJSON_AddItemToObject(echo, "tools", shown);
            shown = NULL;
        }
        if (choice) {
            echo_choice(echo, choice, q->tool);
        }
        if (!parallel) {
            cJSON_AddBoolToObject(echo, "parallel_tool_calls", false);
        }
        if (skipped->child) {
            cJSON_AddItemToObject(json_get(echo, "convod") ? cJSON_GetObjectItem(echo, "convod") : echo,
                                  "skipped_tools", skipped);
            skipped = NULL;
        }
    }
    rc = 0;
cleanup:
    cJSON_Delete(list);
    cJSON_Delete(calls);
    cJSON_Delete(shown);
    cJSON_Delete(skipped);
    return rc;
}

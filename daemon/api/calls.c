/* calls.c - calls of tools as the interfaces show them.
 *
 * A model knows functions alone. A custom tool is one with a string, `input`, as its only argument; a namespace's tool
 * has a name with the namespace before it. What a tool is for the client stands in the body of its calls, beside
 * "call_id" and "name": "custom": true, "namespace": NAME.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"

static const char INPUT[] = "input";

void call_show(cJSON *item)
{
    const cJSON *space = cJSON_GetObjectItemCaseSensitive(item, "namespace");
    cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
    size_t n = cJSON_IsString(space) ? strlen(space->valuestring) : 0;
    cJSON_DeleteItemFromObjectCaseSensitive(item, "custom");
    if (n && cJSON_IsString(name) && strncmp(name->valuestring, space->valuestring, n) == 0 &&
        name->valuestring[n] == '.') {
        memmove(name->valuestring, name->valuestring + n + 1, strlen(name->valuestring + n + 1) + 1);
    }
}

/* Where the text of the only argument begins; 0: it has not come yet. */
static size_t text_begins(const char *arguments)
{
    static const char *const words[] = {"{", "\"input\"", ":", "\""};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        at += strspn(arguments + at, " \t\r\n");
        if (strncmp(arguments + at, words[i], strlen(words[i])) != 0) {
            return 0;
        }
        at += strlen(words[i]);
    }
    return at;
}

char *call_input(const char *arguments, size_t *from)
{
    size_t begin = *from ? *from : text_begins(arguments), at = begin;
    while (begin && arguments[at] && arguments[at] != '"') {
        size_t n = 1;
        if (arguments[at] == '\\') {
            n = arguments[at + 1] == 'u' ? 6 : 2;
            /* The first half of a pair waits for the second. */
            if (n == 6 && strnlen(arguments + at, 6) == 6 && strchr("dD", arguments[at + 2]) &&
                strchr("89abAB", arguments[at + 3])) {
                n = 12;
            }
        }
        if (strnlen(arguments + at, n) < n) {
            break;
        }
        at += n;
    }
    char *quoted = malloc(at - begin + 3), *text = NULL;
    if (quoted) {
        quoted[0] = '"';
        memcpy(quoted + 1, arguments + begin, at - begin);
        memcpy(quoted + 1 + (at - begin), "\"", 2);
        cJSON *value = cJSON_Parse(quoted);
        text = strdup(cJSON_IsString(value) ? value->valuestring : "");
        cJSON_Delete(value);
    }
    free(quoted);
    *from = at;
    return text;
}

char *call_arguments(const char *input)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, INPUT, input);
    return json_text(o);
}

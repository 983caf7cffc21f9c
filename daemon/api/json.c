/* json.c - reading requests.
 *
 * cJSON recurses for every level, takes invalid UTF-8, cuts a string at \u0000, turns 1e999 into infinity and finds the
 * first of two members with one name. So one pass over the text, without recursion, refuses what cJSON must not see,
 * and one over the tree what it must not keep; then every field is read through a function that checks its type and
 * names it when it is wrong.
 */
#include "daemon/api/json.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define METADATA_PAIRS_MAX 16
#define METADATA_KEY_MAX   64
#define METADATA_VALUE_MAX 512
#define STOP_BYTES_MAX     256

static _Thread_local bool lost;

void json_lost(void)
{
    lost = true;
}

static void *allocate(size_t size)
{
    void *p = malloc(size);
    lost |= !p;
    return p;
}

void json_start(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
}

/* What was printed of what was built; takes it. */
static char *unless_lost(char *text)
{
    if (lost) {
        free(text);
        text = NULL;
    }
    lost = false;
    return text;
}

char *json_print(const cJSON *o)
{
    return unless_lost(engine_json_print(o));
}

char *json_quoted(const char *s)
{
    cJSON string = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)s};
    return unless_lost(cJSON_PrintUnformatted(&string));
}

bool json_quote(const char *s, char *out, size_t size)
{
    cJSON string = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)s};
    return cJSON_PrintPreallocated(&string, out, (int)size, false);
}

char *json_text(cJSON *o)
{
    char *text = unless_lost(o ? cJSON_PrintUnformatted(o) : NULL);
    cJSON_Delete(o);
    return text;
}

char *json_text_of_bytes(const char *bytes, size_t len)
{
    static const char replacement[] = "\xef\xbf\xbd";
    char *text = malloc(3 * len + 1), *to = text;
    for (size_t i = 0, n; text && i < len; i += n) {
        n = 1;
        while (n < 4 && i + n < len && !utf8_valid(bytes + i, n)) {
            n++;
        }
        bool whole = bytes[i] && utf8_valid(bytes + i, n);
        n = whole ? n : 1;
        memcpy(to, whole ? bytes + i : replacement, whole ? n : 3);
        to += whole ? n : 3;
    }
    if (text) {
        *to = '\0';
    }
    return text;
}

cJSON *api_error_json(const struct api_error *e)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "message", e->message);
    cJSON_AddStringToObject(o, "type", e->type ? e->type : "server_error");
    if (e->param[0]) {
        cJSON_AddStringToObject(o, "param", e->param);
    } else {
        cJSON_AddNullToObject(o, "param");
    }
    if (e->code) {
        cJSON_AddStringToObject(o, "code", e->code);
    } else {
        cJSON_AddNullToObject(o, "code");
    }
    return o;
}

/* Depth, number of values, NUL and \u0000, in one pass. */
static int check_shape(const char *text, size_t len, struct api_error *e)
{
    int depth = 0;
    size_t values = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\0') {
            api_error_set(e, 400, "invalid_json", NULL, "The body contains a NUL byte.");
            return -1;
        }
        if (in_string) {
            if (c == '\\') {
                if (len - i > 5 && memcmp(text + i + 1, "u0000", 5) == 0) {
                    api_error_set(e, 400, "invalid_json", NULL, "Strings must not contain \\u0000.");
                    return -1;
                }
                i++;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            values++;
            if (++depth > JSON_DEPTH_MAX) {
                api_error_set(e, 400, "invalid_json", NULL, "The body is nested deeper than %d levels.",
                              JSON_DEPTH_MAX);
                return -1;
            }
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            values++;
        }
        if (values > JSON_VALUES_MAX) {
            api_error_set(e, 400, "invalid_json", NULL, "The body has more than %d values.", JSON_VALUES_MAX);
            return -1;
        }
    }
    return 0;
}

struct name {
    uint64_t hash;
    const char *text;
};

static int by_hash(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash) : strcmp(x->text, y->text);
}

/* No name twice in an object: its readers take the first, or the last, and so do not read the same. At most
 * JSON_DEPTH_MAX levels. */
static int check_names(const cJSON *v, struct api_error *e)
{
    size_t n = 0;
    const cJSON *child;
    cJSON_ArrayForEach(child, v)
    {
        n++;
        if (child->child && check_names(child, e)) {
            return -1;
        }
    }
    if (n < 2 || !cJSON_IsObject(v)) {
        return 0;
    }
    struct name *names = malloc(n * sizeof(*names));
    if (!names) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    n = 0;
    cJSON_ArrayForEach(child, v)
    {
        names[n++] = (struct name){XXH3_64bits(child->string, strlen(child->string)), child->string};
    }
    qsort(names, n, sizeof(*names), by_hash);
    const char *twice = NULL;
    for (size_t i = 1; i < n && !twice; i++) {
        twice = by_hash(&names[i - 1], &names[i]) == 0 ? names[i].text : NULL;
    }
    free(names);
    if (!twice) {
        return 0;
    }
    api_error_set(e, 400, "invalid_json", twice, "The name '%.100s' stands twice in one object.", twice);
    return -1;
}

/* Infinity cannot be sent, so a number that is not finite was too large. At most JSON_DEPTH_MAX levels. */
static bool all_finite(const cJSON *v)
{
    for (; v; v = v->next) {
        if (cJSON_IsNumber(v) && !isfinite(v->valuedouble)) {
            return false;
        }
        if (v->child && !all_finite(v->child)) {
            return false;
        }
    }
    return true;
}

/* ---- where something is wrong ---- */

/* Behind the string that begins at text[i]. */
static size_t string_end(const char *text, size_t i, size_t len)
{
    for (i++; i < len && text[i] != '"'; i++) {
        i += text[i] == '\\';
    }
    return i < len ? i + 1 : len;
}

static size_t space_end(const char *text, size_t i, size_t len)
{
    while (i < len && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n')) {
        i++;
    }
    return i;
}

/* The value at text[at], as a field is named: "a.b[2]". What is before it is sound, and has JSON_DEPTH_MAX levels at
 * most. False: it is none that could be named, as where a name belongs. */
static bool name_place(const char *text, size_t at, char *out, size_t size)
{
    struct {
        const char *key;
        int len, index; /* index: of a list, -1: it is an object */
    } levels[JSON_DEPTH_MAX + 1];
    int depth = 0;
    for (size_t i = 0; i < at;) {
        char c = text[i];
        if (c == '"') {
            size_t end = string_end(text, i, at), next = space_end(text, end, at);
            if (depth > 0 && levels[depth].index < 0 && next < at && text[next] == ':') {
                levels[depth].key = text + i + 1;
                levels[depth].len = (int)(end - i - 2);
            }
            i = end;
            continue;
        }
        if ((c == '{' || c == '[') && depth < JSON_DEPTH_MAX) {
            depth++;
            levels[depth].key = NULL;
            levels[depth].index = c == '[' ? 0 : -1;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && depth > 0 && levels[depth].index >= 0) {
            levels[depth].index++;
        } else if (c == ',' && depth > 0) {
            levels[depth].key = NULL;
        }
        i++;
    }
    if ((at > 0 && text[at - 1] == '"') || (depth > 0 && levels[depth].index < 0 && !levels[depth].key)) {
        return false;
    }
    size_t n = 0;
    out[0] = '\0';
    for (int d = 1; d <= depth && n < size; d++) {
        n += (size_t)(levels[d].index >= 0
                          ? snprintf(out + n, size - n, "[%d]", levels[d].index)
                          : snprintf(out + n, size - n, "%s%.*s", d > 1 ? "." : "", levels[d].len, levels[d].key));
    }
    return true;
}

/* Where the first number stands that is not finite. */
static size_t huge_number(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        char *end = NULL;
        if (text[i] == '"') {
            i = string_end(text, i, len);
        } else if (text[i] != '-' && (text[i] < '0' || text[i] > '9')) {
            i++;
        } else if (!isfinite(strtod(text + i, &end))) {
            return i;
        } else {
            i = end > text + i ? (size_t)(end - text) : i + 1;
        }
    }
    return len;
}

/* A word where a value belongs, such as NaN, is told with its field. */
static void refuse_json(const char *text, size_t at, size_t len, struct api_error *e)
{
    char where[sizeof(e->param)];
    at = space_end(text, at, len);
    size_t n = 0;
    while (at + n < len && n < 16 && (isalnum((unsigned char)text[at + n]) || strchr("+-.", text[at + n]))) {
        n++;
    }
    if (!n || !name_place(text, at, where, sizeof(where))) {
        api_error_set(e, 400, "invalid_json", NULL, "The body is not valid JSON.");
        return;
    }
    api_error_set(e, 400, "invalid_json", where, "The body is not valid JSON: '%.*s' is no value.", (int)n, text + at);
}

cJSON *json_parse_request(const char *text, size_t len, struct api_error *e)
{
    if (!utf8_valid(text, len)) {
        api_error_set(e, 400, "invalid_json", NULL, "The body is not valid UTF-8.");
        return NULL;
    }
    if (check_shape(text, len, e)) {
        return NULL;
    }
    const char *end = NULL;
    lost = false;
    cJSON *o = engine_json_parse(text, len, &end);
    if (!o && lost) {
        lost = false;
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return NULL;
    }
    if (!o) {
        refuse_json(text, end ? (size_t)(end - text) : len, len, e);
        return NULL;
    }
    if (space_end(text, (size_t)(end - text), len) < len) {
        api_error_set(e, 400, "invalid_json", NULL, "There is more after the JSON value.");
        cJSON_Delete(o);
        return NULL;
    }
    if (!cJSON_IsObject(o)) {
        api_error_set(e, 400, "invalid_json", NULL, "The body must be a JSON object.");
        cJSON_Delete(o);
        return NULL;
    }
    if (check_names(o, e)) {
        cJSON_Delete(o);
        return NULL;
    }
    if (!all_finite(o)) {
        char where[sizeof(e->param)];
        name_place(text, huge_number(text, len), where, sizeof(where));
        api_error_set(e, 400, "invalid_json", where, "A number is too large: '%s'.", where);
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

const cJSON *json_get(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

cJSON *json_pick(const cJSON *o, const char *const *keys)
{
    cJSON *picked = cJSON_CreateObject();
    for (; *keys; keys++) {
        const cJSON *v = json_get(o, *keys);
        if (v) {
            cJSON_AddItemToObject(picked, *keys, cJSON_Duplicate(v, true));
        }
    }
    return picked;
}

void json_add_text(cJSON *o, const char *key, const cJSON *v)
{
    char *text = json_print(v);
    cJSON *raw = text ? cJSON_CreateRaw(text) : NULL;
    if (raw) {
        cJSON_AddItemToObject(o, key, raw);
    } else {
        json_lost();
    }
    free(text);
}

void json_add_integer(cJSON *o, const char *key, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%lld", (long long)value);
    cJSON_AddRawToObject(o, key, digits);
}

static int wrong_type(const char *prefix, const char *key, const char *wanted, struct api_error *e)
{
    char param[sizeof(e->param)];
    snprintf(param, sizeof(param), "%s%s", prefix, key);
    api_error_set(e, 400, "invalid_type", param, "Invalid type for '%s': expected %s.", param, wanted);
    return -1;
}

static int wrong_value(const char *prefix, const char *key, const char *what, struct api_error *e)
{
    char param[sizeof(e->param)];
    snprintf(param, sizeof(param), "%s%s", prefix, key);
    api_error_set(e, 400, "invalid_value", param, "Invalid value for '%s': %s.", param, what);
    return -1;
}

int json_string(const cJSON *o, const char *prefix, const char *key, size_t max_len, const char **out,
                struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsString(v)) {
        return wrong_type(prefix, key, "a string", e);
    }
    if (strlen(v->valuestring) > max_len) {
        char what[64];
        snprintf(what, sizeof(what), "longer than %zu bytes", max_len);
        return wrong_value(prefix, key, what, e);
    }
    *out = v->valuestring;
    return 0;
}

int json_bool(const cJSON *o, const char *prefix, const char *key, bool *out, struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsBool(v)) {
        return wrong_type(prefix, key, "a boolean", e);
    }
    *out = cJSON_IsTrue(v);
    return 0;
}

int json_int(const cJSON *o, const char *prefix, const char *key, int64_t min, int64_t max, int64_t *out,
             struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble)) {
        return wrong_type(prefix, key, "an integer", e);
    }
    if (!(v->valuedouble >= (double)min && v->valuedouble <= (double)max)) {
        char what[96];
        snprintf(what, sizeof(what), "it must be from %lld to %lld", (long long)min, (long long)max);
        return wrong_value(prefix, key, what, e);
    }
    *out = v->valuedouble >= 0x1p63 ? INT64_MAX : (int64_t)v->valuedouble; /* which is read as 2^63 */
    return 0;
}

int json_number(const cJSON *o, const char *prefix, const char *key, double min, double max, double *out,
                struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsNumber(v)) {
        return wrong_type(prefix, key, "a number", e);
    }
    if (!(v->valuedouble >= min && v->valuedouble <= max)) {
        char what[96];
        snprintf(what, sizeof(what), "it must be from %g to %g", min, max);
        return wrong_value(prefix, key, what, e);
    }
    *out = v->valuedouble;
    return 0;
}

int json_object(const cJSON *o, const char *prefix, const char *key, const cJSON **out, struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsObject(v)) {
        return wrong_type(prefix, key, "an object", e);
    }
    *out = v;
    return 0;
}

int json_metadata(const cJSON *o, const char *key, const cJSON **out, struct api_error *e)
{
    const cJSON *m = NULL;
    if (json_object(o, "", key, &m, e)) {
        return -1;
    }
    int n = 0;
    const cJSON *v;
    cJSON_ArrayForEach(v, m)
    {
        char prefix[sizeof(e->param)];
        snprintf(prefix, sizeof(prefix), "%s.", key);
        if (++n > METADATA_PAIRS_MAX) {
            return wrong_value("", key, "more than 16 pairs", e);
        }
        if (strlen(v->string) > METADATA_KEY_MAX) {
            return wrong_value("", key, "a key is longer than 64 bytes", e);
        }
        if (!cJSON_IsString(v)) {
            return wrong_type(prefix, v->string, "a string", e);
        }
        if (strlen(v->valuestring) > METADATA_VALUE_MAX) {
            return wrong_value(prefix, v->string, "longer than 512 bytes", e);
        }
    }
    *out = m;
    return 0;
}

static int stop_add(const cJSON *v, const char *prefix, const char *key, char **stops, size_t max, size_t *n,
                    struct api_error *e)
{
    if (!cJSON_IsString(v)) {
        return wrong_type(prefix, key, "a string or a list of strings", e);
    }
    size_t len = strlen(v->valuestring);
    if (len == 0 || len > STOP_BYTES_MAX) {
        return wrong_value(prefix, key, "a stop string has 1 to 256 bytes", e);
    }
    if (*n == max) {
        char what[64];
        snprintf(what, sizeof(what), "more than %zu stop strings", max);
        return wrong_value(prefix, key, what, e);
    }
    stops[*n] = strdup(v->valuestring);
    if (!stops[*n]) {
        api_error_set(e, 500, "server_error", NULL, "Out of memory.");
        return -1;
    }
    (*n)++;
    return 0;
}

int json_stops(const cJSON *o, const char *prefix, const char *key, char **stops, size_t max, size_t *n,
               struct api_error *e)
{
    const cJSON *v = json_get(o, key);
    if (!v) {
        return 0;
    }
    if (!cJSON_IsArray(v)) {
        return stop_add(v, prefix, key, stops, max, n, e);
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, v)
    {
        if (stop_add(item, prefix, key, stops, max, n, e)) {
            return -1;
        }
    }
    return 0;
}

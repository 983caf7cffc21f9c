/* route.c - what a request line asks for. */
#include "daemon/api/route.h"

#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"

/* Matches one pattern; copies the segments that stand at {id}. */
static bool match(const char *pattern, const char *path, char param[ROUTE_PARAM_MAX])
{
    size_t len = 0;
    while (*pattern) {
        if (strncmp(pattern, "{id}", 4) == 0) {
            size_t n = strcspn(path, "/"), gap = len > 0;
            if (n == 0 || len + gap + n >= ROUTE_PARAM_MAX) {
                return false;
            }
            memcpy(param + len, "/", gap);
            memcpy(param + len + gap, path, n);
            len += gap + n;
            param[len] = '\0';
            pattern += 4;
            path += n;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

int route_find(const struct route *table, size_t n, enum route_method method, const char *path,
               const struct route **out, char param[ROUTE_PARAM_MAX])
{
    int rc = 404;
    param[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        char found[ROUTE_PARAM_MAX] = "";
        if (!match(table[i].pattern, path, found)) {
            continue;
        }
        rc = 405;
        if (table[i].method == method || (method == METHOD_HEAD && table[i].method == METHOD_GET)) {
            memcpy(param, found, ROUTE_PARAM_MAX);
            *out = &table[i];
            return 0;
        }
    }
    return rc;
}

void route_allowed(const struct route *table, size_t n, const char *path, char out[ROUTE_ALLOWED_SIZE])
{
    static const struct {
        enum route_method method;
        const char *name;
    } names[] = {{METHOD_GET, "GET, HEAD"}, {METHOD_POST, "POST"}, {METHOD_DELETE, "DELETE"}};
    const struct route *found;
    char param[ROUTE_PARAM_MAX];
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (route_find(table, n, names[i].method, path, &found, param) == 0) {
            len += (size_t)snprintf(out + len, ROUTE_ALLOWED_SIZE - len, "%s%s", len ? ", " : "", names[i].name);
        }
    }
    snprintf(out + len, ROUTE_ALLOWED_SIZE - len, "%sOPTIONS", len ? ", " : "");
}

void route_query_init(struct route_query *q)
{
    *q = (struct route_query){.limit = -1, .starting_after = -1};
}

const char *route_query_range(const char *name)
{
    static const struct {
        const char *name, *range;
    } ranges[] = {{"limit", "from 1 to 100"},
                  {"starting_after", "the number of an event"},
                  {"stream", "true or false"},
                  {"order", "asc or desc"}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
        if (strcmp(ranges[i].name, name) == 0) {
            return ranges[i].range;
        }
    }
    return "shorter";
}

bool route_query_add(struct route_query *q, const char *pair, size_t len)
{
    const char *equals = memchr(pair, '=', len);
    size_t name_len = equals ? (size_t)(equals - pair) : len;
    const char *value = equals ? equals + 1 : pair + len;
    size_t value_len = (size_t)(pair + len - value);
#define IS(name) (name_len == sizeof(name) - 1 && memcmp(pair, name, name_len) == 0)
    if (IS("limit")) {
        q->limit = text_digits(value, value_len);
        return q->limit >= 1 && q->limit <= 100;
    }
    if (IS("starting_after")) {
        q->starting_after = text_digits(value, value_len);
        return q->starting_after >= 0;
    }
    if (IS("after")) {
        if (value_len >= sizeof(q->after)) {
            return false;
        }
        memcpy(q->after, value, value_len);
        q->after[value_len] = '\0';
        return true;
    }
    if (IS("q")) {
        if (value_len >= sizeof(q->q)) {
            return false;
        }
        memcpy(q->q, value, value_len);
        q->q[value_len] = '\0';
        return true;
    }
    if (IS("stream")) {
        q->stream = value_len == 4 && memcmp(value, "true", 4) == 0;
        return q->stream || (value_len == 5 && memcmp(value, "false", 5) == 0);
    }
    if (IS("order")) {
        q->has_order = true;
        q->order_asc = value_len == 3 && memcmp(value, "asc", 3) == 0;
        return q->order_asc || (value_len == 4 && memcmp(value, "desc", 4) == 0);
    }
#undef IS
    return true;
}

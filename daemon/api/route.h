/* route.h - what a request line asks for: the table of routes, the query, and the lengths a header may give.
 *
 * Pure functions over text that a peer sent.
 */
#ifndef CONVOD_DAEMON_ROUTE_H
#define CONVOD_DAEMON_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

struct client;
struct turn_request;
struct api_error;

enum route_method { METHOD_GET, METHOD_POST, METHOD_DELETE, METHOD_OPTIONS, METHOD_HEAD, METHOD_OTHER };

#define ROUTE_PATH_MAX  512
#define ROUTE_PARAM_MAX 128
#define ROUTE_QUERY_MAX 1024

struct route {
    enum route_method method;
    const char *pattern; /* "{id}" stands for a path segment */
    void (*handler)(struct client *c);
    bool open;                                                      /* needs no token */
    bool needs_model;                                               /* 503 while the model loads */
    struct turn_request *(*turn)(cJSON *body, struct api_error *e); /* how its body becomes a turn; NULL: it does not */
};

struct route_query {
    char after[ROUTE_PARAM_MAX], q[256];
    int64_t limit;          /* -1 = not given */
    int64_t starting_after; /* -1 = not given */
    bool stream, order_asc, has_order;
};

/* 0 and *out, and in `param` the segments at its {id}s, with slashes between; 404: no such path; 405: the path has
 * other methods. */
int route_find(const struct route *table, size_t n, enum route_method method, const char *path,
               const struct route **out, char param[ROUTE_PARAM_MAX]);
/* The methods that a path has, for Allow: "GET, HEAD, POST". */
#define ROUTE_ALLOWED_SIZE 64
void route_allowed(const struct route *table, size_t n, const char *path, char out[ROUTE_ALLOWED_SIZE]);
/* One "name=value" of a query that is already split at '&' and percent-decoded. False: a value is out of range. Unknown
 * names are ignored. */
bool route_query_add(struct route_query *q, const char *pair, size_t len);
/* What a value must be, in words. */
const char *route_query_range(const char *name);
void route_query_init(struct route_query *q);

#endif

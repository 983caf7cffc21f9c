/* head.h - the request head: what RFC 9112 calls a request line and fields, checked to the letter.
 *
 * Pure functions over bytes that a peer sent. What they accept has one meaning: a head that another reader could
 * understand otherwise (line ends, spaces, lengths, names or hosts that differ from the grammar) is refused.
 */
#ifndef CONVOD_DAEMON_HEAD_H
#define CONVOD_DAEMON_HEAD_H

#include "daemon/api/api.h"

#define HEAD_BYTES_MAX        (16 * 1024) /* request line and fields; more is 431 */
#define HEAD_TARGET_BYTES_MAX (8 * 1024)  /* of them the target; more is 414 */
#define HEAD_FIELDS_MAX       100         /* more is 431 */
#define HEAD_HOST_MAX         262         /* a name, a colon and a port */

/* Bytes of the head, not terminated. */
struct head_text {
    const char *at;
    size_t len;
};

struct head_field {
    struct head_text name, value; /* the value without the spaces around it */
};

struct head {
    enum route_method method;
    char path[ROUTE_PATH_MAX]; /* decoded; a slash in it was a slash */
    struct head_text query;    /* as it came, without '?' */
    bool http10;
    char host[HEAD_HOST_MAX]; /* authority as it was sent; "" only where HTTP/1.0 may leave it out */
    struct head_field fields[HEAD_FIELDS_MAX];
    size_t n_fields;
    int64_t length;  /* of the body; -1 = none was announced */
    bool websocket;  /* an upgrade to it is asked for, and its key and version are in order */
    char accept[32]; /* websocket: what Sec-WebSocket-Accept has to be */
    bool expects_continue;
};

/* The length of the head within text[0..len), 0 = it goes on, or -1 and *e: it can be no head any more. `from`: bytes
 * that were looked at before. */
int head_end(const char *text, size_t len, size_t from, struct api_error *e);
/* Reads a whole head. 0 and *out, whose texts lie in `text`; or -1 and *e. */
int head_parse(const char *text, size_t len, struct head *out, struct api_error *e);
/* A field that may stand once. Its value and 1, 0 = absent, -1 = more than once. */
int head_get(const struct head *h, const char *name, struct head_text *value);
/* Does the list in the fields of this name have the token? */
bool head_lists(const struct head *h, const char *name, const char *token);
/* Copies one name=value of the query, decoded, and moves *query behind it. Its length; -1: the query is at its end;
 * -2: the pair is longer than size. */
int head_query_next(struct head_text *query, char *out, size_t size);
/* uri-host [":" port], and nothing else. */
bool head_authority_valid(const char *text, size_t len);

#endif

/* json.h - reading requests: one pass that refuses what a parser should not see, and typed access that names the field.
 */
#ifndef CONVOD_DAEMON_JSON_H
#define CONVOD_DAEMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/run/run.h"

#define JSON_DEPTH_MAX  64
#define JSON_VALUES_MAX 200000

/* Every allocation of cJSON is seen: one that fails leaves an object without some of its members, and no call need be
 * asked for that, because what was built since is not printed. Once, before there are other threads. */
void json_start(void);
/* [its hook] An allocation of this thread has failed. */
void json_lost(void);
/* The text of what this thread has built; takes it. NULL: out of memory, now or while it was built. */
char *json_text(cJSON *o);
/* A string as JSON, malloc'd. NULL: out of memory. */
char *json_quoted(const char *s);
/* The same into `out`; six bytes for each of its own, and eight, are always enough. False: it does not fit. */
bool json_quote(const char *s, char *out, size_t size);
/* The text of what a peer has sent, whose numbers read back as they were; o stays the caller's. */
char *json_print(const cJSON *o);
/* Bytes as text, malloc'd: what is no UTF-8 becomes U+FFFD, and a NUL too. NULL: out of memory. */
char *json_text_of_bytes(const char *bytes, size_t len);
/* {"message", "type", "code", "param"} */
cJSON *api_error_json(const struct api_error *e);

/* Parses a request body: an object of valid UTF-8 without NUL, not nested deeper than JSON_DEPTH_MAX, of at most
 * JSON_VALUES_MAX values, every number finite, no name twice in an object. NULL and *e otherwise. */
cJSON *json_parse_request(const char *text, size_t len, struct api_error *e);

/* Typed access to fields of `o`. A field that is missing or null leaves *out as it is and is fine. Each returns 0, or
 * -1 with *e set, param = prefix + key ("convod.seed"). prefix may be "". */
int json_string(const cJSON *o, const char *prefix, const char *key, size_t max_len, const char **out,
                struct api_error *e);
int json_bool(const cJSON *o, const char *prefix, const char *key, bool *out, struct api_error *e);
int json_int(const cJSON *o, const char *prefix, const char *key, int64_t min, int64_t max, int64_t *out,
             struct api_error *e);
int json_number(const cJSON *o, const char *prefix, const char *key, double min, double max, double *out,
                struct api_error *e);
int json_object(const cJSON *o, const char *prefix, const char *key, const cJSON **out, struct api_error *e);
/* {string: string}, at most 16 pairs, keys up to 64 and values up to 512 bytes. */
int json_metadata(const cJSON *o, const char *key, const cJSON **out, struct api_error *e);
/* A string or a list of strings; copies are malloc'd. */
int json_stops(const cJSON *o, const char *prefix, const char *key, char **stops, size_t max, size_t *n,
               struct api_error *e);
/* Field that is present and not null. */
const cJSON *json_get(const cJSON *o, const char *key);
/* A copy of an object with these of its members alone; the list ends with NULL. */
cJSON *json_pick(const cJSON *o, const char *const *keys);
/* Adds a copy of v as its text, for what is long and will be written more than once. */
void json_add_text(cJSON *o, const char *key, const cJSON *v);
/* Adds a whole number with all its digits; cJSON itself prints 15. */
void json_add_integer(cJSON *o, const char *key, int64_t value);

#endif

/* schema.h - compiling JSON Schemas, shared by the files of it.
 *
 * What is compiled is a set of schemas that a value must fulfil together: allOf, a $ref with something beside it, and
 * two schemas that say something of the same property, make sets of several. Each different set becomes one reference
 * of the grammar; they are worked off from a queue, so that schemas may be recursive.
 */
#ifndef CONVOD_GRAMMAR_SCHEMA_H
#define CONVOD_GRAMMAR_SCHEMA_H

#include "engine/grammar/expr.h"

#include <cjson/cJSON.h>

#define SCHEMA_MAX_SET        64    /* schemas that hold together */
#define SCHEMA_MAX_SETS       20000 /* different ones */
#define SCHEMA_MAX_PROPERTIES 4096  /* of one object */
#define SCHEMA_MAX_PATTERNS   6     /* patternProperties of one object */
#define SCHEMA_MAX_APART      8     /* alternatives in one another that oneOf tells apart */
#define SCHEMA_MAX_UNIQUE     10    /* values that uniqueItems tells apart */

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_OBJECT = 4,
    TYPE_ARRAY = 8,
    TYPE_INTEGER = 16,
    TYPE_NUMBER = 32, /* numbers that are no integers */
    TYPE_STRING = 64,
    TYPE_ANY = 127,
};

enum { USED_ANY_OF = 1, USED_ONE_OF = 2, OPEN = 4 };

struct set_entry {
    const cJSON *node;
    unsigned used; /* which of its alternatives were taken already */
};

struct set {
    struct set_entry of[SCHEMA_MAX_SET];
    size_t n;
    bool never; /* one of them was false */
};

struct compiler {
    struct grammar *g;
    const cJSON *root;
    bool lenient;
    int rc;
    char *err;
    size_t err_size;
    struct set_entry *entries; /* of all sets */
    size_t n_entries, entries_room;
    struct known {
        size_t first, n;
        uint64_t hash;
        uint32_t ref;
    } * known; /* sets, in the order of the queue */
    size_t n_known, known_room;
    uint32_t *table; /* index into known + 1; open addressing */
    size_t table_mask;
    expr space, quote, string;
};

/* ---- schema.c ---- */

/* Refuses: `what` is what is wrong at this node; the first refusal stays. Gives EXPR_NOTHING. */
expr schema_refuse(struct compiler *c, int rc, const cJSON *node, const char *what);
/* The same with -ENOTSUP for what is not supported; under lenient it is passed over. */
void schema_unsupported(struct compiler *c, const cJSON *node, const char *what);

/* Reads a document: -EINVAL: it is no JSON; -ENOTSUP, -E2BIG. cJSON_Delete() it. */
int schema_read(const char *text, size_t len, cJSON **out, char *err, size_t err_size);
/* Begins to compile into g what refers to `root`, which must outlive c. Before it c is all zero but for lenient and
 * err. */
void schema_begin(struct compiler *c, struct grammar *g, const cJSON *root);
/* The expression of a set, and of all that it refers to; s is used up. c->rc and c->g->failed say whether it went well.
 */
expr schema_compile(struct compiler *c, struct set *s);
void schema_end(struct compiler *c);

/* Adds a schema to a set, with all that it refers to. */
void schema_add(struct compiler *c, struct set *s, const cJSON *node);
/* The expression of the values that fulfil a set. */
expr schema_value(struct compiler *c, const struct set *s);

/* A keyword's value; NULL: not there. */
const cJSON *schema_get(struct compiler *c, const cJSON *node, const char *keyword);
/* A keyword that must be a whole number >= 0: the greatest (or least) of a set's; `otherwise` where there is none. */
uint32_t schema_count(struct compiler *c, const struct set *s, const char *keyword, bool greatest, uint32_t otherwise);
/* TYPE_ bits that all of the set allow. */
unsigned schema_types(struct compiler *c, const struct set *s);

/* ---- schema_scalar.c ---- */

expr schema_string(struct compiler *c, const struct set *s);
expr schema_number(struct compiler *c, const struct set *s, bool integer);
/* Values of enum and const that fulfil the rest of the set, too, at most `most` of them, and booleans and null where
 * the types are such; -1: there is no such list (or it is longer). */
int schema_values(struct compiler *c, const struct set *s, const cJSON **values, int most);
/* The set's enum and const as one expression; false: it has none. */
bool schema_enum(struct compiler *c, const struct set *s, unsigned types, expr *out);
/* Whether two values are the same: numbers as doubles, objects in any order of their keys. */
bool schema_equal(struct compiler *c, const cJSON *a, const cJSON *b);
/* This value as JSON text may write it. */
expr schema_literal(struct compiler *c, const cJSON *value);
/* Whether this key is one of the strings of e. */
bool schema_key_matches(struct compiler *c, expr e, const char *key);
/* A string's expression, quotes included. */
expr schema_quoted(struct compiler *c, const char *text);
/* A pattern's, searched in strings. */
expr schema_pattern(struct compiler *c, const cJSON *node, const char *pattern);

/* ---- schema_object.c, schema_array.c ---- */

expr schema_object(struct compiler *c, const struct set *s);
expr schema_array(struct compiler *c, const struct set *s);
/* schema_object.c: whether no value can fulfil both. */
bool schema_disjoint(struct compiler *c, const cJSON *a, const cJSON *b);

#endif

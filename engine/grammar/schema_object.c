/* schema_object.c - objects: the properties that are named, in the order in which the schema names them, and behind
 * them those that are not. */
#include "engine/grammar/schema.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct property {
    const char *name;
    expr member; /* key, colon, value */
    bool required, possible;
    uint32_t first, last; /* of its schemas, index into declared + 1; 0: none */
};

/* What one of the set's schemas says of a property. */
struct declared {
    const cJSON *schema;
    uint32_t by, next; /* which of the set; the next one of this property */
};

struct object {
    struct property *properties;
    size_t n, room;
    uint32_t *table; /* names: index into properties + 1; open addressing, of 4 * room */
    struct declared *declared;
    uint32_t n_declared, declared_room;
    const char *patterns[SCHEMA_MAX_PATTERNS];
    expr pattern[SCHEMA_MAX_PATTERNS];
    size_t n_patterns;
    expr names; /* that propertyNames allows; EXPR_ANYTHING */
    expr other; /* a member that has no property of its own; EXPR_NOTHING: there is none */
    uint32_t min, max;
};

/* ---- properties -------------------------------------------------------------------------------------------------- */

/* Where a name's place in the table is, or would be. */
static size_t place_of(struct compiler *c, const struct object *o, const char *name)
{
    uint32_t hash = 2166136261u;
    size_t mask = o->room * 4 - 1;
    for (const char *b = name; *b; b++)
        hash = (hash ^ (unsigned char)*b) * 16777619u;
    size_t at = hash & mask;
    while (o->table[at] && expr_work(c->g) && strcmp(o->properties[o->table[at] - 1].name, name) != 0)
        at = (at + 1) & mask;
    return at;
}

static bool make_room(struct compiler *c, struct object *o)
{
    size_t room = o->room ? o->room * 2 : 16;
    struct property *more = realloc(o->properties, room * sizeof *more);
    o->properties = more ? more : o->properties;
    uint32_t *table = calloc(room * 4, sizeof *table);
    if (!more || !table) {
        free(table);
        expr_fail(c->g, -ENOMEM);
        return false;
    }
    free(o->table);
    o->table = table;
    o->room = room;
    for (size_t i = 0; i < o->n; i++)
        o->table[place_of(c, o, o->properties[i].name)] = (uint32_t)i + 1;
    return true;
}

static struct property *find_or_add(struct compiler *c, struct object *o, const cJSON *node, const char *name)
{
    size_t at = o->room ? place_of(c, o, name) : 0;
    if (c->rc || c->g->failed)
        return NULL;
    if (o->room && o->table[at])
        return &o->properties[o->table[at] - 1];
    if (o->n == SCHEMA_MAX_PROPERTIES) {
        schema_refuse(c, -E2BIG, node, "more than 4096 properties");
        return NULL;
    }
    if (o->n == o->room) {
        if (!make_room(c, o))
            return NULL;
        at = place_of(c, o, name);
    }
    o->properties[o->n] = (struct property){.name = name};
    o->table[at] = (uint32_t)o->n + 1;
    return &o->properties[o->n++];
}

static void declare(struct compiler *c, struct object *o, struct property *p, const cJSON *schema, size_t by)
{
    if (o->n_declared == o->declared_room) {
        uint32_t room = o->declared_room * 2 + 16;
        struct declared *more = realloc(o->declared, room * sizeof *more);
        if (!more) {
            expr_fail(c->g, -ENOMEM);
            return;
        }
        o->declared = more;
        o->declared_room = room;
    }
    o->declared[o->n_declared++] = (struct declared){schema, (uint32_t)by, 0};
    if (p->last)
        o->declared[p->last - 1].next = o->n_declared;
    else
        p->first = o->n_declared;
    p->last = o->n_declared;
}

static void read_names(struct compiler *c, const struct set *s, struct object *o)
{
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *properties = schema_get(c, s->of[i].node, "properties");
        if (properties && !cJSON_IsObject(properties))
            schema_refuse(c, -EINVAL, properties, "properties is not an object");
        for (const cJSON *k = cJSON_IsObject(properties) ? properties->child : NULL; k && expr_work(c->g);
             k = k->next) {
            struct property *p = find_or_add(c, o, k, k->string);
            if (p)
                declare(c, o, p, k, i);
        }
    }
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *required = schema_get(c, s->of[i].node, "required");
        if (required && !cJSON_IsArray(required))
            schema_refuse(c, -EINVAL, required, "required is not a list");
        for (const cJSON *r = cJSON_IsArray(required) ? required->child : NULL; r && expr_work(c->g); r = r->next) {
            struct property *p = NULL;
            if (cJSON_IsString(r))
                p = find_or_add(c, o, r, r->valuestring);
            else
                schema_refuse(c, -EINVAL, r, "required names what is not a string");
            if (p)
                p->required = true;
        }
    }
}

static void read_patterns(struct compiler *c, const struct set *s, struct object *o)
{
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *patterns = schema_get(c, s->of[i].node, "patternProperties");
        if (patterns && !cJSON_IsObject(patterns))
            schema_refuse(c, -EINVAL, patterns, "patternProperties is not an object");
        for (const cJSON *p = cJSON_IsObject(patterns) ? patterns->child : NULL; p && c->rc == 0; p = p->next) {
            size_t at = 0;
            while (at < o->n_patterns && strcmp(o->patterns[at], p->string) != 0)
                at++;
            if (at < o->n_patterns)
                continue;
            if (at == SCHEMA_MAX_PATTERNS && c->lenient)
                return;
            if (at == SCHEMA_MAX_PATTERNS) {
                schema_refuse(c, -E2BIG, patterns, "more than 6 patterns of properties");
                return;
            }
            o->patterns[at] = p->string;
            o->pattern[at] = schema_pattern(c, p, p->string);
            o->n_patterns++;
        }
    }
}

static void read_property_names(struct compiler *c, const struct set *s, struct object *o)
{
    struct set names = {.n = 0};
    bool some = false;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *n = schema_get(c, s->of[i].node, "propertyNames");
        if (n)
            schema_add(c, &names, n);
        some |= n != NULL;
    }
    o->names = EXPR_ANYTHING;
    if (!some)
        return;
    for (size_t i = 0; i < names.n; i++)
        if (schema_get(c, names.of[i].node, "anyOf") || schema_get(c, names.of[i].node, "oneOf"))
            schema_unsupported(c, names.of[i].node, "anyOf or oneOf within propertyNames");
    if (names.never || !(schema_types(c, &names) & TYPE_STRING))
        o->names = EXPR_NOTHING;
    else if (!schema_enum(c, &names, TYPE_STRING, &o->names))
        o->names = schema_string(c, &names);
}

/* The schemas of a property's value (NULL: of names that have none): which of the patterns it matches is a bit each. */
static void value_set(struct compiler *c, const struct set *s, const struct object *o, const struct property *p,
                      unsigned matches, struct set *out)
{
    uint32_t next = p ? p->first : 0;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *node = s->of[i].node, *patterns = schema_get(c, node, "patternProperties");
        const struct declared *own = next ? &o->declared[next - 1] : NULL;
        bool found = own && own->by == i;
        if (found) {
            schema_add(c, out, own->schema);
            next = own->next;
        }
        for (size_t k = 0; k < o->n_patterns; k++) {
            const cJSON *schema = matches >> k & 1 ? schema_get(c, patterns, o->patterns[k]) : NULL;
            if (schema)
                schema_add(c, out, schema);
            found |= schema != NULL;
        }
        const cJSON *other = found ? NULL : schema_get(c, node, "additionalProperties");
        if (other)
            schema_add(c, out, other);
    }
}

static expr member_of(struct compiler *c, expr key, const struct set *value)
{
    struct grammar *g = c->g;
    expr e = expr_cat(g, schema_value(c, value), c->space);
    e = expr_cat(g, expr_bytes(g, ':', ':'), expr_cat(g, c->space, e));
    return expr_cat(g, key, expr_cat(g, c->space, e));
}

static void make_members(struct compiler *c, const struct set *s, struct object *o)
{
    struct grammar *g = c->g;
    struct set value;
    expr *keys = calloc(o->n + 1, sizeof *keys);
    if (!keys) {
        expr_fail(g, -ENOMEM);
        return;
    }
    for (size_t i = 0; i < o->n && c->rc == 0 && !g->failed; i++) {
        struct property *p = &o->properties[i];
        unsigned matches = 0;
        for (size_t k = 0; k < o->n_patterns; k++)
            matches |= (unsigned)schema_key_matches(c, o->pattern[k], p->name) << k;
        keys[i] = schema_quoted(c, p->name);
        p->possible = o->names == EXPR_ANYTHING || schema_key_matches(c, o->names, p->name);
        value_set(c, s, o, p, matches, &value);
        p->possible &= !value.never;
        if (p->possible)
            p->member = member_of(c, keys[i], &value);
    }
    expr named = expr_alts(g, keys, o->n);
    free(keys);
    for (unsigned matches = 0; matches < 1u << o->n_patterns && c->rc == 0 && !g->failed; matches++) {
        expr parts[SCHEMA_MAX_PATTERNS + 3];
        size_t n = 0;
        value_set(c, s, o, NULL, matches, &value);
        if (value.never)
            continue;
        for (size_t k = 0; k < o->n_patterns; k++)
            parts[n++] = matches >> k & 1 ? o->pattern[k] : expr_not(g, o->pattern[k]);
        if (named != EXPR_NOTHING)
            parts[n++] = expr_not(g, named);
        if (o->names != EXPR_ANYTHING)
            parts[n++] = o->names;
        if (!matches && o->names == EXPR_ANYTHING)
            parts[n++] = c->string;
        o->other = expr_alt(g, o->other, member_of(c, expr_ands(g, parts, n), &value));
    }
}

/* ---- the object -------------------------------------------------------------------------------------------------- */

static expr close_with(struct compiler *c, expr others, uint32_t min, uint32_t max)
{
    struct grammar *g = c->g;
    expr again = expr_cat(g, expr_bytes(g, ',', ','), expr_cat(g, c->space, others));
    return expr_cat(g, expr_repeat(g, again, min, max), expr_bytes(g, '}', '}'));
}

/* Beyond them, more members change nothing or are not allowed. */
static uint32_t columns_of(const struct object *o)
{
    return o->max != EXPR_INFINITE ? o->max : o->min;
}

static bool counts_fit(const struct object *o)
{
    return ((uint64_t)columns_of(o) + 1) * (o->n + 1) <= GRAMMAR_MAX_COUNT;
}

/* after[k]: what may follow the properties before i when k of all members are there; first[k]: the same behind a comma
 * or the opening brace. Both from the last property back to the first. */
static expr make_object(struct compiler *c, const struct object *o)
{
    struct grammar *g = c->g;
    bool counted = o->max != EXPR_INFINITE;
    uint32_t columns = columns_of(o);
    if (!counts_fit(o))
        return schema_refuse(c, -E2BIG, NULL, "minProperties or maxProperties is too large here");
    expr *after = malloc((columns + 2) * 2 * sizeof *after), e;
    if (!after)
        return expr_fail(g, -ENOMEM);
    expr *first = after + columns + 2;
    for (uint32_t k = 0; k <= columns; k++) {
        uint32_t most = counted ? o->max - k : EXPR_INFINITE;
        after[k] = close_with(c, o->other, o->min > k ? o->min - k : 0, most);
    }
    after[columns + 1] = counted ? EXPR_NOTHING : after[columns];
    for (uint32_t k = 0; k <= columns; k++)
        first[k] = expr_cat(g, o->other, after[k + 1]);
    bool may_end = true;
    for (size_t i = o->n; i-- > 0 && !g->failed;) {
        const struct property *p = &o->properties[i];
        may_end &= !p->required;
        for (uint32_t k = 0; k <= columns; k++) {
            expr with = expr_cat(g, p->member, after[k + 1]);
            first[k] = p->required ? with : expr_alt(g, with, first[k]);
        }
        for (uint32_t k = 0; k <= columns; k++) {
            after[k] = expr_cat(g, expr_bytes(g, ',', ','), expr_cat(g, c->space, first[k]));
            if (may_end && k >= o->min)
                after[k] = expr_alt(g, after[k], expr_bytes(g, '}', '}'));
        }
        after[columns + 1] = counted ? EXPR_NOTHING : after[columns];
    }
    e = first[0];
    if (may_end && o->min == 0)
        e = expr_alt(g, e, expr_bytes(g, '}', '}'));
    free(after);
    return expr_cat(g, expr_bytes(g, '{', '{'), expr_cat(g, c->space, e));
}

expr schema_object(struct compiler *c, const struct set *s)
{
    struct object o = {.other = EXPR_NOTHING};
    expr e = EXPR_NOTHING;
    size_t required = 0;
    read_names(c, s, &o);
    read_patterns(c, s, &o);
    read_property_names(c, s, &o);
    o.min = schema_count(c, s, "minProperties", true, 0);
    o.max = schema_count(c, s, "maxProperties", false, EXPR_INFINITE);
    if (c->rc == 0 && !c->g->failed)
        make_members(c, s, &o);
    for (size_t i = 0; i < o.n; i++)
        required += o.properties[i].required;
    if (o.other == EXPR_NOTHING && o.max >= o.n)
        o.max = EXPR_INFINITE;
    if (o.min <= required)
        o.min = 0;
    else if (o.min > 1 && o.other != EXPR_NOTHING)
        schema_unsupported(c, s->n ? s->of[0].node : NULL, "minProperties above 1 where names are open");
    if (c->lenient && !counts_fit(&o))
        o.min = 0, o.max = EXPR_INFINITE;
    if (c->rc == 0 && !c->g->failed && o.min <= o.max)
        e = make_object(c, &o);
    free(o.properties);
    free(o.table);
    free(o.declared);
    return e;
}

/* ---- telling schemas apart --------------------------------------------------------------------------------------- */

static unsigned types_of(struct compiler *c, const struct set *s)
{
    static const struct {
        int (*is)(const cJSON *);
        unsigned types;
    } KINDS[] = {{cJSON_IsNull, TYPE_NULL},      {cJSON_IsBool, TYPE_BOOLEAN}, {cJSON_IsString, TYPE_STRING},
                 {cJSON_IsNumber, TYPE_INTEGER}, {cJSON_IsArray, TYPE_ARRAY},  {cJSON_IsObject, TYPE_OBJECT}};
    unsigned types = schema_types(c, s), listed = TYPE_ANY;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *one = schema_get(c, s->of[i].node, "const"), *list = schema_get(c, s->of[i].node, "enum");
        unsigned own = 0;
        for (const cJSON *v = one ? one : list ? list->child : NULL; v && expr_work(c->g); v = one ? NULL : v->next)
            for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++)
                own |= KINDS[k].is(v) ? KINDS[k].types : 0;
        if (one || list)
            listed &= own;
    }
    if (types & TYPE_NUMBER)
        types |= TYPE_INTEGER;
    return types & listed & ~(unsigned)TYPE_NUMBER;
}

/* Whether both have lists of values, and none in common. */
static bool lists_apart(struct compiler *c, const struct set *a, const struct set *b)
{
    const cJSON *x[64], *y[64];
    int n = schema_values(c, a, x, 64), m = schema_values(c, b, y, 64);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            if (schema_equal(c, x[i], y[k]))
                return false;
    return n >= 0 && m >= 0 && !c->g->failed;
}

static bool is_required(struct compiler *c, const struct set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *required = schema_get(c, s->of[i].node, "required");
        for (const cJSON *r = required ? required->child : NULL; r && expr_work(c->g); r = r->next)
            if (cJSON_IsString(r) && strcmp(r->valuestring, name) == 0)
                return true;
    }
    return false;
}

static void property_set(struct compiler *c, const struct set *s, const char *name, struct set *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *p = schema_get(c, schema_get(c, s->of[i].node, "properties"), name);
        if (p)
            schema_add(c, out, p);
    }
}

/* By types, by lists of values, or by those of a property that both require. */
static bool plainly_apart(struct compiler *c, const struct set *x, const struct set *y)
{
    struct set px, py;
    unsigned both = types_of(c, x) & types_of(c, y);
    if (x->never || y->never || both == 0 || c->rc)
        return true;
    if (both != TYPE_OBJECT)
        return lists_apart(c, x, y);
    for (size_t i = 0; i < x->n; i++) {
        const cJSON *properties = schema_get(c, x->of[i].node, "properties");
        for (const cJSON *p = properties ? properties->child : NULL; p; p = p->next) {
            if (!is_required(c, x, p->string) || !is_required(c, y, p->string))
                continue;
            property_set(c, x, p->string, &px);
            property_set(c, y, p->string, &py);
            if (px.n && py.n && ((types_of(c, &px) & types_of(c, &py)) == 0 || lists_apart(c, &px, &py)))
                return true;
        }
    }
    return false;
}

static bool apart(struct compiler *c, const struct set *x, const struct set *y, int depth);

/* Whether x has alternatives, and each of them is apart from y. */
static bool alternatives_apart(struct compiler *c, const struct set *x, const struct set *y, int depth)
{
    static const struct {
        const char *keyword;
        unsigned used;
    } KINDS[] = {{"anyOf", USED_ANY_OF}, {"oneOf", USED_ONE_OF}};
    for (size_t i = 0; i < x->n; i++)
        for (size_t k = 0; k < 2; k++) {
            const cJSON *list = schema_get(c, x->of[i].node, KINDS[k].keyword);
            if (!cJSON_IsArray(list) || !list->child || x->of[i].used & KINDS[k].used)
                continue;
            for (const cJSON *a = list->child; a; a = a->next) {
                struct set with = *x;
                with.of[i].used |= KINDS[k].used;
                schema_add(c, &with, a);
                if (!apart(c, &with, y, depth + 1))
                    return false;
            }
            return true;
        }
    return false;
}

static bool apart(struct compiler *c, const struct set *x, const struct set *y, int depth)
{
    if (c->rc || c->g->failed || plainly_apart(c, x, y))
        return true;
    return depth < SCHEMA_MAX_APART && (alternatives_apart(c, x, y, depth) || alternatives_apart(c, y, x, depth));
}

bool schema_disjoint(struct compiler *c, const cJSON *a, const cJSON *b)
{
    struct set x = {.n = 0}, y = {.n = 0};
    schema_add(c, &x, a);
    schema_add(c, &y, b);
    return apart(c, &x, &y, 0);
}

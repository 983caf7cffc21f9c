/* schema_scalar.c - strings, numbers, and lists of values. */
#include "engine/grammar/schema.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENUM             16384
#define MAX_LENIENT_MULTIPLE 1000
#define MAX_BOUNDED_MULTIPLE 20000 /* with bounds beside it; more can be too much work for a step of an answer */

/* ---- strings ----------------------------------------------------------------------------------------------------- */

expr schema_quoted(struct compiler *c, const char *text)
{
    expr e = char_text(c->g, CHAR_IN_JSON, text, strlen(text));
    return expr_cat(c->g, c->quote, expr_cat(c->g, e, c->quote));
}

expr schema_pattern(struct compiler *c, const cJSON *node, const char *pattern)
{
    char why[160] = "too large";
    expr e = EXPR_NOTHING;
    int rc = pattern_compile(c->g, CHAR_IN_JSON, pattern, strlen(pattern), true, &e, why, sizeof why);
    if (rc == -ENOTSUP && c->lenient)
        return c->string;
    if (rc && !c->g->failed)
        return schema_refuse(c, rc, node, why);
    return e;
}

expr schema_string(struct compiler *c, const struct set *s)
{
    struct grammar *g = c->g;
    uint32_t min = schema_count(c, s, "minLength", true, 0);
    uint32_t max = schema_count(c, s, "maxLength", false, EXPR_INFINITE);
    expr all[2 * SCHEMA_MAX_SET + 1];
    size_t n = 0;
    if (min > max)
        return EXPR_NOTHING;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *pattern = schema_get(c, s->of[i].node, "pattern"),
                    *format = schema_get(c, s->of[i].node, "format");
        if (pattern && !cJSON_IsString(pattern))
            return schema_refuse(c, -EINVAL, pattern, "pattern is not a string");
        if (pattern)
            all[n++] = schema_pattern(c, pattern, pattern->valuestring);
        const char *known = cJSON_IsString(format) ? format_pattern(format->valuestring) : NULL;
        if (known)
            all[n++] = schema_pattern(c, format, known);
    }
    if (min > 0 || max != EXPR_INFINITE || n == 0)
        all[n++] = expr_cat(g, c->quote, expr_cat(g, expr_repeat(g, g->character, min, max), c->quote));
    return expr_ands(g, all, n);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* A bound as a double. From 2^53 on one may stand for several whole numbers: then it is the next one inwards, `to`, so
 * that nothing beyond the schema's own digits is allowed. */
static double bound(struct compiler *c, const cJSON *node, const char *keyword, double to)
{
    const cJSON *v = schema_get(c, node, keyword);
    if (!v || (c->lenient && cJSON_IsBool(v))) /* true and false are of draft 4 */
        return NAN;
    if (cJSON_IsNumber(v) && isfinite(v->valuedouble)) {
        double inwards = fabs(v->valuedouble) < 0x1p53 ? v->valuedouble : nextafter(v->valuedouble, to);
        return isfinite(inwards) ? inwards : v->valuedouble;
    }
    char text[96];
    snprintf(text, sizeof text, "%s is not a number, or not one that a double holds", keyword);
    schema_refuse(c, -EINVAL, v, text);
    return NAN;
}

static uint32_t common_multiple(struct compiler *c, const cJSON *node, uint32_t so_far)
{
    const cJSON *v = schema_get(c, node, "multipleOf");
    double x = v && cJSON_IsNumber(v) ? v->valuedouble : 0;
    if (!v)
        return so_far;
    if (!(x > 0)) {
        schema_refuse(c, -EINVAL, v, "multipleOf is not a number > 0");
        return so_far;
    }
    if (x != floor(x) || x > 1e6) {
        schema_unsupported(c, v, "multipleOf that is not a whole number up to 1000000");
        return so_far;
    }
    /* Greater ones may be more work than is done, also of a step. */
    if (c->lenient && x > MAX_LENIENT_MULTIPLE)
        return so_far ? so_far : 1;
    uint64_t a = (uint64_t)x, b = so_far ? so_far : 1, high = a, low = b;
    while (low) {
        uint64_t rest = high % low;
        high = low;
        low = rest;
    }
    if (a / high * b > 1000000) {
        schema_unsupported(c, v, "multipleOf whose common multiple is beyond 1000000");
        return so_far;
    }
    return (uint32_t)(a / high * b);
}

static struct number_bounds bounds_of(struct compiler *c, const struct set *s)
{
    struct number_bounds b = {.min = NAN, .max = NAN};
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *node = s->of[i].node;
        double min = bound(c, node, "minimum", INFINITY), max = bound(c, node, "maximum", -INFINITY);
        double above = bound(c, node, "exclusiveMinimum", INFINITY);
        double below = bound(c, node, "exclusiveMaximum", -INFINITY);
        if (!isnan(min) && !(min <= b.min))
            b.min = min, b.above = false;
        if (!isnan(max) && !(max >= b.max))
            b.max = max, b.below = false;
        if (!isnan(above) && !(above < b.min))
            b.min = above, b.above = true;
        if (!isnan(below) && !(below > b.max))
            b.max = below, b.below = true;
        b.multiple = common_multiple(c, node, b.multiple);
    }
    return b;
}

expr schema_number(struct compiler *c, const struct set *s, bool integer)
{
    struct number_bounds b = bounds_of(c, s);
    b.integer = integer || b.multiple > 0;
    if (b.multiple > MAX_BOUNDED_MULTIPLE && (!isnan(b.min) || !isnan(b.max)))
        schema_unsupported(c, s->of[0].node, "multipleOf above 20000 beside bounds");
    if (b.min > b.max)
        return EXPR_NOTHING;
    return number_within(c->g, &b);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* As json.dumps() writes it: the shortest digits that read back as the same double. */
static bool number_text(double x, char *text, size_t size)
{
    if (x == floor(x) && fabs(x) < 0x1p53) {
        snprintf(text, size, "%.0f", x == 0 ? 0.0 : x);
        return true;
    }
    if (!isfinite(x) || x == floor(x))
        return false;
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, size, "%.*g", precision, x);
        if (strtod(text, NULL) == x)
            break;
    }
    return true;
}

static unsigned type_of(const cJSON *v)
{
    if (cJSON_IsNumber(v))
        return v->valuedouble == floor(v->valuedouble) ? TYPE_INTEGER : TYPE_NUMBER;
    return cJSON_IsNull(v)     ? TYPE_NULL
           : cJSON_IsBool(v)   ? TYPE_BOOLEAN
           : cJSON_IsString(v) ? TYPE_STRING
           : cJSON_IsArray(v)  ? TYPE_ARRAY
                               : TYPE_OBJECT;
}

static bool same_members(struct compiler *c, const cJSON *a, const cJSON *b)
{
    size_t n = 0, m = 0;
    for (const cJSON *k = a->child; k && expr_work(c->g); k = k->next)
        n++;
    for (const cJSON *k = b->child; k && expr_work(c->g); k = k->next)
        m++;
    if (n != m || c->g->failed)
        return false;
    /* Keys in the same order are found without a search. */
    const cJSON *same_place = b->child;
    for (const cJSON *k = a->child; k; k = k->next, same_place = same_place->next) {
        bool here = strcmp(k->string, same_place->string) == 0;
        const cJSON *other = here ? same_place : schema_get(c, b, k->string);
        if (!other || !schema_equal(c, k, other))
            return false;
    }
    return true;
}

bool schema_equal(struct compiler *c, const cJSON *a, const cJSON *b)
{
    if (!expr_work(c->g) || (a->type & 0xff) != (b->type & 0xff))
        return false;
    if (a == b)
        return true;
    if (cJSON_IsNumber(a))
        return a->valuedouble == b->valuedouble;
    if (cJSON_IsString(a))
        return strcmp(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsObject(a))
        return same_members(c, a, b);
    const cJSON *x = a->child, *y = b->child;
    while (x && y && schema_equal(c, x, y))
        x = x->next, y = y->next;
    return !x && !y;
}

expr schema_literal(struct compiler *c, const cJSON *v)
{
    struct grammar *g = c->g;
    char text[64];
    switch (type_of(v)) {
    case TYPE_NULL:
        return expr_text(g, "null");
    case TYPE_BOOLEAN:
        return expr_text(g, cJSON_IsTrue(v) ? "true" : "false");
    case TYPE_STRING:
        return schema_quoted(c, v->valuestring);
    case TYPE_INTEGER:
    case TYPE_NUMBER:
        if (!number_text(v->valuedouble, text, sizeof text) && c->lenient)
            return number_within(g, &(struct number_bounds){.min = NAN, .max = NAN});
        if (!number_text(v->valuedouble, text, sizeof text))
            return schema_refuse(c, -ENOTSUP, v, "a number beyond 2^53 is not exact");
        return expr_text(g, text);
    default: {
        /* From the end: a value with the comma in front, until the first. */
        bool object = cJSON_IsObject(v);
        expr e = expr_text(g, object ? "}" : "]");
        for (const cJSON *k = v->child ? v->child->prev : NULL; k; k = k == v->child ? NULL : k->prev) {
            e = expr_cat(g, schema_literal(c, k), expr_cat(g, c->space, e));
            if (object) {
                e = expr_cat(g, c->space, expr_cat(g, expr_text(g, ":"), expr_cat(g, c->space, e)));
                e = expr_cat(g, schema_quoted(c, k->string), e);
            }
            if (k != v->child)
                e = expr_cat(g, expr_text(g, ","), expr_cat(g, c->space, e));
        }
        return expr_cat(g, expr_text(g, object ? "{" : "["), expr_cat(g, c->space, e));
    }
    }
}

/* Room for text with all characters escaped; NULL: out of memory. */
static char *quote(struct compiler *c, const char *text)
{
    cJSON *v = cJSON_CreateStringReference(text);
    char *quoted = v ? cJSON_PrintUnformatted(v) : NULL;
    if (!quoted)
        expr_fail(c->g, -ENOMEM);
    cJSON_Delete(v);
    return quoted;
}

bool schema_key_matches(struct compiler *c, expr e, const char *key)
{
    char *quoted = quote(c, key);
    bool matches = quoted && expr_matches(c->g, e, quoted, strlen(quoted));
    cJSON_free(quoted);
    return matches;
}

static bool listed_in(struct compiler *c, const cJSON *list, const cJSON *v)
{
    for (const cJSON *k = list->child; k && !c->g->failed; k = k->next)
        if (schema_equal(c, k, v))
            return true;
    return false;
}

static bool says_of(struct compiler *c, const struct set *s, unsigned type)
{
    static const char *const OBJECT[] = {"properties",    "required",      "additionalProperties", "patternProperties",
                                         "propertyNames", "minProperties", "maxProperties",        NULL};
    static const char *const ARRAY[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", NULL};
    for (size_t i = 0; i < s->n; i++)
        for (const char *const *k = type == TYPE_OBJECT ? OBJECT : ARRAY; *k; k++)
            if (schema_get(c, s->of[i].node, *k))
                return true;
    return false;
}

/* What the values of a list `of` are compared with: the set's own conditions on strings and numbers, found once. */
struct conditions {
    expr string, number;
    bool have_string, have_number;
};

static bool fulfils(struct compiler *c, const struct set *s, unsigned types, struct conditions *k, const cJSON *of,
                    const cJSON *v)
{
    unsigned type = type_of(v);
    char text[64];
    if (!(types & type))
        return false;
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *list = schema_get(c, s->of[i].node, "enum"), *one = schema_get(c, s->of[i].node, "const");
        if ((list && list != of && !listed_in(c, list, v)) || (one && !schema_equal(c, one, v)))
            return false;
    }
    if (type == TYPE_STRING) {
        if (!k->have_string)
            k->string = schema_string(c, s), k->have_string = true;
        return schema_key_matches(c, k->string, v->valuestring);
    }
    if (type & (TYPE_INTEGER | TYPE_NUMBER)) {
        if (!k->have_number)
            k->number = schema_number(c, s, false), k->have_number = true;
        return !number_text(v->valuedouble, text, sizeof text) || expr_matches(c->g, k->number, text, strlen(text));
    }
    if ((type == TYPE_OBJECT || type == TYPE_ARRAY) && says_of(c, s, type))
        schema_unsupported(c, v, "an enum of objects or lists beside what else is said of them");
    return true;
}

/* The first enum or const of a set; NULL: none. */
static const cJSON *first_list(struct compiler *c, const struct set *s, bool *single)
{
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *one = schema_get(c, s->of[i].node, "const"), *list = schema_get(c, s->of[i].node, "enum");
        if (list && !cJSON_IsArray(list))
            schema_refuse(c, -EINVAL, list, "enum is not a list");
        else if (list && !list->child)
            schema_refuse(c, -EINVAL, list, "enum is empty");
        if (one || list) {
            *single = one != NULL;
            return one ? one : list;
        }
    }
    return NULL;
}

int schema_values(struct compiler *c, const struct set *s, const cJSON **values, int most)
{
    static cJSON TRUE_VALUE = {.type = cJSON_True}, FALSE_VALUE = {.type = cJSON_False},
                 NULL_VALUE = {.type = cJSON_NULL};
    bool single = false;
    unsigned types = schema_types(c, s);
    struct conditions k = {0};
    int n = 0;
    const cJSON *list = first_list(c, s, &single);
    if (!list) {
        if (types & ~(unsigned)(TYPE_BOOLEAN | TYPE_NULL) || most < 3)
            return -1;
        if (types & TYPE_BOOLEAN)
            values[n++] = &TRUE_VALUE, values[n++] = &FALSE_VALUE;
        if (types & TYPE_NULL)
            values[n++] = &NULL_VALUE;
        return n;
    }
    for (const cJSON *v = single ? list : list->child; v && expr_work(c->g); v = single ? NULL : v->next) {
        bool twice = false;
        for (int i = 0; i < n; i++)
            twice |= schema_equal(c, values[i], v);
        if (twice || c->rc || !fulfils(c, s, types, &k, list, v))
            continue;
        if (n == most)
            return -1;
        values[n++] = v;
    }
    return n;
}

bool schema_enum(struct compiler *c, const struct set *s, unsigned types, expr *out)
{
    bool single = false;
    struct conditions k = {0};
    size_t n = 0;
    const cJSON *list = first_list(c, s, &single);
    *out = EXPR_NOTHING;
    if (!list)
        return false;
    size_t most = single ? 1 : (size_t)cJSON_GetArraySize(list);
    if (most > MAX_ENUM) {
        schema_refuse(c, -E2BIG, list, "an enum of more than 16384 values");
        return true;
    }
    expr *parts = malloc((most + 1) * sizeof *parts);
    if (!parts) {
        expr_fail(c->g, -ENOMEM);
        return true;
    }
    for (const cJSON *v = single ? list : list->child; v && c->rc == 0 && expr_work(c->g); v = single ? NULL : v->next)
        if (fulfils(c, s, types, &k, list, v))
            parts[n++] = schema_literal(c, v);
    *out = expr_alts(c->g, parts, n);
    free(parts);
    return true;
}

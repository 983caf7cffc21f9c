/* schema_array.c - lists: items by place, then all others alike. */
#include "engine/grammar/schema.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The schemas of the i-th item; beyond every prefixItems those of all others. */
static void item_set(struct compiler *c, const struct set *s, size_t i, struct set *out)
{
    memset(out, 0, sizeof *out);
    for (size_t k = 0; k < s->n; k++) {
        const cJSON *prefix = schema_get(c, s->of[k].node, "prefixItems"), *item = prefix ? prefix->child : NULL;
        for (size_t at = 0; item && at < i && (at % 16 || expr_work(c->g)); at++)
            item = item->next;
        if (!item)
            item = schema_get(c, s->of[k].node, "items");
        if (cJSON_IsArray(item))
            schema_unsupported(c, item, "items as a list (of older drafts: prefixItems)");
        else if (item)
            schema_add(c, out, item);
    }
}

static expr with_comma(struct compiler *c, expr e)
{
    return expr_cat(c->g, expr_bytes(c->g, ',', ','), expr_cat(c->g, c->space, e));
}

static expr item_of(struct compiler *c, const struct set *item)
{
    return expr_cat(c->g, schema_value(c, item), c->space);
}

/* Lists of different values out of a few. left[k]: what may follow when the values of the bits of k are not used yet.
 */
static expr unique_list(struct compiler *c, const cJSON *const *values, int n, uint32_t min, uint32_t max)
{
    struct grammar *g = c->g;
    expr close = expr_bytes(g, ']', ']'), *left = malloc(sizeof *left << n), value[SCHEMA_MAX_UNIQUE], e = EXPR_NOTHING;
    if (!left)
        return expr_fail(g, -ENOMEM);
    for (int i = 0; i < n; i++)
        value[i] = expr_cat(g, schema_literal(c, values[i]), c->space);
    for (unsigned k = 0; k < 1u << n; k++) {
        uint32_t used = (uint32_t)(n - __builtin_popcount(k));
        e = EXPR_NOTHING;
        for (int i = 0; i < n && used < max; i++)
            if (k >> i & 1)
                e = expr_alt(g, e, expr_cat(g, value[i], left[k & ~(1u << i)]));
        left[k] = used == 0 ? e : with_comma(c, e);
        if (used >= min)
            left[k] = expr_alt(g, left[k], close);
        e = left[k];
    }
    free(left);
    return e;
}

expr schema_array(struct compiler *c, const struct set *s)
{
    struct grammar *g = c->g;
    struct set item;
    size_t prefix = 0;
    bool unique = false;
    uint32_t min = schema_count(c, s, "minItems", true, 0), max = schema_count(c, s, "maxItems", false, EXPR_INFINITE);
    for (size_t i = 0; i < s->n; i++) {
        const cJSON *items = schema_get(c, s->of[i].node, "prefixItems");
        if (items && !cJSON_IsArray(items))
            return schema_refuse(c, -EINVAL, items, "prefixItems is not a list of schemas");
        size_t n = items ? (size_t)cJSON_GetArraySize(items) : 0;
        prefix = n > prefix ? n : prefix;
        unique |= cJSON_IsTrue(schema_get(c, s->of[i].node, "uniqueItems"));
    }
    if (prefix > SCHEMA_MAX_PROPERTIES)
        return schema_refuse(c, -E2BIG, s->of[0].node, "more than 4096 prefixItems");
    item_set(c, s, prefix, &item);
    expr open = expr_cat(g, expr_bytes(g, '[', '['), c->space), close = expr_bytes(g, ']', ']');
    if (unique && max > 1) {
        const cJSON *values[SCHEMA_MAX_UNIQUE];
        int n = prefix || item.never ? -1 : schema_values(c, &item, values, SCHEMA_MAX_UNIQUE);
        if (n >= 0)
            return expr_cat(g, open, unique_list(c, values, n, min, max));
        if (prefix || !item.never)
            schema_unsupported(c, s->of[0].node, "uniqueItems where items are not at most 10 given values");
    }
    if (min > max)
        return EXPR_NOTHING;
    /* From the end: what may follow i items. */
    uint32_t from = (uint32_t)prefix ? (uint32_t)prefix : 1;
    expr last = item_of(c, &item), after = close;
    if (max > from)
        after = expr_cat(
            g,
            expr_repeat(g, with_comma(c, last), min > from ? min - from : 0, max == EXPR_INFINITE ? max : max - from),
            close);
    else if (min > from)
        return EXPR_NOTHING;
    if (prefix == 0)
        after = expr_cat(g, last, after);
    for (uint32_t i = (uint32_t)prefix; i-- > 0 && c->rc == 0;) {
        item_set(c, s, i, &item);
        if (i + 1 > max)
            after = EXPR_NOTHING;
        after = expr_cat(g, item_of(c, &item), after);
        if (i > 0) {
            after = with_comma(c, after);
            if (i >= min)
                after = expr_alt(g, after, close);
        }
    }
    if (max == 0)
        after = EXPR_NOTHING;
    if (min == 0)
        after = expr_alt(g, after, close);
    return expr_cat(g, open, after);
}

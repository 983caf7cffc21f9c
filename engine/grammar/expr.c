/* expr.c - expressions: one number for equal ones, and what simplifies them. */
#include "engine/grammar/expr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

expr expr_fail(struct grammar *g, int error)
{
    if (g->failed == 0)
        g->failed = error;
    return EXPR_NOTHING;
}

void *expr_grow(struct grammar *g, void *array, uint32_t n, uint32_t *room, size_t size)
{
    if (n < *room)
        return array;
    uint32_t more = *room ? *room * 2 : 64;
    size_t added = (size_t)(more - *room) * size;
    if (g->bytes + added > g->most_bytes) {
        expr_fail(g, -ENOSPC);
        return NULL;
    }
    void *grown = realloc(array, (size_t)more * size);
    if (!grown) {
        expr_fail(g, -ENOMEM);
        return NULL;
    }
    g->bytes += added;
    *room = more;
    return grown;
}

/* ---- equal expressions are one ----------------------------------------------------------------------------------- */

static uint32_t mix(uint32_t h, uint32_t x)
{
    h = (h ^ x) * 0x9e3779b1u;
    return h ^ h >> 15;
}

static bool has_list(const struct expr_node *n)
{
    return n->kind == EXPR_KIND_ALT || n->kind == EXPR_KIND_AND;
}

/* Lists and sets are compared by what they hold. */
static uint32_t hash_of(const struct grammar *g, const struct expr_node *n)
{
    uint32_t h = mix(0x51ed27u, n->kind);
    if (n->kind == EXPR_KIND_SET) {
        for (int i = 0; i < 4; i++)
            h = mix(mix(h, (uint32_t)g->sets[n->a].bits[i]), (uint32_t)(g->sets[n->a].bits[i] >> 32));
        return h;
    }
    if (!has_list(n))
        return mix(mix(mix(h, n->a), n->b), n->c);
    for (uint32_t i = 0; i < n->b; i++)
        h = mix(h, g->lists[n->a + i]);
    return h;
}

static bool equal(const struct grammar *g, const struct expr_node *x, const struct expr_node *y)
{
    if (x->kind != y->kind || x->b != y->b || x->c != y->c)
        return false;
    if (x->kind == EXPR_KIND_SET)
        return memcmp(&g->sets[x->a], &g->sets[y->a], sizeof *g->sets) == 0;
    if (!has_list(x))
        return x->a == y->a;
    return memcmp(&g->lists[x->a], &g->lists[y->a], x->b * sizeof *g->lists) == 0;
}

/* table: [mask + 1] zeros, taken. */
static void table_put_all(struct grammar *g, uint32_t *table, uint32_t mask)
{
    for (uint32_t i = 1; i < g->n_nodes; i++) {
        uint32_t at = hash_of(g, &g->nodes[i]) & mask;
        while (table[at])
            at = (at + 1) & mask;
        table[at] = i;
    }
    g->bytes += ((size_t)mask + 1) * sizeof *table;
    g->bytes -= g->table ? ((size_t)g->table_mask + 1) * sizeof *table : 0;
    free(g->table);
    g->table = table;
    g->table_mask = mask;
    g->table_used = g->n_nodes;
}

static uint32_t *table_new(uint32_t mask)
{
    return calloc((size_t)mask + 1, sizeof(uint32_t));
}

bool expr_work(struct grammar *g)
{
    if (++g->work > g->most)
        expr_fail(g, -E2BIG);
    return !g->failed;
}

/* The number of this expression: an old one, or a new one. A list or set must be the last in g->lists or g->sets, and
 * is taken off again when the expression is an old one. */
static expr number_of(struct grammar *g, struct expr_node n)
{
    if (g->failed)
        return EXPR_NOTHING;
    if (g->table_used * 2 >= g->table_mask) {
        uint32_t more = g->table_mask * 2 + 1, *table = table_new(more);
        if (!table)
            return expr_fail(g, -ENOMEM);
        table_put_all(g, table, more);
    }
    if (!expr_work(g))
        return EXPR_NOTHING;
    uint32_t at = hash_of(g, &n) & g->table_mask;
    for (; g->table[at]; at = (at + 1) & g->table_mask)
        if (equal(g, &g->nodes[g->table[at]], &n)) {
            if (has_list(&n))
                g->n_lists = n.a;
            else if (n.kind == EXPR_KIND_SET)
                g->n_sets = n.a;
            return g->table[at];
        }
    struct expr_node *nodes = expr_grow(g, g->nodes, g->n_nodes, &g->nodes_room, sizeof *nodes);
    if (!nodes)
        return EXPR_NOTHING;
    g->nodes = nodes;
    g->nodes[g->n_nodes] = n;
    g->table[at] = g->n_nodes;
    g->table_used++;
    return g->n_nodes++;
}

int expr_init(struct grammar *g)
{
    g->most = GRAMMAR_MAX_COMPILE_WORK;
    g->most_bytes = GRAMMAR_MAX_COMPILED_BYTES;
    g->nodes = expr_grow(g, NULL, 0, &g->nodes_room, sizeof *g->nodes);
    uint32_t *table = g->nodes ? table_new(1023) : NULL;
    if (!table)
        return -ENOMEM;
    table_put_all(g, table, 1023);
    g->nodes[0] = (struct expr_node){.kind = EXPR_KIND_NOTHING};
    g->n_nodes = 1;
    number_of(g, (struct expr_node){.kind = EXPR_KIND_EMPTY, .flags = EXPR_NULLABLE});
    number_of(g, (struct expr_node){.kind = EXPR_KIND_NOT, .a = EXPR_NOTHING, .flags = EXPR_NULLABLE});
    g->quote = expr_bytes(g, '"', '"');
    char_prepare(g);
    return g->failed;
}

void expr_release(struct grammar *g)
{
    mask_release(g);
    free(g->nodes);
    free(g->lists);
    free(g->sets);
    free(g->table);
    free(g->refs);
    free(g->rows);
}

/* Makes an array that only grows as small as n elements want, or there would be no room. */
static void *shrink(struct grammar *g, void *array, uint32_t n, uint32_t *room, size_t size)
{
    uint32_t less = 64;
    while (less <= n)
        less *= 2;
    void *small = less < *room ? realloc(array, less * size) : NULL;
    if (!small)
        return array;
    g->bytes -= (size_t)(*room - less) * size;
    *room = less;
    return small;
}

/* Marks what the marked expressions are made of: it has lower numbers than they. */
static void mark_parts(const struct grammar *g, bool *used)
{
    for (uint32_t i = g->n_nodes; i-- > g->base_nodes;) {
        const struct expr_node *n = &g->nodes[i];
        if (!used[i])
            continue;
        if (has_list(n)) {
            for (uint32_t k = 0; k < n->b; k++)
                used[g->lists[n->a + k]] = true;
        } else if (n->kind == EXPR_KIND_CAT || n->kind == EXPR_KIND_REPEAT || n->kind == EXPR_KIND_NOT) {
            used[n->a] = true;
            if (n->kind == EXPR_KIND_CAT)
                used[n->b] = true;
        }
    }
}

/* Moves the marked expressions down to where those as compiled end, in their order: lists stay sorted, and what lies in
 * g->lists and g->sets in the order of its expressions moves down with them. */
static void move_down(struct grammar *g, const bool *used, expr *now)
{
    uint32_t end = g->n_nodes;
    g->n_nodes = g->base_nodes;
    g->n_lists = g->base_lists;
    g->n_sets = g->base_sets;
    for (uint32_t i = 0; i < end; i++) {
        struct expr_node n = g->nodes[i];
        n.row = n.mask = 0;
        now[i] = i < g->base_nodes ? i : EXPR_NOTHING;
        if (i < g->base_nodes) {
            g->nodes[i] = n;
            continue;
        }
        if (!used[i])
            continue;
        if (has_list(&n)) {
            for (uint32_t k = 0; k < n.b; k++)
                g->lists[g->n_lists + k] = now[g->lists[n.a + k]];
            n.a = g->n_lists;
            g->n_lists += n.b;
        } else if (n.kind == EXPR_KIND_SET) {
            g->sets[g->n_sets] = g->sets[n.a];
            n.a = g->n_sets++;
        } else if (n.kind == EXPR_KIND_CAT || n.kind == EXPR_KIND_REPEAT || n.kind == EXPR_KIND_NOT) {
            n.a = now[n.a];
            n.b = n.kind == EXPR_KIND_CAT ? now[n.b] : n.b;
        }
        now[i] = g->n_nodes;
        g->nodes[g->n_nodes++] = n;
    }
}

void expr_forget(struct grammar *g, expr *const *states, size_t n)
{
    bool *used = calloc(g->n_nodes, sizeof *used);
    expr *now = malloc(g->n_nodes * sizeof *now);
    uint32_t kept = g->base_nodes, mask = 1023, *table = NULL;
    if (!used || !now)
        goto cleanup;
    for (size_t i = 0; i < n; i++)
        used[*states[i]] = true;
    mark_parts(g, used);
    for (uint32_t i = g->base_nodes; i < g->n_nodes; i++)
        kept += used[i];
    while (mask < kept * 2 + 1024)
        mask = mask * 2 + 1;
    table = table_new(mask);
    if (!table)
        goto cleanup;
    mask_release(g);
    g->bytes -= (size_t)g->rows_room * g->stride * sizeof *g->rows;
    free(g->rows);
    g->rows = NULL;
    g->n_rows = g->rows_room = 0;
    move_down(g, used, now);
    for (size_t i = 0; i < n; i++)
        *states[i] = now[*states[i]];
    g->nodes = shrink(g, g->nodes, g->n_nodes, &g->nodes_room, sizeof *g->nodes);
    g->lists = shrink(g, g->lists, g->n_lists, &g->lists_room, sizeof *g->lists);
    g->sets = shrink(g, g->sets, g->n_sets, &g->sets_room, sizeof *g->sets);
    table_put_all(g, table, mask);
    g->emptyings++;
    g->failed = 0;
cleanup:
    if (!table)
        g->failed = -ENOMEM;
    free(used);
    free(now);
}

/* ---- constructors ------------------------------------------------------------------------------------------------ */

expr expr_set(struct grammar *g, const struct byte_set *s)
{
    static const struct byte_set NONE;
    if (memcmp(s, &NONE, sizeof *s) == 0)
        return EXPR_NOTHING;
    struct byte_set *sets = expr_grow(g, g->sets, g->n_sets, &g->sets_room, sizeof *sets);
    if (!sets)
        return EXPR_NOTHING;
    g->sets = sets;
    g->sets[g->n_sets++] = *s;
    return number_of(g, (struct expr_node){.kind = EXPR_KIND_SET, .a = g->n_sets - 1});
}

expr expr_bytes(struct grammar *g, unsigned first, unsigned last)
{
    struct byte_set s = {{0}};
    byte_set_add(&s, first, last);
    return expr_set(g, &s);
}

expr expr_text(struct grammar *g, const char *text)
{
    expr e = EXPR_EMPTY;
    for (size_t i = strlen(text); i-- > 0;)
        e = expr_cat(g, expr_bytes(g, (unsigned char)text[i], (unsigned char)text[i]), e);
    return e;
}

static expr cat_pair(struct grammar *g, expr a, expr b)
{
    if (a == EXPR_NOTHING || b == EXPR_NOTHING)
        return EXPR_NOTHING;
    if (a == EXPR_EMPTY)
        return b;
    if (b == EXPR_EMPTY)
        return a;
    return number_of(
        g, (struct expr_node){
               .kind = EXPR_KIND_CAT, .flags = g->nodes[a].flags & g->nodes[b].flags & EXPR_NULLABLE, .a = a, .b = b});
}

expr expr_cat(struct grammar *g, expr a, expr b)
{
    if (b == EXPR_NOTHING || g->nodes[a].kind != EXPR_KIND_CAT || b == EXPR_EMPTY)
        return b == EXPR_EMPTY ? a : cat_pair(g, a, b);
    /* The parts of a, the last one first in front of b. */
    size_t count = 0, n = 0;
    for (expr e = a; g->nodes[e].kind == EXPR_KIND_CAT; e = g->nodes[e].b)
        count++;
    expr few[64], *more = count > 64 ? malloc(count * sizeof *more) : NULL, *parts = more ? more : few;
    if (count > 64 && !more)
        return expr_fail(g, -ENOMEM);
    for (; g->nodes[a].kind == EXPR_KIND_CAT; a = g->nodes[a].b)
        parts[n++] = g->nodes[a].a;
    b = cat_pair(g, a, b);
    while (n > 0)
        b = cat_pair(g, parts[--n], b);
    free(more);
    return b;
}

static int by_number(const void *a, const void *b)
{
    expr x = *(const expr *)a, y = *(const expr *)b;
    return (x > y) - (x < y);
}

/* Lists are made behind the others, where number_of() wants them. */
static bool list_put(struct grammar *g, expr e)
{
    uint32_t *lists = expr_grow(g, g->lists, g->n_lists, &g->lists_room, sizeof *lists);
    if (!lists)
        return false;
    g->lists = lists;
    g->lists[g->n_lists++] = e;
    return true;
}

static void list_sort(struct grammar *g, uint32_t start)
{
    uint32_t n = g->n_lists - start, kept = 0;
    uint32_t *list = g->lists + start;
    if (n <= 8)
        for (uint32_t i = 1; i < n; i++) {
            uint32_t x = list[i], at = i;
            for (; at > 0 && list[at - 1] > x; at--)
                list[at] = list[at - 1];
            list[at] = x;
        }
    else
        qsort(list, n, sizeof *list, by_number);
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || list[kept - 1] != list[i])
            list[kept++] = list[i];
    g->n_lists = start + kept;
}

static bool alt_put(struct grammar *g, expr e, struct byte_set *sets)
{
    const struct expr_node *n = &g->nodes[e];
    if (e == EXPR_NOTHING)
        return true;
    if (n->kind == EXPR_KIND_SET) {
        for (int i = 0; i < 4; i++)
            sets->bits[i] |= g->sets[n->a].bits[i];
        return true;
    }
    if (n->kind != EXPR_KIND_ALT)
        return list_put(g, e);
    uint32_t first = n->a, end = n->a + n->b;
    for (uint32_t i = first; i < end; i++)
        if (!alt_put(g, g->lists[i], sets))
            return false;
    return true;
}

expr expr_alts(struct grammar *g, const expr *of, size_t n)
{
    uint32_t start = g->n_lists;
    struct byte_set sets = {{0}};
    for (size_t i = 0; i < n; i++) {
        if (of[i] == EXPR_ANYTHING) {
            g->n_lists = start;
            return EXPR_ANYTHING;
        }
        if (!alt_put(g, of[i], &sets))
            return EXPR_NOTHING;
    }
    expr set = expr_set(g, &sets);
    if (set != EXPR_NOTHING && !list_put(g, set))
        return EXPR_NOTHING;
    list_sort(g, start);
    uint32_t count = g->n_lists - start;
    g->work += count / 4;
    if (count <= 1) {
        g->n_lists = start;
        return count ? g->lists[start] : EXPR_NOTHING;
    }
    uint8_t nullable = 0;
    for (uint32_t i = 0; i < count; i++)
        nullable |= g->nodes[g->lists[start + i]].flags & EXPR_NULLABLE;
    return number_of(g, (struct expr_node){.kind = EXPR_KIND_ALT, .flags = nullable, .a = start, .b = count});
}

expr expr_alt(struct grammar *g, expr a, expr b)
{
    if (a == EXPR_NOTHING || a == b)
        return b;
    return b == EXPR_NOTHING ? a : expr_alts(g, (expr[]){a, b}, 2);
}

static bool and_put(struct grammar *g, expr e)
{
    const struct expr_node *n = &g->nodes[e];
    if (e == EXPR_ANYTHING)
        return true;
    if (n->kind != EXPR_KIND_AND)
        return list_put(g, e);
    uint32_t first = n->a, end = n->a + n->b;
    for (uint32_t i = first; i < end; i++)
        if (!list_put(g, g->lists[i]))
            return false;
    return true;
}

expr expr_ands(struct grammar *g, const expr *of, size_t n)
{
    uint32_t start = g->n_lists;
    bool empty = false, nullable = true;
    for (size_t i = 0; i < n; i++) {
        if (of[i] == EXPR_NOTHING || !and_put(g, of[i])) {
            g->n_lists = start;
            return EXPR_NOTHING;
        }
        empty |= of[i] == EXPR_EMPTY;
        nullable &= expr_nullable(g, of[i]);
    }
    if (empty) {
        g->n_lists = start;
        return nullable ? EXPR_EMPTY : EXPR_NOTHING;
    }
    list_sort(g, start);
    uint32_t count = g->n_lists - start;
    if (count <= 1) {
        g->n_lists = start;
        return count ? g->lists[start] : EXPR_ANYTHING;
    }
    return number_of(
        g, (struct expr_node){
               .kind = EXPR_KIND_AND, .flags = nullable ? EXPR_NULLABLE | EXPR_LIVE : 0, .a = start, .b = count});
}

expr expr_and(struct grammar *g, expr a, expr b)
{
    return expr_ands(g, (expr[]){a, b}, 2);
}

expr expr_not(struct grammar *g, expr a)
{
    if (g->nodes[a].kind == EXPR_KIND_NOT)
        return g->nodes[a].a;
    return number_of(g, (struct expr_node){.kind = EXPR_KIND_NOT, .flags = ~g->nodes[a].flags & EXPR_NULLABLE, .a = a});
}

expr expr_repeat(struct grammar *g, expr a, uint32_t min, uint32_t max)
{
    if (max == 0 || a == EXPR_EMPTY)
        return EXPR_EMPTY;
    if (a == EXPR_NOTHING)
        return min == 0 ? EXPR_EMPTY : EXPR_NOTHING;
    if (a == EXPR_ANYTHING)
        return a;
    if (expr_nullable(g, a))
        min = 0;
    if (min == 1 && max == 1)
        return a;
    if (g->nodes[a].kind == EXPR_KIND_REPEAT && g->nodes[a].b <= 1 && g->nodes[a].c == EXPR_INFINITE &&
        max == EXPR_INFINITE && min <= 1)
        return expr_repeat(g, g->nodes[a].a, min < g->nodes[a].b ? min : g->nodes[a].b, EXPR_INFINITE);
    return number_of(g,
                     (struct expr_node){
                         .kind = EXPR_KIND_REPEAT, .flags = min == 0 ? EXPR_NULLABLE : 0, .a = a, .b = min, .c = max});
}

expr expr_optional(struct grammar *g, expr a)
{
    return expr_alt(g, EXPR_EMPTY, a);
}

expr expr_multiple(struct grammar *g, uint32_t of, uint32_t remainder)
{
    return number_of(
        g, (struct expr_node){
               .kind = EXPR_KIND_MULTIPLE, .flags = remainder == 0 ? EXPR_NULLABLE : 0, .a = of, .b = remainder});
}

uint32_t expr_ref_new(struct grammar *g)
{
    expr *refs = expr_grow(g, g->refs, g->n_refs, &g->refs_room, sizeof *refs);
    if (!refs)
        return 0;
    g->refs = refs;
    g->refs[g->n_refs] = EXPR_NOTHING;
    return g->n_refs++;
}

expr expr_ref(struct grammar *g, uint32_t ref)
{
    return number_of(g, (struct expr_node){.kind = EXPR_KIND_REF, .a = ref});
}

/* ---- digits ------------------------------------------------------------------------------------------------------ */

static expr any_digits(struct grammar *g, const struct expr_digits *d, int at, int n)
{
    expr e = EXPR_EMPTY;
    for (int i = n; i-- > at;)
        e = expr_cat(g, d->write(g, d->arg, i, d->min[i], d->max[i]), e);
    return e;
}

/* Digits from `at` on that are >= lo's (low) and <= hi's (high). */
static expr digits_from(struct grammar *g, const struct expr_digits *d, int at, int n, bool low, bool high)
{
    if (at == n)
        return EXPR_EMPTY;
    uint32_t first = low ? d->lo[at] : d->min[at], last = high ? d->hi[at] : d->max[at];
    if (first > last)
        return EXPR_NOTHING;
    if (!low && !high)
        return any_digits(g, d, at, n);
    if (first == last)
        return expr_cat(g, d->write(g, d->arg, at, first, first), digits_from(g, d, at + 1, n, low, high));
    expr parts[3] = {EXPR_NOTHING, EXPR_NOTHING, EXPR_NOTHING};
    if (low) {
        parts[0] = expr_cat(g, d->write(g, d->arg, at, first, first), digits_from(g, d, at + 1, n, true, false));
        first++;
    }
    if (high) {
        parts[1] = expr_cat(g, d->write(g, d->arg, at, last, last), digits_from(g, d, at + 1, n, false, true));
        last--;
    }
    if (first <= last)
        parts[2] = expr_cat(g, d->write(g, d->arg, at, first, last), any_digits(g, d, at + 1, n));
    return expr_alts(g, parts, 3);
}

expr expr_digit_range(struct grammar *g, const struct expr_digits *d, int n)
{
    return digits_from(g, d, 0, n, true, true);
}

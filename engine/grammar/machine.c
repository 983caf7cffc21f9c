/* machine.c - the machine: derivatives, the table of steps, and what a grammar must be before it may run.
 *
 * What always holds once a grammar is compiled: an expression other than EXPR_NOTHING describes at least one text, so
 * that a step that is possible never leads where nothing can follow. Constructors see that by themselves, save for two:
 * what several expressions have in common (an AND is searched for a text when it is first met), and references that
 * never end (taken out when the grammar is compiled).
 */
#include "engine/grammar/expr.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LEFT_DEPTH 500 /* references in one another before the first byte */

/* ---- derivatives ------------------------------------------------------------------------------------------------- */

static expr derive(struct grammar *g, expr e, unsigned byte, bool search);
static bool is_live(struct grammar *g, expr e);

static expr derive_list(struct grammar *g, struct expr_node n, unsigned byte, bool search)
{
    expr few[32] = {0}, *parts = few;
    if (n.b > 32 && !(parts = malloc(n.b * sizeof *parts)))
        return expr_fail(g, -ENOMEM);
    uint32_t count = 0;
    bool all = n.kind == EXPR_KIND_AND;
    for (uint32_t i = 0; i < n.b; i++) {
        expr d = derive(g, g->lists[n.a + i], byte, search);
        if (d != EXPR_NOTHING)
            parts[count++] = d;
        else if (all)
            break;
    }
    expr e = EXPR_NOTHING;
    if (!all)
        e = expr_alts(g, parts, count);
    else if (count == n.b)
        e = expr_ands(g, parts, count);
    if (parts != few)
        free(parts);
    return all && !search && !is_live(g, e) ? EXPR_NOTHING : e;
}

/* search: for a text of an AND, whose parts are not searched in turn. */
static expr derive(struct grammar *g, expr e, unsigned byte, bool search)
{
    if (++g->work > g->most)
        return expr_fail(g, -E2BIG);
    struct expr_node n = g->nodes[e];
    switch ((enum expr_kind)n.kind) {
    case EXPR_KIND_NOTHING:
    case EXPR_KIND_EMPTY:
        return EXPR_NOTHING;
    case EXPR_KIND_SET:
        return byte_set_has(&g->sets[n.a], byte) ? EXPR_EMPTY : EXPR_NOTHING;
    case EXPR_KIND_CAT: {
        expr d = expr_cat(g, derive(g, n.a, byte, search), n.b);
        return expr_nullable(g, n.a) ? expr_alt(g, d, derive(g, n.b, byte, search)) : d;
    }
    case EXPR_KIND_ALT:
    case EXPR_KIND_AND:
        return derive_list(g, n, byte, search);
    case EXPR_KIND_NOT:
        return expr_not(g, derive(g, n.a, byte, search));
    case EXPR_KIND_REPEAT: {
        expr d = derive(g, n.a, byte, search);
        if (d == EXPR_NOTHING)
            return d;
        return expr_cat(g, d, expr_repeat(g, n.a, n.b ? n.b - 1 : 0, n.c == EXPR_INFINITE ? n.c : n.c - 1));
    }
    case EXPR_KIND_REF:
        return g->n_classes ? expr_step(g, g->refs[n.a], g->class_of[byte]) : derive(g, g->refs[n.a], byte, search);
    case EXPR_KIND_MULTIPLE:
        if (byte < '0' || byte > '9')
            return EXPR_NOTHING;
        return expr_multiple(g, n.a, (uint32_t)(((uint64_t)n.b * 10 + byte - '0') % n.a));
    }
    return EXPR_NOTHING;
}

expr expr_derive(struct grammar *g, expr e, unsigned byte)
{
    return derive(g, e, byte, true);
}

uint32_t *expr_row(struct grammar *g, expr e)
{
    size_t size = g->stride * sizeof *g->rows;
    if (g->nodes[e].row == 0) {
        uint32_t *rows = expr_grow(g, g->rows, g->n_rows + 1, &g->rows_room, size);
        if (!rows)
            return NULL;
        g->rows = rows;
        g->nodes[e].row = ++g->n_rows;
        memset(&g->rows[(size_t)g->n_rows * g->stride], 0xff, size);
    }
    return &g->rows[(size_t)g->nodes[e].row * g->stride];
}

expr expr_step_slow(struct grammar *g, expr e, unsigned class)
{
    if (e == EXPR_NOTHING || !expr_row(g, e))
        return EXPR_NOTHING;
    expr next = derive(g, e, g->class_byte[class], false);
    if (g->failed)
        return EXPR_NOTHING;
    expr_row(g, e)[class] = next;
    return next;
}

bool expr_matches(struct grammar *g, expr e, const char *text, size_t len)
{
    for (size_t i = 0; i < len && e != EXPR_NOTHING; i++)
        e = derive(g, e, (unsigned char)text[i], true);
    return expr_nullable(g, e);
}

/* ---- does an AND describe any text? ------------------------------------------------------------------------------ */

struct search_step {
    expr e;
    uint32_t class; /* to try next */
};

struct search {
    struct search_step *steps; /* the way here */
    size_t n, room;
    expr *seen;
    size_t n_seen, seen_room;
};

enum { SEEN = 128 }; /* a flag while a search goes on */

static bool search_go(struct grammar *g, struct search *s, expr e)
{
    if (s->n == s->room || s->n_seen == s->seen_room) {
        size_t room = s->room ? s->room * 2 : 64, seen_room = s->seen_room ? s->seen_room * 2 : 64;
        struct search_step *steps = s->n == s->room ? realloc(s->steps, room * sizeof *steps) : s->steps;
        if (steps) {
            s->room = s->n == s->room ? room : s->room;
            s->steps = steps;
        }
        expr *seen = s->n_seen == s->seen_room ? realloc(s->seen, seen_room * sizeof *seen) : s->seen;
        if (seen) {
            s->seen_room = s->n_seen == s->seen_room ? seen_room : s->seen_room;
            s->seen = seen;
        }
        if (!steps || !seen) {
            expr_fail(g, -ENOMEM);
            return false;
        }
    }
    s->steps[s->n++] = (struct search_step){.e = e};
    s->seen[s->n_seen++] = e;
    g->nodes[e].flags |= SEEN;
    return true;
}

/* Depth first, quotes and letters first: a text is found soon where there is one. */
static bool search(struct grammar *g, struct search *s)
{
    while (s->n > 0 && !g->failed) {
        struct search_step *at = &s->steps[s->n - 1];
        if (at->class == g->n_classes) {
            s->n--;
            continue;
        }
        expr next = derive(g, at->e, g->class_byte[at->class ++], true);
        uint8_t flags = g->nodes[next].flags;
        if (flags & (EXPR_NULLABLE | EXPR_LIVE))
            return true;
        if (next != EXPR_NOTHING && !(flags & (EXPR_DEAD | SEEN)) && !search_go(g, s, next))
            return false;
    }
    return false;
}

static bool is_live(struct grammar *g, expr e)
{
    const struct expr_node *n = &g->nodes[e];
    if (e == EXPR_NOTHING || n->kind != EXPR_KIND_AND || n->flags & (EXPR_LIVE | EXPR_DEAD))
        return e != EXPR_NOTHING && !(n->kind == EXPR_KIND_AND && n->flags & EXPR_DEAD);
    struct search s = {0};
    bool live = search_go(g, &s, e) && search(g, &s);
    for (size_t i = 0; i < s.n_seen; i++) {
        g->nodes[s.seen[i]].flags &= (uint8_t)~SEEN;
        if (!live && !g->failed)
            g->nodes[s.seen[i]].flags |= EXPR_DEAD;
    }
    for (size_t i = 0; live && i < s.n; i++)
        g->nodes[s.steps[i].e].flags |= EXPR_LIVE;
    free(s.steps);
    free(s.seen);
    return live;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static uint8_t split(const uint8_t old[256], uint32_t n, const struct byte_set *s, uint8_t out[256])
{
    int16_t inside[256], outside[256];
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        inside[i] = outside[i] = -1;
    for (unsigned b = 0; b < 256; b++) {
        int16_t *to = byte_set_has(s, b) ? &inside[old[b]] : &outside[old[b]];
        if (*to < 0)
            *to = (int16_t)count++;
        out[b] = (uint8_t)*to;
    }
    return (uint8_t)(count - 1);
}

static void make_classes(struct grammar *g)
{
    uint8_t class[256] = {0};
    uint32_t n = 1;
    for (uint32_t i = 0; i < g->n_sets; i++)
        n = split(class, n, &g->sets[i], class) + 1u;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == EXPR_KIND_MULTIPLE) {
            for (unsigned d = '0'; d <= '9'; d++) {
                struct byte_set s = {{0}};
                byte_set_add(&s, d, d);
                n = split(class, n, &s, class) + 1u;
            }
            break;
        }
    /* Numbered in the order in which a search tries them. */
    bool named[256] = {false};
    uint8_t number[256] = {0};
    g->n_classes = 0;
    for (unsigned i = 0; i < 257; i++) {
        unsigned b = i == 0 ? '"' : (i - 1 + 0x20) & 0xff;
        if (!named[class[b]]) {
            named[class[b]] = true;
            number[class[b]] = (uint8_t)g->n_classes;
            g->class_byte[g->n_classes++] = (uint8_t)b;
        }
        g->class_of[b] = number[class[b]];
    }
    g->stride = g->n_classes + 2;
}

enum { UNSEEN, OPEN, DONE };

/* Follows the references with which e can begin: a way back to one of those it came from would never take a byte. */
static int check_left(struct grammar *g, expr e, uint8_t *state, int depth)
{
    struct expr_node n = g->nodes[e];
    int rc = 0;
    if (depth > MAX_LEFT_DEPTH * 4)
        return -E2BIG;
    switch (n.kind) {
    case EXPR_KIND_CAT:
        rc = check_left(g, n.a, state, depth + 1);
        return rc == 0 && expr_nullable(g, n.a) ? check_left(g, n.b, state, depth + 1) : rc;
    case EXPR_KIND_ALT:
        for (uint32_t i = 0; i < n.b && rc == 0; i++)
            rc = check_left(g, g->lists[n.a + i], state, depth + 1);
        return rc;
    case EXPR_KIND_REPEAT:
        return check_left(g, n.a, state, depth + 1);
    case EXPR_KIND_REF:
        if (state[n.a] == OPEN)
            return -EINVAL;
        if (state[n.a] == UNSEEN) {
            state[n.a] = OPEN;
            rc = check_left(g, g->refs[n.a], state, depth + 1);
            state[n.a] = DONE;
        }
        return rc;
    default:
        return 0;
    }
}

/* Whether each expression describes some text, when references are taken as `ref` says. Parts have lower numbers than
 * what is made of them. */
static void find_productive(struct grammar *g, const bool *ref, bool *out)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct expr_node *n = &g->nodes[i];
        switch (n->kind) {
        case EXPR_KIND_NOTHING:
            out[i] = false;
            break;
        case EXPR_KIND_CAT:
            out[i] = out[n->a] && out[n->b];
            break;
        case EXPR_KIND_ALT:
            out[i] = false;
            for (uint32_t k = 0; k < n->b && !out[i]; k++)
                out[i] = out[g->lists[n->a + k]];
            break;
        case EXPR_KIND_REPEAT:
            out[i] = n->b == 0 || out[n->a];
            break;
        case EXPR_KIND_REF:
            out[i] = ref[n->a];
            break;
        default:
            out[i] = true;
        }
    }
}

/* Makes every expression in use anew, with what is now known to describe nothing left out. */
static void rebuild(struct grammar *g, const bool *ref)
{
    uint32_t count = g->n_nodes;
    expr *now = malloc(count * sizeof *now);
    bool *used = calloc(count, sizeof *used);
    expr *parts = NULL;
    if (!now || !used) {
        expr_fail(g, -ENOMEM);
        goto cleanup;
    }
    used[g->root] = true;
    for (uint32_t i = 0; i < g->n_refs; i++)
        used[g->refs[i]] = true;
    uint32_t longest = 1;
    for (uint32_t i = count; i-- > 0;) {
        const struct expr_node *n = &g->nodes[i];
        bool list = n->kind == EXPR_KIND_ALT || n->kind == EXPR_KIND_AND;
        if (!used[i])
            continue;
        if (list) {
            longest = n->b > longest ? n->b : longest;
            for (uint32_t k = 0; k < n->b; k++)
                used[g->lists[n->a + k]] = true;
        } else if (n->kind == EXPR_KIND_CAT || n->kind == EXPR_KIND_REPEAT || n->kind == EXPR_KIND_NOT) {
            used[n->a] = true;
            if (n->kind == EXPR_KIND_CAT)
                used[n->b] = true;
        }
    }
    parts = malloc(longest * sizeof *parts);
    if (!parts) {
        expr_fail(g, -ENOMEM);
        goto cleanup;
    }
    for (uint32_t i = 0; i < count && !g->failed; i++) {
        struct expr_node n = g->nodes[i];
        now[i] = i;
        if (!used[i])
            continue;
        switch (n.kind) {
        case EXPR_KIND_CAT:
            now[i] = expr_cat(g, now[n.a], now[n.b]);
            break;
        case EXPR_KIND_NOT:
            now[i] = expr_not(g, now[n.a]);
            break;
        case EXPR_KIND_REPEAT:
            now[i] = expr_repeat(g, now[n.a], n.b, n.c);
            break;
        case EXPR_KIND_REF:
            now[i] = ref[n.a] ? i : EXPR_NOTHING;
            break;
        case EXPR_KIND_ALT:
        case EXPR_KIND_AND:
            for (uint32_t k = 0; k < n.b; k++)
                parts[k] = now[g->lists[n.a + k]];
            now[i] = n.kind == EXPR_KIND_ALT ? expr_alts(g, parts, n.b) : expr_ands(g, parts, n.b);
            if (n.kind == EXPR_KIND_AND && !is_live(g, now[i]))
                now[i] = EXPR_NOTHING;
            break;
        default:
            break;
        }
    }
    if (!g->failed) {
        g->root = now[g->root];
        for (uint32_t i = 0; i < g->n_refs; i++)
            g->refs[i] = now[g->refs[i]];
    }
cleanup:
    free(now);
    free(used);
    free(parts);
}

/* Takes out what never ends, until nothing changes. */
static void take_out_endless(struct grammar *g, bool *ref)
{
    bool *productive = malloc(g->n_nodes * sizeof *productive);
    if (!productive) {
        expr_fail(g, -ENOMEM);
        return;
    }
    for (uint32_t i = 0; i < g->n_refs; i++)
        ref[i] = false;
    for (bool more = true; more && !g->failed;) {
        find_productive(g, ref, productive);
        more = false;
        for (uint32_t i = 0; i < g->n_refs; i++)
            if (!ref[i] && productive[g->refs[i]])
                ref[i] = more = true;
        if ((g->work += g->n_nodes) > g->most)
            expr_fail(g, -E2BIG);
    }
    free(productive);
    rebuild(g, ref);
}

int expr_finish(struct grammar *g, char *err, size_t err_size)
{
    if (g->failed)
        return g->failed;
    bool *ref = malloc(g->n_refs + 1);
    uint8_t *state = calloc(g->n_refs + 1, 1);
    int rc = ref && state ? 0 : -ENOMEM;
    if (rc == 0) {
        rc = check_left(g, g->root, state, 0);
        for (uint32_t i = 0; i < g->n_refs && rc == 0; i++)
            if (state[i] == UNSEEN) {
                state[i] = OPEN;
                rc = check_left(g, g->refs[i], state, 0);
                state[i] = DONE;
            }
        if (rc == -EINVAL)
            snprintf(err, err_size, "a $ref leads back to itself without a value in between");
    }
    if (rc == 0) {
        make_classes(g);
        memset(ref, 1, g->n_refs);
        rebuild(g, ref); /* what ANDs describe */
        take_out_endless(g, ref);
        rc = g->failed;
    }
    if (rc == 0 && g->root == EXPR_NOTHING) {
        snprintf(err, err_size, "nothing can fulfil it: its conditions contradict each other or never end");
        rc = -EINVAL;
    }
    free(ref);
    free(state);
    g->base_nodes = g->n_nodes;
    g->base_lists = g->n_lists;
    g->base_sets = g->n_sets;
    g->most = GRAMMAR_MAX_STEP_WORK;
    g->most_bytes = GRAMMAR_MAX_BYTES;
    return rc;
}

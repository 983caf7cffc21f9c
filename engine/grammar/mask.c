/* mask.c - which tokens a state can go on with.
 *
 * A token is allowed when its bytes are steps that lead somewhere. The plain tokens of a state within a string are
 * known without a walk: all of them where any plain text may follow, or those up to the characters that are left. All
 * others are walked as a trie, leaving out what is below a byte that leads nowhere. What was found is kept with the
 * state.
 */
#include "engine/grammar/expr.h"
#include "engine/grammar/vocab.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PLAIN_PAIRS 64
#define NO_BASE         UINT8_MAX

/* A kept mask: a base, and tokens beside it as a list or, when that is longer, as bits. */
struct grammar_mask {
    uint8_t base; /* index into plain_upto, or NO_BASE */
    bool bits;
    uint32_t n; /* tokens in the list */
    uint32_t *data;
};

void mask_release(struct grammar *g)
{
    for (uint32_t i = 1; i <= g->n_masks; i++) {
        const struct grammar_mask *m = &g->masks[i];
        g->bytes -= m->bits ? g->vocab->words * sizeof *m->data : m->n * sizeof *m->data;
        free(m->data);
    }
    g->bytes -= g->masks_room * sizeof *g->masks;
    free(g->masks);
    g->masks = NULL;
    g->n_masks = g->masks_room = 0;
}

/* ---- plain text -------------------------------------------------------------------------------------------------- */

#define ALL_GROUPS ((1ULL << BYTE_GROUPS) - 1)

struct pair {
    expr state, plain;
};

/* Follows plain text out of e, bytes from `first` on only. True: no step leads nowhere, and, with `back`, whole
 * characters lead to e again. */
static bool follows(struct grammar *g, expr e, unsigned first, bool back)
{
    struct pair pairs[MAX_PLAIN_PAIRS];
    int n = 1;
    pairs[0] = (struct pair){e, g->plain};
    for (int i = 0; i < n; i++)
        for (uint32_t class = 0; class < g->n_classes; class ++) {
            if (g->class_byte[class] < first)
                continue;
            struct pair next = {.plain = expr_step(g, pairs[i].plain, class)};
            if (next.plain == EXPR_NOTHING)
                continue;
            next.state = expr_step(g, pairs[i].state, class);
            int k = 0;
            while (k < n && (pairs[k].state != next.state || pairs[k].plain != next.plain))
                k++;
            if (k < n)
                continue;
            if (next.state == EXPR_NOTHING || n == MAX_PLAIN_PAIRS || (back && next.plain == g->plain))
                return false;
            pairs[n++] = next;
        }
    return true;
}

/* The characters that e, or one of its alternatives, takes whatever they are; 0: it does not begin with such. */
static uint32_t characters_left(const struct grammar *g, expr e)
{
    const struct expr_node *n = &g->nodes[e];
    uint32_t most = 0;
    if (n->kind == EXPR_KIND_CAT)
        n = &g->nodes[n->a];
    for (uint32_t i = 0; n->kind == EXPR_KIND_ALT && i < n->b; i++) {
        const struct expr_node *k = &g->nodes[g->lists[n->a + i]];
        k = k->kind == EXPR_KIND_CAT ? &g->nodes[k->a] : k;
        if (k->kind == EXPR_KIND_REPEAT && k->a == g->character && k->c > most)
            most = k->c;
    }
    return n->kind == EXPR_KIND_REPEAT && n->a == g->character ? n->c : most;
}

/* The groups of bytes of which any plain token may follow e: all, or those that lead from e to e. */
static uint64_t free_groups(struct grammar *g, expr e)
{
    uint64_t groups = 0, not = 0;
    uint32_t *row = expr_row(g, e);
    if (!row)
        return 0;
    memcpy(&groups, row + g->n_classes, sizeof groups);
    if (groups != UINT64_MAX)
        return groups;
    if (characters_left(g, e) >= TOKEN_MAX_PLAIN || follows(g, e, 0, false)) {
        groups = ALL_GROUPS;
    } else {
        for (unsigned b = ' '; b < 0x80; b++)
            if (b != '"' && b != '\\' && expr_step(g, e, g->class_of[b]) != e)
                not |= 1ULL << byte_group((uint8_t)b);
        if (!follows(g, e, 0x80, true))
            not |= 1ULL << BYTE_GROUPS_WIDE;
        groups = ALL_GROUPS & ~not ;
    }
    if (!g->failed)
        memcpy(expr_row(g, e) + g->n_classes, &groups, sizeof groups);
    return groups;
}

/* Whether e is some characters and then a quote. */
static bool is_string_rest(const struct grammar *g, expr e)
{
    const struct expr_node *n = &g->nodes[e];
    if (n->kind != EXPR_KIND_CAT || g->nodes[n->a].kind != EXPR_KIND_REPEAT || g->nodes[n->a].a != g->character)
        return false;
    return n->b == g->quote || (g->nodes[n->b].kind == EXPR_KIND_CAT && g->nodes[n->b].a == g->quote);
}

/* Counts that no token reaches the end of make no difference: states that differ only in them share a mask. */
static expr without_far_counts(struct grammar *g, expr e)
{
    struct expr_node n = g->nodes[e];
    if (!is_string_rest(g, e))
        return e;
    struct expr_node r = g->nodes[n.a];
    if (r.b <= TOKEN_MAX_BYTES && (r.c <= TOKEN_MAX_BYTES || r.c == EXPR_INFINITE))
        return e;
    uint32_t min = r.b < TOKEN_MAX_BYTES ? r.b : TOKEN_MAX_BYTES;
    uint32_t max = r.c <= TOKEN_MAX_BYTES ? r.c : EXPR_INFINITE;
    return expr_cat(g, expr_repeat(g, r.a, min, max), n.b);
}

/* ---- walks ------------------------------------------------------------------------------------------------------- */

/* Tokens that were found, as bits and, as long as that is shorter, as a list. */
struct found {
    uint32_t *list, n, room;
    uint32_t *out;
};

static void put(struct found *f, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        mask_set(f->out, tokens[i]);
    if (f->n + n <= f->room)
        memcpy(f->list + f->n, tokens, n * sizeof *tokens);
    f->n += n;
}

static void walk(struct grammar *g, const struct trie *t, bool plain, expr e, struct found *f)
{
    expr states[TOKEN_MAX_BYTES + 1] = {e};
    const struct trie_node *nodes = t->nodes;
    for (uint32_t i = 0; i < t->n;) {
        const struct trie_node *node = &nodes[i];
        expr next = expr_step(g, states[node->depth - 1], g->class_of[node->byte]);
        if (next == EXPR_NOTHING) {
            if (g->failed)
                return;
            i = node->end;
            continue;
        }
        uint32_t end = i + 1;
        if (plain && node->whole && (node->below & ~free_groups(g, next)) == 0)
            end = node->end;
        else
            states[node->depth] = next;
        uint32_t count = nodes[end].token - node->token;
        if (count > 0)
            put(f, t->tokens + node->token, count);
        i = end;
    }
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

static void keep(struct grammar *g, expr e, uint8_t base, const struct found *f)
{
    bool bits = f->n > f->room;
    size_t bytes = (bits ? g->vocab->words : f->n) * sizeof(uint32_t);
    struct grammar_mask *masks = expr_grow(g, g->masks, g->n_masks + 1, &g->masks_room, sizeof *masks);
    if (!masks)
        return;
    g->masks = masks;
    if (g->bytes + bytes > g->most_bytes) {
        expr_fail(g, -ENOSPC);
        return;
    }
    uint32_t *data = malloc(bytes ? bytes : 1);
    if (!data) {
        expr_fail(g, -ENOMEM);
        return;
    }
    memcpy(data, bits ? f->out : f->list, bytes);
    g->bytes += bytes;
    struct grammar_mask *m = &g->masks[++g->n_masks];
    m->base = base;
    m->bits = bits;
    m->n = f->n;
    m->data = data;
    g->nodes[e].mask = g->n_masks;
    g->masks_made++;
}

static void give(const struct grammar *g, const struct grammar_mask *m, uint32_t *out)
{
    const struct grammar_vocab *v = g->vocab;
    if (m->bits) {
        memcpy(out, m->data, v->words * sizeof *out);
        return;
    }
    if (m->base == NO_BASE)
        memset(out, 0, v->words * sizeof *out);
    else
        memcpy(out, v->plain_upto[m->base], v->words * sizeof *out);
    for (uint32_t i = 0; i < m->n; i++)
        mask_set(out, m->data[i]);
}

static void make(struct grammar *g, expr e, uint32_t *out)
{
    const struct grammar_vocab *v = g->vocab;
    e = without_far_counts(g, e);
    if (g->failed)
        return;
    if (g->nodes[e].mask) {
        give(g, &g->masks[g->nodes[e].mask], out);
        return;
    }
    struct found f = {.out = out, .room = (uint32_t)v->words, .list = malloc(v->words * sizeof *f.list)};
    if (!f.list) {
        expr_fail(g, -ENOMEM);
        return;
    }
    uint32_t left = characters_left(g, e);
    uint8_t base = NO_BASE;
    if (left > 0)
        base = left < TOKEN_MAX_PLAIN ? (uint8_t)left : TOKEN_MAX_PLAIN;
    else if (free_groups(g, e) == ALL_GROUPS)
        base = TOKEN_MAX_PLAIN;
    if (base == NO_BASE)
        memset(out, 0, v->words * sizeof *out);
    else
        memcpy(out, v->plain_upto[base], v->words * sizeof *out);
    if (base != TOKEN_MAX_PLAIN && !is_string_rest(g, e))
        walk(g, &v->plain, true, e, &f);
    walk(g, &v->other, false, e, &f);
    if (expr_nullable(g, e))
        put(&f, v->ends, v->n_ends);
    if (!g->failed)
        keep(g, e, base, &f);
    free(f.list);
}

/* Strings with a count of characters are known one by one, and not when they are alternatives: so these are taken
 * apart. */
void mask_make(struct grammar *g, expr e, uint32_t *out)
{
    expr tail = EXPR_EMPTY;
    struct expr_node n = g->nodes[e];
    if (n.kind == EXPR_KIND_CAT) {
        tail = n.b;
        n = g->nodes[n.a];
    }
    uint32_t strings = 0, words = (uint32_t)g->vocab->words;
    for (uint32_t i = 0; n.kind == EXPR_KIND_ALT && i < n.b; i++)
        strings += is_string_rest(g, g->lists[n.a + i]);
    if (strings == 0) {
        make(g, e, out);
        return;
    }
    expr *others = malloc(n.b * sizeof *others);
    uint32_t *one = malloc(words * sizeof *one), count = 0;
    if (others && one) {
        memset(out, 0, words * sizeof *out);
        for (uint32_t i = 0; i <= n.b && !g->failed; i++) {
            expr part = i < n.b ? g->lists[n.a + i] : expr_alts(g, others, count);
            if (i < n.b && !is_string_rest(g, part)) {
                others[count++] = part;
                continue;
            }
            make(g, expr_cat(g, part, tail), one);
            for (uint32_t k = 0; k < words; k++)
                out[k] |= one[k];
        }
    } else {
        expr_fail(g, -ENOMEM);
    }
    free(others);
    free(one);
}

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

#define ALL_GROUPS      ((1ULL << BYTE_GROUPS) - 1)
#define MAX_FREE_STATES 256
#define MAX_LOOK_WORK   (GRAMMAR_MAX_STEP_WORK / 10) /* of a mask's work; beyond that nobody looks ahead to save some */

/* Groups that have a character which begins with a byte of a class. */
static const uint64_t *groups_of_classes(struct grammar *g)
{
    if (g->class_groups[g->class_of['a']] == 0)
        for (unsigned b = ' '; b <= 0xf4; b++)
            if ((b < 0x80 && b != '"' && b != '\\') || b >= 0xc2)
                g->class_groups[g->class_of[b]] |= 1ULL << byte_group((uint8_t)b);
    return g->class_groups;
}

struct pair {
    expr state, plain;
    uint64_t groups;
};

/* Whether no step of plain text out of e leads nowhere, however long it is. */
static bool takes_any(struct grammar *g, expr e)
{
    struct pair pairs[MAX_PLAIN_PAIRS];
    int n = 1;
    pairs[0] = (struct pair){.state = e, .plain = g->plain};
    for (int i = 0; i < n; i++)
        for (uint32_t class = 0; class < g->n_classes; class ++) {
            struct pair next = {.plain = expr_step(g, pairs[i].plain, class)};
            if (next.plain == EXPR_NOTHING)
                continue;
            next.state = expr_step(g, pairs[i].state, class);
            int k = 0;
            while (k < n && (pairs[k].state != next.state || pairs[k].plain != next.plain))
                k++;
            if (k < n)
                continue;
            if (next.state == EXPR_NOTHING || n == MAX_PLAIN_PAIRS)
                return false;
            pairs[n++] = next;
        }
    return true;
}

/* Where the characters of each group that are not ASCII lead to from e: to[group] where all lead to the same state,
 * else EXPR_NOTHING. A character has up to four bytes: one round each. */
static void wide_steps(struct grammar *g, expr e, uint64_t groups, expr to[BYTE_GROUPS])
{
    const uint64_t *begins = groups_of_classes(g);
    struct pair now[MAX_PLAIN_PAIRS] = {{.state = e, .plain = g->plain, .groups = groups}}, next[MAX_PLAIN_PAIRS];
    uint64_t met = 0, bad = 0;
    for (int n = 1, count = 0, bytes = 0; n > 0; n = count, count = 0, bytes++) {
        for (int i = 0; i < n; i++)
            for (uint32_t class = 0; class < g->n_classes; class ++) {
                struct pair p = now[i];
                if (bytes == 0)
                    p.groups &= g->class_byte[class] < 0x80 ? 0 : begins[class];
                if (p.groups == 0 || (p.plain = expr_step(g, p.plain, class)) == EXPR_NOTHING)
                    continue;
                p.state = expr_step(g, p.state, class);
                int k = 0;
                while (k < count && (next[k].state != p.state || next[k].plain != p.plain))
                    k++;
                if (p.state == EXPR_NOTHING || (k == count && k == MAX_PLAIN_PAIRS)) {
                    bad |= p.groups;
                } else if (p.plain == g->plain) {
                    for (uint32_t w = 0; w < BYTE_GROUPS; w++)
                        if (p.groups >> w & 1) {
                            bad |= met >> w & 1 && to[w] != p.state ? 1ULL << w : 0;
                            to[w] = p.state;
                        }
                    met |= p.groups;
                } else if (k < count) {
                    next[k].groups |= p.groups;
                } else {
                    next[count++] = p;
                }
            }
        memcpy(now, next, (size_t)count * sizeof *now);
    }
    for (uint32_t w = 0; w < BYTE_GROUPS; w++)
        if (!((met & ~bad & groups) >> w & 1))
            to[w] = EXPR_NOTHING;
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

/* States that plain text of some groups leads to, by the characters it takes to come there. */
struct reached {
    expr states[MAX_FREE_STATES];
    uint8_t after[MAX_FREE_STATES];
    int n;
    bool full;
};

static void reach(const struct grammar *g, struct reached *r, expr e, int after)
{
    for (int i = r->n; i-- > 0;)
        if (r->states[i] == e)
            return;
    if (r->n == MAX_FREE_STATES || g->work > MAX_LOOK_WORK) {
        r->full = true;
        return;
    }
    r->states[r->n] = e;
    r->after[r->n++] = (uint8_t)after;
}

/* Those of the groups of which no character leads nowhere from e; where they lead to is reached after one more. */
static uint64_t pass_on(struct grammar *g, expr e, uint64_t groups, struct reached *r, int after)
{
    const uint64_t *begins = groups_of_classes(g);
    expr to[BYTE_GROUPS];
    for (uint32_t class = 0; class < g->n_classes; class ++) {
        if (!(begins[class] & groups) || g->class_byte[class] >= 0x80)
            continue;
        expr next = expr_step(g, e, class);
        if (next == EXPR_NOTHING)
            groups &= ~begins[class];
        else
            reach(g, r, next, after);
    }
    if (!(groups & BYTE_GROUPS_WIDE))
        return groups;
    wide_steps(g, e, groups & BYTE_GROUPS_WIDE, to);
    for (uint32_t w = 0; w < BYTE_GROUPS; w++)
        if (BYTE_GROUPS_WIDE & groups & 1ULL << w) {
            if (to[w] == EXPR_NOTHING)
                groups &= ~(1ULL << w);
            else
                reach(g, r, to[w], after);
        }
    return groups;
}

/* Groups all of whose characters lead from e to one of the states near[0..n). */
static uint64_t groups_to(struct grammar *g, expr e, const expr *near, int n)
{
    const uint64_t *begins = groups_of_classes(g);
    uint64_t groups = ALL_GROUPS;
    expr to[BYTE_GROUPS];
    wide_steps(g, e, BYTE_GROUPS_WIDE, to);
    for (uint32_t i = 0; i < g->n_classes + BYTE_GROUPS; i++) {
        bool wide = i >= g->n_classes;
        if (wide ? !(BYTE_GROUPS_WIDE >> (i - g->n_classes) & 1) : g->class_byte[i] >= 0x80 || !begins[i])
            continue;
        expr next = wide ? to[i - g->n_classes] : expr_step(g, e, i);
        int k = 0;
        while (k < n && (near[k] != next || next == EXPR_NOTHING))
            k++;
        if (k == n)
            groups &= ~(wide ? 1ULL << (i - g->n_classes) : begins[i]);
    }
    return groups;
}

static void keep_groups(struct grammar *g, expr e, uint64_t groups)
{
    uint32_t *row = g->failed ? NULL : expr_row(g, e);
    if (row)
        memcpy(row + g->n_classes, &groups, sizeof groups);
}

/* Where letters lead on and on, but not back to e (they are counted, say): groups of which any TOKEN_MAX_PLAIN
 * characters may follow e, found by looking where letters and what is like them lead to, twice as far as that. So it
 * holds for the states on the first half of the way too, which keep it. `otherwise`: where there are none. */
static uint64_t follow_letters(struct grammar *g, expr e, uint64_t otherwise)
{
    const expr near[] = {e, expr_step(g, e, g->class_of['a']), expr_step(g, e, g->class_of['A']),
                         expr_step(g, e, g->class_of['0'])};
    uint64_t groups = groups_to(g, e, near, 4), found = otherwise;
    struct reached r = {.n = 1, .states = {e}};
    int at = 0, after = 0;
    for (; groups & BYTE_GROUP_LETTERS && at < r.n && after < 2 * TOKEN_MAX_PLAIN; after++) {
        if (after == TOKEN_MAX_PLAIN)
            found = groups;
        for (int n = r.n; at < n && !r.full; at++)
            groups = pass_on(g, r.states[at], groups, &r, after + 1);
        if (r.full || (after >= TOKEN_MAX_PLAIN && groups != found))
            break;
    }
    bool all = groups & BYTE_GROUP_LETTERS && at == r.n && !r.full;
    if (all)
        found = groups;
    for (int i = 1; found != otherwise && i < r.n; i++) {
        uint64_t known;
        const uint32_t *row = all || r.after[i] + TOKEN_MAX_PLAIN <= after ? expr_row(g, r.states[i]) : NULL;
        if (!row)
            continue;
        memcpy(&known, row + g->n_classes, sizeof known);
        if (known == UINT64_MAX)
            keep_groups(g, r.states[i], found);
    }
    return found;
}

/* The groups of characters of which any plain token may follow e. */
static uint64_t free_groups(struct grammar *g, expr e)
{
    uint64_t groups;
    uint32_t *row = expr_row(g, e);
    if (!row)
        return 0;
    memcpy(&groups, row + g->n_classes, sizeof groups);
    if (groups != UINT64_MAX)
        return groups;
    if (characters_left(g, e) >= TOKEN_MAX_PLAIN || takes_any(g, e)) {
        groups = ALL_GROUPS;
    } else if (g->work > MAX_LOOK_WORK) {
        groups = 0;
    } else {
        groups = groups_to(g, e, &e, 1);
        if (!(groups & BYTE_GROUP_LETTERS) && characters_left(g, e) == 0)
            groups = follow_letters(g, e, groups);
    }
    keep_groups(g, e, groups);
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
        if (plain && node->whole &&
            (node->longest <= characters_left(g, next) || (node->below & ~free_groups(g, next)) == 0))
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

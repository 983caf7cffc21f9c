/* grammar.c - grammars from end to end, and matches.
 *
 * A grammar knows its matches: their states are kept when all others are forgotten to make room.
 */
#include "engine/grammar/expr.h"
#include "engine/grammar/vocab.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct grammar_match {
    struct grammar *g;
    struct grammar_match *prev, *next; /* of g */
    expr state;
};

/* ---- grammars ---------------------------------------------------------------------------------------------------- */

int grammar_begin(const struct grammar_vocab *v, struct grammar **out)
{
    struct grammar *g = calloc(1, sizeof *g);
    if (!g)
        return -ENOMEM;
    *out = g; /* also on error: the caller frees it */
    g->vocab = v;
    return expr_init(g);
}

int grammar_end(struct grammar *g, const char *what, char *err, size_t err_size)
{
    char why[160] = "";
    int rc = expr_finish(g, why, sizeof why);
    if (rc == -ENOSPC)
        rc = -E2BIG;
    if (rc == -E2BIG)
        snprintf(err, err_size, "%s: more work or memory than is allowed for one", what);
    else if (rc)
        snprintf(err, err_size, "%s: %s", what, rc == -ENOMEM ? "out of memory" : why);
    return rc;
}

int grammar_from_pattern(const char *pattern, size_t len, const struct grammar_vocab *v, struct grammar **out,
                         char *err, size_t err_size)
{
    struct grammar *g = NULL;
    int rc = grammar_begin(v, &g);
    if (rc == 0) {
        rc = pattern_compile(g, CHAR_UTF8, pattern, len, false, &g->root, err, err_size);
        if (rc == 0 || g->failed)
            rc = grammar_end(g, "pattern", err, err_size);
    }
    if (rc == 0)
        *out = g;
    else
        grammar_free(g);
    return rc;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    expr_release(g);
    free(g);
}

void grammar_set_vocab(struct grammar *g, const struct grammar_vocab *v)
{
    if (!g->vocab)
        g->vocab = v;
}

struct grammar_use grammar_use(const struct grammar *g)
{
    return (struct grammar_use){g->bytes, g->n_rows, g->masks_made, g->emptyings};
}

/* ---- matches ----------------------------------------------------------------------------------------------------- */

struct grammar_match *grammar_match_new(struct grammar *g)
{
    struct grammar_match *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    *m = (struct grammar_match){.g = g, .next = g->matches, .state = g->root};
    if (m->next)
        m->next->prev = m;
    g->matches = m;
    return m;
}

void grammar_match_free(struct grammar_match *m)
{
    if (!m)
        return;
    if (m->next)
        m->next->prev = m->prev;
    if (m->prev)
        m->prev->next = m->next;
    else
        m->g->matches = m->next;
    free(m);
}

static expr go(struct grammar *g, expr e, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len && e != EXPR_NOTHING; i++)
        e = expr_step(g, e, g->class_of[(unsigned char)bytes[i]]);
    return e;
}

void grammar_forget(struct grammar *g)
{
    size_t n = 0;
    for (struct grammar_match *m = g->matches; m; m = m->next)
        n++;
    expr **states = malloc(n * sizeof *states);
    if (!states) {
        g->failed = -ENOMEM;
        return;
    }
    n = 0;
    for (struct grammar_match *m = g->matches; m; m = m->next)
        states[n++] = &m->state;
    expr_forget(g, states, n);
    free(states);
    /* What is left is in use: with little room beside it the next emptying would come at once. */
    if (!g->failed && g->bytes > g->most_bytes / 4 * 3)
        g->failed = -E2BIG;
}

/* Runs once more with all other states forgotten when there was no room for more. */
static int run(struct grammar_match *m, void (*work)(struct grammar_match *m, void *arg), void *arg)
{
    struct grammar *g = m->g;
    for (int tries = 0; tries < 2; tries++) {
        g->work = 0;
        g->failed = 0;
        work(m, arg);
        if (g->failed != -ENOSPC)
            return g->failed;
        grammar_forget(g);
        if (g->failed)
            return g->failed;
    }
    return -E2BIG;
}

struct pushing {
    const char *bytes;
    size_t len;
    expr state;
};

static void push(struct grammar_match *m, void *arg)
{
    struct pushing *p = arg;
    p->state = go(m->g, m->state, p->bytes, p->len);
}

int grammar_match_push(struct grammar_match *m, const char *bytes, size_t len)
{
    struct pushing p = {bytes, len, EXPR_NOTHING};
    if (len == 0)
        return 0;
    int rc = run(m, push, &p);
    if (rc)
        return rc;
    if (p.state == EXPR_NOTHING)
        return -EILSEQ;
    m->state = p.state;
    return 0;
}

bool grammar_match_complete(const struct grammar_match *m)
{
    return expr_nullable(m->g, m->state);
}

bool grammar_match_ended(const struct grammar_match *m)
{
    return m->state == EXPR_EMPTY; /* a number that is the same after every forgetting */
}

static void make(struct grammar_match *m, void *arg)
{
    mask_make(m->g, m->state, arg);
}

int grammar_match_mask(struct grammar_match *m, uint32_t *mask)
{
    struct grammar *g = m->g;
    if (!g->vocab)
        return -EINVAL;
    int rc = run(m, make, mask);
    if (rc)
        return rc;
    for (size_t i = 0; i < g->vocab->words; i++)
        if (mask[i])
            return 0;
    return -ENOENT;
}

struct forcing {
    char *text;
    size_t room, len;
};

static void force(struct grammar_match *m, void *arg)
{
    struct forcing *f = arg;
    f->len = forced_text(m->g, m->state, f->text, f->room);
}

size_t grammar_match_forced(struct grammar_match *m, char *text, size_t room)
{
    struct forcing f = {.text = text, .room = room};
    return m->g->vocab && run(m, force, &f) == 0 ? f.len : 0;
}

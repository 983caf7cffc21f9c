/* build.c - where a turn's context is made: to find the tokens of a megabyte of text takes a third of a second, in
 * which nobody's answer would go on. So what is long is made on a thread of its own, one context after the other, and
 * only what is short at once. Engine thread, but for make().
 *
 * Meanwhile the turn is FINDING: nobody else looks at what was found for it. The response that is not stored and that
 * it may follow stays until then.
 */
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define AT_ONCE_BYTES 16384 /* some milliseconds */

static size_t length(const char *text)
{
    return text ? strlen(text) : 0;
}

/* Whether there is much text to be read; of the past only where that is rendered anew, or may be. */
static bool is_long(const struct turn *t)
{
    const struct found *f = &t->found;
    const char *instructions = t->instructions ? t->instructions : f->conversation.instructions;
    const bool anew = !f->parent.id || f->n_path; /* it begins with these, or may */
    size_t bytes = length(t->opening) + (anew ? length(t->tools) + length(instructions) : 0);
    for (size_t i = f->matched; bytes <= AT_ONCE_BYTES && i < t->n_messages; i++)
        bytes += t->messages[i].len;
    for (size_t i = 0; bytes <= AT_ONCE_BYTES && i < f->n_path; i++)
        for (size_t k = 0; k < f->path[i].n_items; k++)
            bytes += length(f->path[i].items[k].text);
    return bytes > AT_ONCE_BYTES;
}

static void built_away(struct session *s, void *turn);

/* [that thread] */
static void make(void *arg)
{
    struct turn *t = arg;
    t->build.rc = context_build(t);
    turn_back(t, built_away);
}

/* The oldest that waits for it; those of the background are last. */
static void next(struct session *s)
{
    struct turn *t = NULL;
    for (struct turn *other = s->turns; other; other = other->next)
        if (other->build.waits && (!t || (t->ask.background && !other->ask.background)))
            t = other;
    if (!t)
        return;
    t->build.waits = false;
    s->building = true;
    engine_beside_start(s->builder, make, t);
}

static void over(struct session *s, struct turn *t)
{
    s->jobs--;
    t->n_jobs--;
    if (t->follows)
        ephemeral_let_go(t->follows);
    t->follows = NULL;
}

static void built_away(struct session *s, void *turn)
{
    struct turn *t = turn;
    engine_beside_wait(s->builder);
    s->building = false;
    over(s, t);
    turn_built(t, t->build.rc);
    next(s);
}

void build_start(struct turn *t)
{
    struct session *s = t->session;
    t->follows = context_ephemeral(t);
    if (!is_long(t)) {
        int rc = context_build(t);
        t->follows = NULL;
        turn_built(t, rc);
        return;
    }
    if (t->follows)
        t->follows->users++;
    t->build.away = t->build.waits = true;
    s->jobs++;
    t->n_jobs++;
    if (!s->building)
        next(s);
}

void build_close(struct session *s)
{
    for (struct turn *t = s->turns; t; t = t->next)
        if (t->build.waits) {
            t->build.waits = false;
            over(s, t);
            t->in_ledger = ROW_NONE; /* one that waits in the ledger stays there for the next start */
            turn_fail(t, SESSION_SHUTDOWN, "the server is shutting down");
        }
}

/* admit.c - which waiting turn gets a place among the running ones, and when. Engine thread.
 *
 * Nothing is admitted that would push a running turn's pages out: it fits beside all that those have yet to bring into
 * pages, once idle contexts have gone. Nobody overtakes one that waits for pages.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define GROW_TOKENS 128

/* Tokens that those who run have yet to bring into pages. */
static int64_t tokens_to_come(const struct session *s)
{
    int64_t n = 0;
    for (const struct turn *t = s->turns; t; t = t->next)
        if (t->state == TURN_PLANNING || t->state == TURN_RUNNING) {
            int length = engine_seq_length(t->hot->seq);
            n += (int)t->context.n > length ? (int)t->context.n - length : 0;
        }
    return n;
}

/* Whether what the turn follows has left the pages and is not yet in the index: it will be found when its saving is
 * over. */
static bool being_saved(const struct session *s, const struct turn *t)
{
    const struct hot *best;
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        if (saving->conversation == t->found.conversation.id)
            return hot_shared(s, t, &best) < t->n_expected;
    return false;
}

/* A turn that was put aside comes back when those that run have room to go on beside it, lest it goes again at once. */
static int room_to_grow(const struct turn *t, int running)
{
    return t->n_aside ? running * GROW_TOKENS : 0;
}

void turn_admit(struct session *s)
{
    int running = 0, ending = 0;
    for (struct turn *t = s->turns; t; t = t->next) {
        running += t->state == TURN_PLANNING || t->state == TURN_RUNNING;
        ending += t->state == TURN_COMMITTING;
    }
    for (struct turn *t = s->turns; t; t = t->next) {
        if (t->state != TURN_WAITING)
            continue;
        if (t->cancelled && s->closing && t->request && !t->n_aside) {
            t->in_ledger = ROW_NONE; /* its row stays in the queue: the next start runs it */
            turn_fail(t, SESSION_SHUTDOWN, "the server is shutting down");
            continue;
        }
        if (t->cancelled) {
            turn_finish(t);
            continue;
        }
        if (running < s->max_running && !t->n_aside && being_saved(s, t))
            continue;
        /* Who is alone is let in whatever it takes; nobody overtakes one that waits for pages. */
        bool ready = !t->aside_saving && t->n_reading == 0;
        if (running >= s->max_running || !ready ||
            (running + ending > 0 && !hot_make_room(s, t, tokens_to_come(s) + room_to_grow(t, running)))) {
            running = s->max_running;
            continue;
        }
        running++;
        if (!t->n_aside)
            t->admitted_ns = t->restored_ns = session_now_ns();
        int most = t->generate ? (int)t->context.n - 1 : (int)t->context.n;
        t->hot = hot_acquire(s, t, most);
        int rc = t->stream ? 0 : answer_begin(t);
        if (!t->hot || rc) {
            if (rc == -EINVAL)
                turn_fail(t, SESSION_INVALID, "too many stop strings, or one that is too long");
            else
                turn_fail(t, SESSION_INTERNAL, "out of memory");
            running--;
            continue;
        }
        int hot = engine_seq_length(t->hot->seq);
        t->plan_most = most;
        t->state = TURN_RUNNING;
        bool complete = hot >= most || t->n_plan > 0; /* or it has all it had in memory */
        if (!t->n_aside) {
            t->receipt.hot = t->n_counted = hot;
            /* Continuing what is hot needs no index; anything else may share something that is stored. */
            complete |= t->n_expected > 0 && hot >= t->n_expected;
            if (t->request)
                accept_running(t);
        }
        if (complete)
            continue;
        if (lookup_plan(t) == 0) {
            t->state = TURN_PLANNING;
            s->jobs++;
            t->n_jobs++;
        }
    }
}

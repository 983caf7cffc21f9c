/* aside.c - a running turn gives its pages up, so that older ones can go on, and waits for a place again. Engine
 * thread.
 *
 * What it has computed is kept: in segments, where it is to be stored, as if it had ended here; otherwise in memory, in
 * the form in which segments come back. When there is room it is admitted like a new turn, whose prompt is all it has
 * until now, and goes on with the bits that it would have had. What could not be kept is computed again, and the
 * receipt says so.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

void plan_release(struct planned *p)
{
    struct session *s = p->turn->session;
    if (p->kept && p->payload)
        s->aside_bytes -= (size_t)p->found.count * s->info->kv_token_bytes;
    (p->split ? engine_kv_buffer_release : free)(p->payload);
    p->payload = NULL;
    storage_stored_free(p->result.stored);
    p->result.stored = NULL;
}

void plan_drop(struct turn *t)
{
    for (int i = 0; i < t->plan.n; i++) {
        plan_release(&t->plan.parts[i]);
        free(t->plan.parts[i].found.label);
    }
    free(t->plan.parts);
    t->plan.parts = NULL;
    t->plan.n = t->plan.next = 0;
    t->plan.early = EARLY_NONE;
}

/* Of a turn that leaves nothing on disk: its rows go to memory. False: not all of them found room there. */
static bool keep_in_memory(struct turn *t)
{
    struct session *s = t->session;
    int length = engine_seq_length(t->hot->seq);
    size_t bytes = (size_t)length * s->info->kv_token_bytes;
    int n = (length + SESSION_SEGMENT_TOKENS - 1) / SESSION_SEGMENT_TOKENS;
    if (bytes > s->aside_most - s->aside_bytes)
        return false;
    t->plan.parts = calloc((size_t)n + 1, sizeof *t->plan.parts);
    for (int i = 0; t->plan.parts && i < n; i++) {
        int first = i * SESSION_SEGMENT_TOKENS;
        int count = length - first < SESSION_SEGMENT_TOKENS ? length - first : SESSION_SEGMENT_TOKENS;
        struct planned *p = &t->plan.parts[t->plan.n++];
        *p = (struct planned){.found = {.first = (uint32_t)first, .count = (uint32_t)count},
                              .first = first,
                              .used = count,
                              .state = PLAN_READY,
                              .kept = true,
                              .result = {.tier = STORAGE_TIER_RAM},
                              .turn = t};
        p->found.label = malloc((size_t)count * sizeof(engine_token));
        p->payload = malloc((size_t)count * s->info->kv_token_bytes);
        s->aside_bytes += p->payload ? (size_t)count * s->info->kv_token_bytes : 0;
        if (!p->found.label || !p->payload || engine_kv_export(t->hot->seq, first, count, p->payload)) {
            plan_drop(t);
            return false;
        }
        memcpy(p->found.label, t->context.ids + first, (size_t)count * sizeof(engine_token));
    }
    return t->plan.parts != NULL;
}

static void kept(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    t->aside.saving = false;
}

static void kept_done(void *arg, int rc)
{
    (void)rc; /* what is not found is computed again */
    turn_back(arg, kept);
}

void aside_put(struct turn *t)
{
    static const uint8_t none[STORAGE_KEY_BYTES];
    struct session *s = t->session;
    struct hot *h = t->hot;
    uint8_t last[STORAGE_KEY_BYTES];
    int rc = 0, end;
    plan_drop(t);
    hot_mend(h);
    end = engine_seq_length(h->seq);
    if (h->in_ledger) {
        rc = hot_save(s, h, end >= t->aside.end, last);
        if (rc && end > t->aside.end)
            t->aside.rc = rc;
        if (!rc)
            rc = storage_kv_flush(s->storage, none, kept_done, t);
        if (!rc) {
            t->aside.saving = true;
            s->jobs++;
            t->n_jobs++;
        }
        if (!rc && end >= t->aside.end) { /* all that it had when it was here before is in this chain */
            memcpy(t->aside.last, last, sizeof t->aside.last);
            t->aside.end = end;
            t->aside.rc = 0;
            hot_drop_cut(s, h);
        }
    } else if (!keep_in_memory(t)) {
        rc = -ENOMEM;
    }
    if (rc)
        session_log(s, LOG_WARNING, "a turn that gives way could not be saved (%s): it will be computed again",
                    strerror(-rc));
    t->hot = NULL;
    hot_free(s, h);
    t->aside.n++;
    t->state = TURN_WAITING;
    s->status.turns_put_aside++;
    turn_tell_queue(t);
}

/* Whether `a` gives way before `b`, which is older: warm-ups, then what nobody waits for, then of the owner who has the
 * most the youngest. */
static bool before(const struct turn *a, const struct turn *b)
{
    if (a->ask.generate != b->ask.generate)
        return !a->ask.generate;
    if (a->ask.background != b->ask.background)
        return a->ask.background;
    return turns_running(a->session, a->found.owner.id) >= turns_running(b->session, b->found.owner.id);
}

/* A turn that is alone finds no pages. Those that others have just given back are there next time; otherwise it is a
 * stored segment that reaches beyond what the turn wants of it, and that is computed; a context always fits. */
static bool alone(struct turn *t)
{
    struct session *s = t->session;
    struct planned *p = t->plan.next < t->plan.n ? &t->plan.parts[t->plan.next] : NULL;
    if (s->n_idle || engine_kv_fits(s->engine, t->hot->seq, p ? (int)p->found.count : 1))
        return false;
    if (p && p->state == PLAN_READY) {
        p->state = PLAN_FAILED;
        p->result.rc = -ENOSPC;
    } else if (!p) {
        turn_step_failed(t, -ENOSPC);
    }
    return true;
}

bool aside_give_way(struct session *s)
{
    struct turn *wanting = NULL, *victim = NULL;
    bool others = false;
    for (struct turn *t = s->turns; t; t = t->next) {
        others |= t->state == TURN_PLANNING || t->state == TURN_COMMITTING;
        if (t->state != TURN_RUNNING)
            continue;
        if (t->place.out_of_pages && !wanting)
            wanting = t;
        others |= !t->place.out_of_pages;
        if (!victim || before(t, victim))
            victim = t;
    }
    if (!wanting)
        return false;
    if (victim == wanting && !others)
        return alone(wanting);
    /* Who is about to be over gives pages back by itself, and a turn is left alone while others work on its segments.
     */
    for (struct turn *t = s->turns; t; t = t->next)
        if (t->state == TURN_COMMITTING && t->hot)
            return false;
    if (victim == wanting || victim->plan.n_reading || victim->end.cancelled)
        return false;
    aside_put(victim);
    return true;
}

/* step.c - one forward step over the running turns: who is in it, the step, what comes out of it. Engine thread.
 *
 * Which turn gets how much is decided by schedule.c. Since rows do not depend on what shares a step, the batch is made
 * for speed and fairness alone. Which tokens the forms of answers allow is found out beside the pass, and known when
 * tokens are picked behind it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

/* Whether nobody waits for it: neither for its answer, nor for what a turn that somebody waits for begins with as well
 * (admit.c). */
static bool is_background(const struct turn *t)
{
    bool waited_for = !t->ask.background;
    for (const struct turn *o = t->session->turns; o && !waited_for; o = o->next)
        waited_for = o->state == TURN_WAITING && o->place.twin == t && !o->ask.background;
    return !waited_for;
}

/* What the scheduler is to know of a turn. */
static struct schedule_turn describe(struct turn *t)
{
    int first = 0, wants = turn_wants(t, &first);
    struct schedule_turn d = {
        .owner = t->found.owner.id, .background = is_background(t), .position = first, .wants = wants > 0 ? wants : 0};
    if (first < t->n_prompt)
        d.rest = t->n_prompt - first;
    else
        d.rest = wants > 1 ? wants : 0;
    return d;
}

/* Gives an item's pages room by dropping idle contexts. */
static bool make_room(struct session *s, const struct engine_step_item *item)
{
    while (!engine_kv_fits(s->engine, item->seq, item->n))
        if (!hot_evict_one(s))
            return false;
    return true;
}

struct step {
    struct engine_step_item items[SCHEDULE_TURNS];
    struct turn *turns[SCHEDULE_TURNS]; /* whose they are */
    struct engine_pick picks[SCHEDULE_TURNS];
    int forms[SCHEDULE_TURNS]; /* of an item whose pick a form binds: 0, or why there is no mask */
    int n;
};

static bool is_bound(const struct step *st, int i)
{
    return st->items[i].pick && (st->turns[i]->form.of_answer || st->turns[i]->form.of_calls);
}

/* Beside the pass. */
static void make_masks(void *arg)
{
    struct step *st = arg;
    for (int i = 0; i < st->n; i++)
        if (is_bound(st, i))
            st->forms[i] = form_mask(st->turns[i], &st->items[i].pick->mask);
}

/* Fills in what the step is. Returns how many items it has. */
static int choose(struct session *s, struct step *st)
{
    struct turn **turns = st->turns;
    struct schedule_turn parts[SCHEDULE_TURNS];
    int n = 0, n_items = 0, n_picks = 0;
    for (struct turn *t = s->turns; t && n < SCHEDULE_TURNS; t = t->next)
        if (t->state == TURN_RUNNING) {
            parts[n] = describe(t);
            turns[n++] = t;
        }
    const struct schedule_limits limits = {.max_tokens = s->info->step_tokens,
                                           .max_turns = SCHEDULE_TURNS,
                                           .max_ms = s->max_step_ms,
                                           .spent_ms = (double)(session_now_ns() - s->last_step_ns) / 1e6};
    (void)schedule_step(&s->cost, &limits, &s->accounts, parts, n);
    for (int i = 0; i < n; i++) {
        struct turn *t = turns[i];
        bool picks_one = t->ask.generate && parts[i].position + parts[i].n == (int)t->context.n;
        if (parts[i].n == 0 || (picks_one && n_picks == s->info->step_picks))
            continue;
        if (picks_one && answer_open(t)) {
            turn_fail(t, SESSION_INTERNAL, "out of memory");
            continue;
        }
        struct engine_step_item *item = &st->items[n_items];
        *item = (struct engine_step_item){
            .seq = t->hot->seq, .tokens = t->context.ids + parts[i].position, .n = parts[i].n};
        if (!make_room(s, item)) {
            t->place.out_of_pages = true;
            continue;
        }
        if (picks_one) {
            item->pick = &st->picks[n_picks++];
            *item->pick = (struct engine_pick){.settings = &t->sampling,
                                               .bias = t->bias,
                                               .n_bias = t->n_bias,
                                               .logprobs = t->ask.logprobs,
                                               .n_top = t->n_top};
        }
        st->forms[n_items] = 0;
        turns[n_items++] = t;
    }
    return st->n = n_items;
}

/* The pass, and what is made beside it. */
static int run(struct session *s, struct step *st)
{
    bool bound = false;
    for (int i = 0; i < st->n; i++)
        bound = bound || is_bound(st, i);
    if (bound)
        engine_beside_start(s->beside, make_masks, st);
    int rc = engine_step_start(s->engine, st->items, st->n);
    if (bound)
        engine_beside_wait(s->beside);
    return rc ? rc : engine_step_wait(s->engine, NULL);
}

static void learn(struct session *s, const struct engine_step_item *items, int n_items, double ms)
{
    double seen = 0.0;
    int rows = 0;
    for (int i = 0; i < n_items; i++)
        if (items[i].result == 0) {
            rows += items[i].n;
            seen += schedule_seen(engine_seq_length(items[i].seq) - items[i].n, items[i].n);
        }
    schedule_learn(&s->cost, rows, seen, ms);
}

/* What came of item i; rc: of the whole step, which ran from `start` to `now`. */
static void after_step(const struct step *st, int i, int rc, int64_t start, int64_t now)
{
    struct turn *t = st->turns[i];
    int result = rc ? rc : st->items[i].result;
    if (result == -ENOSPC) { /* its neighbours took the pages: next time */
        t->place.out_of_pages = true;
        return;
    }
    if (result) {
        turn_step_failed(t, result);
        return;
    }
    if (t->prefill_ns == 0)
        t->prefill_ns = start;
    turn_after_step(t, st->items[i].n, st->forms[i] ? NULL : st->items[i].pick, now);
    form_failed(t, st->forms[i]);
}

bool step_run(struct session *s)
{
    struct step st;
    if (choose(s, &st) == 0)
        return false;

    int64_t start = session_now_ns(), cpu = session_cpu_ns();
    int rc = run(s, &st);
    int64_t now = session_now_ns();
    s->status.engine_steps++;
    s->step_cpu_ns += session_cpu_ns() - cpu;
    s->status.step_cpu_us = (uint64_t)(s->step_cpu_ns / 1000);
    s->last_step_ns = now;
    s->last_progress_ms = now / 1000000;
    if (rc == 0)
        learn(s, st.items, st.n, (double)(now - start) / 1e6);
    else if (engine_failure(s->engine))
        s->status.failed = true;
    if (s->events && st.n > 1)
        s->events(s->events_arg, true);
    for (int i = 0; i < st.n; i++)
        after_step(&st, i, rc, start, now);
    if (s->events && st.n > 1)
        s->events(s->events_arg, false);
    return true;
}

/* step.c - one forward step over the running turns: who is in it, the step, what comes out of it. Engine thread.
 *
 * Which turn gets how much is decided by schedule.c. Since rows do not depend on what shares a step, the batch is made
 * for speed and fairness alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

/* What the scheduler is to know of a turn. */
static struct schedule_turn describe(struct turn *t)
{
    int first = 0, wants = turn_wants(t, &first);
    struct schedule_turn d = {
        .owner = t->found.owner.id, .background = t->background, .position = first, .wants = wants > 0 ? wants : 0};
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

/* The step's items and whose they are. Returns how many. */
static int choose(struct session *s, struct engine_step_item *items, struct turn **turns, struct engine_pick *picks)
{
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
    (void)schedule_step(&s->cost, &limits, parts, n);
    for (int i = 0; i < n; i++) {
        struct turn *t = turns[i];
        bool picks_one = t->generate && parts[i].position + parts[i].n == (int)t->context.n;
        if (parts[i].n == 0 || (picks_one && n_picks == s->info->step_picks))
            continue;
        struct engine_step_item *item = &items[n_items];
        *item = (struct engine_step_item){
            .seq = t->hot->seq, .tokens = t->context.ids + parts[i].position, .n = parts[i].n};
        if (!make_room(s, item)) {
            t->out_of_pages = true;
            continue;
        }
        if (picks_one) {
            const uint32_t *mask;
            if (!form_mask(t, &mask))
                continue;
            item->pick = &picks[n_picks++];
            *item->pick = (struct engine_pick){.settings = &t->sampling,
                                               .mask = mask,
                                               .bias = t->bias,
                                               .n_bias = t->n_bias,
                                               .logprobs = t->logprobs,
                                               .n_top = t->n_top};
        }
        turns[n_items++] = t;
    }
    return n_items;
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

bool step_run(struct session *s)
{
    struct engine_step_item items[SCHEDULE_TURNS];
    struct turn *turns[SCHEDULE_TURNS];
    struct engine_pick picks[SCHEDULE_TURNS];
    int n_items = choose(s, items, turns, picks);
    if (n_items == 0)
        return false;

    int64_t start = session_now_ns(), cpu = session_cpu_ns();
    int rc = engine_step_start(s->engine, items, n_items);
    if (rc == 0)
        rc = engine_step_wait(s->engine, NULL);
    int64_t now = session_now_ns();
    s->status.engine_steps++;
    s->step_cpu_ns += session_cpu_ns() - cpu;
    s->status.step_cpu_us = (uint64_t)(s->step_cpu_ns / 1000);
    s->last_step_ns = now;
    s->last_progress_ms = now / 1000000;
    if (rc == 0)
        learn(s, items, n_items, (double)(now - start) / 1e6);
    else if (engine_failure(s->engine))
        s->status.failed = true;
    for (int i = 0; i < n_items; i++) {
        int result = rc ? rc : items[i].result;
        if (result == -ENOSPC) { /* its neighbours took the pages: next time */
            turns[i]->out_of_pages = true;
            continue;
        }
        if (result) {
            turn_step_failed(turns[i], result);
            continue;
        }
        if (turns[i]->prefill_ns == 0)
            turns[i]->prefill_ns = start;
        turn_after_step(turns[i], items[i].n, items[i].pick, now);
    }
    return true;
}

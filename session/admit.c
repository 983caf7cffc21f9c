/* admit.c - which waiting turn gets a place among the running ones, and when. Engine thread.
 *
 * Nothing is admitted that would push a running turn's pages out: it fits beside all that those have yet to bring into
 * pages, once idle contexts have gone. Nobody overtakes one that waits for pages. Warm-ups and background turns get the
 * places that others leave, and give them back. Who has nothing running gets a place, or room, of whoever has most.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

#define GROW_TOKENS 128
#define TWIN_TOKENS 64 /* so much of a prompt is worth waiting for until another turn has computed it, */
#define SAME_TOKENS 16 /* or so much where that is all of it */

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
    return t->aside.n ? running * GROW_TOKENS : 0;
}

/* ---- the same new prompt ---- */

static int common_prompt(const struct turn *a, const struct turn *b)
{
    int n = a->n_prompt < b->n_prompt ? a->n_prompt : b->n_prompt, i = 0;
    while (i < n && a->context.ids[i] == b->context.ids[i])
        i++;
    return i;
}

static bool prefills(const struct turn *t)
{
    return t->state == TURN_PLANNING || (t->state == TURN_RUNNING && engine_seq_length(t->hot->seq) < t->n_prompt);
}

/* Whether a running turn of the same owner is computing what this one's prompt begins with, too. It is computed once,
 * and this one goes on from there. */
static bool being_computed(struct session *s, struct turn *t)
{
    const struct hot *best;
    int have = -1;
    if (t->aside.n)
        return false;
    for (struct turn *o = s->turns; !t->place.twin && o != t; o = o->next) {
        if (!prefills(o) || o->found.owner.id != t->found.owner.id)
            continue;
        if (have < 0)
            have = hot_shared(s, t, &best);
        int common = common_prompt(o, t), length = engine_seq_length(o->hot->seq);
        int least = common == t->n_prompt ? SAME_TOKENS : TWIN_TOKENS;
        if (common - (have > length ? have : length) >= least) {
            t->place.twin = o;
            t->place.twin_common = common;
            t->plan.early = t->plan.early == EARLY_PLANNED ? EARLY_STALE : t->plan.early; /* there will be more */
        }
    }
    if (t->place.twin && prefills(t->place.twin) && engine_seq_length(t->place.twin->hot->seq) < t->place.twin_common)
        return true;
    t->place.twin = NULL;
    return false;
}

/* ---- what is restored while a turn waits ---- */

/* Whether it lacks nothing but a place. */
static bool ready(const struct turn *t)
{
    return !t->aside.saving && t->plan.early != EARLY_PLANNING &&
           (t->plan.n_reading == 0 || t->plan.early == EARLY_PLANNED);
}

/* Those that wait and whose past is not in pages: which segments they want is looked for now, and read as far as there
 * is memory for it (restore.c), so that they are put into pages when there is a place. */
static void plan_early(struct session *s)
{
    const struct hot *best;
    int n = 0;
    for (struct turn *t = s->turns; t && n < s->max_running; t = t->next) {
        if (t->state != TURN_WAITING || t->end.cancelled)
            continue;
        n++;
        if (t->plan.early != EARLY_NONE || t->plan.n || t->aside.saving || t->n_expected == 0 || being_saved(s, t) ||
            being_computed(s, t) || hot_shared(s, t, &best) >= t->n_expected)
            continue;
        t->plan.most = (int)t->context.n - t->ask.generate;
        if (lookup_plan(t))
            continue;
        t->plan.early = EARLY_PLANNING;
        s->jobs++;
        t->n_jobs++;
    }
}

void turn_planned_early(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    if (t->state != TURN_WAITING)
        return;
    int expected = t->n_expected < t->plan.most ? t->n_expected : t->plan.most;
    bool whole = !t->place.twin && restore_end(t) >= expected;
    if (!whole)
        plan_drop(t);
    t->plan.early = whole ? EARLY_PLANNED : EARLY_STALE;
}

/* ---- places ---- */

/* Who runs: all, those that somebody waits for an answer of, and each owner's. */
struct places {
    int all, answers, ending;
    int n_owners;
    struct {
        int64_t owner;
        int running;
    } owners[SCHEDULE_TURNS];
};

static int *places_of(struct places *p, int64_t owner)
{
    int i = 0;
    while (i < p->n_owners && p->owners[i].owner != owner)
        i++;
    if (i == p->n_owners) {
        if (i == SCHEDULE_TURNS)
            return &p->owners[0].running;
        p->owners[p->n_owners].running = 0;
        p->owners[p->n_owners++].owner = owner;
    }
    return &p->owners[i].running;
}

static void count(const struct session *s, struct places *p)
{
    p->all = p->answers = p->ending = p->n_owners = 0;
    for (const struct turn *t = s->turns; t; t = t->next) {
        p->ending += t->state == TURN_COMMITTING;
        if (t->state != TURN_PLANNING && t->state != TURN_RUNNING)
            continue;
        p->all++;
        p->answers += t->ask.generate;
        ++*places_of(p, t->found.owner.id);
    }
}

/* Who is next: those that somebody waits for before the background, then the owner with the fewest running turns, then
 * the oldest. NULL: nobody who could be. */
static struct turn *next_waiting(struct session *s, struct places *p)
{
    struct turn *next = NULL;
    int fewest = 0;
    for (struct turn *t = s->turns; t; t = t->next) {
        if (t->state != TURN_WAITING || t->place.passed || t->end.cancelled)
            continue;
        int running = *places_of(p, t->found.owner.id);
        if (next && (t->ask.background > next->ask.background ||
                     (t->ask.background == next->ask.background && running >= fewest)))
            continue;
        next = t;
        fewest = running;
    }
    return next;
}

bool turn_gives_way(const struct turn *t)
{
    return t->state == TURN_RUNNING && t->ask.background && t->plan.n_reading == 0 && !t->end.cancelled;
}

/* A turn that somebody waits for finds no place or no room, and a warm-up or a background turn (of this owner; 0: of
 * anybody) has it: that one is put aside. True: it was. */
static bool take_from_background(struct session *s, int64_t owner)
{
    struct turn *last = NULL;
    for (struct turn *t = s->turns; t; t = t->next)
        if (turn_gives_way(t) && (!owner || t->found.owner.id == owner) &&
            !(last && t->ask.generate && !last->ask.generate))
            last = t;
    if (last)
        aside_put(last);
    return last != NULL;
}

int turns_running(const struct session *s, int64_t owner)
{
    int n = 0;
    for (const struct turn *t = s->turns; t; t = t->next)
        n += (t->state == TURN_PLANNING || t->state == TURN_RUNNING) && t->found.owner.id == owner;
    return n;
}

/* The owner of `t` has nothing running, and others have several turns: the youngest of whoever has most is put aside.
 * True: it was. */
static bool take_from_others(struct session *s, const struct turn *t)
{
    struct turn *last = NULL;
    int most = 2;
    if (!t->ask.generate || turns_running(s, t->found.owner.id))
        return false;
    for (struct turn *other = s->turns; other; other = other->next) {
        int running = other->state == TURN_RUNNING && other->plan.n_reading == 0 && !other->end.cancelled
                          ? turns_running(s, other->found.owner.id)
                          : 0;
        if (running >= most) {
            most = running;
            last = other;
        }
    }
    if (last)
        aside_put(last);
    return last != NULL;
}

/* Whether there is a place and room for it. */
static bool fits(struct session *s, const struct turn *t, const struct places *p)
{
    if ((t->ask.generate ? p->answers : p->all) >= s->max_running || p->all >= SCHEDULE_TURNS)
        return false;
    /* Who is alone is let in whatever it takes. */
    return p->all + p->ending == 0 || hot_make_room(s, t, tokens_to_come(s) + room_to_grow(t, p->all));
}

static void admit(struct turn *t)
{
    struct session *s = t->session;
    if (!t->aside.n)
        t->admitted_ns = t->restored_ns = session_now_ns();
    int most = t->ask.generate ? (int)t->context.n - 1 : (int)t->context.n;
    if (t->plan.early == EARLY_STALE)
        plan_drop(t);
    t->hot = hot_acquire(s, t, most);
    int rc = t->stream ? 0 : answer_begin(t);
    if (!t->hot || rc) {
        if (rc == -EINVAL)
            turn_fail(t, SESSION_INVALID, "too many stop strings, or one that is too long");
        else
            turn_fail(t, SESSION_INTERNAL, "out of memory");
        return;
    }
    if (t->hot->in_ledger && t->aside.n) /* it may end in an unfinished segment, which nothing holds */
        memcpy(t->hot->aside, t->aside.last, sizeof t->hot->aside);
    int hot = engine_seq_length(t->hot->seq);
    t->plan.most = most;
    t->state = TURN_RUNNING;
    bool complete = hot >= most || t->plan.n > 0; /* or it has all it had in memory */
    if (hot > t->n_counted) {
        t->receipt.hot += hot - t->n_counted;
        t->n_counted = hot;
    }
    if (!t->aside.n) {
        /* Continuing what is hot needs no index; anything else may share something that is stored, and so may a branch.
         */
        complete |= t->n_expected > 0 && hot >= t->n_expected && !t->found.branches;
        if (t->request)
            accept_running(t);
    }
    if (!complete && lookup_plan(t) == 0) {
        t->state = TURN_PLANNING;
        s->jobs++;
        t->n_jobs++;
    }
}

/* Whether its owner may have it in pages as well. What of that owner's the background has in use makes room for one
 * that somebody waits for, where that is enough. */
static bool make_within(struct session *s, const struct turn *t, struct places *p)
{
    while (!hot_within(s, t)) {
        if (t->ask.background || !ready(t) || !hot_may_be_within(s, t, true) ||
            !take_from_background(s, t->found.owner.id))
            return false;
        count(s, p);
    }
    return true;
}

static void let_in(struct session *s)
{
    struct places places;
    count(s, &places);
    for (struct turn *t; (t = next_waiting(s, &places));) {
        /* These wait for something of their own, and others may pass; but who comes back keeps its turn. */
        bool own = t->aside.n ? t->ask.background && !ready(t) : being_saved(s, t) || being_computed(s, t);
        if (own || ((t->ask.background || !t->aside.n) && !make_within(s, t, &places))) {
            t->place.passed = true;
            continue;
        }
        if (ready(t) && fits(s, t, &places)) {
            admit(t);
            count(s, &places);
            continue;
        }
        if (t->ask.background || !ready(t) || !(take_from_background(s, 0) || take_from_others(s, t)))
            return; /* nobody overtakes one that waits for pages */
        count(s, &places);
    }
}

void turn_admit(struct session *s)
{
    bool waits = false;
    for (struct turn *t = s->turns; t; t = t->next) {
        if (t->state != TURN_WAITING)
            continue;
        if (t->end.cancelled && s->closing && t->request && !t->aside.n) {
            t->in_ledger = ROW_NONE; /* its row stays in the queue: the next start runs it */
            turn_fail(t, SESSION_SHUTDOWN, "the server is shutting down");
        } else if (t->end.cancelled && t->plan.n_reading == 0) {
            turn_finish(t);
        } else if (!t->end.cancelled) {
            t->place.passed = false;
            waits = true;
        }
    }
    if (!waits)
        return;
    let_in(s);
    plan_early(s);
}

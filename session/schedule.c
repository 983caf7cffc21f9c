/* schedule.c - see schedule.h. */
#include <math.h>
#include <string.h>

#include "session/schedule.h"

#define KEPT          0.9 /* weight of the steps before when another of their size comes */
#define KEPT_OTHERS   0.8 /* of those of other sizes, until they weigh as much as: */
#define WEIGHT_LEAST  0.5
#define SLOWER_NEWEST 0.5 /* weight of the newest step in how slow the machine is now */
#define FASTER_NEWEST 0.2 /* the same, when it has become faster: too long a step is worse than too short a one */
#define SLOWER_MOST   4.0
#define FIRST_ROWS    64 /* as long as nothing is known */
#define LATE_FIRST    1.2
#define LATE_MOST     1.6
#define LATE_UP       0.05
#define LATE_OF       100 /* one of so many long steps may be later */
#define LONG          2.0 /* times what a step takes whatever its rows */
#define MS_DEFAULT    100.0
#define DECODE_STEPS  4 /* the default is at least as long as so many of them */
#define OLDEST_SHARE  0.25
#define LEAD_STEPS    3.0 /* an owner may be ahead of another who waits by so many steps' prompts, */
#define LEAD_ENDS     1.0 /* and by so many more for a prompt that ends */
#define ENDED_SHARE   0.5 /* of the time, in a step in which a prompt ends */
#define TRUSTED       2   /* times the rows seen so far: beyond that the prediction is not believed */

/* ---- cost ---- */

double schedule_seen(int position, int n)
{
    return (double)n * position + 0.5 * n * (n + 1.0);
}

double schedule_ms(const struct schedule_cost *c, int rows, double seen)
{
    return c->most_rows ? c->ms[0] + c->ms[1] * rows + c->ms[2] * seen : 0.0;
}

/* Solves the equations of the factors in `mask`; false: they do not determine them. */
static bool solve(double a[SCHEDULE_FACTORS][SCHEDULE_FACTORS + 1], unsigned mask, double x[SCHEDULE_FACTORS])
{
    double m[SCHEDULE_FACTORS][SCHEDULE_FACTORS + 1];
    int at[SCHEDULE_FACTORS] = {0}, n = 0;
    for (int i = 0; i < SCHEDULE_FACTORS; i++)
        if (mask & (1u << i))
            at[n++] = i;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++)
            m[i][j] = a[at[i]][at[j]];
        m[i][n] = a[at[i]][SCHEDULE_FACTORS];
    }
    for (int i = 0; i < n; i++) { /* the matrix is a Gram matrix: its pivots are positive, or it is singular */
        if (m[i][i] <= 1e-9 * a[at[i]][at[i]])
            return false;
        for (int r = 0; r < n; r++) {
            double f = r == i ? 0.0 : m[r][i] / m[i][i];
            for (int j = i; j <= n; j++)
                m[r][j] -= f * m[i][j];
        }
    }
    for (int i = 0; i < SCHEDULE_FACTORS; i++)
        x[i] = 0.0;
    for (int i = 0; i < n; i++)
        x[at[i]] = m[i][n] / m[i][i];
    return true;
}

/* How much of the squares' sum a solution explains. */
static double explained(double a[SCHEDULE_FACTORS][SCHEDULE_FACTORS + 1], const double x[SCHEDULE_FACTORS])
{
    double sum = 0.0;
    for (int i = 0; i < SCHEDULE_FACTORS; i++) {
        sum += 2.0 * x[i] * a[i][SCHEDULE_FACTORS];
        for (int j = 0; j < SCHEDULE_FACTORS; j++)
            sum -= x[i] * a[i][j] * x[j];
    }
    return sum;
}

/* How late a long step was, against what had been expected of it. Up by so much when it was later than was thought,
 * down by a small part of that when it was not: it comes to rest where the one is as rare as the other is small,
 * whatever the times are like. */
static void learn_late(struct schedule_cost *c, double expected, double ms)
{
    double late = c->late > 0.0 ? c->late : LATE_FIRST;
    if (expected <= 0.0 || expected < LONG * c->ms[0])
        return;
    late += ms > late * expected ? LATE_UP : -LATE_UP / LATE_OF;
    c->late = late < 1.0 ? 1.0 : late > LATE_MOST ? LATE_MOST : late;
}

void schedule_learn(struct schedule_cost *c, int rows, double seen, double ms)
{
    if (rows <= 0 || !(ms > 0.0) || !(seen >= 0.0))
        return;
    learn_late(c, schedule_ms(c, rows, seen), ms);
    int size = 0;
    while (size < SCHEDULE_SIZES - 1 && rows >> (size + 1))
        size++;
    /* Of the relative error: each row of the system is divided by its time. The third factor is that of rows with the
     * dearest attention there can be: where it is not negative and the second is not, attention is within its bound. */
    const double x[SCHEDULE_FACTORS + 1] = {1.0 / ms, rows / ms, (rows + c->attention_most * seen) / ms, 1.0};
    double all[SCHEDULE_FACTORS][SCHEDULE_FACTORS + 1] = {{0}};
    for (int k = 0; k < SCHEDULE_SIZES; k++) {
        double kept = k == size ? KEPT : c->weight[k] > WEIGHT_LEAST ? KEPT_OTHERS : 1.0;
        c->weight[k] = kept * c->weight[k] + (k == size);
        for (int i = 0; i < SCHEDULE_FACTORS; i++)
            for (int j = 0; j <= SCHEDULE_FACTORS; j++) {
                c->sums[k][i][j] = kept * c->sums[k][i][j] + (k == size ? x[i] * x[j] : 0.0);
                all[i][j] += c->sums[k][i][j];
            }
    }
    if (rows > c->most_rows)
        c->most_rows = rows;
    double best = -1.0, fit[SCHEDULE_FACTORS] = {0.0};
    for (unsigned mask = 1; mask < 1u << SCHEDULE_FACTORS; mask++) {
        double some[SCHEDULE_FACTORS];
        if (!solve(all, mask, some))
            continue;
        bool fits = true;
        for (int i = 0; i < SCHEDULE_FACTORS; i++)
            fits &= some[i] >= 0.0;
        double e = fits ? explained(all, some) : -1.0;
        if (e > best) {
            best = e;
            memcpy(fit, some, sizeof some);
        }
    }
    fit[1] += fit[2];
    fit[2] *= c->attention_most;
    double expected = fit[0] + fit[1] * rows + fit[2] * seen;
    double slower = expected > 0.0 ? ms / expected : 1.0;
    if (slower > SLOWER_MOST)
        slower = SLOWER_MOST;
    double newest = slower > c->slower ? SLOWER_NEWEST : FASTER_NEWEST;
    c->slower = c->slower > 0.0 ? c->slower + newest * (slower - c->slower) : 1.0;
    for (int i = 0; i < SCHEDULE_FACTORS; i++)
        c->ms[i] = c->slower * fit[i];
}

/* ---- shares ---- */

struct share {
    const struct schedule_cost *c;
    struct schedule_accounts *accounts;
    struct schedule_turn *turns;
    int account[SCHEDULE_TURNS]; /* of a prompt's owner */
    int n;
    double ms, step_ms;             /* that are left of the step, and that prompts had of it */
    int tokens, step_tokens, items; /* likewise; turns that are left of it */
    bool brief;                     /* a prompt ends in it */
};

/* Tokens behind `position` that run in `ms`, at most `most`. */
static int tokens_in(const struct schedule_cost *c, int position, double ms, int most)
{
    if (ms <= 0.0)
        return 0;
    double row = c->ms[1] + c->ms[2] * (position + 0.5), square = 0.5 * c->ms[2];
    /* ms = row * n + square * n * n, for the positive n; the form that survives square = 0 */
    double under = row * row + 4.0 * square * ms;
    double n = row > 0.0 || square > 0.0 ? 2.0 * ms / (row + sqrt(under)) : most;
    return n < most ? (int)n : most;
}

static double prompt_ms(const struct schedule_cost *c, int position, int n)
{
    return c->ms[1] * n + c->ms[2] * schedule_seen(position, n);
}

/* Tokens that a prompt can have of `part` of what prompts get of a step. */
static int may_have(const struct share *s, const struct schedule_turn *t, double part)
{
    double ms = part * s->step_ms < s->ms ? part * s->step_ms : s->ms;
    double tokens = part * s->step_tokens < s->tokens ? part * s->step_tokens : s->tokens;
    if (part <= 0.0 || (t->n == 0 && s->items == 0))
        return 0;
    int most = t->wants - t->n < tokens ? t->wants - t->n : (int)tokens;
    return tokens_in(s->c, t->position + t->n, ms, most);
}

/* Gives a prompt n tokens, and writes down what its owner had. */
static void give(struct share *s, int i, int n)
{
    struct schedule_turn *t = &s->turns[i];
    double ms = prompt_ms(s->c, t->position + t->n, n);
    double part = (double)n / s->step_tokens;
    if (s->step_ms > 0.0 && ms / s->step_ms > part)
        part = ms / s->step_ms;
    s->accounts->of[s->account[i]].steps += part;
    s->items -= t->n == 0;
    s->tokens -= n;
    s->ms -= ms;
    t->n += n;
}

static bool open(const struct schedule_turn *t, bool background)
{
    return t->rest > 0 && t->n < t->wants && t->background == background;
}

/* What the owner who had least of those with prompts had. */
static double had_least(const struct share *s, bool background)
{
    double least = -1.0;
    for (int i = 0; i < s->n; i++) {
        double had = open(&s->turns[i], background) ? s->accounts->of[s->account[i]].steps : least;
        if (least < 0.0 || had < least)
            least = had;
    }
    return least;
}

/* The prompt that is nearest to its first token, of an owner who is not too far ahead: it, and what it gets. false:
 * nobody can have anything. */
static bool give_nearest(struct share *s, bool background)
{
    double least = had_least(s, background);
    int best = -1, gets = 0, left = 0;
    for (int i = 0; i < s->n && least >= 0.0; i++) {
        const struct schedule_turn *t = &s->turns[i];
        if (!open(t, background) || (best >= 0 && t->rest - t->n >= left))
            continue;
        double part = LEAD_STEPS + least - s->accounts->of[s->account[i]].steps;
        int n = may_have(s, t, part + LEAD_ENDS);
        if (n < t->rest - t->n)
            n = may_have(s, t, part);
        if (n > 0) {
            best = i;
            gets = n;
            left = t->rest - t->n;
        }
    }
    if (best >= 0)
        give(s, best, gets);
    return best >= 0;
}

/* A prompt that ends has its first token behind this step, whatever else is in it: then there is less. */
static void be_brief(struct share *s)
{
    if (s->brief)
        return;
    for (int i = 0; i < s->n && !s->brief; i++)
        s->brief = s->turns[i].rest > 0 && s->turns[i].n == s->turns[i].rest && !s->turns[i].background;
    if (s->brief) {
        s->ms -= (1.0 - ENDED_SHARE) * s->step_ms;
        s->tokens -= (int)((1.0 - ENDED_SHARE) * s->step_tokens);
    }
}

/* The oldest prompt's quarter: a token, however short the time is. */
static void give_oldest(struct share *s, int oldest)
{
    int n = may_have(s, &s->turns[oldest], OLDEST_SHARE);
    if (n == 0 && s->tokens > 0 && s->items > 0)
        n = 1;
    if (n > 0)
        give(s, oldest, n);
}

/* Where an owner's account is; n: there is none. */
static int account_of(const struct schedule_account *of, int n, int64_t owner)
{
    int k = 0;
    while (k < n && of[k].owner != owner)
        k++;
    return k;
}

/* Who had all that it wanted has no claim on what others had of the rest: a prompt of such an owner begins with what
 * the one had who had least of those who have waited since. */
static void claim_nothing(struct share *s)
{
    struct schedule_account *of = s->accounts->of;
    double waited = -1.0;
    for (int k = 0; k < s->accounts->n; k++)
        if (of[k].left && (waited < 0.0 || of[k].steps < waited))
            waited = of[k].steps;
    for (int k = 0; k < s->accounts->n; k++)
        if (!of[k].left && of[k].steps < waited)
            of[k].steps = waited;
}

/* Gives each prompt its owner's account. They begin at what the owner had who had least of those who can run: so does
 * one that is new, and one that could not run for long has no claim on what others had meanwhile. Who is ahead and has
 * no prompt at the moment stays so, until others had as much. */
static void open_accounts(struct share *s)
{
    struct schedule_account old[SCHEDULE_TURNS];
    struct schedule_accounts *a = s->accounts;
    const int n_old = a->n;
    memcpy(old, a->of, (size_t)n_old * sizeof *old);
    a->n = 0;
    for (int i = 0; i < s->n; i++) {
        const struct schedule_turn *t = &s->turns[i];
        int k = s->account[i] = account_of(a->of, a->n, t->owner);
        if (k < a->n || !t->rest)
            continue;
        int o = account_of(old, n_old, t->owner);
        a->of[a->n++] = o < n_old ? old[o] : (struct schedule_account){.owner = t->owner};
    }
    claim_nothing(s);
    double least = had_least(s, false);
    if (least < 0.0)
        least = had_least(s, true);
    if (least < 0.0)
        least = 0.0; /* nobody can run: nothing is given */
    const int n_open = a->n;
    for (int o = 0; o < n_old && a->n < SCHEDULE_TURNS; o++)
        if (old[o].steps > least && account_of(a->of, n_open, old[o].owner) == n_open)
            a->of[a->n++] = old[o];
    for (int k = 0; k < a->n; k++)
        a->of[k] =
            (struct schedule_account){a->of[k].owner, a->of[k].steps > least ? a->of[k].steps - least : 0.0, false};
}

/* Of a step that decodes for `decode_ms`, what prompts get: what is left of the time that those who wait for a token
 * (there are some: `waited`) may wait for it, and however little that is, so much that prompts move on and the wait
 * grows by no more than a decode step. Where steps turn out later than expected, less: with what they may be late by, a
 * token comes after the setting and a decode step. All of it where nobody waits: what a step costs whatever its rows is
 * not theirs, or a setting below that would leave them a token a step. */
static double prompts_ms(const struct schedule_cost *c, const struct schedule_limits *limits, double decode_ms,
                         bool waited)
{
    double ms = limits->max_ms;
    if (!limits->max_ms)
        ms = DECODE_STEPS * decode_ms > MS_DEFAULT ? DECODE_STEPS * decode_ms : MS_DEFAULT;
    if (!waited)
        return ms;
    double left = ms - decode_ms - limits->spent_ms;
    double sure = (ms + decode_ms - limits->spent_ms) / (c->late > 0.0 ? c->late : LATE_FIRST) - decode_ms;
    left = sure < left ? sure : left;
    double least = 0.5 * (ms < decode_ms ? ms : decode_ms);
    return left > least ? left : least;
}

double schedule_step(const struct schedule_cost *c, const struct schedule_limits *limits,
                     struct schedule_accounts *accounts, struct schedule_turn *turns, int n)
{
    struct share s = {
        .c = c, .accounts = accounts, .turns = turns, .n = n, .tokens = limits->max_tokens, .items = limits->max_turns};
    int rows = 0;
    double seen = 0.0;
    for (int i = 0; i < n; i++) {
        struct schedule_turn *t = &turns[i];
        t->n = t->rest == 0 && t->wants > 0 && s.items > 0 && s.tokens > 0;
        s.items -= t->n;
        s.tokens -= t->n;
        rows += t->n;
        seen += t->n ? schedule_seen(t->position, 1) : 0.0;
    }
    int oldest = 0;
    while (oldest < n && (turns[oldest].rest <= 0 || turns[oldest].wants <= 0))
        oldest++;
    double decode_ms = schedule_ms(c, rows ? rows : 1, seen);
    open_accounts(&s);
    if (oldest == n)
        return rows ? decode_ms : 0.0;
    int trusted = c->most_rows ? TRUSTED * c->most_rows : FIRST_ROWS;
    if (trusted < FIRST_ROWS)
        trusted = FIRST_ROWS;
    if (s.tokens > trusted)
        s.tokens = trusted;
    s.step_tokens = s.tokens > 0 ? s.tokens : 1;
    s.step_ms = s.ms = prompts_ms(c, limits, decode_ms, rows > 0);
    give_oldest(&s, oldest);
    be_brief(&s);
    for (int background = 0; background < 2; background++)
        while (s.tokens > 0 && give_nearest(&s, background == 1))
            be_brief(&s);
    for (int i = 0; i < n; i++)
        if (turns[i].rest > 0 && turns[i].n) {
            rows += turns[i].n;
            seen += schedule_seen(turns[i].position, turns[i].n);
        }
    for (int i = 0; i < n; i++)
        if (turns[i].rest > turns[i].n)
            accounts->of[s.account[i]].left = true;
    return schedule_ms(c, rows, seen);
}

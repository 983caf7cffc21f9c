/* schedule.h - what each running turn gets in the next step: functions of what they are given and of nothing else.
 *
 * A step takes one token of every turn that decodes, and pieces of the prompts as long as the step's time allows. How
 * long a step takes is predicted from those before it.
 */
#ifndef CONVOD_SESSION_SCHEDULE_H
#define CONVOD_SESSION_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* ---- what a step costs --------------------------------------------------------------------------------------------
 *
 * ms = fixed + row * rows + attention * (tokens that the rows look back at, all together). Fixed is what does not
 * depend on the rows, reading the weights above all. The three are those that fit the steps seen best (least squares of
 * the relative error), none of them negative, and attention at most a part of a row: a machine that becomes slower
 * while a prompt becomes longer would otherwise pass for one whose attention is dear.
 */
#define SCHEDULE_FACTORS 3
#define SCHEDULE_SIZES   16

struct schedule_cost {
    double attention_most; /* set before the first step: what a token looked back at takes at most, as part of a row */
    double ms[SCHEDULE_FACTORS]; /* of a step, of a row, of a token looked back at, at present */
    double slower;               /* than what fits all of them: the last ones, on a machine that others use as well */
    int most_rows;               /* of the steps seen; 0: none was */
    double late; /* times what was expected, that all but a few of the long steps took at most; 0: none was seen */
    /* The normal equations' sums, by the power of two of the rows, and how many steps are in them, newer ones weighing
     * more: what long steps cost is still known after an hour of short ones, though it weighs little. */
    double weight[SCHEDULE_SIZES];
    double sums[SCHEDULE_SIZES][SCHEDULE_FACTORS][SCHEDULE_FACTORS + 1];
};

/* A step of `rows` tokens that looked back at `seen` took `ms`. */
void schedule_learn(struct schedule_cost *c, int rows, double seen, double ms);
/* What one is expected to take; 0: nothing is known yet. */
double schedule_ms(const struct schedule_cost *c, int rows, double seen);
/* Tokens that n new ones behind `position` others look back at. */
double schedule_seen(int position, int n);

/* ---- who gets what ------------------------------------------------------------------------------------------------
 */

#define SCHEDULE_TURNS 512 /* at once, at most */

struct schedule_turn {
    int64_t owner;
    bool background; /* after all others */
    int position;    /* tokens in pages */
    int wants;       /* tokens that could run now; 0: none */
    int rest;        /* tokens until its first one comes, stored ones counted; 0: it decodes, and wants one */
    int n;           /* out: tokens of it in this step */
};

struct schedule_limits {
    int max_tokens;  /* in a step */
    int max_turns;   /* in a step */
    int max_ms;      /* that a token may be waited for because of prompts; 0: 100, or four times what decoding takes */
    double spent_ms; /* of that, since the last ones came: bringing contexts back, hearing of new turns */
};

/* What the owners of running prompts had, in parts of what prompts get of a step; zeros to begin with. */
struct schedule_account {
    int64_t owner;
    double steps;
    bool left; /* the latest step left a prompt of it unfinished */
};

struct schedule_accounts {
    struct schedule_account of[SCHEDULE_TURNS];
    int n;
};

/* Shares a step among turns, which are in the order of their arrival. Those that decode get their token. What is left
 * of the time goes to prompts: a quarter to the oldest of them, so that it ends whatever arrives; the rest to the one
 * that is nearest to its first token, then to the next. Owners get equal parts, but not of each step, in which none of
 * their prompts might end: one may be ahead of another who has a prompt by three steps, and by a fourth for a prompt
 * that ends in this one. Where one ends that is not in the background, prompts get half of what they would: its first
 * token comes behind the step. What an owner does not need goes to the others. Background turns get what all others
 * leave. However short the time, prompts get half of it or of a step without them, whichever is shorter, and one token
 * at least; where no turn decodes they get all of it, beside what a step costs whatever its rows. Returns the
 * milliseconds that this is expected to take. */
double schedule_step(const struct schedule_cost *c, const struct schedule_limits *limits,
                     struct schedule_accounts *accounts, struct schedule_turn *turns, int n);

#endif

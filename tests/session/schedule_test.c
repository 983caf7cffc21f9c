/* schedule_test.c - who gets what of a step, and what a step is expected to take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session/schedule.h"

/* A machine: 12 ms a step, 1 ms a row, 1 ms for a million tokens looked back at. */
static const double machine[SCHEDULE_FACTORS] = {12.0, 1.0, 1e-6};

static double takes(int rows, double seen)
{
    return machine[0] + machine[1] * rows + machine[2] * seen;
}

/* Long known, and known to be steady. */
static struct schedule_cost learnt(void)
{
    struct schedule_cost c = {.attention_most = 1e-3, .late = 1.0};
    for (int rows = 1; rows <= 512; rows *= 2)
        for (int position = 0; position < 20000; position += 4000)
            schedule_learn(&c, rows, schedule_seen(position, rows), takes(rows, schedule_seen(position, rows)));
    return c;
}

static bool near(double a, double b, double tolerance)
{
    return fabs(a - b) <= tolerance * fabs(b);
}

static const struct schedule_limits limits = {.max_tokens = 512, .max_turns = 8};

static struct schedule_turn decoding(int64_t owner, int position)
{
    return (struct schedule_turn){.owner = owner, .position = position, .wants = 1};
}

static struct schedule_turn prompt(int64_t owner, int position, int rest)
{
    return (struct schedule_turn){.owner = owner, .position = position, .wants = rest, .rest = rest};
}

/* Tokens and time of a step, with what must hold of every one. */
static double step_of(const struct schedule_cost *c, const struct schedule_limits *l, struct schedule_accounts *a,
                      struct schedule_turn *turns, int n, int *rows)
{
    double said = schedule_step(c, l, a, turns, n), seen = 0.0;
    int items = 0;
    *rows = 0;
    for (int i = 0; i < n; i++) {
        assert_true(turns[i].n >= 0 && turns[i].n <= turns[i].wants);
        items += turns[i].n > 0;
        *rows += turns[i].n;
        seen += schedule_seen(turns[i].position, turns[i].n);
    }
    assert_true(*rows <= l->max_tokens && items <= l->max_turns);
    assert_true(near(said, schedule_ms(c, *rows, seen), 1e-9) || (said == 0.0 && *rows == 0));
    return said;
}

/* The first step. */
static double step(const struct schedule_cost *c, const struct schedule_limits *l, struct schedule_turn *turns, int n,
                   int *rows)
{
    struct schedule_accounts a = {.n = 0};
    return step_of(c, l, &a, turns, n, rows);
}

/* What the turns got has run. */
static void go_on(struct schedule_turn *turns, int n)
{
    for (int i = 0; i < n; i++)
        if (turns[i].rest > 0) {
            turns[i].position += turns[i].n;
            turns[i].rest -= turns[i].n;
            turns[i].wants = turns[i].rest;
        }
}

/* ---- cost ---- */

static void test_learns_what_a_step_costs(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int i = 0; i < SCHEDULE_FACTORS; i++)
        assert_true(near(c.ms[i], machine[i], 1e-3));
    /* An hour of short steps later it still knows the long ones. */
    for (int i = 0; i < 100000; i++)
        schedule_learn(&c, 3, schedule_seen(900, 3), takes(3, schedule_seen(900, 3)));
    assert_true(near(schedule_ms(&c, 512, 0.0), takes(512, 0.0), 1e-2));
}

static void test_learns_a_new_machine(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int i = 0; i < 60; i++)
        for (int rows = 1; rows <= 512; rows *= 2)
            schedule_learn(&c, rows, 0.0, 3.0 * takes(rows, 0.0));
    assert_true(near(schedule_ms(&c, 256, 0.0), 3.0 * takes(256, 0.0), 0.05));
    /* Ten steps of one size are enough for that size, whatever the others were. */
    c = learnt();
    for (int i = 0; i < 10; i++)
        schedule_learn(&c, 32, 0.0, 3.0 * takes(32, 0.0));
    assert_true(near(schedule_ms(&c, 32, 0.0), 3.0 * takes(32, 0.0), 0.2));
}

/* A machine that becomes three times slower, and fast again, while prompts become longer: that is not what looking back
 * at them takes, and the steps behind have their length. */
static void test_slow_times_are_not_attention(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    int position = 500;
    for (int i = 0; i < 60; i++) {
        struct schedule_turn turns[] = {prompt(1, position, 100000), decoding(2, 100)};
        int rows;
        double slow = i < 10 ? 1.0 : i < 30 ? 1.0 + 0.1 * (i - 10) : i < 40 ? 3.0 : 1.0;
        (void)step(&c, &limits, turns, 2, &rows);
        double seen = schedule_seen(position, turns[0].n) + schedule_seen(100, 1);
        schedule_learn(&c, rows, seen, slow * takes(rows, seen));
        assert_true(c.ms[2] <= 1e-3 * c.ms[1] * (1.0 + 1e-9));
        position += turns[0].n;
    }
    struct schedule_turn turns[] = {prompt(1, 12000, 100000), decoding(2, 100)};
    int rows;
    (void)step(&c, &limits, turns, 2, &rows);
    double ms = takes(rows, schedule_seen(12000, turns[0].n));
    assert_true(ms >= 80.0 && ms <= 110.0);
}

/* Times that scatter, times that no model of this form has, and rubbish: nothing negative, nothing infinite. */
static void test_learns_from_anything(void **state)
{
    (void)state;
    struct schedule_cost c = {.attention_most = 1e-3};
    uint64_t seed = 1;
    assert_true(schedule_ms(&c, 100, 0.0) == 0.0);
    schedule_learn(&c, 0, 0.0, 5.0);
    schedule_learn(&c, 5, 0.0, 0.0);
    schedule_learn(&c, 5, NAN, 1.0);
    schedule_learn(&c, 5, 0.0, NAN);
    assert_int_equal(c.most_rows, 0);
    for (int i = 0; i < 5000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int rows = 1 + (int)(seed >> 33) % (i < 10 ? 1 : 600);
        double noise = (double)(seed >> 40 & 255) / 255.0;
        schedule_learn(&c, rows, schedule_seen((int)(seed >> 20 & 8191), rows), 0.1 + 500.0 * noise * noise);
        for (int k = 0; k < SCHEDULE_FACTORS; k++)
            assert_true(c.ms[k] >= 0.0 && isfinite(c.ms[k]));
        double ms = schedule_ms(&c, 64, schedule_seen(4000, 64));
        assert_true(ms > 0.0 && (ms < 5000.0 || i < 10)); /* of so few it can make anything */
    }
}

/* From steps of one row alone nobody knows what five hundred take: it finds out in steps. */
static void test_goes_up_carefully(void **state)
{
    (void)state;
    struct schedule_cost c = {.attention_most = 1e-3};
    struct schedule_turn turns[] = {prompt(1, 0, 5000)};
    int rows, last = 64;
    for (int i = 0; i < 30; i++)
        schedule_learn(&c, 1, 100.0, takes(1, 100.0));
    for (int i = 0; i < 10; i++) {
        (void)step(&c, &limits, turns, 1, &rows);
        assert_true(rows > 0 && rows <= 2 * last);
        schedule_learn(&c, rows, schedule_seen(0, rows), takes(rows, schedule_seen(0, rows)));
        last = rows > last ? rows : last;
    }
    assert_true(near(takes(rows, 0.0), 100.0 + machine[0], 0.05));
}

/* ---- shares ---- */

static void test_decoding_goes_first(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_turn turns[] = {prompt(1, 0, 4000), decoding(1, 50), decoding(2, 3000), prompt(2, 100, 30)};
    int rows;
    double ms = step(&c, &limits, turns, 4, &rows);
    assert_int_equal(turns[1].n, 1);
    assert_int_equal(turns[2].n, 1);
    assert_int_equal(turns[3].n, 30);
    assert_true(turns[0].n > 0);
    assert_true(ms <= 70.0 && ms > 50.0); /* one ends: no more than half, but for what the two have by right */
    turns[3].rest = 300;
    ms = step(&c, &limits, turns, 4, &rows);
    assert_true(ms <= 100.0 && ms > 90.0);
}

/* A short prompt behind a long one comes through in one step, and the long one moves on. */
static void test_short_behind_long(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int same_owner = 0; same_owner < 2; same_owner++) {
        struct schedule_turn turns[] = {prompt(1, 2000, 14000), prompt(same_owner ? 1 : 2, 0, 23)};
        int rows;
        (void)step(&c, &limits, turns, 2, &rows);
        assert_int_equal(turns[1].n, 23);
        assert_in_range(turns[0].n, 25, 30); /* not all that is left: the other's first token comes behind the step */
    }
}

/* Short ones without end: the oldest gets its quarter of every step. */
static void test_oldest_is_not_starved(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    int left = 3000, steps = 0;
    while (left > 0) {
        struct schedule_turn turns[] = {prompt(1, 3000 - left, left), prompt(1, 0, 200), prompt(1, 0, 300),
                                        prompt(2, 0, 100)};
        int rows;
        (void)step(&c, &limits, turns, 4, &rows);
        assert_true(turns[0].n * (machine[1] + machine[2] * 3000) >= 0.2 * 88.0 || turns[0].n == left);
        assert_true(turns[3].n >= 30 || left < 150); /* and the nearest what is left */
        left -= turns[0].n;
        assert_true(++steps < 200);
    }
}

/* One owner with five prompts, one with one: as much for each, not in each step but over some. */
static void test_owners_share(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_accounts a = {.n = 0};
    struct schedule_turn turns[] = {prompt(1, 0, 9000), prompt(1, 0, 8000), prompt(1, 0, 7000),
                                    prompt(1, 0, 6000), prompt(1, 0, 5000), prompt(2, 0, 50000)};
    int rows, had[2] = {0};
    for (int i = 0; i < 40; i++) {
        (void)step_of(&c, &limits, &a, turns, 6, &rows);
        assert_int_equal(turns[1].n + turns[2].n + turns[3].n, 0); /* of the first one's, the nearest and the oldest */
        had[0] += turns[0].n + turns[4].n;
        had[1] += turns[5].n;
        assert_in_range(rows, 96, 100);
        assert_in_range(had[0] - had[1] + 400, 0, 800);
        go_on(turns, 6);
    }
    /* What one does not need the other gets. */
    turns[5] = prompt(2, 0, 5);
    (void)step_of(&c, &limits, &a, turns, 6, &rows);
    assert_int_equal(turns[5].n, 5);
    assert_in_range(rows, 46, 50);
}

/* Two that are as long: the first has its first token when half of both is done, not both at the end. */
static void test_one_ends_before_the_other(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_accounts a = {.n = 0};
    struct schedule_turn turns[] = {prompt(1, 0, 200), prompt(2, 0, 200), decoding(3, 100)};
    int rows;
    double ms = 0.0, ended[2] = {0.0};
    for (int i = 1; i <= 6; i++) {
        ms += step_of(&c, &limits, &a, turns, 3, &rows);
        go_on(turns, 3);
        for (int k = 0; k < 2; k++)
            if (turns[k].rest == 0 && ended[k] == 0.0)
                ended[k] = ms;
    }
    assert_true(ended[0] > 200.0 && ended[0] < 260.0);
    assert_true(ended[1] > 440.0 && ended[1] < 500.0);
}

/* Who is ahead still has a short prompt's first token at once, and who comes back has no claim on what others had. */
static void test_accounts(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_accounts a = {.n = 0};
    struct schedule_turn turns[] = {prompt(1, 0, 7000), prompt(2, 0, 6000), prompt(1, 0, 20)};
    int rows;
    for (int i = 0; i < 30; i++) {
        (void)step_of(&c, &limits, &a, turns, 2, &rows);
        go_on(turns, 2);
        struct schedule_accounts now = a;
        (void)step_of(&c, &limits, &now, turns, 3, &rows);
        assert_int_equal(turns[2].n, 20);
    }
    /* Steps in which nobody's prompt can run are nothing that anybody had. */
    struct schedule_accounts waited = a;
    for (int i = 0; i < 50; i++) {
        struct schedule_turn restored[] = {prompt(1, 0, 7000), decoding(3, 100)};
        restored[0].wants = 0;
        (void)step_of(&c, &limits, &waited, restored, 2, &rows);
    }
    for (int i = 0; i < 10; i++) {
        struct schedule_turn two[] = {prompt(2, 0, 6000), prompt(1, 0, 6000)};
        (void)step_of(&c, &limits, &waited, two, 2, &rows);
        turns[0].n = i ? turns[0].n + two[1].n : two[1].n;
    }
    assert_in_range(turns[0].n, 10 * 100 / 2 - 400, 10 * 100 / 2 + 400);
    /* Short ones without end are no way around it. */
    int had = 0;
    for (int i = 0; i < 60; i++) {
        turns[0] = prompt(3, 0, 100000); /* the oldest */
        turns[2] = prompt(1, 0, 60);
        (void)step_of(&c, &limits, &a, turns, 3, &rows);
        had += turns[2].n;
        turns[1] = prompt(2, 0, 6000);
    }
    assert_in_range(had, 60 * 100 / 3 - 400, 60 * 100 / 3 + 400); /* a third, and what it may be ahead */
    /* Nor are pauses between them. */
    int ahead = 0;
    for (int i = 0; i < 200; i++) {
        turns[1] = prompt(2, 0, 6000);
        if (turns[2].rest == 0)
            turns[2] = prompt(1, 0, 200);
        (void)step_of(&c, &limits, &a, turns, 3, &rows);
        ahead += turns[2].n - turns[1].n;
        turns[0] = prompt(3, 0, 100000);
        turns[2].position += turns[2].n;
        turns[2].rest = turns[2].wants = turns[2].rest - turns[2].n;
        if (turns[2].rest == 0) {
            (void)step_of(&c, &limits, &a, turns, 2, &rows);
            ahead -= turns[1].n;
        }
    }
    assert_in_range(ahead + 4000, 0, 4400);
    /* Long alone, then beside another: both get the same again within some steps. */
    for (int i = 0; i < 100; i++) {
        turns[1] = prompt(2, 0, 6000);
        (void)step_of(&c, &limits, &a, &turns[1], 1, &rows);
    }
    had = 0;
    for (int i = 0; i < 20; i++) {
        turns[0] = prompt(1, 0, 6000);
        turns[1] = prompt(2, 0, 6000);
        (void)step_of(&c, &limits, &a, turns, 2, &rows);
        had += turns[0].n - turns[1].n;
    }
    assert_in_range(had + 400, 0, 800);
}

static void test_background_last(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_turn turns[] = {prompt(1, 0, 4000), prompt(2, 0, 10), prompt(2, 0, 3000)};
    int rows;
    turns[1].background = true;
    (void)step(&c, &limits, turns, 3, &rows);
    assert_int_equal(turns[1].n, 0);
    turns[2].rest = turns[2].wants = 20;
    turns[0].rest = turns[0].wants = 10;
    (void)step(&c, &limits, turns, 3, &rows);
    assert_int_equal(rows, 40);
    /* The oldest gets its quarter though it is in the background. */
    struct schedule_turn old[] = {prompt(1, 0, 4000), prompt(2, 0, 3000)};
    old[0].background = true;
    (void)step(&c, &limits, old, 2, &rows);
    assert_true(old[0].n >= 20 && old[0].n < old[1].n);
}

/* One whose short prompts have all they want leaves the rest of each step to another's long one, or to what that has in
 * the background. That is nothing that one owes: its next question comes through at once, whatever the other wants
 * then, and from there on both get the same. */
static void test_what_is_left_is_no_debt(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int background = 0; background < 2; background++) {
        struct schedule_accounts a = {.n = 0};
        int rows, had = 0;
        for (int i = 0; i < 200; i++) {
            struct schedule_turn turns[] = {prompt(2, 0, 5), prompt(1, 0, 20000)};
            turns[1].background = background;
            (void)step_of(&c, &limits, &a, turns, 2, &rows);
            assert_int_equal(turns[0].n, 5);
            had += turns[1].n;
        }
        assert_true(had > 200 * 30);
        struct schedule_turn turns[] = {prompt(2, 0, 16000), prompt(1, 0, 23)};
        (void)step_of(&c, &limits, &a, turns, 2, &rows);
        assert_int_equal(turns[1].n, 23);
        had = 0;
        for (int i = 0; i < 40; i++) {
            struct schedule_turn two[] = {prompt(2, 0, 9000), prompt(1, 0, 8000)};
            (void)step_of(&c, &limits, &a, two, 2, &rows);
            had += two[0].n - two[1].n;
        }
        assert_in_range(had + 800, 0, 1600);
    }
}

/* More than there is time for: one owner with long prompts, one in the background, others with short ones, at random.
 * Each ends, within the steps whose quarters would have done it and those before it. */
static void test_nobody_starves(void **state)
{
    (void)state;
    enum { N = 24, OWNERS = 6 };
    struct schedule_cost c = learnt();
    struct schedule_accounts a = {.n = 0};
    struct schedule_turn turns[N] = {{0}};
    int64_t due[N] = {0}; /* the step by which it ends */
    uint64_t seed = 11;
    int n = 0, ended = 0;
    for (int64_t step = 0; step < 60000; step++) {
        int rows, before = 0;
        for (int i = 0; i < n; i++)
            before += turns[i].rest;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (n < N && (seed >> 33) % 3 == 0) {
            int64_t owner = (int64_t)(seed >> 40) % OWNERS;
            int rest = owner == 0 ? 1 + (int)(seed >> 50) % 8000 : 1 + (int)(seed >> 50) % 60;
            turns[n] = prompt(owner, 0, rest);
            turns[n].background = owner == 1;
            due[n] = step + 1 + n +
                     (before + rest) / 20; /* a quarter of 100 ms, at 1 ms a token and what it looks back at */
            n++;
        }
        (void)step_of(&c, &limits, &a, turns, n, &rows);
        assert_true(n == 0 || rows > 0);
        go_on(turns, n);
        int kept = 0;
        for (int i = 0; i < n; i++) {
            assert_true(step <= due[i]);
            ended += turns[i].rest == 0;
            if (turns[i].rest == 0)
                continue;
            turns[kept] = turns[i];
            due[kept++] = due[i];
        }
        n = kept;
    }
    assert_true(ended > 1000);
}

static void test_step_length(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    static const int settings[] = {20, 50, 200, 400};
    int rows;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct schedule_turn turns[] = {prompt(1, 9000, 5000), decoding(1, 50)};
        struct schedule_limits l = limits;
        l.max_ms = settings[i];
        double ms = step(&c, &l, turns, 2, &rows);
        assert_true(ms <= settings[i] || rows <= 7);
        assert_true(ms >= 0.9 * settings[i]);
    }
    /* Attention has its part in the time: behind much there are fewer tokens in a step. */
    struct schedule_turn front[] = {prompt(1, 0, 5000)}, behind[] = {prompt(1, 4000000, 5000)};
    (void)step(&c, &limits, front, 1, &rows);
    (void)step(&c, &limits, behind, 1, &rows);
    assert_true(behind[0].n < front[0].n / 3);
    /* By default at least four times what decoding takes. */
    struct schedule_turn many[8];
    for (int i = 0; i < 7; i++)
        many[i] = decoding(i, 4000000);
    many[7] = prompt(1, 0, 5000);
    double ms = step(&c, &limits, many, 8, &rows);
    assert_true(near(ms, 4 * takes(7, 7 * 4e6), 0.05));
    /* However short the time, prompts move on. */
    struct schedule_limits tight = limits;
    tight.max_ms = 1;
    (void)step(&c, &tight, many, 8, &rows);
    assert_int_equal(many[7].n, 1);
}

/* Where nobody waits for a token, the setting is the prompts' own, also one that a step costs whatever its rows. */
static void test_prompts_alone_have_all_of_it(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int max_ms = 5; max_ms <= 80; max_ms *= 2) {
        struct schedule_turn turns[] = {prompt(1, 0, 400), prompt(2, 0, 400)};
        struct schedule_limits l = limits;
        int rows;
        l.max_ms = max_ms;
        (void)step(&c, &l, turns, 1, &rows);
        assert_in_range(rows, max_ms - 1, max_ms); /* of a millisecond each */
        (void)step(&c, &l, turns, 2, &rows);
        assert_in_range(rows, max_ms - 3, max_ms);
    }
}

/* Whatever decoding takes of the setting, and whatever has passed since the last tokens came: nobody waits for longer
 * than the setting and a decode step, and prompts move on. */
static void test_a_token_is_not_waited_for_too_long(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    for (int position = 0; position < 60000000; position += 3000000)
        for (int max_ms = 20; max_ms <= 400; max_ms += 20)
            for (int spent_ms = 0; spent_ms <= 30; spent_ms += 10) {
                struct schedule_turn turns[] = {prompt(1, 0, 4000), decoding(2, position), decoding(3, position)};
                struct schedule_limits l = limits;
                int rows;
                l.max_ms = max_ms;
                l.spent_ms = spent_ms < max_ms / 2 ? spent_ms : max_ms / 2;
                double decode = takes(2, 2.0 * position), ms = step(&c, &l, turns, 3, &rows);
                double late = l.spent_ms + decode + 0.5 * fmin(decode, max_ms);
                assert_true(l.spent_ms + ms <= fmax(max_ms, late) + 1e-6 || turns[0].n == 1);
                assert_true(l.spent_ms + ms <= max_ms + decode + 1e-6 || turns[0].n == 1);
                assert_true(turns[0].n >= 1);
            }
    /* Where nobody waits for a token nothing has been spent. */
    struct schedule_turn alone[] = {prompt(1, 0, 4000)};
    struct schedule_limits l = limits;
    int rows, more;
    (void)step(&c, &l, alone, 1, &rows);
    l.spent_ms = 1e9;
    (void)step(&c, &l, alone, 1, &more);
    assert_int_equal(rows, more);
}

static double uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*seed >> 40) + 0.5) / (double)(1 << 24);
}

enum noise { STEADY, NORMAL, TAIL, SELDOM, NOISES };

/* Times what a step takes by itself. */
static double noisy(enum noise kind, uint64_t *seed)
{
    double sum = 0.0;
    switch (kind) {
    case NORMAL:
        for (int i = 0; i < 12; i++)
            sum += uniform(seed);
        return 1.0 + 0.08 * (sum - 6.0);
    case TAIL:
        return 1.0 - 0.08 * log(uniform(seed));
    case SELDOM:
        return uniform(seed) < 0.03 ? 1.35 : 1.0;
    default:
        return 1.0;
    }
}

/* On a machine whose times scatter, however they do, one token in a hundred comes later than the setting and a decode
 * step, and on one whose times do not, nothing is given away for that. */
static void test_late_tokens_are_rare(void **state)
{
    (void)state;
    enum { STEPS = 4000, FIRST = 100 };
    static const int settings[] = {50, 100, 250};
    for (int kind = 0; kind < NOISES; kind++)
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            struct schedule_cost c = learnt();
            struct schedule_limits l = limits;
            uint64_t seed = 5;
            int late = 0, position = 0, rows;
            double took = 0.0;
            c.late = 0.0; /* nothing is known of that */
            l.max_ms = settings[k];
            l.spent_ms = 1.0;
            for (int i = 0; i < FIRST + STEPS; i++) {
                struct schedule_turn turns[] = {prompt(1, position, 100000), decoding(2, 100)};
                (void)step(&c, &l, turns, 2, &rows);
                double seen = schedule_seen(position, turns[0].n) + schedule_seen(100, 1);
                double ms = takes(rows, seen) * noisy((enum noise)kind, &seed);
                schedule_learn(&c, rows, seen, ms);
                late += i >= FIRST && l.spent_ms + ms > l.max_ms + takes(1, 100.0);
                took = l.spent_ms + ms;
                position = position < 8000 ? position + turns[0].n : 0;
            }
            assert_true(late <= STEPS / 100);
            assert_true(kind != STEADY || near(took, l.max_ms, 0.05));
        }
}

/* Where tokens and not time bound the step, they are shared the same way. */
static void test_bound_by_tokens(void **state)
{
    (void)state;
    struct schedule_cost c = {.attention_most = 1e-3};
    int rows;
    schedule_learn(&c, 4096, 0.0, 0.5);
    struct schedule_turn turns[] = {prompt(1, 0, 9000), prompt(2, 0, 5000), prompt(3, 0, 5000)};
    struct schedule_accounts a = {.n = 0};
    int had[3] = {0};
    for (int i = 0; i < 30; i++) {
        (void)step_of(&c, &limits, &a, turns, 3, &rows);
        assert_int_equal(rows, 512);
        for (int k = 0; k < 3; k++)
            had[k] += turns[k].n;
    }
    for (int k = 0; k < 3; k++)
        assert_in_range(had[k], 10 * 512 - 4 * 512, 10 * 512 + 4 * 512);
}

/* Any mixture: never more than the limits, never nothing where something could run, and all of them end. */
static void test_any_mixture(void **state)
{
    (void)state;
    enum { N = 40 };
    uint64_t seed = 7;
    struct schedule_cost c = {.attention_most = 1e-3};
    for (int round = 0; round < 20; round++) {
        struct schedule_turn turns[N];
        struct schedule_accounts a = {.n = 0};
        struct schedule_limits l = {.max_tokens = 64 << round % 4, .max_turns = 1 + round, .max_ms = round % 3 * 40};
        int left = N, steps = 0, rows;
        for (int i = 0; i < N; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            turns[i] = prompt((int64_t)(seed >> 60), 0, 1 + (int)(seed >> 33) % 1500);
            turns[i].background = seed >> 20 & 1;
        }
        while (left > 0) {
            double seen = 0.0;
            (void)step_of(&c, &l, &a, turns, N, &rows);
            assert_true(rows > 0);
            for (int i = 0; i < N; i++) {
                seen += schedule_seen(turns[i].position, turns[i].n);
                turns[i].position += turns[i].n;
                turns[i].rest -= turns[i].n;
                turns[i].wants = turns[i].rest;
                left -= turns[i].n && !turns[i].rest;
            }
            schedule_learn(&c, rows, seen, takes(rows, seen));
            assert_true(++steps < 20000);
        }
    }
}

static void test_nobody(void **state)
{
    (void)state;
    struct schedule_cost c = learnt();
    struct schedule_turn turns[] = {{.owner = 1, .rest = 700}, {.owner = 2}};
    struct schedule_accounts a = {.n = 0};
    int rows;
    (void)step(&c, &limits, turns, 2, &rows);
    assert_int_equal(rows, 0);
    (void)schedule_step(&c, &limits, &a, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_what_a_step_costs),
        cmocka_unit_test(test_learns_a_new_machine),
        cmocka_unit_test(test_slow_times_are_not_attention),
        cmocka_unit_test(test_learns_from_anything),
        cmocka_unit_test(test_goes_up_carefully),
        cmocka_unit_test(test_decoding_goes_first),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_oldest_is_not_starved),
        cmocka_unit_test(test_owners_share),
        cmocka_unit_test(test_one_ends_before_the_other),
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_background_last),
        cmocka_unit_test(test_what_is_left_is_no_debt),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_step_length),
        cmocka_unit_test(test_prompts_alone_have_all_of_it),
        cmocka_unit_test(test_a_token_is_not_waited_for_too_long),
        cmocka_unit_test(test_late_tokens_are_rare),
        cmocka_unit_test(test_bound_by_tokens),
        cmocka_unit_test(test_any_mixture),
        cmocka_unit_test(test_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

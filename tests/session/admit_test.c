/* admit_test.c - turns that wait for a place: what is done for them meanwhile, and how many steps a short one waits. */
#include "tests/session/meeting.h"

#include <unistd.h>

/* ---- what is restored while a turn waits ---- */

struct ahead {
    bool looked; /* somebody waits, and all that it wants has been read */
    int segments;
};

/* In the answer of the turn that has the only place, until that is so; then it ends. */
static void look_ahead(struct answer *a, const struct session_event *ev, void *arg)
{
    struct ahead *ahead = arg;
    struct session *s = a->rig->s;
    if (ev->kind != SESSION_EVENT_DELTA || ahead->looked)
        return;
    for (const struct turn *t = s->turns; t; t = t->next) {
        int n = 0;
        if (t->state != TURN_WAITING || t->plan.early != EARLY_PLANNED)
            continue; /* the ledger's thread may be writing its plan */
        while (n < t->plan.n && t->plan.parts[n].state == PLAN_READY)
            n++;
        if (n > 0 && n == t->plan.n) {
            ahead->looked = true;
            ahead->segments = n;
        }
    }
    for (struct turn *t = s->turns; ahead->looked && t; t = t->next)
        t->end.cancelled |= t->state == TURN_RUNNING;
    if (!ahead->looked)
        usleep(1000); /* the readers' time */
}

/* It has no place yet, and what it follows comes from disk already. */
static void test_reads_while_it_waits(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 1});
    struct ahead ahead = {0};
    char *text = rig_text(1, 700);
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
    struct answer *runs = rig_begin(rig, (struct ask){.owner = "bob",
                                                      .text = "on and on",
                                                      LONG_ANSWER,
                                                      .hook = look_ahead,
                                                      .hook_arg = &ahead,
                                                      .ephemeral = true});
    struct answer *waits = rig_begin(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 2});
    rig_end(runs);
    rig_end(waits);
    assert_true(ahead.looked);
    assert_true(ahead.segments >= 700 / SESSION_SEGMENT_TOKENS);
    rig_only_new(waits);
    assert_int_equal(waits->receipt.disk, waits->receipt.history);
    free(text);
    rig_close(rig);
}

/* Lets the turn that waits be stopped when its reads have begun: nothing is left of them. */
static void stop_it(struct answer *a, const struct session_event *ev, void *arg)
{
    struct ahead *ahead = arg;
    if (ev->kind != SESSION_EVENT_DELTA || ahead->looked)
        return;
    for (struct turn *t = a->rig->s->turns; t; t = t->next)
        if (t->state == TURN_WAITING && t->plan.early == EARLY_PLANNED && t->plan.n > 0)
            ahead->looked = t->end.cancelled = true;
    for (struct turn *t = a->rig->s->turns; ahead->looked && t; t = t->next)
        t->end.cancelled = true;
    if (!ahead->looked)
        usleep(1000);
}

static void test_is_stopped_while_it_is_read(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 1});
    struct ahead ahead = {0};
    char *text = rig_text(1, 700);
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
    struct answer *runs = rig_begin(
        rig,
        (struct ask){
            .owner = "bob", .text = "on and on", LONG_ANSWER, .hook = stop_it, .hook_arg = &ahead, .ephemeral = true});
    struct answer *waits = rig_begin(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 2});
    rig_end(runs);
    rig_end(waits);
    assert_true(ahead.looked);
    assert_string_equal(waits->reason, "cancelled");
    struct answer *again = rig_ask(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 2});
    rig_only_new(again);
    free(text);
    rig_close(rig);
}

struct reading {
    struct ahead ahead;
    struct turn *waits;
    struct gate gate;
    bool waited;
};

/* The turn that waits is stopped while one of its reads is under way, as it seems, and the place becomes free. */
static void stop_in_a_read(struct answer *a, const struct session_event *ev, void *arg)
{
    struct reading *r = arg;
    if (r->ahead.looked)
        return;
    look_ahead(a, ev, &r->ahead);
    for (struct turn *t = a->rig->s->turns; r->ahead.looked && t; t = t->next)
        if (t->state == TURN_WAITING && t->plan.n > 0) {
            r->waits = t;
            t->end.cancelled = true;
            t->plan.n_reading++;
        }
}

static void pass(struct session *s, void *arg)
{
    (void)s;
    gate_open(arg);
}

static void end_the_read(struct session *s, void *arg)
{
    struct reading *r = arg;
    (void)s;
    r->waited = r->waits->state == TURN_WAITING && !r->waits->hot;
    r->waits->plan.n_reading--;
    gate_open(&r->gate);
}

/* It gets no place any more: another one does. */
static void test_is_stopped_in_a_read(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1});
    struct reading reading = {.gate = GATE_CLOSED};
    char *text = rig_text(1, 700);
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
    struct answer *runs = rig_begin(rig, (struct ask){.owner = "bob",
                                                      .text = "on and on",
                                                      .max = 3000,
                                                      .hook = stop_in_a_read,
                                                      .hook_arg = &reading,
                                                      .ephemeral = true});
    struct answer *waits = rig_begin(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 2});
    struct answer *next = rig_begin(rig, (struct ask){.owner = "eve", .text = "me", .max = 400});
    rig_end(runs);
    assert_non_null(reading.waits);
    assert_int_equal(session_post(rig->s, pass, &reading.gate), 0);
    gate_wait(&reading.gate, 1); /* behind this places are given */
    assert_int_equal(session_post(rig->s, end_the_read, &reading), 0);
    gate_wait(&reading.gate, 2);
    rig_end(waits);
    rig_end(next);
    assert_true(reading.waited && !next->failed);
    assert_string_equal(waits->reason, "cancelled");
    free(text);
    rig_close(rig);
}

/* ---- what is gone when it is to be read ---- */

struct gone {
    struct ahead ahead;
    int rc;
    int expected, from; /* tokens that were there once; of these, what comes before what is gone */
};

/* The last of the segments that the waiting turn wants was deleted. */
static void lose_last(struct answer *a, const struct session_event *ev, void *arg)
{
    struct gone *gone = arg;
    if (gone->ahead.looked)
        return;
    look_ahead(a, ev, &gone->ahead);
    for (struct turn *t = a->rig->s->turns; gone->ahead.looked && t; t = t->next)
        if (t->state == TURN_WAITING) {
            struct planned *last = &t->plan.parts[t->plan.n - 1];
            last->state = PLAN_FAILED;
            last->result.rc = gone->rc;
            gone->expected = t->n_expected;
            gone->from = last->first;
            assert_true(last->first + last->used > t->n_expected);
        }
}

/* A turn whose context's last segment goes while it waits for its place; it has ended. */
static struct answer *behind_what_is_gone(struct rig *rig, struct gone *gone)
{
    char *text = rig_text(1, 700);
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    (void)rig_ask(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 2});
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
    struct answer *runs = rig_begin(
        rig,
        (struct ask){
            .owner = "bob", .text = "on and on", LONG_ANSWER, .hook = lose_last, .hook_arg = gone, .ephemeral = true});
    struct answer *waits = rig_begin(rig, (struct ask){.text = "go on", .previous = first->id, .seed = 3});
    rig_end(runs);
    rig_end(waits);
    assert_true(gone->ahead.looked);
    free(text);
    return waits;
}

/* Somebody else asked the same, which was to be found and is not: that is new. What this one had before is not. */
static void test_gone(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 1});
    struct gone gone = {.rc = -ENOENT};
    struct answer *waits = behind_what_is_gone(rig, &gone);
    assert_int_equal(waits->receipt.n_reprefilled, 1);
    assert_string_equal(waits->receipt.reprefilled[0].reason, "blob_missing");
    assert_int_equal(waits->receipt.reprefilled[0].tokens, gone.expected - gone.from);
    assert_int_equal(waits->receipt.history, gone.expected);
    rig_close(rig);
}

/* One that was given up because there are no pages for it is computed, and no pages are waited for. */
static void test_given_up(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 1});
    struct gone gone = {.rc = -ENOSPC};
    struct answer *waits = behind_what_is_gone(rig, &gone);
    assert_false(waits->failed);
    assert_int_equal(waits->receipt.disk, gone.from);
    assert_int_equal(waits->receipt.prefilled, waits->input - gone.from);
    rig_close(rig);
}

/* ---- a short prompt behind a long one ---- */

struct steps {
    struct meeting meeting; /* the long prompt is being read; the short one was sent */
    uint64_t found, first;
};

static void long_one(struct answer *a, const struct session_event *ev, void *arg)
{
    struct steps *steps = arg;
    meet_at_prefill(a, ev, &steps->meeting);
    if (a->n_prefill <= 2)
        steps->found = a->rig->s->status.engine_steps;
}

static void short_one(struct answer *a, const struct session_event *ev, void *arg)
{
    struct steps *steps = arg;
    if (!steps->first && ev->kind == SESSION_EVENT_PROGRESS && !strcmp(ev->stage, "prefill") && ev->done == ev->total)
        steps->first = a->rig->s->status.engine_steps;
}

/* Its first token takes one step when it is alone; behind a long prompt it takes three and the one that runs at most,
 * and those in which the ledger is waited for are not among them: it has been found by then, and has no row. */
static void test_short_behind_long(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 8192, .step_tokens = 256});
    struct steps steps = {{GATE_CLOSED, GATE_CLOSED}, 0, 0};
    char *text = rig_text(5, 6000);
    struct answer *a =
        rig_begin(rig, (struct ask){.text = text, .hook = long_one, .hook_arg = &steps, .ephemeral = true});
    gate_wait(&steps.meeting.there, 1);
    struct answer *b = rig_begin(rig, (struct ask){.owner = "bob",
                                                   .text = "Which colour has the sea?",
                                                   .hook = short_one,
                                                   .hook_arg = &steps,
                                                   .ephemeral = true});
    gate_open(&steps.meeting.on);
    rig_end(b);
    rig_end(a);
    assert_true(b->input < 128 && a->input > 5000);
    assert_true(steps.first > 0);
    assert_true(steps.first - steps.found <= 4);
    free(text);
    rig_close(rig);
}

/* ---- a prompt that the background computes ---- */

struct shared {
    struct gate there, on; /* the long prompt is being read, the background turn has its place; the next was sent */
    bool placed, answered;
    int left; /* of the long prompt when the last turn answered */
};

static void reads_on(struct answer *a, const struct session_event *ev, void *arg)
{
    struct shared *shared = arg;
    if (ev->kind != SESSION_EVENT_PROGRESS || strcmp(ev->stage, "prefill") != 0 || shared->answered)
        return;
    bool placed = shared->placed;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        shared->placed |= t->ask.background && t->state == TURN_RUNNING;
    if (a->n_prefill == 1 || placed != shared->placed) {
        gate_open(&shared->there);
        gate_wait(&shared->on, 1 + shared->placed);
    }
    rig_ledger(a->rig); /* who was sent is found and accepted, however slow the disk is */
}

static void answers(struct answer *a, const struct session_event *ev, void *arg)
{
    struct shared *shared = arg;
    if (ev->kind != SESSION_EVENT_DELTA || shared->answered)
        return;
    shared->answered = true;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        if (!strcmp(t->owner, "bob") && t->hot)
            shared->left = t->n_prompt - engine_seq_length(t->hot->seq);
}

/* Whoever waits for what a background turn computes is not behind all others for that. */
static void test_waits_for_the_background(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 16384, .step_tokens = 64});
    struct shared shared = {.there = GATE_CLOSED, .on = GATE_CLOSED};
    char *long_text = rig_text(5, 12000), *text = rig_text(6, 1500);
    struct answer *a = rig_begin(
        rig,
        (struct ask){
            .owner = "bob", .text = long_text, .max = 1, .hook = reads_on, .hook_arg = &shared, .ephemeral = true});
    gate_wait(&shared.there, 1);
    struct answer *b = rig_begin(rig, (struct ask){.text = text, .request = "{}", .max = 1});
    gate_open(&shared.on);
    gate_wait(&shared.there, 2);
    struct answer *c =
        rig_begin(rig, (struct ask){.text = text, .hook = answers, .hook_arg = &shared, .ephemeral = true});
    gate_open(&shared.on);
    rig_end(c);
    rig_end(b);
    rig_end(a);
    assert_true(shared.answered);
    assert_true(shared.left > 0);
    assert_true(c->receipt.hot > 1000);
    free(long_text);
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_while_it_waits),
        cmocka_unit_test(test_is_stopped_while_it_is_read),
        cmocka_unit_test(test_is_stopped_in_a_read),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_short_behind_long),
        cmocka_unit_test(test_waits_for_the_background),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* lookup_test.c - what a turn follows, and that two turns never run on one conversation. */
#include "tests/session/meeting.h"

#include <sched.h>
#include <stdatomic.h>

static void wait_at_first_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA)
        gate_wait(arg, 1);
}

struct met {
    struct gate there, on;
};

static void meet_at_first_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    struct met *met = arg;
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA) {
        gate_open(&met->there);
        gate_wait(&met->on, 1);
    }
}

static void test_locked(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *first = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    struct gate gate = GATE_CLOSED;
    struct answer *a = rig_begin(
        rig, (struct ask){
                 .text = "one", .conversation = "conv_a", .max = 30, .hook = wait_at_first_delta, .hook_arg = &gate});
    struct answer *b = rig_begin(rig, (struct ask){.text = "two", .conversation = "conv_a"});
    struct answer *c = rig_begin(rig, (struct ask){.text = "three", .previous = first->id});
    struct answer *d = rig_begin(rig, (struct ask){.owner = "bob", .text = "four", .conversation = "conv_a"});
    gate_open(&gate);
    rig_end(a);
    rig_end(b);
    rig_end(c);
    rig_end(d);
    assert_false(a->failed);
    assert_true(b->failed);
    assert_int_equal(b->failure, SESSION_CONVERSATION_LOCKED);
    assert_true(c->failed);
    assert_int_equal(c->failure, SESSION_CONVERSATION_LOCKED);
    assert_true(d->failed);
    assert_int_equal(d->failure, SESSION_CONVERSATION_NOT_FOUND);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, a->id);
    /* Over: the next may run. */
    struct answer *e = rig_ask(rig, (struct ask){.text = "two", .conversation = "conv_a"});
    assert_int_equal(e->receipt.turn, 3);
    rig_only_new(e);
    rig_close(rig);
}

/* Who stops an answer and asks at once is not refused, but follows what there is of it; and so on. */
static void test_behind_one_that_ends(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct met met = {GATE_CLOSED, GATE_CLOSED};
    struct answer *a = rig_begin(
        rig, (struct ask){
                 .text = "one", .conversation = "conv_a", .max = 900, .hook = meet_at_first_delta, .hook_arg = &met});
    gate_wait(&met.there, 1);
    session_cancel(rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
    struct answer *b = rig_begin(rig, (struct ask){.text = "two", .conversation = "conv_a"});
    struct answer *c = rig_begin(rig, (struct ask){.text = "three", .conversation = "conv_a"}); /* b will run */
    session_cancel(rig->s, "ann", b->id, SESSION_STOP_CANCELLED);
    struct answer *d = rig_begin(rig, (struct ask){.text = "four", .conversation = "conv_a"}); /* b will end */
    gate_open(&met.on);
    struct answer *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        rig_end(all[i]);
    assert_true(a->incomplete && a->output < 900);
    assert_true(b->incomplete && b->output == 0);
    assert_true(c->failed && c->failure == SESSION_CONVERSATION_LOCKED);
    assert_false(d->failed);
    assert_int_equal(d->receipt.turn, 3);
    assert_true(d->receipt.history >= a->input + a->output - 1);
    rig_close(rig);
}

static void note_other(struct answer *a, const struct session_event *ev, void *arg)
{
    struct answer **other = arg; /* NULL, when it was over before this one */
    if (ev->kind == SESSION_EVENT_FAILED && (*other)->over)
        *other = NULL;
    (void)a;
}

/* Who waits for a warm-up that adds messages, and is stopped, does not wait for its end. */
static void test_stopped_behind_a_warm_up(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64});
    struct meeting m = {GATE_CLOSED, GATE_CLOSED};
    char *text = rig_text(1, 3000);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *warm = rig_begin(
        rig,
        (struct ask){.conversation = "conv_a", .text = text, .warm = true, .hook = meet_at_prefill, .hook_arg = &m});
    struct answer *beside = warm;
    gate_wait(&m.there, 1);
    struct answer *a = rig_begin(
        rig, (struct ask){.conversation = "conv_a", .text = "hello", .hook = note_other, .hook_arg = &beside});
    session_cancel(rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
    gate_open(&m.on);
    rig_end(a);
    assert_true(a->failed && !a->started && a->failure == SESSION_CONVERSATION_LOCKED);
    assert_ptr_equal(beside, warm);
    rig_end(warm);
    assert_false(warm->failed || warm->incomplete);
    struct answer *b = rig_ask(rig, (struct ask){.conversation = "conv_a", .text = "hello"});
    rig_only_new(b);
    assert_int_equal(b->receipt.history, warm->input);
    free(text);
    rig_close(rig);
}

/* A chain is not locked: two answers to one response are two branches. */
static void test_chains_branch(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *first = rig_ask(rig, (struct ask){.text = "hello"});
    struct answer *a = rig_begin(rig, (struct ask){.text = "one", .previous = first->id});
    struct answer *b = rig_begin(rig, (struct ask){.text = "two", .previous = first->id});
    rig_end(a);
    rig_end(b);
    assert_false(a->failed || b->failed);
    assert_string_equal(a->conversation, first->conversation);
    assert_string_equal(b->conversation, first->conversation);
    rig_close(rig);
}

static void test_not_found(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_refused(rig, (struct ask){.text = "x", .previous = "resp_none"}, SESSION_PREVIOUS_NOT_FOUND);
    rig_refused(rig, (struct ask){.text = "x", .conversation = "conv_none"}, SESSION_CONVERSATION_NOT_FOUND);
    rig_refused(rig, (struct ask){.text = "x", .conversation = "conv_a", .parent = "resp_none"},
                SESSION_PREVIOUS_NOT_FOUND);
    rig_refused(rig, (struct ask){.text = "x", .conversation = "conv_b", .parent = a->id}, SESSION_PREVIOUS_NOT_FOUND);
    rig_close(rig);
}

static void test_parent(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello there", .conversation = "conv_a"});
    struct answer *b = rig_ask(rig, (struct ask){.text = "one", .conversation = "conv_a"});
    struct answer *c = rig_ask(rig, (struct ask){.text = "two", .conversation = "conv_a", .parent = a->id});
    rig_only_new(c);
    assert_int_equal(b->receipt.turn, 2);
    assert_int_equal(c->receipt.turn, 2);
    assert_true(c->receipt.history >= a->input + a->output - 1);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, c->id);
    struct answer *d = rig_ask(rig, (struct ask){.text = "start", .conversation = "conv_a", .parent = ""});
    assert_int_equal(d->receipt.turn, 1);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, d->id);
    rig_close(rig);
}

/* Chat completions carry the whole history; the stored tokens stand in for what is unchanged. */
static void test_match(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct engine_message m[5] = {{.role = ENGINE_USER, .text = text, .len = strlen(text)}};
    struct answer *a = rig_ask(rig, (struct ask){.match = true, .messages = m, .n_messages = 1, .seed = 1});
    assert_int_equal(a->receipt.history, 0);
    m[1] = (struct engine_message){.role = ENGINE_ASSISTANT, .text = a->text, .len = a->len};
    m[2] = (struct engine_message){.role = ENGINE_USER, .text = "go on", .len = 5};
    struct answer *b = rig_ask(rig, (struct ask){.match = true, .messages = m, .n_messages = 3, .seed = 2});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    assert_string_equal(b->conversation, a->conversation);
    m[3] = (struct engine_message){.role = ENGINE_ASSISTANT, .text = b->text, .len = b->len};
    m[4] = (struct engine_message){.role = ENGINE_USER, .text = "and on", .len = 6};
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct answer *c = rig_ask(rig, (struct ask){.match = true, .messages = m, .n_messages = 5, .seed = 3});
    rig_only_new(c);
    assert_true(c->receipt.disk >= b->input + b->output - 1);
    /* Another owner's history is no match, nor is one whose answer was edited. */
    struct answer *d =
        rig_ask(rig, (struct ask){.owner = "bob", .match = true, .messages = m, .n_messages = 5, .seed = 3});
    assert_int_equal(d->receipt.history, 0);
    assert_string_not_equal(d->conversation, a->conversation);
    m[3] = (struct engine_message){.role = ENGINE_ASSISTANT, .text = "something else", .len = 14};
    struct answer *e = rig_ask(rig, (struct ask){.match = true, .messages = m, .n_messages = 5, .seed = 3});
    rig_only_new(e);
    assert_true(e->receipt.history >= a->input + a->output - 1);
    assert_true(e->receipt.history < c->receipt.history);
    free(text);
    rig_close(rig);
}

struct pause {
    struct gate begun, go;
};

static void pause_at_first_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    struct pause *pause = arg;
    (void)a;
    if (ev->kind != SESSION_EVENT_DELTA)
        return;
    gate_open(&pause->begun);
    gate_wait(&pause->go, 1);
}

/* Holds the engine at the answer's first delta until the session is to end. */
static void pause_until_the_end(struct answer *a, const struct session_event *ev, void *arg)
{
    struct session *s = a->rig->s;
    bool stop = ev->kind != SESSION_EVENT_DELTA;
    if (!stop)
        gate_open(arg);
    while (!stop) {
        pthread_mutex_lock(&s->lock);
        stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        sched_yield();
    }
}

/* A background turn that waits over a restart goes on where it was accepted: its history is there once, be it that it
 * went on what was matched (0), that this was of a listed conversation (1), or that nothing was (2). */
static void test_match_in_the_queue(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct rig *rig = rig_open((struct rig_opts){.max_running = 1});
        struct gate begun = GATE_CLOSED;
        char *text = rig_text(1, 300);
        assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
        struct answer *first =
            rig_ask(rig, (struct ask){.text = text, .conversation = how == 1 ? "conv_a" : NULL, .seed = 1});
        const struct engine_message m[] = {{.role = ENGINE_USER, .text = text, .len = strlen(text)},
                                           {.role = ENGINE_ASSISTANT, .text = first->text, .len = first->len},
                                           {.role = ENGINE_USER, .text = how == 2 ? "no" : "go on", .len = 2}};
        struct ask ask = {.match = true, .messages = m + (how == 2 ? 2 : 0), .n_messages = how == 2 ? 1 : 3, .seed = 2};
        ask.count = true;
        int counted = rig_ask(rig, ask)->input;
        ask.count = false;
        rig_saved(rig);
        struct answer *other =
            rig_begin(rig, (struct ask){.text = "one", .max = 300, .hook = pause_until_the_end, .hook_arg = &begun});
        gate_wait(&begun, 1);
        ask.request = "{}";
        struct answer *queued = rig_begin(rig, ask);
        rig_stop(rig);
        rig_end(other);
        rig_end(queued);
        assert_int_equal(queued->failure, SESSION_SHUTDOWN);
        rig_start(rig, rig->o);
        rig->n_ids = (unsigned)atoi(queued->id + strlen("resp_")) - 1;
        ask.requeued = true;
        struct answer *again = rig_ask(rig, ask);
        assert_string_equal(again->id, queued->id);
        assert_int_equal(again->input, counted);
        rig_only_new(again);
        assert_true(how == 2 || again->receipt.history >= first->input + first->output - 1);
        assert_int_equal(again->receipt.turn, how == 0 ? 2 : 1);
        free(text);
        rig_close(rig);
    }
}

/* One that was given back, and is stopped while a warm-up is in its way, ends in the ledger, too. */
static void test_given_back_and_stopped(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1, .step_tokens = 64});
    struct gate begun = GATE_CLOSED;
    struct meeting m = {GATE_CLOSED, GATE_CLOSED};
    char *text = rig_text(1, 1000), saved[64], status[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *other =
        rig_begin(rig, (struct ask){.text = "one", .max = 300, .hook = pause_until_the_end, .hook_arg = &begun});
    gate_wait(&begun, 1);
    struct ask ask = {.conversation = "conv_a", .text = "hello", .request = "{}"};
    struct answer *queued = rig_begin(rig, ask);
    rig_stop(rig);
    rig_end(other);
    rig_end(queued);
    rig_start(rig, rig->o);
    assert_int_equal(rig_stored(rig, "ann", queued->id, saved, status), 0);
    assert_string_equal(status, "queued");
    struct answer *warm = rig_begin(
        rig,
        (struct ask){.conversation = "conv_a", .text = text, .warm = true, .hook = meet_at_prefill, .hook_arg = &m});
    gate_wait(&m.there, 1);
    rig->n_ids = (unsigned)atoi(queued->id + strlen("resp_")) - 1;
    ask.requeued = true;
    struct answer *again = rig_begin(rig, ask);
    assert_string_equal(again->id, queued->id);
    session_cancel(rig->s, "ann", again->id, SESSION_STOP_CANCELLED);
    gate_open(&m.on);
    rig_end(again);
    rig_end(warm);
    assert_int_equal(rig_stored(rig, "ann", again->id, saved, status), 0);
    assert_string_not_equal(status, "queued");
    free(text);
    rig_close(rig);
}

static void test_too_many_wait(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1, .max_waiting = 2});
    struct pause pause = {GATE_CLOSED, GATE_CLOSED};
    struct answer *a[5];
    struct session_status status;
    assert_int_equal(session_retry_s(rig->s), 1); /* nobody waits, and nobody knows how long a turn takes */
    a[0] = rig_begin(rig, (struct ask){.text = "one", .max = 20, .hook = pause_at_first_delta, .hook_arg = &pause});
    gate_wait(&pause.begun, 1);
    for (int i = 1; i < 5; i++)
        a[i] = rig_begin(rig, (struct ask){.text = "more"});
    gate_open(&pause.go);
    for (int i = 0; i < 5; i++) {
        rig_end(a[i]);
        assert_int_equal(a[i]->failed, i > 2);
        if (a[i]->failed)
            assert_int_equal(a[i]->failure, SESSION_BUSY);
    }
    session_status(rig->s, &status);
    assert_true(status.turn_ms > 0);
    assert_in_range(session_retry_s(rig->s), 1, 60);
    rig_close(rig);
}

/* One owner's requests do not fill the queue: a part of it is for others. */
static void test_queue_is_shared(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1, .max_waiting = 4});
    struct pause pause = {GATE_CLOSED, GATE_CLOSED};
    struct answer *a[6];
    a[0] = rig_begin(rig, (struct ask){.text = "one", .max = 20, .hook = pause_at_first_delta, .hook_arg = &pause});
    gate_wait(&pause.begun, 1);
    for (int i = 1; i < 5; i++)
        a[i] = rig_begin(rig, (struct ask){.text = "more"});
    a[5] = rig_begin(rig, (struct ask){.owner = "bob", .text = "mine"});
    gate_open(&pause.go);
    for (int i = 0; i < 6; i++) {
        rig_end(a[i]);
        assert_int_equal(a[i]->failed, i == 4);
    }
    assert_int_equal(a[4]->failure, SESSION_BUSY);
    rig_close(rig);
}

/* Nor do several owners' who each ask without end. */
static void test_queue_of_many(void **state)
{
    (void)state;
    static const char *const owners[] = {"ann", "bob", "eve"};
    enum { EACH = 16, OWNERS = 3 };
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1, .max_waiting = EACH});
    struct pause pause = {GATE_CLOSED, GATE_CLOSED};
    struct answer *first = rig_begin(
                      rig, (struct ask){.text = "one", .max = 20, .hook = pause_at_first_delta, .hook_arg = &pause}),
                  *a[OWNERS][EACH];
    gate_wait(&pause.begun, 1);
    for (int k = 0; k < OWNERS; k++)
        for (int i = 0; i < EACH; i++)
            a[k][i] = rig_begin(rig, (struct ask){.owner = owners[k], .text = "more", .max = 1});
    gate_open(&pause.go);
    rig_end(first);
    for (int k = 0; k < OWNERS; k++) {
        int waited = 0;
        for (int i = 0; i < EACH; i++) {
            rig_end(a[k][i]);
            waited += !a[k][i]->failed;
            assert_true(!a[k][i]->failed || a[k][i]->failure == SESSION_BUSY);
        }
        assert_in_range(waited, 1, EACH - EACH / 4);
        assert_true(k > 0 || waited == EACH - EACH / 4); /* who is alone */
    }
    rig_close(rig);
}

/* The end of turns, in their order. */
struct order {
    pthread_mutex_t lock; /* guards the rest */
    const struct answer *ended[8];
    int n;
};

static void note_end(struct answer *a, const struct session_event *ev, void *arg)
{
    struct order *order = arg;
    if (ev->kind == SESSION_EVENT_DONE)
        order->ended[order->n++] = a;
}

static void wait_started(struct answer *a)
{
    pthread_mutex_lock(&a->rig->lock);
    while (!a->started && !a->over)
        pthread_cond_wait(&a->rig->cond, &a->rig->lock);
    assert_false(a->over);
    pthread_mutex_unlock(&a->rig->lock);
}

/* Who has nothing running comes before who has, and both before the background. */
static void test_places_are_shared(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 2});
    struct order order = {.n = 0};
    struct answer *a[4], *running[2];
    for (int i = 0; i < 2; i++) {
        running[i] = rig_begin(rig, (struct ask){.owner = i ? "carl" : "ann", .text = "one", LONG_ANSWER});
        wait_started(running[i]);
    }
    static const char *const owners[] = {"ann", "ann", "ann", "bob"};
    for (int i = 0; i < 4; i++) {
        a[i] = rig_begin(rig, (struct ask){.owner = owners[i],
                                           .text = "more",
                                           .seed = (uint64_t)i,
                                           .max = 2,
                                           .request = i == 0 ? "{}" : NULL,
                                           .hook = note_end,
                                           .hook_arg = &order});
        wait_started(a[i]);
    }
    session_cancel(rig->s, "carl", running[1]->id, SESSION_STOP_CANCELLED);
    for (int i = 0; i < 4; i++) {
        rig_end(a[i]);
        assert_false(a[i]->failed);
    }
    assert_ptr_equal(order.ended[0], a[3]);
    assert_ptr_equal(order.ended[3], a[0]);
    session_cancel(rig->s, "ann", running[0]->id, SESSION_STOP_CANCELLED);
    rig_close(rig);
}

/* Who has nothing running does not wait for somebody who has all places: the youngest of those is put aside, and comes
 * back. */
static void test_a_place_for_everybody(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 2});
    struct session_status st;
    struct answer *running[2];
    for (int i = 0; i < 2; i++) {
        running[i] = rig_begin(rig, (struct ask){.text = i ? "two" : "one", LONG_ANSWER});
        wait_started(running[i]);
    }
    struct answer *bob = rig_begin(rig, (struct ask){.owner = "bob", .text = "more", .max = 2});
    rig_end(bob);
    assert_false(bob->failed);
    session_status(rig->s, &st);
    assert_int_equal(st.turns_put_aside, 1);
    for (int i = 0; i < 2; i++) {
        session_cancel(rig->s, "ann", running[i]->id, SESSION_STOP_CANCELLED);
        rig_end(running[i]);
        assert_string_equal(running[i]->reason, "cancelled");
        rig_only_new(running[i]);
    }
    rig_close(rig);
}

struct stay {
    struct met met;
    atomic_bool there, on;
};

static int nothing_run(struct storage_ledger *l, void *arg)
{
    (void)l, (void)arg;
    return 0;
}

static void meet_done(void *arg, int rc)
{
    struct met *met = arg;
    (void)rc;
    gate_open(&met->there);
    gate_wait(&met->on, 1);
}

/* Nothing but time orders it and what others do meanwhile: whoever looks at what the jobs before it have written is
 * found out by ThreadSanitizer. */
static int stay_run(struct storage_ledger *l, void *arg)
{
    struct stay *stay = arg;
    (void)l;
    atomic_store_explicit(&stay->there, true, memory_order_relaxed);
    while (!atomic_load_explicit(&stay->on, memory_order_relaxed))
        sched_yield();
    return 0;
}

/* A warm-up is being found when somebody asks something in its conversation. */
static void test_asked_while_one_is_found(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct stay stay = {.met = {GATE_CLOSED, GATE_CLOSED}};
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_saved(rig);
    const struct storage_job meet = {.run = nothing_run, .done = meet_done, .arg = &stay.met};
    assert_int_equal(storage_submit(rig->s->storage, meet), 0);
    gate_wait(&stay.met.there, 1);
    struct answer *warm = rig_begin(rig, (struct ask){.conversation = "conv_a", .warm = true});
    rig_saved(rig); /* the ledger was asked */
    assert_int_equal(storage_submit(rig->s->storage, (struct storage_job){.run = stay_run, .arg = &stay}), 0);
    gate_open(&stay.met.on);
    while (!atomic_load_explicit(&stay.there, memory_order_relaxed))
        sched_yield();
    struct answer *a = rig_begin(rig, (struct ask){.text = "go on", .conversation = "conv_a"});
    rig_saved(rig); /* it has begun */
    atomic_store_explicit(&stay.on, true, memory_order_relaxed);
    rig_end(warm);
    rig_end(a);
    assert_false(warm->failed || a->failed);
    assert_string_equal(warm->reason, "yielded");
    rig_only_new(a);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_behind_one_that_ends),
        cmocka_unit_test(test_stopped_behind_a_warm_up),
        cmocka_unit_test(test_asked_while_one_is_found),
        cmocka_unit_test(test_chains_branch),
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_parent),
        cmocka_unit_test(test_match),
        cmocka_unit_test(test_match_in_the_queue),
        cmocka_unit_test(test_given_back_and_stopped),
        cmocka_unit_test(test_too_many_wait),
        cmocka_unit_test(test_queue_is_shared),
        cmocka_unit_test(test_queue_of_many),
        cmocka_unit_test(test_places_are_shared),
        cmocka_unit_test(test_a_place_for_everybody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

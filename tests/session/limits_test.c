/* limits_test.c - who has as much as it may have is refused before any work, and goes on when it has deleted some. */
#include "tests/session/meeting.h"

#include <errno.h>
#include <unistd.h>

static void refused(struct rig *rig, struct ask ask, const char *says)
{
    struct answer *a = rig_begin(rig, ask);
    rig_end(a);
    assert_true(a->failed);
    assert_int_equal(a->failure, SESSION_QUOTA);
    assert_non_null(strstr(a->message, says));
    assert_false(a->started);
    assert_int_equal(a->n_prefill, 0);
}

static void test_conversations(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.limits = {.conversations = 2}});
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *chain = rig_ask(rig, (struct ask){.text = "one", .seed = 1});
    refused(rig, (struct ask){.text = "two", .seed = 2}, "2 conversations, and may have 2");
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), -EMFILE);
    /* What there is goes on, and so does what is not stored, and others. */
    struct answer *last = rig_ask(rig, (struct ask){.text = "more", .previous = chain->id, .seed = 3});
    (void)rig_ask(rig, (struct ask){.text = "more", .conversation = "conv_a", .seed = 4});
    (void)rig_ask(rig, (struct ask){.text = "aside", .ephemeral = true, .seed = 5});
    (void)rig_ask(rig, (struct ask){.text = "one", .owner = "bob", .seed = 1});
    assert_int_equal(rig_delete(rig, "ann", last->conversation), 0);
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), 0);
    struct session_status status;
    session_status(rig->s, &status);
    assert_int_equal(status.quota_refusals, 2);
    /* One owner may have more. */
    const struct session_owner_limits ann = {"ann", {.conversations = 3}};
    assert_int_equal(session_limits_set(rig->s, &(struct session_limits){.conversations = 1}, &ann, 1), 0);
    (void)rig_ask(rig, (struct ask){.text = "two", .seed = 2});
    refused(rig, (struct ask){.text = "again", .owner = "bob", .seed = 1}, "may have 1");
    rig_close(rig);
}

struct result {
    struct gate gate;
    int rc;
};

static void on_result(void *arg, const struct session_result *r)
{
    struct result *result = arg;
    result->rc = r->rc;
    gate_open(&result->gate);
}

static int instruct(struct rig *rig, const char *instructions)
{
    struct result r = {.gate = GATE_CLOSED};
    assert_int_equal(
        session_conversation_update(rig->s, "ann", "conv_a", NULL, NULL, instructions, NULL, on_result, &r), 0);
    gate_wait(&r.gate, 1);
    return r.rc;
}

/* What a conversation is told counts as well, and what would add to it is refused. */
static void test_texts(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.limits = {.ledger_bytes = 1000}});
    char *text = rig_text(1, 1200);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(instruct(rig, text), 0);
    refused(rig, (struct ask){.text = "more", .conversation = "conv_a", .seed = 2}, "may take 1000");
    text[strlen(text) - 1] = '.'; /* no longer than before */
    assert_int_equal(instruct(rig, text), 0);
    char *longer = rig_text(1, 2400);
    assert_int_equal(instruct(rig, longer), -EFBIG);
    assert_int_equal(instruct(rig, "Be brief."), 0);
    (void)rig_ask(rig, (struct ask){.text = "more", .conversation = "conv_a", .seed = 2});
    free(longer);
    free(text);
    rig_close(rig);
}

static void test_bytes(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.limits = {.ledger_bytes = 1000}});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .key = "k", .digest = 1, .seed = 1});
    refused(rig, (struct ask){.text = "more", .previous = a->id, .seed = 2}, "may take 1000");
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), -EFBIG);
    /* The same request once more is no other one. */
    struct answer *again = rig_begin(rig, (struct ask){.text = text, .key = "k", .digest = 1, .seed = 1});
    rig_end(again);
    assert_string_equal(again->stored, a->id);
    assert_int_equal(rig_delete_response(rig, "ann", a->id), 0);
    (void)rig_ask(rig, (struct ask){.text = "more", .seed = 2});
    free(text);
    rig_close(rig);
}

/* ---- pages ---- */

struct usage {
    struct gate gate;
    struct session_usage usage;
    bool known;
};

static void on_usage(void *arg, const struct session_result *r)
{
    struct usage *u = arg;
    u->known = r->usage != NULL;
    if (u->known)
        u->usage = *r->usage;
    gate_open(&u->gate);
}

/* When what was begun is over: a turn gives its pages back behind its last event, and they may go when they are saved.
 */
static int64_t tokens_in_pages(struct rig *rig, const char *owner)
{
    rig_saved(rig);
    rig_saved(rig);
    struct usage u = {.gate = GATE_CLOSED};
    assert_int_equal(session_usage(rig->s, owner, on_usage, &u), 0);
    gate_wait(&u.gate, 1);
    assert_true(u.known);
    return (int64_t)(u.usage.kv_bytes / session_model(rig->s)->kv_token_bytes);
}

static void limit_tokens(struct rig *rig, int64_t tokens)
{
    const struct session_limits all = {.kv_bytes = (uint64_t)tokens * session_model(rig->s)->kv_token_bytes};
    assert_int_equal(session_limits_set(rig->s, &all, NULL, 0), 0);
}

static void tier_is(struct rig *rig, const char *owner, const char *conversation, const char *wanted)
{
    char tier[64];
    (void)tokens_in_pages(rig, owner);
    assert_int_equal(rig_tier(rig, owner, conversation, tier), 0);
    assert_string_equal(tier, wanted);
}

/* What was used longest ago leaves the pages, of that owner alone, and costs nothing when it comes back. */
static void test_pages(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text[2] = {rig_text(1, 100), rig_text(2, 100)};
    (void)rig_ask(rig, (struct ask){.text = text[0], .owner = "bob", .seed = 1});
    struct answer *other = rig_ask(rig, (struct ask){.text = text[1], .owner = "bob", .seed = 1});
    struct answer *first = rig_ask(rig, (struct ask){.text = text[0], .seed = 1});
    int64_t one = tokens_in_pages(rig, "ann"), bobs = tokens_in_pages(rig, "bob");
    assert_in_range(one, 100, 300);
    limit_tokens(rig, one + one / 2);
    struct answer *second = rig_ask(rig, (struct ask){.text = text[1], .seed = 2});
    tier_is(rig, "ann", first->conversation, "stored");
    tier_is(rig, "ann", second->conversation, "hot");
    tier_is(rig, "bob", other->conversation, "hot");
    assert_in_range(tokens_in_pages(rig, "ann"), 1, one + one / 2);
    assert_int_equal(tokens_in_pages(rig, "bob"), bobs); /* has used nothing since */
    rig_saved(rig);
    struct answer *back = rig_ask(rig, (struct ask){.text = "more", .previous = first->id, .seed = 3});
    rig_only_new(back);
    assert_true(back->receipt.ram > 0);
    tier_is(rig, "ann", second->conversation, "stored");
    /* One that is larger than all it may have runs, and stays nowhere. */
    limit_tokens(rig, 20);
    struct answer *large = rig_ask(rig, (struct ask){.text = "and more", .previous = back->id, .seed = 4});
    rig_only_new(large);
    tier_is(rig, "ann", large->conversation, "stored");
    struct session_status status;
    session_status(rig->s, &status);
    assert_int_equal(status.quota_evictions, 3);
    assert_int_equal(tokens_in_pages(rig, "ann"), 0);
    free(text[0]);
    free(text[1]);
    rig_close(rig);
}

/* What several begin with counts once. */
static void test_shared_pages(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 200);
    struct answer *root = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    int64_t one = tokens_in_pages(rig, "ann");
    limit_tokens(rig, 2 * one);
    for (int i = 0; i < 3; i++)
        (void)rig_ask(rig, (struct ask){.text = "on", .previous = root->id, .seed = 2 + (uint64_t)i, .max = 4});
    int64_t all = tokens_in_pages(rig, "ann");
    assert_true(all > one && all < 2 * one);
    free(text);
    rig_close(rig);
}

struct beside {
    bool waits, runs; /* the other turn, for room; or beside this one */
    uint64_t evicted; /* until then */
};

/* Goes on until the other one has been let in, or passed over, and then ends. */
static void look_beside(struct answer *a, const struct session_event *ev, void *arg)
{
    struct beside *b = arg;
    if (ev->kind != SESSION_EVENT_DELTA || b->waits || b->runs)
        return;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next) {
        bool other = strcmp(t->response_id, a->id) != 0;
        b->waits |= other && t->state == TURN_WAITING && t->place.passed;
        b->runs |= other && (t->state == TURN_PLANNING || t->state == TURN_RUNNING);
    }
    b->evicted = a->rig->s->status.quota_evictions;
    for (struct turn *t = a->rig->s->turns; t; t = t->next)
        t->end.cancelled |= (b->waits || b->runs) && !strcmp(t->response_id, a->id);
    if (!b->waits && !b->runs)
        usleep(1000);
}

/* A turn that has no room beside those of its owner waits for one of them to end; until then nothing goes for it. */
static void test_pages_of_turns(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 4});
    char *text[2] = {rig_text(1, 100), rig_text(2, 100)};
    (void)rig_ask(rig, (struct ask){.text = "idle", .seed = 1});
    for (int limited = 0; limited < 2; limited++) {
        struct beside b = {0};
        (void)tokens_in_pages(rig, "ann");   /* nothing is still to go */
        limit_tokens(rig, limited ? 50 : 0); /* the second one alone has more */
        struct answer *first = rig_begin(
            rig,
            (struct ask){
                .text = "on and on", LONG_ANSWER, .seed = 1, .ephemeral = true, .hook = look_beside, .hook_arg = &b});
        struct answer *second = rig_begin(rig, (struct ask){.text = text[limited], .seed = 9});
        rig_end(first);
        rig_end(second);
        assert_false(second->failed);
        assert_int_equal(b.waits, limited);
        assert_int_equal(b.runs, !limited);
        assert_int_equal(b.evicted, 0);
    }
    free(text[0]);
    free(text[1]);
    rig_close(rig);
}

static void hang(struct answer *a, const struct session_event *ev, void *arg)
{
    struct meeting *m = arg;
    if (ev->kind != SESSION_EVENT_DELTA || a->n_delta != 3)
        return;
    gate_open(&m->there);
    gate_wait(&m->on, 1);
}

/* What is in pages is the engine's to say; when it hangs, who asks hears of the rest. */
static void test_usage_while_the_engine_hangs(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct meeting m = {GATE_CLOSED, GATE_CLOSED};
    struct usage early = {.gate = GATE_CLOSED}, u = {.gate = GATE_CLOSED};
    (void)rig_ask(rig, (struct ask){.text = "hello", .seed = 1});
    struct answer *a = rig_begin(rig, (struct ask){.text = "on", .seed = 2, .max = 30, .hook = hang, .hook_arg = &m});
    gate_wait(&m.there, 1);
    assert_int_equal(session_usage(rig->s, "ann", on_usage, &early), 0);
    rig_ledger(rig);
    pthread_mutex_lock(&rig->s->lock);
    rig->s->published_progress_ms = 1;
    pthread_mutex_unlock(&rig->s->lock);
    struct session_status st;
    session_status(rig->s, &st);
    assert_true(st.stuck);
    assert_int_equal(session_usage(rig->s, "ann", on_usage, &u), 0);
    gate_wait(&u.gate, 1);
    gate_wait(&early.gate, 1);
    assert_true(u.known && early.known);
    assert_false(u.usage.kv_known || early.usage.kv_known);
    assert_int_equal(u.usage.conversations, 2);
    gate_open(&m.on);
    rig_end(a);
    assert_true(tokens_in_pages(rig, "ann") > 0);
    rig_close(rig);
}

/* Its owner's own warm-up, or background turn, has the room that a turn wants: it is put aside, and comes back. */
static void test_background_makes_room(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64, .max_running = 4});
        limit_tokens(rig, 1000);
        meeting_of_background(rig, warm);
        rig_close(rig);
    }
}

static void hold_the_ledger(struct answer *a, const struct session_event *ev, void *arg)
{
    if (ev->kind == SESSION_EVENT_DONE)
        rig_hold_ledger(a->rig, arg);
}

struct look {
    struct gate gate;
    bool lost;
};

static void look_at_savings(struct session *s, void *arg)
{
    struct look *look = arg;
    for (const struct saving *saving = s->savings; saving; saving = saving->next)
        look->lost |= !saving->hot;
    gate_open(&look->gate);
}

/* What its owner has too much of goes when it is saved: a saving that fails finds its pages. */
static void test_pages_while_saving(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct gate ledger = GATE_CLOSED;
    struct look look = {.gate = GATE_CLOSED};
    limit_tokens(rig, 20);
    char *text = rig_text(1, 600);
    struct answer *a =
        rig_ask(rig, (struct ask){.text = text, .seed = 1, .hook = hold_the_ledger, .hook_arg = &ledger});
    assert_int_equal(session_post(rig->s, look_at_savings, &look), 0);
    gate_wait(&look.gate, 1);
    gate_open(&ledger);
    assert_false(look.lost);
    tier_is(rig, "ann", a->conversation, "stored");
    struct answer *b = rig_ask(rig, (struct ask){.text = "more", .previous = a->id, .seed = 2});
    rig_only_new(b);
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_usage_while_the_engine_hangs),
                                       cmocka_unit_test(test_background_makes_room),
                                       cmocka_unit_test(test_pages_while_saving),
                                       cmocka_unit_test(test_conversations),
                                       cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_texts),
                                       cmocka_unit_test(test_pages),
                                       cmocka_unit_test(test_shared_pages),
                                       cmocka_unit_test(test_pages_of_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* context_test.c - what a context consists of when the past changes, and when nothing of it is stored. */
#include "tests/session/meeting.h"

static int again(const struct answer *a, const char *reason)
{
    for (int i = 0; i < a->receipt.n_reprefilled; i++)
        if (!strcmp(a->receipt.reprefilled[i].reason, reason))
            return a->receipt.reprefilled[i].tokens;
    return 0;
}

/* ---- instructions ---- */

static void test_instructions_change(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .instructions = "be kind", .seed = 1});
    struct answer *b =
        rig_ask(rig, (struct ask){.text = "go on", .instructions = "be kind", .previous = a->id, .seed = 2});
    rig_only_new(b);
    /* Other instructions: everything behind them is prefilled again, and the receipt says why. */
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "and on", .instructions = "be rude", .previous = b->id, .seed = 3});
    int changed = again(c, "instructions_changed");
    assert_true(changed > b->input + b->output - 30);
    assert_int_equal(c->receipt.n_reprefilled, 1);
    assert_int_equal(c->receipt.prefilled, c->receipt.fresh + changed);
    assert_true(c->receipt.fresh < 60);
    assert_int_equal(c->receipt.turn, 3);
    /* From there it goes on as usual, also from storage. */
    struct answer *d =
        rig_ask(rig, (struct ask){.text = "still", .instructions = "be rude", .previous = c->id, .seed = 4});
    rig_only_new(d);
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct answer *e =
        rig_ask(rig, (struct ask){.text = "more", .instructions = "be rude", .previous = d->id, .seed = 5});
    rig_only_new(e);
    assert_true(e->receipt.history >= d->input + d->output - 1);
    /* Back to the first: what was computed under them is found. */
    struct answer *f =
        rig_ask(rig, (struct ask){.text = "and on", .instructions = "be kind", .previous = b->id, .seed = 6});
    rig_only_new(f);
    assert_true(f->receipt.history >= b->input + b->output - 1);
    /* The branch with the other ones, rebuilt with the first: its head is there, the rest is not. */
    struct answer *g =
        rig_ask(rig, (struct ask){.text = "last", .instructions = "be kind", .previous = c->id, .seed = 7});
    assert_true(g->cached >= b->input + b->output - 1);
    free(text);
    rig_close(rig);
}

static void on_update(void *arg, const struct session_result *r)
{
    if (r->rc == 0)
        gate_open(arg);
}

static void test_conversations_instructions(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct gate gate = GATE_CLOSED;
    assert_int_equal(rig_create(rig, "ann", "conv_a", "be kind"), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    struct answer *b = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    assert_int_equal(
        session_conversation_update(rig->s, "ann", "conv_a", NULL, NULL, "be brief", NULL, on_update, &gate), 0);
    gate_wait(&gate, 1);
    struct answer *c = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    assert_true(again(c, "instructions_changed") > 0);
    struct answer *d = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_only_new(d);
    /* "" takes them away, for good or for one turn. */
    assert_int_equal(session_conversation_update(rig->s, "ann", "conv_a", NULL, NULL, "", NULL, on_update, &gate), 0);
    gate_wait(&gate, 2);
    struct answer *e = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    assert_true(again(e, "instructions_changed") > 0);
    assert_int_equal(rig_create(rig, "ann", "conv_b", "be kind"), 0);
    assert_int_equal(rig_create(rig, "ann", "conv_c", NULL), 0);
    struct answer *f = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_b", .instructions = ""});
    struct answer *g = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_c"});
    assert_int_equal(f->input, g->input);
    rig_close(rig);
}

/* A turn that is stopped while its past is prefilled again under other instructions: what did not run is new. */
static void cancel_at_prefill(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    if (ev->kind == SESSION_EVENT_PROGRESS && !strcmp(ev->stage, "prefill"))
        session_cancel(a->rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
}

static void test_change_cut_short(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64});
    char *text = rig_text(1, 600);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .instructions = "be kind", .seed = 1});
    struct answer *b = rig_begin(
        rig, (struct ask){
                 .text = "go on", .instructions = "be rude", .previous = a->id, .seed = 2, .hook = cancel_at_prefill});
    rig_end(b);
    assert_false(b->failed);
    assert_string_equal(b->reason, "cancelled");
    assert_int_equal(again(b, "instructions_changed"), b->receipt.prefilled);
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "and on", .instructions = "be rude", .previous = b->id, .seed = 3});
    rig_only_new(c);
    free(text);
    rig_close(rig);
}

/* ---- not stored ---- */

static void test_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 400), saved[64], status[64];
    struct answer *a =
        rig_ask(rig, (struct ask){.text = text, .ephemeral = true, .instructions = "be kind", .seed = 1});
    assert_string_equal(a->conversation, "");
    struct answer *b = rig_ask(
        rig, (struct ask){.text = "go on", .ephemeral = true, .instructions = "be kind", .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_int_equal(b->receipt.hot, b->receipt.history);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    /* Two ways on from one response, and back to the first. */
    struct answer *c = rig_ask(rig, (struct ask){.text = "or this", .ephemeral = true, .previous = a->id, .seed = 3});
    rig_only_new(c);
    assert_true(c->receipt.history >= a->input + a->output - 1);
    struct answer *d = rig_ask(rig, (struct ask){.text = "and on", .ephemeral = true, .previous = b->id, .seed = 4});
    rig_only_new(d);
    assert_true(d->receipt.history >= b->input + b->output - 1);
    rig_refused(rig, (struct ask){.text = "x", .ephemeral = true, .instructions = "be rude", .previous = b->id},
                SESSION_INVALID);
    rig_refused(rig, (struct ask){.text = "x", .ephemeral = true, .previous = b->id, .owner = "bob"},
                SESSION_PREVIOUS_NOT_FOUND);
    /* Nothing of it is on disk. */
    rig_ledger(rig);
    assert_int_equal(rig_segments(rig), 0);
    assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), -ENOENT);
    session_forget(rig->s, "bob", d->id); /* not his */
    struct answer *e = rig_ask(rig, (struct ask){.text = "x", .ephemeral = true, .previous = d->id});
    rig_only_new(e);
    session_forget(rig->s, "ann", d->id);
    rig_refused(rig, (struct ask){.text = "x", .ephemeral = true, .previous = d->id}, SESSION_PREVIOUS_NOT_FOUND);
    free(text);
    rig_close(rig);
}

/* Dropped from pages it is nowhere, and the receipt says so. */
static void test_ephemeral_evicted(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 16});
    char *text = rig_text(1, 400), *other = rig_text(2, 700);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .ephemeral = true, .seed = 1});
    (void)rig_ask(rig, (struct ask){.owner = "bob", .text = other, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .ephemeral = true, .previous = a->id, .seed = 2});
    assert_int_equal(again(b, "not_saved"), b->receipt.history);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    free(text);
    free(other);
    rig_close(rig);
}

/* Following a stored response without being stored leaves the stored one as it was. */
static void test_ephemeral_after_stored(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 400), head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    rig_ledger(rig);
    uint64_t before = rig_segments(rig);
    struct answer *b = rig_ask(rig, (struct ask){.text = "title?", .ephemeral = true, .previous = a->id, .seed = 2});
    rig_only_new(b);
    rig_ledger(rig);
    assert_int_equal(rig_segments(rig), before);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, a->id);
    struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 3});
    rig_only_new(c);
    assert_int_equal(c->receipt.hot, c->receipt.history);
    struct answer *d = rig_ask(rig, (struct ask){.text = "and?", .ephemeral = true, .previous = b->id, .seed = 4});
    rig_only_new(d);
    assert_int_equal(d->receipt.hot, d->receipt.history);
    /* A stored turn may follow one that is not. */
    struct answer *e = rig_ask(rig, (struct ask){.text = "keep it", .previous = d->id, .seed = 5});
    rig_only_new(e);
    rig_saved(rig);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    struct answer *f = rig_ask(rig, (struct ask){.text = "kept?", .previous = e->id, .seed = 6});
    rig_only_new(f);
    assert_true(f->receipt.disk >= e->input + e->output - 1);
    rig_refused(rig, (struct ask){.text = "x", .ephemeral = true, .previous = d->id}, SESSION_PREVIOUS_NOT_FOUND);
    free(text);
    rig_close(rig);
}

static void forget_at_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    if (ev->kind == SESSION_EVENT_DELTA)
        session_forget(a->rig->s, "ann", arg);
}

static void wait_at_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA)
        gate_wait(arg, 1);
}

/* Forgotten while a turn that follows it runs. */
static void test_forgotten_while_followed(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .ephemeral = true, .instructions = "be kind"});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on",
                                                 .ephemeral = true,
                                                 .previous = a->id,
                                                 .max = 30,
                                                 .hook = forget_at_delta,
                                                 .hook_arg = a->id});
    rig_refused(rig, (struct ask){.text = "x", .ephemeral = true, .previous = a->id}, SESSION_PREVIOUS_NOT_FOUND);
    struct answer *c = rig_ask(rig, (struct ask){.text = "and on", .ephemeral = true, .previous = b->id});
    rig_only_new(c);
    rig_close(rig);
}

/* ---- stored behind what is not ---- */

static const char ADD[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}}]";

/* What the response was told stands in no item: where the past is read anew it would be lost. */
static void test_changed_behind_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    struct answer *a = rig_ask(rig, (struct ask){.text = "remember 7", .ephemeral = true, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .ephemeral = true, .previous = a->id, .seed = 2});
    struct answer *c = rig_ask(rig, (struct ask){.text = "and on", .previous = b->id, .seed = 3});
    struct answer *d = rig_ask(rig, (struct ask){.text = "yes", .previous = c->id, .seed = 4});
    const struct answer *const behind[] = {c, d};
    for (int i = 0; i < 2; i++) {
        struct ask ask = {.text = "which number?", .previous = behind[i]->id, .instructions = "be brief", .seed = 5};
        rig_refused(rig, ask, SESSION_INVALID);
        ask.instructions = NULL;
        ask.tools = ADD;
        ask.choice = SESSION_TOOLS_NONE;
        rig_refused(rig, ask, SESSION_INVALID);
        ask.tools = NULL;
        rig_only_new(rig_ask(rig, ask)); /* as it was it goes on */
    }
    rig_change_model(rig);
    rig_refused(rig, (struct ask){.text = "which number?", .previous = d->id}, SESSION_INVALID);
    rig_close(rig);
}

/* What has its whole past in its items can change, whatever of it was read before it was stored. */
static void test_changed_behind_what_was_read(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char said[1024] = "";
    (void)rig_ask(rig,
                  (struct ask){.text = "hello", .ephemeral = true, .seed = 1, .hook = keep_said, .hook_arg = said});
    const struct engine_message m[] = {{.role = ENGINE_USER, .text = "hello", .len = 5},
                                       {.role = ENGINE_ASSISTANT, .text = said, .len = strlen(said)},
                                       {.role = ENGINE_USER, .text = "go on", .len = 5}};
    struct answer *b = rig_ask(rig, (struct ask){.messages = m, .n_messages = 3, .match = true, .seed = 2});
    assert_true(b->receipt.history > 0);
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "and?", .previous = b->id, .instructions = "be brief", .seed = 3});
    assert_true(again(c, "instructions_changed") > 0);
    struct answer *d = rig_ask(rig, (struct ask){.text = "and?", .previous = c->id, .instructions = "be kind"});
    assert_true(again(d, "instructions_changed") > 0);
    struct answer *e =
        rig_ask(rig, (struct ask){.warm = true, .ephemeral = true, .instructions = "be kind", .tools = ADD, .seed = 4});
    struct answer *f = rig_ask(
        rig, (struct ask){.text = "hello", .previous = e->id, .tools = ADD, .choice = SESSION_TOOLS_NONE, .seed = 5});
    assert_true(f->receipt.history > 0);
    struct answer *g = rig_ask(rig, (struct ask){.text = "and?", .previous = f->id, .instructions = "be brief"});
    assert_true(again(g, "instructions_changed") > 0);
    rig_close(rig);
}

/* With an answer that was cut, all before it is gone on with. */
static void test_gone_on_with_behind_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *a =
        rig_ask(rig, (struct ask){.text = text, .ephemeral = true, .instructions = "be kind", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .max = 3, .seed = 2});
    assert_true(b->incomplete);
    rig_refused(rig, (struct ask){.continues = b->id, .instructions = "be brief", .max = 4}, SESSION_INVALID);
    struct answer *c = rig_ask(rig, (struct ask){.continues = b->id, .instructions = "be kind", .max = 4, .seed = 3});
    rig_only_new(c);
    assert_int_equal(c->input, b->input + b->output);
    assert_int_equal(c->receipt.prefilled, 1);
    session_forget(rig->s, "ann", a->id);
    struct answer *d = rig_ask(rig, (struct ask){.continues = c->id, .max = 4, .seed = 4});
    assert_int_equal(d->input, c->input + c->output);
    rig_saved(rig);
    rig_stop(rig);
    rig_start(rig, rig->o);
    struct ask ask = {.text = "and?", .previous = d->id, .instructions = "be kind", .seed = 5};
    struct answer *e = rig_ask(rig, ask);
    rig_only_new(e);
    assert_true(e->receipt.history >= d->input + d->output - 1);
    ask.instructions = "be brief";
    rig_refused(rig, ask, SESSION_INVALID);
    free(text);
    rig_close(rig);
}

/* So it is with a history that was found elsewhere, thinking and all. */
static void test_gone_on_with_behind_a_match(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = TINY_THINKS});
    char said[1024] = "", more[1024] = "";
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello",
                                                 .conversation = "conv_a",
                                                 .max = 20,
                                                 .thinking_tokens = 6,
                                                 .seed = 1,
                                                 .hook = keep_said,
                                                 .hook_arg = said});
    struct engine_message m[] = {{.role = ENGINE_USER, .text = "hello", .len = 5},
                                 {.role = ENGINE_ASSISTANT, .text = said, .len = strlen(said)},
                                 {.role = ENGINE_USER, .text = "go on", .len = 5},
                                 {.role = ENGINE_ASSISTANT, .text = more},
                                 {.role = ENGINE_USER, .text = "and?", .len = 4}};
    struct answer *b = rig_ask(
        rig, (struct ask){.messages = m, .n_messages = 3, .match = true, .max = 12, .thinking_tokens = 4, .seed = 2});
    assert_true(b->incomplete && b->receipt.history >= a->input + a->output - 1);
    /* With other instructions it is read anew: they are in the context. */
    assert_int_equal(rig_create(rig, "bob", "conv_b", NULL), 0);
    (void)rig_ask(
        rig,
        (struct ask){
            .text = "hello", .owner = "bob", .conversation = "conv_b", .max = 20, .thinking_tokens = 6, .seed = 1});
    struct answer *other = rig_ask(
        rig,
        (struct ask){
            .messages = m, .n_messages = 3, .match = true, .max = 12, .thinking_tokens = 4, .owner = "bob", .seed = 2});
    assert_true(other->receipt.history > 0);
    struct answer *brief = rig_ask(
        rig, (struct ask){.continues = other->id, .owner = "bob", .instructions = "be brief", .max = 2, .seed = 3});
    struct answer *plain = rig_ask(
        rig, (struct ask){
                 .messages = m, .n_messages = 3, .match = true, .owner = "bob", .instructions = "be brief", .max = 2});
    assert_int_equal(brief->input, plain->input + other->output);
    struct answer *c = rig_ask(
        rig, (struct ask){
                 .continues = b->id, .max = 6, .thinking_tokens = 4, .seed = 3, .hook = keep_said, .hook_arg = more});
    rig_only_new(c);
    assert_int_equal(c->input, b->input + b->output);
    assert_int_equal(c->receipt.prefilled, 1);
    m[3].len = strlen(more);
    struct answer *d = rig_ask(
        rig, (struct ask){.messages = m, .n_messages = 5, .match = true, .max = 6, .thinking_tokens = 4, .seed = 4});
    assert_true(d->receipt.history >= c->input + c->output - 1);
    rig_close(rig);
}

/* What failed stands for what it followed, as long as that is there. */
static void test_failed_behind_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z', .step_tokens = 64});
    struct answer *a = rig_ask(rig, (struct ask){.text = "remember 7", .ephemeral = true, .seed = 1});
    struct ask ask = {.text = "Z", .previous = a->id, .key = "key", .digest = 1, .seed = 2};
    struct answer *b = rig_begin(rig, ask);
    rig_end(b);
    assert_int_equal(b->failure, SESSION_MODEL);
    rig_refused(rig, (struct ask){.text = "which?", .previous = b->id}, SESSION_PREVIOUS_NOT_FOUND);
    rig_refused(rig, ask, SESSION_MODEL); /* it is tried again where it stood, */
    session_forget(rig->s, "ann", a->id);
    rig_refused(rig, ask, SESSION_PREVIOUS_NOT_FOUND); /* and nowhere else */
    rig_close(rig);
}

/* What waits in the queue over a restart does not begin without what it was to follow. */
static void test_queued_behind_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1});
    struct gate gate = GATE_CLOSED;
    char saved[64], status[64];
    struct answer *a = rig_ask(rig, (struct ask){.text = "remember 7", .ephemeral = true, .seed = 1});
    struct answer *other =
        rig_begin(rig, (struct ask){.text = "one", .max = 300, .hook = wait_at_delta, .hook_arg = &gate});
    struct ask ask = {.text = "which?", .previous = a->id, .request = "{}", .seed = 2};
    struct answer *queued = rig_begin(rig, ask);
    rig_ledger(rig);
    gate_open(&gate);
    rig_stop(rig);
    rig_end(other);
    rig_end(queued);
    assert_int_equal(queued->failure, SESSION_SHUTDOWN);
    rig_start(rig, rig->o);
    rig->n_ids = (unsigned)atoi(queued->id + strlen("resp_")) - 1;
    ask.requeued = true;
    rig_refused(rig, ask, SESSION_PREVIOUS_NOT_FOUND);
    rig_ledger(rig);
    assert_int_equal(rig_stored(rig, "ann", queued->id, saved, status), 0);
    assert_string_equal(status, "failed");
    rig_close(rig);
}

/* Nor does what is left of a response whose last item is deleted. */
static void test_cut_behind_ephemeral(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "remember 7", .ephemeral = true, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "which?", .previous = a->id, .seed = 2});
    rig_refused(
        rig,
        (struct ask){.text = "which?", .conversation = b->conversation, .parent = "", .replaces = b->id, .warm = true},
        SESSION_INVALID);
    rig_only_new(rig_ask(rig, (struct ask){.text = "and?", .previous = b->id, .seed = 3}));
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instructions_change),
        cmocka_unit_test(test_conversations_instructions),
        cmocka_unit_test(test_change_cut_short),
        cmocka_unit_test(test_ephemeral),
        cmocka_unit_test(test_ephemeral_evicted),
        cmocka_unit_test(test_ephemeral_after_stored),
        cmocka_unit_test(test_forgotten_while_followed),
        cmocka_unit_test(test_changed_behind_ephemeral),
        cmocka_unit_test(test_changed_behind_what_was_read),
        cmocka_unit_test(test_gone_on_with_behind_ephemeral),
        cmocka_unit_test(test_gone_on_with_behind_a_match),
        cmocka_unit_test(test_failed_behind_ephemeral),
        cmocka_unit_test(test_queued_behind_ephemeral),
        cmocka_unit_test(test_cut_behind_ephemeral),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

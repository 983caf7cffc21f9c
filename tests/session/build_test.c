/* build_test.c - contexts with much text are made beside the engine thread, and nothing else is different. */
#include "tests/session/meeting.h"

enum { MUCH = 30000 }; /* tokens */

struct seen {
    struct engine_tokens text; /* that are to be in its context */
    bool away, whole;          /* that was made beside the engine thread; they are in it */
};

static void look(struct answer *a, const struct session_event *ev, void *arg)
{
    struct seen *seen = arg;
    if (ev->kind != SESSION_EVENT_STARTED)
        return;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        if (!strcmp(t->response_id, a->id)) {
            seen->away = t->build.away;
            for (size_t at = 0; seen->text.n && at + seen->text.n <= t->context.n && !seen->whole; at++)
                seen->whole = !memcmp(t->context.ids + at, seen->text.ids, seen->text.n * sizeof *seen->text.ids);
        }
}

static struct rig *open_rig(void)
{
    return rig_open((struct rig_opts){.ctx = 65536});
}

/* What is short is not given away, and what is long has its tokens all the same. */
static void test_much_and_little(void **state)
{
    (void)state;
    struct rig *rig = open_rig();
    struct seen little = {0}, much = {0}, behind = {0};
    char *text = rig_text(1, MUCH);
    assert_int_equal(session_tokenize(rig->s, text, strlen(text), false, &much.text), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .hook = look, .hook_arg = &little});
    struct answer *b = rig_ask(rig, (struct ask){.text = text, .previous = a->id, .hook = look, .hook_arg = &much});
    struct answer *c = rig_ask(rig, (struct ask){.text = "on", .previous = b->id, .hook = look, .hook_arg = &behind});
    assert_false(little.away || behind.away);
    assert_true(much.away);
    rig_only_new(b);
    rig_only_new(c);
    assert_true(b->input > MUCH / 2 && c->receipt.history >= b->input + b->output - 1);
    assert_true(much.whole);
    engine_tokens_free(&much.text);
    free(text);
    rig_close(rig);
}

/* Too much is refused, with counts, as if it had been read at once. */
static void test_refused(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 65536, .kv_pages = 400}); /* 25600 tokens */
    char *text = rig_text(1, MUCH), count[32];
    assert_true(strlen(text) <= 25600u * (size_t)rig->s->info->token_bytes_max);
    struct answer *a = rig_begin(rig, (struct ask){.text = text});
    rig_end(a);
    assert_int_equal(a->failure, SESSION_CONTEXT_LENGTH);
    assert_non_null(strstr(a->message, "25599 fit"));
    struct answer *counted = rig_begin(rig, (struct ask){.text = text, .count = true});
    rig_end(counted);
    snprintf(count, sizeof count, "has %d tokens", counted->input);
    assert_non_null(strstr(a->message, count));
    free(text);
    rig_close(rig);
}

/* Two are found to be on one conversation while their contexts are made: one of them runs. */
static void test_meanwhile_locked(void **state)
{
    (void)state;
    struct rig *rig = open_rig();
    char *text = rig_text(1, MUCH);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *first = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    struct answer *a = rig_begin(rig, (struct ask){.text = text, .conversation = "conv_a"});
    struct answer *b = rig_begin(rig, (struct ask){.text = text, .previous = first->id});
    rig_end(a);
    rig_end(b);
    assert_int_equal(a->failed + b->failed, 1);
    assert_int_equal((a->failed ? a : b)->failure, SESSION_CONVERSATION_LOCKED);
    rig_only_new(a->failed ? b : a);
    free(text);
    rig_close(rig);
}

/* What it follows is not stored, and forgotten while it is made of it. */
static void test_meanwhile_forgotten(void **state)
{
    (void)state;
    struct rig *rig = open_rig();
    char *text = rig_text(1, MUCH);
    for (int i = 0; i < 4; i++) {
        struct answer *first = rig_ask(rig, (struct ask){.text = "hello", .ephemeral = true, .seed = (uint64_t)i});
        struct answer *a =
            rig_begin(rig, (struct ask){.text = text, .previous = first->id, .ephemeral = true, .seed = 1});
        if (i)
            session_forget(rig->s, "ann", first->id);
        rig_end(a);
        assert_true(!a->failed || a->failure == SESSION_PREVIOUS_NOT_FOUND);
        assert_true(i || a->receipt.history >= first->input + first->output - 1);
    }
    free(text);
    rig_close(rig);
}

/* Those that wait for it are not waited for at the end; nor are those that are stopped lost. */
static void test_meanwhile_ended(void **state)
{
    (void)state;
    struct rig *rig = open_rig();
    struct answer *a[4];
    char *text = rig_text(1, MUCH);
    for (int i = 0; i < 4; i++)
        a[i] = rig_begin(rig, (struct ask){.text = text, .seed = (uint64_t)i});
    session_cancel(rig->s, "ann", a[0]->id, SESSION_STOP_CANCELLED);
    rig_stop(rig);
    for (int i = 0; i < 4; i++) {
        rig_end(a[i]);
        assert_true(a[i]->failed ? a[i]->failure == SESSION_SHUTDOWN : a[i]->incomplete);
    }
    rig_start(rig, rig->o);
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_much_and_little),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_meanwhile_locked), cmocka_unit_test(test_meanwhile_forgotten),
        cmocka_unit_test(test_meanwhile_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* limits_test.c - who has as much as it may have is refused before any work, and goes on when it has deleted some. */
#include "tests/session/harness.h"

#include <errno.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations), cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

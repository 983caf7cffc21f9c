/* ledger_turns_test.c - turns: fields, branches, paths, matching, deleting. */
#include "tests/storage/storage_testing.h"

static char *dir;
static struct storage *st;
static int64_t owner, conv;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    st = testing_open(dir);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

static int fields_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    char id[] = "resp_x", reason[] = "cancelled", text[] = "sys", input[] = "[]", output[] = "Hi", detail[] = "{}";
    char tokens[] = "\1\0\2\0";
    struct storage_turn t = {.owner = owner,
                             .conversation = conv,
                             .public_id = id,
                             .status = STORAGE_TURN_INCOMPLETE,
                             .reason = reason,
                             .instructions = text,
                             .input = input,
                             .output = output,
                             .detail = detail,
                             .tokens = tokens,
                             .tokens_bytes = 4,
                             .prompt_bytes = 2,
                             .rebased = true,
                             .n_tokens = 11,
                             .fingerprint = {7},
                             .chat_hash = {9},
                             .created_ms = 1,
                             .completed_ms = 2},
                        got;
    struct storage_conversation c;
    JOB_CHECK((storage_turn_insert(l, &t)) == (0));
    JOB_CHECK((storage_turn_insert(l, &t)) == (-EEXIST));
    JOB_CHECK((storage_turn_get(l, owner + 1, id, &got)) == (-ENOENT));
    JOB_CHECK((storage_turn_get(l, owner, id, &got)) == (0));
    JOB_CHECK((got.id) == (t.id));
    JOB_CHECK((got.conversation) == (conv));
    JOB_CHECK((got.parent) == (0));
    JOB_CHECK((got.status) == (STORAGE_TURN_INCOMPLETE));
    JOB_CHECK(!strcmp(got.reason, reason));
    JOB_CHECK(!strcmp(got.instructions, text));
    JOB_CHECK(!strcmp(got.input, input));
    JOB_CHECK(!strcmp(got.output, output));
    JOB_CHECK(!strcmp(got.detail, detail));
    JOB_CHECK((got.tokens_bytes) == (4));
    JOB_CHECK(!memcmp(got.tokens, tokens, 4));
    JOB_CHECK((got.prompt_bytes) == (2));
    JOB_CHECK(got.rebased);
    JOB_CHECK((got.n_tokens) == (11));
    JOB_CHECK(!memcmp(got.fingerprint, t.fingerprint, 32));
    JOB_CHECK(!memcmp(got.chat_hash, t.chat_hash, 32));
    JOB_CHECK((got.completed_ms) == (2));
    storage_turn_free(&got);
    storage_turn_free(NULL);
    JOB_CHECK((storage_turn_set_detail(l, t.id, "{\"saved\":\"yes\"}")) == (0));
    JOB_CHECK((storage_turn_set_detail(l, t.id + 1, "{}")) == (-ENOENT));
    JOB_CHECK((storage_turn_get(l, owner, id, &got)) == (0));
    JOB_CHECK(!strcmp(got.detail, "{\"saved\":\"yes\"}"));
    storage_turn_free(&got);
    char *public_id = NULL;
    JOB_CHECK((storage_turn_public_id(l, t.id, &public_id)) == (0));
    JOB_CHECK(!strcmp(public_id, id));
    free(public_id);
    JOB_CHECK((storage_turn_public_id(l, t.id + 1, &public_id)) == (-ENOENT));

    JOB_CHECK((storage_conversation_get(l, owner, "conv_1", &c)) == (0));
    c.head = t.id;
    JOB_CHECK((storage_conversation_update(l, &c)) == (0));
    storage_conversation_free(&c);
    JOB_CHECK((storage_conversation_get(l, owner, "conv_1", &c)) == (0));
    JOB_CHECK((c.n_turns) == (1));
    JOB_CHECK((c.n_tokens) == (11));
    storage_conversation_free(&c);

    /* Not in this conversation, not this owner's, more prompt than tokens. */
    char other[] = "resp_y";
    t.public_id = other;
    t.parent = t.id + 5;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-EINVAL));
    t.parent = 0;
    t.conversation = conv + 5;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT));
    t.conversation = conv;
    t.owner = owner + 1;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT));
    t.owner = owner;
    t.prompt_bytes = 5;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-EINVAL));
    return 0;
}

static void test_fields(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, fields_run, NULL), 0);
}

struct path {
    int64_t turn, owner;
    bool with_tokens;
    struct storage_turn *rows;
    size_t n;
};

static int path_run(struct storage_ledger *l, void *arg)
{
    struct path *p = arg;
    return storage_turn_path(l, p->owner, p->turn, p->with_tokens, &p->rows, &p->n);
}

static void path_is(int64_t turn, const char *const *ids, size_t n)
{
    for (int with = 0; with < 2; with++) {
        struct path p = {.turn = turn, .owner = owner, .with_tokens = with};
        assert_int_equal(jobs_call(st, path_run, &p), 0);
        assert_int_equal(p.n, n);
        for (size_t i = 0; i < n; i++) {
            assert_string_equal(p.rows[i].public_id, ids[i]);
            assert_true(!p.rows[i].tokens == !with);
            storage_turn_free(&p.rows[i]);
        }
        free(p.rows);
    }
}

static void test_branches(void **state)
{
    (void)state;
    int64_t a = testing_turn(st, owner, conv, 0, "a"), b = testing_turn(st, owner, conv, a, "b");
    int64_t c = testing_turn(st, owner, conv, b, "c"), d = testing_turn(st, owner, conv, a, "d");
    int64_t e = testing_turn(st, owner, conv, 0, "e");
    path_is(c, (const char *const[]){"a", "b", "c"}, 3);
    path_is(d, (const char *const[]){"a", "d"}, 2);
    path_is(e, (const char *const[]){"e"}, 1);
    struct path p = {.turn = c, .owner = owner + 1};
    assert_int_equal(jobs_call(st, path_run, &p), -ENOENT);
    p = (struct path){.turn = e + 1, .owner = owner};
    assert_int_equal(jobs_call(st, path_run, &p), -ENOENT);
    p = (struct path){.turn = 0, .owner = owner};
    assert_int_equal(jobs_call(st, path_run, &p), -ENOENT);

    assert_int_equal(testing_turn_delete(st, owner, "b"), -EBUSY);
    assert_int_equal(testing_turn_delete(st, owner + 1, "c"), -ENOENT);
    assert_int_equal(testing_turn_delete(st, owner, "c"), 0);
    assert_int_equal(testing_turn_delete(st, owner, "b"), 0);
    path_is(d, (const char *const[]){"a", "d"}, 2);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    p = (struct path){.turn = d, .owner = owner};
    assert_int_equal(jobs_call(st, path_run, &p), -ENOENT);
}

static int head_run(struct storage_ledger *l, void *arg)
{
    int64_t *head = arg;
    struct storage_conversation c;
    int rc = storage_conversation_get(l, owner, "conv_1", &c);
    if (rc)
        return rc;
    if (*head) {
        c.head = *head;
        rc = storage_conversation_update(l, &c);
    }
    *head = c.head;
    storage_conversation_free(&c);
    return rc;
}

static void test_delete_moves_head(void **state)
{
    (void)state;
    int64_t a = testing_turn(st, owner, conv, 0, "a"), b = testing_turn(st, owner, conv, a, "b"), head = b;
    assert_int_equal(jobs_call(st, head_run, &head), 0);
    assert_int_equal(testing_turn_delete(st, owner, "b"), 0);
    head = 0;
    assert_int_equal(jobs_call(st, head_run, &head), 0);
    assert_int_equal(head, a);
    assert_int_equal(testing_turn_delete(st, owner, "a"), 0);
    head = 0;
    assert_int_equal(jobs_call(st, head_run, &head), 0);
    assert_int_equal(head, 0);
}

static int match_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    uint8_t hash[32] = {3}, none[32] = {4}, model[32] = {5}, zero[32] = {0};
    int64_t turn, conversation, last = 0;
    char tokens[] = "t";
    for (int i = 0; i < 4; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "m%d", i);
        struct storage_turn t = {
            .owner = owner, .conversation = conv, .public_id = id, .tokens = tokens, .tokens_bytes = 1};
        if (i < 3)
            memcpy(t.chat_hash, hash, 32);
        if (i != 2)
            memcpy(t.fingerprint, model, 32);
        int rc = storage_turn_insert(l, &t);
        if (rc)
            return rc;
        if (i == 1)
            last = t.id;
    }
    JOB_CHECK((storage_turn_match(l, owner, hash, model, &turn, &conversation)) == (0));
    JOB_CHECK((turn) == (last));
    JOB_CHECK((conversation) == (conv));
    JOB_CHECK((storage_turn_match(l, owner, none, model, &turn, &conversation)) == (-ENOENT));
    JOB_CHECK((storage_turn_match(l, owner, zero, model, &turn, &conversation)) == (-ENOENT));
    JOB_CHECK((storage_turn_match(l, owner + 1, hash, model, &turn, &conversation)) == (-ENOENT));
    return 0;
}

static void test_match(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, match_run, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_branches, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_moves_head, setup, teardown),
        cmocka_unit_test_setup_teardown(test_match, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
    char id[] = "resp_x", reason[] = "cancelled", text[] = "sys", params[] = "{\"a\":1}", receipt[] = "{}", kv[] = "ff";
    char tokens[] = "\1\0\2\0", kind[] = "message", user[] = "user", assistant[] = "assistant";
    char asked[] = "Hello?", hi[] = "Hi", first[] = "msg_1", second[] = "msg_2", body[] = "{\"b\":2}";
    struct storage_item in = {.public_id = first, .kind = kind, .role = user, .text = asked, .created_ms = 1};
    struct storage_item out = {.public_id = second,
                               .kind = kind,
                               .role = assistant,
                               .text = hi,
                               .body = body,
                               .output = true,
                               .incomplete = true};
    struct storage_turn t = {.owner = owner,
                             .conversation = conv,
                             .public_id = id,
                             .status = STORAGE_TURN_RUNNING,
                             .instructions = text,
                             .params = params,
                             .digest = {8},
                             .items = &in,
                             .n_items = 1,
                             .fingerprint = {7},
                             .created_ms = 1},
                        got;
    struct storage_conversation c;
    JOB_CHECK((storage_turn_insert(l, &t)) == (0));
    JOB_CHECK((storage_turn_insert(l, &t)) == (-EEXIST));
    JOB_CHECK((storage_turn_get(l, owner + 1, id, 0, &got)) == (-ENOENT));

    /* Accepted: there, with its question, and in nobody's way. */
    JOB_CHECK((storage_turn_get(l, owner, id, STORAGE_TURN_ITEMS | STORAGE_TURN_TOKENS, &got)) == (0));
    JOB_CHECK((got.id) == (t.id));
    JOB_CHECK((got.status) == (STORAGE_TURN_RUNNING));
    JOB_CHECK((got.depth) == (1));
    JOB_CHECK((got.n_items) == (1));
    JOB_CHECK(!strcmp(got.items[0].text, asked));
    JOB_CHECK(!strcmp(got.items[0].role, user));
    JOB_CHECK(!got.tokens && !got.answered && !got.delivered);
    JOB_CHECK(got.age_ms >= 0 && got.age_ms < 60000);
    storage_turn_free(&got);
    JOB_CHECK((storage_conversation_get(l, owner, "conv_1", &c)) == (0));
    JOB_CHECK(c.n_turns == 0 && c.head == 0);
    storage_conversation_free(&c);
    int64_t running = t.id;
    t.parent = running;
    t.public_id = second;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT)); /* nothing follows what has not ended */
    t.parent = 0;
    t.public_id = id;
    t.id = running;

    t.status = STORAGE_TURN_INCOMPLETE;
    t.reason = reason;
    t.answered = t.rebased = true;
    t.items = &out;
    t.tokens = tokens;
    t.tokens_bytes = 4;
    t.prompt_bytes = 5;
    JOB_CHECK((storage_turn_commit(l, &t)) == (-EINVAL)); /* more prompt than tokens */
    t.prompt_bytes = 2;
    t.n_tokens = 11;
    t.evaluated = 10;
    t.chat_hash[0] = 9;
    t.receipt = receipt;
    t.kv = kv;
    t.saved = STORAGE_SAVED_PENDING;
    t.input_tokens = 5, t.cached_tokens = 3, t.output_tokens = 6;
    t.completed_ms = 2;
    JOB_CHECK((storage_turn_commit(l, &t)) == (0));
    JOB_CHECK((t.conversation) == (conv));
    JOB_CHECK((storage_turn_commit(l, &t)) == (-ENOENT)); /* once */
    JOB_CHECK((storage_turn_get(l, owner, id, STORAGE_TURN_ITEMS | STORAGE_TURN_TOKENS, &got)) == (0));
    JOB_CHECK((got.status) == (STORAGE_TURN_INCOMPLETE));
    JOB_CHECK(!strcmp(got.reason, reason) && !strcmp(got.instructions, text) && !strcmp(got.params, params));
    JOB_CHECK(!strcmp(got.receipt, receipt) && !strcmp(got.kv, kv));
    JOB_CHECK(got.saved == STORAGE_SAVED_PENDING && got.answered && got.rebased);
    JOB_CHECK((got.tokens_bytes) == (4));
    JOB_CHECK(!memcmp(got.tokens, tokens, 4));
    JOB_CHECK(got.prompt_bytes == 2 && got.n_tokens == 11 && got.evaluated == 10);
    JOB_CHECK(got.input_tokens == 5 && got.cached_tokens == 3 && got.output_tokens == 6);
    JOB_CHECK(got.fingerprint[0] == 7 && got.chat_hash[0] == 9);
    JOB_CHECK(got.created_ms == 1 && got.completed_ms == 2);
    JOB_CHECK((got.n_items) == (2));
    JOB_CHECK(got.items[1].output && got.items[1].incomplete && got.items[1].place == 1);
    JOB_CHECK(!strcmp(got.items[1].text, hi) && !strcmp(got.items[1].body, body));
    storage_turn_free(&got);
    storage_turn_free(NULL);
    JOB_CHECK((storage_turn_set_saved(l, t.id, STORAGE_SAVED_YES)) == (0));
    JOB_CHECK((storage_turn_set_saved(l, t.id + 1, STORAGE_SAVED_YES)) == (-ENOENT));
    JOB_CHECK((storage_turn_set_delivered(l, owner, id)) == (0));
    JOB_CHECK((storage_turn_set_delivered(l, owner + 1, id)) == (-ENOENT));
    JOB_CHECK((storage_turn_by_digest(l, owner, t.digest, INT64_MAX, &got)) == (0));
    JOB_CHECK(got.id == t.id && got.saved == STORAGE_SAVED_YES && got.delivered);
    storage_turn_free(&got);
    JOB_CHECK((storage_turn_by_digest(l, owner, t.digest, t.id, &got)) == (-ENOENT));
    JOB_CHECK((storage_turn_by_digest(l, owner, t.chat_hash, INT64_MAX, &got)) == (-ENOENT));
    char *public_id = NULL;
    JOB_CHECK((storage_turn_public_id(l, t.id, &public_id)) == (0));
    JOB_CHECK(!strcmp(public_id, id));
    free(public_id);
    JOB_CHECK((storage_turn_public_id(l, t.id + 1, &public_id)) == (-ENOENT));

    JOB_CHECK((storage_conversation_get(l, owner, "conv_1", &c)) == (0));
    JOB_CHECK(c.n_turns == 1 && c.n_tokens == 11 && c.head == t.id);
    storage_conversation_free(&c);

    /* Not in this conversation, not this owner's, ended from the start. */
    char other[] = "resp_y";
    t.public_id = other;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-EINVAL));
    t.status = STORAGE_TURN_RUNNING;
    t.items = &in;
    t.parent = t.id + 5;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT));
    t.parent = 0;
    t.conversation = conv + 5;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT));
    t.conversation = conv;
    t.owner = owner + 1;
    JOB_CHECK((storage_turn_insert(l, &t)) == (-ENOENT));
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
    return storage_turn_path(l, p->owner, p->turn, p->with_tokens ? STORAGE_TURN_TOKENS : 0, &p->rows, &p->n);
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
    *head = c.head;
    storage_conversation_free(&c);
    return rc;
}

static void test_delete_moves_head(void **state)
{
    (void)state;
    int64_t a = testing_turn(st, owner, conv, 0, "a"), b = testing_turn(st, owner, conv, a, "b"), head = 0;
    assert_int_equal(jobs_call(st, head_run, &head), 0);
    assert_int_equal(head, b);
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
        struct storage_turn t = {.owner = owner, .conversation = conv, .public_id = id, .status = STORAGE_TURN_RUNNING};
        int rc = storage_turn_insert(l, &t);
        if (rc)
            return rc;
        t.status = STORAGE_TURN_COMPLETED;
        t.tokens = tokens;
        t.tokens_bytes = 1;
        if (i < 3)
            memcpy(t.chat_hash, hash, 32);
        if (i != 2)
            memcpy(t.fingerprint, model, 32);
        if ((rc = storage_turn_commit(l, &t)))
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

/* ---- turns that did not end well ---- */

static int64_t insert(struct storage_ledger *l, int64_t parent, const char *id, enum storage_turn_status status)
{
    char name[32], item[40], kind[] = "message", text[] = "?";
    (void)snprintf(name, sizeof name, "%s", id);
    (void)snprintf(item, sizeof item, "msg_%s", id);
    struct storage_item in = {.public_id = item, .kind = kind, .text = text};
    struct storage_turn t = {.owner = owner,
                             .conversation = conv,
                             .parent = parent,
                             .public_id = name,
                             .status = status,
                             .items = &in,
                             .n_items = 1};
    if (status == STORAGE_TURN_QUEUED)
        t.request = text;
    int rc = storage_turn_insert(l, &t);
    return rc ? rc : t.id;
}

static int status_of(struct storage_ledger *l, const char *id)
{
    struct storage_turn t;
    int rc = storage_turn_get(l, owner, id, 0, &t);
    if (rc)
        return rc;
    int status = (int)t.status;
    storage_turn_free(&t);
    return status;
}

static int failed_run(struct storage_ledger *l, void *arg)
{
    int64_t a = *(int64_t *)arg, id;
    char *owner_name, *public_id, *request;
    int64_t b = insert(l, a, "b", STORAGE_TURN_RUNNING), q = insert(l, a, "q", STORAGE_TURN_QUEUED);
    JOB_CHECK(b > 0 && q > 0);
    JOB_CHECK((storage_turn_is_leaf(l, a)) == (0)); /* somebody waits for an answer to it */

    /* A start finds what an unclean end has left: who ran has failed, who waited waits. */
    JOB_CHECK((turns_interrupted(l, 5)) == (0));
    JOB_CHECK((status_of(l, "b")) == (STORAGE_TURN_FAILED));
    JOB_CHECK((storage_turn_queued(l, 0, &id, &owner_name, &public_id, &request)) == (0));
    JOB_CHECK(id == q && !strcmp(owner_name, "a") && !strcmp(public_id, "q") && !strcmp(request, "?"));
    free(owner_name), free(public_id), free(request);
    JOB_CHECK((storage_turn_queued(l, q, &id, &owner_name, &public_id, &request)) == (-ENOENT));
    JOB_CHECK((storage_turn_run(l, q)) == (0));
    JOB_CHECK((storage_turn_run(l, q)) == (-ENOENT));
    JOB_CHECK((storage_turn_queued(l, 0, &id, &owner_name, &public_id, &request)) == (-ENOENT));
    JOB_CHECK((storage_turn_fail(l, q, "out of memory", 7)) == (0));
    JOB_CHECK((storage_turn_fail(l, q, "again", 7)) == (-ENOENT));
    JOB_CHECK((status_of(l, "q")) == (STORAGE_TURN_FAILED));

    /* What failed holds nothing up: the turn before goes, and the questions stay behind the one before that. */
    JOB_CHECK((storage_turn_is_leaf(l, a)) == (1));
    JOB_CHECK((storage_turn_delete(l, owner, "a")) == (0));
    struct storage_turn t;
    JOB_CHECK((storage_turn_get(l, owner, "b", 0, &t)) == (0));
    JOB_CHECK((t.parent) == (0));
    storage_turn_free(&t);
    struct storage_conversation c;
    JOB_CHECK((storage_conversation_get(l, owner, "conv_1", &c)) == (0));
    JOB_CHECK(c.n_turns == 0 && c.head == 0);
    storage_conversation_free(&c);
    JOB_CHECK((storage_turn_delete(l, owner, "b")) == (0));
    JOB_CHECK((status_of(l, "b")) == (-ENOENT));
    JOB_CHECK((storage_turn_replace(l, owner, q)) == (0));
    JOB_CHECK((status_of(l, "q")) == (-ENOENT));
    return 0;
}

static void test_failed(void **state)
{
    (void)state;
    int64_t a = testing_turn(st, owner, conv, 0, "a");
    assert_int_equal(jobs_call(st, failed_run, &a), 0);
}

static int context_run(struct storage_ledger *l, void *arg)
{
    const int64_t *turns = arg;
    void *tokens;
    size_t n;
    JOB_CHECK((storage_turn_context(l, owner, turns[2], &tokens, &n)) == (0));
    JOB_CHECK(n == 24 && !memcmp(tokens, "tokens\0\0tokens\0\0tokens\0", 24));
    free(tokens);
    JOB_CHECK((storage_turn_context(l, owner + 1, turns[2], &tokens, &n)) == (-ENOENT));
    JOB_CHECK((storage_turn_context(l, owner, turns[2] + 5, &tokens, &n)) == (-ENOENT));
    return 0;
}

/* Whether the last turn's parents, but nobody else, hold what they are told to. */
static int held_run(struct storage_ledger *l, void *arg)
{
    const int64_t *turns = arg;
    uint8_t key[STORAGE_KEY_BYTES], held[STORAGE_KEY_BYTES], old[STORAGE_KEY_BYTES];
    testing_key(key, 1);
    testing_key(old, 2);
    for (int i = 1; i < 4; i += 2) /* of the parents one held something before */
        JOB_CHECK(segment_hold(l, turns[i], old) == 0);
    JOB_CHECK(storage_turns_hold(l, turns[2], TESTING_COUNT, key) == 0);
    JOB_CHECK(segment_held_by(l, turns[1], held) == 1 && !memcmp(held, old, sizeof held) && !l->n_superseded);
    JOB_CHECK(storage_turns_hold(l, turns[2], TESTING_COUNT - 1, key) == 0);
    for (int i = 0; i < 2; i++)
        JOB_CHECK(segment_held_by(l, turns[i], held) == 1 && !memcmp(held, key, sizeof held));
    JOB_CHECK(segment_held_by(l, turns[2], held) == 0);
    JOB_CHECK(segment_held_by(l, turns[3], held) == 1 && !memcmp(held, old, sizeof held));
    JOB_CHECK(l->n_superseded == 1 && !memcmp(l->superseded[0], old, sizeof old));
    JOB_CHECK(storage_turns_hold(l, turns[2] + 9, 0, key) == 0); /* there is no such turn */
    return 0;
}

/* Turns whose saving had not ended when the process did: to where their KV goes is what they were told to have, which
 * may be all of the context, or less than all but its last token. */
static int unfinished_run(struct storage_ledger *l, void *arg)
{
    char sql[160];
    (void)snprintf(sql, sizeof sql, "UPDATE turns SET saved = 1, n_tokens = %u, evaluated = %d", TESTING_COUNT + 1,
                   *(const int *)arg);
    return schema_errno(sqlite3_exec(l->db, sql, NULL, NULL, NULL));
}

static int saved_run(struct storage_ledger *l, void *arg)
{
    struct storage_turn t;
    int rc = storage_turn_get(l, owner, "a", 0, &t);
    *(int *)arg = rc ? rc : (int)t.saved;
    if (!rc)
        storage_turn_free(&t);
    return 0;
}

static void test_unfinished(void **state)
{
    (void)state;
    static const int ends[] = {TESTING_COUNT - 2, TESTING_COUNT, TESTING_COUNT + 1};
    int64_t a = testing_turn(st, owner, conv, 0, "a");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, a, 1), 0);
    for (int i = 0; i < 3; i++) {
        int end = ends[i], saved;
        assert_int_equal(jobs_call(st, unfinished_run, &end), 0);
        storage_close(st);
        st = testing_open(dir);
        assert_int_equal(jobs_call(st, saved_run, &saved), 0);
        assert_int_equal(saved, i < 2 ? STORAGE_SAVED_YES : STORAGE_SAVED_FAILED);
    }
}

static void test_context(void **state)
{
    (void)state;
    int64_t turns[4];
    turns[0] = testing_turn(st, owner, conv, 0, "a");
    turns[1] = testing_turn(st, owner, conv, turns[0], "b");
    turns[2] = testing_turn(st, owner, conv, turns[1], "c");
    turns[3] = testing_turn(st, owner, conv, turns[0], "d");
    assert_int_equal(jobs_call(st, context_run, turns), 0);
    assert_int_equal(jobs_call(st, held_run, turns), 0);
}

static int64_t n_turns(struct storage_ledger *l)
{
    struct storage_conversation c;
    int rc = storage_conversation_get(l, owner, "conv_1", &c);
    int64_t n = rc ? rc : c.n_turns;
    storage_conversation_free(&c);
    return n;
}

static int gone_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    JOB_CHECK(n_turns(l) == 1);
    JOB_CHECK(storage_turn_delete(l, owner, "c") == 0);
    JOB_CHECK(storage_turn_delete(l, owner, "b") == 0);
    JOB_CHECK(n_turns(l) == 1);
    return 0;
}

static int head_back_run(struct storage_ledger *l, void *arg)
{
    struct storage_conversation c;
    JOB_CHECK(storage_conversation_get(l, owner, "conv_1", &c) == 0);
    c.head = *(int64_t *)arg;
    JOB_CHECK(storage_conversation_update(l, &c) == 0);
    storage_conversation_free(&c);
    return 0;
}

static void note(void *arg, const char *text)
{
    (void)arg;
    print_message("%s\n", text);
}

/* A head that was moved back counts the turns up to it, which a check takes for right; those behind it that go were not
 * among them. */
static void test_count_of_a_moved_head(void **state)
{
    (void)state;
    char err[256];
    struct storage_checked checked;
    int64_t a = testing_turn(st, owner, conv, 0, "a"), b = testing_turn(st, owner, conv, a, "b");
    (void)testing_turn(st, owner, conv, b, "c");
    assert_int_equal(jobs_call(st, head_back_run, &a), 0);
    assert_int_equal(jobs_call(st, gone_run, NULL), 0);
    (void)testing_turn(st, owner, conv, a, "d");
    (void)testing_turn(st, owner, conv, a, "e");
    assert_int_equal(jobs_call(st, head_back_run, &a), 0);
    storage_close(st);
    assert_int_equal(storage_verify(&(struct storage_opts){.dir = dir}, false, note, NULL, &checked, err, sizeof err),
                     0);
    assert_int_equal(checked.turns, 3);
    assert_int_equal(checked.wrong, 0);
    st = testing_open(dir);
}

/* ---- behind what is not stored ---- */

static int unstored_run(struct storage_ledger *l, void *arg)
{
    struct storage_turn got, t = {.owner = owner, .conversation = conv, .status = STORAGE_TURN_RUNNING};
    char first[] = "first", failed[] = "failed", why[] = "interrupted";
    (void)arg;
    t.public_id = first;
    t.unstored = true;
    JOB_CHECK(storage_turn_insert(l, &t) == 0);
    JOB_CHECK(storage_turn_get(l, owner, first, 0, &got) == 0);
    JOB_CHECK(got.unstored); /* from its acceptance on */
    storage_turn_free(&got);
    t.status = STORAGE_TURN_COMPLETED;
    t.rebased = true;
    t.tokens = (void *)"ab";
    t.tokens_bytes = 2;
    t.n_tokens = 2;
    JOB_CHECK(storage_turn_commit(l, &t) == 0);
    JOB_CHECK(storage_turn_get(l, owner, first, 0, &got) == 0);
    JOB_CHECK(got.unstored && got.rebased);
    storage_turn_free(&got);
    struct storage_turn after = {
        .owner = owner, .conversation = conv, .parent = t.id, .public_id = failed, .status = STORAGE_TURN_RUNNING};
    JOB_CHECK(storage_turn_insert(l, &after) == 0);
    JOB_CHECK(storage_turn_fail(l, after.id, why, 1) == 0);
    JOB_CHECK(storage_turn_get(l, owner, failed, 0, &got) == 0);
    JOB_CHECK(!got.unstored && !got.rebased && got.parent == t.id);
    storage_turn_free(&got);
    /* What failed behind it stands in its place when it goes. */
    JOB_CHECK(storage_turn_delete(l, owner, first) == 0);
    JOB_CHECK(storage_turn_get(l, owner, failed, 0, &got) == 0);
    JOB_CHECK(got.unstored && !got.parent);
    storage_turn_free(&got);
    return 0;
}

static void test_unstored(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, unstored_run, NULL), 0);
}

/* ---- contexts without thinking ---- */

/* As the turn's, of tokens that stand behind `base` (0: they are all). */
static int strip(struct storage_ledger *l, int64_t turn, int64_t base, const char *id, const char *tokens, int64_t *row)
{
    char kv[] = "ff";
    struct storage_turn t = {.owner = owner,
                             .public_id = (char *)id,
                             .strips = turn,
                             .base = base,
                             .rebased = !base,
                             .tokens = (void *)tokens,
                             .tokens_bytes = strlen(tokens),
                             .n_tokens = (int64_t)strlen(tokens) + (base ? 2 : 0),
                             .kv = kv,
                             .saved = STORAGE_SAVED_PENDING};
    int rc = storage_turn_strip(l, &t);
    *row = t.id;
    return rc;
}

static int stripped_run(struct storage_ledger *l, void *arg)
{
    const int64_t *turns = arg;
    int64_t first, second, third;
    struct storage_turn got, child, *page;
    struct storage_conversation c;
    void *tokens;
    size_t n;
    JOB_CHECK(strip(l, turns[0], 0, "context_1", "ab", &first) == 0);
    JOB_CHECK(strip(l, turns[0], 0, "context_2", "ab", &third) == -EEXIST);
    JOB_CHECK(strip(l, turns[1] + 100, first, "context_3", "cd", &third) == -ENOENT);
    JOB_CHECK(strip(l, turns[1], first, "context_3", "cd", &second) == 0);
    JOB_CHECK(storage_turn_stripped(l, owner + 1, turns[1], &got) == -ENOENT);
    JOB_CHECK(storage_turn_stripped(l, owner, turns[1], &got) == 0);
    JOB_CHECK(got.id == second && got.base == first && got.strips == turns[1] && !got.parent && !got.answered);
    JOB_CHECK(got.conversation == conv && got.n_tokens == 4 && got.saved == STORAGE_SAVED_PENDING);
    JOB_CHECK(storage_turn_is_held(l, &got) == 0);
    storage_turn_free(&got);
    /* What follows it has its tokens, and is a child of the turn all the same. */
    JOB_CHECK(storage_turn_is_leaf(l, turns[1]) == 1);
    child = (struct storage_turn){.owner = owner,
                                  .conversation = conv,
                                  .parent = turns[1],
                                  .public_id = (char *)"child",
                                  .status = STORAGE_TURN_RUNNING};
    JOB_CHECK(storage_turn_insert(l, &child) == 0);
    child.status = STORAGE_TURN_COMPLETED;
    child.base = second;
    child.tokens = (void *)"ef";
    child.tokens_bytes = 2;
    child.n_tokens = 6;
    JOB_CHECK(storage_turn_commit(l, &child) == 0);
    JOB_CHECK(storage_turn_context(l, owner, child.id, &tokens, &n) == 0);
    JOB_CHECK(n == 6 && !memcmp(tokens, "abcdef", 6));
    free(tokens);
    JOB_CHECK(storage_turn_by_id(l, owner, child.id, 0, &got) == 0);
    JOB_CHECK(got.parent == turns[1] && got.base == second && got.depth == 3);
    storage_turn_free(&got);
    JOB_CHECK(storage_turns_page(l, owner, conv, 0, 10, &page, &n) == 0);
    JOB_CHECK(n == 3 && page[2].id == child.id);
    storage_turns_free(page, n);
    JOB_CHECK(storage_turn_delete(l, owner, "b") == -EBUSY);
    JOB_CHECK(strip(l, child.id, second, "context_4", "ef", &third) == 0);
    /* It goes with its turn. */
    JOB_CHECK(storage_turn_delete(l, owner, "child") == 0);
    JOB_CHECK(storage_turn_by_id(l, owner, third, 0, &got) == -ENOENT);
    JOB_CHECK(storage_conversation_get(l, owner, "conv_1", &c) == 0);
    JOB_CHECK(c.n_turns == 2 && c.head == turns[1]);
    storage_conversation_free(&c);
    return 0;
}

static void test_stripped(void **state)
{
    (void)state;
    char err[256];
    struct storage_checked checked;
    int64_t turns[] = {testing_turn(st, owner, conv, 0, "a"), 0};
    turns[1] = testing_turn(st, owner, conv, turns[0], "b");
    assert_int_equal(jobs_call(st, stripped_run, turns), 0);
    storage_close(st);
    assert_int_equal(storage_verify(&(struct storage_opts){.dir = dir}, false, note, NULL, &checked, err, sizeof err),
                     0);
    assert_int_equal(checked.turns, 2);
    assert_int_equal(checked.wrong, 0);
    st = testing_open(dir);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stripped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unstored, setup, teardown),
        cmocka_unit_test_setup_teardown(test_branches, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_moves_head, setup, teardown),
        cmocka_unit_test_setup_teardown(test_match, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_context, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unfinished, setup, teardown),
        cmocka_unit_test_setup_teardown(test_count_of_a_moved_head, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

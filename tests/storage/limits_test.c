/* limits_test.c - what owners have is counted as rows come and go, and what is too much of it gives way. */
#include "tests/storage/storage_testing.h"

#define DAY_MS ((int64_t)24 * 3600 * 1000)

struct asked {
    int64_t owner, now_ms;
    struct storage_usage usage;
    char *name, *id;
};

static int usage_run(struct storage_ledger *l, void *arg)
{
    struct asked *a = arg;
    return storage_usage(l, a->owner, &a->usage);
}

static int sql_run(struct storage_ledger *l, void *arg)
{
    return schema_errno(sqlite3_exec(l->db, arg, NULL, NULL, NULL));
}

static struct storage_usage usage(struct storage *st, int64_t owner)
{
    struct asked a = {.owner = owner};
    assert_int_equal(jobs_call(st, usage_run, &a), 0);
    return a.usage;
}

static int answer_run(struct storage_ledger *l, void *arg)
{
    struct asked *a = arg;
    char id[] = "resp_1", kind[] = "message", role[] = "user", text[] = "H\xc3\xa9llo", body[] = "{}", in[] = "msg_1",
         out[] = "msg_2", answer[] = "Hi", tokens[12] = "", system[] = "\xc3\x89.", params[] = "{\"a\":1}",
         request[] = "r";
    struct storage_item asked = {.public_id = in, .kind = kind, .role = role, .text = text, .body = body};
    struct storage_item answered = {.public_id = out, .kind = kind, .role = role, .text = answer, .output = true};
    struct storage_conversation c;
    JOB_CHECK(storage_conversation_get(l, a->owner, "conv_1", &c) == 0);
    struct storage_turn t = {.owner = a->owner,
                             .conversation = c.id,
                             .public_id = id,
                             .status = STORAGE_TURN_QUEUED,
                             .instructions = system,
                             .params = params,
                             .request = request,
                             .items = &asked,
                             .n_items = 1};
    storage_conversation_free(&c);
    JOB_CHECK(storage_usage(l, a->owner, &a->usage) == 0);
    uint64_t before = a->usage.ledger_bytes;
    JOB_CHECK(storage_turn_insert(l, &t) == 0);
    JOB_CHECK(storage_usage(l, a->owner, &a->usage) == 0);
    JOB_CHECK(a->usage.ledger_bytes == before + 8 + 3 + 7 + 1); /* in bytes, not letters */
    t.status = STORAGE_TURN_COMPLETED;
    t.items = &answered;
    t.tokens = tokens;
    t.tokens_bytes = sizeof tokens;
    return storage_turn_commit(l, &t);
}

static void test_ledger_counts(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    struct asked a = {.owner = testing_owner(st, "a")};
    int64_t other = testing_owner(st, "b");
    (void)testing_conversation(st, a.owner, "conv_1");
    (void)testing_conversation(st, a.owner, "conv_2");
    (void)testing_conversation(st, other, "conv_3");
    assert_int_equal(jobs_call(st, answer_run, &a), 0);
    assert_int_equal(usage(st, a.owner).conversations, 2);
    assert_int_equal(usage(st, a.owner).ledger_bytes, 8 + 2 + 12 + 3 + 7); /* the request is gone */
    assert_int_equal(usage(st, other).conversations, 1);
    assert_int_equal(usage(st, other).ledger_bytes, 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static int texts_run(struct storage_ledger *l, void *arg)
{
    struct asked *a = arg;
    char id[] = "conv_t", title[] = "\xc3\x89", metadata[] = "{}", instructions[] = "Be brief.";
    struct storage_conversation c = {.owner = a->owner,
                                     .public_id = id,
                                     .kind = STORAGE_CONVERSATION_LISTED,
                                     .title = title,
                                     .metadata = metadata,
                                     .instructions = instructions};
    JOB_CHECK(storage_conversation_insert(l, &c) == 0);
    JOB_CHECK(storage_usage(l, a->owner, &a->usage) == 0);
    JOB_CHECK(a->usage.ledger_bytes == 2 + 2 + 9);
    c.title = NULL;
    c.metadata = instructions;
    JOB_CHECK(storage_conversation_update(l, &c) == 0);
    return storage_usage(l, a->owner, &a->usage);
}

static void note(void *arg, const char *text)
{
    (void)arg;
    print_message("%s\n", text);
}

/* The texts of a conversation count like those of its turns; a check finds the same sums, and what is wrong. */
static void test_texts_count(void **state)
{
    (void)state;
    char *dir = testing_dir(), err[256];
    const struct storage_opts opts = {.dir = dir};
    struct storage_checked checked;
    struct storage *st = testing_open(dir);
    struct asked a = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, texts_run, &a), 0);
    assert_int_equal(a.usage.ledger_bytes, 9 + 9);
    (void)testing_conversation(st, a.owner, "conv_1");
    assert_int_equal(jobs_call(st, answer_run, &a), 0);
    assert_int_equal(testing_conversation_delete(st, a.owner, "conv_t"), 0);
    storage_close(st);
    assert_int_equal(storage_verify(&opts, false, note, NULL, &checked, err, sizeof err), 0);
    assert_int_equal(checked.wrong, 0);
    testing_sql(dir, "ledger.db", "UPDATE turns SET bytes = bytes + 1");
    assert_int_equal(storage_verify(&opts, false, note, NULL, &checked, err, sizeof err), 0);
    assert_int_equal(checked.wrong, 1);
    testing_dir_remove(dir);
}

static void test_deletion_counts(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    struct asked a = {.owner = testing_owner(st, "a")};
    (void)testing_conversation(st, a.owner, "conv_1");
    (void)testing_conversation(st, a.owner, "conv_2");
    assert_int_equal(jobs_call(st, answer_run, &a), 0);
    assert_int_equal(testing_turn_delete(st, a.owner, "resp_1"), 0);
    assert_int_equal(usage(st, a.owner).ledger_bytes, 0);
    assert_int_equal(jobs_call(st, answer_run, &a), 0);
    assert_int_equal(testing_conversation_delete(st, a.owner, "conv_1"), 0); /* its turns go with it */
    assert_int_equal(usage(st, a.owner).ledger_bytes, 0);
    assert_int_equal(usage(st, a.owner).conversations, 1);
    /* One that nobody made goes with its last turn; one that somebody made stays, or that somebody named. */
    static char chain[] = "UPDATE conversations SET kind = 1 WHERE public_id IN ('conv_4', 'conv_5');"
                          "UPDATE conversations SET title = 'x' WHERE public_id = 'conv_5'";
    for (int i = 3; i < 6; i++) {
        char id[32], turn[32];
        (void)snprintf(id, sizeof id, "conv_%d", i);
        (void)snprintf(turn, sizeof turn, "resp_%d", i);
        int64_t conv = testing_conversation(st, a.owner, id);
        (void)testing_turn(st, a.owner, conv, testing_turn(st, a.owner, conv, 0, turn), id);
    }
    assert_int_equal(jobs_call(st, sql_run, chain), 0);
    for (int i = 3; i < 6; i++) {
        char id[32], turn[32];
        (void)snprintf(id, sizeof id, "conv_%d", i);
        (void)snprintf(turn, sizeof turn, "resp_%d", i);
        assert_int_equal(testing_turn_delete(st, a.owner, id), 0);
        assert_int_equal(usage(st, a.owner).conversations, i < 5 ? 4 : 3);
        assert_int_equal(testing_turn_delete(st, a.owner, turn), 0);
        assert_int_equal(usage(st, a.owner).conversations, i < 4 ? 4 : 3);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

/* Chains of one segment, each with a turn that holds it, one after the other. */
static void put_chains(struct storage *st, int64_t owner, int64_t conversation, unsigned first, unsigned n)
{
    for (unsigned i = first; i < first + n; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "resp_%u", i);
        int64_t turn = testing_turn(st, owner, conversation, 0, id);
        assert_int_equal(testing_put(st, owner, i, 0), 0);
        assert_int_equal(testing_commit(st, turn, i), 0);
    }
    testing_cuts_wait(st);
}

static void test_disk_gives_way(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), other = testing_owner(st, "b"), gateway = testing_owner(st, "g/u");
    int64_t conv = testing_conversation(st, owner, "conv_1"), theirs = testing_conversation(st, other, "conv_2");
    int64_t users = testing_conversation(st, gateway, "conv_3");
    struct storage_found f;
    put_chains(st, other, theirs, 100, 4); /* used before all of the owner's */
    put_chains(st, owner, conv, 1, 1);
    uint64_t one = usage(st, owner).disk_bytes;
    assert_true(one > 0);
    assert_int_equal(usage(st, other).disk_bytes, 4 * one);
    const struct storage_owner_limits rows[] = {{"a", {.disk_bytes = 3 * one}}, {"g", {.disk_bytes = 2 * one}}};
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){0}, rows, 2), 0);
    put_chains(st, owner, conv, 2, 4);
    assert_int_equal(usage(st, owner).disk_bytes, 3 * one);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), -ENOENT); /* longest ago first */
    assert_int_equal(testing_find(st, owner, 0, 2, &f), -ENOENT);
    for (unsigned i = 3; i <= 5; i++)
        assert_int_equal(testing_find(st, owner, 0, i, &f), 0);
    assert_int_equal(usage(st, other).disk_bytes, 4 * one); /* not others' */
    put_chains(st, gateway, users, 200, 3);
    assert_int_equal(usage(st, gateway).disk_bytes, 2 * one);
    /* What was just stored stays, though it is too much alone. */
    const struct storage_owner_limits less[] = {{"a", {.disk_bytes = 1}}};
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){0}, less, 1), 0);
    put_chains(st, owner, conv, 6, 1);
    assert_int_equal(usage(st, owner).disk_bytes, one);
    assert_int_equal(testing_find(st, owner, 0, 6, &f), 0);
    assert_int_equal(testing_conversation_delete(st, other, "conv_2"), 0);
    assert_int_equal(usage(st, other).disk_bytes, 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_ram_gives_way(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), other = testing_owner(st, "b");
    int64_t conv = testing_conversation(st, owner, "conv_1"), theirs = testing_conversation(st, other, "conv_2");
    put_chains(st, other, theirs, 100, 3);
    put_chains(st, owner, conv, 1, 1);
    uint64_t one = usage(st, owner).ram_bytes;
    assert_true(one > 0);
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){.ram_bytes = 2 * one}, NULL, 0), 0);
    put_chains(st, owner, conv, 2, 3);
    assert_int_equal(usage(st, owner).ram_bytes, 2 * one);
    assert_int_equal(usage(st, owner).disk_bytes, 4 * one);
    assert_int_equal(usage(st, other).ram_bytes, 3 * one); /* it has saved nothing since */
    struct storage_found f;
    for (unsigned i = 4; i >= 1; i--) { /* the latest two are there, the others come from the disk */
        assert_int_equal(testing_find(st, owner, 0, i, &f), 0);
        struct storage_read_result r = testing_read(st, &f, i);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.tier, i > 2 ? STORAGE_TIER_RAM : STORAGE_TIER_DISK);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

/* What several owners have put since the last commit is stored together: each has its own limits. */
static void test_stored_together(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), other = testing_owner(st, "b");
    int64_t conv = testing_conversation(st, owner, "conv_1"), theirs = testing_conversation(st, other, "conv_2");
    put_chains(st, owner, conv, 1, 1);
    uint64_t one = usage(st, owner).disk_bytes;
    put_chains(st, other, theirs, 100, 3);
    const struct storage_owner_limits rows[] = {{"b", {.disk_bytes = 4 * one, .ram_bytes = 5 * one}}};
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){0}, rows, 1), 0);
    assert_int_equal(testing_put(st, owner, 2, 0), 0);
    for (unsigned id = 103; id < 106; id++)
        assert_int_equal(testing_put(st, other, id, 0), 0);
    assert_int_equal(testing_commit(st, testing_turn(st, owner, conv, 0, "resp_2"), 2), 0);
    testing_cuts_wait(st);
    assert_int_equal(usage(st, owner).disk_bytes, 2 * one);
    assert_int_equal(usage(st, other).disk_bytes, 4 * one);
    assert_true(usage(st, other).ram_bytes <= 5 * one);
    storage_close(st);
    testing_dir_remove(dir);
}

static int expired_run(struct storage_ledger *l, void *arg)
{
    struct asked *a = arg;
    return storage_conversation_expired(l, a->now_ms, &a->name, &a->id);
}

static int expired(struct storage *st, int64_t now_ms, const char *name, const char *id)
{
    struct asked a = {.now_ms = now_ms};
    int rc = jobs_call(st, expired_run, &a);
    if (!rc) {
        assert_string_equal(a.name, name);
        assert_string_equal(a.id, id);
    }
    free(a.name);
    free(a.id);
    return rc;
}

static int age_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return schema_errno(sqlite3_exec(l->db,
                                     "UPDATE conversations SET updated_ms = 1000 WHERE public_id = 'conv_old';"
                                     "UPDATE conversations SET updated_ms = 2000 WHERE public_id = 'conv_b'",
                                     NULL, NULL, NULL));
}

static void test_age(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), other = testing_owner(st, "b");
    (void)testing_conversation(st, owner, "conv_old");
    (void)testing_conversation(st, other, "conv_b");
    assert_int_equal(jobs_call(st, age_run, NULL), 0);
    assert_false(storage_limits_retain(st));
    assert_int_equal(expired(st, INT64_MAX / 2, NULL, NULL), -ENOENT);
    const struct storage_owner_limits rows[] = {{"b", {.retain_ms = 2 * DAY_MS}}};
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){0}, rows, 1), 0);
    assert_true(storage_limits_retain(st));
    assert_int_equal(expired(st, 2000 + 2 * DAY_MS, NULL, NULL), -ENOENT);
    assert_int_equal(expired(st, 2001 + 2 * DAY_MS, "b", "conv_b"), 0); /* though a's is older */
    /* Everyone's, but for who has a limit of its own: here none. */
    const struct storage_owner_limits never[] = {{"b", {0}}};
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){.retain_ms = DAY_MS}, never, 1), 0);
    /* It goes on where it found b's, and a may stand before that: owners' ids have no order. */
    if (expired(st, 9 * DAY_MS, "a", "conv_old") == -ENOENT)
        assert_int_equal(expired(st, 9 * DAY_MS, "a", "conv_old"), 0);
    assert_int_equal(expired(st, 9 * DAY_MS, "a", "conv_old"), 0);
    /* What is asked just now has its answer first, and who asked in vain may ask once more. */
    (void)testing_turn(st, owner, testing_conversation(st, owner, "conv_asked"), 0, "resp_1");
    for (int i = 0; i < 4; i++) {
        const struct {
            const char *sql;
            bool stays;
        } cases[] = {{"status = 3", true},
                     {"status = 4", true},
                     {"status = 2, created_ms = 8 * 86400000", true},
                     {"status = 2, created_ms = 1", false}};
        char sql[200];
        (void)snprintf(sql, sizeof sql,
                       "UPDATE turns SET %s; UPDATE conversations SET updated_ms = 900 WHERE public_id = 'conv_asked'",
                       cases[i].sql);
        assert_int_equal(jobs_call(st, sql_run, sql), 0);
        if (expired(st, 9 * DAY_MS, "a", cases[i].stays ? "conv_old" : "conv_asked") == -ENOENT)
            assert_int_equal(expired(st, 9 * DAY_MS, "a", cases[i].stays ? "conv_old" : "conv_asked"), 0);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

/* However many owners there are, one look goes through some of them, and the next goes on there. */
static void test_age_of_many(void **state)
{
    (void)state;
    char *dir = testing_dir(), sql[200];
    struct storage *st = testing_open(dir);
    (void)snprintf(sql, sizeof sql,
                   "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < %d) "
                   "INSERT INTO owners(name, key) SELECT 'o' || n, zeroblob(32) FROM c",
                   2 * STORAGE_EXPIRED_OWNERS);
    assert_int_equal(jobs_call(st, sql_run, sql), 0);
    (void)testing_conversation(st, testing_owner(st, "last"), "conv_old");
    assert_int_equal(jobs_call(st, age_run, NULL), 0);
    assert_int_equal(storage_limits_set(st, &(struct storage_limits){.retain_ms = DAY_MS}, NULL, 0), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(expired(st, 9 * DAY_MS, NULL, NULL), -EAGAIN);
        assert_int_equal(expired(st, 9 * DAY_MS, NULL, NULL), -EAGAIN);
        assert_int_equal(expired(st, 9 * DAY_MS, "last", "conv_old"), 0);
        assert_int_equal(expired(st, 9 * DAY_MS, "last", "conv_old"), 0); /* it is still there */
        assert_int_equal(expired(st, 2 * DAY_MS / 3, NULL, NULL), -ENOENT);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ledger_counts),
                                       cmocka_unit_test(test_texts_count),
                                       cmocka_unit_test(test_deletion_counts),
                                       cmocka_unit_test(test_disk_gives_way),
                                       cmocka_unit_test(test_ram_gives_way),
                                       cmocka_unit_test(test_stored_together),
                                       cmocka_unit_test(test_age),
                                       cmocka_unit_test(test_age_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

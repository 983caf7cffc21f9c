/* schema_test.c - versions of a database: made, brought up to date after a snapshot, refused when newer. */
#include "tests/storage/storage_testing.h"

#include <fcntl.h>
#include <unistd.h>

static const char *const steps[] = {"CREATE TABLE t(x)", "ALTER TABLE t ADD COLUMN y DEFAULT 7", "this is not SQL"};

static int value(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    int v = sqlite3_column_int(s, 0);
    assert_int_equal(sqlite3_finalize(s), SQLITE_OK);
    return v;
}

static void test_migration(void **state)
{
    (void)state;
    char *dir = testing_dir();
    char err[256];
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    assert_true(dirfd >= 0);
    sqlite3 *db = NULL;
    struct schema s = {.file = "x.db", .steps = steps, .n_steps = 1, .full_sync = true};
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(value(db, "PRAGMA user_version"), 1);
    assert_int_equal(value(db, "PRAGMA synchronous"), 2);
    assert_int_equal(value(db, "PRAGMA foreign_keys"), 1);
    assert_int_equal(sqlite3_exec(db, "INSERT INTO t VALUES(5)", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);

    /* Half a copy of an earlier try is overwritten, as who still has it sees. */
    int fd = openat(dirfd, "x.db.v1", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "secret", 6), 6);
    assert_int_equal(close(fd), 0);
    assert_int_equal(linkat(dirfd, "x.db.v1", dirfd, "other", 0), 0);
    s.n_steps = 2;
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(value(db, "PRAGMA user_version"), 2);
    assert_int_equal(value(db, "SELECT x + y FROM t"), 12);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_false(testing_contains(dir, "other", "secret"));

    /* The copy is gone when the new file is found to be whole, and one that was left goes at the next start. */
    assert_int_equal(faccessat(dirfd, "x.db.v1", F_OK, 0), -1);
    fd = openat(dirfd, "x.db.v1", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "secret", 6), 6);
    assert_int_equal(close(fd), 0);
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(faccessat(dirfd, "x.db.v1", F_OK, 0), -1);

    /* The older program does not read the new file. */
    s.n_steps = 1;
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), -EPROTO);
    assert_non_null(strstr(err, "newer version"));

    /* A step that fails leaves everything as it was, and the older program reads the copy. */
    s.n_steps = 3;
    assert_true(schema_open(&s, dirfd, dir, &db, err, sizeof err) < 0);
    s.n_steps = 2;
    s.file = "x.db.v2";
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(value(db, "SELECT x + y FROM t"), 12);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    s.file = "x.db";
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(value(db, "SELECT x + y FROM t"), 12);
    assert_int_equal(faccessat(dirfd, "x.db.v2", F_OK, 0), -1);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(close(dirfd), 0);
    testing_dir_remove(dir);
}

static void test_errors(void **state)
{
    (void)state;
    assert_int_equal(schema_errno(SQLITE_DONE), 0);
    assert_int_equal(schema_errno(SQLITE_FULL), -ENOSPC);
    assert_int_equal(schema_errno(SQLITE_IOERR_FSYNC), -EIO);
    assert_int_equal(schema_errno(SQLITE_IOERR_NOMEM), -ENOMEM);
    assert_int_equal(schema_errno(SQLITE_CORRUPT_INDEX), -EBADMSG);
    assert_int_equal(schema_errno(SQLITE_CONSTRAINT_UNIQUE), -EEXIST);
    assert_int_equal(schema_errno(SQLITE_CONSTRAINT_FOREIGNKEY), -EINVAL);
}

/* ---- a ledger of the first version, brought up to date ---- */

static const char old_rows[] =
    "INSERT INTO owners VALUES(1, 'ann', zeroblob(32));"
    "INSERT INTO conversations VALUES(5, 1, 'conv_a', 0, 'Boats', NULL, NULL, 8, 1, 2, 2);"
    "INSERT INTO turns VALUES(7, 1, 5, NULL, 'resp_a', 0, NULL, 'sys', "
    "'[{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":"
    "\"Be "
    "kind.\"}]},{\"id\":\"msg_2\",\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
    "\"text\":\"Hi "
    "\\u00e9\"}]}]', 'Hello', '{\"evaluated\":9,\"kv\":\"ff\",\"usage\":{\"input\":6,\"cached\":2,\"output\":4},"
    "\"receipt\":{\"turn\":1,\"saved\":\"pending\"},\"params\":{\"top_p\":1}}', 4, 0, 10, zeroblob(32), NULL, 1, 2, "
    "x'0102030405');"
    "INSERT INTO turns VALUES(8, 1, 5, 7, 'resp_b', 1, 'cancelled', NULL, 'no JSON', NULL, 'nor this', 0, 0, 11, "
    "zeroblob(32), NULL, 3, 4, x'06');"
    "INSERT INTO holds VALUES(7, zeroblob(32));";

static int old_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    struct storage_turn t;
    struct storage_conversation c;
    uint8_t key[STORAGE_KEY_BYTES];
    void *tokens;
    size_t n;
    JOB_CHECK((storage_turn_get(l, 1, "resp_a", STORAGE_TURN_ITEMS | STORAGE_TURN_TOKENS, &t)) == (0));
    JOB_CHECK(t.id == 7 && t.depth == 1 && t.answered && t.n_items == 3 && t.tokens_bytes == 5);
    JOB_CHECK(!strcmp(t.items[0].public_id, "msg_1") && !strcmp(t.items[0].role, "system"));
    JOB_CHECK(!strcmp(t.items[0].text, "Be kind.") && !strcmp(t.items[1].text, "Hi \xc3\xa9"));
    JOB_CHECK(!strcmp(t.items[2].public_id, "msg_a") && t.items[2].output && !strcmp(t.items[2].text, "Hello"));
    JOB_CHECK(t.evaluated == 9 && !strcmp(t.kv, "ff") && t.input_tokens == 6 && t.cached_tokens == 2 &&
              t.output_tokens == 4);
    JOB_CHECK(!strcmp(t.params, "{\"top_p\":1}") && !strcmp(t.receipt, "{\"turn\":1}"));
    JOB_CHECK(t.saved == STORAGE_SAVED_FAILED); /* what it holds is not there */
    storage_turn_free(&t);
    JOB_CHECK((storage_turn_get(l, 1, "resp_b", STORAGE_TURN_ITEMS, &t)) == (0));
    JOB_CHECK(t.depth == 2 && t.parent == 7 && !t.answered && t.n_items == 0 && t.status == STORAGE_TURN_INCOMPLETE);
    JOB_CHECK(!t.base && !t.strips);
    storage_turn_free(&t);
    JOB_CHECK(storage_turn_stripped(l, 1, 8, &t) == -ENOENT);
    JOB_CHECK((storage_turn_context(l, 1, 8, &tokens, &n)) == (0));
    JOB_CHECK(n == 6 && !memcmp(tokens, "\1\2\3\4\5\6", 6));
    free(tokens);
    JOB_CHECK((storage_conversation_get(l, 1, "conv_a", &c)) == (0));
    JOB_CHECK(c.head == 8 && c.n_turns == 2 && c.n_tokens == 11);
    storage_conversation_free(&c);
    JOB_CHECK((segment_held_by(l, 7, key)) == (1));
    struct storage_usage usage;
    JOB_CHECK((storage_usage(l, 1, &usage)) == (0));
    JOB_CHECK(usage.conversations == 1 && usage.ledger_bytes == 8 + 5 + 5 + 5 + 1 + 5 + 3 + 11);
    return 0;
}

static void note_upgrade(void *arg, int priority, const char *text)
{
    int *n = arg;
    (void)priority;
    *n += strstr(text, "ledger.db") && (strstr(text, "is brought up to date") || strstr(text, "is up to date, after"));
}

static void test_first_version(void **state)
{
    (void)state;
    char *dir = testing_dir();
    char err[256];
    int said = 0;
    int dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    sqlite3 *db = NULL;
    struct schema old = schema_ledger;
    old.n_steps = 1;
    assert_int_equal(schema_open(&old, dirfd, dir, &db, err, sizeof err), 0);
    char *message = NULL;
    if (sqlite3_exec(db, old_rows, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s", message);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(close(dirfd), 0);
    struct storage *st = NULL;
    const struct storage_opts opts = {.dir = dir, .log = note_upgrade, .log_arg = &said};
    for (int i = 0; i < 2; i++) { /* the second time there is nothing to say */
        assert_int_equal(storage_open(&opts, &st, err, sizeof err), 0);
        assert_int_equal(jobs_call(st, old_run, NULL), 0);
        storage_close(st);
    }
    assert_int_equal(said, 2);
    testing_dir_remove(dir);
}

/* ---- an index of a version that had labels in it ---- */

/* As a program of another version would leave it; its log `stays`, or goes into the file. */
static void change_index(const char *path, bool stays, const char *sql)
{
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, "unix"), SQLITE_OK);
    if (stays)
        assert_int_equal(sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s", message);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void test_older_index(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    storage_close(st);
    char *path = testing_path(dir, "kv.db"), *other = testing_path(dir, "other");
    assert_true(testing_contains(dir, "pack-00000001", "label 2"));
    assert_false(testing_contains(dir, "kv.db", "label 2"));
    change_index(path, false,
                 "DROP TABLE segments; CREATE TABLE segments(label BLOB); INSERT INTO segments VALUES('label 2');"
                 "PRAGMA user_version = 4");
    /* Whoever still has the old one, as the disk does, finds no label in it. */
    assert_int_equal(link(path, other), 0);
    assert_true(testing_contains(dir, "other", "label 2"));
    st = testing_open(dir);
    assert_false(testing_contains(dir, "other", "label 2"));
    assert_false(testing_contains(dir, "kv.db", "label 2"));
    struct storage_found f;
    assert_int_equal(index_wait(st, 0), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    assert_int_equal(testing_read(st, &f, 2).rc, 0);
    storage_close(st);
    free(path);
    free(other);
    testing_dir_remove(dir);
}

static void note_anew(void *arg, int priority, const char *text)
{
    int *priorities = arg;
    if (strstr(text, "is made anew"))
        *priorities += priority;
}

/* And of such a one that says what it is in its log only, as after a crash: it is old, and nothing is damaged. */
static void test_older_index_by_its_log(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    storage_close(st);
    char *path = testing_path(dir, "kv.db");
    change_index(path, true,
                 "DROP TABLE segments; CREATE TABLE segments(label BLOB); INSERT INTO segments VALUES('label 1');"
                 "PRAGMA user_version = 4");
    assert_true(testing_contains(dir, "kv.db-wal", "label 1"));
    assert_false(testing_contains(dir, "kv.db", "label 1"));
    int said = 0;
    char err[256];
    const struct storage_opts opts = {.dir = dir, .disk_bytes = 1 << 28, .log = note_anew, .log_arg = &said};
    assert_int_equal(storage_open(&opts, &st, err, sizeof err), 0);
    assert_int_equal(said, LOG_NOTICE);
    assert_int_equal(index_wait(st, 0), 0);
    assert_false(testing_contains(dir, "kv.db-wal", "label 1"));
    assert_false(testing_contains(dir, "kv.db", "label 1"));
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(testing_read(st, &f, 1).rc, 0);
    storage_close(st);
    free(path);
    testing_dir_remove(dir);
}

static int spaces_run(struct storage_ledger *l, void *arg)
{
    JOB_CHECK(value(l->kv, "SELECT count(*) FROM segments") == *(int *)arg);
    JOB_CHECK(value(l->kv, "SELECT ifnull(sum(bytes), 0) = (SELECT ifnull(sum(bytes), 0) FROM segments) FROM spaces"));
    JOB_CHECK(value(l->kv, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'") == 0);
    return 0;
}

/* An index of a version whose triggers counted what spaces have goes on where that was. */
static void test_index_with_triggers(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    storage_close(st);
    char *path = testing_path(dir, "kv.db");
    change_index(path, false,
                 "CREATE TRIGGER segments_count AFTER INSERT ON segments BEGIN"
                 " UPDATE spaces SET bytes = bytes + new.bytes WHERE id = new.space; END;"
                 "CREATE TRIGGER segments_recount AFTER UPDATE OF bytes ON segments BEGIN"
                 " UPDATE spaces SET bytes = bytes + new.bytes - old.bytes WHERE id = new.space; END;"
                 "CREATE TRIGGER segments_discount AFTER DELETE ON segments BEGIN"
                 " UPDATE spaces SET bytes = bytes - old.bytes WHERE id = old.space; END;"
                 "PRAGMA user_version = 5");
    st = testing_open(dir);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(jobs_call(st, spaces_run, &(int){2}), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_int_equal(jobs_call(st, spaces_run, &(int){0}), 0);
    storage_close(st);
    free(path);
    testing_dir_remove(dir);
}

/* Every statement compiles. */
static int all_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    for (int i = 0; i < STMT_COUNT; i++)
        JOB_CHECK(stmt_get(l, (enum stmt_id)i));
    return 0;
}

static void test_statements(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    assert_int_equal(jobs_call(st, all_run, NULL), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

/* In a job of many rows SQLite would go through all that it has changed once for each statement that may be taken back
 * alone. Such are those that have triggers, or change rows that they do not name by id. */
static int alone_run(struct storage_ledger *l, void *arg)
{
    static const char *const of_index[] = {
#define STMT(id, db, sql) (db) == STMT_KV ? (sql) : NULL,
#include "storage/statements.def"
#undef STMT
    };
    int n = 0;
    (void)arg;
    for (size_t i = 0; i < sizeof of_index / sizeof *of_index; i++) {
        const char *sql = of_index[i] ? of_index[i] : "";
        if (strncmp(sql, "UPDATE segments", 15) != 0 && strncmp(sql, "DELETE FROM segments", 20) != 0)
            continue;
        n++;
        JOB_CHECK(strstr(sql, " WHERE id = "));
    }
    JOB_CHECK(n > 0);
    JOB_CHECK(value(l->kv, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'") == 0);
    return 0;
}

static void test_statements_of_many_rows(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    assert_int_equal(jobs_call(st, alone_run, NULL), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static int meta_run(struct storage_ledger *l, void *arg)
{
    static const struct {
        enum stmt_id get, set;
    } databases[] = {{S_META_GET, S_META_SET}, {S_KV_META_GET, S_KV_META_SET}};
    (void)arg;
    for (size_t i = 0; i < sizeof databases / sizeof *databases; i++) {
        uint8_t value[4] = {0};
        size_t n = 9;
        JOB_CHECK(meta_get(l, databases[i].get, "colour", value, sizeof value, &n) == 0);
        JOB_CHECK(meta_set(l, databases[i].set, "colour", "red", 3) == 0);
        JOB_CHECK(meta_set(l, databases[i].set, "colour", "blue", 4) == 0);
        JOB_CHECK(meta_get(l, databases[i].get, "colour", value, sizeof value, &n) == 1);
        JOB_CHECK(n == 4 && !memcmp(value, "blue", 4));
        JOB_CHECK(meta_get(l, databases[i].get, "colour", value, 3, &n) == -EBADMSG);
        JOB_CHECK(meta_set(l, databases[i].set, "none", NULL, 0) == 0);
        JOB_CHECK(meta_get(l, databases[i].get, "none", NULL, 0, &n) == 1 && n == 0);
    }
    return 0;
}

static void test_meta(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    assert_int_equal(jobs_call(st, meta_run, NULL), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_migration),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_first_version),
        cmocka_unit_test(test_statements),
        cmocka_unit_test(test_older_index),
        cmocka_unit_test(test_older_index_by_its_log),
        cmocka_unit_test(test_meta),
        cmocka_unit_test(test_statements_of_many_rows),
        cmocka_unit_test(test_index_with_triggers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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

    s.n_steps = 2;
    assert_int_equal(schema_open(&s, dirfd, dir, &db, err, sizeof err), 0);
    assert_int_equal(value(db, "PRAGMA user_version"), 2);
    assert_int_equal(value(db, "SELECT x + y FROM t"), 12);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);

    /* The copy is gone when the new file is found to be whole, and one that was left goes at the next start. */
    assert_int_equal(faccessat(dirfd, "x.db.v1", F_OK, 0), -1);
    int fd = openat(dirfd, "x.db.v1", O_CREAT | O_WRONLY, 0600);
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

/* Every statement compiles. */
static int all_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    for (int i = 0; i < STMT_COUNT; i++) {
        int rc;
        JOB_CHECK(stmt_get(l, (enum stmt_id)i, &rc) && rc == 0);
    }
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
        cmocka_unit_test(test_statements),
        cmocka_unit_test(test_meta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

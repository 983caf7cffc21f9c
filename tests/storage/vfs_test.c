/* vfs_test.c - nothing of a deleted row stays in the files that SQLite writes, and errors keep their names. */
#include "tests/storage/storage_testing.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 6000

static char *dir;
static int dirfd;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir_in_memory();
    dirfd = open(dir, O_RDONLY | O_DIRECTORY);
    return dirfd < 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(close(dirfd), 0);
    testing_dir_remove(dir);
    return 0;
}

static const char *const steps[] = {
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE s(id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, label BLOB NOT NULL, used INTEGER NOT NULL);"
    "CREATE INDEX s_label ON s(label); CREATE INDEX s_used ON s(used)"};
static const struct schema schema = {.file = "x.db", .steps = steps, .n_steps = 1, .full_sync = true};

static void run(sqlite3 *db, const char *sql)
{
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static sqlite3 *open_it(void)
{
    sqlite3 *db = NULL;
    char err[256];
    if (schema_open(&schema, dirfd, dir, &db, err, sizeof err))
        fail_msg("%s", err);
    return db;
}

/* Rows of many sizes, and every second one deleted: the trees are rebalanced all the time. */
static void churn(sqlite3 *db)
{
    uint64_t seed = 7;
    sqlite3_stmt *insert, *erase;
    assert_int_equal(sqlite3_prepare_v2(db, "INSERT INTO s VALUES(?1, randomblob(32), ?2, ?3)", -1, &insert, NULL), 0);
    assert_int_equal(sqlite3_prepare_v2(db, "DELETE FROM s WHERE id = ?1", -1, &erase, NULL), 0);
    for (int pass = 0; pass < 2; pass++) {
        run(db, "BEGIN");
        for (int i = 0; i < ROWS; i++) {
            char label[1024];
            size_t n = 100 + testing_random(&seed) % 900;
            for (size_t k = 0; k < n; k += 8)
                memcpy(label + k, &(uint64_t){testing_random(&seed)}, 8);
            (void)snprintf(label + 4, 12, "%s%07u", i % 2 ? "GONE" : "KEPT", (unsigned)i % 10000000u);
            sqlite3_stmt *s = pass ? erase : insert;
            assert_int_equal(sqlite3_bind_int(s, 1, i), 0);
            if (!pass) {
                assert_int_equal(sqlite3_bind_blob(s, 2, label, (int)n, SQLITE_STATIC), 0);
                assert_int_equal(sqlite3_bind_int(s, 3, (int)(testing_random(&seed) >> 33)), 0);
            }
            if (!pass || i % 2)
                assert_int_equal(sqlite3_step(s), SQLITE_DONE);
            assert_int_equal(sqlite3_reset(s), 0);
            if (i % 200 == 199)
                run(db, "COMMIT; BEGIN");
        }
        run(db, "COMMIT");
    }
    (void)sqlite3_finalize(insert);
    (void)sqlite3_finalize(erase);
}

static int count(const char *file, const char *text)
{
    char *path = testing_path(dir, file);
    int fd = open(path, O_RDONLY), found = 0;
    struct stat sb;
    assert_true(fd >= 0 && fstat(fd, &sb) == 0);
    size_t n = (size_t)sb.st_size;
    char *all = n ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    assert_true(all != MAP_FAILED);
    for (char *at = all; at && (at = memmem(at, n - (size_t)(at - all), text, strlen(text))); at++)
        found++;
    if (all)
        (void)munmap(all, n);
    (void)close(fd);
    free(path);
    return found;
}

static void whole(sqlite3 *db)
{
    sqlite3_stmt *s;
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(s, 0), "ok");
    (void)sqlite3_finalize(s);
    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT count(*) FROM s WHERE substr(label, 5, 4) = CAST('KEPT' AS BLOB)", -1, &s, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(s, 0), ROWS / 2);
    (void)sqlite3_finalize(s);
}

static void test_pages(void **state)
{
    (void)state;
    sqlite3 *db = open_it();
    churn(db);
    assert_true(count("x.db-wal", "GONE0") > 0);
    assert_int_equal(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL), SQLITE_OK);
    assert_int_equal(count("x.db", "GONE0"), 0);
    assert_true(count("x.db", "KEPT0") >= ROWS / 2);
    /* What is written next has nothing of it either, when the cache is given up. */
    assert_int_equal(sqlite3_db_release_memory(db), SQLITE_OK);
    run(db, "UPDATE s SET used = used + 1");
    assert_true(count("x.db-wal", "KEPT0") > ROWS / 4);
    assert_int_equal(count("x.db-wal", "GONE0"), 0);
    whole(db);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    db = open_it();
    whole(db);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* What was left by SQLite alone is overwritten in place, once. */
static void test_scrub(void **state)
{
    (void)state;
    sqlite3 *db = open_it();
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    char *path = testing_path(dir, "x.db");
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, "unix"), SQLITE_OK);
    run(db, "PRAGMA secure_delete = ON");
    churn(db);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_true(count("x.db", "GONE0") > 0); /* as long as SQLite does so this file is needed */

    static struct storage st;
    struct storage_ledger l = {.st = &st};
    l.kv = open_it();
    assert_int_equal(schema_scrub(&l, STMT_KV), 0);
    assert_int_equal(count("x.db", "GONE0"), 0);
    whole(l.kv);
    /* Not again. */
    assert_int_equal(schema_scrub(&l, STMT_KV), 0);
    stmt_finalize_all(&l);
    assert_int_equal(sqlite3_close(l.kv), SQLITE_OK);
    free(path);
}

static void test_scrub_page(void **state)
{
    (void)state;
    uint8_t page[4096], before[4096];
    /* Whatever a page holds, nothing outside of it is touched, and what is no page of a tree stays. */
    uint64_t seed = 3;
    for (int i = 0; i < 20000; i++) {
        for (size_t k = 0; k < sizeof page; k += 8)
            memcpy(page + k, &(uint64_t){testing_random(&seed)}, 8);
        page[i % 2 ? 100 : 0] = (uint8_t)(i % 14);
        if (i % 3)
            memset(page + 3, 0, 4);
        memcpy(before, page, sizeof page);
        size_t n = (size_t)512 << i % 4;
        bool changed = vfs_scrub_page(page, n, i % 2);
        assert_memory_equal(page + n, before + n, sizeof page - n);
        if (!changed)
            assert_memory_equal(page, before, sizeof page);
    }
    /* A leaf with one cell and one free block. */
    memset(page, 0xee, sizeof page);
    memcpy(page, "\15\17\0\0\1\16\0\0\17\200", 10);
    memcpy(page + 0xf00, "\0\0\0\100", 4);
    assert_true(vfs_scrub_page(page, sizeof page, false));
    for (size_t i = 10; i < sizeof page; i++)
        assert_int_equal(page[i], i < 0xe00 || (i >= 0xf04 && i < 0xf40) ? 0
                                  : i >= 0xf00 && i < 0xf03              ? 0
                                  : i == 0xf03                           ? 0x40
                                                                         : 0xee);
    assert_false(vfs_scrub_page(page, sizeof page, false));
}

static void test_logs_and_files(void **state)
{
    (void)state;
    sqlite3 *db = open_it();
    run(db, "INSERT INTO s VALUES(1, 'k', 'SECRET', 1)");
    /* Whoever still has the file open, as the disk does, sees what is in it when it is cut off and when it goes. */
    char *path = testing_path(dir, "x.db-wal"), *other = testing_path(dir, "other");
    assert_int_equal(link(path, other), 0);
    assert_int_equal(count("other", "SECRET"), 2);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_true(testing_size(dir, "other") > 4096);
    assert_int_equal(count("other", "SECRET"), 0);
    assert_int_equal(unlink(other), 0);

    FILE *f = fopen(other, "w");
    for (int i = 0; i < 100000; i++)
        assert_true(fputs("SECRET", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(link(other, path), 0);
    assert_int_equal(vfs_erase(dirfd, "other"), 0);
    assert_int_equal(access(other, F_OK), -1);
    assert_int_equal(testing_size(dir, "x.db-wal"), 600000);
    assert_int_equal(count("x.db-wal", "SECRET"), 0);
    assert_int_equal(vfs_erase(dirfd, "x.db-wal"), 0);
    assert_int_equal(vfs_erase(dirfd, "never there"), 0);
    free(path);
    free(other);
}

static char *contents(const char *file, size_t *n)
{
    char *path = testing_path(dir, file);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *n = (size_t)testing_size(dir, file);
    char *all = malloc(*n);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, *n, f), *n);
    (void)fclose(f);
    free(path);
    return all;
}

#define HALF_ROWS 60 /* a log of more than 1 MiB, however SQLite splits pages of random keys */

/* A loss of power leaves any sectors of a log as they were before it was overwritten, with its head or without. */
static void test_half_a_log(void **state)
{
    (void)state;
    sqlite3 *db = open_it();
    run(db, "PRAGMA wal_autocheckpoint = 0");
    run(db, "INSERT INTO s VALUES(1, 'k', 'SECRET', 1)");
    for (int i = 0; i < HALF_ROWS; i++) {
        char sql[128];
        (void)snprintf(sql, sizeof sql, "INSERT INTO s VALUES(%d, randomblob(32), randomblob(900), %d)", i + 2, i);
        run(db, sql);
    }
    run(db, "DELETE FROM s WHERE id = 1");
    size_t n, n_after;
    char *log = testing_path(dir, "x.db-wal"), *other = testing_path(dir, "other");
    assert_int_equal(link(log, other), 0);
    char *before = contents("other", &n);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    char *after = contents("other", &n_after);
    assert_int_equal(unlink(other), 0);
    assert_true(n > 1 << 20 && n_after == n);
    uint64_t seed = 5;
    for (int i = 0; i < 200; i++) {
        /* All but one sector; a head or an end of it; any. */
        size_t at = testing_random(&seed) % (n / 512) * 512;
        FILE *f = fopen(log, "w");
        assert_non_null(f);
        for (size_t k = 0; k < n; k += 512) {
            bool old = i % 4 == 0 ? k != at : i % 4 == 1 ? k < at : i % 4 == 2 ? k >= at : testing_random(&seed) % 2;
            assert_int_equal(fwrite((old && i ? before : after) + k, 1, n - k < 512 ? n - k : 512, f),
                             n - k < 512 ? n - k : 512);
        }
        assert_int_equal(fclose(f), 0);
        db = open_it();
        sqlite3_stmt *s;
        assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*), min(id) FROM s", -1, &s, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        if (sqlite3_column_int(s, 0) != HALF_ROWS || sqlite3_column_int(s, 1) != 2)
            fail_msg("case %d: %d rows from %d on", i, sqlite3_column_int(s, 0), sqlite3_column_int(s, 1));
        (void)sqlite3_finalize(s);
        run(db, "UPDATE s SET used = used + 1");
        assert_int_equal(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL), SQLITE_OK);
        assert_int_equal(testing_size(dir, "x.db-wal"), 0);
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    free(before);
    free(after);
    free(log);
    free(other);
}

/* As little as a file may hold here: SQLite's I/O error is told by its name. */
static void test_errors(void **state)
{
    (void)state;
    sqlite3 *db = open_it();
    struct rlimit was, small = {.rlim_cur = 8192};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    assert_ptr_not_equal(signal(SIGXFSZ, SIG_IGN), SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = sqlite3_exec(db, "INSERT INTO s VALUES(1, 'k', zeroblob(100000), 1)", NULL, NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(schema_errno(rc), -EFBIG);
    /* It is told once. */
    assert_int_equal(schema_errno(SQLITE_IOERR_WRITE), -EIO);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_pages), T(test_scrub), T(test_scrub_page), T(test_logs_and_files), T(test_half_a_log), T(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* backup_test.c - a copy is whole wherever it is put, and has nothing of what was deleted before it was finished. */
#include "tests/storage/storage_testing.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 6000

static char *dir, *to;
static struct storage *st;

static void backup(bool with_kv)
{
    char err[256] = "";
    int rc = storage_backup(st, to, with_kv, err, sizeof err);
    if (rc)
        fail_msg("%d: %s", rc, err);
}

static dev_t device(const char *path)
{
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_dev;
}

/* What is backed up is on one disk, and the copy on another. */
static void test_other_disk(void **state)
{
    (void)state;
    dir = testing_dir_in_memory();
    to = testing_dir();
    if (device(dir) == device(to)) {
        testing_dir_remove(dir);
        testing_dir_remove(to);
        print_message("skip: there is no second file system\n");
        skip();
    }
    st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    backup(true);
    storage_close(st);
    struct storage_found f;
    st = testing_open(to);
    assert_int_equal(index_wait(st, 0), 0);
    for (unsigned id = 1; id <= 3; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        assert_int_equal(testing_read(st, &f, id).rc, 0);
    }
    storage_close(st);
    testing_dir_remove(dir);
    testing_dir_remove(to);
}

struct some {
    int from, to;
    bool erase;
    uint64_t seed;
};

/* Rows of many sizes, and every second one deleted: the trees are rebalanced all the time. */
static int churn_run(struct storage_ledger *l, void *arg)
{
    struct some *some = arg;
    sqlite3_stmt *s;
    JOB_CHECK(!sqlite3_exec(l->db, "CREATE TABLE IF NOT EXISTS s(id INTEGER PRIMARY KEY, label BLOB NOT NULL UNIQUE)",
                            NULL, NULL, NULL));
    JOB_CHECK(!sqlite3_prepare_v2(l->db, some->erase ? "DELETE FROM s WHERE id = ?1" : "INSERT INTO s VALUES(?1, ?2)",
                                  -1, &s, NULL));
    for (int i = some->from; i < some->to; i++) {
        char label[1024];
        size_t n = 100 + testing_random(&some->seed) % 900;
        for (size_t k = 0; k < n; k += 8)
            memcpy(label + k, &(uint64_t){testing_random(&some->seed)}, 8);
        (void)snprintf(label + 4, 20, "%s%07d", i % 2 ? "GONE" : "KEPT", i);
        (void)sqlite3_bind_int(s, 1, i);
        if (!some->erase)
            (void)sqlite3_bind_blob(s, 2, label, (int)n, SQLITE_STATIC);
        if (!some->erase || i % 2)
            JOB_CHECK(sqlite3_step(s) == SQLITE_DONE);
        (void)sqlite3_reset(s);
    }
    return sqlite3_finalize(s) == SQLITE_OK ? 0 : -EIO;
}

static void test_nothing_deleted(void **state)
{
    (void)state;
    dir = testing_dir_in_memory();
    to = testing_dir_in_memory();
    st = testing_open(dir);
    struct some some = {.seed = 7};
    for (int pass = 0; pass < 2; pass++)
        for (some.from = 0; some.from < ROWS; some.from = some.to) {
            some.to = some.from + 200;
            some.erase = pass;
            assert_int_equal(jobs_call(st, churn_run, &some), 0);
        }
    backup(false);
    storage_close(st);
    assert_true(testing_contains(to, "ledger.db", "KEPT"));
    assert_false(testing_contains(to, "ledger.db", "GONE"));
    testing_dir_remove(dir);
    testing_dir_remove(to);
}

static bool is_there(const char *name)
{
    struct stat sb;
    char *path = testing_path(to, name);
    bool there = !stat(path, &sb);
    free(path);
    return there;
}

/* One that fails leaves nothing of it, nor what an earlier one left that was killed; and the next one does not. */
static void test_nothing_left(void **state)
{
    (void)state;
    static const char *const names[] = {"ledger.db", "ledger.db.part", "ledger.db.part-journal", "pack-00000001",
                                        "pack-00000009"}; /* the last one has gone since */
    char err[256];
    dir = testing_dir_in_memory();
    to = testing_dir_in_memory();
    st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, testing_turn(st, owner, conv, 0, "resp_1"), 1), 0);
    char *pack = testing_path(to, names[3]);
    assert_int_equal(mkdir(pack, 0700), 0);
    for (int i = 1; i < 5; i++) {
        char *path = testing_path(to, names[i]);
        FILE *f = i == 3 ? NULL : fopen(path, "wb");
        free(path);
        assert_true(i == 3 || (f && fwrite("left", 4, 1, f) == 1 && !fclose(f)));
    }
    assert_int_equal(storage_backup(st, to, true, err, sizeof err), -EISDIR);
    for (int i = 0; i < 5; i++)
        assert_int_equal(is_there(names[i]), i == 3);
    /* Packs that no try has left are somebody's. */
    assert_int_equal(storage_backup(st, to, true, err, sizeof err), -EEXIST);
    assert_true(is_there(names[3]));
    assert_int_equal(rmdir(pack), 0);
    free(pack);
    /* The ledger's copy cannot be written to its end. */
    struct rlimit before, small = {4096, 4096};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_true(storage_backup(st, to, true, err, sizeof err) < 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, handler);
    for (int i = 0; i < 4; i++)
        assert_false(is_there(names[i]));
    backup(true);
    for (int i = 0; i < 4; i++)
        assert_int_equal(is_there(names[i]), i == 0 || i == 3);
    storage_close(st);
    testing_dir_remove(dir);
    testing_dir_remove(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_other_disk), cmocka_unit_test(test_nothing_deleted),
                                       cmocka_unit_test(test_nothing_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

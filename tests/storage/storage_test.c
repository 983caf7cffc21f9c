/* storage_test.c - opening a directory: who may, what is refused, what the files look like. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    testing_dir_remove(dir);
    return 0;
}

static void refused(const char *path, int rc, const char *says)
{
    struct storage *st = NULL;
    char err[256] = "";
    assert_int_equal(storage_open(&(struct storage_opts){.dir = path, .disk_bytes = 1 << 28}, &st, err, sizeof err),
                     rc);
    assert_null(st);
    if (!strstr(err, says))
        fail_msg("\"%s\" does not say \"%s\"", err, says);
    assert_int_equal(storage_open(&(struct storage_opts){.dir = path, .disk_bytes = 1 << 28}, &st, NULL, 0), rc);
}

static void test_two_opens(void **state)
{
    (void)state;
    char pid[32];
    struct storage *st = testing_open(dir);
    (void)snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    refused(dir, -EBUSY, pid);
    storage_close(st);
    st = testing_open(dir);
    storage_close(st);
}

static void test_modes(void **state)
{
    (void)state;
    char *sub = testing_path(dir, "sub");
    mode_t mask = umask(0);
    struct storage *st = testing_open(sub);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "c");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, testing_turn(st, owner, conv, 0, "t"), 1), 0);
    umask(mask);
    static const char *const files[] = {"lock", "ledger.db", "ledger.db-wal", "kv.db", "kv.db-wal", "pack-00000001"};
    struct stat sb;
    assert_int_equal(stat(sub, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = testing_path(sub, files[i]);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
        free(path);
    }
    storage_close(st);
    /* What was allocated ahead is given back. */
    struct storage_stats stats;
    st = testing_open(sub);
    storage_stats(st, &stats);
    storage_close(st);
    assert_int_equal(testing_size(sub, "pack-00000001"), stats.disk_used + PACK_ALIGN);
    testing_dir_remove(sub);
}

static void test_newer_version(void **state)
{
    (void)state;
    storage_close(testing_open(dir));
    testing_sql(dir, "ledger.db", "PRAGMA user_version = 99");
    refused(dir, -EPROTO, "newer version");
    char back[64];
    (void)snprintf(back, sizeof back, "PRAGMA user_version = %d", schema_ledger.n_steps);
    testing_sql(dir, "ledger.db", back);
    testing_sql(dir, "kv.db", "PRAGMA user_version = 99");
    refused(dir, -EPROTO, "newer version");
}

static void test_damaged_ledger(void **state)
{
    (void)state;
    storage_close(testing_open(dir));
    char *path = testing_path(dir, "ledger.db");
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_true(fputs("not a database, not even a little one", f) >= 0);
    assert_int_equal(fclose(f), 0);
    refused(dir, -EBADMSG, "ledger.db");
    /* Another program's database is not taken over. */
    assert_int_equal(unlink(path), 0);
    testing_sql(dir, "ledger.db", "CREATE TABLE t(x)");
    refused(dir, -EBADMSG, "ledger.db");
    free(path);
}

static void test_links_refused(void **state)
{
    (void)state;
    static const char *const files[] = {"lock", "ledger.db", "kv.db"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        storage_close(testing_open(dir));
        char *path = testing_path(dir, files[i]), *other = testing_path(dir, "elsewhere");
        assert_int_equal(rename(path, other), 0);
        assert_int_equal(symlink(other, path), 0);
        refused(dir, -ELOOP, dir);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rename(other, path), 0);
        free(path);
        free(other);
    }
    storage_close(testing_open(dir));
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct storage *st = NULL;
    char err[64];
    refused("", -EINVAL, "directory");
    refused("/dev/null", -ENOTDIR, "/dev/null");
    refused("/nowhere/at/all", -ENOENT, "/nowhere");
    assert_int_equal(storage_open(&(struct storage_opts){.dir = dir, .readers = 65}, &st, err, sizeof err), -EINVAL);
    assert_int_equal(storage_open(&(struct storage_opts){.dir = dir, .readers = -1}, &st, err, sizeof err), -EINVAL);
    storage_close(NULL);
}

/* A disk that does not answer is not waited for longer than said; what was there before is there afterwards. */
static void test_close_in_time(void **state)
{
    (void)state;
    static struct faults faults;
    struct storage_io io;
    struct storage_found f;
    faults_init(&faults, &io);
    struct storage *st = testing_open_with(dir, &io, 1 << 28);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "c");
    int64_t turn = testing_turn(st, owner, conv, 0, "t");
    uint8_t key[STORAGE_KEY_BYTES];
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_true(storage_close_within(st, 60000));
    st = testing_open_with(dir, &io, 1 << 28);
    atomic_store(&faults.stalled, true);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    testing_key(key, 2);
    assert_int_equal(storage_kv_commit(st, turn, key, NULL, NULL, NULL), 0);
    assert_false(storage_close_within(st, 50));
    /* Later it would have ended. */
    atomic_store(&faults.stalled, false);
    assert_true(storage_close_within(st, 60000));
    assert_true(storage_close_within(NULL, 0));
    st = testing_open(dir);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(testing_read(st, &f, 1).rc, 0);
    storage_close(st);
}

static void test_defaults(void **state)
{
    (void)state;
    struct storage *st = NULL;
    char err[64];
    struct storage_stats stats;
    assert_int_equal(storage_open(&(struct storage_opts){.dir = dir}, &st, err, sizeof err), 0);
    storage_stats(st, &stats);
    assert_int_equal(stats.ram_budget, 256 << 20);
    assert_true(stats.disk_budget > 0);
    assert_int_equal(stats.segments, 0);
    assert_int_equal(stats.disk_used, 0);
    storage_close(st);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_two_opens),     T(test_modes),         T(test_newer_version), T(test_damaged_ledger),
        T(test_links_refused), T(test_bad_arguments), T(test_close_in_time), T(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

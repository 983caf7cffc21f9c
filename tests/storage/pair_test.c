/* pair_test.c - a directory's ledger, index and packs belong together: another ledger is refused and costs nothing, a
 * backup of the right one is not. */
#include "tests/storage/storage_testing.h"

#include <fcntl.h>
#include <unistd.h>

static char *dir, *other;
static struct storage *st;
static int64_t owner, conv;

/* A directory with one conversation of three segments, and another one. */
static void fill(const char *where)
{
    st = testing_open(where);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    storage_close(st);
    st = NULL;
}

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    other = testing_dir();
    fill(other);
    fill(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    testing_dir_remove(other);
    return 0;
}

static void move(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    char *source = testing_path(from_dir, from), *target = testing_path(to_dir, to);
    assert_int_equal(rename(source, target), 0);
    free(source);
    free(target);
}

static void copy(const char *from_dir, const char *from, const char *to_dir, const char *to)
{
    char *source = testing_path(from_dir, from), *target = testing_path(to_dir, to), buf[4096];
    FILE *in = fopen(source, "rb"), *out = fopen(target, "wb");
    assert_true(in && out);
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, in)))
        assert_int_equal(fwrite(buf, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    (void)fclose(in);
    free(source);
    free(target);
}

static void erase(const char *file)
{
    char *path = testing_path(dir, file);
    assert_true(unlink(path) == 0 || errno == ENOENT);
    free(path);
}

static void refused(const char *says)
{
    char err[512] = "";
    struct storage *s = NULL;
    /* As often as it is tried. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(storage_open(&(struct storage_opts){.dir = dir}, &s, err, sizeof err), -ESTALE);
        if (!strstr(err, says) || !strstr(err, "Put the right ledger.db back"))
            fail_msg("\"%s\" does not say \"%s\" and how to go on", err, says);
    }
}

static void all_there(unsigned last)
{
    struct storage_found f;
    st = testing_open(dir);
    jobs_sweep_wait(st);
    for (unsigned id = 1; id <= last; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        assert_int_equal(testing_read(st, &f, id).rc, 0);
    }
    storage_close(st);
    st = NULL;
}

static void test_missing(void **state)
{
    (void)state;
    move(dir, "ledger.db", dir, "kept");
    refused("is missing");
    erase("ledger.db-wal");
    /* The packs alone say so too, and the index alone. */
    move(dir, "kv.db", dir, "kept.kv");
    refused("is missing");
    move(dir, "kept.kv", dir, "kv.db");
    move(dir, "pack-00000001", dir, "kept.pack");
    refused("is missing");
    move(dir, "kept.pack", dir, "pack-00000001");
    move(dir, "kept", dir, "ledger.db");
    all_there(3);
}

static void test_empty(void **state)
{
    (void)state;
    move(dir, "ledger.db", dir, "kept");
    char *path = testing_path(dir, "ledger.db");
    assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
    refused("is empty");
    assert_int_equal(testing_size(dir, "ledger.db"), 0);
    free(path);
    move(dir, "kept", dir, "ledger.db");
    all_there(3);
}

/* Its log alone is a ledger that was torn apart: SQLite would throw it away. */
static void test_log_alone(void **state)
{
    (void)state;
    static const char *const files[] = {"kv.db", "kv.db-wal", "pack-00000001", "ledger.db-wal"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        erase(files[i]);
    move(dir, "ledger.db", dir, "ledger.db-wal");
    off_t size = testing_size(dir, "ledger.db-wal");
    refused("is missing");
    assert_int_equal(testing_size(dir, "ledger.db-wal"), size);
    /* With nothing beside it a start that was cut short goes on. */
    erase("ledger.db-wal");
    storage_close(testing_open(dir));
}

static void test_foreign(void **state)
{
    (void)state;
    move(dir, "ledger.db", dir, "kept");
    copy(other, "ledger.db", dir, "ledger.db");
    refused("is another directory's");
    /* Without an index as well. */
    move(dir, "kv.db", dir, "kept.kv");
    erase("kv.db-wal");
    refused("is another directory's");
    erase("kv.db");
    move(dir, "kept.kv", dir, "kv.db");
    move(dir, "kept", dir, "ledger.db");
    all_there(3);
}

/* Databases and packs as versions without an id left them. */
static void strip(const char *where)
{
    testing_sql(where, "ledger.db", "DELETE FROM meta");
    testing_sql(where, "kv.db", "DELETE FROM meta");
    char *path = testing_path(where, "pack-00000001");
    int fd = open(path, O_WRONLY);
    static const uint8_t zero[PAIR_BYTES];
    assert_int_equal(pwrite(fd, zero, sizeof zero, 16), sizeof zero);
    assert_int_equal(close(fd), 0);
    free(path);
}

static void test_older_version(void **state)
{
    (void)state;
    strip(dir);
    strip(other);
    /* The other's is told by what it holds. */
    testing_sql(other, "ledger.db", "UPDATE holds SET key = randomblob(32)");
    move(dir, "ledger.db", dir, "kept");
    copy(other, "ledger.db", dir, "ledger.db");
    refused("is another directory's");
    move(dir, "kept", dir, "ledger.db");
    copy(dir, "ledger.db", dir, "old");
    all_there(3);
    /* From now on there is an id. An older copy of the right ledger gets the same, another's is refused. */
    copy(dir, "ledger.db", dir, "kept");
    copy(dir, "old", dir, "ledger.db");
    all_there(3);
    copy(other, "ledger.db", dir, "ledger.db");
    refused("is another directory's");
    copy(dir, "kept", dir, "ledger.db");
    /* An empty index says nothing. */
    erase("kv.db");
    all_there(3);
}

static void test_older_version_everything_deleted(void **state)
{
    (void)state;
    /* A segment stayed behind that nothing held. */
    testing_sql(dir, "ledger.db", "PRAGMA foreign_keys = ON; DELETE FROM conversations");
    strip(dir);
    storage_close(testing_open(dir));
}

/* Another ledger's packs among ours are left alone. */
static void test_foreign_pack(void **state)
{
    (void)state;
    struct storage_stats stats;
    copy(other, "pack-00000001", dir, "pack-00000002");
    char *path = testing_path(dir, "pack-00000002");
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "\2", 1, 12), 1);
    assert_int_equal(close(fd), 0);
    free(path);
    off_t size = testing_size(dir, "pack-00000002");
    all_there(3);
    erase("kv.db");
    all_there(3);
    st = testing_open(dir);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 3);
    assert_int_equal(testing_size(dir, "pack-00000002"), size);
}

static void more(unsigned from, unsigned to, const char *turn)
{
    st = testing_open(dir);
    int64_t t = testing_turn(st, owner, conv, 0, turn);
    for (unsigned id = from; id <= to; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, t, to), 0);
    storage_close(st);
    st = NULL;
}

/* A backup of the ledger meets packs that are newer, and then the newest ledger packs that are older. */
static void test_backups(void **state)
{
    (void)state;
    static const char *const files[] = {"ledger.db", "kv.db", "pack-00000001"};
    char name[32];
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "old.%s", files[i]);
        copy(dir, files[i], dir, name);
    }
    more(4, 6, "resp_2");
    /* An owner that the backup does not know leaves segments behind, which a new one does not find. */
    st = testing_open(dir);
    int64_t late = testing_owner(st, "late");
    int64_t turn = testing_turn(st, late, testing_conversation(st, late, "conv_l"), 0, "resp_l");
    assert_int_equal(testing_put(st, late, 31, 0), 0);
    assert_int_equal(testing_commit(st, turn, 31), 0);
    storage_close(st);
    copy(dir, "ledger.db", dir, "new.ledger.db");
    copy(dir, "old.ledger.db", dir, "ledger.db");
    struct storage_found f;
    st = testing_open(dir);
    assert_int_equal(testing_find(st, testing_owner(st, "new"), 0, 31, &f), -ENOENT);
    storage_close(st);
    copy(dir, "old.ledger.db", dir, "ledger.db");
    all_there(3);
    copy(dir, "new.ledger.db", dir, "ledger.db");
    for (size_t i = 1; i < 3; i++) {
        (void)snprintf(name, sizeof name, "old.%s", files[i]);
        copy(dir, name, dir, files[i]);
    }
    all_there(3);
    more(4, 6, "resp_3");
    all_there(6);
}

/* An intent of a newer ledger names a place that older packs have used for something else since. */
static void test_intent_of_a_place_used_again(void **state)
{
    (void)state;
    testing_sql(dir, "ledger.db",
                "INSERT INTO intents(key, pack, offset, bytes) VALUES(randomblob(32), 1, 4096, 4096)");
    all_there(3);
    erase("kv.db");
    testing_sql(dir, "ledger.db",
                "INSERT INTO intents(key, pack, offset, bytes) VALUES(randomblob(32), 1, 4096, 4096)");
    all_there(3);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_missing),      T(test_empty),         T(test_log_alone),
        T(test_foreign),      T(test_older_version), T(test_older_version_everything_deleted),
        T(test_foreign_pack), T(test_backups),       T(test_intent_of_a_place_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

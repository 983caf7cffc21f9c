/* room_test.c - a full disk: KV gives way before the ledger is refused anything, and not more than helps. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PLENTY ((uint64_t)1 << 30)

static char *dir;
static struct storage *st;
static struct storage_io io;
static struct faults faults;
static int64_t owner, conv, turn;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir_in_memory();
    faults_init(&faults, &io);
    faults.free_bytes = PLENTY;
    st = testing_open_with(dir, &io, 1 << 28);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    turn = testing_turn(st, owner, conv, 0, "resp_1");
    for (unsigned id = 1; id <= 300; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

static void free_is(uint64_t bytes)
{
    pthread_mutex_lock(&faults.lock);
    faults.free_bytes = bytes;
    pthread_mutex_unlock(&faults.lock);
}

static struct storage_stats stats(void)
{
    struct storage_stats s;
    testing_cuts_wait(st);
    storage_stats(st, &s);
    return s;
}

static void test_ledger_first(void **state)
{
    (void)state;
    assert_int_equal(stats().segments, 300);
    assert_int_equal(testing_size(dir, "reserve"), 4 << 20);
    /* What is free stays at nothing here, so that all of it goes. */
    free_is(1);
    (void)testing_turn(st, owner, conv, turn, "resp_2");
    assert_int_equal(stats().segments, 0);
    assert_int_equal(stats().disk_used, 0);
    assert_int_equal(testing_size(dir, "reserve"), 0);
    /* And a restart works. */
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    assert_int_equal(testing_size(dir, "reserve"), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    free_is(PLENTY);
    conv = testing_conversation(st, owner, "conv_2");
    assert_int_equal(testing_size(dir, "reserve"), 4 << 20);
    turn = testing_turn(st, owner, conv, 0, "resp_3");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(stats().segments, 1);
}

/* KV leaves the ledger its room, and when making some does not help it is made once. */
static void test_in_vain(void **state)
{
    (void)state;
    struct storage_found f;
    free_is(ROOM_LEDGER_BYTES + 1);
    uint64_t before = stats().segments, after;
    assert_int_equal(testing_put(st, owner, 1001, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1001), -ENOSPC);
    after = stats().segments;
    assert_true(after < before && after > before / 2);
    for (unsigned id = 1002; id < 1010; id++) {
        assert_int_equal(testing_put(st, owner, id, 0), 0);
        assert_int_equal(testing_commit(st, turn, id), -ENOSPC);
    }
    assert_int_equal(stats().segments, after);
    /* As soon as there is room it is used. */
    free_is(PLENTY);
    assert_int_equal(testing_put(st, owner, 1001, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1001), 0);
    assert_int_equal(testing_find(st, owner, 0, 1001, &f), 0);
    assert_int_not_equal(f.pack, STORAGE_PACK_NONE);
}

/* A quota, which does not show before it is hit, keeps its name. */
static void test_quota(void **state)
{
    (void)state;
    uint64_t before = stats().segments;
    faults_set(&faults, EDQUOT, 0, false);
    for (unsigned id = 1001; id < 1010; id++) {
        assert_int_equal(testing_put(st, owner, id, 0), 0);
        assert_int_equal(testing_commit(st, turn, id), -EDQUOT);
    }
    faults_set(&faults, 0, 0, false);
    uint64_t after = stats().segments;
    assert_true(after > before / 2);
    assert_int_equal(testing_put(st, owner, 1001, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1001), 0);
}

static int full_run(struct storage_ledger *l, void *arg)
{
    char sql[64];
    (void)snprintf(sql, sizeof sql, "PRAGMA max_page_count = %d", *(int *)arg);
    return schema_errno(sqlite3_exec(l->db, sql, NULL, NULL, NULL));
}

static int big_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    char id[] = "big", *title = calloc(1, 200001);
    if (!title)
        return -ENOMEM;
    memset(title, 'x', 200000);
    struct storage_conversation c = {.owner = owner, .public_id = id, .title = title};
    int rc = storage_conversation_insert(l, &c);
    free(title);
    return rc;
}

/* A transaction that met the full disk: room is made before the next. */
static void test_hit(void **state)
{
    (void)state;
    int small = 1, large = 100000;
    uint64_t before = stats().segments;
    assert_int_equal(jobs_call(st, full_run, &small), 0);
    assert_int_equal(jobs_call(st, big_run, NULL), -ENOSPC);
    assert_int_equal(jobs_call(st, full_run, &large), 0);
    (void)testing_turn(st, owner, conv, turn, "resp_2");
    assert_true(stats().segments < before);
}

/* The lock file is written in place. */
static void test_lock(void **state)
{
    (void)state;
    char text[64] = "", pid[32], err[256], *path = testing_path(dir, "lock");
    off_t size = testing_size(dir, "lock");
    (void)snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    struct storage *second = NULL;
    assert_int_equal(storage_open(&(struct storage_opts){.dir = dir}, &second, err, sizeof err), -EBUSY);
    assert_non_null(strstr(err, pid));
    FILE *f = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, f));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(atol(text), getpid());
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    assert_int_equal(testing_size(dir, "lock"), size);
    free(path);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_ledger_first), T(test_in_vain), T(test_quota), T(test_hit), T(test_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

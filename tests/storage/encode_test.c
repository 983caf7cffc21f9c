/* encode_test.c - the queue of what is to be saved: its bound, its order, and whose failure is whose. */
#include "tests/storage/storage_faults.h"

#include <unistd.h>

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
    st = testing_open_with(dir, &io, 1 << 28);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    turn = testing_turn(st, owner, conv, 0, "resp_1");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

static uint64_t queued(void)
{
    pthread_mutex_lock(&st->writer_lock);
    uint64_t bytes = st->queue_bytes;
    pthread_mutex_unlock(&st->writer_lock);
    return bytes;
}

/* While the disk does not answer, so much is taken and no more; then all of it is saved, and what was refused too. */
static void test_bound(void **state)
{
    (void)state;
    struct storage_found f;
    uint64_t most = st->queue_most = 1 << 20;
    atomic_store(&faults.stalled, true);
    unsigned n = 0, refused = 0;
    while (refused < 100) {
        int rc = testing_put(st, owner, n + 1, n);
        assert_true(queued() <= most);
        if (rc == 0) {
            n++;
            uint8_t key[STORAGE_KEY_BYTES];
            testing_key(key, n);
            assert_int_equal(storage_kv_commit(st, turn, key, NULL, NULL, NULL), 0);
            continue;
        }
        assert_int_equal(rc, -ENOBUFS);
        refused++;
        (void)usleep(100); /* the encoders make room */
    }
    assert_true(n >= 20 && n < 100);
    atomic_store(&faults.stalled, false);
    assert_int_equal(testing_commit(st, turn, n), 0);
    while (queued())
        (void)usleep(1000);
    assert_int_equal(testing_put(st, owner, n + 1, n), 0);
    assert_int_equal(testing_commit(st, turn, n + 1), 0);
    storage_ram_drop(st, NULL, 0);
    for (unsigned id = 1; id <= n + 1; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        assert_int_equal(testing_read(st, &f, id).rc, 0);
    }
    assert_int_equal(queued(), 0);
}

/* One that is larger than the bound is taken when nothing else waits, and nothing beside it. */
static void test_large(void **state)
{
    (void)state;
    st->queue_most = 1000;
    atomic_store(&faults.stalled, true);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    int rc = testing_put(st, owner, 2, 1);
    atomic_store(&faults.stalled, false);
    assert_int_equal(rc, -ENOBUFS);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    while (queued())
        (void)usleep(1000);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
}

/* A turn that runs has put a segment that cannot be written; another's commit takes it along. */
static void test_others_failure(void **state)
{
    (void)state;
    struct storage_found f;
    int64_t second = testing_turn(st, owner, conv, 0, "resp_2");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 11, 0), 0);
    assert_int_equal(testing_put(st, owner, 12, 11), 0);
    /* Of the three, the second. */
    faults_set(&faults, EIO, 0, true);
    faults_after(&faults, 2);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_put(st, owner, 13, 12), 0);
    assert_int_equal(testing_put(st, owner, 3, 2), 0);
    int rc = testing_commit(st, turn, 3), other = testing_commit(st, second, 13);
    /* Which of them it was depends on how far the writer had come; it is told to its own turn, and to nobody else. */
    assert_true((rc == 0) != (other == 0));
    assert_true(rc == 0 || rc == -EIO);
    assert_true(other == 0 || other == -EIO || other == -ESTALE);
    for (unsigned id = 1; !rc && id <= 3; id++)
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
}

/* What another producer made is replaced where it stands: its record goes, what follows it stays, and it is read as
 * before; or it stays, where that is asked for. */
static void test_other_producers(void **state)
{
    (void)state;
    struct storage_found before, now;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &before), 0);
    assert_string_equal(before.producer, "test-1");
    assert_int_equal(testing_put_as(st, owner, 1, 0, 0, "test-2", true), 0);
    assert_int_equal(testing_put_as(st, owner, 2, 1, 0, "test-2", true), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &now), 0);
    assert_string_equal(now.producer, "test-1");
    assert_true(now.pack == before.pack && now.offset == before.offset);
    assert_int_equal(testing_put_as(st, owner, 1, 0, 0, "test-2", false), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &now), 0);
    assert_string_equal(now.producer, "test-2");
    assert_true(now.pack != before.pack || now.offset != before.offset);
    assert_int_equal(testing_read(st, &now, 1).rc, 0);
    /* Once more changes nothing. */
    before = now;
    assert_int_equal(testing_put_as(st, owner, 1, 0, 0, "test-2", false), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &now), 0);
    assert_true(now.pack == before.pack && now.offset == before.offset);
    assert_int_equal(testing_find(st, owner, 1, 2, &now), 0);
    assert_string_equal(now.producer, "test-1");
    assert_int_equal(testing_read(st, &now, 2).rc, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(test_bound), T(test_large), T(test_others_failure), T(test_other_producers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

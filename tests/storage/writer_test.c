/* writer_test.c - saving when the disk does not play along: full, failing syncs, short writes, hole cutting. */
#include "tests/storage/storage_faults.h"

static char *dir;
static struct storage *st;
static struct storage_io io;
static struct faults faults;
static int64_t owner, conv, turn;

static void start(uint64_t disk_bytes)
{
    dir = testing_dir();
    faults_init(&faults, &io);
    st = testing_open_with(dir, &io, disk_bytes);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    turn = testing_turn(st, owner, conv, 0, "resp_1");
}

static void finish(void)
{
    storage_close(st);
    testing_dir_remove(dir);
}

static struct storage_stats stats(void)
{
    struct storage_stats s;
    storage_stats(st, &s);
    return s;
}

static void expect(unsigned parent, unsigned id, int rc, enum storage_tier tier)
{
    struct storage_found f;
    int found = testing_find(st, owner, parent, id, &f);
    if (rc == -ENOENT) {
        assert_int_equal(found, -ENOENT);
        return;
    }
    assert_int_equal(found, 0);
    struct storage_read_result r = testing_read(st, &f, id);
    assert_int_equal(r.rc, rc);
    assert_int_equal(r.tier, tier);
}

static void test_failed_sync(void **state)
{
    (void)state;
    start(1 << 28);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");

    faults_set(&faults, 0, EIO, true);
    int syncs = faults.n_syncs;
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_put(st, owner, 3, 2), 0);
    assert_int_equal(testing_commit(st, second, 3), -EIO);
    assert_int_equal(stats().save_failures, 2);
    assert_int_equal(stats().segments, 1);
    assert_int_equal(stats().pending_puts, 0);
    /* Not retried: one failing sync, then one for each hole. */
    assert_int_equal(faults.n_syncs, syncs + 3);
    /* RAM serves on, the older one is untouched. */
    expect(1, 2, 0, STORAGE_TIER_RAM);
    expect(2, 3, 0, STORAGE_TIER_RAM);
    storage_ram_drop(st, NULL, 0);
    expect(1, 2, 0, STORAGE_TIER_RAM);
    expect(0, 1, 0, STORAGE_TIER_DISK);

    /* Put once more they are saved, from another pack. */
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_put(st, owner, 3, 2), 0);
    assert_int_equal(testing_commit(st, second, 3), 0);
    storage_ram_drop(st, NULL, 0);
    expect(2, 3, 0, STORAGE_TIER_DISK);
    assert_true(testing_size(dir, "pack-00000002") > 0);
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    jobs_sweep_wait(st);
    expect(0, 1, 0, STORAGE_TIER_DISK);
    expect(1, 2, 0, STORAGE_TIER_DISK);
    expect(2, 3, 0, STORAGE_TIER_DISK);
    finish();
}

/* What was not saved is not held, but its ancestors are. */
static void test_hold_of_what_is_left(void **state)
{
    (void)state;
    start(1 << 28);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    faults_set(&faults, 0, EIO, true);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, second, 2), -EIO);
    /* Only the second turn holds 1 now if the first's hold goes. */
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    jobs_sweep_wait(st);
    expect(1, 2, -ENOENT, 0);
    expect(0, 1, 0, STORAGE_TIER_DISK);
    finish();
}

static void reopen(void)
{
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    jobs_sweep_wait(st);
}

/* One segment was not saved: what comes behind it in a later turn is not made unreachable rows of, and what is before
 * it stays. Put again, all of it is saved. */
static void test_gap(void **state)
{
    (void)state;
    start(1 << 28);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    uint64_t one = stats().disk_used;
    faults_set(&faults, EIO, 0, true);
    faults_after(&faults, 1);
    for (unsigned id = 2; id <= 4; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 4), -EIO); /* 3 was lost, and 4 is behind it */
    faults_set(&faults, 0, 0, false);
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    testing_cuts_wait(st); /* after it what was cut out is accounted for */
    assert_int_equal(stats().save_failures, 2);
    assert_int_equal(stats().disk_used, 2 * one);
    assert_int_equal(stats().segments, 2);

    /* The next turn believes that 3 and 4 are stored. */
    assert_int_equal(testing_put(st, owner, 5, 4), 0);
    assert_int_equal(testing_put(st, owner, 6, 5), 0);
    assert_int_equal(testing_commit(st, second, 6), -ESTALE);
    assert_int_equal(testing_commit(st, turn, 6), -ESTALE); /* one that takes over the longer segment */
    assert_int_equal(stats().save_failures, 4);
    testing_cuts_wait(st);
    assert_int_equal(stats().disk_used, 2 * one);
    assert_int_equal(stats().pending_puts, 0);
    expect(0, 1, 0, STORAGE_TIER_RAM);
    expect(1, 2, 0, STORAGE_TIER_RAM);
    expect(4, 5, 0, STORAGE_TIER_RAM);
    reopen();
    expect(0, 1, 0, STORAGE_TIER_DISK);
    expect(1, 2, 0, STORAGE_TIER_DISK);
    expect(2, 3, -ENOENT, 0);
    expect(3, 4, -ENOENT, 0);
    expect(4, 5, -ENOENT, 0);
    assert_int_equal(stats().segments, 2);
    assert_int_equal(stats().disk_used, 2 * one);

    /* The children before a parent, too. */
    static const unsigned order[] = {1, 2, 4, 3, 6, 5};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        assert_int_equal(testing_put(st, owner, order[i], order[i] - 1), 0);
    assert_int_equal(testing_commit(st, second, 6), 0);
    assert_int_equal(testing_turn_delete(st, owner, "resp_2"), 0); /* the first turn holds 2 still, nobody the others */
    expect(1, 2, 0, STORAGE_TIER_RAM);
    expect(2, 3, -ENOENT, 0);
    assert_int_equal(stats().segments, 2);
    finish();
}

/* Holds that are asked for when the segment, or one before it, is not stored. */
static void test_hold_of_what_is_not_there(void **state)
{
    (void)state;
    start(1 << 28);
    for (unsigned id = 1; id <= 4; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 4), 0);
    struct storage_found f;
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");

    /* Never heard of: the one before the one that it was to replace. */
    assert_int_equal(testing_commit(st, turn, 99), -ESTALE);
    testing_settle(st);
    expect(2, 3, 0, STORAGE_TIER_RAM);
    expect(3, 4, -ENOENT, 0);
    assert_int_equal(testing_commit(st, second, 99), -ESTALE); /* nothing */

    /* Behind one that was never heard of: what is held stays. */
    assert_int_equal(testing_put(st, owner, 7, 98), 0);
    assert_int_equal(testing_commit(st, turn, 7), -ESTALE);
    expect(2, 3, 0, STORAGE_TIER_RAM);

    /* A damaged one in between: the rest of the chain stays until it is stored anew, and it is told. */
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    storage_ram_drop(st, NULL, 0);
    bool given_back;
    assert_int_equal(packs_cut(&st->packs, f.pack, &(struct place){f.offset, f.encoded_bytes}, 1, &given_back), 0);
    assert_int_equal(testing_read(st, &f, 2).rc, -ENOENT);
    assert_int_equal(testing_commit(st, second, 3), -ESTALE);
    assert_int_equal(testing_put(st, owner, 5, 2), 0);
    assert_int_equal(testing_commit(st, second, 5), -ESTALE);
    reopen();
    expect(2, 3, 0, STORAGE_TIER_DISK);
    expect(2, 5, -ENOENT, 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_put(st, owner, 5, 2), 0);
    assert_int_equal(testing_commit(st, second, 5), 0);
    reopen();
    for (unsigned id = 1; id <= 3; id++)
        expect(id - 1, id, 0, STORAGE_TIER_DISK);
    expect(2, 5, 0, STORAGE_TIER_DISK);
    assert_int_equal(stats().segments, 4);
    finish();
}

struct with {
    unsigned drop;
    int n, rc;
};

static int with_run(struct storage_ledger *l, void *arg, int rc)
{
    struct with *w = arg;
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, w->drop);
    w->n++;
    w->rc = rc;
    return storage_segment_drop(l, key);
}

static void with_done(void *arg, int rc)
{
    (void)arg, (void)rc;
}

/* What is to be done with a commit is done as well where its turn went before it came. */
static void test_turn_gone(void **state)
{
    (void)state;
    struct with with = {.drop = 4};
    uint8_t last[STORAGE_KEY_BYTES];
    start(1 << 28);
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_put(st, owner, 4, 1), 0); /* what was cut from it */
    assert_int_equal(testing_turn_delete(st, owner, "resp_2"), 0);
    testing_key(last, 3);
    assert_int_equal(storage_kv_commit(st, second, last, with_run, with_done, &with), 0);
    assert_int_equal(testing_commit(st, 0, 0), 0); /* it is over */
    testing_cuts_wait(st);
    assert_int_equal(with.n, 1);
    assert_int_equal(with.rc, 0);
    assert_int_equal(stats().segments, 0);
    finish();
}

static void test_full_disk(void **state)
{
    (void)state;
    start(1 << 28);
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    int64_t second = testing_turn(st, owner, conv, 0, "resp_2");

    /* Full once: something is given up, and it is tried again. */
    faults_set(&faults, ENOSPC, 0, true);
    faults_after(&faults, 0);
    assert_int_equal(testing_put(st, owner, 4, 0), 0);
    assert_int_equal(testing_commit(st, second, 4), 0);
    assert_int_equal(stats().save_failures, 0);
    assert_true(stats().segments < 4);
    storage_ram_drop(st, NULL, 0);
    expect(0, 4, 0, STORAGE_TIER_DISK);

    /* Full for good: it stays in RAM, and the next works again. */
    faults_set(&faults, ENOSPC, 0, false);
    assert_int_equal(testing_put(st, owner, 5, 4), 0);
    assert_int_equal(testing_commit(st, second, 5), -ENOSPC);
    assert_int_equal(stats().save_failures, 1);
    expect(4, 5, 0, STORAGE_TIER_RAM);
    faults_set(&faults, 0, 0, false);
    assert_int_equal(testing_put(st, owner, 6, 0), 0);
    assert_int_equal(testing_commit(st, second, 6), 0);
    storage_ram_drop(st, NULL, 0);
    expect(0, 6, 0, STORAGE_TIER_DISK);
    finish();
}

static void test_short_writes(void **state)
{
    (void)state;
    start(1 << 28);
    faults.short_writes = true;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_true(faults.n_writes > 10);
    storage_ram_drop(st, NULL, 0);
    expect(0, 1, 0, STORAGE_TIER_DISK);
    finish();
}

/* Where holes cannot be cut, zeros are written. */
static void test_zeros_for_holes(void **state)
{
    (void)state;
    start(1 << 28);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    faults.punch_errno = EOPNOTSUPP;
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_true(testing_cut_out(st, &f));
    finish();
}

/* A pack that is full is followed by another; one without live records goes. */
static void test_packs_follow(void **state)
{
    (void)state;
    start(1 << 20); /* packs of 1 MiB, the smallest, in a budget of as much */
    for (unsigned id = 1; id <= 100; id++) {
        assert_int_equal(testing_put(st, owner, id, 0), 0);
        assert_int_equal(testing_commit(st, turn, id), 0);
        assert_true(stats().disk_used <= 1 << 20);
    }
    assert_int_equal(stats().save_failures, 0);
    char *path = testing_path(dir, "pack-00000001");
    FILE *f = fopen(path, "r");
    free(path);
    assert_null(f);
    assert_true(testing_size(dir, "pack-00000003") > 0);
    finish();
}

/* Put, but not committed: gone at the next open. */
static void test_uncommitted(void **state)
{
    (void)state;
    start(1 << 28);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
    expect(0, 1, -ENOENT, 0);
    assert_int_equal(stats().segments, 0);
    finish();
}

static void test_invalid(void **state)
{
    (void)state;
    start(1 << 28);
    struct storage_segment s = {.owner = owner, .count = 0};
    assert_int_equal(storage_segment_put(st, &s, &testing_layout, malloc(1)), -EINVAL);
    s.count = 1;
    s.label_bytes = STORAGE_LABEL_MAX + 1;
    assert_int_equal(storage_segment_put(st, &s, &testing_layout, malloc(1)), -EINVAL);
    s.label_bytes = 0;
    s.first = UINT32_MAX;
    assert_int_equal(storage_segment_put(st, &s, &testing_layout, malloc(1)), -EINVAL);
    assert_int_equal(stats().pending_puts, 0);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_sync),  cmocka_unit_test(test_hold_of_what_is_left),
        cmocka_unit_test(test_gap),          cmocka_unit_test(test_hold_of_what_is_not_there),
        cmocka_unit_test(test_turn_gone),    cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_short_writes), cmocka_unit_test(test_zeros_for_holes),

        cmocka_unit_test(test_packs_follow), cmocka_unit_test(test_uncommitted),
        cmocka_unit_test(test_invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* erase_test.c - a deletion is reported when nothing can be read any more; until then it is told as such and tried
 * again. */
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
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    faults_sqlite_unreadable(NULL, 0, 0);
    testing_dir_remove(dir);
    return 0;
}

static void reopen(void)
{
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 28);
}

static void deleted_soon(void)
{
    for (int i = 0; testing_deleting(st, owner, "conv_1"); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
}

/* Nothing is left, within the time after which it is tried again. */
static void gone_soon(const struct storage_found *f)
{
    struct storage_stats stats;
    deleted_soon();
    assert_true(testing_cut_out(st, f));
    assert_false(testing_contains(dir, "kv.db", "label 2"));
    assert_false(testing_contains(dir, "kv.db-wal", "label 2"));
    assert_false(testing_contains(dir, "ledger.db", "resp_1"));
    assert_false(testing_contains(dir, "ledger.db-wal", "resp_1"));
    storage_stats(st, &stats);
    assert_int_equal(stats.disk_used, 0);
    assert_int_equal(stats.segments, 0);
}

static void test_in_order(void **state)
{
    (void)state;
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    int syncs = faults.n_syncs, writes = faults.n_writes;
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    gone_soon(&f);
    /* All of them were overwritten, and the pack was synced once. */
    assert_int_equal(faults.n_writes - writes, 3);
    assert_int_equal(faults.n_syncs - syncs, 1);
}

/* A disk that refuses to overwrite, or to sync that. */
static void cannot_cut(int write_errno, int sync_errno)
{
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    int64_t second = testing_conversation(st, owner, "conv_2");
    (void)testing_turn(st, owner, second, 0, "resp_2");
    faults_set(&faults, write_errno, sync_errno, false);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    /* For everybody it is gone, and its owner hears what becomes of it. */
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -ENOENT);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    assert_int_equal(testing_deleting(st, owner + 1, "conv_1"), 0);
    /* Another that has nothing there does not wait for it. */
    assert_int_equal(testing_conversation_delete(st, owner, "conv_2"), 0);
    assert_int_equal(testing_deleting(st, owner, "conv_2"), 0);
    /* A restart does not help. */
    reopen();
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    faults_set(&faults, 0, 0, false);
    gone_soon(&f);
    reopen();
    gone_soon(&f);
}

static void test_not_overwritten(void **state)
{
    (void)state;
    cannot_cut(EIO, 0);
}

static void test_not_synced(void **state)
{
    (void)state;
    cannot_cut(0, EIO);
}

/* It is overwritten: that its space does not come back is another matter. */
static void test_no_holes(void **state)
{
    (void)state;
    struct storage_found f;
    struct storage_stats before, stats;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    storage_stats(st, &before);
    faults.punch_errno = EIO;
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_true(testing_cut_out(st, &f));
    storage_stats(st, &stats);
    assert_int_equal(stats.disk_used, before.disk_used);
}

struct deletion {
    pthread_mutex_t lock; /* guards the rest */
    bool done;
    int rc;
};

static int delete_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return storage_conversation_delete(l, owner, "conv_1");
}

static void delete_done(void *arg, int rc)
{
    struct deletion *d = arg;
    pthread_mutex_lock(&d->lock);
    d->done = true;
    d->rc = rc;
    pthread_mutex_unlock(&d->lock);
}

static bool done(struct deletion *d)
{
    pthread_mutex_lock(&d->lock);
    bool is = d->done;
    pthread_mutex_unlock(&d->lock);
    return is;
}

static void test_record_in_use(void **state)
{
    (void)state;
    struct storage_found f;
    struct deletion d = {.lock = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    assert_int_equal(pin_take(st, f.pack, f.offset), 0);
    assert_int_equal(storage_submit(st, (struct storage_job){.run = delete_run, .done = delete_done, .arg = &d}), 0);
    testing_cuts_wait(st);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    assert_false(done(&d));
    assert_false(testing_cut_out(st, &f));
    pin_release(st, f.pack, f.offset);
    gone_soon(&f);
    assert_true(done(&d));
    assert_int_equal(d.rc, 0);
}

/* Closed while a reader has it: reported as not finished, and finished at the next open. */
static void test_close_meanwhile(void **state)
{
    (void)state;
    struct storage_found f;
    struct deletion d = {.lock = PTHREAD_MUTEX_INITIALIZER};
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    assert_int_equal(pin_take(st, f.pack, f.offset), 0);
    assert_int_equal(storage_submit(st, (struct storage_job){.run = delete_run, .done = delete_done, .arg = &d}), 0);
    reopen();
    assert_true(done(&d));
    assert_int_equal(d.rc, -EINPROGRESS);
    gone_soon(&f);
}

/* The ledger's log cannot be emptied. */
static void test_log_stays(void **state)
{
    (void)state;
    static atomic_int error;
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    faults_sqlite_unsyncable("ledger.db", &error);
    reopen();
    atomic_store(&error, EIO);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    atomic_store(&error, 0);
    gone_soon(&f);
}

/* The ledger has committed, but the index did not: its rows go later, and then the records. */
static void test_index_behind(void **state)
{
    (void)state;
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    assert_int_equal(testing_refuse(st, true, TESTING_COMMITS), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    assert_false(testing_cut_out(st, &f));
    assert_int_equal(testing_refuse(st, true, TESTING_NOTHING), 0);
    gone_soon(&f);
}

struct head { /* of a segment's code, as the index may have it */
    const char *label;
    uint8_t code[10];
};

static int head_run(struct storage_ledger *l, void *arg)
{
    struct head *h = arg;
    struct space space;
    struct coded code;
    JOB_CHECK(space_get(l, owner, testing_fingerprint, &space) == 1);
    JOB_CHECK(!label_code(&space, h->label, strlen(h->label), &code));
    JOB_CHECK(code.bytes > sizeof h->code);
    memcpy(h->code, code.string, sizeof h->code);
    coded_free(&code);
    return 0;
}

static bool has(const char *file, const struct head *h)
{
    char *path = testing_path(dir, file);
    FILE *f = fopen(path, "rb");
    free(path);
    if (!f)
        return false;
    size_t n = (size_t)testing_size(dir, file);
    uint8_t *all = malloc(n + 1);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, n, f), n);
    (void)fclose(f);
    bool found = n && memmem(all, n, h->code, sizeof h->code) != NULL;
    free(all);
    return found;
}

static void put_alike(void)
{
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    for (unsigned id = 40; id <= 41; id++)
        assert_int_equal(testing_put(st, owner, id, 3), 0);
    assert_int_equal(testing_commit(st, turn, 40), 0);
    assert_int_equal(testing_commit(st, second, 41), 0);
}

/* Two that begin alike have codes of all that they have in common: when a deletion is reported the index has them no
 * more, wherever they were. */
static void codes_gone(bool before)
{
    struct head h = {.label = "label 40;"};
    put_alike();
    assert_int_equal(jobs_call(st, head_run, &h), 0);
    assert_true(has("kv.db-wal", &h));
    if (before) { /* a longer one has taken its place */
        assert_int_equal(testing_commit(st, turn, 3), 0);
        testing_settle(st);
    }
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_false(has("kv.db-wal", &h));
    assert_false(has("kv.db", &h));
}

static void test_codes(void **state)
{
    (void)state;
    codes_gone(false);
}

static void test_codes_of_before(void **state)
{
    (void)state;
    codes_gone(true);
}

/* The index's log cannot be emptied: the deletion is not over. */
static void test_codes_stay(void **state)
{
    (void)state;
    static atomic_int error;
    struct head h = {.label = "label 40;"};
    faults_sqlite_unsyncable("kv.db", &error);
    reopen();
    put_alike();
    assert_int_equal(jobs_call(st, head_run, &h), 0);
    atomic_store(&error, EIO);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    atomic_store(&error, 0);
    for (int i = 0; testing_deleting(st, owner, "conv_1"); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    assert_false(has("kv.db-wal", &h));
    assert_false(has("kv.db", &h));
}

static int evict_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    uint64_t freed;
    uint8_t keep[3][STORAGE_KEY_BYTES];
    for (unsigned id = 1; id <= 3; id++)
        testing_key(keep[id - 1], id);
    return segment_evict(l, UINT64_MAX, (const uint8_t(*)[STORAGE_KEY_BYTES])keep, 3, &freed);
}

/* Of an owner's records that went before one could not be overwritten: no deletion of that owner is over until it is,
 * also after a restart; those of others are. */
static void test_left_from_before(void **state)
{
    (void)state;
    static const char *const names[] = {"conv_2", "conv_3", "conv_4"};
    int64_t other = testing_owner(st, "b");
    for (int i = 0; i < 3; i++)
        (void)testing_conversation(st, owner, names[i]);
    (void)testing_conversation(st, other, "conv_b");
    (void)testing_conversation(st, other, "conv_c");
    int64_t second = testing_turn(st, owner, conv, 0, "resp_2");
    assert_int_equal(testing_put(st, owner, 9, 0), 0);
    assert_int_equal(testing_commit(st, second, 9), 0);
    assert_true(testing_contains(dir, "pack-00000001", "label 9;"));
    faults_set(&faults, EIO, 0, false);
    assert_int_equal(jobs_call(st, evict_run, NULL), 0);
    testing_cuts_wait(st);
    assert_int_equal(testing_conversation_delete(st, owner, names[0]), -EINPROGRESS);
    assert_int_equal(testing_conversation_delete(st, owner, names[1]), -EINPROGRESS);
    assert_int_equal(testing_conversation_delete(st, other, "conv_b"), 0);
    reopen();
    assert_int_equal(testing_conversation_delete(st, owner, names[2]), -EINPROGRESS);
    assert_int_equal(testing_conversation_delete(st, other, "conv_c"), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(testing_deleting(st, owner, names[i]), 1);
    assert_true(testing_contains(dir, "pack-00000001", "label 9;"));
    faults_set(&faults, 0, 0, false);
    for (int i = 0; i < 3; i++)
        for (int k = 0; testing_deleting(st, owner, names[i]); k++) {
            assert_true(k < 1000);
            (void)usleep(10000);
        }
    assert_false(testing_contains(dir, "pack-00000001", "label 9;"));
}

/* One that could be written and not synced, nor overwritten after that: it has no row, and is waited for all the same.
 */
static void test_without_a_row(void **state)
{
    (void)state;
    struct storage_stats before, stats;
    (void)testing_conversation(st, owner, "conv_2");
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    storage_stats(st, &before);
    faults_set(&faults, 0, EIO, false);
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_commit(st, second, 4), -EIO);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_2"), -EINPROGRESS);
    faults_set(&faults, 0, 0, false);
    for (int k = 0; testing_deleting(st, owner, "conv_2"); k++) {
        assert_true(k < 1000);
        (void)usleep(10000);
    }
    testing_cuts_wait(st);
    storage_stats(st, &stats);
    assert_int_equal(stats.disk_used, before.disk_used);
    assert_int_equal(stats.segments, before.segments);
}

/* A process that ended in the middle of a turn has left a segment that no turn holds, behind one that is held: both go
 * with the conversation, however soon after the start it is deleted. */
static void test_left_by_a_crash(void **state)
{
    (void)state;
    struct storage_found f[2];
    for (unsigned id = 10; id < 400; id++) /* others', which the search comes to before */
        assert_int_equal(testing_put(st, owner + 1, id, 0), 0);
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_commit(st, 0, 0), 0);
    assert_int_equal(testing_find(st, owner, 2, 3, &f[0]), 0);
    assert_int_equal(testing_find(st, owner, 3, 4, &f[1]), 0);
    reopen();
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    for (int i = 0; i < 2; i++)
        assert_true(testing_cut_out(st, &f[i]));
    gone_soon(&f[0]);
}

static void rename_pack(const char *from, const char *to)
{
    char *old = testing_path(dir, from), *new = testing_path(dir, to);
    assert_int_equal(access(new, F_OK), -1);
    assert_int_equal(rename(old, new), 0);
    free(old);
    free(new);
}

static void names_exchange(void)
{
    rename_pack("pack-00000001", "between");
    rename_pack("pack-00000002", "pack-00000001");
    rename_pack("between", "pack-00000002");
}

/* The files of two packs have exchanged their names: what lies in the wrong one is not overwritten, what should be is
 * when it has its name again, by hand or by a start, and until then the deletion is not over. */
static void names_exchanged(bool by_hand)
{
    struct storage_found f, others;
    int64_t other = testing_owner(st, "b"), second = testing_conversation(st, other, "conv_b");
    const unsigned last = 80;
    char label[32];
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 23); /* packs are small then, and one is soon full */
    for (unsigned id = 21; id <= last; id++)
        assert_int_equal(testing_put(st, other, id, id == 21 ? 0 : id - 1), 0);
    assert_int_equal(testing_commit(st, testing_turn(st, other, second, 0, "resp_b"), last), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    assert_int_equal(testing_find(st, other, last - 1, last, &others), 0);
    assert_int_equal(f.pack, 1);
    assert_int_equal(others.pack, 2);
    (void)snprintf(label, sizeof label, "label %u;", last);
    names_exchange();
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    assert_int_equal(testing_deleting(st, owner, "conv_1"), 1);
    assert_true(testing_contains(dir, "pack-00000001", label));
    assert_true(testing_contains(dir, "pack-00000002", "label 2;"));
    if (by_hand)
        names_exchange();
    else
        reopen();
    deleted_soon();
    assert_true(testing_contains(dir, "pack-00000002", label));
    assert_false(testing_contains(dir, "pack-00000001", "label 2;"));
    assert_int_equal(testing_read(st, &others, last).rc, 0);
}

static void test_names_exchanged(void **state)
{
    (void)state;
    names_exchanged(true);
}

static void test_names_exchanged_at_start(void **state)
{
    (void)state;
    names_exchanged(false);
}

/* A pack has a name that no other has: it counts for the one that is missing. */
static void name_of_none(bool by_hand)
{
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    reopen(); /* the file is not held open */
    rename_pack("pack-00000001", "pack-00000009");
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -EINPROGRESS);
    assert_true(testing_contains(dir, "pack-00000009", "label 2;"));
    if (by_hand)
        rename_pack("pack-00000009", "pack-00000001");
    else
        reopen();
    deleted_soon();
    assert_false(testing_contains(dir, "pack-00000001", "label 2;"));
    assert_false(testing_contains(dir, "pack-00000009", "label 2;"));
}

static void test_name_of_none(void **state)
{
    (void)state;
    name_of_none(true);
}

static void test_name_of_none_at_start(void **state)
{
    (void)state;
    name_of_none(false);
}

#define QUEUED 600

static int until_closed_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&l->st->jobs_lock);
    while (!l->st->index_stop)
        pthread_cond_wait(&l->st->jobs_cond, &l->st->jobs_lock);
    pthread_mutex_unlock(&l->st->jobs_lock);
    return 0;
}

struct queued {
    struct deletion told;
    char id[16];
};

static int queued_run(struct storage_ledger *l, void *arg)
{
    const struct queued *q = arg;
    return storage_conversation_delete(l, owner, q->id);
}

static void queued_done(void *arg, int rc)
{
    delete_done(&((struct queued *)arg)->told, rc);
}

/* Closed with more of them waiting than one transaction takes, and a segment to be dropped behind them: all are done,
 * and told. */
static void test_close_with_a_queue(void **state)
{
    (void)state;
    struct storage_found f[2];
    struct deletion dropped = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static struct queued queued[QUEUED];
    uint8_t drop[STORAGE_KEY_BYTES];
    for (int i = 0; i < QUEUED; i++) {
        queued[i] = (struct queued){.told = {.lock = PTHREAD_MUTEX_INITIALIZER}};
        (void)snprintf(queued[i].id, sizeof queued[i].id, i ? "conv_q%d" : "conv_1", i);
        if (i)
            (void)testing_conversation(st, owner, queued[i].id);
    }
    assert_int_equal(testing_put(st, owner, 30, 0), 0);
    assert_int_equal(testing_commit(st, 0, 0), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f[0]), 0);
    assert_int_equal(testing_find(st, owner, 0, 30, &f[1]), 0);
    assert_int_equal(storage_submit(st, (struct storage_job){.run = until_closed_run}), 0);
    for (int i = 0; i < QUEUED; i++)
        assert_int_equal(
            storage_submit(st, (struct storage_job){.run = queued_run, .done = queued_done, .arg = &queued[i]}), 0);
    testing_key(drop, 30);
    assert_int_equal(storage_kv_flush(st, drop, delete_done, &dropped), 0);
    reopen();
    for (int i = 0; i < QUEUED; i++) {
        assert_true(done(&queued[i].told));
        assert_int_equal(queued[i].told.rc, 0);
        assert_int_equal(testing_conversation_delete(st, owner, queued[i].id), -ENOENT);
        assert_int_equal(testing_deleting(st, owner, queued[i].id), 0);
    }
    assert_true(done(&dropped));
    assert_int_equal(dropped.rc, 0);
    for (int i = 0; i < 2; i++)
        assert_true(testing_cut_out(st, &f[i]));
    gone_soon(&f[0]);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_in_order),
        T(test_not_overwritten),
        T(test_not_synced),
        T(test_no_holes),
        T(test_record_in_use),
        T(test_close_meanwhile),
        T(test_log_stays),
        T(test_index_behind),
        T(test_codes),
        T(test_codes_of_before),
        T(test_codes_stay),
        T(test_left_from_before),
        T(test_without_a_row),
        T(test_left_by_a_crash),
        T(test_names_exchanged),
        T(test_names_exchanged_at_start),
        T(test_name_of_none),
        T(test_name_of_none_at_start),
        T(test_close_with_a_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

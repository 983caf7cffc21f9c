/* compact_test.c - a budget is hard where the file system gives no space back, and what is read meanwhile is found. */
#include "tests/storage/storage_faults.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUDGET ((uint64_t)8 << 20) /* packs of 1 MiB */

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
    faults.punch_errno = EOPNOTSUPP;
    st = testing_open_with(dir, &io, BUDGET);
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

static uint64_t packs_bytes(unsigned *n)
{
    uint64_t all = 0;
    DIR *d = opendir(dir);
    struct dirent *e;
    *n = 0;
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "pack-", 5)) {
            all += testing_blocks(dir, e->d_name);
            ++*n;
        }
    closedir(d);
    return all;
}

/* Two of three segments are short-lived; the third is used again and again. */
static void test_hard_budget(void **state)
{
    (void)state;
    struct storage_found f;
    struct storage_stats stats;
    unsigned packs;
    for (unsigned id = 1; id <= 1500; id++) {
        assert_int_equal(testing_put(st, owner, id, 0), 0);
        assert_int_equal(testing_commit(st, turn, id), 0);
        for (unsigned k = id % 50 ? 0 : 1; k && k <= 60; k += 3)
            if (!testing_find(st, owner, 0, k, &f) && f.pack != STORAGE_PACK_NONE) {
                storage_ram_drop(st, NULL, 0);
                assert_int_equal(testing_read(st, &f, k).rc, 0);
            }
        if (id % 100 == 0) {
            testing_cuts_wait(st);
            uint64_t really = packs_bytes(&packs);
            storage_stats(st, &stats);
            assert_true(stats.disk_used <= BUDGET);
            /* A pack more while it is emptied, their first blocks, and what is allocated ahead. */
            if (really > BUDGET + (2 << 20))
                fail_msg("after %u: %llu in %u packs", id, (unsigned long long)really, packs);
        }
    }
    storage_stats(st, &stats);
    assert_int_equal(stats.save_failures, 0);
    /* A restart finds what there is. */
    storage_close(st);
    st = testing_open_with(dir, &io, BUDGET);
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    storage_stats(st, &stats);
    uint64_t really = packs_bytes(&packs);
    assert_true(stats.disk_used <= really && stats.disk_used + packs * ((uint64_t)64 << 10) >= really);
    assert_int_equal(testing_find(st, owner, 0, 1500, &f), 0);
    assert_int_equal(testing_read(st, &f, 1500).rc, 0);
}

static int drop_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    uint64_t freed;
    uint8_t keep[4][STORAGE_KEY_BYTES];
    for (unsigned id = 1; id <= 4; id++)
        testing_key(keep[id - 1], 10 * id);
    return segment_evict(l, (uint64_t)36 * 4096, (const uint8_t(*)[STORAGE_KEY_BYTES])keep, 4, &freed);
}

/* Looked up, moved, then read. */
static void test_read_of_what_moved(void **state)
{
    (void)state;
    struct storage_found f[5], g;
    for (unsigned id = 1; id <= 60; id++) /* some packs */
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    for (unsigned i = 1; i <= 4; i++)
        assert_int_equal(testing_find(st, owner, 0, 10 * i, &f[i]), 0);
    assert_int_equal(jobs_call(st, drop_run, NULL), 0);
    testing_cuts_wait(st);
    assert_true(atomic_load(&st->disk_dead) > 0);
    /* The writer rests: this thread may take its place. */
    while (!compact(st, false))
        ;
    testing_cuts_wait(st);
    storage_ram_drop(st, NULL, 0);
    unsigned moved = 0;
    for (unsigned i = 1; i <= 4; i++) {
        assert_int_equal(testing_find(st, owner, 0, 10 * i, &g), 0);
        moved += g.pack != f[i].pack || g.offset != f[i].offset;
        assert_int_equal(testing_read(st, &f[i], 10 * i).rc, 0);
    }
    assert_true(moved > 0);
}

static int drop_most_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    uint64_t freed;
    uint8_t keep[1][STORAGE_KEY_BYTES];
    testing_key(keep[0], 1);
    return segment_evict(l, (uint64_t)280 * 4096, (const uint8_t(*)[STORAGE_KEY_BYTES])keep, 1, &freed);
}

/* The budget wants nothing, and a pack in which little is left goes all the same. */
static void test_mostly_holes(void **state)
{
    (void)state;
    struct storage_found f;
    unsigned packs;
    for (unsigned id = 1; id <= 600; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    uint64_t before = packs_bytes(&packs);
    assert_int_equal(jobs_call(st, drop_most_run, NULL), 0);
    testing_cuts_wait(st);
    for (int i = 0; i < 3; i++) { /* the writer looks when it has written something */
        assert_int_equal(testing_put(st, owner, 1000 + (unsigned)i, 0), 0);
        assert_int_equal(testing_commit(st, turn, 1000 + (unsigned)i), 0);
    }
    for (int i = 0; packs_bytes(&packs) > before - ((uint64_t)1 << 20); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    assert_int_equal(testing_find(st, owner, 0, 600, &f), 0);
    assert_int_equal(testing_read(st, &f, 600).rc, 0);
}

static int drop_pack_run(struct storage_ledger *l, void *arg)
{
    uint64_t freed;
    uint8_t keep[100][STORAGE_KEY_BYTES];
    size_t n = 0;
    for (unsigned id = *(unsigned *)arg; id <= 100; id++)
        testing_key(keep[n++], id);
    return segment_evict(l, UINT64_MAX, (const uint8_t(*)[STORAGE_KEY_BYTES])keep, n, &freed);
}

/* Space in a pack that has no records, and no file either. */
static int dead_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    atomic_fetch_add(&st->disk_used, (uint64_t)1 << 30);
    erase_dead(l, 1, (uint64_t)1 << 30);
    return 0;
}

static bool is_there(const char *file)
{
    char *path = testing_path(dir, file);
    bool is = access(path, F_OK) == 0;
    free(path);
    return is;
}

/* The process ended between the drop of a pack's last records and their cut: the next start cuts them, and then the
 * pack goes, though nothing of it is dropped any more. */
static void test_pack_without_records(void **state)
{
    (void)state;
    struct storage_found f;
    unsigned first = 1;
    for (unsigned id = 1; id <= 100; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 100), 0);
    do
        assert_int_equal(testing_find(st, owner, 0, first, &f), 0);
    while (f.pack == 1 && ++first <= 100);
    assert_true(first > 1 && first < 100);
    faults_set(&faults, EIO, 0, false);
    assert_int_equal(jobs_call(st, drop_pack_run, &first), 0);
    storage_close(st);
    assert_true(is_there("pack-00000001"));
    faults_set(&faults, 0, 0, false);
    st = testing_open_with(dir, &io, BUDGET);
    assert_false(is_there("pack-00000001"));
    assert_true(is_there("pack-00000002"));
    /* Nor is it a reason to look for room in vain for ever. */
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    assert_int_equal(jobs_call(st, dead_run, NULL), 0);
    assert_int_equal(compact(st, false), 0);
    assert_true(atomic_load(&st->disk_dead) < (uint64_t)1 << 30);
}

static bool any_other_pack_contains(const char *text, unsigned but)
{
    bool found = false;
    for (unsigned i = 1; i < 10; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "pack-%08u", i);
        found |= i != but && is_there(name) && testing_contains(dir, name, text);
    }
    return found;
}

static bool any_pack_contains(const char *text)
{
    return any_other_pack_contains(text, 0);
}

static int count_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *s = NULL;
    JOB_CHECK(sqlite3_prepare_v2(l->kv, "SELECT count(*) FROM segments", -1, &s, NULL) == SQLITE_OK);
    JOB_CHECK(sqlite3_step(s) == SQLITE_ROW);
    *(uint64_t *)arg = (uint64_t)sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return 0;
}

/* Copied, but the transaction that moves the rows fails: neither the old record nor the copy stays. */
static void test_move_fails(void **state)
{
    (void)state;
    struct storage_found f;
    for (unsigned id = 1; id <= 60; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(testing_find(st, owner, 0, 10, &f), 0);
    assert_int_equal(jobs_call(st, drop_run, NULL), 0);
    testing_cuts_wait(st);
    assert_true(any_pack_contains("label 10;"));
    assert_int_equal(testing_refuse(st, true, TESTING_COMMITS), 0);
    assert_true(compact(st, false) < 0);
    assert_int_equal(testing_refuse(st, true, TESTING_NOTHING), 0);
    assert_false(atomic_load(&st->moving));
    for (int i = 0; any_pack_contains("label 10;"); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    struct storage_stats stats;
    uint64_t rows = 0;
    assert_int_equal(jobs_call(st, count_run, &rows), 0);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, rows);
}

/* The transaction in which it is chosen what moves fails: nothing does, and no deletion waits for that. */
static void test_choice_fails(void **state)
{
    (void)state;
    for (unsigned id = 1; id <= 60; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(jobs_call(st, drop_run, NULL), 0);
    testing_cuts_wait(st);
    assert_true(testing_refuse(st, false, TESTING_COMMITS) < 0);
    assert_true(compact(st, false) < 0);
    assert_int_equal(testing_refuse(st, false, TESTING_NOTHING), 0);
    assert_false(atomic_load(&st->moving));
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
}

/* Copied, and then the ledger takes nothing: the copies are overwritten all the same. */
static void test_copies_without_intents(void **state)
{
    (void)state;
    struct storage_found f;
    struct storage_stats before, stats;
    for (unsigned id = 1; id <= 60; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(testing_find(st, owner, 0, 10, &f), 0);
    assert_int_equal(jobs_call(st, drop_run, NULL), 0);
    testing_cuts_wait(st);
    storage_stats(st, &before);
    assert_int_equal(testing_refuse(st, false, TESTING_INTENTS), 0);
    assert_true(compact(st, false) < 0);
    assert_int_equal(testing_refuse(st, false, TESTING_NOTHING), 0);
    assert_true(any_pack_contains("label 10;"));
    assert_false(any_other_pack_contains("label 10;", f.pack));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, before.segments);
    assert_int_equal(testing_read(st, &f, 10).rc, 0);
}

struct range {
    unsigned from, to;
};

static int release_run(struct storage_ledger *l, void *arg)
{
    const struct range *r = arg;
    int rc = 0;
    for (unsigned id = r->from; id <= r->to && !rc; id++) {
        uint8_t key[STORAGE_KEY_BYTES];
        testing_key(key, id);
        rc = segment_release(l, key);
    }
    return rc;
}

static int nothing_run(struct storage_ledger *l, void *arg)
{
    (void)l, (void)arg;
    return 0;
}

static void stall(bool on)
{
    atomic_store(&faults.stalled, on);
}

static int syncs(void)
{
    pthread_mutex_lock(&faults.lock);
    int n = faults.n_syncs;
    pthread_mutex_unlock(&faults.lock);
    return n;
}

/* Whose first ids lie in which of the first packs. */
static void firsts(unsigned first[4])
{
    struct storage_found at;
    for (unsigned id = 1; !first[3]; id++) {
        assert_int_equal(testing_find(st, owner, 0, id, &at), 0);
        assert_true(at.pack >= 1 && at.pack <= 3);
        first[at.pack] = first[at.pack] ? first[at.pack] : id;
    }
}

/* A pack's last records go in two transactions: it is unlinked only when those of the second are overwritten too. */
static void test_unlinked_when_overwritten(void **state)
{
    (void)state;
    struct storage_found last;
    unsigned first[4] = {0};
    for (unsigned id = 1; id <= 200; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 200), 0);
    firsts(first);
    assert_int_equal(testing_find(st, owner, 0, first[2], &last), 0);
    char *path = testing_path(dir, "pack-00000002");
    int fd = open(path, O_RDONLY);
    free(path);
    assert_true(fd >= 0);
    stall(true);
    assert_int_equal(jobs_call(st, release_run, &(struct range){first[2] + 1, first[3] - 1}), 0);
    assert_int_equal(jobs_call(st, release_run, &(struct range){1, first[2]}), 0);
    int before = syncs();
    stall(false);
    while (syncs() == before)
        ;
    stall(true); /* in the first pack, before the second */
    for (int i = 0; i < 10; i++) {
        assert_int_equal(jobs_call(st, nothing_run, NULL), 0);
        (void)usleep(10000);
    }
    stall(false);
    testing_cuts_wait(st);
    uint8_t head[PACK_HEADER_BYTES];
    assert_int_equal(pread(fd, head, sizeof head, (off_t)last.offset), sizeof head);
    assert_int_equal(close(fd), 0);
    assert_true(pack_is_zero(head, sizeof head));
    assert_false(is_there("pack-00000002"));
}

static void patch(const char *file, const void *bytes, size_t n, uint64_t at)
{
    char *path = testing_path(dir, file);
    int fd = open(path, O_WRONLY);
    free(path);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
    assert_int_equal(close(fd), 0);
}

/* The pack that keeps the most is another one under its name: the next moves. */
static void test_misnamed(void **state)
{
    (void)state;
    static const uint8_t number[4] = {77};
    unsigned first[4] = {0};
    for (unsigned id = 1; id <= 200; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 200), 0);
    firsts(first);
    assert_int_equal(jobs_call(st, release_run, &(struct range){first[1] + 1, first[2] - 1}), 0);
    assert_int_equal(jobs_call(st, release_run, &(struct range){first[2] + 2, first[3] - 1}), 0);
    testing_cuts_wait(st);
    patch("pack-00000001", number, sizeof number, 12);
    assert_int_equal(compact(st, false), 0);
    testing_cuts_wait(st);
    assert_true(is_there("pack-00000001"));
    assert_false(is_there("pack-00000002"));
    assert_int_equal(compact(st, false), -ENOENT);
}

/* Two records lie in each other's place: neither moves as the other's, which a deletion would not find any more. */
static void test_record_of_another(void **state)
{
    (void)state;
    struct storage_found f[2];
    uint8_t record[2][1 << 16];
    for (unsigned id = 1; id <= 60; id++)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(testing_find(st, owner, 0, 10 * (i + 1), &f[i]), 0);
        assert_int_equal(f[i].pack, 1);
        assert_int_equal(f[i].encoded_bytes, f[0].encoded_bytes);
        assert_true(f[i].encoded_bytes <= sizeof record[i]);
        assert_int_equal(packs_read(&st->packs, 1, f[i].offset, record[i], f[i].encoded_bytes), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        patch("pack-00000001", record[!i], f[i].encoded_bytes, f[i].offset);
    assert_int_equal(jobs_call(st, drop_run, NULL), 0);
    testing_cuts_wait(st);
    assert_int_equal(compact(st, false), 0);
    testing_cuts_wait(st);
    assert_false(is_there("pack-00000001"));
    assert_false(any_pack_contains("label 10;"));
    assert_false(any_pack_contains("label 20;"));
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(test_hard_budget),
                                       T(test_read_of_what_moved),
                                       T(test_mostly_holes),
                                       T(test_pack_without_records),
                                       T(test_move_fails),
                                       T(test_choice_fails),
                                       T(test_copies_without_intents),
                                       T(test_unlinked_when_overwritten),
                                       T(test_misnamed),
                                       T(test_record_of_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

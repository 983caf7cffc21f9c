/* verify_test.c - one repair ends with all repaired that can be: what is behind it finds nothing wrong. */
#include "tests/storage/storage_faults.h"

#include <sys/wait.h>
#include <unistd.h>

/* Two turns' chains, A of segments 1 to 6, and B, a fork of it: 1 to 3, and then 14 to 16. */
#define SHARED 3
#define LAST   6
#define FORKED 11 /* segment k of B is FORKED + k - 1 behind what is shared */

static char *dir;
static struct storage *st;
static int64_t owner;
static struct storage_found places[FORKED + LAST];

static const unsigned all[] = {1, 2, 3, 4, 5, 6, 14, 15, 16};
#define ALL (sizeof all / sizeof *all)

static unsigned before(unsigned id)
{
    return id == FORKED + SHARED ? SHARED : id - 1;
}

static unsigned place_of(unsigned id)
{
    return id > FORKED ? id - FORKED + 1 : id;
}

static void chain(int64_t turn, bool forked)
{
    unsigned last = 0;
    for (size_t i = 0; i < ALL; i++) {
        bool behind = all[i] > SHARED;
        if (behind && (all[i] > FORKED) != forked)
            continue;
        last = all[i];
        assert_int_equal(testing_put_at(st, owner, last, before(last), (place_of(last) - 1) * TESTING_COUNT), 0);
    }
    assert_int_equal(testing_commit(st, turn, last), 0);
}

static int setup(void **state)
{
    (void)state;
    dir = testing_dir_in_memory();
    st = testing_open(dir);
    owner = testing_owner(st, "a");
    int64_t conv = testing_conversation(st, owner, "conv_1");
    chain(testing_turn(st, owner, conv, 0, "resp_a"), false);
    chain(testing_turn(st, owner, conv, 0, "resp_b"), true);
    for (size_t i = 0; i < ALL; i++)
        assert_int_equal(testing_find(st, owner, before(all[i]), all[i], &places[all[i]]), 0);
    storage_close(st);
    st = NULL;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

enum { HEADER = 8, PAYLOAD = 1024 }; /* what of a record is damaged */

static void damage(unsigned id, off_t at)
{
    char name[32];
    testing_pack_name(name, places[id].pack);
    testing_overwrite(dir, name, (off_t)places[id].offset + at, "junk");
}

/* Rows are counted wrong: the index is to be made anew. */
static void index_hurt(void)
{
    testing_sql(dir, "kv.db", "UPDATE segments SET children = children + 3 WHERE id % 2");
}

static void repaired(void)
{
    assert_true(testing_verify(dir, true) > 0);
    assert_int_equal(testing_verify(dir, true), 0);
    assert_int_equal(testing_verify(dir, false), 0);
    st = testing_open(dir);
}

/* These are there, and nothing else takes space: a list that ends with 0. */
static void only_there(const unsigned *ids)
{
    struct storage_stats stats;
    uint64_t bytes = 0, n = 0;
    for (; ids[n]; n++) {
        struct storage_found f;
        assert_int_equal(testing_find(st, owner, before(ids[n]), ids[n], &f), 0);
        assert_int_equal(testing_read(st, &f, ids[n]).rc, 0);
        bytes += f.encoded_bytes;
    }
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, n);
    assert_int_equal(stats.disk_used, bytes);
}

static int rows_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *s;
    int rc = sqlite3_prepare_v2(l->kv, "SELECT count(*) FROM segments", -1, &s, NULL);
    if (rc == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW)
        *(int *)arg = sqlite3_column_int(s, 0);
    return schema_errno(sqlite3_finalize(s));
}

static int rows(void)
{
    int n = -1;
    assert_int_equal(jobs_call(st, rows_run, &n), 0);
    return n;
}

#define ONLY(...) only_there((const unsigned[]){__VA_ARGS__, 0})

/* Damaged KV costs itself, wherever it lies and whatever the index is like: the rows keep the chains together. */
static void test_damaged(void **state)
{
    for (int hurt = 0; hurt < 2; hurt++) {
        damage(1, PAYLOAD);
        damage(3, PAYLOAD);
        damage(5, PAYLOAD);
        damage(6, PAYLOAD); /* the last one goes, and the one before it, which was there for it alone */
        if (hurt)
            index_hurt();
        repaired();
        ONLY(2, 4, 14, 15, 16);
        assert_int_equal(rows(), 7);
        assert_int_equal(testing_put_at(st, owner, 1, 0, 0), 0);
        assert_int_equal(testing_put_at(st, owner, 3, 2, 2 * TESTING_COUNT), 0);
        assert_int_equal(testing_commit(st, 0, 3), 0);
        ONLY(1, 2, 3, 4, 14, 15, 16);
        storage_close(st);
        st = NULL;
        assert_int_equal(testing_verify(dir, false), 0);
        if (!hurt) {
            (void)teardown(state);
            (void)setup(state);
        }
    }
}

/* What is no record any more is missing where the index is made anew. These turns have no tokens to find what is before
 * it by: they hold what is behind it alone. */
static void test_gaps(void **state)
{
    static const unsigned left[][ALL + 1] = {[1] = {2, 3, 4, 5, 6, 14, 15, 16},
                                             [2] = {3, 4, 5, 6, 14, 15, 16},
                                             [3] = {4, 5, 6, 14, 15, 16},
                                             [4] = {1, 2, 3, 5, 6, 14, 15, 16},
                                             [6] = {1, 2, 3, 14, 15, 16}};
    for (unsigned id = 1; id <= LAST; id += id == 4 ? 2 : 1) {
        damage(id, HEADER);
        index_hurt();
        repaired();
        only_there(left[id]);
        for (size_t i = 0; i < ALL; i++) {
            struct storage_found f;
            if (testing_find(st, owner, before(all[i]), all[i], &f))
                assert_true(testing_cut_out(st, &places[all[i]]));
        }
        (void)teardown(state);
        (void)setup(state);
    }
}

/* A whole pack is gone, with all chains in it. */
static void test_pack_gone(void **state)
{
    (void)state;
    char name[32];
    testing_pack_name(name, places[1].pack);
    char *path = testing_path(dir, name);
    assert_int_equal(unlink(path), 0);
    free(path);
    repaired();
    only_there((const unsigned[]){0});
    assert_int_equal(rows(), 0);
}

/* Killed when it has found the first damaged record, or while it makes the index anew, and begun again. */
static void stop_found(void *arg, const char *text)
{
    (void)text;
    if (arg)
        _exit(94);
}

static void stop_anew(void *arg, int priority, const char *text)
{
    (void)arg, (void)priority;
    if (strstr(text, "made anew"))
        _exit(94);
}

static void test_killed(void **state)
{
    (void)state;
    damage(2, PAYLOAD);
    damage(15, PAYLOAD);
    index_hurt();
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct storage_checked n;
            char err[256];
            (void)storage_verify(&(struct storage_opts){.dir = dir, .log = i ? stop_anew : NULL}, true, stop_found,
                                 i ? NULL : dir, &n, err, sizeof err);
            _exit(95);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 94);
    }
    repaired();
    ONLY(1, 3, 4, 5, 6, 14, 16);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(test_damaged), T(test_gaps), T(test_pack_gone), T(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* crash_test.c - the process dies at every write point in turn; what was acknowledged before must be there after.
 *
 * A child does a fixed piece of work (a conversation, turns with segments, a replaced tail, a deletion) and tells what
 * was acknowledged through a pipe. It dies at its n-th write, with what packs had not synced lost. Then the directory
 * is opened again: acknowledged turns are there, acknowledged segments can be read, what was reported as deleted is
 * gone from the disk, and work goes on. n grows until a child comes to its end.
 */
#include "tests/storage/storage_faults.h"

#include <sys/wait.h>
#include <unistd.h>

/* Sanitizers make it slow: then not every point. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 11
#else
#define STRIDE 1
#endif

enum step { STEP_OPEN, STEP_TURN_1, STEP_SAVED_1, STEP_TURN_2, STEP_SAVED_2, STEP_DELETED, STEP_SAVED_3, STEP_END };

static void tell(int fd, enum step s)
{
    uint8_t b = (uint8_t)s;
    if (write(fd, &b, 1) != 1)
        _exit(96);
}

static void work(const char *dir, int n, int fd)
{
    struct storage_io io;
    faults_die_at(n, &io);
    struct storage *st = NULL;
    char err[256];
    if (storage_open_with(&(struct storage_opts){.dir = dir, .disk_bytes = 1 << 26}, &io, &st, err, sizeof err))
        _exit(95);
    int64_t owner = testing_owner(st, "a");
    int64_t c1 = testing_conversation(st, owner, "keep"), c2 = testing_conversation(st, owner, "drop");
    tell(fd, STEP_OPEN);
    int64_t t1 = testing_turn(st, owner, c1, 0, "t1");
    tell(fd, STEP_TURN_1);
    (void)testing_put(st, owner, 1, 0);
    (void)testing_put(st, owner, 2, 1);
    if (testing_commit(st, t1, 2))
        _exit(94);
    tell(fd, STEP_SAVED_1);
    int64_t t2 = testing_turn(st, owner, c2, 0, "t2-secret");
    tell(fd, STEP_TURN_2);
    (void)testing_put(st, owner, 3, 1);
    (void)testing_put(st, owner, 4, 3);
    if (testing_commit(st, t2, 4))
        _exit(94);
    tell(fd, STEP_SAVED_2);
    if (testing_conversation_delete(st, owner, "drop"))
        _exit(94);
    tell(fd, STEP_DELETED);
    int64_t t3 = testing_turn(st, owner, c1, t1, "t3");
    (void)testing_put(st, owner, 5, 1);
    if (testing_commit(st, t3, 5) || testing_commit(st, t1, 5)) /* 5 has all of 2 */
        _exit(94);
    tell(fd, STEP_SAVED_3);
    storage_close(st);
    tell(fd, STEP_END);
}

static int turn_run(struct storage_ledger *l, void *arg)
{
    struct storage_turn t;
    struct storage_owner owner;
    int rc = storage_owner_get(l, "a", &owner);
    if (!rc)
        rc = storage_turn_get(l, owner.id, arg, &t);
    if (!rc)
        storage_turn_free(&t);
    return rc;
}

static bool readable(struct storage *st, unsigned parent, unsigned id)
{
    struct storage_found f;
    return testing_find(st, testing_owner(st, "a"), parent, id, &f) == 0 && testing_read(st, &f, id).rc == 0;
}

static void check(const char *dir, enum step reached, int n)
{
    struct storage *st = testing_open(dir);
    jobs_sweep_wait(st);
    if (reached >= STEP_TURN_1)
        assert_int_equal(jobs_call(st, turn_run, "t1"), 0);
    if (reached >= STEP_SAVED_1) {
        if (!readable(st, 0, 1))
            fail_msg("died at %d: segment 1 is lost", n);
        /* The tail, or the longer one that its turn holds now. */
        if (!readable(st, 1, 2) && !readable(st, 1, 5))
            fail_msg("died at %d: segments 2 and 5 are lost", n);
    }
    if (reached == STEP_TURN_2 || reached == STEP_SAVED_2) {
        /* The deletion may have begun: then all of it has happened. */
        int rc = jobs_call(st, turn_run, "t2-secret");
        assert_true(rc == 0 || rc == -ENOENT);
        if (reached == STEP_SAVED_2 && rc == 0)
            assert_true(readable(st, 1, 3) && readable(st, 3, 4));
        if (rc == -ENOENT)
            assert_true(!readable(st, 1, 3) && !readable(st, 3, 4));
    }
    if (reached >= STEP_DELETED) {
        assert_int_equal(jobs_call(st, turn_run, "t2-secret"), -ENOENT);
        assert_true(!readable(st, 1, 3) && !readable(st, 3, 4));
        static const char *const files[] = {"ledger.db", "ledger.db-wal", "kv.db", "kv.db-wal", "pack-00000001"};
        for (size_t i = 0; i < sizeof files / sizeof *files; i++)
            if (testing_contains(dir, files[i], "secret") || testing_contains(dir, files[i], "label 3") ||
                testing_contains(dir, files[i], "label 4"))
                fail_msg("died at %d: %s still has what was deleted", n, files[i]);
    }
    if (reached >= STEP_SAVED_3)
        if (!readable(st, 1, 5) || readable(st, 1, 2))
            fail_msg("died at %d of step %d: segment 5 %d 2 %d", n, reached, readable(st, 1, 5), readable(st, 1, 2));
    /* And it goes on. */
    int64_t owner = testing_owner(st, "a"), c = testing_conversation(st, owner, "after");
    int64_t t = testing_turn(st, owner, c, 0, "after");
    assert_int_equal(testing_put(st, owner, 9, 0), 0);
    assert_int_equal(testing_commit(st, t, 9), 0);
    assert_true(readable(st, 0, 9));
    storage_close(st);
    st = testing_open(dir);
    assert_true(readable(st, 0, 9));
    storage_close(st);
}

static void test_every_write_point(void **state)
{
    (void)state;
    enum step reached = STEP_OPEN;
    int n = 0;
    while (reached != STEP_END) {
        char *dir = testing_dir_in_memory();
        int fds[2], status;
        n += STRIDE;
        assert_int_equal(pipe(fds), 0);
        (void)fflush(stdout);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(fds[0]);
            work(dir, n, fds[1]);
            _exit(0);
        }
        (void)close(fds[1]);
        int last = -1;
        uint8_t b;
        while (read(fds[0], &b, 1) == 1)
            last = b;
        (void)close(fds[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("child that was to die at %d ended with %d", n, status);
        reached = last < 0 ? STEP_OPEN : (enum step)last;
        check(dir, reached, n);
        testing_dir_remove(dir);
    }
    assert_true(n > 50);
    printf("%d write points\n", n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_write_point)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

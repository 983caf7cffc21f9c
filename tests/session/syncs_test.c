/* syncs_test.c - how often a disk is waited for: a stored turn and a deletion, on which thread. Also under SQLite,
 * since this program's fdatasync() comes before the C library's. */
#include "tests/session/harness.h"

#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

struct counts {
    int ledger, packs, others;
    bool mixed; /* a pack was synced by the thread that syncs the ledger */
};

static struct {
    pthread_mutex_t lock; /* guards the rest */
    struct counts n;
    pid_t ledger_thread;
} syncs = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fdatasync(int fd)
{
    char link[64], path[512] = "";
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    const char *name = n > 0 && strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    pid_t thread = (pid_t)syscall(SYS_gettid);
    pthread_mutex_lock(&syncs.lock);
    if (!strcmp(name, "ledger.db-wal")) {
        syncs.n.ledger++;
        syncs.ledger_thread = thread;
    } else if (!strncmp(name, "pack-", 5)) {
        syncs.n.packs++;
        syncs.n.mixed |= thread == syncs.ledger_thread;
    } else {
        syncs.n.others++;
    }
    pthread_mutex_unlock(&syncs.lock);
    return (int)syscall(SYS_fdatasync, fd);
}

static void begin(void)
{
    pthread_mutex_lock(&syncs.lock);
    syncs.n.ledger = syncs.n.packs = syncs.n.others = 0;
    pthread_mutex_unlock(&syncs.lock);
}

/* As of now: the cutter may be at it still. */
static struct counts seen(void)
{
    pthread_mutex_lock(&syncs.lock);
    struct counts now = syncs.n;
    pthread_mutex_unlock(&syncs.lock);
    return now;
}

static void test_lone_turn(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = "warm", .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    int packs = INT_MAX, ledger = INT_MAX;
    rig_ledger(rig);
    for (int i = 0; i < 3; i++) {
        begin();
        (void)rig_ask(rig, (struct ask){.text = "what is a lee shore", .conversation = "conv_a", .seed = 2});
        rig_saved(rig);
        rig_ledger(rig);
        /* The turn's row, when it is accepted and when it has ended. */
        assert_true(seen().ledger >= 2);
        ledger = seen().ledger < ledger ? seen().ledger : ledger;
        assert_int_equal(seen().others, 0);
        packs = seen().packs < packs ? seen().packs : packs;
    }
    /* The sweep after the start meets one of them at most; it has a transaction and a sync of a pack of its own. */
    assert_int_equal(packs, 1);
    assert_int_equal(ledger, 2);
    assert_false(seen().mixed);
    rig_close(rig);
}

static void test_deletion(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 8192});
    char *text = rig_text(1, 3000);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_saved(rig);
    assert_true(rig_segments(rig) >= 12);
    begin();
    assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
    /* All of its records at once; the transaction; the ledger, and its log while it is overwritten. */
    assert_int_equal(seen().packs, 1);
    assert_int_equal(seen().ledger, 2);
    assert_int_equal(seen().others, 1);
    assert_false(seen().mixed);
    free(text);
    rig_close(rig);
}

/* What a second turn of a conversation has in common with the first is in codes of the index: its log goes too. */
static void test_deletion_of_two(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 8192});
    char *text = rig_text(1, 3000);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    for (int i = 0; i < 2; i++) {
        (void)rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
        rig_saved(rig);
    }
    begin();
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    assert_int_equal(seen().packs, 1);
    assert_int_equal(seen().ledger, 2);
    /* The ledger; the index's log, the index, and its log while it is overwritten. */
    assert_int_equal(seen().others, 4);
    assert_false(seen().mixed);
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lone_turn), cmocka_unit_test(test_deletion),
                                       cmocka_unit_test(test_deletion_of_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

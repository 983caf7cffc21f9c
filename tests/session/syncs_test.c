/* syncs_test.c - how often a disk is waited for: a stored turn and a deletion, on which thread; and how many steps of
 * SQL a turn takes. Also under SQLite and by it, since this program's functions of these names come before the
 * libraries'. */
#include "storage/storage_internal.h"
#include "tests/session/harness.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
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

static atomic_int steps;
static int (*step_of_library)(sqlite3_stmt *s);

int sqlite3_step(sqlite3_stmt *s)
{
    atomic_fetch_add(&steps, 1);
    return step_of_library(s);
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

/* Two of an owner begin alike, as the template does. What goes first leaves no more than the other one has. */
static void test_deletion_beside_another(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 8192});
    char *text = rig_text(1, 3000);
    struct answer *a = rig_ask(rig, (struct ask){.text = "warm", .seed = 1});
    rig_saved(rig);
    struct answer *b = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_saved(rig);
    rig_ledger(rig);
    begin();
    assert_int_equal(rig_delete(rig, "ann", b->conversation), 0);
    assert_int_equal(seen().packs, 1);
    assert_int_equal(seen().ledger, 2);
    assert_int_equal(seen().others, 1);
    begin();
    assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
    assert_int_equal(seen().packs, 1);
    assert_int_equal(seen().ledger, 3); /* and the head of its log, which was emptied before */
    assert_int_equal(seen().others, 4);
    free(text);
    rig_close(rig);
}

/* ---- steps of SQL ------------------------------------------------------------------------------------------------ */

struct many { /* more turns like the latest one of a conversation */
    const char *id;
    int n;
};

static int many_run(struct storage_ledger *l, void *arg)
{
    const struct many *m = arg;
    struct storage_owner owner;
    struct storage_turn like;
    int rc = storage_owner_get(l, "ann", &owner);
    if (!rc)
        rc = storage_turn_get(l, owner.id, m->id, STORAGE_TURN_TOKENS, &like);
    if (rc)
        return rc;
    int64_t parent = like.id, n_tokens = like.n_tokens;
    for (int i = 0; i < m->n && !rc; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "resp_many_%d", i);
        struct storage_turn t = {.owner = owner.id,
                                 .conversation = like.conversation,
                                 .parent = parent,
                                 .public_id = id,
                                 .status = STORAGE_TURN_RUNNING,
                                 .instructions = like.instructions};
        memcpy(t.fingerprint, like.fingerprint, sizeof t.fingerprint);
        if ((rc = storage_turn_insert(l, &t)))
            break;
        t.status = STORAGE_TURN_COMPLETED;
        t.tokens = like.tokens;
        t.tokens_bytes = 2 * sizeof(engine_token);
        t.n_tokens = n_tokens += 2;
        t.evaluated = n_tokens - 1;
        t.kv = like.kv;
        t.receipt = like.receipt;
        t.answered = true;
        rc = storage_turn_commit(l, &t);
        parent = t.id;
    }
    storage_turn_free(&like);
    return rc;
}

/* Of a turn behind `n` others and a text of so many words: the least of some. */
static int steps_behind(int n, unsigned words)
{
    struct rig *rig = rig_open((struct rig_opts){.ctx = 16384});
    int least = INT_MAX;
    char *text = rig_text(3, words);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    struct many many = {.id = a->id, .n = n};
    assert_int_equal(jobs_call(rig->s->storage, many_run, &many), 0);
    (void)rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    rig_no_sweep(rig);
    for (int i = 0; i < 4; i++) {
        rig_ledger(rig);
        int before = atomic_load(&steps);
        struct answer *b = rig_ask(rig, (struct ask){.text = "and on", .conversation = "conv_a", .seed = 2});
        rig_saved(rig);
        rig_ledger(rig);
        int now = atomic_load(&steps) - before;
        least = now < least ? now : least;
        assert_true(b->input > 2 * n && b->input > (int)words);
    }
    free(text);
    rig_close(rig);
    return least;
}

static void test_steps(void **state)
{
    (void)state;
    int few = steps_behind(10, 300), many = steps_behind(1000, 300), far = steps_behind(10, 8000);
    print_message("steps of SQL of a turn: %d behind 10 others, %d behind 1,000, %d in a context of 8k\n", few, many,
                  far);
    /* Not one for each of a thousand turns or of 32 segments. (Two jobs in one transaction take a few less than in
     * two.) */
    assert_true(many <= few + 4);
    assert_true(far <= few + 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lone_turn), cmocka_unit_test(test_deletion),
                                       cmocka_unit_test(test_deletion_of_two),
                                       cmocka_unit_test(test_deletion_beside_another), cmocka_unit_test(test_steps)};
    *(void **)&step_of_library = dlsym(RTLD_NEXT, "sqlite3_step");
    assert_non_null(step_of_library);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

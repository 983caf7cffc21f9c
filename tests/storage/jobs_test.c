/* jobs_test.c - group commit: order, a failing job among good ones, a commit that fails, many threads. */
#include "tests/storage/storage_testing.h"

#include <unistd.h>

struct gate {             /* holds the ledger thread, so that jobs collect into one batch */
    pthread_mutex_t lock; /* guards open and entered */
    pthread_cond_t cond;
    bool open, entered;
};

static int gate_run(struct storage_ledger *l, void *arg)
{
    (void)l;
    struct gate *g = arg;
    pthread_mutex_lock(&g->lock);
    g->entered = true;
    pthread_cond_broadcast(&g->cond);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return 0;
}

static void gate_close(struct storage *st, struct gate *g)
{
    *g = (struct gate){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    assert_int_equal(storage_submit(st, (struct storage_job){.run = gate_run, .arg = g}), 0);
    pthread_mutex_lock(&g->lock);
    while (!g->entered)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

struct insert {
    int64_t owner;
    char id[16];
    int result; /* what run returns after inserting */
    int order, ran, rc;
    bool done;
    int *clock;
};

static int insert_run(struct storage_ledger *l, void *arg)
{
    struct insert *i = arg;
    struct storage_conversation c = {.owner = i->owner, .public_id = i->id};
    i->ran = ++*i->clock;
    int rc = storage_conversation_insert(l, &c);
    return rc ? rc : i->result;
}

static void insert_done(void *arg, int rc)
{
    struct insert *i = arg;
    i->rc = rc;
    i->done = true;
}

static int noop(struct storage_ledger *l, void *arg)
{
    (void)l;
    (void)arg;
    return 0;
}

static int exists_run(struct storage_ledger *l, void *arg)
{
    struct insert *i = arg;
    struct storage_conversation c;
    int rc = storage_conversation_get(l, i->owner, i->id, &c);
    if (!rc)
        storage_conversation_free(&c);
    return rc;
}

static void test_failing_job_among_good_ones(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a");
    struct insert jobs[8];
    struct gate g;
    int clock = 0;
    gate_close(st, &g);
    for (int i = 0; i < 8; i++) {
        jobs[i] = (struct insert){.owner = owner, .clock = &clock, .result = i % 3 == 1 ? -ECANCELED : 0};
        (void)snprintf(jobs[i].id, sizeof jobs[i].id, "c%d", i == 5 ? 3 : i);
        assert_int_equal(
            storage_submit(st, (struct storage_job){.run = insert_run, .done = insert_done, .arg = &jobs[i]}), 0);
    }
    gate_open(&g);
    assert_int_equal(jobs_call(st, noop, NULL), 0);
    for (int i = 0; i < 8; i++) {
        assert_true(jobs[i].done);
        assert_int_equal(jobs[i].ran, i + 1);
        assert_int_equal(jobs[i].rc, i == 5 ? -EEXIST : jobs[i].result);
    }
    storage_close(st);
    st = testing_open(dir);
    for (int i = 0; i < 8; i++)
        assert_int_equal(jobs_call(st, exists_run, &jobs[i]), i % 3 == 1 ? -ENOENT : 0);
    storage_close(st);
    testing_dir_remove(dir);
}

/* The database may not grow: the batch is refused as a whole, the next one works. */
static int limit_run(struct storage_ledger *l, void *arg)
{
    char sql[64];
    (void)snprintf(sql, sizeof sql, "PRAGMA max_page_count = %d", *(int *)arg);
    return schema_errno(sqlite3_exec(l->db, sql, NULL, NULL, NULL));
}

static int big_run(struct storage_ledger *l, void *arg)
{
    struct insert *i = arg;
    char *title = malloc(200001);
    if (!title)
        return -ENOMEM;
    memset(title, 'x', 200000);
    title[200000] = '\0';
    struct storage_conversation c = {.owner = i->owner, .public_id = i->id, .title = title};
    int rc = storage_conversation_insert(l, &c);
    free(title);
    return rc;
}

static void test_full_database(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a");
    int clock = 0, small = 1, large = 1000000;
    struct insert good = {.owner = owner, .clock = &clock, .id = "good"}, big = {.owner = owner, .id = "big"};
    assert_int_equal(jobs_call(st, limit_run, &small), 0); /* as small as it is now */
    assert_int_equal(jobs_call(st, big_run, &big), -ENOSPC);
    assert_int_equal(jobs_call(st, exists_run, &big), -ENOENT);
    assert_int_equal(jobs_call(st, limit_run, &large), 0);
    assert_int_equal(jobs_call(st, insert_run, &good), 0);
    assert_int_equal(jobs_call(st, big_run, &big), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

/* ---- the index of segments is only a cache ---- */

struct index_job {
    uint32_t pack; /* a row is written for it */
    int rc;
};

static int index_run(struct storage_ledger *l, void *arg)
{
    struct index_job *i = arg;
    return stmt_run(l, STMT_WITH(l, S_PACK_ADD, i->pack, 0, 0, 0), NULL);
}

static void index_done(void *arg, int rc)
{
    struct index_job *i = arg;
    i->rc = rc;
}

static int index_has_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *s = STMT_WITH(l, S_PACK_END, *(uint32_t *)arg);
    int rc = stmt_step(l, s);
    stmt_reset(s);
    return rc == 1 ? 0 : rc ? rc : -ENOENT;
}

static int kv_sql_run(struct storage_ledger *l, void *arg)
{
    return schema_errno(sqlite3_exec(l->kv, arg, NULL, NULL, NULL));
}

/* A read notes that a segment was used, and the index refuses that. */
static void test_index_refuses_a_use(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_found f;
    int clock = 0;
    struct insert in = {.owner = owner, .clock = &clock, .id = "c"};
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    char sql[] = "CREATE TRIGGER t BEFORE UPDATE OF used ON segments BEGIN SELECT RAISE(FAIL, 'x'); END";
    assert_int_equal(jobs_call(st, kv_sql_run, sql), 0);
    assert_int_equal(testing_read(st, &f, 1).rc, 0);
    assert_int_equal(jobs_call(st, insert_run, &in), 0);
    assert_int_equal(jobs_call(st, exists_run, &in), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static int no_begin(void *arg, int action, const char *a, const char *b, const char *c, const char *d)
{
    (void)arg;
    (void)b;
    (void)c;
    (void)d;
    return action == SQLITE_TRANSACTION && !strcmp(a, "BEGIN") ? SQLITE_DENY : SQLITE_OK;
}

static int no_begin_run(struct storage_ledger *l, void *arg)
{
    return sqlite3_set_authorizer(l->kv, *(bool *)arg ? no_begin : NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

/* Jobs of one batch, of which the index's part is lost in the middle or cannot begin: the ledger's part stays. */
static void test_index_lost(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a");
    struct insert in[6];
    struct index_job index[5] = {{.pack = 77}, {.pack = 78}, {.pack = 79}, {.pack = 80}, {.pack = 81}};
    struct gate g;
    int clock = 0;
    bool deny = true, allow = false;
    char sql[] = "CREATE TRIGGER t BEFORE INSERT ON packs WHEN NEW.n = 78 BEGIN SELECT RAISE(ROLLBACK, 'x'); END";
    assert_int_equal(jobs_call(st, kv_sql_run, sql), 0);
    for (int i = 0; i < 6; i++) {
        in[i] = (struct insert){.owner = owner, .clock = &clock};
        (void)snprintf(in[i].id, sizeof in[i].id, "c%d", i);
    }
    gate_close(st, &g);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(
            storage_submit(st, (struct storage_job){.run = insert_run, .done = insert_done, .arg = &in[i]}), 0);
        if (i < 3)
            assert_int_equal(
                storage_submit(
                    st, (struct storage_job){.run = index_run, .done = index_done, .arg = &index[i], .index = true}),
                0);
    }
    gate_open(&g);
    assert_int_equal(jobs_call(st, noop, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(in[i].rc, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(index[i].rc, -EINVAL); /* a constraint */
        assert_int_equal(jobs_call(st, index_has_run, &index[i].pack), -ENOENT);
    }

    assert_int_equal(jobs_call(st, no_begin_run, &deny), 0);
    assert_int_equal(jobs_call(st, insert_run, &in[4]), 0);
    assert_int_equal(jobs_call(st, index_run, &index[3]), -EIO);
    assert_int_equal(jobs_call(st, insert_run, &in[5]), 0);
    assert_int_equal(jobs_call(st, no_begin_run, &allow), 0);
    assert_int_equal(jobs_call(st, index_has_run, &index[3].pack), -ENOENT);
    assert_int_equal(jobs_call(st, index_run, &index[4]), 0);
    assert_int_equal(jobs_call(st, index_has_run, &index[4].pack), 0);
    storage_close(st);
    st = testing_open(dir);
    for (int i = 0; i < 6; i++)
        assert_int_equal(jobs_call(st, exists_run, &in[i]), 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static int long_ago_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    l->logged_ms -= 60000;
    return 0;
}

/* When nothing is written for a while the logs are copied to the databases and emptied. */
static void test_idle(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int clock = 0;
    struct insert in = {.owner = testing_owner(st, "a"), .clock = &clock, .id = "conv_idle"};
    assert_int_equal(jobs_call(st, insert_run, &in), 0);
    assert_true(testing_size(dir, "ledger.db-wal") > 0);
    assert_false(testing_contains(dir, "ledger.db", "conv_idle"));
    assert_int_equal(jobs_call(st, noop, NULL), 0); /* after it the thread has seen what was written */
    assert_int_equal(jobs_call(st, long_ago_run, NULL), 0);
    while (testing_size(dir, "ledger.db-wal") > 0)
        (void)usleep(1000);
    assert_true(testing_contains(dir, "ledger.db", "conv_idle"));
    storage_close(st);
    testing_dir_remove(dir);
}

struct inserter {
    struct storage *st;
    int64_t owner;
    int n, failed;
};

static void *work(void *arg)
{
    struct inserter *w = arg;
    int clock = 0;
    for (int i = 0; i < 50; i++) {
        struct insert in = {.owner = w->owner, .clock = &clock};
        (void)snprintf(in.id, sizeof in.id, "w%d-%d", w->n, i);
        w->failed += jobs_call(w->st, insert_run, &in) != 0;
    }
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a");
    struct inserter w[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct inserter){.st = st, .owner = owner, .n = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(w[i].failed, 0);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

struct busy {
    struct storage *st;
    pthread_mutex_t lock; /* guards left and stopped */
    pthread_cond_t cond;
    int left;
    bool stopped;
};

static int busy_run(struct storage_ledger *l, void *arg)
{
    struct busy *b = arg;
    (void)l;
    /* The next one waits before this one is over: the thread never finds nothing to do. */
    pthread_mutex_lock(&b->lock);
    bool more = atomic_load(&b->st->segments) && b->left-- > 0;
    if (!more || storage_submit(b->st, (struct storage_job){.run = busy_run, .arg = b})) {
        b->stopped = true;
        pthread_cond_signal(&b->cond);
    }
    pthread_mutex_unlock(&b->lock);
    return 0;
}

/* Somebody always asks for something: what nobody holds is found all the same. */
static void test_sweep_of_a_busy_ledger(void **state)
{
    (void)state;
    char *dir = testing_dir_in_memory();
    struct busy b = {
        .st = testing_open(dir), .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .left = 300000};
    int64_t owner = testing_owner(b.st, "a");
    jobs_sweep_wait(b.st);
    assert_int_equal(testing_put(b.st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(b.st, 0, 0), 0);
    assert_int_equal(atomic_load(&b.st->segments), 1);
    assert_int_equal(storage_submit(b.st, (struct storage_job){.run = busy_run, .arg = &b}), 0);
    storage_sweep(b.st, storage_clock(b.st));
    pthread_mutex_lock(&b.lock);
    while (!b.stopped)
        pthread_cond_wait(&b.cond, &b.lock);
    assert_true(b.left > 0);
    pthread_mutex_unlock(&b.lock);
    storage_close(b.st);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failing_job_among_good_ones),
        cmocka_unit_test(test_full_database),
        cmocka_unit_test(test_index_refuses_a_use),
        cmocka_unit_test(test_index_lost),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_sweep_of_a_busy_ledger),
        cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* retention_test.c - conversations that nobody uses go when their time is over, and only they. */
#include "storage/storage_internal.h"
#include "tests/session/harness.h"

#include <unistd.h>

#define DAY_MS ((int64_t)24 * 3600 * 1000)

static int age_run(struct storage_ledger *l, void *arg)
{
    char sql[200];
    (void)snprintf(sql, sizeof sql, "UPDATE conversations SET updated_ms = %lld WHERE public_id IN ('conv_a', '%s')",
                   (long long)(session_wall_ms() - 3 * DAY_MS), (const char *)arg);
    return sqlite3_exec(l->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

static int older_run(struct storage_ledger *l, void *arg)
{
    char sql[200];
    (void)snprintf(sql, sizeof sql, "UPDATE conversations SET updated_ms = %lld WHERE public_id = '%s'",
                   (long long)(session_wall_ms() - 4 * DAY_MS), (const char *)arg);
    return sqlite3_exec(l->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

static void test_old_ones_go(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 600), head[64], field[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(rig_create(rig, "bob", "conv_b", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    struct answer *kept = rig_ask(rig, (struct ask){.text = text, .owner = "bob", .conversation = "conv_b", .seed = 1});
    struct answer *chain = rig_ask(rig, (struct ask){.text = "a chain, not listed", .seed = 2});
    rig_saved(rig);
    assert_int_equal(jobs_call(rig->s->storage, age_run, chain->conversation), 0);
    rig_stop(rig);
    /* Without retention nothing goes, whatever its age. */
    rig_start(rig, (struct rig_opts){0});
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){.limits = {.retain_ms = 2 * DAY_MS}});
    struct session_status status = {0};
    for (int i = 0; status.conversations_expired < 2; i++) {
        assert_true(i < 3000);
        (void)usleep(10000);
        session_status(rig->s, &status);
    }
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), -ENOENT);
    assert_int_equal(rig_stored(rig, "ann", chain->id, field, head), -ENOENT);
    assert_int_equal(rig_head(rig, "bob", "conv_b", head), 0);
    assert_string_equal(head, kept->id);
    rig_settle(rig);
    jobs_sweep_wait(rig->s->storage);
    assert_int_equal(rig_segments(rig), 3); /* conv_b's */
    rig_only_new(rig_ask(rig, (struct ask){.text = "go on", .owner = "bob", .conversation = "conv_b", .seed = 3}));
    free(text);
    rig_close(rig);
}

struct jump {
    struct gate over;
    int64_t by_ms;      /* that the clock was set ahead */
    int64_t correct_ms; /* that what it stamped is to be put right by */
    int64_t waits_ms;
    bool busy;
};

/* [engine thread] As if the wall clock had been set since the session began. */
static void clock_jumps(struct session *s, void *arg)
{
    struct jump *j = arg;
    if (s->retain.busy) { /* the look after the start */
        assert_int_equal(session_post(s, clock_jumps, j), 0);
        return;
    }
    int64_t now_ms = session_now_ns() / 1000000;
    s->retain.offset_ms = session_wall_ms() - now_ms - j->by_ms;
    s->retain.since_ms = s->retain.offset_ms + now_ms - DAY_MS / 2;
    s->retain.due_ms = now_ms;
    retention_tick(s);
    j->correct_ms = s->retain.by_ms;
    j->busy = s->retain.busy;
    j->waits_ms = s->retain.due_ms - now_ms;
    gate_open(&j->over);
}

static struct jump jump(struct rig *rig, int64_t by_ms)
{
    struct jump j = {.over = GATE_CLOSED, .by_ms = by_ms};
    assert_int_equal(session_post(rig->s, clock_jumps, &j), 0);
    gate_wait(&j.over, 1);
    return j;
}

static struct rig *rig_patient(void)
{
    return rig_open((struct rig_opts){.limits = {.retain_ms = 2 * DAY_MS}, .retain_wait_ms = 3600 * 1000});
}

/* A clock that is set costs nothing: it may be wrong. */
static void test_clock_is_set(void **state)
{
    (void)state;
    struct rig *rig = rig_patient();
    struct jump j = jump(rig, -2 * 60 * 1000);
    assert_false(j.busy);
    assert_true(j.waits_ms >= 3600 * 1000);
    assert_true(jump(rig, 0).busy);
    rig_close(rig);
}

/* [engine thread] It is time to look for old ones, once that is over. */
static void look_now(struct session *s, void *arg)
{
    struct jump *j = arg;
    if (s->retain.busy) {
        assert_int_equal(session_post(s, look_now, j), 0);
        return;
    }
    j->correct_ms = s->retain.by_ms;
    j->waits_ms = s->retain.due_ms - session_now_ns() / 1000000;
    s->retain.due_ms = 0;
    gate_open(&j->over);
}

/* The clock was three days behind, and is put right: what was used meanwhile was used just now; what is old is not. */
static void test_clock_was_behind(void **state)
{
    (void)state;
    struct rig *rig = rig_patient();
    struct session_status status = {0};
    char head[64], *names[] = {"conv_a", "conv_b", "conv_c"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_create(rig, "ann", names[i], NULL), 0);
    assert_int_equal(jobs_call(rig->s->storage, age_run, "conv_b"), 0); /* and conv_a */
    assert_int_equal(jobs_call(rig->s->storage, older_run, "conv_c"), 0);
    struct jump j = jump(rig, 3 * DAY_MS);
    assert_true(j.busy);
    assert_true(j.correct_ms >= 3 * DAY_MS - 1000 && j.correct_ms <= 3 * DAY_MS + 60000);
    j.over = (struct gate)GATE_CLOSED;
    assert_int_equal(session_post(rig->s, look_now, &j), 0);
    gate_wait(&j.over, 1);
    assert_int_equal(j.correct_ms, 0);
    assert_true(j.waits_ms > 3500 * 1000);
    for (int i = 0; !status.conversations_expired; i++) {
        assert_true(i < 3000);
        (void)usleep(10000);
        session_status(rig->s, &status);
    }
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_int_equal(rig_head(rig, "ann", "conv_b", head), 0);
    assert_int_equal(rig_head(rig, "ann", "conv_c", head), -ENOENT);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_old_ones_go), cmocka_unit_test(test_clock_is_set),
                                       cmocka_unit_test(test_clock_was_behind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

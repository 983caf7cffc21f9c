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

struct jumps {
    struct gate over;
    bool looks[3];
    int64_t waits_ms[3];
};

/* [engine thread] Whether old ones are looked for when it is time: after the wall clock was set back, ahead, and not.
 */
static void clock_jumps(struct session *s, void *arg)
{
    static const int64_t by_ms[3] = {2 * 60 * 1000, -3 * DAY_MS, 0};
    struct jumps *j = arg;
    if (s->retaining) { /* the look after the start */
        assert_int_equal(session_post(s, clock_jumps, j), 0);
        return;
    }
    s->retain_wait_ms = 3600 * 1000;
    for (int i = 0; i < 3; i++) {
        int64_t now_ms = session_now_ns() / 1000000;
        s->retain_offset_ms = session_wall_ms() - now_ms + by_ms[i];
        s->retain_due_ms = now_ms;
        retention_tick(s);
        j->looks[i] = s->retaining;
        j->waits_ms[i] = s->retain_due_ms - now_ms;
    }
    gate_open(&j->over);
}

/* A clock that is set costs nothing: it may be wrong. */
static void test_clock_is_set(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.limits = {.retain_ms = 2 * DAY_MS}});
    struct jumps jumps = {.over = GATE_CLOSED};
    assert_int_equal(session_post(rig->s, clock_jumps, &jumps), 0);
    gate_wait(&jumps.over, 1);
    assert_false(jumps.looks[0] || jumps.looks[1]);
    assert_true(jumps.waits_ms[0] >= 3600 * 1000 && jumps.waits_ms[1] >= 3600 * 1000);
    assert_true(jumps.looks[2]);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_old_ones_go), cmocka_unit_test(test_clock_is_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

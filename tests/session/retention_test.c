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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_old_ones_go)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

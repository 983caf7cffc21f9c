/* fork_test.c - conversations that begin as others, at the session itself; tests/api/branches_test.py has the rest. */
#include "tests/session/harness.h"

#include "storage/storage_internal.h"

/* How many of its turns have ended and not failed. */
static int ended_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *q;
    int rc = sqlite3_prepare_v2(l->db,
                                "SELECT count(*) FROM turns WHERE status < 2 AND conversation = "
                                "(SELECT id FROM conversations WHERE public_id = 'conv_b')",
                                -1, &q, NULL);
    if (!rc && sqlite3_step(q) == SQLITE_ROW)
        *(int *)arg = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    return rc ? -EIO : 0;
}

/* The last turn of a copy comes to nothing: when it is asked again what it follows is there, and is not copied twice.
 */
static void test_copied_once(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z'});
    struct answer *last = NULL;
    int ended = 0;
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), 0);
    for (uint64_t i = 0; i < 3; i++)
        last = rig_ask(rig, (struct ask){.conversation = "conv_a", .text = "on", .seed = i});
    struct ask ask = {.conversation = "conv_b", .copy_of = last->id, .begins = true, .text = "Zebra"};
    struct answer *failed = rig_begin(rig, ask);
    rig_end(failed);
    assert_true(failed->failed);
    assert_int_equal(jobs_call(rig->s->storage, ended_run, &ended), 0);
    assert_int_equal(ended, 2);
    ask.text = "zebra";
    struct answer *again = rig_ask(rig, ask);
    rig_only_new(again);
    assert_int_equal(jobs_call(rig->s->storage, ended_run, &ended), 0);
    assert_int_equal(ended, 3);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copied_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

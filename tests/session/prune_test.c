/* prune_test.c - turns are made to hold another segment while others' KV is being saved. */
#include "tests/session/harness.h"

struct holding {
    struct gate over;
    uint8_t unknown[STORAGE_KEY_BYTES];
};

static void held(struct session *s, void *arg)
{
    struct holding *h = arg;
    (void)s;
    gate_open(&h->over);
}

/* What another turn has put, and behind it a commit whose own chain has a gap. */
static void hold_behind_a_gap(struct session *s, void *arg)
{
    struct holding *h = arg;
    struct storage_segment segment = {.key = {1, 2, 3}, .owner = 1, .count = 1, .label = "abcd", .label_bytes = 4};
    uint8_t *payload = calloc(1, s->info->kv_token_bytes);
    assert_non_null(payload);
    assert_int_equal(storage_segment_put(s->storage, &segment, &s->layout, payload), 0);
    assert_int_equal(turns_hold(s, 2, 0, h->unknown, held, h), 0);
}

static void test_a_gap_is_its_own(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .seed = 1});
    (void)rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_saved(rig);
    rig_settle(rig);
    uint64_t before = rig_segments(rig);
    struct holding h = {.over = GATE_CLOSED, .unknown = {9, 9, 9}};
    assert_int_equal(session_post(rig->s, hold_behind_a_gap, &h), 0);
    gate_wait(&h.over, 1);
    rig_ledger(rig);
    assert_int_equal(rig_segments(rig), before + 1);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_gap_is_its_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

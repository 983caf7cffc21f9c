/* receipt_test.c - the receipt as clients see it. */
#include <cjson/cJSON.h>

#include "storage/storage_internal.h"
#include "tests/session/harness.h"

static double number(const cJSON *o, const char *group, const char *name)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(group ? cJSON_GetObjectItemCaseSensitive(o, group) : o, name);
    assert_true(cJSON_IsNumber(n));
    return n->valuedouble;
}

static const char *string(const cJSON *o, const char *name)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
    assert_non_null(s);
    return s;
}

static void test_every_field(void **state)
{
    (void)state;
    const struct session_receipt r = {.conversation = "conv_\"1\"",
                                      .turn = 3,
                                      .history = 700,
                                      .hot = 100,
                                      .ram = 200,
                                      .disk = 300,
                                      .fresh = 50,
                                      .prefilled = 150,
                                      .output = 7,
                                      .reprefilled = {{60, "blob_damaged"}, {40, "not_saved"}},
                                      .n_reprefilled = 2,
                                      .accepted = {{500, "2 cuda exact"}},
                                      .n_accepted = 1,
                                      .bytes_read = 5000000000,
                                      .queue_ms = 1,
                                      .restore_ms = 2,
                                      .prefill_ms = 3,
                                      .ttft_ms = 4.5,
                                      .itl_p50_ms = 5,
                                      .itl_max_ms = 6,
                                      .saved = "pending",
                                      .backend = "cpu-portable",
                                      .numerics = "3 cpu",
                                      .model = "tiny"};
    char *text = session_receipt_json(&r);
    assert_non_null(text);
    cJSON *o = cJSON_Parse(text);
    assert_non_null(o);
    assert_string_equal(string(o, "conversation"), "conv_\"1\"");
    assert_true(number(o, NULL, "turn") == 3);
    static const struct {
        const char *group, *name;
        double value;
    } wanted[] = {{"tokens", "history", 700}, {"tokens", "hot", 100},        {"tokens", "ram", 200},
                  {"tokens", "disk", 300},    {"tokens", "new", 50},         {"tokens", "prefilled", 150},
                  {"tokens", "output", 7},    {"bytes", "read", 5000000000}, {"ms", "queue", 1},
                  {"ms", "restore", 2},       {"ms", "prefill", 3},          {"ms", "ttft", 4.5},
                  {"ms", "itl_p50", 5},       {"ms", "itl_max", 6}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_true(number(o, wanted[i].group, wanted[i].name) == wanted[i].value);
    const cJSON *accepted = cJSON_GetObjectItemCaseSensitive(o, "accepted");
    assert_int_equal(cJSON_GetArraySize(accepted), 1);
    assert_true(number(accepted->child, NULL, "tokens") == 500);
    assert_string_equal(string(accepted->child, "numerics"), "2 cuda exact");
    const cJSON *again = cJSON_GetObjectItemCaseSensitive(o, "reprefilled");
    assert_int_equal(cJSON_GetArraySize(again), 2);
    assert_true(number(cJSON_GetArrayItem(again, 0), NULL, "tokens") == 60);
    assert_string_equal(string(cJSON_GetArrayItem(again, 1), "reason"), "not_saved");
    assert_string_equal(string(o, "saved"), "pending");
    assert_string_equal(string(o, "backend"), "cpu-portable");
    assert_string_equal(string(o, "numerics"), "3 cpu");
    assert_string_equal(string(o, "model"), "tiny");
    cJSON_Delete(o);
    free(text);
}

static void test_not_stored(void **state)
{
    (void)state;
    const struct session_receipt r = {.conversation = "", .saved = "off", .backend = "b", .model = "m"};
    char *text = session_receipt_json(&r);
    assert_non_null(text);
    cJSON *o = cJSON_Parse(text);
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(o, "conversation")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(o, "reprefilled")), 0);
    cJSON_Delete(o);
    free(text);
}

/* A turn that was stopped before it came to all that it wanted to prefill again. */
static void test_cut_short(void **state)
{
    (void)state;
    const struct engine_info info = {.backend = "b", .name = "m"};
    struct session s = {.info = &info};
    struct turn t = {.session = &s};
    static const int prefilled[] = {0, 10, 60, 70, 100, 130};
    for (size_t i = 0; i < sizeof prefilled / sizeof *prefilled; i++) {
        t.receipt = (struct session_receipt){.hot = 5,
                                             .ram = 6,
                                             .disk = 7,
                                             .prefilled = prefilled[i],
                                             .reprefilled = {{60, "blob_damaged"}, {40, "not_saved"}},
                                             .n_reprefilled = 2};
        receipt_finish(&t);
        int again = 0;
        for (int k = 0; k < t.receipt.n_reprefilled; k++) {
            assert_true(t.receipt.reprefilled[k].tokens > 0);
            again += t.receipt.reprefilled[k].tokens;
        }
        assert_int_equal(again, prefilled[i] < 100 ? prefilled[i] : 100);
        assert_int_equal(t.receipt.fresh, prefilled[i] - again);
        assert_int_equal(t.receipt.history, 18 + again);
    }
}

/* As an earlier version left it: keys that have the numerics in them, and turns' rows with a hash of all, and behind it
 * the identity or not. */
static int age_run(struct storage_ledger *l, void *arg)
{
    int rc = sqlite3_exec(l->kv, "UPDATE spaces SET fingerprint = zeroblob(32)", NULL, NULL, NULL);
    return rc == SQLITE_OK && sqlite3_exec(l->db, arg, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

/* Starts again as an engine of these numerics. */
static void start_as(struct rig *rig, const char *numerics, bool accept)
{
    char copy[ENGINE_NUMERICS_TEXT];
    (void)snprintf(copy, sizeof copy, "%s", numerics);
    rig_saved(rig);
    rig_stop(rig);
    rig->o.accept_kv_any = accept;
    rig_start(rig, rig->o);
    struct engine_info *info = (struct engine_info *)(uintptr_t)rig->s->info; /* nothing runs */
    memcpy(info->numerics, copy, sizeof copy);
}

static void all_again(const struct answer *a, const char *reason)
{
    assert_int_equal(a->receipt.n_reprefilled, 1);
    assert_string_equal(a->receipt.reprefilled[0].reason, reason);
    assert_int_equal(a->receipt.reprefilled[0].tokens, a->receipt.history);
    assert_int_equal(a->receipt.n_accepted, 0);
}

static void all_restored(const struct answer *a, const char *made_by)
{
    assert_int_equal(a->receipt.n_reprefilled, 0);
    assert_true(a->receipt.history > 0);
    assert_int_equal(a->receipt.disk + a->receipt.ram, a->receipt.history);
    assert_int_equal(a->receipt.n_accepted, made_by != NULL);
    if (!made_by)
        return;
    assert_string_equal(a->receipt.accepted[0].numerics, made_by);
    assert_int_equal(a->receipt.accepted[0].tokens, a->receipt.history);
}

/* KV of the same model is told apart by what made it, and of another model it is none. */
static void test_what_is_foreign(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "One and two and three.", .max = 8});
    start_as(rig, "9 cuda device 1 sm_90", false);
    a = rig_ask(rig, (struct ask){.text = "Go on.", .max = 8, .previous = a->id});
    all_again(a, "numerics_changed");
    start_as(rig, "9 cuda device 1 sm_90", false);
    ((struct engine_info *)(uintptr_t)rig->s->info)->kv_identity[9] ^= 1;
    a = rig_ask(rig, (struct ask){.text = "Go on.", .max = 8, .previous = a->id});
    all_again(a, "blob_foreign");
    rig_close(rig);
}

static int lose_run(struct storage_ledger *l, void *arg)
{
    l->unread = *(const bool *)arg;
    return !l->unread || sqlite3_exec(l->kv, "DELETE FROM segments", NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

/* As it is when the index is made anew and has not come to where that lies. */
static void test_what_is_not_indexed(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "One and two and three.", .max = 8});
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    assert_int_equal(jobs_call(rig->s->storage, lose_run, &(bool){true}), 0);
    a = rig_ask(rig, (struct ask){.text = "Go on.", .max = 8, .previous = a->id});
    all_again(a, "not_indexed");
    rig_saved(rig);
    assert_int_equal(jobs_call(rig->s->storage, lose_run, &(bool){false}), 0);
    rig_close(rig);
}

static void test_what_earlier_versions_stored(void **state)
{
    (void)state;
    static char with[] = "UPDATE turns SET kv = printf('%064d', 7) || substr(kv, 1, 64)",
                without[] = "UPDATE turns SET kv = printf('%064d', 7)";
    char *const sql[] = {with, without};
    for (int i = 0; i < 2; i++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        struct answer *a = rig_ask(rig, (struct ask){.text = "One and two and three.", .max = 8});
        rig_saved(rig);
        assert_int_equal(jobs_call(rig->s->storage, age_run, sql[i]), 0);
        start_as(rig, rig->s->info->numerics, true); /* it cannot be found, whatever is allowed */
        a = rig_ask(rig, (struct ask){.text = "Go on.", .max = 8, .previous = a->id});
        all_again(a, "numerics_changed");
        rig_close(rig);
    }
}

/* What other numerics made is computed again, and takes the place of what was stored; or is restored where that is
 * allowed, and then the receipt says who made it. Each time after a restart. */
static void test_numerics(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char own[ENGINE_NUMERICS_TEXT];
    (void)snprintf(own, sizeof own, "%s", rig->s->info->numerics);
    char *text = calloc(1, 2048);
    assert_non_null(text);
    for (int i = 0; i < 300; i++)
        strcat(text, "one ");
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .max = 4});
    free(text);
    assert_true(a->receipt.prefilled > 300);
    assert_string_equal(a->receipt.numerics, own); /* by the name that `accepted` has of it */
    start_as(rig, "9 cuda exact", true);
    struct answer *b = rig_ask(rig, (struct ask){.text = "Go on.", .max = 4, .previous = a->id});
    all_restored(b, own);
    /* The conversation's own numerics run again: what was computed behind its KV is not theirs. */
    start_as(rig, own, true);
    struct answer *c = rig_ask(rig, (struct ask){.text = "Go on.", .max = 4, .previous = b->id});
    assert_int_equal(c->receipt.n_reprefilled, 0);
    assert_int_equal(c->receipt.n_accepted, 1);
    assert_string_equal(c->receipt.accepted[0].numerics, "9 cuda exact+");
    assert_true(c->receipt.accepted[0].tokens < c->receipt.history);
    start_as(rig, "9 cuda exact", false);
    c = rig_ask(rig, (struct ask){.text = "Something else.", .max = 4, .previous = a->id});
    all_again(c, "numerics_changed");
    start_as(rig, "9 cuda exact", false); /* what was computed again is there now */
    c = rig_ask(rig, (struct ask){.text = "And on.", .max = 4, .previous = c->id});
    all_restored(c, NULL);
    start_as(rig, own, false); /* and in the other's place */
    c = rig_ask(rig, (struct ask){.text = "And on.", .max = 4, .previous = a->id});
    all_again(c, "numerics_changed");
    rig_close(rig);
}

static void test_latencies(void **state)
{
    (void)state;
    const struct engine_info info = {.backend = "b", .name = "m"};
    struct session s = {.info = &info};
    float gaps[] = {9, 1, 5, 3, 7};
    struct turn t = {.session = &s,
                     .gaps_ms = gaps,
                     .n_gaps = 5,
                     .received_ns = 1000000,
                     .admitted_ns = 3000000,
                     .prefill_ns = 4000000,
                     .first_ns = 9000000};
    receipt_finish(&t);
    assert_true(t.receipt.itl_p50_ms == 5);
    assert_true(t.receipt.itl_max_ms == 9);
    assert_true(t.receipt.queue_ms == 2);
    assert_true(t.receipt.prefill_ms == 5);
    assert_true(t.receipt.ttft_ms == 8);
    assert_true(t.receipt.restore_ms == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_not_stored),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_what_is_foreign),
        cmocka_unit_test(test_what_is_not_indexed),
        cmocka_unit_test(test_what_earlier_versions_stored),
        cmocka_unit_test(test_numerics),
        cmocka_unit_test(test_latencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* turn_test.c - which ended runs are remembered, and how much of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "tests/daemon/harness.h"

static struct run *ended_run(struct runs *rs, const char *owner, bool failed, size_t log_bytes)
{
    struct run *run = calloc(1, sizeof(*run));
    struct turn_request *q = calloc(1, sizeof(*q));
    char *data = malloc(log_bytes + 1);
    assert_true(run && q && data);
    run->runs = rs;
    run->request = q;
    snprintf(run->owner, sizeof(run->owner), "%s", owner);
    assert_int_equal(id_new("resp_", run->id), 0);
    run->started = run->ended = true;
    run->failed = failed;
    run->status = failed ? "failed" : "completed";
    q->store = q->generate = true;
    q->texts = calloc(1, sizeof(*q->texts));
    q->tools = strdup("[]");
    q->body = strdup("{}");
    q->items = calloc(1, sizeof(*q->items));
    q->stops[0] = strdup("stop");
    q->n_stops = 1;
    q->params = strdup("{\"metadata\":{\"k\":\"v\"}}");
    q->params_json = cJSON_Parse(q->params);
    q->instructions = strdup("be kind");
    memset(data, 'x', log_bytes);
    data[log_bytes] = '\0';
    run_log(run, "event", data);
    return run;
}

static void only_what_is_asked_for_is_kept(void **state)
{
    (void)state;
    struct runs rs = {.model = "m"};
    struct run *done = ended_run(&rs, "a", false, 100), *failed = ended_run(&rs, "a", true, 0);
    run_remember(done);
    run_remember(failed);
    assert_int_equal(rs.n_recent, 2);
    assert_null(done->request->texts);
    assert_null(done->request->items);
    assert_null(done->request->body);
    assert_null(done->request->instructions);
    assert_int_equal(done->request->n_stops, 0);
    assert_null(failed->request->body);
    assert_string_equal(failed->request->instructions, "be kind");
    assert_true(done->kept_bytes > 100 + sizeof(*done));
    assert_true(failed->kept_bytes > sizeof(*failed));
    char *text = json_text(response_object(failed));
    cJSON *o = cJSON_Parse(text);
    free(text);
    assert_string_equal(str(o, "metadata.k"), "v");
    assert_string_equal(str(o, "instructions"), "be kind");
    cJSON_Delete(o);
    run_free_all(&rs);
}

static void failed_runs_push_nobody_out(void **state)
{
    (void)state;
    struct runs rs = {.model = "m"};
    struct run *other = ended_run(&rs, "b", false, 10);
    char id[ID_SIZE], first[ID_SIZE] = "";
    snprintf(id, sizeof(id), "%s", other->id);
    run_remember(other);
    for (int i = 0; i < RECENT_RUNS_MAX + 1; i++) {
        struct run *run = ended_run(&rs, "a", true, 0);
        if (i == 0) {
            snprintf(first, sizeof(first), "%s", run->id);
        }
        run_remember(run);
        assert_int_equal(rs.n_recent, 1 + (i < RECENT_FAILED_MAX ? i + 1 : RECENT_FAILED_MAX));
    }
    assert_non_null(run_find(&rs, "b", id));
    assert_null(run_find(&rs, "a", first));
    /* Nor large ones. */
    for (int i = 0; i < RECENT_BYTES_MAX / RECENT_FAILED_BYTES * 2 + 1; i++) {
        run_remember(ended_run(&rs, "a", true, RECENT_FAILED_BYTES / 2));
    }
    assert_non_null(run_find(&rs, "b", id));
    size_t large = 0;
    for (const struct run *run = rs.recent; run; run = run->next) {
        large += run->log_bytes == RECENT_FAILED_BYTES / 2;
    }
    assert_int_equal(large, 1);
    run_free_all(&rs);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    struct runs rs = {.model = "m"};
    for (int i = 0; i < 5; i++) {
        run_remember(ended_run(&rs, "a", false, RECENT_BYTES_MAX / 4));
    }
    assert_int_equal(rs.n_recent, 3);
    run_free_all(&rs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_asked_for_is_kept),
        cmocka_unit_test(failed_runs_push_nobody_out),
        cmocka_unit_test(bytes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

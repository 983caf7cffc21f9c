/* turn_test.c - which ended runs are remembered, and how much of them; what was answered before is made where others do
 * not wait for it.
 */
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/api.h"
#include "daemon/run/turn_event.h"
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
    cJSON *o = response_object(failed);
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

struct busy {
    struct work work; /* first */
    sem_t begun, over;
};

static void wait_until_over(struct work *w)
{
    struct busy *b = (struct busy *)w;
    sem_post(&b->begun);
    sem_wait(&b->over);
}

static void busy_done(struct work *w, bool closing)
{
    (void)w;
    (void)closing;
}

static void take_all(struct events *events)
{
    struct event *next;
    for (struct event *e = events_list(events); e; e = next) {
        next = e->next;
        e->take(e, false);
    }
}

static struct run *waiting_run(struct runs *rs)
{
    struct run *run = calloc(1, sizeof(*run));
    struct turn_request *q = calloc(1, sizeof(*q));
    assert_true(run && q);
    q->format = &responses_format;
    q->finish_on_disconnect = q->store = true;
    *run = (struct run){.runs = rs, .request = q, .status = "in_progress", .n_open = 1, .owner = "a", .sequence = 5};
    rs->running = run;
    rs->n_running = 1;
    return run;
}

static struct session_response stored_answer(size_t len)
{
    char *text = malloc(len + 1);
    struct session_response copy = {0};
    assert_non_null(text);
    memset(text, 'x', len);
    text[len] = '\0';
    const struct session_item items[] = {{.id = "msg_1", .kind = "message", .text = "q", .len = 1},
                                         {.id = "msg_2", .kind = "message", .text = text, .len = len, .output = true}};
    const struct session_response r = {.id = "resp_1",
                                       .status = "completed",
                                       .params = "{\"tools\":[{\"n\":1234567890123456789}]}",
                                       .receipt = "{\"a\":1}",
                                       .instructions = "be kind",
                                       .items = items,
                                       .n_items = 2,
                                       .output_tokens = 7};
    assert_int_equal(response_copy(&r, &copy), 0);
    free(text);
    return copy;
}

/* All workers that its owner may have are busy: what is short is there at once, what is long only behind them, and both
 * are the same. */
static void long_answers_are_made_away(void **state)
{
    (void)state;
    struct events events;
    struct runs rs = {.model = "m", .events = &events};
    struct busy busy[2];
    char *answers[2];
    assert_int_equal(events_init(&events), 0);
    assert_int_equal(workers_start(&events, &rs.workers), 0);
    for (int i = 0; i < 2; i++) {
        busy[i].work = (struct work){.run = wait_until_over, .done = busy_done};
        sem_init(&busy[i].begun, 0, 0);
        sem_init(&busy[i].over, 0, 0);
        work_submit(rs.workers, &busy[i].work, "a");
        sem_wait(&busy[i].begun);
    }
    for (int away = 0; away < 2; away++) {
        struct run *run = waiting_run(&rs);
        struct session_response stored = stored_answer(away ? WORK_BYTES_MIN : 100);
        run_repeat(run, &stored);
        assert_int_equal(run->ended, !away);
        assert_true(away ? !run->n_log : run->n_log > 0);
        if (away) {
            poll(NULL, 0, 20);
            take_all(&events);
            assert_false(run->ended);
            sem_post(&busy[0].over);
            sem_post(&busy[1].over);
            while (rs.running) {
                take_all(&events);
                poll(NULL, 0, 1);
            }
        } else {
            run_told(run, 0);
        }
        response_free(&stored);
        assert_ptr_equal(run_find(&rs, "a", "resp_1"), run);
        assert_int_equal(run->n_log, 9);
        assert_string_equal(run->log[0].name, "response.created");
        assert_non_null(strstr(run->log[0].data, "\"sequence_number\":5"));
        assert_string_equal(run->log[8].name, "response.completed");
        assert_non_null(strstr(run->log[8].data, "\"sequence_number\":13"));
        assert_non_null(strstr(run->answer, "1234567890123456789"));
        assert_int_equal(run->output_tokens, 7);
        answers[away] = strdup(run->answer);
        run_free_all(&rs);
    }
    char *text = strstr(answers[1], "xxxx"), *rest = strstr(answers[0], "xxxx");
    assert_int_equal(text - answers[1], rest - answers[0]);
    assert_memory_equal(answers[1], answers[0], (size_t)(text - answers[1]));
    assert_string_equal(text + WORK_BYTES_MIN, rest + 100);
    free(answers[0]);
    free(answers[1]);
    workers_stop(rs.workers);
    events_drop(&events);
    events_destroy(&events);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_asked_for_is_kept),
        cmocka_unit_test(failed_runs_push_nobody_out),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(long_answers_are_made_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* session_test.c - opening and closing: at any moment, with turns in every state and queries on their way. */
#include "tests/session/meeting.h"

#include <unistd.h>

static void test_open_fails_cleanly(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct session *s = NULL;
    char err[512] = "";
    struct session_opts opts = {.engine = {.model_path = rig->model, .backend = "cpu-portable", .threads = 1},
                                .data_dir = rig->dir};
    assert_int_equal(session_open(&opts, &s, err, sizeof err), -EBUSY);
    assert_true(err[0]);
    rig_stop(rig);
    opts.engine.model_path = "/nowhere/model.gguf";
    assert_int_equal(session_open(&opts, &s, err, sizeof err), -ENOENT);
    opts.engine.model_path = rig->model;
    opts.max_running = 100000;
    assert_int_equal(session_open(&opts, &s, err, sizeof err), -EINVAL);
    assert_null(s);
    session_close(NULL, 0);
    rig_start(rig, (struct rig_opts){0});
    rig_close(rig);
}

static void test_status(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct session_status st;
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello"});
    rig_saved(rig);
    rig_ledger(rig);
    rig_saved(rig); /* one more loop: what the last one left is published */
    session_status(rig->s, &st);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.turns_completed + st.turns_incomplete, 1);
    assert_int_equal(st.turns_failed, 0);
    assert_int_equal(st.tokens_prefilled, a->receipt.prefilled);
    assert_int_equal(st.tokens_generated, a->output);
    assert_int_equal(st.pending_saves, 0);
    assert_true(st.hot_used > 0 && st.hot_used <= st.hot_budget);
    assert_true(st.engine_steps > 0);
    assert_true(st.step_cpu_us > 0);
    assert_int_equal(st.segments, 1);
    assert_true(st.ram_used > 0 && st.disk_used > 0);
    assert_false(st.stuck);
    rig_close(rig);
}

/* ---- closing ---- */

struct count {
    pthread_mutex_t lock; /* guards n */
    int n;
};

static void on_result(void *arg, const struct session_result *r)
{
    struct count *count = arg;
    (void)r;
    pthread_mutex_lock(&count->lock);
    count->n++;
    pthread_mutex_unlock(&count->lock);
}

struct moment {
    struct gate gate;
    int events, at;
};

/* Lets the test go on at the n-th event of all turns. */
static void at_event(struct answer *a, const struct session_event *ev, void *arg)
{
    struct moment *moment = arg;
    (void)a, (void)ev;
    if (++moment->events == moment->at)
        gate_open(&moment->gate);
}

static void test_close_at_any_moment(void **state)
{
    (void)state;
    enum { TURNS = 7, QUERIES = 6 };
    static const int moments[] = {1, 3, 8, 15, 30, 60};
    for (size_t round = 0; round < 2 * sizeof moments / sizeof *moments; round++) {
        struct rig *rig = rig_open((struct rig_opts){.max_running = 3, .step_tokens = 32});
        struct count count = {.lock = PTHREAD_MUTEX_INITIALIZER};
        struct moment moment = {.gate = GATE_CLOSED, .at = moments[round / 2]};
        struct answer *a[TURNS], *old[2];
        for (int i = 0; i < 2; i++) {
            char *text = rig_text(70u + (uint64_t)i, 500), id[32];
            snprintf(id, sizeof id, "conv_%d", i);
            assert_int_equal(rig_create(rig, "ann", id, NULL), 0);
            old[i] = rig_ask(rig, (struct ask){.text = text, .conversation = id, .seed = 1});
            free(text);
        }
        assert_int_equal(rig_evict(rig, "ann", "conv_0", true), 0);
        for (int i = 0; i < TURNS; i++) {
            char *text = rig_text(80u + (uint64_t)i, 60 * i);
            a[i] = rig_begin(rig, (struct ask){.text = text,
                                               .conversation = i == 0 ? "conv_0" : NULL,
                                               .ephemeral = i == 3,
                                               .warm = i == 4,
                                               .seed = (uint64_t)i,
                                               .max = 50,
                                               .hook = at_event,
                                               .hook_arg = &moment});
            free(text);
        }
        gate_wait(&moment.gate, 1);
        session_cancel(rig->s, "ann", a[5]->id, SESSION_STOP_CANCELLED);
        assert_int_equal(session_conversation_delete(rig->s, "ann", "conv_1", on_result, &count), 0);
        assert_int_equal(session_conversation_evict(rig->s, "ann", "conv_0", true, on_result, &count), 0);
        assert_int_equal(session_conversation_list(rig->s, "ann", NULL, 10, NULL, on_result, &count), 0);
        assert_int_equal(session_response_get(rig->s, "ann", old[0]->id, on_result, &count), 0);
        assert_int_equal(session_response_delete(rig->s, "ann", old[0]->id, on_result, &count), 0);
        assert_int_equal(session_conversation_items(rig->s, "ann", "conv_0", false, NULL, 100, on_result, &count), 0);
        rig_stop_within(rig, round % 2 ? 60000 : 0);
        assert_int_equal(count.n, QUERIES);
        for (int i = 0; i < TURNS; i++)
            assert_true(a[i]->over);
        /* What was told to be done is there; of what failed, the question, if it had been accepted. */
        rig_start(rig, (struct rig_opts){0});
        for (int i = 0; i < TURNS; i++) {
            char saved[64], status[64];
            rig_end(a[i]);
            int rc = rig_stored(rig, "ann", a[i]->id, saved, status);
            assert_int_equal(rc, (a[i]->failed && !a[i]->started) || i == 3 ? -ENOENT : 0);
            if (rc == 0)
                assert_string_equal(status, a[i]->failed ? "failed" : a[i]->incomplete ? "incomplete" : "completed");
            if (rc == 0 && i != 0 && !a[i]->failed) {
                struct answer *next = rig_ask(rig, (struct ask){.text = "go on", .previous = a[i]->id, .seed = 1});
                rig_only_new(next);
            }
        }
        rig_close(rig);
    }
}

struct look {
    struct gate gate;
    struct saving saving; /* that never ends */
    bool waits;
};

static void save_for_ever(struct session *s, void *arg)
{
    struct look *look = arg;
    look->saving.conversation = s->hots->conversation;
    s->savings = &look->saving;
    gate_open(&look->gate);
}

static void look_at_queries(struct session *s, void *arg)
{
    struct look *look = arg;
    look->waits = s->queries != NULL;
    gate_open(&look->gate);
}

/* A disk that does not answer in time: who waits for a saving is told, and what is left can be ended later. */
static void test_close_before_the_disk_answers(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct count count = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct look look = {.gate = GATE_CLOSED};
    struct gate disk = GATE_CLOSED;
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_saved(rig);
    assert_int_equal(session_post(rig->s, save_for_ever, &look), 0);
    gate_wait(&look.gate, 1);
    assert_int_equal(session_conversation_delete(rig->s, "ann", "conv_a", on_result, &count), 0);
    for (int n = 2; !look.waits; n++) {
        assert_int_equal(session_post(rig->s, look_at_queries, &look), 0);
        gate_wait(&look.gate, n);
    }
    rig_hold_ledger(rig, &disk);
    assert_false(session_close(rig->s, 0));
    assert_int_equal(count.n, 1);
    gate_open(&disk);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    rig_close(rig);
}

static void on_event(void *arg, const struct session_event *ev)
{
    struct count *count = arg;
    pthread_mutex_lock(&count->lock);
    count->n += ev->kind == SESSION_EVENT_DONE || ev->kind == SESSION_EVENT_FAILED;
    pthread_mutex_unlock(&count->lock);
}

/* Posted and closed at once: whatever was accepted is answered. */
static void test_close_at_once(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int round = 0; round < 20; round++) {
        struct count turns = {.lock = PTHREAD_MUTEX_INITIALIZER}, queries = {.lock = PTHREAD_MUTEX_INITIALIZER};
        const struct session_item m = {.kind = "message", .role = ENGINE_USER, .text = "hello", .len = 5};
        char id[32];
        snprintf(id, sizeof id, "resp_x%d", round);
        const struct session_turn t = {.owner = "ann",
                                       .response_id = id,
                                       .items = &m,
                                       .n_items = 1,
                                       .sampling = ENGINE_SAMPLING_DEFAULT,
                                       .max_output_tokens = 20,
                                       .store = true,
                                       .generate = true,
                                       .event = on_event,
                                       .arg = &turns};
        if (round % 2)
            assert_int_equal(session_turn_start(rig->s, &t), 0);
        assert_int_equal(session_conversation_delete(rig->s, "ann", "conv_none", on_result, &queries), 0);
        assert_int_equal(session_response_delete(rig->s, "ann", "resp_none", on_result, &queries), 0);
        rig_stop_within(rig, 0);
        assert_int_equal(turns.n, round % 2);
        assert_int_equal(queries.n, 2);
        rig_start(rig, (struct rig_opts){0});
    }
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_fails_cleanly),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_close_at_any_moment),
        cmocka_unit_test(test_close_at_once),
        cmocka_unit_test(test_close_before_the_disk_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

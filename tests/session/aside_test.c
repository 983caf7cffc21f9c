/* aside_test.c - more turns than there are pages for: those that give way come back, and answer as if they had been
 * alone.
 */
#include "storage/storage_internal.h"
#include <unistd.h>

#include "tests/session/harness.h"

enum { N = 5, PAGES = 10 };

struct crowd {
    int prompt, max; /* of each turn: characters, tokens of its answer */
    bool ephemeral;  /* nothing of them is stored */
    bool follow;     /* each follows a turn of its own that has left the pages */
    bool one_owner;
    struct rig_opts opts;
};

static struct ask ask_of(const struct crowd *c, int i, const char *text, const char *previous)
{
    return (struct ask){.owner = c->one_owner || i % 2 ? "ann" : "bob",
                        .text = text,
                        .previous = previous,
                        .seed = 20u + (uint64_t)i,
                        .max = c->max,
                        .ephemeral = c->ephemeral};
}

static uint64_t put_aside(struct rig *rig)
{
    struct session_status st;
    rig_saved(rig);
    session_status(rig->s, &st);
    return st.turns_put_aside;
}

static void wait_for_others(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA)
        gate_wait(arg, 1);
}

/* All of them at once, where two fit, and each alone: the same answers, KV and receipts. */
static void together_as_alone(struct crowd c)
{
    struct gate all = GATE_CLOSED;
    struct answer *alone[N], *together[N], *before[2][N] = {{0}};
    struct rig *rigs[2];
    for (int crowded = 0; crowded < 2; crowded++) {
        struct rig_opts o = c.opts;
        o.kv_pages = crowded ? PAGES : 0;
        o.ctx = 512;
        struct rig *rig = rigs[crowded] = rig_open(o);
        rig_no_sweep(rig);
        for (int i = 0; c.follow && i < N; i++) {
            char *text = rig_text(90u + (uint64_t)i, 60);
            struct ask ask = ask_of(&c, i, text, NULL);
            ask.max = 20;
            ask.ephemeral = false;
            before[crowded][i] = rig_ask(rig, ask);
            assert_int_equal(rig_evict(rig, ask.owner, before[crowded][i]->conversation, i % 2), 0);
            free(text);
        }
        for (int i = 0; i < N; i++) {
            char *text = rig_text(40u + (uint64_t)i, c.prompt);
            struct ask ask = ask_of(&c, i, text, c.follow ? before[crowded][i]->id : NULL);
            if (crowded && i == 0) {
                ask.hook = wait_for_others;
                ask.hook_arg = &all;
            }
            if (crowded)
                together[i] = rig_begin(rig, ask);
            else
                alone[i] = rig_ask(rig, ask);
            free(text);
        }
    }
    rig_ledger(rigs[1]); /* all have been looked up */
    gate_open(&all);
    for (int i = 0; i < N; i++) {
        rig_end(together[i]);
        if (together[i]->failed)
            fail_msg("%d: %s", i, together[i]->message);
        assert_int_equal(together[i]->len, alone[i]->len);
        assert_memory_equal(together[i]->text, alone[i]->text, alone[i]->len);
        rig_only_new(together[i]);
    }
    assert_true(put_aside(rigs[1]) > 0);
    assert_int_equal(put_aside(rigs[0]), 0);
    for (int i = 0; !c.ephemeral && i < N; i++) {
        struct ask ask = ask_of(&c, i, NULL, NULL);
        struct kept a = rig_kept(rigs[0], ask.owner, alone[i]->id), b = rig_kept(rigs[1], ask.owner, together[i]->id);
        kept_same(&b, &a, "put aside");
        kept_free(&a);
        kept_free(&b);
    }
    /* And they can be followed, at no other cost than their new message. */
    for (int i = 0; i < N; i++)
        if (alone[i]->input + alone[i]->output < 480) {
            struct ask ask = ask_of(&c, i, "and?", together[i]->id);
            ask.max = 2;
            ask.ephemeral = c.ephemeral;
            struct answer *next = rig_ask(rigs[1], ask);
            if (!c.ephemeral)
                rig_only_new(next);
        }
    assert_int_equal(rigs[1]->s->aside_bytes, 0);
    /* What they had stored on the way goes with them, without a search for what nobody holds. */
    for (int i = 0; !c.ephemeral && i < N; i++)
        assert_int_equal(rig_delete(rigs[1], ask_of(&c, i, NULL, NULL).owner, together[i]->conversation), 0);
    if (!c.ephemeral)
        assert_int_equal(rig_segments(rigs[1]), 0);
    rig_close(rigs[0]);
    rig_close(rigs[1]);
}

static void test_answers_outgrow_the_pages(void **state)
{
    (void)state;
    together_as_alone((struct crowd){.prompt = 40, .max = 400});
    together_as_alone((struct crowd){.prompt = 40, .max = 400, .one_owner = true, .opts = {.step_tokens = 16}});
}

static void test_nothing_stored(void **state)
{
    (void)state;
    together_as_alone((struct crowd){.prompt = 40, .max = 400, .ephemeral = true});
}

static void test_behind_a_restored_past(void **state)
{
    (void)state;
    together_as_alone((struct crowd){.prompt = 20, .max = 380, .follow = true});
    together_as_alone((struct crowd){.prompt = 20, .max = 380, .follow = true, .ephemeral = true});
}

static void test_windows(void **state)
{
    (void)state;
    together_as_alone((struct crowd){.prompt = 40, .max = 400, .opts = {.arch = TINY_GEMMA3}});
}

/* No room to keep what leaves nothing on disk: it is computed again, the answer is the same, and the receipt says so.
 */
static void test_no_memory_for_it(void **state)
{
    (void)state;
    struct answer *a[2][N];
    int again = 0;
    for (int crowded = 0; crowded < 2; crowded++) {
        struct rig *rig = rig_open((struct rig_opts){.kv_pages = crowded ? PAGES : 0, .ctx = 512, .ram_bytes = 1});
        for (int i = 0; i < N; i++)
            a[crowded][i] =
                rig_begin(rig, (struct ask){.text = "tell", .seed = 20u + (uint64_t)i, .max = 300, .ephemeral = true});
        for (int i = 0; i < N; i++) {
            rig_end(a[crowded][i]);
            assert_false(a[crowded][i]->failed);
            const struct session_receipt *r = &a[crowded][i]->receipt;
            for (int k = 0; crowded && k < r->n_reprefilled; k++)
                again += strcmp(r->reprefilled[k].reason, "put_aside") == 0;
        }
        if (crowded) {
            assert_true(again > 0);
            for (int i = 0; i < N; i++) {
                assert_int_equal(a[1][i]->len, a[0][i]->len);
                assert_memory_equal(a[1][i]->text, a[0][i]->text, a[0][i]->len);
            }
            rig_close(rig);
            rig_close(a[0][0]->rig);
        }
    }
}

struct moment {
    uint64_t asides; /* behind so many times that one was put aside */
    struct gate come, over;
};

/* [engine thread] Holds it at the first delta behind that moment. */
static void hold_at(struct answer *a, const struct session_event *ev, void *arg)
{
    struct moment *m = arg;
    if (ev->kind == SESSION_EVENT_DELTA && a->rig->s->status.turns_put_aside > m->asides) {
        gate_open(&m->come);
        gate_wait(&m->over, 1);
    }
}

/* Waits for it; false: that turn ended before it came. */
static bool moment_comes(struct moment *m, struct answer *a)
{
    bool come, over;
    do {
        usleep(1000);
        pthread_mutex_lock(&a->rig->lock);
        over = a->over;
        pthread_mutex_unlock(&a->rig->lock);
        pthread_mutex_lock(&m->come.lock);
        come = m->come.n > 0;
        pthread_mutex_unlock(&m->come.lock);
    } while (!come && !over);
    return come;
}

/* Each is stopped at some moment, waiting or running: what it had said is there, and can be followed. */
static void test_stopped_meanwhile(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct rig *rig = rig_open((struct rig_opts){.kv_pages = PAGES, .ctx = 512});
        struct answer *a[N];
        struct moment moment = {(uint64_t)round, GATE_CLOSED, GATE_CLOSED};
        int cancelled = 0;
        for (int i = 0; i < N; i++) {
            char *text = rig_text(40u + (uint64_t)i, 40);
            a[i] = rig_begin(
                rig, (struct ask){
                         .text = text, .seed = 20u + (uint64_t)i, .max = 400, .hook = hold_at, .hook_arg = &moment});
            free(text);
        }
        bool come = moment_comes(&moment, a[0]);
        for (int i = N - 1; i > 0; i--)
            session_cancel(rig->s, "ann", a[i]->id, SESSION_STOP_CANCELLED);
        gate_open(&moment.over);
        for (int i = 0; i < N; i++) {
            rig_end(a[i]);
            assert_false(a[i]->failed);
            cancelled += a[i]->incomplete && !strcmp(a[i]->reason, "cancelled");
            char saved[64], status[64];
            rig_saved(rig);
            assert_int_equal(rig_stored(rig, "ann", a[i]->id, saved, status), 0);
            assert_string_equal(saved, "yes");
        }
        assert_true(cancelled > 0 || !come);
        for (int i = 0; i < N; i++)
            if (a[i]->input + a[i]->output < 480) {
                struct answer *next = rig_ask(rig, (struct ask){.text = "and?", .previous = a[i]->id, .max = 2});
                rig_only_new(next);
            }
        rig_close(rig);
    }
}

/* The queue of what is to be saved takes nothing, or what it did. */
static void refuse_puts(struct storage *st, bool refuse)
{
    static uint64_t most;
    pthread_mutex_lock(&st->writer_lock);
    most = refuse ? st->queue_most : most;
    st->queue_most = refuse ? 0 : most;
    st->queue_bytes += refuse ? 1 : (uint64_t)-1;
    pthread_mutex_unlock(&st->writer_lock);
}

/* What they had could not be saved when they were put aside, and then they are stopped: nobody is told that it was. */
static void test_stopped_without_what_they_had(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = PAGES, .ctx = 512});
    struct answer *a[N];
    struct moment moment = {0, GATE_CLOSED, GATE_CLOSED};
    int failed = 0;
    refuse_puts(rig->s->storage, true);
    for (int i = 0; i < N; i++) {
        char *text = rig_text(40u + (uint64_t)i, 40);
        a[i] = rig_begin(
            rig,
            (struct ask){.text = text, .seed = 20u + (uint64_t)i, .max = 400, .hook = hold_at, .hook_arg = &moment});
        free(text);
    }
    bool come = moment_comes(&moment, a[0]);
    for (int i = N - 1; i > 0; i--)
        session_cancel(rig->s, "ann", a[i]->id, SESSION_STOP_CANCELLED);
    refuse_puts(rig->s->storage, false);
    gate_open(&moment.over);
    for (int i = 0; i < N; i++)
        rig_end(a[i]);
    rig_saved(rig);
    rig_ledger(rig);
    for (int i = 0; i < N; i++) {
        char saved[64], status[64];
        assert_false(a[i]->failed);
        assert_int_equal(rig_stored(rig, "ann", a[i]->id, saved, status), 0);
        failed += strcmp(saved, "failed") == 0;
        struct answer *next = rig_ask(rig, (struct ask){.text = "and?", .previous = a[i]->id, .max = 2});
        if (strcmp(saved, "yes") == 0 && !next->failed)
            rig_only_new(next);
    }
    assert_true(failed > 0 || !come);
    rig_close(rig);
}

/* They are deleted, some while they are put aside: nothing of them stays, without a search for what nobody holds. */
static void test_deleted_meanwhile(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = PAGES, .ctx = 512});
    struct answer *a[N];
    struct moment moment = {0, GATE_CLOSED, GATE_CLOSED};
    rig_no_sweep(rig);
    for (int i = 0; i < N; i++) {
        char *text = rig_text(i == 1 ? 40u : 40u + (uint64_t)i, 40); /* two begin alike */
        a[i] = rig_begin(
            rig,
            (struct ask){.text = text, .seed = 20u + (uint64_t)i, .max = 400, .hook = hold_at, .hook_arg = &moment});
        free(text);
    }
    (void)moment_comes(&moment, a[0]);
    gate_open(&moment.over);
    for (int i = N - 1; i >= 0; i--)
        if (a[i]->started) {
            int rc = rig_delete(rig, "ann", a[i]->conversation);
            assert_true(rc == 0 || rc == -ENOENT);
        }
    for (int i = 0; i < N; i++) {
        rig_end(a[i]);
        if (!a[i]->failed)
            (void)rig_delete(rig, "ann", a[i]->conversation);
    }
    rig_saved(rig);
    rig_ledger(rig);
    assert_int_equal(rig_segments(rig), 0);
    rig_close(rig);
}

static int refuse_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return sqlite3_exec(l->db,
                        "CREATE TEMP TRIGGER refuse BEFORE UPDATE OF status ON turns WHEN new.status < 2 "
                        "BEGIN SELECT raise(ABORT, 'refused'); END",
                        NULL, NULL, NULL) == SQLITE_OK
               ? 0
               : -EIO;
}

/* No answer can be written in the end, of those that are stopped while they wait and of those that come back: what was
 * saved of them on the way goes, without a search for what nobody holds. */
static void test_failed_afterwards(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct rig *rig = rig_open((struct rig_opts){.kv_pages = PAGES, .ctx = 512});
        struct answer *a[N];
        struct moment moment = {0, GATE_CLOSED, GATE_CLOSED};
        rig_no_sweep(rig);
        assert_int_equal(jobs_call(rig->s->storage, refuse_run, NULL), 0);
        for (int i = 0; i < N; i++) {
            char *text = rig_text(round ? 40u : 40u + (uint64_t)i, 40);
            a[i] = rig_begin(
                rig, (struct ask){
                         .text = text, .seed = 20u + (uint64_t)i, .max = 400, .hook = hold_at, .hook_arg = &moment});
            free(text);
        }
        (void)moment_comes(&moment, a[1]);
        session_cancel(rig->s, "ann", a[N - 1]->id, SESSION_STOP_CANCELLED);
        session_cancel(rig->s, "ann", a[N - 2]->id, SESSION_STOP_CANCELLED);
        gate_open(&moment.over);
        for (int i = 0; i < N; i++) {
            rig_end(a[i]);
            assert_true(a[i]->failed);
        }
        rig_saved(rig);
        rig_ledger(rig);
        assert_int_equal(rig_segments(rig), 0);
        rig_close(rig);
    }
}

/* The session ends while turns are put aside. */
static void test_closed_meanwhile(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = PAGES, .ctx = 512});
    struct answer *a[2 * N];
    for (int i = 0; i < 2 * N; i++) {
        char *text = rig_text(40u + (uint64_t)i, 40);
        a[i] =
            rig_begin(rig, (struct ask){.text = text, .seed = 20u + (uint64_t)i, .max = 400, .ephemeral = i % 3 == 2});
        free(text);
    }
    while (put_aside(rig) == 0)
        ;
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){.ctx = 512});
    for (int i = 0; i < 2 * N; i++) {
        rig_end(a[i]);
        assert_false(a[i]->failed && a[i]->started && a[i]->failure != SESSION_SHUTDOWN);
        if (a[i]->failed || i % 3 == 2 || a[i]->input + a[i]->output >= 480)
            continue;
        struct answer *next = rig_ask(rig, (struct ask){.text = "and?", .previous = a[i]->id, .max = 2});
        rig_only_new(next);
    }
    rig_close(rig);
}

/* What cannot fit even alone is refused before any work, and told how much that is. */
static void test_refused_with_counts(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 4});
    char *text = rig_text(1, 300);
    struct answer *a = rig_begin(rig, (struct ask){.text = text});
    rig_end(a);
    assert_int_equal(a->failure, SESSION_CONTEXT_LENGTH);
    assert_false(a->started);
    assert_non_null(strstr(a->message, "255 fit"));
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_outgrow_the_pages), cmocka_unit_test(test_nothing_stored),
        cmocka_unit_test(test_behind_a_restored_past),    cmocka_unit_test(test_windows),
        cmocka_unit_test(test_no_memory_for_it),          cmocka_unit_test(test_stopped_meanwhile),
        cmocka_unit_test(test_closed_meanwhile),          cmocka_unit_test(test_refused_with_counts),
        cmocka_unit_test(test_failed_afterwards),         cmocka_unit_test(test_stopped_without_what_they_had),
        cmocka_unit_test(test_deleted_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

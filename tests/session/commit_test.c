/* commit_test.c - how turns end: stopped at any point, failed for any reason, saved or not. */
#include "storage/storage_internal.h"
#include "tests/session/meeting.h"

#include <signal.h>
#include <sys/resource.h>

/* ---- stopped ---- */

struct stop {
    const char *stage; /* of PROGRESS; NULL: at a DELTA */
    int at, seen;
};

static void cancel_at(struct answer *a, const struct session_event *ev, void *arg)
{
    struct stop *stop = arg;
    bool mine = stop->stage ? ev->kind == SESSION_EVENT_PROGRESS && !strcmp(ev->stage, stop->stage)
                            : ev->kind == SESSION_EVENT_DELTA;
    if (mine && ++stop->seen == stop->at)
        session_cancel(a->rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
}

static void assert_cancelled(const struct answer *a)
{
    char saved[64], status[64];
    assert_false(a->failed);
    assert_true(a->incomplete);
    assert_string_equal(a->reason, "cancelled");
    rig_saved(a->rig);
    assert_int_equal(rig_stored(a->rig, "ann", a->id, saved, status), 0);
    assert_string_equal(status, "incomplete");
    assert_string_equal(saved, "yes");
}

/* Goes on after a stopped turn, wherever its KV is by then. Returns the turn. */
static struct answer *go_on(struct rig *rig, const struct answer *a, int where)
{
    if (where)
        assert_int_equal(rig_evict(rig, "ann", a->conversation, where == 2), 0);
    struct answer *next = rig_ask(rig, (struct ask){.text = "and now", .previous = a->id, .seed = 9});
    rig_only_new(next);
    return next;
}

static void test_cancel_decoding(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        char *text = rig_text(1, 300);
        struct stop stop = {.at = 4};
        struct answer *a =
            rig_begin(rig, (struct ask){.text = text, .seed = 1, .max = 1000, .hook = cancel_at, .hook_arg = &stop});
        rig_end(a);
        assert_cancelled(a);
        assert_true(a->output > 0 && a->output < 1000);
        struct answer *next = go_on(rig, a, where);
        assert_true(next->receipt.history >= a->input + a->output - 1);
        free(text);
        rig_close(rig);
    }
}

static void test_cancel_prefilling(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64});
        char *text = rig_text(1, 900);
        struct stop stop = {.stage = "prefill", .at = 5};
        struct answer *a = rig_begin(rig, (struct ask){.text = text, .seed = 1, .hook = cancel_at, .hook_arg = &stop});
        rig_end(a);
        assert_cancelled(a);
        assert_int_equal(a->output, 0);
        assert_true(a->receipt.prefilled > 0 && a->receipt.prefilled < a->input);
        struct answer *next = go_on(rig, a, where);
        assert_int_equal(next->receipt.history, a->receipt.prefilled);
        free(text);
        rig_close(rig);
    }
}

static void test_cancel_restoring(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        char *text = rig_text(1, 1300);
        struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
        assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
        struct stop stop = {.stage = "restore", .at = 1};
        struct answer *a = rig_begin(
            rig, (struct ask){.text = "more", .previous = first->id, .seed = 2, .hook = cancel_at, .hook_arg = &stop});
        rig_end(a);
        assert_cancelled(a);
        assert_true(a->receipt.disk > 0 && a->receipt.disk < first->input);
        assert_int_equal(a->receipt.prefilled, 0);
        struct answer *next = go_on(rig, a, where);
        assert_true(next->receipt.history >= first->input + first->output - 1);
        free(text);
        rig_close(rig);
    }
}

static void wait_at_first_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA)
        gate_wait(arg, 1);
}

static void test_cancel_waiting(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.max_running = 1});
    char *text = rig_text(1, 300);
    struct gate gate = GATE_CLOSED;
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    struct answer *other = rig_begin(
        rig, (struct ask){.text = "hello", .owner = "bob", .max = 12, .hook = wait_at_first_delta, .hook_arg = &gate});
    struct answer *a = rig_begin(rig, (struct ask){.text = "more", .previous = first->id, .seed = 2});
    session_cancel(rig->s, "bob", a->id, SESSION_STOP_CANCELLED); /* another's: nothing happens */
    session_cancel(rig->s, "ann", "resp_unknown", SESSION_STOP_CANCELLED);
    session_cancel(rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
    gate_open(&gate);
    rig_end(a);
    assert_cancelled(a);
    assert_int_equal(a->output, 0);
    assert_int_equal(a->receipt.prefilled, 0);
    rig_end(other);
    assert_false(other->incomplete && !strcmp(other->reason, "cancelled"));
    struct answer *next = go_on(rig, a, 0);
    assert_true(next->receipt.history >= first->input + first->output - 1);
    session_cancel(rig->s, "ann", a->id, SESSION_STOP_CANCELLED); /* long over */
    free(text);
    rig_close(rig);
}

struct look {
    struct gate gate;
    const char *id;
    int state; /* enum turn_state; -1: there is no such turn */
};

static void look_at(struct session *s, void *arg)
{
    struct look *look = arg;
    look->state = -1;
    for (const struct turn *t = s->turns; t; t = t->next)
        if (!strcmp(t->response_id, look->id))
            look->state = (int)t->state;
    gate_open(&look->gate);
}

static void until_it_is(const struct answer *a, enum turn_state state)
{
    struct look look = {.gate = GATE_CLOSED, .id = a->id, .state = -1};
    for (int n = 1; look.state != (int)state; n++) {
        assert_true(n < 1000000);
        assert_int_equal(session_post(a->rig->s, look_at, &look), 0);
        gate_wait(&look.gate, n);
    }
}

/* While the ledger looks for what it follows, and while it looks for what is stored of that. */
static void test_cancel_at_the_ledger(void **state)
{
    (void)state;
    for (int planning = 0; planning < 2; planning++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        struct gate finding = GATE_CLOSED, plan = GATE_CLOSED;
        char *text = rig_text(1, 600);
        struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
        assert_int_equal(rig_evict(rig, "ann", first->conversation, true), 0);
        rig_hold_ledger(rig, &finding);
        struct answer *a = rig_begin(rig, (struct ask){.text = "more", .previous = first->id, .seed = 2});
        until_it_is(a, TURN_FINDING);
        if (planning) {
            rig_hold_ledger(rig, &plan);
            gate_open(&finding);
            until_it_is(a, TURN_PLANNING);
        }
        session_cancel(rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
        gate_open(planning ? &plan : &finding);
        rig_end(a);
        assert_cancelled(a);
        assert_int_equal(a->output, 0);
        assert_int_equal(a->receipt.prefilled, 0);
        assert_int_equal(a->receipt.disk, 0); /* nor has anything been brought back for it */
        struct answer *next = go_on(rig, a, 0);
        assert_true(next->receipt.history >= first->input + first->output - 1);
        free(text);
        rig_close(rig);
    }
}

/* ---- failed ---- */

/* The same beside a conversation that begins alike and is in pages. */
static void test_not_a_number_beside_a_twin(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z', .step_tokens = 64});
    char *text = rig_text(1, 1200), *bad = rig_text(1, 1200), *other = rig_text(7, 600);
    assert_true(strlen(bad) > 1000 && strlen(other) >= 600);
    memcpy(bad + 400, other, 600);
    bad[strlen(bad) - 1] = 'Z';
    text[380] = 0;
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_saved(rig);
    rig_settle(rig);
    uint64_t before = rig_segments(rig);
    rig_refused(rig, (struct ask){.text = bad, .seed = 2}, SESSION_MODEL);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 3});
    rig_only_new(b);
    rig_saved(rig);
    rig_settle(rig);
    assert_int_equal(rig_segments(rig), before); /* the failed turn's did not come with this one's either */
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    struct answer *c = rig_ask(rig, (struct ask){.text = "and on", .previous = b->id, .seed = 4});
    rig_only_new(c);
    assert_true(c->receipt.history >= b->input + b->output - 1);
    free(text);
    free(bad);
    free(other);
    rig_close(rig);
}

/* Fails after segments were put for it: nothing of it is left, and the turn before is as it was. */
static void test_not_a_number(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z', .step_tokens = 64});
    char *text = rig_text(1, 300), *bad = rig_text(2, 700), head[64];
    bad[699] = 'Z';
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    rig_settle(rig);
    uint64_t before = rig_segments(rig);
    rig_refused(rig, (struct ask){.text = bad, .conversation = "conv_a", .seed = 2}, SESSION_MODEL);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, a->id);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 3});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    rig_saved(rig);
    rig_settle(rig);
    assert_int_equal(rig_segments(rig), before); /* the tail was replaced, and the failed turn's are gone */
    struct session_status status;
    session_status(rig->s, &status);
    assert_int_equal(status.turns_failed, 1);
    free(text);
    free(bad);
    rig_close(rig);
}

/* On the engine thread, before anybody hears of the end. */
static void look_at_the_end(struct answer *a, const struct session_event *ev, void *status)
{
    if (ev->kind == SESSION_EVENT_DONE || ev->kind == SESSION_EVENT_FAILED)
        session_status(a->rig->s, status);
}

static void test_counted_when_it_is_told(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z'});
    struct session_status status = {0};
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .hook = look_at_the_end, .hook_arg = &status});
    assert_int_equal(status.turns_completed + status.turns_incomplete, 1);
    assert_int_equal(status.tokens_prefilled, a->receipt.prefilled);
    assert_int_equal(status.tokens_generated, a->output);
    assert_int_equal(status.pending_saves, 1);
    rig_refused(rig, (struct ask){.text = "Z", .hook = look_at_the_end, .hook_arg = &status}, SESSION_MODEL);
    assert_int_equal(status.turns_failed, 1);
    rig_close(rig);
}

/* No file grows: neither the ledger nor a pack can be written. */
static void files_full(bool full)
{
    static struct rlimit usual;
    struct rlimit none;
    if (full) {
        (void)signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
        none = (struct rlimit){.rlim_cur = 1, .rlim_max = usual.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    } else {
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
    }
}

static void test_ledger_fails(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300), head[64], saved[64], status[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    rig_ledger(rig);
    files_full(true);
    struct answer *b = rig_begin(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2});
    rig_end(b);
    files_full(false);
    assert_true(b->failed);
    assert_int_equal(b->failure, SESSION_LEDGER);
    assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), -ENOENT);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, a->id);
    struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2});
    rig_only_new(c);
    assert_true(c->receipt.history >= a->input + a->output - 1);
    free(text);
    rig_close(rig);
}

static void full_from_now_on(struct answer *a, const struct session_event *ev, void *arg)
{
    bool *full = arg;
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA && !*full)
        files_full(*full = true);
}

/* That it has failed could not be written either: it is when there is room, and not only after a restart. */
static void test_failure_is_written_later(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char saved[64], status[64] = "";
    bool full = false;
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_begin(rig, (struct ask){.text = "hello",
                                                   .conversation = "conv_a",
                                                   .seed = 1,
                                                   .max = 8,
                                                   .hook = full_from_now_on,
                                                   .hook_arg = &full});
    rig_end(a);
    assert_true(full && a->failed);
    assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), 0);
    assert_string_equal(status, "in_progress");
    files_full(false);
    for (int i = 0; strcmp(status, "failed"); i++) {
        assert_true(i < 6000);
        (void)usleep(10000);
        assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), 0);
    }
    (void)rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2});
    rig_close(rig);
}

/* ---- not saved ---- */

static void test_kv_cannot_be_saved(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.disk_bytes = 4096});
    char *text = rig_text(1, 300), saved[64], status[64];
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_false(a->incomplete && strcmp(a->reason, "max_output_tokens") != 0);
    rig_saved(rig);
    assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), 0);
    assert_string_equal(saved, "failed");
    struct session_status st;
    session_status(rig->s, &st);
    assert_true(st.save_failures > 0);
    /* Hot it goes on, and from RAM. */
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, false), 0);
    struct answer *c = rig_ask(rig, (struct ask){.text = "and on", .previous = b->id, .seed = 3});
    rig_only_new(c);
    assert_int_equal(c->receipt.ram, c->receipt.history);
    rig_saved(rig);
    /* Not after a restart: then it is prefilled again, and the receipt says why. */
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    struct answer *d = rig_ask(rig, (struct ask){.text = "still", .previous = c->id, .seed = 4});
    assert_int_equal(d->receipt.n_reprefilled, 1);
    assert_string_equal(d->receipt.reprefilled[0].reason, "not_saved");
    assert_int_equal(d->receipt.reprefilled[0].tokens, d->receipt.history);
    assert_int_equal(d->receipt.prefilled, d->input);
    free(text);
    rig_close(rig);
}

/* Packs take nothing while this is set. */
static atomic_bool no_room;

static ssize_t pack_write(void *ctx, int fd, const void *buf, size_t n, off_t at)
{
    if (!atomic_load(&no_room))
        return storage_io_system.pwrite(ctx, fd, buf, n, at);
    errno = ENOSPC;
    return -1;
}

/* Until that has been noticed, which it is: the prompt has whole segments, and they are put before the first token. */
static void full_until_noticed(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    if (ev->kind != SESSION_EVENT_DELTA || !atomic_load(&no_room))
        return;
    struct storage_stats stats = {0};
    for (int i = 0; i < 60000 && stats.save_failures == 0; i++) {
        (void)usleep(1000);
        storage_stats(a->rig->s->storage, &stats);
    }
    assert_true(stats.save_failures > 0);
    atomic_store(&no_room, false);
}

/* A second turn of conv_a, of which segments cannot be written. *rig is open then; *before gets the first turn's input
 * tokens. */
static struct answer *ask_while_full(struct rig **rig, int step_tokens, int more_chars, int *before)
{
    char *text = rig_text(1, 300), *more = rig_text(2, more_chars);
    *rig = rig_open((struct rig_opts){.step_tokens = step_tokens});
    assert_int_equal(rig_create(*rig, "ann", "conv_a", NULL), 0);
    *before = rig_ask(*rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1})->input;
    rig_saved(*rig);
    rig_ledger(*rig);
    (*rig)->s->storage->io.pwrite = pack_write; /* nobody writes now */
    atomic_store(&no_room, true);
    struct answer *b =
        rig_ask(*rig, (struct ask){.text = more, .conversation = "conv_a", .seed = 2, .hook = full_until_noticed});
    assert_false(atomic_load(&no_room));
    free(text);
    free(more);
    return b;
}

/* What could not be saved is saved by itself when that is possible again, and before its pages go. */
static void test_saving_resumes(void **state)
{
    (void)state;
    for (int evicted = 0; evicted < 2; evicted++) {
        struct rig *rig;
        char saved[64], status[64];
        int before;
        struct answer *b = ask_while_full(&rig, 64, 700, &before);
        rig_saved(rig);
        if (evicted)
            assert_int_equal(rig_evict(rig, "ann", "conv_a", true), 0);
        assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
        for (int i = 0; strcmp(saved, "yes"); i++) {
            assert_true(!evicted && i < 1000);
            (void)usleep(10000);
            assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
        }
        rig_stop(rig);
        rig_start(rig, (struct rig_opts){0});
        rig_only_new(rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 3}));
        rig_close(rig);
    }
}

/* What could not be saved once is saved with the next turn, and what was saved before stays. */
static void test_saving_fails_once(void **state)
{
    (void)state;
    struct rig *rig;
    char saved[64], status[64];
    int before;
    struct answer *b = ask_while_full(&rig, 32, 3000, &before);
    rig_saved(rig);
    assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
    assert_true(!strcmp(saved, "failed") || !strcmp(saved, "yes")); /* when it was tried again by now */
    struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 3});
    rig_only_new(c);
    rig_saved(rig);
    assert_int_equal(rig_stored(rig, "ann", c->id, saved, status), 0);
    assert_string_equal(saved, "yes");
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    struct answer *d = rig_ask(rig, (struct ask){.text = "and on", .conversation = "conv_a", .seed = 4});
    rig_only_new(d);
    assert_true(d->receipt.history >= c->input + c->output - 1);
    assert_true(before < d->receipt.disk);
    rig_close(rig);
}

static int refuse(void *arg, int action, const char *a, const char *b, const char *c, const char *d)
{
    (void)arg, (void)b, (void)c, (void)d;
    return action == SQLITE_INSERT && !strcmp(a, "intents") ? SQLITE_DENY : SQLITE_OK;
}

static int refuse_run(struct storage_ledger *l, void *arg)
{
    stmt_finalize_all(l); /* they are prepared again */
    return sqlite3_set_authorizer(l->db, arg ? refuse : NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

static int there_run(struct storage_ledger *l, void *arg)
{
    return segment_exists(l, arg) == 1 ? 0 : -ENOENT;
}

static const uint8_t cut_off[STORAGE_KEY_BYTES] = {9};

static void at_delta_cut(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    for (struct turn *t = a->rig->s->turns; t && ev->kind == SESSION_EVENT_DELTA; t = t->next)
        if (!strcmp(t->response_id, a->id))
            memcpy(t->hot->cut, cut_off, sizeof cut_off);
}

/* What was cut off goes with the saving, also where that has failed once. */
static void test_cut_off_goes_later(void **state)
{
    (void)state;
    static const uint8_t none[STORAGE_KEY_BYTES];
    struct rig *rig = rig_open((struct rig_opts){0});
    struct storage *st = rig->s->storage;
    char saved[64], status[64], label[] = "abc";
    uint8_t key[STORAGE_KEY_BYTES];
    memcpy(key, cut_off, sizeof key);
    rig_no_sweep(rig);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .seed = 1});
    rig_saved(rig);
    struct storage_segment segment = {
        .key = {9}, .owner = rig->s->hots->owner, .count = 1, .label = label, .label_bytes = 4};
    void *payload = calloc(1, rig->s->info->kv_token_bytes);
    assert_non_null(payload);
    assert_int_equal(storage_segment_put(st, &segment, &rig->s->layout, payload), 0);
    assert_int_equal(storage_kv_flush(st, none, NULL, NULL), 0);
    for (int i = 0; jobs_call(st, there_run, key); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    assert_int_equal(jobs_call(st, refuse_run, key), 0);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2, .hook = at_delta_cut});
    rig_saved(rig);
    assert_int_equal(jobs_call(st, there_run, key), 0);
    assert_int_equal(jobs_call(st, refuse_run, NULL), 0);
    *saved = '\0';
    for (int i = 0; strcmp(saved, "yes"); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
        assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
    }
    assert_int_equal(jobs_call(st, there_run, key), -ENOENT);
    rig_close(rig);
}

static int lose_run(struct storage_ledger *l, void *arg)
{
    return sqlite3_exec(l->db, arg, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

/* The transaction that tells what turns hold is not synced: with the power it may be lost, and the KV is not. Nor is it
 * where an older ledger has been put back, which holds what is there no longer. */
static void test_holds_are_lost(void **state)
{
    (void)state;
    static char lost[] = "DELETE FROM holds; UPDATE turns SET saved = 1";
    static char replaced[] = "UPDATE holds SET key = randomblob(32)";
    for (int k = 0; k < 2; k++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        char *text = rig_text(1, 600), *more = rig_text(2, 300), saved[64], status[64];
        struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
        struct answer *b = rig_ask(rig, (struct ask){.text = more, .previous = a->id, .seed = 2});
        struct answer *c = rig_ask(rig, (struct ask){.text = "otherwise", .previous = a->id, .seed = 3});
        rig_saved(rig);
        rig_settle(rig);
        jobs_sweep_wait(rig->s->storage); /* it would find that nothing holds them */
        assert_int_equal(jobs_call(rig->s->storage, lose_run, k ? replaced : lost), 0);
        rig_stop(rig);
        rig_start(rig, (struct rig_opts){0});
        jobs_sweep_wait(rig->s->storage);
        const struct answer *all[] = {a, b, c};
        for (int i = 0; i < 3; i++) {
            assert_int_equal(rig_stored(rig, "ann", all[i]->id, saved, status), 0);
            assert_string_equal(saved, "yes");
        }
        for (int i = 1; i < 3; i++) {
            struct answer *d = rig_ask(rig, (struct ask){.text = "go on", .previous = all[i]->id, .seed = 4});
            rig_only_new(d);
            assert_true(d->receipt.history >= all[i]->input + all[i]->output - 1);
        }
        free(text);
        free(more);
        rig_close(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_decoding),
        cmocka_unit_test(test_cancel_prefilling),
        cmocka_unit_test(test_cancel_restoring),
        cmocka_unit_test(test_cancel_waiting),
        cmocka_unit_test(test_cancel_at_the_ledger),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_not_a_number_beside_a_twin),
        cmocka_unit_test(test_counted_when_it_is_told),
        cmocka_unit_test(test_ledger_fails),
        cmocka_unit_test(test_failure_is_written_later),
        cmocka_unit_test(test_kv_cannot_be_saved),
        cmocka_unit_test(test_holds_are_lost),
        cmocka_unit_test(test_saving_fails_once),
        cmocka_unit_test(test_saving_resumes),
        cmocka_unit_test(test_cut_off_goes_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

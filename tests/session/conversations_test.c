/* conversations_test.c - what is asked of conversations apart from running turns: gone is gone, evicted is evicted. */
#include "tests/session/harness.h"

#include "storage/storage_internal.h"

#include <dirent.h>

/* ---- delete ---- */

static void test_delete_removes(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 600), field[64], status[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), -EEXIST);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2});
    rig_saved(rig);
    rig_settle(rig);
    assert_int_equal(rig_segments(rig), 3);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    struct session_status st;
    session_status(rig->s, &st);
    assert_int_equal(st.segments, 0);
    assert_int_equal(st.disk_used, 0);
    assert_int_equal(st.ram_used, 0);
    assert_int_equal(rig_head(rig, "ann", "conv_a", field), -ENOENT);
    assert_int_equal(rig_stored(rig, "ann", a->id, field, status), -ENOENT);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), -ENOENT);
    rig_refused(rig, (struct ask){.text = "x", .previous = b->id}, SESSION_PREVIOUS_NOT_FOUND);
    /* Not in pages either: the same words are new. */
    struct answer *c = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_int_equal(c->receipt.history, 0);
    free(text);
    rig_close(rig);
}

/* A stop string that begins before the end of a segment and ends behind it: that segment was put, and is in no context
 * any more. With the conversation it goes, and all before it. */
static void test_delete_what_was_cut(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = NULL;
    char *text = NULL;
    for (int n = 200; !a && n < 260; n++) {
        free(text);
        text = rig_text(3, n);
        a = rig_ask(rig,
                    (struct ask){.text = text, .max = 24, .temperature = 1e-6f, .logprobs = true, .ephemeral = true});
        if (a->input < SESSION_SEGMENT_TOKENS - 12 || a->input > SESSION_SEGMENT_TOKENS - 8 || a->output < 24)
            a = NULL;
    }
    assert_non_null(a);
    size_t from = 0;
    for (size_t i = 1; i < 6; i++)
        from = ((unsigned char)a->text[a->logprobs[i].at] & 0xc0) != 0x80 ? a->logprobs[i].at : from;
    assert_true(from > 0);
    char *stop = strndup(a->text + from, a->len - from);
    rig_no_sweep(rig);
    struct answer *b = rig_ask(rig, (struct ask){.text = text, .max = 30, .temperature = 1e-6f, .stop = stop});
    assert_true(b->stopped_by_string && b->len == from);
    rig_saved(rig);
    assert_int_equal(rig_delete(rig, "ann", b->conversation), 0);
    assert_int_equal(rig_segments(rig), 0);
    free(stop);
    free(text);
    rig_close(rig);
}

static int second_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->kv, "SELECT offset FROM segments WHERE first = 256 AND pack = 1", -1, &s, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        *(int64_t *)arg = sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return rc == SQLITE_ROW ? 0 : -EIO;
}

/* The index is made anew, and the second of four segments is not readable as one: nothing is left of that, and those
 * before and behind it go with their conversation. */
static void test_delete_behind_a_gap(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 800), path[300];
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    int64_t offset;
    rig_saved(rig);
    assert_int_equal(rig_segments(rig), 4);
    assert_int_equal(jobs_call(rig->s->storage, second_run, &offset), 0);
    rig_stop(rig);
    (void)snprintf(path, sizeof path, "%s/pack-00000001", rig->dir);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_int_equal(fputc('?', f), '?');
    assert_int_equal(fclose(f), 0);
    (void)snprintf(path, sizeof path, "%s/kv.db", rig->dir);
    assert_int_equal(remove(path), 0);
    rig_start(rig, (struct rig_opts){0});
    jobs_sweep_wait(rig->s->storage);
    assert_int_equal(rig_segments(rig), 3);
    uint8_t block[PACK_ALIGN];
    assert_int_equal(packs_read(&rig->s->storage->packs, 1, (uint64_t)offset, block, sizeof block), 0);
    assert_true(pack_is_zero(block, sizeof block));
    assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
    assert_int_equal(rig_segments(rig), 0);
    free(text);
    rig_close(rig);
}

/* Right behind a turn's end, while it is being saved: it does not come back to life. */
static void test_delete_while_saving(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int i = 0; i < 10; i++) {
        char *text = rig_text((uint64_t)i, 600);
        struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
        assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
        rig_saved(rig);
        rig_ledger(rig);
        assert_int_equal(rig_segments(rig), 0);
        free(text);
    }
    rig_close(rig);
}

/* Stops the turn at two of its pieces, so that what is asked meanwhile gets to the engine in between. */
struct pauses {
    struct gate begun, go;
    int deltas;
};

static void pause_twice(struct answer *a, const struct session_event *ev, void *arg)
{
    struct pauses *p = arg;
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA && ++p->deltas <= 2) {
        gate_open(&p->begun);
        gate_wait(&p->go, p->deltas);
    }
}

struct result {
    struct gate gate;
    int rc;
    int64_t n_turns, n_tokens; /* of the conversation */
};

static void on_result(void *arg, const struct session_result *r)
{
    struct result *result = arg;
    result->rc = r->rc;
    if (!r->rc && r->n_conversations == 1) {
        result->n_turns = r->conversations[0].n_turns;
        result->n_tokens = r->conversations[0].n_tokens;
    }
    gate_open(&result->gate);
}

/* Until nothing of it is left on the disk its owner hears that it is being deleted. */
static void test_deleting(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 600), field[64];
    struct result result = {.gate = GATE_CLOSED};
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    assert_int_equal(pin_take(rig->s->storage, 1, PACK_ALIGN), 0); /* as a reader of its first segment does */
    assert_int_equal(session_conversation_delete(rig->s, "ann", "conv_a", on_result, &result), 0);
    int rc;
    while ((rc = rig_head(rig, "ann", "conv_a", field)) == 0)
        ;
    assert_int_equal(rc, -EINPROGRESS);
    assert_int_equal(rig_head(rig, "bob", "conv_a", field), -ENOENT);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), -EINPROGRESS);
    rig_refused(rig, (struct ask){.text = "x", .conversation = "conv_a"}, SESSION_CONVERSATION_NOT_FOUND);
    pin_release(rig->s->storage, 1, PACK_ALIGN);
    gate_wait(&result.gate, 1);
    assert_int_equal(result.rc, 0);
    assert_int_equal(rig_head(rig, "ann", "conv_a", field), -ENOENT);
    free(text);
    rig_close(rig);
}

static void test_busy(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct pauses p = {GATE_CLOSED, GATE_CLOSED, 0};
    struct result r[2] = {{.gate = GATE_CLOSED}, {.gate = GATE_CLOSED}};
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *first = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    struct answer *a = rig_begin(
        rig, (struct ask){.text = "go on", .conversation = "conv_a", .max = 60, .hook = pause_twice, .hook_arg = &p});
    gate_wait(&p.begun, 1);
    assert_int_equal(session_conversation_evict(rig->s, "ann", "conv_a", true, on_result, &r[0]), 0);
    assert_int_equal(session_response_delete(rig->s, "ann", first->id, on_result, &r[1]), 0);
    gate_open(&p.go);
    gate_wait(&p.begun, 2); /* the engine has passed them on; and now the ledger thread has them behind it */
    rig_ledger(rig);
    gate_open(&p.go);
    for (int i = 0; i < 2; i++) {
        gate_wait(&r[i].gate, 1);
        assert_int_equal(r[i].rc, -EBUSY);
    }
    rig_end(a);
    assert_false(a->failed);
    assert_int_equal(rig_delete_response(rig, "ann", first->id), -ECHILD); /* another follows it */
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    rig_close(rig);
}

/* What runs is stopped and then deleted, with its conversation or alone. */
static void test_delete_running(void **state)
{
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        struct pauses p = {GATE_CLOSED, GATE_CLOSED, 0};
        struct result r = {.gate = GATE_CLOSED};
        char head[64], saved[64], status[64];
        assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
        struct answer *a = rig_begin(rig, (struct ask){.text = "go on",
                                                       .conversation = "conv_a",
                                                       .seed = 36, /* 583 tokens, when nobody stops it */
                                                       .max = 3000,
                                                       .hook = pause_twice,
                                                       .hook_arg = &p});
        gate_wait(&p.begun, 1);
        assert_int_equal(whole ? session_conversation_delete(rig->s, "ann", "conv_a", on_result, &r)
                               : session_response_delete(rig->s, "ann", a->id, on_result, &r),
                         0);
        gate_open(&p.go);
        gate_open(&p.go);
        gate_wait(&r.gate, 1);
        assert_int_equal(r.rc, 0);
        rig_end(a);
        assert_true(a->incomplete);
        assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), -ENOENT);
        assert_int_equal(rig_head(rig, "ann", "conv_a", head), whole ? -ENOENT : 0);
        if (!whole)
            assert_string_equal(head, "");
        rig_close(rig);
    }
}

/* The tokens of a text, as the labels of segments in packs hold them. */
static bool on_disk(struct rig *rig, const char *text)
{
    struct engine_tokens tokens = {0};
    bool found = false;
    assert_int_equal(session_tokenize(rig->s, text, strlen(text), false, &tokens), 0);
    size_t bytes = tokens.n * sizeof *tokens.ids;
    DIR *d = opendir(rig->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", rig->dir, e->d_name);
        FILE *f = strncmp(e->d_name, "pack-", 5) ? NULL : fopen(path, "rb");
        if (!f)
            continue;
        char *all = malloc((size_t)32 << 20);
        assert_non_null(all);
        size_t n = fread(all, 1, (size_t)32 << 20, f);
        found |= memmem(all, n, tokens.ids, bytes) != NULL;
        free(all);
        (void)fclose(f);
    }
    closedir(d);
    engine_tokens_free(&tokens);
    return found;
}

/* A deleted response is gone from the packs too, though the turns before it end in a segment that it had made longer;
 * and nothing of theirs is prefilled again. */
static void test_delete_response(void **state)
{
    (void)state;
    static const int lengths[] = {30, 236, 400}; /* within one segment, across a border, behind one */
    for (int where = 0; where < 3; where++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct rig *rig = rig_open((struct rig_opts){0});
            char head[64], *text = rig_text(1, lengths[i]);
            assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
            struct answer *first = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
            struct answer *a = rig_ask(rig, (struct ask){.text = "fine", .conversation = "conv_a", .seed = 1});
            struct answer *b = rig_ask(rig, (struct ask){.text = "dark secret", .conversation = "conv_a", .seed = 2});
            rig_saved(rig);
            assert_true(on_disk(rig, "dark secret"));
            if (where)
                assert_int_equal(rig_evict(rig, "ann", "conv_a", where == 2), 0);
            assert_int_equal(rig_delete_response(rig, "ann", b->id), 0);
            rig_ledger(rig);
            assert_false(on_disk(rig, "dark secret"));
            assert_true(on_disk(rig, "fine"));
            assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
            assert_string_equal(head, a->id);
            struct answer *c = rig_ask(rig, (struct ask){.text = "another", .conversation = "conv_a", .seed = 3});
            rig_only_new(c);
            assert_true(c->receipt.history >= a->input + a->output - 1);
            assert_int_equal(c->receipt.turn, 3);
            assert_int_equal(rig_delete_response(rig, "ann", c->id), 0);
            assert_int_equal(rig_delete_response(rig, "ann", a->id), 0);
            rig_ledger(rig);
            assert_false(on_disk(rig, "fine"));
            assert_int_equal(rig_delete_response(rig, "ann", first->id), 0);
            rig_ledger(rig);
            assert_int_equal(rig_segments(rig), 0);
            free(text);
            rig_close(rig);
        }
}

/* Under another model nothing of a segment can be stored anew; what is deleted goes all the same. */
static void test_delete_under_another_model(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = "fine", .conversation = "conv_a", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "dark secret", .conversation = "conv_a", .seed = 2});
    rig_saved(rig);
    rig_change_model(rig);
    assert_true(on_disk(rig, "dark secret"));
    assert_int_equal(rig_delete_response(rig, "ann", b->id), 0);
    rig_ledger(rig);
    assert_false(on_disk(rig, "dark secret"));
    rig_close(rig);
}

/* A touch that had to prefill leaves segments that belong to the conversation: found again, and deleted with it. */
static void test_touched_and_deleted(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 900);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    rig_change_model(rig);
    struct answer *touch = rig_ask(rig, (struct ask){.conversation = "conv_a", .warm = true});
    assert_true(touch->receipt.prefilled > 256);
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", "conv_a", true), 0);
    touch = rig_ask(rig, (struct ask){.conversation = "conv_a", .warm = true});
    assert_int_equal(touch->receipt.prefilled, 0);
    assert_true(touch->receipt.disk > 256);
    struct storage_stats stats;
    storage_stats(rig->s->storage, &stats);
    assert_int_equal(stats.pending_puts, 0);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    rig_ledger(rig);
    char part[41] = {0};
    memcpy(part, text + 300, 40);
    assert_false(on_disk(rig, part));
    assert_int_equal(rig_segments(rig), 0);
    free(text);
    rig_close(rig);
}

/* A sibling has the longer segment: its KV stays. */
static void test_delete_one_of_two(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello you", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "dark secret", .previous = a->id, .seed = 2});
    struct answer *c = rig_ask(rig, (struct ask){.text = "dark secret", .previous = a->id, .seed = 3, .max = 12});
    rig_saved(rig);
    assert_int_equal(rig_delete_response(rig, "ann", b->id), 0);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct answer *d = rig_ask(rig, (struct ask){.text = "go on", .previous = c->id, .seed = 4});
    rig_only_new(d);
    assert_true(d->receipt.history >= c->input + c->output - 1);
    assert_true(on_disk(rig, "dark secret"));
    rig_saved(rig);
    assert_int_equal(rig_delete_response(rig, "ann", d->id), 0);
    assert_int_equal(rig_delete_response(rig, "ann", c->id), 0);
    rig_ledger(rig);
    assert_false(on_disk(rig, "dark secret"));
    rig_close(rig);
}

/* Two conversations begin alike; what is added to one is not held by the other. */
static void test_delete_beside_a_twin(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello you", .seed = 1});
    rig_saved(rig);
    struct answer *b = rig_ask(rig, (struct ask){.text = "hello you", .seed = 1});
    assert_string_not_equal(a->conversation, b->conversation);
    struct answer *c = rig_ask(rig, (struct ask){.text = "dark secret", .previous = b->id, .seed = 2});
    rig_saved(rig);
    assert_true(on_disk(rig, "dark secret"));
    assert_int_equal(rig_delete(rig, "ann", c->conversation), 0);
    rig_ledger(rig);
    assert_false(on_disk(rig, "dark secret"));
    assert_int_equal(rig_segments(rig), 1);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct answer *d = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 3});
    rig_only_new(d);
    assert_int_equal(d->receipt.disk, d->receipt.history);
    rig_close(rig);
}

/* Many short turns in one segment leave one segment. */
static void test_tails_are_replaced(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a = NULL;
    for (int i = 0; i < 5; i++) {
        a = rig_ask(rig, (struct ask){.text = "hi", .previous = a ? a->id : NULL, .max = 4, .seed = (uint64_t)i});
        rig_saved(rig);
        rig_settle(rig);
        assert_int_equal(rig_segments(rig), 1);
    }
    rig_close(rig);
}

/* Another conversation of the owner begins with the same words and is running when the first is deleted: what they
 * share is its own from then on. */
static void test_delete_what_another_shares(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 700);
    struct pauses p = {GATE_CLOSED, GATE_CLOSED, 0};
    struct result r = {.gate = GATE_CLOSED};
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_saved(rig);
    struct answer *b =
        rig_begin(rig, (struct ask){.text = text, .seed = 2, .max = 60, .hook = pause_twice, .hook_arg = &p});
    gate_wait(&p.begun, 1);
    assert_int_equal(session_conversation_delete(rig->s, "ann", a->conversation, on_result, &r), 0);
    gate_open(&p.go);
    gate_open(&p.go);
    gate_wait(&r.gate, 1);
    assert_int_equal(r.rc, 0);
    rig_end(b);
    assert_false(b->failed);
    assert_int_equal(b->receipt.prefilled, 1);
    struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .previous = b->id, .seed = 3});
    rig_only_new(c);
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", b->conversation, true), 0);
    struct answer *d = rig_ask(rig, (struct ask){.text = "and on", .previous = c->id, .seed = 4});
    rig_only_new(d);
    assert_int_equal(d->receipt.disk, d->receipt.history);
    free(text);
    rig_close(rig);
}

/* ---- the head ---- */

/* Moves it, and waits for the answer, which is the conversation as it can be read then. */
static int move_head(struct rig *rig, const char *owner, const char *head)
{
    struct result r = {.gate = GATE_CLOSED}, read = {.gate = GATE_CLOSED};
    assert_int_equal(session_conversation_update(rig->s, owner, "conv_a", NULL, NULL, NULL, head, on_result, &r), 0);
    gate_wait(&r.gate, 1);
    if (!r.rc) {
        assert_int_equal(session_conversation_get(rig->s, owner, "conv_a", on_result, &read), 0);
        gate_wait(&read.gate, 1);
        assert_true(r.n_turns == read.n_turns && r.n_tokens == read.n_tokens);
        assert_true((r.n_turns == 0) == !*head);
    }
    return r.rc;
}

/* The next turn follows the head wherever it was moved to, hot and cold, and nothing is computed again for that. */
static void test_head_moves(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 600), head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2});
    for (int cold = 0; cold < 2; cold++) {
        rig_saved(rig);
        assert_int_equal(move_head(rig, "ann", a->id), 0);
        assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
        assert_string_equal(head, a->id);
        if (cold)
            assert_int_equal(rig_evict(rig, "ann", "conv_a", true), 0);
        struct answer *c = rig_ask(
            rig, (struct ask){.text = cold ? "a third way" : "another way", .conversation = "conv_a", .seed = 3});
        rig_only_new(c);
        assert_true(c->receipt.history >= a->input + a->output - 1 && c->receipt.history < b->input);
        /* What was taken back is there, and can be the head again. */
        rig_saved(rig);
        assert_int_equal(move_head(rig, "ann", b->id), 0);
        struct answer *d =
            rig_ask(rig, (struct ask){.text = cold ? "and further" : "and on", .conversation = "conv_a", .seed = 4});
        rig_only_new(d);
        assert_true(d->receipt.history >= b->input + b->output - 1);
    }
    assert_int_equal(move_head(rig, "ann", ""), 0);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, "");
    struct answer *e = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
    assert_int_equal(e->input, a->input);
    free(text);
    rig_close(rig);
}

static void test_head_is_of_the_conversation(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct pauses p = {GATE_CLOSED, GATE_CLOSED, 0};
    char head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a", .seed = 1});
    struct answer *other = rig_ask(rig, (struct ask){.text = "elsewhere", .seed = 1});
    assert_int_equal(move_head(rig, "ann", other->id), -ESRCH);
    assert_int_equal(move_head(rig, "ann", "resp_none"), -ESRCH);
    assert_int_equal(move_head(rig, "bob", a->id), -ENOENT);
    struct answer *b = rig_begin(
        rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 2, .hook = pause_twice, .hook_arg = &p});
    gate_wait(&p.begun, 1);
    assert_int_equal(move_head(rig, "ann", ""), -EBUSY);
    gate_open(&p.go);
    gate_open(&p.go);
    rig_end(b);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, b->id);
    rig_close(rig);
}

/* ---- evict ---- */

static void evict_at_end(struct answer *a, const struct session_event *ev, void *arg)
{
    if (ev->kind == SESSION_EVENT_DONE)
        (void)session_conversation_evict(a->rig->s, "ann", ev->conversation, true, on_result, arg);
}

/* Asked for at the very moment a turn ends: it waits until all is saved, and then none of it is left in memory. */
static void test_evict_waits_for_saving(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *last = NULL;
    for (int i = 0; i < 8; i++) {
        struct result r = {.gate = GATE_CLOSED};
        char *text = rig_text((uint64_t)i, i ? 80 : 400), saved[64], status[64];
        struct answer *a = rig_ask(rig, (struct ask){.text = text,
                                                     .previous = last ? last->id : NULL,
                                                     .seed = (uint64_t)i,
                                                     .hook = evict_at_end,
                                                     .hook_arg = &r});
        rig_only_new(a);
        assert_int_equal(a->receipt.disk, a->receipt.history);
        gate_wait(&r.gate, 1);
        assert_int_equal(r.rc, 0);
        assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), 0);
        assert_string_equal(saved, "yes");
        last = a;
        free(text);
    }
    rig_close(rig);
}

static void test_tiers(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char tier[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    assert_int_equal(rig_tier(rig, "ann", "conv_a", tier), 0);
    assert_string_equal(tier, "none");
    (void)rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a"});
    rig_saved(rig);
    rig_saved(rig); /* a whole loop later it is published */
    assert_int_equal(rig_tier(rig, "ann", "conv_a", tier), 0);
    assert_string_equal(tier, "hot");
    assert_int_equal(rig_evict(rig, "ann", "conv_a", false), 0);
    assert_int_equal(rig_tier(rig, "ann", "conv_a", tier), 0);
    assert_string_equal(tier, "stored");
    rig_close(rig);
}

/* ---- list ---- */

struct listing {
    struct gate gate;
    int rc, n;
    bool more;
    char ids[8][64];
};

static void on_list(void *arg, const struct session_result *r)
{
    struct listing *l = arg;
    l->rc = r->rc;
    l->more = r->more;
    l->n = (int)r->n_conversations;
    for (int i = 0; i < l->n && i < 8; i++)
        snprintf(l->ids[i], sizeof l->ids[i], "%s", r->conversations[i].id);
    gate_open(&l->gate);
}

static struct listing list(struct rig *rig, const char *owner, const char *after, int limit, const char *query)
{
    struct listing l = {.gate = GATE_CLOSED};
    assert_int_equal(session_conversation_list(rig->s, owner, after, limit, query, on_list, &l), 0);
    gate_wait(&l.gate, 1);
    assert_int_equal(l.rc, 0);
    return l;
}

static void test_list(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int i = 0; i < 5; i++) {
        char id[32];
        snprintf(id, sizeof id, "conv_%d", i);
        assert_int_equal(rig_create(rig, i == 4 ? "bob" : "ann", id, NULL), 0);
    }
    (void)rig_ask(rig, (struct ask){.text = "hello"}); /* a chain is not listed */
    struct listing all = list(rig, "ann", NULL, 100, NULL), page = list(rig, "ann", NULL, 3, NULL);
    assert_int_equal(all.n, 4);
    assert_false(all.more);
    assert_int_equal(page.n, 3);
    assert_true(page.more);
    struct listing rest = list(rig, "ann", page.ids[2], 3, NULL);
    assert_int_equal(rest.n, 1);
    assert_false(rest.more);
    assert_string_equal(rest.ids[0], all.ids[3]);
    assert_int_equal(list(rig, "bob", NULL, 100, NULL).n, 1);
    assert_int_equal(list(rig, "eve", NULL, 100, NULL).n, 0);
    assert_int_equal(list(rig, "ann", NULL, 100, "TITLE").n, 4);
    assert_int_equal(list(rig, "ann", NULL, 100, "none such").n, 0);
    assert_int_equal(session_conversation_list(rig->s, "ann", NULL, 0, NULL, on_list, &all), -EINVAL);
    assert_int_equal(session_conversation_list(rig->s, "ann", NULL, 101, NULL, on_list, &all), -EINVAL);
    rig_close(rig);
}

struct made {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t cond;
    bool done;
    int rc;
    char id[64];
};

static void on_made(void *arg, const struct session_result *r)
{
    struct made *m = arg;
    pthread_mutex_lock(&m->lock);
    m->done = true;
    m->rc = r->rc;
    snprintf(m->id, sizeof m->id, "%s", r->n_conversations ? r->conversations[0].id : "");
    pthread_cond_signal(&m->cond);
    pthread_mutex_unlock(&m->lock);
}

static struct made make(struct rig *rig, const char *id, const char *key)
{
    static const unsigned char digest[SESSION_DIGEST_BYTES] = {1};
    struct made m = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, ""};
    assert_int_equal(session_conversation_create(rig->s, "ann", id, NULL, NULL, NULL, key, digest, on_made, &m), 0);
    pthread_mutex_lock(&m.lock);
    while (!m.done)
        pthread_cond_wait(&m.cond, &m.lock);
    pthread_mutex_unlock(&m.lock);
    return m;
}

/* What was to be put into a new conversation failed: it was never made, and its key makes another one. What has
 * something in it stays, and what its owner deletes is not made again. */
static void test_unmade(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char head[64];
    assert_string_equal(make(rig, "conv_a", "key").id, "conv_a");
    assert_string_equal(make(rig, "conv_b", "key").id, "conv_a");
    session_conversation_unmake(rig->s, "bob", "conv_a");
    rig_ledger(rig);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    session_conversation_unmake(rig->s, "ann", "conv_a");
    rig_ledger(rig);
    assert_int_not_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(make(rig, "conv_b", "key").id, "conv_b");
    (void)rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_b", .seed = 1});
    session_conversation_unmake(rig->s, "ann", "conv_b");
    rig_ledger(rig);
    assert_int_equal(rig_head(rig, "ann", "conv_b", head), 0);
    assert_int_equal(rig_delete(rig, "ann", "conv_b"), 0);
    assert_int_equal(make(rig, "conv_c", "key").rc, -ENOENT);
    rig_close(rig);
}

/* A turn that stands for the end of its conversation from its commit on: what it replaces is gone then, from the packs
 * too, and nothing of what stays is prefilled again. It needs no room that its owner has not. */
static void test_replaces(void **state)
{
    (void)state;
    static const int lengths[] = {30, 236, 400};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int evict = 0; evict < 2; evict++) {
            struct rig *rig = rig_open((struct rig_opts){0});
            char head[64], saved[64], status[64], *text = rig_text(1, lengths[i]);
            assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
            struct answer *a = rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .seed = 1});
            struct answer *b = rig_ask(rig, (struct ask){.text = "dark secret", .conversation = "conv_a", .seed = 2});
            if (evict) { /* otherwise it may still be saving */
                rig_saved(rig);
                assert_true(on_disk(rig, "dark secret"));
                assert_int_equal(rig_evict(rig, "ann", "conv_a", true), 0);
                rig_stop(rig);
                rig_start(rig, (struct rig_opts){.limits = {.conversations = 1, .ledger_bytes = 1}});
                rig_refused(rig, (struct ask){.text = "more", .conversation = "conv_a"}, SESSION_QUOTA);
            }
            struct ask cut = {
                .text = "light", .conversation = "conv_a", .parent = a->id, .replaces = b->id, .warm = true};
            struct answer *c = rig_ask(rig, cut);
            assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
            assert_string_equal(head, c->id);
            assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), -ENOENT);
            assert_false(on_disk(rig, "dark secret"));
            rig_refused(rig, cut, SESSION_GONE); /* once more */
            cut.replaces = a->id;
            rig_refused(rig, cut, SESSION_CONVERSATION_LOCKED); /* it is not the end */
            rig_stop(rig);
            rig_start(rig, (struct rig_opts){0});
            rig_only_new(rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 4}));
            rig_only_new(rig_ask(rig, (struct ask){.text = "other", .conversation = "conv_a", .parent = a->id}));
            free(text);
            rig_close(rig);
        }
}

/* What others follow stays for them. */
static void test_replaces_what_is_followed(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char head[64], saved[64], status[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_ask(rig, (struct ask){.text = "one", .conversation = "conv_a", .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "two", .conversation = "conv_a", .seed = 2});
    (void)rig_ask(rig, (struct ask){.text = "three", .conversation = "conv_a", .seed = 3});
    assert_int_equal(move_head(rig, "ann", b->id), 0);
    struct answer *c = rig_ask(
        rig, (struct ask){.text = "two", .conversation = "conv_a", .parent = a->id, .replaces = b->id, .warm = true});
    assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, c->id);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delete_removes),
        cmocka_unit_test(test_delete_what_was_cut),
        cmocka_unit_test(test_delete_behind_a_gap),
        cmocka_unit_test(test_delete_while_saving),
        cmocka_unit_test(test_deleting),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_delete_running),
        cmocka_unit_test(test_delete_response),
        cmocka_unit_test(test_delete_under_another_model),
        cmocka_unit_test(test_touched_and_deleted),
        cmocka_unit_test(test_delete_one_of_two),
        cmocka_unit_test(test_delete_beside_a_twin),
        cmocka_unit_test(test_tails_are_replaced),
        cmocka_unit_test(test_delete_what_another_shares),
        cmocka_unit_test(test_evict_waits_for_saving),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_head_moves),
        cmocka_unit_test(test_head_is_of_the_conversation),
        cmocka_unit_test(test_unmade),
        cmocka_unit_test(test_replaces),
        cmocka_unit_test(test_replaces_what_is_followed),
        cmocka_unit_test(test_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

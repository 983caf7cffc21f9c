/* hot_test.c - forks, edits and regenerated answers: what they share, what they prefill, who may share at all. */
#include "tests/session/harness.h"

#include <sched.h>
#include <unistd.h>

/* The same answer again: everything was computed before, and one token runs once more for its logits. */
static void only_logits(const struct answer *a)
{
    assert_int_equal(a->receipt.fresh, 0);
    assert_int_equal(a->receipt.prefilled, 1);
    assert_int_equal(a->receipt.n_reprefilled, 1);
    assert_string_equal(a->receipt.reprefilled[0].reason, "logits");
}

struct branches { /* one turn, and one that follows it */
    struct rig *rig;
    char *first, *second;
    struct answer *a, *b;
};

static struct branches grow(struct rig_opts o)
{
    struct branches t = {.rig = rig_open(o), .first = rig_text(1, 400), .second = rig_text(2, 150)};
    t.a = rig_ask(t.rig, (struct ask){.text = t.first, .seed = 1});
    t.b = rig_ask(t.rig, (struct ask){.text = t.second, .previous = t.a->id, .seed = 2});
    rig_only_new(t.b);
    return t;
}

static void branches_free(struct branches *t)
{
    free(t->first);
    free(t->second);
    rig_close(t->rig);
}

/* Hot when 0, in RAM when 1, on disk when 2. */
static void move(struct branches *t, int where)
{
    if (where)
        assert_int_equal(rig_evict(t->rig, "ann", t->a->conversation, where == 2), 0);
}

static void test_regenerate(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct branches t = grow((struct rig_opts){0});
        move(&t, where);
        struct answer *again = rig_ask(t.rig, (struct ask){.text = t.second, .previous = t.a->id, .seed = 2, .max = 8});
        only_logits(again);
        assert_int_equal(again->len, t.b->len);
        assert_memory_equal(again->text, t.b->text, t.b->len);
        struct answer *other =
            rig_ask(t.rig, (struct ask){.text = t.second, .previous = t.a->id, .seed = 77, .max = 12});
        only_logits(other);
        assert_int_equal(other->input, t.b->input);
        branches_free(&t);
    }
}

/* An edited message shares everything before it, and as much of it as is the same. */
static void test_edit(void **state)
{
    (void)state;
    for (int where = 0; where < 3; where++) {
        struct branches t = grow((struct rig_opts){0});
        char *edited = strdup(t.second);
        assert_non_null(edited);
        edited[100] = '!';
        move(&t, where);
        struct answer *c = rig_ask(t.rig, (struct ask){.text = edited, .previous = t.a->id, .seed = 2});
        rig_only_new(c);
        assert_true(c->receipt.history > t.b->receipt.history + 90);
        assert_true(c->receipt.fresh < 80);
        /* Both branches go on without a token of the past being prefilled. */
        struct answer *d = rig_ask(t.rig, (struct ask){.text = "more", .previous = c->id});
        rig_only_new(d);
        assert_true(d->receipt.fresh < 40);
        struct answer *e = rig_ask(t.rig, (struct ask){.text = "more", .previous = t.b->id});
        rig_only_new(e);
        assert_true(e->receipt.fresh < 40);
        free(edited);
        branches_free(&t);
    }
}

/* A regenerated answer whose last prompt token is the first of a segment, found in storage only. */
static void test_regenerate_at_a_border(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int n = 238; n < 260; n++) {
        char *text = rig_text(9, n);
        struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 4, .max = 3});
        if (a->input == SESSION_SEGMENT_TOKENS + 1) {
            assert_int_equal(rig_evict(rig, "ann", a->conversation, false), 0);
            struct answer *again = rig_ask(rig, (struct ask){.text = text, .seed = 4, .max = 3});
            only_logits(again);
            free(text);
            rig_close(rig);
            return;
        }
        assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
        free(text);
    }
    fail_msg("no text had the length that was wanted");
}

struct fork {
    struct gate *begun, *go;
    int deltas;
};

static void stop_at_third(struct answer *a, const struct session_event *ev, void *arg)
{
    struct fork *f = arg;
    (void)a;
    if (ev->kind == SESSION_EVENT_DELTA && ++f->deltas == 3) {
        gate_open(f->begun);
        gate_wait(f->go, 1);
    }
}

/* Two turns follow the same one while a third, which has taken its pages over, is in the middle of its answer. */
static void test_fork_while_used(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *alone[3], *together[3];
    for (int round = 0; round < 2; round++) {
        struct gate begun = GATE_CLOSED, go = GATE_CLOSED;
        struct fork f = {&begun, &go, 0};
        struct answer *a = rig_ask(rig, (struct ask){.owner = round ? "ann" : "bob", .text = text, .seed = 1});
        for (int i = 0; i < 3; i++) {
            struct ask ask = {.owner = round ? "ann" : "bob",
                              .text = i == 2 ? "three" : "one",
                              .previous = a->id,
                              .seed = 20u + (uint64_t)i,
                              .max = 30,
                              .hook = round && i == 0 ? stop_at_third : NULL,
                              .hook_arg = &f};
            if (round == 0) {
                alone[i] = rig_ask(rig, ask);
                continue;
            }
            together[i] = rig_begin(rig, ask);
            if (i == 0)
                gate_wait(&begun, 1);
        }
        if (round)
            gate_open(&go);
        for (int i = 0; round && i < 3; i++)
            rig_end(together[i]);
    }
    for (int i = 0; i < 3; i++) {
        assert_false(together[i]->failed);
        assert_int_equal(together[i]->len, alone[i]->len);
        assert_memory_equal(together[i]->text, alone[i]->text, alone[i]->len);
        assert_int_equal(together[i]->receipt.hot, together[i]->receipt.history - (i == 1));
    }
    only_logits(together[1]); /* the same prompt as the first */
    free(text);
    rig_close(rig);
}

/* The same words of another owner are new, hot or stored. */
static void test_owners_share_nothing(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.owner = "ann", .text = text, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.owner = "bob", .text = text, .seed = 1});
    assert_int_equal(b->receipt.history, 0);
    assert_int_equal(b->receipt.fresh, a->input);
    rig_saved(rig);
    uint64_t both = rig_segments(rig);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    assert_int_equal(rig_evict(rig, "bob", b->conversation, true), 0);
    struct answer *c = rig_ask(rig, (struct ask){.owner = "eve", .text = text, .seed = 1});
    assert_int_equal(c->receipt.history, 0);
    assert_int_equal(c->receipt.fresh, a->input);
    rig_saved(rig);
    assert_int_equal(rig_segments(rig), both / 2 * 3);
    /* Nor can one follow, evict, delete or see what is another's. */
    rig_refused(rig, (struct ask){.owner = "eve", .text = "x", .previous = a->id}, SESSION_PREVIOUS_NOT_FOUND);
    rig_refused(rig, (struct ask){.owner = "eve", .text = "x", .conversation = a->conversation},
                SESSION_CONVERSATION_NOT_FOUND);
    assert_int_equal(rig_evict(rig, "eve", a->conversation, true), -ENOENT);
    assert_int_equal(rig_delete(rig, "eve", a->conversation), -ENOENT);
    assert_int_equal(rig_delete_response(rig, "eve", a->id), -ENOENT);
    char field[64], status[64];
    assert_int_equal(rig_head(rig, "eve", a->conversation, field), -ENOENT);
    assert_int_equal(rig_stored(rig, "eve", a->id, field, status), -ENOENT);
    /* For the owner the words are not new. */
    struct answer *d = rig_ask(rig, (struct ask){.owner = "ann", .text = text, .seed = 1});
    only_logits(d);
    free(text);
    rig_close(rig);
}

/* The pages of idle conversations go to those that run, and nothing is prefilled for it. */
static void test_few_pages(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 16}); /* 1024 tokens */
    enum { N = 5 };
    struct answer *last[N] = {0};
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < N; i++) {
            char *text = rig_text(10u * (uint64_t)i + (uint64_t)round, round ? 40 : 260);
            last[i] =
                rig_ask(rig, (struct ask){.text = text, .previous = round ? last[i]->id : NULL, .seed = (uint64_t)i});
            rig_only_new(last[i]);
            if (round)
                assert_true(last[i]->receipt.fresh < 80);
            free(text);
        }
    struct session_status status;
    session_status(rig->s, &status);
    assert_true(status.hot_used <= status.hot_budget);
    assert_int_equal(status.turns_failed, 0);
    rig_close(rig);
}

/* More turns at once than pages: they wait for each other, and all end. */
static void test_admission(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 16, .max_running = 4});
    enum { N = 6 };
    struct answer *a[N];
    for (int i = 0; i < N; i++) {
        char *text = rig_text(30u + (uint64_t)i, 400);
        a[i] = rig_begin(rig, (struct ask){.text = text, .seed = (uint64_t)i, .max = 20});
        free(text);
    }
    for (int i = 0; i < N; i++) {
        rig_end(a[i]);
        if (a[i]->failed)
            fail_msg("%d: %s", i, a[i]->message);
        rig_only_new(a[i]);
    }
    rig_close(rig);
}

struct vain {
    int steps; /* of the answer that runs, while somebody waited */
    size_t idle;
};

/* Of the one that runs, until another one has waited for some steps; then it ends. */
static void look_what_is_idle(struct answer *a, const struct session_event *ev, void *arg)
{
    struct vain *vain = arg;
    bool waits = false;
    if (ev->kind != SESSION_EVENT_DELTA || vain->steps == 4)
        return;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        waits |= t->state == TURN_WAITING;
    if (!waits)
        usleep(5000); /* the ledger's time */
    else if (++vain->steps == 4) {
        vain->idle = a->rig->s->n_idle;
        for (struct turn *t = a->rig->s->turns; t; t = t->next)
            t->end.cancelled |= t->state == TURN_RUNNING;
    }
}

/* Who does not find room beside those that run, whatever else goes, pushes out nobody's. */
static void test_none_go_in_vain(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 20}); /* 1280 tokens */
    struct vain vain = {0};
    char *text = rig_text(1, 150), *running = rig_text(2, 700), *waiting = rig_text(3, 700);
    (void)rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_saved(rig);
    struct answer *bob = rig_begin(rig, (struct ask){.owner = "bob",
                                                     .text = running,
                                                     .max = 350,
                                                     .schema = "{\"type\":\"string\",\"minLength\":3000}",
                                                     .hook = look_what_is_idle,
                                                     .hook_arg = &vain});
    struct answer *eve = rig_begin(rig, (struct ask){.owner = "eve", .text = waiting, .seed = 3});
    rig_end(bob);
    rig_end(eve);
    assert_false(bob->failed || eve->failed);
    assert_int_equal(vain.steps, 4);
    assert_int_equal(vain.idle, 1);
    free(text);
    free(running);
    free(waiting);
    rig_close(rig);
}

/* Restores that want more pages than there are: nobody waits for ever. */
static void test_restores_compete(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 16, .max_running = 4});
    enum { N = 4 };
    struct answer *first[N], *second[N];
    for (int i = 0; i < N; i++) {
        char *text = rig_text(60u + (uint64_t)i, 600);
        first[i] = rig_ask(rig, (struct ask){.text = text, .seed = (uint64_t)i});
        free(text);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(rig_evict(rig, "ann", first[i]->conversation, true), 0);
    for (int i = 0; i < N; i++)
        second[i] = rig_begin(rig, (struct ask){.text = "and on", .previous = first[i]->id});
    for (int i = 0; i < N; i++) {
        rig_end(second[i]);
        if (second[i]->failed)
            fail_msg("%s", second[i]->message);
        rig_only_new(second[i]);
        assert_true(second[i]->receipt.disk > 500);
    }
    rig_close(rig);
}

/* A segment that a turn has put and nobody holds, as when a stop string cut the answer in front of it: the next turn's
 * end finds it, but not while a turn runs that was there before it. */
struct orphan {
    struct rig *rig;
    uint64_t before, during;
};

static void put_orphan(struct rig *rig)
{
    static const uint8_t none[STORAGE_KEY_BYTES];
    struct storage_segment segment = {.key = {1, 2, 3}, .owner = 1, .count = 1, .label = "abcd", .label_bytes = 4};
    uint8_t *payload = calloc(1, rig->s->info->kv_token_bytes);
    assert_non_null(payload);
    assert_int_equal(storage_segment_put(rig->s->storage, &segment, &rig->s->layout, payload), 0);
    assert_int_equal(storage_kv_flush(rig->s->storage, none, NULL, NULL), 0);
}

static void in_between(struct answer *a, const struct session_event *ev, void *arg)
{
    struct orphan *o = arg;
    (void)a;
    if (ev->kind != SESSION_EVENT_DELTA || o->before)
        return;
    o->before = rig_segments(o->rig);
    put_orphan(o->rig);
    while (rig_segments(o->rig) == o->before)
        sched_yield();
    o->during = rig_segments(o->rig);
}

static void test_orphan_goes(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct orphan o = {.rig = rig};
    (void)rig_ask(rig, (struct ask){.text = "hello", .seed = 1});
    rig_saved(rig);
    struct answer *a = rig_begin(rig, (struct ask){.text = "once more", .seed = 2, .hook = in_between, .hook_arg = &o});
    rig_end(a);
    rig_saved(rig);
    assert_int_equal(o.during, o.before + 1);
    /* Of each turn its own is left, in a while. */
    while (rig_segments(rig) != 2)
        sched_yield();
    rig_close(rig);
}

/* A turn fails, and what it has put is dropped: another one of its owner that runs, and begins otherwise, need not put
 * again what it has put. */
struct beside {
    struct gate begun;
    int full, again; /* when that one has failed; full 0: it has not yet */
};

static void at_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    struct beside *b = arg;
    if (ev->kind != SESSION_EVENT_DELTA)
        return;
    gate_open(&b->begun);
    bool failed = false;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        failed |= strcmp(t->response_id, a->id) != 0 && t->end.failure != SESSION_OK;
    for (const struct hot *h = a->rig->s->hots; h && failed && !b->full; h = h->next)
        if (h->user && !strcmp(h->user->response_id, a->id)) {
            b->full = h->n_full;
            for (int k = 0; k < h->n_full; k++)
                b->again += !h->full[k].stored;
        }
}

static void test_failure_beside_another(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z'});
    struct beside beside = {.begun = GATE_CLOSED};
    /* As often as the answer was over before. */
    for (uint64_t seed = 2; !beside.full; seed++) {
        char *mine = rig_text(seed, 600), *other = rig_text(seed + 100, 600);
        other[strlen(other) - 1] = 'Z';
        beside.begun.n = 0;
        struct answer *running = rig_begin(
            rig, (struct ask){.text = mine, .max = 2000, .seed = seed, .hook = at_delta, .hook_arg = &beside});
        gate_wait(&beside.begun, 1);
        struct answer *failing = rig_begin(rig, (struct ask){.text = other, .seed = 1});
        rig_end(failing);
        assert_true(failing->failed);
        rig_end(running);
        free(mine);
        free(other);
    }
    assert_true(beside.full >= 2);
    assert_int_equal(beside.again, 0);
    rig_close(rig);
}

static struct gate written = GATE_CLOSED;

static void release_late(void *payload)
{
    gate_wait(&written, 1);
    free(payload);
}

/* While the disk has yet to take what another owner's failed turn gives back, a deletion goes on. */
static void test_deletion_beside_a_failure(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.nan_byte = 'Z'});
    char *text = rig_text(1, 600);
    text[strlen(text) - 1] = 'Z';
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    (void)rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a", .seed = 1});
    rig_saved(rig);
    struct storage_segment first = {.key = {1}, .count = 1, .label = text, .label_bytes = 4, .release = release_late};
    (void)snprintf(first.producer, sizeof first.producer, "none");
    void *payload = calloc(1, rig->s->info->kv_token_bytes);
    assert_non_null(payload);
    assert_int_equal(storage_segment_put(rig->s->storage, &first, &rig->s->layout, payload), 0);
    struct answer *failing = rig_begin(rig, (struct ask){.owner = "bob", .text = text, .seed = 1});
    rig_end(failing);
    assert_true(failing->failed);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    gate_open(&written);
    free(text);
    rig_close(rig);
}

/* What an owner has in pages is not pushed out by one who has much more. */
static void test_pages_are_shared(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 32, .ctx = 512});
    char tier[64], *text = rig_text(1, 200);
    struct answer *bob = rig_ask(rig, (struct ask){.owner = "bob", .text = text, .seed = 1});
    free(text);
    struct answer *ann[12];
    for (int i = 0; i < 12; i++) {
        text = rig_text(2u + (uint64_t)i, 200);
        ann[i] = rig_ask(rig, (struct ask){.text = text, .seed = 1});
        free(text);
    }
    assert_int_equal(rig_tier(rig, "ann", ann[0]->conversation, tier), 0);
    assert_string_equal(tier, "stored");
    assert_int_equal(rig_tier(rig, "ann", ann[11]->conversation, tier), 0);
    assert_string_equal(tier, "hot");
    assert_int_equal(rig_tier(rig, "bob", bob->conversation, tier), 0);
    assert_string_equal(tier, "hot");
    /* Nor does he keep more than his share of them. */
    struct answer *more[12];
    for (int i = 0; i < 12; i++) {
        text = rig_text(20u + (uint64_t)i, 200);
        more[i] = rig_ask(rig, (struct ask){.owner = "bob", .text = text, .seed = 1});
        free(text);
    }
    assert_int_equal(rig_tier(rig, "ann", ann[11]->conversation, tier), 0);
    assert_string_equal(tier, "hot");
    assert_int_equal(rig_tier(rig, "bob", more[11]->conversation, tier), 0);
    assert_string_equal(tier, "hot");
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regenerate),
        cmocka_unit_test(test_edit),
        cmocka_unit_test(test_regenerate_at_a_border),
        cmocka_unit_test(test_fork_while_used),
        cmocka_unit_test(test_owners_share_nothing),
        cmocka_unit_test(test_few_pages),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_none_go_in_vain),
        cmocka_unit_test(test_restores_compete),
        cmocka_unit_test(test_orphan_goes),
        cmocka_unit_test(test_failure_beside_another),
        cmocka_unit_test(test_deletion_beside_a_failure),
        cmocka_unit_test(test_pages_are_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* turn_test.c - a turn's life: what is prefilled, what its answer is, and that neither depends on where its past was.
 */
#include "tests/session/meeting.h"

#include <dirent.h>
#include <unistd.h>

/* ---- promise 2: the same turn, wherever its past is and whoever runs beside it ---- */

struct story { /* two turns, and a third that is compared */
    char *texts[3];
    struct answer *answers[3];
};

static struct answer *tell(struct rig *rig, struct story *story, int i, struct ask ask)
{
    ask.text = story->texts[i];
    ask.previous = i ? story->answers[i - 1]->id : NULL;
    ask.seed = 100u + (uint64_t)i;
    ask.max = 20;
    return story->answers[i] = rig_begin(rig, ask);
}

static struct story story_begin(struct rig *rig)
{
    struct story story = {.texts = {rig_text(1, 330), rig_text(2, 190), rig_text(3, 60)}};
    for (int i = 0; i < 2; i++)
        rig_end(tell(rig, &story, i, (struct ask){0}));
    return story;
}

static void story_free(struct story *story)
{
    for (int i = 0; i < 3; i++)
        free(story->texts[i]);
}

static void unlink_packs(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, "pack-", 5)) {
            assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
            n++;
        }
    closedir(d);
    assert_true(n > 0);
}

struct truth {
    char *text;
    size_t len;
    struct kept kept;
    int n_new, n_history;
};

static struct truth the_truth;

static int learn_truth(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct story story = story_begin(rig);
    struct answer *a = tell(rig, &story, 2, (struct ask){0});
    rig_end(a);
    assert_false(a->failed);
    assert_int_equal(a->output, 20);
    assert_int_equal(a->receipt.hot, a->receipt.history);
    assert_int_equal(a->receipt.prefilled, a->receipt.fresh);
    assert_true(a->receipt.history > 2 * SESSION_SEGMENT_TOKENS);
    the_truth = (struct truth){.text = malloc(a->len + 1), .len = a->len, .kept = rig_kept(rig, NULL, a->id)};
    assert_non_null(the_truth.text);
    memcpy(the_truth.text, a->text, a->len);
    the_truth.n_new = a->receipt.fresh;
    the_truth.n_history = a->receipt.history;
    assert_true(the_truth.kept.n_stored >= the_truth.kept.n_tokens - 1);
    story_free(&story);
    rig_close(rig);
    return 0;
}

static int forget_truth(void **state)
{
    (void)state;
    free(the_truth.text);
    kept_free(&the_truth.kept);
    return 0;
}

static void same_as_truth(struct rig *rig, struct answer *a, const char *what)
{
    assert_false(a->failed);
    if (a->len != the_truth.len || memcmp(a->text, the_truth.text, a->len) != 0)
        fail_msg("%s: another answer", what);
    struct kept kept = rig_kept(rig, NULL, a->id);
    kept_same(&kept, &the_truth.kept, what);
    kept_free(&kept);
    assert_int_equal(a->receipt.fresh, the_truth.n_new);
    assert_int_equal(a->receipt.history, the_truth.n_history);
}

static void test_from_ram(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct story story = story_begin(rig);
    assert_int_equal(rig_evict(rig, "ann", story.answers[1]->conversation, false), 0);
    struct answer *a = tell(rig, &story, 2, (struct ask){0});
    rig_end(a);
    same_as_truth(rig, a, "from RAM");
    rig_only_new(a);
    assert_int_equal(a->receipt.ram, a->receipt.history);
    assert_int_equal(a->receipt.bytes_read, 0);
    story_free(&story);
    rig_close(rig);
}

static void test_from_disk(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct story story = story_begin(rig);
    assert_int_equal(rig_evict(rig, "ann", story.answers[1]->conversation, true), 0);
    struct answer *a = tell(rig, &story, 2, (struct ask){0});
    rig_end(a);
    same_as_truth(rig, a, "from disk");
    rig_only_new(a);
    assert_int_equal(a->receipt.disk, a->receipt.history);
    assert_true(a->receipt.bytes_read > 0);
    story_free(&story);
    rig_close(rig);
}

static void test_after_restart(void **state)
{
    (void)state;
    static const struct rig_opts settings[] = {{0}, {.step_tokens = 16, .threads = 2}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct rig *rig = rig_open((struct rig_opts){0});
        struct story story = story_begin(rig);
        rig_stop(rig);
        rig_start(rig, settings[i]);
        struct answer *a = tell(rig, &story, 2, (struct ask){0});
        rig_end(a);
        same_as_truth(rig, a, "after a restart");
        rig_only_new(a);
        assert_int_equal(a->receipt.disk, a->receipt.history);
        story_free(&story);
        rig_close(rig);
    }
}

static void test_after_loss(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct story story = story_begin(rig);
    rig_stop(rig);
    unlink_packs(rig->dir);
    rig_start(rig, (struct rig_opts){0});
    struct answer *a = tell(rig, &story, 2, (struct ask){0});
    rig_end(a);
    same_as_truth(rig, a, "after the packs were lost");
    assert_int_equal(a->receipt.prefilled, a->receipt.history + a->receipt.fresh);
    assert_true(a->receipt.n_reprefilled > 0);
    story_free(&story);
    rig_close(rig);
}

static void hold(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_STARTED)
        gate_wait(arg, 1);
}

static void test_beside_others(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct story story = story_begin(rig);
    struct gate gate = GATE_CLOSED;
    struct answer *others[3];
    char *texts[3];
    for (int i = 0; i < 3; i++) {
        texts[i] = rig_text(50u + (uint64_t)i, 150 + 100 * i);
        others[i] = rig_begin(rig, (struct ask){.owner = i ? "ann" : "bob",
                                                .text = texts[i],
                                                .seed = (uint64_t)i,
                                                .max = 60,
                                                .hook = i ? NULL : hold,
                                                .hook_arg = &gate});
    }
    struct answer *a = tell(rig, &story, 2, (struct ask){0});
    gate_open(&gate);
    rig_end(a);
    same_as_truth(rig, a, "beside three others");
    rig_only_new(a);
    for (int i = 0; i < 3; i++) {
        rig_end(others[i]);
        assert_false(others[i]->failed);
        free(texts[i]);
    }
    story_free(&story);
    rig_close(rig);
}

static void test_other_settings(void **state)
{
    (void)state;
    static const struct rig_opts settings[] = {{.step_tokens = 16}, {.step_tokens = 512}, {.threads = 2}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct rig *rig = rig_open(settings[i]);
        struct story story = story_begin(rig);
        struct answer *a = tell(rig, &story, 2, (struct ask){0});
        rig_end(a);
        same_as_truth(rig, a, "with other steps and threads");
        rig_only_new(a);
        story_free(&story);
        rig_close(rig);
    }
}

/* ---- warm-ups ---- */

static void test_warm_up(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    /* It brings the context back; the token that was sampled last runs for the first time. */
    struct answer *first = rig_ask(rig, (struct ask){.previous = a->id, .warm = true});
    rig_only_new(first);
    assert_int_equal(first->receipt.disk, first->receipt.history);
    assert_true(first->receipt.fresh <= 1);
    assert_int_equal(first->output, 0);
    /* Again there is nothing to do, and it ends all the same. */
    struct answer *second = rig_ask(rig, (struct ask){.previous = a->id, .warm = true});
    assert_int_equal(second->receipt.prefilled, 0);
    assert_int_equal(second->receipt.hot, second->input);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_int_equal(b->receipt.hot, b->receipt.history);
    assert_int_equal(b->receipt.history, second->input);
    /* From storage alone as well. */
    rig_saved(rig);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, false), 0);
    struct answer *third = rig_ask(rig, (struct ask){.previous = a->id, .warm = true});
    assert_int_equal(third->receipt.prefilled, 0);
    assert_int_equal(third->receipt.ram, third->input);
    free(text);
    rig_close(rig);
}

/* A warm-up with messages is a turn without an answer, and can be followed. */
static void test_warm_up_with_messages(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300), saved[64], status[64];
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .warm = true});
    assert_int_equal(a->receipt.fresh, a->input);
    assert_int_equal(a->receipt.prefilled, a->input);
    assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), 0);
    assert_string_equal(status, "completed");
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_int_equal(b->receipt.history, a->input);
    /* The same messages again, all of them hot. */
    struct answer *c = rig_ask(rig, (struct ask){.text = text, .warm = true});
    assert_int_equal(c->receipt.prefilled, 0);
    free(text);
    rig_close(rig);
}

/* Who sends while a warm-up of the conversation is on its way is not refused, and what that has done is not lost. */
static void test_warm_up_yields(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64, .max_running = 1});
        struct meeting m = {GATE_CLOSED, GATE_CLOSED};
        char *text = rig_text(1, 900);
        assert_int_equal(rig_create(rig, "ann", "conv_a", messages ? NULL : text), 0);
        struct answer *warm = rig_begin(rig, (struct ask){.conversation = "conv_a",
                                                          .text = messages ? text : NULL,
                                                          .warm = true,
                                                          .hook = meet_at_prefill,
                                                          .hook_arg = &m});
        gate_wait(&m.there, 1);
        struct answer *a = rig_begin(rig, (struct ask){.conversation = "conv_a", .text = "hello", .seed = 1});
        gate_open(&m.on);
        rig_end(warm);
        rig_end(a);
        assert_false(warm->failed || a->failed);
        if (messages) { /* it adds something: the turn follows it */
            assert_string_equal(warm->reason, "");
            assert_int_equal(a->receipt.history, warm->input);
        } else {
            assert_string_equal(warm->reason, "yielded");
            assert_true(a->receipt.hot >= 64);
        }
        assert_true(warm->receipt.prefilled + a->receipt.prefilled <= a->input + 1);
        free(text);
        rig_close(rig);
    }
}

/* The only place is a warm-up's of another conversation, or a background turn's: it is given back. */
static void test_background_gives_its_place_back(void **state)
{
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64, .max_running = 1});
        meeting_of_background(rig, warm);
        rig_close(rig);
    }
}

/* Two turns that begin with the same new prompt compute it once, and answer as if each had. */
static void test_same_new_prompt(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.step_tokens = 64});
    struct meeting m = {GATE_CLOSED, GATE_CLOSED};
    struct answer *a[4], *alone[4];
    char *text = rig_text(1, 800), *longer = rig_text(1, 900);
    for (int i = 0; i < 4; i++) { /* one of them is another owner's */
        const struct ask ask = {.owner = i == 3 ? "bob" : "ann",
                                .text = i == 2 ? longer : text,
                                .seed = (uint64_t)i,
                                .hook = i ? NULL : meet_at_prefill,
                                .hook_arg = &m};
        a[i] = rig_begin(rig, ask);
        if (i == 0)
            gate_wait(&m.there, 1);
    }
    gate_open(&m.on);
    int prefilled = 0;
    for (int i = 0; i < 4; i++) {
        rig_end(a[i]);
        assert_false(a[i]->failed);
        prefilled += i < 3 ? a[i]->receipt.prefilled : 0;
    }
    assert_int_equal(a[3]->receipt.prefilled, a[3]->input);
    assert_true(prefilled <= a[2]->input + 20);
    struct rig *quiet = rig_open((struct rig_opts){0});
    for (int i = 0; i < 4; i++) {
        alone[i] = rig_ask(quiet, (struct ask){.text = i == 2 ? longer : text, .seed = (uint64_t)i});
        assert_int_equal(alone[i]->len, a[i]->len);
        assert_memory_equal(alone[i]->text, a[i]->text, a[i]->len);
    }
    free(text);
    free(longer);
    rig_close(quiet);
    rig_close(rig);
}

/* One turn's numbers are not finite: it fails alone, in the same steps, and what the others say is what they would have
 * said. */
static void test_not_a_number_beside_others(void **state)
{
    (void)state;
    struct rig *rigs[2];
    struct answer *a[2][4];
    for (int bad = 0; bad < 2; bad++) {
        struct gate gate = GATE_CLOSED;
        rigs[bad] = rig_open((struct rig_opts){.nan_byte = 'Z', .step_tokens = 64});
        for (int i = 0; i < 4; i++) {
            char *text = rig_text(40u + (uint64_t)i, 90);
            if (i == 2)
                text[80] = bad ? 'Z' : 'z';
            a[bad][i] = rig_begin(rigs[bad], (struct ask){.owner = i % 2 ? "ann" : "bob",
                                                          .text = text,
                                                          .seed = 20u + (uint64_t)i,
                                                          .max = 60,
                                                          .hook = i ? NULL : hold,
                                                          .hook_arg = &gate});
            free(text);
        }
        gate_open(&gate);
        for (int i = 0; i < 4; i++)
            rig_end(a[bad][i]);
        assert_int_equal(a[bad][2]->failed, bad);
    }
    assert_int_equal(a[1][2]->failure, SESSION_MODEL);
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_false(a[0][i]->failed || a[1][i]->failed);
        assert_int_equal(a[1][i]->len, a[0][i]->len);
        assert_memory_equal(a[1][i]->text, a[0][i]->text, a[0][i]->len);
        struct kept before = rig_kept(rigs[0], i % 2 ? "ann" : "bob", a[0][i]->id);
        struct kept after = rig_kept(rigs[1], i % 2 ? "ann" : "bob", a[1][i]->id);
        kept_same(&after, &before, "beside one that failed");
        kept_free(&before);
        kept_free(&after);
    }
    rig_close(rigs[0]);
    rig_close(rigs[1]);
}

static void test_nothing_to_run(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    rig_refused(rig, (struct ask){.warm = true}, SESSION_INVALID);
    rig_refused(rig, (struct ask){0}, SESSION_INVALID);
    struct answer *a = rig_ask(rig, (struct ask){.text = "hello"});
    rig_refused(rig, (struct ask){.previous = a->id}, SESSION_INVALID);
    char *stop = rig_text(1, 257);
    rig_refused(rig, (struct ask){.text = "hello", .stop = stop}, SESSION_INVALID);
    free(stop);
    rig_close(rig);
}

/* ---- the end of an answer ---- */

/* The answer's tokens in the ledger say exactly what the client was told. */
static void assert_tokens_say(struct rig *rig, const struct answer *a)
{
    struct kept kept = rig_kept(rig, NULL, a->id);
    size_t at = 0;
    for (int i = kept.n_tokens - a->output; i < kept.n_tokens; i++) {
        size_t len;
        const char *bytes = engine_token_bytes(rig->s->engine, kept.tokens[i], &len);
        assert_true(len <= a->len - at);
        assert_memory_equal(bytes, a->text + at, len);
        at += len;
    }
    assert_int_equal(at, a->len);
    kept_free(&kept);
}

/* Where in the answer's text a token of several bytes stands that is the first with its last byte. */
static const char *inside_a_token(struct rig *rig, const struct answer *a, char stop[2])
{
    struct kept kept = rig_kept(rig, NULL, a->id);
    const char *found = NULL;
    for (int i = kept.n_tokens - a->output; i < kept.n_tokens && !found; i++) {
        size_t len;
        const char *bytes = engine_token_bytes(rig->s->engine, kept.tokens[i], &len);
        if (len < 2)
            continue;
        for (size_t at = 0; at + len <= a->len && !found; at++)
            if (!memcmp(a->text + at, bytes, len) && !memchr(a->text, bytes[len - 1], at) &&
                !memchr(bytes, bytes[len - 1], len - 1)) {
                stop[0] = bytes[len - 1];
                stop[1] = 0;
                found = a->text + at + len - 1;
            }
    }
    kept_free(&kept);
    return found;
}

static void test_stop_inside_a_token(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    int cuts = 0;
    for (uint64_t seed = 1; seed < 80 && cuts < 3; seed++) {
        char stop[2];
        struct ask ask = {.text = "hello", .seed = seed, .max = 40, .temperature = 5};
        struct answer *a = rig_ask(rig, ask);
        const char *at = inside_a_token(rig, a, stop);
        if (!at)
            continue;
        cuts++;
        ask.stop = stop;
        struct answer *b = rig_ask(rig, ask);
        assert_true(b->stopped_by_string);
        assert_string_equal(b->stop, stop);
        assert_false(b->incomplete);
        assert_int_equal(b->len, at - a->text);
        assert_memory_equal(b->text, a->text, b->len);
        assert_tokens_say(rig, b);
        for (int where = 0; where < 2; where++) {
            if (where)
                assert_int_equal(rig_evict(rig, "ann", b->conversation, true), 0);
            struct answer *c = rig_ask(rig, (struct ask){.text = where ? "one" : "two", .previous = b->id});
            rig_only_new(c);
        }
    }
    assert_true(cuts > 0);
    rig_close(rig);
}

/* Where a vocabulary puts a space in front of texts, an answer's own first is not told; in the middle of an answer none
 * is put, neither in what is told nor in what stays of a token behind which a stop string ends. */
static void test_spaces_in_front(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.spm = true});
    const struct engine_bias biases[] = {{TINY_SPM_SPACE_HELLO, 100}, {TINY_SPM_NEWLINE, 100}};
    struct ask ask = {.text = "hello", .max = 3, .bias = biases, .n_bias = 1};
    struct answer *a = rig_ask(rig, ask);
    assert_int_equal(a->len, 17);
    assert_memory_equal(a->text, "hello hello hello", 17);
    ask.opening = "It is";
    a = rig_ask(rig, ask);
    assert_int_equal(a->len, 18);
    assert_memory_equal(a->text, " hello hello hello", 18);
    ask.opening = NULL;
    ask.raw = ask.ephemeral = true;
    a = rig_ask(rig, ask);
    assert_int_equal(a->len, 18);
    assert_memory_equal(a->text, " hello hello hello", 18);
    static const char *const STOPS[] = {"\n", "ello\n"};
    ask = (struct ask){.text = "hello", .max = 40, .bias = biases, .n_bias = 2, .temperature = 5};
    for (int i = 0; i < 2; i++) {
        int longer = 0; /* than a token */
        ask.stop = STOPS[i];
        for (ask.seed = 1; ask.seed < 40 && longer < 3; ask.seed++) {
            a = rig_ask(rig, ask);
            if (a->len <= 5)
                continue;
            longer++;
            assert_true(a->stopped_by_string);
            struct kept kept = rig_kept(rig, NULL, a->id);
            char said[512], text[16]; /* the latter such as no other turn had */
            size_t n = 0, len;
            for (int k = kept.n_tokens - a->output; k < kept.n_tokens; k++, n += len) {
                const char *bytes = engine_token_bytes(rig->s->engine, kept.tokens[k], &len);
                assert_true(n + len <= sizeof said);
                memcpy(said + n, bytes, len);
            }
            kept_free(&kept);
            size_t off = said[0] == ' ';
            assert_int_equal(n, a->len + off);
            assert_memory_equal(said + off, a->text, a->len);
            snprintf(text, sizeof text, "%d", i * 40 + (int)ask.seed);
            struct answer *next = rig_ask(rig, (struct ask){.text = text, .previous = a->id});
            rig_only_new(next);
            assert_true(next->receipt.history >= a->input + a->output - 2 * i); /* but for a token's rest */
        }
        assert_int_equal(longer, 3);
    }
    rig_close(rig);
}

static void test_max_output_tokens(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int max = 1; max < 4; max++) {
        struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .seed = 3, .max = max});
        assert_int_equal(a->output, max);
        assert_true(a->incomplete);
        assert_string_equal(a->reason, "max_output_tokens");
        struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id});
        rig_only_new(b);
    }
    rig_close(rig);
}

static void test_context_ends(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 256});
    char *text = rig_text(1, 200), *long_text = rig_text(2, 300);
    rig_refused(rig, (struct ask){.text = long_text}, SESSION_CONTEXT_LENGTH);
    struct answer *a = NULL;
    for (uint64_t seed = 1; seed < 20; seed++) { /* until one does not end by itself */
        a = rig_ask(rig, (struct ask){.text = text, .seed = seed, .max = 1000});
        if (a->incomplete)
            break;
    }
    assert_true(a->incomplete);
    assert_string_equal(a->reason, "context_length");
    assert_int_equal(a->input + a->output, 256);
    rig_refused(rig, (struct ask){.text = "x", .previous = a->id}, SESSION_CONTEXT_LENGTH);
    struct answer *b = rig_ask(rig, (struct ask){.previous = a->id, .warm = true});
    assert_int_equal(b->input, 256);
    free(text);
    free(long_text);
    rig_close(rig);
}

/* Sliding windows: what is left behind is not wanted again. */
static void test_windows(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.arch = TINY_GEMMA3});
    struct answer *last = NULL, *alone = NULL;
    const char *previous = NULL;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++) {
            char *text = rig_text(5u + (uint64_t)i, i ? 120 : 500);
            struct answer *a = rig_ask(rig, (struct ask){.owner = round ? "ann" : "bob",
                                                         .text = text,
                                                         .previous = previous,
                                                         .seed = (uint64_t)i,
                                                         .max = 16});
            rig_only_new(a);
            if (i)
                assert_true(a->receipt.fresh < 180);
            if (round)
                assert_int_equal(rig_evict(rig, "ann", a->conversation, i % 2), 0);
            last = a;
            previous = a->id;
            free(text);
        }
        previous = NULL;
        if (round) {
            assert_int_equal(last->len, alone->len);
            assert_memory_equal(last->text, alone->text, alone->len);
        }
        alone = last;
    }
    /* An edit within what the window has left behind. */
    struct kept kept = rig_kept(rig, NULL, last->id);
    assert_true(kept.n_stored >= kept.n_tokens - 1);
    kept_free(&kept);
    char *text = rig_text(5, 500);
    text[300] = '!';
    struct answer *edit = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    rig_only_new(edit);
    assert_true(edit->receipt.history >= 256);
    free(text);
    rig_close(rig);
}

/* ---- requests that come again ---- */

static void assert_repeated(const struct answer *a, const struct answer *first)
{
    assert_true(a->repeated);
    assert_string_equal(a->stored, first->id);
}

static void test_again_by_key(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct ask ask = {.text = "hello", .key = "k", .digest = 1, .seed = 1};
    struct answer *first = rig_ask(rig, ask);
    assert_repeated(rig_ask(rig, ask), first);
    struct ask other = ask;
    other.digest = 2;
    rig_refused(rig, other, SESSION_KEY_REUSED);
    other.owner = "bob";
    assert_false(rig_ask(rig, other)->repeated);
    /* What is not stored has no key of its own, but may not have this one. */
    struct ask light = {.text = "hello", .ephemeral = true, .key = "k", .digest = 3, .seed = 1};
    rig_refused(rig, light, SESSION_KEY_REUSED);
    light.key = "l";
    assert_false(rig_ask(rig, light)->repeated);
    light.digest = 4;
    assert_false(rig_ask(rig, light)->repeated);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    assert_repeated(rig_ask(rig, ask), first);
    assert_int_equal(rig_delete_response(rig, "ann", first->id), 0);
    rig_refused(rig, ask, SESSION_GONE);
    rig_close(rig);
}

/* Both are sent before either has begun: the second waits, and gets what the first one was answered. */
static void test_again_at_once(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    for (int key = 0; key < 2; key++) {
        struct ask ask = {.text = "hello", .key = key ? "k" : NULL, .digest = 1 + key, .seed = 1};
        struct answer *a = rig_begin(rig, ask);
        ask.retry = true;
        struct answer *b = rig_begin(rig, ask);
        rig_end(a);
        rig_end(b);
        assert_false(a->failed || a->repeated);
        assert_repeated(b, a);
    }
    rig_close(rig);
}

/* What a conversation begins with comes once, also where it is sent twice before either is in. */
static void test_begins(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct ask ask = {.text = "hello", .conversation = "conv_a", .warm = true, .begins = true};
    char head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_begin(rig, ask), *b = rig_begin(rig, ask);
    rig_end(a);
    rig_end(b);
    assert_false(a->failed || a->repeated);
    assert_repeated(b, a);
    struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .seed = 1});
    assert_int_equal(c->receipt.history, a->input);
    assert_repeated(rig_ask(rig, ask), c);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, c->id);
    rig_close(rig);
}

static void abandon_at_first_delta(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    if (ev->kind == SESSION_EVENT_DELTA)
        session_cancel(a->rig->s, "ann", a->id, SESSION_STOP_ABANDONED);
}

/* What was abandoned is replaced by its retry; what the user stopped is not; and what came behind it meanwhile stays.
 */
static void test_abandoned(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char head[64], saved[64], status[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *before = rig_ask(rig, (struct ask){.text = "hello", .conversation = "conv_a", .seed = 1});
    struct ask ask = {.text = "go on",
                      .conversation = "conv_a",
                      .digest = 7,
                      .seed = 29, /* a long answer */
                      .max = 3000,
                      .hook = abandon_at_first_delta};
    struct answer *a = rig_ask(rig, ask);
    assert_true(a->incomplete);
    assert_string_equal(a->reason, "abandoned");
    ask.hook = NULL;
    ask.max = 8;
    ask.retry = true;
    struct answer *b = rig_ask(rig, ask);
    assert_false(b->repeated);
    assert_int_equal(b->receipt.turn, 2);
    assert_int_equal(b->receipt.prefilled, 1); /* the prompt's last token, for its logits */
    rig_saved(rig);
    assert_int_equal(rig_stored(rig, "ann", a->id, saved, status), -ENOENT);
    assert_int_equal(rig_stored(rig, "ann", b->id, saved, status), 0);
    assert_string_equal(saved, "yes");
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, b->id);

    ask.digest = 8;
    ask.hook = abandon_at_first_delta;
    ask.max = 3000;
    ask.parent = before->id;
    a = rig_ask(rig, ask);
    assert_string_equal(a->reason, "abandoned");
    struct answer *behind = rig_ask(rig, (struct ask){.text = "fine", .conversation = "conv_a", .seed = 2});
    ask.hook = NULL;
    b = rig_ask(rig, ask);
    assert_repeated(b, a); /* somebody follows it: it is what it is */
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, behind->id);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again_by_key),    cmocka_unit_test(test_again_at_once),
        cmocka_unit_test(test_begins),          cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_from_ram),        cmocka_unit_test(test_from_disk),
        cmocka_unit_test(test_after_restart),   cmocka_unit_test(test_after_loss),
        cmocka_unit_test(test_beside_others),   cmocka_unit_test(test_other_settings),
        cmocka_unit_test(test_warm_up),         cmocka_unit_test(test_warm_up_with_messages),
        cmocka_unit_test(test_warm_up_yields),  cmocka_unit_test(test_background_gives_its_place_back),
        cmocka_unit_test(test_same_new_prompt), cmocka_unit_test(test_not_a_number_beside_others),
        cmocka_unit_test(test_nothing_to_run),  cmocka_unit_test(test_stop_inside_a_token),
        cmocka_unit_test(test_spaces_in_front), cmocka_unit_test(test_max_output_tokens),
        cmocka_unit_test(test_context_ends),    cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, learn_truth, forget_truth);
}

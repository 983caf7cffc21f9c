/* turn_test.c - a turn's life: what is prefilled, what its answer is, and that neither depends on where its past was.
 */
#include "tests/session/harness.h"

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

/* Only what is new went through the model. */
static void only_new(const struct answer *a)
{
    assert_int_equal(a->receipt.prefilled, a->receipt.fresh);
    assert_int_equal(a->receipt.n_reprefilled, 0);
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
    only_new(a);
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
    only_new(a);
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
        only_new(a);
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
    only_new(a);
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
        only_new(a);
        story_free(&story);
        rig_close(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_ram),   cmocka_unit_test(test_from_disk),     cmocka_unit_test(test_after_restart),
        cmocka_unit_test(test_after_loss), cmocka_unit_test(test_beside_others), cmocka_unit_test(test_other_settings),
    };
    return cmocka_run_group_tests(tests, learn_truth, forget_truth);
}

/* form_bench.c - what forms cost while eight answers are decoded together.
 *
 *     form_bench MODEL.gguf SHAPES.jsonl [STEPS]
 *
 * Each answer has a schema of its own (as grammar_bench reads them). Every step is run twice, from the same state: once
 * as a plain one, whose tokens are dropped, and once with masks made beside it and the tokens taken by the forms
 * afterwards, as a session does. Which of the two comes first changes from step to step. Printed are medians; others
 * may be using the machine.
 */
#include "engine/engine.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ANSWERS = 8, PROMPT = 64, STEPS_MAX = 4096 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, rising);
    return v[n / 2];
}

static void check(int rc, const char *what)
{
    if (rc) {
        fprintf(stderr, "%s: %s\n", what, strerror(-rc));
        exit(1);
    }
}

struct answer {
    struct engine_seq *seq;
    struct engine_form *form;
    struct engine_match *match;
    engine_token last;
};

struct masks {
    struct answer *answers;
    struct engine_pick *picks;
    double us; /* what making them took of a processor's time */
};

static double processor_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void make_masks(void *arg)
{
    struct masks *m = arg;
    double start = processor_us();
    int rc;
    for (int i = 0; i < ANSWERS; i++) {
        m->picks[i].mask = engine_match_mask(m->answers[i].match, &rc);
        check(rc, "a mask");
    }
    m->us = processor_us() - start;
}

/* masks: to be made beside the step; NULL: none. */
static void run(struct engine *e, struct answer *answers, struct engine_pick *picks, struct engine_beside *beside,
                struct masks *masks)
{
    struct engine_step_item items[ANSWERS];
    for (int i = 0; i < ANSWERS; i++)
        items[i] =
            (struct engine_step_item){.seq = answers[i].seq, .tokens = &answers[i].last, .n = 1, .pick = &picks[i]};
    if (masks)
        engine_beside_start(beside, make_masks, masks);
    check(engine_step_start(e, items, ANSWERS), "a step");
    if (masks)
        engine_beside_wait(beside);
    check(engine_step_wait(e, NULL), "a step");
    for (int i = 0; i < ANSWERS; i++)
        check(items[i].result ? items[i].result : picks[i].result, "a step");
}

static double plain(struct engine *e, struct answer *answers, const struct engine_sampling *s)
{
    struct engine_pick picks[ANSWERS];
    double start = now_us();
    for (int i = 0; i < ANSWERS; i++)
        picks[i] = (struct engine_pick){.settings = s};
    run(e, answers, picks, NULL, NULL);
    double us = now_us() - start;
    for (int i = 0; i < ANSWERS; i++)
        check(engine_seq_truncate(answers[i].seq, engine_seq_length(answers[i].seq) - 1), "taking back");
    return us;
}

/* *made: a processor's time for the masks; *taken: what the forms took behind the step. */
static double formed(struct engine *e, struct engine_forms *fs, struct engine_beside *beside, struct answer *answers,
                     const struct engine_sampling *s, double *made, double *taken)
{
    struct engine_pick picks[ANSWERS];
    struct masks masks = {answers, picks, 0};
    double start = now_us();
    for (int i = 0; i < ANSWERS; i++)
        picks[i] = (struct engine_pick){.settings = s};
    run(e, answers, picks, beside, &masks);
    *made = masks.us;
    double ran = processor_us();
    for (int i = 0; i < ANSWERS; i++) {
        bool over = engine_token_ends_answer(e, picks[i].token);
        if (!over)
            check(engine_match_push(answers[i].match, picks[i].token), "a token");
        answers[i].last = picks[i].token;
        if (over || engine_match_ended(answers[i].match)) { /* and another one */
            engine_match_free(answers[i].match);
            check(engine_match_new(fs, answers[i].form, "bench", &answers[i].match), "a match");
        }
    }
    *taken = processor_us() - ran;
    return now_us() - start;
}

static void begin(struct engine *e, struct engine_forms *fs, const char *line, struct answer *a)
{
    static const char TEXT[] = "Tell me everything that there is to say about it, as JSON: names, numbers, dates. ";
    char err[256] = "";
    struct engine_tokens tokens = {0};
    cJSON *shape = cJSON_Parse(line);
    const char *schema = cJSON_GetStringValue(cJSON_GetObjectItem(shape, "schema"));
    check(engine_form_new(ENGINE_FORM_SCHEMA, schema, strlen(schema), false, &a->form, err, sizeof err), err);
    check(engine_match_new(fs, a->form, "bench", &a->match), "a match");
    while (tokens.n < PROMPT)
        check(engine_tokenize(e, TEXT, sizeof TEXT - 1, false, &tokens), "tokens");
    a->seq = engine_seq_new(e);
    struct engine_step_item item = {.seq = a->seq, .tokens = tokens.ids, .n = PROMPT - 1};
    check(a->seq ? engine_step_start(e, &item, 1) : -12, "the prompt");
    check(engine_step_wait(e, NULL), "the prompt");
    check(item.result, "the prompt");
    a->last = tokens.ids[PROMPT - 1];
    engine_tokens_free(&tokens);
    cJSON_Delete(shape);
}

int main(int argc, char **argv)
{
    static double without[STEPS_MAX], with[STEPS_MAX], made[STEPS_MAX], taken[STEPS_MAX], ratio[STEPS_MAX];
    struct engine *e;
    struct answer answers[ANSWERS];
    char err[512] = "", *line = NULL;
    size_t room = 0;
    int steps = argc > 3 ? atoi(argv[3]) : 200;
    FILE *shapes = argc > 2 ? fopen(argv[2], "r") : NULL;
    steps = steps < 1 ? 1 : steps > STEPS_MAX ? STEPS_MAX : steps;
    struct engine_opts opts = {.model_path = argv[1], .ctx_tokens = PROMPT + STEPS_MAX + 64};
    if (!shapes || engine_open(&opts, &e, err, sizeof err)) {
        fprintf(stderr, "usage: form_bench MODEL.gguf SHAPES.jsonl [STEPS]\n%s\n", err);
        return 2;
    }
    struct engine_forms *fs = engine_forms_new(e);
    struct engine_beside *beside = engine_beside_new();
    if (!fs || !beside)
        return 2;
    for (int i = 0; i < ANSWERS; i++) {
        if (getline(&line, &room, shapes) <= 0)
            return 2;
        begin(e, fs, line, &answers[i]);
    }
    const struct engine_sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 1};
    for (int i = 0; i < steps; i++) {
        if (i % 2 == 0)
            without[i] = plain(e, answers, &s);
        with[i] = formed(e, fs, beside, answers, &s, &made[i], &taken[i]);
        if (i % 2 == 1)
            without[i] = plain(e, answers, &s);
        ratio[i] = with[i] / without[i];
    }
    printf("eight answers, %d steps: median %.0f us without forms, %.0f us with, of which %.0f us for masks beside the "
           "step "
           "(a processor's time) and %.0f us for tokens behind it; steps with to those without: %.3f\n",
           steps, median(without, steps), median(with, steps), median(made, steps), median(taken, steps),
           median(ratio, steps));
    for (int i = 0; i < ANSWERS; i++) {
        engine_match_free(answers[i].match);
        engine_form_free(answers[i].form);
        engine_seq_free(answers[i].seq);
    }
    engine_beside_free(beside);
    engine_forms_free(fs);
    engine_close(e);
    fclose(shapes);
    free(line);
    return 0;
}

/* grammar_bench.c - what structured output costs: compiling schemas, and masks over a real vocabulary.
 *
 *     grammar_bench MODEL.gguf SHAPES.jsonl
 *
 * A line of SHAPES is {"schema": TEXT, "texts": [TEXT, ...]}, valid documents (tests/grammar/shapes.py writes them).
 * Each document is tokenized as the model would, and before each token its mask is made; the token must be in it. The
 * first document of a schema meets a grammar that knows nothing. Times are those of the processor, not of the clock on
 * the wall: others may be using it.
 */
#include "engine/grammar/grammar.h"
#include "engine/text/text.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct times {
    double *us;
    size_t n, room;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void note(struct times *t, double us)
{
    if (t->n == t->room) {
        t->room = t->room ? t->room * 2 : 1024;
        t->us = realloc(t->us, t->room * sizeof *t->us);
        if (!t->us)
            abort();
    }
    t->us[t->n++] = us;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, struct times *t)
{
    if (t->n == 0)
        return;
    qsort(t->us, t->n, sizeof *t->us, rising);
    printf("%-28s %8zu  median %8.1f us  p99 %8.1f us  worst %8.1f us\n", what, t->n, t->us[t->n / 2],
           t->us[t->n * 99 / 100], t->us[t->n - 1]);
    free(t->us);
}

static const char *bytes_of(const void *v, int id, size_t *len)
{
    return vocab_token_bytes(v, id, len);
}

static bool ends(const void *v, int id)
{
    return vocab_ends_answer(v, id);
}

static int failures;
static size_t n_tokens, n_forced;

/* The text that is forced at token `at` is written with the tokens that the whole document is. Returns how many. */
static size_t check_forced(struct grammar_match *m, const struct vocab *v, const struct engine_tokens *document,
                           size_t at)
{
    char text[256];
    struct engine_tokens forced = {0};
    size_t len = grammar_match_forced(m, text, sizeof text);
    if (len && vocab_tokenize(v, text, len, VOCAB_CONTINUES, &forced))
        abort();
    if (forced.n > document->n - at ||
        (forced.n && memcmp(forced.ids, document->ids + at, forced.n * sizeof *forced.ids))) {
        printf("\"%.*s\" is written in other tokens than are forced\n", (int)len, text);
        failures++;
    }
    size_t n = forced.n;
    engine_tokens_free(&forced);
    return n;
}

static void run(struct grammar *g, const struct vocab *v, uint32_t *mask, const char *text, struct times *masks,
                struct times *pushes)
{
    struct engine_tokens tokens = {0};
    struct grammar_match *m = grammar_match_new(g);
    if (!m || vocab_tokenize(v, text, strlen(text), VOCAB_CONTINUES, &tokens))
        abort();
    n_tokens += tokens.n;
    for (size_t i = 0, known = 0; i < tokens.n; i++) {
        size_t len;
        uint32_t id = (uint32_t)tokens.ids[i];
        const char *bytes = vocab_token_bytes(v, tokens.ids[i], &len);
        if (i > 0 && i >= known) { /* the first is the model's, and the one behind forced ones */
            size_t n = check_forced(m, v, &tokens, i);
            n_forced += n;
            known = n ? i + n + 1 : i;
        }
        double start = now_us();
        int rc = grammar_match_mask(m, mask);
        note(masks, now_us() - start);
        if (rc || !(mask[id / 32] >> id % 32 & 1)) {
            printf("token %zu \"%.*s\" of %s is not allowed (%d)\n", i, (int)len, bytes, text, rc);
            failures++;
            break;
        }
        start = now_us();
        if (grammar_match_push(m, bytes, len)) {
            failures++;
            break;
        }
        note(pushes, now_us() - start);
    }
    engine_tokens_free(&tokens);
    grammar_match_free(m);
}

int main(int argc, char **argv)
{
    char err[512] = "", *line = NULL;
    size_t room = 0, bytes = 0, schemas = 0;
    struct gguf *file;
    struct vocab *v;
    struct grammar_vocab *gv;
    struct times compiles = {0}, first = {0}, again = {0}, pushes = {0}, all = {0};
    FILE *shapes = argc == 3 ? fopen(argv[2], "r") : NULL;
    if (!shapes || gguf_open(argv[1], &file, err, sizeof err) || vocab_open(file, &v, err, sizeof err)) {
        fprintf(stderr, "usage: grammar_bench MODEL.gguf SHAPES.jsonl\n%s\n", err);
        return 2;
    }
    double start = now_us();
    struct grammar_vocab_opts opts = {vocab_size(v), bytes_of, ends, v};
    if (grammar_vocab_new(&opts, &gv, err, sizeof err))
        return 2;
    uint32_t *mask = malloc(grammar_vocab_words(gv) * sizeof *mask);
    if (!mask)
        return 2;
    printf("%d tokens put in order in %.0f ms\n", vocab_size(v), (now_us() - start) / 1000);
    while (getline(&line, &room, shapes) > 0) {
        cJSON *shape = cJSON_Parse(line);
        const char *schema = cJSON_GetStringValue(cJSON_GetObjectItem(shape, "schema"));
        struct grammar *g;
        start = now_us();
        if (grammar_from_schema(schema, strlen(schema), gv, 0, &g, err, sizeof err)) {
            printf("%s\n", err);
            failures++;
            continue;
        }
        note(&compiles, now_us() - start);
        const cJSON *text;
        bool warm = false;
        cJSON_ArrayForEach(text, cJSON_GetObjectItem(shape, "texts"))
        {
            size_t from = warm ? again.n : first.n;
            struct times *to = warm ? &again : &first;
            run(g, v, mask, text->valuestring, to, &pushes);
            for (; from < to->n; from++)
                note(&all, to->us[from]);
            warm = true;
        }
        bytes += grammar_use(g).bytes;
        schemas++;
        grammar_free(g);
        cJSON_Delete(shape);
    }
    show("compiling", &compiles);
    show("masks, all", &all);
    show("masks, first document", &first);
    show("masks, later documents", &again);
    show("pushes", &pushes);
    printf("%.1f %% of tokens need no step of their own\n",
           100.0 * (double)n_forced / (double)(n_tokens ? n_tokens : 1));
    printf("%.1f MiB a grammar at the end\n", (double)bytes / (double)(schemas ? schemas : 1) / 1048576);
    free(line);
    free(mask);
    fclose(shapes);
    grammar_vocab_free(gv);
    vocab_close(v);
    gguf_close(file);
    return failures ? 1 : 0;
}

/* perplexity_bench.c - what rounding costs: a model as it runs, beside itself without rounded activations.
 *
 *   build/bench/perplexity_bench [MODEL TEXT [TOKENS]]
 *
 * The reference is the same model with its weights written out as F32, whose products do not round their input, and
 * with f16 keys and values. For the model with bf16 and with f16 keys and values, and for the reference with bf16 ones:
 * the perplexity of the text, the Kullback-Leibler divergence of each next-token distribution from the reference's
 * (mean, and the 99th percentile), and how often both have the same likeliest token. The text is taken in windows of
 * 512 tokens, each a sequence of its own, behind the token with which the model's texts begin.
 *
 * Without arguments: the models in ~/.cache/convod/models, with this project's documents.
 */
#include "engine/engine.h"
#include "engine/file/gguf_private.h"
#include "kernels/cpu/linear_internal.h"

#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW 512
#define STEP   128 /* tokens whose logits are there at a time */

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ---- the reference's file ---------------------------------------------------------------------------------------- */

static void put(FILE *f, const void *p, size_t n)
{
    if (fwrite(p, 1, n, f) != n)
        die("writing", strerror(errno));
}

static void put_tensor(FILE *f, const struct gguf *g, const struct gguf_tensor *t)
{
    char err[256];
    uint8_t *data = malloc(t->bytes);
    int cols = (int)t->dims[0], rows = (int)(t->values / t->dims[0]);
    if (!data || gguf_tensor_read(g, t, 0, t->bytes, data, err, sizeof err))
        die(t->name, "cannot be read");
    if (t->type == KERNELS_F32) {
        put(f, data, t->bytes);
        free(data);
        return;
    }
    void *packed = malloc(kernels_packed_bytes(t->type, rows, cols));
    float *row = malloc((size_t)cols * sizeof *row);
    if (!packed || !row)
        die(t->name, "no memory");
    for (int group = 0; group * KERNELS_ROW_GROUP < rows; group++)
        kernels_pack_group(t->type, rows, cols, group, data, packed);
    const struct kernels_matrix w = {.type = t->type, .rows = rows, .cols = cols, .data = packed};
    for (int32_t r = 0; r < rows; r++) {
        kernels_packed_row(&w, r, row);
        put(f, row, (size_t)cols * sizeof *row);
    }
    free(row);
    free(packed);
    free(data);
}

/* Writes the model with all weights as F32. The keys are copied as they are; the tensors follow in their order. */
static void write_floats(const char *model, const char *path)
{
    char err[512];
    struct gguf *g;
    if (gguf_open(model, &g, err, sizeof err))
        die(model, err);
    const struct gguf_key *last = &g->keys[g->n_keys - 1];
    const uint8_t *end = last->type == GGUF_STRING  ? (const uint8_t *)last->string.text + last->string.len
                         : last->type == GGUF_ARRAY ? last->array.data + last->array.bytes
                                                    : last->array.data + GGUF_VALUE_BYTES[last->type];
    uint32_t alignment = GGUF_DEFAULT_ALIGNMENT, type = 0;
    (void)gguf_get_u32(g, "general.alignment", GGUF_OPTIONAL, &alignment, NULL, 0);
    FILE *f = fopen(path, "wb");
    if (!f)
        die(path, strerror(errno));
    put(f, g->parts[0].bytes, (size_t)(end - g->parts[0].bytes));
    uint64_t at = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        uint64_t length = strlen(t->name);
        uint32_t dims = (uint32_t)t->n_dims;
        put(f, &length, sizeof length);
        put(f, t->name, length);
        put(f, &dims, sizeof dims);
        put(f, t->dims, dims * sizeof t->dims[0]);
        put(f, &type, sizeof type);
        put(f, &at, sizeof at);
        at += (t->values * 4 + alignment - 1) / alignment * alignment;
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        while (ftell(f) % alignment)
            put(f, "", 1);
        put_tensor(f, g, &g->tensors[i]);
    }
    if (fclose(f))
        die(path, strerror(errno));
    gguf_close(g);
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

struct run {
    const char *name;
    struct engine *e;
    double log_loss;
    double *divergence; /* [n] */
    int n, same;
};

static struct engine *open_model(const char *path, const char *kv_type)
{
    char err[512];
    struct engine *e;
    const struct engine_opts opts = {.model_path = path,
                                     .kv_type = kv_type,
                                     .ctx_tokens = WINDOW + 1,
                                     .kv_bytes = (size_t)256 << 20,
                                     .step_tokens = STEP,
                                     .step_logits = STEP};
    if (engine_open(&opts, &e, err, sizeof err))
        die(path, err);
    return e;
}

/* Logits of n tokens behind those that s holds. */
static const float *step(struct engine *e, struct engine_seq *s, const engine_token *tokens, int n)
{
    static int all[STEP];
    for (int i = 0; i < n; i++)
        all[i] = i;
    const float *logits;
    struct engine_step_item item = {.seq = s, .tokens = tokens, .n = n, .want = all, .n_want = n};
    if (engine_step_start(e, &item, 1) || engine_step_wait(e, &logits) || item.result)
        die("a step", "failed");
    return logits;
}

/* Log-probabilities of one row. Returns the likeliest token. */
static int log_softmax(const float *logits, int n, double *out)
{
    int best = 0;
    double sum = 0;
    for (int i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    for (int i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    double shift = (double)logits[best] + log(sum);
    for (int i = 0; i < n; i++)
        out[i] = (double)logits[i] - shift;
    return best;
}

static void count(struct run *r, const double *reference, int best, const float *logits, int n, int next, double *own)
{
    int likeliest = log_softmax(logits, n, own);
    double divergence = 0;
    for (int i = 0; i < n; i++)
        divergence += exp(reference[i]) * (reference[i] - own[i]);
    r->log_loss -= own[next];
    r->same += likeliest == best;
    r->divergence[r->n++] = divergence;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(struct run *r)
{
    double sum = 0;
    for (int i = 0; i < r->n; i++)
        sum += r->divergence[i];
    qsort(r->divergence, (size_t)r->n, sizeof *r->divergence, compare);
    printf("  %-38s %9.4f %11.6f %11.6f %8.2f%%\n", r->name, exp(r->log_loss / r->n), sum / r->n,
           r->divergence[(r->n - 1) * 99 / 100], 100.0 * r->same / r->n);
    free(r->divergence);
}

static void measure(const char *model, const char *text, size_t length, int wanted)
{
    char floats[] = "/tmp/perplexity-XXXXXX";
    int fd = mkstemp(floats);
    if (fd < 0 || close(fd))
        die(floats, strerror(errno));
    write_floats(model, floats);
    struct run runs[] = {
        {.name = "F32 activations, f16 KV (reference)", .e = open_model(floats, "f16")},
        {.name = "F32 activations, bf16 KV", .e = open_model(floats, "bf16")},
        {.name = "rounded activations, f16 KV", .e = open_model(model, "f16")},
        {.name = "rounded activations, bf16 KV", .e = open_model(model, "bf16")},
    };
    enum { RUNS = sizeof runs / sizeof *runs };
    unlink(floats);
    const struct engine_info *info = engine_info(runs[0].e);
    struct engine_tokens tokens = {0}, begin = {0};
    if (engine_tokenize(runs[0].e, "", 0, true, &begin) || engine_tokenize(runs[0].e, text, length, false, &tokens))
        die("the text", "cannot be tokenized");
    int n = (int)tokens.n < wanted ? (int)tokens.n : wanted, vocab = info->n_vocab;
    size_t row = (size_t)vocab;
    float *kept = malloc(STEP * row * sizeof *kept);
    double *reference = malloc(row * sizeof *reference), *own = malloc(row * sizeof *own);
    for (int i = 0; i < RUNS; i++)
        runs[i].divergence = malloc((size_t)n * sizeof *runs[i].divergence);
    if (!kept || !reference || !own)
        die("measuring", "no memory");
    for (int first = 0; first < n; first += WINDOW) {
        struct engine_seq *seqs[RUNS];
        for (int i = 0; i < RUNS; i++) {
            if (!(seqs[i] = engine_seq_new(runs[i].e)))
                die("measuring", "no memory");
            if (begin.n)
                step(runs[i].e, seqs[i], begin.ids, 1);
        }
        int window = n - first < WINDOW ? n - first : WINDOW;
        for (int at = 0; at < window; at += STEP) {
            int count_of = window - at < STEP ? window - at : STEP;
            const engine_token *ids = tokens.ids + first + at;
            memcpy(kept, step(runs[0].e, seqs[0], ids, count_of), (size_t)count_of * row * sizeof *kept);
            for (int i = 0; i < RUNS; i++) {
                const float *logits = i ? step(runs[i].e, seqs[i], ids, count_of) : kept;
                for (int t = 0; t < count_of && first + at + t + 1 < n && at + t + 1 < window; t++) {
                    int best = log_softmax(kept + (size_t)t * row, vocab, reference);
                    count(&runs[i], reference, best, logits + (size_t)t * row, vocab, ids[t + 1], own);
                }
            }
        }
        for (int i = 0; i < RUNS; i++)
            engine_seq_free(seqs[i]);
    }
    printf("%s (%s), %d tokens\n  %-38s %9s %11s %11s %9s\n", info->name, info->backend, runs[0].n, "", "perplex.",
           "KL, mean", "KL, 99 %", "same top");
    for (int i = 0; i < RUNS; i++) {
        report(&runs[i]);
        engine_close(runs[i].e);
    }
    engine_tokens_free(&tokens);
    engine_tokens_free(&begin);
    free(kept);
    free(reference);
    free(own);
}

/* All of several files, one after the other. */
static char *read_texts(char *const *paths, int n, size_t *length)
{
    char *text = NULL;
    *length = 0;
    for (int i = 0; i < n; i++) {
        FILE *f = fopen(paths[i], "rb");
        if (!f || fseek(f, 0, SEEK_END))
            die(paths[i], strerror(errno));
        size_t size = (size_t)ftell(f);
        rewind(f);
        text = realloc(text, *length + size);
        if (!text || fread(text + *length, 1, size, f) != size)
            die(paths[i], "cannot be read");
        *length += size;
        fclose(f);
    }
    return text;
}

int main(int argc, char **argv)
{
    static char *documents[] = {"docs/design.md", "docs/protocol.md", "README.md"};
    bool given = argc > 2;
    size_t length;
    char *text = given ? read_texts(argv + 2, 1, &length) : read_texts(documents, 3, &length);
    int wanted = argc > 3 ? atoi(argv[3]) : 2048;
    if (given) {
        measure(argv[1], text, length, wanted);
    } else {
        const char *home = getenv("HOME"), *cache = getenv("XDG_CACHE_HOME");
        char pattern[4096];
        glob_t models;
        snprintf(pattern, sizeof pattern, "%s%s/convod/models/*.gguf",
                 cache  ? cache
                 : home ? home
                        : "",
                 cache ? "" : "/.cache");
        if (glob(pattern, 0, NULL, &models) != 0)
            printf("skip: there is no model in %s\n", pattern);
        else
            for (size_t i = 0; i < models.gl_pathc; i++)
                measure(models.gl_pathv[i], text, length, wanted);
        globfree(&models);
    }
    free(text);
    return 0;
}

/* engine.c - what tests/reference/compare.py asks of the engine.
 *
 *     engine tiny FOLDER         writes the tests' tiny models: FOLDER/NAME-ROPE-TYPE.gguf
 *     engine logits MODEL FILE   reads token ids, as text; writes float [ids][vocabulary] behind each of them
 *     engine tokens MODEL        reads a text; prints its token ids
 *     engine values MODEL FILE   writes the values of token_embd.weight, float [vocabulary][width]
 *
 * What it reads comes from stdin. Keys and values are kept as f16.
 */
#include "engine/engine.h"
#include "engine/file/file.h"
#include "kernels/cpu/linear_internal.h"
#include "tests/engine/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP       64 /* tokens whose logits are there at a time */
#define MOST_BYTES (1 << 20)

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* ---- tiny models ------------------------------------------------------------------------------------------------- */

static void write_tiny(const char *folder, const struct tiny_model *m, const char *name)
{
    char path[512];
    struct gguf_writer *w = gguf_writer_new();
    tiny_model_write(m, w);
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    if (gguf_writer_save(w, path) != 0)
        die(path, "cannot be written");
    gguf_writer_free(w);
}

static void write_all(const char *folder)
{
    static const char *const NAMES[TINY_ARCHS] = {[TINY_PHI3_WINDOWS] = "phi3windows", [TINY_MIXTRAL] = "mixtral"};
    static const char *const ROPES[TINY_ROPES] = {"plain", "linear", "yarn", "divisors", "long"};
    char name[128];
    for (enum tiny_arch a = 0; a < TINY_QWEN2_JOINED; a++) { /* what is joined by some converters is theirs */
        struct tiny_model m = tiny_model_of(a);
        const char *arch = NAMES[a] ? NAMES[a] : tiny_model_arch(&m);
        bool long_rope = tiny_facts(&m)->long_rope; /* transformers has no other kind in these */
        for (enum tiny_rope r = 0; r < TINY_ROPES; r++) {
            m.rope = r;
            snprintf(name, sizeof name, "%s-%s-F32", arch, ROPES[r]);
            if (tiny_model_has_rope(a, r) && (!long_rope || r == TINY_ROPE_PLAIN || r == TINY_ROPE_LONG))
                write_tiny(folder, &m, name);
        }
        if (long_rope) { /* as Phi 4 mini */
            m.rope = TINY_ROPE_LONG;
            m.rot = m.head_dim * 3 / 4;
            snprintf(name, sizeof name, "%s-longpart-F32", arch);
            write_tiny(folder, &m, name);
        }
        if (tiny_facts(&m)->gpt_oss) {
            m = tiny_model_typed(a, KERNELS_MXFP4);
            m.rope = TINY_ROPE_YARN;
            snprintf(name, sizeof name, "%s-yarn-MXFP4", arch);
            write_tiny(folder, &m, name);
        }
    }
    for (enum kernels_type t = KERNELS_F32 + 1; t < KERNELS_TYPE_COUNT; t++) {
        struct tiny_model m = tiny_model_typed(TINY_QWEN2, t);
        snprintf(name, sizeof name, "qwen2-plain-%s", kernels_type_info(t)->name);
        write_tiny(folder, &m, name);
    }
}

/* ---- an engine --------------------------------------------------------------------------------------------------- */

static struct engine *open_engine(const char *path)
{
    char err[512];
    struct engine *e;
    const struct engine_opts opts = {
        .model_path = path, .kv_type = "f16", .kv_bytes = (size_t)256 << 20, .step_tokens = STEP, .step_logits = STEP};
    if (engine_open(&opts, &e, err, sizeof err))
        die(path, err);
    return e;
}

static void write_logits(struct engine *e, const char *path)
{
    struct engine_tokens ids = {0};
    engine_token id;
    int all[STEP];
    struct engine_seq *s = engine_seq_new(e);
    FILE *f = fopen(path, "wb");
    while (scanf("%d", &id) == 1)
        if (engine_tokens_append(&ids, &id, 1))
            die("ids", "no memory");
    if (!s || !f)
        die(path, "cannot be begun");
    for (int i = 0; i < STEP; i++)
        all[i] = i;
    size_t row = (size_t)engine_info(e)->n_vocab;
    for (size_t at = 0; at < ids.n; at += STEP) {
        int n = ids.n - at < STEP ? (int)(ids.n - at) : STEP;
        const float *logits;
        struct engine_step_item item = {.seq = s, .tokens = ids.ids + at, .n = n, .want = all, .n_want = n};
        if (engine_step_start(e, &item, 1) || engine_step_wait(e, &logits) || item.result)
            die("a step", "failed");
        if (fwrite(logits, sizeof *logits, (size_t)n * row, f) != (size_t)n * row)
            die(path, "cannot be written");
    }
    if (fclose(f))
        die(path, "cannot be written");
    engine_seq_free(s);
    engine_tokens_free(&ids);
}

static void print_tokens(struct engine *e)
{
    struct engine_tokens ids = {0};
    char *text = malloc(MOST_BYTES);
    if (!text || engine_tokenize(e, text, fread(text, 1, MOST_BYTES, stdin), true, &ids))
        die("the text", "no memory");
    for (size_t i = 0; i < ids.n; i++)
        printf("%d\n", ids.ids[i]);
    engine_tokens_free(&ids);
    free(text);
}

static void write_values(const char *model, const char *path)
{
    char err[512];
    struct gguf *g;
    const struct gguf_tensor *t;
    if (gguf_open(model, &g, err, sizeof err) ||
        gguf_tensor_get(g, "token_embd.weight", GGUF_REQUIRED, &t, err, sizeof err))
        die(model, err);
    int cols = (int)t->dims[0], rows = (int)t->dims[1];
    void *data = malloc(t->bytes), *packed = malloc(kernels_packed_bytes(t->type, rows, cols));
    float *row = malloc((size_t)cols * sizeof *row);
    FILE *f = fopen(path, "wb");
    if (!data || !packed || !row || !f || gguf_tensor_read(g, t, 0, t->bytes, data, err, sizeof err))
        die(path, "cannot be begun");
    for (int group = 0; group * KERNELS_ROW_GROUP < rows; group++)
        kernels_pack_group(t->type, rows, cols, group, data, packed);
    const struct kernels_matrix w = {.type = t->type, .rows = rows, .cols = cols, .data = packed};
    for (int32_t r = 0; r < rows; r++) {
        kernels_packed_row(&w, r, row);
        if (fwrite(row, sizeof *row, (size_t)cols, f) != (size_t)cols)
            die(path, "cannot be written");
    }
    if (fclose(f))
        die(path, "cannot be written");
    free(row);
    free(packed);
    free(data);
    gguf_close(g);
}

int main(int argc, char **argv)
{
    struct engine *e = NULL;
    if (argc == 3 && !strcmp(argv[1], "tiny"))
        write_all(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "logits"))
        write_logits(e = open_engine(argv[2]), argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "tokens"))
        print_tokens(e = open_engine(argv[2]));
    else if (argc == 4 && !strcmp(argv[1], "values"))
        write_values(argv[2], argv[3]);
    else
        die("usage", "engine tiny FOLDER | logits MODEL FILE | tokens MODEL | values MODEL FILE");
    engine_close(e);
    return 0;
}

/* models.c - whole models on a CUDA device: what a conversation's next token depends on is its tokens alone.
 *
 * usage: models [--tiny] [--seconds N] [--from N]
 *
 * Makes a model file per kind, with random weights, and prints results as said.h has them. For each:
 * how long steps take; under `exact` the device's logits are the processor's to the bit; under `device` a conversation
 * of three turns has the same bits when its KV was taken out behind the first turn by a process that was killed in the
 * middle of a later step, and put back, in segments, into an engine that was opened anew, and when its turns run in
 * steps with other conversations. Shapes are those of real models with few layers; with
 * --tiny such that an emulation can do them. Exit status: 0, or 1 when something was not as it should be.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "engine/engine.h"
#include "tests/engine/tiny_model.h"
#include "tests/gpu/said.h"

#define TURNS   3
#define DECODED 4   /* tokens of a turn that are run one by one */
#define SEGMENT 256 /* tokens that are stored together */
#define OTHERS  7   /* most conversations beside the one that is looked at */
#define NEAR    0.08

static void say_model(const char *model, const char *what, bool fine)
{
    char name[200];
    snprintf(name, sizeof name, "%s: %s", model, what);
    say_fine(name, fine);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

struct kind {
    const char *name;
    enum tiny_arch arch;
    enum kernels_type type;
    int layers, embd, ff, heads, kv_heads, dim, experts, used;
};

static const struct kind kinds[] = {
    {"qwen2 0.5B, Q8_0", TINY_QWEN2, KERNELS_Q8_0, 4, 896, 4864, 14, 2, 64, 0, 0},
    {"llama 8B, Q4_K", TINY_LLAMA, KERNELS_Q4_K, 1, 4096, 14336, 32, 8, 128, 0, 0},
    {"llama 1B, BF16", TINY_LLAMA, KERNELS_BF16, 1, 2048, 8192, 32, 8, 64, 0, 0},
    {"gemma3 1B, Q8_0", TINY_GEMMA3, KERNELS_Q8_0, 6, 1152, 6912, 4, 1, 256, 0, 0},
    {"qwen3moe 30B, Q4_K", TINY_QWEN3MOE, KERNELS_Q4_K, 1, 2048, 768, 32, 4, 128, 32, 8},
    {"gpt-oss 20B, MXFP4", TINY_GPT_OSS, KERNELS_MXFP4, 2, 2880, 2880, 64, 8, 64, 6, 4}, /* of its experts a few */
};

static struct tiny_model model_of(const struct kind *k)
{
    if (said.tiny) {
        struct tiny_model m = tiny_model_typed(k->arch, k->type);
        m.n_layers = m.n_layers > 2 ? 2 : m.n_layers;
        m.ctx = 1024;
        return m;
    }
    struct tiny_model m = tiny_model_of(k->arch);
    m.type = k->type;
    m.n_layers = k->layers;
    m.n_embd = k->embd;
    m.n_ff = k->ff;
    m.n_heads = k->heads;
    m.n_kv_heads = k->kv_heads;
    m.head_dim = m.rot = k->dim;
    m.n_experts = k->experts;
    m.n_used = k->used;
    m.window = !m.window ? 0 : k->arch == TINY_GPT_OSS ? 128 : 512;
    m.ctx = 4096;
    return m;
}

static struct engine *open_engine(const char *path, const char *backend, const char *numerics)
{
    struct engine *e = NULL;
    char err[500] = "";
    const struct engine_opts opts = {.model_path = path,
                                     .backend = backend,
                                     .numerics = numerics,
                                     .kv_bytes = (size_t)(said.tiny ? 64 : 1024) << 20,
                                     .step_tokens = 512,
                                     .step_logits = 8};
    if (engine_open(&opts, &e, err, sizeof err))
        stop(err);
    return e;
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

/* A conversation of `length` tokens in every turn, and the logits behind each token of a turn that is run alone. */
struct talk {
    int length, n_vocab;
    engine_token *tokens; /* [TURNS][length] */
    float *logits;        /* [TURNS][DECODED][n_vocab] */
};

static struct talk talk_new(const struct tiny_model *m, uint64_t seed, int length)
{
    struct talk t = {.length = length, .n_vocab = m->n_vocab};
    t.tokens = need(calloc((size_t)(TURNS * length), sizeof *t.tokens));
    t.logits = need(calloc((size_t)(TURNS * DECODED) * (size_t)m->n_vocab, sizeof *t.logits));
    tiny_model_tokens(m, seed, TURNS * length, t.tokens);
    return t;
}

static void talk_free(struct talk *t)
{
    free(t->tokens);
    free(t->logits);
}

static size_t logits_bytes(const struct talk *t)
{
    return (size_t)(TURNS * DECODED) * (size_t)t->n_vocab * sizeof(float);
}

/* One step of n conversations, `count` tokens each; the logits behind the last ones to logits[i], where that is not
 * NULL.
 */
static void step(struct engine *e, struct engine_seq **s, const engine_token **tokens, int n, int count, float **logits)
{
    struct engine_step_item items[OTHERS + 1];
    const int last = count - 1;
    size_t vocab = (size_t)engine_info(e)->n_vocab;
    for (int i = 0; i < n; i++)
        items[i] = (struct engine_step_item){
            .seq = s[i], .tokens = tokens[i], .n = count, .want = &last, .n_want = 1, .result = -1};
    const float *got = NULL;
    if (engine_step_start(e, items, n) || engine_step_wait(e, &got))
        stop(engine_failure(e) ? engine_failure(e) : "a step failed");
    for (int i = 0; i < n; i++) {
        if (items[i].result)
            stop("an item of a step was not run");
        if (logits[i])
            memcpy(logits[i], got + (size_t)i * vocab, vocab * sizeof *got);
    }
}

/* Turns [first, end) of n conversations at once: all but DECODED tokens in pieces of `piece`, then one by one. */
static void run(struct engine *e, struct engine_seq **s, struct talk *talks, int n, int first, int end, int piece)
{
    int length = talks[0].length;
    for (int turn = first; turn < end; turn++)
        for (int at = 0, count; at < length; at += count) {
            int bulk = length - DECODED - at;
            count = bulk <= 0 ? 1 : bulk < piece ? bulk : piece;
            const engine_token *tokens[OTHERS + 1];
            float *logits[OTHERS + 1];
            for (int i = 0; i < n; i++) {
                size_t row = (size_t)(turn * DECODED + at - (length - DECODED));
                tokens[i] = talks[i].tokens + turn * length + at;
                logits[i] = bulk <= 0 ? talks[i].logits + row * (size_t)talks[i].n_vocab : NULL;
            }
            step(e, s, tokens, n, count, logits);
        }
}

static bool is_near(const struct talk *want, const struct talk *got)
{
    double difference = 0, all = 0;
    for (size_t i = 0; i < logits_bytes(want) / sizeof(float); i++) {
        double d = (double)got->logits[i] - (double)want->logits[i];
        difference += d * d;
        all += (double)want->logits[i] * (double)want->logits[i];
    }
    return difference <= NEAR * NEAR * all && all > 0; /* a NaN is not near */
}

static struct talk run_alone(struct engine *e, const struct tiny_model *m, int length, int piece)
{
    struct talk t = talk_new(m, 1, length);
    struct engine_seq *s = need(engine_seq_new(e));
    run(e, &s, &t, 1, 0, TURNS, piece);
    engine_seq_free(s);
    return t;
}

/* How long a conversation's turn is, and the pieces of it that are run at once. */
static int turn_tokens(void)
{
    return said.tiny ? 12 : 700;
}

static int piece_tokens(void)
{
    return said.tiny ? 8 : 512;
}

static FILE *kv_file(const char *path, const char *mode)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.kv", path);
    FILE *f = fopen(name, mode);
    if (!f)
        stop("no file for KV");
    return f;
}

/* The process that is killed: the first turn, its logits and what it left, as segments, to a file; then steps without
 * end. */
static void run_until_killed(const char *path, const struct kind *k)
{
    struct tiny_model m = model_of(k);
    struct talk t = talk_new(&m, 1, turn_tokens());
    struct engine *e = open_engine(path, "cuda", "device");
    size_t token_bytes = engine_info(e)->kv_token_bytes;
    uint8_t *kv = need(malloc(SEGMENT * token_bytes));
    struct engine_seq *s = need(engine_seq_new(e));
    FILE *f = kv_file(path, "wb");
    run(e, &s, &t, 1, 0, 1, piece_tokens());
    bool written = fwrite(t.logits, logits_bytes(&t), 1, f) == 1;
    for (int at = 0; at < t.length; at += SEGMENT) {
        int n = t.length - at < SEGMENT ? t.length - at : SEGMENT;
        if (engine_kv_export(s, at, n, kv))
            stop("KV does not come out");
        written = written && fwrite(kv, (size_t)n * token_bytes, 1, f) == 1;
    }
    if (fclose(f) || !written)
        stop("KV was not written");
    printf("saved\n");
    fflush(stdout);
    for (;;) {
        struct engine_seq *other = need(engine_seq_new(e));
        run(e, &other, &t, 1, 0, 1, piece_tokens());
        engine_seq_free(other);
    }
}

/* Starts this program as the one above, and kills it when it has said that all is saved. */
static void run_and_kill(const char *path, const struct kind *k)
{
    int pipe_ends[2], status = 0;
    char index[16], line[256] = "";
    snprintf(index, sizeof index, "%d", (int)(k - kinds));
    fflush(stdout);
    pid_t pid = pipe(pipe_ends) ? -1 : fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* should this one be killed first */
        dup2(pipe_ends[1], STDOUT_FILENO);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        execl("/proc/self/exe", "models", "--first-turn", index, path, said.tiny ? "--tiny" : (char *)NULL,
              (char *)NULL);
        _exit(127);
    }
    if (pid < 0)
        stop("no second process");
    close(pipe_ends[1]);
    FILE *child = fdopen(pipe_ends[0], "r");
    bool saved = child && fgets(line, sizeof line, child) && !strcmp(line, "saved\n");
    kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid || !saved || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
        fputs(line, stdout); /* what it said instead, if anything */
        stop("the process that was to be killed ended before");
    }
    fclose(child);
}

/* The other turns, in an engine that has what the killed process left. */
static struct talk run_restored(const char *path, const struct kind *k, const struct tiny_model *m)
{
    struct talk t = talk_new(m, 1, turn_tokens());
    char name[4096];
    run_and_kill(path, k);
    struct engine *e = open_engine(path, "cuda", "device");
    size_t token_bytes = engine_info(e)->kv_token_bytes;
    uint8_t *kv = need(malloc(SEGMENT * token_bytes));
    struct engine_seq *s = need(engine_seq_new(e));
    FILE *f = kv_file(path, "rb");
    bool whole = fread(t.logits, logits_bytes(&t), 1, f) == 1;
    for (int at = 0; at < t.length; at += SEGMENT) {
        int n = t.length - at < SEGMENT ? t.length - at : SEGMENT;
        whole = whole && fread(kv, (size_t)n * token_bytes, 1, f) == 1;
        if (!whole || engine_kv_import(s, t.tokens + at, n, kv))
            stop("KV does not go in");
    }
    fclose(f);
    snprintf(name, sizeof name, "%s.kv", path);
    remove(name);
    run(e, &s, &t, 1, 1, TURNS, piece_tokens());
    engine_seq_free(s);
    engine_close(e);
    free(kv);
    return t;
}

/* Beside others, that have another length behind them. */
static struct talk run_beside(struct engine *e, const struct tiny_model *m, int length, int piece)
{
    struct talk talks[OTHERS + 1];
    struct engine_seq *s[OTHERS + 1];
    int n = said.tiny ? 3 : OTHERS + 1;
    for (int i = 0; i < n; i++) {
        talks[i] = talk_new(m, (uint64_t)i + 1, length);
        s[i] = need(engine_seq_new(e));
        for (int before = 0; before < 3 * i; before++) {
            float *none = NULL;
            const engine_token *token = talks[i].tokens;
            step(e, &s[i], &token, 1, 1, &none);
        }
    }
    run(e, s, talks, n, 0, TURNS, piece / n);
    for (int i = 0; i < n; i++) {
        engine_seq_free(s[i]);
        if (i > 0)
            talk_free(&talks[i]);
    }
    return talks[0];
}

/* How long steps take as they do in service: with picks, and kept by the backend where they are of few rows. */
static void measure(struct engine *e, const struct kind *k)
{
    static const int real[][3] = {{1, 1, 2048}, {8, 1, 2048}, {32, 1, 2048}, {1, 512, 2048}}, small[][3] = {{2, 1, 70}};
    const int(*steps)[3] = said.tiny ? small : real;
    for (int i = 0; i < (said.tiny ? 1 : 4); i++) {
        struct engine_profile p;
        char name[200];
        snprintf(name, sizeof name, "%s, %d layers: a step of %d x %d tokens behind %d", k->name,
                 engine_info(e)->n_layers, steps[i][0], steps[i][1], steps[i][2]);
        if (engine_profile(e, steps[i][0], steps[i][1], steps[i][2], &p))
            stop(engine_failure(e) ? engine_failure(e) : "a step was not measured");
        say(name, p.whole_ms * 1e3, "us");
    }
}

static void check_model(const struct kind *k)
{
    struct tiny_model m = model_of(k);
    int length = turn_tokens(), piece = piece_tokens();
    char *path = need(tiny_model_save(&m));
    struct engine *cpu = open_engine(path, "cpu", NULL), *exact = open_engine(path, "cuda", "exact");
    struct talk want = run_alone(cpu, &m, length, piece), same = run_alone(exact, &m, length, piece);
    say_model(k->name, "exact, the CPU's bits", !memcmp(same.logits, want.logits, logits_bytes(&want)));
    engine_close(cpu);
    engine_close(exact);
    struct engine *device = open_engine(path, "cuda", "device");
    struct talk whole = run_alone(device, &m, length, piece), beside = run_beside(device, &m, length, piece),
                pieces = run_alone(device, &m, length, piece / 3);
    say_model(k->name, "device, near the CPU", is_near(&want, &whole));
    say_model(k->name, "the same bits in other pieces", !memcmp(pieces.logits, whole.logits, logits_bytes(&whole)));
    say_model(k->name, "the same bits beside others", !memcmp(beside.logits, whole.logits, logits_bytes(&whole)));
    if (engine_info(device)->backend_notes)
        say_text(k->name, engine_info(device)->backend_notes);
    if (!said.tiny || k == kinds) /* the emulation is slow */
        measure(device, k);
    engine_close(device);
    struct talk restored = run_restored(path, k, &m);
    say_model(k->name, "the same bits when restored after kill -9",
              !memcmp(restored.logits, whole.logits, logits_bytes(&whole)));
    talk_free(&want);
    talk_free(&same);
    talk_free(&whole);
    talk_free(&beside);
    talk_free(&pieces);
    talk_free(&restored);
    tiny_model_remove(path);
}

int main(int argc, char **argv)
{
    said_options(argc, argv);
    if (argc > 3 && !strcmp(argv[1], "--first-turn")) {
        size_t index = (size_t)atoi(argv[2]);
        if (index < sizeof kinds / sizeof *kinds)
            run_until_killed(argv[3], &kinds[index]);
        return 2;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (unit_begins(kinds[i].name))
            check_model(&kinds[i]);
    return said_done();
}

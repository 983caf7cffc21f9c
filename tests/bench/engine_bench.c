/* engine_bench.c - prefill and decode rates of the engine, and the rate at which this machine reads memory.
 *
 * usage: engine_bench MODEL [BACKEND [THREADS]]
 *
 * Loads the model, prints one JSON line about it, and then answers each line "run PROMPT DECODE HISTORY ACTIVE" on
 * standard input with one JSON line of times, so that bench.py can let it and the peer take turns in one run: PROMPT
 * tokens are prefilled behind HISTORY ones, and then ACTIVE sequences decode DECODE tokens each, together. Every step
 * of decoding ends with picking the tokens, by the default settings, or the likeliest ones where "greedy" follows the
 * numbers; the next step takes given tokens all the same, so that runs can be compared. "read" measures the plain read
 * bandwidth.
 */
#include "engine/engine.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define READ_BYTES ((size_t)512 << 20)
#define READ_PARTS 1024

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

typedef uint64_t line_t __attribute__((vector_size(64)));

struct reading {
    const line_t *p;
    line_t sums[READ_PARTS]; /* so that the reads are not dropped */
};

/* Two lines at a time and prefetched, as fast as the best loop we know reads here. */
static void read_part(void *arg, int i)
{
    struct reading *r = arg;
    size_t n = READ_BYTES / sizeof *r->p / READ_PARTS;
    const line_t *p = r->p + (size_t)i * n;
    line_t a = {0}, b = {0};
    for (size_t j = 0; j < n; j += 2) {
        __builtin_prefetch(&p[j + 64], 0, 2);
        __builtin_prefetch(&p[j + 65], 0, 2);
        a += p[j];
        b += p[j + 1];
    }
    r->sums[i] = a + b;
}

/* Bytes per second of a plain multi-threaded read of memory that no cache holds; the best of five, since it is a bound.
 */
static double read_bandwidth(int threads)
{
    char err[256];
    struct kernels *k;
    const struct kernels_opts opts = {.threads = threads};
    if (kernels_open(&opts, &k, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        exit(1);
    }
    void *p = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    (void)madvise(p, READ_BYTES, MADV_HUGEPAGE);
    memset(p, 1, READ_BYTES);
    double best = 1e30;
    struct reading r = {.p = p};
    for (int i = 0; i < 5; i++) {
        double start = now_ms();
        kernels_parallel(k, READ_PARTS, read_part, &r);
        double ms = now_ms() - start;
        best = ms < best ? ms : best;
    }
    munmap(p, READ_BYTES);
    kernels_close(k);
    return (double)READ_BYTES / best * 1e3;
}

#define ACTIVE_MAX 16

/* settings: of the tokens that are picked at the end; NULL: none are. */
static void step(struct engine *e, struct engine_seq *const *seqs, int n_seqs, const engine_token *tokens, int n,
                 const struct engine_sampling *settings)
{
    struct engine_step_item items[ACTIVE_MAX];
    struct engine_pick picks[ACTIVE_MAX];
    for (int i = 0; i < n_seqs; i++) {
        picks[i] = (struct engine_pick){.settings = settings};
        items[i] =
            (struct engine_step_item){.seq = seqs[i], .tokens = tokens, .n = n, .pick = settings ? &picks[i] : NULL};
    }
    int rc = engine_step_start(e, items, n_seqs);
    if (rc == 0)
        rc = engine_step_wait(e, NULL);
    for (int i = 0; i < n_seqs && !rc; i++)
        rc = items[i].result ? items[i].result : settings ? picks[i].result : 0;
    if (rc) {
        fprintf(stderr, "a step failed: %s\n", strerror(-rc));
        exit(1);
    }
}

/* Each piece ends with its last row's logits, and the likeliest token. */
static void prefill(struct engine *e, struct engine_seq *seq, const engine_token *tokens, int n)
{
    const struct engine_sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    const int most = engine_info(e)->step_tokens;
    for (int at = 0; at < n; at += most)
        step(e, &seq, 1, tokens + at, n - at < most ? n - at : most, &greedy);
}

/* The history is prefilled once and kept for the next call with the same one. */
static void run(struct engine *e, int n_prompt, int n_decode, int n_history, int n_active, bool greedy)
{
    struct engine_sampling settings = ENGINE_SAMPLING_DEFAULT;
    if (greedy)
        settings.temperature = 0;
    static struct engine_seq *history;
    int n = n_history + n_prompt + n_decode;
    engine_token *tokens = malloc((size_t)n * sizeof *tokens);
    struct engine_seq *seqs[ACTIVE_MAX];
    if (!tokens || n > engine_info(e)->ctx_tokens) {
        fprintf(stderr, "no memory, or the context is too short\n");
        exit(1);
    }
    for (int i = 0; i < n; i++)
        tokens[i] = 1000 + i * 7 % 5000;
    if (!history || engine_seq_length(history) != n_history) {
        if (history)
            engine_seq_free(history);
        history = engine_seq_new(e);
        prefill(e, history, tokens, n_history);
    }
    seqs[0] = engine_seq_fork(history, n_history);
    double start = now_ms();
    prefill(e, seqs[0], tokens + n_history, n_prompt);
    double prefilled = now_ms();
    for (int i = 1; i < n_active; i++)
        seqs[i] = engine_seq_fork(seqs[0], engine_seq_length(seqs[0]));
    double forked = now_ms();
    for (int i = 0; i < n_decode; i++)
        step(e, seqs, n_active, tokens + n_history + n_prompt + i, 1, &settings);
    double decoded = now_ms();
    printf("{\"prompt\": %d, \"prefill_ms\": %.3f, \"decode\": %d, \"decode_ms\": %.3f}\n", n_prompt, prefilled - start,
           n_decode * n_active, decoded - forked);
    fflush(stdout);
    for (int i = 0; i < n_active; i++)
        engine_seq_free(seqs[i]);
    free(tokens);
}

int main(int argc, char **argv)
{
    char err[512], line[128];
    if (argc < 2) {
        fprintf(stderr, "usage: engine_bench MODEL [BACKEND [THREADS]]\n");
        return 2;
    }
    struct engine_opts opts = {.model_path = argv[1],
                               .backend = argc > 2 ? argv[2] : NULL,
                               .threads = argc > 3 ? atoi(argv[3]) : 0,
                               .ctx_tokens = 16384,
                               .kv_bytes = (size_t)2 << 30};
    struct engine *e;
    double start = now_ms();
    if (engine_open(&opts, &e, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    const struct engine_info *info = engine_info(e);
    printf("{\"model\": \"%s\", \"backend\": \"%s\", \"open_ms\": %.0f, \"file_bytes\": %llu, \"token_weight_bytes\": "
           "%llu, "
           "\"kv_token_bytes\": %zu}\n",
           info->name, info->backend, now_ms() - start, (unsigned long long)info->file_bytes,
           (unsigned long long)info->token_weight_bytes, info->kv_token_bytes);
    fflush(stdout);
    int n_prompt, n_decode, n_history, n_active;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %d %d %d %d", &n_prompt, &n_decode, &n_history, &n_active) == 4 && n_prompt > 0 &&
            n_decode >= 0 && n_history >= 0 && n_active > 0 && n_active <= ACTIVE_MAX) {
            run(e, n_prompt, n_decode, n_history, n_active, strstr(line, "greedy") != NULL);
        } else if (!strncmp(line, "read", 4)) {
            printf("{\"read_bytes_per_s\": %.0f}\n", read_bandwidth(opts.threads));
            fflush(stdout);
        } else {
            fprintf(stderr, "unknown command\n");
            return 2;
        }
    }
    engine_close(e);
    return 0;
}

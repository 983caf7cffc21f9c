/* pick_bench.c - what it takes to pick a token from the logits of a vocabulary of Qwen's size, in every instruction
 * set.
 *
 *   build/bench/pick_bench [threads]
 *
 * Microseconds per token, medians: one row, and eight rows at once. Logits are normal with a few that stand out, as a
 * model's are; "flat" is a deviation of 0.2, the worst for a nucleus. Rows differ from round to round and are read from
 * wherever the caches left them, as after a step.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define VOCAB  151936
#define ROWS   8
#define ROUNDS 51

static uint32_t mask[VOCAB / 32 + 1];

static const struct {
    const char *name;
    float deviation;
    struct kernels_pick settings;
} cases[] = {
    {"greedy", 3, {.temperature = 0, .top_p = 1}},
    {"defaults (0.7, top-k 40, top-p 0.95)", 3, {.temperature = 0.7f, .top_k = 40, .top_p = 0.95f}},
    {"top-p 0.95 alone", 3, {.temperature = 0.7f, .top_p = 0.95f}},
    {"min-p 0.05 alone", 3, {.temperature = 0.7f, .top_p = 1, .min_p = 0.05f}},
    {"temperature 1 alone", 3, {.temperature = 1, .top_p = 1}},
    {"top-k 5000", 3, {.temperature = 1, .top_k = 5000, .top_p = 1}},
    {"top-p 0.95 alone, flat", 0.2f, {.temperature = 1, .top_p = 0.95f}},
    {"defaults, log-probabilities, 20 others",
     3,
     {.temperature = 0.7f, .top_k = 40, .top_p = 0.95f, .odds = true, .n_top = 20}},
    {"defaults, a mask that allows a third", 3, {.temperature = 0.7f, .top_k = 40, .top_p = 0.95f, .mask = mask}},
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static void fill(float *x, float deviation)
{
    uint64_t state = 3;
    for (size_t i = 0; i < (size_t)ROWS * VOCAB; i++)
        x[i] = deviation * (float)(sqrt(-2 * log(1 - uniform(&state))) * cos(6.283185307179586 * uniform(&state)));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 40; i++)
            x[r * VOCAB + (int)(uniform(&state) * VOCAB)] = deviation * (float)(4 + 4 * uniform(&state));
}

static double time_of(struct kernels *k, const float *x, const struct kernels_pick *settings, int n)
{
    double times[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        struct kernels_pick picks[ROWS];
        struct kernels_picked picked[ROWS];
        for (int i = 0; i < n; i++) {
            picks[i] = *settings;
            picks[i].row = (r + i) % ROWS;
            picks[i].random = (double)(r * ROWS + i) / (ROUNDS * ROWS);
        }
        double start = now_us();
        kernels_op_pick(k, x, VOCAB, picks, n, picked);
        times[r] = (now_us() - start) / n;
    }
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static const char *const sets[] = {"cpu-avx512", "cpu-avx2"};
    float *x = malloc(sizeof *x * ROWS * VOCAB);
    if (!x)
        return 1;
    for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
        mask[i] = 0x49249249;
    for (int s = 0; s < 2; s++) {
        char err[128];
        struct kernels_opts opts = {sets[s], argc > 1 ? atoi(argv[1]) : 0};
        struct kernels *k;
        if (kernels_open(&opts, &k, err, sizeof err)) {
            printf("skip: %s\n", err);
            continue;
        }
        if (kernels_pick_reserve(k, VOCAB))
            return 1;
        printf("\n%s, %d workers, %d logits, us per token\n%-38s %8s %8s\n", sets[s], kernels_threads(k), VOCAB, "",
               "1 row", "8 rows");
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            fill(x, cases[c].deviation);
            printf("%-38s %8.1f %8.1f\n", cases[c].name, time_of(k, x, &cases[c].settings, 1),
                   time_of(k, x, &cases[c].settings, ROWS));
        }
        kernels_close(k);
    }
    free(x);
    return 0;
}

/* rows_support.h - what the tests of norms, rotary positions, activations, KV rows and attention share. */
#ifndef CONVOD_TESTS_ROWS_SUPPORT_H
#define CONVOD_TESTS_ROWS_SUPPORT_H

#include "kernels/cpu/rows_internal.h"

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
/* clang-format on */
#include <math.h>
#include <stdlib.h>

#define MAX_SETS 3

/* The inner functions of every set this processor can run, the specification first. Returns how many. */
int rows_sets(const struct kernels_rows_set *sets[MAX_SETS], const char *names[MAX_SETS]);

/* An opened backend by name, or NULL when the processor lacks it; any other failure fails the test. */
struct kernels *rows_open(const char *backend, int threads);

/* Deterministic numbers: uniform in [-1, 1), roughly normal, and any 32 bits. */
uint32_t rows_random(uint64_t *state);
float rows_uniform(uint64_t *state);
void rows_fill(uint64_t *state, float *x, size_t n, float scale);

void *rows_calloc(size_t count, size_t size);

/* Room for what these tests do: batches of `rows` rows, attention of `heads` heads. Fails the test otherwise. */
void rows_reserve(struct kernels *k, int rows, int cols, int heads, int head_dim);

/* Keys and values [rows][kv_heads][head_dim] of these runs into their pages, as they are. */
void rows_kv_write(struct kernels *k, const struct kernels_kv *kv, float *key, float *value,
                   const struct kernels_run *runs, int n_runs);

/* A run whose layers all use the first page table. */
struct kernels_run rows_run(int first_row, int n, int pos, struct kernels_pages pages);

/* Fails unless a and b have the same bits; two NaN count as the same. */
void rows_assert_bits(const char *what, const float *a, const float *b, size_t n);

/* The greatest of |a - b| / (1 + |b|) over n values, and NaN when one is NaN. */
double rows_error(const float *a, const double *b, size_t n);

/* Fails unless error <= tolerance; says both. NaN fails. */
void rows_assert_error(const char *what, double error, double tolerance);

#endif

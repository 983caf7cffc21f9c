/* reference.h - a plain forward pass in double precision, to compare engine_step() with.
 *
 * Written from the architectures' papers and the conventions of GGUF files (which heads are permuted, which norms have
 * the 1 added), one token after the other, without pages, blocks or batches. What is taken from the library: reading
 * the file, and the values of quantized weights; both have tests of their own.
 */
#ifndef CONVOD_TESTS_REFERENCE_H
#define CONVOD_TESTS_REFERENCE_H

#include "tests/engine/tiny_model.h"

struct reference;

/* Opens a file that was written from `m`. Keys and values are rounded to kv_type, as the engine's are. */
struct reference *reference_open(const struct tiny_model *m, const char *path, enum kernels_kv_type kv_type);
void reference_close(struct reference *r);

/* Where the weights are quantized, also rounds what they are multiplied with as docs/numerics.md says: steps of 128,
 * 8 bits. */
void reference_round_activations(struct reference *r);

/* Logits behind every token: out[n][n_vocab]. */
void reference_run(struct reference *r, const int32_t *tokens, int n, double *out);

/* Frequencies of a kind of layer, from its definition: out[rot / 2]; returns the factor of cos and sin. */
double reference_frequencies(const struct tiny_model *m, bool window_layer, double *out);

#endif

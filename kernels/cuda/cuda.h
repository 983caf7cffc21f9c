/* cuda.h - operations on a CUDA device that give the CPU's bits: what kernels.h documents, put into a stream.
 *
 * Each operation is a twin of the one in kernels/cpu: the same order of additions, as docs/numerics.md gives it. All
 * pointers are to memory of the device. Nothing here waits, allocates or copies to or from the host.
 *
 * Errors: 0, or -EIO when work could not be put into the stream; what goes wrong on the device comes with a later call.
 */
#ifndef CONVOD_KERNELS_CUDA_H
#define CONVOD_KERNELS_CUDA_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

/* The rows of a batch and the pages of their sequences. Row r is position pos[r] of a sequence whose page table is
 * pages[table[r] .. table[r] + count[r]), as struct kernels_pages has it (-1: dropped). */
struct cuda_rows {
    int rows;
    const int32_t *pos, *table, *count; /* [rows] */
    const int32_t *first, *end; /* [rows]: its sequence has rows [first, end) of the batch; cuda_attention alone */
    const int32_t *pages;
};

/* Weights as cuda_pack() made them, aligned to 16 bytes: one matrix, or several that lie one behind the other
 * (cuda_product). */
struct cuda_weights {
    enum kernels_type type;
    int rows, cols;
    const void *data;
};

/* Bytes of a packed matrix. 0 when cols is not a multiple of the block, a dimension is not positive, or the product
 * overflows. A multiple of 256. */
size_t cuda_weights_bytes(enum kernels_type type, int rows, int cols);

/* Packs rows [first, first + n) from rows of a file. first is a multiple of 16, n too unless the rows end there. */
int cuda_pack(cudaStream_t s, struct cuda_weights w, int first, int n, const uint8_t *file);

/* out[i][cols] = scale * w[ids[i]][:], dequantized. */
int cuda_embed(cudaStream_t s, struct cuda_weights w, const int32_t *ids, int n, float scale, float *out);

/* Bytes of `rows` rows in the form that products with quantized weights take: whole tiles of 8 rows. */
size_t cuda_quants_bytes(int rows, int cols);

/* Rounds x[n][cols] to that form; cols is a multiple of 32. */
int cuda_quantize(cudaStream_t s, const float *x, int n, int cols, void *quants);

/* Whether products with such weights can take rows of 16-bit floats: F16 and BF16, and cols a multiple of 8. */
bool cuda_takes_halves(enum kernels_type type, int cols);

/* Bytes of `rows` rows in that form, a multiple of 16. */
size_t cuda_halves_bytes(int rows, int cols);

/* Rounds x[n][cols] to the type of such weights, nearest even. For F16 a row is divided by the power of two
 * that brings its greatest magnitude to [2^14, 2^15), and the product multiplied by it. A row that has an infinity or
 * NaN is all NaN. */
int cuda_narrow(cudaStream_t s, enum kernels_type type, const float *x, int n, int cols, void *halves);

/* y[n][w.rows] = x[n][w.cols] * w^T + bias; y += with accumulate; y = cap * tanh(y / cap) with softcap. x is quantized,
 * or as floats where the weights are; with `halves` it is those, on tensor cores and with the device's own bits, which
 * depend on the row of x and the weights alone. */
struct cuda_product {
    struct cuda_weights w;
    const void *quants;
    const float *x;
    const void *halves; /* cuda_narrow()'s, or NULL */
    int n;
    const float *bias; /* [rows] or NULL */
    float *y;
    bool accumulate;
    float softcap; /* 0: none */
    /* Experts: matrix e is data + e * cuda_weights_bytes(), its bias bias + e * rows, and its are the tiles of 8 rows
     * of x and y from tiles[e] up to tiles[e + 1]. n is then what there can be at most. */
    int experts;
    const int32_t *tiles; /* [experts + 1] */
};
int cuda_multiply(cudaStream_t s, struct cuda_product p);
int cuda_multiply_halves(cudaStream_t s, struct cuda_product p); /* what it does with halves */

/* out[i][d] = x[rows[i]][d]. */
int cuda_gather(cudaStream_t s, const float *x, int d, const int32_t *rows, int n, float *out);

/* y[r][:] = x[r][:] / sqrt(mean(x[r]^2) + eps) * weight[:]; x and y [rows][d], may be the same; weight [d]. */
int cuda_rms_norm(cudaStream_t s, const float *x, int rows, int d, const float *weight, float eps, float *y);

/* table[i][rot / 2][2] = cos and sin of pos[i] * inv_freq[j], times magnitude, and times scale[i] where scale is not
 * NULL. */
int cuda_rope_table(cudaStream_t s, const int32_t *pos, int n, const double *inv_freq, int rot, double magnitude,
                    const float *scale, float *table);

/* Rotates x[n][heads][head_dim] in place by table[n][rot/2][2] (cos, sin). */
int cuda_rope(cudaStream_t s, float *x, int n, int heads, int head_dim, int rot, enum kernels_rope_kind kind,
              const float *table);

/* out[i] = act(gate[i]) * up[i], n values; out may be gate. */
int cuda_glu(cudaStream_t s, enum kernels_glu_kind kind, const float *gate, const float *up, size_t n, float *out);

/* x[i] += y[i], n values. */
int cuda_add(cudaStream_t s, float *x, const float *y, size_t n);

/* x[i] = cap * tanh(x[i] / cap), n values, cap > 0. */
int cuda_softcap(cudaStream_t s, float *x, size_t n, float cap);

/* For each of n rows: the `used` of its `experts` with the largest logits [n][experts], in order (ids [n][used]), and
 * their weights [n][used]. At most KERNELS_MAX_EXPERTS and KERNELS_MAX_EXPERTS_USED; used <= experts. */
int cuda_route(cudaStream_t s, const float *logits, int n, int experts, int used, int32_t *ids, float *weights);

/* Puts n rows of `used` experts each in order of their experts, so that each one's are whole tiles of 8 (cuda_product):
 * places[n][used] say where a row's are, sources[] which row is at a place, -1 for none, tiles[experts + 1] where the
 * experts begin. At most cuda_mixture_places() places. */
int cuda_mixture_places(int n, int used, int experts); /* a multiple of 8 */
int cuda_sort_experts(cudaStream_t s, const int32_t *ids, int n, int used, int experts, int32_t *places,
                      int32_t *sources, int32_t *tiles);

/* out[i] = x[sources[i]], zeros where that is -1, for i up to 8 * tiles[0], of n at most. */
int cuda_take_rows(cudaStream_t s, const float *x, int d, const int32_t *sources, const int32_t *tiles, int n,
                   float *out);

/* y[n][cols] += the sum over a row's experts, in order, of weights[n][used] * said[places[n][used]][cols]. */
int cuda_mix(cudaStream_t s, const float *said, const int32_t *places, const float *weights, int n, int used, int cols,
             float *y);

/* Rounds key[rows][kv_heads][head_dim] and value (same shape) to the KV type and writes them to their pages. Rows whose
 * page was dropped or lies past the table are left out. kv->pool is device memory. */
int cuda_kv_write(cudaStream_t s, struct kernels_kv kv, struct cuda_rows rows, const float *key, const float *value);

/* What kernels_ops' kv_export and kv_import do; page tables are of the host and read at once, staging is pinned and
 * read or written by the device. */
int cuda_kv_export(cudaStream_t s, const struct kernels_kv *layers, int n_layers, const struct kernels_pages *pages,
                   int first, int n, void *staging);
int cuda_kv_import(cudaStream_t s, const struct kernels_kv *layers, int n_layers, const struct kernels_pages *pages,
                   int first, int n, const void *staging);

/* The same to and from the split form (kernels.h), by way of memory of the device, which cuda_split_scratch_bytes()
 * counts: layers are taken together as far as their KV is in CUDA_SPLIT_BYTES. cuda_split_bytes() 0: not for such
 * layers. */
#define CUDA_SPLIT_BYTES ((size_t)8 << 20)
struct cuda_split_scratch {
    uint8_t *whole, *split;
};
size_t cuda_split_bytes(const struct kernels_kv *layers, int n_layers, int n);
void cuda_split_scratch_bytes(const struct kernels_kv *layers, int n_layers, int n, size_t *whole, size_t *split);
int cuda_kv_export_split(cudaStream_t s, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, struct cuda_split_scratch scratch,
                         uint8_t *split);
int cuda_kv_import_split(cudaStream_t s, const struct kernels_kv *layers, int n_layers,
                         const struct kernels_pages *pages, int first, int n, struct cuda_split_scratch scratch,
                         const uint8_t *split);

/* Causal grouped-query attention in the CPU's order: q and out [rows][heads][head_dim]; the rows' own keys and values
 * are in their pages already. `window` 0: full; `softcap` 0: none. */
struct cuda_attention {
    const float *q;
    float *out;
    int heads;
    float scale;
    int window;
    float softcap;
    const float *sinks; /* [heads] or NULL */
    struct kernels_kv kv;
    float *partial;  /* of cuda_attention: NULL, or scratch [rows][heads][most_blocks][head_dim + 2] */
    int most_blocks; /* canonical blocks of any row, counted from its first */
};
int cuda_attention_exact(cudaStream_t s, struct cuda_attention a, struct cuda_rows rows);

/* The same on tensor cores, in the device's own order, where cuda_attention_fits(): a head size of at most 256 that is
 * a multiple of 16, and at most 16 heads for a kv head. With `partial` blocks are shared out over the device, for
 * batches of few rows; the bits are the same. */
bool cuda_attention_fits(const struct kernels_kv *kv, int heads);
int cuda_attention(cudaStream_t s, struct cuda_attention a, struct cuda_rows rows);

/* A token to pick, as struct kernels_pick has it; all pointers are to memory of the device. */
struct cuda_pick {
    int row;
    const struct kernels_seen *seen;
    int n_seen;
    float repetition, presence, frequency;
    const uint32_t *mask;
    float scale; /* 1 / temperature, at most FLT_MAX; 0: the greatest */
    int top_k;
    float top_p;
    float lowest; /* ln min-p, rounded to binary32; -infinity: off */
    double random;
    bool odds;
    int n_top;
};

/* A pick's settings, without seen tokens and mask. */
struct cuda_pick cuda_pick_of(const struct kernels_pick *p);

/* Picks out[n] from logits[][vocab]; `changed` [n][vocab] is scratch. Everything is on the device. */
int cuda_pick(cudaStream_t s, const struct cuda_pick *picks, int n, const float *logits, int vocab, float *changed,
              struct kernels_picked *out);

#ifdef __cplusplus
}
#endif

#endif

/* twins.h - what the tests of kernels/cuda share: the CPU backend beside which each operation is put, and memory of the
 * device that goes when its owner does. */
#ifndef CUDA_HOST_TWINS_H
#define CUDA_HOST_TWINS_H

#include "kernels/cuda/cuda.h"
#include "tests/cuda_host/support.h"

extern "C" {
#include "kernels/cpu/rows_internal.h"
}

#include <vector>

/* The portable CPU backend, opened once, with room for what these tests use. */
struct kernels *twins_cpu(void);

/* On the CPU: keys and values of these runs, whose layers use the first page table, into their pages; and attention. */
void twins_kv_write(struct kernels *k, const struct kernels_kv *kv, float *key, float *value,
                    const struct kernels_run *runs, int n_runs);
void twins_attention(struct kernels *k, const struct kernels_attention *a, const struct kernels_run *runs, int n_runs,
                     float *out);

/* Numbers of many sizes, and now and then one that is none. */
std::vector<float> twins_numbers(size_t n, uint64_t seed, bool odd_ones);

template <typename T> struct on_device {
    T *p;
    size_t n;
    explicit on_device(const std::vector<T> &from) : p(support_upload(from.data(), from.size())), n(from.size())
    {
    }
    explicit on_device(size_t count) : p((T *)support_device(nullptr, count * sizeof(T))), n(count)
    {
    }
    on_device(const on_device &) = delete;
    ~on_device()
    {
        cudaFree(p);
    }
    std::vector<T> fetch() const
    {
        T *h = (T *)support_fetch(p, n * sizeof(T));
        std::vector<T> all(h, h + n);
        free(h);
        return all;
    }
};

#endif

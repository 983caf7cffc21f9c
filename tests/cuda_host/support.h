/* support.h - what the tests on the emulation share. */
#ifndef CUDA_HOST_SUPPORT_H
#define CUDA_HOST_SUPPORT_H

#include "kernels/cuda/device.h"

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}
/* clang-format on */

#define CHECK(call) assert_int_equal((call), cudaSuccess)

/* Orders of threads, blocks and streams that a test runs under. */
#define SEEDS 4
#define EACH_SEED                                                                                                      \
    for (unsigned seed = 0; seed < SEEDS; seed++)                                                                      \
        if (cuda_host_seed(seed), true)

/* Deterministic numbers. `state` is anything. */
uint32_t support_random(uint64_t *state);
float support_uniform(uint64_t *state); /* [-1, 1) */

/* Device memory with these contents, or unwritten where from is NULL. */
void *support_device(const void *from, size_t bytes);
template <typename T> static inline T *support_upload(const T *from, size_t count)
{
    return (T *)support_device(from, count * sizeof(T));
}

/* Waits for the device and copies from it into memory of the host, to be freed. */
void *support_fetch(const void *device, size_t bytes);

/* Fails unless a and b have the same bits; any two NaN count as the same. */
void support_assert_bits(const char *what, const float *a, const float *b, size_t n);

/* Runs fn in a process of its own and fails unless it dies with `text` in what it prints. */
void support_expect_fault(void (*fn)(void), const char *text);

/* Whether this program checks every access with AddressSanitizer, or every pair of them (races.cc). */
bool support_has_asan(void);
bool support_has_races(void);

#endif

/* cuda_host.h - an emulation of the CUDA execution model on a processor, for tests: the same .cu files, compiled as C++
 * against include/cuda_runtime.h, run here with the grid, blocks, warps, streams and events that they would have on a
 * GPU. It is made to show mistakes, not to be fast, and says nothing about speed.
 *
 * Threads of a block are fibres that run one at a time, from one point where they wait to the next (a barrier, a warp
 * operation). The order in which they run is the seed's: 0 is ascending, 1 descending, others are random and change at
 * every barrier. Blocks run one after the other, in an order of the seed's as well.
 *
 * How mistakes show. A fault prints one line that begins with "cuda_host:" and aborts.
 *   - Each shared array of each block is a heap block of its own, filled with 0xff (NaN) and guarded on both sides;
 * device memory likewise. AddressSanitizer sees every access past an end, and accesses of the host to device memory;
 * without it a write past an end of a shared array is a fault at the end of its block.
 *   - A barrier or warp operation that not all threads reach, or at which they meet with different ones, is a fault.
 *   - cp.async copies into shared memory when the thread waits for it, not before; in programs with CUDA_HOST_RACES it
 *     counts as a write from when it is asked for, too.
 *   - Work in streams is done when somebody waits for it, as late as that, and of the streams only what the awaited
 * work depends on: what nothing orders has not happened yet. With a seed above 1 some of it happens at once instead.
 *   - Pinned memory is read and written when the copy is done, not when it is asked for.
 *   - A kernel that may overlap with the one before it (programmatic serialization) runs behind it all the same; that a
 *     thread ends without griddepcontrol.wait is a fault, and in programs with CUDA_HOST_RACES also that, before it, a
 *     thread writes to device memory, or reads what a kernel of the stream wrote of which nothing says that it ended.
 *   - In programs built for it (CUDA_HOST_RACES, see races.cc) every access of a kernel is checked: two accesses of
 *     different threads to one byte, one of them a write, with no barrier between them, are a fault.
 *
 * One thread of the host at a time; calls from several take a lock.
 */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include <cuda_runtime.h>

/* Sets the order of threads, blocks and streams from now on. A program begins with the one in the environment's
 * CUDA_HOST_SEED, or 0. */
void cuda_host_seed(unsigned seed);

/* What the machine has from now on: devices, their compute capability's first number, and whether there is a driver
 * that is new enough. A program begins with one of 9. */
void cuda_host_machine(int devices, int major, bool driver);

/* The device fails from now on: whatever waits for it says cudaErrorLaunchFailure. It does too while the file exists
 * that CUDA_HOST_BREAK in the environment names. */
void cuda_host_break(bool broken);

/* What the emulated NVML (nvml.cc) says from now on. A program begins with a device of 40 degrees that says all. */
struct cuda_host_nvml {
    bool there;              /* else it does not start */
    int celsius, milliwatts; /* -1: not supported */
    int per_cent;
    bool shared_out; /* device 0 is an instance of a card, with a quarter of its memory */
};
void cuda_host_set_nvml(struct cuda_host_nvml n);

/* What the emulated cuBLASLt (cublaslt.cc) has from now on: its algorithms; only those whose rows depend on their
 * number; or it cannot be opened. A program begins with the first. */
enum cuda_host_library { CUDA_HOST_ALGORITHMS, CUDA_HOST_BY_SHAPE, CUDA_HOST_NO_LIBRARY };
void cuda_host_library(enum cuda_host_library l);
/* Products that it was asked for since the program began. */
unsigned cuda_host_library_products(void);

/* Prints "cuda_host: ", where (block and thread, when a kernel runs) and the text, then aborts. */
[[noreturn]] void cuda_host_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- what kernels/cuda/device.h calls in place of the hardware --------------------------------------------------- */

/* The calling block's array that belongs to the declaration `site`, made when its first thread comes. */
void *cuda_host_shared(const void *site, size_t bytes);
/* The launch's dynamic shared memory. */
void *cuda_host_shared_dynamic(void);

/* griddepcontrol.wait. */
void cuda_host_wait_for_earlier(void);

void cuda_host_cp_async(void *to, const void *from, int bytes, int from_bytes);
void cuda_host_cp_async_commit(void);
void cuda_host_cp_async_wait(int groups_left);

/* Warp matrix operations, with the fragments of PTX's mma and ldmatrix. Float sums: products and c are added exactly
 * enough (in double precision, k ascending) and rounded once; hardware has its own order. */
void cuda_host_mma_s8(int d[4], const unsigned a[4], const unsigned b[2], const int c[4]);         /* m16n8k32 */
void cuda_host_mma_s8_k16(int d[4], const unsigned a[2], const unsigned b[1], const int c[4]);     /* m16n8k16 */
void cuda_host_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]);   /* m16n8k16 */
void cuda_host_mma_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]);    /* m16n8k16 */
void cuda_host_mma_f16_k8(float d[4], const unsigned a[2], const unsigned b[1], const float c[4]); /* m16n8k8 */
void cuda_host_ldmatrix(unsigned *d, int count, bool transposed, const void *row);

float cuda_host_widen_f16(uint16_t bits);
uint16_t cuda_host_narrow_f16(float x); /* nearest even */

#endif

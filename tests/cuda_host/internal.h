/* internal.h - what the emulation's own files share. */
#ifndef CUDA_HOST_INTERNAL_H
#define CUDA_HOST_INTERNAL_H

#include "tests/cuda_host/cuda_host.h"

#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_HOST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_HOST_ASAN 1
#endif
#endif

#ifdef CUDA_HOST_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

/* ---- fibre.cc ---------------------------------------------------------------------------------------------------- */

/* A stack that runs functions handed to it. While it runs the caller of fibre_run stands still; fibre_pause goes back
 * there, and the next fibre_run goes on behind it. */
struct fibre;
struct fibre *fibre_new(void);
void fibre_start(struct fibre *f, void (*fn)(void *), void *arg);
bool fibre_run(struct fibre *f); /* false when its function has returned */
void fibre_pause(void);          /* from within */

/* ---- memory.cc --------------------------------------------------------------------------------------------------- */

/* Guarded, 0xff-filled memory; `what` names it in the fault that a broken guard is. */
void *guarded_new(size_t bytes);
void guarded_free(void *p, const char *what);

/* While the depth is above 0 device memory may be touched: the emulated device is at work. */
void device_enter(void);
void device_leave(void);
bool device_memory_is_pinned(const void *p);
/* Whether p lies in an allocation of cudaMalloc. */
bool device_memory_holds(const void *p, size_t bytes);

/* A generator of its own per use, so that a seed means the same whatever else runs. */
struct random_order {
    uint64_t state;
    unsigned below(unsigned n);
};
extern unsigned current_seed;

/* ---- grid.cc ----------------------------------------------------------------------------------------------------- */

struct launch {
    dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> thread;
    bool overlaps;                   /* with the kernel before it */
    std::shared_ptr<uint32_t> ended; /* launches up to this number had ended when it could begin */
};
void grid_run(const struct launch *l);
uint32_t grid_launches(void); /* so far; they are counted from 1 */
std::string grid_where(void); /* "block (x, y, z) thread (x, y, z): ", or empty outside of a kernel */

/* ---- stream.cc --------------------------------------------------------------------------------------------------- */

/* Puts work of the device into a stream. */
void stream_enqueue(cudaStream_t s, std::function<void()> run);
/* Whether a stream is being recorded, so that what cannot be recorded is refused; the recording is lost with it. */
bool stream_refuses(void);

/* ---- races.cc and its stand-in in grid.cc ------------------------------------------------------------------------ */

/* Who accesses: what orders two accesses of one launch is the block's barriers, and within a warp its __syncwarp(). */
struct moment {
    uint32_t launch, block, barriers, warp_time;
    uint16_t thread;
};
bool grid_running(void);         /* whether a kernel's thread runs */
struct moment grid_moment(void); /* of the running thread */
/* Whether it may run beside earlier kernels still, and which have ended all the same. */
bool grid_early(uint32_t *ended);

/* An access by the emulation itself on a thread's behalf (ldmatrix, cp.async). */
void cuda_host_touch(const void *p, size_t bytes, bool write);
/* Memory that is watched from now on, or not any more. */
void races_watch(const void *p, size_t bytes, bool device); /* or shared */
void races_forget(const void *p);

#endif

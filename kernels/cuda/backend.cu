/* backend.cu - opening a CUDA device: its memory, streams and events, and the table of operations.
 *
 * The runtime is linked into the program and opens the driver itself, so that the program starts where there is none
 * and says so here. A thread of the host has a current device of its own; whatever allocates or puts work into a stream
 * names it first. */
#include "kernels/cuda/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEADROOM       ((size_t)512 << 20)
#define DEVICE_VERSION 1 /* of the order in which attention and products with 16-bit weights add: raised with it */
#define LEAST_MAJOR    8 /* compute capability: cp.async, mma of int8 and bf16 */
#define POLL_NS        (20000) /* between two looks at an event that has a deadline */
#define ALIGNED(n)     (((n) + 255) & ~(size_t)255)

/* ---- errors ------------------------------------------------------------------------------------------------------ */

bool backend_fine(struct kernels *k, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && !k->error[0])
        snprintf(k->error, sizeof k->error, "%s: %s", what, cudaGetErrorString(e));
    return !k->error[0];
}

bool backend_put(struct kernels *k, int rc, const char *what)
{
    return rc == 0 ? !k->error[0]
                   : backend_fine(k, cudaGetLastError(), what) && backend_fine(k, cudaErrorLaunchFailure, what);
}

bool backend_ready(struct kernels *k)
{
    return !k->error[0] && backend_fine(k, cudaSetDevice(k->device), "choosing the device");
}

static const char *error(const struct kernels *k)
{
    return k->error[0] ? k->error : NULL;
}

static const char *notes(const struct kernels *k)
{
    return k->notes[0] ? k->notes : NULL;
}

static bool health(struct kernels *k, struct kernels_health *out)
{
    return nvml_read(k->nvml, out);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What there is no memory for is the caller's to say, not an error of the device. */
void *backend_alloc(struct kernels *k, enum kernels_place place, size_t bytes)
{
    void *p = NULL;
    if (!backend_ready(k) || bytes == 0)
        return NULL;
    cudaError_t e = place == KERNELS_PINNED ? cudaMallocHost(&p, ALIGNED(bytes)) : cudaMalloc(&p, ALIGNED(bytes));
    if (e != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (place == KERNELS_PINNED) {
        memset(p, 0, ALIGNED(bytes));
    } else {
        backend_fine(k, cudaMemsetAsync(p, 0, ALIGNED(bytes), k->loading), "clearing memory");
        backend_fine(k, cudaStreamSynchronize(k->loading), "clearing memory");
    }
    return p;
}

static void synchronize(struct kernels *k)
{
    for (int s = 0; s < STREAMS; s++)
        backend_fine(k, cudaStreamSynchronize(k->stream[s]), "waiting for the device");
}

void backend_release(struct kernels *k, enum kernels_place place, void *p, size_t bytes)
{
    (void)bytes;
    if (!p)
        return;
    cudaSetDevice(k->device);
    synchronize(k);
    if (place == KERNELS_PINNED)
        cudaFreeHost(p);
    else
        cudaFree(p);
}

static uint64_t memory_bytes(struct kernels *k, bool whole)
{
    size_t left = 0, all = 0;
    if (!backend_ready(k) || !backend_fine(k, cudaMemGetInfo(&left, &all), "asking for free memory"))
        return 0;
    /* Code is put there when it is first used, and graphs when they are made. */
    size_t others = HEADROOM < all / 8 ? HEADROOM + all / 64 : all / 8;
    return whole ? all : left > others ? left - others : 0;
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

static void copy(struct kernels *k, enum kernels_stream stream, void *to, const void *from, size_t bytes)
{
    if (backend_ready(k) && bytes > 0)
        backend_fine(k, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, k->stream[stream]), "copying");
}

static void zero(struct kernels *k, enum kernels_stream stream, void *p, size_t bytes)
{
    if (backend_ready(k) && bytes > 0)
        backend_fine(k, cudaMemsetAsync(p, 0, bytes, k->stream[stream]), "clearing memory");
}

/* An event is its stream and its number there. */
kernels_event backend_record(struct kernels *k, enum kernels_stream stream)
{
    uint64_t n = k->recorded[stream] + 1;
    if (!backend_ready(k) ||
        !backend_fine(k, cudaEventRecord(k->event[stream][n % EVENTS], k->stream[stream]), "an event"))
        return 0;
    k->recorded[stream] = n;
    return n * STREAMS + (uint64_t)stream;
}

/* The CUDA event that says that this one has passed: its own, or where that was used again the oldest still there.
 * NULL: it has passed. */
static cudaEvent_t cuda_event(const struct kernels *k, kernels_event event)
{
    uint64_t stream = event % STREAMS, n = event / STREAMS, last = k->recorded[stream];
    if (n <= k->passed[stream])
        return NULL;
    if (last - n >= EVENTS)
        n = last - EVENTS + 1;
    return k->event[stream][n % EVENTS];
}

static void after(struct kernels *k, enum kernels_stream stream, kernels_event event)
{
    cudaEvent_t e = cuda_event(k, event);
    if (backend_ready(k) && e)
        backend_fine(k, cudaStreamWaitEvent(k->stream[stream], e, 0), "waiting for an event");
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int backend_wait(struct kernels *k, kernels_event event, int timeout_ms)
{
    cudaEvent_t e = cuda_event(k, event);
    if (!backend_ready(k))
        return -EIO;
    if (!e)
        return 0;
    if (timeout_ms < 0) {
        if (!backend_fine(k, cudaEventSynchronize(e), "the device"))
            return -EIO;
    } else {
        int64_t end = now_ms() + timeout_ms;
        cudaError_t said;
        while ((said = cudaEventQuery(e)) == cudaErrorNotReady) {
            cudaGetLastError(); /* where that stays otherwise, as if it were one */
            if (now_ms() >= end)
                return -ETIMEDOUT;
            const struct timespec pause = {0, POLL_NS};
            nanosleep(&pause, NULL);
        }
        if (!backend_fine(k, said, "the device"))
            return -EIO;
    }
    uint64_t stream = event % STREAMS, n = event / STREAMS;
    k->passed[stream] = n > k->passed[stream] ? n : k->passed[stream];
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void close(struct kernels *k)
{
    if (!k)
        return;
    nvml_close(k->nvml);
    library_close(k->library);
    cudaSetDevice(k->device);
    for (int s = 0; s < STREAMS; s++)
        if (k->stream[s])
            cudaStreamSynchronize(k->stream[s]);
    backend_batch_close(k);
    backend_release(k, KERNELS_DEVICE, k->scratch_memory, k->scratch_bytes);
    backend_release(k, KERNELS_DEVICE, k->raw, k->raw_bytes);
    backend_release_split(k);
    for (int s = 0; s < STREAMS; s++) {
        for (int i = 0; i < EVENTS; i++)
            if (k->event[s][i])
                cudaEventDestroy(k->event[s][i]);
        if (k->stream[s])
            cudaStreamDestroy(k->stream[s]);
    }
    for (int p = 0; p < KERNELS_PLACES; p++) {
        if (k->left[p])
            cudaEventDestroy(k->left[p]);
        if (k->there[p])
            cudaEventDestroy(k->there[p]);
    }
    if (k->bringing)
        cudaStreamDestroy(k->bringing);
    if (k->loading)
        cudaStreamDestroy(k->loading);
    free(k);
}

static struct kernels_ops table(void)
{
    struct kernels_ops t = {};
    t.alloc = backend_alloc;
    t.release = backend_release;
    t.memory_bytes = memory_bytes;
    t.reserve_bytes = backend_reserve_bytes;
    t.reserve = backend_reserve;
    t.matrix_bytes = backend_matrix_bytes;
    t.pack = backend_pack;
    t.upload = backend_upload;
    t.bring = backend_bring;
    t.brought = backend_brought;
    t.copy = copy;
    t.zero = zero;
    t.record = backend_record;
    t.after = after;
    t.wait = backend_wait;
    t.error = error;
    t.health = health;
    t.notes = notes;
    t.begin = backend_begin;
    t.end = backend_end;
    t.close = close;
    backend_step_ops(&t);
    return t;
}

/* Says in err why this device is none for us; 0 when it is one. */
static int check_device(int device, char *err, size_t err_size)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0) {
        cudaGetLastError();
        snprintf(err, err_size, "backend cuda: there is no GPU that can be used: %s%s",
                 e == cudaErrorInsufficientDriver ? "NVIDIA's driver is missing or too old: " : "",
                 e == cudaSuccess ? "the driver lists none" : cudaGetErrorString(e));
        return -ENODEV;
    }
    if (device < 0 || device >= count) {
        snprintf(err, err_size, "backend cuda: there is no device %d; there are %d, counted from 0", device, count);
        return -ENODEV;
    }
    struct cudaDeviceProp p;
    if ((e = cudaGetDeviceProperties(&p, device)) != cudaSuccess) {
        snprintf(err, err_size, "backend cuda: device %d: %s", device, cudaGetErrorString(e));
        return -ENODEV;
    }
    if (p.major < LEAST_MAJOR) {
        snprintf(err, err_size, "backend cuda: device %d (%s) has compute capability %d.%d; %d.0 is the least", device,
                 p.name, p.major, p.minor, LEAST_MAJOR);
        return -ENOTSUP;
    }
    return 0;
}

/* Programmatic dependent launch: chips from 9.0 on, in graphs too with drivers from 12.3 on. */
static bool kernels_may_overlap(int major)
{
    int driver = 0;
    return major >= 9 && cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030;
}

static bool open_streams(struct kernels *k)
{
    for (int s = 0; s < STREAMS; s++) {
        if (!backend_fine(k, cudaStreamCreateWithFlags(&k->stream[s], cudaStreamNonBlocking), "a stream"))
            return false;
        for (int i = 0; i < EVENTS; i++)
            if (!backend_fine(k, cudaEventCreateWithFlags(&k->event[s][i], cudaEventDisableTiming), "an event"))
                return false;
    }
    for (int p = 0; p < KERNELS_PLACES; p++)
        if (!backend_fine(k, cudaEventCreateWithFlags(&k->left[p], cudaEventDisableTiming), "an event") ||
            !backend_fine(k, cudaEventCreateWithFlags(&k->there[p], cudaEventDisableTiming), "an event"))
            return false;
    return backend_fine(k, cudaStreamCreateWithFlags(&k->bringing, cudaStreamNonBlocking), "a stream") &&
           backend_fine(k, cudaStreamCreateWithFlags(&k->loading, cudaStreamNonBlocking), "a stream");
}

int kernels_cuda_open(const struct kernels_opts *opts, struct kernels **out, char *err, size_t err_size)
{
    static struct kernels_ops ops;
    ops = table();
    char none[1];
    if (err_size == 0) {
        err = none;
        err_size = sizeof none;
    }
    err[0] = '\0';
    int device = opts->device, rc = check_device(device, err, err_size);
    if (rc)
        return rc;
    struct kernels *k = (struct kernels *)calloc(1, sizeof *k);
    if (!k)
        return -ENOMEM;
    k->head.ops = &ops;
    k->head.name = DEVICE_NAME;
    k->exact = opts->numerics && !strcmp(opts->numerics, "exact");
    k->device = device;
    struct cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, device) != cudaSuccess ||
        snprintf(k->numerics, sizeof k->numerics, "cuda device %d sm_%d%d", DEVICE_VERSION, p.major, p.minor) >=
            (int)sizeof k->numerics) {
        snprintf(err, err_size, "backend cuda: device %d has a compute capability that cannot be named", device);
        close(k);
        return -ENOTSUP;
    }
    launch_overlaps = kernels_may_overlap(p.major);
    k->head.numerics = k->exact ? "cpu" : k->numerics; /* the same bits */
    if (!backend_ready(k) || !open_streams(k)) {
        snprintf(err, err_size, "backend cuda: %s", k->error);
        close(k);
        return -ENODEV;
    }
    char address[32];
    if (cudaDeviceGetPCIBusId(address, sizeof address, device) == cudaSuccess)
        k->nvml = nvml_open(NVML_LIBRARY, address, p.uuid.bytes);
    *out = k;
    return 0;
}

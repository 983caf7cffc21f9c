/* stream.cc - streams, events, graphs and the runtime's calls that put work into them.
 *
 * Every piece of work is an `op` that knows what it must follow: the one before it in its stream, and the events its
 * stream was told to wait for. Nothing else orders ops, and an op runs when somebody waits for it or for one behind it.
 */
#include "tests/cuda_host/internal.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <unistd.h>
#include <unordered_map>

struct op {
    std::function<void()> run; /* empty for events */
    std::vector<std::shared_ptr<struct op>> after;
    bool done = false;
    double when = 0; /* seconds, once done */
};
typedef std::shared_ptr<struct op> op_ref;

/* Work recorded from a stream: node i may begin when all of after[i] are done. */
struct cuda_host_graph {
    struct node {
        std::function<void()> run;
        std::vector<size_t> after;
    };
    std::vector<struct node> nodes;
    bool relaxed = false, lost = false; /* while it is recorded */
};

struct cuda_host_stream {
    op_ref last = nullptr;
    bool last_is_kernel = false;                                     /* the last thing that was put into it */
    std::shared_ptr<uint32_t> ended = std::make_shared<uint32_t>(0); /* of its chain of kernels: see struct launch */
    bool with_default = true;                                        /* takes turns with the default stream */
    cuda_host_graph *capture = nullptr;
    bool origin = false;
    std::vector<size_t> captured_after = {}; /* nodes that the next one follows */
};

struct cuda_host_event {
    op_ref op;
    cuda_host_graph *capture = nullptr;
    std::vector<size_t> captured_after;
};

static std::recursive_mutex mutex;
typedef std::lock_guard<std::recursive_mutex> locked;

static struct cuda_host_stream default_stream;
static std::vector<struct cuda_host_stream *> streams = {&default_stream};
static std::unordered_map<const void *, int> shared_limits;
static struct random_order random_order = {1};
static cudaError_t last_error;

static cudaError_t failed(cudaError_t e)
{
    if (e)
        last_error = e;
    return e;
}

static double now(void)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Runs what `wanted` follows, then itself. */
static void finish(const op_ref &wanted)
{
    std::vector<op_ref> stack;
    if (wanted && !wanted->done)
        stack.push_back(wanted);
    while (!stack.empty()) {
        op_ref o = stack.back();
        size_t depth = stack.size();
        for (auto &a : o->after)
            if (!a->done)
                stack.push_back(a);
        if (stack.size() > depth)
            continue;
        stack.pop_back();
        if (o->done)
            continue;
        if (o->run) {
            device_enter();
            o->run();
            device_leave();
        }
        o->done = true;
        o->when = now();
        o->after.clear();
        o->run = nullptr;
    }
}

/* The oldest undone op of a stream whose predecessors are done; NULL when all is done. */
static op_ref ready_op(struct cuda_host_stream *s)
{
    op_ref o = s->last;
    if (!o || o->done)
        return nullptr;
    for (;;) {
        std::vector<op_ref> undone;
        for (auto &a : o->after)
            if (!a->done)
                undone.push_back(a);
        if (undone.empty())
            return o;
        o = undone[random_order.below((unsigned)undone.size())];
    }
}

static void finish_all(void)
{
    for (;;) {
        std::vector<op_ref> ready;
        for (auto s : streams)
            if (op_ref o = ready_op(s))
                ready.push_back(o);
        if (ready.empty())
            return;
        size_t pick = current_seed == 0   ? 0
                      : current_seed == 1 ? ready.size() - 1
                                          : random_order.below((unsigned)ready.size());
        finish(ready[pick]);
    }
}

static cudaError_t enqueue(struct cuda_host_stream *s, std::function<void()> run)
{
    s = s ? s : &default_stream;
    s->last_is_kernel = false;
    if (s->capture) {
        s->capture->nodes.push_back({std::move(run), s->captured_after});
        s->captured_after = {s->capture->nodes.size() - 1};
        return cudaSuccess;
    }
    op_ref o = std::make_shared<struct op>();
    o->run = std::move(run);
    if (s->last && !s->last->done)
        o->after.push_back(s->last);
    if (s->with_default)
        for (auto other : streams)
            if ((s == &default_stream || other == &default_stream) && other != s && other->with_default &&
                other->last && !other->last->done)
                o->after.push_back(other->last);
    s->last = o;
    if (current_seed > 1)
        while (random_order.below(2)) {
            op_ref ready = ready_op(streams[random_order.below((unsigned)streams.size())]);
            if (ready)
                finish(ready);
        }
    return cudaSuccess;
}

bool stream_refuses(void)
{
    locked lock(mutex);
    bool refused = false;
    for (auto s : streams)
        if (s->capture && !s->capture->relaxed)
            refused = s->capture->lost = true;
    if (refused)
        failed(cudaErrorStreamCaptureUnsupported);
    return refused;
}

void stream_enqueue(cudaStream_t s, std::function<void()> run)
{
    locked lock(mutex);
    enqueue(s, std::move(run));
}

/* ---- errors and the device --------------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
        return "invalid resource handle";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
        return "capture was not ended in the same stream as it began, or a forked stream was not joined";
    }
    return "unrecognized error code";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

static int devices = 1, capability = 9;
static bool has_driver = true, made_to_fail;

void cuda_host_machine(int in_devices, int major, bool driver)
{
    devices = in_devices;
    capability = major;
    has_driver = driver;
}

void cuda_host_break(bool broken)
{
    made_to_fail = broken;
}

/* Also once a file is there that the environment names: for programs that are tested from outside. */
static bool is_broken(void)
{
    static const char *file = getenv("CUDA_HOST_BREAK");
    return made_to_fail || (file && access(file, F_OK) == 0);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    if (!has_driver)
        return failed(cudaErrorInsufficientDriver);
    *count = devices;
    return devices ? cudaSuccess : failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    return failed(device < 0 || device >= devices ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= devices)
        return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof(*p));
    strcpy(p->name, "cuda_host");
    for (int i = 0; i < 16; i++)
        p->uuid.bytes[i] = (char)(0xa0 + 3 * i + device);
    p->totalGlobalMem = (size_t)1 << 30;
    p->sharedMemPerBlockOptin = 232448;
    p->major = capability;
    p->multiProcessorCount = 2;
    p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *address, int size, int device)
{
    snprintf(address, (size_t)size, "0000:%02x:00.0", (unsigned)device + 1);
    return failed(device < 0 || device >= devices ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr, int device)
{
    *value = 1;
    return failed(device ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    locked lock(mutex);
    if (stream_refuses())
        return cudaErrorStreamCaptureUnsupported;
    for (auto s : streams)
        if (s->capture)
            return failed(cudaErrorStreamCaptureUnsupported);
    finish_all();
    return cudaSuccess;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static bool on_host_pages(const void *p)
{
    return !device_memory_holds(p, 1) && !device_memory_is_pinned(p);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t s)
{
    locked lock(mutex);
    bool from_pages = on_host_pages(from), to_pages = on_host_pages(to);
    if (s && s->capture && (from_pages || to_pages))
        return failed(cudaErrorStreamCaptureUnsupported);
    if (from_pages && !to_pages) {
        /* Memory that is not pinned is read before the call returns; when it arrives is another matter. */
        auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
        return enqueue(s, [=] { memcpy(to, staged->data(), bytes); });
    }
    enqueue(s, [=] { memcpy(to, from, bytes); });
    if (to_pages)
        finish((s ? s : &default_stream)->last);
    return cudaSuccess;
}

/* Waits, except that a copy from memory that is not pinned may arrive later: only the default stream is sure to see it.
 */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    locked lock(mutex);
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    if (!e && !on_host_pages(from))
        finish(default_stream.last);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    locked lock(mutex);
    return enqueue(s, [=] { memset(p, value, bytes); });
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

cudaError_t cuda_host_function_shared(const void *kernel, int bytes)
{
    locked lock(mutex);
    if (bytes < 0 || bytes > 232448)
        return failed(cudaErrorInvalidValue);
    shared_limits[kernel] = bytes;
    return cudaSuccess;
}

cudaError_t cuda_host_launch(const cudaLaunchConfig_t *c, const void *kernel, std::function<void()> thread)
{
    locked lock(mutex);
    dim3 g = c->gridDim, b = c->blockDim;
    auto limit = shared_limits.find(kernel);
    if (!g.x || !g.y || !g.z || g.y > 65535 || g.z > 65535 || !b.x || !b.y || !b.z || b.x > 1024 || b.y > 1024 ||
        b.z > 64 || b.x * b.y * b.z > 1024 ||
        c->dynamicSmemBytes > (limit == shared_limits.end() ? 49152 : (size_t)limit->second))
        return failed(cudaErrorInvalidValue);
    struct launch l = {g, b, c->dynamicSmemBytes, std::move(thread), false, {}};
    for (unsigned i = 0; i < c->numAttrs; i++)
        l.overlaps |= c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                      c->attrs[i].val.programmaticStreamSerializationAllowed;
    struct cuda_host_stream *s = c->stream ? c->stream : &default_stream;
    /* Kernels that overlap are a chain, none of which has ended for sure until one waits. What is no kernel, the
     * beginning of a graph, and a stream that is empty each begin another. */
    bool overlaps = l.overlaps && s->last_is_kernel && (s->capture ? !s->captured_after.empty() : !s->last->done);
    l.ended = s->ended;
    cudaError_t e = enqueue(s, [l, overlaps] {
        if (!overlaps)
            *l.ended = grid_launches();
        grid_run(&l);
    });
    s->last_is_kernel = true;
    return e;
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    locked lock(mutex);
    *s = new cuda_host_stream();
    (*s)->with_default = !(flags & cudaStreamNonBlocking);
    streams.push_back(*s);
    return cudaSuccess;
}

/* Work that is still in it is done all the same. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    locked lock(mutex);
    finish(s->last);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    locked lock(mutex);
    s = s ? s : &default_stream;
    if (s->capture) {
        s->capture->lost = true;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    finish(s->last);
    return failed(is_broken() ? cudaErrorLaunchFailure : cudaSuccess);
}

/* Somebody who asks again and again must get there in the end: each question does a piece of work. */
static cudaError_t query(const op_ref &wanted)
{
    if (stream_refuses())
        return cudaErrorStreamCaptureUnsupported;
    if (is_broken())
        return failed(cudaErrorLaunchFailure);
    if (!wanted || wanted->done)
        return cudaSuccess;
    cuda_host_stream s;
    s.last = wanted;
    finish(ready_op(&s));
    return wanted->done ? cudaSuccess : failed(cudaErrorNotReady); /* as on a device, where it stays to be asked for */
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    locked lock(mutex);
    return query((s ? s : &default_stream)->last);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    locked lock(mutex);
    s = s ? s : &default_stream;
    if (e->capture) {
        if (s->capture && s->capture != e->capture)
            return failed(cudaErrorStreamCaptureUnsupported);
        s->capture = e->capture;
        s->captured_after.insert(s->captured_after.end(), e->captured_after.begin(), e->captured_after.end());
        return cudaSuccess;
    }
    if (s->capture)
        return failed(cudaErrorStreamCaptureUnsupported);
    if (!e->op || e->op->done)
        return cudaSuccess;
    op_ref mine = s->last;
    s->last = std::make_shared<struct op>();
    s->last->after = {e->op};
    if (mine && !mine->done)
        s->last->after.push_back(mine);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new cuda_host_event();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    locked lock(mutex);
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    locked lock(mutex);
    s = s ? s : &default_stream;
    e->capture = s->capture;
    e->captured_after = s->captured_after;
    if (s->capture)
        return cudaSuccess;
    bool last_is_kernel = s->last_is_kernel;
    enqueue(s, nullptr);
    s->last_is_kernel = last_is_kernel;
    e->op = s->last;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    locked lock(mutex);
    if (stream_refuses())
        return cudaErrorStreamCaptureUnsupported;
    finish(e->op);
    return failed(is_broken() ? cudaErrorLaunchFailure : cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    locked lock(mutex);
    return query(e->op);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    locked lock(mutex);
    if (!from->op || !to->op)
        return failed(cudaErrorInvalidResourceHandle);
    if (!from->op->done || !to->op->done)
        return failed(cudaErrorNotReady);
    *ms = (float)((to->op->when - from->op->when) * 1e3);
    return cudaSuccess;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    locked lock(mutex);
    if (!s || s->capture)
        return failed(cudaErrorStreamCaptureUnsupported);
    s->capture = new cuda_host_graph();
    s->capture->relaxed = mode == cudaStreamCaptureModeRelaxed;
    s->origin = true;
    s->captured_after.clear();
    return cudaSuccess;
}

/* Whether every node comes before one of `ends`. */
static bool all_before(const cuda_host_graph *g, const std::vector<size_t> &ends)
{
    std::vector<bool> seen(g->nodes.size());
    for (size_t e : ends)
        seen[e] = true;
    for (size_t i = g->nodes.size(); i-- > 0;)
        if (seen[i])
            for (size_t a : g->nodes[i].after)
                seen[a] = true;
    return std::find(seen.begin(), seen.end(), false) == seen.end();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    locked lock(mutex);
    *graph = nullptr;
    cuda_host_graph *g = s ? s->capture : nullptr;
    if (!g || !s->origin)
        return failed(g ? cudaErrorStreamCaptureUnjoined : cudaErrorInvalidValue);
    bool joined = all_before(g, s->captured_after);
    s->origin = false;
    for (auto other : streams)
        if (other->capture == g) {
            other->capture = nullptr;
            other->captured_after.clear();
        }
    if (!joined || g->lost) {
        cudaError_t e = g->lost ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
        delete g;
        return failed(e);
    }
    *graph = g;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new cuda_host_graph(*graph);
    return cudaSuccess;
}

/* Nodes run in any order that respects what each follows; with seed 0 the order in which they were recorded. */
static void run_graph(const cuda_host_graph *g)
{
    std::vector<bool> done(g->nodes.size());
    for (size_t left = g->nodes.size(); left > 0; left--) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < g->nodes.size(); i++)
            if (!done[i] && std::all_of(g->nodes[i].after.begin(), g->nodes[i].after.end(),
                                        [&](size_t a) { return (bool)done[a]; }))
                ready.push_back(i);
        size_t pick = current_seed == 0   ? 0
                      : current_seed == 1 ? ready.size() - 1
                                          : random_order.below((unsigned)ready.size());
        done[ready[pick]] = true;
        if (g->nodes[ready[pick]].run)
            g->nodes[ready[pick]].run();
    }
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    locked lock(mutex);
    auto kept = std::make_shared<cuda_host_graph>(*exec);
    return enqueue(s, [kept] { run_graph(kept.get()); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* memory.cc - guarded memory, and the device's and pinned allocations.
 *
 * Device memory is ordinary memory that the host must not touch. AddressSanitizer is told that it is poisoned except
 * while the emulated device is at work. */
#include "tests/cuda_host/internal.h"

#include <map>

#define GUARD 64 /* bytes on each side, and the alignment of what is between */
#define MARK  0xa5

struct head {
    size_t bytes;
};

void *guarded_new(size_t bytes)
{
    size_t whole = (bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    char *raw = (char *)aligned_alloc(GUARD, whole);
    if (!raw)
        return nullptr;
    memset(raw, MARK, whole);
    memset(raw + GUARD, 0xff, bytes);
    ((struct head *)(void *)raw)->bytes = bytes;
    ASAN_POISON_MEMORY_REGION(raw, GUARD);
    ASAN_POISON_MEMORY_REGION(raw + GUARD + bytes, whole - GUARD - bytes);
    return raw + GUARD;
}

void guarded_free(void *p, const char *what)
{
    unsigned char *raw = (unsigned char *)p - GUARD;
    ASAN_UNPOISON_MEMORY_REGION(raw, GUARD);
    size_t bytes = ((struct head *)(void *)raw)->bytes;
    size_t end = (bytes + GUARD - 1) / GUARD * GUARD + 2 * GUARD;
    ASAN_UNPOISON_MEMORY_REGION(raw, end);
    for (size_t i = sizeof(struct head); i < end; i++) {
        if (i == GUARD)
            i += bytes;
        if (raw[i] != MARK)
            cuda_host_fault("%s of %zu bytes was written at byte %td", what, bytes, (ptrdiff_t)i - GUARD);
    }
    free(raw);
}

/* ---- device and pinned memory ------------------------------------------------------------------------------------ */

struct area {
    size_t bytes;
    bool pinned;
};
static std::map<const char *, struct area> areas;
static int depth;

static const std::pair<const char *const, struct area> *area_of(const void *p)
{
    auto at = areas.upper_bound((const char *)p);
    if (at == areas.begin())
        return nullptr;
    --at;
    return (const char *)p < at->first + at->second.bytes ? &*at : nullptr;
}

bool device_memory_is_pinned(const void *p)
{
    auto a = area_of(p);
    return a && a->second.pinned;
}

bool device_memory_holds(const void *p, size_t bytes)
{
    auto a = area_of(p);
    return a && !a->second.pinned && (size_t)((const char *)p - a->first) + bytes <= a->second.bytes;
}

static void poison_all(bool poison)
{
    for (auto &a : areas)
        if (!a.second.pinned) {
            if (poison)
                ASAN_POISON_MEMORY_REGION(a.first, a.second.bytes);
            else
                ASAN_UNPOISON_MEMORY_REGION(a.first, a.second.bytes);
        }
}

void device_enter(void)
{
    if (depth++ == 0)
        poison_all(false);
}

void device_leave(void)
{
    if (--depth == 0)
        poison_all(true);
}

/* Of the device there is so much as cudaMemGetInfo() says. */
static cudaError_t area_new(void **p, size_t bytes, bool pinned)
{
    size_t left, all;
    if (stream_refuses())
        return cudaErrorStreamCaptureUnsupported;
    cudaMemGetInfo(&left, &all);
    if (!pinned && bytes > left)
        return cudaErrorMemoryAllocation;
    *p = bytes ? guarded_new(bytes) : nullptr;
    if (!*p)
        return bytes ? cudaErrorMemoryAllocation : cudaSuccess;
    areas[(const char *)*p] = {bytes, pinned};
    if (!pinned) {
        races_watch(*p, bytes, true);
        if (!depth)
            ASAN_POISON_MEMORY_REGION(*p, bytes);
    }
    return cudaSuccess;
}

/* Freeing waits for the device, as cudaFree does. */
static cudaError_t area_free(void *p, bool pinned)
{
    if (cudaDeviceSynchronize())
        return cudaErrorStreamCaptureUnsupported;
    if (!p)
        return cudaSuccess;
    auto at = areas.find((const char *)p);
    if (at == areas.end() || at->second.pinned != pinned)
        return cudaErrorInvalidValue;
    areas.erase(at);
    races_forget(p);
    guarded_free(p, pinned ? "pinned memory" : "device memory");
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return area_new(p, bytes, false);
}

cudaError_t cudaFree(void *p)
{
    return area_free(p, false);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return area_new(p, bytes, true);
}

cudaError_t cudaFreeHost(void *p)
{
    return area_free(p, true);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    size_t used = 0;
    for (auto &a : areas)
        used += a.second.pinned ? 0 : a.second.bytes;
    *total = (size_t)1 << 30;
    *free_bytes = used < *total ? *total - used : 0;
    return cudaSuccess;
}

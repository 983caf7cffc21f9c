/* races.cc - checks every access of a kernel to shared and device memory against those before it: of two accesses to
 * one byte by different threads of a launch, one of them a write, something must lie between that orders them.
 *
 * The compiler calls a function at every access of a file built with -fsanitize=thread; here are these functions, in
 * place of ThreadSanitizer's. What orders two accesses is a barrier of their block, or __syncwarp() within a warp. Time
 * within a warp is counted as a Lamport clock, which is exact where the whole warp takes part and lenient where only
 * some lanes do. Accesses of different blocks are never ordered; atomic operations are not looked at. Orders between
 * launches are the streams' affair (stream.cc). */
#include "tests/cuda_host/internal.h"

#include <map>

/* The last write and the last reads of a byte. */
struct byte_history {
    struct moment write, read;
    bool written, been_read, read_by_warp, read_by_many; /* reads: by several lanes of a warp, by several warps */
};

struct watched {
    size_t bytes;
    const char *what;
    bool device; /* not shared */
    struct byte_history *history;
};
static std::map<const char *, struct watched> all_watched;

void races_watch(const void *p, size_t bytes, bool device)
{
    auto *h = (struct byte_history *)calloc(bytes ? bytes : 1, sizeof(struct byte_history));
    if (!h)
        cuda_host_fault("no memory to watch %zu bytes", bytes);
    all_watched[(const char *)p] = {bytes, device ? "device memory" : "shared memory", device, h};
}

void races_forget(const void *p)
{
    auto at = all_watched.find((const char *)p);
    if (at == all_watched.end())
        return;
    free(at->second.history);
    all_watched.erase(at);
}

static bool same_place(const struct moment *a, const struct moment *b)
{
    return a->launch == b->launch && a->block == b->block;
}

/* Whether `before` is ordered before `now`, an access of another thread or warp. */
static bool ordered(const struct moment *before, const struct moment *now, bool of_warp)
{
    if (before->launch != now->launch)
        return true;
    if (before->block != now->block)
        return false;
    if (before->barriers < now->barriers || (!of_warp && before->thread == now->thread))
        return true;
    return before->thread / 32 == now->thread / 32 && before->warp_time < now->warp_time;
}

[[noreturn]] static void race(const struct watched *w, size_t at, const char *mine, const char *theirs,
                              const struct moment *other)
{
    cuda_host_fault(
        "%s byte %zu of a %s of %zu bytes, which thread %u of block %u %s with nothing between that orders them", mine,
        at, w->what, w->bytes, other->thread, other->block, theirs);
}

/* Before a thread has waited for earlier kernels. */
static void check_early(const struct watched *w, size_t at, const struct moment *now, bool write)
{
    const struct byte_history *h = &w->history[at];
    uint32_t ended;
    if (!w->device || !grid_early(&ended))
        return;
    if (write)
        cuda_host_fault("writes byte %zu of %s of %zu bytes before it has waited for earlier kernels", at, w->what,
                        w->bytes);
    if (h->written && h->write.launch > ended && h->write.launch != now->launch)
        cuda_host_fault("reads byte %zu of %s of %zu bytes, which an earlier kernel wrote, before it has waited for "
                        "that one",
                        at, w->what, w->bytes);
}

static void access(const struct watched *w, size_t at, const struct moment *now, bool write)
{
    struct byte_history *h = &w->history[at];
    check_early(w, at, now, write);
    if (h->written && !ordered(&h->write, now, false))
        race(w, at, write ? "writes" : "reads", "wrote", &h->write);
    if (write) {
        if (h->been_read && h->read.launch == now->launch &&
            (h->read_by_many ? h->read.barriers >= now->barriers || h->read.block != now->block
                             : !ordered(&h->read, now, h->read_by_warp)))
            race(w, at, "writes", "read", &h->read);
        h->write = *now;
        h->written = true;
        h->been_read = h->read_by_warp = h->read_by_many = false;
        return;
    }
    if (h->been_read && h->read.launch == now->launch &&
        !(same_place(&h->read, now) && h->read.barriers < now->barriers)) {
        if (!same_place(&h->read, now) || h->read.thread / 32 != now->thread / 32)
            h->read_by_many = true;
        else if (h->read.thread != now->thread)
            h->read_by_warp = true;
        if (same_place(&h->read, now) && h->read.warp_time > now->warp_time)
            return; /* the later time is the one that a write must follow */
    } else {
        h->read_by_warp = h->read_by_many = false;
    }
    h->read = *now;
    h->been_read = true;
}

void cuda_host_touch(const void *p, size_t bytes, bool write)
{
    if (!grid_running() || !bytes)
        return;
    auto at = all_watched.upper_bound((const char *)p);
    if (at == all_watched.begin())
        return;
    --at;
    size_t offset = (size_t)((const char *)p - at->first);
    if (offset >= at->second.bytes)
        return;
    if (offset + bytes > at->second.bytes)
        cuda_host_fault("%s past the end of %s of %zu bytes", write ? "writes" : "reads", at->second.what,
                        at->second.bytes);
    struct moment now = grid_moment();
    for (size_t i = 0; i < bytes; i++)
        access(&at->second, offset + i, &now, write);
}

/* For the tests: that this file is there. */
bool support_has_races(void);
bool support_has_races(void)
{
    return true;
}

/* ---- what the compiler calls ------------------------------------------------------------------------------------- */

#define ACCESS(name, bytes, write)                                                                                     \
    extern "C" void __tsan_##name(void *p)                                                                             \
    {                                                                                                                  \
        cuda_host_touch(p, bytes, write);                                                                              \
    }
#define ACCESSES(bytes)                                                                                                \
    ACCESS(read##bytes, bytes, false)                                                                                  \
    ACCESS(write##bytes, bytes, true)                                                                                  \
    ACCESS(unaligned_read##bytes, bytes, false)                                                                        \
    ACCESS(unaligned_write##bytes, bytes, true)                                                                        \
    ACCESS(volatile_read##bytes, bytes, false)                                                                         \
    ACCESS(volatile_write##bytes, bytes, true)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
ACCESS(vptr_read, 8, false)

extern "C" void __tsan_vptr_update(void **p, void *)
{
    cuda_host_touch(p, 8, true);
}
extern "C" void __tsan_read_range(void *p, unsigned long bytes)
{
    cuda_host_touch(p, bytes, false);
}
extern "C" void __tsan_write_range(void *p, unsigned long bytes)
{
    cuda_host_touch(p, bytes, true);
}
extern "C" void __tsan_init(void)
{
}
extern "C" void __tsan_func_entry(void *)
{
}
extern "C" void __tsan_func_exit(void)
{
}

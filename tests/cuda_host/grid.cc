/* grid.cc - runs a launch: its blocks one after the other, a block's threads as fibres, and what threads wait for each
 * other with: barriers and warp operations. Shared memory and cp.async are here too, since they live as long as a block
 * or a thread. cuda_host.h says which mistakes show and how. */
#include "tests/cuda_host/internal.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>

#define MAX_THREADS 1024

enum state { READY, AT_BARRIER, IN_WARP, ENDED };

/* One operation of lanes `mask`, which meet here; two buffers, so that the next one can begin while slow lanes still
 * read. */
struct meeting {
    unsigned mask, arrived, turn;
    enum cuda_host_warp_op op;
    unsigned unread[2]; /* lanes that have not gone on since a buffer was filled */
    struct cuda_host_lanes lanes[2];
};

struct pending_copy {
    void *to;
    const void *from;
    int bytes, from_bytes;
};

struct warp {
    struct meeting meeting[32]; /* by the lowest lane of the mask: masks that differ must not overlap */
};

struct thread {
    uint3 at;
    struct fibre *fibre;
    int number; /* in the block */
    enum state state;
    const char *file; /* of the barrier it waits at */
    int line;
    uint32_t warp_time;
    bool early;                                           /* has not waited for earlier kernels yet */
    std::vector<std::vector<struct pending_copy>> groups; /* committed, oldest first */
    std::vector<struct pending_copy> open;
};

struct shared_array {
    const void *site;
    void *p;
    size_t bytes;
};

struct block {
    const struct launch *launch;
    std::vector<struct thread> threads;
    std::vector<std::unique_ptr<struct warp>> warps;
    std::vector<struct shared_array> shared;
    uint32_t number, barriers;
    unsigned at_barrier;
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned current_seed = getenv("CUDA_HOST_SEED") ? (unsigned)atoi(getenv("CUDA_HOST_SEED")) : 0;
static struct block *block;
static struct thread *self;
static uint32_t launches;
static const char dynamic_site = 0;

void cuda_host_seed(unsigned seed)
{
    current_seed = seed;
}

unsigned random_order::below(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % n);
}

/* 0: ascending, 1: descending, else shuffled. */
static void put_in_order(std::vector<unsigned> &order, unsigned seed, struct random_order *random)
{
    for (unsigned i = 0; i < order.size(); i++)
        order[i] = seed == 1 ? (unsigned)order.size() - 1 - i : i;
    if (seed > 1)
        for (unsigned i = (unsigned)order.size(); i > 1; i--)
            std::swap(order[i - 1], order[random->below(i)]);
}

std::string grid_where(void)
{
    if (!self)
        return "";
    char text[160];
    const uint3 &b = blockIdx, &t = self->at;
    snprintf(text, sizeof(text), "block (%u, %u, %u) thread (%u, %u, %u): ", b.x, b.y, b.z, t.x, t.y, t.z);
    return text;
}

void cuda_host_fault(const char *format, ...)
{
    fprintf(stderr, "cuda_host: %s", grid_where().c_str());
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

bool grid_running(void)
{
    return self != nullptr;
}

struct moment grid_moment(void)
{
    return {launches, block->number, block->barriers, self->warp_time, (uint16_t)self->number};
}

uint32_t grid_launches(void)
{
    return launches;
}

bool grid_early(uint32_t *ended)
{
    *ended = self->early ? *block->launch->ended : launches;
    return self->early;
}

void cuda_host_wait_for_earlier(void)
{
    self->early = false;
}

/* Programs without races.cc watch nothing. */
__attribute__((weak)) void cuda_host_touch(const void *, size_t, bool)
{
}
__attribute__((weak)) void races_watch(const void *, size_t, bool)
{
}
__attribute__((weak)) void races_forget(const void *)
{
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void wait_as(enum state state)
{
    self->state = state;
    fibre_pause();
}

void cuda_host_barrier(const char *file, int line)
{
    self->file = file;
    self->line = line;
    if (++block->at_barrier < block->threads.size()) {
        wait_as(AT_BARRIER);
        return;
    }
    for (auto &t : block->threads) {
        if (t.line != line || strcmp(t.file, file))
            cuda_host_fault("the barrier of line %d of %s meets that of line %d of %s", line, file, t.line, t.file);
        if (t.state == AT_BARRIER)
            t.state = READY;
    }
    block->at_barrier = 0;
    block->barriers++;
}

int cuda_host_lane(void)
{
    return self->number % 32;
}

const struct cuda_host_lanes *cuda_host_gather(unsigned mask, enum cuda_host_warp_op op, const void *value,
                                               size_t bytes)
{
    int lane = self->number % 32, first = self->number - lane;
    unsigned bit = 1u << lane;
    if (!(mask & bit))
        cuda_host_fault("a warp operation's mask %08x leaves out the caller, lane %d", mask, lane);
    struct meeting *m = &block->warps[(size_t)first / 32]->meeting[__builtin_ctz(mask)];
    unsigned buffer;
    while (m->unread[buffer = m->turn & 1])
        wait_as(READY);
    if (!m->arrived) {
        m->mask = mask;
        m->op = op;
    } else if (m->mask != mask || m->op != op) {
        cuda_host_fault("lane %d comes with warp operation %d of mask %08x, where others wait in %d of mask %08x", lane,
                        op, mask, m->op, m->mask);
    }
    if (bytes)
        memcpy(m->lanes[buffer].value[lane], value, bytes);
    m->arrived |= bit;
    if (m->arrived == mask) {
        m->arrived = 0;
        m->turn++;
        m->unread[buffer] = mask & ~bit;
        for (int i = 0; i < 32; i++)
            if (mask >> i & 1 && (unsigned)(first + i) < block->threads.size()) {
                struct thread *t = &block->threads[(size_t)(first + i)];
                if (t->state == IN_WARP)
                    t->state = READY;
            }
    } else {
        wait_as(IN_WARP);
        m->unread[buffer] &= ~bit;
    }
    return &m->lanes[buffer];
}

const void *cuda_host_shuffled(const struct cuda_host_lanes *lanes, unsigned mask, int from)
{
    if (from < 0 || from > 31 || !(mask >> from & 1))
        cuda_host_fault("a shuffle reads lane %d, which mask %08x leaves out", from, mask);
    return lanes->value[from];
}

unsigned __ballot_sync(unsigned mask, int predicate)
{
    const struct cuda_host_lanes *lanes = cuda_host_gather(mask, CUDA_HOST_VOTE, &predicate, sizeof(predicate));
    unsigned votes = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) {
            memcpy(&predicate, lanes->value[i], sizeof(predicate));
            votes |= (unsigned)(predicate != 0) << i;
        }
    return votes;
}

/* Of the warp operations this one alone orders memory. */
void __syncwarp(unsigned mask)
{
    const struct cuda_host_lanes *lanes =
        cuda_host_gather(mask, CUDA_HOST_SYNCWARP, &self->warp_time, sizeof(self->warp_time));
    uint32_t latest = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) {
            uint32_t time;
            memcpy(&time, lanes->value[i], sizeof(time));
            latest = std::max(latest, time);
        }
    self->warp_time = latest + 1;
}

template <typename T, typename F> static T atomic(T *p, F next)
{
    if ((uintptr_t)p % sizeof(*p))
        cuda_host_fault("an atomic operation at an address that %zu does not divide", sizeof(*p));
    T old = *p;
    *p = next(old);
    return old;
}
unsigned atomicAdd(unsigned *p, unsigned value)
{
    return atomic(p, [=](unsigned old) { return old + value; });
}
unsigned long long atomicAdd(unsigned long long *p, unsigned long long value)
{
    return atomic(p, [=](unsigned long long old) { return old + value; });
}
int atomicAdd(int *p, int value)
{
    return atomic(p, [=](int old) { return (int)((unsigned)old + (unsigned)value); });
}
float atomicAdd(float *p, float value)
{
    return atomic(p, [=](float old) { return old + value; });
}
unsigned atomicMax(unsigned *p, unsigned value)
{
    return atomic(p, [=](unsigned old) { return std::max(old, value); });
}
unsigned atomicOr(unsigned *p, unsigned value)
{
    return atomic(p, [=](unsigned old) { return old | value; });
}
unsigned atomicCAS(unsigned *p, unsigned compare, unsigned value)
{
    return atomic(p, [=](unsigned old) { return old == compare ? value : old; });
}

/* ---- shared memory and copies into it ---------------------------------------------------------------------------- */

void *cuda_host_shared(const void *site, size_t bytes)
{
    for (auto &a : block->shared)
        if (a.site == site)
            return a.p;
    void *p = guarded_new(bytes ? bytes : 1);
    if (!p)
        cuda_host_fault("no memory for a shared array of %zu bytes", bytes);
    races_watch(p, bytes, false);
    block->shared.push_back({site, p, bytes});
    return p;
}

void *cuda_host_shared_dynamic(void)
{
    return cuda_host_shared(&dynamic_site, block->launch->shared_bytes);
}

void cuda_host_cp_async(void *to, const void *from, int bytes, int from_bytes)
{
    if ((uintptr_t)to % (unsigned)bytes || (uintptr_t)from % (unsigned)bytes)
        cuda_host_fault("cp.async of %d bytes at an address that they do not divide", bytes);
    if (from_bytes < 0 || from_bytes > bytes)
        cuda_host_fault("cp.async of %d bytes reads %d", bytes, from_bytes);
    if (self->early)
        cuda_host_touch(from, (size_t)from_bytes, false);
    cuda_host_touch(to, (size_t)bytes, true); /* from now on it may be written at any time */
    self->open.push_back({to, from, bytes, from_bytes});
}

void cuda_host_cp_async_commit(void)
{
    self->groups.push_back(std::move(self->open));
    self->open.clear();
}

static void deliver(const struct pending_copy &c)
{
    cuda_host_touch(c.from, (size_t)c.from_bytes, false);
    cuda_host_touch(c.to, (size_t)c.bytes, true);
    memcpy(c.to, c.from, (size_t)c.from_bytes);
    memset((char *)c.to + c.from_bytes, 0, (size_t)(c.bytes - c.from_bytes));
}

void cuda_host_cp_async_wait(int groups_left)
{
    auto &groups = self->groups;
    while (groups.size() > (size_t)groups_left) {
        for (auto &c : groups.front())
            deliver(c);
        groups.erase(groups.begin());
    }
}

/* ---- a launch ---------------------------------------------------------------------------------------------------- */

static void thread_main(void *arg)
{
    const struct launch *l = (const struct launch *)arg;
    l->thread();
    if (!self->open.empty())
        cuda_host_fault("the thread ends with copies by cp.async that it never committed");
    for (auto &g : self->groups)
        if (!g.empty())
            cuda_host_fault("the thread ends with copies by cp.async that it never waited for");
    if (self->early)
        cuda_host_fault("the thread ends without having waited for the kernels before its own");
    self->state = ENDED;
}

[[noreturn]] static void stuck(void)
{
    const char *const names[] = {"ready", "at a barrier", "in a warp operation", "at its end"};
    size_t counts[4] = {0};
    for (auto &t : block->threads)
        counts[t.state]++;
    std::string text;
    for (int s = AT_BARRIER; s <= ENDED; s++)
        if (counts[s])
            text += (text.empty() ? "" : ", ") + std::to_string(counts[s]) + " " + names[s];
    for (auto &t : block->threads)
        if (t.state == AT_BARRIER || t.state == IN_WARP) {
            self = &t;
            break;
        }
    cuda_host_fault("waits for threads that never come: %s", text.c_str());
}

static void run_block(const struct launch *l, uint3 at, uint32_t number, struct random_order *random)
{
    static std::vector<struct fibre *> &fibres = *new std::vector<struct fibre *>(); /* for the life of the process */
    struct block b;
    unsigned n = l->block.x * l->block.y * l->block.z;
    while (fibres.size() < n)
        fibres.push_back(fibre_new());
    b.launch = l;
    b.threads.resize(n);
    b.number = number;
    b.barriers = b.at_barrier = 0;
    for (unsigned i = 0; i < (n + 31) / 32; i++)
        b.warps.push_back(std::unique_ptr<struct warp>(new struct warp()));
    for (unsigned i = 0; i < n; i++) {
        uint3 t = {i % l->block.x, i / l->block.x % l->block.y, i / l->block.x / l->block.y};
        b.threads[i].at = t;
        b.threads[i].fibre = fibres[i];
        b.threads[i].number = (int)i;
        b.threads[i].state = READY;
        b.threads[i].warp_time = 0;
        b.threads[i].early = l->overlaps;
        fibre_start(fibres[i], thread_main, (void *)l);
    }
    block = &b;
    blockIdx = at;
    blockDim = l->block;
    gridDim = l->grid;
    std::vector<unsigned> order(n);
    put_in_order(order, current_seed, random);
    for (unsigned ended = 0; ended < n;) {
        bool ran = false;
        uint32_t barriers = b.barriers;
        for (unsigned i : order) {
            struct thread *t = &b.threads[i];
            if (t->state != READY)
                continue;
            self = t;
            threadIdx = t->at;
            ended += !fibre_run(t->fibre);
            ran = true;
        }
        if (!ran)
            stuck();
        if (current_seed > 1 && b.barriers != barriers)
            put_in_order(order, current_seed, random);
    }
    self = nullptr;
    for (auto &a : b.shared) {
        races_forget(a.p);
        guarded_free(a.p, "a shared array");
    }
    block = nullptr;
}

void grid_run(const struct launch *l)
{
    struct random_order random = {current_seed * 0x9e3779b97f4a7c15u + ++launches};
    std::vector<unsigned> order(l->grid.x * l->grid.y * l->grid.z);
    put_in_order(order, current_seed, &random);
    for (unsigned i : order) {
        uint3 at = {i % l->grid.x, i / l->grid.x % l->grid.y, i / l->grid.x / l->grid.y};
        run_block(l, at, i, &random);
    }
}

/* pick.cu - the next token of a row of logits: the token that kernels/cpu/pick.c picks.
 *
 * A block of threads has one row. Weights are integers, so sums do not depend on an order, and no logits have to be put
 * in order: the first key (falling logits, then rising ids) at which enough weight has come together is found digit by
 * digit. Where cuts are asked for, the candidates are gathered into shared memory first; should they not fit there,
 * passes go over the whole row. docs/numerics.md, "Sampling", gives the definition. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/functions.h"

#include <float.h>
#include <math.h>

#define THREADS    MANY_THREADS
#define WARPS      (THREADS / WARP)
#define CANDIDATES 2048
#define DIGIT_BITS 8
#define DIGITS     (1 << DIGIT_BITS)
#define WEIGHT_ONE 0x1p+39f /* the weight of the greatest logit */
#define REACH      6.0f     /* how far below the greatest a nucleus is looked for at first, in units of temperature */

typedef unsigned long long weight_t;

/* What a block's threads share. */
struct shared {
    weight_t bins[DIGITS];
    weight_t sums[WARPS];
    weight_t keys[CANDIDATES];
    weight_t found, before; /* what a search has come to */
    float tops[THREADS];
    unsigned count;
    int broken;
};

struct row {
    struct shared *s;
    const float *x;
    unsigned n;
    float max, scale;
    bool listed;   /* the candidates are s->keys[0 .. s->count), otherwise all of the row */
    weight_t last; /* of the candidates, those with keys up to this */
    float lowest;  /* and not further below the greatest than this */
};

/* Ascending keys are falling logits, then rising ids. */
static __device__ weight_t key_of(float x, unsigned id)
{
    uint32_t u = __float_as_uint(x + 0.0f); /* one zero, not two */
    uint32_t rising = u & 0x80000000 ? ~u : u | 0x80000000;
    return (weight_t)~rising << 32 | id;
}

static __device__ float logit_of(weight_t key)
{
    uint32_t rising = ~(uint32_t)(key >> 32);
    return __uint_as_float(rising & 0x80000000 ? rising & 0x7fffffff : ~rising);
}

static __device__ float below(const struct row *r, float x)
{
    return (x - r->max) * r->scale;
}

/* A power of two times a float is exact here, so this rounds once, to nearest even. */
static __device__ weight_t weight_of(const struct row *r, float x)
{
    return __float2ull_rn(exp_one(below(r, x)) * WEIGHT_ONE);
}

static __device__ weight_t warp_sum(weight_t x)
{
    for (int flip = 1; flip < WARP; flip *= 2)
        x += __shfl_xor_sync(ALL_LANES, x, flip);
    return x;
}

/* Of all threads' values, for all of them. */
static __device__ weight_t block_sum(struct shared *s, weight_t x)
{
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        s->sums[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < WARPS; w++)
        x += s->sums[w];
    return x;
}

static __device__ weight_t block_least(struct shared *s, weight_t x)
{
    for (int flip = 1; flip < WARP; flip *= 2) {
        weight_t other = __shfl_xor_sync(ALL_LANES, x, flip);
        x = other < x ? other : x;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        s->sums[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        x = s->sums[w] < x ? s->sums[w] : x;
    return x;
}

/* Candidate i of span(); false when a cut has taken it. */
static __device__ unsigned span(const struct row *r)
{
    return r->listed ? r->s->count : r->n;
}

static __device__ bool candidate(const struct row *r, unsigned i, weight_t *key, float *x)
{
    *key = r->listed ? r->s->keys[i] : key_of(r->x[i], i);
    *x = r->listed ? logit_of(*key) : r->x[i];
    return *key <= r->last && !(below(r, *x) < r->lowest);
}

static __device__ weight_t candidates_weight(const struct row *r)
{
    weight_t sum = 0, key;
    float x;
    for (unsigned i = threadIdx.x; i < span(r); i += THREADS)
        if (candidate(r, i, &key, &x))
            sum += weight_of(r, x);
    return block_sum(r->s, sum);
}

/* The first bin at which the sum of bins exceeds `target`: s->found, and s->before = what is left of the target. By one
 * warp. */
static __device__ void find_bin(struct shared *s, weight_t target)
{
    const int each = DIGITS / WARP;
    int lane = threadIdx.x;
    weight_t own = 0;
    for (int i = 0; i < each; i++)
        own += s->bins[lane * each + i];
    weight_t sum = own; /* up to this lane's last bin */
    for (int by = 1; by < WARP; by *= 2) {
        weight_t other = __shfl_up_sync(ALL_LANES, sum, by);
        sum += lane >= by ? other : 0;
    }
    weight_t rest = target - (sum - own);
    if (target < sum - own || target >= sum)
        return;
    int bin = lane * each;
    while (rest >= s->bins[bin])
        rest -= s->bins[bin++];
    s->found = (weight_t)bin;
    s->before = rest;
}

/* The key of the first candidate, in order, up to which they weigh more than `target`, which all together do; with
 * `counted` each weighs one. */
static __device__ weight_t find_key(const struct row *r, weight_t target, bool counted)
{
    struct shared *s = r->s;
    weight_t prefix = 0;
    for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        if (shift == 32 - DIGIT_BITS)
            continue; /* ids have 24 bits */
        for (int i = threadIdx.x; i < DIGITS; i += THREADS)
            s->bins[i] = 0;
        __syncthreads();
        for (unsigned i = threadIdx.x; i < span(r); i += THREADS) {
            weight_t key;
            float x;
            if (!candidate(r, i, &key, &x) || (shift + DIGIT_BITS < 64 && (key ^ prefix) >> (shift + DIGIT_BITS)))
                continue;
            weight_t weight = counted ? 1 : weight_of(r, x);
            if (weight > 0)
                atomicAdd(&s->bins[key >> shift & (DIGITS - 1)], weight);
        }
        __syncthreads();
        if (threadIdx.x < WARP)
            find_bin(s, target);
        __syncthreads();
        prefix |= s->found << shift;
        target = s->before;
        __syncthreads();
    }
    return prefix;
}

/* The first id up to which the weights sum up to more than `target`. Each warp has a part of what is left. */
static __device__ unsigned find_id(const struct row *r, weight_t target)
{
    struct shared *s = r->s;
    unsigned first = 0, n = r->n, warp = threadIdx.x / WARP;
    while (n > 1) {
        unsigned part = (n + WARPS - 1) / WARPS, from = min(warp * part, n), to = min(from + part, n);
        weight_t sum = 0;
        for (unsigned i = from + threadIdx.x % WARP; i < to; i += WARP)
            sum += weight_of(r, r->x[first + i]);
        sum = warp_sum(sum);
        __syncthreads(); /* nobody reads the sums before any more */
        if (threadIdx.x % WARP == 0)
            s->sums[warp] = sum;
        __syncthreads();
        unsigned w = 0;
        while (w + 1 < WARPS && target >= s->sums[w])
            target -= s->sums[w++];
        first += min(w * part, n);
        n = min(part, n - min(w * part, n));
    }
    return first;
}

/* At least k of the logits are as great as this: of all threads' greatest the k-th. */
static __device__ float threshold_of(struct shared *s, float top, unsigned k)
{
    if (k > THREADS)
        return -infinity();
    __syncthreads();
    s->tops[threadIdx.x] = top;
    __syncthreads();
    unsigned before = 0;
    for (unsigned i = 0; i < THREADS; i++)
        before += s->tops[i] > top || (s->tops[i] == top && i < threadIdx.x);
    weight_t mine = before == k - 1 ? key_of(top, 0) : ~(weight_t)0;
    return logit_of(block_least(s, mine));
}

/* Puts the logits >= from into the list; false when there is no room for all. */
static __device__ bool gather(struct row *r, float from)
{
    struct shared *s = r->s;
    __syncthreads();
    if (threadIdx.x == 0)
        s->count = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < r->n; i += THREADS)
        if (r->x[i] >= from) {
            unsigned at = atomicAdd(&s->count, 1u);
            if (at < CANDIDATES)
                s->keys[at] = key_of(r->x[i], i);
        }
    __syncthreads();
    return s->count <= CANDIDATES;
}

/* Where the weights reach a share of `total`: a target. */
static __device__ weight_t share(weight_t total, float part)
{
    double needed = ceil((double)total * (double)part);
    return needed < 1 ? 0 : needed < (double)total ? (weight_t)needed - 1 : total - 1;
}

static __device__ weight_t draw_target(weight_t total, double random)
{
    weight_t target = (weight_t)(random * (double)total);
    return target < total ? target : total - 1;
}

/* `top` is the greatest of this thread's logits. */
static __device__ unsigned pick_ordered(struct row *r, const struct cuda_pick *p, float top)
{
    bool limited = p->top_k > 0 && (unsigned)p->top_k < r->n;
    weight_t target = 0;
    if (limited) {
        r->listed = gather(r, threshold_of(r->s, top, (unsigned)p->top_k));
        r->last = find_key(r, (weight_t)(p->top_k - 1), true);
        if (p->top_p < 1)
            target = share(candidates_weight(r), p->top_p);
    } else if (p->top_p < 1) {
        target = share(candidates_weight(r), p->top_p);
        r->listed = gather(r, r->max - REACH / r->scale);
        if (r->listed)
            r->listed = candidates_weight(r) > target;
    }
    if (p->top_p < 1)
        r->last = find_key(r, target, false);
    r->lowest = p->lowest;
    return (unsigned)find_key(r, draw_target(candidates_weight(r), p->random), false);
}

/* Whether a row's greatest logit is finite and none is NaN; its key, and the greatest of this thread's logits. */
static __device__ bool look_over(struct row *r, weight_t *first, float *top)
{
    *first = ~(weight_t)0;
    *top = -infinity();
    __syncthreads();
    if (threadIdx.x == 0)
        r->s->broken = 0;
    __syncthreads();
    for (unsigned i = threadIdx.x; i < r->n; i += THREADS) {
        float x = r->x[i];
        weight_t key = key_of(x, i);
        if (x != x)
            atomicAdd(&r->s->broken, 1);
        *top = x > *top ? x : *top;
        *first = key < *first ? key : *first;
    }
    *first = block_least(r->s, *first);
    r->max = logit_of(*first);
    return !r->s->broken && fabsf(r->max) < infinity();
}

static __device__ int32_t pick_one(struct row *r, const struct cuda_pick *p, weight_t first, float top)
{
    if (!(p->scale > 0) || p->top_k == 1)
        return (int32_t)(uint32_t)first;
    if ((p->top_k > 0 && (unsigned)p->top_k < r->n) || p->top_p < 1 || p->lowest > -infinity())
        return (int32_t)pick_ordered(r, p, top);
    return (int32_t)find_id(r, draw_target(candidates_weight(r), p->random));
}

/* The first n_top of the row. `top` is the greatest of this thread's logits. */
static __device__ void alternatives(struct row *r, int n_top, float top, struct kernels_picked *out)
{
    struct shared *s = r->s;
    for (int i = threadIdx.x; i < n_top; i += THREADS)
        if ((unsigned)i >= r->n) {
            out->top[i] = -1;
            out->top_logits[i] = 0;
        }
    int n = min((unsigned)n_top, r->n);
    r->listed = gather(r, n > 0 ? threshold_of(s, top, (unsigned)n) : infinity());
    if (r->listed) { /* each is as far behind the first as there are keys before it */
        for (unsigned i = threadIdx.x; i < s->count; i += THREADS) {
            int rank = 0;
            for (unsigned j = 0; j < s->count; j++)
                rank += s->keys[j] < s->keys[i];
            if (rank < n) {
                out->top[rank] = (int32_t)(uint32_t)s->keys[i];
                out->top_logits[rank] = logit_of(s->keys[i]);
            }
        }
        return;
    }
    for (int rank = 0; rank < n; rank++) {
        weight_t key = find_key(r, (weight_t)rank, true);
        if (threadIdx.x == 0) {
            out->top[rank] = (int32_t)(uint32_t)key;
            out->top_logits[rank] = logit_of(key);
        }
    }
}

static __device__ float allowed(const struct cuda_pick *p, int id, float x)
{
    return !p->mask || p->mask[id / 32] >> id % 32 & 1 || !(x < infinity()) ? x : -infinity();
}

static __device__ bool is_changed(const struct cuda_pick *p)
{
    return p->mask || p->n_seen > 0;
}

static __global__ void __launch_bounds__(THREADS, 2)
    pick_row(const struct cuda_pick *picks, const float *logits, int vocab, const float *changed,
             struct kernels_picked *all_out)
{
    wait_for_earlier();
    SHARED(struct shared, all, [1]);
    const struct cuda_pick *p = &picks[blockIdx.x];
    struct kernels_picked *out = &all_out[blockIdx.x];
    struct row own = {all, logits + (size_t)p->row * vocab, (unsigned)vocab, 0, 1.0f, false, ~(weight_t)0, -infinity()};
    struct row r = own;
    weight_t first;
    float top;
    if (is_changed(p))
        r.x = changed + (size_t)blockIdx.x * vocab;
    r.scale = p->scale;
    int32_t id = KERNELS_PICK_NAN;
    if (look_over(&r, &first, &top))
        id = pick_one(&r, p, first, top);
    else if (p->mask && !all->broken && r.max < 0)
        id = KERNELS_PICK_NONE;
    if (threadIdx.x == 0)
        out->id = id;
    if (!p->odds || id < 0)
        return;
    look_over(&own, &first, &top);
    weight_t mass = candidates_weight(&own);
    if (threadIdx.x == 0) {
        out->logit = own.x[id];
        out->max = own.max;
        out->mass = mass;
    }
    alternatives(&own, p->n_top, top, out);
}

/* The row with its biases and penalties, -infinity where the mask says no, unless that shows that it is no row of
 * numbers. A block per row. */
static __global__ void __launch_bounds__(THREADS)
    change_row(const struct cuda_pick *picks, const float *logits, int vocab, float *changed)
{
    wait_for_earlier();
    const struct cuda_pick *p = &picks[blockIdx.x];
    if (!is_changed(p))
        return;
    const float *in = logits + (size_t)p->row * vocab;
    float *out = changed + (size_t)blockIdx.x * vocab;
    for (int i = threadIdx.x; i < vocab; i += THREADS)
        out[i] = allowed(p, i, in[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < p->n_seen; i += THREADS) {
        struct kernels_seen seen = p->seen[i];
        float x = in[seen.id] + seen.bias;
        if (seen.count > 0) {
            x = x > 0 ? x / p->repetition : x * p->repetition;
            x = x - (p->presence + p->frequency * (float)seen.count);
        }
        out[seen.id] = allowed(p, seen.id, x);
    }
}

struct cuda_pick cuda_pick_of(const struct kernels_pick *p)
{
    struct cuda_pick c = {};
    float scale = p->temperature > 0 ? 1.0f / p->temperature : 0.0f;
    c.row = p->row;
    c.n_seen = p->n_seen;
    c.repetition = p->repetition;
    c.presence = p->presence;
    c.frequency = p->frequency;
    c.scale = scale > FLT_MAX ? FLT_MAX : scale;
    c.top_k = p->top_k;
    c.top_p = p->top_p;
    c.lowest = p->min_p > 0 ? (float)log((double)p->min_p) : -HUGE_VALF;
    c.random = p->random;
    c.odds = p->odds;
    c.n_top = p->n_top;
    return c;
}

int cuda_pick(cudaStream_t s, const struct cuda_pick *picks, int n, const float *logits, int vocab, float *changed,
              struct kernels_picked *out)
{
    int error = 0;
    if (n <= 0)
        return 0;
    error = launched(launch(change_row, n, THREADS, 0, s, picks, logits, vocab, changed));
    return error ? error : launched(launch(pick_row, n, THREADS, 0, s, picks, logits, vocab, changed, out));
}

/* pick.c - the next token of a row of logits: select, cut, draw.
 *
 * A row is one worker's; rows are shared out over the workers. One pass finds the greatest logit of every block, which
 * says where the candidates can be: what stands at least as high as the k-th greatest of the blocks' tops, or not too
 * far below the greatest logit. Only those are gathered and put in order. Where that turns out to be too few it goes on
 * with more of them, at worst with all.
 *
 * What always holds: weights are integers (rows_internal.h), so a sum of them is the same whatever the order; the
 * result is that of putting all logits in order first, falling, the lower id first among equals. docs/numerics.md,
 * "Sampling", gives the definition.
 *
 * Scratch is a piece per worker, made by reserve.
 */
#include "kernels/cpu/rows_internal.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define FIRST_REACH 6.0f  /* how far below the greatest a nucleus is looked for at first, in units of temperature */
#define LAST_REACH  32.0f /* what is below has no weight */
#define FEW         48    /* so many are sorted by insertion */
#define DIGIT_BITS  11
#define DIGITS      (1 << DIGIT_BITS)

struct worker_scratch {
    uint64_t *keys, *spare; /* [capacity] */
    float *x;               /* [capacity] candidates' logits in order */
    float *changed;         /* [capacity] the row with changes */
    float *tops;            /* [capacity / KERNELS_TOP_BLOCK + 1] */
    uint32_t counts[DIGITS];
};

struct kernels_pick_scratch {
    int capacity;
    uint8_t *memory;
    size_t bytes;
    struct worker_scratch workers[]; /* [threads] */
};

/* One pick under way. */
struct row {
    const struct kernels_rows_set *set;
    struct worker_scratch *s;
    const float *x;
    size_t n;
    float max, scale;
    size_t count; /* candidates: s->keys and s->x */
};

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Ascending keys are falling logits, then rising ids. */
static uint64_t make_key(float x, uint32_t id)
{
    uint32_t u = kernels_float_bits(x + 0.0f); /* one zero, not two */
    uint32_t rising = u & 0x80000000 ? ~u : u | 0x80000000;
    return (uint64_t)~rising << 32 | id;
}

static float key_logit(uint64_t key)
{
    uint32_t rising = ~(uint32_t)(key >> 32);
    return kernels_bits_float(rising & 0x80000000 ? rising & 0x7fffffff : ~rising);
}

/* Moves keys by one digit of their upper halves. False: all have the same one and nothing was moved. */
static bool sort_digit(const uint64_t *keys, size_t n, int shift, uint32_t *counts, uint64_t *out)
{
    memset(counts, 0, DIGITS * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[keys[i] >> shift & (DIGITS - 1)]++;
    if (counts[keys[0] >> shift & (DIGITS - 1)] == n)
        return false;
    uint32_t sum = 0;
    for (int d = 0; d < DIGITS; d++) {
        uint32_t count = counts[d];
        counts[d] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++)
        out[counts[keys[i] >> shift & (DIGITS - 1)]++] = keys[i];
    return true;
}

/* Sorts s->keys, whose ids are ascending. */
static void sort(struct worker_scratch *s, size_t n)
{
    if (n <= FEW) {
        for (size_t i = 1; i < n; i++) {
            uint64_t key = s->keys[i];
            size_t at = i;
            for (; at > 0 && s->keys[at - 1] > key; at--)
                s->keys[at] = s->keys[at - 1];
            s->keys[at] = key;
        }
        return;
    }
    for (int shift = 32; shift < 64; shift += DIGIT_BITS)
        if (sort_digit(s->keys, n, shift, s->counts, s->spare)) {
            uint64_t *swap = s->keys;
            s->keys = s->spare;
            s->spare = swap;
        }
}

/* ---- select ------------------------------------------------------------------------------------------------------ */

/* Makes the logits >= from the candidates, in order. */
static void gather(struct row *r, float from)
{
    struct worker_scratch *s = r->s;
    int32_t *ids = (int32_t *)(void *)s->spare; /* free until the sort */
    r->count = r->set->collect(r->x, r->n, s->tops, from, ids);
    for (size_t i = 0; i < r->count; i++)
        s->keys[i] = make_key(r->x[ids[i]], (uint32_t)ids[i]);
    sort(s, r->count);
    for (size_t i = 0; i < r->count; i++)
        s->x[i] = key_logit(s->keys[i]);
}

/* At least k logits are as great as this. */
static float threshold_of(struct row *r, size_t k)
{
    struct worker_scratch *s = r->s;
    size_t blocks = (r->n + KERNELS_TOP_BLOCK - 1) / KERNELS_TOP_BLOCK;
    if (k > blocks)
        return -INFINITY;
    for (size_t i = 0; i < blocks; i++)
        s->keys[i] = make_key(s->tops[i], (uint32_t)i);
    sort(s, blocks);
    return key_logit(s->keys[k - 1]);
}

/* ---- cut and draw ------------------------------------------------------------------------------------------------ */

static uint64_t mass(const struct row *r, const float *x, size_t n)
{
    return r->set->mass(x, n, r->max, r->scale);
}

/* The first i at which the weights of x[0..i] sum up to more than `target`; n when they never do. */
static size_t find(const struct row *r, const float *x, size_t n, uint64_t target)
{
    size_t at = 0;
    for (size_t span = 4096; span > 0; span /= 64)
        while (at < n) {
            size_t part = n - at < span ? n - at : span;
            uint64_t weight = mass(r, x + at, part);
            if (weight > target)
                break;
            target -= weight;
            at += part;
        }
    return at;
}

/* Where the weights reach a share of `total`: the target for find(). */
static uint64_t share(uint64_t total, float part)
{
    double needed = ceil((double)total * (double)part);
    return needed < 1 ? 0 : needed < (double)total ? (uint64_t)needed - 1 : total - 1;
}

/* How many candidates min-p leaves: those before the first that is further below the greatest than `lowest`. */
static size_t cut_low(const struct row *r, float lowest)
{
    size_t low = 1, high = r->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if ((r->s->x[mid] - r->max) * r->scale < lowest)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static int32_t draw(const struct row *r, const float *x, size_t n, double random)
{
    uint64_t total = mass(r, x, n);
    uint64_t target = (uint64_t)(random * (double)total);
    return (int32_t)find(r, x, n, target < total ? target : total - 1);
}

static int32_t first_top(const struct row *r)
{
    size_t i = 0;
    while (r->s->tops[i] != r->max)
        i++;
    for (i *= KERNELS_TOP_BLOCK; r->x[i] != r->max;)
        i++;
    return (int32_t)i;
}

static int32_t pick_ordered(struct row *r, const struct kernels_pick *p, size_t limit)
{
    float lowest = p->min_p > 0 ? (float)log((double)p->min_p) : -INFINITY;
    uint64_t target = UINT64_MAX;
    if (limit < r->n) {
        gather(r, threshold_of(r, limit));
        r->count = limit;
        if (p->top_p < 1)
            target = share(mass(r, r->s->x, r->count), p->top_p);
    } else {
        if (p->top_p < 1)
            target = share(mass(r, r->x, r->n), p->top_p);
        float reach = p->top_p < 1 ? FIRST_REACH : LAST_REACH;
        for (;; reach *= 2) {
            bool enough = reach >= LAST_REACH || -lowest <= reach;
            gather(r, r->max - (-lowest < reach ? -lowest : reach) / r->scale);
            if (enough || find(r, r->s->x, r->count, target) < r->count)
                break;
        }
    }
    size_t kept = r->count;
    if (p->top_p < 1) {
        size_t last = find(r, r->s->x, r->count, target);
        kept = last < r->count ? last + 1 : r->count;
    }
    if (p->min_p > 0) {
        size_t low = cut_low(r, lowest);
        kept = low < kept ? low : kept;
    }
    return (int32_t)(uint32_t)r->s->keys[draw(r, r->s->x, kept, p->random)];
}

/* A bias is added; then penalties: repetition divides a positive logit and multiplies a negative one; presence and
 * frequency subtract. */
static void change(const struct kernels_pick *p, float *x)
{
    for (int i = 0; i < p->n_seen; i++) {
        const struct kernels_seen *seen = &p->seen[i];
        float v = x[seen->id] + seen->bias;
        if (seen->count > 0) {
            v = v > 0 ? v / p->repetition : v * p->repetition;
            v -= p->presence + p->frequency * (float)seen->count;
        }
        x[seen->id] = v;
    }
}

/* What is not allowed becomes -infinity, unless it shows that the row is no row of numbers. */
static void apply_mask(const uint32_t *mask, float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 32) {
        uint32_t word = mask[i / 32];
        if (word == UINT32_MAX)
            continue;
        for (size_t j = i; j < n && j < i + 32; j++)
            if (!(word >> (j - i) & 1) && x[j] < INFINITY)
                x[j] = -INFINITY;
    }
}

static int32_t pick_id(struct row *r, const struct kernels_pick *p)
{
    if (!isfinite(r->max))
        return p->mask && r->max < 0 ? KERNELS_PICK_NONE : KERNELS_PICK_NAN;
    if (p->temperature == 0.0f || p->top_k == 1)
        return first_top(r);
    r->scale = 1.0f / p->temperature;
    if (r->scale > FLT_MAX)
        r->scale = FLT_MAX;
    size_t limit = p->top_k > 0 && (size_t)p->top_k < r->n ? (size_t)p->top_k : r->n;
    if (limit == r->n && !(p->top_p < 1) && !(p->min_p > 0))
        return draw(r, r->x, r->n, p->random);
    return pick_ordered(r, p, limit);
}

/* Of the row's own logits. */
static void find_odds(struct row *r, const struct kernels_pick *p, struct kernels_picked *out)
{
    size_t n = (size_t)p->n_top < r->n ? (size_t)p->n_top : r->n;
    r->max = out->max = r->set->top(r->x, r->n, r->s->tops);
    r->scale = 1.0f;
    out->logit = r->x[out->id];
    out->mass = mass(r, r->x, r->n);
    if (n > 0)
        gather(r, threshold_of(r, n));
    for (size_t i = 0; i < (size_t)p->n_top; i++) {
        out->top[i] = i < n ? (int32_t)(uint32_t)r->s->keys[i] : -1;
        out->top_logits[i] = i < n ? r->s->x[i] : 0;
    }
}

static void pick_one(const struct kernels *k, struct worker_scratch *s, const struct kernels_pick *p, const float *x,
                     size_t n, struct kernels_picked *out)
{
    struct row own = {.set = k->set->rows, .s = s, .x = x, .n = n}, r = own;
    if (p->n_seen > 0 || p->mask) {
        memcpy(s->changed, x, n * sizeof *s->changed);
        change(p, s->changed);
        if (p->mask)
            apply_mask(p->mask, s->changed, n);
        r.x = s->changed;
    }
    r.max = r.set->top(r.x, r.n, s->tops);
    out->id = pick_id(&r, p);
    if (p->odds && out->id >= 0)
        find_odds(&own, p, out);
}

struct picks {
    const struct kernels *k;
    const float *logits;
    int vocab;
    const struct kernels_pick *picks;
    struct kernels_picked *out;
};

static void pick_rows(void *arg, int worker, int first, int end)
{
    const struct picks *p = arg;
    for (int i = first; i < end; i++)
        pick_one(p->k, &p->k->pick->workers[worker], &p->picks[i],
                 p->logits + (size_t)p->picks[i].row * (size_t)p->vocab, (size_t)p->vocab, &p->out[i]);
}

void kernels_op_pick(struct kernels *k, const float *logits, int vocab, const struct kernels_pick *picks, int n,
                     struct kernels_picked *out)
{
    struct picks p = {k, logits, vocab, picks, out};
    kernels_pool_run(k->pool, n, 1, pick_rows, &p);
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

void kernels_pick_release(struct kernels *k)
{
    if (!k->pick)
        return;
    kernels_cpu_release(k->pick->memory, k->pick->bytes);
    free(k->pick);
    k->pick = NULL;
}

int kernels_pick_reserve(struct kernels *k, int max_logits)
{
    if (max_logits < 1 || max_logits > KERNELS_MAX_LOGITS)
        return -EINVAL;
    if (k->pick && k->pick->capacity >= max_logits)
        return 0;
    kernels_pick_release(k);
    struct kernels_pick_scratch *s = calloc(1, sizeof *s + (size_t)k->threads * sizeof *s->workers);
    if (!s)
        return -ENOMEM;
    size_t n = ((size_t)max_logits + 15) & ~(size_t)15, tops = (n / KERNELS_TOP_BLOCK + 16) & ~(size_t)15;
    size_t each = n * 2 * sizeof(uint64_t) + (2 * n + tops) * sizeof(float);
    s->capacity = max_logits;
    s->bytes = each * (size_t)k->threads;
    s->memory = kernels_cpu_alloc(s->bytes);
    if (!s->memory) {
        free(s);
        return -ENOMEM;
    }
    for (int i = 0; i < k->threads; i++) {
        struct worker_scratch *w = &s->workers[i];
        w->keys = (uint64_t *)(void *)(s->memory + each * (size_t)i);
        w->spare = w->keys + n;
        w->x = (float *)(void *)(w->spare + n);
        w->changed = w->x + n;
        w->tops = w->changed + n;
    }
    k->pick = s;
    return 0;
}

/* sampler.c - picks the next token from logits.
 *
 * Order: penalties, temperature, top-k, top-p, min-p, then one draw. Everything after the penalties is computed in
 * double precision in one fixed order, and the random number is a function of (seed, position) alone, so a turn can be
 * replayed from its seed. Ties go to the smaller token id.
 *
 * The penalties are those of common APIs: repetition divides a positive logit and multiplies a negative one (Keskar et
 * al., CTRL, arXiv:1909.05858); presence and frequency subtract (OpenAI's definition).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

#define PENALTY_LAST_DEFAULT 256
#define PENALTY_LAST_MAX     (1 << 20)

struct candidate {
    double weight; /* logit, later probability */
    engine_token id;
};

struct sampler_scratch {
    struct candidate *heap; /* [n_vocab] */
    float *logits;          /* [n_vocab], with penalties */
    uint16_t *seen;         /* [n_vocab], all zero between calls */
};

static struct sampler_scratch *scratch_get(struct engine *e)
{
    if (e->sampler)
        return e->sampler;
    struct sampler_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    size_t n = (size_t)e->info.n_vocab;
    s->heap = malloc(n * sizeof *s->heap);
    s->logits = malloc(n * sizeof *s->logits);
    s->seen = calloc(n, sizeof *s->seen);
    e->sampler = s;
    if (!s->heap || !s->logits || !s->seen) {
        sampler_scratch_close(e);
        return NULL;
    }
    return s;
}

void sampler_scratch_close(struct engine *e)
{
    struct sampler_scratch *s = e->sampler;
    if (!s)
        return;
    free(s->heap);
    free(s->logits);
    free(s->seen);
    free(s);
    e->sampler = NULL;
}

int engine_sampling_check(const struct engine_sampling *s, const char **field, const char **range)
{
    const struct {
        bool fine;
        const char *field, *range;
    } checks[] = {
        {s->temperature >= 0.0f && s->temperature <= 10.0f, "temperature", "between 0 and 10"},
        {s->top_k >= 0, "top_k", "0 (off) or more"},
        {s->top_p >= 0.0f && s->top_p <= 1.0f, "top_p", "between 0 and 1"},
        {s->min_p >= 0.0f && s->min_p <= 1.0f, "min_p", "between 0 and 1"},
        {s->repetition_penalty > 0.0f && s->repetition_penalty <= 10.0f, "repetition_penalty",
         "above 0 and at most 10"},
        {s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f, "presence_penalty", "between -2 and 2"},
        {s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f, "frequency_penalty", "between -2 and 2"},
        {s->penalty_last >= 0 && s->penalty_last <= PENALTY_LAST_MAX, "penalty_last", "between 0 and 1048576"},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!checks[i].fine) { /* a NaN is in no range */
            *field = checks[i].field;
            *range = checks[i].range;
            return -EINVAL;
        }
    return 0;
}

/* SplitMix64's output function (Steele, Lea, Flood 2014) of the position-th state after seed; 53 bits in [0, 1). */
static double random_at(uint64_t seed, int position)
{
    uint64_t z = seed + ((uint64_t)position + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static void penalize(const struct engine *e, const struct engine_sampling *s, struct sampler_scratch *scratch,
                     const engine_token *context, int position)
{
    int last = s->penalty_last ? s->penalty_last : PENALTY_LAST_DEFAULT;
    int first = position > last ? position - last : 0;
    for (int i = first; i < position; i++)
        if (context[i] >= 0 && context[i] < e->info.n_vocab && scratch->seen[context[i]] < UINT16_MAX)
            scratch->seen[context[i]]++;
    for (int i = first; i < position; i++) {
        engine_token id = context[i];
        if (id < 0 || id >= e->info.n_vocab || scratch->seen[id] == 0)
            continue;
        float x = scratch->logits[id];
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        x -= s->presence_penalty + s->frequency_penalty * (float)scratch->seen[id];
        scratch->logits[id] = x;
        scratch->seen[id] = 0;
    }
}

static bool before(struct candidate a, struct candidate b)
{
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

static void sift(struct candidate *heap, size_t n, size_t i)
{
    struct candidate c = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], c))
            break;
        heap[i] = heap[child];
    }
    heap[i] = c;
}

/* The most likely candidate leaves the heap of *n for its freed last place, so that heap[total - 1], heap[total - 2],
 * ... come out in order. */
static struct candidate pop(struct candidate *heap, size_t *n)
{
    struct candidate top = heap[0];
    heap[0] = heap[--*n];
    sift(heap, *n, 0);
    heap[*n] = top;
    return top;
}

int engine_sample(struct engine *e, const struct engine_sampling *s, const float *logits, const engine_token *context,
                  int position, engine_token *out)
{
    struct sampler_scratch *scratch = scratch_get(e);
    if (!scratch)
        return -ENOMEM;
    size_t n_vocab = (size_t)e->info.n_vocab;
    int nans = 0;
    for (size_t i = 0; i < n_vocab; i++)
        nans |= logits[i] != logits[i];
    if (nans)
        return -EDOM;

    if (s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f) {
        memcpy(scratch->logits, logits, n_vocab * sizeof *logits);
        penalize(e, s, scratch, context, position);
        logits = scratch->logits;
    }

    size_t best = 0;
    for (size_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    if (!isfinite(logits[best]))
        return -EDOM;
    if (s->temperature == 0.0f || s->top_k == 1) {
        *out = (engine_token)best;
        return 0;
    }

    /* Unnormalized probabilities: exp((x - max) / T). */
    double max = logits[best], scale = 1.0 / (double)s->temperature;
    struct candidate *heap = scratch->heap;
    for (size_t i = 0; i < n_vocab; i++)
        heap[i] = (struct candidate){((double)logits[i] - max) * scale, (engine_token)i};
    size_t left = n_vocab;
    size_t limit = s->top_k > 0 && (size_t)s->top_k < n_vocab ? (size_t)s->top_k : n_vocab;
    bool ordered = limit < n_vocab || s->top_p < 1.0f || s->min_p > 0.0f;
    if (ordered)
        for (size_t i = n_vocab / 2; i-- > 0;)
            sift(heap, n_vocab, i);

    double total = 0; /* of what top-k leaves */
    if (limit < n_vocab) {
        for (size_t i = 0; i < limit; i++)
            total += exp(pop(heap, &left).weight);
    } else {
        for (size_t i = 0; i < n_vocab; i++)
            total += exp(((double)logits[i] - max) * scale);
    }

    double kept = 0; /* of what top-p and min-p leave */
    size_t n_kept = 0;
    if (!ordered) {
        kept = total;
        n_kept = n_vocab;
    }
    size_t heap_n = n_vocab;
    while (ordered && n_kept < limit && (n_kept == 0 || kept < total * (double)s->top_p)) {
        struct candidate c = limit < n_vocab ? heap[n_vocab - 1 - n_kept] : pop(heap, &heap_n);
        double p = exp(c.weight);
        if (n_kept > 0 && p < (double)s->min_p)
            break;
        kept += p;
        n_kept++;
    }

    double r = random_at(s->seed, position) * kept, sum = 0;
    engine_token chosen = ordered ? heap[n_vocab - 1].id : heap[0].id;
    for (size_t i = 0; i < n_kept; i++) {
        struct candidate c = ordered ? heap[n_vocab - 1 - i] : heap[i];
        double p = exp(c.weight);
        if (p == 0) /* never, also where r was rounded up to the whole sum */
            continue;
        sum += p;
        chosen = c.id;
        if (r < sum)
            break;
    }
    *out = chosen;
    return 0;
}

/* sampler.c - picks the next tokens from logits.
 *
 * This file works out what is asked for: the penalties of the tokens that were said before, and the random number,
 * which is a function of (seed, position) alone, so that a turn can be replayed from its seed. The backend picks
 * (kernels_ops.pick), for all sequences at once.
 *
 * The penalties are those of common APIs: repetition divides a positive logit and multiplies a negative one (Keskar et
 * al., CTRL, arXiv:1909.05858); presence and frequency subtract (OpenAI's definition).
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/model/model.h"

#define PENALTY_LAST_DEFAULT 256
#define PENALTY_LAST_MAX     (1 << 20)

struct sampler_scratch {
    uint16_t *seen; /* [n_vocab], all zero between calls */
    struct kernels_pick *picks;
    struct kernels_logit *changed;
    size_t capacity_picks, capacity_changed;
};

/* `array` with room for n elements, or NULL: it is as it was. */
static void *with_room(void *array, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return array;
    void *grown = realloc(array, n * size);
    if (grown)
        *capacity = n;
    return grown;
}

static int make_room(struct sampler_scratch *s, size_t n_picks, size_t n_changed)
{
    struct kernels_pick *picks = with_room(s->picks, &s->capacity_picks, n_picks, sizeof *picks);
    if (!picks)
        return -ENOMEM;
    s->picks = picks;
    struct kernels_logit *changed = with_room(s->changed, &s->capacity_changed, n_changed, sizeof *changed);
    if (!changed)
        return -ENOMEM;
    s->changed = changed;
    return 0;
}

int sampler_scratch_open(struct engine *e)
{
    int rc = e->ops->reserve_pick(e->kernels, e->info.n_vocab);
    if (rc)
        return rc;
    struct sampler_scratch *s = e->sampler = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->seen = calloc((size_t)e->info.n_vocab, sizeof *s->seen);
    return s->seen ? make_room(s, 8, PENALTY_LAST_DEFAULT) : -ENOMEM;
}

void sampler_scratch_close(struct engine *e)
{
    struct sampler_scratch *s = e->sampler;
    if (!s)
        return;
    free(s->seen);
    free(s->picks);
    free(s->changed);
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

/* First token that the penalties look back at. */
static int penalty_first(const struct engine_sample *sample)
{
    int last = sample->settings->penalty_last ? sample->settings->penalty_last : PENALTY_LAST_DEFAULT;
    return sample->position > last ? sample->position - last : 0;
}

static bool has_penalties(const struct engine_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

/* How many logits the penalties can change. */
static size_t penalty_room(const struct engine *e, const struct engine_sample *sample)
{
    if (!has_penalties(sample->settings))
        return 0;
    int n = sample->position - penalty_first(sample);
    return (size_t)(n < e->info.n_vocab ? n : e->info.n_vocab);
}

/* Writes the logits that the penalties change, and returns how many. */
static int penalize(const struct engine *e, const struct engine_sample *sample, struct kernels_logit *changed)
{
    const struct engine_sampling *s = sample->settings;
    const engine_token *context = sample->context;
    uint16_t *seen = e->sampler->seen;
    int n = 0;
    if (!has_penalties(s))
        return 0;
    for (int i = penalty_first(sample); i < sample->position; i++)
        if (context[i] >= 0 && context[i] < e->info.n_vocab && seen[context[i]] < UINT16_MAX)
            seen[context[i]]++;
    for (int i = penalty_first(sample); i < sample->position; i++) {
        engine_token id = context[i];
        if (id < 0 || id >= e->info.n_vocab || seen[id] == 0)
            continue;
        float x = sample->logits[id];
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        x -= s->presence_penalty + s->frequency_penalty * (float)seen[id];
        changed[n++] = (struct kernels_logit){id, x};
        seen[id] = 0;
    }
    return n;
}

int engine_sample(struct engine *e, struct engine_sample *samples, int n)
{
    struct sampler_scratch *s = e->sampler;
    size_t room = 0;
    for (int i = 0; i < n; i++)
        room += penalty_room(e, &samples[i]);
    if (make_room(s, (size_t)n, room))
        return -ENOMEM;
    struct kernels_logit *changed = s->changed;
    for (int i = 0; i < n; i++) {
        const struct engine_sampling *set = samples[i].settings;
        struct kernels_pick *p = &s->picks[i];
        *p = (struct kernels_pick){.logits = samples[i].logits,
                                   .n = e->info.n_vocab,
                                   .changed = changed,
                                   .n_changed = penalize(e, &samples[i], changed),
                                   .temperature = set->temperature,
                                   .top_k = set->top_k,
                                   .top_p = set->top_p,
                                   .min_p = set->min_p,
                                   .random = random_at(set->seed, samples[i].position)};
        changed += p->n_changed;
    }
    e->ops->pick(e->kernels, s->picks, n);
    for (int i = 0; i < n; i++) {
        samples[i].result = s->picks[i].id < 0 ? -EDOM : 0;
        if (samples[i].result == 0)
            samples[i].token = s->picks[i].id;
    }
    return 0;
}

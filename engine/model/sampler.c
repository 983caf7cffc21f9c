/* sampler.c - what is asked of the backend when it picks tokens, and what its answer means.
 *
 * What is asked: which tokens have a bias, how often the tokens in sight were said, for the penalties, and the random
 * number, which is a function of (seed, position) alone, so that a turn can be replayed from its seed. The backend
 * picks (kernels_ops.pick), for all sequences at once.
 *
 * The penalties are those of common APIs: repetition divides a positive logit and multiplies a negative one (Keskar et
 * al., CTRL, arXiv:1909.05858); presence and frequency subtract (OpenAI's definition).
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/model/elementary.h"
#include "engine/model/model.h"

#define PENALTY_LAST_DEFAULT 256
#define PENALTY_LAST_MAX     (1 << 20)

struct sampler_scratch {
    uint16_t *counts; /* [n_vocab], all zero between calls */
    struct kernels_pick *picks;
    struct kernels_seen *seen;
    size_t capacity_picks, capacity_seen;
    int n_picks;
    size_t n_seen;
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

int sampler_begin(struct engine *e, int n_picks, size_t changes)
{
    struct sampler_scratch *s = e->sampler;
    struct kernels_pick *picks = with_room(s->picks, &s->capacity_picks, (size_t)n_picks, sizeof *picks);
    if (!picks)
        return -ENOMEM;
    s->picks = picks;
    struct kernels_seen *grown = with_room(s->seen, &s->capacity_seen, changes, sizeof *grown);
    if (!grown)
        return -ENOMEM;
    s->seen = grown;
    s->n_picks = 0;
    s->n_seen = 0;
    return 0;
}

int sampler_scratch_open(struct engine *e)
{
    struct sampler_scratch *s = e->sampler = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->counts = calloc((size_t)e->info.n_vocab, sizeof *s->counts);
    return s->counts ? sampler_begin(e, e->info.step_picks, PENALTY_LAST_DEFAULT) : -ENOMEM;
}

void sampler_scratch_close(struct engine *e)
{
    struct sampler_scratch *s = e->sampler;
    if (!s)
        return;
    free(s->counts);
    free(s->picks);
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

static bool has_penalties(const struct engine_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

/* How many tokens a pick of the token at `position` looks back at. */
static size_t looks_back(const struct engine_sampling *settings, int position)
{
    int last = settings->penalty_last ? settings->penalty_last : PENALTY_LAST_DEFAULT;
    return !has_penalties(settings) ? 0 : position < last ? (size_t)position : (size_t)last;
}

size_t sampler_changes(const struct engine_pick *pick, int position)
{
    return looks_back(pick->settings, position) + (size_t)pick->n_bias;
}

/* Writes which tokens have a bias or were said, and how often, and returns how many they are. */
static int find_seen(const struct engine *e, const struct engine_pick *pick, const engine_token *said, size_t n,
                     struct kernels_seen *out)
{
    uint16_t *counts = e->sampler->counts;
    int n_seen = 0;
    for (size_t i = 0; i < n; i++)
        if (said[i] >= 0 && said[i] < e->info.n_vocab && counts[said[i]] < UINT16_MAX)
            counts[said[i]]++;
    for (int i = 0; i < pick->n_bias; i++) {
        engine_token id = pick->bias[i].token;
        if (id < 0 || id >= e->info.n_vocab)
            continue;
        out[n_seen++] = (struct kernels_seen){id, counts[id], pick->bias[i].bias};
        counts[id] = 0;
    }
    for (size_t i = 0; i < n; i++) {
        engine_token id = said[i];
        if (id < 0 || id >= e->info.n_vocab || counts[id] == 0)
            continue;
        out[n_seen++] = (struct kernels_seen){id, counts[id], 0};
        counts[id] = 0;
    }
    return n_seen;
}

void sampler_add(struct engine *e, const struct engine_pick *pick, const engine_token *context, int position, int row)
{
    struct sampler_scratch *s = e->sampler;
    const struct engine_sampling *set = pick->settings;
    size_t back = looks_back(set, position);
    struct kernels_seen *seen = s->seen + s->n_seen;
    struct kernels_pick *p = &s->picks[s->n_picks++];
    *p = (struct kernels_pick){.row = row,
                               .seen = seen,
                               .n_seen = find_seen(e, pick, context + position - back, back, seen),
                               .repetition = set->repetition_penalty,
                               .presence = set->presence_penalty,
                               .frequency = set->frequency_penalty,
                               .mask = pick->mask,
                               .temperature = set->temperature,
                               .top_k = set->top_k,
                               .top_p = set->top_p,
                               .min_p = set->min_p,
                               .random = random_at(set->seed, position),
                               .odds = pick->logprobs,
                               .n_top = pick->logprobs ? pick->n_top : 0};
    s->n_seen += (size_t)p->n_seen;
}

const struct kernels_pick *sampler_picks(const struct engine *e, int *n)
{
    *n = e->sampler->n_picks;
    return e->sampler->picks;
}

void sampler_take(const struct kernels_picked *picked, struct engine_pick *pick)
{
    pick->result = picked->id == KERNELS_PICK_NONE ? -ENODATA : picked->id < 0 ? -EDOM : 0;
    if (pick->result)
        return;
    pick->token = picked->id;
    if (!pick->logprobs)
        return;
    double total = elementary_log((double)picked->mass * 0x1p-39);
    pick->logprob = (float)((double)picked->logit - (double)picked->max - total);
    for (int i = 0; i < pick->n_top; i++)
        pick->top[i] = (struct engine_logprob){picked->top[i],
                                               (float)((double)picked->top_logits[i] - (double)picked->max - total)};
}

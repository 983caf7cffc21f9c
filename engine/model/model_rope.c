/* model_rope.c - rotary position settings of a model file and the rotation table of a step.
 *
 * RoPE: Su et al., arXiv:2104.09864. Scaling: linear (positions divided by a factor), YaRN (Peng et al.,
 * arXiv:2309.00071), Llama 3's per-frequency divisors, which files carry as the tensor rope_freqs.weight, and LongRoPE
 * (Ding et al., arXiv:2402.13753): two lists of divisors, of which the one for long contexts is taken when this
 * engine's are longer than what the model was first trained on. Angles and their sines are computed in double precision
 * and rounded once, by code of our own: results do not depend on the math library that is there.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file/file.h"
#include "engine/model/arch.h"
#include "engine/model/elementary.h"

#define DEFAULT_BASE   10000.0f
#define YARN_BETA_FAST 32.0f
#define YARN_BETA_SLOW 1.0f

struct scaling {
    enum { SCALE_NONE, SCALE_LINEAR, SCALE_YARN, SCALE_LONG } kind;
    float factor;
    uint32_t original_ctx;
    float beta_fast, beta_slow, attn_factor;
    float log_multiplier; /* YaRN's factor on cos and sin is divided by the one with this in it; 0: by nothing */
    bool exact;           /* YaRN's borders are not rounded to whole dimensions */
};

/* YaRN's factor on cos and sin. */
static double yarn_magnitude(float factor, float multiplier)
{
    return factor > 1.0f ? 1.0 + 0.1 * (double)multiplier * elementary_log(factor) : 1.0;
}

/* YaRN: dimension whose wavelength fits `turns` times into the original context. */
static double yarn_dim(int rot, double base, uint32_t ctx, double turns)
{
    return rot * elementary_log(ctx / (turns * 2 * M_PI)) / (2 * elementary_log(base));
}

/* -ERANGE: an angle within the context is out of range. */
static int set_rope(struct model_rope *r, int rot, double base, const struct scaling *s, const float *divisors,
                    int ctx_tokens)
{
    r->rot = rot;
    r->magnitude = 1.0;
    r->inv_freq = calloc((size_t)(rot / 2), sizeof *r->inv_freq);
    if (!r->inv_freq)
        return -ENOMEM;
    double low = 0, high = 0;
    if (s->kind == SCALE_YARN) {
        low = yarn_dim(rot, base, s->original_ctx, s->beta_fast);
        high = yarn_dim(rot, base, s->original_ctx, s->beta_slow);
        low = s->exact ? low : floor(low);
        high = s->exact ? high : ceil(high);
        low = low < 0 ? 0 : low;
        high = high > rot - 1 ? rot - 1 : high;
        r->magnitude =
            (double)s->attn_factor * (yarn_magnitude(s->factor, 1.0f) / yarn_magnitude(s->factor, s->log_multiplier));
    } else if (s->kind == SCALE_LONG) {
        r->magnitude = s->attn_factor;
    }
    for (int i = 0; i < rot / 2; i++) {
        double f = elementary_exp(-2.0 * i / rot * elementary_log(base));
        if (divisors)
            f /= divisors[i];
        if (s->kind == SCALE_LINEAR) {
            f /= s->factor;
        } else if (s->kind == SCALE_YARN) {
            double ramp = (i - low) / fmax(0.001, high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / s->factor * ramp + f * (1 - ramp);
        }
        if (!(f * ctx_tokens < KERNELS_ANGLE_MOST))
            return -ERANGE;
        r->inv_freq[i] = f;
    }
    return 0;
}

/* Whether a string of the file is `text`. */
static bool is(struct gguf_string s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.text, text, s.len) == 0;
}

static int read_scaling(const struct gguf *g, const struct model *m, struct scaling *s, char *err, size_t err_size)
{
    char key[160];
    struct gguf_string kind = {"", 0};
    int rc;
    *s = (struct scaling){.factor = 1.0f,
                          .original_ctx = (uint32_t)m->ctx_model,
                          .beta_fast = YARN_BETA_FAST,
                          .beta_slow = YARN_BETA_SLOW,
                          .attn_factor = 1.0f,
                          .exact = m->arch->exact_yarn};
#define KEY(suffix) (snprintf(key, sizeof key, "%s.rope." suffix, m->arch->name), key)
    if ((rc = gguf_get_string(g, KEY("scaling.type"), GGUF_OPTIONAL, &kind, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scale_linear"), GGUF_OPTIONAL, &s->factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.factor"), GGUF_OPTIONAL, &s->factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.attn_factor"), GGUF_OPTIONAL, &s->attn_factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.yarn_log_multiplier"), GGUF_OPTIONAL, &s->log_multiplier, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.yarn_beta_fast"), GGUF_OPTIONAL, &s->beta_fast, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.yarn_beta_slow"), GGUF_OPTIONAL, &s->beta_slow, err, err_size)) ||
        (rc = gguf_get_u32(g, KEY("scaling.original_context_length"), GGUF_OPTIONAL, &s->original_ctx, err, err_size)))
        return rc;
#undef KEY
    bool has_factor = s->factor != 1.0f && s->factor != 0.0f;
    if (is(kind, "yarn"))
        s->kind = has_factor ? SCALE_YARN : SCALE_NONE;
    else if (m->arch->long_rope && (is(kind, "longrope") || is(kind, "")))
        s->kind = SCALE_LONG;
    else if (is(kind, "linear") || is(kind, ""))
        s->kind = has_factor ? SCALE_LINEAR : SCALE_NONE;
    else if (!is(kind, "none"))
        return gguf_fail(
            g, err, err_size, -ENOTSUP,
            "RoPE scaling '%s' is not supported for models of this architecture; convod knows none, linear "
            "and yarn%s",
            gguf_show(kind.text, kind.len).text, m->arch->long_rope ? " and longrope" : "");
    if (!(s->factor >= 0.0f && s->factor <= 1e6f && s->attn_factor > 0.0f && s->attn_factor <= 100.0f &&
          s->log_multiplier >= 0.0f && s->log_multiplier <= 100.0f && s->beta_slow > 0.0f &&
          s->beta_fast >= s->beta_slow && s->beta_fast <= 1e6f && s->original_ctx > 0))
        return gguf_fail(g, err, err_size, -EBADMSG, "the RoPE scaling settings (%s.rope.scaling.*) are out of range",
                         m->arch->name);
    return 0;
}

/* Divisors of the frequencies, [n]; *out is NULL when the file has none. */
static int read_divisors(const struct gguf *g, const char *name, uint32_t n, float **out, char *err, size_t err_size)
{
    const struct gguf_tensor *t;
    int rc = gguf_tensor_get(g, name, GGUF_OPTIONAL, &t, err, err_size);
    *out = NULL;
    if (rc || !t)
        return rc;
    if (t->type != KERNELS_F32 || t->values != n)
        return gguf_fail(g, err, err_size, -EBADMSG, "%s must hold %u F32 values", name, n);
    float *divisors = malloc(n * sizeof *divisors);
    if (!divisors)
        return gguf_fail(g, err, err_size, -ENOMEM, "no memory for %s", name);
    rc = gguf_tensor_read(g, t, 0, n * sizeof *divisors, divisors, err, err_size);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        if (!(divisors[i] > 0.0f && divisors[i] < 1e9f))
            rc = gguf_fail(g, err, err_size, -EBADMSG, "%s[%u] is not a positive number", name, i);
    if (rc)
        free(divisors);
    else
        *out = divisors;
    return rc;
}

/* A base of frequencies; *base holds its default. */
static int read_base(const struct gguf *g, const struct model *m, const char *name, float *base, char *err,
                     size_t err_size)
{
    char key[160];
    snprintf(key, sizeof key, "%s.rope.%s", m->arch->name, name);
    int rc = gguf_get_f32(g, key, GGUF_OPTIONAL, base, err, err_size);
    if (rc == 0 && !(*base > 1.0f && *base < 1e15f))
        rc = gguf_fail(g, err, err_size, -EBADMSG, "%s is out of range", key);
    return rc;
}

int model_rope_open(const struct gguf *g, int ctx_tokens, struct model *m, char *err, size_t err_size)
{
    char key[160];
    struct scaling scaling;
    int head_dim = m->layers[0].kv.head_dim;
    for (int l = 1; l < m->n_layers; l++)
        head_dim = m->layers[l].kv.head_dim < head_dim ? m->layers[l].kv.head_dim : head_dim;
    uint32_t rot = (uint32_t)head_dim;
    float base = DEFAULT_BASE;
    int rc = read_scaling(g, m, &scaling, err, err_size);
    if (rc)
        return rc;
    snprintf(key, sizeof key, "%s.rope.dimension_count", m->arch->name);
    if ((rc = gguf_get_u32(g, key, GGUF_OPTIONAL, &rot, err, err_size)))
        return rc;
    if (rot == 0 || rot % 2 || rot > (uint32_t)head_dim)
        return gguf_fail(g, err, err_size, -EBADMSG, "%s is %u; it must be even and at most the head's %d", key, rot,
                         head_dim);
    if (m->temperature != 0.0f && rot != (uint32_t)head_dim)
        return gguf_fail(g, err, err_size, -ENOTSUP,
                         "%s is %u; where queries grow with their position, convod rotates whole heads (%d)", key, rot,
                         head_dim);
    m->temperature_ctx = (int)(scaling.original_ctx > INT32_MAX ? INT32_MAX : scaling.original_ctx);
    if ((rc = read_base(g, m, "freq_base", &base, err, err_size)))
        return rc;
    /* Without windows the second table serves nobody, but it is part of the fingerprints of what is stored. */
    bool own_base = m->arch->window.key == WINDOW_NONE || m->arch->window.rope_base != 0.0f;
    float window_base = !own_base ? base : m->arch->window.rope_base != 0.0f ? m->arch->window.rope_base : DEFAULT_BASE;
    if ((rc = read_base(g, m, "freq_base_swa", &window_base, err, err_size)))
        return rc;

    const char *name = scaling.kind != SCALE_LONG                   ? "rope_freqs.weight"
                       : ctx_tokens > (int64_t)scaling.original_ctx ? "rope_factors_long.weight"
                                                                    : "rope_factors_short.weight";
    float *divisors;
    if ((rc = read_divisors(g, name, rot / 2, &divisors, err, err_size)))
        return rc;
    /* A model whose layers with windows have a base of their own scales the others alone. */
    const struct scaling none = {.kind = SCALE_NONE};
    rc = set_rope(&m->rope[0], (int)rot, base, &scaling, divisors, ctx_tokens);
    if (!rc)
        rc = set_rope(&m->rope[1], (int)rot, window_base, own_base ? &none : &scaling, own_base ? NULL : divisors,
                      ctx_tokens);
    free(divisors);
    if (rc == -ERANGE)
        return gguf_fail(g, err, err_size, -EBADMSG,
                         "RoPE frequencies are out of range: a factor or divisor is too small for %d tokens",
                         ctx_tokens);
    return rc ? gguf_fail(g, err, err_size, rc, "no memory for RoPE frequencies") : 0;
}

void model_rope_hash(const struct model *m, void (*update)(void *h, const void *p, size_t n), void *h)
{
    for (int i = 0; i < MODEL_ROPES; i++) {
        const struct model_rope *r = &m->rope[i];
        /* Rounded to single precision, so that a last bit of theirs, which no table shows, does not orphan stored rows.
         */
        float magnitude = (float)r->magnitude;
        update(h, &r->rot, sizeof r->rot);
        update(h, &magnitude, sizeof magnitude);
        for (int j = 0; j < r->rot / 2; j++) {
            float f = (float)r->inv_freq[j];
            update(h, &f, sizeof f);
        }
    }
}

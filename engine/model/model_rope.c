/* model_rope.c - rotary position settings of a model file and the rotation table of a step.
 *
 * RoPE: Su et al., arXiv:2104.09864. Scaling: linear (positions divided by a factor), YaRN (Peng et al.,
 * arXiv:2309.00071), and Llama 3's per-frequency divisors, which files carry as the tensor rope_freqs.weight. Angles
 * and their sines are computed in double precision and rounded once.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/file/file.h"
#include "engine/model/model.h"

#define GEMMA3_LOCAL_BASE 10000.0f
#define YARN_BETA_FAST    32.0f
#define YARN_BETA_SLOW    1.0f

struct scaling {
    enum { SCALE_NONE, SCALE_LINEAR, SCALE_YARN } kind;
    float factor;
    uint32_t original_ctx;
    float beta_fast, beta_slow, attn_factor;
};

/* YaRN: dimension whose wavelength fits `turns` times into the original context. */
static double yarn_dim(int rot, double base, uint32_t ctx, double turns)
{
    return rot * log(ctx / (turns * 2 * M_PI)) / (2 * log(base));
}

static int set_rope(struct model_rope *r, int rot, double base, const struct scaling *s, const float *divisors)
{
    r->rot = rot;
    r->magnitude = 1.0;
    r->inv_freq = calloc((size_t)(rot / 2), sizeof *r->inv_freq);
    if (!r->inv_freq)
        return -ENOMEM;
    double low = 0, high = 0;
    if (s->kind == SCALE_YARN) {
        low = floor(yarn_dim(rot, base, s->original_ctx, s->beta_fast));
        high = ceil(yarn_dim(rot, base, s->original_ctx, s->beta_slow));
        low = low < 0 ? 0 : low;
        high = high > rot - 1 ? rot - 1 : high;
        r->magnitude = (double)s->attn_factor * (s->factor > 1.0f ? 1.0 + 0.1 * log(s->factor) : 1.0);
    }
    for (int i = 0; i < rot / 2; i++) {
        double f = pow(base, -2.0 * i / rot);
        if (divisors)
            f /= divisors[i];
        if (s->kind == SCALE_LINEAR) {
            f /= s->factor;
        } else if (s->kind == SCALE_YARN) {
            double ramp = (i - low) / fmax(0.001, high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / s->factor * ramp + f * (1 - ramp);
        }
        r->inv_freq[i] = f;
    }
    return 0;
}

static int read_scaling(const struct gguf *g, const char *arch, const struct model *m, struct scaling *s, char *err,
                        size_t err_size)
{
    char key[160];
    struct gguf_string kind = {"", 0};
    int rc;
    *s = (struct scaling){SCALE_NONE, 1.0f, (uint32_t)m->ctx_model, YARN_BETA_FAST, YARN_BETA_SLOW, 1.0f};
#define KEY(suffix) (snprintf(key, sizeof key, "%s.rope." suffix, arch), key)
    if ((rc = gguf_get_string(g, KEY("scaling.type"), GGUF_OPTIONAL, &kind, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scale_linear"), GGUF_OPTIONAL, &s->factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.factor"), GGUF_OPTIONAL, &s->factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.attn_factor"), GGUF_OPTIONAL, &s->attn_factor, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.yarn_beta_fast"), GGUF_OPTIONAL, &s->beta_fast, err, err_size)) ||
        (rc = gguf_get_f32(g, KEY("scaling.yarn_beta_slow"), GGUF_OPTIONAL, &s->beta_slow, err, err_size)) ||
        (rc = gguf_get_u32(g, KEY("scaling.original_context_length"), GGUF_OPTIONAL, &s->original_ctx, err, err_size)))
        return rc;
#undef KEY
    bool has_factor = s->factor != 1.0f && s->factor != 0.0f;
    if (kind.len == 6 && !memcmp(kind.text, "linear", 6)) {
        s->kind = has_factor ? SCALE_LINEAR : SCALE_NONE;
    } else if (kind.len == 4 && !memcmp(kind.text, "yarn", 4)) {
        s->kind = has_factor ? SCALE_YARN : SCALE_NONE;
    } else if (kind.len == 0) {
        s->kind = has_factor ? SCALE_LINEAR : SCALE_NONE;
    } else if (!(kind.len == 4 && !memcmp(kind.text, "none", 4))) {
        return gguf_fail(g, err, err_size, -ENOTSUP,
                         "RoPE scaling '%s' is not supported; convod knows none, linear and yarn",
                         gguf_show(kind.text, kind.len).text);
    }
    if (!(s->factor >= 0.0f && s->factor <= 1e6f && s->attn_factor > 0.0f && s->attn_factor <= 100.0f &&
          s->beta_slow > 0.0f && s->beta_fast >= s->beta_slow && s->beta_fast <= 1e6f && s->original_ctx > 0)) {
        snprintf(err, err_size, "%s: the RoPE scaling settings (%s.rope.scaling.*) are out of range", gguf_path(g),
                 arch);
        return -EBADMSG;
    }
    return 0;
}

int model_rope_open(const struct gguf *g, const char *arch, struct model *m, char *err, size_t err_size)
{
    char key[160];
    struct scaling scaling;
    uint32_t rot = (uint32_t)m->head_dim;
    float base = 10000.0f;
    int rc = read_scaling(g, arch, m, &scaling, err, err_size);
    if (rc)
        return rc;
    snprintf(key, sizeof key, "%s.rope.dimension_count", arch);
    if ((rc = gguf_get_u32(g, key, GGUF_OPTIONAL, &rot, err, err_size)))
        return rc;
    if (rot == 0 || rot % 2 || rot > (uint32_t)m->head_dim) {
        snprintf(err, err_size, "%s: %s is %u; it must be even and at most the head's %d", gguf_path(g), key, rot,
                 m->head_dim);
        return -EBADMSG;
    }
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    if ((rc = gguf_get_f32(g, key, GGUF_OPTIONAL, &base, err, err_size)))
        return rc;
    float local_base = GEMMA3_LOCAL_BASE;
    snprintf(key, sizeof key, "%s.rope.freq_base_swa", arch);
    if ((rc = gguf_get_f32(g, key, GGUF_OPTIONAL, &local_base, err, err_size)))
        return rc;
    if (!(base > 1.0f && base < 1e15f && local_base > 1.0f && local_base < 1e15f)) {
        snprintf(err, err_size, "%s: %s.rope.freq_base is out of range", gguf_path(g), arch);
        return -EBADMSG;
    }

    float *divisors = NULL;
    const struct gguf_tensor *t;
    if ((rc = gguf_tensor_get(g, "rope_freqs.weight", GGUF_OPTIONAL, &t, err, err_size)))
        return rc;
    if (t) {
        if (t->type != KERNELS_F32 || t->values != rot / 2) {
            snprintf(err, err_size, "%s: rope_freqs.weight must hold %u F32 values", gguf_path(g), rot / 2);
            return -EBADMSG;
        }
        divisors = malloc(rot / 2 * sizeof *divisors);
        if (!divisors)
            return gguf_fail(g, err, err_size, -ENOMEM, "no memory for rope_freqs.weight");
        memcpy(divisors, t->data, rot / 2 * sizeof *divisors);
        for (uint32_t i = 0; i < rot / 2; i++)
            if (!(divisors[i] > 0.0f && divisors[i] < 1e9f)) {
                snprintf(err, err_size, "%s: rope_freqs.weight[%u] is not a positive number", gguf_path(g), i);
                free(divisors);
                return -EBADMSG;
            }
    }
    const struct scaling none = {.kind = SCALE_NONE};
    rc = set_rope(&m->rope[MODEL_FULL], (int)rot, base, &scaling, divisors);
    if (!rc)
        rc = set_rope(&m->rope[MODEL_WINDOW], (int)rot, local_base, &none, NULL);
    free(divisors);
    return rc ? gguf_fail(g, err, err_size, rc, "no memory for RoPE frequencies") : 0;
}

void model_rope_table(const struct model_rope *r, const int *positions, int n, float *out)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < r->rot / 2; j++) {
            double s, c;
            sincos(positions[i] * r->inv_freq[j], &s, &c);
            *out++ = (float)(c * r->magnitude);
            *out++ = (float)(s * r->magnitude);
        }
}

void model_rope_hash(const struct model *m, void (*update)(void *h, const void *p, size_t n), void *h)
{
    for (int g = 0; g < MODEL_GROUPS; g++) {
        const struct model_rope *r = &m->rope[g];
        /* Rounded to single precision, so that another math library's last bit does not orphan stored rows. */
        float magnitude = (float)r->magnitude;
        update(h, &r->rot, sizeof r->rot);
        update(h, &magnitude, sizeof magnitude);
        for (int i = 0; i < r->rot / 2; i++) {
            float f = (float)r->inv_freq[i];
            update(h, &f, sizeof f);
        }
    }
}

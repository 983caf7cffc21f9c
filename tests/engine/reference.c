/* reference.c - see reference.h. */
#include "tests/engine/reference.h"

#include "engine/file/file.h"
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct matrix {
    double *w; /* [rows][cols] */
    int rows, cols;
    bool quantized;
};

struct layer {
    struct matrix q, k, v, o, gate, up, down;
    struct matrix router, gates, ups, downs; /* of experts: their matrices one behind the other */
    struct matrix attn_norm, ffn_norm, q_bias, k_bias, v_bias, q_norm, k_norm, post_attn_norm, post_ffn_norm;
    struct matrix o_bias, sinks, router_bias, gates_bias, ups_bias, downs_bias; /* gpt-oss */
};

struct reference {
    struct tiny_model m;
    enum kernels_kv_type kv_type;
    bool round_activations;
    struct gguf *g;
    struct kernels *k;
    struct layer *layers;
    struct matrix embed, output, output_norm;
};

/* A layer's matrices, by the names that files have for them. */
#define AT(member) offsetof(struct layer, member)
static const struct {
    size_t at;
    const char *name;
} TENSORS[] = {
    {AT(q), "attn_q.weight"},
    {AT(k), "attn_k.weight"},
    {AT(v), "attn_v.weight"},
    {AT(o), "attn_output.weight"},
    {AT(gate), "ffn_gate.weight"},
    {AT(up), "ffn_up.weight"},
    {AT(down), "ffn_down.weight"},
    {AT(router), "ffn_gate_inp.weight"},
    {AT(gates), "ffn_gate_exps.weight"},
    {AT(ups), "ffn_up_exps.weight"},
    {AT(downs), "ffn_down_exps.weight"},
    {AT(o_bias), "attn_output.bias"},
    {AT(sinks), "attn_sinks.weight"},
    {AT(router_bias), "ffn_gate_inp.bias"},
    {AT(gates_bias), "ffn_gate_exps.bias"},
    {AT(ups_bias), "ffn_up_exps.bias"},
    {AT(downs_bias), "ffn_down_exps.bias"},
    {AT(attn_norm), "attn_norm.weight"},
    {AT(ffn_norm), "ffn_norm.weight"},
    {AT(q_bias), "attn_q.bias"},
    {AT(k_bias), "attn_k.bias"},
    {AT(v_bias), "attn_v.bias"},
    {AT(q_norm), "attn_q_norm.weight"},
    {AT(k_norm), "attn_k_norm.weight"},
    {AT(post_attn_norm), "post_attention_norm.weight"},
    {AT(post_ffn_norm), "post_ffw_norm.weight"},
};

static struct matrix *tensor_of(struct layer *y, size_t i)
{
    return (struct matrix *)(void *)((char *)y + TENSORS[i].at);
}

#define TENSOR_COUNT (sizeof TENSORS / sizeof *TENSORS)

static void *need(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

static double *doubles(size_t n)
{
    return need(calloc(n ? n : 1, sizeof(double)));
}

/* ---- weights ---- */

/* A tensor that is not there has no values. */
static struct matrix read_matrix(struct reference *r, const char *name)
{
    struct matrix out = {0};
    const struct gguf_tensor *t = gguf_tensor_find(r->g, name);
    if (t == NULL)
        return out;
    out.cols = (int)t->dims[0];
    out.rows = (int)(t->dims[1] * t->dims[2]);
    out.quantized = kernels_type_info(t->type)->block_values > 1;
    out.w = doubles((size_t)out.rows * (size_t)out.cols);
    void *packed = need(aligned_alloc(64, (kernels_packed_bytes(t->type, out.rows, out.cols) + 63) & ~(size_t)63));
    void *data = need(malloc(t->bytes));
    if (gguf_tensor_read(r->g, t, 0, t->bytes, data, NULL, 0) != 0)
        abort();
    for (int i = 0; i < (out.rows + KERNELS_ROW_GROUP - 1) / KERNELS_ROW_GROUP; i++)
        kernels_pack_group(t->type, out.rows, out.cols, i, data, packed);
    free(data);
    const struct kernels_matrix w = {.type = t->type, .rows = out.rows, .cols = out.cols, .data = packed};
    float *row = need(malloc((size_t)out.cols * sizeof *row));
    for (int32_t i = 0; i < out.rows; i++) {
        kernels_op_embed(r->k, &w, &i, 1, 1.0f, row);
        for (int j = 0; j < out.cols; j++)
            out.w[(size_t)i * (size_t)out.cols + (size_t)j] = row[j];
    }
    free(row);
    free(packed);
    return out;
}

static struct matrix read_layer_matrix(struct reference *r, int layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return read_matrix(r, full);
}

/* Some of a matrix's rows, as a matrix. */
static struct matrix cut(const struct matrix *m, int first, int rows)
{
    struct matrix out = {doubles((size_t)rows * (size_t)m->cols), rows, m->cols, m->quantized};
    memcpy(out.w, m->w + (size_t)first * (size_t)m->cols, (size_t)rows * (size_t)m->cols * sizeof *out.w);
    return out;
}

/* Queries, keys and values out of one tensor: rows of a matrix, or values of a vector. Frees it. */
static void cut_qkv(const struct tiny_model *m, struct matrix all, struct matrix *q, struct matrix *k, struct matrix *v)
{
    int n_q = m->n_heads * m->head_dim, n_kv = m->n_kv_heads * m->head_dim;
    bool vector = all.rows == 1;
    if (vector)
        all = (struct matrix){all.w, all.cols, 1, all.quantized};
    *q = cut(&all, 0, n_q);
    *k = cut(&all, n_q, n_kv);
    *v = cut(&all, n_q + n_kv, n_kv);
    for (int i = 0; vector && i < 3; i++) {
        struct matrix *part = i == 0 ? q : i == 1 ? k : v;
        *part = (struct matrix){part->w, 1, part->rows, part->quantized};
    }
    free(all.w);
}

/* Each expert's gate and up out of one tensor. Frees it. */
static void cut_experts(const struct tiny_model *m, struct matrix all, struct matrix *gates, struct matrix *ups)
{
    *gates = cut(&all, 0, m->n_experts * m->n_ff);
    *ups = cut(&all, 0, m->n_experts * m->n_ff);
    size_t part = (size_t)m->n_ff * (size_t)all.cols;
    for (int i = 0; i < m->n_experts; i++) {
        memcpy(gates->w + (size_t)i * part, all.w + 2 * (size_t)i * part, part * sizeof *all.w);
        memcpy(ups->w + (size_t)i * part, all.w + (2 * (size_t)i + 1) * part, part * sizeof *all.w);
    }
    free(all.w);
}

struct reference *reference_open(const struct tiny_model *m, const char *path, enum kernels_kv_type kv_type)
{
    struct reference *r = need(calloc(1, sizeof *r));
    char err[512];
    r->m = *m;
    r->kv_type = kv_type;
    if (gguf_open(path, &r->g, err, sizeof err) ||
        kernels_open(&(struct kernels_opts){.backend = "cpu-portable", .threads = 1}, &r->k, err, sizeof err)) {
        fprintf(stderr, "%s\n", err);
        abort();
    }
    r->layers = need(calloc((size_t)m->n_layers, sizeof *r->layers));
    r->embed = read_matrix(r, "token_embd.weight");
    r->output = read_matrix(r, "output.weight");
    r->output_norm = read_matrix(r, "output_norm.weight");
    for (int l = 0; l < m->n_layers; l++) {
        struct layer *y = &r->layers[l];
        for (size_t i = 0; i < TENSOR_COUNT; i++)
            *tensor_of(y, i) = read_layer_matrix(r, l, TENSORS[i].name);
        if (tiny_facts(m)->gpt_oss) { /* named as others name what is behind attention */
            y->ffn_norm = y->post_attn_norm;
            y->post_attn_norm = (struct matrix){0};
        }
        if (tiny_facts(m)->joined_qkv) {
            cut_qkv(m, read_layer_matrix(r, l, "attn_qkv.weight"), &y->q, &y->k, &y->v);
            if (tiny_facts(m)->qkv_bias)
                cut_qkv(m, read_layer_matrix(r, l, "attn_qkv.bias"), &y->q_bias, &y->k_bias, &y->v_bias);
        }
        if (tiny_facts(m)->joined_experts)
            cut_experts(m, read_layer_matrix(r, l, "ffn_gate_up_exps.weight"), &y->gates, &y->ups);
        if (tiny_facts(m)->joined) {
            struct matrix both = y->up;
            y->gate = cut(&both, 0, m->n_ff);
            y->up = cut(&both, m->n_ff, m->n_ff);
            free(both.w);
        }
    }
    return r;
}

void reference_close(struct reference *r)
{
    for (int l = 0; l < r->m.n_layers; l++) {
        for (size_t i = 0; i < TENSOR_COUNT; i++)
            free(tensor_of(&r->layers[l], i)->w);
    }
    free(r->layers);
    free(r->embed.w);
    free(r->output.w);
    free(r->output_norm.w);
    kernels_close(r->k);
    gguf_close(r->g);
    free(r);
}

void reference_round_activations(struct reference *r)
{
    r->round_activations = true;
}

/* ---- arithmetic ---- */

/* Nearest even in the KV type. */
static double round_kv(const struct reference *r, double v)
{
    float f = (float)v;
    if (r->kv_type == KERNELS_KV_F16)
        return tiny_model_round_half(v);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    memcpy(&f, &bits, 4);
    return f;
}

static void multiply(const struct reference *r, const struct matrix *w, const struct matrix *bias, const double *in,
                     double *out)
{
    double *x = doubles((size_t)w->cols);
    memcpy(x, in, (size_t)w->cols * sizeof *x);
    for (int b = 0; w->quantized && r->round_activations && b < w->cols; b += 32) {
        double most = 0;
        for (int i = b; i < b + 32; i++)
            most = fmax(most, fabs(x[i]));
        for (int i = b; i < b + 32 && most > 0; i++)
            x[i] = nearbyint(x[i] / most * 127) * most / 127;
    }
    for (int i = 0; i < w->rows; i++) {
        const double *row = w->w + (size_t)i * (size_t)w->cols;
        double sum = bias && bias->w ? bias->w[i] : 0;
        for (int j = 0; j < w->cols; j++)
            sum += row[j] * x[j];
        out[i] = sum;
    }
    free(x);
}

static void normalize(const double *x, int n, const double *weight, double *out)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    double scale = 1 / sqrt(sum / n + 1e-6);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * scale * weight[i];
}

/* The dimension that turns `turns` times over the original context, as the code published with the YaRN paper has it.
 */
static double yarn_correction(const struct tiny_model *m, double turns)
{
    return m->rot * log(TINY_YARN_ORIGINAL / (turns * 2 * M_PI)) / (2 * log(m->rope_base));
}

double reference_frequencies(const struct tiny_model *m, bool window_layer, double *out)
{
    const struct tiny_arch_facts *a = tiny_facts(m);
    bool own_base = window_layer && a->window_base != 0;
    double base = own_base ? a->window_base : m->rope_base;
    for (int i = 0; i < m->rot / 2; i++)
        out[i] = pow(base, -(2.0 * i) / m->rot);
    if (own_base || m->rope == TINY_ROPE_PLAIN)
        return 1;
    if (m->rope == TINY_ROPE_LONG) {
        for (int i = 0; i < m->rot / 2; i++)
            out[i] /= tiny_model_divisor(i) / (m->ctx > TINY_YARN_ORIGINAL ? 1 : 2);
        return TINY_ATTN_FACTOR;
    }
    if (m->rope == TINY_ROPE_LINEAR)
        for (int i = 0; i < m->rot / 2; i++)
            out[i] /= TINY_ROPE_FACTOR;
    if (m->rope == TINY_ROPE_DIVISORS)
        for (int i = 0; i < m->rot / 2; i++)
            out[i] /= tiny_model_divisor(i);
    if (m->rope != TINY_ROPE_YARN)
        return 1;
    double low = yarn_correction(m, 32), high = yarn_correction(m, 1);
    low = fmax(a->gpt_oss ? low : floor(low), 0);
    high = fmin(a->gpt_oss ? high : ceil(high), m->rot - 1);
    for (int i = 0; i < m->rot / 2; i++) {
        double keep = 1 - fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1); /* of the unscaled frequency */
        out[i] = out[i] / TINY_ROPE_FACTOR * (1 - keep) + out[i] * keep;
    }
    return a->plain_yarn ? 1 : 0.1 * log(TINY_ROPE_FACTOR) + 1;
}

static void rotate(const struct reference *r, double *heads, int n_heads, int pos, bool window_layer)
{
    double freq[128], magnitude = reference_frequencies(&r->m, window_layer, freq);
    int half = r->m.rot / 2;
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i < half; i++) {
            double *head = heads + (size_t)h * (size_t)r->m.head_dim;
            bool pairs = tiny_facts(&r->m)->pairs;
            double *a = pairs ? &head[2 * i] : &head[i];
            double *b = pairs ? &head[2 * i + 1] : &head[half + i];
            double c = cos(pos * freq[i]) * magnitude, s = sin(pos * freq[i]) * magnitude, x = *a, y = *b;
            *a = x * c - y * s;
            *b = x * s + y * c;
        }
}

static double cap(double x, double c)
{
    return c > 0 ? c * tanh(x / c) : x;
}

/* One head's answer at position pos. k, v: [pos + 1][n_kv_heads * head_dim]. */
static void attend(const struct reference *r, const double *q, const double *k, const double *v, int kv_head, int pos,
                   bool window_layer, const double *sink, double *out)
{
    const struct tiny_model *m = &r->m;
    size_t d = (size_t)m->head_dim, row = (size_t)m->n_kv_heads * d, at = (size_t)kv_head * d;
    int first = window_layer && pos - m->window + 1 > 0 ? pos - m->window + 1 : 0;
    double *p = doubles((size_t)pos + 1), most = -INFINITY, total = 0;
    for (int t = first; t <= pos; t++) {
        for (size_t i = 0; i < d; i++)
            p[t] += q[i] * k[(size_t)t * row + at + i];
        p[t] *= tiny_facts(m)->scores != 0 ? tiny_facts(m)->scores : 1 / sqrt((double)m->head_dim);
        p[t] = cap(p[t], tiny_facts(m)->attn_cap);
        most = fmax(most, p[t]);
    }
    if (sink)
        most = fmax(most, *sink);
    for (int t = first; t <= pos; t++)
        total += p[t] = exp(p[t] - most);
    if (sink)
        total += exp(*sink - most);
    for (size_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int t = first; t <= pos; t++)
            out[i] += p[t] / total * v[(size_t)t * row + at + i];
    }
    free(p);
}

static double activation(const struct reference *r, double x)
{
    if (tiny_facts(&r->m)->gelu)
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return x / (1 + exp(-x));
}

/* gate, up, activation, down: of a whole part or of one expert, with its biases [3] or NULL. */
static void feed_forward(const struct reference *r, const struct matrix *gate, const struct matrix *up,
                         const struct matrix *down, const struct matrix *biases, const double *h, double *out)
{
    double *g = doubles((size_t)gate->rows), *u = doubles((size_t)gate->rows);
    multiply(r, gate, biases ? &biases[0] : NULL, h, g);
    multiply(r, up, biases ? &biases[1] : NULL, h, u);
    for (int i = 0; i < gate->rows; i++) {
        if (tiny_facts(&r->m)->gpt_oss) { /* as its reference code has it: alpha 1.702, limit 7 */
            double x = fmin(g[i], 7), y = fmax(fmin(u[i], 7), -7);
            g[i] = x / (1 + exp(-1.702 * x)) * (y + 1);
        } else {
            g[i] = activation(r, g[i]) * u[i];
        }
    }
    multiply(r, down, biases ? &biases[2] : NULL, g, out);
    free(g);
    free(u);
}

static struct matrix expert_of(const struct matrix *all, int expert, int rows)
{
    struct matrix out = *all;
    if (all->w == NULL)
        return out;
    out.w += (size_t)expert * (size_t)rows * (size_t)all->cols;
    out.rows = rows;
    return out;
}

/* The experts with the largest logits, weighed by the softmax over all of them, made to add up to 1. */
static void mix(const struct reference *r, const struct layer *y, const double *h, double *out)
{
    const struct tiny_model *m = &r->m;
    double p[64], one[512], total = 0, most = -INFINITY;
    bool taken[64] = {false};
    multiply(r, &y->router, &y->router_bias, h, p);
    for (int i = 0; i < m->n_experts; i++)
        most = fmax(most, p[i]);
    for (int i = 0; i < m->n_experts; i++)
        p[i] = exp(p[i] - most);
    for (int k = 0; k < m->n_used; k++) {
        int best = -1;
        for (int i = 0; i < m->n_experts; i++)
            if (!taken[i] && (best < 0 || p[i] > p[best]))
                best = i;
        taken[best] = true;
        total += p[best];
    }
    for (int i = 0; i < m->n_embd; i++)
        out[i] = 0;
    for (int e = 0; e < m->n_experts; e++) {
        if (!taken[e])
            continue;
        struct matrix gate = expert_of(&y->gates, e, m->n_ff), up = expert_of(&y->ups, e, m->n_ff);
        struct matrix down = expert_of(&y->downs, e, m->n_embd);
        const struct matrix biases[3] = {expert_of(&y->gates_bias, e, 1), expert_of(&y->ups_bias, e, 1),
                                         expert_of(&y->downs_bias, e, 1)};
        feed_forward(r, &gate, &up, &down, y->gates_bias.w ? biases : NULL, h, one);
        for (int i = 0; i < m->n_embd; i++)
            out[i] += p[e] / total * one[i];
    }
}

/* ---- the pass ---- */

static void add_block(const struct reference *r, const struct matrix *post_norm, double *block, double *x)
{
    if (post_norm->w)
        normalize(block, r->m.n_embd, post_norm->w, block);
    for (int i = 0; i < r->m.n_embd; i++)
        x[i] += block[i] * (tiny_facts(&r->m)->residual != 0 ? tiny_facts(&r->m)->residual : 1);
}

static void run_layer(const struct reference *r, int index, int pos, double *x, double *k, double *v)
{
    const struct tiny_model *m = &r->m;
    const struct layer *y = &r->layers[index];
    bool window_layer = tiny_model_windowed(m, index);
    size_t d = (size_t)m->head_dim, kv_row = (size_t)m->n_kv_heads * d;
    double *h = doubles((size_t)m->n_embd), *q = doubles((size_t)m->n_heads * d), *a = doubles((size_t)m->n_heads * d);
    double *mixed = doubles((size_t)m->n_embd);
    double *new_k = k + (size_t)pos * kv_row, *new_v = v + (size_t)pos * kv_row;

    normalize(x, m->n_embd, y->attn_norm.w, h);
    multiply(r, &y->q, &y->q_bias, h, q);
    multiply(r, &y->k, &y->k_bias, h, new_k);
    multiply(r, &y->v, &y->v_bias, h, new_v);
    for (int i = 0; y->q_norm.w && i < m->n_heads; i++)
        normalize(q + (size_t)i * d, m->head_dim, y->q_norm.w, q + (size_t)i * d);
    for (int i = 0; y->k_norm.w && i < m->n_kv_heads; i++)
        normalize(new_k + (size_t)i * d, m->head_dim, y->k_norm.w, new_k + (size_t)i * d);
    int unrotated = tiny_facts(m)->unrotated_period;
    if (!m->unrotated && (!unrotated || index % unrotated != unrotated - 1)) {
        rotate(r, q, m->n_heads, pos, window_layer);
        rotate(r, new_k, m->n_kv_heads, pos, window_layer);
    }
    double growth = 1 + tiny_facts(m)->temperature * log(1 + floor((double)pos / TINY_YARN_ORIGINAL));
    for (size_t i = 0; i < (size_t)m->n_heads * d; i++)
        q[i] *= growth;
    for (size_t i = 0; i < kv_row; i++) {
        new_k[i] = round_kv(r, new_k[i]);
        new_v[i] = round_kv(r, new_v[i]);
    }
    for (int i = 0; i < m->n_heads; i++)
        attend(r, q + (size_t)i * d, k, v, i / (m->n_heads / m->n_kv_heads), pos, window_layer,
               y->sinks.w ? &y->sinks.w[i] : NULL, a + (size_t)i * d);
    multiply(r, &y->o, &y->o_bias, a, h);
    add_block(r, &y->post_attn_norm, h, x);

    normalize(x, m->n_embd, y->ffn_norm.w, h);
    if (m->n_experts)
        mix(r, y, h, mixed);
    else
        feed_forward(r, &y->gate, &y->up, &y->down, NULL, h, mixed);
    memcpy(h, mixed, (size_t)m->n_embd * sizeof *h);
    add_block(r, &y->post_ffn_norm, h, x);

    free(h);
    free(q);
    free(a);
    free(mixed);
}

void reference_run(struct reference *r, const int32_t *tokens, int n, double *out)
{
    const struct tiny_model *m = &r->m;
    size_t layer_values = (size_t)n * (size_t)m->n_kv_heads * (size_t)m->head_dim, embd = (size_t)m->n_embd;
    double *k = doubles((size_t)m->n_layers * layer_values), *v = doubles((size_t)m->n_layers * layer_values);
    double *x = doubles(embd);
    for (int pos = 0; pos < n; pos++) {
        const struct tiny_arch_facts *a = tiny_facts(m);
        double scale = a->scaled_embedding ? sqrt((double)embd) : a->embedding != 0 ? a->embedding : 1;
        for (size_t i = 0; i < embd; i++)
            x[i] = r->embed.w[(size_t)tokens[pos] * embd + i] * scale;
        for (int l = 0; l < m->n_layers; l++)
            run_layer(r, l, pos, x, k + (size_t)l * layer_values, v + (size_t)l * layer_values);
        normalize(x, m->n_embd, r->output_norm.w, x);
        double *logits = out + (size_t)pos * (size_t)m->n_vocab;
        multiply(r, r->output.w ? &r->output : &r->embed, NULL, x, logits);
        for (int i = 0; i < m->n_vocab; i++)
            logits[i] = cap(a->logits != 0 ? logits[i] / a->logits : logits[i], a->final_cap);
    }
    free(k);
    free(v);
    free(x);
}

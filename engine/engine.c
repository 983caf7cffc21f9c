/* engine.c - opens a model on a backend and says what it is. The steps of opening, each with its own file: the GGUF
 * file, its vocabulary and chat format, the backend, the weights, the KV pools, the scratch of a step. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/file/file.h"
#include "engine/model/model.h"
#include "engine/text/text.h"

#define STEP_TOKENS_DEFAULT 512
#define STEP_TOKENS_MAX     8192

/* Default KV budget: enough for this many sequences of the model's full length, if memory allows. */
#define KV_DEFAULT_SEQUENCES 16

static char *model_name(const struct gguf *g, const char *path)
{
    struct gguf_string s;
    if (gguf_get_string(g, "general.name", GGUF_REQUIRED, &s, NULL, 0) == 0 && s.len > 0 && s.len < 200) {
        bool plain = true;
        for (size_t i = 0; i < s.len; i++)
            plain &= (unsigned char)s.text[i] >= 0x20 && (unsigned char)s.text[i] < 0x7f;
        if (plain)
            return strndup(s.text, s.len);
    }
    const char *base = strrchr(path, '/');
    char *name = strdup(base ? base + 1 : path);
    size_t len = name ? strlen(name) : 0;
    if (len > 5 && !strcmp(name + len - 5, ".gguf"))
        name[len - 5] = 0;
    return name;
}

static int open_kv(struct engine *e, const struct engine_opts *o, char *err, size_t err_size)
{
    struct engine_info *info = &e->info;
    size_t bytes = o->kv_bytes;
    size_t wanted = (size_t)info->ctx_model * info->kv_token_bytes;
    if (bytes == 0) {
        uint64_t half = kernels_available_bytes() / 2;
        bytes = half / KV_DEFAULT_SEQUENCES > wanted ? wanted * KV_DEFAULT_SEQUENCES : (size_t)half;
    }
    kv_pools_size(e);
    if (o->ctx_tokens > info->ctx_model) {
        snprintf(err, err_size, "a context of %d tokens is more than this model was made for (%d)", o->ctx_tokens,
                 info->ctx_model);
        return -EINVAL;
    }
    int capacity = kv_capacity_tokens(e, bytes);
    if (o->ctx_tokens > capacity) {
        snprintf(
            err, err_size,
            "a context of %d tokens does not fit into %zu MiB of KV pages (%d tokens do); raise kv-bytes or lower ctx",
            o->ctx_tokens, bytes >> 20, capacity);
        return -EINVAL;
    }
    info->ctx_tokens = o->ctx_tokens ? o->ctx_tokens : info->ctx_model < capacity ? info->ctx_model : capacity;
    int rc = kv_pools_open(e, bytes, err, err_size);
    info->kv_bytes = engine_kv_use(e).budget_bytes;
    return rc;
}

static int open_parts(struct engine *e, const struct engine_opts *o, char *err, size_t err_size)
{
    struct engine_info *info = &e->info;
    int rc = gguf_open(o->model_path, &e->gguf, err, err_size);
    if (rc)
        return rc;
    size_t file_bytes;
    gguf_bytes(e->gguf, &file_bytes);
    info->file_bytes = file_bytes;
    if (file_bytes > kernels_available_bytes()) {
        snprintf(
            err, err_size,
            "%s: needs about %zu MiB, but only %llu MiB of memory are available; use a smaller model or quantization",
            o->model_path, file_bytes >> 20, (unsigned long long)(kernels_available_bytes() >> 20));
        return -ENOMEM;
    }
    if ((rc = vocab_open(e->gguf, &e->vocab, err, err_size)) ||
        (rc = chat_open(e->gguf, e->vocab, o->chat_format, &e->chat, err, err_size)))
        return rc;
    const struct kernels_opts backend = {.backend = o->backend, .threads = o->threads};
    if ((rc = kernels_open(&backend, &e->kernels, err, err_size)))
        return rc;
    e->ops = kernels_ops(e->kernels);
    if ((rc = fingerprint_file(o->model_path, o->cache_dir, o->progress, o->progress_arg, info->model_sha256, err,
                               err_size)))
        return rc;
    enum kernels_kv_type kv_type = strcmp(info->kv_type, "f16") ? KERNELS_KV_BF16 : KERNELS_KV_F16;
    if ((rc = model_open(e->gguf, e->kernels, kv_type, o->progress, o->progress_arg, &e->model, err, err_size)))
        return rc;
    const struct model *m = &e->model;
    if (vocab_size(e->vocab) > m->n_vocab) {
        snprintf(err, err_size, "%s: the vocabulary has %d tokens, but token_embd.weight only %d rows", o->model_path,
                 vocab_size(e->vocab), m->n_vocab);
        return -EBADMSG;
    }

    struct gguf_string arch;
    if ((rc = gguf_get_string(e->gguf, "general.architecture", GGUF_REQUIRED, &arch, err, err_size)))
        return rc;
    info->arch = !strncmp(arch.text, "qwen2", 5) ? "qwen2" : !strncmp(arch.text, "llama", 5) ? "llama" : "gemma3";
    info->backend = kernels_backend(e->kernels);
    info->chat_format = e->chat ? chat_format(e->chat) : NULL;
    info->quantization = m->quantization;
    info->parameters = m->parameters;
    info->weight_bytes = info->token_weight_bytes = m->weight_bytes;
    if (m->output.data != m->embed.data)
        info->token_weight_bytes -= kernels_packed_bytes(m->embed.type, m->embed.rows, m->embed.cols);
    info->n_layers = m->n_layers;
    info->n_vocab = m->n_vocab;
    info->token_bytes_max = 1;
    for (engine_token id = 0; id < vocab_size(e->vocab); id++) {
        size_t len;
        (void)vocab_token_bytes(e->vocab, id, &len);
        if ((int)len > info->token_bytes_max)
            info->token_bytes_max = (int)len;
    }
    info->n_embd = m->n_embd;
    info->ctx_model = m->ctx_model;
    info->kv_token_bytes = (size_t)m->n_layers * 2 * (size_t)m->n_kv_heads * (size_t)m->head_dim * 2;

    e->layout = calloc((size_t)m->n_layers * 2, sizeof *e->layout);
    e->name = model_name(e->gguf, o->model_path);
    e->file = strdup(o->model_path);
    if (!e->layout || !e->name || !e->file || fingerprint_engine(e)) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    info->name = e->name;
    info->file = e->file;
    for (int i = 0; i < 2 * m->n_layers; i++)
        e->layout[i] = (struct engine_kv_array){.channels = m->n_kv_heads * m->head_dim, .channel_major = i % 2 == 0};

    if ((rc = open_kv(e, o, err, err_size)))
        return rc;
    if ((rc = step_scratch_open(e)) || (rc = sampler_scratch_open(e)))
        snprintf(err, err_size, "not enough memory for steps of %d tokens", info->step_tokens);
    return rc;
}

int engine_open(const struct engine_opts *opts, struct engine **out, char *err, size_t err_size)
{
    const char *kv_type = opts->kv_type ? opts->kv_type : "bf16";
    if (!opts->model_path || opts->threads < 0 || opts->ctx_tokens < 0 || opts->step_tokens < 0) {
        snprintf(err, err_size, "a model file is needed, and no setting may be negative");
        return -EINVAL;
    }
    if (opts->step_tokens > STEP_TOKENS_MAX) {
        snprintf(err, err_size, "a step of %d tokens is too large; %d is the most", opts->step_tokens, STEP_TOKENS_MAX);
        return -EINVAL;
    }
    if (strcmp(kv_type, "bf16") && strcmp(kv_type, "f16")) {
        snprintf(err, err_size, "KV type '%s' is unknown; there are bf16 and f16", kv_type);
        return -EINVAL;
    }
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    e->info.kv_type = strcmp(kv_type, "f16") ? "bf16" : "f16";
    e->info.step_tokens = opts->step_tokens ? opts->step_tokens : STEP_TOKENS_DEFAULT;
    int rc = open_parts(e, opts, err, err_size);
    if (rc) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->kernels) {
        step_scratch_close(e);
        kv_pools_close(e);
        model_close(&e->model, e->kernels);
    }
    sampler_scratch_close(e);
    chat_free(e->chat);
    vocab_close(e->vocab);
    gguf_close(e->gguf);
    kernels_close(e->kernels);
    free(e->layout);
    free(e->name);
    free(e->file);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

const struct engine_kv_array *engine_kv_layout(const struct engine *e, int *n_arrays)
{
    *n_arrays = 2 * e->model.n_layers;
    return e->layout;
}

const struct vocab *engine_vocab(const struct engine *e)
{
    return e->vocab;
}

const struct chat *engine_chat(const struct engine *e)
{
    return e->chat;
}

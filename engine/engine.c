/* engine.c - opens a model on a backend and says what it is, in three steps: read what the file's header says (shape,
 * vocabulary, chat format); admit, which compares weights, KV pages and scratch with the memory that there is; load,
 * which makes the pages and the scratch and reads the weights, hashing the file in the same pass. Whatever is wrong is
 * found in the first two, before anything large is read. Afterwards nobody reads the file. */
#include <errno.h>
#include <fenv.h>
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
#define STEP_PICKS_DEFAULT  64

/* Default KV budget: enough for this many sequences of the model's full length, if memory allows. */
#define DEVICE_FRACTION      0.9
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

/* ---- step one: what the file is --------------------------------------------------------------------------------- */

static int read_file(struct engine *e, const struct engine_opts *o, char *err, size_t err_size)
{
    struct engine_info *info = &e->info;
    enum kernels_kv_type kv_type = strcmp(info->kv_type, "f16") ? KERNELS_KV_BF16 : KERNELS_KV_F16;
    int rc = gguf_open(o->model_path, &e->gguf, err, err_size);
    if (rc || (rc = model_read(e->gguf, kv_type, &e->model, err, err_size)) ||
        (rc = vocab_open(e->gguf, &e->vocab, err, err_size)) ||
        (rc = chat_open(e->gguf, e->vocab, o->chat_format, &e->chat, err, err_size)))
        return rc;
    if (!e->chat && o->need_chat) {
        snprintf(
            err, err_size,
            "%s: a base model without a chat template; use the model's chat or instruct variant, or name a format with "
            "the setting chat-format",
            o->model_path);
        return -ENOTSUP;
    }
    const struct model *m = &e->model;
    if (vocab_size(e->vocab) > m->n_vocab) {
        snprintf(err, err_size, "%s: the vocabulary has %d tokens, but token_embd.weight only %d rows", o->model_path,
                 vocab_size(e->vocab), m->n_vocab);
        return -EBADMSG;
    }
    e->layout = calloc((size_t)m->n_layers * 2, sizeof *e->layout);
    e->name = model_name(e->gguf, o->model_path);
    e->file = strdup(o->model_path);
    if (!e->layout || !e->name || !e->file) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    for (int i = 0; i < 2 * m->n_layers; i++) {
        const struct kernels_kv *kv = &m->layers[i / 2].kv;
        e->layout[i] = (struct engine_kv_array){.channels = kv->kv_heads * kv->head_dim, .channel_major = i % 2 == 0};
        info->kv_token_bytes += (size_t)e->layout[i].channels * kernels_kv_width(kv->type);
    }
    info->name = e->name;
    info->file = e->file;
    info->file_bytes = gguf_bytes(e->gguf);
    info->arch = model_arch_name(m);
    info->chat_format = e->chat ? chat_format(e->chat) : NULL;
    info->calls = e->chat ? chat_calls(e->chat) : ENGINE_CALLS_NONE;
    info->notes = vocab_notes(e->vocab);
    info->quantization = m->quantization;
    info->parameters = m->parameters;
    info->n_layers = m->n_layers;
    info->n_vocab = m->n_vocab;
    info->n_embd = m->n_embd;
    info->ctx_model = m->ctx_model;
    info->token_bytes_max = 1;
    for (engine_token id = 0; id < vocab_size(e->vocab); id++) {
        size_t len;
        (void)vocab_token_bytes(e->vocab, id, &len);
        if ((int)len > info->token_bytes_max)
            info->token_bytes_max = (int)len;
    }
    return 0;
}

/* ---- step two: whether it fits ---------------------------------------------------------------------------------- */

/* What may be taken, of a device no more than its share; `whole`: if nobody else had any of it. */
static uint64_t memory_for(const struct engine *e, const struct engine_opts *o, bool whole)
{
    uint64_t bytes = e->ops->memory_bytes(e->kernels, whole);
    if (e->ops->host)
        return bytes;
    double fraction = o->device_fraction > 0 ? o->device_fraction : DEVICE_FRACTION;
    uint64_t share = (uint64_t)(fraction * (double)e->ops->memory_bytes(e->kernels, true));
    return bytes < share ? bytes : share;
}

/* Chooses the context and the bytes of KV pages (*kv_bytes), and compares all that will be allocated with the memory
 * that is available. */
static int admit(struct engine *e, const struct engine_opts *o, uint64_t available, uint64_t host_memory,
                 size_t *kv_bytes, char *err, size_t err_size)
{
    struct engine_info *info = &e->info;
    info->ctx_tokens = o->ctx_tokens ? o->ctx_tokens : info->ctx_model; /* at most: for what steps need */
    uint64_t weights = e->model.weight_bytes - e->model.host_bytes + model_staged_bytes(&e->model);
    uint64_t scratch = step_scratch_bytes(e);
    uint64_t fixed = weights + scratch, left = available > fixed ? available - fixed : 0;
    size_t bytes = o->kv_bytes, wanted = (size_t)info->ctx_model * info->kv_token_bytes;
    if (fixed > available) {
        snprintf(
            err, err_size,
            "%s: needs about %llu MiB for weights and %llu MiB for steps, but only %llu MiB of memory are available; "
            "use a smaller model or quantization%s",
            o->model_path, (unsigned long long)(weights >> 20), (unsigned long long)(scratch >> 20),
            (unsigned long long)(available >> 20),
            e->ops->host ? "" : ", or raise gpu-memory-fraction or gpu-host-layers");
        return -ENOMEM;
    }
    if (e->model.host_bytes > host_memory) {
        snprintf(err, err_size,
                 "%llu MiB of weights in host memory (gpu-host-layers) are more than the %llu MiB that are available",
                 (unsigned long long)(e->model.host_bytes >> 20), (unsigned long long)(host_memory >> 20));
        return -ENOMEM;
    }
    if (bytes == 0 && !e->ops->host)
        bytes = (size_t)left; /* nobody else wants it */
    else if (bytes == 0)
        bytes = left / 2 / KV_DEFAULT_SEQUENCES > wanted ? wanted * KV_DEFAULT_SEQUENCES : (size_t)(left / 2);
    if (bytes > left) {
        snprintf(err, err_size,
                 "%zu MiB of KV pages are more than the %llu MiB of memory that are left beside weights (%llu MiB) and "
                 "steps (%llu MiB); lower kv-bytes%s",
                 bytes >> 20, (unsigned long long)(left >> 20), (unsigned long long)(weights >> 20),
                 (unsigned long long)(scratch >> 20), e->ops->host ? "" : " or raise gpu-memory-fraction");
        return -ENOMEM;
    }
    kv_pools_size(e);
    if (o->ctx_tokens > info->ctx_model) {
        snprintf(err, err_size, "a context of %d tokens is more than this model was made for (%d)", o->ctx_tokens,
                 info->ctx_model);
        return -EINVAL;
    }
    int rc = kv_pools_fit(e, bytes, err, err_size);
    if (rc)
        return rc;
    int capacity = kv_capacity_tokens(e, bytes);
    if (o->ctx_tokens > capacity) {
        snprintf(
            err, err_size,
            "a context of %d tokens does not fit into %zu MiB of KV pages (%d tokens do); raise kv-bytes or lower ctx",
            o->ctx_tokens, bytes >> 20, capacity);
        return -EINVAL;
    }
    info->ctx_tokens = o->ctx_tokens ? o->ctx_tokens : info->ctx_model < capacity ? info->ctx_model : capacity;
    *kv_bytes = bytes;
    return 0;
}

/* ---- step three: the weights ------------------------------------------------------------------------------------ */

static int load(struct engine *e, const struct engine_opts *o, size_t kv_bytes, char *err, size_t err_size)
{
    struct engine_info *info = &e->info;
    struct gguf_hash *hash = NULL;
    int rc = model_rope_open(e->gguf, info->ctx_tokens, &e->model, err, err_size);
    if (rc || (rc = kv_pools_open(e, kv_bytes, err, err_size)))
        return rc;
    info->kv_bytes = engine_kv_use(e).budget_bytes;
    if ((rc = step_scratch_open(e)) || (rc = sampler_scratch_open(e))) {
        snprintf(err, err_size, "not enough memory for steps of %d tokens", info->step_tokens);
        return rc;
    }
    bool known = gguf_hash_recall(e->gguf, o->cache_dir, info->model_sha256);
    if (!known && !(hash = gguf_hash_new())) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    rc = model_load(&e->model, e->gguf, e->kernels, hash, o->progress, o->progress_arg, err, err_size);
    info->backend = kernels_backend(e->kernels);
    info->backend_notes = kernels_notes(e->kernels);
    if (rc == 0 && info->host_layers > 0)
        info->host_ms = model_bring_ms(&e->model, e->kernels);
    if (rc == 0 && ((hash && !gguf_hash_finish(hash, info->model_sha256)) || fingerprint_engine(e))) {
        snprintf(err, err_size, "out of memory");
        rc = -ENOMEM;
    }
    gguf_hash_free(hash);
    if (rc == 0 && !known)
        gguf_hash_remember(e->gguf, o->cache_dir, info->model_sha256);
    return rc;
}

/* All three steps, or for a check the first two. */
static int open_parts(struct engine *e, const struct engine_opts *o, bool check, char *err, size_t err_size)
{
    size_t kv_bytes = 0;
    const struct kernels_opts backend = {
        .backend = o->backend, .threads = o->threads, .device = o->device, .numerics = o->numerics};
    int rc = read_file(e, o, err, err_size);
    if (rc || (rc = kernels_open(&backend, &e->kernels, err, err_size)))
        return rc;
    e->ops = kernels_ops(e->kernels);
    e->info.backend = kernels_backend(e->kernels);
    if (!e->ops->host)
        e->model.host_layers = o->host_layers < e->model.n_layers ? o->host_layers : e->model.n_layers;
    model_weigh(&e->model, e->kernels);
    e->info.weight_bytes = e->model.weight_bytes;
    e->info.host_layers = e->model.host_layers;
    e->info.host_bytes = e->model.host_bytes;
    e->info.token_weight_bytes = e->model.weight_bytes - e->model.embed_bytes;
    uint64_t host_memory = check ? kernels_machine_bytes() : kernels_available_bytes();
    if ((rc = admit(e, o, memory_for(e, o, check), host_memory, &kv_bytes, err, err_size)) || check)
        return rc;
    return load(e, o, kv_bytes, err, err_size);
}

static int open_engine(const struct engine_opts *opts, bool check, struct engine **out, char *err, size_t err_size)
{
    const char *kv_type = opts->kv_type ? opts->kv_type : "bf16";
    if (!opts->model_path || opts->threads < 0 || opts->ctx_tokens < 0 || opts->host_layers < 0 ||
        opts->step_tokens < 0 || opts->step_picks < 0 || opts->step_logits < 0) {
        snprintf(err, err_size, "a model file is needed, and no setting may be negative");
        return -EINVAL;
    }
    if (!(opts->device_fraction >= 0 && opts->device_fraction <= 1)) {
        snprintf(err, err_size, "a fraction of a device's memory must be from 0 to 1");
        return -EINVAL;
    }
    int most = opts->step_tokens > opts->step_picks ? opts->step_tokens : opts->step_picks;
    most = most > opts->step_logits ? most : opts->step_logits;
    if (most > STEP_TOKENS_MAX) {
        snprintf(err, err_size, "a step of %d tokens is too large; %d is the most", most, STEP_TOKENS_MAX);
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
    e->info.step_picks = opts->step_picks ? opts->step_picks : STEP_PICKS_DEFAULT;
    e->info.step_logits = opts->step_logits;
    int rc = open_parts(e, opts, check, err, err_size);
    if (rc) {
        engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

int engine_open(const struct engine_opts *opts, struct engine **out, char *err, size_t err_size)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV); /* frequencies are computed here, and threads begin with what their maker has */
    int rc = open_engine(opts, false, out, err, err_size);
    fesetenv(&callers);
    return rc;
}

int engine_check(const struct engine_opts *opts, char *err, size_t err_size)
{
    struct engine *e = NULL;
    int rc = open_engine(opts, true, &e, err, err_size);
    engine_close(e);
    return rc;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    if (e->kernels) {
        step_scratch_close(e);
        kv_pools_close(e);
    }
    model_close(&e->model, e->kernels);
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

const char *engine_failure(const struct engine *e)
{
    return e->ops->error(e->kernels);
}

bool engine_device(const struct engine *e, struct engine_device *out)
{
    struct kernels_health h;
    if (!kernels_health(e->kernels, &h))
        return false;
    *out = (struct engine_device){.memory_bytes = h.memory_bytes,
                                  .memory_used_bytes = h.memory_used_bytes,
                                  .temperature_c = h.temperature_c,
                                  .power_w = h.power_w,
                                  .utilization = h.utilization};
    memcpy(out->name, h.name, sizeof out->name);
    return true;
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

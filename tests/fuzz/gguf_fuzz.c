/* gguf_fuzz.c - a hostile model file: the parser, every getter on every key, its shape as a model, then its vocabulary
 * and chat format. */
#include "engine/file/file.h"
#include "engine/model/arch.h"
#include "engine/text/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* what is read must not be optimised away */

static void touch(const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        sink += p[i];
}

static void read_key(const struct gguf *g, struct gguf_string name)
{
    char err[256], *key = malloc(name.len + 1);
    uint32_t u32 = 0, each[4];
    int32_t i32 = 0;
    uint64_t u64 = 0;
    float f32 = 0;
    bool b = false;
    struct gguf_string s = {"", 0};
    struct gguf_array a;
    if (key == NULL)
        return;
    memcpy(key, name.text, name.len);
    key[name.len] = '\0';
    if (!gguf_has(g, key))
        abort();
    (void)gguf_get_u32(g, key, GGUF_OPTIONAL, &u32, err, sizeof err);
    (void)gguf_get_i32(g, key, GGUF_OPTIONAL, &i32, err, sizeof err);
    (void)gguf_get_u64(g, key, GGUF_REQUIRED, &u64, err, sizeof err);
    (void)gguf_get_f32(g, key, GGUF_OPTIONAL, &f32, err, sizeof err);
    (void)gguf_get_bool(g, key, GGUF_OPTIONAL, &b, err, sizeof err);
    (void)gguf_get_u32_each(g, key, GGUF_OPTIONAL, each, 4, err, sizeof err);
    if (gguf_get_string(g, key, GGUF_OPTIONAL, &s, err, sizeof err) == 0)
        touch(s.text, s.len);
    if (gguf_get_array(g, key, GGUF_OPTIONAL, GGUF_STRING, &a, err, sizeof err) == 0) {
        size_t cursor = 0;
        for (uint64_t i = 0; i < a.n; i++) {
            s = gguf_array_next(&a, &cursor);
            touch(s.text, s.len);
        }
        if (cursor != a.bytes)
            abort();
    }
    if (gguf_get_array(g, key, GGUF_OPTIONAL, GGUF_I32, &a, err, sizeof err) == 0 ||
        gguf_get_array(g, key, GGUF_OPTIONAL, GGUF_BOOL, &a, err, sizeof err) == 0)
        for (uint64_t i = 0; i < a.n; i++)
            sink += (uint64_t)gguf_array_int(&a, i);
    if (gguf_get_array(g, key, GGUF_OPTIONAL, GGUF_F32, &a, err, sizeof err) == 0)
        for (uint64_t i = 0; i < a.n; i++)
            sink += gguf_array_f32(&a, i) > 0;
    free(key);
}

/* What says that it is a model of some architecture must be one: every slice lies within its tensor. */
static void use_model(const struct gguf *g)
{
    struct model m;
    char err[256];
    if (model_read(g, KERNELS_KV_BF16, &m, err, sizeof err) != 0)
        return;
    for (size_t i = 0; i < m.n_jobs; i++) {
        const struct model_job *job = &m.jobs[i];
        uint64_t each = job->t->bytes / (job->t->values / job->t->dims[0]);
        if (job->vector ? (uint64_t)job->cols != job->t->values
                        : job->at % each || job->at + each * (uint64_t)job->rows > job->t->bytes)
            abort();
    }
    for (int l = 0; l < m.n_layers; l++)
        if (m.layers[l].n_heads < 1 || m.layers[l].kv.kv_heads < 1 || m.layers[l].n_heads % m.layers[l].kv.kv_heads ||
            m.layers[l].kv.head_dim < 8 || m.layers[l].n_ff < 1 || m.n_experts_used > m.n_experts)
            abort();
    if (model_rope_open(g, m.ctx_model, &m, err, sizeof err) == 0)
        for (int i = 0; i < MODEL_ROPES; i++)
            if (m.rope[i].rot < 2 || m.rope[i].rot > m.layers[0].kv.head_dim)
                abort();
    model_close(&m, NULL);
}

static void use_vocab(const struct gguf *g)
{
    static const char TEXT[] = " Hello, h\xc3\xa9llo\n\n  12345 <|im_end|></s>\xff\xe2\x82 <tool_call>aaaaaaaa";
    char err[256];
    struct vocab *v;
    struct chat *c = NULL;
    if (vocab_open(g, &v, err, sizeof err) != 0)
        return;
    struct engine_tokens out = {0};
    for (unsigned flags = 0; flags < 16; flags++)
        (void)vocab_tokenize(v, TEXT, sizeof TEXT - 1, flags, &out);
    for (size_t i = 0; i < out.n; i++)
        if (out.ids[i] < 0 || out.ids[i] >= vocab_size(v))
            abort();
    for (engine_token id = -1; id <= vocab_size(v); id++) {
        size_t n;
        const char *bytes = vocab_token_bytes(v, id, &n);
        touch(bytes, n);
        struct gguf_string s = vocab_token_text(v, id);
        touch(s.text, s.len);
    }
    struct engine_message m[] = {{.role = ENGINE_SYSTEM, .text = TEXT, .len = 8},
                                 {.role = ENGINE_USER, .text = TEXT, .len = sizeof TEXT - 1}};
    const char *format = NULL; /* the file's own, then every other */
    for (size_t i = 0; i == 0 || format != NULL; format = chat_name_at(i++)) {
        if (chat_open(g, v, format, &c, err, sizeof err) != 0 || c == NULL)
            continue;
        (void)chat_render(c, v, m, 2, ENGINE_CHAT_FIRST | ENGINE_CHAT_OPEN, &out, err, sizeof err);
        (void)chat_render(c, v, m + 1, 1, ENGINE_CHAT_FIRST, &out, err, sizeof err);
        (void)chat_close(c, v, &out);
        chat_free(c);
    }
    engine_tokens_free(&out);
    vocab_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char err[256];
    struct gguf *g;
    if (gguf_open_memory(data, size, "fuzz", &g, err, sizeof err) != 0)
        return 0;
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        enum gguf_value_type type;
        read_key(g, gguf_key_at(g, i, &type));
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i), *found;
        if (gguf_tensor_find(g, t->name) != t)
            abort();
        (void)gguf_tensor_get(g, t->name, GGUF_REQUIRED, &found, err, sizeof err);
        touch(data + t->offset, t->bytes);
    }
    use_model(g);
    use_vocab(g);
    gguf_close(g);
    return 0;
}

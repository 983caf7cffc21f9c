/* gguf_writer.c - see gguf_writer.h. Keys, tensor headers and data grow in three buffers that finish() joins. */
#include "tests/engine/gguf_writer.h"

#include "engine/file/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct buffer {
    uint8_t *data;
    size_t n, capacity;
};

struct gguf_writer {
    uint32_t version, alignment;
    uint64_t n_keys, n_tensors;
    struct buffer keys, tensors, data;
};

static void put(struct buffer *b, const void *data, size_t n)
{
    if (b->n + n > b->capacity) {
        b->capacity = (b->n + n) * 2;
        b->data = realloc(b->data, b->capacity);
        if (b->data == NULL)
            abort();
    }
    if (n == 0)
        return;
    if (data != NULL)
        memcpy(b->data + b->n, data, n);
    else
        memset(b->data + b->n, 0, n);
    b->n += n;
}

static void put_u32(struct buffer *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct buffer *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_string(struct buffer *b, const void *text, size_t len)
{
    put_u64(b, len);
    put(b, text, len);
}

static void pad(struct buffer *b, size_t alignment)
{
    put(b, NULL, (alignment - b->n % alignment) % alignment);
}

struct gguf_writer *gguf_writer_new(void)
{
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        abort();
    w->version = 3;
    w->alignment = GGUF_DEFAULT_ALIGNMENT;
    return w;
}

void gguf_writer_free(struct gguf_writer *w)
{
    if (w == NULL)
        return;
    free(w->keys.data);
    free(w->tensors.data);
    free(w->data.data);
    free(w);
}

void gguf_writer_version(struct gguf_writer *w, uint32_t version)
{
    w->version = version;
}

void gguf_writer_alignment(struct gguf_writer *w, uint32_t alignment)
{
    w->alignment = alignment;
    gguf_writer_u32(w, "general.alignment", alignment);
}

static void begin_key(struct gguf_writer *w, const char *key, uint32_t type)
{
    put_string(&w->keys, key, strlen(key));
    put_u32(&w->keys, type);
    w->n_keys++;
}

void gguf_writer_raw(struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes)
{
    begin_key(w, key, type);
    put(&w->keys, value, bytes);
}

void gguf_writer_u8(struct gguf_writer *w, const char *key, uint8_t v)
{
    gguf_writer_raw(w, key, GGUF_U8, &v, sizeof v);
}

void gguf_writer_i8(struct gguf_writer *w, const char *key, int8_t v)
{
    gguf_writer_raw(w, key, GGUF_I8, &v, sizeof v);
}

void gguf_writer_u16(struct gguf_writer *w, const char *key, uint16_t v)
{
    gguf_writer_raw(w, key, GGUF_U16, &v, sizeof v);
}

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_writer_raw(w, key, GGUF_U32, &v, sizeof v);
}

void gguf_writer_i32(struct gguf_writer *w, const char *key, int32_t v)
{
    gguf_writer_raw(w, key, GGUF_I32, &v, sizeof v);
}

void gguf_writer_u64(struct gguf_writer *w, const char *key, uint64_t v)
{
    gguf_writer_raw(w, key, GGUF_U64, &v, sizeof v);
}

void gguf_writer_i64(struct gguf_writer *w, const char *key, int64_t v)
{
    gguf_writer_raw(w, key, GGUF_I64, &v, sizeof v);
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    gguf_writer_raw(w, key, GGUF_F32, &v, sizeof v);
}

void gguf_writer_f64(struct gguf_writer *w, const char *key, double v)
{
    gguf_writer_raw(w, key, GGUF_F64, &v, sizeof v);
}

void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v)
{
    uint8_t byte = v;
    gguf_writer_raw(w, key, GGUF_BOOL, &byte, 1);
}

void gguf_writer_string(struct gguf_writer *w, const char *key, const char *v)
{
    gguf_writer_string_n(w, key, v, strlen(v));
}

void gguf_writer_string_n(struct gguf_writer *w, const char *key, const void *v, size_t len)
{
    begin_key(w, key, GGUF_STRING);
    put_string(&w->keys, v, len);
}

static void put_array(struct gguf_writer *w, const char *key, uint32_t type, const void *v, size_t n, size_t each)
{
    begin_key(w, key, GGUF_ARRAY);
    put_u32(&w->keys, type);
    put_u64(&w->keys, n);
    put(&w->keys, v, n * each);
}

void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *v, size_t n)
{
    put_array(w, key, GGUF_STRING, NULL, n, 0);
    for (size_t i = 0; i < n; i++)
        put_string(&w->keys, v[i], strlen(v[i]));
}

void gguf_writer_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n)
{
    put_array(w, key, GGUF_U32, v, n, sizeof *v);
}

void gguf_writer_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n)
{
    put_array(w, key, GGUF_I32, v, n, sizeof *v);
}

void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n)
{
    put_array(w, key, GGUF_F32, v, n, sizeof *v);
}

void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *v, size_t n)
{
    put_array(w, key, GGUF_BOOL, v, n, sizeof *v);
}

void gguf_writer_tensor_raw(struct gguf_writer *w, const char *name, uint32_t ggml_type, int n_dims,
                            const uint64_t *dims, const void *data, size_t bytes, int64_t shift)
{
    pad(&w->data, w->alignment);
    put_string(&w->tensors, name, strlen(name));
    put_u32(&w->tensors, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        put_u64(&w->tensors, dims[i]);
    put_u32(&w->tensors, ggml_type);
    put_u64(&w->tensors, w->data.n + (uint64_t)shift);
    w->n_tensors++;
    put(&w->data, data, bytes);
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum kernels_type type, int n_dims,
                        const uint64_t *dims, const void *data, size_t bytes)
{
    static const uint8_t NUMBERS[KERNELS_TYPE_COUNT] = {
        [KERNELS_F32] = 0,   [KERNELS_F16] = 1,     [KERNELS_BF16] = 30,   [KERNELS_Q8_0] = 8,
        [KERNELS_Q4_0] = 2,  [KERNELS_Q4_1] = 3,    [KERNELS_Q5_0] = 6,    [KERNELS_Q5_1] = 7,
        [KERNELS_Q4_K] = 12, [KERNELS_Q5_K] = 13,   [KERNELS_Q6_K] = 14,   [KERNELS_Q2_K] = 10,
        [KERNELS_Q3_K] = 11, [KERNELS_IQ4_NL] = 20, [KERNELS_IQ4_XS] = 23, [KERNELS_MXFP4] = 39,
    };
    gguf_writer_tensor_raw(w, name, NUMBERS[type], n_dims, dims, data, bytes, 0);
}

void *gguf_writer_finish(const struct gguf_writer *w, size_t *size)
{
    struct buffer out = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, w->version);
    put_u64(&out, w->n_tensors);
    put_u64(&out, w->n_keys);
    put(&out, w->keys.data, w->keys.n);
    put(&out, w->tensors.data, w->tensors.n);
    pad(&out, w->alignment);
    put(&out, w->data.data, w->data.n);
    *size = out.n;
    return out.data;
}

int gguf_writer_save(const struct gguf_writer *w, const char *path)
{
    size_t size;
    void *file = gguf_writer_finish(w, &size);
    FILE *f = fopen(path, "wbe");
    int rc = f == NULL ? -errno : 0;
    if (f != NULL) {
        if (fwrite(file, 1, size, f) != size)
            rc = -EIO;
        if (fclose(f) != 0 && rc == 0)
            rc = -errno;
    }
    free(file);
    return rc;
}

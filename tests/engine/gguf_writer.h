/* gguf_writer.h - builds small GGUF files for tests, in memory or on disk.
 *
 *     struct gguf_writer *w = gguf_writer_new();
 *     gguf_writer_string(w, "general.architecture", "qwen2");
 *     gguf_writer_u32(w, "qwen2.block_count", 2);
 *     gguf_writer_tensor(w, "token_embd.weight", KERNELS_F32, 2, (uint64_t[]){64, 256}, data, 64 * 256 * 4);
 *     size_t size;
 *     void *file = gguf_writer_finish(w, &size); // or gguf_writer_save(w, path)
 *     gguf_writer_free(w);
 *     ... free(file);
 *
 * Values are written as given, sensible or not. Running out of memory aborts the test.
 */
#ifndef CONVOD_TESTS_GGUF_WRITER_H
#define CONVOD_TESTS_GGUF_WRITER_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_writer;

struct gguf_writer *gguf_writer_new(void);
void gguf_writer_free(struct gguf_writer *w);

/* Defaults: version 3, alignment 32 (another one is also written as general.alignment). */
void gguf_writer_version(struct gguf_writer *w, uint32_t version);
void gguf_writer_alignment(struct gguf_writer *w, uint32_t alignment);

void gguf_writer_u8(struct gguf_writer *w, const char *key, uint8_t v);
void gguf_writer_i8(struct gguf_writer *w, const char *key, int8_t v);
void gguf_writer_u16(struct gguf_writer *w, const char *key, uint16_t v);
void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_i32(struct gguf_writer *w, const char *key, int32_t v);
void gguf_writer_u64(struct gguf_writer *w, const char *key, uint64_t v);
void gguf_writer_i64(struct gguf_writer *w, const char *key, int64_t v);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_f64(struct gguf_writer *w, const char *key, double v);
void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_writer_string(struct gguf_writer *w, const char *key, const char *v);
void gguf_writer_string_n(struct gguf_writer *w, const char *key, const void *v, size_t len);

void gguf_writer_strings(struct gguf_writer *w, const char *key, const char *const *v, size_t n);
void gguf_writer_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n);
void gguf_writer_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n);
void gguf_writer_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n);
void gguf_writer_bools(struct gguf_writer *w, const char *key, const bool *v, size_t n);
/* A key with any type number and any bytes as its value. */
void gguf_writer_raw(struct gguf_writer *w, const char *key, uint32_t type, const void *value, size_t bytes);

/* dims[0] is the row length. data is copied; NULL writes zeros. */
void gguf_writer_tensor(struct gguf_writer *w, const char *name, enum kernels_type type, int n_dims,
                        const uint64_t *dims, const void *data, size_t bytes);
/* The same with any type number of the file format; data is placed at the next aligned offset plus `shift`. */
void gguf_writer_tensor_raw(struct gguf_writer *w, const char *name, uint32_t ggml_type, int n_dims,
                            const uint64_t *dims, const void *data, size_t bytes, int64_t shift);

/* The whole file; free() it. The writer can be used on. */
void *gguf_writer_finish(const struct gguf_writer *w, size_t *size);
/* Writes it to a file. 0 or a negative errno value. */
int gguf_writer_save(const struct gguf_writer *w, const char *path);

#endif

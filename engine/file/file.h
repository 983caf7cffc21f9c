/* file.h - a GGUF model file, checked before anyone reads a value from it.
 *
 * gguf_open() reads the whole header once. After that every string lies inside it, every array has the values it
 * announces, every tensor has dims > 0, a known type and data inside the file that no other tensor shares. Getters
 * therefore never fail for a damaged file, only for what a key is missing or has another type. Nothing is mapped: a
 * file that is cut or changed while it is open makes a read fail.
 *
 * A model may lie in several files (parts): the first one is opened, and the tensors of all are one table.
 *
 * Threads: constant after open; any thread may read. Pointers are valid until gguf_close().
 * Errors: as in engine.h. Messages name the file, the key or tensor, and the byte offset where there is one.
 */
#ifndef CONVOD_ENGINE_FILE_H
#define CONVOD_ENGINE_FILE_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GGUF_MAX_KEYS          65536
#define GGUF_MAX_KEY_BYTES     65535 /* the format's own limit */
#define GGUF_MAX_TENSORS       65536
#define GGUF_MAX_NAME_BYTES    127 /* of a tensor */
#define GGUF_MAX_DIMS          4
#define GGUF_MAX_NESTING       4                   /* arrays of arrays of ... */
#define GGUF_MAX_ALIGNMENT     (1u << 20)          /* of tensor data; a power of two */
#define GGUF_MAX_ARRAY         (UINT64_C(1) << 28) /* values in one array */
#define GGUF_MAX_DIM_VALUES    INT32_MAX           /* one dimension */
#define GGUF_DEFAULT_ALIGNMENT 32u
#define GGUF_MAX_HEADER_BYTES  ((size_t)256 << 20)
#define GGUF_MAX_PARTS         1024

enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_VALUE_TYPE_COUNT
};

struct gguf;

/* Opens a file and, where it is the first of several parts, the others. -EBADMSG: damaged or hostile, or parts that do
 * not belong together; -ENOTSUP: GGUF v1, a newer version, big-endian, an unknown tensor type; -EINVAL: not a regular
 * file, or another part than the first; -ENOENT, -EACCES, -ENOMEM as usual. */
int gguf_open(const char *path, struct gguf **out, char *err, size_t err_size);
/* The same over bytes that the caller keeps until gguf_close(); `name` (copied) takes the path's place in messages. */
int gguf_open_memory(const void *data, size_t size, const char *name, struct gguf **out, char *err, size_t err_size);
/* NULL is fine. */
void gguf_close(struct gguf *g);

const char *gguf_path(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g);

size_t gguf_part_count(const struct gguf *g);
/* Bytes of a part, and of all. */
uint64_t gguf_part_bytes(const struct gguf *g, size_t part);
uint64_t gguf_bytes(const struct gguf *g);
/* Reads bytes [at, at + n) of a part, which must lie within its size. -EBADMSG: the file was cut since it was opened;
 * -EIO and what else reading gives. */
int gguf_read(const struct gguf *g, size_t part, uint64_t at, size_t n, void *out, char *err, size_t err_size);
/* -EBADMSG: a part has another size or time than when it was opened. */
int gguf_check_unchanged(const struct gguf *g, char *err, size_t err_size);

/* ---- the hash -------------------------------------------------------------------------------------------------- */

/* SHA-256 of the file, or of all parts one after the other: computed by whoever reads them, or remembered in a folder
 * under a name made of device, inode, size and modification time of each part. */
struct gguf_hash;
/* NULL: no memory. */
struct gguf_hash *gguf_hash_new(void);
void gguf_hash_free(struct gguf_hash *h);
/* False: it cannot be computed. */
bool gguf_hash_update(struct gguf_hash *h, const void *data, size_t n);
bool gguf_hash_finish(struct gguf_hash *h, uint8_t sha256[32]);
/* Whether cache_dir (NULL: none) remembers this file's hash. */
bool gguf_hash_recall(const struct gguf *g, const char *cache_dir, uint8_t sha256[32]);
/* Remembers it in cache_dir, which is made where its parent is there, and forgets those that were used longest ago,
 * beyond 64; a hash that is not remembered is computed again next time. */
void gguf_hash_remember(const struct gguf *g, const char *cache_dir, const uint8_t sha256[32]);

/* ---- keys ------------------------------------------------------------------------------------------------------ */

/* Text inside the file: not terminated, may hold any bytes. */
struct gguf_string {
    const char *text;
    size_t len;
};

/* Values of a one-dimensional array. */
struct gguf_array {
    enum gguf_value_type type;
    uint64_t n;
    const uint8_t *data; /* as in the file: unaligned */
    size_t bytes;
};

enum gguf_presence {
    GGUF_OPTIONAL, /* a missing key: 0, and *out keeps what it held (the default) */
    GGUF_REQUIRED, /* a missing key: -EBADMSG and a message */
};

bool gguf_has(const struct gguf *g, const char *key);

/* Each stores a key's value in *out and returns 0. -EBADMSG: the value has another type or does not fit. Integers may
 * be stored in any width and sign; a bool is a bool; f32 takes f32 and f64. err may be NULL with err_size 0. */
int gguf_get_u32(const struct gguf *g, const char *key, enum gguf_presence p, uint32_t *out, char *err,
                 size_t err_size);
int gguf_get_i32(const struct gguf *g, const char *key, enum gguf_presence p, int32_t *out, char *err, size_t err_size);
int gguf_get_u64(const struct gguf *g, const char *key, enum gguf_presence p, uint64_t *out, char *err,
                 size_t err_size);
int gguf_get_f32(const struct gguf *g, const char *key, enum gguf_presence p, float *out, char *err, size_t err_size);
int gguf_get_bool(const struct gguf *g, const char *key, enum gguf_presence p, bool *out, char *err, size_t err_size);
int gguf_get_string(const struct gguf *g, const char *key, enum gguf_presence p, struct gguf_string *out, char *err,
                    size_t err_size);
/* An array of `type`: GGUF_STRING, GGUF_F32, GGUF_BOOL, or GGUF_I32 / GGUF_U32 for integers of any width (read them
 * with gguf_array_int()). */
int gguf_get_array(const struct gguf *g, const char *key, enum gguf_presence p, enum gguf_value_type type,
                   struct gguf_array *out, char *err, size_t err_size);
/* A value per layer: an integer, which then holds for all n, or an array of exactly n integers. out[n]. */
int gguf_get_u32_each(const struct gguf *g, const char *key, enum gguf_presence p, uint32_t *out, size_t n, char *err,
                      size_t err_size);

/* Values of an array, i < a->n. Integers: type is an integer or bool type; the value of a u64 past INT64_MAX comes out
 * as INT64_MAX. f32: type is GGUF_F32. */
int64_t gguf_array_int(const struct gguf_array *a, uint64_t i);
float gguf_array_f32(const struct gguf_array *a, uint64_t i);
/* Strings one after the other: start with *cursor = 0 and call at most a->n times. */
struct gguf_string gguf_array_next(const struct gguf_array *a, size_t *cursor);

/* Iteration over the keys in file order. */
size_t gguf_key_count(const struct gguf *g);
struct gguf_string gguf_key_at(const struct gguf *g, size_t i, enum gguf_value_type *type);

/* ---- tensors --------------------------------------------------------------------------------------------------- */

struct gguf_tensor {
    char name[GGUF_MAX_NAME_BYTES + 1];
    uint32_t ggml_type;           /* as in the file */
    const char *type_name;        /* "Q4_K" */
    enum kernels_type type;       /* KERNELS_TYPE_COUNT: a type that convod cannot read */
    int n_dims;                   /* 1..4 */
    uint64_t dims[GGUF_MAX_DIMS]; /* dims[0] is the row length; those past n_dims are 1 */
    uint64_t values;              /* product of dims */
    uint32_t part;                /* the file that it lies in */
    uint64_t offset;              /* from the start of that file */
    size_t bytes;
};

size_t gguf_tensor_count(const struct gguf *g);
/* In file order, part by part, i < count. */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
/* By name; NULL when there is none. Any type. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
/* By name, with a type that convod can read. GGUF_OPTIONAL: *out = NULL when there is none. -EBADMSG: missing;
 * -ENOTSUP: another type. */
int gguf_tensor_get(const struct gguf *g, const char *name, enum gguf_presence p, const struct gguf_tensor **out,
                    char *err, size_t err_size);
/* Reads bytes [at, at + n) of a tensor's data, which must lie within it; errors as gguf_read(). */
int gguf_tensor_read(const struct gguf *g, const struct gguf_tensor *t, uint64_t at, size_t n, void *out, char *err,
                     size_t err_size);

/* ---- messages -------------------------------------------------------------------------------------------------- */

/* Writes "path: message" to err and returns code; for those who read values out of the file. */
__attribute__((format(printf, 5, 6))) int gguf_fail(const struct gguf *g, char *err, size_t err_size, int code,
                                                    const char *format, ...);

/* A name out of the file as it can be shown: what is not printable ASCII becomes '?', long names are cut. */
struct gguf_shown {
    char text[96];
};
struct gguf_shown gguf_show(const char *text, size_t len);

#endif

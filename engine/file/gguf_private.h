/* gguf_private.h - what gguf.c (the parser), gguf_keys.c (the getters), parts.c (the files) and hash.c share. */
#ifndef CONVOD_GGUF_PRIVATE_H
#define CONVOD_GGUF_PRIVATE_H

#include "engine/file/file.h"

#include <sys/stat.h>

struct gguf_key {
    struct gguf_string name;
    enum gguf_value_type type;
    struct gguf_string string; /* GGUF_STRING */
    struct gguf_array array;   /* GGUF_ARRAY; else .data is the value */
};

/* One of the files that a model lies in; or bytes in memory. */
struct gguf_part {
    char *path;
    int fd;               /* -1: memory */
    const uint8_t *bytes; /* of a file the header; of memory all */
    uint8_t *owned;       /* the header, to be freed; NULL: the caller's memory */
    uint64_t size;        /* of the whole file */
    struct stat stat;     /* when it was opened */
};

struct gguf {
    char *path; /* of the first part */
    struct gguf_part *parts;
    size_t n_parts;
    uint32_t version;
    struct gguf_key *keys; /* of the first part */
    size_t n_keys;
    uint32_t *keys_sorted;
    struct gguf_tensor *tensors; /* of all parts */
    size_t n_tensors;
    uint32_t *tensors_sorted;
};

/* Bytes of a value; 0 for strings and arrays. */
extern const uint8_t GGUF_VALUE_BYTES[GGUF_VALUE_TYPE_COUNT];

/* Order by bytes, then by length. */
int gguf_compare_text(const char *a, size_t a_len, const char *b, size_t b_len);

/* gguf.c: parses the header of g's first part, of which the first `have` bytes are there: fills keys and tensors.
 * -EAGAIN: more bytes are wanted, the first *want (g has no tables then); else as gguf_open(). */
int gguf_parse(struct gguf *g, size_t have, size_t *want, char *err, size_t err_size);
/* Sorts the tensors by name. -EBADMSG: two have the same. */
int gguf_sort_tensors(struct gguf *g, char *err, size_t err_size);

#endif

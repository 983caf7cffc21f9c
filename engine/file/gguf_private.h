/* gguf_private.h - what gguf.c (the parser) and gguf_keys.c (the getters) share. */
#ifndef CONVOD_GGUF_PRIVATE_H
#define CONVOD_GGUF_PRIVATE_H

#include "engine/file/file.h"

struct gguf_key {
    struct gguf_string name;
    enum gguf_value_type type;
    struct gguf_string string; /* GGUF_STRING */
    struct gguf_array array;   /* GGUF_ARRAY; else .data is the value */
};

struct gguf {
    char *path;
    const uint8_t *base;
    size_t size;
    bool mapped;
    uint32_t version;
    struct gguf_key *keys;
    size_t n_keys;
    uint32_t *keys_sorted;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    uint32_t *tensors_sorted;
};

/* Bytes of a value; 0 for strings and arrays. */
extern const uint8_t GGUF_VALUE_BYTES[GGUF_VALUE_TYPE_COUNT];

/* Order by bytes, then by length. */
int gguf_compare_text(const char *a, size_t a_len, const char *b, size_t b_len);

#endif

/* gguf.c - parses a GGUF file's header. Everything in the file is taken as hostile.
 *
 * One pass over the header checks every length against the bytes that are left before it is used, so that work and
 * memory are bounded by the file's size whatever the counts say. How long a header is, it does not say itself: where
 * the parser meets the end of the bytes that were read so far, it asks for more and begins again. Then keys and tensors
 * are sorted by name, which finds duplicates and serves lookups, and the tensors' data ranges are checked for overlap:
 * a file cannot make the loader copy its bytes more than once.
 *
 *   "GGUF" | u32 version | u64 tensors | u64 keys
 *   keys:    string name | u32 type | value         (string: u64 length | bytes; array: u32 type | u64 n | values)
 *   tensors: string name | u32 n_dims | u64 dims[] | u32 type | u64 offset into the data
 *   padding to general.alignment | data
 */
#include "engine/file/gguf_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ----------------------------------------------------------------------------------------------------- */

/* Element types by their number in the file, with values and bytes per block. Numbers 4, 5, 31-33 and 36-38 were used
 * by formats that no longer exist. */
struct element_type {
    const char *name;
    uint16_t block_values, block_bytes;
    enum kernels_type type;
};

#define NONE KERNELS_TYPE_COUNT
static const struct element_type ELEMENT_TYPES[] = {
    [0] = {"F32", 1, 4, KERNELS_F32},
    [1] = {"F16", 1, 2, KERNELS_F16},
    [2] = {"Q4_0", 32, 18, KERNELS_Q4_0},
    [3] = {"Q4_1", 32, 20, KERNELS_Q4_1},
    [6] = {"Q5_0", 32, 22, KERNELS_Q5_0},
    [7] = {"Q5_1", 32, 24, KERNELS_Q5_1},
    [8] = {"Q8_0", 32, 34, KERNELS_Q8_0},
    [9] = {"Q8_1", 32, 36, NONE},
    [10] = {"Q2_K", 256, 84, KERNELS_Q2_K},
    [11] = {"Q3_K", 256, 110, KERNELS_Q3_K},
    [12] = {"Q4_K", 256, 144, KERNELS_Q4_K},
    [13] = {"Q5_K", 256, 176, KERNELS_Q5_K},
    [14] = {"Q6_K", 256, 210, KERNELS_Q6_K},
    [15] = {"Q8_K", 256, 292, NONE},
    [16] = {"IQ2_XXS", 256, 66, NONE},
    [17] = {"IQ2_XS", 256, 74, NONE},
    [18] = {"IQ3_XXS", 256, 98, NONE},
    [19] = {"IQ1_S", 256, 50, NONE},
    [20] = {"IQ4_NL", 32, 18, KERNELS_IQ4_NL},
    [21] = {"IQ3_S", 256, 110, NONE},
    [22] = {"IQ2_S", 256, 82, NONE},
    [23] = {"IQ4_XS", 256, 136, KERNELS_IQ4_XS},
    [24] = {"I8", 1, 1, NONE},
    [25] = {"I16", 1, 2, NONE},
    [26] = {"I32", 1, 4, NONE},
    [27] = {"I64", 1, 8, NONE},
    [28] = {"F64", 1, 8, NONE},
    [29] = {"IQ1_M", 256, 56, NONE},
    [30] = {"BF16", 1, 2, KERNELS_BF16},
    [34] = {"TQ1_0", 256, 54, NONE},
    [35] = {"TQ2_0", 256, 66, NONE},
    [39] = {"MXFP4", 32, 17, KERNELS_MXFP4},
};
#undef NONE

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* The part of the file that is being parsed; pos <= have <= size always. */
struct reader {
    struct gguf *g;
    const uint8_t *base;
    size_t pos, have; /* bytes that are there */
    uint64_t size;    /* of the file */
    size_t want;      /* -EAGAIN: the first so many bytes of the file */
    char *err;
    size_t err_size;
};

#define FAIL(r, code, ...) gguf_fail((r)->g, (r)->err, (r)->err_size, (code), __VA_ARGS__)

/* Bytes of the file from here on. */
static uint64_t left(const struct reader *r)
{
    return r->size - r->pos;
}

/* Whether the next n bytes, n <= left(), are there. */
static int need(struct reader *r, uint64_t n)
{
    if (n <= r->have - r->pos)
        return 0;
    r->want = r->pos + (size_t)n;
    return -EAGAIN;
}

static int take(struct reader *r, size_t n, const char *what, const uint8_t **out)
{
    if (n > left(r))
        return FAIL(r, -EBADMSG, "%s at byte %zu needs %zu bytes but the file ends after %llu", what, r->pos, n,
                    (unsigned long long)left(r));
    int rc = need(r, n);
    if (rc)
        return rc;
    *out = r->base + r->pos;
    r->pos += n;
    return 0;
}

static int take_u32(struct reader *r, const char *what, uint32_t *out)
{
    const uint8_t *p = NULL;
    int rc = take(r, 4, what, &p);
    if (rc == 0)
        memcpy(out, p, 4);
    return rc;
}

static int take_u64(struct reader *r, const char *what, uint64_t *out)
{
    const uint8_t *p = NULL;
    int rc = take(r, 8, what, &p);
    if (rc == 0)
        memcpy(out, p, 8);
    return rc;
}

static int take_string(struct reader *r, const char *what, uint64_t max, struct gguf_string *out)
{
    size_t at = r->pos;
    uint64_t len;
    int rc = take_u64(r, what, &len);
    if (rc)
        return rc;
    if (len > max || len > left(r))
        return FAIL(r, -EBADMSG, "%s at byte %zu has a length of %llu, past %s", what, at, (unsigned long long)len,
                    len > max ? "the limit" : "the end of the file");
    if ((rc = need(r, len)))
        return rc;
    *out = (struct gguf_string){(const char *)r->base + r->pos, (size_t)len};
    r->pos += (size_t)len;
    return 0;
}

static int check_bools(struct reader *r, const uint8_t *data, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++)
        if (data[i] > 1)
            return FAIL(r, -EBADMSG, "%s: a bool at byte %zu is %u", what, (size_t)(data - r->base) + (size_t)i,
                        data[i]);
    return 0;
}

/* An array's header and values. `depth` counts the arrays around it. */
static int take_array(struct reader *r, const char *what, int depth, struct gguf_array *out)
{
    size_t at = r->pos;
    uint32_t type;
    uint64_t n;
    int rc = take_u32(r, what, &type);
    if (rc || (rc = take_u64(r, what, &n)))
        return rc;
    if (type >= GGUF_VALUE_TYPE_COUNT)
        return FAIL(r, -EBADMSG, "%s: the array at byte %zu has unknown type %u", what, at, type);
    if (depth >= GGUF_MAX_NESTING)
        return FAIL(r, -EBADMSG, "%s: arrays are nested more than %d deep at byte %zu", what, GGUF_MAX_NESTING, at);
    size_t least = type == GGUF_STRING ? 8 : type == GGUF_ARRAY ? 12 : GGUF_VALUE_BYTES[type];
    if (n > GGUF_MAX_ARRAY || n > left(r) / least)
        return FAIL(r, -EBADMSG, "%s: the array at byte %zu announces %llu values, more than %s", what, at,
                    (unsigned long long)n, n > GGUF_MAX_ARRAY ? "the limit" : "the file holds");
    size_t start = r->pos;
    if (type == GGUF_STRING) {
        struct gguf_string s;
        for (uint64_t i = 0; i < n; i++)
            if ((rc = take_string(r, what, UINT64_MAX, &s)))
                return rc;
    } else if (type == GGUF_ARRAY) {
        struct gguf_array inner;
        for (uint64_t i = 0; i < n; i++)
            if ((rc = take_array(r, what, depth + 1, &inner)))
                return rc;
    } else {
        if ((rc = need(r, n * least)))
            return rc;
        r->pos += (size_t)n * least;
        if (type == GGUF_BOOL && (rc = check_bools(r, r->base + start, n, what)))
            return rc;
    }
    *out = (struct gguf_array){(enum gguf_value_type)type, n, r->base + start, r->pos - start};
    return 0;
}

static int take_key(struct reader *r, struct gguf_key *k)
{
    size_t at = r->pos;
    int rc = take_string(r, "a key's name", GGUF_MAX_KEY_BYTES, &k->name);
    if (rc)
        return rc;
    if (k->name.len == 0 || memchr(k->name.text, '\0', k->name.len))
        return FAIL(r, -EBADMSG, "the key at byte %zu has an empty name or one with a zero byte", at);
    struct gguf_shown name = gguf_show(k->name.text, k->name.len);
    uint32_t type;
    at = r->pos;
    if ((rc = take_u32(r, name.text, &type)))
        return rc;
    if (type >= GGUF_VALUE_TYPE_COUNT)
        return FAIL(r, -EBADMSG, "key %s at byte %zu has unknown type %u", name.text, at, type);
    k->type = (enum gguf_value_type)type;
    if (k->type == GGUF_STRING)
        return take_string(r, name.text, UINT64_MAX, &k->string);
    if (k->type == GGUF_ARRAY)
        return take_array(r, name.text, 0, &k->array);
    k->array = (struct gguf_array){.type = k->type, .n = 1, .bytes = GGUF_VALUE_BYTES[type]};
    if ((rc = take(r, GGUF_VALUE_BYTES[type], name.text, &k->array.data)))
        return rc;
    return k->type == GGUF_BOOL ? check_bools(r, k->array.data, 1, name.text) : 0;
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

/* A tensor's header; *offset gets where its data begins in the data part. */
static int take_tensor(struct reader *r, struct gguf_tensor *t, uint64_t *offset)
{
    size_t at = r->pos;
    struct gguf_string name;
    int rc = take_string(r, "a tensor's name", GGUF_MAX_NAME_BYTES, &name);
    if (rc)
        return rc;
    if (name.len == 0 || memchr(name.text, '\0', name.len))
        return FAIL(r, -EBADMSG, "the tensor at byte %zu has an empty name or one with a zero byte", at);
    memcpy(t->name, name.text, name.len);
    t->name[name.len] = '\0';
    struct gguf_shown shown = gguf_show(name.text, name.len);
    uint32_t n_dims;
    if ((rc = take_u32(r, shown.text, &n_dims)))
        return rc;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return FAIL(r, -EBADMSG, "tensor %s at byte %zu has %u dimensions, not 1 to %d", shown.text, at, n_dims,
                    GGUF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    t->values = 1;
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i >= n_dims)
            continue;
        size_t dim_at = r->pos;
        if ((rc = take_u64(r, shown.text, &t->dims[i])))
            return rc;
        if (t->dims[i] < 1 || t->dims[i] > GGUF_MAX_DIM_VALUES ||
            __builtin_mul_overflow(t->values, t->dims[i], &t->values))
            return FAIL(r, -EBADMSG, "tensor %s: dimension %u at byte %zu is %llu", shown.text, i, dim_at,
                        (unsigned long long)t->dims[i]);
    }
    size_t type_at = r->pos;
    if ((rc = take_u32(r, shown.text, &t->ggml_type)))
        return rc;
    if (t->ggml_type >= sizeof ELEMENT_TYPES / sizeof *ELEMENT_TYPES || ELEMENT_TYPES[t->ggml_type].name == NULL)
        return FAIL(r, -ENOTSUP, "tensor %s has a type that is unknown to convod, number %u at byte %zu", shown.text,
                    t->ggml_type, type_at);
    const struct element_type *type = &ELEMENT_TYPES[t->ggml_type];
    t->type = type->type;
    t->type_name = type->name;
    if (t->dims[0] % type->block_values != 0)
        return FAIL(r, -EBADMSG, "tensor %s: rows of %llu values cannot be stored in %s blocks of %d", shown.text,
                    (unsigned long long)t->dims[0], type->name, type->block_values);
    if (__builtin_mul_overflow(t->values / type->block_values, (uint64_t)type->block_bytes, &t->bytes))
        return FAIL(r, -EBADMSG, "tensor %s at byte %zu is larger than any file", shown.text, at);
    return take_u64(r, shown.text, offset);
}

static int compare_offsets(const void *a, const void *b, void *arg)
{
    const struct gguf_tensor *tensors = arg;
    uint64_t x = tensors[*(const uint32_t *)a].offset, y = tensors[*(const uint32_t *)b].offset;
    return (x > y) - (x < y);
}

/* Turns the tensors' offsets into places in the file; order[n_tensors] is scratch. */
static int place_tensors(struct reader *r, const uint64_t *offsets, uint32_t *order)
{
    struct gguf *g = r->g;
    uint32_t alignment = GGUF_DEFAULT_ALIGNMENT;
    int rc = gguf_get_u32(g, "general.alignment", GGUF_OPTIONAL, &alignment, r->err, r->err_size);
    if (rc)
        return rc;
    if (alignment < 8 || alignment > GGUF_MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return FAIL(r, -EBADMSG, "general.alignment is %u, not a power of two from 8 to %u", alignment,
                    GGUF_MAX_ALIGNMENT);
    if (g->n_tensors == 0)
        return 0;
    uint64_t start = r->pos + (alignment - r->pos % alignment) % alignment; /* no overflow: pos <= size of a file */
    uint64_t room = start <= r->size ? r->size - start : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        struct gguf_shown name = gguf_show(t->name, strlen(t->name));
        if (offsets[i] % alignment != 0)
            return FAIL(r, -EBADMSG, "tensor %s: its offset %llu is not a multiple of %u", name.text,
                        (unsigned long long)offsets[i], alignment);
        if (offsets[i] > room || t->bytes > room - offsets[i])
            return FAIL(r, -EBADMSG,
                        "tensor %s: %zu bytes at offset %llu of the data at byte %llu lie past the end of the file "
                        "(%llu bytes); is the download complete?",
                        name.text, t->bytes, (unsigned long long)offsets[i], (unsigned long long)start,
                        (unsigned long long)r->size);
        t->offset = start + offsets[i];
        order[i] = (uint32_t)i;
    }
    qsort_r(order, g->n_tensors, sizeof *order, compare_offsets, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = &g->tensors[order[i - 1]], *b = &g->tensors[order[i]];
        if (b->offset - a->offset < a->bytes)
            return FAIL(r, -EBADMSG, "tensors %s and %s share bytes of the file",
                        gguf_show(a->name, strlen(a->name)).text, gguf_show(b->name, strlen(b->name)).text);
    }
    return 0;
}

/* ---- lookup ---------------------------------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b, void *arg)
{
    const struct gguf_key *keys = arg;
    const struct gguf_string *x = &keys[*(const uint32_t *)a].name, *y = &keys[*(const uint32_t *)b].name;
    return gguf_compare_text(x->text, x->len, y->text, y->len);
}

static int compare_tensors(const void *a, const void *b, void *arg)
{
    const struct gguf_tensor *tensors = arg;
    return strcmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

static int sort_keys(struct reader *r)
{
    struct gguf *g = r->g;
    for (size_t i = 0; i < g->n_keys; i++)
        g->keys_sorted[i] = (uint32_t)i;
    qsort_r(g->keys_sorted, g->n_keys, sizeof *g->keys_sorted, compare_keys, g->keys);
    for (size_t i = 1; i < g->n_keys; i++)
        if (compare_keys(&g->keys_sorted[i - 1], &g->keys_sorted[i], g->keys) == 0) {
            const struct gguf_string *name = &g->keys[g->keys_sorted[i]].name;
            return FAIL(r, -EBADMSG, "key %s is there twice", gguf_show(name->text, name->len).text);
        }
    return 0;
}

int gguf_sort_tensors(struct gguf *g, char *err, size_t err_size)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        g->tensors_sorted[i] = (uint32_t)i;
    qsort_r(g->tensors_sorted, g->n_tensors, sizeof *g->tensors_sorted, compare_tensors, g->tensors);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (compare_tensors(&g->tensors_sorted[i - 1], &g->tensors_sorted[i], g->tensors) == 0) {
            const char *name = g->tensors[g->tensors_sorted[i]].name;
            return gguf_fail(g, err, err_size, -EBADMSG, "tensor %s is there twice",
                             gguf_show(name, strlen(name)).text);
        }
    return 0;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    size_t low = 0, high = g->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct gguf_tensor *t = &g->tensors[g->tensors_sorted[middle]];
        int order = strcmp(t->name, name);
        if (order == 0)
            return t;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- the header -------------------------------------------------------------------------------------------------- */

static int parse_start(struct reader *r, uint64_t *n_tensors, uint64_t *n_keys)
{
    const uint8_t *magic = NULL;
    int rc = take(r, 4, "the magic number", &magic);
    if (rc)
        return rc;
    if (memcmp(magic, "GGUF", 4) != 0)
        return FAIL(r, -EBADMSG, "not a GGUF file (it does not begin with \"GGUF\")");
    if ((rc = take_u32(r, "the version", &r->g->version)))
        return rc;
    if ((r->g->version & 0xffff) == 0)
        return FAIL(r, -ENOTSUP, "a big-endian GGUF file; convod reads little-endian ones");
    if (r->g->version != 2 && r->g->version != 3)
        return FAIL(r, -ENOTSUP, "GGUF version %u; convod reads versions 2 and 3", r->g->version);
    if ((rc = take_u64(r, "the number of tensors", n_tensors)) || (rc = take_u64(r, "the number of keys", n_keys)))
        return rc;
    /* The smallest tensor header takes 33 bytes, the smallest key 14. */
    if (*n_tensors > GGUF_MAX_TENSORS || *n_tensors > left(r) / 33)
        return FAIL(r, -EBADMSG, "%llu tensors are announced at byte 8, more than %s", (unsigned long long)*n_tensors,
                    *n_tensors > GGUF_MAX_TENSORS ? "the limit" : "the file holds");
    if (*n_keys > GGUF_MAX_KEYS || *n_keys > left(r) / 14)
        return FAIL(r, -EBADMSG, "%llu keys are announced at byte 16, more than %s", (unsigned long long)*n_keys,
                    *n_keys > GGUF_MAX_KEYS ? "the limit" : "the file holds");
    return 0;
}

static int parse(struct reader *r)
{
    struct gguf *g = r->g;
    uint64_t n_tensors, n_keys;
    int rc = parse_start(r, &n_tensors, &n_keys);
    if (rc)
        return rc;
    uint64_t *offsets = calloc(n_tensors + 1, sizeof *offsets);
    uint32_t *order = calloc(n_tensors + 1, sizeof *order);
    g->keys = calloc(n_keys + 1, sizeof *g->keys);
    g->keys_sorted = calloc(n_keys + 1, sizeof *g->keys_sorted);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    g->tensors_sorted = calloc(n_tensors + 1, sizeof *g->tensors_sorted);
    if (!offsets || !order || !g->keys || !g->keys_sorted || !g->tensors || !g->tensors_sorted) {
        rc = FAIL(r, -ENOMEM, "out of memory");
        goto cleanup;
    }
    for (; g->n_keys < n_keys; g->n_keys++)
        if ((rc = take_key(r, &g->keys[g->n_keys])))
            goto cleanup;
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        if ((rc = take_tensor(r, &g->tensors[g->n_tensors], &offsets[g->n_tensors])))
            goto cleanup;
    if ((rc = sort_keys(r)) == 0 && (rc = gguf_sort_tensors(g, r->err, r->err_size)) == 0)
        rc = place_tensors(r, offsets, order);
cleanup:
    free(offsets);
    free(order);
    return rc;
}

int gguf_parse(struct gguf *g, size_t have, size_t *want, char *err, size_t err_size)
{
    struct reader r = {
        .g = g, .base = g->parts[0].bytes, .have = have, .size = g->parts[0].size, .err = err, .err_size = err_size};
    int rc = parse(&r);
    if (rc) {
        free(g->keys);
        free(g->keys_sorted);
        free(g->tensors);
        free(g->tensors_sorted);
        g->keys = NULL;
        g->tensors = NULL;
        g->keys_sorted = g->tensors_sorted = NULL;
        g->n_keys = g->n_tensors = 0;
    }
    *want = r.want;
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

int gguf_tensor_get(const struct gguf *g, const char *name, enum gguf_presence p, const struct gguf_tensor **out,
                    char *err, size_t err_size)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, name);
    if (t == NULL && p == GGUF_REQUIRED)
        return gguf_fail(g, err, err_size, -EBADMSG, "tensor %s is missing", name);
    if (t != NULL && t->type == KERNELS_TYPE_COUNT) {
        const struct element_type *type = &ELEMENT_TYPES[t->ggml_type];
        int bits = 8 * type->block_bytes / type->block_values;
        return gguf_fail(g, err, err_size, -ENOTSUP,
                         "tensor %s has type %s, which convod cannot read; the nearest that it can is a %s file", name,
                         t->type_name,
                         bits < 3    ? "Q2_K"
                         : bits < 4  ? "Q3_K_M"
                         : bits < 6  ? "Q4_K_M"
                         : bits < 16 ? "Q8_0"
                                     : "BF16");
    }
    *out = t;
    return 0;
}

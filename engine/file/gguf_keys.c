/* gguf_keys.c - typed access to the keys of a checked GGUF file. */
#include "engine/file/gguf_private.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const uint8_t GGUF_VALUE_BYTES[GGUF_VALUE_TYPE_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static const char *const VALUE_NAMES[GGUF_VALUE_TYPE_COUNT] = {
    [GGUF_U8] = "u8",   [GGUF_I8] = "i8",       [GGUF_U16] = "u16",       [GGUF_I16] = "i16", [GGUF_U32] = "u32",
    [GGUF_I32] = "i32", [GGUF_F32] = "f32",     [GGUF_BOOL] = "bool",     [GGUF_U64] = "u64", [GGUF_I64] = "i64",
    [GGUF_F64] = "f64", [GGUF_ARRAY] = "array", [GGUF_STRING] = "string",
};

/* ---- messages -------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 5, 6))) int gguf_fail(const struct gguf *g, char *err, size_t err_size, int code,
                                                    const char *format, ...)
{
    if (err_size == 0)
        return code;
    int n = snprintf(err, err_size, "%s: ", g->path);
    if (n < 0 || (size_t)n >= err_size)
        return code;
    va_list args;
    va_start(args, format);
    vsnprintf(err + n, err_size - (size_t)n, format, args);
    va_end(args);
    return code;
}

struct gguf_shown gguf_show(const char *text, size_t len)
{
    struct gguf_shown s;
    size_t n = len < sizeof s.text - 4 ? len : sizeof s.text - 4;
    for (size_t i = 0; i < n; i++)
        s.text[i] = text[i];
    for (size_t i = 0; i < n; i++)
        if (s.text[i] < 0x20 || s.text[i] > 0x7e)
            s.text[i] = '?';
    strcpy(s.text + n, n < len ? "..." : "");
    return s;
}

/* ---- lookup ---------------------------------------------------------------------------------------------------- */

int gguf_compare_text(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static const struct gguf_key *find_key(const struct gguf *g, const char *name)
{
    size_t len = strlen(name), low = 0, high = g->n_keys;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct gguf_key *k = &g->keys[g->keys_sorted[middle]];
        int order = gguf_compare_text(k->name.text, k->name.len, name, len);
        if (order == 0)
            return k;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

size_t gguf_key_count(const struct gguf *g)
{
    return g->n_keys;
}

struct gguf_string gguf_key_at(const struct gguf *g, size_t i, enum gguf_value_type *type)
{
    *type = g->keys[i].type;
    return g->keys[i].name;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find_key(g, key) != NULL;
}

static bool is_integer(enum gguf_value_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

/* *found gets the key or, with GGUF_OPTIONAL, NULL. */
static int look_up(const struct gguf *g, const char *key, enum gguf_presence p, const struct gguf_key **found,
                   char *err, size_t err_size)
{
    *found = find_key(g, key);
    if (*found == NULL && p == GGUF_REQUIRED)
        return gguf_fail(g, err, err_size, -EBADMSG, "key %s is missing", key);
    return 0;
}

static int wrong_type(const struct gguf *g, const struct gguf_key *k, const char *wanted, char *err, size_t err_size)
{
    bool array = k->type == GGUF_ARRAY;
    return gguf_fail(g, err, err_size, -EBADMSG, "key %s is %s %s%s, not %s", gguf_show(k->name.text, k->name.len).text,
                     array ? "an array of" : "a", VALUE_NAMES[array ? k->array.type : k->type], array ? " values" : "",
                     wanted);
}

/* An integer as its 64 bits; *negative says that they are a negative number. */
static uint64_t read_integer(enum gguf_value_type type, const uint8_t *p, bool *negative)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;
    int64_t n;
    memcpy(&v, p, GGUF_VALUE_BYTES[type]);
    *negative = false;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL:
        return v.u8;
    case GGUF_U16:
        return v.u16;
    case GGUF_U32:
        return v.u32;
    case GGUF_U64:
        return v.u64;
    case GGUF_I8:
        n = v.i8;
        break;
    case GGUF_I16:
        n = v.i16;
        break;
    case GGUF_I32:
        n = v.i32;
        break;
    default:
        n = v.i64;
        break;
    }
    *negative = n < 0;
    return (uint64_t)n;
}

/* An integer key in [min, max]. */
static int get_integer(const struct gguf *g, const char *key, enum gguf_presence p, int64_t min, uint64_t max,
                       const struct gguf_key **found, uint64_t *out, char *err, size_t err_size)
{
    int rc = look_up(g, key, p, found, err, err_size);
    if (rc || *found == NULL)
        return rc;
    if (!is_integer((*found)->type))
        return wrong_type(g, *found, "an integer", err, err_size);
    bool negative;
    *out = read_integer((*found)->type, (*found)->array.data, &negative);
    if (negative ? (int64_t)*out < min : *out > max) {
        size_t at = (size_t)((*found)->array.data - g->parts[0].bytes);
        return negative ? gguf_fail(g, err, err_size, -EBADMSG, "key %s at byte %zu is %lld, which cannot be", key, at,
                                    (long long)*out)
                        : gguf_fail(g, err, err_size, -EBADMSG, "key %s at byte %zu is %llu, which cannot be", key, at,
                                    (unsigned long long)*out);
    }
    return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, enum gguf_presence p, uint32_t *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    uint64_t v;
    int rc = get_integer(g, key, p, 0, UINT32_MAX, &k, &v, err, err_size);
    if (rc == 0 && k != NULL)
        *out = (uint32_t)v;
    return rc;
}

int gguf_get_i32(const struct gguf *g, const char *key, enum gguf_presence p, int32_t *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    uint64_t v;
    int rc = get_integer(g, key, p, INT32_MIN, INT32_MAX, &k, &v, err, err_size);
    if (rc == 0 && k != NULL)
        *out = (int32_t)v;
    return rc;
}

int gguf_get_u64(const struct gguf *g, const char *key, enum gguf_presence p, uint64_t *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    uint64_t v;
    int rc = get_integer(g, key, p, 0, UINT64_MAX, &k, &v, err, err_size);
    if (rc == 0 && k != NULL)
        *out = v;
    return rc;
}

int gguf_get_f32(const struct gguf *g, const char *key, enum gguf_presence p, float *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    int rc = look_up(g, key, p, &k, err, err_size);
    if (rc || k == NULL)
        return rc;
    if (k->type == GGUF_F32) {
        memcpy(out, k->array.data, sizeof *out);
    } else if (k->type == GGUF_F64) {
        double d;
        memcpy(&d, k->array.data, sizeof d);
        /* A double beyond the range of a float has no defined conversion. */
        *out = fabs(d) > 3.4028234663852886e38 ? copysignf(INFINITY, d < 0 ? -1.0f : 1.0f) : (float)d;
    } else {
        return wrong_type(g, k, "a number with a fraction", err, err_size);
    }
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, enum gguf_presence p, bool *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    int rc = look_up(g, key, p, &k, err, err_size);
    if (rc || k == NULL)
        return rc;
    if (k->type != GGUF_BOOL)
        return wrong_type(g, k, "a bool", err, err_size);
    *out = *k->array.data != 0;
    return 0;
}

int gguf_get_string(const struct gguf *g, const char *key, enum gguf_presence p, struct gguf_string *out, char *err,
                    size_t err_size)
{
    const struct gguf_key *k;
    int rc = look_up(g, key, p, &k, err, err_size);
    if (rc || k == NULL)
        return rc;
    if (k->type != GGUF_STRING)
        return wrong_type(g, k, "a string", err, err_size);
    *out = k->string;
    return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, enum gguf_presence p, enum gguf_value_type type,
                   struct gguf_array *out, char *err, size_t err_size)
{
    const struct gguf_key *k;
    int rc = look_up(g, key, p, &k, err, err_size);
    if (rc || k == NULL)
        return rc;
    bool integers = is_integer(type);
    if (k->type != GGUF_ARRAY || (integers ? !is_integer(k->array.type) : k->array.type != type)) {
        char wanted[48];
        snprintf(wanted, sizeof wanted, "an array of %s values", integers ? "integer" : VALUE_NAMES[type]);
        return wrong_type(g, k, wanted, err, err_size);
    }
    *out = k->array;
    return 0;
}

int gguf_get_u32_each(const struct gguf *g, const char *key, enum gguf_presence p, uint32_t *out, size_t n, char *err,
                      size_t err_size)
{
    const struct gguf_key *k;
    int rc = look_up(g, key, p, &k, err, err_size);
    if (rc || k == NULL)
        return rc;
    if (k->type != GGUF_ARRAY) {
        uint32_t one = 0;
        rc = gguf_get_u32(g, key, p, &one, err, err_size);
        for (size_t i = 0; rc == 0 && i < n; i++)
            out[i] = one;
        return rc;
    }
    if (!is_integer(k->array.type))
        return wrong_type(g, k, "an array of integer values", err, err_size);
    if (k->array.n != n)
        return gguf_fail(g, err, err_size, -EBADMSG, "key %s has %llu values, not %zu", key,
                         (unsigned long long)k->array.n, n);
    for (size_t i = 0; i < n; i++) {
        int64_t v = gguf_array_int(&k->array, i);
        if (v < 0 || v > UINT32_MAX)
            return gguf_fail(g, err, err_size, -EBADMSG, "key %s: value %zu is %lld, which cannot be", key, i,
                             (long long)v);
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)gguf_array_int(&k->array, i);
    return 0;
}

int64_t gguf_array_int(const struct gguf_array *a, uint64_t i)
{
    bool negative;
    uint64_t v = read_integer(a->type, a->data + i * GGUF_VALUE_BYTES[a->type], &negative);
    return !negative && v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    float v;
    memcpy(&v, a->data + i * sizeof v, sizeof v);
    return v;
}

struct gguf_string gguf_array_next(const struct gguf_array *a, size_t *cursor)
{
    uint64_t len;
    memcpy(&len, a->data + *cursor, sizeof len);
    struct gguf_string s = {(const char *)a->data + *cursor + sizeof len, (size_t)len};
    *cursor += sizeof len + (size_t)len;
    return s;
}

/* gguf_test.c - the parser on well-formed files, on every kind of damage, and on the real models. */
#include "engine/file/file.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/models.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char err[512];

/* Opens what the writer holds, which it frees. The file's bytes go to *file and must be freed after gguf_close(). */
static int open_written(struct gguf_writer *w, void **file, struct gguf **out)
{
    size_t size;
    *file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    err[0] = '\0';
    return gguf_open_memory(*file, size, "test.gguf", out, err, sizeof err);
}

/* Expects a refusal with `code` and a message that names the file and holds `part`. */
static void expect_refused(struct gguf_writer *w, int code, const char *part)
{
    void *file;
    struct gguf *g = NULL;
    int rc = open_written(w, &file, &g);
    if (rc != code || strstr(err, part) == NULL || strstr(err, "test.gguf") == NULL)
        print_error("got %d \"%s\"; wanted %d \"%s\"\n", rc, err, code, part);
    assert_int_equal(rc, code);
    assert_non_null(strstr(err, part));
    assert_non_null(strstr(err, "test.gguf"));
    assert_null(g);
    free(file);
}

static struct gguf_writer *sample(void)
{
    static const float row[64] = {1.5f};
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "general.architecture", "qwen2");
    gguf_writer_u32(w, "u32", 4000000000u);
    gguf_writer_i32(w, "i32", -7);
    gguf_writer_u64(w, "u64", UINT64_MAX);
    gguf_writer_i64(w, "i64", -1);
    gguf_writer_u8(w, "u8", 200);
    gguf_writer_i8(w, "i8", -100);
    gguf_writer_u16(w, "u16", 60000);
    gguf_writer_f32(w, "f32", 0.25f);
    gguf_writer_f64(w, "f64", 1e-6);
    gguf_writer_f64(w, "f64_huge", -1e300);
    gguf_writer_bool(w, "bool", true);
    gguf_writer_strings(w, "strings", (const char *[]){"a", "", "ccc"}, 3);
    gguf_writer_f32s(w, "floats", (float[]){1, 2.5f}, 2);
    gguf_writer_u32s(w, "heads", (uint32_t[]){4, 5, 6}, 3);
    gguf_writer_i32s(w, "signed", (int32_t[]){4, -5}, 2);
    gguf_writer_bools(w, "bools", (bool[]){true, false}, 2);
    gguf_writer_tensor(w, "a.weight", KERNELS_F32, 2, (uint64_t[]){32, 2}, row, sizeof row);
    gguf_writer_tensor(w, "b.weight", KERNELS_Q8_0, 1, (uint64_t[]){32}, NULL, 34);
    gguf_writer_tensor(w, "c.weight", KERNELS_Q4_K, 3, (uint64_t[]){256, 2, 2}, NULL, 4 * 144);
    return w;
}

static float first_value(const struct gguf *g, const struct gguf_tensor *t)
{
    float value = 0;
    assert_int_equal(gguf_tensor_read(g, t, 0, sizeof value, &value, err, sizeof err), 0);
    return value;
}

static void test_reads_what_was_written(void **state)
{
    (void)state;
    void *file;
    struct gguf *g;
    assert_int_equal(open_written(sample(), &file, &g), 0);
    assert_int_equal(gguf_version(g), 3);
    uint32_t u = 0;
    int32_t i = 0;
    uint64_t u64 = 0;
    float f = 0;
    bool b = false;
    struct gguf_string s;
    assert_int_equal(gguf_get_u32(g, "u32", GGUF_REQUIRED, &u, err, sizeof err), 0);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(gguf_get_u32(g, "u8", GGUF_REQUIRED, &u, err, sizeof err), 0);
    assert_int_equal(u, 200);
    assert_int_equal(gguf_get_i32(g, "i8", GGUF_REQUIRED, &i, err, sizeof err), 0);
    assert_int_equal(i, -100);
    assert_int_equal(gguf_get_i32(g, "u16", GGUF_REQUIRED, &i, err, sizeof err), 0);
    assert_int_equal(i, 60000);
    assert_int_equal(gguf_get_u64(g, "u64", GGUF_REQUIRED, &u64, err, sizeof err), 0);
    assert_true(u64 == UINT64_MAX);
    assert_int_equal(gguf_get_f32(g, "f64", GGUF_REQUIRED, &f, err, sizeof err), 0);
    assert_true(f == 1e-6f);
    assert_int_equal(gguf_get_f32(g, "f64_huge", GGUF_REQUIRED, &f, err, sizeof err), 0);
    assert_true(isinf(f) && f < 0);
    assert_int_equal(gguf_get_bool(g, "bool", GGUF_REQUIRED, &b, err, sizeof err), 0);
    assert_true(b);
    assert_int_equal(gguf_get_string(g, "general.architecture", GGUF_REQUIRED, &s, err, sizeof err), 0);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.text, "qwen2", 5);
    struct gguf_array a;
    size_t cursor = 0;
    assert_int_equal(gguf_get_array(g, "strings", GGUF_REQUIRED, GGUF_STRING, &a, err, sizeof err), 0);
    assert_int_equal(a.n, 3);
    assert_int_equal(gguf_array_next(&a, &cursor).len, 1);
    assert_int_equal(gguf_array_next(&a, &cursor).len, 0);
    s = gguf_array_next(&a, &cursor);
    assert_int_equal(s.len, 3);
    assert_memory_equal(s.text, "ccc", 3);
    assert_int_equal(cursor, a.bytes);
    assert_int_equal(gguf_get_array(g, "floats", GGUF_REQUIRED, GGUF_F32, &a, err, sizeof err), 0);
    assert_true(a.n == 2 && gguf_array_f32(&a, 1) == 2.5f);
    assert_int_equal(gguf_get_array(g, "signed", GGUF_REQUIRED, GGUF_U32, &a, err, sizeof err), 0);
    assert_int_equal(gguf_array_int(&a, 1), -5);
    assert_int_equal(gguf_get_array(g, "bools", GGUF_REQUIRED, GGUF_BOOL, &a, err, sizeof err), 0);
    assert_int_equal(gguf_array_int(&a, 0), 1);
    uint32_t each[3] = {0};
    assert_int_equal(gguf_get_u32_each(g, "heads", GGUF_REQUIRED, each, 3, err, sizeof err), 0);
    assert_int_equal(each[2], 6);
    assert_int_equal(gguf_get_u32_each(g, "u8", GGUF_REQUIRED, each, 3, err, sizeof err), 0);
    assert_int_equal(each[2], 200);
    assert_int_equal(gguf_key_count(g), 17);
    enum gguf_value_type type;
    assert_memory_equal(gguf_key_at(g, 2, &type).text, "i32", 3);
    assert_int_equal(type, GGUF_I32);

    assert_int_equal(gguf_tensor_count(g), 3);
    const struct gguf_tensor *t = gguf_tensor_find(g, "a.weight");
    assert_ptr_equal(t, gguf_tensor_at(g, 0));
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->values, 64);
    assert_int_equal(t->bytes, 256);
    assert_true(first_value(g, t) == 1.5f);
    assert_int_equal(gguf_tensor_get(g, "c.weight", GGUF_REQUIRED, &t, err, sizeof err), 0);
    assert_int_equal(t->type, KERNELS_Q4_K);
    assert_string_equal(t->type_name, "Q4_K");
    assert_int_equal(t->bytes, 576);
    assert_int_equal(gguf_tensor_get(g, "none", GGUF_OPTIONAL, &t, err, sizeof err), 0);
    assert_null(t);
    assert_null(gguf_tensor_find(g, "a.weigh"));
    gguf_close(g);
    free(file);
}

static void test_getters_refuse(void **state)
{
    (void)state;
    void *file;
    struct gguf *g;
    assert_int_equal(open_written(sample(), &file, &g), 0);
    uint32_t u = 17, each[3];
    int32_t i = 17;
    uint64_t u64 = 17;
    float f = 17;
    bool b = true;
    struct gguf_string s = {"x", 1};
    struct gguf_array a;
    assert_int_equal(gguf_get_u32(g, "none", GGUF_OPTIONAL, &u, err, sizeof err), 0);
    assert_int_equal(u, 17);
    assert_int_equal(gguf_get_u32(g, "none", GGUF_REQUIRED, &u, err, sizeof err), -EBADMSG);
    assert_string_equal(err, "test.gguf: key none is missing");
    assert_int_equal(gguf_get_u32(g, "u64", GGUF_OPTIONAL, &u, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32(g, "i32", GGUF_OPTIONAL, &u, err, sizeof err), -EBADMSG);
    assert_non_null(strstr(err, "-7"));
    assert_int_equal(gguf_get_u64(g, "i64", GGUF_OPTIONAL, &u64, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_i32(g, "u32", GGUF_OPTIONAL, &i, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32(g, "f32", GGUF_OPTIONAL, &u, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32(g, "bool", GGUF_OPTIONAL, &u, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32(g, "heads", GGUF_OPTIONAL, &u, err, sizeof err), -EBADMSG);
    assert_string_equal(err, "test.gguf: key heads is an array of u32 values, not an integer");
    assert_int_equal(gguf_get_f32(g, "u32", GGUF_OPTIONAL, &f, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_bool(g, "u8", GGUF_OPTIONAL, &b, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_string(g, "u8", GGUF_OPTIONAL, &s, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_array(g, "u8", GGUF_OPTIONAL, GGUF_U32, &a, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_array(g, "floats", GGUF_OPTIONAL, GGUF_U32, &a, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_array(g, "bools", GGUF_OPTIONAL, GGUF_U32, &a, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32_each(g, "heads", GGUF_OPTIONAL, each, 2, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32_each(g, "signed", GGUF_OPTIONAL, each, 2, err, sizeof err), -EBADMSG);
    assert_int_equal(gguf_get_u32(g, "none", GGUF_REQUIRED, &u, NULL, 0), -EBADMSG);
    assert_true(u == 17 && i == 17 && u64 == 17 && f == 17 && b && s.len == 1);
    const struct gguf_tensor *t = (const void *)&u;
    assert_int_equal(gguf_tensor_get(g, "none", GGUF_REQUIRED, &t, err, sizeof err), -EBADMSG);
    assert_ptr_equal(t, &u);
    gguf_close(g);
    free(file);
}

static void test_versions(void **state)
{
    (void)state;
    struct gguf_writer *w = sample();
    void *file;
    struct gguf *g;
    gguf_writer_version(w, 2);
    assert_int_equal(open_written(w, &file, &g), 0);
    gguf_close(g);
    free(file);
    static const uint32_t REFUSED[] = {0, 1, 4, 0x01000000, 0x02000000, 0x03000000, UINT32_MAX};
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        w = sample();
        gguf_writer_version(w, REFUSED[i]);
        expect_refused(w, -ENOTSUP, (REFUSED[i] & 0xffff) == 0 ? "big-endian" : "version");
    }
}

/* Every prefix of a file is refused, and none is read past its end (the copies are exact for the sanitizer's sake). */
static void test_truncated_anywhere(void **state)
{
    (void)state;
    struct gguf_writer *w = sample();
    size_t size;
    uint8_t *file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    for (size_t n = 0; n < size; n++) {
        uint8_t *part = malloc(n ? n : 1);
        struct gguf *g = NULL;
        assert_non_null(part);
        memcpy(part, file, n);
        assert_int_equal(gguf_open_memory(part, n, "test.gguf", &g, err, sizeof err), -EBADMSG);
        assert_null(g);
        free(part);
    }
    free(file);
}

/* Every byte of the header set to extreme values: opens or is refused, never anything else. */
static void test_any_byte_changed(void **state)
{
    (void)state;
    struct gguf_writer *w = sample();
    size_t size;
    uint8_t *file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    static const uint8_t VALUES[] = {0, 1, 9, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < size; at++)
        for (size_t v = 0; v < sizeof VALUES; v++) {
            uint8_t old = file[at];
            struct gguf *g;
            file[at] = VALUES[v];
            int rc = gguf_open_memory(file, size, "test.gguf", &g, err, sizeof err);
            assert_true(rc == 0 || rc == -EBADMSG || rc == -ENOTSUP);
            if (rc == 0)
                gguf_close(g);
            file[at] = old;
        }
    free(file);
}

static void patch_u64(uint8_t *file, size_t at, uint64_t v)
{
    memcpy(file + at, &v, sizeof v);
}

static void test_counts_are_bounded(void **state)
{
    (void)state;
    struct gguf_writer *w = sample();
    size_t size;
    uint8_t *file = gguf_writer_finish(w, &size);
    gguf_writer_free(w);
    static const uint64_t COUNTS[] = {1000, GGUF_MAX_KEYS + 1, UINT64_C(1) << 32, UINT64_MAX / 8, UINT64_MAX};
    for (size_t at = 8; at <= 16; at += 8)
        for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
            uint64_t old;
            struct gguf *g;
            memcpy(&old, file + at, 8);
            patch_u64(file, at, COUNTS[i]);
            assert_int_equal(gguf_open_memory(file, size, "test.gguf", &g, err, sizeof err), -EBADMSG);
            assert_non_null(strstr(err, at == 8 ? "tensors are announced at byte 8" : "keys are announced at byte 16"));
            patch_u64(file, at, old);
        }
    free(file);
}

/* One past each named maximum, in files large enough that only the limit refuses them. */
static void test_limits(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    char name[GGUF_MAX_KEY_BYTES + 2];
    for (int i = 0; i <= GGUF_MAX_KEYS; i++) {
        snprintf(name, sizeof name, "key %d", i);
        gguf_writer_u32(w, name, 1);
    }
    expect_refused(w, -EBADMSG, "more than the limit");

    w = gguf_writer_new();
    for (int i = 0; i <= GGUF_MAX_TENSORS; i++) {
        snprintf(name, sizeof name, "t%d", i);
        gguf_writer_tensor(w, name, KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
    }
    expect_refused(w, -EBADMSG, "more than the limit");

    memset(name, 'k', sizeof name);
    name[GGUF_MAX_KEY_BYTES + 1] = '\0';
    w = gguf_writer_new();
    gguf_writer_u32(w, name, 1);
    expect_refused(w, -EBADMSG, "past the limit");
    struct gguf *g;
    void *file;
    w = gguf_writer_new();
    gguf_writer_u32(w, name + 1, 1);
    assert_int_equal(open_written(w, &file, &g), 0);
    gguf_close(g);
    free(file);

    name[GGUF_MAX_NAME_BYTES + 1] = '\0';
    w = gguf_writer_new();
    gguf_writer_tensor(w, name, KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
    expect_refused(w, -EBADMSG, "past the limit");
    w = gguf_writer_new();
    gguf_writer_tensor(w, name + 1, KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
    assert_int_equal(open_written(w, &file, &g), 0);
    assert_non_null(gguf_tensor_find(g, name + 1));
    gguf_close(g);
    free(file);
}

/* An array value: type, count. */
static void put_array_start(uint8_t *p, uint32_t type, uint64_t n)
{
    memcpy(p, &type, 4);
    memcpy(p + 4, &n, 8);
}

static void test_arrays(void **state)
{
    (void)state;
    uint8_t value[12 * 64] = {0};
    static const uint64_t COUNTS[] = {100, GGUF_MAX_ARRAY + 1, UINT64_MAX / 4 + 1, UINT64_MAX / 8 + 2, UINT64_MAX};
    for (uint32_t type = 0; type < GGUF_VALUE_TYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
            struct gguf_writer *w = gguf_writer_new();
            put_array_start(value, type, COUNTS[i]);
            gguf_writer_raw(w, "array", GGUF_ARRAY, value, 40);
            expect_refused(w, -EBADMSG, "array: the array at byte 41 announces");
        }
    struct gguf_writer *w = gguf_writer_new();
    put_array_start(value, GGUF_VALUE_TYPE_COUNT, 0);
    gguf_writer_raw(w, "array", GGUF_ARRAY, value, 12);
    expect_refused(w, -EBADMSG, "unknown type 13");

    for (int depth = GGUF_MAX_NESTING; depth <= 60; depth += depth == GGUF_MAX_NESTING ? 1 : 55) {
        w = gguf_writer_new();
        for (int i = 0; i < depth; i++)
            put_array_start(value + 12 * i, i + 1 < depth ? GGUF_ARRAY : GGUF_U8, i + 1 < depth ? 1 : 0);
        gguf_writer_raw(w, "array", GGUF_ARRAY, value, 12 * (size_t)depth);
        if (depth > GGUF_MAX_NESTING) {
            expect_refused(w, -EBADMSG, "nested");
            continue;
        }
        void *file;
        struct gguf *g;
        struct gguf_array a;
        assert_int_equal(open_written(w, &file, &g), 0);
        assert_int_equal(gguf_get_array(g, "array", GGUF_REQUIRED, GGUF_U32, &a, err, sizeof err), -EBADMSG);
        gguf_close(g);
        free(file);
    }
    w = gguf_writer_new();
    gguf_writer_raw(w, "flag", GGUF_BOOL, "\2", 1);
    expect_refused(w, -EBADMSG, "a bool at byte 40 is 2");
    w = gguf_writer_new();
    gguf_writer_raw(w, "what", 99, "\2", 1);
    expect_refused(w, -EBADMSG, "key what at byte 36 has unknown type 99");
    w = gguf_writer_new();
    gguf_writer_raw(w, "text", GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    expect_refused(w, -EBADMSG, "text at byte 40 has a length of 18446744073709551615, past the end");
}

static void test_duplicates(void **state)
{
    (void)state;
    struct gguf_writer *w = sample();
    gguf_writer_bool(w, "heads", true);
    expect_refused(w, -EBADMSG, "key heads is there twice");
    w = sample();
    gguf_writer_tensor(w, "b.weight", KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
    expect_refused(w, -EBADMSG, "tensor b.weight is there twice");
    w = gguf_writer_new();
    gguf_writer_u32(w, "", 1);
    expect_refused(w, -EBADMSG, "empty name");
    w = gguf_writer_new();
    gguf_writer_tensor(w, "", KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
    expect_refused(w, -EBADMSG, "empty name");
    w = gguf_writer_new();
    gguf_writer_u32(w, "esc\x1b[2J", 1);
    gguf_writer_u32(w, "esc\x1b[2J", 1);
    expect_refused(w, -EBADMSG, "key esc?[2J is there twice"); /* nothing that a terminal would obey */
}

static void test_parts(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_u16(w, "split.count", 3);
    expect_refused(w, -ENOTSUP, "one of 3 parts");
    w = gguf_writer_new();
    gguf_writer_u16(w, "split.count", 1);
    void *file;
    struct gguf *g;
    assert_int_equal(open_written(w, &file, &g), 0);
    gguf_close(g);
    free(file);
}

static void test_alignment(void **state)
{
    (void)state;
    static const uint32_t REFUSED[] = {0, 1, 4, 24, 33, GGUF_MAX_ALIGNMENT * 2, UINT32_MAX};
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        struct gguf_writer *w = gguf_writer_new();
        gguf_writer_u32(w, "general.alignment", REFUSED[i]);
        expect_refused(w, -EBADMSG, "general.alignment is");
    }
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "general.alignment", "32");
    expect_refused(w, -EBADMSG, "general.alignment");
    static const uint32_t FINE[] = {8, 64, 4096};
    for (size_t i = 0; i < sizeof FINE / sizeof *FINE; i++) {
        void *file;
        struct gguf *g;
        w = gguf_writer_new();
        gguf_writer_alignment(w, FINE[i]);
        gguf_writer_tensor(w, "a", KERNELS_F32, 1, (uint64_t[]){1}, NULL, 4);
        gguf_writer_tensor(w, "b", KERNELS_F32, 1, (uint64_t[]){1}, "\0\0\200\77", 4);
        assert_int_equal(open_written(w, &file, &g), 0);
        assert_true(first_value(g, gguf_tensor_find(g, "b")) == 1.0f);
        assert_int_equal(gguf_tensor_find(g, "b")->offset % FINE[i], 0);
        gguf_close(g);
        free(file);
    }
}

static void refuse_tensor(uint32_t type, int n_dims, const uint64_t *dims, size_t bytes, int64_t shift, int code,
                          const char *part)
{
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_tensor_raw(w, "bad", type, n_dims, dims, NULL, bytes, shift);
    expect_refused(w, code, part);
}

static void test_tensors(void **state)
{
    (void)state;
    uint64_t one[5] = {32, 1, 1, 1, 1};
    refuse_tensor(0, 0, one, 128, 0, -EBADMSG, "tensor bad at byte 24 has 0 dimensions");
    refuse_tensor(0, 5, one, 128, 0, -EBADMSG, "has 5 dimensions");
    refuse_tensor(0, 1, (uint64_t[]){0}, 128, 0, -EBADMSG, "dimension 0 at byte 39 is 0");
    refuse_tensor(0, 2, (uint64_t[]){1, (uint64_t)GGUF_MAX_DIM_VALUES + 1}, 128, 0, -EBADMSG, "dimension 1");
    refuse_tensor(0, 3, (uint64_t[]){INT32_MAX, INT32_MAX, INT32_MAX}, 128, 0, -EBADMSG, "dimension 2");
    refuse_tensor(0, 2, (uint64_t[]){INT32_MAX, INT32_MAX}, 128, 0, -EBADMSG, "past the end");
    refuse_tensor(28, 3, (uint64_t[]){1u << 30, 1u << 30, 8}, 128, 0, -EBADMSG, "larger than any file");
    refuse_tensor(8, 1, (uint64_t[]){31}, 128, 0, -EBADMSG, "rows of 31 values cannot be stored in Q8_0 blocks of 32");
    refuse_tensor(4, 1, one, 128, 0, -ENOTSUP, "number 4 at byte 47");
    refuse_tensor(77, 1, one, 128, 0, -ENOTSUP, "number 77");
    refuse_tensor(UINT32_MAX, 1, one, 128, 0, -ENOTSUP, "number 4294967295");
    refuse_tensor(0, 1, one, 127, 0, -EBADMSG, "past the end of the file");
    refuse_tensor(0, 1, one, 128, 8, -EBADMSG, "not a multiple of 32");
    refuse_tensor(0, 1, one, 128, 32, -EBADMSG, "past the end of the file");
    refuse_tensor(0, 1, one, 128, -32, -EBADMSG, "past the end of the file");
    refuse_tensor(0, 1, one, 128, INT64_MIN, -EBADMSG, "past the end of the file");

    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_tensor_raw(w, "x", 0, 1, (uint64_t[]){64}, NULL, 256, 0);
    gguf_writer_tensor_raw(w, "y", 0, 1, (uint64_t[]){64}, NULL, 256, -32);
    expect_refused(w, -EBADMSG, "tensors x and y share bytes");
    w = gguf_writer_new();
    gguf_writer_tensor_raw(w, "x", 0, 1, (uint64_t[]){64}, NULL, 256, 256);
    gguf_writer_tensor_raw(w, "y", 0, 1, (uint64_t[]){64}, NULL, 256, 0);
    expect_refused(w, -EBADMSG, "share bytes");
}

/* By its name, with the nearest that can be read. */
static void test_unreadable_type_is_named(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t bytes;
        const char *name, *nearest;
    } TYPES[] = {{17, 74, "IQ2_XS", "Q2_K"}, {19, 50, "IQ1_S", "Q2_K"}, {21, 110, "IQ3_S", "Q3_K_M"},
                 {15, 292, "Q8_K", "Q8_0"},  {9, 288, "Q8_1", "Q8_0"},  {28, 2048, "F64", "BF16"}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++) {
        struct gguf_writer *w = gguf_writer_new();
        void *file;
        struct gguf *g;
        char wanted[256];
        gguf_writer_tensor_raw(w, "blk.0.ffn_down.weight", TYPES[i].type, 1, (uint64_t[]){256}, NULL, TYPES[i].bytes,
                               0);
        assert_int_equal(open_written(w, &file, &g), 0);
        const struct gguf_tensor *t = NULL;
        assert_int_equal(gguf_tensor_get(g, "blk.0.ffn_down.weight", GGUF_REQUIRED, &t, err, sizeof err), -ENOTSUP);
        snprintf(
            wanted, sizeof wanted,
            "test.gguf: tensor blk.0.ffn_down.weight has type %s, which convod cannot read; the nearest that it can "
            "is a %s file",
            TYPES[i].name, TYPES[i].nearest);
        assert_string_equal(err, wanted);
        assert_null(t);
        assert_int_equal(gguf_tensor_find(g, "blk.0.ffn_down.weight")->bytes, TYPES[i].bytes);
        gguf_close(g);
        free(file);
    }
}

static void test_real_model(void **state)
{
    (void)state;
    char *path = models_need(MODEL_QWEN_0_5B);
    struct gguf *g;
    assert_int_equal(gguf_open(path, &g, err, sizeof err), 0);
    assert_int_equal(gguf_tensor_count(g), 291);
    uint32_t layers = 0;
    assert_int_equal(gguf_get_u32(g, "qwen2.block_count", GGUF_REQUIRED, &layers, err, sizeof err), 0);
    assert_int_equal(layers, 24);
    const struct gguf_tensor *t;
    assert_int_equal(gguf_tensor_get(g, "blk.23.attn_q.weight", GGUF_REQUIRED, &t, err, sizeof err), 0);
    assert_int_equal(t->dims[0], 896);
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        assert_true(gguf_tensor_at(g, i)->type < KERNELS_TYPE_COUNT);
    gguf_close(g);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_was_written),
        cmocka_unit_test(test_getters_refuse),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_truncated_anywhere),
        cmocka_unit_test(test_any_byte_changed),
        cmocka_unit_test(test_counts_are_bounded),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_unreadable_type_is_named),
        cmocka_unit_test(test_real_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

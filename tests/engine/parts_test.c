/* parts_test.c - model files: what is no file, files that are cut or changed while they are open, headers of any
 * length, and models in several parts that belong together or do not. */
#include "engine/file/file.h"
#include "tests/engine/gguf_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char err[512], folder[32];

static const char *in_folder(const char *name)
{
    static char path[2][128];
    static int which;
    char *out = path[which++ % 2];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/convod-parts-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void save(struct gguf_writer *w, const char *name)
{
    assert_int_equal(gguf_writer_save(w, in_folder(name)), 0);
    gguf_writer_free(w);
}

static struct gguf *open_file(const char *name)
{
    struct gguf *g = NULL;
    if (gguf_open(in_folder(name), &g, err, sizeof err) != 0)
        fail_msg("%s", err);
    return g;
}

static void refuse(const char *name, int code, const char *part)
{
    struct gguf *g = NULL;
    err[0] = '\0';
    int rc = gguf_open(in_folder(name), &g, err, sizeof err);
    if (rc != code || strstr(err, part) == NULL)
        fail_msg("got %d \"%s\"; wanted %d \"%s\"", rc, err, code, part);
    assert_null(g);
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    refuse("missing.gguf", -ENOENT, "missing.gguf");
    refuse(".", -EINVAL, "not a regular file");
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    refuse("fifo", -EINVAL, "not a regular file"); /* and does not wait for a writer */
    int fd = open(in_folder("empty"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && close(fd) == 0);
    refuse("empty", -EBADMSG, "empty");
    gguf_close(NULL);
}

/* A file with one tensor of 64 floats, and a key of so many bytes. */
static struct gguf_writer *file_of(size_t key_bytes)
{
    static float row[64];
    char *text = malloc(key_bytes + 1);
    struct gguf_writer *w = gguf_writer_new();
    assert_non_null(text);
    memset(text, 'x', key_bytes);
    for (int i = 0; i < 64; i++)
        row[i] = (float)i;
    gguf_writer_string_n(w, "long", text, key_bytes);
    gguf_writer_tensor(w, "a", KERNELS_F32, 1, (uint64_t[]){64}, row, sizeof row);
    free(text);
    return w;
}

/* The header is read piece by piece: of any length it is the same. */
static void test_headers_of_any_length(void **state)
{
    (void)state;
    static const size_t BYTES[] = {0,       1000,    (1 << 20) - 200, (1 << 20) - 60, (1 << 20) - 36,
                                   1 << 20, 5000000, 20000000};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++) {
        save(file_of(BYTES[i]), "m.gguf");
        struct gguf *g = open_file("m.gguf");
        struct gguf_string s;
        float values[2];
        assert_int_equal(gguf_get_string(g, "long", GGUF_REQUIRED, &s, err, sizeof err), 0);
        assert_int_equal(s.len, BYTES[i]);
        assert_true(s.len == 0 || (s.text[0] == 'x' && s.text[s.len - 1] == 'x'));
        assert_int_equal(gguf_tensor_read(g, gguf_tensor_find(g, "a"), 16, sizeof values, values, err, sizeof err), 0);
        assert_true(values[0] == 4.0f && values[1] == 5.0f);
        struct stat st;
        assert_int_equal(stat(in_folder("m.gguf"), &st), 0);
        assert_int_equal(gguf_bytes(g), st.st_size);
        gguf_close(g);
    }
    /* One past what a header may take; the file is sparse. */
    struct gguf_writer *w = gguf_writer_new();
    const uint64_t bytes = (uint64_t)GGUF_MAX_HEADER_BYTES;
    gguf_writer_raw(w, "long", GGUF_STRING, &bytes, sizeof bytes);
    save(w, "m.gguf");
    assert_int_equal(truncate(in_folder("m.gguf"), (off_t)bytes * 2), 0);
    refuse("m.gguf", -EBADMSG, "its header takes more than 256 MiB");
}

static void test_a_file_that_is_cut_or_changed(void **state)
{
    (void)state;
    save(file_of(10), "m.gguf");
    struct gguf *g = open_file("m.gguf");
    struct stat st;
    float values[64];
    assert_int_equal(gguf_check_unchanged(g, err, sizeof err), 0);
    assert_int_equal(stat(in_folder("m.gguf"), &st), 0);
    assert_int_equal(truncate(in_folder("m.gguf"), st.st_size - 100), 0);
    assert_int_equal(gguf_tensor_read(g, gguf_tensor_find(g, "a"), 0, sizeof values, values, err, sizeof err),
                     -EBADMSG);
    assert_non_null(strstr(err, "it was cut"));
    assert_non_null(strstr(err, "m.gguf"));
    assert_int_equal(gguf_check_unchanged(g, err, sizeof err), -EBADMSG);
    assert_non_null(strstr(err, "changed while it was read"));
    gguf_close(g);
    refuse("m.gguf", -EBADMSG, "is the download complete?");

    save(file_of(10), "m.gguf");
    g = open_file("m.gguf");
    const struct timespec times[2] = {{1700000000, 0}, {1700000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, in_folder("m.gguf"), times, 0), 0);
    assert_int_equal(gguf_check_unchanged(g, err, sizeof err), -EBADMSG);
    gguf_close(g);
}

/* ---- parts ---- */

struct part {
    uint32_t no, count, tensors;
    const char *tensor; /* NULL: none */
};

static void write_part(const char *name, struct part p)
{
    const float value = (float)p.no + 0.5f;
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_u32(w, "split.no", p.no);
    gguf_writer_u32(w, "split.count", p.count);
    gguf_writer_u32(w, "split.tensors.count", p.tensors);
    if (p.no == 0)
        gguf_writer_string(w, "general.architecture", "llama");
    if (p.tensor != NULL)
        gguf_writer_tensor(w, p.tensor, KERNELS_F32, 1, (uint64_t[]){1}, &value, sizeof value);
    save(w, name);
}

#define FIRST  "m-00001-of-00003.gguf"
#define SECOND "m-00002-of-00003.gguf"
#define THIRD  "m-00003-of-00003.gguf"

static void write_parts(void)
{
    write_part(FIRST, (struct part){0, 3, 2, NULL});
    write_part(SECOND, (struct part){1, 3, 2, "b"});
    write_part(THIRD, (struct part){2, 3, 2, "a"});
}

static void test_parts_are_one_model(void **state)
{
    (void)state;
    write_parts();
    struct gguf *g = open_file(FIRST);
    float value = 0;
    assert_int_equal(gguf_part_count(g), 3);
    assert_int_equal(gguf_tensor_count(g), 2);
    assert_int_equal(gguf_bytes(g), gguf_part_bytes(g, 0) + gguf_part_bytes(g, 1) + gguf_part_bytes(g, 2));
    const struct gguf_tensor *a = gguf_tensor_find(g, "a"), *b = gguf_tensor_find(g, "b");
    assert_ptr_equal(b, gguf_tensor_at(g, 0));
    assert_int_equal(a->part, 2);
    assert_int_equal(gguf_tensor_read(g, a, 0, sizeof value, &value, err, sizeof err), 0);
    assert_true(value == 2.5f);
    assert_int_equal(gguf_tensor_read(g, b, 0, sizeof value, &value, err, sizeof err), 0);
    assert_true(value == 1.5f);
    assert_true(gguf_has(g, "general.architecture"));
    /* A part is cut: its own name is told. */
    assert_int_equal(truncate(in_folder(THIRD), 20), 0);
    assert_int_equal(gguf_tensor_read(g, a, 0, sizeof value, &value, err, sizeof err), -EBADMSG);
    assert_non_null(strstr(err, THIRD));
    gguf_close(g);
}

static void test_parts_that_do_not_belong_together(void **state)
{
    (void)state;
    write_parts();
    refuse(SECOND, -EINVAL, "name the first, which ends in -00001-of-00003.gguf");
    assert_int_equal(unlink(in_folder(THIRD)), 0);
    refuse(FIRST, -ENOENT, THIRD);
    static const struct part OTHERS[] = {{1, 3, 2, "a"}, {2, 4, 2, "a"}, {2, 3, 7, "a"}, {2, 1, 0, "a"}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        write_part(THIRD, OTHERS[i]);
        refuse(FIRST, -EBADMSG, "is not part 3 of 3");
    }
    write_part(THIRD, (struct part){2, 3, 2, "b"}); /* the second has it */
    refuse(FIRST, -EBADMSG, "tensor b is there twice");
    write_part(THIRD, (struct part){2, 3, 2, NULL});
    refuse(FIRST, -EBADMSG, "split.tensors.count is 2, but the parts have 1 tensors");
    write_part("other.gguf", (struct part){0, 3, 2, NULL});
    refuse("other.gguf", -EINVAL, "its name must end in -00001-of-00003.gguf");
    write_part("m-00001-of-01025.gguf", (struct part){0, 1025, 2, NULL});
    refuse("m-00001-of-01025.gguf", -EBADMSG, "split.count is 1025; 1024 is the most");
    write_part("m-00001-of-4294967295.gguf", (struct part){0, UINT32_MAX, 2, NULL});
    refuse("m-00001-of-4294967295.gguf", -EBADMSG, "1024 is the most");
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_u32(w, "split.count", 3);
    save(w, "m-00001-of-00003.gguf");
    refuse(FIRST, -EBADMSG, "split.no is missing");
    /* A model in one part is a model. */
    write_part("m-00001-of-00001.gguf", (struct part){0, 1, 1, "a"});
    gguf_close(open_file("m-00001-of-00001.gguf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_headers_of_any_length),
        cmocka_unit_test(test_a_file_that_is_cut_or_changed),
        cmocka_unit_test(test_parts_are_one_model),
        cmocka_unit_test(test_parts_that_do_not_belong_together),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* hash_test.c - the memory of a model file's hash. */
#include "engine/file/file.h"
#include "tests/engine/gguf_writer.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A model file with a key that holds `content`. */
static void write_model(const char *path, const char *content)
{
    struct gguf_writer *w = gguf_writer_new();
    gguf_writer_string(w, "content", content);
    assert_int_equal(gguf_writer_save(w, path), 0);
    gguf_writer_free(w);
}

struct folder {
    char path[64], file[128], cache[128];
};

static struct folder folder_new(const char *content)
{
    struct folder f = {.path = "/tmp/convod-hash-XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/model", f.path);
    snprintf(f.cache, sizeof f.cache, "%s/cache", f.path);
    assert_int_equal(mkdir(f.cache, 0700), 0);
    write_model(f.file, content);
    return f;
}

/* Path of the only file in the cache; false when there is none. */
static bool cached_file(const struct folder *f, char *out, size_t out_size)
{
    char command[512];
    snprintf(command, sizeof command, "ls -A %s", f->cache);
    FILE *p = popen(command, "re");
    char name[256] = "", more[256] = "";
    assert_non_null(p);
    bool one = fgets(name, sizeof name, p) != NULL;
    assert_null(fgets(more, sizeof more, p));
    pclose(p);
    name[strcspn(name, "\n")] = '\0';
    snprintf(out, out_size, "%s/%s", f->cache, name);
    return one;
}

static void folder_remove(struct folder *f)
{
    char command[256];
    snprintf(command, sizeof command, "rm -r %s", f->path);
    assert_int_equal(system(command), 0);
}

/* As opening a model does it: remembered, or computed and remembered. */
static void hash(const struct folder *f, bool cached, uint8_t out[32])
{
    char err[256] = "";
    const char *cache = cached ? f->cache : NULL;
    struct gguf *g;
    if (gguf_open(f->file, &g, err, sizeof err) != 0)
        fail_msg("%s", err);
    if (!gguf_hash_recall(g, cache, out)) {
        struct gguf_hash *h = gguf_hash_new();
        size_t n = (size_t)gguf_part_bytes(g, 0);
        uint8_t *bytes = malloc(n);
        assert_non_null(h);
        assert_non_null(bytes);
        assert_int_equal(gguf_read(g, 0, 0, n, bytes, err, sizeof err), 0);
        assert_true(gguf_hash_update(h, bytes, n / 2) && gguf_hash_update(h, bytes + n / 2, n - n / 2));
        assert_true(gguf_hash_finish(h, out));
        gguf_hash_free(h);
        gguf_hash_remember(g, cache, out);
        free(bytes);
    }
    gguf_close(g);
}

static void assert_sha256(const uint8_t got[32], const char *content)
{
    uint8_t wanted[32];
    struct gguf_writer *w = gguf_writer_new();
    size_t size;
    gguf_writer_string(w, "content", content);
    void *bytes = gguf_writer_finish(w, &size);
    assert_int_equal(EVP_Digest(bytes, size, wanted, NULL, EVP_sha256(), NULL), 1);
    assert_memory_equal(got, wanted, 32);
    free(bytes);
    gguf_writer_free(w);
}

static void set_time(const char *path, const struct timespec *mtime)
{
    const struct timespec times[2] = {*mtime, *mtime};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void rewrite(const char *path, const char *content, const struct timespec *mtime)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, strlen(content)), strlen(content));
    const struct timespec times[2] = {*mtime, *mtime};
    assert_int_equal(futimens(fd, times), 0);
    assert_int_equal(close(fd), 0);
}

static void test_the_cache_is_used_until_the_file_changes(void **state)
{
    (void)state;
    struct folder f = folder_new("first");
    struct stat st;
    uint8_t got[32];
    char name[512];
    hash(&f, false, got);
    assert_sha256(got, "first");
    assert_false(cached_file(&f, name, sizeof name));
    hash(&f, true, got);
    assert_sha256(got, "first");
    assert_true(cached_file(&f, name, sizeof name));
    /* Same inode, size and time: the remembered hash is taken (which is how one sees that it is). */
    assert_int_equal(stat(f.file, &st), 0);
    write_model(f.file, "FIRST");
    set_time(f.file, &st.st_mtim);
    hash(&f, true, got);
    assert_sha256(got, "first");
    hash(&f, false, got);
    assert_sha256(got, "FIRST");
    /* A nanosecond later: another file. */
    struct timespec later = st.st_mtim;
    later.tv_nsec = (later.tv_nsec + 1) % 1000000000;
    set_time(f.file, &later);
    hash(&f, true, got);
    assert_sha256(got, "FIRST");
    folder_remove(&f);

    /* The same time, another size. */
    f = folder_new("first");
    hash(&f, true, got);
    assert_int_equal(stat(f.file, &st), 0);
    write_model(f.file, "a content that is longer than the first by more than any padding");
    set_time(f.file, &st.st_mtim);
    hash(&f, true, got);
    assert_sha256(got, "a content that is longer than the first by more than any padding");
    folder_remove(&f);
}

static void test_a_damaged_cache_is_not_believed(void **state)
{
    (void)state;
    static const struct timespec now = {1700000000, 0};
    struct folder f = folder_new("content");
    uint8_t got[32];
    char name[512];
    hash(&f, true, got);
    assert_true(cached_file(&f, name, sizeof name));
    rewrite(name, "too short", &now);
    hash(&f, true, got);
    assert_sha256(got, "content");
    rewrite(name, "", &now);
    hash(&f, true, got);
    assert_sha256(got, "content");
    rewrite(name, "thirty-two bytes and some more, that no hash writes", &now);
    hash(&f, true, got);
    assert_sha256(got, "content");
    char zeros[64];
    memset(zeros, '0', sizeof zeros - 1);
    zeros[sizeof zeros - 1] = '\0';
    for (size_t n = sizeof zeros - 1; n > 30; n--) { /* of any length */
        zeros[n] = '\0';
        rewrite(name, zeros, &now);
        hash(&f, true, got);
        assert_sha256(got, "content");
    }
    /* A link in its place is not followed. */
    assert_int_equal(unlink(name), 0);
    assert_int_equal(symlink("/etc/passwd", name), 0);
    hash(&f, true, got);
    assert_sha256(got, "content");
    folder_remove(&f);
}

static void test_a_cache_that_cannot_be_written_is_no_error(void **state)
{
    (void)state;
    struct folder f = folder_new("content");
    uint8_t got[32];
    snprintf(f.cache, sizeof f.cache, "%s/no/where", f.path);
    hash(&f, true, got);
    assert_sha256(got, "content");
    assert_int_not_equal(access(f.cache, F_OK), 0);
    folder_remove(&f);
}

static void test_the_folder_is_made(void **state)
{
    (void)state;
    struct folder f = folder_new("content");
    char name[512];
    uint8_t got[32];
    struct stat st;
    snprintf(f.cache, sizeof f.cache, "%s/made", f.path);
    hash(&f, true, got);
    assert_sha256(got, "content");
    assert_true(cached_file(&f, name, sizeof name));
    assert_int_equal(stat(f.cache, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    folder_remove(&f);
}

/* Parts have one hash, which another time of any of them makes another one's. */
static void test_parts_have_one_name(void **state)
{
    (void)state;
    struct folder f = folder_new("unused");
    uint8_t mine[32] = {42}, got[32] = {0};
    char second[160], err[256] = "";
    for (uint32_t i = 0; i < 2; i++) {
        struct gguf_writer *w = gguf_writer_new();
        snprintf(f.file, sizeof f.file, "%s/m-%05u-of-00002.gguf", f.path, i + 1);
        gguf_writer_u32(w, "split.no", i);
        gguf_writer_u32(w, "split.count", 2);
        gguf_writer_u32(w, "split.tensors.count", 0);
        assert_int_equal(gguf_writer_save(w, f.file), 0);
        gguf_writer_free(w);
    }
    memcpy(second, f.file, sizeof f.file);
    snprintf(f.file, sizeof f.file, "%s/m-00001-of-00002.gguf", f.path);
    struct gguf *g;
    if (gguf_open(f.file, &g, err, sizeof err) != 0)
        fail_msg("%s", err);
    gguf_hash_remember(g, f.cache, mine);
    assert_true(gguf_hash_recall(g, f.cache, got));
    assert_memory_equal(got, mine, 32);
    gguf_close(g);
    set_time(second, &(struct timespec){1700000000, 1});
    assert_int_equal(gguf_open(f.file, &g, err, sizeof err), 0);
    assert_false(gguf_hash_recall(g, f.cache, got));
    gguf_close(g);
    folder_remove(&f);
}

static void assert_remembers(const struct folder *f, int wanted)
{
    char command[200];
    snprintf(command, sizeof command, "ls %s | grep -c ^sha256-", f->cache);
    FILE *p = popen(command, "re");
    int n = -1;
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    assert_int_equal(n, wanted);
}

/* A model file at another time is another file. */
static void hash_at(const struct folder *f, int64_t second, bool known)
{
    char err[256] = "";
    uint8_t mine[32] = {(uint8_t)second}, got[32];
    struct gguf *g;
    set_time(f->file, &(struct timespec){1600000000 + second, 0});
    assert_int_equal(gguf_open(f->file, &g, err, sizeof err), 0);
    assert_int_equal(gguf_hash_recall(g, f->cache, got), known);
    if (!known)
        gguf_hash_remember(g, f->cache, mine);
    gguf_close(g);
}

static void test_only_the_last_used_are_kept(void **state)
{
    (void)state;
    struct folder f = folder_new("content");
    char other[160], left[200], command[200];
    snprintf(other, sizeof other, "%s/models", f.cache);
    assert_int_equal(mkdir(other, 0700), 0);
    for (int i = 0; i < 64; i++)
        hash_at(&f, i, false);
    assert_remembers(&f, 64);
    snprintf(command, sizeof command, "touch -d 2020-01-01 %s/sha256-*", f.cache);
    assert_int_equal(system(command), 0);
    /* What is used stays, though it came first; what a process that died left goes as the oldest. */
    snprintf(left, sizeof left, "%s/sha256-1-2-3-4.000000005.77", f.cache);
    assert_int_equal(symlink("/dev/null", left), 0);
    assert_int_equal(
        utimensat(AT_FDCWD, left, (struct timespec[2]){{1500000000, 0}, {1500000000, 0}}, AT_SYMLINK_NOFOLLOW), 0);
    hash_at(&f, 0, true);
    for (int i = 64; i < 70; i++)
        hash_at(&f, i, false);
    assert_remembers(&f, 64);
    assert_int_not_equal(faccessat(AT_FDCWD, left, F_OK, AT_SYMLINK_NOFOLLOW), 0);
    hash_at(&f, 0, true);
    hash_at(&f, 69, true);
    /* Nothing else in the folder is touched. */
    assert_int_equal(access(other, F_OK), 0);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cache_is_used_until_the_file_changes),
        cmocka_unit_test(test_a_damaged_cache_is_not_believed),
        cmocka_unit_test(test_a_cache_that_cannot_be_written_is_no_error),
        cmocka_unit_test(test_the_folder_is_made),
        cmocka_unit_test(test_parts_have_one_name),
        cmocka_unit_test(test_only_the_last_used_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

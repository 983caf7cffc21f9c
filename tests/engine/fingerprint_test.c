/* fingerprint_test.c - what a fingerprint depends on, and the memory of a file's hash. */
#include "engine/model/model.h"
#include "tests/engine/engine_fixture.h"

#include <errno.h>
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

/* ---- what it depends on ---- */

struct print {
    uint8_t bytes[32];
};

static struct print print_of(struct tiny_model m, struct fixture_opts o)
{
    struct print p;
    struct fixture f = fixture_open(m, o);
    memcpy(p.bytes, engine_info(f.e)->fingerprint, 32);
    fixture_close(&f);
    return p;
}

static bool same(struct print a, struct print b)
{
    return memcmp(a.bytes, b.bytes, 32) == 0;
}

static void test_what_it_depends_on(void **state)
{
    (void)state;
    const struct tiny_model m = tiny_model_of(TINY_QWEN2);
    const struct fixture_opts none = {0};
    const struct print first = print_of(m, none);
    assert_true(same(first, print_of(m, none))); /* another file, the same bytes */
    assert_true(same(first, print_of(m, (struct fixture_opts){.backend = "auto", .threads = 2})));
    assert_true(same(first, print_of(m, (struct fixture_opts){.ctx_tokens = 77, .kv_bytes = 1 << 20})));
    assert_true(same(first, print_of(m, (struct fixture_opts){.step_tokens = 9, .kv_type = "bf16"})));
    assert_false(same(first, print_of(m, (struct fixture_opts){.kv_type = "f16"})));
    struct tiny_model other = m;
    other.seed++;
    assert_false(same(first, print_of(other, none)));
    other = m;
    other.rope_base *= 2;
    assert_false(same(first, print_of(other, none)));
    for (enum tiny_rope p = TINY_ROPE_LINEAR; p < TINY_ROPES; p++) {
        other = m;
        other.rope = p;
        assert_false(same(first, print_of(other, none)));
    }
}

/* Settings that change rows count by themselves, whatever the file's hash is. */
static void test_every_setting_counts_alone(void **state)
{
    (void)state;
    double freq[2][2] = {{1.0, 0.01}, {1.0, 0.02}};
    struct engine base = {.info.kv_type = "bf16"};
    base.model = (struct model){.n_layers = 2, .n_kv_heads = 2, .head_dim = 8};
    for (int g = 0; g < MODEL_GROUPS; g++)
        base.model.rope[g] = (struct model_rope){.rot = 4, .inv_freq = freq[g], .magnitude = 1};
    struct print seen[16];
    int n = 0;
#define VARIANT(change)                                                                                                \
    do {                                                                                                               \
        struct engine e = base;                                                                                        \
        change;                                                                                                        \
        assert_int_equal(fingerprint_engine(&e), 0);                                                                   \
        memcpy(seen[n].bytes, e.info.fingerprint, 32);                                                                 \
        for (int i = 0; i < n; i++)                                                                                    \
            assert_false(same(seen[i], seen[n]));                                                                      \
        n++;                                                                                                           \
    } while (0)
    double changed[2] = {1.0, 0.010001};
    VARIANT((void)e);
    VARIANT(e.info.model_sha256[31] = 1);
    VARIANT(e.info.kv_type = "f16");
    VARIANT(e.model.n_layers = 3);
    VARIANT(e.model.n_kv_heads = 1);
    VARIANT(e.model.head_dim = 16);
    VARIANT(e.model.rope[MODEL_FULL].inv_freq = changed);
    VARIANT(e.model.rope[MODEL_WINDOW].inv_freq = changed);
    VARIANT(e.model.rope[MODEL_FULL].magnitude = 1.1);
    VARIANT(e.model.rope[MODEL_FULL].rot = 2);
}

/* ---- the hash of a file ---- */

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
    FILE *out = fopen(f.file, "we");
    assert_non_null(out);
    fputs(content, out);
    assert_int_equal(fclose(out), 0);
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

static void hash(const struct folder *f, bool cached, uint8_t out[32])
{
    char err[256] = "";
    if (fingerprint_file(f->file, cached ? f->cache : NULL, NULL, NULL, out, err, sizeof err) != 0)
        fail_msg("%s", err);
}

static void assert_sha256(const uint8_t got[32], const char *content)
{
    uint8_t wanted[32];
    assert_int_equal(EVP_Digest(content, strlen(content), wanted, NULL, EVP_sha256(), NULL), 1);
    assert_memory_equal(got, wanted, 32);
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
    rewrite(f.file, "FIRST", &st.st_mtim);
    hash(&f, true, got);
    assert_sha256(got, "first");
    hash(&f, false, got);
    assert_sha256(got, "FIRST");
    /* A nanosecond later: another file. */
    struct timespec later = st.st_mtim;
    later.tv_nsec = (later.tv_nsec + 1) % 1000000000;
    rewrite(f.file, "FIRST", &later);
    hash(&f, true, got);
    assert_sha256(got, "FIRST");
    folder_remove(&f);

    /* The same time, another size. */
    f = folder_new("first");
    hash(&f, true, got);
    assert_int_equal(stat(f.file, &st), 0);
    rewrite(f.file, "longer", &st.st_mtim);
    hash(&f, true, got);
    assert_sha256(got, "longer");
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
    snprintf(f.cache, sizeof f.cache, "%s/nowhere", f.path);
    hash(&f, true, got);
    assert_sha256(got, "content");
    folder_remove(&f);
}

static void test_missing_file(void **state)
{
    (void)state;
    uint8_t got[32];
    char err[256] = "";
    assert_int_equal(fingerprint_file("/nonexistent/model", NULL, NULL, NULL, got, err, sizeof err), -ENOENT);
    assert_non_null(strstr(err, "/nonexistent/model"));
    assert_int_equal(fingerprint_file("/", NULL, NULL, NULL, got, err, sizeof err), -EISDIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_it_depends_on),
        cmocka_unit_test(test_every_setting_counts_alone),
        cmocka_unit_test(test_the_cache_is_used_until_the_file_changes),
        cmocka_unit_test(test_a_damaged_cache_is_not_believed),
        cmocka_unit_test(test_a_cache_that_cannot_be_written_is_no_error),
        cmocka_unit_test(test_missing_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

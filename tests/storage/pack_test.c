/* pack_test.c - records: sealed and parsed, every byte of a header guarded, scanned around holes. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <unistd.h>

static struct pack_record example(uint32_t label_bytes, uint64_t payload_bytes)
{
    struct pack_record r = {.owner = -5,
                            .first = 256,
                            .count = 64,
                            .label_bytes = label_bytes,
                            .layout_sum = 77,
                            .payload_bytes = payload_bytes,
                            .producer = "cpu-1"};
    testing_key(r.key, 1);
    testing_key(r.parent, 2);
    memset(r.fingerprint, 3, sizeof r.fingerprint);
    return r;
}

static uint8_t *sealed(struct pack_record *r, size_t *n)
{
    char label[4096];
    memset(label, 'l', sizeof label);
    *n = pack_record_bytes(r->label_bytes, r->payload_bytes);
    uint8_t *record = malloc(*n);
    assert_non_null(record);
    memset(record, 0xee, *n);
    pack_record_seal(record, r, label);
    return record;
}

static void test_parse(void **state)
{
    (void)state;
    static const uint32_t labels[] = {0, 1, 63, 64, 1024, 4096};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        struct pack_record r = example(labels[i], 5000), got;
        size_t n;
        uint8_t *record = sealed(&r, &n);
        assert_int_equal(n % PACK_ALIGN, 0);
        assert_int_equal(pack_record_parse(record, n, true, &got), 0);
        assert_memory_equal(&got.key, &r.key, sizeof r.key);
        assert_memory_equal(&got.parent, &r.parent, sizeof r.parent);
        assert_memory_equal(&got.fingerprint, &r.fingerprint, sizeof r.fingerprint);
        assert_int_equal(got.owner, -5);
        assert_int_equal(got.first, 256);
        assert_int_equal(got.count, 64);
        assert_int_equal(got.layout_sum, 77);
        assert_int_equal(got.payload_bytes, 5000);
        assert_string_equal(got.producer, "cpu-1");
        assert_int_equal(pack_record_parse(record, PACK_HEADER_BYTES, false, &got), 0);
        assert_int_equal(pack_record_parse(record, n - 1, true, &got), -EBADMSG);
        for (size_t bit = 0; bit < (PACK_HEADER_BYTES + (size_t)labels[i]) * 8; bit += 3) {
            record[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(pack_record_parse(record, n, true, &got), -EBADMSG);
            record[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        free(record);
    }
    struct pack_record got, r = example(0, 1);
    uint8_t none[PACK_HEADER_BYTES] = {0};
    assert_int_equal(pack_record_parse(none, sizeof none - 1, false, &got), -EBADMSG);
    assert_int_equal(pack_record_parse(none, sizeof none, false, &got), -EBADMSG);
    /* Sound, but out of range. */
    size_t n;
    r.count = STORAGE_COUNT_MAX + 1;
    uint8_t *record = sealed(&r, &n);
    assert_int_equal(pack_record_parse(record, n, true, &got), -EBADMSG);
    free(record);
    r.count = 0;
    record = sealed(&r, &n);
    assert_int_equal(pack_record_parse(record, n, true, &got), -EBADMSG);
    free(record);
    r.count = 1;
    r.first = UINT32_MAX;
    record = sealed(&r, &n);
    assert_int_equal(pack_record_parse(record, n, true, &got), -EBADMSG);
    free(record);
    assert_true(pack_record_bytes(STORAGE_LABEL_MAX, PACK_RECORD_MAX) > 0);
    assert_int_equal(pack_record_bytes(STORAGE_LABEL_MAX + 1, 1), 0);
    assert_int_equal(pack_record_bytes(1, PACK_RECORD_MAX + 1), 0);
}

static void test_sums(void **state)
{
    (void)state;
    struct storage_array a[2] = {{64, true}, {64, false}};
    struct storage_layout l = {.element = STORAGE_BF16, .arrays = a, .n_arrays = 2};
    uint64_t sum = pack_layout_sum(&l, 10);
    assert_int_equal(sum, pack_layout_sum(&l, 10));
    assert_true(sum != pack_layout_sum(&l, 11));
    l.element = STORAGE_F16;
    assert_true(sum != pack_layout_sum(&l, 10));
    l.element = STORAGE_BF16;
    a[1].channel_major = true;
    assert_true(sum != pack_layout_sum(&l, 10));
    a[1].channel_major = false;
    l.n_arrays = 1;
    assert_true(sum != pack_layout_sum(&l, 10));
}

struct seen {
    int n, n_none;
    uint64_t at[8];
};

static int seen(void *arg, uint32_t pack, uint64_t offset, uint64_t bytes, const struct pack_record *r,
                const uint8_t *label)
{
    struct seen *s = arg;
    (void)bytes;
    if (!r && ++s->n_none)
        return 0;
    if (pack != 1 || s->n == 8 || r->label_bytes != 10 || label[9] != 'l')
        return -EINVAL;
    s->at[s->n++] = offset;
    return 0;
}

static int count(void *arg, uint32_t pack)
{
    *(uint32_t *)arg += pack;
    return 0;
}

static void test_files(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct packs p = {.io = &storage_io_system, .dirfd = open(dir, O_RDONLY | O_DIRECTORY), .fd = -1};
    assert_true(p.dirfd >= 0);
    p.pack_bytes = 65536;
    struct pack_record r = example(10, 9000);
    size_t n;
    uint8_t *record = sealed(&r, &n), *got = malloc(n);
    assert_non_null(got);
    uint32_t pack;
    uint64_t offset, end;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
        assert_int_equal(pack, 1);
        assert_int_equal(offset, PACK_ALIGN + (uint64_t)i * n);
    }
    assert_true(packs_full(&p, n));
    assert_int_equal(packs_sync(&p), 0);
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
    assert_int_equal(pack, 2);

    struct seen s = {0};
    assert_int_equal(packs_scan(&p, 1, 0, seen, &s, &end), 0);
    assert_int_equal(s.n, 5);
    assert_int_equal(end, PACK_ALIGN + 5 * n);
    bool given_back = false;
    const struct place places[] = {{PACK_ALIGN + n, n}, {PACK_ALIGN + 2 * n, n}};
    assert_int_equal(packs_cut(&p, 1, places, 2, &given_back), 0);
    assert_true(given_back);
    s.n = 0;
    assert_int_equal(packs_scan(&p, 1, 0, seen, &s, &end), 0);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.at[1], PACK_ALIGN + 3 * n);
    assert_int_equal(s.n_none, 0);
    /* A block of what is none may begin with zeros. */
    int fd = openat(p.dirfd, "pack-00000001", O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "none", 4, (off_t)(PACK_ALIGN + n + 1000)), 4);
    assert_int_equal(close(fd), 0);
    s.n = 0;
    assert_int_equal(packs_scan(&p, 1, 0, seen, &s, &end), 0);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.n_none, 1);
    assert_int_equal(packs_cut(&p, 1, places, 2, &given_back), 0);
    s.n = 0;
    assert_int_equal(packs_scan(&p, 1, PACK_ALIGN + 4 * n, seen, &s, &end), 0);
    assert_int_equal(s.n, 1);

    assert_int_equal(packs_read(&p, 1, PACK_ALIGN, got, n), 0);
    assert_memory_equal(got, record, n);
    assert_int_equal(packs_read(&p, 1, 65536, got, n), -EBADMSG);
    assert_int_equal(packs_read(&p, 3, PACK_ALIGN, got, n), -ENOENT);
    assert_int_equal(packs_scan(&p, 3, 0, seen, &s, &end), -ENOENT);
    assert_int_equal(packs_cut(&p, 3, places, 1, &given_back), 0);
    /* Behind the end of a pack nothing lies, and nothing is put there. */
    assert_int_equal(packs_cut(&p, 1, &(struct place){1 << 20, n}, 1, &given_back), 0);
    assert_true(testing_size(dir, "pack-00000001") < 1 << 20);
    uint32_t sum = 0;
    assert_int_equal(packs_list(&p, count, &sum), 0);
    assert_int_equal(sum, 3);
    assert_int_equal(packs_activate(&p, 1, 0), -EEXIST);
    assert_int_equal(p.n, 2);
    packs_release(&p);
    assert_int_equal(testing_size(dir, "pack-00000002"), PACK_ALIGN + n);
    assert_int_equal(packs_unlink(&p, 1), 0);
    assert_int_equal(packs_unlink(&p, 1), 0);

    /* One larger than a pack has a pack of its own. */
    free(record);
    r = example(10, 100000);
    record = sealed(&r, &n);
    p.n = 2;
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
    assert_int_equal(pack, 3);
    assert_int_equal(offset, PACK_ALIGN);
    packs_release(&p);
    free(record);
    free(got);
    assert_int_equal(close(p.dirfd), 0);
    testing_dir_remove(dir);
}

/* What cannot be written or synced: none of it counts later, nothing of it can be read, and what others have named like
 * a pack is passed over. */
static void test_faults(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage_io io;
    struct faults faults;
    faults_init(&faults, &io);
    struct packs p = {.io = &io, .dirfd = open(dir, O_RDONLY | O_DIRECTORY), .fd = -1, .pack_bytes = 1 << 20};
    assert_true(p.dirfd >= 0);
    struct pack_record r = example(10, 9000);
    size_t n;
    uint8_t *record = sealed(&r, &n), *got = malloc(n);
    assert_non_null(got);
    uint32_t pack;
    uint64_t offset;
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
    faults_set(&faults, EIO, 0, true);
    faults.short_writes = true;
    faults_after(&faults, 3);
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), -EIO);
    assert_int_equal(pack, STORAGE_PACK_NONE);
    faults.short_writes = false;
    assert_int_equal(packs_read(&p, 1, PACK_ALIGN + n, got, n), 0);
    assert_true(pack_is_zero(got, n));
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
    assert_int_equal(offset, PACK_ALIGN + n);

    faults_set(&faults, 0, EIO, true);
    assert_int_equal(packs_sync(&p), -EIO);
    assert_int_equal(packs_sync(&p), -EIO); /* the disk says it once */
    assert_true(packs_full(&p, n));
    packs_release(&p);
    char *path = testing_path(dir, "pack-00000002");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    free(path);
    assert_int_equal(packs_append(&p, record, n, &pack, &offset), 0);
    assert_int_equal(pack, 3);
    assert_int_equal(packs_sync(&p), 0);
    packs_release(&p);
    free(record);
    free(got);
    assert_int_equal(close(p.dirfd), 0);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* reader_test.c - reading what is damaged, missing, foreign or being deleted. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <unistd.h>

static char *dir;
static struct storage *st;
static int64_t owner, conv, turn;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    st = testing_open(dir);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    turn = testing_turn(st, owner, conv, 0, "resp_1");
    for (unsigned id = 1; id <= 3; id++)
        if (testing_put(st, owner, id, id - 1))
            return -1;
    return testing_commit(st, turn, 3);
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

static struct storage_found find(unsigned id)
{
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
    return f;
}

static int pack_fd(int flags)
{
    char *path = testing_path(dir, "pack-00000001");
    int fd = open(path, flags);
    free(path);
    assert_true(fd >= 0);
    return fd;
}

/* Damages the middle segment with `change`, and sees it forgotten and stored anew. */
static void heals(const struct storage_found *f, int rc)
{
    struct storage_stats stats;
    struct storage_found g;
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read(st, f, 2).rc, rc);
    assert_int_equal(testing_find(st, owner, 1, 2, &g), -ENOENT);
    /* The child waits for it. */
    assert_int_equal(testing_find(st, owner, 2, 3, &g), 0);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    assert_int_equal(stats.damaged, rc == -EBADMSG);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &g), 0);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read(st, &g, 2).rc, 0);
    assert_true(g.offset != f->offset || g.pack != f->pack);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 3);
}

static void flip(uint64_t at)
{
    uint8_t b;
    int fd = pack_fd(O_RDWR);
    assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
    b ^= 0x10;
    assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
    assert_int_equal(close(fd), 0);
}

static void test_header_flip(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    flip(f.offset + 40);
    heals(&f, -EBADMSG);
}

static void test_label_flip(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    flip(f.offset + PACK_HEADER_BYTES + 2);
    heals(&f, -EBADMSG);
}

static void test_payload_flip(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    flip(f.offset + f.encoded_bytes / 2);
    heals(&f, -EBADMSG);
}

/* Another segment's record, whole and sound, in this one's place. */
static void test_foreign(void **state)
{
    (void)state;
    struct storage_found f = find(2), other = find(1);
    assert_int_equal(f.encoded_bytes, other.encoded_bytes);
    uint8_t *record = malloc(f.encoded_bytes);
    assert_non_null(record);
    int fd = pack_fd(O_RDWR);
    assert_int_equal(pread(fd, record, f.encoded_bytes, (off_t)other.offset), f.encoded_bytes);
    assert_int_equal(pwrite(fd, record, f.encoded_bytes, (off_t)f.offset), f.encoded_bytes);
    assert_int_equal(close(fd), 0);
    free(record);
    heals(&f, -EBADMSG);
}

/* A place that the disk cannot read any more: it is not asked again and again. */
static void test_unreadable(void **state)
{
    (void)state;
    static struct faults faults;
    static struct storage_io io;
    faults_init(&faults, &io);
    storage_close(st);
    st = testing_open_with(dir, &io, 1 << 30);
    struct storage_found f = find(2);
    faults.read_from = (off_t)f.offset;
    faults.read_to = (off_t)(f.offset + f.encoded_bytes);
    faults.read_errno = EIO;
    heals(&f, -EIO);
}

static void test_hole(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    int fd = pack_fd(O_RDWR);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)f.offset, (off_t)f.encoded_bytes),
                     0);
    assert_int_equal(close(fd), 0);
    heals(&f, -ENOENT);
}

/* The pack ends within the last segment: forgotten, and with it nothing else. */
static void test_truncated(void **state)
{
    (void)state;
    struct storage_found f = find(3), g;
    int fd = pack_fd(O_RDWR);
    assert_int_equal(ftruncate(fd, (off_t)(f.offset + f.encoded_bytes - 1)), 0);
    assert_int_equal(close(fd), 0);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read(st, &f, 3).rc, -EBADMSG);
    assert_int_equal(testing_find(st, owner, 2, 3, &g), -ENOENT);
    f = find(2);
    assert_int_equal(testing_read(st, &f, 2).rc, 0);
    /* Its hold went to its parent, so that the rest of the chain is not an orphan. */
    storage_close(st);
    st = testing_open(dir);
    jobs_sweep_wait(st);
    f = find(2);
    assert_int_equal(testing_read(st, &f, 2).rc, 0);
}

static void test_missing_pack(void **state)
{
    (void)state;
    struct storage_found f = find(1), g;
    storage_close(st);
    char *path = testing_path(dir, "pack-00000001");
    assert_int_equal(unlink(path), 0);
    free(path);
    st = testing_open(dir);
    assert_int_equal(testing_read(st, &f, 1).rc, -ENOENT);
    assert_int_equal(testing_find(st, owner, 0, 1, &g), -ENOENT);
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    storage_ram_drop(st, NULL, 0);
    g = find(1);
    assert_int_equal(testing_read(st, &g, 1).rc, 0);
}

static void test_wrong_question(void **state)
{
    (void)state;
    struct storage_found f = find(1);
    f.encoded_bytes = PACK_RECORD_MAX + PACK_ALIGN;
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read(st, &f, 1).rc, -EBADMSG);
    f.count = 0;
    assert_int_equal(storage_segment_read(st, &f, testing_fingerprint, &testing_layout, NULL, NULL, NULL), -EINVAL);
}

/* A read that began when its record was being cut out finds half of it: that is gone, not damaged. */
static void test_half_cut_out(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    struct storage_stats stats;
    uint8_t *record = malloc(f.encoded_bytes);
    assert_non_null(record);
    int fd = pack_fd(O_RDWR);
    assert_int_equal(pread(fd, record, f.encoded_bytes, (off_t)f.offset), f.encoded_bytes);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_int_equal(pwrite(fd, record, f.encoded_bytes / 2, (off_t)f.offset), f.encoded_bytes / 2);
    assert_int_equal(close(fd), 0);
    free(record);
    assert_int_equal(testing_read(st, &f, 2).rc, -ENOENT);
    storage_stats(st, &stats);
    assert_int_equal(stats.damaged, 0);
}

/* What is in RAM is had at once, and nothing else is. */
static void test_taken(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    struct storage_read_result r = testing_take(st, &f, 2);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.tier, STORAGE_TIER_RAM);
    assert_int_equal(r.bytes_read, 0);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_take(st, &f, 2).rc, -ENOENT);
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++)
        assert_int_equal(testing_decode(r.stored, 2, i), 0);
    storage_stored_free(r.stored);
    /* From disk it comes into RAM. */
    r = testing_read_stored(st, &f, 2);
    assert_int_equal(r.rc, 0);
    storage_stored_free(r.stored);
    r = testing_take(st, &f, 2);
    assert_int_equal(r.rc, 0);
    storage_stored_free(r.stored);
    /* What is there is not what was asked for. */
    f.first++;
    assert_int_equal(testing_take(st, &f, 2).rc, -EBADMSG);
}

/* What was read as it is stored stays, whatever becomes of it: each array by itself, in any order. */
static void test_as_stored(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    for (int from_disk = 0; from_disk < 2; from_disk++) {
        if (from_disk)
            storage_ram_drop(st, NULL, 0);
        struct storage_read_result r = testing_read_stored(st, &f, 2);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.tier, from_disk ? STORAGE_TIER_DISK : STORAGE_TIER_RAM);
        assert_int_equal(r.bytes_read, from_disk ? f.encoded_bytes : 0);
        if (from_disk)
            assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
        for (uint32_t i = testing_layout.n_arrays; i-- > 0;)
            assert_int_equal(testing_decode(r.stored, 2, i), 0);
        uint16_t none[1];
        assert_int_equal(storage_stored_decode(r.stored, testing_layout.n_arrays, none), -EINVAL);
        storage_stored_free(r.stored);
    }
    struct storage_read_result gone = testing_read_stored(st, &f, 2);
    assert_int_equal(gone.rc, -ENOENT);
    assert_null(gone.stored);
    storage_stored_free(NULL);
}

/* Damage to an array shows when it is decoded, and in no other array; read again with a payload, the segment is
 * forgotten. */
static void test_array_flip(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    int damaged = 0;
    flip(f.offset + f.encoded_bytes / 2);
    storage_ram_drop(st, NULL, 0);
    struct storage_read_result r = testing_read_stored(st, &f, 2);
    assert_int_equal(r.rc, 0);
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++) {
        int rc = testing_decode(r.stored, 2, i);
        assert_true(rc == 0 || rc == -EBADMSG);
        damaged += rc != 0;
    }
    assert_int_equal(damaged, 1);
    storage_stored_free(r.stored);
    heals(&f, -EBADMSG);
}

/* A damaged copy in RAM: what is on disk is taken instead. */
static void test_ram_flip(void **state)
{
    (void)state;
    struct storage_found f = find(2);
    struct blob *b = ram_get(&st->ram, f.key);
    assert_non_null(b);
    b->record[b->bytes / 2] ^= 1;
    blob_unref(b);
    struct storage_read_result r = testing_read_stored(st, &f, 2);
    assert_int_equal(r.rc, 0);
    int damaged = 0;
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++)
        damaged += testing_decode(r.stored, 2, i) != 0;
    assert_int_equal(damaged, 1);
    storage_stored_free(r.stored);
    r = testing_read(st, &f, 2);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.tier, STORAGE_TIER_DISK);
    r = testing_read_stored(st, &f, 2);
    assert_int_equal(r.tier, STORAGE_TIER_RAM);
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++)
        assert_int_equal(testing_decode(r.stored, 2, i), 0);
    storage_stored_free(r.stored);
}

/* A head that is damaged is found when it is read, as it is with a payload. */
static void test_head_flip_as_stored(void **state)
{
    (void)state;
    struct storage_found f = find(2), g;
    flip(f.offset + pack_payload_offset(f.label_bytes) + 9);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read_stored(st, &f, 2).rc, -EBADMSG);
    assert_int_equal(testing_find(st, owner, 1, 2, &g), -ENOENT);
}

struct reader {
    pthread_t thread;
    struct storage_found found[3];
    int bad;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    for (int i = 0; i < 60; i++) {
        unsigned id = (unsigned)i % 3 + 1;
        if (i % 5 == 0)
            storage_ram_drop(st, NULL, 0);
        int rc = testing_read(st, &r->found[id - 1], id).rc;
        r->bad += rc != 0 && rc != -ENOENT;
    }
    return NULL;
}

/* Reads while the conversation is deleted: whole or gone, never damaged. */
static void test_reads_while_deleting(void **state)
{
    (void)state;
    struct reader r[3];
    struct storage_stats stats;
    for (int i = 0; i < 3; i++) {
        r[i].bad = 0;
        for (unsigned id = 1; id <= 3; id++)
            r[i].found[id - 1] = find(id);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&r[i].thread, NULL, read_all, &r[i]), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(r[i].thread, NULL), 0);
        assert_int_equal(r[i].bad, 0);
    }
    storage_stats(st, &stats);
    assert_int_equal(stats.damaged, 0);
    assert_int_equal(stats.segments, 0);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_read(st, &r[0].found[0], 1).rc, -ENOENT);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_header_flip),  T(test_label_flip),
        T(test_payload_flip), T(test_foreign),
        T(test_hole),         T(test_truncated),
        T(test_missing_pack), T(test_wrong_question),
        T(test_half_cut_out), T(test_reads_while_deleting),
        T(test_as_stored),    T(test_array_flip),
        T(test_ram_flip),     T(test_head_flip_as_stored),
        T(test_unreadable),   T(test_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* segments_test.c - put, commit, find, read; holds, replacing, deleting, eviction, orphans. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <unistd.h>

static uint64_t pack_live(const char *dir)
{
    /* The first pack without its first block. */
    return testing_blocks(dir, "pack-00000001") - PACK_ALIGN;
}

static bool row_exists(struct storage *st, int64_t owner, unsigned parent, unsigned id)
{
    struct storage_found f;
    return testing_find(st, owner, parent, id, &f) == 0;
}

static void test_put_find_read(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_found f, rows[2];

    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(f.count, TESTING_COUNT);
    struct storage_read_result r = testing_read(st, &f, 1);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.tier, STORAGE_TIER_RAM);
    assert_int_equal(r.bytes_read, 0);

    storage_ram_drop(st, NULL, 0);
    r = testing_read(st, &f, 1);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.tier, STORAGE_TIER_DISK);
    assert_int_equal(r.bytes_read, f.encoded_bytes);
    assert_int_equal(testing_read(st, &f, 1).tier, STORAGE_TIER_RAM);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    storage_ram_drop(st, (const uint8_t(*)[STORAGE_KEY_BYTES])f.key, 1);
    assert_int_equal(testing_read(st, &f, 2).tier, STORAGE_TIER_DISK);

    /* Another owner and another model see nothing. */
    int64_t other = testing_owner(st, "b");
    assert_int_equal(testing_nearest(st, other, 0, "label 1", rows), 0);

    /* Stored already: nothing is written. */
    struct storage_stats before, after;
    storage_stats(st, &before);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 2), 0);
    storage_stats(st, &after);
    assert_int_equal(before.segments, 2);
    assert_int_equal(after.segments, 2);
    assert_int_equal(before.disk_used, after.disk_used);
    assert_int_equal(after.pending_puts, 0);
    assert_true(after.raw_bytes > after.encoded_bytes && after.encoded_bytes > 0);

    /* Asked for with another description: refused. */
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    f.first = 1;
    assert_int_equal(testing_read(st, &f, 1).rc, -EBADMSG);
    storage_close(st);

    st = testing_open(dir);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    r = testing_read(st, &f, 2);
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.tier, STORAGE_TIER_DISK);
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_nearest(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_found rows[2];
    assert_int_equal(testing_nearest(st, owner, 0, "label 5", rows), 0);
    for (unsigned id = 3; id <= 9; id += 3)
        assert_int_equal(testing_put(st, owner, id, 0), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    static const struct {
        const char *label;
        size_t common; /* with the one that has the most */
        const char *most;
    } cases[] = {{"a", 0, NULL},     {"label 3", 7, "label 3"}, {"label 3x", 7, "label 3"},
                 {"label", 5, NULL}, {"label 8", 6, NULL},      {"z", 0, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = testing_nearest(st, owner, 0, cases[i].label, rows), most = 0;
        bool found = !cases[i].most;
        for (size_t k = 0; k < n; k++) {
            size_t c = 0;
            while (c < rows[k].label_bytes && cases[i].label[c] == ((char *)rows[k].label)[c])
                c++;
            most = c > most ? c : most;
            found |= cases[i].most && rows[k].label_bytes == 8 && !memcmp(rows[k].label, cases[i].most, 7);
            free(rows[k].label);
        }
        assert_true(found);
        assert_int_equal(most, cases[i].common);
    }
    storage_close(st);
    testing_dir_remove(dir);
}

/* ---- labels and heads ---- */

static void test_label_codes(void **state)
{
    (void)state;
    static const uint32_t ids[] = {0, 1, 127, 128, 0, 24703, 24704, 151643, 2056319, 2056320, 1u << 30, UINT32_MAX};
    enum { N = sizeof ids / sizeof *ids };
    struct space space = {.unit = LABEL_IDS, .key = "a key"}, other = {.unit = LABEL_IDS, .key = "another one"};
    struct coded all, head, changed;
    assert_int_equal(label_code(&space, ids, sizeof ids, &all), 0);
    assert_int_equal(all.units, N);
    for (size_t k = 0; k <= N; k++) {
        /* As far as two are equal their codes are, and no code is the head of another. */
        assert_int_equal(label_code(&space, ids, 4 * k, &head), 0);
        assert_int_equal(coded_common(&all, head.string, head.bytes), k == N ? N + 1 : k);
        assert_true(coded_sum(&head, k) == coded_sum(&all, k));
        assert_true(coded_sum(&head, k + 1) == 0);
        coded_free(&head);
        if (k == N)
            break;
        uint32_t others[N];
        memcpy(others, ids, sizeof ids);
        others[k]++;
        assert_int_equal(label_code(&space, others, sizeof ids, &changed), 0);
        assert_int_equal(coded_common(&all, changed.string, changed.bytes), k);
        assert_true(coded_sum(&all, k) == coded_sum(&changed, k) && coded_sum(&all, N) != coded_sum(&changed, N));
        coded_free(&changed);
    }
    assert_int_equal(label_code(&other, ids, sizeof ids, &changed), 0);
    assert_int_equal(coded_common(&all, changed.string, changed.bytes), 0);
    coded_free(&changed);
    coded_free(&all);
    space.unit = LABEL_RAW;
    assert_int_equal(label_code(&space, "label", 5, &all), 0);
    assert_int_equal(label_code(&space, "labels", 6, &head), 0);
    assert_int_equal(coded_common(&all, head.string, head.bytes), 5);
    coded_free(&head);
    coded_free(&all);
}

/* That a label cannot be read just now is no reason to make one up: its segment would be taken for damaged. */
static void test_label_unreadable(void **state)
{
    (void)state;
    static struct faults faults; /* the storage outlives this function */
    struct storage_io io;
    char *dir = testing_dir();
    faults_init(&faults, &io);
    struct storage *st = testing_open_with(dir, &io, 1 << 28);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_found rows[2], f;
    struct storage_stats stats;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    storage_ram_drop(st, NULL, 0);
    faults.read_errno = EMFILE;
    faults.read_to = INT32_MAX;
    assert_int_equal(testing_nearest(st, owner, 0, "label x", rows), 0);
    faults.read_errno = 0;
    assert_int_equal(testing_nearest(st, owner, 0, "label x", rows), 1);
    assert_int_equal(rows[0].label_bytes, 8);
    assert_memory_equal(rows[0].label, "label 1;", 8);
    free(rows[0].label);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(testing_read(st, &f, 1).rc, 0);
    storage_stats(st, &stats);
    assert_int_equal(stats.damaged, 0);
    storage_close(st);
    testing_dir_remove(dir);
}

#define FAMILY 60

struct family {
    int64_t owner, turn;
    uint32_t ids[FAMILY][8];
    unsigned n[FAMILY];
    bool there[FAMILY];
    uint64_t seed;
    int pack; /* where their records are */
};

static int family_put(struct storage_ledger *l, struct family *f, unsigned k)
{
    struct pack_record r = {
        .owner = f->owner, .count = f->n[k], .label_bytes = 4 * f->n[k], .payload_bytes = 64, .producer = "test"};
    uint8_t record[4096] = {0};
    testing_key(r.key, 1000 + k);
    memcpy(r.fingerprint, testing_fingerprint, sizeof r.fingerprint);
    pack_record_seal(record, &r, f->ids[k]);
    JOB_CHECK(pwrite(f->pack, record, sizeof record, 4096 * (k + 1)) == (ssize_t)sizeof record);
    return segment_insert(l, &r, (const uint8_t *)f->ids[k], 1, 4096 * (k + 1), 4096);
}

static unsigned family_common(const struct family *f, unsigned a, const uint32_t *ids, unsigned n)
{
    unsigned c = 0;
    while (c < n && c < f->n[a] && f->ids[a][c] == ids[c])
        c++;
    return c;
}

/* Whatever is put and dropped in whatever order: for any label, one of the two that are found has as much in common
 * with it as any that is there. (By chance, once in 65,536, it may have less: the spaces' keys are random. Nobody has
 * seen it: three units make few labels, and it takes two that differ where their codes do not.) */
static int family_run(struct storage_ledger *l, void *arg)
{
    struct family *f = arg;
    for (unsigned k = 0; k < FAMILY; k++) {
        f->n[k] = 1 + (unsigned)(testing_random(&f->seed) % 8);
        for (unsigned i = 0; i < f->n[k]; i++)
            f->ids[k][i] = (uint32_t)(testing_random(&f->seed) % 3) * 70000;
        for (unsigned i = 0; i < k; i++) /* the same twice is one */
            if (f->n[i] == f->n[k] && family_common(f, i, f->ids[k], f->n[k]) == f->n[k])
                f->n[k] = 0;
    }
    for (int step = 0; step < 400; step++) {
        unsigned k = (unsigned)(testing_random(&f->seed) % FAMILY);
        uint8_t key[STORAGE_KEY_BYTES];
        struct segment_row row;
        testing_key(key, 1000 + k);
        if (!f->n[k])
            continue;
        if (!f->there[k])
            JOB_CHECK(family_put(l, f, k) == 0);
        else
            JOB_CHECK(segment_cut(l, key, 1, 4096 * (k + 1)) == 0);
        f->there[k] ^= true;
        JOB_CHECK(segment_get(l, key, &row) == f->there[k]);
        uint32_t ids[8];
        unsigned n = 1 + (unsigned)(testing_random(&f->seed) % 8), best = 0, found = 0;
        for (unsigned i = 0; i < n; i++)
            ids[i] = (uint32_t)(testing_random(&f->seed) % 3) * 70000;
        for (unsigned i = 0; i < FAMILY; i++) {
            unsigned c = f->there[i] ? family_common(f, i, ids, n) : 0;
            best = c > best ? c : best;
        }
        struct storage_found rows[2];
        size_t n_rows;
        JOB_CHECK(storage_segment_nearest(l, f->owner, testing_fingerprint, testing_root, ids, 4 * n, rows, &n_rows) ==
                  0);
        for (size_t i = 0; i < n_rows; i++) {
            unsigned c = 0;
            while (c < n && c < rows[i].count && ((uint32_t *)rows[i].label)[c] == ids[c])
                c++;
            found = c > found ? c : found;
            free(rows[i].label);
        }
        JOB_CHECK(found == best);
    }
    return -ECANCELED; /* these records have no KV */
}

static void test_nearest_of_many(void **state)
{
    (void)state;
    char *dir = testing_dir_in_memory();
    struct storage *st = testing_open(dir);
    char *path = testing_path(dir, "pack-00000001");
    struct family f = {.owner = testing_owner(st, "a"), .pack = open(path, O_WRONLY | O_CREAT, 0600)};
    assert_true(f.pack >= 0);
    for (f.seed = 1; f.seed < 6; f.seed++) {
        uint64_t seed = f.seed;
        memset(f.there, 0, sizeof f.there);
        assert_int_equal(jobs_call(st, family_run, &f), -ECANCELED);
        f.seed = seed;
    }
    assert_int_equal(close(f.pack), 0);
    assert_int_equal(unlink(path), 0);
    free(path);
    storage_close(st);
    testing_dir_remove(dir);
}

/* A turn may hold another segment later: what nobody holds any more goes. */
static void test_hold_another(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1"), t2 = testing_turn(st, owner, conv, t1, "resp_2");
    struct storage_found f;
    struct storage_stats stats;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, t1, 2), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    uint64_t before = pack_live(dir);
    assert_int_equal(testing_put(st, owner, 3, 1), 0);
    assert_int_equal(testing_commit(st, t2, 3), 0);
    assert_true(row_exists(st, owner, 1, 2) && row_exists(st, owner, 1, 3));
    assert_int_equal(testing_commit(st, t1, 3), 0);
    testing_settle(st);
    assert_false(row_exists(st, owner, 1, 2));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    assert_int_equal(testing_read(st, &f, 2).rc, -ENOENT);
    assert_int_equal(testing_turn_delete(st, owner, "resp_2"), 0);
    assert_true(row_exists(st, owner, 1, 3)); /* the first turn's */
    assert_true(pack_live(dir) <= before);
    storage_close(st);
    testing_dir_remove(dir);
}

/* A deleted turn's tokens stay in no segment that those before it hold. */
static void test_delete_what_reaches_beyond(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1"), t2 = testing_turn(st, owner, conv, t1, "resp_2");
    int64_t t3 = testing_turn(st, owner, conv, t2, "resp_3");
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put_at(st, owner, 2, 1, TESTING_COUNT / 2), 0); /* reaches beyond all of them */
    assert_int_equal(testing_put_at(st, owner, 3, 2, TESTING_COUNT * 3 / 2), 0);
    assert_int_equal(testing_commit(st, t3, 3), 0);
    assert_int_equal(testing_commit(st, t2, 3), 0);
    assert_int_equal(testing_commit(st, t1, 2), 0);
    assert_int_equal(testing_turn_delete(st, owner, "resp_1"), -EBUSY);
    assert_int_equal(testing_turn_delete(st, owner, "resp_3"), 0);
    assert_true(row_exists(st, owner, 0, 1));
    assert_false(row_exists(st, owner, 1, 2));
    assert_false(row_exists(st, owner, 2, 3));
    assert_int_equal(testing_turn_delete(st, owner, "resp_2"), 0);
    assert_true(row_exists(st, owner, 0, 1));
    assert_int_equal(testing_turn_delete(st, owner, "resp_1"), 0);
    assert_false(row_exists(st, owner, 0, 1));
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_delete(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a");
    int64_t c1 = testing_conversation(st, owner, "conv_1"), c2 = testing_conversation(st, owner, "conv_2");
    int64_t t1 = testing_turn(st, owner, c1, 0, "resp_1"), t2 = testing_turn(st, owner, c2, 0, "resp_2");
    struct storage_found f;
    struct storage_stats stats;
    /* 1 is shared; 2, 3 belong to the first conversation, 4 to the second. */
    for (unsigned id = 1; id <= 3; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, t1, 3), 0);
    assert_int_equal(testing_put(st, owner, 4, 1), 0);
    assert_int_equal(testing_commit(st, t2, 4), 0);
    uint64_t full = pack_live(dir);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);

    assert_int_equal(testing_conversation_delete(st, owner + 1, "conv_1"), -ENOENT);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    /* Holes are cut and the ledger's log was emptied when the deletion is reported. */
    assert_true(pack_live(dir) <= full - 2 * f.encoded_bytes);
    assert_false(testing_contains(dir, "ledger.db-wal", "resp_1"));
    assert_int_equal(testing_size(dir, "ledger.db-wal"), 0);
    assert_false(testing_contains(dir, "kv.db-wal", "label 2"));
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), -ENOENT);
    assert_true(row_exists(st, owner, 0, 1));
    assert_false(row_exists(st, owner, 1, 2));
    assert_true(row_exists(st, owner, 1, 4));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    assert_int_equal(testing_read(st, &f, 2).rc, -ENOENT);

    assert_int_equal(testing_conversation_delete(st, owner, "conv_2"), 0);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 0);
    assert_int_equal(stats.disk_used, 0);
    assert_int_equal(stats.ram_used, 0);

    /* A commit for a turn that is gone leaves nothing. */
    assert_int_equal(testing_put(st, owner, 5, 0), 0);
    assert_int_equal(testing_commit(st, t2, 5), 0);
    assert_false(row_exists(st, owner, 0, 5));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 0);
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_evict(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1"), t2 = testing_turn(st, owner, conv, 0, "resp_2");
    int64_t t3 = testing_turn(st, owner, conv, t1, "resp_3");
    struct storage_found f;
    struct storage_stats stats;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, t1, 1), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    storage_close(st);

    /* Room for ten segments. */
    uint64_t budget = f.encoded_bytes * 10 + 1;
    st = testing_open_with(dir, &storage_io_system, budget);
    for (unsigned id = 2; id <= 10; id++) {
        assert_int_equal(testing_put(st, owner, id, id <= 5 ? id - 1 : id == 6 ? 0 : id - 1), 0);
        assert_int_equal(testing_commit(st, id <= 5 ? t1 : t2, id), 0);
    }
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 10);
    /* The chain 1..5 is the older one; reading it makes 6..10 the one to go, from its end. */
    for (unsigned id = 1; id <= 5; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        assert_int_equal(testing_read(st, &f, id).rc, 0);
    }
    for (unsigned id = 11; id <= 13; id++) {
        assert_int_equal(testing_put(st, owner, id, id == 11 ? 5 : id - 1), 0);
        assert_int_equal(testing_commit(st, t3, id), 0);
        storage_stats(st, &stats);
        assert_true(stats.disk_used <= budget);
    }
    for (unsigned id = 1; id <= 5; id++)
        assert_true(row_exists(st, owner, id - 1, id));
    assert_true(row_exists(st, owner, 0, 6));
    assert_false(row_exists(st, owner, 8, 9));
    assert_false(row_exists(st, owner, 9, 10));
    assert_true(row_exists(st, owner, 12, 13));
    assert_int_equal(stats.save_failures, 0);
    storage_close(st);
    testing_dir_remove(dir);
}

/* Room for eight: the chain 1..4 of the first turn, which is the older one, and 11..14 of the second. */
static struct storage *two_chains(const char *dir, int64_t *owner, int64_t turns[2])
{
    struct storage *st = testing_open(dir);
    struct storage_found f;
    *owner = testing_owner(st, "a");
    int64_t conv = testing_conversation(st, *owner, "conv_1");
    turns[0] = testing_turn(st, *owner, conv, 0, "resp_1");
    turns[1] = testing_turn(st, *owner, conv, 0, "resp_2");
    assert_int_equal(testing_put(st, *owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turns[0], 1), 0);
    assert_int_equal(testing_find(st, *owner, 0, 1, &f), 0);
    storage_close(st);
    st = testing_open_with(dir, &storage_io_system, f.encoded_bytes * 8);
    for (unsigned id = 2; id <= 4; id++)
        assert_int_equal(testing_put(st, *owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turns[0], 4), 0);
    for (unsigned id = 11; id <= 14; id++)
        assert_int_equal(testing_put(st, *owner, id, id == 11 ? 0 : id - 1), 0);
    assert_int_equal(testing_commit(st, turns[1], 14), 0);
    return st;
}

/* For 21 and 22 the second chain made room, although the first is the older one. */
static void newer_chain_went(struct storage *st, int64_t owner)
{
    for (unsigned id = 1; id <= 4; id++)
        assert_true(row_exists(st, owner, id - 1, id));
    assert_false(row_exists(st, owner, 12, 13));
    assert_true(row_exists(st, owner, 21, 22));
}

static void test_evict_not_ancestors(void **state)
{
    (void)state;
    char *dir = testing_dir();
    int64_t owner, turns[2];
    struct storage *st = two_chains(dir, &owner, turns);
    /* 4 may go, but not 3 and what is before it. */
    assert_int_equal(testing_put(st, owner, 5, 3), 0);
    assert_int_equal(testing_put(st, owner, 6, 5), 0);
    assert_int_equal(testing_put(st, owner, 7, 6), 0);
    assert_int_equal(testing_commit(st, turns[0], 7), 0);
    static const unsigned chain[] = {0, 1, 2, 3, 5, 6, 7};
    for (size_t i = 1; i < sizeof chain / sizeof *chain; i++)
        assert_true(row_exists(st, owner, chain[i - 1], chain[i]));
    assert_false(row_exists(st, owner, 3, 4));
    assert_false(row_exists(st, owner, 12, 13));
    /* A chain that does not fit stays as far as it is stored. */
    for (unsigned id = 8; id <= 12; id++)
        assert_int_equal(testing_put(st, owner, id + 100, id == 8 ? 7 : id + 99), 0);
    assert_int_equal(testing_commit(st, turns[0], 112), -ENOSPC);
    for (size_t i = 1; i < sizeof chain / sizeof *chain; i++)
        assert_true(row_exists(st, owner, chain[i - 1], chain[i]));
    storage_close(st);
    testing_dir_remove(dir);
}

/* How many of the two chains are stored. */
static int stored_run(struct storage_ledger *l, void *arg)
{
    int *n = arg;
    *n = 0;
    for (unsigned id = 1; id <= 14; id++) {
        uint8_t key[STORAGE_KEY_BYTES];
        testing_key(key, id);
        *n += segment_exists(l, key) == 1;
    }
    return 0;
}

/* What was put, but was there already, stays until its commit whatever others put in between. */
static void test_evict_not_what_is_put(void **state)
{
    (void)state;
    char *dir = testing_dir();
    int64_t owner, turns[2];
    struct storage *st = two_chains(dir, &owner, turns);
    int left = 0;
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_put(st, owner, 21, 0), 0);
    assert_int_equal(testing_put(st, owner, 22, 21), 0);
    do /* room is made before the commit is asked for */
        assert_int_equal(jobs_call(st, stored_run, &left), 0);
    while (left > 6);
    assert_int_equal(testing_commit(st, turns[0], 4), 0);
    newer_chain_went(st, owner);
    storage_close(st);
    testing_dir_remove(dir);
}

static int gate_run(struct storage_ledger *l, void *arg)
{
    (void)l;
    pthread_mutex_t *gate = arg;
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return 0;
}

/* Nor what a commit that waits is going to hold. */
static void test_evict_not_what_is_to_be_held(void **state)
{
    (void)state;
    char *dir = testing_dir();
    int64_t owner, turns[2];
    struct storage *st = two_chains(dir, &owner, turns);
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, 4);
    /* The first put waits for the ledger thread, the others behind it. */
    pthread_mutex_lock(&gate);
    assert_int_equal(storage_submit(st, (struct storage_job){.run = gate_run, .arg = &gate}), 0);
    assert_int_equal(testing_put(st, owner, 21, 0), 0);
    assert_int_equal(testing_put(st, owner, 22, 21), 0);
    assert_int_equal(storage_kv_commit(st, turns[0], key, NULL, NULL, NULL), 0);
    pthread_mutex_unlock(&gate);
    assert_int_equal(testing_commit(st, turns[0], 4), 0);
    newer_chain_went(st, owner);
    storage_close(st);
    testing_dir_remove(dir);
}

/* What a lookup found or a commit holds was used, although nothing was read. */
static void test_evict_by_use(void **state)
{
    (void)state;
    for (int by_lookup = 0; by_lookup < 2; by_lookup++) {
        char *dir = testing_dir();
        int64_t owner, turns[2];
        struct storage *st = two_chains(dir, &owner, turns);
        if (by_lookup) {
            for (unsigned id = 1; id <= 4; id++)
                assert_true(row_exists(st, owner, id - 1, id));
        } else {
            assert_int_equal(testing_commit(st, turns[0], 4), 0);
        }
        assert_int_equal(testing_put(st, owner, 21, 0), 0);
        assert_int_equal(testing_put(st, owner, 22, 21), 0);
        assert_int_equal(testing_commit(st, turns[1], 22), 0);
        newer_chain_went(st, owner);
        storage_close(st);
        testing_dir_remove(dir);
    }
}

static void test_budget_too_small(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open_with(dir, &storage_io_system, 8192);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_found f;
    struct storage_stats stats;
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, t1, 1), -ENOSPC);
    storage_stats(st, &stats);
    assert_int_equal(stats.save_failures, 1);
    assert_int_equal(stats.pending_puts, 0);
    assert_int_equal(stats.disk_used, 0);
    /* It is served from RAM, to its owner. */
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    assert_int_equal(testing_read(st, &f, 1).tier, STORAGE_TIER_RAM);
    assert_int_equal(testing_find(st, owner + 1, 0, 1, &f), -ENOENT);
    storage_ram_drop(st, NULL, 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
    /* Until its turn is deleted. */
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), -ENOENT);
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_orphans(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_stats stats;
    jobs_sweep_wait(st);
    /* 1-2 is held, 3-4 is not. */
    for (unsigned id = 1; id <= 4; id++)
        assert_int_equal(testing_put(st, owner, id, id == 3 ? 0 : id - 1), 0);
    assert_int_equal(testing_commit(st, t1, 2), 0);
    assert_true(row_exists(st, owner, 3, 4));
    storage_close(st);
    st = testing_open(dir);
    jobs_sweep_wait(st);
    assert_true(row_exists(st, owner, 1, 2));
    assert_false(row_exists(st, owner, 0, 3));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    storage_close(st);
    testing_dir_remove(dir);
}

/* What running turns have put since the start is not an orphan: they hold it when they end. */
static void test_orphans_and_running_turns(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1"), t2 = testing_turn(st, owner, conv, 0, "resp_2");
    /* Enough for the search to take a while, and one orphan. */
    for (unsigned id = 1; id <= 320; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_put(st, owner, 1000, 0), 0);
    assert_int_equal(testing_commit(st, t1, 320), 0);
    storage_close(st);
    st = testing_open(dir);
    /* Two segments of a turn get their rows with another turn's commit. */
    assert_int_equal(testing_put(st, owner, 1001, 0), 0);
    assert_int_equal(testing_put(st, owner, 1002, 1001), 0);
    assert_int_equal(testing_put(st, owner, 2001, 0), 0);
    assert_int_equal(testing_commit(st, t2, 2001), 0);
    jobs_sweep_wait(st);
    assert_false(row_exists(st, owner, 0, 1000));
    assert_true(row_exists(st, owner, 0, 1001));
    assert_true(row_exists(st, owner, 1001, 1002));
    assert_true(row_exists(st, owner, 319, 320));
    storage_close(st);
    testing_dir_remove(dir);
}

/* While running: what a running turn has put or planned to read stays, what was left by one that ended goes. */
static void test_sweep_while_running(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t t1 = testing_turn(st, owner, conv, 0, "resp_1");
    struct storage_stats stats;
    jobs_sweep_wait(st);
    /* A turn ends and holds 1-2; what it has put beyond, 3-4, was cut off. Another one, that still runs, put 11-12. */
    for (unsigned id = 1; id <= 4; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, t1, 2), 0);
    uint64_t running = storage_clock(st);
    assert_int_equal(testing_put(st, owner, 11, 0), 0);
    assert_int_equal(testing_put(st, owner, 12, 11), 0);
    assert_int_equal(testing_commit(st, 0, 0), 0);
    storage_sweep(st, running);
    jobs_sweep_wait(st);
    assert_true(row_exists(st, owner, 1, 2));
    assert_false(row_exists(st, owner, 2, 3));
    assert_true(row_exists(st, owner, 11, 12));
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 4);
    /* It ends, but a third one has found its segments. */
    running = storage_clock(st);
    assert_true(row_exists(st, owner, 0, 11));
    assert_true(row_exists(st, owner, 11, 12));
    storage_sweep(st, running);
    jobs_sweep_wait(st);
    assert_true(row_exists(st, owner, 11, 12));
    /* That one ends too. What is asked for twice is done once. */
    running = storage_clock(st);
    storage_sweep(st, running);
    storage_sweep(st, running);
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    assert_true(row_exists(st, owner, 1, 2));
    /* After a restart, planned before the search comes to them: now and then it is faster. */
    bool planned = false;
    for (int i = 0; i < 50 && !planned; i++) {
        for (unsigned id = 21; id <= 23; id++)
            assert_int_equal(testing_put(st, owner, id, id == 21 ? 0 : id - 1), 0);
        assert_int_equal(testing_commit(st, 0, 0), 0);
        storage_close(st);
        st = testing_open(dir);
        planned = row_exists(st, owner, 0, 21) && row_exists(st, owner, 21, 22);
        jobs_sweep_wait(st);
    }
    assert_true(planned);
    assert_true(row_exists(st, owner, 21, 22));
    assert_false(row_exists(st, owner, 22, 23));
    storage_sweep(st, storage_clock(st));
    jobs_sweep_wait(st);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, 2);
    storage_close(st);
    testing_dir_remove(dir);
}

static int let_go_in_vain(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int rc = segment_let_go(l);
    return rc ? rc : -ECANCELED;
}

/* What was superseded is dropped by a job that fails in the end: the next deletion drops it. */
static void test_let_go_in_vain(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    int64_t owner = testing_owner(st, "a"), conv = testing_conversation(st, owner, "conv_1");
    int64_t turn = testing_turn(st, owner, conv, 0, "resp_1");
    for (unsigned id = 1; id <= 2; id++) {
        assert_int_equal(testing_put(st, owner, id, 0), 0);
        assert_int_equal(testing_commit(st, turn, id), 0);
    }
    assert_int_equal(jobs_call(st, let_go_in_vain, NULL), -ECANCELED);
    assert_true(row_exists(st, owner, 0, 1));
    assert_true(testing_contains(dir, "pack-00000001", "label 1;"));
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_false(row_exists(st, owner, 0, 1));
    assert_false(testing_contains(dir, "pack-00000001", "label 1;"));
    storage_close(st);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_find_read),
        cmocka_unit_test(test_let_go_in_vain),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_hold_another),
        cmocka_unit_test(test_label_codes),
        cmocka_unit_test(test_label_unreadable),
        cmocka_unit_test(test_nearest_of_many),
        cmocka_unit_test(test_delete_what_reaches_beyond),
        cmocka_unit_test(test_delete),
        cmocka_unit_test(test_evict),
        cmocka_unit_test(test_budget_too_small),
        cmocka_unit_test(test_evict_not_ancestors),
        cmocka_unit_test(test_evict_not_what_is_put),
        cmocka_unit_test(test_evict_by_use),
        cmocka_unit_test(test_evict_not_what_is_to_be_held),
        cmocka_unit_test(test_orphans),
        cmocka_unit_test(test_orphans_and_running_turns),
        cmocka_unit_test(test_sweep_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

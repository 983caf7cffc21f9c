/* recover_test.c - opening after the index was lost, damaged or fell behind, and with intents left over. */
#include "tests/storage/storage_faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

static void reopen(void)
{
    st = testing_open(dir);
    jobs_sweep_wait(st);
}

static void all_there(unsigned last)
{
    struct storage_found f;
    struct storage_stats stats;
    for (unsigned id = 1; id <= last; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        struct storage_read_result r = testing_read(st, &f, id);
        assert_int_equal(r.rc, 0);
        assert_int_equal(r.tier, STORAGE_TIER_DISK);
    }
    assert_int_equal(testing_find(st, owner, last, last + 1, &f), -ENOENT);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, last);
    assert_int_equal(stats.disk_used, last * f.encoded_bytes);
}

static void remove_file(const char *file)
{
    char *path = testing_path(dir, file);
    assert_true(unlink(path) == 0 || errno == ENOENT);
    free(path);
}

static void test_index_missing(void **state)
{
    (void)state;
    storage_close(st);
    remove_file("kv.db");
    remove_file("kv.db-wal");
    reopen();
    all_there(3);
    /* Where it goes on, nothing is overwritten. */
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_commit(st, turn, 4), 0);
    storage_close(st);
    reopen();
    all_there(4);
}

static void test_index_damaged(void **state)
{
    (void)state;
    storage_close(st);
    testing_overwrite(dir, "kv.db", 0, "this is not a database at all, it only says so");
    reopen();
    all_there(3);
}

static void test_index_damaged_inside(void **state)
{
    (void)state;
    storage_close(st);
    /* Every page but the first. */
    off_t size = testing_size(dir, "kv.db");
    char junk[4097];
    memset(junk, 'j', 4096);
    junk[4096] = '\0';
    for (off_t at = 4096; at < size; at += 4096)
        testing_overwrite(dir, "kv.db", at, junk);
    reopen();
    all_there(3);
}

/* Found while running: noted, and made anew at the next open. */
static void test_index_damage_noted(void **state)
{
    (void)state;
    atomic_store(&st->kv_damaged, true);
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_commit(st, turn, 4), 0);
    storage_close(st);
    assert_int_equal(testing_size(dir, "kv.damaged"), 0);
    reopen();
    char *path = testing_path(dir, "kv.damaged");
    assert_int_equal(access(path, F_OK), -1);
    free(path);
    all_there(4);
}

#define MANY 1300 /* several transactions' worth */

/* In a child: the index is gone, and the process dies at its n-th write. */
static int rebuild_dying(int n)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct storage_io io;
        struct storage *again;
        char err[256];
        faults_die_at(n, &io);
        int rc =
            storage_open_with(&(struct storage_opts){.dir = dir, .disk_bytes = 1 << 26}, &io, &again, err, sizeof err);
        if (rc)
            (void)fprintf(stderr, "%s\n", err);
        else
            rc = index_wait(again, 0);
        _exit(rc ? 95 : 94);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 95);
    return WEXITSTATUS(status);
}

/* Made anew in pieces, and not taken for whole when that was cut short: from the beginning, or from where it was. */
static void test_rebuild_in_pieces(void **state)
{
    (void)state;
    for (unsigned i = 4; i <= MANY; i++) {
        assert_int_equal(testing_put(st, owner, i, i - 1), 0);
        if (i % 100 == 0)
            assert_int_equal(testing_commit(st, turn, i), 0);
    }
    storage_close(st);
    st = NULL;
    char *index = testing_path(dir, "kv.db"), *mark = testing_path(dir, "kv.damaged");
    char *log = testing_path(dir, "kv.db-wal");
    struct stat sb;
    bool partly = false;
    int deaths = 0;
    for (int n = 1;; n += n < 40 ? 1 : 29) {
        if (n < 200)
            (void)unlink(index);
        int end = rebuild_dying(n);
        if (end == 94)
            break;
        deaths++;
        /* Some of the rows are there for good, and the index knows that they are not all. */
        partly |= !stat(log, &sb) && sb.st_size > 100000 && access(mark, F_OK);
    }
    assert_true(deaths > 3 && partly);
    reopen();
    assert_int_equal(access(mark, F_OK), -1);
    for (unsigned i = 1; i <= MANY; i++) {
        struct storage_found f;
        assert_int_equal(testing_find(st, owner, i - 1, i, &f), 0);
    }
    free(index);
    free(mark);
    free(log);
}

static void copy(const char *from, const char *to)
{
    char *source = testing_path(dir, from), *target = testing_path(dir, to);
    FILE *in = fopen(source, "rb"), *out = fopen(target, "wb");
    assert_true(in && out);
    char buf[4096];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, in)))
        assert_int_equal(fwrite(buf, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    (void)fclose(in);
    free(source);
    free(target);
}

/* Remembers the index as it is, and falls back to that, as after a power loss. */
static void index_note(void)
{
    storage_close(st);
    copy("kv.db", "kv.old");
    st = testing_open(dir);
}

static void index_back_closed(void)
{
    copy("kv.old", "kv.db");
    remove_file("kv.db-wal");
    remove_file("kv.old");
    reopen();
}

static void index_back(void)
{
    storage_close(st);
    index_back_closed();
}

/* The index does not sync its commits: an older one finds what lies behind the ends it knows. */
static void test_index_behind(void **state)
{
    (void)state;
    index_note();
    for (unsigned id = 4; id <= 6; id++)
        assert_int_equal(testing_put(st, owner, id, id - 1), 0);
    assert_int_equal(testing_commit(st, turn, 6), 0);
    index_back();
    all_there(6);
}

/* A record that was torn when the power went: its header is there, its payload is not. It is stored anew. */
static void test_torn_record(void **state)
{
    (void)state;
    struct storage_found f, g;
    for (int rebuild = 0; rebuild < 2; rebuild++) {
        index_note();
        for (unsigned id = 4; id <= 6; id++)
            assert_int_equal(testing_put(st, owner, id, id - 1), 0);
        assert_int_equal(testing_commit(st, turn, 6), 0);
        assert_int_equal(testing_find(st, owner, 4, 5, &f), 0);
        char name[32];
        testing_pack_name(name, f.pack);
        testing_overwrite(dir, name, (off_t)(f.offset + f.encoded_bytes / 2), "torn");
        if (rebuild) {
            storage_close(st);
            remove_file("kv.db");
            remove_file("kv.db-wal");
            remove_file("kv.old");
            reopen();
        } else {
            index_back();
        }
        /* What is before it is held on. */
        for (unsigned id = 1; id <= 4; id++) {
            assert_int_equal(testing_find(st, owner, id - 1, id, &g), 0);
            assert_int_equal(testing_read(st, &g, id).rc, 0);
        }
        assert_int_equal(testing_find(st, owner, 4, 5, &g), -ENOENT);
        assert_true(testing_cut_out(st, &f));
        for (unsigned id = 5; id <= 6; id++)
            assert_int_equal(testing_put(st, owner, id, id - 1), 0);
        assert_int_equal(testing_commit(st, turn, 6), 0);
        storage_close(st);
        reopen();
        all_there(6);
        /* For the next round. */
        assert_int_equal(testing_commit(st, turn, 3), 0);
    }
}

/* A segment whose place a longer one took was cut out right behind the end that the older index knows. */
static void test_index_behind_a_hole(void **state)
{
    (void)state;
    struct storage_found f;
    struct storage_stats stats;
    index_note();
    int64_t second = testing_turn(st, owner, conv, turn, "resp_2");
    assert_int_equal(testing_put(st, owner, 9, 3), 0);
    assert_int_equal(testing_commit(st, second, 9), 0);
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_put(st, owner, 5, 4), 0);
    assert_int_equal(testing_commit(st, second, 5), 0);
    testing_settle(st);
    assert_int_equal(testing_find(st, owner, 3, 9, &f), -ENOENT);
    index_back();
    all_there(5);
    /* What is put next does not lie over them, and they go with their conversation. */
    assert_int_equal(testing_put(st, owner, 6, 5), 0);
    assert_int_equal(testing_commit(st, second, 6), 0);
    storage_ram_drop(st, NULL, 0);
    all_there(6);
    assert_int_equal(testing_find(st, owner, 3, 4, &f), 0);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    assert_true(testing_cut_out(st, &f));
    storage_stats(st, &stats);
    assert_int_equal(stats.disk_used, 0);
}

/* An older index knows a record that another producer's has taken the place of; it was not cut out yet. */
static struct storage_found replaced(bool torn)
{
    struct storage_found f, g;
    index_note();
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    uint8_t *record = malloc(f.encoded_bytes);
    assert_non_null(record);
    assert_int_equal(packs_read(&st->packs, f.pack, f.offset, record, f.encoded_bytes), 0);
    assert_int_equal(testing_put_as(st, owner, 3, 2, 0, "test-2", false), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    assert_int_equal(testing_find(st, owner, 2, 3, &g), 0);
    assert_true(g.offset != f.offset && g.pack == f.pack);
    testing_cuts_wait(st);
    storage_close(st);
    char name[32];
    testing_pack_name(name, f.pack);
    char *path = testing_path(dir, name);
    int fd = open(path, O_RDWR);
    free(path);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, record, f.encoded_bytes, (off_t)f.offset), f.encoded_bytes);
    if (torn)
        assert_int_equal(pwrite(fd, "torn", 4, (off_t)(g.offset + g.encoded_bytes / 2)), 4);
    assert_int_equal(close(fd), 0);
    free(record);
    index_back_closed();
    return f;
}

/* It goes now, not with the start after this one. */
static void test_replaced(void **state)
{
    (void)state;
    struct storage_found f = replaced(false);
    for (int i = 0; !testing_cut_out(st, &f); i++) {
        assert_true(i < 1000);
        (void)usleep(10000);
    }
    testing_cuts_wait(st);
    all_there(3);
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    assert_string_equal(f.producer, "test-2");
}

/* One that is torn takes no place. */
static void test_replaced_by_a_torn_one(void **state)
{
    (void)state;
    struct storage_found f = replaced(true), g;
    all_there(3);
    assert_int_equal(testing_find(st, owner, 2, 3, &g), 0);
    assert_string_equal(g.producer, "test-1");
    assert_int_equal(g.offset, f.offset);
}

static int intent_run(struct storage_ledger *l, void *arg)
{
    const struct storage_found *f = arg;
    int rc = segment_drop_record(l, 0, f->key, f->pack, f->offset, f->encoded_bytes);
    l->n_drops = 0; /* the crash comes here */
    return rc;
}

static void test_intents_left(void **state)
{
    (void)state;
    struct storage_found f, g;
    struct storage_stats stats;
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    g = f;
    assert_int_equal(jobs_call(st, intent_run, &f), 0);
    storage_close(st);
    st = testing_open(dir);
    assert_int_equal(testing_find(st, owner, 2, 3, &f), -ENOENT);
    assert_true(testing_cut_out(st, &g));
    storage_stats(st, &stats);
    assert_true(stats.segments <= 2); /* nothing holds the others now */
    /* With the index lost as well it does not come back. */
    storage_close(st);
    remove_file("kv.db");
    reopen();
    assert_int_equal(testing_find(st, owner, 2, 3, &f), -ENOENT);
}

/* Files that only look like packs, and a damaged record among good ones. */
static void test_foreign_packs(void **state)
{
    (void)state;
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    storage_close(st);
    copy("ledger.db", "pack-00000007");
    copy("ledger.db", "pack-7");
    copy("ledger.db", "pack-00000003x");
    testing_overwrite(dir, "pack-00000001", (off_t)f.offset + 8, "junk");
    remove_file("kv.db");
    reopen();
    /* These turns have no tokens to find their context by: it is held by its end alone. */
    assert_int_equal(testing_find(st, owner, 0, 1, &f), -ENOENT);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), -ENOENT);
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_put(st, owner, 2, 1), 0);
    assert_int_equal(testing_commit(st, turn, 3), 0);
    assert_true(testing_size(dir, "pack-00000008") > 0);
    storage_close(st);
    reopen();
    all_there(3);
}

/* A pack of ours had become empty, and its name is another file's at the next start: that is not ours to remove. */
static void test_foreign_pack_for_an_empty_one(void **state)
{
    (void)state;
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
    storage_close(st);
    copy("ledger.db", "pack-00000001");
    copy("ledger.db", "pack-00000007"); /* it is not the last one */
    reopen();
    assert_int_equal(testing_size(dir, "pack-00000001"), testing_size(dir, "pack-00000007"));
}

/* An index that cannot be read, from its beginning or further in, is made anew. */
static void test_index_unreadable(void **state)
{
    (void)state;
    storage_close(st);
    faults_sqlite_unreadable("kv.db", 0, 1);
    reopen();
    all_there(3);
    storage_close(st);
    faults_sqlite_unreadable("kv.db", 8192, 1);
    reopen();
    all_there(3);
    /* The ledger is needed. */
    storage_close(st);
    st = NULL;
    faults_sqlite_unreadable("ledger.db", 0, 1);
    char err[256];
    assert_int_equal(storage_open(&(struct storage_opts){.dir = dir}, &st, err, sizeof err), -EIO);
    faults_sqlite_unreadable(NULL, 0, 0);
    reopen();
    all_there(3);
}

/* A bad sector in a pack costs what lies there. */
static void test_pack_unreadable(void **state)
{
    (void)state;
    static struct faults faults; /* the storage outlives this function */
    struct storage_io io;
    struct storage_found f;
    assert_int_equal(testing_find(st, owner, 1, 2, &f), 0);
    storage_close(st);
    faults_init(&faults, &io);
    faults.read_errno = EIO;
    faults.read_to = PACK_ALIGN;
    st = testing_open_with(dir, &io, (uint64_t)1 << 30);
    all_there(3);
    assert_int_equal(testing_put(st, owner, 4, 3), 0);
    assert_int_equal(testing_commit(st, turn, 4), 0);
    assert_true(testing_size(dir, "pack-00000002") > 0);
    storage_close(st);
    /* A record, without an index. */
    remove_file("kv.db");
    faults.read_from = (off_t)f.offset;
    faults.read_to = (off_t)f.offset + PACK_HEADER_BYTES;
    st = testing_open_with(dir, &io, (uint64_t)1 << 30);
    assert_int_equal(index_wait(st, 0), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), -ENOENT);
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    assert_int_equal(testing_read(st, &f, 3).rc, 0);
    assert_int_equal(testing_find(st, owner, 3, 4, &f), 0);
    /* Of its label. */
    storage_close(st);
    remove_file("kv.db");
    faults.read_from += PACK_HEADER_BYTES;
    faults.read_to = faults.read_from + 1;
    st = testing_open_with(dir, &io, (uint64_t)1 << 30);
    assert_int_equal(index_wait(st, 0), 0);
    assert_int_equal(testing_find(st, owner, 1, 2, &f), -ENOENT);
    assert_int_equal(testing_find(st, owner, 2, 3, &f), 0);
    /* All of it. */
    storage_close(st);
    remove_file("kv.db");
    faults.read_from = 0;
    faults.read_to = INT32_MAX;
    st = testing_open_with(dir, &io, (uint64_t)1 << 30);
    assert_int_equal(index_wait(st, 0), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), -ENOENT);
    assert_int_equal(testing_put(st, owner, 1, 0), 0);
    assert_int_equal(testing_commit(st, turn, 1), 0);
    assert_int_equal(testing_find(st, owner, 0, 1, &f), 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_index_missing),      T(test_index_damaged),          T(test_index_damaged_inside),
        T(test_index_damage_noted), T(test_rebuild_in_pieces),      T(test_index_behind),
        T(test_torn_record),        T(test_index_behind_a_hole),    T(test_intents_left),
        T(test_foreign_packs),      T(test_index_unreadable),       T(test_pack_unreadable),
        T(test_replaced),           T(test_replaced_by_a_torn_one), T(test_foreign_pack_for_an_empty_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

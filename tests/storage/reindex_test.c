/* reindex_test.c - what goes on while the index is made anew: lookups, turns, deletions, kills. The thread that reads
 * packs is stopped at one record of them. */
#include "tests/storage/storage_faults.h"

#include <sys/wait.h>
#include <unistd.h>

#define FIRST 160 /* what the first turn holds: it reaches beyond its end, */
#define ENDS  159 /* which is with this one */
#define LAST  200 /* and of the one behind it */
#define OTHER 300 /* another conversation's first one */
#define AFTER 310 /* and the one behind its last */
#define STOP  150 /* where reading stops */
#define KNOWN 128 /* all whole pieces before that */

static char *dir;
static struct storage *st;
static int64_t owner, conv, turns[2];
static struct faults faults;
static struct storage_io io;
static struct storage_found places[AFTER];

static unsigned before(unsigned id)
{
    return id == OTHER ? 0 : id - 1;
}

static int put(unsigned id)
{
    return testing_put_at(st, owner, id, before(id), (id - (id < OTHER ? 1 : OTHER)) * TESTING_COUNT);
}

static void forget_index(void)
{
    static const char *const files[] = {"kv.db", "kv.db-wal"};
    for (int i = 0; i < 2; i++) {
        char *path = testing_path(dir, files[i]);
        (void)unlink(path);
        free(path);
    }
}

/* Reading goes up to this segment. */
static void stop_at(unsigned id)
{
    faults.read_from = (off_t)places[id].offset;
    faults.read_to = faults.read_from + 1;
    atomic_store(&faults.reads_stalled, true);
}

static void go_on(void)
{
    atomic_store(&faults.reads_stalled, false);
}

static void open_again(void)
{
    st = testing_open_with(dir, &io, (uint64_t)1 << 30);
}

#define UNIT 4u /* bytes of a token */

static void tokens_of(uint32_t *out, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = 7 * (first + i) + 1;
}

static int64_t turn_new(int64_t whose, int64_t conversation, int64_t parent, const char *name, uint32_t first,
                        uint32_t n)
{
    uint32_t tokens[4 * TESTING_COUNT + 1];
    char kv[65];
    for (int i = 0; i < 32; i++)
        (void)snprintf(kv + 2 * i, 3, "%02x", testing_fingerprint[i]);
    if (n > sizeof tokens / UNIT) /* which are told only to be there */
        return testing_turn_with(st, whose, conversation, parent, name,
                                 (struct testing_context){"many", 4, first + n, NULL});
    tokens_of(tokens, first, n);
    return testing_turn_with(st, whose, conversation, parent, name,
                             (struct testing_context){tokens, n * UNIT, first + n, kv});
}

static int setup(void **state)
{
    (void)state;
    faults_init(&faults, &io);
    dir = testing_dir_in_memory();
    open_again();
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    turns[0] = turn_new(owner, conv, 0, "resp_1", 0, ENDS * TESTING_COUNT + 1);
    for (unsigned id = 1; id <= FIRST; id++)
        assert_int_equal(put(id), 0);
    assert_int_equal(testing_commit(st, turns[0], FIRST), 0);
    int64_t other = testing_turn(st, owner, testing_conversation(st, owner, "conv_2"), 0, "resp_2");
    for (unsigned id = OTHER; id < AFTER; id++)
        assert_int_equal(put(id), 0);
    assert_int_equal(testing_commit(st, other, AFTER - 1), 0);
    turns[1] = turn_new(owner, conv, turns[0], "resp_3", ENDS * TESTING_COUNT + 1, (LAST - ENDS) * TESTING_COUNT);
    for (unsigned id = FIRST + 1; id <= LAST; id++)
        assert_int_equal(put(id), 0);
    assert_int_equal(testing_commit(st, turns[1], LAST), 0);
    for (unsigned id = 1; id <= LAST; id++)
        assert_int_equal(testing_find(st, owner, before(id), id, &places[id]), 0);
    for (unsigned id = OTHER; id < AFTER; id++)
        assert_int_equal(testing_find(st, owner, before(id), id, &places[id]), 0);
    storage_close(st);
    forget_index();
    stop_at(STOP);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    go_on();
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

static int indexing_run(struct storage_ledger *l, void *arg)
{
    *(bool *)arg = storage_indexing(l);
    return 0;
}

static bool indexing(void)
{
    bool is;
    assert_int_equal(jobs_call(st, indexing_run, &is), 0);
    return is;
}

/* Some of what lies before the stop is known. */
static void wait_for_some(void)
{
    struct storage_found f;
    while (testing_find(st, owner, KNOWN - 1, KNOWN, &f))
        (void)usleep(1000);
    assert_true(indexing());
    assert_int_equal(testing_find(st, owner, KNOWN, KNOWN + 1, &f), -ENOENT);
}

static void wait_for_deletion(const char *public_id)
{
    while (testing_deleting(st, owner, public_id))
        (void)usleep(1000);
}

static void other_cut_out(void)
{
    for (unsigned id = OTHER; id < AFTER; id++)
        assert_true(testing_cut_out(st, &places[id]));
}

static void all_there(unsigned last, bool other)
{
    struct storage_found f;
    struct storage_stats stats;
    uint64_t bytes = 0, n = last + (other ? AFTER - OTHER : 0);
    for (unsigned id = 1; id <= last; id++) {
        assert_int_equal(testing_find(st, owner, id - 1, id, &f), 0);
        assert_int_equal(testing_read(st, &f, id).rc, 0);
        bytes += f.encoded_bytes;
    }
    assert_int_equal(testing_find(st, owner, last, last + 1, &f), -ENOENT);
    for (unsigned id = OTHER; id < AFTER; id++) {
        int rc = testing_find(st, owner, before(id), id, &f);
        assert_int_equal(rc, other ? 0 : -ENOENT);
        bytes += rc ? 0 : f.encoded_bytes;
    }
    testing_cuts_wait(st);
    storage_stats(st, &stats);
    assert_int_equal(stats.segments, n);
    assert_int_equal(stats.disk_used, bytes);
    assert_int_equal(atomic_load(&st->disk_dead), 0);
}

static void verify(void)
{
    storage_close(st);
    st = NULL;
    assert_int_equal(testing_verify(dir, false), 0);
    open_again();
}

/* Turns go on with what is known, and what they store anew is stored once. */
static void test_turns_meanwhile(void **state)
{
    (void)state;
    struct storage_found f;
    struct storage_stats stats;
    open_again();
    wait_for_some();
    storage_stats(st, &stats);
    assert_true(stats.disk_used > LAST * places[1].encoded_bytes / 2); /* what is not known yet counts */
    assert_int_equal(testing_read(st, &places[64], 64).rc, 0);
    /* Nobody knows the one that is there. */
    int64_t turn = turn_new(owner, conv, turns[0], "resp_4", ENDS * TESTING_COUNT + 1, TESTING_COUNT);
    assert_int_equal(put(KNOWN + 1), 0);
    assert_int_equal(put(KNOWN + 2), 0);
    assert_int_equal(testing_commit(st, turn, KNOWN + 2), 0);
    storage_sweep(st, storage_clock(st)); /* which waits */
    go_on();
    assert_int_equal(index_wait(st, 0), 0);
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    all_there(LAST, true);
    assert_int_equal(testing_find(st, owner, KNOWN, KNOWN + 1, &f), 0);
    assert_int_not_equal(f.pack, places[KNOWN + 1].pack);
    assert_true(testing_cut_out(st, &places[KNOWN + 1]));
    verify();
    all_there(LAST, true);
}

/* What is deleted meanwhile is gone when it is said to be. */
static void test_deletion_meanwhile(void **state)
{
    (void)state;
    open_again();
    wait_for_some();
    assert_int_equal(testing_conversation_delete(st, owner, "conv_2"), -EINPROGRESS);
    assert_int_equal(testing_turn_delete(st, owner, "resp_3"), -EINPROGRESS);
    assert_int_equal(testing_deleting(st, owner, "conv_2"), 1);
    assert_int_equal(testing_deleting(st, owner, "resp_3"), 1);
    go_on();
    wait_for_deletion("conv_2");
    wait_for_deletion("resp_3");
    other_cut_out();
    for (unsigned id = ENDS + 1; id <= LAST; id++)
        assert_true(testing_cut_out(st, &places[id]));
    jobs_sweep_wait(st);
    all_there(ENDS, false);
    verify();
    all_there(ENDS, false);
    /* And from now on at once. */
    assert_int_equal(testing_conversation_delete(st, owner, "conv_1"), 0);
}

/* The process is killed in the middle of it, with a deletion that is not finished: both go on where they were. */
static void test_kill_meanwhile(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        open_again();
        struct storage_found f;
        while (testing_find(st, owner, KNOWN - 1, KNOWN, &f))
            (void)usleep(1000);
        int rc = testing_conversation_delete(st, owner, "conv_2");
        _exit(rc == -EINPROGRESS && testing_deleting(st, owner, "conv_2") == 1 ? 94 : 95);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 94);
    open_again();
    wait_for_some();
    assert_int_equal(testing_deleting(st, owner, "conv_2"), 1);
    go_on();
    wait_for_deletion("conv_2");
    other_cut_out();
    jobs_sweep_wait(st);
    all_there(LAST, false);
    verify();
    all_there(LAST, false);
}

/* It ends in the middle, and does not begin again with what it has. */
static void test_stop_meanwhile(void **state)
{
    (void)state;
    open_again();
    wait_for_some();
    go_on(); /* it may come further, or to the end */
    storage_close(st);
    stop_at(2); /* which nobody reads any more */
    open_again();
    assert_int_equal(index_wait(st, 0), 0);
    jobs_sweep_wait(st);
    go_on();
    all_there(LAST, true);
}

/* ---- chains with gaps -------------------------------------------------------------------------------------------- */

/* `count` tokens from where segment `id` of another owner's chain begins, which are found by them, with this key. */
static int put_head(int64_t whose, unsigned id, uint32_t count, unsigned key)
{
    uint32_t label[TESTING_COUNT], first = (id - 1) * TESTING_COUNT;
    struct storage_segment s = {.owner = whose, .first = first, .count = count, .producer = "test-1"};
    size_t n = codec_payload_bytes(&testing_layout, count);
    uint16_t *payload = malloc(n);
    assert_non_null(payload);
    testing_fill_kv(payload, n / 2, STORAGE_BF16, id);
    tokens_of(label, first, count);
    testing_key(s.key, key);
    if (id > 1)
        testing_key(s.parent, LAST + id);
    memcpy(s.fingerprint, testing_fingerprint, sizeof s.fingerprint);
    s.label = label;
    s.label_bytes = count * UNIT;
    return storage_segment_put(st, &s, &testing_layout, payload);
}

/* The whole of it; its key is that of LAST + 1 + id. */
static int put_tokens(int64_t whose, unsigned id)
{
    return put_head(whose, id, TESTING_COUNT, LAST + 1 + id);
}

/* A turn that adds `n` tokens to `first`, and holds the segments up to `last`. */
static int64_t told(int64_t whose, int64_t conversation, int64_t parent, const char *name, uint32_t first, uint32_t n,
                    unsigned last)
{
    int64_t id_of_turn = turn_new(whose, conversation, parent, name, first, n);
    for (unsigned id = first / TESTING_COUNT + 1; id <= last; id++)
        assert_int_equal(put_tokens(whose, id), 0);
    assert_int_equal(testing_commit(st, id_of_turn, LAST + 1 + last), 0);
    return id_of_turn;
}

struct row {
    unsigned id;
    struct segment_row row;
    bool there;
};

static int row_run(struct storage_ledger *l, void *arg)
{
    struct row *r = arg;
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, r->id);
    int rc = segment_get(l, key, &r->row);
    r->there = rc == 1;
    return rc < 0 ? rc : 0;
}

static struct row row_of(unsigned id)
{
    struct row r = {.id = id};
    assert_int_equal(jobs_call(st, row_run, &r), 0);
    return r;
}

static void rows_made(struct row *rows, unsigned last)
{
    for (unsigned id = 1; id <= last; id++) {
        rows[id] = row_of(LAST + 1 + id);
        assert_true(rows[id].there);
    }
}

static void header_hurt(const struct row *r)
{
    char name[32];
    testing_pack_name(name, r->row.pack);
    testing_overwrite(dir, name, (off_t)r->row.offset + 8, "junk");
}

/* The index is whole again, and what nothing holds is gone. */
static void open_made_anew(void)
{
    open_again();
    assert_int_equal(index_wait(st, 0), 0);
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
}

/* Two turns hold segments 1 to 3 and 1 to 4 of a chain, and none the fifth. The header of the second is damaged, and
 * the index is lost. */
static int64_t gap_made(struct row rows[6])
{
    go_on();
    open_again();
    jobs_sweep_wait(st);
    const uint32_t end = 3 * TESTING_COUNT + 1;
    int64_t whose = testing_owner(st, "b"), other = testing_conversation(st, whose, "conv_b");
    int64_t parent = told(whose, other, 0, "resp_b1", 0, end, 3);
    int64_t turn = told(whose, other, parent, "resp_b2", end, TESTING_COUNT, 4);
    assert_int_equal(put_tokens(whose, 5), 0);
    assert_int_equal(testing_commit(st, turn, LAST + 5), 0);
    rows_made(rows, 5);
    storage_close(st);
    st = NULL;
    header_hurt(&rows[2]);
    forget_index();
    return whose;
}

static bool cut_out(const struct row *r)
{
    struct storage_found place = {.pack = r->row.pack, .offset = r->row.offset};
    place.encoded_bytes = r->row.bytes;
    return testing_cut_out(st, &place);
}

static void gone(const struct row *rows, unsigned last)
{
    for (unsigned id = 1; id <= last; id++) {
        assert_false(row_of(LAST + 1 + id).there);
        assert_true(cut_out(&rows[id]));
    }
}

/* What no turn holds is gone; the gap has a row of its own. */
static void behind_gap(const struct row rows[6])
{
    for (unsigned id = 1; id <= 5; id++) {
        struct row now = row_of(LAST + 1 + id);
        assert_int_equal(now.there, id < 5);
        assert_int_equal(cut_out(&rows[id]), id == 2 || id == 5);
        if (id == 2)
            assert_true(now.row.pack == STORAGE_PACK_NONE && now.row.end == 2 * TESTING_COUNT);
        else if (now.there)
            assert_int_equal(now.row.offset, rows[id].row.offset);
    }
}

/* Both turns hold what is before the gap, and each what it has behind it. */
static void gap_held(int64_t whose, const struct row rows[6])
{
    assert_int_equal(testing_turn_delete(st, whose, "resp_b2"), 0);
    assert_false(row_of(LAST + 5).there);
    for (unsigned id = 1; id <= 3; id++)
        assert_true(row_of(LAST + 1 + id).there);
    assert_int_equal(testing_turn_delete(st, whose, "resp_b1"), 0);
    gone(rows, 4);
}

/* A record whose header is damaged, when the index is lost as well, cuts a chain in two. The row that it gets keeps the
 * chain together, until the segment is stored anew or the turns go; what no turn holds goes at once. */
static void test_gap(void **state)
{
    const bool closed = *state;
    struct row rows[6];
    int64_t whose = gap_made(rows);
    open_made_anew();
    behind_gap(rows);
    verify();
    if (closed) {
        assert_int_equal(put_tokens(whose, 2), 0);
        assert_int_equal(testing_commit(st, 0, LAST + 3), 0);
        rows[2] = row_of(LAST + 3);
        assert_true(rows[2].row.pack != STORAGE_PACK_NONE);
        verify();
    }
    gap_held(whose, rows);
    all_there(LAST, true);
}

/* Another turn's tail begins as the segment that is missing does: the gap is not behind it, and it goes with its turn.
 */
static void test_gap_and_tail(void **state)
{
    const unsigned missing = *state ? 1 : 2;
    const uint32_t tail = 10, begin = (missing - 1) * TESTING_COUNT;
    struct row rows[6];
    go_on();
    open_again();
    jobs_sweep_wait(st);
    int64_t whose = testing_owner(st, "b"), other = testing_conversation(st, whose, "conv_b");
    (void)told(whose, other, 0, "resp_b1", 0, 3 * TESTING_COUNT + 1, 3);
    int64_t turn = turn_new(whose, testing_conversation(st, whose, "conv_c"), 0, "resp_c", 0, begin + tail + 1);
    assert_int_equal(put_head(whose, missing, tail, LAST + 5), 0);
    assert_int_equal(testing_commit(st, turn, LAST + 5), 0);
    rows_made(rows, 4);
    storage_close(st);
    st = NULL;
    header_hurt(&rows[missing]);
    forget_index();
    open_made_anew();
    struct row gap = row_of(LAST + 1 + missing);
    assert_true(gap.there && gap.row.pack == STORAGE_PACK_NONE && gap.row.first == begin);
    assert_int_equal(row_of(LAST + 5).row.children, 0);
    verify();
    assert_int_equal(testing_conversation_delete(st, whose, "conv_c"), 0);
    assert_false(row_of(LAST + 5).there);
    assert_true(cut_out(&rows[4]));
    assert_int_equal(testing_conversation_delete(st, whose, "conv_b"), 0);
    gone(rows, 3);
    all_there(LAST, true);
}

/* A turn whose tokens cannot be read holds what it holds, and does not keep the index from ending. */
static void test_gap_without_tokens(void **state)
{
    (void)state;
    struct row rows[6];
    int64_t whose = gap_made(rows);
    testing_sql(dir, "ledger.db", "DELETE FROM tokens WHERE turn = (SELECT id FROM turns WHERE public_id = 'resp_b1')");
    open_again();
    assert_int_equal(index_wait(st, 0), 0);
    jobs_sweep_wait(st);
    assert_int_equal(testing_conversation_delete(st, whose, "conv_b"), 0);
    gone(rows, 5);
}

/* Of two gaps in a chain the row stands for all that is missing before what the turn holds, and is put right when that
 * is stored anew, one after the other. What lies between them and is held by no turn goes. */
static void test_gaps(void **state)
{
    (void)state;
    go_on();
    open_again();
    jobs_sweep_wait(st);
    int64_t whose = testing_owner(st, "b"), other = testing_conversation(st, whose, "conv_b");
    int64_t turn = told(whose, other, 0, "resp_b1", 0, 4 * TESTING_COUNT + 1, 4);
    turn = turn_new(whose, other, turn, "resp_b2", 4 * TESTING_COUNT + 1, 1);
    struct row rows[5];
    rows_made(rows, 4);
    storage_close(st);
    st = NULL;
    header_hurt(&rows[1]);
    header_hurt(&rows[3]);
    forget_index();
    open_made_anew();
    assert_false(row_of(LAST + 3).there);
    assert_true(row_of(LAST + 5).there);
    verify();
    for (unsigned id = 1; id <= 3; id++) {
        assert_int_equal(put_tokens(whose, id), 0);
        assert_int_equal(testing_commit(st, turn, LAST + 1 + id), 0);
        verify();
    }
    for (unsigned id = 1; id <= 4; id++) {
        struct row now = row_of(LAST + 1 + id);
        assert_true(now.there && now.row.pack != STORAGE_PACK_NONE);
        assert_int_equal(now.row.end, rows[id].row.end);
        assert_memory_equal(now.row.parent, rows[id].row.parent, STORAGE_KEY_BYTES);
    }
    assert_int_equal(testing_conversation_delete(st, whose, "conv_b"), 0);
    all_there(LAST, true);
}

/* ---- transactions that fail -------------------------------------------------------------------------------------- */

static atomic_int refusals; /* that are still to come; -1: no end of them */
static atomic_int asked;

static void refused(sqlite3_context *context, int n, sqlite3_value **values)
{
    (void)n;
    bool this = sqlite3_value_int(values[0]);
    int left = atomic_load(&refusals);
    if (this && left > 0)
        atomic_store(&refusals, left - 1);
    atomic_fetch_add(&asked, this);
    sqlite3_result_int(context, this && left);
}

static int refuse(sqlite3 *db, const char *sql)
{
    if (sqlite3_create_function(db, "refused", 1, SQLITE_UTF8, NULL, refused, NULL, NULL) ||
        sqlite3_exec(db, sql, NULL, NULL, NULL))
        return -EIO;
    return 0;
}

static int gaps_refuse(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return refuse(l->kv, "CREATE TEMP TRIGGER refuse BEFORE INSERT ON segments WHEN refused(new.pack IS NULL) "
                         "BEGIN SELECT RAISE(ABORT, ''); END");
}

/* The row of segment *arg cannot go. */
static int row_refuse(struct storage_ledger *l, void *arg)
{
    uint8_t key[STORAGE_KEY_BYTES];
    char hex[2 * STORAGE_KEY_BYTES + 1], sql[256];
    testing_key(key, *(const unsigned *)arg);
    for (size_t i = 0; i < sizeof key; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", key[i]);
    int n = snprintf(sql, sizeof sql,
                     "CREATE TEMP TRIGGER refuse BEFORE DELETE ON segments WHEN refused(old.key = x'%s') "
                     "BEGIN SELECT RAISE(ABORT, ''); END",
                     hex);
    return n < (int)sizeof sql ? refuse(l->kv, sql) : -E2BIG;
}

/* Reading has stopped, and something is refused when it goes on. */
static void open_refusing(int (*run)(struct storage_ledger *l, void *arg), unsigned id, int times)
{
    atomic_store(&asked, 0);
    atomic_store(&refusals, times);
    stop_at(STOP);
    open_again();
    assert_int_equal(jobs_call(st, run, &id), 0);
}

static void wait_for_index(void)
{
    while (index_wait(st, 0))
        (void)usleep(1000);
}

/* What was not committed is done again. */
static void test_gap_refused(void **state)
{
    (void)state;
    struct row rows[6];
    int64_t whose = gap_made(rows);
    open_refusing(gaps_refuse, 0, 1);
    go_on();
    wait_for_index();
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    assert_true(atomic_load(&asked) > 1);
    behind_gap(rows);
    gap_held(whose, rows);
    all_there(LAST, true);
}

/* Where there is a gap no deletion is over before the search has seen everything. */
static void test_search_refused(void **state)
{
    (void)state;
    struct row rows[6];
    int64_t whose = gap_made(rows);
    open_refusing(row_refuse, LAST + 6, -1);
    assert_int_equal(testing_conversation_delete(st, owner, "conv_2"), -EINPROGRESS);
    go_on();
    while (atomic_load(&asked) < 2) {
        assert_int_equal(testing_deleting(st, owner, "conv_2"), 1);
        (void)usleep(1000);
    }
    atomic_store(&refusals, 0);
    wait_for_deletion("conv_2");
    behind_gap(rows);
    gap_held(whose, rows);
    all_there(LAST, false);
}

/* A turn holds what is not there, as with an older ledger, and what there is of its context cannot be held for now:
 * nothing is swept before it can. */
static int elsewhere_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return schema_errno(sqlite3_exec(l->db,
                                     "UPDATE holds SET key = randomblob(32);"
                                     "CREATE TRIGGER refuse BEFORE INSERT ON holds "
                                     "BEGIN SELECT RAISE(ABORT, 'refused'); END",
                                     NULL, NULL, NULL));
}

static int looked_run(struct storage_ledger *l, void *arg)
{
    *(bool *)arg = l->holds_at == INT64_MAX || l->sweep_failed > 1;
    return 0;
}

static int allow_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return schema_errno(sqlite3_exec(l->db, "DROP TRIGGER refuse", NULL, NULL, NULL));
}

static void test_held_again_later(void **state)
{
    (void)state;
    go_on();
    open_again();
    jobs_sweep_wait(st);
    int64_t whose = testing_owner(st, "b"), other = testing_conversation(st, whose, "conv_b");
    (void)told(whose, other, 0, "resp_b1", 0, 3 * TESTING_COUNT + 1, 3);
    assert_int_equal(jobs_call(st, elsewhere_run, NULL), 0);
    storage_close(st);
    open_again();
    for (bool looked = false; !looked; (void)usleep(1000))
        assert_int_equal(jobs_call(st, looked_run, &looked), 0);
    assert_int_equal(jobs_call(st, allow_run, NULL), 0);
    jobs_sweep_wait(st);
    testing_cuts_wait(st);
    for (unsigned id = 1; id <= 3; id++)
        assert_true(row_of(LAST + 1 + id).there);
}

/* Nor when the process is killed between them. */
static void test_kill_before_search(void **state)
{
    (void)state;
    struct row rows[6];
    int64_t whose = gap_made(rows);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        open_refusing(row_refuse, LAST + 6, -1);
        int rc = testing_conversation_delete(st, owner, "conv_2");
        go_on();
        while (!atomic_load(&asked))
            (void)usleep(1000);
        _exit(rc == -EINPROGRESS && !indexing() ? 94 : 95);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 94);
    open_again();
    wait_for_deletion("conv_2");
    behind_gap(rows);
    gap_held(whose, rows);
    all_there(LAST, false);
}

static int packs_run(struct storage_ledger *l, void *arg)
{
    sqlite3_stmt *s = stmt_get(l, S_PACKS);
    int rc = stmt_step(l, s);
    *(bool *)arg = rc == 1;
    stmt_reset(s);
    return rc < 0 ? rc : 0;
}

/* The disk is full when a start that has no index writes down what it is to read: that waits until there is room. */
static void test_full_disk(void **state)
{
    (void)state;
    struct storage_opts opts = {.dir = dir, .disk_bytes = (uint64_t)1 << 30};
    struct storage_stats stats;
    static atomic_int left;
    faults_sqlite_full("kv.db-wal", &left);
    for (int writes = 0, rc = -1; rc; writes++) {
        char err[256];
        forget_index();
        atomic_store(&left, writes);
        rc = storage_open_with(&opts, &io, &st, err, sizeof err);
    }
    bool noted;
    assert_int_equal(jobs_call(st, packs_run, &noted), 0);
    assert_false(noted);
    assert_true(indexing());
    storage_stats(st, &stats);
    assert_true(stats.disk_used > LAST * places[1].encoded_bytes / 2);
    atomic_store(&left, -1);
    go_on();
    wait_for_index();
    jobs_sweep_wait(st);
    all_there(LAST, true);
    verify();
    wait_for_index(); /* made anew once more, as that start could not say that it was its own */
    jobs_sweep_wait(st);
    all_there(LAST, true);
    storage_close(st);
    st = NULL;
    faults_sqlite_full(NULL, NULL);
}

/* A pack was renamed by hand before the index was made anew: it has its name again, and nothing is missing. */
static void test_misnamed(void **state)
{
    (void)state;
    char *own = testing_path(dir, "pack-00000001"), *now = testing_path(dir, "pack-00000009");
    assert_int_equal(rename(own, now), 0);
    free(own);
    free(now);
    go_on();
    open_again();
    wait_for_index();
    jobs_sweep_wait(st);
    all_there(LAST, true);
    verify();
}

/* The same test with a state: of test_gap the segment is stored anew, of test_gap_and_tail the first one is missing. */
#define T(test)       cmocka_unit_test_setup_teardown(test, setup, teardown)
#define ANOTHER(test) cmocka_unit_test_prestate_setup_teardown(test, setup, teardown, &st)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_turns_meanwhile),
        T(test_deletion_meanwhile),
        T(test_kill_meanwhile),
        T(test_stop_meanwhile),
        T(test_gap),
        ANOTHER(test_gap),
        T(test_gap_and_tail),
        ANOTHER(test_gap_and_tail),
        T(test_gap_without_tokens),
        T(test_gaps),
        T(test_gap_refused),
        T(test_held_again_later),
        T(test_search_refused),
        T(test_kill_before_search),
        T(test_full_disk),
        T(test_misnamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

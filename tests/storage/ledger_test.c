/* ledger_test.c - owners and conversations: who sees what, paging, search, deletion. */
#include "tests/storage/storage_testing.h"

static char *dir;
static struct storage *st;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    st = testing_open(dir);
    return 0;
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
    storage_close(st);
    st = testing_open(dir);
}

static int owners_run(struct storage_ledger *l, void *arg)
{
    struct storage_owner *o = arg;
    int rc = storage_owner_get(l, "alice", &o[0]);
    if (!rc)
        rc = storage_owner_get(l, "bob", &o[1]);
    return rc ? rc : storage_owner_get(l, "alice", &o[2]);
}

static void test_owners(void **state)
{
    (void)state;
    struct storage_owner o[3], again[3];
    assert_int_equal(jobs_call(st, owners_run, o), 0);
    assert_true(o[0].id > 0 && o[0].id != o[1].id);
    assert_int_equal(o[0].id, o[2].id);
    assert_memory_equal(o[0].key, o[2].key, 32);
    assert_memory_not_equal(o[0].key, o[1].key, 32);
    reopen();
    assert_int_equal(jobs_call(st, owners_run, again), 0);
    assert_memory_equal(o[0].key, again[0].key, 32);
    assert_int_equal(o[1].id, again[1].id);
}

struct fields {
    int64_t owner, id;
};

static int fields_run(struct storage_ledger *l, void *arg)
{
    struct fields *f = arg;
    char id[] = "conv_x", title[] = "A title", metadata[] = "{\"a\":1}", text[] = "Be brief.";
    struct storage_conversation c = {.owner = f->owner,
                                     .public_id = id,
                                     .kind = STORAGE_CONVERSATION_CHAIN,
                                     .title = title,
                                     .metadata = metadata,
                                     .created_ms = 5,
                                     .updated_ms = 6},
                                got;
    JOB_CHECK((storage_conversation_insert(l, &c)) == (0));
    JOB_CHECK(c.id > 0);
    JOB_CHECK((storage_conversation_insert(l, &c)) == (-EEXIST));
    JOB_CHECK((storage_conversation_get(l, f->owner + 1, id, &got)) == (-ENOENT));
    JOB_CHECK((storage_conversation_by_id(l, f->owner + 1, c.id, &got)) == (-ENOENT));
    JOB_CHECK((storage_conversation_get(l, f->owner, id, &got)) == (0));
    JOB_CHECK((got.id) == (c.id));
    JOB_CHECK((got.kind) == (STORAGE_CONVERSATION_CHAIN));
    JOB_CHECK(!strcmp(got.title, title));
    JOB_CHECK(!strcmp(got.metadata, metadata));
    JOB_CHECK(!got.instructions);
    JOB_CHECK((got.created_ms) == (5));
    JOB_CHECK((got.n_turns) == (0));
    JOB_CHECK((got.n_tokens) == (0));
    free(got.title);
    got.title = NULL;
    got.instructions = strdup(text);
    got.updated_ms = 7;
    JOB_CHECK((storage_conversation_update(l, &got)) == (0));
    got.id += 100;
    JOB_CHECK((storage_conversation_update(l, &got)) == (-ENOENT));
    storage_conversation_free(&got);
    JOB_CHECK((storage_conversation_by_id(l, f->owner, c.id, &got)) == (0));
    JOB_CHECK(!got.title);
    JOB_CHECK(!strcmp(got.instructions, text));
    JOB_CHECK((got.updated_ms) == (7));
    JOB_CHECK((got.created_ms) == (5));
    storage_conversation_free(&got);
    storage_conversation_free(NULL);
    return 0;
}

static void test_fields(void **state)
{
    (void)state;
    struct fields f = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, fields_run, &f), 0);
}

struct page {
    int64_t owner;
    const char *after, *query;
    size_t max;
    char ids[32][16];
    size_t n, jobs;
};

static int page_run(struct storage_ledger *l, void *arg)
{
    struct page *p = arg;
    struct storage_conversation rows[32];
    struct storage_cursor at;
    bool over = true;
    size_t n = 0;
    p->n = p->jobs = 0;
    int rc = storage_conversation_cursor(l, p->owner, p->after, &at);
    if (!rc && !p->query)
        rc = storage_conversation_list(l, p->owner, at, rows, p->max, &p->n);
    else if (!rc)
        do {
            rc = storage_conversation_search(l, p->owner, &at, p->query, rows + p->n, p->max - p->n, &n, &over);
            p->n += n;
            p->jobs++;
        } while (!rc && !over);
    for (size_t i = 0; !rc && i < p->n; i++) {
        (void)snprintf(p->ids[i], sizeof p->ids[i], "%s", rows[i].public_id);
        storage_conversation_free(&rows[i]);
    }
    return rc;
}

static int many_run(struct storage_ledger *l, void *arg)
{
    struct fields *f = arg;
    for (int i = 0; i < 25; i++) {
        char id[24], title[32];
        (void)snprintf(id, sizeof id, "conv_%02d", i);
        (void)snprintf(title, sizeof title, i % 5 ? "Talk %d" : "Fünf Äpfel %d%%", i);
        /* Pairs of the same time: the order must still be one. */
        struct storage_conversation c = {
            .owner = f->owner, .public_id = id, .title = i == 24 ? NULL : title, .updated_ms = i / 2};
        c.kind = i == 7 ? STORAGE_CONVERSATION_STATELESS : STORAGE_CONVERSATION_LISTED;
        int rc = storage_conversation_insert(l, &c);
        if (rc)
            return rc;
    }
    return 0;
}

static void test_list(void **state)
{
    (void)state;
    struct fields f = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, many_run, &f), 0);
    struct page p = {.owner = f.owner, .max = 10};
    size_t seen = 0;
    char last[16] = "conv_25";
    do {
        assert_int_equal(jobs_call(st, page_run, &p), 0);
        for (size_t i = 0; i < p.n; i++, seen++) {
            assert_true(strcmp(p.ids[i], last) < 0);
            assert_string_not_equal(p.ids[i], "conv_07");
            memcpy(last, p.ids[i], sizeof last);
        }
        p.after = last;
    } while (p.n);
    assert_int_equal(seen, 24);

    struct page q = {.owner = f.owner, .max = 32, .query = "TALK 1"};
    assert_int_equal(jobs_call(st, page_run, &q), 0);
    assert_int_equal(q.n, 9); /* 1, 11..14, 16..19 */
    assert_string_equal(q.ids[0], "conv_19");
    q.query = "%";
    assert_int_equal(jobs_call(st, page_run, &q), 0);
    assert_int_equal(q.n, 5);
    q.query = "nothing";
    assert_int_equal(jobs_call(st, page_run, &q), 0);
    assert_int_equal(q.n, 0);

    p = (struct page){.owner = f.owner, .max = 10, .after = "conv_99"};
    assert_int_equal(jobs_call(st, page_run, &p), -ENOENT);
    p = (struct page){.owner = f.owner + 1, .max = 10};
    assert_int_equal(jobs_call(st, page_run, &p), 0);
    assert_int_equal(p.n, 0);
    p.after = "conv_03"; /* another owner's */
    assert_int_equal(jobs_call(st, page_run, &p), -ENOENT);
}

static int long_run(struct storage_ledger *l, void *arg)
{
    struct fields *f = arg;
    char *text = malloc(STORAGE_LIST_BYTES / 2 + 1);
    int rc = text ? 0 : -ENOMEM;
    if (text) {
        memset(text, 'x', STORAGE_LIST_BYTES / 2);
        text[STORAGE_LIST_BYTES / 2] = '\0';
    }
    for (int i = 0; i < 5 && !rc; i++) {
        char id[24], title[] = "long";
        (void)snprintf(id, sizeof id, "conv_%02d", i);
        struct storage_conversation c = {
            .owner = f->owner, .public_id = id, .title = title, .instructions = text, .updated_ms = i};
        rc = storage_conversation_insert(l, &c);
    }
    free(text);
    return rc;
}

/* Where rows are long, a page ends with those that have so many bytes; the next goes on behind them. */
static void test_long_rows_end_a_page(void **state)
{
    (void)state;
    static const char *const queries[] = {NULL, "long"};
    struct fields f = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, long_run, &f), 0);
    for (int i = 0; i < 2; i++) {
        struct page p = {.owner = f.owner, .max = 10, .query = queries[i]};
        size_t seen = 0;
        char last[16];
        for (int pages = 0; pages < 3; pages++) {
            assert_int_equal(jobs_call(st, page_run, &p), 0);
            assert_int_equal(p.n, pages < 2 ? 2 : 1);
            seen += p.n;
            memcpy(last, p.ids[p.n - 1], sizeof last);
            p.after = last;
        }
        assert_int_equal(seen, 5);
        assert_string_equal(last, "conv_00");
    }
}

static int thousands_run(struct storage_ledger *l, void *arg)
{
    struct fields *f = arg;
    for (int i = 0; i < 9000; i++) {
        char id[24], title[32];
        (void)snprintf(id, sizeof id, "conv_%04d", i);
        (void)snprintf(title, sizeof title, i == 3 || i == 8000 ? "a needle %d" : "hay %d", i);
        struct storage_conversation c = {.owner = f->owner, .public_id = id, .title = title, .updated_ms = i};
        int rc = storage_conversation_insert(l, &c);
        if (rc)
            return rc;
    }
    return 0;
}

/* A search through many titles is several jobs. */
static void test_search_in_pieces(void **state)
{
    (void)state;
    struct fields f = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, thousands_run, &f), 0);
    struct page p = {.owner = f.owner, .max = 10, .query = "Needle"};
    assert_int_equal(jobs_call(st, page_run, &p), 0);
    assert_int_equal(p.n, 2);
    assert_string_equal(p.ids[0], "conv_8000");
    assert_string_equal(p.ids[1], "conv_0003");
    assert_true(p.jobs >= 3);
    p.after = "conv_8000";
    assert_int_equal(jobs_call(st, page_run, &p), 0);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.jobs, 1); /* the titles are in memory */
    p = (struct page){.owner = f.owner, .max = 1, .query = "needle"};
    assert_int_equal(jobs_call(st, page_run, &p), 0);
    assert_int_equal(p.n, 1);
    /* What most titles contain comes in the order of the list, page by page. */
    char last[16] = "conv_9999";
    p = (struct page){.owner = f.owner, .max = 30, .query = "HAY "};
    for (int pages = 0; pages < 40; pages++) {
        assert_int_equal(jobs_call(st, page_run, &p), 0);
        assert_int_equal(p.n, 30);
        for (size_t i = 0; i < p.n; i++) {
            assert_true(strcmp(p.ids[i], last) < 0);
            assert_string_not_equal(p.ids[i], "conv_8000");
            memcpy(last, p.ids[i], sizeof last);
        }
        p.after = last;
    }
    assert_string_equal(last, "conv_7799");
}

static int secret_run(struct storage_ledger *l, void *arg)
{
    struct fields *f = arg;
    char id[] = "conv_secret", title[] = "xyzzy plugh";
    struct storage_conversation c = {.owner = f->owner, .public_id = id, .title = title};
    return storage_conversation_insert(l, &c);
}

struct retitle {
    int64_t owner;
    const char *id, *title;
    int rc; /* what the job ends with */
};

static int retitle_run(struct storage_ledger *l, void *arg)
{
    struct retitle *r = arg;
    struct storage_conversation c;
    if (!r->title) {
        int rc = storage_conversation_delete(l, r->owner, r->id);
        return rc ? rc : r->rc;
    }
    JOB_CHECK(storage_conversation_get(l, r->owner, r->id, &c) == 0);
    free(c.title);
    c.title = strdup(r->title);
    int rc = c.title ? storage_conversation_update(l, &c) : -ENOMEM;
    storage_conversation_free(&c);
    return rc ? rc : r->rc;
}

static size_t found(int64_t who, const char *query)
{
    struct page p = {.owner = who, .max = 32, .query = query};
    assert_int_equal(jobs_call(st, page_run, &p), 0);
    return p.n;
}

/* Titles that are in memory follow what is written, and what is undone. */
static void test_search_follows(void **state)
{
    (void)state;
    struct fields f = {.owner = testing_owner(st, "a")}, other = {.owner = testing_owner(st, "b")};
    assert_int_equal(jobs_call(st, many_run, &f), 0);
    assert_int_equal(found(f.owner, "talk 12"), 1);
    assert_int_equal(found(other.owner, "talk 12"), 0);
    struct retitle change = {f.owner, "conv_12", "Walk 12", -ECANCELED};
    assert_int_equal(jobs_call(st, retitle_run, &change), -ECANCELED);
    assert_int_equal(found(f.owner, "talk 12"), 1);
    assert_int_equal(found(f.owner, "walk 12"), 0);
    change.rc = 0;
    assert_int_equal(jobs_call(st, retitle_run, &change), 0);
    assert_int_equal(found(f.owner, "talk 12"), 0);
    assert_int_equal(found(f.owner, "walk 12"), 1);
    struct retitle gone = {f.owner, "conv_12", NULL, -ECANCELED};
    assert_int_equal(jobs_call(st, retitle_run, &gone), -ECANCELED);
    assert_int_equal(found(f.owner, "walk 12"), 1);
    gone.rc = 0;
    assert_int_equal(jobs_call(st, retitle_run, &gone), 0);
    assert_int_equal(found(f.owner, "walk 12"), 0);
    assert_int_equal(jobs_call(st, secret_run, &f), 0); /* a new one */
    assert_int_equal(found(f.owner, "PLUGH"), 1);
    /* A title that changes again and again. */
    struct retitle often = {f.owner, "conv_secret", "a", 0};
    for (int i = 0; i < 50; i++) {
        often.title = i % 2 ? "even more" : "odd";
        assert_int_equal(jobs_call(st, retitle_run, &often), 0);
    }
    assert_int_equal(found(f.owner, "even"), 1);
    assert_int_equal(found(f.owner, "odd"), 0);
}

/* What was deleted is not in any file any more. */
static void test_deleted_is_gone(void **state)
{
    (void)state;
    struct fields f = {.owner = testing_owner(st, "a")};
    assert_int_equal(jobs_call(st, secret_run, &f), 0);
    assert_true(testing_contains(dir, "ledger.db-wal", "xyzzy plugh"));
    reopen();
    assert_true(testing_contains(dir, "ledger.db", "xyzzy plugh"));
    assert_int_equal(testing_conversation_delete(st, f.owner, "conv_secret"), 0);
    assert_false(testing_contains(dir, "ledger.db", "xyzzy plugh"));
    assert_false(testing_contains(dir, "ledger.db-wal", "xyzzy plugh"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_owners, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_rows_end_a_page, setup, teardown),
        cmocka_unit_test_setup_teardown(test_search_in_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_search_follows, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deleted_is_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

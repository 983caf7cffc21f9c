/* ledger_items_test.c - pages of items along a path, and behind its end. */
#include "tests/storage/storage_testing.h"

static char *dir;
static struct storage *st;
static int64_t owner, conv;

static int setup(void **state)
{
    (void)state;
    dir = testing_dir();
    st = testing_open(dir);
    owner = testing_owner(st, "a");
    conv = testing_conversation(st, owner, "conv_1");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    storage_close(st);
    testing_dir_remove(dir);
    return 0;
}

/* A turn that was asked two things; committed, it has answered one. */
static int64_t turn(struct storage_ledger *l, int64_t parent, const char *name, bool committed)
{
    char id[32], first[40], second[40], third[40], kind[] = "message", text[] = "x";
    (void)snprintf(id, sizeof id, "resp_%s", name);
    (void)snprintf(first, sizeof first, "%s1", name);
    (void)snprintf(second, sizeof second, "%s2", name);
    (void)snprintf(third, sizeof third, "%s3", name);
    struct storage_item in[] = {{.public_id = first, .kind = kind, .text = text},
                                {.public_id = second, .kind = kind, .text = text}};
    struct storage_item out = {.public_id = third, .kind = kind, .text = text, .output = true};
    struct storage_turn t = {.owner = owner,
                             .conversation = conv,
                             .parent = parent,
                             .public_id = id,
                             .status = STORAGE_TURN_RUNNING,
                             .items = in,
                             .n_items = 2};
    int rc = storage_turn_insert(l, &t);
    if (!rc && committed) {
        t.status = STORAGE_TURN_COMPLETED;
        t.items = &out;
        t.n_items = 1;
        t.tokens = text;
        t.tokens_bytes = 1;
        rc = storage_turn_commit(l, &t);
    }
    return rc ? rc : t.id;
}

/* Whether a page holds just these, in this order. */
static bool page_is(struct storage_ledger *l, int64_t head, bool descending, const char *after, size_t max,
                    const char *wanted)
{
    struct storage_item *items;
    size_t n;
    char got[128] = "";
    if (storage_items_page(l, owner, conv, head, descending, after, max, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++)
        (void)snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", items[i].public_id);
    storage_items_free(items, n);
    return !strcmp(got, wanted);
}

static int pages_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int64_t a = turn(l, 0, "a", true), b = turn(l, a, "b", true), side = turn(l, a, "s", true),
            r = turn(l, b, "r", false);
    JOB_CHECK(a > 0 && b > 0 && side > 0 && r > 0);
    JOB_CHECK(page_is(l, b, false, NULL, 100, "a1 a2 a3 b1 b2 b3 r1 r2 "));
    JOB_CHECK(page_is(l, b, true, NULL, 100, "r2 r1 b3 b2 b1 a3 a2 a1 "));
    JOB_CHECK(
        page_is(l, side, false, NULL, 100, "a1 a2 a3 s1 s2 s3 ")); /* what runs behind another branch is not here */
    JOB_CHECK(page_is(l, b, false, "a2", 3, "a3 b1 b2 "));
    JOB_CHECK(page_is(l, b, true, "b2", 3, "b1 a3 a2 "));
    JOB_CHECK(page_is(l, b, true, "a3", 3, "a2 a1 "));
    JOB_CHECK(page_is(l, r, true, "a3", 1, "a2 "));
    JOB_CHECK(page_is(l, b, false, "r2", 3, ""));
    JOB_CHECK(page_is(l, 0, false, NULL, 100, ""));
    struct storage_item *items;
    size_t n;
    JOB_CHECK((storage_items_page(l, owner, conv, b, false, "zz", 3, &items, &n)) == (-ENOENT));
    JOB_CHECK((storage_items_page(l, owner, conv + 1, b, false, "a1", 3, &items, &n)) == (-ENOENT));
    JOB_CHECK((storage_items_page(l, owner + 1, conv, b, false, "a1", 3, &items, &n)) == (-ENOENT));
    /* One of them, on the path or behind its end. */
    JOB_CHECK((storage_item_get(l, owner, conv, b, "a3", &items)) == (0));
    JOB_CHECK(!strcmp(items[0].public_id, "a3") && items[0].output);
    storage_items_free(items, 1);
    JOB_CHECK((storage_item_get(l, owner, conv, b, "zz", &items)) == (-ENOENT));
    JOB_CHECK((storage_item_get(l, owner + 1, conv, b, "a3", &items)) == (-ENOENT));
    JOB_CHECK((storage_item_get(l, owner, conv, 0, "a3", &items)) == (-ENOENT));
    JOB_CHECK((storage_items_page(l, owner, conv, b, true, NULL, 1, &items, &n)) == (0));
    JOB_CHECK(n == 1 && !strcmp(items[0].turn_id, "resp_r") && items[0].turn_status == STORAGE_TURN_RUNNING);
    storage_items_free(items, n);
    storage_items_free(NULL, 0);
    /* Turns of all branches. */
    struct storage_turn *turns;
    JOB_CHECK((storage_turns_page(l, owner, conv, 0, 10, &turns, &n)) == (0));
    JOB_CHECK(n == 4 && turns[0].id == a && turns[3].id == r && turns[3].n_items == 2 && turns[2].parent == a);
    storage_turns_free(turns, n);
    JOB_CHECK((storage_turns_page(l, owner, conv, a, 2, &turns, &n)) == (0));
    JOB_CHECK(n == 2 && turns[0].id == b && turns[1].id == side);
    storage_turns_free(turns, n);
    JOB_CHECK((storage_turns_page(l, owner, conv, r, 2, &turns, &n)) == (0));
    JOB_CHECK(n == 0);
    storage_turns_free(turns, n);
    return 0;
}

static void test_pages(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, pages_run, NULL), 0);
}

/* Steps of SQLite's that it takes to read the last two items, and some in the middle. */
static int steps_of_pages(struct storage_ledger *l, int64_t head, const char *middle)
{
    struct storage_item *items;
    size_t n;
    int steps = 0;
    for (int i = 0; i < STMT_COUNT; i++)
        if (l->stmts[i])
            (void)sqlite3_stmt_status(l->stmts[i], SQLITE_STMTSTATUS_VM_STEP, 1);
    if (storage_items_page(l, owner, conv, head, true, NULL, 2, &items, &n))
        return -1;
    storage_items_free(items, n);
    if (n != 2 || storage_items_page(l, owner, conv, head, false, middle, 2, &items, &n))
        return -1;
    storage_items_free(items, n);
    for (int i = 0; i < STMT_COUNT; i++)
        if (l->stmts[i])
            steps += sqlite3_stmt_status(l->stmts[i], SQLITE_STMTSTATUS_VM_STEP, 1);
    return n == 2 ? steps : -1;
}

/* However long the conversation is. */
static int long_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    int64_t head = 0;
    int few = 0;
    char name[16];
    for (int i = 0; i < 300; i++) {
        (void)snprintf(name, sizeof name, "t%d-", i);
        head = turn(l, head, name, true);
        JOB_CHECK(head > 0);
        if (i == 9 && (few = steps_of_pages(l, head, "t8-1")) < 0)
            return -ECANCELED;
    }
    JOB_CHECK(page_is(l, head, true, NULL, 2, "t299-3 t299-2 "));
    JOB_CHECK(page_is(l, head, false, "t1-2", 3, "t1-3 t2-1 t2-2 "));
    JOB_CHECK(steps_of_pages(l, head, "t298-1") == few);
    return 0;
}

static void test_long(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, long_run, NULL), 0);
}

static char word_tools[] = "tools";

/* A committed turn with definitions of tools among its input, or without. */
static int64_t told(struct storage_ledger *l, int64_t parent, const char *name, char *definitions, bool rebased)
{
    char text[] = "x", id[32], item_id[32];
    (void)snprintf(id, sizeof id, "resp_%s", name);
    (void)snprintf(item_id, sizeof item_id, "tools_%s", name);
    struct storage_item in = {.public_id = item_id, .kind = word_tools, .text = definitions};
    struct storage_turn t = {.owner = owner,
                             .conversation = conv,
                             .parent = parent,
                             .public_id = id,
                             .status = STORAGE_TURN_RUNNING,
                             .items = &in,
                             .n_items = definitions != NULL};
    int rc = storage_turn_insert(l, &t);
    if (!rc) {
        t.status = STORAGE_TURN_COMPLETED;
        t.n_items = 0;
        t.tokens = text;
        t.tokens_bytes = 1;
        t.rebased = rebased;
        rc = storage_turn_commit(l, &t);
    }
    return rc ? rc : t.id;
}

static bool tools_are(struct storage_ledger *l, int64_t whose, int64_t turn, const char *wanted)
{
    char *text = NULL;
    bool same =
        storage_turn_tools(l, whose, turn, &text) == 0 && (wanted && text ? !strcmp(text, wanted) : !wanted && !text);
    free(text);
    return same;
}

/* What a context was told of tools is said by its first turn, or by one that was rendered anew, and is in no list. */
static int tools_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    char one[] = "[1]", two[] = "[2]";
    int64_t a = told(l, 0, "a", one, false), b = told(l, a, "b", NULL, false), c = told(l, b, "c", two, true),
            d = told(l, c, "d", NULL, true);
    JOB_CHECK(a > 0 && b > 0 && c > 0 && d > 0);
    JOB_CHECK(tools_are(l, owner, a, one));
    JOB_CHECK(tools_are(l, owner, b, one));
    JOB_CHECK(tools_are(l, owner, c, two));
    JOB_CHECK(tools_are(l, owner, d, NULL));
    JOB_CHECK(tools_are(l, owner + 1, a, NULL));
    JOB_CHECK(page_is(l, d, false, NULL, 100, ""));
    JOB_CHECK(page_is(l, d, true, NULL, 100, ""));
    struct storage_turn t;
    JOB_CHECK(storage_turn_by_id(l, owner, a, STORAGE_TURN_ITEMS, &t) == 0 && t.n_items == 0);
    storage_turn_free(&t);
    return 0;
}

static void test_tools(void **state)
{
    (void)state;
    assert_int_equal(jobs_call(st, tools_run, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tools, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

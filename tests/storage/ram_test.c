/* ram_test.c - the RAM tier: budget, order of leaving, what stays. */
#include "tests/storage/storage_testing.h"

static void put(struct ram *r, unsigned id, size_t bytes, enum ram_state state)
{
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, id);
    struct blob *b = blob_new(calloc(1, bytes), bytes);
    assert_non_null(b);
    assert_int_equal(ram_put(r, key, b, state), 0);
    blob_unref(b);
}

static bool has(struct ram *r, unsigned id)
{
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, id);
    return ram_state(r, key) >= 0;
}

static void use(struct ram *r, unsigned id)
{
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, id);
    struct blob *b = ram_get(r, key);
    assert_non_null(b);
    blob_unref(b);
}

static void test_least_recently_used(void **state)
{
    (void)state;
    struct ram r;
    assert_int_equal(ram_init(&r, 1000), 0);
    for (unsigned id = 1; id <= 4; id++)
        put(&r, id, 250, RAM_DURABLE);
    use(&r, 1);
    put(&r, 5, 250, RAM_DURABLE);
    assert_true(has(&r, 1) && !has(&r, 2) && has(&r, 3));
    put(&r, 6, 500, RAM_DURABLE);
    assert_true(has(&r, 1) && !has(&r, 3) && !has(&r, 4) && has(&r, 5));
    assert_int_equal(r.used, 1000);
    /* Larger than everything: it goes at once. */
    put(&r, 7, 1001, RAM_DURABLE);
    assert_int_equal(r.used, 0);
    assert_int_equal(r.n_entries, 0);
    ram_free(&r);
}

static void test_pending_stays(void **state)
{
    (void)state;
    struct ram r;
    uint8_t key[STORAGE_KEY_BYTES];
    assert_int_equal(ram_init(&r, 100), 0);
    put(&r, 1, 80, RAM_PENDING);
    put(&r, 2, 80, RAM_PENDING);
    ram_drop_durable(&r, NULL, 0);
    assert_true(has(&r, 1) && has(&r, 2));
    testing_key(key, 1);
    ram_set_state(&r, key, RAM_DURABLE, 0);
    assert_true(!has(&r, 1) && has(&r, 2));
    testing_key(key, 2);
    ram_set_state(&r, key, RAM_ONLY, 7);
    ram_drop_durable(&r, NULL, 0);
    assert_true(has(&r, 2));
    ram_drop_turn(&r, 8);
    assert_true(has(&r, 2));
    ram_drop_turn(&r, 7);
    assert_false(has(&r, 2));
    assert_int_equal(r.n_only, 0);
    ram_free(&r);
}

static void test_replace_and_many(void **state)
{
    (void)state;
    struct ram r;
    uint8_t key[STORAGE_KEY_BYTES];
    assert_int_equal(ram_init(&r, (size_t)1 << 30), 0);
    put(&r, 1, 10, RAM_ONLY);
    put(&r, 1, 20, RAM_PENDING);
    assert_int_equal(r.used, 20);
    assert_int_equal(r.n_only, 0);
    put(&r, 1, 30, RAM_DURABLE); /* a reader's copy changes nothing */
    testing_key(key, 1);
    assert_int_equal(ram_state(&r, key), RAM_PENDING);
    for (unsigned id = 2; id < 5000; id++)
        put(&r, id, 10, RAM_DURABLE);
    assert_true(r.n_buckets > 1024);
    for (unsigned id = 1; id < 5000; id++)
        assert_true(has(&r, id));
    ram_drop_durable(&r, (const uint8_t(*)[STORAGE_KEY_BYTES])key, 1);
    assert_true(has(&r, 1));
    ram_remove(&r, key);
    assert_false(has(&r, 1));
    ram_remove(&r, key);
    assert_null(ram_get(&r, key));
    ram_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_pending_stays),
        cmocka_unit_test(test_replace_and_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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

/* An owner's record, of `payload` bytes and what there is beside them. */
static void put_of(struct ram *r, int64_t owner, unsigned id, size_t payload, enum ram_state state)
{
    struct pack_record rec = {.owner = owner, .count = 1, .label_bytes = 4, .payload_bytes = payload};
    uint64_t bytes = pack_record_bytes(rec.label_bytes, rec.payload_bytes);
    uint8_t *record = calloc(1, bytes);
    assert_non_null(record);
    testing_key(rec.key, id);
    pack_record_seal(record, &rec, "abcd");
    struct blob *b = blob_new(record, bytes);
    assert_non_null(b);
    assert_int_equal(ram_put(r, rec.key, b, state), 0);
    blob_unref(b);
}

/* Who has little keeps it, however much somebody else brings, and what one owner leaves the other may have. */
static void test_owners_have_shares(void **state)
{
    (void)state;
    struct ram r;
    uint64_t one = pack_record_bytes(4, 1000);
    assert_int_equal(ram_init(&r, 8 * one), 0);
    put_of(&r, 1, 100, 1000, RAM_DURABLE);
    put_of(&r, 1, 101, 1000, RAM_DURABLE);
    for (unsigned id = 0; id < 50; id++)
        put_of(&r, 2, id, 1000, RAM_DURABLE);
    assert_true(has(&r, 100) && has(&r, 101) && !has(&r, 43) && has(&r, 44) && has(&r, 49));
    assert_int_equal(ram_used_by(&r, 2), 6 * one);
    /* Up to its share it takes from who has more; beyond that its own go. */
    for (unsigned id = 102; id < 120; id++)
        put_of(&r, 1, id, 1000, RAM_DURABLE);
    assert_int_equal(ram_used_by(&r, 1), 4 * one);
    assert_int_equal(ram_used_by(&r, 2), 4 * one);
    assert_true(has(&r, 119) && has(&r, 116) && !has(&r, 115) && has(&r, 46) && !has(&r, 45));
    /* Three owners have a third each; who goes counts no longer. */
    put_of(&r, 3, 200, 1000, RAM_DURABLE);
    assert_true(has(&r, 200));
    ram_keep(&r, 2, 0);
    assert_int_equal(ram_used_by(&r, 2), 0);
    for (unsigned id = 120; id < 140; id++)
        put_of(&r, 1, id, 1000, RAM_DURABLE);
    assert_int_equal(ram_used_by(&r, 1), 7 * one);
    assert_true(has(&r, 200));
    /* What cannot go yet is passed over, also where it is all that an owner over its share has. */
    ram_drop_durable(&r, NULL, 0);
    assert_int_equal(r.n_owners, 0);
    for (unsigned id = 0; id < 8; id++)
        put_of(&r, 1, id, 1000, RAM_PENDING);
    put_of(&r, 2, 300, 1000, RAM_DURABLE);
    assert_true(!has(&r, 300) && has(&r, 0) && has(&r, 7));
    assert_int_equal(r.used, 8 * one);
    ram_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least_recently_used),
        cmocka_unit_test(test_pending_stays),
        cmocka_unit_test(test_replace_and_many),
        cmocka_unit_test(test_owners_have_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

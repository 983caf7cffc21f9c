/* ledger_keys_test.c - keys of requests: exact, per owner, for a time that passes while the ledger is open. */
#include "tests/storage/storage_testing.h"

static const uint8_t digest[STORAGE_DIGEST_BYTES] = {1}, other_digest[STORAGE_DIGEST_BYTES] = {2};

static void key_of(int n, uint8_t key[STORAGE_DIGEST_BYTES])
{
    memset(key, 0, STORAGE_DIGEST_BYTES);
    memcpy(key, &n, sizeof n);
}

struct keys {
    int64_t owner, other;
};

static bool target_is(struct storage_ledger *l, int64_t owner, int n, const char *wanted)
{
    uint8_t key[STORAGE_DIGEST_BYTES];
    char *target = NULL;
    key_of(n, key);
    bool same = storage_key_get(l, owner, key, digest, &target) == 0 && !strcmp(target, wanted);
    free(target);
    return same;
}

static int used_run(struct storage_ledger *l, void *arg)
{
    struct keys *k = arg;
    uint8_t key[STORAGE_DIGEST_BYTES];
    char *target;
    key_of(7, key);
    JOB_CHECK((storage_key_get(l, k->owner, key, digest, &target)) == (-ENOENT));
    JOB_CHECK((storage_key_set(l, k->owner, key, digest, "resp_1")) == (0));
    JOB_CHECK(target_is(l, k->owner, 7, "resp_1"));
    JOB_CHECK((storage_key_get(l, k->owner, key, other_digest, &target)) == (-EINVAL));
    JOB_CHECK((storage_key_get(l, k->other, key, digest, &target)) == (-ENOENT));
    JOB_CHECK((storage_key_set(l, k->owner, key, digest, "resp_2")) == (0)); /* a second attempt took its place */
    JOB_CHECK(target_is(l, k->owner, 7, "resp_2"));
    /* Another request's, which was looked for before this one was there. */
    JOB_CHECK((storage_key_set(l, k->owner, key, other_digest, "conv_1")) == (-EKEYREJECTED));
    JOB_CHECK(target_is(l, k->owner, 7, "resp_2"));
    return 0;
}

/* Others' keys, however many, take nobody's. */
static int many_run(struct storage_ledger *l, void *arg)
{
    struct keys *k = arg;
    uint8_t key[STORAGE_DIGEST_BYTES];
    for (int i = 0; i < STORAGE_KEYS_PER_OWNER; i++) {
        key_of(i, key);
        JOB_CHECK((storage_key_set(l, k->other, key, digest, "resp_x")) == (0));
    }
    key_of(5, key); /* one that is there is not one more */
    JOB_CHECK((storage_key_set(l, k->other, key, digest, "resp_y")) == (0));
    JOB_CHECK(target_is(l, k->owner, 7, "resp_2"));
    return 0;
}

static int full_run(struct storage_ledger *l, void *arg)
{
    struct keys *k = arg;
    uint8_t key[STORAGE_DIGEST_BYTES];
    key_of(STORAGE_KEYS_PER_OWNER, key);
    return storage_key_set(l, k->other, key, digest, "resp_x");
}

/* As if so much running time had passed. */
static int later_run(struct storage_ledger *l, void *arg)
{
    l->clock_base_ms += *(int64_t *)arg;
    return 0;
}

static int there_run(struct storage_ledger *l, void *arg)
{
    struct keys *k = arg;
    return target_is(l, k->owner, 7, "resp_2") ? 0 : -ENOENT;
}

static void test_keys(void **state)
{
    (void)state;
    char *dir = testing_dir();
    struct storage *st = testing_open(dir);
    struct keys k = {testing_owner(st, "a"), testing_owner(st, "b")};
    assert_int_equal(jobs_call(st, used_run, &k), 0);
    assert_int_equal(jobs_call(st, many_run, &k), 0);
    assert_int_equal(jobs_call(st, full_run, &k), -EUSERS);

    /* A restart changes nothing, and the time goes on from where it was. */
    storage_close(st);
    st = testing_open(dir);
    assert_int_equal(jobs_call(st, there_run, &k), 0);
    int64_t most = STORAGE_KEY_KEPT_MS - 60000;
    assert_int_equal(jobs_call(st, later_run, &most), 0);
    assert_int_equal(jobs_call(st, there_run, &k), 0);
    int64_t rest = 60001;
    assert_int_equal(jobs_call(st, later_run, &rest), 0);
    assert_int_equal(jobs_call(st, there_run, &k), -ENOENT);
    assert_int_equal(jobs_call(st, full_run, &k), 0); /* what is over makes room */
    storage_close(st);
    testing_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

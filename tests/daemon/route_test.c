/* route_test.c - paths, queries and lengths. */
#include <stdio.h>
#include <string.h>

#include "tests/daemon/harness.h"

#include "daemon/api/api.h"

static void paths(void **state)
{
    (void)state;
    const struct route *r = NULL;
    char param[ROUTE_PARAM_MAX];
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/health", &r, param), 0);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_HEAD, "/health", &r, param), 0);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_POST, "/health", &r, param), 405);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/health/", &r, param), 404);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/healt", &r, param), 404);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "", &r, param), 404);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/v1/responses/resp_1", &r, param), 0);
    assert_string_equal(param, "resp_1");
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/v1/responses/", &r, param), 404);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/v1/responses/a/b", &r, param), 404);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_POST, "/v1/responses/resp_2/cancel", &r, param), 0);
    assert_string_equal(param, "resp_2");
    static const char two[] = "/v1/conversations/conv_1/items/msg_2";
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, two, &r, param), 0);
    assert_string_equal(param, "conv_1/msg_2");
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_DELETE, two, &r, param), 0);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_POST, two, &r, param), 405);
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, "/v1/conversations/conv_1/items/", &r, param),
                     404);
    char path[ROUTE_PARAM_MAX + 64] = "/v1/responses/";
    size_t base = strlen(path);
    memset(path + base, 'a', ROUTE_PARAM_MAX);
    path[base + ROUTE_PARAM_MAX - 1] = '\0';
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, path, &r, param), 0);
    path[base + ROUTE_PARAM_MAX - 1] = 'a';
    path[base + ROUTE_PARAM_MAX] = '\0';
    assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, path, &r, param), 404);
    /* Two ids and the slash between them have that room together. */
    for (int room = 0; room < 2; room++) {
        char one[ROUTE_PARAM_MAX], other[ROUTE_PARAM_MAX], both[2 * ROUTE_PARAM_MAX + 64];
        memset(one, 'a', sizeof(one));
        memset(other, 'b', sizeof(other));
        one[ROUTE_PARAM_MAX / 2] = other[ROUTE_PARAM_MAX / 2 - 2 + (room ? 0 : 1)] = '\0';
        snprintf(both, sizeof(both), "/v1/conversations/%s/items/%s", one, other);
        assert_int_equal(route_find(api_routes, api_n_routes, METHOD_GET, both, &r, param), room ? 0 : 404);
    }
}

static bool add(struct route_query *q, const char *pair)
{
    return route_query_add(q, pair, strlen(pair));
}

/* What the APIs have and this does not is refused by name. */
static void absent_ones(void **state)
{
    (void)state;
    assert_string_equal(api_absent("/v1/embeddings"), "Embeddings are");
    assert_string_equal(api_absent("/v1/audio/speech"), "Audio is");
    assert_string_equal(api_absent("/v1/messages/batches/x"), "Batches are");
    assert_null(api_absent("/v1/embeddingsx"));
    assert_null(api_absent("/v1/none"));
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/embeddings", NULL, "{\"input\":\"x\"}");
    assert_int_equal(r.status, 404);
    assert_string_equal(str(r.json, "error.message"), "Embeddings are not supported.");
    reply_free(&r);
    harness_stop(h);
}

static void queries(void **state)
{
    (void)state;
    struct route_query q;
    route_query_init(&q);
    assert_true(add(&q, "limit=100"));
    assert_int_equal(q.limit, 100);
    assert_false(add(&q, "limit=101"));
    assert_false(add(&q, "limit=0"));
    assert_false(add(&q, "limit=-1"));
    assert_false(add(&q, "limit="));
    assert_false(add(&q, "limit"));
    assert_true(add(&q, "starting_after=0"));
    assert_false(add(&q, "starting_after=9999999999999999999"));
    assert_true(add(&q, "stream=true"));
    assert_false(add(&q, "stream=1"));
    assert_true(add(&q, "order=asc"));
    assert_false(add(&q, "order=up"));
    assert_true(add(&q, "q=a=b"));
    assert_string_equal(q.q, "a=b");
    assert_true(add(&q, "unknown=1"));
    assert_true(add(&q, ""));
    char pair[400];
    memset(pair, 'q', sizeof(pair));
    pair[1] = '=';
    assert_true(route_query_add(&q, pair, 2 + sizeof(q.q) - 1));
    assert_false(route_query_add(&q, pair, 2 + sizeof(q.q)));
}

static void lengths(void **state)
{
    (void)state;
    static const char *const bad[] = {"", " ", "-1", "+1", "1 ", " 1", "1,1", "0x1", "1e1", "1234567890123456789"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(text_digits(bad[i], strlen(bad[i])), -1);
    }
    assert_int_equal(text_digits("0", 1), 0);
    assert_int_equal(text_digits("007", 3), 7);
    assert_true(text_digits("999999999999999999", 18) == 999999999999999999LL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths),
        cmocka_unit_test(absent_ones),
        cmocka_unit_test(queries),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

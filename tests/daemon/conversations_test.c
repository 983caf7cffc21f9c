/* conversations_test.c - the routes under /v1/conversations, and that owners do not see each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static char *path_of(const char *id, const char *tail)
{
    char *path = NULL;
    assert_true(asprintf(&path, "/v1/conversations/%s%s", id, tail) > 0);
    return path;
}

static int status_of(struct harness *h, const char *method, const char *path, const char *headers, const char *body)
{
    struct reply r = call(h, method, path, headers, body);
    int status = r.status;
    reply_free(&r);
    return status;
}

static void life_of_a_conversation(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/conversations", NULL,
                          "{\"metadata\":{\"k\":\"v\"},\"title\":\"first\",\"convod\":{\"instructions\":\"be kind\"}}");
    assert_int_equal(r.status, 200);
    char id[64], body[256];
    snprintf(id, sizeof(id), "%s", str(r.json, "id"));
    assert_true(strncmp(id, "conv_", 5) == 0);
    assert_string_equal(str(r.json, "object"), "conversation");
    assert_string_equal(str(r.json, "metadata.k"), "v");
    assert_string_equal(str(r.json, "convod.title"), "first");
    assert_string_equal(str(r.json, "convod.instructions"), "be kind");
    reply_free(&r);
    char *path = path_of(id, ""), *items = path_of(id, "/items?order=asc&limit=3"), *evict = path_of(id, "/evict");
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof(body), "{\"input\":\"echo turn %d\",\"conversation\":\"%s\"}", i, id);
        r = call(h, "POST", "/v1/responses", NULL, body);
        assert_int_equal(r.status, 200);
        assert_string_equal(str(r.json, "conversation.id"), id);
        reply_free(&r);
    }
    r = call(h, "GET", items, NULL, NULL);
    assert_string_equal(str(r.json, "data.0.content.0.text"), "echo turn 0");
    assert_string_equal(str(r.json, "data.1.content.0.text"), "turn 0");
    assert_string_equal(str(r.json, "data.1.role"), "assistant");
    assert_string_equal(str(r.json, "data.2.content.0.text"), "echo turn 1");
    assert_true(cJSON_IsTrue(at(r.json, "has_more")));
    char *rest = path_of(id, "/items?order=asc&after=");
    char *rest_path = NULL;
    assert_true(asprintf(&rest_path, "%s%s", rest, str(r.json, "last_id")) > 0);
    reply_free(&r);
    r = call(h, "GET", rest_path, NULL, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 1);
    assert_string_equal(str(r.json, "data.0.content.0.text"), "turn 1");
    assert_true(cJSON_IsFalse(at(r.json, "has_more")));
    reply_free(&r);
    free(rest_path);
    assert_true(asprintf(&rest_path, "%s%s", rest, "msg_gone") > 0);
    r = call(h, "GET", rest_path, NULL, NULL);
    assert_int_equal(r.status, 400); /* not the first page again */
    assert_string_equal(str(r.json, "error.param"), "after");
    reply_free(&r);
    free(rest);
    free(rest_path);
    r = call(h, "POST", path, NULL, "{\"title\":\"second\"}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "convod.title"), "second");
    assert_string_equal(str(r.json, "metadata.k"), "v");
    reply_free(&r);
    r = call(h, "POST", evict, NULL, "{\"to\":\"ram\"}");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = call(h, "GET", path, NULL, NULL);
    assert_string_equal(str(r.json, "convod.tier"), "ram");
    reply_free(&r);
    assert_int_equal(status_of(h, "POST", evict, NULL, "{\"to\":\"moon\"}"), 400);
    assert_int_equal(status_of(h, "POST", evict, NULL, "{\"to\":5}"), 400);
    assert_int_equal(status_of(h, "POST", path, NULL, "{\"title\":5}"), 400);
    assert_int_equal(status_of(h, "POST", "/v1/conversations", NULL, "{\"items\":[{\"role\":\"user\"}]}"), 400);
    assert_int_equal(status_of(h, "DELETE", path, NULL, NULL), 200);
    assert_int_equal(status_of(h, "GET", path, NULL, NULL), 404);
    assert_int_equal(status_of(h, "DELETE", path, NULL, NULL), 404);
    assert_int_equal(status_of(h, "POST", evict, NULL, "{}"), 404);
    assert_int_equal(status_of(h, "GET", items, NULL, NULL), 404);
    free(path);
    free(items);
    free(evict);
    harness_stop(h);
}

static void listing(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    for (int i = 0; i < 5; i++) {
        char body[64];
        snprintf(body, sizeof(body), "{\"title\":\"chat %d of %s\"}", i, i % 2 ? "cats" : "dogs");
        assert_int_equal(status_of(h, "POST", "/v1/conversations", NULL, body), 200);
    }
    struct reply r = call(h, "GET", "/v1/conversations?limit=2", NULL, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 2);
    assert_string_equal(str(r.json, "data.0.title"), "chat 4 of dogs");
    assert_true(cJSON_IsTrue(at(r.json, "has_more")));
    char next[160];
    snprintf(next, sizeof(next), "/v1/conversations?limit=2&after=%s", str(r.json, "last_id"));
    reply_free(&r);
    r = call(h, "GET", next, NULL, NULL);
    assert_string_equal(str(r.json, "data.0.title"), "chat 2 of dogs");
    reply_free(&r);
    r = call(h, "GET", "/v1/conversations?q=of%20cats", NULL, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 2);
    reply_free(&r);
    assert_int_equal(status_of(h, "GET", "/v1/conversations?limit=100", NULL, NULL), 200);
    r = call(h, "GET", "/v1/conversations?limit=101", NULL, NULL);
    assert_int_equal(r.status, 400);
    assert_string_equal(str(r.json, "error.param"), "limit");
    assert_non_null(strstr(str(r.json, "error.message"), "from 1 to 100"));
    reply_free(&r);
    assert_int_equal(status_of(h, "GET", "/v1/conversations?limit=0", NULL, NULL), 400);
    assert_int_equal(status_of(h, "GET", "/v1/conversations?after=x", NULL, NULL), 400);
    static const struct {
        const char *path, *param;
    } broken[] = {
        {"/v1/conversations?q=%ff", "q"}, {"/v1/conversations?q=a%00b", "q"}, {"/v1/conversations?%ff=x", ""}};
    for (size_t i = 0; i < sizeof(broken) / sizeof(*broken); i++) {
        r = call(h, "GET", broken[i].path, NULL, NULL);
        assert_int_equal(r.status, 400);
        assert_string_equal(str(r.json, "error.param"), broken[i].param);
        reply_free(&r);
    }
    harness_stop(h);
}

static void owners_are_apart(void **state)
{
    (void)state;
    char path[] = "/tmp/convod_tokens_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char tokens[] = "# who\nalice token-of-alice-0001\nbob   token-of-bob-000002\n";
    assert_int_equal(write(fd, tokens, sizeof(tokens) - 1), sizeof(tokens) - 1);
    const char *flags[] = {"--token-file", path, NULL};
    struct harness *h = harness_start(flags);
    static const char alice[] = "Authorization: Bearer token-of-alice-0001\r\n";
    static const char bob[] = "Authorization: bearer token-of-bob-000002\r\n";
    assert_int_equal(status_of(h, "GET", "/health", NULL, NULL), 200);
    assert_int_equal(status_of(h, "GET", "/v1/models", NULL, NULL), 401);
    assert_int_equal(status_of(h, "GET", "/metrics", NULL, NULL), 401);
    assert_int_equal(status_of(h, "GET", "/v1/models", "Authorization: Bearer wrong-token-000001\r\n", NULL), 401);
    assert_int_equal(status_of(h, "GET", "/v1/models", "x-api-key: token-of-alice-0001\r\n", NULL), 200);
    assert_int_equal(status_of(h, "GET", "/v1/models", "x-api-key: wrong-token-000001\r\n", NULL), 401);
    assert_int_equal(status_of(h, "GET", "/v1/models", "Authorization: Basic token-of-alice-0001\r\n", NULL), 401);
    assert_int_equal(status_of(h, "GET", "/v1/models", alice, NULL), 200);
    cJSON *error;
    assert_int_equal(ws_refused(h, "/v1/responses", NULL, &error), 401);
    assert_string_equal(str(error, "error.code"), "invalid_api_key");
    cJSON_Delete(error);
    assert_int_equal(ws_refused(h, "/v1/responses", alice, NULL), 101);
    struct reply r = call(h, "POST", "/v1/conversations", alice, "{}");
    assert_int_equal(r.status, 200);
    char *conversation = path_of(str(r.json, "id"), "");
    reply_free(&r);
    assert_int_equal(status_of(h, "GET", conversation, alice, NULL), 200);
    assert_int_equal(status_of(h, "GET", conversation, bob, NULL), 404);
    assert_int_equal(status_of(h, "DELETE", conversation, bob, NULL), 404);
    r = call(h, "GET", "/v1/conversations", bob, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 0);
    reply_free(&r);
    /* A running response of another owner is not there either. */
    int stream = dial(h);
    send_request(stream, "POST", "/v1/responses", alice,
                 "{\"input\":\"hold a b\",\"stream\":true,\"convod\":{\"on_disconnect\":\"finish\"}}");
    char some[4096] = "", response[64] = "", get[128];
    for (size_t len = 0; !strstr(some, "output_text.delta") && len < sizeof(some) - 1; len++) {
        some[len] = (char)read_byte(stream);
    }
    sscanf(strstr(some, "\"id\":\"resp_"), "\"id\":\"%37[^\"]", response);
    snprintf(get, sizeof(get), "/v1/responses/%s", response);
    assert_int_equal(status_of(h, "GET", get, alice, NULL), 200);
    assert_int_equal(status_of(h, "GET", get, bob, NULL), 404);
    strcat(get, "/cancel");
    assert_int_equal(status_of(h, "POST", get, bob, ""), 404);
    fake_release(1);
    close(stream);
    /* Tokens are read again on request; a bad file leaves the old ones. Who is revoked is sent away. */
    int revoked = ws_dial_as(h, alice), kept = ws_dial_as(h, bob), waits = dial(h);
    fake_reset(); /* the stream's turn may have ended without its release */
    send_request(waits, "POST", "/v1/responses", alice, "{\"input\":\"wait\"}");
    fake_wait_started(1);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, "carol token-of-carol-0001\nbob token-of-bob-000002\n", 50, 0), 50);
    server_reload(h->server);
    while (status_of(h, "GET", "/v1/models", "Authorization: Bearer token-of-carol-0001\r\n", NULL) != 200) {
    }
    assert_int_equal(status_of(h, "GET", "/v1/models", alice, NULL), 401);
    int code;
    assert_null(ws_read(revoked, &code));
    assert_int_equal(code, 1008);
    assert_true(closed(waits));
    ws_create(kept, "echo a", NULL);
    cJSON *e = ws_until(kept, "response.completed");
    cJSON_Delete(e);
    close(revoked);
    close(kept);
    close(waits);
    assert_int_equal(ftruncate(fd, 0), 0);
    server_reload(h->server);
    assert_int_equal(status_of(h, "GET", "/v1/models", "Authorization: Bearer token-of-carol-0001\r\n", NULL), 200);
    char *log = harness_log(h);
    assert_null(strstr(log, "token-of"));
    free(log);
    free(conversation);
    close(fd);
    unlink(path);
    harness_stop(h);
}

/* Items are put in when it is made, or later, up to 20 at once. */
static void items_are_added(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/conversations", NULL,
                          "{\"title\":\"t\",\"items\":[{\"role\":\"user\",\"content\":\"one\"},"
                          "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"two\"}]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "conversation");
    assert_string_equal(str(r.json, "title"), "t");
    char *path = path_of(str(r.json, "id"), "/items"), *list = path_of(str(r.json, "id"), "/items?order=asc");
    reply_free(&r);
    r = call(h, "POST", path, NULL,
             "{\"items\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
             "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"5\"}]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "list");
    assert_string_equal(str(r.json, "data.0.type"), "function_call");
    assert_string_equal(str(r.json, "data.1.output"), "5");
    char first[64];
    snprintf(first, sizeof(first), "%s", str(r.json, "data.0.id"));
    assert_string_equal(str(r.json, "first_id"), first);
    reply_free(&r);
    r = call(h, "GET", list, NULL, NULL);
    assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), 4);
    assert_string_equal(str(r.json, "data.0.content.0.text"), "one");
    assert_string_equal(str(r.json, "data.1.role"), "assistant");
    assert_string_equal(str(r.json, "data.2.id"), first);
    reply_free(&r);
    static const char tools[] = "{\"items\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"additional_tools\"}]}";
    static const char *const wrong[] = {"{}",
                                        "{\"items\":[]}",
                                        "{\"items\":5}",
                                        "{\"items\":[{\"type\":\"reasoning\"}]}",
                                        tools,
                                        "{\"items\":[{\"role\":\"king\",\"content\":\"x\"}]}"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_int_equal(status_of(h, "POST", path, NULL, wrong[i]), 400);
    }
    for (int n = 20; n <= 21; n++) {
        char body[2048] = "{\"items\":[";
        for (int i = 0; i < n; i++) {
            strcat(body, i ? ",{\"role\":\"user\",\"content\":\"x\"}" : "{\"role\":\"user\",\"content\":\"x\"}");
        }
        strcat(body, "]}");
        assert_int_equal(status_of(h, "POST", path, NULL, body), n == 20 ? 200 : 400);
        assert_int_equal(status_of(h, "POST", "/v1/conversations", NULL, body), n == 20 ? 200 : 400);
    }
    assert_int_equal(status_of(h, "POST", "/v1/conversations/conv_none/items", NULL,
                               "{\"items\":[{\"role\":\"user\",\"content\":\"x\"}]}"),
                     404);
    free(path);
    free(list);
    /* Long ones, whose page is made elsewhere. */
    enum { LONG = 100000 };
    char *long_body = malloc(LONG + 128);
    assert_non_null(long_body);
    int begun = sprintf(long_body, "{\"items\":[{\"role\":\"user\",\"content\":\"");
    memset(long_body + begun, 'x', LONG);
    strcpy(long_body + begun + LONG, "\"}]}");
    r = call(h, "POST", "/v1/conversations", NULL, long_body);
    assert_int_equal(r.status, 200);
    char *long_list = path_of(str(r.json, "id"), "/items"), *none = path_of(str(r.json, "id"), "/items?after=msg_none");
    reply_free(&r);
    r = call(h, "GET", long_list, NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(strlen(str(r.json, "data.0.content.0.text")), LONG);
    reply_free(&r);
    assert_int_equal(status_of(h, "GET", none, NULL, NULL), 400);
    free(none);
    free(long_list);
    free(long_body);
    /* What cannot be put in leaves no conversation. */
    r = call(h, "GET", "/v1/conversations?limit=100", NULL, NULL);
    int before = cJSON_GetArraySize(at(r.json, "data"));
    reply_free(&r);
    static const char *const failing[] = {"refuse 5", "fail", "start -12"};
    for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++) {
        char body[128];
        snprintf(body, sizeof(body), "{\"items\":[{\"role\":\"user\",\"content\":\"%s\"}]}", failing[i]);
        assert_true(status_of(h, "POST", "/v1/conversations", NULL, body) >= 400);
        r = call(h, "GET", "/v1/conversations?limit=100", NULL, NULL);
        assert_int_equal(cJSON_GetArraySize(at(r.json, "data")), before);
        reply_free(&r);
    }
    harness_stop(h);
}

static void tokens_are_counted(void **state)
{
    (void)state;
    struct harness *h = harness_start(NULL);
    struct reply r = call(h, "POST", "/v1/responses/input_tokens", NULL, "{\"input\":\"echo hi\"}");
    assert_int_equal(r.status, 200);
    assert_string_equal(str(r.json, "object"), "response.input_tokens");
    assert_int_equal(num(r.json, "input_tokens"), 7);
    reply_free(&r);
    assert_int_equal(status_of(h, "POST", "/v1/responses/input_tokens", NULL, "{\"input\":\"refuse 1\"}"), 400);
    assert_int_equal(status_of(h, "POST", "/v1/responses/input_tokens", NULL, "{\"input\":5}"), 400);
    harness_stop(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(life_of_a_conversation), cmocka_unit_test(items_are_added),
        cmocka_unit_test(tokens_are_counted),     cmocka_unit_test(listing),
        cmocka_unit_test(owners_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tokens_test.c - the file that `convod token` keeps: what is made, taken away, read, and what each token is good for.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

#include "daemon/tokens.h"

static char dir[64], path[128];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/convod_tokens_XXXXXX");
    snprintf(path, sizeof(path), "%s/" TOKENS_FILE, mkdtemp(dir) ? dir : "");
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

static struct token_row add(const char *owner, enum auth_scope scope, int64_t expires_s, char bearer[80])
{
    struct token_row row = {.scope = scope, .expires_s = expires_s};
    char token[TOKEN_TEXT_SIZE], err[256] = "";
    snprintf(row.owner, sizeof(row.owner), "%s", owner);
    assert_int_equal(tokens_add(dir, &row, token, err, sizeof(err)), 0);
    snprintf(bearer, 80, "Bearer %s", token);
    return row;
}

static void made_and_taken_away(void **state)
{
    (void)state;
    char err[256], alice[80], second[80], bob[80];
    struct auth *a;
    struct auth_who who;
    struct stat st;
    size_t n;
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_false(auth_required(a)); /* no file: everyone is local */
    auth_free(a);
    struct token_row row = add("alice", AUTH_ALL, 0, alice);
    add("alice", AUTH_ALL, 0, second);
    add("bob", AUTH_ALL, 0, bob);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_string_not_equal(alice, second);

    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_true(auth_required(a));
    assert_int_equal(auth_owner(a, alice, NULL, &who), 0);
    assert_string_equal(who.owner, "alice");
    assert_int_equal(auth_owner(a, bob, NULL, &who), 0);
    assert_string_equal(who.owner, "bob");
    auth_free(a);

    /* By its id one goes, by the owner the rest. */
    assert_int_equal(tokens_revoke(dir, row.id, &n, err, sizeof(err)), 0);
    assert_int_equal(n, 1);
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_int_equal(auth_owner(a, alice, NULL, &who), -EACCES);
    assert_int_equal(auth_owner(a, second, NULL, &who), 0);
    auth_free(a);
    assert_int_equal(tokens_revoke(dir, "alice", &n, err, sizeof(err)), 0);
    assert_int_equal(tokens_revoke(dir, "alice", &n, err, sizeof(err)), -ENOENT);
    assert_int_equal(tokens_revoke(dir, "bob", &n, err, sizeof(err)), 0);
    /* The last one opens nothing. */
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_true(auth_required(a));
    assert_int_equal(auth_owner(a, NULL, NULL, &who), -EACCES);
    auth_free(a);
}

static void file_has_no_token(void **state)
{
    (void)state;
    char bearer[80], text[1024];
    add("alice", AUTH_ALL, 0, bearer);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = '\0';
    fclose(f);
    assert_non_null(strstr(text, "alice"));
    assert_null(strstr(text, bearer + strlen("Bearer convod_")));
}

static void ends(void **state)
{
    (void)state;
    char err[256], over[80], soon[80], never[80];
    int64_t now = now_ms() / 1000;
    add("a", AUTH_ALL, now - 1, over);
    add("b", AUTH_ALL, now + 1000, soon);
    add("c", AUTH_ALL, 0, never);
    struct auth *a;
    struct auth_who who;
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_int_equal(auth_owner(a, over, NULL, &who), -EACCES);
    assert_int_equal(auth_owner(a, soon, NULL, &who), 0);
    assert_int_equal(auth_owner(a, never, NULL, &who), 0);
    assert_int_equal(auth_next_end(a), now + 1000);
    auth_free(a);
}

/* What is asked for with a token may be behind everybody else, and stays so when others are added. */
static void priority_is_kept(void **state)
{
    (void)state;
    char err[256] = "", token[TOKEN_TEXT_SIZE], carl[80], bob[80];
    struct token_row row = {.owner = "carl", .patient = true};
    struct auth *a;
    struct auth_who who;
    assert_int_equal(tokens_add(dir, &row, token, err, sizeof(err)), 0);
    snprintf(carl, sizeof(carl), "Bearer %s", token);
    add("bob", AUTH_ALL, 0, bob);
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_int_equal(auth_owner(a, carl, NULL, &who), 0);
    assert_true(who.patient);
    assert_int_equal(auth_owner(a, bob, NULL, &who), 0);
    assert_false(who.patient);
    auth_free(a);
}

static void gateways(void **state)
{
    (void)state;
    char err[256], gateway[80], gate[80];
    add("gate", AUTH_ALL, 0, gate);
    add("web", AUTH_GATEWAY, 0, gateway);
    struct auth *a;
    struct auth_who who;
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_int_equal(auth_owner(a, gateway, "maria@example.org", &who), 0);
    assert_string_equal(who.owner, "web/maria@example.org");
    assert_true(auth_known(a, &who));
    assert_int_equal(auth_owner(a, gateway, NULL, &who), 0);
    assert_string_equal(who.owner, "web");
    assert_true(auth_known(a, &who));
    static const char *const bad[] = {"a/b",  "a b",  "#a",
                                      "\x01", "\xff", "a-name-of-sixty-bytes-is-too-long-with-its-gateway-before-it"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(auth_owner(a, gateway, bad[i], &who), -EINVAL);
    }
    assert_int_equal(auth_owner(a, gate, "maria", &who), 0);
    assert_string_equal(who.owner, "gate");
    auth_free(a);
}

/* A line that we would not have written is refused with its number, and nothing of the file counts. */
static void malformed(void **state)
{
    (void)state;
    static const char digest[] = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    static const char *const bad[] = {
        "alice %s created=1 expires=never scope=all",
        "tok_1 %s",
        "tok_1 alice",
        "tok_1 alice sha256:00",
        "tok_1 a/b %s created=1 expires=never scope=all",
        "tok_1 alice %s created=x expires=never scope=all",
        "tok_1 alice %s created=1 expires=0 scope=all",
        "tok_1 alice %s created=1 expires=never scope=root",
        "tok_1 alice %s created=1 expires=never scope=all inherits=",
        "tok_1 alice %s created=1 expires=never scope=all priority=high",
        "tok_1 alice %s created=1 expires=never scope=all frob=1",
        "tok_1 alice %s created=1 expires=never scope=all conversations=-1",
        "tok_1 alice %s created=1 expires=never scope=all conversations=1k",
        "tok_1 alice %s created=1 expires=never scope=all disk-bytes=1X",
        "tok_1 alice %s created=1 expires=never scope=all retain-days=36501",
        "tok_a-very-long-id-that-is-none alice %s created=1 expires=never scope=all",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        char err[256] = "";
        struct auth *a;
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fchmod(fileno(f), 0600), 0);
        fputs("# first\n\n", f);
        fprintf(f, bad[i], digest); /* the formats are above */
        fputc('\n', f);
        fclose(f);
        assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), -EINVAL);
        assert_non_null(strstr(err, "tokens:3: "));
        /* Nor is it written over. */
        struct token_row row = {.owner = "alice"};
        char token[TOKEN_TEXT_SIZE];
        assert_int_equal(tokens_add(dir, &row, token, err, sizeof(err)), -EINVAL);
    }
    char err[256];
    struct auth *a;
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), -EPERM);
}

/* The newest token of an owner that says what the owner may have is asked first; others say nothing. */
static void limits(void **state)
{
    (void)state;
    struct token_row older = {.owner = "alice"}, newer = {.owner = "alice"}, plain = {.owner = "alice"};
    char token[TOKEN_TEXT_SIZE], err[256] = "";
    struct auth *a;
    struct auth_limits said;
    size_t at = 0;
    assert_int_equal(token_limit_set(&older, "conversations", 13, "5"), 0);
    assert_int_equal(token_limit_set(&newer, "disk-bytes", 10, "2G"), 0);
    assert_int_equal(token_limit_set(&newer, "retain-days", 11, "0"), 0);
    assert_int_equal(token_limit_set(&newer, "disk", 4, "2G"), -ENOENT);
    assert_int_equal(token_limit_set(&newer, "ledger-bytes", 12, "many"), -EINVAL);
    assert_int_equal(tokens_add(dir, &older, token, err, sizeof(err)), 0);
    assert_int_equal(tokens_add(dir, &newer, token, err, sizeof(err)), 0);
    assert_int_equal(tokens_add(dir, &plain, token, err, sizeof(err)), 0);
    assert_int_equal(auth_open(NULL, dir, &a, err, sizeof(err)), 0);
    assert_true(auth_limits(a, &at, &said));
    assert_string_equal(said.owner, "alice");
    assert_int_equal(said.given, 1U << LIMIT_DISK_BYTES | 1U << LIMIT_RETAIN_DAYS);
    assert_int_equal(said.values[LIMIT_DISK_BYTES], 2ULL << 30);
    assert_int_equal(said.values[LIMIT_RETAIN_DAYS], 0);
    assert_true(auth_limits(a, &at, &said));
    assert_int_equal(said.values[LIMIT_CONVERSATIONS], 5);
    assert_false(auth_limits(a, &at, &said));
    auth_free(a);
}

#define WRITERS    4
#define PER_WRITER 8

static void *write_some(void *arg)
{
    (void)arg;
    for (int i = 0; i < PER_WRITER; i++) {
        char bearer[80];
        add("alice", AUTH_ALL, 0, bearer);
    }
    return NULL;
}

/* Nobody's change is lost under another's. */
static void side_by_side(void **state)
{
    (void)state;
    pthread_t threads[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_some, NULL), 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
    size_t n;
    char err[256];
    assert_int_equal(tokens_revoke(dir, "alice", &n, err, sizeof(err)), 0);
    assert_int_equal(n, WRITERS * PER_WRITER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(made_and_taken_away, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(file_has_no_token, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(ends, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(priority_is_kept, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(gateways, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(malformed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(limits, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(side_by_side, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

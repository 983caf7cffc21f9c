/* auth_test.c - token files, hosts, origins and addresses. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

#include "daemon/run/run.h"

static int open_text(const char *text, struct auth **a, char *err, size_t err_size)
{
    char path[] = "/tmp/convod_auth_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    int rc = auth_open(path, NULL, a, err, err_size);
    unlink(path);
    return rc;
}

static void token_files(void **state)
{
    (void)state;
    struct auth *a;
    char err[256];
    struct auth_who who;
    static const char *const bad[] = {
        "",
        "# nothing\n",
        "alice\n",
        "alice short\n",
        "alice 0123456789abcdef extra\n",
        "al/ice 0123456789abcdef\n",
        "a-name-that-is-much-longer-than-what-an-owner-may-have-as-its-name-here 0123456789abcdef\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        err[0] = '\0';
        assert_int_equal(open_text(bad[i], &a, err, sizeof(err)), -EINVAL);
        assert_true(err[0] != '\0');
        assert_null(strstr(err, "0123456789abcdef"));
    }
    char *line = calloc(1, 2000);
    assert_non_null(line);
    memcpy(line, "alice ", 6);
    memset(line + 6, 'x', 1500);
    assert_int_equal(open_text(line, &a, err, sizeof(err)), -EINVAL);
    free(line);
    assert_int_equal(auth_open("/nonexistent/tokens", NULL, &a, err, sizeof(err)), -ENOENT);
    assert_int_equal(open_text("alice 0123456789abcdef\r\n  bob  fedcba9876543210  \n\nalice aaaaaaaaaaaaaaaa", &a, err,
                               sizeof(err)),
                     0);
    assert_true(auth_required(a));
    assert_int_equal(auth_owner(a, "Bearer 0123456789abcdef", "eve", &who), 0);
    assert_string_equal(who.owner, "alice"); /* no gateway: it speaks for itself */
    assert_true(auth_known(a, &who));
    struct auth_who other = who;
    snprintf(other.owner, sizeof(other.owner), "bob");
    assert_false(auth_known(a, &other));
    snprintf(other.owner, sizeof(other.owner), "alice/eve");
    assert_false(auth_known(a, &other));
    other = who;
    other.digest[31] ^= 1;
    assert_false(auth_known(a, &other));
    assert_int_equal(auth_owner(a, "Bearer aaaaaaaaaaaaaaaa", NULL, &who), 0);
    assert_string_equal(who.owner, "alice");
    assert_int_equal(auth_owner(a, "bearer fedcba9876543210", NULL, &who), 0);
    assert_string_equal(who.owner, "bob");
    static const char *const unknown[] = {
        NULL, "", "Bearer ", "Bearer 0123456789abcdeX", "Bearer 0123456789abcdef ", "0123456789abcdef"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++) {
        assert_int_equal(auth_owner(a, unknown[i], NULL, &who), -EACCES);
    }
    assert_int_equal(auth_next_end(a), 0);
    auth_free(a);
    assert_int_equal(auth_open(NULL, NULL, &a, err, sizeof(err)), 0);
    assert_false(auth_required(a));
    assert_int_equal(auth_owner(a, NULL, "eve", &who), 0);
    assert_string_equal(who.owner, "local");
    assert_true(auth_known(a, &who));
    auth_free(a);
}

/* Others' rights, other kinds of files. */
static void private_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/convod_auth_XXXXXX", path[64], fifo[64], err[256];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/tokens", dir);
    snprintf(fifo, sizeof(fifo), "%s/fifo", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("alice 0123456789abcdef\n", f);
    fclose(f);
    struct auth *a;
    static const mode_t refused[] = {0604, 0602, 0601, 0620, 0610, 0660, 0644, 0666, 0777};
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        assert_int_equal(chmod(path, refused[i]), 0);
        assert_int_equal(auth_open(path, NULL, &a, err, sizeof(err)), -EPERM);
        assert_non_null(strstr(err, "chmod 600"));
    }
    static const mode_t taken[] = {0600, 0400, 0700};
    for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
        assert_int_equal(chmod(path, taken[i]), 0);
        assert_int_equal(auth_open(path, NULL, &a, err, sizeof(err)), 0);
        auth_free(a);
    }
    /* A group may read what is root's; a user's own file is for that user. */
    assert_int_equal(chmod(path, 0640), 0);
    int rc = auth_open(path, NULL, &a, err, sizeof(err));
    assert_int_equal(rc, geteuid() == 0 ? 0 : -EPERM);
    auth_free(rc ? NULL : a);
    if (geteuid() == 0) {
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chown(path, 65534, (gid_t)-1), 0);
        assert_int_equal(auth_open(path, NULL, &a, err, sizeof(err)), -EPERM);
        assert_non_null(strstr(err, "another user"));
    }
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(auth_open(fifo, NULL, &a, err, sizeof(err)), -EINVAL);
    assert_int_equal(auth_open(dir, NULL, &a, err, sizeof(err)), -EINVAL);
    unlink(path);
    unlink(fifo);
    rmdir(dir);
}

static void addresses(void **state)
{
    (void)state;
    char address[64];
    int port;
    assert_int_equal(auth_listen_parse("127.0.0.1:80", address, sizeof(address), &port), 0);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(port, 80);
    assert_int_equal(auth_listen_parse("[::1]:0", address, sizeof(address), &port), 0);
    assert_string_equal(address, "::1");
    assert_int_equal(auth_listen_parse("localhost:9", address, sizeof(address), &port), 0);
    assert_string_equal(address, "127.0.0.1");
    static const char *const bad[] = {"",      ":80",  "127.0.0.1:", "127.0.0.1:x", "[::1:80",
                                      "[]:80", "[:80", "a.b:1",      "1.2.3.4.5:1", "127.0.0.1:-1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(auth_listen_parse(bad[i], address, sizeof(address), &port), -EINVAL);
    }
    assert_true(auth_address_loopback("127.0.0.1"));
    assert_true(auth_address_loopback("127.9.9.9"));
    assert_true(auth_address_loopback("::1"));
    assert_false(auth_address_loopback("0.0.0.0"));
    assert_false(auth_address_loopback("::"));
    assert_false(auth_address_loopback("::ffff:10.0.0.1"));
    assert_false(auth_address_loopback("128.0.0.1"));
}

static void hosts_and_origins(void **state)
{
    (void)state;
    char host[] = "Box.lan", origin[] = "https://chat.example.org";
    struct daemon_config c = {.hosts = {host}, .n_hosts = 1, .origins = {origin}, .n_origins = 1};
    assert_true(auth_host_allowed(&c, "localhost"));
    assert_true(auth_host_allowed(&c, "127.0.0.1:99"));
    assert_true(auth_host_allowed(&c, "[::1]:99"));
    assert_true(auth_host_allowed(&c, "box.LAN:1"));
    assert_false(auth_host_allowed(&c, ""));
    assert_false(auth_host_allowed(&c, ":80"));
    assert_false(auth_host_allowed(&c, "[::1"));
    assert_false(auth_host_allowed(&c, "[::1]x"));
    assert_false(auth_host_allowed(&c, "rebind.example.org"));
    assert_true(auth_origin_allowed(&c, "https://chat.example.org", "localhost"));
    assert_true(auth_origin_allowed(&c, "http://localhost:1", "localhost:1"));
    assert_false(auth_origin_allowed(&c, "http://localhost:1", "localhost:2"));
    assert_false(auth_origin_allowed(&c, "null", "localhost"));
    assert_false(auth_origin_allowed(&c, "", ""));
    assert_false(auth_origin_allowed(&c, "http://", ""));
    assert_false(auth_origin_allowed(&c, "https://chat.example.org:8443", "localhost"));
}

static void ids(void **state)
{
    (void)state;
    char a[ID_SIZE], b[ID_SIZE];
    assert_int_equal(id_new("resp_", a), 0);
    assert_int_equal(id_new("resp_", b), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), 5 + 32);
    assert_true(id_valid("resp_", a));
    assert_false(id_valid("conv_", a));
    assert_false(id_valid("resp_", "resp_"));
    assert_false(id_valid("resp_", "resp_a/b"));
    assert_false(id_valid("resp_", "resp_a b"));
    assert_true(id_valid("resp_", "resp_0123456789012345678901234567890123456789"));
    assert_false(id_valid("resp_", "resp_01234567890123456789012345678901234567890"));
    id_derive("msg_", a, b);
    assert_string_equal(b + 4, a + 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_files),       cmocka_unit_test(private_files), cmocka_unit_test(addresses),
        cmocka_unit_test(hosts_and_origins), cmocka_unit_test(ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

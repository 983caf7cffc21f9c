/* config_test.c - flags, the configuration file, and what is refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static int load(struct daemon_config *c, const char *const *flags, const char *config_home,
                enum daemon_config_action *action, char *err, size_t err_size)
{
    char *argv[32] = {"convod"};
    int argc = 1;
    for (; *flags; flags++) {
        argv[argc++] = (char *)*flags;
    }
    err[0] = '\0';
    return daemon_config_load(c, argc, argv, "/home/u", config_home, NULL, NULL, action, err, err_size);
}

static void flags_and_defaults(void **state)
{
    (void)state;
    struct daemon_config c;
    enum daemon_config_action action;
    char err[256];
    const char *flags[] = {"--model",        "m.gguf",
                           "--kv-bytes=2G",  "--ctx",
                           "4096",           "--allow-origin",
                           "https://a",      "--allow-origin=https://b",
                           "--check-config", NULL};
    assert_int_equal(load(&c, flags, "/nonexistent", &action, err, sizeof(err)), 0);
    assert_int_equal(action, DAEMON_CHECK);
    assert_string_equal(c.model, "m.gguf");
    assert_string_equal(c.listen, "127.0.0.1:8642");
    assert_string_equal(c.data, "/home/u/.local/share/convod");
    assert_string_equal(c.cache, "/home/u/.cache/convod");
    assert_int_equal(c.kv_bytes, 2ULL << 30);
    assert_int_equal(c.ctx, 4096);
    assert_int_equal(c.n_origins, 2);
    assert_string_equal(c.origins[1], "https://b");
    daemon_config_free(&c);
}

static void refused_flags(void **state)
{
    (void)state;
    static const char *const cases[][6] = {
        {"--model", "m", "--ctx", "-1", NULL},
        {"--model", "m", "--ctx", "99999999", NULL},
        {"--model", "m", "--ctx", "12x", NULL},
        {"--model", "m", "--kv-bytes", "12Q", NULL},
        {"--model", "m", "--kv-bytes", "99999999999999T", NULL},
        {"--model", "m", "--listen", "0.0.0.0:80", NULL},
        {"--model", "m", "--listen", "[::]:80", NULL},
        {"--model", "m", "--listen", "127.0.0.1", NULL},
        {"--model", "m", "--listen", "127.0.0.1:65536", NULL},
        {"--model", "m", "--listen", "example.org:80", NULL},
        {"--model", "m", "--kv-type", "q8_0", NULL},
        {"--model", "m", "--chat-format", "alpaca", NULL},
        {"--model", "m", "--log-level", "loud", NULL},
        {"--model", "m", "--nonsense", "1", NULL},
        {"--model", "m", "stray", NULL},
        {"--model", NULL},
        {"--data", "d", NULL},
        {"--model", "m", "--config", "/nonexistent/convod.conf", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct daemon_config c;
        enum daemon_config_action action;
        char err[256];
        if (load(&c, cases[i], "/nonexistent", &action, err, sizeof(err)) == 0 || !err[0]) {
            fail_msg("case %zu was accepted, or has no message", i);
        }
        daemon_config_free(&c);
    }
    struct daemon_config c;
    enum daemon_config_action action;
    char err[256];
    const char *open_address[] = {"--model", "m", "--listen", "0.0.0.0:80", "--token-file", "t", NULL};
    assert_int_equal(load(&c, open_address, "/nonexistent", &action, err, sizeof(err)), 0);
    daemon_config_free(&c);
}

static void files(void **state)
{
    (void)state;
    char home[] = "/tmp/convod_config_XXXXXX", path[64];
    assert_non_null(mkdtemp(home));
    snprintf(path, sizeof(path), "%s/convod", home);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/convod/convod.conf", home);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("# a comment\n\n  model = /m with space.gguf  \nctx=100\nidle-seconds = 5\nallow-host = box\n", f);
    fclose(f);
    struct daemon_config c;
    enum daemon_config_action action;
    char err[256];
    const char *flags[] = {"--ctx", "200", NULL};
    assert_int_equal(load(&c, flags, home, &action, err, sizeof(err)), 0);
    assert_string_equal(c.model, "/m with space.gguf");
    assert_int_equal(c.ctx, 200); /* the flag wins */
    assert_int_equal(c.idle_seconds, 5);
    assert_string_equal(c.hosts[0], "box");
    daemon_config_free(&c);
    const char *explicit_file[] = {"--config", path, NULL};
    assert_int_equal(load(&c, explicit_file, "/nonexistent", &action, err, sizeof(err)), 0);
    assert_int_equal(c.ctx, 100);
    daemon_config_free(&c);
    static const char *const bad[] = {"nonsense = 1\n", "model\n", "ctx = many\n", "= 3\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        memset(&c, 0, sizeof(c));
        assert_int_equal(daemon_config_parse(&c, bad[i], strlen(bad[i]), "file", err, sizeof(err)), -EINVAL);
        assert_non_null(strstr(err, "file:1"));
        daemon_config_free(&c);
    }
    memset(&c, 0, sizeof(c));
    assert_int_equal(daemon_config_parse(&c, "ctx = 1\0", 8, "file", err, sizeof(err)), -EINVAL);
    assert_int_equal(daemon_config_parse(&c, "ctx = 7", 7, "file", err, sizeof(err)), 0);
    assert_int_equal(c.ctx, 7);
    /* One origin past the limit. */
    for (int i = 0; i <= DAEMON_ORIGINS_MAX; i++) {
        int rc = daemon_config_parse(&c, "allow-origin = x", 16, "file", err, sizeof(err));
        assert_int_equal(rc, i == DAEMON_ORIGINS_MAX ? -EINVAL : 0);
    }
    daemon_config_free(&c);
    unlink(path);
    snprintf(path, sizeof(path), "%s/convod", home);
    rmdir(path);
    rmdir(home);
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},           {"1000", 1000}, {"512M", 512ULL << 20}, {"8G", 8ULL << 30},
                {"8g", 8ULL << 30}, {"1KiB", 1024}, {"2MB", 2ULL << 20},    {"3T", 3ULL << 40}};
    static const char *const bad[] = {"", "-1", "M", "1.5G", "1 G", "8GG", "8Gi", "0x10", "99999999999999999999"};
    uint64_t n;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        assert_int_equal(daemon_bytes_parse(good[i].text, &n), 0);
        assert_int_equal(n, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (daemon_bytes_parse(bad[i], &n) != -EINVAL) {
            fail_msg("`%s` was accepted", bad[i]);
        }
    }
}

static void help(void **state)
{
    (void)state;
    char *text = daemon_config_help();
    assert_non_null(text);
    static const char *const flags[] = {
        "--model ",      "--data ",         "--listen ",       "--ctx ",         "--backend ",     "--threads ",
        "--config ",     "--kv-type ",      "--kv-bytes ",     "--ram-bytes ",   "--disk-bytes ",  "--chat-format ",
        "--token-file ", "--allow-origin ", "--idle-seconds ", "--max-running ", "--check-config", "--version"};
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        if (!strstr(text, flags[i])) {
            fail_msg("%s is not in --help", flags[i]);
        }
    }
    free(text);
}

static void read_text(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        print_message("skip: not run from the source folder\n");
        skip();
    }
    text[fread(text, 1, size - 1, f)] = '\0';
    assert_true(feof(f));
    fclose(f);
}

/* Both manual pages tell of every option, as they spell it. */
static void manual_pages(void **state)
{
    (void)state;
    static char page[65536], file_page[65536];
    read_text("docs/convod.1", page, sizeof(page));
    read_text("docs/convod.conf.5", file_page, sizeof(file_page));
    char *help_text = daemon_config_help();
    assert_non_null(help_text);
    for (const char *p = strstr(help_text, "\n  --"); p; p = strstr(p + 1, "\n  --")) {
        char option[128] = "\\-\\-", key[128] = ".BI ";
        size_t n = strlen(option), m = strlen(key);
        for (const char *c = p + 5; *c != ' '; c++) {
            n += (size_t)snprintf(option + n, sizeof(option) - n, *c == '-' ? "\\-" : "%c", *c);
            m += (size_t)snprintf(key + m, sizeof(key) - m, *c == '-' ? "\\-" : "%c", *c);
        }
        snprintf(key + m, sizeof(key) - m, " \"");
        if (!strstr(page, option)) {
            fail_msg("%s is not in docs/convod.1", option);
        }
        static const char *const only_options[] = {"config", "check\\-config", "help", "version"};
        bool option_only = false;
        for (size_t i = 0; i < sizeof(only_options) / sizeof(*only_options); i++) {
            option_only |= strncmp(key + 4, only_options[i], m - 4) == 0;
        }
        if (!option_only && !strstr(file_page, key)) {
            fail_msg("`%s` is not in docs/convod.conf.5", key);
        }
    }
    free(help_text);
}

/* The example that is installed must be one that we accept, and name every key. */
static void example_file(void **state)
{
    (void)state;
    char text[16384] = "", enabled[16384] = "", err[256];
    read_text("systemd/convod.conf.example", text, sizeof(text));
    struct daemon_config c = {0};
    assert_int_equal(daemon_config_parse(&c, text, strlen(text), "convod.conf", err, sizeof(err)), 0);
    daemon_config_free(&c);
    /* Every "#key = value" line, taken as a setting. */
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#' && line[1] != ' ' && strchr(line, '=')) {
            strcat(enabled, line + 1);
            strcat(enabled, "\n");
        }
    }
    memset(&c, 0, sizeof(c));
    if (daemon_config_parse(&c, enabled, strlen(enabled), "convod.conf", err, sizeof(err))) {
        fail_msg("%s", err);
    }
    char *help_text = daemon_config_help();
    for (const char *p = strstr(help_text, "\n  --"); p; p = strstr(p + 1, "\n  --")) {
        char key[64];
        snprintf(key, sizeof(key), "%.*s = ", (int)strcspn(p + 5, " "), p + 5);
        static const char *const only_flags[] = {
            "config = ", "check-config = ", "help = ", "version = ", "model = ", "data = ", "cache = "};
        bool skip_it = false;
        for (size_t i = 0; i < sizeof(only_flags) / sizeof(*only_flags); i++) {
            skip_it |= strcmp(key, only_flags[i]) == 0;
        }
        if (!skip_it && !strstr(enabled, key)) {
            fail_msg("%s is not in systemd/convod.conf.example", key);
        }
    }
    free(help_text);
    daemon_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_and_defaults),
        cmocka_unit_test(refused_flags),
        cmocka_unit_test(files),
        cmocka_unit_test(sizes),
        cmocka_unit_test(help),
        cmocka_unit_test(manual_pages),
        cmocka_unit_test(example_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

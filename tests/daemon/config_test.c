/* config_test.c - flags, the configuration file, and what is refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

static int load(struct daemon_config *c, const char *const *flags, const char *config_home,
                enum daemon_config_action *action, struct daemon_faults *faults)
{
    *faults = (struct daemon_faults){0};
    char *argv[32] = {"convod"};
    int argc = 1;
    for (; *flags; flags++) {
        argv[argc++] = (char *)*flags;
    }
    return daemon_config_load(c, argc, argv, "/home/u", config_home, NULL, NULL, action, faults);
}

static void flags_and_defaults(void **state)
{
    (void)state;
    struct daemon_config c;
    enum daemon_config_action action;
    struct daemon_faults faults;
    const char *flags[] = {"--model",        "m.gguf",
                           "--kv-bytes=2G",  "--ctx",
                           "4096",           "--allow-origin",
                           "https://a",      "--allow-origin=https://b",
                           "--check-config", NULL};
    assert_int_equal(load(&c, flags, "/nonexistent", &action, &faults), 0);
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
        {"--model", "m", "--request-bytes", "1", NULL},
        {"--model", "m", "--allow-host", "http://box.lan/", NULL},
        {"--model", "m", "--allow-host", "two words", NULL},
        {"--model", "m", "--allow-host", "box.lan:80", NULL},
        {"--model", "m", "--allow-host", "", NULL},
        {"--model", "m", "--allow-origin", "box.lan:80", NULL},
        {"--model", "m", "--allow-origin", "https://a b", NULL},
        {"--model", "m", "--allow-origin", "https://a/", NULL},
        {"--model", "m", "--allow-origin", "https://a:0", NULL},
        {"--model", "m", "--allow-origin", "https://a:65536", NULL},
        {"--model", "m", "--allow-origin", "https://", NULL},
        {"--model", "m", "--allow-origin", "https://:80", NULL},
        {"--model", "m", "--allow-origin", "https://[::1", NULL},
        {"--model", "m", "--allow-origin", "https://::1", NULL},
        {"--model", "m", "--allow-origin", "https://[box]", NULL},
        {"--model", "m", "--allow-origin", "://a", NULL},
        {"--model", "m", "--data=~/convod", NULL},
        {"--model", "m", "--nonsense", "1", NULL},
        {"--model", "m", "stray", NULL},
        {"--model", NULL},
        {"--model", "", NULL},
        {"--data", "d", NULL},
        {"--model", "m", "--config", "/nonexistent/convod.conf", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct daemon_config c;
        enum daemon_config_action action;
        struct daemon_faults faults;
        if (load(&c, cases[i], "/nonexistent", &action, &faults) == 0 || faults.n != 1) {
            fail_msg("case %zu was accepted, or has not one message", i);
        }
        daemon_faults_free(&faults);
        daemon_config_free(&c);
    }
    struct daemon_config c;
    enum daemon_config_action action;
    struct daemon_faults faults;
    const char *open_address[] = {"--model", "m", "--listen", "0.0.0.0:80", "--token-file", "t", NULL};
    assert_int_equal(load(&c, open_address, "/nonexistent", &action, &faults), 0);
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
    struct daemon_faults faults;
    const char *flags[] = {"--ctx", "200", NULL};
    assert_int_equal(load(&c, flags, home, &action, &faults), 0);
    assert_string_equal(c.model, "/m with space.gguf");
    assert_int_equal(c.ctx, 200); /* the flag wins */
    assert_int_equal(c.idle_seconds, 5);
    assert_string_equal(c.hosts[0], "box");
    daemon_config_free(&c);
    const char *explicit_file[] = {"--config", path, NULL};
    assert_int_equal(load(&c, explicit_file, "/nonexistent", &action, &faults), 0);
    assert_int_equal(c.ctx, 100);
    daemon_config_free(&c);
    unlink(path);
    snprintf(path, sizeof(path), "%s/convod", home);
    rmdir(path);
    rmdir(home);
}

/* Parses a file's text; the faults are the caller's. */
static struct daemon_faults parse(struct daemon_config *c, const char *text)
{
    struct daemon_faults faults = {0};
    memset(c, 0, sizeof(*c));
    int rc = daemon_config_parse(c, text, strlen(text), "file", &faults);
    assert_int_equal(rc, faults.n ? -EINVAL : 0);
    return faults;
}

/* Values as people write them: quotes, and comments behind them. */
static void values(void **state)
{
    (void)state;
    static const struct {
        const char *line, *model;
    } good[] = {
        {"model = m.gguf # the small one", "m.gguf"},
        {"model = m.gguf\t#the small one", "m.gguf"},
        {"model = m#1.gguf", "m#1.gguf"},
        {"model = \"a # b.gguf\"", "a # b.gguf"},
        {"model = \" a \"  # with blanks", " a "},
        {"model = 'it said \"x\"'", "it said \"x\""},
        {"model = Ann's.gguf", "Ann's.gguf"},
        {"model = \"Ann's.gguf\"#", "Ann's.gguf"},
        {"model=m=n", "m=n"},
        {"\xef\xbb\xbfmodel = m", "m"},
        {"  model\t=\tm\r\n", "m"},
    };
    static const char *const bad[] = {
        "model = \"m",
        "model = \"m\" n",
        "model = \"m\"n",
        "model = a \"b\"",
        "model =",
        "model = # none",
        "model = \"\"",
        "model",
        "model: m",
        "[convod]",
        "= 3",
        "model = a\x01",
        "nonsense = 1",
        "ctx = many",
        "ctx = \"1",
        "ctx = 1 2",
        "ctx = 0x10",
        "ctx = -1",
        "listen = here",
        "max-running = 0",
        "max-running = 257",
        "max-waiting = 0",
        "idle-seconds = 0",
        "Model = m",
        "gpu-memory-fraction = 0",
        "gpu-memory-fraction = 1.01",
        "gpu-memory-fraction = 90 %",
        "gpu-memory-fraction = 0x1p-1",
        "gpu-memory-fraction = nan",
        "gpu-memory-fraction = .",
        "gpu-memory-fraction = 0.5.5",
        "model = ~/m.gguf",
        "token-file = \"~/tokens\"",
    };
    struct daemon_config c;
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct daemon_faults faults = parse(&c, good[i].line);
        if (faults.n || strcmp(c.model, good[i].model) != 0) {
            fail_msg("`%s`: %s", good[i].line, faults.n ? faults.lines[0] : c.model);
        }
        daemon_config_free(&c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct daemon_faults faults = parse(&c, bad[i]);
        if (faults.n != 1 || strncmp(faults.lines[0], "file:1: ", 8) != 0) {
            fail_msg("`%s` was accepted, or has not one message with its line", bad[i]);
        }
        daemon_faults_free(&faults);
        daemon_config_free(&c);
    }
    struct daemon_faults faults = {0};
    memset(&c, 0, sizeof(c));
    assert_int_equal(daemon_config_parse(&c, "ctx = 1\0", 8, "file", &faults), -EINVAL);
    daemon_faults_free(&faults);
    daemon_config_free(&c);
}

/* All faults are told, with line, key and what is allowed; a key counts once. */
static void every_fault(void **state)
{
    (void)state;
    struct daemon_config c;
    struct daemon_faults faults = parse(&c, "threads = x\n# fine\nctx = 7\nlog-level = loud\nkv_type = f16\nctx = 8\n");
    static const char *const told[] = {
        "file:1: threads must be a number from 0 to 1024, not `x`",
        "file:4: log-level must be error, warning, info or debug, not `loud`",
        "file:5: unknown key `kv_type`; is `kv-type` meant?",
        "file:6: ctx was set already, in line 3",
    };
    assert_int_equal(faults.n, sizeof(told) / sizeof(*told));
    for (size_t i = 0; i < faults.n; i++) {
        assert_string_equal(faults.lines[i], told[i]);
    }
    assert_int_equal(c.ctx, 7);
    daemon_faults_free(&faults);
    daemon_config_free(&c);
    /* One origin past the limit, and more faults than are told. */
    char text[8192] = "";
    for (int i = 0; i <= DAEMON_ORIGINS_MAX; i++) {
        strcat(text, "allow-origin = http://x\n");
    }
    faults = parse(&c, text);
    assert_int_equal(faults.n, 1);
    assert_int_equal(c.n_origins, DAEMON_ORIGINS_MAX);
    daemon_faults_free(&faults);
    daemon_config_free(&c);
    text[0] = '\0';
    for (int i = 0; i < DAEMON_FAULTS_MAX + 3; i++) {
        strcat(text, "what\n");
    }
    faults = parse(&c, text);
    assert_int_equal(faults.n, DAEMON_FAULTS_MAX);
    assert_int_equal(faults.left_out, 3);
    daemon_faults_free(&faults);
    daemon_config_free(&c);
    /* Flags and file together. */
    enum daemon_config_action action;
    const char *flags[] = {"--modl", "m", "--ctx", "x", "--listen", "192.0.2.1:80", "stray", "--data", NULL};
    assert_int_equal(load(&c, flags, "/nonexistent", &action, &faults), -EINVAL);
    assert_int_equal(faults.n, 6); /* m belongs to --modl */
    assert_non_null(strstr(faults.lines[0], "is `--model` meant"));
    daemon_faults_free(&faults);
    daemon_config_free(&c);
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
    /* It fits a terminal of 80 columns. */
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        if (strcspn(line, "\n") >= 80) {
            fail_msg("too long: %.*s", (int)strcspn(line, "\n"), line);
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
        static const char *const only_options[] = {"config", "check\\-config", "profile", "verify",
                                                   "repair", "help",           "version"};
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

/* What a request does not say, and in which order it acts. */
static void manual_of_sampling(void **state)
{
    (void)state;
    static char page[65536];
    read_text("docs/convod.1", page, sizeof(page));
    const struct engine_sampling d = ENGINE_SAMPLING_DEFAULT;
    const struct {
        const char *name;
        double value;
    } values[] = {{"temperature", d.temperature},
                  {"top_k", d.top_k},
                  {"top_p", d.top_p},
                  {"min_p", d.min_p},
                  {"repetition_penalty", d.repetition_penalty},
                  {"presence_penalty", d.presence_penalty},
                  {"frequency_penalty", d.frequency_penalty}};
    const char *section = strstr(page, ".SH SAMPLING"), *order = section ? strstr(section, "in this order") : NULL;
    assert_non_null(order);
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        char text[64];
        snprintf(text, sizeof(text), "\"%s %.3g\"", values[i].name, values[i].value);
        const char *at = strstr(section, text);
        if (!at || at > order) {
            fail_msg("%s is not in docs/convod.1", text);
        }
    }
    static const char *const acts[] = {
        "logit_bias", "repetition penalty", "presence", "form", "temperature", "top_k", "top_p", "min_p"};
    for (size_t i = 0; i < sizeof(acts) / sizeof(*acts); i++) {
        order = strstr(order, acts[i]);
        if (!order) {
            fail_msg("%s is not where it acts", acts[i]);
        }
    }
}

/* The example that is installed must be one that we accept, and name every key. */
static void example_file(void **state)
{
    (void)state;
    char text[16384] = "", enabled[16384] = "";
    read_text("systemd/convod.conf.example", text, sizeof(text));
    struct daemon_config c = {0};
    struct daemon_faults faults = {0};
    assert_int_equal(daemon_config_parse(&c, text, strlen(text), "convod.conf", &faults), 0);
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
    if (daemon_config_parse(&c, enabled, strlen(enabled), "convod.conf", &faults)) {
        fail_msg("%s", faults.lines[0]);
    }
    char *help_text = daemon_config_help();
    for (const char *p = strstr(help_text, "\n  --"); p; p = strstr(p + 1, "\n  --")) {
        char key[64];
        snprintf(key, sizeof(key), "%.*s = ", (int)strcspn(p + 5, " "), p + 5);
        static const char *const only_flags[] = {"config = ", "check-config = ", "profile = ", "verify = ", "repair = ",
                                                 "help = ",   "version = ",      "model = ",   "data = ",   "cache = "};
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
        cmocka_unit_test(values),
        cmocka_unit_test(every_fault),
        cmocka_unit_test(sizes),
        cmocka_unit_test(help),
        cmocka_unit_test(manual_pages),
        cmocka_unit_test(manual_of_sampling),
        cmocka_unit_test(example_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

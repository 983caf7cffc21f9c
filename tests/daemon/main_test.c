/* main_test.c - the program as a process: exit codes, the ready line, signals. The double stands in for the model. */
int convod_main(int argc, char **argv);
#define main convod_main
#include "daemon/main.c"
#undef main

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/daemon/harness.h"

struct child {
    pid_t pid;
    int out; /* standard output and error */
};

static struct child start(const char *const *args, void (*before)(void))
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    struct child c = {.pid = fork(), .out = pipes[0]};
    assert_true(c.pid >= 0);
    if (c.pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        unsetenv("NOTIFY_SOCKET");
        setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
        if (before) {
            before();
        }
        char *argv[32] = {"convod"};
        int argc = 1;
        while (*args) {
            argv[argc++] = (char *)*args++;
        }
        exit(convod_main(argc, argv));
    }
    close(pipes[1]);
    return c;
}

/* Reads until `what` has come; the port behind it. */
static int expect(struct child *c, const char *what, char *text, size_t size)
{
    size_t len = strlen(text);
    const char *found = NULL;
    while (!found || !strchr(found, '\n')) {
        ssize_t n = len + 1 < size ? read(c->out, text + len, 1) : 0;
        if (n <= 0) {
            fail_msg("no `%s` in: %s", what, text);
            return -1;
        }
        text[++len - 1 + (size_t)n] = '\0';
        found = strstr(text, what);
    }
    return atoi(found + strlen(what));
}

static int wait_exit(struct child *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    close(c->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define SERVE "--model", "/dev/null", "--data", ".", "--listen", "127.0.0.1:0"

static void short_answers(void **state)
{
    (void)state;
    static const struct {
        const char *args[12];
        const char *text;
        int status;
    } cases[] = {
        {{"--help"}, "Usage: convod", 0},
        {{"--version"}, "convod 0.", 0},
        {{"--model", "/dev/null", "--data", "/x", "--check-config"}, "configuration is fine", 0},
        {{"--model", "/nonexistent/m.gguf", "--data", "/x", "--check-config"}, "model /nonexistent", 2},
        {{"--model", "/dev/null", "--token-file", "/nonexistent", "--check-config"}, "token file /nonexistent", 2},
        {{"--model", "/dev/null", "--data", "/x", "--profile"}, "2 sequences of 1 new token behind 30: 1.500 ms", 0},
        {{SERVE, "--backend", "cuda", "--profile"}, "the double was told to fail", 1},
        {{"--nonsense"}, "unknown flag", 2},
        {{"verify", "/tmp"}, "unexpected argument `verify`; is `--verify` meant?", 2},
        {{NULL}, "no model", 2},
        {{SERVE, "--token-file", "/nonexistent"}, "token file /nonexistent", 2},
        {{"--model", "/nonexistent/m.gguf", "--data", "/x"}, "model /nonexistent", 2},
        {{SERVE, "--backend", "cuda", "--check-config"}, "the double was told to fail", 2},
        {{"--model", "/tmp", "--data", "/x", "--check-config"}, "model /tmp: Is a directory", 2},
        {{"--model", "/dev/null", "--data", "/proc/convod", "--check-config"}, "data /proc/convod: ", 2},
        {{"--model", "/dev/null", "--data", "/dev/null", "--check-config"}, "data /dev/null: Not a directory", 2},
        {{SERVE, "--cache", "/nonexistent/a/b", "--check-config"}, "cache /nonexistent/a/b: ", 2},
        {{SERVE, "--ram-bytes", "900T", "--check-config"}, "command line: ram-bytes: ", 2},
        {{SERVE, "--disk-bytes", "900000T", "--check-config"}, "command line: disk-bytes: ", 2},
        {{SERVE, "--backend", "bogus", "--check-config"}, "backend must be", 2},
        {{SERVE, "--allow-origin", "http://localhost:3000/", "--check-config"}, "allow-origin must be", 2},
        {{"token", "list", "--data", "/proc/self"}, "no tokens in /proc/self;", 0},
        {{"token", "add", "ann", "--config", "/nonexistent"}, "convod: /nonexistent: No such file", 2},
        {{"token", "list", "--data", "/tmp/convod-no-such-folder"}, "/tmp/convod-no-such-folder: No such file", 1},
        {{"token", "list", "--config=/nonexistent"}, "convod: /nonexistent: No such file", 2},
        {{"token", "add", "ann", "--conversations", "many"}, "--conversations must be a number from 0", 2},
        {{"token", "add", "ann", "--ram-bytes=1X"}, "--ram-bytes must be a size such as", 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct child c = start(cases[i].args, NULL);
        char text[16384] = "";
        expect(&c, cases[i].text, text, sizeof(text));
        while (read(c.out, text, sizeof(text)) > 0) {
        }
        assert_int_equal(wait_exit(&c), cases[i].status);
    }
}

static void signals_end_it(void **state)
{
    (void)state;
    static const char *const args[] = {SERVE, NULL};
    static const int list[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        struct child c = start(args, NULL);
        char text[4096] = "";
        struct harness h = {.port = expect(&c, "ready on http://127.0.0.1:", text, sizeof(text))};
        int fd = ws_dial(&h), code;
        ws_create(fd, "hold one two", NULL);
        cJSON *e = ws_until(fd, "response.output_text.delta");
        cJSON_Delete(e);
        assert_int_equal(kill(c.pid, SIGUSR1), 0); /* says nothing, and what comes behind it is still heard */
        assert_int_equal(kill(c.pid, SIGHUP), 0);
        expect(&c, "tokens read again", text, sizeof(text));
        assert_int_equal(kill(c.pid, list[i]), 0); /* the turn would go on for ever */
        e = ws_until(fd, "response.incomplete");
        cJSON_Delete(e);
        assert_null(ws_read(fd, &code));
        assert_int_equal(code, 1001);
        close(fd);
        assert_int_equal(wait_exit(&c), 0);
    }
}

static void hold_loading(void)
{
    fake_hold_loading(true);
}

static char home[64];

/* Of an account that was made a moment ago. */
static void fresh_home(void)
{
    setenv("HOME", home, 1);
    unsetenv("XDG_DATA_HOME");
    unsetenv("XDG_CACHE_HOME");
}

/* The folders by default are made with what they are in, and --check-config knows that. */
static void fresh_account(void **state)
{
    (void)state;
    static const char *const check[] = {"--model", "/dev/null", "--check-config", NULL};
    static const char *const serve[] = {"--model", "/dev/null", "--listen", "127.0.0.1:0", NULL};
    static const char *const token[] = {"token", "add", "ann", NULL};
    static const char *const made[] = {
        "/.local/share/convod/tokens", "/.local/share/convod", "/.local/share", "/.local", "/.cache/convod", "/.cache"};
    struct stat st;
    char text[4096] = "", path[128];
    snprintf(home, sizeof(home), "/tmp/convod-home-XXXXXX");
    assert_non_null(mkdtemp(home));
    struct child c = start(check, fresh_home);
    expect(&c, "configuration is fine", text, sizeof(text));
    assert_int_equal(wait_exit(&c), 0);
    assert_int_equal(rmdir(home), 0); /* nothing is in it */
    assert_int_equal(mkdir(home, 0700), 0);
    c = start(serve, fresh_home);
    text[0] = '\0';
    expect(&c, "ready on http://127.0.0.1:", text, sizeof(text));
    snprintf(path, sizeof(path), "%s/.local/share/convod", home);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(kill(c.pid, SIGTERM), 0);
    assert_int_equal(wait_exit(&c), 0);
    for (size_t i = 1; i < sizeof(made) / sizeof(*made); i++) {
        snprintf(path, sizeof(path), "%s%s", home, made[i]);
        (void)rmdir(path);
    }
    c = start(token, fresh_home);
    text[0] = '\0';
    expect(&c, "No convod has used", text, sizeof(text)); /* as where the folder is the wrong one */
    expect(&c, ".local/share/convod; it is shown", text, sizeof(text));
    expect(&c, "convod_", text, sizeof(text));
    assert_int_equal(wait_exit(&c), 0);
    for (size_t i = 0; i < sizeof(made) / sizeof(*made); i++) {
        snprintf(path, sizeof(path), "%s%s", home, made[i]);
        (void)remove(path);
    }
    assert_int_equal(rmdir(home), 0);
}

static void fail_loading(void)
{
    fake_fail_loading(true);
}

static void loading(void **state)
{
    (void)state;
    /* Stopped before the model is there. */
    static const char *const args[] = {SERVE, NULL};
    char text[4096] = "";
    struct child c = start(args, hold_loading);
    struct harness h = {.port = expect(&c, "loading, http://127.0.0.1:", text, sizeof(text))};
    struct reply r = call(&h, "GET", "/ready", NULL, NULL);
    assert_int_equal(r.status, 503);
    reply_free(&r);
    assert_int_equal(kill(c.pid, SIGTERM), 0);
    assert_int_equal(wait_exit(&c), 0);
    text[0] = '\0';
    c = start(args, fail_loading);
    expect(&c, "the double was told to fail", text, sizeof(text));
    assert_int_equal(wait_exit(&c), 2); /* a model that is damaged: another start would find the same */
}

static void address_in_use(void **state)
{
    (void)state;
    static const char *const args[] = {SERVE, NULL};
    struct child c = start(args, NULL);
    char text[4096] = "", listen_at[64], second[4096] = "";
    int port = expect(&c, "ready on http://127.0.0.1:", text, sizeof(text));
    snprintf(listen_at, sizeof(listen_at), "127.0.0.1:%d", port);
    const char *again[] = {SERVE, "--listen", listen_at, NULL};
    struct child other = start(again, NULL);
    expect(&other, "cannot listen on 127.0.0.1:", second, sizeof(second));
    assert_int_equal(wait_exit(&other), 1);
    assert_int_equal(kill(c.pid, SIGTERM), 0);
    assert_int_equal(wait_exit(&c), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_answers),  cmocka_unit_test(signals_end_it), cmocka_unit_test(loading),
        cmocka_unit_test(address_in_use), cmocka_unit_test(fresh_account),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

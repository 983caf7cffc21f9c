/* notify_test.c - what systemd is told during a life: loading, ready, alive, stopping. Also the log's form. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "tests/daemon/harness.h"

#include "daemon/daemon.h"

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path));
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(
        bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))), 0);
    return fd;
}

/* Reads datagrams until one has this. */
static void expect(int fd, const char *what)
{
    char text[1024];
    for (;;) {
        ssize_t n = recv(fd, text, sizeof(text) - 1, 0);
        if (n < 0) {
            fail_msg("no datagram with %s", what);
            return;
        }
        text[n] = '\0';
        if (strstr(text, what)) {
            return;
        }
    }
}

static void datagrams(void **state)
{
    (void)state;
    char name[64];
    snprintf(name, sizeof(name), "@convod-test-%d", (int)getpid());
    int fd = listen_at(name);
    assert_int_equal(notify_send(name, "READY=1\nSTATUS=%s", "fine"), 0);
    expect(fd, "READY=1\nSTATUS=fine");
    close(fd);
    assert_int_equal(notify_send(NULL, "READY=1"), 0);
    assert_int_equal(notify_send("", "READY=1"), 0);
    assert_int_equal(notify_send("relative", "READY=1"), -EINVAL);
    assert_true(notify_send("/nonexistent/socket", "READY=1") < 0);
    char longest[200];
    memset(longest, 'a', sizeof(longest));
    longest[0] = '/';
    longest[150] = '\0';
    assert_int_equal(notify_send(longest, "READY=1"), -EINVAL);
}

static void *serve(void *arg)
{
    server_run(arg);
    return NULL;
}

static void life(void **state)
{
    (void)state;
    char path[64], err[256];
    snprintf(path, sizeof(path), "/tmp/convod-notify-%d", (int)getpid());
    int fd = listen_at(path);
    fake_reset();
    char *argv[] = {"convod", "--model", "m", "--data", "d", "--listen", "127.0.0.1:0", NULL};
    struct daemon_config config;
    struct daemon_faults faults = {0};
    enum daemon_config_action action;
    assert_int_equal(daemon_config_load(&config, 7, argv, NULL, NULL, NULL, NULL, &action, &faults), 0);
    struct daemon_log log = {.fd = -1, .level = LOG_ERR};
    struct server_opts opts = {.config = &config, .log = &log, .notify_socket = path, .watchdog_us = 100000};
    struct server *s;
    assert_int_equal(server_start(&opts, &s, err, sizeof(err)), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, serve, s), 0);
    expect(fd, "EXTEND_TIMEOUT_USEC=");
    expect(fd, "READY=1");
    expect(fd, "WATCHDOG=1");
    server_stop(s);
    expect(fd, "STOPPING=1");
    pthread_join(thread, NULL);
    server_free(s);
    daemon_config_free(&config);
    close(fd);
    unlink(path);
}

static void log_lines(void **state)
{
    (void)state;
    char path[] = "/tmp/convod_log_XXXXXX", text[4096] = "", longest[3000];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct daemon_log log = {.fd = fd, .level = LOG_INFO, .journal = true};
    daemon_log(&log, LOG_WARNING, "one\ntwo %s", "\x1b[31m");
    daemon_log(&log, LOG_ERR, "%s",
               "\xc2\x9b"
               "2J \xff \xc3 \xe2\x82\xac\xc3\xa9\xed\xa0\x80");
    daemon_log(&log, LOG_DEBUG, "not written");
    log.journal = false;
    log.times = true;
    daemon_log(&log, LOG_INFO, "at");
    log.times = false;
    daemon_log(&log, LOG_INFO, "plain \xe2\x80\xae\xe2\x81\xa6\xe2\x80\x94");
    memset(longest, 'l', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    daemon_log(&log, LOG_INFO, "%s", longest);
    assert_true(pread(fd, text, sizeof(text) - 1, 0) > 0);
    static const char first[] = "<4>one?two ?[31m\n<3>??2J ? ? \xe2\x82\xac\xc3\xa9???\n";
    assert_memory_equal(text, first, sizeof(first) - 1);
    struct tm when;
    static const char timed[] = " convod: at\n";
    const char *rest = strptime(text + sizeof(first) - 1, "%Y-%m-%d %H:%M:%S", &when);
    assert_non_null(rest);
    assert_memory_equal(rest, timed, sizeof(timed) - 1);
    rest += sizeof(timed) - 1;
    static const char expected[] = "convod: plain ??????\xe2\x80\x94\nconvod: lll";
    assert_memory_equal(rest, expected, sizeof(expected) - 1);
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_true(strlen(rest) < 1100);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(datagrams),
        cmocka_unit_test(life),
        cmocka_unit_test(log_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* main.c - the convod program: settings, signals, one server.
 *
 * Signals are blocked everywhere and taken by one thread, which tells the server through its event queue.
 */
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/tokens.h"

#define EXIT_USAGE 2
#define KEPT_BYTES (64 * 1024 * 1024)

static int log_level(const char *name)
{
    return strcmp(name, "error") == 0     ? LOG_ERR
           : strcmp(name, "warning") == 0 ? LOG_WARNING
           : strcmp(name, "debug") == 0   ? LOG_DEBUG
                                          : LOG_INFO;
}

/* JOURNAL_STREAM holds "device:inode" of the journal's socket; it is ours when standard error is that socket. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           st.st_dev == device && st.st_ino == inode;
}

/* A file gets lines as they are; who reads a terminal or a pipe has a clock. */
static bool stderr_is_file(void)
{
    struct stat st;
    return fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode);
}

struct signals {
    struct server *server;
    sigset_t set;
    int fd;    /* signalfd */
    int watch; /* inotify of the data folder; -1: it cannot be watched */
};

/* Whether `convod token` has put a new file in place. What came is taken out. */
static bool tokens_changed(int watch)
{
    _Alignas(struct inotify_event) char events[4096];
    bool changed = false;
    ssize_t n;
    while ((n = read(watch, events, sizeof(events))) > 0) {
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const struct inotify_event *)(const void *)(events + at);
            changed |= (e->mask & IN_Q_OVERFLOW) || (e->len > 0 && strcmp(e->name, TOKENS_FILE) == 0);
            at += (ssize_t)(sizeof(*e) + e->len);
        }
    }
    return changed;
}

/* One thread for what reaches the process from outside, but requests. */
static void *take_signals(void *arg)
{
    struct signals *s = arg;
    struct pollfd fds[] = {{.fd = s->fd, .events = POLLIN}, {.fd = s->watch, .events = POLLIN}};
    for (;;) {
        struct signalfd_siginfo info;
        if (poll(fds, 2, -1) < 0) {
            continue;
        }
        if (fds[1].revents && tokens_changed(s->watch)) {
            server_reload(s->server);
        }
        if (!fds[0].revents || read(s->fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
            continue;
        }
        if (info.ssi_signo == SIGUSR1 && info.ssi_pid == (uint32_t)getpid()) {
            return NULL; /* run() wants it to end; from others it says nothing */
        }
        if (info.ssi_signo == SIGHUP) {
            server_reload(s->server);
        } else if (info.ssi_signo != SIGUSR1) {
            server_stop(s->server);
        }
    }
}

/* Takes signals by descriptor, and sees when the tokens change. 0 or -1. */
static int signals_open(struct signals *s, const char *data, const struct daemon_log *log)
{
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGINT);
    sigaddset(&s->set, SIGHUP);
    sigaddset(&s->set, SIGUSR1);
    s->watch = -1;
    if (pthread_sigmask(SIG_BLOCK, &s->set, NULL) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR ||
        (s->fd = signalfd(-1, &s->set, SFD_CLOEXEC)) < 0) {
        return -1;
    }
    /* The folder is made here, so that it can be watched; what is wrong with it is told when it is opened. */
    (void)mkdir(data, 0700);
    s->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (s->watch < 0 || inotify_add_watch(s->watch, data, IN_MOVED_TO | IN_DELETE) < 0) {
        daemon_log(log, LOG_WARNING, "changed tokens are seen at SIGHUP only: %s: %s", data, strerror(errno));
    }
    return 0;
}

/* Whether a start would find the same again: then it is the settings, or what they name, that must be mended. */
static bool stays_wrong(int rc)
{
    return rc == -EBADMSG || rc == -ENOTSUP || rc == -EINVAL || rc == -ENOENT || rc == -EACCES || rc == -ENOTDIR ||
           rc == -EISDIR || rc == -EPERM;
}

static int run(const struct daemon_config *config, struct daemon_log log)
{
    struct signals signals;
    daemon_config_folders(config);
    if (signals_open(&signals, config->data, &log)) {
        daemon_log(&log, LOG_ERR, "signals cannot be set up");
        return EXIT_FAILURE;
    }
    /* A core file would hold conversations. */
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_CORE, &none) != 0) {
        daemon_log(&log, LOG_WARNING, "core files stay enabled: %s", strerror(errno));
    }
    struct rlimit files;
    rlim_t wanted = (rlim_t)config->max_connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < wanted) {
        files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
        if (setrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < wanted) {
            daemon_log(&log, LOG_WARNING, "only %llu open files are allowed; max-connections is %d",
                       (unsigned long long)files.rlim_cur, config->max_connections);
        }
    }
    const char *watchdog = getenv("WATCHDOG_USEC");
    struct server_opts opts = {
        .config = config,
        .log = &log,
        .notify_socket = getenv("NOTIFY_SOCKET"),
        .watchdog_us = watchdog ? strtoull(watchdog, NULL, 10) : 0,
        .progress_line = isatty(STDERR_FILENO) == 1,
    };
    char err[512] = "";
    int rc = server_start(&opts, &signals.server, err, sizeof(err));
    if (rc) {
        daemon_log(&log, LOG_ERR, "%s", err[0] ? err : strerror(-rc));
        return EXIT_FAILURE;
    }
    pthread_t thread;
    rc = pthread_create(&thread, NULL, take_signals, &signals);
    if (rc) {
        daemon_log(&log, LOG_ERR, "cannot start a thread: %s", strerror(rc));
        return EXIT_FAILURE;
    }
    rc = server_run(signals.server);
    if (server_loading(signals.server)) {
        /* The loading thread cannot be stopped, and nothing of it needs to be kept. */
        _exit(rc ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    if (pthread_kill(thread, SIGUSR1) == 0) {
        pthread_join(thread, NULL);
    }
    server_free(signals.server);
    daemon_log(&log, LOG_INFO, "stopped");
    return stays_wrong(rc) ? EXIT_USAGE : rc ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* Segments are read into buffers of some MiB that come and go. Mapped anew each time, the pages of these cost a sixth
 * to a third of a restore from RAM (11.4 against 7.9 ms for 1,878 tokens of a 0.5B model, 23.8 against 20.6 ms of
 * a 1.5B); kept, they are reused, and take 30 MB. */
static void keep_buffers(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}

/* Tells each fault in a line of its own; what was found wrong is none of our run's. */
static int tell_faults(const struct daemon_log *log, const struct daemon_faults *faults)
{
    for (size_t i = 0; i < faults->n; i++) {
        daemon_log(log, LOG_ERR, "%s", faults->lines[i]);
    }
    if (faults->left_out) {
        daemon_log(log, LOG_ERR, "and %zu more", faults->left_out);
    }
    return EXIT_USAGE;
}

static int print(const char *text)
{
    return text && fputs(text, stdout) != EOF && fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct daemon_config config;
    struct daemon_faults faults = {0};
    enum daemon_config_action action;
    struct daemon_log log = {
        .fd = STDERR_FILENO, .level = LOG_INFO, .journal = stderr_is_journal(), .times = stderr_is_file()};
    int status;
    if (command_run(argc, argv, &log, &status)) {
        return status;
    }
    keep_buffers();
    int rc = daemon_config_load(&config, argc, argv, getenv("HOME"), getenv("XDG_CONFIG_HOME"), getenv("XDG_DATA_HOME"),
                                getenv("XDG_CACHE_HOME"), &action, &faults);
    if (action == DAEMON_HELP) {
        char *help = daemon_config_help();
        status = print(help);
        free(help);
    } else if (action == DAEMON_VERSION) {
        status = print("convod " CONVOD_VERSION "\n");
    } else {
        if (rc == 0 || action == DAEMON_CHECK) {
            daemon_config_verify(&config, action == DAEMON_CHECK, &faults);
        }
        if (faults.n + faults.left_out) {
            status = tell_faults(&log, &faults);
        } else if (action == DAEMON_CHECK) {
            status = print("convod: the configuration is fine\n");
        } else if (action == DAEMON_PROFILE) {
            char err[512] = "";
            rc = daemon_profile(&config, err, sizeof(err));
            if (rc) {
                daemon_log(&log, LOG_ERR, "%s", err[0] ? err : strerror(-rc));
            }
            status = rc ? EXIT_FAILURE : EXIT_SUCCESS;
        } else {
            log.level = log_level(config.log_level);
            status = run(&config, log);
        }
    }
    daemon_faults_free(&faults);
    daemon_config_free(&config);
    return status;
}

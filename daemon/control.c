/* control.c - what an operator asks of a running daemon, through a socket of its data directory.
 *
 * It is a Unix socket in the abstract namespace, named by the directory's device and inode, so that nothing lies among
 * the data. Who may speak to it is told by the user of the peer's process: the daemon's own, or root; and who asks
 * looks whether it is the directory's owner who answers. A request is one line, the answer another:
 *
 *     backup ledger DIR      or: backup kv DIR          ->  ok       or: error MESSAGE
 *
 * One thread takes one request after the other; a backup takes as long as it takes, and ends soon when the daemon
 * stops.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "session/session.h"

#define LINE_MAX_  4600 /* a path, and what stands around it */
#define REQUEST_MS 5000 /* for a peer to say what it wants */

struct control {
    struct session *session;
    const struct daemon_log *log;
    int fd, stop;
    pthread_t thread;
};

/* The address of a data directory's socket, and that directory's owner. 0 or negative. */
static int address_of(const char *data, struct sockaddr_un *a, socklen_t *size, uid_t *owner)
{
    struct stat st;
    if (stat(data, &st) != 0) {
        return -errno;
    }
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "convod/%llx/%llx", (unsigned long long)st.st_dev,
                     (unsigned long long)st.st_ino);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    *owner = st.st_uid;
    return 0;
}

/* A line without its end, within the time. False: there is none. */
static bool read_line(int fd, int stop, int ms, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop, .events = POLLIN}};
        if (poll(p, stop < 0 ? 1 : 2, ms) <= 0 || (stop >= 0 && p[1].revents)) {
            return false;
        }
        ssize_t got = recv(fd, line + n, 1, 0);
        if (got <= 0) {
            return false;
        }
        if (line[n] == '\n') {
            line[n] = '\0';
            return true;
        }
        n++;
    }
    return false;
}

/* Whether the peer is this user's process, or root's. */
static bool peer_is(int fd, uid_t user)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == 0 || peer.uid == user);
}

static void serve(struct control *c, int fd)
{
    char line[LINE_MAX_], err[512] = "", answer[600];
    if (!peer_is(fd, geteuid()) || !read_line(fd, c->stop, REQUEST_MS, line, sizeof(line))) {
        return;
    }
    bool kv = strncmp(line, "backup kv /", 11) == 0;
    int rc = -EINVAL;
    if (kv || strncmp(line, "backup ledger /", 15) == 0) {
        const char *to = strchr(line, '/');
        daemon_log(c->log, LOG_INFO, "backup to %s begins", to);
        rc = session_backup(c->session, to, kv, err, sizeof(err));
        daemon_log(c->log, rc ? LOG_ERR : LOG_INFO, "backup to %s %s%s", to, rc ? "failed: " : "is complete",
                   rc ? err : "");
    }
    int n = rc ? snprintf(answer, sizeof(answer), "error %s\n", err[0] ? err : strerror(-rc))
               : snprintf(answer, sizeof(answer), "ok\n");
    if (n > 0) {
        (void)!send(fd, answer, (size_t)n, MSG_NOSIGNAL);
    }
}

static void *run(void *arg)
{
    struct control *c = arg;
    (void)pthread_setname_np(pthread_self(), "convod-control");
    for (;;) {
        struct pollfd p[2] = {{.fd = c->fd, .events = POLLIN}, {.fd = c->stop, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR) {
            return NULL;
        }
        if (p[1].revents) {
            return NULL;
        }
        int fd = p[0].revents ? accept4(c->fd, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            serve(c, fd);
            close(fd);
        }
    }
}

int control_start(const char *data, struct session *session, const struct daemon_log *log, struct control **out)
{
    struct control *c = calloc(1, sizeof(*c));
    if (!c) {
        return -ENOMEM;
    }
    c->session = session;
    c->log = log;
    struct sockaddr_un a;
    socklen_t size = 0;
    uid_t owner = 0;
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    c->stop = eventfd(0, EFD_CLOEXEC);
    int rc = c->fd < 0 || c->stop < 0 ? -errno : address_of(data, &a, &size, &owner);
    if (!rc && (bind(c->fd, (struct sockaddr *)&a, size) || listen(c->fd, 4))) {
        rc = -errno;
    }
    if (!rc) {
        rc = -pthread_create(&c->thread, NULL, run, c);
    }
    if (rc) {
        int fds[] = {c->fd, c->stop};
        for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
            if (fds[i] >= 0) {
                close(fds[i]);
            }
        }
        free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void control_stop(struct control *c)
{
    if (!c) {
        return;
    }
    session_backup_stop(c->session);
    uint64_t one = 1;
    (void)!write(c->stop, &one, sizeof(one));
    pthread_join(c->thread, NULL);
    close(c->fd);
    close(c->stop);
    free(c);
}

int control_backup(const char *data, const char *to, bool with_kv, char *err, size_t err_size)
{
    char line[LINE_MAX_];
    struct sockaddr_un a;
    socklen_t size = 0;
    uid_t owner = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 ? -errno : address_of(data, &a, &size, &owner);
    if (!rc && connect(fd, (struct sockaddr *)&a, size)) {
        rc = -errno;
    }
    if (!rc && !peer_is(fd, owner)) {
        rc = -EPERM;
    }
    int n = snprintf(line, sizeof(line), "backup %s %s\n", with_kv ? "kv" : "ledger", to);
    if (!rc && (n < 0 || (size_t)n >= sizeof(line) || strchr(to, '\n'))) {
        rc = -ENAMETOOLONG;
    }
    if (!rc && send(fd, line, (size_t)n, MSG_NOSIGNAL) != n) {
        rc = -errno;
    }
    if (!rc && !read_line(fd, -1, -1, line, sizeof(line))) {
        rc = -EPIPE;
    }
    if (!rc && strcmp(line, "ok") != 0) {
        rc = -EIO;
        snprintf(err, err_size, "%s", strncmp(line, "error ", 6) == 0 ? line + 6 : line);
    } else if (rc) {
        snprintf(err, err_size, "%s: %s", data, rc == -EPIPE ? "the daemon ended" : strerror(-rc));
    }
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

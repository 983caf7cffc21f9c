/* config_check.c - what the settings name, tried: files, folders, the address, the model, the budgets.
 *
 * Nothing is loaded, and nothing stays behind: a folder that a start would make is made and taken away again.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/config_private.h"
#include "session/session.h"

#define PLACE_SIZE 256

/* Where nothing is to be seen from within the unit. */
static bool is_at_home(const char *path)
{
    return strncmp(path, "/home/", 6) == 0 || strncmp(path, "/root/", 6) == 0;
}

static void check_model_file(const struct daemon_config *c, struct daemon_faults *faults)
{
    char place[PLACE_SIZE];
    struct stat st;
    int rc = stat(c->model, &st) != 0 || access(c->model, R_OK) != 0 ? errno : S_ISDIR(st.st_mode) ? EISDIR : 0;
    if (rc) {
        daemon_fault(
            faults, "%smodel %s: %s%s", setting_place(c, "model", place, sizeof(place)), c->model, strerror(rc),
            rc == EACCES && is_at_home(c->model) ? "; the service sees no home folders: put it into /srv, say" : "");
    }
}

/* What systemd lays there for a service while it runs, and nobody else can look at. */
static bool is_elsewhere(const char *path)
{
    static const char folder[] = "/run/credentials/";
    return path && strncmp(path, folder, sizeof(folder) - 1) == 0 && access(path, F_OK) != 0;
}

static void check_tokens(const struct daemon_config *c, bool whole, struct daemon_faults *faults)
{
    char place[PLACE_SIZE], err[512] = "out of memory";
    struct auth *auth;
    if (auth_open(whole && is_elsewhere(c->token_file) ? NULL : c->token_file, c->data, &auth, err, sizeof(err))) {
        daemon_fault(faults, "%s%s", setting_place(c, "token-file", place, sizeof(place)), err);
    } else {
        auth_free(auth);
    }
}

/* Can folders be made where the path's first missing one would be? */
static int try_parents(const char *path)
{
    char *copy = strdup(path), *slash = copy;
    while (slash && access(copy, F_OK) != 0 && (slash = strrchr(copy, '/')) != NULL) {
        *slash = '\0';
    }
    int rc = !copy ? -ENOMEM : access(*copy ? copy : "/", W_OK | X_OK) == 0 ? 0 : -errno;
    free(copy);
    return rc;
}

/* Can files be made in the folder, or the folder itself? Missing parents are made by a start where it is the default.
 */
static int try_folder(const char *path, bool is_default)
{
    bool made = mkdir(path, 0700) == 0;
    int rc = made || errno == EEXIST ? 0 : -errno;
    if (rc == -ENOENT && is_default) {
        return try_parents(path);
    }
    int fd = rc ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char name[] = "convod-check-XXXXXX", *file = NULL;
    if (!rc && fd < 0) {
        rc = -errno;
    }
    if (!rc && asprintf(&file, "%s/%s", path, name) < 0) {
        file = NULL;
        rc = -ENOMEM;
    }
    int probe = rc ? -1 : mkstemp(file);
    if (!rc && probe < 0) {
        rc = -errno;
    }
    if (probe >= 0) {
        unlink(file);
        close(probe);
    }
    free(file);
    if (fd >= 0) {
        close(fd);
    }
    if (made) {
        rmdir(path);
    }
    return rc;
}

static void check_folder(const struct daemon_config *c, const char *name, const char *path,
                         struct daemon_faults *faults)
{
    char place[PLACE_SIZE];
    int rc = path ? try_folder(path, setting_is_default(c, name)) : 0;
    if (rc) {
        daemon_fault(faults, "%s%s %s: %s%s", setting_place(c, name, place, sizeof(place)), name, path, strerror(-rc),
                     rc == -ENOENT ? "; it is made where its parent folder is there and lets us" : "");
    }
}

/* A port that is taken is most likely ours: a service that runs with these settings. */
static void check_listen(const struct daemon_config *c, struct daemon_faults *faults)
{
    char address[64], place[PLACE_SIZE];
    int port;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to = {.any = {0}};
    if (auth_listen_parse(c->listen, address, sizeof(address), &port)) {
        return; /* told when it was set */
    }
    bool v6 = inet_pton(AF_INET6, address, &to.v6.sin6_addr) == 1;
    if (v6) {
        to.v6.sin6_family = AF_INET6;
        to.v6.sin6_port = htons((uint16_t)port);
    } else {
        (void)inet_pton(AF_INET, address, &to.v4.sin_addr);
        to.v4.sin_family = AF_INET;
        to.v4.sin_port = htons((uint16_t)port);
    }
    int fd = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = fd < 0 || bind(fd, &to.any, v6 ? sizeof(to.v6) : sizeof(to.v4)) != 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    if (rc && rc != EADDRINUSE) {
        daemon_fault(faults, "%slisten %s: %s", setting_place(c, "listen", place, sizeof(place)), c->listen,
                     strerror(rc));
    }
}

static void check_budget(const struct daemon_config *c, const char *name, uint64_t bytes, uint64_t most, const char *of,
                         struct daemon_faults *faults)
{
    char place[PLACE_SIZE];
    if (most && bytes > most) {
        daemon_fault(faults, "%s%s: %llu MiB are more than the %llu MiB %s",
                     setting_place(c, name, place, sizeof(place)), name, (unsigned long long)(bytes >> 20),
                     (unsigned long long)(most >> 20), of);
    }
}

static void check_budgets(const struct daemon_config *c, struct daemon_faults *faults)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    check_budget(c, "ram-bytes", c->ram_bytes, memory, "of memory that this machine has", faults);
    check_budget(c, "request-bytes", c->request_bytes, memory, "of memory that this machine has", faults);
    struct statvfs v;
    char *folder = c->data ? strdup(c->data) : NULL;
    if (folder && (statvfs(folder, &v) == 0 || statvfs(dirname(folder), &v) == 0)) {
        check_budget(c, "disk-bytes", c->disk_bytes, (uint64_t)v.f_blocks * v.f_frsize,
                     "of the file system that holds the data", faults);
    }
    free(folder);
}

/* The engine says what it lacks; the place is that of the model, which all of it is about. */
static void check_session(const struct daemon_config *c, struct daemon_faults *faults)
{
    char place[PLACE_SIZE], err[512] = "out of memory";
    const struct session_opts opts = {
        .engine = {.model_path = c->model,
                   .backend = c->backend,
                   .device = c->device,
                   .numerics = c->numerics,
                   .threads = c->threads,
                   .ctx_tokens = c->ctx,
                   .kv_bytes = c->kv_bytes,
                   .device_fraction = c->gpu_memory_fraction,
                   .host_layers = c->gpu_host_layers,
                   .kv_type = c->kv_type,
                   .chat_format = strcmp(c->chat_format, "auto") == 0 ? NULL : c->chat_format},
        .max_waiting = c->max_waiting,
        .max_running = c->max_running,
        .max_step_ms = c->max_step_ms,
        .readers = c->readers,
        .idle_ms = c->idle_seconds * 1000,
    };
    if (session_check(&opts, err, sizeof(err))) {
        daemon_fault(faults, "%s%s", setting_place(c, "model", place, sizeof(place)), err);
    }
}

void daemon_config_verify(const struct daemon_config *c, bool whole, struct daemon_faults *faults)
{
    size_t before = faults->n + faults->left_out;
    if (c->model && *c->model) {
        check_model_file(c, faults);
    }
    bool readable = c->model && *c->model && faults->n + faults->left_out == before;
    check_tokens(c, whole, faults);
    if (!whole) {
        return;
    }
    check_folder(c, "data", c->data, faults);
    check_folder(c, "cache", c->cache, faults);
    check_listen(c, faults);
    check_budgets(c, faults);
    if (readable) {
        check_session(c, faults);
    }
}

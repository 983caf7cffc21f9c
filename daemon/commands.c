/* commands.c - what convod does beside serving: backup, --verify, --repair, and token (token_command.c). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/tokens.h"
#include "session/session.h"

#define USAGE     2
#define FLAGS_MAX 64
#define KV_FLAG   "--with-kv"
#define VERIFY    "--verify"
#define REPAIR    "--repair"
#define BACKUP    "backup"

static int wrong_usage(const struct daemon_log *log, const char *usage)
{
    daemon_log(log, LOG_ERR, "usage: convod %s", usage);
    return USAGE;
}

char *command_data(int argc, char **argv, const struct daemon_log *log)
{
    struct daemon_config config;
    struct daemon_faults faults = {0};
    enum daemon_config_action action;
    int rc = daemon_config_load(&config, argc, argv, getenv("HOME"), getenv("XDG_CONFIG_HOME"), getenv("XDG_DATA_HOME"),
                                getenv("XDG_CACHE_HOME"), &action, &faults);
    for (size_t i = 0; log && i < faults.n; i++) {
        daemon_log(log, LOG_ERR, "%s", faults.lines[i]);
    }
    char *data = NULL;
    if (!log) { /* for a token, which may be the first thing there */
        daemon_config_folders(&config);
    }
    if (!log || !rc) {
        data = config.data;
        config.data = NULL;
    }
    daemon_faults_free(&faults);
    daemon_config_free(&config);
    return data;
}

/* What root made or put into the folder of a service's user becomes that user's, who could not open it otherwise. */
static void give_back(const char *dir, const struct daemon_log *log)
{
    struct stat folder, file;
    DIR *d = geteuid() == 0 ? opendir(dir) : NULL;
    bool is_ours = !d || fstat(dirfd(d), &folder) != 0 || folder.st_uid == 0;
    for (const struct dirent *e; !is_ours && (e = readdir(d)) != NULL;) {
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        /* One with another name is somebody's who would have it through this. */
        if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == 0 && file.st_nlink == 1 &&
            fchown(fd, folder.st_uid, folder.st_gid) != 0) {
            daemon_log(log, LOG_WARNING, "%s/%s stays root's: %s", dir, e->d_name, strerror(errno));
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (d) {
        closedir(d);
    }
}

/* ---- verify and repair ---- */

static void print_line(void *arg, const char *text)
{
    (void)arg;
    printf("%s\n", text);
}

static void log_line(void *arg, int priority, const char *text)
{
    daemon_log(arg, priority, "%s", text);
}

static int verify(const char *dir, bool repair, const struct daemon_log *log)
{
    struct session_checked n;
    struct daemon_log to = *log;
    char err[512] = "";
    int rc = session_verify(dir, repair, print_line, NULL, log_line, &to, &n, err, sizeof(err));
    give_back(dir, log);
    if (rc) {
        daemon_log(log, LOG_ERR, "%s", err[0] ? err : strerror(-rc));
        return EXIT_FAILURE;
    }
    printf("%llu conversations, %llu turns, %llu segments: %llu wrong", (unsigned long long)n.conversations,
           (unsigned long long)n.turns, (unsigned long long)n.segments, (unsigned long long)n.wrong);
    if (n.not_stored) {
        printf("; the KV of %llu turns is not stored, and is computed again when it is needed",
               (unsigned long long)n.not_stored);
    }
    printf("\n");
    return n.wrong && !repair ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- backup ---- */

static const char BACKUP_HELP[] = "Usage: convod backup DIR [--with-kv] [--data DIR | --config FILE]\n\n"
                                  "Copies the conversations into a folder that is made or has no backup yet, also\n"
                                  "while a daemon serves them; that one writes it, as its own user. `man convod`\n"
                                  "tells how a backup is put back.\n\n"
                                  "  --with-kv           their KV too; without it, it is computed again when needed\n"
                                  "  --data DIR          the data folder of the daemon\n"
                                  "  --config FILE       or the configuration that names it\n";

/* An absolute path of a folder that may not be there yet. malloc'd. */
static char *absolute(const char *path)
{
    char *cwd = *path == '/' ? NULL : getcwd(NULL, 0), *out = NULL;
    if (*path != '/' && !cwd) {
        return NULL;
    }
    if (asprintf(&out, "%s%s%s", cwd ? cwd : "", cwd ? "/" : "", path) < 0) {
        out = NULL;
    }
    free(cwd);
    return out;
}

static int backup(const char *data, const char *dir, bool with_kv, const struct daemon_log *log)
{
    char err[512] = "";
    char *to = absolute(dir);
    if (!to) {
        daemon_log(log, LOG_ERR, "%s: %s", dir, strerror(errno));
        return EXIT_FAILURE;
    }
    int rc = control_backup(data, to, with_kv, err, sizeof(err));
    if (rc == -ENOENT || rc == -ECONNREFUSED) { /* nobody serves it: it is copied from here */
        struct daemon_log own = *log;
        rc = session_backup_of(data, to, with_kv, log_line, &own, err, sizeof(err));
        give_back(data, log);
    }
    if (rc) {
        daemon_log(log, LOG_ERR, "the backup failed: %s", err[0] ? err : strerror(-rc));
    } else {
        printf("convod: the backup in %s is complete\n", to);
    }
    free(to);
    return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int backup_command(int argc, char **argv, const struct daemon_log *log)
{
    static char model[] = "--model=none"; /* a backup needs none */
    char *flags[FLAGS_MAX + 3] = {argv[0]};
    const char *dir = NULL;
    bool with_kv = false;
    int n = 1;
    for (int i = 2; i < argc && n < FLAGS_MAX; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(BACKUP_HELP, stdout);
            return 0;
        } else if (strcmp(argv[i], KV_FLAG) == 0) {
            with_kv = true;
        } else if (argv[i][0] != '-' && !dir) {
            dir = argv[i];
        } else {
            flags[n++] = argv[i];
            if (argv[i][0] == '-' && !strchr(argv[i], '=') && i + 1 < argc) {
                flags[n++] = argv[++i];
            }
        }
    }
    if (!dir || !*dir) {
        return wrong_usage(log, "backup DIR [" KV_FLAG "] [--data DIR | --config FILE]");
    }
    flags[n++] = model;
    char *data = command_data(n, flags, log);
    int status = data ? backup(data, dir, with_kv, log) : USAGE;
    free(data);
    return status;
}

bool command_run(int argc, char **argv, const struct daemon_log *log, int *status)
{
    const char *name = argc > 1 ? argv[1] : "";
    bool is_verify = strcmp(name, VERIFY) == 0, is_repair = strcmp(name, REPAIR) == 0;
    if (is_verify || is_repair) {
        *status = argc == 3 ? verify(argv[2], is_repair, log) : wrong_usage(log, VERIFY " DIR, or " REPAIR " DIR");
    } else if (strcmp(name, BACKUP) == 0) {
        *status = backup_command(argc, argv, log);
    } else if (strcmp(name, "token") == 0) {
        *status = token_command(argc, argv);
    } else {
        return false;
    }
    if (fflush(stdout) != 0) {
        *status = EXIT_FAILURE;
    }
    return true;
}

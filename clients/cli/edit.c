/* edit.c - a text in the person's own editor: a private temporary file, the editor in the foreground, and what it left.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clients/cli/cli_internal.h"

static const char *editor(void)
{
    const char *visual = getenv("VISUAL"), *other = getenv("EDITOR");
    return visual && *visual ? visual : other && *other ? other : "vi";
}

/* The editor's setting may have arguments of its own, so a shell takes it apart. */
static int run_editor(const char *path)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGPIPE, SIG_DFL);
        struct buf command = {0};
        buf_printf(&command, "exec %s \"$1\"", editor());
        execl("/bin/sh", "sh", "-c", command.data, "sh", path, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            return -errno;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECANCELED;
}

static int read_back(const char *path, struct buf *out)
{
    FILE *file = fopen(path, "re"); /* by name: editors write another file over it */
    if (!file)
        return -errno;
    char piece[65536];
    size_t got;
    while ((got = fread(piece, 1, sizeof(piece), file)) > 0 && out->len < CLI_REQUEST_MAX)
        buf_add(out, piece, got);
    int rc = ferror(file) ? -EIO : 0;
    fclose(file);
    return rc;
}

int edit_text(const char *text, struct buf *out)
{
    const char *folder = getenv("TMPDIR");
    struct buf path = {0};
    buf_printf(&path, "%s/convo-XXXXXX", folder && *folder == '/' ? folder : "/tmp");
    int fd = mkstemp(path.data);
    if (fd < 0) {
        int rc = -errno;
        buf_free(&path);
        return rc;
    }
    size_t len = strlen(text);
    int rc = write(fd, text, len) == (ssize_t)len ? 0 : -EIO;
    close(fd);
    if (!rc)
        rc = run_editor(path.data);
    if (!rc)
        rc = read_back(path.data, out);
    unlink(path.data);
    buf_free(&path);
    return rc;
}

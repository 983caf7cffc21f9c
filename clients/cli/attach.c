/* attach.c - files that go with a message: their text, each under its name in a fenced block.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/cli_internal.h"

void text_path(const char *name, struct buf *out)
{
    size_t len = strlen(name);
    const char *home = getenv("HOME");
    while (len > 0 && name[len - 1] == ' ')
        len--;
    if (len > 2 && (name[0] == '\'' || name[0] == '"') && name[len - 1] == name[0]) {
        name++;
        len -= 2;
    }
    if (len >= 2 && memcmp(name, "~/", 2) == 0 && home && *home) {
        buf_str(out, home);
        name++;
        len--;
    }
    buf_add(out, name, len);
}

/* All of a regular file's text. 0 or -errno; err: what is wrong with it. */
static int read_text(const char *path, struct buf *out, char *err, size_t err_size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe without a writer opens at once */
    int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : 0;
    if (rc) {
        snprintf(err, err_size, "%s", strerror(-rc));
    } else if (!S_ISREG(st.st_mode)) {
        rc = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
        snprintf(err, err_size, "%s", S_ISDIR(st.st_mode) ? "is a folder, not a file" : "is no regular file");
    }
    char piece[65536];
    ssize_t got = 1;
    while (!rc && got > 0 && out->len <= CLI_REQUEST_MAX) {
        got = st.st_size > CLI_REQUEST_MAX ? 0 : read(fd, piece, sizeof(piece));
        if (got > 0)
            buf_add(out, piece, (size_t)got);
        else if (got < 0 && errno != EINTR)
            rc = -errno;
        else if (got < 0)
            got = 1;
    }
    if (fd >= 0)
        close(fd);
    if (rc && !*err) {
        snprintf(err, err_size, "%s", strerror(-rc));
    } else if (!rc && (st.st_size > CLI_REQUEST_MAX || out->len > CLI_REQUEST_MAX)) {
        rc = -EFBIG;
        snprintf(err, err_size, "is larger than the %u MiB that the daemon takes", CLI_REQUEST_MAX >> 20);
    } else if (!rc && out->len == 0) {
        rc = -ENODATA;
        snprintf(err, err_size, "is empty");
    }
    const char *nul = rc ? NULL : memchr(out->data, '\0', out->len);
    if (nul) {
        rc = -EILSEQ;
        snprintf(err, err_size, "is no text file: it has a NUL byte at offset %zu", (size_t)(nul - out->data));
    }
    return rc;
}

/* A fence is longer than any run of its marks within. */
static void add_fence(struct buf *out, const struct buf *text)
{
    size_t longest = 2;
    for (size_t at = 0, run; at < text->len; at += run + 1) {
        run = strspn(text->data + at, "`");
        longest = run > longest ? run : longest;
    }
    for (size_t i = 0; i <= longest; i++)
        buf_str(out, "`");
    buf_str(out, "\n");
}

int cli_attach(struct cli *c, const char *name)
{
    struct buf path = {0}, text = {0};
    char err[CLI_ERR_SIZE] = "";
    text_path(name, &path);
    int code = CLI_OK;
    if (read_text(path.data, &text, err, sizeof(err)) != 0) {
        term_error(&c->term, "%s: %s", path.data, err);
        code = CLI_FAILED;
    } else if (!cli_sendable(c, path.data, text.data, text.len) || !cli_sendable(c, "its name", path.data, path.len)) {
        code = CLI_FAILED;
    } else if (c->attached.len + text.len > CLI_REQUEST_MAX) {
        term_error(&c->term, "%s: is too large to go with the others: a message has room for %u MiB", path.data,
                   CLI_REQUEST_MAX >> 20);
        code = CLI_FAILED;
    } else {
        /* Where it is says something within a project, and nothing from the root on. */
        const char *called = path.data[0] == '/' ? strrchr(path.data, '/') + 1 : path.data;
        buf_printf(&c->attached, "\n\n%s:\n", called);
        add_fence(&c->attached, &text);
        buf_add(&c->attached, text.data, text.len);
        buf_str(&c->attached, text.data[text.len - 1] == '\n' ? "" : "\n");
        add_fence(&c->attached, &text);
        c->attached.data[--c->attached.len] = '\0';
        buf_printf(&c->attached_names, "%s%s (", c->attached_names.len > 0 ? ", " : "", called);
        text_bytes((double)text.len, &c->attached_names);
        buf_str(&c->attached_names, ")");
    }
    buf_free(&path);
    buf_free(&text);
    return code;
}

void cli_detach(struct cli *c)
{
    buf_free(&c->attached);
    buf_free(&c->attached_names);
}

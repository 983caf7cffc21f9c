/* complete.c - what Tab adds to a line of the chat: the rest of a command's name, or of a file's for those that take
 * one. Names that cannot be typed as they are (control characters, no UTF-8) are not offered.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "clients/cli/cli_internal.h"

#define MAX_OFFERED 200

/* Names that begin with what was typed. */
struct offer {
    struct buf common; /* what they begin with, all of them */
    char *names[MAX_OFFERED];
    int n;
    bool more; /* there are others */
};

static void add_name(struct offer *o, const char *name)
{
    if (o->n == 0) {
        buf_str(&o->common, name);
    } else {
        size_t same = 0;
        while (same < o->common.len && o->common.data[same] == name[same])
            same++;
        while (same > 0 && (o->common.data[same] & 0xc0) == 0x80) /* within a character */
            same--;
        o->common.data[same] = '\0';
        o->common.len = same;
    }
    if (o->n < MAX_OFFERED)
        o->names[o->n++] = text_copy(name);
    else
        o->more = true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool can_be_typed(const char *name)
{
    struct buf clean = {0};
    text_printable(name, strlen(name), &clean);
    bool same = clean.len == strlen(name) && memcmp(clean.data, name, clean.len) == 0 && !strpbrk(name, "\n\t");
    buf_free(&clean);
    return same;
}

/* The files that a path, as it was typed, may mean. Where its last name begins in it. */
static size_t offer_files(const char *typed, struct offer *o)
{
    const char *slash = strrchr(typed, '/');
    size_t from = slash ? (size_t)(slash + 1 - typed) : 0;
    struct buf folder = {0}, path = {0};
    buf_add(&path, typed, from);
    text_path(path.data, &folder);
    DIR *dir = opendir(folder.len > 0 ? folder.data : ".");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        struct stat st;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (name[0] == '.' && typed[from] != '.') ||
            strncmp(name, typed + from, strlen(typed + from)) != 0 || !can_be_typed(name))
            continue;
        buf_clear(&path);
        buf_printf(&path, "%s%s", folder.data, name);
        bool is_folder = stat(path.data, &st) == 0 && S_ISDIR(st.st_mode);
        buf_clear(&path);
        buf_printf(&path, "%s%s", name, is_folder ? "/" : "");
        add_name(o, path.data);
    }
    if (dir)
        closedir(dir);
    buf_free(&folder);
    buf_free(&path);
    return from;
}

void complete_line(const char *line, struct buf *rest, struct buf *offered)
{
    struct offer o = {0};
    size_t typed = strlen(line);
    const char *name = line, *argument = chat_file_argument(line);
    if (argument) {
        name = argument + offer_files(argument, &o);
    } else if (line[0] == '/' && !memchr(line, ' ', typed)) {
        name = line + 1;
        for (size_t i = 0; (argument = chat_command_name(i)); i++)
            if (strncmp(argument, name, strlen(name)) == 0)
                add_name(&o, argument);
        if (o.n == 1)
            buf_str(&o.common, " ");
    }
    if (o.n > 0)
        buf_str(rest, o.common.data + strlen(name));
    if (o.n > 1 && rest->len == 0) {
        qsort(o.names, (size_t)o.n, sizeof(*o.names), by_name);
        for (int i = 0; i < o.n; i++)
            buf_printf(offered, "%s%s", i > 0 ? "  " : "", o.names[i]);
        buf_str(offered, o.more ? "  \u2026" : "");
    }
    for (int i = 0; i < o.n; i++)
        free(o.names[i]);
    buf_free(&o.common);
}

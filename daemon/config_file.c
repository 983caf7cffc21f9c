/* config_file.c - the text of a configuration file: lines of `key = value`.
 *
 * A value goes to the end of its line, or to a `#` with a blank before it. One in quotes ("..." or '...') is taken as
 * it stands between them. What looks as if more were meant is a fault: quotes elsewhere, text behind a quoted value, a
 * key that was there before, sections. Every fault is told, each with its line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config_private.h"

#define CONFIG_FILE_MAX (256 * 1024)
#define KEY_MAX         64

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts blanks off both ends. */
static void trim(const char **text, size_t *n)
{
    while (*n > 0 && blank((*text)[*n - 1])) {
        (*n)--;
    }
    while (*n > 0 && blank(**text)) {
        (*text)++;
        (*n)--;
    }
}

/* Narrows text to the value that is meant. Returns what is wrong with it, or NULL. */
static const char *find_value(const char **text, size_t *n)
{
    trim(text, n);
    if (*n > 0 && (**text == '"' || **text == '\'')) {
        const char *end = memchr(*text + 1, **text, *n - 1);
        if (!end) {
            return "the quote does not end on this line";
        }
        const char *rest = end + 1;
        size_t left = *n - (size_t)(rest - *text);
        trim(&rest, &left);
        if (left > 0 && *rest != '#') {
            return "something stands behind the quoted value";
        }
        (*text)++;
        *n = (size_t)(end - *text);
        return *n == 0 ? "the value is empty" : NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        if ((*text)[i] == '#' && (i == 0 || blank((*text)[i - 1]))) {
            *n = i;
        }
    }
    trim(text, n);
    if (memchr(*text, '"', *n)) {
        return "quotes go around the whole value";
    }
    return *n == 0 ? "there is no value" : NULL;
}

static bool has_control(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 0x20 ? text[i] != '\t' : text[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

static void parse_setting(struct daemon_config *c, const struct setting *s, const char *text, size_t n,
                          const char *where, int line, struct daemon_faults *faults)
{
    const char *wrong = find_value(&text, &n);
    if (wrong) {
        setting_was_given(c, s, line);
        daemon_fault(faults, "%s: %s: %s", where, s->name, wrong);
        return;
    }
    char *value = strndup(text, n);
    if (!value) {
        daemon_fault(faults, "%s: out of memory", where);
        return;
    }
    setting_assign(c, s, value, where, line, faults);
    free(value);
}

static void parse_line(struct daemon_config *c, const char *line, size_t n, const char *name, int number,
                       struct daemon_faults *faults)
{
    trim(&line, &n);
    if (n == 0 || *line == '#') {
        return;
    }
    char where[256];
    snprintf(where, sizeof(where), "%.200s:%d", name, number);
    if (has_control(line, n)) {
        daemon_fault(faults, "%s: there is a control character in this line", where);
        return;
    }
    const char *equals = memchr(line, '=', n);
    if (!equals) {
        daemon_fault(faults, "%s: expected `key = value`%s", where, *line == '[' ? "; there are no sections" : "");
        return;
    }
    const char *key = line;
    size_t key_len = (size_t)(equals - line);
    trim(&key, &key_len);
    const struct setting *s = setting_find(key, key_len);
    if (!s) {
        const char *near = setting_near(key, key_len);
        daemon_fault(faults, "%s: unknown key `%.*s`%s%s%s", where, (int)(key_len > KEY_MAX ? KEY_MAX : key_len), key,
                     near ? "; is `" : "", near ? near : "", near ? "` meant?" : "");
        return;
    }
    parse_setting(c, s, equals + 1, n - (size_t)(equals + 1 - line), where, number, faults);
}

int daemon_config_parse(struct daemon_config *c, const char *text, size_t len, const char *name,
                        struct daemon_faults *faults)
{
    size_t before = faults->n + faults->left_out;
    if (memchr(text, '\0', len)) {
        daemon_fault(faults, "%s: contains a NUL byte", name);
        return -EINVAL;
    }
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin a file with it */
    size_t at = len >= 3 && memcmp(text, mark, 3) == 0 ? 3 : 0;
    for (int number = 1; at < len; number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        parse_line(c, text + at, n, name, number, faults);
        at += n + 1;
    }
    return faults->n + faults->left_out == before ? 0 : -EINVAL;
}

/* The whole file, malloc'd; NULL: *rc says why. */
static char *read_text(int fd, size_t *len, int *rc)
{
    char *text = malloc(CONFIG_FILE_MAX + 1);
    *len = 0;
    *rc = text ? 0 : -ENOMEM;
    while (!*rc && *len <= CONFIG_FILE_MAX) {
        ssize_t n = read(fd, text + *len, CONFIG_FILE_MAX + 1 - *len);
        if (n <= 0) {
            *rc = n < 0 ? -errno : 0;
            break;
        }
        *len += (size_t)n;
    }
    if (!*rc && *len > CONFIG_FILE_MAX) {
        *rc = -EFBIG;
    }
    if (*rc) {
        free(text);
        return NULL;
    }
    return text;
}

int daemon_config_read(struct daemon_config *c, const char *path, bool must_exist, struct daemon_faults *faults)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 && errno == ENOENT && !must_exist) {
        return 0;
    }
    int rc = fd < 0 ? -errno : 0;
    size_t len = 0;
    char *text = rc ? NULL : read_text(fd, &len, &rc);
    if (text) {
        rc = daemon_config_parse(c, text, len, path, faults);
    } else if (rc == -EFBIG) {
        daemon_fault(faults, "%s: larger than %d bytes", path, CONFIG_FILE_MAX);
    } else {
        daemon_fault(faults, "%s: %s", path, strerror(-rc));
    }
    free(text);
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

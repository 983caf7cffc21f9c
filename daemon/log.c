/* log.c - one line to standard error, with the priority that journald understands when it is listening.
 *
 * What may be said here: addresses, ids, counts, names of files. Never a prompt, an answer or a token. Control
 * characters in names, marks that turn the direction of writing, and what is no UTF-8, are shown as '?', so that
 * nothing can forge a line or steer a terminal.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "daemon/daemon.h"

/* Of the text's first character: its bytes, and whether it can be shown. */
static size_t look(const char *text, size_t len, bool *shown)
{
    size_t n = 1;
    while (n < 4 && n < len && !utf8_valid(text, n)) {
        n++;
    }
    const unsigned char *c = (const unsigned char *)text;
    bool whole = utf8_valid(text, n), c1 = c[0] == 0xc2 && whole && c[1] < 0xa0;
    bool turns = c[0] == 0xe2 && whole &&
                 ((c[1] == 0x80 && c[2] >= 0xaa && c[2] <= 0xae) || (c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9));
    *shown = whole && c[0] >= 0x20 && c[0] != 0x7f && !c1 && !turns;
    return whole ? n : 1;
}

void daemon_log(const struct daemon_log *log, int priority, const char *format, ...)
{
    if (priority > log->level) {
        return;
    }
    char line[1024];
    struct tm local;
    time_t now = time(NULL);
    int n = 0;
    if (log->times && localtime_r(&now, &local)) {
        n = (int)strftime(line, sizeof(line), "%F %T ", &local);
    }
    n += log->journal ? snprintf(line + n, sizeof(line) - (size_t)n, "<%d>", priority)
                      : snprintf(line + n, sizeof(line) - (size_t)n, "convod: ");
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    va_end(args);
    if (m < 0) {
        return;
    }
    size_t len = (size_t)n + (size_t)m;
    if (len > sizeof(line) - 2) {
        len = sizeof(line) - 2;
    }
    bool shown;
    for (size_t i = (size_t)n, step; i < len; i += step) {
        step = look(line + i, len - i, &shown);
        if (!shown) {
            memset(line + i, '?', step);
        }
    }
    line[len++] = '\n';
    /* One write, so that lines of several threads do not mix. A log that cannot be written has nowhere to say so. */
    if (write(log->fd, line, len) < 0) {
        return;
    }
}

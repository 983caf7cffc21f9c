/* log.c - one line to standard error, with the priority that journald understands when it is listening.
 *
 * What may be said here: addresses, ids, counts, names of files. Never a prompt, an answer or a token. Control
 * characters in names are shown as '?', so that nothing can forge a line.
 */
#include <stdarg.h>
#include <stdio.h>
#include <syslog.h>
#include <unistd.h>

#include "daemon/daemon.h"

void daemon_log(const struct daemon_log *log, int priority, const char *format, ...)
{
    if (priority > log->level) {
        return;
    }
    char line[1024];
    int n = log->journal ? snprintf(line, sizeof(line), "<%d>", priority) : snprintf(line, sizeof(line), "convod: ");
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
    for (size_t i = (size_t)n; i < len; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[len++] = '\n';
    /* One write, so that lines of several threads do not mix. A log that cannot be written has nowhere to say so. */
    if (write(log->fd, line, len) < 0) {
        return;
    }
}

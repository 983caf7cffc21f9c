/* notify.c - telling systemd how we are: one datagram to the socket named in NOTIFY_SOCKET.
 *
 * The protocol is a line of NAME=value pairs; a name that begins with '@' is in the abstract namespace. Never blocks.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/daemon.h"

int notify_send(const char *path, const char *format, ...)
{
    if (!path || !*path) {
        return 0;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || len >= sizeof(address.sun_path)) {
        return -EINVAL;
    }
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
    }
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(text)) {
        return -EINVAL;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    int rc = 0;
    socklen_t address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (struct sockaddr *)&address, address_len) < 0) {
        rc = -errno;
    }
    close(fd);
    return rc;
}

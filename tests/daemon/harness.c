#include "tests/daemon/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <syslog.h>
#include <unistd.h>

#define RECEIVE_SECONDS 60

static void on_ready(void *arg, int port)
{
    struct harness *h = arg;
    pthread_mutex_lock(&h->lock);
    h->ready = true;
    h->port = port;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void *serve(void *arg)
{
    struct harness *h = arg;
    int rc = server_run(h->server);
    pthread_mutex_lock(&h->lock);
    h->result = rc;
    h->ended = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

struct harness *harness_start_loading(const char *const *flags)
{
    struct harness *h = calloc(1, sizeof(*h));
    assert_non_null(h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    char *argv[64] = {"convod", "--model", "/nowhere/fake.gguf", "--data", "/nowhere", "--listen", "127.0.0.1:0"};
    int argc = 7;
    for (; flags && *flags && argc < 63; flags++) {
        argv[argc++] = (char *)*flags;
    }
    char err[512] = "";
    enum daemon_config_action action;
    struct daemon_faults faults = {0};
    int rc = daemon_config_load(&h->config, argc, argv, NULL, NULL, NULL, NULL, &action, &faults);
    if (rc) {
        fail_msg("configuration: %s", faults.lines[0]);
    }
    snprintf(h->log_path, sizeof(h->log_path), "/tmp/convod_log_XXXXXX");
    h->log_fd = mkstemp(h->log_path);
    assert_true(h->log_fd >= 0);
    h->log = (struct daemon_log){.fd = h->log_fd, .level = LOG_DEBUG};
    struct server_opts opts = {.config = &h->config, .log = &h->log, .ready = on_ready, .arg = h};
    rc = server_start(&opts, &h->server, err, sizeof(err));
    if (rc) {
        fail_msg("server: %s", err);
    }
    h->port = server_port(h->server);
    assert_int_equal(pthread_create(&h->thread, NULL, serve, h), 0);
    return h;
}

void harness_wait_ready(struct harness *h)
{
    pthread_mutex_lock(&h->lock);
    while (!h->ready && !h->ended) {
        pthread_cond_wait(&h->changed, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

struct harness *harness_start(const char *const *flags)
{
    fake_reset();
    struct harness *h = harness_start_loading(flags);
    harness_wait_ready(h);
    return h;
}

char *harness_log(struct harness *h)
{
    off_t size = lseek(h->log_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_true(pread(h->log_fd, text, (size_t)size, 0) >= 0);
    return text;
}

int harness_logged(struct harness *h, const char *what, const char *end)
{
    char *log = harness_log(h), *save = NULL;
    int n = 0;
    for (const char *line = strtok_r(log, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *at = strstr(line, what);
        size_t len = strlen(line), end_len = strlen(end);
        n += at && len >= end_len && strcmp(line + len - end_len, end) == 0;
    }
    free(log);
    return n;
}

int harness_stop(struct harness *h)
{
    server_stop(h->server);
    pthread_join(h->thread, NULL);
    int result = h->result;
    server_free(h->server);
    daemon_config_free(&h->config);
    close(h->log_fd);
    unlink(h->log_path);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    free(h);
    return result;
}

/* ---- sockets ---- */

int dial(const struct harness *h)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {RECEIVE_SECONDS, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)h->port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

void send_bytes(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return; /* the peer has closed: what it answered is still to be read */
        }
        p += n;
        len -= (size_t)n;
    }
}

void send_text(int fd, const char *text)
{
    send_bytes(fd, text, strlen(text));
}

/* n bytes, or fewer when the peer ends. */
static size_t read_n(int fd, char *to, size_t n)
{
    size_t got = 0;
    while (got < n) {
        ssize_t r = recv(fd, to + got, n - got, 0);
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            fail_msg("nothing came for %d s", RECEIVE_SECONDS);
        }
        if (r <= 0) {
            break;
        }
        got += (size_t)r;
    }
    return got;
}

static char *grow(char *text, size_t size)
{
    char *grown = realloc(text, size);
    assert_non_null(grown);
    return grown;
}

char *read_all(int fd)
{
    size_t size = 4096, len = 0;
    char *text = malloc(size);
    assert_non_null(text);
    for (;;) {
        size_t n = read_n(fd, text + len, size - len - 1);
        len += n;
        if (len < size - 1) {
            break;
        }
        size *= 2;
        text = grow(text, size);
    }
    text[len] = '\0';
    return text;
}

void shutdown_send(int fd)
{
    shutdown(fd, SHUT_WR);
}

int read_byte(int fd)
{
    char c;
    assert_int_equal(read_n(fd, &c, 1), 1);
    return (unsigned char)c;
}

bool quiet(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 0;
}

bool closed(int fd)
{
    char c;
    return read_n(fd, &c, 1) == 0;
}

struct reply read_reply(int fd)
{
    struct reply r = {0};
    size_t len = 0, size = 64 * 1024;
    r.head = calloc(1, size);
    assert_non_null(r.head);
    while (len < size - 1 && !(len >= 4 && memcmp(r.head + len - 4, "\r\n\r\n", 4) == 0)) {
        if (read_n(fd, r.head + len, 1) == 0) {
            break;
        }
        len++;
    }
    if (sscanf(r.head, "HTTP/1.1 %d", &r.status) != 1) {
        r.body = strdup("");
        return r;
    }
    const char *length = strstr(r.head, "Content-Length: ");
    if (length) {
        r.body_len = strtoul(length + 16, NULL, 10);
        r.body = calloc(1, r.body_len + 1);
        assert_non_null(r.body);
        r.body_len = read_n(fd, r.body, r.body_len);
    } else if (strstr(r.head, "Transfer-Encoding: chunked")) {
        size_t capacity = 4096;
        r.body = calloc(1, capacity);
        for (;;) {
            char line[32] = "";
            size_t n = 0;
            while (n < sizeof(line) - 1 && read_n(fd, line + n, 1) == 1 && line[n] != '\n') {
                n++;
            }
            size_t chunk = strtoul(line, NULL, 16);
            if (r.body_len + chunk + 3 > capacity) { /* a slow reader is dropped: not anew for each */
                capacity = 2 * (r.body_len + chunk + 3);
                r.body = grow(r.body, capacity);
            }
            size_t got = read_n(fd, r.body + r.body_len, chunk + 2);
            r.body_len += got < chunk ? got : chunk;
            r.body[r.body_len] = '\0';
            if (chunk == 0 || got < chunk + 2) {
                break;
            }
        }
    } else {
        r.body = strdup("");
    }
    assert_non_null(r.body);
    r.json = cJSON_Parse(r.body);
    return r;
}

void reply_free(struct reply *r)
{
    free(r->head);
    free(r->body);
    cJSON_Delete(r->json);
    memset(r, 0, sizeof(*r));
}

void send_request(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    char *text = NULL, length[64] = "";
    if (body) {
        snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(body));
    }
    bool own_host = headers && strstr(headers, "Host:");
    int n = asprintf(&text, "%s %s HTTP/1.1\r\n%s%s%s\r\n%s", method, path, own_host ? "" : "Host: localhost\r\n",
                     headers ? headers : "", length, body ? body : "");
    assert_true(n > 0);
    send_bytes(fd, text, (size_t)n);
    free(text);
}

struct reply call(const struct harness *h, const char *method, const char *path, const char *headers, const char *body)
{
    int fd = dial(h);
    send_request(fd, method, path, headers, body);
    struct reply r = read_reply(fd);
    close(fd);
    return r;
}

/* ---- WebSocket ---- */

static struct reply upgrade(int fd, const char *path, const char *headers)
{
    char *text = NULL;
    bool own_host = headers && strstr(headers, "Host:");
    int n = asprintf(&text,
                     "GET %s HTTP/1.1\r\n%sConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                     path, own_host ? "" : "Host: localhost\r\n", headers ? headers : "");
    assert_true(n > 0);
    send_bytes(fd, text, (size_t)n);
    free(text);
    return read_reply(fd);
}

int ws_dial_as(const struct harness *h, const char *headers)
{
    int fd = dial(h);
    struct reply r = upgrade(fd, "/v1/responses", headers);
    assert_int_equal(r.status, 101);
    reply_free(&r);
    return fd;
}

int ws_dial(const struct harness *h)
{
    return ws_dial_as(h, NULL);
}

int ws_refused(const struct harness *h, const char *path, const char *headers, cJSON **error)
{
    int fd = dial(h);
    struct reply r = upgrade(fd, path, headers);
    int status = r.status;
    if (error) {
        *error = r.json;
        r.json = NULL;
    }
    reply_free(&r);
    close(fd);
    return status;
}

void ws_send_frame(int fd, int opcode, bool fin, const void *data, size_t len)
{
    unsigned char *frame = malloc(len + 14);
    assert_non_null(frame);
    size_t n = 0;
    static const unsigned char mask[4] = {1, 2, 3, 4};
    frame[n++] = (unsigned char)((fin ? 0x80 : 0) | opcode);
    if (len < 126) {
        frame[n++] = (unsigned char)(0x80 | len);
    } else if (len < 65536) {
        frame[n++] = 0x80 | 126;
        frame[n++] = (unsigned char)(len >> 8);
        frame[n++] = (unsigned char)len;
    } else {
        frame[n++] = 0x80 | 127;
        for (int i = 7; i >= 0; i--) {
            frame[n++] = (unsigned char)((uint64_t)len >> (8 * i));
        }
    }
    memcpy(frame + n, mask, 4);
    n += 4;
    for (size_t i = 0; i < len; i++) {
        frame[n + i] = ((const unsigned char *)data)[i] ^ mask[i & 3];
    }
    send_bytes(fd, frame, n + len);
    free(frame);
}

void ws_send(int fd, const char *text)
{
    ws_send_frame(fd, 1, true, text, strlen(text));
}

char *ws_read(int fd, int *close_code)
{
    char *message = calloc(1, 1);
    size_t total = 0;
    *close_code = 0;
    for (;;) {
        unsigned char head[2], extended[8];
        if (read_n(fd, (char *)head, 2) < 2) {
            break;
        }
        uint64_t len = head[1] & 0x7f;
        size_t more = len == 126 ? 2 : len == 127 ? 8 : 0;
        if (read_n(fd, (char *)extended, more) < more) {
            break;
        }
        if (more) {
            len = 0;
            for (size_t i = 0; i < more; i++) {
                len = len << 8 | extended[i];
            }
        }
        char *payload = calloc(1, (size_t)len + 1);
        assert_non_null(payload);
        if (read_n(fd, payload, (size_t)len) < len) {
            free(payload);
            break;
        }
        int opcode = head[0] & 15;
        if (opcode == 8) {
            *close_code = len >= 2 ? (unsigned char)payload[0] << 8 | (unsigned char)payload[1] : 1005;
            free(payload);
            break;
        }
        if (opcode == 9) {
            ws_send_frame(fd, 10, true, payload, (size_t)len);
            free(payload);
            continue;
        }
        message = grow(message, total + (size_t)len + 1);
        memcpy(message + total, payload, (size_t)len + 1);
        total += (size_t)len;
        free(payload);
        if (head[0] & 0x80) {
            return message;
        }
    }
    free(message);
    return NULL;
}

cJSON *ws_read_json(int fd)
{
    int code;
    char *text = ws_read(fd, &code);
    if (!text) {
        fail_msg("the connection ended (close code %d)", code);
    }
    cJSON *o = cJSON_Parse(text);
    if (!o) {
        fail_msg("not JSON: %s", text);
    }
    free(text);
    return o;
}

cJSON *ws_until(int fd, const char *type)
{
    for (;;) {
        cJSON *e = ws_read_json(fd);
        if (strcmp(str(e, "type"), type) == 0) {
            return e;
        }
        if (strcmp(str(e, "type"), "error") == 0) {
            fail_msg("error instead of %s: %s", type, str(e, "error.message"));
        }
        cJSON_Delete(e);
    }
}

void ws_create(int fd, const char *text, const char *more)
{
    char *message = NULL;
    assert_true(asprintf(&message, "{\"type\":\"response.create\",\"input\":\"%s\"%s}", text, more ? more : "") > 0);
    ws_send(fd, message);
    free(message);
}

/* ---- JSON ---- */

const cJSON *at(const cJSON *o, const char *path)
{
    char key[64];
    while (o && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)n, path);
        path += n + (path[n] == '.');
        o = cJSON_IsArray(o) ? cJSON_GetArrayItem(o, atoi(key)) : cJSON_GetObjectItemCaseSensitive(o, key);
    }
    return o;
}

const char *str(const cJSON *o, const char *path)
{
    const cJSON *v = at(o, path);
    return cJSON_IsString(v) ? v->valuestring : "";
}

double num(const cJSON *o, const char *path)
{
    const cJSON *v = at(o, path);
    return cJSON_IsNumber(v) ? v->valuedouble : -1;
}

/* config.c - settings from one file and from flags.
 *
 * Every setting is one row of a table: the same name is a flag (--name VALUE) and a key (name = value) in the file.
 * Flags win over the file, the file over the defaults. Nothing else, no environment variable, changes how convod
 * behaves.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "session/session.h"

#define CONFIG_FILE_MAX (256 * 1024)

enum type { STRING, INTEGER, BYTES, LIST };

struct setting {
    const char *name;
    enum type type;
    size_t offset, count_offset;
    int64_t min, max;
    const char *unit, *fallback, *help;
};

#define AT(field) offsetof(struct daemon_config, field)
static const struct setting settings[] = {
    {"model", STRING, AT(model), 0, 0, 0, "FILE", NULL, "the model, a GGUF file"},
    {"data", STRING, AT(data), 0, 0, 0, "DIR", NULL,
     "conversations and their KV ($XDG_DATA_HOME/convod, ~/.local/share/convod)"},
    {"cache", STRING, AT(cache), 0, 0, 0, "DIR", NULL,
     "what can be computed again ($XDG_CACHE_HOME/convod, ~/.cache/convod)"},
    {"listen", STRING, AT(listen), 0, 0, 0, "ADDRESS:PORT", "127.0.0.1:8642", "port 0 takes a free one"},
    {"ctx", INTEGER, AT(ctx), 0, 0, 1 << 24, "N", "0", "longest context in tokens; 0 = the model's own"},
    {"backend", STRING, AT(backend), 0, 0, 0, "NAME", "auto", "auto, cpu, cpu-portable, cpu-avx2, cpu-avx512, cuda"},
    {"threads", INTEGER, AT(threads), 0, 0, 1024, "N", "0", "0 = one per available core"},
    {"kv-type", STRING, AT(kv_type), 0, 0, 0, "TYPE", "bf16", "type of keys and values: bf16 or f16"},
    {"kv-bytes", BYTES, AT(kv_bytes), 0, 0, 0, "SIZE", "0", "memory for KV pages; 0 = half of what is free"},
    {"ram-bytes", BYTES, AT(ram_bytes), 0, 0, 0, "SIZE", "0", "compressed KV kept in memory; 0 = 256M"},
    {"disk-bytes", BYTES, AT(disk_bytes), 0, 0, 0, "SIZE", "0", "compressed KV kept on disk; 0 = half of what is free"},
    {"chat-format", STRING, AT(chat_format), 0, 0, 0, "NAME", "auto",
     "how messages are written (chatml, llama3, ...); auto = by the file's own template"},
    {"token-file", STRING, AT(token_file), 0, 0, 0, "FILE", NULL,
     "lines of `name token`; needed for an address that is not loopback"},
    {"allow-origin", LIST, AT(origins), AT(n_origins), 0, 0, "URL", NULL,
     "a web page's origin that may connect; may be repeated"},
    {"allow-host", LIST, AT(hosts), AT(n_hosts), 0, 0, "NAME", NULL,
     "another name under which this machine is reached; may be repeated"},
    {"trusted-proxy", LIST, AT(proxies), AT(n_proxies), 0, 0, "ADDRESS[/BITS]", NULL,
     "a proxy whose X-Forwarded-For is believed; may be repeated"},
    {"idle-seconds", INTEGER, AT(idle_seconds), 0, 0, 7 * 24 * 3600, "N", "600",
     "a conversation's pages are dropped after this time without a turn"},
    {"max-running", INTEGER, AT(max_running), 0, 0, 1024, "N", "8", "turns that run at once"},
    {"max-waiting", INTEGER, AT(max_waiting), 0, 0, 65536, "N", "256", "turns that may wait"},
    {"request-bytes", BYTES, AT(request_bytes), 0, 0, 0, "SIZE", "512M",
     "memory for requests that arrive, wait or run; 0 = no bound"},
    {"max-connections", INTEGER, AT(max_connections), 0, 1, 65536, "N", "1024", "sockets in all"},
    {"max-connections-per-address", INTEGER, AT(max_connections_per_address), 0, 1, 65536, "N", "256",
     "sockets from one address"},
    {"timeout-seconds", INTEGER, AT(timeout_seconds), 0, 1, 3600, "N", "20",
     "for a request to arrive, and for a peer to take what it is sent"},
    {"ping-seconds", INTEGER, AT(ping_seconds), 0, 1, 3600, "N", "25", "between pings of a quiet WebSocket"},
    {"drain-ms", INTEGER, AT(drain_ms), 0, 0, 60000, "N", "1500", "for saving when the service stops"},
    {"log-level", STRING, AT(log_level), 0, 0, 0, "LEVEL", "info", "error, warning, info or debug"},
};
#define N_SETTINGS (sizeof(settings) / sizeof(*settings))

int daemon_bytes_parse(const char *text, uint64_t *out)
{
    size_t digits = strspn(text, "0123456789");
    int64_t n = text_digits(text, digits);
    if (n < 0) {
        return -EINVAL;
    }
    const char *unit = text + digits;
    static const char letters[] = "KMGT";
    uint64_t value = (uint64_t)n;
    if (*unit) {
        const char *letter = strchr(letters, *unit & ~0x20);
        if (!letter || !*letter || (unit[1] && strcasecmp(unit + 1, "iB") != 0 && strcasecmp(unit + 1, "B") != 0)) {
            return -EINVAL;
        }
        for (long i = 0; i <= letter - letters; i++) {
            if (__builtin_mul_overflow(value, (uint64_t)1024, &value)) {
                return -EINVAL;
            }
        }
    }
    *out = value;
    return 0;
}

static int assign(struct daemon_config *c, const struct setting *s, const char *value, const char *where, char *err,
                  size_t err_size)
{
    char *base = (char *)c;
    if (s->type == INTEGER) {
        bool negative = *value == '-';
        int64_t n = text_digits(value + negative, strlen(value + negative));
        if (negative || n < s->min || n > s->max) {
            snprintf(err, err_size, "%s: %s must be a number from %lld to %lld", where, s->name, (long long)s->min,
                     (long long)s->max);
            return -EINVAL;
        }
        int as_int = (int)n;
        memcpy(base + s->offset, &as_int, sizeof(as_int));
        return 0;
    }
    if (s->type == BYTES) {
        uint64_t n;
        if (daemon_bytes_parse(value, &n)) {
            snprintf(err, err_size, "%s: %s must be a size such as 512M or 8G", where, s->name);
            return -EINVAL;
        }
        memcpy(base + s->offset, &n, sizeof(n));
        return 0;
    }
    char **field = (char **)(void *)(base + s->offset);
    if (s->type == LIST) {
        size_t *n = (size_t *)(void *)(base + s->count_offset);
        if (*n == DAEMON_ORIGINS_MAX) {
            snprintf(err, err_size, "%s: more than %d times %s", where, DAEMON_ORIGINS_MAX, s->name);
            return -EINVAL;
        }
        field += *n;
        *field = strdup(value);
        *n += *field != NULL;
        return *field ? 0 : -ENOMEM;
    }
    free(*field);
    *field = strdup(value);
    return *field ? 0 : -ENOMEM;
}

static const struct setting *find(const char *name, size_t len)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (strlen(settings[i].name) == len && strncmp(settings[i].name, name, len) == 0) {
            return &settings[i];
        }
    }
    return NULL;
}

int daemon_config_parse(struct daemon_config *c, const char *text, size_t len, const char *name, char *err,
                        size_t err_size)
{
    if (memchr(text, '\0', len)) {
        snprintf(err, err_size, "%s: contains a NUL byte", name);
        return -EINVAL;
    }
    int number = 0;
    for (size_t at = 0; at < len;) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', len - at);
        size_t n = end ? (size_t)(end - line) : len - at;
        at += n + 1;
        number++;
        while (n > 0 && strchr(" \t\r", line[n - 1])) {
            n--;
        }
        while (n > 0 && (*line == ' ' || *line == '\t')) {
            line++;
            n--;
        }
        if (n == 0 || *line == '#') {
            continue;
        }
        char where[256];
        snprintf(where, sizeof(where), "%.200s:%d", name, number);
        const char *equals = memchr(line, '=', n);
        if (!equals) {
            snprintf(err, err_size, "%s: expected `key = value`", where);
            return -EINVAL;
        }
        size_t key_len = (size_t)(equals - line);
        while (key_len > 0 && (line[key_len - 1] == ' ' || line[key_len - 1] == '\t')) {
            key_len--;
        }
        const struct setting *s = find(line, key_len);
        if (!s) {
            snprintf(err, err_size, "%s: unknown key `%.*s`", where, (int)(key_len > 64 ? 64 : key_len), line);
            return -EINVAL;
        }
        const char *from = equals + 1;
        while (from < line + n && (*from == ' ' || *from == '\t')) {
            from++;
        }
        char *value = strndup(from, (size_t)(line + n - from));
        if (!value) {
            return -ENOMEM;
        }
        int rc = assign(c, s, value, where, err, err_size);
        free(value);
        if (rc) {
            return rc;
        }
    }
    return 0;
}

static int read_file(struct daemon_config *c, const char *path, bool must_exist, char *err, size_t err_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT && !must_exist) {
            return 0;
        }
        int rc = -errno;
        snprintf(err, err_size, "%s: %s", path, strerror(-rc));
        return rc;
    }
    int rc = 0;
    char *text = malloc(CONFIG_FILE_MAX + 1);
    size_t len = 0;
    if (!text) {
        rc = -ENOMEM;
        goto cleanup;
    }
    while (len <= CONFIG_FILE_MAX) {
        ssize_t n = read(fd, text + len, CONFIG_FILE_MAX + 1 - len);
        if (n < 0) {
            rc = -errno;
            snprintf(err, err_size, "%s: %s", path, strerror(-rc));
            goto cleanup;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    if (len > CONFIG_FILE_MAX) {
        snprintf(err, err_size, "%s: larger than %d bytes", path, CONFIG_FILE_MAX);
        rc = -EFBIG;
        goto cleanup;
    }
    rc = daemon_config_parse(c, text, len, path, err, err_size);
cleanup:
    free(text);
    close(fd);
    return rc;
}

/* xdg/convod[tail] or home/fallback/convod[tail]; NULL: neither is known, or out of memory. */
static char *user_path(const char *xdg, const char *home, const char *fallback, const char *tail)
{
    char *path = NULL;
    int n = -1;
    if (xdg && *xdg == '/') {
        n = asprintf(&path, "%s/convod%s", xdg, tail);
    } else if (home && *home == '/') {
        n = asprintf(&path, "%s/%s/convod%s", home, fallback, tail);
    }
    return n < 0 ? NULL : path;
}

static int apply_flags(struct daemon_config *c, int argc, char **argv, enum daemon_config_action *action,
                       const char **file, bool only_file, char *err, size_t err_size)
{
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
            *action = DAEMON_HELP;
            return 0;
        }
        if (strcmp(flag, "--version") == 0) {
            *action = DAEMON_VERSION;
            return 0;
        }
        if (strcmp(flag, "--check-config") == 0) {
            *action = DAEMON_CHECK;
            continue;
        }
        if (strncmp(flag, "--", 2) != 0) {
            snprintf(err, err_size, "unexpected argument `%s`; see convod --help", flag);
            return -EINVAL;
        }
        const char *name = flag + 2;
        const char *equals = strchr(name, '=');
        size_t len = equals ? (size_t)(equals - name) : strlen(name);
        bool is_file = len == 6 && strncmp(name, "config", 6) == 0;
        const struct setting *s = find(name, len);
        if (!s && !is_file) {
            snprintf(err, err_size, "unknown flag `%s`; see convod --help", flag);
            return -EINVAL;
        }
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            snprintf(err, err_size, "--%.*s needs a value", (int)len, name);
            return -EINVAL;
        }
        if (is_file) {
            *file = value;
        } else if (!only_file) {
            int rc = assign(c, s, value, "command line", err, err_size);
            if (rc) {
                return rc;
            }
        }
    }
    return 0;
}

int daemon_config_load(struct daemon_config *c, int argc, char **argv, const char *home, const char *xdg_config,
                       const char *xdg_data, const char *xdg_cache, enum daemon_config_action *action, char *err,
                       size_t err_size)
{
    memset(c, 0, sizeof(*c));
    *action = DAEMON_RUN;
    snprintf(err, err_size, "out of memory");
    int rc = 0;
    for (size_t i = 0; i < N_SETTINGS && !rc; i++) {
        if (settings[i].fallback) {
            rc = assign(c, &settings[i], settings[i].fallback, "default", err, err_size);
        }
    }
    if (rc) {
        return rc;
    }
    const char *file = NULL;
    rc = apply_flags(c, argc, argv, action, &file, true, err, err_size);
    if (rc || *action == DAEMON_HELP || *action == DAEMON_VERSION) {
        return rc;
    }
    if (file) {
        rc = read_file(c, file, true, err, err_size);
    } else {
        char *own = user_path(xdg_config, home, ".config", "/convod.conf");
        rc = own ? read_file(c, own, false, err, err_size) : 0;
        free(own);
    }
    if (rc) {
        return rc;
    }
    rc = apply_flags(c, argc, argv, action, &file, false, err, err_size);
    if (rc) {
        return rc;
    }
    if (!c->data) {
        c->data = user_path(xdg_data, home, ".local/share", "");
    }
    if (!c->cache) {
        c->cache = user_path(xdg_cache, home, ".cache", "");
    }
    return daemon_config_check(c, err, err_size);
}

/* names gets ", chatml, llama3, ..." */
static bool chat_format_known(const char *value, char *names, size_t size)
{
    bool known = strcmp(value, "auto") == 0;
    const char *name;
    size_t n = 0;
    for (size_t i = 0; (name = engine_chat_format_at(i)) != NULL; i++) {
        known |= strcmp(value, name) == 0;
        if (n < size) {
            n += (size_t)snprintf(names + n, size - n, ", %s", name);
        }
    }
    return known;
}

static bool one_of(const char *value, const char *const *list)
{
    for (; *list; list++) {
        if (strcmp(value, *list) == 0) {
            return true;
        }
    }
    return false;
}

/* An origin as browsers send it (RFC 6454, 6.2): scheme://host[:port]. */
static bool origin_well_formed(const char *origin)
{
    const char *authority = strstr(origin, "://");
    return authority && authority != origin && authority[3] && !strpbrk(authority + 3, "/*?#@ ");
}

static const char *malformed_origin(const struct daemon_config *c)
{
    for (size_t i = 0; i < c->n_origins; i++) {
        if (!origin_well_formed(c->origins[i])) {
            return c->origins[i];
        }
    }
    return NULL;
}

static const char *malformed_proxy(const struct daemon_config *c)
{
    for (size_t i = 0; i < c->n_proxies; i++) {
        if (!auth_network_valid(c->proxies[i])) {
            return c->proxies[i];
        }
    }
    return NULL;
}

int daemon_config_check(const struct daemon_config *c, char *err, size_t err_size)
{
    static const char *const backends[] = {"auto", "cpu", "cpu-portable", "cpu-avx2", "cpu-avx512", "cuda", NULL};
    static const char *const kv_types[] = {"bf16", "f16", NULL};
    char names[256] = "";
    static const char *const levels[] = {"error", "warning", "info", "debug", NULL};
    char address[64];
    int port;
    if (!c->model || !*c->model) {
        snprintf(err, err_size, "no model: give --model FILE, or `model = FILE` in the configuration");
    } else if (!c->data || !*c->data) {
        snprintf(err, err_size, "no data directory: give --data DIR");
    } else if (auth_listen_parse(c->listen, address, sizeof(address), &port)) {
        snprintf(err, err_size, "listen must be ADDRESS:PORT with a numeric address, not `%.100s`", c->listen);
    } else if (!auth_address_loopback(address) && !c->token_file) {
        snprintf(err, err_size,
                 "listening on %s needs a token-file: everyone who reaches it could read all conversations", address);
    } else if (malformed_origin(c)) {
        snprintf(err, err_size, "allow-origin must be SCHEME://HOST[:PORT], as https://chat.example.org, not `%.100s`",
                 malformed_origin(c));
    } else if (malformed_proxy(c)) {
        snprintf(err, err_size, "trusted-proxy must be ADDRESS or ADDRESS/BITS, as 10.0.0.0/8, not `%.100s`",
                 malformed_proxy(c));
    } else if (!one_of(c->backend, backends)) {
        snprintf(err, err_size, "backend must be auto, cpu, cpu-portable, cpu-avx2, cpu-avx512 or cuda, not `%.100s`",
                 c->backend);
    } else if (!one_of(c->kv_type, kv_types)) {
        snprintf(err, err_size, "kv-type must be bf16 or f16, not `%.100s`", c->kv_type);
    } else if (!chat_format_known(c->chat_format, names, sizeof(names))) {
        snprintf(err, err_size, "chat-format must be auto%s, not `%.100s`", names, c->chat_format);
    } else if (!one_of(c->log_level, levels)) {
        snprintf(err, err_size, "log-level must be error, warning, info or debug, not `%.100s`", c->log_level);
    } else {
        return 0;
    }
    return -EINVAL;
}

int daemon_config_verify(const struct daemon_config *c, char *err, size_t err_size)
{
    if (access(c->model, R_OK) != 0) {
        int rc = -errno;
        snprintf(err, err_size, "model %.200s: %s", c->model, strerror(-rc));
        return rc;
    }
    struct auth *auth;
    int rc = auth_open(c->token_file, &auth, err, err_size);
    if (rc == 0) {
        auth_free(auth);
    }
    return rc;
}

void daemon_config_free(struct daemon_config *c)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        char *p;
        if (settings[i].type == STRING) {
            memcpy(&p, (char *)c + settings[i].offset, sizeof(p));
            free(p);
        }
    }
    for (size_t i = 0; i < c->n_origins; i++) {
        free(c->origins[i]);
    }
    for (size_t i = 0; i < c->n_hosts; i++) {
        free(c->hosts[i]);
    }
    memset(c, 0, sizeof(*c));
}

char *daemon_config_help(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return NULL;
    }
    fprintf(f, "Usage: convod --model FILE [--data DIR] [--listen ADDRESS:PORT] [options]\n\n"
               "Holds long conversations with a language model: clients send only the new turn, over the\n"
               "Responses API (WebSocket, HTTP, SSE) or Chat Completions. History is never prefilled again.\n\n");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        char left[64];
        snprintf(left, sizeof(left), "--%s %s", s->name, s->unit);
        fprintf(f, "  %-38s %s%s%s%s\n", left, s->help, s->fallback ? " [" : "", s->fallback ? s->fallback : "",
                s->fallback ? "]" : "");
    }
    fprintf(f, "  %-38s %s\n  %-38s %s\n  %-38s %s\n  %-38s %s\n\n", "--config FILE",
            "settings as `key = value` lines, the names above without --", "--check-config",
            "check the settings and exit", "--help", "this text", "--version", "version and exit");
    fprintf(f, "Without --config, $XDG_CONFIG_HOME/convod/convod.conf (~/.config/convod/convod.conf) is read when it\n"
               "exists. Flags win over the file. Sizes are bytes or have a suffix: 512M, 8G.\n\n"
               "When the model is loaded, `convod: ready on http://ADDRESS:PORT` is written to standard error and\n"
               "GET /ready answers 200. SIGTERM stops, SIGHUP reads the token file again.\n");
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}

/* config.c - settings from one file and from flags.
 *
 * Every setting is one row of a table: the same name is a flag (--name VALUE) and a key (name = value) in the file.
 * Flags win over the file, the file over the defaults. Nothing else, no environment variable, changes how convod
 * behaves.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config_private.h"
#include "daemon/tokens.h"
#include "session/session.h"

#define NEAR 2 /* letters that may differ in a name that is meant */

static const char *const backends[] = {"auto",        "cpu",        "cpu-portable", "cpu-avx2",
                                       "cpu-avxvnni", "cpu-avx512", "cuda",         NULL};
static const char *const numerics[] = {"device", "exact", NULL};
static const char *const accept_kv[] = {"same", "any", NULL};
static const char *const kv_types[] = {"bf16", "f16", NULL};
static const char *const levels[] = {"error", "warning", "info", "debug", NULL};

static bool listen_fits(const char *value)
{
    char address[64];
    int port;
    return auth_listen_parse(value, address, sizeof(address), &port) == 0;
}

static void listen_allowed(char *out, size_t size)
{
    snprintf(out, size, "ADDRESS:PORT with a numeric address, as 127.0.0.1:8642 or [::1]:8642");
}

static bool chat_format_fits(const char *value)
{
    bool known = strcmp(value, "auto") == 0;
    const char *name;
    for (size_t i = 0; (name = engine_chat_format_at(i)) != NULL; i++) {
        known |= strcmp(value, name) == 0;
    }
    return known;
}

static void chat_format_allowed(char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "auto");
    const char *name;
    for (size_t i = 0; (name = engine_chat_format_at(i)) != NULL && n < size; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s%s", engine_chat_format_at(i + 1) ? ", " : " or ", name);
    }
}

/* A name or an address alone, without port. */
static bool host_fits(const char *value)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
    unsigned char binary[16];
    return inet_pton(AF_INET6, value, binary) == 1 || (*value && value[strspn(value, letters)] == '\0');
}

static void host_allowed(char *out, size_t size)
{
    snprintf(out, size, "a name or an address alone, as box.lan");
}

/* An origin as browsers send it (RFC 6454, 6.2): scheme://host[:port]. */
static bool origin_fits(const char *value)
{
    static const char scheme[] = "abcdefghijklmnopqrstuvwxyz0123456789+.-";
    size_t n = strspn(value, scheme);
    if (n == 0 || strncmp(value + n, "://", 3) != 0) {
        return false;
    }
    const char *host = value + n + 3, *end = strrchr(host, ':');
    if (*host == '[') {
        const char *close_at = strchr(host, ']');
        end = close_at && close_at[1] == ':' ? close_at + 1 : NULL;
    }
    char name[256];
    size_t len = end ? (size_t)(end - host) : strlen(host);
    int64_t port = end ? text_digits(end + 1, strlen(end + 1)) : 1;
    bool bracketed = *host == '[' && len > 2 && host[len - 1] == ']';
    if (port < 1 || port > 65535 || len == 0 || len >= sizeof(name)) {
        return false;
    }
    snprintf(name, sizeof(name), "%.*s", (int)(bracketed ? len - 2 : len), host + bracketed);
    return host_fits(name) && (strchr(name, ':') != NULL) == bracketed;
}

static void origin_allowed(char *out, size_t size)
{
    snprintf(out, size, "SCHEME://HOST[:PORT], as https://chat.example.org");
}

/* A field's name (RFC 9110, 5.1). */
static bool header_fits(const char *value)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    return strlen(value) < 64 && value[strspn(value, letters)] == '\0';
}

static void header_allowed(char *out, size_t size)
{
    snprintf(out, size, "a header's name, as X-OpenWebUI-User-Id");
}

static bool proxy_fits(const char *value)
{
    return auth_network_valid(value);
}

static void proxy_allowed(char *out, size_t size)
{
    snprintf(out, size, "ADDRESS or ADDRESS/BITS, as 10.0.0.0/8");
}

#define AT(field)     offsetof(struct daemon_config, field)
#define ANY           NULL, NULL, NULL
#define CHOICES(list) list, NULL, NULL
#define FITS(what)    NULL, what##_fits, what##_allowed
static const struct setting settings[] = {
    {"model", STRING, AT(model), 0, 0, 0, "FILE", NULL, "the model, a GGUF file", ANY},
    {"data", STRING, AT(data), 0, 0, 0, "DIR", NULL,
     "conversations and their KV ($XDG_DATA_HOME/convod, ~/.local/share/convod)", ANY},
    {"cache", STRING, AT(cache), 0, 0, 0, "DIR", NULL,
     "what can be computed again ($XDG_CACHE_HOME/convod, ~/.cache/convod)", ANY},
    {"listen", STRING, AT(listen), 0, 0, 0, "ADDRESS:PORT", "127.0.0.1:8642", "port 0 takes a free one", FITS(listen)},
    {"ctx", INTEGER, AT(ctx), 0, 0, 1 << 24, "N", "0", "longest context in tokens; 0 = the model's own", ANY},
    {"backend", STRING, AT(backend), 0, 0, 0, "NAME", "auto",
     "auto, cpu, cpu-portable, cpu-avx2, cpu-avxvnni, cpu-avx512, cuda", CHOICES(backends)},
    {"device", INTEGER, AT(device), 0, 0, 255, "N", "0", "which GPU, counted from 0", ANY},
    {"numerics", STRING, AT(numerics), 0, 0, 0, "NAME", "device",
     "of a GPU: device, its fastest; exact, the same bits on every chip", CHOICES(numerics)},
    {"threads", INTEGER, AT(threads), 0, 0, 1024, "N", "0", "0 = one per available core", ANY},
    {"kv-type", STRING, AT(kv_type), 0, 0, 0, "TYPE", "bf16", "type of keys and values: bf16 or f16",
     CHOICES(kv_types)},
    {"accept-kv", STRING, AT(accept_kv), 0, 0, 0, "WHICH", "same",
     "stored keys and values that are restored: same, of the numerics that run; any, of others too",
     CHOICES(accept_kv)},
    {"kv-bytes", BYTES, AT(kv_bytes), 0, 0, 0, "SIZE", "0",
     "memory for KV pages; 0 = half of what is free, of a GPU all", ANY},
    {"gpu-memory-fraction", FRACTION, AT(gpu_memory_fraction), 0, 0, 0, "N", "0.9",
     "of a GPU's memory, all that is taken of it; with kv-bytes 0, the pages take what weights leave", ANY},
    {"gpu-host-layers", INTEGER, AT(gpu_host_layers), 0, 0, 1024, "N", "0",
     "layers whose weights stay in host memory, where a GPU has no room; every step brings them over the bus", ANY},
    {"ram-bytes", BYTES, AT(ram_bytes), 0, 0, 0, "SIZE", "0", "compressed KV kept in memory; 0 = 256M", ANY},
    {"disk-bytes", BYTES, AT(disk_bytes), 0, 0, 0, "SIZE", "0", "compressed KV kept on disk; 0 = half of what is free",
     ANY},
    {"chat-format", STRING, AT(chat_format), 0, 0, 0, "NAME", "auto",
     "how messages are written (chatml, llama3, ...); auto = by the file's own template", .fits = chat_format_fits,
     .allowed = chat_format_allowed},
    {"token-file", STRING, AT(token_file), 0, 0, 0, "FILE", NULL,
     "lines of `name token`, beside those of `convod token`; an address that is not loopback needs some", ANY},
    {"gateway-user-header", STRING, AT(gateway_user_header), 0, 0, 0, "NAME", NULL,
     "header in which a gateway's token names the user that it speaks for", FITS(header)},
    {"allow-origin", LIST, AT(origins), AT(n_origins), 0, 0, "URL", NULL,
     "a web page's origin that may connect; may be repeated", FITS(origin)},
    {"allow-host", LIST, AT(hosts), AT(n_hosts), 0, 0, "NAME", NULL,
     "another name under which this machine is reached; may be repeated", FITS(host)},
    {"trusted-proxy", LIST, AT(proxies), AT(n_proxies), 0, 0, "ADDRESS[/BITS]", NULL,
     "a proxy whose X-Forwarded-For is believed; may be repeated", FITS(proxy)},
    {"idle-seconds", INTEGER, AT(idle_seconds), 0, 1, 7 * 24 * 3600, "N", "600",
     "a conversation's pages are dropped after this time without a turn", ANY},
    {"retain-days", INTEGER, AT(retain_days), 0, 0, 36500, "N", "0",
     "a conversation is deleted after so many days without a turn; 0 = never", ANY},
    {"owner-conversations", INTEGER, AT(owner_conversations), 0, 0, 1000000000, "N", "0",
     "conversations that an owner may have; 0 = any number", ANY},
    {"owner-ledger-bytes", BYTES, AT(owner_ledger_bytes), 0, 0, 0, "SIZE", "0",
     "what an owner's questions, answers and their tokens may take; 0 = no bound", ANY},
    {"owner-disk-bytes", BYTES, AT(owner_disk_bytes), 0, 0, 0, "SIZE", "0",
     "compressed KV that is kept on disk for one owner; 0 = no bound", ANY},
    {"owner-ram-bytes", BYTES, AT(owner_ram_bytes), 0, 0, 0, "SIZE", "0", "the same in memory; 0 = no bound", ANY},
    {"owner-kv-bytes", BYTES, AT(owner_kv_bytes), 0, 0, 0, "SIZE", "0",
     "KV pages that one owner's conversations may take; 0 = no bound", ANY},
    {"max-running", INTEGER, AT(max_running), 0, 1, 256, "N", "8", "turns that run at once", ANY},
    {"max-waiting", INTEGER, AT(max_waiting), 0, 1, 65536, "N", "256", "turns that may wait", ANY},
    {"max-step-ms", INTEGER, AT(max_step_ms), 0, 0, 60000, "N", "0",
     "prompts are read in pieces that keep others' next tokens waiting this long; 0 = 100, or four tokens' time", ANY},
    {"readers", INTEGER, AT(readers), 0, 0, 64, "N", "0",
     "threads that bring conversations back from RAM and disk; 0 = one per available core", ANY},
    {"request-bytes", BYTES, AT(request_bytes), 0, 64 << 10, 0, "SIZE", "512M",
     "memory for requests that arrive, wait or run, three quarters of it for one owner; 0 = no bound", ANY},
    {"max-connections", INTEGER, AT(max_connections), 0, 1, 65536, "N", "1024", "sockets in all", ANY},
    {"max-connections-per-address", INTEGER, AT(max_connections_per_address), 0, 1, 65536, "N", "256",
     "sockets from one address", ANY},
    {"timeout-seconds", INTEGER, AT(timeout_seconds), 0, 1, 3600, "N", "20",
     "for a request to arrive, and for a peer to take what it is sent", ANY},
    {"ping-seconds", INTEGER, AT(ping_seconds), 0, 1, 3600, "N", "25", "between pings of a quiet WebSocket", ANY},
    {"drain-ms", INTEGER, AT(drain_ms), 0, 0, 60000, "N", "1500", "for saving when the service stops", ANY},
    {"log-level", STRING, AT(log_level), 0, 0, 0, "LEVEL", "info", "error, warning, info or debug", CHOICES(levels)},
};
#define N_SETTINGS (sizeof(settings) / sizeof(*settings))
_Static_assert(N_SETTINGS <= DAEMON_SETTINGS_MAX, "a place is kept for each setting");

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

void daemon_fault(struct daemon_faults *f, const char *format, ...)
{
    char *line = NULL;
    if (f->n < DAEMON_FAULTS_MAX) {
        va_list args;
        va_start(args, format);
        if (vasprintf(&line, format, args) < 0) {
            line = NULL;
        }
        va_end(args);
    }
    if (line) {
        f->lines[f->n++] = line;
    } else {
        f->left_out++;
    }
}

void daemon_faults_free(struct daemon_faults *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->lines[i]);
    }
    memset(f, 0, sizeof(*f));
}

const struct setting *setting_find(const char *name, size_t len)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (strlen(settings[i].name) == len && strncmp(settings[i].name, name, len) == 0) {
            return &settings[i];
        }
    }
    return NULL;
}

/* How many letters must be put in, taken out or changed (Levenshtein). */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t row[64];
    for (size_t j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t least = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[m];
}

const char *setting_near(const char *name, size_t len)
{
    const char *near = NULL;
    size_t best = NEAR + 1;
    for (size_t i = 0; i < N_SETTINGS && len < 64; i++) {
        size_t d = distance(name, len, settings[i].name, strlen(settings[i].name));
        if (d < best && d < len) {
            best = d;
            near = settings[i].name;
        }
    }
    return near;
}

bool setting_is_default(const struct daemon_config *c, const char *name)
{
    return c->given[setting_find(name, strlen(name)) - settings] == SETTING_DEFAULT;
}

const char *setting_place(const struct daemon_config *c, const char *name, char *out, size_t size)
{
    const struct setting *s = setting_find(name, strlen(name));
    int line = c->given[s - settings];
    if (line == SETTING_FLAG) {
        snprintf(out, size, "command line: ");
    } else if (line > 0) {
        snprintf(out, size, "%.200s:%d: ", c->file ? c->file : "", line);
    } else {
        *out = '\0';
    }
    return out;
}

/* What a setting may be, for a message. */
static void say_allowed(const struct setting *s, char *out, size_t size)
{
    if (s->type == INTEGER) {
        snprintf(out, size, "a number from %lld to %lld", (long long)s->min, (long long)s->max);
    } else if (s->type == BYTES) {
        snprintf(out, size, "a size such as 512M or 8G%s", s->min ? ", at least 64K, or 0 for no bound" : "");
    } else if (s->type == FRACTION) {
        snprintf(out, size, "a number above 0, at most 1, such as 0.9");
    } else if (s->choices) {
        size_t n = 0;
        for (size_t i = 0; s->choices[i] && n < size; i++) {
            const char *join = i == 0 ? "" : s->choices[i + 1] ? ", " : " or ";
            n += (size_t)snprintf(out + n, size - n, "%s%s", join, s->choices[i]);
        }
    } else {
        s->allowed(out, size);
    }
}

static bool choice_fits(const struct setting *s, const char *value)
{
    for (const char *const *choice = s->choices; choice && *choice; choice++) {
        if (strcmp(value, *choice) == 0) {
            return true;
        }
    }
    return !s->choices;
}

/* Puts a value that may be into its field. -EINVAL: it may not; -ENOMEM; -ENOSPC: the list is full. */
static int put(struct daemon_config *c, const struct setting *s, const char *value)
{
    char *base = (char *)c;
    if (s->type == INTEGER) {
        int64_t n = text_digits(value, strlen(value));
        int as_int = (int)n;
        if (n < s->min || n > s->max) {
            return -EINVAL;
        }
        memcpy(base + s->offset, &as_int, sizeof(as_int));
        return 0;
    }
    if (s->type == BYTES) {
        uint64_t n;
        if (daemon_bytes_parse(value, &n) || (n && n < (uint64_t)s->min)) {
            return -EINVAL;
        }
        memcpy(base + s->offset, &n, sizeof(n));
        return 0;
    }
    if (s->type == FRACTION) {
        char *end;
        double x = strtod(value, &end); /* the locale is C */
        if (value[strspn(value, "0123456789.")] || end == value || *end || !(x > 0 && x <= 1)) {
            return -EINVAL;
        }
        memcpy(base + s->offset, &x, sizeof(x));
        return 0;
    }
    if (!choice_fits(s, value) || (s->fits && !s->fits(value))) {
        return -EINVAL;
    }
    char **field = (char **)(void *)(base + s->offset);
    size_t *n = s->type == LIST ? (size_t *)(void *)(base + s->count_offset) : NULL;
    if (n && *n == DAEMON_ORIGINS_MAX) {
        return -ENOSPC;
    }
    char *copy = strdup(value);
    if (!copy) {
        return -ENOMEM;
    }
    if (n) {
        field[(*n)++] = copy;
    } else {
        free(*field);
        *field = copy;
    }
    return 0;
}

void setting_was_given(struct daemon_config *c, const struct setting *s, int line)
{
    c->given[s - settings] = line;
}

void setting_assign(struct daemon_config *c, const struct setting *s, const char *value, const char *where, int line,
                    struct daemon_faults *faults)
{
    int *given = &c->given[s - settings];
    if (line > 0 && *given > 0 && s->type != LIST) {
        daemon_fault(faults, "%s: %s was set already, in line %d", where, s->name, *given);
        return;
    }
    *given = line;
    bool tilde = *value == '~' && (strcmp(s->unit, "FILE") == 0 || strcmp(s->unit, "DIR") == 0);
    int rc = tilde ? -ENOTDIR : *value ? put(c, s, value) : -ENODATA;
    if (tilde) { /* a shell that saw it would have */
        daemon_fault(faults, "%s: %s: ~ is not replaced here; write the whole path, not `%.100s`", where, s->name,
                     value);
    } else if (rc == -ENODATA) {
        daemon_fault(faults, "%s: %s: there is no value", where, s->name);
    } else if (rc == -EINVAL) {
        char allowed[512];
        say_allowed(s, allowed, sizeof(allowed));
        daemon_fault(faults, "%s: %s must be %s, not `%.100s`", where, s->name, allowed, value);
    } else if (rc == -ENOSPC) {
        daemon_fault(faults, "%s: more than %d times %s", where, DAEMON_ORIGINS_MAX, s->name);
    } else if (rc) {
        daemon_fault(faults, "%s: out of memory", where);
    }
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

/* A word that would be a flag, as in `convod verify DIR`; or NULL. */
static const char *flag_without_dashes(const char *word)
{
    static const char *const actions[] = {"config", "check-config", "profile", "verify", "repair", "help", "version"};
    if (setting_find(word, strlen(word))) {
        return word;
    }
    for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++) {
        if (strcmp(word, actions[i]) == 0) {
            return word;
        }
    }
    return NULL;
}

/* The flags that say what to do, and the file; the settings among them come last, over the file's. */
static void apply_flags(struct daemon_config *c, int argc, char **argv, enum daemon_config_action *action,
                        const char **file, bool settings_too, struct daemon_faults *faults)
{
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
            *action = DAEMON_HELP;
            return;
        }
        if (strcmp(flag, "--version") == 0) {
            *action = DAEMON_VERSION;
            return;
        }
        if (strcmp(flag, "--check-config") == 0 || strcmp(flag, "--profile") == 0) {
            *action = flag[2] == 'c' ? DAEMON_CHECK : DAEMON_PROFILE;
            continue;
        }
        const char *name = strncmp(flag, "--", 2) == 0 ? flag + 2 : "";
        const char *equals = strchr(name, '=');
        size_t len = equals ? (size_t)(equals - name) : strlen(name);
        bool is_file = len == 6 && strncmp(name, "config", 6) == 0;
        const struct setting *s = setting_find(name, len);
        if (!s && !is_file) {
            const char *near = !settings_too ? NULL : *name ? setting_near(name, len) : flag_without_dashes(flag);
            if (settings_too) {
                daemon_fault(faults, "%s `%s`%s%s%s; see convod --help", *name ? "unknown flag" : "unexpected argument",
                             flag, near ? "; is `--" : "", near ? near : "", near ? "` meant?" : "");
            }
            /* What follows it is most likely its value. */
            i += *name && !equals && i + 1 < argc && argv[i + 1][0] != '-';
            continue;
        }
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            if (settings_too && s) {
                setting_was_given(c, s, SETTING_FLAG);
            }
            if (settings_too) {
                daemon_fault(faults, "--%.*s needs a value", (int)len, name);
            }
        } else if (is_file) {
            *file = value;
        } else if (settings_too) {
            setting_assign(c, s, value, "command line", SETTING_FLAG, faults);
        }
    }
}

/* Whether `convod token` has made any there. */
static bool has_tokens(const char *data)
{
    char *path = data ? tokens_path(data) : NULL;
    bool there = path && access(path, F_OK) == 0;
    free(path);
    return there;
}

/* What is only known at the end. */
static void check_together(const struct daemon_config *c, struct daemon_faults *faults)
{
    char address[64], place[256];
    int port;
    if (!c->model && setting_is_default(c, "model")) {
        daemon_fault(faults, "%s%sno model: give --model FILE, or `model = FILE` in the configuration",
                     c->file ? c->file : "", c->file ? ": " : "");
    }
    if (!c->data || !*c->data) {
        daemon_fault(faults, "no data directory: give --data DIR");
    }
    if (auth_listen_parse(c->listen, address, sizeof(address), &port) == 0 && !auth_address_loopback(address) &&
        !c->token_file && !has_tokens(c->data)) {
        daemon_fault(
            faults,
            "%slisten: %s needs tokens (convod token add, or a token-file): everyone who reaches it could read "
            "all conversations",
            setting_place(c, "listen", place, sizeof(place)), address);
    }
}

int daemon_config_load(struct daemon_config *c, int argc, char **argv, const char *home, const char *xdg_config,
                       const char *xdg_data, const char *xdg_cache, enum daemon_config_action *action,
                       struct daemon_faults *faults)
{
    memset(c, 0, sizeof(*c));
    *action = DAEMON_RUN;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (settings[i].fallback) {
            setting_assign(c, &settings[i], settings[i].fallback, "default", SETTING_DEFAULT, faults);
        }
    }
    const char *file = NULL;
    apply_flags(c, argc, argv, action, &file, false, faults);
    if (*action == DAEMON_HELP || *action == DAEMON_VERSION) {
        return 0;
    }
    c->file = file ? strdup(file) : user_path(xdg_config, home, ".config", "/convod.conf");
    if (!file && c->file && access(c->file, F_OK) != 0) {
        free(c->file);
        c->file = NULL;
    }
    if (file && !c->file) {
        daemon_fault(faults, "out of memory");
    } else if (c->file) {
        (void)daemon_config_read(c, c->file, file != NULL, faults); /* it tells its faults */
    }
    apply_flags(c, argc, argv, action, &file, true, faults);
    if (!c->data) {
        c->data = user_path(xdg_data, home, ".local/share", "");
    }
    if (!c->cache) {
        c->cache = user_path(xdg_cache, home, ".cache", "");
    }
    check_together(c, faults);
    return faults->n + faults->left_out ? -EINVAL : 0;
}

void daemon_config_folders(const struct daemon_config *c)
{
    const struct {
        const char *name, *path;
    } rows[] = {{"data", c->data}, {"cache", c->cache}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        char *path = rows[i].path && setting_is_default(c, rows[i].name) ? strdup(rows[i].path) : NULL;
        for (char *slash = path ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            (void)mkdir(path, 0700); /* what is wrong is told of the folder itself */
            *slash = '/';
        }
        free(path);
    }
}

void daemon_config_free(struct daemon_config *c)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        char **field = (char **)(void *)((char *)c + s->offset);
        size_t n = s->type == STRING ? 1 : s->type == LIST ? *(size_t *)(void *)((char *)c + s->count_offset) : 0;
        for (size_t j = 0; j < n; j++) {
            free(field[j]);
        }
    }
    free(c->file);
    memset(c, 0, sizeof(*c));
}

#define HELP_COLUMN  33
#define HELP_COLUMNS 79

/* A flag and what it does, broken between words. */
static void help_row(FILE *f, const char *flag, const char *text)
{
    int at = fprintf(f, "  %-*s", HELP_COLUMN - 2, flag);
    while (*text) {
        int len = (int)strcspn(text, " ");
        if (at > HELP_COLUMN && at + 1 + len > HELP_COLUMNS) {
            at = fprintf(f, "\n%*s", HELP_COLUMN, "") - 1;
        }
        at += fprintf(f, " %.*s", len, text);
        text += len + (text[len] == ' ');
    }
    fputc('\n', f);
}

char *daemon_config_help(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return NULL;
    }
    fprintf(f, "Usage: convod --model FILE [--data DIR] [--listen ADDRESS:PORT] [options]\n"
               "       convod backup DIR [--with-kv] [--data DIR | --config FILE]\n\n"
               "Holds long conversations with a language model: clients send only the new\n"
               "turn, over the Responses API (WebSocket, HTTP, SSE), Chat Completions,\n"
               "Completions or Anthropic's Messages. History is never prefilled again.\n\n"
               "convod token add|list|revoke changes who may use it, convod backup copies the\n"
               "conversations; see convod token --help and convod backup --help.\n\n");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const struct setting *s = &settings[i];
        char left[64], right[256];
        snprintf(left, sizeof(left), "--%s %s", s->name, s->unit);
        snprintf(right, sizeof(right), "%s%s%s%s", s->help, s->fallback ? " [" : "", s->fallback ? s->fallback : "",
                 s->fallback ? "]" : "");
        help_row(f, left, right);
    }
    static const char *const actions[][2] = {
        {"--config FILE", "settings as `key = value` lines, the names above without --"},
        {"--check-config", "try the settings as a start would, tell all that is wrong, and exit"},
        {"--profile", "load the model, print where the time of its steps goes, and exit"},
        {"--verify DIR", "check every row and record of a data directory that is not in use, and exit"},
        {"--repair DIR", "the same; what is damaged is given up or made anew"},
        {"--help", "this text"},
        {"--version", "version and exit"},
    };
    for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++) {
        help_row(f, actions[i][0], actions[i][1]);
    }
    fprintf(f, "\nWithout --config, $XDG_CONFIG_HOME/convod/convod.conf\n"
               "(~/.config/convod/convod.conf) is read when it exists. Flags win over the file.\n"
               "Sizes are bytes or have a suffix: 512M, 8G.\n\n"
               "When the model is loaded, `convod: ready on http://ADDRESS:PORT` is written to\n"
               "standard error and GET /ready answers 200. SIGTERM stops, SIGHUP reads the\n"
               "tokens again.\n");
    bool bad = ferror(f) != 0;
    if (fclose(f) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}

/* auth.c - who may speak to us, and as whom.
 *
 * Tokens are kept as SHA-256 digests and compared in constant time, all of them every time. A token file that others
 * can read or write is refused: what is in it may be known to them, or theirs. A page in a browser can reach a loopback
 * listener under any name it makes resolve there, so Host and Origin are checked as well: Host must name this machine
 * when we listen on loopback without tokens, Origin must be the same host or configured.
 */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/tokens.h"

#define TOKEN_FILE_LINE_MAX  1024
#define TOKEN_BYTES_MIN      16
#define AUTHORIZATION_PREFIX "Bearer "

_Static_assert(TOKEN_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "the digest is SHA-256");

struct auth {
    bool required;
    struct token_list tokens;
    const struct token_row **by_digest;
};

static int parse_line(struct auth *a, char *line, int number, const char *path, char *err, size_t err_size)
{
    char *save = NULL;
    char *name = strtok_r(line, " \t\r\n", &save);
    if (!name || *name == '#') {
        return 0;
    }
    char *token = strtok_r(NULL, " \t\r\n", &save);
    if (!token || strtok_r(NULL, " \t\r\n", &save)) {
        snprintf(err, err_size, "%s:%d: expected `name token`", path, number);
        return -EINVAL;
    }
    if (!token_owner_valid(name)) {
        snprintf(err, err_size, "%s:%d: the name is longer than %d bytes, or has a /", path, number, OWNER_SIZE - 1);
        return -EINVAL;
    }
    if (strlen(token) < TOKEN_BYTES_MIN) {
        snprintf(err, err_size, "%s:%d: the token is shorter than %d bytes", path, number, TOKEN_BYTES_MIN);
        return -EINVAL;
    }
    struct token_row row = {.scope = AUTH_ALL};
    SHA256((const unsigned char *)token, strlen(token), row.digest);
    snprintf(row.owner, sizeof(row.owner), "%s", name);
    OPENSSL_cleanse(token, strlen(token));
    int rc = tokens_append(&a->tokens, &row);
    if (rc) {
        snprintf(err, err_size, "%s: %s", path, rc == -E2BIG ? "there are too many tokens" : "out of memory");
    }
    return rc;
}

/* Whether nobody else can know or set what is in the file: it is ours or root's, and has no rights for others. Root's
 * may be readable by a group; that is also how a service sees its credential, which is root's with an entry for its
 * user. */
static int check_private(int fd, const char *path, char *err, size_t err_size)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int rc = -errno;
        snprintf(err, err_size, "token file %s: %s", path, strerror(-rc));
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        snprintf(err, err_size, "token file %s is not a regular file", path);
        return -EINVAL;
    }
    if (st.st_uid != geteuid() && st.st_uid != 0) {
        snprintf(err, err_size, "token file %s belongs to another user (%u): it must be ours or root's", path,
                 st.st_uid);
        return -EPERM;
    }
    mode_t others = st.st_mode & (S_IRWXG | S_IRWXO);
    if (others & ~(st.st_uid == 0 ? (mode_t)S_IRGRP : 0)) {
        snprintf(err, err_size,
                 "token file %s can be read or written by others (mode %04o): chmod 600 makes it private", path,
                 st.st_mode & 07777);
        return -EPERM;
    }
    return 0;
}

static FILE *open_private(const char *path, int *rc, char *err, size_t err_size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        *rc = -errno;
        const char *credentials = getenv("CREDENTIALS_DIRECTORY");
        bool hint = *rc == -EACCES && credentials;
        snprintf(err, err_size, "token file %s: %s%s%s%s", path, strerror(-*rc),
                 hint ? "; a service reads its copy, " : "", hint ? credentials : "", hint ? "/tokens" : "");
        return NULL;
    }
    *rc = check_private(fd, path, err, err_size);
    FILE *f = *rc ? NULL : fdopen(fd, "r");
    if (!f) {
        *rc = *rc ? *rc : -ENOMEM;
        close(fd);
    }
    return f;
}

static int read_token_file(struct auth *a, const char *path, char *err, size_t err_size)
{
    int rc = 0;
    FILE *f = open_private(path, &rc, err, err_size);
    if (!f) {
        return rc;
    }
    char line[TOKEN_FILE_LINE_MAX];
    for (int number = 1; fgets(line, sizeof(line), f); number++) {
        if (!strchr(line, '\n') && !feof(f)) {
            snprintf(err, err_size, "%s:%d: the line is longer than %d bytes", path, number, TOKEN_FILE_LINE_MAX - 2);
            rc = -EINVAL;
            break;
        }
        rc = parse_line(a, line, number, path, err, err_size);
        if (rc) {
            break;
        }
    }
    OPENSSL_cleanse(line, sizeof(line));
    if (!rc && ferror(f)) {
        snprintf(err, err_size, "token file %s: read error", path);
        rc = -EIO;
    }
    fclose(f);
    if (!rc && a->tokens.n == 0) {
        snprintf(err, err_size, "token file %s has no tokens", path);
        rc = -EINVAL;
    }
    return rc;
}

/* What `convod token` made. Where the file is there a token is needed, whatever is in it. */
static int read_made(struct auth *a, const char *data, char *err, size_t err_size)
{
    char *path = tokens_path(data);
    if (!path) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    int rc = 0;
    FILE *f = access(path, F_OK) == 0 || errno != ENOENT ? open_private(path, &rc, err, err_size) : NULL;
    if (f) {
        a->required = true;
        rc = tokens_read(f, path, &a->tokens, err, err_size);
        fclose(f);
    }
    free(path);
    return rc;
}

/* Of one token that stands twice, the last is the last. */
static int by_digest(const void *a, const void *b)
{
    const struct token_row *x = *(const struct token_row *const *)a, *y = *(const struct token_row *const *)b;
    int rc = memcmp(x->digest, y->digest, TOKEN_DIGEST_BYTES);
    return rc ? rc : (x > y) - (x < y);
}

static int sort(struct auth *a, char *err, size_t err_size)
{
    a->by_digest = calloc(a->tokens.n + 1, sizeof(const struct token_row *));
    if (!a->by_digest) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    for (size_t i = 0; i < a->tokens.n; i++) {
        a->by_digest[i] = &a->tokens.rows[i];
    }
    qsort(a->by_digest, a->tokens.n, sizeof(const struct token_row *), by_digest);
    return 0;
}

int auth_open(const char *token_file, const char *data, struct auth **out, char *err, size_t err_size)
{
    struct auth *a = calloc(1, sizeof(*a));
    if (!a) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    a->required = token_file != NULL;
    int rc = token_file ? read_token_file(a, token_file, err, err_size) : 0;
    rc = rc || !data ? rc : read_made(a, data, err, err_size);
    rc = rc ? rc : sort(a, err, err_size);
    if (rc) {
        auth_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

void auth_free(struct auth *a)
{
    if (!a) {
        return;
    }
    tokens_free(&a->tokens);
    free(a->by_digest);
    free(a);
}

bool auth_required(const struct auth *a)
{
    return a->required;
}

static bool ended(const struct token_row *t)
{
    return t->expires_s && t->expires_s <= (int64_t)time(NULL);
}

/* All are compared, every time. NULL: there is none, or it has ended. */
static const struct token_row *find(const struct auth *a, const unsigned char digest[TOKEN_DIGEST_BYTES])
{
    const struct token_row *found = NULL;
    for (size_t i = 0; i < a->tokens.n; i++) {
        if (CRYPTO_memcmp(digest, a->tokens.rows[i].digest, TOKEN_DIGEST_BYTES) == 0) {
            found = &a->tokens.rows[i];
        }
    }
    return found && !ended(found) ? found : NULL;
}

/* The same for a token that was taken before, of which nothing can be learnt: it is asked for all connections at once.
 */
static const struct token_row *find_again(const struct auth *a, const unsigned char digest[TOKEN_DIGEST_BYTES])
{
    size_t from = 0, to = a->tokens.n;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (memcmp(a->by_digest[middle]->digest, digest, TOKEN_DIGEST_BYTES) <= 0) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    const struct token_row *last = from > 0 ? a->by_digest[from - 1] : NULL;
    return last && memcmp(last->digest, digest, TOKEN_DIGEST_BYTES) == 0 && !ended(last) ? last : NULL;
}

bool auth_known(const struct auth *a, const struct auth_who *who)
{
    if (!a->required) {
        return true;
    }
    const struct token_row *t = find_again(a, who->digest);
    size_t n = t ? strlen(t->owner) : 0;
    return t && t->scope == who->scope && strncmp(t->owner, who->owner, n) == 0 &&
           (who->owner[n] == '\0' || (t->scope == AUTH_GATEWAY && who->owner[n] == '/'));
}

int auth_owner(const struct auth *a, const char *authorization, const char *user, struct auth_who *out)
{
    *out = (struct auth_who){.scope = AUTH_ALL};
    if (!a->required) {
        snprintf(out->owner, sizeof(out->owner), "local");
        return 0;
    }
    size_t prefix_len = strlen(AUTHORIZATION_PREFIX);
    if (!authorization || strncasecmp(authorization, AUTHORIZATION_PREFIX, prefix_len) != 0) {
        return -EACCES;
    }
    const char *token = authorization + prefix_len;
    SHA256((const unsigned char *)token, strlen(token), out->digest);
    const struct token_row *t = find(a, out->digest);
    if (!t) {
        return -EACCES;
    }
    out->scope = t->scope;
    out->patient = t->patient;
    if (t->scope != AUTH_GATEWAY || !user || !*user) {
        memcpy(out->owner, t->owner, sizeof(out->owner));
        return 0;
    }
    int n = token_owner_valid(user) ? snprintf(out->owner, sizeof(out->owner), "%s/%s", t->owner, user) : -1;
    return n > 0 && (size_t)n < sizeof(out->owner) ? 0 : -EINVAL;
}

int64_t auth_next_end(const struct auth *a)
{
    int64_t next = 0;
    for (size_t i = 0; i < a->tokens.n; i++) {
        const struct token_row *t = &a->tokens.rows[i];
        if (t->expires_s && !ended(t) && (!next || t->expires_s < next)) {
            next = t->expires_s;
        }
    }
    return next;
}

bool auth_inherits(const struct auth *a, size_t *at, const char **from, const char **to, const char **why)
{
    while (*at < a->tokens.n) {
        const struct token_row *t = &a->tokens.rows[(*at)++];
        if (t->inherits[0]) {
            *from = t->inherits;
            *to = t->owner;
            *why = t->id;
            return true;
        }
    }
    return false;
}

bool auth_limits(const struct auth *a, size_t *at, struct auth_limits *out)
{
    while (*at < a->tokens.n) {
        const struct token_row *t = &a->tokens.rows[a->tokens.n - ++*at];
        if (t->limits.given) {
            *out = t->limits;
            out->owner = t->owner;
            return true;
        }
    }
    return false;
}

/* The host of "host:port", "[v6]:port", "host", lower case, where that is all there is. False: malformed. */
static bool host_name(const char *value, char *out, size_t size)
{
    size_t n = strcspn(value, *value == '[' ? "]" : ":");
    const char *port = value + n;
    if (*value == '[') {
        unsigned char binary[16];
        value++;
        n = n > 0 ? n - 1 : 0;
        char v6[INET6_ADDRSTRLEN] = "";
        if (*port != ']' || n >= sizeof(v6)) {
            return false;
        }
        memcpy(v6, value, n);
        port++;
        if (inet_pton(AF_INET6, v6, binary) != 1) {
            return false;
        }
    }
    if (n == 0 || n >= size ||
        (*port && (*port != ':' || (port[1] && text_digits(port + 1, strlen(port + 1)) < 0) ||
                   text_digits(port + 1, strlen(port + 1)) > 65535))) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = (char)tolower((unsigned char)value[i]);
    }
    out[n] = '\0';
    return true;
}

bool auth_address_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1) {
        return (ntohl(v4.s_addr) >> 24) == 127;
    }
    if (inet_pton(AF_INET6, address, &v6) == 1) {
        return IN6_IS_ADDR_LOOPBACK(&v6);
    }
    return false;
}

int auth_listen_parse(const char *listen, char *address, size_t address_size, int *port)
{
    const char *colon = strrchr(listen, ':');
    if (!colon || colon == listen) {
        return -EINVAL;
    }
    const char *from = listen;
    size_t n = (size_t)(colon - listen);
    if (*from == '[') {
        if (from[n - 1] != ']' || n < 3) {
            return -EINVAL;
        }
        from++;
        n -= 2;
    }
    if (n >= address_size) {
        return -EINVAL;
    }
    int64_t value = text_digits(colon + 1, strlen(colon + 1));
    if (value < 0 || value > 65535) {
        return -EINVAL;
    }
    char text[64];
    if (n >= sizeof(text)) {
        return -EINVAL;
    }
    memcpy(text, from, n);
    text[n] = '\0';
    if (strcmp(text, "localhost") == 0) {
        snprintf(text, sizeof(text), "127.0.0.1");
    }
    unsigned char binary[16];
    if (inet_pton(AF_INET, text, binary) != 1 && inet_pton(AF_INET6, text, binary) != 1) {
        return -EINVAL;
    }
    if (strlen(text) >= address_size) {
        return -EINVAL;
    }
    memcpy(address, text, strlen(text) + 1);
    *port = (int)value;
    return 0;
}

bool auth_host_allowed(const struct daemon_config *c, const char *host)
{
    char name[256];
    if (!host_name(host, name, sizeof(name))) {
        return false;
    }
    if (strcmp(name, "localhost") == 0 || auth_address_loopback(name)) {
        return true;
    }
    for (size_t i = 0; i < c->n_hosts; i++) {
        if (strcasecmp(name, c->hosts[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool auth_origin_allowed(const struct daemon_config *c, const char *origin, const char *host)
{
    for (size_t i = 0; i < c->n_origins; i++) {
        if (strcasecmp(origin, c->origins[i]) == 0) {
            return true;
        }
    }
    size_t scheme = strncasecmp(origin, "http://", 7) == 0 ? 7 : strncasecmp(origin, "https://", 8) == 0 ? 8 : 0;
    return scheme && host && *host && strcasecmp(origin + scheme, host) == 0;
}

/* An address as 16 bytes, IPv4 mapped into IPv6, and how many bits of it count. */
static bool network_parse(const char *text, unsigned char out[16], int *bits)
{
    char address[INET6_ADDRSTRLEN];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    if (n >= sizeof(address)) {
        return false;
    }
    memcpy(address, text, n);
    address[n] = '\0';
    memset(out, 0, 16);
    int most = 128;
    if (inet_pton(AF_INET, address, out + 12) == 1) {
        out[10] = out[11] = 0xff;
        most = 32;
    } else if (inet_pton(AF_INET6, address, out) != 1) {
        return false;
    }
    int64_t given = slash ? text_digits(slash + 1, strlen(slash + 1)) : most;
    if (given < 0 || given > most) {
        return false;
    }
    *bits = 128 - most + (int)given;
    return true;
}

bool auth_network_valid(const char *network)
{
    unsigned char binary[16];
    int bits;
    return network_parse(network, binary, &bits);
}

bool auth_proxy_trusted(const struct daemon_config *c, const char *address)
{
    unsigned char peer[16], proxy[16];
    int all, bits;
    if (c->n_proxies == 0 || !network_parse(address, peer, &all)) {
        return false;
    }
    for (size_t i = 0; i < c->n_proxies; i++) {
        if (!network_parse(c->proxies[i], proxy, &bits)) {
            continue;
        }
        int whole = bits / 8, rest = bits % 8;
        unsigned mask = rest ? 0xffU << (8 - rest) & 0xffU : 0;
        if (memcmp(peer, proxy, (size_t)whole) == 0 && (!rest || ((peer[whole] ^ proxy[whole]) & mask) == 0)) {
            return true;
        }
    }
    return false;
}

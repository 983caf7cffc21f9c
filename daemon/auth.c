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
#include <unistd.h>

#include "daemon/daemon.h"

#define TOKENS_MAX           10000
#define TOKEN_FILE_LINE_MAX  1024
#define TOKEN_BYTES_MIN      16
#define AUTHORIZATION_PREFIX "Bearer "

_Static_assert(TOKEN_DIGEST_BYTES == SHA256_DIGEST_LENGTH, "the digest is SHA-256");

struct token {
    unsigned char digest[TOKEN_DIGEST_BYTES];
    char owner[OWNER_SIZE];
};

struct auth {
    bool required;
    struct token *tokens;
    size_t n;
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
    if (strlen(name) >= OWNER_SIZE) {
        snprintf(err, err_size, "%s:%d: the name is longer than %d bytes", path, number, OWNER_SIZE - 1);
        return -EINVAL;
    }
    if (strlen(token) < TOKEN_BYTES_MIN) {
        snprintf(err, err_size, "%s:%d: the token is shorter than %d bytes", path, number, TOKEN_BYTES_MIN);
        return -EINVAL;
    }
    if (a->n == TOKENS_MAX) {
        snprintf(err, err_size, "%s: more than %d tokens", path, TOKENS_MAX);
        return -EINVAL;
    }
    struct token *grown = realloc(a->tokens, (a->n + 1) * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    a->tokens = grown;
    struct token *t = &a->tokens[a->n++];
    SHA256((const unsigned char *)token, strlen(token), t->digest);
    snprintf(t->owner, sizeof(t->owner), "%s", name);
    OPENSSL_cleanse(token, strlen(token));
    return 0;
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

int auth_open(const char *path, struct auth **out, char *err, size_t err_size)
{
    struct auth *a = calloc(1, sizeof(*a));
    if (!a) {
        return -ENOMEM;
    }
    if (!path) {
        *out = a;
        return 0;
    }
    a->required = true;
    int rc = 0;
    FILE *f = open_private(path, &rc, err, err_size);
    if (!f) {
        goto fail;
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
    if (!rc && a->n == 0) {
        snprintf(err, err_size, "token file %s has no tokens", path);
        rc = -EINVAL;
    }
    if (!rc) {
        *out = a;
        return 0;
    }
fail:
    auth_free(a);
    return rc;
}

void auth_free(struct auth *a)
{
    if (!a) {
        return;
    }
    free(a->tokens);
    free(a);
}

bool auth_required(const struct auth *a)
{
    return a->required;
}

/* All are compared, every time. */
static const struct token *find(const struct auth *a, const unsigned char digest[TOKEN_DIGEST_BYTES])
{
    const struct token *found = NULL;
    for (size_t i = 0; i < a->n; i++) {
        if (CRYPTO_memcmp(digest, a->tokens[i].digest, TOKEN_DIGEST_BYTES) == 0) {
            found = &a->tokens[i];
        }
    }
    return found;
}

bool auth_known(const struct auth *a, const char *owner, const unsigned char digest[TOKEN_DIGEST_BYTES])
{
    const struct token *t = a->required ? find(a, digest) : NULL;
    return !a->required || (t && strcmp(t->owner, owner) == 0);
}

bool auth_owner(const struct auth *a, const char *authorization, char owner[OWNER_SIZE],
                unsigned char digest[TOKEN_DIGEST_BYTES])
{
    if (!a->required) {
        memset(digest, 0, TOKEN_DIGEST_BYTES);
        snprintf(owner, OWNER_SIZE, "local");
        return true;
    }
    size_t prefix_len = strlen(AUTHORIZATION_PREFIX);
    if (!authorization || strncasecmp(authorization, AUTHORIZATION_PREFIX, prefix_len) != 0) {
        return false;
    }
    const char *token = authorization + prefix_len;
    SHA256((const unsigned char *)token, strlen(token), digest);
    const struct token *found = find(a, digest);
    if (!found) {
        return false;
    }
    snprintf(owner, OWNER_SIZE, "%s", found->owner);
    return true;
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

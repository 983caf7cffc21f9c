/* tokens.c - the file of tokens that `convod token` keeps. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/tokens.h"

#define LINE_MAX_BYTES 512
#define ID_PREFIX      "tok_"
#define TOKEN_PREFIX   "convod_"

static const char *const scopes[] = {[AUTH_ALL] = "all", [AUTH_METRICS] = "metrics", [AUTH_GATEWAY] = "gateway"};
#define N_SCOPES (sizeof(scopes) / sizeof(*scopes))

const char *auth_scope_name(enum auth_scope scope)
{
    return scopes[scope];
}

int auth_scope_find(const char *name, enum auth_scope *out)
{
    for (size_t i = 0; i < N_SCOPES; i++) {
        if (strcmp(name, scopes[i]) == 0) {
            *out = (enum auth_scope)i;
            return 0;
        }
    }
    return -EINVAL;
}

void tokens_free(struct token_list *list)
{
    free(list->rows);
    *list = (struct token_list){0};
}

int tokens_append(struct token_list *list, const struct token_row *row)
{
    if (list->n == TOKENS_MAX) {
        return -E2BIG;
    }
    struct token_row *grown = realloc(list->rows, (list->n + 1) * sizeof(*grown));
    if (!grown) {
        return -ENOMEM;
    }
    list->rows = grown;
    list->rows[list->n++] = *row;
    return 0;
}

bool token_owner_valid(const char *name)
{
    size_t n = strlen(name);
    if (n == 0 || n >= OWNER_SIZE || *name == '#' || strchr(name, '/') || !utf8_valid(name, n)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] <= ' ' || name[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

#define SIZE "a size such as 512M or 8G"
static const struct {
    const char *name;
    bool bytes;
    uint64_t most;
    const char *allowed;
} limits[AUTH_LIMITS] = {[LIMIT_CONVERSATIONS] = {"conversations", false, 1000000000, "a number from 0 to 1000000000"},
                         [LIMIT_LEDGER_BYTES] = {"ledger-bytes", true, INT64_MAX, SIZE},
                         [LIMIT_DISK_BYTES] = {"disk-bytes", true, INT64_MAX, SIZE},
                         [LIMIT_RAM_BYTES] = {"ram-bytes", true, INT64_MAX, SIZE},
                         [LIMIT_KV_BYTES] = {"kv-bytes", true, INT64_MAX, SIZE},
                         [LIMIT_RETAIN_DAYS] = {"retain-days", false, 36500, "a number of days from 0 to 36500"}};

const char *token_limit_name(enum auth_limit limit)
{
    return limits[limit].name;
}

const char *token_limit_allowed(const char *name)
{
    size_t i = 0;
    while (i + 1 < AUTH_LIMITS && strcmp(limits[i].name, name) != 0) {
        i++;
    }
    return limits[i].allowed;
}

int token_limit_set(struct token_row *row, const char *name, size_t name_len, const char *value)
{
    for (size_t i = 0; i < AUTH_LIMITS; i++) {
        if (strlen(limits[i].name) != name_len || strncmp(limits[i].name, name, name_len) != 0) {
            continue;
        }
        uint64_t n = 0;
        int64_t digits = limits[i].bytes ? 0 : text_digits(value, strlen(value));
        if (digits < 0 || (limits[i].bytes && daemon_bytes_parse(value, &n))) {
            return -EINVAL;
        }
        n = limits[i].bytes ? n : (uint64_t)digits;
        if (n > limits[i].most) {
            return -EINVAL;
        }
        row->limits.values[i] = n;
        row->limits.given |= 1U << i;
        return 0;
    }
    return -ENOENT;
}

/* ---- reading -------------------------------------------------------------------------------------------------------
 */

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_digest(const char *text, unsigned char out[TOKEN_DIGEST_BYTES])
{
    if (strlen(text) != (size_t)TOKEN_DIGEST_BYTES * 2) {
        return false;
    }
    for (size_t i = 0; i < TOKEN_DIGEST_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

/* One "name=value" of a line. False: neither the name nor the value may be other than they are written by us. */
static bool read_field(const char *field, struct token_row *row)
{
    const char *value = strchr(field, '=');
    size_t n = value ? (size_t)(value - field) : 0;
    if (!value) {
        return false;
    }
    value++;
    if (n == 7 && strncmp(field, "created", n) == 0) {
        row->created_s = text_digits(value, strlen(value));
        return row->created_s >= 0;
    }
    if (n == 7 && strncmp(field, "expires", n) == 0) {
        row->expires_s = strcmp(value, "never") == 0 ? 0 : text_digits(value, strlen(value));
        return strcmp(value, "never") == 0 || row->expires_s > 0;
    }
    if (n == 5 && strncmp(field, "scope", n) == 0) {
        return auth_scope_find(value, &row->scope) == 0;
    }
    if (n == 8 && strncmp(field, "priority", n) == 0) {
        row->patient = strcmp(value, "background") == 0;
        return row->patient;
    }
    if (n == 8 && strncmp(field, "inherits", n) == 0 && token_owner_valid(value)) {
        snprintf(row->inherits, sizeof(row->inherits), "%s", value);
        return true;
    }
    return token_limit_set(row, field, n, value) == 0;
}

/* What is wrong with a line, or NULL. */
static const char *read_line(char *line, struct token_row *row)
{
    static const char digest_mark[] = "sha256:";
    char *save = NULL;
    const char *id = strtok_r(line, " \t\r\n", &save);
    const char *owner = strtok_r(NULL, " \t\r\n", &save);
    const char *digest = strtok_r(NULL, " \t\r\n", &save);
    *row = (struct token_row){.scope = AUTH_ALL};
    if (strlen(id) >= sizeof(row->id) || strncmp(id, ID_PREFIX, sizeof(ID_PREFIX) - 1) != 0) {
        return "it does not begin with an id `tok_…`";
    }
    snprintf(row->id, sizeof(row->id), "%s", id);
    if (!owner || !token_owner_valid(owner)) {
        return "the owner's name is missing or cannot be one";
    }
    snprintf(row->owner, sizeof(row->owner), "%s", owner);
    if (!digest || strncmp(digest, digest_mark, sizeof(digest_mark) - 1) != 0 ||
        !read_digest(digest + sizeof(digest_mark) - 1, row->digest)) {
        return "there is no `sha256:` with 64 digits";
    }
    for (const char *field; (field = strtok_r(NULL, " \t\r\n", &save)) != NULL;) {
        if (!read_field(field, row)) {
            return "a field behind the digest is not known";
        }
    }
    return NULL;
}

int tokens_read(FILE *f, const char *name, struct token_list *list, char *err, size_t err_size)
{
    char line[LINE_MAX_BYTES];
    for (int number = 1; fgets(line, sizeof(line), f); number++) {
        size_t blank = strspn(line, " \t\r\n");
        if (!strchr(line, '\n') && !feof(f)) {
            snprintf(err, err_size, "%s:%d: the line is longer than %d bytes", name, number, LINE_MAX_BYTES - 2);
            return -EINVAL;
        }
        if (line[blank] == '\0' || line[blank] == '#') {
            continue;
        }
        struct token_row row;
        const char *wrong = read_line(line + blank, &row);
        if (wrong) {
            snprintf(err, err_size, "%s:%d: %s", name, number, wrong);
            return -EINVAL;
        }
        int rc = tokens_append(list, &row);
        if (rc) {
            snprintf(err, err_size, "%s: %s", name, rc == -E2BIG ? "there are too many tokens" : "out of memory");
            return rc;
        }
    }
    if (ferror(f)) {
        snprintf(err, err_size, "%s: read error", name);
        return -EIO;
    }
    return 0;
}

char *tokens_path(const char *data)
{
    char *path = NULL;
    return asprintf(&path, "%s/" TOKENS_FILE, data) < 0 ? NULL : path;
}

/* ---- changing ------------------------------------------------------------------------------------------------------
 */

struct change {
    int dirfd; /* locked */
    struct token_list list;
};

static int fail(int rc, const char *data, const char *what, char *err, size_t err_size)
{
    snprintf(err, err_size, "%s/%s: %s", data, what, strerror(-rc));
    return rc;
}

static void change_end(struct change *c)
{
    tokens_free(&c->list);
    if (c->dirfd >= 0) {
        close(c->dirfd);
    }
}

/* The folder, locked against others of us, and the rows that are there. */
static int change_begin(struct change *c, const char *data, char *err, size_t err_size)
{
    *c = (struct change){.dirfd = -1};
    if (mkdir(data, 0700) != 0 && errno != EEXIST) {
        return fail(-errno, data, "", err, err_size);
    }
    c->dirfd = open(data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dirfd < 0 || flock(c->dirfd, LOCK_EX) != 0) {
        return fail(-errno, data, "", err, err_size);
    }
    int fd = openat(c->dirfd, TOKENS_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? 0 : fail(-errno, data, TOKENS_FILE, err, err_size);
    }
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return fail(-ENOMEM, data, TOKENS_FILE, err, err_size);
    }
    int rc = tokens_read(f, TOKENS_FILE, &c->list, err, err_size);
    fclose(f);
    return rc;
}

static int write_rows(FILE *f, const struct token_list *list)
{
    fputs("# Made by `convod token`, which replaces this file. A token itself is nowhere, this is its SHA-256.\n", f);
    for (size_t i = 0; i < list->n; i++) {
        const struct token_row *r = &list->rows[i];
        char digest[2 * TOKEN_DIGEST_BYTES + 1];
        text_hex(r->digest, sizeof(r->digest), digest);
        fprintf(f, "%s %s sha256:%s", r->id, r->owner, digest);
        fprintf(f, " created=%lld expires=", (long long)r->created_s);
        if (r->expires_s) {
            fprintf(f, "%lld", (long long)r->expires_s);
        } else {
            fputs("never", f);
        }
        fprintf(f, " scope=%s%s%s%s", scopes[r->scope], r->patient ? " priority=background" : "",
                r->inherits[0] ? " inherits=" : "", r->inherits);
        for (size_t j = 0; j < AUTH_LIMITS; j++) {
            if (r->limits.given & 1U << j) {
                fprintf(f, " %s=%llu", limits[j].name, (unsigned long long)r->limits.values[j]);
            }
        }
        fputc('\n', f);
    }
    return fflush(f) == 0 && fsync(fileno(f)) == 0 ? 0 : -errno;
}

/* The new file is whole on the disk before it has the name. */
static int change_write(struct change *c, const char *data, char *err, size_t err_size)
{
    static const char name[] = TOKENS_FILE ".new";
    if (unlinkat(c->dirfd, name, 0) != 0 && errno != ENOENT) {
        return fail(-errno, data, name, err, err_size);
    }
    int fd = openat(c->dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        int rc = -errno;
        if (fd >= 0) {
            close(fd);
        }
        return fail(rc, data, name, err, err_size);
    }
    int rc = write_rows(f, &c->list);
    if (fclose(f) != 0 && !rc) {
        rc = -errno;
    }
    if (!rc && renameat(c->dirfd, name, c->dirfd, TOKENS_FILE) != 0) {
        rc = -errno;
    }
    if (!rc && fsync(c->dirfd) != 0) {
        rc = -errno;
    }
    if (rc) {
        (void)unlinkat(c->dirfd, name, 0);
        return fail(rc, data, TOKENS_FILE, err, err_size);
    }
    return 0;
}

/* A random id and token. */
static int make_token(struct token_row *row, char token[TOKEN_TEXT_SIZE])
{
    unsigned char id[8], secret[24];
    if (RAND_bytes(id, sizeof(id)) != 1 || RAND_bytes(secret, sizeof(secret)) != 1) {
        return -EIO;
    }
    memcpy(row->id, ID_PREFIX, sizeof(ID_PREFIX));
    text_hex(id, sizeof(id), row->id + sizeof(ID_PREFIX) - 1);
    memcpy(token, TOKEN_PREFIX, sizeof(TOKEN_PREFIX));
    text_hex(secret, sizeof(secret), token + sizeof(TOKEN_PREFIX) - 1);
    SHA256((const unsigned char *)token, strlen(token), row->digest);
    OPENSSL_cleanse(secret, sizeof(secret));
    return 0;
}

int tokens_add(const char *data, struct token_row *row, char token[TOKEN_TEXT_SIZE], char *err, size_t err_size)
{
    struct change c;
    int rc = change_begin(&c, data, err, err_size);
    if (!rc) {
        row->created_s = (int64_t)time(NULL);
        rc = make_token(row, token);
        rc = rc ? rc : tokens_append(&c.list, row);
        rc = rc == -E2BIG ? -EDQUOT : rc;
        if (rc) {
            snprintf(err, err_size, "%s", rc == -EDQUOT ? "there are too many tokens" : strerror(-rc));
        }
    }
    rc = rc ? rc : change_write(&c, data, err, err_size);
    change_end(&c);
    return rc;
}

int tokens_revoke(const char *data, const char *which, size_t *n, char *err, size_t err_size)
{
    struct change c;
    int rc = change_begin(&c, data, err, err_size);
    size_t kept = 0;
    for (size_t i = 0; i < c.list.n; i++) {
        const struct token_row *r = &c.list.rows[i];
        if (strcmp(r->id, which) != 0 && strcmp(r->owner, which) != 0) {
            c.list.rows[kept++] = *r;
        }
    }
    *n = c.list.n - kept;
    c.list.n = kept;
    if (!rc && *n == 0) {
        snprintf(err, err_size, "no token has the id or the owner `%s`; see convod token list", which);
        rc = -ENOENT;
    }
    rc = rc ? rc : change_write(&c, data, err, err_size);
    change_end(&c);
    return rc;
}

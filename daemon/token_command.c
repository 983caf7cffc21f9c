/* token_command.c - `convod token add|list|revoke`: who may use the daemon, changed while it runs. */
#include <errno.h>
#include <grp.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/tokens.h"

#define EXIT_USAGE  2
#define DAY_SECONDS 86400
#define DAYS_MAX    36500

static const char usage[] =
    "Usage: convod token add OWNER [--expires DAYS] [--scope all|metrics|gateway] [--priority background]\n"
    "                        [--inherit OWNER] [--LIMIT N]...\n"
    "       convod token list\n"
    "       convod token revoke ID|OWNER\n\n"
    "Tokens are kept in the data folder, as SHA-256. A running daemon takes a change at once; while the file of "
    "tokens\n"
    "is there, every request needs one. `add` prints the new token once, alone, on standard output.\n\n"
    "  --data DIR          the data folder of the daemon\n"
    "  --config FILE       or the configuration that names it\n"
    "  --expires DAYS      the token ends after so many days [never]\n"
    "  --scope all         everything, as OWNER [default]\n"
    "  --scope metrics     GET /metrics only\n"
    "  --scope gateway     speaks for users of its own, whom the header of gateway-user-header names: OWNER/USER\n"
    "  --priority background  what it asks for gets the places and the time that others leave\n"
    "  --inherit OWNER     what OWNER has becomes the new owner's, once; `local` has what was made without tokens\n\n"
    "What the owner may have, instead of what the daemon's settings say; 0 = no limit:\n"
    "  --conversations N   owner-conversations\n"
    "  --ledger-bytes SIZE owner-ledger-bytes\n"
    "  --disk-bytes SIZE   owner-disk-bytes\n"
    "  --ram-bytes SIZE    owner-ram-bytes\n"
    "  --kv-bytes SIZE     owner-kv-bytes\n"
    "  --retain-days N     retain-days\n";

struct request {
    const char *verb, *name;
    struct token_row row;
    int argc; /* the flags that the configuration understands: --data, --config */
    char **argv;
};

static int complain(const char *format, const char *what)
{
    fputs("convod: ", stderr);
    fprintf(stderr, format, what); /* NOLINT: the formats are ours */
    fputs("; see convod token --help\n", stderr);
    return EXIT_USAGE;
}

static int read_flag(struct request *r, const char *flag, const char *value)
{
    if (strcmp(flag, "--expires") == 0) {
        int64_t days = text_digits(value, strlen(value));
        if (days < 1 || days > DAYS_MAX) {
            return complain("--expires must be a number of days from 1 to 36500, not `%s`", value);
        }
        r->row.expires_s = (int64_t)time(NULL) + days * DAY_SECONDS;
        return 0;
    }
    if (strcmp(flag, "--scope") == 0) {
        return auth_scope_find(value, &r->row.scope)
                   ? complain("--scope must be all, metrics or gateway, not `%s`", value)
                   : 0;
    }
    if (strcmp(flag, "--priority") == 0) {
        r->row.patient = strcmp(value, "background") == 0;
        return r->row.patient || strcmp(value, "interactive") == 0
                   ? 0
                   : complain("--priority must be interactive or background, not `%s`", value);
    }
    int rc = token_limit_set(&r->row, flag + 2, strlen(flag + 2), value);
    if (rc != -ENOENT) {
        if (rc) {
            fprintf(stderr, "convod: %s must be %s, not `%s`; see convod token --help\n", flag,
                    token_limit_allowed(flag + 2), value);
        }
        return rc ? EXIT_USAGE : 0;
    }
    if (!token_owner_valid(value)) {
        return complain("`%s` cannot be an owner's name", value);
    }
    snprintf(r->row.inherits, sizeof(r->row.inherits), "%s", value);
    return 0;
}

/* Whether it is a flag of `add`. */
static bool is_of_add(const char *flag)
{
    static const char *const own[] = {"--expires", "--scope", "--priority", "--inherit"};
    bool is = false;
    for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++) {
        is |= strcmp(flag, own[i]) == 0;
    }
    for (int i = 0; i < AUTH_LIMITS; i++) {
        is |= strncmp(flag, "--", 2) == 0 && strcmp(flag + 2, token_limit_name((enum auth_limit)i)) == 0;
    }
    return is;
}

/* 0, or the exit status. */
static int read_arguments(struct request *r, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *a = argv[i], *equals = strchr(a, '=');
        char flag[32];
        if (a[0] != '-') {
            if (r->name) {
                return complain("there is an argument too many: `%s`", a);
            }
            *(r->verb ? &r->name : &r->verb) = a;
            continue;
        }
        snprintf(flag, sizeof(flag), "%.*s", equals ? (int)(equals - a) : (int)strlen(a), a);
        bool of_add = is_of_add(flag), is_file = strcmp(flag, "--config") == 0;
        if (of_add && (!r->verb || strcmp(r->verb, "add") != 0)) {
            return complain("%s belongs to `add`", flag);
        }
        if (!of_add && !is_file && strcmp(flag, "--data") != 0) {
            return complain("unknown flag `%s`", a);
        }
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            return complain("%s needs a value", flag);
        }
        if (is_file && access(value, R_OK) != 0) { /* the folder by default is not what was meant */
            fprintf(stderr, "convod: %s: %s\n", value, strerror(errno));
            return EXIT_USAGE;
        }
        if (of_add) {
            int rc = read_flag(r, flag, value);
            if (rc) {
                return rc;
            }
            continue;
        }
        if (!equals) {
            r->argv[r->argc++] = argv[i - 1];
        }
        r->argv[r->argc++] = argv[i];
    }
    return r->verb ? 0 : complain("%s what: add, list or revoke?", "token");
}

/* Goes into the data folder and becomes whom it belongs to: what root makes there a service could not read, and the way
 * to it may be root's alone. */
static int enter(const char *data, bool make)
{
    struct stat st;
    if (stat(data, &st) != 0) {
        if (errno != ENOENT || !make || mkdir(data, 0700) != 0 || stat(data, &st) != 0) {
            fprintf(stderr, "convod: %s: %s\n", data, strerror(errno));
            return EXIT_FAILURE;
        }
    }
    if (chdir(data) != 0) {
        fprintf(stderr, "convod: %s: %s\n", data, strerror(errno));
        return EXIT_FAILURE;
    }
    if (geteuid() == 0 && st.st_uid != 0 &&
        (setgroups(0, NULL) != 0 || setgid(st.st_gid) != 0 || setuid(st.st_uid) != 0)) {
        fprintf(stderr, "convod: cannot become the owner of %s: %s\n", data, strerror(errno));
        return EXIT_FAILURE;
    }
    return 0;
}

/* What is made where no daemon looks is of no use: it is told. */
static int add(struct request *r, const char *data)
{
    char token[TOKEN_TEXT_SIZE], err[512] = "";
    if (!r->name || !token_owner_valid(r->name)) {
        return complain("`%s` cannot be an owner's name: it wants 1 to 63 bytes without blanks, / or a leading #",
                        r->name ? r->name : "");
    }
    snprintf(r->row.owner, sizeof(r->row.owner), "%s", r->name);
    if (tokens_add(".", &r->row, token, err, sizeof(err))) {
        fprintf(stderr, "convod: %s: %s\n", data, err);
        return EXIT_FAILURE;
    }
    if (access("ledger.db", F_OK) != 0) {
        fprintf(stderr, "No convod has used %s yet: is it the --data of yours?\n", data);
    }
    fprintf(stderr, "%s is a new token of %s, in %s; it is shown this once:\n", r->row.id, r->row.owner, data);
    int rc = puts(token) == EOF || fflush(stdout) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    OPENSSL_cleanse(token, sizeof(token));
    return rc;
}

static void print_day(int64_t seconds, char out[16])
{
    time_t t = (time_t)seconds;
    struct tm tm;
    snprintf(out, 16, "never");
    if (seconds && gmtime_r(&t, &tm)) {
        (void)strftime(out, 16, "%Y-%m-%d", &tm);
    }
}

static int list(const char *data)
{
    struct token_list rows = {0};
    char err[512] = "";
    FILE *f = fopen(TOKENS_FILE, "re");
    if (!f && errno != ENOENT) {
        fprintf(stderr, "convod: %s/%s: %s\n", data, TOKENS_FILE, strerror(errno));
        return EXIT_FAILURE;
    }
    int rc = f ? tokens_read(f, TOKENS_FILE, &rows, err, sizeof(err)) : 0;
    if (rc) {
        fprintf(stderr, "convod: %s/%s\n", data, err);
    } else if (!f) {
        fprintf(stderr, "There are no tokens in %s; convod token add OWNER makes the first.\n", data);
    } else {
        printf("%-21s %-10s %-10s %-8s %s\n", "ID", "CREATED", "EXPIRES", "SCOPE", "OWNER");
        for (size_t i = 0; i < rows.n; i++) {
            const struct token_row *row = &rows.rows[i];
            char created[16], expires[16];
            print_day(row->created_s, created);
            print_day(row->expires_s, expires);
            bool ended = row->expires_s && row->expires_s <= (int64_t)time(NULL);
            printf("%-21s %-10s %-10s %-8s %s%s%s", row->id, created, expires, auth_scope_name(row->scope), row->owner,
                   row->patient ? " (background)" : "", ended ? " (ended)" : "");
            for (int j = 0; j < AUTH_LIMITS; j++) {
                if (row->limits.given & 1U << j) {
                    printf(" %s=%llu", token_limit_name((enum auth_limit)j), (unsigned long long)row->limits.values[j]);
                }
            }
            putchar('\n');
        }
    }
    if (f) {
        fclose(f);
    }
    tokens_free(&rows);
    return rc || fflush(stdout) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int take_away(const char *which, const char *data)
{
    char err[512] = "";
    size_t n = 0;
    if (!which) {
        return complain("revoke needs the %s of a token, or an owner", "id");
    }
    int rc = tokens_revoke(".", which, &n, err, sizeof(err));
    if (rc) {
        fprintf(stderr, "convod: %s: %s\n", data, err);
        return EXIT_FAILURE;
    }
    fprintf(stderr, "%zu token%s revoked in %s\n", n, n == 1 ? "" : "s", data);
    return EXIT_SUCCESS;
}

int token_command(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return fputs(usage, stdout) == EOF || fflush(stdout) != 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        }
    }
    struct request r = {.argv = calloc((size_t)argc + 1, sizeof(*r.argv))};
    if (!r.argv) {
        return EXIT_FAILURE;
    }
    r.argv[r.argc++] = argv[0];
    int rc = read_arguments(&r, argc, argv);
    bool is_list = r.verb && strcmp(r.verb, "list") == 0, is_add = r.verb && strcmp(r.verb, "add") == 0;
    if (!rc && !is_list && !is_add && strcmp(r.verb, "revoke") != 0) {
        rc = complain("there is no `token %s`", r.verb);
    }
    if (!rc) {
        char *data = command_data(r.argc, r.argv, NULL);
        rc = !data || !*data ? complain("no data folder: give %s", "--data DIR") : enter(data, is_add);
        if (!rc) {
            rc = is_list ? list(data) : is_add ? add(&r, data) : take_away(r.name, data);
        }
        free(data);
    }
    free(r.argv);
    return rc;
}

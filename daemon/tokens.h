/* tokens.h - the tokens that the operator made with `convod token`, in DIR/tokens beside the ledger.
 *
 * A token is 192 random bits; the file has its SHA-256, so that reading the file gives nobody a token. A line each:
 *
 *     tok_4f1c… alice sha256:… created=1764500000 expires=never scope=all priority=background inherits=local
 *         conversations=100
 *
 * The file is replaced as a whole, under a lock on the folder; a running daemon sees that and reads it again. While the
 * file is there, every request needs a token, also when none is left in it: revoking the last one opens nothing.
 */
#ifndef CONVOD_DAEMON_TOKENS_H
#define CONVOD_DAEMON_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/daemon.h"

#define TOKENS_FILE     "tokens"
#define TOKENS_MAX      10000
#define TOKEN_ID_SIZE   24
#define TOKEN_TEXT_SIZE 64

struct token_row {
    char id[TOKEN_ID_SIZE]; /* "" in a token-file of names and tokens */
    char owner[OWNER_SIZE];
    unsigned char digest[TOKEN_DIGEST_BYTES];
    int64_t created_s, expires_s; /* wall clock; expires_s 0: never */
    enum auth_scope scope;
    bool patient;              /* priority=background */
    char inherits[OWNER_SIZE]; /* the owner whose conversations become this one's; "": none */
    struct auth_limits limits; /* `owner` is not set */
};
/* "conversations", "ledger-bytes", "disk-bytes", "ram-bytes", "kv-bytes", "retain-days". */
const char *token_limit_name(enum auth_limit limit);
/* What a limit of this name may be, in words; the name is one of them. */
const char *token_limit_allowed(const char *name);
/* What a limit of this name is set to. -ENOENT: no limit is called that; -EINVAL: it cannot be that. */
int token_limit_set(struct token_row *row, const char *name, size_t name_len, const char *value);

struct token_list {
    struct token_row *rows;
    size_t n;
};
void tokens_free(struct token_list *list);
/* Appends. -ENOMEM, or -E2BIG beyond TOKENS_MAX. */
int tokens_append(struct token_list *list, const struct token_row *row);
/* Whether a name may be an owner's: 1 to OWNER_SIZE - 1 printable bytes of UTF-8 without blanks, no '/' (which parts a
 * gateway's name from its users'), no '#' in front. */
bool token_owner_valid(const char *name);

/* Reads the rows of a file as above from f; `name` is for messages. -EINVAL: what a line has is named. */
int tokens_read(FILE *f, const char *name, struct token_list *list, char *err, size_t err_size);
/* Path of the file of a data folder. malloc'd; NULL: out of memory. */
char *tokens_path(const char *data);

/* What `convod token add` does: a new row in the file of the data folder, which both are made when they are missing.
 * token gets the text to hand out, which nothing keeps. -EDQUOT: there are TOKENS_MAX. */
int tokens_add(const char *data, struct token_row *row, char token[TOKEN_TEXT_SIZE], char *err, size_t err_size);
/* Takes every row away whose id or owner is `which`; *n gets how many. -ENOENT: none. */
int tokens_revoke(const char *data, const char *which, size_t *n, char *err, size_t err_size);

/* `convod token ...`, of which argv[1] is "token". The exit status. */
int token_command(int argc, char **argv);

#endif

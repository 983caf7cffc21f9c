/* schema.c - opening ledger.db and kv.db, their versions, and the cache of prepared statements.
 *
 * A database's user_version counts the steps of its schema that were applied. An older one is copied to FILE.vN
 * (readable by the older program) before the missing steps run, all in one transaction; when the new one is found to be
 * whole the copy is overwritten and removed, because what is deleted later would stay in it. A newer one is refused.
 * Opening looks at the file's first page and its schema only, so that it takes the same time however many rows there
 * are; a page that is damaged further in shows when it is read.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define APPLICATION_ID 0x636f6e76 /* "conv" */
#define STRING_OF(x)   #x
#define STRING(x)      STRING_OF(x)

static const char *const ledger_steps[] = {
    "CREATE TABLE owners(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, key BLOB NOT NULL);"
    "CREATE TABLE conversations(id INTEGER PRIMARY KEY AUTOINCREMENT, owner INTEGER NOT NULL REFERENCES owners(id),"
    " public_id TEXT NOT NULL UNIQUE, kind INTEGER NOT NULL, title TEXT, metadata TEXT, instructions TEXT,"
    " head INTEGER NOT NULL, created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL,"
    " n_turns INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX conversations_listed ON conversations(owner, updated_ms DESC, id DESC) WHERE kind = 0;"
    "CREATE TABLE turns(id INTEGER PRIMARY KEY AUTOINCREMENT, owner INTEGER NOT NULL REFERENCES owners(id),"
    " conversation INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,"
    " parent INTEGER REFERENCES turns(id), public_id TEXT NOT NULL UNIQUE, status INTEGER NOT NULL, reason TEXT,"
    " instructions TEXT, input TEXT, output TEXT, detail TEXT, prompt_bytes INTEGER NOT NULL,"
    " rebased INTEGER NOT NULL, n_tokens INTEGER NOT NULL, fingerprint BLOB NOT NULL, chat_hash BLOB,"
    " created_ms INTEGER NOT NULL, completed_ms INTEGER NOT NULL, tokens BLOB NOT NULL);"
    "CREATE INDEX turns_conversation ON turns(conversation);"
    "CREATE INDEX turns_parent ON turns(parent) WHERE parent IS NOT NULL;"
    "CREATE INDEX turns_chat ON turns(owner, chat_hash, fingerprint) WHERE chat_hash IS NOT NULL;"
    "CREATE TABLE holds(turn INTEGER PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE, key BLOB NOT NULL);"
    "CREATE INDEX holds_key ON holds(key);"
    "CREATE TABLE intents(id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, pack INTEGER NOT NULL,"
    " offset INTEGER NOT NULL, bytes INTEGER NOT NULL);",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;",
};
const struct schema schema_ledger = {.file = "ledger.db",
                                     .steps = ledger_steps,
                                     .n_steps = sizeof ledger_steps / sizeof *ledger_steps,
                                     .full_sync = true};

static const char *const kv_steps[] = {
    "CREATE TABLE segments(id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, parent BLOB NOT NULL,"
    " fingerprint BLOB NOT NULL, owner INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,"
    " label BLOB NOT NULL, producer TEXT NOT NULL, pack INTEGER, offset INTEGER, bytes INTEGER NOT NULL,"
    " used INTEGER NOT NULL);"
    "CREATE INDEX segments_parent ON segments(parent, owner, fingerprint, label);"
    "CREATE INDEX segments_used ON segments(used, first DESC);"
    "CREATE INDEX segments_place ON segments(pack, offset);"
    "CREATE TABLE packs(n INTEGER PRIMARY KEY, end INTEGER NOT NULL, live_bytes INTEGER NOT NULL,"
    " live_count INTEGER NOT NULL);",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;",
};
const struct schema schema_kv = {.file = "kv.db",
                                 .steps = kv_steps,
                                 .n_steps = sizeof kv_steps / sizeof *kv_steps,
                                 .full_sync = false,
                                 .large_pages = true};

/* What the system said last on this thread, or another value. */
static int system_errno(int otherwise)
{
    int error = vfs_error_take();
    return error ? -error : otherwise;
}

int schema_errno(int sqlite_rc)
{
    if (sqlite_rc == SQLITE_IOERR_NOMEM)
        return -ENOMEM;
    switch (sqlite_rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_FULL:
        return system_errno(-ENOSPC);
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return -EBADMSG;
    case SQLITE_CONSTRAINT:
        return (sqlite_rc == SQLITE_CONSTRAINT_UNIQUE || sqlite_rc == SQLITE_CONSTRAINT_PRIMARYKEY) ? -EEXIST : -EINVAL;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_TOOBIG:
        return -E2BIG;
    case SQLITE_CANTOPEN:
        return system_errno(-EACCES);
    case SQLITE_PERM:
    case SQLITE_READONLY:
        return -EACCES;
    default:
        return system_errno(-EIO);
    }
}

/* contains(text, part): whether text contains part, ignoring case (ASCII letters). */
static void contains(sqlite3_context *ctx, int n, sqlite3_value **v)
{
    (void)n;
    const char *text = (const char *)sqlite3_value_text(v[0]), *part = (const char *)sqlite3_value_text(v[1]);
    sqlite3_result_int(ctx, text && part && strcasestr(text, part) != NULL);
}

static int pragma_int(sqlite3 *db, const char *sql, int *value)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(s);
        if (rc == SQLITE_ROW) {
            *value = sqlite3_column_int(s, 0);
            rc = SQLITE_OK;
        }
    }
    (void)sqlite3_finalize(s);
    return schema_errno(rc);
}

static int exec(sqlite3 *db, const char *sql)
{
    return schema_errno(sqlite3_exec(db, sql, NULL, NULL, NULL));
}

static int snapshot(const struct schema *s, sqlite3 *db, int dirfd, const char *dir, int version)
{
    char *file = sqlite3_mprintf("%s.v%d", s->file, version);
    char *sql = sqlite3_mprintf("VACUUM INTO '%q/%q.v%d'", dir, s->file, version);
    int rc = file && sql ? 0 : -ENOMEM;
    if (!rc && unlinkat(dirfd, file, 0) && errno != ENOENT)
        rc = -errno;
    if (!rc)
        rc = exec(db, sql);
    if (!rc) {
        int fd = openat(dirfd, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        rc = fd < 0 || fchmod(fd, 0600) || fsync(fd) || fsync(dirfd) ? -errno : 0;
        if (fd >= 0)
            (void)close(fd);
    }
    sqlite3_free(sql);
    sqlite3_free(file);
    return rc;
}

/* Also those of a newer version whose migration failed. */
static int copies_erase(const struct schema *s, int dirfd)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        int rc = -errno;
        if (fd >= 0)
            (void)close(fd);
        return rc;
    }
    size_t n = strlen(s->file);
    int rc = 0;
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (!strncmp(e->d_name, s->file, n) && !strncmp(e->d_name + n, ".v", 2) && e->d_name[n + 2] &&
            strspn(e->d_name + n + 2, "0123456789") == strlen(e->d_name + n + 2))
            rc = vfs_erase(dirfd, e->d_name);
    (void)closedir(d);
    return rc;
}

/* Whether a query gives nothing else than `want` (NULL: no row at all). */
static int gives(sqlite3 *db, const char *sql, const char *want)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &q, NULL), n = 0;
    bool good = true;
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(q, 0);
        good &= want && text && !strcmp(text, want);
        n++;
        rc = SQLITE_OK;
    }
    (void)sqlite3_finalize(q);
    rc = schema_errno(rc);
    return rc ? rc : good && n == (want ? 1 : 0) ? 0 : -EBADMSG;
}

/* The log is emptied too: what the copy is compared with is the file. */
static int verify(sqlite3 *db)
{
    int rc = schema_errno(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL));
    if (!rc)
        rc = gives(db, "PRAGMA integrity_check(1)", "ok");
    return rc ? rc : gives(db, "PRAGMA foreign_key_check", NULL);
}

static int migrate(const struct schema *s, sqlite3 *db, int dirfd, const char *dir)
{
    int version = 0;
    int rc = pragma_int(db, "PRAGMA user_version", &version);
    if (rc)
        return rc;
    if (version > s->n_steps || version < 0)
        return -EPROTO;
    if (version == s->n_steps)
        return copies_erase(s, dirfd);
    if (version > 0) {
        rc = snapshot(s, db, dirfd, dir, version);
        if (rc)
            return rc;
    }
    rc = exec(db, "BEGIN IMMEDIATE");
    for (int i = version; !rc && i < s->n_steps; i++)
        rc = exec(db, s->steps[i]);
    if (!rc) {
        char sql[96];
        (void)snprintf(sql, sizeof sql, "PRAGMA user_version = %d; PRAGMA application_id = %d", s->n_steps,
                       APPLICATION_ID);
        rc = exec(db, sql);
    }
    if (!rc)
        rc = exec(db, "COMMIT");
    if (rc)
        (void)exec(db, "ROLLBACK");
    if (!rc && version > 0)
        rc = verify(db);
    return rc ? rc : copies_erase(s, dirfd);
}

int schema_scrub(struct storage_ledger *l, enum stmt_db which)
{
    static const char done[] = "scrubbed";
    bool ledger = which == STMT_LEDGER;
    sqlite3 *db = ledger ? l->db : l->kv;
    uint8_t value;
    size_t n;
    int page_bytes = 0, rc = meta_get(l, ledger ? S_META_GET : S_KV_META_GET, done, &value, sizeof value, &n);
    if (rc)
        return rc < 0 ? rc : 0;
    rc = schema_errno(sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL));
    if (!rc)
        rc = pragma_int(db, "PRAGMA page_size", &page_bytes);
    if (!rc)
        rc = vfs_scrub(db, page_bytes);
    return rc ? rc : meta_set(l, ledger ? S_META_SET : S_KV_META_SET, done, "1", 1);
}

int schema_open(const struct schema *s, int dirfd, const char *dir, sqlite3 **out, char *err, size_t err_size)
{
    sqlite3 *db = NULL;
    const char *vfs = vfs_name();
    char *path = vfs ? sqlite3_mprintf("%s/%s", dir, s->file) : NULL;
    /* SQLite would make it readable for others; its -wal and -shm take over this mode. */
    int fd = path ? openat(dirfd, s->file, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    int rc = !path ? -ENOMEM : fd < 0 ? -errno : 0;
    if (fd >= 0)
        (void)close(fd);
    if (!rc)
        rc = schema_errno(sqlite3_open_v2(
            path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
            vfs));
    if (!rc)
        rc = exec(db, "PRAGMA locking_mode = EXCLUSIVE"); /* vfs.c has no shared memory */
    int application = 0, objects = 0;
    if (!rc)
        rc = pragma_int(db, "SELECT count(*) FROM sqlite_schema", &objects);
    if (!rc)
        rc = pragma_int(db, "PRAGMA application_id", &application);
    if (!rc && objects > 0 && application != APPLICATION_ID)
        rc = -EBADMSG;
    if (!rc && (sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL) != SQLITE_OK ||
                sqlite3_create_function_v2(db, "contains", 2, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL, contains, NULL,
                                           NULL, NULL) != SQLITE_OK))
        rc = -ENOMEM;
    /* Of a new file: labels of a thousand bytes and more should not need overflow pages. */
    if (!rc && objects == 0 && s->large_pages)
        rc = exec(db, "PRAGMA page_size = 8192");
    if (!rc)
        rc = exec(db, "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
                      "PRAGMA secure_delete = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384;"
                      "PRAGMA max_page_count = " STRING(VFS_PAGES_MAX));
    if (!rc)
        rc = exec(db, s->full_sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
    if (!rc)
        rc = migrate(s, db, dirfd, dir);
    if (rc && err_size)
        (void)snprintf(err, err_size, "%s/%s: %s%s%s", dir, s->file,
                       rc == -EPROTO    ? "written by a newer version"
                       : rc == -EBADMSG ? "damaged, or not a database of convod"
                                        : strerror(-rc),
                       db && rc != -EPROTO ? ": " : "", db && rc != -EPROTO ? sqlite3_errmsg(db) : "");
    if (rc)
        (void)sqlite3_close(db);
    else
        *out = db;
    sqlite3_free(path);
    return rc;
}

/* ---- prepared statements ----------------------------------------------------------------------------------------- */

static const struct {
    enum stmt_db db;
    const char *sql;
} statements[] = {
#define STMT(id, db, sql) {db, sql},
#include "storage/statements.def"
#undef STMT
};

sqlite3_stmt *stmt_get(struct storage_ledger *l, enum stmt_id id, int *rc)
{
    *rc = statements[id].db == STMT_KV ? l->kv_rc : 0;
    if (*rc)
        return NULL;
    if (!l->stmts[id]) {
        sqlite3 *db = statements[id].db == STMT_LEDGER ? l->db : l->kv;
        *rc = schema_errno(
            sqlite3_prepare_v3(db, statements[id].sql, -1, SQLITE_PREPARE_PERSISTENT, &l->stmts[id], NULL));
    }
    return l->stmts[id];
}

int stmt_step(struct storage_ledger *l, sqlite3_stmt *s)
{
    int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        return 1;
    (void)sqlite3_reset(s);
    (void)sqlite3_clear_bindings(s);
    rc = schema_errno(rc);
    if (rc == -EBADMSG && sqlite3_db_handle(s) == l->kv)
        atomic_store(&l->st->kv_damaged, true);
    return rc;
}

void stmt_reset(sqlite3_stmt *s)
{
    (void)sqlite3_reset(s);
    (void)sqlite3_clear_bindings(s);
}

int stmt_run(struct storage_ledger *l, sqlite3_stmt *s, int *changes)
{
    int rc = stmt_step(l, s);
    if (rc > 0) {
        stmt_reset(s);
        rc = 0;
    }
    if (changes)
        *changes = sqlite3_changes(sqlite3_db_handle(s));
    return rc;
}

void bind_text(sqlite3_stmt *s, int at, const char *text)
{
    (void)sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC);
}

void bind_blob(sqlite3_stmt *s, int at, const void *p, size_t n)
{
    (void)sqlite3_bind_blob64(s, at, n ? p : "", n, SQLITE_STATIC);
}

int column_text(sqlite3_stmt *s, int at, char **out)
{
    *out = NULL;
    if (sqlite3_column_type(s, at) == SQLITE_NULL)
        return 0;
    const unsigned char *text = sqlite3_column_text(s, at);
    *out = text ? strdup((const char *)text) : NULL;
    return *out ? 0 : -ENOMEM;
}

int column_bytes(sqlite3_stmt *s, int at, uint8_t *out, size_t n)
{
    if (sqlite3_column_type(s, at) == SQLITE_NULL) {
        memset(out, 0, n);
        return 0;
    }
    if ((size_t)sqlite3_column_bytes(s, at) != n)
        return -EBADMSG;
    memcpy(out, sqlite3_column_blob(s, at), n);
    return 0;
}

int meta_get(struct storage_ledger *l, enum stmt_id get, const char *key, void *value, size_t size, size_t *n)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, get, &rc);
    if (!s)
        return rc;
    bind_text(s, 1, key);
    rc = stmt_step(l, s);
    if (rc != 1)
        return rc;
    size_t have = (size_t)sqlite3_column_bytes(s, 0);
    if (have > size)
        rc = -EBADMSG;
    else if (have)
        memcpy(value, sqlite3_column_blob(s, 0), have);
    *n = have;
    stmt_reset(s);
    return rc;
}

int meta_set(struct storage_ledger *l, enum stmt_id set, const char *key, const void *value, size_t n)
{
    int rc;
    sqlite3_stmt *s = stmt_get(l, set, &rc);
    if (!s)
        return rc;
    bind_text(s, 1, key);
    bind_blob(s, 2, value, n);
    return stmt_run(l, s, NULL);
}

void stmt_finalize_all(struct storage_ledger *l)
{
    for (int i = 0; i < STMT_COUNT; i++) {
        (void)sqlite3_finalize(l->stmts[i]);
        l->stmts[i] = NULL;
    }
}

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
    /* A turn has a row from its acceptance on. What it says and what it was asked are rows of items, its tokens stand
     * apart, so that walking along a chain of turns reads no long text. */
    "CREATE TABLE items(id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " turn INTEGER NOT NULL REFERENCES turns(id) ON DELETE CASCADE, place INTEGER NOT NULL, output INTEGER NOT NULL,"
    " public_id TEXT NOT NULL, kind TEXT NOT NULL, role TEXT, status INTEGER NOT NULL, created_ms INTEGER NOT NULL,"
    " text TEXT, body TEXT);"
    "CREATE UNIQUE INDEX items_place ON items(turn, place);"
    "CREATE INDEX items_public_id ON items(public_id);"
    "CREATE TABLE tokens(turn INTEGER PRIMARY KEY REFERENCES turns(id) ON DELETE CASCADE, ids BLOB NOT NULL);"
    "CREATE TABLE keys(owner INTEGER NOT NULL REFERENCES owners(id), key BLOB NOT NULL, digest BLOB NOT NULL,"
    " target TEXT NOT NULL, clock INTEGER NOT NULL, PRIMARY KEY(owner, key)) WITHOUT ROWID;"
    "CREATE INDEX keys_clock ON keys(clock);"
    "ALTER TABLE turns ADD COLUMN depth INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE turns ADD COLUMN answered INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN saved INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN delivered INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN input_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN output_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN evaluated INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN kv TEXT;"
    "ALTER TABLE turns ADD COLUMN digest BLOB;"
    "ALTER TABLE turns ADD COLUMN params TEXT;"
    "ALTER TABLE turns ADD COLUMN receipt TEXT;"
    "ALTER TABLE turns ADD COLUMN request TEXT;"
    "INSERT INTO tokens(turn, ids) SELECT id, tokens FROM turns;"
    "INSERT INTO items(turn, place, output, public_id, kind, role, status, created_ms, text)"
    " SELECT t.id, j.key, 0, json_extract(j.value, '$.id'), 'message',"
    " CASE json_extract(j.value, '$.role') WHEN 'developer' THEN 'system' ELSE json_extract(j.value, '$.role') END, 0,"
    " t.created_ms, coalesce(json_extract(j.value, '$.content[0].text'), json_extract(j.value, '$.content'))"
    " FROM turns t, json_each(CASE WHEN json_valid(t.input) THEN t.input ELSE '[]' END) j"
    " WHERE json_type(j.value, '$.id') = 'text' AND json_type(j.value, '$.role') = 'text' ORDER BY t.id, j.key;"
    "INSERT INTO items(turn, place, output, public_id, kind, role, status, created_ms, text)"
    " SELECT t.id, (SELECT count(*) FROM items i WHERE i.turn = t.id), 1, 'msg_' || substr(t.public_id, 6), 'message',"
    " 'assistant', t.status <> 0, t.completed_ms, t.output FROM turns t WHERE t.output IS NOT NULL ORDER BY t.id;"
    "UPDATE turns SET answered = output IS NOT NULL,"
    " params = json_extract(detail, '$.params'), receipt = json_remove(json_extract(detail, '$.receipt'), '$.saved'),"
    " saved = CASE json_extract(detail, '$.receipt.saved') WHEN 'yes' THEN 2 WHEN 'pending' THEN 1 WHEN 'failed' THEN 3"
    " ELSE 0 END,"
    " input_tokens = ifnull(json_extract(detail, '$.usage.input'), 0),"
    " cached_tokens = ifnull(json_extract(detail, '$.usage.cached'), 0),"
    " output_tokens = ifnull(json_extract(detail, '$.usage.output'), 0),"
    " evaluated = ifnull(json_extract(detail, '$.evaluated'), n_tokens), kv = json_extract(detail, '$.kv')"
    " WHERE json_valid(detail);"
    "WITH RECURSIVE tree(id, depth) AS (SELECT id, 1 FROM turns WHERE parent IS NULL"
    " UNION ALL SELECT t.id, tree.depth + 1 FROM turns t JOIN tree ON t.parent = tree.id)"
    "UPDATE turns SET depth = tree.depth FROM tree WHERE tree.id = turns.id;"
    "ALTER TABLE turns DROP COLUMN input;"
    "ALTER TABLE turns DROP COLUMN output;"
    "ALTER TABLE turns DROP COLUMN detail;"
    "ALTER TABLE turns DROP COLUMN tokens;"
    "CREATE INDEX turns_open ON turns(conversation) WHERE status >= 2;"
    "CREATE INDEX turns_pending ON turns(saved) WHERE saved = 1;"
    "CREATE INDEX turns_digest ON turns(owner, digest) WHERE digest IS NOT NULL;",
    /* Titles are searched without a look at the rows; what is too old is found in order. */
    "DROP INDEX conversations_listed;"
    "CREATE INDEX conversations_listed ON conversations(owner, updated_ms DESC, id DESC, title) WHERE kind = 0;"
    "CREATE INDEX conversations_age ON conversations(updated_ms);",
    /* What every owner has, kept as rows come and go. A turn's bytes are those of its items, of its tokens, and of what
     * its request said beside them; an owner's are those of its turns and of its conversations' texts. */
    "ALTER TABLE owners ADD COLUMN conversations INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE owners ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turns ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE items ADD COLUMN bytes INTEGER AS (ifnull(length(CAST(text AS BLOB)), 0) + ifnull(length(CAST(body AS "
    "BLOB)), 0)) VIRTUAL;"
    "ALTER TABLE turns ADD COLUMN request_bytes INTEGER AS (ifnull(length(CAST(instructions AS BLOB)), 0) + "
    "ifnull(length(CAST(params AS BLOB)), 0) + ifnull(length(CAST(request AS BLOB)), 0)) VIRTUAL;"
    "ALTER TABLE conversations ADD COLUMN bytes INTEGER AS (ifnull(length(CAST(title AS BLOB)), 0) + "
    "ifnull(length(CAST(metadata AS BLOB)), 0) + ifnull(length(CAST(instructions AS BLOB)), 0)) VIRTUAL;"
    "UPDATE turns SET bytes = request_bytes;"
    "UPDATE turns SET bytes = turns.bytes + s.n FROM (SELECT turn, sum(n) AS n FROM (SELECT turn, bytes AS n FROM items"
    " UNION ALL SELECT turn, length(ids) FROM tokens) GROUP BY turn) s WHERE s.turn = turns.id;"
    "UPDATE owners SET conversations = (SELECT count(*) FROM conversations c WHERE c.owner = owners.id),"
    " bytes = (SELECT ifnull(sum(bytes), 0) FROM turns t WHERE t.owner = owners.id)"
    " + (SELECT ifnull(sum(bytes), 0) FROM conversations c WHERE c.owner = owners.id);"
    "CREATE TRIGGER conversations_count AFTER INSERT ON conversations BEGIN"
    " UPDATE owners SET conversations = conversations + 1, bytes = bytes + new.bytes WHERE id = new.owner; END;"
    "CREATE TRIGGER conversations_recount AFTER UPDATE OF title, metadata, instructions ON conversations"
    " WHEN new.bytes <> old.bytes BEGIN"
    " UPDATE owners SET bytes = bytes + new.bytes - old.bytes WHERE id = new.owner; END;"
    "CREATE TRIGGER conversations_discount AFTER DELETE ON conversations BEGIN"
    " UPDATE owners SET conversations = conversations - 1, bytes = bytes - old.bytes WHERE id = old.owner; END;"
    "CREATE TRIGGER requests_count AFTER INSERT ON turns BEGIN"
    " UPDATE turns SET bytes = bytes + new.request_bytes WHERE id = new.id; END;"
    "CREATE TRIGGER requests_recount AFTER UPDATE OF instructions, params, request ON turns"
    " WHEN new.request_bytes <> old.request_bytes BEGIN"
    " UPDATE turns SET bytes = bytes + new.request_bytes - old.request_bytes WHERE id = new.id; END;"
    "CREATE TRIGGER turns_count AFTER UPDATE OF bytes ON turns BEGIN"
    " UPDATE owners SET bytes = bytes + new.bytes - old.bytes WHERE id = new.owner; END;"
    "CREATE TRIGGER turns_discount AFTER DELETE ON turns BEGIN"
    " UPDATE owners SET bytes = bytes - old.bytes WHERE id = old.owner; END;"
    "CREATE TRIGGER items_count AFTER INSERT ON items BEGIN"
    " UPDATE turns SET bytes = bytes + new.bytes WHERE id = new.turn; END;"
    "CREATE TRIGGER tokens_count AFTER INSERT ON tokens BEGIN"
    " UPDATE turns SET bytes = bytes + length(new.ids) WHERE id = new.turn; END;"
    "DROP INDEX conversations_age;"
    "CREATE INDEX conversations_age ON conversations(owner, updated_ms);",
    /* Titles are read in the order of rows, which does not change. */
    "DROP INDEX conversations_listed;"
    "CREATE INDEX conversations_listed ON conversations(owner, updated_ms DESC, id DESC) WHERE kind = 0;"
    "CREATE INDEX conversations_titles ON conversations(owner, id, title) WHERE kind = 0 AND title IS NOT NULL;",
    /* The context at a turn's end without its thinking is a row as well, which is in no list. */
    "ALTER TABLE turns ADD COLUMN base INTEGER REFERENCES turns(id);"
    "ALTER TABLE turns ADD COLUMN strips INTEGER REFERENCES turns(id);"
    "CREATE INDEX turns_base ON turns(base) WHERE base IS NOT NULL;"
    "CREATE UNIQUE INDEX turns_strips ON turns(strips) WHERE strips IS NOT NULL;",
};
const struct schema schema_ledger = {.file = "ledger.db",
                                     .steps = ledger_steps,
                                     .n_steps = sizeof ledger_steps / sizeof *ledger_steps,
                                     .full_sync = true};

/* An index of a version before 5 is made anew: it had labels. Some 300 bytes for each of 256 tokens: keys are looked up
 * by their first bytes, and what is the same for many stands apart. */
static const char *const kv_steps[] = {
    [4] = "CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
          "CREATE TABLE packs(n INTEGER PRIMARY KEY, end INTEGER NOT NULL, live_bytes INTEGER NOT NULL,"
          " live_count INTEGER NOT NULL);"
          "CREATE TABLE names(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);"
          /* bytes: what a space takes of the packs, kept as rows come and go. */
          "CREATE TABLE spaces(id INTEGER PRIMARY KEY, owner INTEGER NOT NULL, fingerprint BLOB NOT NULL,"
          " unit INTEGER NOT NULL, key BLOB NOT NULL, bytes INTEGER NOT NULL DEFAULT 0, UNIQUE(owner, fingerprint));"
          "CREATE TABLE segments(id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL, parent BLOB NOT NULL,"
          " space INTEGER NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL, children INTEGER NOT NULL,"
          " label_bytes INTEGER NOT NULL, sum INTEGER NOT NULL, head BLOB, producer INTEGER NOT NULL, pack INTEGER, "
          "offset INTEGER,"
          " bytes INTEGER NOT NULL, used INTEGER NOT NULL);"
          "CREATE INDEX segments_key ON segments(substr(key, 1, 8));"
          "CREATE INDEX segments_head ON segments(substr(parent, 1, 8), space, head);"
          "CREATE INDEX segments_place ON segments(pack, offset);"
          /* Leaves in the order in which they go. */
          "CREATE INDEX segments_leaf ON segments(used, first DESC) WHERE children = 0 AND pack IS NOT NULL;"
          "CREATE INDEX segments_leaf_of ON segments(space, used, first DESC) WHERE children = 0 AND pack IS NOT NULL;"
          "CREATE TRIGGER segments_count AFTER INSERT ON segments BEGIN"
          " UPDATE spaces SET bytes = bytes + new.bytes WHERE id = new.space; END;"
          "CREATE TRIGGER segments_recount AFTER UPDATE OF bytes ON segments BEGIN"
          " UPDATE spaces SET bytes = bytes + new.bytes - old.bytes WHERE id = new.space; END;"
          "CREATE TRIGGER segments_discount AFTER DELETE ON segments BEGIN"
          " UPDATE spaces SET bytes = bytes - old.bytes WHERE id = old.space; END;",
    /* Whoever changes rows counts for itself: see statements.def. */
    [5] = "DROP TRIGGER segments_count; DROP TRIGGER segments_recount; DROP TRIGGER segments_discount;",
};
const struct schema schema_kv = {.file = "kv.db",
                                 .steps = kv_steps,
                                 .n_steps = sizeof kv_steps / sizeof *kv_steps,
                                 .full_sync = false,
                                 .anew_before = 5};

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

/* joined(blob): all of a group, one after the other, in the order of the rows. */
struct joined {
    char *bytes;
    size_t n, capacity;
};

static void joined_step(sqlite3_context *ctx, int n_values, sqlite3_value **v)
{
    (void)n_values;
    struct joined *j = sqlite3_aggregate_context(ctx, sizeof *j);
    const void *bytes = sqlite3_value_blob(v[0]);
    size_t n = (size_t)sqlite3_value_bytes(v[0]);
    if (!j || (n && !bytes)) {
        sqlite3_result_error_nomem(ctx);
        return;
    }
    if (j->n + n > j->capacity) {
        size_t capacity = j->capacity ? j->capacity : 4096;
        while (capacity < j->n + n)
            capacity *= 2;
        char *grown = sqlite3_realloc64(j->bytes, capacity);
        if (!grown) {
            sqlite3_result_error_nomem(ctx);
            return;
        }
        j->bytes = grown;
        j->capacity = capacity;
    }
    if (n)
        memcpy(j->bytes + j->n, bytes, n);
    j->n += n;
}

static void joined_final(sqlite3_context *ctx)
{
    struct joined *j = sqlite3_aggregate_context(ctx, 0);
    if (j && j->bytes)
        sqlite3_result_blob64(ctx, j->bytes, j->n, sqlite3_free);
    else
        sqlite3_result_blob(ctx, "", 0, SQLITE_STATIC);
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
    int rc = file && sql ? vfs_erase(dirfd, file) : -ENOMEM; /* what an earlier try left */
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

int schema_check(sqlite3 *db)
{
    int rc = gives(db, "PRAGMA quick_check(1)", "ok");
    return rc ? rc : gives(db, "PRAGMA foreign_key_check", NULL);
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
    if (version > 0 && version < s->anew_before)
        return -ESTALE;
    if (version == s->n_steps)
        return copies_erase(s, dirfd);
    if (version > 0) {
        rc = snapshot(s, db, dirfd, dir, version);
        if (rc)
            return rc;
    }
    rc = exec(db, "BEGIN IMMEDIATE");
    for (int i = version; !rc && i < s->n_steps; i++)
        rc = s->steps[i] ? exec(db, s->steps[i]) : 0;
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
                sqlite3_create_function_v2(db, "joined", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL, NULL, joined_step,
                                           joined_final, NULL) != SQLITE_OK))
        rc = -ENOMEM;
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

sqlite3_stmt *stmt_get(struct storage_ledger *l, enum stmt_id id)
{
    l->stmt_rc = statements[id].db == STMT_KV ? l->kv_rc : 0;
    if (l->stmt_rc)
        return NULL;
    if (!l->stmts[id]) {
        sqlite3 *db = statements[id].db == STMT_LEDGER ? l->db : l->kv;
        l->stmt_rc = schema_errno(
            sqlite3_prepare_v3(db, statements[id].sql, -1, SQLITE_PREPARE_PERSISTENT, &l->stmts[id], NULL));
    }
    return l->stmts[id];
}

sqlite3_stmt *stmt_with(struct storage_ledger *l, enum stmt_id id, size_t n, const int64_t *values)
{
    sqlite3_stmt *s = stmt_get(l, id);
    for (size_t i = 0; s && i < n; i++)
        (void)sqlite3_bind_int64(s, (int)i + 1, values[i]);
    return s;
}

int stmt_text(struct storage_ledger *l, sqlite3_stmt *s, char **out)
{
    int rc = stmt_row(l, s);
    if (rc)
        return rc;
    rc = column_text(s, 0, out);
    stmt_reset(s);
    return rc;
}

int stmt_do(struct storage_ledger *l, enum stmt_id id)
{
    return stmt_run(l, stmt_get(l, id), NULL);
}

int stmt_step(struct storage_ledger *l, sqlite3_stmt *s)
{
    if (!s)
        return l->stmt_rc;
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

int stmt_row(struct storage_ledger *l, sqlite3_stmt *s)
{
    int rc = stmt_step(l, s);
    return rc == 1 ? 0 : rc ? rc : -ENOENT;
}

int stmt_any(struct storage_ledger *l, sqlite3_stmt *s)
{
    int rc = stmt_step(l, s);
    if (rc == 1)
        stmt_reset(s);
    return rc;
}

void stmt_reset(sqlite3_stmt *s)
{
    if (!s)
        return;
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
        *changes = s ? sqlite3_changes(sqlite3_db_handle(s)) : 0;
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

int column_copy(sqlite3_stmt *s, int at, void **out, size_t *n)
{
    const void *bytes = sqlite3_column_blob(s, at);
    *n = (size_t)sqlite3_column_bytes(s, at);
    *out = malloc(*n ? *n : 1);
    if (!*out || (*n && !bytes))
        return -ENOMEM;
    if (*n)
        memcpy(*out, bytes, *n);
    return 0;
}

int meta_get(struct storage_ledger *l, enum stmt_id get, const char *key, void *value, size_t size, size_t *n)
{
    sqlite3_stmt *s = stmt_get(l, get);
    bind_text(s, 1, key);
    int rc = stmt_step(l, s);
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
    sqlite3_stmt *s = stmt_get(l, set);
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

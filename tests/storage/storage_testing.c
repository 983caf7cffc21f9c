/* storage_testing.c - see storage_testing.h. */
#include "tests/storage/storage_testing.h"

#include "storage/codec_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

uint64_t testing_random(uint64_t *seed)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void testing_fill_kv(uint16_t *out, size_t n, enum storage_element e, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double u = (double)(testing_random(&seed) >> 11) * 0x1p-53 + 0x1p-60;
        double v = (double)(testing_random(&seed) >> 11) * 0x1p-53;
        float x = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        uint32_t bits;
        memcpy(&bits, &x, 4);
        int exponent = (int)(bits >> 23 & 255) - 127 + 15;
        out[i] = e == STORAGE_BF16 ? (uint16_t)(bits >> 16)
                                   : (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)(exponent < 0 ? 0 : exponent) << 10 |
                                                (bits >> 13 & 0x3ff));
    }
}

static char *new_dir(const char *below)
{
    char *dir = NULL;
    /* mkdtemp() wants six of them at the end. */
    char pattern[7];
    memset(pattern, 'X', 6);
    pattern[6] = '\0';
    assert_true(asprintf(&dir, "%s/convod-storage-%s", below, pattern) > 0);
    assert_non_null(mkdtemp(dir));
    return dir;
}

char *testing_dir(void)
{
    return new_dir("/tmp");
}

char *testing_dir_in_memory(void)
{
    return new_dir(access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
}

void testing_dir_remove(char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    struct dirent *e;
    while ((e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

char *testing_path(const char *dir, const char *file)
{
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", dir, file) > 0);
    return path;
}

static struct stat status(const char *dir, const char *file)
{
    char *path = testing_path(dir, file);
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    free(path);
    return sb;
}

off_t testing_size(const char *dir, const char *file)
{
    return status(dir, file).st_size;
}

void testing_overwrite(const char *dir, const char *file, off_t at, const char *text)
{
    char *path = testing_path(dir, file);
    int fd = open(path, O_RDWR);
    free(path);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, text, strlen(text), at), strlen(text));
    assert_int_equal(close(fd), 0);
}

void testing_sql(const char *dir, const char *file, const char *text)
{
    sqlite3 *db;
    char *path = testing_path(dir, file);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    free(path);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void print_line(void *arg, const char *text)
{
    (void)arg;
    (void)fprintf(stderr, "%s\n", text);
}

uint64_t testing_verify(const char *dir, bool repair)
{
    struct storage_checked n;
    char err[256];
    const struct storage_opts opts = {.dir = dir, .disk_bytes = (uint64_t)1 << 30};
    assert_int_equal(storage_verify(&opts, repair, print_line, NULL, &n, err, sizeof err), 0);
    return n.wrong;
}

void testing_pack_name(char name[32], uint32_t pack)
{
    (void)snprintf(name, 32, "pack-%08u", pack);
}

uint64_t testing_blocks(const char *dir, const char *file)
{
    return (uint64_t)status(dir, file).st_blocks * 512;
}

struct storage *testing_open_with(const char *dir, const struct storage_io *io, uint64_t disk_bytes)
{
    struct storage *st = NULL;
    char err[256];
    struct storage_opts opts = {.dir = dir, .disk_bytes = disk_bytes};
    int rc = storage_open_with(&opts, io, &st, err, sizeof err);
    if (rc)
        fail_msg("storage_open: %d %s", rc, err);
    return st;
}

struct storage *testing_open(const char *dir)
{
    return testing_open_with(dir, &storage_io_system, (uint64_t)1 << 30);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

struct query {
    int64_t owner, conversation, parent, id;
    const char *name;
    struct testing_context context;
};

static int owner_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    struct storage_owner o;
    int rc = storage_owner_get(l, q->name, &o);
    q->id = o.id;
    return rc;
}

int64_t testing_owner(struct storage *st, const char *name)
{
    struct query q = {.name = name};
    assert_int_equal(jobs_call(st, owner_run, &q), 0);
    return q.id;
}

static int conversation_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    char name[64];
    (void)snprintf(name, sizeof name, "%s", q->name);
    struct storage_conversation c = {.owner = q->owner, .public_id = name, .created_ms = 1, .updated_ms = 1};
    int rc = storage_conversation_insert(l, &c);
    q->id = c.id;
    return rc;
}

int64_t testing_conversation(struct storage *st, int64_t owner, const char *public_id)
{
    struct query q = {.owner = owner, .name = public_id};
    assert_int_equal(jobs_call(st, conversation_run, &q), 0);
    return q.id;
}

static int turn_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    char name[64], kv[128];
    (void)snprintf(name, sizeof name, "%s", q->name);
    (void)snprintf(kv, sizeof kv, "%s", q->context.kv ? q->context.kv : "");
    struct storage_turn t = {.owner = q->owner,
                             .conversation = q->conversation,
                             .parent = q->parent,
                             .public_id = name,
                             .status = STORAGE_TURN_RUNNING};
    int rc = storage_turn_insert(l, &t);
    t.status = STORAGE_TURN_COMPLETED;
    t.tokens = (void *)(uintptr_t)q->context.tokens;
    t.tokens_bytes = q->context.bytes;
    t.prompt_bytes = 4;
    t.n_tokens = q->context.n_tokens;
    t.evaluated = t.n_tokens - 1;
    t.kv = q->context.kv ? kv : NULL;
    if (!rc)
        rc = storage_turn_commit(l, &t);
    q->id = t.id;
    return rc;
}

int64_t testing_turn(struct storage *st, int64_t owner, int64_t conversation, int64_t parent, const char *public_id)
{
    return testing_turn_with(st, owner, conversation, parent, public_id,
                             (struct testing_context){"tokens\0", 8, TESTING_COUNT, NULL});
}

int64_t testing_turn_with(struct storage *st, int64_t owner, int64_t conversation, int64_t parent,
                          const char *public_id, struct testing_context context)
{
    struct query q = {
        .owner = owner, .conversation = conversation, .parent = parent, .name = public_id, .context = context};
    assert_int_equal(jobs_call(st, turn_run, &q), 0);
    return q.id;
}

static int conversation_delete_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    return storage_conversation_delete(l, q->owner, q->name);
}

int testing_conversation_delete(struct storage *st, int64_t owner, const char *public_id)
{
    return jobs_call(st, conversation_delete_run, &(struct query){.owner = owner, .name = public_id});
}

static int turn_delete_run(struct storage_ledger *l, void *arg)
{
    struct query *q = arg;
    return storage_turn_delete(l, q->owner, q->name);
}

int testing_turn_delete(struct storage *st, int64_t owner, const char *public_id)
{
    return jobs_call(st, turn_delete_run, &(struct query){.owner = owner, .name = public_id});
}

static int cuts_run(struct storage_ledger *l, void *arg)
{
    *(size_t *)arg = l->n_cuts;
    return 0;
}

static int let_go_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return segment_let_go(l);
}

struct refusal {
    bool index;
    enum testing_refused what;
};

static int refused(void *arg, int action, const char *a, const char *b, const char *c, const char *d)
{
    bool commits = *(const enum testing_refused *)arg == TESTING_COMMITS;
    (void)b, (void)c, (void)d;
    return (commits ? action == SQLITE_TRANSACTION && !strcmp(a, "COMMIT")
                    : action == SQLITE_INSERT && !strcmp(a, "intents"))
               ? SQLITE_DENY
               : SQLITE_OK;
}

static int refuse_run(struct storage_ledger *l, void *arg)
{
    static enum testing_refused what[2]; /* the databases' as long as they are open */
    const struct refusal *r = arg;
    stmt_finalize_all(l); /* they are prepared again */
    what[r->index] = r->what;
    int rc =
        sqlite3_set_authorizer(r->index ? l->kv : l->db, r->what == TESTING_NOTHING ? NULL : refused, &what[r->index]);
    return rc == SQLITE_OK ? 0 : -EIO;
}

int testing_refuse(struct storage *st, bool index, enum testing_refused what)
{
    return jobs_call(st, refuse_run, &(struct refusal){index, what});
}

void testing_settle(struct storage *st)
{
    assert_int_equal(jobs_call(st, let_go_run, NULL), 0);
    testing_cuts_wait(st);
}

void testing_cuts_wait(struct storage *st)
{
    size_t n = 0;
    do {
        if (n)
            (void)usleep(1000);
        assert_int_equal(jobs_call(st, cuts_run, &n), 0);
    } while (n);
}

struct deleting {
    int64_t owner;
    const char *public_id;
    int is;
};

static int deleting_run(struct storage_ledger *l, void *arg)
{
    struct deleting *d = arg;
    d->is = storage_deleting(l, d->owner, d->public_id);
    return 0;
}

int testing_deleting(struct storage *st, int64_t owner, const char *public_id)
{
    struct deleting d = {.owner = owner, .public_id = public_id};
    assert_int_equal(jobs_call(st, deleting_run, &d), 0);
    return d.is;
}

bool testing_contains(const char *dir, const char *file, const char *text)
{
    char *path = testing_path(dir, file);
    FILE *f = fopen(path, "rb");
    free(path);
    if (!f)
        return false;
    size_t n = (size_t)testing_size(dir, file);
    char *all = malloc(n + 1);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, n, f), n);
    (void)fclose(f);
    bool found = n && memmem(all, n, text, strlen(text)) != NULL;
    free(all);
    return found;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static const struct storage_array arrays[] = {{64, true}, {64, false}, {64, true}, {64, false}};
const struct storage_layout testing_layout = {.element = STORAGE_BF16, .arrays = arrays, .n_arrays = 4};
const uint8_t testing_fingerprint[32] = {1, 2, 3};
const uint8_t testing_root[STORAGE_KEY_BYTES] = {0};
#define PAYLOAD_ELEMENTS ((size_t)4 * 64 * TESTING_COUNT)

void testing_key(uint8_t key[STORAGE_KEY_BYTES], unsigned id)
{
    memset(key, 0, STORAGE_KEY_BYTES);
    if (!id)
        return;
    uint64_t seed = id;
    for (size_t i = 0; i < STORAGE_KEY_BYTES; i += 8)
        memcpy(key + i, &(uint64_t){testing_random(&seed)}, 8);
}

int testing_put(struct storage *st, int64_t owner, unsigned id, unsigned parent)
{
    return testing_put_at(st, owner, id, parent, 0);
}

int testing_put_at(struct storage *st, int64_t owner, unsigned id, unsigned parent, uint32_t first)
{
    return testing_put_as(st, owner, id, parent, first, "test-1", false);
}

/* A payload, which it frees, in its split form; and the other way. */
static void *split_of(uint16_t *payload)
{
    uint8_t *split = malloc(storage_split_bytes(&testing_layout, TESTING_COUNT)), *to = split;
    const uint16_t *from = payload;
    assert_non_null(split);
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++) {
        struct storage_layout one = {.element = STORAGE_BF16, .arrays = &testing_layout.arrays[i], .n_arrays = 1};
        codec_array_split(codec_loops_best(), one.arrays, STORAGE_BF16, TESTING_COUNT, from, to);
        from += codec_payload_bytes(&one, TESTING_COUNT) / 2;
        to += storage_split_bytes(&one, TESTING_COUNT);
    }
    free(payload);
    return split;
}

static void join(uint8_t *split, uint16_t *payload)
{
    for (uint32_t i = 0; i < testing_layout.n_arrays; i++) {
        struct storage_layout one = {.element = STORAGE_BF16, .arrays = &testing_layout.arrays[i], .n_arrays = 1};
        assert_int_equal(codec_array_join(codec_loops_best(), one.arrays, STORAGE_BF16, TESTING_COUNT, split, payload),
                         0);
        payload += codec_payload_bytes(&one, TESTING_COUNT) / 2;
        split += storage_split_bytes(&one, TESTING_COUNT);
    }
}

static void release(void *payload)
{
    free(payload);
}

int testing_put_as(struct storage *st, int64_t owner, unsigned id, unsigned parent, uint32_t first,
                   const char *producer, bool keep)
{
    char label[32];
    struct storage_segment s = {.owner = owner, .first = first, .count = TESTING_COUNT, .keep = keep};
    (void)snprintf(s.producer, sizeof s.producer, "%s", producer);
    testing_key(s.key, id);
    testing_key(s.parent, parent);
    memcpy(s.fingerprint, testing_fingerprint, sizeof s.fingerprint);
    s.label_bytes = (uint32_t)snprintf(label, sizeof label, "label %u;", id);
    s.label = label;
    uint16_t *payload = malloc(PAYLOAD_ELEMENTS * 2);
    assert_non_null(payload);
    testing_fill_kv(payload, PAYLOAD_ELEMENTS, STORAGE_BF16, id);
    if (id % 3 == 0) {
        s.split = true;
        s.release = release;
        payload = split_of(payload);
    }
    return storage_segment_put(st, &s, &testing_layout, payload);
}

bool testing_cut_out(struct storage *st, const struct storage_found *f)
{
    uint8_t *record = malloc(f->encoded_bytes);
    assert_non_null(record);
    assert_int_equal(packs_read(&st->packs, f->pack, f->offset, record, f->encoded_bytes), 0);
    bool zero = pack_is_zero(record, f->encoded_bytes);
    free(record);
    return zero;
}

struct waiter {
    pthread_mutex_t lock; /* guards finished and results */
    pthread_cond_t cond;
    bool finished;
    int rc;
    struct storage_read_result read;
};

static struct waiter waiter_new(void)
{
    return (struct waiter){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
}

static void waiter_wake(struct waiter *w)
{
    pthread_mutex_lock(&w->lock);
    w->finished = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void waiter_wait(struct waiter *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->finished)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void commit_done(void *arg, int rc)
{
    struct waiter *w = arg;
    w->rc = rc;
    waiter_wake(w);
}

int testing_commit(struct storage *st, int64_t turn, unsigned last)
{
    struct waiter w = waiter_new();
    uint8_t key[STORAGE_KEY_BYTES];
    testing_key(key, last);
    assert_int_equal(
        turn ? storage_kv_commit(st, turn, key, NULL, commit_done, &w) : storage_kv_flush(st, key, commit_done, &w), 0);
    waiter_wait(&w);
    return w.rc;
}

struct lookup {
    int64_t owner;
    uint8_t parent[STORAGE_KEY_BYTES];
    const char *label;
    struct storage_found rows[2];
    size_t n;
    struct waiter waiter;
};

static void lookup_done(void *arg, int rc)
{
    struct lookup *q = arg;
    commit_done(&q->waiter, rc);
}

static int lookup_run(struct storage_ledger *l, void *arg)
{
    struct lookup *q = arg;
    int changes = sqlite3_total_changes(l->kv);
    bool reads = l->reads && l->n_uses < USES_MOST;
    int rc = storage_segment_nearest(l, q->owner, testing_fingerprint, q->parent, q->label, (uint32_t)strlen(q->label),
                                     q->rows, &q->n);
    if (reads) /* what it found counts as used, which waits for others that write */
        assert_int_equal(sqlite3_total_changes(l->kv), changes);
    return rc;
}

size_t testing_nearest(struct storage *st, int64_t owner, unsigned parent, const char *label,
                       struct storage_found rows[2])
{
    struct lookup q = {.owner = owner, .label = label};
    testing_key(q.parent, parent);
    q.waiter = waiter_new();
    assert_int_equal(
        storage_submit(st, (struct storage_job){.run = lookup_run, .done = lookup_done, .arg = &q, .reads = true}), 0);
    waiter_wait(&q.waiter);
    assert_int_equal(q.waiter.rc, 0);
    memcpy(rows, q.rows, sizeof q.rows);
    return q.n;
}

int testing_find(struct storage *st, int64_t owner, unsigned parent, unsigned id, struct storage_found *out)
{
    struct storage_found rows[2];
    uint8_t key[STORAGE_KEY_BYTES];
    char label[32];
    int rc = -ENOENT;
    testing_key(key, id);
    (void)snprintf(label, sizeof label, "label %u;", id);
    size_t n = testing_nearest(st, owner, parent, label, rows);
    for (size_t i = 0; i < n; i++) {
        if (!memcmp(rows[i].key, key, sizeof key)) {
            assert_int_equal(rows[i].label_bytes, strlen(label));
            assert_memory_equal(rows[i].label, label, strlen(label));
            assert_memory_equal(rows[i].producer, "test-", 5);
            *out = rows[i];
            out->label = NULL;
            rc = 0;
        }
        free(rows[i].label);
    }
    return rc;
}

static void read_done(void *arg, struct storage_read_result result)
{
    struct waiter *w = arg;
    w->read = result;
    waiter_wake(w);
}

enum { LABEL_ROOM = 32 };

/* What was found, with the label that the segment was put with. */
static struct storage_found labelled(const struct storage_found *f, unsigned id, char label[LABEL_ROOM])
{
    struct storage_found found = *f;
    found.label_bytes = (uint32_t)snprintf(label, LABEL_ROOM, "label %u;", id);
    found.label = label;
    return found;
}

struct storage_read_result testing_read(struct storage *st, const struct storage_found *f, unsigned id)
{
    struct waiter w = waiter_new();
    char label[LABEL_ROOM];
    struct storage_found found = labelled(f, id, label);
    uint16_t *want = malloc(PAYLOAD_ELEMENTS * 2), *got = malloc(PAYLOAD_ELEMENTS * 2);
    assert_true(want && got);
    memset(got, 0xa5, PAYLOAD_ELEMENTS * 2);
    uint8_t *split = id % 2 ? NULL : malloc(storage_split_bytes(&testing_layout, TESTING_COUNT));
    if (split)
        assert_int_equal(
            storage_segment_read_split(st, &found, testing_fingerprint, &testing_layout, split, read_done, &w), 0);
    else
        assert_int_equal(storage_segment_read(st, &found, testing_fingerprint, &testing_layout, got, read_done, &w), 0);
    waiter_wait(&w);
    if (split && !w.read.rc)
        join(split, got);
    free(split);
    testing_fill_kv(want, PAYLOAD_ELEMENTS, STORAGE_BF16, id);
    if (!w.read.rc)
        assert_memory_equal(want, got, PAYLOAD_ELEMENTS * 2);
    free(want);
    free(got);
    return w.read;
}

struct storage_read_result testing_read_stored(struct storage *st, const struct storage_found *f, unsigned id)
{
    struct waiter w = waiter_new();
    char label[LABEL_ROOM];
    struct storage_found found = labelled(f, id, label);
    assert_int_equal(storage_segment_read(st, &found, testing_fingerprint, &testing_layout, NULL, read_done, &w), 0);
    waiter_wait(&w);
    assert_true(!w.read.rc == (w.read.stored != NULL));
    return w.read;
}

struct storage_read_result testing_take(struct storage *st, const struct storage_found *f, unsigned id)
{
    char label[LABEL_ROOM];
    struct storage_found found = labelled(f, id, label);
    struct storage_read_result r = {0};
    int rc = storage_segment_take(st, &found, testing_fingerprint, &testing_layout, &r);
    r.rc = rc;
    assert_true(!rc == (r.stored != NULL));
    return r;
}

int testing_decode(const struct storage_stored *g, unsigned id, uint32_t array)
{
    size_t at = 0;
    for (uint32_t i = 0; i < array; i++)
        at += (size_t)testing_layout.arrays[i].channels * TESTING_COUNT;
    size_t n = (size_t)testing_layout.arrays[array].channels * TESTING_COUNT;
    uint16_t *want = malloc(PAYLOAD_ELEMENTS * 2), *got = malloc(n * 2);
    assert_true(want && got);
    memset(got, 0xa5, n * 2);
    int rc = storage_stored_decode(g, array, got);
    testing_fill_kv(want, PAYLOAD_ELEMENTS, STORAGE_BF16, id);
    if (!rc)
        assert_memory_equal(want + at, got, n * 2);
    free(want);
    free(got);
    return rc;
}

/* scale_bench.c - storage with many conversations and segments: what the index takes, how long a start, an eviction, a
 * lookup, a list and a search by title take.
 *
 * usage: scale_bench [CONVERSATIONS] [SEGMENTS_PER_CONVERSATION]        100000 and 10
 *
 * Rows are made as the daemon makes them (a conversation, a turn, a chain of segments of 256 tokens that it holds). Of
 * records there are the header and the label, and only of those that have siblings: what is measured is the databases.
 * Token ids are drawn so that the share of each size of their codes is that of English text and C code under Qwen's
 * vocabulary (8, 80 and 12 %).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "storage/storage_internal.h"

#define TOKENS       256
#define RECORD       524288u
#define PACK_RECORDS 2000
#define PER_JOB      50
#define EVICTED      50
#define LOOKUPS      50

static uint64_t seed = 7;

static uint32_t draw(uint32_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 11) % below);
}

static double now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void stop(const char *what, int rc)
{
    (void)fprintf(stderr, "%s: %s\n", what, strerror(-rc));
    exit(1);
}

static const char *const words[] = {"sundial", "harbour", "compiler", "tax",    "garden", "letter", "sailing", "recipe",
                                    "kernel",  "travel",  "history",  "budget", "poem",   "router", "tests",   "music"};
#define WORDS (sizeof words / sizeof *words)

struct work {
    const char *dir;
    int64_t owner;
    unsigned conversation, segments;
    unsigned bytes; /* EVICTED: in units of one record */
    double ms;
    double longest_ms; /* of one job */
    const char *query;
    struct storage_cursor at;
    size_t found;
    bool over;
};

static void tokens(uint32_t out[TOKENS])
{
    for (int i = 0; i < TOKENS; i++) {
        uint32_t share = draw(100);
        out[i] = share < 8 ? draw(128) : share < 88 ? 128 + draw(24576) : 24704 + draw(127000);
    }
}

static void key_of(uint8_t key[STORAGE_KEY_BYTES], unsigned conversation, unsigned segment)
{
    /* As an HMAC: every byte of it differs. */
    uint64_t x = ((uint64_t)conversation << 20 | segment) + 1;
    for (int i = 0; i < STORAGE_KEY_BYTES; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        key[i] = (uint8_t)(x >> 56);
    }
}

/* The same for all: what a chat format begins a conversation with. */
static const uint32_t opening[] = {151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198, 151644, 872, 198};

/* What the index reads of a record. */
static int record_write(const struct work *w, const struct pack_record *r, const uint32_t label[TOKENS], uint32_t pack,
                        uint64_t offset)
{
    static uint8_t record[RECORD];
    char path[512];
    (void)snprintf(path, sizeof path, "%s/pack-%08u", w->dir, pack);
    pack_record_seal(record, r, label);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    size_t n = PACK_HEADER_BYTES + r->label_bytes;
    int rc = fd >= 0 && pwrite(fd, record, n, (off_t)offset) == (ssize_t)n ? 0 : -errno;
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

static int make_run(struct storage_ledger *l, void *arg)
{
    struct work *w = arg;
    int rc = 0;
    for (unsigned n = 0; n < PER_JOB && !rc; n++, w->conversation++) {
        char id[32], title[96];
        (void)snprintf(id, sizeof id, "conv_%u", w->conversation);
        (void)snprintf(title, sizeof title, "About a %s and %s %u", words[draw(WORDS)], words[draw(WORDS)],
                       w->conversation);
        struct storage_conversation c = {
            .owner = w->owner, .public_id = id, .title = title, .created_ms = 1, .updated_ms = w->conversation + 1};
        if ((rc = storage_conversation_insert(l, &c)))
            break;
        struct storage_turn t = {.owner = w->owner,
                                 .conversation = c.id,
                                 .public_id = id,
                                 .status = STORAGE_TURN_RUNNING,
                                 .created_ms = c.updated_ms};
        if ((rc = storage_turn_insert(l, &t)))
            break;
        t.status = STORAGE_TURN_COMPLETED;
        t.saved = STORAGE_SAVED_YES;
        t.tokens = (void *)(uintptr_t)opening;
        t.tokens_bytes = sizeof opening;
        t.completed_ms = c.updated_ms;
        rc = storage_turn_commit(l, &t);
        struct pack_record r = {.owner = w->owner,
                                .count = TOKENS,
                                .label_bytes = 4 * TOKENS,
                                .payload_bytes = RECORD - PACK_ALIGN,
                                .producer = "cpu-avx512/4"};
        for (unsigned k = 0; k < w->segments && !rc; k++) {
            uint32_t label[TOKENS];
            uint64_t place = (uint64_t)w->conversation * w->segments + k;
            tokens(label);
            if (k == 0)
                memcpy(label, opening, sizeof opening);
            memcpy(r.parent, r.key, sizeof r.parent);
            key_of(r.key, w->conversation, k);
            r.first = k * TOKENS;
            uint32_t pack = 1 + (uint32_t)(place / PACK_RECORDS);
            uint64_t offset = PACK_ALIGN + place % PACK_RECORDS * RECORD;
            if (k == 0)
                rc = record_write(w, &r, label, pack, offset);
            if (!rc)
                rc = segment_insert(l, &r, (const uint8_t *)label, pack, offset, RECORD);
        }
        if (!rc)
            rc = segment_hold(l, t.id, r.key);
    }
    return rc;
}

static int evict_run(struct storage_ledger *l, void *arg)
{
    struct work *w = arg;
    uint64_t freed = 0;
    double began = now_ms();
    int rc = segment_evict(l, (uint64_t)EVICTED * RECORD, NULL, 0, &freed);
    w->ms = now_ms() - began;
    w->found = (size_t)(freed / RECORD);
    return rc ? rc : -ECANCELED;
}

static int lookup_run(struct storage_ledger *l, void *arg)
{
    static const uint8_t fingerprint[32];
    struct work *w = arg;
    double began = now_ms();
    for (unsigned i = 0; i < LOOKUPS; i++) {
        uint32_t label[TOKENS];
        uint8_t parent[STORAGE_KEY_BYTES] = {0};
        struct storage_found rows[2];
        size_t n;
        tokens(label);
        memcpy(label, opening, sizeof opening);
        int rc = storage_segment_nearest(l, w->owner, fingerprint, parent, label, sizeof label, rows, &n);
        if (rc)
            return rc;
        for (size_t k = 0; k < n; k++)
            free(rows[k].label);
        w->found += n;
    }
    w->ms = now_ms() - began;
    return 0;
}

static int list_run(struct storage_ledger *l, void *arg)
{
    struct work *w = arg;
    static struct storage_conversation rows[101];
    size_t n = 0;
    double began = now_ms();
    int rc = w->query ? storage_conversation_search(l, w->owner, &w->at, w->query, rows, 101 - w->found, &n, &w->over)
                      : storage_conversation_list(l, w->owner, w->at, rows, 101, &n);
    double ms = now_ms() - began;
    w->ms += ms;
    w->longest_ms = ms > w->longest_ms ? ms : w->longest_ms;
    w->found += n;
    for (size_t i = 0; !rc && i < n; i++)
        storage_conversation_free(&rows[i]);
    return rc;
}

static off_t size(const char *dir, const char *file)
{
    char path[512];
    struct stat sb;
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    return stat(path, &sb) ? 0 : sb.st_size;
}

static struct storage *start(const char *dir, double *ms)
{
    struct storage *st;
    char err[512];
    double began = now_ms();
    int rc = storage_open(&(struct storage_opts){.dir = dir, .disk_bytes = (uint64_t)1 << 50}, &st, err, sizeof err);
    if (rc)
        stop(err, rc);
    *ms = now_ms() - began;
    return st;
}

static void call(struct storage *st, int (*run)(struct storage_ledger *l, void *arg), struct work *w, const char *what)
{
    int rc = jobs_call(st, run, w);
    if (rc && rc != -ECANCELED)
        stop(what, rc);
}

static int owner_run(struct storage_ledger *l, void *arg)
{
    struct work *w = arg;
    struct storage_owner o;
    int rc = storage_owner_get(l, "bench", &o);
    w->owner = o.id;
    /* While rows are made: keys are random, and each would cost a page of every index in every checkpoint. */
    sqlite3 *const dbs[] = {l->db, l->kv};
    for (size_t i = 0; i < 2; i++)
        (void)sqlite3_exec(dbs[i], "PRAGMA cache_size = -1000000; PRAGMA wal_autocheckpoint = 50000", NULL, NULL, NULL);
    return rc;
}

int main(int argc, char **argv)
{
    unsigned conversations = argc > 1 ? (unsigned)atoi(argv[1]) : 100000, per = argc > 2 ? (unsigned)atoi(argv[2]) : 10;
    char dir[] = "/tmp/convod-scale-XXXXXX", command[64];
    double ms, open_ms;
    if (!mkdtemp(dir))
        stop(dir, -errno);
    struct work w = {.dir = dir, .segments = per};
    struct storage *st = start(dir, &ms);
    call(st, owner_run, &w, "owner");
    double began = now_ms();
    while (w.conversation < conversations)
        call(st, make_run, &w, "rows");
    double made_ms = now_ms() - began, segments = (double)w.conversation * per;
    storage_close(st);
    printf("%u conversations, %.0f segments: made in %.1f s, %.1f us a segment\n", w.conversation, segments,
           made_ms / 1e3, made_ms * 1e3 / segments);
    printf("index: %.0f bytes a segment; ledger: %.0f bytes a conversation\n", (double)size(dir, "kv.db") / segments,
           (double)size(dir, "ledger.db") / w.conversation);
    st = start(dir, &open_ms);
    printf("start: %.0f ms\n", open_ms);
    call(st, evict_run, &w, "evict");
    printf("eviction: %.1f us a segment (%zu at once)\n", w.ms * 1e3 / (double)w.found, w.found);
    w.found = 0;
    call(st, lookup_run, &w, "lookup");
    printf("lookup among %u siblings: %.1f us\n", w.conversation, w.ms * 1e3 / LOOKUPS);
    static const char *const queries[] = {NULL, "compiler", "sundial and tax 77", "nowhere"};
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        w.query = queries[i];
        for (int warm = 0; warm < 2; warm++) {
            w.at = (struct storage_cursor){INT64_MAX, INT64_MAX};
            w.ms = w.longest_ms = 0;
            w.found = 0;
            do {
                w.over = true;
                call(st, list_run, &w, "list");
            } while (!w.over);
            if (i == 1 && !warm)
                printf("the first search: %.1f ms in jobs of %.1f ms at most\n", w.ms, w.longest_ms);
        }
        printf("%s%s: %.1f ms in jobs of %.1f ms at most, %zu rows\n", queries[i] ? "titles with " : "list",
               queries[i] ? queries[i] : "", w.ms, w.longest_ms, w.found);
    }
    storage_close(st);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0;
}

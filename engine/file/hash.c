/* hash.c - the SHA-256 of a model file, and its memory.
 *
 * Hashing a model file takes a while, so its SHA-256 is remembered under a name made of device, inode, size and
 * modification time; a file that was changed in place gets a new time and is hashed again. Of what is remembered, the
 * newest MEMORIES_MAX by use are kept: nothing else says that a file will not come back.
 */
#include "engine/file/gguf_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gguf_hash {
    EVP_MD_CTX *md;
};

struct gguf_hash *gguf_hash_new(void)
{
    struct gguf_hash *h = calloc(1, sizeof *h);
    if (h != NULL)
        h->md = EVP_MD_CTX_new();
    if (h != NULL && (h->md == NULL || !EVP_DigestInit_ex(h->md, EVP_sha256(), NULL))) {
        gguf_hash_free(h);
        return NULL;
    }
    return h;
}

void gguf_hash_free(struct gguf_hash *h)
{
    if (h == NULL)
        return;
    EVP_MD_CTX_free(h->md);
    free(h);
}

bool gguf_hash_update(struct gguf_hash *h, const void *data, size_t n)
{
    return EVP_DigestUpdate(h->md, data, n) == 1;
}

bool gguf_hash_finish(struct gguf_hash *h, uint8_t sha256[32])
{
    return EVP_DigestFinal_ex(h->md, sha256, NULL) == 1;
}

/* ---- its memory ------------------------------------------------------------------------------------------------- */

/* A remembered hash: the SHA-256, and 8 bytes of the SHA-256 of that, so that a damaged file is not taken for one. */
#define CHECK_BYTES  8
#define CACHE_BYTES  (32 + CHECK_BYTES)
#define MEMORIES_MAX 64
#define PREFIX       "sha256-"

static bool add_check(const uint8_t sha256[32], uint8_t out[CACHE_BYTES])
{
    uint8_t again[32];
    if (!EVP_Digest(sha256, 32, again, NULL, EVP_sha256(), NULL))
        return false;
    memcpy(out, sha256, 32);
    memcpy(out + 32, again, CHECK_BYTES);
    return true;
}

static bool cache_read(const char *path, uint8_t sha256[32])
{
    uint8_t bytes[CACHE_BYTES + 1], right[CACHE_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool ok = read(fd, bytes, sizeof bytes) == CACHE_BYTES && add_check(bytes, right) &&
              memcmp(bytes, right, CACHE_BYTES) == 0;
    if (ok) {
        memcpy(sha256, bytes, 32);
        (void)!futimens(fd, NULL); /* it was used now; a folder that is read-only keeps what it has */
    }
    close(fd);
    return ok;
}

static void cache_write(const char *path, const uint8_t sha256[32])
{
    char tmp[4096];
    uint8_t bytes[CACHE_BYTES];
    if (snprintf(tmp, sizeof tmp, "%s.%ld", path, (long)getpid()) >= (int)sizeof tmp || !add_check(sha256, bytes))
        return;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST) { /* left by a process of this number that died */
        unlink(tmp);
        fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    if (fd < 0)
        return;
    bool ok = write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes;
    if (close(fd) || !ok || rename(tmp, path))
        unlink(tmp);
}

struct memory {
    struct timespec used;
    const char *name;
};

static int newest_first(const void *a, const void *b)
{
    const struct timespec *x = &((const struct memory *)a)->used, *y = &((const struct memory *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec > y->tv_sec ? -1 : 1;
    return x->tv_nsec > y->tv_nsec ? -1 : x->tv_nsec < y->tv_nsec;
}

static int is_memory(const struct dirent *entry)
{
    return strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0;
}

/* Forgets all but the newest, and what processes that died left of them. */
static void cache_prune(const char *cache_dir)
{
    struct dirent **entries = NULL;
    int dir = open(cache_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
        n = dir < 0 ? 0 : scandirat(dir, ".", &entries, is_memory, NULL);
    struct memory *all = n > MEMORIES_MAX ? calloc((size_t)n, sizeof *all) : NULL;
    size_t known = 0;
    for (int i = 0; all != NULL && i < n; i++) {
        struct stat st;
        if (fstatat(dir, entries[i]->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            all[known++] = (struct memory){st.st_mtim, entries[i]->d_name};
    }
    if (known > 0)
        qsort(all, known, sizeof *all, newest_first);
    for (size_t i = MEMORIES_MAX; i < known; i++)
        unlinkat(dir, all[i].name, 0);
    free(all);
    while (n > 0)
        free(entries[--n]);
    free(entries);
    if (dir >= 0)
        close(dir);
}

/* Where a file's hash is remembered; false: nowhere. Several parts have one name, made of all of theirs. */
static bool cache_path(const struct gguf *g, const char *cache_dir, char *out, size_t out_size)
{
    const struct stat *st = &g->parts[0].stat;
    char parts[24] = "";
    if (cache_dir == NULL || g->parts[0].fd < 0)
        return false;
    if (g->n_parts > 1) {
        uint8_t sum[32];
        struct gguf_hash *h = gguf_hash_new();
        bool ok = h != NULL;
        for (size_t i = 1; ok && i < g->n_parts; i++) {
            const struct stat *s = &g->parts[i].stat;
            const int64_t facts[] = {(int64_t)s->st_dev, (int64_t)s->st_ino, (int64_t)s->st_size,
                                     (int64_t)s->st_mtim.tv_sec, (int64_t)s->st_mtim.tv_nsec};
            ok = gguf_hash_update(h, facts, sizeof facts);
        }
        ok = ok && gguf_hash_finish(h, sum);
        gguf_hash_free(h);
        if (!ok)
            return false;
        parts[0] = '-';
        for (size_t i = 0; i < 8; i++)
            snprintf(parts + 1 + 2 * i, 3, "%02x", sum[i]);
    }
    return snprintf(out, out_size, "%s/" PREFIX "%lx-%lx-%llx-%llx.%09ld%s", cache_dir, (long)st->st_dev,
                    (long)st->st_ino, (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
                    parts) < (int)out_size;
}

bool gguf_hash_recall(const struct gguf *g, const char *cache_dir, uint8_t sha256[32])
{
    char path[4096];
    return cache_path(g, cache_dir, path, sizeof path) && cache_read(path, sha256);
}

void gguf_hash_remember(const struct gguf *g, const char *cache_dir, const uint8_t sha256[32])
{
    char path[4096];
    if (cache_path(g, cache_dir, path, sizeof path)) {
        (void)mkdir(cache_dir, 0700); /* where it is missing alone */
        cache_write(path, sha256);
        cache_prune(cache_dir);
    }
}

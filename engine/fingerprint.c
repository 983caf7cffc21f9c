/* fingerprint.c - what a stored KV row depends on, as one hash.
 *
 * A row computed with other weights, other rotary settings, another KV type or other numerics must never be used,
 * whatever the file is called. Hashing a model file takes a while, so its SHA-256 is remembered under a name made of
 * device, inode, size and modification time; a file that was changed in place gets a new time and is hashed again.
 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/model.h"

/* Raised whenever an operation's rounding or order changes (docs/numerics.md), or the canonical layout does. */
#define NUMERICS_VERSION 1
#define LAYOUT_VERSION   1

#define READ_BYTES ((size_t)4 << 20)

/* A remembered hash: the SHA-256, and 8 bytes of the SHA-256 of that, so that a damaged file is not taken for one. */
#define CHECK_BYTES 8
#define CACHE_BYTES (32 + CHECK_BYTES)

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
    close(fd);
    if (ok)
        memcpy(sha256, bytes, 32);
    return ok;
}

/* A hash that cannot be remembered is computed again next time: errors are not reported. */
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

/* Whether a file is as it was: a hash of one that was being written is remembered for nobody. */
static bool unchanged(int fd, const struct stat *before)
{
    struct stat now;
    return fstat(fd, &now) == 0 && now.st_size == before->st_size && now.st_mtim.tv_sec == before->st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == before->st_mtim.tv_nsec;
}

int fingerprint_file(const char *path, const char *cache_dir,
                     void (*progress)(void *arg, double fraction, const char *what), void *arg, uint8_t sha256[32],
                     char *err, size_t err_size)
{
    int rc = 0;
    char cached[4096] = "";
    uint8_t *buf = NULL;
    EVP_MD_CTX *md = NULL;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        rc = -errno;
        snprintf(err, err_size, "%s: %s", path, strerror(-rc));
        goto cleanup;
    }
    if (cache_dir && snprintf(cached, sizeof cached, "%s/sha256-%lx-%lx-%llx-%llx.%09ld", cache_dir, (long)st.st_dev,
                              (long)st.st_ino, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                              st.st_mtim.tv_nsec) < (int)sizeof cached) {
        if (cache_read(cached, sha256))
            goto cleanup;
    } else {
        cached[0] = 0;
    }

    buf = malloc(READ_BYTES);
    md = EVP_MD_CTX_new();
    if (!buf || !md || !EVP_DigestInit_ex(md, EVP_sha256(), NULL)) {
        rc = -ENOMEM;
        snprintf(err, err_size, "%s: no memory for its hash", path);
        goto cleanup;
    }
    for (off_t at = 0;;) {
        ssize_t n = read(fd, buf, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = -errno;
            snprintf(err, err_size, "%s: %s", path, strerror(-rc));
            goto cleanup;
        }
        if (n == 0)
            break;
        if (!EVP_DigestUpdate(md, buf, (size_t)n)) {
            rc = -ENOMEM;
            snprintf(err, err_size, "%s: its hash cannot be computed", path);
            goto cleanup;
        }
        at += n;
        if (progress && st.st_size > 0)
            progress(arg, (double)at / (double)st.st_size, "hashing the model file");
    }
    if (!EVP_DigestFinal_ex(md, sha256, NULL)) {
        rc = -ENOMEM;
        snprintf(err, err_size, "%s: its hash cannot be computed", path);
        goto cleanup;
    }
    if (cached[0] && unchanged(fd, &st))
        cache_write(cached, sha256);

cleanup:
    EVP_MD_CTX_free(md);
    free(buf);
    if (fd >= 0)
        close(fd);
    return rc;
}

struct hash {
    EVP_MD_CTX *md;
    bool failed;
};

static void update(void *h, const void *p, size_t n)
{
    struct hash *hash = h;
    if (!EVP_DigestUpdate(hash->md, p, n))
        hash->failed = true;
}

int fingerprint_engine(struct engine *e)
{
    struct hash h = {.md = EVP_MD_CTX_new()};
    if (!h.md)
        return -ENOMEM;
    const int32_t settings[] = {NUMERICS_VERSION, LAYOUT_VERSION, e->model.n_layers, e->model.n_kv_heads,
                                e->model.head_dim};
    if (!EVP_DigestInit_ex(h.md, EVP_sha256(), NULL))
        h.failed = true;
    update(&h, "convod kv", 9);
    update(&h, settings, sizeof settings);
    update(&h, e->info.model_sha256, 32);
    update(&h, e->info.kv_type, strlen(e->info.kv_type) + 1);
    model_rope_hash(&e->model, update, &h);
    if (!h.failed && !EVP_DigestFinal_ex(h.md, e->info.fingerprint, NULL))
        h.failed = true;
    EVP_MD_CTX_free(h.md);
    return h.failed ? -ENOMEM : 0;
}

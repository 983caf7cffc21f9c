/* parts.c - the files that a model lies in: opens them, reads out of them, and says whether they changed.
 *
 * Nothing of a file is mapped: whoever changes or cuts a file while it is open makes a read fail, and no signal comes.
 * The header is read into memory and stays there; tensors are read by whoever wants them, in pieces.
 *
 * A model may lie in several files, NAME-00001-of-00003.gguf and so on. The first one is named, holds the keys and
 * leads to the others, which hold nothing that counts but tensors.
 */
#include "engine/file/gguf_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_READ_BYTES ((size_t)1 << 20)

static int no_memory(const char *path, char *err, size_t err_size)
{
    if (err_size > 0)
        snprintf(err, err_size, "%s: out of memory", path);
    return -ENOMEM;
}

/* A gguf with one part that has no bytes yet; NULL: no memory. */
static struct gguf *new_gguf(const char *path)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g == NULL)
        return NULL;
    g->path = strdup(path);
    g->parts = calloc(1, sizeof *g->parts);
    if (g->parts != NULL) {
        g->n_parts = 1;
        g->parts[0].fd = -1;
        g->parts[0].path = strdup(path);
    }
    if (g->path == NULL || g->parts == NULL || g->parts[0].path == NULL) {
        gguf_close(g);
        return NULL;
    }
    return g;
}

void gguf_close(struct gguf *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].fd >= 0)
            close(g->parts[i].fd); /* read-only: nothing to lose */
        free(g->parts[i].owned);
        free(g->parts[i].path);
    }
    free(g->parts);
    free(g->keys);
    free(g->keys_sorted);
    free(g->tensors);
    free(g->tensors_sorted);
    free(g->path);
    free(g);
}

int gguf_open_memory(const void *data, size_t size, const char *name, struct gguf **out, char *err, size_t err_size)
{
    struct gguf *g = new_gguf(name);
    if (g == NULL)
        return no_memory(name, err, err_size);
    g->parts[0].bytes = data;
    g->parts[0].size = size;
    size_t want;
    uint32_t parts = 1;
    int rc = gguf_parse(g, size, &want, err, err_size);
    if (rc == 0)
        rc = gguf_get_u32(g, "split.count", GGUF_OPTIONAL, &parts, err, err_size);
    if (rc == 0 && parts > 1)
        rc = gguf_fail(g, err, err_size, -ENOTSUP, "one of %u parts of a model, which are read from files only", parts);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

/* Bytes [at, at + n) of a part, which lie within the size that it had. */
static int read_part(const struct gguf_part *p, uint64_t at, size_t n, void *out, char *err, size_t err_size)
{
    struct gguf unnamed = {.path = p->path}; /* for messages only */
    if (p->fd < 0) {
        memcpy(out, p->bytes + at, n);
        return 0;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(p->fd, (uint8_t *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return gguf_fail(&unnamed, err, err_size, -errno, "cannot read at byte %llu: %m",
                             (unsigned long long)(at + done));
        if (got == 0)
            return gguf_fail(&unnamed, err, err_size, -EBADMSG,
                             "the file ends at byte %llu, but had %llu bytes when it was opened: it was cut meanwhile",
                             (unsigned long long)(at + done), (unsigned long long)p->size);
        done += (size_t)got;
    }
    return 0;
}

int gguf_read(const struct gguf *g, size_t part, uint64_t at, size_t n, void *out, char *err, size_t err_size)
{
    return read_part(&g->parts[part], at, n, out, err, err_size);
}

int gguf_tensor_read(const struct gguf *g, const struct gguf_tensor *t, uint64_t at, size_t n, void *out, char *err,
                     size_t err_size)
{
    return read_part(&g->parts[t->part], t->offset + at, n, out, err, err_size);
}

size_t gguf_part_count(const struct gguf *g)
{
    return g->n_parts;
}

uint64_t gguf_part_bytes(const struct gguf *g, size_t part)
{
    return g->parts[part].size;
}

uint64_t gguf_bytes(const struct gguf *g)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < g->n_parts; i++)
        sum += g->parts[i].size;
    return sum;
}

int gguf_check_unchanged(const struct gguf *g, char *err, size_t err_size)
{
    for (size_t i = 0; i < g->n_parts; i++) {
        const struct gguf_part *p = &g->parts[i];
        struct gguf unnamed = {.path = p->path};
        struct stat now;
        if (p->fd < 0)
            continue;
        if (fstat(p->fd, &now) != 0)
            return gguf_fail(&unnamed, err, err_size, -errno, "cannot read its size: %m");
        if (now.st_size != p->stat.st_size || now.st_mtim.tv_sec != p->stat.st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != p->stat.st_mtim.tv_nsec)
            return gguf_fail(&unnamed, err, err_size, -EBADMSG,
                             "the file was changed while it was read; is it still being written?");
    }
    return 0;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Reads as much of a file as its header turns out to take. */
static int read_header(struct gguf *g, char *err, size_t err_size)
{
    struct gguf_part *p = &g->parts[0];
    size_t have = 0, want = FIRST_READ_BYTES;
    int rc;
    do {
        want = want > p->size ? (size_t)p->size : want;
        if (want > GGUF_MAX_HEADER_BYTES)
            return gguf_fail(g, err, err_size, -EBADMSG, "its header takes more than %zu MiB, which no model needs",
                             GGUF_MAX_HEADER_BYTES >> 20);
        uint8_t *grown = realloc(p->owned, want);
        if (grown == NULL)
            return no_memory(g->path, err, err_size);
        p->bytes = p->owned = grown;
        if ((rc = read_part(p, have, want - have, grown + have, err, err_size)))
            return rc;
        have = want;
        rc = gguf_parse(g, have, &want, err, err_size);
        if (want < 4 * have) /* so that the work is that of a few passes, whatever the file asks for */
            want = 4 * have > GGUF_MAX_HEADER_BYTES && want <= GGUF_MAX_HEADER_BYTES ? GGUF_MAX_HEADER_BYTES : 4 * have;
    } while (rc == -EAGAIN);
    return rc;
}

static int open_one(const char *path, struct gguf **out, char *err, size_t err_size)
{
    struct gguf *g = new_gguf(path);
    if (g == NULL)
        return no_memory(path, err, err_size);
    struct gguf_part *p = &g->parts[0];
    int rc = 0;
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (p->fd < 0)
        rc = gguf_fail(g, err, err_size, -errno, "cannot open: %m");
    else if (fstat(p->fd, &p->stat) != 0)
        rc = gguf_fail(g, err, err_size, -errno, "cannot read its size: %m");
    else if (!S_ISREG(p->stat.st_mode))
        rc = gguf_fail(g, err, err_size, -EINVAL, "not a regular file");
    else if (p->stat.st_size == 0)
        rc = gguf_fail(g, err, err_size, -EBADMSG, "the file is empty");
    if (rc == 0) {
        p->size = (uint64_t)p->stat.st_size;
        rc = read_header(g, err, err_size);
    }
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

struct split {
    uint32_t no, count, tensors;
};

static int read_split(const struct gguf *g, struct split *s, char *err, size_t err_size)
{
    *s = (struct split){.count = 1};
    int rc = gguf_get_u32(g, "split.count", GGUF_OPTIONAL, &s->count, err, err_size);
    if (rc == 0)
        rc = gguf_get_u32(g, "split.no", s->count > 1 ? GGUF_REQUIRED : GGUF_OPTIONAL, &s->no, err, err_size);
    if (rc == 0)
        rc = gguf_get_u32(g, "split.tensors.count", s->count > 1 ? GGUF_REQUIRED : GGUF_OPTIONAL, &s->tensors, err,
                          err_size);
    return rc;
}

/* Takes over the tensors and the file of another part, which is freed. */
static int take_part(struct gguf *g, struct gguf *other, char *err, size_t err_size)
{
    size_t n = g->n_tensors + other->n_tensors;
    int rc = 0;
    struct gguf_part *parts = realloc(g->parts, (g->n_parts + 1) * sizeof *parts);
    g->parts = parts != NULL ? parts : g->parts;
    struct gguf_tensor *tensors = realloc(g->tensors, (n + 1) * sizeof *tensors);
    g->tensors = tensors != NULL ? tensors : g->tensors;
    uint32_t *sorted = realloc(g->tensors_sorted, (n + 1) * sizeof *sorted);
    g->tensors_sorted = sorted != NULL ? sorted : g->tensors_sorted;
    if (parts == NULL || tensors == NULL || sorted == NULL) {
        rc = no_memory(g->path, err, err_size);
    } else {
        memcpy(tensors + g->n_tensors, other->tensors, other->n_tensors * sizeof *tensors);
        for (size_t i = g->n_tensors; i < n; i++)
            tensors[i].part = (uint32_t)g->n_parts;
        free(other->parts[0].owned); /* its keys are not needed */
        other->parts[0].owned = NULL;
        other->parts[0].bytes = NULL;
        parts[g->n_parts++] = other->parts[0];
        other->n_parts = 0;
        g->n_tensors = n;
    }
    gguf_close(other);
    return rc;
}

/* The other parts of a model, whose first is g. */
static int open_others(struct gguf *g, const struct split *first, char *err, size_t err_size)
{
    char tail[32];
    int tail_len = snprintf(tail, sizeof tail, "-00001-of-%05u.gguf", first->count);
    size_t len = strlen(g->path);
    int rc = 0;
    if (first->no != 0)
        return gguf_fail(g, err, err_size, -EINVAL, "part %u of %u of a model; name the first, which ends in %s",
                         first->no + 1, first->count, tail);
    if (first->count > GGUF_MAX_PARTS)
        return gguf_fail(g, err, err_size, -EBADMSG, "split.count is %u; %d is the most", first->count, GGUF_MAX_PARTS);
    if (len < (size_t)tail_len || strcmp(g->path + len - (size_t)tail_len, tail) != 0)
        return gguf_fail(g, err, err_size, -EINVAL,
                         "the first of %u parts of a model; its name must end in %s, so that the others are found",
                         first->count, tail);
    char *path = malloc(len + 16);
    if (path == NULL)
        return no_memory(g->path, err, err_size);
    for (uint32_t i = 1; rc == 0 && i < first->count; i++) {
        struct gguf *other;
        struct split s = {0};
        snprintf(path, len + 16, "%.*s-%05u-of-%05u.gguf", (int)(len - (size_t)tail_len), g->path, i + 1, first->count);
        if ((rc = open_one(path, &other, err, err_size)))
            break;
        rc = read_split(other, &s, err, err_size);
        if (rc == 0 && (s.no != i || s.count != first->count || s.tensors != first->tensors))
            rc = gguf_fail(other, err, err_size, -EBADMSG, "is not part %u of %u of the model that %s begins", i + 1,
                           first->count, g->path);
        if (rc == 0 && g->n_tensors + other->n_tensors > GGUF_MAX_TENSORS)
            rc = gguf_fail(other, err, err_size, -EBADMSG, "the parts have more than %d tensors together",
                           GGUF_MAX_TENSORS);
        if (rc)
            gguf_close(other);
        else
            rc = take_part(g, other, err, err_size);
    }
    free(path);
    if (rc == 0 && g->n_tensors != first->tensors)
        rc = gguf_fail(g, err, err_size, -EBADMSG, "split.tensors.count is %u, but the parts have %zu tensors",
                       first->tensors, g->n_tensors);
    return rc ? rc : gguf_sort_tensors(g, err, err_size);
}

int gguf_open(const char *path, struct gguf **out, char *err, size_t err_size)
{
    struct gguf *g;
    struct split split;
    int rc = open_one(path, &g, err, err_size);
    if (rc)
        return rc;
    rc = read_split(g, &split, err, err_size);
    if (rc == 0 && split.count > 1)
        rc = open_others(g, &split, err, err_size);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

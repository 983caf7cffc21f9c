/* fingerprint.c - what a stored KV row depends on, as one hash, and how it is rounded, in words.
 *
 * A row computed with other weights, other rotary settings or another KV type must never be used, whatever the file is
 * called; one with other numerics only where that is allowed.
 */
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/model.h"

/* Raised whenever an operation's rounding or order changes (docs/numerics.md), or the canonical layout does. */
#define NUMERICS_VERSION "3"
#define LAYOUT_VERSION   1

_Static_assert(sizeof NUMERICS_VERSION " " - 1 + KERNELS_NUMERICS_TEXT <= ENGINE_NUMERICS_TEXT,
               "all backends' names fit behind the version");

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

static int hash_engine(const struct engine *e, uint8_t out[32])
{
    struct hash h = {.md = EVP_MD_CTX_new()};
    if (!h.md)
        return -ENOMEM;
    const struct model *m = &e->model;
    const struct kernels_kv *first = &m->layers[0].kv;
    const int32_t settings[] = {0, LAYOUT_VERSION, m->n_layers, first->kv_heads, first->head_dim};
    if (!EVP_DigestInit_ex(h.md, EVP_sha256(), NULL))
        h.failed = true;
    update(&h, "convod kv", 9);
    update(&h, settings, sizeof settings);
    for (int l = 1; l < m->n_layers; l++) {
        const int32_t own[] = {l, m->layers[l].kv.kv_heads, m->layers[l].kv.head_dim};
        if (own[1] != first->kv_heads || own[2] != first->head_dim)
            update(&h, own, sizeof own);
    }
    update(&h, e->info.model_sha256, 32);
    update(&h, e->info.kv_type, strlen(e->info.kv_type) + 1);
    model_rope_hash(m, update, &h);
    if (m->layers[0].rope < 0) /* the file's own word; where some layers alone do not rotate, the first does */
        update(&h, "unrotated", 9);
    if (!h.failed && !EVP_DigestFinal_ex(h.md, out, NULL))
        h.failed = true;
    EVP_MD_CTX_free(h.md);
    return h.failed ? -ENOMEM : 0;
}

int fingerprint_engine(struct engine *e)
{
    const char *whose = e->kernels ? kernels_numerics(e->kernels) : "cpu";
    (void)snprintf(e->info.numerics, sizeof e->info.numerics, NUMERICS_VERSION " %s", whose);
    return hash_engine(e, e->info.kv_identity);
}

/* limits.c - what owners may have: said by whom the session serves, kept by the ledger, and looked at here before a
 * turn or a conversation is made, or a conversation's texts grow. Turns that are under way do not count yet, so that
 * some may come through together.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

static struct storage_limits limits_of(const struct session_limits *limits)
{
    return (struct storage_limits){limits->conversations, limits->ledger_bytes, limits->disk_bytes,
                                   limits->ram_bytes,     limits->kv_bytes,     limits->retain_ms};
}

int limits_set(struct storage *storage, const struct session_limits *everyone, const struct session_owner_limits *rows,
               size_t n)
{
    struct storage_limits all = limits_of(everyone);
    struct storage_owner_limits *own = calloc(n ? n : 1, sizeof *own);
    if (!own)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        own[i] = (struct storage_owner_limits){rows[i].owner, limits_of(&rows[i].limits)};
    int rc = storage_limits_set(storage, &all, own, n);
    free(own);
    return rc;
}

static void wake(struct session *s, void *arg)
{
    (void)s, (void)arg; /* conversations may be too old from now on */
}

int session_limits_set(struct session *s, const struct session_limits *everyone,
                       const struct session_owner_limits *rows, size_t n)
{
    int rc = limits_set(s->storage, everyone, rows, n);
    return rc ? rc : session_post(s, wake, NULL);
}

int limits_check(struct storage_ledger *l, struct session *s, int64_t owner, const char *name, bool creates, char *why,
                 size_t why_size)
{
    struct storage_limits most = storage_limits_of(s->storage, name);
    struct storage_usage used;
    if (!most.conversations && !most.ledger_bytes)
        return 0;
    int rc = storage_usage(l, owner, &used);
    if (rc)
        return rc;
    if (creates && most.conversations && used.conversations >= most.conversations) {
        (void)snprintf(why, why_size, "you have %llu conversations, and may have %llu: delete some first",
                       (unsigned long long)used.conversations, (unsigned long long)most.conversations);
        rc = -EMFILE;
    } else if (most.ledger_bytes && used.ledger_bytes >= most.ledger_bytes) {
        (void)snprintf(why, why_size,
                       "your conversations take %llu bytes, and may take %llu: delete some conversations first",
                       (unsigned long long)used.ledger_bytes, (unsigned long long)most.ledger_bytes);
        rc = -EFBIG;
    }
    if (rc)
        atomic_fetch_add(&s->quota_refusals, 1);
    return rc;
}

/* ---- what is used ---- */

struct usage {
    struct usage *next;
    char *owner;
    struct session *session;
    int64_t owner_id;
    struct storage_usage used;
    struct storage_limits most;
    int rc;
    session_done *done;
    void *arg;
};

static int usage_run(struct storage_ledger *l, void *arg)
{
    struct usage *u = arg;
    struct storage_owner owner;
    int rc = storage_owner_get(l, u->owner, &owner);
    u->owner_id = owner.id;
    return rc ? rc : storage_usage(l, owner.id, &u->used);
}

/* Those that have come from the ledger, oldest first; whoever takes them answers them. */
static struct usage *take(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    struct usage *list = s->usages;
    s->usages = NULL;
    pthread_mutex_unlock(&s->lock);
    return list;
}

static void answer(struct session *s, struct usage *u, bool kv_known)
{
    for (struct usage *next; u; u = next) {
        const struct storage_limits *most = &u->most;
        const struct session_usage usage = {
            u->used.conversations,
            u->used.ledger_bytes,
            u->used.disk_bytes,
            u->used.ram_bytes,
            u->rc || !kv_known ? 0 : (uint64_t)hot_tokens_of(s, u->owner_id) * s->info->kv_token_bytes,
            kv_known,
            {most->conversations, most->ledger_bytes, most->disk_bytes, most->ram_bytes, most->kv_bytes,
             most->retain_ms}};
        next = u->next;
        u->done(u->arg, &(struct session_result){.usage = u->rc ? NULL : &usage});
        free(u->owner);
        free(u);
    }
}

/* On the engine thread, which knows what is in pages. */
static void usage_over(struct session *s, void *arg)
{
    (void)arg;
    answer(s, take(s), true);
}

static void usage_done(void *arg, int rc)
{
    struct usage *u = arg;
    struct session *s = u->session;
    struct session_status status;
    u->most = storage_limits_of(s->storage, u->owner);
    u->rc = rc;
    pthread_mutex_lock(&s->lock);
    struct usage **end = &s->usages;
    while (*end)
        end = &(*end)->next;
    *end = u;
    pthread_mutex_unlock(&s->lock);
    while (session_post(s, usage_over, NULL))
        ;
    session_status(s, &status);
    if (status.stuck) /* who asks wants to know that */
        answer(s, take(s), false);
}

int session_usage(struct session *s, const char *owner, session_done *done, void *arg)
{
    struct usage *u = malloc(sizeof *u);
    if (!u)
        return -ENOMEM;
    *u = (struct usage){.owner = strdup(owner), .session = s, .done = done, .arg = arg};
    int rc = u->owner ? storage_submit(s->storage, (struct storage_job){.run = usage_run, .done = usage_done, .arg = u})
                      : -ENOMEM;
    if (rc) {
        free(u->owner);
        free(u);
    }
    return rc;
}

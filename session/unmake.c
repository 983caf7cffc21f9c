/* unmake.c - a conversation that was made for items that could not be put in is taken away again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"

struct unmake {
    char *owner, *id;
};

static int unmake_run(struct storage_ledger *l, void *arg)
{
    struct unmake *u = arg;
    struct storage_owner owner;
    struct storage_conversation c;
    int rc = storage_owner_get(l, u->owner, &owner);
    if (!rc)
        rc = storage_conversation_get(l, owner.id, u->id, &c);
    if (rc)
        return rc;
    int used = c.head ? 1 : storage_conversation_runs(l, c.id);
    storage_conversation_free(&c);
    if (used)
        return used < 0 ? used : 0;
    rc = storage_key_drop(l, owner.id, u->id);
    return rc ? rc : storage_conversation_delete(l, owner.id, u->id);
}

/* If it could not be done the conversation stays, with nothing in it. */
static void unmake_done(void *arg, int rc)
{
    struct unmake *u = arg;
    (void)rc;
    free(u->owner);
    free(u->id);
    free(u);
}

void session_conversation_unmake(struct session *s, const char *owner, const char *id)
{
    struct unmake *u = malloc(sizeof *u);
    if (!u)
        return;
    *u = (struct unmake){strdup(owner), strdup(id)};
    if (!u->owner || !u->id ||
        storage_submit(s->storage, (struct storage_job){.run = unmake_run, .done = unmake_done, .arg = u}))
        unmake_done(u, -ENOMEM);
}

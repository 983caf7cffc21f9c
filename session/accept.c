/* accept.c - a turn's row in the ledger: made when the turn is accepted, ended when the answer is.
 *
 * The engine thread does not wait for the first: restoring and prefilling begin at once. The first token of the answer,
 * and whatever is told of the turn, comes when the row is durable (turn_accepted()). Jobs run in the order in which
 * they were submitted, so that the row is there when it is committed, or the commit finds that it is not.
 *
 * While a job is under way it owns turn->accepted (accept) or turn->row and turn->answer (commit).
 */
#include <errno.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "session/session_internal.h"

static int submit(struct turn *t, int (*run)(struct storage_ledger *l, void *arg), void (*done)(void *arg, int rc))
{
    int rc = storage_submit(t->session->storage, (struct storage_job){.run = run, .done = done, .arg = t});
    if (rc)
        return rc;
    t->n_jobs++;
    t->session->jobs++;
    return 0;
}

int accept_new_id(const char *prefix, char out[48])
{
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return -EIO;
    int n = snprintf(out, 48 - 2 * sizeof random, "%s", prefix);
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(out + n + 2 * i, 3, "%02x", random[i]);
    return 0;
}

int accept_hash(const struct storage_owner *owner, const void *data, size_t len, uint8_t out[STORAGE_DIGEST_BYTES])
{
    unsigned n = 0;
    return HMAC(EVP_sha256(), owner->key, sizeof owner->key, data, len, out, &n) && n == STORAGE_DIGEST_BYTES ? 0
                                                                                                              : -EIO;
}

int accept_name(struct turn *t)
{
    char id[48];
    int rc = accept_new_id("conv_", id);
    if (!rc && !(t->found.conversation.public_id = strdup(id)))
        rc = -ENOMEM;
    return rc;
}

/* ---- accepted ---- */

static int accept_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    struct storage_turn *row = &t->accepted;
    int rc = 0;
    if (t->ask.requeued) {
        struct storage_turn queued;
        if ((rc = storage_turn_get(l, row->owner, t->response_id, 0, &queued)))
            return rc;
        row->id = queued.id;
        row->conversation = queued.conversation;
        storage_turn_free(&queued);
        return 0;
    }
    row->conversation = t->found.conversation.id;
    if (row->conversation == 0) {
        struct storage_conversation c = {.owner = row->owner,
                                         .public_id = t->found.conversation.public_id,
                                         .kind =
                                             t->ask.match ? STORAGE_CONVERSATION_STATELESS : STORAGE_CONVERSATION_CHAIN,
                                         .created_ms = row->created_ms,
                                         .updated_ms = row->created_ms};
        if ((rc = storage_conversation_insert(l, &c)))
            return rc;
        row->conversation = c.id;
    }
    if (t->found.replaces) {
        rc = storage_turn_replace(l, row->owner, t->found.replaces);
        if (rc)
            return rc == -ENOENT ? -EBUSY : rc;
    }
    rc = storage_turn_insert(l, row);
    if (!rc && t->key)
        rc = storage_key_set(l, row->owner, t->key_hash, t->digest_hash, t->response_id);
    if (rc)
        row->id = 0; /* it is undone, and the next row may get this number */
    return rc;
}

static void accept_done(void *arg, int rc)
{
    struct turn *t = arg;
    t->accept_rc = rc;
    if (rc)
        t->accepted.id = 0;
    turn_back(t, turn_accepted);
}

int accept_start(struct turn *t)
{
    /* What was matched is stored already, save where the turn begins a chain of its own. */
    size_t from = t->found.apart ? 0 : t->found.matched;
    bool tools = t->tools && (!t->found.parent.id || t->past.rebased);
    for (size_t i = from; i < t->n_messages; i++) {
        struct storage_item *item = &t->items[i];
        char id[48];
        if (item->public_id)
            continue;
        int rc = accept_new_id("msg_", id);
        if (rc || !(item->public_id = strdup(id)))
            return rc ? rc : -ENOMEM;
    }
    if (!(t->accepted_items = calloc(t->n_messages + 1, sizeof *t->accepted_items)))
        return -ENOMEM;
    if (tools) {
        char id[48];
        if (accept_new_id("tools_", id) || !(t->tools_id = strdup(id)))
            return -ENOMEM;
        t->accepted_items[0] = (struct storage_item){
            .public_id = t->tools_id, .kind = (char *)"tools", .created_ms = t->created_ms, .text = t->tools};
    }
    memcpy(t->accepted_items + tools, t->items + from, (t->n_messages - from) * sizeof *t->items);
    t->accepted = (struct storage_turn){.owner = t->found.owner.id,
                                        .parent = t->found.parent.id,
                                        .public_id = t->response_id,
                                        .status = t->request ? STORAGE_TURN_QUEUED : STORAGE_TURN_RUNNING,
                                        .instructions = (char *)t->in_force,
                                        .params = t->params,
                                        .request = t->request,
                                        .unstored = t->past.unstored,
                                        .items = t->accepted_items,
                                        .n_items = t->n_messages - from + tools,
                                        .created_ms = t->created_ms};
    memcpy(t->accepted.fingerprint, t->session->info->model_sha256, sizeof t->accepted.fingerprint);
    if (t->ask.has_digest)
        memcpy(t->accepted.digest, t->digest_hash, sizeof t->accepted.digest);
    int rc = submit(t, accept_run, accept_done);
    if (!rc)
        t->in_ledger = ROW_ASKED;
    return rc;
}

static int running_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    return storage_turn_run(l, t->accepted.id);
}

static void running_over(struct session *s, void *arg)
{
    struct turn *t = arg;
    s->jobs--;
    t->n_jobs--;
}

static void running_done(void *arg, int rc)
{
    (void)rc; /* then it runs once more after a crash */
    turn_back(arg, running_over);
}

void accept_running(struct turn *t)
{
    (void)submit(t, running_run, running_done);
}

/* ---- committed ---- */

static int commit_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    if (t->ask.strips) {
        t->row.owner = t->found.owner.id;
        t->row.public_id = t->response_id;
        t->row.strips = t->found.parent.id;
        return storage_turn_strip(l, &t->row);
    }
    t->row.id = t->accepted.id;
    int rc = t->row.id ? storage_turn_commit(l, &t->row) : -ENOENT;
    /* An answer that is gone on with goes only where the new one has it. */
    if (!rc && t->replaces && (!t->continues || t->answer.opened)) {
        rc = storage_turn_delete(l, t->found.owner.id, t->replaces);
        rc = rc == -EBUSY || rc == -ENOENT ? 0 : rc; /* others follow it, or it is gone */
    }
    return rc;
}

static void commit_done(void *arg, int rc)
{
    struct turn *t = arg;
    t->commit_rc = rc;
    turn_back(t, turn_committed);
}

int accept_commit(struct turn *t)
{
    return submit(t, commit_run, commit_done);
}

/* ---- failed ---- */

static int fail_run(struct storage_ledger *l, void *arg)
{
    struct turn *t = arg;
    return t->accepted.id ? storage_turn_fail(l, t->accepted.id, t->end.message, session_wall_ms()) : -ENOENT;
}

static void fail_done(void *arg, int rc)
{
    struct turn *t = arg;
    t->fail_rc = rc;
    turn_back(t, turn_failed);
}

int accept_fail(struct turn *t)
{
    return submit(t, fail_run, fail_done);
}

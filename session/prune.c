/* prune.c - what a response that is to be deleted has in the segment that the response before it ends in.
 *
 * When a turn is saved, its longer segment takes the place of the unfinished one of the turns before, which hold the
 * longer one from then on (turns_hold()). When the later response is deleted its tokens must go from that segment too.
 * storage_turn_delete() sees to that: what reaches beyond the turns that stay is held by none of them afterwards. So
 * that they lose nothing by it, the head of it that they need is stored anew before, and they hold that. Where it
 * cannot be read nothing is put; it is prefilled again if it is needed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

struct prune {
    struct session *session;
    struct storage_owner owner;
    struct storage_found found; /* the last segment that holds tokens of the turn */
    int first, used;            /* of it, this turn's context takes so many from `first` on */
    uint8_t parent[STORAGE_KEY_BYTES];
    int64_t turn; /* that is behind; it and those before that end within the segment hold what is put */
    uint8_t *payload;
    struct storage_read_result result;
    void (*done)(struct session *s, void *arg);
    void *arg;
};

void prune_free(struct prune *p)
{
    if (!p)
        return;
    free(p->found.label);
    free(p->payload);
    free(p);
}

static int take(void *arg, struct storage_found *found, int pos, int used)
{
    struct prune *p = arg;
    if (p->found.label)
        memcpy(p->parent, p->found.key, sizeof p->parent);
    free(p->found.label);
    p->found = *found;
    p->first = pos;
    p->used = used;
    return 0;
}

int prune_find(struct storage_ledger *l, struct session *s, const struct storage_owner *owner, int64_t turn,
               struct prune **out)
{
    struct engine_tokens tokens = {0};
    struct prune *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->session = s;
    p->owner = *owner;
    p->turn = turn;
    int rc = context_of_turn(l, owner->id, turn, &tokens);
    if (!rc)
        rc = lookup_walk(l, s, owner, p->parent, tokens.ids, 0, (int)tokens.n, take, p);
    engine_tokens_free(&tokens);
    if (rc || !p->found.label) {
        prune_free(p);
        p = NULL;
    }
    *out = p;
    return rc;
}

struct rehold {
    struct session *session;
    void (*done)(struct session *s, void *arg);
    void *arg;
    uint8_t key[STORAGE_KEY_BYTES];
    int64_t turn, tokens;
};

static void all_hold(struct session *s, void *arg)
{
    struct rehold *r = arg;
    s->jobs--;
    r->done(s, r->arg);
    free(r);
}

static void hold_done(void *arg, int rc)
{
    struct rehold *r = arg;
    (void)rc; /* then they hold what they held */
    while (session_post(r->session, all_hold, r))
        ;
}

/* In the transaction in which the last one holds it. Where the chain has a gap (rc) they hold what they held; that
 * undoes nothing of what others have put. */
static int hold_too(struct storage_ledger *l, void *arg, int rc)
{
    const struct rehold *r = arg;
    return rc ? 0 : storage_turns_hold(l, r->turn, r->tokens, r->key);
}

int turns_hold(struct session *s, int64_t turn, int64_t tokens, const uint8_t key[STORAGE_KEY_BYTES],
               void (*done)(struct session *s, void *arg), void *arg)
{
    struct rehold *r = malloc(sizeof *r);
    if (!r)
        return -ENOMEM;
    *r = (struct rehold){.session = s, .done = done, .arg = arg, .turn = turn, .tokens = tokens};
    memcpy(r->key, key, sizeof r->key);
    s->jobs++;
    if (storage_kv_commit(s->storage, turn, key, hold_too, hold_done, r) == 0)
        return 0;
    s->jobs--;
    free(r);
    return -ENOMEM;
}

static void over(struct session *s, void *arg)
{
    struct prune *p = arg;
    void (*done)(struct session * s, void *arg) = p->done;
    void *done_arg = p->arg;
    s->jobs--;
    s->prunes--;
    prune_free(p);
    done(s, done_arg);
}

static void hold(struct session *s, struct prune *p, const uint8_t key[STORAGE_KEY_BYTES])
{
    if (!s->storage || turns_hold(s, p->turn, p->first, key, over, p))
        over(s, p);
}

/* The first `used` of `count` tokens of a payload, array by array. */
static void cut(const struct session *s, const uint8_t *from, size_t count, size_t used, uint8_t *to)
{
    for (uint32_t a = 0; a < s->layout.n_arrays; a++) {
        size_t channels = s->arrays[a].channels;
        size_t rows = s->arrays[a].channel_major ? channels : 1, row = s->arrays[a].channel_major ? 2 : 2 * channels;
        for (size_t r = 0; r < rows; r++, to += row * used, from += row * count)
            memcpy(to, from, row * used);
    }
}

static int put_head(struct session *s, struct prune *p, uint8_t key[STORAGE_KEY_BYTES])
{
    int rc =
        segment_key(p->owner.key, s->info->kv_identity, p->parent, (const engine_token *)p->found.label, p->used, key);
    uint8_t *payload = rc ? NULL : malloc((size_t)p->used * s->info->kv_token_bytes);
    if (!payload)
        return rc ? rc : -ENOMEM;
    cut(s, p->payload, p->found.count, (size_t)p->used, payload);
    struct storage_segment segment = {.owner = p->owner.id,
                                      .first = (uint32_t)p->first,
                                      .count = (uint32_t)p->used,
                                      .label = p->found.label,
                                      .label_bytes = (uint32_t)p->used * sizeof(engine_token)};
    memcpy(segment.key, key, sizeof segment.key);
    memcpy(segment.parent, p->parent, sizeof segment.parent);
    memcpy(segment.fingerprint, s->info->kv_identity, sizeof segment.fingerprint);
    memcpy(segment.producer, p->found.producer, sizeof segment.producer);
    segment.keep = true;
    return storage_segment_put(s->storage, &segment, &s->layout, payload);
}

static void read_back(struct session *s, void *arg)
{
    struct prune *p = arg;
    uint8_t key[STORAGE_KEY_BYTES];
    int rc = p->result.rc ? p->result.rc : !s->storage ? -ESHUTDOWN : put_head(s, p, key);
    if (rc) {
        session_log(s, LOG_WARNING, "a segment that a deleted response shared could not be stored anew: %s",
                    strerror(-rc));
        over(s, p);
        return;
    }
    hold(s, p, key);
}

static void read_done(void *arg, struct storage_read_result result)
{
    struct prune *p = arg;
    p->result = result;
    while (session_post(p->session, read_back, p))
        ;
}

void prune_start(struct session *s, struct prune *p, void (*done)(struct session *s, void *arg), void *arg)
{
    p->done = done;
    p->arg = arg;
    s->jobs++;
    s->prunes++;
    if (p->used == (int)p->found.count) {
        hold(s, p, p->found.key);
        return;
    }
    p->result.rc = -ENOMEM;
    p->payload = malloc((size_t)p->found.count * s->info->kv_token_bytes);
    if (!p->payload ||
        storage_segment_read(s->storage, &p->found, s->info->kv_identity, &s->layout, p->payload, read_done, p))
        read_back(s, p);
}

/* commit.c - how a turn ends: the answer is over or stopped, the ledger takes it, its KV is saved behind it.
 *
 * The terminal event waits for the ledger's commit and for nothing else. What becomes of the KV is told afterwards, in
 * the stored receipt (`saved`): a turn whose KV could not be saved is complete all the same.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

#define TURNS_OF_MEAN 8

static const uint8_t no_key[STORAGE_KEY_BYTES];

/* ---- commit ---- */

/* The token before the first one to sample had been through the model, but its logits are needed. */
static void account_repeated(struct turn *t)
{
    int covered = t->receipt.hot + t->receipt.ram + t->receipt.disk;
    for (int i = 0; i < t->receipt.n_reprefilled; i++)
        covered += t->receipt.reprefilled[i].tokens;
    if (t->ask.generate && t->hot && covered == t->n_prompt - 1 && t->receipt.prefilled == 1 && t->plan.rerun_last)
        turn_add_reprefilled(t, 1, "logits");
}

static void remember_ephemeral(struct turn *t)
{
    struct ephemeral *e = calloc(1, sizeof *e);
    if (e) {
        e->owner = strdup(t->owner);
        e->response_id = strdup(t->response_id);
        e->instructions = t->in_force ? strdup(t->in_force) : NULL;
        e->tools = t->tools_form ? strdup(t->tools_form) : NULL;
        context_chat_hash(t, e->chat_hash);
        e->n_evaluated = receipt_evaluated(t);
        e->answered = t->ask.generate;
        e->said = t->ask.generate || t->n_messages || t->past.unstored;
        e->calls = e->answered ? items_open_calls(t) : NULL;
        if (e->owner && e->response_id && engine_tokens_append(&e->tokens, t->context.ids, t->context.n) == 0) {
            e->next = t->session->ephemerals;
            t->session->ephemerals = e;
            return;
        }
        ephemeral_free(e);
    }
    session_log(t->session, LOG_WARNING, "no memory to remember a response that is not stored");
}

static void done(struct turn *t)
{
    struct session *s = t->session;
    bool incomplete = t->end.reason != NULL;
    answer_tell(t);
    t->told.terminal = true;
    t->state = TURN_OVER;
    s->status.turns_incomplete += incomplete && !t->ask.strips;
    s->status.turns_completed += !incomplete && !t->ask.strips;
    if (t->ask.generate && t->admitted_ns) {
        double ms = (double)(session_now_ns() - t->admitted_ns) / 1e6;
        s->status.turn_ms += s->status.turn_ms > 0 ? (ms - s->status.turn_ms) / TURNS_OF_MEAN : ms;
    }
    session_counted(s);
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_DONE,
                                         .conversation = turn_conversation_id(t),
                                         .erasing = t->end.erasing,
                                         .incomplete = incomplete,
                                         .reason = t->end.reason,
                                         .stop = t->end.by_string ? engine_stream_stop(t->stream) : NULL,
                                         .input_tokens = t->n_prompt,
                                         .cached_tokens = t->receipt.hot + t->receipt.ram + t->receipt.disk,
                                         .output_tokens = t->n_output,
                                         .receipt = &t->receipt});
    turn_let_go(t, true);
}

static void save_kv(struct turn *t, int64_t turn);

/* A touch that had to prefill has put segments, and the turn that it has brought back holds them from now on. One that
 * was stopped before its end would hold less than it does: what it has put is dropped. */
static void save_touched(struct turn *t)
{
    struct hot *h = t->hot;
    if (!h->in_ledger || t->receipt.prefilled == 0)
        return;
    if (engine_seq_length(h->seq) == (int)t->context.n) {
        save_kv(t, h->turn);
        return;
    }
    hot_discard(t->session, h);
    hot_unsaved(t->session, h->conversation, 0);
}

/* The rest of the turn's row. 0 or -ENOMEM. */
static int fill_row(struct turn *t)
{
    struct session *s = t->session;
    size_t from = (size_t)(t->past.rebased ? 0 : t->past.own_from);
    char kv[CONTEXT_KV_TEXT];
    const char *stop = t->end.by_string ? engine_stream_stop(t->stream) : NULL;
    context_kv_text(s->info, t->hot && t->hot->mixed, kv);
    t->row = (struct storage_turn){
        .status = t->end.reason ? STORAGE_TURN_INCOMPLETE : STORAGE_TURN_COMPLETED,
        .reason = (char *)(t->end.reason ? t->end.reason : stop),
        .answered = t->ask.generate,
        .tokens = t->context.ids + from,
        .tokens_bytes = (t->context.n - from) * sizeof(engine_token),
        .prompt_bytes = ((size_t)(t->n_prompt - t->n_opened) - from) * sizeof(engine_token),
        .rebased = t->past.rebased,
        .unstored = t->past.unstored,
        .n_tokens = (int64_t)t->context.n,
        .evaluated = receipt_evaluated(t),
        .kv = strdup(kv),
        .receipt = receipt_stored(&t->receipt),
        .saved = t->hot || t->aside.n ? STORAGE_SAVED_PENDING : STORAGE_SAVED_YES,
        .input_tokens = t->n_prompt,
        .cached_tokens = t->receipt.hot + t->receipt.ram + t->receipt.disk,
        .output_tokens = t->receipt.output,
        .completed_ms = t->completed_ms,
    };
    t->row.base = t->past.rebased ? 0 : t->found.stripped.id;
    memcpy(t->row.fingerprint, s->info->model_sha256, sizeof t->row.fingerprint);
    if (!t->ask.strips)
        context_chat_hash(t, t->row.chat_hash);
    t->row.items = t->output;
    t->row.n_items = t->n_output_items;
    return t->row.kv && t->row.receipt ? 0 : -ENOMEM;
}

/* What is replaced goes from the disk with all that was still being saved of it. */
static void commit_begin(struct turn *t)
{
    t->end.waits =
        t->replaces && !(strip_stop(t) && conversation_settle(t->session, t->found.owner.id, t->found.conversation.id));
    if (!t->end.waits && accept_commit(t))
        turn_fail(t, SESSION_INTERNAL, "out of memory");
}

void turn_finish(struct turn *t)
{
    struct session *s = t->session;
    if (t->ask.strips && t->end.cancelled) { /* what it has put goes; the next one makes up for it */
        turn_fail(t, SESSION_SHUTDOWN, "a warm-up was stopped");
        return;
    }
    if (t->end.cancelled && !t->end.reason)
        t->end.reason = s->closing         ? "shutdown"
                        : t->end.abandoned ? "abandoned"
                        : t->end.yielded   ? "yielded"
                                           : "cancelled";
    if (answer_finish(t)) {
        turn_fail(t, SESSION_INTERNAL, "out of memory");
        return;
    }
    account_repeated(t);
    t->completed_ms = session_wall_ms();
    bool touch = turn_touches(t) && !t->ask.strips;
    /* Without pages nothing was computed: what there is was saved by those before. */
    t->receipt.saved = !t->ask.store || touch ? "off" : t->hot || t->aside.n ? "pending" : "yes";
    if (!t->ask.store || touch) {
        receipt_finish(t);
        /* A warm-up that is not stored, and follows nothing that is, can be followed itself. */
        if (!touch || (!t->ask.store && !t->found.parent.id && !t->found.conversation.public_id)) {
            if (t->hot) {
                t->hot->turn = 0;
                t->hot->ephemeral = strdup(t->response_id);
            }
            /* Nothing can follow a raw one: its pages serve contexts that begin alike, until they are wanted. */
            if (!t->ask.raw)
                remember_ephemeral(t);
        } else if (t->hot && t->found.parent.id) {
            hot_belongs(s, t->hot, context_base(t)->id, t->found.conversation.id);
            save_touched(t);
        } else if (t->hot && t->previous) {
            t->hot->ephemeral = strdup(t->previous);
        }
        done(t);
        return;
    }
    receipt_finish(t);
    if (fill_row(t)) {
        turn_fail(t, SESSION_INTERNAL, "out of memory");
        return;
    }
    t->state = TURN_COMMITTING;
    commit_begin(t);
}

void commit_retry(struct session *s)
{
    for (struct turn *t = s->turns; t; t = t->next)
        if (t->end.waits)
            commit_begin(t);
}

/* ---- after the commit: KV ---- */

static void count_saves(struct session *s, int change)
{
    s->saves += change;
    session_counted(s);
}

void saving_free(struct saving *saving)
{
    free(saving->owner);
    free(saving);
}

/* One that failed is tried again, as long as its pages are there. */
static void saving_over(struct session *s, void *arg)
{
    struct saving *saving = arg;
    s->jobs--;
    count_saves(s, -1);
    for (struct saving **p = &s->savings; *p; p = &(*p)->next)
        if (*p == saving) {
            *p = saving->next;
            break;
        }
    if (saving->rc && saving->hot && saving->told && s->storage && !s->closing)
        unsaved_add(s, saving);
    else {
        hot_keep_within(s, saving->owner, saving->owner_id); /* its context had to stay until now */
        saving_free(saving);
    }
    hot_sweep(s);
}

/* How it ended, in the turn's row. A turn that was deleted has no reader. */
static int saved_set(struct storage_ledger *l, struct saving *saving, enum storage_saved saved)
{
    if (!saving->told)
        return 0;
    saving->saved = saved;
    int rc = storage_turn_set_saved(l, saving->turn, saved);
    return rc == -ENOENT ? 0 : rc;
}

/* In the transaction that makes the turn hold its segments, or does not (rc): the turns before it hold the longer one,
 * what is in its context no longer goes, and the receipt says how it ended. */
static int with_commit(struct storage_ledger *l, void *arg, int rc)
{
    struct saving *saving = arg;
    int job_rc = 0;
    rc = rc ? rc : saving->lost;
    saving->with_rc = rc;
    if (!rc && saving->longer_at >= 0)
        job_rc =
            storage_turns_hold(l, saving->turn, (int64_t)saving->longer_at * SESSION_SEGMENT_TOKENS, saving->longer);
    for (int i = 0; i < 2 && !job_rc; i++)
        job_rc = storage_segment_drop(l, saving->drop[i]);
    return job_rc ? job_rc : saved_set(l, saving, rc ? STORAGE_SAVED_FAILED : STORAGE_SAVED_YES);
}

static int saving_run(struct storage_ledger *l, void *arg)
{
    struct saving *saving = arg;
    return saved_set(l, saving, saving->rc ? STORAGE_SAVED_FAILED : STORAGE_SAVED_YES);
}

static void saving_run_done(void *arg, int rc)
{
    struct saving *saving = arg;
    (void)rc;
    while (session_post(saving->session, saving_over, saving))
        ;
}

/* What was to be dropped with it may be there yet: the next try does, where nobody wants it then. */
static void drops_back(struct saving *saving)
{
    uint8_t *const ends[] = {saving->hot->aside, saving->hot->cut};
    for (int i = 0; i < 2; i++)
        if (!memcmp(ends[i], no_key, sizeof no_key))
            memcpy(ends[i], saving->drop[i], sizeof no_key);
    memset(saving->drop, 0, sizeof saving->drop);
}

static void kv_saved(struct session *s, void *arg)
{
    struct saving *saving = arg;
    if (saving->rc) {
        if (saving->hot)
            drops_back(saving);
        /* -ESTALE: something that was taken for stored has gone, and the chain is broken there. */
        hot_unsaved(s, saving->conversation, saving->rc == -ESTALE ? 0 : saving->from);
        s->status.save_failures += !saving->failed;
        if (!saving->failed)
            session_log(s, LOG_ERR,
                        "the KV of a turn could not be saved (%s); it is tried again as long as it is in memory",
                        strerror(-saving->rc));
        saving->failed = true;
    } else {
        s->unsaved_pause_ms = 0;
    }
    /* What its job could not write, or where there was none. */
    bool written = saving->rc == saving->with_rc && (saving->saved == STORAGE_SAVED_FAILED) == (saving->rc != 0) &&
                   saving->saved != STORAGE_SAVED_PENDING;
    if (saving->told && !written && s->storage &&
        storage_submit(s->storage, (struct storage_job){.run = saving_run, .done = saving_run_done, .arg = saving}) ==
            0)
        return;
    saving_over(s, saving);
}

static void kv_commit_done(void *arg, int rc)
{
    struct saving *saving = arg;
    saving->rc = rc ? rc : saving->lost;
    while (session_post(saving->session, kv_saved, saving))
        ;
}

/* The segment that the turns before end in, which this one has made longer, or full; negative: it has not. They hold
 * the shorter one until the longer one is stored. */
static int longer_at(const struct turn *t)
{
    const struct storage_turn *base = context_base(t);
    if (t->past.rebased || t->ask.strips || !base->id || engine_seq_length(t->hot->seq) < base->n_tokens - 1)
        return -1; /* or it was stopped before it came there */
    return (int)((base->n_tokens - 1) / SESSION_SEGMENT_TOKENS);
}

/* Its turn holds the chain that ends with `last` from now on. */
static void saving_hold(struct session *s, struct saving *saving, const uint8_t last[STORAGE_KEY_BYTES])
{
    if (!saving->rc && memcmp(last, no_key, sizeof no_key)) {
        struct hot *h = saving->hot;
        if (h) {
            (void)hot_take_end(s, h->owner, NULL, h->aside, saving->drop[0]); /* it may be behind the other */
            (void)hot_take_end(s, h->owner, NULL, h->cut, saving->drop[1]);
        }
        int rc = storage_kv_commit(s->storage, saving->turn, last, with_commit, kv_commit_done, saving);
        if (!rc)
            return; /* from now on saving->rc is the job's */
        saving->rc = rc;
    }
    saving->rc = saving->rc ? saving->rc : saving->lost;
    kv_saved(s, saving);
}

static void saving_add(struct session *s, struct saving *saving)
{
    saving->next = s->savings;
    s->savings = saving;
    s->jobs++;
    count_saves(s, 1);
    saving->with_rc = saving->rc = 0;
}

void saving_begin(struct session *s, struct saving *saving, struct hot *h)
{
    uint8_t last[STORAGE_KEY_BYTES];
    saving->hot = h;
    saving_add(s, saving);
    saving->rc = hot_save(s, h, true, last);
    int k = saving->longer_at;
    if (k >= 0 && (k < h->n_full || (k == h->n_full && h->tail_count)))
        memcpy(saving->longer, k < h->n_full ? h->full[k].key : h->tail_key, sizeof saving->longer);
    else
        saving->longer_at = -1;
    saving_hold(s, saving, last);
}

static struct saving *saving_new(struct turn *t, int64_t turn)
{
    struct session *s = t->session;
    struct saving *saving = calloc(1, sizeof *saving);
    char *owner = saving ? strdup(t->owner) : NULL;
    if (!owner) {
        free(saving);
        return NULL; /* the receipt stays at "pending": nothing was promised */
    }
    saving->owner = owner;
    saving->owner_id = t->found.owner.id;
    saving->session = s;
    saving->turn = turn;
    saving->conversation = t->found.conversation.id;
    saving->clock = t->clock;
    bool touch = turn_touches(t) && !t->ask.strips;
    if (!t->past.rebased && !touch && context_base(t)->id)
        saving->from = context_base(t)->n_tokens;
    saving->told = !touch;
    saving->longer_at = -1;
    saving->saved = STORAGE_SAVED_PENDING;
    return saving;
}

/* Saves the context for `turn`, which holds it from then on. */
static void save_kv(struct turn *t, int64_t turn)
{
    struct saving *saving = saving_new(t, turn);
    if (!saving)
        return;
    saving->longer_at = longer_at(t);
    saving_begin(t->session, saving, t->hot);
}

/* Of a turn that was stopped while it was put aside, or before all of it was back: it holds what was saved then. */
static void save_aside(struct turn *t, int64_t turn)
{
    struct saving *saving = saving_new(t, turn);
    if (!saving)
        return;
    if (t->hot) /* otherwise it goes with the pages */
        memset(t->hot->aside, 0, sizeof t->hot->aside);
    saving_add(t->session, saving);
    saving->lost = t->aside.rc;
    saving_hold(t->session, saving, t->aside.last);
}

void turn_committed(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    if (t->told.terminal) /* it could not be accepted, and that was told */
        return;
    if (t->replaces && (t->commit_rc == 0 || t->commit_rc == -EINPROGRESS)) {
        t->end.erasing = t->commit_rc != 0;
        t->commit_rc = 0;
        hot_distrust(s, t->found.owner.id); /* what the replaced one had stored has gone with it */
    }
    if (t->commit_rc) {
        if (t->commit_rc == -ENOENT) {
            t->in_ledger = ROW_NONE;
            turn_fail(t, SESSION_GONE, "the response was deleted meanwhile");
            return;
        }
        session_log(s, LOG_ERR, "a turn could not be written to the ledger: %s", strerror(-t->commit_rc));
        if (session_disk_full(t->commit_rc))
            turn_fail(t, SESSION_DISK_FULL,
                      "the disk is full: the answer could not be written; the question is kept; free some space on the "
                      "server");
        else
            turn_fail(t, SESSION_LEDGER, "the answer could not be written; the question is kept");
        return;
    }
    if (t->hot) {
        hot_belongs(s, t->hot, t->row.id, t->found.conversation.id);
        if (t->aside.n && engine_seq_length(t->hot->seq) < t->aside.end)
            save_aside(t, t->row.id);
        else
            save_kv(t, t->row.id);
        engine_seq_settle(t->hot->seq);
    } else if (t->aside.n) {
        save_aside(t, t->row.id);
    }
    done(t);
    strip_begin(t);
}

/* turn.c - a turn's life on the engine thread.
 *
 * FINDING (what does it follow? its context is made) -> WAITING (for a place) -> PLANNING (what is stored?) -> RUNNING
 * (restore, prefill, decode) -> COMMITTING -> OVER. From WAITING on it is accepted, and beside all this the ledger gets
 * a row of it (accept.c); what is told of it waits for that. A turn is refused or fails at any point by turn_fail():
 * before it is accepted there is nothing of it, after that its input stays, as `failed`. It is stopped by
 * turn_finish(), which commits what there is. In RUNNING the sequence's length says how far it is: segments are
 * imported, and everything up to n_prompt that no segment brings is prefilled, in the order of positions, so that a
 * damaged segment in the middle costs only itself.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

#define SHARED_QUEUE 4 /* one with fewer places is whoever's */

void turn_back(struct turn *t, void (*run)(struct session *s, void *arg))
{
    /* A lost command would leave the turn unanswered for ever; commands are a few bytes, so try until it goes. */
    while (session_post(t->session, run, t))
        ;
}

void turn_emit(struct turn *t, const struct session_event *ev)
{
    /* Until the ledger has the turn nothing is told of it. */
    bool waits = ev->kind == SESSION_EVENT_PROGRESS || ev->kind == SESSION_EVENT_ITEM ||
                 ev->kind == SESSION_EVENT_ITEM_END || ev->kind == SESSION_EVENT_DELTA;
    if (t->event && (t->told.started || !waits))
        t->event(t->arg, ev);
}

const char *turn_conversation_id(const struct turn *t)
{
    return t->ask.store && t->found.conversation.public_id ? t->found.conversation.public_id : "";
}

bool turn_touches(const struct turn *t)
{
    return !t->ask.generate && t->n_messages == 0;
}

void turn_free(struct turn *t)
{
    if (!t)
        return;
    char *texts[] = {t->owner,    t->response_id, t->conversation, t->previous, t->parent, t->instructions,
                     t->replaces, t->params,      t->key,          t->request,  t->tools,  t->tools_form,
                     t->tool,     t->opening,     t->continues,    t->callable, t->labels, t->copy_of};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free(texts[i]);
    for (size_t i = 0; t->names && i < t->n_messages; i++)
        free(t->names[i]);
    free(t->names);
    storage_items_free(t->items, t->n_messages);
    free(t->messages);
    free(t->accepted_items);
    free(t->hashes);
    free(t->tools_id);
    for (size_t i = 0; i < t->n_stops; i++)
        free(t->stops[i]);
    free(t->stops);
    free(t->bias);
    if (t->found.conversation.public_id)
        storage_conversation_free(&t->found.conversation);
    storage_turn_free(&t->found.parent);
    storage_turn_free(&t->found.copied);
    storage_turn_free(&t->found.stripped);
    storage_turn_free(&t->found.stored);
    storage_turn_free(&t->found.begun);
    storage_turns_free(t->found.path, t->found.n_path);
    free(t->found.tokens);
    free(t->found.stored_previous);
    free(t->found.tools);
    engine_tokens_free(&t->context);
    engine_tokens_free(&t->raw_tokens);
    engine_tokens_free(&t->opening_ids);
    plan_drop(t);
    engine_stream_free(t->stream);
    form_free(t);
    engine_calls_free(t->calls);
    free(t->text.text);
    free(t->item.text.text);
    free(t->odds);
    storage_items_free(t->output, t->n_output_items);
    free(t->gaps_ms);
    free(t->row.receipt);
    free(t->row.kv);
    free(t);
}

void turn_let_go(struct turn *t, bool keep_pages)
{
    if (!keep_pages && hot_drop_end(t->session, t->found.owner.id, t->hot, t->aside.last))
        hot_distrust_like(t->session, t->found.owner.id, t->context.ids, (int)t->context.n);
    if (!t->hot)
        return;
    int64_t owner = t->hot->owner;
    t->hot->user = NULL;
    t->hot->last_used_ms = session_now_ns() / 1000000;
    if (keep_pages) {
        hot_mend(t->hot);
        idle_put(t->session, t->hot);
        t->hot = NULL;
        hot_keep_within(t->session, t->owner, owner);
    } else {
        hot_discard(t->session, t->hot);
        hot_free(t->session, t->hot);
    }
    t->hot = NULL;
}

static void failed(struct turn *t)
{
    t->told.terminal = true;
    t->state = TURN_OVER;
    t->session->status.turns_failed += !t->ask.strips;
    session_counted(t->session);
    turn_emit(
        t, &(struct session_event){.kind = SESSION_EVENT_FAILED, .failure = t->end.failure, .message = t->end.message});
}

void turn_fail(struct turn *t, enum session_failure failure, const char *message)
{
    if (t->told.terminal || t->end.failure != SESSION_OK)
        return;
    t->end.failure = failure;
    t->end.message = message;
    /* Its tokens may be of no use to anyone, and after numbers that are not finite its pages must not be reused. */
    turn_let_go(t, false);
    if (t->in_ledger != ROW_NONE && accept_fail(t) == 0)
        t->state = TURN_COMMITTING;
    else
        failed(t);
}

void turn_failed(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    if (t->fail_rc && t->fail_rc != -ENOENT)
        unsaved_mark(s, t);
    if (!t->told.terminal)
        failed(t);
}

/* ---- finding ---- */

/* Whether `other` is on t's conversation, and more than counts. Its `found` must not be looked at before it has been
 * found. */
static bool running_on(const struct turn *t, const struct turn *other)
{
    if (other == t || other->state == TURN_OVER || other->ask.count)
        return false;
    if (t->conversation && other->conversation && !strcmp(t->owner, other->owner) &&
        !strcmp(t->conversation, other->conversation))
        return true;
    return other->state > TURN_FINDING && t->found.conversation.id &&
           t->found.conversation.kind == STORAGE_CONVERSATION_LISTED &&
           other->found.conversation.id == t->found.conversation.id;
}

/* Whether t is `other` come again: it is to find how that one ended. */
static bool repeats(const struct turn *t, const struct turn *other)
{
    if (other == t || other->state == TURN_OVER || !t->ask.store || !other->ask.store || !t->ask.has_digest ||
        !other->ask.has_digest || strcmp(t->owner, other->owner) != 0)
        return false;
    if (t->key)
        return other->key && !strcmp(t->key, other->key);
    return t->ask.retry && !memcmp(t->digest, other->digest, sizeof t->digest);
}

/* Whether it only brings a context back. While it is being found, which messages it has is the job's to say. */
static bool brings_back(const struct turn *other)
{
    return other->state == TURN_FINDING ? !other->ask.generate && !other->ask.adds : turn_touches(other);
}

/* Which others are in the way of a turn. */
enum others {
    OTHERS_REFUSE, /* answers that go on */
    OTHERS_WORK,   /* also warm-ups, and a first attempt at the same */
    OTHERS_ANY,    /* also those that were stopped, or have nothing to do but to be written */
};

/* Whether any of these are in the way of t. Those that came later and wait are not. */
static bool locked(const struct turn *t, enum others which)
{
    bool later = false;
    for (const struct turn *other = t->session->turns; other; other = other->next) {
        later |= other == t;
        if (later && other->state == TURN_BEHIND)
            continue;
        /* A warm-up that brings a context back is in nobody's way; one that adds messages is waited for. */
        bool ends = other->end.cancelled || other->state == TURN_COMMITTING;
        if ((which == OTHERS_REFUSE && !other->ask.generate) || (which != OTHERS_ANY && ends))
            continue;
        if (running_on(t, other) && !brings_back(other))
            return true;
        if (which != OTHERS_REFUSE && !later && repeats(t, other))
            return true;
    }
    return false;
}

/* Warm-ups on t's conversation: those that bring a context back end, and t takes over what they have; for the end of
 * one that adds messages somebody waits now. */
static void hurry_warm_ups(const struct turn *t)
{
    for (struct turn *other = t->session->turns; t->ask.generate && !t->ask.count && other; other = other->next) {
        if (other->ask.generate || !running_on(t, other))
            continue;
        other->ask.background = false;
        if (brings_back(other) && !other->end.cancelled)
            other->end.cancelled = other->end.yielded = true;
    }
}

static void start_finding(struct turn *t)
{
    t->state = TURN_FINDING;
    t->place.begun = t->session->status.engine_steps;
    t->session->jobs++;
    t->n_jobs++;
    if (lookup_find(t)) {
        t->session->jobs--;
        t->n_jobs--;
        turn_fail(t, SESSION_INTERNAL, "out of memory");
    }
}

/* Refused before any work, with counts where they are known (0: they are not). */
static void fail_too_long(struct turn *t, int tokens)
{
    int most = t->session->info->ctx_tokens - t->ask.generate;
    if (tokens)
        (void)snprintf(t->end.detail, sizeof t->end.detail,
                       "the conversation with this message has %d tokens, and %d fit; shorten it or start a new one",
                       tokens, most);
    else
        (void)snprintf(
            t->end.detail, sizeof t->end.detail,
            "this message, with its instructions and tools, is longer than any context of %d tokens; shorten it", most);
    turn_fail(t, SESSION_CONTEXT_LENGTH, t->end.detail);
}

/* Text with more bytes than the longest tokens could hold is not worth reading: that takes time from others. Until the
 * turn has been found only its own tools and instructions are known to be in its context. */
static bool cannot_fit(const struct turn *t)
{
    const struct engine_info *info = t->session->info;
    const char *instructions = t->instructions ? t->instructions : t->found.conversation.instructions;
    size_t most = (size_t)info->ctx_tokens * (size_t)info->token_bytes_max;
    size_t bytes = (t->tools ? strlen(t->tools) : 0) + (instructions ? strlen(instructions) : 0);
    size_t n = t->state > TURN_BEHIND ? t->n_messages : 0;
    for (size_t i = t->found.matched; bytes <= most && i < n; i++)
        bytes += t->messages[i].len;
    return bytes > most;
}

/* True: others are at work on its conversation, and it has failed. */
static bool refused_beside(struct turn *t, enum others which)
{
    bool is = locked(t, which);
    if (is)
        turn_fail(t, SESSION_CONVERSATION_LOCKED, "another response is being generated in this conversation");
    return is;
}

/* The same of one that was let in, when more is known of it and of others. One that yields has nothing to do but to
 * end. */
static bool overtaken(struct turn *t)
{
    return !t->end.yielded && refused_beside(t, OTHERS_ANY);
}

void turn_begin(struct session *s, void *arg)
{
    struct turn *t = arg;
    int waiting = 0, own = 0;
    for (struct turn *other = s->turns; other; other = other->next) {
        bool queued = other->state <= TURN_WAITING && !other->aside.n && !other->ask.strips;
        waiting += queued;
        own += queued && !strcmp(other->owner, t->owner);
    }
    struct turn **end = &s->turns;
    while (*end)
        end = &(*end)->next;
    *end = t;
    t->clock = storage_clock(s->storage);
    if (s->closing) {
        turn_fail(t, SESSION_SHUTDOWN, "the server is shutting down");
        return;
    }
    /* What waits in the ledger was let in before; what is made ahead has a bound of its own. */
    const bool let_in = t->ask.requeued || t->ask.strips;
    if (waiting >= s->max_waiting && !let_in) {
        turn_fail(t, SESSION_BUSY, "too many requests are waiting; try again later");
        return;
    }
    /* Who has some there has at most three times as many as there is room left: three quarters of the queue when alone,
     * less beside others, and those who come next find a place. */
    if (own && s->max_waiting >= SHARED_QUEUE && own + 1 > 3 * (s->max_waiting - waiting - 1) && !let_in) {
        turn_fail(t, SESSION_BUSY, "too many of your requests are waiting; try again later");
        return;
    }
    if (cannot_fit(t)) {
        fail_too_long(t, 0);
        return;
    }
    if (!t->ask.requeued && refused_beside(t, OTHERS_REFUSE))
        return;
    hurry_warm_ups(t);
    /* Who stops an answer and asks at once follows what there is of it. */
    t->state = TURN_BEHIND;
    if (!locked(t, OTHERS_ANY))
        start_finding(t);
}

void turn_begin_behind(struct session *s)
{
    for (struct turn *t = s->turns; t; t = t->next) {
        if (t->state != TURN_BEHIND)
            continue;
        if (!locked(t, OTHERS_ANY))
            start_finding(t);
        else if (t->end.cancelled && !t->ask.requeued && locked(t, OTHERS_WORK))
            /* That may take long, and what it follows is not there. Of one that was given back there is a row. */
            turn_fail(t, SESSION_CONVERSATION_LOCKED,
                      "it was stopped while another one was waited for; nothing of it was kept");
    }
}

int turn_refuse(struct turn *t, int rc, enum session_failure failure, const char *message)
{
    t->found.failure = failure;
    t->found.message = message;
    return rc;
}

/* What this request was answered with before is its answer. */
static void answer_stored(struct turn *t)
{
    struct session_response response;
    struct stored *own = NULL;
    if (stored_response(&t->found.stored, &t->found.conversation, t->found.stored_previous, &response, &own)) {
        turn_fail(t, SESSION_INTERNAL, "out of memory");
        return;
    }
    t->told.terminal = true;
    t->state = TURN_OVER;
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_STORED, .stored = &response});
    stored_free(own);
}

void turn_tell_queue(struct turn *t)
{
    int ahead = 0;
    for (const struct turn *other = t->session->turns; other != t; other = other->next)
        ahead += other->state == TURN_WAITING && !other->ask.strips;
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_PROGRESS, .stage = "queue", .done = ahead});
}

/* The turn is accepted: others may know of it. */
static void tell_started(struct turn *t)
{
    struct session *s = t->session;
    int running = 0;
    t->told.started = true;
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_STARTED, .conversation = turn_conversation_id(t)});
    int dropped = t->receipt.truncated_tokens;
    if (dropped)
        turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_PROGRESS,
                                             .stage = "truncated",
                                             .done = dropped,
                                             .total = t->n_prompt + dropped});
    for (struct turn *other = s->turns; other; other = other->next)
        running += other->state == TURN_PLANNING || other->state == TURN_RUNNING;
    if (t->state == TURN_WAITING && running >= s->max_running)
        turn_tell_queue(t);
}

static void not_accepted(struct turn *t)
{
    t->in_ledger = ROW_NONE;
    if (t->accept_rc == -ENOENT)
        turn_fail(t, SESSION_PREVIOUS_NOT_FOUND, "what this was to follow was deleted meanwhile");
    else if (t->accept_rc == -EUSERS)
        turn_fail(t, SESSION_KEY_LIMIT, "too many idempotency keys are in use; try again later");
    else if (t->accept_rc == -EKEYREJECTED)
        turn_fail(t, SESSION_KEY_REUSED, "this idempotency key came with another request at the same time");
    else if (t->accept_rc == -EBUSY)
        turn_fail(t, SESSION_CONVERSATION_LOCKED, "the first attempt at this request is being followed");
    else {
        session_log(t->session, LOG_ERR, "a turn could not be written to the ledger: %s", strerror(-t->accept_rc));
        if (session_disk_full(t->accept_rc))
            turn_fail(t, SESSION_DISK_FULL,
                      "the disk is full: the turn could not be written, and nothing of it was kept; "
                      "free some space on the server");
        else
            turn_fail(t, SESSION_LEDGER, "the turn could not be written; nothing of it was kept");
    }
}

void turn_accepted(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    if (t->told.terminal) /* that was told already */
        return;
    if (t->accept_rc == 0) {
        t->in_ledger = ROW_THERE;
        t->found.conversation.id = t->accepted.conversation;
        if (t->found.replaces) /* what it had stored has gone with it */
            hot_distrust(s, t->found.owner.id);
        tell_started(t);
    } else if (t->state != TURN_PLANNING) { /* whose job looks at the pages */
        not_accepted(t);
    }
}

void turn_found(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    if (t->found.requeued) { /* if it fails, its row says so */
        t->accepted.id = t->found.requeued;
        t->in_ledger = ROW_THERE;
    }
    if (t->found.failure == SESSION_PREVIOUS_NOT_FOUND && context_ephemeral(t))
        t->found.failure = SESSION_OK;
    if (t->found.failure != SESSION_OK) {
        turn_fail(t, t->found.failure, t->found.message);
        return;
    }
    if (t->found.stored.id) {
        answer_stored(t);
        return;
    }
    context_match_ephemeral(t);
    if (overtaken(t))
        return;
    if (cannot_fit(t)) {
        fail_too_long(t, 0);
        return;
    }
    build_start(t);
}

void turn_built(struct turn *t, int rc)
{
    struct session *s = t->session;
    if (rc) {
        turn_fail(t, t->found.failure, t->found.message);
        return;
    }
    if (t->build.away && overtaken(t))
        return;
    hurry_warm_ups(t);
    if (t->ask.count) {
        t->told.terminal = true;
        t->state = TURN_OVER;
        turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_DONE, .input_tokens = t->n_prompt});
        return;
    }
    session_progress(s);
    int room = s->info->ctx_tokens - t->n_prompt;
    if (room < (t->ask.generate ? 1 : 0)) {
        fail_too_long(t, t->n_prompt);
        return;
    }
    if (t->n_prompt == 0) {
        turn_fail(t, SESSION_INVALID, "there is nothing to run: the input is empty");
        return;
    }
    if (t->ask.generate && t->n_messages == t->found.matched) {
        turn_fail(t, SESSION_INVALID, "there is no new message to answer");
        return;
    }
    if (t->ask.store && !turn_touches(t) && !t->found.conversation.public_id && accept_name(t)) {
        turn_fail(t, SESSION_INTERNAL, "no name for a new conversation could be made");
        return;
    }
    t->state = TURN_WAITING;
    if (!t->ask.store || turn_touches(t))
        tell_started(t);
    else if (accept_start(t))
        turn_fail(t, SESSION_INTERNAL, "out of memory");
}

void turn_planned(struct session *s, void *turn)
{
    struct turn *t = turn;
    s->jobs--;
    t->n_jobs--;
    t->state = TURN_RUNNING;
    if (t->accept_rc)
        not_accepted(t);
}

/* ---- steps ---- */

int turn_wants(struct turn *t, int *first)
{
    if (t->state != TURN_RUNNING || t->end.cancelled)
        return 0;
    int length = engine_seq_length(t->hot->seq);
    *first = length;
    if (t->plan.next < t->plan.n) {
        int gap = t->plan.parts[t->plan.next].first - length;
        return gap > 0 ? gap : 0;
    }
    int n = (int)t->context.n - length;
    /* The first token of the answer waits for the ledger: it would only be held back. */
    if (t->in_ledger == ROW_ASKED && t->ask.generate && n > 0 && (int)t->context.n == t->n_prompt)
        n--;
    return n;
}

static void note_time(struct turn *t, int64_t now_ns)
{
    if (!t->first_ns)
        t->first_ns = now_ns;
    else {
        if (t->n_gaps == t->gaps_capacity) {
            int capacity = t->gaps_capacity ? t->gaps_capacity * 2 : 256;
            float *grown = realloc(t->gaps_ms, (size_t)capacity * sizeof *grown);
            if (!grown)
                return; /* a statistic less */
            t->gaps_ms = grown;
            t->gaps_capacity = capacity;
        }
        t->gaps_ms[t->n_gaps++] = (float)((double)(now_ns - t->last_ns) / 1e6);
    }
    t->last_ns = now_ns;
}

/* A token of the answer that ends nothing by itself. False: the turn is over. */
static bool add_token(struct turn *t, const struct engine_pick *pick)
{
    struct session *s = t->session;
    engine_token id = pick->token;
    if (form_take(t, id))
        return false;
    int rc = engine_tokens_append(&t->context, &id, 1);
    if (rc == 0) {
        t->n_output++;
        s->status.tokens_generated++;
        rc = answer_token(t, pick);
    }
    if (rc == 1 && t->end.by_string && t->form.of_answer)
        t->end.reason = "stop"; /* what is cut off was part of the form */
    form_after(t);
    if (rc == 1) {
        turn_finish(t);
        return false;
    }
    if (rc < 0) {
        turn_fail(t, SESSION_INTERNAL, "out of memory");
        return false;
    }
    bool whole = form_whole(t);
    if (!whole && t->max_output_tokens && t->n_output >= t->max_output_tokens)
        t->end.reason = "max_output_tokens";
    else if (!whole && (int)t->context.n >= s->info->ctx_tokens)
        t->end.reason = "context_length";
    if (t->end.reason || whole) {
        turn_finish(t);
        return false;
    }
    return true;
}

static void take_token(struct turn *t, const struct engine_pick *next, int64_t now_ns)
{
    struct engine_tokens forced = {0};
    if (next->result == -ENODATA) {
        turn_fail(t, SESSION_MODEL, "the model gives none of the tokens that the form of the answer allows a chance");
        return;
    }
    if (next->result) {
        turn_fail(t, SESSION_MODEL, "the model's output is not a number; nothing of this turn was kept");
        return;
    }
    note_time(t, now_ns);
    if (engine_token_ends_answer(t->session->engine, next->token)) {
        turn_finish(t);
        return;
    }
    if (!add_token(t, next))
        return;
    /* What must come now needs no step of its own. */
    if (form_forced(t, &forced))
        turn_fail(t, SESSION_INTERNAL, "out of memory");
    else
        for (size_t i = 0; i < forced.n && add_token(t, &(struct engine_pick){.token = forced.ids[i]}); i++)
            ;
    engine_tokens_free(&forced);
}

void turn_add_reprefilled(struct turn *t, int tokens, const char *reason)
{
    struct session_receipt *r = &t->receipt;
    int most = (int)(sizeof r->reprefilled / sizeof *r->reprefilled);
    if (tokens <= 0)
        return;
    for (int i = 0; i < r->n_reprefilled; i++)
        if (!strcmp(r->reprefilled[i].reason, reason)) {
            r->reprefilled[i].tokens += tokens;
            return;
        }
    if (r->n_reprefilled < most) {
        r->reprefilled[r->n_reprefilled].tokens = tokens;
        r->reprefilled[r->n_reprefilled++].reason = reason;
    }
}

/* Tokens [from, to) of the context went through the model: of the prompt for the first time here, or once more. */
static void count_run(struct turn *t, int from, int to)
{
    struct session *s = t->session;
    int again = (to < t->n_counted ? to : t->n_counted) - from;
    int first = from > t->n_counted ? from : t->n_counted, end = to < t->n_prompt ? to : t->n_prompt;
    int prefilled = (again > 0 ? again : 0) + (end > first ? end - first : 0);
    if (again > 0) {
        turn_add_reprefilled(t, again, RECEIPT_PUT_ASIDE);
        s->status.tokens_reprefilled += (uint64_t)again;
    }
    t->receipt.prefilled += prefilled;
    s->status.tokens_prefilled += (uint64_t)prefilled;
    if (to > t->n_counted)
        t->n_counted = to;
}

void turn_after_step(struct turn *t, int n, const struct engine_pick *next, int64_t now_ns)
{
    struct session *s = t->session;
    int length = engine_seq_length(t->hot->seq);
    count_run(t, length - n, length);
    if (length - n < t->n_prompt) {
        int end = length < t->n_prompt ? length : t->n_prompt;
        turn_emit(t, &(struct session_event){
                         .kind = SESSION_EVENT_PROGRESS, .stage = "prefill", .done = end, .total = t->n_prompt});
    }
    if (length / SESSION_SEGMENT_TOKENS != (length - n) / SESSION_SEGMENT_TOKENS) {
        uint8_t last[STORAGE_KEY_BYTES];
        int rc = hot_save(s, t->hot, false, last);
        if (rc)
            session_log(s, LOG_WARNING, "KV could not be saved: %s", strerror(-rc));
        if (length <= t->n_prompt)
            engine_seq_settle(t->hot->seq); /* a long prompt must not fill the pages of sliding windows */
    }
    if (next)
        take_token(t, next, now_ns);
    else if (!t->ask.generate && length == t->n_prompt)
        turn_finish(t);
}

void turn_step_failed(struct turn *t, int rc)
{
    const char *failure = engine_failure(t->session->engine);
    if (failure)
        turn_fail(t, SESSION_INTERNAL, failure);
    else if (rc == -ENOSPC)
        turn_fail(
            t, SESSION_NO_MEMORY,
            "the KV budget is too small for this turn beside the running ones; raise kv-bytes or try again later");
    else
        turn_fail(t, SESSION_INTERNAL, strerror(-rc));
}

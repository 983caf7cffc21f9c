/* restore.c - stored segments of a turn's context come back into pages. Engine thread.
 *
 * What is in RAM is there at once. Of what is on disk some is read ahead by storage's readers while those before it are
 * put into pages: decoded where they are copied there, array by array, on all of the engine's workers. A segment that
 * turns out to be damaged is read once more, which looks for another copy of it or has it forgotten. One that cannot be
 * used costs its own tokens: they are prefilled, and the ones behind them are restored on top.
 *
 * Window layers get their window at the end of the plan alone. When a segment cannot be used and what it leaves to be
 * prefilled would see more than that, the plan begins again, with all of them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "session/session_internal.h"

/* Of one turn, read and not yet in pages: as much as comes back while a step runs, but some segments at least. Those
 * that wait for a place have as much together. (Bytes are those in pages.) */
#define READ_AHEAD_BYTES ((size_t)64 << 20)
#define READ_AHEAD       4
#define IMPORT_BYTES     ((size_t)16 << 20) /* that are put into pages at once, or a segment */
#define IMPORT_NS        20000000           /* that imports may keep the next step waiting, all together */

int restore_end(const struct turn *t)
{
    return t->plan.n ? t->plan.parts[t->plan.n - 1].first + t->plan.parts[t->plan.n - 1].used : 0;
}

/* What was there once and is found nowhere will be prefilled again: the receipt says why. */
static void account_lost(struct turn *t)
{
    int covered = engine_seq_length(t->hot->seq);
    if (restore_end(t) > covered)
        covered = restore_end(t);
    int expected = t->n_expected < t->n_prompt ? t->n_expected : t->n_prompt;
    if (expected > covered)
        turn_add_reprefilled(t, expected - covered, t->lost_reason ? t->lost_reason : "blob_missing");
    t->session->status.tokens_reprefilled += expected > covered ? (uint64_t)(expected - covered) : 0;
}

static void read_back(struct session *s, void *arg)
{
    struct planned *p = arg;
    s->jobs--;
    p->turn->plan.n_reading--;
    p->state = p->result.rc ? PLAN_FAILED : PLAN_READY;
    /* What is not where it was while the turn waited is looked for again when it has its place. */
    if (p->result.rc && p->turn->state == TURN_WAITING && p->turn->plan.early == EARLY_PLANNED)
        p->turn->plan.early = EARLY_STALE;
}

static void read_done(void *arg, struct storage_read_result result)
{
    struct planned *p = arg;
    struct session *s = p->turn->session;
    p->result = result;
    while (session_post(s, read_back, p))
        ;
}

/* Starts reads until `most` bytes, `least` segments anyway, have been read ahead. Returns how many bytes have. */
static size_t start_reads(struct turn *t, size_t most, int least)
{
    struct session *s = t->session;
    size_t ahead = 0;
    for (int i = t->plan.next; i < t->plan.n && (ahead < most || i < t->plan.next + least); i++) {
        struct planned *p = &t->plan.parts[i];
        ahead += (size_t)p->found.count * s->info->kv_token_bytes;
        if (p->state != PLAN_IDLE)
            continue;
        p->again |= t->hot && p->first < engine_seq_length(t->hot->seq); /* see import() */
        p->result.rc = -ENOMEM;
        p->payload = engine_kv_buffer(s->engine, (int)p->found.count);
        p->split = p->payload != NULL;
        t->plan.whole_windows |= p->split; /* it brings them all */
        if (!p->split && !p->again &&
            storage_segment_take(s->storage, &p->found, s->info->kv_identity, &s->layout, &p->result) == 0) {
            p->state = PLAN_READY;
            continue;
        }
        if (p->again && !p->split)
            p->payload = malloc((size_t)p->found.count * s->info->kv_token_bytes);
        if ((p->again && !p->payload) ||
            (p->split ? storage_segment_read_split : storage_segment_read)(s->storage, &p->found, s->info->kv_identity,
                                                                           &s->layout, p->payload, read_done, p)) {
            p->state = PLAN_FAILED;
            continue;
        }
        p->state = PLAN_READING;
        t->plan.n_reading++;
        s->jobs++;
    }
    return ahead;
}

static const char *damage(int rc)
{
    return rc == -EBADMSG ? "blob_damaged" : rc == -ENOENT ? "blob_missing" : "blob_unreadable";
}

static const void *rows(void *arg, int array, void *buf)
{
    const struct planned *p = arg;
    const struct storage_layout *layout = &p->turn->session->layout;
    if (!p->payload)
        return storage_stored_decode(p->result.stored, (uint32_t)array, buf) ? NULL : buf;
    const uint8_t *at = p->payload;
    for (int i = 0; i < array; i++)
        at += (size_t)layout->arrays[i].channels * p->found.count * sizeof(uint16_t);
    return at;
}

/* It is read once more, and decoded meanwhile. */
static void read_again(struct planned *p)
{
    plan_release(p);
    p->again = true;
    p->state = PLAN_IDLE;
}

/* Puts segments that are there into pages, some at once. *n gets how many came in. 0, -ENOSPC (later), or another error
 * of the one behind these, which may be read once more. */
static int import(struct turn *t, int *n)
{
    struct hot *h = t->hot;
    struct planned *p = &t->plan.parts[t->plan.next];
    struct engine_kv_part parts[READ_AHEAD];
    size_t bytes = 0;
    int length = engine_seq_length(h->seq), most = t->plan.n - t->plan.next, count = 0;
    *n = 0;
    if (length > p->first) {
        /* The head of this segment is in pages already: the segment brings it again, whole. That nothing goes for one
         * that turns out to be damaged, it is decoded before. */
        if (!p->payload) {
            read_again(p);
            return -EAGAIN;
        }
        int rc = hot_truncate(h, p->first);
        if (rc)
            return rc;
        if (!t->aside.n) {
            t->receipt.hot -= length - p->first;
            t->n_counted = p->first;
        }
    }
    int until = t->plan.whole_windows || p->kept ? 0 : restore_end(t), rc;
    if (p->split) {
        rc = engine_kv_import_split(h->seq, p->found.label, (int)p->found.count, p->payload);
        if (!rc)
            p->payload = NULL; /* the engine's again */
        *n = rc == 0;
    } else {
        do {
            parts[count] = (struct engine_kv_part){p[count].found.label, (int)p[count].found.count, rows, &p[count]};
            bytes += (size_t)p[count].found.count * t->session->info->kv_token_bytes;
            count++;
        } while (count < most && count < READ_AHEAD && bytes < IMPORT_BYTES && p[count].state == PLAN_READY &&
                 !p[count].split && p[count - 1].used == (int)p[count - 1].found.count &&
                 p[count].first == p[count - 1].first + p[count - 1].used);
        rc = engine_kv_restore(h->seq, parts, count, until, n);
    }
    for (int i = 0; i < *n; i++) {
        int failed = p[i].used < (int)p[i].found.count ? engine_seq_truncate(h->seq, p[i].first + p[i].used)
                                                       : hot_note_stored(h, p[i].first, p[i].used, p[i].found.key);
        if (failed) { /* as if it had not come */
            (void)hot_truncate(h, p[i].first);
            if (p[i].split && !p[i].again)
                read_again(&p[i]); /* its buffer is the engine's again */
            *n = i;
            rc = failed;
        } else {
            h->mixed = h->mixed || strcmp(p[i].found.producer, t->session->info->numerics) != 0;
        }
    }
    if (!until || *n == most)
        engine_seq_settle(h->seq);
    return rc;
}

/* What comes next cannot be used. Where window layers lack what the tokens in its place see, all comes once more from
 * where they have it. */
static bool begin_again(struct turn *t)
{
    int usable = engine_seq_usable(t->hot->seq);
    if (usable == engine_seq_length(t->hot->seq) || hot_truncate(t->hot, usable))
        return false;
    t->plan.whole_windows = true;
    for (int i = 0; i < t->plan.next; i++)
        if (t->plan.parts[i].state == PLAN_DONE)
            t->plan.parts[i].state = PLAN_IDLE;
    t->plan.next = 0;
    return true;
}

/* The receipt names who made what other numerics did. What there is no place for counts as of the last one. */
static void add_accepted(struct turn *t, const struct planned *p, int tokens)
{
    struct session_receipt *r = &t->receipt;
    const int most = (int)(sizeof r->accepted / sizeof *r->accepted);
    if (!strcmp(p->found.producer, t->session->info->numerics))
        return;
    int i = 0;
    while (i < r->n_accepted && strcmp(r->accepted[i].numerics, p->found.producer) != 0)
        i++;
    i = i < most ? i : most - 1;
    if (i == r->n_accepted) {
        memcpy(r->accepted[i].numerics, p->found.producer, sizeof p->found.producer);
        r->n_accepted++;
    }
    r->accepted[i].tokens += tokens;
}

/* A segment is over, one way or the other. */
static void over(struct turn *t, struct planned *p)
{
    p->state = PLAN_DONE;
    plan_release(p);
    if (!t->aside.n)
        t->restored_ns = session_now_ns();
}

/* A segment is in pages. */
static void account(struct turn *t, struct planned *p)
{
    int end = p->first + p->used, from = p->first > t->n_counted ? p->first : t->n_counted;
    if (end > from) {
        *(p->result.tier == STORAGE_TIER_RAM ? &t->receipt.ram : &t->receipt.disk) += end - from;
        add_accepted(t, p, end - from);
        t->n_counted = end;
    }
    t->session->status.tokens_restored += (uint64_t)p->used;
    t->receipt.bytes_read += p->result.bytes_read;
    over(t, p);
}

/* What is in pages by now. */
static void tell(struct turn *t, const struct planned *last)
{
    turn_emit(t, &(struct session_event){.kind = SESSION_EVENT_PROGRESS,
                                         .stage = "restore",
                                         .done = last->first + last->used,
                                         .total = restore_end(t)});
}

/* It cannot be used: its tokens are prefilled. */
static void account_failed(struct turn *t, struct planned *p, int rc)
{
    int end = p->first + p->used;
    if (rc == -ENOENT && end > t->n_expected) /* what others had as well, and deleted meanwhile, is new here */
        end = t->n_expected;
    int lost = end - engine_seq_length(t->hot->seq);
    if (!t->aside.n) { /* what it had once is counted when it runs again */
        turn_add_reprefilled(t, lost, damage(rc));
        t->session->status.tokens_reprefilled += lost > 0 ? (uint64_t)lost : 0;
    }
    if (lost > 0)
        session_log(t->session, LOG_WARNING,
                    "a stored KV segment of %d tokens cannot be used (%s); prefilling it again", p->used, damage(rc));
    over(t, p);
}

/* Moves one turn on, for `most_ns` if others' step is due. */
static bool restore(struct turn *t, int64_t most_ns)
{
    if (t->state != TURN_RUNNING || t->end.cancelled)
        return false;
    if (!t->plan.made) {
        t->plan.made = true;
        account_lost(t);
    }
    bool moved = false;
    t->place.out_of_pages = false;
    int64_t start_ns = session_now_ns();
    while (t->plan.next < t->plan.n) {
        if (moved && (session_now_ns() - start_ns > most_ns || session_commands_wait(t->session)))
            break; /* the others' step is due, or this turn may have been stopped */
        struct planned *p = &t->plan.parts[t->plan.next];
        if (p->state != PLAN_READING && p->first + p->used <= engine_seq_length(t->hot->seq)) {
            plan_release(p); /* planned before there was a place, or kept: it was still in pages */
            t->plan.next++;
            continue;
        }
        (void)start_reads(t, READ_AHEAD_BYTES, READ_AHEAD);
        if (p->state == PLAN_READING || engine_seq_length(t->hot->seq) < p->first)
            break;
        int came = 0, rc = p->state == PLAN_FAILED ? p->result.rc : import(t, &came);
        for (int i = 0; i < came; i++)
            account(t, &p[i]);
        if (came > 0)
            tell(t, &p[came - 1]);
        t->plan.next += came;
        moved |= came > 0;
        if (came > 0 || !rc || p->state == PLAN_IDLE)
            continue;
        bool no_pages = rc == -ENOSPC && p->state != PLAN_FAILED; /* else it was given up for want of them */
        if (no_pages && hot_evict_one(t->session))
            continue;
        if (no_pages) {
            t->place.out_of_pages = true;
            break;
        }
        if (rc == -EBADMSG && p->state == PLAN_READY && !p->again) {
            read_again(p);
            continue;
        }
        if (begin_again(t)) {
            p->state = PLAN_FAILED;
            p->result.rc = rc;
            continue;
        }
        account_failed(t, p, rc);
        t->plan.next++;
        moved = true;
    }
    if (!t->ask.generate && t->plan.next == t->plan.n && engine_seq_length(t->hot->seq) == t->n_prompt) {
        turn_finish(t); /* a warm-up that finds everything there has no step to run */
        moved = true;
    }
    return moved;
}

bool restore_run(struct session *s)
{
    int n = 0;
    bool moved = false;
    for (const struct turn *t = s->turns; t; t = t->next)
        n += t->state == TURN_RUNNING && t->plan.next < t->plan.n;
    for (struct turn *t = s->turns; t; t = t->next)
        moved |= restore(t, n ? IMPORT_NS / n : IMPORT_NS);
    size_t ahead = 0;
    for (struct turn *t = s->turns; t && ahead < READ_AHEAD_BYTES; t = t->next)
        if (t->state == TURN_WAITING && t->plan.early == EARLY_PLANNED && !t->end.cancelled)
            ahead += start_reads(t, READ_AHEAD_BYTES - ahead, 0);
    return moved;
}

/* turn_event.h - an event of a turn on its way from the session's threads to the network thread, and what becomes of
 * it. */
#ifndef CONVOD_DAEMON_TURN_EVENT_H
#define CONVOD_DAEMON_TURN_EVENT_H

#include "daemon/run/run.h"

/* What the end of an answer has besides. */
struct turn_end {
    char *receipt_json;
    struct session_receipt receipt; /* its numbers and reasons; the other strings are NULL */
    struct histogram itl;           /* of its tokens */
};

struct turn_event {
    struct event event; /* first */
    struct run *run;
    struct session_event turn;      /* strings lie in `text` */
    struct turn_end *end;           /* NULL: it is not the end, or without a receipt */
    struct session_response stored; /* deep copy; id NULL: none */
    struct session_logprob *logprobs;
    struct session_item *item; /* deep copy, but for its text, which the deltas gave */
    char text[];
};

/* [any thread] NULL: out of memory. */
struct turn_event *turn_event_new(struct run *run, const struct session_event *ev,
                                  void (*take)(struct event *e, bool closing));
void turn_event_free(struct turn_event *e);

/* ---- what the network thread makes of them (turn.c) ----------------------------------------------------------------
 */

/* How its interface shows it; what it does not show is NULL there. */
void run_show_started(struct run *run);
void run_show_item(struct run *run, size_t i);
void run_show_delta(struct run *run, size_t i, const char *text);
void run_show_item_end(struct run *run, size_t i);
/* Frees all that it holds but its request. */
void run_clear(struct run *run);
/* One answer is over; with the last one all has ended. */
void run_count_over(struct run *run);
/* The log of run_first() has grown from so many bytes, or it has ended: its readers are told, and it is kept for those
 * who come back, or is gone. */
void run_told(struct run *first, uint64_t before);

/* ---- turns that were answered before (repeat.c) --------------------------------------------------------------------
 */

/* The run's answer is what is stored, which is taken: at once, or made by a worker where that is long. */
void run_repeat(struct run *run, struct session_response *stored);

#endif

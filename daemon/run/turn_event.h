/* turn_event.h - an event of a turn on its way from the session's threads to the network thread. */
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

#endif

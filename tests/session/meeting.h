/* meeting.h - a test and a turn wait for each other. */
#ifndef CONVOD_TESTS_SESSION_MEETING_H
#define CONVOD_TESTS_SESSION_MEETING_H

#include "tests/session/harness.h"

/* Of an ask: an answer that does not end by itself while a test is at it, however late that comes to run. In a rig with
 * LONG_CTX. */
#define LONG_ANSWER .schema = "{\"type\":\"string\",\"minLength\":30000}", .max = 30000
#define LONG_CTX    32768

struct meeting {
    struct gate there, on;
};

/* A hook, whose argument is a meeting: lets the test go on at the first piece of the prompt, and waits for it. Whom the
 * test began meanwhile has been looked up when the third piece begins, however slow the ledger is. */
void meet_at_prefill(struct answer *a, const struct session_event *ev, void *arg);

/* A long warm-up, or background turn, of "ann" has the room that a short turn of hers wants: it is put aside for that
 * one, comes back, and computes nothing twice. */
void meeting_of_background(struct rig *rig, bool warm);

/* The ledger thread does nothing more, once it has come to this, until the gate is open. */
void rig_hold_ledger(struct rig *rig, struct gate *until);

/* A hook, whose argument is room for 1,024 bytes: what the answer's message says, to its end, goes there. */
void keep_said(struct answer *a, const struct session_event *ev, void *arg);

#endif

/* fake_session.h - a double of the session for the daemon's tests; see fake_session.c.
 *
 * What an answer does is said in the last message's text, or, where that asks for a summary, in the one before it:
 *   "echo WORDS"   the answer is WORDS, one delta per word
 *   "hold WORDS"   like echo, but waits after the first word until fake_release() (or a cancel)
 *   "wait"         waits before the first delta until fake_release() (or a cancel)
 *   "many N"       N deltas of "word "
 *   "fail"         STARTED, then FAILED (internal)
 *   "refuse N"     FAILED with enum session_failure N, without STARTED; "refuse N late" after fake_release()
 *   "start N"      session_turn_start() returns N
 *   "call F ARGS"  the answer is a message and a call of F; ARGS without a } at the end is a broken one
 *   "think WORDS"  the answer is thinking, of three tokens, and WORDS
 *   "how"          the answer is "background" or "interactive", as it was asked for
 *   "long"         ends incomplete with reason max_output_tokens
 * Anything else is echoed. The text "wait" is tokenized after fake_release() only; that counts as started.
 */
#ifndef CONVOD_TESTS_FAKE_SESSION_H
#define CONVOD_TESTS_FAKE_SESSION_H

#include <stdbool.h>

#include "session/session.h"

/* One release for everything that waits now or later; counted. */
void fake_release(int n);
/* Blocks until this many turns have been started since fake_reset(). */
void fake_wait_started(int n);
void fake_wait_cancelled(int n);
/* Until so many have ended, and the answers of so many have been delivered. */
void fake_wait_ended(int n);
void fake_wait_delivered(int n);
int fake_turns_started(void);
/* Of how many turns another thread has copied the texts than the one that started them. */
int fake_texts_away(void);
int fake_forgotten(void);
/* The model loads only when released. */
void fake_hold_loading(bool hold);
void fake_release_loading(void);
void fake_fail_loading(bool fail);
/* From now on, or not any more, the status tells of a device that has failed. */
void fake_fail_device(bool failed);
void fake_reset(void);

#endif

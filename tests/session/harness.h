/* harness.h - a session on a small random model in a directory of its own, and turns that a test can wait for.
 *
 *     struct rig *rig = rig_open((struct rig_opts){0});
 *     struct answer *a = rig_ask(rig, (struct ask){.text = "hello", .max = 8});
 *     struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .max = 8, .previous = a->id});
 *     assert_int_equal(b->receipt.prefilled, b->receipt.fresh);
 *     rig_close(rig);
 *
 * Answers live as long as their rig. Callbacks run on the engine thread: whoever blocks in a hook stops the engine,
 * which is how a test puts two things into the order it wants without sleeping.
 */
#ifndef CONVOD_TESTS_SESSION_HARNESS_H
#define CONVOD_TESTS_SESSION_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/session_internal.h"
#include "tests/engine/tiny_model.h"

struct rig_opts {
    int arch; /* enum tiny_arch */
    int ctx;  /* 0: 4096 */
    int threads, step_tokens, max_running, max_waiting, idle_ms;
    int kv_pages;           /* pages of 64 tokens; 0: plenty */
    enum tiny_family tools; /* of the model's chat format */
    enum tiny_thinking thinks;
    bool spm; /* its vocabulary puts a space in front of texts; without the two above */
    size_t ram_bytes;
    uint64_t disk_bytes;
    struct session_limits limits;
    int retain_wait_ms; /* 0: 1 */
    bool accept_kv_any;
    char nan_byte; /* a text with it makes the model's numbers NaN; 0: none */
};

struct rig {
    struct session *s;
    struct rig_opts o;
    char *dir, *model;
    struct answer *answers;
    pthread_mutex_t lock; /* guards answers' contents, gate and n_logged */
    pthread_cond_t cond;
    unsigned n_ids;
    int n_logged; /* messages of LOG_WARNING and worse */
};

struct answer {
    struct answer *next;
    struct rig *rig;
    char id[64];
    const char *opening;
    void (*hook)(struct answer *a, const struct session_event *ev, void *arg);
    void *hook_arg;

    bool started, over, repeated;
    char stored[64], stored_status[16]; /* the answer that there was already */
    int n_events, n_restore, n_prefill, n_delta;
    const char *broken;  /* a rule of events that was broken */
    char *text;          /* what the deltas said */
    size_t len, item_at; /* item_at: where the open item's begin */
    bool item_open;
    struct session_logprob *logprobs; /* those that came with it */
    size_t n_logprobs;
    int n_items;
    char kinds[64];             /* of its items, the first letter of each: m, f; upper case: incomplete */
    char call_id[64], name[64]; /* of the last call */

    /* Of the terminal event. */
    bool failed;
    enum session_failure failure;
    char message[200];
    char conversation[64];
    bool incomplete, stopped_by_string;
    char reason[32], stop[64];
    int input, cached, output;
    struct session_receipt receipt;
    char receipt_conversation[64];
};

struct ask {
    const char *owner, *conversation, *previous, *parent, *replaces, *instructions, *continues, *opening, *copy_of;
    const char *tools, *tool, *labels;
    enum session_tools choice;
    bool one_call;
    const struct session_item *items; /* or: */
    size_t n_items;
    const char *text; /* of one user message; or: */
    const struct engine_message *messages;
    size_t n_messages;
    int max; /* 0: 8 */
    int thinking_tokens;
    unsigned effort;
    uint64_t seed;
    float temperature; /* 0: 1 */
    const struct engine_bias *bias;
    int n_bias;
    const char *stop;
    bool logprobs;
    int n_top;
    const char *schema; /* of the answer; NULL: none */
    const char *calls;  /* what calls must be, as engine_form_calls() takes it; NULL: anything */
    bool match, ephemeral, warm, count, raw, truncate, current_turn;
    const char *key;
    int digest; /* stands for one; 0: none */
    bool retry, requeued, begins;
    const char *request;
    void (*hook)(struct answer *a, const struct session_event *ev, void *arg); /* on the engine thread, without locks */
    void *hook_arg;
};

struct rig *rig_open(struct rig_opts o);
void rig_close(struct rig *rig);
/* Ends the session; the directory and the model stay. */
void rig_stop(struct rig *rig);
void rig_stop_within(struct rig *rig, int drain_ms);
/* Opens it again, with other settings if wanted. */
void rig_start(struct rig *rig, struct rig_opts o);
/* Ends it and goes on with another model of the same shape, to which what is stored means nothing. */
void rig_change_model(struct rig *rig);

/* Starts a turn; it must be accepted. */
struct answer *rig_begin(struct rig *rig, struct ask ask);
/* Waits for its end and checks that its events kept the rules and its receipt adds up. */
void rig_end(struct answer *a);
/* Both; the turn must not fail. */
struct answer *rig_ask(struct rig *rig, struct ask ask);
/* Both; it must fail like this. */
void rig_refused(struct rig *rig, struct ask ask, enum session_failure failure);
/* Only what is new went through the model. */
void rig_only_new(const struct answer *a);
/* A new text of about n tokens that is a function of the seed; free() it. */
char *rig_text(uint64_t seed, int n);

/* Waits until no saving is under way. */
void rig_saved(struct rig *rig);
/* Waits until the ledger thread has done what it was asked for until now. */
void rig_ledger(struct rig *rig);
/* From now on nobody searches for what no turn holds (sweep.c). */
void rig_no_sweep(struct rig *rig);
/* What longer segments have taken the place of is dropped, as it is when nothing else is to be done. */
void rig_settle(struct rig *rig);
int rig_evict(struct rig *rig, const char *owner, const char *conversation, bool to_disk);
int rig_delete(struct rig *rig, const char *owner, const char *conversation);
int rig_delete_response(struct rig *rig, const char *owner, const char *id);
/* Creates a listed conversation. */
int rig_create(struct rig *rig, const char *owner, const char *id, const char *instructions);
/* The result of a get: rc; the field of the first row or "" goes to out. */
int rig_head(struct rig *rig, const char *owner, const char *conversation, char out[64]);
int rig_tier(struct rig *rig, const char *owner, const char *conversation, char out[64]);
/* The texts of the stored answer's items, behind each other. */
int rig_text_stored(struct rig *rig, const char *owner, const char *id, char out[1024]);
/* The stored receipt's `saved`, or "". */
int rig_stored(struct rig *rig, const char *owner, const char *id, char saved[64], char status[64]);

/* Waits in one callback for another thread's word. */
struct gate {
    pthread_mutex_t lock; /* guards n */
    pthread_cond_t cond;
    int n;
};
#define GATE_CLOSED                                                                                                    \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                                         \
    }
void gate_open(struct gate *g);
void gate_wait(struct gate *g, int n); /* until it was opened n times */

/* What is stored of a response's context: its tokens and, as far as segments hold it, its KV. */
struct kept {
    engine_token *tokens;
    int n_tokens;
    int n_stored; /* tokens whose KV is found */
    uint8_t *kv;  /* of those, segment after segment */
    size_t kv_bytes;
};
struct kept rig_kept(struct rig *rig, const char *owner, const char *id);
void kept_free(struct kept *k);
void kept_same(const struct kept *got, const struct kept *wanted, const char *what);

uint64_t rig_segments(struct rig *rig);

#endif

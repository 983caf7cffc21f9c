/* fake_session_internal.h - what the two files of the double share: its rows, under one lock. */
#ifndef CONVOD_FAKE_SESSION_INTERNAL_H
#define CONVOD_FAKE_SESSION_INTERNAL_H

#include "tests/daemon/fake_session.h"

#include <pthread.h>
#include <stdatomic.h>

struct conversation {
    struct conversation *next;
    char *id, *owner, *title, *metadata, *instructions, *head, *running;
    int64_t created_ms, updated_ms;
    const char *tier;
};

#define FAKE_ITEMS 8 /* of one turn's input; more are not kept */

struct response {
    struct response *next;
    char *id, *owner, *conversation, *previous, *output, *params, *instructions, *receipt, *key;
    struct session_item items[FAKE_ITEMS + 2]; /* the input, then the answer */
    size_t n_items;
    unsigned char digest[SESSION_DIGEST_BYTES];
    const char *status, *reason;
    bool listed, ephemeral, has_digest, delivered;
    int input_tokens, output_tokens;
    int64_t created_ms;
};

struct turn {
    struct turn *next;
    struct session *session;
    char *id, *owner, *conversation, *previous, *text, *params, *instructions, *key;
    struct session_item items[FAKE_ITEMS], output[2];
    size_t n_items, n_output;
    unsigned char digest[SESSION_DIGEST_BYTES];
    int n_top;
    bool logprobs, store, generate, count, background, cancelled, abandoned, listed, has_digest, retry;
    int failure;
    void (*event)(void *arg, const struct session_event *ev);
    void *arg;
    pthread_t thread;
};

struct session {
    struct conversation *conversations;
    struct response *responses;
    struct turn *turns;
    bool closing;
    int n_threads;
    struct session_status status;
};

void fake_lock(void);
void fake_unlock(void);
char *fake_copy(const char *s);
int64_t fake_wall_ms(void);
/* With the lock held. NULL: there is none. */
struct conversation *fake_find_conversation(struct session *s, const char *owner, const char *id);
struct response *fake_find_response(struct session *s, const char *owner, const char *id);
void fake_take_texts(struct session_texts *texts);
void fake_free_conversation(struct conversation *c);
void fake_free_response(struct response *r);
void fake_show_response(const struct response *r, struct session_response *out);

#endif

/* session_internal.h - what the files of session/ share.
 *
 * session.c      the engine thread: command queue, one step after the other
 * step.c         a step: who is in it, what comes out of it
 * schedule.c     who gets what of a step, and what a step takes
 * turn.c         a turn's life: find, wait, prefill, decode
 * admit.c        it gets a place
 * restore.c      what is stored of its context comes back
 * aside.c        it gives its pages up and waits
 * commit.c       its end: the ledger, then its KV
 * context.c      the tokens that a turn's context consists of
 * build.c        where they are found: beside the engine thread, when there is much to read
 * truncate.c     what goes where they are too many
 * strip.c        contexts without the thinking of the turns before, made while nothing else is to be done
 * hot.c          sequences in pages: which turn may continue which, saving behind them, eviction
 * idle.c         the order of those that nobody uses
 * live.c         what other threads are told of pages and turns
 * lookup.c       the ledger jobs of a turn that read: what it follows, which segments there are
 * accept.c       those that write: it is accepted, committed, has failed
 * items.c        items as messages, what tells equal ones, which call a result belongs to
 * form.c         what its answer and its calls must be
 * answer.c       what a turn's tokens say: the items of its output
 * conversations.c  everything that is not a turn: list, get, delete, evict, ...
 * unmake.c         a conversation that nothing came into goes again; fork.c: one begins as another one
 * unsaved.c      turns whose KV could not be saved: tried again
 * prune.c        what stays of a segment that a response to be deleted shares
 * stored.c       rows of the ledger as users of the session see them
 * receipt.c      the receipt as JSON
 *
 * Everything belongs to the engine thread except: `struct job`-like parts that a ledger job owns while it is under way
 * (named where they are declared), and what `lock` guards. The only lock here is session.lock; it is never held while
 * calling out.
 */
#ifndef CONVOD_SESSION_INTERNAL_H
#define CONVOD_SESSION_INTERNAL_H

#include "session/retention.h"
#include "session/schedule.h"
#include "session/session.h"
#include "storage/storage.h"

#include <pthread.h>
#include <stdatomic.h>

#define SESSION_SEGMENT_TOKENS 256 /* a full segment; at absolute positions 256 k */
#define SESSION_MAX_RUNNING    256

struct turn;

/* ---- hot contexts (hot.c) -------------------------------------------------------------------------------------- */

struct segment_ref {
    uint8_t key[STORAGE_KEY_BYTES];
    bool stored; /* put or found: need not be put again */
};

/* A sequence in pages, what of it is stored, and who may use it. */
struct hot {
    struct hot *next, *previous; /* used before and after it */
    struct engine_seq *seq;
    int64_t owner, conversation, turn; /* row ids; turn: the last committed one, 0 = none */
    uint8_t owner_key[32];
    bool counted;              /* in what others are told of the conversation */
    struct turn *user;         /* NULL: idle, evictable */
    bool idle;                 /* in session.idle: */
    int shared;                /* tokens that it has in common with the one before it there, of the same owner */
    struct hot *older, *newer; /* of the same owner's, */
    uint64_t idle_since;       /* by a count of those that became idle */
    int64_t last_used_ms;
    struct segment_ref *full; /* full segments from the start */
    int n_full, full_capacity;
    uint8_t tail_key[STORAGE_KEY_BYTES]; /* the stored unfinished segment behind them */
    int tail_count;                      /* 0 = none */
    uint8_t cut[STORAGE_KEY_BYTES];      /* the last one that was put and is in it no longer; zero: none */
    uint8_t aside[STORAGE_KEY_BYTES];    /* the end of what was saved when its turn was put aside; likewise */
    bool in_ledger;                      /* its turns are stored: segments may be put */
    bool mixed; /* some of it was restored that other numerics made: what is computed behind that is nobody's own */
    char *ephemeral; /* store:false: the response it belongs to */
};

/* What an owner has in session.idle: nobody goes through it to choose what is evicted. */
struct idle_owner {
    int64_t id;
    int64_t tokens, distinct;    /* of all of them; what several begin with counts once */
    struct hot *oldest, *newest; /* by when they became idle */
};

struct hot *hot_new(struct session *s, int64_t owner, const uint8_t owner_key[32]);
void hot_free(struct session *s, struct hot *h);
/* The best start for a context: a taken-over, forked or new hot whose sequence holds a head of context[0..most]. NULL:
 * no memory. */
struct hot *hot_acquire(struct session *s, struct turn *t, int most);
/* Drops the pages of the idle context that was used longest ago. False: there is none. */
bool hot_evict_one(struct session *s);
/* Tokens of a waiting turn's prompt that are in pages, and in which context. */
int hot_shared(const struct session *s, const struct turn *t, const struct hot **best);
/* Whether a waiting turn's prompt finds pages beside `tokens` that running turns still want; drops idle contexts for
 * it, but not the one that the turn would continue, and none where all of them are not enough. */
bool hot_make_room(struct session *s, const struct turn *t, int64_t tokens);
/* Tokens of an owner's contexts in pages; what several begin with counts once. */
int64_t hot_tokens_of(const struct session *s, int64_t owner);
/* A context of the owner, by this name, was used: idle ones leave the pages until it has what it may have. */
void hot_keep_within(struct session *s, const char *name, int64_t owner);
/* Whether a waiting turn is within what its owner may have in pages, beside the turns of that owner that run (alone it
 * always is); drops idle contexts for it. */
bool hot_within(struct session *s, const struct turn *t);
/* Whether it would be when all that may go had gone, with `waited_for` also turns that give way. Drops nothing. */
bool hot_may_be_within(const struct session *s, const struct turn *t, bool waited_for);
/* Drops all that are idle since before `before_ms`. */
void hot_evict_idle(struct session *s, int64_t before_ms);
/* Cuts to n tokens; 0, or -ERANGE when the pages for that are gone. */
int hot_truncate(struct hot *h, int n);
/* Before somebody else uses it: cuts what a restore that has not come to its end left unusable. */
void hot_mend(struct hot *h);
/* After a deletion: what contexts of this owner took for stored may have gone with it, so it is put again. */
void hot_distrust(struct session *s, int64_t owner);
/* The same after segments of a context with these tokens went: of those that begin with the same segment. */
void hot_distrust_like(struct session *s, int64_t owner, const engine_token *ids, int n);
/* After a failed saving: of a conversation's contexts, what lies behind `from` tokens is put again. */
void hot_unsaved(struct session *s, int64_t conversation, int64_t from);
/* Of a turn that failed: the segments that were put for it are dropped, as far as nobody else has them. */
void hot_discard(struct session *s, struct hot *h);
/* Whether any of that owner's is being dropped. */
bool hot_discards(const struct session *s, int64_t owner);
/* Drops `last` (zero: nothing) and, of what is before it, what nobody holds, unless a context of the owner but that one
 * has it. True: it is being dropped; what others have taken for stored may go with it. `last` is zero then. */
bool hot_drop_end(struct session *s, int64_t owner, const struct hot *but, uint8_t last[STORAGE_KEY_BYTES]);
/* The same, but `out` gets what the caller is to drop. */
bool hot_take_end(const struct session *s, int64_t owner, const struct hot *but, uint8_t last[STORAGE_KEY_BYTES],
                  uint8_t out[STORAGE_KEY_BYTES]);
/* The same of what was put of a context and is in it no longer, behind a flush of what is in it. */
void hot_drop_cut(struct session *s, struct hot *h);
/* Some turn or saving has ended: what it put and nobody holds may go, as far as no other uses it. */
void hot_sweep(struct session *s);
/* Notes that segment [first, first + count) is stored under key. */
int hot_note_stored(struct hot *h, int first, int count, const uint8_t key[STORAGE_KEY_BYTES]);
/* Puts every full segment that is not stored, and with `tail` the unfinished one; `last` gets the key of the chain's
 * end (zero: nothing). 0, or why something could not be put; service goes on. */
int hot_save(struct session *s, struct hot *h, bool tail, uint8_t last[STORAGE_KEY_BYTES]);
/* Its tokens are those of a turn from now on. */
void hot_belongs(struct session *s, struct hot *h, int64_t turn, int64_t conversation);
/* Key of a segment: HMAC-SHA256(owner key, KV identity | parent key | token ids). Who made it is not in it. */
int segment_key(const uint8_t owner_key[32], const uint8_t identity[32], const uint8_t parent[STORAGE_KEY_BYTES],
                const engine_token *ids, int n, uint8_t out[STORAGE_KEY_BYTES]);

/* idle.c */
/* Tokens that a context and ids[0..most) have in common at their beginning. */
int hot_common(const struct hot *h, const engine_token *ids, int most);
/* Where an owner's tokens would stand in session.idle: who has the longest head in common with them is beside it. */
size_t idle_place(const struct session *s, int64_t owner, const engine_token *ids, int n);
/* A new context, in use, and one that goes. 0 or -ENOMEM. */
int idle_link(struct session *s, struct hot *h);
void idle_unlink(struct session *s, struct hot *h);
/* What an owner has there. NULL: nothing. */
const struct idle_owner *idle_of(const struct session *s, int64_t owner);
/* Nobody uses it from now on; somebody does (or it is changed). */
void idle_put(struct session *s, struct hot *h);
void idle_take(struct session *s, struct hot *h);

/* ---- turns ----------------------------------------------------------------------------------------------------- */

enum turn_state {
    TURN_BEHIND,     /* until the turn before it in its conversation, which ends, is over */
    TURN_FINDING,    /* ledger job: what it follows; then `found` is set, and its context is made (build.c) */
    TURN_WAITING,    /* for a place among the running ones */
    TURN_PLANNING,   /* ledger job: which segments are stored */
    TURN_RUNNING,    /* restoring, prefilling, decoding */
    TURN_COMMITTING, /* ledger job */
    TURN_OVER,
};

/* A stored segment that a turn wants. */
struct planned {
    struct storage_found found;
    int first, used; /* tokens of it that the context shares */
    enum { PLAN_IDLE, PLAN_READING, PLAN_READY, PLAN_FAILED, PLAN_DONE } state;
    bool kept;     /* in memory, by aside.c */
    bool split;    /* the payload is a buffer of the engine's, in the split form */
    bool again;    /* decoded where it is read: once more, as what was read was damaged; or before others go for it */
    void *payload; /* kept, split, or read again; otherwise the result has the segment as it is stored */
    struct storage_read_result result;
    struct turn *turn;
};

/* What a turn follows, filled by the ledger job. */
struct found {
    enum session_failure failure;
    const char *message;
    struct storage_owner owner;
    struct storage_conversation conversation; /* id 0: none yet */
    struct storage_turn parent, copied;       /* id 0: none; copied: fork.c */
    struct storage_turn stripped; /* its context without thinking, which this turn follows instead; id 0: it does not */
    void *tokens;                 /* of the context at the end of what the turn follows of these two */
    size_t tokens_bytes;
    struct storage_turn *path; /* all of them with their items, where the past is to be rendered anew, or may be */
    size_t n_path;
    bool anew, branches;       /* it is; others follow the parent, too: some of this may be stored */
    char *tools;               /* that the parent's context was told of, in the sorted form; NULL: none */
    unsigned effort;           /* of ENGINE_CHAT_EFFORTS: that the parent's context was made with */
    struct storage_turn begun; /* continues: that answer's row, where its tokens are its whole context; id 0: not so */
    size_t matched;            /* match: messages that the path covers */
    bool apart;           /* what was matched is followed in a chain of its own: its conversation is not this turn's */
    int64_t replaces;     /* at its acceptance: the first attempt at this request, whose place it takes; 0 = none */
    int64_t requeued;     /* row of a turn that waited in the ledger */
    char over_limit[128]; /* what the owner has too much of */
    struct storage_turn stored; /* what this request was answered with already; id 0: nothing */
    char *stored_previous;
};

/* Where a turn's row in the ledger is. */
enum turn_row {
    ROW_NONE,  /* there is none, and there will be none */
    ROW_ASKED, /* ledger job */
    ROW_THERE,
};

enum answer_kind { ANSWER_MESSAGE, ANSWER_CALL, ANSWER_THINKING };

struct answer_text {
    char *text; /* terminated; NULL: nothing yet */
    size_t len, capacity;
};

struct turn {
    struct turn *next;
    struct session *session;
    enum turn_state state;
    uint64_t clock; /* of storage, when it began: what it puts and finds is used later */

    /* The request, copied. */
    char *owner, *response_id, *conversation, *previous, *parent, *instructions, *params, *key, *request;
    char *replaces, *copy_of;         /* public ids: of the response that goes when this one is committed; fork.c */
    char *opening, *continues;        /* NULL: none */
    struct engine_tokens opening_ids; /* of the answer that is continued */
    char *tools, *tools_form, *tool;  /* tools_form: in the sorted form, by which they are compared */
    char *callable, *labels;          /* NULL: all of them; nothing */
    int thinking_tokens, n_thought;   /* how many may be thought, as in a session_turn, and how many were */
    unsigned effort;                  /* as in a session_turn; once it was found, with that of what it follows */
    enum session_tools tool_choice;
    struct storage_item *items;      /* what is stored of the messages */
    struct engine_message *messages; /* their texts are the items' */
    char **names;                    /* and their names these */
    size_t n_messages;
    uint8_t digest[SESSION_DIGEST_BYTES];
    struct engine_sampling sampling;
    struct engine_bias *bias;
    int n_bias;
    char **stops;
    size_t n_stops;
    int max_output_tokens, n_top;
    struct engine_tokens raw_tokens;
    struct { /* how it is to be done; as in a session_turn, but for: */
        bool match, store, generate, count, raw, truncate, keeps, current_turn, retry, one_call, logprobs, has_digest;
        bool background;       /* behind all others where time or places are shared */
        bool requeued, begins; /* it waited in the ledger at the start; only where its conversation holds nothing yet */
        bool strips;           /* it is one of strip.c: nobody's, a warm-up of another context of its parent's */
        bool adds;             /* it came with messages */
    } ask;
    void (*event)(void *arg, const struct session_event *ev);
    void *arg;

    struct found found;
    uint8_t (*hashes)[32];     /* match: of the history, after each message */
    struct ephemeral *follows; /* by its name, or as it holds more than the ledger; until the context is built */
    struct {                   /* how it is (build.c): */
        bool away, waits;      /* not on the engine thread; it has not begun */
        int rc;
    } build;
    const char *in_force;         /* instructions of this turn; points into the request or found */
    struct engine_tokens context; /* prompt, then the answer */
    int n_prompt;
    int n_opened;            /* of those, the last ones: a call or text that the answer was made to begin with */
    int n_inherited;         /* tokens of the context that were there before this turn */
    int n_expected;          /* of those, tokens that had been through the model */
    const char *lost_reason; /* why expected tokens that are not found are missing */
    struct {                 /* what was there before the turn's own messages */
        uint8_t hash[32];
        bool known;           /* that is */
        bool by_tokens;       /* it is known by its tokens alone, */
        bool unstored;        /* and is in no row */
        bool changed;         /* it was rendered anew */
        bool rebased;         /* the ledger gets the whole context, not what is added to the parent's */
        int own_from;         /* index in context where this turn's own tokens start */
        size_t drop_turns;    /* of the path, that the context is without, */
        size_t drop_messages; /* and of the turn's own messages */
    } past;

    struct hot *hot;
    struct { /* what comes from storage */
        struct planned *parts;
        int n, next, n_reading;
        int most;           /* tokens that may */
        bool made;          /* once */
        bool rerun_last;    /* the last token was found, and goes through the model again for its logits */
        bool whole_windows; /* restoring begins again, with all that window layers had */
        /* While it waits for a place: a ledger job looks for its plan, whose reads begin; stale: it is to be looked for
         * again when there is a place. */
        enum { EARLY_NONE, EARLY_PLANNING, EARLY_PLANNED, EARLY_STALE } early;
    } plan;
    int n_counted; /* tokens of the context that the receipt has: found in pages, restored or prefilled */

    struct {               /* among the others */
        bool out_of_pages; /* it runs, and found none */
        bool passed;       /* not now: it waits for more than a place */
        struct turn *twin; /* that computes what this one's prompt begins with, so many tokens: */
        int twin_common;
        uint64_t begun; /* how many steps there had been when it was begun to be found */
    } place;
    struct {                             /* while it had given its pages up */
        int n;                           /* how often it did */
        bool saving;                     /* what it had is on its way to the index */
        uint8_t last[STORAGE_KEY_BYTES]; /* the end of that chain; zero: it is not stored */
        int end;                         /* tokens in it */
        int rc;                          /* why that is not all it had then; 0: it is */
    } aside;

    struct { /* what its answer and its calls must be; NULL: anything */
        struct engine_form *of_answer, *of_calls;
        struct engine_match *match;   /* the answer's text so far; NULL: none of it is there, or it is none */
        struct engine_match *bare;    /* the same, as a call without marks that it may be, too */
        struct engine_match *in_call; /* the call so far that it is in */
        bool begun;                   /* there is some of the text */
    } form;
    struct engine_stream *stream;
    struct engine_calls *calls;   /* NULL: all of the answer is text, and none thinking */
    struct answer_text text;      /* the answer so far, as it was written */
    struct session_logprob *odds; /* of tokens that are not told yet */
    size_t n_odds, odds_capacity;
    struct storage_item *output;
    size_t n_output_items, n_told;
    struct { /* the last one of output */
        bool open;
        enum answer_kind kind;
        int from;                /* tokens of the answer when it began */
        struct answer_text text; /* its own, while it is open */
    } item;
    struct {
        bool opened; /* what it was made to begin with is part of it */
        bool over, broken_call;
    } answer;
    int n_output;

    struct { /* how it ends */
        bool cancelled, abandoned;
        bool yielded;                 /* cancelled: a warm-up, for a turn of its conversation */
        bool by_string;               /* a stop string */
        const char *reason;           /* incomplete because; NULL: it is complete */
        bool waits;                   /* its commit, for savings of its conversation */
        bool erasing;                 /* not all of what it replaced could be erased yet */
        enum session_failure failure; /* it has failed, and its row is being told */
        const char *message;
        char detail[200]; /* which may be this */
    } end;
    struct {           /* events */
        bool started;  /* STARTED was sent: from here on others are */
        bool terminal; /* the terminal event was sent */
    } told;

    struct session_receipt receipt;
    int64_t received_ns, admitted_ns, restored_ns, prefill_ns, first_ns, last_ns, created_ms, completed_ms;
    float *gaps_ms;
    int n_gaps, gaps_capacity;

    /* Ledger jobs under way: until they are over the turn is not freed. `accepted` is the accept job's while ROW_ASKED,
     * and `row`, the rest of it, the commit job's while COMMITTING. */
    int n_jobs;
    enum turn_row in_ledger;
    struct storage_turn accepted, row;
    struct storage_item *accepted_items; /* copies: their strings are items' and tools' */
    char *tools_id;
    uint8_t key_hash[STORAGE_DIGEST_BYTES], digest_hash[STORAGE_DIGEST_BYTES]; /* as they are stored */
    int accept_rc, commit_rc, fail_rc;
};

/* ---- session --------------------------------------------------------------------------------------------------- */

struct command {
    struct command *next;
    void (*run)(struct session *s, void *arg); /* on the engine thread */
    void *arg;
};

struct ephemeral { /* a store:false response that can be followed */
    struct ephemeral *next;
    char *owner, *response_id, *instructions, *tools; /* tools: in the sorted form */
    char *calls;                                      /* of an answer: items_open_calls(); NULL: not known */
    uint8_t chat_hash[32];
    struct engine_tokens tokens;
    int n_evaluated;
    bool answered, gone;
    bool said; /* there is more in it than instructions and tools */
    int users; /* contexts that are made of it now; one that is gone is freed when the last one is */
};

/* Frees it, when nobody uses it any more; one that used it does not. */
void ephemeral_free(struct ephemeral *e);
void ephemeral_let_go(struct ephemeral *e);

#define LIVE_RESPONSE_SIZE 80

/* What other threads are told of pages and turns (live.c). */
struct live_slot {
    int64_t conversation;
    int contexts; /* in pages; 0: the slot is free */
};
struct live_turn {
    int64_t conversation;
    char response[LIVE_RESPONSE_SIZE];
};
struct live {
    struct live_slot *slots; /* [capacity], a power of two */
    size_t n, capacity;
    struct live_turn *running; /* as the last loop left them */
    int n_running;
};

/* The saving of a committed turn's KV. A job on the ledger thread has it from its commit to kv_commit_done(). */
struct saving {
    struct saving *next;
    struct session *session;
    int64_t turn, conversation, owner_id;
    char *owner;
    uint64_t clock;           /* of its turn */
    struct hot *hot;          /* that has the pages; NULL: they have gone */
    bool failed;              /* that is told already */
    int64_t from;             /* tokens of the context that those before have saved */
    bool told;                /* the turn's row says how it ended: */
    enum storage_saved saved; /* that is what it says */
    int with_rc;              /* that was written with the commit */
    int lost;                 /* why what its turn is to hold is not all of its context; 0: it is */
    /* What the turns before it end in is now the head of this segment, which they hold from now on. */
    int longer_at; /* which of the context; negative: there is none */
    uint8_t longer[STORAGE_KEY_BYTES];
    uint8_t drop[2][STORAGE_KEY_BYTES]; /* what was put and is in the context no longer; zero: nothing */
    int rc;
};

struct session {
    struct engine *engine;
    bool accept_any;                        /* KV of other numerics is restored */
    struct engine_forms *forms;             /* engine thread */
    struct engine_beside *beside, *builder; /* builder: build.c, */
    bool building;                          /* at work */
    struct storage *storage;
    const struct engine_info *info;
    struct storage_layout layout;
    struct storage_array *arrays;
    int max_waiting, max_running, idle_ms, max_step_ms;
    void (*log)(void *arg, int priority, const char *text);
    void (*events)(void *arg, bool more);
    void *log_arg, *events_arg;
    pthread_t thread;
    bool thread_started, wake_made;
    pthread_mutex_t lock; /* guards commands, stop, status, live and usages */
    pthread_cond_t wake;
    struct command *commands, **commands_end;
    int drain_ms;
    bool stop;
    struct session_status published; /* as session_counted() left it */
    int64_t published_progress_ms;
    struct live live;
    struct usage *usages; /* limits.c: that wait for the engine thread */

    /* engine thread */
    struct session_status status;
    int64_t last_progress_ms, last_step_ns, step_cpu_ns;
    struct query *queries;            /* that wait until a conversation's saving has ended */
    struct saving *savings, *unsaved; /* under way; that failed, and are tried again */
    struct mark *marks;               /* of turns that failed, which could not be written */
    int64_t unsaved_at_ms;            /* when */
    int unsaved_pause_ms;
    struct turn *turns;            /* oldest first */
    struct hot *hots, *oldest_hot; /* by their last use */
    struct hot **idle;             /* those that nobody uses, by their tokens: [n_idle] */
    struct idle_owner *owners;     /* of those, by id: [n_owners] */
    size_t n_hots, n_idle, n_owners, idle_capacity;
    uint64_t idle_count;
    int64_t idle_tokens; /* of all of those */
    struct ephemeral *ephemerals;
    struct schedule_cost cost; /* of the steps until now */
    struct schedule_accounts accounts;
    bool closing, current_turn_asked; /* asked: somebody wants contexts without past thinking */
    int jobs; /* ledger jobs and reads whose callback has not arrived: session_close() waits for them */
    atomic_uint_fast64_t quota_refusals;
    struct retain retain;
    size_t aside_bytes, aside_most; /* raw KV of turns put aside that leave nothing on disk */
    int saves, prunes;              /* turns whose saving has not ended; under way */
    struct discard *discards;       /* segments being dropped: of turns that failed, or that were cut off */
};

int session_post(struct session *s, void (*run)(struct session *s, void *arg), void *arg);
void session_log(struct session *s, int priority, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Work was done that is no step: the watchdog need not wait for the end of the loop to hear of it. */
void session_progress(struct session *s);
/* Tells of what was counted, before the loop ends: who got a turn's terminal event and then asks must see that it was,
 * and that its saving is pending. What runs and waits stays as the last loop left it until what follows is there. */
void session_counted(struct session *s);
int64_t session_now_ns(void);
int64_t session_cpu_ns(void); /* of the calling thread */
/* Whether commands have arrived since the loop took them. */
bool session_commands_wait(struct session *s);
int64_t session_wall_ms(void);

/* turn.c */
void turn_free(struct turn *t);
/* Commands: a new turn; and what a turn's ledger jobs come back with. */
void turn_begin(struct session *s, void *turn);
void turn_found(struct session *s, void *turn);
void turn_accepted(struct session *s, void *turn);
void turn_planned(struct session *s, void *turn);
void turn_planned_early(struct session *s, void *turn); /* admit.c */
void turn_committed(struct session *s, void *turn);     /* live.c */
/* Lists the turns that run anew. */
void live_running(struct session *s);
/* [any thread] Whether a conversation is in pages; `response` gets the one that runs on it, or "". */
bool live_look(struct session *s, int64_t conversation, char response[LIVE_RESPONSE_SIZE]);
void live_free(struct session *s);

/* commit.c */
void turn_failed(struct session *s, void *turn);
void turn_fail(struct turn *t, enum session_failure failure, const char *message);
void turn_begin_behind(struct session *s); /* those that waited for another's end */
/* Tokens that the turn wants to run in the next step: index and number in its context. 0: not now. */
int turn_wants(struct turn *t, int *first);
void turn_after_step(struct turn *t, int n, const struct engine_pick *next, int64_t now_ns);
void turn_finish(struct turn *t); /* the answer is over: commit */
void turn_step_failed(struct turn *t, int rc);

/* admit.c */
/* Lets waiting turns run. */
void turn_admit(struct session *s);
/* Turns of an owner that have a place. */
int turns_running(const struct session *s, int64_t owner);
/* Whether a turn runs that is put aside for one that somebody waits for. */
bool turn_gives_way(const struct turn *t);

/* restore.c */
/* Moves the reads and imports of the running turns on, and reads of those that wait. True: something moved. */
bool restore_run(struct session *s);
/* Tokens that a turn's plan brings, from the context's beginning. */
int restore_end(const struct turn *t);

/* ---- forms of answers, and of calls (form.c) ------------------------------------------------------------------- */

void form_free(struct turn *t);
/* The tokens that may come next, NULL: all. Runs beside a pass, and touches nothing of the turn but what keeps its
 * form. An error of engine_match_mask(): that cannot be said, form_failed() then ends the turn. */
int form_mask(struct turn *t, const uint32_t **mask);
/* Ends the turn where rc is an error; gives rc. */
int form_failed(struct turn *t, int rc);
/* A token has come that ends nothing; before answer_token(). 0, or the turn has failed. */
int form_take(struct turn *t, engine_token id);
/* Behind answer_token(). */
void form_after(struct turn *t);
/* Appends the tokens that must come next, where they are known without the model. 0 or -ENOMEM. */
int form_forced(struct turn *t, struct engine_tokens *out);
/* Whether the text is whole, and nothing more may come. */
bool form_whole(const struct turn *t);

/* step.c */
/* Runs one step over the running turns. False: none had anything to run. */
bool step_run(struct session *s);

/* aside.c */
/* A running turn none of whose reads is under way gives its pages up and waits for a place again. */
void aside_put(struct turn *t);
/* Where a turn found no pages, though every idle context was dropped, another one is put aside: the youngest, warm-ups
 * and the background first. One that is alone and wants more than there is fails. True: somebody gave way. */
bool aside_give_way(struct session *s);
/* What a segment brought is in pages, or will not be wanted. */
void plan_release(struct planned *p);
/* Forgets a turn's plan; none of its reads is under way. */
void plan_drop(struct turn *t);

/* [any thread] A job of the turn is over: run() goes on with it on the engine thread. */
void turn_back(struct turn *t, void (*run)(struct session *s, void *arg));
void turn_emit(struct turn *t, const struct session_event *ev);
/* Whoever owns `found` says there why the turn is to fail; the message is a constant, or the turn's. Returns rc. */
int turn_refuse(struct turn *t, int rc, enum session_failure failure, const char *message);
/* How many are before a waiting turn. */
void turn_tell_queue(struct turn *t);
const char *turn_conversation_id(const struct turn *t);
bool turn_touches(const struct turn *t); /* it only brings a context back: nothing is added, nothing stored */
/* Unpins the turn's context; without keep_pages it is dropped. */
void turn_let_go(struct turn *t, bool keep_pages);
void turn_add_reprefilled(struct turn *t, int tokens, const char *reason);

/* build.c */
/* Has the context made of a turn that was found: turn_built() follows, now or later. rc: it could not be. */
void build_start(struct turn *t);
void turn_built(struct turn *t, int rc);
/* Nothing more is begun: those that wait fail. */
void build_close(struct session *s);

/* context.c */
/* [any thread] 0, or negative: found.failure and found.message say why. */
int context_build(struct turn *t);
/* The response that is not stored and that the turn follows, by its name or by what it holds. */
struct ephemeral *context_ephemeral(const struct turn *t);
/* Takes over the effort of the context that was found, where the turn names none; found.effort is that. Any thread that
 * owns `found`. */
void context_effort(struct turn *t);
/* Whether what came before the turn, as found, has to be rendered anew: under other instructions, or for another model.
 * Any thread that owns `found`. */
bool context_past_changes(const struct turn *t);
/* The tokens of the context at the end of a stored turn, in a job. 0 or negative. */
int context_of_turn(struct storage_ledger *l, int64_t owner, int64_t turn, struct engine_tokens *out);
/* What made a turn's KV, as stored with it: the KV identity in hexadecimal, then the numerics, with a + where other
 * numerics were before. Rows of earlier versions have a hash of both, and behind it, or not, the identity. */
#define CONTEXT_KV_TEXT 128 /* bytes, with the terminator */
void context_kv_text(const struct engine_info *info, bool mixed, char out[CONTEXT_KV_TEXT]);
/* Whether its tokens are this model's. */
bool context_same_model(const struct turn *t, const struct storage_turn *row);
/* Why KV that is stored with this text is none that this engine may use; NULL: it is. */
const char *context_kv_foreign(const struct turn *t, const char *kv);
/* The chain of hashes over a whole history: out[i] after message i. For a turn that is matched. 0 or -ENOMEM. */
int context_chat_hashes(const struct turn *t, uint8_t (*out)[32]);
/* Whether an answer of such a history may end with message i. */
bool context_answer_ends(const struct turn *t, size_t i);
/* Of such a turn: a response that is not stored may hold more of its history than what was found in the ledger. */
void context_match_ephemeral(struct turn *t);
/* The same at the end of the turn, its answer included, whatever it followed; all zero: not known. */
void context_chat_hash(const struct turn *t, uint8_t out[32]);

/* The row that the turn's tokens are added to: its parent's, or its context's without thinking. id 0: there is none. */
const struct storage_turn *context_base(const struct turn *t);
/* Whether the turn's messages say what a row with its items does, all of it. 1, 0 or -ENOMEM. */
int context_says_all(const struct turn *t, const struct storage_turn *of);

/* strip.c */
/* In a job: whether the turn follows its parent without thinking; of one that strips, what it begins with. */
int strip_find(struct storage_ledger *l, struct turn *t);
/* How many turns of the path are from before the question that the turn belongs to. */
size_t strip_before(const struct turn *t);
/* Whether the answer of a turn that was committed is to be stripped, as far as anything can be; then it begins. */
void strip_begin(const struct turn *t);
/* Ends what is being made ahead in the turn's conversation. False: it has not ended yet. */
bool strip_stop(const struct turn *t);
/* What the receipt says of the turn's context. */
const char *strip_told(const struct turn *t);

/* truncate.c */
/* In a job: whether the context of a turn that may be truncated may be too long, behind so many tokens. */
bool truncate_may_be(const struct turn *t, int64_t before);
/* How many turns of a path are not in the context at its end. */
size_t truncate_before(const struct storage_turn *path, size_t n);
/* Drops what makes the context too long; render() makes it anew of what is left. 0, or what that returned. */
int truncate_context(struct turn *t, int (*render)(struct turn *t));

/* lookup.c */
/* Walks the stored segments that hold ids[pos..most), from the one behind `parent` on, longest match first; take() gets
 * each with the tokens of it that match and owns its label; also what is lost (a read says so) but has others behind
 * it. Stops at the first that is not matched to its end, or at take()'s nonzero result. In a job. */
int lookup_walk(struct storage_ledger *l, const struct session *s, const struct storage_owner *owner,
                const uint8_t parent[STORAGE_KEY_BYTES], const engine_token *ids, int pos, int most,
                int (*take)(void *arg, struct storage_found *found, int pos, int used), void *arg);
int lookup_find(struct turn *t);
/* Comes back with turn_planned(), or, for one that waits, with turn_planned_early(). 0 or -ENOMEM. */
int lookup_plan(struct turn *t);

/* accept.c: a turn's row. Each starts a job that ends in turn_accepted(), _committed() or _failed(); 0 or -ENOMEM. */
int accept_start(struct turn *t);
int accept_commit(struct turn *t);
int accept_fail(struct turn *t);
/* Gives a new chain its public id. 0 or negative. */
int accept_name(struct turn *t);
/* A background turn is queued no longer. What becomes of that is not waited for. */
void accept_running(struct turn *t);
/* A random public id. 0 or -EIO. */
int accept_new_id(const char *prefix, char out[48]);
/* HMAC-SHA256 with the owner's key: tells requests apart and says nothing about them. 0 or -EIO. */
int accept_hash(const struct storage_owner *owner, const void *data, size_t len, uint8_t out[STORAGE_DIGEST_BYTES]);

/* items.c */
/* In a job: takes the input items of a stored turn over as the turn's own, with ids of their own. 0 or -ENOMEM. */
int items_take(struct turn *t, struct storage_turn *row);
/* What an item is. -ENOENT: no part of a context. */
int items_role(const char *kind, const char *role, enum engine_role *out);
/* A string in a body, malloc'd. NULL: it is not there, or no memory. */
char *items_field(const char *body, const char *key);
/* A row as a message, whose text is the row's and whose name and id are in *name (malloc'd; may be NULL). -ENOENT: it
 * is no part of a context; -ENOMEM. */
int items_message(const struct storage_item *row, struct engine_message *out, char **name);
/* malloc'd. NULL stays NULL; *failed is set where there is no memory. */
char *copy_text(const char *text, bool *failed);
struct session_texts {
    struct storage_item *items;
    struct engine_message *messages; /* their texts are the items' */
    char **names;
    size_t n;
};
/* Makes them the turn's, which has its time already. Frees texts. */
void texts_give(struct session_texts *texts, struct turn *t);
/* Whether a message is part of an answer. */
bool items_answers(const struct engine_message *m);
/* Goes on with a chain of hashes, so that equal histories have equal hashes; after (NULL: nobody asks): that behind
 * each message, of an answer's the one behind all of it. 0 or -ENOMEM. */
int items_chain(uint8_t hash[32], const struct engine_message *m, size_t n, uint8_t (*after)[32]);
bool items_is_reference(const char *kind);
/* [ledger thread] Puts what references mean in their place; thinking is left out. *wrong: one means nothing. */
int items_resolve(struct storage_ledger *l, struct turn *t, const char **wrong);
/* In a job: whether each result among the turn's new items belongs to a call that has none yet, whose tool it is told
 * then; *wrong says what is not so. 0 or negative. */
int items_check_results(struct storage_ledger *l, struct turn *t, const char **wrong);
/* The calls of a turn that is over and of what was said to it that have no result yet, as JSON; NULL: out of memory.
 * The same check by them, of a turn that follows it where it is not stored. [whoever makes its context] */
char *items_open_calls(const struct turn *t);
int items_check_open(struct turn *t, const char *calls, const char **wrong);

/* answer.c: the answer of a turn, token by token. 0 or negative. */
int answer_begin(struct turn *t); /* -EINVAL: stop strings */
/* What the answer was made to begin with, as part of it: once it may be told, and before the first pick, which goes by
 * where in a call that ends. */
int answer_open(struct turn *t);
/* Takes what was sampled. 1: the answer is over. */
int answer_token(struct turn *t, const struct engine_pick *pick);
/* Nothing more comes: what is held back comes out, and the last item ends. */
int answer_finish(struct turn *t);
/* Tells the items that could not be told before the turn had started. */
void answer_tell(struct turn *t);

/* stored.c: rows of the ledger as the session's users see them. */
struct stored; /* what a session_response points to */
int stored_response(const struct storage_turn *row, const struct storage_conversation *c, const char *previous,
                    struct session_response *out, struct stored **own);
void stored_free(struct stored *own);
/* Items as users see them, malloc'd; the texts are the rows'. NULL: no memory. */
struct session_item *stored_items(const struct storage_item *rows, size_t n);
enum engine_role stored_role(const char *name);
const char *stored_role_name(enum engine_role role);

/* conversations.c */
/* Before something of an owner's conversation is deleted: false while a saving of it is under way, or segments of that
 * owner are being dropped; else its idle contexts have gone. */
bool conversation_settle(struct session *s, int64_t owner, int64_t conversation);
/* Goes on with queries that waited for savings. */
void query_retry(struct session *s);
/* Answers those that are left with -ESHUTDOWN. */
void query_abort(struct session *s);

/* commit.c */
/* Goes on with commits that waited for savings. */
void commit_retry(struct session *s);
/* Saves what the context of a turn has, which holds it from then on; owns `saving` until the end. */
void saving_begin(struct session *s, struct saving *saving, struct hot *h);
void saving_free(struct saving *saving);

/* unsaved.c */
/* A saving has failed: it is tried again while its context is in pages. Takes it over. */
void unsaved_add(struct session *s, struct saving *saving);
/* The context goes, or goes on otherwise: what was not saved of it stays so. */
void unsaved_forget(struct session *s, const struct hot *h);
/* Tries again now what failed of a conversation (0: of all) and is not in use. True: there was something. */
bool unsaved_try(struct session *s, int64_t conversation);
/* Tries all again when it is time, or now. */
void unsaved_retry(struct session *s, bool now);
/* When it wants to be called next; INT64_MAX: when something is added. */
int64_t unsaved_due_ms(const struct session *s);

/* A turn has failed, and that could not be written: it is tried again. */
void unsaved_mark(struct session *s, const struct turn *t);
/* Gives those up that are left: the next start finds their turns running. */
void unsaved_marks_free(struct session *s);

/* limits.c */
int limits_set(struct storage *storage, const struct session_limits *everyone, const struct session_owner_limits *rows,
               size_t n);
/* In a job: whether the owner, by this name, may have another turn, or with `creates` another conversation. 0; -EMFILE
 * or -EFBIG: no, and `why` gets what to say; other errors of the ledger. */
int limits_check(struct storage_ledger *l, struct session *s, int64_t owner, const char *name, bool creates, char *why,
                 size_t why_size);

/* prune.c */
struct prune;
/* Before the response behind `turn` is deleted, in a job: *out gets what is to be done first, NULL: nothing. */
int prune_find(struct storage_ledger *l, struct session *s, const struct storage_owner *owner, int64_t turn,
               struct prune **out);
/* Does it and frees p; done() is called on the engine thread, also when it could not be done. */
void prune_start(struct session *s, struct prune *p, void (*done)(struct session *s, void *arg), void *arg);
void prune_free(struct prune *p);
/* Makes a turn, and those before it whose contexts are longer than `tokens`, hold a segment that is stored, instead of
 * what they held; what nobody holds then goes. done() is called on the engine thread. */
int turns_hold(struct session *s, int64_t turn, int64_t tokens, const uint8_t key[STORAGE_KEY_BYTES],
               void (*done)(struct session *s, void *arg), void *arg);

/* fork.c: of a turn with copy_of, what it follows; found.copied: that one, where its items are all of it. In a job. */
int fork_find(struct storage_ledger *l, struct turn *t, int64_t *parent);

/* receipt.c */
#define RECEIPT_PUT_ASIDE "put_aside" /* why a turn's own tokens were prefilled once more */
void receipt_finish(struct turn *t);
/* Tokens of the turn's context that have been through the model, now or before. */
int receipt_evaluated(const struct turn *t);
/* The receipt as it is stored: all but how its saving ended, which is known later. malloc'd, NULL: out of memory. */
char *receipt_stored(const struct session_receipt *r);
/* A stored one with that. */
char *receipt_with_saved(const char *stored, enum storage_saved saved);

#endif

/* session.c - the engine thread: commands in, one forward step after the other, nothing held while idle.
 *
 * The loop: take the commands that arrived, admit waiting turns, move restores on, and run one step over everything
 * that has tokens to run: a token of each turn that decodes, and pieces of the prompts that prefill, as long as a step
 * may take (schedule.h), so that nobody's next token waits long for somebody's long prompt.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "session/session_internal.h"

#define CLOSE_MS_MIN        300 /* for storage to end, when the turns took all the time there was */
#define MAX_WAITING_DEFAULT 256
#define MAX_RUNNING_DEFAULT 8
#define IDLE_MS_DEFAULT     (10 * 60 * 1000)
#define ASIDE_BYTES_DEFAULT ((size_t)256 << 20)
#define MAX_READERS         64
#define HOLD_MS             10 /* that a long step waits for turns that are about to run, */
#define HOLD_TOKENS_MS      4  /* and a short one */
#define CHECK_MS            1000
#define STUCK_MS            30000
#define RETRY_S_MAX         60

int64_t session_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t session_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t session_wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void session_log(struct session *s, int priority, const char *format, ...)
{
    char text[512];
    va_list ap;
    if (!s->log)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    s->log(s->log_arg, priority, text);
}

/* ---- commands ---- */

int session_post(struct session *s, void (*run)(struct session *s, void *arg), void *arg)
{
    struct command *c = malloc(sizeof *c);
    if (!c)
        return -ENOMEM;
    *c = (struct command){NULL, run, arg};
    pthread_mutex_lock(&s->lock);
    *s->commands_end = c;
    s->commands_end = &c->next;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

bool session_commands_wait(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    bool some = s->commands != NULL;
    pthread_mutex_unlock(&s->lock);
    return some;
}

/* Takes all commands; waits up to wait_ms for the first when there is none (0: does not wait; negative: for ever). */
static struct command *take_commands(struct session *s, int wait_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += wait_ms / 1000;
    until.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&s->lock);
    while (wait_ms && !s->commands && !(s->stop && !s->closing))
        if (wait_ms < 0 ? pthread_cond_wait(&s->wake, &s->lock) : pthread_cond_timedwait(&s->wake, &s->lock, &until))
            break;
    struct command *list = s->commands;
    s->commands = NULL;
    s->commands_end = &s->commands;
    pthread_mutex_unlock(&s->lock);
    return list;
}

static void run_commands(struct session *s, struct command *list)
{
    while (list) {
        struct command *c = list;
        list = c->next;
        c->run(s, c->arg);
        free(c);
    }
}

void session_progress(struct session *s)
{
    s->last_progress_ms = session_now_ns() / 1000000;
    pthread_mutex_lock(&s->lock);
    s->published_progress_ms = s->last_progress_ms;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the loop ---- */

static void reap(struct session *s)
{
    bool ended = false;
    for (struct turn **p = &s->turns; *p;) {
        struct turn *t = *p;
        if (t->state == TURN_OVER && t->plan.n_reading == 0 && t->n_jobs == 0) {
            *p = t->next;
            for (struct turn *other = s->turns; other; other = other->next)
                other->place.twin = other->place.twin == t ? NULL : other->place.twin;
            turn_free(t);
            ended = true;
        } else {
            p = &t->next;
        }
    }
    if (ended)
        hot_sweep(s);
}

static void cancel_stopped(struct session *s)
{
    for (struct turn *t = s->turns; t; t = t->next) {
        if (s->closing)
            t->end.cancelled = true;
        if (t->end.cancelled && t->state == TURN_RUNNING)
            turn_finish(t);
    }
}

static void publish(struct session *s)
{
    int running = 0, waiting = 0, ahead = 0;
    bool work = false;
    for (struct turn *t = s->turns; t; t = t->next) {
        bool waits = t->state <= TURN_WAITING, runs = !waits && t->state != TURN_OVER;
        ahead += t->ask.strips && (waits || runs);
        waiting += !t->ask.strips && waits;
        running += !t->ask.strips && runs;
        work |= t->state == TURN_RUNNING;
    }
    if (!work)
        s->last_progress_ms = session_now_ns() / 1000000;
    struct engine_kv_use use = engine_kv_use(s->engine);
    pthread_mutex_lock(&s->lock);
    s->status.running = running;
    s->status.waiting = waiting;
    s->status.ahead = ahead;
    s->status.hot_used = use.used_bytes;
    s->status.hot_budget = use.budget_bytes;
    s->status.pending_saves = (uint64_t)s->saves;
    s->published = s->status;
    s->published_progress_ms = s->last_progress_ms;
    pthread_mutex_unlock(&s->lock);
    live_running(s);
}

/* A step with prompts in it is long. Turns that lack nothing but a word of the ledger, a matter of milliseconds, are
 * waited for, so that they are in it; and one that has just come, and finds a place, makes such a step of the next, but
 * others' tokens wait less for that. Returns how long yet; 0: not. */
static int hold_ms(const struct session *s)
{
    bool prompts = false, about = false, comes = false;
    int running = 0;
    for (const struct turn *t = s->turns; t; t = t->next) {
        int left = t->state == TURN_RUNNING ? t->n_prompt - engine_seq_length(t->hot->seq) : 0;
        bool told = left == 1 && t->in_ledger == ROW_ASKED;
        bool finding = t->state == TURN_FINDING && !t->build.away;
        bool lacks = !t->ask.background && (finding || t->state == TURN_PLANNING || told);
        running += t->state == TURN_PLANNING || t->state == TURN_RUNNING;
        prompts |= left > 0 && !told;
        comes |= lacks && t->ask.generate && !t->ask.count && t->place.begun == s->status.engine_steps;
        about |= lacks;
    }
    int64_t passed_ms = (session_now_ns() - s->last_step_ns) / 1000000;
    int most = prompts ? HOLD_MS : comes && running < s->max_running ? HOLD_TOKENS_MS : 0;
    return about && passed_ms < most ? most - (int)passed_ms : 0;
}

/* Until when nothing is to be done unless a command comes; -1: for ever. */
static int idle_wait_ms(const struct session *s)
{
    int64_t now_ms = session_now_ns() / 1000000, due_ms = INT64_MAX;
    if (s->turns || s->jobs)
        due_ms = now_ms + CHECK_MS; /* others work on it: the watchdog is told that this is no standstill */
    int64_t unsaved_ms = unsaved_due_ms(s);
    if (unsaved_ms < due_ms)
        due_ms = unsaved_ms;
    if (s->oldest_hot && !s->oldest_hot->user && s->oldest_hot->last_used_ms + s->idle_ms + 1 < due_ms)
        due_ms = s->oldest_hot->last_used_ms + s->idle_ms + 1;
    if (s->storage && !s->retain.busy && s->retain.due_ms < due_ms && storage_limits_retain(s->storage))
        due_ms = s->retain.due_ms;
    if (due_ms == INT64_MAX)
        return -1;
    return due_ms <= now_ms ? 1 : due_ms - now_ms < INT_MAX ? (int)(due_ms - now_ms) : INT_MAX;
}

static void *engine_thread(void *arg)
{
    struct session *s = arg;
    (void)pthread_setname_np(pthread_self(), "convod-engine");
    bool busy = false;
    int hold = 0;
    int64_t deadline_ms = 0, now_ms = 0;
    for (;;) {
        int wait_ms = busy ? hold : idle_wait_ms(s);
        if (s->closing && (wait_ms < 0 || deadline_ms - now_ms < wait_ms))
            wait_ms = deadline_ms > now_ms ? (int)(deadline_ms - now_ms) : 1;
        run_commands(s, take_commands(s, wait_ms));
        now_ms = session_now_ns() / 1000000;
        pthread_mutex_lock(&s->lock);
        if (s->stop && !s->closing) {
            s->closing = true;
            deadline_ms = now_ms + s->drain_ms;
        }
        bool posted = s->commands != NULL;
        pthread_mutex_unlock(&s->lock);
        if (s->closing)
            build_close(s);
        unsaved_retry(s, s->closing);
        cancel_stopped(s);
        turn_begin_behind(s);
        turn_admit(s);
        bool moved = restore_run(s);
        hold = hold_ms(s);
        moved |= hold || step_run(s);
        moved |= aside_give_way(s);
        reap(s);
        query_retry(s);
        commit_retry(s);
        hot_evict_idle(s, now_ms - s->idle_ms);
        retention_tick(s);
        publish(s);
        busy = moved;
        if (s->closing && !posted && !s->turns && (s->jobs == 0 || now_ms >= deadline_ms))
            break;
    }
    return NULL;
}

/* ---- open and close ---- */

static int open_thread(struct session *s)
{
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr))
        return -ENOMEM;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (rc)
        return -rc;
    s->wake_made = true;
    s->thread_started = (rc = pthread_create(&s->thread, NULL, engine_thread, s)) == 0;
    return -rc;
}

/* Threads for what is to be restored: as many as there are cores for us, within what storage takes. */
static int readers(const struct session_opts *opts)
{
    cpu_set_t cores;
    int n = opts->readers;
    if (!n && sched_getaffinity(0, sizeof cores, &cores) == 0)
        n = CPU_COUNT(&cores);
    return n < 1 ? 1 : n > MAX_READERS ? MAX_READERS : n;
}

static int check_limits(int max_running, int max_waiting, int idle_ms, char *err, size_t err_size)
{
    if (max_running >= 1 && max_running <= SESSION_MAX_RUNNING && max_waiting >= 1 && idle_ms >= 0)
        return 0;
    snprintf(err, err_size, "max-running must be between 1 and %d, and max-waiting and the idle time positive",
             SESSION_MAX_RUNNING);
    return -EINVAL;
}

int session_check(const struct session_opts *opts, char *err, size_t err_size)
{
    int rc = check_limits(opts->max_running ? opts->max_running : MAX_RUNNING_DEFAULT,
                          opts->max_waiting ? opts->max_waiting : MAX_WAITING_DEFAULT, opts->idle_ms, err, err_size);
    return rc ? rc : engine_check(&opts->engine, err, err_size);
}

int session_open(const struct session_opts *opts, struct session **out, char *err, size_t err_size)
{
    struct session *s = calloc(1, sizeof *s);
    int rc = -ENOMEM, n_arrays;
    if (!s || pthread_mutex_init(&s->lock, NULL)) {
        free(s);
        snprintf(err, err_size, "out of memory");
        return rc;
    }
    s->commands_end = &s->commands;
    s->max_waiting = opts->max_waiting ? opts->max_waiting : MAX_WAITING_DEFAULT;
    s->max_running = opts->max_running ? opts->max_running : MAX_RUNNING_DEFAULT;
    s->idle_ms = opts->idle_ms ? opts->idle_ms : IDLE_MS_DEFAULT;
    s->max_step_ms = opts->max_step_ms;
    s->accept_any = opts->accept_kv_any;
    s->aside_most = opts->ram_bytes ? opts->ram_bytes : ASIDE_BYTES_DEFAULT;
    s->log = opts->log;
    s->log_arg = opts->log_arg;
    s->events = opts->events;
    s->events_arg = opts->events_arg;
    retention_start(s, opts->retain_wait_ms);
    if ((rc = check_limits(s->max_running, s->max_waiting, s->idle_ms, err, err_size)))
        goto fail;
    const struct storage_opts storage = {.dir = opts->data_dir,
                                         .ram_bytes = opts->ram_bytes,
                                         .disk_bytes = opts->disk_bytes,
                                         .readers = readers(opts),
                                         .log = opts->log,
                                         .log_arg = opts->log_arg};
    struct engine_opts engine = opts->engine;
    engine.need_chat = true; /* without it no turn could be rendered */
    engine.step_picks = s->max_running;
    if ((rc = storage_open(&storage, &s->storage, err, err_size)) ||
        (rc = limits_set(s->storage, &opts->limits, NULL, 0)) || (rc = engine_open(&engine, &s->engine, err, err_size)))
        goto fail;
    s->forms = engine_forms_new(s->engine);
    s->beside = engine_beside_new();
    s->builder = engine_beside_new();
    if (!s->forms || !s->beside || !s->builder) {
        snprintf(err, err_size, "out of memory");
        rc = -ENOMEM;
        goto fail;
    }
    s->info = engine_info(s->engine);
    /* A row takes some 24 n_embd^2 operations a layer, a token that it looks back at some 4 n_embd: a sixth of this. */
    s->cost.attention_most = 1.0 / s->info->n_embd;
    for (const char *note = s->info->notes; note; note = strchr(note, '\n') ? strchr(note, '\n') + 1 : NULL)
        session_log(s, LOG_WARNING, "%.*s", (int)strcspn(note, "\n"), note);
    if (s->info->backend_notes)
        session_log(s, LOG_INFO, "%s", s->info->backend_notes);
    if (s->info->host_layers)
        session_log(
            s, LOG_INFO,
            "%d of %d layers have their weights in host memory: every step brings %llu MiB over the bus, which takes "
            "%.1f ms",
            s->info->host_layers, s->info->n_layers, (unsigned long long)(s->info->host_bytes >> 20), s->info->host_ms);
    const struct engine_kv_array *arrays = engine_kv_layout(s->engine, &n_arrays);
    s->arrays = calloc((size_t)n_arrays, sizeof *s->arrays);
    if (!s->arrays) {
        snprintf(err, err_size, "out of memory");
        rc = -ENOMEM;
        goto fail;
    }
    for (int i = 0; i < n_arrays; i++)
        s->arrays[i] = (struct storage_array){(uint32_t)arrays[i].channels, arrays[i].channel_major};
    s->layout = (struct storage_layout){strcmp(s->info->kv_type, "f16") ? STORAGE_BF16 : STORAGE_F16, s->arrays,
                                        (uint32_t)n_arrays};
    if ((rc = open_thread(s))) {
        snprintf(err, err_size, "the engine thread could not be started: %s", strerror(-rc));
        goto fail;
    }
    *out = s;
    return 0;
fail:
    session_close(s, 0);
    return rc;
}

void ephemeral_free(struct ephemeral *e)
{
    e->gone = true;
    if (e->users)
        return;
    engine_tokens_free(&e->tokens);
    free(e->owner);
    free(e->response_id);
    free(e->instructions);
    free(e->tools);
    free(e->calls);
    free(e);
}

void ephemeral_let_go(struct ephemeral *e)
{
    e->users--;
    if (e->gone)
        ephemeral_free(e);
}

bool session_close(struct session *s, int drain_ms)
{
    if (!s)
        return true;
    int64_t deadline_ms = session_now_ns() / 1000000 + drain_ms;
    if (s->thread_started) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        s->drain_ms = drain_ms;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        s->thread_started = false;
    }
    query_abort(s); /* nobody goes on with them any more */
    /* Storage ends what it took; what it reports meanwhile is handled here, in the engine thread's place, and finds no
     * storage any more. */
    s->closing = true;
    int64_t left_ms = deadline_ms - session_now_ns() / 1000000;
    if (!storage_close_within(s->storage, left_ms > CLOSE_MS_MIN ? (int)left_ms : CLOSE_MS_MIN))
        return false; /* its threads may still come back to the session: it stays */
    s->storage = NULL;
    for (struct command *list; (list = take_commands(s, 0));)
        run_commands(s, list);
    reap(s);
    unsaved_marks_free(s);
    while (s->hots)
        hot_free(s, s->hots);
    while (s->ephemerals) {
        struct ephemeral *e = s->ephemerals;
        s->ephemerals = e->next;
        ephemeral_free(e);
    }
    engine_beside_free(s->beside);
    engine_beside_free(s->builder);
    engine_forms_free(s->forms);
    engine_close(s->engine);
    free(s->arrays);
    free(s->idle);
    free(s->owners);
    live_free(s);
    if (s->wake_made)
        pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return true;
}

const struct engine_info *session_model(const struct session *s)
{
    return s->info;
}

int session_tokenize(const struct session *s, const char *text, size_t len, bool add_special, struct engine_tokens *out)
{
    return engine_tokenize(s->engine, text, len, add_special, out);
}

const char *session_token_bytes(const struct session *s, engine_token id, size_t *len)
{
    return engine_token_bytes(s->engine, id, len);
}

void session_status(struct session *s, struct session_status *out)
{
    struct storage_stats stats;
    storage_stats(s->storage, &stats);
    pthread_mutex_lock(&s->lock);
    *out = s->published;
    int64_t progress_ms = s->published_progress_ms;
    pthread_mutex_unlock(&s->lock);
    out->ram_used = stats.ram_used;
    out->ram_budget = stats.ram_budget;
    out->disk_used = stats.disk_used;
    out->disk_budget = stats.disk_budget;
    out->segments = stats.segments;
    out->saved_bytes = stats.encoded_bytes;
    out->save_us = stats.save_us;
    out->quota_refusals = atomic_load(&s->quota_refusals);
    out->device_known = engine_device(s->engine, &out->device);
    out->stuck = out->running + out->ahead > 0 && progress_ms && session_now_ns() / 1000000 - progress_ms > STUCK_MS;
}

int session_retry_s(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    int running = s->published.running > 0 ? s->published.running : 1;
    double seconds = s->published.turn_ms / 1000 * s->published.waiting / running;
    pthread_mutex_unlock(&s->lock);
    return seconds >= RETRY_S_MAX ? RETRY_S_MAX : (int)seconds + 1;
}

/* ---- turns from outside ---- */

static bool contradicts_itself(const struct session_turn *r)
{
    bool calls = r->tools && r->tool_choice != SESSION_TOOLS_NONE;
    if (r->continues && (r->n_items || r->opening || r->conversation || r->previous || r->match || !r->store))
        return true;
    if ((r->opening || r->continues) && (r->form || r->raw || !r->generate || r->tool_choice == SESSION_TOOLS_REQUIRED))
        return true;
    return (r->form && calls && !r->call_form) || r->n_bias < 0 || r->n_bias > ENGINE_BIAS_MAX;
}

int session_turn_start(struct session *s, const struct session_turn *r)
{
    bool failed = false;
    struct turn *t = calloc(1, sizeof *t);
    struct session_texts *texts = r->texts ? r->texts : session_texts_new(r->items, r->n_items);
    bool refused = contradicts_itself(r);
    if (refused || !t || !texts) {
        session_texts_free(texts);
        free(t);
        return refused ? -EINVAL : -ENOMEM;
    }
    t->session = s;
    t->owner = copy_text(r->owner, &failed);
    t->response_id = copy_text(r->response_id, &failed);
    t->conversation = copy_text(r->conversation, &failed);
    t->previous = copy_text(r->previous, &failed);
    t->parent = copy_text(r->parent, &failed);
    t->replaces = copy_text(r->replaces, &failed);
    t->instructions = copy_text(r->instructions, &failed);
    t->params = copy_text(r->params, &failed);
    t->key = copy_text(r->key, &failed);
    t->request = copy_text(r->request, &failed);
    t->tools = copy_text(r->tools, &failed);
    t->tool = copy_text(r->tool, &failed);
    t->callable = copy_text(r->callable, &failed);
    t->labels = copy_text(r->labels, &failed);
    t->opening = copy_text(r->opening, &failed);
    t->continues = copy_text(r->continues, &failed);
    t->copy_of = copy_text(r->copy_of, &failed);
    t->tool_choice = r->tool_choice;
    t->ask.one_call = r->one_call;
    t->stops = calloc(r->n_stops + 1, sizeof *t->stops);
    failed |= !t->stops;
    t->created_ms = session_wall_ms();
    for (size_t i = 0; !failed && i < r->n_stops; i++) {
        t->stops[t->n_stops] = copy_text(r->stops[i], &failed);
        t->n_stops += !failed;
    }
    t->sampling = r->sampling;
    if (r->n_bias) {
        t->bias = malloc((size_t)r->n_bias * sizeof *t->bias);
        failed |= !t->bias;
        if (t->bias)
            memcpy(t->bias, r->bias, (size_t)r->n_bias * sizeof *t->bias);
        t->n_bias = r->n_bias;
    }
    t->form.of_answer = engine_form_share(r->form);
    t->form.of_calls = engine_form_share(r->call_form);
    t->max_output_tokens = r->max_output_tokens;
    t->thinking_tokens = r->thinking_tokens;
    t->effort = r->effort;
    t->ask.logprobs = r->logprobs;
    t->n_top = r->n_top < SESSION_TOP_MAX ? r->n_top : SESSION_TOP_MAX;
    t->ask.match = r->match;
    t->ask.store = r->store;
    t->ask.generate = r->generate;
    t->ask.count = r->count;
    t->ask.raw = r->raw;
    t->ask.truncate = r->truncate;
    t->ask.current_turn = r->current_turn;
    t->ask.keeps = r->keeps;
    failed = failed || (r->n_tokens && engine_tokens_append(&t->raw_tokens, r->tokens, r->n_tokens));
    t->ask.background = r->background || !r->generate;
    t->event = r->event;
    t->arg = r->arg;
    t->ask.retry = r->retry;
    t->ask.requeued = r->requeued;
    t->ask.begins = r->begins;
    if (r->digest) {
        t->ask.has_digest = true;
        memcpy(t->digest, r->digest, sizeof t->digest);
    }
    t->received_ns = session_now_ns();
    texts_give(texts, t);
    if (failed || session_post(s, turn_begin, t)) {
        turn_free(t);
        return -ENOMEM;
    }
    return 0;
}

struct target {
    struct session *session;
    char *owner, *response_id;
    enum session_stop why;
};

static void target_free(struct target *target)
{
    free(target->owner);
    free(target->response_id);
    free(target);
}

static void cancel(struct session *s, void *arg)
{
    struct target *target = arg;
    for (struct turn *t = s->turns; t; t = t->next)
        if (!strcmp(t->response_id, target->response_id) && !strcmp(t->owner, target->owner)) {
            t->end.abandoned = target->why == SESSION_STOP_ABANDONED && (!t->end.cancelled || t->end.abandoned);
            t->end.cancelled = true;
        }
    target_free(target);
}

static void forget(struct session *s, void *arg)
{
    struct target *target = arg;
    bool found = false; /* it is this owner's */
    for (struct ephemeral **p = &s->ephemerals; *p;) {
        struct ephemeral *e = *p;
        if (!strcmp(e->response_id, target->response_id) && !strcmp(e->owner, target->owner)) {
            *p = e->next;
            ephemeral_free(e);
            found = true;
        } else {
            p = &e->next;
        }
    }
    for (struct hot *h = s->hots, *next; h; h = next) {
        next = h->next;
        if (found && !h->user && h->ephemeral && !strcmp(h->ephemeral, target->response_id))
            hot_free(s, h);
    }
    target_free(target);
}

static struct target *target_new(struct session *s, const char *owner, const char *response_id)
{
    struct target *target = calloc(1, sizeof *target);
    if (!target)
        return NULL;
    target->session = s;
    target->owner = strdup(owner);
    target->response_id = strdup(response_id);
    if (target->owner && target->response_id)
        return target;
    target_free(target);
    return NULL;
}

void session_cancel(struct session *s, const char *owner, const char *response_id, enum session_stop why)
{
    struct target *target = target_new(s, owner, response_id);
    if (target)
        target->why = why;
    if (target && session_post(s, cancel, target))
        target_free(target);
}

void session_forget(struct session *s, const char *owner, const char *response_id)
{
    struct target *target = target_new(s, owner, response_id);
    if (target && session_post(s, forget, target))
        target_free(target);
}

static int delivered_run(struct storage_ledger *l, void *arg)
{
    struct target *target = arg;
    struct storage_owner owner;
    int rc = storage_owner_get(l, target->owner, &owner);
    return rc ? rc : storage_turn_set_delivered(l, owner.id, target->response_id);
}

static void delivered_done(void *arg, int rc)
{
    (void)rc; /* it may have been deleted */
    target_free(arg);
}

static void delivered(struct session *s, void *arg)
{
    if (!s->storage ||
        storage_submit(s->storage, (struct storage_job){
                                       .run = delivered_run, .done = delivered_done, .arg = arg, .unsynced = true}))
        target_free(arg);
}

void session_delivered(struct session *s, const char *owner, const char *response_id)
{
    struct target *target = target_new(s, owner, response_id);
    if (target && session_post(s, delivered, target))
        target_free(target);
}

bool session_disk_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* ---- what waits in the ledger ---- */

struct queued_fail {
    char *owner, *response_id, *reason;
};

static int queued_fail_run(struct storage_ledger *l, void *arg)
{
    struct queued_fail *q = arg;
    struct storage_owner owner;
    struct storage_turn turn;
    int rc = storage_owner_get(l, q->owner, &owner);
    if (!rc)
        rc = storage_turn_get(l, owner.id, q->response_id, 0, &turn);
    if (rc)
        return rc;
    rc = storage_turn_fail(l, turn.id, q->reason, session_wall_ms());
    storage_turn_free(&turn);
    return rc;
}

/* If it could not be written the next start tries it again. */
static void queued_fail_done(void *arg, int rc)
{
    struct queued_fail *q = arg;
    (void)rc;
    free(q->owner);
    free(q->response_id);
    free(q->reason);
    free(q);
}

void session_queued_fail(struct session *s, const char *owner, const char *response_id, const char *reason)
{
    struct queued_fail *q = malloc(sizeof *q);
    if (!q)
        return;
    *q = (struct queued_fail){strdup(owner), strdup(response_id), strdup(reason)};
    if (!q->owner || !q->response_id || !q->reason ||
        storage_submit(s->storage, (struct storage_job){.run = queued_fail_run, .done = queued_fail_done, .arg = q}))
        queued_fail_done(q, -ENOMEM);
}

struct requeue {
    void (*each)(void *arg, const char *owner, const char *response_id, const char *request);
    void *arg;
};

static int requeue_run(struct storage_ledger *l, void *arg)
{
    struct requeue *r = arg;
    int64_t id = 0;
    for (;;) {
        char *owner = NULL, *response_id = NULL, *request = NULL;
        int rc = storage_turn_queued(l, id, &id, &owner, &response_id, &request);
        if (rc)
            return rc == -ENOENT ? 0 : rc;
        r->each(r->arg, owner, response_id, request);
        free(owner);
        free(response_id);
        free(request);
    }
}

static void requeue_done(void *arg, int rc)
{
    struct requeue *r = arg;
    (void)rc;
    r->each(r->arg, NULL, NULL, NULL);
    free(r);
}

int session_requeue(struct session *s,
                    void (*each)(void *arg, const char *owner, const char *response_id, const char *request), void *arg)
{
    struct requeue *r = malloc(sizeof *r);
    if (!r)
        return -ENOMEM;
    *r = (struct requeue){each, arg};
    int rc = storage_submit(s->storage, (struct storage_job){.run = requeue_run, .done = requeue_done, .arg = r});
    if (rc)
        free(r);
    return rc;
}

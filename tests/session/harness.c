/* harness.c - see harness.h. */
#include "tests/session/harness.h"

#include "storage/storage_internal.h"
#include <dirent.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_S 300 /* a test that waits longer than this has failed */

/* ---- waiting ---- */

static void deadline(struct timespec *until)
{
    clock_gettime(CLOCK_REALTIME, until);
    until->tv_sec += PATIENCE_S;
}

void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n++;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

void gate_wait(struct gate *g, int n)
{
    struct timespec until;
    deadline(&until);
    pthread_mutex_lock(&g->lock);
    while (g->n < n && pthread_cond_timedwait(&g->cond, &g->lock, &until) == 0)
        ;
    bool opened = g->n >= n;
    pthread_mutex_unlock(&g->lock);
    if (!opened) {
        (void)fprintf(stderr, "a gate was not opened\n");
        abort();
    }
}

/* ---- the session ---- */

static void count_log(void *arg, int priority, const char *text)
{
    struct rig *rig = arg;
    if (getenv("CONVOD_TEST_LOG"))
        (void)fprintf(stderr, "<%d> %s\n", priority, text);
    pthread_mutex_lock(&rig->lock);
    rig->n_logged += priority <= 4;
    pthread_mutex_unlock(&rig->lock);
}

static size_t page_bytes(const struct tiny_model *m)
{
    return (size_t)m->n_layers * (size_t)m->n_kv_heads * (size_t)m->head_dim * 64 * 2 * 2;
}

static struct tiny_model model_of(struct rig_opts o)
{
    struct tiny_model m = tiny_model_of((enum tiny_arch)o.arch);
    m.ctx = o.ctx ? o.ctx : 4096;
    m.tools = o.tools;
    m.n_vocab = o.tools > TINY_HERMES ? TINY_FAMILY_TOKENS : m.n_vocab;
    m.spm = o.spm;
    m.thinks = o.thinks;
    if (m.arch == TINY_QWEN2) { /* smaller still: many tokens run through it, also under sanitizers */
        m.n_layers = m.n_heads = 2;
        m.n_embd = 32;
        m.n_ff = 48;
        m.n_kv_heads = 1;
    }
    return m;
}

/* The same model whatever else is set; one row of the embedding holds NaN where the test wants it. */
static char *model_save(struct rig_opts o)
{
    struct tiny_model m = model_of(o);
    if (!o.nan_byte)
        return tiny_model_save(&m);
    size_t n = (size_t)m.n_vocab * (size_t)m.n_embd;
    float *rows = calloc(n, sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < n; i++)
        rows[i] = i / (size_t)m.n_embd == (unsigned char)o.nan_byte ? NAN : (float)(i * 7919 % 1000) / 1000.0f - 0.5f;
    struct gguf_writer *w = gguf_writer_new();
    m.omit = "token_embd.weight";
    tiny_model_write(&m, w);
    const uint64_t dims[] = {(uint64_t)m.n_embd, (uint64_t)m.n_vocab};
    gguf_writer_tensor(w, "token_embd.weight", KERNELS_F32, 2, dims, rows, n * sizeof *rows);
    char *path = tiny_model_save_writer(w);
    gguf_writer_free(w);
    free(rows);
    return path;
}

void rig_start(struct rig *rig, struct rig_opts o)
{
    char err[512] = "";
    struct tiny_model m = model_of(o);
    size_t pages = o.kv_pages ? (size_t)o.kv_pages : 1024;
    const struct session_opts opts = {.engine = {.model_path = rig->model,
                                                 .numerics = "exact", /* where a device is in the program */
                                                 .threads = o.threads ? o.threads : 1,
                                                 .kv_bytes = pages * page_bytes(&m),
                                                 .step_tokens = o.step_tokens},
                                      .data_dir = rig->dir,
                                      .ram_bytes = o.ram_bytes,
                                      .accept_kv_any = o.accept_kv_any,
                                      .disk_bytes = o.disk_bytes ? o.disk_bytes : (uint64_t)256 << 20,
                                      .max_running = o.max_running,
                                      .max_waiting = o.max_waiting,
                                      .idle_ms = o.idle_ms,
                                      .limits = o.limits,
                                      .retain_wait_ms = o.retain_wait_ms ? o.retain_wait_ms : 1,
                                      .log = count_log,
                                      .log_arg = rig};
    rig->o = o;
    if (session_open(&opts, &rig->s, err, sizeof err))
        fail_msg("%s", err);
}

void rig_change_model(struct rig *rig)
{
    struct tiny_model m = model_of(rig->o);
    m.seed = 4711;
    rig_stop(rig);
    tiny_model_remove(rig->model);
    rig->model = tiny_model_save(&m);
    rig_start(rig, rig->o);
}

struct rig *rig_open(struct rig_opts o)
{
    struct rig *rig = calloc(1, sizeof *rig);
    assert_non_null(rig);
    assert_int_equal(pthread_mutex_init(&rig->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&rig->cond, NULL), 0);
    rig->dir = strdup(access("/dev/shm", W_OK) ? "/tmp/convod-session-XXXXXX" : "/dev/shm/convod-session-XXXXXX");
    assert_non_null(rig->dir);
    assert_non_null(mkdtemp(rig->dir));
    rig->model = model_save(o);
    rig_start(rig, o);
    return rig;
}

void rig_stop_within(struct rig *rig, int drain_ms)
{
    (void)(session_close(rig->s, drain_ms) || session_close(rig->s, 60000));
    rig->s = NULL;
}

void rig_stop(struct rig *rig)
{
    rig_stop_within(rig, 60000);
}

void rig_close(struct rig *rig)
{
    rig_stop(rig);
    DIR *d = opendir(rig->dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
    closedir(d);
    assert_int_equal(rmdir(rig->dir), 0);
    while (rig->answers) {
        struct answer *a = rig->answers;
        rig->answers = a->next;
        free(a->text);
        free(a->logprobs);
        free(a);
    }
    free(rig->dir);
    tiny_model_remove(rig->model);
    pthread_mutex_destroy(&rig->lock);
    pthread_cond_destroy(&rig->cond);
    free(rig);
}

uint64_t rig_segments(struct rig *rig)
{
    struct storage_stats stats;
    storage_stats(rig->s->storage, &stats);
    return stats.segments;
}

/* ---- turns ---- */

static void keep(char *to, size_t size, const char *text)
{
    snprintf(to, size, "%s", text ? text : "");
}

static void take_done(struct answer *a, const struct session_event *ev)
{
    if (!ev->receipt) { /* it was only counted */
        a->input = ev->input_tokens;
        return;
    }
    if (a->item_open)
        a->broken = "an item did not end";
    keep(a->conversation, sizeof a->conversation, ev->conversation);
    keep(a->reason, sizeof a->reason, ev->reason);
    a->incomplete = ev->incomplete;
    a->stopped_by_string = ev->stop != NULL;
    keep(a->stop, sizeof a->stop, ev->stop);
    a->input = ev->input_tokens;
    a->cached = ev->cached_tokens;
    a->output = ev->output_tokens;
    a->receipt = *ev->receipt;
    keep(a->receipt_conversation, sizeof a->receipt_conversation, ev->receipt->conversation);
    if (ev->incomplete != (ev->reason != NULL))
        a->broken = "incomplete and its reason disagree";
    if (strcmp(a->receipt_conversation, a->conversation) != 0)
        a->broken = "the receipt names another conversation";
}

static void take_item(struct answer *a, const struct session_item *item)
{
    size_t n = strlen(a->kinds);
    if (n + 1 < sizeof a->kinds)
        a->kinds[n] = (char)(item->incomplete ? item->kind[0] - 'a' + 'A' : item->kind[0]);
    if (!strcmp(item->kind, "function_call")) {
        char *id = items_field(item->body, "call_id"), *name = items_field(item->body, "name");
        keep(a->call_id, sizeof a->call_id, id);
        keep(a->name, sizeof a->name, name);
        free(id);
        free(name);
    }
}

static void take_logprobs(struct answer *a, const struct session_event *ev)
{
    size_t n = a->n_logprobs + ev->n_logprobs;
    struct session_logprob *grown = ev->n_logprobs ? realloc(a->logprobs, n * sizeof *grown) : NULL;
    if (!grown)
        return;
    memcpy(grown + a->n_logprobs, ev->logprobs, ev->n_logprobs * sizeof *grown);
    a->logprobs = grown;
    a->n_logprobs = n;
}

/* Of a message the text that it was made to begin with, or, behind thinking, that from its first letter on. */
static size_t untold_bytes(const char *opening, const struct session_item *item)
{
    bool whole = opening && !strncmp(item->text, opening, strlen(opening));
    opening += opening && !whole ? strspn(opening, " \n") : 0;
    return opening && !strncmp(item->text, opening, strlen(opening)) ? strlen(opening) : 0;
}

static void take(struct answer *a, const struct session_event *ev)
{
    size_t untold;
    a->n_events++;
    take_logprobs(a, ev);
    if (a->over)
        a->broken = "an event after the terminal one";
    if (!a->started && ev->kind != SESSION_EVENT_STARTED && ev->kind != SESSION_EVENT_FAILED &&
        ev->kind != SESSION_EVENT_STORED && !(ev->kind == SESSION_EVENT_DONE && !ev->receipt))
        a->broken = "an event before STARTED";
    switch (ev->kind) {
    case SESSION_EVENT_STARTED:
        if (a->started)
            a->broken = "STARTED twice";
        a->started = true;
        keep(a->conversation, sizeof a->conversation, ev->conversation);
        break;
    case SESSION_EVENT_PROGRESS:
        a->n_restore += !strcmp(ev->stage, "restore");
        a->n_prefill += !strcmp(ev->stage, "prefill");
        break;
    case SESSION_EVENT_ITEM:
        if (a->item_open || ev->item->len)
            a->broken = "an item within another, or one that begins with its text";
        a->item_open = true;
        a->item_at = a->len;
        a->n_items++;
        break;
    case SESSION_EVENT_ITEM_END:
        untold = a->n_items == 1 ? untold_bytes(a->opening, ev->item) : 0;
        if (!a->item_open || ev->item->len - untold != a->len - a->item_at ||
            (ev->item->len > untold &&
             memcmp(ev->item->text + untold, a->text + a->item_at, ev->item->len - untold) != 0))
            a->broken = "an item is not what its deltas said";
        a->item_open = false;
        take_item(a, ev->item);
        break;
    case SESSION_EVENT_DELTA: {
        if (!a->item_open)
            a->broken = "a delta of no item";
        char *grown = realloc(a->text, a->len + ev->len);
        if (ev->len == 0 || !grown) {
            a->broken = "an empty delta";
            break;
        }
        a->n_delta++;
        a->text = grown;
        memcpy(a->text + a->len, ev->text, ev->len);
        a->len += ev->len;
        break;
    }
    case SESSION_EVENT_DONE:
        take_done(a, ev);
        a->over = true;
        break;
    case SESSION_EVENT_STORED:
        if (a->started)
            a->broken = "STORED after STARTED";
        a->repeated = a->over = true;
        keep(a->stored, sizeof a->stored, ev->stored->id);
        keep(a->stored_status, sizeof a->stored_status, ev->stored->status);
        break;
    case SESSION_EVENT_FAILED:
        a->failed = a->over = true;
        a->failure = ev->failure;
        keep(a->message, sizeof a->message, ev->message);
        break;
    }
}

static void on_event(void *arg, const struct session_event *ev)
{
    struct answer *a = arg;
    bool last = ev->kind == SESSION_EVENT_DONE || ev->kind == SESSION_EVENT_FAILED || ev->kind == SESSION_EVENT_STORED;
    if (a->hook && last) /* before the test goes on */
        a->hook(a, ev, a->hook_arg);
    pthread_mutex_lock(&a->rig->lock);
    take(a, ev);
    pthread_cond_broadcast(&a->rig->cond);
    pthread_mutex_unlock(&a->rig->lock);
    if (a->hook && !last)
        a->hook(a, ev, a->hook_arg);
}

struct answer *rig_begin(struct rig *rig, struct ask ask)
{
    struct answer *a = calloc(1, sizeof *a);
    assert_non_null(a);
    *a = (struct answer){
        .rig = rig, .next = rig->answers, .opening = ask.opening, .hook = ask.hook, .hook_arg = ask.hook_arg};
    rig->answers = a;
    snprintf(a->id, sizeof a->id, "resp_%u", ++rig->n_ids);
    struct session_item items[64];
    struct engine_message one = {.role = ENGINE_USER, .text = ask.text, .len = ask.text ? strlen(ask.text) : 0};
    const struct engine_message *messages = ask.messages ? ask.messages : &one;
    size_t at, n = ask.messages ? ask.n_messages : ask.text != NULL;
    assert_true(n <= sizeof items / sizeof *items);
    for (size_t i = 0; i < n; i++)
        items[i] = (struct session_item){
            .kind = "message", .role = messages[i].role, .text = messages[i].text, .len = messages[i].len};
    for (size_t i = 0; i < ask.n_items; i++)
        items[i] = ask.items[i];
    n = ask.items ? ask.n_items : n;
    const unsigned char digest[SESSION_DIGEST_BYTES] = {(unsigned char)ask.digest, (unsigned char)(ask.digest >> 8)};
    struct engine_form *form = NULL, *call_form = NULL;
    char err[256];
    if (ask.schema)
        assert_int_equal(
            engine_form_new(ENGINE_FORM_SCHEMA, ask.schema, strlen(ask.schema), false, &form, err, sizeof err), 0);
    if (ask.calls)
        assert_int_equal(engine_form_calls(session_model(rig->s)->calls, ask.calls, strlen(ask.calls), &call_form, &at,
                                           err, sizeof err),
                         0);
    const struct session_turn t = {.owner = ask.owner ? ask.owner : "ann",
                                   .response_id = a->id,
                                   .conversation = ask.conversation,
                                   .previous = ask.previous,
                                   .parent = ask.parent,
                                   .replaces = ask.replaces,
                                   .continues = ask.continues,
                                   .opening = ask.opening,
                                   .match = ask.match,
                                   .items = items,
                                   .n_items = n,
                                   .instructions = ask.instructions,
                                   .tools = ask.tools,
                                   .tool_choice = ask.choice,
                                   .tool = ask.tool,
                                   .labels = ask.labels,
                                   .one_call = ask.one_call,
                                   .thinking_tokens = ask.thinking_tokens,
                                   .effort = ask.effort,
                                   .sampling = {.temperature = ask.temperature > 0 ? ask.temperature : 1.0f,
                                                .top_p = 1.0f,
                                                .repetition_penalty = 1.0f,
                                                .seed = ask.seed},
                                   .bias = ask.bias,
                                   .n_bias = ask.n_bias,
                                   .form = form,
                                   .call_form = call_form,
                                   .stops = &ask.stop,
                                   .n_stops = ask.stop != NULL,
                                   .logprobs = ask.logprobs,
                                   .n_top = ask.n_top,
                                   .max_output_tokens = ask.max ? ask.max : 8,
                                   .store = !ask.ephemeral,
                                   .generate = !ask.warm,
                                   .count = ask.count,
                                   .raw = ask.raw,
                                   .truncate = ask.truncate,
                                   .current_turn = ask.current_turn,
                                   .key = ask.key,
                                   .digest = ask.digest ? digest : NULL,
                                   .retry = ask.retry,
                                   .background = ask.request != NULL,
                                   .request = ask.request,
                                   .requeued = ask.requeued,
                                   .copy_of = ask.copy_of,
                                   .begins = ask.begins,
                                   .event = on_event,
                                   .arg = a};
    assert_int_equal(session_turn_start(rig->s, &t), 0);
    engine_form_free(form); /* the turn has its own share */
    engine_form_free(call_form);
    return a;
}

/* What must hold of every receipt. */
static void check_receipt(const struct answer *a)
{
    const struct session_receipt *r = &a->receipt;
    int again = 0, own = 0;
    for (int i = 0; i < r->n_reprefilled; i++) {
        assert_true(r->reprefilled[i].tokens > 0);
        again += r->reprefilled[i].tokens;
        own += !strcmp(r->reprefilled[i].reason, "put_aside") ? r->reprefilled[i].tokens : 0;
    }
    assert_true(r->hot >= 0 && r->ram >= 0 && r->disk >= 0 && r->fresh >= 0);
    assert_int_equal(r->history, r->hot + r->ram + r->disk + again - own);
    assert_int_equal(r->prefilled, r->fresh + again);
    assert_int_equal(r->output, a->output);
    assert_int_equal(a->cached, r->hot + r->ram + r->disk);
    bool cut_short = a->incomplete && (!strcmp(a->reason, "cancelled") || !strcmp(a->reason, "abandoned") ||
                                       !strcmp(a->reason, "shutdown") || !strcmp(a->reason, "yielded"));
    if (cut_short)
        assert_true(r->history + r->fresh <= a->input);
    else
        assert_int_equal(r->history + r->fresh, a->input);
    assert_true(r->queue_ms >= 0 && r->restore_ms >= 0 && r->prefill_ms >= 0 && r->ttft_ms >= 0);
}

void rig_end(struct answer *a)
{
    struct rig *rig = a->rig;
    struct timespec until;
    deadline(&until);
    pthread_mutex_lock(&rig->lock);
    while (!a->over && pthread_cond_timedwait(&rig->cond, &rig->lock, &until) == 0)
        ;
    bool over = a->over;
    const char *broken = a->broken;
    pthread_mutex_unlock(&rig->lock);
    if (!over)
        fail_msg("%s did not end", a->id);
    if (broken)
        fail_msg("%s: %s", a->id, broken);
    if (!a->failed && !a->repeated && a->started)
        check_receipt(a);
}

struct answer *rig_ask(struct rig *rig, struct ask ask)
{
    struct answer *a = rig_begin(rig, ask);
    rig_end(a);
    if (a->failed)
        fail_msg("%s failed (%d): %s", a->id, a->failure, a->message);
    return a;
}

void rig_refused(struct rig *rig, struct ask ask, enum session_failure failure)
{
    struct answer *a = rig_begin(rig, ask);
    rig_end(a);
    assert_true(a->failed);
    assert_int_equal(a->failure, failure);
    assert_true(a->message[0]);
}

void rig_only_new(const struct answer *a)
{
    assert_int_equal(a->receipt.prefilled, a->receipt.fresh);
    assert_int_equal(a->receipt.n_reprefilled, 0);
}

char *rig_text(uint64_t seed, int n)
{
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        text[i] = "abcdfgijkmnpqrstuvwxyz 345"[(seed >> 33) % 26];
    }
    text[n] = 0;
    return text;
}

/* ---- queries ---- */

struct result {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t cond;
    bool over;
    int rc;
    char head[64], tier[64], saved[64], status[64], text[1024];
};
#define RESULT                                                                                                         \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER                                            \
    }

static void on_result(void *arg, const struct session_result *r)
{
    struct result *to = arg;
    pthread_mutex_lock(&to->lock);
    to->rc = r->rc;
    if (r->n_conversations) {
        keep(to->head, sizeof to->head, r->conversations[0].head);
        keep(to->tier, sizeof to->tier, r->conversations[0].tier);
    }
    if (r->n_responses) {
        keep(to->status, sizeof to->status, r->responses[0].status);
        const char *at = r->responses[0].receipt ? strstr(r->responses[0].receipt, "\"saved\":\"") : NULL;
        keep(to->saved, sizeof to->saved, at ? at + 9 : "");
        to->saved[strcspn(to->saved, "\"")] = 0;
        for (size_t i = 0, len = 0; i < r->responses[0].n_items; i++) {
            const struct session_item *item = &r->responses[0].items[i];
            if (item->output)
                len += (size_t)snprintf(to->text + len, sizeof to->text - len, "%.*s", (int)item->len, item->text);
            assert_true(len < sizeof to->text);
        }
    }
    to->over = true;
    pthread_cond_signal(&to->cond);
    pthread_mutex_unlock(&to->lock);
}

static int wait_result(int posted, struct result *r)
{
    struct timespec until;
    assert_int_equal(posted, 0);
    deadline(&until);
    pthread_mutex_lock(&r->lock);
    while (!r->over && pthread_cond_timedwait(&r->cond, &r->lock, &until) == 0)
        ;
    bool over = r->over;
    pthread_mutex_unlock(&r->lock);
    assert_true(over);
    return r->rc;
}

int rig_create(struct rig *rig, const char *owner, const char *id, const char *instructions)
{
    struct result r = RESULT;
    return wait_result(
        session_conversation_create(rig->s, owner, id, "a title", NULL, instructions, NULL, NULL, on_result, &r), &r);
}

int rig_evict(struct rig *rig, const char *owner, const char *conversation, bool to_disk)
{
    struct result r = RESULT;
    return wait_result(session_conversation_evict(rig->s, owner, conversation, to_disk, on_result, &r), &r);
}

int rig_delete(struct rig *rig, const char *owner, const char *conversation)
{
    struct result r = RESULT;
    return wait_result(session_conversation_delete(rig->s, owner, conversation, on_result, &r), &r);
}

int rig_delete_response(struct rig *rig, const char *owner, const char *id)
{
    struct result r = RESULT;
    return wait_result(session_response_delete(rig->s, owner, id, on_result, &r), &r);
}

int rig_head(struct rig *rig, const char *owner, const char *conversation, char out[64])
{
    struct result r = RESULT;
    int rc = wait_result(session_conversation_get(rig->s, owner, conversation, on_result, &r), &r);
    keep(out, 64, r.head);
    return rc;
}

int rig_tier(struct rig *rig, const char *owner, const char *conversation, char out[64])
{
    struct result r = RESULT;
    int rc = wait_result(session_conversation_get(rig->s, owner, conversation, on_result, &r), &r);
    keep(out, 64, r.tier);
    return rc;
}

int rig_text_stored(struct rig *rig, const char *owner, const char *id, char out[1024])
{
    struct result r = RESULT;
    int rc = wait_result(session_response_get(rig->s, owner, id, on_result, &r), &r);
    keep(out, 1024, r.text);
    return rc;
}

int rig_stored(struct rig *rig, const char *owner, const char *id, char saved[64], char status[64])
{
    struct result r = RESULT;
    int rc = wait_result(session_response_get(rig->s, owner, id, on_result, &r), &r);
    keep(saved, 64, r.saved);
    keep(status, 64, r.status);
    return rc;
}

/* The engine thread's own view, looked at between two of its steps. */
struct look {
    struct gate gate;
    int saves;
};

static void look_saves(struct session *s, void *arg)
{
    struct look *look = arg;
    look->saves = s->saves + (s->discards != NULL);
    gate_open(&look->gate);
}

void rig_saved(struct rig *rig)
{
    /* A turn's saving begins before its terminal event, and every look waits for the engine's next loop. */
    struct look look = {.gate = GATE_CLOSED, .saves = 1};
    for (int n = 1; look.saves > 0; n++) {
        assert_int_equal(session_post(rig->s, look_saves, &look), 0);
        gate_wait(&look.gate, n);
    }
}

/* ---- what is stored ---- */

struct keeping {
    struct rig *rig;
    const char *owner, *id;
    struct kept *kept;
    struct storage_found found[64];
    int used[64], n;
};

static int keeping_take(void *arg, struct storage_found *found, int pos, int used)
{
    struct keeping *k = arg;
    if (k->n == 64 || pos != k->kept->n_stored)
        return -E2BIG;
    k->found[k->n] = *found;
    k->used[k->n++] = used;
    k->kept->n_stored += used;
    return 0;
}

static int keeping_run(struct storage_ledger *l, void *arg)
{
    static const uint8_t root[STORAGE_KEY_BYTES];
    struct keeping *k = arg;
    struct engine_tokens tokens = {0};
    struct storage_owner owner;
    struct storage_turn turn;
    int rc = storage_owner_get(l, k->owner, &owner);
    if (rc || (rc = storage_turn_get(l, owner.id, k->id, 0, &turn)))
        return rc;
    rc = context_of_turn(l, owner.id, turn.id, &tokens);
    storage_turn_free(&turn);
    k->kept->tokens = tokens.ids;
    k->kept->n_tokens = (int)tokens.n;
    if (!rc)
        rc = lookup_walk(l, k->rig->s, &owner, root, tokens.ids, 0, (int)tokens.n, keeping_take, k);
    return rc;
}

struct waiting {
    struct gate gate;
    int rc;
};

static void keeping_done(void *arg, int rc)
{
    struct waiting *w = arg;
    w->rc = rc;
    gate_open(&w->gate);
}

static int nothing(struct storage_ledger *l, void *arg)
{
    (void)l, (void)arg;
    return 0;
}

void rig_ledger(struct rig *rig)
{
    struct waiting w = {.gate = GATE_CLOSED};
    for (int n = 1; n <= 2; n++) { /* the second begins after what follows the first one's commit */
        assert_int_equal(
            storage_submit(rig->s->storage, (struct storage_job){.run = nothing, .done = keeping_done, .arg = &w}), 0);
        gate_wait(&w.gate, n);
    }
}

static int let_go_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    return segment_let_go(l);
}

void rig_settle(struct rig *rig)
{
    assert_int_equal(jobs_call(rig->s->storage, let_go_run, NULL), 0);
    rig_ledger(rig);
}

struct keeping_job {
    struct keeping k;
    struct waiting w;
};

static int job_run(struct storage_ledger *l, void *arg)
{
    return keeping_run(l, &((struct keeping_job *)arg)->k);
}

static void job_done(void *arg, int rc)
{
    keeping_done(&((struct keeping_job *)arg)->w, rc);
}

static void read_done(void *arg, struct storage_read_result result)
{
    keeping_done(arg, result.rc);
}

/* The first `used` of `count` tokens of a payload, array by array. */
static void cut_payload(const struct session *s, const uint8_t *payload, size_t count, size_t used, uint8_t *out)
{
    for (uint32_t a = 0; a < s->layout.n_arrays; a++) {
        size_t channels = s->arrays[a].channels;
        for (size_t c = 0; s->arrays[a].channel_major && c < channels; c++, out += 2 * used)
            memcpy(out, payload + c * count * 2, 2 * used);
        if (!s->arrays[a].channel_major) {
            memcpy(out, payload, channels * used * 2);
            out += channels * used * 2;
        }
        payload += channels * count * 2;
    }
}

struct kept rig_kept(struct rig *rig, const char *owner, const char *id)
{
    struct kept kept = {0};
    struct session *s = rig->s;
    struct keeping_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    rig_saved(rig);
    *job = (struct keeping_job){.k = {.rig = rig, .owner = owner ? owner : "ann", .id = id, .kept = &kept},
                                .w = {.gate = GATE_CLOSED}};
    assert_int_equal(storage_submit(s->storage, (struct storage_job){.run = job_run, .done = job_done, .arg = job}), 0);
    gate_wait(&job->w.gate, 1);
    assert_int_equal(job->w.rc, 0);
    kept.kv = malloc((size_t)kept.n_stored * s->info->kv_token_bytes + 1);
    assert_non_null(kept.kv);
    for (int i = 0; i < job->k.n; i++) {
        struct storage_found *f = &job->k.found[i];
        struct waiting w = {.gate = GATE_CLOSED};
        uint8_t *raw = malloc(f->count * s->info->kv_token_bytes);
        assert_non_null(raw);
        assert_int_equal(storage_segment_read(s->storage, f, s->info->kv_identity, &s->layout, raw, read_done, &w), 0);
        gate_wait(&w.gate, 1);
        assert_int_equal(w.rc, 0);
        cut_payload(s, raw, f->count, (size_t)job->k.used[i], kept.kv + kept.kv_bytes);
        kept.kv_bytes += (size_t)job->k.used[i] * s->info->kv_token_bytes;
        free(raw);
        free(f->label);
    }
    free(job);
    return kept;
}

void kept_free(struct kept *k)
{
    free(k->tokens);
    free(k->kv);
}

void kept_same(const struct kept *got, const struct kept *wanted, const char *what)
{
    if (got->n_tokens != wanted->n_tokens)
        fail_msg("%s: %d tokens, not %d", what, got->n_tokens, wanted->n_tokens);
    for (int i = 0; i < got->n_tokens; i++)
        if (got->tokens[i] != wanted->tokens[i])
            fail_msg("%s: token %d is %d, not %d", what, i, got->tokens[i], wanted->tokens[i]);
    if (got->n_stored != wanted->n_stored)
        fail_msg("%s: KV of %d tokens, not %d", what, got->n_stored, wanted->n_stored);
    for (size_t i = 0; i < got->kv_bytes; i++)
        if (got->kv[i] != wanted->kv[i])
            fail_msg("%s: byte %zu of %zu of the stored KV differs", what, i, got->kv_bytes);
}

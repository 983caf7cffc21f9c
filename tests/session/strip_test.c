/* strip_test.c - contexts without the thinking of the turns before: made behind the answers, followed where they are
 * there, and gone with their turns. */
#include "storage/storage_internal.h"
#include "tests/session/meeting.h"

#include <dirent.h>

/* ---- looking ---- */

struct look {
    struct gate gate;
    bool busy;
};

static void look_busy(struct session *s, void *arg)
{
    struct look *look = arg;
    look->busy = s->turns || s->saves;
    gate_open(&look->gate);
}

/* Until nothing runs and nothing is being saved: what was to be made ahead is there. */
static void rest(struct rig *rig)
{
    struct look look = {.gate = GATE_CLOSED, .busy = true};
    for (int n = 1; look.busy; n++) {
        assert_int_equal(session_post(rig->s, look_busy, &look), 0);
        gate_wait(&look.gate, n);
    }
}

struct asked {
    const char *sql;
    int64_t value;
};

static int asked_run(struct storage_ledger *l, void *arg)
{
    struct asked *a = arg;
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(l->db, a->sql, -1, &s, NULL) == SQLITE_OK && sqlite3_step(s) == SQLITE_ROW ? 0 : -EIO;
    a->value = rc ? -1 : sqlite3_column_int64(s, 0);
    (void)sqlite3_finalize(s);
    return rc;
}

static int changed_run(struct storage_ledger *l, void *arg)
{
    return sqlite3_exec(l->db, arg, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

static void change(struct rig *rig, const char *sql)
{
    char *text = strdup(sql);
    assert_int_equal(jobs_call(rig->s->storage, changed_run, text), 0);
    free(text);
}

static int number(struct rig *rig, const char *sql)
{
    struct asked a = {.sql = sql};
    assert_int_equal(jobs_call(rig->s->storage, asked_run, &a), 0);
    return (int)a.value;
}

static int stripped(struct rig *rig)
{
    return number(rig, "SELECT count(*) FROM turns WHERE strips IS NOT NULL");
}

/* Files of the data directory in which these bytes stand. */
static int files_with(struct rig *rig, const void *bytes, size_t n)
{
    DIR *d = opendir(rig->dir);
    int with = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", rig->dir, e->d_name);
        FILE *file = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        long size = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
        char *all = size > 0 ? malloc((size_t)size) : NULL;
        if (all && fseek(file, 0, SEEK_SET) == 0)
            with += memmem(all, fread(all, 1, (size_t)size, file), bytes, n) != NULL;
        free(all);
        if (file)
            (void)fclose(file);
    }
    (void)closedir(d);
    return with;
}

/* ---- asking ---- */

static struct rig *open_thinking(void)
{
    return rig_open((struct rig_opts){.thinks = TINY_THINKS});
}

/* Thinks a little, then says something. */
static struct ask question(const char *text, uint64_t seed)
{
    return (struct ask){.text = text, .max = 20, .thinking_tokens = 6, .seed = seed, .current_turn = true};
}

static struct answer *ask_behind(struct rig *rig, const struct answer *a, const char *text, uint64_t seed)
{
    struct ask ask = question(text, seed);
    ask.previous = a ? a->id : NULL;
    struct answer *b = rig_ask(rig, ask);
    rig_only_new(b);
    return b;
}

static void follows(const struct answer *a, const char *form)
{
    assert_non_null(a->receipt.reasoning_context);
    assert_string_equal(a->receipt.reasoning_context, form);
}

/* How often thinking begins in the context at a response's end. */
static int thoughts(struct rig *rig, const struct answer *a)
{
    struct engine_tokens end = {0};
    struct kept kept = rig_kept(rig, NULL, a->id);
    int n = 0;
    assert_int_equal(engine_chat_end_thinking(rig->s->engine, &end), 0);
    for (int i = 0; i < kept.n_tokens; i++)
        n += kept.tokens[i] == end.ids[0] - 1;
    engine_tokens_free(&end);
    kept_free(&kept);
    return n;
}

/* ---- tests ---- */

/* Turn after turn only what is new goes through the model, and the context has the thinking of the last answer alone.
 */
static void test_made_ahead(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 300);
    struct answer *a = NULL;
    for (int turn = 1; turn <= 5; turn++) {
        a = ask_behind(rig, a, turn == 3 ? text : "go on", (uint64_t)turn);
        follows(a, "current_turn");
        assert_int_equal(a->receipt.turn, turn);
        rest(rig);
        assert_int_equal(stripped(rig), turn);
        assert_int_equal(thoughts(rig, a), 1);
    }
    assert_int_equal(number(rig, "SELECT count(*) FROM turns WHERE base IS NOT NULL AND strips IS NULL"), 4);
    pthread_mutex_lock(&rig->lock);
    assert_int_equal(rig->n_logged, 0);
    pthread_mutex_unlock(&rig->lock);
    /* A restart and eviction change nothing. */
    rig_stop(rig);
    rig_start(rig, rig->o);
    a = ask_behind(rig, a, "and then?", 6);
    follows(a, "current_turn");
    assert_true(a->receipt.disk > 0);
    free(text);
    rig_close(rig);
}

static void hold_behind_the_answer(struct answer *a, const struct session_event *ev, void *arg)
{
    if (ev->kind == SESSION_EVENT_DONE)
        rig_hold_ledger(a->rig, arg);
}

static struct session_status status(struct rig *rig)
{
    struct session_status st;
    struct look look = {.gate = GATE_CLOSED};
    for (int n = 1; n <= 2; n++) { /* what the loop behind the first one left is published before the second */
        assert_int_equal(session_post(rig->s, look_busy, &look), 0);
        gate_wait(&look.gate, n);
    }
    session_status(rig->s, &st);
    return st;
}

/* What nobody waits for is no turn that runs or waits. */
static void test_told_apart(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    struct gate ledger = GATE_CLOSED;
    struct ask ask = question("hello", 1);
    ask.hook = hold_behind_the_answer;
    ask.hook_arg = &ledger;
    (void)rig_ask(rig, ask);
    struct session_status st = status(rig);
    assert_int_equal(st.running + st.waiting, 0);
    assert_int_equal(st.ahead, 1);
    gate_open(&ledger);
    rest(rig);
    st = status(rig);
    assert_int_equal(st.running + st.waiting + st.ahead, 0);
    assert_int_equal(stripped(rig), 1);
    rig_close(rig);
}

struct pause {
    struct gate ended, go;
};

static void pause_at_end(struct answer *a, const struct session_event *ev, void *arg)
{
    struct pause *p = arg;
    (void)a;
    if (ev->kind != SESSION_EVENT_DONE)
        return;
    gate_open(&p->ended);
    gate_wait(&p->go, 1);
}

/* Asks, and what is `next` comes before anything could be made ahead. */
static struct answer *interrupted(struct rig *rig, struct ask next)
{
    struct pause p = {GATE_CLOSED, GATE_CLOSED};
    struct ask ask = question("hello", 1);
    ask.conversation = next.conversation = "conv_a";
    ask.hook = pause_at_end;
    ask.hook_arg = &p;
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a = rig_begin(rig, ask);
    gate_wait(&p.ended, 1);
    struct answer *b = rig_begin(rig, next);
    gate_open(&p.go);
    rig_end(a);
    rig_end(b);
    assert_false(b->failed);
    return b;
}

/* A question that comes before that is done has what there is, and waits for nothing; it is made up for behind it. */
static void test_not_done_yet(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    struct answer *b = interrupted(rig, question("go on", 2));
    rig_only_new(b);
    follows(b, "all_turns");
    assert_int_equal(thoughts(rig, b), 2);
    rest(rig);
    struct ask last = question("and?", 3);
    last.conversation = "conv_a";
    struct answer *c = rig_ask(rig, last);
    rig_only_new(c);
    follows(c, "current_turn");
    assert_int_equal(thoughts(rig, c), 1);
    rig_close(rig);
}

/* Who only counts is no reason to stop it. */
static void test_counting(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    (void)interrupted(rig, (struct ask){.text = "how long is this?", .count = true});
    rest(rig);
    assert_int_equal(stripped(rig), 1);
    rig_close(rig);
}

/* Who begins to ask for it has the thinking once more; it is made up for in one go. */
static void test_asked_for_later(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    struct answer *a = NULL;
    for (int turn = 1; turn <= 3; turn++) {
        struct ask ask = question("hello", (uint64_t)turn);
        ask.current_turn = false;
        ask.previous = a ? a->id : NULL;
        a = rig_ask(rig, ask);
        assert_null(a->receipt.reasoning_context);
    }
    rest(rig);
    assert_int_equal(stripped(rig), 0);
    a = ask_behind(rig, a, "go on", 4);
    follows(a, "all_turns");
    assert_int_equal(thoughts(rig, a), 4);
    rest(rig);
    assert_int_equal(stripped(rig), 1);
    a = ask_behind(rig, a, "go on", 5);
    follows(a, "current_turn");
    assert_int_equal(thoughts(rig, a), 1);
    /* Who does not ask for it any more goes on with what there is. */
    struct answer *b =
        rig_ask(rig, (struct ask){.text = "all of it", .previous = a->id, .max = 12, .thinking_tokens = 4, .seed = 6});
    rig_only_new(b);
    assert_int_equal(thoughts(rig, b), 2);
    rig_close(rig);
}

/* An edit, a second answer and a fork follow the same, and take nothing from each other. */
static void test_branches(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 300);
    struct answer *a = ask_behind(rig, NULL, text, 1);
    rest(rig);
    struct answer *b = ask_behind(rig, a, "go on", 2);
    rest(rig);
    struct answer *c = ask_behind(rig, a, "go another way", 3);
    rest(rig);
    struct ask again = question("go on", 4);
    again.previous = a->id;
    struct answer *d = rig_ask(rig, again);
    follows(d, "current_turn");
    assert_int_equal(d->receipt.prefilled, 1); /* for its logits */
    rest(rig);
    assert_int_equal(stripped(rig), 4);
    assert_int_equal(rig_delete_response(rig, "ann", b->id), 0);
    assert_int_equal(rig_delete_response(rig, "ann", d->id), 0);
    assert_int_equal(stripped(rig), 2);
    follows(ask_behind(rig, c, "and?", 5), "current_turn");
    rest(rig);
    rig_stop(rig);
    rig_start(rig, rig->o);
    follows(ask_behind(rig, a, "a third way", 6), "current_turn");
    follows(ask_behind(rig, c, "and again", 7), "current_turn");
    rest(rig);
    free(text);
    rig_close(rig);
}

/* What is deleted goes in both forms: rows, tokens and KV. */
static void test_deletion(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 700);
    struct answer *a = ask_behind(rig, NULL, text, 1);
    rest(rig);
    struct answer *b = ask_behind(rig, a, "a marker that nobody else has said", 2);
    struct answer *other = rig_ask(rig, (struct ask){.text = "stays", .owner = "bob", .seed = 3});
    rest(rig);
    struct kept kept = rig_kept(rig, NULL, b->id);
    const engine_token *marker = kept.tokens + b->input - 20; /* of the question */
    size_t marker_bytes = 8 * sizeof *marker;
    uint64_t with = rig_segments(rig);
    assert_int_equal(stripped(rig), 2);
    assert_true(files_with(rig, marker, marker_bytes) > 1); /* ledger and packs */
    assert_int_equal(rig_delete_response(rig, "ann", b->id), 0);
    assert_int_equal(files_with(rig, marker, marker_bytes), 0);
    kept_free(&kept);
    assert_int_equal(stripped(rig), 1);
    assert_int_equal(number(rig, "SELECT count(*) FROM tokens"), 3);
    assert_true(rig_segments(rig) <= with);
    follows(ask_behind(rig, a, "go on differently", 4), "current_turn");
    rest(rig);
    assert_int_equal(rig_delete(rig, "ann", a->conversation), 0);
    assert_int_equal(number(rig, "SELECT count(*) FROM turns"), 1);
    assert_int_equal(number(rig, "SELECT count(*) FROM tokens"), 1);
    rig_settle(rig);
    jobs_sweep_wait(rig->s->storage);
    assert_int_equal(rig_segments(rig), 1);
    rig_only_new(rig_ask(rig, (struct ask){.text = "go on", .owner = "bob", .previous = other->id, .seed = 5}));
    free(text);
    rig_close(rig);
}

/* So it does where another takes its place while that is still being made. */
static void test_replaced(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(7, 600);
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct ask ask = question("hello", 1);
    ask.conversation = "conv_a";
    struct answer *a = rig_ask(rig, ask);
    for (uint64_t seed = 2; seed < 6; seed++) {
        ask = question(text, seed);
        ask.conversation = "conv_a";
        ask.parent = a->id;
        struct answer *b = rig_ask(rig, ask);
        struct kept kept = rig_kept(rig, NULL, b->id);
        const engine_token *marker = kept.tokens + b->input - 40;
        ask.text = "in its place";
        ask.replaces = b->id;
        (void)rig_ask(rig, ask);
        assert_int_equal(files_with(rig, marker, 20 * sizeof *marker), 0);
        kept_free(&kept);
    }
    free(text);
    rig_close(rig);
}

/* A process that is killed between the row and its KV: the next start finds what is there. What is not there whole is
 * not followed, so that nobody waits for it. */
static void test_killed_between(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 300);
    rig_no_sweep(rig);
    struct answer *a = ask_behind(rig, NULL, text, 1);
    rest(rig);
    change(rig, "DELETE FROM holds WHERE turn IN (SELECT id FROM turns WHERE strips IS NOT NULL);"
                "UPDATE turns SET saved = 1 WHERE strips IS NOT NULL");
    rig_stop(rig);
    rig_start(rig, rig->o);
    follows(ask_behind(rig, a, "go on", 2), "current_turn");
    rest(rig);
    change(rig, "DELETE FROM holds WHERE turn IN (SELECT id FROM turns WHERE strips IS NOT NULL)");
    follows(ask_behind(rig, a, "another way", 3), "all_turns");
    rest(rig);
    free(text);
    rig_close(rig);
}

static const char ADD[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}}]";
static const char ADDS[] =
    "[{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":9}},\"required\":[\"a\"],\"additionalProperties\":false}}]";

/* Results belong to the question before them, and so does what was thought for them. */
static void test_tools(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HARMONY});
    struct ask ask = question("hello", 1);
    ask.tools = ADD;
    ask.choice = SESSION_TOOLS_NONE;
    struct answer *a = rig_ask(rig, ask);
    rest(rig);
    assert_int_equal(stripped(rig), 1);
    ask = question("1 + 4?", 2);
    ask.tools = ADD;
    ask.choice = SESSION_TOOLS_REQUIRED;
    ask.tool = "add";
    ask.calls = ADDS;
    ask.max = 60;
    ask.one_call = true;
    ask.previous = a->id;
    struct answer *b = rig_ask(rig, ask);
    rig_only_new(b);
    follows(b, "current_turn");
    rest(rig);
    assert_int_equal(stripped(rig), 1);
    char body[128];
    (void)snprintf(body, sizeof body, "{\"call_id\":\"%s\"}", b->call_id);
    const struct session_item result = {
        .kind = "function_call_output", .role = ENGINE_USER, .text = "5", .len = 1, .body = body};
    struct answer *c = rig_ask(rig, (struct ask){.items = &result,
                                                 .n_items = 1,
                                                 .tools = ADD,
                                                 .choice = SESSION_TOOLS_NONE,
                                                 .previous = b->id,
                                                 .max = 20,
                                                 .thinking_tokens = 6,
                                                 .seed = 3,
                                                 .current_turn = true});
    rig_only_new(c);
    follows(c, "current_turn");
    assert_true(c->receipt.history >= b->input + b->output - 1);
    rest(rig);
    assert_int_equal(stripped(rig), 2);
    ask = question("and 2 more?", 4);
    ask.tools = ADD;
    ask.choice = SESSION_TOOLS_NONE;
    ask.previous = c->id;
    struct answer *d = rig_ask(rig, ask);
    rig_only_new(d);
    follows(d, "current_turn");
    rig_close(rig);
}

/* What is said between the answers, and is answered by nothing, stands in both forms: be the one before it there by
 * then, or still to be made. */
static void test_said_between(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct rig *rig = open_thinking();
        struct answer *a;
        if (late) {
            a = interrupted(rig, (struct ask){.text = "a note", .warm = true});
        } else {
            struct ask ask = question("hello", 1);
            assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
            ask.conversation = "conv_a";
            (void)rig_ask(rig, ask);
            rest(rig);
            a = rig_ask(rig, (struct ask){.text = "a note", .conversation = "conv_a", .warm = true});
        }
        rig_only_new(a);
        rest(rig);
        assert_int_equal(stripped(rig), 2 - late); /* one for both */
        struct ask last = question("and?", 3);
        last.conversation = "conv_a";
        struct answer *c = rig_ask(rig, last);
        rig_only_new(c);
        follows(c, "current_turn");
        assert_int_equal(thoughts(rig, c), 1);
        rig_close(rig);
    }
}

/* Where the past is read anew for another reason it is without thinking at once; an answer that is gone on with has
 * what it had; a history that is sent again finds the same. */
static void test_other_ways(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char said[1024] = "";
    struct ask ask = question("hello", 1);
    ask.hook = keep_said;
    ask.hook_arg = said;
    struct answer *a = rig_ask(rig, ask);
    rest(rig);
    struct answer *b = ask_behind(rig, a, "go on", 2);
    rest(rig);
    ask = question("and?", 3);
    ask.previous = b->id;
    ask.instructions = "be brief";
    struct answer *c = rig_ask(rig, ask);
    follows(c, "current_turn");
    assert_string_equal(c->receipt.reprefilled[0].reason, "instructions_changed");
    assert_int_equal(thoughts(rig, c), 1);
    rest(rig);
    ask = question("and now?", 4);
    ask.previous = c->id;
    ask.instructions = "be brief";
    ask.max = 10;
    struct answer *cut = rig_ask(rig, ask);
    rig_only_new(cut);
    follows(cut, "current_turn");
    assert_true(cut->incomplete);
    rest(rig);
    struct answer *whole = rig_ask(
        rig, (struct ask){.continues = cut->id, .max = 6, .thinking_tokens = 6, .seed = 5, .current_turn = true});
    rig_only_new(whole);
    assert_int_equal(whole->input, cut->input + cut->output);
    rest(rig);
    const struct engine_message m[] = {{.role = ENGINE_USER, .text = "hello", .len = 5},
                                       {.role = ENGINE_ASSISTANT, .text = said, .len = strlen(said)},
                                       {.role = ENGINE_USER, .text = "elsewhere", .len = 9}};
    struct answer *again = rig_ask(rig, (struct ask){.messages = m,
                                                     .n_messages = 3,
                                                     .match = true,
                                                     .max = 6,
                                                     .thinking_tokens = 6,
                                                     .seed = 6,
                                                     .current_turn = true});
    rig_only_new(again);
    follows(again, "current_turn");
    rig_close(rig);
}

/* ---- what is not to be in anybody's way ---- */

struct late {
    struct gate gate;
    bool last; /* wait at the end, and not at the first word */
    int ahead; /* what was waiting then to be made ahead */
};

static void wait_there(struct answer *a, const struct session_event *ev, void *arg)
{
    struct late *late = arg;
    if (ev->kind != (late->last ? SESSION_EVENT_DONE : SESSION_EVENT_DELTA))
        return;
    for (const struct turn *t = a->rig->s->turns; t; t = t->next)
        late->ahead += t->ask.strips && t->state <= TURN_WAITING && !t->end.cancelled;
    gate_wait(&late->gate, 1);
}

/* While others have all places, what is to be made ahead waits: not in their queue, and not more and more of it. */
static void test_nothing_idle(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = TINY_THINKS, .max_running = 1, .max_waiting = 4});
    struct late first = {.gate = GATE_CLOSED}, last = {.gate = GATE_CLOSED, .last = true};
    struct answer *a[6];
    for (int i = 0; i < 6; i++) {
        struct ask ask = question("hello", (uint64_t)i + 1);
        ask.hook = i == 0 || i == 2 ? wait_there : NULL;
        ask.hook_arg = i == 0 ? &first : &last;
        if (i == 3)
            gate_open(&first.gate);
        if (i == 3) /* those before have ended, or are at their end */
            rig_end(a[1]);
        a[i] = rig_begin(rig, ask);
    }
    gate_open(&last.gate);
    for (int i = 0; i < 6; i++) {
        if (i != 1)
            rig_end(a[i]);
        assert_false(a[i]->failed);
    }
    assert_true(last.ahead <= 1); /* max_waiting / 4 */
    rest(rig);
    follows(ask_behind(rig, a[5], "go on", 7), "current_turn");
    rig_close(rig);
}

/* What was said to a response that is not stored is in the tokens of those behind it alone. */
static void test_behind_what_is_not_stored(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 100);
    struct ask ask = question(text, 1);
    ask.ephemeral = true;
    struct answer *a = rig_ask(rig, ask);
    for (uint64_t seed = 2; seed < 4; seed++) {
        struct answer *b = ask_behind(rig, a, "go on", seed);
        rest(rig);
        assert_int_equal(stripped(rig), 0);
        assert_true(b->receipt.history >= a->input);
        a = b;
    }
    follows(ask_behind(rig, a, "and?", 4), "all_turns");
    free(text);
    rig_close(rig);
}

/* Where KV of other numerics is taken, it is so of this. */
static void test_numerics(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    struct answer *a = ask_behind(rig, NULL, "hello", 1);
    for (int k = 0; k < 3; k++) {
        rest(rig);
        rig_stop(rig);
        rig->o.accept_kv_any = k < 2;
        rig_start(rig, rig->o);
        if (k == 0) {
            struct engine_info *info = (struct engine_info *)(uintptr_t)rig->s->info; /* nothing runs */
            (void)snprintf(info->numerics, sizeof info->numerics, "9 cuda exact");
        }
        struct ask ask = question("go on", (uint64_t)k + 2);
        ask.previous = a->id;
        a = rig_ask(rig, ask);
        follows(a, k < 2 ? "current_turn" : "all_turns");
        assert_int_equal(a->receipt.n_accepted > 0, k < 2);
    }
    rig_close(rig);
}

/* Such a row is nobody's response. */
static void test_no_response(void **state)
{
    (void)state;
    char saved[64], status[64];
    struct rig *rig = open_thinking();
    struct answer *a = ask_behind(rig, NULL, "hello", 1);
    rest(rig);
    change(rig, "UPDATE turns SET public_id = 'context_1' WHERE strips IS NOT NULL");
    assert_int_equal(rig_stored(rig, "ann", "context_1", saved, status), -ENOENT);
    assert_int_equal(rig_delete_response(rig, "ann", "context_1"), -ENOENT);
    struct ask ask = question("go on", 2);
    ask.previous = "context_1";
    rig_refused(rig, ask, SESSION_PREVIOUS_NOT_FOUND);
    assert_int_equal(rig_delete_response(rig, "ann", a->id), 0);
    assert_int_equal(stripped(rig), 0);
    rig_close(rig);
}

/* What is left of a context that was too long is read anew, without thinking. */
static void test_truncated(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = TINY_THINKS, .ctx = 512});
    char *text = rig_text(1, 40);
    struct answer *a = NULL;
    for (int turn = 1; turn <= 7; turn++) {
        struct ask ask = question(text, (uint64_t)turn);
        ask.current_turn = turn == 7;
        ask.truncate = true;
        ask.previous = a ? a->id : NULL;
        if (turn == 7)
            ask.max = 200;
        a = rig_ask(rig, ask);
    }
    assert_true(a->receipt.truncated_tokens > 0 && a->receipt.truncated_turns < 6);
    assert_int_equal(thoughts(rig, a), 1);
    follows(a, "current_turn");
    free(text);
    rig_close(rig);
}

/* What is evicted to the disk leaves the memory in both forms. */
static void test_evicted(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    char *text = rig_text(1, 300);
    struct answer *a = ask_behind(rig, NULL, text, 1);
    rest(rig);
    struct answer *b = ask_behind(rig, a, text, 2);
    rest(rig);
    assert_int_equal(rig_evict(rig, "ann", b->conversation, true), 0);
    struct answer *c = ask_behind(rig, b, "and?", 3);
    follows(c, "current_turn");
    assert_int_equal(c->receipt.hot + c->receipt.ram, 0);
    assert_true(c->receipt.disk > 0);
    free(text);
    rig_close(rig);
}

static void abandon(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    if (ev->kind == SESSION_EVENT_DELTA)
        session_cancel(a->rig->s, "ann", a->id, SESSION_STOP_ABANDONED);
}

/* Nobody goes on with an answer that was left; the retry that takes its place has its own. */
static void test_abandoned(void **state)
{
    (void)state;
    struct rig *rig = open_thinking();
    struct ask ask = question("hello", 29);
    ask.digest = 7;
    ask.max = 3000;
    ask.hook = abandon;
    struct answer *a = rig_ask(rig, ask);
    assert_string_equal(a->reason, "abandoned");
    rest(rig);
    assert_int_equal(stripped(rig), 0);
    ask.hook = NULL;
    ask.max = 20;
    ask.retry = true;
    struct answer *b = rig_ask(rig, ask);
    assert_false(b->repeated);
    rest(rig);
    assert_int_equal(stripped(rig), 1);
    follows(ask_behind(rig, b, "go on", 2), "current_turn");
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_ahead),
        cmocka_unit_test(test_told_apart),
        cmocka_unit_test(test_not_done_yet),
        cmocka_unit_test(test_counting),
        cmocka_unit_test(test_asked_for_later),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_deletion),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_killed_between),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_said_between),
        cmocka_unit_test(test_other_ways),
        cmocka_unit_test(test_nothing_idle),
        cmocka_unit_test(test_no_response),
        cmocka_unit_test(test_behind_what_is_not_stored),
        cmocka_unit_test(test_numerics),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_abandoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

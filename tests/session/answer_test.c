/* answer_test.c - turns with tools: answers that begin with a call, results, and tools that change. The model is
 * random: what it writes into a call is no JSON, so calls that it is made to begin with end broken. */
#include "tests/session/meeting.h"

#include <unistd.h>

static const char ADD[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}}}]";
static const char ADD_AGAIN[] =
    "[ {\"function\": {\"parameters\":{\"type\":\"object\"}, \"name\":\"add\"}, \"type\":\"function\"} ]";
static const char NOW[] = "[{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

static int again(const struct answer *a, const char *reason)
{
    for (int i = 0; i < a->receipt.n_reprefilled; i++)
        if (!strcmp(a->receipt.reprefilled[i].reason, reason))
            return a->receipt.reprefilled[i].tokens;
    return 0;
}

static struct session_item result_of(const char *call_id, char body[96])
{
    snprintf(body, 96, "{\"call_id\":\"%s\"}", call_id);
    return (struct session_item){
        .id = NULL, .kind = "function_call_output", .role = ENGINE_USER, .text = "5", .len = 1, .body = body};
}

static void test_required(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char body[96], twice_body[96];
    struct answer *a = rig_ask(
        rig, (struct ask){.text = "1 + 4?", .tools = ADD, .choice = SESSION_TOOLS_REQUIRED, .tool = "add", .seed = 1});
    assert_string_equal(a->name, "add");
    assert_true(a->kinds[0] == 'f' || a->kinds[0] == 'F');
    /* What it was made to begin with was prefilled, and is part of the answer for those who come behind it. */
    struct session_item items[] = {result_of(a->call_id, body), result_of(a->call_id, twice_body)};
    struct answer *b =
        rig_ask(rig, (struct ask){.items = items, .n_items = 1, .tools = ADD, .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    /* A result of no call, one that comes twice, and one whose call has its result already. */
    rig_refused(rig, (struct ask){.items = items, .n_items = 2, .tools = ADD, .previous = a->id}, SESSION_INVALID);
    rig_refused(rig, (struct ask){.items = items, .n_items = 1, .tools = ADD, .previous = b->id}, SESSION_INVALID);
    rig_refused(rig, (struct ask){.items = items, .n_items = 1, .tools = ADD}, SESSION_INVALID);
    items[0] = result_of("call_other", body);
    rig_refused(rig, (struct ask){.items = items, .n_items = 1, .tools = ADD, .previous = a->id}, SESSION_INVALID);
    /* Any tool. */
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "and?", .tools = ADD, .choice = SESSION_TOOLS_REQUIRED, .seed = 3});
    assert_int_equal(c->n_items, 1);
    rig_close(rig);
}

/* A result has a call where what it follows is not stored, too. */
static void test_results_of_what_is_not_stored(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char body[96], twice_body[96];
    struct answer *a = rig_ask(rig, (struct ask){.text = "1 + 4?",
                                                 .tools = ADD,
                                                 .choice = SESSION_TOOLS_REQUIRED,
                                                 .tool = "add",
                                                 .seed = 1,
                                                 .ephemeral = true});
    struct session_item items[] = {result_of("call_other", body), result_of(a->call_id, twice_body)};
    struct ask follows = {.items = items, .n_items = 1, .tools = ADD, .previous = a->id, .ephemeral = true, .seed = 2};
    rig_refused(rig, follows, SESSION_INVALID);
    items[0] = result_of(a->call_id, body);
    follows.n_items = 2;
    rig_refused(rig, follows, SESSION_INVALID); /* twice */
    follows.n_items = 1;
    struct answer *b = rig_ask(rig, follows);
    rig_only_new(b);
    follows.previous = b->id;
    rig_refused(rig, follows, SESSION_INVALID); /* it has one */
    rig_close(rig);
}

static void test_tools_change(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .tools = ADD, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .tools = ADD_AGAIN, .previous = a->id, .seed = 2});
    rig_only_new(b);
    struct answer *c = rig_ask(rig, (struct ask){.text = "and on", .tools = NOW, .previous = b->id, .seed = 3});
    assert_true(again(c, "tools_changed") > b->input + b->output - 120);
    assert_int_equal(c->receipt.n_reprefilled, 1);
    struct answer *d = rig_ask(rig, (struct ask){.text = "still", .tools = NOW, .previous = c->id, .seed = 4});
    rig_only_new(d);
    /* Which they were is in the ledger, wherever the KV is. */
    rig_saved(rig);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){.tools = TINY_HERMES});
    struct answer *e = rig_ask(rig, (struct ask){.text = "more", .tools = NOW, .previous = d->id, .seed = 5});
    rig_only_new(e);
    assert_true(e->receipt.disk >= d->input + d->output - 1);
    /* None, and back again: what was computed with them is found. */
    struct answer *f = rig_ask(rig, (struct ask){.text = "none", .previous = e->id, .seed = 6});
    assert_true(again(f, "tools_changed") > 0);
    struct answer *g = rig_ask(rig, (struct ask){.text = "more", .tools = ADD, .previous = b->id, .seed = 7});
    rig_only_new(g);
    /* To bring a context back one need not name them. */
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct answer *h = rig_ask(rig, (struct ask){.warm = true, .previous = e->id});
    rig_only_new(h);
    assert_true(h->receipt.ram + h->receipt.disk >= e->input + e->output - 1);
    free(text);
    rig_close(rig);
}

/* How much is thought stands at the beginning of gpt-oss's contexts: to change it changes the past, to leave it out
 * does not. */
static void test_effort_changes(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HARMONY});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .effort = ENGINE_CHAT_LOW, .seed = 1});
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_only_new(b);
    struct answer *c = rig_ask(
        rig,
        (struct ask){.text = "on", .previous = b->id, .effort = ENGINE_CHAT_LOW | ENGINE_CHAT_NO_THINKING, .seed = 3});
    rig_only_new(c);
    struct answer *d =
        rig_ask(rig, (struct ask){.text = "on", .previous = c->id, .effort = ENGINE_CHAT_HIGH, .seed = 4});
    assert_true(again(d, "effort_changed") > 100);
    assert_int_equal(d->receipt.n_reprefilled, 1);
    rig_saved(rig);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){.tools = TINY_HARMONY});
    struct answer *e =
        rig_ask(rig, (struct ask){.text = "on", .previous = d->id, .effort = ENGINE_CHAT_HIGH, .seed = 5});
    rig_only_new(e);
    /* The template's own is one as well. */
    struct answer *f = rig_ask(rig, (struct ask){.text = text, .seed = 6});
    struct answer *g =
        rig_ask(rig, (struct ask){.text = "on", .previous = f->id, .effort = ENGINE_CHAT_MEDIUM, .seed = 7});
    rig_only_new(g);
    /* Tools that change leave it as it is. */
    struct answer *h = rig_ask(rig, (struct ask){.text = "on", .tools = ADD, .previous = e->id, .seed = 8});
    assert_true(again(h, "tools_changed") > 100);
    struct answer *i = rig_ask(
        rig, (struct ask){.text = "on", .tools = ADD, .previous = h->id, .effort = ENGINE_CHAT_HIGH, .seed = 9});
    rig_only_new(i);
    /* What is not stored cannot be made anew. */
    struct answer *k =
        rig_ask(rig, (struct ask){.text = text, .ephemeral = true, .effort = ENGINE_CHAT_LOW, .seed = 10});
    rig_refused(rig, (struct ask){.text = "on", .previous = k->id, .ephemeral = true, .effort = ENGINE_CHAT_HIGH},
                SESSION_INVALID);
    rig_only_new(rig_ask(rig, (struct ask){.text = "on", .previous = k->id, .ephemeral = true, .seed = 11}));
    free(text);
    rig_close(rig);
}

/* An answer that is not to be thought about opens with empty thinking, which is part of the prompt; gone on with, it
 * stands where it stood. */
static void test_empty_thinking(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = TINY_MAY_THINK});
    struct answer *plain = rig_ask(rig, (struct ask){.text = "hello", .max = 12, .seed = 1});
    struct answer *cut =
        rig_ask(rig, (struct ask){.text = "hello", .max = 12, .seed = 1, .effort = ENGINE_CHAT_NO_THINKING});
    assert_int_equal(cut->input, plain->input + 4);
    assert_string_equal(cut->reason, "max_output_tokens");
    struct answer *more = rig_ask(rig, (struct ask){.continues = cut->id, .max = 12, .seed = 2});
    rig_only_new(more);
    assert_int_equal(more->input, cut->input + cut->output);
    rig_only_new(rig_ask(rig, (struct ask){.text = "and?", .previous = more->id, .seed = 3}));
    rig_close(rig);
}

static void test_none(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    struct answer *a = rig_ask(rig, (struct ask){.text = "1 + 4?", .tools = ADD, .seed = 1});
    struct answer *b =
        rig_ask(rig, (struct ask){.text = "1 + 4?", .tools = ADD, .choice = SESSION_TOOLS_NONE, .seed = 1});
    assert_int_equal(a->input, b->input); /* it is told of them all the same */
    assert_true(!strcmp(b->kinds, "m") || !strcmp(b->kinds, "M"));
    rig_close(rig);
}

static void test_format_without_tools(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    rig_refused(rig, (struct ask){.text = "x", .tools = ADD}, SESSION_INVALID);
    (void)rig_ask(rig, (struct ask){.text = "x"});
    rig_close(rig);
}

/* Thinking is an item of its own and stays in the context. This model never stops thinking. */
static void test_thinking(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = true});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .max = 20, .seed = 1});
    assert_string_equal(a->kinds, "R");
    assert_true(a->len > 0);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    /* Under other instructions its tokens are what they were. */
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .instructions = "be kind", .seed = 3});
    assert_true(c->input > b->input);
    /* Sent again as clients do that show it apart: the text is empty. */
    const struct session_item items[] = {{.kind = "message", .role = ENGINE_USER, .text = text, .len = strlen(text)},
                                         {.kind = "message", .role = ENGINE_ASSISTANT, .text = "", .len = 0},
                                         {.kind = "message", .role = ENGINE_USER, .text = "and on", .len = 6}};
    struct answer *d = rig_ask(rig, (struct ask){.items = items, .n_items = 3, .match = true, .seed = 4});
    rig_only_new(d);
    assert_true(d->receipt.history >= a->input + a->output - 1);
    free(text);
    rig_close(rig);
}

static void cancel_at_once(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)arg;
    if (ev->kind == SESSION_EVENT_STARTED)
        session_cancel(a->rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
}

/* Stopped before the first token: an empty message, told behind the start. */
static void test_stopped_before_it_said_anything(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char *text = rig_text(1, 600);
    struct answer *a = rig_begin(
        rig,
        (struct ask){.text = text, .tools = ADD, .choice = SESSION_TOOLS_REQUIRED, .max = 30, .hook = cancel_at_once});
    rig_end(a);
    assert_false(a->failed);
    assert_int_equal(a->n_items, 1);
    assert_true(a->incomplete);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .tools = ADD, .previous = a->id});
    assert_true(b->output > 0);
    free(text);
    rig_close(rig);
}

/* Each token of the text is told once, with what else there might have been; the likeliest is the one that is picked
 * without chance. What a stop string cut off is not told. */
static void test_logprobs(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a =
        rig_ask(rig, (struct ask){.text = "hello", .max = 20, .temperature = 1e-6f, .logprobs = true, .n_top = 3});
    assert_int_equal((int)a->n_logprobs, a->output);
    size_t said = 0;
    for (size_t i = 0; i < a->n_logprobs; i++) {
        const struct session_logprob *p = &a->logprobs[i];
        size_t len;
        (void)session_token_bytes(rig->s, p->token, &len);
        assert_true(p->logprob <= 0.0f && p->logprob > -20.0f);
        assert_int_equal(p->n_top, 3);
        assert_int_equal(p->top[0].token, p->token);
        assert_true(p->top[0].logprob == p->logprob && p->top[1].logprob <= p->logprob);
        assert_true(p->at >= said && p->at < a->len);
        said = p->at;
    }
    struct answer *b = rig_ask(rig, (struct ask){.text = "hello", .max = 20, .temperature = 1e-6f});
    assert_true(b->len == a->len && !memcmp(b->text, a->text, a->len) && b->n_logprobs == 0);
    /* From where one of its tokens begins on it is cut off. */
    size_t from = 0, n = 0;
    for (size_t i = 1; i < a->n_logprobs / 2; i++)
        from = ((unsigned char)a->text[a->logprobs[i].at] & 0xc0) != 0x80 ? a->logprobs[i].at : from;
    assert_true(from > 0);
    char *stop = strndup(a->text + from, a->len - from);
    assert_ptr_equal(memmem(a->text, a->len, stop, a->len - from), a->text + from);
    struct answer *c =
        rig_ask(rig, (struct ask){.text = "hello", .max = 20, .temperature = 1e-6f, .stop = stop, .logprobs = true});
    while (a->logprobs[n].at < from)
        n++;
    assert_true(c->stopped_by_string && c->len == from);
    assert_int_equal((int)c->n_logprobs, (int)n);
    free(stop);
    rig_close(rig);
}

/* Those of thinking, marks and calls are not those of the text. */
static void test_logprobs_of_text_alone(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = true});
    struct answer *a = rig_ask(rig, (struct ask){.text = "x", .max = 20, .seed = 1, .logprobs = true});
    assert_string_equal(a->kinds, "R");
    assert_int_equal((int)a->n_logprobs, 0);
    rig_close(rig);
    rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    struct answer *b = rig_ask(
        rig,
        (struct ask){
            .text = "x", .tools = ADD, .choice = SESSION_TOOLS_REQUIRED, .tool = "add", .seed = 1, .logprobs = true});
    assert_int_equal((int)b->n_logprobs, 0);
    rig_close(rig);
}

/* Thinking ends behind its budget, and text follows; whoever goes on from there prefills what is new. */
static void test_thinking_ends(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.thinks = true});
    int thought = 0;
    for (int budget = -1; budget < 12; budget += budget < 0 ? 4 : 3)
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct answer *a = rig_ask(
                rig,
                (struct ask){.text = "hello", .max = 40, .seed = seed, .temperature = 2, .thinking_tokens = budget});
            assert_false(a->failed);
            /* An item of thinking that the answer was not cut in is followed by its text. */
            for (const char *kind = a->kinds; *kind; kind++)
                if (*kind == 'r' || *kind == 'R')
                    thought++;
            assert_null(strchr(a->kinds, 'R'));
            struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .max = 4, .seed = seed, .previous = a->id});
            rig_only_new(b);
        }
    assert_true(thought > 0);
    rig_close(rig);
}

struct stopping {
    struct gate sent; /* the one that is to wait was */
    bool stopped;
};

/* In the answer of the turn that has the only place, until another one waits: that one is stopped, and then this. */
static void stop_who_waits(struct answer *a, const struct session_event *ev, void *arg)
{
    struct stopping *s = arg;
    if (ev->kind != SESSION_EVENT_DELTA || s->stopped)
        return;
    gate_wait(&s->sent, 1);
    for (struct turn *t = a->rig->s->turns; t; t = t->next)
        if (t->state == TURN_WAITING && t->in_ledger == ROW_THERE)
            s->stopped = t->end.cancelled = true;
    for (struct turn *t = a->rig->s->turns; s->stopped && t; t = t->next)
        t->end.cancelled = true;
    if (!s->stopped)
        usleep(1000); /* the ledger's time */
}

static struct answer *stopped_waiting(struct rig *rig, struct ask ask)
{
    struct stopping s = {GATE_CLOSED, false};
    struct answer *runs = rig_begin(rig, (struct ask){.owner = "bob",
                                                      .text = "on and on",
                                                      LONG_ANSWER,
                                                      .hook = stop_who_waits,
                                                      .hook_arg = &s,
                                                      .ephemeral = true});
    struct answer *waits = rig_begin(rig, ask);
    gate_open(&s.sent);
    rig_end(runs);
    rig_end(waits);
    assert_true(s.stopped);
    assert_false(waits->failed);
    assert_string_equal(waits->reason, "cancelled");
    return waits;
}

/* What an answer was to go on with is there as before, once, when it is stopped before it has a place. */
static void test_going_on_is_stopped_while_it_waits(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = LONG_CTX, .max_running = 1});
    char before[1024], after[1024];
    struct answer *cut = rig_ask(rig, (struct ask){.text = "hello", .max = 12, .seed = 3});
    assert_string_equal(cut->reason, "max_output_tokens");
    assert_int_equal(rig_text_stored(rig, "ann", cut->id, before), 0);
    assert_true(before[0]);
    struct answer *more = stopped_waiting(rig, (struct ask){.continues = cut->id, .max = 12, .seed = 3});
    assert_int_equal(rig_text_stored(rig, "ann", more->id, after), 0);
    assert_string_equal(after, before);
    assert_int_equal(rig_text_stored(rig, "ann", cut->id, after), -ENOENT);
    /* And it is what can be gone on with. */
    struct answer *again = rig_ask(rig, (struct ask){.continues = more->id, .max = 4, .seed = 3});
    assert_int_equal(rig_text_stored(rig, "ann", again->id, after), 0);
    assert_int_equal(strncmp(after, before, strlen(before)), 0);
    assert_true(strlen(after) > strlen(before));
    rig_only_new(again);
    more = stopped_waiting(rig, (struct ask){.text = "hello", .opening = "It begins", .max = 4});
    assert_int_equal(rig_text_stored(rig, "ann", more->id, after), 0);
    assert_string_equal(after, "It begins");
    rig_close(rig);
}

/* Of a text that begins with white space, which is nothing behind thinking, all that comes behind it is told (the rig
 * checks each item against its deltas). */
static void test_opening_behind_thinking(void **state)
{
    (void)state;
    for (int thinks = 0; thinks < 2; thinks++) {
        struct rig *rig = rig_open((struct rig_opts){.tools = thinks ? TINY_NO_TOOLS : TINY_HERMES, .thinks = thinks});
        char text[1024];
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct answer *a = rig_ask(rig, (struct ask){.text = "hello",
                                                         .tools = thinks ? NULL : ADD,
                                                         .opening = "\n\n It begins",
                                                         .max = 6,
                                                         .seed = seed});
            assert_int_equal(rig_text_stored(rig, "ann", a->id, text), 0);
            assert_non_null(strstr(text, "It begins"));
        }
        rig_close(rig);
    }
}

static void see_custom(struct answer *a, const struct session_event *ev, void *arg)
{
    (void)a;
    if (ev->kind == SESSION_EVENT_ITEM_END && !strcmp(ev->item->kind, "function_call"))
        *(bool *)arg = strstr(ev->item->body, "\"custom\":true") != NULL;
}

/* A call that is gone on with is of the kind that it was begun as. */
static void test_call_keeps_its_kind(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    bool custom = false;
    struct answer *a = rig_ask(rig, (struct ask){.text = "1 + 4?",
                                                 .tools = ADD,
                                                 .labels = "{\"add\":{\"custom\":true}}",
                                                 .choice = SESSION_TOOLS_REQUIRED,
                                                 .tool = "add",
                                                 .max = 4,
                                                 .hook = see_custom,
                                                 .hook_arg = &custom});
    assert_true(custom && a->incomplete);
    custom = false;
    (void)rig_ask(rig, (struct ask){.continues = a->id, .max = 4, .hook = see_custom, .hook_arg = &custom});
    assert_true(custom);
    rig_close(rig);
}

/* What the answer says already needs room beside its prompt: the oldest turn goes for it. */
static void test_going_on_where_the_context_is_full(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.ctx = 512});
    char *text = rig_text(1, 150);
    struct answer *first = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    struct answer *cut = first;
    for (uint64_t seed = 2; strcmp(cut->reason, "context_length") != 0; seed++) {
        assert_true(seed < 100);
        cut = rig_ask(rig, (struct ask){.text = "on and on", .previous = first->id, .max = 3000, .seed = seed});
    }
    struct answer *more = rig_ask(rig, (struct ask){.continues = cut->id, .truncate = true, .max = 20, .seed = 3});
    assert_int_equal(more->receipt.truncated_turns, 1);
    assert_true(more->output > 0);
    free(text);
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thinking_ends),
        cmocka_unit_test(test_required),
        cmocka_unit_test(test_results_of_what_is_not_stored),
        cmocka_unit_test(test_tools_change),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_effort_changes),
        cmocka_unit_test(test_empty_thinking),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_format_without_tools),
        cmocka_unit_test(test_stopped_before_it_said_anything),
        cmocka_unit_test(test_going_on_is_stopped_while_it_waits),
        cmocka_unit_test(test_opening_behind_thinking),
        cmocka_unit_test(test_call_keeps_its_kind),
        cmocka_unit_test(test_going_on_where_the_context_is_full),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_of_text_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

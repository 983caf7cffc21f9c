/* items_test.c - histories that are sent again as a whole: what of them there is already is never prefilled. */
#include "storage/storage_internal.h"
#include "tests/session/harness.h"

#include <errno.h>

static const char TOOLS[] = "[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]";

static struct session_item message(enum engine_role role, const char *text)
{
    return (struct session_item){.kind = "message", .role = role, .text = text, .len = strlen(text)};
}

static struct session_item call(const char *arguments, const char *body)
{
    return (struct session_item){
        .kind = "function_call", .role = ENGINE_ASSISTANT, .text = arguments, .len = strlen(arguments), .body = body};
}

static struct session_item result(const char *text, const char *body)
{
    return (struct session_item){
        .kind = "function_call_output", .role = ENGINE_USER, .text = text, .len = strlen(text), .body = body};
}

/* An answer as a client sends it back. */
static char *text_of(const struct answer *a)
{
    char *text = strndup(a->text ? a->text : "", a->len);
    assert_non_null(text);
    return text;
}

/* Content decides: ids, the order of members, how numbers and letters are written, and white space do not. */
static void test_content_decides(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    char *text = rig_text(1, 300);
    struct session_item items[8] = {
        message(ENGINE_USER, text),
        message(ENGINE_ASSISTANT, "I add."),
        call("{\"a\": 1, \"b\": {\"c\": [1.0, \"\\u0064\"]}}", "{\"call_id\":\"one\",\"name\":\"add\"}"),
        call("{}", "{\"call_id\":\"two\",\"name\":\"add\"}"),
        result("5", "{\"call_id\":\"one\"}"),
        result("6", "{\"call_id\":\"two\"}")};
    struct ask ask = {
        .items = items, .n_items = 6, .match = true, .tools = TOOLS, .instructions = "be kind", .seed = 1};
    struct answer *a = rig_ask(rig, ask);
    char *said = text_of(a);
    items[1] = message(ENGINE_ASSISTANT, " I add.\n");
    items[2] = call("{\"b\":{\"c\":[1,\"d\"]},\"a\":1}", "{\"name\":\"add\",\"call_id\":\"x\"}");
    items[3] = call(" { }", "{\"call_id\":\"y\",\"name\":\"add\"}");
    items[4] = result("5\n", "{\"call_id\":\"x\"}");
    items[5] = result("6", "{\"call_id\":\"y\"}");
    items[6] = message(ENGINE_ASSISTANT, said);
    items[7] = message(ENGINE_USER, "go on");
    ask.n_items = 8;
    ask.seed = 2;
    struct answer *b = rig_ask(rig, ask);
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    assert_string_equal(b->conversation, a->conversation);
    items[1] = message(ENGINE_ASSISTANT, "<think>\nShould I?\n</think>\n\nI add.");
    items[3] = call("", items[3].body); /* no arguments at all */
    assert_string_equal(rig_ask(rig, ask)->conversation, a->conversation);
    /* Around its calls an answer's text is what it is before them. */
    struct session_item around[9] = {items[0], message(ENGINE_ASSISTANT, "I "), items[2],
                                     message(ENGINE_ASSISTANT, "add.")};
    memcpy(around + 4, items + 3, 5 * sizeof *items);
    struct ask moved = ask;
    moved.items = around;
    moved.n_items = 9;
    assert_string_equal(rig_ask(rig, moved)->conversation, a->conversation);
    /* The same instructions as a first message. */
    struct session_item with_system[9] = {message(ENGINE_SYSTEM, "be kind")};
    memcpy(with_system + 1, items, sizeof items);
    struct ask other = ask;
    other.items = with_system;
    other.n_items = 9;
    other.instructions = NULL;
    struct answer *c = rig_ask(rig, other);
    assert_string_equal(c->conversation, a->conversation);
    assert_int_equal(c->input, b->input);
    /* Another value, name, result, instruction, tool: not the same history. */
    static const char *const ARGUMENTS[] = {"{\"b\":{\"c\":[1,\"d\"]},\"a\":2}", "{\"a\":1,\"b\":{\"c\":[\"d\",1]}}"};
    for (size_t i = 0; i < 5; i++) {
        struct session_item changed[8];
        struct ask d = ask;
        memcpy(changed, items, sizeof items);
        d.items = changed;
        if (i < 2)
            changed[2] = call(ARGUMENTS[i], items[2].body);
        else if (i == 2)
            changed[2] = call(items[2].text, "{\"name\":\"sub\",\"call_id\":\"x\"}");
        else if (i == 3)
            d.instructions = "be rude";
        else
            d.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";
        assert_string_not_equal(rig_ask(rig, d)->conversation, a->conversation);
    }
    free(said);
    free(text);
    rig_close(rig);
}

/* What was said in turns, each by its own request, is the same history. */
static void test_what_grew_in_turns(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300), head[64];
    assert_int_equal(rig_create(rig, "ann", "conv_a", NULL), 0);
    struct answer *a =
        rig_ask(rig, (struct ask){.text = text, .conversation = "conv_a", .instructions = "be kind", .seed = 1});
    struct answer *b =
        rig_ask(rig, (struct ask){.text = "go on", .conversation = "conv_a", .instructions = "be kind", .seed = 2});
    char *first = text_of(a), *second = text_of(b);
    struct session_item items[] = {message(ENGINE_USER, text),       message(ENGINE_ASSISTANT, first),
                                   message(ENGINE_USER, "go on"),    message(ENGINE_ASSISTANT, second),
                                   message(ENGINE_USER, "and on"),   message(ENGINE_ASSISTANT, ""),
                                   message(ENGINE_USER, "and then?")};
    struct ask ask = {.items = items, .n_items = 5, .match = true, .instructions = "be kind", .seed = 3};
    struct answer *c = rig_ask(rig, ask);
    rig_only_new(c);
    assert_true(c->receipt.history >= b->input + b->output - 1);
    /* It is not a turn of that conversation, and goes on by itself when that is gone. */
    assert_string_not_equal(c->conversation, a->conversation);
    assert_int_equal(c->receipt.turn, 1);
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, b->id);
    assert_int_equal(rig_delete(rig, "ann", "conv_a"), 0);
    char *third = text_of(c);
    items[5] = message(ENGINE_ASSISTANT, third);
    ask.n_items = 7;
    struct answer *d = rig_ask(rig, ask);
    rig_only_new(d);
    assert_true(d->receipt.history >= c->input + c->output - 1);
    assert_string_equal(d->conversation, c->conversation);
    struct answer *e = rig_ask(
        rig,
        (struct ask){.text = "other", .previous = c->id, .instructions = "be rude", .seed = 5}); /* all its items */
    assert_true(e->input > c->input - 40);
    /* Under other instructions, then resent as it is now. */
    struct session_item resent[] = {items[0],
                                    items[1],
                                    items[2],
                                    items[3],
                                    items[4],
                                    items[5],
                                    message(ENGINE_USER, "other"),
                                    message(ENGINE_ASSISTANT, "")};
    char *fourth = text_of(e);
    resent[7] = message(ENGINE_ASSISTANT, fourth);
    struct session_item all[9];
    memcpy(all, resent, sizeof resent);
    all[8] = message(ENGINE_USER, "last");
    struct answer *f =
        rig_ask(rig, (struct ask){.items = all, .n_items = 9, .match = true, .instructions = "be rude", .seed = 6});
    rig_only_new(f);
    assert_true(f->receipt.history >= e->input + e->output - 1);
    free(first);
    free(second);
    free(third);
    free(fourth);
    free(text);
    rig_close(rig);
}

/* Items that are put into a new conversation: what a response holds already is not prefilled. */
static void test_items_of_a_conversation(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300), head[64];
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .instructions = "be kind", .seed = 1});
    char *first = text_of(a);
    struct session_item items[] = {message(ENGINE_USER, text), message(ENGINE_ASSISTANT, first),
                                   message(ENGINE_USER, "go on")};
    assert_int_equal(rig_create(rig, "ann", "conv_a", "be kind"), 0);
    struct answer *b =
        rig_ask(rig, (struct ask){.items = items, .n_items = 3, .conversation = "conv_a", .match = true, .warm = true});
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    assert_string_equal(b->conversation, "conv_a");
    assert_int_equal(rig_head(rig, "ann", "conv_a", head), 0);
    assert_string_equal(head, b->id);
    /* More of them, and then an answer. */
    struct session_item more[] = {message(ENGINE_ASSISTANT, "yes"), message(ENGINE_USER, "and on")};
    struct answer *c =
        rig_ask(rig, (struct ask){.items = more, .n_items = 2, .conversation = "conv_a", .match = true, .warm = true});
    rig_only_new(c);
    struct answer *d = rig_ask(rig, (struct ask){.text = "well?", .conversation = "conv_a", .seed = 2});
    rig_only_new(d);
    assert_int_equal(d->receipt.turn, 3);
    free(first);
    free(text);
    rig_close(rig);
}

/* Items behind an answer are what is new there, also where one of them is an answer: what a call gave belongs to the
 * call before, tools that the context was told of stay, and the conversation's instructions are in force. */
static void test_items_behind_an_answer(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES});
    const struct session_item begin[] = {message(ENGINE_USER, "add"),
                                         call("{\"a\":1}", "{\"call_id\":\"one\",\"name\":\"add\"}")};
    const struct session_item gave[] = {result("5", "{\"call_id\":\"one\"}"), message(ENGINE_ASSISTANT, "five")};
    assert_int_equal(rig_create(rig, "ann", "conv_a", "be kind"), 0);
    struct ask ask = {.items = begin, .n_items = 2, .conversation = "conv_a", .warm = true, .tools = TOOLS};
    (void)rig_ask(rig, ask);
    ask = (struct ask){.items = gave, .n_items = 2, .conversation = "conv_a", .match = true, .warm = true};
    rig_only_new(rig_ask(rig, ask));
    ask = (struct ask){.text = "more", .conversation = "conv_a", .tools = TOOLS, .seed = 1};
    struct answer *a = rig_ask(rig, ask);
    rig_only_new(a);
    /* Another call's output is refused all the same. */
    const struct session_item none[] = {result("5", "{\"call_id\":\"two\"}"), message(ENGINE_ASSISTANT, "five")};
    ask = (struct ask){.items = none, .n_items = 2, .conversation = "conv_a", .match = true, .warm = true};
    rig_refused(rig, ask, SESSION_INVALID);
    /* One that came long after its call is taken. */
    const struct session_item late[] = {result("5", "{\"call_id\":\"one\"}")};
    assert_int_equal(rig_create(rig, "ann", "conv_b", NULL), 0);
    (void)rig_ask(rig,
                  (struct ask){.items = begin, .n_items = 2, .conversation = "conv_b", .warm = true, .tools = TOOLS});
    for (int i = 0; i < 9; i++)
        (void)rig_ask(rig, (struct ask){.text = "wait", .conversation = "conv_b", .warm = true});
    (void)rig_ask(rig, (struct ask){.items = late, .n_items = 1, .conversation = "conv_b", .warm = true});
    /* And other instructions reach what is behind them. */
    const struct session_item said[] = {message(ENGINE_ASSISTANT, "well"), message(ENGINE_USER, "go on")};
    ask = (struct ask){.items = said, .n_items = 2, .conversation = "conv_a", .match = true, .warm = true};
    ask.instructions = "be rude";
    struct answer *b = rig_ask(rig, ask);
    assert_int_equal(b->receipt.n_reprefilled, 1);
    assert_string_equal(b->receipt.reprefilled[0].reason, "instructions_changed");
    ask = (struct ask){.text = "more", .conversation = "conv_a", .tools = TOOLS, .instructions = "be rude", .seed = 2};
    rig_only_new(rig_ask(rig, ask));
    rig_close(rig);
}

/* Tools and instructions that no context holds are refused, however little there is to say. */
static void test_head_too_long(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.tools = TINY_HERMES, .ctx = 256});
    const struct engine_info *info = session_model(rig->s);
    size_t most = (size_t)info->ctx_tokens * (size_t)info->token_bytes_max;
    char *text = malloc(most + 64);
    assert_non_null(text);
    memset(text, 'a', most + 1);
    text[most + 1] = 0;
    rig_refused(rig, (struct ask){.text = "hello", .instructions = text}, SESSION_CONTEXT_LENGTH);
    /* Which cannot even be read. */
    memset(text, '[', most + 1);
    rig_refused(rig, (struct ask){.text = "hello", .tools = text}, SESSION_CONTEXT_LENGTH);
    text[64] = 0;
    rig_refused(rig, (struct ask){.text = "hello", .tools = text}, SESSION_INVALID);
    free(text);
    rig_close(rig);
}

/* Counted, and nothing else. */
static void test_counted(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1});
    struct ask ask = {.text = "go on", .previous = a->id, .seed = 2, .ephemeral = true, .count = true};
    int counted = rig_ask(rig, ask)->input;
    ask.count = false;
    assert_int_equal(rig_ask(rig, ask)->input, counted);
    rig_refused(rig, (struct ask){.text = "x", .previous = "resp_none", .ephemeral = true, .count = true},
                SESSION_PREVIOUS_NOT_FOUND);
    free(text);
    rig_close(rig);
}

/* What is not stored is found as long as it is remembered, for its owner alone. */
static void test_not_stored(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    char *text = rig_text(1, 300);
    struct session_item items[5] = {message(ENGINE_USER, text)};
    struct ask ask = {.items = items, .n_items = 1, .match = true, .ephemeral = true, .seed = 1};
    struct answer *a = rig_ask(rig, ask);
    char *first = text_of(a);
    items[1] = message(ENGINE_ASSISTANT, first);
    items[2] = message(ENGINE_USER, "go on");
    ask.n_items = 3;
    struct answer *b = rig_ask(rig, ask);
    rig_only_new(b);
    assert_true(b->receipt.history >= a->input + a->output - 1);
    ask.owner = "bob";
    assert_int_equal(rig_ask(rig, ask)->receipt.history, 0);
    /* A stored turn that follows it holds all of it. */
    char *second = text_of(b);
    items[3] = message(ENGINE_ASSISTANT, second);
    items[4] = message(ENGINE_USER, "keep it");
    struct answer *c = rig_ask(rig, (struct ask){.items = items, .n_items = 5, .match = true, .seed = 3});
    rig_only_new(c);
    assert_true(c->receipt.history >= b->input + b->output - 1);
    rig_saved(rig);
    rig_stop(rig);
    rig_start(rig, (struct rig_opts){0});
    struct answer *d = rig_ask(rig, (struct ask){.text = "kept?", .previous = c->id, .seed = 4});
    rig_only_new(d);
    assert_true(d->receipt.disk >= c->input + c->output - 1);
    struct answer *e =
        rig_ask(rig, (struct ask){.text = "kept?", .previous = c->id, .instructions = "be rude", .seed = 4});
    assert_true(e->input > c->input);
    /* Forgotten, it is prefilled. */
    ask = (struct ask){.items = items, .n_items = 1, .match = true, .ephemeral = true, .owner = "eve", .seed = 1};
    struct answer *f = rig_ask(rig, ask);
    char *third = text_of(f);
    session_forget(rig->s, "eve", f->id);
    items[1] = message(ENGINE_ASSISTANT, third);
    ask.n_items = 3;
    assert_int_equal(rig_ask(rig, ask)->receipt.history, 0);
    free(first);
    free(second);
    free(third);
    free(text);
    rig_close(rig);
}

static struct session_item reference(const char *id)
{
    return (struct session_item){.kind = "item_reference", .role = ENGINE_USER, .text = id, .len = strlen(id)};
}

static int add_items_run(struct storage_ledger *l, void *arg)
{
    (void)arg;
    static const char sql[] = "INSERT INTO items(turn, place, output, public_id, kind, role, status, created_ms, text)"
                              " SELECT id, 100, 1, 'rs_1', 'reasoning', NULL, 0, 0, 'a thought' FROM turns LIMIT 1;"
                              "INSERT INTO items(turn, place, output, public_id, kind, role, status, created_ms, text)"
                              " SELECT id, 101, 0, 'msg_of_three', 'message', 'user', 0, 0, 'three' FROM turns LIMIT 1";
    return sqlite3_exec(l->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -EIO;
}

/* References stand for what they mean, in their order; those to thinking, wherever they are, for nothing. */
static void test_references(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    (void)rig_ask(rig, (struct ask){.text = "hello", .seed = 1});
    assert_int_equal(jobs_call(rig->s->storage, add_items_run, NULL), 0);
    struct session_item said[] = {message(ENGINE_USER, "one"), message(ENGINE_USER, "two"),
                                  message(ENGINE_USER, "three"), message(ENGINE_USER, "four")};
    struct session_item meant[] = {reference("rs_1"), reference("rs_1"),         said[0], reference("rs_1"),
                                   said[1],           reference("msg_of_three"), said[3], reference("rs_1")};
    struct answer *a = rig_ask(rig, (struct ask){.items = said, .n_items = 4, .match = true, .seed = 2});
    struct answer *b = rig_ask(rig, (struct ask){.items = meant, .n_items = 8, .match = true, .seed = 2});
    assert_int_equal(b->input, a->input);
    assert_int_equal(b->len, a->len);
    assert_memory_equal(b->text, a->text, a->len);
    meant[7] = reference("none");
    struct answer *c = rig_begin(rig, (struct ask){.items = meant, .n_items = 8, .match = true, .seed = 2});
    rig_end(c);
    assert_true(c->failed);
    assert_non_null(strstr(c->message, "item_reference"));
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_decides),
        cmocka_unit_test(test_what_grew_in_turns),
        cmocka_unit_test(test_items_of_a_conversation),
        cmocka_unit_test(test_items_behind_an_answer),
        cmocka_unit_test(test_head_too_long),
        cmocka_unit_test(test_counted),
        cmocka_unit_test(test_not_stored),
        cmocka_unit_test(test_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* idle_test.c - the context that shares the most is found among many, the one used longest ago goes first, and what
 * others are told of pages is true. */
#include "tests/session/harness.h"

enum { CONVERSATIONS = 40 };

/* A text of pieces, so that many have heads of many lengths in common. */
static void pieces(uint64_t seed, char text[200])
{
    text[0] = 0;
    for (int i = 0; i < 5; i++) {
        char *piece = rig_text((seed >> (2 * i)) & 3, 7 + (int)((seed >> 12) & 15));
        strncat(text, piece, 30);
        free(piece);
    }
}

struct look {
    struct gate gate;
    struct rig *rig;
    uint64_t seed;
    int wrong, shared;
    const char *conversation;
};

/* What is kept of each owner's idle contexts, against going through all of them. */
static bool sums_true(const struct session *s)
{
    int64_t all = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n_owners; i++) {
        const struct idle_owner *o = &s->owners[i];
        int64_t tokens = 0;
        for (size_t k = 0; k < s->n_idle; k++)
            tokens += s->idle[k]->owner == o->id ? engine_seq_length(s->idle[k]->seq) : 0;
        for (const struct hot *h = o->oldest; h; h = h->newer, n++)
            if (h->owner != o->id ||
                (h->newer ? h->newer->older != h || h->newer->idle_since <= h->idle_since : o->newest != h))
                return false;
        if (o->tokens != tokens || (i && s->owners[i - 1].id >= o->id))
            return false;
        all += tokens;
    }
    return n == s->n_idle && all == s->idle_tokens;
}

/* Against going through all of them. */
static void compare(struct session *s, void *arg)
{
    struct look *look = arg;
    for (int k = 0; k < 400; k++) {
        look->seed = look->seed * 6364136223846793005u + 1442695040888963407u;
        struct engine_tokens tokens = {0};
        const struct hot *like = s->hots, *best;
        for (size_t skip = (size_t)(look->seed >> 33) % s->n_hots; skip--;)
            like = like->next;
        struct turn t = {.session = s, .found = {.owner = {.id = k % 3 ? like->owner : s->hots->owner}}};
        int n = engine_seq_length(like->seq), cut = (int)(look->seed >> 40) % (n + 1);
        (void)engine_tokens_append(&tokens, engine_seq_tokens(like->seq), (size_t)cut);
        for (int i = 0; i < k % 5; i++)
            (void)engine_tokens_append(&tokens, engine_seq_tokens(like->seq) + (i * 7) % n, 1);
        t.context = tokens;
        int shared = hot_shared(s, &t, &best), most = 0;
        for (const struct hot *h = s->hots; h; h = h->next) {
            int common = h->owner == t.found.owner.id ? hot_common(h, tokens.ids, (int)tokens.n) : 0;
            most = common > most ? common : most;
        }
        look->wrong += shared != most || (most && hot_common(best, tokens.ids, (int)tokens.n) != most);
        look->shared += most > 0;
        engine_tokens_free(&tokens);
    }
    /* Tokens of an owner: each context's, but for what it begins with as one before it does. */
    for (int i = 0; i < 2; i++) {
        int64_t owner = s->idle[i ? s->n_idle - 1 : 0]->owner, tokens = 0;
        for (const struct hot *h = s->hots; h; h = h->next) {
            int most = 0;
            for (const struct hot *o = s->hots; o != h && h->owner == owner; o = o->next) {
                int common =
                    o->owner == owner ? hot_common(o, engine_seq_tokens(h->seq), engine_seq_length(h->seq)) : 0;
                most = common > most ? common : most;
            }
            tokens += h->owner == owner ? engine_seq_length(h->seq) - most : 0;
        }
        look->wrong += hot_tokens_of(s, owner) != tokens;
    }
    look->wrong += !sums_true(s);
    size_t n = 0;
    for (const struct hot *h = s->oldest_hot; h; h = h->previous, n++)
        look->wrong += h->previous && !h->previous->user && h->previous->last_used_ms < h->last_used_ms;
    look->wrong += n != s->n_hots || s->n_idle != n;
    gate_open(&look->gate);
}

static void test_nearest_of_many(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a[CONVERSATIONS];
    uint64_t seed = 3;
    for (int i = 0; i < CONVERSATIONS; i++) {
        char text[200];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        pieces(seed >> 33, text);
        a[i] = rig_ask(rig, (struct ask){.owner = i % 3 ? "ann" : "bob",
                                         .text = text,
                                         .previous = i % 4 == 3 && i > 6 ? a[i - 3]->id : NULL,
                                         .seed = seed,
                                         .max = 1 + i % 7});
    }
    rig_saved(rig);
    struct look look = {.gate = GATE_CLOSED, .rig = rig, .seed = 11};
    assert_int_equal(session_post(rig->s, compare, &look), 0);
    gate_wait(&look.gate, 1);
    assert_int_equal(look.wrong, 0);
    assert_true(look.shared > 100);
    /* Some go, others come back, and it holds again. */
    for (int i = 0; i < CONVERSATIONS; i += 3)
        assert_int_equal(rig_evict(rig, i % 3 ? "ann" : "bob", a[i]->conversation, false), 0);
    for (int i = 0; i < CONVERSATIONS; i += 2)
        (void)rig_ask(rig, (struct ask){.owner = i % 3 ? "ann" : "bob", .text = "on", .previous = a[i]->id, .max = 3});
    rig_saved(rig);
    assert_int_equal(session_post(rig->s, compare, &look), 0);
    gate_wait(&look.gate, 2);
    assert_int_equal(look.wrong, 0);
    rig_close(rig);
}

/* The one that was used longest ago, of an owner that has an equal share of the idle tokens or more. */
static const struct hot *expected_out(const struct session *s)
{
    int64_t all = 0, owners = 0;
    for (size_t i = 0; i < s->n_idle; i++) {
        all += engine_seq_length(s->idle[i]->seq);
        owners += i == 0 || s->idle[i]->owner != s->idle[i - 1]->owner;
    }
    for (const struct hot *h = s->oldest_hot; h; h = h->previous) {
        int64_t own = 0;
        for (size_t i = 0; i < s->n_idle; i++)
            own += s->idle[i]->owner == h->owner ? engine_seq_length(s->idle[i]->seq) : 0;
        if (own * owners >= all)
            return h;
    }
    return NULL;
}

static void evict_all(struct session *s, void *arg)
{
    struct look *look = arg;
    for (size_t n = s->n_hots; n > 0; n--) {
        const struct hot *out = expected_out(s);
        look->wrong += !hot_evict_one(s) || s->n_hots != n - 1;
        for (const struct hot *h = s->hots; h; h = h->next)
            look->wrong += h == out;
        look->wrong += !sums_true(s);
    }
    look->wrong += hot_evict_one(s) || s->n_owners || s->idle_tokens;
    gate_open(&look->gate);
}

/* With three owners of whom one has most, some of whose conversations come back in between. */
static void test_who_goes(void **state)
{
    (void)state;
    static const char *const owners[] = {"ann", "ann", "bob", "ann", "eve"};
    struct rig *rig = rig_open((struct rig_opts){0});
    struct answer *a[CONVERSATIONS];
    for (int i = 0; i < CONVERSATIONS; i++) {
        char *text = rig_text((uint64_t)i, 20 + 7 * (i % 5));
        a[i] = rig_ask(rig, (struct ask){.owner = owners[i % 5], .text = text, .seed = (uint64_t)i, .max = 2});
        free(text);
        if (i % 4 == 3)
            (void)rig_ask(rig,
                          (struct ask){.owner = owners[(i - 3) % 5], .text = "on", .previous = a[i - 3]->id, .max = 2});
    }
    rig_saved(rig);
    struct look look = {.gate = GATE_CLOSED};
    assert_int_equal(session_post(rig->s, evict_all, &look), 0);
    gate_wait(&look.gate, 1);
    assert_int_equal(look.wrong, 0);
    rig_close(rig);
}

/* More than the pages hold: each conversation's tier is what a turn of it then finds. */
static void test_tiers_are_true(void **state)
{
    (void)state;
    struct rig *rig = rig_open((struct rig_opts){.kv_pages = 60});
    struct answer *a[CONVERSATIONS];
    int hot = 0;
    for (int i = 0; i < CONVERSATIONS; i++) {
        char *text = rig_text((uint64_t)i, 100);
        a[i] = rig_ask(rig, (struct ask){.text = text, .seed = (uint64_t)i, .max = 2});
        free(text);
    }
    for (int i = CONVERSATIONS - 1; i >= 0; i--) {
        char tier[64];
        assert_int_equal(rig_tier(rig, "ann", a[i]->conversation, tier), 0);
        bool is_hot = !strcmp(tier, "hot");
        assert_true(!is_hot || hot == CONVERSATIONS - 1 - i); /* the last ones, without a gap */
        hot += is_hot;
    }
    assert_true(hot > 5 && hot < CONVERSATIONS - 5);
    for (int i = 0; i < 2; i++) {
        struct answer *next =
            rig_ask(rig, (struct ask){.text = "on", .previous = a[i ? CONVERSATIONS - 1 : 0]->id, .max = 2});
        rig_only_new(next);
        assert_int_equal(next->receipt.hot > 90, i);
    }
    rig_close(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_of_many),
        cmocka_unit_test(test_who_goes),
        cmocka_unit_test(test_tiers_are_true),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

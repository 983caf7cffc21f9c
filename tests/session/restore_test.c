/* restore_test.c - what comes back from storage is what was there, whichever segments are damaged: these alone are
 * computed again, and the answers are those of a conversation that never left. */
#include <fcntl.h>
#include <unistd.h>

#include "storage/storage_internal.h"
#include "tests/session/harness.h"

enum { SEGMENT = SESSION_SEGMENT_TOKENS };

#define HEADER UINT32_MAX /* instead of an array */

/* Turns a bit over in an array of the stored segment that begins at position `first`. Returns how many there are. */
static int damage(struct rig *rig, uint32_t first, uint32_t array)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/pack-00000001", rig->dir);
    int fd = open(path, O_RDWR | O_CLOEXEC), found = 0;
    assert_true(fd >= 0);
    off_t size = lseek(fd, 0, SEEK_END);
    uint8_t *pack = malloc((size_t)size);
    assert_non_null(pack);
    assert_int_equal(pread(fd, pack, (size_t)size, 0), size);
    for (off_t at = 0; at + PACK_HEADER_BYTES <= size; at += PACK_ALIGN) {
        struct pack_record r;
        if (pack_record_parse(pack + at, (size_t)(size - at), true, &r) || r.first != first)
            continue;
        if (array == HEADER) {
            uint8_t other = (uint8_t)(pack[at + 8] ^ 4);
            assert_int_equal(pwrite(fd, &other, 1, at + 8), 1);
            found++;
            continue;
        }
        /* storage/codec.c: the sizes of the arrays' sections, which lie behind the table. */
        off_t payload = at + (off_t)pack_payload_offset(r.label_bytes);
        uint32_t arrays, bytes;
        memcpy(&arrays, pack + payload + 4, sizeof arrays);
        off_t byte = payload + 16 + 16 * (off_t)arrays;
        for (uint32_t i = 0; i <= array; i++) {
            memcpy(&bytes, pack + payload + 8 + 16 * i, sizeof bytes);
            byte += i < array ? bytes : bytes / 2;
        }
        pack[byte] ^= 4;
        assert_int_equal(pwrite(fd, pack + byte, 1, byte), 1);
        found++;
    }
    free(pack);
    assert_int_equal(close(fd), 0);
    return found;
}

static void tell(void *arg, const char *text)
{
    (void)arg;
    (void)fprintf(stderr, "%s\n", text);
}

/* What --repair or --verify finds wrong. */
static int wrong(struct rig *rig, bool repair)
{
    struct session_checked n;
    char err[256];
    rig_stop(rig);
    assert_int_equal(session_verify(rig->dir, repair, tell, NULL, NULL, NULL, &n, err, sizeof err), 0);
    rig_start(rig, rig->o);
    return (int)n.wrong;
}

enum fate {
    SEEN,
    NOT_READ,
    GIVEN_UP, /* by a repair, */
    MISSING   /* which has no index */
};

/* Two turns; between them everything goes to disk, and of the first one's segments those in `damaged` are damaged. */
static struct answer *second_turn(struct rig *rig, unsigned damaged, uint32_t array, enum fate fate)
{
    char *text = rig_text(5, 3 * SEGMENT + 100), kv[256];
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1, .max = 4});
    assert_true(a->input > 3 * SEGMENT);
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    if (fate == MISSING) {
        rig_stop(rig);
        (void)snprintf(kv, sizeof kv, "%s/kv.db", rig->dir);
        assert_int_equal(unlink(kv), 0);
    }
    for (uint32_t i = 0; i < 3; i++)
        if (damaged >> i & 1)
            assert_int_equal(damage(rig, i * SEGMENT, array), 1);
    if (fate == MISSING)
        rig_start(rig, rig->o);
    if (fate >= GIVEN_UP) {
        assert_int_equal(wrong(rig, true), fate == GIVEN_UP ? __builtin_popcount(damaged) : 0);
        assert_int_equal(wrong(rig, true), 0);
        assert_int_equal(wrong(rig, false), 0);
    }
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2, .max = 24});
    free(text);
    return b;
}

static void check_damaged(int arch, unsigned damaged, uint32_t array, enum fate fate)
{
    bool seen = fate != NOT_READ;
    struct rig *sound = rig_open((struct rig_opts){.arch = arch}), *rig = rig_open((struct rig_opts){.arch = arch});
    struct answer *want = second_turn(sound, 0, 0, SEEN), *got = second_turn(rig, damaged, array, fate);
    /* Of two gaps in a chain only one is known. */
    int lost = seen ? SEGMENT * (fate == MISSING && damaged == 5 ? 3 : __builtin_popcount(damaged)) : 0;
    rig_only_new(want);
    assert_int_equal(want->receipt.n_reprefilled, 0);
    assert_int_equal(got->len, want->len);
    assert_memory_equal(got->text, want->text, want->len);
    assert_int_equal(got->receipt.disk + got->receipt.ram, want->receipt.disk + want->receipt.ram - lost);
    assert_int_equal(got->receipt.prefilled, want->receipt.prefilled + lost);
    assert_int_equal(got->receipt.n_reprefilled, lost ? 1 : 0);
    if (lost) {
        assert_string_equal(got->receipt.reprefilled[0].reason, fate == SEEN ? "blob_damaged" : "blob_missing");
        assert_int_equal(got->receipt.reprefilled[0].tokens, lost);
    }
    if (!seen) {
        rig_close(sound);
        rig_close(rig);
        return;
    }
    /* What was computed again has been stored anew, and both hold the same. */
    struct kept a = rig_kept(sound, NULL, want->id), b = rig_kept(rig, NULL, got->id);
    kept_same(&b, &a, "stored");
    kept_free(&a);
    kept_free(&b);
    rig_close(sound);
    rig_close(rig);
}

static void test_damaged(void **state)
{
    (void)state;
    for (unsigned damaged = 0; damaged < 8; damaged += damaged < 4 ? 1 : 3)
        check_damaged(TINY_QWEN2, damaged, 3, SEEN);
}

/* With sliding windows: what lies before a damaged segment gets its windows after all; rows of window layers that no
 * token sees are not read, nor what happened to them. */
static void test_damaged_windows(void **state)
{
    (void)state;
    struct tiny_model m = tiny_model_of(TINY_GEMMA3);
    int full = 0;
    while (tiny_model_windowed(&m, full))
        full++;
    assert_true(full > 0 && full < m.n_layers);
    for (unsigned damaged = 0; damaged < 8; damaged++)
        check_damaged(TINY_GEMMA3, damaged, 2 * (uint32_t)full, SEEN);
    check_damaged(TINY_GEMMA3, 3, 0, NOT_READ);
}

/* What a repair has given up, or is nowhere to be found, is computed again alone as well. */
static void test_given_up(void **state)
{
    (void)state;
    for (unsigned damaged = 1; damaged < 8; damaged++)
        for (enum fate fate = GIVEN_UP; fate <= MISSING; fate++)
            check_damaged(TINY_QWEN2, damaged, fate == MISSING ? HEADER : 3, fate);
    check_damaged(TINY_GEMMA3, 2, 3, GIVEN_UP);
    check_damaged(TINY_GEMMA3, 3, HEADER, MISSING);
}

/* A warm-up that is stopped while its context comes back: whoever comes next finds nothing amiss. */
struct stop {
    struct rig *rig;
    int n;
};

static void stop_at_first(struct answer *a, const struct session_event *ev, void *arg)
{
    struct stop *s = arg;
    if (ev->kind == SESSION_EVENT_PROGRESS && s->n++ == 0)
        session_cancel(s->rig->s, "ann", a->id, SESSION_STOP_CANCELLED);
}

static void test_stopped(void **state)
{
    (void)state;
    struct rig *sound = rig_open((struct rig_opts){.arch = TINY_GEMMA3});
    struct answer *want = second_turn(sound, 0, 0, SEEN);
    struct rig *rig = rig_open((struct rig_opts){.arch = TINY_GEMMA3});
    char *text = rig_text(5, 3 * SEGMENT + 100);
    struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1, .max = 4});
    assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
    struct stop stop = {.rig = rig};
    struct answer *warm =
        rig_begin(rig, (struct ask){.previous = a->id, .warm = true, .hook = stop_at_first, .hook_arg = &stop});
    rig_end(warm);
    assert_true(stop.n > 0);
    struct answer *b = rig_ask(rig, (struct ask){.text = "go on", .previous = a->id, .seed = 2, .max = 24});
    rig_only_new(b);
    assert_int_equal(b->len, want->len);
    assert_memory_equal(b->text, want->text, want->len);
    free(text);
    rig_close(sound);
    rig_close(rig);
}

/* The head of a damaged segment is in pages: what is there stays, and what lies behind it is computed. */
static void test_damaged_behind_pages(void **state)
{
    (void)state;
    for (int damaged = 0; damaged < 2; damaged++) {
        struct rig *rig = rig_open((struct rig_opts){.ram_bytes = 1});
        char *text = rig_text(5, 2 * SEGMENT - 60), *more = rig_text(6, SEGMENT);
        struct answer *a = rig_ask(rig, (struct ask){.text = text, .seed = 1, .max = 4});
        assert_in_range(a->input + a->output, SEGMENT + 40, 2 * SEGMENT - 10);
        struct answer *b = rig_ask(rig, (struct ask){.text = more, .previous = a->id, .seed = 2, .max = 4});
        rig_saved(rig);
        rig_settle(rig);
        assert_int_equal(rig_evict(rig, "ann", a->conversation, true), 0);
        struct answer *touch = rig_ask(rig, (struct ask){.previous = a->id, .warm = true});
        int there = touch->input;
        assert_true(there > SEGMENT + 40 && there < 2 * SEGMENT);
        assert_int_equal(touch->receipt.disk + touch->receipt.ram, there);
        if (damaged)
            assert_true(damage(rig, SEGMENT, 3) > 0); /* the shorter one may still be there */
        struct answer *c = rig_ask(rig, (struct ask){.text = "go on", .previous = b->id, .seed = 3, .max = 4});
        assert_int_equal(c->receipt.hot, damaged ? there : SEGMENT);
        assert_int_equal(c->receipt.n_reprefilled, damaged);
        if (damaged)
            assert_int_equal(c->receipt.reprefilled[0].tokens, 2 * SEGMENT - there);
        free(text);
        free(more);
        rig_close(rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged), cmocka_unit_test(test_damaged_windows),
                                       cmocka_unit_test(test_given_up), cmocka_unit_test(test_stopped),
                                       cmocka_unit_test(test_damaged_behind_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

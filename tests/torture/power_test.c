/* power_test.c - what is left after a kill or a power loss, at any moment: every turn that was told as stored, nothing
 * of what was told as deleted, and no segment with other bytes than were put.
 *
 * One run of a storage is recorded; then its disk is made anew as it may have been at many of its moments. The number
 * of cases is TORTURE_CASES, or a few seconds' worth. The last line says what came of it.
 */
#include "tests/torture/crash_image.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/storage/storage_testing.h"

#define CASES_DEFAULT 90
#define STEPS         70
#define CONVS_MAX     64
#define BUDGET        ((uint64_t)1 << 20) /* some forty segments: others are evicted all the time */

struct conv {
    char id[32], turns[8][32];
    size_t told[8]; /* when a turn was told as stored */
    unsigned segments[8], n_turns, n_segments;
    size_t delete_begun, deleted; /* when; 0: not */
    int64_t row, last_turn;
};

static struct {
    struct conv convs[CONVS_MAX];
    unsigned n;
    size_t end;
} run;

static void step(struct storage *st, int64_t owner, unsigned k, uint64_t *seed)
{
    unsigned what = (unsigned)(testing_random(seed) % 10);
    struct conv *c = run.n ? &run.convs[testing_random(seed) % run.n] : NULL;
    if (!c || c->delete_begun || (what < 4 && run.n < CONVS_MAX)) {
        if (run.n == CONVS_MAX)
            return;
        c = &run.convs[run.n++];
        (void)snprintf(c->id, sizeof c->id, "conv-mk%05u", k);
        c->row = testing_conversation(st, owner, c->id);
    } else if (what < 6) {
        c->delete_begun = crash_place();
        if (testing_conversation_delete(st, owner, c->id) == 0)
            c->deleted = crash_place();
        return;
    }
    if (c->n_turns == 8)
        return;
    unsigned t = c->n_turns++;
    (void)snprintf(c->turns[t], sizeof c->turns[t], "resp-mk%05u", k);
    c->last_turn = testing_turn(st, owner, c->row, c->last_turn, c->turns[t]);
    c->told[t] = crash_place();
    unsigned id = 100000 + k;
    assert_int_equal(testing_put(st, owner, id, c->n_segments ? c->segments[c->n_segments - 1] : 0), 0);
    int rc = testing_commit(st, c->last_turn, id);
    assert_true(rc == 0 || rc == -ESTALE);
    if (!rc)
        c->segments[c->n_segments++] = id;
}

static void record(uint64_t seed)
{
    struct storage_io io;
    char *dir = testing_dir_in_memory();
    crash_record(&io);
    struct storage *st = testing_open_with(dir, &io, BUDGET);
    int64_t owner = testing_owner(st, "a");
    for (unsigned k = 1; k <= STEPS; k++) {
        step(st, owner, k, &seed);
        if (k % 25 == 0) {
            storage_close(st);
            st = testing_open_with(dir, &io, BUDGET);
        }
    }
    storage_close(st);
    run.end = crash_place();
    crash_stop();
    testing_dir_remove(dir);
}

static bool in_files(const char *dir, const char *text)
{
    bool found = false;
    DIR *d = opendir(dir);
    struct dirent *e;
    assert_non_null(d);
    while (!found && (e = readdir(d)))
        found = e->d_name[0] != '.' && testing_contains(dir, e->d_name, text);
    closedir(d);
    return found;
}

struct found {
    const char *turn;
    bool there;
};

static int found_run(struct storage_ledger *l, void *arg)
{
    struct found *f = arg;
    struct storage_owner owner;
    struct storage_turn t;
    int rc = storage_owner_get(l, "a", &owner);
    if (!rc)
        rc = storage_turn_get(l, owner.id, f->turn, STORAGE_TURN_TOKENS, &t);
    f->there = !rc && t.tokens_bytes == 8 && !memcmp(t.tokens, "tokens", 7);
    if (!rc)
        storage_turn_free(&t);
    return 0;
}

static bool there(struct storage *st, const char *turn)
{
    struct found f = {.turn = turn};
    assert_int_equal(jobs_call(st, found_run, &f), 0);
    return f.there;
}

static void check(size_t place, enum crash_kind kind, uint64_t seed, unsigned *losses, unsigned *remains)
{
    char *dir = testing_dir_in_memory(), err[512] = "", label[32];
    struct storage *st = NULL;
    crash_image(place, kind, seed, dir);
    for (unsigned i = 0; i < run.n; i++) {
        const struct conv *c = &run.convs[i];
        if (!c->deleted || c->deleted > place)
            continue;
        bool left = false; /* but for its random id, which the mark of the deletion has had */
        for (unsigned t = 0; t < c->n_turns; t++)
            left |= in_files(dir, c->turns[t]);
        for (unsigned k = 0; k < c->n_segments; k++) {
            (void)snprintf(label, sizeof label, "label %u", c->segments[k]);
            left |= in_files(dir, label);
        }
        if (left)
            print_error("remains of %s: place %zu of %zu, kind %d, seed %llu\n", c->id, place, run.end, (int)kind,
                        (unsigned long long)seed);
        *remains += left;
    }
    int rc = storage_open(&(struct storage_opts){.dir = dir, .disk_bytes = BUDGET}, &st, err, sizeof err);
    if (rc) {
        print_error("does not open: %s: place %zu of %zu, kind %d, seed %llu\n", err, place, run.end, (int)kind,
                    (unsigned long long)seed);
        ++*losses;
    }
    int64_t owner = rc ? 0 : testing_owner(st, "a");
    for (unsigned i = 0; !rc && i < run.n; i++) {
        const struct conv *c = &run.convs[i];
        for (unsigned t = 0; t < c->n_turns; t++) {
            bool told = c->told[t] && c->told[t] <= place && (!c->delete_begun || c->delete_begun > place);
            bool is = there(st, c->turns[t]);
            if (told && !is)
                print_error("lost %s: place %zu of %zu, kind %d, seed %llu\n", c->turns[t], place, run.end, (int)kind,
                            (unsigned long long)seed);
            *losses += told && !is;
            *remains += c->deleted && c->deleted <= place && is;
        }
        for (unsigned k = 0; k < c->n_segments; k++) {
            struct storage_found f;
            if (!testing_find(st, owner, k ? c->segments[k - 1] : 0, c->segments[k], &f))
                (void)testing_read(st, &f, c->segments[k]); /* compares, where it can be read */
        }
    }
    storage_close(st);
    testing_dir_remove(dir);
}

static void test_any_moment(void **state)
{
    (void)state;
    const char *wanted = getenv("TORTURE_CASES");
    unsigned cases = wanted ? (unsigned)atoi(wanted) : CASES_DEFAULT, losses = 0, remains = 0;
    uint64_t seed = 11;
    record(seed);
    for (unsigned i = 0; i < cases; i++) {
        size_t place = 1 + testing_random(&seed) % run.end;
        check(place, (enum crash_kind)(i % CRASH_KINDS), testing_random(&seed), &losses, &remains);
    }
    crash_forget();
    print_message("%u cases: %u losses, %u remains\n", cases, losses, remains);
    assert_int_equal(losses, 0);
    assert_int_equal(remains, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_moment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

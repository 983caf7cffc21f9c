/* grammar_says.h - what a schema's grammar says of texts, for the tests of structured output. */
#ifndef CONVOD_TESTS_GRAMMAR_SAYS_H
#define CONVOD_TESTS_GRAMMAR_SAYS_H

#include "engine/grammar/grammar.h"

/* What schemas are compiled with; NULL: without a vocabulary. */
extern struct grammar_vocab *vocab;

/* Each fails the test where it does not go as it says. */
struct grammar *compiled(const char *schema);
struct grammar_match *begin(struct grammar *g);
/* Whether the schema's grammar takes the whole text. */
bool accepts(struct grammar *g, const char *text);
/* The schema is refused by this code, with this part of a reason. */
void refused(const char *schema, int code, const char *part);
/* The schema allows these texts, and not those; both end in NULL. */
void expect(const char *schema, const char *const *good, const char *const *bad);
#define LIST(...)                                                                                                      \
    (const char *const[])                                                                                              \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }

/* `before`, n times `piece`, `after`; free() it. */
char *repeated(const char *before, const char *piece, size_t n, const char *after);

#endif

/* expr.h - the expressions that a grammar is made of, shared by the files of this room.
 *
 * An expression describes a set of byte strings. Equal expressions are one: they are numbered, and made through the
 * constructors below, which look them up (hash consing) and simplify, so that comparing is comparing numbers. The
 * derivative of an expression by a byte b describes what may follow b (Brzozowski 1964; Owens, Reppy and Turon,
 * "Regular-expression derivatives re-examined", 2009): a state of the machine is an expression, a step a derivative.
 * References make it context-free: what stands behind one in its EXPR_CAT is the stack.
 *
 * Errors stick: after the first one `failed` is set, constructors give EXPR_NOTHING, and whoever called looks at it
 * once at the end.
 */
#ifndef CONVOD_GRAMMAR_EXPR_H
#define CONVOD_GRAMMAR_EXPR_H

#include "engine/grammar/grammar.h"

typedef uint32_t expr;

#define EXPR_NOTHING  0u /* no text */
#define EXPR_EMPTY    1u /* the empty text */
#define EXPR_ANYTHING 2u /* every text: not nothing */
#define EXPR_INFINITE UINT32_MAX

enum expr_kind {
    EXPR_KIND_NOTHING,
    EXPR_KIND_EMPTY,
    EXPR_KIND_SET,      /* a: index of a set of bytes */
    EXPR_KIND_CAT,      /* a, then b; a is never a CAT */
    EXPR_KIND_ALT,      /* one of lists[a .. a + b) */
    EXPR_KIND_AND,      /* all of lists[a .. a + b) */
    EXPR_KIND_NOT,      /* all texts but a's */
    EXPR_KIND_REPEAT,   /* a, at least b and at most c times */
    EXPR_KIND_REF,      /* body of reference a, whose text is never empty */
    EXPR_KIND_MULTIPLE, /* decimal digits that make b * 10^n + digits divisible by a */
};

enum {
    EXPR_NULLABLE = 1, /* describes the empty text, too */
    EXPR_LIVE = 2,     /* an AND that was found to describe some text */
    EXPR_DEAD = 4,     /* an AND that was found to describe none */
};

struct expr_node {
    uint8_t kind, flags;
    uint32_t a, b, c;
    uint32_t row;  /* of its steps; 0: none was taken */
    uint32_t mask; /* 0: none was made */
};

struct byte_set {
    uint64_t bits[4];
};
static inline bool byte_set_has(const struct byte_set *s, unsigned b)
{
    return s->bits[b >> 6] >> (b & 63) & 1;
}
static inline void byte_set_add(struct byte_set *s, unsigned first, unsigned last)
{
    for (unsigned b = first; b <= last; b++)
        s->bits[b >> 6] |= 1ULL << (b & 63);
}

struct grammar_mask;
struct grammar_match;

struct grammar {
    const struct grammar_vocab *vocab;
    expr root;
    int failed;               /* the first error */
    size_t work, most;        /* done, and allowed now */
    size_t bytes, most_bytes; /* of what follows, and allowed now */

    struct expr_node *nodes;
    uint32_t n_nodes, nodes_room;
    uint32_t *lists;
    uint32_t n_lists, lists_room;
    struct byte_set *sets;
    uint32_t n_sets, sets_room;
    uint32_t *table; /* open addressing; 0: empty */
    uint32_t table_mask, table_used;
    expr *refs; /* bodies */
    uint32_t n_refs, refs_room;

    uint8_t class_of[256];      /* bytes that no set tells apart are of one class; once compiled */
    uint8_t class_byte[256];    /* a byte of each */
    uint32_t n_classes;         /* 0: not compiled yet */
    uint64_t class_groups[256]; /* mask.c: kinds of characters that begin with a byte of a class */
    uint32_t stride;            /* n_classes, and two words of what mask.c found of the state */
    uint32_t *rows;             /* [n_rows][stride] */
    uint32_t n_rows, rows_room; /* row 0 is not used */
    struct grammar_mask *masks; /* mask 0 is not used */
    uint32_t n_masks, masks_room;

    expr character; /* a character within a JSON string, in any way of writing it */
    expr plain;     /* any number of them without escapes */
    expr quote;     /* " */

    uint32_t base_nodes, base_lists, base_sets; /* as compiled: what emptying leaves */
    uint32_t emptyings;
    uint32_t masks_made;
    struct grammar_match *matches; /* whose states outlive an emptying */
};

/* Sets the first error and gives EXPR_NOTHING. */
expr expr_fail(struct grammar *g, int error);
/* Counts a piece of work. False: it was the last that a grammar may take (then it has failed with -E2BIG), or it had
 * failed before. */
bool expr_work(struct grammar *g);

/* Makes room for one more of `size` bytes in an array of n; NULL and an error when there is none (-ENOSPC:
 * GRAMMAR_MAX_BYTES was reached). */
void *expr_grow(struct grammar *g, void *array, uint32_t n, uint32_t *room, size_t size);

int expr_init(struct grammar *g);
void expr_release(struct grammar *g);
/* Forgets what was found since the grammar was compiled, all but n states, whose numbers change. An error: nothing was
 * forgotten. */
void expr_forget(struct grammar *g, expr *const *states, size_t n);

/* ---- constructors ---------------------------------------------------------------------------------------------- */

expr expr_set(struct grammar *g, const struct byte_set *s);
expr expr_bytes(struct grammar *g, unsigned first, unsigned last); /* one byte of [first, last] */
expr expr_text(struct grammar *g, const char *text);               /* these bytes */
expr expr_cat(struct grammar *g, expr a, expr b);
expr expr_alt(struct grammar *g, expr a, expr b);
expr expr_alts(struct grammar *g, const expr *of, size_t n);
expr expr_and(struct grammar *g, expr a, expr b);
expr expr_ands(struct grammar *g, const expr *of, size_t n);
expr expr_not(struct grammar *g, expr a);
expr expr_repeat(struct grammar *g, expr a, uint32_t min, uint32_t max);
expr expr_optional(struct grammar *g, expr a);
expr expr_multiple(struct grammar *g, uint32_t of, uint32_t remainder);
/* A reference whose body is set later. */
expr expr_ref(struct grammar *g, uint32_t ref);
uint32_t expr_ref_new(struct grammar *g);

static inline bool expr_nullable(const struct grammar *g, expr e)
{
    return g->nodes[e].flags & EXPR_NULLABLE;
}

/* The number of fixed length n whose digits lie between lo's and hi's, digit by digit as numbers are compared; digit i
 * ranges over [min[i], max[i]], and write() gives the expression of a range of one. */
struct expr_digits {
    const uint32_t *lo, *hi, *min, *max;
    expr (*write)(struct grammar *g, void *arg, int at, uint32_t first, uint32_t last);
    void *arg;
};
expr expr_digit_range(struct grammar *g, const struct expr_digits *d, int n);

/* ---- the machine ----------------------------------------------------------------------------------------------- */

/* The derivative of e by a byte, while the grammar is compiled: of ANDs that describe nothing it may be made. */
expr expr_derive(struct grammar *g, expr e, unsigned byte);
/* The same from the table of steps, by class of byte. The grammar must be compiled. */
expr expr_step_slow(struct grammar *g, expr e, unsigned class);
static inline expr expr_step(struct grammar *g, expr e, unsigned class)
{
    uint32_t row = g->nodes[e].row;
    uint32_t next = row ? g->rows[(size_t)row * g->stride + class] : UINT32_MAX;
    return next != UINT32_MAX ? next : expr_step_slow(g, e, class);
}
/* The row of e, which may be all UINT32_MAX; NULL and an error when there is no room. */
uint32_t *expr_row(struct grammar *g, expr e);
/* Whether the whole text is in e. */
bool expr_matches(struct grammar *g, expr e, const char *text, size_t len);

/* Closes the compiling: classes of bytes, and whatever no text can follow is taken out. -EINVAL: nothing is left, or a
 * reference leads to itself. */
int expr_finish(struct grammar *g, char *err, size_t err_size);

/* grammar.c: an empty grammar, and what makes it one that may run; in words where it cannot (`what`: "schema"). */
int grammar_begin(const struct grammar_vocab *v, struct grammar **out);
int grammar_end(struct grammar *g, const char *what, char *err, size_t err_size);

/* ---- what grammars are made of --------------------------------------------------------------------------------- */

/* How characters are written in the text that is described. */
enum char_writing {
    CHAR_UTF8,   /* as they are */
    CHAR_IN_JSON /* within a JSON string: as they are or escaped; ^ and $ are its quotes */
};

struct char_range {
    uint32_t first, last;
};
/* A character out of n ranges, ascending and apart. */
expr char_class(struct grammar *g, enum char_writing writing, const struct char_range *ranges, size_t n);
/* The code point of the UTF-8 character text[0..n). */
uint32_t char_decode(const char *text, size_t n);
/* The characters of a text, UTF-8; EXPR_NOTHING where it is not. */
expr char_text(struct grammar *g, enum char_writing writing, const char *text, size_t len);
/* Sets g->character and g->plain. */
void char_prepare(struct grammar *g);

/* A regular expression; `searched`: it may match anywhere in the text. CHAR_IN_JSON gives strings with their quotes.
 * 0, -EINVAL, -ENOTSUP, -E2BIG; err says what and where. */
int pattern_compile(struct grammar *g, enum char_writing writing, const char *pattern, size_t len, bool searched,
                    expr *out, char *err, size_t err_size);

/* The pattern of a format, matching the whole string; NULL: none is known. */
const char *format_pattern(const char *name);

/* JSON numbers within bounds. NAN: no bound. */
struct number_bounds {
    double min, max;
    bool above, below; /* min, max themselves are outside */
    bool integer;
    uint32_t multiple; /* of what an integer is a multiple; 0: of anything */
};
expr number_within(struct grammar *g, const struct number_bounds *b);

/* ---- masks ----------------------------------------------------------------------------------------------------- */

/* Forgets all masks. */
void mask_release(struct grammar *g);
/* Makes out, [grammar_vocab_words()], the mask of state e; errors stick. */
void mask_make(struct grammar *g, expr e, uint32_t *out);

/* forced.c: the text that must follow e, up to a border; bytes. */
size_t forced_text(struct grammar *g, expr e, char *text, size_t room);

#endif

/* engine.h - a language model that is ready to run: its file, tokenizer, chat format, KV pages, forward step, sampler.
 *
 * An `engine` is one opened GGUF file on one backend. A `engine_seq` is a run of tokens whose keys and values lie in
 * the engine's pages. One step takes any number of sequences with any number of new tokens each, and picks the tokens
 * behind them. The engine knows no conversation, no owner and no disk.
 *
 * Threads: engine_open() .. engine_close(), engine_seq_*, engine_step_* and engine_kv_* belong to one thread (the
 * engine thread). Functions marked [any thread] read constant data only.
 *
 * Errors: 0 or a negative errno value; where a person will read the reason it goes to err (always terminated when
 * err_size > 0). Outputs are written on success only, except where a function says otherwise. -EIO: the device failed.
 * It does not come back; every later step, export and import gives -EIO too, and engine_failure() says why.
 */
#ifndef CONVOD_ENGINE_H
#define CONVOD_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t engine_token;

struct cJSON;
struct engine;
struct engine_seq;

/* ---- open ---------------------------------------------------------------------------------------------------- */

struct engine_opts {
    const char *model_path; /* a GGUF file; of a model in parts the first */
    const char *backend;    /* kernels_opts.backend; NULL = "auto" */
    int device;             /* kernels_opts.device */
    const char *numerics;   /* kernels_opts.numerics; NULL = "device" */
    int threads;            /* 0 = one per available core */
    int ctx_tokens;         /* longest sequence; 0 = the model's own length, capped by kv_bytes */
    size_t kv_bytes; /* memory for KV pages; 0 = half of the memory that is free after loading, of a device all */
    double device_fraction; /* of a device's memory, in (0, 1], all that is taken of it; 0 = 0.9; nothing to the host */
    int host_layers;        /* of a device: the model's last layers, so many, have their weights in the host's memory */
    const char *kv_type;    /* "bf16" (NULL) or "f16" */
    const char *chat_format; /* one of engine_chat_format_at(); NULL = recognise the template */
    bool need_chat;          /* a file whose chat format is not known is refused, rather than opened without one */
    int step_tokens;         /* most new tokens in one step (scratch is sized for it); 0 = 512 */
    int step_picks;          /* most tokens that are picked in one step; 0 = 64 */
    int step_logits;         /* most rows of logits that one step hands out; 0 = none */
    const char *cache_dir;   /* where the file's SHA-256 is remembered by inode, size and time; NULL = nowhere */
    void (*progress)(void *arg, double fraction, const char *what); /* may be NULL; called on the opening thread */
    void *progress_arg;
};

/* Opens a model. -EBADMSG: the file is damaged or hostile; -ENOTSUP: well-formed but an architecture, type,
 * pre-tokenizer or chat template we lack; -ENOMEM: it does not fit; -ENOENT, -EACCES, -EINVAL (opts) as usual.
 * err names the file, the field and what would help. */
int engine_open(const struct engine_opts *opts, struct engine **out, char *err, size_t err_size);

/* What engine_open() would refuse, without loading: the file's header, vocabulary and chat format, the backend, and
 * whether weights, KV pages and scratch fit into the memory of this machine (as a whole: others may use it now). */
int engine_check(const struct engine_opts *opts, char *err, size_t err_size);

/* NULL is fine. All sequences must have been freed. */
void engine_close(struct engine *e);

#define ENGINE_NUMERICS_TEXT 23 /* bytes, with the terminator */

/* How models write calls of tools; engine_info.calls says which. */
enum engine_call_syntax {
    ENGINE_CALLS_NONE,            /* the chat format has no tools that we know how to write */
    ENGINE_CALLS_HERMES,          /* Qwen 2.5 and 3: <tool_call>{"name": NAME, "arguments": {}}</tool_call> */
    ENGINE_CALLS_XML,             /* Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>VALUE</parameter>... */
    ENGINE_CALLS_LLAMA,           /* Llama 3: {"name": NAME, "parameters": {}} */
    ENGINE_CALLS_MISTRAL_LIST,    /* [TOOL_CALLS][{"name": NAME, "arguments": {}}, ...] */
    ENGINE_CALLS_MISTRAL_LIST_ID, /* the same with "id": "9 characters" behind the arguments */
    ENGINE_CALLS_MISTRAL,         /* [TOOL_CALLS]NAME[ARGS]{} */
    ENGINE_CALLS_MISTRAL_ID,      /* [TOOL_CALLS]NAME[CALL_ID]9 characters[ARGS]{} */
    ENGINE_CALLS_HARMONY, /* gpt-oss: <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{} */
};

struct engine_info {
    const char *arch;              /* "qwen2" */
    const char *name;              /* general.name, or the file's base name without .gguf */
    const char *file;              /* as given */
    const char *backend;           /* kernels_backend(): "cpu-avx2" */
    const char *backend_notes;     /* how it computes with this model, for a person; NULL: as always */
    const char *chat_format;       /* "chatml"; NULL: a base model without a template (engine_chat_* then fail) */
    enum engine_call_syntax calls; /* how its chat format writes calls of tools */
    const char *kv_type;           /* "bf16" */
    const char *notes;             /* what is wrong in the file but does no harm, a line each; NULL: nothing */
    const char *quantization;      /* type of most weight bytes: "Q4_K" */
    uint64_t parameters;
    uint64_t file_bytes, weight_bytes;
    uint64_t token_weight_bytes; /* that one decoded token reads: all but an embedding table of its own */
    int n_layers, n_vocab, n_embd;
    /* Layers whose weights are in the host's memory; what every step brings to the device for them, and how long that
     * takes, measured when they were loaded. */
    int host_layers;
    uint64_t host_bytes;
    double host_ms;
    int token_bytes_max;   /* longest token: a text of n bytes has at least n / token_bytes_max tokens */
    int ctx_model;         /* the model's own context length */
    int ctx_tokens;        /* longest sequence here */
    size_t kv_token_bytes; /* raw KV of one token, all layers */
    size_t kv_bytes;       /* budget for pages */
    int step_tokens, step_picks, step_logits;
    uint8_t model_sha256[32]; /* of the model file */
    /* SHA-256 over everything that a stored KV row depends on but its rounding: the model file's SHA-256, RoPE
     * settings, KV type, canonical layout. Not the page size. */
    uint8_t kv_identity[32];
    /* How rows are rounded: the version of the order of additions, and kernels_numerics(), whose bits they are: "3
     * cpu", "3 cuda device 1 sm_90". Where two engines have the same identity and the same numerics, their rows are the
     * same to the bit. */
    char numerics[ENGINE_NUMERICS_TEXT];
};

/* [any thread] Constant for the engine's life. */
const struct engine_info *engine_info(const struct engine *e);

/* What the device failed with, for a person; NULL: it did not. */
const char *engine_failure(const struct engine *e);

/* How the device is, as kernels_health() has it: 0 and NaN for what is not known. */
struct engine_device {
    char name[96];
    uint64_t memory_bytes, memory_used_bytes;
    double temperature_c, power_w, utilization;
};

/* [any thread] False: there is no device beside the processor, or nothing is known of it. */
bool engine_device(const struct engine *e, struct engine_device *out);

/* ---- tokens and text ----------------------------------------------------------------------------------------- */

/* A growing array of tokens. Zero-initialise; free with engine_tokens_free(). */
struct engine_tokens {
    engine_token *ids;
    size_t n, capacity;
};
void engine_tokens_free(struct engine_tokens *t);
/* Appends n ids. 0 or -ENOMEM (t unchanged). */
int engine_tokens_append(struct engine_tokens *t, const engine_token *ids, size_t n);

/* [any thread] Appends the tokens of text[0..len). The text is data: no control token can come out of it, and the
 * tokens that the chat format gives a meaning (such as <tool_call>) neither. Bytes that are not UTF-8 are tokenized
 * as bytes. add_special: also the model's BOS/EOS as its file says. -ENOMEM; out is unchanged on error. */
int engine_tokenize(const struct engine *e, const char *text, size_t len, bool add_special, struct engine_tokens *out);
/* [any thread] The same of a text that goes on with another: nothing is put in front of it. */
int engine_tokenize_rest(const struct engine *e, const char *text, size_t len, struct engine_tokens *out);

/* [any thread] The bytes of one token, not terminated, valid for the engine's life; *len may be 0 (control tokens, and
 * ids outside the vocabulary). The bytes may end within a UTF-8 character. */
const char *engine_token_bytes(const struct engine *e, engine_token id, size_t *len);

/* [any thread] True for the tokens that end an answer (EOS, EOT, the chat format's end of turn). */
bool engine_token_ends_answer(const struct engine *e, engine_token id);

/* ---- chat ---------------------------------------------------------------------------------------------------- */

/* What a message is. The parts of one answer (its text, then its calls) follow each other, and so do the results of its
 * calls: the format writes them as one. */
enum engine_role {
    ENGINE_SYSTEM,
    ENGINE_USER,
    ENGINE_ASSISTANT,
    ENGINE_CALL,   /* of a tool: `name`, and the arguments, a JSON value, as text */
    ENGINE_RESULT, /* of a call */
    ENGINE_TOOLS, /* definitions of tools: a JSON array of {"type": "function", "function": {"name", ...}} as text. Only
                     the first of a context's messages */
};

/* [any thread] Names of the chat formats ("chatml", ...), i from 0 on; NULL behind the last. */
const char *engine_chat_format_at(size_t i);

struct engine_message {
    enum engine_role role;
    const char *text; /* UTF-8, not terminated */
    size_t len;
    const char *name; /* of a call's tool, or of a result's; terminated. A result may have none (NULL) */
    const char *id;   /* of a call or a result, as the client names it; NULL: none */
};

enum {
    ENGINE_CHAT_FIRST = 1, /* the context begins here: BOS and the template's default system prompt where it has one */
    ENGINE_CHAT_OPEN = 2,  /* ends with the opening of an assistant's answer */
    /* With OPEN: the answer opens with the empty thinking that a template writes where none is wanted (Qwen 3). Where
       the template has no such form it changes nothing. */
    ENGINE_CHAT_NO_THINKING = 4,
    /* With FIRST: how much is to be thought, where the template says that at the beginning (gpt-oss); none of them is
       the template's own default. */
    ENGINE_CHAT_LOW = 8,
    ENGINE_CHAT_MEDIUM = 16,
    ENGINE_CHAT_HIGH = 32,
    ENGINE_CHAT_EFFORTS = ENGINE_CHAT_LOW | ENGINE_CHAT_MEDIUM | ENGINE_CHAT_HIGH,
};

/* [any thread] Appends the tokens of messages as the chat format renders them. Without FIRST the messages follow a
 * context whose last message is closed. Rendering [a b] at once gives the tokens of rendering [a] and then [b], as long
 * as a leading system message and the user message after it, an answer with its calls, and the results of one answer's
 * calls, are each rendered in one call. -ENOTSUP: no chat format, or an order of roles that the format cannot express,
 * or tools where it has none (err says which); -EINVAL: definitions or arguments that are not JSON; -ENOMEM. */
int engine_chat_render(const struct engine *e, const struct engine_message *messages, size_t n, unsigned flags,
                       struct engine_tokens *out, char *err, size_t err_size);

/* [any thread] What of NO_THINKING, LOW, MEDIUM and HIGH a context was rendered with, as far as its tokens tell: one of
 * the last three where it begins as a template writes that, NO_THINKING where it ends with the opening of an answer
 * without thinking. */
unsigned engine_chat_effort(const struct engine *e, const engine_token *ids, size_t n);

/* [any thread] Whether the template says at the beginning of a context how much is to be thought. */
bool engine_chat_has_efforts(const struct engine *e);

/* [any thread] Appends what closes an assistant's answer of which the text's tokens are in the context, up to where the
 * next message begins (ChatML: <|im_end|> and a newline). */
int engine_chat_close(const struct engine *e, struct engine_tokens *out);

/* [any thread] Appends the beginning of a call behind an opened answer, so that the model can only go on with it: up to
 * the arguments of tool `name`, or, NULL, up to where the name of any begins. -ENOTSUP: the format has no tools. */
int engine_chat_open_call(const struct engine *e, const char *name, struct engine_tokens *out);

/* [any thread] Appends text that an opened answer begins with, so that the model goes on with it; where an answer opens
 * with thinking, that is over. -ENOTSUP: no chat format; -ENOMEM, -EOVERFLOW: too long. */
int engine_chat_open_text(const struct engine *e, const char *text, size_t len, struct engine_tokens *out);

/* [any thread] Appends what ends an answer's thinking, where it stands within it: what comes then is its text.
 * -ENOTSUP: the format has no thinking. */
int engine_chat_end_thinking(const struct engine *e, struct engine_tokens *out);

/* [any thread] Writes a JSON text anew as chat templates write values: a space behind each comma and colon, no other,
 * and no more escapes than needed. `sorted`: also members by name and numbers by value, so that equal values are equal
 * bytes. *out is malloc'd and terminated. -EINVAL: it is not JSON, or nested deeper than 64 levels; -ENOMEM. */
int engine_json(const char *text, size_t len, bool sorted, char **out, size_t *out_len);

/* [any thread] A text as a tree of cJSON, to be freed with cJSON_Delete(), in which whole numbers that no double has
 * keep their text: it is their valuestring, and what is printed. *end, if not NULL: where in the text the value, or
 * what is read of it, ends. NULL: it is not JSON, or there is no memory. */
struct cJSON *engine_json_parse(const char *text, size_t len, const char **end);
/* [any thread] The tree's text, to be freed with cJSON_free(), whose numbers read back as they are (cJSON prints 15
 * digits). NULL: v is NULL, or there is no memory. */
char *engine_json_print(const struct cJSON *v);

/* ---- sequences ------------------------------------------------------------------------------------------------ */

/* A new empty sequence. NULL: out of memory. Pages are taken as tokens arrive. */
struct engine_seq *engine_seq_new(struct engine *e);
/* Gives its pages back (shared pages when their last user goes). NULL is fine. */
void engine_seq_free(struct engine_seq *s);
/* Tokens whose keys and values are in pages. */
int engine_seq_length(const struct engine_seq *s);
/* The tokens themselves, [engine_seq_length()], valid until the sequence changes. */
const engine_token *engine_seq_tokens(const struct engine_seq *s);
/* Drops all tokens from n on, n <= length. -ERANGE: a sliding-window layer has already dropped what position n
 * would see; the sequence is unchanged then. */
int engine_seq_truncate(struct engine_seq *s, int n);
/* A new sequence with the first n tokens of s; pages are shared until one of them writes into one. NULL: no
 * memory, or a sliding-window layer has already dropped what position n would see. */
struct engine_seq *engine_seq_fork(struct engine_seq *s, int n);
/* Lets sliding-window layers drop pages that no position >= length will see, except those of the unfinished run of 256
 * tokens (it can still be exported). Until then they are kept for truncate. */
void engine_seq_settle(struct engine_seq *s);

struct engine_kv_use {
    size_t used_bytes, budget_bytes; /* pages in use (shared ones counted once), and the pool */
};
struct engine_kv_use engine_kv_use(const struct engine *e);
/* Whether n more tokens on s (NULL: on a new sequence) find free pages now. */
bool engine_kv_fits(const struct engine *e, const struct engine_seq *s, int n);
/* Whether n tokens on a new sequence might find them when all sequences but these had gone. False: they would not.
 * (True is not sure where one of these shares pages with another one.) */
bool engine_kv_might_fit(const struct engine *e, struct engine_seq *const *kept, int n_kept, int n);

/* ---- sampler --------------------------------------------------------------------------------------------------- */

struct engine_sampling {
    float temperature;                         /* 0 = greedy */
    int top_k;                                 /* 0 = off */
    float top_p;                               /* 1 = off, 0 = the likeliest only */
    float min_p;                               /* 0 = off */
    float repetition_penalty;                  /* 1 = off */
    float presence_penalty, frequency_penalty; /* 0 = off */
    int penalty_last;                          /* tokens looked back at; 0 = 256 */
    uint64_t seed;
};
#define ENGINE_SAMPLING_DEFAULT                                                                                        \
    {                                                                                                                  \
        .temperature = 0.7f, .top_k = 40, .top_p = 0.95f, .min_p = 0.0f, .repetition_penalty = 1.0f                    \
    }

/* Checks ranges; -EINVAL, the first field that is outside, and its range in words (both static). [any thread] */
int engine_sampling_check(const struct engine_sampling *s, const char **field, const char **range);

#define ENGINE_TOP_MAX  32   /* alternatives of a pick */
#define ENGINE_BIAS_MAX 1024 /* biases of a pick */

/* What is added to a token's logit, before penalties and temperature. */
struct engine_bias {
    engine_token token;
    float bias; /* finite */
};

struct engine_logprob {
    engine_token token; /* -1: there are no more */
    float logprob;
};

/* One token to pick. The random number is a function of (seed, position) only, and no pick depends on others. */
struct engine_pick {
    const struct engine_sampling *settings; /* checked */
    /* Bit i % 32 of word i / 32: token i may be picked; NULL: all may. ceil(n_vocab / 32) words. Read by
     * engine_step_wait(): until then it may be made, while the pass is under way. */
    const uint32_t *mask;
    const struct engine_bias *bias; /* [n_bias], distinct tokens; those that the vocabulary lacks do nothing */
    int n_bias;                     /* at most ENGINE_BIAS_MAX */
    bool logprobs;                  /* wanted: logprob, and n_top alternatives, at most ENGINE_TOP_MAX */
    int n_top;
    /* Out: 0; -EDOM: the logits hold a NaN or no finite value, that answer must fail and its KV must not be kept;
     * -ENODATA: no token that the mask allows has a finite logit. */
    int result;
    engine_token token; /* where result is 0 */
    float logprob;      /* natural; of the model's own distribution, before biases, penalties, temperature and mask */
    struct engine_logprob top[ENGINE_TOP_MAX]; /* [n_top], likeliest first, the lower token first among equals */
};

/* ---- step ------------------------------------------------------------------------------------------------------ */

struct engine_step_item {
    struct engine_seq *seq;     /* each sequence at most once in a step */
    const engine_token *tokens; /* n new tokens */
    int n;
    struct engine_pick *pick; /* the token behind them; NULL: none is picked */
    const int *want;          /* indices in [0, n), ascending, whose logits are handed out */
    int n_want;
    int result; /* out: 0, or why this item was not run: -ENOSPC (no free pages), -EOVERFLOW (ctx_tokens) */
};

/* Starts one forward pass: the new tokens of all items go through the model and are appended to their sequences. The
 * sums of n, of picks and of n_want are at most info's step_tokens, step_picks and step_logits. An item whose result is
 * not 0 leaves its sequence as it was. -EINVAL: the call itself is malformed; -ENOMEM; -EIO. On success
 * engine_step_wait() must follow, and until it returns items, what they point at (but `tokens` and `want`), and the
 * sequences of the items stay as they are; other sequences may be used. */
int engine_step_start(struct engine *e, struct engine_step_item *items, int n_items);

/* Picks tokens behind the pass, waits for it, and writes the picks of all items that ran. *logits (NULL: not asked for)
 * gets [sum of n_want over items that ran][n_vocab], in item order, valid until the next step. -EIO: the sequences are
 * as they were before.
 */
int engine_step_wait(struct engine *e, const float **logits);

/* A thread for what is done beside the one that runs the model. NULL: out of memory. */
struct engine_beside;
struct engine_beside *engine_beside_new(void);
/* NULL is fine. */
void engine_beside_free(struct engine_beside *b);
/* Has work(arg) done on that thread, or at once where it cannot be made. engine_beside_wait() must follow. */
void engine_beside_start(struct engine_beside *b, void (*work)(void *arg), void *arg);
/* Returns when the work is done. */
void engine_beside_wait(struct engine_beside *b);

/* ---- where the time goes ---------------------------------------------------------------------------------------- */

/* What one step does at one kind of operation: how often, how long it took alone, and what it must read and write and
 * compute on paper (weights and KV once each; a multiplication and an addition are two operations). */
struct engine_profile_row {
    const char *name;
    int calls;
    double ms, bytes, operations;
};
#define ENGINE_PROFILE_ROWS 20

struct engine_profile {
    int n_rows; /* those with calls, in the order of a step */
    struct engine_profile_row rows[ENGINE_PROFILE_ROWS];
    double ms;       /* the sum of the rows */
    double whole_ms; /* of the same step when nothing is looked at */
};

/* Runs steps of `sequences` sequences with `tokens` new tokens each behind `history` others (which nobody computed),
 * and picks a token from each; medians of several rounds. -EINVAL: more than a step or a context takes; -ENOSPC,
 * -ENOMEM, -EIO. No step may be under way. */
int engine_profile(struct engine *e, int sequences, int tokens, int history, struct engine_profile *out);

/* ---- keys and values in and out ------------------------------------------------------------------------------- */

/* The canonical layout of n tokens' KV, independent of backend and page size: for every layer in order, keys
 * [channels][n] and then values [n][channels], 16-bit elements without padding. */
struct engine_kv_array {
    int channels;
    bool channel_major; /* keys */
};
/* [any thread] The arrays of the layout, 2 per layer; *n_arrays gets their number. */
const struct engine_kv_array *engine_kv_layout(const struct engine *e, int *n_arrays);

/* Copies positions [first, first + n) of s out. buf holds n * info->kv_token_bytes. -ERANGE: outside the sequence, or
 * a window layer dropped it; -ENOMEM; -EIO. */
int engine_kv_export(struct engine_seq *s, int first, int n, void *buf);

/* Appends n tokens with their stored KV: -ENOSPC, -EOVERFLOW as in a step; -EINVAL: none; -ENOMEM; -EIO. buf is read
 * before this returns; the rows may reach a device later, beside others' steps, and whatever uses them waits there. */
int engine_kv_import(struct engine_seq *s, const engine_token *tokens, int n, const void *buf);

/* Tokens whose KV is kept in another form. */
struct engine_kv_part {
    const engine_token *tokens;
    int n;
    /* The rows of one array of the layout, count channels * n: where they are, or made in buf, which has room for them
     * and is aligned to 64 bytes. NULL: they cannot be had. Called by any worker, several at once, once for each array.
     */
    const void *(*rows)(void *arg, int array, void *buf);
    void *arg;
};
/* Appends parts, one behind the other, as engine_kv_import() does, their rows being made where they are copied to
 * pages, on all workers. *n_taken gets how many came in: what is behind the first one that could not be had, or that
 * there are no pages for, did not. 0: all did; -EBADMSG: rows could not be had; -ENOSPC, -EOVERFLOW, -EINVAL, -ENOMEM,
 * -EIO.
 *
 * `until` is how long the sequence will be when the last of many such calls is done (0: not known). What no query from
 * there on sees is not asked for: window layers get rows of their window alone, and before it has that length, the
 * sequence can neither be continued nor forked nor truncated to where these are missing. */
int engine_kv_restore(struct engine_seq *s, const struct engine_kv_part *parts, int n_parts, int until, int *n_taken);

/* How many of its first tokens the sequence can be continued from, at most: all, unless a restore of it has not come to
 * its end. */
int engine_seq_usable(const struct engine_seq *s);

/* The same in the split form that storage.h documents, where the backend makes and undoes that itself: what is left to
 * do for whoever stores it is to pack it. It is in a buffer of a bounded pool, which the backend reads and writes.
 *
 * A buffer for up to n tokens, contents undefined. NULL: the backend has no such form, or all buffers are taken: the
 * functions above do without. */
void *engine_kv_buffer(struct engine *e, int n);
/* [any thread] Gives it back. Before the engine is closed. */
void engine_kv_buffer_release(void *buffer);
/* As engine_kv_export(). */
int engine_kv_export_split(struct engine_seq *s, int first, int n, void *buffer);
/* As engine_kv_import(), of what must be consistent (storage_split_decode()). It takes the buffer over where it returns
 * 0: it is given back when the device has read it. */
int engine_kv_import_split(struct engine_seq *s, const engine_token *tokens, int n, void *buffer);

/* ---- forms of answers ------------------------------------------------------------------------------------------ */

/* What an answer must be: compiled from a JSON Schema, any JSON object, or a regular expression. [any thread], but it
 * is constant for all but matches. docs/structured-output.md says what schemas mean. */
struct engine_form;

enum engine_form_kind { ENGINE_FORM_OBJECT, ENGINE_FORM_SCHEMA, ENGINE_FORM_PATTERN, ENGINE_FORM_CALL };

/* text[0..len): the schema or pattern; of an object nothing. lenient: what a schema asks for and is not supported is
 * passed over. -EINVAL: it is none, or nothing can fulfil it; -ENOTSUP, -E2BIG (err says which); -ENOMEM. Takes some
 * 0.5 ms, 0.2 s at most. */
int engine_form_new(enum engine_form_kind kind, const char *text, size_t len, bool lenient, struct engine_form **out,
                    char *err, size_t err_size);
/* What a call within an answer must be, between its marks, where models write it so. tools: a JSON list of {"name":
 * NAME, "parameters": SCHEMA}, without parameters where the arguments are any object. *at: the tool that an error is
 * about. */
int engine_form_calls(enum engine_call_syntax syntax, const char *tools, size_t len, struct engine_form **out,
                      size_t *at, char *err, size_t err_size);
/* Another owner of it; each frees it. */
struct engine_form *engine_form_share(struct engine_form *f);
/* NULL is fine. */
void engine_form_free(struct engine_form *f);
/* Memory that it holds. */
size_t engine_form_bytes(const struct engine_form *f);

/* The forms in use on an engine: an owner's equal ones share what was found of them, also with answers that come later.
 * Belongs to the engine thread, like all below; it may lend them to its engine_beside. */
struct engine_forms;
/* NULL: out of memory. The engine must outlive it. */
struct engine_forms *engine_forms_new(const struct engine *e);
/* NULL is fine. Its matches must have been freed. */
void engine_forms_free(struct engine_forms *fs);

#define ENGINE_FORMS_OWNER_BYTES (96u << 20) /* states and masks of all forms of an owner */

/* How far an answer is. */
struct engine_match;
/* At its beginning. owner: whose answer it is; f is used for one owner's answers only. -EINVAL: the vocabulary has no
 * token that ends an answer; -ENOMEM. */
int engine_match_new(struct engine_forms *fs, struct engine_form *f, const char *owner, struct engine_match **out);
/* NULL is fine. */
void engine_match_free(struct engine_match *m);
/* Goes on by a token. -EILSEQ: the form does not allow it; -E2BIG: too much work; -ENOMEM. */
int engine_match_push(struct engine_match *m, engine_token id);
/* The same by bytes that are part of the text already. */
int engine_match_push_text(struct engine_match *m, const char *text, size_t len);
/* Which tokens may come next, for engine_pick.mask, valid until the next call on m and the caller's to change until
 * then; among them those that end an answer where it may end. NULL where there are none, with *rc: as
 * engine_match_push(), or -ENOENT: the vocabulary lacks what must come. */
uint32_t *engine_match_mask(struct engine_match *m, int *rc);
/* Appends the tokens of the text that must come next, as the model would write them. They are not taken yet. 0 or
 * -ENOMEM. */
int engine_match_forced(struct engine_match *m, struct engine_tokens *out);
/* Whether the answer is whole, and nothing more may come. */
bool engine_match_ended(const struct engine_match *m);
/* Whether the answer is whole, and more may come. */
bool engine_match_complete(const struct engine_match *m);
/* All tokens but those that end an answer, as a mask; NULL: -ENOMEM or -EINVAL in *rc, as engine_match_new(). Valid as
 * long as the forms. */
const uint32_t *engine_forms_endless(struct engine_forms *fs, int *rc);

/* ---- streaming text out of tokens ------------------------------------------------------------------------------ */

/* Turns tokens into text that can be sent: whole UTF-8 characters, stop strings cut off wherever they lie. */
struct engine_stream;

/* stops: n_stops terminated strings (copied), at most 16 of at most 256 bytes. NULL: out of memory. */
struct engine_stream *engine_stream_new(const struct engine *e, const char *const *stops, size_t n_stops);
void engine_stream_free(struct engine_stream *s);
/* What comes goes on with a text: a space that it begins with is part of it. (Where a vocabulary puts one in front of
 * every text, that of an answer's own beginning is not.) */
void engine_stream_goes_on(struct engine_stream *s);
/* The stop string that was completed, valid as long as the stream; NULL: none. */
const char *engine_stream_stop(const struct engine_stream *s);
/* Bytes that came and were not given out yet. */
size_t engine_stream_held_bytes(const struct engine_stream *s);
/* What is held back comes out now: something that is no text stands behind it (an incomplete character is U+FFFD). 0 or
 * -ENOMEM. */
int engine_stream_flush(struct engine_stream *s, const char **text, size_t *len);
/* Takes one token. *text (valid until the next call) gets what can be sent now, *len may be 0: bytes are held back
 * while they may be part of a character or of a stop string. Returns 1 when a stop string was completed (text before it
 * is all delivered), 0 to go on, -ENOMEM. Bytes that can never be UTF-8 come out as U+FFFD. */
int engine_stream_push(struct engine_stream *s, engine_token id, const char **text, size_t *len);
/* The bytes that are held back; valid until the next call. They are one piece: at its beginning characters, at its end
 * what is not yet one. 0 or -ENOMEM. */
int engine_stream_held(struct engine_stream *s, const char **bytes, size_t *len);
/* The answer is over without a stop string: what is held back comes out (an incomplete character as U+FFFD). */
int engine_stream_finish(struct engine_stream *s, const char **text, size_t *len);

/* ---- parts of answers ------------------------------------------------------------------------------------------ */

/* Takes an answer apart into thinking, text and calls of tools, as the chat format writes them. White space around
 * thinking belongs to nothing. A call's arguments come piece by
 * piece as the model writes them, from the moment on at which its name is known. A call that cannot be read is text
 * when nothing of it was given out, otherwise it ends as broken. Where the model is known to write calls as a JSON
 * object of their own, fenced or not, at the beginning of a line, one that names a tool which there is counts. */
struct engine_calls;

struct engine_part {
    enum {
        ENGINE_PART_TEXT,         /* text[0..len) */
        ENGINE_PART_CALL,         /* a call of the tool called text[0..len) begins */
        ENGINE_PART_ARGUMENTS,    /* text[0..len) of its arguments, as they were written */
        ENGINE_PART_CALL_END,     /* the call is over; `broken`: cut off, or its arguments are not JSON */
        ENGINE_PART_THINKING,     /* text[0..len) of it */
        ENGINE_PART_THINKING_END, /* `broken`: cut off. Thinking without text has neither */
    } kind;
    const char *text;
    size_t len;
    const char *id; /* CALL: what the model calls it, terminated; NULL: nothing */
    bool broken;
};

/* [any thread] Whether answers of this chat format have thinking that can be told from their text. */
bool engine_chat_thinks(const struct engine *e);

/* tools: as in a message of ENGINE_TOOLS, terminated; NULL: nothing is a call. part() gets the parts in order; not 0:
 * the call below that made it returns that. NULL: out of memory, or (errno ENOTSUP) the chat format has no such parts.
 */
struct engine_calls *engine_calls_new(const struct engine *e, const char *tools,
                                      int (*part)(void *arg, const struct engine_part *part), void *arg);
void engine_calls_free(struct engine_calls *c);
/* Whether a token is a mark around calls; what the stream holds back is to be given to engine_calls_text() before
 * engine_calls_mark(). */
bool engine_calls_is_mark(const struct engine_calls *c, engine_token id);
/* The mark that ends the call that the text is in; -1: it ends with its object, or where its fence does. */
engine_token engine_calls_closing(const struct engine_calls *c);
/* Whether the answer may go on with something else behind the call that the text is in, once that is whole. Otherwise
 * it ends, or the mark above comes. */
bool engine_calls_open_end(const struct engine_calls *c);
/* What has come of the call that the text is in, as its form describes it: marks within it are bytes that no text has.
 */
const char *engine_calls_begun(struct engine_calls *c, size_t *len);
/* Whether a mark is within calls, and part of what the form describes. */
bool engine_calls_is_inner(const struct engine_calls *c, engine_token id);
/* Whether the model is known to write calls without marks. */
bool engine_calls_may_be_bare(const struct engine_calls *c);
/* What came so far is the beginning of a call, because the answer was made to begin with it. */
void engine_calls_made(struct engine_calls *c);
/* From now on all is text. */
void engine_calls_text_only(struct engine_calls *c);
/* The marks with which thinking and calls begin, at most 2; how many there are. */
int engine_calls_openings(const struct engine_calls *c, engine_token marks[2]);
/* What the text is in now. */
enum engine_within {
    ENGINE_WITHIN_TEXT,
    ENGINE_WITHIN_THINKING, /* or in what says what comes */
    ENGINE_WITHIN_CALL
};
enum engine_within engine_calls_within(const struct engine_calls *c);
/* Whether that is thinking itself. */
bool engine_calls_thinking(const struct engine_calls *c);
int engine_calls_mark(struct engine_calls *c, engine_token id);
/* Takes the next piece of the answer's text. 0, -ENOMEM, or what part() returned. */
int engine_calls_text(struct engine_calls *c, const char *text, size_t len);
/* The answer is over. */
int engine_calls_finish(struct engine_calls *c);

#endif

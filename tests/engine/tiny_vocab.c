/* tiny_vocab.c - see tiny_vocab.h. */
#include "tests/engine/tiny_vocab.h"

#include <stdio.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, BYTE = 6 };

/* The character that byte-level vocabularies write for a byte. */
static void byte_character(int byte, char out[3])
{
    int c = byte, shift = 0;
    bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    for (int b = 0; !printable && b < byte; b++)
        shift += b < 0x21 || (b > 0x7e && b < 0xa1) || b == 0xad;
    if (!printable)
        c = 0x100 + shift;
    out[0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
    out[1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 63));
    out[2] = '\0';
}

static void write_id(struct gguf_writer *w, const char *key, const char *const *control, int n, const char *text,
                     int first)
{
    for (int i = 0; i < n; i++)
        if (strcmp(control[i], text) == 0)
            gguf_writer_u32(w, key, (uint32_t)(first + i));
}

/* Everything but the ids of single tokens; the last n_user of `special` are user-defined. */
static void write_bpe(struct gguf_writer *w, const char *pre, const char *const *special, int n, int n_user)
{
    static const char *const MERGED[TINY_END_OF_TEXT - TINY_HE] = {
        "he", "ll", "hell", "hello", "\xc4\xa0hello", "12", "\xc4\x8a\xc4\x8a",
    };
    static const char *const MERGES[] = {
        "h e", "l l", "he ll", "hell o", "\xc4\xa0 hello", "1 2", "\xc4\x8a \xc4\x8a",
    };
    char bytes[256][3];
    const char *tokens[TINY_END_OF_TEXT + TINY_MAX_CONTROL];
    int32_t types[TINY_END_OF_TEXT + TINY_MAX_CONTROL];
    size_t total = TINY_END_OF_TEXT + (size_t)n;
    for (int i = 0; i < 256; i++) {
        byte_character(i, bytes[i]);
        tokens[i] = bytes[i];
    }
    memcpy(tokens + TINY_HE, MERGED, sizeof MERGED);
    memcpy(tokens + TINY_END_OF_TEXT, special, (size_t)n * sizeof *special);
    for (size_t i = 0; i < total; i++)
        types[i] = i < TINY_END_OF_TEXT ? NORMAL : i < total - (size_t)n_user ? CONTROL : USER;
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(w, "tokenizer.ggml.pre", pre);
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, total);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, total);
    gguf_writer_strings(w, "tokenizer.ggml.merges", MERGES, sizeof MERGES / sizeof *MERGES);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
}

void tiny_vocab_bpe(struct gguf_writer *w, const char *pre)
{
    static const char *const SPECIAL[TINY_TOKENS - TINY_END_OF_TEXT] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",
                                                                        "<tool_call>", "<mark>"};
    write_bpe(w, pre, SPECIAL, TINY_TOKENS - TINY_END_OF_TEXT, TINY_TOKENS - TINY_TOOL_CALL);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", TINY_IM_END);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", TINY_END_OF_TEXT);
    gguf_writer_string(w, "tokenizer.chat_template",
                       "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                       "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
                       "}}{% endif %}");
}

void tiny_vocab_bpe_with(struct gguf_writer *w, const char *pre, const char *const *control, int n, const char *bos,
                         const char *eos, const char *chat_template)
{
    write_bpe(w, pre, control, n, 0);
    write_id(w, "tokenizer.ggml.bos_token_id", control, n, bos, TINY_END_OF_TEXT);
    write_id(w, "tokenizer.ggml.eos_token_id", control, n, eos, TINY_END_OF_TEXT);
    if (chat_template != NULL)
        gguf_writer_string(w, "tokenizer.chat_template", chat_template);
}

void tiny_vocab_family(struct gguf_writer *w, enum tiny_family family)
{
#define MISTRAL_TOKENS                                                                                                 \
    "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",   \
        "[/TOOL_RESULTS]"
#define MISTRAL_TEMPLATE "[INST][/INST][AVAILABLE_TOOLS][TOOL_CALLS][TOOL_RESULTS]"
    static const struct {
        const char *pre, *bos, *eos, *text, *control[TINY_MAX_CONTROL + 1];
    } families[] = {
        [TINY_HERMES] = {"qwen2",
                         "",
                         "<|im_end|>",
                         "<|im_start|>{{- \"# Tools\\n\\nThese:\\n<tools>\" }}{{- tool }}{{- \"\\n</tools>\\n\\nCall:"
                         "\\n<tool_call>\\n{}\\n</tool_call><|im_end|>\\n\" }}<tool_response>",
                         {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>",
                          "</think>", NULL}},
        [TINY_XML] = {"qwen2",
                      "",
                      "<|im_end|>",
                      "<|im_start|>{{- \"\\n\\n# Tools\\n\\nThese:\\n\\n<tools>\" }}{{- '\\n<function>\\n<name>' }}"
                      "{{- '\\n\\nIf you choose to call one\\n' }}<function=<parameter=<tool_response>\\n",
                      {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", NULL}},
        [TINY_LLAMA3] =
            {"llama-bpe",
             "<|begin_of_text|>",
             "<|eot_id|>",
             "<|start_header_id|>{{ \"Environment: ipython\\n\" }}{{ \"Given the following functions, please "
             "respond with a JSON for a function call \" }}{{ \"with its proper arguments that best answers "
             "the given prompt.\\n\\n\" }}{{ 'Respond in the format {\"name\": function name, "
             "\"parameters\": dictionary of argument name and its value}.' }}{{ \"Do not use "
             "variables.\\n\\n\" }}",
             {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
              "<|python_tag|>", NULL}},
        [TINY_MISTRAL_LIST] =
            {"tekken", "<s>", "</s>", MISTRAL_TEMPLATE "\"id\": \"call_id\": ", {MISTRAL_TOKENS, NULL}},
        [TINY_MISTRAL_ARGS] = {"tekken", "<s>", "</s>", MISTRAL_TEMPLATE "[ARGS]", {MISTRAL_TOKENS, "[ARGS]", NULL}},
        [TINY_MISTRAL_IDS] = {"tekken",
                              "<s>",
                              "</s>",
                              MISTRAL_TEMPLATE "[ARGS][CALL_ID][TOOL_CONTENT]",
                              {MISTRAL_TOKENS, "[ARGS]", "[CALL_ID]", "[TOOL_CONTENT]", NULL}},
        [TINY_HARMONY] = {"gpt-4o",
                          "",
                          "<|return|>",
                          "<|start|><|channel|><|message|>namespace functions",
                          {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
                           "<|constrain|>", NULL}},
    };
    int n = 0;
    while (families[family].control[n] != NULL)
        n++;
    tiny_vocab_bpe_with(w, families[family].pre, families[family].control, n, families[family].bos,
                        families[family].eos, families[family].text);
}

void tiny_vocab_spm(struct gguf_writer *w)
{
    tiny_vocab_spm_with(w, NULL, 0, "<s>", "</s>", NULL);
}

void tiny_vocab_spm_with(struct gguf_writer *w, const char *const *control, int n, const char *bos, const char *eos,
                         const char *chat_template)
{
    static const struct {
        const char *text;
        float score;
    } PIECES[TINY_SPM_NEWLINE - TINY_SPM_SPACE] = {
        {"\xe2\x96\x81", -10},
        {"h", -11},
        {"e", -12},
        {"l", -13},
        {"o", -14},
        {"he", -2},
        {"ll", -1},
        {"llo", -3},
        {"hello", -4},
        {"\xe2\x96\x81hello", -5},
    };
    char bytes[256][8];
    const char *tokens[TINY_SPM_TOKENS + TINY_MAX_CONTROL] = {"<unk>", bos, eos};
    int32_t types[TINY_SPM_TOKENS + TINY_MAX_CONTROL] = {UNKNOWN, CONTROL, CONTROL};
    float scores[TINY_SPM_TOKENS + TINY_MAX_CONTROL] = {0};
    size_t total = TINY_SPM_TOKENS + (size_t)n;
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i);
        tokens[TINY_SPM_BYTES + i] = bytes[i];
        types[TINY_SPM_BYTES + i] = BYTE;
    }
    for (int i = TINY_SPM_SPACE; i < TINY_SPM_NEWLINE; i++) {
        tokens[i] = PIECES[i - TINY_SPM_SPACE].text;
        scores[i] = PIECES[i - TINY_SPM_SPACE].score;
        types[i] = NORMAL;
    }
    tokens[TINY_SPM_NEWLINE] = "\n";
    types[TINY_SPM_NEWLINE] = USER;
    for (int i = 0; i < n; i++) {
        tokens[TINY_SPM_TOKENS + i] = control[i];
        types[TINY_SPM_TOKENS + i] = CONTROL;
    }
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, total);
    gguf_writer_f32s(w, "tokenizer.ggml.scores", scores, total);
    gguf_writer_i32s(w, "tokenizer.ggml.token_type", types, total);
    gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_writer_u32(w, "tokenizer.ggml.unknown_token_id", 0);
    if (chat_template != NULL)
        gguf_writer_string(w, "tokenizer.chat_template", chat_template);
}

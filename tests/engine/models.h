/* models.h - the real model files that some tests need, which are not part of the source. */
#ifndef CONVOD_TESTS_MODELS_H
#define CONVOD_TESTS_MODELS_H

#define MODEL_QWEN_0_5B  "qwen2.5-coder-0.5b-instruct-q4_k_m"
#define MODEL_QWEN_1_5B  "qwen2.5-coder-1.5b-instruct-q4_k_m"
#define MODEL_GEMMA_270M "gemma-3-270m-q4_k_m"

/* The path of NAME.gguf in $CONVOD_TEST_MODELS or ~/.cache/convod/models; NULL when it is not there. free() it. */
char *models_find(const char *name);

/* The same; a missing file skips the calling cmocka test with a line that says so. */
char *models_need(const char *name);

/* The path of a file in tests/data (tests run from the root of the source). free() it. */
char *models_data(const char *name);

#endif

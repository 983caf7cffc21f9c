/* models.c - see models.h. */
#include "tests/engine/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

char *models_find(const char *name)
{
    const char *folder = getenv("CONVOD_TEST_MODELS"), *home = getenv("HOME");
    char *path = NULL;
    int n;
    if (folder != NULL && folder[0] != '\0')
        n = asprintf(&path, "%s/%s.gguf", folder, name);
    else
        n = asprintf(&path, "%s/.cache/convod/models/%s.gguf", home ? home : "/nonexistent", name);
    if (n < 0)
        abort();
    if (access(path, R_OK) == 0)
        return path;
    free(path);
    return NULL;
}

char *models_need(const char *name)
{
    char *path = models_find(name);
    if (path == NULL) {
        printf("skip: no %s.gguf in $CONVOD_TEST_MODELS or ~/.cache/convod/models\n", name);
        skip();
    }
    return path;
}

char *models_data(const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "tests/data/%s", name) < 0)
        abort();
    return path;
}

/* model.c - writes a model file with random weights that can be chatted with: for tests of whole programs, which need a
 * model and not its wisdom.
 *
 *     build/tests/service/model FILE [CONTEXT [thinks]]
 */
#include "tests/engine/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4 || (argc == 4 && strcmp(argv[3], "thinks") != 0)) {
        fprintf(stderr, "usage: model FILE [CONTEXT [thinks]]\n");
        return 2;
    }
    struct tiny_model m = tiny_model_of(TINY_QWEN2);
    m.ctx = argc >= 3 ? atoi(argv[2]) : m.ctx;
    m.thinks = argc == 4 ? TINY_THINKS : TINY_NO_THINKING;
    char *path = tiny_model_save(&m);
    FILE *from = fopen(path, "rb"), *to = fopen(argv[1], "wb");
    char piece[65536];
    size_t n = 0;
    int rc = from && to ? 0 : 1;
    while (!rc && (n = fread(piece, 1, sizeof(piece), from)) > 0) {
        rc = fwrite(piece, 1, n, to) != n;
    }
    rc |= from && ferror(from);
    if (from) {
        fclose(from);
    }
    if (to) {
        rc |= fclose(to) != 0;
    }
    tiny_model_remove(path);
    if (rc) {
        perror(argv[1]);
    }
    return rc;
}

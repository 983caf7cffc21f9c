/* profile.c - convod --profile: where the time of the model's steps goes, operation by operation, beside what each must
 * move and compute on paper. */
#include <stdio.h>
#include <string.h>

#include "daemon/daemon.h"
#include "session/session.h"

static void print_line(const struct engine_profile_row *row, double ms)
{
    printf("  %-28s %5d %9.3f %5.1f", row->name, row->calls, row->ms, 100 * row->ms / ms);
    printf(" %10.2f %8.2f %10.3f %8.1f\n", row->bytes / 1e6, row->bytes / row->ms / 1e6, row->operations / 1e9,
           row->operations / row->ms / 1e6);
}

static void print_step(void *arg, const char *name, const struct session_profile_step *step)
{
    bool *first = arg;
    const struct engine_profile *at = &step->at;
    struct engine_profile_row sum = {.name = "sum", .ms = at->ms};
    if (*first)
        printf("%s\n", name);
    *first = false;
    printf("\n%d %s of %d new %s behind %d: %.3f ms\n", step->sequences, step->sequences > 1 ? "sequences" : "sequence",
           step->tokens, step->tokens > 1 ? "tokens" : "token", step->history, at->whole_ms);
    printf("  %-28s %5s %9s %5s %10s %8s %10s %8s\n", "each operation alone", "calls", "ms", "%", "MB", "GB/s", "G ops",
           "G ops/s");
    for (int i = 0; i < at->n_rows; i++) {
        print_line(&at->rows[i], at->ms);
        sum.calls += at->rows[i].calls;
        sum.bytes += at->rows[i].bytes;
        sum.operations += at->rows[i].operations;
    }
    print_line(&sum, at->ms);
    fflush(stdout);
}

int daemon_profile(const struct daemon_config *c, char *err, size_t err_size)
{
    bool first = true;
    const struct session_opts opts = {
        .engine = {.model_path = c->model,
                   .backend = c->backend,
                   .device = c->device,
                   .numerics = c->numerics,
                   .threads = c->threads,
                   .ctx_tokens = c->ctx,
                   .kv_bytes = c->kv_bytes,
                   .device_fraction = c->gpu_memory_fraction,
                   .host_layers = c->gpu_host_layers,
                   .kv_type = c->kv_type,
                   .chat_format = strcmp(c->chat_format, "auto") == 0 ? NULL : c->chat_format,
                   .cache_dir = c->cache},
    };
    return session_profile(&opts, print_step, &first, err, err_size);
}

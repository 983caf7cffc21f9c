/* metrics.c - /metrics in Prometheus' text format, under convod_. No label names a conversation or an owner. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/daemon.h"
#include "session/session.h"

static const double bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
#define N_BOUNDS (sizeof(bounds) / sizeof(*bounds))

void metrics_observe(struct histogram *h, double seconds)
{
    if (!(seconds >= 0)) {
        return;
    }
    size_t i = 0;
    while (i < N_BOUNDS && seconds > bounds[i]) {
        i++;
    }
    h->count[i]++;
    h->sum += seconds;
    h->total++;
}

static void histogram(FILE *f, const char *name, const struct histogram *h)
{
    uint64_t sum = 0;
    fprintf(f, "# TYPE convod_%s histogram\n", name);
    for (size_t i = 0; i < N_BOUNDS; i++) {
        sum += h->count[i];
        fprintf(f, "convod_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
    }
    fprintf(f, "convod_%s_bucket{le=\"+Inf\"} %llu\nconvod_%s_sum %.6f\nconvod_%s_count %llu\n", name,
            (unsigned long long)h->total, name, h->sum, name, (unsigned long long)h->total);
}

static void number(FILE *f, const char *name, const char *type, double value)
{
    fprintf(f, "# TYPE convod_%s %s\nconvod_%s %.15g\n", name, type, name, value);
}

static double share(double used, double budget)
{
    return budget > 0 ? used / budget : 0;
}

char *metrics_text(const struct metrics *m, const struct session_status *st, bool ready, size_t n_conns)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return NULL;
    }
    number(f, "ready", "gauge", ready ? 1 : 0);
    number(f, "num_requests_running", "gauge", st->running);
    number(f, "num_requests_waiting", "gauge", st->waiting);
    fprintf(f,
            "# TYPE convod_kv_cache_usage_perc gauge\nconvod_kv_cache_usage_perc{tier=\"hot\"} %.6f\n"
            "convod_kv_cache_usage_perc{tier=\"ram\"} %.6f\nconvod_kv_cache_usage_perc{tier=\"disk\"} %.6f\n",
            share((double)st->hot_used, (double)st->hot_budget), share((double)st->ram_used, (double)st->ram_budget),
            share((double)st->disk_used, (double)st->disk_budget));
    fprintf(f,
            "# TYPE convod_request_success_total counter\nconvod_request_success_total{finished_reason=\"completed\"} "
            "%llu\nconvod_request_success_total{finished_reason=\"incomplete\"} %llu\n",
            (unsigned long long)st->turns_completed, (unsigned long long)st->turns_incomplete);
    number(f, "request_failure_total", "counter", (double)st->turns_failed);
    number(f, "prompt_tokens_total", "counter", (double)st->tokens_prefilled);
    number(f, "generation_tokens_total", "counter", (double)st->tokens_generated);
    number(f, "restored_tokens_total", "counter", (double)st->tokens_restored);
    number(f, "reprefilled_tokens_total", "counter", (double)st->tokens_reprefilled);
    number(f, "segments", "gauge", (double)st->segments);
    number(f, "pending_saves", "gauge", (double)st->pending_saves);
    number(f, "save_failures_total", "counter", (double)st->save_failures);
    number(f, "engine_steps_total", "counter", (double)st->engine_steps);
    number(f, "connections", "gauge", (double)n_conns);
    number(f, "connections_total", "counter", (double)m->connections);
    number(f, "connections_refused_total", "counter", (double)m->refused);
    number(f, "connections_dropped_slow_total", "counter", (double)m->dropped_slow);
    number(f, "http_requests_total", "counter", (double)m->requests);
    number(f, "http_errors_total", "counter", (double)m->errors);
    histogram(f, "time_to_first_token_seconds", &m->ttft);
    histogram(f, "inter_token_latency_seconds", &m->itl);
    histogram(f, "request_queue_time_seconds", &m->queue);
    histogram(f, "request_prefill_time_seconds", &m->prefill);
    histogram(f, "request_restore_time_seconds", &m->restore);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

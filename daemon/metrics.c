/* metrics.c - /metrics in Prometheus' text format, under convod_. No label names a conversation or an owner. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "session/session.h"

static const double bounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
#define N_BOUNDS (sizeof(bounds) / sizeof(*bounds))

/* What the receipt of an answered turn says. */
void metrics_turn(struct metrics *m, int input_tokens, int cached_tokens, const struct session_receipt *r,
                  const struct histogram *itl)
{
    m->prompt_tokens += (uint64_t)(input_tokens > 0 ? input_tokens : 0);
    m->cached_tokens += (uint64_t)(cached_tokens > 0 ? cached_tokens : 0);
    m->restore_bytes += r->bytes_read;
    metrics_observe(&m->ttft, r->ttft_ms / 1000);
    metrics_observe(&m->queue, r->queue_ms / 1000);
    metrics_observe(&m->prefill, r->prefill_ms / 1000);
    metrics_observe(&m->restore, r->restore_ms / 1000);
    for (size_t i = 0; i <= N_BOUNDS; i++) {
        m->itl.count[i] += itl->count[i];
    }
    m->itl.sum += itl->sum;
    m->itl.total += itl->total;
    for (int i = 0; i < r->n_reprefilled; i++) {
        size_t at = 0;
        while (at < m->n_reasons && strcmp(m->reasons[at].name, r->reprefilled[i].reason) != 0) {
            at++;
        }
        if (at == METRICS_REASONS_MAX) {
            continue;
        }
        m->n_reasons += at == m->n_reasons;
        m->reasons[at].name = r->reprefilled[i].reason;
        m->reasons[at].tokens += (uint64_t)r->reprefilled[i].tokens;
    }
}

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

static void heading(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP convod_%s %s\n# TYPE convod_%s %s\n", name, help, name, type);
}

static void histogram(FILE *f, const char *name, const char *help, const struct histogram *h)
{
    uint64_t sum = 0;
    heading(f, name, "histogram", help);
    for (size_t i = 0; i < N_BOUNDS; i++) {
        sum += h->count[i];
        fprintf(f, "convod_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], (unsigned long long)sum);
    }
    fprintf(f, "convod_%s_bucket{le=\"+Inf\"} %llu\nconvod_%s_sum %.6f\nconvod_%s_count %llu\n", name,
            (unsigned long long)h->total, name, h->sum, name, (unsigned long long)h->total);
}

static double share(double used, double budget)
{
    return budget > 0 ? used / budget : 0;
}

/* Rows of one metric differ in one label; a metric without labels is one row. */
struct row {
    const char *name, *type, *help, *label, *value; /* NULL help: another row of the metric before */
    double number;
};

static void rows(FILE *f, const struct row *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct row *r = &list[i];
        if (r->help) {
            heading(f, r->name, r->type, r->help);
        }
        if (r->label) {
            fprintf(f, "convod_%s{%s=\"%s\"} %.15g\n", r->name, r->label, r->value, r->number);
        } else {
            fprintf(f, "convod_%s %.15g\n", r->name, r->number);
        }
    }
}

/* A GPU, as far as its driver says. */
static void device(FILE *f, const struct engine_device *d)
{
    static const char gauge[] = "gauge";
    const struct row list[] = {
        {"gpu_memory_bytes", gauge, "Memory of the GPU.", NULL, NULL, d->memory_bytes ? (double)d->memory_bytes : NAN},
        {"gpu_memory_used_bytes", gauge, "Of it, what is in use, by all processes.", NULL, NULL,
         d->memory_bytes ? (double)d->memory_used_bytes : NAN},
        {"gpu_temperature_celsius", gauge, "Temperature of the GPU.", NULL, NULL, d->temperature_c},
        {"gpu_power_watts", gauge, "What the GPU draws.", NULL, NULL, d->power_w},
        {"gpu_utilization_ratio", gauge, "Share of time in which the GPU computed, 0 to 1.", NULL, NULL,
         d->utilization},
    };
    const struct row info = {"gpu_info", gauge, "Always 1; which GPU is in the label.", "name", d->name, 1};
    rows(f, &info, 1);
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); i++) {
        if (!isnan(list[i].number)) {
            rows(f, &list[i], 1);
        }
    }
}

char *metrics_text(const struct metrics *m, const struct session_status *st, bool ready, size_t n_conns)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        return NULL;
    }
    static const char gauge[] = "gauge", counter[] = "counter";
    const struct row list[] = {
        {"build_info", gauge, "Always 1; the version is in the label.", "version", CONVOD_VERSION, 1},
        {"ready", gauge, "1 when the model is loaded and turns are accepted.", NULL, NULL, ready},
        {"engine_stalled", gauge, "1 when work waits and no step has ended for 30 seconds.", NULL, NULL, st->stuck},
        {"num_requests_running", gauge, "Turns that run.", NULL, NULL, st->running},
        {"num_requests_waiting", gauge, "Turns that wait.", NULL, NULL, st->waiting},
        {"contexts_ahead", gauge, "Contexts that are made ahead where nobody waits for them; in neither of these.",
         NULL, NULL, st->ahead},
        {"kv_cache_usage_perc", gauge, "Share of a tier's budget that is in use, 0 to 1.", "tier", "hot",
         share((double)st->hot_used, (double)st->hot_budget)},
        {"kv_cache_usage_perc", gauge, NULL, "tier", "ram", share((double)st->ram_used, (double)st->ram_budget)},
        {"kv_cache_usage_perc", gauge, NULL, "tier", "disk", share((double)st->disk_used, (double)st->disk_budget)},
        {"request_success_total", counter, "Turns that ended with an answer.", "finished_reason", "completed",
         (double)st->turns_completed},
        {"request_success_total", counter, NULL, "finished_reason", "incomplete", (double)st->turns_incomplete},
        {"conversations_expired_total", counter, "Conversations that were deleted because of their age.", NULL, NULL,
         (double)st->conversations_expired},
        {"quota_refusals_total", counter, "Turns and conversations that were refused because their owner has enough.",
         NULL, NULL, (double)st->quota_refusals},
        {"quota_evictions_total", counter, "Contexts that left the KV pages because their owner has enough in them.",
         NULL, NULL, (double)st->quota_evictions},
        {"request_failure_total", counter, "Turns that were refused or failed.", NULL, NULL, (double)st->turns_failed},
        {"put_aside_total", counter, "Times that a turn gave its KV pages to others and waited.", NULL, NULL,
         (double)st->turns_put_aside},
        {"prompt_tokens_total", counter, "Tokens of the contexts of answered turns, cached or not.", NULL, NULL,
         (double)m->prompt_tokens},
        {"cached_tokens_total", counter, "Of them, those that were not computed again.", NULL, NULL,
         (double)m->cached_tokens},
        {"prefilled_tokens_total", counter, "Tokens that went through the model as prompt.", NULL, NULL,
         (double)st->tokens_prefilled},
        {"generation_tokens_total", counter, "Tokens that were generated.", NULL, NULL, (double)st->tokens_generated},
        {"restored_tokens_total", counter, "Tokens that came back from compressed KV.", NULL, NULL,
         (double)st->tokens_restored},
    };
    fprintf(f,
            "# HELP process_start_time_seconds When the process started, since the epoch.\n"
            "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.3f\n",
            (double)m->started_ms / 1000);
    rows(f, list, sizeof(list) / sizeof(*list));
    heading(f, "reprefilled_tokens_total", counter,
            "Tokens that were computed again although the model had seen them, by reason.");
    for (size_t i = 0; i < m->n_reasons; i++) {
        fprintf(f, "convod_reprefilled_tokens_total{reason=\"%s\"} %llu\n", m->reasons[i].name,
                (unsigned long long)m->reasons[i].tokens);
    }
    const struct row more[] = {
        {"restore_read_bytes_total", counter, "Bytes of compressed KV that were read to restore contexts.", NULL, NULL,
         (double)m->restore_bytes},
        {"save_bytes_total", counter, "Bytes of compressed KV that were encoded to be saved.", NULL, NULL,
         (double)st->saved_bytes},
        {"save_seconds_total", counter, "Time spent on encoding and writing them.", NULL, NULL,
         (double)st->save_us / 1e6},
        {"segments", gauge, "Segments of compressed KV that are stored.", NULL, NULL, (double)st->segments},
        {"disk_used_bytes", gauge, "Compressed KV on disk.", NULL, NULL, (double)st->disk_used},
        {"disk_budget_bytes", gauge, "What it may take.", NULL, NULL, (double)st->disk_budget},
        {"pending_saves", gauge, "Segments that wait to be written.", NULL, NULL, (double)st->pending_saves},
        {"save_failures_total", counter, "Segments that could not be written.", NULL, NULL, (double)st->save_failures},
        {"engine_steps_total", counter, "Steps of the model.", NULL, NULL, (double)st->engine_steps},
        {"step_cpu_seconds_total", counter,
         "CPU time of the engine's thread in them, without that of the model's other threads.", NULL, NULL,
         (double)st->step_cpu_us / 1e6},
        {"connections", gauge, "Open connections.", NULL, NULL, (double)n_conns},
        {"connections_total", counter, "Connections that were accepted.", NULL, NULL, (double)m->connections},
        {"connections_refused_total", counter, "Connections and requests refused by limits or for lack of a token.",
         NULL, NULL, (double)m->refused},
        {"connections_dropped_slow_total", counter, "Connections dropped because their peer did not read.", NULL, NULL,
         (double)m->dropped_slow},
        {"http_requests_total", counter, "Requests, and messages of WebSockets.", NULL, NULL, (double)m->requests},
        {"http_errors_total", counter, "Of them, those that were answered with an error.", NULL, NULL,
         (double)m->errors},
    };
    rows(f, more, sizeof(more) / sizeof(*more));
    if (st->device_known) {
        device(f, &st->device);
    }
    const struct {
        const char *name, *help;
        const struct histogram *h;
    } histograms[] = {
        {"time_to_first_token_seconds", "From a turn's acceptance to its first token.", &m->ttft},
        {"inter_token_latency_seconds", "Between two tokens of an answer.", &m->itl},
        {"request_queue_time_seconds", "A turn's wait for its admission.", &m->queue},
        {"request_prefill_time_seconds", "What a turn spent on prefill.", &m->prefill},
        {"request_restore_time_seconds", "What a turn spent on restoring KV.", &m->restore},
        {"network_stall_seconds", "One piece of work on the network thread, while which nobody else is served.",
         &m->stall},
    };
    for (size_t i = 0; i < sizeof(histograms) / sizeof(*histograms); i++) {
        histogram(f, histograms[i].name, histograms[i].help, histograms[i].h);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

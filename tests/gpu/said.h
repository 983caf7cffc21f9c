/* said.h - what the programs of tests/gpu/check print, and what one failure in them takes with it.
 *
 * A line of JSON per result: {"name": ..., "value": ..., "unit": ...}, {"name": ..., "fine": true or false} or {"name":
 * ..., "text": ...}. A part is a row of units, each of which begins with {"begun": its number}: a device that has
 * failed is lost to a process, so the script runs the program again from the next unit on (--from). A unit that takes
 * too long ends the process too. {"done": true} comes behind the last. */
#ifndef CONVOD_TESTS_GPU_SAID_H
#define CONVOD_TESTS_GPU_SAID_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    bool tiny, failed;
    double deadline;
    unsigned unit_seconds; /* a unit's most; 0: no end */
    int from, unit;        /* the first to be run; the next one's number */
} said = {.deadline = INFINITY};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Takes --tiny, --seconds N and --from N. */
static inline void said_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        said.tiny = said.tiny || !strcmp(argv[i], "--tiny");
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc) {
            said.deadline = now() + atof(argv[i + 1]);
            said.unit_seconds = (unsigned)(atof(argv[i + 1]) / 2) + 1;
        }
        if (!strcmp(argv[i], "--from") && i + 1 < argc)
            said.from = atoi(argv[i + 1]);
    }
}

static inline void say_text(const char *name, const char *text)
{
    printf("{\"name\": \"%s\", \"text\": \"", name);
    for (; *text; text++)
        putchar(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '\'' : *text);
    printf("\"}\n");
    fflush(stdout);
}

static inline void say(const char *name, double value, const char *unit)
{
    if (isfinite(value))
        printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    else
        say_text(name, isnan(value) ? "not a number" : "infinite");
    fflush(stdout);
}

static inline void say_fine(const char *name, bool fine)
{
    printf("{\"name\": \"%s\", \"fine\": %s}\n", name, fine ? "true" : "false");
    fflush(stdout);
    said.failed = said.failed || !fine;
}

static inline void stop(const char *why)
{
    say_text("stopped", why);
    exit(1);
}

static inline void *need(void *p)
{
    if (!p)
        stop("no memory");
    return p;
}

/* Begins the next unit; false: it is not to be run. */
static inline bool unit_begins(const char *name)
{
    int unit = said.unit++;
    if (unit < said.from)
        return false;
    if (!(now() < said.deadline)) {
        say_text(name, "left out: no time");
        return false;
    }
    printf("{\"begun\": %d}\n", unit);
    fflush(stdout);
    alarm(said.unit_seconds);
    return true;
}

/* The program's exit status, behind its last unit. */
static inline int said_done(void)
{
    alarm(0);
    printf("{\"done\": true}\n");
    return said.failed;
}

#endif

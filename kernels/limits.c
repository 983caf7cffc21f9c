/* limits.c - how many cores and how much memory this process may use.
 *
 * The system's own numbers are too large in a container or under a service's limits, so the process's control group is
 * looked up in /proc/self/cgroup, and the limits of that group and of every group above it count: version 2's, or
 * version 1's of the memory and cpu controllers. In a container the path may be one that only the host can see; what is
 * mounted at the top is then the container's own group, which the walk ends at in any case.
 *
 * Reads small files of the kernel; may run on any thread. A file that is not there or says something else limits
 * nothing.
 */
#include "kernels/limits_internal.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define MAX_PATH 1024

/* A file's number: its first, or that behind `name` at the start of a line. False when there is none. */
static bool read_number(const char *path, const char *name, uint64_t *out)
{
    char line[256];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long value;
        size_t skip = strlen(name);
        if (strncmp(line, name, skip) == 0 && line[skip] != '-' && sscanf(line + skip, "%llu", &value) == 1) {
            *out = value;
            found = true;
        }
    }
    fclose(f);
    return found;
}

/* ---- where the group is ------------------------------------------------------------------------------------------ */

/* Whether `name` is one of a list with commas. */
static bool lists(const char *list, size_t len, const char *name)
{
    size_t n = strlen(name);
    for (size_t at = 0; at + n <= len; at++)
        if ((at == 0 || list[at - 1] == ',') && strncmp(list + at, name, n) == 0 &&
            (at + n == len || list[at + n] == ','))
            return true;
    return false;
}

/* The path of the process's group for a controller of version 1, or for version 2 with "". False: none, or one that is
 * not a plain path below the top. */
static bool group_path(const char *proc, const char *controller, char path[MAX_PATH])
{
    char file[MAX_PATH], line[MAX_PATH];
    bool found = false;
    snprintf(file, sizeof file, "%s/self/cgroup", proc);
    FILE *f = fopen(file, "re");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *at = names ? strchr(++names, ':') : NULL, *end = strchr(line, '\n');
        if (!at || !end)
            continue;
        *end = '\0';
        size_t len = (size_t)(at - names);
        if (*controller ? !lists(names, len, controller) : len > 0)
            continue;
        found = at[1] == '/' && !strstr(at, "/..");
        snprintf(path, MAX_PATH, "%s", strcmp(at + 1, "/") != 0 ? at + 1 : "");
    }
    fclose(f);
    return found;
}

/* Calls fn for a group's folder and each one above it, up to the top of its hierarchy. */
static void each_group(const char *top, const char *path, void (*fn)(const char *folder, void *arg), void *arg)
{
    char folder[2 * MAX_PATH];
    size_t top_len = strlen(top);
    snprintf(folder, sizeof folder, "%s%s", top, path);
    for (;;) {
        fn(folder, arg);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < top_len)
            return;
        *slash = '\0';
    }
}

/* The top of version 2, or of a controller of version 1, and of every hierarchy the process's group in it. */
static void each_group_of(const struct limits_roots *roots, const char *controller,
                          void (*fn)(const char *folder, void *arg), void *arg)
{
    char path[MAX_PATH], top[MAX_PATH];
    if (!group_path(roots->proc, "", path))
        path[0] = '\0';
    each_group(roots->cgroup, path, fn, arg);
    if (!group_path(roots->proc, controller, path))
        path[0] = '\0';
    snprintf(top, sizeof top, "%s/%s", roots->cgroup, controller);
    each_group(top, path, fn, arg);
}

static bool number_in(const char *folder, const char *file, const char *name, uint64_t *out)
{
    char path[2 * MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return read_number(path, name, out);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Cached files count as free. */
static void memory_of(const char *folder, void *arg)
{
    uint64_t *bytes = arg, most, used, cached;
    if ((!number_in(folder, "memory.max", "", &most) || !number_in(folder, "memory.current", "", &used)) &&
        (!number_in(folder, "memory.limit_in_bytes", "", &most) ||
         !number_in(folder, "memory.usage_in_bytes", "", &used)))
        return;
    static const char *const caches[] = {"inactive_file ", "active_file "};
    for (int i = 0; i < 2; i++)
        if (number_in(folder, "memory.stat", caches[i], &cached))
            used -= cached < used ? cached : used;
    uint64_t left = most > used ? most - used : 0;
    *bytes = left < *bytes ? left : *bytes;
}

uint64_t limits_bytes(const struct limits_roots *roots)
{
    char path[MAX_PATH];
    uint64_t kib, bytes = UINT64_MAX;
    snprintf(path, sizeof path, "%s/meminfo", roots->proc);
    if (read_number(path, "MemAvailable:", &kib))
        bytes = kib * 1024;
    each_group_of(roots, "memory", memory_of, &bytes);
    return bytes;
}

static void most_of(const char *folder, void *arg)
{
    uint64_t *bytes = arg, most;
    if (!number_in(folder, "memory.max", "", &most) && !number_in(folder, "memory.limit_in_bytes", "", &most))
        return;
    *bytes = most < *bytes ? most : *bytes;
}

uint64_t limits_machine_bytes(const struct limits_roots *roots)
{
    char path[MAX_PATH];
    uint64_t kib, bytes = UINT64_MAX;
    snprintf(path, sizeof path, "%s/meminfo", roots->proc);
    if (read_number(path, "MemTotal:", &kib))
        bytes = kib * 1024;
    each_group_of(roots, "memory", most_of, &bytes);
    return bytes;
}

/* ---- cores ------------------------------------------------------------------------------------------------------- */

static void cores_of(const char *folder, void *arg)
{
    int *cores = arg;
    uint64_t quota, period;
    char path[2 * MAX_PATH + 64];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    unsigned long long q, p;
    bool found = f && fscanf(f, "%llu %llu", &q, &p) == 2;
    if (f)
        fclose(f);
    if (found) {
        quota = q;
        period = p;
    } else if (!number_in(folder, "cpu.cfs_quota_us", "", &quota) ||
               !number_in(folder, "cpu.cfs_period_us", "", &period)) {
        return;
    }
    if (period == 0 || quota / period >= (uint64_t)*cores)
        return;
    int n = (int)(quota / period) + (quota % period != 0);
    *cores = n < 1 ? 1 : n < *cores ? n : *cores;
}

int limits_cores(const struct limits_roots *roots, int cores)
{
    each_group_of(roots, "cpu", cores_of, &cores);
    return cores;
}

/* ---- this process ------------------------------------------------------------------------------------------------ */

static const struct limits_roots here = {"/proc", "/sys/fs/cgroup"};

int kernels_available_cores(void)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) < 0)
        return 1;
    int n = CPU_COUNT(&cpus);
    return limits_cores(&here, n > 0 ? n : 1);
}

uint64_t kernels_available_bytes(void)
{
    return limits_bytes(&here);
}

uint64_t kernels_machine_bytes(void)
{
    return limits_machine_bytes(&here);
}

/* limits_test.c - limits of control groups, in folders that look like the kernel's. */
#include "kernels/limits_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char root[64], proc[80], cgroup[80];
static const struct limits_roots roots = {proc, cgroup};

#define MIB 1048576ull

static int make_roots(void **state)
{
    (void)state;
    strcpy(root, "/tmp/convod-limits-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    return 0;
}

static int remove_roots(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* Writes a file below the root, and the folders that lead to it. */
static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_nothing_there(void **state)
{
    (void)state;
    assert_true(limits_bytes(&roots) == UINT64_MAX);
    assert_int_equal(limits_cores(&roots, 8), 8);
    put("proc/meminfo", "MemTotal:  9999 kB\nMemAvailable:  4096 kB\n");
    assert_true(limits_bytes(&roots) == 4 * MIB);
    assert_true(limits_machine_bytes(&roots) == 9999 * 1024);
}

static void test_version_2(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable:  1048576 kB\n");
    put("proc/self/cgroup", "0::/system.slice/convod.service\n");
    put("cgroup/system.slice/convod.service/memory.max", "104857600\n");
    put("cgroup/system.slice/convod.service/memory.current", "62914560\n");
    put("cgroup/system.slice/convod.service/memory.stat", "anon 5\ninactive_file 10485760\nactive_file 10485760\n");
    put("cgroup/system.slice/convod.service/cpu.max", "150000 100000\n");
    assert_true(limits_bytes(&roots) == 60 * MIB);
    assert_true(limits_machine_bytes(&roots) == 100 * MIB);
    assert_int_equal(limits_cores(&roots, 8), 2);
    assert_int_equal(limits_cores(&roots, 1), 1);
    /* A group above is narrower; the one beside it is not ours. */
    put("cgroup/system.slice/memory.max", "31457280\n");
    put("cgroup/system.slice/memory.current", "10485760\n");
    put("cgroup/system.slice/cpu.max", "5000 100000\n");
    put("cgroup/user.slice/memory.max", "0\n");
    put("cgroup/user.slice/memory.current", "0\n");
    assert_true(limits_bytes(&roots) == 20 * MIB);
    assert_int_equal(limits_cores(&roots, 8), 1);
    put("cgroup/system.slice/memory.max", "max\n");
    put("cgroup/system.slice/cpu.max", "max 100000\n");
    put("cgroup/system.slice/convod.service/cpu.max", "max 100000\n");
    assert_true(limits_bytes(&roots) == 60 * MIB);
    assert_int_equal(limits_cores(&roots, 8), 8);
    put("cgroup/system.slice/convod.service/memory.current", "209715200\n"); /* more than there may be */
    assert_true(limits_bytes(&roots) == 0);
}

static void test_version_1(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable:  1048576 kB\n");
    put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/box/one\n2:cpuset,cpuacct:/\n1:cpuacct,cpu:/box\n0::/\n");
    put("cgroup/memory/box/one/memory.limit_in_bytes", "104857600\n");
    put("cgroup/memory/box/one/memory.usage_in_bytes", "52428800\n");
    put("cgroup/cpu/box/cpu.cfs_quota_us", "300000\n");
    put("cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    assert_true(limits_bytes(&roots) == 50 * MIB);
    assert_true(limits_machine_bytes(&roots) == 100 * MIB);
    assert_int_equal(limits_cores(&roots, 8), 3);
    put("cgroup/cpu/box/cpu.cfs_quota_us", "-1\n"); /* none */
    assert_int_equal(limits_cores(&roots, 8), 8);
    put("cgroup/memory/box/one/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_true(limits_bytes(&roots) == 1024 * MIB);
}

/* In a container without a namespace of its own the path is the host's, and the container's group is the top. */
static void test_a_path_of_the_host(void **state)
{
    (void)state;
    put("proc/meminfo", "MemAvailable:  1048576 kB\n");
    static const char *const groups[] = {
        "0::/docker/0123abcd\n", "0::/\n", "0::/../outside\n", "0::\n", "no colon\n", ""};
    put("cgroup/memory.max", "41943040\n");
    put("cgroup/memory.current", "10485760\n");
    put("cgroup/cpu.max", "200000 100000\n");
    put("outside/memory.max", "0\n");
    put("outside/memory.current", "0\n");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        put("proc/self/cgroup", groups[i]);
        assert_true(limits_bytes(&roots) == 30 * MIB);
        assert_int_equal(limits_cores(&roots, 8), 2);
    }
    char *deep = malloc(5000);
    assert_non_null(deep);
    memset(deep, 'a', 4999);
    memcpy(deep, "0::/", 4);
    deep[4998] = '\n';
    deep[4999] = '\0';
    put("proc/self/cgroup", deep);
    assert_true(limits_bytes(&roots) == 30 * MIB);
    free(deep);
    put("cgroup/cpu.max", "200000 0\n");
    assert_int_equal(limits_cores(&roots, 8), 8);
    put("cgroup/cpu.max", "0 100000\n");
    assert_int_equal(limits_cores(&roots, 8), 1);
}

static void test_this_process(void **state)
{
    (void)state;
    assert_true(kernels_available_cores() >= 1);
    assert_true(kernels_available_bytes() > 0);
}

int main(void)
{
#define WITH_ROOTS(f) cmocka_unit_test_setup_teardown(f, make_roots, remove_roots)
    const struct CMUnitTest tests[] = {
        WITH_ROOTS(test_nothing_there),      WITH_ROOTS(test_version_2),          WITH_ROOTS(test_version_1),
        WITH_ROOTS(test_a_path_of_the_host), cmocka_unit_test(test_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* support.cc - see support.h. */
#include "tests/cuda_host/support.h"
#include "tests/cuda_host/internal.h"

#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

uint32_t support_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(*state >> 33) ^ (uint32_t)(*state >> 11);
    return x * 2654435769u ^ x >> 15;
}

float support_uniform(uint64_t *state)
{
    return (float)(support_random(state) >> 8) * 0x1p-23f - 1.0f;
}

void *support_device(const void *from, size_t bytes)
{
    void *p = nullptr;
    CHECK(cudaMalloc(&p, bytes));
    if (from)
        CHECK(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
    return p;
}

void *support_fetch(const void *device, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(p, device, bytes, cudaMemcpyDeviceToHost));
    return p;
}

void support_assert_bits(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (__float_as_uint(a[i]) != __float_as_uint(b[i]) && !(a[i] != a[i] && b[i] != b[i]))
            fail_msg("%s: value %zu of %zu is %a, should be %a", what, i, n, (double)a[i], (double)b[i]);
}

static std::string read_all(int fd)
{
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
        text.append(buffer, (size_t)n);
    return text;
}

void support_expect_fault(void (*fn)(void), const char *text)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(nullptr);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        fn();
        fprintf(stderr, "nothing was found\n");
        _exit(0);
    }
    close(ends[1]);
    std::string said = read_all(ends[0]);
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status == 0 || said.find(text) == std::string::npos)
        fail_msg("expected a fault that says \"%s\", status %d and: %s", text, status, said.c_str());
}

bool support_has_asan(void)
{
#ifdef CUDA_HOST_ASAN
    return true;
#else
    return false;
#endif
}

/* races.cc has another. */
__attribute__((weak)) bool support_has_races(void)
{
    return false;
}

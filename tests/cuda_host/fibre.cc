/* fibre.cc - stacks that run in turns on one thread. A switch is a dozen instructions; AddressSanitizer is told of
 * each, so that it knows which stack is in use. Fibres are kept for the life of the process and used again. */
#include "tests/cuda_host/internal.h"

#include <sys/mman.h>

#ifdef CUDA_HOST_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "the emulation's fibre switch is written for x86-64"
#endif

#define STACK_BYTES ((size_t)256 << 10)
#define GUARD_BYTES ((size_t)4096)

struct fibre {
    void *sp;
    char *stack;
    void (*fn)(void *);
    void *arg;
    bool done;
    void *fake; /* AddressSanitizer's */
};

static struct fibre *running;
static void *caller_sp;
#ifdef CUDA_HOST_ASAN
static void *caller_fake;
static const void *caller_stack;
static size_t caller_bytes;
#endif

/* Keeps what a call keeps on the old stack, stores its pointer at *from, and goes on where `to` was stored. */
extern "C" void cuda_host_switch(void **from, void *to);
__asm__(".text\n"
        ".p2align 4\n"
        ".type cuda_host_switch, @function\n"
        "cuda_host_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cuda_host_switch, . - cuda_host_switch\n"
        ".section .note.GNU-stack, \"\", @progbits\n"
        ".text\n");

static void arrive(void *fake)
{
#ifdef CUDA_HOST_ASAN
    __sanitizer_finish_switch_fiber(fake, &caller_stack, &caller_bytes);
#else
    (void)fake;
#endif
}

void fibre_pause(void)
{
    struct fibre *f = running;
#ifdef CUDA_HOST_ASAN
    __sanitizer_start_switch_fiber(&f->fake, caller_stack, caller_bytes);
#endif
    cuda_host_switch(&f->sp, caller_sp);
    arrive(f->fake);
}

static void live(void)
{
    arrive(nullptr);
    for (;;) {
        running->fn(running->arg);
        running->done = true;
        fibre_pause();
    }
}

struct fibre *fibre_new(void)
{
    struct fibre *f = (struct fibre *)calloc(1, sizeof(*f));
    void *memory = mmap(nullptr, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE))
        cuda_host_fault("no memory for a fibre");
    f->stack = (char *)memory + GUARD_BYTES;
    /* What the switch takes off: six registers, then where to go. A function begins 8 bytes below a multiple of 16. */
    void **top = (void **)(void *)(f->stack + STACK_BYTES) - 2;
    *top = (void *)live;
    f->sp = top - 6;
    return f;
}

void fibre_start(struct fibre *f, void (*fn)(void *), void *arg)
{
    f->fn = fn;
    f->arg = arg;
    f->done = false;
}

bool fibre_run(struct fibre *f)
{
    running = f;
#ifdef CUDA_HOST_ASAN
    __sanitizer_start_switch_fiber(&caller_fake, f->stack, STACK_BYTES);
#endif
    cuda_host_switch(&caller_sp, f->sp);
#ifdef CUDA_HOST_ASAN
    __sanitizer_finish_switch_fiber(caller_fake, nullptr, nullptr);
#endif
    running = nullptr;
    return !f->done;
}

/* send_bench.c - what the system takes for a token's event: CPU time of a plain write of its bytes to a socket whose
 * reader sleeps on this machine, with nothing else done by who writes it.
 *
 *   build/bench/send_bench
 *
 * Eight connections over loopback, each with a thread of another process that waits for what comes; every 20 ms, as a
 * step of the model would, one event is written to each. Prints microseconds for each write: the floor of what the
 * daemon's network thread takes.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READERS     8
#define ROUNDS      150
#define ROUND_NS    20000000
#define EVENT_BYTES 222

static int fds[READERS][2];

static void *read_all(void *arg)
{
    char buffer[4096];
    const int *fd = arg;
    while (recv(fd[1], buffer, sizeof buffer, 0) > 0)
        ;
    return NULL;
}

/* Both ends of a connection. */
static int open_pair(int listener, const struct sockaddr_in *at, int pair[2])
{
    int on = 1;
    pair[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (pair[1] < 0 || connect(pair[1], (const struct sockaddr *)at, sizeof *at))
        return -1;
    pair[0] = accept(listener, NULL, NULL);
    return pair[0] < 0 || setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ? -1 : 0;
}

static int readers(void)
{
    pthread_t threads[READERS];
    for (int i = 0; i < READERS; i++) {
        close(fds[i][0]);
        if (pthread_create(&threads[i], NULL, read_all, fds[i]))
            return EXIT_FAILURE;
    }
    for (int i = 0; i < READERS; i++)
        pthread_join(threads[i], NULL);
    return EXIT_SUCCESS;
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, READERS) ||
        getsockname(listener, (struct sockaddr *)&at, &len))
        return EXIT_FAILURE;
    for (int i = 0; i < READERS; i++)
        if (open_pair(listener, &at, fds[i]))
            return EXIT_FAILURE;
    pid_t child = fork();
    if (child < 0)
        return EXIT_FAILURE;
    if (child == 0)
        _exit(readers());
    char event[EVENT_BYTES];
    memset(event, 'x', sizeof event);
    double took = 0;
    for (int k = 0; k < ROUNDS; k++) {
        nanosleep(&(struct timespec){.tv_nsec = ROUND_NS}, NULL);
        double from = cpu_us();
        for (int i = 0; i < READERS; i++)
            if (send(fds[i][0], event, sizeof event, MSG_NOSIGNAL) != EVENT_BYTES)
                return EXIT_FAILURE;
        took += cpu_us() - from;
    }
    for (int i = 0; i < READERS; i++)
        shutdown(fds[i][0], SHUT_RDWR);
    int status;
    if (waitpid(child, &status, 0) != child || status)
        return EXIT_FAILURE;
    printf("%.1f us of CPU time a write\n", took / (ROUNDS * READERS));
    return EXIT_SUCCESS;
}

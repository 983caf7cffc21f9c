/* stream_test.cc - work in streams is late and ordered by nothing but streams and events, and graphs run what was
 * recorded. */
#include "tests/cuda_host/support.h"

__global__ static void add_to(int *to, const int *from, int more)
{
    *to = *from + more;
}

struct set {
    int *a, *b, *c, *host; /* three numbers of the device, one pinned */
    cudaStream_t first, second;
    cudaEvent_t event;
};

static struct set set_open(void)
{
    struct set s;
    int zero = 0;
    s.a = support_upload(&zero, 1);
    s.b = support_upload(&zero, 1);
    s.c = support_upload(&zero, 1);
    CHECK(cudaMallocHost(&s.host, sizeof(int)));
    *s.host = 0;
    CHECK(cudaStreamCreateWithFlags(&s.first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&s.second, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming));
    return s;
}

static void set_close(struct set *s)
{
    CHECK(cudaFree(s->a));
    CHECK(cudaFree(s->b));
    CHECK(cudaFree(s->c));
    CHECK(cudaFreeHost(s->host));
    CHECK(cudaStreamDestroy(s->first));
    CHECK(cudaStreamDestroy(s->second));
    CHECK(cudaEventDestroy(s->event));
}

static void add(cudaStream_t s, int *to, const int *from, int more)
{
    CHECK(launch(add_to, 1, 1, 0, s, to, from, more));
}

static int value_after(struct set *s, cudaStream_t stream, const int *device)
{
    CHECK(cudaMemcpyAsync(s->host, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    return *s->host;
}

/* a = 5 in one stream; b = a + 1 in the other, behind an event if there is one. */
static int across(bool with_event)
{
    struct set s = set_open();
    add(s.first, s.a, s.a, 5);
    if (with_event) {
        CHECK(cudaEventRecord(s.event, s.first));
        CHECK(cudaStreamWaitEvent(s.second, s.event));
    }
    add(s.second, s.b, s.a, 1);
    int got = value_after(&s, s.second, s.b);
    set_close(&s);
    return got;
}

static void test_events_order_streams(void **)
{
    int wrong = 0;
    EACH_SEED
    {
        assert_int_equal(across(true), 6);
        wrong += across(false) != 6;
    }
    assert_true(wrong >= 2); /* seeds 0 and 1 are always late */
}

/* The other way round: what is read must have been read before it is written again. */
static int overwritten(bool with_event)
{
    struct set s = set_open();
    add(s.first, s.b, s.a, 1);
    if (with_event) {
        CHECK(cudaEventRecord(s.event, s.first));
        CHECK(cudaStreamWaitEvent(s.second, s.event));
    }
    add(s.second, s.a, s.c, 70);
    CHECK(cudaStreamSynchronize(s.second));
    int got = value_after(&s, s.first, s.b);
    set_close(&s);
    return got;
}

static void test_events_order_writes_after_reads(void **)
{
    int wrong = 0;
    EACH_SEED
    {
        assert_int_equal(overwritten(true), 1);
        wrong += overwritten(false) != 1;
    }
    assert_true(wrong >= 2);
}

static void test_pinned_copies_are_late(void **)
{
    int stale = 0;
    EACH_SEED
    {
        struct set s = set_open();
        *s.host = 3;
        CHECK(cudaMemcpyAsync(s.a, s.host, sizeof(int), cudaMemcpyHostToDevice, s.first));
        *s.host = 4; /* a mistake: the copy has not been waited for */
        stale += value_after(&s, s.first, s.a) == 4;
        /* Memory that is not pinned is read before the call returns. */
        int plain = 8;
        CHECK(cudaMemcpyAsync(s.a, &plain, sizeof(int), cudaMemcpyHostToDevice, s.first));
        plain = 9;
        assert_int_equal(value_after(&s, s.first, s.a), 8);
        /* And a result is not there before somebody waits for it, or asks until it is. */
        add(s.first, s.a, s.a, 10);
        CHECK(cudaEventRecord(s.event, s.first));
        while (cudaEventQuery(s.event) == cudaErrorNotReady)
            continue;
        assert_int_equal(value_after(&s, s.second, s.a), 18);
        set_close(&s);
    }
    assert_true(stale >= 2);
}

static void test_default_stream_waits_for_blocking_streams(void **)
{
    EACH_SEED
    {
        struct set s = set_open();
        cudaStream_t blocking;
        CHECK(cudaStreamCreateWithFlags(&blocking, 0));
        add(blocking, s.a, s.a, 2);
        add(nullptr, s.b, s.a, 1);
        add(blocking, s.c, s.b, 1);
        assert_int_equal(value_after(&s, blocking, s.c), 4);
        CHECK(cudaStreamDestroy(blocking));
        set_close(&s);
    }
}

/* Records a = a + 1 in one stream, then b = a + 10 and c = a + 100 side by side, and joined: a = b + 0. */
static cudaError_t record(struct set *s, bool joined, cudaGraph_t *graph)
{
    cudaEvent_t back;
    CHECK(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
    CHECK(cudaStreamBeginCapture(s->first, cudaStreamCaptureModeThreadLocal));
    add(s->first, s->a, s->a, 1);
    CHECK(cudaEventRecord(s->event, s->first));
    CHECK(cudaStreamWaitEvent(s->second, s->event));
    add(s->first, s->b, s->a, 10);
    add(s->second, s->c, s->a, 100);
    CHECK(cudaEventRecord(back, s->second));
    if (joined) {
        CHECK(cudaStreamWaitEvent(s->first, back));
        add(s->first, s->a, s->b, 0);
    }
    cudaError_t e = cudaStreamEndCapture(s->first, graph);
    CHECK(cudaEventDestroy(back));
    return e;
}

static void test_graphs(void **)
{
    EACH_SEED
    {
        struct set s = set_open();
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        assert_int_equal(record(&s, false, &graph), cudaErrorStreamCaptureUnjoined);
        cudaGetLastError();
        CHECK(record(&s, true, &graph));
        CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        CHECK(cudaGraphDestroy(graph));
        assert_int_equal(value_after(&s, s.first, s.a), 0); /* recording runs nothing */
        CHECK(cudaGraphLaunch(exec, s.first));
        CHECK(cudaGraphLaunch(exec, s.first));
        assert_int_equal(value_after(&s, s.first, s.a), 22);
        assert_int_equal(value_after(&s, s.first, s.c), 112);
        CHECK(cudaGraphExecDestroy(exec));
        /* What waits, frees or takes memory has no place in a recording, which is lost with it. */
        int *taken = nullptr;
        for (int call = 0; call < 7; call++) {
            CHECK(cudaStreamBeginCapture(s.first, cudaStreamCaptureModeThreadLocal));
            assert_int_equal(call == 0   ? cudaStreamSynchronize(s.first)
                             : call == 1 ? cudaMalloc(&taken, 4)
                             : call == 2 ? cudaMallocHost(&taken, 4)
                             : call == 3 ? cudaFree(s.c)
                             : call == 4 ? cudaEventQuery(s.event)
                             : call == 5 ? cudaEventSynchronize(s.event)
                                         : cudaDeviceSynchronize(),
                             cudaErrorStreamCaptureUnsupported);
            assert_int_equal(cudaStreamEndCapture(s.first, &graph), cudaErrorStreamCaptureInvalidated);
        }
        cudaGetLastError();
        set_close(&s);
    }
}

/* ---- kernels that overlap ---------------------------------------------------------------------------------------- */

/* What a kernel does before it has waited for those before it. */
enum early { NOTHING, READS, COPIES, WRITES, NEVER_WAITS };

/* to[0..3] = from[0..3] + 1. One thread. */
template <enum early early> __global__ static void add_one(float *to, const float *from)
{
    SHARED(float4, copied, [1]);
    float4 x = make_float4(0, 0, 0, 0);
    if (early == READS)
        x = *(const float4 *)from;
    if (early == COPIES) {
        copy_async_16(copied, from);
        copy_async_commit();
    }
    if (early == WRITES)
        to[0] = 0;
    if (early != NEVER_WAITS)
        wait_for_earlier();
    copy_async_wait<0>();
    if (early == COPIES)
        x = *copied;
    else if (early != READS)
        x = *(const float4 *)from;
    to[0] = x.x + 1, to[1] = x.y + 1, to[2] = x.z + 1, to[3] = x.w + 1;
}

/* The second kernel of two, behind the first one's numbers, or, where they are `of_host`, behind those of a copy. */
template <enum early early> static float second(bool of_host)
{
    const float zeros[4] = {};
    float *from = support_upload(zeros, 4), *middle = support_upload(zeros, 4), *to = support_upload(zeros, 4);
    launch_overlaps = true;
    CHECK(launch(add_one<NOTHING>, 1, 1, 0, nullptr, middle, from));
    CHECK(launch(add_one<early>, 1, 1, 0, nullptr, to, of_host ? from : middle));
    launch_overlaps = false;
    float *h = (float *)support_fetch(to, 16), x = h[3];
    free(h);
    CHECK(cudaFree(from));
    CHECK(cudaFree(middle));
    CHECK(cudaFree(to));
    return x;
}

template <enum early early> static void run_second(void)
{
    second<early>(false);
}

static void test_kernels_that_overlap(void **)
{
    EACH_SEED
    {
        assert_true(second<NOTHING>(false) == 2.0f);
        assert_true(second<READS>(true) == 1.0f);
        assert_true(second<COPIES>(true) == 1.0f);
    }
    cuda_host_seed(0);
    support_expect_fault(run_second<NEVER_WAITS>, support_has_races() ? "before it has waited for that one"
                                                                      : "without having waited for the kernels before");
    if (!support_has_races())
        return;
    support_expect_fault(run_second<READS>, "which an earlier kernel wrote, before it has waited for that one");
    support_expect_fault(run_second<COPIES>, "which an earlier kernel wrote, before it has waited for that one");
    support_expect_fault(run_second<WRITES>, "before it has waited for earlier kernels");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_events_order_streams),
    cmocka_unit_test(test_events_order_writes_after_reads),
    cmocka_unit_test(test_pinned_copies_are_late),
    cmocka_unit_test(test_default_stream_waits_for_blocking_streams),
    cmocka_unit_test(test_graphs),
    cmocka_unit_test(test_kernels_that_overlap),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

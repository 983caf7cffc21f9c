/* backend_test.cc - opening a device and what goes wrong with one: which machines are refused and why, memory that
 * there is not, events that are long past, and a device that fails. */
#include "tests/cuda_host/support.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

extern "C" {
#include "kernels/cuda/nvml.h"
#include "kernels/kernels.h"
}

static int open_as(const char *name, int device, struct kernels **k, char err[300])
{
    struct kernels_opts opts = {};
    opts.backend = name;
    opts.threads = 1;
    opts.device = device;
    return kernels_open(&opts, k, err, 300);
}

static struct kernels *opened(void)
{
    struct kernels *k;
    char err[300];
    assert_int_equal(open_as("cuda", 0, &k, err), 0);
    assert_string_equal(kernels_backend(k), "cuda_host");
    return k;
}

static void test_machines(void **)
{
    static const struct {
        int devices, major;
        bool driver;
        int device, rc;
        const char *text;
    } machines[] = {
        {1, 9, true, 0, 0, ""},
        {2, 8, true, 1, 0, ""},
        {0, 9, true, 0, -ENODEV, "there is no GPU that can be used: no CUDA-capable device"},
        {1, 9, false, 0, -ENODEV, "driver is missing or too old"},
        {2, 9, true, 2, -ENODEV, "there is no device 2; there are 2"},
        {1, 9, true, -1, -ENODEV, "there is no device -1"},
        {1, 7, true, 0, -ENOTSUP, "compute capability 7.0; 8.0 is the least"},
        {1, 12, true, 0, 0, ""},
        {1, 100, true, 0, -ENOTSUP, "a compute capability that cannot be named"},
    };
    for (auto &m : machines) {
        struct kernels *k = nullptr;
        char err[300];
        cuda_host_machine(m.devices, m.major, m.driver);
        assert_int_equal(open_as("cuda", m.device, &k, err), m.rc);
        if (!strstr(err, m.text))
            fail_msg("`%s` says nothing of `%s`", err, m.text);
        if (m.rc == 0)
            kernels_close(k);
        else
            assert_int_equal(open_as("cuda", m.device, &k, err) < 0, 1);
        /* auto takes the processor then, and says why. */
        assert_int_equal(open_as("auto", m.device, &k, err), 0);
        assert_int_equal(strncmp(kernels_backend(k), m.rc ? "cpu" : "cuda", 3), 0);
        assert_non_null(strstr(err, m.text));
        kernels_close(k);
    }
    cuda_host_machine(1, 9, true);
    struct kernels_opts opts = {};
    opts.numerics = "fast";
    struct kernels *k;
    char err[300];
    assert_int_equal(kernels_open(&opts, &k, err, sizeof(err)), -EINVAL);
    assert_non_null(strstr(err, "numerics fast is unknown"));
}

static void test_memory(void **)
{
    struct kernels *k = opened();
    const struct kernels_ops *ops = kernels_ops(k);
    uint64_t all = ops->memory_bytes(k, true), left = ops->memory_bytes(k, false);
    assert_true(left <= all);
    assert_null(ops->alloc(k, KERNELS_DEVICE, (size_t)all + 1));
    assert_null(ops->error(k)); /* that is no failure of the device */
    uint8_t *device = (uint8_t *)ops->alloc(k, KERNELS_DEVICE, 1000),
            *pinned = (uint8_t *)ops->alloc(k, KERNELS_PINNED, 1000);
    assert_true(ops->memory_bytes(k, false) < left);
    memset(pinned, 7, 1000);
    ops->copy(k, KERNELS_COMPUTE, pinned, device, 1000); /* zeroed when it was made */
    assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pinned[i], 0);
    /* What is not there yet is no error, and leaves none behind. */
    for (int i = 0; i < 5; i++)
        ops->zero(k, KERNELS_COMPUTE, device, 1000);
    kernels_event event = ops->record(k, KERNELS_COMPUTE);
    assert_int_equal(ops->wait(k, event, 0), -ETIMEDOUT);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(ops->wait(k, event, 5000), 0);
    ops->release(k, KERNELS_DEVICE, device, 1000);
    ops->release(k, KERNELS_PINNED, pinned, 1000);
    kernels_close(k);
}

/* A stream waits for another one's event, however many there were since. */
static void test_events(void **)
{
    for (unsigned seed = 0; seed < SEEDS; seed++)
        for (int since : {0, 1, 255, 256, 700}) {
            cuda_host_seed(seed);
            struct kernels *k = opened();
            const struct kernels_ops *ops = kernels_ops(k);
            uint8_t *device = (uint8_t *)ops->alloc(k, KERNELS_DEVICE, 64),
                    *pinned = (uint8_t *)ops->alloc(k, KERNELS_PINNED, 128);
            memset(pinned, 42, 64);
            ops->copy(k, KERNELS_IN, device, pinned, 64);
            kernels_event first = ops->record(k, KERNELS_IN);
            for (int i = 0; i < since; i++)
                ops->record(k, KERNELS_IN);
            ops->after(k, KERNELS_OUT, first);
            ops->copy(k, KERNELS_OUT, pinned + 64, device, 64);
            assert_int_equal(ops->wait(k, 0, 0), 0);
            assert_int_equal(ops->wait(k, ops->record(k, KERNELS_OUT), 5000), 0);
            assert_int_equal(pinned[64], 42);
            assert_int_equal(ops->wait(k, first, 0), 0);
            ops->release(k, KERNELS_DEVICE, device, 64);
            ops->release(k, KERNELS_PINNED, pinned, 128);
            kernels_close(k);
        }
    cuda_host_seed(0);
}

/* Layers come through two places while others are computed: each is there when it is wanted, and until then the one
 * before it in its place; in steps that are recorded and replayed too. */
static void test_bring(void **)
{
    static constexpr int LAYERS = 7, BYTES = 64;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        cuda_host_seed(seed);
        struct kernels *k = opened();
        const struct kernels_ops *ops = kernels_ops(k);
        struct kernels_sizes sizes = {};
        sizes.rows = sizes.runs = sizes.pages = sizes.wanted = sizes.heads = 1;
        sizes.cols = sizes.ff = 32;
        sizes.head_dim = 16;
        assert_int_equal(ops->reserve(k, &sizes), 0);
        uint8_t *places = (uint8_t *)ops->alloc(k, KERNELS_DEVICE, KERNELS_PLACES * BYTES),
                *from = (uint8_t *)ops->alloc(k, KERNELS_PINNED, LAYERS * BYTES),
                *out = (uint8_t *)ops->alloc(k, KERNELS_PINNED, LAYERS * BYTES);
        for (int i = 0; i < LAYERS * BYTES; i++)
            from[i] = (uint8_t)(1 + i / BYTES);
        auto bring = [&](int l) {
            if (l < LAYERS)
                ops->bring(k, l % KERNELS_PLACES, places + l % KERNELS_PLACES * BYTES, from + l * BYTES, BYTES);
        };
        for (int i = 0; i < 5; i++) {
            static const int32_t ids[1] = {}, pages[1] = {};
            struct kernels_run run = {0, 1, 0, {{pages, 1}, {pages, 1}}};
            struct kernels_batch batch = {};
            batch.rows = batch.n_runs = 1;
            batch.ids = ids;
            batch.runs = &run;
            memset(out, 0, LAYERS * BYTES);
            int rc = ops->begin(k, &batch);
            assert_int_equal(rc, i > 1);
            if (rc == 0)
                bring(0);
            for (int l = 0; rc == 0 && l < LAYERS; l++) {
                ops->brought(k, l % KERNELS_PLACES);
                bring(l + 1);
                ops->copy(k, KERNELS_COMPUTE, out + l * BYTES, places + l % KERNELS_PLACES * BYTES, BYTES);
            }
            ops->end(k);
            assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
            assert_memory_equal(out, from, LAYERS * BYTES);
        }
        assert_null(ops->error(k));
        ops->release(k, KERNELS_DEVICE, places, KERNELS_PLACES * BYTES);
        ops->release(k, KERNELS_PINNED, from, LAYERS * BYTES);
        ops->release(k, KERNELS_PINNED, out, LAYERS * BYTES);
        kernels_close(k);
    }
    cuda_host_seed(0);
}

/* A batch of so many rows of one sequence, whose operation is to clear some memory; what begin() said. */
static int step(struct kernels *k, int rows, int32_t *ids, uint8_t *memory, int n_pages)
{
    static const int32_t pages[5000] = {};
    struct kernels_run run = {0, rows, 0, {{pages, n_pages}, {pages, n_pages}}};
    struct kernels_batch batch = {};
    batch.rows = rows;
    batch.ids = ids;
    batch.runs = &run;
    batch.n_runs = 1;
    const struct kernels_ops *ops = kernels_ops(k);
    int rc = ops->begin(k, &batch);
    if (rc == 0)
        ops->zero(k, KERNELS_COMPUTE, memory, 64);
    ops->end(k);
    return rc;
}

/* The third batch of a kind is a graph's; kinds that were not met for long make room for others; and a batch that is
 * too large for its piece of memory makes it larger. */
static void test_graphs(void **)
{
    struct kernels *k = opened();
    const struct kernels_ops *ops = kernels_ops(k);
    struct kernels_sizes sizes = {};
    sizes.rows = sizes.runs = 100;
    sizes.pages = 2;
    sizes.wanted = sizes.picks = 2;
    sizes.vocab = 300;
    sizes.cols = sizes.ff = 32;
    sizes.heads = 1;
    sizes.head_dim = 16;
    assert_true(ops->reserve_bytes(k, &sizes) > 0);
    assert_int_equal(ops->reserve(k, &sizes), 0);
    int32_t ids[100] = {};
    uint8_t *device = (uint8_t *)ops->alloc(k, KERNELS_DEVICE, 64),
            *pinned = (uint8_t *)ops->alloc(k, KERNELS_PINNED, 64);
    for (int rows = 1; rows <= 60; rows++)
        for (int i = 0; i < 4; i++) {
            memset(pinned, 1, 64);
            ops->copy(k, KERNELS_COMPUTE, device, pinned, 64);
            assert_int_equal(step(k, rows, ids, device, 2), i > 1);
            ops->copy(k, KERNELS_COMPUTE, pinned, device, 64);
            assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
            for (int b = 0; b < 64; b++)
                assert_int_equal(pinned[b], 0);
        }
    assert_int_equal(step(k, 60, ids, device, 2), 1);
    assert_int_equal(step(k, 1, ids, device, 2), 0); /* long ago */
    for (int i = 0; i < 4; i++)
        assert_int_equal(step(k, 100, ids, device, 2), 0); /* too many rows for a graph */
    for (int i = 0; i < 4; i++)
        assert_int_equal(step(k, 60, ids, device, 5000), i > 1);
    assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
    assert_null(ops->error(k));
    ops->release(k, KERNELS_DEVICE, device, 64);
    ops->release(k, KERNELS_PINNED, pinned, 64);
    kernels_close(k);
}

/* Picks come behind a pass, with as many seen tokens as there are: more than there was room for makes more. */
static void test_picks(void **)
{
    static constexpr int VOCAB = 6000, SEEN = 5000;
    static struct kernels_seen seen[SEEN];
    struct kernels *k = opened();
    const struct kernels_ops *ops = kernels_ops(k);
    struct kernels_sizes sizes = {};
    sizes.rows = sizes.runs = sizes.pages = sizes.wanted = sizes.heads = 1;
    sizes.picks = 2;
    sizes.vocab = VOCAB;
    sizes.cols = sizes.ff = 32;
    sizes.head_dim = 16;
    assert_int_equal(ops->reserve(k, &sizes), 0);
    float *logits = (float *)ops->alloc(k, KERNELS_DEVICE, VOCAB * sizeof *logits),
          *from = (float *)ops->alloc(k, KERNELS_PINNED, VOCAB * sizeof *from);
    struct kernels_picked *out = (struct kernels_picked *)ops->alloc(k, KERNELS_PINNED, 2 * sizeof *out);
    for (int i = 0; i < VOCAB; i++)
        from[i] = i < SEEN ? 3 : i == 5555 ? 2 : 1;
    for (int i = 0; i < SEEN; i++)
        seen[i] = {i, 1, 0};
    ops->copy(k, KERNELS_COMPUTE, logits, from, VOCAB * sizeof *logits);
    for (int n_seen : {0, 100, SEEN, 10, SEEN}) {
        uint32_t mask[(VOCAB + 31) / 32] = {};
        mask[4321 / 32] = 1u << 4321 % 32;
        struct kernels_pick picks[2] = {};
        for (struct kernels_pick &p : picks) {
            p.seen = seen;
            p.n_seen = n_seen;
            p.repetition = 2;
            p.top_p = 1;
        }
        picks[1].mask = mask;
        ops->pick(k, logits, VOCAB, picks, 2, out);
        memset(mask, 0xff, sizeof mask); /* it was read */
        picks[0].n_seen = 0;
        assert_int_equal(ops->wait(k, ops->record(k, KERNELS_COMPUTE), -1), 0);
        assert_int_equal(out[0].id, n_seen == SEEN ? 5555 : n_seen);
        assert_int_equal(out[1].id, 4321);
    }
    assert_null(ops->error(k));
    ops->release(k, KERNELS_DEVICE, logits, VOCAB * sizeof *logits);
    ops->release(k, KERNELS_PINNED, from, VOCAB * sizeof *from);
    ops->release(k, KERNELS_PINNED, out, 2 * sizeof *out);
    kernels_close(k);
}

/* From the first failure on nothing is done any more, and waiting says so. */
static void test_failure(void **)
{
    struct kernels *k = opened();
    const struct kernels_ops *ops = kernels_ops(k);
    uint8_t *device = (uint8_t *)ops->alloc(k, KERNELS_DEVICE, 64);
    kernels_event event = ops->record(k, KERNELS_COMPUTE);
    cuda_host_break(true);
    assert_int_equal(ops->wait(k, event, 1000), -EIO);
    cuda_host_break(false);
    assert_non_null(strstr(ops->error(k), "the device: unspecified launch failure"));
    assert_int_equal(ops->wait(k, event, -1), -EIO);
    assert_int_equal(ops->wait(k, ops->record(k, KERNELS_OUT), 0), -EIO);
    assert_null(ops->alloc(k, KERNELS_DEVICE, 64));
    ops->zero(k, KERNELS_COMPUTE, device, 64);
    struct kernels_batch batch = {};
    ops->begin(k, &batch);
    ops->end(k);
    ops->release(k, KERNELS_DEVICE, device, 64);
    kernels_close(k);
}

/* What NVML says once somebody has been asking for a while; false: it never says anything. */
static bool health_of(struct kernels *k, struct kernels_health *h, int tries)
{
    const struct timespec pause = {0, 20000000};
    for (int i = 0; i < tries; i++) {
        if (kernels_health(k, h))
            return true;
        nanosleep(&pause, nullptr);
    }
    return false;
}

/* How the device is, as far as NVML is there and says it; and that it is asked again. */
static void test_health(void **)
{
    struct kernels_health h;
    const struct timespec pause = {0, 20000000};
    struct kernels *k = opened();
    assert_true(health_of(k, &h, 3000));
    assert_string_equal(h.name, "an _emulated_ device");
    assert_true(h.memory_bytes == (uint64_t)1 << 30 && h.memory_used_bytes == (uint64_t)1 << 28);
    assert_true(h.temperature_c == 40.0 && h.power_w == 65.5 && h.utilization == 0.25);
    cuda_host_set_nvml({true, 71, -1, 100, false});
    for (int i = 0; i < 3000 && !(h.temperature_c == 71.0 && h.utilization == 1.0); i++) {
        nanosleep(&pause, nullptr);
        assert_true(kernels_health(k, &h));
    }
    assert_true(h.temperature_c == 71.0 && isnan(h.power_w) && h.utilization == 1.0);
    kernels_close(k);
    cuda_host_set_nvml({false, 0, 0, 0, false});
    k = opened();
    assert_false(health_of(k, &h, 20));
    kernels_close(k);
    cuda_host_set_nvml({true, 40, 65500, -1, true}); /* memory is the instance's, heat and power the card's */
    k = opened();
    assert_true(health_of(k, &h, 3000));
    assert_string_equal(h.name, "an _emulated_ device 1g");
    assert_true(h.memory_bytes == (uint64_t)1 << 28 && h.memory_used_bytes == (uint64_t)1 << 26);
    assert_true(h.temperature_c == 40.0 && h.power_w == 65.5 && isnan(h.utilization));
    kernels_close(k);
    cuda_host_set_nvml({true, 40, 65500, 25, false});
    const char uuid[NVML_UUID_BYTES] = {};
    nvml_close(nullptr);
    assert_false(nvml_read(nullptr, &h));
    for (const char *library : {"libno-such-library.so.1", "libz.so.1"}) { /* the second has other functions, if any */
        struct nvml *n = nvml_open(library, "0000:01:00.0", uuid);
        assert_non_null(n);
        nanosleep(&pause, nullptr);
        assert_false(nvml_read(n, &h));
        nvml_close(n);
    }
    struct nvml *other = nvml_open(nullptr, "0000:77:00.0", uuid); /* no such device */
    nanosleep(&pause, nullptr);
    assert_false(nvml_read(other, &h));
    nvml_close(other);
    struct kernels_opts opts = {};
    opts.backend = "cpu";
    char err[300];
    assert_int_equal(kernels_open(&opts, &k, err, sizeof(err)), 0);
    assert_false(kernels_health(k, &h));
    kernels_close(k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_health),  cmocka_unit_test(test_machines), cmocka_unit_test(test_memory),
    cmocka_unit_test(test_events),  cmocka_unit_test(test_graphs),   cmocka_unit_test(test_picks),
    cmocka_unit_test(test_failure), cmocka_unit_test(test_bring),
};

int main(void)
{
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

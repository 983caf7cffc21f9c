/* attention_test.cc - keys and values into pages and out of them, and attention over them: the bits of the CPU's, over
 * shapes, windows, soft caps, dropped pages and several sequences in one batch. */
#include "tests/cuda_host/twins.h"

#include <math.h>

enum { PAGE = KERNELS_PAGE_TOKENS };

struct shape {
    int heads, kv_heads, head_dim;
    enum kernels_kv_type type;
    int window;
    float softcap;
    bool sinks;
    int tokens;
};

static const struct shape shapes[] = {
    {7, 1, 64, KERNELS_KV_BF16, 0, 0, false, 270},   {3, 1, 256, KERNELS_KV_BF16, 40, 0, false, 130},
    {2, 2, 80, KERNELS_KV_F16, 0, 0, true, 260},     {4, 2, 96, KERNELS_KV_BF16, 0, 30.0f, false, 130},
    {1, 1, 128, KERNELS_KV_F16, 270, 0, false, 530}, {5, 1, 40, KERNELS_KV_BF16, 17, 5.0f, true, 100},
    {2, 1, 32, KERNELS_KV_BF16, 512, 0, true, 700},
};

/* Two sequences: a batch holds the last rows of each. The pool is the same bytes on both sides, unwritten slots NaN. */
struct problem {
    struct shape s;
    struct kernels_kv kv;
    std::vector<uint8_t> pool;
    std::vector<int32_t> pages[2];
};

static struct problem problem_new(const struct shape *s)
{
    struct problem p = {*s, {}, {}, {}};
    size_t half = ((size_t)(s->kv_heads * s->head_dim) * PAGE * 2 + 63) / 64 * 64;
    int n = (s->tokens + PAGE - 1) / PAGE;
    p.kv = {s->type, 0, s->kv_heads, s->head_dim, nullptr, 2 * half + 128, 64, 128 + half};
    p.pool.assign((size_t)(2 * n + 1) * p.kv.page_bytes, 0xff);
    for (int i = 0; i < n; i++) {
        p.pages[0].push_back(2 * n - i);
        p.pages[1].push_back(i);
    }
    return p;
}

/* Rows of both sequences: `rows` tokens of each, ending at its last position; the second one is 30 tokens shorter. */
static std::vector<struct kernels_run> runs_of(const struct problem *p, int rows)
{
    std::vector<struct kernels_run> runs;
    for (int i = 0; i < 2; i++)
        runs.push_back(
            {i * rows, rows, p->s.tokens - 30 * i - rows, {{p->pages[i].data(), (int)p->pages[i].size()}, {}}});
    return runs;
}

/* The same on the device. */
struct device_rows {
    on_device<int32_t> pos, table, count, pages;
    struct cuda_rows rows;
};

static struct device_rows *rows_on_device(const std::vector<struct kernels_run> &runs)
{
    std::vector<int32_t> pos, table, count, pages;
    for (auto &run : runs) {
        for (int i = 0; i < run.n; i++) {
            pos.push_back(run.pos + i);
            table.push_back((int32_t)pages.size());
            count.push_back(run.pages[0].count);
        }
        pages.insert(pages.end(), run.pages[0].pages, run.pages[0].pages + run.pages[0].count);
    }
    auto *d = new device_rows{
        on_device<int32_t>(pos), on_device<int32_t>(table), on_device<int32_t>(count), on_device<int32_t>(pages), {}};
    d->rows = {(int)pos.size(), d->pos.p, d->table.p, d->count.p, nullptr, nullptr, d->pages.p};
    return d;
}

/* Writes keys and values of all tokens up to the end on the CPU's side, and the last `rows` of each on both. */
static void write_both(struct problem *p, int rows, on_device<uint8_t> **pool)
{
    struct kernels *k = twins_cpu();
    size_t width = (size_t)(p->s.kv_heads * p->s.head_dim);
    struct kernels_kv kv = p->kv;
    kv.pool = p->pool.data();
    int before = p->s.tokens - rows;
    std::vector<struct kernels_run> runs = runs_of(p, before);
    for (auto &run : runs) {
        run.n = run.pos + before - rows;
        run.pos = 0;
        run.first_row = 0;
        std::vector<float> key = twins_numbers((size_t)run.n * width, 5, false),
                           value = twins_numbers((size_t)run.n * width, 6, false);
        twins_kv_write(k, &kv, key.data(), value.data(), &run, 1);
    }
    *pool = new on_device<uint8_t>(p->pool);
    runs = runs_of(p, rows);
    std::vector<float> key = twins_numbers((size_t)(2 * rows) * width, 7, false),
                       value = twins_numbers((size_t)(2 * rows) * width, 8, false);
    key[0] = 70000.0f; /* an infinity as f16 */
    value[width / 2] = 1e-6f;
    twins_kv_write(k, &kv, key.data(), value.data(), runs.data(), 2);
    struct device_rows *d = rows_on_device(runs);
    on_device<float> dk(key), dv(value);
    kv.pool = (*pool)->p;
    assert_int_equal(cuda_kv_write(nullptr, kv, d->rows, dk.p, dv.p), 0);
    CHECK(cudaDeviceSynchronize());
    delete d;
}

static void attend_both(const struct problem *p, const on_device<uint8_t> *pool, int rows, const char *what)
{
    struct kernels *k = twins_cpu();
    std::vector<struct kernels_run> runs = runs_of(p, rows);
    size_t n = (size_t)(2 * rows * p->s.heads * p->s.head_dim);
    std::vector<float> q = twins_numbers(n, 11, false), want(n);
    float scale = 1.0f / sqrtf((float)p->s.head_dim);
    std::vector<float> sinks = twins_numbers((size_t)p->s.heads, 12, false);
    on_device<float> device_sinks(sinks);
    struct kernels_attention a = {};
    a.q = q.data();
    a.heads = p->s.heads;
    a.scale = scale;
    a.window = p->s.window;
    a.softcap = p->s.softcap;
    a.sinks = p->s.sinks ? sinks.data() : nullptr;
    a.kv = p->kv;
    a.kv.pool = (uint8_t *)p->pool.data();
    twins_attention(k, &a, runs.data(), 2, want.data());
    struct device_rows *d = rows_on_device(runs);
    on_device<float> dq(q), out(n);
    struct cuda_attention c = {};
    c.q = dq.p;
    c.out = out.p;
    c.heads = a.heads;
    c.scale = scale;
    c.window = a.window;
    c.softcap = a.softcap;
    c.sinks = a.sinks ? device_sinks.p : nullptr;
    c.kv = p->kv;
    c.kv.pool = pool->p;
    assert_int_equal(cuda_attention_exact(nullptr, c, d->rows), 0);
    support_assert_bits(what, out.fetch().data(), want.data(), n);
    delete d;
}

static void test_attention(void **)
{
    unsigned seed = 0;
    for (auto &s : shapes)
        for (int rows : {1, 6}) {
            cuda_host_seed(seed++ % SEEDS);
            struct problem p = problem_new(&s);
            on_device<uint8_t> *pool;
            write_both(&p, rows, &pool);
            std::vector<uint8_t> got = pool->fetch();
            assert_memory_equal(got.data(), p.pool.data(), got.size());
            attend_both(&p, pool, rows, "attention");
            /* A dropped page hides what is before it in its block; dropping all leaves nothing to see. */
            p.pages[0][0] = -1;
            attend_both(&p, pool, rows, "attention without the first page");
            p.pages[1].assign(p.pages[1].size(), -1);
            attend_both(&p, pool, rows, "attention without a page");
            p.pages[0].resize(1);
            attend_both(&p, pool, rows, "attention past the table");
            delete pool;
        }
}

static void test_export_and_import(void **)
{
    static const int ranges[][2] = {{0, 256}, {0, 1}, {17, 30}, {64, 64}, {5, 200}, {250, 10}, {256, 14}};
    for (auto &s : shapes) {
        if (s.tokens < 260)
            continue;
        struct problem p = problem_new(&s);
        on_device<uint8_t> *pool;
        write_both(&p, 4, &pool);
        size_t width = (size_t)(s.kv_heads * s.head_dim);
        p.pages[0][1] = -1; /* positions 64 .. 127 */
        struct kernels_kv kv = p.kv,
                          two[2] = {p.kv, p.kv}; /* a second layer is the first one's keys and values again */
        kv.pool = p.pool.data();
        two[0].pool = two[1].pool = pool->p;
        struct kernels_pages table = {p.pages[0].data(), (int)p.pages[0].size()};
        for (auto &r : ranges) {
            size_t n = (size_t)r[1] * width;
            std::vector<uint16_t> both(2 * n);
            kernels_kv_export_layer(&kv, table, r[0], r[1], both.data(), both.data() + n);
            uint16_t *staging;
            CHECK(cudaMallocHost(&staging, 4 * n * sizeof(*staging)));
            assert_int_equal(cuda_kv_export(nullptr, two, 2, &table, r[0], r[1], staging), 0);
            CHECK(cudaDeviceSynchronize());
            for (int layer = 0; layer < 2; layer++)
                assert_memory_equal(staging + (size_t)layer * 2 * n, both.data(), 4 * n);
            for (size_t i = 0; i < 2 * n; i++)
                staging[i] = both[i] = (uint16_t)(i * 7 + i / n);
            kernels_kv_import_layer(&kv, table, r[0], r[1], both.data(), both.data() + n);
            assert_int_equal(cuda_kv_import(nullptr, two, 1, &table, r[0], r[1], staging), 0);
            assert_memory_equal(pool->fetch().data(), p.pool.data(), p.pool.size());
            CHECK(cudaFreeHost(staging));
        }
        delete pool;
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_attention),
    cmocka_unit_test(test_export_and_import),
};

static int close_cpu(void **)
{
    kernels_close(twins_cpu());
    return 0;
}

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, close_cpu);
}

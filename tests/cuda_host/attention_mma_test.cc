/* attention_mma_test.cc - attention on tensor cores: near the exact kernel over shapes, windows, soft caps, sinks and
 * dropped pages; and a query's bits are the same whatever else is in the batch, and however blocks are shared out. */
#include "kernels/cuda/cuda.h"
#include "tests/cuda_host/support.h"

#include <math.h>
#include <vector>

enum { PAGE = KERNELS_PAGE_TOKENS };

struct shape {
    int heads, kv_heads, head_dim;
    enum kernels_kv_type type;
    int window;
    float softcap;
    bool sinks;
    int tokens; /* of the first sequence; the second has 70 fewer */
};

static const struct shape shapes[] = {
    {7, 1, 64, KERNELS_KV_BF16, 0, 0, false, 300},    {3, 1, 112, KERNELS_KV_BF16, 40, 0, false, 130},
    {2, 2, 80, KERNELS_KV_F16, 0, 0, true, 290},      {4, 2, 96, KERNELS_KV_BF16, 0, 30.0f, false, 130},
    {1, 1, 128, KERNELS_KV_F16, 270, 0, false, 1400}, {16, 1, 16, KERNELS_KV_BF16, 17, 5.0f, true, 100},
    {2, 1, 32, KERNELS_KV_BF16, 512, 0, true, 800},   {8, 2, 128, KERNELS_KV_BF16, 0, 0, false, 140},
    {4, 1, 256, KERNELS_KV_BF16, 0, 0, false, 560},   {2, 1, 176, KERNELS_KV_F16, 300, 20.0f, true, 620},
};

template <typename T> struct on_device {
    T *p;
    explicit on_device(const std::vector<T> &from) : p(support_upload(from.data(), from.size()))
    {
    }
    on_device(const on_device &) = delete;
    ~on_device()
    {
        cudaFree(p);
    }
};

static std::vector<float> numbers(size_t n, uint64_t seed)
{
    std::vector<float> x(n);
    for (auto &v : x)
        v = support_uniform(&seed) * 2;
    return x;
}

/* Runs of one batch: which positions of which sequence. */
struct run {
    int sequence, pos, n;
};

struct problem {
    struct shape s;
    struct kernels_kv kv;
    std::vector<int32_t> pages[2];
    on_device<uint8_t> *pool;
    on_device<float> *sinks;
};

/* The rows of some runs on the device, and for each the number of its query: positions of the first sequence, then
 * those of the second. */
struct batch {
    std::vector<int32_t> pos, table, count, first, end, pages;
    on_device<int32_t> *device[6];
    struct cuda_rows rows;
};

static struct batch *batch_new(const struct problem *p, const std::vector<struct run> &runs)
{
    auto *b = new struct batch();
    for (auto &r : runs) {
        int begin = (int)b->pos.size();
        for (int i = 0; i < r.n; i++) {
            b->pos.push_back(r.pos + i);
            b->table.push_back((int32_t)b->pages.size());
            b->count.push_back((int32_t)p->pages[r.sequence].size());
            b->first.push_back(begin);
            b->end.push_back(begin + r.n);
        }
        b->pages.insert(b->pages.end(), p->pages[r.sequence].begin(), p->pages[r.sequence].end());
    }
    const std::vector<int32_t> *all[6] = {&b->pos, &b->table, &b->count, &b->first, &b->end, &b->pages};
    for (int i = 0; i < 6; i++)
        b->device[i] = new on_device<int32_t>(*all[i]);
    b->rows = {(int)b->pos.size(), b->device[0]->p, b->device[1]->p, b->device[2]->p,
               b->device[3]->p,    b->device[4]->p, b->device[5]->p};
    return b;
}

static void batch_free(struct batch *b)
{
    for (auto d : b->device)
        delete d;
    delete b;
}

static int tokens_of(const struct shape *s, int sequence)
{
    return s->tokens - 70 * sequence;
}

/* Both sequences' keys and values are in their pages; slots that were never written are NaN. */
static struct problem problem_new(const struct shape *s)
{
    struct problem p = {*s, {}, {}, nullptr, nullptr};
    size_t width = (size_t)(s->kv_heads * s->head_dim), half = (width * PAGE * 2 + 63) / 64 * 64;
    int n = (s->tokens + PAGE - 1) / PAGE;
    p.kv.type = s->type;
    p.kv.kv_heads = s->kv_heads;
    p.kv.head_dim = s->head_dim;
    p.kv.page_bytes = 2 * half;
    p.kv.v_offset = half;
    p.pool = new on_device<uint8_t>(std::vector<uint8_t>((size_t)(2 * n) * p.kv.page_bytes, 0xff));
    p.kv.pool = p.pool->p;
    p.sinks = new on_device<float>(numbers((size_t)s->heads, 4));
    for (int i = 0; i < n; i++) {
        p.pages[0].push_back(2 * n - 1 - i);
        p.pages[1].push_back(i);
    }
    struct batch *b = batch_new(&p, {{0, 0, tokens_of(s, 0)}, {1, 0, tokens_of(s, 1)}});
    on_device<float> key(numbers((size_t)b->rows.rows * width, 5)), value(numbers((size_t)b->rows.rows * width, 6));
    assert_int_equal(cuda_kv_write(nullptr, p.kv, b->rows, key.p, value.p), 0);
    CHECK(cudaDeviceSynchronize());
    batch_free(b);
    return p;
}

static void problem_free(struct problem *p)
{
    delete p->pool;
    delete p->sinks;
}

enum how { EXACT, ONE_BLOCK, SHARED_OUT };

/* The results of some runs; a query depends on its sequence and position alone. */
static std::vector<float> attend(const struct problem *p, const std::vector<struct run> &runs, enum how how)
{
    struct batch *b = batch_new(p, runs);
    size_t width = (size_t)(p->s.heads * p->s.head_dim), n = (size_t)b->rows.rows * width;
    std::vector<float> q;
    for (auto &r : runs)
        for (int i = 0; i < r.n; i++) {
            std::vector<float> one = numbers(width, (uint64_t)(r.sequence * 100000 + r.pos + i));
            q.insert(q.end(), one.begin(), one.end());
        }
    int blocks = (p->s.tokens + KERNELS_ATTENTION_BLOCK - 1) / KERNELS_ATTENTION_BLOCK;
    on_device<float> dq(q), out(std::vector<float>(n, 0));
    on_device<float> partial(
        std::vector<float>((size_t)(b->rows.rows * p->s.heads * blocks) * (size_t)(p->s.head_dim + 2), NAN));
    struct cuda_attention a = {};
    a.q = dq.p;
    a.out = out.p;
    a.heads = p->s.heads;
    a.scale = 1.0f / sqrtf((float)p->s.head_dim);
    a.window = p->s.window;
    a.softcap = p->s.softcap;
    a.sinks = p->s.sinks ? p->sinks->p : nullptr;
    a.kv = p->kv;
    a.partial = how == SHARED_OUT ? partial.p : nullptr;
    a.most_blocks = blocks;
    assert_true(cuda_attention_fits(&a.kv, a.heads));
    assert_int_equal(how == EXACT ? cuda_attention_exact(nullptr, a, b->rows) : cuda_attention(nullptr, a, b->rows), 0);
    float *got = (float *)support_fetch(out.p, n * sizeof(float));
    std::vector<float> all(got, got + n);
    free(got);
    batch_free(b);
    return all;
}

static void assert_near(const char *what, const std::vector<float> &got, const std::vector<float> &want,
                        enum kernels_kv_type type)
{
    /* Queries and weights are rounded to 8 or 11 bits; values are up to 2. */
    float most = type == KERNELS_KV_BF16 ? 0.03f : 0.004f;
    for (size_t i = 0; i < got.size(); i++)
        if (!(fabsf(got[i] - want[i]) <= most) && !(got[i] != got[i] && want[i] != want[i]))
            fail_msg("%s: value %zu is %g, should be near %g", what, i, (double)got[i], (double)want[i]);
}

static void check(const struct problem *p, const char *what)
{
    size_t width = (size_t)(p->s.heads * p->s.head_dim);
    int last0 = tokens_of(&p->s, 0) - 1, last1 = tokens_of(&p->s, 1) - 1;
    std::vector<struct run> runs = {{0, last0 - 20, 21}, {1, last1 - 4, 5}};
    std::vector<float> want = attend(p, runs, EXACT), together = attend(p, runs, ONE_BLOCK);
    assert_near(what, together, want, p->s.type);
    std::vector<float> shared_out = attend(p, runs, SHARED_OUT);
    support_assert_bits(what, shared_out.data(), together.data(), together.size());
    for (int back : {0, 3, 20}) {
        std::vector<float> alone = attend(p, {{0, last0 - back, 1}}, back ? ONE_BLOCK : SHARED_OUT);
        support_assert_bits(what, alone.data(), together.data() + (size_t)(20 - back) * width, width);
    }
    std::vector<float> pieces =
        attend(p, {{1, last1 - 4, 2}, {0, last0 - 20, 8}, {1, last1 - 2, 3}, {0, last0 - 12, 13}}, ONE_BLOCK);
    support_assert_bits(what, pieces.data(), together.data() + 21 * width, 2 * width);
    support_assert_bits(what, pieces.data() + 2 * width, together.data(), 8 * width);
    support_assert_bits(what, pieces.data() + 10 * width, together.data() + 23 * width, 3 * width);
    support_assert_bits(what, pieces.data() + 13 * width, together.data() + 8 * width, 13 * width);
}

static void test_attention(void **)
{
    unsigned round = 0;
    for (auto &s : shapes) {
        cuda_host_seed(round++ % SEEDS);
        struct problem p = problem_new(&s);
        check(&p, "attention");
        p.pages[0][0] = -1;
        check(&p, "attention without the first page");
        p.pages[0].resize(1);
        check(&p, "attention past the table");
        problem_free(&p);
    }
}

/* A score that is not finite makes its own queries NaN, and no other. */
static void test_broken_rows(void **)
{
    struct shape s = {2, 2, 64, KERNELS_KV_F16, 0, 0, false, 200};
    struct problem p = problem_new(&s);
    std::vector<struct run> runs = {{0, 190, 4}, {1, 100, 4}};
    std::vector<float> before = attend(&p, runs, ONE_BLOCK);
    struct batch *b = batch_new(&p, {{0, 192, 1}}); /* the third row's own position */
    on_device<float> key(std::vector<float>(128, INFINITY)), value(std::vector<float>(128, 1.0f));
    assert_int_equal(cuda_kv_write(nullptr, p.kv, b->rows, key.p, value.p), 0);
    CHECK(cudaDeviceSynchronize());
    batch_free(b);
    std::vector<float> after = attend(&p, runs, ONE_BLOCK);
    for (size_t i = 0; i < after.size(); i++)
        if (i / 128 == 2 || i / 128 == 3)
            assert_true(after[i] != after[i]);
        else
            assert_true(after[i] == before[i]);
    problem_free(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_attention),
    cmocka_unit_test(test_broken_rows),
};

int main(void)
{
    launch_overlaps = true;
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

// machines: both
/* Memory for metadata: sizes, zeroing, alignment, accounts, blocks of all sizes, threads. */
#include <pthread.h>

#include "fixture_memory.h"

static void sizes_as_general_caches(void)
{
    static const size_t expected[][2] = {
        {0, 8},     {1, 8},     {8, 8},       {9, 16},      {17, 32},     {33, 64},
        {64, 64},   {65, 96},   {96, 96},     {97, 128},    {129, 192},   {192, 192},
        {193, 256}, {257, 512}, {1025, 2048}, {4097, 8192}, {8192, 8192},
    };
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);

    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        CHECK_EQ(us_meta_rounded(mem, expected[i][0]), expected[i][1]);
    CHECK_EQ(us_meta_rounded(mem, 8193), (8193 + m->page_size - 1) / m->page_size * m->page_size);
    CHECK_EQ(us_meta_rounded(mem, 10 * m->page_size), 10 * m->page_size);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static bool is_zero(const unsigned char *base, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (base[i])
            return false;
    return true;
}

struct block {
    unsigned char *base;
    size_t bytes;
    unsigned char fill;
};

/* Each block keeps its own contents, is zero when new, and starts on a line. */
static void random_program(struct us_memory *mem, uint64_t seed, unsigned steps)
{
    enum { NBLOCKS = 200 };
    struct block block[NBLOCKS] = {{NULL, 0, 0}};

    for (unsigned i = 0; i < steps; i++) {
        struct block *b = &block[next_random(&seed) % NBLOCKS];

        if (b->base) {
            bool intact = true;

            for (size_t k = 0; k < b->bytes; k++)
                intact = intact && b->base[k] == b->fill;
            CHECK(intact);
            us_meta_free(mem, b->base, b->bytes);
            b->base = NULL;
            continue;
        }
        /* All magnitudes, now and then beyond the largest block. */
        unsigned bits = (unsigned)(next_random(&seed) % (i % 100 == 0 ? 23 : 17));
        b->bytes = 1 + next_random(&seed) % (1ull << bits);
        b->base = us_meta_alloc(mem, b->bytes);
        REQUIRE(b->base != NULL);
        CHECK_EQ((uintptr_t)b->base % US_LINE, 0);
        CHECK(is_zero(b->base, b->bytes));
        b->fill = (unsigned char)(1 + next_random(&seed) % 255);
        memset(b->base, b->fill, b->bytes);
    }
    for (unsigned i = 0; i < NBLOCKS; i++)
        us_meta_free(mem, block[i].base, block[i].bytes);
}

static uint64_t metadata(struct us_memory *mem)
{
    struct us_memory_account account;

    us_memory_account(mem, &account);
    return account.metadata;
}

static void random_blocks(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);

    random_program(mem, 88172645463325252ull, 5000);
    CHECK_EQ(metadata(mem), 0);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

static void account_is_rounded(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    struct us_memory_account account;
    void *a = us_meta_alloc(mem, 20), *b = us_meta_alloc(mem, 130), *c = us_meta_alloc(mem, 20000);
    uint64_t pages = (20000 + m->page_size - 1) / m->page_size * m->page_size;

    CHECK_EQ(metadata(mem), 32 + 192 + pages);
    us_meta_free(mem, c, 20000);
    us_meta_free(mem, a, 20);
    CHECK_EQ(metadata(mem), 192);
    us_meta_free(mem, b, 130);
    us_meta_free(mem, NULL, 10);
    us_memory_account(mem, &account);
    CHECK_EQ(account.metadata, 0);
    CHECK_EQ(account.metadata_peak, 32 + 192 + pages);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* A cell, pages and a mapping of its own, each accounted as another size than its own. */
static void account_is_the_originals(void)
{
    static const size_t bytes[] = {1088, 20000, 100 * MIB}, account[] = {1024, 32768, 7};
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    void *block[3];

    for (unsigned i = 0; i < 3; i++) {
        const uint64_t before = metadata(mem);

        block[i] = us_meta_alloc_as(mem, bytes[i], account[i]);
        REQUIRE(block[i] != NULL);
        memset(block[i], 1, bytes[i]);
        CHECK_EQ(metadata(mem), before + account[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        us_meta_free_as(mem, block[i], bytes[i], account[i]);
    CHECK_EQ(metadata(mem), 0);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

/* More than the span holds: the largest requests get mappings of their own. */
static void absurd_sizes(void)
{
    struct us_machine *m = make_machine(1);
    struct us_memory *mem = make_memory(m, 64 * MIB);

    CHECK(us_meta_alloc(mem, SIZE_MAX) == NULL);
    CHECK(us_meta_alloc(mem, SIZE_MAX / 2) == NULL);
    char *large = us_meta_alloc(mem, 100 * MIB);
    REQUIRE(large != NULL);
    large[0] = large[100 * MIB - 1] = 1;
    CHECK_EQ(metadata(mem), 100 * MIB);
    us_meta_free(mem, large, 100 * MIB);
    CHECK_EQ(metadata(mem), 0);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}

#ifndef US_MODEL
static void *worker(void *context)
{
    static _Atomic uint64_t number;

    random_program(context, 0x9e3779b97f4a7c15ull * (1 + atomic_fetch_add(&number, 1)), 2000);
    return NULL;
}

static void threads(void)
{
    struct us_machine *m = make_machine(2);
    struct us_memory *mem = make_memory(m, 64 * MIB);
    pthread_t thread[4];

    for (unsigned i = 0; i < 4; i++)
        REQUIRE(pthread_create(&thread[i], NULL, worker, mem) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(metadata(mem), 0);
    us_memory_destroy(mem);
    us_machine_destroy(m);
}
#endif

int main(void)
{
    RUN(sizes_as_general_caches);
    RUN(random_blocks);
    RUN(account_is_rounded);
    RUN(account_is_the_originals);
    RUN(absurd_sizes);
#ifndef US_MODEL
    RUN(threads);
#endif
    return check_result();
}

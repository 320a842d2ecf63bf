// machines: both
/* Orders against the published table of SLUB's geometry, alignment rules, exactness of the index.
 */
#include "check.h"
#include "slab/slab.h"

#define NCOLUMNS 9

/* CPUs of each column; the last is 2.6.25 with its defaults (max_order 1, min_objects 4). */
static const unsigned cpus[NCOLUMNS] = {1, 2, 4, 8, 16, 64, 256, 1024, 0};
struct cell {
    unsigned order, objects;
};
static const struct {
    size_t stride;
    struct cell cell[NCOLUMNS];
} table[] = {
    {64, {{0, 64}, {0, 64}, {0, 64}, {0, 64}, {0, 64}, {0, 64}, {0, 64}, {0, 64}, {0, 64}}},
    {96, {{0, 42}, {0, 42}, {0, 42}, {0, 42}, {0, 42}, {0, 42}, {0, 42}, {1, 85}, {0, 42}}},
    {128, {{0, 32}, {0, 32}, {0, 32}, {0, 32}, {0, 32}, {0, 32}, {1, 64}, {1, 64}, {0, 32}}},
    {192, {{0, 21}, {0, 21}, {0, 21}, {0, 21}, {1, 42}, {1, 42}, {1, 42}, {2, 85}, {0, 21}}},
    {256, {{0, 16}, {0, 16}, {0, 16}, {1, 32}, {1, 32}, {1, 32}, {2, 64}, {2, 64}, {0, 16}}},
    {320, {{0, 12}, {0, 12}, {1, 25}, {1, 25}, {1, 25}, {2, 51}, {2, 51}, {2, 51}, {0, 12}}},
    {512, {{0, 8}, {1, 16}, {1, 16}, {2, 32}, {2, 32}, {2, 32}, {3, 64}, {3, 64}, {0, 8}}},
    {704, {{1, 11}, {2, 23}, {2, 23}, {2, 23}, {3, 46}, {3, 46}, {3, 46}, {3, 46}, {1, 11}}},
    {1024, {{1, 8}, {2, 16}, {2, 16}, {3, 32}, {3, 32}, {3, 32}, {3, 32}, {3, 32}, {0, 4}}},
    {1088, {{2, 15}, {2, 15}, {3, 30}, {3, 30}, {3, 30}, {3, 30}, {3, 30}, {3, 30}, {1, 7}}},
    {1216, {{2, 13}, {2, 13}, {3, 26}, {3, 26}, {3, 26}, {3, 26}, {3, 26}, {3, 26}, {1, 6}}},
    {2048, {{2, 8}, {3, 16}, {3, 16}, {3, 16}, {3, 16}, {3, 16}, {3, 16}, {3, 16}, {1, 4}}},
    {2368, {{3, 13}, {3, 13}, {3, 13}, {3, 13}, {3, 13}, {3, 13}, {3, 13}, {3, 13}, {1, 3}}},
    {3072, {{3, 10}, {3, 10}, {3, 10}, {3, 10}, {3, 10}, {3, 10}, {3, 10}, {3, 10}, {1, 2}}},
    {4096, {{3, 8}, {3, 8}, {3, 8}, {3, 8}, {3, 8}, {3, 8}, {3, 8}, {3, 8}, {1, 2}}},
    {8192, {{3, 4}, {3, 4}, {3, 4}, {3, 4}, {3, 4}, {3, 4}, {3, 4}, {3, 4}, {1, 1}}},
};

static void table_of_orders(void)
{
    for (size_t row = 0; row < sizeof table / sizeof *table; row++) {
        size_t stride = table[row].stride;

        for (unsigned i = 0; i < NCOLUMNS; i++) {
            bool old = cpus[i] == 0;
            unsigned min_objects = old ? 4 : 4 * (us_fls(cpus[i]) + 1);
            unsigned order = us_slub_order(stride, 4096, min_objects, 0, old ? 1 : 3, old);

            if (!CHECK_EQ(order, table[row].cell[i].order))
                fprintf(stderr, "  stride %zu, column %u\n", stride, i);
            CHECK_EQ((4096u << order) / stride, table[row].cell[i].objects);
        }
    }
}

static void orders_outside_the_table(void)
{
    /* Larger than max_order allows: one object a slab, at the order it needs. */
    CHECK_EQ(us_slub_order(40000, 4096, 16, 0, 3, false), 4);
    CHECK_EQ(us_slub_order(40000, 4096, 4, 0, 1, true), 4);
    CHECK_EQ(us_slub_order(4u << 20, 4096, 16, 0, 3, false), 10);
    CHECK_EQ(us_slub_order((4u << 20) + 8, 4096, 16, 0, 3, false), US_MAX_ORDER + 1);
    /* min_order is kept even where a smaller one would do. */
    CHECK_EQ(us_slub_order(64, 4096, 8, 2, 3, false), 2);
    /* 1024 pages of 8-byte objects pass the limit of 65535: order of 8 * 65535 bytes, less one. */
    CHECK_EQ(us_slub_order(8, 4096, 8, 10, 10, false), 6);
    /* With larger pages one page may be enough. */
    CHECK_EQ(us_slub_order(1024, 65536, 16, 0, 3, false), 0);
    /* A page of more than 65535 objects is the least there is. */
    CHECK_EQ(us_slub_order(8, 1u << 20, 64, 0, 3, false), 0);
    CHECK_EQ(us_slub_order(8, 1u << 20, 4, 0, 1, true), 0);
}

static void highest_bit(void)
{
    CHECK_EQ(us_fls(0), 0);
    CHECK_EQ(us_fls(1), 1);
    CHECK_EQ(us_fls(224), 8);
    CHECK_EQ(us_fls(1024), 11);
    CHECK_EQ(us_fls(1ull << 63), 64);
    CHECK_EQ(us_fls(UINT64_MAX), 64);
}

static void alignment(void)
{
    CHECK_EQ(us_align_of(100, 0, 0, 64), 8);
    CHECK_EQ(us_align_of(100, 4, 0, 64), 8);
    CHECK_EQ(us_align_of(100, 128, 0, 64), 128);
    CHECK_EQ(us_align_of(100, 0, US_HWCACHE_ALIGN, 64), 64);
    /* Halved while two objects would fit. */
    CHECK_EQ(us_align_of(33, 0, US_HWCACHE_ALIGN, 64), 64);
    CHECK_EQ(us_align_of(32, 0, US_HWCACHE_ALIGN, 64), 32);
    CHECK_EQ(us_align_of(17, 0, US_HWCACHE_ALIGN, 64), 32);
    CHECK_EQ(us_align_of(16, 0, US_HWCACHE_ALIGN, 64), 16);
    CHECK_EQ(us_align_of(3, 0, US_HWCACHE_ALIGN, 64), 8);
    CHECK_EQ(us_align_of(16, 128, US_HWCACHE_ALIGN, 64), 128);
    CHECK_EQ(us_align_of(100, 0, US_HWCACHE_ALIGN, 128), 128);
}

static bool index_is_exact(size_t stride, uint64_t bytes)
{
    struct us_cache c = {.reciprocal = us_reciprocal_of(stride)};

    /* Where the quotient changes is where rounding would show: the first and last byte of each
     * object. */
    for (uint64_t index = 0, offset = 0; offset < bytes; index++, offset += stride)
        if (us_object_index(&c, offset) != index ||
            us_object_index(&c, offset + stride - 1) != index)
            return false;
    return true;
}

static void index_by_reciprocal(void)
{
    const uint64_t largest = 64ull << 20; /* order 10 of 64 KiB pages */

    for (size_t stride = 8; stride < 4096; stride += 8)
        if (!CHECK(index_is_exact(stride, 4ull << 20)))
            fprintf(stderr, "  stride %zu\n", stride);
    for (size_t stride = 4096; stride <= 4ull << 20; stride += 264)
        if (!CHECK(index_is_exact(stride, largest)))
            fprintf(stderr, "  stride %zu\n", stride);
    /* Also what no allocator uses. */
    for (size_t stride = 2; stride < 100; stride++)
        CHECK(index_is_exact(stride, 1ull << 20));
    for (size_t stride = 3; stride < 1ull << 32; stride = stride * 2 + 1)
        CHECK(index_is_exact(stride, largest));
}

int main(void)
{
    RUN(table_of_orders);
    RUN(orders_outside_the_table);
    RUN(highest_bit);
    RUN(alignment);
    RUN(index_by_reciprocal);
    return check_result();
}

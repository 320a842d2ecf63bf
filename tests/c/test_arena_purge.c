// machines: both
/* Free pages go back to the system after one to two purge delays, and what describes them too: seen
 * from the accounts and from the system's own count of resident pages. */
#include <sys/mman.h>
#include <unistd.h>

#include "fixture_memory.h"

#define DELAY 1000u

static struct us_machine *machine;
static struct us_memory *mem;
static struct us_flight flight;

static void begin(unsigned nnodes, uint64_t budget)
{
    machine = make_machine(nnodes);
    mem = make_memory(machine, budget);
    us_flight_enter(machine, &flight);
}

static void end(void)
{
    us_flight_leave(&flight);
    check_memory(mem);
    us_memory_destroy(mem);
    us_machine_destroy(machine);
}

static uint64_t resident(void)
{
    struct us_memory_account account;

    us_memory_account(mem, &account);
    return account.resident / machine->page_size;
}

/* Pages of [base, base + pages) that the system holds in memory. */
static uint64_t in_core(const void *base, uint64_t pages)
{
    static unsigned char map[65536];
    uint64_t n = 0;

    REQUIRE(pages <= sizeof map);
    REQUIRE(mincore((void *)(uintptr_t)base, (size_t)(pages * machine->page_size), map) == 0);
    for (uint64_t i = 0; i < pages; i++)
        n += map[i] & 1;
    return n;
}

static void *touched_block(unsigned order, unsigned node)
{
    void *block = us_pages_alloc(mem, &flight, order, node, 0);

    REQUIRE(block != NULL);
    memset(block, 0x5a, machine->page_size << order);
    return block;
}

static void one_to_two_delays(void)
{
    begin(1, 64 * MIB);
    uint64_t now = 5 * DELAY;
    void *early = touched_block(4, 0), *late = touched_block(4, 0), *kept = touched_block(4, 0);

    us_pages_free(mem, &flight, early, 4);
    CHECK_EQ(us_memory_purge(mem, &flight, now, false), 0);
    us_pages_free(mem, &flight, late, 4);
    CHECK_EQ(us_memory_purge(mem, &flight, now + DELAY - 1, false), 0);
    CHECK_EQ(resident(), 48);
    CHECK_EQ(us_memory_purge(mem, &flight, now + DELAY, false), 16 * machine->page_size);
    CHECK_EQ(resident(), 32);
    CHECK_EQ(in_core(early, 16), 0);
    CHECK_EQ(in_core(late, 16), 16);
    CHECK_EQ(us_memory_purge(mem, &flight, now + 2 * DELAY, false), 16 * machine->page_size);
    CHECK_EQ(in_core(late, 16), 0);
    CHECK_EQ(us_memory_purge(mem, &flight, now + 9 * DELAY, false), 0);
    CHECK_EQ(in_core(kept, 16), 16);
    CHECK_EQ(((unsigned char *)kept)[machine->page_size * 16 - 1], 0x5a);
    CHECK_EQ(resident(), 16);
    end();
}

static void used_again_stays(void)
{
    begin(1, 64 * MIB);
    char *block = touched_block(2, 0);

    us_pages_free(mem, &flight, block, 2);
    CHECK_EQ(us_memory_purge(mem, &flight, DELAY, false), 0);
    /* One page of the old generation is handed out again: only the others go. */
    char *again = us_pages_alloc(mem, &flight, 0, 0, 0);
    CHECK_EQ(again, block);
    again[0] = 1;
    CHECK_EQ(us_memory_purge(mem, &flight, 2 * DELAY, false), 3 * machine->page_size);
    CHECK_EQ(again[0], 1);
    CHECK_EQ(resident(), 1);
    end();
}

static void all_at_once(void)
{
    begin(3, 96 * MIB);
    for (unsigned node = 0; node < 3; node++) {
        void *block = touched_block(US_MAX_ORDER, node);

        us_pages_free(mem, &flight, block, US_MAX_ORDER);
    }
    CHECK_EQ(resident(), 3 << US_MAX_ORDER);
    CHECK_EQ(us_memory_purge(mem, &flight, 0, true), 3 * machine->page_size << US_MAX_ORDER);
    CHECK_EQ(resident(), 0);
    CHECK_EQ(us_memory_purge(mem, &flight, 0, true), 0);
    end();
}

/* Elements of pages in use are kept, and pages of the array that describe only free ones go back.
 */
static void page_arrays_follow(void)
{
    begin(2, 64 * MIB);
    const size_t bytes = 64,
                 each = machine->page_size / bytes; /* arena pages an array page describes */
    char *array = us_page_array(mem, bytes, NULL);
    const struct us_range *r = us_memory_range(mem);
    uint64_t first = us_page_of(r, (void *)(uintptr_t)us_node_base(r, 1));
    uint64_t seed = 88172645463325252ull, npages = 16 * each;
    static void *block[65536];
    static bool used[65536];

    REQUIRE(array != NULL && npages <= 65536);
    for (uint64_t i = 0; i < npages; i++) {
        block[i] = us_pages_alloc(mem, &flight, 0, 1, 0);
        CHECK_EQ(us_page_of(r, block[i]), first + i);
        used[i] = true;
        memset(array + (first + i) * bytes, 0x77, bytes);
    }
    CHECK_EQ(in_core(array + first * bytes, npages / each), npages / each);
    /* Free most of them, in any order, purging in between. */
    for (uint64_t i = 0; i < npages * 3; i++) {
        uint64_t k = next_random(&seed) % npages;

        if (!used[k] || k % (4 * each) == 1)
            continue;
        us_pages_free(mem, &flight, block[k], 0);
        used[k] = false;
        if (i % 50 == 0)
            us_memory_purge(mem, &flight, 0, true);
    }
    us_memory_purge(mem, &flight, 0, true);
    for (uint64_t group = 0; group < npages / each; group++) {
        uint64_t in_use = 0;

        for (uint64_t i = group * each; i < (group + 1) * each; i++) {
            in_use += used[i];
            if (used[i])
                CHECK_EQ(array[(first + i) * bytes], 0x77);
        }
        CHECK_EQ(in_core(array + (first + group * each) * bytes, 1), in_use > 0);
    }
    for (uint64_t i = 0; i < npages; i++)
        if (used[i])
            us_pages_free(mem, &flight, block[i], 0);
    us_memory_purge(mem, &flight, 0, true);
    CHECK_EQ(in_core(array + first * bytes, npages / each), 0);
    end();
}

static void bad_arrays(void)
{
    struct us_error error = {0};

    begin(1, 64 * MIB);
    CHECK(us_page_array(mem, 24, &error) == NULL);
    CHECK_EQ(error.status, US_EINVAL);
    CHECK(us_page_array(mem, 0, NULL) == NULL);
    CHECK(us_page_array(mem, machine->page_size * 2, NULL) == NULL);
    end();
}

static uint64_t process_pages(void)
{
    unsigned long size = 0, rss = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    REQUIRE(f != NULL);
    REQUIRE(fscanf(f, "%lu %lu", &size, &rss) == 2);
    fclose(f);
    return rss;
}

/* All memory of a large burst of slabs, and all that was kept about it, goes back. */
static void burst_leaves_nothing(void)
{
    struct world w;
    const uint64_t bytes = 512 * MIB;

    world_begin(&w, 2, 2 * bytes);
    struct us_cache *c = make_cache(&w, "burst", 256, 0, US_OBJECTS_BITMAP);
    const uint64_t nslabs = bytes / w.machine->page_size;
    struct us_slab **slab = malloc(nslabs * sizeof(struct us_slab *));
    REQUIRE(slab != NULL);
    memset(slab, 0xff, nslabs * sizeof(struct us_slab *)); /* resident before the count begins */
    uint64_t before = process_pages();
    for (uint64_t i = 0; i < nslabs; i++) {
        slab[i] = us_slab_new(c, &w.flight, (unsigned)(i & 1), 0, NULL);
        REQUIRE(slab[i] != NULL);
        *(char *)us_slab_base(&w.slabs, slab[i]) = 1;
    }
    CHECK(process_pages() >= before + nslabs);
    for (uint64_t i = 0; i < nslabs; i++)
        us_slab_release(c, &w.flight, slab[i]);
    CHECK_EQ(us_memory_purge(w.memory, &w.flight, 0, true), bytes);
    uint64_t after = process_pages();
    if (!CHECK(after <= before + MIB / 2 / w.machine->page_size))
        fprintf(stderr, "  %llu pages above the start\n", (unsigned long long)(after - before));
    free(slab);
    drop_cache(c);
    world_end(&w);
}

int main(void)
{
    RUN(one_to_two_delays);
    RUN(used_again_stays);
    RUN(all_at_once);
    RUN(page_arrays_follow);
    RUN(bad_arrays);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow stays */
    RUN(burst_leaves_nothing);
#endif
    return check_result();
}

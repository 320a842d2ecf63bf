// machines: both
/* Slabs: making, taking and putting objects, constructors, large slabs, order fallback, LIST state.
 */
#include "fixture_memory.h"

static void pages_find_their_slab(void)
{
    struct world w;

    world_begin(&w, 2, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 100, 2, US_OBJECTS_BITMAP);
    bool fallback = true;
    struct us_slab *s = us_slab_new(c, &w.flight, 1, 0, &fallback);
    REQUIRE(s != NULL);
    char *base = us_slab_base(&w.slabs, s);
    size_t bytes = w.machine->page_size << 2;

    CHECK(!fallback);
    CHECK_EQ(s->cache, c);
    CHECK_EQ(s->node, 1);
    CHECK_EQ(s->state, US_SLAB_PRIVATE);
    CHECK_EQ(us_slab_order(s), 2);
    CHECK_EQ(us_slab_objects(s), bytes / 104);
    CHECK_EQ(s->free, bytes / 104);
    for (size_t offset = 0; offset < bytes; offset += 64)
        CHECK_EQ(us_slab_of(&w.slabs, base + offset), s);
    CHECK(us_slab_of(&w.slabs, base + bytes) == NULL);
    CHECK(us_slab_of(&w.slabs, base - 1) == NULL);
    CHECK(us_slab_of(&w.slabs, &w) == NULL);
    CHECK_EQ(c->nr_slabs[1], 1);
    CHECK_EQ(c->nr_slabs[0], 0);
    CHECK_EQ(c->nr_objects[1], bytes / 104);
    us_slab_release(c, &w.flight, s);
    for (size_t offset = 0; offset < bytes; offset += w.machine->page_size)
        CHECK(us_slab_of(&w.slabs, base + offset) == NULL);
    CHECK_EQ(c->nr_slabs[1], 0);
    CHECK_EQ(c->nr_objects[1], 0);
    CHECK_EQ(free_pages(w.memory, 1) * w.machine->page_size, 32 * MIB);
    drop_cache(c);
    world_end(&w);
}

static void starts_of_objects(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 40, 1, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    char *base = us_slab_base(&w.slabs, s);
    uint32_t objects = us_slab_objects(s), index;

    for (size_t offset = 0; offset < w.machine->page_size << 1; offset++) {
        bool expected = offset % 40 == 0 && offset / 40 < objects;

        if (us_object_at(c, s, base + offset, &index) != expected)
            CHECK_EQ(offset, SIZE_MAX);
        else if (expected)
            CHECK_EQ(index, offset / 40);
    }
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

/* Pops take from the end of `out`: they must see ascending addresses, the slab's lowest first. */
static void taken_in_ascending_pops(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 64, 0, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    uint32_t objects = us_slab_objects(s), left = objects;
    void *out[50], *marker = &marker;
    char *next = us_slab_base(&w.slabs, s);

    for (unsigned want = 1; left > 0; want += 3) {
        unsigned expected = want < left ? want : left;

        for (unsigned i = 0; i < 50; i++)
            out[i] = marker;
        REQUIRE(want <= 50);
        CHECK_EQ(us_slab_take(c, s, out, want), expected);
        for (unsigned i = want; i-- > want - expected; next += 64)
            CHECK_EQ(out[i], next);
        for (unsigned i = 0; i < want - expected; i++)
            CHECK_EQ(out[i], marker);
        left -= expected;
        CHECK_EQ(s->free, left);
    }
    CHECK_EQ(us_slab_take(c, s, out, 5), 0);
    /* Any order back, the lowest first again. */
    char *base = us_slab_base(&w.slabs, s);
    static const unsigned back[] = {30, 2, 17, 63};
    for (unsigned i = 0; i < 4; i++)
        CHECK(us_slab_put(c, s, base + back[i] % objects * 64));
    CHECK(us_slab_is_free(c, s, 17));
    CHECK(!us_slab_is_free(c, s, 18));
    CHECK_EQ(us_slab_take(c, s, out, 3), 3);
    CHECK_EQ(out[2], base + 2 * 64);
    CHECK_EQ(out[1], base + 17 * 64);
    CHECK_EQ(out[0], base + 30 * 64);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

/* Against a set of flags, with fewer and more than 64 objects. */
static void random_takes_and_puts(size_t size, unsigned order)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", size, order, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    uint32_t objects = us_slab_objects(s), nfree = objects;
    bool *is_free = malloc(objects);
    uint64_t seed = 88172645463325252ull + size;
    char *base = us_slab_base(&w.slabs, s);
    void *out[100];

    REQUIRE(is_free != NULL);
    memset(is_free, true, objects);
    for (unsigned step = 0; step < 2000; step++) {
        if (next_random(&seed) % 40 == 0) {
            unsigned want = 1 + (unsigned)(next_random(&seed) % 100);
            unsigned got = us_slab_take(c, s, out, want), index = 0;

            CHECK_EQ(got, want < nfree ? want : nfree);
            for (unsigned i = want; i-- > want - got; index++) {
                while (index < objects && !is_free[index])
                    index++;
                REQUIRE(index < objects);
                CHECK_EQ(out[i], base + index * c->geometry.stride);
                is_free[index] = false;
            }
            nfree -= got;
        } else {
            uint32_t index = (uint32_t)(next_random(&seed) % objects);

            CHECK_EQ(us_slab_is_free(c, s, index), is_free[index]);
            if (is_free[index])
                continue;
            CHECK(us_slab_put(c, s, base + index * c->geometry.stride));
            is_free[index] = true;
            nfree++;
        }
        CHECK_EQ(s->free, nfree);
    }
    free(is_free);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

static void random_programs(void)
{
    random_takes_and_puts(200, 0);
    random_takes_and_puts(64, 0);
    random_takes_and_puts(56, 0);
    random_takes_and_puts(8, 0);
    random_takes_and_puts(24, 3);
    random_takes_and_puts(3000, 3);
}

/* More objects than 16 bits count: 8 bytes each in the largest block. */
static void slab_of_half_a_million(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 8, US_MAX_ORDER, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    char *base = us_slab_base(&w.slabs, s);
    uint32_t objects = us_slab_objects(s), taken = 0;
    void *out[60];

    CHECK_EQ(objects, (w.machine->page_size << US_MAX_ORDER) / 8);
    CHECK(objects >= 524288);
    for (unsigned got; (got = us_slab_take(c, s, out, 60)) > 0; taken += got)
        for (unsigned i = 0; i < got; i++)
            if (out[59 - i] != base + (taken + i) * 8ull)
                CHECK_EQ(out[59 - i], base + (taken + i) * 8ull);
    CHECK_EQ(taken, objects);
    CHECK_EQ(s->free, 0);
    CHECK(us_slab_put(c, s, base + 8ull * (objects - 1)));
    CHECK(us_slab_put(c, s, base + 8ull * 70000));
    CHECK(!us_slab_put(c, s, base + 8ull * 70000));
    CHECK_EQ(us_slab_take(c, s, out, 2), 2);
    CHECK_EQ(out[1], base + 8ull * 70000);
    CHECK_EQ(out[0], base + 8ull * (objects - 1));
    for (uint32_t i = 0; i < objects; i++)
        if (!us_slab_put(c, s, base + 8ull * i))
            CHECK_EQ(i, objects);
    CHECK_EQ(s->free, objects);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

/* A second slab over the same pages starts anew, whatever the first left in the bit array. */
static void pages_used_again(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 16, 0, US_OBJECTS_BITMAP);
    void *out[100];

    for (unsigned round = 0; round < 3; round++) {
        struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);

        REQUIRE(s != NULL);
        CHECK_EQ(us_slab_base(&w.slabs, s), (void *)(uintptr_t)w.slabs.range.base);
        CHECK_EQ(us_slab_take(c, s, out, 100), 100);
        CHECK_EQ(out[99], us_slab_base(&w.slabs, s));
        us_slab_release(c, &w.flight, s);
        if (round == 1)
            us_memory_purge(w.memory, &w.flight, 0, true);
    }
    drop_cache(c);
    world_end(&w);
}

static void second_choice_of_order(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 512, 3, US_OBJECTS_BITMAP);
    bool fallback = false;

    us_memory_fail(w.memory, US_FAIL_PAGES, 0, 1);
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, &fallback);
    REQUIRE(s != NULL);
    CHECK(fallback);
    CHECK_EQ(us_slab_order(s), 0);
    CHECK_EQ(us_slab_objects(s), w.machine->page_size / 512);
    CHECK_EQ(s->free, w.machine->page_size / 512);
    us_slab_release(c, &w.flight, s);
    /* Both fail. */
    us_memory_fail(w.memory, US_FAIL_PAGES, UINT32_MAX, 0);
    CHECK(us_slab_new(c, &w.flight, 0, 0, &fallback) == NULL);
    CHECK(!fallback);
    CHECK_EQ(us_memory_failed(w.memory, US_FAIL_PAGES), 3);
    us_memory_fail(w.memory, US_FAIL_PAGES, 0, 0);
    CHECK_EQ(c->nr_slabs[0], 0);
    drop_cache(c);
    world_end(&w);
}

static void this_node_flag(void)
{
    struct world w;

    world_begin(&w, 2, 2 * MIB);
    struct us_cache *c = make_cache(&w, "a", 512, 0, US_OBJECTS_BITMAP);
    struct us_slab *s;

    while ((s = us_slab_new(c, &w.flight, 0, US_THISNODE, NULL)) != NULL)
        CHECK_EQ(s->node, 0);
    CHECK_EQ(c->nr_slabs[0], MIB / w.machine->page_size);
    s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    CHECK_EQ(s->node, 1);
    CHECK_EQ(c->nr_slabs[1], 1);
    drop_cache(c);
    world_end(&w);
}

static void large_slabs(void)
{
    struct world w;
    uint32_t index = 7;

    world_begin(&w, 2, 64 * MIB);
    struct us_cache *c = make_cache(&w, "large", 8, 0, US_OBJECTS_BITMAP);
    struct us_slab *s = us_slab_new_large(c, &w.flight, 5, 1, US_THISNODE);
    REQUIRE(s != NULL);
    char *base = us_slab_base(&w.slabs, s);
    CHECK_EQ(s->state, US_SLAB_LARGE);
    CHECK_EQ(s->node, 1);
    CHECK_EQ(us_slab_objects(s), 1);
    CHECK_EQ(us_slab_of(&w.slabs, base + (w.machine->page_size << 5) - 1), s);
    CHECK(us_object_at(c, s, base, &index));
    CHECK_EQ(index, 0);
    CHECK(!us_object_at(c, s, base + 8, &index));
    CHECK_EQ(c->nr_objects[1], 1);
    us_slab_release(c, &w.flight, s);
    CHECK_EQ(c->nr_slabs[1], 0);
    CHECK(us_slab_new_large(c, &w.flight, US_MAX_ORDER + 1, 1, 0) == NULL);
    drop_cache(c);
    world_end(&w);
}

/* ---- constructors ---------------------------------------------------------------------------- */

static void pattern_repeats_over_the_size(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 21, 0, US_OBJECTS_BITMAP);
    char pattern[] = "abcde";
    c->pattern = pattern;
    c->options.pattern = pattern;
    c->options.pattern_bytes = 5;
    c->has_constructor = true;
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    for (uint32_t i = 0; i < us_slab_objects(s); i++)
        CHECK(memcmp(us_object_address(c, s, i), "abcdeabcdeabcdeabcdea\0\0\0", 24) == 0);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

struct constructed {
    uint64_t calls;
    struct us_machine *machine;
    bool in_flight;
};

static void number_it(void *object, void *arg)
{
    struct constructed *made = arg;

    made->in_flight = us_flight_current() != NULL;
    *(uint64_t *)object = ++made->calls;
}

static void function_is_called_once_an_object(bool suspends)
{
    struct world w;
    struct constructed made = {0};

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 48, 1, US_OBJECTS_BITMAP);
    c->options.constructor = number_it;
    c->options.constructor_arg = &made;
    c->options.constructor_suspends = suspends;
    c->has_constructor = true;
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    CHECK_EQ(made.calls, us_slab_objects(s));
    CHECK_EQ(made.in_flight, !suspends);
    CHECK_EQ(us_flight_current(), &w.flight);
    for (uint32_t i = 0; i < us_slab_objects(s); i++)
        CHECK_EQ(*(uint64_t *)us_object_address(c, s, i), i + 1);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

static void functions(void)
{
    function_is_called_once_an_object(false);
    function_is_called_once_an_object(true);
}

/* ---- free lists, deferred frees, debug bits -------------------------------------------------- */

static void free_list_ascends(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 72, 1, US_OBJECTS_LIST);
    c->geometry.link = 32;
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    uint32_t n = 0;

    for (void *o = s->freelist; o; o = us_link_get(c, o))
        CHECK_EQ(o, us_object_address(c, s, n++));
    CHECK_EQ(n, us_slab_objects(s));
    CHECK_EQ(s->free, n);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

static void deferred_frees(void)
{
    struct world w;

    world_begin(&w, 2, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 64, 0, US_OBJECTS_BITMAP);
    char pattern[] = "0123456789";
    c->pattern = pattern;
    c->options.pattern_bytes = 10;
    c->has_constructor = true;
    struct us_slab *s = us_slab_new(c, &w.flight, 1, 0, NULL);
    void *out[3];
    REQUIRE(s != NULL);
    REQUIRE(us_slab_take(c, s, out, 3) == 3);

    CHECK(us_deferred_take(c, 1) == NULL);
    for (unsigned i = 0; i < 3; i++)
        us_defer_free(c, out[i]);
    CHECK(us_deferred_take(c, 0) == NULL);
    void *object = us_deferred_take(c, 1);
    for (unsigned i = 3; i-- > 0;) {
        REQUIRE(object == out[i]);
        void *next = *(void **)object;
        us_deferred_restore(c, object);
        CHECK(memcmp(object, "012345678901234567890123456789", 30) == 0);
        object = next;
    }
    CHECK(object == NULL);
    CHECK(us_deferred_take(c, 1) == NULL);
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

static void bits_of_use(void)
{
    struct world w;

    world_begin(&w, 1, 64 * MIB);
    struct us_cache *c = make_cache(&w, "a", 8, 1, US_OBJECTS_BITMAP);
    c->flags = US_DEBUG_F;
    struct us_slab *s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    uint32_t last = us_slab_objects(s) - 1;

    CHECK(!us_used_set(c, s, last));
    CHECK(us_used_set(c, s, last));
    CHECK(us_used_test(c, s, last));
    CHECK(!us_used_test(c, s, last - 1));
    CHECK(!us_used_set(c, s, 64));
    CHECK(us_used_clear(c, s, last));
    CHECK(!us_used_clear(c, s, last));
    /* One still set when the slab goes (a forced destroy) does not reach its successor. */
    us_slab_release(c, &w.flight, s);
    s = us_slab_new(c, &w.flight, 0, 0, NULL);
    REQUIRE(s != NULL);
    CHECK(!us_used_test(c, s, 64));
    us_slab_release(c, &w.flight, s);
    drop_cache(c);
    world_end(&w);
}

int main(void)
{
    RUN(pages_find_their_slab);
    RUN(starts_of_objects);
    RUN(taken_in_ascending_pops);
    RUN(random_programs);
    RUN(slab_of_half_a_million);
    RUN(pages_used_again);
    RUN(second_choice_of_order);
    RUN(this_node_flag);
    RUN(large_slabs);
    RUN(pattern_repeats_over_the_size);
    RUN(functions);
    RUN(free_list_ascends);
    RUN(deferred_frees);
    RUN(bits_of_use);
    return check_result();
}

// machines: both
/* INDEX state: the order in which objects come and go, colours, misuse, metadata given back. */
#include "fixture_memory.h"

static struct world w;
static struct us_cache *cache;
static struct us_slab *slab;
static uint64_t metadata; /* before the slab */

static uint64_t metadata_now(void)
{
    struct us_memory_account account;

    us_memory_account(w.memory, &account);
    return account.metadata;
}

/* Objects of 100 bytes, strides of 104, so many less than fit that there is room for colours. */
static void begin(uint32_t offset)
{
    world_begin(&w, 1, 64 * MIB);
    cache = make_cache(&w, "indexed", 100, 1, US_OBJECTS_INDEX);
    cache->geometry.objects -= 2;
    cache->geometry.index_bytes = us_meta_rounded(w.memory, 48 + 4 * cache->geometry.objects);
    metadata = metadata_now();
    slab = us_slab_new_at(cache, &w.flight, 0, 0, offset, NULL);
    REQUIRE(slab != NULL);
}

static void end(void)
{
    us_slab_release(cache, &w.flight, slab);
    CHECK_EQ(metadata_now(), metadata);
    drop_cache(cache);
    world_end(&w);
}

static char *object(uint32_t i)
{
    return (char *)us_slab_base(&w.slabs, slab) + slab->offset + 104 * i;
}

/* A fresh slab gives ascending objects, the first taken first in out. */
static void fresh_slabs_ascend(void)
{
    void *out[200];

    begin(64);
    const uint32_t objects = us_slab_objects(slab);
    REQUIRE(objects > 20 && objects < 200);
    CHECK_EQ(us_slab_index_take(cache, slab, out, 7), 7);
    CHECK_EQ(slab->free, objects - 7);
    CHECK_EQ(us_slab_index_take(cache, slab, out + 7, 200), objects - 7);
    CHECK_EQ(slab->free, 0);
    CHECK_EQ(us_slab_index_take(cache, slab, out, 1), 0);
    for (uint32_t i = 0; i < objects; i++) {
        CHECK_EQ(out[i], object(i));
        CHECK(!us_slab_is_free(cache, slab, i));
    }
    end();
}

static void last_freed_comes_first(void)
{
    static const uint32_t back[] = {3, 11, 5};
    void *out[20];

    begin(0);
    CHECK_EQ(us_slab_index_take(cache, slab, out, 12), 12);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(us_slab_index_put(cache, slab, object(back[i])));
        CHECK(us_slab_is_free(cache, slab, back[i]));
    }
    CHECK_EQ(slab->free, us_slab_objects(slab) - 9);
    CHECK_EQ(us_slab_index_take(cache, slab, out, 4), 4);
    CHECK_EQ(out[0], object(5));
    CHECK_EQ(out[1], object(11));
    CHECK_EQ(out[2], object(3));
    CHECK_EQ(out[3], object(12));
    end();
}

/* Only offset + i * 104 is an object. */
static void starts_of_objects(void)
{
    uint32_t index;

    begin(128);
    const char *base = us_slab_base(&w.slabs, slab);
    for (size_t at = 0; at < w.machine->page_size << 1; at++) {
        bool expected =
            at >= 128 && (at - 128) % 104 == 0 && (at - 128) / 104 < us_slab_objects(slab);

        if (us_object_at(cache, slab, base + at, &index) != expected)
            CHECK_EQ(at, SIZE_MAX);
        else if (expected)
            CHECK_EQ(index, (at - 128) / 104);
    }
    CHECK_EQ(us_object_address(cache, slab, 3), base + 128 + 3 * 104);
    end();
}

static void check_refused(void *address, enum us_misuse_kind kind)
{
    const uint32_t before = slab->free, first = slab->first;
    const size_t count = us_misuse_count(cache);
    struct us_misuse misuse[64];

    CHECK(!us_slab_index_put(cache, slab, address));
    CHECK_EQ(slab->free, before);
    CHECK_EQ(slab->first, first);
    CHECK_EQ(us_misuse_count(cache), count + 1);
    REQUIRE(us_misuse_list(cache, misuse, 64) == count + 1);
    CHECK_EQ(misuse[count].kind, kind);
    CHECK_EQ(misuse[count].address, (uintptr_t)address);
}

static void misuse_is_refused(void)
{
    void *out[10];

    begin(64);
    CHECK_EQ(us_slab_index_take(cache, slab, out, 10), 10);
    check_refused(&w, US_MISUSE_OUTSIDE);
    check_refused((char *)us_slab_base(&w.slabs, slab), US_MISUSE_NO_OBJECT);
    check_refused(object(2) + 8, US_MISUSE_NO_OBJECT);
    check_refused(object(us_slab_objects(slab)), US_MISUSE_NO_OBJECT);
    check_refused(object(10), US_MISUSE_DOUBLE_FREE);
    CHECK(us_slab_index_put(cache, slab, object(4)));
    check_refused(object(4), US_MISUSE_DOUBLE_FREE);
    CHECK(slab->state & US_SLAB_BAD);
    end();
}

/* Without memory for the array there is no slab, and without pages no array stays behind. */
static void failures_leave_nothing(void)
{
    begin(0);
    const uint64_t before = metadata_now();
    const uint64_t pages = free_pages(w.memory, 0);
    us_memory_fail(w.memory, US_FAIL_META, 0, 1);
    CHECK(us_slab_new_at(cache, &w.flight, 0, 0, 0, NULL) == NULL);
    us_memory_fail(w.memory, US_FAIL_PAGES, UINT32_MAX, 0);
    CHECK(us_slab_new_at(cache, &w.flight, 0, 0, 0, NULL) == NULL);
    us_memory_fail(w.memory, US_FAIL_PAGES, 0, 0);
    CHECK_EQ(metadata_now(), before);
    CHECK_EQ(free_pages(w.memory, 0), pages);
    end();
}

/* Against a stack of what was put back, above the ascending rest. */
static void random_takes_and_puts(void)
{
    uint32_t stack[200], out_of_slab[200], nstack = 0, nout = 0;
    uint64_t seed = 88172645463325252ull;
    void *out[8];

    begin(0);
    const uint32_t objects = us_slab_objects(slab);
    for (uint32_t i = objects; i-- > 0;)
        stack[nstack++] = i;
    for (unsigned step = 0; step < 4000; step++) {
        if (next_random(&seed) % 3 == 0) {
            unsigned want = 1 + (unsigned)(next_random(&seed) % 8);
            unsigned got = us_slab_index_take(cache, slab, out, want);

            CHECK_EQ(got, want < nstack ? want : nstack);
            for (unsigned i = 0; i < got; i++) {
                out_of_slab[nout++] = stack[--nstack];
                CHECK_EQ(out[i], object(out_of_slab[nout - 1]));
            }
        } else if (nout > 0) {
            uint32_t at = (uint32_t)(next_random(&seed) % nout);

            CHECK(us_slab_index_put(cache, slab, object(out_of_slab[at])));
            stack[nstack++] = out_of_slab[at];
            out_of_slab[at] = out_of_slab[--nout];
        }
        CHECK_EQ(slab->free, nstack);
    }
    for (uint32_t i = 0; i < nstack; i++)
        CHECK(us_slab_is_free(cache, slab, stack[i]));
    for (uint32_t i = 0; i < nout; i++)
        CHECK(!us_slab_is_free(cache, slab, out_of_slab[i]));
    end();
}

int main(void)
{
    RUN(fresh_slabs_ascend);
    RUN(last_freed_comes_first);
    RUN(starts_of_objects);
    RUN(misuse_is_refused);
    RUN(failures_leave_nothing);
    RUN(random_takes_and_puts);
    return check_result();
}

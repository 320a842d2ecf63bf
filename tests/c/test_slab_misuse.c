// machines: both
/* Misuse that reaches a slab: each kind is refused, counted, described, and changes nothing. */
#include <pthread.h>

#include "fixture_memory.h"

static struct world w;
static struct us_cache *cache, *other;
static struct us_slab *slab, *of_other;
static void *object[10];

static void begin(void)
{
    world_begin(&w, 1, 64 * MIB);
    cache = make_cache(&w, "victim", 96, 0, US_OBJECTS_BITMAP);
    other = make_cache(&w, "bystander", 96, 0, US_OBJECTS_BITMAP);
    slab = us_slab_new(cache, &w.flight, 0, 0, NULL);
    of_other = us_slab_new(other, &w.flight, 0, 0, NULL);
    REQUIRE(slab && of_other);
    REQUIRE(us_slab_take(cache, slab, object, 10) == 10);
}

static void end(void)
{
    us_slab_release(cache, &w.flight, slab);
    us_slab_release(other, &w.flight, of_other);
    drop_cache(cache);
    drop_cache(other);
    world_end(&w);
}

/* Putting the address fails, is recorded as `kind`, and its text names what a reader needs. */
static void check_refused(struct us_slab *to, void *address, enum us_misuse_kind kind,
                          const char *names)
{
    struct us_misuse misuse[64];
    uint32_t before = slab->free;
    size_t count = us_misuse_count(cache);

    CHECK(!us_slab_put(cache, to, address));
    CHECK_EQ(slab->free, before);
    CHECK_EQ(us_misuse_count(cache), count + 1);
    size_t n = us_misuse_list(cache, misuse, 64);
    REQUIRE(n > 0);
    const struct us_misuse *last = &misuse[n - 1];
    CHECK_EQ(last->kind, kind);
    CHECK_EQ(last->cache, cache);
    CHECK_EQ(last->address, (uintptr_t)address);
    if (!CHECK(strstr(last->text, names) && strstr(last->text, "expected")))
        fprintf(stderr, "  text: %s\n", last->text);
}

static void each_kind(void)
{
    begin();
    char *base = us_slab_base(&w.slabs, slab);
    uint32_t objects = us_slab_objects(slab);

    check_refused(slab, &w, US_MISUSE_OUTSIDE, "outside");
    check_refused(NULL, &w, US_MISUSE_OUTSIDE, "outside");
    check_refused(slab, base + 32 * MIB, US_MISUSE_NO_SLAB, "no slab");
    CHECK_EQ(slab->state & US_SLAB_BAD, 0);
    check_refused(slab, us_object_address(other, of_other, 3), US_MISUSE_WRONG_CACHE, "bystander");
    check_refused(of_other, us_object_address(other, of_other, 3), US_MISUSE_WRONG_CACHE,
                  "bystander");
    CHECK_EQ(of_other->state & US_SLAB_BAD, 0);
    check_refused(slab, (char *)object[0] + 8, US_MISUSE_NO_OBJECT, "96");
    CHECK(slab->state & US_SLAB_BAD);
    check_refused(slab, base + objects * 96ull, US_MISUSE_NO_OBJECT, "victim");
    check_refused(slab, us_object_address(cache, slab, 15), US_MISUSE_DOUBLE_FREE, "free already");
    /* The right free still works, once. */
    CHECK(us_slab_put(cache, slab, object[4]));
    check_refused(slab, object[4], US_MISUSE_DOUBLE_FREE, "free already");
    CHECK_EQ(us_misuse_count(other), 0);
    end();
}

static void last_64_are_kept(void)
{
    struct us_misuse misuse[100];

    begin();
    for (unsigned i = 0; i < 70; i++)
        us_report_misuse(cache, US_MISUSE_NO_OBJECT, (char *)object[0] + i + 1);
    CHECK_EQ(us_misuse_count(cache), 70);
    CHECK_EQ(us_misuse_list(cache, misuse, 100), 64);
    for (unsigned i = 0; i < 64; i++)
        CHECK_EQ(misuse[i].address, (uintptr_t)object[0] + 6 + i + 1);
    /* The first ones of a short list, and none of another cache. */
    CHECK_EQ(us_misuse_list(cache, misuse, 3), 3);
    CHECK_EQ(misuse[0].address, (uintptr_t)object[0] + 7);
    us_report_misuse(other, US_MISUSE_LIST, us_object_address(other, of_other, 0));
    CHECK_EQ(us_misuse_list(other, misuse, 100), 1);
    CHECK_EQ(misuse[0].kind, US_MISUSE_LIST);
    CHECK_EQ(misuse[0].slab_base, (uintptr_t)us_slab_base(&w.slabs, of_other));
    CHECK_EQ(us_misuse_list(cache, misuse, 100), 63);
    us_misuse_forget(cache);
    CHECK_EQ(us_misuse_list(cache, misuse, 100), 0);
    CHECK_EQ(us_misuse_list(other, misuse, 100), 1);
    end();
}

#ifndef US_MODEL
static void *reporter(void *context)
{
    struct us_misuse misuse[64];

    (void)context;
    for (unsigned i = 0; i < 2000; i++) {
        us_report_misuse(cache, US_MISUSE_NO_OBJECT, (char *)object[0] + 1);
        if (i % 100 == 0) {
            size_t n = us_misuse_list(cache, misuse, 64);

            for (size_t k = 0; k < n; k++)
                CHECK_EQ(misuse[k].address, (uintptr_t)object[0] + 1);
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t thread[4];

    begin();
    for (unsigned i = 0; i < 4; i++)
        REQUIRE(pthread_create(&thread[i], NULL, reporter, NULL) == 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(us_misuse_count(cache), 8000);
    end();
}
#endif

int main(void)
{
    RUN(each_kind);
    RUN(last_64_are_kept);
#ifndef US_MODEL
    RUN(threads);
#endif
    return check_result();
}

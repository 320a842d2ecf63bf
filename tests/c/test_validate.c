// machines: both
/* What validate counts, and that it names what does not fit together. */
#include "fixture_cache.h"

static uint64_t sum(const uint64_t *v, size_t n)
{
    uint64_t total = 0;

    while (n)
        total += v[--n];
    return total;
}

static void counts_objects_and_slabs(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 128, 0);
        void *object[200];
        struct us_validation v;
        uint64_t objects = 0;
        size_t i;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 200, object), 200);
        us_cache_free_bulk(c, 50, object);
        REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
        CHECK_EQ(v.errors, 0);
        CHECK_EQ(v.checked, 0); /* no debug: nothing can be told to be in use */
        CHECK_EQ(v.unchecked, v.total - v.available); /* those in queues among them */
        CHECK_EQ(v.unchecked - v.onqueue, 150);
        CHECK_EQ(sum(v.histogram, v.histogram_length), v.slabs);
        for (i = 0; i < v.histogram_length; i++)
            objects += i * v.histogram[i];
        CHECK_EQ(objects, v.total - v.available);
        us_validation_free(&v);
        us_cache_free_bulk(c, 150, object + 50);
        fixture_close(a);
    }
}

static void a_full_slab_has_its_place_in_the_histogram(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 128, 0);
    const unsigned objects = c->geometry.objects;
    void *object[64];
    struct us_validation v;

    REQUIRE(objects <= 64);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, objects, object), objects);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    CHECK_EQ(v.histogram_length, objects + 1);
    CHECK_EQ(v.histogram[objects], v.slabs);
    us_validation_free(&v);
    us_cache_free_bulk(c, objects, object);
    fixture_close(a);
}

static void slabs_of_many_objects(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    const char *names[] = {"min_objects", "max_order"}, *values[] = {"64", "3"};
    const struct us_cache_options o = {.name = "tiny", .size = 8};
    struct us_cache *c = us_cache_create_with(a, &o, names, values, 2, NULL);
    static void *object[5000];

    REQUIRE(c != NULL);
    CHECK(c->geometry.objects > 64);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 5000, object), 5000);
    fixture_balance(a);
    us_cache_free_bulk(c, 5000, object);
    fixture_close(a);
}

static void a_late_double_free_is_named(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *p = us_cache_alloc(c), *kept[4];
        struct us_validation v;

        /* A list policy without debug counts a double free as two: the slab must not look empty. */
        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 4, kept), 4);
        us_cache_free(c, p);
        us_allocator_flush(a);
        us_cache_free(c, p);
        us_allocator_flush(a);
        REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
        CHECK(v.errors > 0);
        CHECK(v.text[0] != 0);
        us_validation_free(&v);
        CHECK_EQ(us_allocator_destroy(a, true, NULL), US_OK);
    }
}

static void wrong_counters_and_lists_are_named(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    struct us_validation v;
    void *p = us_cache_alloc(c);
    struct us_slab *s = us_cache_slab(c, p);

    us_allocator_flush(a);
    s->free--;
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    CHECK_EQ(v.errors, 1);
    CHECK(strstr(v.text, "its counter says") != NULL);
    us_validation_free(&v);
    s->free++;
    atomic_fetch_and(&s->state, (uint8_t)~US_SLAB_PARTIAL);
    REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
    CHECK_EQ(v.errors, 1);
    CHECK(strstr(v.text, "is on a list and says it is on none") != NULL);
    us_validation_free(&v);
    atomic_fetch_or(&s->state, US_SLAB_PARTIAL);
    us_cache_free(c, p);
    fixture_close(a);
}

int main(void)
{
    RUN(counts_objects_and_slabs);
    RUN(a_full_slab_has_its_place_in_the_histogram);
    RUN(slabs_of_many_objects);
    RUN(a_late_double_free_is_named);
    RUN(wrong_counters_and_lists_are_named);
    return check_result();
}

// machines: both
/* Merged caches in C: one pointer, several names, and an end for each. tests/test_merging.py has
 * the rules by which they merge. */
#include "fixture_cache.h"

static struct us_allocator *open_merging(const char *policy)
{
    struct us_allocator_options o;
    struct us_allocator *a;

    us_allocator_options_init(&o);
    o.policy = policy;
    o.merge = true;
    o.address_range = 1ull << 30;
    a = us_allocator_create(&o, NULL);
    REQUIRE(a != NULL);
    return a;
}

static void the_newest_name_goes_first(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = open_merging(policy);
        const unsigned before = a->ncaches;
        struct us_cache *c = fixture_cache(a, "first", 216, 0);
        char names[4][US_NAME_MAX];
        void *object;
        unsigned number;

        CHECK_EQ(fixture_cache(a, "second", 210, 0), c);
        CHECK_EQ(fixture_cache(a, "third", 216, 0), c);
        CHECK_EQ(a->ncaches, before + 1);
        CHECK_EQ(us_cache_names(c, names, 4), 3);
        CHECK(strcmp(names[0], "first") == 0 && strcmp(names[1], "second") == 0 &&
              strcmp(names[2], "third") == 0);
        CHECK_EQ(us_cache_find(a, "second"), c);
        object = us_cache_alloc(c);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK); /* third */
        CHECK(us_cache_find(a, "third") == NULL);
        CHECK_EQ(us_cache_named(a, "first", &number), c);
        CHECK_EQ(us_cache_end_name(c, number, false, NULL), US_OK);
        CHECK_EQ(us_cache_names(c, names, 4), 1);
        CHECK(strcmp(c->name, "second") == 0); /* it goes on under what is left */
        CHECK(us_cache_find(a, "first") == NULL);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_EBUSY);
        us_cache_free(c, object);
        CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK);
        CHECK_EQ(a->ncaches, before);
        fixture_close(a);
    }
}

/* General caches are made anew when a default changes before anything came from them: not under
 * somebody who knows one by another name. */
static void a_general_cache_with_another_name_is_not_made_anew(void)
{
    struct us_allocator *a = open_merging("unified");
    struct us_cache *c = fixture_cache(a, "named", 64, 0);

    CHECK(c->general);
    CHECK_EQ(us_allocator_set_default(a, "cpu_queue_size", "30", NULL), US_OK);
    CHECK_EQ(us_kmalloc_cache(a, 64), c);
    us_cache_free(c, us_cache_alloc(c));
    CHECK_EQ(us_cache_destroy(c, false, NULL), US_OK); /* the name */
    CHECK_EQ(us_cache_destroy(c, false, NULL), US_EINVAL);
    fixture_close(a);
}

static void without_memory_for_a_name_there_is_none(void)
{
    struct us_allocator *a = open_merging("slub");
    struct us_cache *c = fixture_cache(a, "first", 216, 0);
    const struct us_cache_options o = {.name = "second", .size = 216};
    struct us_error e = {.status = US_OK};

    us_memory_fail(a->memory, US_FAIL_META, UINT32_MAX, 0);
    CHECK(us_cache_create(a, &o, &e) == NULL);
    CHECK_EQ(e.status, US_ENOMEM);
    us_memory_fail(a->memory, US_FAIL_META, 0, 0);
    CHECK_EQ(us_cache_names(c, NULL, 0), 1);
    CHECK_EQ(us_cache_create(a, &o, &e), c);
    CHECK_EQ(us_allocator_destroy(a, false, NULL), US_OK); /* with all its names */
}

int main(void)
{
    RUN(the_newest_name_goes_first);
    RUN(a_general_cache_with_another_name_is_not_made_anew);
    RUN(without_memory_for_a_name_there_is_none);
    return check_result();
}

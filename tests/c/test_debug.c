// machines: both
/* Debug F: every misuse is found at the call and leaves nothing behind. Without it: the checks of
 * single calls, and misuse that is found late. */
#include "fixture_cache.h"

static void refused(struct us_cache *c, void *object, const char *found, const char *expected)
{
    struct us_error e = {.status = US_OK};
    struct us_finding finding;

    CHECK_EQ(us_cache_free_checked(c, object, &e), US_ECORRUPT);
    CHECK(strstr(e.text, c->name) != NULL);
    CHECK(strstr(e.text, found) != NULL);
    CHECK(strstr(e.text, expected) != NULL);
    REQUIRE(us_cache_finding(c, object, &finding));
    CHECK_EQ(finding.address, (uintptr_t)object);
    CHECK(strstr(finding.found, found) != NULL);
    CHECK_EQ(us_cache_check(c, object, &e), US_ECORRUPT);
}

static void misuse_is_found_at_the_call(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "first", 64, 0),
                        *d = fixture_cache(a, "second", 64, 0);
        char *p = us_cache_alloc(c), *q = us_cache_alloc(c);
        int elsewhere;

        refused(d, p, "cache 'first'", "cache 'second'");
        refused(c, p + 8, "at offset", "the start of an object");
        refused(c, &elsewhere, "outside", "within");
        refused(c, (void *)(uintptr_t)(a->slabs.range.base + a->slabs.range.length - 4096),
                "no slab", "cache 'first'");
        us_cache_free(c, p);
        refused(c, p, "free already", "in use");
        us_cache_free(c, q);
        refused(c, q, "free already", "in use");
        CHECK_EQ(us_cache_free_checked(c, NULL, NULL), US_OK);
        fixture_close(a); /* valid, and balanced */
    }
}

static void a_freed_object_is_refused_wherever_it_went(void)
{
    FOR_EACH_POLICY(policy)
    {
        enum { N = 600 };
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        static void *object[N];
        unsigned i;

        for (i = 0; i < N; i++)
            object[i] = us_cache_alloc(c);
        for (i = 0; i < N; i++)
            us_cache_free(c, object[i]);
        for (i = 0; i < N; i++)
            CHECK_EQ(us_cache_free_checked(c, object[i], NULL), US_ECORRUPT);
        us_allocator_flush(a);
        for (i = 0; i < N; i++)
            CHECK_EQ(us_cache_free_checked(c, object[i], NULL), US_ECORRUPT);
        fixture_close(a);
    }
}

static void bulk_is_all_or_nothing(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *object[20], *twice[20];
        struct us_error e = {.status = US_OK};
        struct us_account account;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 20, object), 20);
        memcpy(twice, object, sizeof(twice));
        twice[19] = object[3];
        CHECK_EQ(us_cache_free_bulk_checked(c, 20, twice, &e), US_ECORRUPT);
        us_cache_account(c, &account);
        CHECK_EQ(account.live_objects, 20);
        CHECK_EQ(us_cache_free_bulk_checked(c, 20, object, &e), US_OK);
        CHECK_EQ(us_cache_free_bulk_checked(c, 20, object, &e), US_ECORRUPT);
        fixture_close(a);
    }
}

/* The plain entries cannot return an error: they count it, and nothing else is left behind. */
static void plain_misuse_is_counted(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *p = us_cache_alloc(c), *both[2] = {p, p};

        us_cache_free_bulk(c, 2, both);
        CHECK_EQ(us_cache_refused(c), 1);
        us_cache_free(c, p);
        CHECK_EQ(us_cache_refused(c), 2);
        us_kfree(a, &a);
        CHECK_EQ(us_cache_refused(a->large), 1);
        fixture_close(a);
    }
}

static void objects_are_not_touched(void)
{
    struct us_allocator *a = fixture_open("unified", NULL, 0, true);
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    unsigned char *p = us_cache_alloc(c), expected[64];

    memset(p, 0x5c, 64);
    memset(expected, 0x5c, 64);
    us_cache_free(c, p);
    CHECK(memcmp(p, expected, 64) == 0);
    us_cache_shrink(c);
    fixture_close(a);
}

static void validate_checks_what_is_in_use(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, true);
        struct us_cache *c = fixture_cache(a, "test", 64, 0);
        void *object[50];
        struct us_validation v;

        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 50, object), 50);
        us_cache_free_bulk(c, 10, object);
        REQUIRE(us_cache_validate(c, &v, NULL) == US_OK);
        CHECK_EQ(v.checked, 40);
        CHECK_EQ(v.unchecked, 0);
        CHECK_EQ(v.errors, 0);
        CHECK_EQ(v.total, v.checked + v.onqueue + v.available);
        us_validation_free(&v);
        us_cache_free_bulk(c, 40, object + 10);
        fixture_close(a);
    }
}

static void without_debug_single_calls_still_check_addresses(void)
{
    FOR_EACH_POLICY(policy)
    {
        struct us_allocator *a = fixture_open(policy, NULL, 0, false);
        struct us_cache *c = fixture_cache(a, "first", 100, 0),
                        *d = fixture_cache(a, "second", 100, 0);
        char *p = us_cache_alloc(c);
        void *bulk[2] = {p, &a};
        struct us_error e = {.status = US_OK};

        refused(d, p, "cache 'first'", "cache 'second'");
        refused(c, p + 1, "at offset", "the start of an object");
        CHECK_EQ(us_cache_check(c, p, &e), US_OK);
        CHECK_EQ(us_cache_free_bulk_checked(c, 2, bulk, &e), US_ECORRUPT);
        CHECK_EQ(us_cache_free_checked(c, p, &e), US_OK);
        fixture_close(a);
    }
}

static void every_object_start_is_accepted(void)
{
    static const size_t sizes[] = {8, 24, 96, 1000, 4104, 10000, 100000};
    struct us_allocator *a = fixture_open("unified", NULL, 0, false);
    unsigned k, i;

    for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        struct us_cache *c;
        void *object[300];
        char name[20];

        snprintf(name, sizeof(name), "size-%zu", sizes[k]);
        c = fixture_cache(a, name, sizes[k], 0);
        CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 300, object), 300);
        for (i = 0; i < 300; i++) {
            CHECK_EQ(us_cache_check(c, object[i], NULL), US_OK);
            CHECK_EQ(us_cache_check(c, (char *)object[i] + sizes[k] - 1, NULL), US_ECORRUPT);
        }
        us_cache_free_bulk(c, 300, object);
    }
    fixture_close(a);
}

int main(void)
{
    RUN(misuse_is_found_at_the_call);
    RUN(a_freed_object_is_refused_wherever_it_went);
    RUN(bulk_is_all_or_nothing);
    RUN(plain_misuse_is_counted);
    RUN(objects_are_not_touched);
    RUN(validate_checks_what_is_in_use);
    RUN(without_debug_single_calls_still_check_addresses);
    RUN(every_object_start_is_accepted);
    return check_result();
}

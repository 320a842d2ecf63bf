// machines: model
/* What an expiration of V4 as posted does whatever is asked for, beside Unified as intended. */
#include "fixture_cache.h"

static const unsigned one[] = {0, 0};
static const struct us_topology two_cpus = {2, 1, 1, one, one};

/* Two CPU queues that were not used since the last visit, of 64 objects each. */
static struct us_cache *idle_queues(struct us_allocator *a)
{
    struct us_cache *c = fixture_cache(a, "test", 64, 0);
    void *object[64];

    for (unsigned cpu = 0; cpu < 2; cpu++) {
        REQUIRE(us_machine_on_cpu(a->machine, (int)cpu, NULL) == 0);
        for (unsigned i = 0; i < 64; i++)
            REQUIRE((object[i] = us_cache_alloc(c)) != NULL);
        for (unsigned i = 0; i < 64; i++)
            us_cache_free(c, object[i]);
    }
    CHECK_EQ(us_cache_expire(c, 0), 0); /* takes the marks */
    return c;
}

static uint64_t expire_stage(struct us_cache *c, enum us_stage stage, uint64_t target)
{
    struct us_flight f;
    uint64_t bytes;

    us_flight_enter(c->machine, &f);
    bytes = c->policy->expire(c, &f, 0, stage, target, false);
    us_flight_leave(&f);
    return bytes;
}

static void as_posted_a_stage_does_not_stop_at_its_target(void)
{
    static const char *const policy[] = {"unified", "unified-v4"};

    for (unsigned i = 0; i < 2; i++) {
        struct us_allocator *a = fixture_open(policy[i], &two_cpus, 0, false);
        struct us_cache *c = idle_queues(a);

        /* A batch of 60 objects of 64 bytes is what one visit takes from each queue. */
        CHECK_EQ(expire_stage(c, US_STAGE_CPU, 1), (i ? 2u : 1u) * 60 * 64);
        CHECK_EQ(a->policy->expire_all_stages, i == 1);
        fixture_close(a);
    }
}

static void as_posted_a_cache_without_a_shared_queue_ends_the_pass(void)
{
    struct us_allocator *a = fixture_open("unified-v4", &two_cpus, 0, false);
    struct us_cache *c = fixture_cache(a, "page", 4096, 0); /* none from a page on */

    CHECK_EQ(expire_stage(c, US_STAGE_PARTIAL, 1), 0);
    CHECK_EQ(expire_stage(c, US_STAGE_ALIEN, 1), 0); /* there is one node */
    CHECK_EQ(expire_stage(c, US_STAGE_SHARED, 1), US_EXPIRE_END);
    fixture_close(a);

    a = fixture_open("unified-v4", &fixture_two_nodes, 0, false);
    c = fixture_cache(a, "page", 4096, 0);
    CHECK_EQ(expire_stage(c, US_STAGE_ALIEN, 1), US_EXPIRE_END);
    CHECK_EQ(us_cache_expire(c, -1), 0); /* alone it goes on */
    fixture_close(a);
}

int main(void)
{
    RUN(as_posted_a_stage_does_not_stop_at_its_target);
    RUN(as_posted_a_cache_without_a_shared_queue_ends_the_pass);
    return check_result();
}

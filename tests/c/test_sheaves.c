/* Sheaves where scripts of calls do not lead: sheaves that somebody else holds, a thread that has
 * moved meanwhile, memory that is not to be had, other nodes' partial slabs, prefilled sheaves.
 *
 * The numbers used: objects of 1024 bytes, four to a slab of one page, sheaves of 12; two nodes
 * with a CPU each. */
// machines: model
#include "fixture_cache.h"
#include "policy/sheaves.h"

enum { N = 4, C = 12, MOST = 20 * C };

static const unsigned nodes_of[] = {0, 1};
static const struct us_topology two_nodes = {
    .ncpus = 2, .nnodes = 2, .ndomains = 2, .cpu_node = nodes_of, .cpu_domain = nodes_of};

static struct us_allocator *a;
static struct us_cache *c;
static struct us_flight f;
static void *object[MOST];

static void on_cpu(int cpu)
{
    REQUIRE(us_machine_on_cpu(c->machine, cpu, NULL) >= 0);
}

static void open_scene(void)
{
    static const char *const names[] = {"min_objects", "remote_node_defrag_ratio"};
    static const char *const values[] = {"4", "0"};
    const struct us_cache_options o = {.name = "scene", .size = 1024};

    a = fixture_open("sheaves", &two_nodes, 0, false);
    c = us_cache_create_with(a, &o, names, values, 2, NULL);
    REQUIRE(c != NULL);
    REQUIRE(us_sheaves_of(c)->capacity == C && c->geometry.objects == N);
    on_cpu(0);
}

static void take(unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++)
        REQUIRE((object[i] = us_cache_alloc(c)) != NULL);
}

static void give(unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++)
        us_cache_free(c, object[i]);
}

static void flush(void)
{
    us_flight_enter(c->machine, &f);
    us_sheaves_flush_cpu(c, &f, 0, false);
    us_flight_leave(&f);
}

static void close_scene(void)
{
    fixture_close(a);
}

static uint64_t counted(const char *row)
{
    return fixture_stat(c, row);
}

static const struct us_sheaf *sheaf(unsigned cpu, unsigned word)
{
    return us_local_sheaf(&c->local, cpu, word);
}

static unsigned full_in_barn(unsigned node)
{
    return us_sheaves_of(c)->barn[node].nr_full;
}

/* ---- the pair ------------------------------------------------------------------------------ */

/* Whoever finds no main sheaf has met the lock held: one object of slabs, one free to its slab. */
static void who_finds_the_sheaves_taken_goes_to_slabs(void)
{
    struct us_sheaf_pair p, again;

    open_scene();
    take(0, 3);
    us_flight_enter(c->machine, &f);
    REQUIRE(us_sheaf_pair_take(c, &f, &p));
    CHECK(!us_sheaf_pair_take(c, &f, &again));
    CHECK_EQ(us_sheaf_size(p.main), C - 3);
    us_flight_leave(&f);
    take(3, 1);
    give(0, 1);
    CHECK_EQ(counted("alloc_slowpath"), 1);
    CHECK_EQ(counted("free_slowpath"), 1);
    us_flight_enter(c->machine, &f);
    us_sheaf_pair_give(c, &f, &p);
    us_flight_leave(&f);
    take(0, 1);
    give(0, 4);
    CHECK_EQ(counted("alloc_slowpath"), 1);
    CHECK_EQ(counted("free_slowpath"), 1);
    close_scene();
}

/* What was taken on one CPU goes back there from another one. */
static void sheaves_go_back_to_their_cpu_from_elsewhere(void)
{
    struct us_sheaf_pair p;
    const struct us_sheaf *main, *spare;

    open_scene();
    take(0, C + 1);
    give(0, C + 1);
    main = sheaf(0, US_MAIN);
    spare = sheaf(0, US_SPARE);
    us_flight_enter(c->machine, &f);
    REQUIRE(us_sheaf_pair_take(c, &f, &p));
    CHECK(sheaf(0, US_MAIN) == NULL && sheaf(0, US_SPARE) == NULL);
    on_cpu(1);
    us_sheaf_pair_give(c, &f, &p);
    us_flight_leave(&f);
    CHECK(sheaf(0, US_MAIN) == main && sheaf(0, US_SPARE) == spare);
    CHECK_EQ(us_sheaf_size(main) + us_sheaf_size(spare), 2 * C);
    close_scene();
}

/* A CPU that went offline meanwhile keeps nothing. */
static void sheaves_of_a_cpu_that_went_are_flushed(void)
{
    struct us_sheaf_pair p;

    open_scene();
    take(0, C + 1);
    give(0, C + 1);
    us_flight_enter(c->machine, &f);
    REQUIRE(us_sheaf_pair_take(c, &f, &p));
    us_flight_leave(&f);
    on_cpu(1);
    REQUIRE(us_allocator_offline_cpu(a, 0, NULL) == US_OK);
    us_flight_enter(c->machine, &f);
    us_sheaf_pair_give(c, &f, &p);
    us_flight_leave(&f);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 0);
    CHECK(sheaf(0, US_SPARE) == NULL);
    REQUIRE(us_allocator_online_cpu(a, 0, NULL) == US_OK);
    close_scene();
}

/* ---- no memory ----------------------------------------------------------------------------- */

/* Step e: main and spare are full, the barn has no empty sheaf, none is to be had: the main sheaf
 * is flushed, and takes the object. */
static void without_an_empty_sheaf_the_main_one_is_flushed(void)
{
    open_scene();
    take(0, 3 * C);
    give(0, 2 * C);
    us_memory_fail(a->memory, US_FAIL_META, 0, 1);
    give(2 * C, 1);
    CHECK_EQ(counted("sheaf_flush"), C);
    CHECK_EQ(counted("barn_put_fail"), 1); /* it came from a full spare */
    CHECK_EQ(counted("free_fastpath"), 2 * C + 1);
    CHECK_EQ(counted("free_slow"), 1);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 1);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_SPARE)), C);
    give(2 * C + 1, C - 1);
    close_scene();
}

/* The same without a spare: nothing was to be put in the barn. */
static void without_a_spare_nothing_failed_to_go_to_the_barn(void)
{
    open_scene();
    take(0, C + 1);
    flush();
    take(C + 1, 1);
    flush(); /* the main sheaf is empty, and there is no spare */
    give(0, C);
    us_memory_fail(a->memory, US_FAIL_META, 0, 1);
    give(C, 1);
    CHECK_EQ(counted("barn_put_fail"), 0);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 1);
    CHECK(sheaf(0, US_SPARE) == NULL);
    CHECK_EQ(counted("free_fastpath"), C + 1);
    CHECK_EQ(counted("free_slow"), 1);
    give(C + 1, 1);
    close_scene();
}

/* A CPU whose main sheaf cannot be had works without; its frees and allocations are slow ones. */
static void a_cpu_without_memory_for_sheaves_works_past_them(void)
{
    open_scene();
    us_memory_fail(a->memory, US_FAIL_META, UINT32_MAX, 0);
    take(0, 2 * N);
    give(0, N);
    us_memory_fail(a->memory, US_FAIL_META, 0, 0);
    CHECK_EQ(counted("alloc_slowpath"), 2 * N);
    CHECK_EQ(counted("free_slowpath"), N);
    CHECK_EQ(counted("sheaf_alloc"), 0);
    give(N, N); /* and gets one as soon as there is memory */
    CHECK_EQ(counted("free_fastpath"), N);
    close_scene();
}

/* A refill that is cut short by the page provider is flushed, and the caller served from slabs. */
static void a_short_refill_is_undone(void)
{
    open_scene();
    us_memory_fail(a->memory, US_FAIL_PAGES, 0, 3); /* the third slab of the sheaf */
    take(0, 1);
    CHECK_EQ(counted("sheaf_refill"), 2 * N);
    CHECK_EQ(counted("sheaf_flush"), 2 * N);
    CHECK_EQ(counted("sheaf_free"), 1);
    CHECK_EQ(counted("alloc_slab"), 2);
    CHECK_EQ(counted("alloc_slowpath"), 1); /* of a slab that had come back to the list */
    CHECK_EQ(counted("alloc_fastpath"), 0);
    give(0, 1);
    close_scene();
}

static void a_bulk_call_is_all_or_nothing(void)
{
    open_scene();
    take(0, C);
    give(0, 3);
    us_memory_fail(a->memory, US_FAIL_PAGES, 0, 2);
    CHECK_EQ(us_cache_alloc_bulk(c, 0, US_ANY_NODE, 3 + 2 * N, object + C), 0);
    CHECK_EQ(counted("alloc_slowpath"), 0);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 3); /* what came from there went back */
    give(3, C - 3);
    close_scene();
}

/* ---- other nodes --------------------------------------------------------------------------- */

/* Six partial slabs of node 1 with all their objects free, more than it must keep. */
static void free_on_node_1(void)
{
    on_cpu(1);
    take(0, 6 * N);
    on_cpu(0);
    us_sheaves_of(c)->min_partial = 7; /* the sixth counts itself */
    give(0, 6 * N);                    /* remote: straight to their slabs, which are kept */
    us_sheaves_of(c)->min_partial = 5;
    CHECK_EQ(us_sheaves_of(c)->node[1].slabs.length, 6);
    us_sheaves_of(c)->defrag_threshold = 1024; /* of 1024: always */
}

static void a_refill_robs_other_nodes_of_what_they_need_not_keep(void)
{
    open_scene();
    free_on_node_1();
    take(0, 1);
    /* Three slabs of node 1 fill the sheaf, none is made; the object counts as a remote one. */
    CHECK_EQ(counted("alloc_slab"), 6);
    CHECK_EQ(us_sheaves_of(c)->node[1].slabs.length, 3);
    CHECK_EQ(us_node_of(&c->slabs->range, object[0]), 1);
    CHECK_EQ(counted("alloc_remote"), 1);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), C - 1);
    /* Down to three slabs the list is too short to be robbed. */
    take(1, C);
    CHECK_EQ(counted("alloc_slab"), 6 + 3);
    give(0, 1);
    CHECK_EQ(us_sheaves_of(c)->node[1].slabs.length, 4); /* a remote free */
    give(1, C);
    close_scene();
}

static void an_object_of_another_node_stays_in_the_sheaf(void)
{
    void *near;

    open_scene();
    free_on_node_1();
    take(0, 1);
    near = us_cache_alloc_node(c, 0, 0);
    CHECK_EQ(us_node_of(&c->slabs->range, near), 0);
    CHECK_EQ(counted("alloc_node_mismatch"), 1);
    CHECK_EQ(counted("alloc_slowpath"), 1);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), C - 1);
    us_cache_free(c, near);
    give(0, 1);
    close_scene();
}

/* A shrink gives back what a barn held of other nodes, too. */
static void a_shrink_empties_mixed_sheaves(void)
{
    struct us_sheaf_pair p;

    open_scene();
    free_on_node_1();
    take(0, 1);
    us_flight_enter(c->machine, &f);
    REQUIRE(us_sheaf_pair_take(c, &f, &p));
    us_barn_put_full(&f, &us_sheaves_of(c)->barn[0], p.main);
    p.main = p.spare;
    p.spare = NULL;
    us_sheaf_pair_give(c, &f, &p);
    us_flight_leave(&f);
    give(0, 1);
    us_cache_shrink(c);
    CHECK_EQ(full_in_barn(0), 0);
    CHECK_EQ(c->nr_slabs[0] + c->nr_slabs[1], 0);
    close_scene();
}

/* ---- prefilled sheaves --------------------------------------------------------------------- */

static void a_prefilled_sheaf_serves_without_fail(void)
{
    struct us_account account;
    struct us_sheaf *s;

    open_scene();
    take(0, 1); /* main has 11, the spare none */
    s = us_sheaves_prefill(c, 0, 5);
    REQUIRE(s != NULL);
    /* The spare was used, and topped up to its capacity. */
    CHECK_EQ(counted("sheaf_prefill_fast"), 1);
    CHECK_EQ(us_sheaf_size(s), C);
    CHECK_EQ(counted("sheaf_refill"), 2 * C);
    CHECK(sheaf(0, US_SPARE) == NULL);
    us_cache_account(c, &account);
    CHECK_EQ(account.live_objects, 1);
    CHECK_EQ(account.queued_objects, 2 * C - 1);
    us_memory_fail(a->memory, US_FAIL_PAGES, UINT32_MAX, 0);
    us_memory_fail(a->memory, US_FAIL_META, UINT32_MAX, 0);
    for (unsigned i = 1; i <= C; i++)
        CHECK((object[i] = us_sheaves_alloc_from(c, s)) != NULL);
    CHECK(us_sheaves_alloc_from(c, s) == NULL);
    us_memory_fail(a->memory, US_FAIL_PAGES, 0, 0);
    us_memory_fail(a->memory, US_FAIL_META, 0, 0);
    us_cache_account(c, &account);
    CHECK_EQ(account.live_objects, C + 1);
    us_sheaves_return(c, s); /* empty: the spare again */
    CHECK_EQ(counted("sheaf_return_fast"), 1);
    CHECK(sheaf(0, US_SPARE) == s);
    give(0, C + 1);
    CHECK_EQ(us_sheaf_size(s), C); /* main since the other one was full; it counts anew */
    CHECK_EQ(counted("alloc_fastpath"), C + 1);
    CHECK_EQ(counted("free_fastpath"), C + 1);
    close_scene();
}

static void a_second_prefill_finds_no_spare(void)
{
    struct us_sheaf *first, *second, *third;

    open_scene();
    take(0, 3 * C);
    give(0, 3 * C); /* main, spare, and one full sheaf in the barn */
    first = us_sheaves_prefill(c, 0, C);
    second = us_sheaves_prefill(c, 0, C);
    CHECK_EQ(counted("sheaf_prefill_fast"), 1);
    CHECK_EQ(counted("sheaf_prefill_slow"), 1);
    CHECK_EQ(counted("barn_get"), 1);
    CHECK_EQ(counted("barn_get_fail"), 3); /* of the three refills */
    CHECK_EQ(counted("sheaf_refill"), 3 * C);
    third = us_sheaves_prefill(c, 0, 1);
    CHECK_EQ(counted("barn_get_fail"), 4);
    CHECK_EQ(counted("sheaf_refill"), 4 * C);
    us_sheaves_return(c, first); /* the spare's place is free */
    us_sheaves_return(c, second);
    CHECK_EQ(counted("sheaf_return_fast"), 1);
    CHECK_EQ(counted("sheaf_return_slow"), 1);
    CHECK_EQ(full_in_barn(0), 1); /* it was full, the barn took it */
    for (unsigned i = 0; i < 2; i++)
        object[i] = us_sheaves_alloc_from(c, third);
    us_sheaves_return(c, third); /* topped up for the barn */
    CHECK_EQ(full_in_barn(0), 2);
    CHECK_EQ(counted("sheaf_refill"), 4 * C + 2);
    give(0, 2);
    close_scene();
}

static void a_sheaf_larger_than_others_is_its_callers_alone(void)
{
    struct us_memory_account before, after;
    struct us_sheaf *s;

    open_scene();
    us_memory_account(a->memory, &before);
    s = us_sheaves_prefill(c, 0, 3 * C);
    REQUIRE(s != NULL);
    CHECK_EQ(s->capacity, 3 * C);
    CHECK_EQ(us_sheaf_size(s), 3 * C);
    CHECK_EQ(counted("sheaf_prefill_oversize"), 1);
    for (unsigned i = 0; i < 3 * C; i++)
        REQUIRE((object[i] = us_sheaves_alloc_from(c, s)) != NULL);
    CHECK(us_sheaves_refill_sheaf(c, 0, &s, 3 * C)); /* there is room */
    CHECK_EQ(us_sheaf_size(s), 3 * C);
    CHECK(us_sheaves_refill_sheaf(c, 0, &s, 4 * C)); /* another one */
    CHECK_EQ(s->capacity, 4 * C);
    us_sheaves_return(c, s); /* flushed and freed */
    CHECK_EQ(counted("sheaf_flush"), 3 * C + 4 * C);
    give(0, 3 * C);
    us_memory_account(a->memory, &after);
    CHECK_EQ(counted("sheaf_return_fast") + counted("sheaf_return_slow"), 0);
    close_scene();
}

static void without_memory_nothing_is_prefilled(void)
{
    open_scene();
    us_memory_fail(a->memory, US_FAIL_PAGES, UINT32_MAX, 0);
    CHECK(us_sheaves_prefill(c, 0, 3) == NULL);
    CHECK(us_sheaves_prefill(c, 0, 3 * C) == NULL);
    us_memory_fail(a->memory, US_FAIL_PAGES, 0, 0);
    CHECK_EQ(counted("sheaf_alloc") - counted("sheaf_free"), 1); /* the main sheaf */
    close_scene();
}

/* ---- what happens while a refill waits ------------------------------------------------------- */

static void (*meanwhile)(void);

/* The first object of a new slab is constructed: the refill holds nothing just then. */
static void construct(void *fresh, void *arg)
{
    void (*now)(void) = meanwhile;

    (void)fresh;
    (void)arg;
    meanwhile = NULL;
    if (now)
        now();
}

/* CPU 0 is about to fill a sheaf for an allocation; `what` is done first. */
static void refill_while(void (*what)(void), unsigned held)
{
    static const char *const names[] = {"min_objects"}, *const values[] = {"4"};
    const struct us_cache_options o = {
        .name = "scene", .size = 1016, .constructor = construct, .constructor_suspends = true};

    a = fixture_open("sheaves", &two_nodes, 0, false);
    c = us_cache_create_with(a, &o, names, values, 1, NULL);
    REQUIRE(c != NULL);
    REQUIRE(us_sheaves_of(c)->capacity == C);
    on_cpu(1);
    take(0, 1); /* CPU 1 has sheaves, too */
    give(0, 1);
    on_cpu(0);
    take(0, held);
    meanwhile = what;
    object[held] = us_cache_alloc(c);
    REQUIRE(object[held] != NULL);
    CHECK(meanwhile == NULL);
}

static void go_away(void)
{
    on_cpu(1);
}

static void a_sheaf_filled_for_a_node_that_was_left_goes_to_its_barn(void)
{
    refill_while(go_away, 0);
    CHECK_EQ(full_in_barn(0), 1);
    CHECK_EQ(full_in_barn(1), 0);
    CHECK_EQ(counted("barn_put"), 1);
    CHECK_EQ(us_node_of(&c->slabs->range, object[0]), 0); /* of the node it was asked on */
    CHECK_EQ(counted("alloc_slowpath"), 1);
    CHECK_EQ(counted("alloc_remote"), 1);
    give(0, 1);
    on_cpu(0);
    close_scene();
}

static void free_one(void)
{
    give(0, 1);
}

static void a_main_sheaf_that_got_objects_meanwhile_serves(void)
{
    void *freed;

    refill_while(free_one, C);
    freed = object[0];
    CHECK_EQ(object[C], freed);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 0);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_SPARE)), C); /* the one that was filled */
    CHECK_EQ(counted("barn_put"), 0);
    give(1, C);
    close_scene();
}

static void free_many(void)
{
    give(0, C + 1);
}

static void a_sheaf_that_nobody_needs_any_more_goes_to_the_barn(void)
{
    refill_while(free_many, 2 * C);
    CHECK_EQ(object[2 * C], object[C]); /* the last one that was freed */
    CHECK_EQ(us_sheaf_size(sheaf(0, US_SPARE)), C);
    CHECK_EQ(us_sheaf_size(sheaf(0, US_MAIN)), 0);
    CHECK_EQ(full_in_barn(0), 1);
    CHECK_EQ(counted("barn_put"), 1);
    give(C + 1, C);
    close_scene();
}

int main(void)
{
    RUN(who_finds_the_sheaves_taken_goes_to_slabs);
    RUN(sheaves_go_back_to_their_cpu_from_elsewhere);
    RUN(sheaves_of_a_cpu_that_went_are_flushed);
    RUN(without_an_empty_sheaf_the_main_one_is_flushed);
    RUN(without_a_spare_nothing_failed_to_go_to_the_barn);
    RUN(a_cpu_without_memory_for_sheaves_works_past_them);
    RUN(a_short_refill_is_undone);
    RUN(a_bulk_call_is_all_or_nothing);
    RUN(a_refill_robs_other_nodes_of_what_they_need_not_keep);
    RUN(an_object_of_another_node_stays_in_the_sheaf);
    RUN(a_shrink_empties_mixed_sheaves);
    RUN(a_prefilled_sheaf_serves_without_fail);
    RUN(a_second_prefill_finds_no_spare);
    RUN(a_sheaf_larger_than_others_is_its_callers_alone);
    RUN(without_memory_nothing_is_prefilled);
    RUN(a_sheaf_filled_for_a_node_that_was_left_goes_to_its_barn);
    RUN(a_main_sheaf_that_got_objects_meanwhile_serves);
    RUN(a_sheaf_that_nobody_needs_any_more_goes_to_the_barn);
    return check_result();
}

// machines: both
/* slub call by call: counters, lists and addresses that follow from the rules of 2.6.25 to 2.6.36.
 *
 * The numbers used: 256 bytes, 16 objects to a slab of one page, min_partial = log2(256) = 8. A
 * slab of which all 16 were taken by fast and slow allocations is full and, once another replaced
 * it, on no list.
 */
#include "fixture_slub.h"

enum { N = 16, STRIDE = 256 };

static void a_new_slab_is_served_in_address_order(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N + 1];
    unsigned i;

    on_cpu(&s, 0);
    take(&s, object, 1);
    /* No CPU slab, nothing partial: a new slab, its first object for the caller, 15 for the CPU. */
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1);
    CHECK_EQ(slab_base(&s, object[0]), object[0]);
    CHECK_EQ(freelist_of(&s, 0), N - 1);
    CHECK_EQ(tunable(&s, "cpu_slabs"), 1);
    take(&s, object + 1, N - 1);
    MOVED(&s, "alloc_fastpath", N - 1);
    for (i = 0; i < N; i++)
        CHECK_EQ(object[i], (char *)object[0] + i * STRIDE);
    /* The CPU slab is tried first, which counts, and proves empty: full, on no list. */
    take(&s, object + N, 1);
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1, "alloc_refill", 1, "deactivate_full", 1);
    UNLISTED(&s, 0, 0);
    CHECK_EQ(fixture_stat(s.c, "alloc_slow"), 2);
    CHECK_EQ(fixture_stat(s.c, "alloc_fast"), N - 1);
    give(&s, object, N + 1);
    scene_close(&s);
}

static void frees_to_the_cpu_slab_are_fast_and_lifo(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[4], *again[2];

    on_cpu(&s, 0);
    take(&s, object, 4);
    settle(&s);
    give(&s, object, 2);
    MOVED(&s, "free_fastpath", 2);
    take(&s, again, 2);
    MOVED(&s, "alloc_fastpath", 2);
    CHECK_EQ(again[0], object[1]);
    CHECK_EQ(again[1], object[0]);
    give(&s, object, 4);
    scene_close(&s);
}

static void a_full_slab_goes_to_the_tail_and_leaves_when_empty(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[3 * N];
    char *a, *b;

    on_cpu(&s, 0);
    take(&s, object, 2 * N + 1); /* two full slabs and the CPU's */
    a = slab_base(&s, object[0]);
    b = slab_base(&s, object[N]);
    settle(&s);
    us_cache_free(s.c, object[N]);
    MOVED(&s, "free_slowpath", 1, "free_add_partial", 1);
    us_cache_free(s.c, object[0]);
    MOVED(&s, "free_slowpath", 1, "free_add_partial", 1);
    LISTED(&s, 0, 0, b, 1);
    LISTED(&s, 0, 1, a, 1);
    /* Already partial: nothing but the free; the last object takes it off the list and back,
     * min_partial is not asked. */
    give(&s, object + 1, N - 2);
    MOVED(&s, "free_slowpath", N - 2);
    LISTED(&s, 0, 1, a, N - 1);
    us_cache_free(s.c, object[N - 1]);
    MOVED(&s, "free_slowpath", 1, "free_remove_partial", 1, "free_slab", 1);
    LISTED(&s, 0, 0, b, 1);
    UNLISTED(&s, 0, 1);
    CHECK_EQ(tunable(&s, "partial"), 1);
    CHECK_EQ(tunable(&s, "slabs"), 2);
    give(&s, object + N + 1, N);
    scene_close(&s);
}

static void partial_slabs_are_taken_from_the_head(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[3 * N], *got[8];

    on_cpu(&s, 0);
    take(&s, object, 3 * N); /* the third is the CPU's, empty-handed */
    us_cache_free(s.c, object[N + 3]);
    us_cache_free(s.c, object[N + 7]);
    us_cache_free(s.c, object[5]);
    LISTED(&s, 0, 0, slab_base(&s, object[N]), 2);
    LISTED(&s, 0, 1, slab_base(&s, object[0]), 1);
    settle(&s);
    /* The CPU slab proves full; the head of the list becomes the CPU slab, last freed first. */
    take(&s, got, 1);
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1, "deactivate_full", 1, "alloc_from_partial",
          1);
    CHECK_EQ(got[0], object[N + 7]);
    CHECK_EQ(freelist_of(&s, 0), 1);
    LISTED(&s, 0, 0, slab_base(&s, object[0]), 1);
    take(&s, got + 1, 1);
    MOVED(&s, "alloc_fastpath", 1);
    CHECK_EQ(got[1], object[N + 3]);
    take(&s, got + 2, 1);
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1, "deactivate_full", 1, "alloc_from_partial",
          1);
    CHECK_EQ(got[2], object[5]);
    UNLISTED(&s, 0, 0);
    give(&s, object, 3 * N);
    scene_close(&s);
}

static void remote_frees_go_to_the_frozen_slab_and_come_back_by_refill(void)
{
    struct scene s = scene_open(&slub_two_nodes, false);
    void *object[N], *again[3];

    on_cpu(&s, 0);
    take(&s, object, N);
    settle(&s);
    on_cpu(&s, 1);
    give(&s, object, 3);
    MOVED(&s, "free_slowpath", 3, "free_frozen", 3);
    CHECK_EQ(fixture_stat(s.c, "free_remote"), 3); /* CPU 1 is of the other node */
    CHECK_EQ(fixture_stat(s.c, "free_slow"), 0);
    CHECK_EQ(freelist_of(&s, 0), 0);
    on_cpu(&s, 0);
    take(&s, again, 3);
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1, "alloc_fastpath", 2);
    CHECK_EQ(again[0], object[2]);
    CHECK_EQ(again[1], object[1]);
    CHECK_EQ(again[2], object[0]);
    give(&s, object, N);
    scene_close(&s);
}

static void a_flush_puts_the_cpu_slab_where_its_objects_tell(void)
{
    struct scene s = scene_open(&slub_two_nodes, false);
    void *object[N + 1];
    char *slab;

    on_cpu(&s, 0);
    take(&s, object, N - 2);
    slab = slab_base(&s, object[0]);
    settle(&s);
    us_allocator_flush(s.a);
    MOVED(&s, "cpuslab_flush", 1, "deactivate_to_head", 1);
    LISTED(&s, 0, 0, slab, 2);
    CHECK_EQ(tunable(&s, "cpu_slabs"), 0);
    /* Again the CPU's, both objects taken: full when flushed. */
    take(&s, object + N - 2, 2);
    MOVED(&s, "alloc_slowpath", 1, "alloc_from_partial", 1, "alloc_fastpath", 1);
    us_allocator_flush(s.a);
    MOVED(&s, "cpuslab_flush", 1, "deactivate_full", 1);
    UNLISTED(&s, 0, 0);
    /* Two freed elsewhere: one taken back by slow allocation, one by the CPU, none returned: tail.
     */
    us_cache_free(s.c, object[0]);
    us_cache_free(s.c, object[1]);
    take(&s, object, 2);
    MOVED(&s, "free_slowpath", 2, "free_add_partial", 1, "alloc_slowpath", 1, "alloc_from_partial",
          1, "alloc_fastpath", 1);
    on_cpu(&s, 1);
    us_cache_free(s.c, object[0]);
    MOVED(&s, "free_slowpath", 1, "free_frozen", 1);
    us_allocator_flush(s.a);
    MOVED(&s, "cpuslab_flush", 1, "deactivate_remote_frees", 1, "deactivate_to_tail", 1);
    LISTED(&s, 0, 0, slab, 1);
    us_allocator_flush(s.a); /* no CPU slab: nothing to flush */
    CHECK_EQ(fixture_stat(s.c, "flush"), 3);
    give(&s, object + 1, N - 1);
    scene_close(&s);
}

/* Slabs emptied through the CPU are kept at the tail while the list is below min_partial. */
static void an_emptied_cpu_slab_is_kept_below_min_partial(void)
{
    enum { KEPT = 8 };
    struct scene s = scene_open(&slub_one_node, false);
    void *object[KEPT][N], *one;
    unsigned i;

    on_cpu(&s, 0);
    CHECK_EQ(tunable(&s, "min_partial"), KEPT);
    for (i = 0; i < KEPT; i++) /* one object stays out of each, so the list fills */
        take(&s, object[i], N);
    us_allocator_flush(s.a);
    for (i = 0; i < KEPT; i++)
        give(&s, object[i], N - 1);
    CHECK_EQ(tunable(&s, "partial"), KEPT);
    settle(&s);
    /* Seven listed when the eighth, being the CPU's, is flushed with nothing in use: kept, at the
     * tail. */
    take(&s, &one, 1);
    us_cache_free(s.c, one);
    us_cache_free(s.c, object[0][N - 1]); /* the head was taken: it is the CPU slab now */
    MOVED(&s, "alloc_slowpath", 1, "alloc_from_partial", 1, "free_fastpath", 2);
    us_allocator_flush(s.a);
    MOVED(&s, "cpuslab_flush", 1, "deactivate_empty", 1);
    LISTED(&s, 0, KEPT - 1, slab_base(&s, one), N);
    /* Now eight are listed; a ninth that is emptied goes back. */
    for (i = 0; i < KEPT - 1; i++) /* seven slabs lend 15 objects each, the empty one 16 */
        take(&s, object[i + 1], N - 1);
    take(&s, object[0], N);
    take(&s, &one, 1); /* the ninth slab */
    us_allocator_flush(s.a);
    for (i = 0; i < KEPT; i++)
        us_cache_free(s.c, object[i][0]);
    CHECK_EQ(tunable(&s, "partial"), KEPT + 1);
    us_cache_free(s.c,
                  one); /* its slab was put back at the head, partial: emptied by a slow free */
    CHECK_EQ(tunable(&s, "partial"), KEPT);
    for (i = 0; i < KEPT; i++) { /* take what the eight have, then a ninth slab again */
        take(&s, object[i], 1);
    }
    take(&s, &one, 1);
    for (i = 0; i < KEPT; i++)
        us_cache_free(s.c, object[i][0]);
    CHECK_EQ(tunable(&s, "partial"), KEPT);
    us_cache_free(s.c, one);
    settle(&s);
    us_allocator_flush(s.a);
    MOVED(&s, "cpuslab_flush", 1, "deactivate_empty", 1, "free_slab", 1);
    CHECK_EQ(tunable(&s, "partial"), KEPT);
    for (i = 1; i < KEPT; i++) {
        give(&s, object[i] + 1, N - 2);
        us_cache_free(s.c, object[i][N - 1]);
    }
    give(&s, object[0] + 1, N - 1);
    CHECK_EQ(us_cache_live(s.c, NULL, 0), 0);
    scene_close(&s);
}

static void an_explicit_node_replaces_a_cpu_slab_of_another(void)
{
    struct scene s = scene_open(&slub_two_nodes, false);
    void *here, *there, *more;

    on_cpu(&s, 0);
    here = us_cache_alloc(s.c);
    settle(&s);
    there = us_cache_alloc_node(s.c, 0, 1);
    /* The CPU slab is of node 0: no refill is counted, it is deactivated with its 15 free objects.
     */
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1, "deactivate_to_head", 1);
    CHECK_EQ(us_cache_slab(s.c, there)->node, 1);
    CHECK_EQ(fixture_stat(s.c, "alloc_remote"), 1);
    CHECK_EQ(fixture_stat(s.c, "alloc_slow"), 1);
    LISTED(&s, 0, 0, slab_base(&s, here), N - 1);
    /* Any node will do: the CPU slab of node 1 serves, fast. */
    more = us_cache_alloc(s.c);
    MOVED(&s, "alloc_fastpath", 1);
    CHECK_EQ(us_cache_slab(s.c, more)->node, 1);
    us_cache_free(s.c, more);
    MOVED(&s, "free_fastpath", 1);
    /* The same node again is fast as well; node 0 finds its partial slab. */
    more = us_cache_alloc_node(s.c, 0, 1);
    MOVED(&s, "alloc_fastpath", 1);
    us_cache_free(s.c, more);
    settle(&s);
    more = us_cache_alloc_node(s.c, 0, 0);
    MOVED(&s, "alloc_slowpath", 1, "alloc_from_partial", 1, "deactivate_to_head", 1);
    CHECK_EQ(us_cache_slab(s.c, more)->node, 0);
    give(&s, (void *[]){here, there, more}, 3);
    scene_close(&s);
}

/* Fills node 1's list with more than min_partial slabs that have one object each. */
static unsigned fill_other_node(struct scene *s, void **object, unsigned slabs)
{
    unsigned i;

    on_cpu(s, 1);
    take(s, object, slabs * N);
    us_allocator_flush(s->a);
    for (i = 0; i < slabs; i++)
        us_cache_free(s->c, object[i * N]);
    on_cpu(s, 0);
    settle(s);
    return slabs;
}

static void other_nodes_are_robbed_above_min_partial_only(void)
{
    enum { SLABS = 9 }; /* one more than min_partial */
    struct scene s = scene_open(&slub_two_nodes, false);
    void *object[SLABS * N], *got[64];
    unsigned i, robbed = 0, n = 0;

    fill_other_node(&s, object, SLABS);
    CHECK_EQ(us_tunable_set(s.c, "remote_node_defrag_ratio", "0", NULL), US_OK);
    take(&s, got, 1);
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1);
    CHECK_EQ(us_cache_slab(s.c, got[0])->node, 0);
    n = 1;
    CHECK_EQ(us_tunable_set(s.c, "remote_node_defrag_ratio", "100", NULL), US_OK);
    /* 1000 of 1024 chances each time the CPU slab is empty: within three new slabs it comes. */
    for (i = 0; i < 3 * N && !robbed; i++, n++) {
        take(&s, got + n, 1);
        robbed = us_cache_slab(s.c, got[n])->node == 1;
    }
    CHECK(robbed);
    CHECK_EQ(fixture_stat(s.c, "alloc_remote"), 1);
    CHECK_EQ(tunable(&s, "partial"), SLABS - 1);
    /* Eight are left: not more than min_partial, so they are left alone. */
    settle(&s);
    take(&s, got + n, 1);
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1, "alloc_refill", 1, "deactivate_full", 1);
    CHECK_EQ(us_cache_slab(s.c, got[n])->node, 0);
    n++;
    give(&s, got, n);
    for (i = 0; i < SLABS; i++)
        give(&s, object + i * N + 1, N - 1);
    scene_close(&s);
}

static void an_explicit_node_and_thisnode_rob_nobody(void)
{
    enum { SLABS = 9 };
    struct scene s = scene_open(&slub_two_nodes, false);
    void *object[SLABS * N], *got[8];
    unsigned i;

    fill_other_node(&s, object, SLABS);
    for (i = 0; i < 8; i++) {
        got[i] = i % 2 ? us_cache_alloc_node(s.c, 0, 0)
                       : us_cache_alloc_node(s.c, US_THISNODE, US_ANY_NODE);
        CHECK_EQ(us_cache_slab(s.c, got[i])->node, 0);
        us_allocator_flush(s.a); /* so that the next is a slow one, from node 0's list */
    }
    CHECK_EQ(fixture_stat(s.c, "alloc_slab"), SLABS + 1);
    CHECK_EQ(tunable(&s, "partial"), SLABS + 1);
    give(&s, got, 8);
    for (i = 0; i < SLABS; i++)
        give(&s, object + i * N + 1, N - 1);
    scene_close(&s);
}

static void shrink_frees_empty_slabs_and_sorts_fullest_first(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[4][N], *one;
    unsigned i;

    on_cpu(&s, 0);
    for (i = 0; i < 4; i++)
        take(&s, object[i], N);
    us_allocator_flush(s.a);
    give(&s, object[0], 5);
    give(&s, object[1], 9);
    give(&s, object[2], 2);
    take(&s, &one,
         1); /* the head, slab 0, is the CPU's; emptied and flushed it is kept, at the tail */
    give(&s, object[0] + 5, N - 5);
    us_cache_free(s.c, one);
    us_allocator_flush(s.a);
    LISTED(&s, 0, 0, slab_base(&s, object[1][0]), 9);
    LISTED(&s, 0, 1, slab_base(&s, object[2][0]), 2);
    LISTED(&s, 0, 2, slab_base(&s, one), N);
    settle(&s);
    CHECK_EQ(us_cache_shrink(s.c), s.a->machine->page_size);
    MOVED(&s, NULL); /* neither the flush of no slab nor a slab that shrink gave back is counted */
    CHECK_EQ(fixture_stat(s.c, "slab_free"), 1);
    LISTED(&s, 0, 0, slab_base(&s, object[2][0]), 2);
    LISTED(&s, 0, 1, slab_base(&s, object[1][0]), 9);
    UNLISTED(&s, 0, 2);
    give(&s, object[1] + 9, N - 9);
    give(&s, object[2] + 2, N - 2);
    give(&s, object[3], N);
    scene_close(&s);
}

static void a_refused_order_falls_back_to_the_smallest(void)
{
    static const char *const names[] = {"min_objects"}, *const values[] = {"32"};
    struct scene s = scene_of(&slub_one_node, 256, false, names, values, 1);
    void *object[2 * N], *large;

    on_cpu(&s, 0);
    CHECK_EQ(tunable(&s, "order"), 1);
    us_memory_fail(s.a->memory, US_FAIL_PAGES, 0, 1);
    take(&s, object, N);
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1, "order_fallback", 1, "alloc_fastpath", N - 1);
    CHECK_EQ(tunable(&s, "total_objects"), N);
    large = us_cache_alloc(s.c);
    MOVED(&s, "alloc_slowpath", 1, "alloc_slab", 1, "alloc_refill", 1, "deactivate_full", 1);
    CHECK_EQ(tunable(&s, "total_objects"), 3 * N);
    give(&s, object, N);
    us_cache_free(s.c, large);
    scene_close(&s);
}

static void debug_takes_one_object_at_a_time_from_the_cpu_slab(void)
{
    struct scene s = scene_open(&slub_one_node, true);
    void *object[N + 1];
    unsigned i;

    on_cpu(&s, 0);
    take(&s, object, N);
    /* The first brings the slab; each later one finds it, which counts as a refill. */
    MOVED(&s, "alloc_slowpath", N, "alloc_slab", 1, "alloc_refill", N - 1);
    for (i = 0; i < N; i++)
        CHECK_EQ(object[i], (char *)object[0] + i * STRIDE);
    CHECK_EQ(tunable(&s, "cpu_slabs"), 1);
    CHECK_EQ(freelist_of(&s, 0), 0);
    us_cache_free(s.c, object[3]);
    MOVED(&s, "free_slowpath", 1, "free_frozen", 1);
    object[N] = us_cache_alloc(s.c);
    CHECK_EQ(object[N], object[3]);
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1);
    object[3] = us_cache_alloc(s.c);
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1, "deactivate_full", 1, "alloc_slab", 1);
    give(&s, object, N + 1);
    scene_close(&s);
}

static void bulk_calls_are_single_calls(void)
{
    struct scene bulk = scene_open(&slub_one_node, false),
                 single = scene_open(&slub_one_node, false);
    void *object[2][5 * N];
    unsigned i;

    on_cpu(&bulk, 0);
    CHECK_EQ(us_cache_alloc_bulk(bulk.c, 0, US_ANY_NODE, 5 * N, object[0]), 5 * N);
    us_cache_free_bulk(bulk.c, 4 * N + 3, object[0]);
    us_machine_on_cpu(bulk.a->machine, -1, NULL);
    on_cpu(&single, 0);
    take(&single, object[1], 5 * N);
    give(&single, object[1], 4 * N + 3);
    for (i = 0; i < SLUB_COUNTERS; i++)
        CHECK_EQ(fixture_stat(bulk.c, slub_counters[i]), fixture_stat(single.c, slub_counters[i]));
    give(&single, object[1] + 4 * N + 3, N - 3);
    scene_close(&single);
    us_cache_free_bulk(bulk.c, N - 3, object[0] + 4 * N + 3);
    scene_close(&bulk);
}

static void a_constructed_object_keeps_its_contents_while_free(void)
{
    struct us_allocator *a = fixture_open("slub", &slub_one_node, 0, false);
    const struct us_cache_options o = {
        .name = "constructed", .size = 40, .pattern = "pattern", .pattern_bytes = 8};
    struct us_cache *c = us_cache_create(a, &o, NULL);
    char *object;
    unsigned i;

    REQUIRE(c != NULL);
    CHECK_EQ(c->geometry.link, 40); /* behind the object, which makes it a word longer */
    CHECK_EQ(c->geometry.stride, 48);
    object = us_cache_alloc(c);
    us_cache_free(c, object);
    for (i = 0; i < 40; i += 8)
        CHECK(memcmp(object + i, "pattern", 8) == 0);
    fixture_close(a);
}

int main(void)
{
    RUN(a_new_slab_is_served_in_address_order);
    RUN(frees_to_the_cpu_slab_are_fast_and_lifo);
    RUN(a_full_slab_goes_to_the_tail_and_leaves_when_empty);
    RUN(partial_slabs_are_taken_from_the_head);
    RUN(remote_frees_go_to_the_frozen_slab_and_come_back_by_refill);
    RUN(a_flush_puts_the_cpu_slab_where_its_objects_tell);
    RUN(an_emptied_cpu_slab_is_kept_below_min_partial);
    RUN(an_explicit_node_replaces_a_cpu_slab_of_another);
    RUN(other_nodes_are_robbed_above_min_partial_only);
    RUN(an_explicit_node_and_thisnode_rob_nobody);
    RUN(shrink_frees_empty_slabs_and_sorts_fullest_first);
    RUN(a_refused_order_falls_back_to_the_smallest);
    RUN(debug_takes_one_object_at_a_time_from_the_cpu_slab);
    RUN(bulk_calls_are_single_calls);
    RUN(a_constructed_object_keeps_its_contents_while_free);
    return check_result();
}

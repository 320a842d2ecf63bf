// machines: both
/* slqb where what the rules say meets closed regions, words in other hands, signal handlers (played
 * by a call inside a slow path, which finds the same marks), short memory and misuse.
 *
 * Objects have 1024 bytes, four to a slab; hiwater 6, freebatch 3. */
#include "fixture_cache.h"
#include "policy/slqb.h"

enum { N = 4, SIZE = 1024 };

static const unsigned two_nodes_map[] = {0, 1}, one_node_map[] = {0, 0};
static const struct us_topology two_nodes = {
    .ncpus = 2, .nnodes = 2, .ndomains = 2, .cpu_node = two_nodes_map, .cpu_domain = two_nodes_map};
static const struct us_topology one_node = {
    .ncpus = 2, .nnodes = 1, .ndomains = 1, .cpu_node = one_node_map, .cpu_domain = one_node_map};

static struct us_allocator *a;
static struct us_cache *c;

static void begin(const struct us_topology *t, uint64_t memory)
{
    static const char *const names[] = {"hiwater", "freebatch"}, *const values[] = {"6", "3"};
    const struct us_cache_options o = {.name = "scene", .size = SIZE};

    a = fixture_open("slqb", t, memory, false);
    c = us_cache_create_with(a, &o, names, values, 2, NULL);
    REQUIRE(c != NULL);
}

static void on_cpu(int cpu)
{
    REQUIRE(us_machine_on_cpu(a->machine, cpu, NULL) >= 0);
}

static void end(void)
{
    us_machine_on_cpu(a->machine, -1, NULL);
    fixture_close(a);
}

static void take(void **object, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        REQUIRE((object[i] = us_cache_alloc(c)) != NULL);
}

static void give(void *const *object, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        us_cache_free(c, object[i]);
}

static uint64_t counted(const char *name)
{
    return fixture_stat(c, name);
}

static struct us_slqb_list *list_of(unsigned cpu)
{
    return &us_slqb_cpu_of(c, cpu)->list;
}

/* ---- counts -------------------------------------------------------------------------- */

/* The header counts to 511; the next pop is a slow one that pops all the same, and counts so. */
static void pops_beyond_the_headers_width_are_counted(void)
{
    enum { PAIRS = 3 * US_COUNTED_POPS_WRAP };
    void *object[2];

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 2);
    us_cache_free(c, object[0]);
    for (unsigned i = 0; i < PAIRS; i++) {
        CHECK_EQ(us_cache_alloc(c), object[0]);
        us_cache_free(c, object[0]);
    }
    CHECK_EQ(counted("alloc_fast"), PAIRS);
    CHECK_EQ(counted("alloc_slow"), 2);
    CHECK_EQ(counted("free_fast"), PAIRS + 1);
    CHECK_EQ(counted("alloc"), PAIRS + 2);
    us_cache_free(c, object[1]);
    end();
}

/* ---- shrink -------------------------------------------------------------------------- */

/* The original's is one trim: claim, one freebatch, rlist home. (us_cache_shrink drains before.) */
static void shrink_trims_every_list_of_the_node_once(void)
{
    void *object[6], *theirs[2];
    struct us_flight f;

    begin(&two_nodes, 0);
    on_cpu(1);
    take(theirs, 2);
    on_cpu(0);
    take(object, 6);
    give(object, 5);
    give(theirs, 2);
    us_flight_enter(a->machine, &f);
    /* 4, 3 and 2 go back; slab 0 has two in stock yet, slab 1 one in use. */
    CHECK_EQ(c->policy->shrink(c, &f, 0, false), 0);
    CHECK_EQ(us_slqb_size(list_of(0)), 2);
    CHECK_EQ(us_slqb_nr_remote(list_of(1)), 2);
    /* The other node: two are claimed, both go back, and their slab. */
    CHECK_EQ(c->policy->shrink(c, &f, 1, false), 4096);
    us_flight_leave(&f);
    CHECK_EQ(us_slqb_size(list_of(1)), 0);
    CHECK_EQ(counted("flush_free_list"), 2);
    CHECK_EQ(counted("flush_free_list_objects"), 5);
    CHECK_EQ(counted("claim_remote_list_objects"), 2);
    CHECK_EQ(counted("flush_rfree_list"), 1);
    CHECK_EQ(us_cache_alloc(c), object[1]);
    give((void *[]){object[1], object[5]}, 2);
    end();
}

/* ---- words in other hands ------------------------------------------------------------ */

static void who_finds_the_free_list_taken_goes_to_slabs(void)
{
    struct us_slqb_cpu *x;
    struct us_flight f;
    void *object[6], *more;

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 6);
    us_cache_free(c, object[0]);
    us_flight_enter(a->machine, &f);
    x = us_slqb_own(c, &f, US_SLQB_FREELIST);
    us_flight_leave(&f); /* as if this thread was preempted there: others on the CPU go on */
    REQUIRE(x == us_slqb_cpu_of(c, 0));
    more = us_cache_alloc(c);
    CHECK_EQ(counted("alloc_slow"), 7);
    us_cache_free(c, more);
    us_cache_free(c, object[1]);
    CHECK_EQ(counted("free_slow"), 2);
    CHECK_EQ(us_slqb_size(&x->list), 1);
    us_flight_enter(a->machine, &f);
    us_slqb_disown(c, &f, US_SLQB_FREELIST, x);
    us_flight_leave(&f);
    CHECK_EQ(us_cache_alloc(c), object[0]);
    CHECK_EQ(counted("alloc_fast"), 1);
    give((void *[]){object[0], object[2], object[3], object[4], object[5]}, 5);
    CHECK_EQ(counted("free_fast"), 6);
    end();
}

/* A list that could not be given back is taken up by the next slow path of its CPU. */
static void a_parked_list_is_taken_up(void)
{
    struct us_slqb_cpu *x;
    struct us_flight f;
    void *object[5], *region;

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 5);
    give(object, 2);
    us_flight_enter(a->machine, &f);
    x = us_slqb_own(c, &f, US_SLQB_FREELIST);
    REQUIRE(x != NULL);
    REQUIRE(us_local_close(&c->local, &f, 0, false, &region));
    if (c->local.mode != US_MODE_CONTROL) {
        us_local_open(&c->local, &f, 0);
        on_cpu(1);
        us_slqb_disown(c, &f, US_SLQB_FREELIST, x); /* moved to another CPU meanwhile */
        on_cpu(0);
    }
    us_flight_leave(&f);
    CHECK_EQ(x->parked[US_SLQB_FREELIST], 1);
    CHECK(us_local_word(&c->local, 0, US_SLQB_FREELIST) == NULL);
    fixture_balance(a); /* what it holds is still seen */
    us_cache_free(c, object[2]);
    CHECK_EQ(x->parked[US_SLQB_FREELIST], 0);
    CHECK(us_local_word(&c->local, 0, US_SLQB_FREELIST) != NULL);
    CHECK_EQ(us_slqb_size(&x->list), 3);
    take(object, 3);
    CHECK_EQ(counted("alloc_fast"), 3);
    CHECK_EQ(counted("free_fast"), 3);
    give(object, 5);
    end();
}

/* The same, and a flush comes first. */
static void a_parked_list_is_flushed(void)
{
    struct us_slqb_cpu *x;
    struct us_flight f;
    void *object[2];

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 2);
    give(object, 1);
    us_flight_enter(a->machine, &f);
    x = us_slqb_own(c, &f, US_SLQB_FREELIST);
    REQUIRE(x != NULL);
    on_cpu(1);
    us_slqb_disown(c, &f, US_SLQB_FREELIST, x);
    us_flight_leave(&f);
    us_allocator_flush(a);
    CHECK_EQ(us_slqb_size(&x->list), 0);
    CHECK_EQ(x->parked[US_SLQB_FREELIST], 0);
    on_cpu(0);
    us_cache_free(c, object[1]);
    CHECK_EQ(counted("free_fast"), 2);
    end();
}

static void a_taken_rlist_sends_each_object_home_by_itself(void)
{
    struct us_slqb_cpu *x;
    struct us_flight f;
    void *object[3], *theirs;

    begin(&two_nodes, 0);
    on_cpu(1);
    take(&theirs, 1);
    on_cpu(0);
    take(object, 3);
    on_cpu(1);
    us_flight_enter(a->machine, &f);
    x = us_slqb_own(c, &f, US_SLQB_RLIST);
    us_flight_leave(&f);
    REQUIRE(x == us_slqb_cpu_of(c, 1));
    give(object, 2);
    CHECK_EQ(counted("flush_rfree_list"), 2);
    CHECK_EQ(us_slqb_nr_remote(list_of(0)), 2);
    us_flight_enter(a->machine, &f);
    us_slqb_disown(c, &f, US_SLQB_RLIST, x);
    us_flight_leave(&f);
    us_cache_free(c, object[2]);
    CHECK_EQ(x->rlist.chain.n, 1);
    CHECK_EQ(counted("free_remote"), 3);
    us_cache_free(c, theirs);
    end();
}

static void who_finds_the_region_closed_does_not_wait(void)
{
    struct us_flight f;
    void *object[5], *got, *region;

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 5);
    us_cache_free(c, object[0]);
    us_flight_enter(a->machine, &f);
    REQUIRE(us_local_close(&c->local, &f, 0, false, &region));
    us_flight_leave(&f); /* the control lock stays: nothing below asks for it */
    got = us_cache_alloc(c);
    CHECK_EQ(us_cache_slab(c, got), us_cache_slab(c, object[4]));
    us_cache_free(c, got);
    CHECK_EQ(counted("free_slow"), 1);
    us_flight_enter(a->machine, &f);
    us_local_open(&c->local, &f, 0);
    us_flight_leave(&f);
    CHECK_EQ(us_cache_alloc(c), object[0]);
    give(object, 5);
    end();
}

/* ---- inside a slow path -------------------------------------------------------------- */

static void a_signal_handler_works_on_the_open_list(void)
{
    struct us_flight f;
    void *object[5], *got;

    begin(&one_node, 0);
    on_cpu(0);
    take(object, 5);
    us_flight_enter(a->machine, &f);
    us_cache_free(c, object[0]);
    got = us_cache_alloc(c);
    CHECK_EQ(got, object[0]);
    got = us_cache_alloc(c); /* the list is empty: from the partial slab */
    CHECK_EQ(us_cache_slab(c, got), us_cache_slab(c, object[4]));
    us_flight_leave(&f);
    us_cache_free(c, got);
    give(object, 5);
    end();
}

#ifndef US_MODEL /* there are no signals, and where nobody else runs a held lock is a mistake */
static void a_free_that_a_signal_handler_cannot_do_waits(void)
{
    struct us_account account;
    struct us_slqb_cpu *x;
    struct us_flight f;
    void *object[6], *theirs;

    begin(&two_nodes, 0);
    on_cpu(1);
    take(&theirs, 1);
    on_cpu(0);
    take(object, 6);
    us_flight_enter(a->machine, &f);
    x = us_slqb_own(c, &f, US_SLQB_FREELIST);
    REQUIRE(x != NULL);
    us_cache_free(c, object[0]); /* its list is what was interrupted */
    us_cache_free(c, theirs);    /* and of another node */
    us_slqb_disown(c, &f, US_SLQB_FREELIST, x);
    us_flight_leave(&f);
    CHECK_EQ(counted("free_slow"), 2);
    us_cache_account(c, &account);
    CHECK_EQ(account.queued_objects, 2);
    CHECK_EQ(account.live_objects, 5);
    /* The next slow path of each node brings them to their slabs. */
    us_allocator_flush(a);
    us_cache_account(c, &account);
    CHECK_EQ(account.queued_objects, 0);
    CHECK_EQ(account.slabs, 2);
    give(object + 1, 5);
    end();
}

static void an_allocation_that_cannot_have_the_lock_fails_and_leaves_nothing(void)
{
    struct us_flight f;
    void *object[N], *got;

    begin(&one_node, 0);
    on_cpu(0);
    take(object, N);
    us_flight_enter(a->machine, &f);
    REQUIRE(us_lock_take(&f, &list_of(0)->page_lock));
    got = us_cache_alloc(c);
    us_lock_drop(&f, &list_of(0)->page_lock);
    us_flight_leave(&f);
    CHECK(got == NULL);
    CHECK_EQ(counted("slab_new"), 2);
    CHECK_EQ(counted("slab_free"), 1);
    CHECK_EQ(counted("flush_slab_free"), 0);
    give(object, N);
    end();
}
#endif

/* ---- short of memory ----------------------------------------------------------------- */

static void a_cpu_without_lists_lives_on_its_nodes(void)
{
    void *object[2];

    begin(&one_node, 0);
    on_cpu(0);
    us_memory_fail(a->memory, US_FAIL_META, 0, 1);
    take(object, 1);
    CHECK(us_slqb_cpu_of(c, 0) == NULL);
    CHECK_EQ(us_slqb_owner(us_cache_slab(c, object[0])), &us_slqb_of(c)->node[0].list);
    CHECK_EQ(counted("alloc_slow"), 1);
    us_memory_fail(a->memory, US_FAIL_META, 0, 1);
    us_cache_free(c, object[0]);
    CHECK_EQ(counted("free_slow"), 1);
    take(object, 2); /* there is memory again */
    CHECK(us_slqb_cpu_of(c, 0) != NULL);
    give(object, 2);
    end();
}

/* No pages at all: an object of a partial slab of another CPU, of a node that is allowed. */
static void when_pages_fail_other_lists_partial_slabs_serve(void)
{
    void *object[5];

    begin(&two_nodes, 0);
    on_cpu(1);
    take(object, 1);
    on_cpu(0);
    take(object + 1, 1);
    us_memory_fail(a->memory, US_FAIL_PAGES, UINT32_MAX, 0);
    on_cpu(1);
    object[2] = us_cache_alloc_node(c, US_THISNODE, 0); /* the node's own list has no slab */
    CHECK_EQ(object[2], (char *)object[1] + SIZE);
    take(object + 3, 2);
    CHECK_EQ(us_cache_slab(c, object[3]), us_cache_slab(c, object[0]));
    CHECK_EQ(us_cache_slab(c, object[4]), us_cache_slab(c, object[0]));
    CHECK_EQ(counted("alloc_slow"), 4);
    CHECK_EQ(counted("alloc_remote"), 1);
    us_memory_fail(a->memory, US_FAIL_PAGES, 0, 0);
    give(object, 5);
    end();
}

/* ---- misuse -------------------------------------------------------------------------- */

static void close_damaged(void)
{
    struct us_account account;

    us_machine_on_cpu(a->machine, -1, NULL);
    us_cache_account(c, &account);
    CHECK_EQ(account.reserved,
             account.live + account.queued + account.free_in_slabs + account.waste);
    CHECK_EQ(us_allocator_destroy(a, true, NULL), US_OK);
}

static void a_circle_is_found_at_the_flush(void)
{
    void *object[N + 1];

    begin(&one_node, 0);
    on_cpu(0);
    take(object, N + 1);
    give(object, 3);
    us_cache_free(c, object[1]); /* twice: 1 -> 2 -> 1 */
    CHECK_EQ(us_misuse_count(c), 0);
    us_allocator_flush(a);
    CHECK_EQ(us_misuse_count(c), 1);
    /* The two that could be reached are in their slab once; the list is empty. */
    CHECK_EQ(us_slqb_size(list_of(0)), 0);
    CHECK_EQ(us_cache_slab(c, object[0])->free, 2);
    take(object, 3);
    close_damaged();
}

static void a_write_after_free_is_found(void)
{
    void *object[N + 1];

    begin(&one_node, 0);
    on_cpu(0);
    take(object, N + 1);
    give(object, 3);
    memset(object[1], 0x5a, 8); /* a place far away */
    us_allocator_flush(a);
    CHECK_EQ(us_misuse_count(c), 1);
    CHECK_EQ(us_cache_slab(c, object[0])->free, 2);
    take(object, 2);
    CHECK(object[0] != object[1]);
    close_damaged();
}

static void a_second_free_behind_another_list_is_found_at_the_slab(void)
{
    void *object[N + 1];

    begin(&two_nodes, 0);
    on_cpu(0);
    take(object, N + 1);
    us_cache_free(c, object[0]);
    us_allocator_flush(a);
    us_cache_free(c, object[0]);
    us_allocator_flush(a);
    CHECK_EQ(us_misuse_count(c), 1);
    CHECK_EQ(us_cache_slab(c, object[0])->free, 1);
    close_damaged();
}

static void what_is_no_object_of_the_cache_gets_no_link(void)
{
    struct us_cache *other;
    void *object[2], *strange;
    uint64_t before[2];

    begin(&one_node, 0);
    other = fixture_cache(a, "other", SIZE, 0);
    on_cpu(0);
    take(object, 2);
    strange = us_cache_alloc(other);
    memcpy(before, strange, sizeof(before));
    us_cache_free(c, strange);
    CHECK(memcmp(before, strange, sizeof(before)) == 0);
    us_cache_free(c, (char *)object[0] + (1 << 26)); /* no slab there, perhaps no memory */
    us_cache_free(c, &strange);                      /* outside */
    us_cache_free(c, NULL);
    CHECK_EQ(us_misuse_count(c), 3);
    us_cache_free_bulk(c, 1, &(void *){(char *)object[0] + 8});
    CHECK_EQ(us_misuse_count(c), 4);
    CHECK_EQ(us_slqb_size(list_of(0)), 0);
    CHECK_EQ(counted("free"), 0);
    us_cache_free(other, strange);
    give(object, 2);
    close_damaged();
}

int main(void)
{
    RUN(pops_beyond_the_headers_width_are_counted);
    RUN(shrink_trims_every_list_of_the_node_once);
    RUN(who_finds_the_free_list_taken_goes_to_slabs);
    RUN(a_parked_list_is_taken_up);
    RUN(a_parked_list_is_flushed);
    RUN(a_taken_rlist_sends_each_object_home_by_itself);
    RUN(who_finds_the_region_closed_does_not_wait);
    RUN(a_signal_handler_works_on_the_open_list);
#ifndef US_MODEL
    RUN(a_free_that_a_signal_handler_cannot_do_waits);
    RUN(an_allocation_that_cannot_have_the_lock_fails_and_leaves_nothing);
#endif
    RUN(a_cpu_without_lists_lives_on_its_nodes);
    RUN(when_pages_fail_other_lists_partial_slabs_serve);
    RUN(a_circle_is_found_at_the_flush);
    RUN(a_write_after_free_is_found);
    RUN(a_second_free_behind_another_list_is_found_at_the_slab);
    RUN(what_is_no_object_of_the_cache_gets_no_link);
    return check_result();
}

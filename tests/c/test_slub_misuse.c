// machines: both
/* What slub does about misuse that reaches its slabs: it is reported, what it damaged is kept out
 * of circulation, and everything else goes on. Objects have 256 bytes, slabs 16 of them. */
#include "fixture_slub.h"

enum { N = 16 };

static uint64_t errors_of(const struct scene *s, enum us_misuse_kind kind)
{
    struct us_misuse found[16];
    size_t n = us_misuse_list(s->c, found, 16), i;
    uint64_t of_kind = 0;
    struct us_validation v;

    for (i = 0; i < n && i < 16; i++)
        of_kind += found[i].kind == kind;
    CHECK_EQ(us_cache_validate(s->c, &v, NULL), US_OK);
    CHECK((v.errors > 0) == (us_misuse_count(s->c) > 0));
    us_validation_free(&v);
    return of_kind;
}

/* Everything was freed: bytes add up, nothing is live, and the allocator closes without force. */
static void close_damaged(struct scene *s)
{
    struct us_account account;
    struct us_error e = {.status = US_OK};

    us_machine_on_cpu(s->a->machine, -1, NULL);
    us_cache_account(s->c, &account);
    CHECK_EQ(account.live_objects, 0);
    CHECK_EQ(account.reserved,
             account.live + account.queued + account.free_in_slabs + account.waste);
    CHECK_EQ(us_allocator_destroy(s->a, false, &e), US_OK);
    if (e.status != US_OK)
        fprintf(stderr, "%s\n", e.text);
}

static void a_write_after_free_is_found_when_the_slab_is_loaded(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[3 * N], *got[2];
    unsigned i;

    on_cpu(&s, 0);
    take(&s, object, 2 * N + 1);
    us_cache_free(s.c, object[1]);
    us_cache_free(s.c, object[0]); /* its link leads to object 1 */
    us_cache_free(s.c, object[N]);
    take(&s, object + 2 * N + 1, N - 1); /* the CPU slab is used up */
    memset(object[0], 0x5a, 8);
    settle(&s);
    take(&s, got, 1);
    /* The damaged slab was the list's head; it is passed over and the next one serves. */
    MOVED(&s, "alloc_slowpath", 1, "alloc_refill", 1, "deactivate_full", 1, "alloc_from_partial",
          2);
    CHECK_EQ(got[0], object[N]);
    CHECK_EQ(us_misuse_count(s.c), 1);
    CHECK_EQ(errors_of(&s, US_MISUSE_LIST), 1);
    UNLISTED(&s, 0, 0);
    for (i = 2; i < 3 * N; i++) /* the damaged slab's others too */
        us_cache_free(s.c, object[i]);
    CHECK_EQ(us_misuse_count(s.c), 1);
    take(&s, got, 2);
    CHECK(us_cache_slab(s.c, got[0]) != us_cache_slab(s.c, object[0]));
    give(&s, got, 2);
    close_damaged(&s);
}

static void a_write_after_free_is_found_when_the_cpu_slab_is_flushed(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[4], *other;

    on_cpu(&s, 0);
    take(&s, object, 4);
    us_cache_free(s.c, object[2]);
    us_cache_free(s.c, object[1]);
    memcpy(object[1], &(void *){(char *)object[3] + 8}, 8); /* no object start */
    us_allocator_flush(s.a);
    CHECK_EQ(us_misuse_count(s.c), 1);
    CHECK_EQ(errors_of(&s, US_MISUSE_LIST), 1);
    UNLISTED(&s, 0, 0);
    other = us_cache_alloc(s.c);
    CHECK(us_cache_slab(s.c, other) != us_cache_slab(s.c, object[0]));
    us_cache_free(s.c, other);
    us_cache_free(s.c, object[0]);
    us_cache_free(s.c, object[3]);
    close_damaged(&s);
}

static void a_fast_double_free_is_found_at_the_flush(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[3], *twice[4];

    on_cpu(&s, 0);
    take(&s, object, 3);
    us_cache_free(s.c, object[1]);
    us_cache_free(s.c, object[1]); /* now its link leads to itself */
    take(&s, twice, 4);
    CHECK_EQ(twice[0], object[1]);
    CHECK_EQ(twice[3], object[1]);
    CHECK_EQ(us_misuse_count(s.c), 0);
    us_allocator_flush(s.a);
    CHECK_EQ(us_misuse_count(s.c), 1);
    CHECK_EQ(errors_of(&s, US_MISUSE_LIST), 1);
    /* Seven were served, as the counters say, though not seven objects are out; how many were
     * pushed on a chain that leads in a circle, nobody can tell. */
    CHECK_EQ(fixture_allocs(s.c), 7);
    us_machine_on_cpu(s.a->machine, -1, NULL);
    CHECK_EQ(us_allocator_destroy(s.a, true, NULL), US_OK);
}

static void more_pops_than_objects_are_counted_right(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N], *again[40];

    on_cpu(&s, 0);
    take(&s, object, N); /* freelist empty */
    us_cache_free(s.c, object[1]);
    us_cache_free(s.c, object[1]);
    take(&s, again, 40);
    us_allocator_flush(s.a);
    CHECK_EQ(fixture_allocs(s.c), N + 40);
    CHECK_EQ(us_misuse_count(s.c), 1);
    us_machine_on_cpu(s.a->machine, -1, NULL);
    CHECK_EQ(us_allocator_destroy(s.a, true, NULL), US_OK);
}

static void a_slow_double_free_is_found_at_the_call(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N + 1];

    on_cpu(&s, 0);
    take(&s, object, N + 1);
    us_cache_free(s.c, object[4]);
    settle(&s);
    us_cache_free(s.c, object[4]);
    MOVED(&s, NULL); /* refused: it stays free once */
    CHECK_EQ(errors_of(&s, US_MISUSE_DOUBLE_FREE), 1);
    LISTED(&s, 0, 0, slab_base(&s, object[0]), 1);
    give(&s, object, 4);
    give(&s, object + 5, N - 4);
    close_damaged(&s);
}

static void what_is_no_object_of_the_cache_is_kept_out(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    const struct us_cache_options o = {.name = "other", .size = 256};
    struct us_cache *other = us_cache_create(s.a, &o, NULL);
    char outside[256], *mine = us_cache_alloc(s.c), *theirs = us_cache_alloc(other);
    void *big = us_kmalloc(s.a, 1 << 20, 0, US_ANY_NODE);

    settle(&s);
    us_cache_free(s.c, outside);
    us_cache_free(s.c, theirs);
    us_cache_free(s.c, big);
    us_cache_free(s.c, NULL);
    MOVED(&s, NULL);
    CHECK_EQ(us_misuse_count(s.c), 3);
    CHECK_EQ(errors_of(&s, US_MISUSE_OUTSIDE), 1);
    CHECK_EQ(us_misuse_count(other), 0);
    us_cache_free(other, theirs);
    us_kfree(s.a, big);
    us_cache_free(s.c, mine);
    close_damaged(&s);
}

/* A pointer into an object, of a slab that is not the CPU's, so that it reaches the slow path. */
static void the_middle_of_an_object_is_kept_out(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N + 1];

    on_cpu(&s, 0);
    take(&s, object, N + 1);
    settle(&s);
    us_cache_free(s.c, (char *)object[2] + 16);
    MOVED(&s, NULL);
    CHECK_EQ(errors_of(&s, US_MISUSE_NO_OBJECT), 1);
    give(&s, object, N + 1);
    close_damaged(&s);
}

int main(void)
{
    RUN(a_write_after_free_is_found_when_the_slab_is_loaded);
    RUN(a_write_after_free_is_found_when_the_cpu_slab_is_flushed);
    RUN(a_fast_double_free_is_found_at_the_flush);
    RUN(more_pops_than_objects_are_counted_right);
    RUN(a_slow_double_free_is_found_at_the_call);
    RUN(what_is_no_object_of_the_cache_is_kept_out);
    RUN(the_middle_of_an_object_is_kept_out);
    return check_result();
}

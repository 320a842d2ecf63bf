// machines: native
/* slub where several things happen at once: regions closed by another thread, signal handlers
 * (played by a call inside a slow path, which finds the same marks), and threads that pass objects
 * on while flushes and shrinks run. */
#include <pthread.h>

#include "fixture_slub.h"
#include "policy/slub.h"

enum { N = 16 };

/* ---- a closed region ----------------------------------------------------------------- */

struct visitor {
    const struct scene *s;
    void *got;
};

static void *alloc_and_free_on_cpu_0(void *argument)
{
    struct visitor *v = argument;

    on_cpu(v->s, 0);
    v->got = us_cache_alloc(v->s->c);
    us_cache_free(v->s->c, v->got);
    v->got = us_cache_alloc(v->s->c);
    return NULL;
}

static void who_finds_the_region_closed_takes_one_object_of_a_listed_slab(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N + 2], *region;
    struct visitor v = {.s = &s};
    struct us_flight f;
    pthread_t thread;

    on_cpu(&s, 0);
    take(&s, object, N + 2); /* a full slab, and the CPU's with 14 free objects */
    give(&s, object, 2);
    settle(&s);
    us_flight_enter(s.a->machine, &f);
    REQUIRE(us_local_close(&s.c->local, &f, 0, false, &region));
    pthread_create(&thread, NULL, alloc_and_free_on_cpu_0, &v);
    pthread_join(thread, NULL); /* it does not wait for the region */
    us_local_open(&s.c->local, &f, 0);
    us_flight_leave(&f);
    /* Last freed first, from the listed slab, which stays listed and is no CPU slab. */
    MOVED(&s, "alloc_slowpath", 2, "free_slowpath", 1);
    CHECK_EQ(v.got, object[1]);
    LISTED(&s, 0, 0, slab_base(&s, object[0]), 1);
    CHECK_EQ(freelist_of(&s, 0), N - 2);
    us_cache_free(s.c, v.got);
    give(&s, object + 2, N);
    scene_close(&s);
}

static void a_closed_region_and_no_listed_slab_bring_a_new_one(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *first, *region;
    struct visitor v = {.s = &s};
    struct us_flight f;
    pthread_t thread;

    on_cpu(&s, 0);
    take(&s, &first, 1);
    settle(&s);
    us_flight_enter(s.a->machine, &f);
    REQUIRE(us_local_close(&s.c->local, &f, 0, false, &region));
    pthread_create(&thread, NULL, alloc_and_free_on_cpu_0, &v);
    pthread_join(thread, NULL);
    us_local_open(&s.c->local, &f, 0);
    us_flight_leave(&f);
    /* The new slab is listed; the free empties it, so it goes back, and a second one comes. */
    MOVED(&s, "alloc_slowpath", 2, "alloc_slab", 2, "free_slowpath", 1, "free_remove_partial", 1,
          "free_slab", 1);
    LISTED(&s, 0, 0, slab_base(&s, v.got), N - 1);
    give(&s, (void *[]){first, v.got}, 2);
    scene_close(&s);
}

/* ---- inside a slow path -------------------------------------------------------------- */

static void a_free_that_cannot_have_the_slab_waits_for_the_next_slow_path(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N + 1];
    struct us_account account;
    struct us_slab *slab;
    struct us_flight f;

    on_cpu(&s, 0);
    take(&s, object, N + 1);
    slab = us_cache_slab(s.c, object[0]);
    settle(&s);
    us_flight_enter(s.a->machine, &f);
    REQUIRE(us_bytelock_take(&f, &slab->lock));
    us_cache_free(s.c, object[0]);
    us_cache_free(s.c, object[1]);
    us_bytelock_drop(&f, &slab->lock);
    us_flight_leave(&f);
    MOVED(&s, NULL);
    us_cache_account(s.c, &account);
    CHECK_EQ(account.queued_objects, 2 + N - 1); /* beside the CPU's freelist */
    us_cache_free(s.c, object[2]);
    MOVED(&s, "free_slowpath", 3, "free_add_partial", 1);
    LISTED(&s, 0, 0, slab_base(&s, object[0]), 3);
    give(&s, object + 3, N - 2);
    scene_close(&s);
}

static void an_allocation_that_cannot_have_the_list_fails_and_leaves_nothing(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[N], *got;
    struct us_partial *node = us_slub_of(s.c)->node;
    struct us_flight f;

    on_cpu(&s, 0);
    take(&s, object, N);
    settle(&s);
    us_flight_enter(s.a->machine, &f);
    REQUIRE(us_lock_take(&f, &node->lock));
    got = us_cache_alloc(s.c);
    us_lock_drop(&f, &node->lock);
    us_flight_leave(&f);
    CHECK(got == NULL);
    MOVED(&s, "alloc_slab", 1, "free_slab", 1);
    CHECK_EQ(tunable(&s, "slabs"), 1);
    give(&s, object, N);
    scene_close(&s);
}

static void inside_a_slow_path_the_cpu_slab_is_left_alone(void)
{
    struct scene s = scene_open(&slub_one_node, false);
    void *object[2 * N], *got[3];
    struct us_flight f;

    on_cpu(&s, 0);
    take(&s, object, 2 * N - 1); /* one is left on the freelist */
    us_cache_free(s.c, object[0]);
    us_cache_free(s.c, object[1]);
    settle(&s);
    us_flight_enter(s.a->machine, &f);
    take(&s, got, 3);
    us_flight_leave(&f);
    /* The freelist's last is a fast one; then one object at a time, the CPU slab is not touched. */
    MOVED(&s, "alloc_fastpath", 1, "alloc_slowpath", 2);
    CHECK_EQ(got[1], object[1]);
    CHECK_EQ(got[2], object[0]);
    UNLISTED(&s, 0, 0); /* taken off when its last object went */
    CHECK_EQ(tunable(&s, "cpu_slabs"), 1);
    give(&s, object, 2 * N - 1);
    us_cache_free(s.c, got[0]);
    scene_close(&s);
}

/* ---- many threads -------------------------------------------------------------------- */

enum { THREADS = 4, SLOTS = 128, STEPS = 20000 };

struct crowd {
    struct us_cache *c;
    _Atomic(uint64_t *) slot[SLOTS];
    _Atomic unsigned running;
    _Atomic uint64_t allocs;
};

static uint64_t mark_of(const uint64_t *object)
{
    return (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;
}

/* Objects are marked while in use: two owners of one would see each other's work. */
static void give_marked(struct crowd *w, uint64_t *object)
{
    if (!object)
        return;
    CHECK(object[2] == mark_of(object) && object[31] == mark_of(object));
    object[2] = object[31] = 0;
    us_cache_free(w->c, object);
}

static void *trade(void *argument)
{
    struct crowd *w = argument;
    uint64_t random = (uint64_t)(uintptr_t)&random | 1, taken = 0;
    unsigned i;

    for (i = 0; i < STEPS; i++) {
        uint64_t *object = NULL;
        const int node = (int)(random >> 40 & 7);

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if (random & 1) {
            object = us_cache_alloc_node(w->c, 0, node < 2 ? node : US_ANY_NODE);
            REQUIRE(object != NULL);
            CHECK(object[2] != mark_of(object));
            object[2] = object[31] = mark_of(object);
            taken++;
        }
        give_marked(w, atomic_exchange(&w->slot[random >> 20 & (SLOTS - 1)], object));
    }
    atomic_fetch_add(&w->allocs, taken);
    atomic_fetch_sub(&w->running, 1);
    return NULL;
}

static void threads_flushes_and_shrinks_lose_nothing(void)
{
    struct scene s = scene_open(&slub_two_nodes, false);
    struct crowd w = {.c = s.c};
    pthread_t thread[THREADS];
    uint64_t rounds = 0;
    unsigned i;

    atomic_store(&w.running, THREADS);
    for (i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, trade, &w);
    while (atomic_load(&w.running)) {
        if (rounds % 4 == 0)
            us_cache_shrink(s.c);
        else if (rounds % 4 == 1)
            CHECK(us_tunable_set(s.c, "order", rounds & 16 ? "1" : "0", NULL) == US_OK);
        else
            us_allocator_flush(s.a);
        rounds++;
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_EQ(fixture_allocs(s.c), atomic_load(&w.allocs));
    fixture_balance(s.a);
    for (i = 0; i < SLOTS; i++)
        give_marked(&w, w.slot[i]);
    CHECK_EQ(us_cache_live(s.c, NULL, 0), 0);
    us_cache_shrink(s.c);
    CHECK_EQ(tunable(&s, "slabs"), 0);
    scene_close(&s);
}

int main(void)
{
    RUN(who_finds_the_region_closed_takes_one_object_of_a_listed_slab);
    RUN(a_closed_region_and_no_listed_slab_bring_a_new_one);
    RUN(a_free_that_cannot_have_the_slab_waits_for_the_next_slow_path);
    RUN(an_allocation_that_cannot_have_the_list_fails_and_leaves_nothing);
    RUN(inside_a_slow_path_the_cpu_slab_is_left_alone);
    RUN(threads_flushes_and_shrinks_lose_nothing);
    return check_result();
}

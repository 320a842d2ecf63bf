/* Threads on too few CPUs pop, push, drain and refill while others close and reopen; at the end
 * every object is somewhere once, and the counts say exactly what was done. */
// needs: machine
// machines: native
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "fixture_local.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 4000 };
#else
enum { ROUNDS = 40000 };
#endif
enum { THREADS = 5, OBJECTS = 600, CAPACITY = 100, STASH = 100 };

static struct us_machine *machine;
static struct us_local local;
static atomic_bool done;

/* ---- rings ------------------------------------------------------------------------------------
 */

/* An object is an address that stands for its number; `held` says whether a thread has it. */
static atomic_bool held[OBJECTS];
static _Atomic uint64_t popped, pushed;

static void *object_at(unsigned i)
{
    return (void *)(uintptr_t)(node_base(0) + 16 * i);
}

static void got(void *object)
{
    uint64_t i = ((uintptr_t)object - node_base(0)) / 16;

    REQUIRE(i < OBJECTS && object == object_at((unsigned)i));
    REQUIRE(!atomic_exchange(&held[i], true)); /* else it was handed out twice */
}

static void gives(void *object)
{
    atomic_store(&held[((uintptr_t)object - node_base(0)) / 16], false);
}

static void all_of(void (*each)(void *), void *const *objects, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        each(objects[i]);
}

/* What a thread holds, in its hands. */
struct stash {
    void *object[STASH];
    unsigned n;
    uint64_t state;
};

static void take_some(struct stash *s, struct us_flight *f)
{
    void **out = s->object + s->n;
    unsigned room = STASH - s->n, want = model_random(&s->state) % 80, cpu, n = 0;

    want = want < room ? want : room;
    switch (model_random(&s->state) % 4) {
    case 0:
        if (want > 0 && us_fast_pop(&local, local.mode, out))
            n = 1;
        atomic_fetch_add(&popped, n);
        break;
    case 1:
        if (want > 0 && us_local_pop(&local, f, out, &cpu))
            n = 1;
        atomic_fetch_add(&popped, n);
        break;
    case 2:
        n = us_local_pop_batch(&local, out, want);
        atomic_fetch_add(&popped, n);
        break;
    case 3:
        n = us_local_take_oldest(&local, f, out, want, US_SEEN_COMMIT, &cpu);
        break;
    }
    all_of(got, out, n);
    s->n += n;
}

/* Objects are given before they are visible, and taken back when they did not go. */
static void give_some(struct stash *s, struct us_flight *f)
{
    unsigned want = model_random(&s->state) % 80, cpu, n = 0;
    void **in;

    want = want < s->n ? want : s->n;
    if (want == 0)
        return;
    in = s->object + s->n - want;
    switch (model_random(&s->state) % 4) {
    case 0:
    case 1:
        want = 1;
        in = s->object + s->n - 1;
        gives(*in);
        n = model_random(&s->state) % 2 ? us_fast_push(&local, local.mode, *in)
                                        : us_local_push(&local, f, *in, &cpu);
        atomic_fetch_add(&pushed, n);
        break;
    case 2:
        all_of(gives, in, want);
        n = us_local_push_batch(&local, in, want, node_base(0));
        atomic_fetch_add(&pushed, n);
        memmove(in, in + n, (want - n) * sizeof *in);
        break;
    case 3:
        all_of(gives, in, want);
        n = us_local_add(&local, f, in, want, node_base(0), US_SEEN_TOUCH, &cpu);
        break;
    }
    s->n -= n;
    all_of(got, in, want - n);
}

static void *pops_and_pushes(void *arg)
{
    struct stash *s = arg;
    struct us_flight f;

    for (int round = 0; round < ROUNDS; round++) {
        us_flight_enter(machine, &f);
        if (model_random(&s->state) % 2)
            take_some(s, &f);
        else
            give_some(s, &f);
        us_flight_leave(&f);
        if (round % 64 == 0)
            sched_yield();
    }
    return NULL;
}

/* Turns a ring round by hand while its CPU is closed, and sometimes all of them. */
static void *closes(void *arg)
{
    struct us_local *all[] = {&local};
    uint64_t state = 99;
    void *some[CAPACITY], *region;
    struct us_flight f;

    (void)arg;
    while (!atomic_load(&done)) {
        unsigned cpu = model_random(&state) % machine->ncpus, n;

        if (model_random(&state) % 8 == 0) {
            us_gate_shut(machine, &f);
            us_local_close_all(all, 1, machine);
            for (cpu = 0; cpu < machine->ncpus; cpu++) {
                n = us_ring_take_oldest_c(local.region[cpu], some, CAPACITY, US_SEEN_KEEP);
                CHECK_EQ(us_ring_add_c(local.region[cpu], some, n, US_SEEN_KEEP), n);
                us_local_moved(&local, cpu, n, n);
            }
            us_local_open_all(all, 1, machine);
            us_gate_open(&f);
        } else {
            us_flight_enter(machine, &f);
            if (us_local_close(&local, &f, cpu, false, &region)) {
                n = us_ring_take_oldest_c(region, some, CAPACITY, US_SEEN_KEEP);
                all_of(got, some, n);
                sched_yield();
                all_of(gives, some, n);
                CHECK_EQ(us_ring_add_c(region, some, n, US_SEEN_KEEP), n);
                us_local_moved(&local, cpu, n, n);
                us_local_open(&local, &f, cpu);
            }
            us_flight_leave(&f);
        }
        usleep(200);
    }
    return NULL;
}

static void totals(uint64_t *pops, uint64_t *pushes)
{
    *pops = *pushes = 0;
    for (unsigned cpu = 0; cpu < machine->ncpus; cpu++) {
        uint64_t p, q;

        us_local_counts(&local, cpu, &p, &q);
        *pops += p;
        *pushes += q;
    }
}

/* Read while everything moves, they never go back and never tell of what is yet to come. */
static void *reads(void *arg)
{
    uint64_t last_pops = 0, last_pushes = 0, pops, pushes;

    (void)arg;
    while (!atomic_load(&done)) {
        totals(&pops, &pushes);
        REQUIRE(pops >= last_pops && pushes >= last_pushes);
        last_pops = pops;
        last_pushes = pushes;
        usleep(100);
    }
    return NULL;
}

static void every_object_is_somewhere_once(void)
{
    static struct stash stash[THREADS];
    pthread_t thread[THREADS], closer, reader;
    unsigned found = 0, queued = 0;
    uint64_t pops, pushes;
    void *object;

    make_local(&local, machine, machine->mode, US_REGION_RING, 0, CAPACITY, true);
    for (unsigned i = 0; i < THREADS; i++) {
        stash[i].state = i + 1;
        while (stash[i].n < OBJECTS / THREADS && stash[i].n < STASH)
            stash[i].object[stash[i].n++] = object_at(found++);
        all_of(got, stash[i].object, stash[i].n);
    }
    REQUIRE(pthread_create(&closer, NULL, closes, NULL) == 0);
    REQUIRE(pthread_create(&reader, NULL, reads, NULL) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, pops_and_pushes, &stash[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    atomic_store(&done, true);
    pthread_join(closer, NULL);
    pthread_join(reader, NULL);

    totals(&pops, &pushes);
    CHECK_EQ(pops, atomic_load(&popped));
    CHECK_EQ(pushes, atomic_load(&pushed));
    CHECK(pops > 0 && pushes > 0);
    for (unsigned i = 0; i < THREADS; i++)
        queued += stash[i].n;
    for (unsigned cpu = 0; cpu < machine->ncpus; cpu++)
        while (us_ring_pop_c(local.region[cpu], &object)) {
            got(object);
            queued++;
        }
    CHECK_EQ(queued, found);
    drop_local(&local);
}

/* ---- lists ------------------------------------------------------------------------------------
 */

/* A slab as a list policy has it: a list that a CPU may own, and one for everybody else. */
enum { SLABS = 12, CELLS = 32 };
struct cell {
    void *link;
    unsigned slab;
    atomic_bool held;
};
static struct slab {
    struct us_list local;
    struct us_list rest; /* guarded by lock */
    struct us_lock lock;
    uint32_t installed;
    struct cell cell[CELLS];
} slabs[SLABS];
static struct us_lock pool_lock;
static struct slab *pool[SLABS];
static unsigned pooled;

static void put_back(struct us_flight *f, struct slab *s)
{
    REQUIRE(us_lock_take(f, &pool_lock));
    pool[pooled++] = s;
    us_lock_drop(f, &pool_lock);
}

/* A reader may follow links while they change: they lead to cells of the slab, or nowhere. */
static bool length(const struct us_local *l, struct us_list *list, uint32_t *size)
{
    struct cell *c = __atomic_load_n(&list->head, __ATOMIC_RELAXED);

    (void)l;
    for (*size = 0; c != NULL && *size < CELLS; ++*size)
        c = c->link;
    return c == NULL;
}

/* What nobody owns goes to the pool, its counts to the CPU where it was. */
static void retire(struct us_flight *f, struct us_list *list, unsigned cpu)
{
    struct slab *s = (struct slab *)list;
    uint64_t pops = us_list_pops(list->count);
    uint32_t size;

    CHECK(length(&local, list, &size));
    list->count = size; /* pushes are not counted: who owns a list says how long it is */
    us_local_harvest(&local, cpu, pops, size + pops - s->installed);
    put_back(f, s);
}

/* The next slab of the pool, with what others freed to it, becomes the CPU's. */
static void install_another(struct us_flight *f)
{
    unsigned cpu = us_cpu_now(machine);
    struct slab *s = NULL;
    void *object;

    REQUIRE(us_lock_take(f, &pool_lock));
    if (pooled > 0)
        s = pool[--pooled];
    us_lock_drop(f, &pool_lock);
    if (s == NULL)
        return;
    REQUIRE(us_lock_take(f, &s->lock));
    for (; us_list_pop_c(&s->rest, 0, &object); s->local.count++)
        us_list_push_c(&s->local, 0, object);
    us_lock_drop(f, &s->lock);
    s->installed = us_list_size(s->local.count);
    if (!us_local_install(&local, f, 0, cpu, &s->local))
        put_back(f, s);
}

static void take_cell(struct stash *s, struct us_flight *f)
{
    void *object;
    unsigned cpu;

    if (s->n == STASH)
        return;
    if (!us_fast_list_pop(&local, local.mode, 0, 0, &object) &&
        !us_local_list_pop(&local, f, 0, &object, &cpu)) {
        struct us_list *empty = us_local_detach(&local, f, 0, &cpu);

        if (empty != NULL)
            retire(f, empty, cpu);
        install_another(f);
        return;
    }
    atomic_fetch_add(&popped, 1);
    REQUIRE(!atomic_exchange(&((struct cell *)object)->held, true));
    s->object[s->n++] = object;
}

static void free_cell(struct stash *s, struct us_flight *f)
{
    struct cell *c;
    struct slab *slab;
    unsigned cpu;

    if (s->n == 0)
        return;
    c = s->object[--s->n];
    slab = &slabs[c->slab];
    atomic_store(&c->held, false);
    if (us_fast_list_push(&local, local.mode, 0, 0, &slab->local, c) ||
        us_local_list_push(&local, f, 0, &slab->local, c, &cpu)) {
        atomic_fetch_add(&pushed, 1);
        return;
    }
    REQUIRE(us_lock_take(f, &slab->lock));
    us_list_push_c(&slab->rest, 0, c);
    us_lock_drop(f, &slab->lock);
}

static void *allocates_and_frees(void *arg)
{
    struct stash *s = arg;
    struct us_flight f;

    for (int round = 0; round < ROUNDS; round++) {
        us_flight_enter(machine, &f);
        if (model_random(&s->state) % 2)
            take_cell(s, &f);
        else
            free_cell(s, &f);
        us_flight_leave(&f);
        if (round % 64 == 0)
            sched_yield();
    }
    return NULL;
}

static void *detaches(void *arg)
{
    uint64_t state = 5;
    struct us_flight f;

    (void)arg;
    while (!atomic_load(&done)) {
        unsigned cpu = model_random(&state) % machine->ncpus;
        struct us_list *list = NULL;
        void *region;

        us_flight_enter(machine, &f);
        if (us_local_close(&local, &f, cpu, false, &region)) {
            list = us_words_detach_c(region, 0);
            us_local_open(&local, &f, cpu);
        }
        if (list != NULL)
            retire(&f, list, cpu);
        us_flight_leave(&f);
        usleep(150);
    }
    return NULL;
}

static void every_cell_is_somewhere_once(void)
{
    static struct stash stash[THREADS];
    pthread_t thread[THREADS], detacher, reader;
    uint64_t pops, pushes;
    unsigned found = 0;
    struct us_flight f;

    atomic_store(&done, false);
    atomic_store(&popped, 0);
    atomic_store(&pushed, 0);
    make_local(&local, machine, machine->mode, US_REGION_WORDS, 0, 0, true);
    local.length = length;
    us_lock_init(&pool_lock, US_LOCK_NODE);
    for (unsigned i = 0; i < SLABS; i++) {
        us_lock_init(&slabs[i].lock, US_LOCK_SLAB);
        for (unsigned j = 0; j < CELLS; j++) {
            slabs[i].cell[j].slab = i;
            us_list_push_c(&slabs[i].local, 0, &slabs[i].cell[j]);
        }
        slabs[i].local.count = CELLS;
        pool[pooled++] = &slabs[i];
    }
    REQUIRE(pthread_create(&detacher, NULL, detaches, NULL) == 0);
    REQUIRE(pthread_create(&reader, NULL, reads, NULL) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        stash[i].state = i + 1;
        REQUIRE(pthread_create(&thread[i], NULL, allocates_and_frees, &stash[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    atomic_store(&done, true);
    pthread_join(detacher, NULL);
    pthread_join(reader, NULL);

    totals(&pops, &pushes); /* with descriptors still installed */
    CHECK_EQ(pops, atomic_load(&popped));
    CHECK_EQ(pushes, atomic_load(&pushed));
    CHECK(pops > 0 && pushes > 0);
    us_flight_enter(machine, &f);
    for (unsigned cpu = 0; cpu < machine->ncpus; cpu++) {
        struct us_list *list = us_words_detach_c(local.region[cpu], 0);

        if (list != NULL)
            retire(&f, list, cpu);
    }
    us_flight_leave(&f);
    totals(&pops, &pushes);
    CHECK_EQ(pops, atomic_load(&popped));
    CHECK_EQ(pushes, atomic_load(&pushed));
    CHECK_EQ(pooled, SLABS);
    for (unsigned i = 0; i < SLABS; i++) {
        uint32_t rest;

        CHECK(length(&local, &slabs[i].rest, &rest));
        found += us_list_size(slabs[i].local.count) + rest;
        for (void *c = slabs[i].rest.head; c != NULL; c = ((struct cell *)c)->link)
            REQUIRE(!atomic_exchange(&((struct cell *)c)->held, true));
        for (void *c = slabs[i].local.head; c != NULL; c = ((struct cell *)c)->link)
            REQUIRE(!atomic_exchange(&((struct cell *)c)->held, true));
    }
    for (unsigned i = 0; i < THREADS; i++)
        found += stash[i].n;
    CHECK_EQ(found, SLABS * CELLS);
    drop_local(&local);
}

int main(void)
{
    machine = machine_of(1, 1);
    printf("%s\n", us_machine_mode_reason());
    RUN(every_object_is_somewhere_once);
    RUN(every_cell_is_somewhere_once);
    us_machine_destroy(machine);
    return check_result();
}

/* A cache's local queues through the run-time forms: in the mode of the machine (rseq, slot locks
 * or model) and in CONTROL mode, on one CPU at a time. test_hammer.c has the threads. */
// needs: machine
// levels: O1 O2 O3
#include "local_subject.h"

static struct us_machine *machine;

/* Where the test runs: any CPU, as long as it stays there. */
static unsigned stay(void)
{
    unsigned cpu = us_cpu_now(machine);

    REQUIRE(us_machine_on_cpu(machine, (int)cpu, NULL) >= 0);
    return cpu;
}

/* ---- programs ---------------------------------------------------------------------------------
 */

static void run_programs(enum us_mode mode)
{
    const unsigned cpu = stay();

    for (uint64_t seed = 1; seed <= 24; seed++) {
        uint64_t state = seed, next = 0, pops, pushes, before;
        struct ring_model m = {.capacity = model_random(&state) % MODEL_MAX};
        struct subject s = {.cpu = cpu, .fast_first = seed % 4 < 2};
        struct us_flight f;
        struct us_local l;
        struct us_ring *r;

        make_local(&l, machine, mode, US_REGION_RING, 0, m.capacity, true);
        r = us_local_ring(&l, cpu);
        if (seed % 2)
            atomic_store(&r->header, model_near_wrap(&m));
        before = m.pops;
        s.l = &l;
        s.f = &f;
        us_flight_enter(machine, &f);
        for (int step = 0; step < 2000; step++) {
            unsigned operation = model_random(&state), amount = model_random(&state);

            if (step % 2)
                amount %= 9;
            if (!model_step(&m, r, &operations, &s, operation, amount, &next))
                break;
            if (step % 64 == 0 || step > 1990) {
                us_local_counts(&l, cpu, &pops, &pushes);
                CHECK_EQ(pops, before + s.popped);
                CHECK_EQ(pushes, before + s.pushed); /* what was there before was pushed, too */
            }
        }
        us_flight_leave(&f);
        drop_local(&l);
    }
}

static void programs_in_the_mode_of_the_machine(void)
{
    run_programs(machine->mode);
}

static void programs_in_control_mode(void)
{
    run_programs(US_MODE_CONTROL);
}

/* ---- closing ----------------------------------------------------------------------------------
 */

static void check_closed(struct us_local *l, struct us_flight *f, bool closed)
{
    void *object = (void *)(uintptr_t)node_base(0), *out;
    unsigned cpu;

    CHECK_EQ(us_fast_push(l, l->mode, object), !closed);
    CHECK_EQ(us_fast_pop(l, l->mode, &out), !closed);
    CHECK_EQ(us_local_push(l, f, object, &cpu), !closed);
    CHECK_EQ(us_local_pop(l, f, &out, &cpu), !closed);
    CHECK_EQ(us_local_push_batch(l, &object, 1, node_base(0)), !closed);
    CHECK_EQ(us_local_pop_batch(l, &out, 1), !closed);
    CHECK_EQ(us_local_add(l, f, &object, 1, node_base(0), US_SEEN_KEEP, &cpu), !closed);
    CHECK_EQ(us_local_take_oldest(l, f, &out, 1, US_SEEN_KEEP, &cpu), !closed);
}

static void who_finds_it_closed_misses(void)
{
    const unsigned cpu = stay();
    struct us_flight f;
    struct us_local l;
    void *region;

    make_local(&l, machine, machine->mode, US_REGION_RING, 0, 8, true);
    us_flight_enter(machine, &f);
    check_closed(&l, &f, false);
    REQUIRE(us_local_close(&l, &f, cpu, false, &region));
    CHECK_EQ(region, l.region[cpu]);
    check_closed(&l, &f, true);
    us_local_open(&l, &f, cpu);
    check_closed(&l, &f, false);
    us_flight_leave(&f);
    drop_local(&l);
}

static void touching_marks_the_ring_of_that_node_alone(void)
{
    const unsigned cpu = stay();
    struct us_flight f;
    struct us_local l;
    struct us_ring *ring;
    void *region;

    make_local(&l, machine, machine->mode, US_REGION_RING, 0, 8, true);
    us_flight_enter(machine, &f);
    ring = us_local_ring(&l, cpu);
    atomic_store(&ring->seen, us_ring_header(ring));
    us_local_touch(&l, &f, ring->base + 1);
    CHECK(!us_ring_touched(ring));
    REQUIRE(us_local_close(&l, &f, cpu, false, &region));
    us_local_touch(&l, &f, ring->base);
    CHECK(!us_ring_touched(ring));
    us_local_open(&l, &f, cpu);
    us_local_touch(&l, &f, ring->base);
    CHECK(us_ring_touched(ring));
    CHECK_EQ(us_ring_size(ring), 0);
    us_flight_leave(&f);
    drop_local(&l);
}

static void a_closed_cpu_is_closed_by_one_at_a_time(void)
{
    struct us_flight f;
    struct us_local l, other;
    void *region;

    make_local(&l, machine, machine->mode, US_REGION_RING, 0, 8, true);
    make_local(&other, machine, US_MODE_CONTROL, US_REGION_RING, 0, 8, true);
    us_flight_enter(machine, &f);
    REQUIRE(us_local_close(&l, &f, 0, true, &region));
    CHECK(!us_local_close(&l, &f, 0, true, &region)); /* the lock is the CPU's: for every cache */
    CHECK(!us_local_close(&other, &f, 0, true, &region));
    if (machine->ncpus > 1) {
        REQUIRE(us_local_close(&other, &f, 1, true, &region));
        us_local_open(&other, &f, 1);
    }
    us_local_open(&l, &f, 0);
    CHECK(us_local_close(&other, &f, 0, true, &region));
    us_local_open(&other, &f, 0);
    us_flight_leave(&f);
    drop_local(&other);
    drop_local(&l);
}

static void a_cpu_is_populated_once_and_by_who_need_not_wait(void)
{
    const unsigned cpu = stay();
    struct us_flight f;
    struct us_local l;
    void *first = new_ring(4, 0), *second = new_ring(4, 0), *region;

    REQUIRE(us_local_init(&l, machine, machine->mode, US_REGION_RING, 0, &local_memory));
    us_flight_enter(machine, &f);
    check_closed(&l, &f, true);
    CHECK(!us_local_populated(&l, cpu));
    REQUIRE(us_local_close(&l, &f, cpu, true, &region));
    CHECK_EQ(region, NULL);
    CHECK(!us_local_populate(&l, &f, cpu, first));
    us_local_open(&l, &f, cpu);
    check_closed(&l, &f, true);
    CHECK(us_local_populate(&l, &f, cpu, first));
    CHECK(us_local_populated(&l, cpu));
    check_closed(&l, &f, false);
    CHECK(!us_local_populate(&l, &f, cpu, second));
    CHECK_EQ(us_local_ring(&l, cpu), first);
    us_flight_leave(&f);
    free(second);
    drop_local(&l);
}

static void all_are_closed_until_all_are_opened(void)
{
    const unsigned cpu = stay();
    struct us_local a, b, *all[] = {&a, &b};
    struct us_flight f;
    void *region;

    make_local(&a, machine, machine->mode, US_REGION_RING, 0, 8, true);
    make_local(&b, machine, machine->mode, US_REGION_RING, 0, 8, true);
    us_gate_shut(machine, &f);
    us_local_close_all(all, 2, machine);
    check_closed(&a, &f, true);
    check_closed(&b, &f, true);
    REQUIRE(us_local_close(&a, &f, cpu, false, &region)); /* a flush in between opens nothing */
    us_local_open(&a, &f, cpu);
    check_closed(&a, &f, true);
    us_local_open_all(all, 2, machine);
    check_closed(&a, &f, false);
    check_closed(&b, &f, false);
    us_gate_open(&f);
    drop_local(&b);
    drop_local(&a);
}

static void another_region_takes_the_count_over(void)
{
    const unsigned cpu = stay();
    struct us_flight f;
    struct us_local l;
    void *object = (void *)(uintptr_t)node_base(0), *out, *old, *fresh = new_ring(2, 0);
    uint64_t pops, pushes;

    make_local(&l, machine, machine->mode, US_REGION_RING, 0, 8, true);
    us_flight_enter(machine, &f);
    for (int i = 0; i < 5; i++)
        CHECK(us_fast_push(&l, machine->mode, object));
    for (int i = 0; i < 3; i++)
        CHECK(us_fast_pop(&l, machine->mode, &out));
    REQUIRE(us_local_close(&l, &f, cpu, false, &old));
    CHECK_EQ(us_ring_take_oldest_c(old, &out, 1, US_SEEN_KEEP), 1);
    us_local_moved(&l, cpu, 0, 1);
    CHECK_EQ(us_ring_take_oldest_c(old, &out, 1, US_SEEN_KEEP), 1);
    CHECK_EQ(us_ring_add_c(fresh, &object, 1, US_SEEN_KEEP),
             1); /* carried over: moved neither way */
    CHECK_EQ(us_local_replace(&l, cpu, fresh), old);
    us_local_open(&l, &f, cpu);
    us_local_counts(&l, cpu, &pops, &pushes);
    CHECK_EQ(pops, 3);
    CHECK_EQ(pushes, 5);
    CHECK(us_fast_pop(&l, machine->mode, &out));
    us_local_counts(&l, cpu, &pops, &pushes);
    CHECK_EQ(pops, 4);
    CHECK_EQ(pushes, 5);
    us_flight_leave(&f);
    free(old);
    drop_local(&l);
}

/* Nobody looks before the count wraps, so the pop that lets it wrap has to. */
static void a_count_that_wraps_unseen_is_not_lost(void)
{
    const unsigned cpu = stay();
    const enum us_mode modes[] = {machine->mode, US_MODE_CONTROL};

    for (unsigned i = 0; i < 4; i++) {
        const uint64_t before = i % 2 ? US_POPS_WRAP - 2 : US_POPS_WRAP - 1;
        struct us_flight f;
        struct us_local l;
        uint64_t pops, pushes;
        unsigned seen;
        void *out[3];

        make_local(&l, machine, modes[i / 2], US_REGION_RING, 0, 8, true);
        atomic_store(&us_local_ring(&l, cpu)->header, us_header_make(before, 0, 3));
        us_flight_enter(machine, &f);
        if (i % 2)
            CHECK_EQ(us_local_pop_batch(&l, out, 3), 3);
        else
            CHECK_EQ(us_local_pop(&l, &f, out, &seen), US_LOCAL_OK);
        us_local_counts(&l, cpu, &pops, &pushes);
        CHECK_EQ(pops, before + (i % 2 ? 3 : 1));
        CHECK_EQ(pushes, before + 3);
        us_flight_leave(&f);
        drop_local(&l);
    }
}

/* ---- CONTROL mode -----------------------------------------------------------------------------
 */

static void control_mode_leaves_nothing_to_fast_paths(void)
{
    const unsigned cpu = stay();
    struct us_flight f;
    struct us_local l;
    void *object = (void *)(uintptr_t)node_base(0), *out, *region;
    unsigned seen;

    make_local(&l, machine, US_MODE_CONTROL, US_REGION_RING, 0, 8, true);
    CHECK_EQ(us_fast_push(&l, US_MODE_CONTROL, object), 0);
    CHECK_EQ(us_local_push_batch(&l, &object, 1, node_base(0)), 0); /* outside of a flight */
    us_flight_enter(machine, &f);
    CHECK_EQ(us_local_push(&l, &f, object, &seen), 1);
    CHECK_EQ(us_fast_pop(&l, US_MODE_CONTROL, &out), 0);
    CHECK_EQ(us_local_push_batch(&l, &object, 1, node_base(0)), 1);
    REQUIRE(us_local_close(&l, &f, cpu, false, &region));
    CHECK_EQ(us_ring_size(region), 2);
    us_local_open(&l, &f, cpu);
    CHECK_EQ(us_local_pop(&l, &f, &out, &seen), 1);
    us_flight_leave(&f);
    CHECK_EQ(us_local_pop_batch(&l, &out, 1), 0);
    drop_local(&l);
}

/* ---- nodes ------------------------------------------------------------------------------------
 */

/* On CPUs of both nodes, where this machine has them. */
static void a_queue_takes_objects_of_its_node_only(void)
{
    struct us_flight f;
    struct us_local l;

    make_local(&l, machine, machine->mode, US_REGION_RING, 0, 8, false);
    us_flight_enter(machine, &f);
    for (unsigned cpu = 0; cpu < machine->ncpus; cpu++) {
        unsigned node = us_node_of_cpu(machine, cpu), seen;
        void *mine = (void *)(uintptr_t)node_base(node), *out;
        void *other = (void *)(uintptr_t)node_base(1 - node);

        if (us_machine_on_cpu(machine, (int)cpu, NULL) < 0)
            continue; /* offline, or not allowed */
        CHECK_EQ(us_fast_push(&l, machine->mode, other), 0);
        CHECK_EQ(us_local_push(&l, &f, other, &seen), 0);
        CHECK_EQ(seen, cpu);
        CHECK_EQ(us_local_add(&l, &f, &other, 1, node_base(1 - node), US_SEEN_KEEP, &seen), 0);
        CHECK_EQ(us_local_push_batch(&l, &other, 1, node_base(1 - node)), 0);
        CHECK_EQ(us_fast_push(&l, machine->mode, mine), 1);
        CHECK_EQ(us_fast_pop(&l, machine->mode, &out), 1);
        CHECK_EQ(out, mine);
        if (machine->mode != US_MODE_MODEL)
            us_machine_on_cpu(machine, -1, NULL);
    }
    us_flight_leave(&f);
    drop_local(&l);
}

/* ---- lists ------------------------------------------------------------------------------------
 */

enum { CELLS = 40 };
struct cell {
    void *data, *link;
};

static bool length(const struct us_local *l, struct us_list *list, uint32_t *size)
{
    (void)l;
    *size = 0;
    for (struct cell *c = list->head; c != NULL && *size < 2 * CELLS; c = c->link)
        ++*size;
    return true;
}

static void chain(struct us_list *list, struct cell *cells, unsigned n)
{
    *list = (struct us_list){NULL, 0};
    for (unsigned i = n; i-- > 0;)
        us_list_push_c(list, offsetof(struct cell, link), &cells[i]);
    list->count = n; /* pushes are not counted: who makes a list says how long it is */
}

static void check_counts(struct us_local *l, unsigned cpu, uint64_t pops, uint64_t pushes)
{
    uint64_t p, q;

    us_local_counts(l, cpu, &p, &q);
    CHECK_EQ(p, pops);
    CHECK_EQ(q, pushes);
}

static void run_lists(enum us_mode mode)
{
    const unsigned cpu = stay(), w = 2;
    const ptrdiff_t link = offsetof(struct cell, link);
    static struct cell cells[2 * CELLS];
    struct us_list a, b, *out;
    struct us_flight f;
    struct us_local l;
    unsigned seen;
    uint32_t size;
    void *object;

    chain(&a, cells, CELLS);
    chain(&b, cells + CELLS, CELLS);
    a.count += 77ull << US_LIST_SIZE_BITS; /* pops of a former life */
    make_local(&l, machine, mode, US_REGION_WORDS, link, 0, true);
    l.length = length;
    us_flight_enter(machine, &f);
    CHECK_EQ(us_local_word(&l, cpu, w), NULL);
    CHECK_EQ(us_local_detach(&l, &f, w, &seen), NULL);
    CHECK_EQ(seen, cpu);
    CHECK_EQ(us_local_install(&l, &f, w, cpu + 1, &a), US_LOCAL_MISS);
    CHECK_EQ(us_local_install(&l, &f, w, cpu, &a), US_LOCAL_OK);
    CHECK_EQ(us_local_install(&l, &f, w, cpu, &b), US_LOCAL_MISS);
    CHECK_EQ(us_local_word(&l, cpu, w), &a);
    check_counts(&l, cpu, 0, 0);
    for (unsigned i = 0; i < 5; i++) {
        if (mode == US_MODE_CONTROL || i % 2)
            CHECK_EQ(us_local_list_pop(&l, &f, w, &object, &seen), US_LOCAL_OK);
        else
            CHECK_EQ(us_fast_list_pop(&l, mode, w, link, &object), US_LOCAL_OK);
        CHECK_EQ(object, &cells[i]);
    }
    check_counts(&l, cpu, 5, 0);
    CHECK_EQ(us_local_list_push(&l, &f, w, &b, &cells[0], &seen), US_LOCAL_MISS);
    CHECK_EQ(us_local_list_push(&l, &f, w, &a, &cells[0], &seen), US_LOCAL_OK);
    CHECK_EQ(seen, cpu);
    check_counts(&l, cpu, 5, 1);
    CHECK_EQ(us_fast_list_push(&l, mode, w, link, &a, &cells[1]), mode != US_MODE_CONTROL);
    CHECK_EQ(us_fast_list_push(&l, mode, w, link, &b, &cells[2]), US_LOCAL_MISS);
    out = us_local_detach(&l, &f, w, &seen);
    CHECK_EQ(out, &a);
    CHECK_EQ(us_list_pops(a.count), 5);
    CHECK_EQ(us_list_size(a.count), CELLS); /* as at installation */
    length(&l, &a, &size);
    CHECK_EQ(size, CELLS - 5 + 1 + (mode != US_MODE_CONTROL));
    us_local_harvest(&l, cpu, 5, size + 5 - CELLS);
    a.count = size;
    check_counts(&l, cpu, 5, 1 + (mode != US_MODE_CONTROL));
    CHECK_EQ(us_local_install(&l, &f, w, cpu, &a), US_LOCAL_OK);
    CHECK_EQ(us_local_install(&l, &f, 0, cpu, &b), US_LOCAL_OK);
    CHECK_EQ(us_local_list_pop(&l, &f, 0, &object, &seen), US_LOCAL_OK);
    CHECK_EQ(object, &cells[CELLS]);
    check_counts(&l, cpu, 6, 1 + (mode != US_MODE_CONTROL));
    us_flight_leave(&f);
    drop_local(&l);
}

/* Counted lists through the slow and fast forms: their counts follow from the header. */
static void run_counted(enum us_mode mode)
{
    const unsigned cpu = stay(), w = 1;
    const ptrdiff_t link = offsetof(struct cell, link);
    static struct cell cells[CELLS];
    struct us_counted list = {.header = 33ull << US_COUNTED_SIZE_BITS, .limit = CELLS};
    struct us_flight f;
    struct us_local l;
    unsigned seen, fast = mode != US_MODE_CONTROL;
    void *object;

    make_local(&l, machine, mode, US_REGION_WORDS, link, 0, true);
    us_words_init(l.region[cpu], (uintptr_t)cells, sizeof cells);
    l.counted = true;
    us_flight_enter(machine, &f);
    CHECK_EQ(us_local_counted_push(&l, &f, w, cells, &seen), US_LOCAL_MISS);
    CHECK_EQ(us_local_install(&l, &f, w, cpu, (struct us_list *)&list), US_LOCAL_OK);
    CHECK_EQ(list.header, 0); /* pops of a former life are gone */
    for (unsigned i = 0; i < CELLS; i++)
        CHECK_EQ(us_local_counted_push(&l, &f, w, &cells[i], &seen), US_LOCAL_OK);
    CHECK_EQ(seen, cpu);
    CHECK_EQ(us_local_counted_push(&l, &f, w, &cells[0], &seen), US_LOCAL_MISS);
    check_counts(&l, cpu, 0, CELLS);
    CHECK_EQ(us_local_counted_pop(&l, &f, w, &object, &seen), US_LOCAL_OK);
    CHECK_EQ(object, &cells[CELLS - 1]);
    CHECK_EQ(us_fast_counted_pop(&l, mode, w, link, &object), fast);
    check_counts(&l, cpu, 1 + fast, CELLS);
    CHECK_EQ(us_fast_counted_push(&l, mode, w, link, &cells[CELLS - 1]), fast);
    check_counts(&l, cpu, 1 + fast, CELLS + fast);
    CHECK_EQ(us_local_detach(&l, &f, w, &seen), &list);
    CHECK_EQ(us_counted_size(list.header), CELLS - 1);
    CHECK_EQ(us_counted_pops(list.header), 1 + fast);
    us_local_harvest(&l, cpu, 1 + fast, CELLS + fast);
    check_counts(&l, cpu, 1 + fast, CELLS + fast);
    CHECK_EQ(us_local_install(&l, &f, w, cpu, (struct us_list *)&list), US_LOCAL_OK);
    check_counts(&l, cpu, 1 + fast, CELLS + fast);
    us_flight_leave(&f);
    drop_local(&l);
}

static void lists_in_the_mode_of_the_machine(void)
{
    run_lists(machine->mode);
    run_counted(machine->mode);
}

static void lists_in_control_mode(void)
{
    run_lists(US_MODE_CONTROL);
    run_counted(US_MODE_CONTROL);
}

static void a_closed_list_region_is_left_alone(void)
{
    const unsigned cpu = stay();
    struct cell cell = {NULL, NULL};
    struct us_list list = {NULL, 0};
    struct us_flight f;
    struct us_local l;
    void *region, *object;
    unsigned seen;

    make_local(&l, machine, machine->mode, US_REGION_WORDS, 8, 0, true);
    l.length = length;
    us_flight_enter(machine, &f);
    CHECK_EQ(us_local_install(&l, &f, 0, cpu, &list), US_LOCAL_OK);
    REQUIRE(us_local_close(&l, &f, cpu, false, &region));
    CHECK_EQ(us_local_list_push(&l, &f, 0, &list, &cell, &seen), US_LOCAL_MISS);
    CHECK_EQ(us_fast_list_push(&l, machine->mode, 0, 8, &list, &cell), US_LOCAL_MISS);
    CHECK_EQ(us_local_list_pop(&l, &f, 0, &object, &seen), US_LOCAL_MISS);
    CHECK_EQ(us_local_detach(&l, &f, 0, &seen), NULL);
    CHECK_EQ(us_local_install(&l, &f, 1, cpu, &list), US_LOCAL_MISS);
    CHECK_EQ(us_words_detach_c(region, 0), &list);
    us_local_open(&l, &f, cpu);
    CHECK_EQ(us_local_detach(&l, &f, 0, &seen), NULL);
    us_flight_leave(&f);
    drop_local(&l);
}

int main(void)
{
    machine = machine_of(2, 1);
    printf("%s\n", us_machine_mode_reason());
    RUN(programs_in_the_mode_of_the_machine);
    RUN(programs_in_control_mode);
    RUN(who_finds_it_closed_misses);
    RUN(touching_marks_the_ring_of_that_node_alone);
    RUN(a_closed_cpu_is_closed_by_one_at_a_time);
    RUN(a_cpu_is_populated_once_and_by_who_need_not_wait);
    RUN(all_are_closed_until_all_are_opened);
    RUN(another_region_takes_the_count_over);
    RUN(a_count_that_wraps_unseen_is_not_lost);
    RUN(control_mode_leaves_nothing_to_fast_paths);
    RUN(lists_in_the_mode_of_the_machine);
    RUN(lists_in_control_mode);
    RUN(a_closed_list_region_is_left_alone);
    if (machine->mode != US_MODE_MODEL)
        while (us_machine_on_cpu(machine, -1, NULL) == 0)
            continue;
    RUN(a_queue_takes_objects_of_its_node_only);
    us_machine_destroy(machine);
    return check_result();
}

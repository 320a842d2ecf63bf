/* A cache's sheaves through the run-time forms and the fast templates, in the mode of the machine:
 * counts that follow the sheaves from CPU to CPU, closing, swaps. */
// levels: O1 O2 O3
#include "fixture_local.h"

enum { ROOM = 12 };
static struct us_machine *machine;
static struct us_local local;
static struct us_flight flight;
static struct us_sheaf *sheaf[3];
static unsigned cpu;

static void *object_at(unsigned i)
{
    return (void *)(uintptr_t)(node_base(0) + 16 * i);
}

static void begin(void)
{
    cpu = us_cpu_now(machine);
    REQUIRE(us_machine_on_cpu(machine, (int)cpu, NULL) >= 0);
    make_local(&local, machine, machine->mode, US_REGION_SHEAVES, 0, 0, true);
    for (unsigned i = 0; i < 3; i++)
        sheaf[i] = new_sheaf(ROOM);
    us_flight_enter(machine, &flight);
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, NULL, sheaf[0]));
}

static void end(void)
{
    us_flight_leave(&flight);
    for (unsigned i = 0; i < 3; i++)
        free(sheaf[i]);
    drop_local(&local);
}

static void counted(uint64_t pops, uint64_t pushes)
{
    uint64_t a, b;

    us_local_counts(&local, cpu, &a, &b);
    CHECK_EQ(a, pops);
    CHECK_EQ(b, pushes);
}

static void what_is_pushed_last_is_popped_first(void)
{
    void *object = NULL;

    begin();
    for (unsigned i = 0; i < ROOM; i++)
        CHECK(i % 2 ? us_fast_main_push(&local, local.mode, object_at(i))
                    : us_local_main_push(&local, &flight, object_at(i)));
    CHECK(!us_fast_main_push(&local, local.mode, object_at(99)));
    CHECK(!us_local_main_push(&local, &flight, object_at(99)));
    counted(0, ROOM);
    for (unsigned i = ROOM; i-- > 0;) {
        CHECK(i % 2 ? us_fast_main_pop(&local, local.mode, &object)
                    : us_local_main_pop(&local, &flight, &object));
        CHECK_EQ(object, object_at(i));
    }
    CHECK(!us_fast_main_pop(&local, local.mode, &object));
    CHECK(!us_local_main_pop(&local, &flight, &object));
    counted(ROOM, ROOM);
    end();
}

static void batches_move_as_much_as_there_is(void)
{
    void *in[ROOM + 3], *out[ROOM + 3] = {NULL};

    begin();
    for (unsigned i = 0; i < ROOM + 3; i++)
        in[i] = object_at(i);
    CHECK_EQ(us_local_main_put(&local, in, 2, node_base(1)), 0);
    CHECK_EQ(us_local_main_put(&local, in, 5, node_base(0)), 5);
    CHECK_EQ(us_local_main_put(&local, in + 5, ROOM - 2, node_base(0)), ROOM - 5);
    counted(0, ROOM);
    CHECK_EQ(us_local_main_take(&local, out, 4), 4); /* the last four, as they lay */
    CHECK(memcmp(out, in + ROOM - 4, 4 * sizeof *in) == 0);
    CHECK_EQ(us_local_main_take(&local, out, ROOM), ROOM - 4);
    CHECK(memcmp(out, in, (ROOM - 4) * sizeof *in) == 0);
    counted(ROOM, ROOM);
    end();
}

/* What was popped and pushed stays with the CPU where it happened. */
static void a_sheaf_that_leaves_is_counted_and_begins_anew(void)
{
    void *object;

    begin();
    for (unsigned i = 0; i < 5; i++)
        CHECK(us_local_main_push(&local, &flight, object_at(i)));
    CHECK(us_local_main_pop(&local, &flight, &object));
    CHECK(!us_local_swap(&local, &flight, US_MAIN, cpu, sheaf[1], sheaf[2]));
    CHECK(!us_local_swap(&local, &flight, US_SPARE, cpu, sheaf[0], sheaf[2]));
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, sheaf[0], NULL));
    CHECK_EQ(us_local_sheaf(&local, cpu, US_MAIN), NULL);
    CHECK_EQ(us_sheaf_header(sheaf[0]), 4); /* four objects, no pops */
    counted(1, 5);
    CHECK(!us_local_main_pop(&local, &flight, &object));
    CHECK(!us_local_main_push(&local, &flight, object_at(9)));
    /* Its owner fills it by plain code: that is no push. */
    CHECK(us_sheaf_push_c(sheaf[0], object_at(7)));
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, NULL, sheaf[0]));
    counted(1, 5);
    CHECK(us_local_main_pop(&local, &flight, &object));
    CHECK_EQ(object, object_at(7));
    counted(2, 5);
    CHECK(us_local_swap(&local, &flight, US_SPARE, cpu, NULL, sheaf[1]));
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, sheaf[0], sheaf[2]));
    CHECK_EQ(us_local_sheaf(&local, cpu, US_MAIN), sheaf[2]);
    CHECK_EQ(us_local_sheaf(&local, cpu, US_SPARE), sheaf[1]);
    counted(2, 5);
    end();
}

static void who_finds_it_closed_misses(void)
{
    void *object = object_at(1), *region;

    begin();
    CHECK(us_local_main_push(&local, &flight, object));
    REQUIRE(us_local_close(&local, &flight, cpu, false, &region));
    CHECK(!us_fast_main_pop(&local, local.mode, &object));
    CHECK(!us_local_main_push(&local, &flight, object));
    CHECK_EQ(us_local_main_take(&local, &object, 1), 0);
    CHECK_EQ(us_local_main_put(&local, &object, 1, node_base(0)), 0);
    CHECK(!us_local_swap(&local, &flight, US_MAIN, cpu, sheaf[0], NULL));
    CHECK(!us_local_swap(&local, &flight, US_SPARE, cpu, NULL, sheaf[1]));
    CHECK(us_local_swap_closed(&local, US_MAIN, cpu, sheaf[0], sheaf[1]));
    CHECK(!us_local_swap_closed(&local, US_MAIN, cpu, sheaf[0], sheaf[2]));
    us_local_open(&local, &flight, cpu);
    CHECK(!us_local_main_pop(&local, &flight, &object)); /* the other sheaf is empty */
    CHECK_EQ(us_sheaf_size(sheaf[0]), 1);
    counted(0, 1);
    end();
}

/* The count of pops of a sheaf ends where its width does; taken away and put back it goes on. */
static void pops_beyond_the_width_go_on_after_a_swap(void)
{
    void *object;

    begin();
    atomic_store(&sheaf[0]->header, us_header_make(US_POPS_WRAP - 1, 0, 2));
    CHECK(!us_fast_main_pop(&local, local.mode, &object));
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, sheaf[0], NULL));
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, NULL, sheaf[0]));
    sheaf[0]->object[1] = object_at(3);
    CHECK(us_fast_main_pop(&local, local.mode, &object));
    CHECK_EQ(object, object_at(3));
    counted(US_POPS_WRAP, US_POPS_WRAP + 1);
    end();
}

int main(void)
{
    machine = machine_of(1, 2);
    RUN(what_is_pushed_last_is_popped_first);
    RUN(batches_move_as_much_as_there_is);
    RUN(a_sheaf_that_leaves_is_counted_and_begins_anew);
    RUN(who_finds_it_closed_misses);
    RUN(pops_beyond_the_width_go_on_after_a_swap);
    us_machine_destroy(machine);
    return check_result();
}

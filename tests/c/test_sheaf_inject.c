/* Signals exactly inside each restartable sequence on sheaves, at each of its places: the handler
 * works on the same CPU's sheaves, and the outcome must be that of both in order. */
// machines: native
// flags: -DUS_TESTING
#define _GNU_SOURCE
#include "fixture_local.h"
#include "fixture_trap.h"

#ifndef US_HAVE_RSEQ
int main(void)
{
    SKIP("no sequences are written for this architecture");
}
#else

enum { FIRST_OP = US_SEQ_MAIN_POP, OPS = 5, BEGUN_WITH = 5, ROOM = 12 };
static struct us_machine *machine;
static struct us_local local;
static struct us_flight flight;
static unsigned cpu;

/* Main, a sheaf to swap it for, another one for the interruption: for the region and its mirror. */
static struct us_sheaf *real[3], *plain[3];
static struct us_words *mirror;

static void *object_at(unsigned i)
{
    return (void *)(uintptr_t)(node_base(0) + 16 * i);
}

/* `who` brings in objects and a sheaf of its own. */
static void bring(unsigned who, void **in)
{
    for (unsigned i = 0; i < SOME; i++)
        in[i] = object_at(100 * who + i);
}

static struct outcome act(unsigned sequence, unsigned who)
{
    struct outcome o = {0};
    void *in[SOME];

    bring(who, in);
    switch (sequence) {
    case US_SEQ_MAIN_POP:
        o.n = us_fast_main_pop(&local, US_MODE_RSEQ, o.out);
        break;
    case US_SEQ_MAIN_PUSH:
        o.n = us_fast_main_push(&local, US_MODE_RSEQ, in[0]);
        break;
    case US_SEQ_MAIN_TAKE:
        o.n = us_local_main_take(&local, o.out, SOME);
        break;
    case US_SEQ_MAIN_PUT:
        o.n = us_local_main_put(&local, in, SOME, node_base(0));
        break;
    case US_SEQ_SWAP:
        o.n = us_local_swap(&local, &flight, US_MAIN, cpu, real[0], real[who]);
        break;
    }
    return o;
}

static struct outcome plainly(unsigned sequence, unsigned who)
{
    struct outcome o = {0};
    void *in[SOME];

    bring(who, in);
    switch (sequence) {
    case US_SEQ_MAIN_POP:
        o.n = us_main_pop_c(mirror, o.out);
        break;
    case US_SEQ_MAIN_PUSH:
        o.n = us_main_push_c(mirror, in[0]);
        break;
    case US_SEQ_MAIN_TAKE:
        o.n = us_main_take_c(mirror, o.out, SOME);
        break;
    case US_SEQ_MAIN_PUT:
        o.n = us_main_put_c(mirror, in, SOME, node_base(0));
        break;
    case US_SEQ_SWAP:
        o.n = us_sheaves_swap_c(mirror, US_MAIN, plain[0], plain[who]);
        if (o.n) /* its pops are counted for the CPU and begin anew */
            us_sheaf_set(plain[0], us_sheaf_size(plain[0]));
        break;
    }
    return o;
}

static void begin(void)
{
    make_local(&local, machine, US_MODE_RSEQ, US_REGION_SHEAVES, 0, 0, true);
    mirror = new_sheaves(0);
    us_flight_enter(machine, &flight);
    for (unsigned i = 0; i < 3; i++) {
        real[i] = new_sheaf(ROOM);
        plain[i] = new_sheaf(ROOM);
    }
    CHECK(us_local_swap(&local, &flight, US_MAIN, cpu, NULL, real[0]));
    CHECK(us_sheaves_swap_c(mirror, US_MAIN, NULL, plain[0]));
    for (unsigned i = 0; i < BEGUN_WITH; i++) {
        CHECK(us_fast_main_push(&local, US_MODE_RSEQ, object_at(i)));
        CHECK(us_main_push_c(mirror, object_at(i)));
    }
}

static void end(void)
{
    us_flight_leave(&flight);
    for (unsigned i = 0; i < 3; i++) {
        free(real[i]);
        free(plain[i]);
    }
    free(mirror);
    drop_local(&local);
}

static void check_same_sheaves(void)
{
    for (unsigned i = 0; i < 3; i++) {
        CHECK_EQ(us_sheaf_header(real[i]), us_sheaf_header(plain[i]));
        CHECK(memcmp(real[i]->object, plain[i]->object,
                     us_sheaf_size(real[i]) * sizeof *real[i]->object) == 0);
        CHECK_EQ(us_local_sheaf(&local, cpu, US_MAIN) == real[i],
                 mirror->sheaf[US_MAIN] == plain[i]);
    }
}

static unsigned interrupting;
static struct outcome interrupted;

static void interrupt(void)
{
    interrupted = act(interrupting, 2);
}

static void a_signal_inside_a_sequence_comes_first(void)
{
    for (unsigned s = FIRST_OP; s < FIRST_OP + OPS; s++)
        for (unsigned place = 0; place < PLACES; place++)
            for (interrupting = FIRST_OP; interrupting < FIRST_OP + OPS; interrupting++) {
                struct outcome got;

                begin();
                arm(s, place, 1, interrupt);
                got = act(s, 1);
                check_trapped(1);
                check_same(interrupted, plainly(interrupting, 2));
                check_same(got, plainly(s, 1));
                check_same_sheaves();
                end();
            }
}

/* Batches look again at which CPU this is only when they were moved, so they end, too. */
static void after_eight_aborts_a_sequence_gives_up(void)
{
    for (unsigned s = FIRST_OP; s < FIRST_OP + OPS; s++)
        for (unsigned place = 0; place < PLACES; place++) {
            begin();
            arm(s, place, 1000, NULL);
            CHECK_EQ(act(s, 1).n, 0);
            check_trapped(US_SEQ_TRIES);
            check_same_sheaves();
            end();
        }
}

int main(void)
{
    machine = us_machine_create(NULL, 0, 1, NULL);
    REQUIRE(machine != NULL);
    if (machine->mode != US_MODE_RSEQ)
        SKIP(us_machine_mode_reason());
    cpu = us_cpu_now(machine);
    REQUIRE(us_machine_on_cpu(machine, (int)cpu, NULL) == 0);
    REQUIRE(catch_traps());
    RUN(a_signal_inside_a_sequence_comes_first);
    RUN(after_eight_aborts_a_sequence_gives_up);
    us_machine_destroy(machine);
    return check_result();
}
#endif

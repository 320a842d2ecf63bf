/* Signals, preemption and migration exactly inside each restartable sequence, at each of its
 * places.
 *
 * The handler of a trap that a sequence runs into works on the same region, so what the sequence
 * had read is out of date when it goes on: the outcome must be that of both in order. */
// needs: machine
// machines: native
// flags: -DUS_TESTING
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "fixture_local.h"
#include "fixture_trap.h"

#ifndef US_HAVE_RSEQ
int main(void)
{
    SKIP("no sequences are written for this architecture");
}
#else

enum { LINK = 8 };
static struct us_machine *machine;
static struct us_local local;
static struct us_flight flight;
static unsigned cpu;

/* ---- ring operations, on the queue of the CPU and on a plain mirror ---------------------------
 */

enum { RING_OPS = 5, FIRST = 10, ROOM = 20 };

static void *object_at(unsigned i)
{
    return (void *)(uintptr_t)(node_base(0) + 16 * i);
}

static void objects_from(unsigned i, void **out)
{
    for (unsigned j = 0; j < SOME; j++)
        out[j] = object_at(i + j);
}

/* `fresh` numbers the objects that are brought in. */
static struct outcome ring_op(unsigned sequence, unsigned fresh)
{
    struct outcome o = {0};
    void *in[SOME];
    unsigned seen;

    objects_from(fresh, in);
    switch (sequence) {
    case US_SEQ_POP:
        o.n = us_fast_pop(&local, US_MODE_RSEQ, o.out);
        break;
    case US_SEQ_PUSH:
        o.n = us_fast_push(&local, US_MODE_RSEQ, in[0]);
        break;
    case US_SEQ_TAKE_HOT:
        o.n = us_local_pop_batch(&local, o.out, SOME);
        break;
    case US_SEQ_TAKE_OLDEST:
        o.n = us_local_take_oldest(&local, &flight, o.out, SOME, US_SEEN_COMMIT, &seen);
        break;
    case US_SEQ_ADD:
        o.n = us_local_add(&local, &flight, in, SOME, node_base(0), US_SEEN_COMMIT, &seen);
        break;
    }
    return o;
}

static struct outcome plain_op(struct us_ring *r, unsigned sequence, unsigned fresh)
{
    struct outcome o = {0};
    void *in[SOME];

    objects_from(fresh, in);
    switch (sequence) {
    case US_SEQ_POP:
        o.n = us_ring_pop_c(r, o.out);
        break;
    case US_SEQ_PUSH:
        o.n = us_ring_push_c(r, in[0]);
        break;
    case US_SEQ_TAKE_HOT:
        o.n = us_ring_pop_batch_c(r, o.out, SOME);
        break;
    case US_SEQ_TAKE_OLDEST:
        o.n = us_ring_take_oldest_c(r, o.out, SOME, US_SEEN_COMMIT);
        break;
    case US_SEQ_ADD:
        o.n = us_ring_add_c(r, in, SOME, US_SEEN_COMMIT);
        break;
    }
    return o;
}

static void check_same_ring(const struct us_ring *a, const struct us_ring *b)
{
    uint64_t h = us_ring_header(a);

    CHECK_EQ(h, us_ring_header(b));
    CHECK_EQ(us_ring_touched(a), us_ring_touched(b));
    for (unsigned i = 0; i < us_header_size(h); i++)
        CHECK_EQ(a->object[(us_header_head(h) + i) & a->mask],
                 b->object[(us_header_head(h) + i) & b->mask]);
}

static unsigned interrupting;
static struct outcome interrupted;

static void ring_interruption(void)
{
    interrupted = ring_op(interrupting, 200);
}

static void a_signal_inside_a_ring_sequence_comes_first(void)
{
    for (unsigned s = 0; s < RING_OPS; s++)
        for (unsigned place = 0; place < PLACES; place++)
            for (interrupting = 0; interrupting < RING_OPS; interrupting++) {
                struct us_ring *mirror = new_ring(ROOM, 0);
                struct outcome got;

                make_local(&local, machine, US_MODE_RSEQ, US_REGION_RING, 0, ROOM, true);
                for (unsigned i = 0; i < FIRST; i++) {
                    CHECK(us_fast_push(&local, US_MODE_RSEQ, object_at(i)));
                    CHECK(us_ring_push_c(mirror, object_at(i)));
                }
                us_flight_enter(machine, &flight);
                arm(s, place, 1, ring_interruption);
                got = ring_op(s, 100);
                check_trapped(1);
                check_same(interrupted, plain_op(mirror, interrupting, 200));
                check_same(got, plain_op(mirror, s, 100));
                check_same_ring(us_local_ring(&local, cpu), mirror);
                us_flight_leave(&flight);
                free(mirror);
                drop_local(&local);
            }
}

/* ---- list operations --------------------------------------------------------------------------
 */

struct cell {
    void *data, *link;
};
enum { LIST_OPS = 4, CELLS = 8 };
static const unsigned plain_ops[LIST_OPS] = {US_SEQ_LIST_POP, US_SEQ_LIST_PUSH, US_SEQ_DETACH,
                                             US_SEQ_INSTALL};
static const unsigned counted_ops[LIST_OPS] = {US_SEQ_COUNTED_POP, US_SEQ_COUNTED_PUSH,
                                               US_SEQ_DETACH, US_SEQ_INSTALL};
static bool counted; /* which of the two */

/* Two lists that may be a word's descriptor, twice: for the queue and for the mirror. In a world of
 * counted lists head and count are header and limit, and places count from the world. */
static struct world {
    struct us_list list[2];
    struct cell cell[2][CELLS], spare[2];
    struct us_words *words;
} real, plain;

static void make_world(struct world *w)
{
    for (unsigned l = 0; l < 2; l++) {
        struct us_words on = {.word = {&w->list[l]}, .base = (uintptr_t)w, .length = sizeof *w};

        w->list[l] = (struct us_list){NULL, counted ? CELLS + 1 : 0};
        for (unsigned i = 0; i < CELLS; i++)
            if (counted)
                REQUIRE(us_counted_push_c(&on, 0, LINK, &w->cell[l][i]));
            else
                us_list_push_c(&w->list[l], LINK, &w->cell[l][i]);
    }
}

static int name_of(const struct world *w, const void *p)
{
    const char *base = (const char *)w, *at = p;

    return p == NULL ? -1 : (int)(at - base);
}

/* The outcome: 0 and 1, or where in its world the object or descriptor lies. `who` picks spare cell
 * and list, so that sequence and interruption bring in their own. */
static int list_op(unsigned sequence, unsigned who)
{
    void *object = NULL;
    unsigned seen;

    switch (sequence) {
    case US_SEQ_LIST_POP:
        return us_fast_list_pop(&local, US_MODE_RSEQ, 0, LINK, &object) ? name_of(&real, object)
                                                                        : -1;
    case US_SEQ_LIST_PUSH:
        return us_fast_list_push(&local, US_MODE_RSEQ, 0, LINK, &real.list[0], &real.spare[who]);
    case US_SEQ_COUNTED_POP:
        return us_fast_counted_pop(&local, US_MODE_RSEQ, 0, LINK, &object) ? name_of(&real, object)
                                                                           : -1;
    case US_SEQ_COUNTED_PUSH:
        return us_fast_counted_push(&local, US_MODE_RSEQ, 0, LINK, &real.spare[who]);
    case US_SEQ_DETACH:
        return name_of(&real, us_local_detach(&local, &flight, 0, &seen));
    default:
        return us_local_install(&local, &flight, 0, cpu, &real.list[who]);
    }
}

static int plain_list_op(unsigned sequence, unsigned who)
{
    void *object = NULL;

    switch (sequence) {
    case US_SEQ_LIST_POP:
        return us_list_pop_c(plain.words->word[0], LINK, &object) ? name_of(&plain, object) : -1;
    case US_SEQ_LIST_PUSH:
        if (plain.words->word[0] != &plain.list[0])
            return 0;
        us_list_push_c(&plain.list[0], LINK, &plain.spare[who]);
        return 1;
    case US_SEQ_COUNTED_POP:
        return us_counted_pop_c(plain.words, 0, LINK, &object) ? name_of(&plain, object) : -1;
    case US_SEQ_COUNTED_PUSH:
        return us_counted_push_c(plain.words, 0, LINK, &plain.spare[who]);
    case US_SEQ_DETACH:
        return name_of(&plain, us_words_detach_c(plain.words, 0));
    default:
        if (counted)
            return us_words_install_counted_c(plain.words, 0, (void *)&plain.list[who]);
        return us_words_install_c(plain.words, 0, &plain.list[who]);
    }
}

/* Headers are equal, and links lead to the same places. */
static void check_same_places(uint64_t a, uint64_t b)
{
    const uint32_t size = us_counted_size(a);

    CHECK_EQ(size, us_counted_size(b));
    for (uint32_t i = 0; i < size; i++) {
        const struct cell *at = us_counted_object((uintptr_t)&real, a);
        const struct cell *mirror = us_counted_object((uintptr_t)&plain, b);

        if (!CHECK_EQ(name_of(&real, at), name_of(&plain, mirror)))
            return;
        a = (uintptr_t)at->link;
        b = (uintptr_t)mirror->link;
    }
}

static void check_same_worlds(void)
{
    for (unsigned l = 0; l < 2; l++) {
        const struct cell *a = real.list[l].head, *b = plain.list[l].head;

        CHECK_EQ(real.list[l].count, plain.list[l].count);
        if (counted) {
            CHECK_EQ(real.list[l].head, plain.list[l].head);
            check_same_places((uintptr_t)a, (uintptr_t)b);
            continue;
        }
        for (; a != NULL && b != NULL; a = a->link, b = b->link)
            CHECK_EQ(name_of(&real, a), name_of(&plain, b));
        CHECK(a == NULL && b == NULL);
    }
    CHECK_EQ(name_of(&real, us_local_word(&local, cpu, 0)),
             plain.words->word[0] == &us_closed_list ? -1 : name_of(&plain, plain.words->word[0]));
}

static int list_interrupted;

static void list_interruption(void)
{
    list_interrupted = list_op(interrupting, 1);
}

/* An install needs an empty word to begin with, the others one that is taken. */
static void begin_lists(bool installed)
{
    make_world(&real);
    make_world(&plain);
    make_local(&local, machine, US_MODE_RSEQ, US_REGION_WORDS, LINK, 0, true);
    local.counted = counted;
    plain.words = new_words(0);
    us_words_init(local.region[cpu], (uintptr_t)&real, sizeof real);
    us_words_init(plain.words, (uintptr_t)&plain, sizeof plain);
    us_flight_enter(machine, &flight);
    if (installed) {
        CHECK(us_local_install(&local, &flight, 0, cpu, &real.list[0]));
        CHECK(plain_list_op(US_SEQ_INSTALL, 0));
    }
}

static void check_list_signals(const unsigned *ops)
{
    for (unsigned i = 0; i < LIST_OPS; i++)
        for (unsigned place = 0; place < PLACES; place++)
            for (unsigned j = 0; j < LIST_OPS; j++) {
                const unsigned s = ops[i];
                int got;

                interrupting = ops[j];
                begin_lists(s != US_SEQ_INSTALL);
                arm(s, place, 1, list_interruption);
                got = list_op(s, 0);
                check_trapped(1);
                CHECK_EQ(list_interrupted, plain_list_op(interrupting, 1));
                CHECK_EQ(got, plain_list_op(s, 0));
                check_same_worlds();
                us_flight_leave(&flight);
                free(plain.words);
                drop_local(&local);
            }
}

static void a_signal_inside_a_list_sequence_comes_first(void)
{
    counted = false;
    check_list_signals(plain_ops);
    counted = true;
    check_list_signals(counted_ops);
}

/* ---- giving up --------------------------------------------------------------------------------
 */

/* Interrupted over and over, a sequence ends as a miss and leaves the region as it was. Batches
 * look again at which CPU this is only when they were moved, so they end, too. */
static void check_lists_give_up(const unsigned *ops)
{
    for (unsigned i = 0; i < LIST_OPS; i++)
        for (unsigned place = 0; place < PLACES; place++) {
            begin_lists(ops[i] != US_SEQ_INSTALL);
            arm(ops[i], place, 1000, NULL);
            CHECK(list_op(ops[i], 0) <= 0);
            check_trapped(US_SEQ_TRIES);
            check_same_worlds();
            us_flight_leave(&flight);
            free(plain.words);
            drop_local(&local);
        }
}

static void after_eight_aborts_a_sequence_gives_up(void)
{
    for (unsigned s = 0; s < RING_OPS; s++)
        for (unsigned place = 0; place < PLACES; place++) {
            struct us_ring *mirror = new_ring(ROOM, 0);

            make_local(&local, machine, US_MODE_RSEQ, US_REGION_RING, 0, ROOM, true);
            for (unsigned i = 0; i < FIRST; i++) {
                CHECK(us_fast_push(&local, US_MODE_RSEQ, object_at(i)));
                CHECK(us_ring_push_c(mirror, object_at(i)));
            }
            us_flight_enter(machine, &flight);
            arm(s, place, 1000, NULL);
            CHECK_EQ(ring_op(s, 100).n, 0);
            check_trapped(US_SEQ_TRIES);
            CHECK_EQ(us_ring_header(us_local_ring(&local, cpu)), us_ring_header(mirror));
            us_flight_leave(&flight);
            free(mirror);
            drop_local(&local);
        }
    counted = false;
    check_lists_give_up(plain_ops);
    counted = true;
    check_lists_give_up(counted_ops);
}

/* ---- the fence --------------------------------------------------------------------------------
 */

static atomic_bool begun;
static unsigned lingering, other_cpu;
static struct outcome lingered;

static void *lingers(void *arg)
{
    REQUIRE(us_machine_on_cpu(machine, (int)other_cpu, NULL) == 0);
    us_flight_enter(machine, &flight);
    atomic_store(&begun, true);
    lingered = ring_op(lingering, 100);
    us_flight_leave(&flight);
    return arg;
}

/* While a sequence of another CPU lingers, its CPU is closed and the queue changed by plain code:
 * the sequence must begin again, and finds it closed. Where it came too early or was preempted, it
 * was before or is after, and the outcome is the same as that of a plain operation then. */
static void check_fence(unsigned sequence, unsigned place)
{
    volatile int *point = &us_inject[PLACES * sequence + place];
    struct us_ring *mirror = new_ring(ROOM, 0);
    struct outcome before = {0};
    struct us_flight f;
    pthread_t thread;
    void *region, *out[ROOM], *some[SOME];
    uint64_t header;
    unsigned n;

    make_local(&local, machine, US_MODE_RSEQ, US_REGION_RING, 0, ROOM, true);
    for (unsigned i = 0; i < FIRST; i++) {
        CHECK(us_ring_push_c(us_local_ring(&local, other_cpu), object_at(i)));
        CHECK(us_ring_push_c(mirror, object_at(i)));
    }
    header = us_ring_header(mirror);
    atomic_store(&begun, false);
    lingering = sequence;
    *point = 1 << 22; /* a millisecond or two: less than a time slice */
    REQUIRE(pthread_create(&thread, NULL, lingers, NULL) == 0);
    while (!atomic_load(&begun))
        continue;
    usleep(100);
    us_flight_enter(machine, &f);
    *point = 0;
    REQUIRE(us_local_close(&local, &f, other_cpu, false, &region));
    if (us_ring_header(region) != header)
        before = plain_op(mirror, sequence, 100);
    n = us_ring_take_oldest_c(region, out, ROOM, US_SEEN_KEEP);
    CHECK_EQ(us_ring_take_oldest_c(mirror, out, ROOM, US_SEEN_KEEP), n);
    objects_from(300, some);
    CHECK_EQ(us_ring_add_c(region, some, SOME, US_SEEN_KEEP), SOME);
    CHECK_EQ(us_ring_add_c(mirror, some, SOME, US_SEEN_KEEP), SOME);
    usleep(4000); /* closed: whatever still ran on the old state would show now */
    check_same_ring(region, mirror);
    us_local_open(&local, &f, other_cpu);
    us_flight_leave(&f);
    pthread_join(thread, NULL);
    if (before.n == 0 && lingered.n > 0) /* begun again when it was open */
        before = plain_op(mirror, sequence, 100);
    check_same(lingered, before);
    check_same_ring(us_local_ring(&local, other_cpu), mirror);
    free(mirror);
    drop_local(&local);
}

static void a_fence_reaches_the_sequence_that_lingers(void)
{
    other_cpu = (cpu + 1) % machine->ncpus;
    if (us_machine_on_cpu(machine, (int)other_cpu, NULL) != 0 || other_cpu == cpu) {
        printf("  (needs two CPUs)\n");
        return;
    }
    REQUIRE(us_machine_on_cpu(machine, -1, NULL) == 0);
    for (unsigned s = 0; s < RING_OPS; s++)
        for (unsigned place = US_SEQ_LOADED; place <= US_SEQ_READY; place++)
            check_fence(s, place);
}

/* ---- preemption and migration -------------------------------------------------------------------
 */

enum { WORKERS = 3, OBJECTS = 60, STEPS = 12 };
static atomic_bool held[OBJECTS], stop;

static void got(void *object)
{
    REQUIRE(!atomic_exchange(&held[((uintptr_t)object - node_base(0)) / 16], true));
}

static void gives(void *object)
{
    atomic_store(&held[((uintptr_t)object - node_base(0)) / 16], false);
}

struct worker {
    pthread_t thread;
    uint64_t state, steps;
    unsigned n;
    void *object[OBJECTS];
};

static void work(struct worker *w, struct us_flight *f)
{
    void **top = w->object + w->n;
    unsigned kind = model_random(&w->state) % RING_OPS, n = 0, seen;
    const unsigned give = w->n < SOME ? w->n : SOME;

    if (kind == US_SEQ_POP)
        n = us_fast_pop(&local, US_MODE_RSEQ, top);
    else if (kind == US_SEQ_TAKE_HOT)
        n = us_local_pop_batch(&local, top, SOME);
    else if (kind == US_SEQ_TAKE_OLDEST)
        n = us_local_take_oldest(&local, f, top, SOME, US_SEEN_TOUCH, &seen);
    for (unsigned i = 0; i < n; i++)
        got(top[i]);
    w->n += n;
    if ((kind != US_SEQ_PUSH && kind != US_SEQ_ADD) || give == 0)
        return;
    top -= kind == US_SEQ_PUSH ? 1 : give;
    for (void **o = top; o < w->object + w->n; o++)
        gives(*o);
    if (kind == US_SEQ_PUSH)
        n = us_fast_push(&local, US_MODE_RSEQ, *top);
    else
        n = us_local_add(&local, f, top, give, node_base(0), US_SEEN_TOUCH, &seen);
    w->n -= n;
    for (void **o = top; o < w->object + w->n; o++)
        got(*o);
}

static void *works(void *arg)
{
    struct worker *w = arg;
    struct us_flight f;

    while (!atomic_load(&stop)) {
        us_flight_enter(machine, &f);
        work(w, &f);
        us_flight_leave(&f);
        w->steps++;
    }
    return NULL;
}

static void move(pthread_t thread, unsigned to)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(to, &set);
    (void)pthread_setaffinity_np(thread, sizeof set, &set);
}

/* Workers crowd one CPU and are moved about, while a sequence at a time lingers at one place for
 * about a time slice. */
static void preemption_and_migration_lose_nothing(void)
{
    static struct worker worker[WORKERS];
    uint64_t state = 3;
    unsigned found = 0, given = 0;
    void *object;

    make_local(&local, machine, US_MODE_RSEQ, US_REGION_RING, 0, ROOM, true);
    for (unsigned i = 0; i < OBJECTS; i++)
        got(object_at(i));
    for (unsigned i = 0; i < WORKERS; i++) {
        worker[i].state = i + 1;
        while (worker[i].n < OBJECTS / WORKERS)
            worker[i].object[worker[i].n++] = object_at(given++);
        REQUIRE(pthread_create(&worker[i].thread, NULL, works, &worker[i]) == 0);
    }
    for (unsigned point = 0; point < PLACES * RING_OPS; point++) {
        us_inject[point] = 200000;
        for (unsigned step = 0; step < STEPS; step++) {
            unsigned one = model_random(&state) % WORKERS;

            move(worker[one].thread, model_random(&state) % machine->ncpus);
            usleep(1000);
        }
        us_inject[point] = 0;
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(worker[i].thread, NULL);
        CHECK(worker[i].steps > 0);
        found += worker[i].n;
    }
    for (unsigned i = 0; i < machine->ncpus; i++)
        while (us_ring_pop_c(us_local_ring(&local, i), &object)) {
            got(object);
            found++;
        }
    CHECK_EQ(found, given);
    drop_local(&local);
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
    RUN(a_signal_inside_a_ring_sequence_comes_first);
    RUN(a_signal_inside_a_list_sequence_comes_first);
    RUN(a_fence_reaches_the_sequence_that_lingers);
    RUN(after_eight_aborts_a_sequence_gives_up);
    REQUIRE(us_machine_on_cpu(machine, -1, NULL) == 0);
    RUN(preemption_and_migration_lose_nothing);
    us_machine_destroy(machine);
    return check_result();
}
#endif

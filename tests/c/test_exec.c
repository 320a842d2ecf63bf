// machines: native
/* The native executor: what programs are refused, that passes leave nothing behind, that tasks wait
 * for one another and stop together, that deadlocks are named, and that failures free everything.
 */
#define _GNU_SOURCE
#include "check.h"

#include "work/exec.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(a)      (unsigned)(sizeof(a) / sizeof(*(a)))
#define OP(name, ...) {.op = US_OP_##name, __VA_ARGS__}

static const struct us_program_cache one_cache[] = {{"object", 128, 0}};

static struct us_program program(const struct us_program_task *task, unsigned ntasks)
{
    return (struct us_program){.cache = one_cache, .ncaches = 1, .task = task, .ntasks = ntasks};
}

/* The text of the error a single task is refused with; "" when it is taken. */
static const char *refusal(const struct us_op *op, size_t nops)
{
    static struct us_error e;
    struct us_program_task task = {.op = op, .nops = nops};
    struct us_program p = program(&task, 1);
    struct us_program_facts facts;
    static const uint32_t channel[] = {4};

    p.channel = channel;
    p.nchannels = 1;
    if (us_program_check(&p, &facts, &e) != US_OK)
        return e.text;
    us_program_facts_release(&facts);
    return "";
}

#define REFUSED(text, ...)                                                 \
    do {                                                                   \
        const struct us_op ops_[] = {__VA_ARGS__};                         \
        const char *said_ = refusal(ops_, COUNT(ops_));                    \
        if (!CHECK(*text ? strstr(said_, text) != NULL : *said_ == 0))     \
            fprintf(stderr, "  expected '%s', found '%s'\n", text, said_); \
    } while (0)

static void wrong_programs_are_refused(void)
{
    REFUSED("", OP(ALLOC, .slot = 0), OP(FREE, .slot = 0));
    REFUSED("op 2 (FREE): slot 0 was emptied by op 1", OP(ALLOC, .slot = 0), OP(FREE, .slot = 0),
            OP(FREE, .slot = 0));
    REFUSED("op 0 (FREE): slot 7 was never allocated", OP(FREE, .slot = 7));
    REFUSED("op 0 (TOUCH): slot 0 was never allocated", OP(TOUCH, .slot = 0));
    REFUSED("op 1 (ALLOC): slot 3 still holds the object of op 0", OP(ALLOC, .slot = 3),
            OP(ALLOC, .slot = 3));
    REFUSED("cache 5", OP(ALLOC, .cache = 5));
    REFUSED("channel 2", OP(RECV, .cache = 2));
    REFUSED("op code 99", {.op = 99});
    REFUSED("op code 0", {.op = 0});
    REFUSED("129 bytes of an object of 128", OP(ALLOC, .slot = 0), OP(TOUCH, .arg = 129));
    REFUSED("flags 0x2", OP(ALLOC, .slot = 0), OP(FREE, .flags = US_OPF_ZERO));
    REFUSED("slot 16777216", OP(ALLOC, .slot = US_MAX_SLOTS));
    REFUSED("was emptied by", OP(ALLOC, .slot = 0), OP(SEND, .slot = 0), OP(FREE, .slot = 0));
    REFUSED("use two channels", OP(SEND, .slot = US_NO_SLOT), OP(ALLOC), OP(SEND));
    REFUSED("not freed as often", OP(FREE, .flags = US_OPF_SHARED));
    REFUSED("op 0 (SLEEP): 1000000000001 ns", OP(SLEEP, .arg = US_MAX_DELAY + 1));
    REFUSED("op 0 (SEND): 1000000000001 ns", OP(SEND, .slot = US_NO_SLOT, .arg = US_MAX_DELAY + 1));
    REFUSED("", OP(MARK), OP(SLEEP, .arg = US_MAX_DELAY), OP(SEND, .slot = US_NO_SLOT, .arg = 1));
}

static void interrupts_have_one_cpu_and_never_sleep(void)
{
    const struct us_op sleeps[] = {OP(SLEEP, .arg = 1)}, works[] = {OP(WORK, .arg = 1)};
    const unsigned cpus[] = {0, 1};
    const struct {
        struct us_program_task task;
        const char *said;
    } rows[] = {
        {{works, 1, cpus, 1, US_TASK_INTERRUPT}, ""},
        {{works, 1, cpus, 2, US_TASK_INTERRUPT}, "task 0: an interrupt of 2 CPUs"},
        {{works, 1, NULL, 0, US_TASK_INTERRUPT}, "task 0: an interrupt of 0 CPUs"},
        {{works, 1, cpus, 1, 6}, "task 0: flags 0x6"},
        {{sleeps, 1, cpus, 1, US_TASK_INTERRUPT}, "an interrupt cannot sleep"},
        {{sleeps, 1, cpus, 1, 0}, ""},
    };

    for (unsigned i = 0; i < COUNT(rows); i++) {
        struct us_program p = program(&rows[i].task, 1);
        struct us_program_facts facts;
        struct us_error e = {0};
        bool taken = us_program_check(&p, &facts, &e) == US_OK;

        CHECK_EQ(taken, *rows[i].said == 0);
        CHECK(taken || strstr(e.text, rows[i].said));
        if (taken)
            us_program_facts_release(&facts);
    }
}

static void loops_are_checked_for_the_second_round(void)
{
    REFUSED("", OP(ALLOC), OP(FREE), OP(REPEAT, .slot = 2, .arg = 1000000));
    REFUSED("op 0 (ALLOC): slot 0 still holds", OP(ALLOC), OP(REPEAT, .slot = 1, .arg = 2));
    REFUSED("", OP(ALLOC), OP(REPEAT, .slot = 1, .arg = 1));
    REFUSED("slot 0 was emptied", OP(ALLOC), OP(FREE), OP(REPEAT, .slot = 1, .arg = 2));
    REFUSED("begins inside another", OP(WORK), OP(WORK), OP(REPEAT, .slot = 2, .arg = 2),
            OP(REPEAT, .slot = 2, .arg = 2));
    REFUSED("", OP(WORK), OP(REPEAT, .slot = 1, .arg = 2), OP(WORK),
            OP(REPEAT, .slot = 3, .arg = 2));
    REFUSED("but 0 stand before it", OP(REPEAT, .slot = 1, .arg = 2));
    REFUSED("0 times", OP(WORK), OP(REPEAT, .slot = 1));
}

static void loops_multiply_the_counts(void)
{
    const struct us_op op[] = {OP(ALLOC), OP(FREE), OP(REPEAT, .slot = 2, .arg = 3),
                               OP(ALLOC), OP(FREE), OP(REPEAT, .slot = 5, .arg = 10),
                               OP(ALLOC), OP(MARK), OP(REPEAT, .slot = 1, .arg = 7)};
    struct us_program_task task = {.op = op, .nops = COUNT(op)};
    struct us_program p = program(&task, 1);
    struct us_program_facts facts;

    REQUIRE(us_program_check(&p, &facts, NULL) == US_OK);
    CHECK_EQ(facts.nallocs, 10 * (3 + 1) + 1);
    CHECK_EQ(facts.nfrees, 10 * (3 + 1));
    CHECK_EQ(facts.nmarks, 7);
    us_program_facts_release(&facts);
}

/* ---- runs
 * ------------------------------------------------------------------------------------------ */

static struct us_allocator *allocator(uint64_t memory)
{
    struct us_allocator_options o;
    struct us_cache_options c = {.name = "object", .size = 128};
    struct us_allocator *a;
    struct us_error e = {0};

    us_allocator_options_init(&o);
    o.policy = "unified";
    o.memory = memory;
    o.address_range = 1ull << 30;
    a = us_allocator_create(&o, &e);
    if (!a || !us_cache_create(a, &c, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    return a;
}

static uint64_t live_objects(struct us_allocator *a)
{
    struct us_account total;
    struct us_memory_account memory;

    us_allocator_account(a, &total, &memory);
    return total.live_objects;
}

static void end(struct us_allocator *a)
{
    struct us_error e = {0};

    /* Without force: fails when anything was left. */
    if (!CHECK_EQ(us_allocator_destroy(a, false, &e), US_OK))
        fprintf(stderr, "%s\n", e.text);
}

static struct us_runner *runner(const struct us_program *p, struct us_allocator *a,
                                struct us_run_options o)
{
    struct us_error e = {0};
    struct us_runner *r;

    o.allocator = a;
    o.window = o.window ? o.window : 1000;
    r = us_runner_create(p, &o, &e);
    if (!r) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    return r;
}

static uint64_t counted(struct us_allocator *a, unsigned row)
{
    struct us_cache *c = us_cache_find(a, "object");
    uint64_t *values = calloc((size_t)a->machine->ncpus * c->nrows, sizeof(*values)), sum = 0;

    us_cache_stats(c, true, values);
    for (unsigned cpu = 0; cpu < a->machine->ncpus; cpu++)
        sum += values[(size_t)cpu * c->nrows + row];
    free(values);
    return sum;
}

static void passes_free_what_they_leave(void)
{
    const struct us_op op[] = {OP(ALLOC, .slot = 0), OP(ALLOC, .slot = 1), OP(ALLOC, .slot = 2),
                               OP(FREE, .slot = 1)};
    struct us_program_task task = {.op = op, .nops = COUNT(op)};
    struct us_program p = program(&task, 1);
    struct us_allocator *a = allocator(0);
    struct us_runner *r = runner(&p, a, (struct us_run_options){.touch = US_TOUCH_ALL});
    uint64_t ns[5], objects = 0;

    CHECK_EQ(us_runner_passes(r, 5, ns, NULL), US_OK);
    CHECK_EQ(live_objects(a), 2);
    CHECK_EQ(us_runner_live_bytes(r, &objects), 256);
    CHECK_EQ(objects, 2);
    us_runner_clean(r);
    CHECK_EQ(live_objects(a), 0);
    CHECK_EQ(counted(a, US_ALLOC_FAST) + counted(a, US_ALLOC_SECOND_LEVEL) +
                 counted(a, US_ALLOC_SLOW) + counted(a, US_ALLOC_REMOTE),
             15);
    us_runner_destroy(r);
    end(a);
}

static void messages_arrive_in_order_of_capacity(void)
{
    const unsigned cpus[] = {0, 1};
    const struct us_op producer[] = {OP(ALLOC), OP(SEND), OP(REPEAT, .slot = 2, .arg = 5000)};
    const struct us_op consumer[] = {OP(RECV), OP(TOUCH, .arg = 128), OP(FREE),
                                     OP(REPEAT, .slot = 3, .arg = 5000)};
    unsigned ncpus = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : 0;
    struct us_program_task task[] = {
        {.op = producer, .nops = COUNT(producer), .cpu = cpus, .ncpus = ncpus},
        {.op = consumer, .nops = COUNT(consumer), .cpu = cpus + 1, .ncpus = ncpus},
    };
    uint64_t ns[2];

    for (uint32_t capacity = 1; capacity <= 64; capacity *= 8) {
        struct us_program p = program(task, 2);
        struct us_allocator *a = allocator(0);
        struct us_runner *r;

        p.channel = &capacity;
        p.nchannels = 1;
        r = runner(&p, a, (struct us_run_options){.touch = US_TOUCH_FIRST});
        CHECK_EQ(us_runner_passes(r, 2, ns, NULL), US_OK);
        CHECK_EQ(live_objects(a), 0);
        us_runner_destroy(r);
        end(a);
    }
}

/* A message with a delay holds those behind it back, so the sum of delays bounds nothing, but the
 * first one's does; what has not arrived when a run ends is freed all the same. */
static void late_messages_keep_their_order(void)
{
    enum { DELAY = 3000000 };
    const struct us_op sender[] = {OP(ALLOC), OP(SEND, .arg = DELAY),       OP(ALLOC), OP(SEND),
                                   OP(ALLOC), OP(SEND, .arg = US_MAX_DELAY)};
    const struct us_op receiver[] = {OP(RECV), OP(FREE), OP(MARK), OP(REPEAT, .slot = 3, .arg = 2)};
    struct us_program_task task[] = {{.op = sender, .nops = COUNT(sender)},
                                     {.op = receiver, .nops = COUNT(receiver)}};
    struct us_program p = program(task, 2);
    const uint32_t channel[] = {4};
    struct us_allocator *a = allocator(0);
    struct us_runner *r;
    uint64_t ns[2];

    p.channel = channel;
    p.nchannels = 1;
    r = runner(&p, a, (struct us_run_options){0});
    CHECK_EQ(us_runner_passes(r, 2, ns, NULL), US_OK);
    CHECK(ns[0] >= DELAY && ns[1] >= DELAY);
    CHECK_EQ(us_runner_marks(r, 0), 0);
    CHECK_EQ(us_runner_marks(r, 1), 2);
    CHECK_EQ(us_runner_elapsed_ns(r), ns[1]);
    CHECK_EQ(live_objects(a), 1);
    us_runner_clean(r);
    CHECK_EQ(live_objects(a), 0);
    us_runner_destroy(r);
    end(a);
}

/* Two receivers of one channel: each of the two messages finds one, whoever was woken for it. */
static void late_messages_reach_every_receiver(void)
{
    const struct us_op sender[] = {OP(SEND, .slot = US_NO_SLOT, .arg = 2000000),
                                   OP(REPEAT, .slot = 1, .arg = 8)};
    const struct us_op receiver[] = {OP(RECV, .slot = US_NO_SLOT), OP(REPEAT, .slot = 1, .arg = 4)};
    struct us_program_task task[] = {{.op = sender, .nops = COUNT(sender)},
                                     {.op = receiver, .nops = COUNT(receiver)},
                                     {.op = receiver, .nops = COUNT(receiver)}};
    struct us_program p = program(task, 3);
    const uint32_t channel[] = {8};
    struct us_runner *r;
    uint64_t ns[3];

    p.channel = channel;
    p.nchannels = 1;
    r = runner(&p, NULL, (struct us_run_options){.heap = US_HEAP_NULL});
    CHECK_EQ(us_runner_passes(r, 3, ns, NULL), US_OK);
    us_runner_destroy(r);
}

static void a_sleep_is_no_deadlock(void)
{
    enum { SLEEP = 60000000 }; /* longer than two looks for deadlocks */
    const struct us_op sleeper[] = {OP(SLEEP, .arg = SLEEP), OP(SEND, .slot = US_NO_SLOT)};
    const struct us_op waiter[] = {OP(RECV, .slot = US_NO_SLOT)};
    struct us_program_task task[] = {{.op = sleeper, .nops = COUNT(sleeper)},
                                     {.op = waiter, .nops = COUNT(waiter)}};
    struct us_program p = program(task, 2);
    const uint32_t channel[] = {1};
    struct us_runner *r;
    uint64_t ns;

    p.channel = channel;
    p.nchannels = 1;
    r = runner(&p, NULL, (struct us_run_options){.heap = US_HEAP_NULL});
    CHECK_EQ(us_runner_passes(r, 1, &ns, NULL), US_OK);
    CHECK(ns >= SLEEP);
    us_runner_destroy(r);
}

/* An endless task and one that waits for ever are stopped when the time is over. */
static void a_duration_ends_endless_programs(void)
{
    enum { WARMUP = 2000000, DURATION = 8000000 };
    const struct us_op endless[] = {OP(ALLOC), OP(MARK), OP(FREE),
                                    OP(REPEAT, .slot = 3, .arg = 1ull << 40)};
    const struct us_op short_one[] = {OP(ALLOC), OP(MARK)};
    struct us_program_task task[] = {{.op = endless, .nops = COUNT(endless)},
                                     {.op = short_one, .nops = COUNT(short_one)}};
    struct us_program p = program(task, 2);
    struct us_allocator *a = allocator(0);
    struct us_run_options o = {.warmup_ns = WARMUP, .duration_ns = DURATION};
    struct us_runner *r = runner(&p, a, o);
    struct us_error e = {0};
    uint64_t ns[2];

    CHECK_EQ(us_runner_passes(r, 2, ns, &e), US_EINVAL);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(us_runner_passes(r, 1, ns, &e), US_OK);
        CHECK(ns[0] >= WARMUP + DURATION);
        CHECK(us_runner_elapsed_ns(r) >= DURATION && us_runner_elapsed_ns(r) <= ns[0]);
        CHECK(us_runner_marks(r, 0) > 0);
        CHECK(us_runner_marks(r, 1) <= 1);
    }
    us_runner_destroy(r);
    r = runner(
        &(struct us_program){.cache = one_cache, .ncaches = 1, .task = task + 1, .ntasks = 1}, a,
        o);
    CHECK_EQ(us_runner_passes(r, 1, ns, &e), US_OK);
    CHECK(us_runner_elapsed_ns(r) < DURATION); /* its program was too short */
    us_runner_destroy(r);
    CHECK_EQ(live_objects(a), 0);
    end(a);
}

/* Task 0 allocates into shared slots which task 1 frees, and the slots are used again. */
static void shared_slots_order_tasks(void)
{
    enum { ROUNDS = 2000, SLOTS = 8 };
    static struct us_op maker[2 * ROUNDS], breaker[2 * ROUNDS];
    struct us_program_task task[] = {{.op = maker, .nops = 2 * ROUNDS},
                                     {.op = breaker, .nops = 2 * ROUNDS}};
    struct us_program p = program(task, 2);
    struct us_allocator *a = allocator(0);
    uint64_t ns[3];
    struct us_runner *r;

    for (unsigned i = 0; i < ROUNDS; i++) {
        maker[2 * i] = (struct us_op)OP(PROGRESS, .arg = 2 * i);
        maker[2 * i + 1] = (struct us_op)OP(ALLOC, .flags = US_OPF_SHARED, .slot = i % SLOTS);
        breaker[2 * i] = (struct us_op)OP(PROGRESS, .arg = 2 * i + 1);
        breaker[2 * i + 1] = (struct us_op)OP(FREE, .flags = US_OPF_SHARED, .slot = i % SLOTS);
    }
    r = runner(&p, a, (struct us_run_options){.window = 16});
    CHECK_EQ(us_runner_passes(r, 3, ns, NULL), US_OK);
    CHECK_EQ(live_objects(a), 0);
    us_runner_destroy(r);
    end(a);
}

static void barriers_hold_all_tasks(void)
{
    enum { TASKS = 5 };
    const struct us_op op[] = {OP(ALLOC), OP(BARRIER), OP(FREE), OP(BARRIER),
                               OP(REPEAT, .slot = 4, .arg = 50)};
    struct us_program_task task[TASKS + 1];
    struct us_program p = program(task, TASKS + 1);
    const struct us_op apart[] = {OP(WORK, .arg = 10)};
    struct us_allocator *a = allocator(0);
    struct us_runner *r;
    uint64_t ns[2];

    for (unsigned i = 0; i < TASKS; i++)
        task[i] = (struct us_program_task){.op = op, .nops = COUNT(op)};
    task[TASKS] = (struct us_program_task){.op = apart, .nops = COUNT(apart)}; /* has no barrier */
    r = runner(&p, a, (struct us_run_options){0});
    CHECK_EQ(us_runner_passes(r, 2, ns, NULL), US_OK);
    us_runner_destroy(r);
    end(a);
}

static void deadlocks_are_named(void)
{
    const struct us_op first[] = {OP(ALLOC), OP(RECV, .cache = 0, .slot = 1)};
    const struct us_op second[] = {OP(RECV, .cache = 1, .slot = 0)};
    const struct us_op third[] = {OP(WORK, .arg = 5)};
    struct us_program_task task[] = {{.op = first, .nops = COUNT(first)},
                                     {.op = second, .nops = COUNT(second)},
                                     {.op = third, .nops = COUNT(third)}};
    struct us_program p = program(task, 3);
    const uint32_t channel[] = {4, 4};
    struct us_allocator *a = allocator(0);
    struct us_error e = {0};
    struct us_runner *r;
    uint64_t ns;

    p.channel = channel;
    p.nchannels = 2;
    r = runner(&p, a, (struct us_run_options){0});
    CHECK_EQ(us_runner_passes(r, 1, &ns, &e), US_EBUSY);
    CHECK(strstr(e.text, "task 0 at op 1 for a message on channel 0"));
    CHECK(strstr(e.text, "task 1 at op 0 for a message on channel 1"));
    CHECK_EQ(live_objects(a), 0);
    us_runner_destroy(r);
    end(a);
}

static void failed_allocations_end_the_run(void)
{
    enum { MANY = 40000 }; /* 5 MB of objects in 2 MiB */
    struct us_op *op = calloc(MANY, sizeof(*op));
    struct us_program_task task = {.op = op, .nops = MANY};
    struct us_program p = program(&task, 1);
    struct us_allocator *a = allocator(2 << 20);
    struct us_error e = {0};
    struct us_runner *r;
    uint64_t ns;

    for (unsigned i = 0; i < MANY; i++)
        op[i] = (struct us_op)OP(ALLOC, .slot = i);
    r = runner(&p, a, (struct us_run_options){0});
    CHECK_EQ(us_runner_passes(r, 1, &ns, &e), US_ENOMEM);
    CHECK(strstr(e.text, "task 0, op ") && strstr(e.text, "(ALLOC)"));
    CHECK_EQ(live_objects(a), 0);
    us_runner_destroy(r);
    end(a);
    free(op);
}

static bool stop_at_once(void *context)
{
    ++*(unsigned *)context;
    return true;
}

static void a_run_can_be_stopped(void)
{
    const struct us_op op[] = {OP(ALLOC), OP(FREE), OP(REPEAT, .slot = 2, .arg = 1ull << 40)};
    const struct us_op busy[] = {OP(WORK, .arg = 1ull << 50)};
    const struct us_op waiting[] = {OP(RECV, .slot = US_NO_SLOT)};
    struct us_program_task task[] = {{.op = op, .nops = COUNT(op)},
                                     {.op = busy, .nops = COUNT(busy)},
                                     {.op = waiting, .nops = COUNT(waiting)}};
    struct us_program p = program(task, 3);
    const uint32_t channel = 1;
    struct us_allocator *a = allocator(0);
    unsigned polled = 0;
    struct us_runner *r;
    uint64_t ns;

    p.channel = &channel;
    p.nchannels = 1;
    r = runner(&p, a, (struct us_run_options){.poll = stop_at_once, .poll_context = &polled});
    CHECK_EQ(us_runner_passes(r, 1, &ns, NULL), US_EBUSY);
    CHECK_EQ(polled, 1);
    CHECK_EQ(live_objects(a), 0);
    us_runner_destroy(r);
    end(a);
}

static void other_heaps_run_the_same_programs(void)
{
    static const struct us_program_cache caches[] = {{"object", 128, 256}, {NULL, 3000000, 0}};
    const struct us_op op[] = {OP(ALLOC, .slot = 0),
                               OP(ALLOC, .slot = 1, .cache = 1),
                               OP(ALLOC, .slot = 2, .cache = 1, .flags = US_OPF_ZERO),
                               OP(TOUCH, .slot = 2),
                               OP(FREE, .slot = 0),
                               OP(FREE, .slot = 2)};
    struct us_program_task task = {.op = op, .nops = COUNT(op)};
    struct us_program p = {.cache = caches, .ncaches = 2, .task = &task, .ntasks = 1};
    const enum us_heap_kind heaps[] = {US_HEAP_MALLOC, US_HEAP_NULL};
    uint64_t ns[3];

    for (unsigned i = 0; i < COUNT(heaps); i++) {
        struct us_runner *r =
            runner(&p, NULL, (struct us_run_options){.heap = heaps[i], .touch = US_TOUCH_ALL});

        CHECK_EQ(us_runner_passes(r, 3, ns, NULL), US_OK);
        us_runner_destroy(r);
    }
}

static void clocks_of_policies_follow_the_workload(void)
{
    const struct us_op op[] = {OP(CLOCK, .arg = 0), OP(ALLOC), OP(CLOCK, .arg = 2500000000ull),
                               OP(FREE)};
    struct us_program_task task = {.op = op, .nops = COUNT(op)};
    struct us_program p = program(&task, 1);
    struct us_allocator *a = allocator(0);
    uint64_t before = us_now(a->machine), ns[2];
    struct us_runner *r = runner(&p, a, (struct us_run_options){0});

    CHECK_EQ(us_runner_passes(r, 2, ns, NULL), US_OK);
    CHECK(us_now(a->machine) - before >= 5000000000ull);
    CHECK(ns[0] + ns[1] < 2500000000ull);                /* flat out */
    CHECK_EQ(atomic_load(&a->machine->clock_manual), 0); /* and it goes on by itself */
    us_runner_destroy(r);
    end(a);
}

/* Threads do not survive fork: the child is told so instead of waiting for them. */
static void a_forked_child_makes_its_own_runner(void)
{
    const struct us_op op[] = {OP(ALLOC), OP(FREE)};
    struct us_program_task task = {.op = op, .nops = COUNT(op)};
    struct us_program p = program(&task, 1);
    struct us_runner *r = runner(&p, NULL, (struct us_run_options){.heap = US_HEAP_MALLOC});
    uint64_t ns;
    int status = -1;
    pid_t child;

    CHECK_EQ(us_runner_passes(r, 1, &ns, NULL), US_OK);
    child = fork();
    if (child == 0) {
        bool refused = us_runner_passes(r, 1, &ns, NULL) == US_EINVAL;

        us_runner_destroy(r);
        _exit(refused ? 0 : 1);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    CHECK_EQ(us_runner_passes(r, 1, &ns, NULL), US_OK);
    us_runner_destroy(r);
}

int main(void)
{
    RUN(wrong_programs_are_refused);
    RUN(loops_are_checked_for_the_second_round);
    RUN(loops_multiply_the_counts);
    RUN(interrupts_have_one_cpu_and_never_sleep);
    RUN(passes_free_what_they_leave);
    RUN(messages_arrive_in_order_of_capacity);
    RUN(late_messages_keep_their_order);
    RUN(late_messages_reach_every_receiver);
    RUN(a_sleep_is_no_deadlock);
    RUN(a_duration_ends_endless_programs);
    RUN(shared_slots_order_tasks);
    RUN(barriers_hold_all_tasks);
    RUN(deadlocks_are_named);
    RUN(failed_allocations_end_the_run);
    RUN(a_run_can_be_stopped);
    RUN(other_heaps_run_the_same_programs);
    RUN(clocks_of_policies_follow_the_workload);
    RUN(a_forked_child_makes_its_own_runner);
    return check_result();
}

/*
 * What the tests of the modelled machine's engine stand on: eight CPUs with costs and small caches,
 * a script for each, and memory whose lines have known numbers.
 */
#ifndef FIXTURE_SIM_H
#define FIXTURE_SIM_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "machine/backend.h"
#include "machine/model/sim.h"

/* Two nodes of two domains of two CPUs: CPU / 4 is its node, CPU / 2 its domain. */
enum { NCPUS = 8, NODE_SHIFT = 16, LINES = 2048 };

/* Every cost has digits of its own, so that a sum tells what it is made of. */
static const struct us_costs costs = {
    .cycle = 1000,
    .instruction = 100,
    .l2_hit = 3000,
    .llc_hit = 10000,
    .memory = 80000,
    .memory_far = 140000,
    .line_domain = 41000,
    .line_node = 72000,
    .line_far = 123000,
    .invalidate_domain = 31000,
    .invalidate_node = 62000,
    .invalidate_far = 113000,
    .atomic = 5000,
    .lock = 8000,
    .lock_handover = 50000,
    .page_alloc = 200000,
    .page_free = 150000,
    .page_zero = 400000,
    .page_fault = 900000,
    .interrupt = 600000,
    .context_switch = 1500000,
    .wakeup = 300000,
    .idle_exit = 700000,
    .smt_slowdown = 150,
};

/* L1: 2 sets of 2 lines, L2: 4 sets of 4, last level: 64 lines. */
static const struct us_cache_sizes sizes = {
    .l1 = 256, .l1_ways = 2, .l2 = 1024, .l2_ways = 4, .llc = 4096, .llc_ways = 4};

/* The model's own memory: the first half is node 0's, the second node 1's. */
static char memory[LINES * US_LINE] US_ALIGNED(1 << 17);
_Static_assert(sizeof(memory) == 2u << NODE_SHIFT, "two nodes");

static struct us_machine *machine;
static struct us_sim *sim;

typedef void script(struct us_vcpu *v);
static script *does[NCPUS];

static inline void body(void *context, unsigned cpu)
{
    (void)context;
    for (;;) {
        if (does[cpu])
            does[cpu](us_running);
        us_sim_idle(us_running);
    }
}

static inline void begin_smt(unsigned smt)
{
    unsigned node[NCPUS], domain[NCPUS];
    struct us_topology t = {NCPUS, 2, 4, node, domain};

    for (unsigned cpu = 0; cpu < NCPUS; cpu++) {
        node[cpu] = cpu / 4;
        domain[cpu] = cpu / 2;
        does[cpu] = NULL;
    }
    machine = us_machine_create(&t, 4096, 1, NULL);
    REQUIRE(machine != NULL);
    REQUIRE(
        us_machine_model(machine, (const uint64_t *)&costs, (const uint64_t *)&sizes, smt, NULL));
    sim = machine->sim;
    REQUIRE(us_maps(machine, memory, sizeof(memory), NODE_SHIFT));
    REQUIRE(us_sim_start(sim, body, NULL, NULL));
}

static inline void begin(void)
{
    begin_smt(1);
}

static inline void end(void)
{
    us_machine_destroy(machine);
    sim = NULL;
}

/* Wakes those that have something to do, at their number in ps, and runs until all are idle. */
static inline void go(void)
{
    for (unsigned cpu = 0; cpu < NCPUS; cpu++)
        if (does[cpu])
            us_sim_wake(sim, cpu, cpu);
    CHECK(us_sim_run(sim));
}

static inline struct us_vcpu *vcpu(unsigned cpu)
{
    return &sim->vcpu[cpu];
}

#endif

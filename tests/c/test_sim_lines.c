/* What a modelled CPU is charged by the written rules (machine/model/lines.c): lines by where they
 * are, siblings of a core, everything that is declared. */
// machines: model
// needs: machine
#include "fixture_sim.h"

/* ---- lines ------------------------------------------------------------------------------------
 *
 * One access after the other, each on a CPU of its own choice. */

static char *line(unsigned n)
{
    return memory + (size_t)n * US_LINE;
}

static const enum us_access R = US_READ, W = US_WRITE, U = US_UPDATE, P = US_PREFETCH;
static const void *where;
static size_t how_many;
static enum us_access how;
static uint64_t paid;

static void accesses(struct us_vcpu *v)
{
    uint64_t before = v->clock;

    us_charge_lines(where, how_many, how);
    paid = v->clock - before;
}

/* What the access costs the CPU. */
static uint64_t cost(unsigned cpu, enum us_access access, unsigned n)
{
    where = line(n);
    how = access;
    how_many = 1;
    memset(does, 0, sizeof(does));
    does[cpu] = accesses;
    us_sim_wake(sim, cpu, us_sim_align(sim, 0));
    CHECK(us_sim_run(sim));
    return paid;
}

/* Lines 0, 2, 4 share a set of L1, which holds two: the least recently used goes to L2. */
static void l1_keeps_the_youngest_of_a_set(void)
{
    begin();
    CHECK_EQ(cost(0, R, 0), 80000);
    CHECK_EQ(cost(0, R, 2), 80000);
    CHECK_EQ(cost(0, R, 0), 0);
    CHECK_EQ(cost(0, R, 4), 80000); /* instead of 2 */
    CHECK_EQ(cost(0, R, 0), 0);
    CHECK_EQ(cost(0, R, 2), 3000);  /* instead of 4 */
    CHECK_EQ(cost(0, R, 1), 80000); /* the other set */
    CHECK_EQ(cost(0, R, 0), 0);
    CHECK_EQ(vcpu(0)->line_count[US_LINE_l1], 3);
    CHECK_EQ(vcpu(0)->line_count[US_LINE_l2], 1);
    CHECK_EQ(vcpu(0)->line_ps[US_LINE_memory], 4 * 80000);
    end();
}

/* Lines 0, 4, ... share a set of L2, which holds four; the last level has them still. */
static void l2_keeps_four_lines_of_a_set(void)
{
    begin();
    for (unsigned n = 0; n <= 16; n += 4)
        CHECK_EQ(cost(0, R, n), 80000);
    CHECK_EQ(cost(0, R, 0), 10000);
    CHECK_EQ(cost(1, R, 4), 10000); /* of the same domain */
    CHECK_EQ(cost(2, R, 4), 80000); /* of another */
    end();
}

/* The last level holds the 64 lines that came last. */
static void the_last_level_is_first_in_first_out(void)
{
    begin();
    for (unsigned n = 0; n < 65; n++)
        CHECK_EQ(cost(0, R, n), 80000);
    CHECK_EQ(cost(0, R, 0), 80000); /* went when 64 came, and sends 1 out */
    CHECK_EQ(cost(0, R, 2), 10000);
    CHECK_EQ(cost(0, R, 1), 80000);
    end();
}

static void memory_is_near_or_far(void)
{
    const unsigned other_half = LINES / 2;

    begin();
    CHECK_EQ(cost(0, R, other_half), 140000);
    CHECK_EQ(cost(4, R, other_half + 1), 80000);
    CHECK_EQ(cost(4, W, 7), 140000);
    end();
}

/* A line that another core has written comes from there. */
static void a_written_line_comes_by_distance(void)
{
    begin();
    CHECK_EQ(cost(0, W, 0), 80000);
    CHECK_EQ(cost(0, W, 0), 0); /* its own */
    CHECK_EQ(cost(1, R, 0), 41000);
    CHECK_EQ(cost(1, R, 0), 0);
    CHECK_EQ(cost(0, R, 0), 0);     /* it keeps its copy */
    CHECK_EQ(cost(2, R, 0), 80000); /* written back by now */
    CHECK_EQ(cost(0, W, 1), 80000);
    CHECK_EQ(cost(2, R, 1), 72000);
    CHECK_EQ(cost(0, W, 2), 80000);
    CHECK_EQ(cost(4, R, 2), 123000);
    end();
}

/* A write that did not have the line gets it and takes it from its last writer. */
static void a_write_takes_the_line_over(void)
{
    begin();
    CHECK_EQ(cost(0, W, 0), 80000);
    CHECK_EQ(cost(1, W, 0), 41000);
    CHECK_EQ(cost(0, R, 0), 41000);
    CHECK_EQ(cost(4, W, 0), 140000); /* clean by now: from memory */
    CHECK_EQ(cost(0, R, 0), 123000);
    end();
}

/* To write what others have read costs the farthest of them, once. */
static void a_write_invalidates_the_farthest_reader(void)
{
    begin();
    CHECK_EQ(cost(0, W, 0), 80000);
    CHECK_EQ(cost(1, R, 0), 41000);
    CHECK_EQ(cost(0, W, 0), 31000);
    CHECK_EQ(cost(0, W, 0), 0);
    CHECK_EQ(cost(2, R, 0), 72000);
    CHECK_EQ(cost(0, W, 0), 62000);
    CHECK_EQ(cost(4, R, 0), 123000);
    CHECK_EQ(cost(1, R, 0), 10000); /* written back to its last level */
    CHECK_EQ(cost(0, W, 0), 113000);
    CHECK_EQ(cost(0, W, 0), 0);
    /* A reader that writes invalidates the writer's copy. */
    CHECK_EQ(cost(1, R, 0), 41000);
    CHECK_EQ(cost(1, W, 0), 31000);
    CHECK_EQ(cost(1, W, 0), 0);
    CHECK_EQ(cost(0, R, 0), 41000);
    end();
}

/* A locked operation costs so much more than a write. */
static void an_update_is_a_write_and_more(void)
{
    begin();
    CHECK_EQ(cost(0, U, 0), 80000 + 5000);
    CHECK_EQ(cost(0, U, 0), 5000);
    CHECK_EQ(cost(1, U, 0), 41000 + 5000);
    end();
}

/* Bytes that lie in three lines: each of them once. */
static void every_line_of_some_bytes_is_charged_once(void)
{
    begin();
    memset(does, 0, sizeof(does));
    where = line(8) + US_LINE - 1;
    how_many = US_LINE + 2;
    how = R;
    does[0] = accesses;
    go();
    CHECK_EQ(paid, 3 * 80000);
    CHECK_EQ(vcpu(0)->line_count[US_LINE_memory], 3);
    end();
}

static uint64_t wait_before;

static void asks_ahead(struct us_vcpu *v)
{
    uint64_t before;

    us_charge_lines(line(0), 1, P);
    CHECK_EQ(v->clock, 0);
    us_sim_spend(v, US_PHASE_WORK, wait_before);
    before = v->clock;
    us_charge_lines(line(0), 8, R);
    paid = v->clock - before;
    us_charge_lines(line(0), 8, R);
    CHECK_EQ(v->clock, before + paid);
}

/* A line that was asked for ahead costs the rest of its way, once. */
static void a_prefetch_pays_the_rest_of_the_way(void)
{
    static const uint64_t waits[] = {0, 30000, 80000, 1000000};

    for (unsigned i = 0; i < 4; i++) {
        begin();
        wait_before = waits[i];
        does[0] = asks_ahead;
        go();
        CHECK_EQ(paid, waits[i] < 80000 ? 80000 - waits[i] : 0);
        end();
    }
}

/* ---- siblings ---------------------------------------------------------------------------------
 */

static uint64_t worked[2];

static void computes(struct us_vcpu *v)
{
    uint64_t before = v->clock;

    us_sim_work(v, US_PHASE_WORK, 1000000);
    us_sim_settle(v);
    us_sim_work(v, US_PHASE_WORK, 1000000);
    worked[v->id] = v->clock - before;
    us_sim_settle(v);
}

/* CPUs 0 and 1 are threads of one core: one's lines are the other's, none comes from far. */
static void siblings_share_their_caches(void)
{
    begin_smt(2);
    CHECK_EQ(sim->ncores, NCPUS / 2);
    CHECK_EQ(cost(0, W, 0), 80000);
    CHECK_EQ(cost(1, R, 0), 0);
    CHECK_EQ(cost(1, W, 0), 0);
    CHECK_EQ(cost(2, R, 0), 72000); /* the next core is in the next domain here */
    end();
}

/* 150 % while both are busy: CPU 1 comes when CPU 0 has done its first half alone. */
static void siblings_slow_each_other_down(void)
{
    begin_smt(2);
    does[0] = computes;
    us_sim_wake(sim, 0, 0);
    CHECK(us_sim_run(sim));
    CHECK_EQ(worked[0], 2000000);
    does[1] = computes;
    us_sim_wake(sim, 0, 2000000);
    us_sim_wake(sim, 1, 2000000);
    CHECK(us_sim_run(sim));
    CHECK_EQ(worked[0], 2 * 1500000);
    CHECK_EQ(worked[1], 2 * 1500000);
    does[0] = NULL;
    us_sim_wake(sim, 1, us_sim_align(sim, 0));
    CHECK(us_sim_run(sim));
    CHECK_EQ(worked[1], 2000000);
    end();
}

/* ---- other charges ----------------------------------------------------------------------------
 */

static void declares(struct us_vcpu *v)
{
    CHECK_EQ(us_phase_set(US_PHASE_FAST), US_PHASE_WORK);
    us_runs(7);
    CHECK_EQ(us_phase_set(US_PHASE_SLOW), US_PHASE_FAST);
    us_zeroes(8192);
    us_provides(true);
    us_provides(false);
    us_faults();
    us_reads(line(0), 8);
    CHECK_EQ(us_phase_set(US_PHASE_WORK), US_PHASE_SLOW);
    CHECK_EQ(v->time[US_PHASE_FAST], 7 * 100);
    CHECK_EQ(v->time[US_PHASE_SLOW], 2 * 400000 + 80000);
    CHECK_EQ(v->time[US_PHASE_PROVIDER], 200000 + 150000 + 900000);
}

/* Each charge goes to the phase that is set, the provider's own to the provider's. */
static void charges_go_to_their_phase(void)
{
    uint64_t sum = 0;

    begin();
    does[0] = declares;
    go();
    for (unsigned phase = 0; phase < US_NPHASES; phase++)
        sum += vcpu(0)->time[phase];
    CHECK_EQ(sum, vcpu(0)->clock);
    end();
}

int main(void)
{
    RUN(l1_keeps_the_youngest_of_a_set);
    RUN(l2_keeps_four_lines_of_a_set);
    RUN(the_last_level_is_first_in_first_out);
    RUN(memory_is_near_or_far);
    RUN(a_written_line_comes_by_distance);
    RUN(a_write_takes_the_line_over);
    RUN(a_write_invalidates_the_farthest_reader);
    RUN(an_update_is_a_write_and_more);
    RUN(every_line_of_some_bytes_is_charged_once);
    RUN(a_prefetch_pays_the_rest_of_the_way);
    RUN(siblings_share_their_caches);
    RUN(siblings_slow_each_other_down);
    RUN(charges_go_to_their_phase);
    return check_result();
}

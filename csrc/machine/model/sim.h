/* sim.h - virtual time: CPUs that need not exist, each with a clock, on one thread of the system.
 *
 * Every virtual CPU is a coroutine. Time is in picoseconds and belongs to a CPU; whichever CPU is
 * earliest (and of those, the one with the lowest number) runs next. Charges only add to the clock
 * of who runs; it looks whether it still is the earliest where a lock is taken or tried, where a
 * flight begins, at a fence and between two ops (us_sim_settle). So locks are taken in the order of
 * virtual time, and what lies between two such places is one step. Who holds a lock may run ahead
 * of the others' clocks; the lock then remembers until when it was held, and who comes in that time
 * waits for it, as who finds it held.
 *
 * Nothing depends on the host: time is integer, the place of a line is its offset in a range of
 * memory that was mapped in a known order (us_maps) or its turn among all others, and ties are
 * decided by numbers.
 *
 * Caches (lines.c). Each core has set-associative L1 and L2 tags, replaced by age; the siblings of
 * a core share them. The last level of a domain is kept in the directory of lines and replaced
 * first in, first out. A line has a version, its last writer, and how far away those are who read
 * it since: a tag of an older version is a miss. So a write costs the same however many have read.
 *
 * Used by model.c (locks, flights, fences) and by the modelled executor (work/), which says what a
 * CPU does.
 */
#ifndef US_SIM_H
#define US_SIM_H

#include "machine/backend.h"
#include "machine/model/costs.h"

#define US_FOREVER UINT64_MAX

enum us_vcpu_state { US_VCPU_IDLE, US_VCPU_READY, US_VCPU_RUNS, US_VCPU_WAITS };

/* Lines asked for ahead, and when they come. */
#define US_PREFETCHES 4

struct us_vcpu {
    uint64_t clock; /* ps */
    struct us_sim *sim;
    struct us_core *core;
    unsigned id;
    enum us_phase phase;
    enum us_vcpu_state state;
    uint32_t place;          /* in the heap of those that are ready */
    struct us_vcpu *next;    /* waiting for the same lock */
    void *context;           /* stack pointer of the coroutine while another runs */
    struct us_thread thread; /* flights and marks, as a thread of the system has them */
    unsigned nprefetch;
    struct {
        uint32_t line;
        uint64_t ready;
    } prefetch[US_PREFETCHES];
    /* since us_sim_clear */
    uint64_t time[US_NPHASES];
    uint64_t line_ps[US_LINE_NKINDS], line_count[US_LINE_NKINDS];
    uint64_t lock_ps[US_LOCK_NCLASSES], lock_count[US_LOCK_NCLASSES]; /* waits */
};

/* L1 and L2 of a core: tags of a set, the youngest first. */
struct us_tag {
    uint32_t line, version;
};
struct us_core {
    struct us_tag *l1, *l2;
    unsigned domain, node;
    unsigned busy; /* its CPUs that are not idle */
};

/* A CPU that is ready; its clock is here too, so that comparing does not touch the CPU itself. */
struct us_turn {
    uint64_t clock;
    uint32_t cpu;
};

struct us_lock_record;
struct us_timer;

typedef void us_sim_body(void *context, unsigned cpu);
typedef void us_sim_event(void *context, uint64_t argument);

struct us_sim {
    struct us_machine *machine;
    struct us_costs cost;
    struct us_cache_sizes sizes;
    unsigned smt;
    struct us_vcpu *vcpu; /* [machine->ncpus] */
    struct us_core *core; /* [ncores] */
    unsigned ncores;

    struct us_turn *heap; /* CPUs that are ready, the earliest first */
    uint32_t nheap;
    struct us_timer *timer; /* events, the earliest first */
    uint32_t ntimers, timer_room;
    uint64_t timer_turn;
    uint64_t event_limit; /* later ones do not happen */
    uint64_t event_now;   /* time of the last one */
    uint64_t horizon;     /* nobody but who runs has anything to do before */
    uint32_t horizon_cpu; /* at that time: from this number on */
    uint64_t comparisons; /* in both heaps */
    void *main;           /* context of the thread of the system */
    char *stacks;
    size_t stack_bytes;
    us_sim_body *body;
    void *context;
    bool leave; /* who runs next goes to the main context first */

    struct us_lock_record *lock; /* open addressing */
    uint32_t nlocks, lock_room;
    unsigned flights;            /* of all CPUs */
    uint64_t flights_end;        /* the latest of those that ended */
    uint64_t gate_opened;        /* last; earlier CPUs find it shut */
    struct us_vcpu *at_gate;     /* wait for the gate to open */
    struct us_vcpu *gate_owner;  /* shut it */
    struct us_vcpu *gate_keeper; /* the owner, while it waits for flights to end */
    uint64_t shown_ns;           /* us_now outside of virtual CPUs: time of the last event */

    struct us_directory *directory;
};

/* Costs and caches of the machine; NULL costs: scripted only, nothing can be run. */
struct us_sim *us_sim_create(struct us_machine *m, const struct us_costs *costs,
                             const struct us_cache_sizes *sizes, unsigned smt,
                             struct us_error *error);
void us_sim_destroy(struct us_sim *s);

/* Gives every CPU a coroutine that runs `body`, which never returns; all are idle at first. */
bool us_sim_start(struct us_sim *s, us_sim_body *body, void *context, struct us_error *error);
/* Runs what there is to run until no CPU is ready and no event is due, or until us_sim_leave.
 * False: left. */
bool us_sim_run(struct us_sim *s);
void us_sim_leave(struct us_sim *s); /* at the next settle of whoever runs */
/* Forgets what was counted; clocks stay. */
void us_sim_clear(struct us_sim *s);
/* Between two runs: all clocks show the latest, or `least`; the others were idle. Returns it. */
uint64_t us_sim_align(struct us_sim *s, uint64_t least);

/* ---- on a virtual CPU ---- */

US_INLINE uint64_t us_sim_now(const struct us_sim *s)
{
    (void)s;
    return us_running->clock;
}
US_INLINE void us_sim_spend(struct us_vcpu *v, enum us_phase phase, uint64_t ps)
{
    v->clock += ps;
    v->time[phase] += ps;
}
/* The workload's own computing, slower while a sibling is busy. */
void us_sim_work(struct us_vcpu *v, enum us_phase phase, uint64_t ps);
void us_sim_switch(struct us_vcpu *v); /* lets all run that are earlier */
/* Goes on when no other CPU or event is earlier. */
US_INLINE void us_sim_settle(struct us_vcpu *v)
{
    const struct us_sim *s = v->sim;

    if (US_UNLIKELY(v->clock > s->horizon || (v->clock == s->horizon && v->id >= s->horizon_cpu) ||
                    s->leave))
        us_sim_switch(v);
}
/* Sleeps until somebody wakes the CPU. */
void us_sim_idle(struct us_vcpu *v);

/* ---- on a virtual CPU or in an event ---- */

/* An idle CPU goes on at `at`; one that is not idle, or has been woken before, as it would. */
void us_sim_wake(struct us_sim *s, unsigned cpu, uint64_t at);
/* `event` is called at that time, on no CPU: it charges nothing and waits for nothing. */
bool us_sim_at(struct us_sim *s, uint64_t at, us_sim_event *event, void *context,
               uint64_t argument);

/* ---- for model.c ---- */

/* A CPU that is ready loses so much time to an interrupt. */
void us_sim_interrupted(struct us_vcpu *v, uint64_t ps);
/* The CPU waits; whoever ends that makes it ready. */
void us_sim_wait(struct us_vcpu *v);
void us_sim_ready(struct us_vcpu *v);

/* A lock as the model sees it, by its address. */
struct us_lock_record {
    const void *lock;
    uint64_t taken_at, free_at;   /* by the last who had it, or has it; held until then */
    struct us_vcpu *first, *last; /* wait for it, `waiting` of them */
    uint32_t waiting;
};
struct us_lock_record *us_sim_lock(struct us_sim *s, const void *lock);

/* lines.c */
struct us_directory *us_directory_create(struct us_sim *s);
void us_directory_destroy(struct us_directory *d);
/* Who gets a lock that was waited for has its line; the hand-over has been paid. */
void us_lines_hand_over(struct us_vcpu *v, const void *lock);

#endif

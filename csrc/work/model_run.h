/* model_run.h - the inside of a run on a modelled machine, shared by its executor (model_exec.c),
 * its scheduler (model_sched.c) and what tasks wait for (model_wait.c).
 *
 * The scheduler. A task may run on a set of CPUs, and is given one of them when the pass starts, so
 * that all have as many, as the balancing of new processes does. It wakes there if that CPU is
 * idle, else on an idle CPU of the domain, else on one of the waker's domain, else on any that is
 * idle, else it queues on its own. A CPU without a task takes a waiting one, of its own domain
 * first. Tasks of one CPU take turns. A task that serves interrupts runs before all others and
 * stops the one that runs at its next op.
 *
 * The order that a replayed trace prescribes (shared slots, PROGRESS) is no part of what it
 * replays: here as natively nobody sleeps for it. Who waits for its turn goes on at that moment,
 * and its time of waiting is idle.
 */
#ifndef US_WORK_MODEL_RUN_H
#define US_WORK_MODEL_RUN_H

#include "machine/model/sim.h"
#include "work/inner.h"

#define US_TURN_PS 3000000000ull /* of a task while others wait for its CPU */

enum us_task_state { US_TASK_READY, US_TASK_RUNS, US_TASK_WAITS, US_TASK_DONE };

struct us_model_task {
    struct us_runner *run;
    struct us_op *ops;
    const struct us_op *at; /* the op that is next, or that it waits at */
    uint64_t *slot, *loop;
    unsigned index;
    unsigned *cpu; /* may run on these; ncpus 0 = on any */
    unsigned ncpus;
    bool interrupt, has_barrier;
    bool served; /* what it waited for has happened */
    enum us_task_state state;
    unsigned base;              /* CPU it was given */
    unsigned home;              /* CPU it runs on, or ran on last */
    struct us_model_task *next; /* in the one queue it is in */
    uint64_t ready_at;          /* not before */
    uint64_t word;              /* message that it sends, or got while it waited */
    uint64_t window;            /* its progress in windows */
    uint64_t start, end;        /* ps */
    uint64_t marks;
};

struct us_task_queue {
    struct us_model_task *first, *last;
    unsigned n;
};

struct us_model_cpu {
    struct us_vcpu *vcpu;
    struct us_task_queue ready, interrupts;
    struct us_model_task *last; /* whose context it has */
    uint64_t turn_ends;
    bool idle, in_interrupt;
    bool tick;  /* what is due is to be done here */
    bool ticks; /* this CPU's ticks are due */
};

struct us_message {
    uint64_t word, arrival;
};

struct us_model_channel {
    struct us_runner *run;
    struct us_message *message; /* ring */
    uint32_t capacity, head, n;
    uint64_t last_arrival;
    struct us_task_queue senders, receivers; /* wait */
};

/* Of all CPUs in the measured part. */
struct us_totals {
    uint64_t time[US_NPHASES];
    uint64_t line_ps[US_LINE_NKINDS], line_count[US_LINE_NKINDS];
    uint64_t lock_ps[US_LOCK_NCLASSES], lock_count[US_LOCK_NCLASSES];
    uint64_t comparisons;
};

struct us_runner {
    struct us_heap heap;
    struct us_run_options options;
    struct us_program_facts facts;
    struct us_machine *machine;
    struct us_sim *sim;
    struct us_model_task *task;
    unsigned ntasks;
    struct us_model_cpu *cpu; /* [machine->ncpus] */
    struct us_model_channel *channel;
    unsigned nchannels;
    uint64_t *shared;                     /* [facts.nshared] slot words */
    struct us_task_queue *shared_waiters; /* [facts.nshared] */

    bool begun; /* a pass is under way */
    bool stop;  /* every CPU goes idle at its next op */
    bool pause; /* every CPU waits in `paused` at its next op */
    bool rest;  /* likewise, for a moment */
    bool failed, dirty;
    struct us_error error;
    unsigned ndone;
    struct us_vcpu *paused;

    uint64_t *idle_cpus;  /* bit by position in machine->domain_cpus */
    unsigned *position;   /* [ncpus] there */
    unsigned nready;      /* tasks in ready queues */
    unsigned steal_first; /* domain where who has nothing looks next */

    unsigned barrier_count;
    struct us_task_queue barrier, late;
    unsigned *in_window; /* tasks by progress, in windows */
    uint64_t nwindows, least_window;

    uint64_t start; /* ps */
    uint64_t measured_from, measured_ns;
    uint64_t clock_base; /* policy's clock at the start less that, ns */
    uint64_t trace_ns;   /* largest CLOCK shown */
    uint64_t pending;    /* events that will wake somebody */
    uint64_t events, switches, wakeups, interrupts, steals;
    struct us_totals totals;
    uint64_t next_poll;
    bool running_due;
    uint64_t tick_now;   /* policy's clock when the ticks under way became due */
    unsigned ticks_left; /* CPUs that have not run theirs */

    bool poll_is_due;
    struct us_vcpu *looker; /* who asked for a look */
    struct us_account peak;
    uint64_t next_sample;
    struct us_timeline_row *row;
    uint64_t nrows, row_room, next_row;
};

void us_queue_task(struct us_task_queue *q, struct us_model_task *t);
struct us_model_task *us_unqueue_task(struct us_task_queue *q);

/* model_sched.c */
bool us_sched_create(struct us_runner *r);
void us_sched_destroy(struct us_runner *r);
/* Every task is ready on its first CPU; those that may run anywhere are spread. */
void us_sched_start(struct us_runner *r);
/* The task goes on at `at`. `waker` pays; NULL in an event. */
void us_sched_wake(struct us_model_task *t, struct us_vcpu *waker, uint64_t at);
/* The same for a task whose turn in a trace has come: nobody pays. */
void us_sched_go_on(struct us_model_task *t, uint64_t at);
/* The CPU's next task, NULL = none that may run here. */
struct us_model_task *us_sched_next(struct us_runner *r, struct us_model_cpu *c);
/* Its turn is over: behind the others; or it was interrupted: before them. */
void us_sched_requeue(struct us_model_cpu *c, struct us_model_task *t, bool first);
void us_sched_set_idle(struct us_runner *r, struct us_model_cpu *c, bool idle);

/* model_wait.c: each tries the op `t->at`, once; false = the task waits, and its `served` is true
 * when it goes on. */
bool us_model_send(struct us_model_task *t, struct us_vcpu *v, uint64_t word);
bool us_model_recv(struct us_model_task *t, struct us_vcpu *v, uint64_t *word);
bool us_model_barrier(struct us_model_task *t, struct us_vcpu *v);
/* A shared slot is full, or empty. */
bool us_model_shared(struct us_model_task *t, bool full);
/* It has just been filled or emptied. */
void us_model_shared_changed(struct us_runner *r, uint32_t slot, struct us_vcpu *v);
bool us_model_progress(struct us_model_task *t, struct us_vcpu *v);
void us_model_task_done(struct us_model_task *t,
                        struct us_vcpu *v); /* nobody waits for its progress */
bool us_model_until(struct us_model_task *t, struct us_vcpu *v, uint64_t ps);
/* Who waits for what, when nobody can go on. */
void us_model_describe_deadlock(const struct us_runner *r, char *text, size_t size);
void us_model_reset_waits(struct us_runner *r);

/* model_ops.c */
enum us_outcome {
    US_OUTCOME_DONE,
    US_OUTCOME_WAITS,
    US_OUTCOME_ENDS
}; /* ends the task, or the run */
/* One op. `t->served`: it had to wait, and what it waited for has happened. */
enum us_outcome us_model_op(struct us_model_task *t, struct us_vcpu *v, const struct us_op *op);
extern const char us_model_too_long[];
/* Clocks would wrap soon after (53 days). Events that few do not come to the next poll. */
#define US_FARTHEST_PS (1ull << 62)

/* model_exec.c */
void us_model_fail(struct us_model_task *t, enum us_status status, const char *what);

#endif

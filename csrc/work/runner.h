/* runner.h - the inside of a runner, shared by exec.c, wait.c and the interpreter. */
#ifndef US_WORK_RUNNER_H
#define US_WORK_RUNNER_H

#include "work/channel.h"
#include "work/inner.h"

#include <pthread.h>

#define US_DONE UINT64_MAX /* progress of a task that ended its program */

struct us_task {
    /* read by others */
    _Atomic uint64_t progress US_ALIGNED(US_LINE); /* number of the next event, at least */
    _Atomic uint64_t waits_at; /* 1 + op it waits at, 0 = it runs; US_DONE = at its end */
    _Atomic uint64_t waits;    /* waits begun and ended, and the end: it moves when the task does */
    _Atomic bool tries;        /* a waiting task is at it just now */
    _Atomic uint32_t barrier_round; /* the one it waits to see ended */
    _Atomic uint64_t marks;         /* MARKs of this pass; the task alone counts */
    /* the task's own */
    struct us_runner *runner US_ALIGNED(US_LINE);
    struct us_op *ops; /* a copy with inner codes, ended by X_END */
    size_t nops;
    uint64_t *slot;
    uint32_t nslots;
    uint64_t *loop;           /* rounds done of each REPEAT */
    void *scratch;            /* object of the null heap */
    uint64_t others_progress; /* what the others had reached when last asked */
    uint64_t due_ns;          /* arrival of the message it waits for, 0 = not sent */
    uint64_t start_ns, end_ns;
    uint64_t marks_before, marks_measured;        /* owned by who waits for the pass */
    uint64_t sample_stride, sample_left, samples; /* ops between looks at the accounts, and to go */
    unsigned index;
    unsigned *cpu; /* may run on these */
    unsigned ncpus;
    bool has_barrier;
    bool started; /* the thread exists */
    pthread_t thread;
};

/* Where all tasks of a runner wait for one another; the last to come does something first. */
struct us_meeting {
    _Atomic unsigned here;
    _Atomic uint32_t round;
    struct us_event event;
};

enum us_command { US_COMMAND_NONE, US_COMMAND_PASS, US_COMMAND_CLEAN, US_COMMAND_EXIT };

struct us_runner {
    struct us_heap heap;
    struct us_run_options options;
    struct us_program_facts facts;
    struct us_task *task;
    unsigned ntasks;
    struct us_channel *channel;
    unsigned nchannels;
    _Atomic uint64_t *shared; /* [facts.nshared] slot words */
    bool oversubscribed;      /* more tasks than CPUs: spinning keeps the others from running */

    _Atomic bool stop US_ALIGNED(US_LINE); /* read before each op */
    struct us_meeting start US_ALIGNED(US_LINE), end US_ALIGNED(US_LINE);
    _Atomic unsigned barrier_count US_ALIGNED(US_LINE);
    _Atomic uint32_t barrier_round;
    struct us_event barrier_event;
    _Atomic uint64_t pass_start_ns US_ALIGNED(US_LINE);
    _Atomic bool clock_busy;
    _Atomic bool sample_busy;
    bool sampling;          /* this pass looks at the accounts now and then */
    struct us_account peak; /* owned by who holds sample_busy */
    unsigned passes_left;   /* of the command; it and ns are written at the end of a pass */
    uint64_t *ns;           /* where the next pass's time goes */
    uint64_t last_ns;       /* of the last pass */
    uint64_t clock_base, clock_shown;   /* policy's clock at the start of the pass; last set */
    uint64_t measure_from, measured_ns; /* owned by who waits for the pass; 0 = not yet */

    pthread_mutex_t mutex; /* the rest */
    pthread_cond_t command_given, command_done;
    enum us_command command;
    uint64_t command_number;
    unsigned busy;         /* tasks that still work on it */
    struct us_error error; /* the first of a pass */
    bool failed;
    bool dirty;    /* objects of a pass may be live */
    int owner_pid; /* threads do not survive fork */
};

/* exec.c */
void us_runner_sample(struct us_runner *r);
void us_task_fail(struct us_task *t, const struct us_op *op, enum us_status status,
                  const char *what);
uint64_t us_task_at(const struct us_task *t, const struct us_op *op); /* number of an op */

/* wait.c */
void us_meet(struct us_runner *r, struct us_meeting *m, void (*last)(struct us_runner *r));
/* Each returns false when the run stops instead. */
bool us_wait_send(struct us_task *t, const struct us_op *op, uint64_t word);
bool us_wait_recv(struct us_task *t, const struct us_op *op, uint64_t *word);
bool us_wait_barrier(struct us_task *t, const struct us_op *op);
bool us_wait_shared(struct us_task *t, const struct us_op *op, bool full, uint64_t *word);
bool us_wait_progress(struct us_task *t, const struct us_op *op);
bool us_wait_clock(struct us_task *t, const struct us_op *op);
bool us_wait_sleep(struct us_task *t, const struct us_op *op);
/* Every task that is not done waits for something that only another could do: fills the text. */
bool us_runner_is_stuck(struct us_runner *r, char *text, size_t size);

#endif

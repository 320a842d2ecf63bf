/* exec.h - runs an op program on this machine: one thread a task, timed pass by pass.
 *
 * A runner holds a checked copy of a program, the heap behind its caches and its threads, which
 * sleep between passes. In one pass every task runs its program once; the pass takes from the
 * moment all threads are at the start until the last is done. Objects that are live at the end
 * stay until us_runner_clean or the next pass, so that counters and accounts can be read first.
 *
 * A run with a duration is one pass that is stopped when that much time has gone by after a
 * warm-up; programs are to be long enough for it. Only the MARKs of the time between are counted.
 *
 * No CPython here: who waits for a pass is asked every few milliseconds, through `poll`, whether to
 * go on. The model build (model_exec.c) has virtual CPUs instead of threads, and virtual time.
 */
#ifndef US_WORK_EXEC_H
#define US_WORK_EXEC_H

#include "cache/cache.h"
#include "work/program.h"

enum us_heap_kind {
    US_HEAP_ALLOCATOR, /* caches of `allocator`, general caches for kmalloc */
    US_HEAP_MALLOC,    /* malloc and free of this process */
    US_HEAP_NULL,      /* allocates nothing: what the harness itself costs */
};

enum us_touch {
    US_TOUCH_NONE,
    US_TOUCH_FIRST, /* first line of each object, when allocated */
    US_TOUCH_ALL,   /* every line */
};

struct us_run_options {
    enum us_heap_kind heap;
    enum us_touch touch;
    struct us_allocator *allocator; /* named caches exist in it, sizes are at least the program's */
    double pace;                    /* 0 = flat out; CLOCK times are divided by it and waited for */
    uint64_t window;                /* events that one task may run ahead of another (PROGRESS) */
    uint64_t seed;                  /* modelled: what is drawn */
    uint64_t warmup_ns, duration_ns; /* duration 0: passes run to the end of their programs */
    uint64_t timeline_ns;            /* modelled: accounts are taken so often; 0 = never */
    bool (*poll)(void *context);     /* true: stop; called by the thread that waits for a pass */
    void *poll_context;
};

struct us_runner;

/* NULL and an error when threads, memory or caches are missing. The program may be freed. */
struct us_runner *us_runner_create(const struct us_program *p, const struct us_run_options *o,
                                   struct us_error *error);
/* Cleans up, runs n passes (one, when it has a duration), cleaning between them, and puts the ns of
 * each into ns[]. Returns US_EBUSY when poll stopped it; after any error everything the program
 * allocated is freed. */
enum us_status us_runner_passes(struct us_runner *r, unsigned n, uint64_t *ns,
                                struct us_error *error);
/* One more pass, slow and not to be timed, in which byte accounts are taken every few ops and at
 * the end; each field of *peak becomes the largest that was seen. US_HEAP_ALLOCATOR only. */
enum us_status us_runner_peaks(struct us_runner *r, struct us_account *peak,
                               struct us_error *error);
/* Frees what the last pass left live. */
void us_runner_clean(struct us_runner *r);
/* Its allocator is gone, and with it what was live. */
void us_runner_forget(struct us_runner *r);
/* One of its caches is gone; all it can do now is to be destroyed. */
void us_runner_forget_cache(struct us_runner *r, const struct us_cache *cache);
void us_runner_destroy(struct us_runner *r);
void us_runner_set_poll_context(struct us_runner *r, void *context);

/* Of the last pass, ns from its start: when each task was done. */
unsigned us_runner_ntasks(const struct us_runner *r);
uint64_t us_runner_task_ns(const struct us_runner *r, unsigned task);
/* Its measured part, all of it without a duration: MARKs of a task, and how long it took in ns.
 * Less than the duration when the programs ended before. */
uint64_t us_runner_marks(const struct us_runner *r, unsigned task);
uint64_t us_runner_elapsed_ns(const struct us_runner *r);

/* ---- modelled machines only ---- */

/* Begins a pass, or goes on with it, for so much virtual time; CPUs stop between two ops. Counters
 * may be read then; us_runner_clean ends it. What is counted starts anew. */
enum us_status us_runner_run_for(struct us_runner *r, uint64_t ns, uint64_t *elapsed_ns,
                                 struct us_error *error);
/* Where the time of the measured part went: ps and counts, summed over CPUs, each by its name. */
typedef void us_explain_fn(void *context, const char *name, uint64_t value);
void us_runner_explain(const struct us_runner *r, us_explain_fn *tell, void *context);
/* Accounts over time. */
struct us_timeline_row {
    uint64_t ns, live, queued, free_in_slabs, reserved, metadata, slabs, marks;
};
const struct us_timeline_row *us_runner_timeline(const struct us_runner *r, uint64_t *nrows);

/* ---- both ---- */

const struct us_program_facts *us_runner_facts(const struct us_runner *r);
/* Bytes asked for by the objects that are live after the last pass. */
uint64_t us_runner_live_bytes(const struct us_runner *r, uint64_t *objects);

#endif

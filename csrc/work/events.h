/* events.h - from the events of a trace to op programs, one task a CPU.
 *
 * Objects become slots by two free lists. An object that is freed on the CPU that allocated it gets
 * a slot of that task, the one emptied last first, so that the slot table stays small and hot. Any
 * other gets a shared slot, the one emptied longest ago first and not before two windows have
 * passed, so that the wait for its emptying practically never happens.
 *
 * PROGRESS ops keep the tasks within one window of events of one another. Every op of event g
 * stands behind a PROGRESS of more than g - us_progress_every(), and everything a task waits for is
 * an earlier event, hence the task with the earliest next event never waits. A window grows with
 * the CPUs of a trace, and so does the distance of PROGRESS ops, or each event of many CPUs would
 * come with one. CLOCK ops tell the time.
 */
#ifndef US_WORK_EVENTS_H
#define US_WORK_EVENTS_H

#include "work/program.h"

static inline uint64_t us_progress_every(uint64_t window)
{
    return window / 16 > 64 ? window / 16 : 64;
}

struct us_event_in {
    int64_t time_ns;
    uint32_t object; /* dense numbers; FREE names that of the ALLOC before it */
    uint16_t task;
    uint16_t cache;
    int16_t node;  /* -1 = any */
    uint8_t op;    /* US_OP_ALLOC or US_OP_FREE */
    uint8_t flags; /* of the op */
    uint32_t pad;
};
_Static_assert(sizeof(struct us_event_in) == 24, "laid out as Python's EVENT_DTYPE");

struct us_events_options {
    uint32_t ntasks, nobjects;
    uint64_t window;
    uint64_t clock_ns;  /* a CLOCK op whenever that much time has passed; 0 = none */
    bool clock_of_each; /* for each task by itself (paced), else once for all */
};

struct us_ops {
    struct us_op *op;
    size_t n, room;
};

/* ops: [ntasks], zeroed; each op array is malloc'ed. The arrays are to be released after errors
 * too. */
enum us_status us_events_compile(const struct us_event_in *events, size_t n,
                                 const struct us_events_options *o, struct us_ops *ops,
                                 struct us_error *error);

#endif

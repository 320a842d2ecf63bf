/* flight.h - slow paths in flight, the gate, and signal handlers.
 *
 * Every slow path enters a flight: it passes the gate, counts itself in on its CPU and marks its
 * thread. Fork-prepare, destroy, resize, exact validate and exact statistics shut the gate, wait
 * until nobody is in flight, work alone, and open it. A thread that finds its own mark set (it is a
 * signal handler that interrupted a slow path) is *nested*: it does not stop at the gate and only
 * try-locks, and while the gate is shut even that fails, so that who works alone is alone; what it
 * would look at may be gone by then, so it asks first (us_flight_try). Waiting at the gate is done
 * holding nothing.
 *
 * A *frame* lets nobody stop the machine between one slow path and the next: the checks of debug
 * caches change an object's bit and its stock in two steps that must be seen as one. It passes the
 * gate and counts itself in, holds nothing and is no slow path itself; slow paths that begin inside
 * it use its count and do not look at the gate. They are not nested, and wait for locks as ever: so
 * does a signal handler that comes between them, which is as safe, for the thread holds no lock
 * then. A handler that interrupts one of them is nested. So is work on another machine inside a
 * frame: it might wait at a gate for who waits for this frame. Inside a slow path a frame is one
 * more nested flight, inside a frame it is nothing. A call into the embedder leaves both the flight
 * and its frame for its time.
 */
#ifndef US_FLIGHT_H
#define US_FLIGHT_H

#include "machine/machine.h"

struct us_flight {
    struct us_machine *machine;
    struct us_flight *outer; /* what the thread was doing when this began, NULL = nothing */
    struct us_flight *frame; /* the one that counted for it, NULL = none */
    unsigned counted_cpu;    /* where it was counted in */
    uint32_t byte_locks;     /* byte locks taken, told to the CPU at the end */
    bool nested;             /* began inside another slow path: waits for nothing */
    bool counted;            /* now, on its machine; not if its frame or one around it is */
    bool out;                /* began while somebody works alone: see us_flight_try */
    bool gate;               /* the one that shut the gate */
    unsigned round;          /* 1 + the CPU whose round this is (local.h), 0 = none */
    unsigned round_modes;    /* bits of enum us_mode: regions closed in it since its last fence */
#ifdef US_MODEL
    enum us_phase before; /* what the time went to when it began */
#endif
};

void us_flight_enter(struct us_machine *machine, struct us_flight *flight);
void us_flight_leave(struct us_flight *flight);
/* The same for what a signal handler may call. False, and nothing entered: it interrupted a thread
 * that nobody waits for, and the machine is stopped. Who works alone may have everything in pieces:
 * not even a pointer to a queue may be followed. */
bool us_flight_try(struct us_machine *machine, struct us_flight *flight);
/* Leaves the count for the time of a call into the embedder (a constructor in Python). */
void us_flight_suspend(struct us_flight *flight);
void us_flight_resume(struct us_flight *flight);

/* Around several slow paths of the calling thread. While other threads are kept from stopping the
 * machine, nothing may be waited for but locks that slow paths take. */
void us_frame_enter(struct us_machine *machine, struct us_flight *frame);
void us_frame_leave(struct us_flight *frame);

/* Around a lock that is held outside of slow paths, as readers of statistics do: a signal handler
 * that comes between is nested, for it must not wait at the gate for who waits for that lock. */
void us_mark_thread(void);
void us_unmark_thread(void);

/* Shuts the gate and waits for zero in flight. The caller is then the only slow path; its own
 * flight (already nested-safe) is filled in `flight` and must be ended by us_gate_open. Two
 * callers take turns. Local regions stay open: see us_local_close_all. */
void us_gate_shut(struct us_machine *machine, struct us_flight *flight);
void us_gate_open(struct us_flight *flight);
/* Waits until every slow path that is under way now has ended, stopping nobody as long as CPUs are
 * found without one. Not from inside a slow path or a frame: there it does nothing. */
void us_flight_quiesce(struct us_machine *machine);
/* In the fork child, where only this thread exists, before us_gate_open: takes back what other
 * threads had counted and held, and registers the child for fences. */
void us_gate_after_fork_child(struct us_machine *machine);

/* The innermost flight of the calling thread; NULL outside of slow paths, in a frame also. A thread
 * that is inside either must not shut a gate: us_gate_shut ends the process with a message then. */
struct us_flight *us_flight_current(void);

#endif

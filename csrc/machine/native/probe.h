/* probe.h - what elementary things cost on this machine: one short measurement a call. */
#ifndef US_PROBE_H
#define US_PROBE_H

#include <stddef.h>

#include "unislab.h"

/* what, name in Python; each gives ns an operation */
// clang-format off
#define US_PROBES(row)                                                                         \
    row(CYCLE, "cycle")             /* an addition that waits for the one before */            \
    row(INSTRUCTION, "instruction") /* code as on a fast path, all of it in L1 */              \
    row(ATOMIC, "atomic")           /* a locked addition to a line in L1 */                    \
    row(LOCK, "lock")               /* taking and dropping a free lock */                      \
    row(CHASE, "chase")             /* a load whose address the one before gave, in `bytes` */ \
    row(ZERO, "zero")               /* zeroing a page of `bytes` of them */                    \
    row(FAULT, "fault")             /* first use of a page */                                  \
    row(LINE, "line")               /* a load of a line that `other` has written */            \
    row(INVALIDATE, "invalidate")   /* a locked addition to a line that `other` has read */    \
    row(HANDOVER, "handover")       /* from the drop here to having the lock on `other` */     \
    row(SWITCH, "switch")           /* a wake-up and a switch between two threads of `cpu` */  \
    row(WAKE, "wake")               /* waking a thread that sleeps on `other`: the call */     \
    row(ARRIVE, "arrive")           /* and from the call to that thread running */
// clang-format on

enum us_probe {
#define US_ROW(id, name) US_PROBE_##id,
    US_PROBES(US_ROW)
#undef US_ROW
        US_PROBE_N
};

struct us_probe_place {
    unsigned cpu, other; /* where it runs; `other` only for what takes two CPUs */
    size_t bytes;        /* of the memory it works on, where that matters */
    unsigned repeat;     /* operations, in hundreds where they are short */
};

/* Runs in threads of its own, each kept on its CPU. */
enum us_status us_probe(enum us_probe what, const struct us_probe_place *place, double *ns,
                        struct us_error *error);

#endif

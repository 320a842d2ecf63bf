/* program.h - workloads as data: op programs over caches, slots and channels.
 *
 * A program has caches, channels and tasks; a task is an array of 16-byte ops. A slot holds one
 * object. Slots are numbered from 0, each task has its own; those of ops with US_OPF_SHARED belong
 * to the program: an ALLOC waits until its shared slot is empty, a FREE or TOUCH until it is full.
 * That is how a replayed trace orders an allocation on one CPU before its free on another.
 *
 * A message arrives `arg` ns after its SEND, but never before one that was sent earlier over the
 * same channel: arrival = max(arrival of the one before, now + delay).
 *
 * us_program_check() refuses everything that a run could trip over and that can be known before:
 * a slot freed twice, filled twice or never filled, unknown numbers, sizes out of range.
 */
#ifndef US_WORK_PROGRAM_H
#define US_WORK_PROGRAM_H

#include "machine/machine.h"

/* row: id, name, help */
/* clang-format off */
#define US_OPS(row)                                                                                \
    row(ALLOC, "ALLOC", "allocate from `cache` into `slot`; arg = node + 1, 0 = any node")         \
    row(FREE, "FREE", "free the object of `slot`")                                                 \
    row(TOUCH, "TOUCH", "write the first arg bytes of the object of `slot`; 0 = all of it")        \
    row(WORK, "WORK", "compute for about arg cycles")                                              \
    row(SEND, "SEND", "send the object of `slot` over channel `cache`, to arrive after arg ns; "   \
                      "no slot: an empty message")                                                 \
    row(RECV, "RECV", "receive into `slot` from channel `cache`")                                  \
    row(BARRIER, "BARRIER", "wait for all tasks that have a BARRIER")                              \
    row(REPEAT, "REPEAT", "the `slot` ops before this one run arg times in all")                   \
    row(CLOCK, "CLOCK", "the workload's clock shows arg ns")                                       \
    row(PROGRESS, "PROGRESS", "the task stands at event arg; others may lag one window behind")    \
    row(MARK, "MARK", "one unit of work (a transaction, a message) is done")                       \
    row(SLEEP, "SLEEP", "do nothing for arg ns; the CPU is free for others")
/* clang-format on */

enum us_opcode {
    US_OP_NONE,
#define US_ROW(id, name, help) US_OP_##id,
    US_OPS(US_ROW)
#undef US_ROW
        US_OP_COUNT,
};

/* row: id, value, help */
#define US_OP_FLAGS(row)                                                                           \
    row(SHARED, 1, "the slot belongs to the program, not to the task")                             \
        row(ZERO, 2, "the object is zeroed") row(THISNODE, 4, "fail rather than use another node") \
            row(ACCOUNTED, 8, "charged to the current group")

enum us_op_flag {
#define US_ROW(id, value, help) US_OPF_##id = value,
    US_OP_FLAGS(US_ROW)
#undef US_ROW
        US_OPF_ALL = 15,
};

#define US_NO_SLOT    UINT32_MAX
#define US_MAX_SLOTS  (1u << 24)
#define US_MAX_LOOPS  8u /* REPEAT within REPEAT */
#define US_MAX_OBJECT (1ull << 40)
#define US_MAX_DELAY  1000000000000ull /* ns: of a SEND, a SLEEP */

enum us_task_flag {
    US_TASK_INTERRUPT = 1, /* an interrupt handler of its one CPU; natively a thread like others */
    US_TASK_FLAGS_ALL = 1,
};

struct us_op {
    uint8_t op;
    uint8_t flags;
    uint16_t cache; /* or channel */
    uint32_t slot;
    uint64_t arg;
};
_Static_assert(sizeof(struct us_op) == 16, "an op is 16 bytes");

struct us_program_cache {
    const char *name; /* of a named cache; NULL = kmalloc(size) */
    uint64_t size, align;
};

struct us_program_task {
    const struct us_op *op;
    size_t nops;
    const unsigned *cpu; /* may run on any of these */
    unsigned ncpus;      /* 0 = free to move */
    unsigned flags;      /* us_task_flag */
};

struct us_program {
    const struct us_program_cache *cache;
    unsigned ncaches;
    const uint32_t *channel; /* [nchannels] messages each holds */
    unsigned nchannels;
    const struct us_program_task *task;
    unsigned ntasks;
};

/* What the check learned; needed to run. */
struct us_program_facts {
    uint32_t *nslots; /* [ntasks] */
    uint32_t *nloops; /* [ntasks] */
    uint32_t nshared;
    unsigned nbarrier;                /* tasks that have a BARRIER */
    uint64_t span_ns;                 /* largest CLOCK */
    uint64_t nallocs, nfrees, nmarks; /* of one pass, REPEAT multiplied out */
};

const char *us_op_name(unsigned op); /* NULL = unknown */

/* One error that names task, op and value, or US_OK and *facts to be released. */
enum us_status us_program_check(const struct us_program *p, struct us_program_facts *facts,
                                struct us_error *error);
void us_program_facts_release(struct us_program_facts *facts);

#endif

/* costs.h - what a modelled machine is made of, as tables: costs, caches, and what time goes to. */
#ifndef US_COSTS_H
#define US_COSTS_H

#include <stdint.h>

/* clang-format off */
/* row: name, help. Picoseconds, but for smt_slowdown, which is a percentage. */
#define US_COSTS(row)                                                                           \
    row(cycle, "one cycle of WORK")                                                             \
    row(instruction, "one instruction of allocator code, its hits in L1 included")              \
    row(l2_hit, "line found in L2")                                                             \
    row(llc_hit, "line found in the last level of the domain")                                  \
    row(memory, "line from the memory of the CPU's node")                                       \
    row(memory_far, "line from the memory of another node")                                     \
    row(line_domain, "line last written by another core of the domain")                         \
    row(line_node, "line last written in another domain of the node")                           \
    row(line_far, "line last written on another node")                                          \
    row(invalidate_domain, "write to a line that cores of the domain have read")                \
    row(invalidate_node, "write to a line that was read in another domain of the node")         \
    row(invalidate_far, "write to a line that was read on another node")                        \
    row(atomic, "locked read-modify-write, beyond the access")                                  \
    row(lock, "taking and dropping a free lock, beyond its line")                               \
    row(lock_handover, "from who drops a lock to who waits for it")                             \
    row(lock_waiter, "the same, more for each further CPU that spins on the lock")              \
    row(page_alloc, "pages from the provider, beyond its lines and lock")                       \
    row(page_free, "pages to the provider, beyond its lines and lock")                          \
    row(page_zero, "zeroing a page")                                                            \
    row(page_fault, "first use of a page that the system has to supply")                        \
    row(interrupt, "entry and exit of an interrupt")                                            \
    row(context_switch, "from one task of a CPU to another")                                    \
    row(wakeup, "making a task runnable, on the waker")                                         \
    row(idle_exit, "from the wake-up of an idle CPU to its first op")                           \
    row(smt_slowdown, "time of a CPU while its sibling is busy; 100 = as alone")

/* row: name, help. Bytes and ways; l1 and l2 of a core, llc of a cache domain. */
#define US_CACHE_SIZES(row)                                                                     \
    row(l1, "bytes of L1") row(l1_ways, "ways of L1") row(l2, "bytes of L2")                    \
    row(l2_ways, "ways of L2") row(llc, "bytes of the last level")                              \
    row(llc_ways, "ways of the last level")

/* Where a line came from. row: name of its count and, but for l1, of its cost */
#define US_LINE_KINDS(row)                                                                      \
    row(l1) row(l2) row(llc) row(memory) row(memory_far) row(line_domain) row(line_node)        \
    row(line_far) row(invalidate_domain) row(invalidate_node) row(invalidate_far)
/* clang-format on */

#define US_ROW(name, help) uint64_t name;
struct us_costs {
    US_COSTS(US_ROW)
};
struct us_cache_sizes {
    US_CACHE_SIZES(US_ROW)
};
#undef US_ROW

enum us_line_kind {
#define US_ROW(name) US_LINE_##name,
    US_LINE_KINDS(US_ROW)
#undef US_ROW
        US_LINE_NKINDS
};

#endif

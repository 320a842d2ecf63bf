/* Allocation flags of the kernel as the bits a replay can use. */
#ifndef US_WORK_TRACE_GFP_H
#define US_WORK_TRACE_GFP_H

#include "work/trace_strings.h"

/* Our own bits: name, value, meaning. Words and hexadecimal numbers decode to the same bits; a
 * number is read with the bit values of 6.x kernels (0x100 is __GFP_ZERO, 0x400000 is
 * __GFP_ACCOUNT). */
#define US_TRACE_GFP(X)                                          \
    X(ZERO, 1u << 0, "the object is zeroed")                     \
    X(NOWAIT, 1u << 1, "may not sleep: no direct reclaim")       \
    X(ATOMIC, 1u << 2, "may not sleep and may use reserves")     \
    X(ACCOUNT, 1u << 3, "charged to the group of the task")      \
    X(THISNODE, 1u << 4, "fail rather than use another node")    \
    X(NOFS, 1u << 5, "may sleep but not enter the file system")  \
    X(NOIO, 1u << 6, "may sleep but not start input or output")  \
    X(NOWARN, 1u << 7, "no message when it fails")               \
    X(NORETRY, 1u << 8, "give up early")                         \
    X(RETRY_MAYFAIL, 1u << 9, "try hard, but may fail")          \
    X(NOFAIL, 1u << 10, "may not fail")                          \
    X(MEMALLOC, 1u << 11, "may use all reserves")                \
    X(NOMEMALLOC, 1u << 12, "may not use reserves")              \
    X(COMP, 1u << 13, "compound pages")                          \
    X(HARDWALL, 1u << 14, "only the nodes of the task's cpuset") \
    X(RECLAIMABLE, 1u << 15, "from a reclaimable cache")         \
    X(MOVABLE, 1u << 16, "may be migrated")                      \
    X(DMA, 1u << 17, "lowest zone")                              \
    X(DMA32, 1u << 18, "zone below 4 GiB")                       \
    X(HIGHMEM, 1u << 19, "may be high memory")                   \
    X(WRITE, 1u << 20, "will be written soon")

enum us_trace_gfp {
#define X(name, value, help) US_TRACE_GFP_##name = value,
    US_TRACE_GFP(X)
#undef X
};

/* Decodes what is printed after gfp_flags=: words joined by '|', the last of which may be a number.
 */
uint32_t us_trace_gfp_decode(struct us_text text);

#endif

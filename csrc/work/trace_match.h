/* Which free ends which allocation: rows, objects, and the table of live addresses. */
#ifndef US_WORK_TRACE_MATCH_H
#define US_WORK_TRACE_MATCH_H

#include "work/trace_line.h"
#include "work/trace_read.h"

/* What is known of an object: the row of its allocation. */
struct us_trace_object {
    size_t row;
};

/* A live address; address 0 is an empty slot. */
struct us_trace_live {
    uint64_t address;
    int64_t object;
};

struct us_trace_match {
    struct us_trace_columns columns;
    struct us_trace_counts counts; /* but for lost_events and other_events */
    struct us_strings caches;
    struct us_strings call_sites;
    struct us_strings gfp_texts;
    uint32_t *gfp_bits; /* of gfp_texts */
    uint32_t gfp_room;

    size_t *object_row; /* [object] row of its allocation */
    size_t object_room;

    struct us_trace_live *live; /* open addressing, linear probing */
    size_t live_mask;           /* slots - 1 */
    size_t live_count;
    unsigned live_shift; /* 64 - log2(slots) */

    /* Caches of allocations that print no name (before 6.18): known by call site and sizes until a
     * free tells the name. */
    struct us_strings unnamed;
    int32_t *unnamed_cache; /* of unnamed: cache learned from a free, or -1 */
    uint32_t unnamed_room;
};

bool us_trace_match_alloc(struct us_trace_match *match, const struct us_trace_line *line);
bool us_trace_match_free(struct us_trace_match *match, const struct us_trace_line *line);

/* Gives every row its cache; nothing is added afterwards. All three return false when memory is
 * short. */
bool us_trace_match_finish(struct us_trace_match *match);

void us_trace_match_release(struct us_trace_match *match);

#endif

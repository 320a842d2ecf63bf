/* The trace reader: text of ftrace, trace-cmd report or perf script is pushed in, columns come out,
 * one row per successful allocation and per free of an address that is not NULL.
 *
 * What it tells apart and counts is US_TRACE_COUNTS. A free ends the latest live allocation of its
 * address, whichever event printed it. An allocation of an address that is live ends the earlier
 * object (bulk and RCU frees print no event); its row names that object in `implied`. Rows stand in
 * the order of the lines; times may step back, since the tools merge buffers of several CPUs. */
#ifndef US_WORK_TRACE_READ_H
#define US_WORK_TRACE_READ_H

#include "work/trace_gfp.h"
#include "work/trace_strings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Columns: name, C type, format as in Python's struct module, meaning. */
#define US_TRACE_COLUMNS(X)                                                                        \
    X(time_ns, int64_t, "q", "time stamp in ns")                                                   \
    X(object, int64_t, "q", "number of the allocation made or ended; -1 for a free of none known") \
    X(implied, int64_t, "q", "object whose unseen free this allocation implies; -1 for none")      \
    X(cpu, int32_t, "i", "CPU")                                                                    \
    X(cache, int32_t, "i", "index into the cache names; -1 if unknown")                            \
    X(call_site, int32_t, "i", "index into the call sites; -1 if not printed")                     \
    X(pid, int32_t, "i", "thread id; -1 if not printed")                                           \
    X(bytes_req, uint32_t, "I", "object size of the cache, or size asked of kmalloc")              \
    X(bytes_alloc, uint32_t, "I", "stride used by the kernel")                                     \
    X(gfp, uint32_t, "I", "bits of US_TRACE_GFP")                                                  \
    X(node, int16_t, "h", "node asked for; -1 for any")                                            \
    X(kind, uint8_t, "B", "1 allocation, 2 free")                                                  \
    X(accounted, int8_t, "b", "1 charged to a group, 0 not, -1 not printed")

#define US_TRACE_COUNTS(X)                                                        \
    X(events, "kmem events that allocate or free an object")                      \
    X(allocs, "successful allocations")                                           \
    X(allocs_failed, "allocations that returned NULL")                            \
    X(frees, "frees of all kinds")                                                \
    X(frees_matched, "frees that end an allocation of this trace")                \
    X(frees_unknown, "frees of an address with no live allocation in this trace") \
    X(frees_null, "frees of NULL")                                                \
    X(implied_frees, "allocations of an address that was live")                   \
    X(remote_frees, "matched frees on another CPU than the allocation")           \
    X(live_at_end, "objects not freed when the trace ends")                       \
    X(lost_events, "events lost by the recorder: sum of the printed numbers")     \
    X(other_events, "events of other kinds")

enum us_trace_kind {
    US_TRACE_ALLOC = 1,
    US_TRACE_FREE = 2,
};

struct us_trace_columns {
#define X(name, type, format, help) type *name;
    US_TRACE_COLUMNS(X)
#undef X
    size_t rows;
    size_t room;
};

struct us_trace_counts {
#define X(name, help) uint64_t name;
    US_TRACE_COUNTS(X)
#undef X
};

enum us_trace_format {
    US_TRACE_AUTO,
    US_TRACE_FTRACE,
    US_TRACE_TRACE_CMD,
    US_TRACE_PERF,
};

enum us_trace_status {
    US_TRACE_OK = 0,
    US_TRACE_BAD_LINE, /* strict reading met a line that is none of a trace: see us_trace_error */
    US_TRACE_NO_MEMORY,
};

struct us_trace_options {
    bool lenient;                /* skip and count lines that are none of a trace */
    enum us_trace_format format; /* what to accept; US_TRACE_AUTO takes every line as it comes */
};

/* The line that stopped the reader, or the first that a lenient one skipped. */
struct us_trace_error {
    uint64_t line_number; /* from 1; 0: there was none */
    const char *expected; /* static text */
    char line[256];       /* its beginning */
    size_t line_len;      /* bytes in `line` */
    bool cut;             /* the last line, without a line end: the file may have been cut */
};

/* All that was read; texts and columns belong to the reader. */
struct us_trace_result {
    struct us_trace_columns *columns;
    struct us_trace_counts counts;
    const struct us_strings *caches;
    const struct us_strings *call_sites;
    const struct us_strings *other_names;
    const uint64_t *other_counts;
    enum us_trace_format format; /* US_TRACE_AUTO: no event was seen */
    uint64_t lines;
    uint64_t lines_skipped;
    uint64_t lost_marks; /* lines that say that events were lost, with or without a number */
    bool header;         /* a header or another line of the tools was seen */
};

struct us_trace_reader;

/* NULL when memory is short. */
struct us_trace_reader *us_trace_reader_new(const struct us_trace_options *options);
void us_trace_reader_free(struct us_trace_reader *reader);

/* Takes the next piece of text, cut anywhere. After anything but US_TRACE_OK it returns the same
 * again. */
enum us_trace_status us_trace_reader_feed(struct us_trace_reader *reader, const void *text,
                                          size_t len);

/* Ends the text; the result stays valid until us_trace_reader_free. */
enum us_trace_status us_trace_reader_finish(struct us_trace_reader *reader,
                                            struct us_trace_result *result);

const struct us_trace_error *us_trace_reader_error(const struct us_trace_reader *reader);

#endif

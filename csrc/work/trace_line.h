/* One line of a printed kernel trace: which of the lines that ftrace, trace-cmd and perf print is
 * it, and what does it say? Nothing is remembered from line to line and nothing is allocated; texts
 * point into the line. */
#ifndef US_WORK_TRACE_LINE_H
#define US_WORK_TRACE_LINE_H

#include "work/trace_strings.h"

#include <stdbool.h>
#include <stdint.h>

enum us_line_kind {
    US_LINE_BLANK,
    US_LINE_NOTE,  /* header, comment, "cpus=2", "CPU 1 is empty" */
    US_LINE_FRAME, /* one frame of a call chain below an event */
    US_LINE_LOST,  /* the recorder dropped events here */
    US_LINE_ALLOC,
    US_LINE_FREE,
    US_LINE_OTHER, /* an event that neither allocates nor frees an object */
    US_LINE_BAD,
};

/* How the task stands before the CPU: "task-pid [cpu]" (ftrace, trace-cmd) or "task pid [cpu]"
 * (perf). */
enum us_line_form {
    US_FORM_DASH = 1,
    US_FORM_PERF = 2,
};

struct us_trace_line {
    enum us_line_kind kind;
    enum us_line_form form;
    int32_t cpu;
    int32_t pid; /* -1: not printed */
    int64_t time_ns;
    struct us_text event; /* without "kmem:" */
    bool kmalloc;         /* kmalloc and kmalloc_node: no cache of its own */

    /* Fields of the kmem events; what the kernel did not print has an `at` of NULL, or the value
     * given. */
    uint64_t address; /* 0: NULL */
    struct us_text name;
    struct us_text call_site;
    struct us_text gfp;
    uint64_t bytes_req;   /* object size of the cache, or size asked of kmalloc */
    uint64_t bytes_alloc; /* equal to bytes_req if absent */
    int16_t node;         /* -1: any */
    int8_t accounted;     /* -1: absent */

    uint64_t lost;        /* US_LINE_LOST: the printed number */
    bool lost_chunks;     /* US_LINE_LOST: perf's closing total, which counts chunks */
    bool trace_cmd;       /* US_LINE_NOTE: a line only trace-cmd prints */
    const char *expected; /* US_LINE_BAD: what should have stood here */
};

/* Reads one line without its line end. `forms` is the set of us_line_form to accept; `below` is the
 * form of the event that the line before belongs to, 0 for none: only there can a call chain stand.
 */
void us_trace_line_parse(struct us_trace_line *line, const char *text, size_t len, unsigned forms,
                         unsigned below);

#endif

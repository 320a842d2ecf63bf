/* What stands before the payload of an event line: task, CPU, time, event name. */
#ifndef US_WORK_TRACE_PREFIX_H
#define US_WORK_TRACE_PREFIX_H

#include "work/trace_line.h"

/* Fills form, pid, cpu, time_ns and event, and returns the start of the payload; NULL if the line
 * is no event line, and then `expected` says what is missing. */
const char *us_trace_prefix_parse(struct us_trace_line *line, const char *text, const char *end,
                                  unsigned forms);

#endif

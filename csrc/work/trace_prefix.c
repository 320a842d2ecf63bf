/* The three tools agree on "[cpu]", then the time, then the event name, each of the last two
 * followed by a colon. Before the CPU stands the task, and task names may hold anything, even a
 * text that looks like a CPU and a time. All three print the name right-aligned in 16 columns, so
 * column 16 tells the form and where the name ends; that is the fast way, and it cannot be misled
 * by a name. Lines in other columns (trimmed by a mailer, or perf script with other -F fields) are
 * searched for the first "[cpu] time: event:" that has a process id before it. */
#include "work/trace_prefix.h"

#include "work/trace_scan.h"

#define TASK_COLUMNS 16
#define MAX_CPU      65535
/* 9 223 372 036 seconds are the most that fit the nanoseconds of an int64_t. */
#define MAX_SECONDS UINT64_C(9223372035)

static const char EXPECT_EVENT[] =
    "an event line: '<task>-<pid> [<cpu>] <time>: <event>: ...' (ftrace, trace-cmd report) or "
    "'<task> <pid> [<cpu>] <time>: <event>: ...' (perf script)";
static const char EXPECT_CPU[] =
    "a CPU in brackets before the time; print with perf script -F comm,tid,cpu,time,event,trace";
static const char EXPECT_TIME[] = "a time and a colon after the CPU";
static const char EXPECT_NAME[] = "an event name and a colon after the time; print with perf "
                                  "script -F comm,tid,cpu,time,event,trace";
static const char EXPECT_DASH[] =
    "an event line of ftrace or trace-cmd: '<task>-<pid> [<cpu>] <time>: <event>: ...'";
static const char EXPECT_PERF[] =
    "an event line of perf script: '<task> <pid> [<cpu>] <time>: <event>: ...'";

/* "12.345678:" in seconds with any number of decimals, or a bare count of another trace clock. */
static const char *scan_time(const char *p, const char *end, int64_t *time_ns)
{
    uint64_t whole, fraction = 0, unit = 1000000000;
    const char *at = us_scan_decimal(p, end, &whole);

    if (!at || at == end)
        return NULL;
    if (*at == ':') {
        if (whole > INT64_MAX)
            return NULL;
        *time_ns = (int64_t)whole;
        return at + 1;
    }
    if (*at != '.' || whole > MAX_SECONDS)
        return NULL;
    for (at++; at < end && us_is_digit(*at); at++) {
        unit /= 10;
        fraction += unit * (uint64_t)(*at - '0');
    }
    if (at == end || *at != ':')
        return NULL;
    *time_ns = (int64_t)(whole * 1000000000 + fraction);
    return at + 1;
}

/* "[002] d..2. 12.345678:" with none, one or two short columns between CPU and time. */
static const char *scan_cpu(struct us_trace_line *line, const char *p, const char *end)
{
    uint64_t cpu;

    p = us_scan_decimal(p + 1, end, &cpu);
    if (!p || p == end || *p != ']' || cpu > MAX_CPU)
        return NULL;
    line->cpu = (int32_t)cpu;
    p++;
    for (int column = 0; column < 3; column++) {
        const char *after, *next;

        p = us_skip_spaces(p, end);
        after = scan_time(p, end, &line->time_ns);
        if (after)
            return after;
        next = us_skip_token(p, end);
        if (next == end || next - p > 8 || next == p)
            return NULL;
        p = next;
    }
    return NULL;
}

static bool set_event(struct us_trace_line *line, const char *start, const char *stop)
{
    const char *rest = us_scan_literal(start, stop, "kmem:");

    if (rest)
        start = rest;
    line->event = (struct us_text){start, (size_t)(stop - start)};
    return stop > start;
}

/* The event name; most are followed by a colon, and the few that are not are named here. */
static const char *scan_event(struct us_trace_line *line, const char *p, const char *end)
{
    const char *stop, *mark;
    uint64_t period;

    p = us_skip_spaces(p, end);
    stop = us_scan_decimal(p, end, &period);
    if (stop && stop < end && *stop == ' ')
        p = us_skip_spaces(stop, end);
    if (p == end)
        return NULL;
    stop = us_skip_token(p, end);
    if (stop - p > 1 && stop[-1] == ':' && us_is_word(*p)) {
        mark = memchr(p, '(', (size_t)(stop - p)); /* "sys_openat(dfd: ..." */
        return set_event(line, p, mark ? mark : stop - 1) ? stop : NULL;
    }
    if (*p == '<' && (mark = memchr(p, '>', (size_t)(end - p)))) {
        const char *user =
            us_scan_literal(p, end, "<user"); /* "<stack trace>", "<user stack trace>" */

        line->event =
            user ? (struct us_text){"user_stack", 10} : (struct us_text){"kernel_stack", 12};
        return mark + 1;
    }
    if (us_scan_literal(p, stop, "PERF_RECORD_") ||
        (us_is_word(*p) && memchr(p, '(', (size_t)(stop - p)))) {
        for (mark = p; mark < stop && us_is_word(*mark);)
            mark++;
        return set_event(line, p, mark) ? mark : NULL;
    }
    if (us_scan_literal(stop, end, " -> "))
        return set_event(line, p, stop) ? stop : NULL;
    if (us_scan_literal(stop, end, " <-")) {
        line->event = (struct us_text){"function", 8};
        return stop;
    }
    return NULL;
}

/* Which form is the text before the CPU? 0: no process id, which only perf can leave out. */
static unsigned scan_task(struct us_trace_line *line, const char *text, const char *bracket)
{
    const char *p = bracket, *digits;
    uint64_t pid;

    line->pid = -1;
    while (p > text && p[-1] == ' ')
        p--;
    if (p > text && p[-1] == ')') { /* "(tgid)" or "(-----)" */
        while (p > text && *p != '(')
            p--;
        while (p > text && p[-1] == ' ')
            p--;
    }
    if (p == text)
        return US_FORM_PERF;
    for (digits = p; digits > text && us_is_digit(digits[-1]);)
        digits--;
    if (!us_scan_decimal(digits, p, &pid) || pid > INT32_MAX)
        return 0;
    if (digits == text || digits[-1] == ' ' || digits[-1] == '/') {
        line->pid = (int32_t)pid;
        return US_FORM_PERF;
    }
    if (digits[-1] != '-')
        return 0;
    line->pid = (int32_t)pid;
    return US_FORM_DASH;
}

/* The usual columns: the form by column 16, then the process id, a possible "(tgid)" and the CPU.
 */
static const char *parse_columns(struct us_trace_line *line, const char *text, const char *end)
{
    const char *p = text + TASK_COLUMNS, *rest;
    uint64_t pid;

    if (end - text < 32 || (*p != '-' && *p != ' '))
        return NULL;
    line->form = *p == '-' ? US_FORM_DASH : US_FORM_PERF;
    p = line->form == US_FORM_DASH ? p + 1 : us_skip_spaces(p, end);
    p = us_scan_decimal(p, end, &pid);
    if (!p || pid > INT32_MAX)
        return NULL;
    line->pid = (int32_t)pid;
    p = us_skip_spaces(p, end);
    if (p < end && *p == '(') {
        p = memchr(p, ')', (size_t)(end - p));
        if (!p)
            return NULL;
        p = us_skip_spaces(p + 1, end);
    }
    if (p == end || *p != '[')
        return NULL;
    rest = scan_cpu(line, p, end);
    return rest ? scan_event(line, rest, end) : NULL;
}

static const char *expected_of(const char *text, const char *end, bool saw_cpu, bool saw_time)
{
    if (saw_time)
        return EXPECT_NAME;
    if (saw_cpu)
        return EXPECT_TIME;
    /* A time without a CPU is what perf prints for a recording or a -F list without it. */
    for (const char *p = text; p < end;) {
        int64_t time_ns;

        p = us_skip_spaces(p, end);
        if (memchr(p, '.', (size_t)(us_skip_token(p, end) - p)) && scan_time(p, end, &time_ns))
            return EXPECT_CPU;
        p = us_skip_token(p, end);
    }
    return EXPECT_EVENT;
}

static const char *parse_anywhere(struct us_trace_line *line, const char *text, const char *end)
{
    struct us_trace_line weak = {0};
    const char *weak_rest = NULL;
    bool saw_cpu = false, saw_time = false;

    for (const char *p = text; (p = memchr(p, '[', (size_t)(end - p))); p++) {
        const char *rest = scan_cpu(line, p, end);
        unsigned form;

        saw_cpu |= p + 1 < end && us_is_digit(p[1]);
        if (!rest)
            continue;
        saw_time = true;
        rest = scan_event(line, rest, end);
        if (!rest)
            continue;
        form = scan_task(line, text, p);
        if (form) {
            line->form = form;
            return rest;
        }
        if (!weak_rest) {
            weak = *line;
            weak_rest = rest;
        }
    }
    if (weak_rest) {
        *line = weak;
        line->form = US_FORM_PERF;
        return weak_rest;
    }
    line->expected = expected_of(text, end, saw_cpu, saw_time);
    return NULL;
}

const char *us_trace_prefix_parse(struct us_trace_line *line, const char *text, const char *end,
                                  unsigned forms)
{
    const char *rest = parse_columns(line, text, end);

    if (!rest)
        rest = parse_anywhere(line, text, end);
    if (rest && !(line->form & forms)) {
        line->expected = forms == US_FORM_DASH ? EXPECT_DASH : EXPECT_PERF;
        return NULL;
    }
    return rest;
}

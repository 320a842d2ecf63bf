/* The reader cuts the pushed text into lines, hands each to trace_line.c to be understood and to
 * trace_match.c to be matched, and keeps the counts that concern lines. Lines are read where they
 * lie in the caller's buffer; only a line cut by the end of a piece is copied, into `rest`. */
#include "work/trace_read.h"

#include "work/trace_line.h"
#include "work/trace_match.h"

#include <stdlib.h>
#include <string.h>

/* No tool prints a line this long; a binary file may hold no line end at all. */
#define MAX_LINE ((size_t)1 << 20)

static const char EXPECT_SHORTER[] = "a line of text of at most 1 MiB";

struct us_trace_reader {
    struct us_trace_match match;
    struct us_strings other_names;
    uint64_t *other_counts;
    uint32_t other_room;

    char *rest; /* the beginning of a line whose end has not come yet */
    size_t rest_len, rest_room;
    bool overlong; /* in `rest` lies the beginning of a line longer than MAX_LINE */

    struct us_trace_options options;
    enum us_trace_status status;
    struct us_trace_error error;
    unsigned forms;
    unsigned seen_forms;
    unsigned below; /* form of the event whose call chain may follow, 0: none */
    bool header;
    bool trace_cmd;
    uint64_t lines, lines_skipped, lost_marks;
    uint64_t lost_events, lost_chunks, other_events;
};

struct us_trace_reader *us_trace_reader_new(const struct us_trace_options *options)
{
    struct us_trace_reader *reader = calloc(1, sizeof(*reader));

    if (!reader)
        return NULL;
    reader->options = *options;
    switch (options->format) {
    case US_TRACE_AUTO:
        reader->forms = US_FORM_DASH | US_FORM_PERF;
        break;
    case US_TRACE_PERF:
        reader->forms = US_FORM_PERF;
        break;
    case US_TRACE_FTRACE:
    case US_TRACE_TRACE_CMD:
        reader->forms = US_FORM_DASH;
        break;
    }
    return reader;
}

void us_trace_reader_free(struct us_trace_reader *reader)
{
    if (!reader)
        return;
    us_trace_match_release(&reader->match);
    us_strings_free(&reader->other_names);
    free(reader->other_counts);
    free(reader->rest);
    free(reader);
}

const struct us_trace_error *us_trace_reader_error(const struct us_trace_reader *reader)
{
    return &reader->error;
}

static bool count_other(struct us_trace_reader *r, struct us_text name)
{
    uint32_t known = r->other_names.count;
    int32_t id = us_strings_intern(&r->other_names, name);

    if (id < 0)
        return false;
    if ((uint32_t)id == known) {
        if (known == r->other_room) {
            uint32_t room = known ? known * 2 : 64;
            uint64_t *counts = realloc(r->other_counts, room * sizeof(*counts));

            if (!counts)
                return false;
            r->other_counts = counts;
            r->other_room = room;
        }
        r->other_counts[id] = 0;
    }
    r->other_counts[id]++;
    r->other_events++;
    return true;
}

static void bad_line(struct us_trace_reader *r, const char *text, size_t len, const char *expected)
{
    if (r->options.lenient)
        r->lines_skipped++;
    else
        r->status = US_TRACE_BAD_LINE;
    if (r->error.line_number)
        return;
    r->error.line_number = r->lines;
    r->error.expected = expected;
    r->error.line_len = len < sizeof(r->error.line) ? len : sizeof(r->error.line);
    memcpy(r->error.line, text, r->error.line_len);
}

static bool take_event(struct us_trace_reader *r, const struct us_trace_line *line)
{
    r->seen_forms |= line->form;
    r->below = line->form;
    switch (line->kind) {
    case US_LINE_ALLOC:
        return us_trace_match_alloc(&r->match, line);
    case US_LINE_FREE:
        return us_trace_match_free(&r->match, line);
    default:
        return count_other(r, line->event);
    }
}

static void take_line(struct us_trace_reader *r, const char *text, size_t len)
{
    struct us_trace_line line;

    r->lines++;
    us_trace_line_parse(&line, text, len, r->forms, r->below);
    switch (line.kind) {
    case US_LINE_BLANK:
    case US_LINE_FRAME:
        return;
    case US_LINE_NOTE:
        r->header = true;
        r->trace_cmd |= line.trace_cmd;
        break;
    case US_LINE_LOST:
        r->lost_marks++;
        *(line.lost_chunks ? &r->lost_chunks : &r->lost_events) += line.lost;
        break;
    case US_LINE_ALLOC:
    case US_LINE_FREE:
    case US_LINE_OTHER:
        if (!take_event(r, &line))
            r->status = US_TRACE_NO_MEMORY;
        return;
    case US_LINE_BAD:
        bad_line(r, text, len, line.expected);
        break;
    }
    r->below = 0;
}

/* Takes the line that `rest` and the first `len` bytes of text make up. */
static void take_rest(struct us_trace_reader *r)
{
    if (r->overlong) {
        r->lines++;
        r->below = 0;
        bad_line(r, r->rest, r->rest_len, EXPECT_SHORTER);
    } else {
        take_line(r, r->rest, r->rest_len);
    }
    r->rest_len = 0;
    r->overlong = false;
}

static bool add_to_rest(struct us_trace_reader *r, const char *text, size_t len)
{
    if (r->rest_len + len > MAX_LINE) {
        r->overlong = true;
        len = MAX_LINE - r->rest_len;
    }
    if (r->rest_len + len > r->rest_room) {
        size_t room = (r->rest_len + len) * 2;
        char *rest = realloc(r->rest, room);

        if (!rest)
            return false;
        r->rest = rest;
        r->rest_room = room;
    }
    if (len)
        memcpy(r->rest + r->rest_len, text, len);
    r->rest_len += len;
    return true;
}

enum us_trace_status us_trace_reader_feed(struct us_trace_reader *r, const void *text, size_t len)
{
    const char *p = text, *end = p + len;

    while (p < end && r->status == US_TRACE_OK) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *stop = newline ? newline : end;

        if (newline && !r->rest_len && (size_t)(stop - p) <= MAX_LINE) {
            take_line(r, p, (size_t)(stop - p));
        } else if (!add_to_rest(r, p, (size_t)(stop - p))) {
            r->status = US_TRACE_NO_MEMORY;
        } else if (newline) {
            take_rest(r);
        } else if (r->overlong && !r->options.lenient) {
            take_rest(r); /* no need to wait for the end of a line that will be refused */
        }
        p = newline ? newline + 1 : end;
    }
    return r->status;
}

static enum us_trace_format seen_format(const struct us_trace_reader *r)
{
    if (!r->seen_forms)
        return US_TRACE_AUTO;
    if (r->options.format != US_TRACE_AUTO)
        return r->options.format;
    if (r->seen_forms & US_FORM_PERF)
        return US_TRACE_PERF;
    return r->trace_cmd ? US_TRACE_TRACE_CMD : US_TRACE_FTRACE;
}

enum us_trace_status us_trace_reader_finish(struct us_trace_reader *r,
                                            struct us_trace_result *result)
{
    uint64_t errors = r->error.line_number;

    if (r->status == US_TRACE_OK && r->rest_len) {
        take_rest(r);
        r->error.cut = r->error.line_number != errors;
    }
    if (r->status == US_TRACE_OK && !us_trace_match_finish(&r->match))
        r->status = US_TRACE_NO_MEMORY;
    if (r->status != US_TRACE_OK)
        return r->status;
    *result = (struct us_trace_result){
        .columns = &r->match.columns,
        .counts = r->match.counts,
        .caches = &r->match.caches,
        .call_sites = &r->match.call_sites,
        .other_names = &r->other_names,
        .other_counts = r->other_counts,
        .format = seen_format(r),
        .lines = r->lines,
        .lines_skipped = r->lines_skipped,
        .lost_marks = r->lost_marks,
        .header = r->header,
    };
    /* perf's closing total stands for the lost records only where these were not printed. */
    result->counts.lost_events = r->lost_events ? r->lost_events : r->lost_chunks;
    result->counts.other_events = r->other_events;
    return US_TRACE_OK;
}

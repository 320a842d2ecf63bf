/* Which line is it, and what do its fields say? Fields are key=value pairs in any order; a value
 * goes up to the next " key=", so that "call_site=f+0x10/0x20 [ext4]" is whole. */
#include "work/trace_line.h"

#include "work/trace_prefix.h"
#include "work/trace_scan.h"

static const char EXPECT_FIELDS[] =
    "the fields of the event (call_site=... ptr=...); print with perf script -F +trace";
static const char EXPECT_PTR[] = "ptr=<hexadecimal address> or ptr=(null)";
static const char EXPECT_PTRVAL[] =
    "an address; the kernel printed (____ptrval____) because its pointer hash was not ready yet";
static const char EXPECT_SIZE[] = "bytes_req=<number> in an allocation event";
static const char EXPECT_BYTES[] =
    "a decimal number of at most 4 GiB after bytes_req= and bytes_alloc=";
static const char EXPECT_NODE[] = "a node number, -1 for any, after node=";
static const char EXPECT_ACCOUNTED[] = "true or false after accounted=";

struct field {
    struct us_text key;
    struct us_text value;
};

/* Numbers end with their value or before a space: perf may print more columns behind the last
 * field. */
static bool ends_token(const char *p, const char *end)
{
    return p && (p == end || *p == ' ');
}

static struct us_text first_token(struct us_text value)
{
    const char *end = value.at + value.len;

    value.len = (size_t)(us_skip_token(value.at, end) - value.at);
    return value;
}

/* The '=' of the next key, and where that key starts; a '=' inside a value has no space before its
 * word. */
static const char *next_key(const char *from, const char *end, const char **start)
{
    for (const char *eq = from; (eq = memchr(eq, '=', (size_t)(end - eq))); eq++) {
        const char *word = eq;

        while (word > from && us_is_word(word[-1]))
            word--;
        if (word < eq && word > from && word[-1] == ' ') {
            *start = word;
            return eq;
        }
    }
    *start = end;
    return NULL;
}

static const char *read_address(struct us_trace_line *line, struct us_text value)
{
    const char *p = value.at, *end = p + value.len, *hex;

    if (us_scan_literal(p, end, "(null)") || us_scan_literal(p, end, "(nil)") ||
        us_scan_literal(p, end, "0x(nil)"))
        return NULL;
    if (us_scan_literal(p, end, "(____ptrval____)"))
        return EXPECT_PTRVAL;
    hex = us_scan_literal(p, end, "0x");
    return ends_token(us_scan_hex(hex ? hex : p, end, &line->address), end) ? NULL : EXPECT_PTR;
}

static const char *read_bytes(uint64_t *bytes, struct us_text value)
{
    const char *end = value.at + value.len;

    return ends_token(us_scan_decimal(value.at, end, bytes), end) ? NULL : EXPECT_BYTES;
}

static const char *read_node(struct us_trace_line *line, struct us_text value)
{
    const char *p = value.at, *end = p + value.len;
    bool negative = p < end && *p == '-';
    uint64_t node;

    if (!ends_token(us_scan_decimal(p + negative, end, &node), end) ||
        node > (negative ? 1 : INT16_MAX))
        return EXPECT_NODE;
    line->node = negative ? -1 : (int16_t)node;
    return NULL;
}

static const char *read_accounted(struct us_trace_line *line, struct us_text value)
{
    value = first_token(value);
    if (us_text_is(value, "true") || us_text_is(value, "1") || us_text_is(value, "Y"))
        line->accounted = 1;
    else if (us_text_is(value, "false") || us_text_is(value, "0") || us_text_is(value, "N"))
        line->accounted = 0;
    else
        return EXPECT_ACCOUNTED;
    return NULL;
}

/* Cuts perf's "ip sym" columns, at least eight hexadecimal digits, off a name that ends the
 * payload. */
static struct us_text trim_name(struct us_text name)
{
    const char *end = name.at + name.len;

    for (const char *p = us_skip_token(name.at, end); p < end; p = us_skip_token(p, end)) {
        const char *last = p, *stop;
        uint64_t ip;

        p = us_skip_spaces(p, end);
        stop = us_scan_hex(p, end, &ip);
        if (ends_token(stop, end) && stop - p >= 8)
            return (struct us_text){name.at, (size_t)(last - name.at)};
    }
    return name;
}

static const char *read_field(struct us_trace_line *line, const struct field *field, bool *sized)
{
    const char *key = field->key.at;

    switch (field->key.len) {
    case 3:
        if (!memcmp(key, "ptr", 3)) {
            line->address = 0;
            return read_address(line, field->value);
        }
        break;
    case 4:
        if (!memcmp(key, "name", 4))
            line->name = line->form == US_FORM_PERF ? trim_name(field->value) : field->value;
        else if (!memcmp(key, "node", 4))
            return read_node(line, field->value);
        break;
    case 9:
        if (!memcmp(key, "call_site", 9)) {
            line->call_site = field->value;
        } else if (!memcmp(key, "bytes_req", 9)) {
            sized[0] = true;
            return read_bytes(&line->bytes_req, field->value);
        } else if (!memcmp(key, "gfp_flags", 9)) {
            line->gfp = first_token(field->value);
        } else if (!memcmp(key, "accounted", 9)) {
            return read_accounted(line, field->value);
        }
        break;
    case 11:
        if (!memcmp(key, "bytes_alloc", 11)) {
            sized[1] = true;
            return read_bytes(&line->bytes_alloc, field->value);
        }
        break;
    }
    return NULL;
}

/* Either size stands for the other where a kernel prints only one. */
static const char *settle_sizes(struct us_trace_line *line, const bool *sized)
{
    if (line->kind != US_LINE_ALLOC)
        return NULL;
    if (!sized[0] && !sized[1])
        return EXPECT_SIZE;
    if (!sized[0])
        line->bytes_req = line->bytes_alloc;
    if (!sized[1])
        line->bytes_alloc = line->bytes_req;
    /* A failed allocation may have asked for anything. */
    if (line->address && (line->bytes_req > UINT32_MAX || line->bytes_alloc > UINT32_MAX))
        return EXPECT_BYTES;
    return NULL;
}

/* The payload of an allocation or free; returns what was expected, NULL if all is well. */
static const char *read_fields(struct us_trace_line *line, const char *p, const char *end)
{
    bool sized[2] = {false, false}, has_ptr = false;
    const char *start, *eq;

    eq = next_key(p, end, &start);
    if (!eq)
        return EXPECT_FIELDS;
    while (eq) {
        struct field field = {{start, (size_t)(eq - start)}, {eq + 1, 0}};
        const char *expected, *stop;

        eq = next_key(eq + 1, end, &start);
        for (stop = start; stop > field.value.at && stop[-1] == ' ';)
            stop--;
        field.value.at = us_skip_spaces(field.value.at, stop); /* "ptr=          (null)" */
        field.value.len = (size_t)(stop - field.value.at);
        has_ptr |= us_text_is(field.key, "ptr");
        expected = read_field(line, &field, sized);
        if (expected)
            return expected;
    }
    return has_ptr ? settle_sizes(line, sized) : EXPECT_PTR;
}

/* The name before perf's modifiers, "kmalloc" of "kmalloc:k" or "kmalloc/call-graph=fp/". */
static struct us_text plain_event(struct us_text event)
{
    for (size_t i = 0; i < event.len; i++) {
        if (event.at[i] == ':' || event.at[i] == '/') {
            event.len = i;
            break;
        }
    }
    return event;
}

static enum us_line_kind classify_event(struct us_trace_line *line)
{
    struct us_text name = line->event;

    if (name.len < 5 || name.at[0] != 'k')
        return US_LINE_OTHER;
    name = plain_event(name);
    if (us_text_is(name, "kfree") || us_text_is(name, "kmem_cache_free"))
        return US_LINE_FREE;
    line->kmalloc = us_text_is(name, "kmalloc") || us_text_is(name, "kmalloc_node");
    if (line->kmalloc || us_text_is(name, "kmem_cache_alloc") ||
        us_text_is(name, "kmem_cache_alloc_node"))
        return US_LINE_ALLOC;
    return US_LINE_OTHER;
}

/* "CPU:1 [LOST 25 EVENTS]" of ftrace, "CPU:1 [25 EVENTS DROPPED]" of trace-cmd, either without a
 * number. */
static bool read_lost(struct us_trace_line *line, const char *p, const char *end)
{
    const char *lost, *at;
    uint64_t cpu;

    p = us_scan_literal(p, end, "CPU:");
    if (!p || !(p = us_scan_decimal(p, end, &cpu)) || !(p = us_scan_literal(p, end, " [")))
        return false;
    lost = us_scan_literal(p, end, "LOST ");
    if (lost)
        p = lost;
    at = us_scan_decimal(p, end, &line->lost);
    p = us_scan_literal(at ? us_skip_spaces(at, end) : p, end,
                        lost ? "EVENTS]" : "EVENTS DROPPED]");
    return p && us_skip_spaces(p, end) == end;
}

/* "Processed 31628 events and lost 3 chunks!", which perf prints when it is done. */
static bool read_lost_chunks(struct us_trace_line *line, const char *p, const char *end)
{
    uint64_t events;

    p = us_scan_literal(p, end, "Processed ");
    if (!p || !(p = us_scan_decimal(p, end, &events)) ||
        !(p = us_scan_literal(p, end, " events and lost ")))
        return false;
    line->lost_chunks = true;
    return us_scan_decimal(p, end, &line->lost);
}

/* Lines of the tools themselves. */
static bool is_note(struct us_trace_line *line, const char *p, const char *end)
{
    const char *at;
    uint64_t number;

    if (*p == '#')
        return true;
    line->trace_cmd =
        (at = us_scan_literal(p, end, "cpus=")) && us_scan_decimal(at, end, &number) == end;
    if (line->trace_cmd)
        return true;
    if ((at = us_scan_literal(p, end, "version = ")) && us_scan_decimal(at, end, &number) == end)
        return true;
    /* What perf says around its count of lost chunks, when the standard error was kept too. */
    if (us_scan_literal(p, end, "Warning:") == end ||
        us_scan_literal(p, end, "Check IO/CPU overload!") == end)
        return true;
    return (at = us_scan_literal(p, end, "CPU ")) && (at = us_scan_decimal(at, end, &number)) &&
           us_scan_literal(at, end, " is empty") == end;
}

/* A frame of a call chain below an event: "=> symbol" of the kernel, or indented "ffffffff8120
 * symbol+0x1 (object)" of perf, of which -F may leave the first or the last out. */
static bool is_frame(const char *p, const char *end, unsigned below)
{
    const char *text = p, *stop;
    uint64_t ip;

    if (!below)
        return false;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    if (below == US_FORM_DASH)
        return us_scan_literal(p, end, "=> ");
    if (p == text)
        return false;
    stop = us_scan_hex(p, end, &ip);
    if (ends_token(stop, end) && (*text == '\t' || stop - p >= 8))
        return true;
    stop = us_skip_token(p, end);
    p = us_skip_spaces(stop, end);
    return p == end || (*p == '(' && end[-1] == ')');
}

static void parse_event(struct us_trace_line *line, const char *text, const char *end,
                        unsigned forms)
{
    const char *rest = us_trace_prefix_parse(line, text, end, forms);

    if (!rest) {
        line->kind = US_LINE_BAD;
        return;
    }
    if (line->form == US_FORM_PERF &&
        us_scan_literal(line->event.at, line->event.at + line->event.len, "PERF_RECORD_LOST")) {
        const char *at = us_scan_literal(us_skip_spaces(rest, end), end, "lost ");

        line->kind = US_LINE_LOST;
        if (at)
            (void)us_scan_decimal(us_skip_spaces(at, end), end, &line->lost);
        return;
    }
    line->kind = classify_event(line);
    if (line->kind != US_LINE_ALLOC && line->kind != US_LINE_FREE)
        return;
    line->expected = read_fields(line, rest, end);
    if (line->expected)
        line->kind = US_LINE_BAD;
}

void us_trace_line_parse(struct us_trace_line *line, const char *text, size_t len, unsigned forms,
                         unsigned below)
{
    const char *end = text + len;

    if (len && text[len - 1] == '\r')
        end--;
    while (end > text && end[-1] == ' ')
        end--;
    *line = (struct us_trace_line){.pid = -1, .node = -1, .accounted = -1};
    if (end == text) {
        line->kind = US_LINE_BLANK;
        return;
    }
    if (is_note(line, text, end)) {
        line->kind = US_LINE_NOTE;
        return;
    }
    if ((*text == 'C' && read_lost(line, text, end)) ||
        (*text == 'P' && read_lost_chunks(line, text, end))) {
        line->kind = US_LINE_LOST;
        return;
    }
    /* Frames are the bulk of a trace with call chains, and perf's begin with a tab. */
    if (*text == '\t' && is_frame(text, end, below)) {
        line->kind = US_LINE_FRAME;
        return;
    }
    parse_event(line, text, end, forms);
    if (line->kind == US_LINE_BAD && !line->event.at && is_frame(text, end, below))
        line->kind = US_LINE_FRAME;
}

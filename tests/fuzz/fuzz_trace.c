/* Fuzz target of the trace reader.
 *
 * Any text must be read without a fault, and: strict and lenient reading agree on text that strict
 * reading takes; a cut anywhere changes nothing; the counts balance; rows refer to rows that exist.
 *
 * With clang:  clang -g -O1 -fsanitize=fuzzer,address,undefined -Icsrc tests/fuzz/fuzz_trace.c
 *              csrc/work/trace_*.c, then run it on tests/data/traces.
 * Without:     add -DUS_FUZZ_MAIN; the program takes a seed, a number of rounds and files, and
 * mutates the files itself. */
#include "work/trace_read.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                 \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                       \
        }                                                                                  \
    } while (0)

static void check_rows(const struct us_trace_result *r)
{
    const struct us_trace_columns *c = r->columns;
    int64_t made = 0;

    for (size_t row = 0; row < c->rows; row++) {
        REQUIRE(c->cache[row] >= -1 && c->cache[row] < (int64_t)r->caches->count);
        REQUIRE(c->call_site[row] >= -1 && c->call_site[row] < (int64_t)r->call_sites->count);
        REQUIRE(c->cpu[row] >= 0);
        if (c->kind[row] == US_TRACE_ALLOC) {
            REQUIRE(c->object[row] == made);
            REQUIRE(c->cache[row] >= 0);
            REQUIRE(c->implied[row] < made);
            made++;
        } else {
            REQUIRE(c->kind[row] == US_TRACE_FREE);
            REQUIRE(c->object[row] >= -1 && c->object[row] < made);
            REQUIRE(c->implied[row] == -1);
        }
    }
    REQUIRE(made == (int64_t)r->counts.allocs);
}

static void check_counts(const struct us_trace_result *r)
{
    const struct us_trace_counts *n = &r->counts;
    uint64_t others = 0;

    REQUIRE(n->events == n->allocs + n->allocs_failed + n->frees);
    REQUIRE(n->frees == n->frees_matched + n->frees_unknown + n->frees_null);
    REQUIRE(n->allocs == n->frees_matched + n->implied_frees + n->live_at_end);
    REQUIRE(n->remote_frees <= n->frees_matched);
    REQUIRE(r->columns->rows == n->allocs + n->frees_matched + n->frees_unknown);
    REQUIRE(r->lines_skipped <= r->lines);
    for (uint32_t i = 0; i < r->other_names->count; i++)
        others += r->other_counts[i];
    REQUIRE(others == n->other_events);
}

/* Reads the text in two pieces; the caller frees the reader. */
static enum us_trace_status read_cut(const uint8_t *data, size_t size, size_t cut, bool lenient,
                                     struct us_trace_reader **reader,
                                     struct us_trace_result *result)
{
    struct us_trace_options options = {.lenient = lenient};
    /* Copies of the exact length, so that a read past the end is seen. */
    uint8_t *head = malloc(cut ? cut : 1), *tail = malloc(size - cut ? size - cut : 1);

    REQUIRE(head && tail);
    *reader = us_trace_reader_new(&options);
    REQUIRE(*reader);
    if (cut)
        memcpy(head, data, cut);
    if (size - cut)
        memcpy(tail, data + cut, size - cut);
    (void)us_trace_reader_feed(*reader, head, cut);
    (void)us_trace_reader_feed(*reader, tail, size - cut);
    free(head);
    free(tail);
    return us_trace_reader_finish(*reader, result);
}

static void compare(const struct us_trace_result *a, const struct us_trace_result *b)
{
    const struct us_trace_columns *x = a->columns, *y = b->columns;

    REQUIRE(!memcmp(&a->counts, &b->counts, sizeof(a->counts)));
    REQUIRE(a->lines == b->lines && a->lines_skipped == b->lines_skipped);
    REQUIRE(a->format == b->format && a->lost_marks == b->lost_marks);
    REQUIRE(x->rows == y->rows);
#define X(name, type, format, help) \
    REQUIRE(!x->rows || !memcmp(x->name, y->name, x->rows * sizeof(type)));
    US_TRACE_COLUMNS(X)
#undef X
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct us_trace_reader *whole, *cut, *strict;
    struct us_trace_result a, b;
    size_t at = 0;

    /* The place of the cut follows from the text, so that a finding can be repeated. */
    for (size_t i = 0; i < size; i++)
        at = at * 31 + data[i];
    at %= size + 1;

    REQUIRE(read_cut(data, size, size, true, &whole, &a) == US_TRACE_OK);
    check_rows(&a);
    check_counts(&a);
    REQUIRE(read_cut(data, size, at, true, &cut, &b) == US_TRACE_OK);
    compare(&a, &b);
    us_trace_reader_free(cut);

    if (read_cut(data, size, at, false, &strict, &b) == US_TRACE_OK) {
        compare(&a, &b);
    } else {
        const struct us_trace_error *error = us_trace_reader_error(strict);
        const struct us_trace_error *skipped = us_trace_reader_error(whole);

        REQUIRE(a.lines_skipped);
        REQUIRE(error->line_number == skipped->line_number && error->expected);
    }
    us_trace_reader_free(strict);
    us_trace_reader_free(whole);
    return 0;
}

#ifdef US_FUZZ_MAIN

static uint64_t state;

static uint64_t random_below(uint64_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return limit ? state % limit : 0;
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = malloc(1 << 20);

    if (!file || !bytes) {
        perror(path);
        exit(2);
    }
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

/* A few lines of the sample, with a few bytes of them changed, removed or repeated. */
static size_t mutate(uint8_t *out, const uint8_t *sample, size_t size)
{
    static const char telling[] = " \t\n\r:=[]()-./|#<>0189afx\0\377kmeptr";
    size_t start = random_below(size), len = 1 + random_below(1500);

    if (len > size - start)
        len = size - start;
    while (start && sample[start - 1] != '\n' && len < 2000) {
        start--;
        len++;
    }
    memcpy(out, sample + start, len);
    for (uint64_t changes = random_below(6); changes && len; changes--) {
        size_t at = random_below(len), span = 1 + random_below(12);

        if (span > len - at)
            span = len - at;
        switch (random_below(4)) {
        case 0:
            out[at] = (uint8_t)telling[random_below(sizeof(telling) - 1)];
            break;
        case 1:
            out[at] = (uint8_t)random_below(256);
            break;
        case 2:
            memmove(out + at, out + at + span, len - at - span);
            len -= span;
            break;
        default:
            memmove(out + at + span, out + at, len - at);
            len += span;
        }
    }
    return len;
}

int main(int argc, char **argv)
{
    static uint8_t text[4096];

    if (argc < 4) {
        fprintf(stderr, "usage: %s SEED ROUNDS FILE...\n", argv[0]);
        return 2;
    }
    state = strtoull(argv[1], NULL, 0) * 2 + 1;
    for (int i = 3; i < argc; i++) {
        size_t size;
        uint8_t *sample = read_file(argv[i], &size);

        LLVMFuzzerTestOneInput(sample, size);
        for (unsigned long round = strtoul(argv[2], NULL, 0); round && size; round--)
            LLVMFuzzerTestOneInput(text, mutate(text, sample, size));
        free(sample);
    }
    return 0;
}

#endif

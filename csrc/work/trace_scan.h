/* Small scanners over a piece of text [p, end): each returns where it stopped, or NULL if what it
 * looks for does not stand there. */
#ifndef US_WORK_TRACE_SCAN_H
#define US_WORK_TRACE_SCAN_H

#include "work/trace_strings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool us_is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* The value of a hexadecimal digit, -1 for anything else. */
static inline int us_hex_value(char c)
{
    if (us_is_digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static inline bool us_is_word(char c)
{
    char lower = (char)(c | 0x20);

    return us_is_digit(c) || (lower >= 'a' && lower <= 'z') || c == '_';
}

static inline const char *us_skip_spaces(const char *p, const char *end)
{
    while (p < end && *p == ' ')
        p++;
    return p;
}

/* The next space, or the end. */
static inline const char *us_skip_token(const char *p, const char *end)
{
    const char *space = memchr(p, ' ', (size_t)(end - p));

    return space ? space : end;
}

static inline const char *us_scan_decimal(const char *p, const char *end, uint64_t *value)
{
    const char *start = p;
    uint64_t v = 0;

    for (; p < end && us_is_digit(*p); p++) {
        if (v > (UINT64_MAX - 9) / 10)
            return NULL;
        v = v * 10 + (uint64_t)(*p - '0');
    }
    *value = v;
    return p > start ? p : NULL;
}

static inline const char *us_scan_hex(const char *p, const char *end, uint64_t *value)
{
    const char *start = p;
    uint64_t v = 0;
    int digit;

    for (; p < end && (digit = us_hex_value(*p)) >= 0; p++) {
        if (v >> 60)
            return NULL;
        v = v << 4 | (uint64_t)digit;
    }
    *value = v;
    return p > start ? p : NULL;
}

static inline const char *us_scan_literal(const char *p, const char *end, const char *literal)
{
    size_t len = strlen(literal);

    return (size_t)(end - p) >= len && !memcmp(p, literal, len) ? p + len : NULL;
}

static inline bool us_text_is(struct us_text text, const char *literal)
{
    size_t len = strlen(literal);

    return text.len == len && !memcmp(text.at, literal, len);
}

#endif

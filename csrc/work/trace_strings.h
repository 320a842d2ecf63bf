/* Strings of a trace, each kept once: cache names, call sites, gfp words, names of other events.
 * Ids are dense and given in the order of first sight, so they can index plain arrays. */
#ifndef US_WORK_TRACE_STRINGS_H
#define US_WORK_TRACE_STRINGS_H

#include <stddef.h>
#include <stdint.h>

/* A piece of somebody else's text; not terminated. */
struct us_text {
    const char *at;
    size_t len;
};

struct us_strings {
    char *bytes;     /* all strings, one after the other */
    size_t used;     /* bytes in use */
    size_t room;     /* bytes allocated */
    size_t *ends;    /* end of string i in `bytes`; it starts where i - 1 ends */
    uint32_t count;  /* strings */
    uint32_t limit;  /* entries allocated in `ends` */
    uint32_t *slots; /* open addressing: id + 1, 0 is empty */
    uint32_t mask;   /* slots - 1 */
};

/* The id of the string, which is added when it is new; -1 when memory is short. */
int32_t us_strings_intern(struct us_strings *strings, struct us_text text);

/* String `id`, valid until the next intern. */
struct us_text us_strings_get(const struct us_strings *strings, uint32_t id);

void us_strings_free(struct us_strings *strings);

#endif

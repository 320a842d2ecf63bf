/* heap.h - what stands behind a program's caches: three heaps as one set of inline templates.
 *
 * The interpreter is instantiated once for each heap, so that ALLOC and FREE cost one indirect call
 * of the cache's own entry and no dispatch of ours.
 */
#ifndef US_WORK_HEAP_H
#define US_WORK_HEAP_H

#include "work/exec.h"

#include <stdlib.h>
#include <string.h>

#define US_MALLOC_ALIGN (2 * sizeof(void *)) /* what malloc promises by itself */

/* A cache of a program, as ALLOC and FREE need it. */
struct us_heap_cache {
    struct us_cache *cache; /* NULL: large kmalloc, or another heap */
    uint64_t size;
    uint64_t touch; /* bytes written at allocation */
    uint64_t align;
    bool gone; /* destroyed since, with its objects */
};

struct us_heap {
    enum us_heap_kind kind;
    struct us_allocator *allocator;
    struct us_heap_cache *cache; /* [ncaches] */
    unsigned ncaches;
};

/* A slot's word: the object's address and, in the upper 16 bits, its cache in the program. */
#define US_WORD_SHIFT 48
US_INLINE uint64_t us_word(void *object, unsigned cache)
{
    return (uint64_t)(uintptr_t)object | (uint64_t)cache << US_WORD_SHIFT;
}
US_INLINE void *us_word_object(uint64_t word)
{
    return (void *)(uintptr_t)(word & ((1ull << US_WORD_SHIFT) - 1));
}
US_INLINE unsigned us_word_cache(uint64_t word)
{
    return (unsigned)(word >> US_WORD_SHIFT);
}

bool us_heap_init(struct us_heap *h, const struct us_program *p, const struct us_run_options *o,
                  struct us_error *error);
void us_heap_release(struct us_heap *h);
/* The cache was destroyed: us_inner_free leaves its objects alone. */
void us_heap_forget(struct us_heap *h, const struct us_cache *cache);
/* True when an ALLOC from the cache cannot take the short way below. */
bool us_heap_is_special(const struct us_heap *h, const struct us_op *op);
/* Zeroed, on a node, large, or aligned beyond what malloc promises. */
void *us_heap_alloc_special(const struct us_heap *h, const struct us_op *op);

/* `scratch` stands for every object of the null heap; one a task, or its touches would collide. */
US_INLINE void *us_heap_alloc(enum us_heap_kind kind, const struct us_heap_cache *c, void *scratch)
{
    if (kind == US_HEAP_ALLOCATOR)
        return us_cache_alloc(c->cache);
    if (kind == US_HEAP_MALLOC)
        return malloc(c->size);
    return scratch;
}

US_INLINE void us_heap_free(enum us_heap_kind kind, const struct us_heap *h, uint64_t word)
{
    const struct us_heap_cache *c;

    if (kind == US_HEAP_NULL)
        return;
    if (kind == US_HEAP_MALLOC) {
        free(us_word_object(word));
        return;
    }
    c = &h->cache[us_word_cache(word)];
    if (US_LIKELY(c->cache != NULL))
        us_cache_free(c->cache, us_word_object(word));
    else
        us_kfree(h->allocator, us_word_object(word));
}

/* One store a line: what a user of the object costs the caches. */
US_INLINE void us_heap_touch(void *object, uint64_t bytes)
{
    volatile char *p = object;

    for (uint64_t at = 0; at < bytes; at += US_LINE)
        p[at] = 1;
}

#endif

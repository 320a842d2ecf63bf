/* debug.c - consistency checks of caches with US_DEBUG_F.
 *
 * One bit an object, out of band, says that the object is with the user. It is set when an object
 * is handed out and must be cleared, atomically, by who gives it back: of two frees one finds it
 * clear. So a double free, an address that is no object start, one of another cache or of no slab
 * is found at the call, before the policy sees it, and leaves nothing behind. Objects themselves
 * are not touched. The work is done by the policy's CONTROL entries: the same queues, by plain code
 * under the control lock of the CPU.
 *
 * The checked calls return what they found. A misuse through the plain entries, which return
 * nothing, is counted (us_cache_refused) and the first ones are told on standard error.
 */
#include "cache/internal.h"

#include <stdio.h>

#define TOLD 10 /* refusals told on standard error, of one cache */

/* Marks an object as handed out; false when it was so already (a stock held it twice). */
bool us_debug_mark(struct us_cache *c, void *object)
{
    const struct us_slab *s = us_cache_slab(c, object);
    const uint64_t offset = (uint64_t)((char *)object - (char *)us_slab_base(c->slabs, s));

    if (US_LIKELY(!us_used_set(c, s, us_object_index(c, offset))))
        return true;
    us_report_misuse(c, US_MISUSE_LIST, object);
    return false;
}

static void *debug_alloc(struct us_cache *c)
{
    void *object = us_cache_alloc_inner(c, 0, US_ANY_NODE);

    if (object)
        us_debug_mark(c, object);
    return object;
}

void us_refuse(struct us_cache *c, const void *object, enum us_misuse_kind kind)
{
    struct us_error e;

    us_explain_misuse(c, object, kind, us_slab_of(c->slabs, object), &e);
    if (atomic_fetch_add(&us_box(c)->refused, 1) < TOLD)
        fprintf(stderr, "unislab: free refused: %s\n", e.text);
}

uint64_t us_cache_refused(const struct us_cache *c)
{
    return atomic_load(&((const struct us_cache_box *)c)->refused);
}

static bool take_back(struct us_cache *c, void *object)
{
    struct us_slab *s;
    uint32_t index;
    enum us_misuse_kind kind = us_misuse_of(c, object, &s, &index);

    if (kind == US_MISUSE_NONE && us_used_clear(c, s, index))
        return true;
    us_refuse(c, object, kind == US_MISUSE_NONE ? US_MISUSE_DOUBLE_FREE : kind);
    return false;
}

static void debug_free(struct us_cache *c, void *object)
{
    if (object && take_back(c, object))
        c->policy->entries[US_MODE_CONTROL].free(c, object);
}

const struct us_cache_head us_debug_entries = {debug_alloc, debug_free};

/* Frees what may be freed, run by run; returns how many. */
size_t us_debug_free_bulk(struct us_cache *c, size_t n, void *const *objects)
{
    size_t from = 0, freed = 0, i;

    for (i = 0; i < n; i++) {
        if (objects[i] && take_back(c, objects[i]))
            continue;
        if (i > from)
            c->policy->free_bulk(c, i - from, objects + from);
        freed += i - from;
        from = i + 1;
    }
    if (n > from)
        c->policy->free_bulk(c, n - from, objects + from);
    return freed + (n - from);
}

/* debug.c - consistency checks of caches with US_DEBUG_F.
 *
 * One bit an object, out of band, says that the object is with the user. It is set when an object
 * is handed out and must be cleared, atomically, by who gives it back: of two frees one finds it
 * clear. So a double free, an address that is no object start, one of another cache or of no slab
 * is found at the call, before the policy sees it, and leaves nothing behind. Objects themselves
 * are not touched. The work is done by the policy's CONTROL entries: the same queues, by plain code
 * under the control lock of the CPU. Both steps, the bit and the stock, lie in one frame
 * (flight.h): who stops the allocator finds an object with its user or in a stock, never between.
 *
 * The checked calls return what they found. A misuse through the plain entries, which return
 * nothing, is counted (us_cache_refused) and the first ones are told on standard error.
 */
#include "cache/internal.h"

#include <stdio.h>

#define TOLD 10 /* refusals told on standard error, of one cache */

/* Marks an object as handed out; tells when it was so already (a stock held it twice). */
static void mark(struct us_cache *c, void *object)
{
    const struct us_slab *s = us_cache_slab(c, object);
    const uint64_t offset = (uint64_t)((char *)object - us_slab_objects_base(c, s));

    if (US_UNLIKELY(us_used_set(c, s, us_object_index(c, offset))))
        us_report_misuse(c, US_MISUSE_LIST, object);
}

void *us_debug_alloc(struct us_cache *c, unsigned flags, int node)
{
    struct us_flight frame;
    void *object;

    us_frame_enter(c->machine, &frame);
    object = us_cache_alloc_inner(c, flags, node);
    if (object)
        mark(c, object);
    us_frame_leave(&frame);
    return object;
}

void *us_debug_alloc_from_sheaf(struct us_cache *c, struct us_sheaf *s)
{
    struct us_flight frame;
    void *object;

    us_frame_enter(c->machine, &frame);
    object = c->policy->alloc_prefilled(c, s);
    if (object)
        mark(c, object);
    us_frame_leave(&frame);
    return object;
}

static void *debug_alloc(struct us_cache *c)
{
    return us_debug_alloc(c, 0, US_ANY_NODE);
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

/* Clears the object's bit; what else was found when that was not its to clear. */
enum us_misuse_kind us_debug_take_back(struct us_cache *c, void *object, struct us_slab **slab)
{
    uint32_t index;
    enum us_misuse_kind kind = us_misuse_of(c, object, slab, &index);

    if (kind == US_MISUSE_NONE && !us_used_clear(c, *slab, index))
        return US_MISUSE_DOUBLE_FREE; /* another thread was faster */
    return kind;
}

enum us_misuse_kind us_debug_free(struct us_cache *c, void *object, struct us_slab **slab)
{
    enum us_misuse_kind kind;
    struct us_flight frame;

    us_frame_enter(c->machine, &frame);
    kind = us_debug_take_back(c, object, slab);
    if (kind == US_MISUSE_NONE)
        c->policy->entries[US_MODE_CONTROL].free(c, object);
    us_frame_leave(&frame);
    return kind;
}

static void debug_free(struct us_cache *c, void *object)
{
    struct us_slab *s;
    enum us_misuse_kind kind = object ? us_debug_free(c, object, &s) : US_MISUSE_NONE;

    if (kind != US_MISUSE_NONE)
        us_refuse(c, object, kind);
}

const struct us_cache_head us_debug_entries = {debug_alloc, debug_free};

/* Marks are taken one by one, and given back when one is not to be had. */
enum us_status us_debug_free_all(struct us_cache *c, size_t n, void *const *objects,
                                 struct us_error *e)
{
    enum us_misuse_kind kind = US_MISUSE_NONE;
    struct us_slab *s = NULL;
    struct us_flight frame;
    size_t taken = 0, i;

    us_frame_enter(c->machine, &frame);
    while (taken < n && (kind = us_debug_take_back(c, objects[taken], &s)) == US_MISUSE_NONE)
        taken++;
    if (kind == US_MISUSE_NONE)
        c->policy->free_bulk(c, n, objects);
    for (i = 0; kind != US_MISUSE_NONE && i < taken; i++)
        mark(c, objects[i]);
    us_frame_leave(&frame);
    return kind == US_MISUSE_NONE ? US_OK : us_explain_misuse(c, objects[taken], kind, s, e);
}

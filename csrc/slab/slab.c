/* slab.c - making and unmaking slabs, constructors.
 *
 * A slab belongs to its maker alone (state PRIVATE) until a policy publishes it. Its pages point to
 * the descriptor from before that moment until just before they go back to the provider, so that
 * whoever holds an object finds its slab, and the page arrays hold nothing of a free page.
 */
#include "slab/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool us_slabs_init(struct us_slabs *slabs, struct us_memory *memory, struct us_error *error)
{
    const struct us_range *range = us_memory_range(memory);
    size_t bits = ((size_t)1 << range->page_shift) / 64; /* an object has 8 bytes at least */

    memset(slabs, 0, sizeof *slabs);
    slabs->memory = memory;
    slabs->range = *range;
    slabs->bits_shift = (unsigned)__builtin_ctzll(bits / 8);
    slabs->slab = us_page_array(memory, sizeof *slabs->slab, error);
    if (slabs->slab)
        slabs->of_page = us_page_array(memory, sizeof *slabs->of_page, error);
    if (slabs->of_page)
        slabs->bits = us_page_array(memory, bits, error);
    if (slabs->bits)
        slabs->used_bits = us_page_array(memory, bits, error);
    if (slabs->used_bits == NULL)
        return false;
    if (us_misuse_init(slabs))
        return true;
    if (error) {
        memset(error, 0, sizeof *error);
        error->status = US_ENOMEM;
        snprintf(error->text, sizeof error->text, "no memory for the record of misuses");
    }
    return false;
}

/* ---- constructors ---------------------------------------------------------------------------- */

void us_construct(const struct us_cache *c, void *object, size_t first)
{
    if (c->options.constructor) {
        c->options.constructor(object, c->options.constructor_arg);
        return;
    }
    if (c->pattern == NULL || c->options.pattern_bytes == 0)
        return;
    size_t bytes = first < c->size ? first : c->size;
    for (size_t done = 0; done < bytes; done += c->options.pattern_bytes) {
        size_t left = bytes - done;

        memcpy((char *)object + done, c->pattern,
               left < c->options.pattern_bytes ? left : c->options.pattern_bytes);
    }
}

static bool constructor_suspends(const struct us_cache *c)
{
    return c->options.constructor && c->options.constructor_suspends;
}

static void construct_all(struct us_cache *c, struct us_flight *f, const struct us_slab *s)
{
    const bool suspends = constructor_suspends(c);

    if (suspends)
        us_flight_suspend(f);
    us_writes(us_object_address(c, s, 0), us_slab_objects(s) * c->geometry.stride);
    for (uint32_t i = 0; i < us_slab_objects(s); i++)
        us_construct(c, us_object_address(c, s, i), c->size);
    if (suspends)
        us_flight_resume(f);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static void map_pages(struct us_slabs *slabs, struct us_slab *s, struct us_slab *to)
{
    struct us_slab **of_page = &slabs->of_page[s - slabs->slab];

    us_runs(8 + (1ull << us_slab_order(s)));
    us_writes(of_page, sizeof(*of_page) << us_slab_order(s));
    for (uint64_t i = 0; i < 1ull << us_slab_order(s); i++)
        __atomic_store_n(&of_page[i], to, __ATOMIC_RELAXED);
}

static struct us_slab *describe(struct us_cache *c, void *block, unsigned order, uint32_t objects,
                                uint8_t state)
{
    struct us_slabs *slabs = c->slabs;
    struct us_slab *s = &slabs->slab[us_page_of(&slabs->range, block)];

    us_runs(35);
    us_writes(s, sizeof *s);
    us_updates(&c->nr_slabs[us_node_of(&slabs->range, block)], sizeof(*c->nr_slabs));
    us_updates(&c->nr_objects[us_node_of(&slabs->range, block)], sizeof(*c->nr_objects));
    memset((void *)s, 0, sizeof *s);
    s->cache = c;
    s->shape = objects | (uint32_t)order << 24;
    s->node = (uint16_t)us_node_of(&slabs->range, block);
    atomic_store_explicit(&s->state, state, memory_order_relaxed);
    map_pages(slabs, s, s);
    atomic_fetch_add_explicit(&c->nr_slabs[s->node], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->nr_objects[s->node], objects, memory_order_relaxed);
    return s;
}

static unsigned page_flags(unsigned flags)
{
    return (flags & US_THISNODE ? US_PAGES_THISNODE : 0u) |
           (flags & US_NOWAIT ? US_PAGES_NOWAIT : 0u);
}

struct shape {
    unsigned order, objects;
    bool fallback; /* the smaller one */
};

/* A block of the preferred order, or of the smaller one; *shape says which. */
static void *get_block(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags,
                       struct shape *shape)
{
    const struct us_geometry *g = &c->geometry;
    struct us_memory *memory = c->slabs->memory;
    void *block;

    *shape = (struct shape){.order = g->order, .objects = g->objects};
    if (g->min_order >= g->order)
        return us_pages_alloc(memory, f, g->order, node, page_flags(flags));
    block = us_pages_alloc(memory, f, g->order, node, page_flags(flags) | US_PAGES_NORETRY);
    if (block)
        return block;
    *shape = (struct shape){.order = g->min_order, .objects = g->min_objects};
    block = us_pages_alloc(memory, f, g->min_order, node, page_flags(flags));
    shape->fallback = block != NULL;
    return block;
}

#ifdef US_CHECK
static void check_cache(const struct us_cache *c)
{
    if (c->reciprocal == us_reciprocal_of(c->geometry.stride))
        return;
    fprintf(stderr, "unislab: cache '%s': reciprocal is %#llx, must be us_reciprocal_of(%zu)\n",
            c->name, (unsigned long long)c->reciprocal, c->geometry.stride);
    abort();
}
#else
static void check_cache(const struct us_cache *c)
{
    (void)c;
}
#endif

/* The slab's pages and, for INDEX, its array: both or none. */
static void *get_parts(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags,
                       struct shape *shape, uint32_t **index)
{
    const size_t bytes = c->geometry.index_bytes;
    void *block;

    us_reads(&c->has_constructor, 1);
    *index = bytes ? us_meta_alloc(c->slabs->memory, bytes) : NULL;
    if (bytes && *index == NULL)
        return NULL;
    block = get_block(c, f, node, flags, shape);
    if (block == NULL && bytes)
        us_meta_free(c->slabs->memory, *index, bytes);
    return block;
}

static void fill(struct us_cache *c, struct us_slab *s)
{
    if (c->geometry.state == US_OBJECTS_LIST)
        us_slab_thread(c, s);
    else if (c->geometry.state == US_OBJECTS_INDEX)
        us_index_fill(s);
    else
        us_objects_fill(c, s);
}

struct us_slab *us_slab_new_at(struct us_cache *c, struct us_flight *f, unsigned node,
                               unsigned flags, uint32_t offset, bool *fallback)
{
    struct shape shape = {0};
    uint32_t *index;

    us_runs(72);
    check_cache(c);
    if (f->nested && constructor_suspends(c))
        return NULL;
    void *block = get_parts(c, f, node, flags, &shape, &index);
    if (fallback)
        *fallback = shape.fallback;
    if (block == NULL)
        return NULL;
    struct us_slab *s = describe(c, block, shape.order, shape.objects, US_SLAB_PRIVATE);
    s->offset = offset;
    if (index)
        s->index = index;
    if (c->has_constructor)
        construct_all(c, f, s);
    fill(c, s);
    return s;
}

struct us_slab *us_slab_new(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags,
                            bool *fallback)
{
    return us_slab_new_at(c, f, node, flags, 0, fallback);
}

struct us_slab *us_slab_new_large(struct us_cache *c, struct us_flight *f, unsigned order,
                                  unsigned node, unsigned flags)
{
    void *block = us_pages_alloc(c->slabs->memory, f, order, node, page_flags(flags));

    return block ? describe(c, block, order, 1, US_SLAB_LARGE) : NULL;
}

void us_slab_release(struct us_cache *c, struct us_flight *f, struct us_slab *s)
{
    struct us_slabs *slabs = c->slabs;
    void *base = us_slab_base(slabs, s);
    uint32_t objects = us_slab_objects(s);
    unsigned order = us_slab_order(s);
    uint32_t *index = c->geometry.index_bytes ? s->index : NULL;

    us_runs(60);
    us_reads(s, sizeof(*s));
    us_updates(&c->nr_slabs[s->node], sizeof(*c->nr_slabs));
    us_updates(&c->nr_objects[s->node], sizeof(*c->nr_objects));
    us_updates(&c->released, sizeof(c->released));
    atomic_fetch_sub_explicit(&c->nr_slabs[s->node], 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->nr_objects[s->node], objects, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->released, 1ull << order, memory_order_relaxed);
    if (c->flags & US_DEBUG_F)
        memset(us_used_word(c, s, 0), 0, (objects + 63) / 64 * sizeof(uint64_t));
    map_pages(slabs, s, NULL);
    us_writes(s, sizeof(*s));
    s->cache = NULL;
    if (index)
        us_meta_free(slabs->memory, index, c->geometry.index_bytes);
    us_pages_free(slabs->memory, f, base, order);
}

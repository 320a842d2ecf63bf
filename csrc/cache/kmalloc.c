/* kmalloc.c - the general caches, and what is too large for them.
 *
 * The policy lists the sizes of its general caches. A request takes the smallest that holds it;
 * above the last the page provider serves it directly, as one slab of one object whose cache is the
 * pseudo-cache kmalloc-large. That cache is in the list like any other, so accounts, statistics and
 * validate cover it; its policy is a copy of the allocator's (same counters, no tunables) whose
 * functions hand out nothing.
 */
#include "cache/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- general caches ----------------------------------------------------------------------------
 */

static bool index_sizes(struct us_allocator *a, const uint32_t *sizes, unsigned n)
{
    const size_t slots = ((size_t)sizes[n - 1] + 7) / 8 + 1;
    unsigned k = 0;
    size_t i;

    a->size_class = malloc(slots);
    if (!a->size_class)
        return false;
    for (i = 0; i < slots; i++) {
        while (8 * i > sizes[k] && k + 1 < n)
            k++;
        a->size_class[i] = (uint8_t)k;
    }
    a->size_class_max = sizes[n - 1];
    return true;
}

/* The tables stay when the caches are made anew. */
static bool make_tables(struct us_allocator *a, const uint32_t *sizes, unsigned n)
{
    if (!a->general)
        a->general = calloc(n, sizeof(*a->general));
    return a->general && n <= 255 && (a->size_class || index_sizes(a, sizes, n));
}

bool us_general_create(struct us_allocator *a, struct us_error *e)
{
    const uint32_t *sizes = a->policy->general_sizes(a->machine);
    unsigned n = 0, i;

    while (sizes[n])
        n++;
    if (!make_tables(a, sizes, n)) {
        us_error_fill(e, US_ENOMEM, "no memory for the general caches");
        return false;
    }
    for (i = 0; i < n; i++) {
        char name[US_NAME_MAX];
        const struct us_cache_options o = {.name = name, .size = sizes[i], .align = sizeof(void *)};

        snprintf(name, sizeof(name), "kmalloc-%u", sizes[i]);
        a->general[i] = us_cache_make(a, a->policy, &o, NULL, NULL, 0, e);
        if (!a->general[i])
            return false;
        a->general[i]->general = true;
        a->ngeneral = i + 1;
    }
    return true;
}

void us_general_destroy(struct us_allocator *a)
{
    while (a->ngeneral) {
        us_cache_unmake(a->general[--a->ngeneral]);
        a->general[a->ngeneral] = NULL;
    }
}

bool us_general_unused(const struct us_allocator *a)
{
    unsigned i, node;

    for (i = 0; i < a->ngeneral; i++)
        if (us_alias_count(a->general[i]) > 1)
            return false;
    for (i = 0; i < a->ngeneral; i++)
        for (node = 0; node < a->machine->nnodes; node++)
            if (atomic_load(&a->general[i]->nr_slabs[node]))
                return false;
    return true;
}

struct us_cache *us_kmalloc_cache(struct us_allocator *a, size_t size)
{
    if (US_UNLIKELY(size > a->size_class_max))
        return NULL;
    return a->general[a->size_class[(size + 7) / 8]];
}

/* ---- large --------------------------------------------------------------------------------------
 */

static void *no_object(struct us_cache *c)
{
    (void)c;
    return NULL;
}

static void *no_object_node(struct us_cache *c, unsigned flags, int node)
{
    (void)c;
    (void)flags;
    (void)node;
    return NULL;
}

static size_t no_objects(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    (void)c;
    (void)flags;
    (void)node;
    (void)n;
    (void)out;
    return 0;
}

static enum us_status plain_geometry(struct us_cache *c, struct us_error *e)
{
    (void)e;
    c->geometry = (struct us_geometry){
        .stride = c->machine->page_size,
        .align = c->machine->page_size,
        .objects = 1,
        .min_objects = 1,
        .state = US_OBJECTS_BITMAP,
    };
    return US_OK;
}

static enum us_status no_state(struct us_cache *c, struct us_error *e)
{
    (void)c;
    (void)e;
    return US_OK;
}

static void nothing(struct us_cache *c)
{
    (void)c;
}

static void nothing_to_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    (void)c;
    (void)f;
    (void)cpu;
    (void)try_only;
}

/* Blocks that handlers freed while everything was stopped, on one node. */
static uint64_t take_in_deferred(struct us_cache *c, struct us_flight *f, unsigned node,
                                 bool try_only)
{
    const struct us_allocator *a = c->owner;
    void *block = f->nested ? NULL : us_deferred_take(c, node);
    uint64_t bytes = 0;

    (void)try_only; /* waits for no more than any free */
    while (block) {
        struct us_slab *s = us_cache_slab(c, block);

        block = *(void **)block;
        bytes += us_slab_bytes(a, s);
        us_slab_release(c, f, s);
    }
    return bytes;
}

static void nothing_to_see(struct us_cache *c, const struct us_visitor *v)
{
    (void)c;
    (void)v;
}

static void release(struct us_cache *c, struct us_slab *s)
{
    struct us_allocator *a = c->owner;
    struct us_flight f;

    /* Of two frees of one block, one finds the mark. */
    if (atomic_fetch_or(&s->state, US_SLAB_PRIVATE) & US_SLAB_PRIVATE) {
        us_refuse(c, us_slab_base(c->slabs, s), US_MISUSE_DOUBLE_FREE);
        return;
    }
    if (!us_flight_try(a->machine, &f)) {
        us_stat_add(c, us_cpu_now(a->machine), US_FREE_SLOW, 1);
        us_defer_free(c, us_slab_base(c->slabs, s));
        return;
    }
    us_stat_add(c, us_cpu_now(a->machine), US_FREE_SLOW, 1);
    us_slab_release(c, &f, s);
    us_flight_leave(&f);
}

static void large_free(struct us_cache *c, void *object)
{
    struct us_slab *s;
    uint32_t index;
    enum us_misuse_kind kind;

    if (!object)
        return;
    kind = us_misuse_of(c, object, &s, &index);
    if (kind == US_MISUSE_NONE)
        release(c, s);
    else
        us_refuse(c, object, kind);
}

static void large_free_bulk(struct us_cache *c, size_t n, void *const *objects)
{
    size_t i;

    for (i = 0; i < n; i++)
        large_free(c, objects[i]);
}

static const struct us_cache_head large_entries[] = {
    [US_MODE_RSEQ] = {no_object, large_free},
    [US_MODE_SLOT] = {no_object, large_free},
    [US_MODE_CONTROL] = {no_object, large_free},
    [US_MODE_MODEL] = {no_object, large_free},
};

bool us_large_create(struct us_allocator *a, struct us_error *e)
{
    const struct us_cache_options o = {.name = "kmalloc-large", .size = a->machine->page_size};
    struct us_policy *p = malloc(sizeof(*p));

    if (!p) {
        us_error_fill(e, US_ENOMEM, "no memory for kmalloc-large");
        return false;
    }
    *p = (struct us_policy){
        .name = a->policy->name,
        .title = "page provider",
        .counters = a->policy->counters,
        .ncounters = a->policy->ncounters,
        .region = US_REGION_RING,
        .geometry = plain_geometry,
        .create = no_state,
        .destroy = nothing,
        .entries = large_entries,
        .alloc_node = no_object_node,
        .alloc_bulk = no_objects,
        .free_bulk = large_free_bulk,
        .flush_cpu = nothing_to_flush,
        .shrink = take_in_deferred,
        .visit = nothing_to_see,
    };
    a->large_policy = p;
    a->large = us_cache_make(a, p, &o, NULL, NULL, 0, e);
    if (!a->large)
        return false;
    /* A second free finds the block in no slab: there is nothing for debug F to add. */
    a->large->flags &= ~(unsigned)US_DEBUG_F;
    a->large->head = large_entries[a->large->local.mode];
    return true;
}

void us_large_destroy(struct us_allocator *a)
{
    if (a->large)
        us_cache_unmake(a->large);
    a->large = NULL;
    free(a->large_policy);
    a->large_policy = NULL;
}

unsigned us_large_order(const struct us_allocator *a, size_t size)
{
    unsigned order = 0;

    while (((size_t)a->machine->page_size << order) < size)
        order++;
    return order;
}

static void *large_alloc(struct us_allocator *a, size_t size, unsigned flags, int node)
{
    const size_t largest = (size_t)a->machine->page_size << US_MAX_ORDER;
    struct us_flight f;
    struct us_slab *s;
    unsigned cpu, near;
    void *block;

    if (size > largest)
        return NULL;
    if (!us_flight_try(a->machine, &f))
        return NULL;
    cpu = us_cpu_now(a->machine);
    near = node < 0 ? us_node_of_cpu(a->machine, cpu) : (unsigned)node;
    take_in_deferred(a->large, &f, near, true);
    s = us_slab_new_large(a->large, &f, us_large_order(a, size), near, flags & ~(unsigned)US_ZERO);
    if (s)
        us_stat_add(a->large, cpu, US_ALLOC_SLOW, 1);
    us_flight_leave(&f);
    if (!s)
        return NULL;
    block = us_slab_base(&a->slabs, s);
    if (flags & US_ZERO)
        memset(block, 0, size);
    return block;
}

/* ---- kmalloc --------------------------------------------------------------------------------- */

void *us_kmalloc(struct us_allocator *a, size_t size, unsigned flags, int node)
{
    struct us_cache *c = us_kmalloc_cache(a, size);

    if (node >= (int)a->machine->nnodes)
        return NULL;
    if (US_UNLIKELY(!c))
        return large_alloc(a, size, flags, node);
    if (node < 0 && flags == 0)
        return us_cache_alloc(c);
    return us_cache_alloc_node(c, flags, node);
}

void us_kfree(struct us_allocator *a, void *object)
{
    const struct us_slab *s;

    if (!object)
        return;
    s = us_slab_of(&a->slabs, object);
    us_cache_free(US_LIKELY(s != NULL) ? s->cache : a->large, object);
}

static size_t usable(const struct us_allocator *a, const struct us_slab *s)
{
    if (atomic_load_explicit(&s->state, memory_order_relaxed) & US_SLAB_LARGE)
        return a->machine->page_size << us_slab_order(s);
    return s->cache->size;
}

/* The cache an address of kmalloc belongs to; one that belongs to none is kmalloc-large's to
 * refuse. */
struct us_cache *us_kmalloc_owner(struct us_allocator *a, const void *object)
{
    const struct us_slab *s = us_slab_of(&a->slabs, object);

    return s ? s->cache : a->large;
}

size_t us_ksize(struct us_allocator *a, const void *object)
{
    struct us_slab *s;
    uint32_t index;

    if (us_misuse_of(us_kmalloc_owner(a, object), object, &s, &index) != US_MISUSE_NONE)
        return 0;
    return usable(a, s);
}

/* ---- krealloc -------------------------------------------------------------------------------- */

/* The block stays, for it holds `size`, and a larger block in use costs less than a copy: only
 * growth beyond the usable bytes moves. What it may hold beyond `size` is cleared on request, so
 * that who asks so at every step finds zeros when it grows into that again. */
static void *stay(void *object, size_t held, size_t size, unsigned flags)
{
    if (flags & US_ZERO)
        memset((char *)object + size, 0, held - size);
    return object;
}

/* A new and larger block with what the old one held; NULL when it is not to be had, or the old one
 * turns out to be free already (*kind then says so). */
static void *move(struct us_allocator *a, struct us_slab *s, void *object, size_t size,
                  unsigned flags, int node, enum us_misuse_kind *kind)
{
    struct us_cache *c = s->cache;
    const size_t held = usable(a, s);
    void *block = us_kmalloc(a, size, flags, node);

    if (!block)
        return NULL;
    memcpy(block, object, held);
    if (c->flags & US_DEBUG_F)
        *kind = us_debug_free(c, object, &s);
    else
        us_cache_free(c, object);
    if (*kind == US_MISUSE_NONE)
        return block;
    us_kfree(a, block);
    return NULL;
}

static void *krealloc(struct us_allocator *a, void *object, size_t size, unsigned flags, int node,
                      enum us_misuse_kind *kind)
{
    struct us_slab *s;
    uint32_t index;

    *kind = US_MISUSE_NONE;
    if (!object)
        return size ? us_kmalloc(a, size, flags, node) : NULL;
    *kind = us_misuse_of(us_kmalloc_owner(a, object), object, &s, &index);
    if (*kind != US_MISUSE_NONE)
        return NULL;
    if (size && size <= usable(a, s))
        return stay(object, usable(a, s), size, flags);
    if (size)
        return move(a, s, object, size, flags, node, kind);
    us_kfree(a, object);
    return NULL;
}

void *us_krealloc(struct us_allocator *a, void *object, size_t size, unsigned flags, int node)
{
    enum us_misuse_kind kind;
    void *block = krealloc(a, object, size, flags, node, &kind);

    if (kind != US_MISUSE_NONE)
        us_refuse(us_kmalloc_owner(a, object), object, kind);
    return block;
}

enum us_status us_krealloc_checked(struct us_allocator *a, void *object, size_t size,
                                   unsigned flags, int node, void **out, struct us_error *e)
{
    struct us_cache *c = us_kmalloc_owner(a, object), *wanted = us_kmalloc_cache(a, size);
    enum us_misuse_kind kind;

    if (object && size == 0) {
        *out = NULL;
        return us_kfree_checked(a, object, e);
    }
    *out = krealloc(a, object, size, flags, node, &kind);
    if (kind != US_MISUSE_NONE)
        return us_explain_misuse(c, object, kind, us_slab_of(&a->slabs, object), e);
    if (*out || size == 0)
        return US_OK;
    us_cache_explain_failure(wanted ? wanted : a->large, size, e);
    return US_ENOMEM;
}

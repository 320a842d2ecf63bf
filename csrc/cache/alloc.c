/* alloc.c - allocation and free with flags, nodes and checks, around the policy's own entries. */
#include "cache/internal.h"
#include "slab/mempolicy.h"

#include <string.h>

/* ---- allocation ------------------------------------------------------------------------------ */

/* One object from the policy, placed by the task's memory policy where the cache says so. */
void *us_cache_alloc_inner(struct us_cache *c, unsigned flags, int node)
{
    if (node < 0 && c->task_placed)
        node = us_task_node(c->machine);
    if (node < 0 && flags == 0)
        return c->policy->entries[c->local.mode].alloc(c);
    return c->policy->alloc_node(c, flags, node);
}

static void *spread_alloc(struct us_cache *c)
{
    return us_cache_alloc_inner(c, 0, US_ANY_NODE);
}

const struct us_cache_head us_spread_entries = {.alloc = spread_alloc};

/* Pages are zeroed past the caches of the CPU, as far as the model goes. */
static void zero(const struct us_cache *c, void *object)
{
    if (c->size < c->machine->page_size)
        us_writes(object, c->size);
    else
        us_zeroes(c->size);
    us_runs(10 + c->size / 32);
    memset(object, 0, c->size);
}

void *us_cache_alloc_node(struct us_cache *c, unsigned flags, int node)
{
    const unsigned inner = flags & ~(unsigned)US_ZERO;
    void *object;

    us_runs(25);
    us_reads(&c->flags, sizeof(c->flags));
    us_reads(&c->policy, sizeof(c->policy));
    if (node >= (int)c->machine->nnodes)
        return NULL;
    if (c->flags & US_DEBUG_F)
        object = us_debug_alloc(c, inner, node);
    else
        object = us_cache_alloc_inner(c, inner, node);
    if (object && (flags & US_ZERO))
        zero(c, object);
    return object;
}

static size_t alloc_each(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    size_t got = 0;

    while (got < n && (out[got] = us_cache_alloc_node(c, flags, node)) != NULL)
        got++;
    return got;
}

size_t us_cache_alloc_bulk(struct us_cache *c, unsigned flags, int node, size_t n, void **out)
{
    const unsigned inner = flags & ~(unsigned)US_ZERO;
    size_t got, i;

    us_runs(25);
    us_reads(&c->flags, sizeof(c->flags));
    us_reads(&c->policy, sizeof(c->policy));
    if (node >= (int)c->machine->nnodes)
        return 0;
    if (c->flags & US_DEBUG_F)
        return alloc_each(c, flags, node, n, out);
    if (node < 0 && (c->flags & US_MEM_SPREAD)) {
        if (us_task_interleaves(c->machine))
            return alloc_each(c, flags, node, n, out);
        node = us_task_node(c->machine);
    }
    got = c->policy->alloc_bulk(c, inner, node, n, out);
    if (flags & US_ZERO)
        for (i = 0; i < got; i++)
            zero(c, out[i]);
    return got;
}

void us_cache_free_bulk(struct us_cache *c, size_t n, void *const *objects)
{
    size_t i;

    us_runs(12);
    us_reads(&c->flags, sizeof(c->flags));
    us_reads(&c->policy, sizeof(c->policy));
    if (!(c->flags & US_DEBUG_F)) {
        c->policy->free_bulk(c, n, objects);
        return;
    }
    for (i = 0; i < n; i++)
        us_cache_free(c, objects[i]);
}

/* ---- checks -------------------------------------------------------------------------------------
 */

enum us_misuse_kind us_misuse_of(const struct us_cache *c, const void *object,
                                 struct us_slab **slab, uint32_t *index)
{
    const struct us_slabs *slabs = c->slabs;
    struct us_slab *s;
    uint64_t offset;

    *slab = NULL;
    if (US_UNLIKELY(!us_in_range(&slabs->range, object)))
        return US_MISUSE_OUTSIDE;
    s = slabs->of_page[us_page_of(&slabs->range, object)];
    if (US_UNLIKELY(!s))
        return US_MISUSE_NO_SLAB;
    *slab = s;
    if (US_UNLIKELY(s->cache != c))
        return US_MISUSE_WRONG_CACHE;
    offset = (uint64_t)((const char *)object - us_slab_objects_base(c, s));
    *index = us_object_index(c, offset);
    if (US_UNLIKELY(*index * c->geometry.stride != offset || *index >= us_slab_objects(s)))
        return US_MISUSE_NO_OBJECT;
    if ((c->flags & US_DEBUG_F) && !us_used_test(c, s, *index))
        return US_MISUSE_DOUBLE_FREE;
    return US_MISUSE_NONE;
}

static void describe(const struct us_cache *c, const void *object, enum us_misuse_kind kind,
                     const struct us_slab *s, struct us_finding *out)
{
    const struct us_range *r = &c->slabs->range;
    const uint64_t base = s ? (uint64_t)(uintptr_t)us_slab_base(c->slabs, s) : 0;

    out->kind = kind;
    out->address = (uint64_t)(uintptr_t)object;
    out->slab_base = base;
    us_append(out->cache, sizeof(out->cache), 0, "%s", c->name);
#define FOUND(...)    us_append(out->found, sizeof(out->found), 0, __VA_ARGS__)
#define EXPECTED(...) us_append(out->expected, sizeof(out->expected), 0, __VA_ARGS__)
    switch (kind) {
    case US_MISUSE_OUTSIDE:
        FOUND("an address outside the allocator's range");
        EXPECTED("an address within 0x%llx to 0x%llx", (unsigned long long)r->base,
                 (unsigned long long)(r->base + r->length - 1));
        break;
    case US_MISUSE_NO_SLAB:
        FOUND("an address in no slab");
        EXPECTED("an object of cache '%s'", c->name);
        break;
    case US_MISUSE_WRONG_CACHE:
        FOUND("an address in a slab of cache '%s'", s->cache ? s->cache->name : "");
        EXPECTED("an object of cache '%s'", c->name);
        break;
    case US_MISUSE_NO_OBJECT:
        FOUND("an address at offset %llu of its slab", (unsigned long long)(out->address - base));
        if (s->offset)
            EXPECTED("%u and a multiple of %zu below %llu: the start of an object", s->offset,
                     c->geometry.stride,
                     (unsigned long long)us_slab_objects(s) * c->geometry.stride);
        else
            EXPECTED("a multiple of %zu below %llu: the start of an object", c->geometry.stride,
                     (unsigned long long)us_slab_objects(s) * c->geometry.stride);
        break;
    case US_MISUSE_DOUBLE_FREE:
        FOUND("an object that is free already");
        EXPECTED("an object in use");
        break;
    case US_MISUSE_LIST:
        FOUND("a damaged list");
        EXPECTED("an object in use");
        break;
    }
#undef FOUND
#undef EXPECTED
}

enum us_status us_explain_misuse(const struct us_cache *c, const void *object,
                                 enum us_misuse_kind kind, const struct us_slab *s,
                                 struct us_error *e)
{
    struct us_finding finding;
    char slab[40] = "";

    describe(c, object, kind, s, &finding);
    if (finding.slab_base)
        us_append(slab, sizeof(slab), 0, ", slab 0x%llx", (unsigned long long)finding.slab_base);
    return us_error_fill(e, US_ECORRUPT, "cache '%s', object 0x%llx%s: found %s, expected %s",
                         finding.cache, (unsigned long long)finding.address, slab, finding.found,
                         finding.expected);
}

bool us_cache_finding(struct us_cache *c, const void *object, struct us_finding *out)
{
    struct us_slab *s;
    uint32_t index;
    const enum us_misuse_kind kind = us_misuse_of(c, object, &s, &index);

    if (kind == US_MISUSE_NONE)
        return false;
    describe(c, object, kind, s, out);
    return true;
}

enum us_status us_cache_check(struct us_cache *c, const void *object, struct us_error *e)
{
    struct us_slab *s;
    uint32_t index;
    const enum us_misuse_kind kind = us_misuse_of(c, object, &s, &index);

    if (US_LIKELY(kind == US_MISUSE_NONE))
        return US_OK;
    return us_explain_misuse(c, object, kind, s, e);
}

/* ---- checked frees --------------------------------------------------------------------------- */

enum us_status us_cache_free_checked(struct us_cache *c, void *object, struct us_error *e)
{
    enum us_misuse_kind kind;
    struct us_slab *s;
    uint32_t index;

    if (!object)
        return US_OK;
    if (US_UNLIKELY(c->flags & US_DEBUG_F)) {
        kind = us_debug_free(c, object, &s);
    } else {
        kind = us_misuse_of(c, object, &s, &index);
        if (US_LIKELY(kind == US_MISUSE_NONE))
            c->head.free(c, object);
    }
    return US_LIKELY(kind == US_MISUSE_NONE) ? US_OK : us_explain_misuse(c, object, kind, s, e);
}

enum us_status us_cache_free_bulk_checked(struct us_cache *c, size_t n, void *const *objects,
                                          struct us_error *e)
{
    const struct us_range *r = &c->slabs->range;
    unsigned outside = 0;
    size_t i;

    if (c->flags & US_DEBUG_F)
        return us_debug_free_all(c, n, objects, e);
    for (i = 0; i < n; i++)
        outside |= !us_in_range(r, objects[i]);
    if (US_LIKELY(!outside)) {
        c->policy->free_bulk(c, n, objects);
        return US_OK;
    }
    for (i = 0; us_in_range(r, objects[i]); i++)
        ;
    return us_explain_misuse(c, objects[i], US_MISUSE_OUTSIDE, NULL, e);
}

bool us_kfree_finding(struct us_allocator *a, const void *object, struct us_finding *out)
{
    return us_cache_finding(us_kmalloc_owner(a, object), object, out);
}

enum us_status us_kfree_checked(struct us_allocator *a, void *object, struct us_error *e)
{
    return us_cache_free_checked(us_kmalloc_owner(a, object), object, e);
}

/* ---- why not --------------------------------------------------------------------------------- */

static bool node_has(struct us_allocator *a, uint64_t pages)
{
    unsigned node;

    for (node = 0; node < a->machine->nnodes; node++) {
        struct us_node_memory m;

        us_memory_node(a->memory, node, &m);
        if (m.free >= pages)
            return true;
    }
    return false;
}

/* "an object of 64 bytes", "100 objects of 64 bytes". */
static void name_objects(char *text, size_t room, size_t n, size_t size)
{
    if (n == 1)
        us_append(text, room, 0, "an object of %zu bytes", size);
    else
        us_append(text, room, 0, "%zu objects of %zu bytes", n, size);
}

/* The budget or the largest block stands in the way. */
static void explain_limit(struct us_cache *c, size_t n, size_t size, uint64_t largest,
                          struct us_error *e)
{
    struct us_allocator *a = c->owner;
    struct us_memory_account memory;
    char objects[80];

    us_memory_account(a->memory, &memory);
    name_objects(objects, sizeof(objects), n, size);
    if (size > largest)
        us_error_fill(e, US_ENOMEM, "kmalloc of %zu bytes: the largest block has %llu", size,
                      (unsigned long long)largest);
    else
        us_error_fill(e, US_ENOMEM,
                      "cache '%s': no memory for %s: %llu of the budget of %llu bytes are in use; "
                      "free objects, or give the allocator more memory",
                      c->name, objects, (unsigned long long)memory.reserved,
                      (unsigned long long)memory.budget);
    if (!e)
        return;
    if (__builtin_mul_overflow((uint64_t)n, (uint64_t)size, &e->requested))
        e->requested = UINT64_MAX;
    e->limit = size > largest ? largest : memory.budget;
}

static bool above_budget(struct us_allocator *a, size_t n, size_t size)
{
    struct us_memory_account memory;
    uint64_t bytes;

    us_memory_account(a->memory, &memory);
    return __builtin_mul_overflow((uint64_t)n, (uint64_t)size, &bytes) || bytes > memory.budget;
}

void us_cache_explain_failures(struct us_cache *c, size_t n, size_t size, struct us_error *e)
{
    struct us_allocator *a = c->owner;
    const uint64_t page = a->machine->page_size, largest = page << US_MAX_ORDER;
    uint64_t need = page << c->geometry.min_order;
    char objects[80];

    if (c == a->large && size <= largest)
        need = page << us_large_order(a, size);
    if (size > largest || above_budget(a, n, size) || !node_has(a, need / page)) {
        explain_limit(c, n, size, largest, e);
        return;
    }
    name_objects(objects, sizeof(objects), n, size);
    us_error_fill(
        e, US_ENOMEM,
        "cache '%s': no block of %llu bytes for %s, though pages are free: the node asked "
        "for, fragmentation or an injected failure stands in the way",
        c->name, (unsigned long long)need, objects);
}

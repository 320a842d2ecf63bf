#include "work/heap.h"

#include <stdio.h>

static bool refuse(struct us_error *error, enum us_status status, const char *name,
                   const char *what)
{
    if (error) {
        error->status = status;
        error->requested = error->limit = 0;
        snprintf(error->text, sizeof(error->text), "cache %s: %s", name, what);
    }
    return false;
}

/* The cache of the allocator that serves an entry of the program. */
static bool resolve(struct us_heap *h, struct us_heap_cache *c, const struct us_program_cache *p,
                    struct us_error *error)
{
    if (!p->name) {
        c->cache = us_kmalloc_cache(h->allocator, p->size);
        return true;
    }
    c->cache = us_cache_find(h->allocator, p->name);
    if (!c->cache)
        return refuse(error, US_EINVAL, p->name, "not in the allocator; create it first");
    if (c->cache->size < p->size)
        return refuse(error, US_EINVAL, p->name,
                      "its objects are smaller than those of the workload");
    if (c->cache->options.constructor && c->cache->options.constructor_suspends)
        return refuse(error, US_EINVAL, p->name,
                      "its constructor is a Python callable, which no native run may call; "
                      "give a bytes pattern");
    return true;
}

static uint64_t touched(const struct us_program_cache *p, enum us_touch touch)
{
    if (touch == US_TOUCH_NONE)
        return 0;
    if (touch == US_TOUCH_FIRST)
        return p->size < US_LINE ? p->size : US_LINE;
    return p->size;
}

bool us_heap_init(struct us_heap *h, const struct us_program *p, const struct us_run_options *o,
                  struct us_error *error)
{
    *h = (struct us_heap){.kind = o->heap, .allocator = o->allocator, .ncaches = p->ncaches};
    h->cache = calloc(p->ncaches + 1u, sizeof(*h->cache));
    if (!h->cache)
        return refuse(error, US_ENOMEM, "table", "no memory for it");
    for (unsigned i = 0; i < p->ncaches; i++) {
        struct us_heap_cache *c = &h->cache[i];

        c->size = p->cache[i].size;
        c->align = p->cache[i].align;
        c->touch = touched(&p->cache[i], o->touch);
        if (o->heap == US_HEAP_ALLOCATOR && !resolve(h, c, &p->cache[i], error)) {
            us_heap_release(h);
            return false;
        }
    }
    return true;
}

void us_heap_release(struct us_heap *h)
{
    free(h->cache);
    h->cache = NULL;
}

void us_heap_forget(struct us_heap *h, const struct us_cache *cache)
{
    for (unsigned i = 0; i < h->ncaches; i++)
        h->cache[i].gone |= h->cache[i].cache == cache;
}

bool us_heap_is_special(const struct us_heap *h, const struct us_op *op)
{
    const struct us_heap_cache *c = &h->cache[op->cache];

    if (h->kind == US_HEAP_NULL)
        return false; /* zeroing is the heap's work, not the harness's */
    if (h->kind == US_HEAP_MALLOC)
        return (op->flags & US_OPF_ZERO) || c->align > US_MALLOC_ALIGN;
    return (op->flags & (US_OPF_ZERO | US_OPF_THISNODE)) || op->arg || !c->cache;
}

static void *malloc_special(const struct us_heap_cache *c, bool zero)
{
    void *object;

    if (c->align <= US_MALLOC_ALIGN)
        return zero ? calloc(1, c->size) : malloc(c->size);
    object = aligned_alloc(c->align, (c->size + c->align - 1) & ~(c->align - 1));
    if (object && zero)
        memset(object, 0, c->size);
    return object;
}

void *us_heap_alloc_special(const struct us_heap *h, const struct us_op *op)
{
    const struct us_heap_cache *c = &h->cache[op->cache];
    bool zero = op->flags & US_OPF_ZERO;
    unsigned flags = (zero ? US_ZERO : 0u) | (op->flags & US_OPF_THISNODE ? US_THISNODE : 0u);
    int node = op->arg ? (int)(op->arg - 1) : US_ANY_NODE;

    if (h->kind == US_HEAP_MALLOC)
        return malloc_special(c, zero);
    if (node >= 0)
        node %= (int)h->allocator->machine->nnodes; /* as CPUs of a trace fold */
    if (!c->cache)
        return us_kmalloc(h->allocator, c->size, flags, node);
    return us_cache_alloc_node(c->cache, flags, node);
}

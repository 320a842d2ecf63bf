/* geometry.c - rules of the field about alignment and slab order, shared by policies. */
#include "slab/slab.h"

#define MAX_OBJECTS_PER_SLAB 65535ull /* SLUB's limit: its slab counts objects in 16 bits */

unsigned us_fls(uint64_t x)
{
    return x ? 64 - (unsigned)__builtin_clzll(x) : 0;
}

size_t us_align_of(size_t size, size_t align, unsigned cache_flags, size_t line)
{
    size_t word = sizeof(void *);

    if (cache_flags & US_HWCACHE_ALIGN) {
        size_t fitting = line;

        while (size <= fitting / 2)
            fitting /= 2;
        if (align < fitting)
            align = fitting;
    }
    if (align < word)
        align = word;
    return (align + word - 1) & ~(word - 1);
}

void us_link_layout(struct us_cache *c)
{
    struct us_geometry *g = &c->geometry;
    size_t end = (c->size + sizeof(void *) - 1) & ~(sizeof(void *) - 1);

    g->align = us_align_of(c->size, c->options.align, c->options.flags, US_LINE);
    g->state = US_OBJECTS_LIST;
    g->link = 0;
    g->slab_overhead = 0;
    if (c->has_constructor) {
        g->link = (ptrdiff_t)end;
        end += sizeof(void *);
    }
    if (end == 0)
        end = sizeof(void *);
    g->stride = (end + g->align - 1) & ~(g->align - 1);
}

unsigned us_order_for(uint64_t bytes, size_t page_size)
{
    return bytes <= page_size ? 0 : us_fls((bytes - 1) / page_size);
}

struct order_search {
    uint64_t stride;
    size_t page_size;
    unsigned min_order;
};

/* Smallest order up to `last` that holds `objects` and wastes at most 1/fraction; last + 1 when
 * there is none. */
static unsigned search(const struct order_search *q, unsigned objects, unsigned last,
                       unsigned fraction)
{
    uint64_t bytes = objects * q->stride;
    unsigned order = us_order_for(bytes, q->page_size);

    if (((uint64_t)q->page_size << q->min_order) / q->stride > MAX_OBJECTS_PER_SLAB) {
        order = us_order_for(q->stride * MAX_OBJECTS_PER_SLAB, q->page_size);
        return order > 0 ? order - 1 : 0; /* a page may hold more than that itself */
    }
    if (order < q->min_order)
        order = q->min_order;
    for (; order <= last; order++) {
        uint64_t slab = (uint64_t)q->page_size << order;

        if (slab % q->stride <= slab / fraction)
            return order;
    }
    return last + 1;
}

unsigned us_slub_order(size_t stride, size_t page_size, unsigned min_objects, unsigned min_order,
                       unsigned max_order, bool epoch_2_6_25)
{
    const struct order_search q = {stride, page_size, min_order};
    uint64_t most = ((uint64_t)page_size << max_order) / stride;
    unsigned objects = min_objects, order;

    if (!epoch_2_6_25 && objects > most)
        objects = (unsigned)most;
    while (objects > 1) {
        for (unsigned fraction = epoch_2_6_25 ? 8 : 16; fraction >= 4; fraction /= 2) {
            order = search(&q, objects, max_order, fraction);
            if (order <= max_order)
                return order;
        }
        objects = epoch_2_6_25 ? objects / 2 : objects - 1;
    }
    order = search(&q, 1, max_order, 1);
    if (order <= max_order)
        return order;
    order = search(&q, 1, US_MAX_ORDER, 1);
    return order <= US_MAX_ORDER ? order : US_MAX_ORDER + 1;
}

const uint32_t *us_kmalloc_sizes(const struct us_machine *m)
{
#define SMALL 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192
    static const uint32_t of_4k[] = {SMALL, 0};
    static const uint32_t of_8k[] = {SMALL, 16384, 0};
    static const uint32_t of_16k[] = {SMALL, 16384, 32768, 0};
    static const uint32_t of_32k[] = {SMALL, 16384, 32768, 65536, 0};
    static const uint32_t of_64k[] = {SMALL, 16384, 32768, 65536, 131072, 0};
#undef SMALL
    switch (m->page_shift) {
    case 13:
        return of_8k;
    case 14:
        return of_16k;
    case 15:
        return of_32k;
    case 16:
        return of_64k;
    default:
        return of_4k;
    }
}

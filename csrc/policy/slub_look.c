/* slub_look.c - what a slub cache holds, for accounts, validation and pictures. */
#include "policy/slub.h"

#define VISIT_CHUNK 256u

/* Objects [from, from + n) of a freelist, from the oldest: out[0] the oldest of them. */
static void copy_oldest(const struct us_cache *c, const struct us_slab *s, uint32_t size,
                        uint32_t from, uint32_t n, void **out)
{
    void *object = s->local.head;
    uint32_t i;

    for (i = size; i-- > from; object = us_link_get(c, object))
        if (i < from + n)
            out[i - from] = object;
}

static void visit_cpu_slab(struct us_cache *c, const struct us_visitor *v, unsigned cpu,
                           const struct us_slab *s)
{
    struct us_memory *mem = c->slabs->memory;
    uint32_t size;
    struct us_stock stock = {.kind = US_STOCK_CPU,
                             .name = "freelist",
                             .cpu = (int)cpu,
                             .domain = (int)us_domain_of_cpu(c->machine, cpu),
                             .node = s->node,
                             .capacity = us_slab_objects(s),
                             .touched = us_list_pops(s->local.count) != 0};
    void *chunk[VISIT_CHUNK];
    void **object = chunk;
    uint32_t at = 0, most = VISIT_CHUNK;

    us_slab_walk_local(c, s, &size);
    size = size < us_slab_objects(s) - s->free ? size : us_slab_objects(s) - s->free;
    if (size > VISIT_CHUNK && (object = us_meta_alloc(mem, size * sizeof(*object))) != NULL)
        most = size;
    else
        object = chunk; /* without memory it is told in parts */
    do {
        stock.objects = size - at < most ? size - at : most;
        copy_oldest(c, s, size, at, stock.objects, object);
        v->stock(v->context, &stock, object);
        at += stock.objects;
    } while (at < size);
    if (object != chunk)
        us_meta_free(mem, object, size * sizeof(*object));
}

static void visit_cpu_partial(struct us_cache *c, const struct us_visitor *v, unsigned cpu)
{
    struct us_list *first = us_local_word(&c->local, cpu, 1);
    struct us_slab *s = first && v->owned ? us_slab_of_list(first) : NULL;
    uint64_t position = 0;

    for (; s; s = s->next)
        v->owned(v->context, s, cpu, position++);
}

void us_slub_visit(struct us_cache *c, const struct us_visitor *v)
{
    const struct us_slub *st = us_slub_of(c);
    unsigned cpu, n;

    for (cpu = 0; cpu < c->machine->ncpus; cpu++) {
        struct us_list *list = c->local.region[cpu] ? us_local_word(&c->local, cpu, 0) : NULL;

        if (list)
            visit_cpu_slab(c, v, cpu, us_slab_of_list(list));
        if (c->local.region[cpu])
            visit_cpu_partial(c, v, cpu);
    }
    for (n = 0; n < c->machine->nnodes; n++)
        us_visit_list(v, &st->node[n].slabs, n, "partial");
}

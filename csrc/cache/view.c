/* view.c - see view.h. */
#include "cache/view.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void wrong(struct us_view *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void wrong(struct us_view *v, const char *format, ...)
{
    char text[200];
    va_list arguments;

    if (!v->wrong)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    v->wrong(v->context, text);
}

static unsigned long long base_of(const struct us_view *v, const struct us_slab *s)
{
    return (unsigned long long)(uintptr_t)us_slab_base(v->cache->slabs, s);
}

/* ---- slabs --------------------------------------------------------------------------------------
 */

static bool collect_slabs(struct us_view *v)
{
    struct us_slab_walk walk;
    struct us_slab *s;
    size_t n = 0;

    us_slab_walk_begin(&walk, v->cache->owner);
    while ((s = us_slab_walk_next(&walk)) != NULL)
        n += s->cache == v->cache;
    v->slab = calloc(n + 1, sizeof(*v->slab));
    if (!v->slab)
        return false;
    us_slab_walk_begin(&walk, v->cache->owner);
    while ((s = us_slab_walk_next(&walk)) != NULL) {
        if (s->cache != v->cache || v->nslabs == n)
            continue;
        v->slab[v->nslabs++] = (struct us_view_slab){
            .slab = s,
            .first = v->nobjects,
            .cpu = -1,
            .position = -1,
        };
        v->nobjects += us_slab_objects(s);
    }
    v->place = calloc(v->nobjects + 1, 1);
    return v->place != NULL;
}

/* Slabs were collected in the order of their descriptors. */
static struct us_view_slab *find_slab(struct us_view *v, const struct us_slab *s)
{
    size_t low = 0, high = v->nslabs;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (v->slab[middle].slab < s)
            low = middle + 1;
        else
            high = middle;
    }
    return low < v->nslabs && v->slab[low].slab == s ? &v->slab[low] : NULL;
}

static void free_by_state(struct us_view *v, struct us_view_slab *e)
{
    uint32_t i;

    for (i = 0; i < us_slab_objects(e->slab); i++)
        if (us_slab_is_free(v->cache, e->slab, i)) {
            v->place[e->first + i] = US_IN_SLAB;
            e->free++;
        }
}

static void free_by_list(struct us_view *v, struct us_view_slab *e)
{
    const uint32_t objects = us_slab_objects(e->slab);
    void *object = e->slab->freelist;
    uint32_t i;

    while (object && e->free < objects) {
        if (us_slab_of(v->cache->slabs, object) != e->slab ||
            !us_object_at(v->cache, e->slab, object, &i)) {
            wrong(v, "slab 0x%llx: its free list leads to %p, which is no object of it",
                  base_of(v, e->slab), object);
            return;
        }
        if (v->place[e->first + i] == US_IN_SLAB) {
            wrong(v, "slab 0x%llx: object %p is on its free list twice", base_of(v, e->slab),
                  object);
            return;
        }
        v->place[e->first + i] = US_IN_SLAB;
        e->free++;
        object = us_link_get(v->cache, object);
    }
}

static void mark_free(struct us_view *v, struct us_view_slab *e)
{
    const struct us_slab *s = e->slab;
    const uint8_t state = atomic_load(&s->state);

    if (state & US_SLAB_LARGE)
        return;
    if (state & US_SLAB_PRIVATE) { /* a constructor is at work on it */
        memset(v->place + e->first, US_IN_SLAB, us_slab_objects(s));
        e->free = us_slab_objects(s);
        return;
    }
    if (v->cache->geometry.state == US_OBJECTS_LIST)
        free_by_list(v, e);
    else
        free_by_state(v, e);
    if (e->free != s->free)
        wrong(v, "slab 0x%llx: %u objects are free in it, its counter says %u", base_of(v, s),
              e->free, s->free);
}

/* ---- stocks ---------------------------------------------------------------------------------- */

static bool grow(void **array, size_t *room, size_t wanted, size_t size)
{
    size_t next = *room ? *room : 64;
    void *grown;

    if (wanted <= *room)
        return true;
    while (next < wanted)
        next *= 2;
    grown = realloc(*array, next * size);
    if (!grown)
        return false;
    *array = grown;
    *room = next;
    return true;
}

static void mark_queued(struct us_view *v, const struct us_stock *stock, void *object)
{
    struct us_slab *s = us_slab_of(v->cache->slabs, object);
    struct us_view_slab *e = s ? find_slab(v, s) : NULL;
    uint32_t i;

    if (!e || !us_object_at(v->cache, s, object, &i)) {
        wrong(v, "%s stock holds %p, which is no object of the cache", stock->name, object);
        return;
    }
    if (v->place[e->first + i] != US_IN_USE) {
        wrong(v, "%s stock holds object %p, which is also %s", stock->name, object,
              v->place[e->first + i] == US_IN_SLAB ? "free in its slab" : "in a stock elsewhere");
        return;
    }
    if (stock->kind != US_STOCK_CPU && !stock->any_node && stock->node >= 0 &&
        s->node != stock->node)
        wrong(v, "%s stock of node %d holds object %p of node %u", stock->name, stock->node, object,
              s->node);
    v->place[e->first + i] = US_IN_QUEUE;
    e->queued++;
    if (stock->cpu >= 0 && (atomic_load(&s->state) & US_SLAB_FROZEN))
        e->cpu = stock->cpu;
}

static void see_stock(void *context, const struct us_stock *stock, void *const *object)
{
    struct us_view *v = context;
    uint32_t i;

    if (!grow((void **)&v->stock, &v->stock_room, v->nstocks + 1, sizeof(*v->stock)) ||
        !grow((void **)&v->address, &v->address_room, v->naddresses + stock->objects,
              sizeof(*v->address))) {
        v->no_memory = true;
        return;
    }
    v->stock[v->nstocks++] = (struct us_stock_row){.stock = *stock, .first = v->naddresses};
    for (i = 0; i < stock->objects; i++) {
        v->address[v->naddresses++] = (uint64_t)(uintptr_t)object[i];
        mark_queued(v, stock, object[i]);
    }
}

static void see_listed(void *context, struct us_slab *slab, unsigned node, const char *list,
                       uint64_t position)
{
    struct us_view *v = context;
    struct us_view_slab *e = find_slab(v, slab);

    if (!e) {
        wrong(v, "list %s of node %u holds a slab of another cache", list, node);
        return;
    }
    e->listings++;
    e->list_node = node;
    e->position = (int64_t)position;
    e->full_list = strcmp(list, "full") == 0;
    e->free_list = strcmp(list, "free") == 0;
}

static void see_owned(void *context, struct us_slab *slab, unsigned cpu, uint64_t position)
{
    struct us_view *v = context;
    struct us_view_slab *e = find_slab(v, slab);

    if (!e) {
        wrong(v, "CPU %u owns a slab of another cache", cpu);
        return;
    }
    if (e->cpu >= 0)
        wrong(v, "slab 0x%llx: CPUs %d and %u own it", base_of(v, slab), e->cpu, cpu);
    e->cpu = (int)cpu;
    e->position = (int64_t)position;
}

/* Frees of signal handlers that wait to be taken in: a stock of their own. */
static void see_deferred(struct us_view *v)
{
    unsigned node;

    for (node = 0; node < v->cache->machine->nnodes; node++) {
        struct us_stock stock = {
            .kind = US_STOCK_SHARED,
            .name = "deferred",
            .cpu = -1,
            .domain = -1,
            .node = (int)node,
        };
        void *object = atomic_load(&v->cache->deferred[node]);

        if (!object)
            continue;
        if (!grow((void **)&v->stock, &v->stock_room, v->nstocks + 1, sizeof(*v->stock))) {
            v->no_memory = true;
            return;
        }
        v->stock[v->nstocks].first = v->naddresses;
        for (; object; object = *(void **)object) {
            if (!grow((void **)&v->address, &v->address_room, v->naddresses + 1,
                      sizeof(*v->address))) {
                v->no_memory = true;
                return;
            }
            v->address[v->naddresses++] = (uint64_t)(uintptr_t)object;
            mark_queued(v, &stock, object);
            stock.objects++;
        }
        stock.capacity = stock.objects;
        v->stock[v->nstocks++].stock = stock;
    }
}

/* Objects that wait for a grace period: live, and nowhere else. */
static void mark_waiting(void *context, void *object)
{
    struct us_view *v = context;
    struct us_slab *s = us_slab_of(v->cache->slabs, object);
    struct us_view_slab *e = s ? find_slab(v, s) : NULL;
    uint32_t i;

    if (!e || !us_object_at(v->cache, s, object, &i) ||
        (s->state & US_SLAB_LARGE)) /* a block of its own is no stride of the cache */
        return;
    if (v->place[e->first + i] != US_IN_USE)
        wrong(v, "object %p waits for a grace period and is also %s", object,
              v->place[e->first + i] == US_IN_SLAB    ? "free in its slab"
              : v->place[e->first + i] == US_IN_QUEUE ? "in a stock"
                                                      : "waiting a second time");
    else
        v->place[e->first + i] = US_WAITING;
}

/* ---- all
 * ------------------------------------------------------------------------------------------------
 */

bool us_view_init(struct us_view *v, struct us_cache *c)
{
    const struct us_visitor visitor = {v, see_stock, see_listed, see_owned};
    size_t i;

    v->cache = c;
    if (!collect_slabs(v))
        return false;
    for (i = 0; i < v->nslabs; i++)
        mark_free(v, &v->slab[i]);
    c->policy->visit(c, &visitor);
    see_deferred(v);
    us_rcu_each(c, mark_waiting, v);
    return !v->no_memory;
}

void us_view_fini(struct us_view *v)
{
    free(v->slab);
    free(v->place);
    free(v->stock);
    free(v->address);
}

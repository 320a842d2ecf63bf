/* chain.c - the two chains of free objects of a slab (listed.h). */
#include "slab/listed.h"

bool us_slab_knows(struct us_cache *c, const struct us_slab *s, const void *object)
{
    enum us_misuse_kind kind;

    us_runs(22);
    if (!us_in_range(&c->slabs->range, object))
        kind = US_MISUSE_OUTSIDE;
    else if (!s || (us_slab_state(s) & US_SLAB_LARGE))
        kind = US_MISUSE_NO_SLAB;
    else if (s->cache != c)
        kind = US_MISUSE_WRONG_CACHE;
    else if (!us_slab_is_object(c, s, object))
        kind = US_MISUSE_NO_OBJECT;
    else
        return true;
    us_report_misuse(c, kind, object);
    return false;
}

void *us_slab_pop_free(const struct us_cache *c, struct us_slab *s)
{
    void *object = s->freelist, *next;

    us_runs(28);
    us_writes(s, sizeof(*s));
    if (!us_slab_read_link(c, s, object, &next) || (next == NULL) != (s->free == 1))
        return NULL;
    s->freelist = next;
    us_slab_set_free(s, s->free - 1);
    return object;
}

void us_slab_set_local(struct us_slab *s, void *head, uint32_t size)
{
    us_runs(4);
    us_writes(s, sizeof(*s));
    s->local.head = head;
    __atomic_store_n(&s->local.count, size, __ATOMIC_RELAXED); /* statistics may be looking */
}

bool us_slab_pop_local(const struct us_cache *c, struct us_slab *s, void **object)
{
    const uint32_t size = us_list_size(s->local.count);
    void *next;

    us_runs(36);
    *object = s->local.head;
    if (size == 0 || !us_slab_read_link(c, s, *object, &next) || (next == NULL) != (size == 1))
        return false;
    us_slab_set_local(s, next, size - 1);
    return true;
}

bool us_slab_return_local(const struct us_cache *c, struct us_slab *s)
{
    uint32_t size = us_list_size(s->local.count);
    void *object = s->local.head, *next;

    us_runs(37 + 12 * (uint64_t)size);
    if (s->free + size > us_slab_objects(s))
        return false;
    for (; size > 0; size--) {
        if (!us_slab_read_link(c, s, object, &next))
            break;
        us_slab_push_free(c, s, object);
        object = next;
    }
    us_slab_set_local(s, object, size); /* what could not be moved */
    return object == NULL && size == 0;
}

/* What its chains held is counted as free and never handed out again. */
void us_slab_isolate(struct us_cache *c, struct us_slab *s, const void *seen)
{
    const bool inside = seen && us_cache_slab(c, seen) == s;
    const uint32_t free = s->free + us_list_size(s->local.count), objects = us_slab_objects(s);

    us_report_misuse(c, US_MISUSE_LIST, inside ? seen : us_slab_base(c->slabs, s));
    s->freelist = NULL;
    us_slab_set_free(s, free < objects ? free : objects);
    us_slab_set_local(s, NULL, 0);
    us_slab_set_state(s, US_SLAB_BAD | US_SLAB_ISOLATED);
}

bool us_slab_walk_local(const struct us_cache *c, const struct us_slab *s, uint32_t *size)
{
    const uint32_t most = us_slab_objects(s);
    void *object = __atomic_load_n(&s->local.head, __ATOMIC_RELAXED), *next;

    us_runs(22);
    *size = 0;
    while (object && *size < most && us_slab_read_link(c, s, object, &next)) {
        object = next;
        ++*size;
    }
    return object == NULL;
}

/* What is read may be anything by now, but for pages that the slab was told to have: those were
 * made accessible, and stay so. */
bool us_slab_length(const struct us_local *l, struct us_list *list, uint32_t *size)
{
    const struct us_cache *c =
        (const struct us_cache *)((const char *)l - offsetof(struct us_cache, local));
    const struct us_slab *s = us_slab_of_list(list);
    const uint32_t most = us_slab_objects(s);
    void *object = __atomic_load_n(&s->local.head, __ATOMIC_RELAXED), *next;

    for (*size = 0; object && *size < most; ++*size) {
        if (us_cache_slab(c, object) != s || !us_slab_read_link(c, s, object, &next))
            return false;
        object = next;
    }
    return object == NULL;
}

struct us_slab *us_slab_settle(struct us_cache *c, unsigned cpu, struct us_list *list)
{
    struct us_slab *s = us_slab_of_list(list);
    const uint64_t pops = us_list_pops(list->count);
    uint32_t size;

    us_runs(32);
    if (us_slab_walk_local(c, s, &size)) {
        us_local_harvest(&c->local, cpu, pops, size + pops - us_list_size(list->count));
    } else {
        us_local_harvest(&c->local, cpu, pops, 0);
        size = us_slab_objects(s) - s->free;
    }
    us_slab_set_local(s, list->head, size);
    return s;
}

void us_words_populate(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const struct us_range *r = &c->slabs->range;
    struct us_words *w = us_meta_alloc(c->slabs->memory, sizeof(*w));

    if (!w)
        return;
    us_words_init(w, us_node_base(r, us_node_of_cpu(c->machine, cpu)), us_node_length(r));
    if (!us_local_populate(&c->local, f, cpu, w))
        us_meta_free(c->slabs->memory, w, sizeof(*w));
}

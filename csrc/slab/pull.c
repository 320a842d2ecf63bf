/* pull.c - slabs that are taken off their list to be emptied, and whole chains (listed.h). */
#include "slab/listed.h"

static uint32_t free_of(const struct us_slab *s)
{
    return __atomic_load_n(&s->free, __ATOMIC_RELAXED);
}

struct us_slab *us_partial_pull(struct us_partial *p, uint32_t want)
{
    struct us_slab *pulled = NULL, **end = &pulled, *s;
    uint64_t free = 0;

    while (free < want && (s = p->slabs.first) != NULL) {
        us_partial_remove(p, s);
        free += free_of(s);
        *end = s;
        end = &s->next;
    }
    return pulled;
}

static struct us_slab *reversed(struct us_slab *chain)
{
    struct us_slab *out = NULL, *next;

    for (; chain; chain = next) {
        next = chain->next;
        chain->next = out;
        out = chain;
    }
    return out;
}

struct us_slab *us_partial_unpull(struct us_partial *p, struct us_slab *pulled, uint64_t keep)
{
    struct us_slab *empty = NULL, *s, *next;

    for (s = reversed(pulled); s; s = next) {
        next = s->next;
        s->next = NULL;
        if (free_of(s) == us_slab_objects(s) && p->slabs.length >= keep) {
            us_slab_set_state(s, US_SLAB_PRIVATE);
            s->next = empty;
            empty = s;
        } else {
            us_partial_add(p, s, false);
        }
    }
    return empty;
}

void us_slab_take_chain(struct us_slab *s, struct us_chain *chain)
{
    *chain = (struct us_chain){.head = s->freelist, .n = s->free};
    s->freelist = NULL;
    us_slab_set_free(s, 0);
}

/* The link of the first of n objects of a chain; false when that is not as it must be. */
static bool follow(const struct us_cache *c, const struct us_slab *s, const void *object,
                   uint32_t n, void **next)
{
    return us_slab_read_link(c, s, object, next) && (*next == NULL) == (n == 1);
}

bool us_chain_take(const struct us_cache *c, const struct us_slab *s, struct us_chain *chain,
                   void **out, uint32_t *n)
{
    const uint32_t want = *n;
    void *next;
    uint32_t left;

    for (*n = 0; *n < want && chain->n > 0; chain->n--) {
        if (!follow(c, s, chain->head, chain->n, &next))
            return false;
        out[(*n)++] = chain->head;
        chain->head = next;
    }
    chain->tail = chain->head;
    for (left = chain->n; left > 0; left--) {
        if (!follow(c, s, chain->tail, left, &next))
            return false;
        if (left > 1)
            chain->tail = next;
    }
    return true;
}

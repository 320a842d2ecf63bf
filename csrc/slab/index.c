/* index.c - INDEX state: free objects of a slab linked by their numbers.
 *
 * The array, 4 bytes an object, lies out of band and is the slab's from before it is published
 * until after it was taken apart. It is the field's oldest form of a free list that leaves objects
 * alone: the object that was freed last is handed out first, and a fresh slab hands out ascending
 * addresses. Entries of objects that are out of the slab hold a mark, so that an object that comes
 * back twice is found.
 */
#include "slab/internal.h"

void us_index_fill(struct us_slab *s)
{
    const uint32_t objects = us_slab_objects(s);

    us_runs(20 + 6 * (uint64_t)objects);
    us_writes(s->index, objects * sizeof(*s->index));
    us_writes(s, sizeof(*s));
    for (uint32_t i = 0; i + 1 < objects; i++)
        s->index[i] = i + 1;
    s->index[objects - 1] = US_INDEX_END;
    s->first = 0;
    s->free = objects;
}

unsigned us_slab_index_take(struct us_cache *c, struct us_slab *s, void **out, unsigned n)
{
    unsigned taken = 0;

    us_writes(s, sizeof(*s));
    for (; taken < n && s->free > 0; taken++, s->free--) {
        const uint32_t i = s->first;

        us_writes(&s->index[i], sizeof(uint32_t));
        out[taken] = us_object_address(c, s, i);
        s->first = s->index[i];
        s->index[i] = US_INDEX_OUT;
    }
    us_runs(15 + 24 * taken);
    return taken;
}

bool us_slab_index_put(struct us_cache *c, struct us_slab *s, void *object)
{
    uint32_t i;

    if (US_UNLIKELY(!us_object_returns(c, s, object, &i)))
        return false;
    if (US_UNLIKELY(s->index[i] != US_INDEX_OUT)) {
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        return false;
    }
    us_runs(26);
    us_writes(s, sizeof(*s));
    us_writes(&s->index[i], sizeof(uint32_t));
    s->index[i] = s->first;
    s->first = i;
    s->free++;
    return true;
}

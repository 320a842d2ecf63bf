/* shape.c - getters of tunables that tell the shape of a cache; tables of several policies have
 * them. */
#include "policy/policy.h"

int64_t us_shape_order(struct us_cache *c)
{
    return c->geometry.order;
}

int64_t us_shape_objects(struct us_cache *c)
{
    return c->geometry.objects;
}

int64_t us_shape_stride(struct us_cache *c)
{
    return (int64_t)c->geometry.stride;
}

int64_t us_shape_size(struct us_cache *c)
{
    return (int64_t)c->size;
}

int64_t us_shape_align(struct us_cache *c)
{
    return (int64_t)c->geometry.align;
}

int64_t us_shape_slabs(struct us_cache *c)
{
    return us_sum_of_nodes(c, c->nr_slabs);
}

int64_t us_shape_total_objects(struct us_cache *c)
{
    return us_sum_of_nodes(c, c->nr_objects);
}

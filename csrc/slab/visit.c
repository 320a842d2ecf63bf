/* visit.c - what every policy shows alike. */
#include "slab/visit.h"

void us_visit_list(const struct us_visitor *v, const struct us_slab_list *l, unsigned node,
                   const char *name)
{
    uint64_t position = 0;

    for (struct us_slab *s = l->first; s; s = s->next)
        v->listed(v->context, s, node, name, position++);
}

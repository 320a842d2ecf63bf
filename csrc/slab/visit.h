/* visit.h - how a policy shows what it holds, to accounts, validation and pictures. */
#ifndef US_VISIT_H
#define US_VISIT_H

#include "slab/slab.h"

enum us_stock_kind { US_STOCK_CPU, US_STOCK_SHARED, US_STOCK_ALIEN, US_STOCK_PREFILLED };
struct us_stock {
    enum us_stock_kind kind;
    const char *name;      /* "cpu", "shared", "alien", "freelist", ... */
    int cpu, domain, node; /* which one; -1 = does not apply. node: of the objects it holds */
    uint32_t objects, capacity;
    bool touched;
    bool any_node; /* other nodes' objects may be in it, too */
};
struct us_visitor {
    void *context;
    /* A stock of objects that are neither in use nor free in their slab. `object` lists them oldest
     * first; it may be NULL when objects == 0. */
    void (*stock)(void *context, const struct us_stock *stock, void *const *object);
    /* A partial list's slab in list order, head first. position counts from 0 within (node, list).
     */
    void (*listed)(void *context, struct us_slab *slab, unsigned node, const char *list,
                   uint64_t position);
    /* A frozen slab that waits on its CPU's own list, its objects free in it, from the one that is
     * next. NULL when the visitor does not want to know. */
    void (*owned)(void *context, struct us_slab *slab, unsigned cpu, uint64_t position);
};

/* A list of a node's slabs, head first. */
void us_visit_list(const struct us_visitor *v, const struct us_slab_list *l, unsigned node,
                   const char *name);

#endif

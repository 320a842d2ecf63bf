/* view.h - a cache laid open: every slab, every stock and the place of every object, built with the
 * gate shut from the page map, the slabs' own free state and the policy's visit. */
#ifndef US_CACHE_VIEW_H
#define US_CACHE_VIEW_H

#include "cache/internal.h"

struct us_view_slab {
    struct us_slab *slab;
    uint64_t first; /* index of its first object in place[] */
    uint32_t free, queued;
    int32_t cpu;       /* whose stock holds objects of it, when frozen */
    uint32_t listings; /* times it was met on a list */
    unsigned list_node;
    bool full_list, free_list; /* the list is called so: of slabs with no, with only free objects */
    int64_t position;
};

struct us_view {
    struct us_cache *cache;
    struct us_view_slab *slab;
    size_t nslabs;
    uint8_t *place; /* enum us_object_place, of every object of every slab */
    uint64_t nobjects;
    struct us_stock_row *stock;
    size_t nstocks, stock_room;
    uint64_t *address;
    size_t naddresses, address_room;
    bool no_memory;
    /* What does not fit together; NULL = nobody asks. */
    void (*wrong)(void *context, const char *text);
    void *context;
};

/* Gate shut and regions closed. False when memory is short. us_view_fini in any case. */
bool us_view_init(struct us_view *v, struct us_cache *c);
void us_view_fini(struct us_view *v);

#endif

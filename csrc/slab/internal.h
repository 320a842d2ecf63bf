/* internal.h - what the files of slab/ share. */
#ifndef US_SLAB_INTERNAL_H
#define US_SLAB_INTERNAL_H

#include "slab/slab.h"

/* BITMAP state: all objects of a fresh slab are free. */
void us_objects_fill(struct us_cache *c, struct us_slab *s);
/* The same for INDEX, whose array is there. */
void us_index_fill(struct us_slab *s);
/* Whose object is it that comes back: true and its index when it is one of the slab `s` of the
 * cache; else a report. */
bool us_object_returns(struct us_cache *c, const struct us_slab *s, const void *object,
                       uint32_t *index);
/* Constructs one object; `first` bytes at most are filled by a pattern. */
void us_construct(const struct us_cache *c, void *object, size_t first);
bool us_misuse_init(struct us_slabs *slabs);

#endif

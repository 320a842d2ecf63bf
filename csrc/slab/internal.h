/* internal.h - what the files of slab/ share. */
#ifndef US_SLAB_INTERNAL_H
#define US_SLAB_INTERNAL_H

#include "slab/slab.h"

/* BITMAP state: all objects of a fresh slab are free. */
void us_objects_fill(struct us_cache *c, struct us_slab *s);
/* Constructs one object; `first` bytes at most are filled by a pattern. */
void us_construct(const struct us_cache *c, void *object, size_t first);
bool us_misuse_init(struct us_slabs *slabs);

#endif

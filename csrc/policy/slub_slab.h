/* slub_slab.h - what the files of slub and slub-thrash share. */
#ifndef US_POLICY_SLUB_SLAB_H
#define US_POLICY_SLUB_SLAB_H

#include "policy/slub.h"

/* ---- the CPU slab: slub_slab.c ------------------------------------------------------- */

/* Deactivates a private slab; `locked` tells that the slab lock is held. Not for nested flights. */
void us_slub_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                        bool locked);
/* Gives an empty slab back. No lock may be held. */
void us_slub_release(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s);

void us_slub_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);

/* ---- slab thrash: slub_thrash.c ------------------------------------------------------ */

/* A CPU slab was looked at or given up: allocations from it since it was filled. */
void us_slub_note_pops(struct us_cache *c, unsigned cpu, uint64_t pops);
/* A slow allocation is about to fill or replace the CPU slab. */
void us_slub_note_slow(struct us_cache *c, unsigned cpu);
/* Where a slab with `free` free objects joins a list: the tail, or where the mode wants it. */
bool us_slub_at_tail(const struct us_cache *c, unsigned cpu, uint32_t free, bool at_tail);
/* A slab of the node's own list for the CPU, both locks held. *deferred: a new slab is to be got
 * rather than anything else. */
struct us_slab *us_slub_lock_partial(const struct us_slub_ask *a, bool *deferred);
/* The same of another node's list. */
struct us_slab *us_slub_lock_other(struct us_slub_ask *a, struct us_partial *p);
/* A partial slab fit for a CPU that thrashes was got. */
void us_slub_note_good(struct us_cache *c, unsigned cpu);

/* ---- life ---------------------------------------------------------------------------- */

extern const struct us_slub_paths us_slub_page_lock;
enum us_status us_slub_plain_create(struct us_cache *c, struct us_error *e);
enum us_status us_slub_thrash_create(struct us_cache *c, struct us_error *e);
void us_slub_thrash_destroy(struct us_cache *c);

#endif

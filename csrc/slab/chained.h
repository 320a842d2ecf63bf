/* chained.h - slabs that no CPU owns and that have no lock: whole chains of free objects come and
 * go by one exchange (exchange.h).
 *
 * A slab is on its node's partial list; full, on none; or pulled: taken off the list by somebody
 * who empties it, while others may still free into it, which leaves it alone even when it becomes
 * empty. Objects leave a listed slab under the node lock, a pulled one at the hands of who pulled
 * it; frees take the node lock before the exchange when the slab is full or becomes empty, and only
 * then.
 *
 * `lost` is added the exchanges that somebody else's came before.
 */
#ifndef US_CHAINED_H
#define US_CHAINED_H

#include "slab/exchange.h"
#include "slab/listed.h"

/* Objects of one slab linked to each other, the last to anything. */
struct us_chain {
    void *head, *tail;
    uint32_t n;
};

/* Puts a chain of free objects back to their slab, which goes to the tail of the list if it was
 * full. An empty slab is kept on a list of fewer than `keep`. */
enum us_put us_chained_put(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                           struct us_slab *s, const struct us_chain *chain, uint64_t keep,
                           uint64_t *lost);
/* One object off the first slab of a list, which leaves it with its last one. NULL: the list is
 * empty, or a nested flight found a lock busy. Slabs with broken chains are isolated. */
void *us_chained_take(struct us_cache *c, struct us_flight *f, struct us_partial *p,
                      uint64_t *lost);

/* Node lock held. Pulls slabs off the head of a list until they have `want` free objects together;
 * they are chained through next, in list order. */
struct us_slab *us_chained_pull(struct us_partial *p, uint32_t want);
/* Node lock held. Puts a chain of them back to the head of the list, in their order, but for empty
 * ones beyond `keep`: those are returned, chained and private, to be released. */
struct us_slab *us_chained_unpull(struct us_partial *p, struct us_slab *pulled, uint64_t keep);
/* Takes the freelist of a pulled slab: up to *n objects to out[], the rest to `chain`; *n gets how
 * many. False: the chain is broken, and the slab isolated. Not for nested flights. */
bool us_chained_empty(struct us_cache *c, struct us_flight *f, struct us_slab *s, void **out,
                      uint32_t *n, struct us_chain *chain, uint64_t *lost);

#endif

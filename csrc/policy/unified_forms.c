/* unified_forms.c - unified-v4 and sleb: earlier forms of the Unified policy, as switches.
 *
 * unified-v4 is V4 as posted in October 2010, to reproduce its figures: what it did, not its
 * crashes and leaks. A miss fetches slabs until a batch is there (eager_refill 1), drains go
 * through the vector as it is (sorted_drain 0), empty slabs stay where they are or go to the head
 * (empty_to_tail 0), a bitmap of more than 64 bits lies behind the objects of its slab (the room
 * stays unused here and is waste), no size follows the traffic and none is bounded in bytes, an
 * alien queue is refilled up to queue_size, expiration runs all stages, and what the page provider
 * takes from another node enters queues like any other. Resizing a CPU queue flushes it, resizing
 * shared or alien queues drains these. Its findings (reference table 2.13) one by one:
 *
 *   row                                               here
 *    1  a named node is ignored                       reproduced: it counts in caches spread by
 *                                                     memory policy only. US_THISNODE is honoured,
 *                                                     for callers may rely on it
 *    2  crash when the provider fails                 no (a crash); what the queue has is returned
 *    3  alien expiry leaks an array                   no (a leak)
 *    4  stages fail for caches without shared queues  reproduced: ends the pass over all caches
 *                                                     (US_EXPIRE_END), on one node in the stage of
 *                                                     shared queues; a cache alone goes on
 *    5  alien expiry visits slots 0 to N-2            reproduced: the shared queue once more, the
 *                                                     last alien slot never
 *    6  the CPU stage clears marks of all CPUs        reproduced
 *    7  wrong byte counts; "all" runs stage 1 only    the counts are right (bookkeeping); writing
 *                                                     -1 to `expire` runs stage 1 only
 *    8  batch_size below queue_size refused           reproduced; larger ones are taken, and
 *                                                     refills stop at queue_size
 *    9  LOWMEM's min_partial 0 becomes 5              reproduced
 *   10  the full list is incomplete                   no (corruption); there is no full list
 *   11  validate overflows on a full slab             no (a crash)
 *   12  cache domains on x86 only                     no (a build failure)
 *   13  expiry allocates in reclaim                   no: nothing allocates while it expires; the
 *                                                     failures that were logged do not occur
 *   14  drains read one pointer too many              no (harmless)
 *
 * Not carried over either: emptied slabs are given back after the node lock is dropped, since no
 * lock is held over the page provider here; single-CPU domains form one group a node, not one of
 * the machine.
 *
 * sleb is the queue-only form of mid-2010 (SLEB, S+Q V1 and V2), RECONSTRUCTED: the bodies of those
 * patches were not read, and it is V4 less what later postings added. Known of it: CPU queues over
 * bitmaps in the slabs, no shared, no alien queues, not NUMA clean. Hence an off-node object enters
 * the queue of the CPU that frees it, and comes out of it there, whatever node is asked for without
 * US_THISNODE on the CPU's own node; expiration, LOWMEM and placement of objects came with V3 and
 * V4 and are not there. Decided for want of a source: queue sizes by object size as in V4 (patch 03
 * of V4 alone had 50 and 25: cpu_queue_size=50); a node that is named and not the CPU's is served
 * from the head of that node's list, one object at a time, past the queue; slabs are under the node
 * lock (until V4 each had a lock of its own, so that lock counts are lower here); geometry, eager
 * refill and list ends as in V4.
 */
#include "policy/unified.h"

const struct us_unified_form us_unified_carried_on = {
    .second_level = true,
};

#define FIXED_AS_POSTED [US_UNIFIED_T_EAGER_REFILL] = 1 /* the other additions are off */

const struct us_unified_form us_unified_posted = {
    .second_level = true,
    .fallback_queued = true,
    .names_no_node = true,
    .bitmap_in_band = true,
    .clamps_lowmem = true,
    .posted_batch = true,
    .posted_expiry = true,
    .resize_drains = true,
    .posted_accounts = true,
    .single_calls = true,
    .fixed = {FIXED_AS_POSTED},
};

const struct us_unified_form us_unified_sleb = {
    .any_node = true,
    .fallback_queued = true,
    .bitmap_in_band = true,
    .no_lowmem = true,
    .resize_drains = true,
    .posted_accounts = true,
    .single_calls = true,
    .fixed = {FIXED_AS_POSTED},
};

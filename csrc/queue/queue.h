/* queue.h - shared and alien queues: a ring under a lock.
 *
 * The same ring as a CPU's region (machine/region.h), worked by plain code under its own lock. The
 * `seen` word of the ring is its ageing mark: touched = header differs from it.
 */
#ifndef US_QUEUE_H
#define US_QUEUE_H

#include "queue/cpu.h"

/* This line is only read once the queue is made; what changes lies in the ring's. */
struct us_queue {
    struct us_ring *ring;
    unsigned node; /* of the objects it holds */
    unsigned domain;
    uint32_t capacity;
    uint32_t account;      /* bytes of metadata that it counts for */
    bool any_node;         /* may hold objects of other nodes, too */
    unsigned shards;       /* how many share the work, this one among them */
    struct us_queue *next; /* the next shard, in a circle */
};

/* Of class SHARED or ALIEN, or unused where another lock guards the queue. */
static inline struct us_lock *us_queue_lock(const struct us_queue *q)
{
    us_reads(q, 1);
    return &q->ring->lock;
}
static inline void us_queue_touch(struct us_queue *q)
{
    us_reads(q, 1);
    us_writes(q->ring, 1);
    atomic_store_explicit(&q->ring->seen, US_SEEN_TOUCHED, memory_order_relaxed);
}
static inline void us_queue_untouch(struct us_queue *q)
{
    us_reads(q, 1);
    us_writes(q->ring, 1);
    atomic_store_explicit(&q->ring->seen, us_ring_header(q->ring), memory_order_relaxed);
}
static inline uint32_t us_queue_size(const struct us_queue *q)
{
    us_reads(q, 1);
    return us_ring_size(q->ring);
}

/* Untouched, one shard, accounted as what the original takes (0 = as ours); NULL = no memory. */
struct us_queue *us_queue_new(struct us_cache *c, enum us_lock_class klass, unsigned domain,
                              unsigned node, uint32_t capacity, size_t account);
/* Its objects must have left. */
void us_queue_free(struct us_cache *c, struct us_queue *q);
/* Takes the oldest out, at most `most`, and puts them where `drain` does; returns how many. */
unsigned us_queue_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                        unsigned most, us_drain_fn *drain);
/* One visit (see us_cpu_age); q may be NULL. */
unsigned us_queue_age(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                      us_due_fn *due, bool try_only, us_drain_fn *drain);
/* Alone in the allocator: the objects move over but for the oldest that find no room. */
void us_queue_move(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *from,
                   struct us_queue *to, us_drain_fn *drain);
void us_visit_queue(const struct us_visitor *v, enum us_stock_kind kind, const char *name,
                    const struct us_queue *q, us_touched_fn *touched);

#endif

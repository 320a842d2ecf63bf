/* queue.h - shared and alien queues: a ring under a lock.
 *
 * The same ring as a CPU's region (machine/region.h), worked by plain code under its own lock. The
 * `seen` word of the ring is its ageing mark: touched = header differs from it.
 */
#ifndef US_QUEUE_H
#define US_QUEUE_H

#include "machine/region.h"

/* This line is only read once the queue is made; what changes lies in the ring's. */
struct us_queue {
    struct us_ring *ring;
    unsigned node; /* of the objects it holds */
    unsigned domain;
    uint32_t capacity;
};

/* Class SHARED or ALIEN. */
static inline struct us_lock *us_queue_lock(const struct us_queue *q)
{
    return &q->ring->lock;
}
static inline void us_queue_touch(struct us_queue *q)
{
    atomic_store_explicit(&q->ring->seen, US_SEEN_TOUCHED, memory_order_relaxed);
}
static inline void us_queue_untouch(struct us_queue *q)
{
    atomic_store_explicit(&q->ring->seen, us_ring_header(q->ring), memory_order_relaxed);
}
static inline uint32_t us_queue_size(const struct us_queue *q)
{
    return us_ring_size(q->ring);
}

#endif

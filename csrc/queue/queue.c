/* queue.c - life, ageing and showing of queues that CPUs share. */
#include "queue/queue.h"

#define CHUNK 256u /* pointers on the stack at once */

static size_t queue_bytes(uint32_t capacity)
{
    return US_LINE + us_ring_bytes(capacity);
}

struct us_queue *us_queue_new(struct us_cache *c, enum us_lock_class klass, unsigned domain,
                              unsigned node, uint32_t capacity, size_t account)
{
    struct us_memory *mem = c->slabs->memory;
    const size_t bytes = queue_bytes(capacity);
    struct us_queue *q;

    if (account == 0)
        account = us_meta_rounded(mem, bytes);
    q = us_meta_alloc_as(mem, bytes, account);
    _Static_assert(sizeof(*q) <= US_LINE, "the ring starts one line into the block");
    if (!q)
        return NULL;
    q->ring = (struct us_ring *)((char *)q + US_LINE);
    us_ring_init(q->ring, capacity, us_node_base(&c->slabs->range, node),
                 us_node_length(&c->slabs->range));
    us_lock_init(us_queue_lock(q), klass);
    q->node = node;
    q->domain = domain;
    q->capacity = capacity;
    q->account = (uint32_t)account;
    q->shards = 1;
    q->next = q;
    us_queue_untouch(q);
    return q;
}

void us_queue_free(struct us_cache *c, struct us_queue *q)
{
    us_lock_retire(c->machine, us_queue_lock(q));
    us_meta_free_as(c->slabs->memory, q, queue_bytes(q->capacity), q->account);
}

unsigned us_queue_flush(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                        unsigned most, us_drain_fn *drain)
{
    void *buffer[CHUNK];
    unsigned total = 0;

    while (total < most) {
        unsigned want = most - total < CHUNK ? most - total : CHUNK, n;

        if (!us_lock_take(f, us_queue_lock(q)))
            break;
        n = us_ring_take_oldest_c(q->ring, buffer, want, US_SEEN_COMMIT);
        us_lock_drop(f, us_queue_lock(q));
        if (n == 0)
            break;
        drain(c, f, cpu, buffer, n);
        total += n;
    }
    us_stat_add(c, cpu, US_OBJECTS_MOVED, total);
    return total;
}

/* What the rule lets go, as far as it is there. */
static unsigned due_of(const struct us_cache *c, struct us_queue *q, us_due_fn *due)
{
    unsigned n = due(c, q->ring), size = us_queue_size(q);

    return n < size ? n : size;
}

unsigned us_queue_age(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *q,
                      us_due_fn *due, bool try_only, us_drain_fn *drain)
{
    unsigned n;

    if (!q || !(try_only ? us_lock_try(f, us_queue_lock(q)) : us_lock_take(f, us_queue_lock(q))))
        return 0;
    n = due_of(c, q, due);

    void *buffer[n + 1];

    us_ring_take_oldest_c(q->ring, buffer, n, US_SEEN_COMMIT);
    us_queue_untouch(q);
    us_lock_drop(f, us_queue_lock(q));
    if (n == 0)
        return 0;
    us_stat_add(c, cpu, US_OBJECTS_MOVED, n);
    drain(c, f, cpu, buffer, n);
    return n;
}

void us_queue_move(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *from,
                   struct us_queue *to, us_drain_fn *drain)
{
    void *object;

    if (us_queue_size(from) > to->capacity)
        us_queue_flush(c, f, cpu, from, us_queue_size(from) - to->capacity, drain);
    while (us_ring_take_oldest_c(from->ring, &object, 1, US_SEEN_KEEP))
        us_ring_add_c(to->ring, &object, 1, US_SEEN_TOUCH);
}

void us_visit_queue(const struct us_visitor *v, enum us_stock_kind kind, const char *name,
                    const struct us_queue *q, us_touched_fn *touched)
{
    struct us_stock stock = {.kind = kind,
                             .name = name,
                             .cpu = -1,
                             .domain = (int)q->domain,
                             .node = (int)q->node,
                             .any_node = q->any_node};

    us_visit_ring(v, &stock, q->ring, touched);
}

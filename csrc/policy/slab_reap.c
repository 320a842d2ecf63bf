/* slab_reap.c - periodic reaping, flushing and shrinking under the policy `slab`.
 *
 * Every two seconds each CPU drains one foreign node's alien array, ages its own array and, every
 * four seconds of its node, the shared array and the free list. What was touched since the last
 * pass keeps everything and only loses its mark, so that what is idle empties geometrically within
 * a few passes and what is in use is left alone. No memory pressure is needed.
 *
 * As in the original a CPU goes through all caches before the next one does; their arrays are
 * closed together, with one fence (policy.h). A cache's first tick is one period after the cache's
 * creation, all CPUs' at once (the original skews them by CPU to spread the load, and begins after
 * one second). A node's first pass is staggered by the cache's address there; here by its number,
 * so that runs can be repeated: four seconds after creation plus as many as the number modulo four.
 */
#include "policy/slab.h"

#define NS 1000000000u

/* Instructions of the compiled functions: see slab.c. A tick's are shared out by estimate. */
enum { RUNS_TICK = 30, RUNS_REAP_ALIEN = 30, RUNS_REAP_NODE = 43, RUNS_DUE = 20, RUNS_FLUSH = 30 };

/* ---- ageing -----------------------------------------------------------------------------------
 */

/* A fifth of the capacity, or half of what is there when that is less. */
static unsigned due(const struct us_cache *c, const struct us_ring *ring)
{
    const unsigned size = us_ring_size(ring), fifth = (ring->capacity + 4) / 5;

    (void)c;
    us_runs(RUNS_DUE);
    if (us_slabp_touched(ring))
        return 0;
    return fifth > size ? (size + 1) / 2 : fifth;
}

/* An alien array that somebody works on is left for the next pass. */
static unsigned reap_alien(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    struct us_slabp *st = us_slabp_of(c);
    const unsigned nnodes = c->machine->nnodes, node = us_node_of_cpu(c->machine, cpu);
    struct us_slab *chain = NULL;
    struct us_queue *a;
    unsigned to_slabs = 0;

    us_runs(RUNS_REAP_ALIEN);
    if (nnodes < 2)
        return 0;
    us_writes(&st->rotor[cpu], sizeof(*st->rotor));
    a = us_slabp_alien(c, node, (node + 1 + st->rotor[cpu]) % nnodes);
    st->rotor[cpu] = (st->rotor[cpu] + 1) % (nnodes - 1);
    if (a)
        us_reads(a, sizeof(*a));
    if (!a || us_queue_size(a) == 0 || !us_lock_try(f, us_queue_lock(a)))
        return 0;
    us_slabp_drain_alien(c, f, cpu, a, &chain, &to_slabs);
    us_lock_drop(f, us_queue_lock(a));
    us_slabp_destroy_chain(c, f, cpu, chain);
    return to_slabs;
}

/* True once every node period; `now` is when this pass was due: the first one a CPU period after
 * the cache was made. */
static bool node_is_due(const struct us_cache *c, struct us_slabp_node *node, uint64_t now)
{
    if (node->next_reap == 0)
        node->next_reap =
            now - US_SLABP_CPU_PERIOD + US_SLABP_NODE_PERIOD + c->id % 4 * (uint64_t)NS;
    us_reads(&node->next_reap, sizeof(node->next_reap));
    if (now < node->next_reap)
        return false;
    us_writes(&node->next_reap, sizeof(node->next_reap));
    node->next_reap = now + US_SLABP_NODE_PERIOD;
    return true;
}

/* The ageing mark of the shared array: how many objects have to go. */
static unsigned due_of_shared(struct us_cache *c, struct us_slabp_node *node)
{
    unsigned n;

    us_reads(&node->shared, sizeof(node->shared));
    if (!node->shared)
        return 0;
    us_reads(node->shared, sizeof(*node->shared));
    n = due(c, node->shared->ring);
    us_queue_untouch(node->shared);
    return n;
}

static uint64_t due_of_free_list(const struct us_cache *c, struct us_slabp_node *node)
{
    const uint64_t num = c->geometry.objects;
    const bool touched = node->free_touched;

    us_writes(&node->free_touched, sizeof(node->free_touched));
    node->free_touched = false;
    return touched ? 0 : (node->free_limit + 5 * num - 1) / (5 * num);
}

static unsigned reap_node(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now)
{
    const unsigned n = us_node_of_cpu(c->machine, cpu);
    struct us_slabp_node *node = us_slabp_node_of(c, n);
    unsigned shared = 0, moved;
    uint64_t slabs = 0;

    us_runs(RUNS_REAP_NODE);
    if (!us_lock_take(f, &node->lock))
        return 0;
    if (node_is_due(c, node, now)) {
        shared = due_of_shared(c, node);
        slabs = due_of_free_list(c, node);
    }
    us_lock_drop(f, &node->lock);
    moved = shared ? us_slabp_drain_shared(c, f, cpu, n, shared) : 0;
    us_count_n(c, cpu, US_SLABP_REAPED, us_slabp_destroy_free(c, f, cpu, n, slabs, false));
    return moved;
}

bool us_slabp_tick_closes(const struct us_cache *c, unsigned cpu, uint64_t now)
{
    (void)now;
    return us_cpu_wants_visit(c, cpu);
}

void us_slabp_tick(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now)
{
    enum us_phase before = us_phase_set(US_PHASE_SECOND);
    uint64_t moved = reap_alien(c, f, cpu);

    us_phase_set(before);
    us_runs(RUNS_TICK);
    moved += us_cpu_age(c, f, cpu, due, false, us_slabp_drain);
    moved += reap_node(c, f, cpu, now);
    us_stat_add(c, cpu, US_EXPIRE_OBJECTS, moved);
}

uint64_t us_slabp_tick_period(const struct us_cache *c)
{
    (void)c;
    return US_SLABP_CPU_PERIOD;
}

/* ---- flush and shrink -------------------------------------------------------------------------
 */

static void flush_alien(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_queue *a,
                        bool try_only)
{
    struct us_slab *chain = NULL;
    unsigned to_slabs = 0;

    if (!(try_only ? us_lock_try(f, us_queue_lock(a)) : us_lock_take(f, us_queue_lock(a))))
        return;
    us_slabp_drain_alien(c, f, cpu, a, &chain, &to_slabs);
    us_lock_drop(f, us_queue_lock(a));
    us_slabp_destroy_chain(c, f, cpu, chain);
}

/* A node's alien arrays, then the shared arrays which those were drained into, its own among them:
 * so that flushing every node leaves no object in any array. */
static void flush_node(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    const unsigned nnodes = c->machine->nnodes, node = us_node_of_cpu(c->machine, cpu);
    unsigned of;

    for (of = 0; of < nnodes; of++) {
        struct us_queue *a = us_slabp_alien(c, node, of);

        us_runs(RUNS_FLUSH);
        if (a && us_queue_size(a))
            flush_alien(c, f, cpu, a, try_only);
        if (a || of == node)
            us_slabp_drain_shared(c, f, cpu, of, UINT32_MAX);
    }
}

void us_slabp_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    us_cpu_flush(c, f, cpu, try_only, US_SEEN_KEEP, us_slabp_drain);
    flush_node(c, f, cpu, try_only);
    us_stat_add(c, cpu, US_FLUSH, 1);
}

/* The node's arrays stay while it has a CPU. */
void us_slabp_cpu_offline(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    const unsigned node = us_node_of_cpu(c->machine, cpu);

    us_slabp_limit_free(c, f, node);
    us_cpu_flush(c, f, cpu, false, US_SEEN_KEEP, us_slabp_drain);
    if (us_node_online(c->machine, node) == 0)
        flush_node(c, f, cpu, false);
    us_stat_add(c, cpu, US_FLUSH, 1);
}

void us_slabp_cpu_online(struct us_cache *c, struct us_flight *f, unsigned cpu)
{
    us_slabp_limit_free(c, f, us_node_of_cpu(c->machine, cpu));
}

uint64_t us_slabp_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    const unsigned cpu = us_cpu_now(c->machine);
    const uint64_t bytes = (uint64_t)c->machine->page_size << c->geometry.order;

    if (!try_only)
        us_slabp_check_deferred(c, f, node);
    return bytes * us_slabp_destroy_free(c, f, cpu, node, UINT64_MAX, try_only);
}

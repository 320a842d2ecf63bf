/* unified_queues.c - sizes and life of the queues of the Unified policy.
 *
 * Sizes follow the posted rules: a CPU queue is rounded up to cache lines and uses the slack; a
 * domain's alien queues and shared queue lie in one block that is rounded up to a general cache or
 * to pages, the slack becoming shared queue. Here each queue is its own block of metadata with a
 * power-of-two ring; the capacities are those of the posted layout, and forms of the past account
 * what that took.
 */
#include <string.h>

#include "policy/unified.h"

#define POSTED_CPU_HEADER   24 /* bytes of the posted per-CPU struct before its entries */
#define POSTED_QUEUE_HEADER 16 /* bytes of the posted queue header */

static uint32_t round_up(uint32_t x, uint32_t to)
{
    return (x + to - 1) / to * to;
}

uint32_t us_unified_real_capacity(uint32_t queue)
{
    return (round_up(queue * 8 + POSTED_CPU_HEADER, US_LINE) - POSTED_CPU_HEADER) / 8;
}

static unsigned log2_ceil(uint64_t x)
{
    return x <= 1 ? 0 : us_fls(x - 1);
}

static bool is_lowmem(const struct us_cache *c)
{
    return (c->flags & US_LOWMEM) && !us_unified_form_of(c)->no_lowmem;
}

uint32_t us_unified_rule_queue(const struct us_cache *c)
{
    const size_t size = c->geometry.stride;

    if (is_lowmem(c))
        return 5;
    if (size > 4096)
        return 8;
    if (size > 1024)
        return 24;
    return size > 256 ? 54 : 120;
}

static unsigned alien_shift_of(uint32_t entries)
{
    return log2_ceil(round_up(entries * 8 + POSTED_QUEUE_HEADER, US_LINE));
}

/* Few nodes: alien queues behave like shared ones; many: space and latency matter more. */
static unsigned default_alien_shift(const struct us_machine *m, uint32_t queue)
{
    const unsigned by_queue = alien_shift_of(queue);
    unsigned limit = log2_ceil(US_LINE);

    if (m->nnodes <= 4)
        limit = m->page_shift - 1;
    else if (m->nnodes <= 32)
        limit = log2_ceil(US_LINE) + 2;
    return by_queue < limit ? by_queue : limit;
}

static bool second_level_allowed(const struct us_cache *c)
{
    return us_unified_form_of(c)->second_level && c->machine->ncpus > 1 &&
           c->geometry.stride < c->machine->page_size && !is_lowmem(c);
}

static void plan_budget(struct us_cache *c, struct us_unified *st)
{
    const uint64_t bytes = (uint64_t)us_unified_setting(c, US_UNIFIED_T_QUEUE_BUDGET);
    const uint64_t cpus = (uint64_t)c->machine->ncpus * st->cpu_capacity;
    uint64_t objects = bytes / c->geometry.stride;

    st->budget_objects = UINT32_MAX;
    if (bytes == 0)
        return;
    objects = objects > cpus ? (objects - cpus) / c->machine->ndomains : 0;
    st->budget_objects = objects < UINT32_MAX ? (uint32_t)objects : UINT32_MAX - 1;
}

/* Capacities of a domain's block as posted: [alien N-1 | ... | alien 1 | shared]. */
static void plan_block(const struct us_cache *c, struct us_unified *st)
{
    const struct us_machine *m = c->machine;
    size_t alien_bytes = st->alien_shift ? (size_t)(m->nnodes - 1) << st->alien_shift : 0;
    size_t total = alien_bytes + POSTED_QUEUE_HEADER + 8ull * st->shared_desired, rounded, entries;

    rounded = total <= m->page_size / 2 ? us_meta_rounded(c->slabs->memory, total)
                                        : (size_t)1 << log2_ceil(total);
    if (rounded > m->page_size / 2 && rounded < m->page_size)
        rounded = m->page_size;
    entries = (rounded - alien_bytes - POSTED_QUEUE_HEADER) / 8;
    st->shared_capacity = entries < US_RING_MAX ? (uint32_t)entries : US_RING_MAX;
    st->alien_capacity =
        st->alien_shift ? (uint32_t)(((size_t)1 << st->alien_shift) - POSTED_QUEUE_HEADER) / 8 : 0;
}

static int64_t rule_min_partial(const struct us_cache *c)
{
    const int64_t log = (int64_t)us_fls(c->geometry.stride) - 1;

    if (is_lowmem(c))
        return us_unified_form_of(c)->clamps_lowmem ? 5 : 0;
    return log < 5 ? 5 : log > 10 ? 10 : log;
}

/* The posted store of batch_size took nothing below the queue's size. */
bool us_unified_batch_fits(const struct us_cache *c, int64_t batch, uint32_t queue)
{
    return us_unified_form_of(c)->posted_batch ? batch >= queue : batch <= queue;
}

void us_unified_plan(struct us_cache *c, struct us_unified *st)
{
    const int64_t *t = c->tunable;

    if (t[US_UNIFIED_T_MIN_PARTIAL] < 0)
        c->tunable[US_UNIFIED_T_MIN_PARTIAL] = rule_min_partial(c);
    st->queue = us_unified_rule_queue(c);
    if (t[US_UNIFIED_T_CPU_QUEUE])
        st->queue = (uint32_t)t[US_UNIFIED_T_CPU_QUEUE];
    else if (st->grown_queue > st->queue)
        st->queue = st->grown_queue;
    st->batch = (st->queue + 1) / 2;
    if (t[US_UNIFIED_T_BATCH] && us_unified_batch_fits(c, t[US_UNIFIED_T_BATCH], st->queue))
        st->batch = (uint32_t)t[US_UNIFIED_T_BATCH];
    st->cpu_capacity = us_unified_real_capacity(st->queue);
    st->shared_desired = 0;
    st->shared_capacity = 0;
    st->alien_shift = 0;
    st->alien_capacity = 0;
    plan_budget(c, st);
    if (!second_level_allowed(c))
        return;
    st->shared_desired = 10 * st->batch;
    if (t[US_UNIFIED_T_SHARED_QUEUE] >= 0)
        st->shared_desired = (uint32_t)t[US_UNIFIED_T_SHARED_QUEUE];
    else if (st->grown_shared > st->shared_desired)
        st->shared_desired = st->grown_shared;
    if (st->shared_desired > US_UNIFIED_QUEUE_MAX)
        st->shared_desired = US_UNIFIED_QUEUE_MAX;
    if (st->shared_desired == 0)
        return;
    if (c->machine->nnodes > 1 && t[US_UNIFIED_T_ALIEN_QUEUE] != 0)
        st->alien_shift = t[US_UNIFIED_T_ALIEN_QUEUE] < 0
                              ? default_alien_shift(c->machine, st->queue)
                              : alien_shift_of((uint32_t)t[US_UNIFIED_T_ALIEN_QUEUE]);
    plan_block(c, st);
}

/* ---- rings
 * --------------------------------------------------------------------------------------- */

/* Capacities use all the slack of the posted blocks, so header and entries add up to these. */
static size_t account_of(const struct us_cache *c, size_t header, uint32_t capacity)
{
    return us_unified_form_of(c)->posted_accounts ? header + capacity * sizeof(void *) : 0;
}

struct us_ring_plan us_unified_ring_plan(const struct us_cache *c)
{
    us_reads(&us_unified_of(c)->cpu_capacity, sizeof(uint32_t));
    const uint32_t capacity = us_unified_of(c)->cpu_capacity;

    return (struct us_ring_plan){.capacity = capacity,
                                 .any_node = us_unified_form_of(c)->any_node,
                                 .account = account_of(c, POSTED_CPU_HEADER, capacity)};
}

static struct us_queue *new_queue(struct us_cache *c, enum us_lock_class klass, unsigned domain,
                                  unsigned node, uint32_t capacity)
{
    struct us_queue *q = us_queue_new(c, klass, domain, node, capacity,
                                      account_of(c, POSTED_QUEUE_HEADER, capacity));

    if (q)
        q->any_node = us_unified_form_of(c)->fallback_queued;
    return q;
}

static unsigned shards_of(const struct us_cache *c, unsigned d)
{
    const unsigned cpus = c->machine->domain[d].ncpus;
    const unsigned most = (unsigned)us_unified_setting(c, US_UNIFIED_T_SHARD_CPUS);

    return most ? (cpus + most - 1) / most : 1;
}

/* The shards of a domain share its capacity; each holds two batches at least. */
static bool make_shards(struct us_cache *c, unsigned d)
{
    const struct us_unified *st = us_unified_of(c);
    struct us_unified_domain *domain = &st->domain[d];
    const unsigned shards = shards_of(c, d);
    uint32_t capacity = st->shared_capacity / shards;

    if (shards > 1 && capacity < 2 * st->batch)
        capacity = 2 * st->batch;
    for (unsigned i = 0; i < shards; i++) {
        struct us_queue *q = new_queue(c, US_LOCK_SHARED, d, c->machine->domain[d].node, capacity);

        if (!q)
            return false;
        q->shards = shards;
        if (domain->shared) { /* behind the first */
            q->next = domain->shared->next;
            domain->shared->next = q;
        }
        domain->shared = domain->shared ? domain->shared : q;
    }
    return true;
}

/* CPUs that stand together in the domain go to one shard. */
static void point_cpus(struct us_cache *c, unsigned d)
{
    const struct us_unified *st = us_unified_of(c);
    const unsigned cpus = c->machine->domain[d].ncpus;
    struct us_queue *q = st->domain[d].shared;

    for (unsigned i = 0, shard = 0; i < cpus; i++) {
        if (q && i * q->shards / cpus != shard) {
            shard++;
            q = q->next;
        }
        st->shared_of[us_domain_cpu(c->machine, d, i)] = q;
    }
}

void us_unified_point_cpus(struct us_cache *c)
{
    for (unsigned d = 0; d < c->machine->ndomains; d++)
        point_cpus(c, d);
}

static bool make_domain(struct us_cache *c, unsigned d)
{
    const struct us_unified *st = us_unified_of(c);
    const struct us_machine *m = c->machine;
    struct us_unified_domain *domain = &st->domain[d];
    const unsigned own = m->domain[d].node;
    unsigned n;

    if (!make_shards(c, d))
        return false;
    if (!st->alien_capacity)
        return true;
    domain->alien = us_meta_alloc(c->slabs->memory, m->nnodes * sizeof(*domain->alien));
    if (!domain->alien)
        return false;
    for (n = 0; n < m->nnodes; n++) {
        if (n == own)
            continue;
        domain->alien[n] = new_queue(c, US_LOCK_ALIEN, d, n, st->alien_capacity);
        if (!domain->alien[n])
            return false;
    }
    return true;
}

bool us_unified_make_queues(struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);
    unsigned d;

    for (d = 0; st->shared_capacity && d < c->machine->ndomains; d++)
        if (!make_domain(c, d))
            return false;
    us_unified_point_cpus(c);
    return true;
}

static void drop_queue(struct us_cache *c, struct us_flight *f, struct us_queue **slot)
{
    struct us_queue *q = *slot;

    if (!q)
        return;
    if (f)
        us_queue_flush(c, f, us_cpu_now(c->machine), q, UINT32_MAX, us_unified_drain);
    us_queue_free(c, q);
    *slot = NULL;
}

static void drop_shards(struct us_cache *c, struct us_flight *f, struct us_queue **slot)
{
    struct us_queue *q = *slot;

    while (q) {
        struct us_queue *next = q->next == *slot ? NULL : q->next;

        drop_queue(c, f, &q);
        q = next;
    }
    *slot = NULL;
}

void us_unified_drop_queues(struct us_cache *c, struct us_flight *f)
{
    struct us_unified *st = us_unified_of(c);
    const struct us_machine *m = c->machine;
    unsigned d, n;

    for (d = 0; st->domain && d < m->ndomains; d++) {
        struct us_unified_domain *domain = &st->domain[d];

        drop_shards(c, f, &domain->shared);
        for (n = 0; domain->alien && n < m->nnodes; n++)
            drop_queue(c, f, &domain->alien[n]);
        if (domain->alien)
            us_meta_free(c->slabs->memory, domain->alien, m->nnodes * sizeof(*domain->alien));
        domain->alien = NULL;
    }
}

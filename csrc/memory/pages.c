/* pages.c - handing out pages: nodes in turn, pressure, retries, injected failures.
 *
 * A request first tries its node, then (without THISNODE) the others, nearest number first. When
 * all refuse, the embedder is asked to give something back and the request tries again, a bounded
 * number of times. Ordinary requests may use a node's last page; one that has a smaller order to
 * fall back to (NORETRY) leaves `min` pages alone. When a request leaves its node below `low`, the
 * embedder is told, and told again each time an eighth of the gap between the marks has gone.
 */
#include "memory/internal.h"

#define RETRIES 8

/* ---- injected failures --------------------------------------------------------------------- */

bool us_injected(struct us_memory *mem, enum us_fail_kind kind)
{
    struct us_injection *in = &mem->fail[kind];
    uint64_t nth = us_load(&in->nth);
    uint32_t rate;

    us_reads(&in->active, sizeof(in->active));
    us_reads(&in->nth, sizeof(in->nth));
    if (US_LIKELY(!atomic_load_explicit(&in->active, memory_order_relaxed)))
        return false;
    while (nth > 0 && !atomic_compare_exchange_weak_explicit(
                          &in->nth, &nth, nth - 1, memory_order_relaxed, memory_order_relaxed))
        ;
    if (nth != 1) {
        rate = atomic_load_explicit(&in->rate, memory_order_relaxed);
        if (nth > 1 || rate == 0)
            return false;
        if (rate != UINT32_MAX && (uint32_t)(us_random(mem->machine) >> 32) >= rate)
            return false;
    }
    us_bump(&in->failed, 1);
    return true;
}

void us_memory_fail(struct us_memory *mem, enum us_fail_kind kind, uint32_t rate, uint64_t nth)
{
    struct us_injection *in = &mem->fail[kind];

    /* With nth, that request alone. */
    atomic_store_explicit(&in->rate, nth > 0 ? 0 : rate, memory_order_relaxed);
    atomic_store_explicit(&in->nth, nth, memory_order_relaxed);
    atomic_store_explicit(&in->active, rate > 0 || nth > 0, memory_order_relaxed);
}

uint64_t us_memory_failed(const struct us_memory *mem, enum us_fail_kind kind)
{
    return us_load(&mem->fail[kind].failed);
}

/* ---- one node ------------------------------------------------------------------------------ */

/* Pages handed out have left the purge generations; returns how many were not resident before. */
static uint64_t hand_out(struct us_memory *mem, struct us_page_node *node, uint64_t page,
                         uint64_t n)
{
    uint64_t was_resident = 0;

    us_runs(30);
    us_writes(node->ndirty, sizeof(node->ndirty));
    for (unsigned g = 0; g < US_NGENERATIONS; g++) {
        uint64_t left = node->ndirty[g] ? us_bitset_clear_range(&node->dirty[g], page, n) : 0;

        node->ndirty[g] -= left;
        was_resident += left;
    }
    us_add_locked(&node->used, n);
    us_add_locked(&node->allocs, 1);
    if (page + n > us_load(&node->high_water))
        atomic_store_explicit(&node->high_water, page + n, memory_order_relaxed);
    us_peak_add(&mem->reserved, n);
    if (n > was_resident)
        us_peak_add(&mem->resident, n - was_resident);
    return n - was_resident;
}

static void take_back(struct us_memory *mem, struct us_page_node *node, uint64_t page,
                      unsigned order)
{
    uint64_t n = 1ull << order;

    us_runs(20);
    us_writes(node->ndirty, sizeof(node->ndirty));
    us_buddy_free(&node->span.buddy, page, order);
    node->ndirty[US_YOUNG] += us_bitset_set_range(&node->dirty[US_YOUNG], page, n);
    us_add_locked(&node->used, 0 - n);
    us_add_locked(&node->frees, 1);
    us_peak_sub(&mem->reserved, n);
}

static uint64_t page_in_node(const struct us_page_node *node, const void *block)
{
    return (uint64_t)((const char *)block - node->span.base) >> node->span.page_shift;
}

void us_take_strays(struct us_memory *mem, struct us_page_node *node)
{
    struct us_stray *stray = atomic_exchange_explicit(&node->strays, NULL, memory_order_acquire);

    while (stray) {
        struct us_stray *next = stray->next;

        take_back(mem, node, page_in_node(node, stray), stray->order);
        stray = next;
    }
}

static bool has_strays(struct us_page_node *node)
{
    us_reads(&node->strays, sizeof(node->strays));
    return atomic_load_explicit(&node->strays, memory_order_relaxed) != NULL;
}

void us_memory_settle(struct us_memory *mem, struct us_flight *f)
{
    for (unsigned n = 0; n < mem->machine->nnodes; n++) {
        struct us_page_node *node = &mem->node[n];

        if (!has_strays(node) || !us_lock_take(f, &node->lock))
            continue;
        us_take_strays(mem, node);
        us_lock_drop(f, &node->lock);
    }
}

/* A block that leaves `spare` pages free, or NULL. */
static void *take_from(struct us_memory *mem, struct us_flight *f, struct us_page_node *node,
                       unsigned order, uint64_t spare)
{
    uint64_t n = 1ull << order, page = US_NO_BIT, faults = 0;

    us_runs(30);
    if (us_node_free(node) < n + spare && !has_strays(node))
        return NULL;
    if (!us_lock_take(f, &node->lock))
        return NULL;
    if (US_UNLIKELY(has_strays(node)))
        us_take_strays(mem, node);
    if (us_node_free(node) >= n + spare)
        page = us_span_alloc(&node->span, order);
    if (page != US_NO_BIT)
        faults = hand_out(mem, node, page, n);
    us_lock_drop(f, &node->lock);
    while (faults-- > 0) /* those to come when the pages are used */
        us_faults();
    return page == US_NO_BIT ? NULL : node->span.base + (page << node->span.page_shift);
}

/* ---- nodes in turn ------------------------------------------------------------------------- */

unsigned us_node_near(unsigned node, unsigned i, unsigned nnodes)
{
    unsigned above = nnodes - 1 - node, below = node;
    unsigned both = above < below ? above : below;

    if (i <= 2 * both)
        return i % 2 ? node + (i + 1) / 2 : node - i / 2;
    return above > below ? node + (i - both) : node - (i - both);
}

static void *take_near(struct us_memory *mem, struct us_flight *f, unsigned order, unsigned node,
                       unsigned flags)
{
    unsigned nnodes = mem->machine->nnodes;
    unsigned ntries = flags & US_PAGES_THISNODE ? 1 : nnodes;

    for (unsigned i = 0; i < ntries; i++) {
        struct us_page_node *from = &mem->node[us_node_near(node, i, nnodes)];
        void *block = take_from(mem, f, from, order, flags & US_PAGES_NORETRY ? from->min : 0);

        if (block == NULL)
            continue;
        if (i > 0)
            us_bump(&mem->node[node].fallbacks, 1);
        return block;
    }
    return NULL;
}

/* Asks the embedder to give something back, this node first. */
static bool relieve(struct us_memory *mem, struct us_flight *f, unsigned node, unsigned flags)
{
    unsigned nnodes = mem->machine->nnodes;
    unsigned ntries = flags & US_PAGES_THISNODE ? 1 : nnodes;
    enum us_phase before;
    bool given = false;

    if (mem->pressure == NULL || f->nested)
        return false;
    before = us_phase_set(US_PHASE_SLOW);
    for (unsigned i = 0; i < ntries && !given; i++)
        given = mem->pressure(mem->context, f, us_node_near(node, i, nnodes), US_PRESSURE_FAIL);
    us_phase_set(before);
    return given;
}

/* Tells the embedder that a node has little left; one call at a time for each node. */
static void tell_low(struct us_memory *mem, struct us_flight *f, unsigned n)
{
    struct us_page_node *node = &mem->node[n];
    uint64_t left = us_node_free(node), told = us_load(&node->low_told);
    uint64_t step = (node->low - node->min) / 8;
    enum us_phase before;

    us_runs(10);
    us_reads(&node->low_told, sizeof(node->low_told));
    if (US_LIKELY(left >= node->low)) {
        if (told != UINT64_MAX)
            atomic_store_explicit(&node->low_told, UINT64_MAX, memory_order_relaxed);
        return;
    }
    if (mem->pressure == NULL || f->nested)
        return;
    if (told != UINT64_MAX && left + (step ? step : 1) > told)
        return;
    if (atomic_exchange_explicit(&node->low_busy, 1, memory_order_acquire))
        return;
    before = us_phase_set(US_PHASE_SLOW);
    mem->pressure(mem->context, f, n, US_PRESSURE_LOW);
    us_phase_set(before);
    left = us_node_free(node);
    atomic_store_explicit(&node->low_told, left < node->low ? left : UINT64_MAX,
                          memory_order_relaxed);
    atomic_store_explicit(&node->low_busy, 0, memory_order_release);
}

static void *pages_alloc(struct us_memory *mem, struct us_flight *f, unsigned order, unsigned node,
                         unsigned flags)
{
    void *block = NULL;

    us_runs(30);
    us_reads(&mem->range, sizeof(mem->range));
    us_reads(&mem->node, sizeof(mem->node));
    if (order <= US_MAX_ORDER && !us_injected(mem, US_FAIL_PAGES)) {
        block = take_near(mem, f, order, node, flags);
        for (unsigned i = 0; block == NULL && i < RETRIES; i++) {
            if (flags & (US_PAGES_NORETRY | US_PAGES_NOWAIT) || !relieve(mem, f, node, flags))
                break;
            block = take_near(mem, f, order, node, flags);
        }
    }
    if (block == NULL) {
        us_bump(&mem->node[node].failures, 1);
        return NULL;
    }
    if (!(flags & US_PAGES_NOWAIT))
        tell_low(mem, f, us_node_of(&mem->range, block));
    return block;
}

void *us_pages_alloc(struct us_memory *mem, struct us_flight *f, unsigned order, unsigned node,
                     unsigned flags)
{
    const enum us_phase before = us_phase_set(US_PHASE_PROVIDER);
    void *block;

    us_provides(true);
    block = pages_alloc(mem, f, order, node, flags);
    us_phase_set(before);
    return block;
}

static void pages_free(struct us_memory *mem, struct us_flight *f, void *block, unsigned order)
{
    struct us_page_node *node = &mem->node[us_node_of(&mem->range, block)];

    us_reads(&mem->range, sizeof(mem->range));
    us_reads(&mem->node, sizeof(mem->node));
    if (US_LIKELY(us_lock_take(f, &node->lock))) {
        take_back(mem, node, page_in_node(node, block), order);
        us_lock_drop(f, &node->lock);
        return;
    }
    struct us_stray *stray = block;
    stray->order = order;
    stray->next = atomic_load_explicit(&node->strays, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&node->strays, &stray->next, stray,
                                                  memory_order_release, memory_order_relaxed))
        ;
}

void us_pages_free(struct us_memory *mem, struct us_flight *f, void *block, unsigned order)
{
    const enum us_phase before = us_phase_set(US_PHASE_PROVIDER);

    us_provides(false);
    pages_free(mem, f, block, order);
    us_phase_set(before);
}

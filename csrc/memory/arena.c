/* arena.c - the address range: reservation, node ranges, budgets and watermarks, accounts.
 *
 * The range is reserved without access and cut into one power of two of bytes for each node. A node
 * hands out only the first pages of its range, as many as its share of the budget, so that a
 * machine short of memory fragments as a real one does. Pages are made accessible in steps as the
 * highest page in use rises; what was once accessible stays so, and goes back by purging alone.
 */
#include "memory/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RANGE (64ull << 30)

void us_memory_error(struct us_error *error, enum us_status status, const char *format, ...)
{
    va_list args;

    if (error == NULL)
        return;
    memset(error, 0, sizeof *error);
    error->status = status;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
}

/* ---- spans --------------------------------------------------------------------------------- */

void us_span_init(struct us_span *s, char *base, unsigned page_shift, uint64_t npages,
                  uint64_t *words)
{
    us_buddy_init(&s->buddy, npages, words);
    s->base = base;
    s->page_shift = page_shift;
    s->committed = 0;
}

/* Makes pages up to `end` accessible, in steps that grow with what is in use. */
static bool commit_to(struct us_span *s, uint64_t end)
{
    uint64_t target = end + end / 8;

    target = (target + US_MAX_BLOCK - 1) & ~(US_MAX_BLOCK - 1);
    if (target > s->buddy.npages)
        target = s->buddy.npages;
    while (!us_os_commit(s->base + (s->committed << s->page_shift),
                         (size_t)((target - s->committed) << s->page_shift))) {
        if (target == end)
            return false;
        target = end;
    }
    s->committed = target;
    return true;
}

static bool grow(struct us_span *s)
{
    uint64_t end = s->buddy.frontier + US_MAX_BLOCK;

    if (s->buddy.frontier >= s->buddy.npages)
        return false;
    if (end > s->buddy.npages)
        end = s->buddy.npages;
    if (end > s->committed && !commit_to(s, end))
        return false;
    return us_buddy_grow(&s->buddy);
}

uint64_t us_span_alloc(struct us_span *s, unsigned order)
{
    uint64_t page;

    while ((page = us_buddy_alloc(&s->buddy, order)) == US_NO_BIT)
        if (!grow(s))
            return US_NO_BIT;
    return page;
}

/* ---- budgets ------------------------------------------------------------------------------- */

static uint64_t square_root(uint64_t x)
{
    uint64_t root = 0;

    for (uint64_t bit = 1ull << 31; bit > 0; bit >>= 1)
        if ((root | bit) * (root | bit) <= x)
            root |= bit;
    return root;
}

static uint64_t clamp(uint64_t x, uint64_t low, uint64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* The kernel's formula over the whole budget, each node its share; a small budget keeps at most an
 * eighth of itself back. */
static void set_watermarks(struct us_page_node *node, uint64_t budget, uint64_t total_pages,
                           unsigned page_shift)
{
    uint64_t min_free_kb = clamp(square_root((budget >> 10) * 16), 128, 262144);
    uint64_t min_free = (min_free_kb << 10) >> page_shift;
    uint64_t min = (uint64_t)((unsigned __int128)min_free * node->managed / total_pages);
    uint64_t gap;

    if (min > node->managed / 8)
        min = node->managed / 8;
    gap = min / 4 > node->managed / 1000 ? min / 4 : node->managed / 1000;
    node->min = min;
    node->low = min + gap;
    node->high = node->low + gap;
}

/* ---- the range ----------------------------------------------------------------------------- */

static uint64_t power_below(uint64_t x)
{
    return 1ull << (63 - __builtin_clzll(x));
}

static uint64_t power_above(uint64_t x)
{
    return x <= 1 ? 1 : power_below(x - 1) << 1;
}

/* Reserves nnodes ranges of node_bytes, aligned to the largest block. */
static bool reserve(struct us_memory *mem, uint64_t node_bytes)
{
    uint64_t block = US_MAX_BLOCK << mem->range.page_shift;
    uint64_t length = node_bytes * mem->machine->nnodes;

    mem->reservation_bytes = (size_t)(length + block);
    mem->reservation = us_os_reserve(mem->reservation_bytes, false, true);
    if (mem->reservation == NULL)
        return false;
    mem->range.base = ((uint64_t)(uintptr_t)mem->reservation + block - 1) & ~(block - 1);
    mem->range.length = length;
    mem->range.node_shift = (unsigned)__builtin_ctzll(node_bytes);
    mem->range.npages = length >> mem->range.page_shift;
    return true;
}

/* Metadata will want an eighth of the range and page arrays a twentieth: where the address space is
 * limited, a range that leaves no room for them is of no use. */
static bool room_for_metadata(const struct us_memory *mem)
{
    size_t bytes = (size_t)(mem->range.length / 4);
    void *probe = us_os_reserve(bytes, true, false);

    if (probe)
        us_os_release(probe, bytes);
    return probe != NULL;
}

static bool reserve_default(struct us_memory *mem, uint64_t smallest)
{
    unsigned nnodes = mem->machine->nnodes;
    uint64_t share = (mem->options.budget + nnodes - 1) / nnodes;
    uint64_t node_bytes = power_below(DEFAULT_RANGE / nnodes > 0 ? DEFAULT_RANGE / nnodes : 1);

    if (node_bytes < smallest)
        node_bytes = smallest;
    if (node_bytes < share)
        node_bytes = power_above(share);
    for (; node_bytes >= smallest; node_bytes >>= 1) {
        if (!reserve(mem, node_bytes))
            continue;
        if (room_for_metadata(mem))
            return true;
        us_os_release(mem->reservation, mem->reservation_bytes);
        mem->reservation = NULL;
    }
    return false;
}

static bool reserve_range(struct us_memory *mem, struct us_error *error)
{
    unsigned nnodes = mem->machine->nnodes;
    uint64_t wanted = mem->options.address_range;
    uint64_t smallest = US_MAX_BLOCK << mem->range.page_shift;

    if (wanted == 0) {
        if (reserve_default(mem, smallest))
            return true;
        us_memory_error(
            error, US_ENOMEM,
            "the system refused to reserve %llu bytes of address space, the least for %u"
            " nodes: raise the limit on virtual memory (ulimit -v)",
            (unsigned long long)smallest * nnodes, nnodes);
        return false;
    }
    if (wanted / nnodes < smallest) {
        us_memory_error(
            error, US_EINVAL,
            "address range of %llu bytes is too small: %u nodes need at least %llu bytes",
            (unsigned long long)wanted, nnodes, (unsigned long long)smallest * nnodes);
        return false;
    }
    if (mem->options.budget / nnodes > power_below(wanted / nnodes)) {
        us_memory_error(
            error, US_EINVAL,
            "memory budget of %llu bytes does not fit the address range of %llu bytes, of"
            " which %u nodes can use %llu each: give a larger address range or none",
            (unsigned long long)mem->options.budget, (unsigned long long)wanted, nnodes,
            (unsigned long long)power_below(wanted / nnodes));
        return false;
    }
    if (reserve(mem, power_below(wanted / nnodes)))
        return true;
    us_memory_error(error, US_ENOMEM,
                    "the system refused to reserve %llu bytes of address space: give a smaller"
                    " address range, or raise the limit on virtual memory (ulimit -v)",
                    (unsigned long long)wanted);
    return false;
}

/* ---- nodes --------------------------------------------------------------------------------- */

static size_t node_words(uint64_t npages)
{
    /* Lines apart, so that nodes do not share one. */
    size_t words = us_buddy_words(npages) + US_NGENERATIONS * us_bitset_words(npages);

    return (words + 7) & ~(size_t)7;
}

static void init_node(struct us_memory *mem, unsigned n, uint64_t managed, uint64_t *words)
{
    struct us_page_node *node = &mem->node[n];
    char *base = (char *)(uintptr_t)us_node_base(&mem->range, n);

    us_lock_init(&node->lock, US_LOCK_PAGES);
    us_span_init(&node->span, base, mem->range.page_shift, managed, words);
    words += us_buddy_words(managed);
    for (unsigned g = 0; g < US_NGENERATIONS; g++) {
        us_bitset_init(&node->dirty[g], managed, words);
        words += us_bitset_words(managed);
    }
    node->managed = managed;
    atomic_init(&node->low_told, UINT64_MAX);
    set_watermarks(node, mem->budget, managed * mem->machine->nnodes, mem->range.page_shift);
    if (mem->machine->nnodes > 1 && mem->machine->system_topology)
        us_os_bind(base, (size_t)us_node_length(&mem->range), n);
}

static bool init_nodes(struct us_memory *mem, struct us_error *error)
{
    unsigned nnodes = mem->machine->nnodes;
    uint64_t most = us_node_length(&mem->range) >> mem->range.page_shift;
    uint64_t managed = (mem->options.budget / nnodes) >> mem->range.page_shift;

    if (mem->options.budget == 0 || managed > most)
        managed = most;
    if (managed == 0) {
        us_memory_error(error, US_EINVAL,
                        "memory budget of %llu bytes leaves no page for each of %u nodes: give at"
                        " least %llu bytes",
                        (unsigned long long)mem->options.budget, nnodes,
                        (unsigned long long)nnodes << mem->range.page_shift);
        return false;
    }
    mem->budget = (managed * nnodes) << mem->range.page_shift;
    mem->words_bytes = nnodes * node_words(managed) * sizeof(uint64_t);
    mem->words = us_os_reserve(mem->words_bytes, true, false);
    mem->node = aligned_alloc(US_LINE, nnodes * sizeof *mem->node);
    if (mem->words == NULL || mem->node == NULL) {
        us_memory_error(error, US_ENOMEM, "the system refused %zu bytes for the page provider",
                        mem->words_bytes + nnodes * sizeof *mem->node);
        return false;
    }
    memset(mem->node, 0, nnodes * sizeof *mem->node);
    if (!us_maps(mem->machine, us_page_address(&mem->range, 0), mem->range.length,
                 mem->range.node_shift)) {
        us_memory_error(error, US_EINVAL, "an address range of %llu bytes is too long to model",
                        (unsigned long long)mem->range.length);
        return false;
    }
    for (unsigned n = 0; n < nnodes; n++)
        init_node(mem, n, managed, mem->words + n * node_words(managed));
    return true;
}

struct us_memory *us_memory_create(struct us_machine *m, const struct us_memory_options *options,
                                   struct us_error *error)
{
    struct us_memory *mem = aligned_alloc(US_LINE, (sizeof *mem + US_LINE - 1) / US_LINE * US_LINE);

    if (mem == NULL) {
        us_memory_error(error, US_ENOMEM, "the system refused %zu bytes", sizeof *mem);
        return NULL;
    }
    memset(mem, 0, sizeof *mem);
    mem->machine = m;
    mem->options = *options;
    mem->range.page_shift = m->page_shift;
    if (reserve_range(mem, error) && init_nodes(mem, error) && us_meta_init(mem, error))
        return mem;
    us_memory_destroy(mem);
    return NULL;
}

void us_memory_destroy(struct us_memory *mem)
{
    unsigned narrays = atomic_load_explicit(&mem->narrays, memory_order_relaxed);

    us_meta_fini(mem);
    for (unsigned i = 0; i < narrays; i++)
        us_os_release(mem->array[i].base, mem->array[i].total);
    for (unsigned n = 0; mem->node && n < mem->machine->nnodes; n++)
        us_lock_retire(mem->machine, &mem->node[n].lock);
    if (mem->words)
        us_os_release(mem->words, mem->words_bytes);
    if (mem->reservation)
        us_os_release(mem->reservation, mem->reservation_bytes);
    free(mem->node);
    free(mem);
}

void us_memory_on_pressure(struct us_memory *mem, us_pressure_fn *fn, void *context)
{
    mem->context = context;
    mem->pressure = fn;
}

/* ---- accounts ------------------------------------------------------------------------------ */

void us_memory_account(struct us_memory *mem, struct us_memory_account *account)
{
    unsigned shift = mem->range.page_shift;

    account->reserved = us_load(&mem->reserved.now) << shift;
    account->reserved_peak = us_load(&mem->reserved.peak) << shift;
    account->metadata = us_load(&mem->metadata.now);
    account->metadata_peak = us_load(&mem->metadata.peak);
    account->resident = us_load(&mem->resident.now) << shift;
    account->resident_peak = us_load(&mem->resident.peak) << shift;
    account->address_range = mem->range.length;
    account->budget = mem->budget;
}

void us_memory_locks(const struct us_memory *mem, us_lock_fn *each, void *context)
{
    for (unsigned n = 0; n < mem->machine->nnodes; n++)
        each(context, &mem->node[n].lock);
    each(context, &mem->meta.lock);
}

void us_memory_reset_peaks(struct us_memory *mem)
{
    struct us_peak *peaks[] = {&mem->reserved, &mem->resident, &mem->metadata};

    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        atomic_store_explicit(&peaks[i]->peak, us_load(&peaks[i]->now), memory_order_relaxed);
}

void us_memory_node(struct us_memory *mem, unsigned node, struct us_node_memory *out)
{
    const struct us_page_node *n = &mem->node[node];

    out->managed = n->managed;
    out->free = us_node_free(n);
    out->min = n->min;
    out->low = n->low;
    out->high = n->high;
    for (unsigned order = 0; order < US_NORDERS; order++)
        out->free_blocks[order] = us_load(&n->span.buddy.count[order]);
    out->allocs = us_load(&n->allocs);
    out->frees = us_load(&n->frees);
    out->fallbacks = us_load(&n->fallbacks);
    out->failures = us_load(&n->failures);
}

uint64_t us_memory_high_water(const struct us_memory *mem, unsigned node)
{
    return us_load(&mem->node[node].high_water);
}

/* The node's lock is held. */
static const char *check_node(const struct us_page_node *node)
{
    const struct us_buddy *b = &node->span.buddy;
    const char *wrong = us_buddy_check(b);

    if (wrong)
        return wrong;
    if (us_buddy_free_pages(b) != us_node_free(node))
        return "free blocks do not add up to the free pages";
    for (unsigned g = 0; g < US_NGENERATIONS; g++) {
        const struct us_bitset *dirty = &node->dirty[g];
        uint64_t members = 0;

        for (uint64_t page = us_bitset_first(dirty); page != US_NO_BIT;
             page = us_bitset_next(dirty, page + 1)) {
            members++;
            if (!us_buddy_is_free(b, page, 0))
                return "a page is handed out and in a purge generation";
            if (g != US_YOUNG && us_bitset_test(&node->dirty[US_YOUNG], page))
                return "a page is in two purge generations";
        }
        if (members != node->ndirty[g])
            return "the number of pages to purge is wrong";
    }
    return NULL;
}

bool us_memory_check(struct us_memory *mem, struct us_error *error)
{
    struct us_flight own, *f = us_flight_current(); /* of who shut the gate, as it may be */
    const char *wrong = NULL;
    unsigned n;

    if (f == NULL)
        us_flight_enter(mem->machine, &own);
    for (n = 0; n < mem->machine->nnodes && wrong == NULL; n++) {
        if (!us_lock_take(f ? f : &own, &mem->node[n].lock))
            continue;
        us_take_strays(mem, &mem->node[n]);
        wrong = check_node(&mem->node[n]);
        us_lock_drop(f ? f : &own, &mem->node[n].lock);
    }
    if (f == NULL)
        us_flight_leave(&own);
    if (wrong)
        us_memory_error(error, US_ECORRUPT, "page provider of node %u: %s", n - 1, wrong);
    return wrong == NULL;
}

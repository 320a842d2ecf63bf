/* purge.c - page arrays, and giving free pages back to the system together with their elements.
 *
 * An element of a page array lives while its page is handed out. A page of an array goes back when
 * every page it describes is free: whoever frees the last of them makes it dirty, so looking at the
 * arrays when dirty pages are purged misses none.
 */
#include "memory/internal.h"

#define BATCH_PAGES US_MAX_BLOCK /* purged under one hold of the lock, */
#define BATCH_RUNS  64u          /* in so many runs */

void *us_page_array(struct us_memory *mem, size_t bytes, struct us_error *error)
{
    unsigned n = atomic_load_explicit(&mem->narrays, memory_order_relaxed);
    struct us_array *array = &mem->array[n];

    if (n == US_MAX_ARRAYS || bytes == 0 || (bytes & (bytes - 1)) ||
        bytes > mem->machine->page_size) {
        us_memory_error(
            error, US_EINVAL,
            "page array %u of %zu bytes a page: at most %u arrays of a power of two up to"
            " a page are possible",
            n, bytes, US_MAX_ARRAYS);
        return NULL;
    }
    array->bytes = bytes;
    array->total = (size_t)mem->range.npages * bytes;
    array->base = us_os_reserve(array->total, true, false);
    if (array->base == NULL) {
        us_memory_error(error, US_ENOMEM,
                        "the system refused %zu bytes of address space for a page array: give a"
                        " smaller address range, or raise the limit on virtual memory (ulimit -v)",
                        array->total);
        return NULL;
    }
    (void)us_maps(mem->machine, array->base, array->total, 0);
    /* Purgers may run by now: the array is theirs when it is complete. */
    atomic_store_explicit(&mem->narrays, n + 1, memory_order_release);
    return array->base;
}

/* ---- elements ------------------------------------------------------------------------------ */

/* Is every page of the node in [first, first + 2^order) free? Both may lie beyond the node's last
 * managed page, but not in another node. */
static bool group_is_free(const struct us_memory *mem, const struct us_page_node *node,
                          uint64_t first, unsigned order)
{
    if (first + (1ull << order) > us_node_length(&mem->range) >> mem->range.page_shift)
        return false;
    return us_buddy_is_free(&node->span.buddy, first, order);
}

/* Gives back the array's pages that describe only free ones, at pages [from, end) of the node. */
static void purge_elements(struct us_memory *mem, const struct us_page_node *node,
                           const struct us_array *array, uint64_t from, uint64_t end)
{
    uint64_t first =
        (uint64_t)(node->span.base - (char *)(uintptr_t)mem->range.base) >> mem->range.page_shift;
    size_t page_size = mem->machine->page_size;
    unsigned order = (unsigned)__builtin_ctzll(page_size / array->bytes);
    uint64_t group = 1ull << order;
    uint64_t run = 0, run_groups = 0; /* first page of those found so far */

    if (first & (group - 1))
        return; /* a group may span nodes: tiny ranges only */
    for (uint64_t g = from & ~(group - 1);; g += group) {
        if (g < end && group_is_free(mem, node, g, order)) {
            if (run_groups++ == 0)
                run = g;
            continue;
        }
        if (run_groups > 0)
            us_os_purge(array->base + (size_t)(first + run) * array->bytes,
                        (size_t)run_groups * page_size);
        run_groups = 0;
        if (g >= end)
            return;
    }
}

/* ---- pages --------------------------------------------------------------------------------- */

/* One batch under the lock: returns pages given back, *cursor moves on or becomes US_NO_BIT. */
static uint64_t purge_batch(struct us_memory *mem, struct us_page_node *node, unsigned generation,
                            uint64_t *cursor)
{
    struct us_bitset *dirty = &node->dirty[generation];
    unsigned narrays = atomic_load_explicit(&mem->narrays, memory_order_acquire);
    unsigned shift = mem->range.page_shift;
    uint64_t pages = 0;

    for (unsigned runs = 0; runs < BATCH_RUNS && pages < BATCH_PAGES; runs++) {
        uint64_t from = us_bitset_next(dirty, *cursor);

        *cursor = from;
        if (from == US_NO_BIT)
            break;
        uint64_t end = us_bitset_run_end(dirty, from, from + BATCH_PAGES - pages);
        us_os_purge(node->span.base + (from << shift), (size_t)((end - from) << shift));
        for (unsigned i = 0; i < narrays; i++)
            purge_elements(mem, node, &mem->array[i], from, end);
        us_bitset_clear_range(dirty, from, end - from);
        pages += end - from;
        *cursor = end;
    }
    node->ndirty[generation] -= pages;
    us_peak_sub(&mem->resident, pages);
    return pages;
}

static uint64_t purge_generation(struct us_memory *mem, struct us_flight *f,
                                 struct us_page_node *node, unsigned generation)
{
    uint64_t pages = 0, cursor = 0;

    while (cursor != US_NO_BIT) {
        if (!us_lock_take(f, &node->lock))
            break;
        pages += purge_batch(mem, node, generation, &cursor);
        us_lock_drop(f, &node->lock);
    }
    return pages;
}

/* What is old by now is given back (by the caller), what is young becomes old. */
static void turn_generations(struct us_flight *f, struct us_page_node *node)
{
    struct us_bitset set;
    uint64_t n;

    if (!us_lock_take(f, &node->lock))
        return;
    /* Pages that became old in between stay old: only an empty set is swapped. */
    if (node->ndirty[US_OLD] == 0) {
        set = node->dirty[US_OLD];
        node->dirty[US_OLD] = node->dirty[US_YOUNG];
        node->dirty[US_YOUNG] = set;
        n = node->ndirty[US_OLD];
        node->ndirty[US_OLD] = node->ndirty[US_YOUNG];
        node->ndirty[US_YOUNG] = n;
    }
    us_lock_drop(f, &node->lock);
}

/* One caller gets each turn. */
static bool take_turn(struct us_memory *mem, uint64_t now)
{
    uint64_t turn = us_load(&mem->turn);

    return now >= turn && atomic_compare_exchange_strong_explicit(
                              &mem->turn, &turn, now + mem->options.purge_delay_ns,
                              memory_order_relaxed, memory_order_relaxed);
}

uint64_t us_memory_purge(struct us_memory *mem, struct us_flight *f, uint64_t now, bool all)
{
    uint64_t pages = 0;

    if (!all && !take_turn(mem, now))
        return 0;
    us_memory_settle(mem, f);
    for (unsigned n = 0; n < mem->machine->nnodes; n++) {
        struct us_page_node *node = &mem->node[n];

        pages += purge_generation(mem, f, node, US_OLD);
        if (all)
            pages += purge_generation(mem, f, node, US_YOUNG);
        else
            turn_generations(f, node);
    }
    if (all)
        us_meta_trim(mem);
    return pages << mem->range.page_shift;
}

/* slab_tables.c - tunables, counters and geometry of the policy `slab`.
 *
 * Geometry is the original's, the descriptor of 48 bytes (reconstructed) and 4 bytes an object with
 * it. A descriptor that would lie in its slab takes its room there, which stays unused and counts
 * as waste; one that would come from a general cache is taken, in that cache's size, from the
 * metadata allocator. Descriptor and index proper lie out of band in both cases.
 */
#include "policy/slab.h"

/* ---- what rows show -------------------------------------------------------------------------- */

static int64_t get_limit(struct us_cache *c)
{
    return us_slabp_of(c)->limit;
}
static int64_t get_batchcount(struct us_cache *c)
{
    return us_slabp_of(c)->batchcount;
}
static int64_t get_shared(struct us_cache *c)
{
    return us_slabp_of(c)->shared;
}
static int64_t get_alien_limit(struct us_cache *c)
{
    return us_slabp_of(c)->alien_limit;
}
static int64_t get_active(struct us_cache *c)
{
    return (int64_t)us_slabp_of(c)->active;
}
static int64_t get_colour(struct us_cache *c)
{
    return us_slabp_of(c)->colours;
}
static int64_t get_colour_off(struct us_cache *c)
{
    return us_slabp_of(c)->colour_off;
}

static int64_t get_off_slab(struct us_cache *c)
{
    return c->geometry.slab_overhead == 0;
}

static int64_t get_free_limit(struct us_cache *c)
{
    uint64_t most = 0;

    for (unsigned n = 0; n < c->machine->nnodes; n++)
        if (us_slabp_node_of(c, n)->free_limit > most)
            most = us_slabp_node_of(c, n)->free_limit;
    return (int64_t)most;
}

static int64_t get_free_objects(struct us_cache *c)
{
    uint64_t total = 0;

    for (unsigned n = 0; n < c->machine->nnodes; n++)
        total += __atomic_load_n(&us_slabp_node_of(c, n)->free_objects, __ATOMIC_RELAXED);
    return (int64_t)total;
}

static int64_t get_shared_avail(struct us_cache *c)
{
    int64_t total = 0;

    for (unsigned n = 0; n < c->machine->nnodes; n++) {
        const struct us_queue *q = us_slabp_node_of(c, n)->shared;

        total += q ? us_queue_size(q) : 0;
    }
    return total;
}

/* ---- setters: one of the three numbers that are written to /proc/slabinfo together ------------
 */

static struct us_slabp_tuning tuning_of(const struct us_cache *c)
{
    const struct us_slabp *st = us_slabp_of(c);

    return (struct us_slabp_tuning){st->limit, st->batchcount, st->shared};
}

static enum us_status set_limit(struct us_cache *c, struct us_flight *f, int64_t value,
                                struct us_error *e)
{
    struct us_slabp_tuning wish = tuning_of(c);

    wish.limit = value;
    return us_slabp_tune(c, f, wish, e);
}

static enum us_status set_batchcount(struct us_cache *c, struct us_flight *f, int64_t value,
                                     struct us_error *e)
{
    struct us_slabp_tuning wish = tuning_of(c);

    wish.batchcount = value;
    return us_slabp_tune(c, f, wish, e);
}

static enum us_status set_shared(struct us_cache *c, struct us_flight *f, int64_t value,
                                 struct us_error *e)
{
    struct us_slabp_tuning wish = tuning_of(c);

    wish.shared = value;
    return us_slabp_tune(c, f, wish, e);
}

/* ---- tables ---------------------------------------------------------------------------------- */

const struct us_tunable us_slabp_tunables[] = {US_SLABP_TUNABLES(US_TUNABLE_ROW)};
const struct us_counter us_slabp_counters[] = {US_SLABP_COUNTERS(US_COUNTER_ROW)};

/* ---- geometry -------------------------------------------------------------------------------- */

/* Sizes of general caches: powers of two from 32 on, and 192 (96 on shorter lines only). */
static const uint32_t general_sizes[] = {
    32,    64,    128,   192,    256,    512,    1024,    2048,    4096,    8192,
    16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 0,
};

const uint32_t *us_slabp_general_sizes(const struct us_machine *m)
{
    (void)m;
    return general_sizes;
}

size_t us_slabp_general_size(size_t bytes)
{
    unsigned i = 0;

    while (general_sizes[i] && general_sizes[i] < bytes)
        i++;
    return general_sizes[i] ? general_sizes[i] : bytes;
}

/* One way to cut a slab: objects, the descriptor's bytes in it, and what is left over. */
struct cut {
    uint64_t objects, descriptor, left;
};

static uint64_t descriptor_bytes(uint64_t objects, size_t align)
{
    return (US_SLABP_DESCRIPTOR + 4 * objects + align - 1) / align * align;
}

static struct cut cut(const struct us_geometry *g, uint64_t bytes, bool off_slab)
{
    struct cut k = {.objects = bytes / g->stride};

    if (!off_slab) {
        k.objects =
            bytes > US_SLABP_DESCRIPTOR ? (bytes - US_SLABP_DESCRIPTOR) / (g->stride + 4) : 0;
        while (k.objects && descriptor_bytes(k.objects, g->align) + k.objects * g->stride > bytes)
            k.objects--;
        k.descriptor = descriptor_bytes(k.objects, g->align);
    }
    k.left = k.objects ? bytes - k.objects * g->stride - k.descriptor : 0;
    return k;
}

/* The order from which any left-over is accepted: machines of little memory have only 0. */
static int64_t break_order(const struct us_cache *c)
{
    struct us_memory_account account;

    if (c->tunable[US_SLABP_T_BREAK_ORDER] >= 0)
        return c->tunable[US_SLABP_T_BREAK_ORDER];
    us_memory_account(c->slabs->memory, &account);
    return account.budget > 32u << 20 ? 1 : 0;
}

/* From order 0 on, until one is good enough; the last one that holds an object is taken. */
static bool search_order(struct us_cache *c, bool off_slab, struct cut *best)
{
    struct us_geometry *g = &c->geometry;
    const unsigned last = (unsigned)c->tunable[US_SLABP_T_BREAK_ORDER];
    unsigned order;

    best->objects = 0;
    for (order = 0; order <= US_MAX_ORDER; order++) {
        const uint64_t bytes = (uint64_t)c->machine->page_size << order;
        const struct cut k = cut(g, bytes, off_slab);

        if (k.objects == 0)
            continue;
        if (off_slab && k.objects > (g->stride - US_SLABP_DESCRIPTOR) / 4)
            break;
        *best = k;
        g->order = order;
        if ((c->flags & US_RECLAIM_ACCOUNT) || order >= last || k.left * 8 <= bytes)
            break;
    }
    return best->objects > 0;
}

enum us_status us_slabp_geometry(struct us_cache *c, struct us_error *e)
{
    struct us_geometry *g = &c->geometry;
    bool off_slab;
    struct cut k;

    c->tunable[US_SLABP_T_BREAK_ORDER] = break_order(c);
    g->align = us_align_of(c->size, c->options.align, c->flags, US_LINE);
    g->stride = (c->size + g->align - 1) / g->align * g->align;
    off_slab = g->stride >= c->machine->page_size / 8;
    if (!search_order(c, off_slab, &k))
        return us_fail(e, US_EINVAL, "object size is above the largest block of pages");
    if (off_slab && k.left >= descriptor_bytes(k.objects, g->align)) {
        k.descriptor = descriptor_bytes(k.objects, g->align);
        off_slab = false;
    }
    g->objects = (unsigned)k.objects;
    g->min_order = g->order; /* the original has no second choice */
    g->min_objects = g->objects;
    g->state = US_OBJECTS_INDEX;
    g->slab_overhead = k.descriptor;
    g->index_bytes = 4 * k.objects;
    if (off_slab)
        g->index_bytes = us_slabp_general_size(US_SLABP_DESCRIPTOR + 4 * k.objects);
    return US_OK;
}

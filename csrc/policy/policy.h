/* policy.h - what a slab allocation policy is.
 *
 * A policy is a table of functions over `struct us_cache`. It calls machine/, memory/, slab/ and
 * queue/ only: never the operating system, CPython or another policy. Adding one is a file here and
 * a line in registry.c; every test, workload, report and notebook then covers it.
 */
#ifndef US_POLICY_H
#define US_POLICY_H

#include "slab/slab.h"
#include "slab/visit.h"

/* ---- tunables ------------------------------------------------------------------------------- */

enum us_tunable_flags {
    US_T_READONLY = 1, /* shown, computed by get() */
    US_T_CREATE = 2,   /* fixed once the cache exists */
};
struct us_choice {
    const char *text;
    int64_t code;
};
struct us_tunable {
    const char *name, *unit, *help;
    int64_t min, max, def; /* def may be replaced by the policy at create */
    unsigned flags;
    const struct us_choice *choices;    /* texts accepted beside numbers, ended by {NULL, 0} */
    int64_t (*get)(struct us_cache *c); /* NULL = the stored value */
    /* NULL = store. Called with the allocator's config lock held, the gate shut (f is its flight)
     * and this cache's regions closed: nothing else runs in the allocator. Checks what min and max
     * cannot say, makes the value effective on a live cache and stores what get or the row then
     * shows. */
    enum us_status (*set)(struct us_cache *c, struct us_flight *f, int64_t value,
                          struct us_error *e);
};

/* ---- counters ---------------------------------------------------------------------------------
 */

enum us_counter_source {
    US_FROM_STATS,
    US_FROM_POPS,
    US_FROM_PUSHES
}; /* added to the stored count */
struct us_counter {
    const char *name, *help; /* historical name in lower case, as its sysfs file */
    enum us_common feeds;    /* US_FEEDS_NONE = no common counter */
    enum us_common less;     /* the same amount is taken from this one, or US_FEEDS_NONE */
    enum us_counter_source source;
    bool hidden; /* only there to feed common counters */
};

/* shape.c: what the rows order, objs_per_slab, slab_size, object_size, align, slabs and
 * total_objects of several policies show. */
int64_t us_shape_order(struct us_cache *c);
int64_t us_shape_objects(struct us_cache *c);
int64_t us_shape_stride(struct us_cache *c);
int64_t us_shape_size(struct us_cache *c);
int64_t us_shape_align(struct us_cache *c);
int64_t us_shape_slabs(struct us_cache *c);
int64_t us_shape_total_objects(struct us_cache *c);

/* A row of a table of tunables (with choices, and without) or counters, as its struct. */
#define US_CHOICE_ROW(id, name_, unit_, min_, max_, def_, flags_, choices_, get_, set_, help_) \
    {.name = name_,                                                                            \
     .unit = unit_,                                                                            \
     .help = help_,                                                                            \
     .min = min_,                                                                              \
     .max = max_,                                                                              \
     .def = def_,                                                                              \
     .flags = flags_,                                                                          \
     .choices = choices_,                                                                      \
     .get = get_,                                                                              \
     .set = set_},
#define US_TUNABLE_ROW(id, name, unit, min, max, def, flags, get, set, help) \
    US_CHOICE_ROW(id, name, unit, min, max, def, flags, NULL, get, set, help)
#define US_COUNTER_ROW(id, name_, feeds_, less_, source_, hidden_, help_) \
    {.name = name_,                                                       \
     .help = help_,                                                       \
     .feeds = feeds_,                                                     \
     .less = less_,                                                       \
     .source = source_,                                                   \
     .hidden = hidden_},

/* ---- the policy
 * ---------------------------------------------------------------------------------- */

enum us_stage { US_STAGE_PARTIAL = 1, US_STAGE_ALIEN, US_STAGE_SHARED, US_STAGE_CPU };

#define US_EXPIRE_END UINT64_MAX

struct us_policy {
    const char *name;
    const char *title; /* one line */
    const void *form;  /* the policy's own: what sets apart the names that one source registers */
    const struct us_tunable *tunables;
    unsigned ntunables; /* at most 64 */
    const struct us_counter *counters;
    unsigned ncounters;
    enum us_region_kind region;
    bool debug_has_stock; /* false: the original has no CPU stock under debug */

    /* From c->size, c->options and c->tunable[] (creation values checked) to c->geometry. */
    enum us_status (*geometry)(struct us_cache *c, struct us_error *e);
    /* Sizes of the general caches on this machine, ascending, ended by 0. Above the last: pages. */
    const uint32_t *(*general_sizes)(const struct us_machine *m);
    /* Allocates and fills c->state, and sets up what c->local needs; c->local is initialised. */
    enum us_status (*create)(struct us_cache *c, struct us_error *e);
    /* Gate shut, regions closed, everything flushed and every slab released (or forced away):
     * frees the state. */
    void (*destroy)(struct us_cache *c);

    const struct us_cache_head *entries; /* by enum us_mode */
    void *(*alloc_node)(struct us_cache *c, unsigned flags, int node);
    size_t (*alloc_bulk)(struct us_cache *c, unsigned flags, int node, size_t n, void **out);
    void (*free_bulk)(struct us_cache *c, size_t n, void *const *objects);

    /* Stocks that a caller has to itself (us_cache_prefill_sheaf); all four or none. They are shown
     * as US_STOCK_PREFILLED and end with the cache. NULL and false: not enough memory. */
    struct us_sheaf *(*prefill)(struct us_cache *c, unsigned flags, uint32_t n);
    void *(*alloc_prefilled)(struct us_cache *c, struct us_sheaf *s);
    bool (*refill)(struct us_cache *c, unsigned flags, struct us_sheaf **s, uint32_t n);
    void (*give_back)(struct us_cache *c, struct us_sheaf *s);

    /* Frees after a grace period (cache/rcu.c) that a policy gives sheaves for: an empty one or
     * NULL; how an object of the caller's was kept, to be counted; and a sheaf whose grace period
     * is over, full or (`barn` false) not. All three or none. */
    struct us_sheaf *(*rcu_sheaf)(struct us_cache *c, struct us_flight *f);
    void (*rcu_count)(struct us_cache *c, unsigned cpu, bool sheaf);
    void (*rcu_done)(struct us_cache *c, struct us_flight *f, struct us_sheaf *s, bool barn);

    /* Before the stages of one expiration run on a cache (NULL = nothing to do). */
    void (*expire_begin)(struct us_cache *c);
    /* The stages of a pass do not stop once its target is reached. */
    bool expire_all_stages;
    /* Ages one stage on a node; returns bytes of objects moved to slabs. Stops once `target` bytes
     * are reached. Allocates nothing. try_only: never waits for a lock. NULL when the policy has
     * none. US_EXPIRE_END: nothing was moved, and a pass over all caches ends here. */
    uint64_t (*expire)(struct us_cache *c, struct us_flight *f, unsigned node, enum us_stage stage,
                       uint64_t target, bool try_only);
    /* Stage CPU of one CPU alone, wherever it has something to do: returns bytes as expire does.
     * All caches are asked for one CPU before the next, in a round (local.h). NULL: through expire.
     */
    bool (*expire_cpu_closes)(const struct us_cache *c, unsigned cpu);
    uint64_t (*expire_cpu)(struct us_cache *c, struct us_flight *f, unsigned cpu);
    /* Periodic work of a CPU that is online; period 0 = none. All caches that are due are ticked
     * for one CPU before the next. Those that say before, racily, that they will close the CPU's
     * region find it closed, in a round (local.h). tick_closes may be NULL. */
    bool (*tick_closes)(const struct us_cache *c, unsigned cpu, uint64_t now);
    void (*tick)(struct us_cache *c, struct us_flight *f, unsigned cpu, uint64_t now);
    uint64_t (*tick_period)(const struct us_cache *c);
    /* Sizes that follow the traffic. Every adapt_period (0 = never) of the policy's clock
     * wants_adapt is asked, in a flight; when it says so adapt runs, alone as a tunable's setter
     * does. */
    uint64_t (*adapt_period)(const struct us_cache *c);
    bool (*wants_adapt)(struct us_cache *c);
    void (*adapt)(struct us_cache *c, struct us_flight *f);
    /* Empties the CPU's own stock (and its domain's, as the original does). */
    void (*flush_cpu)(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only);
    /* Frees empty slabs and orders partial lists on a node; returns bytes released. */
    uint64_t (*shrink)(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only);
    /* A CPU comes, its region being open again, or goes: it is marked (us_cpu_online) and regions
     * that are opened from now on stay closed. The policy then closes and empties the CPU's stock,
     * as flush_cpu does, which is what is called when there is no hook; us_domain_online and
     * us_node_online give 0 when the last CPU of its domain or node goes, whose queues nobody will
     * use then. Either may be NULL. */
    void (*cpu_online)(struct us_cache *c, struct us_flight *f, unsigned cpu);
    void (*cpu_offline)(struct us_cache *c, struct us_flight *f, unsigned cpu);
    /* Every lock of the cache that lives, for totals of their use. Called in a flight. */
    void (*locks)(struct us_cache *c, us_lock_fn *each, void *context);
    /* Gate shut and regions closed. */
    void (*visit)(struct us_cache *c, const struct us_visitor *v);
};

/* By name; NULL when unknown. us_policy_at(i) enumerates in registration order. */
const struct us_policy *us_policy_find(const char *name);
const struct us_policy *us_policy_at(unsigned i);

#endif

/* cache.c - allocators: what they own, how they begin, stop and end.
 *
 * Levels. An allocator owns a machine, a memory (address range, page provider, metadata), one
 * policy and its caches. A cache owns regions (one a CPU), the policy's state, tunables and
 * statistics; all of it is metadata of the allocator's memory. Objects, slabs and queues are the
 * policy's business: cache/ creates, configures, counts, looks inside and tears down, and is not on
 * the path of an ordinary allocation, which goes from the two entry pointers at the head of a cache
 * straight to the policy. Three kinds of cache put an entry of cache/ before the policy's: those
 * with debug F (debug.c), those placed by the task's memory policy (alloc.c), and kmalloc-large
 * (kmalloc.c).
 *
 * Life of a cache. us_cache_make: tunables (default, allocator's default, value given), geometry,
 * regions' table, policy's state, entries; then it is linked. General caches are made with the
 * allocator, and made anew when a default changes before they were used. us_cache_destroy: flushed,
 * shrunk, then with the gate shut counted: live objects are an error unless forced; what slabs are
 * left are found by walking the page map, the policy drops its state, and everything goes back.
 *
 * With merging (alias.c) a cache has as many references as names, and only the last one's end is
 * its own.
 *
 * Who may walk the list of caches. A cache is linked by one atomic store from inside a flight, and
 * unlinked with the gate shut: every flight, and every holder of the config lock, may walk the
 * list.
 *
 * Lock order, outermost first: config - gate - control - alien - shared - slab - node - pages -
 * meta - stats. config is never waited for inside a flight, since its holder may wait at the gate.
 * Running out of pages calls us_pressure inside the requester's flight: it takes no config lock.
 *
 * Exact reads. us_allocator_stop shuts the gate (no slow path in flight) and closes every region
 * (no fast path commits); what is then read is exact. Statistics that need not be exact lock only
 * other readers out and never wait for the gate.
 *
 * Fork (fork.c). The prepare handler takes the list of allocators, then for each its config lock
 * and its gate, and closes its regions; parent and child reopen. The child has one thread: flights
 * of others are forgotten, and the reaper is started again.
 */
#include "cache/internal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum us_status us_error_fill(struct us_error *e, enum us_status status, const char *format, ...)
{
    va_list arguments;

    if (!e)
        return status;
    e->status = status;
    e->requested = e->limit = 0;
    va_start(arguments, format);
    vsnprintf(e->text, sizeof(e->text), format, arguments);
    va_end(arguments);
    return status;
}

size_t us_append(char *text, size_t size, size_t length, const char *format, ...)
{
    va_list arguments;
    int n;

    if (length + 1 >= size)
        return length;
    va_start(arguments, format);
    n = vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
    if (n < 0)
        return length;
    return length + (size_t)n < size ? length + (size_t)n : size - 1;
}

void us_config_take(struct us_allocator *a)
{
    struct us_flight f = {.machine = a->machine};

    (void)!us_lock_take(&f, &a->config);
}

void us_config_drop(struct us_allocator *a)
{
    struct us_flight f = {.machine = a->machine};

    us_lock_drop(&f, &a->config);
}

/* ---- stopping everything --------------------------------------------------------------------- */

void us_allocator_stop(struct us_allocator *a, struct us_flight *f)
{
    us_gate_shut(a->machine, f);
    us_local_close_all(a->locals, a->ncaches, a->machine);
}

void us_allocator_resume(struct us_allocator *a, struct us_flight *f)
{
    us_local_open_all(a->locals, a->ncaches, a->machine);
    us_gate_open(f);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

static uint64_t pages_of_node(const struct us_allocator *a)
{
    return a->slabs.range.npages / a->machine->nnodes;
}

void us_slab_walk_begin(struct us_slab_walk *walk, struct us_allocator *a)
{
    walk->allocator = a;
    walk->node = 0;
    walk->page = 0;
    walk->end = us_memory_high_water(a->memory, 0);
}

struct us_slab *us_slab_walk_next(struct us_slab_walk *walk)
{
    struct us_allocator *a = walk->allocator;
    const uint64_t pages = pages_of_node(a);

    for (;;) {
        while (walk->page < walk->end) {
            struct us_slab *s = a->slabs.of_page[walk->node * pages + walk->page];

            walk->page += s ? 1ull << us_slab_order(s) : 1;
            if (s)
                return s;
        }
        if (++walk->node >= a->machine->nnodes)
            return NULL;
        walk->page = 0;
        walk->end = us_memory_high_water(a->memory, walk->node);
    }
}

/* ---- allocators -------------------------------------------------------------------------------
 */

void us_allocator_options_init(struct us_allocator_options *options)
{
    *options = (struct us_allocator_options){
        .policy = "unified",
        .purge_delay_ns = 1000000000ull,
        .rcu_delay_ns = 10000000ull,
    };
}

static const struct us_policy *find_policy(const char *name, struct us_error *e)
{
    const char *names[64];
    const char *near;
    size_t n = 0, length = 0;
    char known[200] = "";

    if (name && us_policy_find(name))
        return us_policy_find(name);
    for (; n < 64 && us_policy_at((unsigned)n); n++) {
        names[n] = us_policy_at((unsigned)n)->name;
        length = us_append(known, sizeof(known), length, "%s%s", n ? ", " : "", names[n]);
    }
    near = name ? us_nearest(name, names, n) : NULL;
    us_error_fill(e, US_EINVAL, "no policy '%s': %s%s%sknown are %s", name ? name : "",
                  near ? "did you mean '" : "", near ? near : "", near ? "'? " : "", known);
    return NULL;
}

static void free_allocator(struct us_allocator *a)
{
    if (a->slabs.memory || a->memory) {
        us_general_destroy(a);
        us_large_destroy(a);
    }
    free(a->general);
    us_defaults_destroy(a);
    if (a->memory)
        us_memory_destroy(a->memory);
    if (a->machine)
        us_machine_destroy(a->machine);
    free(a->locals);
    free(a->size_class);
    free(a);
}

static bool open_memory(struct us_allocator *a, const struct us_allocator_options *o,
                        struct us_error *e)
{
    const struct us_memory_options memory = {
        .budget = o->memory,
        .address_range = o->address_range,
        .purge_delay_ns = o->purge_delay_ns,
    };

    a->machine = us_machine_create(o->topology, o->page_size, o->seed, e);
    if (!a->machine ||
        !us_machine_model(a->machine, o->model_costs, o->model_caches, o->model_smt, e))
        return false;
    /* A free reads of both: where they lie is the model's business too. */
    (void)us_maps(a->machine, a->machine->cpu, a->machine->ncpus * sizeof(*a->machine->cpu), 0);
    (void)us_maps(a->machine, a, sizeof(*a), 0);
    us_lock_init(&a->config, US_LOCK_CONFIG);
    a->memory = us_memory_create(a->machine, &memory, e);
    if (!a->memory || !us_slabs_init(&a->slabs, a->memory, e))
        return false;
    a->purge_delay_ns = o->purge_delay_ns;
    a->rcu_delay_ns = o->rcu_delay_ns ? o->rcu_delay_ns : 1;
    atomic_store(&a->next_purge, us_now(a->machine) + o->purge_delay_ns);
    atomic_store(&a->next_tick, a->next_purge);
    return true;
}

struct us_allocator *us_allocator_create(const struct us_allocator_options *options,
                                         struct us_error *error)
{
    struct us_allocator_options defaults;
    const struct us_policy *policy;
    struct us_allocator *a;

    if (!options) {
        us_allocator_options_init(&defaults);
        options = &defaults;
    }
    policy = find_policy(options->policy, error);
    if (!policy)
        return NULL;
    a = aligned_alloc(US_LINE, (sizeof(*a) + US_LINE - 1) / US_LINE * US_LINE);
    if (!a) {
        us_error_fill(error, US_ENOMEM, "no memory for an allocator");
        return NULL;
    }
    memset(a, 0, sizeof(*a));
    a->policy = policy;
    a->debug_f = options->debug_f;
    a->merge = options->merge;
    if (!open_memory(a, options, error) || !us_defaults_create(a, error) ||
        !us_large_create(a, error) || !us_general_create(a, error)) {
        free_allocator(a);
        return NULL;
    }
    us_memory_on_pressure(a->memory, us_pressure, a);
    us_fork_add(a);
    return a;
}

/* "cache: 3 at 0x1000, 0x2000, ..." and the sheaves that are out. */
static size_t append_live(char *text, size_t size, size_t length, struct us_cache *c,
                          const struct us_account *account)
{
    uint64_t first[2];
    size_t n = us_cache_live(c, first, 2), i;

    length = us_append(text, size, length, "%s%s: ", length ? "; " : "", c->name);
    if (account->live_objects)
        length = us_append(text, size, length, "%llu", (unsigned long long)account->live_objects);
    for (i = 0; i < n && i < 2; i++)
        length = us_append(text, size, length, "%s0x%llx", i ? ", " : " at ",
                           (unsigned long long)first[i]);
    if (n > 2)
        length = us_append(text, size, length, ", ...");
    if (!account->prefilled)
        return length;
    if (account->live_objects)
        length = us_append(text, size, length, ", and ");
    return us_append_prefilled(text, size, length, account);
}

/* Lists what is live, and the prefilled sheaves that are out, in every cache that has such. */
static enum us_status refuse_live(struct us_allocator *a, struct us_error *e)
{
    char text[sizeof(e->text)] = "", what[100] = "";
    struct us_account account;
    uint64_t total = 0, out = 0;
    size_t length = 0, said = 0;
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next) {
        us_cache_account(c, &account);
        if (account.live_objects == 0 && account.prefilled == 0)
            continue;
        length = append_live(text, sizeof(text), length, c, &account);
        total += account.live_objects;
        out += account.prefilled;
    }
    if (total == 0 && out == 0)
        return US_OK;
    if (total)
        said = us_append(what, sizeof(what), 0, "%llu object%s still live",
                         (unsigned long long)total, total == 1 ? " is" : "s are");
    if (out)
        us_append(what, sizeof(what), said, "%s%llu prefilled shea%s not returned",
                  total ? " and " : "", (unsigned long long)out, out == 1 ? "f is" : "ves are");
    return us_error_fill(e, US_EBUSY, "%s (%s); free or close with force", what, text);
}

enum us_status us_allocator_destroy(struct us_allocator *a, bool force, struct us_error *error)
{
    if (!force)
        us_allocator_rcu_barrier(a);
    if (!force && refuse_live(a, error) != US_OK)
        return US_EBUSY;
    (void)us_allocator_reaper(a, 0, NULL);
    us_fork_remove(a);
    us_memory_on_pressure(a->memory, NULL, NULL);
    us_config_take(a);
    while (a->caches)
        us_cache_unmake(a->caches);
    a->large = NULL;
    a->ngeneral = 0;
    us_config_drop(a);
    us_lock_retire(a->machine, &a->config);
    free_allocator(a);
    return US_OK;
}

/* General caches exist already: they take defaults on as long as nothing came from them. */
static enum us_status remake_general(struct us_allocator *a, struct us_error *error)
{
    if (!us_general_unused(a))
        return US_OK;
    us_general_destroy(a);
    if (us_general_create(a, error))
        return US_OK;
    return error ? error->status : US_ENOMEM;
}

enum us_status us_allocator_set_defaults(struct us_allocator *a, const char *const *tunables,
                                         const char *const *values, size_t n,
                                         struct us_error *error)
{
    enum us_status status = US_OK;
    struct us_defaults *before;
    size_t i;

    us_config_take(a);
    before = us_defaults_begin(a, error);
    if (!before) {
        us_config_drop(a);
        return US_ENOMEM;
    }
    for (i = 0; i < n && status == US_OK; i++)
        status = us_default_set(a, tunables[i], values[i], error);
    if (status == US_OK) {
        status = remake_general(a, error);
        us_defaults_end(a, before, status == US_OK);
        if (status != US_OK) /* without memory for them, kmalloc gives pages */
            (void)remake_general(a, NULL);
    } else {
        us_defaults_end(a, before, false);
    }
    us_config_drop(a);
    return status;
}

enum us_status us_allocator_set_default(struct us_allocator *a, const char *tunable,
                                        const char *value, struct us_error *error)
{
    return us_allocator_set_defaults(a, &tunable, &value, 1, error);
}

struct us_cache *us_cache_find(struct us_allocator *a, const char *name)
{
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next)
        if (us_alias_find(c, name) != UINT_MAX)
            return c;
    return NULL;
}

struct us_allocator *us_cache_allocator(const struct us_cache *c)
{
    return c->owner;
}

struct lock_totals {
    uint64_t *acquired, *contended; /* [US_LOCK_NCLASSES] */
};

static void add_lock(void *context, const struct us_lock *lock)
{
    struct lock_totals *t = context;
    struct us_lock *l = (struct us_lock *)lock;

    t->acquired[l->klass] += atomic_load_explicit(&l->acquired, memory_order_relaxed);
    t->contended[l->klass] += atomic_load_explicit(&l->contended, memory_order_relaxed);
}

void us_allocator_locks(struct us_allocator *a, uint64_t acquired[US_LOCK_NCLASSES],
                        uint64_t contended[US_LOCK_NCLASSES])
{
    struct lock_totals totals = {acquired, contended};
    struct us_flight f;
    struct us_cache *c;
    unsigned i;

    us_flight_enter(a->machine, &f);
    for (i = 0; i < US_LOCK_NCLASSES; i++)
        us_lock_totals(a->machine, (enum us_lock_class)i, &acquired[i], &contended[i]);
    add_lock(&totals, &a->config);
    us_memory_locks(a->memory, add_lock, &totals);
    for (c = us_first_cache(a); c; c = c->next) {
        add_lock(&totals, &c->stats_lock);
        us_rcu_locks(c, add_lock, &totals);
        if (c->policy->locks)
            c->policy->locks(c, add_lock, &totals);
    }
    us_flight_leave(&f);
}

/* unislab.h - the public C API of the slab allocation laboratory.
 *
 * An allocator owns one address range, a machine (real or modelled), a policy and its caches.
 * A cache hands out equal-sized objects. All types are opaque but for the head of a cache: its two
 * entry pointers are called by the inline wrappers below, so that no dispatch stands before the
 * policy's own path.
 *
 * Every function that can fail takes a `struct us_error *`; it may be NULL. Sizes are in bytes,
 * times in nanoseconds, nodes and CPUs are numbers from 0, node -1 means "any".
 */
#ifndef UNISLAB_H
#define UNISLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define US_ANY_NODE (-1)

struct us_allocator;
struct us_cache;

enum us_status {
    US_OK = 0,
    US_EINVAL,   /* a value out of range or an unknown name */
    US_ENOMEM,   /* no pages within the budget, or the system refused memory */
    US_EBUSY,    /* live objects, or a call made from a place that forbids it */
    US_ECORRUPT, /* misuse of memory was found */
    US_ENOSYS,   /* not offered by this policy or on this machine */
};

struct us_error {
    enum us_status status;
    uint64_t requested, limit; /* for US_ENOMEM against a budget, else 0 */
    char text[640];
};

/* Flags of one allocation. */
enum us_alloc_flags {
    US_ZERO = 1u << 0,     /* object is zeroed */
    US_THISNODE = 1u << 1, /* fail rather than use another node */
    US_NOWAIT = 1u << 2,   /* never reclaim, never wait */
};

/* Flags of a cache. */
enum us_cache_flags {
    US_HWCACHE_ALIGN = 1u << 0, /* align objects to cache lines */
    US_LOWMEM = 1u << 1,        /* rarely used: small queues, no shared or alien queue */
    US_MEM_SPREAD = 1u << 2,    /* object-level placement by the task's memory policy */
    US_RECLAIM_ACCOUNT = 1u << 3,
    US_ACCOUNT = 1u << 4, /* charged to the current group (the hook only) */
    US_DEBUG_F = 1u << 5, /* consistency checks: every misuse is found at the call */
};

/* The head of every cache; the rest is private. */
struct us_cache_head {
    void *(*alloc)(struct us_cache *cache);
    void (*free)(struct us_cache *cache, void *object);
};

/* Allocates one object on the node of the calling CPU; NULL when memory is exhausted. */
static inline void *us_cache_alloc(struct us_cache *cache)
{
    return ((struct us_cache_head *)cache)->alloc(cache);
}

/* Frees one object of this cache; NULL is ignored by the policy's slow path. */
static inline void us_cache_free(struct us_cache *cache, void *object)
{
    ((struct us_cache_head *)cache)->free(cache, object);
}

/* Allocates with flags (enum us_alloc_flags) on `node`, or near the CPU for US_ANY_NODE. */
void *us_cache_alloc_node(struct us_cache *cache, unsigned flags, int node);
/* Allocates up to n objects into out[]; returns how many. Counters as for n single calls. */
size_t us_cache_alloc_bulk(struct us_cache *cache, unsigned flags, int node, size_t n, void **out);
void us_cache_free_bulk(struct us_cache *cache, size_t n, void *const *objects);

/* ---- prefilled sheaves -------------------------------------------------------------------- */

/* Objects set aside for one caller, so that it can allocate later where failing is no choice. Only
 * policies with sheaves have them. A sheaf is used by one thread at a time, none of these calls is
 * for signal handlers, and the cache is not destroyed while a sheaf is out, unless by force, which
 * ends the sheaf too. */
struct us_sheaf;

/* A sheaf with at least n objects, 1 to 16382: the next n allocations from it cannot fail. NULL
 * with US_ENOSYS (this policy has none), US_EINVAL or US_ENOMEM. */
struct us_sheaf *us_cache_prefill_sheaf(struct us_cache *cache, unsigned flags, size_t n,
                                        struct us_error *error);
/* NULL only when the sheaf is empty. Of the flags only US_ZERO matters. */
void *us_cache_alloc_from_sheaf(struct us_cache *cache, unsigned flags, struct us_sheaf *sheaf);
/* Makes it hold at least n objects again. More than its capacity replaces it: *sheaf is another one
 * then. When that fails *sheaf keeps what it has. */
enum us_status us_cache_refill_sheaf(struct us_cache *cache, unsigned flags,
                                     struct us_sheaf **sheaf, size_t n, struct us_error *error);
/* Gives the sheaf and what is left in it back. */
void us_cache_return_sheaf(struct us_cache *cache, struct us_sheaf *sheaf);
/* Objects in it, and how many it has room for. */
size_t us_cache_sheaf_size(const struct us_sheaf *sheaf);
size_t us_cache_sheaf_capacity(const struct us_sheaf *sheaf);

/* ---- machine and allocator --------------------------------------------------------------- */

/* Which CPU sits where. Arrays have ncpus entries; nodes are numbers below nnodes, domains below
 * ndomains. A domain never spans nodes: one that is declared so becomes one domain a node. The
 * single-CPU domains of one node form one group. Domains are then renumbered from 0, in the order
 * in which CPU 0, 1, ... first show them. */
struct us_topology {
    unsigned ncpus, nnodes, ndomains;
    const unsigned *cpu_node;
    const unsigned *cpu_domain;
};

struct us_allocator_options {
    const char *policy;                 /* registered name */
    const struct us_topology *topology; /* NULL: the machine's own */
    uint64_t memory;                    /* byte budget over all nodes; 0 = the address range */
    uint64_t address_range;             /* bytes to reserve; 0 = 64 GiB, smaller when refused */
    uint64_t purge_delay_ns;            /* free pages go back after this time */
    uint64_t rcu_delay_ns;              /* of the policy's clock: what a grace period takes */
    unsigned page_size;                 /* model only; 0 = the system's */
    bool debug_f;
    bool merge; /* a cache like an old one becomes another name of that, as SLUB does it */
    uint64_t seed;
    /* Modelled machines that run workloads: what time things take there (tables of
     * machine/model/costs.h, in their order), and threads of a core. NULL: scripted only. */
    const uint64_t *model_costs, *model_caches;
    unsigned model_smt;
};

void us_allocator_options_init(struct us_allocator_options *options);
struct us_allocator *us_allocator_create(const struct us_allocator_options *options,
                                         struct us_error *error);
/* Fails with US_EBUSY while objects are live, unless force. */
enum us_status us_allocator_destroy(struct us_allocator *allocator, bool force,
                                    struct us_error *error);

/* A default for every cache created later; general caches take it on while nothing came from them,
 * so no other thread may use them yet. */
enum us_status us_allocator_set_default(struct us_allocator *allocator, const char *tunable,
                                        const char *value, struct us_error *error);
/* Several at once, which may make sense only together: all or none. */
enum us_status us_allocator_set_defaults(struct us_allocator *allocator,
                                         const char *const *tunables, const char *const *values,
                                         size_t n, struct us_error *error);

/* Takes a CPU out of use: its stocks go to the next level in every cache, and calls made on it are
 * served from there until it is online again. US_EINVAL when it is in that state already, and for
 * the last one that is online. */
enum us_status us_allocator_offline_cpu(struct us_allocator *allocator, unsigned cpu,
                                        struct us_error *error);
enum us_status us_allocator_online_cpu(struct us_allocator *allocator, unsigned cpu,
                                       struct us_error *error);
bool us_allocator_cpu_online(const struct us_allocator *allocator, unsigned cpu);

/* ---- caches ------------------------------------------------------------------------------ */

struct us_cache_options {
    const char *name;
    size_t size;  /* bytes of one object */
    size_t align; /* power of two, 0 = machine word */
    unsigned flags;
    const void *pattern; /* constructor: object is filled with this pattern, repeated */
    size_t pattern_bytes;
    void (*constructor)(void *object, void *arg); /* or a function, called once an object */
    void *constructor_arg;
    bool constructor_suspends; /* the function may take locks of the embedder (the GIL) */
};

/* With merging the result may be a cache that was there before. */
struct us_cache *us_cache_create(struct us_allocator *allocator,
                                 const struct us_cache_options *options, struct us_error *error);
/* Ends the cache. One that was merged with others (us_allocator_options.merge) only loses its
 * newest name, and ends with the last of them. */
enum us_status us_cache_destroy(struct us_cache *cache, bool force, struct us_error *error);

/* General caches. Large sizes go to the page provider. */
void *us_kmalloc(struct us_allocator *allocator, size_t size, unsigned flags, int node);
void us_kfree(struct us_allocator *allocator, void *object);
/* Usable bytes; 0 = not the start of an allocation of this allocator. */
size_t us_ksize(struct us_allocator *allocator, const void *object);
/* Another size for what us_kmalloc returned, NULL being nothing: us_kmalloc. Size 0 frees and gives
 * NULL. The address stays while us_ksize suffices, so what shrinks stays; else the usable bytes are
 * copied and the old object freed. When there is no memory the result is NULL and the old object
 * is as it was. `flags` and `node` are for a new one; US_ZERO clears what is not copied, and of an
 * object that stays what lies beyond `size`. */
void *us_krealloc(struct us_allocator *allocator, void *object, size_t size, unsigned flags,
                  int node);

/* Frees an object once a grace period is over. Until then it keeps its contents and counts as live.
 * The grace period ends when the policy's clock has moved on by rcu_delay_ns, at the next
 * us_allocator_advance (or reaper), or with a barrier; a shrink, a flush and the end of the cache
 * begin with one. Without memory to note the object down the call itself waits. US_ECORRUPT for
 * what is no object of the cache (with US_DEBUG_F: none in use), US_EBUSY in a signal handler that
 * interrupted another call. */
enum us_status us_cache_free_rcu(struct us_cache *cache, void *object, struct us_error *error);
enum us_status us_kfree_rcu(struct us_allocator *allocator, void *object, struct us_error *error);
/* Waits for a grace period that does not go by the clock, and frees all that waited for one. */
void us_cache_rcu_barrier(struct us_cache *cache);
void us_allocator_rcu_barrier(struct us_allocator *allocator);

/* Gives everything unused back: queues to slabs, empty slabs to the provider, pages to the
 * system. Returns bytes of slabs released. */
uint64_t us_cache_shrink(struct us_cache *cache);
uint64_t us_allocator_shrink(struct us_allocator *allocator);
/* Ages cached objects on `node` (-1 = all); returns bytes of objects moved to slabs. */
uint64_t us_cache_expire(struct us_cache *cache, int node);
uint64_t us_allocator_expire(struct us_allocator *allocator, int node);
/* Runs what is due at time now_ns of the policy's clock. */
void us_allocator_advance(struct us_allocator *allocator, uint64_t delta_ns);

#ifdef __cplusplus
}
#endif
#endif

/* internal.h - what the files of cache/ share and nobody else sees. */
#ifndef US_CACHE_INTERNAL_H
#define US_CACHE_INTERNAL_H

#include "cache/cache.h"

/* One more name of a cache (alias.c). */
struct us_alias {
    struct us_alias *next;
    unsigned id;
    char name[US_NAME_MAX];
};

/* A cache and what this layer keeps beside it. */
struct us_cache_box {
    struct us_cache cache;         /* first: a cache is its box */
    uint64_t next_tick;            /* policy's clock, 0 = no ticks */
    uint64_t next_adapt;           /* the same for sizes that follow the traffic */
    unsigned adapt_waits;          /* looks that found nothing to do, each doubles the wait */
    _Atomic uint64_t last_expired; /* bytes of the last run */
    uint64_t *shown;               /* [ncpus][rows] statistics never go back; stats lock */
    _Atomic uint64_t refused;      /* misuses through plain entries */
    unsigned nshown;               /* rows shown */
    struct us_rcu_cpu *rcu;        /* [ncpus] frees after a grace period; NULL before the first */
    struct us_account account;     /* scratch of us_allocator_account, gate shut */
    struct us_alias *aliases;      /* newest first */
    bool renamed;                  /* the name it was made under was given up */
    bool own_tunables;             /* some were given at creation */
};

static inline struct us_cache_box *us_box(struct us_cache *c)
{
    return (struct us_cache_box *)c;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Fills the error (NULL is fine) and returns its status. */
enum us_status us_error_fill(struct us_error *e, enum us_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends to a text of fixed size; returns the new length. */
size_t us_append(char *text, size_t size, size_t length, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* "2 prefilled sheaves of 7 objects". */
size_t us_append_prefilled(char *text, size_t size, size_t length,
                           const struct us_account *account);

/* ---- locks and lists ------------------------------------------------------------------------- */

void us_config_take(struct us_allocator *a);
void us_config_drop(struct us_allocator *a);

/* Caches are added by one atomic store and removed with the gate shut, so a flight may walk them.
 */
static inline struct us_cache *us_first_cache(const struct us_allocator *a)
{
    return __atomic_load_n(&a->caches, __ATOMIC_ACQUIRE);
}

/* ---- slabs, by walking the page map -----------------------------------------------------------
 */

struct us_slab_walk {
    struct us_allocator *allocator;
    unsigned node;
    uint64_t page, end;
};
/* Gate shut. Yields every slab, large ones too, in address order. */
void us_slab_walk_begin(struct us_slab_walk *walk, struct us_allocator *a);
struct us_slab *us_slab_walk_next(struct us_slab_walk *walk);
static inline uint64_t us_slab_bytes(const struct us_allocator *a, const struct us_slab *s)
{
    return (uint64_t)a->machine->page_size << us_slab_order(s);
}

/* ---- caches ---------------------------------------------------------------------------------- */

struct us_cache *us_cache_make(struct us_allocator *a, const struct us_policy *policy,
                               const struct us_cache_options *o, const char *const *names,
                               const char *const *values, size_t n, struct us_error *e);
/* Config lock held. Unlinks, gives every slab back and frees; nobody uses the cache any more. */
void us_cache_unmake(struct us_cache *c);

/* ---- aliases, config lock held ----------------------------------------------------------------
 */

/* The cache that a new one of these options and no tunables would be merged with, or NULL. */
struct us_cache *us_alias_target(struct us_allocator *a, const struct us_cache_options *o);
bool us_alias_add(struct us_cache *c, const struct us_cache_options *o, unsigned *id,
                  struct us_error *e);
/* Gives up a name that is not the last. */
void us_alias_drop(struct us_cache *c, unsigned id);
void us_alias_fini(struct us_cache *c);
unsigned us_alias_count(const struct us_cache *c); /* names in all: the references to the cache */
unsigned us_alias_find(const struct us_cache *c, const char *name); /* UINT_MAX = not its name */

/* ---- general caches ---------------------------------------------------------------------------
 */

bool us_general_create(struct us_allocator *a, struct us_error *e);
void us_general_destroy(struct us_allocator *a);
bool us_general_unused(const struct us_allocator *a);
bool us_large_create(struct us_allocator *a, struct us_error *e);
void us_large_destroy(struct us_allocator *a);
unsigned us_large_order(const struct us_allocator *a, size_t size);
struct us_cache *us_kmalloc_owner(struct us_allocator *a, const void *object);

/* ---- tunables ----------------------------------------------------------------------------------
 */

bool us_defaults_create(struct us_allocator *a, struct us_error *e);
void us_defaults_destroy(struct us_allocator *a);
/* Works on a copy from now on; returns the former ones, NULL (and an error) without memory. */
struct us_defaults *us_defaults_begin(struct us_allocator *a, struct us_error *e);
/* Keeps the copy, or goes back to the former ones. */
void us_defaults_end(struct us_allocator *a, struct us_defaults *before, bool keep);
/* Fills c->tunable from the rows' defaults, the allocator's and the pairs given. */
enum us_status us_default_set(struct us_allocator *a, const char *name, const char *value,
                              struct us_error *e);
bool us_tunables_fill(struct us_allocator *a, struct us_cache *c, const char *const *names,
                      const char *const *values, size_t n, struct us_error *e);

/* ---- debug F ------------------------------------------------------------------------------------
 */

extern const struct us_cache_head us_debug_entries;
extern const struct us_cache_head us_spread_entries;
void *us_cache_alloc_inner(struct us_cache *c, unsigned flags, int node);
void *us_debug_alloc(struct us_cache *c, unsigned flags, int node);
void *us_debug_alloc_from_sheaf(struct us_cache *c, struct us_sheaf *s);
/* Takes the object's mark, or says why it is not the caller's to free. */
enum us_misuse_kind us_debug_take_back(struct us_cache *c, void *object, struct us_slab **slab);
/* Frees the object, or says why not and leaves it; *slab is where it lies, or NULL. */
enum us_misuse_kind us_debug_free(struct us_cache *c, void *object, struct us_slab **slab);
enum us_status us_debug_free_all(struct us_cache *c, size_t n, void *const *objects,
                                 struct us_error *e); /* all or nothing */
enum us_misuse_kind us_misuse_of(const struct us_cache *c, const void *object,
                                 struct us_slab **slab, uint32_t *index);
enum us_status us_explain_misuse(const struct us_cache *c, const void *object,
                                 enum us_misuse_kind kind, const struct us_slab *s,
                                 struct us_error *e);
/* A misuse through an entry that returns nothing. */
void us_refuse(struct us_cache *c, const void *object, enum us_misuse_kind kind);
#define US_MISUSE_NONE ((enum us_misuse_kind)(-1))

/* ---- time, pressure, fork -------------------------------------------------------------------- */

bool us_pressure(void *context, struct us_flight *f, unsigned node, enum us_pressure kind);
/* Whether the cache will close its region on the CPU, racily. */
typedef bool us_closes_fn(struct us_cache *c, unsigned cpu, uint64_t now);
/* Begins the CPU's round (local.h) with every cache that will; false, and no round, when none will
 * or the flight is nested. */
bool us_begin_round(struct us_allocator *a, struct us_flight *f, unsigned cpu, us_closes_fn *closes,
                    uint64_t now);
void us_flush_cache(struct us_cache *c, struct us_flight *f, bool try_only);
void us_shrink_cache(struct us_cache *c, struct us_flight *f, bool try_only);
void us_schedule(struct us_allocator *a,
                 struct us_cache *c); /* its next tick, after creation or a set */
/* Something is due at that time of the policy's clock. */
void us_due_at(struct us_allocator *a, uint64_t due);
/* Frees what waited for a grace period that is over; returns when the next one is. */
uint64_t us_rcu_run_due(struct us_allocator *a, uint64_t now);
/* Drops what still waits; the cache's slabs go back with it. */
void us_rcu_fini(struct us_cache *c);
/* Gate shut: every object of the cache that waits. */
void us_rcu_each(struct us_cache *c, void (*each)(void *context, void *object), void *context);
void us_rcu_locks(struct us_cache *c, us_lock_fn *each, void *context);
/* The reaper around a fork and at the end. */
void us_reaper_fork_child(struct us_allocator *a);
uint64_t
us_reaper_due(const struct us_allocator *a); /* model: policy's clock, UINT64_MAX = never */
void us_reaper_ran(struct us_allocator *a);
void us_fork_add(struct us_allocator *a);
void us_fork_remove(struct us_allocator *a);

#endif

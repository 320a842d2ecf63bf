/* cache.h - allocators and caches as the binding, the workloads and the tests see them.
 *
 * Lock order (outermost first): config, gate, control, alien, shared, slab, node, pages, meta,
 * stats. The rest of the essay stands at the head of cache.c.
 */
#ifndef US_CACHE_H
#define US_CACHE_H

#include "policy/policy.h"

struct us_allocator {
    struct us_machine *machine;
    struct us_memory *memory;
    struct us_slabs slabs US_ALIGNED(US_LINE); /* what a free reads of it is one line */
    const struct us_policy *policy;
    struct us_lock config;   /* cache list, tunables, resizing */
    struct us_cache *caches; /* newest first */
    unsigned ncaches;
    struct us_cache **general; /* [ngeneral] kmalloc caches, ascending */
    unsigned ngeneral;
    struct us_cache *large; /* pseudo-cache kmalloc-large: accounts of page-provider requests */
    bool debug_f;
    bool merge;                /* a new cache may become another name of an old one */
    struct us_allocator *next; /* list of the process, for fork */
    _Atomic uint64_t last_expired_bytes;
    /* private to cache/ */
    struct us_defaults *defaults; /* of tunables, for caches created later */
    struct us_reaper *reaper;     /* NULL = none */
    struct us_policy *large_policy;
    struct us_local **locals; /* [ncaches] regions to close when everything stops */
    unsigned locals_room, next_id;
    uint8_t *size_class; /* [(size + 7) / 8] index of the general cache, up to size_class_max */
    size_t size_class_max;
    uint64_t purge_delay_ns;
    uint64_t rcu_delay_ns;        /* of the policy's clock, at least 1 */
    _Atomic uint64_t rcu_pending; /* objects that wait for a grace period */
    _Atomic uint32_t rcu_round;   /* barriers that waited for one */
    _Atomic uint64_t next_tick;   /* earliest thing due on the policy's clock */
    _Atomic uint64_t next_purge;
    _Atomic uint32_t expiring;    /* one expiration of everything at a time */
    _Atomic uint32_t running;     /* one us_allocator_run_due at a time */
    _Atomic uint64_t reapers;     /* started so far */
    struct us_flight fork_flight; /* of the gate that is shut while the process forks */
};

struct us_cache *us_cache_find(struct us_allocator *a, const char *name);
/* The general cache that serves a size; NULL = large. */
struct us_cache *us_kmalloc_cache(struct us_allocator *a, size_t size);
struct us_allocator *us_cache_allocator(const struct us_cache *c);

/* Names by number. A cache has one, and with merging perhaps more (alias.c); each has a number that
 * no other name of the allocator ever has. us_cache_number is that of the name the cache goes by.
 */
unsigned us_cache_number(const struct us_cache *c);
/* The cache of a name, and the name's number; NULL when there is none. */
struct us_cache *us_cache_named(struct us_allocator *a, const char *name, unsigned *number);
/* Fills in the name of that number; false when the cache is not there, or has given the name up. */
bool us_cache_name(struct us_allocator *a, const struct us_cache *c, unsigned number,
                   char name[US_NAME_MAX]);
/* All names, oldest first; returns how many there are. */
size_t us_cache_names(struct us_cache *c, char (*names)[US_NAME_MAX], size_t most);
/* us_cache_destroy for one of several names. */
enum us_status us_cache_end_name(struct us_cache *c, unsigned number, bool force,
                                 struct us_error *error);
/* us_cache_create_with that also gives the number of the name. */
struct us_cache *us_cache_create_numbered(struct us_allocator *a, const struct us_cache_options *o,
                                          const char *const *names, const char *const *values,
                                          size_t n, unsigned *number, struct us_error *e);
/* Creates with creation tunables: pairs name, value as text. */
struct us_cache *us_cache_create_with(struct us_allocator *a, const struct us_cache_options *o,
                                      const char *const *names, const char *const *values, size_t n,
                                      struct us_error *e);

/* ---- checked single calls (the binding's) ---------------------------------------------------- */

/* Checks that `object` is the start of an object of this cache (and, with debug F, in use); fills
 * the error with cache, slab, object, found, expected. Cheap: arithmetic and one load. */
enum us_status us_cache_check(struct us_cache *c, const void *object, struct us_error *e);
enum us_status us_cache_free_checked(struct us_cache *c, void *object, struct us_error *e);
enum us_status us_cache_free_bulk_checked(struct us_cache *c, size_t n, void *const *objects,
                                          struct us_error *e);
enum us_status us_kfree_checked(struct us_allocator *a, void *object, struct us_error *e);
/* us_krealloc; *out is NULL unless there is a block of `size` bytes. */
enum us_status us_krealloc_checked(struct us_allocator *a, void *object, size_t size,
                                   unsigned flags, int node, void **out, struct us_error *e);
/* The same finding in parts: true when freeing `object` would be a misuse. */
struct us_finding {
    enum us_misuse_kind kind;
    uint64_t address, slab_base; /* slab_base 0 = none */
    char cache[US_NAME_MAX];
    char found[140], expected[100];
};
bool us_cache_finding(struct us_cache *c, const void *object, struct us_finding *out);
bool us_kfree_finding(struct us_allocator *a, const void *object, struct us_finding *out);
/* Misuses through us_cache_free, us_cache_free_bulk and us_kfree that were refused at the call. */
uint64_t us_cache_refused(const struct us_cache *c);
/* Why an allocation of n objects of `size` bytes failed just now: fills status ENOMEM, requested,
 * limit, text. */
void us_cache_explain_failures(struct us_cache *c, size_t n, size_t size, struct us_error *e);
US_INLINE void us_cache_explain_failure(struct us_cache *c, size_t size, struct us_error *e)
{
    us_cache_explain_failures(c, 1, size, e);
}

/* ---- tunables -------------------------------------------------------------------------------- */

/* Text is a number or one of the tunable's choices. Live: validated, effective at once. */
enum us_status us_tunable_set(struct us_cache *c, const char *name, const char *value,
                              struct us_error *e);
enum us_status us_tunable_get(struct us_cache *c, const char *name, int64_t *value,
                              const char **text, struct us_error *e);
/* Parses a value against a row. */
enum us_status us_tunable_parse(const struct us_policy *p, const struct us_tunable *t,
                                const char *value, int64_t *out, struct us_error *e);
const struct us_tunable *us_tunable_find(const struct us_policy *p, const char *name,
                                         struct us_error *e);
/* Nearest known name, for error texts; NULL when none is near. */
const char *us_nearest(const char *name, const char *const *names, size_t n);

/* ---- statistics ---------------------------------------------------------------------------------
 */

/* Row names: the common counters, then the policy's visible ones. */
size_t us_stats_rows(const struct us_policy *p, const char **names, const char **helps, size_t max);
/* values[cpu * rows + row], cpu < machine->ncpus; rows as us_stats_rows gives. exact shuts the
 * gate. Monotone from call to call otherwise, within one batch a CPU. */
void us_cache_stats(struct us_cache *c, bool exact, uint64_t *values);

/* Byte accounts, exact (gate shut): reserved = live + queued + free_in_slabs + waste. */
struct us_account {
    uint64_t live, queued, free_in_slabs, waste; /* bytes in strides; large kmalloc is live */
    uint64_t reserved;
    uint64_t live_objects, queued_objects, free_objects;
    uint64_t slabs, objects; /* slabs and their capacity */
    uint64_t partial, cpu_slabs;
    uint64_t prefilled, prefilled_objects; /* sheaves out at their callers; these are queued */
};
void us_cache_account(struct us_cache *c, struct us_account *out);
void us_allocator_account(struct us_allocator *a, struct us_account *total,
                          struct us_memory_account *memory);
/* Totals of lock use by class since creation. */
void us_allocator_locks(struct us_allocator *a, uint64_t acquired[US_LOCK_NCLASSES],
                        uint64_t contended[US_LOCK_NCLASSES]);

/* ---- looking inside (gate shut) -------------------------------------------------------------- */

enum us_object_place {
    US_IN_USE = 0,
    US_IN_SLAB = 1,
    US_IN_QUEUE = 2,
    US_OUT = 3,    /* kept out */
    US_WAITING = 4 /* for a grace period; counts as live */
};

struct us_slab_row {
    uint64_t address;
    uint32_t objects, in_use, free, queued;
    uint8_t order;
    int16_t node;
    int32_t cpu;      /* that owns it (list policies), -1 */
    uint8_t place;    /* 0 full or on no list, 1 partial list, 2 CPU slab, 3 large,
                         4 list of entirely free ones */
    int64_t position; /* in its list, -1 */
};
struct us_stock_row {
    struct us_stock stock;
    uint64_t first; /* index of its objects in the addresses array */
};
/* Snapshot of queues and slabs; arrays malloc'ed, freed by us_snapshot_free. */
struct us_snapshot {
    struct us_slab_row *slab;
    size_t nslabs;
    struct us_stock_row *stock;
    size_t nstocks;
    uint64_t *address; /* all objects in stocks, oldest first in each */
    size_t naddresses;
};
enum us_status us_cache_snapshot(struct us_cache *c, struct us_snapshot *out, struct us_error *e);
void us_snapshot_free(struct us_snapshot *s);
/* Addresses of objects in use, up to n; returns how many there are in all. */
size_t us_cache_live(struct us_cache *c, uint64_t *out, size_t n);

/* Detailed validate (algorithms 2.12). */
struct us_validation {
    uint64_t slabs, total, available, checked, unchecked, onqueue, errors;
    uint64_t partial_slabs;
    uint64_t *histogram; /* [max objects + 1]: slabs by objects not free in them */
    size_t histogram_length;
    struct us_misuse misuse[16];
    size_t nmisuse;
    char text[1200]; /* first errors, one a line */
};
enum us_status us_cache_validate(struct us_cache *c, struct us_validation *out, struct us_error *e);
void us_validation_free(struct us_validation *v);

/* ---- time, pressure, whole-allocator work ---------------------------------------------------- */

uint64_t us_allocator_expire_target(struct us_allocator *a, int node, uint64_t target_bytes,
                                    bool try_only);
void us_allocator_flush(struct us_allocator *a);
/* Runs every tick that is due at the policy's clock, and the purge. Cheap when nothing is. */
void us_allocator_run_due(struct us_allocator *a);
/* For who has every CPU run its own ticks. The shortest period of the caches whose ticks are due at
 * `now`, 0 = of none; then on each CPU that is online, in any order and at any time, its ticks; and
 * when all have had theirs, _ticks_done, after which us_allocator_run_due does the rest. */
uint64_t us_allocator_ticks_due(struct us_allocator *a, uint64_t now);
void us_allocator_ticks_on(struct us_allocator *a, unsigned cpu, uint64_t now);
void us_allocator_ticks_done(struct us_allocator *a, uint64_t now);
/* Starts (period > 0) or stops (0) the thread that expires and runs what is due. An allocator has
 * one: the last one started ends the one before. */
enum us_status us_allocator_reaper(struct us_allocator *a, uint64_t period_ns, struct us_error *e);
/* The number of the reaper at work, 0 = none. No two of an allocator have the same. */
uint64_t us_allocator_reaper_number(struct us_allocator *a);
enum us_status us_allocator_reaper_start(struct us_allocator *a, uint64_t period_ns,
                                         uint64_t *number, struct us_error *e);
/* Stops the reaper of this number, if it is still the one at work. */
void us_allocator_reaper_stop(struct us_allocator *a, uint64_t number);
/* Shuts the gate and closes every region; for fork, destroy, exact reads. */
void us_allocator_stop(struct us_allocator *a, struct us_flight *f);
void us_allocator_resume(struct us_allocator *a, struct us_flight *f);

#endif

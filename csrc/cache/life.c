/* life.c - how a cache is made and unmade. */
#include "cache/internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_FLAGS \
    (US_HWCACHE_ALIGN | US_LOWMEM | US_MEM_SPREAD | US_RECLAIM_ACCOUNT | US_ACCOUNT | US_DEBUG_F)
#define REPORTED_LIVE 8 /* addresses named when a cache with live objects is destroyed */

static void *meta_alloc(void *memory, size_t bytes)
{
    return us_meta_alloc(memory, bytes);
}

static void meta_free(void *memory, void *base, size_t bytes)
{
    us_meta_free(memory, base, bytes);
}

static struct us_local_memory local_memory(const struct us_allocator *a)
{
    return (struct us_local_memory){meta_alloc, meta_free, a->memory};
}

static bool check_options(const struct us_allocator *a, const struct us_cache_options *o,
                          struct us_error *e)
{
    const uint64_t largest = (uint64_t)a->machine->page_size << US_MAX_ORDER;

    if (!o->name || o->name[0] == 0 || strlen(o->name) >= US_NAME_MAX)
        us_error_fill(e, US_EINVAL, "a cache name has 1 to %d bytes, not %zu", US_NAME_MAX - 1,
                      o->name ? strlen(o->name) : 0);
    else if (o->size == 0 || o->size > largest)
        us_error_fill(e, US_EINVAL, "size %zu of cache '%s' is not within 1 to %llu bytes", o->size,
                      o->name, (unsigned long long)largest);
    else if ((o->align & (o->align - 1)) != 0 || o->align > a->machine->page_size)
        us_error_fill(e, US_EINVAL, "align %zu of cache '%s' is not a power of two up to %zu",
                      o->align, o->name, a->machine->page_size);
    else if (o->flags & ~KNOWN_FLAGS)
        us_error_fill(e, US_EINVAL, "flags 0x%x of cache '%s' are unknown", o->flags & ~KNOWN_FLAGS,
                      o->name);
    else if (o->pattern_bytes > o->size)
        us_error_fill(e, US_EINVAL,
                      "the constructor pattern of cache '%s' has %zu bytes, its objects %zu",
                      o->name, o->pattern_bytes, o->size);
    else
        return true;
    return false;
}

/* Everything but the policy's state and the regions goes back. */
static void free_parts(struct us_allocator *a, struct us_cache *c)
{
    const size_t ncpus = a->machine->ncpus, nnodes = a->machine->nnodes;
    struct us_memory *m = a->memory;
    struct us_cache_box *box = us_box(c);

    if (c->tunable)
        us_meta_free(m, c->tunable, (c->policy->ntunables + 1) * sizeof(*c->tunable));
    if (c->stats)
        us_meta_free(m, (void *)c->stats, ncpus * c->nrows * sizeof(*c->stats));
    if (box->shown)
        us_meta_free(m, box->shown, ncpus * box->nshown * sizeof(*box->shown));
    if (c->nr_slabs)
        us_meta_free(m, (void *)c->nr_slabs, nnodes * sizeof(*c->nr_slabs));
    if (c->nr_objects)
        us_meta_free(m, (void *)c->nr_objects, nnodes * sizeof(*c->nr_objects));
    if (c->deferred)
        us_meta_free(m, (void *)c->deferred, nnodes * sizeof(*c->deferred));
    if (c->pattern)
        us_meta_free(m, c->pattern, c->options.pattern_bytes);
    us_meta_free(m, box, sizeof(*box));
}

static bool alloc_parts(struct us_allocator *a, struct us_cache *c)
{
    const size_t ncpus = a->machine->ncpus, nnodes = a->machine->nnodes;
    struct us_memory *m = a->memory;
    struct us_cache_box *box = us_box(c);

    c->nrows = US_NCOMMON + c->policy->ncounters;
    box->nshown = (unsigned)us_stats_rows(c->policy, NULL, NULL, 0);
    c->tunable = us_meta_alloc(m, (c->policy->ntunables + 1) * sizeof(*c->tunable));
    c->stats = us_meta_alloc(m, ncpus * c->nrows * sizeof(*c->stats));
    box->shown = us_meta_alloc(m, ncpus * box->nshown * sizeof(*box->shown));
    c->nr_slabs = us_meta_alloc(m, nnodes * sizeof(*c->nr_slabs));
    c->nr_objects = us_meta_alloc(m, nnodes * sizeof(*c->nr_objects));
    c->deferred = us_meta_alloc(m, nnodes * sizeof(*c->deferred));
    if (c->options.pattern_bytes) {
        c->pattern = us_meta_alloc(m, c->options.pattern_bytes);
        if (!c->pattern)
            return false;
        memcpy(c->pattern, c->options.pattern, c->options.pattern_bytes);
        c->options.pattern = c->pattern;
    }
    return c->tunable && c->stats && box->shown && c->nr_slabs && c->nr_objects && c->deferred;
}

static struct us_cache *new_box(struct us_allocator *a, const struct us_policy *policy,
                                const struct us_cache_options *o)
{
    struct us_cache_box *box = us_meta_alloc(a->memory, sizeof(*box));
    struct us_cache *c = box ? &box->cache : NULL;

    if (!c)
        return NULL;
    c->owner = a;
    c->slabs = &a->slabs;
    c->machine = a->machine;
    c->policy = policy;
    c->size = o->size;
    c->flags = o->flags | (a->debug_f ? US_DEBUG_F : 0u);
    c->options = *o;
    c->options.flags = c->flags;
    snprintf(c->name, sizeof(c->name), "%s", o->name);
    c->options.name = c->name;
    c->has_constructor = o->pattern_bytes > 0 || o->constructor != NULL;
    us_lock_init(&c->stats_lock, US_LOCK_STATS);
    if (alloc_parts(a, c))
        return c;
    free_parts(a, c);
    return NULL;
}

static bool set_up(struct us_allocator *a, struct us_cache *c, struct us_error *e)
{
    const struct us_policy *policy = c->policy;
    const struct us_local_memory memory = local_memory(a);
    const enum us_mode mode = c->flags & US_DEBUG_F ? US_MODE_CONTROL : a->machine->mode;
    const ptrdiff_t link = c->geometry.state == US_OBJECTS_LIST ? c->geometry.link : 0;

    c->reciprocal = us_reciprocal_of(c->geometry.stride);
    if (!us_local_init(&c->local, a->machine, mode, policy->region, link, &memory)) {
        us_error_fill(e, US_ENOMEM, "no memory for the regions of cache '%s'", c->name);
        return false;
    }
    c->head = policy->entries[mode];
    c->task_placed = (c->flags & US_MEM_SPREAD) != 0; /* the policy may want it, too */
    if (policy->create(c, e) != US_OK) {
        us_local_fini(&c->local, &memory);
        return false;
    }
    if (c->flags & US_DEBUG_F)
        c->head = us_debug_entries;
    else if (c->task_placed)
        c->head.alloc = us_spread_entries.alloc;
    return true;
}

/* Adds the cache to the list, from inside a flight: with the gate shut the list stands still. */
static bool link_cache(struct us_allocator *a, struct us_cache *c)
{
    struct us_flight f;
    bool room = true;

    us_flight_enter(a->machine, &f);
    if (a->ncaches == a->locals_room) {
        unsigned wanted = a->locals_room ? 2 * a->locals_room : 32;
        struct us_local **grown = realloc(a->locals, wanted * sizeof(*grown));

        room = grown != NULL;
        if (grown) {
            a->locals = grown;
            a->locals_room = wanted;
        }
    }
    if (room) {
        a->locals[a->ncaches++] = &c->local;
        c->id = a->next_id++;
        c->next = a->caches;
        __atomic_store_n(&a->caches, c, __ATOMIC_RELEASE);
    }
    us_flight_leave(&f);
    return room;
}

static bool may_make(struct us_allocator *a, const struct us_cache_options *o, struct us_error *e)
{
    if (!check_options(a, o, e))
        return false;
    if (!us_cache_find(a, o->name))
        return true;
    us_error_fill(e, US_EINVAL, "there is a cache '%s' already", o->name);
    return false;
}

struct us_cache *us_cache_make(struct us_allocator *a, const struct us_policy *policy,
                               const struct us_cache_options *o, const char *const *names,
                               const char *const *values, size_t n, struct us_error *e)
{
    struct us_cache *c;

    if (!may_make(a, o, e))
        return NULL;
    c = new_box(a, policy, o);
    if (!c) {
        us_error_fill(e, US_ENOMEM, "no memory for cache '%s'", o->name);
        return NULL;
    }
    us_box(c)->own_tunables = n > 0;
    us_error_fill(e, US_EINVAL, "policy %s refused cache '%s'", policy->name, c->name);
    if (!us_tunables_fill(a, c, names, values, n, e) || policy->geometry(c, e) != US_OK ||
        !set_up(a, c, e)) {
        free_parts(a, c);
        return NULL;
    }
    if (!link_cache(a, c)) {
        const struct us_local_memory memory = local_memory(a);

        us_error_fill(e, US_ENOMEM, "no memory for cache '%s'", c->name);
        policy->destroy(c);
        us_local_fini(&c->local, &memory);
        free_parts(a, c);
        return NULL;
    }
    if (e)
        *e = (struct us_error){.status = US_OK};
    us_schedule(a, c);
    return c;
}

/* Config lock held. Another name for an old cache; NULL without an error when there is none. */
static struct us_cache *merge(struct us_allocator *a, const struct us_cache_options *o,
                              unsigned *number, struct us_error *e)
{
    struct us_cache *c;

    if (e)
        *e = (struct us_error){.status = US_OK};
    c = may_make(a, o, e) ? us_alias_target(a, o) : NULL;
    return c && us_alias_add(c, o, number, e) ? c : NULL;
}

struct us_cache *us_cache_create_numbered(struct us_allocator *a, const struct us_cache_options *o,
                                          const char *const *names, const char *const *values,
                                          size_t n, unsigned *number, struct us_error *e)
{
    struct us_cache *c = NULL;

    us_config_take(a);
    if (n == 0)
        c = merge(a, o, number, e);
    if (!c) {
        c = us_cache_make(a, a->policy, o, names, values, n, e);
        *number = c ? c->id : UINT_MAX;
    }
    us_config_drop(a);
    return c;
}

struct us_cache *us_cache_create_with(struct us_allocator *a, const struct us_cache_options *o,
                                      const char *const *names, const char *const *values, size_t n,
                                      struct us_error *e)
{
    unsigned number;

    return us_cache_create_numbered(a, o, names, values, n, &number, e);
}

struct us_cache *us_cache_create(struct us_allocator *a, const struct us_cache_options *o,
                                 struct us_error *e)
{
    return us_cache_create_with(a, o, NULL, NULL, 0, e);
}

/* ---- the end ----------------------------------------------------------------------------------
 */

static void unlink_cache(struct us_allocator *a, struct us_cache *c)
{
    struct us_cache **at = &a->caches;
    unsigned i = 0;

    while (*at != c)
        at = &(*at)->next;
    __atomic_store_n(at, c->next, __ATOMIC_RELEASE);
    while (a->locals[i] != &c->local)
        i++;
    a->locals[i] = a->locals[--a->ncaches];
}

static void release_slabs(struct us_allocator *a, struct us_cache *c, struct us_flight *f)
{
    struct us_slab_walk walk;
    struct us_slab *s;

    us_slab_walk_begin(&walk, a);
    while ((s = us_slab_walk_next(&walk)) != NULL)
        if (s->cache == c)
            us_slab_release(c, f, s);
}

/* Config lock held, gate shut in f and all regions closed. */
static void unmake_stopped(struct us_cache *c, struct us_flight *f)
{
    struct us_allocator *a = c->owner;
    const struct us_local_memory memory = local_memory(a);

    unlink_cache(a, c);
    release_slabs(a, c, f);
    us_rcu_fini(c);
    c->policy->destroy(c);
    us_local_fini(&c->local, &memory);
    us_misuse_forget(c);
    us_lock_retire(a->machine, &c->stats_lock);
    us_alias_fini(c);
    free_parts(a, c);
}

void us_cache_unmake(struct us_cache *c)
{
    struct us_allocator *a = c->owner;
    struct us_flight f;

    us_allocator_stop(a, &f);
    unmake_stopped(c, &f);
    us_allocator_resume(a, &f);
}

static void explain_live(struct us_cache *c, const struct us_account *account, struct us_error *e)
{
    uint64_t address[REPORTED_LIVE];
    char text[sizeof(e->text)] = "";
    size_t n = us_cache_live(c, address, REPORTED_LIVE), i, length = 0;

    for (i = 0; i < n && i < REPORTED_LIVE; i++) {
        const struct us_slab *s = us_slab_of(c->slabs, (void *)(uintptr_t)address[i]);

        length = us_append(text, sizeof(text), length, "%s0x%llx (slab 0x%llx)", i ? ", " : "",
                           (unsigned long long)address[i],
                           (unsigned long long)(uintptr_t)us_slab_base(c->slabs, s));
    }
    if (n > REPORTED_LIVE)
        us_append(text, sizeof(text), length, ", ...");
    us_error_fill(
        e, US_EBUSY,
        "cache '%s' has %llu live object%s (%llu slab%s left): free or destroy with force; at %s",
        c->name, (unsigned long long)account->live_objects, account->live_objects == 1 ? "" : "s",
        (unsigned long long)account->slabs, account->slabs == 1 ? "" : "s", text);
}

static void explain_prefilled(const struct us_cache *c, const struct us_account *account,
                              struct us_error *e)
{
    char text[100] = "";

    us_append_prefilled(text, sizeof(text), 0, account);
    us_error_fill(e, US_EBUSY, "cache '%s' has %s out: return or destroy with force", c->name,
                  text);
}

/* Config lock held. */
static enum us_status destroy(struct us_cache *c, bool force, struct us_error *error)
{
    struct us_allocator *a = c->owner;
    struct us_account account;
    struct us_flight f;

    us_cache_rcu_barrier(c);
    us_flight_enter(a->machine, &f);
    us_flush_cache(c, &f, false);
    us_shrink_cache(c, &f, false);
    us_flight_leave(&f);
    us_cache_account(c, &account);
    if (account.live_objects && !force) {
        explain_live(c, &account, error);
        return US_EBUSY;
    }
    if (account.prefilled && !force) {
        explain_prefilled(c, &account, error);
        return US_EBUSY;
    }
    us_cache_unmake(c);
    return US_OK;
}

/* Config lock held. */
static enum us_status end_name(struct us_cache *c, unsigned number, bool force,
                               struct us_error *error)
{
    struct us_allocator *a = c->owner;

    if ((c->general || c == a->large) && number == c->id)
        return us_error_fill(error, US_EINVAL,
                             "cache '%s' is a general cache: it ends with its allocator", c->name);
    if (us_alias_count(c) == 1)
        return destroy(c, force, error);
    us_alias_drop(c, number);
    return US_OK;
}

enum us_status us_cache_end_name(struct us_cache *c, unsigned number, bool force,
                                 struct us_error *error)
{
    struct us_allocator *a = c->owner;
    enum us_status status;

    us_config_take(a);
    status = end_name(c, number, force, error);
    us_config_drop(a);
    return status;
}

enum us_status us_cache_destroy(struct us_cache *c, bool force, struct us_error *error)
{
    struct us_allocator *a = c->owner;
    const struct us_alias *newest;
    enum us_status status;

    us_config_take(a);
    newest = us_box(c)->aliases;
    status = end_name(c, newest ? newest->id : c->id, force, error);
    us_config_drop(a);
    return status;
}

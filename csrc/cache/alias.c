/* alias.c - several names for one cache.
 *
 * With merging on, a new cache takes on an old one that would be just like it, and is then one more
 * name for it: the two share slabs, queues, tunables and statistics, and the cache lives until its
 * last name is given up. The rules are SLUB's. Caches are looked at newest first, and one serves
 * when
 *   - neither has checks, a constructor, or tunables of its own given at creation (SLUB: a sheaf
 *     capacity of its own), which the other's users have not asked for;
 *   - the new size, rounded up to its alignment, fits the stride and leaves less than a word;
 *   - the stride is a multiple of the new alignment;
 *   - the flags agree that say what objects are for: reclaim_account and account, and two that SLUB
 *     does not have, lowmem and mem_spread, since they change how objects are kept and placed.
 * The cache's object size becomes the greater of both. General caches take part, kmalloc-large does
 * not.
 *
 * Names. Each has a number of its own, as a cache has; the number of the cache is that of the name
 * it was made under. When that name goes first, the cache goes on under its oldest other name.
 * Names come and go as caches do: added by one atomic store from inside a flight, with the config
 * lock held, taken away with the gate shut.
 */
#include "cache/internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define SAME_FLAGS (US_RECLAIM_ACCOUNT | US_ACCOUNT | US_LOWMEM | US_MEM_SPREAD)

static struct us_alias *first_alias(const struct us_cache *c)
{
    return __atomic_load_n(&((const struct us_cache_box *)c)->aliases, __ATOMIC_ACQUIRE);
}

/* Config lock or flight. */
static const struct us_alias *oldest_alias(const struct us_cache *c)
{
    const struct us_alias *alias = first_alias(c);

    while (alias && alias->next)
        alias = alias->next;
    return alias;
}

static bool has_own_name(const struct us_cache *c)
{
    return !__atomic_load_n(&((const struct us_cache_box *)c)->renamed, __ATOMIC_ACQUIRE);
}

unsigned us_alias_count(const struct us_cache *c)
{
    const struct us_alias *alias;
    unsigned n = has_own_name(c);

    for (alias = first_alias(c); alias; alias = alias->next)
        n++;
    return n;
}

/* ---- merging ----------------------------------------------------------------------------------
 */

static bool serves(const struct us_cache *c, const struct us_cache_options *o)
{
    const size_t align = us_align_of(o->size, o->align, o->flags, US_LINE);
    const size_t size = (o->size + align - 1) / align * align, stride = c->geometry.stride;

    if ((c->flags & US_DEBUG_F) || c->has_constructor || us_box((struct us_cache *)c)->own_tunables)
        return false;
    if ((c->flags ^ o->flags) & SAME_FLAGS)
        return false;
    return size <= stride && stride - size < sizeof(void *) && stride % align == 0;
}

struct us_cache *us_alias_target(struct us_allocator *a, const struct us_cache_options *o)
{
    struct us_cache *c;

    if (!a->merge || (o->flags & US_DEBUG_F) || o->pattern_bytes || o->constructor)
        return NULL;
    for (c = us_first_cache(a); c; c = c->next)
        if (c != a->large && serves(c, o))
            return c;
    return NULL;
}

bool us_alias_add(struct us_cache *c, const struct us_cache_options *o, unsigned *id,
                  struct us_error *e)
{
    struct us_allocator *a = c->owner;
    struct us_alias *alias = us_meta_alloc(a->memory, sizeof(*alias));
    struct us_flight f;

    if (!alias) {
        us_error_fill(e, US_ENOMEM, "no memory for cache '%s'", o->name);
        return false;
    }
    snprintf(alias->name, sizeof(alias->name), "%s", o->name);
    alias->id = a->next_id++;
    alias->next = us_box(c)->aliases;
    us_flight_enter(a->machine, &f);
    if (c->size < o->size)
        __atomic_store_n(&c->size, o->size, __ATOMIC_RELAXED);
    __atomic_store_n(&us_box(c)->aliases, alias, __ATOMIC_RELEASE);
    us_flight_leave(&f);
    *id = alias->id;
    return true;
}

/* Gate shut. What the cache is called from now on. */
static void rename_cache(struct us_cache *c)
{
    const struct us_alias *alias = oldest_alias(c);

    if (us_box(c)->renamed)
        snprintf(c->name, sizeof(c->name), "%s", alias->name);
}

void us_alias_drop(struct us_cache *c, unsigned id)
{
    struct us_allocator *a = c->owner;
    struct us_alias **at = &us_box(c)->aliases, *gone = NULL;
    struct us_flight f;

    us_allocator_stop(a, &f);
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (*at) {
        gone = *at;
        *at = gone->next;
    } else {
        us_box(c)->renamed = true;
    }
    rename_cache(c);
    us_allocator_resume(a, &f);
    if (gone)
        us_meta_free(a->memory, gone, sizeof(*gone));
}

void us_alias_fini(struct us_cache *c)
{
    struct us_allocator *a = c->owner;
    struct us_alias *alias;

    while ((alias = us_box(c)->aliases) != NULL) {
        us_box(c)->aliases = alias->next;
        us_meta_free(a->memory, alias, sizeof(*alias));
    }
}

/* ---- names ------------------------------------------------------------------------------------
 */

/* Of the name; UINT_MAX when the cache has no such name. Config lock or flight. */
unsigned us_alias_find(const struct us_cache *c, const char *name)
{
    const struct us_alias *alias;

    if (has_own_name(c) && strcmp(c->name, name) == 0)
        return c->id;
    for (alias = first_alias(c); alias; alias = alias->next)
        if (strcmp(alias->name, name) == 0)
            return alias->id;
    return UINT_MAX;
}

unsigned us_cache_number(const struct us_cache *c)
{
    const struct us_alias *alias = has_own_name(c) ? NULL : oldest_alias(c);

    return alias ? alias->id : c->id;
}

static const char *name_of(const struct us_cache *c, unsigned number)
{
    const struct us_alias *alias;

    if (has_own_name(c) && c->id == number)
        return c->name;
    for (alias = first_alias(c); alias; alias = alias->next)
        if (alias->id == number)
            return alias->name;
    return NULL;
}

bool us_cache_name(struct us_allocator *a, const struct us_cache *cache, unsigned number,
                   char name[US_NAME_MAX])
{
    const char *found = NULL;
    const struct us_cache *c;
    struct us_flight f;

    us_flight_enter(a->machine, &f);
    for (c = us_first_cache(a); c && c != cache; c = c->next)
        ;
    if (c)
        found = name_of(c, number);
    if (found)
        snprintf(name, US_NAME_MAX, "%s", found);
    us_flight_leave(&f);
    return found != NULL;
}

struct us_cache *us_cache_named(struct us_allocator *a, const char *name, unsigned *number)
{
    struct us_cache *c;
    struct us_flight f;

    us_flight_enter(a->machine, &f);
    for (c = us_first_cache(a); c; c = c->next)
        if ((*number = us_alias_find(c, name)) != UINT_MAX)
            break;
    us_flight_leave(&f);
    return c;
}

size_t us_cache_names(struct us_cache *c, char (*names)[US_NAME_MAX], size_t most)
{
    const struct us_alias *alias;
    struct us_flight f;
    size_t n, at;

    us_flight_enter(c->machine, &f);
    n = at = us_alias_count(c);
    for (alias = first_alias(c); alias; alias = alias->next)
        if (--at < most)
            snprintf(names[at], US_NAME_MAX, "%s", alias->name);
    if (at == 1 && most > 0) /* the oldest of all */
        snprintf(names[0], US_NAME_MAX, "%s", c->name);
    us_flight_leave(&f);
    return n;
}

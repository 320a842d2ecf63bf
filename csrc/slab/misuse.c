/* misuse.c - the record of misuses of memory that were found late.
 *
 * Who finds one may hold any lock or be a signal handler, so a record is taken by one atomic
 * exchange, and one that another thread is just writing or reading is passed over: the count still
 * tells.
 */
#include "slab/internal.h"

#include <stdio.h>
#include <string.h>

#define RECORDS 64u

struct record {
    _Atomic uint32_t busy;
    uint64_t number; /* from 1 in the order of finding; 0 = empty */
    unsigned cache_id;
    struct us_misuse misuse;
};

struct us_misuse_log {
    _Atomic uint64_t found;
    struct record record[RECORDS];
};

bool us_misuse_init(struct us_slabs *slabs)
{
    slabs->misuse = us_meta_alloc(slabs->memory, sizeof *slabs->misuse);
    return slabs->misuse != NULL;
}

static bool acquire(struct record *r)
{
    return atomic_exchange_explicit(&r->busy, 1, memory_order_acquire) == 0;
}

static void release(struct record *r)
{
    atomic_store_explicit(&r->busy, 0, memory_order_release);
}

static const char *name_of(const struct us_slab *s)
{
    return s && s->cache ? s->cache->name : "?";
}

/* What was found, what was expected. */
static void describe(struct us_misuse *m, const struct us_slab *s)
{
    const struct us_cache *c = m->cache;
    const struct us_range *range = &c->slabs->range;
    unsigned long long address = m->address, base = m->slab_base;
    char *text = m->text;
    const size_t room = sizeof m->text;

    switch (m->kind) {
    case US_MISUSE_OUTSIDE:
        snprintf(text, room,
                 "found %#llx, outside the allocator's range; expected an object of cache"
                 " '%s' in %#llx..%#llx",
                 address, c->name, (unsigned long long)range->base,
                 (unsigned long long)(range->base + range->length));
        return;
    case US_MISUSE_NO_SLAB:
        snprintf(text, room, "found %#llx, on a page of no slab; expected an object of cache '%s'",
                 address, c->name);
        return;
    case US_MISUSE_NO_OBJECT:
        snprintf(text, room,
                 "found %#llx, %llu bytes into slab %#llx; expected the start of one of"
                 " %u objects of %zu bytes of cache '%s'",
                 address, address - base, base, s ? us_slab_objects(s) : 0, c->geometry.stride,
                 c->name);
        return;
    case US_MISUSE_WRONG_CACHE:
        snprintf(text, room,
                 "found %#llx, of cache '%s' (slab %#llx); expected an object of cache"
                 " '%s'",
                 address, name_of(s), base, c->name);
        return;
    case US_MISUSE_DOUBLE_FREE:
        snprintf(text, room,
                 "found %#llx free already in slab %#llx of cache '%s'; expected each"
                 " object to be freed once",
                 address, base, c->name);
        return;
    case US_MISUSE_LIST:
        snprintf(text, room,
                 "found %#llx on a damaged free list of slab %#llx of cache '%s'; expected"
                 " no write after free",
                 address, base, c->name);
        return;
    }
    snprintf(text, room, "found misuse of kind %d at %#llx of cache '%s'", (int)m->kind, address,
             c->name);
}

void us_report_misuse(struct us_cache *c, enum us_misuse_kind kind, const void *object)
{
    struct us_misuse_log *log = c->slabs->misuse;
    struct us_slab *s = us_slab_of(c->slabs, object);
    uint64_t number = atomic_fetch_add_explicit(&log->found, 1, memory_order_relaxed) + 1;
    struct record *r = &log->record[number % RECORDS];

    atomic_fetch_add_explicit(&c->misuses, 1, memory_order_relaxed);
    if (s && s->cache == c) /* another cache's slab did nothing wrong */
        atomic_fetch_or_explicit(&s->state, US_SLAB_BAD, memory_order_relaxed);
    if (!acquire(r))
        return;
    r->number = number;
    r->cache_id = c->id;
    r->misuse.kind = kind;
    r->misuse.cache = c;
    r->misuse.address = (uint64_t)(uintptr_t)object;
    r->misuse.slab_base = s ? (uint64_t)(uintptr_t)us_slab_base(c->slabs, s) : 0;
    describe(&r->misuse, s);
    release(r);
}

size_t us_misuse_count(const struct us_cache *c)
{
    return (size_t)atomic_load_explicit(&((struct us_cache *)c)->misuses, memory_order_relaxed);
}

size_t us_misuse_list(const struct us_cache *c, struct us_misuse *out, size_t n)
{
    struct us_misuse_log *log = c->slabs->misuse;
    uint64_t found = atomic_load_explicit(&log->found, memory_order_relaxed);
    size_t listed = 0;

    for (uint64_t i = 1; i <= RECORDS && listed < n; i++) {
        /* The oldest of the kept ones lies where the next one will go. */
        struct record *r = &log->record[(found + i) % RECORDS];

        if (!acquire(r))
            continue;
        if (r->number && r->misuse.cache == c && r->cache_id == c->id)
            out[listed++] = r->misuse;
        release(r);
    }
    return listed;
}

void us_misuse_forget(struct us_cache *c)
{
    struct us_misuse_log *log = c->slabs->misuse;

    for (unsigned i = 0; i < RECORDS; i++) {
        struct record *r = &log->record[i];

        if (!acquire(r))
            continue;
        if (r->misuse.cache == c)
            r->number = 0;
        release(r);
    }
}

void us_misuse_fork_child(struct us_slabs *slabs)
{
    for (unsigned i = 0; i < RECORDS; i++) {
        struct record *r = &slabs->misuse->record[i];

        if (!acquire(r))
            r->number = 0;
        release(r);
    }
}

/* inspect.c - accounts, snapshots and lists of live objects, all with the gate shut. */
#include "cache/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- accounts ----------------------------------------------------------------------------------
 */

static void count_stock(void *context, const struct us_stock *stock, void *const *object)
{
    struct us_account *account = context;

    (void)object;
    account->queued_objects += stock->objects;
    if (stock->kind != US_STOCK_PREFILLED)
        return;
    account->prefilled++;
    account->prefilled_objects += stock->objects;
}

static void ignore_listed(void *context, struct us_slab *slab, unsigned node, const char *list,
                          uint64_t position)
{
    (void)context;
    (void)slab;
    (void)node;
    (void)list;
    (void)position;
}

static void count_slab(struct us_account *account, const struct us_allocator *a,
                       const struct us_slab *s)
{
    const uint8_t state = atomic_load(&s->state);
    const uint64_t objects = us_slab_objects(s);

    account->slabs++;
    account->objects += objects;
    account->reserved += us_slab_bytes(a, s);
    account->partial += (state & US_SLAB_PARTIAL) != 0 && s->free > 0; /* there are full lists */
    account->cpu_slabs += (state & US_SLAB_FROZEN) != 0;
    if (!(state & US_SLAB_LARGE))
        account->free_objects += state & US_SLAB_PRIVATE ? objects : s->free;
}

/* Slabs are counted: adds the stocks and turns objects into bytes. */
static void settle_account(struct us_cache *c, struct us_account *account)
{
    const struct us_visitor visitor = {account, count_stock, ignore_listed, NULL};
    const uint64_t stride = c->geometry.stride;
    uint64_t most;
    unsigned node;
    void *object;

    c->policy->visit(c, &visitor);
    for (node = 0; node < c->machine->nnodes; node++)
        for (object = atomic_load(&c->deferred[node]); object; object = *(void **)object)
            account->queued_objects++;
    /* An object freed twice may be in two stocks; the bytes add up all the same. */
    most = account->objects - account->free_objects;
    if (account->queued_objects > most)
        account->queued_objects = most;
    account->live_objects = most - account->queued_objects;
    if (c == us_cache_allocator(c)->large) {
        account->live = account->reserved;
        return;
    }
    account->live = account->live_objects * stride;
    account->queued = account->queued_objects * stride;
    account->free_in_slabs = account->free_objects * stride;
    account->waste = account->reserved - account->objects * stride;
}

void us_cache_account(struct us_cache *c, struct us_account *out)
{
    struct us_allocator *a = c->owner;
    struct us_slab_walk walk;
    struct us_flight f;
    struct us_slab *s;

    memset(out, 0, sizeof(*out));
    us_allocator_stop(a, &f);
    us_slab_walk_begin(&walk, a);
    while ((s = us_slab_walk_next(&walk)) != NULL)
        if (s->cache == c)
            count_slab(out, a, s);
    settle_account(c, out);
    us_allocator_resume(a, &f);
}

static void add_account(struct us_account *total, const struct us_account *part)
{
    total->live += part->live;
    total->queued += part->queued;
    total->free_in_slabs += part->free_in_slabs;
    total->waste += part->waste;
    total->reserved += part->reserved;
    total->live_objects += part->live_objects;
    total->queued_objects += part->queued_objects;
    total->free_objects += part->free_objects;
    total->slabs += part->slabs;
    total->objects += part->objects;
    total->partial += part->partial;
    total->cpu_slabs += part->cpu_slabs;
    total->prefilled += part->prefilled;
    total->prefilled_objects += part->prefilled_objects;
}

#ifdef US_CHECK
/* Every page handed out is in a slab of some cache. */
static void check_reserved(uint64_t of_caches, uint64_t of_memory)
{
    if (of_caches == of_memory)
        return;
    fprintf(stderr,
            "unislab: the caches' slabs have %llu bytes, the page provider handed out %llu\n",
            (unsigned long long)of_caches, (unsigned long long)of_memory);
    abort();
}
#endif

void us_allocator_account(struct us_allocator *a, struct us_account *total,
                          struct us_memory_account *memory)
{
    struct us_memory_account now;
    struct us_slab_walk walk;
    struct us_flight f;
    struct us_cache *c;
    struct us_slab *s;

    memset(total, 0, sizeof(*total));
    us_allocator_stop(a, &f);
    for (c = us_first_cache(a); c; c = c->next)
        memset(&us_box(c)->account, 0, sizeof(us_box(c)->account));
    us_slab_walk_begin(&walk, a);
    while ((s = us_slab_walk_next(&walk)) != NULL)
        count_slab(&us_box(s->cache)->account, a, s);
    for (c = us_first_cache(a); c; c = c->next) {
        settle_account(c, &us_box(c)->account);
        add_account(total, &us_box(c)->account);
    }
    us_memory_settle(a->memory, &f);
    us_memory_account(a->memory, &now);
    us_allocator_resume(a, &f);
    if (memory)
        *memory = now;
#ifdef US_CHECK
    check_reserved(total->reserved, now.reserved);
#endif
}

/* ---- snapshot -------------------------------------------------------------------------------- */

static uint8_t place_of(const struct us_view_slab *e)
{
    const uint8_t state = atomic_load(&e->slab->state);

    if (state & US_SLAB_LARGE)
        return 3;
    if (state & US_SLAB_FROZEN)
        return 2;
    if (e->free_list)
        return 4;
    return state & US_SLAB_PARTIAL && !e->full_list ? 1 : 0;
}

static struct us_slab_row row_of(const struct us_cache *c, const struct us_view_slab *e)
{
    const struct us_slab *s = e->slab;
    const uint32_t objects = us_slab_objects(s);

    return (struct us_slab_row){
        .address = (uint64_t)(uintptr_t)us_slab_base(c->slabs, s),
        .objects = objects,
        .in_use = objects - e->free - e->queued,
        .free = e->free,
        .queued = e->queued,
        .order = (uint8_t)us_slab_order(s),
        .node = (int16_t)s->node,
        .cpu = e->cpu,
        .place = place_of(e),
        .position = e->position,
    };
}

static bool take_rows(const struct us_cache *c, struct us_view *v, struct us_snapshot *out)
{
    size_t i;

    out->slab = calloc(v->nslabs + 1, sizeof(*out->slab));
    if (!out->slab)
        return false;
    for (i = 0; i < v->nslabs; i++)
        out->slab[i] = row_of(c, &v->slab[i]);
    out->nslabs = v->nslabs;
    out->stock = v->stock;
    out->nstocks = v->nstocks;
    out->address = v->address;
    out->naddresses = v->naddresses;
    v->stock = NULL;
    v->address = NULL;
    return true;
}

enum us_status us_cache_snapshot(struct us_cache *c, struct us_snapshot *out, struct us_error *e)
{
    struct us_allocator *a = c->owner;
    struct us_view view = {.wrong = NULL};
    struct us_flight f;
    bool whole;

    memset(out, 0, sizeof(*out));
    us_allocator_stop(a, &f);
    whole = us_view_init(&view, c) && take_rows(c, &view, out);
    us_allocator_resume(a, &f);
    us_view_fini(&view);
    if (whole)
        return US_OK;
    return us_error_fill(e, US_ENOMEM, "no memory for a snapshot of cache '%s'", c->name);
}

void us_snapshot_free(struct us_snapshot *s)
{
    free(s->slab);
    free(s->stock);
    free(s->address);
    memset(s, 0, sizeof(*s));
}

/* ---- live objects ---------------------------------------------------------------------------- */

static bool is_live(const struct us_view *v, const struct us_view_slab *e, uint32_t index)
{
    const uint8_t place = v->place[e->first + index];

    if (place != US_IN_USE)
        return place == US_WAITING;
    return !(v->cache->flags & US_DEBUG_F) || us_used_test(v->cache, e->slab, index);
}

static size_t list_live(const struct us_view *v, uint64_t *out, size_t n)
{
    size_t found = 0, k;
    uint32_t i;

    for (k = 0; k < v->nslabs; k++)
        for (i = 0; i < us_slab_objects(v->slab[k].slab); i++) {
            if (!is_live(v, &v->slab[k], i))
                continue;
            if (found < n)
                out[found] = (uint64_t)(uintptr_t)us_object_address(v->cache, v->slab[k].slab, i);
            found++;
        }
    return found;
}

size_t us_cache_live(struct us_cache *c, uint64_t *out, size_t n)
{
    struct us_allocator *a = c->owner;
    struct us_view view = {.wrong = NULL};
    struct us_flight f;
    size_t found = 0;

    us_allocator_stop(a, &f);
    if (us_view_init(&view, c))
        found = list_live(&view, out, n);
    us_allocator_resume(a, &f);
    us_view_fini(&view);
    return found;
}

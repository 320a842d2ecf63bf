/* slub_slab.c - partial lists, freelists, the life of a CPU slab. States and locks: slub.c. */
#include "policy/slub_slab.h"

/* ---- partial lists (node lock and slab lock held) ------------------------------------ */

static void note_length(struct us_slub_node *n)
{
    atomic_store_explicit(&n->nr_partial, n->partial.length, memory_order_relaxed);
}

void us_slub_list_add(struct us_slub_node *n, struct us_slab *s, bool at_tail)
{
    if (at_tail)
        us_slab_list_tail(&n->partial, s);
    else
        us_slab_list_head(&n->partial, s);
    note_length(n);
}

void us_slub_list_remove(struct us_slub_node *n, struct us_slab *s)
{
    us_slab_list_remove(&n->partial, s);
    note_length(n);
}

/* First slab of the list whose lock is free: both locks are then held. */
struct us_slab *us_slub_lock_listed(struct us_flight *f, struct us_slub_node *n)
{
    struct us_slab *s;

    if (us_slub_nr_partial(n) == 0 || !us_lock_take(f, &n->lock))
        return NULL;
    for (s = n->partial.first; s; s = s->next)
        if (us_bytelock_try(f, &s->lock))
            return s;
    us_lock_drop(f, &n->lock);
    return NULL;
}

/* ---- links (slab lock held, or the slab private) ------------------------------------- */

/* One object off the slab's own freelist; NULL when the chain is broken. */
void *us_slub_pop_free(const struct us_cache *c, struct us_slab *s)
{
    void *object = s->freelist, *next;

    if (!us_slub_read_link(c, s, object, &next) || (next == NULL) != (s->free == 1))
        return NULL;
    s->freelist = next;
    us_slub_set_free(s, s->free - 1);
    return object;
}

/* The CPU's freelist of a private slab. */
void us_slub_set_local(struct us_slab *s, void *head, uint32_t size)
{
    s->local.head = head;
    __atomic_store_n(&s->local.count, size, __ATOMIC_RELAXED); /* statistics may be looking */
    s->installed = size;
}

bool us_slub_pop_local(const struct us_cache *c, struct us_slab *s, void **object)
{
    const uint32_t size = us_list_size(s->local.count);
    void *next;

    *object = s->local.head;
    if (size == 0 || !us_slub_read_link(c, s, *object, &next) || (next == NULL) != (size == 1))
        return false;
    us_slub_set_local(s, next, size - 1);
    return true;
}

/* Moves the CPU's freelist, object by object, to the slab's own; false when the chain is broken. */
static bool return_local(const struct us_cache *c, struct us_slab *s)
{
    uint32_t size = us_list_size(s->local.count);
    void *object = s->local.head, *next;

    if (s->free + size > us_slab_objects(s))
        return false;
    for (; size > 0; size--) {
        if (!us_slub_read_link(c, s, object, &next))
            break;
        us_slub_push_free(c, s, object);
        object = next;
    }
    us_slub_set_local(s, object, size); /* what could not be moved */
    return object == NULL && size == 0;
}

/* What its lists held is counted as free and never handed out again. */
void us_slub_isolate(struct us_cache *c, struct us_slab *s, const void *seen)
{
    const bool inside = seen && us_cache_slab(c, seen) == s;
    const uint32_t free = s->free + us_list_size(s->local.count), objects = us_slab_objects(s);

    us_report_misuse(c, US_MISUSE_LIST, inside ? seen : us_slab_base(c->slabs, s));
    s->freelist = NULL;
    us_slub_set_free(s, free < objects ? free : objects);
    us_slub_set_local(s, NULL, 0);
    s->installed = US_SLUB_ISOLATED;
    us_slub_set_state(s, US_SLAB_BAD);
}

/* ---- the CPU slab -------------------------------------------------------------------- */

bool us_slub_walk(const struct us_cache *c, const struct us_slab *s, uint32_t *size)
{
    const uint32_t most = us_slab_objects(s);
    void *object = __atomic_load_n(&s->local.head, __ATOMIC_RELAXED), *next;

    *size = 0;
    while (object && *size < most && us_slub_read_link(c, s, object, &next)) {
        object = next;
        ++*size;
    }
    return object == NULL;
}

/* What is read may be anything by now, but for pages that the slab was told to have: those were
 * made accessible, and stay so. */
bool us_slub_length(const struct us_local *l, struct us_list *list, uint32_t *size)
{
    const struct us_cache *c =
        (const struct us_cache *)((const char *)l - offsetof(struct us_cache, local));
    const struct us_slab *s = us_slub_slab_of_list(list);
    const uint32_t most = us_slab_objects(s);
    void *object = __atomic_load_n(&s->local.head, __ATOMIC_RELAXED), *next;

    for (*size = 0; object && *size < most; ++*size) {
        if (us_cache_slab(c, object) != s || !us_slub_read_link(c, s, object, &next))
            return false;
        object = next;
    }
    return object == NULL;
}

/* A slab that came off a CPU's word: its fast-path counts go to the CPU's statistics. Of a broken
 * chain nobody knows how many objects it held: all that are not on the slab's own freelist are
 * taken for it, and no pushes are counted; whoever follows the chain will find the break. */
static struct us_slab *settle(struct us_cache *c, unsigned cpu, struct us_list *list)
{
    struct us_slab *s = us_slub_slab_of_list(list);
    const uint64_t pops = us_list_pops(list->count);
    uint32_t size;

    if (us_slub_walk(c, s, &size)) {
        us_local_harvest(&c->local, cpu, pops, size + pops - s->installed);
    } else {
        us_local_harvest(&c->local, cpu, pops, 0);
        size = us_slab_objects(s) - s->free;
    }
    us_slub_set_local(s, list->head, size);
    return s;
}

struct us_slab *us_slub_detach(struct us_cache *c, struct us_flight *f, unsigned *cpu)
{
    struct us_list *list = us_local_detach(&c->local, f, 0, cpu);

    return list ? settle(c, *cpu, list) : NULL;
}

void us_slub_release(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    us_count(c, cpu, US_SLUB_FREE_SLAB);
    us_slab_release(c, f, s);
}

/* Gives a frozen slab up, its lock being held; it drops the lock. False: the node lock was busy,
 * nothing has changed and the slab lock is kept. *empty: the caller has to release the slab. */
static bool unfreeze(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                     bool try_only, bool *empty)
{
    struct us_slub_node *n = us_slub_node_of(c, s);
    const uint32_t size = us_list_size(s->local.count), total = s->free + size;
    const bool is_empty = total == us_slab_objects(s);
    const bool listed =
        total > 0 && (!is_empty || us_slub_nr_partial(n) < us_slub_of(c)->min_partial);
    const bool remote_frees = s->free > 0;

    if (listed && !(try_only ? us_lock_try(f, &n->lock) : us_lock_take(f, &n->lock)))
        return false;
    if (!return_local(c, s)) {
        us_slub_isolate(c, s, s->local.head);
    } else {
        us_stat_add(c, cpu, US_NCOMMON + US_SLUB_MOVED, size);
        us_slub_set_state(s, is_empty && !listed ? US_SLAB_PRIVATE : 0);
        if (remote_frees)
            us_count(c, cpu, US_SLUB_DEACTIVATE_REMOTE_FREES);
        if (total == 0)
            us_count(c, cpu, US_SLUB_DEACTIVATE_FULL);
        else if (is_empty)
            us_count(c, cpu, US_SLUB_DEACTIVATE_EMPTY);
        else
            us_count(c, cpu, size ? US_SLUB_DEACTIVATE_TO_HEAD : US_SLUB_DEACTIVATE_TO_TAIL);
        if (listed)
            us_slub_list_add(n, s, is_empty || size == 0);
        *empty = is_empty && !listed;
    }
    if (listed)
        us_lock_drop(f, &n->lock);
    us_slub_drop(f, s);
    return true;
}

/* Deactivates a private slab; `locked` tells that the slab lock is held. Not for nested flights. */
void us_slub_deactivate(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s,
                        bool locked)
{
    bool empty = false;

    if (!locked)
        us_slub_take(f, s);
    if (!unfreeze(c, f, cpu, s, false, &empty))
        __builtin_trap(); /* a flight that is not nested gets its locks */
    if (empty)
        us_slub_release(c, f, cpu, s);
}

/* Makes a private slab the CPU's; deactivates it when that CPU was left or its region is closed. */
void us_slub_install(struct us_cache *c, struct us_flight *f, unsigned cpu, struct us_slab *s)
{
    int tries;

    for (tries = 0; tries < 4; tries++) {
        struct us_slab *other;
        unsigned now;

        if (us_local_install(&c->local, f, 0, cpu, &s->local) == US_LOCAL_OK)
            return;
        if (us_cpu_now(c->machine) != cpu)
            break;
        other = us_slub_detach(c, f, &now);
        if (!other)
            break;
        if (now != cpu) { /* moved this very moment: that CPU's slab goes back to it */
            if (us_local_install(&c->local, f, 0, now, &other->local) != US_LOCAL_OK)
                us_slub_deactivate(c, f, now, other, false);
            break;
        }
        us_count(c, cpu, US_SLUB_CPUSLAB_FLUSH);
        us_slub_deactivate(c, f, cpu, other, false);
    }
    us_slub_deactivate(c, f, cpu, s, false);
}

/* ---- flush, shrink ------------------------------------------------------------------- */

void us_slub_flush_cpu(struct us_cache *c, struct us_flight *f, unsigned cpu, bool try_only)
{
    struct us_slab *s = NULL;
    struct us_list *list;
    void *region;
    bool empty = false;

    if (f->nested || !us_local_populated(&c->local, cpu))
        return;
    if (!us_local_close(&c->local, f, cpu, try_only, &region))
        return;
    list = region ? us_words_detach_c(region, 0) : NULL;
    if (list) {
        s = settle(c, cpu, list);
        if (!(try_only ? us_bytelock_try(f, &s->lock) : us_bytelock_take(f, &s->lock))) {
            us_words_install_c(region, 0, list);
        } else if (!unfreeze(c, f, cpu, s, try_only, &empty)) {
            us_slub_drop(f, s);
            us_words_install_c(region, 0, list);
        } else {
            us_count(c, cpu, US_SLUB_CPUSLAB_FLUSH);
        }
    }
    us_local_open(&c->local, f, cpu);
    if (empty)
        us_slub_release(c, f, cpu, s);
}

/* Takes the empty slabs off a list, as far as their locks are free; chained through next. */
static struct us_slab *unlist_empty(struct us_flight *f, struct us_slub_node *n)
{
    struct us_slab *s, *next, *chain = NULL;

    for (s = n->partial.first; s; s = next) {
        next = s->next;
        if (!us_bytelock_try(f, &s->lock))
            continue;
        if (s->free == us_slab_objects(s)) {
            us_slub_list_remove(n, s);
            us_slub_set_state(s, US_SLAB_PRIVATE);
            s->next = chain;
            chain = s;
        }
        us_slub_drop(f, s);
    }
    return chain;
}

uint64_t us_slub_shrink(struct us_cache *c, struct us_flight *f, unsigned node, bool try_only)
{
    struct us_slub_node *n = &us_slub_of(c)->node[node];
    const unsigned cpu = us_cpu_now(c->machine);
    struct us_slab *s, *next;
    uint64_t bytes = 0;

    if (f->nested)
        return 0;
    if (!try_only)
        us_slub_check_deferred(c, f, node);
    if (!(try_only ? us_lock_try(f, &n->lock) : us_lock_take(f, &n->lock)))
        return 0;
    s = unlist_empty(f, n);
    us_slab_list_sort(&n->partial);
    us_lock_drop(f, &n->lock);
    for (; s; s = next) {
        next = s->next;
        bytes += (uint64_t)c->machine->page_size << us_slab_order(s);
        s->next = NULL;
        us_count(c, cpu, US_SLUB_SHRINK_SLAB);
        us_slab_release(c, f, s);
    }
    return bytes;
}

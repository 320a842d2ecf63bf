/* unified_slabs.c - between the queues and the slabs of the Unified policy.
 *
 * Drains put objects of any nodes back to their slabs, one node lock for each run of objects of one
 * list; refills take objects out of partial slabs. The node lock is held for bit operations and
 * list moves only: objects are ordered by slab before it is taken, and slabs that became entirely
 * free are collected and returned to the page provider after it was dropped.
 *
 * A node has one list, or one for each of its cache domains (split_partial). A slab belongs to the
 * list of the domain that got it, for good: its number stands in the descriptor, and whoever holds
 * an object of it may read that. A miss looks at its own domain's list first, and takes objects
 * from the slabs of others when that has none.
 */
#include "policy/unified.h"

/* ---- the lists ----------------------------------------------------------------------------------
 */

static unsigned domains_on(const struct us_machine *m, unsigned node)
{
    unsigned n = 0;

    for (unsigned d = 0; d < m->ndomains; d++)
        n += m->domain[d].node == node;
    return n;
}

/* The lists of a node begin at list[index]; returns where those of the next node begin. */
static unsigned chain_lists(struct us_unified *st, unsigned node, unsigned index, unsigned lists)
{
    st->of_node[node] = &st->list[index];
    for (unsigned i = 0; i < lists; i++) {
        struct us_unified_list *l = &st->list[index + i];

        us_lock_init(&l->lock, US_LOCK_NODE);
        l->node = node;
        l->index = index + i;
        l->lists = lists;
        l->next = &st->list[index + (i + 1) % lists];
    }
    return index + lists;
}

/* Domains of a node get its lists in turn: one each, or all the same one. */
static void point_domains(struct us_cache *c)
{
    const struct us_unified *st = us_unified_of(c);
    const struct us_machine *m = c->machine;

    for (unsigned d = 0; d < m->ndomains; d++) {
        struct us_unified_list *l = st->of_node[m->domain[d].node];

        for (unsigned before = 0; before < d; before++)
            if (m->domain[before].node == m->domain[d].node)
                l = l->next;
        for (unsigned i = 0; i < m->domain[d].ncpus; i++)
            st->of_cpu[us_domain_cpu(m, d, i)] = l;
    }
}

bool us_unified_make_lists(struct us_cache *c)
{
    const bool split = us_unified_setting(c, US_UNIFIED_T_SPLIT_PARTIAL) != 0;
    const struct us_machine *m = c->machine;
    struct us_memory *mem = c->slabs->memory;
    struct us_unified *st = us_unified_of(c);
    unsigned node, index = 0;

    for (node = 0; node < m->nnodes; node++)
        st->nlists += split && domains_on(m, node) ? domains_on(m, node) : 1;
    st->list = us_meta_alloc(mem, st->nlists * sizeof(*st->list));
    st->of_node = us_meta_alloc(mem, m->nnodes * sizeof(*st->of_node));
    st->of_cpu = us_meta_alloc(mem, m->ncpus * sizeof(*st->of_cpu));
    if (!st->list || !st->of_node || !st->of_cpu)
        return false;
    for (node = 0; node < m->nnodes; node++)
        index =
            chain_lists(st, node, index, split && domains_on(m, node) ? domains_on(m, node) : 1);
    point_domains(c);
    return true;
}

void us_unified_drop_lists(struct us_cache *c)
{
    struct us_memory *mem = c->slabs->memory;
    struct us_unified *st = us_unified_of(c);

    for (unsigned i = 0; st->list && i < st->nlists; i++)
        us_lock_retire(c->machine, &st->list[i].lock);
    us_meta_free(mem, st->list, st->nlists * sizeof(*st->list));
    us_meta_free(mem, st->of_node, c->machine->nnodes * sizeof(*st->of_node));
    us_meta_free(mem, st->of_cpu, c->machine->ncpus * sizeof(*st->of_cpu));
}

/* ---- drains -------------------------------------------------------------------------------------
 */

/* min_partial is a node's; its lists share it. */
static uint64_t kept_on(const struct us_cache *c, const struct us_unified_list *list)
{
    us_reads(&c->tunable[US_UNIFIED_T_MIN_PARTIAL], sizeof(*c->tunable));
    us_reads(&list->lists, sizeof(list->lists));
    return ((uint64_t)c->tunable[US_UNIFIED_T_MIN_PARTIAL] + list->lists - 1) / list->lists;
}

/* A slab got objects back: list membership by the rules of 2.7.1. An emptied slab beyond
 * min_partial goes on `empty`, linked by next. */
static void settle(struct us_cache *c, struct us_unified_list *list, unsigned cpu,
                   struct us_slab *s, struct us_slab **empty)
{
    us_runs(25);
    us_reads(s, sizeof(*s));
    const bool is_empty = s->free == us_slab_objects(s);
    const bool listed = (s->state & US_SLAB_PARTIAL) != 0;
    const bool to_tail = is_empty && us_unified_setting(c, US_UNIFIED_T_EMPTY_TO_TAIL);

    if (s->free == 0) /* nothing but objects that were kept out came back */
        return;
    if (is_empty && list->partial.length > kept_on(c, list)) {
        if (listed) {
            us_slab_list_remove(&list->partial, s);
            us_count(c, cpu, US_UNIFIED_FREE_REMOVE_PARTIAL);
            list->touched = true;
        }
        s->next = *empty;
        *empty = s;
        return;
    }
    if (!listed) {
        us_count(c, cpu, US_UNIFIED_FREE_ADD_PARTIAL);
        list->touched = true;
    } else if (to_tail && list->partial.last != s) {
        us_slab_list_remove(&list->partial, s);
    } else {
        return;
    }
    if (to_tail)
        us_slab_list_tail(&list->partial, s);
    else
        us_slab_list_head(&list->partial, s);
}

/* Puts back object[0..n), those of one list; returns how many from the front were dealt with. */
static unsigned drain_list(struct us_cache *c, struct us_flight *f, unsigned cpu,
                           struct us_unified_list *list, void **object, unsigned n)
{
    struct us_slab *empty = NULL, *s = NULL;
    unsigned i;

    if (!us_lock_take(f, &list->lock))
        return 0;
    for (i = 0; i < n; i++) {
        struct us_slab *of = us_slab_to_fill(c, object[i]);

        if (of && us_unified_list_of(c, of) != list)
            break;
        if (of != s && s)
            settle(c, list, cpu, s, &empty);
        s = of;
        if (s)
            us_slab_put(c, s, object[i]);
    }
    if (s)
        settle(c, list, cpu, s, &empty);
    us_lock_drop(f, &list->lock);
    us_slab_release_chain(c, f, cpu, empty, US_UNIFIED_FREE_SLAB);
    return i;
}

void us_unified_drain(struct us_cache *c, struct us_flight *f, unsigned cpu, void **object,
                      unsigned n)
{
    unsigned done = 0;

    if (n > 1 && us_unified_setting(c, US_UNIFIED_T_SORTED_DRAIN))
        us_sort_addresses(object, n);
    while (done < n) {
        struct us_slab *s = us_slab_to_fill(c, object[done]);
        unsigned k = 1;

        if (s)
            k = drain_list(c, f, cpu, us_unified_list_of(c, s), object + done, n - done);
        if (k == 0) /* a nested flight and a busy lock: the next slow path takes it in */
            us_defer_free(c, object[done++]);
        done += k;
    }
}

/* ---- refills ------------------------------------------------------------------------------------
 */

/* Unlinks a slab that has nothing left to give. */
static void leave_if_exhausted(struct us_unified_list *list, struct us_slab *s)
{
    us_reads(s, sizeof(*s));
    if (s->free || !(s->state & US_SLAB_PARTIAL))
        return;
    us_slab_list_remove(&list->partial, s);
    us_writes(&list->touched, sizeof(list->touched));
    list->touched = true;
}

/* Up to n objects of the slabs at the head, or of the one at the tail. */
static unsigned take_listed(struct us_cache *c, struct us_flight *f, struct us_unified_list *list,
                            void **out, unsigned n, bool tail, bool *refused)
{
    unsigned got = 0;
    struct us_slab *s;

    if (!us_lock_take(f, &list->lock)) {
        *refused = true;
        return 0;
    }
    us_runs(25);
    us_reads(&list->partial, sizeof(list->partial));
    while (got < n && (s = tail ? list->partial.last : list->partial.first) != NULL) {
        got += us_slab_take(c, s, out + got, n - got < s->free ? n - got : s->free);
        leave_if_exhausted(list, s);
        if (tail)
            break;
    }
    us_lock_drop(f, &list->lock);
    return got;
}

/* From the CPU's own list of the node, else from the first of the others that has something. */
static unsigned from_lists(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                           void **out, unsigned n, bool tail, bool *refused)
{
    struct us_unified_list *own = us_unified_list_for(c, cpu, node), *list;
    unsigned got = take_listed(c, f, own, out, n, tail, refused);

    us_runs(20);
    us_reads(&own->next, sizeof(own->next));
    for (list = own->next; US_UNLIKELY(list != own) && got == 0 && !*refused; list = list->next)
        if (__atomic_load_n(&list->partial.first, __ATOMIC_RELAXED))
            got = take_listed(c, f, list, out, n, tail, refused);
    if (got)
        us_count(c, cpu, US_UNIFIED_ALLOC_FROM_PARTIAL);
    return got;
}

unsigned us_unified_from_partial(struct us_cache *c, struct us_flight *f, unsigned cpu,
                                 unsigned node, void **out, unsigned n, bool *refused)
{
    return from_lists(c, f, cpu, node, out, n, false, refused);
}

unsigned us_unified_from_tail(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                              void **out, unsigned n, bool *refused)
{
    return from_lists(c, f, cpu, node, out, n, true, refused);
}

/* The slab goes on its list; unused ones and those of alien allocations at the tail. */
static bool publish(struct us_cache *c, struct us_flight *f, struct us_slab *s, bool at_tail)
{
    struct us_unified_list *list = us_unified_list_of(c, s);

    if (!us_lock_take(f, &list->lock))
        return false;
    atomic_fetch_and_explicit(&s->state, (uint8_t)~US_SLAB_PRIVATE, memory_order_relaxed);
    if (s->free) {
        if (at_tail)
            us_slab_list_tail(&list->partial, s);
        else
            us_slab_list_head(&list->partial, s);
        list->touched = true;
    }
    us_lock_drop(f, &list->lock);
    return true;
}

unsigned us_unified_from_new(struct us_cache *c, struct us_flight *f, unsigned cpu, unsigned node,
                             unsigned flags, void **out, unsigned n, bool at_tail, unsigned *where)
{
    bool fallback = false;
    struct us_slab *s = us_slab_new(c, f, node, flags, &fallback);
    unsigned got;

    if (!s)
        return 0;
    us_count(c, cpu, US_UNIFIED_ALLOC_SLAB);
    if (fallback)
        us_count(c, cpu, US_UNIFIED_ORDER_FALLBACK);
    *where = s->node;
    s->group = us_unified_list_for(c, cpu, s->node)->index;
    if (s->node != node && !us_unified_form_of(c)->fallback_queued)
        n = 1;
    got = us_slab_take(c, s, out, n < s->free ? n : s->free);
    if (publish(c, f, s, at_tail))
        return got;
    /* Nested and the node's lock busy: undo, the slab is still private. */
    while (got)
        us_slab_put(c, s, out[--got]);
    us_slab_release(c, f, s);
    us_count(c, cpu, US_UNIFIED_FREE_SLAB);
    return 0;
}

/* deferred.c - frees of signal handlers that found a lock busy wait on a list of their node.
 *
 * Pushes are lock-free; a take empties the list with one exchange, so there is no pop that could
 * mix up two lists with the same head.
 */
#include "slab/internal.h"

void us_defer_free(struct us_cache *c, void *object)
{
    _Atomic(void *) *list = &c->deferred[us_node_of(&c->slabs->range, object)];
    void *head = atomic_load_explicit(list, memory_order_relaxed);

    us_updates(list, sizeof(*list));
    us_writes(object, sizeof(head));
    do
        *(void **)object = head;
    while (!atomic_compare_exchange_weak_explicit(list, &head, object, memory_order_release,
                                                  memory_order_relaxed));
}

void *us_deferred_take(struct us_cache *c, unsigned node)
{
    us_reads(&c->deferred[node], sizeof(*c->deferred));
    if (atomic_load_explicit(&c->deferred[node], memory_order_relaxed) == NULL)
        return NULL;
    us_updates(&c->deferred[node], sizeof(*c->deferred));
    return atomic_exchange_explicit(&c->deferred[node], NULL, memory_order_acquire);
}

void us_deferred_restore(struct us_cache *c, void *object)
{
    struct us_flight *f = us_flight_current();
    const bool suspends = f && c->options.constructor && c->options.constructor_suspends;

    if (!c->has_constructor)
        return;
    if (suspends)
        us_flight_suspend(f);
    us_construct(c, object, sizeof(void *));
    if (suspends)
        us_flight_resume(f);
}

US_COLD void us_deferred_take_in(struct us_cache *c, struct us_flight *f, unsigned node,
                                 us_put_fn *put)
{
    char *object = us_deferred_take(c, node);

    while (object) {
        char *next = *(char **)object;

        us_runs(20);
        us_reads(object, sizeof(next));
        us_deferred_restore(c, object);
        if (!put(c, f, us_cpu_now(c->machine), object))
            us_defer_free(c, object);
        object = next;
    }
}

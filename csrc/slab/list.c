/* list.c - lists of slabs, linked through their descriptors; the owner's lock guards them. */
#include "slab/slab.h"

static void set_state(struct us_slab *s, uint8_t bits)
{
    atomic_fetch_or_explicit(&s->state, bits, memory_order_relaxed);
}

/* Joining or leaving a list, of the list and of the slab; its state is changed by a locked
 * operation. */
static void declare(const struct us_slab_list *l, const struct us_slab *s)
{
    us_runs(18);
    us_writes(l, sizeof(*l));
    us_updates(s, sizeof(*s));
}

void us_slab_list_head(struct us_slab_list *l, struct us_slab *s)
{
    declare(l, s);
    s->prev = NULL;
    s->next = l->first;
    if (l->first) {
        us_writes(l->first, sizeof(*s));
        l->first->prev = s;
    } else {
        l->last = s;
    }
    l->first = s;
    l->length++;
    set_state(s, US_SLAB_PARTIAL);
}

void us_slab_list_tail(struct us_slab_list *l, struct us_slab *s)
{
    declare(l, s);
    s->next = NULL;
    s->prev = l->last;
    if (l->last) {
        us_writes(l->last, sizeof(*s));
        l->last->next = s;
    } else {
        l->first = s;
    }
    l->last = s;
    l->length++;
    set_state(s, US_SLAB_PARTIAL);
}

void us_slab_list_remove(struct us_slab_list *l, struct us_slab *s)
{
    declare(l, s);
    if (s->prev) {
        us_writes(s->prev, sizeof(*s));
        s->prev->next = s->next;
    } else {
        l->first = s->next;
    }
    if (s->next) {
        us_writes(s->next, sizeof(*s));
        s->next->prev = s->prev;
    } else {
        l->last = s->prev;
    }
    s->next = s->prev = NULL;
    l->length--;
    atomic_fetch_and_explicit(&s->state, (uint8_t)~US_SLAB_PARTIAL, memory_order_relaxed);
}

struct us_slab *us_slab_list_take_empty(struct us_slab_list *l)
{
    struct us_slab *chain = NULL, *next;

    for (struct us_slab *s = l->first; s; s = next) {
        next = s->next;
        us_runs(6);
        us_reads(s, sizeof(*s));
        if (s->free != us_slab_objects(s))
            continue;
        us_slab_list_remove(l, s);
        s->next = chain;
        chain = s;
    }
    return chain;
}

/* Policies with a lock a slab may change the count meanwhile; any order is then a right one. */
static uint32_t free_of(const struct us_slab *s)
{
    return __atomic_load_n(&s->free, __ATOMIC_RELAXED);
}

/* Both in order; of equals those of `a` come first. Only next is kept right. */
static struct us_slab *merge(struct us_slab *a, struct us_slab *b)
{
    struct us_slab *first = NULL, **end = &first;

    while (a && b) {
        struct us_slab **least = free_of(b) < free_of(a) ? &b : &a;

        us_runs(10);
        us_reads(a, sizeof(*a));
        us_reads(b, sizeof(*b));
        us_writes(*least, sizeof(**least));
        *end = *least;
        end = &(*least)->next;
        *least = *end;
    }
    *end = a ? a : b;
    return first;
}

/* run[i] is NULL or an ordered run of 2^i slabs that stood before those of all lower runs. */
void us_slab_list_sort(struct us_slab_list *l)
{
    struct us_slab *run[64] = {NULL}, *sorted = NULL;
    unsigned i;

    for (struct us_slab *s = l->first, *next; s; s = next) {
        struct us_slab *carry = s;

        next = s->next;
        s->next = NULL;
        for (i = 0; run[i]; i++) {
            carry = merge(run[i], carry);
            run[i] = NULL;
        }
        run[i] = carry;
    }
    for (i = 0; i < 64; i++)
        sorted = merge(run[i], sorted);
    l->first = sorted;
    l->last = NULL;
    for (struct us_slab *s = sorted; s; s = s->next) {
        us_runs(5);
        us_writes(s, sizeof(*s));
        s->prev = l->last;
        l->last = s;
    }
}

/* slot.c - the fast operations of the fallback. */
#include "machine/native/slot.h"

#include "machine/local.h"

/* The entry is read while the slot is held: who closes it passes through the slot afterwards. */
static void *enter(const struct us_local *l, unsigned *cpu)
{
    if (!us_slot_enter(l->machine, cpu))
        return NULL;
    return __atomic_load_n(&l->table[*cpu], __ATOMIC_ACQUIRE);
}

bool us_slot_pop(struct us_local *l, void **out)
{
    unsigned cpu;
    struct us_ring *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_header_pops(us_ring_header(r)) != US_POPS_WRAP - 1 && us_ring_pop_c(r, out);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_push(struct us_local *l, void *object)
{
    unsigned cpu;
    struct us_ring *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_ring_push_c(r, object);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_list_pop(struct us_local *l, unsigned w, ptrdiff_t link, void **out)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_list_pop_c(r->word[w], link, out);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_list_push(struct us_local *l, unsigned w, ptrdiff_t link, struct us_list *owner,
                       void *object)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = r->word[w] == owner;
    if (done)
        us_list_push_c(owner, link, object);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_counted_pop(struct us_local *l, unsigned w, ptrdiff_t link, void **out)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_counted_pop_c(r, w, link, out);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_counted_push(struct us_local *l, unsigned w, ptrdiff_t link, void *object)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_counted_push_c(r, w, link, object);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_main_pop(struct us_local *l, void **out)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_main_pop_c(r, out);
    us_slot_leave(l->machine, cpu);
    return done;
}

bool us_slot_main_push(struct us_local *l, void *object)
{
    unsigned cpu;
    struct us_words *r = enter(l, &cpu);
    bool done;

    if (r == NULL)
        return false;
    done = us_main_push_c(r, object);
    us_slot_leave(l->machine, cpu);
    return done;
}

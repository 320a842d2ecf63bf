/* fork.c - what happens to allocators when the process forks.
 *
 * Every allocator is in one list of the process. Before a fork each is brought to rest: its config
 * lock taken, its gate shut, its regions closed, so that the child's copy is of no half-done
 * operation. Both sides then reopen, in reverse order. The child has only the forking thread:
 * flights that others had suspended and locks that readers held are forgotten, and the reaper,
 * which did not survive, is started again.
 */
#include "cache/internal.h"

#include <sched.h>

static struct us_lock list_lock; /* of class CONFIG, which is 0 */
static struct us_allocator *allocators;
static bool registered;

static bool take_list(struct us_flight *f)
{
    *f = (struct us_flight){.machine = NULL};
    return us_lock_take(f, &list_lock);
}

static void drop_list(void)
{
    struct us_flight f = {.machine = NULL};

    us_lock_drop(&f, &list_lock);
}

static void prepare(void)
{
    struct us_allocator *a;
    struct us_flight f;

    (void)!take_list(&f);
    /* Config locks are of one rank, so they are tried; their holders wait for no list and no fork.
     */
    for (a = allocators; a; a = a->next)
        while (!us_lock_try(&f, &a->config))
            sched_yield();
    for (a = allocators; a; a = a->next)
        us_allocator_stop(a, &a->fork_flight);
}

/* The gate that was shut last is opened first. */
static void resume_from(struct us_allocator *a)
{
    if (!a)
        return;
    resume_from(a->next);
    us_allocator_resume(a, &a->fork_flight);
}

static void parent(void)
{
    struct us_allocator *a;

    resume_from(allocators);
    for (a = allocators; a; a = a->next)
        us_config_drop(a);
    drop_list();
}

/* Readers of statistics do not stop at the gate. */
static void forget_readers(struct us_allocator *a)
{
    struct us_cache *c;

    for (c = us_first_cache(a); c; c = c->next)
        us_lock_forget(&c->stats_lock);
    us_misuse_fork_child(&a->slabs);
}

static void child(void)
{
    struct us_allocator *a;

    for (a = allocators; a; a = a->next) {
        us_gate_after_fork_child(a->machine);
        forget_readers(a);
    }
    parent();
    for (a = allocators; a; a = a->next)
        us_reaper_fork_child(a);
}

void us_fork_add(struct us_allocator *a)
{
    struct us_flight f;

    (void)!take_list(&f);
    if (!registered)
        us_os_atfork(prepare, parent, child);
    registered = true;
    a->next = allocators;
    allocators = a;
    drop_list();
}

void us_fork_remove(struct us_allocator *a)
{
    struct us_allocator **at = &allocators;
    struct us_flight f;

    (void)!take_list(&f);
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    drop_list();
}

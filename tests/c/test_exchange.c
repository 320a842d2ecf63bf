// machines: native
// needs: slab
/* A slab's freelist and counters exchanged together by several threads: nothing is lost, nothing is
 * seen twice, and bits of the state that others change stay theirs. test_exchange_locked.c runs the
 * same where a byte lock stands for the double-word compare-exchange. */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "slab/exchange.h"

enum { PUSHERS = 2, OBJECTS = 64, ROUNDS = 3000 };

/* An object is a link and the mark of where it is. */
struct object {
    struct object *next;
    atomic_int out; /* 1 = in the hands of a pusher or of the taker */
};

static struct us_slab slab;
static struct object object[PUSHERS][OBJECTS];
static atomic_uint pushed, taken;
static atomic_bool done;
/* Freed objects come back to their pusher through this. */
static _Atomic(struct object *) back[PUSHERS];

static void begin(void)
{
    unsigned i, k;

    slab = (struct us_slab){.node = 7};
    atomic_store(&pushed, 0);
    atomic_store(&taken, 0);
    atomic_store(&done, false);
    for (i = 0; i < PUSHERS; i++) {
        atomic_store(&back[i], NULL);
        for (k = 0; k < OBJECTS; k++) {
            object[i][k].next = k ? &object[i][k - 1] : NULL;
            atomic_store(&object[i][k].out, 1);
        }
        atomic_store(&back[i], &object[i][OBJECTS - 1]);
    }
}

static void push(struct object *o)
{
    struct us_pair old, next;

    CHECK_EQ(atomic_exchange(&o->out, 0), 1);
    do {
        old = next = us_pair_look(&slab);
        o->next = old.freelist;
        next.freelist = o;
        next.free++;
    } while (us_pair_exchange(NULL, &slab, old, next) != US_EXCHANGE_DONE);
    atomic_fetch_add(&pushed, 1);
}

static void *pusher(void *number)
{
    const size_t me = (size_t)number;
    unsigned round;

    for (round = 0; round < ROUNDS;) {
        struct object *o = atomic_exchange(&back[me], NULL), *next;

        for (; o; o = next, round++) {
            next = o->next;
            push(o);
        }
        sched_yield();
    }
    return NULL;
}

static size_t pusher_of(const struct object *o)
{
    return (size_t)(o - object[0]) / OBJECTS;
}

static void give_back(struct object *o)
{
    _Atomic(struct object *) *list = &back[pusher_of(o)];
    struct object *head = atomic_load(list);

    do
        o->next = head;
    while (!atomic_compare_exchange_weak(list, &head, o));
}

/* As the owner of a slab does: the whole list at once, and the frozen bit is its own. */
static void take_all(bool freeze)
{
    struct us_pair old, next;
    struct object *o, *after;
    uint32_t n = 0;

    do {
        old = next = us_pair_look(&slab);
        next.freelist = NULL;
        next.free = 0;
        next.state = (uint8_t)(freeze ? old.state | US_SLAB_FROZEN : old.state & ~US_SLAB_FROZEN);
    } while (us_pair_exchange(NULL, &slab, old, next) != US_EXCHANGE_DONE);
    CHECK((old.state & US_SLAB_FROZEN) == (freeze ? 0 : US_SLAB_FROZEN));
    CHECK_EQ(old.node, 7);
    for (o = old.freelist; o; o = after, n++) {
        after = o->next;
        CHECK_EQ(atomic_exchange(&o->out, 1), 0);
        give_back(o);
    }
    CHECK_EQ(n, old.free);
    atomic_fetch_add(&taken, n);
}

static void *taker(void *unused)
{
    bool freeze = true;

    while (!atomic_load(&done)) {
        take_all(freeze);
        freeze = !freeze;
        sched_yield();
    }
    if (!freeze)
        take_all(false);
    return unused;
}

/* As a list does under its lock. */
static void *lister(void *unused)
{
    while (!atomic_load(&done)) {
        CHECK_EQ(atomic_fetch_or(&slab.state, US_SLAB_PARTIAL) & US_SLAB_PARTIAL, 0);
        sched_yield();
        CHECK(atomic_fetch_and(&slab.state, (uint8_t)~US_SLAB_PARTIAL) & US_SLAB_PARTIAL);
    }
    return unused;
}

static void nothing_is_lost(void)
{
    pthread_t thread[PUSHERS + 2];
    size_t i;

    begin();
    for (i = 0; i < PUSHERS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, pusher, (void *)i) == 0);
    REQUIRE(pthread_create(&thread[i], NULL, taker, NULL) == 0);
    REQUIRE(pthread_create(&thread[i + 1], NULL, lister, NULL) == 0);
    for (i = 0; i < PUSHERS; i++)
        pthread_join(thread[i], NULL);
    atomic_store(&done, true);
    pthread_join(thread[i], NULL);
    pthread_join(thread[i + 1], NULL);
    CHECK_EQ(atomic_load(&pushed), atomic_load(&taken) + slab.free);
    CHECK(atomic_load(&taken) > 0);
    CHECK_EQ(atomic_load(&slab.state), 0);
    CHECK_EQ(atomic_load(&slab.lock), 0);
}

static void what_changed_meanwhile_loses(void)
{
    struct us_pair old, next;
    int a, b;

    slab = (struct us_slab){.node = 3, .freelist = &a, .free = 5};
    old = next = us_pair_look(&slab);
    next.freelist = &b;
    next.free = 6;
    slab.free = 4;
    CHECK_EQ(us_pair_exchange(NULL, &slab, old, next), US_EXCHANGE_LOST);
    CHECK_EQ(slab.freelist, &a);
    CHECK_EQ(slab.free, 4);
    slab.free = 5;
    atomic_store(&slab.state, US_SLAB_BAD); /* somebody reported misuse */
    CHECK_EQ(us_pair_exchange(NULL, &slab, old, next), US_EXCHANGE_LOST);
    old = us_pair_look(&slab);
    next.state = old.state | US_SLAB_FROZEN;
    CHECK_EQ(us_pair_exchange(NULL, &slab, old, next), US_EXCHANGE_DONE);
    CHECK_EQ(slab.freelist, &b);
    CHECK_EQ(slab.free, 6);
    CHECK_EQ(slab.node, 3);
    CHECK_EQ(atomic_load(&slab.state), US_SLAB_BAD | US_SLAB_FROZEN);
}

int main(void)
{
    RUN(what_changed_meanwhile_loses);
    RUN(nothing_is_lost);
    return check_result();
}

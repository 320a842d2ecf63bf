/* rseq_slow.c - slow forms of local operations as restartable sequences.
 *
 * A batch names the CPU it means, so that what it moves is counted where it happened: additions
 * before their commit, removals after it (see local.c). Who was moved to another CPU in between
 * looks again, a bounded number of times. Batches of more than US_BATCH_MAX pointers are several
 * sequences. */
#include "machine/local_internal.h"

#ifdef US_HAVE_RSEQ

#include <string.h>

#include "machine/native/rseq.h"

const uint64_t us_list_popped[2] US_ALIGNED(16) = {0, US_LIST_POP_DELTA};
#ifdef US_TESTING
volatile int us_inject[3 * US_SEQ_COUNT];
#endif

enum { LOOKS = 8 }; /* at which CPU this is */

static uint32_t chunk(unsigned n)
{
    return n < US_BATCH_MAX ? n : US_BATCH_MAX;
}

static void count(_Atomic uint64_t *where, uint64_t n)
{
    atomic_fetch_add_explicit(where, n, memory_order_release);
}

/* Records what the count of pops was. In a flight, since a resize takes rings away. */
static bool fold(struct us_local *l, unsigned cpu)
{
    struct us_flight f;
    const bool enter = us_flight_current() == NULL;

    if (enter && !us_flight_try(l->machine, &f))
        return false;
    us_local_extend(l, cpu, NULL);
    if (enter)
        us_flight_leave(&f);
    return true;
}

/* Pops on whichever CPU this is. Before the count wraps, what it was is recorded. */
static int take_hot(struct us_local *l, struct us_batch *b)
{
    int done = US_SEQ_MOVED;

    for (int look = 0; look < LOOKS && done == US_SEQ_MOVED; look++) {
        b->cpu = us_cpu_now(l->machine);
        b->wrap = 0;
        done = us_seq_take_hot(b);
        if (done == US_SEQ_WRAPS && fold(l, (unsigned)b->cpu)) {
            b->wrap = 1;
            done = us_seq_take_hot(b);
        }
    }
    return done;
}

int us_rseq_pop(struct us_local *l, void **out, unsigned *cpu)
{
    struct us_batch b = {.table = l->table, .objects = out, .n = 1};
    int done = take_hot(l, &b);

    *cpu = (unsigned)b.cpu;
    return done == 1;
}

unsigned us_rseq_pop_batch(struct us_local *l, void **out, unsigned n)
{
    struct us_batch b = {.table = l->table};
    unsigned got = 0;

    while (got < n) {
        int done;

        b.objects = out + got;
        b.n = chunk(n - got);
        done = take_hot(l, &b);
        if (done > 0)
            got += (unsigned)done;
        if (done < (int)b.n)
            break;
    }
    return got;
}

/* Pushes on the CPU of b->cpu, or when that fails for having moved, on whichever this is. */
static int push(struct us_local *l, struct us_batch *b)
{
    int done = US_SEQ_MOVED;

    for (int look = 0; look < LOOKS && done == US_SEQ_MOVED; look++) {
        b->cpu = us_cpu_now(l->machine);
        done = us_seq_add(b);
    }
    return done;
}

/* The node range of a CPU never changes, so that of the CPU seen serves for any of the same node.
 */
int us_rseq_push(struct us_local *l, void *object, unsigned *cpu)
{
    struct us_batch b = {.table = l->table, .objects = &object, .n = 1};
    const struct us_ring *r;
    int done;

    *cpu = us_cpu_now(l->machine);
    r = us_local_ring(l, *cpu);
    if (r == NULL || (uint64_t)(uintptr_t)object - r->base >= r->length)
        return 0;
    b.base = r->base;
    done = push(l, &b);
    *cpu = (unsigned)b.cpu;
    return done == 1;
}

unsigned us_rseq_push_batch(struct us_local *l, void *const *in, unsigned n, uint64_t base)
{
    struct us_batch b = {.table = l->table, .base = base};
    unsigned put = 0;

    while (put < n) {
        int done;

        b.objects = in + put;
        b.n = chunk(n - put);
        done = push(l, &b);
        if (done > 0)
            put += (unsigned)done;
        if (done < (int)b.n)
            break;
    }
    return put;
}

unsigned us_rseq_take_oldest(struct us_local *l, void **out, unsigned n, enum us_seen seen,
                             unsigned *cpu)
{
    struct us_batch b = {.table = l->table, .cpu = us_cpu_now(l->machine), .seen = seen};
    unsigned got = 0;

    for (int look = 0; got < n;) {
        int done;

        b.objects = out + got;
        b.n = chunk(n - got);
        done = us_seq_take_oldest(&b);
        if (done == US_SEQ_MOVED && got == 0 && ++look < LOOKS) {
            b.cpu = us_cpu_now(l->machine);
            continue;
        }
        if (done > 0) {
            count(&l->moves[b.cpu].drained, (unsigned)done);
            got += (unsigned)done;
        }
        if (done < (int)b.n)
            break;
    }
    *cpu = (unsigned)b.cpu;
    return got;
}

/* Adds on the CPU of b, counting before. */
static unsigned add(struct us_local *l, const struct us_batch *b)
{
    _Atomic uint64_t *installed = &l->moves[b->cpu].installed;
    int done;

    count(installed, b->n);
    done = us_seq_add(b);
    if (done < 0)
        done = 0;
    count(installed, (uint64_t)done - b->n);
    return (unsigned)done;
}

/* objects[0..n): puts those of [from, to) last, both parts in their order. */
static void make_last(void **objects, unsigned from, unsigned to, unsigned n)
{
    void *moved[US_BATCH_MAX];

    while (to < n) { /* what follows goes before them, a piece at a time */
        unsigned piece = chunk(n - to);

        memcpy(moved, objects + to, piece * sizeof *moved);
        memmove(objects + from + piece, objects + from, (to - from) * sizeof *objects);
        memcpy(objects + from, moved, piece * sizeof *moved);
        from += piece;
        to += piece;
    }
}

/* Ring order asks for the deepest first, so how many will fit is looked up before the first chunk.
 */
static unsigned add_on(struct us_local *l, struct us_batch *b, void **in, unsigned n)
{
    const struct us_ring *r = us_local_ring(l, (unsigned)b->cpu);
    uint32_t size, fit, from, put;

    if (r == NULL)
        return 0;
    size = us_ring_size(r);
    fit = size < r->capacity ? r->capacity - size : 0;
    if (n <= US_BATCH_MAX || fit > n) /* one sequence finds out itself */
        fit = n;
    from = put = n - fit;
    while (put < n) {
        unsigned added;

        b->objects = in + put;
        b->n = chunk(n - put);
        b->last = n <= US_BATCH_MAX ? ~0u : 0;
        added = add(l, b);
        put += added;
        if (n <= US_BATCH_MAX)
            return added;
        if (added < b->n)
            break;
    }
    make_last(in, from, put, n);
    return put - from;
}

void us_rseq_touch(struct us_local *l, uint64_t base)
{
    struct us_batch b = {.table = l->table, .base = base, .cpu = us_cpu_now(l->machine)};

    us_seq_touch(&b);
}

unsigned us_rseq_add(struct us_local *l, void **in, unsigned n, uint64_t base, enum us_seen seen,
                     unsigned *cpu)
{
    struct us_batch b = {.table = l->table, .base = base, .seen = seen};
    unsigned added = 0;

    for (int look = 0; look < LOOKS && n > 0; look++) {
        b.cpu = us_cpu_now(l->machine);
        added = add_on(l, &b, in, n);
        if (added > 0 || us_cpu_now(l->machine) == (unsigned)b.cpu)
            break;
    }
    *cpu = n > 0 ? (unsigned)b.cpu : us_cpu_now(l->machine);
    return added;
}

/* ---- lists ------------------------------------------------------------------------------------
 */

/* The CPU to report where a sequence found nothing. */
static unsigned seen_cpu(const struct us_local *l, int64_t cpu)
{
    return cpu >= 0 && cpu < (int64_t)l->machine->ncpus ? (unsigned)cpu : us_cpu_now(l->machine);
}

struct us_list *us_rseq_detach(struct us_local *l, unsigned w, unsigned *cpu)
{
    int64_t id;
    struct us_list *list = us_seq_detach(l->table, w, &id);

    *cpu = seen_cpu(l, id);
    return list;
}

/* The descriptor is private until it is installed, so its pops can be set back before. */
int us_rseq_install(struct us_local *l, unsigned w, unsigned cpu, struct us_list *list)
{
    uint32_t size;

    if (l->counted) {
        struct us_counted *counted = (struct us_counted *)list;

        size = us_counted_size(counted->header);
        __atomic_store_n(&counted->header, (counted->header & US_COUNTED_PLACE) | size,
                         __ATOMIC_RELAXED);
    } else {
        size = us_list_size(list->count);
        __atomic_store_n(&list->count, size, __ATOMIC_RELAXED);
    }
    return us_seq_install(l->table, w, cpu, list, size);
}

int us_rseq_list_pop(struct us_local *l, unsigned w, void **out, unsigned *cpu)
{
    int64_t id = -1;
    int done = us_seq_list_pop(l->table, w, l->link, out, &id);

    *cpu = seen_cpu(l, id);
    return done;
}

int us_rseq_list_push(struct us_local *l, unsigned w, struct us_list *owner, void *object,
                      unsigned *cpu)
{
    int64_t id = -1;
    int done = us_seq_list_push_at(l->table, w, l->link, owner, object, &id);

    *cpu = seen_cpu(l, id);
    return done;
}

int us_rseq_counted_pop(struct us_local *l, unsigned w, void **out, unsigned *cpu)
{
    int64_t id = -1;
    int done = us_seq_counted_pop(l->table, w, l->link, out, &id);

    *cpu = seen_cpu(l, id);
    return done;
}

int us_rseq_counted_push(struct us_local *l, unsigned w, void *object, unsigned *cpu)
{
    int64_t id = -1;
    int done = us_seq_counted_push_at(l->table, w, l->link, object, &id);

    *cpu = seen_cpu(l, id);
    return done;
}

/* ---- sheaves ------------------------------------------------------------------------------------
 */

int us_rseq_main_pop(struct us_local *l, void **out)
{
    return us_seq_main_pop(l->table, out);
}

int us_rseq_main_push(struct us_local *l, void *object)
{
    return us_seq_main_push(l->table, object);
}

/* Chunks of objects[0..n) by `sequence`, on the CPU that this is at each; ends with the first chunk
 * that is not moved whole. */
static unsigned in_chunks(struct us_local *l, struct us_batch *b, unsigned n,
                          int (*sequence)(const struct us_batch *))
{
    void *const *objects = b->objects;
    unsigned moved = 0;

    for (int look = 0; moved < n && look < LOOKS;) {
        int done;

        b->objects = objects + moved;
        b->n = chunk(n - moved);
        b->cpu = us_cpu_now(l->machine);
        done = sequence(b);
        if (done > 0)
            moved += (unsigned)done;
        if (done == US_SEQ_MOVED)
            look++;
        else if (done < (int)b->n)
            break;
    }
    return moved;
}

static int main_take(const struct us_batch *b)
{
    return us_seq_main_take(b);
}

static int main_put(const struct us_batch *b)
{
    return us_seq_main_put(b);
}

unsigned us_rseq_main_take(struct us_local *l, void **out, unsigned n)
{
    struct us_batch b = {.table = l->table, .objects = out};

    return in_chunks(l, &b, n, main_take);
}

unsigned us_rseq_main_put(struct us_local *l, void *const *in, unsigned n, uint64_t base)
{
    struct us_batch b = {.table = l->table, .objects = in, .base = base};

    return in_chunks(l, &b, n, main_put);
}

static const struct us_sheaf *named(const struct us_sheaf *s)
{
    return s ? s : &us_closed_sheaf;
}

int us_rseq_swap(struct us_local *l, unsigned w, unsigned cpu, struct us_sheaf *from,
                 struct us_sheaf *to)
{
    return us_seq_swap(l->table, w, cpu, named(from), named(to));
}

#endif

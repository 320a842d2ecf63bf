/*
 * A ring as simple as can be, and a program of bytes that runs on it and on a real one side by
 * side.
 *
 * The model is an array, oldest object first; everything else is counted, not packed.  A subject is
 * whatever offers the operations of struct ring_ops: the plain C form, the restartable sequences,
 * or the run-time form of a cache's local queues.
 */
#ifndef RING_MODEL_H
#define RING_MODEL_H

#include <stdint.h>
#include <string.h>

#include "check.h"
#include "machine/region.h"

#define MODEL_MAX   256
#define MODEL_BASE  0x100000000ull
#define MODEL_BYTES 0x10000000ull

struct ring_model {
    void *object[MODEL_MAX];
    unsigned n, capacity;
    uint64_t pops, from_bottom; /* since the beginning */
    bool committed;             /* an operation said: untouched from here on */
    unsigned seen_n;
    uint64_t seen_pops, seen_bottom;
};

/* Each returns what its namesake in region.h does; take_top may be missing. */
struct ring_ops {
    bool (*pop)(void *subject, void **out);
    bool (*push)(void *subject, void *object);
    unsigned (*pop_batch)(void *subject, void **out, unsigned n);
    unsigned (*push_batch)(void *subject, void **in, unsigned n);
    unsigned (*take_top)(void *subject, void **out, unsigned n, enum us_seen seen);
    unsigned (*take_oldest)(void *subject, void **out, unsigned n, enum us_seen seen);
    unsigned (*add)(void *subject, void **in, unsigned n, enum us_seen seen);
};

static inline unsigned model_least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static inline void model_moved(struct ring_model *m, unsigned moved, enum us_seen seen)
{
    if (moved == 0 || seen == US_SEEN_KEEP)
        return;
    m->committed = seen == US_SEEN_COMMIT;
    m->seen_n = m->n;
    m->seen_pops = m->pops;
    m->seen_bottom = m->from_bottom;
}

/* Untouched: nothing differs from when it was said, as far as the widths can tell. */
static inline bool model_touched(const struct ring_model *m)
{
    return !m->committed || m->n != m->seen_n || (m->pops - m->seen_pops) % US_POPS_WRAP != 0 ||
           (m->from_bottom - m->seen_bottom) % (1u << 14) != 0;
}

static inline unsigned model_take_top(struct ring_model *m, void **out, unsigned n, bool pops)
{
    n = model_least(n, m->n);
    for (unsigned i = 0; i < n; i++)
        out[i] = pops ? m->object[m->n - 1 - i] : m->object[m->n - n + i];
    m->n -= n;
    m->pops += pops ? n : 0;
    return n;
}

static inline unsigned model_take_oldest(struct ring_model *m, void **out, unsigned n)
{
    n = model_least(n, m->n);
    memcpy(out, m->object, n * sizeof *out);
    memmove(m->object, m->object + n, (m->n - n) * sizeof *out);
    m->n -= n;
    m->from_bottom += n;
    return n;
}

static inline unsigned model_add(struct ring_model *m, void *const *in, unsigned n, bool last)
{
    unsigned added = model_least(n, m->capacity - m->n);

    memcpy(m->object + m->n, last ? in + (n - added) : in, added * sizeof *in);
    m->n += added;
    return added;
}

/* The header of an empty ring whose head and pops are about to wrap. */
static inline uint64_t model_near_wrap(struct ring_model *m)
{
    m->pops = US_POPS_WRAP - 500;
    m->from_bottom = (1u << 14) - 300;
    return us_header_make(m->pops, (uint32_t)m->from_bottom, 0);
}

/* What anybody can see of the ring is what the model holds. */
static inline int model_equals(const struct ring_model *m, const struct us_ring *r)
{
    uint64_t h = us_ring_header(r);
    int same = CHECK_EQ(us_header_size(h), m->n) &&
               CHECK_EQ(us_header_pops(h), m->pops % US_POPS_WRAP) &&
               CHECK_EQ(us_ring_touched(r), model_touched(m));

    for (unsigned i = 0; same && i < m->n; i++)
        same = CHECK_EQ(r->object[(us_header_head(h) + i) & r->mask], m->object[i]);
    return same;
}

/* New objects with unlike addresses, all of the node. */
static inline void model_objects(void **out, unsigned n, uint64_t *next)
{
    for (unsigned i = 0; i < n; i++)
        out[i] = (void *)(uintptr_t)(MODEL_BASE + (*next += 16) % MODEL_BYTES);
}

/* Runs two bytes: operation and amount.  False when subject and model no longer agree. */
static inline bool model_step(struct ring_model *m, const struct us_ring *r,
                              const struct ring_ops *ops, void *subject, unsigned operation,
                              unsigned amount, uint64_t *next)
{
    void *got[MODEL_MAX + 2], *want[MODEL_MAX + 2], *in[MODEL_MAX];
    enum us_seen seen = (enum us_seen)(operation / 8 % 3);
    unsigned n = amount % MODEL_MAX, got_n = 0, want_n = 0;

    memset(got, 0, sizeof got);
    memset(want, 0, sizeof want);
    switch (operation % 8) {
    case 0:
        got_n = ops->pop(subject, got);
        want_n = model_take_top(m, want, 1, true);
        break;
    case 1:
        model_objects(in, 1, next);
        got_n = ops->push(subject, in[0]);
        want_n = model_add(m, in, 1, false);
        break;
    case 2:
        got_n = ops->pop_batch(subject, got, n);
        want_n = model_take_top(m, want, n, true);
        break;
    case 3:
        model_objects(in, n, next);
        got_n = ops->push_batch(subject, in, n);
        want_n = model_add(m, in, n, false);
        break;
    case 4:
        got_n = ops->take_oldest(subject, got, n, seen);
        want_n = model_take_oldest(m, want, n);
        model_moved(m, want_n, seen);
        break;
    case 5:
        model_objects(in, n, next);
        got_n = ops->add(subject, in, n, seen);
        want_n = model_add(m, in, n, true);
        model_moved(m, want_n, seen);
        break;
    case 6:
        if (ops->take_top == NULL)
            break;
        got_n = ops->take_top(subject, got, n, seen);
        want_n = model_take_top(m, want, n, false);
        model_moved(m, want_n, seen);
        break;
    case 7: /* of another node: below, behind, and NULL */
        in[0] = (void *)(uintptr_t)(n % 3 == 0   ? MODEL_BASE - 8
                                    : n % 3 == 1 ? MODEL_BASE + MODEL_BYTES
                                                 : 0);
        got_n = ops->push(subject, in[0]);
        break;
    }
    return CHECK_EQ(got_n, want_n) && CHECK(memcmp(got, want, sizeof got) == 0) &&
           model_equals(m, r);
}

/* Small numbers that anybody can repeat. */
static inline uint32_t model_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

#endif

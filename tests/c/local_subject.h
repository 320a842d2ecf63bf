/*
 * A cache's local queues as the subject of ring_model.h, through the run-time forms, on one CPU.
 */
#ifndef LOCAL_SUBJECT_H
#define LOCAL_SUBJECT_H

#include "fixture_local.h"

/* Queues and the flight in which they are worked on. */
struct subject {
    struct us_local *l;
    struct us_flight *f;
    unsigned cpu;
    bool fast_first; /* the fast template, then the slow form, as policies do */
    uint64_t pushed, popped;
};

static inline bool subject_pop(void *subject, void **out)
{
    struct subject *s = subject;
    unsigned cpu = ~0u;

    if (s->fast_first && us_fast_pop(s->l, s->l->mode, out))
        return s->popped++, true;
    if (!us_local_pop(s->l, s->f, out, &cpu))
        return CHECK_EQ(cpu, s->cpu), false;
    s->popped++;
    return CHECK_EQ(cpu, s->cpu);
}

static inline bool subject_push(void *subject, void *object)
{
    struct subject *s = subject;
    unsigned cpu = ~0u;

    if (s->fast_first && us_fast_push(s->l, s->l->mode, object))
        return s->pushed++, true;
    if (!us_local_push(s->l, s->f, object, &cpu))
        return CHECK_EQ(cpu, s->cpu), false;
    s->pushed++;
    return CHECK_EQ(cpu, s->cpu);
}

static inline unsigned subject_pop_batch(void *subject, void **out, unsigned n)
{
    struct subject *s = subject;
    unsigned got = us_local_pop_batch(s->l, out, n);

    s->popped += got;
    return got;
}

static inline unsigned subject_push_batch(void *subject, void **in, unsigned n)
{
    struct subject *s = subject;
    unsigned put;

    CHECK_EQ(us_local_push_batch(s->l, in, n, node_base(0) + 1), 0);
    put = us_local_push_batch(s->l, in, n, node_base(0));
    s->pushed += put;
    return put;
}

static inline unsigned subject_take_oldest(void *subject, void **out, unsigned n, enum us_seen seen)
{
    struct subject *s = subject;
    unsigned cpu = ~0u, got = us_local_take_oldest(s->l, s->f, out, n, seen, &cpu);

    CHECK_EQ(cpu, s->cpu);
    return got;
}

static inline unsigned subject_add(void *subject, void **in, unsigned n, enum us_seen seen)
{
    struct subject *s = subject;
    unsigned cpu = ~0u, added;

    CHECK_EQ(us_local_add(s->l, s->f, in, n, node_base(0) + 1, seen, &cpu), 0);
    added = us_local_add(s->l, s->f, in, n, node_base(0), seen, &cpu);
    CHECK_EQ(cpu, s->cpu);
    return added;
}

static const struct ring_ops operations = {subject_pop,        subject_push, subject_pop_batch,
                                           subject_push_batch, NULL,         subject_take_oldest,
                                           subject_add};

#endif

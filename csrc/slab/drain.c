/* drain.c - objects on their way back to slabs, and slabs on their way back to the provider. */
#include "slab/slab.h"

void us_sort_addresses(void **object, unsigned n)
{
    static const unsigned gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    unsigned g;

    for (g = 0; g < sizeof(gaps) / sizeof(gaps[0]); g++) {
        unsigned gap = gaps[g], i;

        for (i = gap; i < n; i++) {
            void *x = object[i];
            unsigned j = i;

            us_runs(7);
            while (j >= gap && (uintptr_t)object[j - gap] > (uintptr_t)x) {
                us_runs(5);
                object[j] = object[j - gap];
                j -= gap;
            }
            object[j] = x;
        }
    }
}

struct us_slab *us_slab_to_fill(struct us_cache *c, const void *object)
{
    struct us_slab *s = us_cache_slab(c, object);

    us_runs(15);
    if (s)
        us_reads(s, sizeof(*s));
    if (US_LIKELY(s && s->cache == c))
        return s;
    us_report_misuse(c, s ? US_MISUSE_WRONG_CACHE : US_MISUSE_NO_SLAB, object);
    return NULL;
}

uint64_t us_slab_release_chain(struct us_cache *c, struct us_flight *f, unsigned cpu,
                               struct us_slab *s, unsigned policy_row)
{
    uint64_t bytes = 0;

    us_runs(20);
    while (s) {
        struct us_slab *next = s->next;

        us_runs(10);
        us_writes(s, sizeof(*s));
        s->next = NULL;
        bytes += (uint64_t)c->machine->page_size << us_slab_order(s);
        us_slab_release(c, f, s);
        us_count(c, cpu, policy_row);
        s = next;
    }
    return bytes;
}

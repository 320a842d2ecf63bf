/* fast.h - the fast templates of a modelled machine (see local.h): nothing else runs. */
#ifndef US_FAST_H
#define US_FAST_H

/* What a path on the CPU's own stock loads before it looks at that: the cache's line with the entry
 * pointers and the table, or those up to the link; and the CPU's entry. The table's address is the
 * machine's own business natively too, so `machine` costs nothing. */
US_INLINE void *us_model_region(const struct us_local *l, bool linked)
{
    void **entry = &l->table[l->machine->current_cpu];

    us_reads(l, linked ? offsetof(struct us_local, counted) : 1);
    us_reads(entry, sizeof(*entry));
    return *entry;
}

/* The pop that would carry the count of pops beyond its width takes the slow path. */
US_INLINE enum us_local_result us_fast_pop(struct us_local *l, enum us_mode mode, void **out)
{
    struct us_ring *r;

    if (mode != US_MODE_MODEL)
        return US_LOCAL_MISS;
    r = us_model_region(l, false);
    return (enum us_local_result)(us_header_pops(us_ring_header(r)) != US_POPS_WRAP - 1 &&
                                  us_ring_pop_c(r, out));
}

US_INLINE enum us_local_result us_fast_push(struct us_local *l, enum us_mode mode, void *object)
{
    return (enum us_local_result)(mode == US_MODE_MODEL &&
                                  us_ring_push_c(us_model_region(l, false), object));
}

US_INLINE enum us_local_result us_fast_list_pop(struct us_local *l, enum us_mode mode, unsigned w,
                                                ptrdiff_t link, void **out)
{
    struct us_words *r;

    if (mode != US_MODE_MODEL)
        return US_LOCAL_MISS;
    r = us_model_region(l, true);
    us_reads(r, sizeof(*r));
    return (enum us_local_result)us_list_pop_c(r->word[w], link, out);
}

US_INLINE enum us_local_result us_fast_list_push(struct us_local *l, enum us_mode mode, unsigned w,
                                                 ptrdiff_t link, struct us_list *owner,
                                                 void *object)
{
    struct us_words *r;

    if (mode != US_MODE_MODEL)
        return US_LOCAL_MISS;
    r = us_model_region(l, true);
    us_reads(r, sizeof(*r));
    if (r->word[w] != owner)
        return US_LOCAL_MISS;
    us_list_push_c(owner, link, object);
    return US_LOCAL_OK;
}

US_INLINE enum us_local_result us_fast_counted_pop(struct us_local *l, enum us_mode mode,
                                                   unsigned w, ptrdiff_t link, void **out)
{
    return (enum us_local_result)(mode == US_MODE_MODEL &&
                                  us_counted_pop_c(us_model_region(l, true), w, link, out));
}

US_INLINE enum us_local_result us_fast_counted_push(struct us_local *l, enum us_mode mode,
                                                    unsigned w, ptrdiff_t link, void *object)
{
    return (enum us_local_result)(mode == US_MODE_MODEL &&
                                  us_counted_push_c(us_model_region(l, true), w, link, object));
}

US_INLINE enum us_local_result us_fast_main_pop(struct us_local *l, enum us_mode mode, void **out)
{
    return (enum us_local_result)(mode == US_MODE_MODEL &&
                                  us_main_pop_c(us_model_region(l, false), out));
}

US_INLINE enum us_local_result us_fast_main_push(struct us_local *l, enum us_mode mode,
                                                 void *object)
{
    return (enum us_local_result)(mode == US_MODE_MODEL &&
                                  us_main_push_c(us_model_region(l, false), object));
}

#endif

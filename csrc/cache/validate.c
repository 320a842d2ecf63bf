/* validate.c - does a cache fit together? Queues are not flushed first.
 *
 * Checked is what can be told to be in use (debug F: the object's bit is set); without debug an
 * object that is not free in its slab may be in use or in a stock, so all of those are unchecked,
 * those in stocks among them, and so is with debug F what waits for a grace period. The histogram
 * counts every slab by the objects not free in it, a full one too.
 *
 * Errors are: misuse that was reported, counters that differ from what they count, a stock that
 * holds what is no object, an object in two places, a slab with free objects on no list (unless a
 * CPU owns it), a full slab on a partial list, a slab on two lists or on another node's.
 */
#include "cache/view.h"

#include <stdlib.h>
#include <string.h>

static void note(void *context, const char *text)
{
    struct us_validation *out = context;
    const size_t length = strlen(out->text);

    out->errors++;
    us_append(out->text, sizeof(out->text), length, "%s%s", length ? "\n" : "", text);
}

static void note_slab(const struct us_view *v, struct us_validation *out, const struct us_slab *s,
                      const char *what)
{
    char text[200];

    us_append(text, sizeof(text), 0, "slab 0x%llx (node %u, %u of %u objects free) %s",
              (unsigned long long)(uintptr_t)us_slab_base(v->cache->slabs, s), s->node, s->free,
              us_slab_objects(s), what);
    note(out, text);
}

static void check_lists(const struct us_view *v, const struct us_view_slab *e,
                        struct us_validation *out)
{
    const struct us_slab *s = e->slab;
    const uint8_t state = atomic_load(&s->state);
    const bool listed = (state & US_SLAB_PARTIAL) != 0;

    if (state & (US_SLAB_LARGE | US_SLAB_PRIVATE | US_SLAB_BAD))
        return;
    if (listed && e->listings == 0)
        note_slab(v, out, s, "says it is on a list and is on none");
    if (!listed && e->listings > 0)
        note_slab(v, out, s, "is on a list and says it is on none");
    if (e->listings > 1)
        note_slab(v, out, s, "is on more than one list, or on one twice");
    if (e->listings > 0 && e->list_node != s->node)
        note_slab(v, out, s, "is on another node's list");
    if (e->free > 0 && e->listings == 0 && !(state & US_SLAB_FROZEN))
        note_slab(v, out, s, "has free objects and is on no list");
    if (e->free == 0 && e->listings > 0 && !e->full_list)
        note_slab(v, out, s, "is full and on a partial list");
}

static void check_objects(const struct us_view *v, const struct us_view_slab *e,
                          struct us_validation *out)
{
    uint32_t i;

    out->available += e->free;
    out->onqueue += e->queued;
    if (!(v->cache->flags & US_DEBUG_F)) {
        out->unchecked += us_slab_objects(e->slab) - e->free;
        return;
    }
    for (i = 0; i < us_slab_objects(e->slab); i++) {
        const uint8_t place = v->place[e->first + i];
        const bool used = us_used_test(v->cache, e->slab, i);

        if (used && place != US_IN_USE)
            note_slab(v, out, e->slab, "has an object that is in use and free at once");
        out->checked += used && place == US_IN_USE;
        out->unchecked += !used && (place == US_IN_USE || place == US_WAITING);
    }
}

static bool make_histogram(const struct us_view *v, struct us_validation *out)
{
    uint32_t most = 0;
    size_t k;

    for (k = 0; k < v->nslabs; k++)
        if (us_slab_objects(v->slab[k].slab) > most)
            most = us_slab_objects(v->slab[k].slab);
    out->histogram_length = (size_t)most + 1;
    out->histogram = calloc(out->histogram_length, sizeof(*out->histogram));
    if (!out->histogram)
        return false;
    for (k = 0; k < v->nslabs; k++)
        out->histogram[us_slab_objects(v->slab[k].slab) - v->slab[k].free]++;
    return true;
}

static void add_misuse(struct us_cache *c, struct us_validation *out)
{
    const size_t most = sizeof(out->misuse) / sizeof(out->misuse[0]);
    size_t i, reported = us_misuse_count(c);

    out->nmisuse = us_misuse_list(c, out->misuse, most);
    for (i = 0; i < out->nmisuse; i++)
        note(out, out->misuse[i].text);
    out->errors += reported - out->nmisuse;
}

static bool examine(struct us_view *v, struct us_cache *c, struct us_validation *out)
{
    size_t k;

    if (!us_view_init(v, c) || !make_histogram(v, out))
        return false;
    out->slabs = v->nslabs;
    out->total = v->nobjects;
    for (k = 0; k < v->nslabs; k++) {
        out->partial_slabs += v->slab[k].listings > 0 && !v->slab[k].full_list;
        check_lists(v, &v->slab[k], out);
        check_objects(v, &v->slab[k], out);
    }
    add_misuse(c, out);
    return true;
}

enum us_status us_cache_validate(struct us_cache *c, struct us_validation *out, struct us_error *e)
{
    struct us_allocator *a = c->owner;
    struct us_view view = {.wrong = note, .context = out};
    struct us_flight f;
    bool whole;

    memset(out, 0, sizeof(*out));
    us_allocator_stop(a, &f);
    whole = examine(&view, c, out);
    us_allocator_resume(a, &f);
    us_view_fini(&view);
    if (whole)
        return US_OK;
    us_validation_free(out);
    return us_error_fill(e, US_ENOMEM, "no memory to validate cache '%s'", c->name);
}

void us_validation_free(struct us_validation *v)
{
    free(v->histogram);
    v->histogram = NULL;
    v->histogram_length = 0;
}

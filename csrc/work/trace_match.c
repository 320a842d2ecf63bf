/* Matching. Live addresses stand in an open-addressing table that holds only what is live, so it
 * stays in the processor's cache for most traces; a free removes its slot by shifting the followers
 * back, so there are no tombstones and probe lengths do not grow with the length of the trace.
 *
 * Names: since 6.18 an allocation prints the name of its cache. Before that only kmem_cache_free
 * does (since 5.12). A row of an unnamed allocation carries -2 - id of its (call site, sizes), and
 * is named by the free that ends it; objects that no free names take the name that others of the
 * same call site and sizes got, and failing that "unnamed-<object size>". */
#include "work/trace_match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROWS      4096
#define FIRST_LIVE_BITS 12

/* Grows an array to hold index `need`; false and unchanged when memory is short. */
static bool grow(void **array, size_t room, size_t item)
{
    void *larger = realloc(*array, room * item);

    if (!larger)
        return false;
    *array = larger;
    return true;
}

static bool grow_columns(struct us_trace_columns *c)
{
    size_t room = c->room ? c->room * 2 : FIRST_ROWS;

#define X(name, type, format, help)                   \
    if (!grow((void **)&c->name, room, sizeof(type))) \
        return false;
    US_TRACE_COLUMNS(X)
#undef X
    c->room = room;
    return true;
}

static size_t live_slot(const struct us_trace_match *m, uint64_t address)
{
    return (size_t)((address * UINT64_C(0x9E3779B97F4A7C15)) >> m->live_shift);
}

/* The slot of the address, or the empty one where it would stand. */
static struct us_trace_live *live_find(const struct us_trace_match *m, uint64_t address)
{
    size_t at = live_slot(m, address);

    while (m->live[at].address && m->live[at].address != address)
        at = (at + 1) & m->live_mask;
    return &m->live[at];
}

static bool live_grow(struct us_trace_match *m)
{
    unsigned bits = m->live ? 64 - m->live_shift + 1 : FIRST_LIVE_BITS;
    size_t old_slots = m->live ? m->live_mask + 1 : 0;
    struct us_trace_live *old = m->live;
    struct us_trace_live *fresh = calloc((size_t)1 << bits, sizeof(*fresh));

    if (!fresh)
        return false;
    m->live = fresh;
    m->live_mask = ((size_t)1 << bits) - 1;
    m->live_shift = 64 - bits;
    for (size_t i = 0; i < old_slots; i++) {
        if (old[i].address)
            *live_find(m, old[i].address) = old[i];
    }
    free(old);
    return true;
}

static void live_remove(struct us_trace_match *m, struct us_trace_live *slot)
{
    size_t hole = (size_t)(slot - m->live), at = hole;

    for (;;) {
        at = (at + 1) & m->live_mask;
        if (!m->live[at].address)
            break;
        /* The follower may fill the hole if its own slot is not between the hole and where it
         * stands. */
        if (((at - live_slot(m, m->live[at].address)) & m->live_mask) >=
            ((at - hole) & m->live_mask)) {
            m->live[hole] = m->live[at];
            hole = at;
        }
    }
    m->live[hole].address = 0;
    m->live_count--;
}

/* The bits of a gfp text; a trace holds few different ones, so each is decoded once. */
static bool decode_gfp(struct us_trace_match *m, struct us_text text, uint32_t *bits)
{
    uint32_t known = m->gfp_texts.count;
    int32_t id;

    *bits = 0;
    if (!text.at)
        return true;
    id = us_strings_intern(&m->gfp_texts, text);
    if (id < 0)
        return false;
    if ((uint32_t)id == known) {
        if (known == m->gfp_room) {
            uint32_t room = m->gfp_room ? m->gfp_room * 2 : 64;

            if (!grow((void **)&m->gfp_bits, room, sizeof(*m->gfp_bits)))
                return false;
            m->gfp_room = room;
        }
        m->gfp_bits[id] = us_trace_gfp_decode(text);
    }
    *bits = m->gfp_bits[id];
    return true;
}

static bool intern_if_printed(struct us_strings *strings, struct us_text text, int32_t *id)
{
    *id = text.at ? us_strings_intern(strings, text) : -1;
    return !text.at || *id >= 0;
}

/* The stand-in for the cache of an allocation without a name: -2 - id. */
static bool unnamed_cache(struct us_trace_match *m, const struct us_trace_line *line,
                          int32_t call_site, int32_t *cache)
{
    uint64_t key[3] = {(uint64_t)(int64_t)call_site, line->bytes_req, line->bytes_alloc};
    uint32_t known = m->unnamed.count;
    int32_t id = us_strings_intern(&m->unnamed, (struct us_text){(const char *)key, sizeof(key)});

    if (id < 0)
        return false;
    if ((uint32_t)id == known) {
        if (known == m->unnamed_room) {
            uint32_t room = m->unnamed_room ? m->unnamed_room * 2 : 64;

            if (!grow((void **)&m->unnamed_cache, room, sizeof(*m->unnamed_cache)))
                return false;
            m->unnamed_room = room;
        }
        m->unnamed_cache[id] = -1;
    }
    *cache = -2 - id;
    return true;
}

static bool alloc_cache(struct us_trace_match *m, const struct us_trace_line *line,
                        int32_t call_site, int32_t *cache)
{
    static const char kmalloc[] = "kmalloc";

    if (line->kmalloc)
        return intern_if_printed(&m->caches, (struct us_text){kmalloc, sizeof(kmalloc) - 1}, cache);
    if (line->name.len)
        return intern_if_printed(&m->caches, line->name, cache);
    return unnamed_cache(m, line, call_site, cache);
}

/* Appends a row with what allocations and frees have in common; the number of the row in *row. */
static bool add_row(struct us_trace_match *m, const struct us_trace_line *line, size_t *row)
{
    struct us_trace_columns *c = &m->columns;
    int32_t call_site;

    if (c->rows == c->room && !grow_columns(c))
        return false;
    if (!intern_if_printed(&m->call_sites, line->call_site, &call_site))
        return false;
    *row = c->rows;
    c->time_ns[*row] = line->time_ns;
    c->cpu[*row] = line->cpu;
    c->pid[*row] = line->pid;
    c->call_site[*row] = call_site;
    c->implied[*row] = -1;
    return true;
}

bool us_trace_match_alloc(struct us_trace_match *m, const struct us_trace_line *line)
{
    struct us_trace_columns *c = &m->columns;
    struct us_trace_live *slot;
    int64_t object = (int64_t)m->counts.allocs;
    size_t row;

    if (!line->address) {
        m->counts.events++;
        m->counts.allocs_failed++;
        return true;
    }
    if (m->live_count >= m->live_mask / 2 && !live_grow(m))
        return false;
    if ((size_t)object == m->object_room) {
        size_t room = m->object_room ? m->object_room * 2 : FIRST_ROWS;

        if (!grow((void **)&m->object_row, room, sizeof(*m->object_row)))
            return false;
        m->object_room = room;
    }
    if (!add_row(m, line, &row) || !decode_gfp(m, line->gfp, &c->gfp[row]) ||
        !alloc_cache(m, line, c->call_site[row], &c->cache[row]))
        return false;
    c->kind[row] = US_TRACE_ALLOC;
    c->object[row] = object;
    c->bytes_req[row] = (uint32_t)line->bytes_req;
    c->bytes_alloc[row] = (uint32_t)line->bytes_alloc;
    c->node[row] = line->node;
    c->accounted[row] = line->accounted;
    c->rows++;

    slot = live_find(m, line->address);
    if (slot->address) {
        c->implied[row] = slot->object;
        m->counts.implied_frees++;
    } else {
        slot->address = line->address;
        m->live_count++;
    }
    slot->object = object;
    m->object_row[object] = row;
    m->counts.events++;
    m->counts.allocs++;
    return true;
}

/* A free's row repeats what is known of the object, so that each row can be read alone. */
static void copy_object(struct us_trace_match *m, size_t row, int64_t object, int32_t named)
{
    struct us_trace_columns *c = &m->columns;
    size_t made = m->object_row[object];

    if (c->cache[made] <= -2 && named >= 0) {
        m->unnamed_cache[-2 - c->cache[made]] = named;
        c->cache[made] = named;
    }
    c->cache[row] = c->cache[made];
    c->bytes_req[row] = c->bytes_req[made];
    c->bytes_alloc[row] = c->bytes_alloc[made];
    c->accounted[row] = c->accounted[made];
}

bool us_trace_match_free(struct us_trace_match *m, const struct us_trace_line *line)
{
    struct us_trace_columns *c = &m->columns;
    struct us_trace_live *slot;
    int32_t named;
    size_t row;

    if (!line->address) {
        m->counts.events++;
        m->counts.frees++;
        m->counts.frees_null++;
        return true;
    }
    if (!m->live && !live_grow(m))
        return false;
    if (!add_row(m, line, &row) ||
        !intern_if_printed(&m->caches, line->name.len ? line->name : (struct us_text){0}, &named))
        return false;
    c->kind[row] = US_TRACE_FREE;
    c->object[row] = -1;
    c->cache[row] = named;
    c->bytes_req[row] = 0;
    c->bytes_alloc[row] = 0;
    c->gfp[row] = 0;
    c->node[row] = -1;
    c->accounted[row] = -1;
    c->rows++;
    m->counts.events++;
    m->counts.frees++;

    slot = live_find(m, line->address);
    if (!slot->address) {
        m->counts.frees_unknown++;
        return true;
    }
    c->object[row] = slot->object;
    copy_object(m, row, slot->object, named);
    m->counts.frees_matched++;
    m->counts.remote_frees += c->cpu[row] != c->cpu[m->object_row[slot->object]];
    live_remove(m, slot);
    return true;
}

bool us_trace_match_finish(struct us_trace_match *m)
{
    struct us_trace_columns *c = &m->columns;

    m->counts.live_at_end = m->live_count;
    for (size_t row = 0; row < c->rows; row++) {
        int32_t id = -2 - c->cache[row], *cache;
        char name[32];
        int len;

        if (id < 0)
            continue;
        cache = &m->unnamed_cache[id];
        if (*cache < 0) {
            len = snprintf(name, sizeof(name), "unnamed-%u", (unsigned)c->bytes_req[row]);
            *cache = us_strings_intern(&m->caches, (struct us_text){name, (size_t)len});
            if (*cache < 0)
                return false;
        }
        c->cache[row] = *cache;
    }
    return true;
}

void us_trace_match_release(struct us_trace_match *m)
{
#define X(name, type, format, help) free(m->columns.name);
    US_TRACE_COLUMNS(X)
#undef X
    us_strings_free(&m->caches);
    us_strings_free(&m->call_sites);
    us_strings_free(&m->gfp_texts);
    us_strings_free(&m->unnamed);
    free(m->gfp_bits);
    free(m->object_row);
    free(m->live);
    free(m->unnamed_cache);
    *m = (struct us_trace_match){0};
}

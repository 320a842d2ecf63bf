/* object.c - objects within a slab: which address is one, and which are free (BITMAP state).
 *
 * Up to 64 objects the descriptor's word has a bit for each that is free. Above that the bits lie
 * in the page-indexed array from the slab's first page on, and the descriptor's word is the number
 * of the first word there that may have a bit set, so that taking one object after another stays
 * cheap.
 */
#include "slab/internal.h"

bool us_object_at(const struct us_cache *c, const struct us_slab *s, const void *address,
                  uint32_t *index)
{
    uint64_t offset = (uint64_t)((const char *)address - us_slab_objects_base(c, s));

    us_runs(30);
    us_reads(&c->slabs, sizeof(c->slabs));
    us_reads(&c->geometry, 1);
    us_reads(&c->reciprocal, sizeof(c->reciprocal));
    us_reads(s, sizeof(*s));
    if (atomic_load_explicit(&((struct us_slab *)s)->state, memory_order_relaxed) & US_SLAB_LARGE) {
        *index = 0;
        return offset == 0;
    }
    *index = us_object_index(c, offset);
    return *index < us_slab_objects(s) && *index * (uint64_t)c->geometry.stride == offset;
}

static uint64_t *words_of(const struct us_cache *c, const struct us_slab *s)
{
    const struct us_slabs *slabs = c->slabs;

    return &slabs->bits[(uint64_t)(s - slabs->slab) << slabs->bits_shift];
}

static uint64_t lowest_bits(uint32_t n)
{
    return n >= 64 ? ~0ull : (1ull << n) - 1;
}

void us_objects_fill(struct us_cache *c, struct us_slab *s)
{
    uint32_t objects = us_slab_objects(s);

    us_runs(10 + objects / 16);
    us_writes(s, sizeof(*s));
    s->free = objects;
    if (objects <= 64) {
        s->bitmap = lowest_bits(objects);
        return;
    }
    uint64_t *word = words_of(c, s);
    us_writes(word, (objects + 63) / 64 * sizeof(*word));
    for (uint32_t i = 0; i < objects; i += 64)
        word[i / 64] = lowest_bits(objects - i);
    s->bitmap = 0;
}

/* Takes up to n objects out of one word whose first bit is object `first`; out[n-1] is filled
 * first. Returns taken. */
static unsigned take_word(struct us_cache *c, struct us_slab *s, uint64_t *word, uint32_t first,
                          void **out, unsigned n)
{
    uint64_t bits = *word;
    unsigned taken = 0;

    us_writes(word, sizeof(*word));
    while (bits && taken < n) {
        uint32_t index = first + (uint32_t)__builtin_ctzll(bits);

        bits &= bits - 1;
        out[n - ++taken] = us_object_address(c, s, index);
    }
    *word = bits;
    return taken;
}

unsigned us_slab_take(struct us_cache *c, struct us_slab *s, void **out, unsigned n)
{
    uint32_t objects = us_slab_objects(s);
    unsigned taken = 0;

    if (n > s->free)
        /* What is there fills the end of out. */
        out += n - s->free, n = s->free;
    us_runs(25 + 8 * n);
    us_writes(s, sizeof(*s));
    if (objects <= 64) {
        taken = take_word(c, s, &s->bitmap, 0, out, n);
    } else {
        uint64_t *word = words_of(c, s);
        uint64_t w = s->bitmap, end = (objects + 63) / 64;

        for (; w < end; w++) {
            taken += take_word(c, s, &word[w], (uint32_t)w * 64, out, n - taken);
            if (taken == n)
                break;
        }
        s->bitmap = w;
    }
    s->free -= taken;
    return taken;
}

static uint64_t *word_of(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    if (us_slab_objects(s) <= 64)
        return &((struct us_slab *)s)->bitmap;
    return words_of(c, s) + index / 64;
}

/* What is wrong with an address that is not of the slab `s` of the cache. */
static enum us_misuse_kind stranger(const struct us_cache *c, const void *object)
{
    const struct us_slab *of = us_cache_slab(c, object);

    if (!us_in_range(&c->slabs->range, object))
        return US_MISUSE_OUTSIDE;
    if (of == NULL)
        return US_MISUSE_NO_SLAB;
    return of->cache == c ? US_MISUSE_NO_OBJECT : US_MISUSE_WRONG_CACHE;
}

bool us_object_returns(struct us_cache *c, const struct us_slab *s, const void *object,
                       uint32_t *index)
{
    us_runs(27);
    if (US_UNLIKELY(s == NULL || s->cache != c || us_cache_slab(c, object) != s)) {
        us_report_misuse(c, stranger(c, object), object);
        return false;
    }
    if (US_UNLIKELY(!us_object_at(c, s, object, index))) {
        us_report_misuse(c, US_MISUSE_NO_OBJECT, object);
        return false;
    }
    return true;
}

bool us_slab_put(struct us_cache *c, struct us_slab *s, void *object)
{
    uint32_t index;

    if (US_UNLIKELY(!us_object_returns(c, s, object, &index)))
        return false;
    uint64_t *word = word_of(c, s, index), bit = 1ull << (index % 64);
    if (US_UNLIKELY(*word & bit)) {
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        return false;
    }
    us_runs(20);
    us_writes(s, sizeof(*s));
    us_writes(word, sizeof(*word));
    *word |= bit;
    if (us_slab_objects(s) > 64 && index / 64 < s->bitmap)
        s->bitmap = index / 64;
    s->free++;
    return true;
}

bool us_slab_is_free(const struct us_cache *c, const struct us_slab *s, uint32_t index)
{
    if (c->geometry.state == US_OBJECTS_INDEX)
        return s->index[index] != US_INDEX_OUT;
    return *word_of(c, s, index) >> (index % 64) & 1;
}

void us_slab_thread(struct us_cache *c, struct us_slab *s)
{
    uint32_t objects = us_slab_objects(s);
    char *object = us_slab_objects_base(c, s);

    us_runs(14 + 8 * (uint64_t)objects);
    us_writes(s, sizeof(*s));
    s->freelist = object;
    s->free = objects;
    for (; objects > 1; objects--, object += c->geometry.stride)
        us_link_set(c, object, object + c->geometry.stride);
    us_link_set(c, object, NULL);
}

/* bitset.c - a set of small numbers as a 64-ary tree of bits. */
#include "memory/bitset.h"

static uint64_t words_of(uint64_t nbits)
{
    return (nbits + 63) >> 6;
}

size_t us_bitset_words(uint64_t nbits)
{
    size_t total = 0;

    do {
        nbits = words_of(nbits);
        total += (size_t)nbits;
    } while (nbits > 1);
    return total;
}

void us_bitset_init(struct us_bitset *s, uint64_t nbits, uint64_t *words)
{
    uint64_t n = nbits;

    s->nbits = nbits;
    s->nlevels = 0;
    do {
        n = words_of(n);
        s->level[s->nlevels++] = words;
        words += n;
    } while (n > 1);
}

/* The word of level 0 that holds i was zero and is not any more. */
static void raise_word(struct us_bitset *s, uint64_t word)
{
    us_reads(&s->level[1], 1);
    us_reads(&s->nlevels, sizeof(s->nlevels));
    for (unsigned level = 1; level < s->nlevels; level++) {
        uint64_t *w = &s->level[level][word >> 6];
        uint64_t old = *w;

        us_runs(8);
        us_writes(w, sizeof(*w));
        *w = old | 1ull << (word & 63);
        if (old)
            return;
        word >>= 6;
    }
}

/* The word of level 0 became zero. */
static void lower_word(struct us_bitset *s, uint64_t word)
{
    us_reads(&s->level[1], 1);
    us_reads(&s->nlevels, sizeof(s->nlevels));
    for (unsigned level = 1; level < s->nlevels; level++) {
        uint64_t *w = &s->level[level][word >> 6];

        us_runs(8);
        us_writes(w, sizeof(*w));
        *w &= ~(1ull << (word & 63));
        if (*w)
            return;
        word >>= 6;
    }
}

void us_bitset_set(struct us_bitset *s, uint64_t i)
{
    uint64_t *w = &s->level[0][i >> 6];
    uint64_t old = *w;

    us_runs(10);
    us_reads(s, sizeof(*s));
    us_writes(w, sizeof(*w));
    *w = old | 1ull << (i & 63);
    if (old == 0)
        raise_word(s, i >> 6);
}

void us_bitset_clear(struct us_bitset *s, uint64_t i)
{
    uint64_t *w = &s->level[0][i >> 6];

    us_runs(10);
    us_reads(s, sizeof(*s));
    if (*w == 0) {
        us_reads(w, sizeof(*w));
        return;
    }
    us_writes(w, sizeof(*w));
    *w &= ~(1ull << (i & 63));
    if (*w == 0)
        lower_word(s, i >> 6);
}

/* Goes down from bit `i` of `level` to the smallest member below it. */
static uint64_t descend(const struct us_bitset *s, unsigned level, uint64_t i)
{
    while (level > 0) {
        level--;
        us_runs(7);
        us_reads(&s->level[level][i], sizeof(uint64_t));
        i = i << 6 | (uint64_t)__builtin_ctzll(s->level[level][i]);
    }
    return i;
}

uint64_t us_bitset_first(const struct us_bitset *s)
{
    us_reads(s, sizeof(*s));
    if (us_bitset_empty(s))
        return US_NO_BIT;
    unsigned top = s->nlevels - 1;
    us_reads(s->level[top], sizeof(uint64_t));
    return descend(s, top, (uint64_t)__builtin_ctzll(*s->level[top]));
}

uint64_t us_bitset_next(const struct us_bitset *s, uint64_t from)
{
    uint64_t i = from, nbits = s->nbits;

    for (unsigned level = 0; level < s->nlevels; level++) {
        if (i >= nbits)
            return US_NO_BIT;
        us_runs(10);
        us_reads(&s->level[level][i >> 6], sizeof(uint64_t));
        uint64_t rest = s->level[level][i >> 6] & ~0ull << (i & 63);
        if (rest)
            return descend(s, level, (i & ~63ull) | (uint64_t)__builtin_ctzll(rest));
        i = (i >> 6) + 1;
        nbits = words_of(nbits);
    }
    return US_NO_BIT;
}

uint64_t us_bitset_run_end(const struct us_bitset *s, uint64_t from, uint64_t limit)
{
    uint64_t i = from;

    if (limit > s->nbits)
        limit = s->nbits;
    while (i < limit) {
        us_runs(8);
        us_reads(&s->level[0][i >> 6], sizeof(uint64_t));
        uint64_t gaps = ~s->level[0][i >> 6] & ~0ull << (i & 63);
        if (gaps) {
            i = (i & ~63ull) | (uint64_t)__builtin_ctzll(gaps);
            break;
        }
        i = (i | 63) + 1;
    }
    return i < limit ? i : limit;
}

/* The bits of [from, end) that lie in the word of `from`. */
static uint64_t mask_of(uint64_t from, uint64_t end)
{
    uint64_t mask = ~0ull << (from & 63);

    if (end - (from & ~63ull) < 64)
        mask &= ~(~0ull << (end & 63));
    return mask;
}

uint64_t us_bitset_set_range(struct us_bitset *s, uint64_t from, uint64_t n)
{
    uint64_t end = from + n, added = 0;

    for (; from < end; from = (from | 63) + 1) {
        uint64_t *w = &s->level[0][from >> 6];
        uint64_t old = *w, mask = mask_of(from, end);

        us_runs(20);
        us_writes(w, sizeof(*w));
        added += (uint64_t)__builtin_popcountll(mask & ~old);
        *w = old | mask;
        if (old == 0)
            raise_word(s, from >> 6);
    }
    return added;
}

uint64_t us_bitset_clear_range(struct us_bitset *s, uint64_t from, uint64_t n)
{
    uint64_t end = from + n, removed = 0;

    for (; from < end; from = (from | 63) + 1) {
        uint64_t *w = &s->level[0][from >> 6];
        uint64_t old = *w, mask = mask_of(from, end) & old;

        us_runs(20);
        if (mask == 0) {
            us_reads(w, sizeof(*w));
            continue;
        }
        us_writes(w, sizeof(*w));
        removed += (uint64_t)__builtin_popcountll(mask);
        *w = old & ~mask;
        if (*w == 0)
            lower_word(s, from >> 6);
    }
    return removed;
}

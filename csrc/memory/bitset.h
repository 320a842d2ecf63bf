/* bitset.h - a set of small numbers as a 64-ary tree of bits.
 *
 * Level 0 has one bit a number; a bit of level i+1 says that the word below it is not zero. Finding
 * the first member, or the next one, looks at one word a level: four levels hold 16 million.
 * The words are given by the owner, all zero at the start, and are touched only where members are,
 * so that a set over reserved memory commits lazily. The owner's lock guards the set.
 */
#ifndef US_BITSET_H
#define US_BITSET_H

#include "machine/machine.h"

#define US_BITSET_LEVELS 6

struct us_bitset {
    uint64_t *level[US_BITSET_LEVELS];
    uint64_t nbits;
    unsigned nlevels;
};

#define US_NO_BIT UINT64_MAX

/* Words that a set over [0, nbits) needs. */
size_t us_bitset_words(uint64_t nbits);
void us_bitset_init(struct us_bitset *s, uint64_t nbits, uint64_t *words);

US_INLINE bool us_bitset_test(const struct us_bitset *s, uint64_t i)
{
    us_reads(&s->level[0][i >> 6], sizeof(uint64_t));
    return s->level[0][i >> 6] >> (i & 63) & 1;
}
US_INLINE bool us_bitset_empty(const struct us_bitset *s)
{
    return s->nbits == 0 || *s->level[s->nlevels - 1] == 0;
}
void us_bitset_set(struct us_bitset *s, uint64_t i);
void us_bitset_clear(struct us_bitset *s, uint64_t i);

/* The smallest member, and the smallest that is >= from; US_NO_BIT when there is none. */
uint64_t us_bitset_first(const struct us_bitset *s);
uint64_t us_bitset_next(const struct us_bitset *s, uint64_t from);
/* One past the members that follow `from` without a gap, at most `limit`. */
uint64_t us_bitset_run_end(const struct us_bitset *s, uint64_t from, uint64_t limit);

/* Ranges [from, from + n): how many members were added or removed. */
uint64_t us_bitset_set_range(struct us_bitset *s, uint64_t from, uint64_t n);
uint64_t us_bitset_clear_range(struct us_bitset *s, uint64_t from, uint64_t n);

#endif

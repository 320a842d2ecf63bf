// machines: both
/* memory/bitset against a plain array of flags. */
#include <string.h>

#include "check.h"
#include "memory/bitset.h"

#define MOST 300000u

static unsigned char flag[MOST];
static uint64_t words[MOST / 32];
static struct us_bitset set;

static void begin(uint64_t nbits)
{
    memset(flag, 0, sizeof flag);
    memset(words, 0, sizeof words);
    REQUIRE(us_bitset_words(nbits) <= sizeof words / sizeof *words);
    us_bitset_init(&set, nbits, words);
}

static uint64_t naive_next(uint64_t from)
{
    for (; from < set.nbits; from++)
        if (flag[from])
            return from;
    return US_NO_BIT;
}

static uint64_t naive_run_end(uint64_t from, uint64_t limit)
{
    while (from < limit && from < set.nbits && flag[from])
        from++;
    return from;
}

static void sizes_of_each_depth(void)
{
    /* One word to 64 bits, then a word above each 64 words. */
    CHECK_EQ(us_bitset_words(0), 0);
    CHECK_EQ(us_bitset_words(1), 1);
    CHECK_EQ(us_bitset_words(64), 1);
    CHECK_EQ(us_bitset_words(65), 2 + 1);
    CHECK_EQ(us_bitset_words(4096), 64 + 1);
    CHECK_EQ(us_bitset_words(4097), 65 + 2 + 1);
    CHECK_EQ(us_bitset_words(1u << 24), (1u << 18) + (1u << 12) + 64 + 1);
}

static void empty_set_has_no_member(void)
{
    begin(0);
    CHECK(us_bitset_empty(&set));
    CHECK_EQ(us_bitset_first(&set), US_NO_BIT);
    CHECK_EQ(us_bitset_next(&set, 0), US_NO_BIT);
    begin(MOST);
    CHECK(us_bitset_empty(&set));
    CHECK_EQ(us_bitset_first(&set), US_NO_BIT);
    us_bitset_clear(&set, 12345);
    CHECK(us_bitset_empty(&set));
}

static void each_end_of_a_word(void)
{
    static const uint64_t bit[] = {0, 1, 63, 64, 127, 4095, 4096, 262143, 262144, MOST - 1};
    const size_t n = sizeof bit / sizeof *bit;

    begin(MOST);
    for (size_t i = n; i-- > 0;) {
        us_bitset_set(&set, bit[i]);
        CHECK_EQ(us_bitset_first(&set), bit[i]);
    }
    for (size_t i = 0; i < n; i++) {
        CHECK(us_bitset_test(&set, bit[i]));
        CHECK_EQ(us_bitset_next(&set, bit[i]), bit[i]);
        CHECK_EQ(us_bitset_next(&set, bit[i] + 1), i + 1 < n ? bit[i + 1] : US_NO_BIT);
    }
    for (size_t i = 0; i < n; i++) {
        CHECK_EQ(us_bitset_first(&set), bit[i]);
        us_bitset_clear(&set, bit[i]);
    }
    CHECK(us_bitset_empty(&set));
    for (size_t i = 0; i < us_bitset_words(MOST); i++)
        if (words[i])
            CHECK_EQ(words[i], 0);
}

static uint64_t seed = 88172645463325252ull;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static void change_range(bool add)
{
    uint64_t from = below(set.nbits),
             n = 1 + below(set.nbits - from < 700 ? set.nbits - from : 700);
    uint64_t changed = 0;

    for (uint64_t i = from; i < from + n; i++) {
        changed += flag[i] != add;
        flag[i] = add;
    }
    if (add)
        CHECK_EQ(us_bitset_set_range(&set, from, n), changed);
    else
        CHECK_EQ(us_bitset_clear_range(&set, from, n), changed);
}

static void random_program(uint64_t nbits)
{
    begin(nbits);
    for (unsigned i = 0; i < 4000; i++) {
        uint64_t x = below(nbits), limit = x + below(2000);

        switch (below(6)) {
        case 0:
            us_bitset_set(&set, x);
            flag[x] = 1;
            break;
        case 1:
            us_bitset_clear(&set, x);
            flag[x] = 0;
            break;
        case 2:
            change_range(true);
            break;
        case 3:
            change_range(false);
            break;
        case 4:
            CHECK_EQ(us_bitset_next(&set, x), naive_next(x));
            break;
        default:
            CHECK_EQ(us_bitset_run_end(&set, x, limit), naive_run_end(x, limit));
        }
        CHECK_EQ(us_bitset_test(&set, x), flag[x]);
    }
    CHECK_EQ(us_bitset_first(&set), naive_next(0));
    uint64_t members = 0, found = 0;
    for (uint64_t i = 0; i < nbits; i++)
        members += flag[i];
    for (uint64_t i = us_bitset_first(&set); i != US_NO_BIT; i = us_bitset_next(&set, i + 1))
        found += flag[i];
    CHECK_EQ(found, members);
    us_bitset_clear_range(&set, 0, nbits);
    CHECK(us_bitset_empty(&set));
}

static void random_programs(void)
{
    static const uint64_t nbits[] = {1, 63, 64, 65, 1000, 4096, 4097, 40000, MOST};

    for (size_t i = 0; i < sizeof nbits / sizeof *nbits; i++)
        random_program(nbits[i]);
}

int main(void)
{
    RUN(sizes_of_each_depth);
    RUN(empty_set_has_no_member);
    RUN(each_end_of_a_word);
    RUN(random_programs);
    return check_result();
}

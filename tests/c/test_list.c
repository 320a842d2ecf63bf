// machines: both
/* Lists of slabs: order, membership, and the sort in place. */
#include <string.h>

#include "check.h"
#include "slab/slab.h"

#define MOST 1000u

static struct us_slab slab[MOST];
static struct us_slab_list list;

static void begin(void)
{
    memset((void *)slab, 0, sizeof slab);
    memset(&list, 0, sizeof list);
}

/* The list holds exactly the given slabs in this order, both ways. */
static void check_list(const unsigned *expected, unsigned n)
{
    struct us_slab *s = list.first;

    CHECK_EQ(list.length, n);
    for (unsigned i = 0; i < n; i++, s = s->next) {
        REQUIRE(s != NULL);
        CHECK_EQ(s - slab, expected[i]);
        CHECK(s->state & US_SLAB_PARTIAL);
    }
    CHECK(s == NULL);
    s = list.last;
    for (unsigned i = n; i-- > 0; s = s->prev) {
        REQUIRE(s != NULL);
        CHECK_EQ(s - slab, expected[i]);
    }
    CHECK(s == NULL);
}

static void head_tail_remove(void)
{
    begin();
    check_list(NULL, 0);
    us_slab_list_head(&list, &slab[1]);
    us_slab_list_head(&list, &slab[0]);
    us_slab_list_tail(&list, &slab[2]);
    us_slab_list_tail(&list, &slab[3]);
    check_list((unsigned[]){0, 1, 2, 3}, 4);
    us_slab_list_remove(&list, &slab[1]);
    CHECK_EQ(slab[1].state, 0);
    check_list((unsigned[]){0, 2, 3}, 3);
    us_slab_list_remove(&list, &slab[3]);
    us_slab_list_remove(&list, &slab[0]);
    check_list((unsigned[]){2}, 1);
    us_slab_list_remove(&list, &slab[2]);
    check_list(NULL, 0);
    us_slab_list_tail(&list, &slab[3]);
    check_list((unsigned[]){3}, 1);
}

static void other_state_bits_stay(void)
{
    begin();
    atomic_store(&slab[0].state, US_SLAB_BAD);
    us_slab_list_head(&list, &slab[0]);
    CHECK_EQ(slab[0].state, US_SLAB_BAD | US_SLAB_PARTIAL);
    us_slab_list_remove(&list, &slab[0]);
    CHECK_EQ(slab[0].state, US_SLAB_BAD);
}

static uint64_t seed = 88172645463325252ull;

static void sort_of(unsigned n, unsigned values)
{
    static unsigned expected[MOST];
    unsigned k = 0;

    begin();
    for (unsigned i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        slab[i].free = (uint32_t)(seed % values);
        us_slab_list_tail(&list, &slab[i]);
    }
    /* Fewest free objects first, equals in the order they had. */
    for (unsigned value = 0; value < values; value++)
        for (unsigned i = 0; i < n; i++)
            if (slab[i].free == value)
                expected[k++] = i;
    us_slab_list_sort(&list);
    check_list(expected, n);
    us_slab_list_sort(&list);
    check_list(expected, n);
}

static void sort_is_stable(void)
{
    for (unsigned n = 0; n < 20; n++)
        for (unsigned values = 1; values < 5; values++)
            sort_of(n, values);
    sort_of(MOST, 1);
    sort_of(MOST, 2);
    sort_of(MOST, 64);
    sort_of(513, 1000);
}

int main(void)
{
    RUN(head_tail_remove);
    RUN(other_state_bits_stay);
    RUN(sort_is_stable);
    return check_result();
}

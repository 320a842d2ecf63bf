/* Rings and lists in plain C against models that are too simple to be wrong. */
#include "ring_model.h"

#include <stdlib.h>

static struct us_ring *new_ring(unsigned capacity)
{
    struct us_ring *r = aligned_alloc(US_LINE, (us_ring_bytes(capacity) + 63) / 64 * 64);

    REQUIRE(r != NULL);
    us_ring_init(r, capacity, MODEL_BASE, MODEL_BYTES);
    return r;
}

static bool pop(void *r, void **out)
{
    return us_ring_pop_c(r, out);
}
static bool push(void *r, void *object)
{
    return us_ring_push_c(r, object);
}
static unsigned pop_batch(void *r, void **out, unsigned n)
{
    return us_ring_pop_batch_c(r, out, n);
}
static unsigned push_batch(void *r, void **in, unsigned n)
{
    unsigned put = 0;

    while (put < n && us_ring_push_c(r, in[put]))
        put++;
    return put;
}
static unsigned take_top(void *r, void **out, unsigned n, enum us_seen seen)
{
    return us_ring_take_top_c(r, out, n, seen);
}
static unsigned take_oldest(void *r, void **out, unsigned n, enum us_seen seen)
{
    return us_ring_take_oldest_c(r, out, n, seen);
}
static unsigned add(void *r, void **in, unsigned n, enum us_seen seen)
{
    return us_ring_add_c(r, in, n, seen);
}
static const struct ring_ops plain = {pop, push, pop_batch, push_batch, take_top, take_oldest, add};

static void any_program_does_what_the_model_does(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t state = seed, next = 0;
        struct ring_model m = {.capacity = model_random(&state) % MODEL_MAX};
        struct us_ring *r = new_ring(m.capacity);

        if (seed % 2) /* and around the wrap of each field */
            atomic_store(&r->header, model_near_wrap(&m));

        for (int step = 0; step < 3000; step++) {
            unsigned operation = model_random(&state), amount = model_random(&state);

            if (step % 2) /* mostly small amounts */
                amount %= 9;
            if (!model_step(&m, r, &plain, r, operation, amount, &next))
                break;
        }
        free(r);
    }
}

static void the_pop_count_wraps_and_nothing_else_changes(void)
{
    struct us_ring *r = new_ring(4);
    void *object = (void *)(uintptr_t)MODEL_BASE, *out = NULL;

    atomic_store(&r->header, us_header_make(US_POPS_WRAP - 1, (1u << 14) - 1, 0));
    CHECK(us_ring_push_c(r, object));
    CHECK(us_ring_pop_c(r, &out));
    CHECK_EQ(out, object);
    CHECK_EQ(us_header_pops(us_ring_header(r)), 0);
    CHECK_EQ(us_header_head(us_ring_header(r)), (1u << 14) - 1);
    CHECK_EQ(us_ring_size(r), 0);
    CHECK(us_ring_push_c(r, object)); /* the head wraps likewise, and leaves the pops alone */
    CHECK_EQ(us_ring_take_oldest_c(r, &out, 1, US_SEEN_KEEP), 1);
    CHECK_EQ(us_ring_header(r), 0);
    free(r);
}

static void a_ring_of_the_largest_capacity_fills_and_empties(void)
{
    struct us_ring *r = new_ring(US_RING_MAX);
    unsigned n = 0;
    void *out;

    while (us_ring_push_c(r, (void *)(uintptr_t)(MODEL_BASE + n)))
        n++;
    CHECK_EQ(n, US_RING_MAX);
    CHECK_EQ(us_ring_size(r), US_RING_MAX);
    CHECK_EQ(us_header_head(us_ring_header(r)), 0);
    CHECK_EQ(us_header_pops(us_ring_header(r)), 0);
    while (n > 0 && us_ring_pop_c(r, &out))
        CHECK_EQ(out, MODEL_BASE + --n);
    CHECK_EQ(n, 0);
    CHECK_EQ(us_header_pops(us_ring_header(r)), US_RING_MAX);
    free(r);
}

static void batches_of_none_commit_nothing(void)
{
    struct us_ring *r = new_ring(4);
    void *object = (void *)(uintptr_t)MODEL_BASE, *out[4];
    uint64_t before;

    CHECK_EQ(us_ring_pop_batch_c(r, out, 4), 0);
    CHECK_EQ(us_ring_take_oldest_c(r, out, 4, US_SEEN_COMMIT), 0);
    CHECK_EQ(us_ring_take_top_c(r, out, 4, US_SEEN_COMMIT), 0);
    CHECK_EQ(us_ring_header(r), 0);
    CHECK(us_ring_touched(r));
    CHECK_EQ(us_ring_add_c(r, &object, 1, US_SEEN_COMMIT), 1);
    CHECK(!us_ring_touched(r));
    before = us_ring_header(r);
    CHECK_EQ(us_ring_add_c(r, &object, 0, US_SEEN_TOUCH), 0);
    CHECK_EQ(us_ring_take_oldest_c(r, out, 0, US_SEEN_TOUCH), 0);
    CHECK_EQ(us_ring_header(r), before);
    CHECK(!us_ring_touched(r));
    free(r);
}

/* The closed regions are constants: a write would end this program. */
static void closed_regions_are_empty_and_full(void)
{
    struct us_ring *r = (struct us_ring *)(uintptr_t)&us_closed_ring;
    struct us_words *words = (struct us_words *)(uintptr_t)&us_closed_words;
    struct us_list list = {NULL, 0};
    void *object = (void *)(uintptr_t)MODEL_BASE, *out;

    CHECK(!us_ring_pop_c(r, &out));
    CHECK(!us_ring_push_c(r, object));
    CHECK(!us_ring_push_c(r, NULL));
    CHECK_EQ(us_ring_add_c(r, &object, 1, US_SEEN_COMMIT), 0);
    CHECK_EQ(us_ring_take_oldest_c(r, &out, 1, US_SEEN_COMMIT), 0);
    CHECK_EQ(us_ring_take_top_c(r, &out, 1, US_SEEN_TOUCH), 0);
    for (unsigned w = 0; w < US_NWORDS; w++) {
        CHECK_EQ(us_words_detach_c(words, w), NULL);
        CHECK(!us_words_install_c(words, w, &list));
        CHECK(!us_list_pop_c(words->word[w], 0, &out));
    }
}

/* ---- lists ------------------------------------------------------------------------------------
 */

static void a_list_is_a_stack_that_counts(void)
{
    enum { N = 300, LINK = 8 };
    static struct cell {
        void *before, *link, *behind;
    } cell[N];
    struct us_list list = {NULL, 0};
    void *stack[N], *out;
    unsigned n = 0;
    uint64_t state = 7, pops = 0;

    for (unsigned i = 0; i < N; i++)
        cell[i].before = cell[i].behind = &cell[i];
    for (unsigned step = 0, fresh = 0; step < 20000; step++) {
        if (model_random(&state) % 2 && fresh < N) {
            stack[n++] = &cell[fresh];
            us_list_push_c(&list, LINK, &cell[fresh++]);
        } else if (CHECK_EQ(us_list_pop_c(&list, LINK, &out), n > 0) && n > 0) {
            CHECK_EQ(out, stack[--n]);
            pops++;
            fresh = n == 0 ? 0 : fresh;
        }
        if (!CHECK_EQ(us_list_size(list.count), 0) || !CHECK_EQ(us_list_pops(list.count), pops))
            return; /* pops alone are counted; the size is that at installation */
    }
    for (unsigned i = 0; i < N; i++) /* nothing but the link is written */
        CHECK(cell[i].before == &cell[i] && cell[i].behind == &cell[i]);
}

static void words_move_one_by_one(void)
{
    struct us_words words;
    struct us_list a = {&a, 5 + (9ull << US_LIST_SIZE_BITS)}, b = {&b, 2};

    us_words_init(&words, MODEL_BASE, MODEL_BYTES);
    CHECK_EQ(us_words_detach_c(&words, 1), NULL);
    CHECK(us_words_install_c(&words, 1, &a));
    CHECK_EQ(us_list_pops(a.count), 0); /* counted from here on */
    CHECK_EQ(us_list_size(a.count), 5);
    CHECK_EQ(words.installed[1], 5);
    CHECK(!us_words_install_c(&words, 1, &b));
    CHECK(us_words_install_c(&words, 3, &b));
    CHECK_EQ(us_words_detach_c(&words, 1), &a);
    CHECK_EQ(us_words_detach_c(&words, 1), NULL);
    CHECK_EQ(words.word[3], &b);
    CHECK_EQ(words.base, MODEL_BASE);
}

int main(void)
{
    RUN(any_program_does_what_the_model_does);
    RUN(the_pop_count_wraps_and_nothing_else_changes);
    RUN(a_ring_of_the_largest_capacity_fills_and_empties);
    RUN(batches_of_none_commit_nothing);
    RUN(closed_regions_are_empty_and_full);
    RUN(a_list_is_a_stack_that_counts);
    RUN(words_move_one_by_one);
    return check_result();
}

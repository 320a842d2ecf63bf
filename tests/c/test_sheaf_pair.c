/* Every restartable sequence on sheaves against its plain C form: same results, and region and
 * sheaves equal to the byte. Every branch at each level of optimisation: closed, empty word, empty,
 * full, foreign, wrap, moved. */
// machines: native
// levels: O1 O2 O3
#include "fixture_pair.h"

#ifndef US_HAVE_RSEQ
int main(void)
{
    SKIP("no sequences are written for this architecture");
}
#else

enum { SHEAVES = 3, ROOM = 12 };

/* The same three sheaves and region twice: for the sequences and for the plain forms. */
struct world {
    struct us_words words;
    struct us_sheaf *sheaf[SHEAVES];
};
static struct world real, plain;

static struct us_batch batch(void *const *objects, unsigned n)
{
    return (struct us_batch){
        .table = table, .objects = objects, .base = MODEL_BASE, .cpu = cpu, .n = n};
}

static void *object_at(uint64_t i)
{
    return (void *)(uintptr_t)(MODEL_BASE + 16 * i);
}

static void make_world(struct world *w)
{
    us_sheaves_init(&w->words, MODEL_BASE, MODEL_BYTES);
    for (unsigned i = 0; i < SHEAVES; i++) {
        free(w->sheaf[i]);
        w->sheaf[i] = aligned_alloc(US_LINE, US_LINE * 4);
        REQUIRE(w->sheaf[i] != NULL);
        memset((void *)w->sheaf[i], 0, US_LINE * 4);
        us_sheaf_init(w->sheaf[i], i == 0 ? ROOM : i); /* capacities 12, 1, 2 */
    }
}

static void make_worlds(void)
{
    make_world(&real);
    make_world(&plain);
    for (int i = -2; i < (int)machine->table_cpus; i++)
        table[i] = (void *)(uintptr_t)&us_closed_sheaves;
    table[cpu] = &real.words;
}

/* Which sheaf a word names; SHEAVES = none. */
static unsigned named(const struct world *w, unsigned word)
{
    unsigned i = 0;

    while (i < SHEAVES && w->words.sheaf[word] != w->sheaf[i])
        i++;
    return i;
}

static bool worlds_are_equal(void)
{
    bool same = true;

    for (unsigned w = 0; w < US_NWORDS; w++)
        same = CHECK_EQ(named(&real, w), named(&plain, w)) && same;
    for (unsigned i = 0; i < SHEAVES; i++)
        same = CHECK(memcmp(real.sheaf[i], plain.sheaf[i], us_sheaf_bytes(ROOM)) == 0) && same;
    return same;
}

/* ---- programs --------------------------------------------------------------------------- */

static void move_one(uint64_t *state, uint64_t *fresh, bool push)
{
    void *a = NULL, *b = NULL, *object = object_at(++*fresh);

    if (!push) {
        CHECK_EQ(us_seq_main_pop(table, &a), us_main_pop_c(&plain.words, &b));
        CHECK_EQ(a, b);
        return;
    }
    if (model_random(state) % 8 == 0)
        object = (void *)(uintptr_t)(MODEL_BASE + MODEL_BYTES * (model_random(state) % 2) - 1);
    CHECK_EQ(us_seq_main_push(table, object), us_main_push_c(&plain.words, object));
}

static void move_some(uint64_t *state, uint64_t *fresh, bool put)
{
    void *a[ROOM + 2] = {NULL}, *b[ROOM + 2] = {NULL};
    const unsigned n = model_random(state) % (ROOM + 3);
    struct us_batch some = batch(a, n);

    if (!put) {
        const unsigned taken = us_main_take_c(&plain.words, b, n);

        CHECK_EQ(us_seq_main_take(&some), taken);
        CHECK(memcmp(a, b, taken * sizeof *a) == 0); /* what was refused may be copied */
        return;
    }
    for (unsigned i = 0; i < n; i++)
        a[i] = object_at(++*fresh);
    some.base += model_random(state) % 8 == 0;
    CHECK_EQ(us_seq_main_put(&some), us_main_put_c(&plain.words, a, n, some.base));
}

static void swap(uint64_t *state)
{
    const unsigned w = model_random(state) % 2, from = model_random(state) % (SHEAVES + 1),
                   to = model_random(state) % (SHEAVES + 1);
    const struct us_sheaf *old = from < SHEAVES ? real.sheaf[from] : &us_closed_sheaf,
                          *new = to < SHEAVES ? real.sheaf[to] : &us_closed_sheaf;

    if (to < SHEAVES && named(&plain, !w) == to) /* a sheaf is named once */
        return;
    CHECK_EQ(us_seq_swap(table, w, cpu, old, new),
             us_sheaves_swap_c(&plain.words, w, from < SHEAVES ? plain.sheaf[from] : NULL,
                               to < SHEAVES ? plain.sheaf[to] : NULL));
}

static void set_headers(uint64_t header)
{
    for (unsigned i = 0; i < SHEAVES; i++) {
        atomic_store(&real.sheaf[i]->header, header);
        atomic_store(&plain.sheaf[i]->header, header);
    }
}

static void sheaves_are_equal_after_any_program(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t state = seed, fresh = 0;

        make_worlds();
        if (seed % 2)
            set_headers(us_header_make(US_POPS_WRAP - 100, 0, 0));
        for (int step = 0; step < 2000; step++) {
            const unsigned operation = model_random(&state) % 16;

            if (operation < 10)
                move_one(&state, &fresh, operation % 2);
            else if (operation < 14)
                move_some(&state, &fresh, operation % 2);
            else
                swap(&state);
            if (!worlds_are_equal())
                return;
        }
    }
}

/* ---- branches --------------------------------------------------------------------------- */

static __attribute__((noinline)) void *pop_or(void *otherwise)
{
    void *object;

    return us_seq_main_pop(table, &object) ? object : otherwise;
}

static void nothing_moves(bool pops, bool pushes)
{
    void *object = object_at(1), *mark = &object;
    struct us_batch some = batch(&object, 1);

    if (pops) {
        CHECK_EQ(pop_or(mark), mark);
        CHECK_EQ(pop_or(NULL), NULL);
        CHECK_EQ(us_seq_main_take(&some), 0);
        CHECK_EQ(object, object_at(1));
    }
    if (pushes) {
        CHECK_EQ(us_seq_main_push(table, object), 0);
        CHECK_EQ(us_seq_main_put(&some), 0);
    }
    CHECK_EQ(us_seq_main_push(table, NULL), 0);
    some.n = 0;
    CHECK_EQ(us_seq_main_take(&some), 0);
    CHECK_EQ(us_seq_main_put(&some), 0);
}

static void what_is_closed_empty_or_full_misses(void)
{
    make_worlds();
    nothing_moves(true, true); /* the word is empty */
    table[cpu] = (void *)(uintptr_t)&us_closed_sheaves;
    nothing_moves(true, true);
    CHECK_EQ(us_seq_swap(table, 0, cpu, &us_closed_sheaf, real.sheaf[1]), 0); /* else this ends */
    table[cpu] = &real.words;
    CHECK_EQ(us_seq_swap(table, 0, cpu, &us_closed_sheaf, real.sheaf[1]), 1);
    nothing_moves(true, false);
    CHECK_EQ(us_seq_main_push(table, object_at(5)), 1);
    nothing_moves(false, true);
    CHECK_EQ(pop_or(NULL), object_at(5));
    CHECK_EQ(us_seq_swap(table, 0, cpu, real.sheaf[0], real.sheaf[2]), 0);
    CHECK_EQ(us_seq_swap(table, 1, cpu, real.sheaf[1], real.sheaf[2]), 0);
    CHECK_EQ(us_seq_swap(table, 0, cpu, real.sheaf[1], &us_closed_sheaf), 1);
    nothing_moves(true, true);
}

static void what_is_meant_for_another_cpu_changes_nothing(void)
{
    void *object = object_at(1);
    struct us_batch some = batch(&object, 1);

    make_worlds();
    CHECK_EQ(us_seq_swap(table, 0, cpu + 1, &us_closed_sheaf, real.sheaf[0]), 0);
    CHECK_EQ(us_seq_swap(table, 0, cpu, &us_closed_sheaf, real.sheaf[0]), 1);
    CHECK_EQ(us_seq_main_put(&some), 1);
    some.cpu = cpu + 1;
    CHECK_EQ(us_seq_main_put(&some), US_SEQ_MOVED);
    CHECK_EQ(us_seq_main_take(&some), US_SEQ_MOVED);
    CHECK_EQ(us_sheaf_header(real.sheaf[0]), 1);
}

static void pops_that_would_wrap_are_refused(void)
{
    void *out[4];
    struct us_batch some = batch(out, 3);

    make_worlds();
    CHECK_EQ(us_seq_swap(table, 0, cpu, &us_closed_sheaf, real.sheaf[0]), 1);
    set_headers(us_header_make(US_POPS_WRAP - 3, 0, 5));
    CHECK_EQ(us_seq_main_take(&some), 0);
    some.n = 2;
    CHECK_EQ(us_seq_main_take(&some), 2);
    CHECK_EQ(us_sheaf_header(real.sheaf[0]), us_header_make(US_POPS_WRAP - 1, 0, 3));
    CHECK_EQ(pop_or(out), out);
    CHECK_EQ(us_sheaf_header(real.sheaf[0]), us_header_make(US_POPS_WRAP - 1, 0, 3));
}

int main(void)
{
    set_up();
    RUN(sheaves_are_equal_after_any_program);
    RUN(what_is_closed_empty_or_full_misses);
    RUN(what_is_meant_for_another_cpu_changes_nothing);
    RUN(pops_that_would_wrap_are_refused);
    return check_result();
}
#endif

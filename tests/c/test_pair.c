/* Every restartable sequence against its plain C form: same results, and regions equal to the byte.
 * Every branch is taken at each level of optimisation: closed, empty, full, foreign, wrap, moved.
 */
// needs: machine
// machines: native
// levels: O1 O2 O3
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fixture_pair.h"

#ifndef US_HAVE_RSEQ
int main(void)
{
    SKIP("no sequences are written for this architecture");
}
#else

static void *closed_ring(void)
{
    return (void *)(uintptr_t)&us_closed_ring;
}
static void *closed_words(void)
{
    return (void *)(uintptr_t)&us_closed_words;
}

/* ---- rings ------------------------------------------------------------------------------------
 */

struct pair {
    struct us_ring *sequence, *plain;
};

/* The plain form returned `want` objects, the sequence `got`. */
static unsigned agree(struct pair *p, int got, unsigned want, void *const *a, void *const *b)
{
    CHECK_EQ(got, want);
    if (want > 0 && a != NULL)
        CHECK(memcmp(a, b, want * sizeof *a) == 0);
    CHECK(memcmp(p->sequence, p->plain, us_ring_bytes(p->plain->capacity)) == 0);
    return want;
}

static struct us_batch batch(void *const *objects, unsigned n, enum us_seen seen)
{
    return (struct us_batch){.table = table,
                             .objects = objects,
                             .base = MODEL_BASE,
                             .cpu = cpu,
                             .n = n < US_BATCH_MAX ? n : US_BATCH_MAX,
                             .seen = seen};
}

static int take_hot(void **out, unsigned n)
{
    struct us_batch b = batch(out, n, US_SEEN_KEEP);
    int done = us_seq_take_hot(&b);

    if (done == US_SEQ_WRAPS) {
        b.wrap = 1;
        done = us_seq_take_hot(&b);
    }
    return done;
}

static bool pop(void *subject, void **out)
{
    struct pair *p = subject;
    bool last = us_header_pops(us_ring_header(p->sequence)) == US_POPS_WRAP - 1;
    void *mirror = NULL;
    int got = us_seq_pop(table, out);

    if (last) { /* left to the slow path, with nothing changed */
        CHECK_EQ(got, 0);
        CHECK_EQ(us_ring_header(p->sequence), us_ring_header(p->plain));
        got = take_hot(out, 1);
    }
    return agree(p, got, us_ring_pop_c(p->plain, &mirror), out, &mirror);
}

static bool push(void *subject, void *object)
{
    struct pair *p = subject;

    return agree(p, us_seq_push(table, object), us_ring_push_c(p->plain, object), NULL, NULL);
}

static unsigned pop_batch(void *subject, void **out, unsigned n)
{
    struct pair *p = subject;
    void *mirror[MODEL_MAX];

    n = n < US_BATCH_MAX ? n : US_BATCH_MAX;
    return agree(p, take_hot(out, n), us_ring_pop_batch_c(p->plain, mirror, n), out, mirror);
}

static unsigned add_some(struct pair *p, void **in, unsigned n, bool last, enum us_seen seen)
{
    struct us_batch b = batch(in, n, seen);
    unsigned room = p->plain->capacity - us_ring_size(p->plain);

    b.last = last ? ~0u : 0;
    n = last || b.n < room ? b.n : room;
    return agree(p, us_seq_add(&b), us_ring_add_c(p->plain, in, n, seen), NULL, NULL);
}

static unsigned push_batch(void *subject, void **in, unsigned n)
{
    return add_some(subject, in, n, false, US_SEEN_KEEP);
}

static unsigned add(void *subject, void **in, unsigned n, enum us_seen seen)
{
    return add_some(subject, in, n, true, seen);
}

static unsigned take_oldest(void *subject, void **out, unsigned n, enum us_seen seen)
{
    struct pair *p = subject;
    struct us_batch b = batch(out, n, seen);
    void *mirror[MODEL_MAX];

    return agree(p, us_seq_take_oldest(&b), us_ring_take_oldest_c(p->plain, mirror, b.n, seen), out,
                 mirror);
}

static const struct ring_ops sequences = {pop, push, pop_batch, push_batch, NULL, take_oldest, add};

static struct us_ring *new_ring(unsigned capacity)
{
    size_t bytes = (us_ring_bytes(capacity) + 63) / 64 * 64;
    struct us_ring *r = aligned_alloc(US_LINE, bytes);

    REQUIRE(r != NULL);
    memset((void *)r, 0, bytes);
    us_ring_init(r, capacity, MODEL_BASE, MODEL_BYTES);
    return r;
}

static void rings_are_equal_after_any_program(void)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t state = seed, next = 0;
        struct ring_model m = {.capacity = model_random(&state) % MODEL_MAX};
        struct pair p = {new_ring(m.capacity), new_ring(m.capacity)};

        if (seed % 2) {
            uint64_t header = model_near_wrap(&m);

            atomic_store(&p.sequence->header, header);
            atomic_store(&p.plain->header, header);
        }
        all_closed(closed_ring());
        table[cpu] = p.sequence;
        for (int step = 0; step < 3000; step++) {
            unsigned operation = model_random(&state), amount = model_random(&state) % 65;

            if (step % 2)
                amount %= 9;
            if (!model_step(&m, p.sequence, &sequences, &p, operation, amount, &next))
                break;
        }
        free(p.sequence);
        free(p.plain);
    }
}

/* Results are used at once, as a caller's inlined slow path does. */
static __attribute__((noinline)) void *pop_or(void *otherwise)
{
    void *object;

    return us_seq_pop(table, &object) ? object : otherwise;
}

static void check_misses(struct us_ring *r, bool can_pop, bool can_push)
{
    void *object = (void *)(uintptr_t)(MODEL_BASE + 8), *mark = &object, *out[4] = {NULL};
    struct us_batch b = batch(&object, 1, US_SEEN_TOUCH);
    uint64_t before = us_ring_header(r), seen = atomic_load(&r->seen);

    if (!can_pop) {
        CHECK_EQ(pop_or(mark), mark);
        CHECK_EQ(pop_or(NULL), NULL);
        CHECK_EQ(take_hot(out, 4), 0);
        b.objects = out;
        CHECK_EQ(us_seq_take_oldest(&b), 0);
    }
    b.objects = &object;
    if (!can_push) {
        CHECK_EQ(us_seq_push(table, object), 0);
        CHECK_EQ(us_seq_add(&b), 0);
    }
    CHECK_EQ(us_seq_push(table, NULL), 0);
    CHECK_EQ(us_seq_push(table, (void *)(uintptr_t)(MODEL_BASE - 1)), 0);
    CHECK_EQ(us_seq_push(table, (void *)(uintptr_t)(MODEL_BASE + MODEL_BYTES)), 0);
    b.base = MODEL_BASE + 1;
    CHECK_EQ(us_seq_add(&b), 0);
    CHECK_EQ(us_ring_header(r), before);
    CHECK_EQ(atomic_load(&r->seen), seen);
}

static void rings_that_are_closed_empty_and_full_miss(void)
{
    struct us_ring *r = new_ring(1);
    void *object = (void *)(uintptr_t)MODEL_BASE;

    all_closed(closed_ring());
    check_misses(closed_ring(), false, false);
    table[cpu] = r;
    check_misses(r, false, true);
    CHECK_EQ(us_seq_push(table, object), 1);
    check_misses(r, true, false);
    CHECK_EQ(pop_or(NULL), object);
    check_misses(r, false, true);
    free(r);
}

/* The pop that would carry the count beyond its width is left to who records the count first. */
static void pops_that_would_wrap_are_left_to_the_slow_path(void)
{
    const uint64_t last = us_header_make(US_POPS_WRAP - 1, 7, 3);
    struct us_ring *r = new_ring(4);
    void *out[4] = {NULL}, *mark = &out;
    struct us_batch b = batch(out, 1, US_SEEN_KEEP);

    all_closed(closed_ring());
    table[cpu] = r;
    atomic_store(&r->header, last);
    CHECK_EQ(pop_or(mark), mark);
    CHECK_EQ(us_seq_take_hot(&b), US_SEQ_WRAPS);
    CHECK_EQ(us_ring_header(r), last);
    b.wrap = 1;
    CHECK_EQ(us_seq_take_hot(&b), 1);
    CHECK_EQ(us_ring_header(r), us_header_make(0, 7, 2));
    b.wrap = 0;
    b.n = 3;
    atomic_store(&r->header, us_header_make(US_POPS_WRAP - 3, 7, 3)); /* the third one wraps */
    CHECK_EQ(us_seq_take_hot(&b), US_SEQ_WRAPS);
    atomic_store(&r->header, us_header_make(US_POPS_WRAP - 4, 7, 3));
    CHECK_EQ(us_seq_take_hot(&b), 3);
    CHECK_EQ(us_ring_header(r), us_header_make(US_POPS_WRAP - 1, 7, 0));
    free(r);
}

static void a_batch_meant_for_another_cpu_changes_nothing(void)
{
    struct us_ring *r = new_ring(4);
    void *object = (void *)(uintptr_t)MODEL_BASE, *out[4];
    struct us_batch b = batch(&object, 1, US_SEEN_COMMIT);

    all_closed(closed_ring());
    table[cpu] = r;
    CHECK_EQ(us_seq_add(&b), 1);
    b.cpu = cpu + 1;
    CHECK_EQ(us_seq_add(&b), US_SEQ_MOVED);
    b.objects = out;
    CHECK_EQ(us_seq_take_hot(&b), US_SEQ_MOVED);
    CHECK_EQ(us_seq_take_oldest(&b), US_SEQ_MOVED);
    CHECK_EQ(us_ring_header(r), 1);
    free(r);
}

/* ---- lists ------------------------------------------------------------------------------------
 */

enum { CELLS = 100, LINK = 16 };
struct cell {
    void *before[2], *link, *behind;
};

/* The same list twice: cell i of one stands for cell i of the other. */
static unsigned index_of(const struct cell *cells, const void *object)
{
    return object == NULL ? CELLS : (unsigned)((const struct cell *)object - cells);
}

static void lists_are_equal_after_any_program(unsigned w)
{
    static struct cell a[CELLS], b[CELLS];
    struct us_list list_a = {NULL, 0}, list_b = {NULL, 0};
    struct us_words words_a, words_b;
    uint64_t state = 11 + w;
    unsigned fresh = 0;

    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    us_words_init(&words_a, MODEL_BASE, MODEL_BYTES);
    us_words_init(&words_b, MODEL_BASE, MODEL_BYTES);
    all_closed(closed_words());
    table[cpu] = &words_a;
    for (int step = 0; step < 20000; step++) {
        unsigned operation = model_random(&state) % 8;
        void *out_a = NULL, *out_b = NULL;
        int64_t id = -1;

        if (operation < 3 && fresh < CELLS) {
            bool installed = words_b.word[w] == &list_b;

            if (operation < 2)
                CHECK_EQ(us_seq_list_push(table, w, LINK, &list_a, &a[fresh]), installed);
            else
                CHECK_EQ(us_seq_list_push_at(table, w, LINK, &list_a, &a[fresh], &id), installed);
            if (operation == 2 && installed)
                CHECK_EQ(id, cpu);
            if (installed)
                us_list_push_c(&list_b, LINK, &b[fresh++]);
        } else if (operation < 6) {
            int got = us_seq_list_pop(table, w, LINK, &out_a, &id);

            CHECK_EQ(got, us_list_pop_c(words_b.word[w], LINK, &out_b));
            CHECK_EQ(index_of(a, out_a), index_of(b, out_b));
            fresh = list_b.head == NULL ? 0 : fresh;
        } else if (operation == 6) {
            CHECK_EQ(us_seq_detach(table, w, &id) == &list_a,
                     us_words_detach_c(&words_b, w) == &list_b);
        } else {
            uint32_t size = us_list_size(list_a.count);

            if (words_b.word[w] == &us_closed_list)
                list_a.count = size; /* as us_local_install does */
            CHECK_EQ(us_seq_install(table, w, cpu, &list_a, size),
                     us_words_install_c(&words_b, w, &list_b));
            CHECK_EQ(words_a.installed[w], words_b.installed[w]);
        }
        if (!CHECK_EQ(list_a.count, list_b.count) ||
            !CHECK_EQ(index_of(a, list_a.head), index_of(b, list_b.head)) ||
            !CHECK_EQ(words_a.word[w] == &list_a, words_b.word[w] == &list_b))
            return;
    }
    for (unsigned i = 0; i < CELLS; i++) {
        CHECK_EQ(index_of(a, a[i].link), index_of(b, b[i].link));
        CHECK(a[i].before[0] == NULL && a[i].before[1] == NULL && a[i].behind == NULL);
    }
}

/* The word as a constant and as a variable are two templates. */
static void lists_of_word_0(void)
{
    lists_are_equal_after_any_program(0);
}
static void lists_of_any_word(void)
{
    for (volatile unsigned w = 0; w < US_NWORDS; w++)
        lists_are_equal_after_any_program(w);
}

static __attribute__((noinline)) void *list_pop_or(void *otherwise)
{
    int64_t id;
    void *object;

    return us_seq_list_pop(table, 0, LINK, &object, &id) ? object : otherwise;
}

static void lists_that_are_closed_taken_and_elsewhere_miss(void)
{
    struct us_words words;
    struct us_list mine = {NULL, 0}, other = {NULL, 3};
    struct cell cell = {{NULL, NULL}, NULL, NULL};
    int64_t id;

    us_words_init(&words, MODEL_BASE, MODEL_BYTES);
    all_closed(closed_words());
    CHECK_EQ(list_pop_or(&cell), &cell);
    CHECK_EQ(list_pop_or(NULL), NULL);
    CHECK_EQ(us_seq_list_push(table, 0, LINK, &mine, &cell), 0);
    CHECK_EQ(us_seq_detach(table, 0, &id), NULL);
    CHECK_EQ(us_seq_install(table, 0, cpu, &mine, 0), 0); /* a write would end this program */
    table[cpu] = &words;
    CHECK_EQ(us_seq_detach(table, 0, &id), NULL);
    CHECK_EQ(us_seq_install(table, 0, cpu + 1, &mine, 0), 0);
    CHECK_EQ(us_seq_install(table, 0, cpu, &mine, 0), 1);
    CHECK_EQ(us_seq_install(table, 0, cpu, &other, 3), 0);
    CHECK_EQ(words.installed[0], 0); /* a failed install leaves nothing behind */
    CHECK_EQ(list_pop_or(NULL), NULL);
    CHECK_EQ(us_seq_list_push(table, 0, LINK, &other, &cell), 0);
    CHECK_EQ(us_seq_list_push(table, 0, LINK, &mine, &cell), 1);
    CHECK_EQ(list_pop_or(NULL), &cell);
    CHECK_EQ(us_seq_detach(table, 0, &id), &mine);
    CHECK_EQ(id, cpu);
}

/* ---- counted lists -----------------------------------------------------------------------------
 */

/* The same list twice, places counted from its own cells: headers, links and names are equal. */
static void counted_lists_are_equal_after_any_program(void)
{
    static struct cell a[CELLS], b[CELLS];
    uint64_t state = 17;

    for (volatile unsigned w = 0; w < US_NWORDS; w++) {
        struct us_counted list_a = {.limit = 9}, list_b = {.limit = 9};
        struct us_words words_a, words_b;
        unsigned out[CELLS], n = CELLS; /* cells that are on no list */

        for (unsigned i = 0; i < CELLS; i++)
            out[i] = i;
        us_words_init(&words_a, (uintptr_t)a, sizeof a);
        us_words_init(&words_b, (uintptr_t)b, sizeof b);
        all_closed(closed_words());
        table[cpu] = &words_a;
        for (int step = 0; step < 20000; step++) {
            unsigned operation = model_random(&state) % 9;
            void *out_a = NULL, *out_b = NULL;
            int64_t id = -1;

            if (operation < 4 && n > 0) {
                const unsigned i = out[n - 1];
                bool pushed = us_counted_push_c(&words_b, w, LINK, &b[i]);

                if (operation < 2)
                    CHECK_EQ(us_seq_counted_push(table, w, LINK, &a[i]), pushed);
                else
                    CHECK_EQ(us_seq_counted_push_at(table, w, LINK, &a[i], &id), pushed);
                if (operation >= 2 && pushed)
                    CHECK_EQ(id, cpu);
                n -= pushed;
            } else if (operation < 7) {
                int got = us_seq_counted_pop(table, w, LINK, &out_a, &id);

                CHECK_EQ(got, us_counted_pop_c(&words_b, w, LINK, &out_b));
                CHECK_EQ(index_of(a, out_a), index_of(b, out_b));
                if (got)
                    out[n++] = index_of(a, out_a);
            } else if (operation == 7) {
                CHECK_EQ(us_seq_detach(table, w, &id) == (void *)&list_a,
                         us_words_detach_c(&words_b, w) == (void *)&list_b);
            } else {
                if (words_b.word[w] == &us_closed_list) /* as us_local_install does */
                    list_a.header &= US_COUNTED_PLACE | US_COUNTED_MAX;
                CHECK_EQ(
                    us_seq_install(table, w, cpu, (void *)&list_a, us_counted_size(list_a.header)),
                    us_words_install_counted_c(&words_b, w, &list_b));
                CHECK_EQ(words_a.installed[w], words_b.installed[w]);
            }
            CHECK(us_counted_size(list_a.header) <= list_a.limit);
            CHECK_EQ(us_counted_size(list_a.header) + n, CELLS);
            if (!CHECK_EQ(list_a.header, list_b.header) ||
                !CHECK_EQ(words_a.word[w] == (void *)&list_a, words_b.word[w] == (void *)&list_b))
                return;
        }
        for (unsigned i = 0; i < CELLS; i++) {
            CHECK_EQ(a[i].link, b[i].link);
            CHECK(a[i].before[0] == NULL && a[i].before[1] == NULL && a[i].behind == NULL);
        }
    }
}

static __attribute__((noinline)) void *counted_pop_or(void *otherwise)
{
    int64_t id;
    void *object;

    return us_seq_counted_pop(table, 1, LINK, &object, &id) ? object : otherwise;
}

static void counted_lists_that_are_closed_empty_full_and_foreign_miss(void)
{
    struct cell room[5] = {{{NULL, NULL}, NULL, NULL}}, *cell = room + 1;
    struct us_counted list = {.limit = 1};
    struct us_words words;
    int64_t id;

    us_words_init(&words, (uintptr_t)cell, 3 * sizeof *cell);
    all_closed(closed_words());
    CHECK_EQ(counted_pop_or(&cell), &cell);
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell), 0); /* a write would end this program */
    table[cpu] = &words;
    CHECK_EQ(counted_pop_or(&cell), &cell);
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell), 0);
    CHECK_EQ(us_seq_install(table, 1, cpu, (void *)&list, 0), 1);
    CHECK_EQ(counted_pop_or(NULL), NULL);
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell - 1), 0);
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell + 3), 0);
    CHECK_EQ(us_seq_counted_push_at(table, 1, LINK, cell + 3, &id), 0);
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell), 1); /* the first object of the node */
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell + 1), 0);
    CHECK_EQ(us_seq_counted_push_at(table, 1, LINK, cell + 1, &id), 0);
    CHECK_EQ(list.header, 1);
    CHECK_EQ(counted_pop_or(NULL), cell);
    CHECK_EQ(list.header, 1ull << US_COUNTED_SIZE_BITS);
    list.limit = 0;
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell), 0);
}

static void counted_pops_that_would_wrap_are_left_to_the_slow_path(void)
{
    struct cell cell[2] = {{{NULL, NULL}, NULL, NULL}};
    struct us_counted list = {.limit = 2};
    struct us_words words;
    uint64_t last;

    us_words_init(&words, (uintptr_t)cell, sizeof cell);
    all_closed(closed_words());
    table[cpu] = &words;
    CHECK_EQ(us_seq_install(table, 1, cpu, (void *)&list, 0), 1);
    for (unsigned i = 0; i < US_COUNTED_POPS_WRAP - 1; i++) {
        CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell + 1), 1);
        CHECK_EQ(counted_pop_or(NULL), cell + 1);
    }
    CHECK_EQ(us_seq_counted_push(table, 1, LINK, cell + 1), 1);
    last = list.header;
    CHECK_EQ(us_counted_pops(last), US_COUNTED_POPS_WRAP - 1);
    CHECK_EQ(counted_pop_or(NULL), NULL);
    CHECK_EQ(us_counted_pop_c(&words, 1, LINK, &(void *){NULL}), false);
    CHECK_EQ(list.header, last);
}

/* ---- a thread that the kernel knows nothing of --------------------------------------------------
 */

enum { UNREGISTER = 1, AREA_BYTES = 32 };

static void *without_rseq(void *arg)
{
    void *area = (char *)__builtin_thread_pointer() + us_rseq_offset;
    bool *ran = arg;
    struct us_list mine = {NULL, 0};
    int64_t id;

    if (syscall(SYS_rseq, area, AREA_BYTES, UNREGISTER, 0x53053053) != 0)
        return NULL;
    *ran = true;
    CHECK(us_rseq_cpu() < 0);
    CHECK(us_cpu_now(machine) < machine->ncpus);
    CHECK_EQ(pop_or(NULL), NULL);
    CHECK_EQ(us_seq_push(table, (void *)(uintptr_t)MODEL_BASE), 0);
    all_closed(closed_words());
    CHECK_EQ(list_pop_or(NULL), NULL);
    CHECK_EQ(us_seq_list_push(table, 0, LINK, &mine, NULL), 0);
    CHECK_EQ(us_seq_detach(table, 0, &id), NULL);
    syscall(SYS_rseq, area, AREA_BYTES, 0, 0x53053053);
    return NULL;
}

/* All other entries are open, so that only the two below the table can make it miss. */
static void an_unregistered_thread_misses(void)
{
    struct us_ring *r = new_ring(4);
    bool ran = false;
    pthread_t thread;

    all_closed(closed_ring());
    for (unsigned i = 0; i < machine->table_cpus; i++)
        table[i] = r;
    CHECK_EQ(us_seq_push(table, (void *)(uintptr_t)MODEL_BASE), 1);
    REQUIRE(pthread_create(&thread, NULL, without_rseq, &ran) == 0);
    pthread_join(thread, NULL);
    if (!ran)
        printf("  (this C library's registration could not be undone)\n");
    CHECK_EQ(us_ring_header(r), 1);
    free(r);
}

int main(void)
{
    set_up();
    RUN(rings_are_equal_after_any_program);
    RUN(rings_that_are_closed_empty_and_full_miss);
    RUN(pops_that_would_wrap_are_left_to_the_slow_path);
    RUN(a_batch_meant_for_another_cpu_changes_nothing);
    RUN(lists_of_word_0);
    RUN(lists_of_any_word);
    RUN(lists_that_are_closed_taken_and_elsewhere_miss);
    RUN(counted_lists_are_equal_after_any_program);
    RUN(counted_lists_that_are_closed_empty_full_and_foreign_miss);
    RUN(counted_pops_that_would_wrap_are_left_to_the_slow_path);
    RUN(an_unregistered_thread_misses);
    return check_result();
}
#endif

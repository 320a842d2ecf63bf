/* region.c - plain-C operations on rings and lists, and the constant closed regions. */
#include "machine/region.h"

#include <assert.h>
#include <string.h>

const struct us_ring us_closed_ring US_ALIGNED(US_LINE) = {.seen = US_SEEN_TOUCHED};
struct us_list us_closed_list;
const struct us_words us_closed_words = {
    .word = {&us_closed_list, &us_closed_list, &us_closed_list, &us_closed_list},
};

const struct us_sheaf us_closed_sheaf US_ALIGNED(US_LINE);
/* Nobody writes to a sheaf with neither room nor content. */
#define NO_SHEAF ((struct us_sheaf *)(uintptr_t)&us_closed_sheaf)
const struct us_words us_closed_sheaves = {
    .sheaf = {(struct us_sheaf *)&us_closed_sheaf, (struct us_sheaf *)&us_closed_sheaf,
              (struct us_sheaf *)&us_closed_sheaf, (struct us_sheaf *)&us_closed_sheaf},
};

_Static_assert(offsetof(struct us_ring, object) == US_LINE, "objects begin on a line");
_Static_assert(sizeof(struct us_words) == US_LINE, "a list region is one line");
_Static_assert(US_NWORDS == 4, "us_closed_words and us_closed_sheaves name them all");
_Static_assert(sizeof(struct us_sheaf) == 32, "a sheaf has the header of the original");
_Static_assert(sizeof(struct us_counted) == sizeof(struct us_list),
               "the closed list is an empty counted one that takes nothing");

/* ---- rings ------------------------------------------------------------------------------------
 */

void us_ring_init(struct us_ring *r, uint32_t capacity, uint64_t base, uint64_t length)
{
    assert(capacity <= US_RING_MAX);
    us_writes(r, sizeof(*r));
    memset(r, 0, sizeof *r);
    r->mask = us_ring_slots(capacity) - 1;
    r->capacity = capacity;
    r->base = base;
    r->length = length;
    atomic_store_explicit(&r->seen, US_SEEN_TOUCHED, memory_order_relaxed);
}

static inline unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The committing store. Objects written before it are visible to who takes the CPU over. */
static inline void commit(struct us_ring *r, uint64_t header, enum us_seen seen)
{
    if (seen != US_SEEN_KEEP)
        atomic_store_explicit(&r->seen, seen == US_SEEN_COMMIT ? header : US_SEEN_TOUCHED,
                              memory_order_relaxed);
    atomic_store_explicit(&r->header, header, memory_order_release);
}

/* Ring slots [from, from + n), which may go around the end, to or from a vector. */
static void copy_out(const struct us_ring *r, uint32_t from, void **out, unsigned n)
{
    const uint32_t at = from & r->mask, straight = least(n, r->mask + 1 - at);

    us_reads(r->object + at, straight * sizeof(*out));
    if (straight < n)
        us_reads(r->object, (n - straight) * sizeof(*out));
    memcpy(out, r->object + at, straight * sizeof(*out));
    memcpy(out + straight, r->object, (n - straight) * sizeof(*out));
}

static void copy_in(struct us_ring *r, uint32_t from, void *const *in, unsigned n)
{
    const uint32_t at = from & r->mask, straight = least(n, r->mask + 1 - at);

    us_writes(r->object + at, straight * sizeof(*in));
    if (straight < n)
        us_writes(r->object, (n - straight) * sizeof(*in));
    memcpy(r->object + at, in, straight * sizeof(*in));
    memcpy(r->object, in + straight, (n - straight) * sizeof(*in));
}

/* The ring's line, which an operation of n objects writes if it moves any. */
static inline void declare(struct us_ring *r, unsigned n)
{
    if (n)
        us_writes(r, 1);
    else
        us_reads(r, 1);
}

/* The same of a batch, with what the compiled operation runs: the sequence, and for each object
 * what the string instruction takes, or the loop of pops. */
enum { RUNS_BATCH = 45, RUNS_MOVED = 1, RUNS_POPPED = 6 };

static inline void declare_batch(struct us_ring *r, unsigned n)
{
    us_runs(RUNS_BATCH + RUNS_MOVED * n);
    declare(r, n);
}

/* The n slots up to the hottest at `top`. */
static inline void declare_top(const struct us_ring *r, uint32_t top, unsigned n)
{
    const uint32_t at = top & r->mask, straight = least(n, at + 1);

    us_reads(r->object + at + 1 - straight, straight * sizeof(void *));
    if (straight < n)
        us_reads(r->object + r->mask + 1 - (n - straight), (n - straight) * sizeof(void *));
}

static unsigned pop(struct us_ring *r, void **out, unsigned n)
{
    uint64_t h = us_ring_header(r);
    uint32_t size = us_header_size(h), top = us_header_head(h) + size - 1;

    n = least(n, size);
    declare(r, n);
    if (n == 0)
        return 0;
    declare_top(r, top, n);
    for (unsigned i = 0; i < n; i++)
        out[i] = r->object[(top - i) & r->mask];
    commit(r, h + n * US_POP_DELTA, US_SEEN_KEEP);
    return n;
}

bool us_ring_pop_c(struct us_ring *r, void **out)
{
    return pop(r, out, 1) == 1;
}

bool us_ring_push_c(struct us_ring *r, void *object)
{
    uint64_t h = us_ring_header(r);
    uint32_t size = us_header_size(h);
    const bool fits = (uint64_t)(uintptr_t)object - r->base < r->length && size < r->capacity;

    declare(r, fits);
    if (!fits)
        return false;
    us_writes(&r->object[(us_header_head(h) + size) & r->mask], sizeof(object));
    r->object[(us_header_head(h) + size) & r->mask] = object;
    commit(r, h + 1, US_SEEN_KEEP);
    return true;
}

unsigned us_ring_pop_batch_c(struct us_ring *r, void **out, unsigned n)
{
    n = pop(r, out, n);
    us_runs(RUNS_BATCH + RUNS_POPPED * n);
    return n;
}

unsigned us_ring_take_top_c(struct us_ring *r, void **out, unsigned n, enum us_seen seen)
{
    uint64_t h = us_ring_header(r);
    uint32_t size = us_header_size(h), first;

    n = least(n, size);
    declare_batch(r, n);
    if (n == 0)
        return 0;
    first = us_header_head(h) + size - n;
    copy_out(r, first, out, n);
    commit(r, h - n, seen);
    return n;
}

unsigned us_ring_take_oldest_c(struct us_ring *r, void **out, unsigned n, enum us_seen seen)
{
    uint64_t h = us_ring_header(r);
    uint32_t size = us_header_size(h), head = us_header_head(h);

    n = least(n, size);
    declare_batch(r, n);
    if (n == 0)
        return 0;
    copy_out(r, head, out, n);
    commit(r, us_header_make(us_header_pops(h), head + n, size - n), seen);
    return n;
}

unsigned us_ring_add_c(struct us_ring *r, void *const *in, unsigned n, enum us_seen seen)
{
    uint64_t h = us_ring_header(r);
    uint32_t size = us_header_size(h), end = us_header_head(h) + size;
    unsigned added = least(n, size < r->capacity ? r->capacity - size : 0);

    declare_batch(r, added);
    if (added == 0)
        return 0;
    copy_in(r, end, in + n - added, added);
    commit(r, h + added, seen);
    return added;
}

/* ---- lists ------------------------------------------------------------------------------------
 */

/* Words and descriptors are plain fields, so that they can lie in any struct; readers of other CPUs
 * look at them while they change. */
static inline void set_count(struct us_list *l, uint64_t count)
{
    __atomic_store_n(&l->count, count, __ATOMIC_RELAXED);
}

static inline void **link_of(void *object, ptrdiff_t link)
{
    return (void **)((char *)object + link);
}

bool us_list_pop_c(struct us_list *l, ptrdiff_t link, void **out)
{
    void *object = l->head;

    if (object == NULL) {
        us_reads(l, sizeof(*l));
        return false;
    }
    us_writes(l, sizeof(*l));
    us_reads(link_of(object, link), sizeof(object));
    __atomic_store_n(&l->head, *link_of(object, link), __ATOMIC_RELAXED);
    set_count(l, l->count + US_LIST_POP_DELTA);
    *out = object;
    return true;
}

void us_list_push_c(struct us_list *l, ptrdiff_t link, void *object)
{
    us_writes(l, sizeof(*l));
    us_writes(link_of(object, link), sizeof(object));
    *link_of(object, link) = l->head;
    __atomic_store_n(&l->head, object, __ATOMIC_RELAXED);
}

static struct us_counted *counted_word(const struct us_words *r, unsigned w)
{
    return (struct us_counted *)r->word[w];
}

static void set_header(struct us_counted *l, uint64_t header)
{
    __atomic_store_n(&l->header, header, __ATOMIC_RELAXED);
}

bool us_counted_pop_c(struct us_words *r, unsigned w, ptrdiff_t link, void **out)
{
    struct us_counted *l = counted_word(r, w);
    const uint64_t h = l->header;
    void *object = us_counted_object(r->base, h);

    us_reads(r, sizeof(*r));
    if (us_counted_size(h) == 0 || us_counted_pops(h) == US_COUNTED_POPS_WRAP - 1) {
        us_reads(l, sizeof(*l));
        return false;
    }
    us_writes(l, sizeof(*l));
    us_reads(link_of(object, link), sizeof(object));
    set_header(l, ((h & ~US_COUNTED_PLACE) + US_COUNTED_POP_DELTA) |
                      ((uint64_t)(uintptr_t)*link_of(object, link) & US_COUNTED_PLACE));
    *out = object;
    return true;
}

bool us_counted_push_c(struct us_words *r, unsigned w, ptrdiff_t link, void *object)
{
    struct us_counted *l = counted_word(r, w);
    const uint64_t h = l->header;

    us_reads(r, sizeof(*r));
    if ((uint64_t)(uintptr_t)object - r->base >= r->length || us_counted_size(h) >= l->limit) {
        us_reads(l, sizeof(*l));
        return false;
    }
    us_writes(l, sizeof(*l));
    us_writes(link_of(object, link), sizeof(object));
    *link_of(object, link) = (void *)(uintptr_t)h;
    set_header(l, ((h & ~US_COUNTED_PLACE) + 1) | us_counted_place(r->base, object));
    return true;
}

void us_words_init(struct us_words *r, uint64_t base, uint64_t length)
{
    us_writes(r, sizeof(*r));
    *r = us_closed_words;
    r->base = base;
    r->length = length;
}

struct us_list *us_words_detach_c(struct us_words *r, unsigned w)
{
    struct us_list *list = r->word[w];

    if (list == &us_closed_list) {
        us_reads(r, sizeof(*r));
        return NULL;
    }
    us_writes(r, sizeof(*r));
    __atomic_store_n(&r->word[w], &us_closed_list, __ATOMIC_RELEASE);
    return list;
}

bool us_words_install_c(struct us_words *r, unsigned w, struct us_list *list)
{
    if (r == &us_closed_words || r->word[w] != &us_closed_list)
        return false;
    us_writes(r, sizeof(*r));
    us_writes(list, sizeof(*list));
    set_count(list, us_list_size(list->count));
    __atomic_store_n(&r->installed[w], us_list_size(list->count), __ATOMIC_RELAXED);
    __atomic_store_n(&r->word[w], list, __ATOMIC_RELEASE);
    return true;
}

bool us_words_install_counted_c(struct us_words *r, unsigned w, struct us_counted *list)
{
    const uint32_t size = us_counted_size(list->header);

    if (r == &us_closed_words || r->word[w] != &us_closed_list)
        return false;
    us_writes(r, sizeof(*r));
    us_writes(list, sizeof(*list));
    set_header(list, (list->header & US_COUNTED_PLACE) | size);
    __atomic_store_n(&r->installed[w], size, __ATOMIC_RELAXED);
    __atomic_store_n(&r->word[w], (struct us_list *)list, __ATOMIC_RELEASE);
    return true;
}

/* ---- sheaves ------------------------------------------------------------------------------------
 */

void us_sheaf_init(struct us_sheaf *s, uint32_t capacity)
{
    assert(capacity <= US_RING_MAX);
    memset((void *)s, 0, sizeof *s);
    s->capacity = capacity;
    us_writes(s, sizeof *s);
}

void us_sheaf_set(struct us_sheaf *s, uint32_t size)
{
    us_writes(s, sizeof *s);
    atomic_store_explicit(&s->header, size, memory_order_release);
}

/* Up to n hottest as they lie. */
static unsigned take(struct us_sheaf *s, void **out, unsigned n)
{
    uint64_t h = us_sheaf_header(s);
    uint32_t size = us_header_size(h);

    n = least(n, size);
    if (n == 0 || us_header_pops(h) + n >= US_POPS_WRAP) {
        us_reads(s, sizeof(*s));
        return 0;
    }
    us_writes(s, sizeof(*s));
    us_reads(s->object + size - n, n * sizeof(*out));
    memcpy(out, s->object + size - n, n * sizeof(*out));
    atomic_store_explicit(&s->header, h + n * US_POP_DELTA, memory_order_release);
    return n;
}

static unsigned put(struct us_sheaf *s, void *const *in, unsigned n)
{
    uint64_t h = us_sheaf_header(s);
    uint32_t size = us_header_size(h);

    n = least(n, size < s->capacity ? s->capacity - size : 0);
    if (n == 0) {
        us_reads(s, sizeof(*s));
        return 0;
    }
    us_writes(s, sizeof(*s));
    us_writes(s->object + size, n * sizeof(*in));
    memcpy(s->object + size, in, n * sizeof(*in));
    atomic_store_explicit(&s->header, h + n, memory_order_release);
    return n;
}

bool us_sheaf_pop_c(struct us_sheaf *s, void **out)
{
    return take(s, out, 1) == 1;
}

bool us_sheaf_push_c(struct us_sheaf *s, void *object)
{
    return put(s, &object, 1) == 1;
}

bool us_main_pop_c(struct us_words *r, void **out)
{
    us_reads(r, sizeof(*r));
    return take(r->sheaf[US_MAIN], out, 1) == 1;
}

bool us_main_push_c(struct us_words *r, void *object)
{
    us_reads(r, sizeof(*r));
    return (uint64_t)(uintptr_t)object - r->base < r->length &&
           put(r->sheaf[US_MAIN], &object, 1) == 1;
}

unsigned us_main_take_c(struct us_words *r, void **out, unsigned n)
{
    us_reads(r, sizeof(*r));
    us_runs(RUNS_BATCH + RUNS_MOVED * n);
    return take(r->sheaf[US_MAIN], out, n);
}

unsigned us_main_put_c(struct us_words *r, void *const *in, unsigned n, uint64_t base)
{
    us_reads(r, sizeof(*r));
    us_runs(RUNS_BATCH + RUNS_MOVED * n);
    return r->base == base ? put(r->sheaf[US_MAIN], in, n) : 0;
}

void us_sheaves_init(struct us_words *r, uint64_t base, uint64_t length)
{
    us_writes(r, sizeof(*r));
    *r = us_closed_sheaves;
    r->base = base;
    r->length = length;
}

bool us_sheaves_swap_c(struct us_words *r, unsigned w, struct us_sheaf *from, struct us_sheaf *to)
{
    if (r == &us_closed_sheaves || r->sheaf[w] != (from ? from : NO_SHEAF)) {
        us_reads(r, sizeof(*r));
        return false;
    }
    us_writes(r, sizeof(*r));
    __atomic_store_n(&r->sheaf[w], to ? to : NO_SHEAF, __ATOMIC_RELEASE);
    return true;
}

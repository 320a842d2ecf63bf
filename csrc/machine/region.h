/* region.h - memory that belongs to one CPU, and the plain-C form of every operation on it.
 *
 * A ring region is one line of {header, mask, capacity, node range, seen} and then a power of two
 * of object pointers. The header packs size, head and a count of pops:
 *
 *     63            28 27      14 13       0
 *     [ pops : 36     | head : 14 | size : 14 ]
 *
 * index of the oldest = head & mask, of the hottest = (head + size - 1) & mask. Pop takes the
 * hottest end, push adds to it, drain takes the oldest end. Pops are never reset.
 *
 * A list region is one line of words, each naming one descriptor (struct us_list). A pop commits
 * {head, count} in one aligned 16-byte store; a push changes the head alone, in one 8-byte store:
 * two wide stores in a row cost more than the rest of the path, since loads after them wait. Count
 * is
 *
 *     63              20 19      0
 *     [ pops : 44       | size : 20 ]
 *
 * Pops count from the descriptor's installation; 2^44 of them take 19 hours of nothing else. Size
 * is that at installation; how many objects are there now is told by walking the list, and pushes
 * follow.
 *
 * A counted list (struct us_counted) knows its size at every moment, so its pushes can stop at a
 * limit. Pop and push commit one 8-byte header, as a ring's:
 *
 *     63                28 27       19 18       0
 *     [ place : 36         | pops : 9    | size : 19 ]
 *
 * place is where the first object lies, in units of 8 bytes from the start of the region's node;
 * the link of a free object holds the place of the next one in the same bits, and anything in the
 * others. An empty list has size 0 and any place. The pop that would carry the count of pops beyond
 * its width is left to the slow path, which detaches the list, reports the pops and installs it
 * anew. (With {head, count} in 16 bytes a pair takes twice the time: each operation waits for the
 * wide store of the one before.)
 *
 * A sheaf region is the same line; words 0 and 1 name the CPU's main and spare sheaf (struct
 * us_sheaf), arrays worked as stacks. A sheaf's header is a ring's, its head always 0, so an
 * operation commits in one 8-byte store. Operations work the main sheaf; a word is changed by a
 * swap alone, which compares and stores in one sequence. While a CPU's word is empty, it names a
 * constant sheaf without room or content.
 *
 * The functions here are the C half of the pair; machine/native/ring_x86.h, list_x86.h,
 * counted_x86.h and sheaf_x86.h hold the restartable half, and tests/c/test_pair.c and
 * test_sheaf_pair.c hold the two equal. They are also what shared and alien queues, closed regions,
 * the fallback and the model run.
 */
#ifndef US_REGION_H
#define US_REGION_H

#include "machine/machine.h"

#define US_SIZE_BITS  14
#define US_HEAD_SHIFT 14
#define US_POPS_SHIFT 28
#define US_FIELD_MASK ((1ull << US_SIZE_BITS) - 1)
#define US_RING_MAX   ((1u << US_SIZE_BITS) - 2) /* pointers a ring may hold: fits the size field */
#define US_BATCH_MAX  64u                        /* pointers copied inside one sequence */
#define US_POP_DELTA  ((1ull << US_POPS_SHIFT) - 1) /* one more pop, one less object */
#define US_POPS_WRAP  (1ull << (64 - US_POPS_SHIFT))
#define US_LIST_SIZE_BITS      20
#define US_LIST_MAX            ((1u << US_LIST_SIZE_BITS) - 1) /* objects one descriptor may hold */
#define US_LIST_POP_DELTA      (1ull << US_LIST_SIZE_BITS)     /* one more pop */
#define US_COUNTED_SIZE_BITS   19
#define US_COUNTED_PLACE_SHIFT 28 /* the pops lie between */
#define US_COUNTED_MAX         ((1u << US_COUNTED_SIZE_BITS) - 1)
#define US_COUNTED_PLACE       (~0ull << US_COUNTED_PLACE_SHIFT) /* its bits */
#define US_COUNTED_POP_DELTA   US_COUNTED_MAX                    /* one more pop, one less object */
#define US_COUNTED_POPS_WRAP   (1u << (US_COUNTED_PLACE_SHIFT - US_COUNTED_SIZE_BITS))
/* Bytes of the longest node whose objects have a place. */
#define US_COUNTED_NODE_MAX (8ull << (64 - US_COUNTED_PLACE_SHIFT))

#define US_SEEN_TOUCHED (~0ull) /* equals no header: size would exceed every capacity */

struct us_ring {
    _Atomic uint64_t header;
    uint32_t mask;         /* slots - 1 */
    uint32_t capacity;     /* pointers it may hold, <= mask + 1 */
    uint64_t base;         /* first address of the CPU's node */
    uint64_t length;       /* bytes of that node; 0 = takes nothing */
    _Atomic uint64_t seen; /* header at the last ageing visit; equal = untouched */
    union {
        struct us_lock lock; /* of a shared or alien queue: with the header in one line */
        size_t account;      /* of a CPU's ring: bytes of metadata that it counts for */
    };
    void *object[]; /* at offset 64 */
};

/* What happens to `seen` when an operation commits. */
enum us_seen {
    US_SEEN_KEEP,   /* nothing */
    US_SEEN_COMMIT, /* becomes the committed header: the ring counts as untouched */
    US_SEEN_TOUCH,  /* becomes US_SEEN_TOUCHED: the ring counts as touched */
};

struct us_list {
    void *head;
    uint64_t count;
} US_ALIGNED(16);

/* A list that knows its size. A word names it as it names a us_list, and the closed list is an
 * empty one that takes nothing. */
struct us_counted {
    uint64_t header;
    uint32_t limit; /* pushes bring it to so many objects at most */
    uint32_t pad;
} US_ALIGNED(16);

/* 32 bytes and the pointers, as the original has it. */
struct us_sheaf {
    _Atomic uint64_t header;
    uint32_t capacity;
    union {
        uint32_t installed; /* objects when it became a CPU's */
        uint32_t round;     /* while a grace period goes on: the barriers before it was sent */
    };
    struct us_sheaf *next; /* for its owner while it is no CPU's, as what follows */
    union {
        struct us_sheaf *prev;
        uint64_t sent; /* when a grace period began for its objects */
    };
    void *object[]; /* [0] the oldest */
};

#define US_NWORDS 4
struct us_words {
    union {
        struct us_list *word[US_NWORDS];
        struct us_sheaf *sheaf[US_NWORDS];
    };
    uint64_t base, length;         /* node range of the CPU */
    uint32_t installed[US_NWORDS]; /* objects of each word's descriptor when it was installed */
} US_ALIGNED(US_LINE);

/* Words of a sheaf region. */
enum { US_MAIN, US_SPARE };

US_INLINE uint32_t us_header_size(uint64_t h)
{
    return (uint32_t)(h & US_FIELD_MASK);
}
US_INLINE uint32_t us_header_head(uint64_t h)
{
    return (uint32_t)((h >> US_HEAD_SHIFT) & US_FIELD_MASK);
}
US_INLINE uint64_t us_header_pops(uint64_t h)
{
    return h >> US_POPS_SHIFT;
}
US_INLINE uint64_t us_header_make(uint64_t pops, uint32_t head, uint32_t size)
{
    return (pops << US_POPS_SHIFT) | ((uint64_t)(head & US_FIELD_MASK) << US_HEAD_SHIFT) | size;
}
US_INLINE uint64_t us_ring_header(const struct us_ring *r)
{
    return atomic_load_explicit(&((struct us_ring *)r)->header, memory_order_relaxed);
}
US_INLINE uint32_t us_ring_size(const struct us_ring *r)
{
    us_reads(r, 1);
    return us_header_size(us_ring_header(r));
}
US_INLINE bool us_ring_touched(const struct us_ring *r)
{
    us_reads(r, 1);
    return atomic_load_explicit(&((struct us_ring *)r)->seen, memory_order_relaxed) !=
           us_ring_header(r);
}
/* Slots needed for a capacity: the next power of two. */
static inline uint32_t us_ring_slots(uint32_t capacity)
{
    uint32_t n = 1;
    while (n < capacity)
        n <<= 1;
    return n;
}
static inline size_t us_ring_bytes(uint32_t capacity)
{
    return sizeof(struct us_ring) + sizeof(void *) * us_ring_slots(capacity);
}
void us_ring_init(struct us_ring *r, uint32_t capacity, uint64_t base, uint64_t length);

/* Plain operations; the caller owns the ring. Batches may be of any size here. */
bool us_ring_pop_c(struct us_ring *r, void **out);    /* hottest; false = empty */
bool us_ring_push_c(struct us_ring *r, void *object); /* false = full or foreign */
/* Up to n hottest, out[0] the hottest; counted as pops. */
unsigned us_ring_pop_batch_c(struct us_ring *r, void **out, unsigned n);
/* Up to n hottest moved away in ring order, out[0] the deepest; not counted as pops. */
unsigned us_ring_take_top_c(struct us_ring *r, void **out, unsigned n, enum us_seen seen);
/* Up to n oldest, out[0] the oldest; not counted as pops. */
unsigned us_ring_take_oldest_c(struct us_ring *r, void **out, unsigned n, enum us_seen seen);
/* As many of in[0..n) as there is room for, in[0] deepest: in[n-1] becomes the hottest. When not
 * all fit, the last ones (hottest) are the ones pushed: returns how many; the first n - result
 * remain with the caller. */
unsigned us_ring_add_c(struct us_ring *r, void *const *in, unsigned n, enum us_seen seen);

bool us_list_pop_c(struct us_list *l, ptrdiff_t link, void **out);
void us_list_push_c(struct us_list *l, ptrdiff_t link, void *object);
US_INLINE uint32_t us_list_size(uint64_t count)
{
    return (uint32_t)(count & US_LIST_MAX);
}
US_INLINE uint64_t us_list_pops(uint64_t count)
{
    return count >> US_LIST_SIZE_BITS;
}
/* Counted lists; `base` is that of the node of the object. */
US_INLINE uint32_t us_counted_size(uint64_t header)
{
    return (uint32_t)(header & US_COUNTED_MAX);
}
US_INLINE uint64_t us_counted_pops(uint64_t header)
{
    return (header & ~US_COUNTED_PLACE) >> US_COUNTED_SIZE_BITS;
}
US_INLINE uint64_t us_counted_place(uint64_t base, const void *object)
{
    return ((uint64_t)(uintptr_t)object - base) << (US_COUNTED_PLACE_SHIFT - 3) & US_COUNTED_PLACE;
}
US_INLINE void *us_counted_object(uint64_t base, uint64_t place)
{
    return (void *)(uintptr_t)(base + 8 * (place >> US_COUNTED_PLACE_SHIFT));
}
US_INLINE uint64_t us_counted_header(const struct us_counted *l)
{
    return __atomic_load_n(&l->header, __ATOMIC_RELAXED);
}
/* False = empty, or the pop must be left to the slow path. */
bool us_counted_pop_c(struct us_words *r, unsigned w, ptrdiff_t link, void **out);
/* False = it has reached its limit, or the object is not of the region's node. */
bool us_counted_push_c(struct us_words *r, unsigned w, ptrdiff_t link, void *object);
void us_words_init(struct us_words *r, uint64_t base, uint64_t length); /* every word closed */
/* Plain detach and install of one word; NULL = nothing there, false = the word is taken. Installing
 * makes the descriptor's pops begin at 0. */
struct us_list *us_words_detach_c(struct us_words *r, unsigned w);
bool us_words_install_c(struct us_words *r, unsigned w, struct us_list *list);
bool us_words_install_counted_c(struct us_words *r, unsigned w, struct us_counted *list);

/* Sheaves that the caller owns. The pop that would carry the count beyond its width is refused. */
US_INLINE uint64_t us_sheaf_header(const struct us_sheaf *s)
{
    return atomic_load_explicit(&((struct us_sheaf *)s)->header, memory_order_relaxed);
}
US_INLINE uint32_t us_sheaf_size(const struct us_sheaf *s)
{
    us_reads(s, sizeof(*s));
    return us_header_size(us_sheaf_header(s));
}
static inline size_t us_sheaf_bytes(uint32_t capacity)
{
    return sizeof(struct us_sheaf) + sizeof(void *) * capacity;
}
void us_sheaf_init(struct us_sheaf *s, uint32_t capacity);
/* Of a private sheaf: so many objects, whose pointers are there; pops begin at 0. */
void us_sheaf_set(struct us_sheaf *s, uint32_t size);
bool us_sheaf_pop_c(struct us_sheaf *s, void **out);    /* hottest; false = empty */
bool us_sheaf_push_c(struct us_sheaf *s, void *object); /* false = full */

/* Operations of a region on its main sheaf. */
bool us_main_pop_c(struct us_words *r, void **out);
bool us_main_push_c(struct us_words *r, void *object); /* false = full or foreign */
/* Up to n hottest as they lie, out[0] the deepest; counted as pops. */
unsigned us_main_take_c(struct us_words *r, void **out, unsigned n);
/* As many of in[0..n) as there is room for, the first ones, in[0] deepest. All are of the node
 * range at `base`, which must be the region's. */
unsigned us_main_put_c(struct us_words *r, void *const *in, unsigned n, uint64_t base);
void us_sheaves_init(struct us_words *r, uint64_t base, uint64_t length); /* every word empty */
/* Word w names `to` instead of `from`; NULL = empty. False when it names another. */
bool us_sheaves_swap_c(struct us_words *r, unsigned w, struct us_sheaf *from, struct us_sheaf *to);

/* Constant closed regions: empty, full, node length 0. */
extern const struct us_sheaf us_closed_sheaf; /* an empty word's, in open regions too */
extern const struct us_words us_closed_sheaves;
extern const struct us_ring us_closed_ring;
extern const struct us_words us_closed_words;
extern struct us_list us_closed_list; /* every word of us_closed_words; head NULL, never written */

#endif

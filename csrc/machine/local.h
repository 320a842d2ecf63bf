/* local.h - a cache's regions, one a CPU, and operations exclusive to the calling CPU.
 *
 * table[cpu] is the live region or the constant closed one; table[-1] and table[-2] (unregistered
 * threads) are always closed. region[cpu] is the CPU's own memory, NULL until populated. A fast
 * path that meets a closed region misses as on an empty and full one, and goes to the slow path.
 *
 * Rules: region memory is written only inside a sequence, or while table[cpu] is closed and the
 * CPU's control lock is held. Who finds a region closed by another never waits for it.
 *
 * The `_fast` operations are templates: a policy writes its path once and US_LOCAL_ENTRIES makes
 * one function for each mode. All others choose the mode at run time.
 */
#ifndef US_LOCAL_H
#define US_LOCAL_H

#include "machine/flight.h"
#include "machine/region.h"

/* Objects that moved without being popped or pushed singly; relaxed. */
struct us_moves {
    _Atomic uint64_t installed; /* added by slow paths; counted before the commit */
    _Atomic uint64_t drained;   /* taken away by slow paths; counted after the commit */
    _Atomic uint64_t pops;      /* the header's pops, extended beyond its width at the last look */
    /* Told by us_local_harvest: of descriptors that were detached; of objects that went past a ring
     * where single calls would have gone through it. */
    _Atomic uint64_t told_pops, told_pushes;
    _Atomic uint64_t shown_pops, shown_pushes; /* statistics lock: never go back */
} US_ALIGNED(US_LINE);

enum us_region_kind { US_REGION_RING, US_REGION_WORDS, US_REGION_SHEAVES };

struct us_local {
    void **table;           /* [-2 .. ncpus-1] */
    void **region;          /* [ncpus] */
    struct us_moves *moves; /* [ncpus] */
    struct us_machine *machine;
    enum us_mode mode;
    enum us_region_kind kind;
    /* By us_local_close_all: us_local_open and _populate leave entries closed. */
    _Atomic bool all_closed;
    ptrdiff_t link; /* list regions: where in a free object the link lies */
    bool counted;   /* list regions: the descriptors are counted lists; set as length is */
    /* List regions, set by the policy before anything is installed: objects of a descriptor's list,
     * which may change under the reader; false when its links lead out of the slab or in a circle.
     * Counted lists need none. */
    bool (*length)(const struct us_local *l, struct us_list *list, uint32_t *size);
};

/* Memory for tables and regions comes through this pair (memory/'s metadata allocator). */
struct us_local_memory {
    void *(*alloc)(void *context, size_t bytes); /* zeroed, line-aligned; NULL = none */
    void (*free)(void *context, void *base, size_t bytes);
    void *context;
};

bool us_local_init(struct us_local *l, struct us_machine *machine, enum us_mode mode,
                   enum us_region_kind kind, ptrdiff_t link, const struct us_local_memory *memory);
/* Regions must be closed and freed by the owner before. */
void us_local_fini(struct us_local *l, const struct us_local_memory *memory);

/* ---- control ------------------------------------------------------------------------- */

/* Takes the CPU's control lock (try = only if free), closes its region and fences. Returns false
 * when the lock was not got. *region gets the memory, or NULL when not populated. The region is
 * private until us_local_open, which also drops the lock. In CONTROL mode it only locks. */
bool us_local_close(struct us_local *l, struct us_flight *f, unsigned cpu, bool try_only,
                    void **region) __attribute__((warn_unused_result));
void us_local_open(struct us_local *l, struct us_flight *f, unsigned cpu);
/* A round of one CPU closes regions of several caches with one fence: begin takes the CPU's control
 * lock (false in a nested flight), join closes one more region, fence is due after the last. Until
 * the end us_local_close and _open of this flight on this CPU leave the lock alone, and the former
 * has nothing to wait for where the region joined. Who joined and was not opened is opened by
 * us_round_leave. */
bool us_round_begin(struct us_machine *machine, struct us_flight *f, unsigned cpu);
void us_round_join(struct us_local *l, struct us_flight *f);
void us_round_fence(struct us_flight *f);
void us_round_leave(struct us_local *l, struct us_flight *f);
void us_round_end(struct us_flight *f);
/* While closed: gives the CPU another region (NULL = none) and returns the old one. The pop count
 * is carried over; objects are the caller's to move, before. */
void *us_local_replace(struct us_local *l, unsigned cpu, void *region);
/* While closed: what plain ring operations other than pop and push moved. */
void us_local_moved(struct us_local *l, unsigned cpu, unsigned added, unsigned taken);
/* With the gate shut: closes every CPU's region with one fence, and opens them. */
void us_local_close_all(struct us_local *const *locals, size_t n, struct us_machine *machine);
void us_local_open_all(struct us_local *const *locals, size_t n, struct us_machine *machine);
/* Gives the CPU its first region (control lock taken inside, never waiting): false when somebody
 * else was there first or the lock was busy. In CONTROL mode the region is kept but not opened. */
bool us_local_populate(struct us_local *l, struct us_flight *f, unsigned cpu, void *region);
static inline bool us_local_populated(const struct us_local *l, unsigned cpu)
{
    us_reads(l, 1);
    us_reads(&l->region[cpu], sizeof(*l->region));
    return atomic_load_explicit((_Atomic(void *) *)&l->region[cpu], memory_order_acquire) != NULL;
}
/* True when fast paths on this CPU find its region: populated, and closed by nobody just now. */
US_INLINE bool us_local_is_open(const struct us_local *l, unsigned cpu)
{
    us_reads(&l->region[cpu], sizeof(*l->region));
    if (l->mode == US_MODE_CONTROL)
        return us_local_populated(l, cpu) && us_cpu_online(l->machine, cpu);
    us_reads(&l->table[cpu], sizeof(*l->table));
    return __atomic_load_n(&l->table[cpu], __ATOMIC_RELAXED) ==
           __atomic_load_n(&l->region[cpu], __ATOMIC_RELAXED);
}

/* ---- ring regions ----------------------------------------------------------------------- */

/* What an operation met. */
enum us_local_result {
    US_LOCAL_OK = 1,
    US_LOCAL_MISS = 0, /* empty, full, foreign, closed or aborted too often */
};

/* Slow forms: count in `moves` as said, set *cpu to the CPU where they committed (or the CPU seen).
 * pop and push count as fast ones; the pop may let the pop count wrap. */
enum us_local_result us_local_pop(struct us_local *l, struct us_flight *f, void **out,
                                  unsigned *cpu);
enum us_local_result us_local_push(struct us_local *l, struct us_flight *f, void *object,
                                   unsigned *cpu);
/* Up to n hottest, counted as pops; out[0] the hottest. */
unsigned us_local_pop_batch(struct us_local *l, void **out, unsigned n);
/* Up to n pushed objects, counted as pushes, in[0] first (in[n-1] ends hottest). All objects must
 * be of the node range at `base`. Returns how many of in[0..) were taken. */
unsigned us_local_push_batch(struct us_local *l, void *const *in, unsigned n, uint64_t base);
/* Moves up to n oldest away (counted as drained). Chunks of at most US_BATCH_MAX a sequence; stops
 * early when the CPU changes. */
unsigned us_local_take_oldest(struct us_local *l, struct us_flight *f, void **out, unsigned n,
                              enum us_seen seen, unsigned *cpu);
/* Adds in[0..n) (counted as installed) in ring order, in[n-1] hottest, if the region's node base is
 * `base`. When not all fit, the hottest are kept: returns how many of the *last* were added.
 * (Should others fill the ring between two chunks, in[] is reordered to make that true.) */
unsigned us_local_add(struct us_local *l, struct us_flight *f, void **in, unsigned n, uint64_t base,
                      enum us_seen seen, unsigned *cpu);
/* Marks the ring of the CPU touched, if its node base is `base` (a slow-path allocation that left
 * nothing to add). */
void us_local_touch(struct us_local *l, struct us_flight *f, uint64_t base);
/* The ring of the CPU as a racy reader sees it (statistics, touched); NULL when not populated. */
static inline struct us_ring *us_local_ring(const struct us_local *l, unsigned cpu)
{
    us_reads(&l->region[cpu], sizeof(*l->region));
    return atomic_load_explicit((_Atomic(struct us_ring *) *)&l->region[cpu], memory_order_acquire);
}

/* ---- list regions ------------------------------------------------------------------------ */

/* Detaches word `w` of the calling CPU: its descriptor becomes private to the caller; NULL when the
 * word is the closed list or the region closed. The caller reads the descriptor's count and reports
 * its pops and pushes (size + pops - size when installed) to us_local_harvest. */
struct us_list *us_local_detach(struct us_local *l, struct us_flight *f, unsigned w, unsigned *cpu);
void us_local_harvest(struct us_local *l, unsigned cpu, uint64_t pops, uint64_t pushes);
/* Installs a private descriptor when the caller still runs on `cpu`, the region is open and the
 * word empty. Its pops begin at 0. */
enum us_local_result us_local_install(struct us_local *l, struct us_flight *f, unsigned w,
                                      unsigned cpu, struct us_list *list);
/* The descriptor a word names, as a racy reader sees it; NULL for the closed list. */
struct us_list *us_local_word(const struct us_local *l, unsigned cpu, unsigned w);
enum us_local_result us_local_list_pop(struct us_local *l, struct us_flight *f, unsigned w,
                                       void **out, unsigned *cpu);
enum us_local_result us_local_list_push(struct us_local *l, struct us_flight *f, unsigned w,
                                        struct us_list *owner, void *object, unsigned *cpu);
enum us_local_result us_local_counted_pop(struct us_local *l, struct us_flight *f, unsigned w,
                                          void **out, unsigned *cpu);
enum us_local_result us_local_counted_push(struct us_local *l, struct us_flight *f, unsigned w,
                                           void *object, unsigned *cpu);

/* ---- sheaf regions ----------------------------------------------------------------------- */

/* On the main sheaf of whichever CPU this is; counted as fast pops and pushes. */
enum us_local_result us_local_main_pop(struct us_local *l, struct us_flight *f, void **out);
enum us_local_result us_local_main_push(struct us_local *l, struct us_flight *f, void *object);
/* Up to n hottest as they lie, out[0] the deepest of each part (parts have US_BATCH_MAX at most).
 */
unsigned us_local_main_take(struct us_local *l, void **out, unsigned n);
/* As many of in[0..n) as there is room for, the first ones; all are of the node range at `base`. */
unsigned us_local_main_put(struct us_local *l, void *const *in, unsigned n, uint64_t base);
/* When the caller still runs on `cpu` and its region is open: word w names `to` instead of `from`
 * (NULL = empty), which is then private to the caller, its pops and pushes counted for the CPU. */
bool us_local_swap(struct us_local *l, struct us_flight *f, unsigned w, unsigned cpu,
                   struct us_sheaf *from, struct us_sheaf *to);
/* The same while the CPU is closed by the caller. */
bool us_local_swap_closed(struct us_local *l, unsigned w, unsigned cpu, struct us_sheaf *from,
                          struct us_sheaf *to);
/* The sheaf a word names, as a racy reader sees it; NULL when it is empty or not populated. */
struct us_sheaf *us_local_sheaf(const struct us_local *l, unsigned cpu, unsigned w);

/* ---- statistics --------------------------------------------------------------------------- */

/* Fast pops and pushes of a CPU since creation; the caller holds the cache's statistics lock. */
void us_local_counts(struct us_local *l, unsigned cpu, uint64_t *pops, uint64_t *pushes);

/* ---- fast templates ------------------------------------------------------------------------ */

#ifdef US_MODEL
#include "machine/model/fast.h"
#else
#include "machine/native/fast.h"
#endif
/* Both give, with `mode` a compile-time constant:
 * clang-format off
 *   enum us_local_result us_fast_pop(struct us_local *l, enum us_mode mode, void **out);
 *   enum us_local_result us_fast_push(struct us_local *l, enum us_mode mode, void *object);
 *   enum us_local_result us_fast_list_pop(struct us_local *l, enum us_mode mode, unsigned w,
 *                                         ptrdiff_t link, void **out);
 *   enum us_local_result us_fast_list_push(struct us_local *l, enum us_mode mode, unsigned w,
 *                                          ptrdiff_t link, struct us_list *owner, void *object);
 *   enum us_local_result us_fast_counted_pop(struct us_local *l, enum us_mode mode, unsigned w,
 *                                            ptrdiff_t link, void **out);
 *   enum us_local_result us_fast_counted_push(struct us_local *l, enum us_mode mode, unsigned w,
 *                                             ptrdiff_t link, void *object);
 *   enum us_local_result us_fast_main_pop(struct us_local *l, enum us_mode mode, void **out);
 *   enum us_local_result us_fast_main_push(struct us_local *l, enum us_mode mode, void *object);
 * clang-format on
 */

/* One entry pair for each mode, from always-inline templates
 *   void *alloc_path(struct us_cache *, enum us_mode) and void free_path(struct us_cache *, void *,
 * enum us_mode): US_LOCAL_ENTRIES(unified) defines static const struct us_cache_head
 * unified_entries[] indexed by enum us_mode. */
#define US_ENTRY_PAIR(policy, suffix, mode)                                          \
    static US_NOINLINE void *policy##_alloc_##suffix(struct us_cache *c)             \
    {                                                                                \
        return policy##_alloc_path(c, mode);                                         \
    }                                                                                \
    static US_NOINLINE void policy##_free_##suffix(struct us_cache *c, void *object) \
    {                                                                                \
        policy##_free_path(c, object, mode);                                         \
    }
#ifdef US_MODEL
#define US_LOCAL_ENTRIES(policy)                                             \
    US_ENTRY_PAIR(policy, control, US_MODE_CONTROL)                          \
    US_ENTRY_PAIR(policy, model, US_MODE_MODEL)                              \
    static const struct us_cache_head policy##_entries[] = {                 \
        [US_MODE_CONTROL] = {policy##_alloc_control, policy##_free_control}, \
        [US_MODE_MODEL] = {policy##_alloc_model, policy##_free_model},       \
    };
#else
#define US_LOCAL_ENTRIES(policy)                                             \
    US_ENTRY_PAIR(policy, rseq, US_MODE_RSEQ)                                \
    US_ENTRY_PAIR(policy, slot, US_MODE_SLOT)                                \
    US_ENTRY_PAIR(policy, control, US_MODE_CONTROL)                          \
    static const struct us_cache_head policy##_entries[] = {                 \
        [US_MODE_RSEQ] = {policy##_alloc_rseq, policy##_free_rseq},          \
        [US_MODE_SLOT] = {policy##_alloc_slot, policy##_free_slot},          \
        [US_MODE_CONTROL] = {policy##_alloc_control, policy##_free_control}, \
    };
#endif

#endif

/* meta.c - memory for our own descriptors, queues and tables.
 *
 * Sizes are accounted as general caches would round them, or as the caller says. Up to 8 KiB, cells
 * of whole lines come from chunks of one cell size; above that, blocks of pages; above the largest
 * block, mappings of their own. Everything lies in one span apart from the arena, and what is free
 * as a whole goes back to the system at once, so that new memory is zero.
 *
 * Requests come without a flight: where the thread is in none, they make their own, so that a
 * signal handler knows what it interrupted. One that interrupted this thread in here finds `inside`
 * set and, as one in a nested flight, only tries the lock: a request then fails, a free is left for
 * later.
 */
#include "memory/internal.h"

#include <string.h>

#define CHUNK_SHIFT  16u /* 64 KiB, or a page where that is larger */
#define LARGEST_CELL 8192u
#define SPAN_LEAST   (64ull << 20)

struct us_meta_chunk {
    void *free;                        /* cells linked through their first word */
    struct us_meta_chunk *next, *prev; /* while it has a free cell */
    uint32_t used, fresh;              /* cells handed out; cells never handed out start here */
    uint32_t ncells;
    uint8_t klass;
};

/* A block that a signal handler could not free. */
struct stray {
    struct stray *next;
    size_t bytes, account;
};

static _Thread_local volatile int inside;

static bool enter(struct us_memory *mem, struct us_flight *f)
{
    us_reads(&mem->machine, sizeof(mem->machine));
    const struct us_flight *outer = us_flight_current();

    if (outer == NULL) {
        us_flight_enter(mem->machine, f);
    } else {
        *f = (struct us_flight){.machine = mem->machine};
        f->nested = inside > 0 || outer->nested;
    }
    inside++;
    atomic_signal_fence(memory_order_seq_cst);
    if (us_lock_take(f, &mem->meta.lock))
        return true;
    inside--;
    if (us_flight_current() == f)
        us_flight_leave(f);
    return false;
}

static void leave(struct us_memory *mem, struct us_flight *f)
{
    us_lock_drop(f, &mem->meta.lock);
    atomic_signal_fence(memory_order_seq_cst);
    inside--;
    if (us_flight_current() == f)
        us_flight_leave(f);
}

/* ---- sizes --------------------------------------------------------------------------------- */

static size_t power_above(size_t x)
{
    return x <= 1 ? 1 : (size_t)1 << (64 - __builtin_clzll(x - 1));
}

size_t us_meta_rounded(const struct us_memory *mem, size_t bytes)
{
    size_t page = mem->machine->page_size;

    if (bytes <= 8)
        return 8;
    if (bytes > LARGEST_CELL)
        return (bytes + page - 1) & ~(page - 1);
    if (bytes > 64 && bytes <= 96)
        return 96;
    if (bytes > 128 && bytes <= 192)
        return 192;
    return power_above(bytes);
}

/* Cell sizes: 64, 128, 192, 256, 512, ... 8192. */
static unsigned class_of(size_t bytes)
{
    if (bytes <= 64)
        return 0;
    if (bytes <= 128)
        return 1;
    if (bytes <= 192)
        return 2;
    return (unsigned)__builtin_ctzll(power_above(bytes)) - 5;
}

static size_t cell_of(unsigned klass)
{
    return klass < 3 ? 64 * (size_t)(klass + 1) : (size_t)1 << (klass + 5);
}

/* ---- chunks -------------------------------------------------------------------------------- */

static char *base_of(struct us_meta *m, const struct us_meta_chunk *chunk)
{
    us_reads(&m->span.base, sizeof(m->span.base));
    us_reads(&m->chunk, sizeof(m->chunk));
    return m->span.base + ((size_t)(chunk - m->chunk) << (m->chunk_order + m->span.page_shift));
}

static struct us_meta_chunk *chunk_of(struct us_meta *m, const void *cell)
{
    us_reads(&m->span.base, sizeof(m->span.base));
    us_reads(&m->chunk, sizeof(m->chunk));
    return &m->chunk[(size_t)((const char *)cell - m->span.base) >>
                     (m->chunk_order + m->span.page_shift)];
}

static void link_chunk(struct us_meta *m, struct us_meta_chunk *chunk)
{
    us_writes(chunk, sizeof(*chunk));
    us_writes(&m->open[chunk->klass], sizeof(*m->open));
    chunk->prev = NULL;
    chunk->next = m->open[chunk->klass];
    if (chunk->next)
        us_writes(chunk->next, sizeof(*chunk));
    if (chunk->next)
        chunk->next->prev = chunk;
    m->open[chunk->klass] = chunk;
}

static void unlink_chunk(struct us_meta *m, struct us_meta_chunk *chunk)
{
    us_reads(chunk, sizeof(*chunk));
    if (chunk->prev)
        us_writes(chunk->prev, sizeof(*chunk));
    else
        us_writes(&m->open[chunk->klass], sizeof(*m->open));
    if (chunk->next)
        us_writes(chunk->next, sizeof(*chunk));
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        m->open[chunk->klass] = chunk->next;
    if (chunk->next)
        chunk->next->prev = chunk->prev;
}

static struct us_meta_chunk *new_chunk(struct us_meta *m, unsigned klass)
{
    uint64_t page = us_span_alloc(&m->span, m->chunk_order);

    if (page == US_NO_BIT)
        return NULL;
    struct us_meta_chunk *chunk = &m->chunk[page >> m->chunk_order];
    memset(chunk, 0, sizeof *chunk);
    chunk->klass = (uint8_t)klass;
    chunk->ncells =
        (uint32_t)(((size_t)1 << (m->chunk_order + m->span.page_shift)) / cell_of(klass));
    link_chunk(m, chunk);
    return chunk;
}

static void drop_chunk(struct us_meta *m, struct us_meta_chunk *chunk)
{
    unlink_chunk(m, chunk);
    us_os_purge(base_of(m, chunk), (size_t)1 << (m->chunk_order + m->span.page_shift));
    us_buddy_free(&m->span.buddy, (uint64_t)(chunk - m->chunk) << m->chunk_order, m->chunk_order);
}

static void *take_cell(struct us_meta *m, unsigned klass)
{
    struct us_meta_chunk *chunk = m->open[klass];
    size_t bytes = cell_of(klass);
    void *cell;

    us_runs(35);
    us_reads(&m->open[klass], sizeof(*m->open));
    if (chunk == NULL && (chunk = new_chunk(m, klass)) == NULL)
        return NULL;
    us_reads(chunk, sizeof(*chunk));
    us_writes(&chunk->used, sizeof(chunk->used) + sizeof(chunk->fresh));
    if (chunk->free) {
        us_writes(&chunk->free, sizeof(chunk->free));
        cell = chunk->free;
        us_runs(bytes / 16);
        us_writes(cell, bytes);
        chunk->free = *(void **)cell;
        memset(cell, 0, bytes);
    } else {
        cell = base_of(m, chunk) + chunk->fresh++ * bytes; /* still zero */
    }
    if (++chunk->used == chunk->ncells)
        unlink_chunk(m, chunk);
    return cell;
}

static void put_cell(struct us_meta *m, void *cell)
{
    struct us_meta_chunk *chunk = chunk_of(m, cell);

    us_runs(30);
    us_reads(chunk, sizeof(*chunk));
    us_writes(&chunk->used, sizeof(chunk->used));
    us_writes(&chunk->free, sizeof(chunk->free));
    us_writes(cell, sizeof(void *));
    if (chunk->used-- == chunk->ncells)
        link_chunk(m, chunk);
    *(void **)cell = chunk->free;
    chunk->free = cell;
    /* The last chunk with room stays: an allocation may come next. */
    if (chunk->used == 0 && (chunk->next || chunk->prev))
        drop_chunk(m, chunk);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static bool in_span(const struct us_meta *m, const void *block)
{
    return (size_t)((const char *)block - m->span.base) < m->reserved;
}

static unsigned order_of(const struct us_memory *mem, size_t bytes)
{
    return (unsigned)__builtin_ctzll(power_above(bytes >> mem->range.page_shift));
}

static void *take_block(struct us_memory *mem, size_t bytes)
{
    struct us_span *span = &mem->meta.span;
    unsigned order = order_of(mem, bytes);
    uint64_t page = order > US_MAX_ORDER ? US_NO_BIT : us_span_alloc(span, order);

    return page == US_NO_BIT ? NULL : span->base + (page << span->page_shift);
}

static void put_block(struct us_memory *mem, void *block, size_t bytes)
{
    struct us_span *span = &mem->meta.span;
    uint64_t page = (uint64_t)((char *)block - span->base) >> span->page_shift;

    us_os_purge(block, bytes);
    us_buddy_free(&span->buddy, page, order_of(mem, bytes));
}

/* ---- the allocator ------------------------------------------------------------------------- */

/* The lock is held. */
static void put(struct us_memory *mem, void *base, size_t rounded, size_t account)
{
    if (rounded <= LARGEST_CELL)
        put_cell(&mem->meta, base);
    else
        put_block(mem, base, rounded);
    us_peak_sub(&mem->metadata, account);
}

static void take_strays(struct us_memory *mem)
{
    struct stray *stray = atomic_exchange_explicit(&mem->meta.strays, NULL, memory_order_acquire);

    while (stray) {
        struct stray *next = stray->next;

        put(mem, stray, stray->bytes, stray->account);
        stray = next;
    }
}

void *us_meta_alloc_as(struct us_memory *mem, size_t bytes, size_t account)
{
    size_t rounded = us_meta_rounded(mem, bytes);
    struct us_flight flight;
    void *base = NULL;

    us_runs(60);
    if (rounded < bytes || us_injected(mem, US_FAIL_META))
        return NULL;
    if (enter(mem, &flight)) {
        us_reads(&mem->meta.strays, sizeof(mem->meta.strays));
        if (US_UNLIKELY(atomic_load_explicit(&mem->meta.strays, memory_order_relaxed)))
            take_strays(mem);
        base = rounded <= LARGEST_CELL ? take_cell(&mem->meta, class_of(rounded))
                                       : take_block(mem, rounded);
        leave(mem, &flight);
    }
    if (base == NULL && rounded > LARGEST_CELL)
        base = us_os_reserve(rounded, true, false);
    if (base)
        us_peak_add(&mem->metadata, account);
    return base;
}

void *us_meta_alloc(struct us_memory *mem, size_t bytes)
{
    return us_meta_alloc_as(mem, bytes, us_meta_rounded(mem, bytes));
}

void us_meta_free_as(struct us_memory *mem, void *base, size_t bytes, size_t account)
{
    size_t rounded = us_meta_rounded(mem, bytes);
    struct us_flight flight;

    if (base == NULL)
        return;
    us_runs(50);
    if (!in_span(&mem->meta, base)) {
        us_os_release(base, rounded);
        us_peak_sub(&mem->metadata, account);
        return;
    }
    if (enter(mem, &flight)) {
        put(mem, base, rounded, account);
        leave(mem, &flight);
        return;
    }
    struct stray *stray = base;
    void *head = atomic_load_explicit(&mem->meta.strays, memory_order_relaxed);
    stray->bytes = rounded;
    stray->account = account;
    do
        stray->next = head;
    while (!atomic_compare_exchange_weak_explicit(&mem->meta.strays, &head, stray,
                                                  memory_order_release, memory_order_relaxed));
}

void us_meta_free(struct us_memory *mem, void *base, size_t bytes)
{
    us_meta_free_as(mem, base, bytes, us_meta_rounded(mem, bytes));
}

void us_meta_trim(struct us_memory *mem)
{
    struct us_meta *m = &mem->meta;
    struct us_flight flight;

    if (!enter(mem, &flight))
        return;
    take_strays(mem);
    for (unsigned klass = 0; klass < US_META_CLASSES; klass++) {
        for (struct us_meta_chunk *chunk = m->open[klass], *next; chunk; chunk = next) {
            next = chunk->next;
            if (chunk->used == 0)
                drop_chunk(m, chunk);
        }
    }
    leave(mem, &flight);
}

/* ---- life ---------------------------------------------------------------------------------- */

bool us_meta_init(struct us_memory *mem, struct us_error *error)
{
    struct us_meta *m = &mem->meta;
    unsigned shift = mem->range.page_shift;
    uint64_t block = US_MAX_BLOCK << shift;
    uint64_t bytes = mem->range.length / 8 & ~(block - 1);

    us_lock_init(&m->lock, US_LOCK_META);
    m->chunk_order = shift < CHUNK_SHIFT ? CHUNK_SHIFT - shift : 0;
    for (bytes = bytes > SPAN_LEAST ? bytes : SPAN_LEAST; bytes >= block; bytes /= 2) {
        uint64_t npages = bytes >> shift;
        size_t words = us_buddy_words(npages) * sizeof(uint64_t);

        m->chunk_bytes = (size_t)(npages >> m->chunk_order) * sizeof *m->chunk + words;
        m->chunk = us_os_reserve(m->chunk_bytes, true, false);
        if (m->chunk == NULL)
            continue;
        char *base = us_os_reserve((size_t)bytes, false, false);
        if (base) {
            m->reserved = (size_t)bytes;
            (void)us_maps(mem->machine, base, (size_t)bytes, 0);
            us_span_init(&m->span, base, shift, npages,
                         (uint64_t *)(m->chunk + (npages >> m->chunk_order)));
            return true;
        }
        us_os_release(m->chunk, m->chunk_bytes);
        m->chunk = NULL;
    }
    us_memory_error(
        error, US_ENOMEM,
        "the system refused %llu bytes of address space for metadata: raise the limit on"
        " virtual memory (ulimit -v)",
        (unsigned long long)block);
    return false;
}

void us_meta_fini(struct us_memory *mem)
{
    struct us_meta *m = &mem->meta;

    if (m->span.base == NULL)
        return;
    us_lock_retire(mem->machine, &m->lock);
    us_os_release(m->span.base, m->reserved);
    us_os_release(m->chunk, m->chunk_bytes);
}

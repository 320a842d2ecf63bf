/* slqb_lists.c - objects between free lists, rlists, remote_free and slabs. States and locks:
 * slqb.c.
 *
 * Chains. On every stock an object's link is that of a counted list (region.h): the place of the
 * next object, and in the low bits something that is no size a list can have. END is also what the
 * fast path leaves in the link of the first object of an empty list. A chain is marked, object by
 * object, before anything on it moves: so a chain that is shorter than it should be, leads astray
 * or in a circle (an object was freed twice, or written to while free) is found before its links
 * are overwritten. The rest of such a list is dropped: kept out of circulation, and reported.
 */
#include "policy/slqb.h"

#define END      0ull
#define FOLLOWED (US_COUNTED_MAX - 1ull)
#define MARKED   (US_COUNTED_MAX + 0ull)

/* Instructions of the compiled functions: see slqb.c. */
enum {
    RUNS_MARK = 26, /* an object */
    RUNS_PUT = 60,
    RUNS_PUT_CHAIN = 30,
    RUNS_PUT_NEXT = 12,
    RUNS_PUT_ONE = 60,
    RUNS_FILL = 46,
    RUNS_FILL_NEW = 105,
    RUNS_SETTLE = 28,
    RUNS_OWN = 24,
    RUNS_DISOWN = 19,
    RUNS_CLOSED = 21,
    RUNS_PUSH = 11,
    RUNS_POP = 23,
    RUNS_FLUSH = 60,
    RUNS_FLUSH_NEXT = 37,
    RUNS_FOLLOW = 15, /* to an object behind */
    RUNS_CLAIM = 21,
    RUNS_CLAIMED = 34,
    RUNS_TO_RLIST = 54,
    RUNS_BRING = 50,
    RUNS_SEND_HOME = 20,
    RUNS_WORK_END = 20,
};

void us_slqb_list_init(const struct us_cache *c, struct us_slqb_list *l, unsigned node, int cpu)
{
    l->free.limit = us_slqb_of(c)->hiwater;
    l->base = us_node_base(&c->slabs->range, node);
    l->node = node;
    l->cpu = cpu;
    us_writes(l, 1);
    us_writes(&l->remote_lock, sizeof(l->remote_lock));
    us_lock_init(&l->page_lock, US_LOCK_NODE);
    us_lock_init(&l->remote_lock, US_LOCK_SHARED);
}

/* Flights that are not nested get every lock they ask for. */
static void take(struct us_flight *f, struct us_lock *lock)
{
    if (!us_lock_take(f, lock))
        __builtin_trap();
}

/* ---- links --------------------------------------------------------------------------- */

static uint64_t *link_of(const struct us_cache *c, void *object)
{
    return (uint64_t *)((char *)object + c->geometry.link);
}

static uint64_t read_link(const struct us_cache *c, void *object)
{
    us_reads(link_of(c, object), sizeof(uint64_t));
    return *link_of(c, object);
}

static void write_link(const struct us_cache *c, void *object, uint64_t link)
{
    us_writes(link_of(c, object), sizeof(uint64_t));
    *link_of(c, object) = link;
}

/* Within a slab of the cache: then it may be read and written. */
static bool at_home(const struct us_cache *c, const void *object)
{
    const struct us_slab *s = us_cache_slab(c, object);

    if (s)
        us_reads(s, sizeof(*s));
    return s && s->cache == c;
}

static void set_header(struct us_slqb_list *l, uint64_t header)
{
    us_writes(&l->free, sizeof(l->free));
    __atomic_store_n(&l->free.header, header, __ATOMIC_RELAXED);
}

static void set_length(struct us_slqb_chain *chain, uint32_t n)
{
    __atomic_store_n(&chain->n, n, __ATOMIC_RELAXED);
}

static void append(const struct us_cache *c, uint64_t base, struct us_slqb_chain *chain,
                   void *object)
{
    write_link(c, object, END);
    if (chain->n)
        write_link(c, chain->last, us_counted_place(base, object) | FOLLOWED);
    else
        chain->first = object;
    chain->last = object;
    set_length(chain, chain->n + 1);
}

static void join(const struct us_cache *c, uint64_t base, struct us_slqb_chain *to,
                 const struct us_slqb_chain *more)
{
    if (to->n)
        write_link(c, to->last, us_counted_place(base, more->first) | FOLLOWED);
    else
        to->first = more->first;
    to->last = more->last;
    set_length(to, to->n + more->n);
}

/* Marks up to n objects from `object` on and returns how many are sound; fewer than n is reported.
 * *rest is the last one's link. */
static uint32_t mark(struct us_cache *c, uint64_t base, void *object, uint32_t n, uint64_t *rest)
{
    void *sound = NULL;
    uint32_t i;

    for (i = 0; i < n && at_home(c, object); i++) {
        const uint64_t link = read_link(c, object);

        if ((link & US_COUNTED_MAX) == MARKED || (i && (*rest & US_COUNTED_MAX) == END))
            break;
        write_link(c, object, link | MARKED);
        *rest = link;
        sound = object;
        object = us_counted_object(base, link);
    }
    us_runs((uint64_t)RUNS_MARK * i);
    if (i < n)
        us_report_misuse(c, US_MISUSE_LIST, sound);
    return i;
}

/* ---- slabs; page lock held ----------------------------------------------------------- */

static void note_length(struct us_slqb_list *l)
{
    us_writes(&l->nr_partial, sizeof(l->nr_partial));
    atomic_store_explicit(&l->nr_partial, l->partial.length, memory_order_relaxed);
}

static void enlist(struct us_slqb_list *l, struct us_slab *s)
{
    us_slab_list_head(&l->partial, s);
    note_length(l);
}

static void delist(struct us_slqb_list *l, struct us_slab *s)
{
    us_slab_list_remove(&l->partial, s);
    note_length(l);
}

/* Its own chain is broken: its free objects are only counted from now on. */
static void isolate(struct us_cache *c, struct us_slab *s)
{
    us_report_misuse(c, US_MISUSE_LIST, us_slab_base(c->slabs, s));
    s->freelist = NULL;
    us_slab_set_state(s, US_SLAB_BAD | US_SLAB_ISOLATED);
}

/* The object goes to its slab, which the list owns. An emptied slab is left in w->empty. */
static void put(struct us_slqb_work *w, struct us_slqb_list *l, void *object)
{
    struct us_cache *c = w->c;
    struct us_slab *s = us_cache_slab(c, object);

    us_runs(RUNS_PUT);
    if (!us_slab_knows(c, s, object))
        return;
    if (us_slqb_owner(s) != l || s->free >= us_slab_objects(s) || s->freelist == object) {
        us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        return;
    }
    w->to_slabs++;
    if (us_slab_state(s) & US_SLAB_ISOLATED) {
        us_slab_set_free(s, s->free + 1);
        return;
    }
    us_slab_push_free(c, s, object);
    if (s->free == us_slab_objects(s)) {
        if (s->free > 1)
            delist(l, s);
        us_slab_set_state(s, US_SLAB_PRIVATE);
        us_writes(s, sizeof(*s));
        s->next = w->empty;
        w->empty = s;
    } else if (s->free == 1) {
        enlist(l, s);
        us_count(c, w->cpu, US_SLQB_FLUSH_SLAB_PARTIAL);
    }
}

/* All of a chain, which is of slabs of the list. */
static void put_chain(struct us_slqb_work *w, struct us_slqb_list *l,
                      const struct us_slqb_chain *chain)
{
    const enum us_phase before = us_phase_set(US_PHASE_SLOW);
    void *object = chain->first, *next;
    uint64_t rest = 0;
    uint32_t n = mark(w->c, l->base, object, chain->n, &rest);

    us_runs(RUNS_PUT_CHAIN + RUNS_PUT_NEXT * n);
    take(w->f, &l->page_lock);
    for (; n > 0; n--, object = next) {
        next = us_counted_object(l->base, read_link(w->c, object));
        put(w, l, object);
    }
    us_lock_drop(w->f, &l->page_lock);
    us_phase_set(before);
}

bool us_slqb_put_one(struct us_cache *c, struct us_flight *f, unsigned cpu, void *object)
{
    struct us_slqb_work w = {.c = c, .f = f, .cpu = cpu};
    struct us_slab *s = us_cache_slab(c, object);
    struct us_slqb_list *l;

    us_runs(RUNS_PUT_ONE);
    if (!us_slab_knows(c, s, object))
        return true;
    l = us_slqb_owner(s);
    if (f->nested || !l || !us_lock_take(f, &l->page_lock))
        return false;
    put(&w, l, object);
    us_lock_drop(f, &l->page_lock);
    us_slqb_work_end(&w);
    return true;
}

void *us_slqb_fill(struct us_cache *c, struct us_flight *f, struct us_slqb_list *l)
{
    void *object = NULL;
    struct us_slab *s;

    us_runs(RUNS_FILL);
    us_reads(&l->nr_partial, sizeof(l->nr_partial));
    if (atomic_load_explicit(&l->nr_partial, memory_order_relaxed) == 0 ||
        !us_lock_take(f, &l->page_lock))
        return NULL;
    us_reads(&l->partial, sizeof(l->partial));
    while (!object && (s = l->partial.first) != NULL) {
        object = us_slab_pop_free(c, s);
        if (!object || s->free == 0)
            delist(l, s);
        if (!object)
            isolate(c, s);
    }
    us_lock_drop(f, &l->page_lock);
    return object;
}

/* A slab of the node where the thread is now belongs to the CPU's list, any other to its node's. */
static struct us_slqb_list *list_for(const struct us_cache *c, unsigned cpu, unsigned node)
{
    struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);

    if (x && node == us_node_of_cpu(c->machine, cpu))
        return &x->list;
    return &us_slqb_of(c)->node[node].list;
}

/* Where objects of the CPU's next slab begin: a line further on than in its last one, as long as
 * that leaves any of the slab's left-over. */
static uint32_t next_colour(const struct us_cache *c, unsigned cpu)
{
    const struct us_geometry *g = &c->geometry;
    const size_t over = (c->machine->page_size << g->order) - g->objects * g->stride;
    const size_t step = g->align > US_LINE ? g->align : US_LINE;
    struct us_slqb_cpu *x = us_slqb_cpu_of(c, cpu);
    uint32_t colour;

    us_reads(&c->flags, sizeof(c->flags));
    if (!x || (c->flags & US_DEBUG_F))
        return 0;
    us_writes(&x->colour_next, sizeof(x->colour_next));
    colour = atomic_load_explicit(&x->colour_next, memory_order_relaxed);
    atomic_store_explicit(&x->colour_next, colour + step < over ? (uint32_t)(colour + step) : 0,
                          memory_order_relaxed);
    return colour;
}

void *us_slqb_fill_new(struct us_cache *c, struct us_flight *f, unsigned node, unsigned flags)
{
    unsigned cpu = us_cpu_now(c->machine);
    struct us_slab *s = us_slab_new_at(c, f, node, flags, next_colour(c, cpu), NULL);
    struct us_slqb_list *l;
    void *object;

    if (!s)
        return NULL;
    us_runs(RUNS_FILL_NEW);
    us_writes(s, sizeof(*s));
    cpu = us_cpu_now(c->machine);
    us_count(c, cpu, US_SLQB_ALLOC_SLAB_NEW);
    l = list_for(c, cpu, s->node);
    __atomic_store_n((struct us_slqb_list **)&s->local.head, l, __ATOMIC_RELAXED);
    if (!us_lock_take(f, &l->page_lock)) {
        us_slab_release(c, f, s);
        us_count(c, cpu, US_SLQB_SLAB_UNDONE);
        return NULL;
    }
    us_slab_set_state(s, 0);
    object = us_slab_pop_free(c, s);
    if (!object)
        isolate(c, s);
    else if (s->free)
        enlist(l, s);
    us_lock_drop(f, &l->page_lock);
    return object;
}

/* ---- words --------------------------------------------------------------------------- */

static struct us_list *descriptor(struct us_slqb_cpu *x, enum us_slqb_word word)
{
    return (struct us_list *)(word == US_SLQB_FREELIST ? &x->list.free : &x->rlist_word);
}

/* The free list came off its word: the counts go to the CPU's statistics. */
static void settle(struct us_cache *c, struct us_slqb_cpu *x)
{
    const uint64_t h = x->list.free.header, pops = us_counted_pops(h);
    const uint64_t pushes = us_counted_size(h) + pops - x->region.installed[US_SLQB_FREELIST];

    us_runs(RUNS_SETTLE);
    us_reads(&x->region, sizeof(x->region));
    if (pops | pushes)
        us_local_harvest(&c->local, x->cpu, pops, pushes);
    set_header(&x->list, (h & US_COUNTED_PLACE) | us_counted_size(h));
}

static bool unpark(struct us_slqb_cpu *x, enum us_slqb_word word)
{
    us_reads(&x->parked[word], sizeof(*x->parked));
    if (!atomic_load_explicit(&x->parked[word], memory_order_relaxed))
        return false;
    us_updates(&x->parked[word], sizeof(*x->parked));
    return atomic_exchange_explicit(&x->parked[word], 0, memory_order_acquire);
}

struct us_slqb_cpu *us_slqb_own(struct us_cache *c, struct us_flight *f, enum us_slqb_word word)
{
    unsigned cpu;
    struct us_list *list = us_local_detach(&c->local, f, word, &cpu);
    struct us_slqb_cpu *x;

    us_runs(RUNS_OWN);
    if (!list) {
        x = us_slqb_cpu_of(c, cpu);
        return x && unpark(x, word) ? x : NULL;
    }
    if (word == US_SLQB_RLIST)
        return (struct us_slqb_cpu *)((char *)list - offsetof(struct us_slqb_cpu, rlist_word));
    x = (struct us_slqb_cpu *)((char *)list - offsetof(struct us_slqb_cpu, list));
    settle(c, x);
    return x;
}

void us_slqb_disown(struct us_cache *c, struct us_flight *f, enum us_slqb_word word,
                    struct us_slqb_cpu *x)
{
    us_runs(RUNS_DISOWN);
    us_reads(&x->cpu, sizeof(x->cpu));
    if (us_local_install(&c->local, f, word, x->cpu, descriptor(x, word)) == US_LOCAL_OK)
        return;
    us_writes(&x->parked[word], sizeof(*x->parked));
    atomic_store_explicit(&x->parked[word], 1, memory_order_release);
}

bool us_slqb_own_closed(struct us_cache *c, struct us_words *region, enum us_slqb_word word)
{
    struct us_slqb_cpu *x = (struct us_slqb_cpu *)region;

    us_runs(RUNS_CLOSED);
    if (!us_words_detach_c(region, word))
        return unpark(x, word);
    if (word == US_SLQB_FREELIST)
        settle(c, x);
    return true;
}

void us_slqb_disown_closed(struct us_words *region, enum us_slqb_word word)
{
    struct us_slqb_cpu *x = (struct us_slqb_cpu *)region;

    us_words_install_counted_c(region, word, (struct us_counted *)descriptor(x, word));
}

/* ---- the free list, private ---------------------------------------------------------- */

void us_slqb_push(const struct us_cache *c, struct us_slqb_list *l, void *object)
{
    const uint64_t h = l->free.header;

    us_runs(RUNS_PUSH);
    write_link(c, object, h);
    set_header(l, ((h & ~US_COUNTED_PLACE) + 1) | us_counted_place(l->base, object));
}

void *us_slqb_pop(struct us_cache *c, struct us_slqb_list *l)
{
    const uint64_t h = l->free.header;
    void *object = us_counted_object(l->base, h);

    us_runs(RUNS_POP);
    us_reads(&l->free, sizeof(l->free));
    if (us_counted_size(h) == 0)
        return NULL;
    if (!at_home(c, object)) {
        us_report_misuse(c, US_MISUSE_LIST, NULL);
        set_header(l, 0);
        return NULL;
    }
    set_header(l, ((h & ~US_COUNTED_PLACE) - 1) | (read_link(c, object) & US_COUNTED_PLACE));
    return object;
}

/* Takes up to n objects off the hot end, marked. */
static uint32_t cut(struct us_cache *c, struct us_slqb_list *l, uint32_t n, void **first)
{
    const uint64_t h = l->free.header;
    const uint32_t size = us_counted_size(h);
    uint64_t rest = 0;
    uint32_t got;

    us_reads(&l->free, sizeof(l->free));
    *first = us_counted_object(l->base, h);
    if (n > size)
        n = size;
    got = mark(c, l->base, *first, n, &rest);
    set_header(l, got < n ? 0 : (rest & US_COUNTED_PLACE) | (size - n));
    return got;
}

void us_slqb_flush(struct us_slqb_work *w, struct us_slqb_list *l, uint32_t n)
{
    struct us_cache *c = w->c;
    bool locked = false;
    void *object, *next;

    us_runs(RUNS_FLUSH);
    n = cut(c, l, n, &object);
    if (n == 0)
        return;
    us_runs((uint64_t)RUNS_FLUSH_NEXT * n);
    us_count(c, w->cpu, US_SLQB_FLUSH_FREE_LIST);
    us_count_n(c, w->cpu, US_SLQB_FLUSH_FREE_LIST_OBJECTS, n);
    for (; n > 0; n--, object = next) {
        const struct us_slab *s = us_cache_slab(c, object);
        struct us_slqb_list *home = s && s->cache == c ? us_slqb_owner(s) : NULL;

        next = us_counted_object(l->base, read_link(c, object));
        if (home == l && !locked) {
            take(w->f, &l->page_lock);
            locked = true;
        } else if (home != l && locked) {
            us_lock_drop(w->f, &l->page_lock);
            locked = false;
        }
        if (home == l) {
            put(w, l, object);
        } else if (home) {
            us_count(c, w->cpu, US_SLQB_FLUSH_FREE_LIST_REMOTE);
            us_slqb_to_rlist(w, home, object);
        } else {
            us_report_misuse(c, US_MISUSE_DOUBLE_FREE, object);
        }
    }
    if (locked)
        us_lock_drop(w->f, &l->page_lock);
}

/* ---- what others brought home -------------------------------------------------------- */

/* The coldest object of a list that is not empty; NULL: links lead astray. */
static void *coldest(struct us_cache *c, const struct us_slqb_list *l)
{
    void *object = us_counted_object(l->base, l->free.header);
    uint32_t n = us_slqb_size(l);

    us_runs((uint64_t)RUNS_FOLLOW * n);
    while (at_home(c, object) && --n > 0)
        object = us_counted_object(l->base, read_link(c, object));
    if (n == 0)
        return object;
    us_report_misuse(c, US_MISUSE_LIST, NULL);
    return NULL;
}

static struct us_slqb_chain take_remote(struct us_flight *f, struct us_slqb_list *l)
{
    struct us_slqb_chain chain = {NULL, NULL, 0};

    if (us_slqb_nr_remote(l) == 0)
        return chain;
    take(f, &l->remote_lock);
    us_writes(&l->remote_free, sizeof(l->remote_free));
    us_writes(&l->remote_free_check, sizeof(l->remote_free_check));
    chain = l->remote_free;
    set_length(&l->remote_free, 0);
    atomic_store_explicit(&l->remote_free_check, 0, memory_order_relaxed);
    us_lock_drop(f, &l->remote_lock);
    return chain;
}

uint32_t us_slqb_claim(struct us_slqb_work *w, struct us_slqb_list *l)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    const struct us_slqb_chain chain = take_remote(w->f, l);
    const uint64_t place = us_counted_place(l->base, chain.first);
    struct us_cache *c = w->c;
    void *last;

    us_phase_set(before);
    us_runs(RUNS_CLAIM);
    if (chain.n == 0)
        return 0;
    us_runs(RUNS_CLAIMED);
    us_count(c, w->cpu, US_SLQB_CLAIM_REMOTE_LIST);
    us_count_n(c, w->cpu, US_SLQB_CLAIM_REMOTE_LIST_OBJECTS, chain.n);
    if (us_slqb_size(l) + chain.n > US_COUNTED_MAX) /* more than a header can tell */
        us_slqb_flush(w, l, us_slqb_size(l));
    last = us_slqb_size(l) ? coldest(c, l) : NULL;
    if (last) {
        write_link(c, last, place | FOLLOWED);
        set_header(l, l->free.header + chain.n);
    } else {
        set_header(l, place | chain.n);
    }
    return chain.n;
}

/* ---- on the way home ----------------------------------------------------------------- */

static struct us_slqb_rlist *rlist_of(struct us_slqb_work *w)
{
    if (w->rlist)
        return w->rlist;
    w->rlist_cpu = us_slqb_own(w->c, w->f, US_SLQB_RLIST);
    w->rlist = w->rlist_cpu ? &w->rlist_cpu->rlist : &w->spare;
    return w->rlist;
}

void us_slqb_to_rlist(struct us_slqb_work *w, struct us_slqb_list *home, void *object)
{
    const enum us_phase before = us_phase_set(US_PHASE_SECOND);
    struct us_slqb_rlist *r = rlist_of(w);

    us_runs(RUNS_TO_RLIST);
    if (r != &w->spare)
        us_writes(r, sizeof(*r));
    us_reads(home, offsetof(struct us_slqb_list, node)); /* its base */
    if (r->home != home)
        us_slqb_send_home(w, r);
    r->home = home;
    append(w->c, home->base, &r->chain, object);
    if (r->chain.n >= us_slqb_of(w->c)->freebatch)
        us_slqb_send_home(w, r);
    us_phase_set(before);
}

static void bring(struct us_slqb_work *w, struct us_slqb_list *home,
                  const struct us_slqb_chain *chain)
{
    const uint32_t freebatch = us_slqb_of(w->c)->freebatch;
    uint32_t before;

    us_runs(RUNS_BRING);
    take(w->f, &home->remote_lock);
    us_writes(&home->remote_free, sizeof(home->remote_free));
    before = home->remote_free.n;
    join(w->c, home->base, &home->remote_free, chain);
    if (before < freebatch && home->remote_free.n >= freebatch) {
        us_writes(&home->remote_free_check, sizeof(home->remote_free_check));
        atomic_store_explicit(&home->remote_free_check, 1, memory_order_relaxed);
    }
    us_lock_drop(w->f, &home->remote_lock);
}

void us_slqb_send_home(struct us_slqb_work *w, struct us_slqb_rlist *r)
{
    const struct us_slqb_chain chain = r->chain;
    struct us_slqb_list *home = r->home;
    enum us_phase before;

    us_runs(RUNS_SEND_HOME);
    if (r != &w->spare)
        us_reads(r, sizeof(*r));
    if (chain.n == 0)
        return;
    if (r != &w->spare)
        us_writes(r, sizeof(*r));
    before = us_phase_set(US_PHASE_SECOND);
    r->home = NULL;
    set_length(&r->chain, 0);
    us_count(w->c, w->cpu, US_SLQB_FLUSH_RFREE_LIST);
    us_count_n(w->c, w->cpu, US_SLQB_FLUSH_RFREE_LIST_OBJECTS, chain.n);
    if (w->straight || us_slqb_nr_remote(home) > us_slqb_of(w->c)->hiwater / 2)
        put_chain(w, home, &chain);
    else
        bring(w, home, &chain);
    us_phase_set(before);
}

uint64_t us_slqb_work_end(struct us_slqb_work *w)
{
    us_runs(RUNS_WORK_END);
    us_slqb_send_home(w, &w->spare);
    if (w->rlist_cpu)
        us_slqb_disown(w->c, w->f, US_SLQB_RLIST, w->rlist_cpu);
    return us_slab_release_chain(w->c, w->f, w->cpu, w->empty, US_SLQB_FLUSH_SLAB_FREE);
}
